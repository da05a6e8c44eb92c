//! The document of `--json`; tables, targets and pictures are made from it.
//!
//! Times are seconds of wall clock, medians over the repetitions. Where `cut_off` is true, a
//! run was ended at the limit and its value is a lower bound.

use std::collections::BTreeMap;

use serde::Serialize;

use super::conditions::Condition;
use super::programs::Runtime;
use crate::stats::{Bound, Value, geomean, median};

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub(super) struct Document {
    pub(super) conditions: Vec<ConditionPart>,
    pub(super) targets: Vec<Target>,
    pub(super) apps: Vec<AppRow>,
    /// Why apps were not measured.
    pub(super) apps_skipped: Option<String>,
    /// Every run with a wrong result.
    pub(super) wrong_results: Vec<Wrong>,
    pub(super) machine: Machine,
}

/// One condition.
#[derive(Debug, Serialize)]
pub(super) struct ConditionPart {
    pub(super) name: Condition,
    /// What it was made of.
    pub(super) what: String,
    /// Why it was not measured.
    pub(super) skipped: Option<String>,
    pub(super) programs: Vec<Row>,
    /// corefit over oracle, all programs and runtimes; unsafe programs have no oracle.
    pub(super) geomean_vs_oracle: Option<f64>,
    /// The same and more for each runtime.
    pub(super) geomeans: Vec<Means>,
    /// `step` only: when new sizes were published.
    pub(super) delays: Option<Delays>,
}

/// Geometric means over the programs of a runtime that have an oracle.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Means {
    pub(super) runtime: Runtime,
    pub(super) corefit_vs_oracle: Option<f64>,
    pub(super) default_vs_corefit: Option<f64>,
    pub(super) corefit_vs_passive: Option<f64>,
    pub(super) corefit_vs_default: Option<f64>,
}

/// Publish delays, ms, over all runs of resizable programs.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Delays {
    pub(super) shrink: DelayStats,
    pub(super) growth: DelayStats,
}

/// One kind of delay. Upper bounds: see `delays.rs`.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct DelayStats {
    pub(super) median_ms: Option<f64>,
    pub(super) max_ms: Option<f64>,
    /// Runs in which it was seen.
    pub(super) seen: usize,
    /// Runs in which the size was right already.
    pub(super) already: usize,
    /// Runs in which it did not come.
    pub(super) never: usize,
}

/// One program under one condition.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) runtime: Runtime,
    /// Its argument.
    pub(super) size: String,
    pub(super) default_s: Option<f64>,
    pub(super) passive_s: Option<f64>,
    pub(super) oracle_s: Option<f64>,
    pub(super) corefit_s: Option<f64>,
    /// A 95 % interval of corefit over passive; null with less than two runs of either, or where one was cut off.
    pub(super) corefit_vs_passive_95: Option<[f64; 2]>,
    /// Whether every run gave the right result.
    pub(super) verified: bool,
    /// Whether one of the four was cut off: which one is in `runs`.
    pub(super) cut_off: bool,
    /// The configuration that the oracle is: a thread count, or three phases.
    pub(super) oracle_of: Option<String>,
    /// What `corefit certify` said; null where it was not asked.
    pub(super) certified: Option<bool>,
    /// Its reason, or why it was not asked.
    pub(super) certified_why: String,
    /// Regions that corefit ran with fewer threads than asked for, of the runs together.
    pub(super) regions_resized: u64,
    /// Every configuration that was run.
    pub(super) runs: BTreeMap<String, Runs>,
    /// `step` only: planned length of the phases on all CPUs and on one.
    pub(super) phases_s: Option<[f64; 2]>,
    #[serde(skip)]
    pub(super) values: Values,
}

/// The four columns with their bounds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Values {
    pub(super) default: Option<Value>,
    pub(super) passive: Option<Value>,
    pub(super) oracle: Option<Value>,
    pub(super) corefit: Option<Value>,
}

/// The runs of one configuration.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Runs {
    pub(super) median_s: Option<f64>,
    pub(super) min_s: Option<f64>,
    pub(super) max_s: Option<f64>,
    pub(super) cut_off: bool,
    /// Runs whose time counts: those with the right result, and one that was cut off.
    pub(super) count: usize,
    /// Runs with a wrong result; their times do not count.
    pub(super) wrong: usize,
}

/// One app under one condition.
#[derive(Debug, Serialize)]
pub(super) struct AppRow {
    pub(super) condition: Condition,
    pub(super) name: String,
    pub(super) runtime: String,
    pub(super) default_s: Option<f64>,
    pub(super) corefit_s: Option<f64>,
    pub(super) verified: bool,
    pub(super) cut_off: bool,
    /// Why it was not measured.
    pub(super) skipped: Option<String>,
    pub(super) runs: BTreeMap<String, Runs>,
    #[serde(skip)]
    pub(super) values: Values,
}

/// A run that gave a wrong result.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Wrong {
    pub(super) condition: Option<Condition>,
    pub(super) program: String,
    pub(super) runtime: String,
    pub(super) config: String,
    pub(super) what: String,
}

/// A number that is to be reached.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Target {
    pub(super) name: String,
    /// As in `at most 1.10`.
    pub(super) wanted: String,
    /// With its unit; null when it was not measured.
    pub(super) measured: Option<String>,
    /// Null when it was not measured, or is for information only.
    pub(super) pass: Option<bool>,
    /// Where it comes from, or why it is missing.
    pub(super) note: String,
}

/// Where and how it was measured.
#[derive(Debug, Default, Serialize)]
pub(super) struct Machine {
    pub(super) cpus: usize,
    pub(super) model: Option<String>,
    pub(super) kernel: String,
    /// Which control groups were used, or why none.
    pub(super) control_groups: String,
    pub(super) root: bool,
    /// CPUs that others used when the bench began: more than 0.1 spoils it.
    pub(super) busy_at_start_cpus: Option<f64>,
    pub(super) corefit: &'static str,
    pub(super) size: String,
    pub(super) repetitions: u32,
    pub(super) seed: u64,
    pub(super) limit_s: f64,
    pub(super) took_s: f64,
}

impl Runs {
    /// Of the times of runs that counted, the last of which may be a lower bound.
    pub(super) fn of(times: &[Value], wrong: usize) -> Runs {
        let exact: Vec<f64> = times.iter().filter(|t| t.bound == Bound::Exact).map(|t| t.number).collect();
        let cut_off = exact.len() < times.len();
        let numbers = || times.iter().map(|t| t.number);
        Runs {
            // Where one run was cut off the others say little: the limit is what is sure.
            median_s: if cut_off { numbers().reduce(f64::max) } else { median(exact) },
            min_s: numbers().reduce(f64::min),
            max_s: numbers().reduce(f64::max),
            cut_off,
            count: times.len(),
            wrong,
        }
    }

    /// The median with its bound.
    pub(super) fn value(&self) -> Option<Value> {
        let bound = if self.cut_off { Value::at_least } else { Value::exact };
        self.median_s.map(bound)
    }
}

impl Values {
    pub(super) fn corefit_vs_oracle(&self) -> Option<Value> {
        self.corefit?.over(self.oracle?)
    }

    pub(super) fn default_vs_corefit(&self) -> Option<Value> {
        self.default?.over(self.corefit?)
    }

    pub(super) fn corefit_vs_passive(&self) -> Option<Value> {
        self.corefit?.over(self.passive?)
    }

    pub(super) fn corefit_vs_default(&self) -> Option<Value> {
        self.corefit?.over(self.default?)
    }

    /// Whether one of them is a lower bound.
    pub(super) fn cut_off(&self) -> bool {
        [self.default, self.passive, self.oracle, self.corefit]
            .iter()
            .flatten()
            .any(|v| v.bound != Bound::Exact)
    }
}

impl DelayStats {
    /// Of delays in ms, and how often there was none.
    pub(super) fn of(ms: &[f64], already: usize, never: usize) -> DelayStats {
        DelayStats {
            median_ms: median(ms.iter().copied()),
            max_ms: ms.iter().copied().reduce(f64::max),
            seen: ms.len(),
            already,
            never,
        }
    }
}

/// The geometric mean of a ratio over rows that have an oracle; with its bound.
pub(super) fn mean(
    rows: &[Row],
    runtime: Option<Runtime>,
    ratio: impl Fn(&Values) -> Option<Value>,
) -> Option<Value> {
    let wanted = rows.iter().filter(|r| runtime.is_none_or(|w| w == r.runtime));
    let counted = wanted.filter(|r| r.values.oracle.is_some());
    geomean(counted.filter_map(|r| ratio(&r.values)))
}

/// The means of a runtime.
pub(super) fn means(rows: &[Row], runtime: Runtime) -> Means {
    let of = |ratio: fn(&Values) -> Option<Value>| Some(mean(rows, Some(runtime), ratio)?.number);
    Means {
        runtime,
        corefit_vs_oracle: of(Values::corefit_vs_oracle),
        default_vs_corefit: of(Values::default_vs_corefit),
        corefit_vs_passive: of(Values::corefit_vs_passive),
        corefit_vs_default: of(Values::corefit_vs_default),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A row with these seconds: default (negative: cut off), passive, oracle, corefit.
    pub(in crate::bench::overcommit) fn row(
        name: &'static str,
        runtime: Runtime,
        [default, passive, oracle, corefit]: [f64; 4],
    ) -> Row {
        let value = |s: f64| match s {
            s if s < 0.0 => Some(Value::at_least(-s)),
            s if s > 0.0 => Some(Value::exact(s)),
            _ => None,
        };
        let values = Values {
            default: value(default),
            passive: value(passive),
            oracle: value(oracle),
            corefit: value(corefit),
        };
        let number = |v: Option<Value>| v.map(|v| v.number);
        Row {
            name,
            runtime,
            size: "W".into(),
            default_s: number(values.default),
            passive_s: number(values.passive),
            oracle_s: number(values.oracle),
            corefit_s: number(values.corefit),
            corefit_vs_passive_95: None,
            verified: true,
            cut_off: values.cut_off(),
            oracle_of: Some("1".into()),
            certified: Some(true),
            certified_why: "same output".into(),
            regions_resized: 0,
            runs: BTreeMap::new(),
            phases_s: None,
            values,
        }
    }

    pub(in crate::bench::overcommit) fn part(name: Condition, programs: Vec<Row>) -> ConditionPart {
        ConditionPart {
            name,
            what: "<2 & 3> loops".into(),
            skipped: None,
            programs,
            geomean_vs_oracle: None,
            geomeans: vec![],
            delays: None,
        }
    }

    #[test]
    fn a_cut_off_run_makes_the_limit_the_value_of_its_configuration() {
        let runs = Runs::of(&[Value::exact(2.0), Value::at_least(60.0)], 1);
        assert!(runs.cut_off);
        assert_eq!((runs.median_s, runs.min_s), (Some(60.0), Some(2.0)));
        assert_eq!(runs.value(), Some(Value::at_least(60.0)));
        let runs = Runs::of(&[3.0, 1.0, 2.0].map(Value::exact), 0);
        assert_eq!((runs.median_s, runs.max_s), (Some(2.0), Some(3.0)));
        assert_eq!(Runs::of(&[], 3).value(), None);
    }

    #[test]
    fn means_leave_out_rows_without_an_oracle_and_other_runtimes() {
        let rows = [
            row("ep", Runtime::Gcc, [2.0, 1.0, 1.0, 1.1]),
            row("lu", Runtime::Gcc, [-60.0, 1.0, 1.0, 1.1]),
            row("cg", Runtime::Clang, [9.0, 9.0, 1.0, 9.0]),
            row("unsafe_tp", Runtime::Gcc, [5.0, 5.0, 0.0, 5.0]),
        ];
        let means = means(&rows, Runtime::Gcc);
        assert!((means.corefit_vs_oracle.unwrap() - 1.1).abs() < 1e-12);
        let default = mean(&rows, Some(Runtime::Gcc), Values::default_vs_corefit).unwrap();
        assert_eq!(default.bound, Bound::AtLeast);
        assert_eq!(means.default_vs_corefit, Some(default.number));
    }

    #[test]
    fn delays_without_a_run_have_no_numbers() {
        let none = DelayStats::of(&[], 2, 1);
        assert_eq!((none.median_ms, none.max_ms, none.never), (None, None, 1));
        let some = DelayStats::of(&[50.0, 90.0, 70.0], 0, 0);
        assert_eq!((some.median_ms, some.max_ms), (Some(70.0), Some(90.0)));
    }
}
