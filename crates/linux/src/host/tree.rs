//! Where a host's groups are: the hierarchy that divides CPU time, and those that count it and
//! confine it.

use corefit_core::{CpuSet, Quota, Throttled, Weight, What};

use crate::cgroup::files;
use crate::cgroup::mounts::{self, Found, Mount, Mounted, Version};
use crate::root::{ReadError, Root, optional};

/// The mounted hierarchies. Groups are named by their paths below the mount point, `/docker/abc`;
/// the top is the empty text.
pub(crate) struct Tree {
    pub(crate) version: Version,
    point: String,
    mounts: Vec<Mount>,
    /// Whether nothing is above what is mounted.
    pub(crate) whole: bool,
    /// Hierarchies that count CPU time, the best first.
    counting: Vec<Mounted>,
    cpuset: Option<Mounted>,
    depth: usize,
}

/// What is set for a group.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) weight: Option<Weight>,
    pub(crate) quota: Option<Quota>,
    /// Its own, or that of the nearest group above it that confines it.
    pub(crate) cpuset: Option<CpuSet>,
    /// Why that cannot be set, if it cannot.
    pub(crate) no_cpuset: Option<&'static str>,
    /// The nodes that are set for its memory, and whether that moves with them.
    pub(crate) mems: Option<(CpuSet, bool)>,
    /// Where none are set: those that the groups above leave it (v2).
    pub(crate) mems_above: Option<CpuSet>,
}

impl Tree {
    pub(crate) fn open(root: &Root) -> Result<Tree, ReadError> {
        let mounts = mounts::mounts(root)?;
        let none =
            || ReadError::Unsupported { path: "/proc/self/mountinfo: a mount of control groups".into() };
        let Mounted { version, point, depth } = mounts::hierarchy(&mounts, "cpu").ok_or_else(none)?;
        let unified = mounts::hierarchy(&mounts, "").filter(|found| found.version == Version::V2);
        let counting = mounts::hierarchy(&mounts, "cpuacct").into_iter().chain(unified);
        let mut counting: Vec<Mounted> = counting.filter(|found| found.depth == depth).collect();
        counting.dedup();
        let cpuset = mounts::hierarchy(&mounts, "cpuset").filter(|found| found.depth == depth);
        let whole = files::is_root(root, version, &point);
        Ok(Tree { version, point, mounts, whole, counting, cpuset, depth })
    }

    /// What was mounted when the tree was opened.
    pub(crate) fn mounts(&self) -> &[Mount] {
        &self.mounts
    }

    /// The path of a group, given as that or as a directory; without a slash at its end.
    pub(crate) fn path<'a>(&self, given: &'a str) -> &'a str {
        let below = given.strip_prefix(&self.point).filter(|rest| rest.is_empty() || rest.starts_with('/'));
        below.unwrap_or(given).trim_end_matches('/')
    }

    /// The directory of a group.
    pub(crate) fn dir(&self, path: &str) -> String {
        format!("{}{path}", self.point)
    }

    /// The names of the groups in a group.
    pub(crate) fn children(&self, root: &Root, path: &str) -> Result<Vec<String>, ReadError> {
        Ok(optional(root.dirs(&self.dir(path)))?.unwrap_or_default())
    }

    /// The deepest group of a process that the scheduler knows as one.
    pub(crate) fn group_of(&self, root: &Root, pid: u32) -> Option<String> {
        let memberships = mounts::memberships(root, pid).ok()?;
        let Found::At(_, place) = mounts::find(root, &self.mounts, &memberships, "cpu", pid) else {
            return None;
        };
        let mut names = &place.names[..];
        while self.version == Version::V2 && !names.is_empty() {
            let path = join(names);
            if root.has(&format!("{}/cpu.weight", self.dir(&path))) {
                break;
            }
            names = &names[..names.len() - 1];
        }
        Some(join(names))
    }

    /// The file that counts the CPU time of a group, and how it is written.
    pub(crate) fn usage_file(&self, root: &Root, path: &str) -> Option<(Version, String)> {
        let files = self.counting.iter().map(|found| {
            (found.version, files::usage_file(found.version, &format!("{}{path}", found.point)))
        });
        files.into_iter().find(|(_, file)| root.has(file))
    }

    /// Weight and quota of a group, each with the error that kept it from being read, and nothing else of it.
    pub(crate) fn shares(&self, root: &Root, path: &str) -> (Settings, Vec<(What, ReadError)>) {
        let dir = self.dir(path);
        let mut errors = Vec::new();
        let weight =
            files::weight(root, self.version, &dir).unwrap_or_else(|e| note(&mut errors, What::Weight, e));
        let quota =
            files::quota(root, self.version, &dir).unwrap_or_else(|e| note(&mut errors, What::Quota, e));
        (Settings { weight: weight.map(|w| w.value), quota, ..Settings::default() }, errors)
    }

    /// The same with its effective cpuset and memory nodes: nearly as many files again.
    pub(crate) fn settings(&self, root: &Root, path: &str) -> (Settings, Vec<(What, ReadError)>) {
        let (shares, mut errors) = self.shares(root, path);
        let cpuset_of = |path: &str| {
            let dir = self.cpuset_dir(path);
            dir.map_or(Ok(None), |(version, dir)| files::cpuset(root, version, &dir))
        };
        let cpuset = cpuset_of(path);
        // Of v1, until it is written first: no task can enter the group there, so it confines none.
        let empty = |error: &ReadError| matches!(error, ReadError::Malformed { text, .. } if text.is_empty());
        let shut = self.version == Version::V1 && cpuset.as_ref().is_err_and(empty);
        let no_cpuset = match &cpuset {
            _ if shut => Some("its cpuset is empty (cpuset.cpus of v1), so that no process can be in it"),
            _ if self.cpuset.is_none() => Some("there is no cpuset controller here"),
            Ok(None) => Some("it has no cpuset of its own: the controller does not know this group"),
            _ => None,
        };
        // Without one of its own, the nearest above it holds a group of v2; of v1 its threads may be in any.
        let unified = self.cpuset.as_ref().is_some_and(|found| found.version == Version::V2);
        let above = path.rmatch_indices('/').map(|(end, _)| &path[..end]);
        let cpuset = match cpuset {
            Err(_) if shut => None,
            Ok(None) if unified => above
                .clone()
                .find_map(|path| cpuset_of(path).transpose())
                .transpose()
                .unwrap_or_else(|e| note(&mut errors, What::Cpuset, e)),
            other => other.unwrap_or_else(|e| note(&mut errors, What::Cpuset, e)),
        };
        let mems = self.cpuset_dir(path).map_or(Ok(None), |(version, dir)| files::mems(root, version, &dir));
        let mems = mems.unwrap_or_else(|e| note(&mut errors, What::Cpuset, e));
        let mut dirs = [path].into_iter().chain(above).filter_map(|path| self.cpuset_dir(path));
        let mems_above = match &mems {
            None if unified => dirs
                .find_map(|(_, dir)| files::mems_above(root, &dir).transpose())
                .transpose()
                .unwrap_or_else(|e| note(&mut errors, What::Cpuset, e)),
            _ => None,
        };
        (Settings { cpuset: cpuset.map(|set| set.value), no_cpuset, mems, mems_above, ..shares }, errors)
    }

    /// How often its bandwidth limit stopped a group; `None` where it is not counted.
    pub(crate) fn throttled(&self, root: &Root, path: &str) -> Result<Option<Throttled>, ReadError> {
        files::throttled(root, self.version, &self.dir(path))
    }

    /// The directory that holds a group's cpuset, and its version.
    pub(crate) fn cpuset_dir(&self, path: &str) -> Option<(Version, String)> {
        self.cpuset.as_ref().map(|found| (found.version, format!("{}{path}", found.point)))
    }

    /// What real-time threads of a group may use of each pCPU: the least that v1's groups on the way down (where
    /// the kernel divides it, `CONFIG_RT_GROUP_SCHED`) and the whole machine leave them; `None` if that is all
    /// of it (Documentation/scheduler/sched-rt-group.rst).
    pub(crate) fn realtime(&self, root: &Root, path: &str) -> Option<Quota> {
        let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
        let v1 = ends.filter(|_| self.version == Version::V1).map(|end| {
            let dir = self.dir(&path[..end]);
            [format!("{dir}/cpu.rt_runtime_us"), format!("{dir}/cpu.rt_period_us")]
        });
        let machine = ["sched_rt_runtime_us", "sched_rt_period_us"].map(|f| format!("/proc/sys/kernel/{f}"));
        let quotas = v1.chain([machine]).filter_map(|[runtime, period]| {
            let number = |file: &str| root.read(file).ok()?.trim().parse::<i64>().ok();
            // -1: without limit. Of 0 nothing can be divided; newer kernels let them run all the same.
            let quota_us = Some(u64::try_from(number(&runtime)?).ok().filter(|us| *us > 0)?);
            let period_us = u64::try_from(number(&period)?).ok().filter(|us| *us > 0)?;
            Some(Quota { quota_us, period_us, burst_us: 0, source: runtime })
        });
        let limits = quotas.filter_map(|quota| Some((quota.cpus()?, quota)));
        limits
            .min_by(|a, b| a.0.0.total_cmp(&b.0.0))
            .map(|(_, quota)| quota)
            .filter(|q| q.quota_us < Some(q.period_us))
    }

    /// What a nice-0 thread weighs beside groups.
    pub(crate) fn thread_weight(&self) -> f64 {
        match self.version {
            Version::V1 => 1024.0,
            Version::V2 => 100.0,
        }
    }

    /// The threads directly in a group, each with the process number under which `/proc` has it.
    pub(crate) fn threads(&self, root: &Root, path: &str) -> Result<Vec<(u32, u32)>, ReadError> {
        let dir = self.dir(path);
        let list = match self.version {
            Version::V1 => "tasks",
            Version::V2 => "cgroup.threads",
        };
        if let Some(text) = listed(root.read(&format!("{dir}/{list}")))? {
            return Ok(numbers(&text).map(|tid| (tid, tid)).collect());
        }
        let processes = optional(root.read(&format!("{dir}/cgroup.procs")))?.unwrap_or_default();
        let mut threads = Vec::new();
        for pid in numbers(&processes) {
            let tids = optional(root.dirs(&format!("/proc/{pid}/task")))?.unwrap_or_default();
            let tids: Vec<u32> = tids.iter().filter_map(|tid| tid.parse().ok()).collect();
            threads.extend(tids.iter().map(|tid| (pid, *tid)));
            if tids.is_empty() {
                threads.push((pid, pid));
            }
        }
        Ok(threads)
    }

    /// What cannot be seen of the tree, as a path and a reason.
    pub(crate) fn hidden(&self) -> Option<(String, &'static str)> {
        let why = "not the root: quotas and siblings above it cannot be seen from inside this container";
        (!self.whole || self.depth > 0).then(|| (self.point.clone(), why))
    }
}

fn note<T>(errors: &mut Vec<(What, ReadError)>, what: What, error: ReadError) -> Option<T> {
    errors.push((what, error));
    None
}

/// The text of a list, if there is one. That of a group of v2 in which nothing can be (`domain invalid`) refuses to be read: it has none.
fn listed(result: Result<String, ReadError>) -> Result<Option<String>, ReadError> {
    let refused = format!("(os error {})", rustix::io::Errno::OPNOTSUPP.raw_os_error());
    match result {
        Err(ReadError::Io { why, .. }) if why.ends_with(&refused) => Ok(Some(String::new())),
        other => optional(other),
    }
}

fn numbers(text: &str) -> impl Iterator<Item = u32> + '_ {
    text.lines().filter_map(|line| line.trim().parse().ok())
}

fn join(names: &[String]) -> String {
    names.iter().map(|name| format!("/{name}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::testing;

    #[test]
    fn shares_are_read_without_the_cpuset() {
        let mounts = "25 22 0:22 / /cg rw - cgroup2 cgroup2 rw\n";
        let files = [
            ("proc/self/mountinfo", mounts),
            ("cg/cgroup.controllers", "cpu cpuset\n"),
            ("cg/a/cpu.weight", "50\n"),
            ("cg/a/cpuset.cpus.effective", "no list\n"),
        ];
        let (_dir, root) = testing::tree(&files);
        let tree = Tree::open(&root).unwrap();
        let (whole, errors) = tree.settings(&root, "/a");
        assert_eq!((whole.weight, errors.len()), (Some(Weight(50.0)), 1));
        let (shares, errors) = tree.shares(&root, "/a");
        assert_eq!((shares.weight, errors.len()), (Some(Weight(50.0)), 0));
    }

    #[test]
    fn where_a_group_of_v2_says_no_nodes_those_of_the_nearest_group_above_count() {
        let (_dir, root) = testing::tree(&[
            ("proc/self/mountinfo", "25 22 0:22 / /cg rw - cgroup2 cgroup2 rw\n"),
            ("cg/cgroup.controllers", "cpu cpuset\n"),
            ("cg/a/cpuset.mems", "\n"),
            ("cg/a/cpuset.mems.effective", "1\n"),
            ("cg/a/b/cpu.weight", "50\n"),
            ("cg/c/cpuset.mems", "0\n"),
            ("cg/c/cpuset.mems.effective", "0\n"),
        ]);
        let tree = Tree::open(&root).unwrap();
        let of = |path| {
            let (settings, errors) = tree.settings(&root, path);
            assert!(errors.is_empty(), "{errors:?}");
            (
                settings.mems.map(|(nodes, _)| nodes.to_string()),
                settings.mems_above.map(|set| set.to_string()),
            )
        };
        assert_eq!(of("/a"), (None, Some("1".into())));
        assert_eq!(of("/a/b"), (None, Some("1".into())));
        assert_eq!(of("/c"), (Some("0".into()), None));
    }

    #[test]
    fn a_cpuset_of_v1_that_nobody_wrote_yet_confines_nobody_and_is_no_damage() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| testing::put(dir.path(), path, text);
        let mount = |name| format!("25 22 0:22 / /cg/{name} rw - cgroup cgroup rw,{name}\n");
        put("proc/self/mountinfo", &(mount("cpu") + &mount("cpuset")));
        put("cg/cpu/a/cpu.shares", "1024\n");
        put("cg/cpuset/a/cpuset.cpus", "\n");
        let root = Root::at(dir.path());
        let tree = Tree::open(&root).unwrap();
        let (settings, errors) = tree.settings(&root, "/a");
        assert!(settings.cpuset.is_none() && errors.is_empty(), "{errors:?}");
        assert!(settings.no_cpuset.is_some_and(|why| why.contains("is empty")), "{:?}", settings.no_cpuset);
        put("cg/cpuset/a/cpuset.cpus", "0\n");
        assert_eq!(tree.settings(&root, "/a").0.no_cpuset, None);
        // Of a group that is only in the other hierarchy, and where there is none.
        put("cg/cpu/b/cpu.shares", "1024\n");
        let why = tree.settings(&root, "/b").0.no_cpuset;
        assert!(why.is_some_and(|why| why.contains("does not know this group")), "{why:?}");
        put("proc/self/mountinfo", &mount("cpu"));
        let why = Tree::open(&root).unwrap().settings(&root, "/b").0.no_cpuset;
        assert_eq!(why, Some("there is no cpuset controller here"));
        put("cg/cpuset/a/cpuset.cpus", "x\n");
        assert_eq!(tree.settings(&root, "/a").1[0].0, What::Cpuset);
    }

    #[test]
    fn a_group_in_which_nothing_can_be_has_no_threads_and_other_errors_are_errors() {
        let read = |errno: rustix::io::Errno| {
            let error = std::io::Error::from_raw_os_error(errno.raw_os_error());
            listed(Err(ReadError::from_io("/cgroup.threads", &error)))
        };
        assert_eq!(read(rustix::io::Errno::OPNOTSUPP).unwrap().as_deref(), Some(""));
        assert_eq!(read(rustix::io::Errno::NOENT).unwrap(), None);
        assert!(read(rustix::io::Errno::IO).is_err());
    }

    #[test]
    fn real_time_threads_may_use_the_least_that_their_groups_and_the_machine_leave() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| testing::put(dir.path(), path, text);
        put("proc/self/mountinfo", "25 22 0:22 / /cg/cpu rw - cgroup cgroup rw,cpu\n");
        let limit = |group: &str, runtime: &str, period: &str| {
            put(&format!("cg/cpu{group}/cpu.rt_runtime_us"), &format!("{runtime}\n"));
            put(&format!("cg/cpu{group}/cpu.rt_period_us"), &format!("{period}\n"));
        };
        limit("", "950000", "1000000");
        limit("/a", "40000", "100000");
        limit("/a/b", "50000", "100000");
        put("proc/sys/kernel/sched_rt_runtime_us", "900000\n");
        put("proc/sys/kernel/sched_rt_period_us", "1000000\n");
        let root = Root::at(dir.path());
        let tree = Tree::open(&root).unwrap();
        let cpus = |path: &str| tree.realtime(&root, path).and_then(|quota| quota.cpus()).map(|cpus| cpus.0);
        assert_eq!((cpus("/a/b"), cpus("/a"), cpus("")), (Some(0.4), Some(0.4), Some(0.9)));
        assert!(tree.realtime(&root, "/a").unwrap().source.ends_with("/cg/cpu/a/cpu.rt_runtime_us"));
        put("proc/sys/kernel/sched_rt_runtime_us", "-1\n");
        limit("", "-1", "1000000");
        assert_eq!((cpus("/a"), cpus("/c"), cpus("")), (Some(0.4), None, None));
    }
}
