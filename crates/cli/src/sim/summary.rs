//! Means over replications.

use std::collections::{BTreeMap, BTreeSet};

use corefit_sim::Stuck;
use serde::Serialize;

use super::Point;
use super::compare::Comparison;
use super::metric::reported;
use super::replicate::Run;
use crate::stats::Mean;

/// Everything, as `--json` prints it.
#[derive(Serialize)]
pub(super) struct Document {
    pub(super) scenario: String,
    pub(super) about: String,
    pub(super) points: Vec<PointResult>,
    /// Between points of this document that differ in one value only.
    pub(super) comparisons: Vec<Comparison>,
}

/// One point of a sweep.
#[derive(Serialize)]
pub(super) struct PointResult {
    /// Its number in the sweep.
    pub(super) point: usize,
    /// What was set for it.
    pub(super) set: BTreeMap<String, String>,
    pub(super) runs: usize,
    pub(super) first_seed: u64,
    /// `vm/program` that did not end in some run, and in how many.
    pub(super) unfinished: BTreeMap<String, usize>,
    /// `vm/program` with threads that waited for each other at the end of some run.
    pub(super) stuck: BTreeMap<String, StuckRuns>,
    /// What is to be said of a run, or the policy had to say, as `corefit manage` says it; and in how many runs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) notes: BTreeMap<String, usize>,
    pub(super) events: u64,
    pub(super) simulated_s: Mean,
    /// Of these, after the warm-up: what all means are over.
    pub(super) counted_s: Mean,
    pub(super) competing_cores: Mean,
    pub(super) idle_pcpus: Mean,
    pub(super) vms: Vec<VmResult>,
}

/// A program with threads that wait for each other, for ever.
#[derive(Clone, Copy, Serialize)]
pub(super) struct StuckRuns {
    /// In how many runs.
    pub(super) runs: usize,
    /// In the first of them: how many threads, and how many others go on.
    pub(super) threads: usize,
    pub(super) others: usize,
}

/// One VM at a point.
#[derive(Serialize)]
pub(super) struct VmResult {
    pub(super) name: String,
    pub(super) program: String,
    /// Of [`METRICS`](super::metric::METRICS); `None` where no run has it. `took_s` is of the runs in which it ended.
    #[serde(flatten)]
    pub(super) metrics: BTreeMap<&'static str, Option<Mean>>,
}

const NOTHING: Mean = Mean { mean: 0.0, ci95: None, n: 0 };

impl PointResult {
    pub(super) fn of(point: &Point<'_>, runs: &[Run]) -> PointResult {
        let mut unfinished = BTreeMap::new();
        for name in runs.iter().flat_map(|run| &run.unfinished) {
            *unfinished.entry(name.clone()).or_insert(0) += 1;
        }
        let mut stuck = BTreeMap::new();
        for Stuck { name, threads, others } in runs.iter().flat_map(|run| run.stuck.clone()) {
            stuck.entry(name).or_insert(StuckRuns { runs: 0, threads, others }).runs += 1;
        }
        let mut notes = BTreeMap::new();
        for run in runs {
            for note in run.notes.iter().collect::<BTreeSet<_>>() {
                *notes.entry(note.clone()).or_insert(0) += 1;
            }
        }
        let over = |of: fn(&Run) -> Option<f64>| Mean::of(runs.iter().filter_map(of)).unwrap_or(NOTHING);
        let vms = runs.first().map_or(&[][..], |run| &run.vms).iter().enumerate();
        let vms = vms.map(|(number, vm)| {
            let mean = |metric| Mean::of(runs.iter().filter_map(|run| run.vms[number].values[metric]));
            VmResult {
                name: vm.name.clone(),
                program: vm.program.clone(),
                metrics: reported(point.ruled)
                    .iter()
                    .enumerate()
                    .map(|(i, metric)| (metric.name, mean(i)))
                    .collect(),
            }
        });
        PointResult {
            point: point.number,
            set: point.sets.iter().cloned().collect(),
            runs: runs.len(),
            first_seed: runs.first().map_or(0, |run| run.seed),
            unfinished,
            stuck,
            notes,
            events: runs.iter().map(|run| run.events).sum(),
            simulated_s: over(|run| Some(run.ran_s)),
            counted_s: over(|run| Some(run.counted_s)),
            competing_cores: over(|run| run.competing_cores),
            idle_pcpus: over(|run| run.idle_pcpus),
            vms: vms.collect(),
        }
    }
}

impl PointResult {
    /// No more time would let a program end that did not end in so many runs.
    pub(super) fn hopeless(&self, name: &str, runs: usize) -> bool {
        self.stuck.get(name).is_some_and(|stuck| stuck.runs == runs)
    }
}

impl VmResult {
    pub(super) fn mean(&self, metric: &str) -> Option<Mean> {
        self.metrics.get(metric).copied().flatten()
    }
}
