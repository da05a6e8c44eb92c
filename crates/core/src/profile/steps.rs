//! What each slot of a run would have taken with a core for each thread.
//!
//! A slot of length t in which the threads ran U t in all and were runnable for R t holds parts in which all n active
//! threads want to run, and parts in which one does. Two extremes, mixed by [`mixing`]:
//! - *fork-join*: one thread for s = (n - R) / (n - 1) of the time, all n for the rest. The one had a core, c = min(1, U),
//!   so with enough cores the slot takes t (s c + (U - s c) / n).
//! - *even*: always R threads. It takes t U / R.
//!
//! Where nobody waited (U = R) both take t.
//!
//! R is short where threads waited for cores and the run ended by blocking: on one core, of two threads that meet at a
//! barrier, the first blocks while the second still runs, so R is 1.5 though with two cores both would run. From n on
//! C cores down to none, R is (n + C) / 2 on average, so n = R + (R - U). Where runs end by preemption all go on to the end,
//! and n = R. The switches tell which it is: waiting counts 1 + v-fold, with v the voluntary part of all switches.
//!
//! With many more threads than cores a little too much for s is much of the run, as the parts of all n shrink to n-ths and s does
//! not. While one thread is active alone, all others are not runnable, so s is at most what the two threads that were runnable the
//! longest were not, (1 - r1) + (1 - r2): none where two never slept, whatever others that began in the slot make of R. All others
//! of the time then has (R - s) / (1 - s) threads instead of n.
//!
//! Waiting is no work, and a wait may be followed by a run of microseconds (threads that take turns wake each other, wait
//! behind the one whose turn it is, and sleep again). A thread that waits for w and then runs for x would have been
//! done at most min(w, x) sooner with a core of its own. So no slot becomes shorter than min(1, U) t, the time in which at
//! least so much ran, less the sum of that ([`sooner`]); what is too short is taken from the parallel parts.

use super::series::{Lane, Series, Slot};

/// A part of a step in which so many threads are active.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Phase {
    /// Its length with a core for each, ns.
    pub ns: f64,
    /// Threads active; 1 or more.
    pub active: f64,
}

/// A slot, as it would be with a core for each thread.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// One thread, all, and as many as on average.
    pub phases: [Phase; 3],
    /// Nobody is active: input, output, sleep; ns.
    pub idle: f64,
    /// Work of each thread, ns.
    pub work: Vec<f64>,
}

impl Step {
    /// Work of all threads, ns.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.phases.iter().map(|phase| phase.ns * phase.active).sum()
    }

    /// Its length on so many cores, ns.
    #[must_use]
    pub fn length(&self, cores: f64) -> f64 {
        self.idle + self.phases.iter().map(|phase| phase.ns * (phase.active / cores).max(1.0)).sum::<f64>()
    }
}

/// Waiting below this part of the runnable time is noise of the clock.
const NO_WAIT: f64 = 0.01;
/// A thread is active in a slot from this part of it on.
const ACTIVE: f64 = 0.02;

/// The steps of a series, for the threads of these lanes. `mixing`: 0 even, 1 fork-join.
#[must_use]
pub fn steps(series: &Series, lanes: &[usize], mixing: f64) -> Vec<Step> {
    let switches = series.voluntary + series.involuntary;
    let blocking = if switches > 0 { series.voluntary as f64 / switches as f64 } else { 0.0 };
    let step = |(slot, sooner): (&Slot, f64)| {
        let demand = Demand::of(slot, lanes, blocking);
        let least = demand.run.min(1.0) * slot.ns - sooner;
        at_least(step(&demand, slot.ns, mixing), least, &demand, slot.ns)
    };
    series.slots.iter().zip(sooner(series, lanes)).map(step).collect()
}

/// Runnable for so much of a slot, a thread did not sleep in it.
const AWAKE: f64 = 0.9;

/// For each slot: by how much sooner its runs could have been done at most, had no thread waited, ns. A wait may end slots
/// before the run after it does; while a thread does not sleep, what it waited is not forgotten.
fn sooner(series: &Series, lanes: &[usize]) -> Vec<f64> {
    let mut waited = vec![0.0_f64; lanes.len()];
    let mut of = |slot: &Slot| {
        let one = |(waited, lane): (&mut f64, &usize)| {
            let Lane { run, wait, .. } = slot.lanes.get(*lane).copied().unwrap_or_default();
            *waited += wait;
            let sooner = waited.min(run);
            *waited -= sooner;
            // Who waited and did not run still waits at the end.
            if run + wait < AWAKE * slot.ns && (run > 0.0 || wait <= 0.0) {
                *waited = 0.0;
            }
            sooner
        };
        waited.iter_mut().zip(lanes).map(one).sum()
    };
    series.slots.iter().map(&mut of).collect()
}

/// The step, made `least` ns long by taking work from the parallel parts to that of one thread.
fn at_least(mut step: Step, least: f64, demand: &Demand, ns: f64) -> Step {
    let is: f64 = step.phases.iter().map(|phase| phase.ns).sum();
    let most: f64 = step.phases.iter().map(|phase| phase.ns * (phase.active - 1.0).max(0.0)).sum();
    if is >= least || most <= 0.0 {
        return step;
    }
    let part = ((least - is) / most).min(1.0);
    let [alone, together @ ..] = &mut step.phases;
    alone.active = 1.0;
    for phase in together.iter_mut() {
        alone.ns += part * phase.ns * phase.active;
        phase.ns *= 1.0 - part;
    }
    // That work is of those who ran.
    for (work, run) in step.work.iter_mut().zip(&demand.runs) {
        *work += part * (run * ns - *work);
    }
    step
}

/// How much of the spread within slots is that of fork-join: from the numbers of runnable threads at the ends of
/// slots, whose variance about the slot's mean R would be (R - 1)(n - R) if one or all were active, and 0 if always R
/// were. `None` if too few looks show it.
#[must_use]
pub fn mixing(series: &Series, lanes: &[usize]) -> Option<f64> {
    let (mut seen, mut most, mut looks) = (0.0, 0.0, 0);
    for slot in &series.slots {
        // What is looked at is who is runnable, not who would be.
        let demand = Demand::of(slot, lanes, 0.0);
        let spread = (demand.runnable - 1.0) * (demand.active - demand.runnable);
        let Some(runnable) = slot.runnable.filter(|_| spread > 0.0) else { continue };
        seen += (f64::from(runnable) - demand.runnable).powi(2);
        most += spread;
        looks += 1;
    }
    (looks >= LOOKS).then(|| (seen / most).clamp(0.0, 1.0))
}

/// Fewer looks than these tell nothing about a variance.
const LOOKS: usize = 20;

/// What threads wanted and got in a slot, in cores.
struct Demand {
    run: f64,
    runnable: f64,
    /// Threads active at all.
    active: f64,
    /// The most of the slot in which one of them can have been runnable alone, by the two that were runnable the longest.
    alone: f64,
    runs: Vec<f64>,
    wants: Vec<f64>,
}

impl Demand {
    /// `blocking`: the part of runs that end by blocking.
    fn of(slot: &Slot, lanes: &[usize], blocking: f64) -> Demand {
        let at = |lane: &usize| slot.lanes.get(*lane).copied().unwrap_or_default();
        let runs: Vec<f64> = lanes.iter().map(|lane| at(lane).run / slot.ns).collect();
        let want = |lane: Lane| ((lane.run + (1.0 + blocking) * lane.wait) / slot.ns).min(1.0);
        let wants: Vec<f64> = lanes.iter().map(|lane| want(at(lane))).collect();
        let most = |(first, second): (f64, f64), lane| {
            let Lane { run, wait, .. } = at(lane);
            let runnable = ((run + wait) / slot.ns).min(1.0);
            (first.max(runnable), second.max(runnable.min(first)))
        };
        let (first, second) = lanes.iter().fold((0.0, 0.0), most);
        Demand {
            run: runs.iter().sum(),
            runnable: wants.iter().sum(),
            active: wants.iter().filter(|want| **want > ACTIVE).count() as f64,
            alone: 2.0 - first - second,
            runs,
            wants,
        }
    }
}

fn step(demand: &Demand, ns: f64, mixing: f64) -> Step {
    let &Demand { run, runnable, active, .. } = demand;
    let idle = ns * (1.0 - runnable).max(0.0);
    if run <= 0.0 {
        return Step { phases: [Phase::default(); 3], idle, work: vec![0.0; demand.runs.len()] };
    }
    if runnable <= 1.0 || active <= 1.0 {
        let alone = Phase { ns: ns * run, active: 1.0 };
        let work = demand.runs.iter().map(|run| run * ns).collect();
        return Step { phases: [alone, Phase::default(), Phase::default()], idle, work };
    }
    let alone = ((active - runnable) / (active - 1.0)).min(demand.alone).clamp(0.0, 1.0);
    let together = if alone < 1.0 { ((runnable - alone) / (1.0 - alone)).clamp(1.0, active) } else { active };
    let served = alone * run.min(1.0);
    let even = run / runnable;
    let phases = [
        Phase { ns: mixing * ns * served, active: 1.0 },
        Phase { ns: mixing * ns * (run - served) / together, active: together },
        Phase { ns: (1.0 - mixing) * ns * even, active: runnable.max(1.0) },
    ];
    if runnable - run < NO_WAIT * runnable {
        return Step { phases, idle, work: demand.runs.iter().map(|run| run * ns).collect() };
    }
    // Who had to wait would have run as much as it wanted to: the work goes to threads by what they wanted.
    let common = 1.0 - alone;
    let more: f64 = demand.wants.iter().map(|want| (want - common).max(0.0)).sum();
    let less: f64 = demand.wants.iter().map(|want| want.min(common)).sum();
    let part = |amount: f64, of: f64, all: f64| if all > 0.0 { amount * of / all } else { 0.0 };
    let forked =
        |want: f64| part(served, (want - common).max(0.0), more) + part(run - served, want.min(common), less);
    let work = |want: &f64| ns * (mixing * forked(*want) + (1.0 - mixing) * want * even);
    Step { phases, idle, work: demand.wants.iter().map(work).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(lanes: &[(f64, f64)]) -> Series {
        let lanes = lanes.iter().map(|&(run, wait)| Lane { run, wait, alive: true }).collect();
        Series { slots: vec![Slot { ns: 100.0, lanes, runnable: None }], ..Series::default() }
    }

    fn one(lanes: &[(f64, f64)], mixing: f64) -> Step {
        let all: Vec<usize> = (0..lanes.len()).collect();
        steps(&slot(lanes), &all, mixing).remove(0)
    }

    #[test]
    fn where_nobody_waits_a_slot_keeps_its_length_and_its_work() {
        for mixing in [0.0, 0.3, 1.0] {
            let step = one(&[(100.0, 0.0), (60.0, 0.0), (60.0, 0.0)], mixing);
            assert!((step.length(3.0) - 100.0).abs() < 1e-9, "{step:?}");
            assert!((step.total() - 220.0).abs() < 1e-9);
            assert!(
                (step.length(1.0) - 220.0).abs() < 1e-9,
                "one core does all the work, one after the other"
            );
            assert_eq!(step.work, [100.0, 60.0, 60.0]);
        }
    }

    #[test]
    fn sixteen_threads_on_two_cores_are_stretched_back_to_sixteen_cores() {
        // A third of the time one thread runs, else 16 share two cores.
        let others = (2.0 * 200.0 / 3.0) / 16.0;
        let mut lanes = vec![(others, 200.0 / 3.0 - others); 16];
        lanes[0].0 += 100.0 / 3.0;
        let step = one(&lanes, 1.0);
        assert!((step.length(16.0) - (100.0 / 3.0 + 400.0 / 3.0 / 16.0)).abs() < 1e-6, "{step:?}");
        assert!((step.length(2.0) - 100.0).abs() < 1e-6, "as long as it was");
        assert!((step.work[0] - step.length(16.0)).abs() < 1e-6, "the first thread works all the time");
        assert!((step.work.iter().sum::<f64>() - step.total()).abs() < 1e-6);
        // If always as many were active, none would work alone.
        assert!(one(&lanes, 0.0).length(16.0) < 20.0);
    }

    #[test]
    fn of_two_threads_that_never_sleep_neither_is_alone() {
        // 31 share two cores; 32 more begin in the middle of the slot.
        let mut lanes = vec![(2.0, 98.0); 31];
        lanes.extend(vec![(1.0, 49.0); 32]);
        let step = one(&lanes, 1.0);
        assert_eq!(step.phases[0].ns, 0.0, "{step:?}");
        assert!((step.length(64.0) - 94.0 / 47.0).abs() < 1e-9 && (step.total() - 94.0).abs() < 1e-9);
        assert!((step.work.iter().sum::<f64>() - 94.0).abs() < 1e-9);
    }

    #[test]
    fn threads_that_block_one_after_the_other_on_one_core_would_have_run_together() {
        // Two threads, a barrier after each has run for 10 of 20: the first blocks while the second runs.
        let mut series = slot(&[(50.0, 0.0), (50.0, 50.0)]);
        let length = |series: &Series| steps(series, &[0, 1], 1.0)[0].length(2.0);
        assert!((length(&series) - 75.0).abs() < 1e-9, "by preemption: one alone for half of the time");
        series.voluntary = 10;
        assert!((length(&series) - 75.0).abs() < 1e-9, "nobody wants more than all of the time");
        // They take turns in being first.
        let mut fair = slot(&[(50.0, 25.0), (50.0, 25.0)]);
        fair.voluntary = 10;
        assert!((length(&fair) - 50.0).abs() < 1e-9);
        fair.involuntary = 1_000_000;
        assert!((length(&fair) - 75.0).abs() < 1e-3);
    }

    #[test]
    fn waiting_before_runs_of_no_length_makes_nothing_parallel() {
        // One has its turn, three are woken, wait behind it, and sleep again.
        let turn = [(90.0, 0.0), (0.1, 40.0), (0.1, 40.0), (0.1, 40.0)];
        for mixing in [0.0, 0.5, 1.0] {
            let step = one(&turn, mixing);
            assert!((step.length(4.0) - 90.0).abs() < 1e-9, "{step:?}");
            assert!(
                (step.total() - 90.3).abs() < 1e-9 && (step.work.iter().sum::<f64>() - 90.3).abs() < 1e-9
            );
        }
    }

    #[test]
    fn waits_that_end_slots_before_their_runs_count() {
        // Two share a core in timeslices as long as slots; then one sleeps, and wakes up in the middle of a slot.
        let lane = |run, wait| Lane { run, wait, alive: true };
        let of = |lanes: [Lane; 2]| Slot { ns: 100.0, lanes: lanes.to_vec(), runnable: None };
        let (runs, waits) = (lane(100.0, 0.0), lane(0.0, 100.0));
        let shared = [of([runs, waits]), of([waits, runs]), of([runs, waits])];
        let asleep = [of([runs, lane(0.0, 0.0)]), of([runs, lane(0.0, 50.0)]), of([waits, runs])];
        let series = Series { slots: [shared, asleep].concat(), ..Series::default() };
        assert_eq!(sooner(&series, &[0, 1]), [0.0, 100.0, 100.0, 0.0, 0.0, 50.0]);
    }

    #[test]
    fn time_in_which_nobody_is_active_stays() {
        let step = one(&[(30.0, 0.0), (20.0, 0.0)], 1.0);
        assert!((step.idle - 50.0).abs() < 1e-9 && (step.length(8.0) - 100.0).abs() < 1e-9);
        assert_eq!(one(&[(0.0, 0.0)], 1.0).length(1.0), 100.0);
    }

    #[test]
    fn looks_tell_fork_join_from_even() {
        let mut series = slot(&[(100.0, 0.0), (50.0, 0.0), (50.0, 0.0)]);
        let with = |series: &mut Series, runnable: &[u32]| {
            let one = series.slots[0].clone();
            let slots = runnable.iter().map(|r| Slot { runnable: Some(*r), ..one.clone() });
            series.slots = slots.cycle().take(60).collect();
        };
        with(&mut series, &[1, 3]);
        assert_eq!(mixing(&series, &[0, 1, 2]), Some(1.0));
        with(&mut series, &[2]);
        assert_eq!(mixing(&series, &[0, 1, 2]), Some(0.0));
        series.slots.truncate(5);
        assert_eq!(mixing(&series, &[0, 1, 2]), None);
    }
}
