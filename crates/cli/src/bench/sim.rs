//! `corefit bench sim`: how fast hosts are simulated.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use corefit_sim::{Scenario, Set, Sim};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::print;
use crate::table::Table;

/// Time simulated hosts, on one core
#[derive(clap::Args)]
pub(super) struct Args {
    /// A tenth of the time
    #[arg(long)]
    quick: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// The promise, events per second.
const TARGET: f64 = 12e6;

/// Scenarios, and how long a time of each is simulated.
const CASES: [(&str, &str, u64); 4] = [
    ("barriers on 16 pCPUs", include_str!("../../../../scenarios/bench-barriers.toml"), 20),
    ("kernel locks on 64 pCPUs", include_str!("../../../../scenarios/bench-locks.toml"), 5),
    ("eight overcommitted VMs on 32 pCPUs", include_str!("../../../../scenarios/lu-overcommitted.toml"), 20),
    ("4,096 vCPUs on 512 pCPUs", include_str!("../../../../scenarios/bench-large.toml"), 1),
];

#[derive(Serialize)]
struct Document {
    bench: &'static str,
    target_events_per_s: f64,
    cases: Vec<Case>,
}

#[derive(Serialize)]
struct Case {
    name: &'static str,
    events: u64,
    seconds: f64,
    events_per_s: f64,
    /// Simulated time of all pCPUs, per second.
    pcpu_s_per_s: f64,
    /// SHA-256 of the truth, so that speeds are of the same work.
    result: String,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let cases = CASES.map(|case| time(case, args.quick));
    let cases = cases.into_iter().collect::<Result<Vec<Case>>>()?;
    let document = Document { bench: "sim", target_events_per_s: TARGET, cases };
    print(args.json, &document, text)?;
    Ok(ExitCode::SUCCESS)
}

fn text(document: &Document) -> String {
    let mut table = Table::new(1, &["host", "events", "s", "million events/s", "pCPU-s/s", "result"]);
    for case in &document.cases {
        table.row(vec![
            case.name.into(),
            case.events.to_string(),
            format!("{:.2}", case.seconds),
            format!("{:.1}", case.events_per_s / 1e6),
            format!("{:.0}", case.pcpu_s_per_s),
            case.result[..12].into(),
        ]);
    }
    format!("{}\nPromised: {:.0} million events/s up to 64 pCPUs.", table.render(), TARGET / 1e6)
}

fn time((name, text, simulated_s): (&'static str, &str, u64), quick: bool) -> Result<Case> {
    let no_sets: [Set; 0] = [];
    let scenario = Scenario::parse(text, &no_sets).map_err(|e| anyhow!("{name}: {e}"))?;
    let mut sim = Sim::new(&scenario.spec).with_context(|| name)?;
    let simulated_ns = simulated_s * if quick { 100_000_000 } else { 1_000_000_000 };
    let begin = Instant::now();
    sim.run_for(simulated_ns);
    let seconds = begin.elapsed().as_secs_f64();
    let truth = serde_json::to_string(&sim.truth())?;
    let digest = Sha256::digest(truth.as_bytes());
    let pcpus = f64::from(scenario.spec.hardware.pcpus());
    Ok(Case {
        name,
        events: sim.events(),
        seconds,
        events_per_s: sim.events() as f64 / seconds,
        pcpu_s_per_s: simulated_ns as f64 / 1e9 * pcpus / seconds,
        result: format!("{digest:x}"),
    })
}
