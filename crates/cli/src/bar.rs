//! What a command is doing that takes long: a bar on a terminal, plain lines with `--verbose`, else nothing.

use std::io::{IsTerminal, Write, stderr};
use std::time::Instant;

use crate::lines;

/// Width of the bar in characters.
const WIDTH: usize = 24;

/// How far it has come. Everything goes to stderr.
pub(crate) struct Progress {
    total: usize,
    done: usize,
    start: Instant,
    bar: bool,
    lines: bool,
}

impl Progress {
    /// Of `total` steps.
    pub(crate) fn new(total: usize, verbose: bool) -> Progress {
        Progress {
            total,
            done: 0,
            start: Instant::now(),
            bar: stderr().is_terminal() && !verbose,
            lines: verbose,
        }
    }

    /// A step begins.
    pub(crate) fn begin(&mut self, what: &str) {
        if self.bar {
            let mut line = bar(self.done, self.total, self.start.elapsed().as_secs(), what);
            // A line that wraps could not be cleared.
            line = line.chars().take(lines::width_of(&stderr(), 1) - 1).collect();
            let _ = write!(stderr(), "\r\x1b[2K{line}");
        }
    }

    /// A step has ended; `result` is said with `--verbose` only.
    pub(crate) fn end(&mut self, what: &str, result: &str) {
        self.done += 1;
        if self.lines {
            let _ = writeln!(stderr(), "[{}/{}] {what}: {result}", self.done, self.total);
        }
    }

    /// So many steps are not needed.
    pub(crate) fn skip(&mut self, steps: usize) {
        self.done += steps;
    }

    /// A line that stays.
    pub(crate) fn say(&self, line: &str) {
        let clear = if self.bar { "\r\x1b[2K" } else { "" };
        let _ = writeln!(stderr(), "{clear}{line}");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.bar {
            let _ = write!(stderr(), "\r\x1b[2K");
        }
    }
}

fn bar(done: usize, total: usize, seconds: u64, what: &str) -> String {
    let full = (WIDTH * done.min(total)).checked_div(total).unwrap_or(WIDTH);
    format!(
        "[{}{}] {done}/{total} {}:{:02} {what}",
        "#".repeat(full),
        ".".repeat(WIDTH - full),
        seconds / 60,
        seconds % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fills_from_empty_to_full() {
        assert!(bar(0, 10, 0, "x").starts_with("[........................] 0/10 0:00 x"));
        assert!(bar(5, 10, 61, "x").starts_with("[############............] 5/10 1:01"));
        assert!(bar(10, 10, 0, "x").starts_with("[########################]"));
        assert!(bar(11, 10, 0, "x").starts_with("[########################]"));
        assert!(bar(0, 0, 0, "x").starts_with("[########################]"));
    }
}
