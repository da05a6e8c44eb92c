//! What is to be reached, and what was.

use std::cmp::Ordering;

use super::conditions::Condition;
use super::document::{ConditionPart, Target, Values, mean};
use super::programs::Runtime;
use crate::stats::{Bound, Value};
use crate::table::{bounded, factor};

/// Geometric mean of corefit over oracle, in each condition and for each runtime.
const VS_ORACLE: f64 = 1.10;
/// Each program, corefit over passive.
const VS_PASSIVE: f64 = 1.03;
/// lu where it sees 16 CPUs, default over corefit.
const LU_GAIN: f64 = 100.0;
/// Geometric mean of corefit over default where nothing is short.
const COST: f64 = 1.02;
/// Publishing a smaller size: two intervals of 50 ms.
const SHRINK_MS: f64 = 100.0;

/// All targets, in the order of the issue.
pub(super) fn targets(parts: &[ConditionPart], runtimes: &[Runtime], wrong: usize) -> Vec<Target> {
    let mut targets = vec![];
    for part in parts.iter().filter(|p| p.name != Condition::NothingShort) {
        targets.extend(runtimes.iter().map(|r| vs_oracle(part, *r)));
    }
    targets.push(vs_passive(parts));
    let find = |name| parts.iter().find(|p| p.name == name);
    if let Some(part) = find(Condition::Sees16) {
        targets.extend(runtimes.iter().filter_map(|r| lu_gain(part, *r)));
    }
    targets.extend(find(Condition::NothingShort).map(cost));
    targets.push(Target {
        name: "wrong results".into(),
        wanted: "none".into(),
        measured: Some(wrong.to_string()),
        pass: Some(wrong == 0),
        note: String::new(),
    });
    targets.extend(find(Condition::Step).into_iter().flat_map(delays));
    targets
}

/// A number of a condition, or why there is none.
fn number(part: &ConditionPart, number: Option<Value>) -> Result<Value, String> {
    match &part.skipped {
        Some(_) => Err("skipped".into()),
        None => number.ok_or_else(|| "no program has the times for it".into()),
    }
}

fn vs_oracle(part: &ConditionPart, runtime: Runtime) -> Target {
    let mean = mean(&part.programs, Some(runtime), Values::corefit_vs_oracle);
    let name = format!("corefit/oracle in {}, {} (geomean)", part.name.name(), runtime.name());
    at_most(name, VS_ORACLE, number(part, mean), String::new())
}

/// A program under a condition, against the passive policy.
struct AgainstPassive {
    ratio: Value,
    interval: Option<[f64; 2]>,
    place: String,
}

impl AgainstPassive {
    fn is_slower(&self) -> bool {
        self.ratio.number > VS_PASSIVE
    }

    /// By more than its runs scatter.
    fn is_surely_slower(&self) -> bool {
        self.is_slower() && self.interval.is_none_or(|[least, _]| least > VS_PASSIVE)
    }
}

fn vs_passive(parts: &[ConditionPart]) -> Target {
    let name = "corefit/passive, worst program".to_owned();
    let parts = parts.iter().filter(|p| p.skipped.is_none());
    let rows = parts.flat_map(|part| part.programs.iter().map(move |row| (part, row)));
    let mut all: Vec<AgainstPassive> = rows
        .filter_map(|(part, row)| {
            let place = format!("{} {} in {}", row.name, row.runtime.name(), part.name.name());
            let ratio = row.values.corefit_vs_passive()?;
            Some(AgainstPassive { ratio, interval: row.corefit_vs_passive_95, place })
        })
        .collect();
    let key = |one: &AgainstPassive| (one.is_surely_slower(), one.ratio.number);
    all.sort_by(|a, b| key(b).partial_cmp(&key(a)).unwrap_or(Ordering::Equal));
    let Some(worst) = all.first() else {
        return at_most(name, VS_PASSIVE, Err("no program".into()), String::new());
    };
    let mut note = worst.place.clone();
    if let Some([least, most]) = worst.interval {
        note += &format!(" (95 %: {least:.2} to {most:.2})");
    }
    let slower = all.iter().filter(|one| one.is_slower()).count();
    if slower > 1 {
        note += &format!(", and {} more above {VS_PASSIVE}", slower - 1);
    }
    let mut target = at_most(name, VS_PASSIVE, Ok(worst.ratio), note);
    if worst.is_slower() && !worst.is_surely_slower() {
        target.pass = None;
        target.note += "; their runs scatter too much to tell: raise --repeat";
    }
    target
}

/// `None` if lu was not asked for.
fn lu_gain(part: &ConditionPart, runtime: Runtime) -> Option<Target> {
    let mut rows = part.programs.iter();
    let lu = rows.find(|r| r.name == "lu" && r.runtime == runtime);
    if lu.is_none() && part.skipped.is_none() {
        return None;
    }
    let value = number(part, lu.and_then(|r| r.values.default_vs_corefit()));
    let name = format!("lu default/corefit in sees_16, {}", runtime.name());
    let mut target = at_most(name, 0.0, value.clone(), String::new());
    target.wanted = format!("at least {LU_GAIN}");
    target.pass = value.as_ref().ok().and_then(|v| match v.bound {
        _ if v.number >= LU_GAIN && v.bound != Bound::AtMost => Some(true),
        Bound::AtLeast => None,
        _ => Some(false),
    });
    if target.pass.is_none() && value.is_ok() {
        target.note = "default was cut off too early to tell: raise --limit".into();
    }
    Some(target)
}

fn cost(part: &ConditionPart) -> Target {
    let mean = mean(&part.programs, None, Values::corefit_vs_default);
    let name = "corefit/default in nothing_short (geomean)".to_owned();
    at_most(name, COST, number(part, mean), String::new())
}

fn delays(part: &ConditionPart) -> Vec<Target> {
    let shrink = "publishing a smaller size in step, slowest run".to_owned();
    let missing =
        |name, wanted: &str, note| Target { name, wanted: wanted.into(), measured: None, pass: None, note };
    let wanted = format!("at most {SHRINK_MS} ms");
    let Some(delays) = &part.delays else {
        return vec![missing(shrink, &wanted, "skipped".into())];
    };
    let ms = |ms: Option<f64>| ms.map(|ms| format!("{ms:.0} ms"));
    let note = |s: &super::document::DelayStats| {
        let median = ms(s.median_ms).unwrap_or_else(|| "none".into());
        format!("median {median} of {} runs; right already in {}, never in {}", s.seen, s.already, s.never)
    };
    let (s, g) = (&delays.shrink, &delays.growth);
    let pass = s.max_ms.map(|max| max <= SHRINK_MS && s.never == 0);
    vec![
        Target {
            measured: ms(s.max_ms),
            pass: if s.never > 0 { Some(false) } else { pass },
            ..missing(shrink, &wanted, note(s))
        },
        Target {
            measured: ms(g.max_ms),
            ..missing("publishing a larger size in step, slowest run".into(), "as the back-off says", note(g))
        },
    ]
}

/// A target for a factor. A lower bound passes never, an upper bound only below the limit.
fn at_most(name: String, limit: f64, value: Result<Value, String>, note: String) -> Target {
    let wanted = format!("at most {limit:.2}");
    match value {
        Ok(value) => Target {
            name,
            wanted,
            measured: Some(bounded(Some(value), factor)),
            pass: match value.bound {
                Bound::Exact => Some(value.number <= limit),
                Bound::AtLeast => (value.number > limit).then_some(false),
                Bound::AtMost => (value.number <= limit).then_some(true),
            },
            note,
        },
        Err(why) => Target { name, wanted, measured: None, pass: None, note: why },
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::super::document::tests::{part, row};
    use super::super::document::{DelayStats, Delays};
    use super::*;

    fn find<'t>(targets: &'t [Target], name: &str) -> &'t Target {
        targets.iter().find(|t| t.name.contains(name)).unwrap()
    }

    #[test]
    fn each_condition_and_runtime_has_its_own_mean() {
        let rows = vec![
            row("ep", Runtime::Gcc, [1.0, 1.0, 1.0, 1.05]),
            row("ep", Runtime::Clang, [1.0, 1.0, 1.0, 1.2]),
        ];
        let parts = [part(Condition::Quota, rows)];
        let all = targets(&parts, Runtime::value_variants(), 0);
        assert_eq!(find(&all, "quota, gcc").pass, Some(true));
        let clang = find(&all, "quota, clang");
        assert_eq!((clang.pass, clang.measured.as_deref()), (Some(false), Some("1.20")));
        assert!(!all.iter().any(|t| t.name.contains("neighbour")), "not asked for");
    }

    #[test]
    fn a_skipped_condition_is_not_measured_and_says_so() {
        let mut parts = [Condition::Quota, Condition::Step].map(|c| part(c, vec![]));
        for part in &mut parts {
            part.skipped = Some("no rights".into());
        }
        let all = targets(&parts, &[Runtime::Gcc], 0);
        for name in ["quota, gcc", "step, gcc", "smaller size"] {
            let target = find(&all, name);
            assert_eq!((target.pass, target.measured.as_ref()), (None, None), "{name}");
            assert_eq!(target.note, "skipped", "the reason stands at the condition");
        }
    }

    #[test]
    fn a_program_whose_runs_scatter_more_than_it_is_slower_is_not_judged() {
        let scattered = |interval| {
            let mut row = row("ep", Runtime::Gcc, [1.0, 1.0, 1.0, 1.10]);
            row.corefit_vs_passive_95 = Some(interval);
            row
        };
        let judged = |rows| {
            let all = targets(&[part(Condition::Quota, rows)], &[Runtime::Gcc], 0);
            let target = find(&all, "worst program");
            (target.pass, target.note.clone())
        };
        let (pass, note) = judged(vec![scattered([0.9, 1.3])]);
        assert_eq!(
            (pass, note.contains("0.90 to 1.30"), note.contains("--repeat")),
            (None, true, true),
            "{note}"
        );
        assert_eq!(judged(vec![scattered([1.05, 1.15])]).0, Some(false));
        let (pass, note) =
            judged(vec![scattered([0.9, 1.3]), row("cg", Runtime::Gcc, [1.0, 1.0, 1.0, 1.05])]);
        assert_eq!(
            (pass, note.starts_with("cg")),
            (Some(false), true),
            "who is surely slower counts: {note}"
        );
    }

    #[test]
    fn the_worst_program_against_passive_is_named() {
        let rows = vec![
            row("ep", Runtime::Gcc, [1.0, 1.0, 1.0, 1.04]),
            row("cg", Runtime::Gcc, [1.0, 1.0, 1.0, 1.30]),
        ];
        let all = targets(&[part(Condition::Quota, rows)], &[Runtime::Gcc], 0);
        let target = find(&all, "worst program");
        assert_eq!(target.pass, Some(false));
        assert_eq!(target.note, "cg gcc in quota, and 1 more above 1.03");
    }

    #[test]
    fn a_cut_off_default_of_lu_proves_the_gain_or_leaves_it_open() {
        let lu = |default| {
            let rows = vec![row("lu", Runtime::Gcc, [default, 1.0, 1.0, 1.0])];
            let all = targets(&[part(Condition::Sees16, rows)], &[Runtime::Gcc], 0);
            let target = find(&all, "lu default").clone();
            (target.pass, target.measured.unwrap())
        };
        assert_eq!(lu(-150.0), (Some(true), ">150".into()));
        assert_eq!(lu(-60.0), (None, ">60.0".into()));
        assert_eq!(lu(60.0), (Some(false), "60.0".into()));
    }

    #[test]
    fn a_corefit_run_that_was_cut_off_passes_nothing() {
        let rows = vec![row("cg", Runtime::Gcc, [1.0, 1.0, 1.0, -60.0])];
        let parts = [
            part(Condition::Quota, rows),
            part(Condition::NothingShort, vec![row("cg", Runtime::Gcc, [1.0, 1.0, 1.0, -60.0])]),
        ];
        let all = targets(&parts, &[Runtime::Gcc], 0);
        for name in ["quota, gcc", "worst program", "nothing_short"] {
            assert_eq!(find(&all, name).pass, Some(false), "{name}");
        }
    }

    #[test]
    fn a_wrong_result_fails() {
        assert_eq!(find(&targets(&[], &[], 1), "wrong").pass, Some(false));
        assert_eq!(find(&targets(&[], &[], 0), "wrong").pass, Some(true));
    }

    #[test]
    fn shrinking_fails_when_one_run_was_late_or_never_shrank() {
        let with = |shrink: DelayStats| {
            let mut step = part(Condition::Step, vec![]);
            step.delays = Some(Delays { shrink, growth: DelayStats::of(&[300.0], 0, 0) });
            let all = targets(&[step], &[], 0);
            find(&all, "smaller size").pass
        };
        assert_eq!(with(DelayStats::of(&[50.0, 99.0], 1, 0)), Some(true));
        assert_eq!(with(DelayStats::of(&[50.0, 101.0], 0, 0)), Some(false));
        assert_eq!(with(DelayStats::of(&[50.0], 0, 1)), Some(false));
        assert_eq!(with(DelayStats::of(&[], 0, 1)), Some(false));
        assert_eq!(with(DelayStats::of(&[], 2, 0)), None);
    }
}
