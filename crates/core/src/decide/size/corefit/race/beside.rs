//! VMs beside a race, which take no part in it: none is to get clearly less of what it wants than beside VCPU-Bal's counts. Of who counts its
//! work that is units for each pCPU second that it used or waited for, as siblings of its cores may be busy, too; of others what they used of that.
//!
//! Whoever has VCPU-Bal's count alone leaves others more than when all have theirs. That is nobody's due: what each got when most VMs raced, and
//! all of those had VCPU-Bal's counts, is as good.

use std::collections::BTreeMap;

use super::fair::LOSES;
use super::proof::SURE;
use super::{Look, Member, Race, Stat, UNITS};
use crate::machine::VmId;

/// None is to get less than this part of it: each race may take as much again.
const UNFAIR: f64 = 0.95;
/// Less than so long, in seconds, or than so many pCPUs wanted, tells nothing.
const LEAST: f64 = 0.05;
const WANTS: f64 = 0.1;
/// Schedulers give one what is another's for longer than most looks: in less than so long, s, nobody is seen to lose. The proof is longer.
const SHORT: f64 = 1.0;
/// Counting hides no more than this part of a loss, however coarse it is: who says what it does is not to be much worse off than who does not.
const COARSE: f64 = 0.5;
/// Nor does it hide that a VM runs less than this part of what it did. (Not as little as that of others, for teams that spin in step wait more, and do
/// more: with 0.7 random program 1024 with 2 VMs takes 1.6 of the best's time, with 0.6 1.02.)
const RUNS: f64 = 0.6;
/// The same beside a VM that its cap alone limits: that of all its vCPUs, which then run at the same time, may take what others have.
const RUNS_BESIDE_CAP: f64 = UNFAIR;
/// A program whose units are so many times larger or smaller is another one. (What spins does several times as much for a pCPU second when others
/// have less.)
const OTHER: f64 = 20.0;

/// What one look showed of a VM.
#[derive(Clone, Debug)]
pub(in super::super) struct Neighbour {
    pub(in super::super) id: VmId,
    /// Units of work per second, where somebody counts them.
    pub(in super::super) rate: Option<f64>,
    /// pCPUs.
    pub(in super::super) used: f64,
    pub(in super::super) waiting: f64,
}

/// What VMs got with VCPU-Bal's counts.
pub(in super::super) type Dues = BTreeMap<VmId, Due>;

/// What one got.
#[derive(Clone, Debug)]
pub(in super::super) struct Due {
    counts: bool,
    /// For a pCPU second that it wanted.
    got: f64,
    /// Units for each pCPU second that it used: another program is owed something else.
    each: f64,
    /// VMs that raced then: once one of them wants nothing any more that is no reason to get less.
    racers: Vec<VmId>,
}

/// A VM of a host with a race.
#[derive(Clone, Debug)]
pub(super) struct Beside {
    counts: bool,
    /// At each level.
    got: Vec<Got>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Got {
    /// Units, or pCPU seconds.
    stat: Stat,
    waited: f64,
}

impl Race {
    /// What all VMs did in a look, if that is one that counts.
    pub(in super::super) fn see(&mut self, seconds: f64, seen: Vec<Neighbour>, looks: &[(VmId, Look)]) {
        let follows = |member: &Member| {
            looks.iter().any(|(id, look)| *id == member.id && look.online == member.counts[self.turn])
        };
        if self.via || self.settling || !self.members.iter().all(follows) {
            return;
        }
        let (level, levels) = (self.turn, self.levels.len());
        for Neighbour { id, rate, used, waiting } in seen {
            let new = || Beside { counts: rate.is_some(), got: Vec::new() };
            let beside = self.beside.entry(id).or_insert_with(new);
            if beside.counts != rate.is_some() {
                continue;
            }
            beside.got.resize(levels.max(beside.got.len()), Got::default());
            let Got { stat, waited } = &mut beside.got[level];
            stat.add_units(rate.unwrap_or(used) * seconds, used, seconds);
            *waited += waiting * seconds;
        }
    }

    /// At which all have VCPU-Bal's counts; not in a race of a phase that is known, whose best number is in the place of that.
    fn bal_beside(&self) -> Option<usize> {
        self.all_bal.filter(|_| !self.of_phase)
    }

    /// Whether one of them gets less at a level.
    pub(super) fn harms_beside(&self, level: usize) -> bool {
        let Some(bal) = self.bal_beside().filter(|bal| *bal != level) else { return false };
        // Of so many some seem to by chance.
        let sure = SURE + (2.0 * crate::units::count(self.beside.len().max(1)).ln()).sqrt();
        let mut others = self.beside.iter().filter(|(id, _)| self.member(id).is_none());
        others.any(|(id, one)| {
            let due = self.dues.get(id).filter(|due| self.holds_still(due, one, bal));
            one.gets_less(level, bal, due, sure, if self.few { RUNS_BESIDE_CAP } else { RUNS })
        })
    }

    /// Whether less than that, but more than VCPU-Bal's counts, was seen to harm one of them, and that was hardly seen: more vCPUs will, too.
    pub(super) fn will_harm_beside(&self, level: usize) -> bool {
        let seen = |one: &Beside| one.got.get(level).is_some_and(|got| got.stat.seconds >= SHORT);
        let more = |m: &Member, less: usize| m.counts[level] >= m.counts[less] && m.counts[less] >= m.bal;
        let harms = |less: usize| {
            less != level && self.members.iter().all(|member| more(member, less)) && self.harms_beside(less)
        };
        !self.beside.values().any(seen) && (0..self.levels.len()).any(harms)
    }

    /// Whether who raced when something was due still wants to run, and who it is due to does what it did.
    fn holds_still(&self, due: &Due, one: &Beside, bal: usize) -> bool {
        let each = one.got.get(bal).map_or(0.0, Got::each);
        let alike = each <= OTHER * due.each && due.each <= OTHER * each;
        let wants = |id: &VmId| self.beside.get(id).is_some_and(Beside::wants);
        due.counts == one.counts && alike && due.racers.iter().all(wants)
    }

    /// What all got at a level so far says nothing of what follows.
    pub(super) fn forget_beside(&mut self, level: usize) {
        for got in self.beside.values_mut().filter_map(|one| one.got.get_mut(level)) {
            *got = Got::default();
        }
    }

    /// Takes what VMs got in this race over into what is known of that; of others nothing is kept.
    pub(in super::super) fn pay(&self, dues: &mut Dues) {
        dues.retain(|id, _| self.beside.contains_key(id));
        let (Some(bal), 2..) = (self.bal_beside(), self.members.len()) else { return };
        let racers: Vec<VmId> = self.members.iter().map(|member| member.id.clone()).collect();
        for (id, one) in &self.beside {
            let Some(at) = one.got.get(bal) else { continue };
            let Some(got) = at.of_wanted(one.counts) else { continue };
            let more = |due: &Due| due.racers.len() > racers.len() && self.holds_still(due, one, bal);
            if !dues.get(id).is_some_and(more) {
                let (counts, each, racers) = (one.counts, at.each(), racers.clone());
                dues.insert(id.clone(), Due { counts, got, each, racers });
            }
        }
    }
}

impl Beside {
    /// Whether it wanted to run, at any level.
    fn wants(&self) -> bool {
        self.got.iter().any(Got::wants)
    }

    /// Whether it gets less at a level, or runs less than this part of what it ran.
    fn gets_less(&self, level: usize, bal: usize, due: Option<&Due>, sure: f64, part: f64) -> bool {
        let (Some(now), Some(then)) = (self.got.get(level), self.got.get(bal)) else { return false };
        if now.stat.seconds < SHORT {
            return false;
        }
        let less = now.of_wanted(self.counts).zip(then.of_wanted(self.counts));
        let chance = |got: &Got| got.stat.chance(got.stat.bursts());
        let counting = if self.counts { sure * chance(now).hypot(chance(then)) } else { 0.0 };
        let turns = now.stat.error_of_turns() + then.stat.error_of_turns();
        let slack = turns + counting.min(COARSE);
        let runs_so =
            |part: f64| self.counts && now.ran().zip(then.ran()).is_some_and(|(runs, ran)| runs < part * ran);
        let gets_so =
            |part: f64| less.is_some_and(|(gets, got)| gets < part * due.map_or(got, |due| due.got.min(got)));
        // Both tell of a loss that counting would hide: what spins in step runs less, and does more.
        let loses = LOSES * (1.0 - turns);
        gets_so(UNFAIR * (1.0 - slack)) || runs_so(part * (1.0 - turns)) || runs_so(loses) && gets_so(loses)
    }
}

impl Got {
    /// What it ran of a pCPU second that it wanted; `None` if that tells nothing.
    fn ran(&self) -> Option<f64> {
        self.wants().then(|| self.stat.used / self.wanted())
    }

    /// What it got for a pCPU second that it wanted; `None` if that tells nothing.
    fn of_wanted(&self, counts: bool) -> Option<f64> {
        (self.wants() && (!counts || self.stat.units >= UNITS)).then(|| self.stat.units / self.wanted())
    }

    fn wants(&self) -> bool {
        self.stat.seconds >= LEAST && self.wanted() >= WANTS * self.stat.seconds
    }

    /// pCPU seconds.
    fn wanted(&self) -> f64 {
        self.stat.used + self.waited
    }

    /// Units for each pCPU second used.
    fn each(&self) -> f64 {
        self.stat.units / self.stat.used.max(1e-9)
    }
}
