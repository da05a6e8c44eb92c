//! Means over replications, with confidence intervals.

use std::collections::BTreeMap;

use corefit_sim::{Truth, VmTruth};
use serde::Serialize;

use super::Point;
use super::replicate::Run;

/// Everything, as `--json` prints it.
#[derive(Serialize)]
pub(super) struct Document {
    pub(super) scenario: String,
    pub(super) about: String,
    pub(super) points: Vec<PointResult>,
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
    pub(super) events: u64,
    pub(super) simulated_s: Mean,
    pub(super) competing_cores: Mean,
    pub(super) idle_pcpus: Mean,
    pub(super) vms: Vec<VmResult>,
}

/// One VM at a point.
#[derive(Serialize)]
pub(super) struct VmResult {
    pub(super) name: String,
    pub(super) program: String,
    /// From start to end, s; of the runs in which it ended.
    pub(super) took_s: Option<Mean>,
    pub(super) marks_per_s: Mean,
    /// pCPUs, by what was done on them.
    pub(super) utilised: Mean,
    pub(super) spinning: Mean,
    pub(super) switching: Mean,
    pub(super) waiting: Mean,
    /// What it was entitled to and did not use, pCPUs.
    pub(super) unused: Mean,
    pub(super) holder_preemptions_per_s: Mean,
    pub(super) waiter_preemptions_per_s: Mean,
    pub(super) halts_per_s: Mean,
    pub(super) ple_exits_per_s: Mean,
    /// Mean number of vCPUs that waited for one of their own VM.
    pub(super) stacked: Mean,
}

/// A mean, and half the width of its 95 % confidence interval.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Mean {
    pub(super) mean: f64,
    /// `None` from one run.
    pub(super) ci95: Option<f64>,
    pub(super) n: usize,
}

/// Student's t for a two-sided 95 % interval, by degrees of freedom from 1.
const T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

#[expect(clippy::cast_precision_loss, reason = "counts and ns of runs")]
impl Mean {
    /// Of nothing, 0.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Mean {
        let values: Vec<f64> = values.into_iter().collect();
        let n = values.len();
        let mean = values.iter().sum::<f64>() / n.max(1) as f64;
        let squares: f64 = values.iter().map(|x| (x - mean).powi(2)).sum();
        let ci95 = (n > 1).then(|| {
            let t = T.get(n - 2).copied().unwrap_or(1.96);
            t * (squares / (n - 1) as f64 / n as f64).sqrt()
        });
        Mean { mean, ci95, n }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts and ns of runs")]
impl PointResult {
    pub(super) fn of(point: &Point, runs: &[Run]) -> PointResult {
        let mut unfinished = BTreeMap::new();
        for name in runs.iter().flat_map(|run| &run.unfinished) {
            *unfinished.entry(name.clone()).or_insert(0) += 1;
        }
        let over = |of: fn(&Truth) -> f64| Mean::of(runs.iter().map(|run| of(&run.truth)));
        let vms = (0..point.scenario.spec.vms.len()).map(|vm| VmResult::of(vm, runs));
        PointResult {
            point: point.number,
            set: point.sets.iter().cloned().collect(),
            runs: runs.len(),
            first_seed: point.scenario.spec.seed,
            unfinished,
            events: runs.iter().map(|run| run.truth.events).sum(),
            simulated_s: over(|t| t.ran_ns as f64 / 1e9),
            competing_cores: over(|t| t.competing_cores),
            idle_pcpus: over(|t| t.idle_ns as f64 / t.ran_ns.max(1) as f64),
            vms: vms.collect(),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts and ns of runs")]
impl VmResult {
    fn of(vm: usize, runs: &[Run]) -> VmResult {
        let rate = |of: fn(&VmTruth) -> u64, unit: f64| {
            Mean::of(
                runs.iter().map(|run| of(&run.truth.vms[vm]) as f64 * unit / run.truth.ran_ns.max(1) as f64),
            )
        };
        let took: Vec<f64> = runs
            .iter()
            .filter_map(|run| run.truth.vms[vm].apps.first().and_then(|app| app.took_ns))
            .map(|ns| ns as f64 / 1e9)
            .collect();
        let first = runs.first().map(|run| &run.truth.vms[vm]);
        VmResult {
            name: first.map(|vm| vm.name.clone()).unwrap_or_default(),
            program: first.and_then(|vm| vm.apps.first()).map(|app| app.name.clone()).unwrap_or_default(),
            took_s: (!took.is_empty()).then(|| Mean::of(took)),
            marks_per_s: rate(|vm| vm.apps.iter().map(|app| app.marks).sum(), 1e9),
            utilised: rate(|vm| vm.time.utilised, 1.0),
            spinning: rate(|vm| vm.time.spinning, 1.0),
            switching: rate(|vm| vm.time.switching, 1.0),
            waiting: rate(|vm| vm.waited_ns, 1.0),
            unused: rate(|vm| vm.time.unused, 1.0),
            holder_preemptions_per_s: rate(|vm| vm.counts.holder_preemptions, 1e9),
            waiter_preemptions_per_s: rate(|vm| vm.counts.waiter_preemptions, 1e9),
            halts_per_s: rate(|vm| vm.counts.halts, 1e9),
            ple_exits_per_s: rate(|vm| vm.counts.ple_exits, 1e9),
            stacked: rate(|vm| vm.counts.stacked_ns, 1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Mean;

    #[test]
    fn an_interval_is_students() {
        let mean = Mean::of([1.0, 2.0, 3.0]);
        assert_eq!((mean.mean, mean.n), (2.0, 3));
        assert!((mean.ci95.unwrap() - 4.303 / 3.0_f64.sqrt()).abs() < 1e-9);
        assert!(Mean::of([1.0]).ci95.is_none());
    }
}
