//! How much work this guest's programs have done, for the host that sizes it: a small file that the host makes through the
//! guest agent when it begins to tell the guest what it gets ([`crate::told`]), and reads again and again.
//!
//! ```text
//! corefit-progress 1
//! units 51234
//! at_ns 86400123456789
//! ```
//!
//! Whoever does work adds to it. A unit is whatever is counted, parallel regions by `corefit run`: only growth means
//! something. The time is `CLOCK_MONOTONIC` of the guest, when it was so much; so how late the agent brings it does not
//! matter. The text has always the same length, so that a reader never sees half of a new one. The agent makes files that all
//! may write (QEMU's qga/commands-posix.c, `DEFAULT_NEW_FILE_MODE`), as programs have no rights of their own: who writes
//! nonsense misleads the sizing of his VM, and of those that search at the same time, within their limits.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use corefit_core::Time;
use rustix::fs::{FlockOperation, flock};
use rustix::time::ClockId;

use crate::threads::clock;

/// Where the file is in the guest.
pub const PATH: &str = "/run/corefit-progress";
/// All texts are so long, the spaces at their end included.
const LENGTH: usize = 80;

/// Work done since some instant in the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Units of whatever is counted.
    pub units: u64,
    /// When it was so much, by the guest's monotonic clock.
    pub at: Time,
}

/// The text to be written.
fn text(work: Work) -> String {
    let text = format!("corefit-progress 1\nunits {}\nat_ns {}", work.units, work.at.0);
    format!("{text:<width$}\n", width = LENGTH - 1)
}

/// Reads such a text; `None` if nobody has counted yet, or it makes no sense: there is no signal then.
#[must_use]
pub fn parse(text: &str) -> Option<Work> {
    let mut lines = text.lines();
    let mut value = |name: &str| lines.next()?.trim_end().strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
    (value("corefit-progress")? == 1).then_some(())?;
    Some(Work { units: value("units")?, at: Time(value("at_ns")?) })
}

/// Adds to the file; several processes may.
#[derive(Debug)]
pub struct Counter {
    file: File,
    /// Not yet written: somebody else was writing.
    owed: u64,
}

impl Counter {
    /// If a host made the file.
    #[must_use]
    pub fn open() -> Option<Counter> {
        Counter::at(Path::new(PATH))
    }

    fn at(path: &Path) -> Option<Counter> {
        let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
        file.metadata().ok()?.is_file().then_some(Counter { file, owed: 0 })
    }

    /// So many units more until now. Never waits.
    pub fn add(&mut self, units: u64) {
        self.owed = self.owed.saturating_add(units);
        if flock(&self.file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return;
        }
        let mut old = [0u8; LENGTH];
        let read = self.file.read_at(&mut old, 0).unwrap_or(0);
        let before = parse(&String::from_utf8_lossy(&old[..read])).map_or(0, |work| work.units);
        let now = Work { units: before.saturating_add(self.owed), at: now() };
        if self.file.write_all_at(text(now).as_bytes(), 0).is_ok() {
            self.owed = 0;
        }
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

fn now() -> Time {
    Time(0) + clock(ClockId::Monotonic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_one_length_and_say_what_was_meant() {
        for units in [0, 1, u64::MAX] {
            let work = Work { units, at: Time(u64::MAX) };
            assert_eq!(text(work).len(), LENGTH);
            assert_eq!(parse(&text(work)), Some(work));
        }
    }

    #[test]
    fn nonsense_is_no_signal() {
        for text in [
            "",
            "corefit-progress 2\nunits 1\nat_ns 1",
            "corefit-progress 1\nunits -1\nat_ns 1",
            "corefit-progress 1\nunits 1\n",
            "corefit-progress 1\nunits 1\nat_ns x",
            "corefit-progress 1\nunits 18446744073709551616\nat_ns 1",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn several_who_count_add_up_and_nobody_waits() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("progress");
        assert!(Counter::at(&path).is_none(), "no host made it");
        assert!(Counter::at(dir.path()).is_none(), "no file");
        std::fs::write(&path, "").unwrap();
        let work = || parse(&std::fs::read_to_string(&path).unwrap());
        let [mut one, mut other] = [(); 2].map(|()| Counter::at(&path).unwrap());
        one.add(3);
        let first = work().unwrap();
        assert_eq!(first.units, 3);
        flock(&one.file, FlockOperation::LockExclusive).unwrap();
        other.add(4);
        assert_eq!(work(), Some(first), "somebody else writes");
        flock(&one.file, FlockOperation::Unlock).unwrap();
        other.add(1);
        let then = work().unwrap();
        assert_eq!(then.units, 8);
        assert!(then.at > first.at);
    }
}
