//! One reading of one process's CPU situation, from `/proc`, `/sys` and the control groups.

use corefit_core::{CpuSet, CpuTimes, Reading, Sourced, What};

use crate::cgroup::{self, Others, mounts::Mount, mounts::mounts};
use crate::notes::Notes;
use crate::proc;
use crate::root::{ReadError, Root, optional, value};

/// Reads everything that decides how many CPUs process `pid` gets.
///
/// What is missing or damaged, but not the process itself, is named in [`Reading::unread`].
/// No privilege is needed.
///
/// Cost: a file costs about 9 us, and a process that shares a group (or the root) with it takes
/// three to four files, a thread of the kernel one. Here, 2.2 ms of CPU time with 96 processes in the
/// root, of which half are threads of the kernel, and 4.0 ms with 136 on a crowded machine;
/// [`corefit_core::estimate`] takes 10 us.
/// Measured by `cargo test --release -p corefit-linux --test captures -- --ignored --nocapture`.
///
/// # Errors
/// [`ReadError::Gone`] if there is no such process, [`ReadError::Io`] if `/proc` is not mounted; the
/// error of `/proc/PID/stat` or `status` if these cannot be read, or of the list of online CPUs if
/// neither `/sys` nor `/proc/stat` has it.
pub fn read(root: &Root, pid: u32) -> Result<Reading, ReadError> {
    reading(root, pid, true)
}

/// The same without those who share a group with the process: the settings, which a program's launch
/// waits for. It takes a tenth of the time, and [`corefit_core::estimate`] can only tell from it what is allowed.
///
/// # Errors
/// As [`read`].
pub fn read_settings(root: &Root, pid: u32) -> Result<Reading, ReadError> {
    reading(root, pid, false)
}

fn reading(root: &Root, pid: u32, siblings: bool) -> Result<Reading, ReadError> {
    let gone = |error: ReadError| match error {
        error if error.is_absent() && !root.has("/proc/stat") => {
            ReadError::Io { path: "/proc".into(), why: "not mounted: nothing is known of processes".into() }
        }
        error if error.is_absent() => ReadError::Gone { path: format!("/proc/{pid}") },
        error => error,
    };
    let mut notes = Notes::default();
    let (affinity, affinity_source) = proc::affinity(root, pid).map_err(gone)?;
    let at = root.now()?;
    let mounts = mounts(root).unwrap_or_else(|error| {
        notes.error(What::Ancestors, &error);
        Vec::new()
    });
    let cpu_times = cpu_times(root, &mounts, &mut notes);
    let process = proc::process(root, pid, true).map_err(gone)?;
    let process = process.ok_or_else(|| ReadError::Gone { path: format!("/proc/{pid}") })?;
    let online = online(root, &cpu_times, &mut notes)?;
    let others = match siblings {
        false => Others::Nobody,
        true if affinity != online.value => Others::Confined,
        true => Others::All,
    };
    let view = cgroup::look(root, &process, others, &mounts, &mut notes);
    if view.own.iter().flat_map(|p| &p.times.tasks).any(|task| task.wait_ns.is_none()) {
        let why = "no schedstat: CPU time in steps of 10 ms, waiting not counted";
        notes.add(What::Threads, format!("/proc/{pid}/task/*/schedstat"), why.into());
    }
    let told = crate::told::read(root).unwrap_or_else(|unread| {
        notes.add(unread.what, unread.path, unread.why);
        None
    });
    Ok(Reading {
        at,
        pid,
        name: process.name,
        started_ticks: process.started_ticks,
        online,
        present: notes.ask(What::Online, optional(cpu_list(root, "present"))),
        affinity: Sourced { value: affinity, source: affinity_source },
        cpu_times,
        own: view.own.into_iter().map(|p| p.times).collect(),
        own_weight: view.own_weight,
        groups: view.groups,
        cpusets: view.cpusets,
        told,
        unread: notes.into_list(),
    })
}

pub(crate) fn cpu_list(root: &Root, which: &str) -> Result<Sourced<CpuSet>, ReadError> {
    let source = format!("/sys/devices/system/cpu/{which}");
    let parse = |text: &str| text.parse().ok().filter(|set: &CpuSet| !set.is_empty());
    Ok(Sourced { value: value(root, &source, "list of CPUs, as in 0-3,8", parse)?, source })
}

/// The CPUs online, from `/sys`, else those that `/proc/stat` has.
pub(crate) fn online(
    root: &Root,
    times: &[CpuTimes],
    notes: &mut Notes,
) -> Result<Sourced<CpuSet>, ReadError> {
    cpu_list(root, "online").or_else(|error| {
        if times.is_empty() {
            return Err(error);
        }
        notes.error(What::Online, &error);
        Ok(Sourced { value: times.iter().map(|t| t.cpu).collect(), source: "/proc/stat".into() })
    })
}

/// Whether a file of `/proc` is the machine's own: not if another one is mounted over it.
pub(crate) fn shows_the_machine(path: &str, mounts: &[Mount]) -> bool {
    mounts.iter().all(|mount| mount.point != path)
}

/// Idle and stolen time, unless `/proc/stat` is not the machine's own.
pub(crate) fn cpu_times(root: &Root, mounts: &[Mount], notes: &mut Notes) -> Vec<CpuTimes> {
    let path = "/proc/stat";
    if !shows_the_machine(path, mounts) {
        let why = "another file is mounted over it (lxcfs, for one): it does not show the machine";
        notes.add(What::Idle, path.into(), why.into());
        return Vec::new();
    }
    match proc::cpu_times(root) {
        Ok(times) if times.iter().all(|t| t.idle_ns == 0) => {
            notes.add(What::Idle, path.into(), "all zero: not counted in this sandbox".into());
            Vec::new()
        }
        Ok(times) => times,
        Err(error) => {
            notes.error(What::Idle, &error);
            Vec::new()
        }
    }
}
