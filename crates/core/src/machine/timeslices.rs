//! What became of a VM's timeslices between two looks.

use super::{Counters, Lever, Limit, VcpuState, VmState};
use crate::{Quota, Throttled, Time};

/// The timeslices of one limit: means over the periods between two looks, µs per period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slices {
    /// Whose limit: [`Lever::Quota`] or [`Lever::VcpuQuota`].
    pub lever: Lever,
    /// It.
    pub limit: Limit,
    /// Its quota.
    pub quota_us: u64,
    /// vCPUs that use it at the same time, at most.
    pub vcpus: u32,
    /// CPU time used.
    pub used: f64,
    /// Time in which a vCPU wanted to run and the limit kept it from it; of several, the sum.
    pub stopped: f64,
    /// The part of the periods in which that happened, from 0 to 1.
    pub hit: f64,
    /// Whether it cannot be changed by what shows it.
    pub fixed: bool,
}

/// The limits of a VM, and what became of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeslices {
    /// Those that can be measured.
    pub limits: Vec<Slices>,
    /// CPU time that the VM used, in CPUs.
    pub used: f64,
    /// Work per second, where somebody counts.
    pub progress: Option<f64>,
}

impl Slices {
    /// Left over, µs per period.
    #[must_use]
    pub fn unused(&self) -> f64 {
        (quota(self) - self.used).max(0.0)
    }

    /// Left over in some periods and missing in others, µs per period, at most: what was unused, as far as it was stopped.
    #[must_use]
    pub fn lost(&self) -> f64 {
        self.unused().min(self.stopped)
    }
}

impl Timeslices {
    /// What lies between two looks at a VM; no limits where nothing can be told of them.
    #[must_use]
    pub fn between(before: &VmState, then: Time, after: &VmState, now: Time) -> Timeslices {
        let over = now.since(then).as_secs_f64();
        if over <= 0.0 || before.id != after.id {
            return Timeslices::default();
        }
        let online = u32::try_from(after.online().len().max(1)).unwrap_or(u32::MAX);

        let used_ns = run_ns(before).zip(run_ns(after)).and_then(|(a, b)| b.checked_sub(a));
        let of = |vm: &VmState| (vm.quota.clone(), vm.throttled);
        let mut limits = Vec::from_iter(slices(Lever::Quota, online, of(before), of(after), used_ns, over));
        let pairs = (0..).zip(before.vcpus.iter().zip(&after.vcpus));
        for (number, (a, b)) in pairs.filter(|(_, (a, b))| a.online && b.online) {
            let used = grown(&a.counters, &b.counters);
            let of = |vcpu: &VcpuState| (vcpu.quota.clone(), vcpu.throttled);
            limits.extend(slices(Lever::VcpuQuota(number), 1, of(a), of(b), used, over));
        }
        for slices in &mut limits {
            slices.fixed = after.fixed(slices.lever.kind()).is_some();
        }
        let rate = |(a, b): (f64, f64)| (b >= a).then(|| (b - a) / over);
        Timeslices {
            limits,
            used: used_ns.map_or(0.0, |ns| seconds(ns) / over),
            progress: before.progress.zip(after.progress).and_then(rate),
        }
    }

    /// The part of what is allotted that some limit left over in some periods and missed in others, from 0 to 1.
    #[must_use]
    pub fn lost_within(&self) -> f64 {
        let lost: f64 = self.limits.iter().map(|s| s.lost() / period(s)).sum();
        self.part(lost)
    }

    /// The part of what is allotted to vCPUs that some of them left over while others missed it, from 0 to 1.
    #[must_use]
    pub fn lost_across(&self) -> f64 {
        let each = || self.limits.iter().filter(|s| matches!(s.lever, Lever::VcpuQuota(_)));
        let sum = |part: fn(&Slices) -> f64| each().map(|s| part(s) / period(s)).sum::<f64>();
        let lost = sum(Slices::unused).min(sum(|s| s.stopped)) - sum(Slices::lost);
        self.part(lost.max(0.0))
    }

    fn part(&self, cpus: f64) -> f64 {
        let allotted: f64 = self.limits.iter().map(|s| quota(s) / period(s)).sum();
        if allotted > 0.0 { cpus / allotted } else { 0.0 }
    }
}

type Setting = (Option<Quota>, Option<Throttled>);

/// Nothing if there is no limit, it is not counted, or it was changed meanwhile.
fn slices(
    lever: Lever,
    vcpus: u32,
    (limit_before, counted_before): Setting,
    (limit, counted): Setting,
    used_ns: Option<u64>,
    over: f64,
) -> Option<Slices> {
    let (limit, before) = (limit_of(&limit?), limit_of(&limit_before?));
    let (earlier, later) = (counted_before?, counted?);
    if limit != before {
        return None;
    }
    let quota_us = limit.quota_us?;
    let float = |n: u64| n as f64;
    let periods = over * 1e6 / float(limit.period_us);
    let throttled = later.throttled_periods.checked_sub(earlier.throttled_periods)?;
    let stopped_ns = later.throttled_ns.checked_sub(earlier.throttled_ns)?;
    Some(Slices {
        lever,
        limit,
        quota_us,
        vcpus,
        used: seconds(used_ns?) * 1e6 / periods,
        stopped: seconds(stopped_ns) * 1e6 / periods,
        hit: (float(throttled) / periods).min(1.0),
        fixed: false,
    })
}

/// A limit as it is written.
pub(crate) fn limit_of(quota: &Quota) -> Limit {
    Limit { quota_us: quota.quota_us, period_us: quota.period_us, burst_us: quota.burst_us }
}

fn grown(before: &Counters, after: &Counters) -> Option<u64> {
    after.run_ns?.checked_sub(before.run_ns?)
}

/// Of everything in a VM.
fn run_ns(vm: &VmState) -> Option<u64> {
    if let Some(whole) = vm.whole {
        return whole.run_ns;
    }
    let vcpus = vm.vcpus.iter().filter(|vcpu| vcpu.online).map(|vcpu| vcpu.counters.run_ns);
    let helpers = vm.helpers.iter().map(|helper| Some(helper.counters.run_ns.unwrap_or(0)));
    vcpus.chain(helpers).try_fold(0_u64, |sum, ns| Some(sum + ns?))
}

fn seconds(ns: u64) -> f64 {
    std::time::Duration::from_nanos(ns).as_secs_f64()
}

fn quota(slices: &Slices) -> f64 {
    slices.quota_us as f64
}

fn period(slices: &Slices) -> f64 {
    slices.limit.period_us as f64
}
