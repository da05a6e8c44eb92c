//! `corefit bench lock`: the opportunistic ticket lock beside glibc's mutex, `parking_lot`'s, and the
//! locks that wait in order, all through one harness and one face, that of a pthread mutex, in turns within each round.

mod frontier;
mod harness;
mod judge;
mod order;
mod waits;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use corefit_core::Random;
use corefit_lock::peers::{self, Face, Window};
use corefit_lock::{Default, Fifo, Paper, RawMutex};
use serde::Serialize;

use super::others;
use super::print;
use crate::bar::Progress;
use crate::stats::median;
use crate::table::{NONE, Table};
use crate::{parallel, picture, preload};
use harness::{Outcome, SECTIONS, Section};
use judge::Verdict;

/// Compare locks: throughput, fairness and waits, with fewer and with more threads than CPUs
#[derive(clap::Args)]
pub(super) struct Args {
    /// Unless said otherwise: short sections only, 1, 2 and 64 threads, 3 rounds; about two minutes
    #[arg(long)]
    quick: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Numbers of threads
    #[arg(long, value_delimiter = ',', value_name = "N,...", value_parser = clap::value_parser!(u16).range(1..=4096))]
    threads: Vec<u16>,
    /// Only these sections
    #[arg(long, value_delimiter = ',', value_name = "NAME,...", value_parser = ["short", "medium", "long", "zipf"])]
    sections: Vec<String>,
    /// Only these locks; bypass-N is the default with another bound, N of 1, 4, 16, 64, 128 or 511
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    locks: Vec<String>,
    /// Rounds; in each every lock runs once, in a new random order
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// Time of one run, without and then with clocks, s
    #[arg(long, value_parser = seconds)]
    seconds: Option<f64>,
    /// Draw throughput against waits, with the most threads: FILE.svg or FILE.png, with several sections FILE-SECTION.
    /// Measures the bypass-N, too
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// Locks by name.
const LOCKS: [(&str, Face); 10] = [
    ("glibc", Face::GLIBC),
    ("glibc-adaptive", Face::ADAPTIVE),
    ("parking_lot", Face::of::<parking_lot::RawMutex>()),
    ("ticket", Face::of::<peers::Ticket>()),
    ("pv-ticket", Face::of::<peers::PvTicket>()),
    ("ticket-futex", Face::of::<peers::TicketFutex>()),
    ("mcs-park", Face::of::<peers::McsPark>()),
    ("paper", Face::of::<RawMutex<Paper>>()),
    ("fifo", Face::of::<RawMutex<Fifo>>()),
    ("default", Face::of::<RawMutex<Default>>()),
];
/// The default in the library that `corefit run --lock` preloads.
const PRELOADED: &str = "preloaded";
/// Beside fifo and default: so many times may the head be passed.
const WINDOWS: [(&str, Face); 6] = [
    ("bypass-1", Face::of::<RawMutex<Window<1>>>()),
    ("bypass-4", Face::of::<RawMutex<Window<4>>>()),
    ("bypass-16", Face::of::<RawMutex<Window<16>>>()),
    ("bypass-64", Face::of::<RawMutex<Window<64>>>()),
    ("bypass-128", Face::of::<RawMutex<Window<128>>>()),
    ("bypass-511", Face::of::<RawMutex<Window<511>>>()),
];

#[derive(Serialize)]
struct Document {
    bench: &'static str,
    rounds: usize,
    seconds: f64,
    /// CPUs that others used when the bench began: more than 0.1 spoils it.
    busy_at_start_cpus: Option<f64>,
    cells: Vec<Cell>,
    /// With the most threads: locks that no other beats in throughput and wait, shortest wait first.
    frontiers: Vec<Frontier>,
    verdicts: Vec<Verdict>,
}

#[derive(Serialize)]
struct Frontier {
    section: &'static str,
    threads: usize,
    locks: Vec<&'static str>,
    /// Those that cannot be compared: nobody got them while waits were timed, or while they were not.
    unmeasured: Vec<&'static str>,
}

/// One lock under one load: medians over the rounds, and the range of the throughput.
#[derive(Serialize)]
struct Cell {
    lock: &'static str,
    threads: usize,
    section: &'static str,
    ops_s: f64,
    least_ops_s: f64,
    most_ops_s: f64,
    jain: f64,
    /// Most over least acquisitions of a thread; `None` if one got none.
    max_over_min: Option<f64>,
    /// `None` if nobody got it in some round while waits were timed: the other rounds would flatter it.
    wait_p50_us: Option<f64>,
    wait_p999_us: Option<f64>,
    wait_p9999_us: Option<f64>,
    wait_max_us: Option<f64>,
    cpus: f64,
    switches_s: f64,
    /// Of all rounds: arrivals with somebody seen in line, and how many of them were served before that one.
    order_checks: u64,
    overtakings: u64,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(file) = &args.plot {
        // To be known before, not afterwards.
        picture::check(file).context("--plot")?;
    }
    let usual: &[u16] = if args.quick { &[1, 2, 64] } else { &[1, 2, 4, 16, 64] };
    let threads: Vec<usize> =
        if args.threads.is_empty() { usual } else { &args.threads }.iter().map(|n| (*n).into()).collect();
    let rounds = usize::from(args.rounds.unwrap_or(if args.quick { 3 } else { 10 }));
    let seconds = args.seconds.unwrap_or(if args.quick { 0.5 } else { 10.0 });
    let all = !args.quick || !args.sections.is_empty();
    let chosen = |s: &Section| wanted(&args.sections, s.name) && (all || s.name == "short");
    let sections: Vec<Section> = SECTIONS.into_iter().filter(chosen).collect();
    let locks = locks(args)?;
    let busy_at_start_cpus = others::busy();
    let mut progress = Progress::new(sections.len() * threads.len() * rounds * locks.len(), false);
    let mut random = Random(1);
    let mut cells = Vec::new();
    for section in &sections {
        for n in &threads {
            let mut outcomes = vec![Vec::new(); locks.len()];
            for _ in 0..rounds {
                let mut order: Vec<usize> = (0..locks.len()).collect();
                random.shuffle(&mut order);
                for i in order {
                    let (name, face) = locks[i];
                    progress.begin(&format!("{name} {} {n}", section.name));
                    let half = Duration::from_secs_f64(seconds / 2.0);
                    outcomes[i].push(harness::run(face, *n, *section, half)?);
                    progress.end(name, "");
                }
            }
            let row = |(i, runs): (usize, &Vec<Outcome>)| cell(locks[i].0, *n, section.name, runs);
            cells.extend(outcomes.iter().enumerate().map(row));
        }
    }
    drop(progress);
    let verdicts = judge::judge(&cells, parallel::cpus());
    let frontiers = frontiers(&cells);
    let document =
        Document { bench: "lock", rounds, seconds, busy_at_start_cpus, cells, frontiers, verdicts };
    let told = print(args.json, &document, text);
    if let Some(plot) = &args.plot {
        let loads = frontier::most_threads(&document.cells);
        for load in &loads {
            let mut note = format!("medians of {rounds} rounds of {seconds} s");
            let unmeasured = frontier::unmeasured(load);
            if !unmeasured.is_empty() {
                note += &format!("; not shown, for too little got through: {}", unmeasured.join(", "));
            }
            let section = load.first().map_or("", |c| c.section);
            let file = frontier::file(plot, section, loads.len() > 1);
            picture::write(picture::open(&file)?, &frontier::drawing(load, &note)?)?;
        }
    }
    told.map(|()| ExitCode::SUCCESS)
}

fn frontiers(cells: &[Cell]) -> Vec<Frontier> {
    let of = |load: Vec<&Cell>| {
        let (section, threads) = load.first().map(|c| (c.section, c.threads))?;
        let locks = frontier::frontier(&load).iter().map(|c| c.lock).collect();
        Some(Frontier { section, threads, locks, unmeasured: frontier::unmeasured(&load) })
    };
    frontier::most_threads(cells).into_iter().filter_map(of).collect()
}

/// A time that a run may take.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|s| (0.01..=3600.0).contains(s));
    seconds.ok_or_else(|| "a number of seconds from 0.01 to 3600 is needed, like 10".into())
}

fn wanted(names: &[String], name: &str) -> bool {
    names.is_empty() || names.iter().any(|n| n == name)
}

/// The locks to be measured; what is not there is said.
fn locks(args: &Args) -> Result<Vec<(&'static str, Face)>> {
    let known = || LOCKS.into_iter().chain(WINDOWS).map(|(name, _)| name).chain([PRELOADED]);
    if let Some(unknown) = args.locks.iter().find(|lock| known().all(|name| name != lock.as_str())) {
        bail!("--locks: {unknown} is no lock; there are {}", known().collect::<Vec<_>>().join(", "));
    }
    let named = |(name, _): &(&'static str, Face)| wanted(&args.locks, name);
    let mut locks: Vec<_> = LOCKS.into_iter().filter(named).collect();
    if wanted(&args.locks, PRELOADED) {
        match preload::find(&preload::LOCK).and_then(|path| Face::of_library(&path)) {
            Ok(face) => locks.push((PRELOADED, face)),
            Err(why) => tell!("corefit: bench lock: {PRELOADED}: skipped: {why}"),
        }
    }
    if args.plot.is_some() || !args.locks.is_empty() {
        locks.extend(WINDOWS.into_iter().filter(named));
    }
    Ok(locks)
}

fn cell(lock: &'static str, threads: usize, section: &'static str, runs: &[Outcome]) -> Cell {
    let of = |part: fn(&Outcome) -> f64| median(runs.iter().map(part)).unwrap_or(f64::NAN);
    let wait =
        |part: fn(&Outcome) -> Option<f64>| median(runs.iter().map(part).collect::<Option<Vec<f64>>>()?);
    let ops = || runs.iter().map(|o| o.ops_s);
    let spread = of(|o| o.spread);
    Cell {
        lock,
        threads,
        section,
        ops_s: of(|o| o.ops_s),
        least_ops_s: ops().fold(f64::INFINITY, f64::min),
        most_ops_s: ops().fold(0.0, f64::max),
        jain: of(|o| o.jain),
        max_over_min: spread.is_finite().then_some(spread),
        wait_p50_us: wait(|o| o.p50_us),
        wait_p999_us: wait(|o| o.p999_us),
        wait_p9999_us: wait(|o| o.p9999_us),
        wait_max_us: wait(|o| o.max_us),
        cpus: of(|o| o.cpus),
        switches_s: of(|o| o.switches_s),
        order_checks: runs.iter().map(|o| o.order_checks).sum(),
        overtakings: runs.iter().map(|o| o.overtakings).sum(),
    }
}

fn text(document: &Document) -> String {
    let headings = [
        "lock",
        "section",
        "threads",
        "M/s",
        "least",
        "most",
        "Jain",
        "max/min",
        "p50 us",
        "p99.9",
        "p99.99",
        "max",
        "CPUs",
        "switches/s",
        "overtaken",
    ];
    let mut table = Table::new(2, &headings);
    let us = |x: Option<f64>| match x {
        None => NONE.into(),
        Some(x) if x < 10.0 => format!("{x:.2}"),
        Some(x) => format!("{x:.0}"),
    };
    for c in &document.cells {
        table.row(vec![
            c.lock.into(),
            c.section.into(),
            c.threads.to_string(),
            format!("{:.3}", c.ops_s / 1e6),
            format!("{:.3}", c.least_ops_s / 1e6),
            format!("{:.3}", c.most_ops_s / 1e6),
            format!("{:.3}", c.jain),
            c.max_over_min.map_or(NONE.into(), |x| format!("{x:.2}")),
            us(c.wait_p50_us),
            us(c.wait_p999_us),
            us(c.wait_p9999_us),
            us(c.wait_max_us),
            format!("{:.2}", c.cpus),
            format!("{:.0}", c.switches_s),
            if c.order_checks == 0 { NONE.into() } else { format!("{}/{}", c.overtakings, c.order_checks) },
        ]);
    }
    let mut text = others::warning(document.busy_at_start_cpus) + &table.render();
    text += &format!(
        "\nMedians of {} rounds of {} s; M/s without clocks in the loop, waits with. Overtaken: of so many arrivals that\n\
         saw somebody asleep in line, how many had the lock before that one, in {:.2} s more of each run.\n",
        document.rounds,
        document.seconds,
        document.seconds / 2.0 / f64::from(harness::WATCH),
    );
    for Frontier { section, threads, locks, unmeasured } in &document.frontiers {
        let best = if locks.is_empty() { "none".into() } else { locks.join(", ") };
        text += &format!(
            "{section}, {threads} threads: no other lock beats, in throughput and p99.99 of waits, {best}"
        );
        if !unmeasured.is_empty() {
            text += &format!("; not compared, for too little got through: {}", unmeasured.join(", "));
        }
        text += ".\n";
    }
    for verdict in &document.verdicts {
        text += &format!("{verdict}\n");
    }
    text
}

#[cfg(test)]
impl Cell {
    /// Of short sections, with this throughput and these waits.
    fn sample(lock: &'static str, threads: usize, ops_s: f64, wait_ms: f64) -> Cell {
        Cell {
            lock,
            threads,
            section: "short",
            ops_s,
            least_ops_s: ops_s,
            most_ops_s: ops_s,
            jain: 1.0,
            max_over_min: Some(1.0),
            wait_p50_us: Some(0.0),
            wait_p999_us: Some(wait_ms * 1e3),
            wait_p9999_us: Some(wait_ms * 1e3),
            wait_max_us: Some(wait_ms * 1e3),
            cpus: 2.0,
            switches_s: 0.0,
            order_checks: 0,
            overtakings: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_nobody_got_has_no_waits_and_is_not_called_unbeaten() {
        let run = |waited: Option<f64>| Outcome {
            ops_s: 0.0,
            jain: 0.0,
            spread: f64::NAN,
            p50_us: waited,
            p999_us: waited,
            p9999_us: waited,
            max_us: waited,
            cpus: 2.0,
            switches_s: 0.0,
            order_checks: 0,
            overtakings: 0,
        };
        assert_eq!(cell("ticket", 16, "short", &[run(Some(7.0)), run(None)]).wait_p9999_us, None);
        let cells =
            vec![Cell::sample("glibc", 16, 8e6, 50.0), cell("ticket", 16, "short", &[run(None), run(None)])];
        let document = Document {
            bench: "lock",
            rounds: 2,
            seconds: 0.3,
            busy_at_start_cpus: Some(2.0),
            frontiers: frontiers(&cells),
            cells,
            verdicts: vec![],
        };
        let text = text(&document);
        assert!(text.starts_with("WARNING: others used 2.0 CPUs"), "{text}");
        let row = text.lines().find(|line| line.starts_with("ticket")).unwrap();
        assert_eq!(row.split_whitespace().filter(|cell| *cell == NONE).count(), 6, "{row}");
        assert!(
            text.contains("p99.99 of waits, glibc; not compared, for too little got through: ticket.\n"),
            "{text}"
        );
    }

    #[test]
    fn runs_have_a_length() {
        assert_eq!((seconds("10"), seconds("0.5")), (Ok(10.0), Ok(0.5)));
        for bad in ["0", "-1", "nan", "inf", "1e9", "10s", ""] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
