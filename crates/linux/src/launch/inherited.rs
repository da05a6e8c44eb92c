//! What corefit itself inherited, recorded before Rust's runtime changes it.
//!
//! Before `main` the standard library sets `SIGPIPE` to "ignored" and opens `/dev/null`
//! on closed standard streams. Both would be passed on, and a program that is not told
//! of a broken pipe behaves differently (`yes | head -1` never ends). So a constructor,
//! which runs before the runtime, notes the state, and the child restores it.

use std::io;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::signals::SignalSet;

/// Ignored signals.
static IGNORED: AtomicU64 = AtomicU64::new(0);
/// Blocked signals.
static BLOCKED: AtomicU64 = AtomicU64::new(0);
/// Closed standard streams: bit n is file descriptor n.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// The loader calls every function listed in this section before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static RECORD: extern "C" fn() = record;

extern "C" fn record() {
    BLOCKED.store(SignalSet::blocked().0, Ordering::Relaxed);
    let ignored = SignalSet::all().filter(|signal| disposition(signal) == Some(libc::SIG_IGN));
    IGNORED.store(ignored.0, Ordering::Relaxed);
    for fd in 0..3 {
        // SAFETY: F_GETFD takes no argument and changes nothing, whatever fd is.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1 {
            CLOSED.fetch_or(1 << fd, Ordering::Relaxed);
        }
    }
}

/// The state to restore in a child between fork and exec.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inherited {
    ignored: SignalSet,
    blocked: SignalSet,
    closed: u8,
}

impl Inherited {
    /// What this process started with.
    pub(super) fn recorded() -> Inherited {
        Inherited {
            ignored: SignalSet(IGNORED.load(Ordering::Relaxed)),
            blocked: SignalSet(BLOCKED.load(Ordering::Relaxed)),
            closed: CLOSED.load(Ordering::Relaxed),
        }
    }

    /// Whether this process was started with this signal blocked.
    pub(super) fn blocks(self, signal: i32) -> bool {
        self.blocked.contains(signal)
    }

    /// Gives this process the recorded signal dispositions and mask and closed streams.
    /// Handlers need nothing: exec resets them. Only async-signal-safe calls.
    ///
    /// # Errors
    /// Never seen; the kernel's answer.
    pub(super) fn restore(self) -> io::Result<()> {
        for signal in SignalSet::all().iter() {
            let ignored = self.ignored.contains(signal);
            match disposition(signal) {
                Some(libc::SIG_IGN) if !ignored => set_disposition(signal, libc::SIG_DFL),
                Some(now) if ignored && now != libc::SIG_IGN => {
                    set_disposition(signal, libc::SIG_IGN);
                }
                _ => {}
            }
        }
        for fd in (0..3).filter(|fd| self.closed & (1 << fd) != 0) {
            // SAFETY: these descriptors hold the /dev/null that the runtime put there
            // before main; nothing in the child uses them before exec.
            unsafe { libc::close(fd) };
        }
        self.blocked.set_mask()
    }
}

/// Whether this process was started with this signal ignored, as by `nohup`.
#[must_use]
pub fn started_ignoring(signal: i32) -> bool {
    Inherited::recorded().ignored.contains(signal)
}

/// Makes a write beyond the limit of file sizes (`ulimit -f`) an error of this process, not its death. The
/// program starts with what this process started with.
pub fn files_may_be_refused() {
    set_disposition(libc::SIGXFSZ, libc::SIG_IGN);
}

/// What happens on `signal` now; None for signals that have no disposition.
pub(super) fn disposition(signal: i32) -> Option<libc::sighandler_t> {
    // SAFETY: sigaction is plain data for which zero is a valid value.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: a null new action only asks; `now` is writable.
    let result = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut now) };
    (result == 0).then_some(now.sa_sigaction)
}

/// Sets `signal` to SIG_IGN or SIG_DFL. Signals that cannot be set stay as they are.
pub(super) fn set_disposition(signal: i32, action: libc::sighandler_t) {
    // SAFETY: sigaction is plain data for which zero (no flags, empty mask) is valid.
    let mut new: libc::sigaction = unsafe { std::mem::zeroed() };
    new.sa_sigaction = action;
    // SAFETY: `new` is initialised and holds no handler function; the old one is not asked.
    unsafe { libc::sigaction(signal, &raw const new, std::ptr::null_mut()) };
}
