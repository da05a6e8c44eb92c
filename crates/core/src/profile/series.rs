//! From looks at counters to slots: what each thread did between two looks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Time;

/// One look at all threads of a program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Look {
    /// When.
    pub at: Time,
    /// Those alive.
    pub threads: Vec<ThreadLook>,
}

/// Counters of one thread since it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadLook {
    /// Its number, unique among the living.
    pub tid: u32,
    /// Time on a CPU, ns.
    pub run_ns: u64,
    /// Time runnable without a CPU, ns. Kernels count it when the wait ends.
    pub wait_ns: u64,
    /// What not every look reads.
    pub status: Option<Status>,
}

/// The rarer part of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Times it blocked.
    pub voluntary: u64,
    /// Times it was put off its CPU.
    pub involuntary: u64,
    /// Whether it ran or wanted to at that instant.
    pub runnable: bool,
}

/// What one thread did in a slot, ns. In a file it is `[run, wait, alive]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "(f64, f64, bool)", into = "(f64, f64, bool)")]
pub struct Lane {
    /// On a CPU.
    pub run: f64,
    /// Runnable without a CPU.
    pub wait: f64,
    /// Whether it was there at the end of the slot.
    pub alive: bool,
}

impl From<(f64, f64, bool)> for Lane {
    fn from((run, wait, alive): (f64, f64, bool)) -> Lane {
        Lane { run, wait, alive }
    }
}

impl From<Lane> for (f64, f64, bool) {
    fn from(Lane { run, wait, alive }: Lane) -> (f64, f64, bool) {
        (run, wait, alive)
    }
}

/// The time between two looks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Slot {
    /// Its length, ns; more than 0.
    pub ns: f64,
    /// Threads by lane: a lane is taken over by a new thread when its thread has ended. Lanes that came later
    /// are missing in earlier slots.
    pub lanes: Vec<Lane>,
    /// Threads that were runnable at its end, where that was looked at.
    pub runnable: Option<u32>,
}

/// A whole run, or as much of it as was recorded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// In order, without gaps.
    pub slots: Vec<Slot>,
    /// Times that threads blocked.
    pub voluntary: u64,
    /// Times that threads were put off their CPUs.
    pub involuntary: u64,
    /// CPU time in the kernel of the whole run, ns; 0 where it is not known.
    pub system_ns: f64,
}

impl Series {
    /// Its length, ns.
    #[must_use]
    pub fn ns(&self) -> f64 {
        self.slots.iter().map(|slot| slot.ns).sum()
    }

    /// Lanes: the most threads that were there at once.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.slots.iter().map(|slot| slot.lanes.len()).max().unwrap_or(0)
    }

    /// A series of slots in which nobody waited: the times that each thread ran, ns; for examples.
    #[must_use]
    pub fn of_runs(slots: &[(f64, &[f64])]) -> Series {
        let lane = |run: &f64| Lane { run: *run, wait: 0.0, alive: true };
        let slot = |(ns, runs): &(f64, &[f64])| Slot {
            ns: *ns,
            lanes: runs.iter().map(lane).collect(),
            runnable: None,
        };
        Series { slots: slots.iter().map(slot).collect(), ..Series::default() }
    }
}

struct Known {
    lane: usize,
    last: ThreadLook,
    seen: u64,
}

/// Takes looks in, one after the other.
pub struct Recorder {
    series: Series,
    known: BTreeMap<u32, Known>,
    free: Vec<usize>,
    lanes: usize,
    before: Time,
    looks: u64,
    entries: usize,
}

/// Entries (lanes times slots) beyond which nothing is recorded: some 100 MB.
const MOST_ENTRIES: usize = 4_000_000;

impl Recorder {
    /// Begins at a time at which no thread had run yet.
    #[must_use]
    pub fn new(start: Time) -> Recorder {
        Recorder {
            series: Series::default(),
            known: BTreeMap::new(),
            free: vec![],
            lanes: 0,
            before: start,
            looks: 0,
            entries: 0,
        }
    }

    /// Whether the memory for slots is used up; further looks are left out.
    #[must_use]
    pub fn full(&self) -> bool {
        self.entries >= MOST_ENTRIES
    }

    /// Leaves out the time until now, in which the program was stopped.
    pub fn skip(&mut self, now: Time) {
        self.before = now;
    }

    /// Takes a look in. One that is not later than the one before is left out.
    pub fn take(&mut self, look: &Look) {
        let ns = look.at.since(self.before).as_nanos() as f64;
        if ns <= 0.0 {
            return;
        }
        self.before = look.at;
        self.looks += 1;
        let mut slot = Slot { ns, lanes: vec![Lane::default(); self.lanes], runnable: None };
        for thread in &look.threads {
            let lane = self.advance(thread);
            if slot.lanes.len() <= lane.0 {
                slot.lanes.resize(lane.0 + 1, Lane::default());
            }
            slot.lanes[lane.0] = lane.1;
        }
        // One status is as good as none: all or nothing.
        let runnable: Option<Vec<bool>> =
            look.threads.iter().map(|t| t.status.map(|status| status.runnable)).collect();
        slot.runnable = runnable
            .filter(|all| !all.is_empty())
            .map(|all| u32::try_from(all.iter().filter(|r| **r).count()).unwrap_or(u32::MAX));
        let (looks, free) = (self.looks, &mut self.free);
        self.known.retain(|_, known| {
            let alive = known.seen == looks;
            if !alive {
                free.push(known.lane);
            }
            alive
        });
        // The lowest lane is taken first.
        self.free.sort_unstable_by(|a, b| b.cmp(a));
        if !self.full() {
            self.entries += slot.lanes.len().max(1);
            self.series.slots.push(slot);
        }
    }

    /// What a thread did since the last look, and its lane.
    fn advance(&mut self, now: &ThreadLook) -> (usize, Lane) {
        let anew = self.known.get(&now.tid).is_none_or(|known| known.last.run_ns > now.run_ns);
        if anew {
            let lane = match self.known.remove(&now.tid) {
                Some(ended) => ended.lane,
                None => self.free.pop().unwrap_or_else(|| {
                    self.lanes += 1;
                    self.lanes - 1
                }),
            };
            let zero = Status { voluntary: 0, involuntary: 0, runnable: false };
            let last = ThreadLook { tid: now.tid, run_ns: 0, wait_ns: 0, status: Some(zero) };
            self.known.insert(now.tid, Known { lane, last, seen: 0 });
        }
        let (looks, full) = (self.looks, self.full());
        let Some(known) = self.known.get_mut(&now.tid) else { return (0, Lane::default()) };
        known.seen = looks;
        let lane = Lane {
            run: (now.run_ns - known.last.run_ns) as f64,
            wait: now.wait_ns.saturating_sub(known.last.wait_ns) as f64,
            alive: true,
        };
        let status = now.status.or(known.last.status);
        // They belong to the time that is recorded.
        if !full && let (Some(before), Some(after)) = (known.last.status, now.status) {
            self.series.voluntary += after.voluntary.saturating_sub(before.voluntary);
            self.series.involuntary += after.involuntary.saturating_sub(before.involuntary);
        }
        known.last = ThreadLook { status, ..*now };
        (known.lane, lane)
    }

    /// The series, with times put where they belong.
    #[must_use]
    pub fn finish(mut self) -> Series {
        settle(&mut self.series);
        self.series
    }
}

/// Kernels count running time at ticks (4 ms with `HZ=250`) and switches, and waiting time when it ends, so a slot may
/// show more than its length: the rest belongs to the slots before.
fn settle(series: &mut Series) {
    for lane in 0..series.lanes() {
        let (mut run, mut wait) = (0.0, 0.0);
        for slot in series.slots.iter_mut().rev() {
            let Some(at) = slot.lanes.get_mut(lane) else { break };
            run += at.run;
            wait += at.wait;
            at.run = run.min(slot.ns);
            run -= at.run;
            at.wait = wait.min(slot.ns - at.run);
            wait -= at.wait;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(tid: u32, run_ns: u64, wait_ns: u64) -> ThreadLook {
        ThreadLook { tid, run_ns, wait_ns, status: None }
    }

    fn recorded(looks: &[&[ThreadLook]]) -> Series {
        let mut recorder = Recorder::new(Time(0));
        for (i, threads) in (1_u64..).zip(looks) {
            recorder.take(&Look { at: Time(i * 10), threads: threads.to_vec() });
        }
        recorder.finish()
    }

    fn runs(series: &Series, lane: usize) -> Vec<f64> {
        series.slots.iter().filter_map(|slot| Some(slot.lanes.get(lane)?.run)).collect()
    }

    #[test]
    fn differences_of_counters_are_what_a_thread_did() {
        let series = recorded(&[&[thread(1, 10, 0)], &[thread(1, 12, 5)], &[thread(1, 13, 5)]]);
        assert_eq!(runs(&series, 0), [10.0, 2.0, 1.0]);
        assert_eq!(series.slots[1].lanes[0].wait, 5.0);
        assert_eq!(series.ns(), 30.0);
    }

    #[test]
    fn what_is_counted_late_goes_to_the_slots_before_and_none_is_lost() {
        let series = recorded(&[&[thread(1, 10, 0)], &[thread(1, 10, 0)], &[thread(1, 13, 17)]]);
        assert_eq!(runs(&series, 0), [10.0, 0.0, 3.0]);
        let waits: Vec<f64> = series.slots.iter().map(|slot| slot.lanes[0].wait).collect();
        assert_eq!(waits, [0.0, 10.0, 7.0]);
        // A tick of 20 ns: nothing, then two slots at once.
        assert_eq!(runs(&recorded(&[&[thread(1, 0, 0)], &[thread(1, 20, 0)]]), 0), [10.0, 10.0]);
    }

    #[test]
    fn a_lane_is_taken_over_when_its_thread_has_ended() {
        let series = recorded(&[
            &[thread(1, 5, 0), thread(2, 6, 0)],
            &[thread(1, 6, 0)],
            &[thread(1, 7, 0), thread(3, 4, 0)],
        ]);
        assert_eq!(series.lanes(), 2);
        assert_eq!(runs(&series, 1), [6.0, 0.0, 4.0]);
        assert!(!series.slots[1].lanes[1].alive && series.slots[2].lanes[1].alive);
    }

    #[test]
    fn switches_are_counted_over_looks_without_a_status() {
        let with = |voluntary, runnable| ThreadLook {
            status: Some(Status { voluntary, involuntary: 2 * voluntary, runnable }),
            ..thread(1, 5, 0)
        };
        let series = recorded(&[&[with(3, true)], &[thread(1, 5, 0)], &[with(9, false)]]);
        assert_eq!((series.voluntary, series.involuntary), (9, 18));
        let runnable: Vec<_> = series.slots.iter().map(|slot| slot.runnable).collect();
        assert_eq!(runnable, [Some(1), None, Some(0)]);
    }

    #[test]
    fn switches_count_as_long_as_there_is_room_for_the_rest() {
        let look = |n: u64| {
            let status = Status { voluntary: n, involuntary: n, runnable: true };
            Look {
                at: Time(10 * n),
                threads: vec![ThreadLook { status: Some(status), ..thread(1, 5 * n, 0) }],
            }
        };
        let mut recorder = Recorder { entries: MOST_ENTRIES - 2, ..Recorder::new(Time(0)) };
        (1..=9).for_each(|n| recorder.take(&look(n)));
        assert!(recorder.full());
        let series = recorder.finish();
        assert_eq!((series.ns(), series.voluntary, series.involuntary), (20.0, 2, 2));
    }

    #[test]
    fn a_number_used_again_is_another_thread() {
        let series = recorded(&[&[thread(1, 9, 0)], &[thread(1, 3, 0)]]);
        assert_eq!((runs(&series, 0), series.lanes()), (vec![9.0, 3.0], 1));
    }
}
