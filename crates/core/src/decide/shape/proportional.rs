//! Timeslices in proportion to load, the VM's total unchanged (P1, IV-B: 12, 4, 4 and 4 units instead of 6 each).
//!
//! ```text
//! not stopped:  x = 1.1 used, at least a quarter of what it had at first
//! stopped:      x in proportion to what it used, of all that is left, at most the period
//! left then:    to the others, in proportion to what they have at first
//! ```
//!
//! What a stopped vCPU would use is not known; what is unused is. So unused time goes to those that were stopped, and the
//! next look tells how far it was needed. Where nobody is stopped, or nothing unused, nothing changes: a fixed point, in
//! which a fork-join program's vCPUs have what its sections need of them. Who falls idle keeps a quarter, so that it
//! can begin again.

use std::ops::RangeInclusive;

use super::{Slices, Timeslices, Wish};
use crate::machine::{Lever, Limit};

/// More than was used, for fluctuations. Ours.
const HEADROOM: f64 = 1.1;
/// Of an even division, what every vCPU keeps. Ours.
const FLOOR: f64 = 0.25;
/// Stopped for less than this part of its quota counts as not stopped. Ours.
const HARDLY: f64 = 0.02;
/// The kernel takes no smaller quota (`min_cfs_quota_period`, kernel/sched/core.c).
const LEAST_US: f64 = 1000.0;
/// Far less than what is written, and more than sums are off by.
const ROUNDING_US: f64 = 1e-6;

/// Other quotas for a VM's vCPUs, `total` CPUs at most together, if at least `worth` of what is allotted is unused on some
/// and missing on others. Those that get less come first.
#[must_use]
pub(crate) fn divided(seen: &Timeslices, total: f64, worth: f64) -> Vec<Wish> {
    let vcpus: Vec<&Slices> =
        seen.limits.iter().filter(|slices| matches!(slices.lever, Lever::VcpuQuota(_))).collect();
    let lost = seen.lost_across();
    let Some(period_us) = vcpus.first().map(|slices| slices.limit.period_us) else { return Vec::new() };
    let alike = vcpus.iter().all(|slices| slices.limit.period_us == period_us);
    if vcpus.len() < 2 || !alike || lost <= 0.0 || lost < worth {
        return Vec::new();
    }
    let Some(quotas) = divide(&vcpus, total, period_us) else { return Vec::new() };
    let mut wishes: Vec<Wish> = vcpus.iter().zip(quotas).map(|(slices, to)| wish(slices, to)).collect();
    let changes = |wish: &Wish| wish.from.quota_us.unwrap_or(0).abs_diff(wish.to.quota_us.unwrap_or(0));
    #[expect(clippy::cast_precision_loss, reason = "microseconds of a period")]
    let enough = |wish: &Wish| changes(wish) as f64 >= worth * wish.from.quota_us.unwrap_or(0) as f64;
    if !wishes.iter().any(enough) {
        return Vec::new();
    }
    wishes.retain(|wish| changes(wish) > 0);
    wishes.sort_by_key(|wish| wish.to.quota_us > wish.from.quota_us);
    wishes
}

fn wish(slices: &Slices, quota_us: u64) -> Wish {
    let from = slices.limit;
    let to = Limit { quota_us: Some(quota_us), burst_us: from.burst_us.min(quota_us), ..from };
    Wish { lever: slices.lever, from, to }
}

/// A quota for each, µs; `None` if the kernel takes none so small.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "microseconds of a period"
)]
fn divide(vcpus: &[&Slices], total: f64, period_us: u64) -> Option<Vec<u64>> {
    let most = period_us as f64;
    let total = total * most;
    let even = total / vcpus.len() as f64;
    let least = (FLOOR * even).max(LEAST_US).min(even).min(most);
    let stopped: Vec<bool> = vcpus.iter().map(|s| s.stopped > HARDLY * s.quota_us as f64).collect();
    let mut quotas: Vec<f64> = vcpus.iter().map(|s| (HEADROOM * s.used).max(least).min(most)).collect();
    let needed: f64 = quotas.iter().zip(&stopped).filter(|(_, stopped)| !**stopped).map(|(q, _)| q).sum();
    let used: Vec<f64> = vcpus.iter().map(|s| s.used.max(least)).collect();
    let left = fill(&mut quotas, total - needed, least..=most, &used, &|v| stopped[v]);
    // Those that are satisfied get the rest on top of what they need.
    let mut more = vec![0.0; quotas.len()];
    fill(&mut more, left, 0.0..=most, &vec![1.0; quotas.len()], &|v| !stopped[v]);
    quotas.iter_mut().zip(more).for_each(|(quota, more)| *quota = (*quota + more).min(most));
    // Headroom and floors are not to be had of what is not there.
    let scale = (total / quotas.iter().sum::<f64>()).min(1.0);
    let quotas: Vec<u64> = quotas.iter().map(|quota| (quota * scale + ROUNDING_US).floor() as u64).collect();
    quotas.iter().all(|quota| *quota as f64 >= LEAST_US).then_some(quotas)
}

/// Divides an amount among some in proportion to `parts`, within bounds for each; what is left.
fn fill(
    quotas: &mut [f64],
    amount: f64,
    bounds: RangeInclusive<f64>,
    parts: &[f64],
    among: &dyn Fn(usize) -> bool,
) -> f64 {
    let (least, most) = (*bounds.start(), *bounds.end());
    let mut open: Vec<usize> = (0..quotas.len()).filter(|v| among(*v)).collect();
    let mut left = amount.max(least * crate::units::count(open.len()));
    loop {
        let sum: f64 = open.iter().map(|v| parts[*v]).sum();
        let share = |v: usize| left * parts[v] / sum;
        // Who would get more than may be, or less, gets that; the others divide the rest.
        let bound = open.iter().copied().find(|v| share(*v) > most || share(*v) < least);
        let Some(v) = bound else { break };
        let x = share(v).clamp(least, most);
        quotas[v] = x;
        left -= x;
        open.retain(|other| *other != v);
    }
    let sum: f64 = open.iter().map(|v| parts[*v]).sum();
    for v in &open {
        quotas[*v] = left * parts[*v] / sum;
    }
    if open.is_empty() { left.max(0.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vcpus(limits: &[(u64, f64, f64)], period_us: u64) -> Timeslices {
        let one = |(number, (quota_us, used, stopped)): (u32, &(u64, f64, f64))| Slices {
            lever: Lever::VcpuQuota(number),
            limit: Limit { quota_us: Some(*quota_us), period_us, burst_us: 0 },
            quota_us: *quota_us,
            vcpus: 1,
            used: *used,
            stopped: *stopped,
            hit: f64::from(u8::from(*stopped > 0.0)),
            fixed: false,
        };
        Timeslices { limits: (0..).zip(limits).map(one).collect(), ..Timeslices::default() }
    }

    /// The quotas after the wishes.
    fn after(seen: &Timeslices, wishes: &[Wish]) -> Vec<u64> {
        let to = |slices: &Slices| {
            let wish = wishes.iter().find(|wish| wish.lever == slices.lever);
            wish.map_or(slices.quota_us, |wish| wish.to.quota_us.unwrap())
        };
        seen.limits.iter().map(to).collect()
    }

    #[test]
    fn figure_6_gets_twelve_four_four_and_four() {
        let seen = vcpus(
            &[(6000, 6000.0, 6000.0), (6000, 2000.0, 0.0), (6000, 2000.0, 0.0), (6000, 2000.0, 0.0)],
            12_000,
        );
        let wishes = divided(&seen, 2.0, 0.05);
        assert_eq!(after(&seen, &wishes), [12_000, 4000, 4000, 4000]);
        assert_eq!(wishes.last().unwrap().lever, Lever::VcpuQuota(0), "first the others have less");
    }

    /// Fork and join: the first vCPU has three times the work of each other. What they use with quotas, and how long
    /// they are stopped.
    fn fork_join(quotas: &[u64], period: u64) -> Vec<(u64, f64, f64)> {
        let float = |n: u64| f64::from(u32::try_from(n).unwrap());
        let work = |v: usize| if v == 0 { 1500.0 } else { 500.0 };
        let alone = float(period) / 1500.0;
        let each = |v: usize| float(quotas[v]) / work(v);
        let rounds = (0..quotas.len()).map(each).fold(alone, f64::min);
        let stopped = |v: usize| if each(v) < alone && each(v) <= rounds * 1.01 { 50_000.0 } else { 0.0 };
        (0..quotas.len()).map(|v| (quotas[v], rounds * work(v), stopped(v))).collect()
    }

    #[test]
    fn a_fork_join_program_gets_what_its_sections_need_in_a_few_steps() {
        let mut quotas = vec![25_000; 16];
        let mut rounds = vec![];
        for _ in 0..5 {
            let limits = fork_join(&quotas, 100_000);
            rounds.push(limits[1].1 / 500.0);
            let seen = vcpus(&limits, 100_000);
            let wishes = divided(&seen, 4.0, 0.05);
            quotas = after(&seen, &wishes);
            assert!(quotas.iter().sum::<u64>() <= 400_000);
        }
        // 400 ms of work done of 400 allotted would be 44.4 rounds; at first it is 16.7.
        assert!(rounds[0] < 17.0 && rounds[4] > 0.95 * 44.4, "{rounds:?}");
    }

    #[test]
    fn where_nothing_is_lost_across_vcpus_nothing_changes() {
        for limits in [
            [(5000, 5000.0, 4000.0), (5000, 5000.0, 2000.0)],
            [(5000, 3000.0, 0.0), (5000, 1000.0, 0.0)],
            // Each loses something to itself: that is for bursts and periods.
            [(5000, 3000.0, 2000.0), (5000, 3000.0, 2000.0)],
        ] {
            assert_eq!(divided(&vcpus(&limits, 10_000), 1.0, 0.05), [], "{limits:?}");
        }
        let one = vcpus(&[(5000, 5000.0, 3000.0)], 10_000);
        assert_eq!(divided(&one, 0.5, 0.05), []);
    }

    #[test]
    fn a_quota_of_many_periods_is_divided_too() {
        let mut limits = vec![(10_000, 10_000.0, 50_000.0); 8];
        limits[0] = (4_000_000, 100_000.0, 0.0);
        let seen = vcpus(&limits, 100_000);
        for (total, others) in [(40.7, 100_000), (1.7, 10_000)] {
            let wishes = divided(&seen, total, 0.05);
            let quotas = after(&seen, &wishes);
            assert_eq!((quotas[0], &quotas[1..]), (100_000, &[others; 7][..]), "{total}");
        }
    }

    #[test]
    fn no_sum_grows_and_no_vcpu_gets_more_than_a_period_or_less_than_the_kernel_takes() {
        let mut state = 1_u64;
        let mut below = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        let mut changed = 0;
        for _ in 0..20_000 {
            let count = 2 + below(15);
            let limits: Vec<(u64, f64, f64)> = (0..count)
                .map(|_| {
                    let quota = 1000 + below(99_001);
                    let float = |n: u64| f64::from(u32::try_from(n).unwrap());
                    // Bursts and rounding let it use more.
                    let used = float(quota) * float(below(1100)) / 1000.0;
                    (quota, used, if below(2) == 0 { 0.0 } else { float(below(100_000)) })
                })
                .collect();
            let seen = vcpus(&limits, 100_000);
            let total: u64 = limits.iter().map(|(quota, ..)| quota).sum();
            #[expect(clippy::cast_precision_loss, reason = "small")]
            let wishes = divided(&seen, total as f64 / 100_000.0, 0.05);
            changed += usize::from(!wishes.is_empty());
            let quotas = after(&seen, &wishes);
            assert!(quotas.iter().sum::<u64>() <= total, "{limits:?}: {quotas:?}");
            assert!(quotas.iter().all(|quota| (1000..=100_000).contains(quota)), "{limits:?}: {quotas:?}");
        }
        assert!(changed > 5000, "{changed}");
    }
}
