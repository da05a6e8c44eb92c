//! What a host tells a guest that it gets: a small file that the host writes through the guest agent.
//!
//! ```text
//! corefit-available 1
//! cpus 2.000
//! valid_s 60
//! ```
//!
//! The text has always the same length, so that a reader never sees half of a new one. It counts for
//! `valid_s` seconds since it was written, 60 at the most, by the guest's own clock: a host whose daemon is gone says
//! nothing any more. The writer writes again in half of that time.
//!
//! The agent makes files that all may write (as [`crate::progress`] says), so whoever runs in the guest can write another text, and has the
//! programs that follow it run with fewer threads, or more; but only as long as he goes on: what is told never counts for longer than
//! the host's own text does.

use std::io::Read;
use std::time::{Duration, SystemTime};

use corefit_core::{Cpus, Sourced, Unread, What};

use crate::bytes;
use crate::root::{ReadError, Root, optional};

/// Where the file is in the guest. `/run` belongs to root, so nobody else can make it there, or put another in its place.
pub const PATH: &str = "/run/corefit-available";
/// How long what is told counts, whatever the text says.
pub const VALID: Duration = Duration::from_secs(60);
/// pCPUs that can be told at the most.
const MOST: f64 = 99_999.0;
/// All texts are so long, the spaces at their end included.
const LENGTH: usize = 64;

/// What such a file says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Told {
    /// pCPUs; `None`: nothing is told any more.
    pub cpus: Option<Cpus>,
    /// Since it was written.
    pub valid: Duration,
}

/// The text to be written.
#[must_use]
pub fn text(cpus: Option<Cpus>) -> String {
    let cpus = cpus.map_or("none".into(), |Cpus(cpus)| format!("{:.3}", cpus.clamp(0.0, MOST)));
    let text = format!("corefit-available 1\ncpus {cpus}\nvalid_s {}", VALID.as_secs());
    format!("{text:<width$}\n", width = LENGTH - 1)
}

/// Reads such a text.
///
/// # Errors
/// The line (from 1) that is not as it should be.
pub fn parse(text: &str) -> Result<Told, usize> {
    let mut lines = text.lines();
    let mut value = |number: usize, name: &str| {
        let line = lines.next().ok_or(number)?.trim_end();
        line.strip_prefix(name).and_then(|rest| rest.strip_prefix(' ')).ok_or(number)
    };
    if value(1, "corefit-available")? != "1" {
        return Err(1);
    }
    let cpus = match value(2, "cpus")? {
        "none" => None,
        number => {
            let cpus = number.parse().ok().filter(|cpus: &f64| (0.0..=MOST).contains(cpus)).ok_or(2usize)?;
            // As it would be written.
            Some((cpus * 1000.0).round() / 1000.0)
        }
    };
    let valid_s: u64 = value(3, "valid_s")?.parse().map_err(|_| 3usize)?;
    Ok(Told { cpus: cpus.map(Cpus), valid: Duration::from_secs(valid_s).min(VALID) })
}

/// What a guest is told whose file has this text, or that has none. A text that makes no sense counts as if it told of no CPUs: it is not
/// what was there before, and does not stay there.
pub(crate) fn says(text: Option<&str>) -> Option<Cpus> {
    text.and_then(|text| parse(text).map_or(Some(Cpus(0.0)), |told| told.cpus))
}

/// Whether a host wrote what it tells this guest within the time that this counts, be it that it tells nothing any more.
#[must_use]
pub fn is_told() -> bool {
    let written = std::fs::metadata(PATH).and_then(|file| file.modified());
    written.is_ok_and(|at| at.elapsed().unwrap_or_else(|error| error.duration()) <= VALID)
}

/// What stands in the file of this guest now, whatever it means; `None` if it cannot be read.
#[must_use]
pub fn now() -> Option<String> {
    beginning(&Root::live()).ok()
}

/// What counts of the file: any user of the guest may make it as long as he likes.
fn beginning(root: &Root) -> Result<String, ReadError> {
    let mut text = Vec::with_capacity(LENGTH);
    let read = root.open(PATH)?.take(LENGTH as u64).read_to_end(&mut text);
    read.map_err(|error| ReadError::from_io(PATH, &error))?;
    Ok(bytes::text(text))
}

/// What this guest is told now; what is too old, or makes no sense, is named in `Err`.
pub(crate) fn read(root: &Root) -> Result<Option<Sourced<Cpus>>, Unread> {
    // What was written in the future is as far from now: a clock was set back.
    let since = |written| SystemTime::now().duration_since(written).unwrap_or_else(|error| error.duration());
    judge(root, root.modified(PATH).map(since))
}

fn judge(root: &Root, age: Option<Duration>) -> Result<Option<Sourced<Cpus>>, Unread> {
    let unread = |why: String| Unread { what: What::Told, path: PATH.into(), why };
    let text = optional(beginning(root)).map_err(|error| unread(error.why()))?;
    let Some(text) = text else { return Ok(None) };
    let wrong = |line| ReadError::malformed(PATH, line, &text, "text of a host's corefit");
    let told = parse(&text).map_err(|line| unread(wrong(line).why()))?;
    let Some(cpus) = told.cpus else { return Ok(None) };
    if age.is_some_and(|age| age > told.valid) {
        let age = age.unwrap_or_default().as_secs();
        let why = format!(
            "written {age} s ago, counts for {} s: the host's corefit has stopped, or cannot reach this guest",
            told.valid.as_secs()
        );
        return Err(unread(why));
    }
    Ok(Some(Sourced { value: cpus, source: PATH.into() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_one_length_and_say_what_was_meant() {
        for cpus in [None, Some(Cpus(0.0)), Some(Cpus(2.5)), Some(Cpus(99_999.0))] {
            let text = text(cpus);
            assert_eq!(text.len(), LENGTH);
            assert_eq!(parse(&text).unwrap(), Told { cpus, valid: VALID });
        }
    }

    #[test]
    fn what_a_guest_had_there_is_what_can_be_written_there_again() {
        let theirs = parse("corefit-available 1\ncpus 1.23456\nvalid_s 1").unwrap();
        assert_eq!(parse(&text(theirs.cpus)).unwrap().cpus, theirs.cpus);
    }

    #[test]
    fn a_text_that_makes_no_sense_is_not_nothing_so_that_it_does_not_stay() {
        assert_eq!((says(None), says(Some(&text(None)))), (None, None));
        assert_eq!(says(Some(&text(Some(Cpus(1.5))))), Some(Cpus(1.5)));
        for cut_off_or_his in ["", "corefit-available 1\ncpus ", "noise\n"] {
            assert_eq!(says(Some(cut_off_or_his)), Some(Cpus(0.0)), "{cut_off_or_his:?}");
        }
    }

    #[test]
    fn what_anybody_in_the_guest_may_have_written_counts_no_longer_than_a_hosts_text() {
        for (says, counts) in [(1, 1), (60, 60), (86_400, 60), (u64::MAX, 60)] {
            let text = format!("corefit-available 1\ncpus 0.001\nvalid_s {says}");
            assert_eq!(parse(&text).map(|told| told.valid), Ok(Duration::from_secs(counts)));
        }
    }

    #[test]
    fn damage_is_named_by_its_line() {
        for (text, line) in [
            ("", 1),
            ("corefit-available 2\ncpus 1\nvalid_s 1", 1),
            ("corefit-available 1\n", 2),
            ("corefit-available 1\ncpus NaN\nvalid_s 1", 2),
            ("corefit-available 1\ncpus -1\nvalid_s 1", 2),
            ("corefit-available 1\ncpus 100000\nvalid_s 1", 2),
            ("corefit-available 1\ncpus 1\nvalid_s x", 3),
        ] {
            assert_eq!(parse(text), Err(line), "{text:?}");
        }
    }

    #[test]
    fn of_a_file_that_somebody_made_long_only_the_beginning_is_read() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("run")).unwrap();
        let file = dir.path().join("run/corefit-available");
        let root = Root::at(dir.path());
        std::fs::write(&file, text(Some(Cpus(1.5)))).unwrap();
        std::fs::File::options().write(true).open(&file).unwrap().set_len(1 << 20).unwrap();
        assert_eq!(beginning(&root).unwrap().len(), LENGTH);
        assert_eq!(judge(&root, None).unwrap().map(|told| told.value), Some(Cpus(1.5)));
    }

    #[test]
    fn what_is_old_does_not_count_and_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("run")).unwrap();
        let file = dir.path().join("run/corefit-available");
        let root = Root::at(dir.path());
        let read = |age_s: u64| judge(&root, Some(Duration::from_secs(age_s)));
        assert_eq!(read(0), Ok(None));
        std::fs::write(&file, text(Some(Cpus(1.5)))).unwrap();
        assert_eq!(read(60).unwrap().map(|told| told.value), Some(Cpus(1.5)));
        let unread = read(61).unwrap_err();
        assert!(unread.why.contains("written 61 s ago") && unread.what == What::Told, "{unread:?}");
        std::fs::write(&file, text(None)).unwrap();
        assert_eq!(read(61), Ok(None));
        std::fs::write(&file, "noise\n").unwrap();
        assert!(read(0).unwrap_err().why.starts_with("line 1: "));
    }
}
