//! `corefit bench place`: how long it takes to find out where vCPUs should run.

mod generate;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use corefit_core::place::{Placement, Policy, Problem, cost, place, present, throughput};
use serde::Serialize;

use super::measured::{Measured, ms};
use super::print;
use crate::table::Table;
use generate::{Kind, problem};

/// Time the placement of 1,000 vCPUs on 512 pCPUs, and of one VM more, on one core
#[derive(clap::Args)]
pub(super) struct Args {
    /// One host of each kind
    #[arg(long)]
    quick: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// First of the seeds that the hosts are made of
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Different hosts of each kind.
const HOSTS: u64 = 9;
/// The promises, ms.
const WHOLE_MS: f64 = 100.0;
const ONE_VM_MS: f64 = 5.0;

#[derive(Serialize)]
struct Document {
    bench: &'static str,
    seed: u64,
    hosts: u64,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    kind: &'static str,
    vcpus: usize,
    pcpus: usize,
    vms: usize,
    /// All VMs at once.
    whole: Measured,
    /// One VM, all others staying where they were put.
    one_vm: Measured,
    /// Means over the hosts.
    competing_before: f64,
    competing_after: f64,
    throughput_gain_percent: f64,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let hosts = if args.quick { 1 } else { HOSTS };
    let rows = Kind::ALL.into_iter().map(|kind| row(kind, args.seed, hosts)).collect::<Result<Vec<Row>>>()?;
    let document = Document { bench: "place", seed: args.seed, hosts, rows };
    print(args.json, &document, text)?;
    Ok(ExitCode::SUCCESS)
}

fn row(kind: Kind, seed: u64, hosts: u64) -> Result<Row> {
    let (mut whole, mut one_vm) = (Vec::new(), Vec::new());
    let (mut before, mut after, mut gain) = (0.0, 0.0, 0.0);
    let mut shape = (0, 0, 0);
    for host in 0..hosts {
        let problem = problem(kind, seed + host)?;
        let vcpus = problem.vms.iter().map(|vm| vm.vcpus.len()).sum();
        shape = (vcpus, problem.topology.pcpus.len(), problem.vms.len());
        let start = Instant::now();
        let found = place(&problem, Policy::Corefit);
        whole.push(ms(start));
        ensure!(found.cost.stacked() == 0, "{}: {} vCPUs are stacked", kind.name(), found.cost.stacked());
        before += present(&problem).competing();
        after += cost(&problem, &found).competing();
        let now = throughput(&problem, &place(&problem, Policy::None));
        gain += 100.0 * (throughput(&problem, &found) / now - 1.0);
        let next = all_but_one(&problem, &found);
        let start = Instant::now();
        let again = place(&next, Policy::Corefit);
        one_vm.push(ms(start));
        ensure!(again.vms.len() == next.vms.len(), "a VM got lost");
    }
    let mean = |sum: f64| sum / f64::from(u32::try_from(hosts).unwrap_or(1));
    Ok(Row {
        kind: kind.name(),
        vcpus: shape.0,
        pcpus: shape.1,
        vms: shape.2,
        whole: Measured::of(&whole, Some(WHOLE_MS)).context("nothing was measured")?,
        one_vm: Measured::of(&one_vm, Some(ONE_VM_MS)).context("nothing was measured")?,
        competing_before: mean(before),
        competing_after: mean(after),
        throughput_gain_percent: mean(gain),
    })
}

/// The placement in force, and one VM in the middle that has just come.
fn all_but_one(problem: &Problem, found: &Placement) -> Problem {
    let mut next = problem.clone();
    let comes = next.vms.len() / 2;
    for (number, (vm, placed)) in next.vms.iter_mut().zip(&found.vms).enumerate() {
        vm.stays = number != comes;
        for (vcpu, seat) in vm.vcpus.iter_mut().zip(&placed.vcpus) {
            vcpu.now = seat.affinity.clone().filter(|_| number != comes);
            vcpu.on = None;
        }
    }
    next
}

fn text(document: &Document) -> String {
    let headings = [
        "host",
        "vCPUs",
        "pCPUs",
        "VMs",
        "all ms",
        "spread",
        "",
        "one VM ms",
        "spread",
        "",
        "competing",
        "throughput",
    ];
    let mut table = Table::new(1, &headings);
    for row in &document.rows {
        let mut cells =
            vec![row.kind.into(), row.vcpus.to_string(), row.pcpus.to_string(), row.vms.to_string()];
        for measured in [&row.whole, &row.one_vm] {
            cells.extend(measured.text());
        }
        cells.push(format!("{:.1} -> {:.1}", row.competing_before, row.competing_after));
        // Without a sign of zero less than nothing.
        cells.push(format!("{:+.1} %", (10.0 * row.throughput_gain_percent).round() / 10.0 + 0.0));
        table.row(cells);
    }
    format!(
        "Medians over {} hosts of each kind, from the fastest to the slowest.\n\n{}",
        document.hosts,
        table.render()
    )
}
