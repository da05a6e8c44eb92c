//! `--place` while the program runs: when the team comes to fit on cores of its own, its
//! threads leave the siblings; when it no longer does, they may use all CPUs again.

use std::collections::BTreeSet;

use corefit_core::place::{Core, spread};
use corefit_core::{CpuSet, Cpus};
use corefit_linux::sample::{self, TreeSampler};

/// Sets the affinity of the program's threads; never of threads that chose their own.
pub(crate) struct Placer<'a> {
    cores: &'a [Core],
    allowed: &'a CpuSet,
    ours: BTreeSet<CpuSet>,
    now: Option<CpuSet>,
    placed: BTreeSet<u32>,
}

impl<'a> Placer<'a> {
    pub(crate) fn new(cores: &'a [Core], allowed: &'a CpuSet) -> Placer<'a> {
        Placer { cores, allowed, ours: BTreeSet::from([allowed.clone()]), now: None, placed: BTreeSet::new() }
    }

    /// Places the threads for a team of this size.
    pub(crate) fn follow(&mut self, team: u32, sampler: &TreeSampler) {
        let set = spread(self.cores, self.allowed, team, |_| Cpus(0.0));
        if self.now.as_ref() != Some(&set) {
            self.placed.clear();
        }
        self.ours.insert(set.clone());
        for tid in sampler.tids() {
            // New threads inherit; only what has not been looked at for this set is.
            if self.placed.insert(tid)
                && sample::affinity(tid).is_some_and(|has| has != set && self.ours.contains(&has))
            {
                sample::set_affinity(tid, &set);
            }
        }
        self.now = Some(set);
    }
}
