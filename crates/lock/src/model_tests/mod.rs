//! The algorithm under models of memory and scheduling: scenarios, and what plants a bug.
//!
//! * `loom.rs`: two and three threads, every order of their steps up to a number of preemptions, every value that a
//!   relaxed load may see. Run by `scripts/loom`.
//! * `shuttle.rs`: eight threads in random orders, memory sequentially consistent. Run by `scripts/shuttle`.
//!
//! Each seeded bug must be found: as a deadlock (a lost wake-up), as a race on what the lock protects, or as
//! a wrong result.

#[cfg(loom)]
mod loom;
#[cfg(shuttle)]
mod shuttle;

use crate::bug::{Bug, catches};
use crate::deadline::Deadline;
use crate::place::Place;
use crate::policy::{Policy, Spin, Wake};
use crate::raw::Raw;
use crate::sys::model::{sync::Arc, thread};
use crate::sys::{AtomicU32, Ordering};

const FIFO: Policy = Policy { bypasses: 0, spin: Spin::Measured, wake: Wake::Always(1) };
const EARLY: Policy = Policy { bypasses: 0, spin: Spin::Measured, wake: Wake::Always(2) };
const BYPASS: Policy = Policy { bypasses: 1, spin: Spin::Measured, wake: Wake::Always(1) };

struct Shared {
    word: AtomicU32,
    place: Place,
    policy: Policy,
    count: Protected,
}

impl Shared {
    fn new(policy: Policy, room: u32) -> Arc<Shared> {
        let (word, count) = (AtomicU32::new(0), Protected::new());
        let mut place = Place::new();
        place.room = room;
        Arc::new(Shared { word, place, policy, count })
    }

    fn raw(&self) -> Raw<'_> {
        Raw { word: &self.word, place: &self.place, policy: &self.policy, free: 0, counted: true }
    }

    fn critical(&self) {
        self.count.add_one();
    }

    /// It always gets the lock.
    fn turn(&self) -> bool {
        self.raw().lock(None).unwrap();
        self.critical();
        self.raw().unlock();
        true
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
        assert_eq!(self.count.get(), turns);
        self.raw().unlock();
        assert!(self.place.given_up.is_empty());
    }
}

/// What the lock protects: loom reports a race on it.
#[cfg(loom)]
struct Protected(::loom::cell::UnsafeCell<u32>);

#[cfg(loom)]
impl Protected {
    fn new() -> Protected {
        Protected(::loom::cell::UnsafeCell::new(0))
    }

    fn add_one(&self) {
        // SAFETY: loom checks that nobody else does this at the same time.
        self.0.with_mut(|count| unsafe { *count += 1 });
    }

    fn get(&self) -> u32 {
        // SAFETY: as above.
        self.0.with(|count| unsafe { *count })
    }
}

// SAFETY: it is only touched with the lock; loom reports it where that is not so.
#[cfg(loom)]
unsafe impl Sync for Protected {}
// SAFETY: as above.
#[cfg(loom)]
unsafe impl Send for Protected {}

/// What the lock protects: two at once lose a count, since others may run between its two steps.
#[cfg(shuttle)]
struct Protected(AtomicU32);

#[cfg(shuttle)]
impl Protected {
    fn new() -> Protected {
        Protected(AtomicU32::new(0))
    }

    fn add_one(&self) {
        let count = self.get();
        self.0.store(count + 1, Ordering::Relaxed);
    }

    fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// `turns[0]` turns by this thread, the others by one thread each.
fn turns(policy: Policy, turns: &'static [u32]) -> impl Fn() + Sync + Send + 'static {
    crowd(policy, turns, 1023)
}

/// The same with a line that has room for so many.
fn crowd(policy: Policy, turns: &'static [u32], room: u32) -> impl Fn() + Sync + Send + 'static {
    move || {
        let shared = Shared::new(policy, room);
        let all = |shared: &Shared, n: u32| (0..n).for_each(|_| assert!(shared.turn()));
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

/// The times of `late` threads run out while another holds the lock and `behind` more may be in line.
fn late(policy: Policy, late: u32, behind: u32) -> impl Fn() + Sync + Send + 'static {
    late_crowd(policy, late, behind, 1023)
}

/// The same with a line that has room for so many.
fn late_crowd(policy: Policy, late: u32, behind: u32, room: u32) -> impl Fn() + Sync + Send + 'static {
    move || {
        let shared = Shared::new(policy, room);
        shared.raw().lock(None).unwrap();
        let spawn = |turn: fn(&Shared) -> bool| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || u32::from(turn(&shared)))
        };
        let mut all: Vec<_> = (0..late).map(|_| spawn(Shared::late_turn)).collect();
        all.extend((0..behind).map(|_| spawn(Shared::turn)));
        shared.critical();
        shared.raw().unlock();
        let turns: u32 = all.into_iter().map(|thread| thread.join().unwrap()).sum();
        shared.settled(1 + turns);
    }
}

/// A test that plants one bug and expects it to be found in this way.
macro_rules! caught {
    ($test:ident, $bug:ident, $how:expr, $scenario:expr) => {
        #[test]
        fn $test() {
            let test = concat!(module_path!(), "::", stringify!($test));
            catches(Bug::$bug, &[$how], test.split_once("::").unwrap().1, || check($scenario));
        }
    };
}
use caught;
