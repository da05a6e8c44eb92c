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
use std::path::PathBuf;

use corefit_core::{CpuSet, Reading};
use corefit_linux::{sample, told};

/// Files that hold quotas have less than so many bytes.
const MOST: usize = 64;

/// The limits when they were last looked at.
pub(super) struct Glance {
    pid: u32,
    allowed: Option<CpuSet>,
    quotas: Vec<Quota>,
    told: Option<Vec<u8>>,
}

/// A file of a quota. Kept open: it is written anew each time it is read from its start.
struct Quota {
    path: PathBuf,
    file: Option<File>,
    text: Option<Vec<u8>>,
}

/// The files that hold the quotas of a process and its ancestors, also of those that have none now.
pub(super) fn files(reading: &Reading) -> Vec<PathBuf> {
    reading.groups.iter().filter_map(|group| Some(PathBuf::from(&group.quota.as_ref()?.source))).collect()
}

impl Glance {
    /// The limits of a process now; `quotas` are their files.
    pub(super) fn new(pid: u32, quotas: &[PathBuf]) -> Glance {
        let mut glance = Glance { pid, allowed: sample::affinity(pid), quotas: vec![], told: told() };
        glance.follow(quotas);
        glance
    }

    /// Looks at these quotas from now on, for instance because the process was moved to another control group.
    pub(super) fn follow(&mut self, quotas: &[PathBuf]) {
        if self.quotas.iter().map(|quota| &quota.path).ne(quotas) {
            self.quotas = quotas.iter().map(Quota::open).collect();
        }
    }

    /// Whether a limit is another one than at the last call. Who cannot be read any more has changed, once.
    pub(super) fn changed(&mut self) -> bool {
        let (allowed, told) = (sample::affinity(self.pid), told());
        let mut changed = allowed != self.allowed || told != self.told;
        (self.allowed, self.told) = (allowed, told);
        for quota in &mut self.quotas {
            let text = quota.read();
            changed |= text != quota.text;
            quota.text = text;
        }
        changed
    }
}

impl Quota {
    fn open(path: &PathBuf) -> Quota {
        let mut quota = Quota { path: path.clone(), file: File::open(path).ok(), text: None };
        quota.text = quota.read();
        quota
    }

    fn read(&self) -> Option<Vec<u8>> {
        let mut text = vec![0; MOST];
        let length = self.file.as_ref()?.read_at(&mut text, 0).ok()?;
        text.truncate(length);
        Some(text)
    }
}

/// What the host wrote for this machine, again and again the same.
fn told() -> Option<Vec<u8>> {
    std::fs::read(told::PATH).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_quota_that_is_set_has_changed_once() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["outer", "inner", "missing"].map(|name| dir.path().join(name));
        let [outer, inner, _] = &paths;
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
    }

    #[test]
    fn an_affinity_that_is_set_has_changed_once() {
        let mut program = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = program.id();
        let mut glance = Glance::new(pid, &[]);
        let unchanged = !glance.changed();
        let allowed = sample::affinity(pid).unwrap();
        let one = allowed.iter().next().unwrap().to_string();
        let set = Command::new("taskset").args(["-cp", &one, &pid.to_string()]).output();
        let changed = (glance.changed(), glance.changed());
        program.kill().and_then(|()| program.wait()).unwrap();
        assert!(set.unwrap().status.success());
        assert_eq!((unchanged, changed), (true, (allowed.len() > 1, false)));
    }
}
