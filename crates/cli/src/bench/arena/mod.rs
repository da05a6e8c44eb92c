//! Where a bench runs its programs: control groups where they can be made, plain processes
//! elsewhere, and a scratch directory. Everything is put back when the arena is dropped; what
//! a killed bench left is removed when the next one begins.

mod cgroup;
pub(crate) mod processes;

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use corefit_core::CpuSet;
use corefit_linux::host::{Version, hierarchies};
use corefit_linux::{Root, sample};

use cgroup::{GroupError, Groups};

/// The arena of a bench.
pub(super) struct Arena {
    groups: Vec<Groups>,
    /// Why there are no groups, or fewer than there might be; the most telling reason first.
    refused: Vec<GroupError>,
    /// The CPUs that programs may use.
    cpus: CpuSet,
    scratch: Scratch,
    exe: PathBuf,
}

impl Arena {
    /// Makes the groups and the scratch directory, after removing leftovers.
    pub(super) fn open() -> Result<Arena> {
        let pid = std::process::id();
        let found = hierarchies(&Root::live(), pid).unwrap_or_default();
        let mut groups = vec![];
        let mut refused = vec![];
        for hierarchy in &found {
            for dir in cgroup::remove_leftovers(hierarchy) {
                tell!("corefit bench: removed {}", dir.display());
            }
            match Groups::make(hierarchy, pid) {
                Ok(made) => groups.push(made),
                Err(why) => refused.push(why),
            }
        }
        refused.sort_by_key(|why| matches!(why, GroupError::Unsupported { .. }));
        Ok(Arena {
            groups,
            refused,
            cpus: sample::affinity(pid).context("cannot read my own affinity")?,
            scratch: Scratch::make(pid)?,
            exe: std::env::current_exe().context("cannot find my own executable")?,
        })
    }

    /// The CPUs that programs may use.
    pub(super) fn cpus(&self) -> &CpuSet {
        &self.cpus
    }

    /// This executable.
    pub(super) fn exe(&self) -> &Path {
        &self.exe
    }

    /// A directory for files that end with the bench.
    pub(super) fn scratch(&self) -> &Path {
        &self.scratch.0
    }

    /// Version of the control groups that hold quotas and weights, if some do.
    pub(super) fn cpu_groups(&self) -> Option<Version> {
        self.cpu().map(Groups::version)
    }

    /// Version of the control groups that say which CPUs are allowed, if some do.
    pub(super) fn cpuset_groups(&self) -> Option<Version> {
        self.cpuset().map(Groups::version)
    }

    /// Why control groups cannot be used, in a few words.
    pub(super) fn refusal(&self) -> String {
        let first = self.refused.first().map(ToString::to_string);
        first.unwrap_or_else(|| "none are mounted".into())
    }

    /// A command that runs in the program's group, on these CPUs, and dies with the bench.
    pub(super) fn command<S: AsRef<OsStr>>(&self, argv: &[S], cpus: &CpuSet) -> Result<Command> {
        let mut command = self.helper("enter");
        for groups in &self.groups {
            command.arg("--group").arg(groups.program());
        }
        match self.cpuset() {
            Some(groups) => groups.allow(&cpus.to_string())?,
            None => _ = command.arg("--cpus").arg(cpus.to_string()),
        }
        command.arg("--").args(argv);
        Ok(command)
    }

    /// One busy loop per CPU beside the program: in a group of equal weight, or as plain
    /// processes of equal nice value. They end when the result is dropped.
    pub(super) fn neighbour(&self) -> Result<Neighbour> {
        let command = || {
            let mut command = self.helper("busy");
            if let Some(groups) = self.cpu() {
                command.arg("--group").arg(groups.neighbour());
            }
            command
        };
        Neighbour::start(self.cpus.iter().map(|_| command()).collect())
    }

    /// Makes a control group in the program's; its directory. It has to be empty when the arena is dropped.
    pub(super) fn nest(&self, name: &str) -> Result<PathBuf> {
        let Some(groups) = self.cpu() else {
            bail!("no control group with weights: {}", self.refusal());
        };
        Ok(groups.nest(name)?)
    }

    /// Starts threads in a group that wake up ten times a second, until the result is dropped.
    pub(super) fn sleepers(&self, group: &Path, threads: usize) -> Result<Neighbour> {
        let mut command = self.helper("sleepers");
        command.arg("--group").arg(group).arg("--threads").arg(threads.to_string());
        Neighbour::start(vec![command])
    }

    /// Sets the quota of the program, us of CPU time in every 100 ms.
    pub(super) fn quota(&self, quota_us: u64) -> Result<Quota<'_>> {
        self.quota_in(quota_us, cgroup::PERIOD_US)
    }

    /// Sets the quota of the program, us of CPU time in every period.
    pub(super) fn quota_in(&self, quota_us: u64, period_us: u64) -> Result<Quota<'_>> {
        let Some(groups) = self.cpu() else {
            bail!("no control group with quotas: {}", self.refusal());
        };
        groups.set_quota(Some(quota_us), period_us)?;
        Ok(Quota(groups))
    }

    /// As [`Arena::neighbour`], in a group that weighs so many times as much as the program's.
    pub(super) fn heavy_neighbour(&self, weight: u64) -> Result<Neighbour> {
        let Some(groups) = self.cpu() else {
            bail!("no control group with weights: {}", self.refusal());
        };
        groups.weigh_neighbour(weight)?;
        self.neighbour()
    }

    /// Allows exactly these CPUs to a running program: by its group, or by the affinity of
    /// every thread of `pid` and below. True if threads were changed, and there may be new ones.
    pub(super) fn allow(&self, pid: u32, cpus: &CpuSet) -> Result<bool> {
        if let Some(groups) = self.cpuset() {
            groups.allow(&cpus.to_string())?;
            return Ok(false);
        }
        Ok(processes::allow(pid, cpus))
    }

    /// Kills everything that a run started: `root` is its first process.
    pub(super) fn end(&self, root: u32) {
        processes::kill_tree(root);
        self.sweep();
    }

    /// Kills what an ended run left behind.
    pub(super) fn sweep(&self) {
        self.groups.iter().for_each(Groups::end_program);
    }

    fn helper(&self, name: &str) -> Command {
        let mut command = Command::new(&self.exe);
        command.args(["bench", name, "--parent"]).arg(std::process::id().to_string());
        command
    }

    fn cpu(&self) -> Option<&Groups> {
        self.groups.iter().find(|g| g.has_cpu())
    }

    fn cpuset(&self) -> Option<&Groups> {
        self.groups.iter().find(|g| g.has_cpuset())
    }
}

/// A quota, taken away when dropped.
pub(super) struct Quota<'a>(&'a Groups);

impl Drop for Quota<'_> {
    fn drop(&mut self) {
        // If this fails, the group is removed with the arena.
        let _ = self.0.set_quota(None, cgroup::PERIOD_US);
    }
}

/// Other processes of a bench, killed when dropped.
pub(super) struct Neighbour(Vec<Child>);

impl Neighbour {
    /// Starts them, and waits until each says that it has begun.
    fn start(commands: Vec<Command>) -> Result<Neighbour> {
        let mut neighbour = Neighbour(vec![]);
        for mut command in commands {
            let child = command.stdout(Stdio::piped()).spawn();
            neighbour.0.push(child.context("cannot start a process of the bench")?);
        }
        for child in &mut neighbour.0 {
            let mut line = String::new();
            if let Some(out) = child.stdout.take() {
                BufReader::new(out).read_line(&mut line)?;
            }
            if line.trim() != "busy" {
                bail!("a process of the bench did not begin");
            }
        }
        Ok(neighbour)
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A directory of one bench, removed when dropped.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn make(pid: u32) -> Result<Scratch> {
        let parent = std::env::temp_dir();
        for entry in fs::read_dir(&parent).into_iter().flatten().flatten() {
            if cgroup::is_leftover(&entry.file_name().to_string_lossy()) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let dir = parent.join(format!("{}{pid}", cgroup::PREFIX));
        fs::create_dir(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(Scratch(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
