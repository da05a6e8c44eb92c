//! The end of a timed wait.

use crate::sys;

/// The clock that a deadline is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// CLOCK_MONOTONIC.
    Monotonic,
    /// CLOCK_REALTIME; a wait follows it where it is set.
    Realtime,
}

/// A point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// Its clock.
    pub clock: Clock,
    /// Nanoseconds on it.
    pub ns: u64,
}

impl Deadline {
    /// On CLOCK_MONOTONIC.
    #[must_use]
    pub fn monotonic(ns: u64) -> Deadline {
        Deadline { clock: Clock::Monotonic, ns }
    }

    /// Nanoseconds left; 0 if it has come.
    pub(crate) fn rest(self) -> u64 {
        self.ns.saturating_sub(sys::time(self.clock))
    }

    /// Whether it has come.
    pub(crate) fn over(self) -> bool {
        self.rest() == 0
    }
}
