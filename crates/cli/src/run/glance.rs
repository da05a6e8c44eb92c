//! Whether a limit of a process is another one than before, told in some microseconds.
//!
//! Programs whose threads never wait for each other follow limits only, and each look at them costs more than it
//! brings. So they are looked at once a second, and when one of these changed: the affinity mask (which the kernel keeps
//! inside the cpuset and the CPUs online), the files that hold quotas, and what the host says.
//!
//! Not by inotify(7), which would ask nothing at all: the kernel lets who closes a watch wait for 4 to 16 ms
//! (`fsnotify_destroy_group`; measured here, machine idle), and that would be at the end of each program.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use corefit_core::{CpuSet, Reading};
use corefit_linux::{sample, told};

/// Of a file, so many bytes are compared: the groups of a process in a container take 1 to 2 KiB with cgroups v1.
const MOST: usize = 8192;

/// The limits when they were last looked at.
pub(super) struct Glance {
    pid: u32,
    allowed: Option<CpuSet>,
    files: Vec<Watched>,
    /// What the host wrote for this machine, again and again the same.
    told: Option<String>,
}

/// A file that says a limit. Kept open: it is written anew each time it is read from its start.
struct Watched {
    path: PathBuf,
    file: Option<File>,
    text: Option<Vec<u8>>,
}

/// The files that hold the quotas of a process and its ancestors, also of those that have none now, and that which says which
/// groups these are.
pub(super) fn files(reading: &Reading) -> Vec<PathBuf> {
    let groups = reading.groups.iter().flat_map(|group| match &group.quota {
        Some(quota) => {
            let quota = PathBuf::from(&quota.source);
            let period = quota.with_file_name("cpu.cfs_period_us");
            vec![quota, period]
        }
        None => vec![PathBuf::from(&group.path).join("cpu.max")],
    });
    groups.chain([PathBuf::from(format!("/proc/{}/cgroup", reading.pid))]).collect()
}

impl Glance {
    /// The limits of a process now: `files` hold its quotas, and `pid` has its affinity.
    pub(super) fn new(pid: u32, files: &[PathBuf]) -> Glance {
        let mut glance = Glance { pid, allowed: sample::affinity(pid), files: vec![], told: told::now() };
        glance.follow(files);
        glance
    }

    /// Looks at these files from now on, for instance because the process was moved to another control group.
    pub(super) fn follow(&mut self, files: &[PathBuf]) {
        if self.files.iter().map(|file| &file.path).ne(files) {
            self.files = files.iter().map(|path| Watched::open(path)).collect();
        }
    }

    /// Whether a limit is another one than at the last call. What cannot be read any more has changed, once.
    pub(super) fn changed(&mut self) -> bool {
        let (allowed, told) = (sample::affinity(self.pid), told::now());
        let mut changed = allowed != self.allowed || told != self.told;
        (self.allowed, self.told) = (allowed, told);
        for file in &mut self.files {
            changed |= file.changed();
        }
        changed
    }
}

impl Watched {
    fn open(path: &Path) -> Watched {
        let mut watched = Watched { path: path.to_path_buf(), file: None, text: None };
        watched.changed();
        watched
    }

    fn changed(&mut self) -> bool {
        let text = self.read();
        let changed = text != self.text;
        if text.is_none() {
            self.file = None;
        }
        self.text = text;
        changed
    }

    fn read(&mut self) -> Option<Vec<u8>> {
        if self.file.is_none() {
            self.file = File::open(&self.path).ok();
        }
        let mut text = vec![0; MOST];
        let length = self.file.as_ref()?.read_at(&mut text, 0).ok()?;
        text.truncate(length);
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_quota_that_is_set_has_changed_once() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["outer", "inner", "missing"].map(|name| dir.path().join(name));
        let [outer, inner, missing] = &paths;
        std::fs::write(outer, "-1\n").unwrap();
        std::fs::write(inner, "100000\n").unwrap();
        let mut glance = Glance::new(std::process::id(), &paths);
        assert!(!glance.changed());
        std::fs::write(outer, "50000\n").unwrap();
        assert_eq!((glance.changed(), glance.changed()), (true, false));
        glance.follow(&paths[1..]);
        std::fs::write(outer, "20000\n").unwrap();
        assert!(!glance.changed(), "it is not followed any more");
        std::fs::write(inner, "-1\n").unwrap();
        assert_eq!((glance.changed(), glance.changed()), (true, false));
        std::fs::write(missing, "max 100000\n").unwrap();
        assert_eq!((glance.changed(), glance.changed()), (true, false), "a file that comes");
        let groups =
            |last| format!("{}1:cpu:/{last}\n", "2:memory:/kubepods/burstable/pod/0123456789\n".repeat(50));
        for last in ["here", "there"] {
            std::fs::write(inner, groups(last)).unwrap();
            assert_eq!((glance.changed(), glance.changed()), (true, false), "at the end of a long one");
        }
    }

    #[test]
    fn an_affinity_that_is_set_has_changed_once() {
        let mut program = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = program.id();
        let mut glance = Glance::new(pid, &[]);
        let unchanged = !glance.changed();
        let allowed = sample::affinity(pid).unwrap();
        let one = allowed.iter().next().unwrap().0.to_string();
        let set = Command::new("taskset").args(["-cp", &one, &pid.to_string()]).output();
        let changed = (glance.changed(), glance.changed());
        program.kill().and_then(|()| program.wait()).unwrap();
        assert!(set.unwrap().status.success());
        assert_eq!((unchanged, changed), (true, (allowed.len() > 1, false)));
    }
}
