//! Running the plan: each run with its environment, its limit and its check.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Result, bail};
use corefit_core::{CpuSet, Random};

use super::Settings;
use super::certify::Verdict;
use super::conditions::{Condition, SEEN};
use super::delays::RunReport;
use super::document::Wrong;
use super::plan::Config;
use super::programs::{Answer, Case, Kind, see_cpus};
use crate::bar::Progress;
use crate::bench::arena::Arena;
use crate::bench::job::{self, Finished, Quiet, Script};
use crate::interrupt::Interrupt;
use crate::stats::Value;
use crate::table::bounded;

/// What a bench needs for its runs, and what it has learned.
pub(super) struct Bench<'a> {
    pub(super) arena: &'a Arena,
    pub(super) settings: &'a Settings,
    pub(super) interrupt: &'a Interrupt,
    pub(super) progress: Progress,
    pub(super) random: Random,
    pub(super) wrong: Vec<Wrong>,
    /// The right checksum of each program and size.
    checksums: BTreeMap<(String, String), String>,
    /// What `corefit certify` said of each build and size, without and with the library that
    /// makes it see more CPUs.
    pub(super) verdicts: BTreeMap<(PathBuf, String, bool), Verdict>,
}

/// One run.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// Its wall-clock time; `None` if its result was wrong.
    pub(super) time: Option<Value>,
    pub(super) threads_max: Option<u32>,
    /// Of runs by corefit.
    pub(super) report: Option<RunReport>,
}

/// What to run.
pub(super) struct Order<'a> {
    pub(super) argv: Vec<OsString>,
    pub(super) env: Vec<(&'static str, OsString)>,
    /// The CPUs allowed when it begins.
    pub(super) cpus: &'a CpuSet,
    pub(super) limit: Duration,
}

/// A run before anything is measured competes with nobody: it may take its time, whatever the
/// limit of the measured ones.
const WARM_UP_LIMIT: Duration = Duration::from_secs(300);

impl<'a> Bench<'a> {
    pub(super) fn new(
        arena: &'a Arena,
        settings: &'a Settings,
        interrupt: &'a Interrupt,
        steps: usize,
    ) -> Bench<'a> {
        Bench {
            arena,
            settings,
            interrupt,
            progress: Progress::new(steps, settings.verbose),
            random: Random(settings.seed),
            wrong: vec![],
            checksums: BTreeMap::new(),
            verdicts: BTreeMap::new(),
        }
    }

    /// Runs something in the arena, and kills what it leaves behind.
    pub(super) fn execute(&self, order: Order<'_>, script: &mut dyn Script) -> Result<Finished> {
        let mut command = self.arena.command(&order.argv, order.cpus)?;
        job::without_settings(&mut command);
        command.envs(order.env).env("XDG_STATE_HOME", self.state()).current_dir(&self.settings.root);
        command.stdin(Stdio::null());
        let end = |pid| self.arena.end(pid);
        let scratch = self.arena.scratch();
        let finished = job::run(command, order.limit, scratch, script, self.interrupt, &end)?;
        self.arena.sweep();
        Ok(finished)
    }

    /// Runs a program once before anything is measured: its checksum becomes the right one,
    /// its files are in memory. Its time in seconds.
    ///
    /// # Errors
    /// When it fails: then nothing can be measured.
    pub(super) fn warm_up(&mut self, case: &Case, size: &str, config: Config, cpus: &CpuSet) -> Result<f64> {
        let what = format!("{} {} {size} ({config})", case.program.name, case.runtime.name());
        self.progress.begin(&what);
        let order = Order {
            argv: self.program(case, size, config),
            env: environment(config),
            cpus,
            limit: WARM_UP_LIMIT.max(self.settings.limit),
        };
        let limit_s = order.limit.as_secs_f64();
        let finished = self.execute(order, &mut Quiet)?;
        let answer = Answer::read(&finished.stdout);
        if finished.cut_off() {
            bail!("{what} took longer than {limit_s} s: take a smaller --size, or give more with --limit");
        }
        if let Some(wrong) = self.problem(case.program.name, size, &finished, &answer) {
            bail!("{what} fails before anything is measured: {wrong}");
        }
        let time_s = finished.wall.as_secs_f64();
        self.progress.end(&what, &format!("{time_s:.3} s"));
        Ok(time_s)
    }

    /// Runs one configuration of a program under a condition that has been set up.
    pub(super) fn sample(
        &mut self,
        condition: Condition,
        case: &Case,
        size: &str,
        config: Config,
        (cpus, script): (&CpuSet, &mut dyn Script),
    ) -> Result<Sample> {
        let (name, runtime) = (case.program.name, case.runtime.name());
        let what = format!("{} {name} {runtime} {config}", condition.name());
        self.progress.begin(&what);
        let report = self.arena.scratch().join("report.json");
        let _ = std::fs::remove_file(&report);
        let mut argv = self.program(case, size, config);
        if config == Config::Corefit {
            argv.splice(0..0, self.corefit(&report));
        }
        let mut env = self.shim(condition);
        env.extend(environment(config));
        let limit = super::plan::limit(self.settings.limit, condition, case.program, config);
        let order = Order { argv, env, cpus, limit };
        let finished = self.execute(order, script)?;
        let answer = Answer::read(&finished.stdout);
        let wrong = self.problem(name, size, &finished, &answer);
        let time = time_of(&finished);
        let said = match &wrong {
            Some(wrong) => format!("WRONG: {wrong}"),
            None => bounded(Some(time), |s| format!("{s:.3} s")),
        };
        self.progress.end(&what, &said);
        let report =
            (config == Config::Corefit).then(|| self.keep_report(&report, condition, case)).flatten();
        let time = wrong.is_none().then_some(time);
        if let Some(wrong) = wrong {
            self.wrong.push(Wrong {
                condition: Some(condition),
                program: name.into(),
                runtime,
                config: config.to_string(),
                what: wrong,
            });
        }
        Ok(Sample { time, threads_max: answer.threads_max, report })
    }

    /// What is wrong with a result; nothing is if it was cut off. The first checksum of a
    /// program and size is the right one.
    pub(super) fn problem(
        &mut self,
        name: &str,
        size: &str,
        finished: &Finished,
        answer: &Answer,
    ) -> Option<String> {
        let status = finished.status?;
        if !status.success() || !answer.verified {
            let last = |text: &str| text.trim_end().lines().last().map(str::to_owned);
            let said = last(&finished.stderr).or_else(|| last(&finished.stdout));
            let said = said.unwrap_or_else(|| "no output".into());
            return Some(format!("{status}, not verified; it says: {said}"));
        }
        let Some(checksum) = &answer.checksum else {
            return Some("no checksum in its output".into());
        };
        let right =
            self.checksums.entry((name.to_owned(), size.to_owned())).or_insert_with(|| checksum.clone());
        (right != checksum).then(|| format!("checksum {checksum} instead of {right}"))
    }

    /// The arguments of `corefit run` before the program.
    pub(super) fn corefit(&self, report: &Path) -> Vec<OsString> {
        let exe = self.arena.exe().as_os_str().to_owned();
        let mut argv = vec![exe];
        argv.extend(["run", "--quiet", "--report"].map(OsString::from));
        argv.extend([report.as_os_str().to_owned(), "--".into()]);
        argv
    }

    /// The environment of a condition: what programs are to believe in.
    pub(super) fn shim(&self, condition: Condition) -> Vec<(&'static str, OsString)> {
        if condition != Condition::Sees16 {
            return vec![];
        }
        vec![
            ("LD_PRELOAD", see_cpus(&self.settings.root).into()),
            ("COREFIT_SEE_CPUS", SEEN.to_string().into()),
        ]
    }

    pub(super) fn program(&self, case: &Case, size: &str, config: Config) -> Vec<OsString> {
        let mut argv = vec![case.path.clone().into_os_string(), size.into()];
        if let (Kind::Threads, Config::Fixed { threads, .. }) = (case.program.kind, config) {
            argv.push(threads.to_string().into());
        }
        if let (Kind::Threads, Config::One) = (case.program.kind, config) {
            argv.push("1".into());
        }
        argv
    }

    /// Reads a report, and copies it to where `--reports` says.
    fn keep_report(&self, file: &Path, condition: Condition, case: &Case) -> Option<RunReport> {
        let text = std::fs::read_to_string(file).ok()?;
        if let Some(dir) = &self.settings.reports {
            let stem = format!("{}-{}-{}", condition.name(), case.program.name, case.runtime.name());
            let free = (1..).map(|n| dir.join(format!("{stem}-{n}.json"))).find(|f| !f.exists())?;
            if let Err(why) = std::fs::write(&free, &text) {
                self.progress.say(&format!("{}: {why}", free.display()));
            }
        }
        match serde_json::from_str(&text) {
            Ok(report) => Some(report),
            Err(why) => {
                self.progress.say(&format!("the report of corefit run cannot be read: {why}"));
                None
            }
        }
    }

    fn state(&self) -> PathBuf {
        self.arena.scratch().join("state")
    }
}

/// The time of a run, or the limit as a lower bound.
pub(super) fn time_of(finished: &Finished) -> Value {
    let s = finished.wall.as_secs_f64();
    if finished.cut_off() { Value::at_least(s) } else { Value::exact(s) }
}

/// The environment that a configuration sets.
fn environment(config: Config) -> Vec<(&'static str, OsString)> {
    let (threads, passive) = match config {
        Config::Default | Config::Corefit => (None, false),
        Config::Passive => (None, true),
        Config::Fixed { threads, passive } => (Some(threads), passive),
        Config::One => (Some(1), false),
    };
    let mut env = vec![];
    if let Some(threads) = threads {
        env.push(("OMP_NUM_THREADS", threads.to_string().into()));
    }
    if passive {
        env.push(("OMP_WAIT_POLICY", "passive".into()));
    }
    env
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_count_is_set_with_its_policy() {
        let env = environment(Config::Fixed { threads: 2, passive: true });
        let expected = [("OMP_NUM_THREADS", "2"), ("OMP_WAIT_POLICY", "passive")];
        assert_eq!(env, expected.map(|(n, v)| (n, OsString::from(v))));
        assert_eq!(environment(Config::Corefit), []);
    }
}
