//! The lock on four bytes that somebody else keeps: what the C face and the pthread face are made of.

use crate::deadline::Deadline;
use crate::mutex::contended;
use crate::place::Place;
use crate::policy::Policy;
use crate::raw::{Raw, release_free, take_free};
use crate::sys::AtomicU32;
use crate::word::{GIVEN_UP, MOST_BYPASSES};

/// A lock with [`Policy::DEFAULT`] in four bytes that hold `FREE` while nobody has it: 0, or [`SPIN`]. What its waiters do is
/// counted (`stats.rs`) if it is `COUNTED`.
#[derive(Clone, Copy, Debug)]
pub struct Face<'a, const FREE: u32 = 0, const COUNTED: bool = true>(pub &'a AtomicU32);

/// The free value of a pthread spinlock of ours. The C library's are 1, 0 and, with n threads spinning,
/// down to about -n; ours always have this bit, which no lock without timed waits needs, and are never
/// -4096 to -1, for no lock without a line has bypasses ([`Face::is_ours`]).
pub const SPIN: u32 = GIVEN_UP;

impl Face<'_, SPIN> {
    /// Whether the spinlock is of our kind, and not of the C library's.
    #[must_use]
    pub fn is_ours(self) -> bool {
        let value = self.0.load(std::sync::atomic::Ordering::Relaxed);
        value & SPIN != 0 && value < !((MOST_BYPASSES << 3) | 7)
    }
}

impl<'a, const FREE: u32, const COUNTED: bool> Face<'a, FREE, COUNTED> {
    /// Takes the lock, waiting for it as long as it takes.
    #[inline(always)]
    pub fn lock(self) {
        if !take_free(self.0, FREE) {
            self.wait();
        }
    }

    /// Takes the lock if it can be had at once.
    #[inline(always)]
    #[must_use]
    pub fn try_lock(self) -> bool {
        take_free(self.0, FREE) || self.raw().try_lock()
    }

    /// Waits until the deadline; whether it has the lock. The deadline is called for only if the lock is
    /// not free, and may say that there will be no wait.
    ///
    /// # Errors
    /// What `deadline` says.
    pub fn try_lock_until<E>(self, deadline: impl FnOnce() -> Result<Deadline, E>) -> Result<bool, E> {
        Ok(self.try_lock() || contended(self.raw(), Some(deadline()?)))
    }

    /// Releases the lock. Whoever gets it next may free its memory: only its address is used then.
    #[inline(always)]
    pub fn unlock(self) {
        if !release_free(self.0, FREE) {
            self.hand_over();
        }
    }

    /// Whether somebody has the lock or waits for it.
    #[must_use]
    pub fn is_busy(self) -> bool {
        self.0.load(std::sync::atomic::Ordering::Relaxed) != FREE
    }

    fn raw(self) -> Raw<'a> {
        Raw { word: self.0, place: Place::shared(), policy: &Policy::DEFAULT, free: FREE, counted: COUNTED }
    }

    #[cold]
    #[inline(never)]
    fn wait(self) {
        contended(self.raw(), None);
    }

    #[cold]
    #[inline(never)]
    fn hand_over(self) {
        self.raw().unlock();
    }
}
