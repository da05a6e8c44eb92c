//! The live status line on stderr.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use super::follow::Follower;
use super::report::threads;
use crate::lines::{LEAST, width_of};

/// Time between two refreshes.
const REFRESH: Duration = Duration::from_millis(500);

/// A text at the right end of the line where the cursor is, which stays where the program left it: what the
/// program writes and what the user types begin where they would without us. Nothing unless stderr is a
/// terminal in whose foreground we are.
pub(crate) struct Status {
    wanted: bool,
    /// The column where the text begins.
    shown: Option<usize>,
    last: Instant,
}

impl Status {
    pub(crate) fn new(quiet: bool) -> Status {
        Status { wanted: !quiet && std::io::stderr().is_terminal(), shown: None, last: Instant::now() }
    }

    pub(crate) fn refresh(&mut self, follower: &Follower<'_>) {
        if !self.wanted || self.last.elapsed() < REFRESH || !in_foreground() {
            return;
        }
        self.last = Instant::now();
        if let Some(p) = follower.last() {
            let text = format!(
                "corefit: {}, {:.1} CPUs available, {:.1} used, {:.1} waiting, {} s",
                threads(p.team),
                p.available.0,
                p.run.0,
                p.wait.0,
                p.at.since(follower.history.began()).as_secs()
            );
            let mut stderr = std::io::stderr();
            let (column, text) = at_right(&text, width_of(&stderr, LEAST));
            let from = self.shown.unwrap_or(column).min(column);
            let _ = write!(stderr, "{KEEP}\x1b[{from}G\x1b[K\x1b[{column}G{text}{BACK}");
            self.shown = Some(column);
        }
    }

    /// Takes the text away.
    pub(crate) fn clear(&mut self) {
        if let Some(column) = self.shown.take() {
            let _ = write!(std::io::stderr(), "{KEEP}\x1b[{column}G\x1b[K{BACK}");
        }
    }
}

/// Keeps the cursor's place, and goes back there (DECSC and DECRC).
const KEEP: &str = "\x1b7";
const BACK: &str = "\x1b8";

/// The column from 1 where a text begins that ends one column before the last, and as much of it as fits.
fn at_right(text: &str, columns: usize) -> (usize, String) {
    let text: String = text.chars().take(columns - 1).collect();
    (columns - text.chars().count(), text)
}

fn in_foreground() -> bool {
    let terminal = rustix::termios::tcgetpgrp(std::io::stderr());
    terminal.is_ok_and(|group| group == rustix::process::getpgrp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_ends_before_the_last_column_and_is_cut_where_it_does_not_fit() {
        assert_eq!(at_right("abc", 80), (77, "abc".into()));
        assert_eq!(at_right("abcdef", 5), (1, "abcd".into()));
    }
}
