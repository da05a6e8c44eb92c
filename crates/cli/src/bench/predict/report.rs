//! Errors of predictions, for people and programs.

use corefit_core::check::count;
use corefit_core::profile::OnVm;
use serde::Serialize;

use crate::stats::median;
use crate::table::{NONE, Table};

/// A program in a condition; all numbers are dedicated cores.
#[derive(Debug, Serialize)]
pub(super) struct Point {
    pub(super) program: String,
    pub(super) spins: bool,
    pub(super) condition: String,
    pub(super) group: &'static str,
    /// What a vCPU gets where all want everything: a speedup at equal share is dedicated cores over it.
    pub(super) share: f64,
    /// Null if cut off.
    pub(super) measured: Option<f64>,
    /// Half of the range of the rounds, a part of it: what no prediction can be better than. Null with one round.
    pub(super) spread: Option<f64>,
    /// Where the CPU time given went, in the runs and in the prediction.
    pub(super) terms: Option<Terms>,
    pub(super) predicted_terms: Option<Terms>,
    /// From the profile on all CPUs, with its lower and upper end; null if it has none.
    pub(super) predicted: Option<[f64; 3]>,
    /// From the profile with as many threads on one CPU.
    pub(super) from_one_cpu: Option<[f64; 3]>,
    pub(super) usl: Option<f64>,
}

/// Parts of the CPU time that a share gives all CPUs, 1 in all: [`OnVm`]'s terms. Beside neighbours, more than the share may be
/// had: then unused is negative.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Terms {
    pub(super) used: f64,
    pub(super) switching: f64,
    pub(super) slowed: f64,
    pub(super) unused: f64,
}

impl Terms {
    pub(super) fn of(on: &OnVm) -> Terms {
        let OnVm { efficiency: used, switching, slowed, .. } = *on;
        Terms { used, switching, slowed, unused: 1.0 - used - switching - slowed }
    }

    /// Of each term.
    pub(super) fn median(all: impl Iterator<Item = Terms>) -> Option<Terms> {
        let all: Vec<Terms> = all.collect();
        let of = |term: fn(&Terms) -> f64| median(all.iter().map(term));
        Some(Terms {
            used: of(|t| t.used)?,
            switching: of(|t| t.switching)?,
            slowed: of(|t| t.slowed)?,
            unused: of(|t| t.unused)?,
        })
    }
}

impl Point {
    fn error(&self, of: Option<f64>) -> Option<f64> {
        Some((of? / self.measured? - 1.0).abs())
    }

    /// What of the error is outside of what the rounds measured; `None` with one round.
    fn beyond(&self, of: Option<f64>) -> Option<f64> {
        Some((self.error(of)? - self.spread?).max(0.0))
    }
}

/// Errors of a group of points, parts of what was measured.
#[derive(Debug, Serialize)]
pub(super) struct Errors {
    group: &'static str,
    by: &'static str,
    points: usize,
    median: Option<f64>,
    worst: Option<f64>,
    /// The worst that is left of an error without the spread of what was measured there.
    beyond: Option<f64>,
    /// Median spread of what was measured.
    spread: Option<f64>,
    /// Programs that spin by themselves: the worst factor.
    spinning_worst: Option<f64>,
    /// Of the points, those within the predicted range.
    within: Option<usize>,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
pub(super) struct Document {
    cpus: usize,
    size: String,
    repeat: u32,
    points: Vec<Point>,
    errors: Vec<Errors>,
    /// CPU time of looking, of the program's: median and worst.
    cost: Option<[f64; 2]>,
}

type By = (&'static str, fn(&Point) -> Option<[f64; 3]>);
const BY: [By; 3] = [
    ("all CPUs", |point| point.predicted),
    ("one CPU", |point| point.from_one_cpu),
    ("USL", |point| point.usl.map(|x| [x, x, x])),
];

impl Document {
    pub(super) fn new(cpus: usize, size: &str, repeat: u32, points: Vec<Point>, costs: &[f64]) -> Document {
        let mut errors = vec![];
        for group in ["machine", "quota", "neighbour", "VM"] {
            let of: Vec<&Point> =
                points.iter().filter(|p| p.group == group && p.measured.is_some()).collect();
            if of.is_empty() {
                continue;
            }
            errors.extend(BY.map(|by| errors_of(group, by, &of)));
        }
        let cost = median(costs.iter().copied()).map(|m| [m, costs.iter().copied().fold(0.0, f64::max)]);
        Document { cpus, size: size.to_owned(), repeat, points, errors, cost }
    }

    pub(super) fn text(&self) -> String {
        let mut table = Table::new(
            2,
            &["program", "condition", "measured", "+- %", "all CPUs", "range", "one CPU", "USL", "share"],
        );
        let number = |x: Option<f64>| x.map_or(NONE.to_owned(), |x| format!("{x:.2}"));
        for point in &self.points {
            table.row(vec![
                point.program.clone() + if point.spins { " (spins)" } else { "" },
                point.condition.clone(),
                number(point.measured),
                point.spread.map_or(NONE.into(), |x| format!("{:.0}", 100.0 * x)),
                number(point.predicted.map(|p| p[0])),
                point.predicted.map_or(NONE.into(), |p| format!("{:.2}-{:.2}", p[1], p[2])),
                number(point.from_one_cpu.map(|p| p[0])),
                number(point.usl),
                format!("{:.2}", point.share),
            ]);
        }
        let mut text = format!(
            "Dedicated cores (speedup at equal share x share), {} CPUs, size {}, medians of {}:\n{}",
            self.cpus,
            self.size,
            count(self.repeat as usize, "round"),
            table.render()
        );
        let mut table = Table::new(
            2,
            &[
                "errors",
                "predicted from",
                "points",
                "median %",
                "worst %",
                "beyond +- %",
                "spread %",
                "in range",
                "spinning, factor",
            ],
        );
        let percent = |x: Option<f64>| x.map_or(NONE.to_owned(), |x| format!("{:.1}", 100.0 * x));
        for e in &self.errors {
            table.row(vec![
                e.group.into(),
                e.by.into(),
                e.points.to_string(),
                percent(e.median),
                percent(e.worst),
                percent(e.beyond),
                percent(e.spread),
                e.within.map_or(NONE.into(), |n| n.to_string()),
                e.spinning_worst.map_or(NONE.into(), |x| format!("{x:.2}")),
            ]);
        }
        text += &format!("\n{}", table.render());
        text += "+- and spread: half of the range of the rounds, which no prediction can be better than; beyond: the worst error less that of its point.\n\
                 Promised: median 5 % on the machine, 10 % on VMs, worst 15 %, spinning programs within a factor of 2.\n\
                 A quota is a control group's, one for all threads; a VM's is one for each vCPU (--vm). More than these CPUs cannot be measured.\n";
        if let Some([median, worst]) = self.cost {
            text += &format!(
                "Looking took {:.2} % of the programs' CPU time (median; {:.2} % at worst; at most 2 % is promised).\n",
                100.0 * median,
                100.0 * worst
            );
        }
        text
    }
}

fn errors_of(group: &'static str, (by, of): By, points: &[&Point]) -> Errors {
    let is = |point: &Point| of(point).map(|p| p[0]);
    let errors: Vec<f64> =
        points.iter().filter(|p| !p.spins).filter_map(|point| point.error(is(point))).collect();
    let factors = points.iter().filter(|p| p.spins).filter_map(|point| Some(is(point)? / point.measured?));
    let inside = |point: &&&Point| {
        of(point).zip(point.measured).is_some_and(|([_, low, high], m)| (low..=high).contains(&m))
    };
    Errors {
        group,
        by,
        points: errors.len(),
        worst: errors.iter().copied().reduce(f64::max),
        beyond: points
            .iter()
            .filter(|p| !p.spins)
            .filter_map(|point| point.beyond(is(point)))
            .reduce(f64::max),
        median: median(errors.iter().copied()),
        spread: median(points.iter().filter(|p| !p.spins).filter_map(|point| point.spread)),
        spinning_worst: factors.map(|f| f.max(1.0 / f)).reduce(f64::max),
        within: (by != "USL").then(|| points.iter().filter(|p| !p.spins).filter(inside).count()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(program: &str, measured: f64, predicted: f64) -> Point {
        Point {
            program: program.into(),
            spins: program == "lu",
            condition: "quota".into(),
            group: "quota",
            share: 0.5,
            measured: Some(measured),
            spread: Some(0.1),
            terms: None,
            predicted_terms: None,
            predicted: Some([predicted, predicted * 0.95, predicted * 1.05]),
            from_one_cpu: None,
            usl: Some(2.0 * measured),
        }
    }

    #[test]
    fn errors_are_relative_to_what_was_measured_and_spinning_programs_count_apart() {
        let points =
            vec![point("a", 1.0, 1.1), point("b", 1.0, 0.98), point("c", 2.0, 2.4), point("lu", 0.5, 1.0)];
        let document = Document::new(2, "W", 3, points, &[0.01, 0.005]);
        let ours = &document.errors[0];
        assert_eq!((ours.by, ours.points, ours.within), ("all CPUs", 3, Some(1)));
        assert!((ours.median.unwrap() - 0.1).abs() < 1e-9 && (ours.worst.unwrap() - 0.2).abs() < 1e-9);
        assert!((ours.beyond.unwrap() - 0.1).abs() < 1e-9, "rounds of c differ by a tenth to both sides");
        assert!((ours.spinning_worst.unwrap() - 2.0).abs() < 1e-9);
        assert_eq!(document.errors[1].median, None);
        assert!((document.errors[2].median.unwrap() - 1.0).abs() < 1e-9);
        assert!(
            document
                .text()
                .contains("Looking took 0.75 % of the programs' CPU time (median; 1.00 % at worst")
        );
    }
}
