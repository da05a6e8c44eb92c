//! The processes below one: to be killed, or confined to some CPUs, where there are no control groups.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use corefit_core::CpuSet;
use corefit_linux::sample;
use rustix::process::{Pid, Signal, kill_process};

/// How long to wait for killed processes.
const PATIENCE: Duration = Duration::from_secs(5);

/// Kills one process; nothing happens if it has ended.
pub(super) fn kill(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Kills a process and everything below it. The process itself stays a zombie until its
/// parent waits for it.
pub(crate) fn kill_tree(root: u32) {
    let until = Instant::now() + PATIENCE;
    loop {
        let below = descendants(root, &parents());
        // Below first: what loses its parent is found no more.
        below.iter().rev().copied().for_each(kill);
        if below.is_empty() || Instant::now() > until {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    kill(root);
}

/// Allows exactly these CPUs to every thread of a process and of those below it. A thread
/// begins with the CPUs of the one that starts it: repeat until nothing had to be changed.
/// True if something was.
pub(super) fn allow(root: u32, cpus: &CpuSet) -> bool {
    let mut tree = descendants(root, &parents());
    tree.push(root);
    let mut changed = false;
    for pid in tree {
        let tasks = fs::read_dir(format!("/proc/{pid}/task"));
        for task in tasks.into_iter().flatten().flatten() {
            let Some(tid) = task.file_name().to_str().and_then(|t| t.parse().ok()) else {
                continue;
            };
            if sample::affinity(tid).is_some_and(|now| now != *cpus) {
                sample::set_affinity(tid, cpus);
                changed |= sample::affinity(tid).is_some_and(|now| now == *cpus);
            }
        }
    }
    changed
}

/// The parent of every process.
fn parents() -> BTreeMap<u32, u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|e| e.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some((pid, parent_in(&stat)?))
    })
    .collect()
}

/// The parent in `/proc/PID/stat`, unless the process is a zombie.
fn parent_in(stat: &str) -> Option<u32> {
    // The name, in brackets, can contain anything.
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    let state = fields.next()?;
    fields.next()?.parse().ok().filter(|_| state != "Z")
}

/// Everything below `root`, parents before children.
fn descendants(root: u32, parents: &BTreeMap<u32, u32>) -> Vec<u32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        let children = parents.iter().filter(|(_, p)| **p == parent);
        found.extend(children.map(|(child, _)| *child));
        next += 1;
    }
    found.split_off(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descendants_are_found_at_every_depth_parents_first() {
        let parents = BTreeMap::from([(2, 1), (3, 2), (4, 3), (5, 1), (6, 9)]);
        assert_eq!(descendants(1, &parents), [2, 5, 3, 4]);
        assert_eq!(descendants(6, &parents), [0_u32; 0]);
    }

    #[test]
    fn names_with_brackets_and_zombies_are_understood() {
        assert_eq!(parent_in("12 (a) b) S 7 12 12"), Some(7));
        assert_eq!(parent_in("12 (a) Z 7 12 12"), None);
        assert_eq!(parent_in(""), None);
    }
}
