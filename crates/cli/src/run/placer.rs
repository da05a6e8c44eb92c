//! `--place` while the program runs: when the team comes to fit on cores of its own, its
//! threads leave the siblings; when it no longer does, they may use all CPUs again.

use std::collections::BTreeSet;

use corefit_core::place::{Core, spread};
use corefit_core::{CpuSet, Cpus};
use corefit_linux::sample;

/// Sets the affinity of the program's threads; never of threads that chose their own.
pub(crate) struct Placer<'a> {
    cores: &'a [Core],
    allowed: &'a CpuSet,
    ours: BTreeSet<CpuSet>,
    now: Option<CpuSet>,
    placed: BTreeSet<u32>,
}

impl<'a> Placer<'a> {
    /// Of a program that was launched on these CPUs, if on others than all that are allowed.
    pub(crate) fn new(cores: &'a [Core], allowed: &'a CpuSet, launched: Option<&CpuSet>) -> Placer<'a> {
        let ours = [allowed].into_iter().chain(launched).cloned().collect();
        Placer { cores, allowed, ours, now: None, placed: BTreeSet::new() }
    }

    /// Places the threads for a team of this size.
    pub(crate) fn follow(&mut self, team: u32, tids: impl Iterator<Item = u32>) {
        let set = spread(self.cores, self.allowed, team, |_| Cpus(0.0));
        if self.now.as_ref() != Some(&set) {
            self.placed.clear();
        }
        self.ours.insert(set.clone());
        for tid in tids {
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

#[cfg(test)]
mod tests {
    use std::iter::once;

    use super::*;

    #[test]
    fn who_was_launched_on_a_core_of_his_own_leaves_it_when_the_team_no_longer_fits() {
        let allowed = sample::affinity(std::process::id()).unwrap();
        let few: CpuSet = allowed.iter().take(1).collect();
        // As of a machine with all CPUs on one core: a team of two does not fit.
        let cores = [allowed.clone()];
        // This test's own thread plays the program's.
        let me = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        let has = || sample::affinity(me).unwrap();
        sample::set_affinity(me, &few);
        let mut placer = Placer::new(&cores, &allowed, Some(&few));
        placer.follow(2, once(me));
        assert_eq!(has(), allowed);
        placer.follow(1, once(me));
        assert_eq!(has(), few);
        // A set of his own making stays.
        Placer::new(&cores, &allowed, None).follow(2, once(me));
        assert_eq!(has(), few);
        sample::set_affinity(me, &allowed);
    }
}
