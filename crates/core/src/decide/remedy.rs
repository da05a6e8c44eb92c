//! Whether weights would help who gets less than it should, where they do not follow grants.

use std::collections::BTreeSet;

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

/// The islands that there would be, did weights follow grants.
#[derive(Debug)]
pub(super) struct Remedy<'a> {
    seen: &'a HostEstimate,
    islands: Vec<Island<'a>>,
    /// Those of all that pCPUs were granted to.
    asked: BTreeSet<usize>,
}

/// pCPUs that each VM may use.
pub(super) fn all_own(seen: &HostEstimate, policy: &Policy) -> Vec<CpuSet> {
    let pcpus = online(seen);
    seen.vms.iter().map(|vm| may_use(policy, &pcpus, vm)).collect()
}

impl<'a> Remedy<'a> {
    /// Of those that pCPUs were `granted` to, and all others whose weight can be changed; `own`: [`all_own`].
    pub(super) fn new(
        seen: &'a HostEstimate,
        granted: &[Granted<'a>],
        own: &'a [CpuSet],
        policy: &Policy,
    ) -> Remedy<'a> {
        let divides =
            |vm: &VmEstimate| vm.seen.is_running_vm() && weighs(vm) && !left_alone(&vm.seen, policy);
        let pcpus = online(seen);
        let one = |number: usize| {
            let found = granted.binary_search_by_key(&number, |one| one.number);
            found.map_or_else(
                |_| unasked(&seen.vms[number], (number, &own[number]), &pcpus, policy),
                |at| granted[at],
            )
        };
        let divides = (0..seen.vms.len()).filter(|number| divides(&seen.vms[*number]));
        let all: Vec<Granted<'a>> = divides.map(one).collect();
        let asked = granted.iter().map(|one| one.number).collect();
        Remedy { seen, islands: islands(seen, &all, policy), asked }
    }

    /// Whether a VM (by its number) would have more than it uses.
    pub(super) fn helps(&self, number: usize) -> bool {
        let vm = &self.seen.vms[number];
        let its = |island: &&Island<'_>| island.granted.iter().any(|one| one.number == number);
        let Some(mut its) = self.islands.iter().find(its).cloned() else { return false };
        its.granted.retain(|one| self.seen.vms[one.number].seen.parent == vm.seen.parent);
        let priority = its.granted.iter().find(|one| one.number == number).map_or(0, |one| one.priority);
        let less = its.granted.iter().any(|one| one.priority < priority);
        for one in &mut its.granted {
            if one.priority < priority && !self.asked.contains(&one.number) {
                one.pcpus = 0;
            } else if less && one.number == number {
                // What the less important have beyond their guarantees would be his.
                one.pcpus = one.pcpus.max(whole(one.wants.min(one.most)));
            }
        }
        its.granted.len() > 1
            && its.is_contended()
            && self.seen.host.rule != WeightRule::EqualPerVcpu
            && parts(self.seen, &its).get(&vm.seen.id).is_some_and(|part| below(vm, part.all))
    }
}

/// What one would count as that is not asked, for its vCPUs stay: what it is guaranteed, and what it wants.
fn unasked<'a>(
    vm: &VmEstimate,
    (number, own): (usize, &'a CpuSet),
    pcpus: &CpuSet,
    policy: &Policy,
) -> Granted<'a> {
    let (rule, vcpus) = (policy.of(&vm.seen.name), vm.seen.online().len());
    let most = useful(vm, own, each(vm) * count(vcpus));
    let least = guaranteed(vm, policy, pcpus).unwrap_or(1.0).min(most);
    let least = rule.guaranteed.unwrap_or(least).min(least);
    let wants = vm.demand.map_or(least, |demand| demand.0.min(most));
    Granted {
        number,
        own,
        pcpus: whole(wants),
        short: wants > least,
        guaranteed: least,
        keeps: wants.min(least),
        most,
        wants,
        priority: if policy.arbitrate == Arbiter::Priority { rule.priority.unwrap_or(0) } else { 0 },
        vcpus: u32::try_from(vcpus).unwrap_or(u32::MAX),
    }
}
