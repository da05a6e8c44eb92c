//! A machine as boxes in boxes, to draw it.

use super::{Cache, Part, Topology};
use crate::CpuSet;

/// A box: sockets, nodes and caches that hold the same pCPUs, and what is in them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Branch {
    /// Such as `socket 0`, `node 0 (16 GiB)`, `L3 8 MiB`; none at the top.
    pub labels: Vec<String>,
    /// All its pCPUs.
    pub pcpus: CpuSet,
    /// Boxes in it.
    pub branches: Vec<Branch>,
    /// Modules and cores in no box of it.
    pub units: Vec<Unit>,
}

/// A module or core.
#[derive(Clone, Debug, PartialEq)]
pub struct Unit {
    /// Its cores; one, unless it is a module.
    pub cores: Vec<CpuSet>,
}

impl Topology {
    /// The machine as a tree. A level that cuts through another (which no real machine has) is left out, and so
    /// are caches of one unit.
    #[must_use]
    pub fn tree(&self) -> Branch {
        let mut boxes: Vec<(CpuSet, String)> = Vec::new();
        boxes.extend(self.sockets.iter().map(|part| (part.pcpus.clone(), label("socket", part))));
        boxes.extend(
            self.nodes.iter().filter(|p| !p.pcpus.is_empty()).map(|p| (p.pcpus.clone(), label("node", p))),
        );
        let shared = self.caches.iter().filter(|cache| !self.is_of_one_unit(&cache.pcpus));
        boxes.extend(shared.map(|cache| (cache.pcpus.clone(), cache_label(cache))));
        // From the outside in; the sort is stable, so that of equal ones the socket comes first.
        boxes.sort_by_key(|(pcpus, _)| std::cmp::Reverse(pcpus.len()));
        let mut top = Branch { pcpus: self.pcpus.clone(), ..Branch::default() };
        for (pcpus, label) in boxes {
            top.put(pcpus, label);
        }
        for unit in self.drawn_units() {
            let all = unit.cores.iter().fold(CpuSet::default(), |all, core| all.union(core));
            top.leaf(&all, unit);
        }
        top.sort();
        top
    }

    /// Nodes with memory and no pCPUs.
    pub fn memory_only(&self) -> impl Iterator<Item = &Part> {
        self.nodes.iter().filter(|part| part.pcpus.is_empty())
    }

    fn drawn_units(&self) -> Vec<Unit> {
        let mut left = self.pcpus.clone();
        let mut units = Vec::new();
        for set in self.modules.iter().chain(&self.cores) {
            if !set.is_within(&left) {
                continue;
            }
            left = left.difference(set);
            let mut inside = set.clone();
            let mut cores: Vec<CpuSet> =
                self.cores.iter().filter(|core| core.is_within(set)).cloned().collect();
            cores.iter().for_each(|core| inside = inside.difference(core));
            cores.extend(inside.iter().map(|cpu| CpuSet::from_iter([cpu])));
            units.push(Unit { cores });
        }
        units.extend(left.iter().map(|cpu| Unit { cores: vec![CpuSet::from_iter([cpu])] }));
        units
    }
}

impl Branch {
    fn put(&mut self, pcpus: CpuSet, label: String) {
        if pcpus == self.pcpus && !self.labels.is_empty() {
            self.labels.push(label);
        } else if let Some(inner) = self.branches.iter_mut().find(|inner| pcpus.is_within(&inner.pcpus)) {
            inner.put(pcpus, label);
        } else if !self.branches.iter().any(|inner| inner.pcpus.meets(&pcpus)) {
            self.branches.push(Branch { labels: vec![label], pcpus, ..Branch::default() });
        }
    }

    fn leaf(&mut self, all: &CpuSet, unit: Unit) {
        match self.branches.iter_mut().find(|inner| all.is_within(&inner.pcpus)) {
            Some(inner) => inner.leaf(all, unit),
            None => self.units.push(unit),
        }
    }

    fn sort(&mut self) {
        self.branches.sort_by_key(|branch| branch.pcpus.iter().next());
        self.units.sort_by_key(|unit| unit.cores.first().and_then(|core| core.iter().next()));
        self.branches.iter_mut().for_each(Branch::sort);
    }
}

/// `node 0 (16 GiB)`.
fn label(what: &str, part: &Part) -> String {
    let mut text = part.id.map_or(what.to_owned(), |id| format!("{what} {id}"));
    if let Some(kib) = part.memory_kib.filter(|kib| *kib > 0) {
        text += &format!(" ({})", size(kib));
    }
    text
}

fn cache_label(cache: &Cache) -> String {
    cache.size_kib.map_or(format!("L{}", cache.level), |kib| format!("L{} {}", cache.level, size(kib)))
}

/// `512 KiB`, `1.5 MiB`, `16 GiB`.
#[must_use]
pub fn size(kib: u64) -> String {
    let text = |unit: u64, name: &str| format!("{:.1} {name}", kib as f64 / unit as f64).replace(".0 ", " ");
    match kib {
        0..1024 => format!("{kib} KiB"),
        1024..1_048_576 => text(1024, "MiB"),
        _ => text(1 << 20, "GiB"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_of_the_same_pcpus_are_one_and_others_lie_in_each_other() {
        let tree = "1 socket x 2 l3 x 2 cores x 2 threads".parse::<Topology>().unwrap().tree();
        assert_eq!(tree.branches.len(), 1);
        let socket = &tree.branches[0];
        assert_eq!(socket.labels, ["socket 0", "node 0"]);
        assert_eq!(socket.branches.iter().map(|b| b.labels.join("+")).collect::<Vec<_>>(), ["L3", "L3"]);
        assert_eq!(socket.branches[1].units.len(), 2);
        assert_eq!(socket.branches[1].units[0].cores[0].to_string(), "4-5");
    }

    #[test]
    fn modules_hold_their_cores_and_lone_pcpus_are_units() {
        let opteron: Topology = "1 socket x 2 modules x 2 cores".parse().unwrap();
        let units = &opteron.tree().branches[0].units;
        assert_eq!((units.len(), units[0].cores.len()), (2, 2));
        let bare = Topology { pcpus: CpuSet::first(3), ..Topology::default() };
        assert_eq!(bare.tree().units.len(), 3);
    }

    #[test]
    fn sizes_have_the_unit_that_suits_them() {
        let shown: Vec<String> = [512, 1536, 36_864, 16 << 20].map(size).into();
        assert_eq!(shown, ["512 KiB", "1.5 MiB", "36 MiB", "16 GiB"]);
    }
}
