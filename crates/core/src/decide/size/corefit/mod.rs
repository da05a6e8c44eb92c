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
//! measured to be no worse. **Without one** utilisation is all there is, and VCPU-Bal's count is taken unless its
//! shape is P2's second or third ([`shape`]). What was learned is remembered by phase ([`memory`]). A search may cost
//! [`PART`] of the VM's time and [`START`] seconds; the time until the next doubles with each that changed nothing.

mod memory;
mod race;
mod shape;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use self::memory::{Mark, Memory, alike};
use self::race::{Look, Race};
use self::shape::{Climb, Form};
use super::published::keep;
use super::{Choice, Size, Subject, whole};
use crate::decide::Why;
use crate::{Cpus, Time};

/// What searching may cost in the long run, as a part of the VM's time.
const PART: f64 = 0.02;
/// What it may cost besides, s.
const START: f64 = 2.0;
/// After a search that changed nothing the next one comes not before this time, twice as long each time.
const REST: Duration = Duration::from_secs(20);
/// The longest rest.
const LONGEST: Duration = Duration::from_secs(3600);
/// With a signal it is looked again whether another count is better after this time, and after twice as long each time
/// that none was, up to [`LONGEST`]: a load may have changed so that it does what it did, but could do more elsewhere.
const AGAIN: Duration = Duration::from_secs(600);
/// What a race found is proven for so long, s: just after a change a guest may do better or worse than later.
const PROOF: f64 = 2.0;
/// Another count is tried in its place if it was worth so many times more.
const BETTER: f64 = 1.05;
/// A VM that uses less is idle: there is nothing to learn.
const IDLE: f64 = 0.1;

/// The policy, and what it knows of one VM.
#[derive(Debug)]
pub struct Corefit {
    probe: Duration,
    dwell: Duration,
    mode: Mode,
    began: Option<Time>,
    /// Seconds that searches cost so far.
    lost: f64,
    /// Where it is to be, because of what; found for so many available pCPUs, and what it did there at first.
    found: Option<Found>,
    /// Since when things are otherwise.
    otherwise: Option<Time>,
    memory: Memory,
    /// Searches in a row, after changes, that found what was there.
    searches: u32,
    /// The same of those without a change, and whether the one that goes on is such.
    checks: u32,
    checking: bool,
    not_before: Time,
    /// When to look again though nothing changed.
    again: Time,
}

#[derive(Clone, Debug)]
struct Found {
    count: u32,
    why: Why,
    available: u32,
    mark: Mark,
    proof: Option<Proof>,
}

/// Whether a count does what it did in its race, and who else may be best.
#[derive(Clone, Debug)]
struct Proof {
    seconds: f64,
    units: f64,
    /// pCPU seconds used, and those of the own part.
    used: f64,
    part: f64,
    /// What others were worth in the race, and what was proven so far.
    rivals: Vec<(u32, f64)>,
    proven: Vec<(u32, Mark)>,
}

#[derive(Clone, Debug)]
enum Mode {
    Watch,
    Race(Race),
    Climb(Climb),
}

impl Corefit {
    /// `probe`: of a look at a count that is tried; `dwell`: how long things have to be otherwise.
    #[must_use]
    pub fn new(probe: Duration, dwell: Duration) -> Corefit {
        Corefit {
            probe,
            dwell,
            mode: Mode::Watch,
            began: None,
            lost: 0.0,
            found: None,
            otherwise: None,
            memory: Memory::default(),
            searches: 0,
            checks: 0,
            checking: false,
            not_before: Time(0),
            again: Time(0),
        }
    }

    fn stay(&self, subject: &Subject<'_>) -> Choice {
        let Some(found) = &self.found else { return keep(subject) };
        Choice { count: subject.clamp(found.count), why: found.why.clone(), next: None }
    }

    fn watch(&mut self, subject: &Subject<'_>, entitled: &dyn Fn(u32) -> Option<f64>) -> Choice {
        let (Some(part), Some(used)) = (subject.available, subject.used) else { return keep(subject) };
        let available = subject.clamp(whole(part));
        if used < IDLE {
            self.otherwise = None;
            return self.stay(subject);
        }
        let mark = Mark { value: subject.rate.map_or(0.0, |rate| worth(rate, used, part)), used };
        if self.found.as_ref().is_some_and(|found| found.proof.is_some()) {
            return self.prove(subject, used, part);
        }
        if let Some(found) = &mut self.found {
            let there = subject.online == subject.clamp(found.count);
            let same = found.available == available && (!there || alike(found.mark, mark));
            if same {
                self.otherwise = None;
                if there {
                    // It drifts: what is known follows slowly.
                    found.mark.value += 0.1 * (mark.value - found.mark.value);
                    found.mark.used += 0.1 * (mark.used - found.mark.used);
                }
                let due = there && subject.rate.is_some() && subject.at >= self.again;
                return if due { self.begin(subject, available, None, entitled) } else { self.stay(subject) };
            }
            let since = *self.otherwise.get_or_insert(subject.at);
            if subject.at.since(since) < self.dwell || subject.at < self.not_before {
                return self.stay(subject);
            }
        }
        self.begin(subject, available, Some(mark), entitled)
    }

    /// Looks whether what was found is as good as it seemed; if not, at the next one.
    fn prove(&mut self, subject: &Subject<'_>, used: f64, part: f64) -> Choice {
        let Some(found) = &mut self.found else { return keep(subject) };
        let Some(proof) = &mut found.proof else { return self.stay(subject) };
        let seconds = subject.over.as_secs_f64();
        if subject.online == subject.clamp(found.count) {
            proof.seconds += seconds;
            proof.units += subject.rate.unwrap_or(0.0) * seconds;
            proof.used += used * seconds;
            proof.part += part * seconds;
        } else {
            // It does not get there: then this is as good as it gets.
            proof.seconds = PROOF;
        }
        if proof.seconds >= PROOF {
            let (rate, used, part) =
                (proof.units / proof.seconds, proof.used / proof.seconds, proof.part / proof.seconds);
            let mark = Mark { value: worth(rate, used, part), used };
            proof.proven.push((found.count, mark));
            let best = proof.proven.iter().max_by(|a, b| a.1.value.total_cmp(&b.1.value)).copied();
            let (best, known) = best.unwrap_or((found.count, mark));
            let open = |(n, value): &&(u32, f64)| {
                *value > BETTER * known.value && proof.proven.iter().all(|(proven, _)| proven != n)
            };
            let rival = proof.rivals.iter().find(open).map(|rival| rival.0);
            (proof.seconds, proof.units, proof.used, proof.part) = (0.0, 0.0, 0.0, 0.0);
            found.count = rival.unwrap_or(best);
            found.mark = known;
            if rival.is_none() {
                found.proof = None;
            }
        }
        Choice { next: Some(Duration::from_secs(1)), ..self.stay(subject) }
    }

    /// Searches, or remembers the phase with this mark.
    fn begin(
        &mut self,
        subject: &Subject<'_>,
        available: u32,
        mark: Option<Mark>,
        entitled: &dyn Fn(u32) -> Option<f64>,
    ) -> Choice {
        self.otherwise = None;
        let began = *self.began.get_or_insert(subject.at);
        let lived = subject.at.since(began).as_secs_f64();
        let allowed = START + PART * lived - self.lost;
        let window = self.probe.max(2 * subject.period);
        if allowed <= 0.0 || !subject.may_search {
            return self.stay(subject);
        }
        self.checking = mark.is_none();
        self.mode = if subject.rate.is_some() {
            let known = mark.and_then(|mark| self.memory.recall(available, subject.online, mark));
            let counts = match known {
                Some(phase) => distinct([subject.online, phase.best, available].map(|n| subject.clamp(n))),
                None => candidates(subject, available, entitled),
            };
            Mode::Race(Race::new(&counts, window, allowed))
        } else {
            Mode::Climb(climb(subject, available, window, entitled))
        };
        self.trying()
    }

    fn trying(&self) -> Choice {
        let (count, next) = match &self.mode {
            Mode::Race(race) => (race.count(), race.next()),
            Mode::Climb(climb) => (climb.count(), climb.next()),
            Mode::Watch => (1, self.probe),
        };
        Choice { count, why: Why::Trying { count }, next: Some(next) }
    }

    fn race(&mut self, subject: &Subject<'_>, entitled: &dyn Fn(u32) -> Option<f64>) -> Choice {
        let Mode::Race(race) = &mut self.mode else { return self.stay(subject) };
        let (used, part) = (subject.used.unwrap_or(0.0), subject.available.unwrap_or(0.0));
        let units = subject.rate.map_or(0.0, |rate| rate * subject.over.as_secs_f64());
        if !race.look(subject.online, &Look { over: subject.over, units, used, part }) {
            return self.trying();
        }
        let available = subject.clamp(whole(part));
        let race = race.clone();
        self.mode = Mode::Watch;
        self.lost += race.lost;
        let Some(best) = race.best().filter(|best| best.value().is_some_and(|v| v > 0.0)) else {
            // Nothing was counted: as without a signal.
            let window = self.probe.max(2 * subject.period);
            self.mode = Mode::Climb(climb(subject, available, window, entitled));
            return self.trying();
        };
        let bal = subject.clamp(subject.share.map_or(available, whole));
        let value = |count: u32| race.of(count).and_then(race::Runner::value);
        let gain = value(bal).filter(|v| *v > 0.0).zip(best.value()).map(|(bal, best)| best / bal);
        let marked = |runner: &race::Runner| Some(Mark { value: runner.value()?, used: runner.used()? });
        let counts: BTreeSet<u32> = (subject.least..=subject.most).collect();
        let marks: BTreeMap<u32, Mark> =
            counts.iter().filter_map(|&n| Some((n, race.of(n).and_then(marked)?))).collect();
        let mut rivals: Vec<(u32, f64)> = marks.iter().map(|(n, mark)| (*n, mark.value)).collect();
        rivals.sort_by(|a, b| b.1.total_cmp(&a.1));
        let proof = Proof { seconds: 0.0, units: 0.0, used: 0.0, part: 0.0, rivals, proven: vec![] };
        let found = Found {
            proof: Some(proof),
            count: best.count,
            why: Why::Fastest { available: Cpus(part), over_share: gain },
            available,
            mark: marked(best).unwrap_or(Mark { value: 0.0, used }),
        };
        self.memory.learn(available, marks, best.count);
        Choice { next: Some(self.probe), ..self.settle(subject, found) }
    }

    fn climb(&mut self, subject: &Subject<'_>) -> Choice {
        let Mode::Climb(climb) = &mut self.mode else { return self.stay(subject) };
        let (used, part) = (subject.used.unwrap_or(0.0), subject.available.unwrap_or(0.0));
        let Some((count, form)) = climb.look(subject.online, used, part) else { return self.trying() };
        let mark = Mark { value: 0.0, used: climb.used(count).unwrap_or(used) };
        self.mode = Mode::Watch;
        let share = Cpus(subject.share.unwrap_or(part));
        let why = match form {
            Form::First => Why::Share { share },
            Form::Second | Form::Third => Why::Utilisation { available: Cpus(part) },
        };
        let found = Found { count, why, available: subject.clamp(whole(part)), mark, proof: None };
        self.settle(subject, found)
    }

    /// A search is over.
    fn settle(&mut self, subject: &Subject<'_>, found: Found) -> Choice {
        let changed = self.found.as_ref().is_none_or(|old| old.count != found.count);
        let rest = |first: Duration, times: u32| first.saturating_mul(1 << times.min(16)).min(LONGEST);
        if changed {
            (self.searches, self.checks) = (0, 0);
        } else if self.checking {
            self.checks += 1;
        } else {
            self.searches += 1;
        }
        // Looking without a change says nothing of whether changes are worth a search.
        let wait = if changed || self.checking { self.dwell } else { rest(REST, self.searches) };
        self.not_before = subject.at + wait;
        self.again = subject.at + rest(AGAIN, self.checks);
        self.found = Some(found);
        self.stay(subject)
    }
}

impl Size for Corefit {
    fn choose(&mut self, subject: &Subject<'_>, entitled: &dyn Fn(u32) -> Option<f64>) -> Choice {
        self.began.get_or_insert(subject.at);
        match self.mode {
            Mode::Watch => self.watch(subject, entitled),
            Mode::Race(_) => self.race(subject, entitled),
            Mode::Climb(_) => self.climb(subject),
        }
    }
}

/// Work per second, scaled down where more than the own part was used.
fn worth(rate: f64, used: f64, part: f64) -> f64 {
    if used > part && used > 0.0 { rate * part / used } else { rate }
}

/// The way upward from VCPU-Bal's count, as far as that costs no entitlement.
fn climb(
    subject: &Subject<'_>,
    available: u32,
    window: Duration,
    entitled: &dyn Fn(u32) -> Option<f64>,
) -> Climb {
    let bal = subject.clamp(subject.share.map_or(available, whole));
    let most = subject.clamp(subject.most);
    let most = if loses(most, bal, entitled) {
        (bal..=most).take_while(|&n| !loses(n, bal, entitled)).last().unwrap_or(bal)
    } else {
        most
    };
    Climb::new(bal, most, 2 * window)
}

/// Whether so many vCPUs are entitled to clearly less than `than` of them.
fn loses(count: u32, than: u32, entitled: &dyn Fn(u32) -> Option<f64>) -> bool {
    count > than && entitled(count).zip(entitled(than)).is_some_and(|(more, less)| more < 0.95 * less)
}

fn distinct(counts: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let mut seen = BTreeSet::new();
    counts.into_iter().filter(|n| seen.insert(*n)).collect()
}

/// Counts that may be best: VCPU-Bal's and all vCPUs, then from there down all but one, quarters of all (programs start as
/// many threads as they see vCPUs, or a part of them), the neighbours of what is available, three quarters and, where it is a quarter of all, half of it.
/// What comes after these was best nowhere where we looked, and each look costs.
fn candidates(subject: &Subject<'_>, available: u32, entitled: &dyn Fn(u32) -> Option<f64>) -> Vec<u32> {
    let (least, most) = (subject.clamp(subject.least), subject.clamp(subject.most));
    let own = subject.clamp(available);
    let bal = subject.clamp(subject.share.map_or(available, whole));
    let mut counts = vec![most - 1, most * 3 / 4, most / 2, most / 4];
    counts.extend([own, own + 1, own + 2, own.saturating_sub(1), own * 3 / 4]);
    counts.retain(|n| (least..=most).contains(n) && *n >= own / 2);
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let hurts = loses_much(most, own, entitled);
    let all = [bal, most].into_iter().chain(counts);
    distinct(all.filter(|&n| !hurts || n <= own || n == bal || !loses_much(n, own, entitled)))
}

/// As [`loses`], but work is measured: only where hardly anything would be left it is not even tried.
fn loses_much(count: u32, than: u32, entitled: &dyn Fn(u32) -> Option<f64>) -> bool {
    count > than && entitled(count).zip(entitled(than)).is_some_and(|(more, less)| more < 0.5 * less)
}
