//! What corefit can change of a control group that plays a VM: weight, quota, cpuset, the nodes of its memory, and the slices
//! of its threads.

use std::collections::BTreeSet;

use corefit_core::machine::{Act, Fixed, Lever, LeverKind, Limit, MachineError, Value, VmId};
use corefit_core::{CpuSet, Unread, Weight, What};

use super::{Cgroups, HostReader, HostView, VmGroup};
use crate::cgroup::mounts::Version;
use crate::cgroup::{files, write};
use crate::slice::{self, Slicer};

impl HostReader {
    /// The bandwidth limit that is set for a group.
    pub(crate) fn limit(&self, path: &str) -> Result<Limit, MachineError> {
        write::limit(self.root(), self.tree.version, &self.tree.dir(path))
    }

    /// Sets it.
    pub(crate) fn set_limit(&self, path: &str, to: Limit) -> Result<(), MachineError> {
        write::set_limit(self.root(), self.tree.version, &self.tree.dir(path), to)
    }

    /// Whether cpusets take no pCPUs that are offline: those of cgroups v1.
    pub(crate) fn takes_online_only(&self) -> bool {
        self.tree.cpuset_dir("").is_some_and(|(version, _)| version == Version::V1)
    }

    /// What a group weighs among its siblings.
    pub(crate) fn weight(&self, path: &str) -> Result<Weight, MachineError> {
        write::weight(self.root(), self.tree.version, &self.tree.dir(path))
    }

    /// Sets it.
    pub(crate) fn set_weight(&self, path: &str, to: Weight) -> Result<(), MachineError> {
        write::set_weight(self.root(), self.tree.version, &self.tree.dir(path), to)
    }

    /// The group that an id names, if it is still that one; and whether it may be, where that is not known.
    fn found(&self, vm: &VmId) -> Result<String, (MachineError, bool)> {
        let (path, inode) = vm
            .0
            .rsplit_once('@')
            .ok_or_else(|| (MachineError::Malformed(format!("{:?} names no control group", vm.0)), false))?;
        let gone = |what: &str| Err((MachineError::Gone(format!("{path}: {what}")), false));
        match self.root().inode(&self.tree.dir(path)) {
            Ok(now) if now.to_string() == inode => Ok(path.into()),
            Ok(_) => gone("another group of this name is there now"),
            Err(error) if error.is_absent() => gone("the group is gone"),
            Err(error) => Err((error.into(), true)),
        }
    }

    fn group_of_id(&self, vm: &VmId) -> Result<String, MachineError> {
        self.found(vm).map_err(|(error, _)| error)
    }

    /// Of groups that were to be looked at, those that a look did not show, though they may be there: their files could not be read, or
    /// the names of those beside them.
    pub(super) fn missed(&self, chosen: &[String], view: &HostView) -> Vec<Unread> {
        let groups = view.groups.iter().map(|group| &group.name);
        let shown: BTreeSet<&String> = view.vms.iter().map(|vm| &vm.path).chain(groups).collect();
        let missed = chosen.iter().filter(|path| !shown.contains(path)).filter_map(|path| {
            let why = match self.root().inode(&self.tree.dir(path)) {
                Ok(_) => "it is there, and was not listed".into(),
                Err(error) if error.is_absent() => return None,
                Err(error) => error.why(),
            };
            Some(Unread { what: What::Siblings, path: format!("VM {path:?}"), why })
        });
        missed.collect()
    }

    fn current(&self, vm: &VmId, lever: Lever) -> Result<Value, MachineError> {
        let path = self.group_of_id(vm)?;
        let (root, version, dir) = (self.root(), self.tree.version, self.tree.dir(&path));
        match lever {
            Lever::Weight => self.weight(&path).map(Value::Weight),
            Lever::Quota => write::limit(root, version, &dir).map(Value::Limit),
            Lever::Affinity(0) => {
                let (_, dir) = self.tree.cpuset_dir(&path).ok_or_else(no_cpuset)?;
                write::cpuset(root, &dir).map(Value::Pcpus)
            }
            Lever::Nodes => {
                let (version, dir) = self.tree.cpuset_dir(&path).ok_or_else(no_cpuset)?;
                Ok(Value::Nodes(files::mems(root, version, &dir)?.map(|(nodes, _)| nodes)))
            }
            Lever::Slice(0) => Ok(Value::Slice(Slicer::now()?.current(&self.threads(&path)?))),
            _ => Err(no_lever(lever)),
        }
    }

    fn set(&self, vm: &VmId, lever: Lever, value: &Value) -> Result<(), MachineError> {
        let path = self.group_of_id(vm)?;
        let (root, version, dir) = (self.root(), self.tree.version, self.tree.dir(&path));
        match (lever, value) {
            (Lever::Weight, Value::Weight(weight)) => self.set_weight(&path, *weight),
            (Lever::Quota, Value::Limit(limit)) => write::set_limit(root, version, &dir, *limit),
            (Lever::Affinity(0), Value::Pcpus(pcpus)) => {
                let (version, dir) = self.tree.cpuset_dir(&path).ok_or_else(no_cpuset)?;
                write::set_cpuset(root, version, &dir, pcpus)
            }
            (Lever::Nodes, Value::Nodes(Some(nodes))) if !nodes.is_empty() => {
                let (version, dir) = self.tree.cpuset_dir(&path).ok_or_else(no_cpuset)?;
                write::set_mems(root, version, &dir, nodes)
            }
            (Lever::Slice(0), Value::Slice(to)) => Slicer::now()?.set(|| Ok(self.threads(&path)?), *to),
            (Lever::Weight | Lever::Quota | Lever::Affinity(0) | Lever::Nodes | Lever::Slice(0), value) => {
                Err(MachineError::Malformed(format!("the {lever} cannot be {value}")))
            }
            _ => Err(no_lever(lever)),
        }
    }
}

impl HostReader {
    /// See [`Act::fitting`]. In the place of none, which the kernel refuses a group of v2 with processes, all pCPUs that there may ever be:
    /// of these, too, it may use those of the group above.
    fn fitting(&self, vm: &VmId, lever: Lever, value: &Value) -> Option<Value> {
        let (version, dir) = self.tree.cpuset_dir(&self.group_of_id(vm).ok()?)?;
        let all = || self.root().read("/sys/devices/system/cpu/possible").ok()?.trim().parse().ok();
        let part = |file, set: &CpuSet| {
            let part = set.intersection(&write::above(self.root(), &dir, file)?);
            (!part.is_empty() && part != *set).then_some(part)
        };
        match (lever, value) {
            (Lever::Affinity(0), Value::Pcpus(set)) if set.is_empty() && version == Version::V2 => {
                all().map(Value::Pcpus)
            }
            (Lever::Affinity(0), Value::Pcpus(set)) => part("cpuset.cpus", set).map(Value::Pcpus),
            (Lever::Nodes, Value::Nodes(Some(set))) => {
                part("cpuset.mems", set).map(|set| Value::Nodes(Some(set)))
            }
            _ => None,
        }
    }
}

fn no_cpuset() -> MachineError {
    MachineError::Unsupported("there is no cpuset controller here".into())
}

/// What no group has; slices, where there are none; the nodes of its memory, where they are not said or it does not move with them;
/// and its cpuset, where there is none, or it is empty.
pub(super) fn fixed(group: &VmGroup) -> Vec<Fixed> {
    let reason = "it is a control group, which has only weight, quota, cpuset and slices";
    let cpuset =
        "it is a control group, whose cpuset is sized where a rule that names it says a size other than none";
    let kinds = [
        (LeverKind::Online, cpuset),
        (LeverKind::HelperWeight, reason),
        (LeverKind::VcpuQuota, reason),
        (LeverKind::Told, reason),
    ];
    let mut fixed: Vec<Fixed> = kinds.map(|(lever, reason)| Fixed { lever, reason: reason.into() }).into();
    if let Some(reason) = group.no_cpuset {
        fixed.push(Fixed { lever: LeverKind::Affinity, reason: reason.into() });
    }
    if group.slices.is_none() {
        fixed.push(Fixed { lever: LeverKind::Slice, reason: slice::none().into() });
    }
    if !group.memory_moves {
        let reason = memory_stays(group.memory_nodes.is_some());
        fixed.push(Fixed { lever: LeverKind::Nodes, reason: reason.into() });
    }
    fixed
}

fn memory_stays(nodes: bool) -> &'static str {
    if nodes {
        "its memory does not move with its cpuset.mems (cpuset.memory_migrate is not set)"
    } else {
        "nothing says which nodes its memory is on (cpuset.mems)"
    }
}

fn no_lever(lever: Lever) -> MachineError {
    MachineError::Unsupported(format!(
        "a control group has no {lever}, only weight, quota, cpuset and slices"
    ))
}

impl Act for Cgroups {
    fn fitting(&mut self, vm: &VmId, lever: Lever, value: &Value) -> Option<Value> {
        self.reader.fitting(vm, lever, value)
    }

    fn lost(&mut self, vm: &VmId, lever: Lever) -> bool {
        let reader = &self.reader;
        let dir = || reader.tree.cpuset_dir(&reader.group_of_id(vm).ok()?);
        let empty = |dir: &str| write::cpuset(reader.root(), dir).is_ok_and(|set| set.is_empty());
        lever == Lever::Affinity(0)
            && dir().is_some_and(|(version, dir)| version == Version::V1 && empty(&dir))
    }

    fn may_be_there(&mut self, vm: &VmId) -> bool {
        self.reader.found(vm).map_or_else(|(_, may_be)| may_be, |_| true)
    }

    /// Patterns of two may have groups in common, now or later.
    fn realm(&self) -> String {
        "control groups of this host".into()
    }

    fn current(&mut self, vm: &VmId, lever: Lever) -> Result<Value, MachineError> {
        self.reader.current(vm, lever)
    }

    fn set(&mut self, vm: &VmId, lever: Lever, value: &Value) -> Result<(), MachineError> {
        let done = self.reader.set(vm, lever, value);
        self.look_anew(vm);
        done
    }

    fn look_anew(&mut self, vm: &VmId) {
        self.reader.reread(vm.0.rsplit_once('@').map_or("", |(path, _)| path));
    }
}

#[cfg(test)]
mod tests {
    use super::super::Choice;
    use super::super::choose::Chosen;
    use super::*;
    use crate::root::testing;
    use corefit_core::machine::Machine;

    #[test]
    fn in_the_place_of_no_cpuset_a_group_of_v2_can_have_all_pcpus_and_one_of_v1_nothing() {
        let fitting = |kind: &str| {
            let (dir, root) = testing::tree(&[
                ("proc/self/mountinfo", &format!("25 22 0:22 / /cg rw - {kind}\n")),
                ("proc/stat", "cpu0 1 1 1 1 1 1 1 1\n"),
                ("proc/uptime", "1.00 1.00\n"),
                ("sys/devices/system/cpu/online", "0-1\n"),
                ("sys/devices/system/cpu/possible", "0-3\n"),
                ("cg/cgroup.controllers", "cpu cpuset\n"),
                ("cg/cpuset.cpus", "0-1\n"),
                ("cg/a/cpuset.cpus", "1\n"),
            ]);
            let vm = VmId(format!("/a@{}", root.inode("/cg/a").unwrap()));
            let reader = HostReader::open(root).unwrap();
            let of = |list: &str| {
                let found = reader.fitting(&vm, Lever::Affinity(0), &Value::Pcpus(list.parse().unwrap()));
                found.map(|value| value.to_string())
            };
            let found = [of(""), of("1-2")];
            drop(dir);
            found
        };
        assert_eq!(fitting("cgroup2 cgroup2 rw"), [Some("0-3".into()), Some("1".into())]);
        assert_eq!(fitting("cgroup cgroup rw,cpu,cpuset"), [None, Some("1".into())]);
    }

    /// As by EACCES or EIO, which nobody can have here.
    fn loops(dir: &std::path::Path, group: &str) {
        std::fs::remove_dir_all(dir.join(group)).unwrap();
        std::os::unix::fs::symlink(dir.join(group), dir.join(group)).unwrap();
    }

    #[test]
    fn a_group_has_ended_only_if_it_is_not_there_and_one_that_cannot_be_read_is_missed() {
        let (dir, root) = testing::tree(&[
            ("proc/self/mountinfo", "25 22 0:22 / /cg rw - cgroup cgroup rw,cpu\n"),
            ("proc/stat", "cpu0 1 1 1 1 1 1 1 1\n"),
            ("proc/uptime", "1.00 1.00\n"),
            ("sys/devices/system/cpu/online", "0\n"),
            ("cg/a/cpu.shares", "1024\n"),
            ("cg/b/cpu.shares", "1024\n"),
            ("cg/c/cpu.shares", "1024\n"),
        ]);
        let all = ["/a", "/b", "/c"].map(String::from);
        let [a, b, c] = all.clone().map(|path| VmId(format!("{path}@{}", root.inode("/cg").unwrap())));
        let mut machine = Cgroups::open(root, Choice::Usual).unwrap();
        let look = |machine: &mut Cgroups| machine.look(Chosen { paths: all.to_vec(), note: None }).unwrap();
        assert!(!look(&mut machine).may_lack_vms());
        loops(dir.path(), "cg/a");
        std::fs::remove_dir_all(dir.path().join("cg/b")).unwrap();
        let read = [&a, &b, &c].map(|vm| Act::current(&mut machine, vm, Lever::Weight).is_ok());
        assert_eq!(
            (read, [&a, &b, &c].map(|vm| machine.may_be_there(vm))),
            ([false, false, true], [true, false, true])
        );
        let seen = look(&mut machine);
        assert_eq!(
            ["/a", "/b", "/c"].map(|name| seen.may_lack(name)),
            [true, false, false],
            "{:?}",
            seen.unread
        );
        // One that is there, and that nothing lists.
        let view = HostView::default();
        let unread: Vec<String> =
            machine.reader.missed(&all, &view).into_iter().map(|unread| unread.path).collect();
        assert_eq!(unread, ["VM \"/a\"", "VM \"/c\""]);
        // Nor are there no groups where those that there are cannot be listed.
        loops(dir.path(), "cg/c");
        assert!(machine.reader.children("/c").is_err() && machine.reader.children("/b").is_ok());
        loops(dir.path(), "cg");
        assert!(machine.observe().is_err());
    }
}
