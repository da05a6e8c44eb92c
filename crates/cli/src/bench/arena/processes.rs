//! The processes below one: to be killed, or confined to some CPUs, where there are no control groups.

use std::time::{Duration, Instant};

use corefit_core::CpuSet;
use corefit_linux::launch::{Process, with_descendants};
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
        let below = below(root);
        // Below first: what loses its parent is found no more.
        below.iter().rev().for_each(|process| process.signal(Signal::KILL.as_raw()));
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
    let mut changed = false;
    for tid in below(root).iter().map(|process| process.pid).chain([root]).flat_map(sample::tasks) {
        if sample::affinity(tid).is_some_and(|now| now != *cpus) {
            sample::set_affinity(tid, cpus);
            changed |= sample::affinity(tid).is_some_and(|now| now == *cpus);
        }
    }
    changed
}

/// Everything below `root` that is alive, parents before children.
fn below(root: u32) -> Vec<Process> {
    let mut found = with_descendants(root);
    found.retain(|process| process.pid != root && process.is_alive());
    found
}
