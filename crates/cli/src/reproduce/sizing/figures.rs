//! What came of it: promises, a table and a picture (what is published: `published.rs`). A case is judged by the mean of its runs.

use super::super::{Item, Paper, Rule};
use super::{ALL_OF_TEN, ALL_RANDOM, Decides, FEW, MOST_RUNS, Row, published, simulate};
use crate::chart::{Chart, Series};
use crate::stats::{Mean, count, geometric};
use crate::table::Table;

/// What of a row is divided by what: times.
pub(super) type Of = fn(&Row) -> (f64, f64);
/// Which rows.
pub(super) type Which = fn(&Row) -> bool;

pub(super) const BAL: Of = |row| (row.took.bal, row.took.best);
const EST: Of = |row| (row.took.est, row.took.best);
pub(super) const OURS: Of = |row| (row.took.ours, row.took.best);
const OVER_FORMULA: Of = |row| (row.took.ours, row.took.formula);
const OVER_BAL: Of = |row| (row.took.ours, row.took.bal);
pub(super) const SEARCH: Of = |row| (row.took.ours, row.took.ours_number);

/// What is promised of is told by runs once half of each 95 % interval is at most this.
const TOLD: f64 = 0.05;

/// What the points of a series are spread over in a picture, of the distance of two configurations.
const WIDTH: f64 = 0.12;

/// All runs of a program in a configuration.
#[derive(Clone)]
pub(super) struct Runs<'a>(pub(super) Vec<&'a Row>);

impl Runs<'_> {
    pub(super) fn name(&self) -> String {
        let Row { program, shortage, .. } = self.0[0];
        format!("{program}, {shortage}")
    }

    /// The mean of times over the mean of others.
    pub(super) fn ratio(&self, of: Of) -> Mean {
        let runs: Vec<(f64, f64)> = self.0.iter().map(|row| of(row)).collect();
        Mean::of_ratio(&runs).unwrap_or(Mean { mean: f64::NAN, ci95: None, n: 0 })
    }
}

fn one(row: &Row, of: Of) -> f64 {
    let (over, under) = of(row);
    over / under
}

/// How many runs of a case tell what is promised of it, if they scatter as these of its pilot do: [`FEW`], or twice as many, again and
/// again, and [`MOST_RUNS`] at most.
pub(super) fn runs_to_tell(pilot: &[Row]) -> u64 {
    let cases = by_case(pilot, |_| true);
    let told = |case: &Runs<'_>, runs: u64| {
        let promised: &[Of] =
            if case.0[0].signal { &[OURS, OVER_FORMULA, OVER_BAL, SEARCH] } else { &[OVER_BAL] };
        let half = |of: &Of| case.ratio(*of).ci95_of(usize::try_from(runs).unwrap_or(usize::MAX));
        promised.iter().all(|of| half(of).is_none_or(|half| half <= TOLD))
    };
    let mut runs = FEW;
    while 2 * runs <= MOST_RUNS && !cases.iter().all(|case| told(case, runs)) {
        runs *= 2;
    }
    runs
}

/// In the order of the rows.
pub(super) fn by_case(rows: &[Row], which: Which) -> Vec<Runs<'_>> {
    let mut cases: Vec<Runs<'_>> = vec![];
    let key = |row: &Row| (row.program.clone(), row.shortage.clone(), row.signal);
    for row in rows.iter().filter(|row| which(row)) {
        match cases.iter_mut().find(|case| key(case.0[0]) == key(row)) {
            Some(case) => case.0.push(row),
            None => cases.push(Runs(vec![row])),
        }
    }
    cases
}

/// Who decided, of these rows.
pub(super) fn by(rows: &[Row]) -> Decides {
    rows.first().map_or(Decides::default(), |row| row.by)
}

/// The ten programs where their work is counted, random ones, and the ten where it is not.
const TEN: Which = |row| row.signal && !row.random;
const RANDOM: Which = |row| row.random;
const SILENT: Which = |row| !row.signal;

/// Which part of what corefit promises of numbers of vCPUs its promises are judged by, in a line. `None`: by nothing.
pub(in super::super) fn judged_by(rows: &[Row]) -> Option<String> {
    let [ten, random] = [TEN, RANDOM].map(|which| by_case(rows, which));
    let runs = || ten.iter().chain(&random).map(|case| case.0.len());
    let (least, most) = (runs().min()?, runs().max()?);
    let runs = match (least, most) {
        (1, 1) => "one run each".into(),
        _ if least == most => format!("{most} runs each"),
        _ => format!("{least} to {most} runs each"),
    };
    by(rows).is_ours().then(|| {
        format!(
            "What it promises of numbers of vCPUs (P2) is judged by {} of the ten programs and {} of random ones, {runs}.\n",
            part(ten.len(), ALL_OF_TEN),
            part(random.len(), ALL_RANDOM)
        )
    })
}

/// So many cases, of those of full effort, or more where several documents are put together.
fn part(cases: usize, all: usize) -> String {
    format!("{cases} of {} cases", all.max(cases))
}

/// Our promises, on these rows, which may be a part of all that is promised. They are of corefit; of another policy the numbers are only
/// shown.
pub(in super::super) fn items(rows: &[Row]) -> Vec<Item> {
    let mut items = vec![];
    let by = by(rows);
    let (who, ours) = (by.name(), by.is_ours());
    let sets: [(&str, Which, usize); 3] = [
        ("ten programs", TEN, ALL_OF_TEN),
        ("random programs", RANDOM, ALL_RANDOM),
        ("ten programs without a signal", SILENT, ALL_OF_TEN),
    ];
    let worsts: [(String, f64, Of); 4] = [
        ("the worst".into(), 1.15, OURS),
        (format!("{who}'s time over VCPU-Bal's, the worst"), 1.02, OVER_FORMULA),
        ("the same over VCPU-Bal's number set at once, its first 0.6 s left out".into(), 1.02, OVER_BAL),
        ("what searching costs at worst (theirs: 28 % at worst)".into(), 1.05, SEARCH),
    ];
    for (name, of, all) in sets {
        let cases = by_case(rows, of);
        let part = part(cases.len(), all);
        let Some(first) = cases.first() else { continue };
        let mut promise = |what: String, number: Mean, limit: f64| {
            let under = if ours { String::new() } else { format!(" under {who}") };
            let what = format!("{name} ({part}){under}: {what}");
            let item = Item::new((Paper::P2, "2.5"), what, None, Some(number.mean), &Rule::AtMost(limit));
            let item = item.off_by(number.ci95).unpublished();
            items.push(if ours { item } else { item.not_judged("corefit promises") });
        };
        // Without a signal nothing is promised but to be no worse.
        let silent = !first.0[0].signal;
        let over_best = cases.iter().map(|case| case.ratio(OURS).mean);
        if !silent && let Some(Mean { mean, ci95, n }) = geometric(over_best) {
            let what = format!("{who}'s time over the best's, geometric mean of the cases");
            promise(what, Mean { mean, ci95: ci95.map(|half| half * mean), n }, 1.05);
        }
        let chosen = if silent { &worsts[2..3] } else { &worsts[..] };
        for (what, limit, of) in chosen {
            let Some((which, worst)) = worst(&cases, *of, *limit) else { continue };
            promise(format!("{what}{which}"), worst, *limit);
        }
    }
    items.extend(published::items(rows));
    items
}

/// Of which case the mean over its runs is the greatest, and how single runs are, in words; and that mean. `None` of no case.
pub(super) fn worst(cases: &[Runs<'_>], of: Of, limit: f64) -> Option<(String, Mean)> {
    let case = cases.iter().max_by(|a, b| a.ratio(of).mean.total_cmp(&b.ratio(of).mean))?;
    let ratio = case.ratio(of);
    if ratio.ci95.is_none() {
        return Some((format!(" ({}, one run)", case.name()), ratio));
    }
    let single = || cases.iter().flat_map(|case| case.0.iter().map(|row| one(row, of)));
    let greatest = single().fold(f64::NAN, f64::max);
    let above = single().filter(|one| *one > limit).count();
    let which = format!(
        " ({}, {} runs; single runs of all cases {greatest:.3} at most, {above} of {} above)",
        case.name(),
        ratio.n,
        single().count()
    );
    Some((which, ratio))
}

/// A row for each case: means of its runs, and how far off they may be by chance.
pub(in super::super) fn text(rows: &[Row]) -> String {
    let by = by(rows);
    let ours = if by.is_ours() { "ours".into() } else { by.name() };
    let (over_best, over_bal) = (format!("{ours}/best"), format!("{ours}/bal"));
    let mut table = Table::new(
        3,
        &[
            "program",
            "short",
            "signal",
            "runs",
            "best",
            "bal",
            "est",
            &ours,
            "bal/best",
            "est/best",
            &over_best,
            &over_bal,
            "search",
            "settled s",
        ],
    );
    for case in by_case(rows, |_| true) {
        let row = case.0[0];
        let mut cells = vec![
            row.program.clone(),
            row.shortage.clone(),
            if row.signal { "yes" } else { "no" }.into(),
            case.0.len().to_string(),
        ];
        let vcpus: [Of; 4] = [
            |row| (row.vcpus[0], 1.0),
            |row| (row.vcpus[1], 1.0),
            |row| (row.vcpus[2], 1.0),
            |row| (row.vcpus[3], 1.0),
        ];
        cells.extend(vcpus.map(|of| format!("{:.1}", case.ratio(of).mean)));
        let times: [Of; 5] = [BAL, EST, OURS, OVER_FORMULA, SEARCH];
        cells.extend(times.map(|of| {
            let Mean { mean, ci95, .. } = case.ratio(of);
            format!("{mean:.3}{}", ci95.map_or(String::new(), |half| format!(" +-{half:.3}")))
        }));
        cells.push(format!("{:.1}", case.ratio(|row| (row.settled_s, 1.0)).mean));
        table.row(cells);
    }
    format!(
        "vCPUs, and times over the best number's, of work of {} s, means of runs:\n{}\
         signal: whether somebody counts the work; search: time over that of the numbers it ended with, which is what trying others \
         cost;\nsettled: when the number changed last; +-: half the width of the 95 % interval, of runs that differ by their seeds.\n",
        simulate::SECONDS,
        table.render()
    )
}

/// Times over the best, by configuration: a point for each case.
pub(in super::super) fn chart(rows: &[Row]) -> Chart {
    let mut names: Vec<String> = vec![];
    for row in rows {
        if !names.contains(&row.shortage) {
            names.push(row.shortage.clone());
        }
    }
    let who = by(rows).name();
    let drawn: [(String, Which, Of); 5] = [
        ("VCPU-Bal".into(), TEN, BAL),
        ("pCPU-Est".into(), TEN, EST),
        (who.clone(), TEN, OURS),
        (format!("{who}, no signal"), SILENT, OURS),
        (format!("{who}, random programs"), RANDOM, OURS),
    ];
    let series = drawn.into_iter().map(|(name, which, of)| {
        let cases = by_case(rows, which);
        let points = names.iter().zip(0..).flat_map(|(shortage, x)| {
            let here: Vec<&Runs<'_>> = cases.iter().filter(|case| case.0[0].shortage == *shortage).collect();
            let middle = (count(here.len()) - 1.0) / 2.0;
            let point = |(at, case): (usize, &&Runs<'_>)| {
                let Mean { mean, ci95, .. } = case.ratio(of);
                // Beside each other, within the part of a configuration that a series has.
                (f64::from(x) + (count(at) - middle) * WIDTH / count(here.len()), mean, ci95)
            };
            here.iter().enumerate().map(point).collect::<Vec<_>>()
        });
        Series { name, points: points.collect() }
    });
    Chart {
        title: "P2: time over that of the best number of vCPUs".into(),
        note: "programs in each configuration, work of 60 s, searching included; simulated, means of runs with 95 % intervals"
            .into(),
        x: "configuration".into(),
        y: "time / best".into(),
        series: series.filter(|series| !series.points.is_empty()).collect(),
        categories: Some(names),
        logarithmic_x: false,
        linear_y: false,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::Times;
    use super::*;
    use corefit_core::decide::{Forecast, Sizer};

    pub(in super::super) fn row(program: &str, run: u64, over_best: f64) -> Row {
        Row {
            program: program.into(),
            shortage: "4 VMs".into(),
            run,
            signal: true,
            random: program.starts_with("random"),
            vcpus: [4.0; 4],
            work: 60.0,
            took: Times {
                best: 60.0,
                bal: 60.0,
                formula: 60.0 * over_best,
                est: 60.0,
                est_number: None,
                ours: 60.0 * over_best,
                ours_number: 60.0 * over_best,
            },
            settled_s: 1.0,
            by: Decides::default(),
        }
    }

    #[test]
    fn cases_are_means_over_runs_and_single_runs_are_said() {
        let searched = |run| {
            let row = row("bt", run, 1.2);
            Row { took: Times { ours_number: row.took.ours / 1.25, ..row.took }, ..row }
        };
        let rows = [row("lu", 0, 1.1), searched(0), row("lu", 1, 1.5), searched(1), row("random 7", 0, 1.5)];
        let items = items(&rows);
        let said: Vec<(&str, f64)> =
            items.iter().map(|item| (item.what.as_str(), item.ours.unwrap())).collect();
        let (what, mean) = said[0];
        assert!(
            what.starts_with("ten programs (2 of 130 cases): ")
                && what.ends_with("geometric mean of the cases")
        );
        assert!((mean - (1.3_f64 * 1.2).sqrt()).abs() < 1e-9, "{mean}");
        let (what, worst) = said[1];
        let which = "(lu, 4 VMs, 2 runs; single runs of all cases 1.500 at most, 3 of 4 above)";
        assert_eq!(what, format!("ten programs (2 of 130 cases): the worst {which}"));
        assert!((worst - 1.3).abs() < 1e-9, "{worst}");
        // How far off by chance: of the cases for the geometric mean, else of runs.
        let off: Vec<Option<f64>> = items.iter().map(|item| item.ci95).collect();
        assert!((off[0].unwrap() - 0.509 * mean).abs() < 1e-3 * mean, "{off:?}");
        assert!((off[1].unwrap() - 2.541).abs() < 1e-3 && off[6].is_none(), "one run tells nothing: {off:?}");
        // With several VMs, too.
        let (what, searching) = said[4];
        assert!(
            what.contains("what searching costs at worst") && (searching - 1.25).abs() < 1e-9,
            "{said:?}"
        );
        let (what, worst) = said[6];
        let which = "random programs (1 of 60 cases): the worst (random 7, 4 VMs, one run)";
        assert_eq!((what, worst), (which, 1.5));
    }

    #[test]
    fn what_promises_are_judged_by_is_said() {
        let said = |rows: &[Row]| judged_by(rows).unwrap();
        let one = said(&[row("lu", 0, 1.1), row("bt", 0, 1.1), row("random 7", 0, 1.1)]);
        let all = "2 of 130 cases of the ten programs and 1 of 60 cases of random ones, one run each.\n";
        assert!(one.ends_with(all), "{one}");
        let more = said(&[row("lu", 3, 1.1), row("bt", 3, 1.1), row("bt", 4, 1.1)]);
        assert!(more.ends_with("and 0 of 60 cases of random ones, 1 to 2 runs each.\n"), "{more}");
        let many: Vec<Row> = (0..70).map(|number| row(&format!("random {number}"), 0, 1.1)).collect();
        assert!(said(&many).contains(" 70 of 70 cases of random ones, "), "of several documents");
        let other = Row { by: Sizer::Vscale.into(), ..row("lu", 0, 1.1) };
        assert!(judged_by(&[other]).is_none() && judged_by(&[]).is_none());
    }

    #[test]
    fn a_pilot_says_how_many_runs_make_all_that_is_promised_narrow() {
        let apart = |by: f64| [(0, -by), (1, 0.0), (2, by)].map(|(run, off)| row("lu", run, 1.3 + off));
        // Half of an interval is 2.48, 1.05, 0.635 and 0.422 times the deviation: of 3, 6, 12 and 24 runs.
        for (by, runs) in
            [(0.02, 3), (0.021, 6), (0.047, 6), (0.048, 12), (0.078, 12), (0.079, 24), (9.0, 24)]
        {
            assert_eq!(runs_to_tell(&apart(by)), runs, "{by}");
        }
        let near = apart(0.001);
        let silent = apart(0.06).map(|row| Row { signal: false, ..row });
        assert_eq!(runs_to_tell(&[near.to_vec(), silent.to_vec()].concat()), 12, "also where nobody counts");
        // The best, too, may be so by chance.
        let by_chance = |row: &Row, best: f64| Row { took: Times { best, ..row.took }, ..row.clone() };
        let [a, b, c] = &near;
        assert_eq!(runs_to_tell(&[by_chance(a, 50.0), by_chance(b, 60.0), by_chance(c, 70.0)]), 24);
    }

    #[test]
    fn each_case_has_a_row_and_a_point_with_its_interval() {
        let silent = |run, over_best| Row { signal: false, ..row("lu", run, over_best) };
        let rows = [
            row("lu", 0, 1.1),
            row("lu", 1, 1.3),
            row("bt", 0, 1.4),
            silent(0, 1.5),
            silent(1, 1.7),
            row("random 7", 0, 1.6),
        ];
        let text = text(&rows);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        let of = |program: &str, signal: &str| {
            let cases: Vec<_> =
                lines.iter().filter(|line| line.starts_with(&[program]) && line.contains(&signal)).collect();
            assert_eq!(cases.len(), 1, "{text}");
            cases[0].join(" ")
        };
        assert!(of("lu", "yes").contains(" yes 2 ") && of("lu", "yes").contains(" 1.200 +-1.271 "), "{text}");
        assert!(of("lu", "no").contains(" 1.600 +-1.271 ") && of("bt", "yes").contains(" 1.400 "), "{text}");
        assert!(of("random", "yes").contains(" 1.600 ") && !of("random", "yes").contains("+-"), "{text}");
        let chart = chart(&rows);
        let rounded = |x: f64| (x * 1e3).round() / 1e3;
        let points = |series: usize| -> Vec<(f64, Option<f64>)> {
            let Series { points, .. } = &chart.series[series];
            points.iter().map(|(_, y, half)| (rounded(*y), half.map(rounded))).collect()
        };
        assert_eq!(points(2), [(1.2, Some(1.271)), (1.4, None)]);
        assert_eq!((points(3), points(4)), (vec![(1.6, Some(1.271))], vec![(1.6, None)]));
        let xs: Vec<f64> = chart.series[2].points.iter().map(|point| point.0).collect();
        assert!(xs[0] < xs[1] && xs.iter().all(|x| x.abs() < WIDTH), "{xs:?}");
    }

    #[test]
    fn what_is_promised_of_corefit_is_not_asked_of_another_policy() {
        let ours = [row("lu", 0, 3.0), row("random 7", 0, 3.0)];
        let others: Vec<Row> =
            ours.iter().map(|row| Row { by: Sizer::Vscale.into(), ..row.clone() }).collect();
        let promises = |rows: &[Row]| {
            let promised: Vec<Item> = items(rows).into_iter().filter(|item| item.figure == "2.5").collect();
            assert!(promised.len() >= 4 && promised.iter().all(|item| item.ours.is_some()));
            promised
        };
        assert!(promises(&ours).iter().any(|item| item.ok == Some(false)));
        for item in promises(&others) {
            assert!(
                item.ok.is_none() && item.rule.starts_with("not judged; corefit promises: at most"),
                "{item:?}"
            );
            assert!(item.what.contains("under vscale") && !item.what.contains("corefit"), "{item:?}");
        }
        assert!(text(&ours).contains("ours/best") && text(&others).contains("vscale/best"));
        let drawn = |rows: &[Row]| chart(rows).series[2].name.clone();
        assert_eq!((drawn(&ours), drawn(&others)), ("corefit".into(), "vscale".into()));
        let json = serde_json::to_string(&ours[0]).unwrap();
        assert!(!json.contains("size") && !json.contains("demand"), "{json}");
        let pid = Row { by: Decides { demand: Forecast::Pid, ..Decides::default() }, ..ours[0].clone() };
        let json = serde_json::to_string(&pid).unwrap();
        let again: Row = serde_json::from_str(&json).unwrap();
        assert!(json.contains(r#""demand":"pid""#) && again.by == pid.by && !again.by.is_ours(), "{json}");
        assert!(promises(&[pid])[0].what.contains("under corefit, demand by pid: "));
    }
}
