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

/// Reads pCPUs; where they are in the machine is read once for each.
#[derive(Default)]
pub(crate) struct Pcpus {
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
        if all.iter().any(|cpu| !self.known.contains_key(&cpu)) {
            let nodes = nodes(root);
            self.known = all.iter().map(|cpu| (cpu, locate(root, cpu, &nodes))).collect();
            self.caches = topology::last_level(root, &online);
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

fn locate(root: &Root, cpu: CpuId, nodes: &[(u32, CpuSet)]) -> Where {
    let name = format!("cpu{}", cpu.0);
    let package = format!("/sys/devices/system/cpu/{name}/topology/physical_package_id");
    Where {
        node: nodes.iter().find(|(_, cpus)| cpus.contains(cpu)).map(|(node, _)| *node),
        package: value(root, &package, "number", |t| t.parse().ok()).ok(),
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
