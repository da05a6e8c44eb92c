//! Whole texts for people, as wide as their terminal.

use std::io::{self, IsTerminal, Write as _};
use std::os::fd::AsFd;

use anyhow::{Context as _, Result};

/// Columns of text that goes to no terminal.
const WIDTH: u16 = 80;
/// Fewer columns are not worth wrapping for where lines have long indents.
pub(crate) const LEAST: u16 = 40;

/// Columns to use on stdout: those of the terminal, if there are at least so many.
pub(crate) fn width(least: u16) -> usize {
    width_of(&io::stdout(), least)
}

/// The same of stdout or stderr.
pub(crate) fn width_of(out: &(impl AsFd + IsTerminal), least: u16) -> usize {
    let size = rustix::termios::tcgetwinsize(out).ok().map(|size| size.ws_col);
    usize::from(size.filter(|columns| out.is_terminal() && *columns >= least).unwrap_or(WIDTH))
}

/// Prints a text; `false` when nobody reads any more.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn print(text: &str) -> Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        result => result.map(|()| true).context("writing to stdout"),
    }
}

/// Adds a text, broken at blanks into lines of `width`; the first begins with `first`, the others are
/// indented by `indent` blanks.
pub(crate) fn wrap(out: &mut String, first: &str, indent: usize, text: &str, width: usize) {
    let mut line = first.to_owned();
    let mut length = line.chars().count();
    let mut fresh = true;
    for word in text.split_whitespace() {
        let more = word.chars().count();
        if !fresh && length + 1 + more > width {
            out.push_str(line.trim_end());
            out.push('\n');
            line = " ".repeat(indent);
            length = indent;
            fresh = true;
        }
        if !fresh {
            line.push(' ');
            length += 1;
        }
        line.push_str(word);
        length += more;
        fresh = false;
    }
    out.push_str(line.trim_end());
    out.push('\n');
}
