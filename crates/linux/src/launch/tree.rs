//! Processes by number, without mistaking a reused number for the process meant.

use std::path::Path;

/// A process: its number and when it started, which together are unique since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Process {
    pub(super) pid: i32,
    started_ticks: u64,
}

/// What /proc/PID/stat says, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    /// R, S, D, T (stopped), t (traced), Z and so on.
    pub(super) state: u8,
    parent: i32,
    started_ticks: u64,
}

impl Stat {
    /// Reads /proc/PID/stat; None once the process is gone.
    pub(super) fn of(pid: i32) -> Option<Stat> {
        parse(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Whether the process is stopped by a signal.
    pub(super) fn is_stopped(&self) -> bool {
        self.state == b'T'
    }
}

/// Reads the text of a stat file. The name of the program, in parentheses, may hold
/// anything, so the fields are counted from the last parenthesis.
fn parse(text: &[u8]) -> Option<Stat> {
    let end = text.iter().rposition(|&b| b == b')')?;
    let fields = std::str::from_utf8(text.get(end + 1..)?).ok()?;
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    Some(Stat {
        state: *fields.first()?.as_bytes().first()?,
        parent: fields.get(1)?.parse().ok()?,
        started_ticks: fields.get(19)?.parse().ok()?,
    })
}

impl Process {
    /// Whether this very process is still there and no zombie.
    pub(super) fn is_alive(self) -> bool {
        Stat::of(self.pid).is_some_and(|stat| stat.started_ticks == self.started_ticks && stat.state != b'Z')
    }

    /// Sends `signal` if this very process is still there.
    pub(super) fn signal(self, signal: i32) {
        if self.is_alive() {
            // SAFETY: kill has no memory effects.
            unsafe { libc::kill(self.pid, signal) };
        }
    }
}

/// `root` and all its descendants that are alive, from a walk through /proc. A process
/// whose parent has ended belongs to init and is not found.
pub(super) fn with_descendants(root: i32) -> Vec<Process> {
    let mut others: Vec<(Process, i32)> = processes()
        .filter_map(|pid| {
            let Stat { parent, started_ticks, .. } = Stat::of(pid)?;
            Some((Process { pid, started_ticks }, parent))
        })
        .collect();
    let mut found: Vec<Process> =
        others.iter().filter(|(process, _)| process.pid == root).map(|(p, _)| *p).collect();
    let mut next = 0;
    while let Some(parent) = found.get(next).map(|process| process.pid) {
        found.extend(others.extract_if(.., |(_, of)| *of == parent).map(|(process, _)| process));
        next += 1;
    }
    found
}

fn processes() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir(Path::new("/proc")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_blanks_does_not_confuse_the_fields() {
        let text = b"7 (a) b (c)) T 3 7 7 0 -1 0 1 2 3 4 5 6 7 8 20 0 1 0 4242 0 0";
        let stat = parse(text).unwrap();
        assert_eq!(stat, Stat { state: b'T', parent: 3, started_ticks: 4242 });
        assert!(stat.is_stopped());
        assert_eq!(parse(b"7 (x) S 3"), None);
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn this_process_is_among_the_descendants_of_its_parent() {
        let me = i32::try_from(std::process::id()).unwrap();
        let parent = Stat::of(me).unwrap().parent;
        assert!(with_descendants(parent).iter().any(|process| process.pid == me));
        assert_eq!(with_descendants(me)[0].pid, me);
    }

    #[test]
    fn a_process_with_another_start_time_is_another_process() {
        let me = i32::try_from(std::process::id()).unwrap();
        let mut process = with_descendants(me)[0];
        assert!(process.is_alive());
        process.started_ticks += 1;
        assert!(!process.is_alive());
    }
}
