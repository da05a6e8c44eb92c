//! Control groups for tests, v1 or v2, made here and removed again.

#![allow(dead_code, reason = "each test uses a part")]

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

/// A directory of control groups for one controller, and whether it is v2.
pub(crate) struct Hierarchy {
    pub(crate) point: PathBuf,
    pub(crate) v2: bool,
}

/// A group that is removed, with the processes in it, when the test ends in whatever way.
pub(crate) struct Group {
    pub(crate) dir: PathBuf,
    pub(crate) v2: bool,
}

impl Hierarchy {
    pub(crate) fn of(controller: &str) -> Result<Hierarchy, String> {
        let found = Hierarchy::find(controller)?;
        if found.v2 {
            let switch = found.point.join("cgroup.subtree_control");
            std::fs::write(&switch, format!("+{controller}"))
                .map_err(|e| format!("{}: {e}", switch.display()))?;
        }
        Ok(found)
    }

    /// The same, as it is.
    fn find(controller: &str) -> Result<Hierarchy, String> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").map_err(|e| e.to_string())?;
        let find = |kind: &str, option: Option<&str>| {
            mounts.lines().find_map(|line| {
                let (left, right) = line.split_once(" - ")?;
                let (mut left, right) = (left.split(' ').skip(3), right.split(' ').collect::<Vec<_>>());
                let whole = left.next()? == "/" && right[0] == kind;
                let has = option.is_none_or(|o| right[2].split(',').any(|x| x == o));
                (whole && has).then(|| PathBuf::from(left.next().unwrap()))
            })
        };
        if let Some(point) = find("cgroup", Some(controller)) {
            return Ok(Hierarchy { point, v2: false });
        }
        let point = find("cgroup2", None).ok_or("no control groups are mounted")?;
        let offered = std::fs::read_to_string(point.join("cgroup.controllers")).unwrap_or_default();
        if !offered.split_whitespace().any(|c| c == controller) {
            return Err(format!("no {controller} controller in {}", point.display()));
        }
        Ok(Hierarchy { point, v2: true })
    }

    pub(crate) fn group(&self) -> Result<Group, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = self.point.join(format!("corefit-test-{}-{number}", std::process::id()));
        Group::make(dir, self.v2)
    }
}

impl Group {
    pub(crate) fn make(dir: PathBuf, v2: bool) -> Result<Group, String> {
        std::fs::create_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        Ok(Group { dir, v2 })
    }

    pub(crate) fn child(&self, name: &str) -> Group {
        if self.v2 {
            self.set("cgroup.subtree_control", "+cpu +cpuset");
        }
        Group::make(self.dir.join(name), self.v2).unwrap()
    }

    pub(crate) fn set(&self, file: &str, text: &str) {
        let path = self.dir.join(file);
        std::fs::write(&path, text).unwrap_or_else(|e| panic!("{text} into {}: {e}", path.display()));
    }

    /// `share` is in units of the default weight.
    pub(crate) fn weight(&self, share: u32) {
        if self.v2 {
            self.set("cpu.weight", &(100 * share).min(10_000).to_string());
        } else {
            self.set("cpu.shares", &(1024 * share).min(262_144).to_string());
        }
    }

    /// In units of the default weight, also below it.
    pub(crate) fn relative_weight(&self, weight: f64) {
        let (file, unit) = if self.v2 { ("cpu.weight", 100.0) } else { ("cpu.shares", 1024.0) };
        self.set(file, &format!("{:.0}", unit * weight));
    }

    pub(crate) fn quota(&self, quota_us: u32) {
        if self.v2 {
            self.set("cpu.max", &format!("{quota_us} 100000"));
        } else {
            self.set("cpu.cfs_quota_us", &quota_us.to_string());
        }
    }

    pub(crate) fn quota_file(&self) -> String {
        let file = if self.v2 { "cpu.max" } else { "cpu.cfs_quota_us" };
        self.dir.join(file).display().to_string()
    }

    /// Puts the members of `self` into `set` as well (a group of another hierarchy).
    pub(crate) fn also_in(&self, set: &Group) {
        members(&self.dir).iter().for_each(|pid| set.set("cgroup.procs", pid));
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..1000 {
            if remove(&self.dir) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        eprintln!("could not remove {}", self.dir.display());
    }
}

/// Ends all processes in a group and below, and removes it; `false` while some still end.
pub(crate) fn remove(dir: &Path) -> bool {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    for pid in members(dir) {
        if let Some(pid) = pid.parse().ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
    std::fs::remove_dir(dir).is_ok() || !dir.exists()
}

pub(crate) fn members(dir: &Path) -> Vec<String> {
    let list = std::fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    list.lines().map(Into::into).collect()
}

pub(crate) fn until(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(300) {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("not within 300 s: {what}");
}

/// One test at a time, for they would weigh against each other; also of other runs of tests, for one daemon at a time changes
/// control groups.
pub(crate) fn alone() -> (MutexGuard<'static, ()>, File) {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let path = std::env::temp_dir().join("corefit-test-groups.lock");
    // Another user may have made it.
    let file = File::create(&path).or_else(|_| File::open(&path)).unwrap();
    flock(&file, FlockOperation::LockExclusive).unwrap();
    sweep();
    (guard, file)
}

/// What tests that were killed left in groups of theirs is ended.
fn sweep() {
    for controller in ["cpu", "cpuset"] {
        let Ok(hierarchy) = Hierarchy::find(controller) else { continue };
        for entry in std::fs::read_dir(&hierarchy.point).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let test = name.strip_prefix("corefit-test-").and_then(|rest| rest.split('-').next());
            if test.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
                remove(&entry.path());
            }
        }
    }
}

/// Never rest, the first as long as the second's shell lives.
const TWO_LOOPS: &str = "setpriv --pdeathsig KILL sh -c 'while :; do :; done' & while :; do :; done";

/// A shell that ends with the test, whatever ends that.
pub(crate) fn shell(script: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "sh", "-c", script]).stdin(Stdio::null());
    command
}

/// A process that is ended when the test ends in whatever way.
pub(crate) struct Ended(pub(crate) Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Two loops that never rest, in a group.
pub(crate) fn loops(group: &Group) -> Ended {
    let script = format!("echo $$ >'{}/cgroup.procs' || exit; {TWO_LOOPS}", group.dir.display());
    let loops = Ended(shell(&script).spawn().unwrap());
    until("both loops are in their group", || members(&group.dir).len() >= 2);
    loops
}

/// A heavy group, or the reason why there is none.
pub(crate) fn heavy() -> Result<Group, String> {
    let cpu = Hierarchy::of("cpu")?;
    if cpu.v2 {
        Hierarchy::of("cpuset")?; // to be there before the group is
    }
    let group = cpu.group()?;
    group.weight(256);
    Ok(group)
}

/// Says on the real stderr that something was not tested, and why.
pub(crate) fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}

macro_rules! or_skip {
    ($made:expr) => {
        match $made {
            Ok(made) => made,
            Err(reason) => {
                $crate::cgroup_support::skipped(&reason.to_string());
                return;
            }
        }
    };
}
pub(crate) use or_skip;
