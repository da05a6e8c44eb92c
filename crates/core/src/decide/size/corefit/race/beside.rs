//! VMs beside a race, which take no part in it: none is to get clearly less of what it wants than beside VCPU-Bal's counts. Of who counts its
//! work that is units for each pCPU second that it used or waited for, as siblings of its cores may be busy, too; of others what they used of that.
//!
//! Whoever has VCPU-Bal's count alone leaves others more than when all have theirs. That is nobody's due: what each got when most VMs raced, and
//! all of those had VCPU-Bal's counts, is as good.

use std::collections::BTreeMap;

use super::proof::SURE;
use super::{Race, Stat, UNITS};
use crate::machine::VmId;

/// None is to get less than this part of it: each race may take as much again.
const UNFAIR: f64 = 0.95;
/// Less than so long, in seconds, or than so many pCPUs wanted, tells nothing.
const LEAST: f64 = 0.05;
const WANTS: f64 = 0.1;

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
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Due {
    counts: bool,
    /// Of a pCPU second that it wanted.
    got: f64,
    /// VMs that raced then.
    racing: usize,
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
    pub(in super::super) fn see(&mut self, seconds: f64, seen: Vec<Neighbour>) {
        if self.via || self.settling {
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

    /// Whether one of them gets less at a level.
    pub(super) fn harms_beside(&self, level: usize) -> bool {
        let Some(bal) = self.all_bal.filter(|bal| *bal != level) else { return false };
        // Of so many some seem to by chance.
        let sure = SURE + (2.0 * crate::share::count(self.beside.len().max(1)).ln()).sqrt();
        let mut others = self.beside.iter().filter(|(id, _)| self.member(id).is_none());
        others.any(|(id, one)| {
            let due = self.dues.get(id).filter(|due| due.counts == one.counts);
            one.gets_less(level, bal, due.map(|due| due.got), sure)
        })
    }

    /// Takes what VMs got in this race over into what is known of that; of others nothing is kept.
    pub(in super::super) fn pay(&self, dues: &mut Dues) {
        dues.retain(|id, _| self.beside.contains_key(id));
        let (Some(bal), racing @ 2..) = (self.all_bal, self.members.len()) else { return };
        for (id, Beside { counts, got }) in &self.beside {
            let Some(got) = got.get(bal).and_then(|got| got.of_wanted(*counts)) else { continue };
            if dues.get(id).is_none_or(|due| due.racing <= racing || due.counts != *counts) {
                dues.insert(id.clone(), Due { counts: *counts, got, racing });
            }
        }
    }
}

impl Beside {
    fn gets_less(&self, level: usize, bal: usize, due: Option<f64>, sure: f64) -> bool {
        let (Some(now), Some(then)) = (self.got.get(level), self.got.get(bal)) else { return false };
        let (Some(gets), Some(got)) = (now.of_wanted(self.counts), then.of_wanted(self.counts)) else {
            return false;
        };
        let chance = |got: &Got| if self.counts { got.stat.chance(got.stat.bursts()) } else { 0.0 };
        let turns = now.stat.error_of_turns() + then.stat.error_of_turns();
        let slack = turns + sure * chance(now).hypot(chance(then));
        gets < UNFAIR * (1.0 - slack) * due.map_or(got, |due| due.min(got))
    }
}

impl Got {
    /// What it got for a pCPU second that it wanted; `None` if that tells nothing.
    fn of_wanted(&self, counts: bool) -> Option<f64> {
        let Stat { seconds, units, used, .. } = self.stat;
        let wanted = used + self.waited;
        let tells = seconds >= LEAST && wanted >= WANTS * seconds && (!counts || units >= UNITS);
        tells.then(|| units / wanted)
    }
}
