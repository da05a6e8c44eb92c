//! `corefit cpus` against real control groups, made here and removed again, v1 or v2.
//! Where they may not be made, each test prints `skipped: reason`.
//!
//! The groups weigh so much that whatever else runs on the machine hardly counts.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use corefit_core::{LimitKind, Report, estimate};
use corefit_linux::{Root, read};

/// A directory of control groups for one controller, and whether it is v2.
struct Hierarchy {
    point: PathBuf,
    v2: bool,
}

/// A group that is removed, with the processes in it, when the test ends in whatever way.
struct Group {
    dir: PathBuf,
    v2: bool,
}

/// A process that is ended when the test ends in whatever way.
struct Busy(Child);

impl Hierarchy {
    fn of(controller: &str) -> Result<Hierarchy, String> {
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
        let switch = point.join("cgroup.subtree_control");
        std::fs::write(&switch, format!("+{controller}"))
            .map_err(|e| format!("{}: {e}", switch.display()))?;
        Ok(Hierarchy { point, v2: true })
    }

    fn group(&self) -> Result<Group, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = self.point.join(format!("corefit-test-{}-{number}", std::process::id()));
        Group::make(dir, self.v2)
    }
}

impl Group {
    fn make(dir: PathBuf, v2: bool) -> Result<Group, String> {
        std::fs::create_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        Ok(Group { dir, v2 })
    }

    fn child(&self, name: &str) -> Group {
        if self.v2 {
            self.set("cgroup.subtree_control", "+cpu +cpuset");
        }
        Group::make(self.dir.join(name), self.v2).unwrap()
    }

    fn set(&self, file: &str, text: &str) {
        let path = self.dir.join(file);
        std::fs::write(&path, text).unwrap_or_else(|e| panic!("{text} into {}: {e}", path.display()));
    }

    /// `share` is in units of the default weight.
    fn weight(&self, share: u32) {
        if self.v2 {
            self.set("cpu.weight", &(100 * share).min(10_000).to_string());
        } else {
            self.set("cpu.shares", &(1024 * share).min(262_144).to_string());
        }
    }

    fn quota(&self, quota_us: u32) {
        if self.v2 {
            self.set("cpu.max", &format!("{quota_us} 100000"));
        } else {
            self.set("cpu.cfs_quota_us", &quota_us.to_string());
        }
    }

    fn quota_file(&self) -> String {
        let file = if self.v2 { "cpu.max" } else { "cpu.cfs_quota_us" };
        self.dir.join(file).display().to_string()
    }

    /// Starts a process with two threads of execution that never rest, in this group.
    fn busy(&self) -> Busy {
        let spin = "while :; do :; done & while :; do :; done";
        let script = format!("echo $$ >'{}/cgroup.procs' || exit; {spin}", self.dir.display());
        let child = Command::new("sh").args(["-c", &script]).stdin(Stdio::null()).spawn().unwrap();
        let busy = Busy(child);
        until("both halves of the busy process are in their group", || members(&self.dir).len() >= 2);
        busy
    }

    /// Puts the members of `self` into `set` as well (a group of another hierarchy).
    fn also_in(&self, set: &Group) {
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
fn remove(dir: &Path) -> bool {
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

fn members(dir: &Path) -> Vec<String> {
    let list = std::fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    list.lines().map(Into::into).collect()
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..6000 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("not within 30 s: {what}");
}

/// Watches a process for a second: a measurement, no wait for something to happen.
fn watch(busy: &Busy) -> Report {
    let root = Root::live();
    let earlier = read(&root, busy.0.id()).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    estimate(&earlier, &read(&root, busy.0.id()).unwrap())
}

fn binding(report: &Report) -> Vec<(LimitKind, &str)> {
    report.limits.iter().filter(|l| l.binding).map(|l| (l.kind, l.source.as_str())).collect()
}

/// One test at a time, for they would weigh against each other.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A heavy group, or the reason why there is none.
fn heavy() -> Result<Group, String> {
    let cpu = Hierarchy::of("cpu")?;
    if cpu.v2 {
        Hierarchy::of("cpuset")?; // to be there before the group is
    }
    let group = cpu.group()?;
    group.weight(256);
    Ok(group)
}

/// Confines groups of the cpu controller to CPU 0. On v1 by groups of the same names in the
/// hierarchy of cpusets, which are handed back; their members have to be put there as well.
fn one_cpu(groups: &[&Group]) -> Result<Vec<Group>, String> {
    let cpusets = Hierarchy::of("cpuset")?;
    if cpusets.v2 {
        groups.iter().for_each(|group| group.set("cpuset.cpus", "0"));
        return Ok(Vec::new());
    }
    let cpu = Hierarchy::of("cpu")?;
    let mut sets = Vec::new();
    for group in groups {
        let set = Group::make(cpusets.point.join(group.dir.strip_prefix(&cpu.point).unwrap()), false)?;
        set.set("cpuset.mems", "0");
        set.set("cpuset.cpus", "0");
        sets.push(set);
    }
    Ok(sets)
}

macro_rules! or_skip {
    ($made:expr) => {
        match $made {
            Ok(made) => made,
            Err(reason) => {
                println!("skipped: {reason}");
                return;
            }
        }
    };
}

#[test]
fn the_lowest_quota_of_all_ancestors_binds() {
    let _alone = alone();
    let above = or_skip!(heavy());
    let below = above.child("below");
    above.quota(30_000);
    if above.v2 {
        below.quota(80_000); // v1 forbids more than the parent has
    }
    let busy = below.busy();
    let report = watch(&busy);
    assert_eq!(binding(&report), [(LimitKind::Quota, above.quota_file().as_str())], "{report:#?}");
    assert_eq!(report.available.0, 0.3);
    assert!(report.used.0 < 0.35, "the kernel agrees: {report:#?}");
    assert!(report.limits.iter().any(|l| l.detail.contains("ran out in")), "{report:#?}");

    above.quota(90_000);
    below.quota(20_000);
    let report = watch(&busy);
    assert_eq!(binding(&report), [(LimitKind::Quota, below.quota_file().as_str())], "{report:#?}");
    assert_eq!(report.available.0, 0.2);
}

#[test]
fn weights_against_a_busy_sibling_divide_as_the_kernel_does() {
    let _alone = alone();
    let above = or_skip!(heavy());
    let (mine, theirs) = (above.child("mine"), above.child("theirs"));
    // All on one CPU, so that the amount is known whatever else runs.
    let sets = or_skip!(one_cpu(&[&above, &mine, &theirs]));
    let (busy, _neighbour) = (mine.busy(), theirs.busy());
    for (group, set) in [&mine, &theirs].iter().zip(sets.iter().skip(1)) {
        group.also_in(set);
    }
    for (weight, expected) in [(1, 0.5), (3, 0.25)] {
        theirs.weight(weight);
        let report = watch(&busy);
        let entitled = report.entitled.expect("everybody can be seen").0;
        assert!((entitled - expected).abs() < 1e-3, "{report:#?}");
        assert!((report.used.0 - expected).abs() < 0.1, "used {}, {expected} expected", report.used.0);
        let names: Vec<_> = report.contenders.iter().map(|c| c.path.as_str()).collect();
        assert!(names.contains(&theirs.dir.to_str().unwrap()), "{names:?}");
    }
}

#[test]
fn a_sibling_that_rests_does_not_count() {
    let _alone = alone();
    let above = or_skip!(heavy());
    let (mine, theirs) = (above.child("mine"), above.child("theirs"));
    above.quota(80_000);
    let mut sleeper = Command::new("sleep").arg("60").spawn().map(Busy).unwrap();
    theirs.set("cgroup.procs", &sleeper.0.id().to_string());
    let report = watch(&mine.busy());
    assert!(!report.contenders.iter().any(|c| Path::new(&c.path) == theirs.dir), "{report:#?}");
    assert_eq!(report.entitled.map(|c| c.0), Some(0.8), "{report:#?}");
    let _ = sleeper.0.kill();
}

#[test]
fn a_cpuset_binds_and_names_its_group() {
    let _alone = alone();
    let group = or_skip!(heavy());
    let sets = or_skip!(one_cpu(&[&group]));
    let set = sets.first().unwrap_or(&group);
    let busy = group.busy();
    group.also_in(set);
    let report = watch(&busy);
    let marked = binding(&report);
    let [(LimitKind::Cpuset, source)] = marked[..] else { panic!("{report:#?}") };
    assert_eq!(Path::new(source).parent().unwrap(), set.dir);
    assert_eq!(report.available.0, 1.0);
}

#[test]
fn a_narrow_affinity_mask_binds() {
    let _alone = alone();
    let group = or_skip!(heavy());
    let busy = group.busy();
    let pid = rustix::process::Pid::from_raw(busy.0.id().try_into().unwrap());
    let mut mask = rustix::thread::CpuSet::new();
    mask.set(0);
    rustix::thread::sched_setaffinity(pid, &mask).unwrap();
    let report = watch(&busy);
    if report.limits[0].cpus.is_none_or(|c| c.0 < 2.0) {
        println!("skipped: this machine has one CPU");
        return;
    }
    let source = format!("/proc/{}/status", busy.0.id());
    assert_eq!(binding(&report), [(LimitKind::Affinity, source.as_str())], "{report:#?}");
    assert_eq!(report.available.0, 1.0);
}
