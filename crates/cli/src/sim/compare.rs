//! Paired differences: two points that differ in one value, run by run with the same seeds.
//!
//! Both runs of a pair draw the same random numbers, so what they have in common cancels out, and the
//! interval of the mean difference is narrower than those of the two means would make it. Where they differ in a
//! VM's `vcpus`, `threads` or `count`, the VMs after it draw others, and less cancels out.

use std::collections::BTreeMap;

use corefit_sim::Set;
use serde::Serialize;

use super::Point;
use super::metric::{MARKS, METRICS, TOOK};
use super::replicate::Run;
use crate::stats::Mean;

/// One value against the first one of its list, all else equal.
#[derive(Debug, Serialize)]
pub(super) struct Comparison {
    /// What differs.
    pub(super) key: String,
    pub(super) base: String,
    pub(super) value: String,
    /// The point's other values.
    pub(super) at: BTreeMap<String, String>,
    pub(super) vm: String,
    pub(super) metric: &'static str,
    /// Mean at `base`; `None` as the difference.
    pub(super) base_mean: Option<f64>,
    /// Of `value` minus `base`, pair by pair; `None` if some run did not end: leaving out the slow ones
    /// would flatter whoever has them.
    pub(super) difference: Option<Mean>,
}

/// Compares along a key.
pub(super) fn along(key: &str, points: &[Point<'_>], runs: &[Vec<Run>]) -> Vec<Comparison> {
    // The others of a sweep's point, in the order of the first one with the same other values.
    let mut families: Vec<(Vec<Set>, Vec<usize>)> = vec![];
    let mut number_of: BTreeMap<Vec<Set>, usize> = BTreeMap::new();
    for (index, point) in points.iter().enumerate() {
        if !point.sets.iter().any(|(k, _)| k == key) {
            return vec![];
        }
        let others: Vec<_> = point.sets.iter().filter(|(k, _)| k != key).cloned().collect();
        let family = *number_of.entry(others.clone()).or_insert(families.len());
        if family == families.len() {
            families.push((others, vec![]));
        }
        families[family].1.push(index);
    }
    let value = |index: usize| points[index].sets.iter().find(|(k, _)| k == key).map(|(_, v)| v.clone());
    let mut comparisons = vec![];
    for (others, members) in &families {
        let Some((&first, rest)) = members.split_first() else { continue };
        for &other in rest {
            let metrics = [TOOK, MARKS].into_iter();
            for (metric, vm) in metrics.flat_map(|m| (0..runs[first][0].vms.len()).map(move |vm| (m, vm))) {
                let Some((base_mean, difference)) = pairs(&runs[first], &runs[other], vm, metric) else {
                    continue;
                };
                comparisons.push(Comparison {
                    key: key.to_owned(),
                    base: value(first).unwrap_or_default(),
                    value: value(other).unwrap_or_default(),
                    at: others.iter().cloned().collect(),
                    vm: runs[first][0].vms[vm].name.clone(),
                    metric: METRICS[metric].name,
                    base_mean,
                    difference,
                });
            }
        }
    }
    comparisons
}

/// Mean at the base, and differences; `None` where there is nothing to compare.
fn pairs(base: &[Run], other: &[Run], vm: usize, metric: usize) -> Option<(Option<f64>, Option<Mean>)> {
    let name = &base[0].vms[vm].name;
    let partner = other[0].vms.iter().position(|v| v.name == *name)?;
    let value = |run: &Run, vm: usize| run.vms[vm].values[metric];
    let all = || base.iter().zip(other).map(|(a, b)| (value(a, vm), value(b, partner)));
    if metric == MARKS && all().all(|(a, b)| a == Some(0.0) && b == Some(0.0)) {
        return None;
    }
    if all().all(|(a, b)| a.is_none() && b.is_none()) {
        return None;
    }
    let complete: Option<Vec<(f64, f64)>> = all().map(|(a, b)| Some((a?, b?))).collect();
    let Some(complete) = complete else { return Some((None, None)) };
    let mean = Mean::of(complete.iter().map(|(a, _)| *a)).map(|m| m.mean);
    Some((mean, Mean::of(complete.iter().map(|(a, b)| b - a))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::replicate::VmRun;

    fn run(took: Option<f64>) -> Run {
        let mut values = [Some(0.0); METRICS.len()];
        values[TOOK] = took;
        let vm = VmRun {
            name: "a".into(),
            program: "lu".into(),
            kind: "a".into(),
            finished: Some(took.is_some()),
            values,
        };
        Run {
            seed: 1,
            events: 1,
            ran_s: 1.0,
            counted_s: 1.0,
            competing_cores: None,
            idle_pcpus: None,
            unfinished: vec![],
            stuck: vec![],
            notes: vec![],
            vms: vec![vm],
        }
    }

    #[test]
    fn what_pairs_have_in_common_cancels_out() {
        let base = [run(Some(1.0)), run(Some(5.0)), run(Some(9.0))];
        let other = [run(Some(2.0)), run(Some(6.1)), run(Some(9.9))];
        let (mean, difference) = pairs(&base, &other, 0, TOOK).unwrap();
        let difference = difference.unwrap();
        assert_eq!(mean, Some(5.0));
        assert!((difference.mean - 1.0).abs() < 1e-12 && difference.ci95.unwrap() < 0.3, "{difference:?}");
        assert!(Mean::of([1.0, 5.0, 9.0]).unwrap().ci95.unwrap() > 9.0, "the means alone tell nothing");
    }

    #[test]
    fn a_run_that_did_not_end_is_not_left_out_of_a_comparison() {
        let (base, other) = ([run(Some(1.0)), run(Some(5.0))], [run(Some(2.0)), run(None)]);
        let (mean, difference) = pairs(&base, &other, 0, TOOK).unwrap();
        assert!(mean.is_none() && difference.is_none());
        assert!(pairs(&base, &other, 0, MARKS).is_none(), "no marks at all");
    }
}
