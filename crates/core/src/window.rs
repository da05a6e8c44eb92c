//! What happened between two readings: rates in CPUs from counters in nanoseconds.

use std::collections::BTreeMap;

use crate::limits::{IDLE_SLACK, TICK_NS};
use crate::reading::{Reading, TaskTimes, Throttled, What};
use crate::share::count;
use crate::{CpuSet, Time};

/// The time between two readings.
pub(crate) struct Window {
    /// Its length, ns.
    pub(crate) ns: f64,
}

/// Use by a set of threads, in CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Use {
    /// Time on a CPU.
    pub(crate) run: f64,
    /// Time waiting for a CPU; `None` if any thread's is not counted.
    pub(crate) wait: Option<f64>,
}

impl Window {
    pub(crate) fn between(earlier: Time, later: Time) -> Window {
        Window { ns: ns(u64::try_from(later.since(earlier).as_nanos()).unwrap_or(u64::MAX)) }
    }

    /// Whether no time passed, so that nothing can be said about use.
    pub(crate) fn is_empty(&self) -> bool {
        self.ns <= 0.0
    }

    /// The growth of a counter, in CPUs, at most `most`; a counter that went back did not grow.
    pub(crate) fn rate(&self, earlier_ns: u64, later_ns: u64, most: f64) -> f64 {
        if self.is_empty() {
            return 0.0;
        }
        (ns(later_ns.saturating_sub(earlier_ns)) / self.ns).min(most)
    }

    /// Use by each thread of `later`. One that is new ran in the window at most all the time.
    pub(crate) fn each(&self, earlier: &[TaskTimes], later: &[TaskTimes]) -> Vec<Use> {
        let before: BTreeMap<u32, &TaskTimes> = earlier.iter().map(|t| (t.tid, t)).collect();
        let rate = |task: &TaskTimes| {
            let then = before.get(&task.tid);
            let wait_then = then.and_then(|t| t.wait_ns).unwrap_or(0);
            Use {
                run: self.rate(then.map_or(0, |t| t.run_ns), task.run_ns, f64::INFINITY),
                wait: task.wait_ns.map(|wait| self.rate(wait_then, wait, f64::INFINITY)),
            }
        };
        let one = |(task, rates): (&TaskTimes, Use)| {
            // A sum over threads (no wait counted) may exceed one CPU.
            let most = if task.wait_ns.is_some() { 1.0 } else { f64::INFINITY };
            Use { run: rates.run.min(most), wait: rates.wait.map(|w| w.min(1.0)) }
        };
        later.iter().map(|t| one((t, rate(t)))).collect()
    }

    /// Use by all threads of `later` together.
    pub(crate) fn sum(&self, earlier: &[TaskTimes], later: &[TaskTimes]) -> Use {
        let each = self.each(earlier, later);
        let wait = each.iter().map(|u| u.wait).sum::<Option<f64>>();
        Use { run: each.iter().map(|u| u.run).sum(), wait: wait.filter(|_| !each.is_empty()) }
    }

    /// Idle and stolen CPUs among `cpus`; `None` unless both readings have every one of them.
    pub(crate) fn idle_and_steal(&self, a: &Reading, b: &Reading, cpus: &CpuSet) -> Option<(f64, f64)> {
        if self.is_empty() {
            return None;
        }
        let find = |reading: &Reading, cpu| reading.cpu_times.iter().find(|t| t.cpu == cpu).copied();
        cpus.iter().try_fold((0.0, 0.0), |(idle, steal), cpu| {
            let (then, now) = (find(a, cpu)?, find(b, cpu)?);
            Some((
                idle + self.rate(then.idle_ns, now.idle_ns, 1.0),
                steal + self.rate(then.steal_ns, now.steal_ns, 1.0),
            ))
        })
    }

    /// Whether those who cannot be seen use next to nothing: all of the machine's time is
    /// idle or accounted for by the `seen` CPUs.
    pub(crate) fn nobody_unseen(&self, a: &Reading, b: &Reading, seen: f64) -> bool {
        let machine = count(b.online.value.len());
        let Some((idle, steal)) = self.idle_and_steal(a, b, &b.online.value) else {
            return false;
        };
        let all_seen_inside = !b.unread.iter().any(|u| u.what == What::Siblings);
        let top = match (a.groups.first(), b.groups.first()) {
            (Some(a), Some(b)) if all_seen_inside => {
                a.usage_ns.zip(b.usage_ns).map_or(0.0, |(a, b)| self.rate(a, b, machine))
            }
            _ => 0.0,
        };
        // Each CPU's idle time is off by up to a tick, independently.
        let slack = IDLE_SLACK + TICK_NS / self.ns * machine.sqrt();
        machine - idle - steal - seen.max(top) <= slack
    }
}

/// Growth of a group's throttling counters.
pub(crate) fn throttled(earlier: Option<Throttled>, later: Throttled) -> Throttled {
    let earlier = earlier.unwrap_or_default();
    Throttled {
        periods: later.periods.saturating_sub(earlier.periods),
        throttled_periods: later.throttled_periods.saturating_sub(earlier.throttled_periods),
        throttled_ns: later.throttled_ns.saturating_sub(earlier.throttled_ns),
    }
}

#[expect(clippy::cast_precision_loss, reason = "differences below 104 days are exact")]
fn ns(ns: u64) -> f64 {
    ns as f64
}
