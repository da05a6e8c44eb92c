//! The daemon's log: one event a line, for people and for `journalctl`: `event key=value key="two words"`;
//! between quotes `\"` is a quote and `\\` a backslash. Who keeps no time of his own, as journald does, finds it in `at`.

mod writer;

use std::cell::Cell;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use chrono::{DateTime, SecondsFormat, Utc};
use corefit_core::Time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fstat;

use writer::Writer;

/// How much it matters, with syslog's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Error = 3,
    Warning = 4,
    Info = 6,
}

/// Whoever does not read is waited for so long at the end.
const LAST: Duration = Duration::from_secs(1);

/// Simulated time in ns, which lines carry; the largest number: real time.
static SIMULATED: AtomicU64 = AtomicU64::new(u64::MAX);

/// From now on lines are of this simulated time.
pub(crate) fn simulated(at: Time) {
    SIMULATED.store(at.0, Ordering::Relaxed);
}

/// Who writes lines; `None`: as there is no thread for it, each is written by who says it.
static WRITER: OnceLock<Option<Writer>> = OnceLock::new();

fn writer() -> Option<Writer> {
    let lost = |lines: u64| {
        whole(
            Level::Warning,
            "lines lost",
            &[("count", lines.to_string()), ("why", "nobody read them".into())],
        )
    };
    // One of its own: whoever else says something on stderr would wait for the lock of the standard library's.
    let stderr = std::io::stderr().as_fd().try_clone_to_owned();
    stderr.and_then(|stderr| Writer::new(File::from(stderr), lost)).ok()
}

/// Has what is not written yet written, as far as somebody reads it.
pub(super) fn flush() {
    if let Some(writer) = WRITER.get().and_then(Option::as_ref) {
        writer.flush(LAST);
    }
}

/// Whether nobody is left to read: a pipe without its other end, a terminal that is gone. Told also while there is nothing to say.
pub(super) fn closed() -> bool {
    let stderr = std::io::stderr();
    let mut asked = [PollFd::new(&stderr, PollFlags::empty())];
    let gone = PollFlags::ERR | PollFlags::HUP;
    poll(&mut asked, Some(&Timespec::default())).is_ok() && asked[0].revents().intersects(gone)
}

thread_local! {
    /// This thread is about to say many lines.
    static MANY: Cell<bool> = const { Cell::new(false) };
}

/// What this thread says is not waited for, line by line, until this goes out of scope.
pub(super) struct Many(());

/// Many lines follow.
pub(super) fn many() -> Many {
    MANY.set(true);
    Many(())
}

impl Drop for Many {
    fn drop(&mut self) {
        MANY.set(false);
        if let Some(writer) = WRITER.get().and_then(Option::as_ref) {
            writer.all_said(writer::PATIENCE);
        }
    }
}

/// When this goes out of scope, that is done.
pub(super) struct Flushed;

impl Drop for Flushed {
    fn drop(&mut self) {
        flush();
    }
}

/// Writes a line on stderr. Who does not read it in time keeps nobody waiting, but where time is simulated. Where that is journald, it
/// begins with the level as sd-daemon(3) has it. The tests of this crate run thousands of daemons, which are silent unless
/// `COREFIT_TEST_LOG` is set.
pub(crate) fn log(level: Level, event: &str, fields: &[(&str, String)]) {
    #[cfg(test)]
    testing::note(level, event, fields);
    if cfg!(test) && std::env::var_os("COREFIT_TEST_LOG").is_none() {
        return;
    }
    let line = whole(level, event, fields);
    match WRITER.get_or_init(writer) {
        Some(writer) => {
            let simulated = SIMULATED.load(Ordering::Relaxed) != u64::MAX;
            match MANY.get() {
                true if !simulated => writer.say_one(line, writer::PATIENCE),
                _ => writer.say(line, (!simulated).then_some(writer::PATIENCE)),
            }
        }
        // Nobody may be left to read.
        None => drop(std::io::stderr().write_all(line.as_bytes())),
    }
}

/// A line as it is written.
fn whole(level: Level, event: &str, fields: &[(&str, String)]) -> String {
    static JOURNAL: OnceLock<bool> = OnceLock::new();
    let journal = *JOURNAL.get_or_init(|| {
        let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
        fstat(std::io::stderr()).is_ok_and(|stat| is_stream(&stream, stat.st_dev, stat.st_ino))
    });
    let start = match (journal, level) {
        (true, level) => format!("<{}>", level as u8),
        (false, Level::Error) => "corefit: error: ".into(),
        (false, Level::Warning) => "corefit: warning: ".into(),
        (false, Level::Info) => "corefit: ".into(),
    };
    let at = match (SIMULATED.load(Ordering::Relaxed), journal) {
        (u64::MAX, true) => None,
        (u64::MAX, false) => Some(utc(SystemTime::now())),
        (simulated, _) => Some(format!("{:.1}s", Time(simulated).since(Time(0)).as_secs_f64())),
    };
    format!("{start}{}\n", line(event, at.as_deref(), fields))
}

/// Whether a file is the one that `JOURNAL_STREAM` tells, DEVICE:INODE (systemd.exec(5)): a service's children have the variable, too.
fn is_stream(stream: &str, device: u64, inode: u64) -> bool {
    stream.split_once(':').is_some_and(|told| (told.0.parse(), told.1.parse()) == (Ok(device), Ok(inode)))
}

/// As in RFC 3339, to the millisecond.
fn utc(at: SystemTime) -> String {
    DateTime::<Utc>::from(at).to_rfc3339_opts(SecondsFormat::Millis, true)
}

fn line(event: &str, at: Option<&str>, fields: &[(&str, String)]) -> String {
    let begins = at.map_or(event.to_owned(), |at| format!("{event} at={at}"));
    fields.iter().fold(begins, |line, (key, value)| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,+".contains(c);
        let value = if !value.is_empty() && value.chars().all(plain) {
            value.clone()
        } else {
            // As in a string of JSON, so that a name can be found by what it is.
            let value = value.replace('\\', "\\\\").replace('"', "\\\"");
            format!("\"{}\"", crate::printable::text(&value))
        };
        format!("{line} {key}={value}")
    })
}

/// What a test's thread has said.
#[cfg(test)]
pub(crate) mod testing {
    use std::cell::RefCell;

    use super::{Level, line};

    thread_local! {
        static LINES: RefCell<Option<Vec<(Level, String)>>> = const { RefCell::new(None) };
    }

    pub(super) fn note(level: Level, event: &str, fields: &[(&str, String)]) {
        LINES.with_borrow_mut(|lines| {
            lines.iter_mut().for_each(|lines| lines.push((level, line(event, None, fields))))
        });
    }

    /// What is said while something is done.
    pub(crate) fn said(job: impl FnOnce()) -> Vec<(Level, String)> {
        LINES.set(Some(Vec::new()));
        job();
        LINES.take().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_for_journald_itself_and_not_for_whoever_inherits_its_variable() {
        assert!(is_stream("8:1234", 8, 1234));
        for other in ["8:1235", "9:1234", "", "8", "x:y"] {
            assert!(!is_stream(other, 8, 1234), "{other}");
        }
    }

    #[test]
    fn values_with_blanks_or_control_characters_are_quoted_on_one_line() {
        let fields = [("vm", "web-1".into()), ("why", "two \"words\"\n".into()), ("none", String::new())];
        assert_eq!(line("set", None, &fields), r#"set vm=web-1 why="two \"words\"\n" none="""#);
        let marked = [("vm", r#"a"b"#.into()), ("other", r"a\nb".into())];
        assert_eq!(line("set", None, &marked), r#"set vm="a\"b" other="a\\nb""#);
        let at = utc(SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(1_795_784_400_250));
        assert_eq!(line("set", Some(&at), &fields[..1]), "set at=2026-11-27T13:00:00.250Z vm=web-1");
    }
}
