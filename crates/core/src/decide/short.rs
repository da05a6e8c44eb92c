//! Who gets less than it should, by what it uses: numbers of vCPUs alone enforce no grant where more of them stay than there are
//! pCPUs.

use std::time::Duration;

use crate::Time;
use crate::machine::VmEstimate;

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
    /// pCPU-seconds used meanwhile, and seconds.
    used: f64,
    over: f64,
}

impl Short {
    /// A look: whether it gets less. True once it has for long.
    pub(super) fn look(&mut self, less: bool, vm: &VmEstimate, at: Time, over: Duration) -> bool {
        if !less {
            *self = Short::default();
            return false;
        }
        let since = *self.since.get_or_insert(at);
        if let Some(used) = vm.activity.used {
            self.used += used.0 * over.as_secs_f64();
            self.over += over.as_secs_f64();
        }
        at.since(since) >= STARVES
    }

    /// Whether it had for long at the last look.
    pub(super) fn starves(&self, at: Time) -> bool {
        self.since.is_some_and(|since| at.since(since) >= STARVES)
    }

    /// pCPUs that it used since then, on average.
    pub(super) fn uses(&self) -> Option<f64> {
        (self.over > 0.0).then(|| self.used / self.over)
    }
}
