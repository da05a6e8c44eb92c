//! Counters of what locks do. Off unless switched on: then every step of a wait costs one more load and a
//! branch, and nothing is added where there is no contention, except by a face that counts acquisitions.
//!
//! The counters are plain memory in shards, so that threads that count do not meet, and can lie in a page
//! that several processes share (`shared.rs`).

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Event {
    /// An acquisition; counted by the pthread face only.
    Acquired,
    /// A contended acquisition: one that did not get the lock at the first attempt.
    Contended,
    /// A contended acquisition whose waiter did not sleep.
    Spun,
    /// A waiter went to sleep.
    Park,
    /// A release woke a waiter.
    Kick,
    /// A waiter was woken before it was the head.
    Early,
    /// A waiter was woken and slept again before its turn came.
    Wasted,
    /// A timed wait ran out.
    TimedOut,
    /// A wait on a condition variable; counted by the pthread face only.
    CondWait,
    /// A process that loaded the pthread face.
    Process,
}

/// Number of kinds of events.
const KINDS: usize = 10;
/// Shards; a power of two.
const SHARDS: usize = 64;

/// Counters, all zero at first.
#[derive(Debug)]
#[repr(C)]
pub struct Counters {
    shards: [Shard; SHARDS],
}

#[derive(Debug)]
#[repr(C, align(128))]
struct Shard {
    counts: [AtomicU64; KINDS],
    waited_ns: AtomicU64,
    longest_ns: AtomicU64,
}

/// Where to count; null: nowhere.
static WHERE: AtomicPtr<Counters> = AtomicPtr::new(std::ptr::null_mut());

/// What has been counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Acquisitions, contended ones included.
    pub acquired: u64,
    /// Acquisitions that did not get the lock at once.
    pub contended: u64,
    /// Of those, acquisitions without a sleep.
    pub spun: u64,
    /// Sleeps.
    pub parks: u64,
    /// Wake-ups by releases.
    pub kicks: u64,
    /// Wake-ups of waiters that were not yet the head.
    pub early: u64,
    /// Wake-ups after which the waiter slept again.
    pub wasted: u64,
    /// Timed waits that ran out.
    pub timed_out: u64,
    /// Waits on condition variables.
    pub cond_waits: u64,
    /// Processes that loaded the pthread face.
    pub processes: u64,
    /// Time that contended acquisitions took together, ns.
    pub waited_ns: u64,
    /// The longest of them, ns.
    pub longest_ns: u64,
}

impl Counters {
    /// All zero.
    #[must_use]
    pub const fn new() -> Counters {
        Counters { shards: [const { Shard::new() }; SHARDS] }
    }

    /// The sum over all threads.
    #[must_use]
    pub fn sum(&self) -> Stats {
        let all =
            |of: fn(&Shard) -> &AtomicU64| self.shards.iter().map(move |s| of(s).load(Ordering::Relaxed));
        macro_rules! of {
            ($event:ident) => {
                all(|s| &s.counts[Event::$event as usize]).sum()
            };
        }
        Stats {
            acquired: of!(Acquired),
            contended: of!(Contended),
            spun: of!(Spun),
            parks: of!(Park),
            kicks: of!(Kick),
            early: of!(Early),
            wasted: of!(Wasted),
            timed_out: of!(TimedOut),
            cond_waits: of!(CondWait),
            processes: of!(Process),
            waited_ns: all(|s| &s.waited_ns).sum(),
            longest_ns: all(|s| &s.longest_ns).max().unwrap_or(0),
        }
    }

    /// Counts one event here.
    pub(crate) fn add(&self, event: Event) {
        self.shard().counts[event as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn shard(&self) -> &Shard {
        // SAFETY: always succeeds; the value is only hashed.
        let thread = unsafe { libc::pthread_self() } as u64;
        &self.shards[(thread.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % SHARDS]
    }
}

impl Shard {
    const fn new() -> Shard {
        Shard {
            counts: [const { AtomicU64::new(0) }; KINDS],
            waited_ns: AtomicU64::new(0),
            longest_ns: AtomicU64::new(0),
        }
    }
}

impl Default for Counters {
    fn default() -> Counters {
        Counters::new()
    }
}

/// Counts there from now on, or with `None` nowhere.
pub fn count_in(counters: Option<&'static Counters>) {
    let place = counters.map_or(std::ptr::null_mut(), |c| std::ptr::from_ref(c).cast_mut());
    WHERE.store(place, Ordering::Release);
}

/// Whether somebody counts.
#[inline(always)]
pub fn on() -> bool {
    !WHERE.load(Ordering::Relaxed).is_null()
}

/// Counts one event.
#[inline]
pub fn count(event: Event) {
    if on() {
        add(event);
    }
}

#[cold]
fn add(event: Event) {
    if let Some(counters) = place() {
        counters.add(event);
    }
}

fn place() -> Option<&'static Counters> {
    // SAFETY: null, or from a reference that lives for ever (`count_in`).
    unsafe { WHERE.load(Ordering::Acquire).as_ref() }
}

/// Counts one contended acquisition that took so long.
#[cfg(not(modelled))]
pub(crate) fn waited(ns: u64, slept: bool) {
    let Some(counters) = place() else { return };
    let shard = counters.shard();
    shard.counts[Event::Contended as usize].fetch_add(1, Ordering::Relaxed);
    if !slept {
        shard.counts[Event::Spun as usize].fetch_add(1, Ordering::Relaxed);
    }
    shard.waited_ns.fetch_add(ns, Ordering::Relaxed);
    shard.longest_ns.fetch_max(ns, Ordering::Relaxed);
}

/// Held by tests that wait for locks, for one of them counts that.
#[cfg(all(test, not(modelled)))]
pub(crate) static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[cfg(all(test, not(modelled)))]
mod tests {
    use super::*;
    use crate::Mutex;

    #[test]
    fn waits_are_counted_where_somebody_asked_for_it() {
        static HERE: Counters = Counters::new();
        let _alone = ALONE.lock();
        let lock = Mutex::new(());
        count_in(Some(&HERE));
        let guard = lock.lock();
        // Miri's clock runs so fast that spinning alone takes longer than 5 ms.
        let wait = std::time::Duration::from_millis(if cfg!(miri) { 1000 } else { 200 });
        assert!(lock.try_lock_for(wait).is_none());
        let late = HERE.sum();
        std::thread::scope(|scope| {
            scope.spawn(|| drop(lock.lock()));
            while HERE.sum().parks == late.parks {
                std::thread::yield_now();
            }
            drop(guard);
        });
        count_in(None);
        let stats = HERE.sum();
        assert_eq!(
            (late.timed_out, late.parks >= 1, late.contended, late.waited_ns),
            (1, true, 0, 0),
            "{late:?}"
        );
        assert_eq!((stats.timed_out, stats.contended, stats.spun), (1, 1, 0), "{stats:?}");
        assert!(stats.waited_ns > 0 && stats.longest_ns == stats.waited_ns, "{stats:?}");
        assert!(!on());
    }
}
