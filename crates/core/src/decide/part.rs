//! What of a host's pCPUs a VM may use, and what it weighs.

use super::{Placer, Policy};
use crate::CpuSet;
use crate::contest::cap;
use crate::machine::{HostEstimate, LeverKind, VmEstimate};

/// No quota is smaller than this part of a pCPU (`min_cfs_quota_period` of a period of at most 1 s, kernel/sched/core.c).
const LEAST: f64 = 0.001;

/// pCPUs that are online.
pub(super) fn online(seen: &HostEstimate) -> CpuSet {
    seen.pcpus.iter().filter(|pcpu| pcpu.online).map(|pcpu| pcpu.id).collect()
}

/// Its weight among its siblings, or the usual one where that is unknown.
pub(super) fn weight(vm: &VmEstimate) -> f64 {
    vm.seen.weight.map_or(1024.0, |weight| weight.0)
}

/// Whether its weight can be changed.
pub(super) fn weighs(vm: &VmEstimate) -> bool {
    vm.seen.weight.is_some() && vm.seen.fixed(LeverKind::Weight).is_none()
}

/// pCPUs that one vCPU of a VM may use: one, or less where each has a quota of its own (libvirt's `<quota>`). In their mean, which stays where
/// quotas are divided otherwise (`shape`).
#[must_use]
pub fn each(vm: &VmEstimate) -> f64 {
    // Of one that is plugged out nothing is known.
    let known = || vm.seen.vcpus.iter().filter(|vcpu| vcpu.online || vcpu.quota.is_some());
    let all: f64 = known().map(|vcpu| cap(vcpu.quota.as_ref()).min(1.0)).sum();
    let vcpus = known().count();
    if vcpus == 0 { 1.0 } else { (all / crate::units::count(vcpus)).max(LEAST) }
}

/// pCPUs of its own that a VM could use, within its cap and what its vCPUs may use together.
pub(super) fn useful(vm: &VmEstimate, own: &CpuSet, all: f64) -> f64 {
    cap(vm.seen.quota.as_ref()).min(all).min(crate::units::count(own.len()))
}

/// Whether somebody chooses the pCPUs of its vCPUs.
pub(super) fn placed(policy: &Policy, vm: &VmEstimate) -> bool {
    policy.place != Placer::None
        && policy.of(&vm.seen.name).exclude != Some(true)
        && !vm.seen.is_group()
        && vm.seen.fixed(LeverKind::Affinity).is_none()
}

/// pCPUs of these that some vCPUs of a VM may use, which for those that are placed is any but reserved ones: where they are
/// pinned today limits nobody.
pub(super) fn may_use(policy: &Policy, online: &CpuSet, vm: &VmEstimate) -> CpuSet {
    if placed(policy, vm) {
        return online.difference(&policy.reserved);
    }
    let mut all = CpuSet::default();
    for vcpu in &vm.seen.vcpus {
        let affinity = vcpu.affinity.as_ref().unwrap_or(online);
        if !affinity.is_within(&all) {
            all = all.union(affinity);
        }
    }
    all.intersection(online)
}
