//! Units: one type per quantity, so that a weight is never taken for a CPU count.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A point in time: nanoseconds since the machine's own epoch (on Linux, boot).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(pub u64);

impl Time {
    /// Time passed since `earlier`; zero when `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, d: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Time {
    type Output = Time;
    fn sub(self, d: Duration) -> Time {
        Time(self.0.saturating_sub(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// An amount of processing capacity, in whole CPUs (1.0 = one CPU all the time).
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cpus(pub f64);

impl Cpus {
    /// The smaller of two amounts.
    #[must_use]
    pub fn min(self, other: Cpus) -> Cpus {
        Cpus(self.0.min(other.0))
    }

    /// The larger of two amounts.
    #[must_use]
    pub fn max(self, other: Cpus) -> Cpus {
        Cpus(self.0.max(other.0))
    }
}

impl Add for Cpus {
    type Output = Cpus;
    fn add(self, other: Cpus) -> Cpus {
        Cpus(self.0 + other.0)
    }
}

impl Sub for Cpus {
    type Output = Cpus;
    fn sub(self, other: Cpus) -> Cpus {
        Cpus(self.0 - other.0)
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.*}", f.precision().unwrap_or(2), self.0)
    }
}

/// A scheduling weight. Only ratios between weights of one level mean something:
/// cgroup v1 `cpu.shares` (2 to 262144, default 1024), v2 `cpu.weight` (1 to 10000, default 100).
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Weight(pub f64);

/// The number of a CPU as the operating system counts them, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CpuId(pub u32);

/// A number of things as an amount; exact below 2^53.
pub(crate) fn count(n: usize) -> f64 {
    n as f64
}
