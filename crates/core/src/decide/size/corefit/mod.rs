//! Our policy: the number of vCPUs with which most work is done.
//!
//! ```text
//!           signal of progress          ┌──────── race over ────────┐
//!   ┌──────▶ and no phase known ──▶ Race ──────────────────────────▶│
//! Watch                                                             Watch at the best count
//!   └──────▶ no signal ──────────▶ Climb ── shape known ───────────▶│
//!   ▲                                                               │
//!   └── other pCPUs available, or another phase, for a dwell; ◀─────┘
//!       with a signal also after a long time
//! ```
//!
//! **With a signal** all counts that may be best race each other ([`race`]), VCPU-Bal's among them: where it ends is
//! measured to be no worse. VMs that search at the same time race together ([`Races`]). **Without one** utilisation is
//! all there is, and VCPU-Bal's count is taken unless its shape is P2's second ([`shape`]). What races found
//! is remembered by phase ([`memory`]). A search may cost a part of the VM's time ([`budget`]); the time until
//! the next doubles with each that changed nothing.

mod budget;
mod counts;
mod found;
mod memory;
mod race;
mod raced;
mod races;
mod seen;
mod settle;
mod shape;
mod stat;

use std::time::Duration;

use self::budget::Budget;
use self::counts::{bal, bal_why, candidates};
use self::found::Found;
use self::memory::{Mark, Memory, alike};
use self::race::Entrant;
pub(crate) use self::races::Races;
use self::seen::{climb, is_capped, look, mark, worth};
use self::shape::{Climb, Form, Seen};
use self::stat::Stat;
use super::published::keep;
use super::{Choice, Size, Subject};
use crate::contest::cap;
use crate::decide::Why;
use crate::{Cpus, Time};

/// After a search that changed nothing, or that it left, the next one comes not before this time, twice as long each time.
const REST: Duration = Duration::from_secs(40);
/// With a signal it is looked again whether another count is better after this time, and after twice as long each time
/// that none was, up to [`settle::LONGEST`]: a load may have changed so that it does what it did, but could do more elsewhere.
const AGAIN: Duration = Duration::from_secs(600);
/// After a search that left numbers out, since things were clear or it had cost enough, these are looked at after this time, and twice as long each
/// time that nothing else was found.
const SOON: Duration = Duration::from_secs(120);
/// Where a cap limits a VM and VCPU-Bal's number was best all vCPUs are tried again after this time and twice as long each time, so often.
const STEP: Duration = Duration::from_secs(10);
const STEPS: u32 = 5;
/// Who does so many times what it did with VCPU-Bal's number does enough, with a cap.
const ENOUGH: f64 = 1.25;
/// Where a count has come, but no second one yet, that is awaited for so long before its work is taken for unknown.
const BEGINS: Duration = Duration::from_secs(5);
/// Where nobody counted for so long, not even that nothing was done, though it was not idle, nobody counts any more.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// Nor where nothing was counted for so long, while it was not idle: what it does now is not what was counted.
const NOTHING: Duration = Duration::from_secs(600);
/// What a VM does otherwise is known for so long, s.
const LATELY: f64 = 10.0;
/// Who does less by this part than what was found does not what was found.
const MUCH: f64 = 0.5;
/// Who has so much more or less available than in the mean of a race, as a part of that, has what it had only by chance.
const OTHER: f64 = 0.25;
/// A smaller spin share is not worth a word.
const SPINS: f64 = 0.05;
/// A vCPU that is entitled to this part of a pCPU has it to itself.
const FULL: f64 = 0.99;
/// A VM that uses less is idle: there is nothing to learn.
const IDLE: f64 = 0.1;

/// The policy, and what it knows of one VM.
#[derive(Debug)]
pub(crate) struct Corefit {
    probe: Duration,
    dwell: Duration,
    mode: Mode,
    budget: Budget,
    /// Work was counted.
    counted: bool,
    /// Since when there is a count, were it only the first.
    counts: Option<Time>,
    /// When somebody counted last, were it nothing, or it was idle.
    heard: Time,
    /// When work was counted last, or it was idle.
    worked: Time,
    /// Where it is to be, because of what; found for so many available pCPUs, and what it did there at first.
    found: Option<Found>,
    /// Since when things are otherwise, and what it did lately, where only that is.
    otherwise: Option<(Time, Stat)>,
    memory: Memory,
    /// Searches in a row, after changes, that found what was there.
    searches: u32,
    /// The same of those without a change, and whether the one that goes on is such.
    checks: u32,
    checking: bool,
    not_before: Time,
    /// The rest after the last search.
    rested: Duration,
    /// When the last race began, for so many available pCPUs, when it was in it last, and when the last search was over.
    began: Time,
    began_with: u32,
    raced: Time,
    settled: Time,
    /// When to look again though nothing changed.
    again: Time,
    /// When it was looked at last.
    looked: Time,
    /// pCPUs that were available to it when that was known last.
    part: Option<f64>,
    /// It has to search, and may not yet.
    waits: bool,
    /// What was found is of other pCPUs, for a dwell.
    stale: bool,
    /// How many were available when it was at what was found last, which is of other pCPUs, and when that was.
    unfit: Option<(u32, Time)>,
}

#[derive(Clone, Debug)]
enum Mode {
    Watch,
    /// Together with others: [`Races`].
    Race,
    Climb(Climb),
}

impl Corefit {
    /// `probe`: of a look at a count that is tried; `dwell`: how long things have to be otherwise.
    #[must_use]
    pub(crate) fn new(probe: Duration, dwell: Duration) -> Corefit {
        Corefit {
            probe,
            dwell,
            mode: Mode::Watch,
            budget: Budget::default(),
            counted: false,
            counts: None,
            heard: Time(0),
            worked: Time(0),
            found: None,
            otherwise: None,
            memory: Memory::default(),
            searches: 0,
            checks: 0,
            checking: false,
            not_before: Time(0),
            rested: Duration::ZERO,
            began: Time(0),
            began_with: 0,
            raced: Time(0),
            settled: Time(0),
            again: Time(0),
            looked: Time(0),
            part: None,
            waits: false,
            stale: false,
            unfit: None,
        }
    }

    fn stay(&self, subject: &Subject<'_>) -> Choice {
        // Nothing is known to be better.
        let bal = || subject.vcpu_bal().unwrap_or_else(|| keep(subject));
        match &self.found {
            Some(_) if self.stale => bal(),
            Some(found) => subject.bounded(found.count, found.why.clone()),
            None if self.waits => bal(),
            None => keep(subject),
        }
    }

    /// `waited`: it did at the last look.
    fn watch(
        &mut self,
        subject: &Subject<'_>,
        entitled: &dyn Fn(u32) -> Option<f64>,
        races: &mut Races,
        waited: bool,
    ) {
        let (Some(part), Some(used)) = (subject.available, subject.used) else { return };
        let available = subject.clamp(subject.vcpus(part));
        // Who cannot run is not idle. That it is says nothing of what it is to have when it works again.
        if subject.wanted().is_some_and(|wanted| wanted < IDLE) {
            (self.otherwise, self.waits) = (None, waited);
            return;
        }
        // Of who counted and is silent for a while it is not known.
        let last = self.found.as_ref().map_or(0.0, |found| found.mark.value);
        let mark = mark(subject, subject.rate.map_or(last, |rate| worth(rate, used, part)), used);
        let was_stale = std::mem::take(&mut self.stale);
        let mut stays = false;
        if let Some(found) = &mut self.found {
            let most = subject.clamp(u32::MAX);
            if most > found.most && race::telling(mark.value) <= self.budget.allowed() {
                // Nothing is known of these, and a search would tell something.
                self.again = self.again.min(self.not_before.max(subject.at + self.dwell));
            }
            if let Some(bal) = subject.vcpu_bal().filter(|bal| found.bal && bal.count != found.count) {
                found.follow(bal);
            }
            let there = subject.online == subject.clamp(found.count);
            // One unit at each end of the look says nothing.
            let units = 2.0 / subject.over.as_secs_f64().max(1e-3);
            let clear = subject.vcpu_bal().is_some_and(|bal| found.is_clear(bal.count));
            let as_before = found.is_of(available) || clear && found.count >= available;
            // To follow VCPU-Bal's number is to go away.
            let leaves = subject.vcpu_bal().is_some_and(|bal| bal.count != found.count);
            if !as_before && there && leaves {
                self.unfit = Some((available, subject.at));
            } else if was_stale
                && as_before
                && let Some((unfit, last)) = self.unfit.take()
                && subject.at.since(last) <= self.dwell
            {
                // That it went away made the difference: others had what it left. It would go to and fro for ever.
                found.also = Some((unfit, Duration::ZERO));
            } else {
                found.waits_for_others(there, available, subject.over, 2 * self.dwell);
            }
            stays = there && as_before;
            let mut same = as_before && (!there || alike(found.mark, mark, units) || found.is_back(mark));
            let mut now = Stat::default();
            if stays && let Some(look) = look(subject) {
                now.add(&look, subject.over.as_secs_f64());
            }
            if same {
                found.varies(&now);
                if there {
                    // It drifts: what is known follows slowly.
                    found.mark.value += 0.1 * (mark.value - found.mark.value);
                    found.mark.used += 0.1 * (mark.used - found.mark.used);
                }
            } else {
                let (since, did) = self.otherwise.get_or_insert((subject.at, Stat::default()));
                // A program that began, or a phase in which nothing is counted: what comes after it says what it does.
                let goes_on = did.seconds > 0.0 && did.units <= 0.0 && now.units > 0.0;
                if did.seconds >= LATELY || now.seconds <= 0.0 || goes_on {
                    *did = Stat::default();
                }
                if goes_on {
                    *since = subject.at;
                }
                did.add_stat(&now);
                let nothing = did.seconds > 0.0 && did.units <= 0.0 && found.mark.value > 0.0;
                let soon = subject.at.since(*since) < self.dwell || subject.at < self.not_before;
                let enough = found.enough.filter(|_| as_before && is_capped(subject));
                let may = found.may_do(did)
                    || enough.zip(did.value()).is_some_and(|(enough, value)| value > enough);
                // Until it can be searched VCPU-Bal's number is as good as any that was found for other pCPUs.
                self.stale = !as_before && (was_stale || subject.at.since(*since) >= self.dwell);
                if soon || (may || enough.is_some() || nothing) && did.seconds < LATELY {
                    return;
                }
                if let Some(bal) = subject.vcpu_bal().filter(|_| nothing && !found.bal) {
                    // Of what nobody counts nothing is known to be better.
                    found.follow(bal);
                    return;
                }
                same = may;
            }
            if same {
                if let Some((_, did)) = self.otherwise.take() {
                    found.varies(&did);
                }
                if there && found.is_beaten() {
                    self.give_way(subject);
                } else if there && subject.rate.is_some() && subject.at >= self.again {
                    self.begin(subject, available, None, entitled, races);
                }
                return;
            }
        }
        // Of a phase that is known it is known what is best in it.
        if stays
            && let Some(((found, (_, did)), bal)) =
                self.found.as_ref().zip(self.otherwise).zip(subject.vcpu_bal())
            && let Some(more) = found.lost(&did, bal.count)
        {
            if did.seconds < self.dwell.as_secs_f64().min(LATELY) {
                return;
            }
            let lately = seen::mark(subject, did.value().unwrap_or(0.0), did.used().unwrap_or(mark.used));
            if self.memory.recall(available, subject.online, lately).is_none() {
                self.otherwise = None;
                self.go_back(subject, bal, more);
                return;
            }
        }
        self.begin(subject, available, Some(mark), entitled, races);
        // As long as it may not be searched what was found has to be better than VCPU-Bal's number all the same.
        if let (Some(found), Some((_, did))) = (&mut self.found, &mut self.otherwise)
            && self.waits
            && stays
            && found.instead.is_some()
            && did.seconds >= LATELY
        {
            found.varies(&std::mem::take(did));
            if let Some(bal) = subject.vcpu_bal().filter(|_| found.is_beaten()) {
                found.follow(bal);
            }
        }
    }

    /// Searches, or remembers the phase with this mark.
    fn begin(
        &mut self,
        subject: &Subject<'_>,
        available: u32,
        mark: Option<Mark>,
        entitled: &dyn Fn(u32) -> Option<f64>,
        races: &mut Races,
    ) {
        if subject.clamp(0) == subject.clamp(u32::MAX) {
            self.settle_where_it_is(subject, mark);
            return;
        }
        if subject.rate.is_none() && self.counts.is_some_and(|since| subject.at.since(since) < BEGINS) {
            return;
        }
        let allowed = self.budget.allowed();
        let window = self.probe.max(2 * subject.period);
        if let (Some(found), Some(mark)) = (&self.found, mark)
            && subject.rate.is_some()
            && self.counted
        {
            // Where nothing was counted, it may only be a pause.
            let less =
                if mark.value > 0.0 { 1.0 - mark.value / found.mark.value.max(mark.value) } else { 0.0 };
            // Work is counted in so large units that a search would tell nothing for what it may cost.
            let tells = race::telling(found.mark.value.max(mark.value)) <= allowed;
            if !tells && (allowed > 0.0 || less >= MUCH) {
                let leaves = found.available != available || less >= MUCH;
                self.keep_mark(subject, available, mark, leaves.then_some(less));
                return;
            }
        }
        let checking = mark.is_none();
        let left_all = self.checks < STEPS && self.found.as_ref().is_some_and(|found| found.left_all);
        let few = is_capped(subject) && (!checking || left_all);
        let least = match (checking, few) {
            (false, _) => 0.0,
            (true, _) if self.found.as_ref().is_some_and(|found| found.most < subject.clamp(u32::MAX)) => 0.0,
            (true, false) => self.budget.least(),
            (true, true) => race::PROOF.as_secs_f64(),
        };
        if allowed <= least {
            self.waits = true;
            return;
        }
        if !races.is_free() {
            // What a VM uses beside one that is tried with other numbers says nothing of its own.
            if subject.rate.is_some() && self.found.is_none() {
                races.hurry();
            }
            self.waits = true;
            return;
        }
        if !subject.may_search {
            self.waits = true;
            return;
        }
        let known = self.otherwise.take().map_or(Stat::default(), |(_, did)| did);
        self.checking = checking;
        if subject.rate.is_none() {
            self.mode = Mode::Climb(climb(subject, available, window, entitled));
            return;
        }
        let phase =
            mark.filter(|_| !few).and_then(|mark| self.memory.recall(available, subject.online, mark));
        let own = bal(subject, available);
        let counts = match phase {
            Some(phase) => {
                [subject.online, phase.best, available, own].map(|n| Some(subject.clamp(n))).to_vec()
            }
            None => candidates(subject, available, few, entitled),
        };
        let bal = phase.map_or(own, |phase| subject.clamp(phase.best));
        races.join(Entrant {
            id: subject.vm.seen.id.clone(),
            counts,
            known,
            bal,
            of_phase: phase.is_some(),
            all: self.checking,
            few,
            window,
            allowed,
        });
        (self.mode, self.began, self.raced) = (Mode::Race, subject.at, subject.at);
        self.began_with = available;
    }

    /// It is not to be searched now, whatever it does. `less`: it is no longer known to be better there than with VCPU-Bal's number,
    /// as so much of what it did is missing.
    fn keep_mark(&mut self, subject: &Subject<'_>, available: u32, mark: Mark, less: Option<f64>) {
        let (since, did) = self.otherwise.take().unwrap_or((subject.at, Stat::default()));
        let Some(found) = &mut self.found else { return };
        (found.mark, found.available, found.also) = (mark, available, None);
        if less.is_none() {
            found.varies(&did);
        }
        if let (Some(less), Some(bal)) = (less, subject.vcpu_bal())
            && bal.count != found.count
        {
            // That was lost, too.
            self.budget.lose(less * subject.at.since(since).as_secs_f64());
            found.follow(bal);
        }
    }

    /// What was found did less than VCPU-Bal's number by now, which takes its place until it is looked again.
    fn give_way(&mut self, subject: &Subject<'_>) {
        let Some((found, bal)) = self.found.as_mut().zip(subject.vcpu_bal()) else { return };
        let Some(instead) = found.instead.take() else { return };
        let less = 1.0 - found.seen.value().unwrap_or(0.0) / instead.value().unwrap_or(0.0).max(1e-9);
        self.budget.lose(less.max(0.0) * found.seen.seconds);
        self.memory.correct(bal.count);
        self.go_back(subject, bal, instead);
    }

    /// It has VCPU-Bal's number, with which it did this, until it is looked again.
    fn go_back(&mut self, subject: &Subject<'_>, bal: Choice, did: Stat) {
        let Some(found) = &mut self.found else { return };
        let mark = mark(subject, did.value().unwrap_or(0.0), did.used().unwrap_or(0.0));
        *found = Found { bal: true, seen: did, ..Found::new(bal.count, bal.why, found.available, mark) };
        self.again = subject.at + SOON;
    }

    fn climb(&mut self, subject: &Subject<'_>, races: &Races) {
        let Mode::Climb(climb) = &mut self.mode else { return };
        if !races.is_free() {
            // It begins again after the race.
            (self.mode, self.waits) = (Mode::Watch, true);
            return;
        }
        if subject.rate.is_some_and(|rate| rate > 0.0) {
            // It is counted after all: it races from the next look on.
            self.mode = Mode::Watch;
            return;
        }
        if subject.clamp(climb.count()) != climb.count() {
            // It may not have what is tried any more.
            self.mode = Mode::Watch;
            self.settle_at_bal(subject);
            return;
        }
        let Subject { online, over, used, available, .. } = *subject;
        let Some((count, form)) =
            climb.look(&Seen { online, over, used, available, cap: cap(subject.vm.seen.quota.as_ref()) })
        else {
            return;
        };
        let (used, part) = (used.unwrap_or(0.0), available.unwrap_or(0.0));
        let available = subject.clamp(subject.vcpus(part));
        // Where it was counted before nothing is proven to be better.
        let form = if self.counted { Form::First } else { form };
        let count = if form == Form::First { bal(subject, available) } else { count };
        let mark = mark(subject, 0.0, climb.used(count).unwrap_or(used));
        self.mode = Mode::Watch;
        let why = match form {
            Form::First => bal_why(subject, part),
            Form::Second => Why::Utilisation { available: Cpus(part) },
        };
        let found = Found { bal: form == Form::First, ..Found::new(count, why, available, mark) };
        self.settle(subject, found, None);
    }
}

impl Size for Corefit {
    fn look(
        &mut self,
        subject: &Subject<'_>,
        entitled: &dyn Fn(u32) -> Option<f64>,
        races: &mut Races,
    ) -> bool {
        if subject.wanted().is_none_or(|wanted| wanted >= IDLE) {
            self.budget.works(subject.over);
        }
        let waited = std::mem::take(&mut self.waits);
        self.part = subject.available.or(self.part);
        self.counts = subject.vm.seen.progress.and(self.counts.or(Some(subject.at)));
        let passed = subject.at.since(std::mem::replace(&mut self.looked, subject.at));
        if passed > 2 * subject.over {
            // It was paused, or its guest silent: what it did before does not go on, and what it did meanwhile nobody could count.
            self.otherwise = self.otherwise.map(|_| (subject.at, Stat::default()));
            let gap = passed.saturating_sub(subject.over);
            (self.heard, self.worked) = (self.heard + gap, self.worked + gap);
        }
        let idle = subject.used.is_none_or(|used| used < IDLE);
        if subject.rate.is_some() || subject.used.is_some() && idle {
            self.heard = subject.at;
        }
        if subject.rate.is_some_and(|rate| rate > 0.0) && !std::mem::replace(&mut self.counted, true) {
            // What was found by utilisation alone says nothing of its work.
            (self.found, self.otherwise) = (None, None);
        }
        if subject.rate.is_some_and(|rate| rate > 0.0) || idle {
            self.worked = subject.at;
        }
        let since = |time: Time| subject.at.since(time);
        if self.counted && (since(self.heard) >= FORGOTTEN || since(self.worked) >= NOTHING) {
            // What was found by its work says nothing of what it does now.
            (self.counted, self.found) = (false, None);
        }
        match self.mode {
            Mode::Watch => self.watch(subject, entitled, races, waited),
            Mode::Race => {
                // Others may not be seen for a moment, which changes nothing of what there is for it.
                let subject = &Subject { available: self.part, ..*subject };
                let id = &subject.vm.seen.id;
                let race = races.of(id);
                self.raced = if race.is_some() { subject.at } else { self.raced };
                let may = race.is_none_or(|(race, _)| race.fits(id, |n| subject.clamp(n) == n));
                // Nothing counted is not nothing done: who does not report leaves the race, as does who may not have what is tried.
                if let Some(look) = look(subject).filter(|_| may) {
                    races.report(id, look);
                }
            }
            Mode::Climb(_) => self.climb(subject, races),
        }
        !matches!(self.mode, Mode::Watch)
    }

    fn choose(
        &mut self,
        subject: &Subject<'_>,
        entitled: &dyn Fn(u32) -> Option<f64>,
        races: &Races,
    ) -> Choice {
        match &self.mode {
            Mode::Watch => self.stay(subject),
            Mode::Race => self.race(&Subject { available: self.part, ..*subject }, entitled, races),
            Mode::Climb(climb) => trying(subject.clamp(climb.count()), climb.next()),
        }
    }
}

fn trying(count: u32, next: Duration) -> Choice {
    Choice { count, why: Why::Trying { count }, next: Some(next) }
}
