//! Which configurations of a program are run under a condition.

use std::fmt;
use std::time::Duration;

use super::conditions::{Condition, candidates};
use super::programs::{Kind, Program};

/// How a program is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Config {
    /// As it is.
    Default,
    /// With `OMP_WAIT_POLICY=passive`.
    Passive,
    /// By `corefit run`.
    Corefit,
    /// With a fixed number of threads. (In `step`: on all CPUs from beginning to end.)
    Fixed {
        /// That number.
        threads: u32,
        /// Whether the policy is passive too.
        passive: bool,
    },
    /// In `step`: with one thread on one CPU from beginning to end.
    One,
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Config::Default => f.write_str("default"),
            Config::Passive => f.write_str("passive"),
            Config::Corefit => f.write_str("corefit"),
            Config::Fixed { threads, passive: false } => write!(f, "{threads}"),
            Config::Fixed { threads, passive: true } => write!(f, "{threads} passive"),
            Config::One => f.write_str("1 on 1"),
        }
    }
}

/// The configurations of a program under a condition on `cpus` CPUs.
///
/// A single thread waits for nobody, so it is not run a second time with the passive policy;
/// and where the default is as many threads as one of the fixed counts, it is that one. The
/// unsafe programs are there for their results: nobody asks for their best thread count.
pub(super) fn configs(condition: Condition, program: Program, cpus: u32) -> Vec<Config> {
    let mut configs = vec![Config::Default, Config::Passive, Config::Corefit];
    if program.kind == Kind::Unsafe {
        return configs;
    }
    for threads in candidates(cpus) {
        let is_default = threads == condition.default_threads(cpus);
        if is_default && condition != Condition::Step {
            continue;
        }
        configs.push(Config::Fixed { threads, passive: false });
        if threads > 1 && program.kind == Kind::OpenMp {
            configs.push(Config::Fixed { threads, passive: true });
        }
    }
    if condition == Condition::Step {
        configs.push(Config::One);
    }
    configs
}

/// How long a run may take: the limit, but longer for the default of lu where its factor is a target.
pub(super) fn limit(limit: Duration, condition: Condition, program: Program, config: Config) -> Duration {
    /// 150 s for the usual 60 s.
    const LU: f64 = 2.5;
    match (condition, program.name, config) {
        (Condition::Sees16, "lu", Config::Default) => limit.mul_f64(LU),
        _ => limit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::overcommit::programs::PROGRAMS;

    fn program(name: &str) -> Program {
        *PROGRAMS.iter().find(|p| p.name == name).unwrap()
    }

    fn fixed(threads: u32, passive: bool) -> Config {
        Config::Fixed { threads, passive }
    }

    #[test]
    fn every_count_has_both_policies_where_the_default_is_none_of_them() {
        let all = configs(Condition::Sees16, program("cg"), 2);
        let expected = [fixed(1, false), fixed(2, false), fixed(2, true)];
        assert_eq!(all[..3], [Config::Default, Config::Passive, Config::Corefit]);
        assert_eq!(all[3..], expected);
    }

    #[test]
    fn the_default_is_not_run_twice() {
        let all = configs(Condition::Quota, program("cg"), 2);
        assert_eq!(all[3..], [fixed(1, false)]);
        let all = configs(Condition::Quota, program("cg"), 3);
        assert_eq!(all[3..], [fixed(1, false), fixed(2, false), fixed(2, true)]);
    }

    #[test]
    fn a_step_needs_the_rates_of_both_phases() {
        let all = configs(Condition::Step, program("cg"), 2);
        let expected = [fixed(1, false), fixed(2, false), fixed(2, true), Config::One];
        assert_eq!(all[3..], expected);
    }

    #[test]
    fn a_program_without_openmp_has_no_wait_policy_and_an_unsafe_one_no_oracle() {
        let all = configs(Condition::Sees16, program("pipeline"), 2);
        assert_eq!(all[3..], [fixed(1, false), fixed(2, false)]);
        assert_eq!(configs(Condition::Step, program("unsafe_tp"), 2).len(), 3);
    }

    #[test]
    fn only_the_default_of_lu_where_it_sees_16_may_take_longer() {
        let minute = Duration::from_secs(60);
        let of = |condition, name, config| limit(minute, condition, program(name), config);
        let lu = of(Condition::Sees16, "lu", Config::Default);
        assert_eq!(lu, Duration::from_secs(150));
        assert_eq!(of(Condition::Sees16, "lu", Config::Corefit), minute);
        assert_eq!(of(Condition::Quota, "lu", Config::Default), minute);
        assert_eq!(of(Condition::Sees16, "ua", Config::Default), minute);
    }
}
