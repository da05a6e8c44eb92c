//! Control groups of a bench, v1 and v2: two sibling groups of equal weight, `program` and
//! `neighbour`, below a directory `corefit-bench-PID` in every hierarchy where that is allowed.
//!
//! Sources: kernel Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/cgroups.rst and
//! cgroup-v1/cpusets.rst, scheduler/sched-bwc.rst.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use corefit_linux::host::{Hierarchy, Version};

use super::processes;

/// Names of a bench's directories begin so; the process id follows.
pub(in crate::bench) const PREFIX: &str = "corefit-bench-";
/// The groups below.
const SIDES: [&str; 2] = ["program", "neighbour"];
/// The period of quotas, us: the kernel's default.
pub(super) const PERIOD_US: u64 = 100_000;
/// How long to wait for a killed group to be empty.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why a group cannot be used as a condition needs it.
#[derive(Debug, thiserror::Error)]
pub(in crate::bench) enum GroupError {
    /// The kernel or the hierarchy does not have it.
    #[error("{} has no {what} controller", dir.display())]
    Unsupported {
        /// The directory looked at.
        dir: PathBuf,
        /// `cpu` or `cpuset`.
        what: &'static str,
    },
    /// A file could not be written.
    #[error("{}: {}", path.display(), why.kind())]
    Denied {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        why: io::Error,
    },
    /// The kernel took another value than was written.
    #[error("{}: wrote {wrote:?} but it reads {reads:?}", path.display())]
    Ignored {
        /// The file.
        path: PathBuf,
        /// What was written.
        wrote: String,
        /// What it says now.
        reads: String,
    },
}

/// The groups of a bench in one hierarchy. Dropped, everything in them is killed and they
/// are removed.
#[derive(Debug)]
pub(super) struct Groups {
    version: Version,
    dir: PathBuf,
    cpu: bool,
    cpuset: bool,
    /// Controllers that were enabled in the parent for this bench.
    enabled: Vec<&'static str>,
}

impl Groups {
    /// Makes the groups of bench `pid` in the process's own group of a hierarchy, or in the
    /// nearest ancestor where that is allowed.
    pub(super) fn make(hierarchy: &Hierarchy, pid: u32) -> Result<Groups, GroupError> {
        let mut first = None;
        for parent in &hierarchy.groups {
            match Groups::make_in(hierarchy.version, parent, pid) {
                Ok(groups) => return Ok(groups),
                Err(error) => _ = first.get_or_insert(error),
            }
        }
        Err(first
            .unwrap_or_else(|| GroupError::Denied { path: PathBuf::new(), why: ErrorKind::NotFound.into() }))
    }

    fn make_in(version: Version, parent: &Path, pid: u32) -> Result<Groups, GroupError> {
        let mut groups = Groups {
            version,
            dir: parent.join(format!("{PREFIX}{pid}")),
            cpu: false,
            cpuset: false,
            enabled: vec![],
        };
        if version == Version::V2 {
            groups.enable_in(parent)?;
        }
        fs::create_dir(&groups.dir).map_err(|why| GroupError::Denied { path: parent.into(), why })?;
        if version == Version::V2 {
            for controller in ["cpu", "cpuset"] {
                // Which of them worked is seen below, in the files of the new groups.
                let _ = fs::write(groups.dir.join("cgroup.subtree_control"), format!("+{controller}"));
            }
        } else {
            copy_cpuset(parent, &groups.dir)?;
        }
        for side in SIDES {
            let dir = groups.dir.join(side);
            make_dir(&dir)?;
            if version == Version::V1 {
                copy_cpuset(&groups.dir, &dir)?;
            }
        }
        let program = groups.program();
        let weight = ["cpu.shares", "cpu.weight"];
        groups.cpu = weight.iter().any(|file| program.join(file).exists());
        groups.cpuset = program.join("cpuset.cpus").exists();
        if !groups.cpu && !groups.cpuset {
            return Err(GroupError::Unsupported { dir: parent.into(), what: "cpu or cpuset" });
        }
        try_to_join(&program)?;
        Ok(groups)
    }

    /// Makes the parent give its controllers to its children, and notes what has to be undone.
    fn enable_in(&mut self, parent: &Path) -> Result<(), GroupError> {
        let words = |file: &str| -> Result<Vec<String>, GroupError> {
            let path = parent.join(file);
            let text = fs::read_to_string(&path).map_err(|why| GroupError::Denied { path, why })?;
            Ok(text.split_whitespace().map(str::to_owned).collect())
        };
        let (offered, given) = (words("cgroup.controllers")?, words("cgroup.subtree_control")?);
        let path = parent.join("cgroup.subtree_control");
        let mut refused = None;
        let mut any = false;
        for controller in ["cpu", "cpuset"] {
            if !offered.iter().any(|c| c == controller) {
                continue;
            }
            if given.iter().any(|c| c == controller) {
                any = true;
                continue;
            }
            match fs::write(&path, format!("+{controller}")) {
                Ok(()) => {
                    any = true;
                    self.enabled.push(controller);
                }
                Err(why) => refused = Some(why),
            }
        }
        match (any, refused) {
            (true, _) => Ok(()),
            (false, Some(why)) => Err(GroupError::Denied { path, why }),
            (false, None) => Err(GroupError::Unsupported { dir: parent.into(), what: "cpu" }),
        }
    }

    /// Whether weights and quotas are set here.
    pub(super) fn has_cpu(&self) -> bool {
        self.cpu
    }

    /// Whether the CPUs allowed are set here.
    pub(super) fn has_cpuset(&self) -> bool {
        self.cpuset
    }

    /// `v1` or `v2`.
    pub(super) fn version(&self) -> Version {
        self.version
    }

    /// Directory of the program's group.
    pub(super) fn program(&self) -> PathBuf {
        self.dir.join(SIDES[0])
    }

    /// Directory of the neighbour's group.
    pub(super) fn neighbour(&self) -> PathBuf {
        self.dir.join(SIDES[1])
    }

    /// Makes a group in the program's group.
    pub(super) fn nest(&self, name: &str) -> Result<PathBuf, GroupError> {
        let (program, dir) = (self.program(), self.program().join(name));
        if self.version == Version::V2 {
            // Whether that worked is seen in the new group's files.
            let _ = fs::write(program.join("cgroup.subtree_control"), "+cpu");
        }
        make_dir(&dir)?;
        if self.version == Version::V1 {
            copy_cpuset(&program, &dir)?;
        }
        Ok(dir)
    }

    /// Sets the quota of the program's group, us of CPU time in every `period_us`; `None`: no quota.
    pub(super) fn set_quota(&self, quota_us: Option<u64>, period_us: u64) -> Result<(), GroupError> {
        let dir = self.program();
        if self.version == Version::V2 {
            let quota = quota_us.map_or("max".into(), |q| q.to_string());
            return write_checked(&dir.join("cpu.max"), &format!("{quota} {period_us}"));
        }
        let quota = quota_us.map_or("-1".into(), |q| q.to_string());
        // A period below the quota that there is might be refused.
        write_checked(&dir.join("cpu.cfs_quota_us"), "-1")?;
        write_checked(&dir.join("cpu.cfs_period_us"), &period_us.to_string())?;
        write_checked(&dir.join("cpu.cfs_quota_us"), &quota)
    }

    /// Sets what the neighbour's group weighs where the program's weighs 1.
    pub(super) fn weigh_neighbour(&self, weight: u64) -> Result<(), GroupError> {
        let (file, one) =
            if self.version == Version::V2 { ("cpu.weight", 100) } else { ("cpu.shares", 1024) };
        write_checked(&self.neighbour().join(file), &(weight * one).to_string())
    }

    /// Allows exactly these CPUs to the program's group.
    pub(super) fn allow(&self, cpus: &str) -> Result<(), GroupError> {
        write_checked(&self.program().join("cpuset.cpus"), cpus)
    }

    /// Kills every process in the program's group and waits until it is empty.
    pub(super) fn end_program(&self) {
        kill_all(&self.program());
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        remove(&self.dir);
        if let Some(parent) = self.dir.parent() {
            for controller in &self.enabled {
                let _ = fs::write(parent.join("cgroup.subtree_control"), format!("-{controller}"));
            }
        }
    }
}

/// Kills and removes what benches left here that are no longer running; their directories.
pub(super) fn remove_leftovers(hierarchy: &Hierarchy) -> Vec<PathBuf> {
    let mut removed = vec![];
    for parent in &hierarchy.groups {
        let entries = fs::read_dir(parent).into_iter().flatten().flatten();
        for entry in entries.filter(|e| is_leftover(&e.file_name().to_string_lossy())) {
            remove(&entry.path());
            if !entry.path().exists() {
                removed.push(entry.path());
            }
        }
    }
    removed
}

/// Whether a name is that of a directory whose bench has ended: also of one that had our process id before us.
pub(super) fn is_leftover(name: &str) -> bool {
    let pid = name.strip_prefix(PREFIX).and_then(|pid| pid.parse().ok());
    pid.is_some_and(|pid: u32| {
        let comm = fs::read_to_string(format!("/proc/{pid}/comm"));
        pid == std::process::id() || !comm.is_ok_and(|comm| comm.starts_with("corefit"))
    })
}

fn remove(dir: &Path) {
    for side in SIDES {
        kill_all(&dir.join(side));
        remove_dir(&dir.join(side));
    }
    remove_dir(dir);
}

/// A group can still be busy for a moment after its last process has ended.
fn remove_dir(dir: &Path) {
    let inside = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    inside.filter(|path| path.is_dir()).for_each(|path| remove_dir(&path));
    let until = Instant::now() + PATIENCE;
    while let Err(why) = fs::remove_dir(dir) {
        if why.kind() == ErrorKind::NotFound || Instant::now() > until {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn kill_all(group: &Path) {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        let pids: Vec<u32> = text.lines().filter_map(|l| l.parse().ok()).collect();
        if pids.is_empty() {
            return;
        }
        pids.into_iter().for_each(processes::kill);
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn make_dir(dir: &Path) -> Result<(), GroupError> {
    fs::create_dir(dir).map_err(|why| GroupError::Denied { path: dir.into(), why })
}

/// A new v1 cpuset is empty and accepts nobody: it gets what its parent has.
fn copy_cpuset(from: &Path, to: &Path) -> Result<(), GroupError> {
    for file in ["cpuset.mems", "cpuset.cpus"] {
        let Ok(text) = fs::read_to_string(from.join(file)) else {
            continue; // another controller's hierarchy
        };
        write_checked(&to.join(file), text.trim())?;
    }
    Ok(())
}

/// Moves a process there that waits, to see whether that is allowed.
fn try_to_join(group: &Path) -> Result<(), GroupError> {
    let path = group.join("cgroup.procs");
    let denied = |why| GroupError::Denied { path: path.clone(), why };
    let mut child =
        Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().map_err(denied)?;
    let moved = fs::write(&path, child.id().to_string());
    drop(child.stdin.take());
    let _ = child.wait();
    moved.map_err(denied)
}

fn write_checked(path: &Path, text: &str) -> Result<(), GroupError> {
    let denied = |why| GroupError::Denied { path: path.into(), why };
    fs::write(path, text).map_err(denied)?;
    let reads = fs::read_to_string(path).map_err(denied)?;
    if reads.trim() == text {
        return Ok(());
    }
    Err(GroupError::Ignored { path: path.into(), wrote: text.into(), reads: reads.trim().into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_of_ended_benches_are_leftovers() {
        assert!(is_leftover("corefit-bench-4194305"), "beyond the largest");
        assert!(is_leftover(&format!("corefit-bench-{}", std::process::id())), "it was there before us");
        assert!(!is_leftover("corefit-bench-"));
        assert!(!is_leftover("corefit-bench-x"));
        assert!(!is_leftover("docker-1"));
    }

    #[test]
    fn a_value_that_the_kernel_changed_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cpu.max");
        write_checked(&file, "100000 100000").unwrap();
        let error = write_checked(Path::new("/dev/null"), "1").unwrap_err();
        assert!(matches!(error, GroupError::Ignored { .. }), "{error}");
        let error = write_checked(&dir.path().join("no/cpu.max"), "1").unwrap_err();
        assert!(matches!(error, GroupError::Denied { .. }), "{error}");
    }

    #[test]
    fn a_v2_group_without_the_cpu_controller_is_unsupported() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cgroup.controllers"), "memory pids\n").unwrap();
        fs::write(dir.path().join("cgroup.subtree_control"), "\n").unwrap();
        let error = Groups::make_in(Version::V2, dir.path(), 7).unwrap_err();
        assert!(matches!(error, GroupError::Unsupported { .. }), "{error}");
        assert!(!dir.path().join("corefit-bench-7").exists());
    }

    #[test]
    fn groups_without_control_files_are_removed_again() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Groups::make_in(Version::V1, dir.path(), 7).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
