//! P2.4, P2.5: how many vCPUs, decided by a formula, by pCPU-Est and by us, against the best of all numbers.
//!
//! All times are those of work that takes [`simulate::SECONDS`] at the best number of vCPUs; searching is part of it.
//! The best number is found by trying all of them. Ours is compared with VCPU-Bal's both ways: with the formula as a
//! controller, which begins with all vCPUs and looks before it does anything, as ours does, and with its number set at once,
//! of which the first moments are left out ([`simulate::fixed`]). With several VMs all have the same program and, but for
//! ours, the same number.

mod programs;
mod simulate;

use anyhow::Result;
use corefit_core::decide::Sizer;
use corefit_sim::Spec;
use serde::Serialize;

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
/// The first of the random programs: none below it was looked at while the policy was made.
const RANDOM: u64 = 1000;

/// A program in a configuration.
#[derive(Clone, Debug, Serialize)]
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

/// Of all cases, or of those whose names have one of these in them.
pub(super) fn rows(effort: Effort, only: &[String]) -> Result<Vec<Row>> {
    let mut cases = cases(effort)?;
    cases.retain(|case| only.is_empty() || only.iter().any(|part| case.name().contains(part.as_str())));
    let rows: Result<Vec<Vec<Row>>> =
        parallel::map(&cases, parallel::cpus(), "P2, sizes", rows_of).into_iter().collect();
    Ok(rows?.concat())
}

fn cases(effort: Effort) -> Result<Vec<Case>> {
    let (shortages, runs, random): (&[Shortage], u64, u64) = match effort {
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
    let mut cases = vec![];
    for run in 0..runs {
        for &shortage in shortages {
            for name in PROGRAMS {
                cases.push(Case { long: programs::ten(name)?, shortage, run, random: false });
            }
        }
    }
    for number in 0..random {
        let shortage = shortages[usize::try_from(number).unwrap_or(0) % shortages.len()];
        cases.push(Case { long: programs::random(RANDOM + number), shortage, run: 0, random: true });
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

/// Our promises, on these rows.
pub(super) fn items(rows: &[Row]) -> Vec<Item> {
    let mut items = vec![];
    let sets: [(&str, Chosen); 2] =
        [("ten programs", |row| row.signal && !row.random), ("random programs", |row| row.random)];
    let at = (Paper::P2, "2.5");
    for (name, of) in sets {
        let chosen: Vec<&Row> = rows.iter().filter(|row| of(row)).collect();
        if chosen.is_empty() {
            continue;
        }
        let most = |f: &dyn Fn(&Row) -> f64| chosen.iter().map(|row| f(row)).fold(f64::NAN, f64::max);
        let (mean, half) = geometric(&chosen, 2);
        let interval =
            half.map_or(String::new(), |half| format!(" (95 % over runs: +- {:.1} %)", half * 100.0));
        items.push(Item::new(
            at,
            format!("{name}: corefit's time over the best's, geometric mean{interval}"),
            None,
            Some(mean),
            &Rule::AtMost(1.05),
        ));
        items.push(Item::new(
            at,
            format!("{name}: the worst"),
            None,
            Some(most(&|row| row.over_best[2])),
            &Rule::AtMost(1.15),
        ));
        items.push(Item::new(
            at,
            format!("{name}: corefit's time over VCPU-Bal's, the worst"),
            None,
            Some(most(&|row| row.over_bal)),
            &Rule::AtMost(1.02),
        ));
        items.push(Item::new(
            at,
            format!("{name}: the same over VCPU-Bal's number set at once, its first 0.6 s left out"),
            None,
            Some(most(&|row| row.over_best[2] / row.over_best[0])),
            &Rule::AtMost(1.02),
        ));
        items.push(Item::new(
            at,
            format!("{name}: what searching costs at worst (theirs: 28 % at worst)"),
            None,
            Some(most(&|row| row.search.unwrap_or(f64::NAN))),
            &Rule::AtMost(1.05),
        ));
    }
    let silent: Vec<&Row> = rows.iter().filter(|row| !row.signal).collect();
    if !silent.is_empty() {
        let worst = silent.iter().map(|row| row.over_best[2] / row.over_best[0]).fold(f64::NAN, f64::max);
        items.push(Item::new(
            at,
            "ten programs without a signal: the same",
            None,
            Some(worst),
            &Rule::AtMost(1.02),
        ));
    }
    items.extend(published(rows));
    items
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

/// Geometric mean of a column's times over the best, and half its interval over runs.
fn geometric(rows: &[&Row], column: usize) -> (f64, Option<f64>) {
    let logs = |rows: &mut dyn Iterator<Item = &&Row>| {
        Mean::of(rows.map(|row| row.over_best[column].ln())).map_or(f64::NAN, |mean| mean.mean)
    };
    let mut runs: Vec<u64> = rows.iter().map(|row| row.run).collect();
    runs.sort_unstable();
    runs.dedup();
    let of_runs = runs.iter().map(|run| logs(&mut rows.iter().filter(|row| row.run == *run)));
    let half = Mean::of(of_runs).and_then(|mean| mean.ci95);
    (logs(&mut rows.iter()).exp(), half)
}

pub(super) fn text(rows: &[Row]) -> String {
    let mut table = Table::new(
        3,
        &[
            "program",
            "short",
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
        let mut cells =
            vec![row.program.clone(), row.shortage.clone(), if row.signal { "yes" } else { "no" }.into()];
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
