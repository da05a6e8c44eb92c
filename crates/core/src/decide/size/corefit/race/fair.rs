//! What is best for all together may be bad for one: none is to do less than with VCPU-Bal's counts, its part by weight. Who gets as many
//! vCPUs as those and more is harmed if it does clearly less; who gives up some, unless it was seen to do as much.

use super::proof::SURE;
use super::{Member, Race, UNITS};

/// None is to do less than this part.
const UNFAIR: f64 = 0.9;

impl Race {
    /// Whether that is so of one of several VMs that are tried together, or beside.
    pub(super) fn harms(&self, level: usize) -> bool {
        self.harms_members(level) || self.harms_beside(level) || self.will_harm_beside(level)
    }

    fn harms_members(&self, level: usize) -> bool {
        let bursts = if self.members.len() > 1 { self.bursts() } else { return false };
        self.members.iter().any(|member| self.is_harmed(member, level, bursts))
    }

    /// Whether that is so of this one, where units vary so ([`Race::bursts`]).
    pub(super) fn is_harmed(&self, member: &Member, level: usize, bursts: f64) -> bool {
        let Some(bal) = self.bal_of(member).filter(|bal| *bal != level) else { return false };
        let (now, then) = (member.seen_of(level), member.seen_of(bal));
        let Some((does, did)) = now.value().zip(then.value()).filter(|(_, did)| *did > 0.0) else {
            return false;
        };
        let gives = member.counts[level] < member.bal;
        let slack = if gives { 0.0 } else { SURE * now.chance(bursts).hypot(then.chance(bursts)) };
        does < UNFAIR * (1.0 - slack) * did || gives && now.units.min(then.units) < UNITS
    }

    /// The best level of those that harm nobody, if there are such.
    pub(super) fn best_of_fair(&self) -> Option<usize> {
        self.fairest(|level| self.value(level)).or_else(|| self.best())
    }

    /// The same of those that were proven; else VCPU-Bal's counts, if they were seen.
    pub(super) fn fair(&self) -> Option<usize> {
        let best = self.fairest(|level| self.proven(level));
        best.or(self.all_bal.filter(|bal| self.together(*bal).seconds > 0.0))
    }

    fn fairest(&self, worth: impl Fn(usize) -> Option<f64>) -> Option<usize> {
        let fair = (0..self.levels.len()).filter(|level| !self.harms(*level));
        let fair = fair.filter_map(|level| Some((level, worth(level)?)));
        fair.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(level, _)| level)
    }
}
