//! What VMs would get with other vCPUs online: the host of an estimate, changed, and divided anew.
//!
//! By weights alone: under Xen's credit scheduler a VM weighs its weight times its active vCPUs, so each vCPU more
//! takes from others. What a VM is due does not depend on what it has online, so it is computed as of Linux' rule, with
//! all vCPUs online.

use crate::Cpus;
use crate::entitle::{Host, Slice, Vm, WeightRule, available_to_all, entitled};
use crate::machine::{HostEstimate, Role, VmEstimate};

/// pCPUs that each VM could get now if all of its vCPUs were online; `None` where not all who compete can be seen.
pub(super) fn available(seen: &HostEstimate) -> Option<Vec<Cpus>> {
    seen.division.as_ref()?;
    let mut host = seen.host.clone();
    if host.rule == WeightRule::XenCredit {
        host.rule = WeightRule::Linux;
    }
    each(&mut host, |number, vm| {
        let estimate = &seen.vms[number];
        if estimate.seen.role == Role::Vm {
            all_online(vm, estimate);
        }
    });
    available_to_all(&host).ok()
}

/// What a VM would be entitled to with so many vCPUs online, by the host's own rule. A division of the whole host, each
/// time but where it has those online now.
pub(super) fn with(seen: &HostEstimate, number: usize, online: u32) -> Option<f64> {
    let now = (0..).zip(&seen.vms[number].seen.vcpus).all(|(v, vcpu)| vcpu.online == (v < online));
    if let Some(division) = seen.division.as_ref().filter(|_| now) {
        return Some(division.cpus(number).0);
    }
    let mut host = seen.host.clone();
    let vcpus = seen.vms[number].seen.vcpus.len();
    each(&mut host, |this, vm| {
        if this == number {
            vm.vcpus.iter_mut().take(vcpus).zip(0..).for_each(|(vcpu, v)| vcpu.online = v < online);
        }
    });
    Some(entitled(&host).ok()?.cpus(number).0)
}

/// All vCPUs online, with what it wants spread over them.
fn all_online(vm: &mut Vm, estimate: &VmEstimate) {
    let vcpus = estimate.seen.vcpus.len();
    let each = estimate.demand.map(|demand| Cpus((demand.0 / crate::share::count(vcpus.max(1))).min(1.0)));
    for vcpu in vm.vcpus.iter_mut().take(vcpus) {
        vcpu.online = estimate.seen.state == crate::machine::State::Running;
        vcpu.demand = each;
    }
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
