//! The tables for people.

use corefit_core::check::count;

use super::document::{AppRow, ConditionPart, Document, Machine, Row, Runs, Target, Values, mean};
use super::programs::Runtime;
use crate::bench::others;
use crate::stats::Value;
use crate::table::{NONE, Table, bounded, factor, seconds};

/// Fewer repetitions have no median to speak of.
const FEW: u32 = 3;

/// Everything.
pub(super) fn render(document: &Document) -> String {
    let mut text = machine(&document.machine);
    for part in &document.conditions {
        text = text + "\n" + &condition(part, &document.machine.size);
    }
    text = text + "\n" + &apps(document);
    text = text + "\n" + &targets(&document.targets);
    if document.machine.repetitions < FEW || document.machine.size == "S" {
        text += "Short or single runs: a factor below 1.25 may be chance, and the oracle is the luckiest of several; `make bench` decides\n";
    }
    for wrong in &document.wrong_results {
        text += &format!(
            "WRONG RESULT: {} {} {} {}: {}\n",
            wrong.condition.map_or("warm-up".into(), |c| c.name()),
            wrong.program,
            wrong.runtime,
            wrong.config,
            wrong.what
        );
    }
    text
}

fn machine(machine: &Machine) -> String {
    let mut text = format!(
        "{} CPUs{}, Linux {}, {}, {}; corefit {}\n",
        machine.cpus,
        machine.model.as_ref().map_or(String::new(), |m| format!(" ({m})")),
        machine.kernel,
        machine.control_groups,
        if machine.root { "root" } else { "not root" },
        machine.corefit,
    );
    text += &format!(
        "size {}, {}, medians in seconds of wall clock, limit {} s, seed {}; took {} min {:02} s\n",
        machine.size,
        count(machine.repetitions as usize, "repetition"),
        machine.limit_s,
        machine.seed,
        whole(machine.took_s) / 60,
        whole(machine.took_s) % 60,
    );
    text + &others::warning(machine.busy_at_start_cpus)
}

/// The table of a condition; other sizes than `size` are shown.
fn condition(part: &ConditionPart, size: &str) -> String {
    let mut text = format!("{}: {}\n", part.name.name(), part.what);
    if let Some(why) = &part.skipped {
        return text + "skipped: " + why + "\n";
    }
    let mut table = Table::new(
        2,
        &[
            "program",
            "runtime",
            "default",
            "passive",
            "oracle",
            "corefit",
            "corefit/oracle",
            "default/corefit",
            "corefit/passive",
            "spread",
            "oracle is",
            "certified",
        ],
    );
    for row in &part.programs {
        table.row(cells(row, size));
    }
    for means in &part.geomeans {
        let of = |ratio| mean(&part.programs, Some(means.runtime), ratio);
        table.row(mean_cells(means.runtime, of));
    }
    text += &table.render();
    for row in part.programs.iter().filter(|row| row.certified == Some(false)) {
        text += &format!("{} {} was NOT certified: {}\n", row.name, row.runtime.name(), row.certified_why);
    }
    if part.programs.iter().any(|row| row.phases_s.is_some()) {
        text += "oracle: the best fixed counts on all CPUs and on one, measured from beginning to end, and switched at each step free of cost\n";
    }
    text
}

fn cells(row: &Row, size: &str) -> Vec<String> {
    let v = &row.values;
    let time = |value: Option<Value>| bounded(value, seconds);
    let ratio = |value: Option<Value>| bounded(value, factor);
    let mut cells = vec![
        match row.size.as_str() {
            same if same == size => row.name.to_owned(),
            other => format!("{} {other}", row.name),
        },
        row.runtime.name(),
        time(v.default),
        time(v.passive),
        time(v.oracle),
        time(v.corefit),
        ratio(v.corefit_vs_oracle()),
        ratio(v.default_vs_corefit()),
        ratio(v.corefit_vs_passive()),
        spread(row.runs.get("corefit")),
        row.oracle_of.clone().unwrap_or_else(|| NONE.into()),
        match row.certified {
            Some(true) => "yes",
            Some(false) => "NO",
            None => NONE,
        }
        .to_owned(),
    ];
    if !row.verified {
        cells.push("WRONG".into());
    }
    cells
}

fn mean_cells(runtime: Runtime, of: impl Fn(fn(&Values) -> Option<Value>) -> Option<Value>) -> Vec<String> {
    let ratio = |ratio| bounded(of(ratio), factor);
    let mut cells = vec!["geomean".to_owned(), runtime.name()];
    cells.extend(vec![String::new(); 4]);
    cells.push(ratio(Values::corefit_vs_oracle));
    cells.push(ratio(Values::default_vs_corefit));
    cells.push(ratio(Values::corefit_vs_passive));
    cells
}

/// How far the runs of corefit lie apart, in per cent of their median.
fn spread(runs: Option<&Runs>) -> String {
    let Some((runs, median)) = runs.and_then(|r| Some((r, r.median_s?))) else {
        return NONE.into();
    };
    match (runs.min_s, runs.max_s) {
        (Some(min), Some(max)) if runs.count > 1 => {
            format!("{:.0} %", 100.0 * (max - min) / median)
        }
        _ => NONE.into(),
    }
}

fn apps(document: &Document) -> String {
    if let Some(why) = &document.apps_skipped {
        return format!("apps\nskipped: {why}\n");
    }
    let mut text = String::from("apps: `corefit run` as it is, nothing certified\n");
    let mut table =
        Table::new(3, &["app", "runtime", "condition", "default", "corefit", "default/corefit", "spread"]);
    let mut skipped = vec![];
    for row in &document.apps {
        match &row.skipped {
            None => table.row(app_cells(row)),
            Some(why) => skipped.push(format!("skipped: {}: {why}\n", row.name)),
        }
    }
    skipped.dedup();
    text += &table.render();
    text + &skipped.concat()
}

fn app_cells(row: &AppRow) -> Vec<String> {
    let mut cells = vec![
        row.name.clone(),
        row.runtime.clone(),
        row.condition.name(),
        bounded(row.values.default, seconds),
        bounded(row.values.corefit, seconds),
        bounded(row.values.default_vs_corefit(), factor),
        spread(row.runs.get("corefit")),
    ];
    if !row.verified {
        cells.push("WRONG".into());
    }
    cells
}

fn targets(targets: &[Target]) -> String {
    let mut table = Table::new(5, &["targets", "", "wanted", "measured", ""]);
    for target in targets {
        let verdict = match target.pass {
            Some(true) => "PASS",
            Some(false) => "FAIL",
            None => "-",
        };
        table.row(vec![
            verdict.to_owned(),
            target.name.clone(),
            target.wanted.clone(),
            target.measured.clone().unwrap_or_else(|| "not measured".into()),
            target.note.clone(),
        ]);
    }
    table.render()
}

fn whole(seconds: f64) -> u64 {
    std::time::Duration::try_from_secs_f64(seconds).map_or(0, |d| d.as_secs())
}

#[cfg(test)]
mod tests {
    use super::super::conditions::Condition;
    use super::super::document::tests::row;
    use super::super::document::{Wrong, means};
    use super::super::targets::targets;
    use super::*;

    fn document() -> Document {
        let rows = vec![
            row("ep", Runtime::Gcc, [2.0, 1.0, 1.0, 1.1]),
            row("lu", Runtime::Gcc, [-60.0, 30.0, 1.0, 1.21]),
            row("unsafe_map", Runtime::Gcc, [2.0, 2.0, 0.0, 2.0]),
        ];
        let conditions = vec![
            ConditionPart {
                name: Condition::Sees16,
                what: "the runtime believes in 16 CPUs and has 2".into(),
                skipped: None,
                geomean_vs_oracle: Some(1.15),
                geomeans: vec![means(&rows, Runtime::Gcc)],
                programs: rows,
                delays: None,
            },
            ConditionPart {
                name: Condition::Quota,
                what: "100 ms of CPU time in every 100 ms".into(),
                skipped: Some("no control group: /x: Permission denied".into()),
                programs: vec![],
                geomean_vs_oracle: None,
                geomeans: vec![],
                delays: None,
            },
        ];
        Document {
            targets: targets(&conditions, &[Runtime::Gcc], 1),
            conditions,
            apps: vec![],
            apps_skipped: Some("--no-apps".into()),
            wrong_results: vec![Wrong {
                condition: Some(Condition::Sees16),
                program: "unsafe_map".into(),
                runtime: "gcc".into(),
                config: "corefit".into(),
                what: "checksum 1 instead of 2".into(),
            }],
            machine: Machine {
                cpus: 2,
                size: "W".into(),
                busy_at_start_cpus: Some(1.5),
                ..Machine::default()
            },
        }
    }

    #[test]
    fn the_table_shows_bounds_means_and_what_is_missing() {
        let text = render(&document());
        let line = |start: &str| {
            let found = text.lines().find(|l| l.starts_with(start));
            found.unwrap().split_whitespace().collect::<Vec<_>>()
        };
        assert_eq!(
            line("lu "),
            ["lu", "gcc", ">60.00", "30.00", "1.00", "1.21", "1.21", ">49.6", "0.04", "-", "1", "yes"]
        );
        assert_eq!(line("geomean"), ["geomean", "gcc", "1.15", ">9.50", "0.21"]);
        assert_eq!(line("unsafe_map")[4], "-");
        for said in [
            "skipped: no control group: /x: Permission denied",
            "skipped: --no-apps",
            "WRONG RESULT: sees_16 unsafe_map gcc corefit: checksum 1 instead of 2",
            "WARNING: others used 1.5 CPUs",
            "a factor below 1.25 may be chance",
        ] {
            assert!(text.contains(said), "{said}\n{text}");
        }
    }

    #[test]
    fn the_document_has_the_fields_that_the_issue_names() {
        let json = serde_json::to_value(document()).unwrap();
        let row = &json["conditions"][0]["programs"][1];
        assert_eq!(json["conditions"][0]["name"], "sees_16");
        assert_eq!(json["conditions"][0]["geomean_vs_oracle"], 1.15);
        assert_eq!((&row["name"], &row["runtime"]), (&"lu".into(), &"gcc".into()));
        assert_eq!((&row["default_s"], &row["cut_off"]), (&60.0.into(), &true.into()));
        for field in ["passive_s", "oracle_s", "corefit_s"] {
            assert!(row[field].is_f64(), "{field}");
        }
        assert_eq!(row["verified"], true);
        assert!(json["conditions"][0]["programs"][2]["oracle_s"].is_null());
        assert!(json["targets"][0]["pass"].is_boolean());
    }

    #[test]
    fn a_single_run_has_no_spread() {
        let runs = |times: &[f64]| {
            let times: Vec<Value> = times.iter().copied().map(Value::exact).collect();
            Runs::of(&times, 0)
        };
        assert_eq!(spread(Some(&runs(&[1.0]))), "-");
        assert_eq!(spread(Some(&runs(&[1.0, 1.1, 0.9]))), "20 %");
        assert_eq!(spread(None), "-");
    }
}
