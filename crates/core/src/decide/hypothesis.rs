//! What VMs would get with other vCPUs online: the host of an estimate, changed, and divided anew.
//!
//! By weights alone: under Xen's credit scheduler a VM weighs its weight times its active vCPUs, so each vCPU more
//! takes from others. What a VM is due does not depend on what it has online, so it is computed as of Linux' rule, with
//! all vCPUs online.

use std::collections::{BTreeMap, BTreeSet};

use crate::entitle::{Division, Host, Slice, Vcpu, Vm, WeightRule, available_to_all, entitled_of};
use crate::machine::{HostEstimate, Role, VmEstimate};
use crate::{CpuSet, Cpus};

/// pCPUs that each VM could get now if all of its vCPUs were online, each control group (by its number) if it had this cpuset;
/// `None` where not all who compete can be seen.
pub(super) fn available(seen: &HostEstimate, groups: &BTreeMap<usize, CpuSet>) -> Option<Vec<Cpus>> {
    seen.division.as_ref()?;
    let mut host = seen.host.clone();
    if host.rule == WeightRule::XenCredit {
        host.rule = WeightRule::Linux;
    }
    each(&mut host, |number, vm| {
        let estimate = &seen.vms[number];
        if let Some(set) = groups.get(&number) {
            regroup(vm, estimate, set);
        } else if estimate.seen.role == Role::Vm {
            all_online(vm, estimate);
        }
    });
    let mut all = available_to_all(&host).ok()?;
    // With what its real-time threads get, as what it used is with theirs.
    for (part, owner) in
        seen.vms.iter().enumerate().filter_map(|(part, vm)| Some((part, vm.seen.part_of.as_ref()?)))
    {
        let is_owner = |vm: &VmEstimate| vm.seen.role == Role::Vm && vm.seen.name == *owner;
        if let Some(owner) = seen.vms.iter().position(is_owner) {
            let more = all[part];
            all[owner] = all[owner] + more;
        }
    }
    Some(all)
}

/// What VMs are entitled to while these (by number) have all their vCPUs online: it does not depend on what was taken from
/// them. `None` where not all who compete can be seen.
pub(super) fn entitled(seen: &HostEstimate, whole: &BTreeSet<usize>) -> Option<Division> {
    let division = seen.division.as_ref()?;
    let lacks = |number: &usize| {
        let vm = &seen.vms[*number].seen;
        vm.role == Role::Vm && vm.vcpus.iter().any(|vcpu| !vcpu.online)
    };
    if !whole.iter().any(lacks) {
        return Some(division.clone());
    }
    let mut host = seen.host.clone();
    each(&mut host, |number, vm| {
        if whole.contains(&number) && seen.vms[number].seen.role == Role::Vm {
            all_online(vm, &seen.vms[number]);
        }
    });
    crate::entitle::entitled(&host).ok()
}

/// What a VM would be entitled to with so many vCPUs online, a control group with this cpuset, by the host's own rule. A
/// division of the whole host, each time but where it has those online now.
/// `order`: of its vCPUs, the first of which are online; `None`: by number. `scratch`: a copy of the host, made at the first call and left
/// as it was.
pub(super) fn with(
    seen: &HostEstimate,
    number: usize,
    online: u32,
    order: Option<&[u32]>,
    group: Option<CpuSet>,
    scratch: &mut Option<Host>,
) -> Option<f64> {
    let vcpus = &seen.vms[number].seen.vcpus;
    let stays = |v: u32| match order {
        Some(order) => order.iter().take(online as usize).any(|first| *first == v),
        None => v < online,
    };
    let now = match &group {
        Some(set) => vcpus.first().is_some_and(|vcpu| vcpu.affinity.as_ref() == Some(set)),
        None => (0..).zip(vcpus).all(|(v, vcpu)| vcpu.online == stays(v)),
    };
    if let Some(division) = seen.division.as_ref().filter(|_| now) {
        return Some(division.cpus(number).0);
    }
    let host = scratch.get_or_insert_with(|| seen.host.clone());
    let vcpus = vcpus.len();
    let mut before = Vec::new();
    each(host, |this, vm| {
        if this != number {
            return;
        }
        before.clone_from(&vm.vcpus);
        if let Some(set) = &group {
            regroup(vm, &seen.vms[number], set);
        } else {
            vm.vcpus.iter_mut().take(vcpus).zip(0..).for_each(|(vcpu, v)| vcpu.online = stays(v));
        }
    });
    let found = entitled_of(host, number);
    each(host, |this, vm| {
        if this == number {
            vm.vcpus = std::mem::take(&mut before);
        }
    });
    Some(found.ok()?.0)
}

/// What the first `vcpus` of a VM want together, its helpers and real-time threads left out: these count beside it.
fn own_demand(vm: &Vm, vcpus: usize) -> Option<Cpus> {
    let mut online = vm.vcpus.iter().take(vcpus).filter(|vcpu| vcpu.online);
    online.try_fold(Cpus(0.0), |sum, vcpu| Some(sum + vcpu.demand?))
}

/// All vCPUs online, with what they want spread over them.
fn all_online(vm: &mut Vm, estimate: &VmEstimate) {
    let vcpus = estimate.seen.vcpus.len();
    let each =
        own_demand(vm, vcpus).map(|demand| Cpus((demand.0 / crate::units::count(vcpus.max(1))).min(1.0)));
    for vcpu in vm.vcpus.iter_mut().take(vcpus) {
        vcpu.online = estimate.seen.state == crate::machine::State::Running;
        vcpu.demand = each;
    }
}

/// A vCPU for each pCPU of the set, with what the group wants spread over them.
fn regroup(vm: &mut Vm, estimate: &VmEstimate, set: &CpuSet) {
    let now = estimate.seen.vcpus.len().min(vm.vcpus.len());
    let each =
        own_demand(vm, now).map(|demand| Cpus((demand.0 / crate::units::count(set.len().max(1))).min(1.0)));
    let one = vm.vcpus.first().cloned().unwrap_or_default();
    let one = Vcpu { affinity: Some(set.clone()), demand: each, online: true, ..one };
    vm.vcpus.splice(..now, std::iter::repeat_n(one, set.len()));
}

/// VMs by the numbers of [`Host::all_vms`].
fn each(host: &mut Host, mut change: impl FnMut(usize, &mut Vm)) {
    fn walk(slices: &mut [Slice], vms: &mut [Vm], next: &mut usize, change: &mut impl FnMut(usize, &mut Vm)) {
        for slice in slices {
            walk(&mut slice.slices, &mut slice.vms, next, change);
        }
        for vm in vms {
            change(*next, vm);
            *next += 1;
        }
    }
    walk(&mut host.slices, &mut host.vms, &mut 0, &mut change);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Counters, Helper, Pcpu, Snapshot, VcpuState, VmId, VmState, estimate};
    use crate::{CpuId, Time, Weight};

    /// A heavy VM whose vCPU, emulator and real-time thread use some of two pCPUs, beside one that wants both.
    #[test]
    fn helpers_and_real_time_threads_count_once() {
        let look = |second: u64| {
            let counters = |percent: u64| {
                let ns = percent * 10_000_000 * second;
                Counters { run_ns: Some(ns), wait_ns: Some(0), runs: None }
            };
            let vcpu =
                |percent| VcpuState { online: true, counters: counters(percent), ..VcpuState::default() };
            let vm = |name: &str, weight, vcpus| VmState {
                id: VmId(name.into()),
                name: name.into(),
                weight: Some(weight),
                vcpus,
                ..VmState::default()
            };
            let heavy = VmState {
                helpers: vec![Helper { counters: counters(40), ..Helper::default() }],
                ..vm("a", Weight(100_000.0), vec![vcpu(20), vcpu(20)])
            };
            let group =
                VmState { whole: Some(counters(20)), ..vm("g", Weight(100_000.0), vec![vcpu(0), vcpu(0)]) };
            let thread = VmState {
                role: Role::Other,
                part_of: Some("g".into()),
                whole: Some(counters(30)),
                ..vm("t", VmState::REALTIME, vec![vcpu(0)])
            };
            let vms = vec![heavy, group, thread, vm("b", Weight(1.0), vec![vcpu(50), vcpu(50)])];
            let pcpus = (0..2).map(|id| Pcpu { id: CpuId(id), online: true, ..Pcpu::default() }).collect();
            Snapshot { at: Time(second * 1_000_000_000), pcpus, vms, ..Snapshot::default() }
        };
        let seen = estimate(&look(0), &look(1)).unwrap();
        // All vCPUs are online, and the group has its cpuset: nothing is changed.
        let with = available(&seen, &[(1, CpuSet::first(2))].into()).unwrap();
        for (vm, with) in seen.vms.iter().zip(with).filter(|(vm, _)| vm.seen.role == Role::Vm) {
            let now = vm.available.unwrap();
            assert!((now.0 - with.0).abs() < 1e-9, "{}: {now}, not {with}", vm.seen.name);
        }
    }
}
