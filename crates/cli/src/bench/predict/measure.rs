//! The runs of one program: its profiles, those that the rival is fitted to, and each condition; on this machine by its
//! control groups, or in VMs (`guests`).

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use corefit_core::CpuSet;

use super::Condition;
use super::saved::{Measured, Profiled, Rounds, Seen, Took};
use crate::bar::Progress;
use crate::bench::arena::Arena;
use crate::bench::job::{self, Quiet};
use crate::interrupt::Interrupt;

/// Threads of the runs that the USL is fitted to.
pub(super) const USL: [usize; 6] = [1, 2, 3, 4, 6, 8];

/// A program.
pub(super) struct Case {
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// Its number of threads is an argument, not a variable.
    pub(super) threads_are_argument: bool,
    /// Unseen by the kernel.
    pub(super) spins: bool,
}

/// Where programs run.
pub(super) trait Runs {
    /// A profile with so many threads on all idle CPUs, or on one of them; `None` if it was cut off, or is not made here.
    fn profile(&mut self, case: &Case, threads: usize, one_cpu: bool) -> Result<Option<Seen>>;
    /// A run with so many threads on the idle machine, one thread on one CPU; `None` if it was cut off.
    fn time(&mut self, case: &Case, threads: usize, what: &str) -> Result<Option<Took>>;
    /// A run in a condition; `None` if it was cut off.
    fn condition(&mut self, case: &Case, condition: Condition) -> Result<Option<Took>>;
}

/// Runs everything of one program.
pub(super) fn program(
    runs: &mut dyn Runs,
    case: &Case,
    conditions: &[Condition],
    cpus: usize,
    repeat: u32,
) -> Result<Measured> {
    let mut profiles = vec![];
    for threads in conditions.iter().map(|condition| condition.threads(cpus)).collect::<BTreeSet<_>>() {
        let (all, one) = (runs.profile(case, threads, false)?, runs.profile(case, threads, true)?);
        profiles.push(Profiled { threads, all, one });
    }
    let mut usl: Vec<(usize, Took)> = vec![];
    for threads in USL {
        let took = runs.time(case, threads, &format!("{threads} threads"))?;
        usl.extend(took.map(|took| (threads, took)));
    }
    // The machine is faster now than a minute later: each speedup is of two runs of the same round.
    let mut rounds: Vec<Rounds> =
        conditions.iter().map(|&condition| Rounds { condition, runs: vec![] }).collect();
    for round in 0..repeat {
        // The first of them is one of the six.
        let one = match usl.first().filter(|(threads, _)| round == 0 && *threads == 1) {
            Some((_, first)) => Some(*first),
            None => runs.time(case, 1, "1 thread")?,
        };
        let one = one.with_context(|| format!("{}: one thread takes longer than --limit", case.name))?;
        for rounds in &mut rounds {
            let took = runs.condition(case, rounds.condition)?;
            rounds.runs.push(took.map(|took| (one, took)));
        }
    }
    Ok(Measured { name: case.name.clone(), spins: case.spins, profiles, usl, rounds })
}

/// This machine.
pub(super) struct Host<'a> {
    pub(super) arena: &'a Arena,
    pub(super) interrupt: &'a Interrupt,
    pub(super) progress: Progress,
    pub(super) size: String,
    pub(super) limit: Duration,
    pub(super) cpus: usize,
}

impl Runs for Host<'_> {
    fn condition(&mut self, case: &Case, condition: Condition) -> Result<Option<Took>> {
        match condition {
            Condition::Machine => self.time(case, self.cpus, &condition.name()),
            Condition::Quota { share, period_ms } => {
                let period_us = u64::from(period_ms) * 1000;
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 1e12")]
                let quota_us = (share * self.cpus as f64 * period_us as f64).round() as u64;
                let _quota = self.arena.quota_in(quota_us, period_us)?;
                self.time(case, self.cpus, &condition.name())
            }
            Condition::Neighbour { weight, .. } => {
                let _neighbour = self.arena.heavy_neighbour(u64::from(weight))?;
                self.time(case, condition.threads(self.cpus), &condition.name())
            }
            Condition::Vm { .. } => bail!("{} is a condition of VMs", condition.name()),
        }
    }

    fn profile(&mut self, case: &Case, threads: usize, one_cpu: bool) -> Result<Option<Seen>> {
        let cpus: CpuSet = self.arena.cpus().iter().take(if one_cpu { 1 } else { usize::MAX }).collect();
        let [file, record] = ["profile.json", "record.json"].map(|name| self.arena.scratch().join(name));
        let mut argv: Vec<OsString> = vec![self.arena.exe().into()];
        argv.extend(["profile", "--quiet", "--one-cpu", "--period", "24ms", "--threads"].map(OsString::from));
        argv.push(threads.to_string().into());
        argv.push(format!("--json={}", file.display()).into());
        argv.extend(["--record".into(), record.clone().into(), "--".into()]);
        argv.extend(self.argv(case, threads));
        let what = format!("{} profiled on {}", case.name, if one_cpu { "one CPU" } else { "all CPUs" });
        if self.run(&argv, &cpus, threads, &what)?.is_none() {
            return Ok(None);
        }
        let read = |file: &Path| std::fs::read(file).with_context(|| file.display().to_string());
        Seen::of(&read(&file)?, &read(&record)?).with_context(|| what).map(Some)
    }

    // Of one thread on one CPU, as some programs have other threads beside.
    fn time(&mut self, case: &Case, threads: usize, what: &str) -> Result<Option<Took>> {
        let argv = self.argv(case, threads);
        let some = if threads == 1 { 1 } else { self.cpus };
        let cpus: CpuSet = self.arena.cpus().iter().take(some).collect();
        self.run(&argv, &cpus, threads, &format!("{} {what}", case.name))
    }
}

impl Host<'_> {
    fn argv(&self, case: &Case, threads: usize) -> Vec<OsString> {
        let mut argv: Vec<OsString> = vec![case.path.clone().into(), self.size.clone().into()];
        if case.threads_are_argument {
            argv.push(threads.to_string().into());
        }
        argv
    }

    fn run(&mut self, argv: &[OsString], cpus: &CpuSet, threads: usize, what: &str) -> Result<Option<Took>> {
        self.progress.begin(what);
        let mut command = self.arena.command(argv, cpus)?;
        job::without_settings(&mut command);
        command
            .env("OMP_NUM_THREADS", threads.to_string())
            .env("OMP_WAIT_POLICY", "passive")
            .stdin(Stdio::null());
        let end = |pid| self.arena.end(pid);
        let done = job::run(command, self.limit, self.arena.scratch(), &mut Quiet, self.interrupt, &end)?;
        self.arena.sweep();
        let took = (!done.cut_off()).then_some(Took {
            wall: done.wall.as_secs_f64(),
            user: done.used.user.as_secs_f64(),
            system: done.used.system.as_secs_f64(),
        });
        self.progress.end(what, &took.map_or("cut off".into(), |took| format!("{:.3} s", took.wall)));
        if took.is_some() && !done.stdout.lines().any(|line| line == "verified: yes") {
            bail!("{what}: its result is wrong, or it failed: {}", done.stderr.trim_end());
        }
        Ok(took)
    }
}
