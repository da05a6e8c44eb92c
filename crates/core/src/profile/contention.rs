//! How threads slow each other by running at the same time: hyperthreads of one core, and what else cores share.
//!
//! A thread that takes more CPU time beside others than alone does no more work for it. What the program itself would take
//! alone is not to be seen in one run without counters. So a *reporter*, a fixed piece of arithmetic and of reads, runs
//! now and then on one CPU while the program runs on the others, and before and after it alone. What it takes more of
//! CPU time beside the program's threads is what these are taken to take more beside each other. It sees what the
//! machine shares at that time (vCPUs may be hyperthreads of one core now and not a minute later) and how hard the
//! program uses it; that the program suffers as the reporter does is an assumption, and the range is that of its parts.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::replay::{Division, Vm};
use super::steps::Step;

/// CPU time that the parts of a reporter took, ns.
pub type Probe = [f64; 2];

/// Probes beside the program below which nothing is said.
const FEW: usize = 8;

/// What threads take of CPU time beside others on all CPUs, over what they take alone; 1 or more.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contention {
    /// CPUs there, 2 or more: between one thread and one on each of them it grows evenly.
    pub cpus: usize,
    /// Mean of the parts of the reporter,
    pub is: f64,
    /// the least of them,
    pub low: f64,
    /// and the largest.
    pub high: f64,
}

impl Contention {
    /// From probes alone, and probes on one of `cpus` CPUs while so many threads of the program were runnable. `None`
    /// if there are too few.
    #[must_use]
    pub fn of(alone: &[Probe], beside: &[(Probe, usize)], cpus: usize) -> Option<Contention> {
        let others = |runnable: usize| runnable.min(cpus).saturating_sub(1) as f64 / (cpus as f64 - 1.0);
        let told: Vec<(Probe, f64)> =
            beside.iter().filter(|(_, n)| *n > 1).map(|(probe, n)| (*probe, others(*n))).collect();
        if cpus < 2 || alone.is_empty() || told.len() < FEW {
            return None;
        }
        let slower = [0, 1].map(|part| {
            let base = middle(alone.iter().map(|probe| probe[part]));
            let mut told: Vec<(f64, f64)> =
                told.iter().map(|(probe, others)| (probe[part] / base - 1.0, *others)).collect();
            // An interrupt in a probe tells nothing about the program: the middle half counts.
            told.sort_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
            let quarter = told.len() / 4;
            // Least squares of time / base - 1 = slope x others.
            let (xy, xx) = told[quarter..told.len() - quarter]
                .iter()
                .fold((0.0, 0.0), |(xy, xx), (more, others)| (xy + more * others, xx + others * others));
            1.0 + (xy / xx).max(0.0)
        });
        Some(Contention {
            cpus,
            is: f64::midpoint(slower[0], slower[1]),
            low: slower.into_iter().fold(f64::INFINITY, f64::min),
            high: slower.into_iter().fold(1.0, f64::max),
        })
    }

    /// Its estimate, low and high.
    pub(super) fn slowing(contention: Option<Contention>) -> [Slowing; 3] {
        let none = Contention { cpus: 1, is: 1.0, low: 1.0, high: 1.0 };
        let Contention { cpus, is, low, high } = contention.unwrap_or(none);
        [is, low, high].map(|all| Slowing { cpus, all, by_others: true })
    }
}

fn middle(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// One number for the contention.
#[derive(Clone, Copy)]
pub(super) struct Slowing {
    cpus: usize,
    /// With a thread on each of the CPUs.
    all: f64,
    /// Whether other programs' threads slow it as much as its own.
    by_others: bool,
}

/// Beyond this nothing is looked for.
const MOST: f64 = 64.0;

impl Slowing {
    /// Of threads on so many CPUs whose work, `steps`, would take one CPU so long, ns. It is theirs: that neighbours slow
    /// them as well is not said.
    pub(super) fn fitted(steps: &[Step], cpus: usize, one_cpu_ns: f64) -> Slowing {
        let (mut low, mut high) = (1.0, MOST);
        for _ in 0..60 {
            let all = f64::midpoint(low, high);
            let longer = Slowing { cpus, all, by_others: false }.alone(steps) > one_cpu_ns;
            *if longer { &mut low } else { &mut high } = all;
        }
        Slowing { cpus, all: low, by_others: false }
    }

    /// With so many threads running; never more than on all CPUs of the run: beyond is not known.
    fn with(self, running: f64) -> f64 {
        if self.cpus < 2 {
            return 1.0;
        }
        let cpus = self.cpus as f64;
        1.0 + (self.all - 1.0) * (running.clamp(1.0, cpus) - 1.0) / (cpus - 1.0)
    }

    /// What the work of steps would have taken one thread after the other, alone, ns.
    pub(super) fn alone(self, steps: &[Step]) -> f64 {
        let phases = steps.iter().flat_map(|step| &step.phases);
        phases.map(|phase| phase.ns * phase.active / self.with(phase.active)).sum()
    }

    /// The same, ns, if others slow them wherever they are.
    pub(super) fn of_its_own(self, steps: &[Step]) -> f64 {
        if self.by_others { steps.iter().map(Step::total).sum() } else { self.alone(steps) }
    }

    /// The steps with the CPU times that they would take on `vm`.
    pub(super) fn on<'a>(self, steps: &'a [Step], vm: &Vm) -> Cow<'a, [Step]> {
        let weighted = matches!(vm.division, Division::Weighted { .. });
        let weighted = weighted && self.by_others;
        if self.all <= 1.0 || self.cpus < 2 || vm.vcpus >= self.cpus && !weighted {
            return Cow::Borrowed(steps);
        }
        let cores = vm.vcpus as f64;
        // Neighbours keep all CPUs busy.
        let running = |active: f64| if weighted { cores } else { active.min(cores) };
        let moved = |step: &Step| {
            let before = step.total();
            let mut step = step.clone();
            for phase in step.phases.iter_mut().filter(|phase| phase.ns > 0.0) {
                phase.ns *= self.with(running(phase.active)) / self.with(phase.active);
            }
            let factor = if before > 0.0 { step.total() / before } else { 1.0 };
            step.work.iter_mut().for_each(|work| *work *= factor);
            step
        };
        Cow::Owned(steps.iter().map(moved).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::series::Series;
    use super::super::steps::steps;
    use super::*;

    #[test]
    fn what_the_reporter_takes_more_beside_the_program_is_the_contention() {
        let alone = [[100.0, 20.0]; 5];
        let beside = [([100.0, 40.0], 2); 8];
        let seen = Contention::of(&alone, &beside, 2).unwrap();
        assert!((seen.is - 1.5).abs() < 1e-9 && (seen.low, seen.high) == (1.0, 2.0), "{seen:?}");
        // Two threads on four CPUs: one beside, a third of three.
        let seen = Contention::of(&alone, &beside, 4).unwrap();
        assert!((seen.high - 4.0).abs() < 1e-9 && (seen.is - 2.5).abs() < 1e-9, "{seen:?}");
        let mut disturbed = beside;
        disturbed[3].0 = [900.0, 900.0];
        assert_eq!(Contention::of(&alone, &disturbed, 4), Some(seen), "one interrupt");
        assert_eq!(Contention::of(&alone, &beside[1..], 2), None, "too few");
        assert_eq!(Contention::of(&alone, &[([150.0; 2], 1); 20], 2), None, "nobody beside");
        assert_eq!(Contention::of(&alone, &beside, 1), None);
    }

    #[test]
    fn what_one_cpu_takes_tells_by_how_much_threads_slow_each_other() {
        // 10 alone and 20 of both: on one CPU 10 + 20 / 1.6.
        let steps = steps(&Series::of_runs(&[(10.0, &[10.0, 0.0]), (10.0, &[10.0, 10.0])]), &[0, 1], 1.0);
        let slowing = Slowing::fitted(&steps, 2, 22.5);
        assert!((slowing.all - 1.6).abs() < 1e-6 && (slowing.alone(&steps) - 22.5).abs() < 1e-6);
        let crowded = Vm::beside(2, 1.0);
        let total: f64 = slowing.on(&steps, &crowded).iter().map(Step::total).sum();
        assert!((total - 30.0).abs() < 1e-9, "as it ran");
        assert!((Slowing::fitted(&steps, 2, 40.0).all - 1.0).abs() < 1e-9, "never faster together");
    }

    #[test]
    fn cpu_times_are_those_of_as_many_threads_as_run_at_once() {
        // 10 alone, 10 of both, who take half as much again beside each other.
        let steps = steps(&Series::of_runs(&[(10.0, &[10.0, 0.0]), (10.0, &[10.0, 10.0])]), &[0, 1], 1.0);
        let slowing = Slowing { cpus: 2, all: 1.5, by_others: true };
        assert!((slowing.alone(&steps) - (10.0 + 20.0 / 1.5)).abs() < 1e-9);
        let total = |vm: &Vm| slowing.on(&steps, vm).iter().map(Step::total).sum::<f64>();
        assert!((total(&Vm::dedicated(2)) - 30.0).abs() < 1e-9);
        assert!((total(&Vm::dedicated(1)) - slowing.alone(&steps)).abs() < 1e-9);
        let crowded = Vm::beside(2, 1.0);
        assert!((total(&crowded) - 35.0).abs() < 1e-9, "a neighbour beside the one thread, too");
        let [is, low, high] = Contention::slowing(None);
        for none in [is, low, high] {
            assert!((none.alone(&steps) - 30.0).abs() < 1e-9 && none.on(&steps, &crowded).len() == 2);
        }
    }
}
