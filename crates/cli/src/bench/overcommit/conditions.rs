//! The conditions under which programs are measured.

use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;

use crate::bench::arena::{Arena, Neighbour, Quota};
use crate::named;

/// CPUs that a runtime believes in under [`Condition::Sees16`].
pub(super) const SEEN: u32 = 16;

/// One condition; the order is that of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[value(rename_all = "snake_case")]
#[serde(rename_all = "snake_case")]
pub(super) enum Condition {
    /// The runtime believes in 16 CPUs (build/workloads/libseecpus.so)
    #[value(name = "sees_16")]
    #[serde(rename = "sees_16")]
    Sees16,
    /// A group of equal weight beside the program has one busy loop per CPU
    Neighbour,
    /// The group of the program has a quota of half the CPUs
    Quota,
    /// All CPUs, then one, then all again, each for about a third of the work
    Step,
    /// An idle machine: what corefit costs
    NothingShort,
}

impl Condition {
    /// Its name in options and in JSON.
    pub(super) fn name(self) -> String {
        named::name(self)
    }

    /// Makes it so on these CPUs until what comes back is dropped.
    pub(super) fn hold(self, arena: &Arena, cpus: u32) -> Result<(Option<Quota<'_>>, Option<Neighbour>)> {
        Ok(match self {
            Condition::Neighbour => (None, Some(arena.neighbour()?)),
            Condition::Quota => (Some(arena.quota(half_quota_us(cpus))?), None),
            _ => (None, None),
        })
    }

    /// Threads that a runtime starts by default on `cpus` CPUs: neither libgomp nor libomp
    /// knows of quotas and neighbours.
    pub(super) fn default_threads(self, cpus: u32) -> u32 {
        match self {
            Condition::Sees16 => SEEN,
            _ => cpus,
        }
    }
}

/// The thread counts that are tried as fixed ones on `cpus` CPUs: every one up to 8, beyond
/// that powers of two, one CPU left free, and all.
pub(super) fn candidates(cpus: u32) -> Vec<u32> {
    if cpus <= 8 {
        return (1..=cpus).collect();
    }
    let powers = (0..).map(|n| 1 << n).take_while(|n| *n < cpus - 1);
    powers.chain([cpus - 1, cpus]).collect()
}

/// The quota of half of `cpus` CPUs, us in every 100 ms.
pub(super) fn half_quota_us(cpus: u32) -> u64 {
    u64::from(cpus) * 100_000 / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_same_in_options_and_json() {
        for condition in Condition::value_variants() {
            let value = condition.to_possible_value().unwrap();
            assert_eq!(value.get_name(), condition.name());
        }
    }

    #[test]
    fn every_count_is_tried_on_small_machines_and_few_on_large_ones() {
        assert_eq!(candidates(1), [1]);
        assert_eq!(candidates(3), [1, 2, 3]);
        assert_eq!(candidates(9), [1, 2, 4, 8, 9]);
        assert_eq!(candidates(17), [1, 2, 4, 8, 16, 17]);
        assert_eq!(candidates(64), [1, 2, 4, 8, 16, 32, 63, 64]);
    }
}
