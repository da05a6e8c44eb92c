//! Stopping this process as its program was stopped.
//!
//! A SIGCONT that comes while we are about to stop must not be lost, or both stay stopped
//! although the sender continued them. Generating a stop signal throws a pending SIGCONT
//! away, and the other way round. So for this time SIGCONT has a handler, which notes it at
//! once, and the stop signal is first generated while it is blocked: a SIGCONT before that
//! is noted, one after it takes the stop back. (SIGSTOP cannot be blocked: for it a window
//! of a microsecond is left.)

use std::sync::atomic::{AtomicI32, Ordering};

use super::inherited::{disposition, set_disposition};
use super::signals::SignalSet;
use super::terminal::Held;
use super::tree::Stat;
use super::waker::Waker;

/// What ended a stop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resumed {
    /// Who sent SIGCONT, if it came.
    pub(super) by: Option<libc::pid_t>,
    /// Our own helper, which may have been the sender.
    pub(super) waker: Option<libc::pid_t>,
}

/// Who sent the last SIGCONT.
static SENDER: AtomicI32 = AtomicI32::new(NOBODY);
const NOBODY: i32 = -1;

/// Stops this process by `signal`, which stopped `child`, and returns when it runs again;
/// at once if the child is no longer stopped. In an orphaned process group the kernel
/// ignores all stop signals but SIGSTOP, for us as for the child. Both signals must be
/// blocked, and are again afterwards.
pub(super) fn stop_with(child: libc::pid_t, signal: i32) -> Resumed {
    SENDER.store(NOBODY, Ordering::Relaxed);
    let before = disposition(libc::SIGCONT);
    note_sigcont();
    let sigcont: SignalSet = [libc::SIGCONT].into_iter().collect();
    let _ = sigcont.unblock();
    let mut waker = None;
    if is_stopped(child) && !noted() {
        let held = Held::by(child);
        waker = Waker::start(child);
        stop(signal);
        if let Some(held) = held {
            held.restore();
        }
    }
    let _ = sigcont.block();
    set_disposition(libc::SIGCONT, before.unwrap_or(libc::SIG_DFL));
    let by = Some(SENDER.load(Ordering::Relaxed)).filter(|sender| *sender != NOBODY);
    Resumed { by, waker: waker.as_ref().map(Waker::pid) }
}

/// Stops this process unless a SIGCONT is or gets noted.
fn stop(signal: i32) {
    let only: SignalSet = [signal].into_iter().collect();
    let before = disposition(signal);
    set_disposition(signal, libc::SIG_DFL);
    if signal != libc::SIGSTOP || !noted() {
        // SAFETY: kill and getpid have no memory effects.
        unsafe { libc::kill(libc::getpid(), signal) };
    }
    if noted() {
        // It came before the stop signal: throw that away.
        set_disposition(signal, libc::SIG_IGN);
    }
    let _ = only.unblock(); // here all but SIGSTOP stop us
    let _ = only.block();
    set_disposition(signal, before.unwrap_or(libc::SIG_DFL));
}

fn is_stopped(child: libc::pid_t) -> bool {
    Stat::of(child.cast_unsigned()).is_some_and(|stat| stat.is_stopped())
}

fn noted() -> bool {
    SENDER.load(Ordering::Relaxed) != NOBODY
}

/// Makes SIGCONT note its sender.
fn note_sigcont() {
    extern "C" fn note(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the kernel passes a valid siginfo_t; a SIGCONT comes from kill, so it has
        // a sender. From the kernel the field is 0.
        SENDER.store(unsafe { (*info).si_pid() }, Ordering::Relaxed);
    }
    // SAFETY: sigaction is plain data for which zero is valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = note as *const () as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: the handler has the type that SA_SIGINFO asks for and only stores an atomic.
    unsafe { libc::sigaction(libc::SIGCONT, &raw const action, std::ptr::null_mut()) };
}
