//! A race between counts: all are tried for a moment, the slow ones are out, the others are tried for longer; the best
//! is watched for a while before it is believed.
//!
//! VMs that search at the same time race together, from one *level* to the next: each VM has a count at each level. One
//! at a time they would end elsewhere: under Xen's credit scheduler a VM weighs as many times more as it has vCPUs, so
//! to have fewer than the others is bad for whoever begins, and if all do it is good for all.
//!
//! The worth of a count is the work done per second, scaled down where more was used than the VM's own part: what is
//! taken from others is no gain. The value of a level is the mean of its VMs' worth over the best of each.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::machine::VmId;

/// A guest takes so long for each vCPU that goes offline or online (milliseconds in published measurements of Linux).
const PER_VCPU: Duration = Duration::from_millis(5);
/// What there is is looked at for so long before anything is changed: threads that run in step need it to show, and do
/// so again only some time after a change.
const FIRST: Duration = Duration::from_secs(1);
/// Rounds; each is twice as long as the one before.
const ROUNDS: u32 = 4;
/// A level is out after half a look if it is worth less than this part of the best.
const HOPELESS: f64 = 0.35;
/// Units of work that the best has to have done in a time for it to say something.
const UNITS: f64 = 8.0;
/// The longest look in the first round, in usual ones, where work is counted in large units.
const STRETCH: u32 = 4;
/// What a race found is proven for so long, s: just after a change a guest may do better or worse than later.
const PROOF: f64 = 2.0;
/// Another level is tried in its place if it was worth so many times more.
const BETTER: f64 = 1.05;

/// Seconds until work that is done at this rate tells something.
pub(super) fn telling(units_per_s: f64) -> f64 {
    UNITS / units_per_s
}

/// A VM that wants to race.
#[derive(Clone, Debug)]
pub(super) struct Entrant {
    pub(super) id: VmId,
    /// Its count at each level: what it has, VCPU-Bal's, all, then the others; `None`: VCPU-Bal's.
    pub(super) counts: Vec<Option<u32>>,
    pub(super) bal: u32,
    /// Of a look in the first round, and seconds that the race may cost.
    pub(super) window: Duration,
    pub(super) allowed: f64,
}

/// What one look at a VM showed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// vCPUs there really were.
    pub(super) online: u32,
    /// Units of work.
    pub(super) units: f64,
    /// pCPUs used, and the VM's own part.
    pub(super) used: f64,
    pub(super) part: f64,
}

/// What a VM did with a count.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stat {
    seconds: f64,
    units: f64,
    /// pCPU seconds used, and those of the VM's own part.
    used: f64,
    part: f64,
}

impl Stat {
    fn add(&mut self, look: &Look, seconds: f64) {
        self.seconds += seconds;
        self.units += look.units;
        self.used += look.used * seconds;
        self.part += look.part * seconds;
    }

    /// Worth per second; `None` before it was looked at.
    pub(super) fn value(&self) -> Option<f64> {
        let own = if self.used > self.part { self.part / self.used } else { 1.0 };
        (self.seconds > 0.0).then(|| self.units * own / self.seconds)
    }

    /// pCPUs used.
    pub(super) fn used(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.used / self.seconds)
    }

    /// How far off its value may be, as a part of it: what schedulers' turns do to short looks (measured on the
    /// simulated host), and counting: units come in bursts, as phases of a program differ.
    fn error(&self) -> f64 {
        0.02 + 0.05 * (0.2 / self.seconds.max(1e-3)).sqrt() + 1.0 / self.units.max(1.0).sqrt()
    }
}

#[derive(Clone, Debug)]
struct Member {
    id: VmId,
    bal: u32,
    counts: Vec<u32>,
    stats: Vec<Stat>,
    /// While the best is proven.
    proof: Stat,
}

impl Member {
    /// The most that it was worth.
    fn most(&self) -> f64 {
        self.stats.iter().filter_map(Stat::value).fold(0.0, f64::max)
    }

    fn counted(&self) -> bool {
        self.stats.iter().any(|stat| stat.units > 0.0)
    }
}

#[derive(Clone, Copy, Debug)]
struct Level {
    out: bool,
    /// What there is, VCPU-Bal's, all: they get a second look in any case.
    sure: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// What there is, unchanged.
    First,
    Rounds,
    /// Each VM with what was best for it.
    Mixed,
    Proof,
}

/// The race.
#[derive(Clone, Debug)]
pub(super) struct Race {
    members: Vec<Member>,
    levels: Vec<Level>,
    /// In the order of the turns.
    order: Vec<usize>,
    stage: Stage,
    window: Duration,
    round: u32,
    /// The level whose turn it is.
    turn: usize,
    /// Looked at in this turn.
    looked: Duration,
    /// The look that the change falls into does not count.
    settling: bool,
    /// vCPUs that the change was of, of the VM with most of them.
    step: u32,
    proven: Vec<(usize, f64)>,
    /// Seconds that trying cost, if the best is the best.
    pub(super) lost: f64,
    allowed: f64,
}

impl Race {
    /// Between these VMs' levels; there is at least one.
    pub(super) fn new(entrants: &[Entrant]) -> Race {
        let all = entrants.iter().map(|entrant| entrant.counts.len()).max().unwrap_or(0);
        let at = |level: usize| -> Vec<u32> {
            let count = |e: &Entrant| e.counts.get(level).copied().flatten().unwrap_or(e.bal);
            entrants.iter().map(count).collect()
        };
        let mut seen = BTreeSet::new();
        let mut rows: Vec<(bool, Vec<u32>)> = (0..all)
            .map(|level| (level < 3, at(level)))
            .filter(|(_, row)| seen.insert(row.clone()))
            .collect();
        // After the sure ones from many to few: fewer vCPUs change.
        rows.sort_by_key(|(sure, row)| (!sure, if *sure { 0 } else { u32::MAX - row.iter().sum::<u32>() }));
        let member = |(i, entrant): (usize, &Entrant)| Member {
            id: entrant.id.clone(),
            bal: entrant.bal,
            counts: rows.iter().map(|(_, row)| row[i]).collect(),
            stats: vec![Stat::default(); rows.len()],
            proof: Stat::default(),
        };
        Race {
            members: entrants.iter().enumerate().map(member).collect(),
            levels: rows.iter().map(|&(sure, _)| Level { out: false, sure }).collect(),
            order: (0..rows.len()).collect(),
            stage: Stage::First,
            window: entrants.iter().map(|entrant| entrant.window).max().unwrap_or_default(),
            round: 0,
            turn: 0,
            looked: Duration::ZERO,
            settling: true,
            step: 0,
            proven: vec![],
            lost: 0.0,
            allowed: entrants.iter().map(|entrant| entrant.allowed).fold(f64::INFINITY, f64::min),
        }
    }

    fn member(&self, id: &VmId) -> Option<&Member> {
        self.members.iter().find(|member| member.id == *id)
    }

    /// The count of a VM now; `None` if it does not take part.
    pub(super) fn count(&self, id: &VmId) -> Option<u32> {
        self.member(id).map(|member| member.counts[self.turn])
    }

    /// What a VM did with each count.
    pub(super) fn seen(&self, id: &VmId) -> Vec<(u32, Stat)> {
        let seen = self.member(id).map(|m| m.counts.iter().copied().zip(m.stats.iter().copied()));
        seen.into_iter().flatten().filter(|(_, stat)| stat.seconds > 0.0).collect()
    }

    /// What a VM did in the proof, and where that is over what it did with VCPU-Bal's count; `None` if nobody counted its
    /// work.
    pub(super) fn found(&self, id: &VmId) -> Option<(Stat, Option<f64>)> {
        let member = self.member(id).filter(|member| member.counted())?;
        let best = &member.stats[self.turn];
        let bal = member.counts.iter().position(|count| *count == member.bal);
        let bal = bal.and_then(|bal| member.stats[bal].value()).filter(|value| *value > 0.0);
        let gain = bal.zip(best.value()).map(|(bal, best)| best / bal);
        Some((if member.proof.seconds > 0.0 { member.proof } else { *best }, gain))
    }

    /// When to look next.
    pub(super) fn next(&self) -> Duration {
        match self.stage {
            _ if self.settling => self.window / 4 + PER_VCPU * self.step,
            Stage::First | Stage::Rounds | Stage::Mixed => self.length() / 2,
            Stage::Proof => Duration::from_secs(1),
        }
    }

    fn length(&self) -> Duration {
        if self.stage == Stage::First { FIRST.max(self.window) } else { self.window * (1 << self.round) }
    }

    /// Takes what all showed into account; `true` when the race is over. Who shows nothing is gone.
    pub(super) fn look(&mut self, over: Duration, looks: &[(VmId, Look)]) -> bool {
        let of = |id: &VmId| looks.iter().find(|(of, _)| of == id).map(|(_, look)| look);
        self.members.retain(|member| of(&member.id).is_some());
        if self.members.is_empty() {
            return true;
        }
        let turn = self.turn;
        let follows = |member: &Member| of(&member.id).is_some_and(|l| l.online == member.counts[turn]);
        if std::mem::take(&mut self.settling) {
            // Guests that do not follow: another level, or none.
            let nobody = !self.members.iter().any(follows);
            self.levels[turn].out |= nobody;
            return nobody && self.go_on();
        }
        let seconds = over.as_secs_f64();
        let proof = self.stage == Stage::Proof;
        let now: Vec<bool> = self.members.iter().map(follows).collect();
        for (member, _) in self.members.iter_mut().zip(now).filter(|(_, follows)| *follows) {
            let look = looks.iter().find(|(id, _)| *id == member.id).map(|(_, look)| look);
            let stat = if proof { &mut member.proof } else { &mut member.stats[turn] };
            look.into_iter().for_each(|look| stat.add(look, seconds));
        }
        self.looked += over;
        if proof {
            return self.looked.as_secs_f64() >= PROOF && self.prove();
        }
        let (value, best) = (self.value(turn).unwrap_or(0.0), self.best());
        let most = best.and_then(|best| self.value(best)).unwrap_or(0.0);
        let units = (0..self.levels.len()).map(|level| self.units_per_second(level)).fold(0.0, f64::max);
        let telling = units * self.looked.as_secs_f64() >= UNITS;
        if most > 0.0 && self.stage != Stage::First {
            self.lost += seconds * (1.0 - (value / most).min(1.0));
        }
        let hopeless = self.stage == Stage::Rounds
            && self.round == 0
            && !self.levels[turn].sure
            && telling
            && value < HOPELESS * most;
        let length = self.length();
        let long = self.stage == Stage::First || self.looked >= length * STRETCH;
        self.levels[turn].out |= hopeless;
        (hopeless || self.looked >= length && (telling || long)) && self.go_on()
    }

    /// The mean of what VMs were worth there, over the most that each was worth.
    fn value(&self, level: usize) -> Option<f64> {
        self.mean(|member| member.stats[level].value())
    }

    fn mean(&self, value: impl Fn(&Member) -> Option<f64>) -> Option<f64> {
        let parts = self.members.iter().filter(|member| member.most() > 0.0);
        let parts: Vec<f64> = parts.filter_map(|member| Some(value(member)? / member.most())).collect();
        (!parts.is_empty()).then(|| parts.iter().sum::<f64>() / crate::share::count(parts.len()))
    }

    /// All VMs together.
    fn together(&self, level: usize) -> Stat {
        let mut all = Stat::default();
        for stat in self.members.iter().map(|member| &member.stats[level]) {
            all.seconds = all.seconds.max(stat.seconds);
            all.units += stat.units;
        }
        all
    }

    fn units_per_second(&self, level: usize) -> f64 {
        let all = self.together(level);
        if all.seconds > 0.0 { all.units / all.seconds } else { 0.0 }
    }

    /// The best level so far.
    fn best(&self) -> Option<usize> {
        let values = (0..self.levels.len()).filter_map(|level| Some((level, self.value(level)?)));
        values.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(level, _)| level)
    }

    /// The next turn; `true` if there is none.
    fn go_on(&mut self) -> bool {
        let from = self.turn;
        let over = self.take_turn();
        let step = |member: &Member| member.counts[from].abs_diff(member.counts[self.turn]);
        self.step = self.members.iter().map(step).max().unwrap_or(0);
        over
    }

    fn take_turn(&mut self) -> bool {
        self.looked = Duration::ZERO;
        self.settling = true;
        if self.stage == Stage::Mixed || self.lost > self.allowed {
            return self.begin_proof();
        }
        if self.is_silent() {
            return true;
        }
        if self.stage == Stage::First {
            self.stage = Stage::Rounds;
        }
        let at = self.order.iter().position(|level| *level == self.turn).unwrap_or(0);
        if let Some(next) = self.order[at + 1..].iter().find(|level| !self.levels[**level].out) {
            self.turn = *next;
            return false;
        }
        self.prune();
        self.round += 1;
        // Back the way it came: fewer vCPUs change.
        self.order.reverse();
        let left: Vec<usize> = self.order.iter().copied().filter(|level| !self.levels[*level].out).collect();
        if left.len() >= 2 && self.round < ROUNDS {
            self.turn = left[0];
            return false;
        }
        self.begin_mixed()
    }

    /// Two levels, and nothing was counted: there is no signal.
    fn is_silent(&self) -> bool {
        let seen = (0..self.levels.len()).filter(|level| self.together(*level).seconds > 0.0).count();
        seen >= 2 && !self.members.iter().any(Member::counted)
    }

    fn prune(&mut self) {
        let Some(best) = self.best() else { return };
        let least = self.value(best).unwrap_or(0.0) * (1.0 - self.together(best).error());
        for level in (0..self.levels.len()).filter(|level| *level != best) {
            if self.round == 0 && self.levels[level].sure {
                continue;
            }
            let most = self.value(level).map(|value| value * (1.0 + self.together(level).error()));
            self.levels[level].out |= most.is_none_or(|most| most < least);
        }
    }

    /// Where other levels were clearly better for some VMs, one level more: each with what was best for it.
    fn begin_mixed(&mut self) -> bool {
        let Some(best) = self.best() else { return true };
        let choose = |member: &Member| {
            let known = |level: &usize| member.stats[*level].value().is_some();
            let value = |level: usize| member.stats[level].value().unwrap_or(0.0);
            let own = (0..self.levels.len()).filter(known).max_by(|a, b| value(*a).total_cmp(&value(*b)));
            let own = own.unwrap_or(best);
            let clear = value(own) * (1.0 - member.stats[own].error())
                > value(best) * (1.0 + member.stats[best].error());
            member.counts[if clear { own } else { best }]
        };
        let mixed: Vec<u32> = self.members.iter().map(choose).collect();
        let known =
            |level: usize| self.members.iter().zip(&mixed).all(|(m, count)| m.counts[level] == *count);
        if (0..self.levels.len()).any(known) {
            return self.begin_proof();
        }
        for (member, count) in self.members.iter_mut().zip(mixed) {
            member.counts.push(count);
            member.stats.push(Stat::default());
        }
        self.levels.push(Level { out: false, sure: true });
        self.turn = self.levels.len() - 1;
        self.round = ROUNDS - 1;
        self.stage = Stage::Mixed;
        false
    }

    fn begin_proof(&mut self) -> bool {
        self.stage = Stage::Proof;
        self.looked = Duration::ZERO;
        self.settling = true;
        let Some(best) = self.best() else { return true };
        self.turn = best;
        false
    }

    /// Whether what is watched is as good as it seemed; if not, the next one.
    fn prove(&mut self) -> bool {
        self.proven.push((self.turn, self.mean(|member| member.proof.value()).unwrap_or(0.0)));
        let best = self.proven.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1));
        let (best, known) = best.unwrap_or((self.turn, 0.0));
        let open =
            (0..self.levels.len()).filter(|level| self.proven.iter().all(|(proven, _)| proven != level));
        // What is not clearly better than VCPU-Bal's counts has to be so for as long.
        let bal = |level: usize| self.members.iter().all(|member| member.counts[level] == member.bal);
        let may_be =
            |level: usize| if bal(level) { 1.0 + self.together(level).error() } else { 1.0 / BETTER };
        let values = open.filter_map(|level| Some((level, self.value(level)? * may_be(level))));
        let rival = values.max_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, value)| *value > known);
        let (next, over) = rival.map_or((best, true), |(rival, _)| (rival, false));
        if next != self.turn {
            let step = |member: &Member| member.counts[self.turn].abs_diff(member.counts[next]);
            self.step = self.members.iter().map(step).max().unwrap_or(0);
            self.members.iter_mut().for_each(|member| member.proof = Stat::default());
        }
        self.turn = next;
        self.looked = Duration::ZERO;
        self.settling = true;
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entrant(number: usize, counts: &[u32], bal: u32, allowed: f64) -> Entrant {
        Entrant {
            id: VmId(number.to_string()),
            counts: counts.iter().copied().map(Some).collect(),
            bal,
            window: Duration::from_millis(100),
            allowed,
        }
    }

    /// Rate and pCPUs used of a VM, by its number and all counts.
    type Does<'a> = &'a dyn Fn(usize, &[u32]) -> (f64, f64);

    /// Runs a race on rates and pCPUs used by VM and all counts; the counts that it ends with, and what it cost.
    fn race(entrants: &[Entrant], does: Does<'_>) -> (Vec<u32>, f64) {
        let mut race = Race::new(entrants);
        let counts =
            |race: &Race| -> Vec<u32> { entrants.iter().filter_map(|e| race.count(&e.id)).collect() };
        for _ in 0..10_000 {
            let (now, over) = (counts(&race), race.next());
            let look = |(number, entrant): (usize, &Entrant)| {
                let (rate, used) = does(number, &now);
                let units = rate * over.as_secs_f64();
                (entrant.id.clone(), Look { online: now[number], units, used, part: 1.0 })
            };
            let looks: Vec<(VmId, Look)> = entrants.iter().enumerate().map(look).collect();
            if race.look(over, &looks) {
                return (counts(&race), race.lost);
            }
        }
        panic!("it does not end");
    }

    fn alone(rates: &dyn Fn(u32) -> f64, counts: &[u32], allowed: f64) -> (u32, f64) {
        let (counts, lost) = race(&[entrant(0, counts, 4, allowed)], &|_, counts| (rates(counts[0]), 1.0));
        (counts[0], lost)
    }

    #[test]
    fn it_finds_the_best_of_a_rugged_landscape_and_costs_little() {
        let rates = |n: u32| match n {
            16 => 1000.0,
            12 => 1100.0,
            _ => 90.0 + f64::from(n),
        };
        let all: Vec<u32> = (1..=16).rev().collect();
        let (best, lost) = alone(&rates, &all, 10.0);
        assert_eq!(best, 12);
        assert!(lost < 1.5, "{lost}");
    }

    #[test]
    fn it_stops_when_it_has_cost_what_it_may() {
        let rates = |n: u32| if n == 16 { 1000.0 } else { 500.0 };
        let all: Vec<u32> = (1..=16).rev().collect();
        let (best, lost) = alone(&rates, &all, 0.2);
        assert_eq!(best, 16);
        assert!(lost < 0.3, "{lost}");
    }

    #[test]
    fn what_is_taken_from_others_is_no_gain() {
        // Four times the vCPUs take three times the pCPUs, and do twice the work.
        let does = |_: usize, counts: &[u32]| if counts[0] == 16 { (2000.0, 3.0) } else { (1000.0, 1.0) };
        assert_eq!(race(&[entrant(0, &[16, 4], 4, 10.0)], &does).0, [4]);
    }

    #[test]
    fn vms_end_where_all_are_best_off_though_each_would_gain_by_having_more_than_the_others() {
        let does = |vm: usize, counts: &[u32]| {
            let part = 2.0 * f64::from(counts[vm]) / f64::from(counts.iter().sum::<u32>());
            (part * if counts[vm] <= 4 { 1000.0 } else { 700.0 }, part.min(1.0))
        };
        let two = [entrant(0, &[16, 4, 16, 8], 4, 10.0), entrant(1, &[16, 4, 16, 8], 4, 10.0)];
        assert_eq!(race(&two, &does).0, [4, 4]);
    }

    #[test]
    fn each_gets_what_is_best_for_it_where_that_is_better_for_all() {
        let does = |vm: usize, counts: &[u32]| (if counts[vm] == [4, 16][vm] { 1000.0 } else { 600.0 }, 1.0);
        let two = [entrant(0, &[16, 4, 16, 8], 4, 10.0), entrant(1, &[16, 4, 16, 8], 4, 10.0)];
        assert_eq!(race(&two, &does).0, [4, 16]);
    }

    #[test]
    fn who_is_gone_does_not_hold_up_the_others() {
        let two = [entrant(0, &[16, 4], 4, 10.0), entrant(1, &[16, 4], 4, 10.0)];
        let mut race = Race::new(&two);
        let look = |online| Look { online, units: f64::from(online), used: 1.0, part: 1.0 };
        let mut over = false;
        for _ in 0..1000 {
            let Some(online) = race.count(&two[1].id).filter(|_| !over) else { break };
            over = race.look(race.next(), &[(two[1].id.clone(), look(online))]);
        }
        assert!(over && race.count(&two[0].id).is_none());
    }
}
