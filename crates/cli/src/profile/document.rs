//! The document of `corefit profile --json`.

use corefit_core::profile::{Machine, Profile, Type};
use serde::Serialize;

use crate::printable;
use crate::versioned::json;

/// A run and what is made of it. Times named `_s` are seconds, `_ns` nanoseconds.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Document {
    /// Program and arguments.
    pub(crate) command: Vec<String>,
    /// Exit code, if the program exited.
    pub(crate) exit_code: Option<i32>,
    /// Signal that ended it, if one did.
    pub(crate) exit_signal: Option<i32>,
    /// Wall-clock time.
    pub(crate) wall_s: f64,
    /// CPU time of the program, with its children that it waited for.
    pub(crate) cpu_s: f64,
    /// CPU time of its threads that was seen in looks.
    pub(crate) seen_s: f64,
    /// Looks at its threads.
    pub(crate) looks: u64,
    /// Time between two looks, in the end.
    pub(crate) interval_ms: f64,
    /// CPU time that looking took.
    pub(crate) own_cpu_s: f64,
    /// What windows on one CPU cost the program, at most.
    pub(crate) windows_s: f64,
    /// Environment variables set for the program.
    pub(crate) set: Vec<String>,
    /// The user's wait policy, which was kept.
    pub(crate) kept: Vec<String>,
    /// What to know about the run, in sentences.
    pub(crate) notes: Vec<String>,
    /// Why `--one-cpu` told nothing, if it was asked for.
    #[serde(skip)]
    pub(crate) one_cpu_not: Option<String>,
    /// The length of the run that was recorded, s, if the memory for more was used up.
    #[serde(skip)]
    pub(crate) full_after_s: Option<f64>,
    /// The user's own numbers of threads, which were kept though `--threads` was given: `NAME=value`.
    #[serde(skip)]
    pub(crate) left: Vec<String>,
    /// The system's clock, if it is a device that CPUs read one after the other.
    pub(crate) device_clock: Option<&'static str>,
    /// Everything worked out; null if no thread was seen to run.
    pub(crate) profile: Option<Profile>,
}

impl Document {
    pub(crate) fn json(&self) -> String {
        // Nothing in it can fail to be written.
        json(self, false).unwrap_or_default()
    }

    /// What looking cost, of the program's CPU time, or of its time if that is more, and windows, of its time.
    pub(crate) fn cost(&self) -> f64 {
        let part = |cost: f64, of: f64| if of > 0.0 { cost / of } else { 0.0 };
        part(self.own_cpu_s, self.cpu_s.max(self.wall_s)) + part(self.windows_s, self.wall_s)
    }

    /// What to know about the run.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let Some(profile) = &self.profile else {
            let why = if self.looks > 1 && self.cpu_s > LITTLE_S {
                "it ran, but no thread's times could be read (/proc/PID/task/TID/schedstat): nothing can be told without"
            } else {
                "no thread was seen to run for as long as it takes to look: give it more to do"
            };
            return vec![why.into()];
        };
        let mut notes = vec![];
        if let Some(recorded) = self.full_after_s {
            notes.push(format!(
                "it has too many threads, or ran too long: of its {:.0} s the first {recorded:.0} are recorded, and told of",
                self.wall_s
            ));
        } else if self.cpu_s > 0.0 && self.seen_s < SEEN * self.cpu_s {
            notes.push(format!(
                "only {:.0} % of the program's CPU time was seen: its threads are short-lived, or it ran for a few looks only",
                100.0 * self.seen_s / self.cpu_s
            ));
        }
        if profile.crowded {
            let (run, wait) = profile.times.iter().fold((0.0, 0.0), |sum, t| (sum.0 + t.run, sum.1 + t.wait));
            let with = match profile.question.machine.others {
                Some(others) => format!(", and others used {others:.1} CPUs meanwhile"),
                None => ", with a CPU for each".into(),
            };
            notes.push(format!(
                "its threads waited {:.0} % of the time that they ran{with}: others kept the CPUs busy, and who \
                 blocks meanwhile looks like sequential work; profile it again on an idle machine",
                100.0 * wait / run
            ));
        } else if profile.by_runnable {
            let Machine { cpus, others, .. } = profile.question.machine;
            let bound = others.filter(|_| cpus >= profile.features.threads).map(|others| {
                format!(
                    ", though there is one for each and others used {others:.1} (does it bind them to fewer, as taskset and \
                     OMP_PLACES do?)"
                )
            });
            notes.push(format!(
                "threads waited for CPUs{}, so active threads are the runnable ones, not those that ran",
                bound.unwrap_or_default()
            ));
        }
        if profile.features.kind.is_none() && profile.features.threads > 1 {
            notes.push(format!(
                "no type is given: with {} threads on {}, looks do not show well enough when each begins and sleeps, so more may be \
                 active at a time than is said, and speedups higher",
                profile.features.threads,
                match profile.question.machine.cpus {
                    1 => "1 CPU".to_owned(),
                    cpus => format!("{cpus} CPUs"),
                }
            ));
        }
        if profile.question.period_ns < 2.0 * profile.slot_ns {
            notes.push(format!(
                "looks were {:.1} ms apart: what fluctuates within a period of {:.1} ms is not seen",
                profile.slot_ns / 1e6,
                profile.question.period_ns / 1e6
            ));
        }
        if let Some(why) = &self.one_cpu_not {
            notes.push(format!("--one-cpu told nothing: {why}"));
        }
        let machine = &profile.question.machine;
        match (machine.one_cpu, machine.contention) {
            (Some(seen), _) => notes.push(format!(
                "its work is taken to need {:.2} times this CPU time on one CPU ({:.2} to {:.2}): so much its parallel regions took in \
                 {} windows of some milliseconds, in which all threads were kept on one CPU",
                seen.part, seen.low, seen.high, seen.windows
            )),
            (None, Some(seen)) => notes.push(format!(
                "a thread beside others is taken to need {:.2} times the CPU time that it needs alone ({:.2} to {:.2}): so much a \
                 reporter did beside this program",
                seen.is, seen.low, seen.high
            )),
            (None, None) if machine.cpus < 2 => notes.push(
                "on one CPU it is not seen how threads slow each other (shared cores): taken as not at all".into(),
            ),
            (None, None) => notes.push(
                "too few looks found two threads runnable to see how they slow each other (shared cores): \
                 taken as not at all"
                    .into(),
            ),
        }
        if let Some(clock) = self.device_clock.filter(|_| profile.features.kind.is_some_and(Type::blocks)) {
            notes.push(format!(
                "this system's clock is the {clock}, a device, which the kernel reads at each block and wake-up, one CPU after the other: \
                 on VMs with more vCPUs than pCPUs this program gets far less than is told (here a program that blocks got a fifth of it with 8 \
                 vCPUs on 2 pCPUs), unless their clock is the TSC or the hypervisor's own"
            ));
        }
        if !self.left.is_empty() {
            notes.push(format!(
                "left as you set them, whatever --threads says: {}",
                printable::text(&self.left.join(", "))
            ));
        }
        if !self.kept.is_empty() {
            notes.push(format!("your own wait policy was kept: {}", printable::text(&self.kept.join(", "))));
        }
        match profile.spinning_at_most {
            Some(most) => notes.push(format!(
                "spinning counts as work, and is 0 to {:.0} % of it (all that ran beside one thread)",
                100.0 * most
            )),
            None => notes.push(
                "waiting in OpenMP slept and does not count; a program's own spinning would count as work"
                    .into(),
            ),
        }
        notes
    }
}

/// A run of more CPU time than this, s, is seen if times can be read.
const LITTLE_S: f64 = 0.1;
/// Less of the CPU time seen is worth a note.
const SEEN: f64 = 0.9;
