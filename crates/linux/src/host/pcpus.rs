//! The pCPUs of a host.

use std::collections::BTreeMap;

use corefit_core::machine::Pcpu;
use corefit_core::topology::Cache;
use corefit_core::{CpuId, CpuSet, What};

use crate::cgroup::mounts::Mount;
use crate::notes::Notes;
use crate::root::{ReadError, Root, value};
use crate::{self_view, topology};

/// What hardly changes of a pCPU.
#[derive(Clone, Debug, Default, PartialEq)]
struct Where {
    node: Option<u32>,
    package: Option<u32>,
    siblings: Option<CpuSet>,
}

/// Reads pCPUs; where they are in the machine only when others are online: the kernel tells it of those alone.
#[derive(Default)]
pub(crate) struct Pcpus {
    online: CpuSet,
    known: BTreeMap<CpuId, Where>,
    /// Last-level caches.
    pub(crate) caches: Vec<Cache>,
}

impl Pcpus {
    /// All pCPUs that are plugged in, or all that are online where the machine does not say. What is mounted
    /// tells whether `/proc/stat` is the machine's own.
    ///
    /// # Errors
    /// If it is not known which are online.
    pub(crate) fn read(
        &mut self,
        root: &Root,
        mounts: &[Mount],
        notes: &mut Notes,
    ) -> Result<Vec<Pcpu>, ReadError> {
        let times = self_view::cpu_times(root, mounts, notes);
        let online = self_view::online(root, &times, notes)?.value;
        let present = self_view::cpu_list(root, "present").map_or_else(|_| online.clone(), |set| set.value);
        let all: CpuSet = present.iter().chain(online.iter()).collect();
        if online != self.online || all.iter().any(|cpu| !self.known.contains_key(&cpu)) {
            let nodes = nodes(root);
            let mut before = std::mem::take(&mut self.known);
            let known = all.iter().map(|cpu| (cpu, locate(root, cpu, &nodes, before.remove(&cpu))));
            self.known = known.collect();
            self.caches = topology::last_level(root, &online);
            self.online = online.clone();
        }
        let pcpus = all.iter().map(|id| {
            let times = times.iter().find(|t| t.cpu == id);
            let Where { node, package, siblings } = self.known.get(&id).cloned().unwrap_or_default();
            let (idle_ns, steal_ns) = (times.map(|t| t.idle_ns), times.map(|t| t.steal_ns));
            Pcpu { id, online: online.contains(id), node, package, siblings, idle_ns, steal_ns }
        });
        let pcpus: Vec<Pcpu> = pcpus.collect();
        if pcpus.iter().any(|p| p.online && p.idle_ns.is_none()) && !times.is_empty() {
            notes.add(What::Idle, "/proc/stat".into(), "lacks some of the CPUs that are online".into());
        }
        Ok(pcpus)
    }
}

/// Where a pCPU is; what is not told now is as it was `before`. Siblings are not kept: the kernel leaves who is offline
/// out of those of the others, and a pCPU in two cores would make no topology.
fn locate(root: &Root, cpu: CpuId, nodes: &[(u32, CpuSet)], before: Option<Where>) -> Where {
    let before = before.unwrap_or_default();
    let name = format!("cpu{}", cpu.0);
    let package = format!("/sys/devices/system/cpu/{name}/topology/physical_package_id");
    Where {
        node: nodes.iter().find(|(_, cpus)| cpus.contains(cpu)).map(|(node, _)| *node).or(before.node),
        package: value(root, &package, "number", |t| t.parse().ok()).ok().or(before.package),
        siblings: topology::siblings(root, &name).filter(|core| core.contains(cpu)),
    }
}

/// NUMA nodes, and the CPUs of each.
fn nodes(root: &Root) -> Vec<(u32, CpuSet)> {
    let dir = "/sys/devices/system/node";
    let names = root.dirs(dir).unwrap_or_default();
    let node = |name: &String| {
        let number = name.strip_prefix("node")?.parse().ok()?;
        let cpus = value(root, &format!("{dir}/{name}/cpulist"), "CPU list", |t| t.parse().ok()).ok()?;
        Some((number, cpus))
    };
    names.iter().filter_map(node).collect()
}

#[cfg(test)]
mod tests {
    use corefit_core::machine::Snapshot;
    use corefit_core::topology::Topology;

    use super::*;
    use crate::root::testing;

    #[test]
    fn where_a_pcpu_is_that_comes_online_later_is_known_then_and_stays_known() {
        let (dir, root) = testing::tree(&[]);
        let put = |path: &str, text: &str| testing::put(dir.path(), path, text);
        let cpu = |file: &str| format!("sys/devices/system/cpu/{file}");
        put(&cpu("present"), "0-1\n");
        put("proc/stat", "cpu0 1 1 1 1 1 1 1 1\n");
        let (socket, node) =
            (cpu("cpu1/topology/physical_package_id"), "sys/devices/system/node/node0/cpulist");
        let mut pcpus = Pcpus::default();
        let mut look = |online: &str| {
            put(&cpu("online"), online);
            let pcpus = pcpus.read(&root, &[], &mut Notes::default()).unwrap();
            (pcpus[1].online, pcpus[1].node, pcpus[1].package)
        };
        put(node, "0\n");
        assert_eq!(look("0\n"), (false, None, None));
        put(node, "0-1\n");
        put(&socket, "0\n");
        assert_eq!(look("0-1\n"), (true, Some(0), Some(0)));
        put(node, "0\n");
        std::fs::remove_file(dir.path().join(&socket)).unwrap();
        assert_eq!(look("0\n"), (false, Some(0), Some(0)));
    }

    #[test]
    fn cores_are_known_while_a_sibling_is_offline_and_afterwards() {
        let (dir, root) = testing::tree(&[]);
        let put = |path: &str, text: &str| testing::put(dir.path(), path, text);
        let cpu = |file: &str| format!("sys/devices/system/cpu/{file}");
        put(&cpu("present"), "0-3\n");
        put("proc/stat", "cpu0 1 1 1 1 1 1 1 1\n");
        let list = |id: u32| cpu(&format!("cpu{id}/topology/core_cpus_list"));
        [2, 3].into_iter().for_each(|id| put(&list(id), "2-3\n"));
        let mut pcpus = Pcpus::default();
        let mut cores = |online: &str| {
            put(&cpu("online"), online);
            let pcpus = pcpus.read(&root, &[], &mut Notes::default()).unwrap();
            let found = Topology::of_snapshot(&Snapshot { pcpus, ..Snapshot::default() });
            found.cores.iter().map(CpuSet::to_string).collect::<Vec<_>>()
        };
        let both = || [0, 1].into_iter().for_each(|id| put(&list(id), "0-1\n"));
        both();
        assert_eq!(cores("0-3\n"), ["0-1", "2-3"]);
        put(&list(0), "0\n");
        std::fs::remove_file(dir.path().join(list(1))).unwrap();
        assert_eq!(cores("0,2-3\n"), ["0", "2-3"]);
        both();
        assert_eq!(cores("0-3\n"), ["0-1", "2-3"]);
    }
}
