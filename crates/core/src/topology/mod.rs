//! The shape of a machine: which pCPUs share what.
//!
//! ```text
//! socket ⊃ NUMA node ⊃ shared cache ⊃ module ⊃ core ⊃ pCPU       (a cache may also hold several nodes)
//! ```
//!
//! Each level is a list of sets of pCPUs, so that irregular machines need no rules of their own: hybrid
//! ones, those with offline pCPUs, VMs that show no topology. A level that the source does not tell is
//! empty. What competes for execution units are the siblings of one *unit*: the SMT threads of a core, or
//! the cores of a module that share decoder and FPU (P4, section III).

mod summary;
mod synthetic;
mod tree;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{CpuId, CpuSet};

pub use synthetic::SyntheticError;
pub use tree::{Branch, Unit, size};

/// The shape of a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Topology {
    /// What it is, for people: a model, or where the description came from. May be empty.
    #[serde(default)]
    pub about: String,
    /// All pCPUs, offline ones included.
    pub pcpus: CpuSet,
    /// Those that run nothing.
    #[serde(default)]
    pub offline: CpuSet,
    /// Those that the kernel's load balancer leaves alone (`isolcpus=`, isolated partitions).
    #[serde(default)]
    pub isolated: CpuSet,
    /// Sockets.
    #[serde(default)]
    pub sockets: Vec<Part>,
    /// NUMA nodes; of those that share pCPUs (fast and large memory), the nearest has them.
    #[serde(default)]
    pub nodes: Vec<Part>,
    /// Caches of level 2 and above, the largest first.
    #[serde(default)]
    pub caches: Vec<Cache>,
    /// Cores that share execution units, such as the two of a module of AMD family 15h.
    #[serde(default)]
    pub modules: Vec<CpuSet>,
    /// SMT siblings.
    #[serde(default)]
    pub cores: Vec<CpuSet>,
    /// Of each pCPU of a hybrid machine, its speed beside the fastest, which has 1024.
    #[serde(default)]
    pub capacity: BTreeMap<u32, u32>,
}

/// A socket or a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Part {
    /// Its number in the operating system; `None` if it is not told.
    pub id: Option<u32>,
    /// Its pCPUs; none if the node has memory only.
    pub pcpus: CpuSet,
    /// Of a node: its memory in KiB, if that is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_kib: Option<u64>,
}

/// A cache.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cache {
    /// 2 to 5.
    pub level: u32,
    /// If that is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_kib: Option<u64>,
    /// Who shares it.
    pub pcpus: CpuSet,
}

/// Why a description is no topology.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// It has no pCPU.
    #[error("describes no pCPU")]
    Empty,
    /// A pCPU has two cores, say.
    #[error("pCPU {pcpu} is in two {level}s")]
    Twice {
        /// Such as `core`.
        level: &'static str,
        /// The first that is.
        pcpu: u32,
    },
}

impl Topology {
    /// Sorts what was read, leaves out what says nothing, and checks that it makes sense: afterwards
    /// all sets hold pCPUs of the machine only, and no pCPU is in two cores, modules, sockets or nodes (nodes are made so).
    ///
    /// # Errors
    /// See [`TopologyError`].
    pub fn settle(mut self) -> Result<Topology, TopologyError> {
        if self.pcpus.is_empty() {
            return Err(TopologyError::Empty);
        }
        let all = self.pcpus.clone();
        self.offline = self.offline.intersection(&all);
        self.isolated = self.isolated.intersection(&all);
        self.capacity.retain(|cpu, _| all.contains(CpuId(*cpu)));
        for set in self.cores.iter_mut().chain(&mut self.modules) {
            *set = set.intersection(&all);
        }
        for sets in [&mut self.cores, &mut self.modules] {
            sets.retain(|set| !set.is_empty());
            sets.sort_by_key(|set| set.iter().next());
            sets.dedup();
        }
        self.modules.retain(|module| !self.cores.contains(module));
        for part in self.sockets.iter_mut().chain(&mut self.nodes) {
            part.pcpus = part.pcpus.intersection(&all);
        }
        self.sockets.retain(|socket| !socket.pcpus.is_empty());
        for parts in [&mut self.sockets, &mut self.nodes] {
            parts.sort_by_key(|part| (part.id.is_none(), part.id, part.pcpus.iter().next()));
            parts.dedup();
        }
        // Memory of several kinds beside the same pCPUs: the nearest, which has the fewest, keeps them.
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        order.sort_by_key(|node| self.nodes[*node].pcpus.len());
        let mut seen = CpuSet::default();
        for node in order {
            let pcpus = &mut self.nodes[node].pcpus;
            *pcpus = pcpus.difference(&seen);
            seen = seen.union(pcpus);
        }
        for cache in &mut self.caches {
            cache.pcpus = cache.pcpus.intersection(&all);
        }
        self.caches.retain(|cache| !cache.pcpus.is_empty() && cache.level >= 2);
        let first = |cache: &Cache| cache.pcpus.iter().next();
        self.caches.sort_by(|a, b| b.level.cmp(&a.level).then(first(a).cmp(&first(b))));
        self.caches.dedup();
        once("core", self.cores.iter())?;
        once("module", self.modules.iter())?;
        once("socket", self.sockets.iter().map(|part| &part.pcpus))?;
        Ok(self)
    }

    /// pCPUs that run something.
    #[must_use]
    pub fn online(&self) -> CpuSet {
        self.pcpus.difference(&self.offline)
    }

    /// What shares execution units, as far as it is online: modules, cores in no module, and pCPUs of
    /// which nothing is known alone; by lowest pCPU.
    #[must_use]
    pub fn units(&self) -> Vec<CpuSet> {
        let mut left = self.online();
        let mut units = Vec::new();
        for set in self.modules.iter().chain(&self.cores) {
            let unit = set.intersection(&left);
            left = left.difference(&unit);
            if !unit.is_empty() {
                units.push(unit);
            }
        }
        units.extend(left.iter().map(|cpu| CpuSet::from_iter([cpu])));
        units.sort_by_key(|unit| unit.iter().next());
        units
    }

    /// What a unit of this machine is called: `core`, or `module`.
    #[must_use]
    pub fn unit_name(&self) -> &'static str {
        if self.modules.is_empty() { "core" } else { "module" }
    }

    /// The pCPUs of the nodes in a set of node numbers.
    #[must_use]
    pub fn pcpus_of_nodes(&self, nodes: &CpuSet) -> CpuSet {
        let of = |part: &&Part| part.id.is_some_and(|id| nodes.contains(CpuId(id)));
        self.nodes.iter().filter(of).fold(CpuSet::default(), |all, part| all.union(&part.pcpus))
    }

    /// The numbers of the nodes that have some of these pCPUs.
    #[must_use]
    pub fn nodes_of(&self, pcpus: &CpuSet) -> CpuSet {
        self.nodes
            .iter()
            .filter(|part| part.pcpus.meets(pcpus))
            .filter_map(|part| part.id.map(CpuId))
            .collect()
    }

    /// The numbers of all nodes.
    #[must_use]
    pub fn node_ids(&self) -> CpuSet {
        self.nodes.iter().filter_map(|part| part.id.map(CpuId)).collect()
    }

    /// Whether pCPUs differ in speed.
    #[must_use]
    pub fn is_hybrid(&self) -> bool {
        let mut speeds = self.capacity.values();
        speeds.next().is_some_and(|first| speeds.any(|other| other != first))
    }
}

/// That no pCPU is in two of the sets.
fn once<'a>(level: &'static str, sets: impl Iterator<Item = &'a CpuSet>) -> Result<(), TopologyError> {
    let mut seen = CpuSet::default();
    for set in sets {
        if let Some(CpuId(pcpu)) = set.intersection(&seen).iter().next() {
            return Err(TopologyError::Twice { level, pcpu });
        }
        seen = seen.union(set);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    #[test]
    fn units_are_modules_then_cores_then_lone_pcpus_and_leave_out_what_is_offline() {
        let shape = Topology {
            pcpus: CpuSet::first(10),
            offline: set("1,8"),
            modules: vec![set("0-3")],
            cores: vec![set("0-1"), set("2-3"), set("4-5"), set("6,8")],
            ..Topology::default()
        };
        let units: Vec<String> = shape.units().iter().map(CpuSet::to_string).collect();
        assert_eq!(units, ["0,2-3", "4-5", "6", "7", "9"]);
        assert_eq!(shape.unit_name(), "module");
    }

    #[test]
    fn nodes_of_two_kinds_of_memory_beside_the_same_pcpus_count_once() {
        let part = |id, list: &str| Part { id: Some(id), pcpus: set(list), memory_kib: None };
        let large = Topology {
            pcpus: CpuSet::first(4),
            nodes: vec![part(0, "0-3"), part(1, "2-3")],
            ..Topology::default()
        };
        assert_eq!(large.settle().unwrap().nodes, [part(0, "0-1"), part(1, "2-3")]);
        let shape = Topology {
            pcpus: CpuSet::first(4),
            nodes: vec![part(2, "0-1"), part(0, "0-1"), part(1, "2-3")],
            ..Topology::default()
        };
        let shape = shape.settle().unwrap();
        assert_eq!(shape.nodes, [part(0, "0-1"), part(1, "2-3"), part(2, "")]);
        assert_eq!(shape.nodes_of(&set("1")), set("0"));
        assert_eq!(shape.pcpus_of_nodes(&set("0-2")), set("0-3"));
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        assert_eq!(Topology::default().settle(), Err(TopologyError::Empty));
        let twice =
            Topology { pcpus: CpuSet::first(3), cores: vec![set("0-1"), set("1-2")], ..Topology::default() };
        assert_eq!(twice.settle(), Err(TopologyError::Twice { level: "core", pcpu: 1 }));
    }

    #[test]
    fn a_module_of_one_core_is_just_a_core() {
        let shape = Topology {
            pcpus: CpuSet::first(2),
            modules: vec![set("0-1")],
            cores: vec![set("0-1")],
            ..Topology::default()
        };
        assert!(shape.settle().unwrap().modules.is_empty());
    }
}
