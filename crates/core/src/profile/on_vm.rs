//! A prediction for one machine or VM: its speedup, where the CPU time goes, and what it lies between.

use serde::{Deserialize, Serialize};

use super::contention::Slowing;
use super::features::potential;
use super::manner::Manner;
use super::replay::{Division, Vm, replay};
use super::steps::Step;

/// What switching a vCPU out and in again takes from its VM, ns: halt 3,000, kick 1,500, interrupt 1,000 and switch
/// 2,000 (`corefit_sim`'s costs: orders of magnitude of published ones, not measured here).
const SWITCH_OUT_NS: f64 = 7_500.0;
/// Contiguous parts of the run whose differences tell how certain a mean is.
const BLOCKS: usize = 5;
/// What P1 lost with frequent blocking beside three busy VMs (III-B): means on its VM over those on its machine of types
/// 2 and 3. Rescheduling delay is not replayed; so much it was there.
const DELAYED: [(u8, f64); 2] = [(2, 3.0 / 6.5), (3, 5.0 / 8.7)];

/// What the model leaves out, and the machine changes between two runs: by so much a range is wider at both ends. 1.9 times
/// the median errors of `corefit bench predict` on 2 CPUs (8 to 13 %), as of errors that scatter normally 4 of 5 are less.
const LEFT_OUT: f64 = 0.25;

/// A number and what it lies between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Range {
    /// The estimate.
    pub is: f64,
    /// At least, with the reservations told.
    pub low: f64,
    /// At most.
    pub high: f64,
}

impl Range {
    fn times(self, factor: f64) -> Range {
        Range { is: self.is * factor, low: self.low * factor, high: self.high * factor }
    }
}

/// A prediction (P1 II-B). `speedup = N - N (switching + slowed + unused)`, as parts of the timeslices allocated; P1 has no
/// `slowed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OnVm {
    /// Where.
    pub vm: Vm,
    /// Against one vCPU of the same share.
    pub speedup: Range,
    /// The same work in dedicated cores: speedup times share.
    pub dedicated_cores: Range,
    /// Parts of the CPU time allocated, which are 1 in all: used for work,
    pub efficiency: f64,
    /// used up by blocking and waking (the program's time in the kernel, at most 50 us each), and on a VM by switching vCPUs
    /// out,
    pub switching: f64,
    /// taken more than by one thread alone, because threads slow each other (what switching takes is not slowed),
    pub slowed: f64,
    /// and not used; below 0 beside neighbours where more than the share is had.
    pub unused: f64,
    /// P1's potential (IV-A): the mean over the periods of a machine of its own of the part of the timeslices that the work
    /// in them would fill, if any vCPU could do it. Where it leaves work for the next period, a VM may use more of its time.
    pub potential: f64,
}

/// The steps that predictions replay.
pub(super) struct Steps {
    pub(super) is: Vec<Step>,
    /// The extremes: even, and fork-join.
    pub(super) extremes: [Vec<Step>; 2],
    pub(super) voluntary: u64,
    pub(super) took_ns: f64,
    pub(super) kind: u8,
    /// Part of the CPU time that blocking and waking took: it is no work.
    pub(super) lost: f64,
    /// How threads slow each other: the estimate, least and most.
    pub(super) slowing: [Slowing; 3],
}

impl Steps {
    pub(super) fn on(&self, vm: Vm) -> OnVm {
        let switches = self.voluntary as f64;
        let estimate = self.slowing[0];
        let manner = self.manner();
        let speedup = |steps: &[Step], part: f64| {
            self.speedup(steps, &vm, overhead(&vm, switches * part), estimate, manner)
        };
        let is = speedup(&self.is, 1.0);
        let mut all = vec![is];
        all.extend(self.extremes.iter().map(|steps| speedup(steps, 1.0)));
        all.extend(self.slowing.map(|by| self.speedup(&self.is, &vm, overhead(&vm, switches), by, manner)));
        // Beside neighbours there is more to be had than one's share.
        let mut most_cores = vm.vcpus as f64;
        if let Division::Weighted { .. } = vm.division {
            let manners = manner.extremes();
            all.extend(manners.map(|manner| self.speedup(&self.is, &vm, 0.0, estimate, manner)));
            most_cores /= vm.share;
        }
        let blocks: Vec<f64> = self.blocks().map(|(steps, part)| speedup(steps, part)).collect();
        let spread = 2.0 * standard_error(&blocks);
        let least = all.iter().copied().fold(f64::INFINITY, f64::min);
        let most = all.iter().copied().fold(0.0, f64::max);
        let cores = vm.vcpus as f64;
        let mut low = (least - spread).max(0.0);
        let delayed = DELAYED.iter().find(|(kind, _)| *kind == self.kind);
        if let Some((_, ratio)) = delayed.filter(|_| vm.share < 1.0 && vm.division == Division::PerVcpu) {
            low = low.min(self.speedup(&self.is, &Vm::dedicated(vm.vcpus), 0.0, estimate, manner) * ratio);
        }
        // One core is what speedups are against.
        let left_out = if vm.vcpus == 1 && vm.share == 1.0 { 0.0 } else { LEFT_OUT };
        let high = ((most + spread) * (1.0 + left_out)).min(most_cores.max(is));
        let speedup = Range { is, low: low * (1.0 - left_out), high };
        let efficiency = is / cores;
        let work: f64 = estimate.on(&self.is, &vm).iter().map(Step::total).sum();
        let alone = estimate.alone(&self.is);
        let useful = alone * (1.0 - self.lost);
        let part = |time: f64| if useful > 0.0 { time * efficiency / useful } else { 0.0 };
        let switching = part(overhead(&vm, switches) + work * self.lost);
        let slowed = part((work - alone).max(0.0) * (1.0 - self.lost));
        let weighted = matches!(vm.division, Division::Weighted { .. });
        let unused = 1.0 - efficiency - switching - slowed;
        OnVm {
            speedup,
            dedicated_cores: speedup.times(vm.share),
            efficiency,
            switching,
            slowed,
            unused: if weighted { unused } else { unused.max(0.0) },
            potential: potential_on(&self.is, &vm),
            vm,
        }
    }

    /// Of some steps, which switching vCPUs out takes so much CPU time beside.
    fn speedup(&self, steps: &[Step], vm: &Vm, overhead: f64, slowing: Slowing, manner: Manner) -> f64 {
        let slowed = slowing.on(steps, vm);
        let mut outcome = replay(&slowed, vm);
        if let Division::Weighted { rivals } = vm.division {
            outcome.took = manner.took(&slowed, vm, rivals);
        }
        let cores = vm.vcpus as f64 * vm.share;
        // A run may end before the last period does, with all of its timeslices: over many runs that is no gain.
        let weighted = matches!(vm.division, Division::Weighted { .. });
        let least = if weighted { 0.0 } else { outcome.work / cores };
        let took = outcome.took.max(least) + overhead / cores;
        if took > 0.0 { slowing.alone(steps) * (1.0 - self.lost) / vm.share / took } else { 0.0 }
    }

    /// How its threads get on beside neighbours.
    fn manner(&self) -> Manner {
        let work: f64 = self.is.iter().map(Step::total).sum();
        let threads = self.is.first().map_or(1, |step| step.work.len());
        let one_cpu = if work > 0.0 { self.slowing[0].of_its_own(&self.is) / work } else { 1.0 };
        Manner::of(threads, work / self.voluntary.max(1) as f64, one_cpu)
    }

    fn blocks(&self) -> impl Iterator<Item = (&[Step], f64)> {
        let size = self.is.len() / BLOCKS;
        // Parts too short for a period tell nothing.
        let enough = if size >= 20 { BLOCKS } else { 0 };
        (0..enough).map(move |i| (&self.is[i * size..(i + 1) * size], 1.0 / BLOCKS as f64))
    }
}

/// The potential of a VM with as many vCPUs as threads is P1's; with fewer, the threads cannot use more.
pub(super) fn potential_on(steps: &[Step], vm: &Vm) -> f64 {
    let threads = steps.first().map_or(1, |step| step.work.len()).max(1);
    let portion = vm.share * vm.vcpus as f64 / threads as f64;
    potential(steps, portion.min(1.0), vm.period_ns)
}

fn overhead(vm: &Vm, switches: f64) -> f64 {
    let virtual_cpus = vm.division == Division::PerVcpu && vm.share < 1.0;
    if virtual_cpus { switches * SWITCH_OUT_NS } else { 0.0 }
}

fn standard_error(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    if n < 2.0 {
        return 0.0;
    }
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0);
    (variance / n).sqrt()
}

/// The efficiency on the machine as it was: what ran, of what the cores could have run.
pub(super) fn here(steps: &Steps, cores: usize, run: f64) -> OnVm {
    let Steps { took_ns: took, lost, slowing: [slowing, ..], is, .. } = steps;
    let (took, lost) = (*took, *lost);
    let vm = Vm::dedicated(cores.max(1));
    let work: f64 = is.iter().map(Step::total).sum();
    let alone = if work > 0.0 { slowing.alone(is) / work } else { 1.0 };
    let speedup = if took > 0.0 { run * (1.0 - lost) * alone / took } else { 0.0 };
    let speedup = Range { is: speedup, low: speedup, high: speedup };
    let efficiency = speedup.is / cores.max(1) as f64;
    let switching = if lost < 1.0 { efficiency / alone * lost / (1.0 - lost) } else { 0.0 };
    let slowed = efficiency * (1.0 / alone - 1.0);
    OnVm {
        speedup,
        dedicated_cores: speedup,
        efficiency,
        switching,
        slowed,
        unused: (1.0 - efficiency - switching - slowed).max(0.0),
        potential: efficiency.min(1.0),
        vm,
    }
}
