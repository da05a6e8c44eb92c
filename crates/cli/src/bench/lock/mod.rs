//! `corefit bench lock`: the opportunistic ticket lock beside glibc's mutex, `parking_lot`'s, and the
//! locks that wait in order, all through one harness, in turns within each round.

mod harness;
mod judge;
mod waits;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use corefit_lock::{RawMutex, peers};
use serde::Serialize;

use super::progress::Progress;
use super::stats::{Random, median};
use super::table::{NONE, Table};
use harness::{Outcome, SECTIONS, Section};
use judge::Verdict;

/// Compare locks: throughput, fairness and waits, with fewer and with more threads than CPUs
#[derive(clap::Args)]
pub(super) struct Args {
    /// Short sections only, 1, 2 and 64 threads, 3 rounds; about a minute and a half
    #[arg(long)]
    quick: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Numbers of threads
    #[arg(long, value_delimiter = ',', value_name = "N,...")]
    threads: Vec<usize>,
    /// Only these sections
    #[arg(long, value_delimiter = ',', value_name = "NAME,...", value_parser = ["short", "medium", "long", "zipf"])]
    sections: Vec<String>,
    /// Only these locks
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    locks: Vec<String>,
    /// Rounds; in each every lock runs once, in a new random order
    #[arg(long)]
    rounds: Option<usize>,
    /// Time of one run, without and then with clocks, s
    #[arg(long)]
    seconds: Option<f64>,
}

type Run = fn(usize, Section, Duration) -> Result<Outcome>;

/// A lock with its name.
const LOCKS: [(&str, Run); 10] = [
    ("glibc", harness::run::<peers::Glibc>),
    ("glibc-adaptive", harness::run::<peers::Adaptive>),
    ("parking_lot", harness::run::<parking_lot::RawMutex>),
    ("ticket", harness::run::<peers::Ticket>),
    ("pv-ticket", harness::run::<peers::PvTicket>),
    ("ticket-futex", harness::run::<peers::TicketFutex>),
    ("mcs-park", harness::run::<peers::McsPark>),
    ("paper", harness::run::<RawMutex<corefit_lock::Paper>>),
    ("fifo", harness::run::<RawMutex<corefit_lock::Fifo>>),
    ("default", harness::run::<RawMutex<corefit_lock::Default>>),
];

#[derive(Serialize)]
struct Document {
    bench: &'static str,
    rounds: usize,
    seconds: f64,
    cells: Vec<Cell>,
    verdicts: Vec<Verdict>,
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
    wait_p50_us: f64,
    wait_p999_us: f64,
    wait_p9999_us: f64,
    wait_max_us: f64,
    cpus: f64,
    switches_s: f64,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let quick_threads: &[usize] = if args.quick { &[1, 2, 64] } else { &[1, 2, 4, 16, 64] };
    let threads = if args.threads.is_empty() { quick_threads } else { &args.threads };
    let rounds = args.rounds.unwrap_or(if args.quick { 3 } else { 10 }).max(1);
    let seconds = args.seconds.unwrap_or(if args.quick { 0.5 } else { 10.0 });
    let wanted = |names: &[String], name: &str| names.is_empty() || names.iter().any(|n| n == name);
    let sections: Vec<Section> = SECTIONS
        .into_iter()
        .filter(|s| wanted(&args.sections, s.name) && (!args.quick || s.name == "short"))
        .collect();
    let locks: Vec<_> = LOCKS.into_iter().filter(|(name, _)| wanted(&args.locks, name)).collect();
    let mut progress = Progress::new(sections.len() * threads.len() * rounds * locks.len(), false);
    let mut random = Random::new(1);
    let mut cells = Vec::new();
    for section in &sections {
        for n in threads {
            let mut outcomes = vec![Vec::new(); locks.len()];
            for _ in 0..rounds {
                let mut order: Vec<usize> = (0..locks.len()).collect();
                random.shuffle(&mut order);
                for i in order {
                    progress.begin(&format!("{} {} {n}", locks[i].0, section.name));
                    outcomes[i].push((locks[i].1)(*n, *section, Duration::from_secs_f64(seconds / 2.0))?);
                    progress.end(locks[i].0, "");
                }
            }
            let row = |(i, runs): (usize, &Vec<Outcome>)| cell(locks[i].0, *n, section.name, runs);
            cells.extend(outcomes.iter().enumerate().map(row));
        }
    }
    drop(progress);
    let verdicts = judge::judge(&cells);
    let document = Document { bench: "lock", rounds, seconds, cells, verdicts };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&document)?);
    } else {
        print!("{}", text(&document));
    }
    Ok(ExitCode::SUCCESS)
}

fn cell(lock: &'static str, threads: usize, section: &'static str, runs: &[Outcome]) -> Cell {
    let of = |part: fn(&Outcome) -> f64| median(runs.iter().map(part)).unwrap_or(f64::NAN);
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
        wait_p50_us: of(|o| o.p50_us),
        wait_p999_us: of(|o| o.p999_us),
        wait_p9999_us: of(|o| o.p9999_us),
        wait_max_us: of(|o| o.max_us),
        cpus: of(|o| o.cpus),
        switches_s: of(|o| o.switches_s),
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
    ];
    let mut table = Table::new(2, &headings);
    let us = |x: f64| if x < 10.0 { format!("{x:.2}") } else { format!("{x:.0}") };
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
        ]);
    }
    let mut text = table.render();
    text += &format!(
        "\nMedians of {} rounds of {} s; M/s without clocks in the loop, waits with.\n",
        document.rounds, document.seconds
    );
    for verdict in &document.verdicts {
        text += &format!("{verdict}\n");
    }
    text
}
