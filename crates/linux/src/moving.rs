//! Moves running threads to other CPUs and leaves their affinity as it was (what `corefit run --rotate` does), or keeps them on
//! one for a while ([`OneCpu`]).
//!
//! A thread that runs is moved by `sched_setaffinity` to one CPU (the kernel's migration thread does it before the call
//! returns), and may use all of its CPUs again at once: it stays, as nothing makes the kernel move it back. So nothing is left
//! to be undone, but where this process is killed between the two calls: then the thread keeps the one CPU. Who sleeps would not be moved, and is left alone. If the CPU of the thread stands still (that of a VM whose
//! time is used up), the call waits until it goes on. Between the two calls it may start threads and processes, which
//! inherit the one CPU (seen where our own CPU stood still just then): they are looked for, and get all of them, too. One
//! that is being started at the very end is found by [`Mover::catch_up`].

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::{Mutex, PoisonError};

use corefit_core::{CpuId, CpuSet};

use crate::affinity::Mask;
use crate::proc;
use crate::sample::{affinity, set_affinity, tasks};

/// Looks in a row that find new threads, none of which inherited the one CPU, after which none will. Ours.
const STRANGERS: u32 = 3;

/// Where a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Where it runs, or ran last.
    pub cpu: CpuId,
    /// Whether it runs, or would if it had a CPU.
    pub running: bool,
}

/// Where a thread is; `None` if it has ended.
#[must_use]
pub fn seat(tid: u32) -> Option<Seat> {
    let path = format!("/proc/{tid}/task/{tid}/stat");
    let text = fs::read_to_string(&path).ok()?;
    let cpu = proc::task(&path, &text).ok()?.on?;
    Some(Seat { cpu, running: proc::is_ready(&text) })
}

/// What threads may use once they are let go.
#[derive(Clone, Debug)]
pub struct Home {
    all: CpuSet,
    /// Whether these were all CPUs that were online, so that those that come later are theirs, too.
    unbound: bool,
}

impl Home {
    /// These CPUs, which the threads may use now.
    #[must_use]
    pub fn of(all: CpuSet) -> Home {
        let online = fs::read_to_string("/sys/devices/system/cpu/online").ok();
        let online: Option<CpuSet> = online.and_then(|text| text.trim().parse().ok());
        Home { unbound: online.as_ref() == Some(&all), all }
    }

    fn give(&self, tid: u32) {
        free(tid, &self.all, self.unbound);
    }
}

/// Lets a thread use the CPUs `allowed` to it, or, `unbound`, all: the kernel gives those that it has now and those that come later.
fn free(tid: u32, allowed: &CpuSet, unbound: bool) {
    if !unbound {
        set_affinity(tid, allowed);
    } else if let Some(tid) = libc::pid_t::try_from(tid).ok().filter(|tid| *tid != 0) {
        let _ = Mask::all().set(tid);
    }
}

/// Moves running threads that may use what this process may use.
#[derive(Debug)]
pub struct Mover {
    /// Whether this process may use all CPUs, those that come later, too.
    unbound: bool,
    /// Threads that were moved since the last [`Mover::catch_up`], where to, and which other threads there were then.
    moved: Mutex<BTreeMap<(u32, CpuId), BTreeSet<u32>>>,
}

impl Mover {
    /// For the threads of programs that this process starts.
    #[must_use]
    pub fn new() -> Mover {
        let unbound = affinity(std::process::id()).is_some_and(|all| Home::of(all).unbound);
        Mover { unbound, moved: Mutex::default() }
    }

    /// CPUs that this process may use now.
    #[must_use]
    pub fn allowed(&self) -> CpuSet {
        affinity(std::process::id()).unwrap_or_default()
    }

    /// Whether a thread may use just these: whoever chose others is not to be moved.
    #[must_use]
    pub fn is_free(&self, tid: u32, allowed: &CpuSet) -> bool {
        affinity(tid).as_ref() == Some(allowed)
    }

    /// Moves a thread to one of the CPUs `allowed` to it.
    pub fn shift(&self, tid: u32, to: CpuId, allowed: &CpuSet) {
        let known = families(&BTreeSet::from([tid]));
        let one = CpuSet::from_iter([to]);
        set_affinity(tid, &one);
        self.free(tid, allowed);
        let known = free_heirs(BTreeSet::from([tid]), known, &one, |heir| self.free(heir, allowed));
        self.moved.lock().unwrap_or_else(PoisonError::into_inner).insert((tid, to), known);
    }

    /// Frees those that threads were starting while they were moved, and that came only afterwards: to be called some
    /// milliseconds later.
    pub fn catch_up(&self, allowed: &CpuSet) {
        let moved = std::mem::take(&mut *self.moved.lock().unwrap_or_else(PoisonError::into_inner));
        for ((tid, to), known) in moved {
            let one = CpuSet::from_iter([to]);
            free_heirs(BTreeSet::from([tid]), known, &one, |heir| self.free(heir, allowed));
        }
    }

    fn free(&self, tid: u32, allowed: &CpuSet) {
        free(tid, allowed, self.unbound);
    }
}

/// Keeps threads on one CPU until it goes out of scope. Those that they start meanwhile are freed with them.
#[derive(Debug)]
pub struct OneCpu {
    threads: BTreeSet<u32>,
    one: CpuSet,
    home: Home,
}

impl OneCpu {
    /// For these threads, which are let go to `home` then.
    #[must_use]
    pub fn begin(threads: BTreeSet<u32>, cpu: CpuId, home: &Home) -> OneCpu {
        let one = CpuSet::from_iter([cpu]);
        threads.iter().for_each(|thread| set_affinity(*thread, &one));
        OneCpu { threads, one, home: home.clone() }
    }
}

impl Drop for OneCpu {
    fn drop(&mut self) {
        free_heirs(std::mem::take(&mut self.threads), BTreeSet::new(), &self.one, |heir| {
            self.home.give(heir);
        });
    }
}

/// Lets threads that are kept on one CPU, and those that they started there, go `home`.
pub fn release(threads: BTreeSet<u32>, from: CpuId, home: &Home) {
    drop(OneCpu { threads, one: CpuSet::from_iter([from]), home: home.clone() });
}

/// Frees who came to the threads' [`families`] since those were `known` and is on the one CPU, which it inherited, until
/// nobody comes who did; who is there then.
fn free_heirs(
    mut threads: BTreeSet<u32>,
    mut known: BTreeSet<u32>,
    one: &CpuSet,
    free: impl Fn(u32),
) -> BTreeSet<u32> {
    // Programs that start threads all the time would keep us for ever.
    let mut strangers = 0;
    loop {
        let now = families(&threads);
        let came: Vec<u32> = now.difference(&known).copied().collect();
        if came.is_empty() || strangers == STRANGERS {
            return now;
        }
        strangers += 1;
        for heir in came.into_iter().filter(|heir| affinity(*heir).as_ref() == Some(one)) {
            free(heir);
            threads.insert(heir);
            strangers = 0;
        }
        known = now;
    }
}

/// All threads of these threads' processes, and the processes that these threads started.
fn families(threads: &BTreeSet<u32>) -> BTreeSet<u32> {
    let mut all = BTreeSet::new();
    for tid in threads {
        if !all.contains(tid) {
            all.extend(tasks(*tid));
        }
        let children = fs::read_to_string(format!("/proc/{tid}/task/{tid}/children")).unwrap_or_default();
        all.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    all
}

impl Default for Mover {
    fn default() -> Mover {
        Mover::new()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use super::*;

    /// Says that it is over, after a panic, too: a scope waits for its threads.
    struct End<'a>(&'a AtomicBool);

    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    /// Together, as threads of other tests would be seen in between.
    #[test]
    fn running_threads_are_moved_and_they_and_those_that_they_start_may_use_what_they_could() {
        a_running_thread_is_moved();
        threads_that_were_started_meanwhile_do_not_inherit_the_one_cpu();
        who_was_on_one_cpu_and_what_it_started_there_is_on_all_afterwards();
    }

    fn a_running_thread_is_moved() {
        let mover = Mover::new();
        let allowed = mover.allowed();
        if allowed.len() < 2 {
            let _ = writeln!(std::io::stderr(), "skipped: there is only one CPU");
            return;
        }
        let (tid, ends) = (AtomicU32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let _end = End(&ends);
            scope.spawn(|| {
                tid.store(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs(), Ordering::SeqCst);
                while !ends.load(Ordering::SeqCst) {
                    std::hint::spin_loop();
                }
            });
            let tid = loop {
                match tid.load(Ordering::SeqCst) {
                    0 => std::thread::yield_now(),
                    tid => break tid,
                }
            };
            assert!(mover.is_free(tid, &allowed));
            let cpus: Vec<CpuId> = allowed.iter().collect();
            for cpu in cpus.into_iter().cycle().take(8) {
                // The kernel may move it on, where another thread wants this CPU: not each time.
                let arrived = (0..1000).any(|_| {
                    mover.shift(tid, cpu, &allowed);
                    seat(tid).is_some_and(|seat| seat.cpu == cpu)
                });
                assert!(arrived, "it does not come to CPU {}", cpu.0);
                assert!(mover.is_free(tid, &allowed), "{:?}", affinity(tid));
            }
        });
    }

    fn threads_that_were_started_meanwhile_do_not_inherit_the_one_cpu() {
        let mover = Mover::new();
        let allowed = mover.allowed();
        let ends = AtomicBool::new(false);
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                tell.send(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()).unwrap();
                while !ends.load(Ordering::SeqCst) {
                    std::thread::spawn(|| (0..1000).for_each(|_| std::thread::yield_now())).join().unwrap();
                }
            });
            let _end = End(&ends);
            let tid = told.recv().unwrap();
            let cpus: Vec<CpuId> = allowed.iter().collect();
            let strays = || -> Vec<(u32, CpuSet)> {
                let all = tasks(std::process::id()).into_iter();
                all.filter_map(|task| Some((task, affinity(task)?)))
                    .filter(|(_, has)| *has != allowed)
                    .collect()
            };
            for cpu in cpus.into_iter().cycle().take(500) {
                mover.shift(tid, cpu, &allowed);
                if !strays().is_empty() {
                    mover.catch_up(&allowed);
                    assert_eq!(strays(), []);
                }
            }
        });
    }

    fn who_was_on_one_cpu_and_what_it_started_there_is_on_all_afterwards() {
        let all = affinity(std::process::id()).unwrap();
        let Some(last) = all.iter().last().filter(|_| all.len() > 1) else {
            let _ = writeln!(std::io::stderr(), "skipped: there is only one CPU");
            return;
        };
        let own = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let held = OneCpu::begin(BTreeSet::from([own]), last, &Home::of(all.clone()));
        assert_eq!(affinity(own), Some(CpuSet::from_iter([last])));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let (wake, sleeps) = std::sync::mpsc::channel::<()>();
        let heir = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()).unwrap();
            let _ = sleeps.recv();
        });
        let heir_tid = told.recv().unwrap();
        for tid in [child.id(), heir_tid] {
            assert_eq!(affinity(tid), Some(CpuSet::from_iter([last])), "it inherits");
        }
        drop(held);
        for tid in [own, child.id(), heir_tid] {
            assert_eq!(affinity(tid), Some(all.clone()));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        drop(wake);
        heir.join().unwrap();
    }

    #[test]
    fn a_seat_tells_who_sleeps() {
        let (tell, told) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()).unwrap();
            std::thread::park();
        });
        let tid = told.recv().unwrap();
        while seat(tid).is_some_and(|seat| seat.running) {
            std::thread::yield_now();
        }
        other.thread().unpark();
        other.join().unwrap();
        let own = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        assert!(seat(own).is_some_and(|seat| seat.running));
        assert!(seat(u32::MAX / 4).is_none());
    }
}
