//! The Rust face: a raw mutex for `lock_api`, and the mutexes made of it.

use std::marker::PhantomData;
use std::time::{Duration, Instant};

use crate::deadline::Deadline;
use crate::place::Place;
use crate::policy::Policy;
use crate::raw::{Raw, release_free, take_free};
use crate::stats::{self, Event};
use crate::sys::{self, AtomicU32};

/// A policy as a type.
pub trait Preset {
    /// The settings.
    const POLICY: Policy;
}

/// [`Policy::DEFAULT`].
#[derive(Debug)]
pub struct Default;
/// [`Policy::FIFO`].
#[derive(Debug)]
pub struct Fifo;
/// [`Policy::PAPER`].
#[derive(Debug)]
pub struct Paper;

impl Preset for Default {
    const POLICY: Policy = Policy::DEFAULT;
}
impl Preset for Fifo {
    const POLICY: Policy = Policy::FIFO;
}
impl Preset for Paper {
    const POLICY: Policy = Policy::PAPER;
}

/// Four bytes, all zero when nobody has it.
#[derive(Debug)]
#[repr(transparent)]
pub struct RawMutex<P: Preset = Default> {
    word: AtomicU32,
    policy: PhantomData<P>,
}

/// A mutex that a running thread may take at most 192 times before the waiter at the head gets it.
pub type Mutex<T> = lock_api::Mutex<RawMutex<Default>, T>;
/// Its guard.
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawMutex<Default>, T>;
/// A mutex that serves strictly in the order of tickets.
pub type FifoMutex<T> = lock_api::Mutex<RawMutex<Fifo>, T>;

impl<P: Preset> RawMutex<P> {
    fn raw(&self) -> Raw<'_> {
        Raw { word: &self.word, place: Place::shared(), policy: &P::POLICY, free: 0, counted: true }
    }

    #[cold]
    #[inline(never)]
    fn lock_slow(&self, deadline: Option<Deadline>) -> bool {
        contended(self.raw(), deadline)
    }

    #[cold]
    #[inline(never)]
    fn unlock_slow(&self) {
        self.raw().unlock();
    }
}

/// Locks, and counts if somebody wants to know.
pub(crate) fn contended(raw: Raw<'_>, deadline: Option<Deadline>) -> bool {
    if !raw.counted || !stats::on() {
        return raw.lock(deadline).is_ok();
    }
    let start = sys::now();
    let got = raw.lock(deadline);
    match got {
        Ok(slept) => stats::waited(sys::now().saturating_sub(start), slept),
        Err(_) => stats::count(Event::TimedOut),
    }
    got.is_ok()
}

// SAFETY: the lock excludes: a thread has it from the step that sets HELD, which only a word without
// HELD allows, until its own release clears it (`tests/model.rs`, and under loom with its orderings).
unsafe impl<P: Preset> lock_api::RawMutex for RawMutex<P> {
    #[allow(clippy::declare_interior_mutable_const, reason = "lock_api asks for it")]
    const INIT: Self = RawMutex { word: AtomicU32::new(0), policy: PhantomData };

    type GuardMarker = lock_api::GuardSend;

    #[inline]
    fn lock(&self) {
        if !take_free(&self.word, 0) {
            self.lock_slow(None);
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        take_free(&self.word, 0) || self.raw().try_lock()
    }

    #[inline]
    unsafe fn unlock(&self) {
        if !release_free(&self.word, 0) {
            self.unlock_slow();
        }
    }

    fn is_locked(&self) -> bool {
        crate::word::Word::<10>(self.word.load(sys::Ordering::Relaxed)).held()
    }
}

// SAFETY: a timed wait that has returned false has left the line or handed its ticket to the next
// release (`given_up.rs`), and holds nothing.
unsafe impl<P: Preset> lock_api::RawMutexTimed for RawMutex<P> {
    type Duration = Duration;
    type Instant = Instant;

    fn try_lock_for(&self, timeout: Duration) -> bool {
        if take_free(&self.word, 0) {
            return true;
        }
        let ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        self.lock_slow(Some(Deadline::monotonic(sys::now().saturating_add(ns))))
    }

    fn try_lock_until(&self, timeout: Instant) -> bool {
        self.try_lock_for(timeout.saturating_duration_since(Instant::now()))
    }
}
