//! A machine in one line.

use std::collections::BTreeMap;

use super::Topology;
use crate::check::count;
use crate::{CpuId, CpuSet};

impl Topology {
    /// Such as `2 sockets, 4 NUMA nodes, 4 L3 caches, 16 modules of 2 cores, 32 pCPUs (1 offline)`. Levels
    /// that are not told, and caches of one unit, are left out.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut parts = Vec::new();
        let mut some = |n: usize, what: &str| parts.extend((n > 0).then(|| count(n, what)));
        some(self.sockets.len(), "socket");
        let (near, bare): (Vec<_>, Vec<_>) = self.nodes.iter().partition(|node| !node.pcpus.is_empty());
        some(near.len(), "NUMA node");
        some(bare.len(), "memory-only node");
        for level in [5, 4, 3, 2] {
            let shared = self.caches.iter().filter(|c| c.level == level && !self.is_of_one_unit(&c.pcpus));
            some(shared.count(), &format!("L{level} cache"));
        }
        let cores_of = |set: &CpuSet| self.cores.iter().filter(|core| core.is_within(set)).count();
        parts.extend(grouped(self.modules.iter().map(cores_of), "module", "core"));
        parts.extend(grouped(self.cores.iter().map(CpuSet::len), "core", "thread"));
        parts.push(count(self.pcpus.len(), "pCPU"));
        let mut text = parts.join(", ");
        let mut marks = Vec::new();
        for (set, what) in [(&self.offline, "offline"), (&self.isolated, "isolated")] {
            if !set.is_empty() {
                marks.push(format!("{what}: {set}"));
            }
        }
        for (capacity, pcpus) in self.speeds() {
            marks.push(format!("capacity {capacity}: {pcpus}"));
        }
        if !marks.is_empty() {
            text += &format!(" ({})", marks.join("; "));
        }
        text
    }

    /// pCPUs by capacity, the fastest first; nothing where all are alike.
    #[must_use]
    pub fn speeds(&self) -> Vec<(u32, CpuSet)> {
        if !self.is_hybrid() {
            return Vec::new();
        }
        let mut speeds: BTreeMap<u32, Vec<CpuId>> = BTreeMap::new();
        for (&cpu, &capacity) in &self.capacity {
            speeds.entry(capacity).or_default().push(CpuId(cpu));
        }
        speeds.into_iter().rev().map(|(capacity, pcpus)| (capacity, pcpus.into_iter().collect())).collect()
    }

    /// Whether the pCPUs are of one core or module, so that a cache of theirs says nothing new.
    #[must_use]
    pub fn is_of_one_unit(&self, pcpus: &CpuSet) -> bool {
        pcpus.len() == 1 || self.modules.iter().chain(&self.cores).any(|unit| pcpus.is_within(unit))
    }
}

/// `16 modules of 2 cores`, `6 cores of 2 threads and 8 of 1`; cores of one thread are just cores.
fn grouped(sizes: impl Iterator<Item = usize>, what: &str, of: &str) -> Option<String> {
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    sizes.for_each(|size| *counts.entry(size).or_default() += 1);
    let all: usize = counts.values().sum();
    let groups: Vec<_> = counts.into_iter().rev().collect();
    match groups[..] {
        [] => None,
        [(1, _)] => Some(count(all, what)),
        [(first, number), ref rest @ ..] => {
            let mut text = format!("{} of {}", count(number, what), count(first, of));
            for (size, number) in rest {
                text += &format!(" and {number} of {size}");
            }
            Some(text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_and_hybrid_machines_in_a_line() {
        let text = |form: &str| form.parse::<Topology>().unwrap().summary();
        assert_eq!(
            text("2 sockets x 2 nodes x 4 modules x 2 cores"),
            "2 sockets, 4 NUMA nodes, 16 modules of 2 cores, 32 cores, 32 pCPUs"
        );
        assert_eq!(
            text("6 cores x 2 threads + 8 cores at 614; offline 3"),
            "1 socket, 1 NUMA node, 6 cores of 2 threads and 8 of 1, 20 pCPUs (offline: 3; \
             capacity 1024: 0-11; capacity 614: 12-19)"
        );
        assert_eq!(text("1 core"), "1 socket, 1 NUMA node, 1 core, 1 pCPU");
    }
}
