//! Where only a cap of its own limits a VM, VCPU-Bal's counts or all vCPUs are best (docs/sizing.md, "With a cap"). With all of them threads that
//! spin do next to nothing until the turns in which the cap stops them are the same, and then more than with any other number; that takes
//! seconds, and each change undoes it. So all vCPUs are *held* once, in a piece. As long as threads may fall into step that goes on for
//! [`STEPS_IN`], though it costs more than other searches may. They are judged by all that was seen, of which half is forgotten again and again.

use std::time::Duration;

use super::proof::UNSURE;
use super::{CLEAR, MORE, Member, PROOF, Race, Stage, Stat};

/// Held on for so long at a time.
const HOLD: Duration = Duration::from_secs(1);
/// Held for so long, whatever that costs, while threads may fall into step (docs/sizing.md, "Threads fall into step late").
const STEPS_IN: Duration = Duration::from_secs(24);
/// Half of what was seen of them is forgotten when it is of more than so many seconds: what they do in step is not what they did before.
const FADES: f64 = 8.0;

impl Race {
    /// Begins to hold all vCPUs; `false` if they are out, or VCPU-Bal's counts.
    pub(super) fn hold(&mut self) -> bool {
        let seen = |all: usize| self.together(all).seconds > 0.0;
        let out = |all: usize| self.levels[all].out && !(seen(all) && self.may_step(all));
        let open = |all: &usize| !out(*all) && !self.is_bal(*all) && !self.harms(*all);
        let all = self.all_vcpus().filter(open);
        let Some(all) = all else { return false };
        self.levels[all].out = false;
        (self.stage, self.turn, self.settling) = (Stage::Proof, all, true);
        (self.looked, self.watch, self.lately) = (Duration::ZERO, HOLD, None);
        true
    }

    fn all_vcpus(&self) -> Option<usize> {
        let most = |level: usize| self.members.iter().all(|member| member.counts[level] == member.all());
        (0..self.levels.len()).find(|level| most(*level))
    }

    /// Whether all vCPUs are held now.
    pub(super) fn holds(&self) -> bool {
        self.few
            && self.stage == Stage::Proof
            && self.all_vcpus() == Some(self.turn)
            && !self.is_bal(self.turn)
    }

    /// Whether they do less than VCPU-Bal's counts so far, but may do more yet.
    pub(super) fn hold_on(&mut self) -> bool {
        let turn = self.turn;
        for member in self.members.iter_mut().filter(|member| member.whole(turn).seconds > FADES) {
            member.stats[turn].fade();
            member.proofs[turn].fade();
        }
        let (value, other) = self.held();
        let rises = self.lately.replace(value).is_some_and(|before| value > MORE * before);
        let (watched, known) = (self.levels[turn].watched, self.looked >= PROOF);
        let on = if known && self.harms(turn) {
            false
        } else if known && less(value, other) <= 0.0 {
            // What it comes to is to be known, too, and costs nothing.
            rises && watched < 2 * STEPS_IN
        } else if self.may_step(turn) && !self.steps_for_less(turn) {
            watched < STEPS_IN
        } else {
            watched < PROOF && value > CLEAR * other
        };
        if on {
            self.watch += HOLD;
        } else {
            self.lost += self.cost_of_hold();
        }
        on
    }

    /// Whether threads may fall into step there: next to nothing was done, or now more, now less, of late or, until they are held for
    /// [`FADES`], since the race began.
    fn may_step(&self, level: usize) -> bool {
        let tells = |member: &&Member| member.usual() > 0.0;
        self.members.iter().filter(tells).all(|member| {
            let varies = |stat: Stat| stat.error_of_looks() > UNSURE * stat.value().unwrap_or(0.0);
            let seen = member.seen_of(level);
            let long = self.levels[level].watched.as_secs_f64() >= FADES;
            seen.units < 1.0 || varies(seen) || !long && varies(member.whole(level))
        })
    }

    /// Whether what was done in the race, before the change undid it, was nearly as much as with VCPU-Bal's counts, but not more: in step it is no more.
    fn steps_for_less(&self, level: usize) -> bool {
        let worth = |level: usize| self.value(level).unwrap_or(0.0);
        let bal = self.all_bal.map_or(0.0, worth);
        (CLEAR * bal..bal).contains(&worth(level))
    }

    /// Whether all vCPUs did less than what there is now, but may do more some day: [`Race::may_step`], or they `did_more` before.
    pub(in super::super) fn left_all(&self, did_more: bool) -> bool {
        let may_step = |all: usize| self.may_step(all) && !self.steps_for_less(all);
        let may = |all: usize| all != self.turn && (did_more || may_step(all)) && !self.harms(all);
        self.few && self.all_vcpus().is_some_and(may)
    }

    /// The better one stays; `true` if that is what there is. VCPU-Bal's counts are proven before they take the place of what may be as good,
    /// unless others would miss what it takes.
    pub(super) fn end_hold(&mut self) -> bool {
        let (value, other) = self.held();
        let harms = self.harms(self.turn);
        let less = harms || value <= self.tie(self.turn) * other;
        let Some(bal) = self.all_bal.filter(|_| less) else { return true };
        let known = self.patient || harms || value < CLEAR * other;
        let from = std::mem::replace(&mut self.turn, bal);
        self.go_from(from);
        self.settling = true;
        if known {
            self.stage = Stage::Back;
        } else {
            self.begin_watch();
        }
        false
    }

    /// What holding costs so far, s.
    pub(super) fn cost_of_hold(&self) -> f64 {
        let (value, other) = self.held();
        less(value, other).max(0.0) * self.levels[self.turn].watched.as_secs_f64()
    }

    /// What all vCPUs were worth while they were held, in all looks if that varies, and the best of the others.
    fn held(&self) -> (f64, f64) {
        let varies = self.may_step(self.turn);
        let of = |member: &Member, level: usize| {
            if level == self.turn && !varies { member.proofs[level] } else { member.whole(level) }
        };
        let worth = |level: usize| {
            let whole: Vec<_> = self.members.iter().map(|member| of(member, level)).collect();
            self.worth_of(&whole).unwrap_or(0.0)
        };
        let others = (0..self.levels.len()).filter(|level| *level != self.turn);
        (worth(self.turn), others.map(worth).fold(0.0, f64::max))
    }
}

/// The part of what the other is worth that this one is not; below 0 it is worth more.
fn less(value: f64, other: f64) -> f64 {
    1.0 - value / other.max(1e-9)
}
