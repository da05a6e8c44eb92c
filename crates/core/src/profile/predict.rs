//! From a recorded run to what is told of it: features, speedups elsewhere with their terms and ranges, what limits them.

use serde::{Deserialize, Serialize};

use super::contention::{Contention, Slowing};
use super::features::{Features, Stretch, stretches, windows};
use super::limits::limits;
use super::on_vm::{OnVm, Steps, here};
use super::regions::OneCpu;
use super::replay::{Division, Vm};
use super::series::Series;
use super::steps::{Step, mixing, steps};

/// What blocking once and being woken costs the program itself at most, ns: CPU time in the kernel beyond it is other
/// work. Measured here: 15,000 (cg S, 11,765 blocks and 0.18 s in the kernel).
const BLOCK_NS: f64 = 50_000.0;
/// A lane with less than this part of the busiest one's work is no working thread.
const WORKS: f64 = 0.05;
/// The machine that the program ran on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Cores that it might use.
    pub cpus: usize,
    /// How threads slow each other there, where that was seen.
    pub contention: Option<Contention>,
    /// What the work takes on one CPU, where that was seen; it tells more.
    pub one_cpu: Option<OneCpu>,
    /// CPUs of these that others used meanwhile, on average, where that is known.
    pub others: Option<f64>,
}

/// How spinning was told from work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Spin {
    /// OpenMP's waiting slept (passive wait policy), so its spinning is not in the times. What a program spins by itself
    /// would be.
    Passive,
    /// The user's own wait policy was kept: spinning is counted as work, at most all that ran beside one thread.
    Unknown,
}

/// What to work out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Question {
    /// Where it ran.
    pub machine: Machine,
    /// How spinning was told from work.
    pub spin: Spin,
    /// The allocation period asked about, ns.
    pub period_ns: f64,
    /// The share asked about, above 0, at most 1.
    pub share: f64,
}

/// All that a prediction is made of: it can be made again from this, by another version, too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// What was asked.
    pub question: Question,
    /// What was seen.
    pub series: Series,
}

impl Record {
    /// Works everything out: see [`analyse`].
    #[must_use]
    pub fn profile(&self) -> Option<Profile> {
        analyse(&self.series, &self.question)
    }
}

/// Time of one thread, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// On a CPU.
    pub run: f64,
    /// Runnable without one.
    pub wait: f64,
    /// Neither.
    pub blocked: f64,
}

/// Everything about a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// What was asked.
    pub question: Question,
    /// Length of the recorded run, ns, and of a slot on average.
    pub took_ns: f64,
    /// See above.
    pub slot_ns: f64,
    /// Times that threads were put off their CPUs.
    pub involuntary: u64,
    /// Times that they blocked.
    pub voluntary: u64,
    /// Per working thread.
    pub times: Vec<Times>,
    /// Active threads are the runnable ones, because there were fewer cores than threads, or threads waited for cores
    /// for other reasons.
    pub by_runnable: bool,
    /// Others kept the CPUs busy, and threads waited for them.
    pub crowded: bool,
    /// How much of the spread within slots is fork-join (1) rather than even (0); null if it could not be seen.
    pub mixing: Option<f64>,
    /// P1's features.
    pub features: Features,
    /// Spinning among the work is at most this part of it; null where the wait policy was passive.
    pub spinning_at_most: Option<f64>,
    /// On the machine it ran on, as it ran: N there is the smaller of cores and threads.
    pub here: OnVm,
    /// On a machine of its own with a core for each thread.
    pub own: OnVm,
    /// On such machines with fewer cores, too.
    pub machines: Vec<OnVm>,
    /// On VMs: vCPUs x shares x periods, each with timeslices per vCPU, and with one quota.
    pub vms: Vec<OnVm>,
    /// Without quota, beside busy neighbours on all CPUs with the same weight, and with three times as much.
    pub beside: Vec<OnVm>,
    /// On the VM asked about.
    pub asked: OnVm,
    /// What limits it, and what can be done, in sentences.
    pub limits: Vec<String>,
    /// Active threads over time, with a core for each; for pictures and scenarios.
    #[serde(skip)]
    pub active: Vec<Stretch>,
    /// Work in each allocation period, over what all cores could do in it.
    #[serde(skip)]
    pub used: Vec<f64>,
}

impl Profile {
    /// The prediction for a VM of the grid.
    #[must_use]
    pub fn on(&self, vcpus: usize, share: f64, period_ns: f64, pooled: bool) -> Option<&OnVm> {
        self.vms.iter().find(|on| {
            let Vm { division, .. } = &on.vm;
            (on.vm.vcpus, on.vm.share) == (vcpus, share)
                && (on.vm.period_ns - period_ns).abs() < 1.0
                && (*division == Division::Pooled) == pooled
        })
    }
}

/// Works everything out. `None` if nothing ran in the series.
#[must_use]
pub fn analyse(series: &Series, question: &Question) -> Option<Profile> {
    let lanes = workers(series);
    if lanes.is_empty() {
        return None;
    }
    let threads = lanes.len();
    let mixed = mixing(series, &lanes);
    let is = steps(series, &lanes, mixed.unwrap_or(0.5));
    let timeslice_ns = question.share * question.period_ns;
    let (lost, slowing) = costs(series, &is, question.machine);
    let mut features = Features::of(&is, series.voluntary, question.period_ns, timeslice_ns);
    let prepared = Steps {
        extremes: [0.0, 1.0].map(|mixing| steps(series, &lanes, mixing)),
        voluntary: series.voluntary,
        took_ns: series.ns(),
        kind: features.quarter().0,
        lost,
        slowing,
        is,
    };
    let times = times(series, &lanes);
    let (run, wait) = times.iter().fold((0.0, 0.0), |sum, t| (sum.0 + t.run, sum.1 + t.wait));
    let crowded = crowded(question.machine, threads, run, wait, series.ns());
    features.doubt(question.machine.cpus, wait > BY_RUNNABLE * (run + wait));
    let beside_one: f64 = prepared.is.iter().map(beside_one).sum();
    let vm = |vcpus, share, period_ns, division| Vm { vcpus, share, period_ns, division };
    let counts = counts(threads);
    let mut vms = vec![];
    for &vcpus in &counts {
        for share in shares(question.share) {
            for period_ns in periods(question.period_ns) {
                vms.push(prepared.on(vm(vcpus, share, period_ns, Division::PerVcpu)));
                vms.push(prepared.on(vm(vcpus, share, period_ns, Division::Pooled)));
            }
        }
    }
    let rivals =
        |rivals: f64| move |n: &usize| Vm { period_ns: question.period_ns, ..Vm::beside(*n, rivals) };
    let beside =
        [1.0, 3.0].into_iter().flat_map(|r| counts.iter().map(rivals(r))).map(|vm| prepared.on(vm)).collect();
    let asked = prepared.on(vm(threads, question.share, question.period_ns, Division::PerVcpu));
    let own = prepared.on(Vm::dedicated(threads));
    Some(Profile {
        question: question.clone(),
        took_ns: prepared.took_ns,
        slot_ns: series.ns() / series.slots.len().max(1) as f64,
        involuntary: series.involuntary,
        voluntary: series.voluntary,
        by_runnable: question.machine.cpus < threads || wait > BY_RUNNABLE * (run + wait),
        crowded,
        mixing: mixed,
        spinning_at_most: (question.spin == Spin::Unknown && run > 0.0).then(|| beside_one / run),
        here: here(&prepared, question.machine.cpus.min(threads), run),
        machines: counts.iter().map(|cores| prepared.on(Vm::dedicated(*cores))).collect(),
        limits: limits(
            &prepared,
            &features,
            &own,
            &asked,
            crowded,
            match question.machine.one_cpu {
                Some(_) => "as windows in which all threads were kept on one CPU showed",
                None => "as a reporter beside them saw it",
            },
        ),
        active: stretches(&prepared.is, threads as f64 / 16.0),
        used: windows(&prepared.is, question.period_ns)
            .iter()
            .map(|window| window.work.iter().sum::<f64>() / (window.ns * threads as f64))
            .collect(),
        times,
        features,
        own,
        beside,
        vms,
        asked,
    })
}

/// Waiting above this part of the runnable time counts as having too few cores.
const BY_RUNNABLE: f64 = 0.05;

/// Run for a smaller part of the time, nothing is told of who waited.
const SELDOM: f64 = 0.02;
/// More waiting than this over what ran, and more used by others than this over what the program used, is worth a word.
const CROWDED: f64 = 0.1;

/// Whether threads waited for CPUs that others used. Where it is not known what others used, a CPU for each thread tells: more threads
/// than CPUs wait for each other as well, and so do those that are bound to fewer (taskset, `OMP_PLACES`).
fn crowded(machine: Machine, threads: usize, run: f64, wait: f64, took_ns: f64) -> bool {
    let by_others = machine.others.map_or(machine.cpus >= threads, |cpus| cpus * took_ns > CROWDED * run);
    wait > CROWDED * run && run > SELDOM * took_ns && by_others
}

/// Work done beside one thread, ns: at most this is spinning, for at any time somebody works.
fn beside_one(step: &Step) -> f64 {
    step.phases.iter().map(|phase| phase.ns * (phase.active - 1.0).max(0.0)).sum()
}

/// The part of the CPU time that blocking and waking took, and how threads slow each other: the estimate, least and most.
fn costs(series: &Series, is: &[Step], machine: Machine) -> (f64, [Slowing; 3]) {
    let lost = lost(series);
    let Some(OneCpu { part, low, high, .. }) = machine.one_cpu else {
        return (lost, Contention::slowing(machine.contention));
    };
    // What blocking costs here is at most what one CPU does not need.
    let lost = lost.min(1.0 - part).max(0.0);
    let work: f64 = is.iter().map(Step::total).sum();
    (lost, [part, high, low].map(|part| Slowing::fitted(is, machine.cpus, part * work / (1.0 - lost))))
}

/// The part of the CPU time that blocking and waking took, below 1.
fn lost(series: &Series) -> f64 {
    let run: f64 = series.slots.iter().flat_map(|slot| &slot.lanes).map(|lane| lane.run).sum();
    let kernel = series.system_ns.min(BLOCK_NS * series.voluntary as f64);
    if run > 0.0 { (kernel / run).min(0.9) } else { 0.0 }
}

fn workers(series: &Series) -> Vec<usize> {
    let mut run = vec![0.0; series.lanes()];
    for (lane, at) in series.slots.iter().flat_map(|slot| slot.lanes.iter().enumerate()) {
        run[lane] += at.run;
    }
    let most = run.iter().copied().fold(0.0, f64::max);
    (0..run.len()).filter(|lane| run[*lane] > 0.0 && run[*lane] >= WORKS * most).collect()
}

fn times(series: &Series, lanes: &[usize]) -> Vec<Times> {
    let one = |lane: &usize| {
        let mut times = Times::default();
        for slot in &series.slots {
            let Some(at) = slot.lanes.get(*lane) else { continue };
            times.run += at.run;
            times.wait += at.wait;
            if at.alive {
                times.blocked += slot.ns - at.run - at.wait;
            }
        }
        times
    };
    lanes.iter().map(one).collect()
}

/// Numbers of vCPUs of the grid: powers of two, and as many as threads.
fn counts(threads: usize) -> Vec<usize> {
    let powers = (0..usize::BITS).map(|n| 1 << n).take_while(|n| *n < threads);
    powers.chain([threads]).collect()
}

/// Shares of the grid: P1's quarter and its neighbours, and the one asked about.
fn shares(asked: f64) -> Vec<f64> {
    let mut shares = vec![0.75, 0.5, 0.25, 0.125];
    if !shares.contains(&asked) {
        shares.push(asked);
    }
    shares.retain(|share| *share < 1.0 || *share == asked);
    shares
}

/// Periods of the grid: the one asked about, to 8 times as long (P1: 24 to 192 ms).
fn periods(asked: f64) -> [f64; 4] {
    [1.0, 2.0, 4.0, 8.0].map(|factor| factor * asked)
}

#[cfg(test)]
mod tests {
    use super::super::features::Type;
    use super::super::series::Lane;
    use super::*;

    const MS: f64 = 1e6;

    fn question(cpus: usize) -> Question {
        Question {
            machine: Machine { cpus, contention: None, one_cpu: None, others: None },
            spin: Spin::Passive,
            period_ns: 24.0 * MS,
            share: 0.25,
        }
    }

    /// One thread alone for `alone` slots of 4 ms, then four for `all`, 25 times.
    fn fork_join(alone: usize, all: usize) -> Series {
        let one: &[f64] = &[4.0 * MS, 0.0, 0.0, 0.0];
        let each: &[f64] = &[4.0 * MS; 4];
        let slots = std::iter::repeat_n(one, alone).chain(std::iter::repeat_n(each, all));
        let slots: Vec<_> = slots.collect::<Vec<_>>().into_iter().cycle().take(25 * (alone + all)).collect();
        Series::of_runs(&slots.into_iter().map(|runs| (4.0 * MS, runs)).collect::<Vec<_>>())
    }

    #[test]
    fn a_fifth_sequential_is_2_5_on_four_cores_with_every_term() {
        let profile = analyse(&fork_join(1, 1), &question(4)).unwrap();
        for on in [&profile.here, &profile.own] {
            assert!((on.speedup.is - 2.5).abs() < 1e-9 && (on.efficiency - 0.625).abs() < 1e-9);
            assert!((on.unused - 0.375).abs() < 1e-9 && on.switching == 0.0);
        }
        assert!((profile.features.parallelism - 2.5).abs() < 1e-9 && !profile.by_runnable);
        let cores: Vec<usize> = profile.machines.iter().map(|on| on.vm.vcpus).collect();
        assert_eq!(cores, [1, 2, 4]);
        assert!((profile.machines[0].speedup.is - 1.0).abs() < 1e-9);
        assert!((profile.machines[1].speedup.is - 5.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn the_parts_of_allocated_time_are_one_and_equivalents_are_speedup_times_share() {
        let mut series = fork_join(2, 3);
        series.voluntary = 4000;
        series.system_ns =
            0.1 * series.slots.iter().flat_map(|slot| &slot.lanes).map(|lane| lane.run).sum::<f64>();
        let mut asked = question(4);
        let profile = analyse(&series, &asked).unwrap();
        // A tenth of the CPU time is no work: 14 of 20 units with four active, 6 with one.
        let own = &profile.own;
        assert!(
            (own.speedup.is - 0.9 * 14.0 / 5.0).abs() < 1e-9
                && (own.switching - 0.1 * 14.0 / 20.0).abs() < 1e-9,
            "{own:?}"
        );
        asked.machine.contention = Some(Contention { cpus: 4, is: 1.5, low: 1.2, high: 2.0 });
        let slowed = analyse(&series, &asked).unwrap();
        // With all four active a thread does 2/3 of what it does alone; 12 of 14 units are of all four.
        let alone = (2.0 + 12.0 / 1.5) / 14.0;
        assert!((slowed.own.speedup.is / own.speedup.is - alone).abs() < 1e-9 && slowed.own.slowed > 0.1);
        assert!((slowed.here.speedup.is / profile.here.speedup.is - alone).abs() < 1e-9);
        assert!(
            (slowed.machines[0].speedup.is - profile.machines[0].speedup.is).abs() < 1e-9,
            "one core does not slow itself"
        );
        let all = [&slowed.vms, &slowed.beside, &slowed.machines].into_iter().flatten();
        for on in profile.vms.iter().chain([&profile.asked]).chain(all) {
            assert!((on.efficiency + on.switching + on.slowed + on.unused - 1.0).abs() < 1e-9, "{on:?}");
            assert!((on.dedicated_cores.is - on.speedup.is * on.vm.share).abs() < 1e-9);
            let by_terms = on.vm.vcpus as f64 * (1.0 - on.switching - on.slowed - on.unused);
            assert!((on.speedup.is - by_terms).abs() < 1e-9);
            assert!(on.speedup.low <= on.speedup.is && on.speedup.is <= on.speedup.high, "{on:?}");
        }
        assert!(profile.asked.switching > 0.0);
        let shares: Vec<f64> = profile.beside.iter().map(|on| on.vm.share).collect();
        assert_eq!(shares, [0.5, 0.5, 0.5, 0.25, 0.25, 0.25], "beside neighbours, too");
    }

    #[test]
    fn what_one_cpu_takes_is_what_speedups_are_against() {
        let mut series = fork_join(0, 5);
        series.voluntary = 4000;
        series.system_ns = 0.1 * 4.0 * series.ns();
        let mut asked = question(4);
        // Four CPUs are all used, a tenth for blocking; one takes 0.6 of the CPU time.
        asked.machine.one_cpu = Some(OneCpu { part: 0.6, low: 0.5, high: 0.75, windows: 3, covered: 1.0 });
        let profile = analyse(&series, &asked).unwrap();
        let own = &profile.own;
        assert!((own.speedup.is - 2.4).abs() < 1e-6, "{own:?}");
        let (low, high) = (2.0 * 0.75, 3.0 * 1.25);
        assert!((own.speedup.low - low).abs() < 1e-6 && (own.speedup.high - high).abs() < 1e-6, "{own:?}");
        let one = &profile.machines[0].speedup;
        assert!(one.high - one.low < 1e-9, "that is what speedups are against: {one:?}");
        assert!((own.switching - 0.1).abs() < 1e-6 && (own.slowed - 0.3).abs() < 1e-6, "{own:?}");
        // Little less: no more than that is lost.
        asked.machine.one_cpu = Some(OneCpu { part: 0.975, low: 0.95, high: 1.0, windows: 3, covered: 1.0 });
        let own = analyse(&series, &asked).unwrap().own;
        assert!((own.speedup.is - 3.9).abs() < 1e-6 && own.slowed.abs() < 1e-6, "{own:?}");
    }

    #[test]
    fn longer_periods_help_where_work_fluctuates_on_their_scale() {
        // 48 ms alone, 48 ms of all four: a period finds too little to do, or too much. Two cores' worth of quota is lost to
        // 1 + 1 in the first, and makes 4 periods of the second: 240 ms of work in 144; with long periods in 120.
        let profile = analyse(&fork_join(12, 12), &question(4)).unwrap();
        let at = |factor: f64| profile.on(4, 0.5, factor * 24.0 * MS, true).unwrap();
        assert!((at(1.0).dedicated_cores.is - 240.0 / 144.0).abs() < 0.03, "{:?}", at(1.0));
        assert!(at(8.0).speedup.is > at(1.0).speedup.is + 0.2, "{:?} {:?}", at(1.0).speedup, at(8.0).speedup);
        assert!(
            profile.features.kind == Some(Type(4))
                && profile.asked.speedup.is >= profile.own.speedup.is - 1e-9
        );
    }

    #[test]
    fn unknown_spinning_is_bounded_by_what_ran_beside_one_thread() {
        let unknown = Question { spin: Spin::Unknown, ..question(4) };
        let profile = analyse(&fork_join(1, 1), &unknown).unwrap();
        assert!((profile.spinning_at_most.unwrap() - 0.6).abs() < 1e-9, "3 of 5 units");
        assert_eq!(analyse(&fork_join(1, 1), &question(4)).unwrap().spinning_at_most, None);
    }

    #[test]
    fn frequent_blocking_lowers_the_lower_end_as_it_did_in_the_paper() {
        let mut series = fork_join(0, 4);
        let before = analyse(&series, &question(4)).unwrap();
        assert_eq!(before.features.kind, Some(Type(1)));
        series.voluntary = 100_000;
        let after = analyse(&series, &question(4)).unwrap();
        assert_eq!(after.features.kind, Some(Type(3)));
        assert!(
            after.asked.speedup.low <= 4.0 * 5.0 / 8.7 + 1e-9
                && after.asked.speedup.low < before.asked.speedup.low
        );
    }

    #[test]
    fn others_are_named_for_waiting_whatever_the_number_of_threads() {
        // Three threads on two CPUs: each runs a third of the time, waits a third, and seems to sleep a third.
        let mut series = Series::of_runs(&[(4.0 * MS, &[4.0 * MS / 3.0; 3][..]); 60]);
        for slot in series.slots.iter_mut().step_by(2) {
            slot.lanes.iter_mut().for_each(|lane| *lane = Lane { run: 0.0, wait: 0.0, ..*lane });
        }
        for slot in series.slots.iter_mut().skip(1).step_by(2) {
            slot.lanes.iter_mut().for_each(|lane| *lane = Lane { run: 2.0 * MS, wait: 2.0 * MS, ..*lane });
        }
        let told = |cpus, others| {
            let machine = Machine { others, ..question(cpus).machine };
            let profile = analyse(&series, &Question { machine, ..question(cpus) }).unwrap();
            (profile.crowded, !profile.limits.join(" ").contains("others kept"))
        };
        assert_eq!(told(2, Some(0.9)), (true, false));
        assert_eq!(told(2, Some(0.05)), (false, true), "threads of its own kept them waiting");
        assert_eq!(told(2, None), (false, true));
        assert_eq!(told(3, None), (true, false), "with a CPU for each, waiting tells");
        assert_eq!(told(3, Some(0.05)), (false, true), "others did not use them: they are bound");
    }

    #[test]
    fn nothing_that_ran_is_no_profile_and_idle_threads_do_not_count() {
        assert!(analyse(&Series::default(), &question(4)).is_none());
        let runs: &[f64] = &[4.0 * MS, 0.0, 0.01 * MS];
        let series = Series::of_runs(&[(4.0 * MS, runs); 30]);
        assert_eq!(analyse(&series, &question(4)).unwrap().features.threads, 1);
    }
}
