//! Saving what is left of a quota for later periods: `cpu.max.burst` (Linux 5.14; Documentation/scheduler/sched-bwc.rst).
//!
//! b = min(q, b + stopped / hit): of a period that ran out, what was missing on average is added to what may be saved. The
//! kernel takes no more than the quota. Over n periods nobody gets more than n q + b.

use super::{Slices, Timeslices, Wish};
use crate::machine::Limit;

/// Bursts are whole multiples of this, µs: less is not worth a change. Ours.
const STEP_US: u64 = 1000;

/// Larger bursts for the limits that lose at least `worth` of what they allot.
#[must_use]
pub(crate) fn saved(seen: &Timeslices, worth: f64) -> Vec<Wish> {
    seen.limits.iter().filter_map(|slices| one(slices, worth)).collect()
}

fn one(slices: &Slices, worth: f64) -> Option<Wish> {
    let &Slices { lever, limit, quota_us, stopped, hit, .. } = slices;
    #[expect(clippy::cast_precision_loss, reason = "microseconds of a period")]
    let (quota, burst) = (quota_us as f64, limit.burst_us as f64);
    let lost = slices.lost();
    if lost <= 0.0 || lost < worth * quota {
        return None;
    }
    // A window may begin stopped, without a period that ended so.
    let missing = if hit > 0.0 { stopped / hit } else { quota };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most the quota")]
    let wanted = (burst + missing).min(quota).max(0.0) as u64;
    let burst_us = wanted.next_multiple_of(STEP_US).min(quota_us);
    (burst_us > limit.burst_us).then_some(Wish { lever, from: limit, to: Limit { burst_us, ..limit } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Lever;

    fn seen(used: f64, stopped: f64, hit: f64, burst_us: u64) -> Timeslices {
        let limit = Limit { quota_us: Some(20_000), period_us: 100_000, burst_us };
        let slices = Slices {
            lever: Lever::Quota,
            limit,
            quota_us: 20_000,
            vcpus: 1,
            used,
            stopped,
            hit,
            fixed: false,
        };
        Timeslices { limits: vec![slices], ..Timeslices::default() }
    }

    fn burst(seen: &Timeslices) -> Option<u64> {
        saved(seen, 0.05).first().map(|wish| wish.to.burst_us)
    }

    #[test]
    fn what_a_period_missed_is_saved_for_it() {
        // A tenth of the periods were stopped for 10.4 ms each on average, 12 of 20 ms were used.
        assert_eq!(burst(&seen(12_000.0, 1_040.0, 0.1, 0)), Some(11_000));
        assert_eq!(
            burst(&seen(12_000.0, 1_040.0, 0.1, 6_000)),
            Some(17_000),
            "and more if that was not enough"
        );
        assert_eq!(burst(&seen(12_000.0, 8_000.0, 0.1, 0)), Some(20_000), "no more than the quota");
        assert_eq!(burst(&seen(12_000.0, 8_000.0, 0.1, 20_000)), None);
        assert_eq!(burst(&seen(12_000.0, 1_500.0, 0.0, 0)), Some(20_000));
    }

    #[test]
    fn nothing_is_saved_where_nothing_is_lost() {
        assert_eq!(burst(&seen(20_000.0, 80_000.0, 1.0, 0)), None, "always stopped: nothing is left");
        assert_eq!(burst(&seen(5_000.0, 0.0, 0.0, 0)), None, "never stopped");
        assert_eq!(burst(&seen(19_500.0, 900.0, 0.5, 0)), None, "2 %");
    }
}
