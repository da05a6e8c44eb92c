//! Ending as the program ended, so that whoever waits for corefit sees no difference.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use super::inherited::set_disposition;
use super::signals::SignalSet;

/// Ends this process as `status` says: with the same exit code, or killed by the same
/// signal. No core file is written for corefit, only the program wrote one. Where the
/// signal does not kill (process 1 of a container), the exit code is 128 + signal.
pub fn end_like(status: ExitStatus) -> ! {
    if let Some(code) = status.code() {
        std::process::exit(code);
    }
    let signal = status.signal().unwrap_or(libc::SIGKILL);
    // Nobody is left to be told that the last words were not written.
    let _ = std::io::stdout().flush();
    let _ = std::io::stderr().flush();
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `none` is a valid limit; the other calls have no memory effects. A pipe in
    // core_pattern disregards the limit, hence PR_SET_DUMPABLE as well.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
    }
    set_disposition(signal, libc::SIG_DFL);
    // SAFETY: kill and getpid have no memory effects.
    unsafe { libc::kill(libc::getpid(), signal) };
    let _ = [signal].into_iter().collect::<SignalSet>().unblock();
    std::process::exit(128 + signal)
}
