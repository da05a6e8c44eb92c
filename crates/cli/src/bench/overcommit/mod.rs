//! `corefit bench overcommit`: parallel programs with fewer CPUs than they think they have,
//! by default, with the passive wait policy, at the best fixed thread count (the oracle), and
//! by `corefit run`, side by side in one run.
//!
//! ```text
//!   warm up ──▶ per condition: certify ──▶ set up ──▶ per program: R x shuffled configurations
//!   (right checksums)                                              │ each: wall clock, result
//!                                                                  ▼
//!                                     medians ──▶ oracle ──▶ rows ──▶ targets, tables, picture
//! ```
//!
//! Times are those of the whole command as the bench sees it, so corefit's own start-up
//! counts. Certification is not counted: it is done once in the life of a program.

mod apps;
mod certify;
mod conditions;
mod delays;
mod document;
mod machine;
mod measure;
mod oracle;
mod plan;
mod programs;
mod session;
mod step;
mod svg;
mod targets;
mod text;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde::Serialize;

use super::arena::Arena;
use crate::interrupt::Interrupt;
use crate::{lines, named, picture};
use conditions::Condition;
use document::Document;
use measure::Bench;
use plan::Config;
use programs::{Case, PROGRAMS, QUICK, QUICK_STEP, Runtime};

/// Programs with fewer CPUs than they think: default, passive, oracle and corefit
///
/// Needs the programs of `make -C workloads`. Root, or a delegated control group, is needed
/// for `quota`; the other conditions are made with plain processes where there is neither.
/// Exit status 1 if a result was wrong.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Three minutes: few programs, size S, one repetition, limit 3 s, no apps
    #[arg(long)]
    quick: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Write a picture of one condition; .svg or .png
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// The condition of that picture
    #[arg(long, value_enum, default_value = "neighbour", value_name = "NAME")]
    svg_condition: Condition,
    /// Conditions [default: all]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    conditions: Vec<Condition>,
    /// Programs [default: all]
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    programs: Vec<String>,
    /// Compilers, and with them OpenMP runtimes [default: all]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    runtimes: Vec<Runtime>,
    /// Repetitions, of which the median counts [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    repeat: Option<u32>,
    /// Size of the programs [default: W]
    #[arg(long, value_enum, ignore_case = true)]
    size: Option<Size>,
    /// Cut a run off after so many seconds [default: 60]; lu by default in sees_16 and apps
    /// have 2.5 and 2 times as long
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    limit: Option<f64>,
    /// Seconds that a program runs in `step`, before CPUs are taken away [default: 3]
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    step_seconds: Option<f64>,
    /// Seed of the order of runs
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Apps [default: all]
    #[arg(long, value_delimiter = ',', value_name = "LIST", conflicts_with = "no_apps")]
    apps: Vec<String>,
    /// Do not measure apps
    #[arg(long)]
    no_apps: bool,
    /// Keep every report of `corefit run` in this directory
    #[arg(long, value_name = "DIR")]
    reports: Option<PathBuf>,
    /// Root of the repository [default: the nearest one above the executable or here]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// A line for every run on stderr
    #[arg(long)]
    verbose: bool,
}

/// The sizes of the programs.
#[derive(Clone, Copy, Debug, ValueEnum, Serialize)]
#[value(rename_all = "UPPER")]
enum Size {
    T,
    S,
    W,
    A,
}

impl Size {
    fn name(self) -> String {
        named::name(self)
    }
}

/// The arguments with their defaults.
struct Settings {
    root: PathBuf,
    conditions: Vec<Condition>,
    programs: Vec<String>,
    runtimes: Vec<Runtime>,
    repeat: u32,
    size: Size,
    limit: Duration,
    /// How long a program is to run in `step`, s.
    step_s: f64,
    /// The programs of `step`, if not all.
    step_programs: Option<&'static [&'static str]>,
    seed: u64,
    reports: Option<PathBuf>,
    verbose: bool,
    /// Those measured; none: all.
    apps: Vec<String>,
    /// Why apps are not measured, if they are not.
    apps_skipped: Option<&'static str>,
}

impl Settings {
    /// Whether a program is measured under a condition.
    fn wants(&self, condition: Condition, case: &Case) -> bool {
        let step = condition == Condition::Step;
        !step || self.step_programs.is_none_or(|some| some.contains(&case.program.name))
    }
}

/// Runs the bench.
pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let settings = args.settings()?;
    // What cannot be written is to be known before, not after an hour.
    let svg = args.svg.as_deref().map(picture::open).transpose()?;
    let interrupt = Interrupt::install().context("cannot catch signals")?;
    let document = measured(&settings, &interrupt)?;
    let text =
        if args.json { serde_json::to_string_pretty(&document)? + "\n" } else { text::render(&document) };
    let told = lines::print(&text);
    if let Some(svg) = svg {
        let part = document.conditions.iter().find(|p| p.name == args.svg_condition);
        match part.and_then(|part| svg::render(part, &document.machine)) {
            Some(drawn) => picture::write(svg, &drawn)?,
            None => tell!("corefit bench: no picture: {} was not measured", args.svg_condition.name()),
        }
    }
    told?;
    Ok(ExitCode::from(u8::from(!document.wrong_results.is_empty())))
}

fn measured(settings: &Settings, interrupt: &Interrupt) -> Result<Document> {
    let start = Instant::now();
    let cases = programs::find(&settings.root, &settings.programs, &settings.runtimes)?;
    let shim = programs::see_cpus(&settings.root);
    if settings.conditions.contains(&Condition::Sees16) && !shim.is_file() {
        bail!("{} is missing: run `make -C workloads`", shim.display());
    }
    if let Some(dir) = &settings.reports {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    let (apps, apps_skipped) = match (settings.apps_skipped, apps::read(&settings.root)?) {
        (Some(why), _) => (vec![], Some(why.to_owned())),
        (None, None) => (vec![], Some("workloads/apps/apps.json is missing".into())),
        (None, Some(apps)) => (apps::chosen(apps, &settings.apps)?, None),
    };
    let arena = Arena::open()?;
    let mut machine = machine::describe(&arena, settings);
    let mut bench = Bench::new(&arena, settings, interrupt, steps(settings, &cases, &apps, &arena)?);
    let threads = u32::try_from(arena.cpus().len())?;
    let config = Config::Fixed { threads, passive: threads > 1 };
    for case in &cases {
        bench.warm_up(case, &settings.size.name(), config, arena.cpus())?;
    }
    let mut parts = vec![];
    for &condition in &settings.conditions {
        parts.push(session::measure(&mut bench, condition, &cases)?);
    }
    let apps = apps::measure(&mut bench, &apps, &settings.conditions)?;
    machine.took_s = start.elapsed().as_secs_f64().round();
    let runtimes = Runtime::in_order(cases.iter().map(|c| c.runtime));
    Ok(Document {
        targets: targets::targets(&parts, &runtimes, bench.wrong.len()),
        conditions: parts,
        apps,
        apps_skipped,
        wrong_results: std::mem::take(&mut bench.wrong),
        machine,
    })
}

fn steps(settings: &Settings, cases: &[Case], apps: &[apps::App], arena: &Arena) -> Result<usize> {
    let cpus = u32::try_from(arena.cpus().len())?;
    let conditions = settings.conditions.iter();
    let programs: usize = conditions.map(|c| session::steps(settings, *c, cases, cpus)).sum();
    let apps = apps::steps(apps, &settings.conditions, settings.repeat);
    Ok(cases.len() + programs + apps)
}

impl Args {
    fn settings(&self) -> Result<Settings> {
        let mut conditions = match self.conditions.as_slice() {
            [] => Condition::value_variants().to_vec(),
            some => some.to_vec(),
        };
        conditions.sort_unstable();
        conditions.dedup();
        let mut runtimes = match self.runtimes.as_slice() {
            [] => Runtime::value_variants().to_vec(),
            some => some.to_vec(),
        };
        runtimes.sort_unstable();
        runtimes.dedup();
        let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
        let programs = match (self.programs.as_slice(), self.quick) {
            ([], true) => names(&QUICK),
            ([], false) => names(&PROGRAMS.map(|p| p.name)),
            (some, _) => some.to_vec(),
        };
        let (repeat, size, limit, step_s) =
            if self.quick { (1, Size::S, 3.0, 1.0) } else { (3, Size::W, 60.0, 3.0) };
        Ok(Settings {
            root: match &self.root {
                Some(root) => root.canonicalize().with_context(|| root.display().to_string())?,
                None => find_root()?,
            },
            conditions,
            programs,
            runtimes,
            repeat: self.repeat.unwrap_or(repeat),
            size: self.size.unwrap_or(size),
            limit: Duration::from_secs_f64(self.limit.unwrap_or(limit)),
            step_s: self.step_seconds.unwrap_or(step_s),
            step_programs: (self.quick && self.programs.is_empty()).then_some(&QUICK_STEP),
            seed: self.seed,
            reports: match &self.reports {
                Some(dir) => Some(std::path::absolute(dir)?),
                None => None,
            },
            verbose: self.verbose,
            apps: self.apps.clone(),
            apps_skipped: match (self.no_apps, self.quick && self.apps.is_empty()) {
                (true, _) => Some("--no-apps"),
                (false, true) => Some("--quick measures no apps"),
                (false, false) => None,
            },
        })
    }
}

/// The nearest directory with `workloads/Makefile` above the executable or the present one.
pub(super) fn find_root() -> Result<PathBuf> {
    let exe = std::env::current_exe().ok();
    let here = std::env::current_dir().ok();
    let is_root = |dir: &&Path| dir.join("workloads/Makefile").is_file();
    let starts = [exe.as_deref(), here.as_deref()];
    let mut above = starts.iter().flatten().flat_map(|dir| dir.ancestors());
    let root = above.find(is_root).map(Path::to_path_buf);
    root.context(
        "no directory with workloads/Makefile above the executable or here: name the repository with --root",
    )
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok();
    let good = number.filter(|s| *s > 0.0 && *s <= 1e6);
    good.ok_or_else(|| "give a number of seconds above 0".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn settings(line: &str) -> Settings {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let words = ["bench", "--root", root].into_iter();
        let words = words.chain(line.split_whitespace());
        Line::try_parse_from(words).unwrap().args.settings().unwrap()
    }

    #[test]
    fn quick_changes_defaults_but_not_what_was_given() {
        let quick = settings("--quick");
        assert_eq!((quick.repeat, quick.size.name().as_str()), (1, "S"));
        assert_eq!(quick.programs, QUICK);
        assert_eq!(quick.conditions, Condition::value_variants());
        assert!(quick.apps_skipped.is_some());
        let given = settings("--quick --repeat 2 --size w --programs mg --limit 9");
        assert_eq!((given.repeat, given.size.name().as_str()), (2, "W"));
        assert_eq!(given.programs, ["mg"]);
        assert_eq!(given.limit, Duration::from_secs(9));
    }

    #[test]
    fn lists_are_in_the_order_of_the_tables_without_repetition() {
        let s = settings("--conditions step,sees_16,step --runtimes libomp,gcc,clang");
        assert_eq!(s.conditions, [Condition::Sees16, Condition::Step]);
        assert_eq!(s.runtimes, Runtime::value_variants());
    }

    #[test]
    fn bad_numbers_are_refused() {
        for line in ["--limit 0", "--limit nan", "--repeat 0", "--step-seconds -1", "--size X"] {
            let words = ["bench"].into_iter().chain(line.split_whitespace());
            assert!(Line::try_parse_from(words).is_err(), "{line}");
        }
    }
}
