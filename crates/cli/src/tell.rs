//! Lines for people. Nobody may be left to read them (a closed pipe): that is no reason to end as `println!` does.

use std::io::{ErrorKind, Write as _, stderr};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus};

use anyhow::Result;

/// A line on stderr.
macro_rules! tell {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

/// A line on stdout about work that goes on, or is done, whether or not it can be written.
macro_rules! show {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

/// What was asked for, and the end of its line, on stdout: an error if it cannot be written, but none if nobody reads any more.
macro_rules! answer {
    ($($text:tt)*) => {
        $crate::lines::print(&(format!($($text)*) + "\n")).map(drop)
    };
}

/// The exit status when a document that was asked for is lost.
const LOST: u8 = 2;

/// A document on stderr, whether it could be written: that nobody reads any more is no error.
pub(crate) fn all(text: &str) -> bool {
    match stderr().write_all(text.as_bytes()) {
        Err(error) => error.kind() == ErrorKind::BrokenPipe,
        Ok(()) => true,
    }
}

/// Whether a file that was asked for beside it could be written; if not, that is told.
pub(crate) fn written(result: Result<()>) -> bool {
    result.inspect_err(|why| tell!("corefit: {why:#}")).is_ok()
}

/// How a command ends that could write all files that were asked for, or not.
pub(crate) fn end(all: bool, status: ExitCode) -> ExitCode {
    if all { status } else { ExitCode::from(LOST) }
}

/// How a command ends that stands in for a program: as this ended, but not well if what was asked for beside it is lost.
pub(crate) fn ended(status: ExitStatus, lost: bool) -> ExitStatus {
    if lost && status.success() { ExitStatus::from_raw(i32::from(LOST) << 8) } else { status }
}
