//! The lock as a model, explored completely: four threads that take turns, tickets that wrap around,
//! waiters on shared slots, and a waiter whose time runs out at any moment.
//!
//! The word's steps are those of the real lock (`word.rs`), with two or three bits per ticket. Each
//! load, exchange, futex call and kick is a step of its own, and threads interleave in every way.
//! Memory here is sequentially consistent: orderings and fences are the matter of the loom tests.
//!
//! What is shown: mutual exclusion; the order of the line and the bound of `docs/locks.md` on what may
//! pass a waiter; no state without a next step but the end (so no wake-up is lost); everybody ends.
//! Seeded bugs show that each of these is noticed.

use std::collections::BTreeSet;

use corefit_lock::word::{GIVEN_UP, PARKED, Word};
use stateright::{Checker, HasDiscoveries, Model, Property};

type Ticket = u8;

/// What a thread is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum At {
    /// Take the lock or draw a ticket.
    Arrive,
    /// Awake with a ticket: take the lock in its turn, or announce a sleep.
    Wait(Ticket),
    /// Has announced its sleep; reads the word again.
    Reread(Ticket, u8),
    /// Calls the futex.
    Sleep(Ticket, u8),
    Asleep(Ticket),
    /// Gave up: is entered among the missing, sets the flag.
    Flag(Ticket),
    /// Gave up in its very turn: takes its entry back.
    Undo(Ticket),
    Hold,
    /// Releases past the missing; the flag has fallen and the word was this.
    Look(u32),
    /// The head was one of the missing: it leaves the line.
    Pass,
    /// Releases from this word, if it still is.
    Finish(u32),
    /// Looks at the slots of so many tickets from this one on.
    Kick(Ticket, u8),
    /// Wakes who sleeps on the slot of this ticket, then goes on with so many.
    Wake(Ticket, u8),
    Done,
}

/// What can be done wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    NoReread,
    NoParkedFlag,
    NoKick,
    NoCount,
    FullLineIgnored,
    NoReap,
    GiveUpWithoutReread,
    HeadNotChecked,
    SleepWithoutCompare,
    WakeOneOfTheSlot,
    ReleaseWithoutLook,
    /// The flag is set without looking whether the ticket has been passed already.
    FlagUnseen,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    word: u32,
    at: Vec<At>,
    /// Turns left.
    left: Vec<u8>,
    /// Whether the thread may still give up.
    timed: Vec<bool>,
    /// The slots' words.
    slots: Vec<u8>,
    missing: BTreeSet<Ticket>,
    /// The threads in line, in order, with what may still pass each (by the proof's bound).
    line: Vec<(u8, i16)>,
    /// A property of the last step was violated.
    broken: Option<&'static str>,
}

struct Lock<const T: u32> {
    turns: Vec<u8>,
    timed: Vec<bool>,
    bypasses: u32,
    wakes: u8,
    slots: usize,
    bug: Bug,
}

impl<const T: u32> Lock<T> {
    fn slot(&self, ticket: Ticket) -> usize {
        ticket as usize % self.slots
    }

    /// What may pass a waiter that draws its ticket now: the holder's turn; for everybody before it
    /// B bypasses and a turn; B bypasses at its own head.
    fn bound(&self, word: Word<T>) -> i16 {
        let b = i16::try_from(self.bypasses).unwrap();
        i16::from(word.held()) + i16::try_from(word.waiting()).unwrap() * (b + 1) + b
    }

    /// Thread `i` has the lock from now on.
    fn acquired(&self, s: &mut State, i: usize, ticket: bool) {
        if s.at.iter().enumerate().any(|(j, at)| j != i && holding(*at)) {
            s.broken = Some("two hold the lock");
        }
        let place = s.line.iter().position(|(j, _)| usize::from(*j) == i);
        if ticket && place != Some(0) {
            s.broken = Some("not the first in line");
        }
        if let Some(place) = place {
            s.line.remove(place);
        } else if self.bypasses == 0 && !s.line.is_empty() {
            s.broken = Some("passed the line without a bypass");
        }
        for (_, allowed) in &mut s.line {
            *allowed -= 1;
            if *allowed < 0 {
                s.broken = Some("passed more often than the bound allows");
            }
        }
        s.at[i] = At::Hold;
    }

    fn take(&self, word: Word<T>) -> Option<Word<T>> {
        let next = word.take(self.bypasses)?;
        Some(if self.bug == Bug::NoCount && word.waiting() > 0 { Word(word.0 | 1) } else { next })
    }

    fn grant(&self, word: Word<T>) -> Word<T> {
        word.grant()
    }

    fn enqueue(&self, word: Word<T>) -> Option<(Word<T>, u32)> {
        if self.bug == Bug::FullLineIgnored {
            let tail = (word.tail() + 1) & ((1 << T) - 1);
            let rest = word.0 & !(((1 << T) - 1) << (10 + T));
            return Some((Word(rest | (tail << (10 + T))), word.tail()));
        }
        word.enqueue()
    }

    fn leave(&self, s: &mut State, i: usize) {
        s.line.retain(|(j, _)| usize::from(*j) != i);
        s.at[i] = At::Arrive;
        s.left[i] -= 1;
        self.rest(s, i);
    }

    fn rest(&self, s: &mut State, i: usize) {
        s.at[i] = if s.left[i] == 0 { At::Done } else { At::Arrive };
    }

    /// Released, with this left: who is to be woken.
    fn released(&self, s: &mut State, i: usize, next: Word<T>) {
        s.word = next.0;
        s.left[i] -= 1;
        if next.waiting() > 0 && next.parked() && self.bug != Bug::NoKick {
            let n = self.wakes.min(u8::try_from(next.waiting()).unwrap());
            s.at[i] = At::Kick(u8::try_from(next.head()).unwrap(), n);
        } else {
            self.rest(s, i);
        }
    }
}

fn holding(at: At) -> bool {
    matches!(at, At::Hold | At::Look(_) | At::Pass | At::Finish(_))
}

/// A thread's next step; some have a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Go(usize),
    GiveUp(usize),
    /// The futex returns for no reason: the time is over.
    WakeUp(usize),
    /// The one that a buggy kick wakes.
    WakeOne(usize, usize),
}

impl<const T: u32> Model for Lock<T> {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let n = self.turns.len();
        vec![State {
            word: 0,
            at: vec![At::Arrive; n],
            left: self.turns.clone(),
            timed: self.timed.clone(),
            slots: vec![0; self.slots],
            missing: BTreeSet::new(),
            line: vec![],
            broken: None,
        }]
    }

    fn actions(&self, s: &State, steps: &mut Vec<Step>) {
        let word = Word::<T>(s.word);
        for (i, at) in s.at.iter().enumerate() {
            match at {
                At::Done => {}
                At::Asleep(_) => {
                    if s.timed[i] {
                        steps.push(Step::WakeUp(i));
                    }
                }
                // Who finds the line full naps until it is not.
                At::Arrive if self.take(word).is_none() && self.enqueue(word).is_none() => {}
                At::Wait(_) => {
                    steps.push(Step::Go(i));
                    if s.timed[i] {
                        steps.push(Step::GiveUp(i));
                    }
                }
                At::Wake(ticket, _) if self.bug == Bug::WakeOneOfTheSlot => {
                    let sleepers = asleep(self, s, *ticket);
                    steps.extend(sleepers.iter().map(|j| Step::WakeOne(i, *j)));
                    if sleepers.is_empty() {
                        steps.push(Step::Go(i));
                    }
                }
                _ => steps.push(Step::Go(i)),
            }
        }
    }

    fn next_state(&self, s: &State, step: Step) -> Option<State> {
        let mut s = s.clone();
        let word = Word::<T>(s.word);
        match step {
            Step::WakeUp(i) => {
                if let At::Asleep(t) = s.at[i] {
                    s.at[i] = At::Wait(t);
                }
            }
            Step::WakeOne(i, j) => {
                if let (At::Wake(t, n), At::Asleep(u)) = (s.at[i], s.at[j]) {
                    s.at[j] = At::Wait(u);
                    kicked(self, &mut s, i, t, n);
                }
            }
            Step::GiveUp(i) => {
                let At::Wait(t) = s.at[i] else { return None };
                s.timed[i] = false;
                if word.turn(t.into()) {
                    s.word = self.grant(word).0;
                    self.acquired(&mut s, i, true);
                } else if let Some(next) = word.retreat(t.into()) {
                    s.word = next.0;
                    self.leave(&mut s, i);
                } else {
                    // From here on whoever sees the flag may pass it.
                    s.line.retain(|(j, _)| usize::from(*j) != i);
                    s.missing.insert(t);
                    s.at[i] = At::Flag(t);
                }
            }
            Step::Go(i) => match s.at[i] {
                At::Done | At::Asleep(_) => return None,
                At::Arrive => {
                    if let Some(next) = self.take(word) {
                        s.word = next.0;
                        self.acquired(&mut s, i, false);
                    } else {
                        let (next, t) = self.enqueue(word)?;
                        s.line.push((u8::try_from(i).unwrap(), self.bound(word)));
                        s.word = next.0;
                        s.at[i] = At::Wait(u8::try_from(t).unwrap());
                    }
                }
                At::Wait(t) => {
                    let turn =
                        if self.bug == Bug::HeadNotChecked { !word.held() } else { word.turn(t.into()) };
                    if turn {
                        s.word = self.grant(word).0;
                        self.acquired(&mut s, i, true);
                    } else {
                        let slot = self.slot(t);
                        s.slots[slot] |= 1;
                        s.at[i] = At::Reread(t, s.slots[slot]);
                    }
                }
                At::Reread(t, v) => {
                    if !word.parked() && self.bug != Bug::NoParkedFlag {
                        s.word |= PARKED;
                    }
                    let turn = word.turn(t.into()) && self.bug != Bug::NoReread;
                    s.at[i] = if turn { At::Wait(t) } else { At::Sleep(t, v) };
                }
                At::Sleep(t, v) => {
                    let same = s.slots[self.slot(t)] == v || self.bug == Bug::SleepWithoutCompare;
                    s.at[i] = if same { At::Asleep(t) } else { At::Wait(t) };
                }
                At::Flag(t) if !word.in_line(t.into()) && self.bug != Bug::FlagUnseen => {
                    self.leave(&mut s, i);
                }
                At::Flag(t) => {
                    s.word |= GIVEN_UP;
                    if word.turn(t.into()) && self.bug != Bug::GiveUpWithoutReread {
                        s.at[i] = At::Undo(t);
                    } else {
                        self.leave(&mut s, i);
                    }
                }
                At::Undo(t) => {
                    if s.missing.remove(&t) {
                        let b = i16::try_from(self.bypasses).unwrap();
                        s.line.insert(0, (u8::try_from(i).unwrap(), b));
                        s.at[i] = At::Wait(t);
                    } else {
                        self.leave(&mut s, i);
                    }
                }
                At::Hold => {
                    if word.given_up() && self.bug != Bug::NoReap {
                        s.word &= !GIVEN_UP;
                        s.at[i] = At::Look(s.word);
                    } else {
                        self.released(&mut s, i, word.release());
                    }
                }
                At::Look(seen) => {
                    let head = u8::try_from(Word::<T>(seen).head()).unwrap();
                    let gone = Word::<T>(seen).waiting() > 0 && s.missing.remove(&head);
                    s.at[i] = if gone { At::Pass } else { At::Finish(seen) };
                }
                At::Pass => {
                    let next = word.advance();
                    s.word = next.0 & !GIVEN_UP;
                    s.at[i] = At::Look(s.word);
                }
                At::Finish(seen) => {
                    if s.word == seen || self.bug == Bug::ReleaseWithoutLook {
                        let next = word.release();
                        let flag = if next.waiting() > 0 { GIVEN_UP } else { 0 };
                        self.released(&mut s, i, Word(next.0 | flag));
                    } else {
                        s.word &= !GIVEN_UP;
                        s.at[i] = At::Look(s.word);
                    }
                }
                At::Kick(t, n) => {
                    let slot = self.slot(t);
                    if s.slots[slot] & 1 == 1 {
                        s.slots[slot] += 1;
                        s.at[i] = At::Wake(t, n);
                    } else {
                        kicked(self, &mut s, i, t, n);
                    }
                }
                At::Wake(t, n) => {
                    for j in asleep(self, &s, t) {
                        if let At::Asleep(u) = s.at[j] {
                            s.at[j] = At::Wait(u);
                        }
                    }
                    kicked(self, &mut s, i, t, n);
                }
            },
        }
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("exclusion, order and bound", |_, s: &State| s.broken.is_none()),
            Property::always("nobody is stuck", |m: &Self, s: &State| {
                let mut steps = vec![];
                m.actions(s, &mut steps);
                // A timeout is no excuse for a lost wake-up: the others must get on without it.
                steps.retain(|step| !matches!(step, Step::WakeUp(_)));
                !steps.is_empty() || s.at.iter().all(|at| *at == At::Done)
            }),
            Property::always("nothing is left behind", |_, s: &State| {
                s.at.iter().any(|at| *at != At::Done) || (s.word == 0 && s.missing.is_empty())
            }),
            Property::sometimes("tickets wrap around", |_, s: &State| {
                let word = Word::<T>(s.word);
                word.waiting() > 1 && word.tail() < word.head()
            }),
        ]
    }
}

/// Threads asleep on the slot of this ticket.
fn asleep<const T: u32>(lock: &Lock<T>, s: &State, ticket: Ticket) -> Vec<usize> {
    let here = |at: &At| matches!(at, At::Asleep(t) if lock.slot(*t) == lock.slot(ticket));
    (0..s.at.len()).filter(|i| here(&s.at[*i])).collect()
}

/// On to the next slot.
fn kicked<const T: u32>(lock: &Lock<T>, s: &mut State, i: usize, ticket: Ticket, n: u8) {
    if n > 1 {
        s.at[i] = At::Kick((ticket + 1) % (1 << T), n - 1);
    } else {
        lock.rest(s, i);
    }
}

/// Four threads, `turns` turns each, the last one with a time limit if `timed`.
fn lock<const T: u32>(bypasses: u32, turns: [u8; 4], timed: bool) -> Lock<T> {
    Lock {
        turns: turns.to_vec(),
        timed: vec![false, timed, false, timed],
        bypasses,
        wakes: 1,
        slots: 2,
        bug: Bug::None,
    }
}

fn explore<const T: u32>(model: Lock<T>, wraps: bool) {
    let start = std::time::Instant::now();
    let checker = model.checker().threads(2).spawn_bfs().join();
    println!("{} states, {:.1} s", checker.unique_state_count(), start.elapsed().as_secs_f64());
    for name in ["exclusion, order and bound", "nobody is stuck", "nothing is left behind"] {
        if let Some(path) = checker.discovery(name) {
            panic!("{name} is violated after {:#?}", path.into_actions().len());
        }
    }
    if wraps {
        checker.assert_any_discovery("tickets wrap around");
    }
}

fn catches<const T: u32>(bug: Bug, mut model: Lock<T>) {
    model.bug = bug;
    let checker = model.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let found = checker.discoveries();
    assert!(found.keys().any(|name| *name != "tickets wrap around"), "{bug:?} went unnoticed");
}

#[test]
fn strict_order_holds_for_four_threads_and_tickets_that_wrap_around() {
    explore(lock::<2>(0, [2, 2, 1, 1], false), true);
}

#[test]
fn the_bound_holds_with_bypasses() {
    explore(lock::<2>(1, [2, 1, 1, 1], false), false);
    explore(lock::<3>(2, [3, 1, 1, 1], false), false);
}

#[test]
fn waking_two_at_a_time_loses_nobody() {
    explore(Lock { wakes: 2, ..lock::<2>(1, [2, 1, 1, 1], false) }, false);
}

#[test]
fn waiters_may_give_up_at_any_moment() {
    explore(lock::<2>(0, [1, 1, 1, 1], true), false);
    explore(lock::<3>(1, [1, 1, 1, 1], true), false);
}

#[test]
fn every_seeded_bug_is_noticed() {
    for bug in [
        Bug::NoReread,
        Bug::NoParkedFlag,
        Bug::NoKick,
        Bug::HeadNotChecked,
        Bug::SleepWithoutCompare,
        Bug::WakeOneOfTheSlot,
    ] {
        catches(bug, lock::<2>(0, [2, 1, 1, 1], false));
    }
    catches(Bug::NoCount, lock::<2>(1, [4, 4, 1, 1], false));
    // A count that is not reset for the next head is no violation: it only closes the line early.
    // With one bit, two waiters are one too many.
    catches(Bug::FullLineIgnored, lock::<1>(0, [1, 1, 1, 1], false));
    for bug in [Bug::NoReap, Bug::GiveUpWithoutReread, Bug::ReleaseWithoutLook, Bug::FlagUnseen] {
        catches(bug, lock::<2>(0, [1, 1, 1, 1], true));
    }
}
