//! Longer allocation periods, for VMs that tolerate standing still (P1, IV-B).
//!
//! Over a longer period the same part of the CPUs is allotted, and what fluctuates within it is not lost. Who used its
//! quota up stands still for P - q / w, where w vCPUs use it at once. So P (1 - q / (w P)) is at most the latency that the
//! VM's owner tolerates. Counters do not tell at which time scale demand fluctuates: the period is doubled, and doubled
//! again if that brought something (`trial.rs`).

use super::{Slices, Timeslices, Wish};
use crate::machine::Limit;

/// The longest period that the kernel takes, µs (`max_cfs_quota_period`, kernel/sched/core.c).
const LONGEST_US: u64 = 1_000_000;
/// Less is not worth a change. Ours.
const LEAST_FACTOR: f64 = 1.25;

/// Twice as long periods for all limits of a VM, as far as `latency_ms` allows, if at least `worth` of what is
/// allotted is lost within them.
#[must_use]
pub(crate) fn longer(seen: &Timeslices, latency_ms: u64, worth: f64) -> Vec<Wish> {
    let lost = seen.lost_within();
    if lost <= 0.0 || lost < worth {
        return Vec::new();
    }
    seen.limits.iter().filter_map(|slices| one(slices, latency_ms)).collect()
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "microseconds, at most a second"
)]
fn one(slices: &Slices, latency_ms: u64) -> Option<Wish> {
    let &Slices { lever, limit, quota_us, vcpus, .. } = slices;
    let (period, quota) = (limit.period_us as f64, quota_us as f64);
    let share = quota / (period * f64::from(vcpus));
    if share >= 1.0 {
        return None; // it never stands still
    }
    let tolerated = latency_ms as f64 * 1000.0 / (1.0 - share);
    let to = (2.0 * period).min(tolerated).min(LONGEST_US as f64);
    if to < LEAST_FACTOR * period {
        return None;
    }
    // Rounded, it would be a larger part of the CPUs than a group above may have, which the kernel refuses.
    let period_us = to as u64;
    let longer = |us: u64| us.saturating_mul(period_us) / limit.period_us;
    let quota_us = longer(quota_us);
    let to = Limit { quota_us: Some(quota_us), period_us, burst_us: longer(limit.burst_us).min(quota_us) };
    Some(Wish { lever, from: limit, to })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Lever;

    fn seen(quota_us: u64, period_us: u64, vcpus: u32, lost: f64) -> Timeslices {
        let limit = Limit { quota_us: Some(quota_us), period_us, burst_us: quota_us / 2 };
        let used = (1.0 - lost) * f64::from(u32::try_from(quota_us).unwrap());
        let slices = Slices {
            lever: Lever::Quota,
            limit,
            quota_us,
            vcpus,
            used,
            stopped: 1e9,
            hit: 0.5,
            fixed: false,
        };
        Timeslices { limits: vec![slices], ..Timeslices::default() }
    }

    fn longer_us(quota_us: u64, period_us: u64, vcpus: u32, latency_ms: u64) -> Option<u64> {
        let wishes = longer(&seen(quota_us, period_us, vcpus, 0.2), latency_ms, 0.05);
        let to = wishes.first()?.to;
        let (quota, period) = (to.quota_us.unwrap(), to.period_us);
        let (off, more) =
            ((quota_us * period).abs_diff(quota * period_us), quota * period_us > quota_us * period);
        assert!(off < period_us && !more && to.burst_us <= quota, "the same part of the CPUs: {to:?}");
        let stands_still = period - quota / u64::from(vcpus);
        assert!(stands_still <= latency_ms * 1000 + 1, "{stands_still} us");
        Some(period)
    }

    #[test]
    fn a_period_is_doubled_as_far_as_the_vm_tolerates() {
        assert_eq!(longer_us(6_000, 24_000, 1, 1000), Some(48_000));
        assert_eq!(longer_us(6_000, 24_000, 1, 27), Some(36_000), "stands still for 27 ms then");
        assert_eq!(longer_us(6_000, 24_000, 1, 20), None, "no shorter, and not for little");
        assert_eq!(longer_us(200_000, 600_000, 1, 5000), Some(1_000_000), "no kernel takes more");
        assert_eq!(longer_us(300_000, 900_000, 1, 5000), None);
        // Four vCPUs use it up in a quarter of the time.
        assert_eq!(longer_us(100_000, 100_000, 4, 150), Some(200_000));
        assert_eq!(longer_us(100_000, 100_000, 4, 100), Some(133_333));
        assert_eq!(longer_us(9_000, 100_000, 1, 162), Some(178_021), "no larger a part than before");
        assert_eq!(longer_us(400_000, 100_000, 4, 1000), None, "a limit that never stops anybody");
    }

    #[test]
    fn nothing_is_changed_where_nothing_is_lost() {
        assert!(longer(&seen(6_000, 24_000, 1, 0.04), 1000, 0.05).is_empty());
        assert!(longer(&seen(6_000, 24_000, 1, 0.0), 1000, 0.0).is_empty());
    }
}
