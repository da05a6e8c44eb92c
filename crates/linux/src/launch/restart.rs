//! Ending a program in order to start it again at another size.

use std::io;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use super::supervise::{Event, Supervised};
use super::tree::with_descendants;

/// How long descendants are given to disappear after SIGKILL: they have nothing left to
/// do but wait for the kernel.
const AFTER_KILL: Duration = Duration::from_secs(1);

/// Time between two looks at descendants, whose end nobody reports to us.
const LOOK: Duration = Duration::from_millis(5);

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Killed {
    /// Its status.
    pub status: ExitStatus,
    /// A signal by which somebody wanted it to end meanwhile (SIGINT, SIGTERM, SIGHUP or
    /// SIGQUIT): then it must not be started again.
    pub asked_to_end: Option<i32>,
    /// It had ended by itself before it was told to.
    pub by_itself: bool,
}

impl Supervised {
    /// Ends the program and its descendants: SIGTERM, after `grace` SIGKILL, and waits.
    /// Descendants are those that a walk through /proc finds at the beginning and at the
    /// end of the grace; what the program has left to init runs on.
    ///
    /// # Errors
    /// As [`Supervised::wait_until`].
    pub fn kill_for_restart(&mut self, grace: Duration) -> io::Result<Killed> {
        // What came before is the caller's: he has seen no end yet and decides by it.
        if let Event::Exited(status) = self.wait_until(Instant::now())? {
            return Ok(Killed { status, asked_to_end: self.asked_to_end(), by_itself: true });
        }
        let pid = self.pid();
        let mut doomed = with_descendants(pid);
        for process in &doomed {
            process.signal(libc::SIGTERM);
            process.signal(libc::SIGCONT);
        }
        let end = Instant::now() + grace;
        let mut status = self.wait_for_exit(end)?;
        while Instant::now() < end && doomed.iter().any(|process| process.is_alive()) {
            std::thread::sleep(LOOK);
        }
        if status.is_none() {
            doomed.extend(with_descendants(pid));
        }
        for process in &doomed {
            process.signal(libc::SIGKILL);
        }
        while status.is_none() {
            status = self.wait_for_exit(Instant::now() + AFTER_KILL)?;
        }
        let end = Instant::now() + AFTER_KILL;
        while Instant::now() < end && doomed.iter().any(|process| process.is_alive()) {
            std::thread::sleep(LOOK);
        }
        let status = status.unwrap_or_default();
        Ok(Killed { status, asked_to_end: self.asked_to_end(), by_itself: false })
    }

    fn wait_for_exit(&mut self, end: Instant) -> io::Result<Option<ExitStatus>> {
        loop {
            match self.wait_until(end)? {
                Event::Exited(status) => return Ok(Some(status)),
                Event::Tick => return Ok(None),
                Event::Stopped(_) | Event::Continued | Event::Undelivered { .. } => {}
            }
        }
    }
}
