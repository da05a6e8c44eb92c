//! Places at which tests end the daemon as `kill -9` does: `COREFIT_TEST_KILL_AT=NAME` or `NAME:COUNT`; or stop it there, as
//! SIGSTOP does, until SIGCONT: `NAME:COUNT:stop`.
//!
//! Names are those that `reach` is called with, and of corefit-linux `limit-part` (a file of a limit is written, or libvirt was asked for a
//! part of one), `unplugged-part` (what a VM carries of vCPUs that were plugged out is written), `plug-part` (a vCPU is plugged, or its
//! guest did not let go of it), `kept-part` (what a VM carries is written, or a part of it taken away), `vcpus-part` (a guest was asked for
//! vCPUs), `told-part` (the file of what a guest is told is open; it is written, but not closed, before which the guest's agent keeps the
//! text to itself) and `slice-part` (a thread of some has its slice). A setting that is written by one call has no parts: at `written` it is
//! set, and not read back.
//!
//! In the tests of this crate the kill is a panic that the test catches, so that the machine lives on.

/// Ends here if a test wants it.
#[cfg(not(test))]
pub(crate) fn reach(name: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    use rustix::process::{Signal, getpid, kill_process};

    static ARMED: OnceLock<Option<(String, AtomicU32, Signal)>> = OnceLock::new();
    let armed = ARMED.get_or_init(|| {
        let text = std::env::var("COREFIT_TEST_KILL_AT").ok()?;
        let mut parts = text.split(':');
        let (name, count) = (parts.next()?, parts.next().unwrap_or("1"));
        let signal = if parts.next() == Some("stop") { Signal::STOP } else { Signal::KILL };
        Some((name.to_owned(), AtomicU32::new(count.parse().ok()?), signal))
    });
    let Some((wanted, left, signal)) = armed else { return };
    if wanted == name && left.fetch_sub(1, Ordering::Relaxed) == 1 {
        // What was said before is there to be read, however crowded the machine is.
        super::log::flush();
        let _ = kill_process(getpid(), *signal);
    }
}

/// From now on corefit-linux ends in its places, too.
pub(crate) fn arm() {
    #[cfg(not(test))]
    let _ = corefit_linux::BETWEEN.set(reach);
}

#[cfg(test)]
pub(crate) use testing::reach;

/// Kills that the machine survives.
#[cfg(test)]
pub(crate) mod testing {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    thread_local! {
        /// How many places may still be passed.
        static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
    }

    struct Killed;

    pub(crate) fn reach(_: &str) {
        LEFT.with(|left| match left.get() {
            Some(0) => {
                left.set(None);
                resume_unwind(Box::new(Killed));
            }
            Some(n) => left.set(Some(n - 1)),
            None => {}
        });
    }

    /// Does something that is killed at the place after so many; `None` if it was.
    pub(crate) fn until_killed<T>(places: Option<u32>, job: impl FnOnce() -> T) -> Option<T> {
        LEFT.with(|left| left.set(places));
        let result = catch_unwind(AssertUnwindSafe(job));
        LEFT.with(|left| left.set(None));
        match result {
            Ok(done) => Some(done),
            Err(panic) if panic.is::<Killed>() => None,
            Err(panic) => resume_unwind(panic),
        }
    }
}
