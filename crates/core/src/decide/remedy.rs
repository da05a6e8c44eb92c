//! Whether weights would help who gets less than it should, where they do not follow grants.

use super::Policy;
use super::island::{Island, islands};
use super::part::weighs;
use super::short::below;
use super::starving::left_alone;
use super::weigh::{Granted, parts};
use crate::entitle::WeightRule;
use crate::machine::{HostEstimate, VmEstimate};

/// Whether a VM (by its number) of those that pCPUs were `granted` to would have more than it uses, did weights follow grants.
pub(super) fn weights_help(
    seen: &HostEstimate,
    number: usize,
    granted: &[Granted<'_>],
    policy: &Policy,
) -> bool {
    let vm = &seen.vms[number];
    let divides = |other: &VmEstimate| {
        weighs(other) && !left_alone(other, policy) && other.seen.parent == vm.seen.parent
    };
    let all: Vec<Granted<'_>> =
        granted.iter().filter(|one| divides(&seen.vms[one.number])).copied().collect();
    let mut islands = islands(seen, &all, policy).into_iter().filter(Island::is_contended);
    let its = islands.find(|island| island.granted.iter().any(|one| one.number == number));
    let its = its.filter(|its| its.granted.len() > 1 && seen.host.rule != WeightRule::EqualPerVcpu);
    its.is_some_and(|its| parts(seen, &its).get(&vm.seen.id).is_some_and(|part| below(vm, part.all)))
}
