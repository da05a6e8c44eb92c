//! Counters of what locks do when they cannot just be taken. Off unless switched on; nothing of it is
//! on the paths without contention, except where a face counts acquisitions itself.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Event {
    /// A contended acquisition: one that did not get the lock at the first attempt.
    Contended,
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
}

/// Number of kinds of events.
const KINDS: usize = 6;

static ON: AtomicBool = AtomicBool::new(false);
static COUNTS: [AtomicU64; KINDS] = [const { AtomicU64::new(0) }; KINDS];
static WAITED_NS: AtomicU64 = AtomicU64::new(0);
static LONGEST_NS: AtomicU64 = AtomicU64::new(0);

/// The counters of all locks of the process since counting was switched on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Acquisitions that did not get the lock at once.
    pub contended: u64,
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
    /// Time that contended acquisitions took together, ns.
    pub waited_ns: u64,
    /// The longest of them, ns.
    pub longest_ns: u64,
}

/// Switches counting on or off.
pub fn enable(on: bool) {
    ON.store(on, Ordering::Relaxed);
}

/// What has been counted.
pub fn read() -> Stats {
    let of = |event: Event| COUNTS[event as usize].load(Ordering::Relaxed);
    Stats {
        contended: of(Event::Contended),
        parks: of(Event::Park),
        kicks: of(Event::Kick),
        early: of(Event::Early),
        wasted: of(Event::Wasted),
        timed_out: of(Event::TimedOut),
        waited_ns: WAITED_NS.load(Ordering::Relaxed),
        longest_ns: LONGEST_NS.load(Ordering::Relaxed),
    }
}

/// Whether somebody counts.
#[inline]
pub(crate) fn on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Counts one event.
#[inline]
pub(crate) fn count(event: Event) {
    if on() {
        COUNTS[event as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts one contended acquisition that took so long.
#[cfg(not(loom))]
pub(crate) fn waited(ns: u64) {
    count(Event::Contended);
    WAITED_NS.fetch_add(ns, Ordering::Relaxed);
    LONGEST_NS.fetch_max(ns, Ordering::Relaxed);
}
