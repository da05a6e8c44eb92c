//! Sums over threads that come and go, which never run backwards.
//!
//! The kernel adds what a thread waited when it runs again. One that starves for seconds would look idle until then, so a thread
//! that stopped running is asked whether it is ready to, and what it is ready counts as waiting. (So does `libvirt/thread.rs` for
//! one thread, where the larger of both counts. A sum cannot tell which thread the kernel adds for, so each notes what it is owed.)

use std::collections::{BTreeMap, BTreeSet};

use corefit_core::machine::Counters;
use corefit_core::{CpuId, CpuSet, Time};

use super::kept::Kept;
use crate::proc::{self, Sched, TICK_NS, Task};
use crate::root::ReadError;
use crate::sample;

/// Where threads of a group may run, and whether those that stopped running are ready to, is looked up for so many at most.
const LOOKED_UP: usize = 64;

/// What one thread has done so far, ns: run and waited.
pub(crate) type Done = (u64, u64);

/// The threads of a group and of all below it.
#[derive(Default)]
pub(crate) struct Tally {
    known: BTreeMap<u32, Seen>,
    run_ns: u64,
    wait_ns: u64,
    runs: u64,
    /// How often a thread ran cannot be read.
    uncounted: bool,
    /// Threads were there, but none with counters, or none that is listed.
    blind: bool,
    /// Where those ran last that did something between the last two looks.
    pub(crate) on: CpuSet,
    /// Where its threads may run.
    pub(crate) masks: CpuSet,
}

/// A thread, as it was seen last.
#[derive(Clone, Copy)]
struct Seen {
    pid: u32,
    done: Done,
    /// How often it was put on a CPU.
    runs: Option<u64>,
    /// It ran before that look, or may have.
    ran: bool,
    /// It stopped, and was ready to run.
    stuck: bool,
    /// What counts as waited though the kernel has not added it yet, ns.
    owed: u64,
}

/// How a group's threads are read.
pub(crate) struct Look {
    /// Since the last look, ns.
    pub(crate) over_ns: u64,
    /// The last one, if new threads in the group can be those that were born since; `None` if nothing
    /// was known of the group then.
    pub(crate) last: Option<Time>,
    /// For how many to find out where they ran: it costs several times as much as what they did.
    pub(crate) places: usize,
    /// Whether to read anew where they may run.
    pub(crate) masks: bool,
}

impl Tally {
    /// Adds what these threads did since the last time, real-time threads left out: what these did is
    /// handed back.
    pub(crate) fn update(
        &mut self,
        kept: &mut Kept,
        threads: &[(u32, u32)],
        look: &Look,
    ) -> Vec<((u32, u32), Done)> {
        let mut now = BTreeMap::new();
        let mut first = Vec::new();
        let mut on = Vec::new();
        let mut masks: Vec<CpuId> = Vec::new();
        let mut asks = LOOKED_UP;
        for &(pid, tid) in threads {
            let Ok(did) = schedstat(kept, pid, tid) else { continue };
            let (done, runs) = ((did.run_ns, did.wait_ns), did.runs);
            let old = self.known.get(&tid).copied();
            let then = old.map(|old| old.done);
            let (run, wait) = grown(then, done, || look.last.is_some_and(|last| born_since(kept, pid, last)));
            // Who came from elsewhere did nothing here yet.
            let before = old.map_or(if (run, wait) == done { Some(0) } else { runs }, |old| old.runs);
            let (stuck, owed) = old.map_or((false, 0), |old| (old.stuck, old.owed));
            let mut seen =
                Seen { pid, done, runs, ran: run > 0 || old.is_none_or(|old| old.ran), stuck, owed };
            if run + wait > 0 && is_realtime(kept, pid, tid) {
                first.push(((pid, tid), (run, wait)));
                (seen.ran, seen.stuck) = (false, false);
            } else {
                self.run_ns += run;
                self.wait_ns += wait.saturating_sub(owed);
                match runs.zip(before) {
                    Some((runs, before)) => self.runs += runs.saturating_sub(before),
                    None => self.uncounted = true,
                }
                if wait > 0 {
                    seen.owed = 0;
                }
                if run > 0 {
                    seen.stuck = false;
                } else if old.is_some() {
                    self.wait_ns += seen.asked(kept, tid, look.over_ns, &mut asks);
                }
            }
            if run > 0 && on.len() < look.places {
                on.extend(task(kept, pid).ok().and_then(|task| task.on));
            }
            if look.masks && now.len() < LOOKED_UP {
                masks.extend(affinity(kept, pid).iter().flat_map(CpuSet::iter));
            }
            now.insert(tid, seen);
        }
        self.blind = now.is_empty() && !threads.is_empty();
        self.known = now;
        self.on = on.into_iter().collect();
        if look.masks {
            self.masks =
                if threads.len() > LOOKED_UP { CpuSet::default() } else { masks.into_iter().collect() };
        }
        first
    }

    /// None of them ran since the last look, so long ago; they are not read.
    pub(crate) fn rested(&mut self, kept: &Kept, over_ns: u64) {
        let mut asks = LOOKED_UP;
        for (tid, seen) in &mut self.known {
            self.wait_ns += seen.asked(kept, *tid, over_ns, &mut asks);
        }
    }

    /// The sums since the first look; without those of real-time threads, and of threads that came and
    /// went between two looks.
    pub(crate) fn sums(&self) -> Counters {
        let sum = |ns| (!self.blind).then_some(ns);
        let runs = sum(self.runs).filter(|_| !self.uncounted);
        Counters { run_ns: sum(self.run_ns), wait_ns: sum(self.wait_ns), runs }
    }

    /// The threads themselves, as they were counted last.
    pub(crate) fn threads(&self) -> BTreeSet<u32> {
        self.known.keys().copied().collect()
    }

    /// The group did something, and none of its threads is listed.
    pub(crate) fn unseen(&mut self) {
        self.blind = true;
    }

    pub(crate) fn is_blind(&self) -> bool {
        self.blind
    }
}

impl Seen {
    /// What a thread waited that did not run since the last look, ns: all of that time if it ran or waited before it, and is ready.
    fn asked(&mut self, kept: &Kept, tid: u32, over_ns: u64, asks: &mut usize) -> u64 {
        if !(self.ran || self.stuck) || *asks == 0 {
            return 0;
        }
        *asks -= 1;
        let stat = kept.root.read(&format!("/proc/{}/task/{tid}/stat", self.pid));
        (self.ran, self.stuck) = (false, stat.is_ok_and(|stat| proc::is_ready(&stat)));
        let waited = if self.stuck { over_ns } else { 0 };
        self.owed += waited;
        waited
    }
}

/// What a thread did since it was seen last. One that was not seen before did all of it if it was born
/// since then; if not, it came from another group, and nothing is known.
pub(crate) fn grown(old: Option<Done>, new: Done, born: impl FnOnce() -> bool) -> Done {
    match old {
        Some(old) if new.0 >= old.0 && new.1 >= old.1 => (new.0 - old.0, new.1 - old.1),
        // Another thread has its number now.
        Some(_) => new,
        None if born() => new,
        None => (0, 0),
    }
}

/// What a thread did so far.
pub(crate) fn schedstat(kept: &mut Kept, pid: u32, tid: u32) -> Result<Sched, ReadError> {
    let path = format!("/proc/{pid}/task/{tid}/schedstat");
    Sched::of(&path, &kept.read(&path)?)
}

/// The status of a thread, or of a process by its main one.
pub(crate) fn task(kept: &Kept, pid: u32) -> Result<Task, ReadError> {
    let path = format!("/proc/{pid}/stat");
    proc::task(&path, &kept.root.read(&path)?)
}

/// Where a thread may run, asked from the kernel where that is the machine: its file costs twenty times
/// as much.
pub(crate) fn affinity(kept: &Kept, pid: u32) -> Option<CpuSet> {
    let asked = if kept.root.is_live() { sample::affinity(pid) } else { None };
    asked.or_else(|| proc::affinity(&kept.root, pid).ok().map(|(set, _)| set))
}

/// Whether a thread runs before all that have weights now: asked from the kernel where that is the machine.
fn is_realtime(kept: &Kept, pid: u32, tid: u32) -> bool {
    if kept.root.is_live() { sample::is_realtime(tid) } else { task(kept, pid).is_ok_and(|t| t.realtime) }
}

fn born_since(kept: &Kept, pid: u32, last: Time) -> bool {
    task(kept, pid).is_ok_and(|task| is_born_since(&task, last))
}

pub(crate) fn is_born_since(task: &Task, last: Time) -> bool {
    Time(0) + task.started >= Time(last.0.saturating_sub(TICK_NS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Root;

    const STAT: &str =
        "(a) S 3 7 7 0 -1 4194304 1 0 0 0 30 12 4 1 20 0 1 0 5555 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0\n";

    fn thread(dir: &std::path::Path, tid: u32, done: Done) {
        let task = dir.join(format!("proc/{tid}/task/{tid}"));
        std::fs::create_dir_all(&task).unwrap();
        std::fs::write(task.join("schedstat"), format!("{} {} 1\n", done.0, done.1)).unwrap();
        std::fs::write(dir.join(format!("proc/{tid}/stat")), format!("{tid} {STAT}")).unwrap();
    }

    #[test]
    fn sums_grow_as_threads_come_go_and_their_numbers_are_used_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut kept = Kept::new(Root::at(dir.path()));
        let mut tally = Tally::default();
        let mut look = |last: u64, threads: &[(u32, Done)]| {
            threads.iter().for_each(|&(tid, done)| thread(dir.path(), tid, done));
            let listed: Vec<_> = threads.iter().map(|&(tid, _)| (tid, tid)).collect();
            let last = (last > 0).then_some(Time(last));
            let look = Look { over_ns: 1000, last, places: 64, masks: false };
            tally.update(&mut kept, &listed, &look);
            let sums = tally.sums();
            (sums.run_ns.unwrap(), sums.wait_ns.unwrap())
        };
        let (early, late) = (50_000_000_000, 60_000_000_000); // threads began at 55.55 s
        assert_eq!(look(0, &[(7, (100, 10)), (8, (200, 20))]), (0, 0), "the first look is the zero");
        assert_eq!(look(early, &[(7, (101, 12)), (8, (200, 20))]), (1, 2));
        assert_eq!(look(early, &[(7, (102, 12)), (9, (30, 3))]), (32, 5), "8 went, 9 was born");
        assert_eq!(look(late, &[(7, (103, 12)), (10, (500, 5))]), (33, 5), "10 came from elsewhere");
        assert_eq!(look(late, &[(7, (4, 1)), (10, (500, 5))]), (37, 6), "another thread is 7 now");
    }

    #[test]
    fn a_thread_that_is_ready_and_does_not_run_waits_before_the_kernel_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let mut kept = Kept::new(Root::at(dir.path()));
        let state = |state: char| {
            let stat = format!("7 (a) {state} 1 7 7 0\n");
            std::fs::write(dir.path().join("proc/7/task/7/stat"), stat).unwrap();
        };
        let mut tally = Tally::default();
        let mut update = |tally: &mut Tally, done: Done| {
            thread(dir.path(), 7, done);
            let look = Look { over_ns: 1000, last: Some(Time(60_000_000_000)), places: 0, masks: false };
            tally.update(&mut kept, &[(7, 7)], &look);
            tally.sums().wait_ns.unwrap()
        };
        let rest = Kept::new(Root::at(dir.path()));
        let rested = |tally: &mut Tally| {
            tally.rested(&rest, 1000);
            tally.sums().wait_ns.unwrap()
        };
        assert_eq!(update(&mut tally, (100, 10)), 0);
        state('R');
        assert_eq!(update(&mut tally, (200, 10)), 0, "it ran");
        assert_eq!(rested(&mut tally), 1000, "nobody in the group ran");
        assert_eq!(update(&mut tally, (200, 10)), 2000, "another did");
        assert_eq!(update(&mut tally, (201, 2015)), 2005, "the kernel adds it all, and 5");
        state('S');
        assert_eq!(rested(&mut tally), 2005, "it sleeps");
        state('R');
        assert_eq!(rested(&mut tally), 2005, "it may just have woken up");
    }

    #[test]
    fn threads_without_counters_give_no_sums() {
        let dir = tempfile::tempdir().unwrap();
        let mut kept = Kept::new(Root::at(dir.path()));
        let mut tally = Tally::default();
        let look = Look { over_ns: 0, last: None, places: 0, masks: false };
        tally.update(&mut kept, &[(7, 7)], &look);
        assert_eq!((tally.sums(), tally.is_blind()), (Counters::default(), true));
        tally.update(&mut kept, &[], &look);
        assert_eq!(tally.sums().run_ns, Some(0), "nobody is there who could have done something");
        assert_eq!(tally.sums().runs, Some(0));
        thread(dir.path(), 7, (100, 10));
        std::fs::write(dir.path().join("proc/7/task/7/schedstat"), "100 10\n").unwrap();
        tally.update(&mut kept, &[(7, 7)], &look);
        assert_eq!(
            (tally.sums().run_ns, tally.sums().runs),
            (Some(0), None),
            "how often it ran is not there"
        );
    }
}
