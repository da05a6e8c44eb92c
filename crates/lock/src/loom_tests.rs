//! The algorithm under loom: every order of two or three threads' steps (up to a number of
//! preemptions), every value that a relaxed load may see. Run by `scripts/loom`.
//!
//! Each seeded bug must be found by one of these: as a deadlock (a lost wake-up), as a race on what the
//! lock protects, or as a wrong result.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use crate::bug::{Bug, PLANTED};
use crate::deadline::Deadline;
use crate::place::Place;
use crate::policy::{Policy, Spin, Wake};
use crate::raw::Raw;
use crate::sys::{AtomicU32, Ordering};

const FIFO: Policy = Policy { bypasses: 0, spin: Spin::Measured, wake: Wake::Always(1) };
const EARLY: Policy = Policy { bypasses: 0, spin: Spin::Measured, wake: Wake::Always(2) };
const BYPASS: Policy = Policy { bypasses: 1, spin: Spin::Measured, wake: Wake::Always(1) };

struct Shared {
    word: AtomicU32,
    place: Place,
    policy: Policy,
    count: UnsafeCell<u32>,
}

// SAFETY: `count` is only touched with the lock; loom reports it where that is not so.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    fn new(policy: Policy) -> Arc<Shared> {
        let (word, count) = (AtomicU32::new(0), UnsafeCell::new(0));
        Arc::new(Shared { word, place: Place::new(), policy, count })
    }

    fn raw(&self) -> Raw<'_> {
        Raw { word: &self.word, place: &self.place, policy: &self.policy, free: 0 }
    }

    fn critical(&self) {
        // SAFETY: loom checks that nobody else does this at the same time.
        self.count.with_mut(|count| unsafe { *count += 1 });
    }

    fn turn(&self) {
        self.raw().lock(None).unwrap();
        self.critical();
        self.raw().unlock();
    }

    /// A wait whose time has run out before it begins; whether it got the lock all the same.
    fn late_turn(&self) -> bool {
        let got = self.raw().lock(Some(Deadline::monotonic(0))).is_ok();
        if got {
            self.critical();
            self.raw().unlock();
        }
        got
    }

    /// After all: nobody has the lock, nobody is in line, and every turn was counted.
    fn settled(&self, turns: u32) {
        assert_eq!(self.word.load(Ordering::Relaxed), 0);
        self.raw().lock(None).unwrap();
        // SAFETY: with the lock.
        assert_eq!(self.count.with(|count| unsafe { *count }), turns);
        self.raw().unlock();
        assert!(self.place.given_up.is_empty());
    }
}

/// `turns[0]` turns by this thread, the others by one thread each.
fn turns(policy: Policy, turns: &'static [u32]) -> impl Fn() + Sync + Send + 'static {
    move || {
        let shared = Shared::new(policy);
        let all = |shared: &Shared, n: u32| (0..n).for_each(|_| shared.turn());
        let handles: Vec<_> = turns[1..]
            .iter()
            .map(|n| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || all(&shared, *n))
            })
            .collect();
        all(&shared, turns[0]);
        handles.into_iter().for_each(|h| h.join().unwrap());
        shared.settled(turns.iter().sum());
    }
}

/// One thread's time runs out while another holds the lock and `behind` more may be in line.
fn late(policy: Policy, behind: usize) -> impl Fn() + Sync + Send + 'static {
    move || {
        let shared = Shared::new(policy);
        shared.raw().lock(None).unwrap();
        let late = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || u32::from(shared.late_turn()))
        };
        let others: Vec<_> = (0..behind)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.turn())
            })
            .collect();
        shared.critical();
        shared.raw().unlock();
        let got = late.join().unwrap();
        others.into_iter().for_each(|h| h.join().unwrap());
        shared.settled(1 + got + u32::try_from(behind).unwrap());
    }
}

fn check(preemptions: usize, scenario: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    let start = std::time::Instant::now();
    builder.check(scenario);
    println!("{preemptions} preemptions: {:.1} s", start.elapsed().as_secs_f64());
}

/// Runs `scenario` with the bug in a process of its own, which has to fail: loom may abort.
fn catches(bug: Bug, how: &str, test: &str, scenario: impl Fn() + Sync + Send + 'static) {
    const ROLE: &str = "COREFIT_LOOM_BUG";
    let name = format!("{bug:?}");
    match std::env::var(ROLE) {
        Ok(role) if role == name => {
            PLANTED.store(bug as u32, std::sync::atomic::Ordering::Relaxed);
            check(3, scenario);
        }
        Ok(_) => {}
        Err(_) => {
            let output = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "--nocapture", &format!("loom_tests::{test}")])
                .env(ROLE, &name)
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success(), "{name} went unnoticed");
            assert!(text.contains(how), "{name} was found, but not as {how}: {text}");
        }
    }
}

#[test]
fn two_threads_take_turns() {
    check(4, turns(FIFO, &[2, 2]));
    check(4, turns(BYPASS, &[2, 2]));
}

#[test]
fn three_threads_take_turns_in_order() {
    check(2, turns(FIFO, &[1, 1, 1]));
    check(2, turns(EARLY, &[1, 1, 1]));
}

#[test]
fn three_threads_take_turns_with_a_bypass() {
    check(2, turns(BYPASS, &[2, 1, 1]));
}

#[test]
fn who_runs_out_of_time_leaves_no_gap_in_the_line() {
    check(3, late(FIFO, 0));
    check(2, late(FIFO, 1));
    check(2, late(BYPASS, 1));
}

/// A test that plants one bug and expects it to be found in this way.
macro_rules! caught {
    ($test:ident, $bug:ident, $how:expr, $scenario:expr) => {
        #[test]
        fn $test() {
            catches(Bug::$bug, $how, stringify!($test), $scenario);
        }
    };
}

const LOST: &str = "deadlock";
const RACE: &str = "Causality violation";

caught!(a_missing_fence_before_the_re_read, NoFenceBeforeReread, LOST, turns(BYPASS, &[2, 2]));
caught!(a_missing_fence_after_the_release, NoFenceAfterRelease, LOST, turns(BYPASS, &[2, 2]));
caught!(a_missing_re_read, NoReread, LOST, turns(FIFO, &[1, 1]));
caught!(a_missing_slow_path_flag, NoParkedFlag, LOST, turns(FIFO, &[1, 1]));
caught!(sleeping_on_the_newest_value, SleepOnTheNewestValue, LOST, turns(FIFO, &[1, 1]));
caught!(waking_one_of_two_on_a_slot, WakeOneOfTheSlot, LOST, turns(FIFO, &[1, 1, 1]));
caught!(taking_without_acquire, TakeRelaxed, RACE, turns(BYPASS, &[2, 2]));
caught!(taking_ones_turn_without_acquire, GrantRelaxed, RACE, turns(FIFO, &[1, 1]));
caught!(releasing_without_release, ReleaseRelaxed, RACE, turns(FIFO, &[1, 1]));
caught!(passing_nobody_who_gave_up, NoReap, LOST, late(FIFO, 1));
caught!(giving_up_without_a_re_read, GiveUpWithoutReread, LOST, late(FIFO, 1));
caught!(entering_the_missing_after_the_flag, EnterAfterFlag, LOST, late(FIFO, 1));
caught!(looking_at_the_head_with_the_flag_set, ReapWithFlagSet, LOST, late(FIFO, 1));
