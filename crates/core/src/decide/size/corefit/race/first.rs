//! The first look of a race: what there is, unchanged. Threads that run in step need time to show it, and those that began in step may not
//! stay so.

use std::time::Duration;

use super::{HOPELESS, Look, MORE, Member, Race, Stat, UNITS};
use crate::machine::VmId;

/// Of fewer units less may be done in the next look by chance.
const FELL: f64 = 4.0 * UNITS;

impl Race {
    /// After a look that was added to what is known; `true` once it was looked at for long enough.
    pub(super) fn first_look(&mut self, over: Duration, looks: &[(VmId, Look)]) -> bool {
        let seconds = over.as_secs_f64();
        let now = self.sum(looks) / seconds.max(1e-9);
        let more = self.lately.is_none_or(|before| now > MORE * before);
        let less = self.lately.is_some_and(|before| before * seconds >= FELL && now < HOPELESS * before);
        // What was seen of a VM before the race is of longer.
        let less = less && !self.is_known_from_before();
        // In one look that may be chance.
        let gone = less && self.falls;
        self.falls = less && !gone;
        if !self.falls {
            self.lately = Some(now);
        }
        if gone {
            self.forget(looks, over);
            return false;
        }
        let telling = self.units_per_second(self.turn) * self.looked.as_secs_f64() >= UNITS;
        // Where nothing at all was counted VCPU-Bal's counts tell more than the other half; but for threads that fall into step, late.
        let part = if self.few || self.members.iter().any(Member::counted) { 1 } else { 2 };
        let long = self.looked >= self.length() / part;
        let seen = !more && !self.falls && telling || long && !self.is_not_heard_of();
        if seen {
            self.members.iter_mut().for_each(|member| member.first = member.stats[self.turn]);
        }
        seen
    }

    fn is_known_from_before(&self) -> bool {
        let seconds = self.looked.as_secs_f64() + 1e-9;
        self.members.iter().any(|member| member.stats[self.turn].seconds > seconds)
    }

    /// What was done before this look says nothing of what follows.
    fn forget(&mut self, looks: &[(VmId, Look)], over: Duration) {
        let turn = self.turn;
        for member in &mut self.members {
            member.stats[turn] = Stat::default();
            let look = looks.iter().find(|(id, look)| *id == member.id && look.online == member.counts[turn]);
            look.into_iter().for_each(|(_, look)| member.stats[turn].add(look, over.as_secs_f64()));
        }
        self.forget_beside(turn);
        self.looked = over;
    }
}
