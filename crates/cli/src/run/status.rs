//! The live status line on stderr.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use super::follow::Follower;

/// Time between two refreshes.
const REFRESH: Duration = Duration::from_millis(500);

/// One line that is rewritten in place; nothing unless stderr is a terminal in whose
/// foreground we are.
pub(crate) struct Status {
    wanted: bool,
    shown: bool,
    last: Instant,
}

impl Status {
    pub(crate) fn new(quiet: bool) -> Status {
        Status { wanted: !quiet && std::io::stderr().is_terminal(), shown: false, last: Instant::now() }
    }

    pub(crate) fn refresh(&mut self, follower: &Follower<'_>) {
        if !self.wanted || self.last.elapsed() < REFRESH || !in_foreground() {
            return;
        }
        self.last = Instant::now();
        if let Some(p) = follower.last() {
            let text = format!(
                "corefit: {} threads ordered, {:.1} CPUs available, {:.1} used, {:.1} waiting, {} s",
                p.team,
                p.available.0,
                p.run.0,
                p.wait.0,
                p.at.since(follower.history.began()).as_secs()
            );
            let _ = write!(std::io::stderr(), "\r\x1b[K{text}");
            self.shown = true;
        }
    }

    /// Takes the line away.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn in_foreground() -> bool {
    let terminal = rustix::termios::tcgetpgrp(std::io::stderr());
    terminal.is_ok_and(|group| group == rustix::process::getpgrp())
}
