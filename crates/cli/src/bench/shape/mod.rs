//! `corefit bench shape`: what shaping timeslices brings on this machine's own control groups, decided by the daemon's
//! controllers. The quotas of four groups, a thread in each, stand for those of a VM's vCPUs; with `--vm` it is a real VM.

mod machine;
mod program;
mod slice;
mod vm;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use corefit_core::decide::{Controller, Policy, Rule, Shaper, Sizer, apply};
use corefit_core::machine::{Act, Limit, Value};
use serde::Serialize;

use super::arena::Arena;
use super::print;
use crate::bar::Progress;
use crate::interrupt::Interrupt;
use crate::stats::median;
use crate::table::{NONE, Table};
use machine::Groups;
use program::{Kind, Running};

/// Measure what bursts, longer periods, proportional timeslices and shorter slices bring, on control groups of this machine
#[derive(clap::Args)]
pub(super) struct Args {
    /// One round
    #[arg(long)]
    quick: bool,
    /// Rounds, each with all cases
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// P1's fork-join program in a real VM (scripts/testvm; root)
    #[arg(long)]
    vm: bool,
    /// Only the cases with slices of the fair scheduler
    #[arg(long, conflicts_with = "vm")]
    slices: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

const VCPUS: usize = 4;
/// A quarter of a CPU for each, one in all.
const BEGIN: Limit = Limit { quota_us: Some(5000), period_us: 20_000, burst_us: 0 };
/// The controllers look so often, and have so long; then nothing changes while turns are counted.
const LOOK: Duration = Duration::from_millis(250);
const SETTLE: Duration = Duration::from_secs(6);
const COUNT: Duration = Duration::from_secs(3);
/// How long a "VM" here may stand still, ms.
const LATENCY_MS: u64 = 200;

/// Program, shape, and its name; the first of each program is what the others are compared with.
const CASES: [(Kind, Shaper, &str, &str); 8] = [
    (Kind::ForkJoin, Shaper::None, "fork-join", "5 of 20 ms each"),
    (Kind::ForkJoin, Shaper::Burst, "fork-join", "burst"),
    (Kind::ForkJoin, Shaper::Proportional, "fork-join", "proportional"),
    (Kind::Balanced, Shaper::None, "fork-join", "balanced by the program"),
    (Kind::Fluctuating, Shaper::None, "fluctuating", "5 of 20 ms each"),
    (Kind::Fluctuating, Shaper::Burst, "fluctuating", "burst"),
    (Kind::Fluctuating, Shaper::LongPeriod, "fluctuating", "longer period"),
    (Kind::Fluctuating, Shaper::Proportional, "fluctuating", "proportional"),
];

/// The same for slices of the fair scheduler, without limits.
const SLICES: [(slice::Kind, Shaper, &str, &str); 4] = [
    (slice::Kind::Sleeps, Shaper::None, "sleeping", "the scheduler's slice"),
    (slice::Kind::Sleeps, Shaper::Slice, "sleeping", "shorter slice"),
    (slice::Kind::Meets, Shaper::None, "meeting", "the scheduler's slice"),
    (slice::Kind::Meets, Shaper::Slice, "meeting", "shorter slice"),
];

#[derive(Serialize)]
struct Document {
    bench: &'static str,
    /// What the vCPUs are.
    machine: &'static str,
    vcpus: usize,
    rounds: u32,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    program: &'static str,
    shape: &'static str,
    /// Median over the rounds.
    turns_per_s: f64,
    /// Turns over those of the first case of the program in the same round: median, least and most.
    ratio: [f64; 3],
    /// What the controllers made of the limits in the last round.
    limits: Vec<String>,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let rounds = if args.quick { 1 } else { args.rounds };
    if args.vm {
        return vm::run(args, rounds);
    }
    let interrupt = Interrupt::install()?;
    let arena = Arena::open()?;
    let limited: &[_] = if args.slices { &[] } else { &CASES };
    let mut progress = Progress::new((limited.len() + SLICES.len()) * rounds as usize, false);
    let mut rows = quotas(&arena, limited, rounds, &mut progress, &interrupt)?;
    rows.extend(slices(&arena, rounds, &mut progress, &interrupt)?);
    let document = Document { bench: "shape", machine: "control groups", vcpus: VCPUS, rounds, rows };
    print(args.json, &document, text)?;
    Ok(ExitCode::SUCCESS)
}

/// The cases with quotas.
fn quotas(
    arena: &Arena,
    cases: &[(Kind, Shaper, &'static str, &'static str)],
    rounds: u32,
    progress: &mut Progress,
    interrupt: &Interrupt,
) -> Result<Vec<Row>> {
    if cases.is_empty() {
        return Ok(Vec::new());
    }
    let dirs = (0..VCPUS).map(|vcpu| arena.nest(&format!("vcpu{vcpu}"))).collect::<Result<Vec<_>>>()?;
    let mut groups = Groups::open(dirs)?;
    let mut rates = vec![vec![]; cases.len()];
    let mut limits = vec![vec![]; cases.len()];
    for _ in 0..rounds {
        for (index, (kind, shaper, program, shape)) in cases.iter().enumerate() {
            let what = format!("{program}, {shape}");
            progress.begin(&what);
            let (rate, set) = case(&mut groups, *kind, *shaper, interrupt)?;
            progress.end(&what, &format!("{rate:.1} turns a second"));
            rates[index].push(rate);
            limits[index] = set.iter().map(|limit| Value::Limit(*limit).to_string()).collect();
        }
    }
    Ok(rows(&cases.iter().map(|case| (case.2, case.3)).collect::<Vec<_>>(), &rates, &limits))
}

/// The cases with slices; none where threads have none of their own.
fn slices(arena: &Arena, rounds: u32, progress: &mut Progress, interrupt: &Interrupt) -> Result<Vec<Row>> {
    let groups = slice::Groups::make(arena)?;
    let mut rates = vec![vec![]; SLICES.len()];
    let mut late = vec![vec![]; SLICES.len()];
    let mut set = vec![vec![]; SLICES.len()];
    for _ in 0..rounds {
        for (index, (kind, shaper, program, shape)) in SLICES.into_iter().enumerate() {
            let what = format!("{program}, {shape}");
            progress.begin(&what);
            let Some(outcome) = slice::case(&groups, kind, shaper, interrupt)? else {
                progress.end(&what, "skipped: threads have no slices of their own here");
                return Ok(Vec::new());
            };
            progress.end(&what, &format!("{:.1} turns a second", outcome.turns_per_s));
            rates[index].push(outcome.turns_per_s);
            late[index].extend(outcome.late_us);
            let late = median(late[index].iter().copied()).map(|us| format!("runs {us:.0} us late"));
            set[index] = [Some(outcome.slice.to_string()), late].into_iter().flatten().collect();
        }
    }
    Ok(rows(&SLICES.map(|case| (case.2, case.3)), &rates, &set))
}

/// A row for each case, compared with the first of its program.
fn rows(cases: &[(&'static str, &'static str)], rates: &[Vec<f64>], set: &[Vec<String>]) -> Vec<Row> {
    let row = |(index, (program, shape)): (usize, &(&'static str, &'static str))| {
        let first = cases.iter().position(|case| case.0 == *program).unwrap_or(index);
        Row::new(program, shape, &rates[index], ratios(&rates[index], &rates[first]), &set[index])
    };
    cases.iter().enumerate().map(row).collect()
}

/// Turns per second once the controllers have had their time, and the limits then.
fn case(groups: &mut Groups, kind: Kind, shaper: Shaper, interrupt: &Interrupt) -> Result<(f64, Vec<Limit>)> {
    groups.reset(BEGIN)?;
    let program = Running::start(kind, groups.dirs())?;
    let begun = Instant::now();
    shape(groups, controller(shaper), interrupt, &mut || Ok(begun.elapsed() >= SETTLE))?;
    let (before, begun) = (program.turns(), Instant::now());
    std::thread::sleep(COUNT);
    let turns = program.turns() - before;
    let rate = turns as f64 / begun.elapsed().as_secs_f64();
    Ok((rate, groups.limits()?))
}

/// The daemon's controllers with nothing but this shape.
fn controller(shape: Shaper) -> Controller {
    let rule = Rule { name: "*".into(), latency_ms: Some(LATENCY_MS), ..Rule::default() };
    Controller::new(Policy {
        size: Sizer::None,
        shape,
        dwell_ms: 500,
        lever_ms: 200,
        vm: vec![rule],
        ..Policy::default()
    })
}

/// Has the controllers decide, and does what they say, until it is `over`.
fn shape(
    machine: &mut dyn Act,
    mut controller: Controller,
    interrupt: &Interrupt,
    over: &mut dyn FnMut() -> Result<bool>,
) -> Result<()> {
    while !over()? {
        interrupt.check()?;
        let step = controller.step(&machine.observe()?)?;
        controller.told(&apply(machine, &step.plan.actions));
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Each over the one of the same round.
fn ratios(rates: &[f64], first: &[f64]) -> Vec<f64> {
    rates.iter().zip(first).map(|(rate, first)| rate / first).collect()
}

impl Row {
    fn new(
        program: &'static str,
        shape: &'static str,
        rates: &[f64],
        ratios: Vec<f64>,
        limits: &[String],
    ) -> Row {
        let bound = |better: fn(f64, f64) -> f64| ratios.iter().copied().reduce(better).unwrap_or(f64::NAN);
        let (least, most) = (bound(f64::min), bound(f64::max));
        Row {
            program,
            shape,
            turns_per_s: median(rates.iter().copied()).unwrap_or(f64::NAN),
            ratio: [median(ratios.iter().copied()).unwrap_or(f64::NAN), least, most],
            limits: limits.to_vec(),
        }
    }
}

fn text(document: &Document) -> String {
    let mut table =
        Table::new(2, &["program", "timeslices", "turns/s", "ratio", "from", "to", "limits of the vCPUs"]);
    for row in &document.rows {
        let [ratio, least, most] = row.ratio.map(|ratio| format!("{ratio:.2}"));
        let mut limits = row.limits.clone();
        limits.dedup();
        let limits = if row.shape.starts_with("balanced") || row.program == "sequential" {
            NONE.into()
        } else {
            limits.join("; ")
        };
        let turns = format!("{:.1}", row.turns_per_s);
        table.row(vec![row.program.into(), row.shape.into(), turns, ratio, least, most, limits]);
    }
    let rounds = document.rounds;
    table.render()
        + &format!("Medians of {rounds} rounds; ratios to the first line of a program in the same round.\n")
}
