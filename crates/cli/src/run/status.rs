//! The live status line on stderr.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use corefit_linux::launch::LastLine;

use super::follow::Follower;
use super::report::threads;

/// Time between two refreshes.
const REFRESH: Duration = Duration::from_millis(500);

/// A text in the last line of the terminal, which is the program's again when it stops or ends.
pub(crate) struct Status {
    wanted: bool,
    line: LastLine,
    last: Instant,
}

impl Status {
    pub(crate) fn new(quiet: bool) -> Status {
        let wanted = !quiet && std::io::stderr().is_terminal();
        Status { wanted, line: LastLine::default(), last: Instant::now() }
    }

    pub(crate) fn refresh(&mut self, follower: &Follower<'_>) {
        if !self.wanted || self.last.elapsed() < REFRESH {
            return self.line.look();
        }
        self.last = Instant::now();
        if let Some(p) = follower.last() {
            self.line.show(&format!(
                "corefit: {}, {:.1} CPUs available, {:.1} used, {:.1} waiting, {} s",
                threads(p.team),
                p.available.0,
                p.run.0,
                p.wait.0,
                p.at.since(follower.history.began()).as_secs()
            ));
        }
    }

    /// Takes the text away.
    pub(crate) fn clear(&mut self) {
        self.line.clear();
    }
}
