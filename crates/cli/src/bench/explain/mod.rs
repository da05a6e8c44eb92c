//! `corefit bench explain`: how long it takes to know what every VM of a host gets.

mod generate;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use corefit_core::entitle::{Host, Wants, available_to_all, entitled};
use serde::Serialize;

use super::stats::median;
use super::table::Table;
use generate::Shape;

/// Time the division of large hosts, on one core
#[derive(clap::Args)]
pub(super) struct Args {
    /// One host of each kind, timed once
    #[arg(long)]
    quick: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Only hosts whose kind contains this, such as `range`
    #[arg(long, default_value = "")]
    only: String,
    /// First of the seeds that the hosts are made of
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// vCPUs of the hosts that promises are about; a tenth as many VMs, about a tenth as many pCPUs.
const LARGE: usize = 10_000;
/// The promise for `available` of all VMs, ms.
const AVAILABLE_MS: f64 = 1000.0;
/// Different hosts of each kind.
const HOSTS: u64 = 5;

#[derive(Serialize)]
struct Document {
    bench: &'static str,
    seed: u64,
    hosts: u64,
    rows: Vec<Row>,
}

/// Medians over the hosts of one kind.
#[derive(Serialize)]
struct Row {
    affinities: String,
    vcpus: usize,
    /// `entitled` of the whole host, with reasons.
    entitled_ms: f64,
    worst_entitled_ms: f64,
    /// The promise.
    entitled_target_ms: Option<f64>,
    /// Full sets of pCPUs, one after the other.
    full_sets: f64,
    check_ms: f64,
    /// `available` of every VM.
    available_ms: f64,
    available_target_ms: Option<f64>,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let hosts = if args.quick { 1 } else { HOSTS };
    let mut rows = Vec::new();
    for (shape, target) in Shape::ALL.into_iter().filter(|(shape, _)| shape.name().contains(&args.only)) {
        rows.push(row(shape, LARGE, target, args.seed, hosts)?);
    }
    for vcpus in [10, 100, 1_000] {
        rows.push(row(Shape::RangePerVm, vcpus, None, args.seed, hosts)?);
    }
    let document = Document { bench: "explain", seed: args.seed, hosts, rows };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&document)?);
    } else {
        print!("{}", text(&document));
    }
    Ok(ExitCode::SUCCESS)
}

fn row(shape: Shape, vcpus: usize, target: Option<f64>, seed: u64, hosts: u64) -> Result<Row> {
    let mut timings = Vec::new();
    for seed in seed..seed + hosts {
        timings.push(time(&generate::host(shape, vcpus, seed))?);
    }
    let of = |part: fn(&Timing) -> f64| median(timings.iter().map(part)).unwrap_or(f64::NAN);
    let large = vcpus == LARGE;
    Ok(Row {
        affinities: shape.name(),
        vcpus,
        entitled_ms: of(|t| t.entitled_ms),
        worst_entitled_ms: timings.iter().map(|t| t.entitled_ms).fold(0.0, f64::max),
        entitled_target_ms: target,
        full_sets: of(|t| t.full_sets),
        check_ms: of(|t| t.check_ms),
        available_ms: of(|t| t.available_ms),
        available_target_ms: (large && target.is_some()).then_some(AVAILABLE_MS),
    })
}

struct Timing {
    entitled_ms: f64,
    full_sets: f64,
    check_ms: f64,
    available_ms: f64,
}

fn time(host: &Host) -> Result<Timing> {
    let start = Instant::now();
    let division = entitled(host)?;
    let entitled_ms = ms(start);
    let certificate = division.certificate();
    let start = Instant::now();
    certificate.check(host, Wants::Everything).context("the division is wrong")?;
    let check_ms = ms(start);
    let start = Instant::now();
    available_to_all(host)?;
    let available_ms = ms(start);
    let full_sets = u32::try_from(certificate.full.len()).map_or(f64::NAN, f64::from);
    Ok(Timing { entitled_ms, full_sets, check_ms, available_ms })
}

fn ms(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

fn text(document: &Document) -> String {
    let headings = [
        "affinities",
        "vCPUs",
        "entitled ms",
        "worst",
        "at most",
        "full sets",
        "check ms",
        "available ms",
        "at most",
    ];
    let mut table = Table::new(1, &headings);
    let number = |x: f64| if x < 10.0 { format!("{x:.2}") } else { format!("{x:.0}") };
    let target = |x: Option<f64>| x.map_or("-".into(), number);
    for row in &document.rows {
        table.row(vec![
            row.affinities.clone(),
            row.vcpus.to_string(),
            number(row.entitled_ms),
            number(row.worst_entitled_ms),
            target(row.entitled_target_ms),
            format!("{:.0}", row.full_sets),
            number(row.check_ms),
            number(row.available_ms),
            target(row.available_target_ms),
        ]);
    }
    format!(
        "Medians over {} hosts of each kind; ten vCPUs a VM, about ten vCPUs a pCPU; every result was checked.\n\
         entitled: the whole host, with reasons. available: of every VM, one after the other.\n\n{}",
        document.hosts,
        table.render()
    )
}
