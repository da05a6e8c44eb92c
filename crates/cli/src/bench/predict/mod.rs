//! `corefit bench predict`: what `corefit profile` predicts, against what is measured side by side.
//!
//! ```text
//!   one profile on all CPUs, one on a single CPU ─▶ predictions ┐
//!   six runs of 1 to 8 threads ─▶ USL ──────────────────────────┼─▶ errors, per condition and in all
//!   rounds: one thread, then each condition (quotas, neighbours) ┘
//! ```
//! With `--vm` all of it runs in VMs, the profiles and single threads in one that has a vCPU for each CPU. Their clock is the TSC, and
//! only one of them runs at a time. `--save` keeps the profiles' records and all runs, `--from` predicts them anew.
//!
//! Everything runs with the passive wait policy, as the profile does. Compared are *dedicated cores*: how fast the program
//! is in a condition, over one thread on one idle CPU; a speedup at equal share is that over the share, with the
//! same relative error. The fit of the USL takes runs on the idle machine; for a VM it can only be multiplied by
//! the share.

mod guests;
mod measure;
mod report;
mod saved;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::arena::Arena;
use super::others;
use super::overcommit::find_root;
use super::print;
use crate::bar::Progress;
use crate::interrupt::Interrupt;
use guests::Guests;
use measure::{Case, Host, Runs};
use report::Document;
use saved::Saved;
use serde::{Deserialize, Serialize};

/// Predictions of `corefit profile` against measurements
#[derive(clap::Args)]
pub(super) struct Args {
    /// Programs of workloads/ [default: all ten; with --quick ep, cg, is, pipeline]
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    programs: Vec<String>,
    /// Their size: T, S, W, A or W*N; below W the profile has few looks
    #[arg(long, default_value = "W", value_parser = size)]
    size: String,
    /// Rounds of one thread and each condition; the median of their speedups counts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    repeat: Option<u32>,
    /// Cut a run off after so many seconds; what is cut off is not compared
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    limit: u64,
    /// Four programs, four conditions, one round
    #[arg(long)]
    quick: bool,
    /// Only conditions of these kinds: machine, quota, neighbour
    #[arg(long, value_delimiter = ',', value_name = "LIST", conflicts_with = "vm", value_parser = ["machine", "quota", "neighbour"])]
    only: Vec<String>,
    /// In real VMs of 4 and 8 vCPUs (scripts/testvm; root), from profiles in one with a vCPU for each CPU
    #[arg(long, conflicts_with = "quick")]
    vm: bool,
    /// Keep what was measured, profiles and runs, in a file
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Measure nothing: predict anew what such files hold
    #[arg(long, value_delimiter = ',', value_name = "FILES", conflicts_with_all = ["programs", "size", "repeat", "limit", "quick", "only", "vm", "save"])]
    from: Vec<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Every run on stderr
    #[arg(long)]
    verbose: bool,
    /// Root of the repository [default: the nearest one above the executable or here]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

/// As workloads/common.h reads it.
fn size(text: &str) -> Result<String, String> {
    let times = text.strip_prefix(['T', 'S', 'W', 'A']);
    let good = |times: &str| {
        let n = times.strip_prefix('*').filter(|n| n.starts_with(|c: char| c.is_ascii_digit() && c != '0'));
        times.is_empty() || n.and_then(|n| n.parse().ok()).is_some_and(|n: u32| n <= 10_000)
    };
    let right = times.is_some_and(good);
    right.then(|| text.into()).ok_or("give T, S, W or A, or W*N with N from 1 to 10000".into())
}

const PROGRAMS: [&str; 10] = ["ep", "cg", "mg", "ft", "is", "bt", "sp", "lu", "ua", "pipeline"];
const QUICK: [&str; 4] = ["ep", "cg", "is", "pipeline"];
/// Threads of it spin on flags of their own, which no wait policy cures.
const SPINS: [&str; 1] = ["lu"];

/// A condition that predictions are made for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Condition {
    /// All CPUs, nobody else.
    Machine,
    /// A quota for all threads together: this part of the CPUs, in periods of so many ms.
    Quota { share: f64, period_ms: u32 },
    /// Busy neighbours on all CPUs with so many times the weight, and so many threads on each CPU.
    Neighbour { weight: u32, each: u32 },
    /// A VM with so many vCPUs on so many CPUs, its share as a quota for each vCPU in periods of so many ms.
    Vm { vcpus: u32, cpus: u32, period_ms: u32 },
}

impl Condition {
    pub(super) fn name(self) -> String {
        match self {
            Condition::Machine => "machine".into(),
            Condition::Quota { share, period_ms } => {
                format!("quota {:.0} % in {period_ms} ms", 100.0 * share)
            }
            Condition::Neighbour { weight, each: 1 } => format!("neighbour, weight {weight}"),
            Condition::Neighbour { weight, each } => {
                format!("neighbour, weight {weight}, {each} threads per CPU")
            }
            Condition::Vm { vcpus, period_ms, .. } => {
                format!("VM, {vcpus} vCPUs, {:.0} % each in {period_ms} ms", 100.0 * self.share())
            }
        }
    }

    /// What a vCPU gets where all want everything.
    pub(super) fn share(self) -> f64 {
        match self {
            Condition::Machine => 1.0,
            Condition::Quota { share, .. } => share,
            Condition::Neighbour { weight, .. } => 1.0 / f64::from(1 + weight),
            Condition::Vm { vcpus, cpus, .. } => f64::from(cpus) / f64::from(vcpus),
        }
    }

    /// (v)CPUs of the program.
    fn vcpus(self, cpus: usize) -> usize {
        match self {
            Condition::Vm { vcpus, .. } => usize::try_from(vcpus).unwrap_or(usize::MAX),
            _ => cpus,
        }
    }

    /// Its threads.
    fn threads(self, cpus: usize) -> usize {
        match self {
            Condition::Neighbour { each, .. } => cpus * usize::try_from(each).unwrap_or(1),
            _ => self.vcpus(cpus),
        }
    }

    /// What it gets in all, CPUs.
    fn cpus(self, cpus: usize) -> f64 {
        self.vcpus(cpus) as f64 * self.share()
    }

    /// Whose errors are told together.
    fn group(self) -> &'static str {
        match self {
            Condition::Machine => "machine",
            Condition::Quota { .. } => "quota",
            Condition::Neighbour { .. } => "neighbour",
            Condition::Vm { .. } => "VM",
        }
    }
}

/// Periods are those of the profile's grid: 24 ms, and 4 times that.
fn conditions(quick: bool) -> Vec<Condition> {
    let quota = |share, period_ms| Condition::Quota { share, period_ms };
    let neighbour = |weight, each| Condition::Neighbour { weight, each };
    if quick {
        return vec![Condition::Machine, quota(0.5, 24), quota(0.5, 96), neighbour(1, 1)];
    }
    vec![
        Condition::Machine,
        quota(0.75, 24),
        quota(0.5, 24),
        quota(0.5, 96),
        quota(0.25, 24),
        quota(0.25, 192),
        neighbour(1, 1),
        neighbour(3, 1),
        neighbour(1, 2),
    ]
}

/// All CPUs of the machine in all, in the periods of the grid.
fn in_vms(cpus: u32) -> Vec<Condition> {
    let each = |vcpus| [24, 96].map(|period_ms| Condition::Vm { vcpus, cpus, period_ms });
    guests::VCPUS.into_iter().filter(|vcpus| *vcpus > cpus).flat_map(each).collect()
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    if !args.from.is_empty() {
        return tell_errors(&Saved::read(&args.from)?, args.json);
    }
    let root = match &args.root {
        Some(root) => root.canonicalize().with_context(|| root.display().to_string())?,
        None => find_root()?,
    };
    let chosen: Vec<String> = match (&args.programs[..], args.quick) {
        ([], false) => PROGRAMS.map(str::to_owned).to_vec(),
        ([], true) => QUICK.map(str::to_owned).to_vec(),
        (chosen, _) => chosen.to_vec(),
    };
    let mut cases = vec![];
    for name in chosen {
        if !PROGRAMS.contains(&name.as_str()) {
            bail!("--programs: there is no {name:?}; there are: {}", PROGRAMS.join(" "));
        }
        let path = root.join("build/workloads/gcc").join(&name);
        ensure!(
            path.is_file(),
            "{} is missing: run `make -C {}`",
            path.display(),
            root.join("workloads").display()
        );
        cases.push(Case {
            threads_are_argument: name == "pipeline",
            spins: SPINS.contains(&name.as_str()),
            name,
            path,
        });
    }
    let interrupt = Interrupt::install()?;
    let arena = Arena::open()?;
    let cpus = arena.cpus().len();
    ensure!(cpus >= 2, "there is one CPU only: nothing can be predicted that could be measured here");
    let usable = arena.cpu_groups().is_some();
    let conditions = match args.vm {
        true => {
            let most = guests::VCPUS.into_iter().max().unwrap_or(0) as usize;
            ensure!(
                cpus < most,
                "--vm: VMs of at most {most} vCPUs, of which {cpus} CPUs leave nothing to predict"
            );
            in_vms(u32::try_from(cpus)?)
        }
        false => conditions(args.quick)
            .into_iter()
            .filter(|c| usable || *c == Condition::Machine)
            .filter(|c| args.only.is_empty() || args.only.iter().any(|only| only == c.group()))
            .collect(),
    };
    if !usable && !args.vm {
        tell!("corefit bench: quotas and neighbours are left out: {}", arena.refusal());
    }
    let repeat = args.repeat.unwrap_or(if args.quick { 1 } else { 3 });
    let profiles = if args.vm { guests::VCPUS.len() } else { 2 };
    let runs = measure::USL.len() + profiles + (conditions.len() + 1) * repeat as usize - 1;
    let progress = Progress::new(cases.len() * runs, args.verbose);
    let (size, limit) = (args.size.clone(), Duration::from_secs(args.limit));
    let mut place: Box<dyn Runs> = if args.vm {
        match Guests::start(&root, cpus, &interrupt, progress, (size, limit))? {
            Ok(guests) => Box::new(guests),
            Err(why) => {
                tell!("corefit: no VM to measure in: {why}");
                return Ok(ExitCode::FAILURE);
            }
        }
    } else {
        Box::new(Host { arena: &arena, interrupt: &interrupt, progress, size, limit, cpus })
    };
    let spoiled = others::warning(others::busy());
    if !spoiled.is_empty() {
        tell!("{}", spoiled.trim_end());
    }
    let mut saved = Saved::new(cpus, &args.size, repeat);
    for case in &cases {
        saved.programs.push(measure::program(&mut *place, case, &conditions, cpus, repeat)?);
        // After each: what was measured is not lost with the next one.
        if let Some(file) = &args.save {
            saved.write(file)?;
        }
    }
    tell_errors(&saved, args.json)
}

fn tell_errors(saved: &Saved, json: bool) -> Result<ExitCode> {
    let (points, costs) = saved.points();
    let document = Document::new(saved.cpus, &saved.size, saved.repeat, points, &costs);
    print(json, &document, Document::text)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_are_those_of_the_programs() {
        for (text, good) in [
            ("T", true),
            ("W*20", true),
            ("A*10000", true),
            ("Q", false),
            ("", false),
            ("W20", false),
            ("W*", false),
            ("W*0", false),
            ("W*+1", false),
            ("W*10001", false),
        ] {
            assert_eq!(size(text).is_ok(), good, "{text:?}");
        }
    }
}
