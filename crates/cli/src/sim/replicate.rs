//! Every point, several times, on all CPUs.
//!
//! A result is a function of scenario, point and seed, so it is the same whatever thread it ran on and
//! whatever else was run. Run r of every point has seed + r: numbers are drawn by (seed, thread, purpose,
//! counter), so points that differ in a policy see the same random numbers, and can be compared in pairs.

use corefit_sim::{ScenarioError, Sim, Stuck};

use super::Point;
use super::metric::METRICS;
use crate::parallel;

/// One run: what is reported of it.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) seed: u64,
    pub(super) events: u64,
    pub(super) ran_s: f64,
    pub(super) competing_cores: f64,
    pub(super) idle_pcpus: f64,
    /// `vm/program` that did not come to an end.
    pub(super) unfinished: Vec<String>,
    /// Programs with threads that wait for each other.
    pub(super) stuck: Vec<Stuck>,
    pub(super) vms: Vec<VmRun>,
}

/// One VM in one run.
#[derive(Clone, Debug)]
pub(super) struct VmRun {
    pub(super) name: String,
    pub(super) program: String,
    /// Everything in it that has an end came to it.
    pub(super) finished: bool,
    /// Of [`METRICS`].
    pub(super) values: [Option<f64>; METRICS.len()],
}

/// For each point its runs, in the order of their seeds.
pub(super) fn all(points: &[Point<'_>], jobs: usize) -> Result<Vec<Vec<Run>>, ScenarioError> {
    let tasks: Vec<(usize, u32)> = points
        .iter()
        .enumerate()
        .flat_map(|(index, point)| (0..point.runs).map(move |run| (index, run)))
        .collect();
    let results = parallel::map(&tasks, jobs, "runs", |&(point, run)| once(&points[point], run));
    let mut by_point: Vec<Vec<Run>> = points.iter().map(|_| Vec::new()).collect();
    for ((point, _), result) in tasks.iter().zip(results) {
        by_point[*point].push(result?);
    }
    Ok(by_point)
}

/// The simulated host of one run, at its beginning; its seed, and how long it is to run if nothing in it
/// has an end.
pub(super) fn host(point: &Point<'_>, run: u32) -> Result<(Sim, u64, Option<u64>), ScenarioError> {
    let mut spec = point.scenario()?.spec;
    spec.seed = spec.seed.wrapping_add(u64::from(run));
    let endless = spec.vms.iter().flat_map(|vm| &vm.apps).all(|app| app.program.is_endless());
    let sim = Sim::new(&spec).map_err(|e| ScenarioError { place: format!("{}: ", e.path), what: e.what })?;
    Ok((sim, spec.seed, endless.then_some(spec.until_ns)))
}

#[expect(clippy::cast_precision_loss, reason = "ns of a run")]
fn once(point: &Point<'_>, run: u32) -> Result<Run, ScenarioError> {
    let (mut sim, seed, length) = host(point, run)?;
    match length {
        Some(ns) => sim.run_for(ns),
        None => sim.run(),
    }
    let truth = sim.truth();
    let unfinished = sim.unfinished();
    let vms = truth.vms.iter().map(|vm| VmRun {
        name: vm.name.clone(),
        program: vm.apps.first().map(|app| app.name.clone()).unwrap_or_default(),
        finished: vm.apps.iter().all(|app| app.endless || app.took_ns.is_some()),
        values: std::array::from_fn(|index| METRICS[index].of(vm, &truth)),
    });
    Ok(Run {
        seed,
        events: truth.events,
        ran_s: truth.ran_ns as f64 / 1e9,
        competing_cores: truth.competing_cores,
        idle_pcpus: truth.idle_ns as f64 / truth.ran_ns.max(1) as f64,
        vms: vms.collect(),
        unfinished,
        stuck: sim.stuck(),
    })
}
