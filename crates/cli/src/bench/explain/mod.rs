//! `corefit bench explain`: how long it takes to know what every VM of a host gets, and what looking costs.

mod cost;
mod generate;
mod seen;

pub(super) use cost::of_libvirt;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use corefit_core::entitle::{Host, Wants, available_to_all, entitled};
use serde::Serialize;

use super::measured::{Measured, ms};
use super::print;
use crate::stats::median;
use crate::table::Table;
use generate::Shape;

/// Time the division of large hosts on one core, and what it costs to look at one every second
#[derive(clap::Args)]
pub(super) struct Args {
    /// One host of each kind, timed once, five looks; not `available` on single pCPUs, which takes minutes
    #[arg(long)]
    quick: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Only hosts whose kind contains this, such as `range`, or `looking`
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
/// Looks at each host.
const LOOKS: usize = 30;

#[derive(Serialize)]
struct Document {
    bench: &'static str,
    seed: u64,
    hosts: u64,
    rows: Vec<Row>,
    looks: Vec<cost::Cost>,
    skipped: Vec<String>,
}

/// The hosts of one kind and size.
#[derive(Serialize)]
struct Row {
    affinities: String,
    vcpus: usize,
    /// `entitled` of the whole host, with reasons.
    entitled: Measured,
    /// Full sets of pCPUs, one after the other; the median.
    full_sets: f64,
    check_ms: f64,
    /// `available` of every VM; `None` if not measured.
    available: Option<Measured>,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let hosts = if args.quick { 1 } else { HOSTS };
    let mut rows = Vec::new();
    for (shape, target) in Shape::ALL.into_iter().filter(|(shape, _)| shape.name().contains(&args.only)) {
        rows.push(row(shape, LARGE, target, args.seed, hosts)?);
    }
    if Shape::RangePerVm.name().contains(&args.only) {
        for vcpus in [10, 100, 1_000] {
            rows.push(row(Shape::RangePerVm, vcpus, None, args.seed, hosts)?);
        }
    }
    let (looks, skipped) = cost::all(&args.only, if args.quick { LOOKS / 6 } else { LOOKS })?;
    if rows.is_empty() && looks.is_empty() && skipped.is_empty() {
        bail!("--only {:?}: no kind of host contains this; the kinds are {}", args.only, kinds());
    }
    let document = Document { bench: "explain", seed: args.seed, hosts, rows, looks, skipped };
    print(args.json, &document, text)?;
    Ok(ExitCode::SUCCESS)
}

fn kinds() -> String {
    Shape::ALL.iter().map(|(shape, _)| shape.name()).chain(["looking".into()]).collect::<Vec<_>>().join(", ")
}

fn row(shape: Shape, vcpus: usize, target: Option<f64>, seed: u64, hosts: u64) -> Result<Row> {
    let large = vcpus == LARGE;
    let mut timings = Vec::new();
    for host in 0..hosts {
        // Without a promise it takes minutes: once is enough, and never in a hurry.
        let all = target.is_some() || !large || (host == 0 && hosts > 1);
        timings.push(time(&generate::host(shape, vcpus, seed + host), all)?);
    }
    let of = |part: fn(&Timing) -> f64| timings.iter().map(part).collect::<Vec<_>>();
    let available: Vec<f64> = timings.iter().filter_map(|timing| timing.available_ms).collect();
    Ok(Row {
        affinities: shape.name(),
        vcpus,
        entitled: Measured::of(&of(|t| t.entitled_ms), target).context("nothing was measured")?,
        full_sets: median(of(|t| t.full_sets)).unwrap_or(f64::NAN),
        check_ms: median(of(|t| t.check_ms)).unwrap_or(f64::NAN),
        available: Measured::of(&available, target.map(|_| AVAILABLE_MS)),
    })
}

struct Timing {
    entitled_ms: f64,
    full_sets: f64,
    check_ms: f64,
    available_ms: Option<f64>,
}

fn time(host: &Host, all: bool) -> Result<Timing> {
    let start = Instant::now();
    let division = entitled(host)?;
    let entitled_ms = ms(start);
    let certificate = division.certificate();
    let start = Instant::now();
    certificate.check(host, Wants::Everything).context("the division is wrong")?;
    let check_ms = ms(start);
    let start = Instant::now();
    let available = all.then(|| available_to_all(host)).transpose()?;
    let available_ms = available.map(|_| ms(start));
    let full_sets = u32::try_from(certificate.full.len()).map_or(f64::NAN, f64::from);
    Ok(Timing { entitled_ms, full_sets, check_ms, available_ms })
}

fn text(document: &Document) -> String {
    let headings = [
        "affinities",
        "vCPUs",
        "full sets",
        "check ms",
        "entitled ms",
        "spread",
        "promised",
        "available ms",
        "spread",
        "promised",
    ];
    let mut table = Table::new(1, &headings);
    for row in &document.rows {
        let mut cells = vec![row.affinities.clone(), row.vcpus.to_string()];
        cells.extend([format!("{:.0}", row.full_sets), format!("{:.2}", row.check_ms)]);
        cells.extend(row.entitled.text());
        let none = ["-", "-", "-"].map(String::from);
        cells.extend(row.available.as_ref().map_or(none, Measured::text));
        table.row(cells);
    }
    let mut text = String::new();
    if !document.rows.is_empty() {
        text = format!(
            "Medians over {} hosts of each kind, from the fastest to the slowest; ten vCPUs a VM, about ten \
             vCPUs a pCPU; every division was checked.\n\
             entitled: the whole host, with reasons. available: of every VM, one after the other.\n\n{}\n",
            document.hosts,
            table.render()
        );
    }
    text + &cost::text(&document.looks, &document.skipped)
}
