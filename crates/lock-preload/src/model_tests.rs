//! The lines of condition variables under loom: every order of two and three threads up to some preemptions. Run by
//! `scripts/loom`. A seeded bug has to be found: as a deadlock (a lost signal), or as a use of memory that may be gone.

use loom::sync::atomic::AtomicU32;
use loom::sync::{Arc, Mutex};
use loom::thread;

use crate::bug::{Bug, catches, planted};
use crate::queue::{self, Waiter};
use crate::sys::{Cond, Ordering};

/// A condition variable with what is waited for: that there is something to take.
struct Shared {
    cond: Cond,
    there: Mutex<u32>,
}

/// How a wait ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    BySignal,
    InTime,
    Cancelled,
}

impl Shared {
    fn new() -> Arc<Shared> {
        Arc::new(Shared { cond: Cond { waiting: AtomicU32::new(0) }, there: Mutex::new(0) })
    }

    /// As `cond.rs` waits, with loom's mutex. Whether it took something.
    fn wait(&self, ends: Ends) -> bool {
        let mut there = self.there.lock().unwrap();
        while *there == 0 {
            // Not freed, so that a bug is a report of loom's and not a crash.
            let waiter: *mut Waiter = Box::leak(Box::new(Waiter::new(&raw const self.cond)));
            // SAFETY: the waiter stays; it enters once and leaves once.
            let late = unsafe {
                if planted(Bug::CountAfterRelease) {
                    drop(there);
                    queue::enter(waiter);
                } else {
                    queue::enter(waiter);
                    drop(there);
                }
                let late = match ends {
                    Ends::BySignal => {
                        (*waiter).token.take();
                        queue::sleep_over(waiter, true)
                    }
                    Ends::InTime => queue::sleep_over(waiter, false),
                    Ends::Cancelled => {
                        queue::give_up(waiter);
                        true
                    }
                };
                (*waiter).token.goes();
                late
            };
            there = self.there.lock().unwrap();
            if late {
                return false;
            }
        }
        *there -= 1;
        true
    }

    /// Puts something there, and says so to one.
    fn put(&self) {
        *self.there.lock().unwrap() += 1;
        queue::signal(&self.cond);
    }

    /// Nobody waits: nobody is counted.
    fn settled(&self) {
        assert_eq!(self.cond.waiting.load(Ordering::Relaxed), 0);
    }
}

fn spawn(shared: &Arc<Shared>, ends: Ends) -> thread::JoinHandle<bool> {
    let shared = Arc::clone(shared);
    thread::spawn(move || shared.wait(ends))
}

/// One waits; the other puts something there.
fn one_waits() {
    let shared = Shared::new();
    let waiter = spawn(&shared, Ends::BySignal);
    shared.put();
    assert!(waiter.join().unwrap());
    shared.settled();
}

/// The condition variable is destroyed as soon as the only one that waited for it has been told.
fn destroyed_at_once() {
    let shared = Shared::new();
    let waiter = spawn(&shared, Ends::BySignal);
    shared.put_with_the_mutex();
    shared.cond_goes();
    assert!(waiter.join().unwrap());
}

impl Shared {
    /// Who comes after this finds something there, and does not wait.
    fn put_with_the_mutex(&self) {
        let mut there = self.there.lock().unwrap();
        *there += 1;
        queue::signal(&self.cond);
    }

    /// Loom reports who touches it at the same time or later.
    fn cond_goes(&self) {
        queue::destroy(&self.cond);
        // SAFETY: nothing but what loom checks: that nobody uses it at the same time.
        unsafe { (*(&raw const self.cond.waiting).cast_mut()).with_mut(|_| ()) };
    }
}

/// All are told at once.
fn two_wait_for_a_broadcast() {
    let shared = Shared::new();
    let waiters = [spawn(&shared, Ends::BySignal), spawn(&shared, Ends::BySignal)];
    *shared.there.lock().unwrap() += 2;
    queue::broadcast(&shared.cond);
    assert!(waiters.into_iter().all(|w| w.join().unwrap()));
    shared.settled();
}

/// One's time is over, one waits; two things come.
fn one_of_two_is_late() {
    let shared = Shared::new();
    let (late, waiter) = (spawn(&shared, Ends::InTime), spawn(&shared, Ends::BySignal));
    shared.put();
    shared.put();
    assert!(waiter.join().unwrap());
    late.join().unwrap();
    shared.settled();
}

/// One is cancelled, one waits; one thing comes, and if the cancelled one did not take it without waiting, it is the other's.
fn one_of_two_is_cancelled() {
    let shared = Shared::new();
    let waiter = spawn(&shared, Ends::BySignal);
    let other = Arc::clone(&shared);
    let cancelled = thread::spawn(move || {
        if other.wait(Ends::Cancelled) {
            other.put();
        }
    });
    shared.put();
    assert!(waiter.join().unwrap());
    cancelled.join().unwrap();
    shared.settled();
}

fn explore(scenario: impl Fn() + Sync + Send + 'static, preemptions: usize) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(scenario);
}

#[test]
fn nobody_sleeps_through_a_signal() {
    explore(one_waits, 4);
}

#[test]
fn a_condition_variable_may_go_when_nobody_waits_any_more() {
    explore(destroyed_at_once, 4);
}

#[test]
fn a_broadcast_reaches_all() {
    explore(two_wait_for_a_broadcast, 2);
}

#[test]
fn who_is_late_takes_no_signal_from_others() {
    explore(one_of_two_is_late, 2);
}

#[test]
fn who_is_cancelled_passes_its_signal_on() {
    explore(one_of_two_is_cancelled, 2);
}

const LOST: &str = "deadlock";
const GONE: &str = "Causality violation";

/// A test that plants one bug, in a process of its own, which has to fail in this way.
macro_rules! caught {
    ($test:ident, $bug:ident, $how:expr, $scenario:expr) => {
        #[test]
        fn $test() {
            let name = concat!(module_path!(), "::", stringify!($test));
            catches(Bug::$bug, &$how, name.split_once("::").unwrap().1, || explore($scenario, 2));
        }
    };
}

caught!(a_token_that_is_not_waited_for, TokenNotTaken, [GONE], one_of_two_is_late);
caught!(a_signal_that_is_not_passed_on, NotPassedOn, [LOST], one_of_two_is_cancelled);
caught!(leaving_a_line_without_a_look, LeaveWithoutLook, [LOST, GONE, "assertion"], one_of_two_is_late);
caught!(touching_what_may_be_gone, WaiterTouchesCond, [GONE], destroyed_at_once);
caught!(counting_after_the_release, CountAfterRelease, [LOST], one_waits);
