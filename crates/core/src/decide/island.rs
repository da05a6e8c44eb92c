//! VMs that share pCPUs, and whether there are too few of these for them.
//!
//! Example: three VMs of 16 vCPUs each on pCPUs 0-31, one of 4 on 32-63. The first three need weights to divide what they share, though there
//! are 64 pCPUs for 52 vCPUs; the fourth has nothing to do with that.

use super::Policy;
use super::granting::ROUNDING;
use super::part::{may_use, online};
use super::room::Room;
use super::weigh::Granted;
use crate::CpuSet;
use crate::machine::HostEstimate;
use crate::units::count;

/// VMs of which each shares pCPUs with another, directly or over others.
#[derive(Debug)]
pub(super) struct Island<'a> {
    /// Those that they may use.
    pub(super) pcpus: CpuSet,
    /// Those of them that pCPUs were granted to.
    pub(super) granted: Vec<Granted<'a>>,
    /// vCPUs of each that stay, and where.
    stay: Vec<(CpuSet, f64)>,
}

impl Island<'_> {
    /// Whether somebody has less than it asked for, or all of them together what they keep anyway and want, and numbers of vCPUs do not see to the rest.
    pub(super) fn is_contended(&self) -> bool {
        let keep: f64 = self.granted.iter().map(|granted| granted.keeps).sum();
        let too_much = keep > count(self.pcpus.len()) + ROUNDING;
        let stay = self.stay.iter().map(|(own, stay)| (own, *stay));
        (too_much || self.granted.iter().any(|granted| granted.short))
            && Room::lacks(stay, &self.pcpus).is_some()
    }
}

/// All islands of these pCPUs.
pub(super) fn islands<'a>(
    seen: &HostEstimate,
    granted: &[Granted<'a>],
    usable: &CpuSet,
    policy: &Policy,
) -> Vec<Island<'a>> {
    let online = online(seen);
    let mut islands: Vec<Island<'a>> = Vec::new();
    for (number, vm) in seen.vms.iter().enumerate().filter(|(_, vm)| vm.seen.is_running_vm()) {
        let found = granted.binary_search_by_key(&number, |granted| granted.number).ok();
        let found = found.map(|at| granted[at]);
        let own = found.map_or_else(|| may_use(policy, &online, vm), |granted| granted.own.clone());
        let own = own.intersection(usable);
        if own.is_empty() {
            continue;
        }
        let vcpus = found.map_or_else(|| vm.seen.online().len(), |granted| granted.vcpus as usize);
        let stay = vec![(own.clone(), running(vcpus, &own))];
        let mut all = Island { pcpus: own.clone(), granted: found.into_iter().collect(), stay };
        for other in islands.extract_if(.., |island| island.pcpus.meets(&own)) {
            all.pcpus = all.pcpus.union(&other.pcpus);
            all.granted.extend(other.granted);
            all.stay.extend(other.stay);
        }
        islands.push(all);
    }
    islands
}

/// pCPUs of its own that so many vCPUs of a VM can run on at once.
pub(super) fn running(vcpus: usize, own: &CpuSet) -> f64 {
    count(vcpus.min(own.len()))
}
