//! What a race says to one of its VMs while it is on, and what is kept of it.

use std::collections::BTreeMap;

use super::counts::bal;
use super::found::{Found, Together};
use super::memory::Mark;
use super::race::Race;
use super::seen::{climb, is_capped, mark};
use super::settle::rest;
use super::stat::Stat;
use super::{Choice, Corefit, ENOUGH, Mode, OTHER, REST, Races, SOON, SPINS, STEP, Subject, trying};
use crate::Cpus;
use crate::decide::Why;
use crate::machine::VmId;

impl Corefit {
    /// What a VM in a race is to have: what is tried, or what came of it.
    pub(super) fn race(
        &mut self,
        subject: &Subject<'_>,
        entitled: &dyn Fn(u32) -> Option<f64>,
        races: &Races,
    ) -> Choice {
        let id = &subject.vm.seen.id;
        let Some((race, over)) = races.of(id) else {
            // It left: nothing is known to be better than what it had, or VCPU-Bal's, nor what that cost; or it would race on and on.
            self.mode = Mode::Watch;
            if self.found.is_none() {
                self.settle_at_bal(subject);
            }
            // But not the time that it was away, nor more than the race might.
            let cost = self.raced.since(self.began).as_secs_f64();
            self.budget.lose(cost.min(self.budget.allowed()).max(0.0));
            self.not_before = subject.at + rest(REST, self.searches);
            self.again = self.again.max(self.not_before);
            self.searches += 1;
            return self.stay(subject);
        };
        let (used, part) = (subject.used.unwrap_or(0.0), subject.available.unwrap_or(0.0));
        let Some(count) = race.count(id).filter(|_| over) else {
            let choice = trying(subject.clamp(race.count(id).unwrap_or(subject.online)), race.next());
            let why = if race.believes() { fastest(race, id, choice.count, part) } else { None };
            return Choice { why: why.map_or(choice.why, |(_, why)| why), ..choice };
        };
        self.mode = Mode::Watch;
        self.budget.pay(race);
        if race.broken_off {
            self.again = subject.at + SOON;
            return Choice { next: Some(self.probe), ..self.stay(subject) };
        }
        let did = |(stat, _): &(Stat, Why)| stat.value().is_some_and(|value| value > 0.0);
        let compared = !race.only_as_it_was(id);
        let Some((stat, why)) = fastest(race, id, count, part).filter(did).filter(|_| compared) else {
            if self.counted {
                // What it did before was counted, here nothing was, or nothing else: nothing is known to be better.
                self.settle_at_bal(subject);
                return self.stay(subject);
            }
            // Nobody counts: as without a signal.
            let available = subject.clamp(subject.vcpus(part));
            let climb = climb(subject, available, self.probe.max(2 * subject.period), entitled);
            let choice = trying(climb.count(), climb.next());
            self.mode = Mode::Climb(climb);
            return choice;
        };
        // Of who raced alone: as many as there were in all of the race, if others do something else by now.
        let had = race.available(id).filter(|had| (had - part).abs() > OTHER * had);
        let available = subject.clamp(subject.vcpus(had.unwrap_or(part)));
        let number = bal(subject, available);
        // It was another one when the race began, which says nothing of that of now: what was found is of what there was then.
        let raced = race.bal(id).filter(|raced| *raced != number);
        let available = raced.map_or(available, |_| self.began_with);
        let marked = |stat: &Stat| Some(mark(subject, stat.value()?, stat.used()?));
        let seen = race.seen(id);
        let marks: BTreeMap<u32, Mark> =
            seen.iter().filter_map(|(n, stat)| Some((*n, marked(stat)?))).collect();
        self.memory.learn(available, marks, count);
        let mark = marked(&stat).unwrap_or(mark(subject, 0.0, used));
        // In a race of a phase that is known its best number is in the place of VCPU-Bal's.
        let capped = is_capped(subject);
        let bal = count == raced.unwrap_or(number);
        // All vCPUs did more than this before, of as many pCPUs, and may do so again.
        let all = |old: &Found| old.count == subject.clamp(u32::MAX) && old.mark.value > mark.value;
        let before = self.found.as_ref().filter(|old| old.available == available);
        let did_more = before.is_some_and(|old| old.did_more || all(old));
        let left_all = capped && race.left_all(did_more);
        let of_bal = race.of_bal(id);
        let enough = of_bal.and_then(|of_bal| Some(of_bal.value()? * ENOUGH));
        let enough = enough.filter(|enough| capped && mark.value > *enough);
        let again = match enough {
            _ if raced.is_some() => Some(self.dwell),
            Some(_) => None,
            None if left_all => Some(rest(STEP, self.checks)),
            None if self.checking => race.left_others.then(|| rest(SOON, self.checks + 1)),
            None => (race.left_others || race.doubts() || capped).then_some(SOON),
        };
        let seen = race.proof(id);
        let instead = of_bal.filter(|_| !bal && raced.is_none());
        let together = instead.map(|did| Together { did, bal: number, vms: race.vms() });
        let together = together.map(|new| self.found.as_ref().map_or(new, |found| found.of_more(new)));
        let found = Found::new(count, why, available, mark);
        let first = race.first(id, count).unwrap_or(0.0);
        let found = Found { bal, seen, enough, first, instead, together, left_all, did_more, ..found };
        self.settle(subject, found, again);
        Choice { next: Some(self.probe), ..self.stay(subject) }
    }
}

/// What it did with so many in a race, and why it is to have them; `None` if nobody counted its work.
fn fastest(race: &Race, id: &VmId, count: u32, part: f64) -> Option<(Stat, Why)> {
    let (stat, over_share) = race.found(id)?;
    let seen = race.seen(id);
    let spins = stat.spins(seen.iter().map(|(_, stat)| stat)).filter(|share| *share >= SPINS);
    let spins = spins.map(|share| (count, share));
    Some((stat, Why::Fastest { available: Cpus(part), over_share, spins }))
}
