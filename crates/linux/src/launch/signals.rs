//! Sets of signals, and receiving signals through a file descriptor.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd};

/// A set of signals; bit n-1 is signal n, as in the kernel and in /proc/PID/status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SignalSet(pub(super) u64);

/// The highest signal number on Linux.
const LAST: i32 = 64;

/// Signals that glibc keeps for itself (thread cancellation, set*id).
const LIBC_OWN: std::ops::RangeInclusive<i32> = 32..=33;

/// Never passed on. The first two cannot be caught; the next are faults of corefit's own
/// code, which a blocked signal would hide; SIGPIPE reports its own broken stderr.
const OWN: [i32; 9] = [
    libc::SIGKILL,
    libc::SIGSTOP,
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
    libc::SIGPIPE,
];

impl SignalSet {
    /// Every signal that a program can do something about.
    pub(super) fn all() -> SignalSet {
        (1..=LAST).filter(|signal| !LIBC_OWN.contains(signal)).collect()
    }

    /// The signals that a supervisor takes for its program, and SIGCHLD for itself.
    pub(super) fn supervised() -> SignalSet {
        SignalSet::all().filter(|signal| !OWN.contains(&signal))
    }

    /// The signals that this thread blocks.
    pub(super) fn blocked() -> SignalSet {
        let mut set = std::mem::MaybeUninit::uninit();
        // SAFETY: with a null new set the call only writes the present one.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), set.as_mut_ptr()) };
        // SAFETY: the call above cannot fail with these arguments, so `set` is written.
        let set: libc::sigset_t = unsafe { set.assume_init() };
        // SAFETY: sigismember only reads an initialised set.
        SignalSet::all().filter(|signal| unsafe { libc::sigismember(&raw const set, signal) } == 1)
    }

    /// Blocks exactly these signals in this thread. Async-signal-safe.
    pub(super) fn set_mask(self) -> io::Result<()> {
        self.mask(libc::SIG_SETMASK)
    }

    /// Blocks these signals too in this thread.
    pub(super) fn block(self) -> io::Result<()> {
        self.mask(libc::SIG_BLOCK)
    }

    /// Unblocks these signals in this thread.
    pub(super) fn unblock(self) -> io::Result<()> {
        self.mask(libc::SIG_UNBLOCK)
    }

    fn mask(self, how: i32) -> io::Result<()> {
        let set = self.to_libc();
        // SAFETY: `set` is initialised; the old mask is not asked for.
        match unsafe { libc::pthread_sigmask(how, &raw const set, std::ptr::null_mut()) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    fn to_libc(self) -> libc::sigset_t {
        let mut set = std::mem::MaybeUninit::uninit();
        // SAFETY: sigemptyset initialises the whole set; sigaddset is given valid numbers.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in self.iter() {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            set.assume_init()
        }
    }

    pub(super) fn contains(self, signal: i32) -> bool {
        (1..=LAST).contains(&signal) && self.0 & (1 << (signal - 1)) != 0
    }

    pub(super) fn iter(self) -> impl Iterator<Item = i32> {
        (1..=LAST).filter(move |signal| self.contains(*signal))
    }

    pub(super) fn filter(self, keep: impl Fn(i32) -> bool) -> SignalSet {
        self.iter().filter(|signal| keep(*signal)).collect()
    }
}

impl FromIterator<i32> for SignalSet {
    fn from_iter<I: IntoIterator<Item = i32>>(signals: I) -> SignalSet {
        SignalSet(signals.into_iter().fold(0, |bits, signal| bits | 1 << (signal - 1)))
    }
}

/// A signal as it was received.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    pub(super) signal: i32,
    /// `si_code`: positive when the kernel sent it of itself, else a process did.
    pub(super) code: i32,
    /// The sender, where a process sent it.
    pub(super) sender: i32,
    /// The value that sigqueue(3) attached.
    pub(super) value: u64,
}

impl Received {
    /// Whether the kernel sent it of itself: a terminal, a timer, a limit.
    pub(super) fn by_kernel(&self) -> bool {
        self.code > 0
    }
}

/// The signals of a set that arrive at this process, read instead of handled.
#[derive(Debug)]
pub(super) struct SignalFd(File);

impl SignalFd {
    /// Blocks `set` in this thread and opens the descriptor. Threads that exist already
    /// must block the set as well, or they may take its signals.
    pub(super) fn open(set: SignalSet) -> io::Result<SignalFd> {
        set.block()?;
        let libc_set = set.to_libc();
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        // SAFETY: -1 asks for a new descriptor; the set is initialised.
        let fd = unsafe { libc::signalfd(-1, &raw const libc_set, flags) };
        if fd == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just gave us this descriptor, nobody else owns it.
        Ok(SignalFd(unsafe { File::from_raw_fd(fd) }))
    }

    /// The next signal that is pending, if one is.
    pub(super) fn next(&self) -> io::Result<Option<Received>> {
        let mut bytes = [0u8; size_of::<libc::signalfd_siginfo>()];
        match (&self.0).read(&mut bytes) {
            Ok(read) if read == bytes.len() => {}
            Ok(_) => return Ok(None),
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(why) => return Err(why),
        }
        // SAFETY: the kernel filled the whole structure, which is plain data.
        let info: libc::signalfd_siginfo = unsafe { std::mem::transmute(bytes) };
        Ok(Some(Received {
            signal: info.ssi_signo.cast_signed(),
            code: info.ssi_code,
            sender: info.ssi_pid.cast_signed(),
            value: info.ssi_ptr,
        }))
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_use_the_bits_of_proc_status() {
        let set: SignalSet = [libc::SIGHUP, libc::SIGTERM].into_iter().collect();
        assert_eq!(set.0, 0x4001);
        assert_eq!(set.iter().collect::<Vec<_>>(), [1, 15]);
        assert!(set.contains(15) && !set.contains(2) && !set.contains(0) && !set.contains(65));
    }

    #[test]
    fn faults_and_uncatchable_signals_are_not_supervised() {
        let set = SignalSet::supervised();
        for signal in OWN {
            assert!(!set.contains(signal), "{signal}");
        }
        for signal in [libc::SIGINT, libc::SIGTSTP, libc::SIGCHLD, libc::SIGUSR1, 34, 64] {
            assert!(set.contains(signal), "{signal}");
        }
    }
}
