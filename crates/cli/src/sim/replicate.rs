//! Every point, several times, on all CPUs.
//!
//! A result is a function of scenario, point and seed, so it is the same whatever thread it ran on and
//! whatever else was run. Run r of every point has seed + r: numbers are drawn by (seed, thread, purpose,
//! counter), so points that differ in a policy see the same random numbers, and can be compared in pairs.

use std::time::Duration;

use corefit_core::decide::Policy;
use corefit_core::machine::Machine;
use corefit_sim::{Scenario, ScenarioError, Sim, SimMachine, Spec, Stuck, VmTruth};

use super::metric::METRICS;
use super::{Point, plot};
use crate::parallel;
use crate::ruled::{Done, Ruled};

/// One run: what is reported of it.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) seed: u64,
    pub(super) events: u64,
    pub(super) ran_s: f64,
    /// Of these, after the warm-up: what all means are over.
    pub(super) counted_s: f64,
    pub(super) competing_cores: Option<f64>,
    pub(super) idle_pcpus: Option<f64>,
    /// `vm/program` that did not come to an end.
    pub(super) unfinished: Vec<String>,
    /// Programs with threads that wait for each other.
    pub(super) stuck: Vec<Stuck>,
    /// What is to be said of it, and what a policy had to say.
    pub(super) notes: Vec<String>,
    pub(super) vms: Vec<VmRun>,
}

/// One VM in one run.
#[derive(Clone, Debug)]
pub(super) struct VmRun {
    pub(super) name: String,
    pub(super) program: String,
    /// Of [`plot::kinds`].
    pub(super) kind: String,
    /// Everything in it that has an end came to it; `None` if nothing has one.
    pub(super) finished: Option<bool>,
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

/// The scenario of one run, its simulated host at its beginning, and how long, ns, it is to run if nothing in it
/// has an end.
pub(super) fn host(point: &Point<'_>, run: u32) -> Result<(Scenario, Sim, Option<u64>), ScenarioError> {
    let mut scenario = point.scenario()?;
    let spec = &mut scenario.spec;
    spec.seed = spec.seed.wrapping_add(u64::from(run));
    let endless = spec.vms.iter().flat_map(|vm| &vm.apps).all(|app| app.program.is_endless());
    let sim = Sim::new(spec).map_err(|e| ScenarioError { place: format!("{}: ", e.path), what: e.what })?;
    let length = endless.then_some(spec.until_ns);
    Ok((scenario, sim, length))
}

fn once(point: &Point<'_>, run: u32) -> Result<Run, ScenarioError> {
    let (scenario, mut sim, length) = host(point, run)?;
    if let Some(policy) = &scenario.policy {
        let machine = SimMachine::new(sim, "this scenario", scenario.agent);
        let machine = machine.counting_caches(scenario.cache_counters);
        let failed = |e: anyhow::Error| ScenarioError { place: "policy: ".into(), what: format!("{e:#}") };
        let mut notes = vec![];
        let host = under(policy, machine, length, &mut notes).map_err(failed)?;
        let mut run = seen(host.sim(), &scenario.spec);
        run.notes.extend(notes);
        return Ok(run);
    }
    match length {
        Some(ns) => sim.run_for(ns),
        None => sim.run(),
    }
    Ok(seen(&sim, &scenario.spec))
}

/// Runs a host under a policy for as long as without. What it has to say goes to `notes`.
fn under(
    policy: &Policy,
    machine: SimMachine,
    length: Option<u64>,
    notes: &mut Vec<String>,
) -> anyhow::Result<Ruled> {
    let mut host = Ruled::new(machine, policy.clone());
    loop {
        let Done { next, notes: said, .. } = host.step()?;
        notes.extend(said);
        let goes_on = match length {
            Some(end) => {
                let left = Duration::from_nanos(end - host.sim().now_ns());
                host.machine.pass(next.min(left))?;
                host.sim().now_ns() < end
            }
            None => host.machine.pass_at_most(next),
        };
        if !goes_on {
            return Ok(host);
        }
    }
}

fn finished(vm: &VmTruth) -> Option<bool> {
    let mut ends = vm.apps.iter().filter(|app| !app.endless).peekable();
    ends.peek()?;
    Some(ends.all(|app| app.took_ns.is_some()))
}

/// What is reported of a run that is over.
fn seen(sim: &Sim, spec: &Spec) -> Run {
    let truth = sim.truth();
    let mut notes = vec![];
    if truth.ran_ns == 0 {
        notes.push(format!(
            "over after {:.3} s, before `warmup`: nothing was counted",
            sim.now_ns() as f64 / 1e9
        ));
    } else {
        let late = truth.vms.iter().flat_map(|vm| vm.apps.iter().map(move |app| (vm, app)));
        let late = late.filter(|(_, app)| app.counted_ns == 0);
        notes.extend(late.map(|(vm, app)| {
            format!(
                "{}/{} had not started when the run was over (`start`, `jitter`, `until`)",
                vm.name, app.name
            )
        }));
    }
    let never = spec.vms.iter().filter(|vm| vm.changes.iter().any(|change| change.at_ns >= spec.until_ns));
    notes.extend(never.map(|vm| format!("{}: a `change` at `until` or later never happens", vm.name)));
    let unfinished = sim.unfinished();
    let vms = truth.vms.iter().zip(plot::kinds(spec)).map(|(vm, kind)| VmRun {
        kind,
        name: vm.name.clone(),
        program: vm.apps.first().map(|app| app.name.clone()).unwrap_or_default(),
        finished: finished(vm),
        values: std::array::from_fn(|index| METRICS[index].of(vm, &truth)),
    });
    Run {
        seed: spec.seed,
        events: truth.events,
        ran_s: sim.now_ns() as f64 / 1e9,
        counted_s: truth.ran_ns as f64 / 1e9,
        competing_cores: (truth.ran_ns > 0).then_some(truth.competing_cores),
        idle_pcpus: (truth.ran_ns > 0).then(|| truth.idle_ns as f64 / truth.ran_ns as f64),
        vms: vms.collect(),
        unfinished,
        stuck: sim.stuck(),
        notes,
    }
}
