//! VMs that have too few pCPUs together, and whether somebody is short of them.
//!
//! Example: three VMs of 16 vCPUs each on pCPUs 0-31, one of 4 on 32-63. The first three need weights to divide what they share, though there
//! are 64 pCPUs for 52 vCPUs; the fourth has nothing to do with that. Nor has it on 0-63, for it has room on the others.

use std::collections::BTreeSet;

use super::Policy;
use super::granting::ROUNDING;
use super::part::{may_use, online};
use super::room::Room;
use super::weigh::Granted;
use crate::CpuSet;
use crate::machine::{HostEstimate, VmState};
use crate::units::count;

/// VMs that pCPUs were granted to, of which each shares pCPUs with another, directly or over others, and more vCPUs stay than there are pCPUs
/// for them.
#[derive(Clone, Debug)]
pub(super) struct Island<'a> {
    /// Those that they may use.
    pub(super) pcpus: CpuSet,
    pub(super) granted: Vec<Granted<'a>>,
}

impl<'a> Island<'a> {
    /// Whether somebody has less than it asked for, or some have less than what they keep anyway and want of pCPUs that they share.
    pub(super) fn is_contended(&self) -> bool {
        let keep = |some: Vec<Granted<'_>>| some.iter().map(|granted| granted.keeps).sum::<f64>();
        let too_much = || self.sets().any(|(pcpus, some)| keep(some) > count(pcpus) + ROUNDING);
        self.granted.iter().any(|granted| granted.short) || too_much()
    }

    /// How many pCPUs some of them may use alone, and who these are; and all of them.
    pub(super) fn sets(&self) -> impl Iterator<Item = (usize, Vec<Granted<'a>>)> {
        let sets = self.granted.iter().map(|granted| granted.own);
        let sets: BTreeSet<&CpuSet> = sets.chain([&self.pcpus]).collect();
        let within = |set: &CpuSet| -> Vec<Granted<'a>> {
            self.granted.iter().filter(|granted| granted.own.is_within(set)).copied().collect()
        };
        sets.into_iter().map(move |set| (set.len(), within(set)))
    }
}

/// All islands of a host.
pub(super) fn islands<'a>(seen: &HostEstimate, granted: &[Granted<'a>], policy: &Policy) -> Vec<Island<'a>> {
    let online = online(seen);
    let stay = |number: usize| {
        let vm = &seen.vms[number];
        let found = granted.binary_search_by_key(&number, |granted| granted.number);
        let (own, vcpus) = match found {
            Ok(at) => (granted[at].own.clone(), granted[at].vcpus as usize),
            Err(_) => (may_use(policy, &online, vm), vm.seen.online().len()),
        };
        // On its own pCPUs so many can run at once.
        let stay = count(vcpus.min(own.len()));
        (own, stay)
    };
    let runs = |vm: &VmState| vm.is_running_vm() && !vm.empty;
    let running = (0..seen.vms.len()).filter(|number| runs(&seen.vms[*number].seen));
    let stay: Vec<(CpuSet, f64)> = running.map(stay).collect();
    let lacks = |(_, part): (CpuSet, Vec<&(CpuSet, f64)>)| {
        Room::lacks(part.into_iter().map(|(own, stay)| (own, *stay)), &online)
    };
    // By themselves: of many sets only the union counts.
    let parts = meeting(stay.iter().map(|one| (&one.0, one)));
    let crowded = parts.into_iter().filter_map(lacks).fold(CpuSet::default(), |all, some| all.union(&some));
    let crowd = granted.iter().filter(|one| !one.own.is_empty() && one.own.is_within(&crowded));
    let islands = meeting(crowd.map(|one| (one.own, *one)));
    islands.into_iter().map(|(pcpus, granted)| Island { pcpus, granted }).collect()
}

/// Those of which each shares pCPUs with another, directly or over others, and all that they may use.
fn meeting<'s, T>(all: impl Iterator<Item = (&'s CpuSet, T)>) -> Vec<(CpuSet, Vec<T>)> {
    let mut groups: Vec<(CpuSet, Vec<T>)> = Vec::new();
    for (own, one) in all {
        let mut group = (own.clone(), vec![one]);
        for other in groups.extract_if(.., |other| other.0.meets(own)) {
            group.0 = group.0.union(&other.0);
            group.1.extend(other.1);
        }
        groups.push(group);
    }
    groups
}
