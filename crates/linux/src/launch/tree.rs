//! Processes by number, without mistaking a reused number for the process meant.

use crate::proc::Fields;

/// A process: its number and when it started, which together are unique since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    started_ticks: u64,
}

/// What /proc/PID/stat says, as far as it matters here.
pub(super) struct Stat {
    state: char,
    parent: u32,
    started_ticks: u64,
}

impl Stat {
    /// Reads /proc/PID/stat; None once the process is gone.
    pub(super) fn of(pid: u32) -> Option<Stat> {
        let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        let fields = Fields::of(&text)?;
        Some(Stat { state: fields.state()?, parent: fields.field(4)?, started_ticks: fields.field(22)? })
    }

    /// Whether the process is stopped by a signal.
    pub(super) fn is_stopped(&self) -> bool {
        self.state == 'T'
    }
}

impl Process {
    /// By what its `stat` of `/proc` says (proc(5)); `None` of anything else.
    #[must_use]
    pub fn parse(stat: &str) -> Option<Process> {
        let pid = stat.split_whitespace().next()?.parse().ok()?;
        Some(Process { pid, started_ticks: Fields::of(stat)?.field(22)? })
    }

    /// When it started, in clock ticks since the host booted.
    #[must_use]
    pub fn started_ticks(self) -> u64 {
        self.started_ticks
    }

    /// Whether this very process is still there and no zombie.
    #[must_use]
    pub fn is_alive(self) -> bool {
        Stat::of(self.pid).is_some_and(|stat| stat.started_ticks == self.started_ticks && stat.state != 'Z')
    }

    /// Sends `signal` if this very process is still there.
    pub fn signal(self, signal: i32) {
        if self.is_alive() {
            // SAFETY: kill has no memory effects.
            unsafe { libc::kill(self.pid.cast_signed(), signal) };
        }
    }
}

/// `root` and all its descendants, parents before children, from a walk through /proc. A process
/// whose parent has ended belongs to init and is not found.
#[must_use]
pub fn with_descendants(root: u32) -> Vec<Process> {
    let mut others: Vec<(Process, u32)> = processes()
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

fn processes() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_among_the_descendants_of_its_parent() {
        let me = std::process::id();
        let parent = Stat::of(me).unwrap().parent;
        assert!(with_descendants(parent).iter().any(|process| process.pid == me));
        assert_eq!(with_descendants(me)[0].pid, me);
    }

    #[test]
    fn a_process_with_another_start_time_is_another_process() {
        let mut process = with_descendants(std::process::id())[0];
        assert!(process.is_alive());
        process.started_ticks += 1;
        assert!(!process.is_alive());
    }
}
