//! `corefit sim`: what happens to programs on a host that is not at hand.
//!
//! ```text
//! file, --set ─▶ points ─▶ replicate ─┬▶ summary, compare ─▶ text, --json
//!               (a sweep)  (all cores) ├▶ rows ─▶ export     CSV, Parquet
//!                                      └▶ plot               SVG, PNG
//! ```

mod compare;
mod export;
mod metric;
mod plot;
mod replicate;
mod rows;
mod summary;
mod text;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail, ensure};
use corefit_core::check::count;
use corefit_sim::{Events, Scenario, ScenarioError, Set, Sim};

use crate::bench::print;
use crate::output::{Output, distinct};
use crate::versioned::versioned;
use crate::{machine, parallel, picture, printable, tell};

/// Simulate a host with its VMs and their programs
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The scenario, in TOML; lists in it make a sweep. With a table `[policy]`, as in a configuration of `corefit manage`, its
    /// controllers decide while it runs
    file: PathBuf,
    /// Replace a value of the scenario, such as `vm.lu.vcpus=4` or `vm.lu.vcpus=[4,8]`
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    sets: Vec<Set>,
    /// Replications with successive seeds [default: what the scenario says]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    runs: Option<u32>,
    /// Only these points of a sweep, counted from 0, the last one not included
    #[arg(long, value_name = "I..J", value_parser = range)]
    points: Option<(usize, usize)>,
    /// Threads to simulate on [default: all CPUs]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Compare the values of this list in pairs, with the first one [default: all lists that are not
    /// numbers]
    #[arg(long, value_name = "KEY")]
    compare: Vec<String>,
    /// Write every run to FILE.csv or FILE.parquet, or the means to FILE.json; may be repeated. A row is a VM in a run; `finished`
    /// is empty if nothing in it has an end, `took_s` if its first program did not come to one
    #[arg(long, value_name = "FILE")]
    out: Vec<PathBuf>,
    /// Draw the sweep: FILE.svg or FILE.png
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// The list that is x in the picture [default: the longest one of numbers]
    #[arg(long, value_name = "KEY", requires = "plot")]
    x: Option<String>,
    /// The number that is y in the picture [default: took_s, or marks_per_s if nothing ends]
    #[arg(long, value_name = "NAME", requires = "plot")]
    y: Option<String>,
    /// Only VMs whose names begin so are in the picture
    #[arg(long, value_name = "NAME", requires = "plot")]
    vm: Option<String>,
    /// Write what happens in the first run, for ui.perfetto.dev; the scenario has to be one point, without `[policy]`
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

fn key_value(text: &str) -> Result<Set, String> {
    let (key, value) = text.split_once('=').ok_or("give KEY=VALUE, such as vm.lu.vcpus=4")?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

pub(crate) fn range(text: &str) -> Result<(usize, usize), String> {
    let parsed = text.split_once("..").and_then(|(i, j)| Some((i.parse().ok()?, j.parse().ok()?)));
    parsed.filter(|(i, j)| i < j).ok_or("give I..J with I < J, such as 0..10".into())
}

/// A list of a scenario: where it stands, and its values.
type Axis = (String, Vec<String>);

/// What was typed.
struct Source<'a> {
    text: &'a str,
    sets: &'a [Set],
}

/// A point of a sweep: what is set for it. Its scenario is read anew for each run: a sweep may have many
/// points, and hosts are large.
struct Point<'a> {
    source: &'a Source<'a>,
    number: usize,
    sets: Vec<Set>,
    runs: u32,
    /// It has a `[policy]`: then all points have one.
    ruled: bool,
}

impl Point<'_> {
    fn scenario(&self) -> Result<Scenario, ScenarioError> {
        Scenario::at(self.source.text, self.source.sets, &self.sets)
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let name = args.file.display().to_string();
    let text = machine::text_of(&args.file)?;
    // Whatever can be known to fail fails before the first run.
    let place = |e| placed(e, &name, &text);
    let source = Source { text: &text, sets: &args.sets };
    let axes = Scenario::axes(&text, &args.sets).map_err(place)?;
    let (about, points) = points(args, &name, &source)?;
    let keys = keys(&args.compare, &axes)?;
    let wanted = plot::Wanted { x: args.x.as_deref(), y: args.y.as_deref(), vm: args.vm.as_deref() };
    if args.plot.is_some() {
        wanted.check(&axes, &points)?;
        some_vm(args.vm.as_deref(), &points).map_err(place)??;
    }
    let trace = args.trace.as_deref().map(|file| {
        let (sim, length) = traced(&points).with_context(|| format!("--trace {}", file.display()))?;
        anyhow::Ok((Output::open(file).context("--trace")?, sim, length))
    });
    let trace = trace.transpose()?;
    let plot = args.plot.as_deref().map(picture::open).transpose()?;
    let outs = args.out.iter().map(|file| export::open(file)).collect::<Result<Vec<_>>>()?;
    let others = [("--plot", plot.as_ref()), ("--trace", trace.as_ref().map(|(file, ..)| file))];
    let files: Vec<_> = outs.iter().map(|out| ("--out", Some(out))).chain(others).collect();
    distinct(&files)?;
    for (option, output) in &files {
        ensure!(
            !output.is_some_and(|output| output.is(&args.file)),
            "{option} names the scenario itself: give it another file"
        );
    }
    let runs = replicate::all(&points, args.jobs.map_or(parallel::cpus(), usize::from)).map_err(place)?;
    let document = summary::Document {
        scenario: name,
        about,
        points: points.iter().zip(&runs).map(|(point, runs)| summary::PointResult::of(point, runs)).collect(),
        comparisons: keys.iter().flat_map(|key| compare::along(key, &points, &runs)).collect(),
    };
    // What cannot be written takes nothing else with it.
    let told = print(args.json, &versioned(&document), |_| {
        let lines: Vec<String> = text::render(&document).lines().map(printable::text).collect();
        lines.join("\n")
    });
    loudly(&document);
    let columns = rows::table(&axes, &points, &runs);
    let mut all = true;
    for out in outs {
        all &= tell::written(export::write(out, &columns, &versioned(&document)));
    }
    if let Some(plot) = plot {
        let title = if document.about.is_empty() { &document.scenario } else { &document.about };
        let drawn = plot::draw(&wanted, &axes, (&points, &runs), title)
            .with_context(|| format!("--plot {}", plot.path().display()));
        all &= tell::written(drawn.and_then(|drawn| picture::write(plot, &drawn)));
    }
    if let Some((trace, mut sim, length)) = trace {
        all &= tell::written(trace.fill(|out| sim.trace(length, out)));
    }
    told.map(|()| tell::end(all, ExitCode::SUCCESS))
}

/// A point has VMs whose names begin so.
fn some_vm(prefix: Option<&str>, points: &[Point<'_>]) -> Result<Result<()>, ScenarioError> {
    let Some(prefix) = prefix else { return Ok(Ok(())) };
    let mut known = BTreeSet::new();
    for point in points {
        let vms = point.scenario()?.spec.vms;
        if vms.iter().any(|vm| vm.name.starts_with(prefix)) {
            return Ok(Ok(()));
        }
        known.extend(vms.into_iter().map(|vm| vm.name));
    }
    let known = known.into_iter().collect::<Vec<_>>().join(", ");
    Ok(Err(anyhow!("--vm {prefix}: there is no such VM; there is {known}")))
}

/// What is traced, and for how long: a run of its own, the same as the first one that is reported.
fn traced(points: &[Point<'_>]) -> Result<(Sim, Option<u64>)> {
    let [point] = points else {
        bail!("there are {} points; choose one with --points or --set", points.len());
    };
    ensure!(!point.ruled, "shows hosts that nobody decides about; leave out [policy]");
    let (_, sim, length) = replicate::host(point, 0).map_err(|e| anyhow!("{e}"))?;
    Ok((sim, length))
}

/// On stderr, whatever becomes of stdout.
fn loudly(document: &summary::Document) {
    let concerned: Vec<_> = document.points.iter().filter(|p| !p.unfinished.is_empty()).collect();
    let programs: usize = concerned.iter().map(|p| p.unfinished.values().sum::<usize>()).sum();
    let stuck: Vec<_> = document.points.iter().filter(|p| !p.stuck.is_empty()).collect();
    let hopeless = concerned.iter().all(|p| p.unfinished.iter().all(|(name, runs)| p.hopeless(name, *runs)));
    let remedy = if hopeless { "" } else { "; raise `until`" };
    let times = if programs == 1 { "once".into() } else { format!("{programs} times") };
    if programs > 0 {
        tell!(
            "corefit: UNFINISHED: {times} a program did not come to its end, at {} of {} points; their \
             times are missing from means{remedy}",
            concerned.len(),
            document.points.len()
        );
    }
    if let Some(first) = stuck.first() {
        tell!(
            "corefit: STUCK: programs with threads that wait for each other for ever, at {} of {} points, such as {}",
            stuck.len(),
            document.points.len(),
            printable::text(first.stuck.keys().next().map_or("", String::as_str))
        );
    }
}

fn keys(chosen: &[String], axes: &[Axis]) -> Result<Vec<String>> {
    for key in chosen {
        let known: Vec<&str> = axes.iter().map(|(key, _)| key.as_str()).collect();
        let known = if known.is_empty() { "no list at all".into() } else { known.join(", ") };
        ensure!(
            axes.iter().any(|(k, _)| k == key),
            "--compare {key}: the scenario has no list there; there is {known}"
        );
    }
    if !chosen.is_empty() {
        return Ok(chosen.to_vec());
    }
    let policy = |axis: &&Axis| axis.1.iter().any(|v| v.parse::<f64>().is_err());
    Ok(axes.iter().filter(policy).map(|(key, _)| key.clone()).collect())
}

/// An error in a scenario, or that it is one for another command.
fn placed(error: ScenarioError, name: &str, text: &str) -> anyhow::Error {
    match machine::instead(text, name) {
        Some(instead) => anyhow!("{instead}"),
        None => anyhow!("{name}, {error}"),
    }
}

/// What the scenario is about, and the points that were asked for, each of which can be simulated.
fn points<'a>(args: &Args, name: &str, source: &'a Source<'a>) -> Result<(String, Vec<Point<'a>>)> {
    let place = |e| placed(e, name, source.text);
    let all = Scenario::points(source.text, source.sets).map_err(place)?;
    let (from, to) = args.points.unwrap_or((0, all.len()));
    ensure!(to <= all.len(), "--points {from}..{to}: {name} has {}", count(all.len(), "point"));
    let mut about = String::new();
    let mut points = vec![];
    let mut costs = Costs::default();
    for (number, sets) in all.into_iter().enumerate().skip(from).take(to - from) {
        let mut point = Point { source, number, sets, runs: 1, ruled: false };
        let scenario = point.scenario().map_err(place)?;
        point.runs = args.runs.unwrap_or(scenario.runs);
        point.ruled = scenario.policy.is_some();
        about = scenario.about;
        costs.add(scenario.events, point.runs);
        points.push(point);
    }
    if let Some(long) = costs.long(args.jobs.map_or(parallel::cpus(), usize::from)) {
        tell!("corefit: {name}: {}", printable::text(&long));
    }
    Ok((about, points))
}

/// What the simulator does in a second on a CPU, events.
const EVENTS_PER_S: f64 = 12e6;
/// What takes longer is warned of, seconds.
const LONG_S: f64 = 900.0;

/// What all runs together cost.
#[derive(Default)]
struct Costs {
    runs: usize,
    events: f64,
    /// Of the largest run.
    most: Option<Events>,
}

impl Costs {
    /// So many more runs.
    fn add(&mut self, events: Option<Events>, runs: u32) {
        self.runs += runs as usize;
        let Some(events) = events else { return };
        self.events += events.number * f64::from(runs);
        if self.most.as_ref().is_none_or(|most| events.number > most.number) {
            self.most = Some(events);
        }
    }

    /// What to say of it where it takes long on so many CPUs.
    fn long(self, cpus: usize) -> Option<String> {
        let (cpus, Events { number, place }) = (cpus.min(self.runs), self.most?);
        let seconds = (self.events / cpus as f64).max(number) / EVENTS_PER_S;
        let text = || {
            format!(
                "{place}about {:.0e} events of programs in {}, {:.1} hours on {} at 12 million a second; give longer operations, \
                 a shorter `until`, or fewer --runs",
                self.events,
                count(self.runs, "run"),
                seconds / 3600.0,
                count(cpus, "CPU"),
            )
        };
        (seconds > LONG_S).then(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_take_long_together_are_warned_of() {
        let long = |number: f64, runs, cpus| {
            let mut costs = Costs::default();
            costs.add(Some(Events { number, place: "line 5, vm.a.program: ".into() }), runs);
            costs.add(None, 1);
            costs.long(cpus)
        };
        // A run of a minute and a half, and twenty of them.
        assert_eq!(long(1e9, 1, 1), None);
        assert_eq!(long(1e9, 20, 8), None);
        let told = long(1e9, 20, 1).unwrap();
        assert!(
            told.starts_with(
                "line 5, vm.a.program: about 2e10 events of programs in 21 runs, 0.5 hours on 1 CPU at"
            ),
            "{told}"
        );
        // One is not divided.
        assert!(long(2e10, 1, 8).unwrap().contains(" 0.5 hours on 2 CPUs "), "{:?}", long(2e10, 1, 8));
    }
}
