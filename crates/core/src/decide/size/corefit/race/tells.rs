//! What a race tells of a VM that takes part: the count that it has now, and what it did with each.

use super::{Member, Race, Stage, Stat};
use crate::machine::VmId;

impl Race {
    pub(super) fn member(&self, id: &VmId) -> Option<&Member> {
        self.members.iter().find(|member| member.id == *id)
    }

    /// The count of a VM now; `None` if it does not take part.
    pub(in super::super) fn count(&self, id: &VmId) -> Option<u32> {
        self.member(id).map(|member| if self.via { member.all() } else { member.counts[self.turn] })
    }

    /// VCPU-Bal's count of a VM when the race began; `None` in a race of a phase that is known.
    pub(in super::super) fn bal(&self, id: &VmId) -> Option<u32> {
        self.member(id).filter(|member| !member.of_phase).map(|member| member.bal)
    }

    /// Whether a VM that takes part may still have all that is tried.
    pub(in super::super) fn fits(&self, id: &VmId, may: impl Fn(u32) -> bool) -> bool {
        self.member(id).is_none_or(|member| member.counts.iter().all(|count| may(*count)))
    }

    /// What a VM did with each count.
    pub(in super::super) fn seen(&self, id: &VmId) -> Vec<(u32, Stat)> {
        let seen = self.member(id).map(|m| m.counts.iter().copied().zip(m.stats.iter().copied()));
        seen.into_iter().flatten().filter(|(_, stat)| stat.seconds > 0.0).collect()
    }

    /// Whether a VM's guest followed to no other count than what it had.
    pub(in super::super) fn only_as_it_was(&self, id: &VmId) -> bool {
        self.member(id).is_some_and(|member| member.vain > 0 && !member.moved)
    }

    /// What a VM did while the count that it has now was proven.
    pub(in super::super) fn proof(&self, id: &VmId) -> Stat {
        self.member(id).map_or(Stat::default(), |member| member.proofs[self.turn])
    }

    /// What a VM did in the proof, and where that is over what it did with VCPU-Bal's count; `None` if nobody counted its
    /// work.
    pub(in super::super) fn found(&self, id: &VmId) -> Option<(Stat, Option<f64>)> {
        let member = self.member(id).filter(|member| member.counted())?;
        let best = if self.holds() { member.whole(self.turn) } else { member.seen_of(self.turn) };
        let bal = self.of_bal(id).and_then(|bal| bal.value()).filter(|value| *value > 0.0);
        let gain = bal.zip(best.value()).map(|(bal, best)| best / bal);
        Some((best, gain))
    }

    /// How many VMs were seen when all had VCPU-Bal's counts, or else one: what it did then is not of that.
    pub(in super::super) fn vms(&self) -> usize {
        let seen = |level: usize| self.members.iter().all(|member| member.seen_of(level).seconds > 0.0);
        if self.all_bal.is_some_and(seen) { self.members.len() } else { 1 }
    }

    /// What a VM did with VCPU-Bal's count, as it was seen last; `None` if it was not.
    pub(in super::super) fn of_bal(&self, id: &VmId) -> Option<Stat> {
        let member = self.member(id).filter(|member| !member.of_phase)?;
        Some(member.seen_of(self.bal_of(member)?))
    }

    /// The level at which all have VCPU-Bal's counts; where that was not seen, one at which this VM has its own.
    pub(super) fn bal_of(&self, member: &Member) -> Option<usize> {
        let seen = |level: &usize| member.seen_of(*level).seconds > 0.0;
        let own = |level: &usize| member.counts[*level] == member.bal && seen(level);
        self.all_bal.filter(seen).or_else(|| (0..self.levels.len()).find(own))
    }

    /// Whether what it has now was best, and is only to be proven.
    pub(in super::super) fn believes(&self) -> bool {
        let best = || self.stage == Stage::Proof && self.best() == Some(self.turn);
        !self.via && !self.broken_off && (self.stage == Stage::Back || best())
    }
}
