//! One condition from its preparation to its rows.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use corefit_core::CpuSet;

use super::Settings;
use super::certify::Verdict;
use super::conditions::{Condition, SEEN, half_quota_us};
use super::delays::{Delay, delays};
use super::document::{ConditionPart, DelayStats, Delays, Row, Runs, Values, mean, means};
use super::measure::{Bench, Sample};
use super::oracle;
use super::plan::{Config, configs};
use super::programs::{Case, Kind, Runtime};
use super::step::Steps;
use crate::bench::arena::Arena;
use crate::bench::job::Quiet;
use crate::stats::{Bound, Value, ratio_interval};

/// What was run of one program, by configuration.
type Samples = BTreeMap<Config, Vec<Sample>>;

/// What has to be known of a program before it is measured.
struct Prepared<'c> {
    case: &'c Case,
    size: String,
    verdict: Verdict,
    /// `step` only: the length of the phases on all CPUs and on one, s.
    phases_s: Option<[f64; 2]>,
}

/// Delays seen so far.
#[derive(Default)]
struct Seen {
    ms: Vec<f64>,
    already: usize,
    never: usize,
}

/// How many steps of progress a condition takes.
pub(super) fn steps(settings: &Settings, condition: Condition, cases: &[Case], cpus: u32) -> usize {
    let of = |case: &Case| {
        let runs = configs(condition, case.program, cpus).len() * settings.repeat as usize;
        let certify = usize::from(case.program.kind == Kind::OpenMp);
        let phases = if condition == Condition::Step { 3 } else { 0 };
        runs + certify + phases
    };
    cases.iter().filter(|case| settings.wants(condition, case)).map(of).sum()
}

/// Why a condition cannot be had here, if it cannot.
pub(super) fn obstacle(condition: Condition, arena: &Arena) -> Option<String> {
    let cpus = arena.cpus().len();
    match condition {
        Condition::Sees16 if cpus >= SEEN as usize => {
            Some(format!("this machine has {cpus} CPUs: {SEEN} are no exaggeration"))
        }
        Condition::Quota if arena.cpu_groups().is_none() => {
            Some(format!("no control group whose quota can be set: {}", arena.refusal()))
        }
        Condition::Step if cpus == 1 => Some("only one CPU: nothing can be taken away".into()),
        _ => None,
    }
}

/// What a condition is made of here.
pub(super) fn describe(condition: Condition, arena: &Arena) -> String {
    let cpus = arena.cpus().len();
    match condition {
        Condition::Sees16 => format!("the runtime believes in {SEEN} CPUs and has {cpus}"),
        Condition::Neighbour => match arena.cpu_groups() {
            Some(version) => {
                format!("a control group ({version}) of equal weight beside it with {cpus} busy loops")
            }
            None => format!("{cpus} busy processes of equal nice value beside it (no control groups)"),
        },
        Condition::Quota => format!(
            "{} ms of CPU time in every 100 ms",
            half_quota_us(u32::try_from(cpus).unwrap_or(u32::MAX)) / 1000
        ),
        Condition::Step => {
            let how = match arena.cpuset_groups() {
                Some(version) => format!("cpuset, control groups {version}"),
                None => "affinity of all threads".into(),
            };
            format!("{cpus} CPUs, then 1, then {cpus}, each for about a third of the work ({how})")
        }
        Condition::NothingShort => format!("{cpus} CPUs and nobody else"),
    }
}

/// Measures the programs under a condition.
pub(super) fn measure(bench: &mut Bench<'_>, condition: Condition, cases: &[Case]) -> Result<ConditionPart> {
    let mut part = ConditionPart {
        name: condition,
        what: describe(condition, bench.arena),
        skipped: obstacle(condition, bench.arena),
        programs: vec![],
        geomean_vs_oracle: None,
        geomeans: vec![],
        delays: None,
    };
    let cpus = u32::try_from(bench.arena.cpus().len())?;
    if part.skipped.is_some() {
        let unneeded = steps(bench.settings, condition, cases, cpus);
        bench.progress.skip(unneeded);
        return Ok(part);
    }
    let one: CpuSet = bench.arena.cpus().iter().last().into_iter().collect();
    let mut prepared = vec![];
    let settings = bench.settings;
    for case in cases.iter().filter(|case| settings.wants(condition, case)) {
        prepared.push(prepare(bench, condition, case, &one)?);
    }
    // The condition begins here and ends with this.
    let _held = condition.hold(bench.arena, cpus)?;
    let mut seen = [Seen::default(), Seen::default()];
    for program in prepared {
        let samples = repeat(bench, condition, &program, &one, &mut seen)?;
        part.programs.push(row(&program, &samples, cpus));
    }
    let all = mean(&part.programs, None, Values::corefit_vs_oracle);
    part.geomean_vs_oracle = all.map(|v| v.number);
    part.geomeans = Runtime::in_order(cases.iter().map(|c| c.runtime))
        .into_iter()
        .map(|r| means(&part.programs, r))
        .collect();
    part.delays = (condition == Condition::Step).then(|| {
        let [shrink, growth] = seen.map(|s| DelayStats::of(&s.ms, s.already, s.never));
        Delays { shrink, growth }
    });
    Ok(part)
}

fn prepare<'c>(
    bench: &mut Bench<'_>,
    condition: Condition,
    case: &'c Case,
    one: &CpuSet,
) -> Result<Prepared<'c>> {
    let arena = bench.arena;
    let class = bench.settings.size.name();
    let mut size = class.clone();
    let mut phases_s = None;
    if condition == Condition::Step {
        // By the default policy: where passive waiting costs much, the program would have ended before
        // a step that was planned by it.
        let all = Config::Fixed { threads: u32::try_from(arena.cpus().len())?, passive: false };
        let each_s = bench.warm_up(case, &class, all, arena.cpus())?;
        size = repeated(&class, bench.settings.step_s, each_s);
        let all_s = bench.warm_up(case, &size, all, arena.cpus())?;
        let one_s = bench.warm_up(case, &size, Config::Fixed { threads: 1, passive: false }, one)?;
        phases_s = Some([all_s / 3.0, one_s / 3.0]);
    }
    let verdict = bench.certify(condition, case, &size)?;
    Ok(Prepared { case, size, verdict, phases_s })
}

/// The size that makes a program of `each_s` run for about `wanted_s`: `W*4` is W four times.
fn repeated(class: &str, wanted_s: f64, each_s: f64) -> String {
    /// Most that the programs accept.
    const MOST: u32 = 10_000;
    let enough = (1..MOST).find(|n| f64::from(*n) * each_s >= wanted_s);
    match enough.unwrap_or(MOST) {
        1 => class.to_owned(),
        n => format!("{class}*{n}"),
    }
}

/// Every configuration, in another order in each repetition.
fn repeat(
    bench: &mut Bench<'_>,
    condition: Condition,
    program: &Prepared<'_>,
    one: &CpuSet,
    seen: &mut [Seen; 2],
) -> Result<Samples> {
    let arena = bench.arena;
    let cpus = u32::try_from(arena.cpus().len())?;
    let mut order = configs(condition, program.case.program, cpus);
    let mut samples = Samples::new();
    let mut cut_off = BTreeSet::new();
    for _ in 0..bench.settings.repeat {
        bench.random.shuffle(&mut order);
        for &config in &order {
            if cut_off.contains(&config) {
                bench.progress.skip(1);
                continue;
            }
            let (case, size) = (program.case, &program.size);
            let sample = match (program.phases_s, config) {
                (Some(phases), Config::Default | Config::Passive | Config::Corefit) => {
                    let mut steps = Steps::new(arena, one, phases);
                    let all = (arena.cpus(), &mut steps as _);
                    let sample = bench.sample(condition, case, size, config, all)?;
                    if program.verdict.certified == Some(true) {
                        note_delays(&sample, &steps.done_s, cpus, seen);
                    }
                    sample
                }
                (_, Config::One) => bench.sample(condition, case, size, config, (one, &mut Quiet))?,
                _ => bench.sample(condition, case, size, config, (arena.cpus(), &mut Quiet))?,
            };
            if sample.time.is_some_and(|t| t.bound != Bound::Exact) {
                cut_off.insert(config);
            }
            samples.entry(config).or_default().push(sample);
        }
    }
    Ok(samples)
}

fn note_delays(sample: &Sample, done_s: &[f64], cpus: u32, seen: &mut [Seen; 2]) {
    let (Some(time), Some(report), [shrink_s, ..]) = (sample.time, &sample.report, done_s) else {
        return;
    };
    let grow_s = done_s.get(1).copied();
    let (shrink, grow) = delays(report, time.number, (*shrink_s, grow_s), cpus);
    for (seen, delay) in seen.iter_mut().zip([Some(shrink), grow]) {
        match delay {
            Some(Delay::Ms(ms)) => seen.ms.push(ms),
            Some(Delay::Already) => seen.already += 1,
            Some(Delay::Never) => seen.never += 1,
            None => {}
        }
    }
}

/// The row of a program from its runs.
fn row(program: &Prepared<'_>, samples: &Samples, cpus: u32) -> Row {
    let runs: BTreeMap<Config, Runs> =
        samples.iter().map(|(config, samples)| (*config, runs_of(samples))).collect();
    let medians: Vec<(Config, Value)> =
        runs.iter().filter_map(|(config, runs)| Some((*config, runs.value()?))).collect();
    let threads = |config| samples.get(&config)?.iter().find_map(|s| s.threads_max);
    let oracle = match (program.case.program.kind, program.phases_s) {
        (Kind::Unsafe, _) => None,
        (_, Some([first, second])) => oracle::composed(&medians, first, second),
        (_, None) => oracle::best(&medians, cpus, threads),
    };
    let value = |config| runs.get(&config).and_then(Runs::value);
    let values = Values {
        default: value(Config::Default),
        passive: value(Config::Passive),
        oracle: oracle.as_ref().map(|o| o.value),
        corefit: value(Config::Corefit),
    };
    let number = |value: Option<Value>| value.map(|v| v.number);
    let exact = |config| -> Option<Vec<f64>> {
        let times = samples.get(&config)?.iter().filter_map(|sample| sample.time);
        times.map(|time| (time.bound == Bound::Exact).then_some(time.number)).collect()
    };
    let reports = samples.get(&Config::Corefit).into_iter().flatten();
    let processes = reports.filter_map(|s| s.report.as_ref()).flat_map(|r| &r.processes);
    Row {
        name: program.case.program.name,
        runtime: program.case.runtime,
        size: program.size.clone(),
        default_s: number(values.default),
        passive_s: number(values.passive),
        oracle_s: number(values.oracle),
        corefit_s: number(values.corefit),
        corefit_vs_passive_95: exact(Config::Corefit)
            .zip(exact(Config::Passive))
            .and_then(|(corefit, passive)| ratio_interval(&corefit, &passive)),
        verified: runs.values().all(|r| r.wrong == 0),
        cut_off: values.cut_off(),
        oracle_of: oracle.map(|o| o.of),
        certified: program.verdict.certified,
        certified_why: program.verdict.why.clone(),
        regions_resized: processes.map(|p| p.resized).sum(),
        runs: runs.into_iter().map(|(c, r)| (c.to_string(), r)).collect(),
        phases_s: program.phases_s,
        values,
    }
}

fn runs_of(samples: &[Sample]) -> Runs {
    let times: Vec<Value> = samples.iter().filter_map(|s| s.time).collect();
    Runs::of(&times, samples.len() - times.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::overcommit::programs::PROGRAMS;

    fn prepared<'c>(case: &'c Case, phases_s: Option<[f64; 2]>) -> Prepared<'c> {
        Prepared {
            case,
            size: "W".into(),
            verdict: Verdict { certified: Some(true), why: String::new() },
            phases_s,
        }
    }

    fn case(name: &str) -> Case {
        Case {
            program: *PROGRAMS.iter().find(|p| p.name == name).unwrap(),
            runtime: Runtime::Gcc,
            path: name.into(),
        }
    }

    fn sample(time: Option<Value>) -> Sample {
        Sample { time, threads_max: Some(16), report: None }
    }

    fn fixed(threads: u32) -> Config {
        Config::Fixed { threads, passive: false }
    }

    #[test]
    fn a_row_has_medians_an_oracle_and_the_runs_behind_them() {
        let exact = |s| sample(Some(Value::exact(s)));
        let samples = Samples::from([
            (Config::Default, vec![sample(Some(Value::at_least(60.0)))]),
            (Config::Passive, vec![exact(3.0), exact(9.0), exact(4.0)]),
            (Config::Corefit, vec![exact(2.2), exact(2.1), sample(None)]),
            (fixed(1), vec![exact(4.0)]),
            (fixed(2), vec![exact(2.0)]),
        ]);
        let row = row(&prepared(&case("cg"), None), &samples, 2);
        assert_eq!((row.default_s, row.passive_s), (Some(60.0), Some(4.0)));
        assert_eq!((row.oracle_s, row.oracle_of.as_deref()), (Some(2.0), Some("2")));
        assert_eq!(row.corefit_s, Some(f64::midpoint(2.1, 2.2)));
        assert!(row.cut_off && !row.verified, "one run was wrong");
        assert_eq!(row.runs["corefit"].wrong, 1);
    }

    #[test]
    fn unsafe_programs_have_no_oracle() {
        let samples = Samples::from([(Config::Default, vec![sample(Some(Value::exact(1.0)))])]);
        let case = case("unsafe_tp");
        assert_eq!(row(&prepared(&case, None), &samples, 2).oracle_s, None);
        let step = prepared(&case, Some([1.0, 1.0]));
        assert_eq!(row(&step, &samples, 2).oracle_s, None);
    }

    #[test]
    fn short_programs_are_repeated_for_a_step() {
        assert_eq!(repeated("W", 3.0, 0.8), "W*4");
        assert_eq!(repeated("W", 3.0, 3.1), "W");
        assert_eq!(repeated("S", 3.0, 0.0), "S*10000");
    }
}
