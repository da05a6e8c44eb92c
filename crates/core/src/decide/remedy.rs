//! Whether weights would help who gets less than it should, where they do not follow grants.

use super::island::{Island, islands};
use super::part::{each, may_use, online, useful, weighs};
use super::short::below;
use super::size::whole;
use super::starving::{guaranteed, left_alone};
use super::weigh::{Granted, parts};
use super::{Arbiter, Policy};
use crate::CpuSet;
use crate::entitle::WeightRule;
use crate::machine::{HostEstimate, VmEstimate};
use crate::units::count;

/// Whether a VM (by its number) of those that pCPUs were `granted` to would have more than it uses, did weights follow grants.
pub(super) fn weights_help(
    seen: &HostEstimate,
    number: usize,
    granted: &[Granted<'_>],
    policy: &Policy,
) -> bool {
    let vm = &seen.vms[number];
    let priority = granted.iter().find(|one| one.number == number).map_or(0, |one| one.priority);
    let divides = |other: &VmEstimate| {
        let among = other.seen.is_running_vm() && other.seen.parent == vm.seen.parent;
        among && weighs(other) && !left_alone(other, policy)
    };
    let pcpus = online(seen);
    let own: Vec<CpuSet> = seen.vms.iter().map(|vm| may_use(policy, &pcpus, vm)).collect();
    let one = |number: usize| {
        let found = granted.binary_search_by_key(&number, |one| one.number);
        found.map_or_else(|_| unasked(seen, number, &own[number], priority, policy), |at| granted[at])
    };
    let divides = (0..seen.vms.len()).filter(|number| divides(&seen.vms[*number]));
    let mut all: Vec<Granted<'_>> = divides.map(one).collect();
    // What the less important have beyond their guarantees would be his.
    if all.iter().any(|one| one.priority < priority) {
        let his = all.iter_mut().filter(|one| one.number == number);
        his.for_each(|one| one.pcpus = one.pcpus.max(whole(one.wants.min(one.most))));
    }
    let mut islands = islands(seen, &all, policy).into_iter().filter(Island::is_contended);
    let its = islands.find(|island| island.granted.iter().any(|one| one.number == number));
    let its = its.filter(|its| its.granted.len() > 1 && seen.host.rule != WeightRule::EqualPerVcpu);
    its.is_some_and(|its| parts(seen, &its).get(&vm.seen.id).is_some_and(|part| below(vm, part.all)))
}

/// What one would count as that is not asked, for its vCPUs stay: what it is guaranteed, and what it wants unless it is less important.
fn unasked<'a>(
    seen: &HostEstimate,
    number: usize,
    own: &'a CpuSet,
    than: i32,
    policy: &Policy,
) -> Granted<'a> {
    let vm = &seen.vms[number];
    let (rule, vcpus) = (policy.of(&vm.seen.name), vm.seen.online().len());
    let most = useful(vm, own, each(vm) * count(vcpus));
    let least = guaranteed(vm, policy, &online(seen)).unwrap_or(1.0).min(most);
    let least = rule.guaranteed.unwrap_or(least).min(least);
    let wants = vm.demand.map_or(least, |demand| demand.0.min(most));
    let priority = if policy.arbitrate == Arbiter::Priority { rule.priority.unwrap_or(0) } else { 0 };
    Granted {
        number,
        own,
        pcpus: if priority < than { 0 } else { whole(wants) },
        short: wants > least,
        guaranteed: least,
        keeps: wants.min(least),
        most,
        wants,
        priority,
        vcpus: u32::try_from(vcpus).unwrap_or(u32::MAX),
    }
}
