//! The oracle: what the best fixed thread count reaches, chosen afterwards.
//!
//! Where conditions stay the same, it is the best median of all fixed counts, and of the
//! default and the passive policy when they start one of those counts. In `step` no fixed
//! count is best all the time: the oracle is composed from the best rates that were measured
//! on all CPUs and on one CPU from beginning to end, and switches between them at the moment
//! of each step, free of cost, without ever being wrong. Nothing real reaches it.

use super::plan::Config;
use crate::stats::{Bound, Value};

/// What the oracle reaches, and how.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Oracle {
    pub(super) value: Value,
    /// The configurations that it is made of.
    pub(super) of: String,
}

/// The best of the medians; `threads` tells how many threads a configuration starts.
pub(super) fn best(
    medians: &[(Config, Value)],
    cpus: u32,
    threads: impl Fn(Config) -> Option<u32>,
) -> Option<Oracle> {
    let is_candidate = |config| match config {
        Config::Fixed { .. } => true,
        Config::Default | Config::Passive => threads(config).is_some_and(|n| n <= cpus),
        Config::Corefit | Config::One => false,
    };
    let (config, value) = least(medians.iter().filter(|(config, _)| is_candidate(*config)))?;
    Some(Oracle { value, of: config.to_string() })
}

/// The oracle of a step: all CPUs for `first_s`, one for `second_s`, then all again.
pub(super) fn composed(medians: &[(Config, Value)], first_s: f64, second_s: f64) -> Option<Oracle> {
    let fixed = |config: &Config| matches!(config, Config::Fixed { .. });
    let (config, all) = least(medians.iter().filter(|(config, _)| fixed(config)))?;
    let (_, one) = least(medians.iter().filter(|(config, _)| *config == Config::One))?;
    if all.bound != Bound::Exact || one.bound != Bound::Exact {
        return None;
    }
    Some(Oracle {
        value: Value::exact(compose(first_s, second_s, all.number, one.number)),
        of: format!("{config}, 1, {config}"),
    })
}

/// The time for work that takes `all_s` on all CPUs and `one_s` on one.
fn compose(first_s: f64, second_s: f64, all_s: f64, one_s: f64) -> f64 {
    let first = first_s / all_s; // part of the work
    if first >= 1.0 {
        return all_s;
    }
    let second = second_s / one_s;
    if first + second >= 1.0 {
        return first_s + (1.0 - first) * one_s;
    }
    first_s + second_s + (1.0 - first - second) * all_s
}

/// The least; of runs that were cut off only if there are no others.
fn least<'a>(medians: impl Iterator<Item = &'a (Config, Value)>) -> Option<(Config, Value)> {
    medians
        .min_by(|(_, a), (_, b)| {
            let cut_off = |v: &Value| v.bound != Bound::Exact;
            cut_off(a).cmp(&cut_off(b)).then(a.number.total_cmp(&b.number))
        })
        .copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Config = Config::Fixed { threads: 1, passive: false };
    const TWO: Config = Config::Fixed { threads: 2, passive: true };

    fn default_starts(n: u32) -> impl Fn(Config) -> Option<u32> {
        move |_| Some(n)
    }

    #[test]
    fn the_best_fixed_count_is_the_oracle_and_corefit_is_not_asked() {
        let medians = [
            (Config::Corefit, Value::exact(0.5)),
            (Config::Default, Value::exact(0.9)),
            (ONE, Value::exact(2.0)),
            (TWO, Value::exact(1.0)),
        ];
        let oracle = best(&medians, 2, default_starts(16)).unwrap();
        assert_eq!((oracle.value.number, oracle.of.as_str()), (1.0, "2 passive"));
    }

    #[test]
    fn the_default_counts_where_it_starts_a_fixed_count() {
        let medians = [(Config::Default, Value::exact(0.9)), (ONE, Value::exact(2.0))];
        let oracle = best(&medians, 2, default_starts(2)).unwrap();
        assert_eq!(oracle.of, "default");
        let oracle = best(&medians, 2, |_| None).unwrap();
        assert_eq!(oracle.of, "1", "unknown thread counts do not count");
    }

    #[test]
    fn a_cut_off_run_is_the_oracle_only_when_all_were() {
        let medians = [(ONE, Value::at_least(1.0)), (TWO, Value::exact(5.0))];
        assert_eq!(best(&medians, 2, |_| None).unwrap().of, "2 passive");
        let oracle = best(&medians[..1], 2, |_| None).unwrap();
        assert_eq!(oracle.value.bound, Bound::AtLeast);
        assert_eq!(best(&[], 2, |_| None), None);
    }

    #[test]
    fn a_step_composes_the_rates_of_its_phases() {
        // 3 s on all CPUs, 6 s on one: a third of the work in 1 s, another in 2 s.
        assert!((compose(1.0, 2.0, 3.0, 6.0) - 4.0).abs() < 1e-12);
        // The work ends in the second phase, or in the first.
        assert!((compose(1.0, 9.0, 3.0, 6.0) - 5.0).abs() < 1e-12);
        assert!((compose(4.0, 9.0, 3.0, 6.0) - 3.0).abs() < 1e-12);
    }

    #[test]
    fn a_step_without_one_of_its_rates_has_no_oracle() {
        let medians = [
            (TWO, Value::exact(3.0)),
            (ONE, Value::exact(6.1)),
            (Config::One, Value::exact(6.0)),
            (Config::Default, Value::exact(0.1)),
        ];
        let oracle = composed(&medians, 1.0, 2.0).unwrap();
        assert!((oracle.value.number - 4.0).abs() < 1e-12);
        assert_eq!(oracle.of, "2 passive, 1, 2 passive");
        assert_eq!(composed(&medians[..2], 1.0, 2.0), None);
        let cut = [(TWO, Value::exact(3.0)), (Config::One, Value::at_least(60.0))];
        assert_eq!(composed(&cut, 1.0, 2.0), None);
    }
}
