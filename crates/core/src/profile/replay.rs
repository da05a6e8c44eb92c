//! How long the steps of a program take on a machine or VM that gives it less than a core for each thread.
//!
//! On VMs with timeslices (P1 II-A), each vCPU may run for its timeslice in each allocation period; what is left of it at
//! the end is lost. A thread that did not stop in a step, nor in the one before, goes on as soon as its own vCPU
//! may; one that had stopped waited for others, and goes on when the slowest of them has come so far.

use serde::{Deserialize, Serialize};

use super::manner::Manner;
use super::steps::Step;

/// How a VM's CPU time comes to its vCPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Division {
    /// Each vCPU has the same timeslice, `share x period` (P1; libvirt's `vcpu_quota`).
    PerVcpu,
    /// All vCPUs draw on one quota, `vcpus x share x period` (a control group's `cpu.max`).
    Pooled,
    /// No quota, but busy neighbours on all CPUs with so many times its weight: work-conserving. A group's weight
    /// goes to the vCPUs that run (Linux' group scheduling), so fewer active ones get more each. As many hogs as vCPUs: with
    /// `a` of `n` vCPUs active, each has 1/a of our weight against 1/n of theirs. [`replay`] knows nothing of turns (see `manner`).
    Weighted {
        /// Their weight over ours.
        rivals: f64,
    },
}

/// A machine or VM to replay on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Vm {
    /// vCPUs, or cores; 1 or more.
    pub vcpus: usize,
    /// Part of a pCPU for each vCPU, above 0, at most 1; beside neighbours of one that is busy with them.
    pub share: f64,
    /// Allocation period, ns.
    pub period_ns: f64,
    /// How it is given out.
    pub division: Division,
}

impl Vm {
    /// So many cores for nobody else.
    #[must_use]
    pub fn dedicated(cores: usize) -> Vm {
        Vm { vcpus: cores, share: 1.0, period_ns: 1e9, division: Division::PerVcpu }
    }

    /// So many cores beside busy neighbours with `rivals` times the weight.
    #[must_use]
    pub fn beside(cores: usize, rivals: f64) -> Vm {
        Vm { share: 1.0 / (1.0 + rivals), division: Division::Weighted { rivals }, ..Vm::dedicated(cores) }
    }
}

/// How a replay went, ns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// From the first step's start to the last one's end.
    pub took: f64,
    /// Work done.
    pub work: f64,
}

/// Replays steps.
#[must_use]
pub fn replay(steps: &[Step], vm: &Vm) -> Outcome {
    let work = steps.iter().map(Step::total).sum();
    let took = match &vm.division {
        _ if vm.share >= 1.0 && !matches!(vm.division, Division::Weighted { .. }) => dedicated(steps, vm),
        Division::PerVcpu => sliced(steps, vm, &vec![vm.share * vm.period_ns; vm.vcpus]),
        Division::Pooled => pooled(steps, vm),
        Division::Weighted { rivals } => Manner::spread().took(steps, vm, *rivals),
    };
    Outcome { took, work }
}

fn dedicated(steps: &[Step], vm: &Vm) -> f64 {
    steps.iter().map(|step| step.length(vm.vcpus as f64)).sum()
}

fn pooled(steps: &[Step], vm: &Vm) -> f64 {
    let cores = vm.vcpus as f64;
    let mut meter = Meter::new(vm.period_ns, cores * vm.share * vm.period_ns);
    steps.iter().fold(0.0, |at, step| meter.advance(at, step.total(), step.length(cores)))
}

/// A vCPU pauses in a step if it is idle for more than this part of it.
const PAUSE: f64 = 0.05;

fn sliced(steps: &[Step], vm: &Vm, timeslices: &[f64]) -> f64 {
    let vcpus = vm.vcpus.min(timeslices.len()).max(1);
    let mut meters: Vec<Meter> = timeslices.iter().map(|slice| Meter::new(vm.period_ns, *slice)).collect();
    let mut at = vec![0.0_f64; vcpus];
    let mut paused = vec![true; vcpus];
    let mut all = 0.0_f64;
    for step in steps {
        let loads = loads(&step.work, vcpus);
        let length = loads.iter().copied().fold(step.length(vcpus as f64), f64::max);
        let (before, mut driven) = (all, false);
        for vcpu in 0..vcpus {
            let load = loads[vcpu];
            let pauses = length - load > PAUSE * length;
            if load > 0.0 {
                let start = if pauses || paused[vcpu] { before } else { at[vcpu] };
                at[vcpu] = meters[vcpu].advance(start, load, load);
                all = all.max(at[vcpu]);
                driven |= !pauses;
            }
            paused[vcpu] = pauses;
        }
        if !driven {
            all = all.max(before + length);
        }
    }
    all
}

/// Work of each vCPU: a thread each, or, where there are more threads, the largest to the least loaded.
fn loads(work: &[f64], vcpus: usize) -> Vec<f64> {
    let mut loads = vec![0.0; vcpus];
    if work.len() <= vcpus {
        loads[..work.len()].copy_from_slice(work);
        return loads;
    }
    let mut sorted = work.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    for work in sorted {
        if let Some(least) = loads.iter_mut().min_by(|a, b| a.total_cmp(b)) {
            *least += work;
        }
    }
    loads
}

/// Less than a thousandth of a ns is nothing.
const NOTHING: f64 = 1e-3;

/// Counts what is left of a timeslice.
struct Meter {
    period: f64,
    timeslice: f64,
    /// Number of the period, and what was used in it.
    number: f64,
    used: f64,
}

impl Meter {
    fn new(period: f64, timeslice: f64) -> Meter {
        Meter { period, timeslice, number: 0.0, used: 0.0 }
    }

    /// When `work`, spread evenly over `length`, is done if begun at `start`.
    fn advance(&mut self, start: f64, work: f64, length: f64) -> f64 {
        if work <= 0.0 || self.timeslice <= 0.0 {
            return start + length;
        }
        let (mut at, mut rest, rate) = (start, length, work / length);
        let number = (start / self.period).floor();
        if number > self.number {
            (self.number, self.used) = (number, 0.0);
        }
        loop {
            let end = (self.number + 1.0) * self.period;
            let left = (self.timeslice - self.used).max(0.0) / rate;
            let run = rest.min(left).min((end - at).max(0.0));
            at += run;
            rest -= run;
            self.used += run * rate;
            if rest <= NOTHING {
                return at;
            }
            at = at.max(end);
            (self.number, self.used) = (self.number + 1.0, 0.0);
            // Periods that it fills, all at once.
            let each = (self.timeslice / rate).min(self.period);
            let filled = ((rest - NOTHING) / each).ceil() - 1.0;
            if filled >= 1.0 {
                self.number += filled;
                rest -= filled * each;
                at = self.number * self.period;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::series::Series;
    use super::super::steps::steps;
    use super::*;

    /// Iterations of P1's Figure 6, in slots of a unit: 2 sequential units by `who(iteration)`, then 1 by each of four.
    fn figure_6(who: impl Fn(usize) -> usize) -> Vec<Step> {
        let mut slots: Vec<(f64, Vec<f64>)> = vec![];
        for iteration in 0..400 {
            let mut alone = vec![0.0; 4];
            alone[who(iteration)] = 1.0;
            slots.extend([(1.0, alone.clone()), (1.0, alone), (1.0, vec![1.0; 4])]);
        }
        let slots: Vec<(f64, &[f64])> = slots.iter().map(|(ns, runs)| (*ns, runs.as_slice())).collect();
        steps(&Series::of_runs(&slots), &[0, 1, 2, 3], 1.0)
    }

    /// Against one vCPU with the same share, always busy (P1 II-B).
    fn on(steps: &[Step], vm: &Vm) -> f64 {
        let Outcome { took, work } = replay(steps, vm);
        work / vm.share / took
    }

    fn half(division: Division) -> Vm {
        Vm { vcpus: 4, share: 0.5, period_ns: 12.0, division }
    }

    fn speedup(steps: &[Step], division: Division) -> f64 {
        on(steps, &half(division))
    }

    #[test]
    fn figure_6_is_2_imbalanced_4_balanced_and_4_with_proportional_timeslices() {
        let (imbalanced, balanced) = (figure_6(|_| 0), figure_6(|iteration| iteration % 4));
        let close = |x: f64, to: f64| assert!((x - to).abs() < 0.02, "{x} instead of {to}");
        close(speedup(&imbalanced, Division::PerVcpu), 2.0);
        close(speedup(&balanced, Division::PerVcpu), 4.0);
        let work: f64 = imbalanced.iter().map(Step::total).sum();
        let proportional = sliced(&imbalanced, &half(Division::PerVcpu), &[12.0, 4.0, 4.0, 4.0]);
        close(work / 0.5 / proportional, 4.0);
        // On a machine of its own: Amdahl's 2.
        close(on(&imbalanced, &Vm::dedicated(4)), 2.0);
        // Whoever needs it may have it: 12 units of 24 in half of the period, the machine's 2 being the bound.
        close(speedup(&imbalanced, Division::Pooled), 4.0);
    }

    #[test]
    fn a_fifth_sequential_on_four_cores_is_two_and_a_half() {
        // 1 of 5 units is sequential: 1 unit alone, 1 on each of four.
        let series = Series::of_runs(&[(1.0, &[1.0, 0.0, 0.0, 0.0]), (1.0, &[1.0, 1.0, 1.0, 1.0])]);
        let steps = steps(&series, &[0, 1, 2, 3], 1.0);
        let outcome = replay(&steps, &Vm::dedicated(4));
        assert!((on(&steps, &Vm::dedicated(4)) - 2.5).abs() < 1e-12);
        let efficiency = outcome.work / (4.0 * outcome.took);
        assert!((efficiency - 0.625).abs() < 1e-12);
        assert!((replay(&steps, &Vm::dedicated(2)).took - (1.0 + 2.0)).abs() < 1e-12);
        assert!((replay(&steps, &Vm::dedicated(1)).took - 5.0).abs() < 1e-12);
    }

    #[test]
    fn a_program_that_never_stops_gets_its_whole_share() {
        let slots = vec![(4.0, [4.0, 4.0].as_slice()); 300];
        let steps = steps(&Series::of_runs(&slots), &[0, 1], 1.0);
        for division in [Division::PerVcpu, Division::Pooled] {
            let vm = Vm { vcpus: 2, share: 0.25, period_ns: 24.0, division };
            assert!((on(&steps, &vm) - 2.0).abs() < 0.02, "{:?}", replay(&steps, &vm));
        }
    }

    #[test]
    fn more_threads_than_vcpus_share_them() {
        let slots = vec![(4.0, [4.0; 8].as_slice()); 100];
        let steps = steps(&Series::of_runs(&slots), &[0, 1, 2, 3, 4, 5, 6, 7], 1.0);
        let vm = Vm { vcpus: 4, share: 0.5, period_ns: 24.0, division: Division::PerVcpu };
        assert!((on(&steps, &vm) - 4.0).abs() < 0.05);
    }

    /// As [`Meter::advance`], one period after the other.
    fn period_by_period(meter: &mut Meter, start: f64, work: f64, length: f64) -> f64 {
        let (mut at, mut rest, rate) = (start, length, work / length);
        let number = (start / meter.period).floor();
        if number > meter.number {
            (meter.number, meter.used) = (number, 0.0);
        }
        loop {
            let end = (meter.number + 1.0) * meter.period;
            let left = (meter.timeslice - meter.used).max(0.0) / rate;
            let run = rest.min(left).min((end - at).max(0.0));
            (at, rest, meter.used) = (at + run, rest - run, meter.used + run * rate);
            if rest <= NOTHING {
                return at;
            }
            at = at.max(end);
            (meter.number, meter.used) = (meter.number + 1.0, 0.0);
        }
    }

    #[test]
    fn periods_that_are_skipped_are_as_if_they_had_been_gone_through() {
        let mut seed = 1_u32;
        let mut random = |most: f64| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            most * f64::from(seed >> 8) / f64::from(1_u32 << 24)
        };
        for _ in 0..1000 {
            let (period, timeslice) = (10.0 + random(20.0), 1.0 + random(30.0));
            let [mut one, mut other] = [Meter::new(period, timeslice), Meter::new(period, timeslice)];
            let mut at = 0.0;
            for _ in 0..5 {
                let start = at + random(50.0);
                let length = 0.1 + random(2000.0);
                let work = length * (0.1 + random(3.0));
                at = one.advance(start, work, length);
                let same = period_by_period(&mut other, start, work, length);
                assert!((at - same).abs() < 1e-6, "{at}, not {same}");
                assert!((one.number - other.number).abs() < 0.5 && (one.used - other.used).abs() < 1e-6);
            }
        }
        // A day in periods of a microsecond.
        let end = Meter::new(1e3, 500.0).advance(0.0, 86_400e9, 86_400e9);
        assert!((end / 172_800e9 - 1.0).abs() < 1e-9, "{end}");
    }

    #[test]
    fn beside_busy_neighbours_fewer_active_vcpus_get_more_each() {
        let alone = steps(&Series::of_runs(&[(10.0, &[10.0, 0.0])]), &[0, 1], 1.0);
        let both = steps(&Series::of_runs(&[(10.0, &[10.0, 10.0])]), &[0, 1], 1.0);
        let vm = Vm { period_ns: 24.0, ..Vm::beside(2, 1.0) };
        assert!((replay(&alone, &vm).took - 15.0).abs() < 1e-9, "two thirds of a CPU");
        assert!((replay(&both, &vm).took - 20.0).abs() < 1e-9, "half of each");
    }
}
