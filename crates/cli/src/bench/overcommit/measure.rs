//! Running the plan: each run with its environment, its limit and its check.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use corefit_core::CpuSet;

use super::Settings;
use super::conditions::{Condition, SEEN};
use super::delays::RunReport;
use super::document::Wrong;
use super::plan::Config;
use super::programs::{Answer, Case, Kind, see_cpus};
use crate::bench::arena::Arena;
use crate::bench::interrupt::Interrupt;
use crate::bench::job::{self, Finished, Quiet, Script};
use crate::bench::progress::Progress;
use crate::bench::stats::{Random, Value};

/// Output lines of a program that are other in every run, for `corefit certify --ignore`.
const TIMES: &str = "^(time_s|rate): ";
/// A certification makes five runs, with more threads than CPUs.
const CERTIFY_LIMIT: u32 = 10;

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
    verdicts: BTreeMap<(PathBuf, String, bool), Verdict>,
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

/// What `corefit certify` said.
#[derive(Clone, Debug)]
pub(super) struct Verdict {
    pub(super) certified: Option<bool>,
    pub(super) why: String,
}

/// What to run.
pub(super) struct Order<'a> {
    pub(super) argv: Vec<OsString>,
    pub(super) env: Vec<(&'static str, OsString)>,
    /// The CPUs allowed when it begins.
    pub(super) cpus: &'a CpuSet,
    pub(super) limit: Duration,
}

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
            random: Random::new(settings.seed),
            wrong: vec![],
            checksums: BTreeMap::new(),
            verdicts: BTreeMap::new(),
        }
    }

    /// Runs something in the arena, and kills what it leaves behind.
    pub(super) fn execute(&self, order: Order<'_>, script: &mut dyn Script) -> Result<Finished> {
        let mut command = self.arena.command(&order.argv, order.cpus)?;
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(is_knob) {
                command.env_remove(name);
            }
        }
        command.envs(order.env).env("XDG_STATE_HOME", self.state()).current_dir(&self.settings.root);
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
    pub(super) fn warm_up(&mut self, case: &Case, size: &str, threads: u32, cpus: &CpuSet) -> Result<f64> {
        let config = Config::Fixed { threads, passive: threads > 1 };
        let what = format!("{} {} {size} ({config})", case.program.name, case.runtime.name());
        self.progress.begin(&what);
        let order = Order {
            argv: self.program(case, size, config),
            env: environment(config),
            cpus,
            limit: self.settings.limit,
        };
        let finished = self.execute(order, &mut Quiet)?;
        let answer = Answer::read(&finished.stdout);
        if finished.cut_off() {
            bail!(
                "{what} took longer than {} s: give more with --limit, or a smaller --size",
                self.settings.limit.as_secs_f64()
            );
        }
        if let Some(wrong) = self.problem(case.program.name, size, &finished, &answer) {
            bail!("{what} fails before anything is measured: {wrong}");
        }
        let time_s = finished.wall.as_secs_f64();
        self.progress.end(&what, &format!("{time_s:.3} s"));
        Ok(time_s)
    }

    /// Lets `corefit certify` judge a program, once for each environment and size.
    pub(super) fn certify(&mut self, condition: Condition, case: &Case, size: &str) -> Result<Verdict> {
        let not_asked = |why: &str| Ok(Verdict { certified: None, why: why.into() });
        match case.program.kind {
            Kind::OpenMp => {}
            Kind::Threads => return not_asked("not an OpenMP program"),
            Kind::Unsafe => return not_asked("to be protected without a verdict"),
        }
        let shim = condition == Condition::Sees16;
        let key = (case.path.clone(), size.to_owned(), shim);
        if let Some(verdict) = self.verdicts.get(&key) {
            self.progress.skip(1);
            return Ok(verdict.clone());
        }
        let what = format!("certify {} {} {size}", case.program.name, case.runtime.name());
        self.progress.begin(&what);
        // More threads than CPUs would make those that spin on flags take minutes.
        let threads = self.arena.cpus().len().max(2).to_string();
        let exe = self.arena.exe().as_os_str();
        let mut argv = vec![exe.to_owned()];
        argv.extend(["certify", "--ignore", TIMES, "--threads", &threads, "--"].map(Into::into));
        argv.extend(self.program(case, size, Config::Default));
        let order = Order {
            argv,
            env: self.shim(condition),
            cpus: self.arena.cpus(),
            limit: self.settings.limit * CERTIFY_LIMIT,
        };
        let finished = self.execute(order, &mut Quiet)?;
        let verdict = judge(&finished);
        self.progress.end(&what, &verdict.why);
        self.verdicts.insert(key, verdict.clone());
        Ok(verdict)
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
            None => crate::bench::table::bounded(Some(time), |s| format!("{s:.3} s")),
        };
        self.progress.end(&what, &said);
        let report =
            (config == Config::Corefit).then(|| self.keep_report(&report, condition, case)).flatten();
        let time = wrong.is_none().then_some(time);
        if let Some(wrong) = wrong {
            self.wrong.push(Wrong {
                condition: Some(condition),
                program: name.into(),
                runtime: runtime.into(),
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
    fn shim(&self, condition: Condition) -> Vec<(&'static str, OsString)> {
        if condition != Condition::Sees16 {
            return vec![];
        }
        vec![
            ("LD_PRELOAD", see_cpus(&self.settings.root).into()),
            ("COREFIT_SEE_CPUS", SEEN.to_string().into()),
        ]
    }

    fn program(&self, case: &Case, size: &str, config: Config) -> Vec<OsString> {
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

/// Whether a variable of the user would change how many threads something starts, or how.
fn is_knob(name: &str) -> bool {
    const PREFIXES: [&str; 4] = ["OMP_", "GOMP_", "KMP_", "COREFIT_"];
    const NAMES: [&str; 8] = [
        "LD_PRELOAD",
        "LD_AUDIT",
        "GOMAXPROCS",
        "JAVA_TOOL_OPTIONS",
        "PYTHON_CPU_COUNT",
        "DOTNET_PROCESSOR_COUNT",
        "UV_THREADPOOL_SIZE",
        "JULIA_NUM_THREADS",
    ];
    PREFIXES.iter().any(|p| name.starts_with(p)) || NAMES.contains(&name) || name.ends_with("_NUM_THREADS")
}

fn judge(finished: &Finished) -> Verdict {
    let line = |text: &str, start: &str| {
        let found = text.lines().find(|l| l.starts_with(start));
        found.map(|l| l[start.len()..].trim().to_owned())
    };
    let out = |start| line(&finished.stdout, start);
    let (certified, why) = match finished.status.and_then(|s| s.code()) {
        Some(0) => (Some(true), out("certified:")),
        Some(1) => (Some(false), out("NOT certified:")),
        _ if finished.cut_off() => (Some(false), Some("it took too long".into())),
        _ => (Some(false), line(&finished.stderr, "corefit:")),
    };
    Verdict { certified, why: why.unwrap_or_else(|| "corefit certify gave no reason".into()) }
}

/// The changes of `step`: all CPUs for a while, then one, then all again.
pub(super) struct Steps<'a> {
    arena: &'a Arena,
    one: &'a CpuSet,
    /// When to change, after the start.
    at: [Duration; 2],
    /// When it was changed, seconds after the start.
    pub(super) done_s: Vec<f64>,
    /// When to look for new threads, where affinities are set.
    again: Option<Duration>,
}

impl<'a> Steps<'a> {
    pub(super) fn new(arena: &'a Arena, one: &'a CpuSet, [first, second]: [f64; 2]) -> Steps<'a> {
        Steps {
            arena,
            one,
            at: [first, first + second].map(Duration::from_secs_f64),
            done_s: vec![],
            again: None,
        }
    }

    fn due(&self) -> Option<Duration> {
        self.at.get(self.done_s.len()).copied()
    }
}

impl Script for Steps<'_> {
    fn next(&self) -> Option<Duration> {
        [self.due(), self.again].into_iter().flatten().min()
    }

    fn act(&mut self, start: Instant, pid: u32) -> Result<()> {
        const SOON: Duration = Duration::from_millis(1);
        const LATER: Duration = Duration::from_millis(20);
        let now = start.elapsed();
        if self.due().is_some_and(|at| now >= at) {
            self.done_s.push(now.as_secs_f64());
        }
        let cpus = match self.done_s.len() {
            1 => self.one,
            _ => self.arena.cpus(),
        };
        let changed = self.arena.allow(pid, cpus).context("step")?;
        let grouped = self.arena.cpuset_groups().is_some();
        let pause = if changed { SOON } else { LATER };
        self.again = (!grouped).then(|| start.elapsed() + pause);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    #[test]
    fn the_users_thread_settings_do_not_reach_the_runs() {
        for name in ["OMP_NUM_THREADS", "KMP_BLOCKTIME", "LD_PRELOAD", "MKL_NUM_THREADS"] {
            assert!(is_knob(name), "{name}");
        }
        for name in ["PATH", "HOME", "OMPI_X", "NUM_THREADS_X"] {
            assert!(!is_knob(name), "{name}");
        }
    }

    #[test]
    fn a_verdict_is_read_from_what_certify_prints() {
        let finished = |code: i32, stdout: &str, stderr: &str| Finished {
            wall: Duration::ZERO,
            status: Some(ExitStatus::from_raw(code << 8)),
            stdout: stdout.into(),
            stderr: stderr.into(),
        };
        let yes = judge(&finished(0, "seed 1: same\ncertified: 3 runs\nidentity x\n", ""));
        assert_eq!((yes.certified, yes.why.as_str()), (Some(true), "3 runs"));
        let no = judge(&finished(1, "NOT certified: differs\n", ""));
        assert_eq!((no.certified, no.why.as_str()), (Some(false), "differs"));
        let failed = judge(&finished(2, "", "corefit: no region\n  a remedy\n"));
        assert_eq!(failed.certified, Some(false));
        assert_eq!(failed.why, "no region");
    }

    #[test]
    fn a_fixed_count_is_set_with_its_policy() {
        let env = environment(Config::Fixed { threads: 2, passive: true });
        let expected = [("OMP_NUM_THREADS", "2"), ("OMP_WAIT_POLICY", "passive")];
        assert_eq!(env, expected.map(|(n, v)| (n, OsString::from(v))));
        assert_eq!(environment(Config::Corefit), []);
    }
}
