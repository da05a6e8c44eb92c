//! How a program's threads get on beside busy neighbours on all CPUs: each on a CPU of its own, or in turns.
//!
//! A thread that blocks before its timeslice is over leaves its CPU to the neighbour for one. Of two that wait for each other at
//! barriers, one runs and blocks while the other one waits behind its neighbour, then the other way round: one of them is runnable at a
//! time, though both could run. Linux gives the group's whole weight to the CPU of that one. Seen here (2 CPUs, neighbours of 3 times the
//! weight, cg and ft): 1 thread runnable in 71 to 85 % of looks, both threads on CPUs of their own, 0.37 to 0.42 CPUs used: 1 / (1 + 3/2) =
//! 0.4. Where the neighbours weigh less than the CPUs, such a program weighs as much on one CPU as all of them on the others: the load balancer
//! may leave it that CPU alone (30 to 44 % of looks with neighbours of the same weight).
//!
//! With more threads than CPUs another thread takes the turn, and a thread that sleeps leaves its part of the weight to those that run:
//! at most the whole weight on each CPU, which is taken here. (Programs that block got that or more on four threads here, 1.0 to 1.8 CPUs where it makes
//! 1.33; one that does not, its share.)

use super::replay::Vm;
use super::steps::Step;

/// How long a neighbour runs before it is put off, ns: CFS' least granularity and EEVDF's base slice on 8 CPUs or more (0.75 and 0.7 ms
/// times 4, `kernel/sched/fair.c`). On fewer they are shorter and end with the next tick, 1 to 4 ms apart.
const SLICE_NS: f64 = 3e6;

/// How threads get on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Manner {
    threads: f64,
    /// The part of the work that is done in turns.
    turns: f64,
    /// Of the time of turns: the part in which the neighbours have left a CPU to them.
    left: f64,
    /// CPU time that the work takes on one CPU, over what it takes where threads run beside each other.
    one_cpu: f64,
}

impl Manner {
    /// Always as if nobody waited for anybody.
    pub(super) fn spread() -> Manner {
        Manner { threads: 1.0, turns: 0.0, left: 0.0, one_cpu: 1.0 }
    }

    /// Of so many threads that run for so long before they block, ns, and take so much of their CPU time on one CPU.
    pub(super) fn of(threads: usize, run_ns: f64, one_cpu: f64) -> Manner {
        let turns = if threads > 1 { SLICE_NS / (SLICE_NS + run_ns) } else { 0.0 };
        Manner { threads: threads as f64, turns, left: 0.5, one_cpu }
    }

    /// What it lies between: nothing in turns, and all of it, with CPUs left and without.
    pub(super) fn extremes(self) -> [Manner; 3] {
        // Who never blocks takes no turns.
        let all = if self.turns < FEW { self.turns } else { 1.0 };
        [(0.0, 0.0), (all, 0.0), (all, 1.0)].map(|(turns, left)| Manner { turns, left, ..self })
    }

    /// How long steps take beside neighbours with so many times the weight.
    pub(super) fn took(self, steps: &[Step], vm: &Vm, rivals: f64) -> f64 {
        let cpus = vm.vcpus as f64;
        // Work in each ns of so many threads, each with its part of our weight on a CPU with a neighbour.
        let pace = |active: f64| active / (1.0 + rivals * active / cpus);
        let phase = |active: f64| {
            let most = active.clamp(1.0, cpus);
            // Of n threads that were woken together half run or wait for a CPU on average: of two, one.
            let turn = (self.threads / 2.0).clamp(1.0, most);
            let left = if turn <= 1.0 && rivals < cpus { self.left } else { 0.0 };
            let in_turns = if self.threads > cpus {
                most / (1.0 + rivals / cpus)
            } else {
                (1.0 - left) * pace(turn) + left / self.one_cpu
            };
            self.turns / in_turns + (1.0 - self.turns) / pace(most)
        };
        let phases = |step: &Step| -> f64 {
            let took = step.phases.iter().filter(|phase| phase.ns > 0.0);
            took.map(|at| at.ns * at.active * phase(at.active)).sum()
        };
        steps.iter().map(|step| step.idle + phases(step)).sum()
    }
}

/// A smaller part in turns is none.
const FEW: f64 = 0.1;

#[cfg(test)]
mod tests {
    use super::super::series::Series;
    use super::super::steps::steps;
    use super::*;

    fn beside(rivals: f64, cpus: usize) -> Vm {
        Vm::beside(cpus, rivals)
    }

    fn both(threads: usize) -> Vec<Step> {
        let runs = vec![10.0; threads];
        steps(&Series::of_runs(&[(10.0, runs.as_slice())]), &(0..threads).collect::<Vec<_>>(), 1.0)
    }

    #[test]
    fn two_threads_that_block_at_once_get_what_one_gets() {
        let took = |manner: Manner, rivals| manner.took(&both(2), &beside(rivals, 2), rivals);
        let [spread, turns, left] = Manner::of(2, 0.0, 1.0).extremes();
        assert!((took(spread, 3.0) - 40.0).abs() < 1e-9, "a quarter of each of two CPUs");
        assert!((took(turns, 3.0) - 20.0 / 0.4).abs() < 1e-9 && (took(turns, 1.0) - 30.0).abs() < 1e-9);
        assert!((took(left, 1.0) - 20.0).abs() < 1e-9, "a CPU for themselves");
        assert!((took(left, 3.0) - 50.0).abs() < 1e-9, "which heavier neighbours do not leave");
        let [.., cheaper] = Manner::of(2, 0.0, 0.8).extremes();
        assert!((took(cheaper, 1.0) - 16.0).abs() < 1e-9, "what moves between CPUs does not there");
        let is = Manner::of(2, 0.0, 1.0);
        assert!((took(is, 1.0) - 20.0 / ((2.0 / 3.0 + 1.0) / 2.0)).abs() < 1e-9);
    }

    #[test]
    fn turns_get_fewer_the_longer_threads_run_before_they_block() {
        let took = |run_ns| Manner::of(2, run_ns, 1.0).took(&both(2), &beside(3.0, 2), 3.0);
        assert!((took(SLICE_NS) - 45.0).abs() < 1e-9, "half and half");
        assert!((took(1e12) - 40.0).abs() < 1e-3 && took(1e5) > took(1e6));
        assert_eq!(Manner::of(2, 1e12, 1.0).extremes().map(|m| m.turns < FEW), [true; 3]);
        assert_eq!(Manner::of(1, 0.0, 1.0).turns, 0.0, "nobody to wait for");
    }

    #[test]
    fn with_more_threads_than_cpus_another_one_takes_the_turn() {
        let of = |manner: Manner| manner.took(&both(4), &beside(1.0, 2), 1.0);
        assert!((of(Manner::of(4, 1e12, 1.0)) - 40.0).abs() < 1e-3, "half of each CPU");
        assert!((of(Manner::of(4, 0.0, 1.0)) - 30.0).abs() < 1e-9, "with all of the weight on each");
    }
}
