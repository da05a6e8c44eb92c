//! `corefit sim`: what happens to programs on a host that is not at hand.

mod replicate;
mod summary;
mod text;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use corefit_sim::{Scenario, Set};

use crate::machine;

/// Simulate a host with its VMs and their programs
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The scenario, in TOML; lists in it make a sweep
    file: PathBuf,
    /// Replace a value of the scenario, such as vm.lu.vcpus=4
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    sets: Vec<Set>,
    /// Replications with successive seeds [default: what the scenario says]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    runs: Option<u32>,
    /// Only these points of a sweep, counted from 0, the last one not included
    #[arg(long, value_name = "I..J", value_parser = range)]
    points: Option<(usize, usize)>,
    /// Threads to simulate on [default: all CPUs]
    #[arg(long)]
    jobs: Option<usize>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

fn key_value(text: &str) -> Result<Set, String> {
    let (key, value) = text.split_once('=').ok_or("give KEY=VALUE, such as vm.lu.vcpus=4")?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

fn range(text: &str) -> Result<(usize, usize), String> {
    let parsed = text.split_once("..").and_then(|(i, j)| Some((i.parse().ok()?, j.parse().ok()?)));
    parsed.filter(|(i, j)| i < j).ok_or("give I..J with I < J, such as 0..10".into())
}

/// A point of a sweep: what was set for it, and the scenario.
struct Point {
    number: usize,
    sets: Vec<Set>,
    scenario: Scenario,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let name = args.file.display().to_string();
    let text = machine::text_of(&args.file)?;
    let points = points(args, &name, &text)?;
    let jobs = args.jobs.or(std::thread::available_parallelism().ok().map(usize::from)).unwrap_or(1).max(1);
    let about = points.first().map(|p| p.scenario.about.clone()).unwrap_or_default();
    let runs = replicate::all(&points, args.runs, jobs);
    let results: Vec<summary::PointResult> =
        points.iter().zip(&runs).map(|(point, runs)| summary::PointResult::of(point, runs)).collect();
    let document = summary::Document { scenario: name, about, points: results };
    if args.json {
        show!("{}", serde_json::to_string_pretty(&document)?);
    } else {
        show!("{}", text::render(&document).trim_end());
    }
    Ok(ExitCode::SUCCESS)
}

fn points(args: &Args, name: &str, text: &str) -> Result<Vec<Point>> {
    let place = |e: corefit_sim::ScenarioError| match machine::instead(text, name) {
        Some(instead) => anyhow!("{instead}"),
        None => anyhow!("{name}, {e}"),
    };
    let all = Scenario::points(text, &args.sets).map_err(place)?;
    let (from, to) = args.points.unwrap_or((0, all.len()));
    anyhow::ensure!(to <= all.len(), "--points {from}..{to}: {name} has {} points", all.len());
    let chosen = all.into_iter().enumerate().skip(from).take(to - from);
    chosen
        .map(|(number, sets)| {
            let both: Vec<Set> = args.sets.iter().chain(&sets).cloned().collect();
            let scenario = Scenario::parse(text, &both).map_err(place)?;
            Ok(Point { number, sets, scenario })
        })
        .collect()
}
