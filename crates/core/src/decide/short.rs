//! Who gets less than it should, by what it uses: numbers of vCPUs alone enforce no grant where more of them stay than there are
//! pCPUs.

use std::time::Duration;

use crate::machine::VmEstimate;
use crate::{Cpus, Time};

/// Who has less than it asks for, or should get, for so long, is said to starve.
const STARVES: Duration = Duration::from_secs(30);
/// Less than this part of what it should get, and so many pCPUs less, is more than chance. Ours.
const PART: f64 = 0.9;
const LEAST: f64 = 0.1;
/// Of what it misses it waits for this part at least, the rest is chance: a kernel adds what a vCPU waited when that gets on a pCPU, so in
/// a look the sum is off by a timeslice of each other one. Ours.
const MOST: f64 = 0.5;

/// Whether a VM used less than so many pCPUs, for it waited.
pub(super) fn below(vm: &VmEstimate, due: f64) -> bool {
    let (Some(used), Some(waiting)) = (vm.activity.used, vm.activity.waiting) else { return false };
    let missing = due - used.0;
    let waits = waiting.0 >= (MOST * missing).max((1.0 - PART) * due);
    used.0 < PART * due && missing >= LEAST && waits
}

/// How one fares that gets less.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Short {
    since: Option<Time>,
    /// pCPU-seconds wanted, granted and used meanwhile, with the seconds in which that is known.
    wanted: (f64, f64),
    granted: (f64, f64),
    used: (f64, f64),
}

impl Short {
    /// A look: whether it gets less than the pCPUs that it wants, of which so many were granted. True once it has for long.
    pub(super) fn look(
        &mut self,
        less: bool,
        (wants, granted): (u32, f64),
        vm: &VmEstimate,
        (at, over): (Time, Duration),
    ) -> bool {
        if !less {
            *self = Short::default();
            return false;
        }
        let since = *self.since.get_or_insert(at);
        let over = over.as_secs_f64();
        self.wanted = (self.wanted.0 + f64::from(wants) * over, self.wanted.1 + over);
        self.granted = (self.granted.0 + granted * over, self.granted.1 + over);
        if let Some(used) = vm.activity.used {
            self.used = (self.used.0 + used.0 * over, self.used.1 + over);
        }
        at.since(since) >= STARVES
    }

    /// It is to get another number of pCPUs: since when it gets less stays.
    pub(super) fn anew(&mut self) {
        *self = Short { since: self.since, ..Short::default() };
    }

    /// Whether it had for long at the last look.
    pub(super) fn starves(&self, at: Time) -> bool {
        self.since.is_some_and(|since| at.since(since) >= STARVES)
    }

    /// pCPUs that it wanted, was granted and used since then: means, which are of the same time.
    pub(super) fn fared(&self) -> (Cpus, Cpus, Option<Cpus>) {
        let mean = |(sum, over): (f64, f64)| (over > 0.0).then(|| Cpus(sum / over));
        let known = |sum| mean(sum).unwrap_or_default();
        (known(self.wanted), known(self.granted), mean(self.used))
    }
}
