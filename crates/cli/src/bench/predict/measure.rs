//! The runs of one program: its profiles, those that the rival is fitted to, and each condition; on this machine by its
//! control groups, or in VMs (`guests`).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use corefit_core::CpuSet;
use corefit_core::profile::{Division, OnVm, Profile, Usl};
use serde::Deserialize;

use super::Condition;
use super::report::{Point, Terms};
use crate::bench::arena::Arena;
use crate::bench::interrupt::Interrupt;
use crate::bench::job::{self, Quiet};
use crate::bench::progress::Progress;
use crate::bench::stats::median;

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

/// What is read of a profile's document.
#[derive(Deserialize)]
pub(super) struct Seen {
    wall_s: f64,
    cpu_s: f64,
    own_cpu_s: f64,
    windows_s: f64,
    profile: Option<Profile>,
}

/// Points of all conditions, and what looking cost in each profile, of the program's CPU time.
pub(super) fn program(
    runs: &mut dyn Runs,
    case: &Case,
    conditions: &[Condition],
    cpus: usize,
    repeat: u32,
) -> Result<(Vec<Point>, Vec<f64>)> {
    let mut profiles = BTreeMap::new();
    for threads in conditions.iter().map(|condition| condition.threads(cpus)).collect::<BTreeSet<_>>() {
        let both = [runs.profile(case, threads, false)?, runs.profile(case, threads, true)?];
        profiles.insert(threads, both);
    }
    let mut usl: Vec<(f64, Took)> = vec![];
    for threads in USL {
        let took = runs.time(case, threads, &format!("{threads} threads"))?;
        usl.extend(took.map(|took| (threads as f64, took)));
    }
    // The machine is faster now than a minute later: each speedup is of two runs of the same round.
    let mut rounds = vec![vec![]; conditions.len()];
    for round in 0..repeat {
        // The first of them is one of the six.
        let one = match usl.first().filter(|(threads, _)| round == 0 && *threads == 1.0) {
            Some((_, first)) => Some(*first),
            None => runs.time(case, 1, "1 thread")?,
        };
        let one = one.with_context(|| format!("{}: one thread takes longer than --limit", case.name))?;
        for (took, condition) in rounds.iter_mut().zip(conditions) {
            took.push(runs.condition(case, *condition)?.map(|took| (one, took)));
        }
    }
    let usl = Usl::fit(&usl.iter().map(|(threads, took)| (*threads, took.wall)).collect::<Vec<_>>());
    let points = conditions.iter().zip(rounds).map(|(&condition, runs)| {
        // Cut off once is not measured.
        let runs: Vec<(Took, Took)> = runs.into_iter().collect::<Option<_>>().unwrap_or_default();
        let speedups: Vec<f64> = runs.iter().map(|(one, took)| one.wall / took.wall).collect();
        let given = condition.cpus(cpus);
        let [all, one] = &profiles[&condition.threads(cpus)];
        let on = |seen: &Option<Seen>| on(seen.as_ref()?.profile.as_ref(), condition, cpus).cloned();
        let range = |on: OnVm| [on.dedicated_cores.is, on.dedicated_cores.low, on.dedicated_cores.high];
        Point {
            program: case.name.clone(),
            spins: case.spins,
            condition: condition.name(),
            group: condition.group(),
            measured: median(speedups.iter().copied()),
            spread: spread(&speedups),
            terms: Terms::median(runs.iter().map(|(one, took)| took.terms(one, given))),
            predicted_terms: on(all).as_ref().map(Terms::of),
            share: condition.share(),
            predicted: on(all).map(range),
            from_one_cpu: on(one).map(range),
            usl: usl.map(|usl| usl.speedup(cpus as f64) * given / cpus as f64),
        }
    });
    let points = points.collect();
    let costs = profiles.values().flatten().flatten().filter(|seen| seen.cpu_s > 0.0);
    Ok((points, costs.map(|seen| seen.own_cpu_s / seen.cpu_s + seen.windows_s / seen.wall_s).collect()))
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
            Condition::Neighbour { weight } => {
                let _neighbour = self.arena.heavy_neighbour(u64::from(weight))?;
                self.time(case, self.cpus, &condition.name())
            }
            Condition::Vm { .. } => bail!("{} is a condition of VMs", condition.name()),
        }
    }

    fn profile(&mut self, case: &Case, threads: usize, one_cpu: bool) -> Result<Option<Seen>> {
        let cpus: CpuSet = self.arena.cpus().iter().take(if one_cpu { 1 } else { usize::MAX }).collect();
        let file = self.arena.scratch().join("profile.json");
        let mut argv: Vec<OsString> = vec![self.arena.exe().into()];
        argv.extend(["profile", "--quiet", "--one-cpu", "--period", "24ms", "--threads"].map(OsString::from));
        argv.push(threads.to_string().into());
        argv.push(format!("--json={}", file.display()).into());
        argv.push("--".into());
        argv.extend(self.argv(case, threads));
        let what = format!("{} profiled on {}", case.name, if one_cpu { "one CPU" } else { "all CPUs" });
        if self.run(&argv, &cpus, threads, &what)?.is_none() {
            return Ok(None);
        }
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        Ok(Some(serde_json::from_str(&text).with_context(|| format!("{what}: its document"))?))
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
        command.env("OMP_NUM_THREADS", threads.to_string()).env("OMP_WAIT_POLICY", "passive");
        for name in ["GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_DYNAMIC", "OMP_THREAD_LIMIT", "LD_PRELOAD"] {
            command.env_remove(name);
        }
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

/// Half of the range over the median; `None` of one.
fn spread(values: &[f64]) -> Option<f64> {
    let (low, high) = values.iter().fold((f64::INFINITY, 0.0_f64), |(l, h), v| (l.min(*v), h.max(*v)));
    Some((high - low) / 2.0 / median(values.iter().copied())?).filter(|_| values.len() > 1)
}

/// A run, seconds: on the clock, and of CPU time.
#[derive(Clone, Copy)]
pub(super) struct Took {
    pub(super) wall: f64,
    pub(super) user: f64,
    pub(super) system: f64,
}

impl Took {
    /// Where its time went, of `given` CPUs: what it takes more than one thread is switching in the kernel, slowed elsewhere.
    fn terms(&self, one: &Took, given: f64) -> Terms {
        let all = given * self.wall;
        Terms {
            used: (one.user + one.system) / all,
            switching: (self.system - one.system) / all,
            slowed: (self.user - one.user) / all,
            unused: 1.0 - (self.user + self.system) / all,
        }
    }
}

/// The prediction for a condition.
fn on(profile: Option<&Profile>, condition: Condition, cpus: usize) -> Option<&OnVm> {
    let profile = profile?;
    let vcpus = condition.threads(cpus).min(profile.features.threads);
    let same = |on: &&OnVm| on.vm.vcpus == vcpus;
    match condition {
        Condition::Machine => profile.machines.iter().find(same),
        Condition::Quota { share, period_ms } => profile.on(vcpus, share, f64::from(period_ms) * 1e6, true),
        Condition::Vm { period_ms, .. } => {
            profile.on(vcpus, condition.share(), f64::from(period_ms) * 1e6, false)
        }
        Condition::Neighbour { weight } => {
            let division = Division::Weighted { rivals: f64::from(weight) };
            profile.beside.iter().filter(same).find(|on| on.vm.division == division)
        }
    }
}
