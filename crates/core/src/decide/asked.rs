//! What a VM asks for before sizes are chosen, and the change of its size afterwards.

use super::arbitrate::Request;
use super::cpusets::Width;
use super::part::may_use;
use super::size::{Choice, vcpus, whole};
use super::{Action, Policy, Rule, Why};
use crate::machine::{Lever, Value, VmEstimate, VmId};
use crate::{CpuId, CpuSet};

/// What is known of a VM before sizes are chosen.
pub(super) struct Asked {
    /// Of the VM in the host's estimate.
    pub(super) number: usize,
    pub(super) rule: Rule,
    /// Its vCPUs can be taken offline, or its cpuset can be set.
    pub(super) sizable: bool,
    /// vCPUs that are online; of a control group its pCPUs.
    pub(super) online: CpuSet,
    /// vCPUs (of a control group pCPUs) that were online before it was sized.
    pub(super) had: CpuSet,
    /// Of a control group that is sized.
    pub(super) width: Option<Width>,
    /// Of a VM whose vCPUs may not all use the same pCPUs: those that stay longest first.
    pub(super) order: Option<Vec<u32>>,
    /// vCPUs that stay online whatever is decided ([`VmState::cold`](crate::machine::VmState::cold)).
    pub(super) cold: CpuSet,
    /// Its rule's, in vCPUs.
    pub(super) least: u32,
    pub(super) most: u32,
    /// pCPUs that it could use: at most those that it may, and no more than its cap and quotas of its vCPUs.
    pub(super) useful: f64,
    /// pCPUs that each of its vCPUs may use.
    pub(super) each: f64,
    /// pCPUs, as forecast.
    pub(super) wants: Option<f64>,
    /// vCPUs that it has, or had before it tried others.
    pub(super) has: u32,
    /// It uses a vCPU and more.
    pub(super) runs: bool,
    /// Its run queue is seen.
    pub(super) seen_into: bool,
}

impl Asked {
    /// pCPUs that it is guaranteed, of those that it could use: whole ones where numbers of vCPUs are all there is to see to it.
    pub(super) fn guaranteed(&self, weighs: bool) -> f64 {
        let least = f64::from(self.least);
        let own = if weighs { self.rule.guaranteed.unwrap_or(least).min(least) } else { least };
        own.min(if weighs { self.useful } else { f64::from(whole(self.useful)) })
    }

    /// Whole pCPUs of what it is guaranteed.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most a number of vCPUs")]
    pub(super) fn floor(&self, weighs: bool) -> u32 {
        self.guaranteed(weighs).floor() as u32
    }

    /// vCPUs that it can have at least.
    pub(super) fn fewest(&self) -> u32 {
        self.least.max(u32::try_from(self.cold.len()).unwrap_or(u32::MAX))
    }

    /// vCPUs that it can have at most.
    pub(super) fn largest(&self) -> u32 {
        self.most.max(self.fewest())
    }

    /// vCPUs that stay if it is granted so many pCPUs.
    pub(super) fn stay(&self, pcpus: u32) -> u32 {
        if self.sizable {
            vcpus(f64::from(pcpus), self.each).max(self.fewest())
        } else {
            u32::try_from(self.online.len()).unwrap_or(u32::MAX)
        }
    }

    /// What it uses of pCPUs if the vCPU that every VM keeps is enough for that: then there is nothing to ask for.
    pub(super) fn little(&self, weighs: bool) -> Option<f64> {
        self.wants.filter(|wants| *wants <= self.guaranteed(weighs).min(1.0))
    }

    /// Whole pCPUs that it asks for.
    fn wanted(&self, weighs: bool) -> u32 {
        match self.wants {
            None => self.floor(weighs),
            Some(_) if self.little(weighs).is_some() => 0,
            Some(wants) => whole(wants),
        }
    }

    /// pCPUs of these that it may use, with those that a control group had before it was sized.
    pub(super) fn may_use(&self, policy: &Policy, vm: &VmEstimate, online: &CpuSet) -> CpuSet {
        let own = may_use(policy, online, vm);
        match &self.width {
            Some(width) => own.union(&width.all.intersection(online)),
            None => own,
        }
    }

    /// What it asks the arbiter for.
    pub(super) fn request(&self, id: &VmId, weighs: bool) -> Request {
        Request {
            id: id.clone(),
            wants: self.wanted(weighs),
            least: self.floor(weighs),
            most: self.most.min(whole(self.useful)),
            priority: self.rule.priority.unwrap_or(0),
        }
    }
}

/// Which vCPUs stay longer, the smaller first: nobody is changed for another, and those that were offline before corefit come last and
/// go first, for a guest's administrator or its kernel (`nosmt`) may want them so. (Number 0 always stays.)
pub(super) fn rank(vcpu: CpuId, online: &CpuSet, had: &CpuSet) -> (bool, bool) {
    (!online.contains(vcpu), vcpu.0 != 0 && !had.contains(vcpu))
}

/// The change of the set of vCPUs: those that stay longest come first and go last.
pub(super) fn action(asked: &Asked, vm: &VmEstimate, choice: Choice) -> Option<Action> {
    let all = u32::try_from(vm.seen.vcpus.len()).unwrap_or(u32::MAX);
    let count = choice.count.max(1) as usize;
    let to: CpuSet = match &asked.order {
        Some(order) => order.iter().copied().map(CpuId).take(count).collect(),
        None => {
            let mut order: Vec<CpuId> = CpuSet::first(all).iter().collect();
            order.sort_by_key(|vcpu| (!asked.cold.contains(*vcpu), rank(*vcpu, &asked.online, &asked.had)));
            order.into_iter().take(count).collect()
        }
    };
    let now = Value::Vcpus(asked.online.clone());
    (to != asked.online).then(|| Action::of(&vm.seen, Lever::Online, Some(now), Value::Vcpus(to), choice.why))
}

/// The change of a control group's cpuset.
pub(super) fn cpuset(width: &Width, vm: &VmEstimate, to: CpuSet, why: Why) -> Option<Action> {
    let now = Value::Pcpus(width.now.clone());
    (to != width.now).then(|| Action::of(&vm.seen, Lever::Affinity(0), Some(now), Value::Pcpus(to), why))
}
