//! What a run was like: a few lines for people, a document for programs.

use corefit_core::Why;
use corefit_linux::page::Process;
use corefit_linux::threads::own_cpu;
use serde::Serialize;

use super::grants::Grant;
use super::history::History;
use super::launch::Plan;
use super::locks::LockReport;
use super::rotate::Rotated;
use crate::lines::wrap;

/// The document of `--report`. Times are seconds since the program was started.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Program and arguments.
    pub(crate) command: Vec<String>,
    /// Exit code, if the program exited.
    pub(crate) exit_code: Option<i32>,
    /// Signal that ended it, if one did.
    pub(crate) exit_signal: Option<i32>,
    /// Wall-clock time.
    pub(crate) wall_s: f64,
    /// Threads that OpenMP was launched with.
    pub(crate) threads_launched: u32,
    /// The most that teams which may be resized could have had.
    pub(crate) threads_most: u32,
    /// Mean CPUs available (a lower bound); null for a run shorter than one interval.
    pub(crate) mean_available: Option<f64>,
    /// Mean CPUs used.
    pub(crate) mean_used: Option<f64>,
    /// Used part of the available CPU time, 0 to 1.
    pub(crate) efficiency: Option<f64>,
    /// Thread-seconds spent runnable without a CPU.
    pub(crate) waiting_s: f64,
    /// Threads ordered over time: every change, with its reason. Only processes that may be
    /// resized follow; for others it is the size that would be right.
    pub(crate) changes: Vec<Change>,
    /// One sample per interval (thinned in long runs).
    pub(crate) samples: Vec<Sample>,
    /// OpenMP processes met.
    pub(crate) processes: Vec<OpenMp>,
    /// Environment variables set for the program.
    pub(crate) set: Vec<String>,
    /// Environment variables of the user that were left as they are.
    pub(crate) kept: Vec<String>,
    /// Whatever could not be done, and other things to know.
    pub(crate) notes: Vec<String>,
    /// Those of them that nobody was told while the program ran.
    #[serde(skip)]
    pub(crate) notes_at_end: Vec<String>,
    /// `--lock`: the programs that took corefit's lock, and what their locks did; null without.
    pub(crate) lock: Option<LockReport>,
    /// `--rotate`: how often a thread was moved; null without.
    pub(crate) rotated: Option<Rotated>,
    /// CPU time that corefit itself used.
    pub(crate) own_cpu_s: f64,
    /// Times the program was restarted at another size.
    pub(crate) restarts: u32,
}

/// A change of the number of threads.
#[derive(Debug, Serialize)]
pub(crate) struct Change {
    pub(crate) at_s: f64,
    pub(crate) threads: u32,
    #[serde(flatten)]
    pub(crate) why: Why,
}

/// One interval.
#[derive(Debug, Serialize)]
pub(crate) struct Sample {
    pub(crate) at_s: f64,
    pub(crate) threads: u32,
    pub(crate) available: f64,
    pub(crate) used: f64,
    pub(crate) waiting: f64,
}

/// An OpenMP process.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct OpenMp {
    pub(crate) pid: u32,
    pub(crate) runtime: &'static str,
    pub(crate) grant: Grant,
    /// Whether dynamic adjustment was enabled in its last region.
    pub(crate) dynamic: bool,
    /// Outermost regions of more than one thread counted (only while fewer CPUs were available than asked for).
    pub(crate) regions: u64,
    /// Of those, regions run with fewer threads than asked for.
    pub(crate) resized: u64,
    /// Most threads asked for.
    pub(crate) requested: u32,
    /// How often its sequential work was moved to another CPU (`--rotate`).
    pub(crate) moves: u32,
    /// Whether it was ever told not to spin, having more threads than CPUs.
    pub(crate) quieted: bool,
    /// How often it was not, as the other thread had an affinity of its own.
    #[serde(skip)]
    pub(crate) bound: u32,
    /// The team that it was last told, if that was less than it asks for.
    #[serde(skip)]
    pub(crate) told: Option<u32>,
    /// Regions that the last interval began with.
    #[serde(skip)]
    pub(crate) counted: u64,
}

impl OpenMp {
    /// What is known of a process, brought up to date.
    pub(crate) fn update(known: Option<OpenMp>, p: &Process, grant: Grant) -> OpenMp {
        OpenMp {
            pid: p.pid,
            runtime: match (p.gomp, p.kmp) {
                (true, false) => "libgomp",
                (false, true) => "libomp",
                _ => "libgomp and libomp",
            },
            grant,
            dynamic: p.dynamic,
            regions: p.regions,
            resized: p.resized,
            moves: p.moves,
            bound: p.bound,
            requested: p.requested.max(known.as_ref().map_or(0, |k| k.requested)),
            quieted: known.as_ref().is_some_and(|k| k.quieted),
            told: known.as_ref().and_then(|k| k.told),
            counted: known.map_or(p.regions, |k| k.counted),
        }
    }

    /// Whether orders about its team size have an effect.
    pub(crate) fn may_be_resized(&self) -> bool {
        self.grant.may_be_resized(self.dynamic)
    }
}

/// Changes and samples from the history of a run.
pub(crate) fn timeline(history: &History) -> (Vec<Change>, Vec<Sample>) {
    let seconds = |p: &super::history::Point| p.at.since(history.began()).as_secs_f64();
    let mut team = history.first_team();
    let mut changes = vec![];
    let mut samples = vec![];
    for p in history.points() {
        if p.team != team {
            team = p.team;
            changes.push(Change { at_s: round(seconds(p)), threads: team, why: p.why });
        }
        samples.push(Sample {
            at_s: round(seconds(p)),
            threads: p.team,
            available: round(p.available.0),
            used: round(p.run.0),
            waiting: round(p.wait.0),
        });
    }
    (changes, samples)
}

/// Three decimals are more than was measured.
pub(crate) fn round(x: f64) -> f64 {
    (x * 1000.0).round() / 1000.0
}

impl Report {
    /// What the history tells; the caller adds how it ended.
    pub(crate) fn new(history: &History, processes: Vec<OpenMp>, plan: &Plan) -> Report {
        let (changes, samples) = timeline(history);
        let launched = plan.launched(&processes);
        Report {
            command: vec![],
            exit_code: None,
            exit_signal: None,
            wall_s: 0.0,
            threads_launched: launched,
            threads_most: plan.most.max(launched),
            mean_available: history.mean_available().map(|c| round(c.0)),
            mean_used: history.mean_used().map(|c| round(c.0)),
            efficiency: history.efficiency().map(round),
            waiting_s: round(history.waited_s()),
            changes,
            samples,
            processes,
            set: plan.set.clone(),
            kept: plan.kept.clone(),
            notes: vec![],
            notes_at_end: vec![],
            lock: None,
            rotated: None,
            own_cpu_s: round(own_cpu().as_secs_f64()),
            restarts: 0,
        }
    }

    /// Corrects what was used by what the kernel counted in the end: of processes that lived shorter
    /// than an interval, samples know nothing.
    pub(crate) fn used(&mut self, cpu_s: f64) {
        let (Some(sampled), true) = (self.mean_used, self.wall_s > 0.0) else {
            return;
        };
        let used = sampled.max(cpu_s / self.wall_s);
        self.mean_used = Some(round(used));
        // What was used was available.
        self.mean_available = self.mean_available.map(|available| round(available.max(used)));
        self.efficiency = self.mean_available.filter(|a| *a > 0.0).map(|a| round((used / a).min(1.0)));
    }

    /// The lines for people, of `width` columns where their words allow it.
    pub(crate) fn text(&self, width: usize) -> String {
        let mut lines = vec![];
        let ended = match (self.exit_code, self.exit_signal) {
            (_, Some(signal)) => format!("ended by signal {signal}"),
            (Some(code), None) if code != 0 => format!("exit code {code}"),
            _ => "done".to_owned(),
        };
        let mut first = format!("{ended} after {:.2} s", self.wall_s);
        if let (Some(available), Some(used), Some(efficiency)) =
            (self.mean_available, self.mean_used, self.efficiency)
        {
            first += &format!(
                "; {available:.2} CPUs available on average, {used:.2} used (efficiency {:.0} %), {:.2} s waiting for a CPU",
                100.0 * efficiency,
                self.waiting_s
            );
        }
        lines.push(first);
        lines.push(self.threads_line());
        const SHOWN: usize = 5;
        lines.extend(self.processes.iter().take(SHOWN).map(OpenMp::line));
        if let more @ 1.. = self.processes.len().saturating_sub(SHOWN) {
            lines.push(format!("and {more} OpenMP processes more (--report FILE lists them)"));
        }
        lines.extend(self.set_line());
        lines.extend(self.lock.as_ref().map(LockReport::line));
        lines.extend(self.rotated.as_ref().map(Rotated::line));
        if !self.kept.is_empty() {
            lines.push(format!("left as you set them: {}", self.kept.join(" ")));
        }
        lines.extend(self.notes_at_end.iter().cloned());
        let mut text = String::new();
        for line in &lines {
            wrap(&mut text, "corefit: ", 9, line, width);
        }
        text
    }

    /// What was set, the variables of one value together.
    fn set_line(&self) -> Option<String> {
        let mut values: Vec<(&str, Vec<&str>)> = vec![];
        for setting in &self.set {
            let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
            match values.iter_mut().find(|(known, _)| *known == value) {
                Some((_, names)) => names.push(name),
                None => values.push((value, vec![name])),
            }
        }
        let texts = values.iter().map(|(value, names)| format!("{}={value}", names.join(", ")));
        let text = texts.collect::<Vec<_>>().join("; ");
        (!text.is_empty()).then(|| format!("set {text}"))
    }

    fn threads_line(&self) -> String {
        let mut text = format!("threads: {} at launch", self.threads_launched);
        if !self.processes.iter().any(OpenMp::may_be_resized) {
            return match self.restarts {
                0 => text,
                n => text + &format!("; restarted {n}x"),
            };
        }
        if self.threads_most > self.threads_launched {
            text += &format!(" ({} at most)", self.threads_most);
        }
        if self.changes.is_empty() {
            text += ", and no other number since";
        }
        const SHOWN: usize = 6;
        for change in self.changes.iter().take(SHOWN) {
            text += &format!(", {} at {:.2} s ({})", change.threads, change.at_s, reason(change.why));
        }
        if self.changes.len() > SHOWN {
            text += &format!(", and {} changes more", self.changes.len() - SHOWN);
        }
        if self.restarts > 0 {
            text += &format!("; restarted {}x", self.restarts);
        }
        text
    }
}

impl OpenMp {
    fn line(&self) -> String {
        let how = match self.grant {
            Grant::Certified { .. } => "certified",
            Grant::Vouched => "--resize always",
            Grant::IfDynamic if self.dynamic => "OpenMP dynamic adjustment is on",
            Grant::IfDynamic => {
                "not resized: not certified (corefit certify) and OpenMP dynamic adjustment is off"
            }
            Grant::Nothing => "not resized: --resize never",
            Grant::Refused => "not resized: corefit certify found that its results depend on team sizes",
        };
        let resized = match (self.grant, self.dynamic) {
            (Grant::Nothing | Grant::Refused, _) | (Grant::IfDynamic, false) if self.quieted => {
                "; its spinning was stopped while CPUs were too few".into()
            }
            (Grant::Nothing | Grant::Refused, _) | (Grant::IfDynamic, false) => String::new(),
            // Regions of one thread are not counted.
            _ if self.requested <= 1 => ": nothing to resize".into(),
            _ => format!(": {} of {} regions resized", self.resized, self.regions),
        };
        format!(
            "process {} ({}, asks for {}) {how}{resized}",
            self.pid,
            self.runtime,
            threads(self.requested)
        )
    }
}

/// `1 thread`, `4 threads`.
pub(crate) fn threads(n: u32) -> String {
    if n == 1 { "1 thread".into() } else { format!("{n} threads") }
}

/// Why a team changed, in words.
pub(crate) fn reason(why: Why) -> String {
    match why {
        Why::Steady => "steady".into(),
        Why::Limited => "fewer CPUs allowed".into(),
        Why::Contended { run, wait } => format!("contended: ran {run:.1}, waited {wait:.1}"),
        Why::Idle { idle } => format!("{idle:.1} CPUs idle"),
        Why::Measured => "what there is was measured".into(),
        Why::Unlimited => "more CPUs allowed".into(),
        Why::Entitled => "entitled to more".into(),
        Why::Probe => "probing".into(),
        Why::ProbeKept => "probe gained".into(),
        Why::ProbeUndone => "probe undone".into(),
    }
}
