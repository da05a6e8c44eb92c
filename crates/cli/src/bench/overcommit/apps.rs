//! Software that people use, as `workloads/apps/apps.json` lists it: by default against
//! `corefit run`, under a quota and beside a neighbour.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::conditions::Condition;
use super::document::{AppRow, Runs, Values, Wrong};
use super::measure::{Bench, Order, time_of};
use super::plan::Config;
use super::programs::Answer;
use super::session::obstacle;
use crate::bench::job::Quiet;
use crate::stats::Value;
use crate::table::bounded;

/// The conditions under which apps are measured.
const CONDITIONS: [Condition; 2] = [Condition::Neighbour, Condition::Quota];
/// Apps may take longer than the programs: their sizes are not ours to choose.
const LONGER: u32 = 2;

/// One app of the list.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct App {
    name: String,
    command: Vec<String>,
    runtime: String,
    /// Files below the root of the repository, or commands (words without a slash).
    needs: Vec<String>,
}

/// The list; `None` if there is none.
///
/// # Errors
/// When it cannot be understood.
pub(super) fn read(root: &Path) -> Result<Option<Vec<App>>> {
    let path = root.join("workloads/apps/apps.json");
    let Ok(text) = std::fs::read_to_string(&path) else {
        return Ok(None);
    };
    let apps = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    Ok(Some(apps))
}

/// The apps of these names; all if none is named.
///
/// # Errors
/// If there is no such app.
pub(super) fn chosen(apps: Vec<App>, names: &[String]) -> Result<Vec<App>> {
    if let Some(unknown) = names.iter().find(|name| apps.iter().all(|app| app.name != **name)) {
        let known: Vec<&str> = apps.iter().map(|app| app.name.as_str()).collect();
        bail!("--apps: there is no app {unknown:?}; there are {}", known.join(", "));
    }
    Ok(apps.into_iter().filter(|app| names.is_empty() || names.contains(&app.name)).collect())
}

/// How many steps of progress the apps take.
pub(super) fn steps(apps: &[App], conditions: &[Condition], repeat: u32) -> usize {
    let conditions = wanted(conditions).count();
    apps.len() * (1 + conditions * 2 * repeat as usize)
}

/// Measures every app that is installed.
pub(super) fn measure(bench: &mut Bench<'_>, apps: &[App], conditions: &[Condition]) -> Result<Vec<AppRow>> {
    let mut rows = vec![];
    let mut ready = vec![];
    for app in apps {
        match warm_up(bench, app)? {
            None => ready.push(app),
            Some(why) => {
                rows.extend(wanted(conditions).map(|c| skipped(app, c, why.clone())));
                let unneeded = wanted(conditions).count() * 2 * bench.settings.repeat as usize;
                bench.progress.skip(unneeded);
            }
        }
    }
    for condition in wanted(conditions) {
        if let Some(why) = obstacle(condition, bench.arena) {
            rows.extend(ready.iter().map(|app| skipped(app, condition, why.clone())));
            continue;
        }
        let arena = bench.arena;
        let cpus = u32::try_from(arena.cpus().len())?;
        let _held = condition.hold(arena, cpus)?;
        for app in &ready {
            let row = repeat(bench, app, condition)?;
            rows.push(row);
        }
    }
    Ok(rows)
}

fn wanted(conditions: &[Condition]) -> impl Iterator<Item = Condition> {
    CONDITIONS.into_iter().filter(|c| conditions.contains(c))
}

/// Runs an app once; why it cannot be measured, if it cannot.
fn warm_up(bench: &mut Bench<'_>, app: &App) -> Result<Option<String>> {
    if let Some(need) = missing(&app.needs, &bench.settings.root) {
        bench.progress.skip(1);
        return Ok(Some(format!("{need} is missing: run scripts/install-apps")));
    }
    let what = format!("{} once", app.name);
    bench.progress.begin(&what);
    let finished = bench.execute(order(bench, app, Config::Default), &mut Quiet)?;
    bench.progress.end(&what, &format!("{:.3} s", finished.wall.as_secs_f64()));
    if finished.cut_off() {
        let s = finished.wall.as_secs_f64();
        return Ok(Some(format!("it took longer than {s} s: raise --limit")));
    }
    let answer = Answer::read(&finished.stdout);
    Ok(bench.problem(&key(app), "", &finished, &answer))
}

fn repeat(bench: &mut Bench<'_>, app: &App, condition: Condition) -> Result<AppRow> {
    let mut order_of = [Config::Default, Config::Corefit];
    let mut times: BTreeMap<Config, Vec<Value>> = BTreeMap::new();
    let mut wrong: BTreeMap<Config, usize> = BTreeMap::new();
    let mut cut_off = BTreeSet::new();
    for _ in 0..bench.settings.repeat {
        bench.random.shuffle(&mut order_of);
        for config in order_of {
            if cut_off.contains(&config) {
                bench.progress.skip(1);
                continue;
            }
            let what = format!("{} {} {config}", condition.name(), app.name);
            bench.progress.begin(&what);
            let finished = bench.execute(order(bench, app, config), &mut Quiet)?;
            let answer = Answer::read(&finished.stdout);
            let problem = bench.problem(&key(app), "", &finished, &answer);
            let time = time_of(&finished);
            let said = bounded(Some(time), |s| format!("{s:.3} s"));
            let wrong_too = problem.as_ref().map_or(String::new(), |what| format!(", WRONG: {what}"));
            bench.progress.end(&what, &(said + &wrong_too));
            if finished.cut_off() {
                cut_off.insert(config);
            }
            let Some(what) = problem else {
                times.entry(config).or_default().push(time);
                continue;
            };
            *wrong.entry(config).or_default() += 1;
            bench.wrong.push(Wrong {
                condition: Some(condition),
                program: app.name.clone(),
                runtime: app.runtime.clone(),
                config: config.to_string(),
                what,
            });
        }
    }
    let runs: BTreeMap<Config, Runs> = order_of
        .into_iter()
        .map(|config| {
            let times = times.get(&config).map_or(&[][..], Vec::as_slice);
            let wrong = wrong.get(&config).copied().unwrap_or(0);
            (config, Runs::of(times, wrong))
        })
        .collect();
    let values = Values {
        default: runs[&Config::Default].value(),
        corefit: runs[&Config::Corefit].value(),
        ..Values::default()
    };
    Ok(AppRow {
        condition,
        name: app.name.clone(),
        runtime: app.runtime.clone(),
        default_s: values.default.map(|v| v.number),
        corefit_s: values.corefit.map(|v| v.number),
        verified: runs.values().all(|r| r.wrong == 0),
        cut_off: values.cut_off(),
        skipped: None,
        runs: runs.into_iter().map(|(c, r)| (c.to_string(), r)).collect(),
        values,
    })
}

fn order<'a>(bench: &Bench<'a>, app: &App, config: Config) -> Order<'a> {
    let mut argv: Vec<OsString> = app.command.iter().map(OsString::from).collect();
    if config == Config::Corefit {
        let report = bench.arena.scratch().join("report.json");
        argv.splice(0..0, bench.corefit(&report));
    }
    Order { argv, env: vec![], cpus: bench.arena.cpus(), limit: bench.settings.limit * LONGER }
}

/// Apart from a program of the same name.
fn key(app: &App) -> String {
    format!("app {}", app.name)
}

/// The first thing that is not there.
fn missing<'n>(needs: &'n [String], root: &Path) -> Option<&'n String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = |need: &String| {
        if need.contains('/') {
            return root.join(need).exists();
        }
        std::env::split_paths(&path).any(|dir| dir.join(need).is_file())
    };
    needs.iter().find(|need| !there(need))
}

fn skipped(app: &App, condition: Condition, why: String) -> AppRow {
    AppRow {
        condition,
        name: app.name.clone(),
        runtime: app.runtime.clone(),
        default_s: None,
        corefit_s: None,
        verified: false,
        cut_off: false,
        skipped: Some(why),
        runs: BTreeMap::new(),
        values: Values::default(),
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn what_is_missing_is_named_files_and_commands() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("x"), "").unwrap();
        let needs = |all: &[&str]| all.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        assert_eq!(missing(&needs(&["./x", "sh"]), root.path()), None);
        let gone = needs(&["sh", "./y"]);
        assert_eq!(missing(&gone, root.path()).unwrap(), "./y");
        let gone = needs(&["no-such-command-anywhere"]);
        assert!(missing(&gone, root.path()).is_some());
    }

    #[test]
    fn a_list_that_is_not_there_is_none_and_a_damaged_one_an_error() {
        let root = tempfile::tempdir().unwrap();
        assert!(read(root.path()).unwrap().is_none());
        let dir = root.path().join("workloads/apps");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("apps.json"), "[{}]").unwrap();
        assert!(format!("{:#}", read(root.path()).unwrap_err()).contains("apps.json"));
    }

    #[test]
    fn apps_are_chosen_by_name_and_unknown_ones_are_refused() {
        let app =
            |name: &str| App { name: name.into(), command: vec![], runtime: String::new(), needs: vec![] };
        let all = || vec![app("a"), app("b")];
        let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        assert_eq!(chosen(all(), &[]).unwrap().len(), 2);
        let some = chosen(all(), &names(&["b"])).unwrap();
        assert_eq!((some.len(), some[0].name.as_str()), (1, "b"));
        let error = chosen(all(), &names(&["c"])).unwrap_err().to_string();
        assert_eq!(error, "--apps: there is no app \"c\"; there are a, b");
    }

    #[test]
    fn apps_are_measured_where_the_condition_was_asked_for() {
        let all: Vec<Condition> = wanted(Condition::value_variants()).collect();
        assert_eq!(all, CONDITIONS);
        assert_eq!(wanted(&[Condition::Step]).count(), 0);
    }
}
