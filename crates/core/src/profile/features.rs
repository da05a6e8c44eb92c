//! What characterises a program for its scalability (P1 III): parallelism, blocking synchronisation, and the type.

use serde::{Deserialize, Serialize};

use super::steps::Step;

/// Parallelism is high from this part of the cores on (P1 III-B).
pub const PARALLEL: f64 = 0.75;

/// Of more threads for each CPU, when each of them begins and sleeps is not seen exactly enough: 32 to 200 alike, always busy, on 2 CPUs
/// seemed to be 15 to 30 at a time.
const MOST_PER_CPU: usize = 8;

/// P1's four types (Table I).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Type(pub u8);

impl Type {
    /// From the two features.
    #[must_use]
    pub fn of(parallel: bool, synchronises: bool) -> Type {
        Type(match (parallel, synchronises) {
            (true, false) => 1,
            (false, true) => 2,
            (true, true) => 3,
            (false, false) => 4,
        })
    }

    /// Its threads block before they have used up a timeslice.
    #[must_use]
    pub fn blocks(self) -> bool {
        matches!(self.0, 2 | 3)
    }

    /// In words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self.0 {
            1 => "high parallelism, little blocking: scales well anywhere",
            2 => "low parallelism, frequent blocking: scales badly, on VMs worse",
            3 => "high parallelism, frequent blocking: switches cost it much on VMs",
            _ => "low parallelism, little blocking: scales better on VMs than on a machine of its own",
        }
    }
}

/// A stretch of the run with about as many active threads throughout.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stretch {
    /// Its length with a core for each thread, ns.
    pub ns: f64,
    /// Threads active on average.
    pub active: f64,
}

/// Features of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Features {
    /// Threads that work.
    pub threads: usize,
    /// Mean number of active threads with a core for each.
    pub parallelism: f64,
    /// Voluntary switches per second that a thread runs.
    pub switches_per_thread_s: f64,
    /// Times that a thread blocks while it uses up one timeslice: high from 1 on.
    pub blocks_per_timeslice: f64,
    /// Which of P1's types; `None` for one thread, which no machine makes faster, and where looks cannot tell.
    pub kind: Option<Type>,
    /// Part of the time in which one thread is active, with a core for each.
    pub sequential: f64,
    /// In which more are.
    pub parallel: f64,
    /// In which none is.
    pub idle: f64,
    /// Stretches of sequential and parallel time that slots can tell apart, and the longest sequential one, ns.
    pub stretches: usize,
    /// See above.
    pub longest_sequential_ns: f64,
    /// By how much the busiest thread's work exceeds the mean in an allocation period (0: balanced), mean over periods.
    pub imbalance: f64,
    /// The same over the whole run: where this is small and the other is not, work moves between threads too slowly.
    pub imbalance_of_run: f64,
}

impl Features {
    /// From steps; `switches` are voluntary ones, `timeslice_ns` what a vCPU may run in a period.
    #[must_use]
    pub(super) fn of(steps: &[Step], switches: u64, period_ns: f64, timeslice_ns: f64) -> Features {
        let threads = steps.first().map_or(0, |step| step.work.len());
        let cores = threads.max(1) as f64;
        let work: f64 = steps.iter().map(Step::total).sum();
        let length: f64 = steps.iter().map(|step| step.length(cores)).sum();
        let over = |x: f64, y: f64| if y > 0.0 { x / y } else { 0.0 };
        let (mut alone, mut idle) = (0.0, 0.0);
        for step in steps {
            let single = step.phases.iter().filter(|phase| phase.active < 1.5);
            alone += single.map(|phase| phase.ns).sum::<f64>();
            idle += step.idle;
        }
        let (sequential, idle) = (over(alone, length), over(idle, length));
        let parallelism = over(work, length);
        let blocks_per_timeslice = over(switches as f64, work) * timeslice_ns;
        let stretches = stretches(steps, 1.0);
        let longest = stretches.iter().filter(|s| s.active < 1.5).map(|s| s.ns).fold(0.0, f64::max);
        let (mut parts, mut weighed) = (0.0, 0.0);
        for window in windows(steps, period_ns) {
            let done: f64 = window.work.iter().sum();
            parts += done;
            weighed += excess(&window.work) * done;
        }
        let mut features = Features {
            threads,
            parallelism,
            switches_per_thread_s: over(switches as f64 * 1e9, work),
            blocks_per_timeslice,
            kind: None,
            sequential,
            parallel: (1.0 - sequential - idle).max(0.0),
            idle,
            stretches: stretches.len(),
            longest_sequential_ns: longest,
            imbalance: over(weighed, parts),
            imbalance_of_run: windows(steps, f64::INFINITY).first().map_or(0.0, |run| excess(&run.work)),
        };
        features.kind = (threads > 1).then(|| features.quarter());
        features
    }

    /// Takes the type back where looks cannot tell parallel work from work of few: many threads on few CPUs, which waited for these,
    /// seemed to be low in parallelism. (High is high: what one thread does alone it does at full speed.)
    pub(super) fn doubt(&mut self, cpus: usize, waited: bool) {
        let many = self.threads > MOST_PER_CPU * cpus.max(1);
        if many && waited && self.kind.is_some_and(|Type(kind)| matches!(kind, 2 | 4)) {
            self.kind = None;
        }
    }

    /// Where it stands among P1's types, one thread as well.
    pub(super) fn quarter(&self) -> Type {
        let parallel = self.parallelism >= PARALLEL * self.threads.max(1) as f64;
        Type::of(parallel, self.blocks_per_timeslice >= 1.0)
    }
}

fn excess(work: &[f64]) -> f64 {
    let mean = work.iter().sum::<f64>() / work.len().max(1) as f64;
    if mean > 0.0 { work.iter().copied().fold(0.0, f64::max) / mean - 1.0 } else { 0.0 }
}

/// Neighbouring steps with about as many active threads (classes `width` wide, one thread apart from more) as one.
#[must_use]
pub(super) fn stretches(steps: &[Step], width: f64) -> Vec<Stretch> {
    let mut all: Vec<(f64, Stretch)> = vec![];
    for step in steps {
        let ns = step.length(step.work.len().max(1) as f64);
        if ns <= 0.0 {
            continue;
        }
        let active = step.total() / ns;
        let class =
            if active < 1.5 { active.round() } else { 2.0 + ((active - 1.5) / width.max(0.1)).floor() };
        match all.last_mut() {
            Some((last, stretch)) if *last == class => {
                stretch.active = (stretch.active * stretch.ns + active * ns) / (stretch.ns + ns);
                stretch.ns += ns;
            }
            _ => all.push((class, Stretch { ns, active })),
        }
    }
    all.into_iter().map(|(_, stretch)| stretch).collect()
}

/// An allocation period of the run, with a core for each thread.
pub(super) struct Window {
    pub(super) ns: f64,
    pub(super) work: Vec<f64>,
}

/// The run cut into periods; the last one may be shorter.
pub(super) fn windows(steps: &[Step], period_ns: f64) -> Vec<Window> {
    let threads = steps.first().map_or(0, |step| step.work.len());
    let empty = || Window { ns: 0.0, work: vec![0.0; threads] };
    let (mut all, mut window) = (vec![], empty());
    for step in steps {
        let length = step.length(threads.max(1) as f64);
        let mut rest = length;
        while rest > 0.0 {
            let part = rest.min(period_ns - window.ns);
            for (sum, work) in window.work.iter_mut().zip(&step.work) {
                *sum += work * part / length;
            }
            window.ns += part;
            rest -= part;
            if window.ns >= period_ns * (1.0 - 1e-9) {
                all.push(std::mem::replace(&mut window, empty()));
            }
        }
    }
    if window.ns > 0.0 {
        all.push(window);
    }
    all
}

/// P1's potential (IV-A): in each period with utilisation u of `threads` cores, a VM that gets the part p of each could
/// reach the efficiency 1 if u > p, else u / p; the mean over periods, 0 to 1.
#[must_use]
pub fn potential(steps: &[Step], share: f64, period_ns: f64) -> f64 {
    let (mut sum, mut ns) = (0.0, 0.0);
    for window in windows(steps, period_ns) {
        let used = window.work.iter().sum::<f64>() / (window.ns * window.work.len().max(1) as f64);
        sum += (used / share).min(1.0) * window.ns;
        ns += window.ns;
    }
    if ns > 0.0 { sum / ns } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::super::series::Series;
    use super::super::steps::steps;
    use super::*;

    const MS: f64 = 1e6;

    /// 4 ms alone and 4 ms of four threads, in turn.
    fn half_and_half() -> Vec<Step> {
        let alone: &[f64] = &[4.0 * MS, 0.0, 0.0, 0.0];
        let all: &[f64] = &[4.0 * MS; 4];
        let slots: Vec<(f64, &[f64])> =
            [alone, all].into_iter().cycle().take(60).map(|r| (4.0 * MS, r)).collect();
        steps(&Series::of_runs(&slots), &[0, 1, 2, 3], 1.0)
    }

    #[test]
    fn features_of_a_fork_join_program() {
        // 30 periods of 8 ms, in each 20 ms of work: 600 ms. 300 switches: one in 2 ms.
        let features = Features::of(&half_and_half(), 300, 24.0 * MS, 6.0 * MS);
        assert!((features.parallelism - 2.5).abs() < 1e-9);
        assert!((features.sequential - 0.5).abs() < 1e-9 && features.idle.abs() < 1e-9);
        assert!((features.switches_per_thread_s - 500.0).abs() < 1e-6);
        assert!((features.blocks_per_timeslice - 3.0).abs() < 1e-9);
        assert_eq!(features.kind, Some(Type(2)));
        assert_eq!((features.stretches, features.longest_sequential_ns), (60, 4.0 * MS));
        // The first thread works 8 of 8 ms, the mean is 5.
        assert!((features.imbalance - 0.6).abs() < 1e-9 && (features.imbalance_of_run - 0.6).abs() < 1e-9);
    }

    #[test]
    fn low_parallelism_of_many_threads_that_waited_on_few_cpus_is_no_type() {
        let typed = |threads: usize, cpus, waited| {
            let mut runs = vec![0.0; threads];
            runs[..2].fill(4.0 * MS);
            let slots: Vec<(f64, &[f64])> = vec![(4.0 * MS, runs.as_slice()); 30];
            let lanes: Vec<usize> = (0..threads).collect();
            let steps = steps(&Series::of_runs(&slots), &lanes, 1.0);
            let mut features = Features::of(&steps, 0, 24.0 * MS, 6.0 * MS);
            features.doubt(cpus, waited);
            features.kind
        };
        assert_eq!(typed(33, 4, true), None);
        assert_eq!(typed(32, 4, true), Some(Type(4)), "8 for each CPU");
        assert_eq!(typed(33, 4, false), Some(Type(4)), "nobody waited");
        assert_eq!(typed(2, 0, true), Some(Type(1)), "high is high");
    }

    #[test]
    fn the_type_follows_both_thresholds() {
        let all: &[f64] = &[4.0 * MS; 4];
        let busy = steps(&Series::of_runs(&[(4.0 * MS, all); 30]), &[0, 1, 2, 3], 1.0);
        // 480 ms of work: a block per 6 ms of it is 80.
        for (steps, switches, kind) in [(&busy, 79, 1), (&busy, 81, 3)] {
            assert_eq!(Features::of(steps, switches, 24.0 * MS, 6.0 * MS).kind, Some(Type(kind)));
        }
        let few = half_and_half();
        for (steps, switches, kind) in [(&few, 99, 4), (&few, 101, 2)] {
            assert_eq!(Features::of(steps, switches, 24.0 * MS, 6.0 * MS).kind, Some(Type(kind)));
        }
    }

    #[test]
    fn one_thread_has_no_type() {
        let alone: &[f64] = &[4.0 * MS];
        let alone = steps(&Series::of_runs(&[(4.0 * MS, alone); 30]), &[0], 1.0);
        assert_eq!(Features::of(&alone, 1, 24.0 * MS, 6.0 * MS).kind, None);
    }

    #[test]
    fn the_potential_is_one_where_each_period_has_work_enough() {
        let steps = half_and_half();
        // Utilisation 62.5 % in each 8 ms; in 4 ms 25 % and 100 % in turn.
        assert!((potential(&steps, 0.5, 8.0 * MS) - 1.0).abs() < 1e-9);
        assert!((potential(&steps, 0.5, 4.0 * MS) - 0.75).abs() < 1e-9);
        assert!((potential(&steps, 0.25, 4.0 * MS) - 1.0).abs() < 1e-9);
        assert!((potential(&steps, 1.0, 8.0 * MS) - 0.625).abs() < 1e-9);
    }

    #[test]
    fn work_that_moves_is_balanced_over_the_run_but_not_in_a_period() {
        let slots: Vec<Vec<f64>> = (0..40)
            .map(|i| {
                let mut runs = vec![0.0; 4];
                runs[i / 10] = 4.0 * MS;
                runs
            })
            .collect();
        let slots: Vec<(f64, &[f64])> = slots.iter().map(|runs| (4.0 * MS, runs.as_slice())).collect();
        let steps = steps(&Series::of_runs(&slots), &[0, 1, 2, 3], 1.0);
        let features = Features::of(&steps, 0, 8.0 * MS, 2.0 * MS);
        assert!((features.imbalance - 3.0).abs() < 1e-9 && features.imbalance_of_run.abs() < 1e-9);
        assert_eq!(features.stretches, 1);
    }
}
