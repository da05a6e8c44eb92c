//! What happened between two readings: rates in CPUs from counters in nanoseconds.

use std::collections::{BTreeMap, BTreeSet};

use crate::limits::{IDLE_SLACK, TICK_NS};
use crate::reading::{ProcessTimes, Reading, TaskTimes, Throttled, What};
use crate::units::count;
use crate::{CpuSet, Time};

/// The time between two readings.
pub(crate) struct Window {
    /// Its length, ns.
    pub(crate) ns: f64,
}

/// Use by a thread or a set of threads, in CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Use {
    /// Time on a CPU.
    pub(crate) run: f64,
    /// Time waiting for a CPU; `None` if any thread's is not counted.
    pub(crate) wait: Option<f64>,
}

/// What a process did.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Activity {
    /// By each of its threads.
    pub(crate) threads: Vec<Use>,
    /// By children of it that ended, in CPUs.
    pub(crate) ended: f64,
}

impl Activity {
    /// Time on a CPU, that of ended children included.
    pub(crate) fn run(&self) -> f64 {
        self.threads.iter().map(|u| u.run).sum::<f64>() + self.ended
    }

    /// All of several processes together.
    pub(crate) fn sum(all: &[Activity]) -> Use {
        let waits = all.iter().flat_map(|a| &a.threads).map(|u| u.wait);
        Use {
            run: all.iter().map(Activity::run).sum(),
            wait: waits.sum::<Option<f64>>().filter(|_| !all.is_empty()),
        }
    }
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

    /// What each process of `later` did; `earlier` is the same group of processes before. At most
    /// `most` CPUs by ended children: a parent of which more is said was told the whole life of a
    /// child that ran elsewhere.
    pub(crate) fn processes(
        &self,
        earlier: &[ProcessTimes],
        later: &[ProcessTimes],
        most: f64,
    ) -> Vec<Activity> {
        let before: BTreeMap<u32, &ProcessTimes> = earlier.iter().map(|p| (p.pid, p)).collect();
        let tasks: BTreeMap<u32, &TaskTimes> =
            earlier.iter().flat_map(|p| &p.tasks).map(|t| (t.tid, t)).collect();
        let known = known_of_ended(&before, later);
        let one = |process: &ProcessTimes| {
            let then = before.get(&process.pid).map_or(0, |p| p.ended_children_ns);
            let then = then.saturating_add(known.get(&process.pid).copied().unwrap_or(0));
            let ended = self.rate(then, process.ended_children_ns, f64::INFINITY);
            Activity {
                threads: process.tasks.iter().map(|t| self.task(tasks.get(&t.tid), t)).collect(),
                ended: if ended <= most { ended } else { 0.0 },
            }
        };
        later.iter().map(one).collect()
    }

    /// One that is new ran in the window, at most all the time.
    fn task(&self, then: Option<&&TaskTimes>, now: &TaskTimes) -> Use {
        // A sum over threads (no wait counted) may exceed one CPU.
        let most = if now.wait_ns.is_some() { 1.0 } else { f64::INFINITY };
        let wait_then = then.and_then(|t| t.wait_ns).unwrap_or(0);
        Use {
            run: self.rate(then.map_or(0, |t| t.run_ns), now.run_ns, most),
            wait: now.wait_ns.map(|wait_ns| self.rate(wait_then, wait_ns, 1.0)),
        }
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

/// For each process of `later`, the CPU time that those of its descendants which have ended since
/// had already used before: it is now counted again as that of ended children.
fn known_of_ended(before: &BTreeMap<u32, &ProcessTimes>, later: &[ProcessTimes]) -> BTreeMap<u32, u64> {
    let alive: BTreeSet<u32> = later.iter().map(|p| p.pid).collect();
    let mut known = BTreeMap::new();
    for ended in before.values().filter(|p| !alive.contains(&p.pid)) {
        let mut heir = ended.parent;
        // No chain of parents is longer than the list, whatever the list says.
        for _ in 0..before.len() {
            match before.get(&heir) {
                Some(parent) if !alive.contains(&heir) => heir = parent.parent,
                _ => break,
            }
        }
        let used = ended.tasks.iter().map(|t| t.run_ns).sum::<u64>();
        let total: &mut u64 = known.entry(heir).or_default();
        *total = total.saturating_add(used).saturating_add(ended.ended_children_ns);
    }
    known
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

fn ns(ns: u64) -> f64 {
    ns as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn process(pid: u32, parent: u32, run_ms: u64, ended_ms: u64) -> ProcessTimes {
        ProcessTimes {
            pid,
            parent,
            tasks: vec![TaskTimes { tid: pid, run_ns: run_ms * MS, wait_ns: Some(0) }],
            ended_children_ns: ended_ms * MS,
            cpuset: None,
        }
    }

    fn runs(before: &[ProcessTimes], after: &[ProcessTimes]) -> Vec<f64> {
        let window = Window::between(Time(0), Time(1000 * MS));
        window.processes(before, after, 2.0).iter().map(|a| (a.run() * 1e6).round() / 1e6).collect()
    }

    #[test]
    fn children_that_came_and_went_count_for_their_parent() {
        assert_eq!(runs(&[process(1, 0, 50, 100)], &[process(1, 0, 60, 700)]), [0.61]);
    }

    #[test]
    fn of_a_child_that_ended_only_what_it_did_since_the_first_reading_counts() {
        let before = [process(1, 0, 0, 0), process(2, 1, 5000, 0)];
        assert_eq!(runs(&before, &[process(1, 0, 0, 5300)]), [0.3]);
        let grandchild = [process(1, 0, 0, 0), process(2, 1, 100, 0), process(3, 2, 5000, 0)];
        assert_eq!(runs(&grandchild, &[process(1, 0, 0, 5400)]), [0.3]);
    }

    #[test]
    fn the_whole_life_of_a_child_that_ran_elsewhere_does_not_count() {
        assert_eq!(runs(&[process(1, 0, 0, 0)], &[process(1, 0, 0, 60_000)]), [0.0]);
    }

    #[test]
    fn an_orphan_and_a_circle_of_parents_count_for_nobody() {
        let before = [process(1, 0, 0, 0), process(2, 77, 100, 0), process(3, 4, 9, 0), process(4, 3, 9, 0)];
        assert_eq!(runs(&before, &[process(1, 0, 10, 0)]), [0.01]);
    }

    #[test]
    fn a_new_thread_ran_at_most_all_the_time() {
        assert_eq!(runs(&[], &[process(1, 0, 90_000, 0)]), [1.0]);
    }
}
