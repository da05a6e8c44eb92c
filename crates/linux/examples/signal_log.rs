//! Prints every signal it receives, one line each (`NUMBER` or `NUMBER VALUE` for a
//! queued one), and ends with exit code 0 at `SIGRTMIN+5`. For the tests of supervision.

use std::io::Write;

fn main() {
    let mut all = std::mem::MaybeUninit::uninit();
    // SAFETY: sigfillset initialises the set that the second call reads.
    let all: libc::sigset_t = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut());
        all.assume_init()
    };
    say("ready");
    loop {
        // SAFETY: siginfo_t is plain data for which zero is valid.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set is initialised and `info` is writable.
        let signal = unsafe { libc::sigwaitinfo(&raw const all, &raw mut info) };
        if signal == libc::SIGRTMIN() + 5 {
            return;
        }
        if signal > 0 && info.si_code == libc::SI_QUEUE {
            // SAFETY: a queued signal carries a value.
            let value = unsafe { info.si_value() }.sival_ptr.addr();
            say(&format!("{signal} {value}"));
        } else if signal > 0 {
            say(&signal.to_string());
        }
    }
}

fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}
