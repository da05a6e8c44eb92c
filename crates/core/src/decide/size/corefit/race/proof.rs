//! The end of a race: what was best is watched for longer, and with it what may be as good.
//!
//! ```text
//!            ┌── another was worth more in the race ──▶ that one is watched, too
//! watched ───┤
//!            └── another may still be clearly better ──▶ whoever of them was watched least, twice as long as before;
//!                                                        if that was enough, VCPU-Bal's if it is one of them
//! ```
//!
//! LU in a guest of 8 vCPUs on two pCPUs counts some ten units a second (`make manage-vms`): two seconds of each number say little, and the
//! best of eight is the luckiest. Where counting cannot tell 5 %, a race between all numbers (not the first one, which has to be short) goes
//! on until it can, or each was watched for 16 s. What is better than VCPU-Bal's counts, but not clearly, is watched in turns with them for
//! up to 64 s each: it costs no more than to stay with them would. If it is not clear then it does not take their place. What is clear by
//! counting may vary from turn to turn, as LU with all its vCPUs does, which is in step for seconds, then not: four turns each tell that.

use std::time::Duration;

use super::{BETTER, CLEAR, Member, PROOF, Race, Stage, Stat, UNITS, telling};

/// Levels that may be as good as the best are watched for so long each, at most.
const LONGEST: Duration = Duration::from_secs(16);
/// And so are VCPU-Bal's counts and what seems to be better.
const PATIENCE: Duration = Duration::from_secs(64);
/// Nobody's turn is longer: how fast a machine is changes from minute to minute.
const SLICE: Duration = Duration::from_secs(8);
/// From so many turns on it is told how a level varies from turn to turn.
const TURNS: usize = 4;
/// What varies is watched for so long before it is believed to do less than in the race.
const VARIES: Duration = Duration::from_secs(8);
/// It varies if the standard error of its mean is more than this part of it, or it does all but nothing of what it did.
pub(super) const UNSURE: f64 = 0.25;
const NOTHING: f64 = 0.1;
/// Two numbers that differ by less do the same: a phase of one thread does so with any, and the next phase may not.
const TIE: f64 = 1.02;
/// VCPU-Bal's counts are given up for what is better by so many standard errors.
pub(super) const SURE: f64 = 2.0;
/// But for what is better than this says they always are.
const ENOUGH: f64 = 0.8;

impl Race {
    pub(super) fn begin_proof(&mut self) -> bool {
        let Some(best) = self.best_of_fair() else { return true };
        let values = (0..self.levels.len()).filter(|level| !self.levels[*level].out && !self.harms(*level));
        let values: Vec<_> = values.filter_map(|level| Some((level, self.value(level)?))).collect();
        self.stage = Stage::Proof;
        self.turn = Race::modest(best, &values, |level| self.together(level).own());
        self.begin_watch();
        self.settling = true;
        false
    }

    /// Whether what is watched is as good as it seemed; if not, the next one. `true` if it is over.
    pub(super) fn prove(&mut self) -> bool {
        if self.holds() {
            return self.end_hold();
        }
        self.end_turn();
        let (best, known) = self.best_proven().unwrap_or((self.turn, 0.0));
        let close = self.close(best, known);
        let next = match self.all_bal.filter(|_| self.told_nothing()) {
            Some(bal) => {
                let watched = |level: usize| self.levels[level].out || !self.watched(level).is_zero();
                self.left_others |= (0..self.levels.len()).any(|level| level != bal && !watched(level));
                Some(bal).filter(|bal| self.watched(*bal).is_zero() && !self.harms(*bal))
            }
            None => self.rival(best, known).or_else(|| self.watch_again(best, &close)),
        };
        // Who cannot be told from VCPU-Bal's counts does not take their place.
        let least = |level: usize| self.least(best, level).min(1.0 / self.tie(best));
        let enough = |level: usize| self.proven(level).is_some_and(|value| value > least(level) * known);
        let bal = (0..self.levels.len()).find(|level| self.is_bal(*level) && enough(*level));
        let end = bal.unwrap_or(best);
        let end = if self.harms(end) { self.fair().unwrap_or(end) } else { end };
        let from = std::mem::replace(&mut self.turn, next.unwrap_or(end));
        if from == self.turn {
            self.begin_watch();
            return next.is_none();
        }
        self.go_from(from);
        self.begin_watch();
        self.settling = true;
        if next.is_none() {
            self.stage = Stage::Back;
        }
        false
    }

    /// Whether what was proven in a race without time to watch on did so much less than before, and not by the luck of few units, that the race
    /// told nothing of others either: threads were in step then, and are not any more.
    fn told_nothing(&self) -> bool {
        let bursts = self.bursts();
        // Of what half of it would have been.
        let counting = |member: &Member, level: usize| {
            let (raced, proof) = (member.stats[level], member.proofs[level]);
            let units = CLEAR * raced.units * proof.lasted() / raced.lasted().max(1e-9);
            raced.chance(bursts).hypot(Stat { units, ..proof }.chance(bursts))
        };
        let fell = |level: usize| {
            let least = CLEAR * (1.0 - self.error_of_mean(|member| counting(member, level)));
            let worth = self.proven(level).zip(self.value(level));
            !self.is_bal(level) && worth.is_some_and(|(proven, then)| proven < least * then)
        };
        !self.patient && (0..self.levels.len()).any(fell)
    }

    /// Guests that do not follow: this level is watched no more.
    pub(super) fn give_up(&mut self) -> bool {
        self.levels[self.turn].watched = PATIENCE;
        self.prove()
    }

    /// What trying others than the best cost in a look.
    pub(super) fn count_proof(&mut self, seconds: f64) {
        let Some((best, known)) = self.best_proven() else { return };
        let part = self.proven(self.turn).unwrap_or(0.0) / known.max(1e-9);
        let chance = self.that_matters(self.error_of_counting(best, self.turn));
        self.lost += seconds * (1.0 - (part + chance).min(1.0));
    }

    pub(super) fn begin_watch(&mut self) {
        self.looked = Duration::ZERO;
        let by = if self.is_coarse() { 2 } else { 1 };
        self.watch = self.watched(self.turn).clamp(by * PROOF, by * SLICE);
    }

    /// Keeps what the level was worth in this turn alone.
    fn end_turn(&mut self) {
        let Some(proven) = self.proven(self.turn) else { return };
        let all = self.all(|member| &member.proofs[self.turn]).seconds;
        let turns = &mut self.levels[self.turn].turns;
        let (worth, time) = turns.iter().fold((0.0, 0.0), |(worth, time), (v, s)| (worth + v * s, time + s));
        let seconds = all - time;
        if seconds > 1e-9 {
            turns.push(((proven * all - worth) / seconds, seconds));
        }
    }

    /// Standard error of what a level was worth in the proof, as it varied from turn to turn; 0 before that says something.
    fn unsteady(&self, level: usize) -> f64 {
        let turns = &self.levels[level].turns;
        let Some(proven) = self.proven(level).filter(|_| turns.len() >= TURNS) else { return 0.0 };
        let time: f64 = turns.iter().map(|(_, seconds)| seconds).sum();
        let squares: f64 = turns.iter().map(|(value, seconds)| ((value - proven) * seconds).powi(2)).sum();
        let turns = crate::units::count(turns.len());
        (squares * turns / (turns - 1.0)).sqrt() / time
    }

    /// Whether what is watched did less than in the race, but varies: then for longer. LU in a VM with a cap of 800 % does 0.02 to 7 times as
    /// much from second to second with all its vCPUs, three times as much as with eight in the long run.
    pub(super) fn watch_on(&mut self) -> bool {
        let level = self.turn;
        if self.holds() {
            return self.hold_on();
        }
        let (Some(proven), Some(raced)) = (self.proven(level), self.value(level)) else { return false };
        let error = self.error_of_mean(|member| member.proofs[level].error_of_looks() / member.usual());
        let varies = error > UNSURE * proven || proven < NOTHING * raced;
        // Where so few units are counted that looks vary by that, nothing is known of how the load does.
        let tells = |member: &Member| member.stats[level].rate().is_some_and(|rate| telling(rate) <= 1.0);
        let well = self.members.iter().filter(|member| member.usual() > 0.0).all(tells);
        // If what was best of the others in the race is the best.
        let others =
            (0..self.levels.len()).filter(|other| *other != level).filter_map(|other| self.value(other));
        let other = others.fold(proven, f64::max);
        let cost = PROOF.as_secs_f64() * (1.0 - proven / other.max(1e-9));
        let may = self.watched(level) < VARIES && !self.is_spent_with(cost);
        let on = well && varies && raced > BETTER * proven && may;
        if on {
            self.watch += PROOF;
            if !self.patient {
                self.lost += cost;
            }
        }
        on
    }

    /// Who is not better than VCPU-Bal's counts by this factor does not take their place. What a VM uses beyond its own part others miss.
    pub(super) fn tie(&self, level: usize) -> f64 {
        let takes = self.all(|member| &member.proofs[level]).own() < 1.0 / BETTER;
        if takes { BETTER } else { TIE }
    }

    fn watched(&self, level: usize) -> Duration {
        self.levels[level].watched
    }

    pub(super) fn proven(&self, level: usize) -> Option<f64> {
        self.worth(|member| &member.proofs[level])
    }

    fn best_proven(&self) -> Option<(usize, f64)> {
        let fair = (0..self.levels.len()).filter(|level| !self.harms(*level));
        let all: Vec<_> = fair.filter_map(|level| Some((level, self.proven(level)?))).collect();
        let best = all.iter().max_by(|a, b| a.1.total_cmp(&b.1))?.0;
        let best = Race::modest(best, &all, |level| self.all(|member| &member.proofs[level]).own());
        all.into_iter().find(|(level, _)| *level == best)
    }

    /// Of those levels that are worth about as much as the best one, which uses more than the VMs' own part, the one that takes least of others:
    /// beyond that part nothing more is worth anything, so chance decides between them.
    fn modest(best: usize, all: &[(usize, f64)], own: impl Fn(usize) -> f64) -> usize {
        let Some((_, most)) = all.iter().find(|(level, _)| *level == best) else { return best };
        if own(best) >= 1.0 / BETTER {
            return best;
        }
        let alike = all.iter().filter(|(_, value)| value * BETTER > *most).map(|(level, _)| *level);
        alike.max_by(|a, b| own(*a).total_cmp(&own(*b))).unwrap_or(best)
    }

    /// A level that was worth more in the race than what is proven so far.
    fn rival(&self, best: usize, known: f64) -> Option<usize> {
        let open = 0..self.levels.len();
        let open = open.filter(|level| self.watched(*level).is_zero() && !self.harms(*level));
        // VCPU-Bal's counts are given up only after looks in which the number of units could tell; one more may be all but done.
        let now = self.proven_together(self.turn);
        let few = |level: usize| {
            let enough = UNITS * self.bursts_at(level).max(1.0);
            now.units * self.together(level).lasted() < enough * now.lasted()
        };
        let may_be = |level: usize, value: f64| {
            let chance = self.chance(best, level);
            match self.is_bal(level) {
                true if few(level) => f64::INFINITY,
                true => (self.tie(best) * (value + self.unit(level))).max(value + SURE * chance * known),
                false if chance > 0.0 => (value / BETTER).max(value - (BETTER - 1.0 - chance) * known),
                false => value / BETTER,
            }
        };
        let values = open.filter_map(|level| Some((level, may_be(level, self.value(level)?))));
        let rival = values.max_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, value)| *value > known);
        rival.map(|(level, _)| level)
    }

    /// Proven levels that may be clearly better than the best of them, as far as units were counted, and VCPU-Bal's counts if it cannot be
    /// told that they are worse.
    fn close(&self, best: usize, known: f64) -> Vec<usize> {
        let told = |level: usize| !self.patient || self.levels[level].turns.len() >= TURNS;
        // Though all together do more, one of them may do less.
        let doubtful = self.patient && self.is_doubtful(best, 1.0);
        let close = |level: &usize| {
            let (proven, chance) = (self.proven(*level), self.chance(best, *level));
            let may_be_better = proven.is_some_and(|value| value + chance * known > BETTER * known);
            let least = if told(*level) && told(best) { (1.0 - SURE * chance).max(CLEAR) } else { CLEAR };
            let may_be_as_good =
                proven.or_else(|| self.value(*level)).is_some_and(|value| value > least * known);
            *level != best && (may_be_better || self.is_bal(*level) && (may_be_as_good || doubtful))
        };
        (0..self.levels.len()).filter(close).collect()
    }

    /// VCPU-Bal's counts are kept if they are worth more than this part of the best: as long as they are not clearly less, or, once counting
    /// tells what matters or took long, likely so.
    fn least(&self, best: usize, bal: usize) -> f64 {
        let long = |level: usize| self.watched(level) >= PATIENCE;
        let error = self.error_of_ratio(best, bal);
        let told = self.that_matters(error) == 0.0 || long(bal) && long(best);
        (1.0 - if told { error } else { SURE * error }).max(ENOUGH)
    }

    /// [`Race::error_of_ratio`]; none where it is less than what matters, nor in first races, which have to be short.
    pub(super) fn chance(&self, better: usize, level: usize) -> f64 {
        self.that_matters(self.error_of_ratio(better, level))
    }

    fn that_matters(&self, error: f64) -> f64 {
        if self.patient && error > BETTER - 1.0 { error } else { 0.0 }
    }

    /// Standard error of what a level is worth over what a better one is, were they the same: by counting, or as they vary from turn to turn if
    /// that is more.
    fn error_of_ratio(&self, better: usize, level: usize) -> f64 {
        if !self.patient {
            return 0.0;
        }
        let best = self.proven(better).filter(|worth| *worth > 0.0);
        let varies = best.map_or(0.0, |best| self.unsteady(better).hypot(self.unsteady(level)) / best);
        self.error_of_counting(better, level).max(varies)
    }

    fn error_of_counting(&self, better: usize, level: usize) -> f64 {
        let bursts = self.bursts();
        let one = |member: &Member| {
            let (better, seconds) = (member.seen_of(better), member.seen_of(level).lasted());
            let level = Stat { units: better.units * seconds / better.lasted().max(1e-9), ..better };
            better.chance(bursts).hypot(level.chance(bursts))
        };
        self.error_of_mean(one)
    }

    /// Standard error of what a level is worth, which is the mean over VMs, by that of each.
    fn error_of_mean(&self, one: impl Fn(&Member) -> f64) -> f64 {
        let all: Vec<f64> = self.members.iter().filter(|member| member.usual() > 0.0).map(one).collect();
        all.iter().map(|error| error * error).sum::<f64>().sqrt() / crate::units::count(all.len().max(1))
    }

    /// Of the best and those close to it who was watched least; `None` if there are none, or that was enough.
    fn watch_again(&self, best: usize, close: &[usize]) -> Option<usize> {
        if close.is_empty() || self.is_spent() {
            return None;
        }
        let until = |limit: Duration, level: usize| Some(level).filter(|level| self.watched(*level) < limit);
        let least = |levels: &mut dyn Iterator<Item = usize>| levels.min_by_key(|level| self.watched(*level));
        let all = least(&mut close.iter().copied().chain([best]))?;
        let bal = close.iter().copied().find(|level| self.is_bal(*level));
        let two = bal.filter(|bal| self.watched(*bal) < PATIENCE);
        let two = two.and_then(|bal| least(&mut [bal, best].into_iter()));
        until(LONGEST, all).or_else(|| until(PATIENCE, two?))
    }
}

impl Member {
    /// What the proof of a level showed, or else the race.
    pub(super) fn seen_of(&self, level: usize) -> Stat {
        if self.proofs[level].seconds > 0.0 { self.proofs[level] } else { self.stats[level] }
    }
}
