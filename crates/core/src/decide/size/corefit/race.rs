//! A race between counts: all are tried for a moment, the slow ones are out, the others are tried for longer; the best
//! is watched for a while before it is believed.
//!
//! VMs that search at the same time race together, from one *level* to the next: each VM has a count at each level. One
//! at a time they would end elsewhere: under Xen's credit scheduler a VM weighs as many times more as it has vCPUs, so
//! to have fewer than the others is bad for whoever begins, and if all do it is good for all.
//!
//! The worth of a level is the mean of the work its VMs did per second over what each usually does, scaled down where all
//! together used more than their own parts: what is taken from others is no gain.
//!
//! Each change costs, and threads may never be again as they were. So where VCPU-Bal's counts and all vCPUs differ
//! much, the better of the two is taken and nothing else tried ([`CLEAR`]); and a level is left as soon as it cannot be
//! the best ([`HOPELESS`]).

mod beside;
mod cost;
mod fair;
mod first;
mod hold;
mod proof;
mod tells;
mod worth;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use self::beside::Beside;
pub(super) use self::beside::{Dues, Neighbour};
use super::stat::{Look, Stat};
use crate::machine::VmId;

/// A guest takes so long for each vCPU that goes offline or online (milliseconds in published measurements of Linux).
const PER_VCPU: Duration = Duration::from_millis(5);
/// What there is is looked at for so long before anything is changed, as long as it does more from look to look: threads
/// that run in step need it to show, and do so again only some time after a change.
const FIRST: Duration = Duration::from_secs(1);
/// Looks of that time; two of them at least.
const FIRST_LOOKS: u32 = 4;
/// It does more if it does so many times what it did.
const MORE: f64 = 1.05;
/// Rounds; each is twice as long as the one before. Where there is no time to watch on there is one less: what it could tell apart
/// differs by less than it costs.
const ROUNDS: u32 = 4;
/// A level is out as soon as it is clear that it is worth less than this part of the best.
const HOPELESS: f64 = 0.35;
/// Where one of what there is, VCPU-Bal's counts and all is worth less than this part of another, the best of them is taken, and
/// no others are tried before long: on none of 180 simulated hosts would another have been 4 % better.
const CLEAR: f64 = 0.5;
/// Who used this part of its own with VCPU-Bal's counts ran as it does there.
const RAN: f64 = 0.9;
/// Units of work that the best has to have done in a time for it to say something.
const UNITS: f64 = 8.0;
/// Fewer of them in all rounds together do not tell a tenth.
const COARSE: f64 = 100.0;
/// The longest look in the first round, in usual ones, where work is counted in large units.
const STRETCH: u32 = 4;
/// Where nothing at all was counted yet VCPU-Bal's counts, which are safe, are looked at for so long before nobody counts.
const SILENCE: Duration = Duration::from_secs(5);
/// Whoever did not follow for so many turns in a row leaves the race: the others cannot be compared beside him.
const IN_VAIN: u32 = 2;
/// What a race found is proven for so long at first: just after a change a guest may do better or worse than later.
pub(super) const PROOF: Duration = Duration::from_secs(2);
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
    /// What it did of late with what it has.
    pub(super) known: Stat,
    pub(super) bal: u32,
    /// That is the best count of a phase that is known.
    pub(super) of_phase: bool,
    /// All levels are to be tried, however clear things are.
    pub(super) all: bool,
    /// Only VCPU-Bal's count or all may be best.
    pub(super) few: bool,
    /// Of a look in the first round, and seconds that the race may cost.
    pub(super) window: Duration,
    pub(super) allowed: f64,
}

#[derive(Clone, Debug)]
struct Member {
    id: VmId,
    /// VCPU-Bal's count, or the best one of a phase that is known.
    bal: u32,
    of_phase: bool,
    counts: Vec<u32>,
    stats: Vec<Stat>,
    /// While a level was proven.
    proofs: Vec<Stat>,
    /// What it did before anything was changed.
    first: Stat,
    /// Turns in a row, of those in which it was to change, for which it did not.
    vain: u32,
    /// Whether it ever followed to another count than its first.
    moved: bool,
}

impl Member {
    /// All vCPUs that it may have.
    fn all(&self) -> u32 {
        self.counts.iter().copied().max().unwrap_or(self.bal)
    }

    /// Units per second in all looks: what it usually does.
    fn usual(&self) -> f64 {
        let all = self.stats.iter().fold((0.0, 0.0), |(a, b), stat| (a + stat.units, b + stat.seconds));
        if all.1 > 0.0 { all.0 / all.1 } else { 0.0 }
    }

    /// What it did at a level in the race and in the proof.
    fn whole(&self, level: usize) -> Stat {
        let mut whole = self.stats[level];
        whole.add_stat(&self.proofs[level]);
        whole
    }

    fn counted(&self) -> bool {
        self.stats.iter().any(|stat| stat.units > 0.0)
    }
}

#[derive(Clone, Debug, Default)]
struct Level {
    out: bool,
    /// What there is, VCPU-Bal's, all: they get a second look in any case.
    sure: bool,
    /// Of the proof, whether guests followed or not.
    watched: Duration,
    /// What it was worth in each turn of the proof, and how long that was, s.
    turns: Vec<(f64, f64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// What there is, unchanged.
    First,
    Rounds,
    /// Each VM with what was best for it.
    Mixed,
    Proof,
    /// On the way to what was found.
    Back,
}

/// The race.
#[derive(Clone, Debug)]
pub(super) struct Race {
    members: Vec<Member>,
    /// All VMs of the host.
    beside: BTreeMap<VmId, Beside>,
    /// What they got when all had VCPU-Bal's counts.
    dues: Dues,
    levels: Vec<Level>,
    /// At which all have VCPU-Bal's counts, or those of phases that are known.
    all_bal: Option<usize>,
    of_phase: bool,
    /// In the order of the turns.
    order: Vec<usize>,
    stage: Stage,
    thorough: bool,
    /// It is nobody's first race: there is time to watch on.
    patient: bool,
    /// Only VCPU-Bal's counts and all vCPUs may be best: with all threads may fall into step, but only after seconds.
    pub(super) few: bool,
    window: Duration,
    round: u32,
    /// The level whose turn it is.
    turn: usize,
    /// Looked at in this turn.
    looked: Duration,
    /// The look that the change falls into does not count.
    settling: bool,
    /// How long what was used before is paid for.
    paid: Duration,
    /// On the way to more vCPUs: all are online for a moment. A vCPU that comes takes one thread of another, so threads
    /// would be spread unevenly; those of vCPUs that go are spread evenly.
    via: bool,
    /// What there is, or is held, was worth after the last look.
    lately: Option<f64>,
    /// In the last one it did much less.
    falls: bool,
    /// vCPUs that the change was of, of the VM with most of them.
    step: u32,
    /// What is proven is watched for so long in this turn.
    watch: Duration,
    /// Most levels were not tried: things were clear.
    pub(super) left_others: bool,
    /// It ended for others' sake, and found nothing.
    pub(super) broken_off: bool,
    /// Seconds that trying cost, if the best is the best; and what the changes cost.
    lost: f64,
    changes: f64,
    allowed: f64,
}

impl Race {
    /// Between these VMs' levels; there is at least one.
    pub(super) fn new(entrants: &[Entrant], dues: Dues) -> Race {
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
        let member = |(i, entrant): (usize, &Entrant)| {
            let mut stats = vec![Stat::default(); rows.len()];
            // Of several VMs it would be of different times.
            let own = entrants.len() == 1 && entrant.counts.first().is_some_and(Option::is_some);
            if let Some(stat) = stats.first_mut().filter(|_| own) {
                *stat = entrant.known;
            }
            Member {
                id: entrant.id.clone(),
                bal: entrant.bal,
                of_phase: entrant.of_phase,
                counts: rows.iter().map(|(_, row)| row[i]).collect(),
                stats,
                proofs: vec![Stat::default(); rows.len()],
                first: Stat::default(),
                vain: 0,
                moved: false,
            }
        };
        let mut race = Race {
            members: entrants.iter().enumerate().map(member).collect(),
            beside: BTreeMap::new(),
            dues,
            all_bal: None,
            of_phase: entrants.iter().any(|entrant| entrant.of_phase),
            levels: rows.iter().map(|&(sure, _)| Level { sure, ..Level::default() }).collect(),
            order: (0..rows.len()).collect(),
            stage: Stage::First,
            thorough: entrants.iter().any(|entrant| entrant.all),
            patient: entrants.iter().all(|entrant| entrant.all),
            few: entrants.iter().all(|entrant| entrant.few),
            window: entrants.iter().map(|entrant| entrant.window).max().unwrap_or_default(),
            round: 0,
            turn: 0,
            looked: Duration::ZERO,
            settling: true,
            paid: Duration::ZERO,
            via: false,
            lately: None,
            falls: false,
            step: 0,
            watch: PROOF,
            left_others: false,
            broken_off: false,
            lost: 0.0,
            changes: 0.0,
            allowed: entrants.iter().map(|entrant| entrant.allowed).fold(f64::INFINITY, f64::min),
        };
        race.all_bal = race.find_bal();
        race
    }

    fn find_bal(&self) -> Option<usize> {
        (0..self.levels.len()).find(|level| self.is_bal(*level))
    }

    /// Back to what there was, for others wait; `false` if this race cannot wait either, or is all but over.
    pub(super) fn break_off(&mut self) -> bool {
        if !self.patient || self.stage == Stage::Back {
            return false;
        }
        if self.holds() {
            self.lost += self.cost_of_hold();
        }
        let from = std::mem::replace(&mut self.turn, 0);
        self.go_from(from);
        (self.stage, self.settling, self.broken_off) = (Stage::Back, true, true);
        true
    }

    /// When to look next.
    pub(super) fn next(&self) -> Duration {
        match self.stage {
            _ if self.via => PER_VCPU * self.step,
            _ if self.settling => self.window / 4 + PER_VCPU * self.step,
            Stage::First => self.length() / FIRST_LOOKS,
            Stage::Rounds | Stage::Mixed => self.length() / 2,
            Stage::Proof | Stage::Back => Duration::from_secs(1),
        }
    }

    fn length(&self) -> Duration {
        if self.stage == Stage::First { FIRST.max(self.window) } else { self.window * (1 << self.round) }
    }

    /// Takes what all showed into account; `true` when the race is over. Who shows nothing is gone, as is who does not follow.
    pub(super) fn look(&mut self, over: Duration, looks: &[(VmId, Look)]) -> bool {
        let of = |id: &VmId| looks.iter().find(|(of, _)| of == id).map(|(_, look)| look);
        if !self.keep(|member| of(&member.id).is_some()) {
            return true;
        }
        let turn = self.turn;
        let follows = |member: &Member| of(&member.id).is_some_and(|l| l.online == member.counts[turn]);
        if std::mem::take(&mut self.via) {
            self.count_change(looks, over);
            self.step = self.most_of(|member| member.all() - member.counts[turn]);
            return false;
        }
        let now: Vec<bool> = self.members.iter().map(follows).collect();
        if std::mem::take(&mut self.settling) {
            // Guests that do not follow: another level, or none.
            let nobody = !now.contains(&true);
            if self.stage != Stage::Back && !nobody && self.pays(looks, over) {
                return false;
            }
            self.count_change(looks, over);
            if self.stage == Stage::Back {
                return true;
            }
            self.heed(&now, 1);
            if !self.keep(|member| member.vain < IN_VAIN) {
                return true;
            }
            self.levels[turn].out |= nobody;
            return nobody && if self.stage == Stage::Proof { self.give_up() } else { self.go_on() };
        }
        let seconds = over.as_secs_f64();
        let proof = self.stage == Stage::Proof;
        self.heed(&now, 0);
        for (member, _) in self.members.iter_mut().zip(now).filter(|(_, follows)| *follows) {
            let look = looks.iter().find(|(id, _)| *id == member.id).map(|(_, look)| look);
            let stat = if proof { &mut member.proofs[turn] } else { &mut member.stats[turn] };
            // What is withheld for as long as that may never come.
            let look = look.map(|look| Look { withheld: if proof { 0.0 } else { look.withheld }, ..*look });
            look.into_iter().for_each(|look| stat.add(&look, seconds));
        }
        self.looked += over;
        if proof {
            self.levels[turn].watched += over;
            if self.patient {
                self.count_proof(seconds);
            }
            return self.looked >= self.watch && !self.watch_on() && self.prove();
        }
        if self.stage == Stage::First {
            return self.first_look(over, looks) && self.go_on();
        }
        let (value, best) = (self.value(turn).unwrap_or(0.0), self.best());
        let most = best.and_then(|best| self.value(best)).unwrap_or(0.0);
        let units = (0..self.levels.len()).map(|level| self.units_per_second(level)).fold(0.0, f64::max);
        let telling = units * self.looked.as_secs_f64() >= UNITS;
        if most > 0.0 {
            let chance = best.map_or(0.0, |best| self.chance(best, turn));
            self.lost += seconds * (1.0 - (value / most + chance).min(1.0));
        }
        let length = self.length();
        // Were the next unit all but done: no more than that. Just after a change threads may do nothing for longer than a look.
        let here = self.together(turn);
        let few = self.looked >= 2 * length && here.units + 1.0 < HOPELESS * units * here.lasted();
        // VCPU-Bal's counts are safe, and what all is measured by: not given up by a glance.
        let ran = here.used >= RAN * here.part;
        let bal = self.is_bal(turn);
        let safe = bal && self.looked < FIRST && !ran;
        // Threads fall into step again only after a while; where nobody waits there is time for that.
        let late = self.patient && !bal && self.levels[turn].sure && self.looked < PROOF;
        // Where hardly anything was used that says nothing yet.
        let thin = here.lasted() < RAN / 2.0 * here.seconds && self.looked < FIRST;
        // Where only it is compared with, a second look would disturb what goes on at the other.
        let only = self.few && bal && here.units < UNITS && self.looked < FIRST;
        let only = only && (here.units < 1.0 || value + self.unit(turn) > CLEAR * most);
        let glance = (safe || late) && value < CLEAR * most || thin || only || self.is_not_heard_of();
        let hopeless = self.stage == Stage::Rounds && value < HOPELESS * most && (telling || few) && !glance;
        let stretched = length * STRETCH;
        let long = self.looked >= if self.levels[turn].sure { stretched.max(FIRST) } else { stretched };
        self.levels[turn].out |= hopeless;
        (hopeless || self.looked >= length && (telling || long) && !glance) && self.go_on()
    }

    /// Whether VCPU-Bal's counts are looked at, and nothing was counted yet: whoever counts may not have come to the end of a first unit.
    fn is_not_heard_of(&self) -> bool {
        self.is_bal(self.turn) && !self.members.iter().any(Member::counted) && self.looked < SILENCE
    }

    /// Who follows where it was to change, be it late; who does not may have done so in vain.
    fn heed(&mut self, now: &[bool], vain: u32) {
        let turn = self.turn;
        let changes = |(member, _): &(&mut Member, &bool)| member.counts[turn] != member.counts[0];
        for (member, follows) in self.members.iter_mut().zip(now).filter(changes) {
            member.moved |= follows;
            member.vain = if *follows { 0 } else { member.vain + vain };
        }
    }

    /// Who else takes part is gone; `false` if nobody does any more.
    fn keep(&mut self, who: impl Fn(&Member) -> bool) -> bool {
        let all = self.members.len();
        self.members.retain(who);
        if self.members.len() < all {
            // They were worth of all.
            self.levels.iter_mut().for_each(|level| level.turns.clear());
            (self.lately, self.falls) = (None, false);
            self.all_bal = self.find_bal();
        }
        !self.members.is_empty()
    }

    /// The next turn; `true` if there is none.
    fn go_on(&mut self) -> bool {
        self.leave_fewer();
        let from = self.turn;
        let over = self.take_turn();
        self.go_from(from);
        over
    }

    /// Where pCPUs are short, fewer vCPUs than VCPU-Bal's do less the fewer there are, unless the first step down shows otherwise.
    fn leave_fewer(&mut self) {
        let bal = self.all_bal;
        let below = |race: &Race, level: usize| {
            race.members.iter().all(|m| m.counts[level] < m.bal && m.bal < m.all())
        };
        let worth = |level: usize| self.value(level).unwrap_or(0.0);
        if bal.is_some_and(|bal| below(self, self.turn) && worth(self.turn) < worth(bal)) {
            for level in 0..self.levels.len() {
                let fewer = |m: &Member| m.counts[level] < m.counts[self.turn];
                self.levels[level].out |= self.members.iter().all(fewer);
            }
        }
    }

    /// Where what there is, VCPU-Bal's and all differ much there is nothing to search for, nor where counting tells too little.
    fn leave_others(&mut self) {
        let Some(best) = self.best() else { return };
        let least = CLEAR * self.value(best).unwrap_or(0.0);
        // One unit more may be all but done.
        let far = |level: usize| self.value(level).unwrap_or(0.0) + self.unit(level) < least;
        // So few units would not tell the others apart either.
        let few = self.together(best).units < UNITS / 2.0;
        if few || (0..self.levels.len()).any(|level| self.levels[level].sure && far(level)) {
            for level in (0..self.levels.len()).filter(|level| *level != best) {
                self.levels[level].out |= few || !self.is_one_less(best, level);
            }
            self.left_others = true;
        }
    }

    /// Whether all have one vCPU there, and two, which are VCPU-Bal's, at the other level: where threads hand their work on by turns,
    /// that may do more. It takes one look to see it, unless work is counted in large units.
    fn is_one_less(&self, than: usize, level: usize) -> bool {
        let (all, vms) = (self.all(|member| &member.stats[than]).units, self.members.len());
        // Of several some may have counted nothing yet; as a turn goes on until it tells something, that is no matter.
        let least = if vms > 1 { UNITS / f64::from(STRETCH) } else { UNITS };
        let fine = self.is_bal(than) && all >= least * crate::units::count(vms);
        let seen = self.together(level).seconds > 0.0;
        fine && !seen && self.members.iter().all(|m| m.counts[level] == 1 && m.counts[than] == 2)
    }

    /// How the turn's counts are come to from those of this level.
    fn go_from(&mut self, from: usize) {
        let to = self.turn;
        self.via = self.members.iter().any(|m| m.counts[to] > m.counts[from] && m.counts[to] < m.all());
        let via = self.via;
        self.step = self.most_of(|m| (if via { m.all() } else { m.counts[to] }).abs_diff(m.counts[from]));
    }

    fn most_of(&self, what: impl Fn(&Member) -> u32) -> u32 {
        self.members.iter().map(what).max().unwrap_or(0)
    }

    /// What all did in a look.
    fn sum(&self, looks: &[(VmId, Look)]) -> f64 {
        looks.iter().filter(|(id, _)| self.member(id).is_some()).map(|(_, look)| look.units).sum()
    }

    fn take_turn(&mut self) -> bool {
        self.looked = Duration::ZERO;
        self.settling = true;
        if self.stage == Stage::Mixed || self.is_spent() {
            self.left_others |= self.is_spent();
            return self.begin_proof();
        }
        if self.is_silent() {
            return true;
        }
        if self.stage == Stage::First {
            self.stage = Stage::Rounds;
            if self.few && self.patient && self.is_bal(self.turn) && self.hold() {
                return false;
            }
        }
        let at = self.order.iter().position(|level| *level == self.turn).unwrap_or(0);
        let sure = |level: &usize| self.levels[*level].sure;
        let last = self.round == 0 && sure(&self.turn) && !self.order[at + 1..].iter().any(sure);
        if last && (!self.thorough || self.few) {
            self.leave_others();
            if self.few && self.hold() {
                return false;
            }
        }
        if let Some(next) = self.order[at + 1..].iter().find(|level| !self.levels[**level].out) {
            self.turn = *next;
            return false;
        }
        self.prune();
        self.round += 1;
        // From many to few.
        let counts = |level: &usize| self.members.iter().map(|member| member.counts[*level]).sum::<u32>();
        self.order.sort_by_key(|level| std::cmp::Reverse(counts(level)));
        let left: Vec<usize> = self.order.iter().copied().filter(|level| !self.levels[*level].out).collect();
        let rounds = if self.patient { ROUNDS } else { ROUNDS - 1 };
        if left.len() >= 2 && self.round < rounds && !self.is_coarse() {
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

    /// Whether so few units are counted that all rounds together would tell little: then the proof has to, in longer turns.
    fn is_coarse(&self) -> bool {
        let rounds = (self.window * ((1 << ROUNDS) - 1)).as_secs_f64();
        self.patient && self.best().is_some_and(|best| self.units_per_second(best) * rounds < COARSE)
    }

    fn prune(&mut self) {
        let Some(best) = self.best() else { return };
        let bursts = self.bursts();
        let known = self.value(best).unwrap_or(0.0);
        let sure = if self.patient { proof::SURE } else { 1.0 };
        let least = known * (1.0 - sure * self.together(best).error(bursts));
        for level in (0..self.levels.len()).filter(|level| *level != best) {
            let least = if self.round == 0 && self.levels[level].sure { HOPELESS * known } else { least };
            // VCPU-Bal's counts are not given up by luck.
            let bursts = if self.is_bal(level) { bursts.max(1.0) } else { bursts };
            let most =
                self.value(level).map(|value| value * (1.0 + sure * self.together(level).error(bursts)));
            self.levels[level].out |= most.is_none_or(|most| most < least);
        }
    }

    /// Where other levels were clearly better for some VMs, one level more: each with what was best for it.
    fn begin_mixed(&mut self) -> bool {
        let Some(best) = self.best() else { return true };
        let bursts = self.bursts();
        let choose = |member: &Member| {
            let known = |level: &usize| member.stats[*level].value().is_some();
            let value = |level: usize| member.stats[level].value().unwrap_or(0.0);
            let own = (0..self.levels.len()).filter(known).max_by(|a, b| value(*a).total_cmp(&value(*b)));
            let own = own.unwrap_or(best);
            let clear = value(own) * (1.0 - member.stats[own].error(bursts))
                > value(best) * (1.0 + member.stats[best].error(bursts));
            let clear = clear && member.stats[own].units >= UNITS;
            // Who would be harmed by what is best of all keeps what it is entitled to.
            if clear {
                member.counts[own]
            } else if self.is_harmed(member, best, bursts) {
                member.bal
            } else {
                member.counts[best]
            }
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
            member.proofs.push(Stat::default());
        }
        self.levels.push(Level { sure: true, ..Level::default() });
        self.turn = self.levels.len() - 1;
        self.round = ROUNDS - 1;
        self.stage = Stage::Mixed;
        false
    }
}

#[cfg(test)]
mod tests;
