//! Sockets, nodes, caches, cores: which pCPUs share what, and how fast each is.
//!
//! ```text
//! speed = 1 / (1 + (1/beside - 1) * busy siblings / siblings         decoder (P4 III-F, Figure 16)
//!                + (1/fpu - 1) * siblings that use the FPU / siblings)
//!       * (1 - (1 - without_cache) * lost)                            last-level cache
//!       * remote, on a node without the VM's memory
//!       * pace, where a governor makes idling pCPUs slower
//! lost  = 1 - min(1, size of the cache / footprints of all that run on it)
//! ```
//!
//! A pCPU counts as busy while a vCPU is on it, whether it works or spins. Speeds are parts of 1024.
//! Known gaps: a spinning sibling slows as much as a working one; caches fill at once.

use corefit_core::{CpuId, CpuSet};

use crate::spec::{Class, Hardware};

/// Where a pCPU is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) core: u32,
    pub(crate) node: u32,
    pub(crate) socket: u32,
}

/// A host's shape, and how fast its pCPUs are.
#[derive(Clone, Debug)]
pub(crate) struct Topology {
    pub(crate) places: Vec<Place>,
    /// pCPUs of each core.
    pub(crate) siblings: Vec<Vec<u32>>,
    /// Busy pCPUs of each core, and those of them that use the FPU.
    pub(crate) busy: Vec<u32>,
    floating: Vec<u32>,
    threads: u32,
    cache_kib: u32,
    /// Of those that run, by node.
    footprints: Vec<u64>,
    classes: Vec<Speeds>,
    /// How fast each pCPU is now, as a part of its full speed.
    pub(crate) pace: Vec<f64>,
    /// Whether some class minds its siblings, or the cache.
    pub(crate) minds_siblings: bool,
    pub(crate) minds_cache: bool,
}

#[derive(Clone, Debug)]
struct Speeds {
    /// By busy siblings, and those that use the FPU.
    beside: Vec<Vec<f64>>,
    floats: bool,
    footprint_kib: u32,
    without_cache: f64,
    remote: f64,
}

/// Where a pCPU of a host is.
fn place(hardware: &Hardware, pcpu: u32) -> Place {
    let Hardware { nodes, cores, threads, sockets, adjacent, .. } = *hardware;
    let core = if adjacent { pcpu / threads } else { pcpu % (sockets * nodes * cores) };
    let node = core / cores;
    Place { core, node, socket: node / nodes }
}

/// The pCPUs of some nodes.
pub(crate) fn pcpus_of(hardware: &Hardware, nodes: &CpuSet) -> CpuSet {
    let inside = |p: &u32| nodes.contains(CpuId(place(hardware, *p).node));
    (0..hardware.pcpus()).filter(inside).map(CpuId).collect()
}

impl Topology {
    pub(crate) fn new(hardware: &Hardware, classes: &[Class]) -> Topology {
        let Hardware { nodes, cores, threads, sockets, cache_kib, .. } = *hardware;
        let all_cores = sockets * nodes * cores;
        let places: Vec<Place> = (0..hardware.pcpus()).map(|pcpu| place(hardware, pcpu)).collect();
        let mut siblings = vec![Vec::new(); all_cores as usize];
        for (pcpu, place) in (0..).zip(&places) {
            siblings[place.core as usize].push(pcpu);
        }
        let speeds = |class: &Class| {
            let others = f64::from(threads.max(2) - 1);
            let (decoder, fpu) = (1.0 / class.beside_sibling - 1.0, 1.0 / class.fpu - 1.0);
            let slower = |each: f64, siblings: u32| each * f64::from(siblings) / others;
            let beside = |busy: u32| {
                let with = |floating| 1.0 / (1.0 + slower(decoder, busy) + slower(fpu, floating));
                (0..threads).map(with).collect()
            };
            Speeds {
                beside: (0..threads).map(beside).collect(),
                floats: class.fpu < 1.0,
                footprint_kib: class.footprint_kib,
                without_cache: class.without_cache,
                remote: class.remote,
            }
        };
        Topology {
            busy: vec![0; siblings.len()],
            floating: vec![0; siblings.len()],
            siblings,
            pace: vec![1.0; places.len()],
            places,
            threads,
            cache_kib,
            footprints: vec![0; (sockets * nodes) as usize],
            classes: classes.iter().map(speeds).collect(),
            minds_siblings: threads > 1 && classes.iter().any(|c| c.beside_sibling < 1.0 || c.fpu < 1.0),
            minds_cache: classes.iter().any(|c| c.footprint_kib > 0 && c.without_cache < 1.0),
        }
    }

    /// Work of a class begins or ends to fill the cache that a pCPU has, and to use its FPU.
    pub(crate) fn fill(&mut self, pcpu: u32, class: usize, on: bool) {
        let Place { core, node, .. } = self.places[pcpu as usize];
        let node = node as usize;
        if self.classes[class].floats {
            let floating = &mut self.floating[core as usize];
            *floating = if on { *floating + 1 } else { *floating - 1 };
        }
        let kib = u64::from(self.classes[class].footprint_kib);
        let sum = &mut self.footprints[node];
        *sum = if on { *sum + kib } else { sum.saturating_sub(kib) };
    }

    /// How fast a pCPU does work of a class, in parts of 1024; it is counted as busy already.
    pub(crate) fn rate(&self, pcpu: u32, class: usize, remote: bool) -> u32 {
        let place = &self.places[pcpu as usize];
        let class = &self.classes[class];
        let busy = self.busy[place.core as usize].clamp(1, self.threads) - 1;
        let floating = self.floating[place.core as usize].clamp(1, self.threads) - 1;
        let mut speed = class.beside[busy as usize][if class.floats { floating as usize } else { 0 }];
        speed *= 1.0 - (1.0 - class.without_cache) * (1.0 - self.kept(place.node));
        if remote {
            speed *= class.remote;
        }
        speed *= self.pace[pcpu as usize];
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1024")]
        let rate = (speed * 1024.0).round() as u32;
        rate.max(1)
    }

    /// What of their footprints those that run on a node have in its cache, 0 to 1.
    fn kept(&self, node: u32) -> f64 {
        let filled = self.footprints[node as usize];
        let kept = f64::from(self.cache_kib) / filled as f64;
        if filled > u64::from(self.cache_kib) { kept } else { 1.0 }
    }

    /// What of its time work of a class waits on a pCPU for lines that are not in the cache, in parts of 1024.
    pub(crate) fn missing(&self, pcpu: u32, class: usize) -> u32 {
        let lost = 1.0 - self.kept(self.places[pcpu as usize].node);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1024")]
        let parts = ((1.0 - self.classes[class].without_cache) * lost * 1024.0).round() as u32;
        parts
    }

    /// What work of a class that runs on a pCPU holds of its cache, bytes.
    pub(crate) fn held(&self, pcpu: u32, class: usize) -> u64 {
        let kept = self.kept(self.places[pcpu as usize].node);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative")]
        let bytes = (f64::from(self.classes[class].footprint_kib) * 1024.0 * kept).round() as u64;
        bytes
    }

    /// How far two pCPUs are apart: 0 itself, 1 same cache, 2 another.
    pub(crate) fn distance(&self, a: u32, b: u32) -> u8 {
        match (a == b, self.places[a as usize].node == self.places[b as usize].node) {
            (true, _) => 0,
            (_, true) => 1,
            _ => 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opteron() -> Hardware {
        Hardware { sockets: 2, nodes: 2, cores: 4, threads: 2, adjacent: true, cache_kib: 6144 }
    }

    #[test]
    fn an_opteron_has_sixteen_modules_of_neighbours() {
        let topology = Topology::new(&opteron(), &[Class::plain("any")]);
        assert_eq!(topology.siblings.len(), 16);
        assert_eq!(topology.siblings[3], [6, 7]);
        assert_eq!(topology.places[17], Place { core: 8, node: 2, socket: 1 });
        let apart = Topology::new(&Hardware { adjacent: false, ..opteron() }, &[Class::plain("any")]);
        assert_eq!(apart.siblings[3], [3, 19]);
    }

    #[test]
    fn the_fpu_is_shared_by_those_that_use_it() {
        let float = Class { fpu: 0.5, ..Class::plain("float") };
        let mut topology = Topology::new(&opteron(), &[float, Class::plain("whole numbers")]);
        topology.busy[0] = 2;
        topology.fill(0, 0, true);
        topology.fill(1, 1, true);
        assert_eq!((topology.rate(0, 0, false), topology.rate(1, 1, false)), (1024, 1024));
        topology.fill(1, 1, false);
        topology.fill(1, 0, true);
        assert_eq!(topology.rate(0, 0, false), 512);
    }

    #[test]
    fn a_busy_sibling_a_full_cache_and_remote_memory_slow_down() {
        let class = Class {
            beside_sibling: 0.5,
            footprint_kib: 4096,
            without_cache: 0.5,
            remote: 0.75,
            ..Class::plain("x")
        };
        let mut topology = Topology::new(&opteron(), &[class]);
        topology.busy[0] = 1;
        topology.fill(0, 0, true);
        assert_eq!((topology.rate(0, 0, false), topology.rate(0, 0, true)), (1024, 768));
        topology.busy[0] = 2;
        assert_eq!(topology.rate(0, 0, false), 512);
        topology.fill(1, 0, true); // 8 MiB in 6: a quarter is lost
        assert_eq!(topology.rate(0, 0, false), 448);
        topology.fill(1, 0, false);
        assert_eq!(topology.rate(0, 0, false), 512);
    }
}
