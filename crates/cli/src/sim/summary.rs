//! Means over replications, with confidence intervals.

use std::collections::{BTreeMap, BTreeSet};

use corefit_sim::Stuck;
use serde::Serialize;

use super::Point;
use super::compare::Comparison;
use super::metric::reported;
use super::replicate::Run;

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
    /// What the policy had to say, as `corefit manage` says it, and in how many runs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) notes: BTreeMap<String, usize>,
    pub(super) events: u64,
    pub(super) simulated_s: Mean,
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

/// A mean, and half the width of its 95 % confidence interval.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Mean {
    pub(crate) mean: f64,
    /// `None` from one run.
    pub(crate) ci95: Option<f64>,
    pub(crate) n: usize,
}

/// Student's t for a two-sided 95 % interval, by degrees of freedom from 1.
const T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

#[expect(clippy::cast_precision_loss, reason = "counts of runs")]
impl Mean {
    /// `None` of nothing.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Mean> {
        let values: Vec<f64> = values.into_iter().collect();
        let n = values.len();
        if n == 0 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / n as f64;
        let squares: f64 = values.iter().map(|x| (x - mean).powi(2)).sum();
        let ci95 = (n > 1).then(|| {
            // Beyond the table the expansion of the quantile is good to 0.001.
            let f = (n - 1) as f64;
            let t = T.get(n - 2).copied().unwrap_or(1.96 + 2.372 / f + 2.82 / (f * f));
            t * (squares / f / n as f64).sqrt()
        });
        Some(Mean { mean, ci95, n })
    }
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
        let over = |of: fn(&Run) -> f64| Mean::of(runs.iter().map(of)).unwrap_or(NOTHING);
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
            simulated_s: over(|run| run.ran_s),
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

#[cfg(test)]
mod tests {
    use super::Mean;

    #[test]
    fn an_interval_is_students() {
        let mean = Mean::of([1.0, 2.0, 3.0]).unwrap();
        assert_eq!((mean.mean, mean.n), (2.0, 3));
        assert!((mean.ci95.unwrap() - 4.303 / 3.0_f64.sqrt()).abs() < 1e-9);
        assert!(Mean::of([1.0]).unwrap().ci95.is_none());
        assert!(Mean::of([]).is_none());
    }

    #[test]
    fn beyond_the_table_the_quantile_goes_on() {
        // t(0.975, 40) = 2.0211, t(0.975, 120) = 1.9799.
        for (n, t) in [(41_u32, 2.0211), (121, 1.9799)] {
            let values: Vec<f64> = (0..n).map(f64::from).collect();
            let n = f64::from(n);
            let deviation = (n * (n + 1.0) / 12.0).sqrt(); // of 0 to n - 1
            let ci = Mean::of(values).unwrap().ci95.unwrap();
            assert!((ci / (deviation / n.sqrt()) - t).abs() < 0.001, "{n}: {ci}");
        }
    }
}
