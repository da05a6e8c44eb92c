//! What is best for all together may be bad for one: none is to do less than with VCPU-Bal's counts, its part by weight. Who gets as many
//! vCPUs as those and more is harmed if it does clearly less; who gives up some, unless it was seen to do as much.

use super::proof::SURE;
use super::{Member, Race, Stat, UNITS};

/// None is to do less than this part, by so many standard errors of counting as [`SURE`].
const UNFAIR: f64 = 0.9;
/// Where both were watched in a race with time to watch on, by one standard error; and whoever may do less than this is in doubt.
const FAIR: f64 = 0.95;
/// However coarsely its work is counted: who does less than this, and runs less than this, loses.
pub(super) const LOSES: f64 = 0.9;

/// What a VM did at a level, beside what it did with VCPU-Bal's counts: all that is known, what that is worth, and a standard error of counting.
struct Compared {
    bal: usize,
    now: Stat,
    then: Stat,
    does: f64,
    did: f64,
    chance: f64,
}

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
        let Some(Compared { bal, now, then, does, did, chance }) = self.compared(member, level, bursts)
        else {
            return false;
        };
        let gives = member.counts[level] < member.bal;
        let watched = [level, bal].iter().all(|level| member.proofs[*level].seconds > 0.0);
        let (least, sure) = if self.patient && watched { (FAIR, 1.0) } else { (UNFAIR, SURE) };
        let slack = if gives { 0.0 } else { sure * chance };
        // What it runs is no matter of counting. (Of fewer vCPUs less may be wanted.)
        let loses = LOSES * (1.0 - now.error_of_turns() - then.error_of_turns());
        let runs_less = now.used().zip(then.used()).is_some_and(|(runs, ran)| runs < loses * ran);
        let unfair = does < least * (1.0 - slack) * did || !gives && runs_less && does < loses * did;
        unfair || gives && now.units.min(then.units) < UNITS
    }

    /// Whether it cannot be told of one of several VMs, by so many standard errors of counting, that it does as much at this level as with
    /// VCPU-Bal's counts.
    pub(super) fn is_doubtful(&self, level: usize, sure: f64) -> bool {
        let bursts = self.bursts();
        let mut compared = self.members.iter().filter_map(|member| self.compared(member, level, bursts));
        self.members.len() > 1 && compared.any(|of| of.does * (1.0 - sure * of.chance) < FAIR * of.did)
    }

    /// `None` if nothing is known of one of the two, or it is the same.
    fn compared(&self, member: &Member, level: usize, bursts: f64) -> Option<Compared> {
        let bal = self.bal_of(member).filter(|bal| *bal != level)?;
        let (now, then) = (member.seen_of(level), member.seen_of(bal));
        let (does, did) = now.value().zip(then.value()).filter(|(_, did)| *did > 0.0)?;
        let chance = now.chance(bursts).hypot(then.chance(bursts));
        Some(Compared { bal, now, then, does, did, chance })
    }

    /// The same of what a race without time to watch on found: some seconds tell little of who counts a few units in one.
    pub(in super::super) fn doubts(&self) -> bool {
        !self.patient && self.is_doubtful(self.turn, SURE)
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
