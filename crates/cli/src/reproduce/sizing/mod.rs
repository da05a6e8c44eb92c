//! P2.4, P2.5: how many vCPUs, decided by a formula, by pCPU-Est and by us, against the best of all numbers.
//!
//! All times are those of work that takes [`simulate::SECONDS`] at the best number of vCPUs; searching is part of it.
//! The best number is found by trying all of them. Ours is compared with VCPU-Bal's both ways: with the formula as a
//! controller, which begins with all vCPUs and looks before it does anything, as ours does, and with its number set at once,
//! of which the first moments are left out ([`simulate::fixed`]). With several VMs all have the same program and, but for
//! ours, the same number.

mod programs;
mod simulate;

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use corefit_core::decide::Sizer;
use corefit_sim::Spec;
use serde::{Deserialize, Serialize};

use super::p2::{PROGRAMS, SHORTAGE, Shortage};
use super::testbed::spec;
use super::{Effort, Item, Paper, Rule};
use crate::bench::table::Table;
use crate::chart::{Chart, Series};
use crate::parallel;
use crate::sim::summary::Mean;
use Shortage::{Limit, Reduction, Sharing};
use programs::Long;
pub(super) use simulate::{apply, seconds};

/// Most vCPUs.
const MOST: u32 = 16;
/// Every number of vCPUs is measured for so long, s, and the best ones for [`simulate::SECONDS`]: what runs in step for
/// ten seconds may not do so for sixty.
const FIRST: f64 = 2.0;
const FINALISTS: usize = 3;
/// The first of the random programs, if nobody says otherwise: none below it was looked at while the policy was made.
const RANDOM: u64 = 1000;

/// Which cases are simulated.
#[derive(clap::Args)]
pub(super) struct Choice {
    /// How much of what controllers do is simulated: numbers of vCPUs (P2); with any but none also 1,000 job sets (P5), a minute
    /// on two idle CPUs. quick: three shortages and six random programs, a minute; full: all twelve (2 to 8 VMs, caps of 1200 to
    /// 100 %, 12 to 1 pCPUs), three runs each, and 60 random programs, some 15 minutes
    #[arg(long = "controllers", value_enum, value_name = "HOW", default_value = "quick")]
    pub(super) effort: Effort,
    /// Of P2's numbers of vCPUs only the cases whose name has this in it, as in "lu, 4 VMs", "cg, " or ", 400 %", and
    /// nothing else
    #[arg(long, value_name = "CASE")]
    pub(super) only: Vec<String>,
    /// P2's random programs by number, from this one on
    #[arg(long, value_name = "NUMBER", default_value_t = RANDOM)]
    random: u64,
    /// Runs of P2's numbers of vCPUs, by number, the last one not included [default: 0..1; full: 0..3]. Random programs have the
    /// first of them
    #[arg(long, value_name = "I..J", value_parser = crate::sim::range)]
    runs: Option<(usize, usize)>,
    /// P2's numbers of vCPUs as earlier runs with --json have them, not simulated again; may be repeated
    #[arg(long, value_name = "FILE", conflicts_with_all = ["only", "random", "runs"])]
    sizes: Vec<PathBuf>,
}

impl Choice {
    /// A part of it all is asked for, and so nothing else.
    pub(super) fn is_part(&self) -> bool {
        !self.only.is_empty() || !self.sizes.is_empty()
    }
}

/// What is read of an earlier run's document.
#[derive(Deserialize)]
struct Earlier {
    sizes: Vec<Row>,
}

/// A program in a configuration.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Row {
    program: String,
    shortage: String,
    run: u64,
    /// Whether work is counted: a signal of progress.
    signal: bool,
    random: bool,
    /// Best of all, VCPU-Bal's, pCPU-Est's and ours (the mean over VMs).
    vcpus: [f64; 4],
    /// Times of the last three over the best.
    over_best: [f64; 3],
    /// Ours over VCPU-Bal's as a controller, which sees and does as ours does.
    over_bal: f64,
    /// Ours over the best of the numbers that it ended with: what searching cost. `None` with several VMs.
    search: Option<f64>,
    settled_s: f64,
}

struct Case {
    long: Long,
    shortage: Shortage,
    run: u64,
    random: bool,
}

impl Case {
    /// Its name, as in "lu, 4 VMs".
    fn name(&self) -> String {
        format!("{}, {}", self.long.name, self.shortage.name())
    }
}

/// Of all cases that are chosen.
pub(super) fn rows(choice: &Choice) -> Result<Vec<Row>> {
    if !choice.sizes.is_empty() {
        return earlier(&choice.sizes);
    }
    let mut cases = cases(choice)?;
    let only = &choice.only;
    cases.retain(|case| only.is_empty() || only.iter().any(|part| case.name().contains(part.as_str())));
    let rows: Result<Vec<Vec<Row>>> =
        parallel::map(&cases, parallel::cpus(), "P2, sizes", rows_of).into_iter().collect();
    Ok(rows?.concat())
}

/// The rows of these documents, each once.
fn earlier(files: &[PathBuf]) -> Result<Vec<Row>> {
    let mut seen = BTreeSet::new();
    let mut rows = vec![];
    for file in files {
        let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let document: Earlier = serde_json::from_str(&text)
            .with_context(|| format!("{}: no document of --json", file.display()))?;
        rows.extend(document.sizes);
    }
    rows.retain(|row: &Row| seen.insert((row.program.clone(), row.shortage.clone(), row.run, row.signal)));
    Ok(rows)
}

fn cases(choice: &Choice) -> Result<Vec<Case>> {
    let (shortages, runs, random): (&[Shortage], usize, u64) = match choice.effort {
        Effort::Full => (
            &[
                Sharing(2),
                Sharing(4),
                Sharing(8),
                Limit(12),
                Limit(8),
                Limit(4),
                Limit(1),
                Reduction(12),
                Reduction(8),
                Reduction(4),
                Reduction(2),
                Reduction(1),
            ],
            3,
            60,
        ),
        _ => (&[Sharing(4), Limit(4), Reduction(4)], 1, 6),
    };
    let (from, to) = choice.runs.unwrap_or((0, runs));
    let mut cases = vec![];
    for run in from as u64..to as u64 {
        for &shortage in shortages {
            for name in PROGRAMS {
                cases.push(Case { long: programs::ten(name)?, shortage, run, random: false });
            }
        }
    }
    for number in 0..random {
        let shortage = shortages[usize::try_from(number).unwrap_or(0) % shortages.len()];
        let long = programs::random(choice.random.saturating_add(number));
        cases.push(Case { long, shortage, run: from as u64, random: true });
    }
    Ok(cases)
}

fn host(case: &Case, signal: bool) -> Result<Spec> {
    let Case { long, shortage, .. } = case;
    let (key, value) = shortage.set();
    let sets = [
        ("vm.npb.program", long.text.clone()),
        ("vm.npb.threads", long.threads.to_string()),
        ("vm.npb.wait", long.wait.to_owned()),
        // Our programs, not the paper's host: each section is one meeting.
        ("vm.npb.runtime", "libomp".to_owned()),
        ("vm.npb.progress", signal.to_string()),
        ("until", "3600s".to_owned()),
        // Of constant speed: what is judged is the number of vCPUs.
        ("governor.slowest", "1".to_owned()),
        (key, value),
    ];
    let mut spec = spec(SHORTAGE, &sets)?;
    spec.seed += case.run;
    Ok(spec)
}

/// With a signal and, of the first run of the ten, without one.
fn rows_of(case: &Case) -> Result<Vec<Row>> {
    let spec = host(case, true)?;
    let mut rates = vec![];
    for vcpus in 1..=MOST {
        rates.push(simulate::fixed(&spec, vcpus, FIRST)?);
    }
    let bal = case.shortage.available();
    let mut order: Vec<usize> = (0..rates.len()).collect();
    order.sort_by(|&a, &b| rates[b].total_cmp(&rates[a]));
    let finalists = order.into_iter().take(FINALISTS).chain([bal as usize - 1]);
    for index in finalists {
        rates[index] = simulate::fixed(&spec, u32::try_from(index)? + 1, simulate::SECONDS)?;
    }
    let best = (0..rates.len()).max_by(|&a, &b| rates[a].total_cmp(&rates[b])).unwrap_or(0);
    let target = rates[best] * simulate::SECONDS;
    let at = |count: u32| rates[count as usize - 1];
    let est = simulate::ruled(&spec, Sizer::PcpuEst, target)?;
    let formula = simulate::ruled(&spec, Sizer::VcpuBal, target)?;
    let mean = |online: &[usize]| Mean::of(online.iter().map(|&n| count(n))).map_or(f64::NAN, |m| m.mean);
    let row = |signal: bool| -> Result<Row> {
        let ours = simulate::ruled(&host(case, signal)?, Sizer::Corefit, target)?;
        let end = u32::try_from(ours.online.first().copied().unwrap_or(1))?;
        Ok(Row {
            program: case.long.name.clone(),
            shortage: case.shortage.name(),
            run: case.run,
            signal,
            random: case.random,
            vcpus: [count(best + 1), f64::from(bal), mean(&est.online), mean(&ours.online)],
            over_best: [rates[best] / at(bal), est.took / simulate::SECONDS, ours.took / simulate::SECONDS],
            over_bal: ours.took / formula.took,
            search: (spec.vms.len() == 1).then(|| ours.took / (target / at(end))),
            settled_s: ours.settled,
        })
    };
    let silent = case.run == 0 && !case.random;
    [true, false].into_iter().filter(|signal| *signal || silent).map(row).collect()
}

#[expect(clippy::cast_precision_loss, reason = "small counts")]
fn count(n: usize) -> f64 {
    n as f64
}

/// Which rows.
type Chosen = fn(&Row) -> bool;

/// What a set of rows comes to.
type Figure = fn(&[&Row]) -> f64;

/// Our promises, on these rows.
pub(super) fn items(rows: &[Row]) -> Vec<Item> {
    let mut items = vec![];
    let sets: [(&str, Chosen); 3] = [
        ("ten programs", |row| row.signal && !row.random),
        ("random programs", |row| row.random),
        ("ten programs without a signal", |row| !row.signal),
    ];
    let figures: [(&str, f64, Figure); 5] = [
        ("corefit's time over the best's, geometric mean", 1.05, |rows| geometric(rows).0),
        ("the worst", 1.15, |rows| most(rows, |row| row.over_best[2])),
        ("corefit's time over VCPU-Bal's, the worst", 1.02, |rows| most(rows, |row| row.over_bal)),
        ("the same over VCPU-Bal's number set at once, its first 0.6 s left out", 1.02, |rows| {
            most(rows, |row| row.over_best[2] / row.over_best[0])
        }),
        ("what searching costs at worst (theirs: 28 % at worst)", 1.05, |rows| {
            most(rows, |row| row.search.unwrap_or(f64::NAN))
        }),
    ];
    for (name, of) in sets {
        let chosen: Vec<&Row> = rows.iter().filter(|row| of(row)).collect();
        let silent = chosen.first().is_some_and(|row| !row.signal);
        for (number, (what, limit, figure)) in figures.iter().enumerate() {
            // Without a signal nothing is promised but to be no worse.
            if !chosen.is_empty() && (!silent || number == 3) {
                let what = format!("{name}: {what}{}", interval(&chosen, *figure, number == 0));
                let ours = Some(figure(&chosen));
                items.push(Item::new((Paper::P2, "2.5"), what, None, ours, &Rule::AtMost(*limit)));
            }
        }
    }
    items.extend(published(rows));
    items
}

fn most(rows: &[&Row], of: fn(&Row) -> f64) -> f64 {
    rows.iter().map(|row| of(row)).fold(f64::NAN, f64::max)
}

/// A figure's mean over runs and its 95 % interval; of one run, that of a geometric mean over its cases.
fn interval(rows: &[&Row], figure: Figure, mean: bool) -> String {
    let runs: BTreeSet<u64> = rows.iter().map(|row| row.run).collect();
    let of_run = |run: &u64| figure(&rows.iter().copied().filter(|row| row.run == *run).collect::<Vec<_>>());
    let over_runs = Mean::of(runs.iter().map(of_run)).and_then(|mean| Some((mean.mean, mean.ci95?)));
    match over_runs {
        Some((mean, half)) => format!(" ({} runs: {mean:.3} +- {half:.3}, 95 %)", runs.len()),
        None if mean => geometric(rows).1.map_or(String::new(), |half| {
            format!(" (+- {:.1} %, 95 %, over its {} cases)", half * 100.0, rows.len())
        }),
        None => " (one run)".into(),
    }
}

/// What the paper prints of VCPU-Bal, the optimum and pCPU-Est.
fn published(rows: &[Row]) -> Vec<Item> {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.signal && !row.random).collect();
    let most = |kind: &str, f: &dyn Fn(&Row) -> f64| {
        rows.iter().filter(|row| row.shortage.ends_with(kind)).map(|row| f(row)).fold(f64::NAN, f64::max)
    };
    let est_over_bal = |row: &Row| (row.over_best[0] / row.over_best[1] - 1.0) * 100.0;
    let figure = |figure, what: &str, theirs: f64, ours: f64| {
        Item::new((Paper::P2, figure), what, Some(theirs), Some(ours), &Rule::Within(25.0))
    };
    let lu = rows.iter().filter(|row| row.program == "lu");
    let lu = lu.map(|row| row.over_best[0] / row.over_best[1]).fold(f64::NAN, f64::max);
    vec![
        figure("Figure 12", "pCPU-Est over VCPU-Bal, pCPUs, %", 42.0, most("pCPUs", &est_over_bal)),
        Item::new(
            (Paper::P2, "Figure 12"),
            "pCPU-Est does not help LU: VCPU-Bal's time over its",
            None,
            Some(lu),
            &Rule::AtMost(1.02),
        ),
    ]
}

/// Geometric mean of times over the best, and about which part of it is half its 95 % interval, over rows.
fn geometric(rows: &[&Row]) -> (f64, Option<f64>) {
    let logs = Mean::of(rows.iter().map(|row| row.over_best[2].ln()));
    logs.map_or((f64::NAN, None), |logs| (logs.mean.exp(), logs.ci95))
}

pub(super) fn text(rows: &[Row]) -> String {
    let mut table = Table::new(
        4,
        &[
            "program",
            "short",
            "run",
            "signal",
            "best",
            "bal",
            "est",
            "ours",
            "bal/best",
            "est/best",
            "ours/best",
            "ours/bal",
            "search",
            "settled s",
        ],
    );
    for row in rows {
        let mut cells = vec![
            row.program.clone(),
            row.shortage.clone(),
            row.run.to_string(),
            if row.signal { "yes" } else { "no" }.into(),
        ];
        cells.extend(row.vcpus.iter().map(|n| format!("{n:.1}")));
        cells.extend(row.over_best.iter().chain([&row.over_bal]).map(|ratio| format!("{ratio:.2}")));
        cells.push(row.search.map_or(String::new(), |search| format!("{search:.3}")));
        cells.push(format!("{:.1}", row.settled_s));
        table.row(cells);
    }
    format!(
        "vCPUs, and times over the best number's, of work of {} s:\n{}",
        simulate::SECONDS,
        table.render()
    )
}

/// Times over the best, by configuration: a point for each program.
pub(super) fn chart(rows: &[Row]) -> Chart {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.signal && !row.random && row.run == 0).collect();
    let mut names: Vec<String> = rows.iter().map(|row| row.shortage.clone()).collect();
    names.dedup();
    let series = ["VCPU-Bal", "pCPU-Est", "corefit"].iter().enumerate().map(|(column, name)| {
        let point = |row: &&Row| {
            let x = names.iter().position(|name| *name == row.shortage).map_or(0.0, count);
            Some((x + (count(column) - 1.0) * 0.2, row.over_best[column], None))
        };
        Series { name: (*name).into(), points: rows.iter().filter_map(point).collect() }
    });
    Chart {
        title: "P2: time over that of the best number of vCPUs".into(),
        note: "ten programs in each configuration, work of 60 s, searching included; simulated".into(),
        x: "configuration".into(),
        y: "time / best".into(),
        series: series.collect(),
        categories: Some(names),
        logarithmic_x: false,
        linear_y: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(program: &str, run: u64, over_best: f64) -> Row {
        Row {
            program: program.into(),
            shortage: "4 VMs".into(),
            run,
            signal: true,
            random: program.starts_with("random"),
            vcpus: [4.0; 4],
            over_best: [1.0, 1.0, over_best],
            over_bal: 1.0,
            search: None,
            settled_s: 1.0,
        }
    }

    #[test]
    fn intervals_are_over_runs_and_of_one_run_over_cases() {
        let what = |rows: &[Row]| items(rows).into_iter().map(|item| item.what).collect::<Vec<_>>();
        let ten = what(&[row("lu", 0, 1.1), row("lu", 1, 1.3), row("bt", 1, 1.2)]);
        assert!(ten[1].ends_with("the worst (2 runs: 1.200 +- 1.271, 95 %)"), "{ten:?}");
        let random = what(&[row("random 1000", 0, 1.1), row("random 1001", 0, 1.1)]);
        assert!(random[0].ends_with("geometric mean (+- 0.0 %, 95 %, over its 2 cases)"), "{random:?}");
        assert!(random[1].ends_with("the worst (one run)"), "{random:?}");
    }

    #[test]
    fn what_earlier_runs_wrote_is_read_again_each_row_once() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let rows = [row("lu", 0, 1.1), row("lu", 1, 1.3)];
        std::fs::write(file.path(), serde_json::json!({ "items": [], "sizes": rows }).to_string()).unwrap();
        let paths = [file.path().to_owned(), file.path().to_owned()];
        let again: Vec<(u64, f64)> =
            earlier(&paths).unwrap().iter().map(|row| (row.run, row.over_best[2])).collect();
        assert_eq!(again, [(0, 1.1), (1, 1.3)]);
        std::fs::write(file.path(), "{}").unwrap();
        assert!(earlier(&paths).unwrap_err().to_string().ends_with("no document of --json"));
    }
}
