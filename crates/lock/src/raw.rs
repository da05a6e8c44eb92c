//! The algorithm: what a thread does with the word, between the pure steps of `word.rs`.
//!
//! ```text
//!  lock:   take ── free and open ──────────────────────────────────────────────▶ holder
//!            │ held: spin for a moment, as long as the line is open              ▲
//!            ▼                                                                   │ grant
//!          draw a ticket ──▶ near the head? spin, for measured ns ── my turn ────┤
//!                              │ too far, or too long                            │
//!                              ▼                                                 │
//!          publish (slot odd) ─ FENCE ─ set PARKED ─ read the word again ─ turn ─┤
//!                              │ not my turn                                     │
//!                              ▼                                                 │
//!                            sleep ── kicked ── spin for the turn ───────────────┘
//!
//!  unlock: release ── nobody parked ──▶ done
//!            └── FENCE ── look at the slots of the next N: odd? make it even and wake
//! ```
//!
//! The two fences are the two halves of Dekker's handshake: a waiter writes its slot and reads the
//! word, a releaser writes the word and reads the slot; at least one of them sees the other.
//!
//! Who is responsible when the lock is free and there is a line: the release that made it free has
//! kicked the head, or found it awake; an awake waiter reads the word again before it sleeps. So the
//! head takes the lock, or somebody passes it, whose own release then looks at the head again.

use crate::bug::{Bug, planted};
use crate::deadline::Deadline;
use crate::place::Place;
use crate::policy::Policy;
use crate::stats::{self, Event};
use crate::sys::{self, AtomicU32, Ordering, fence};
use crate::tune::{self, Stay};
#[cfg(not(modelled))]
use crate::word::HELD;
use crate::word::{GIVEN_UP, PARKED, TICKET_BITS, Word};

/// Waiters in line above which a timed wait draws no ticket, so that tickets given up by repeated
/// timed waits for a lock that nobody releases cannot fill the line.
const TIMED_WAITERS: u32 = 256;

/// How long one sleeps that finds nobody in line whom it could wait for, ns.
const NAP_NS: u64 = 100_000;

/// One lock, as its waiters and its holder see it.
#[derive(Clone, Copy)]
pub(crate) struct Raw<'a> {
    pub(crate) word: &'a AtomicU32,
    pub(crate) place: &'a Place,
    pub(crate) policy: &'a Policy,
    /// What is in memory while the word is 0: memory and word differ by these bits, of which HELD and PARKED are none.
    pub(crate) free: u32,
    /// Whether what its waiters do is counted (`stats.rs`).
    pub(crate) counted: bool,
}

/// A wait ended without the lock: its deadline has come.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TimedOut;

impl Raw<'_> {
    /// Takes the lock if nobody has it and the line is open.
    #[cfg(not(modelled))]
    pub(crate) fn try_lock(self) -> bool {
        let mut word = self.load();
        while let Some(next) = word.take(self.policy.bypasses) {
            match self.exchange(word, next, take_order()) {
                Ok(_) => return true,
                Err(other) => word = other,
            }
        }
        false
    }

    /// Waits for the lock, at most until the deadline. Whether it had to sleep.
    pub(crate) fn lock(self, deadline: Option<Deadline>) -> Result<bool, TimedOut> {
        if self.arrive() {
            return Ok(false);
        }
        #[cfg(not(modelled))]
        let _known = crate::fork::Waiting::begin(self.address(), self.free);
        let mut slept = false;
        match self.draw(deadline, &mut slept)? {
            Some(ticket) => Ok(self.wait(ticket, deadline)? || slept),
            None => Ok(slept),
        }
    }

    /// Lets go of the lock, and sees to it that somebody goes on.
    pub(crate) fn unlock(self) {
        let mut word = self.load();
        let first = word;
        let next = loop {
            let looks = word == first || !planted(Bug::ReapLookedOnce);
            if word.given_up() && looks && !planted(Bug::NoReap) {
                break self.release_past_given_up(word);
            }
            let next = word.release();
            match self.exchange(word, next, release_order()) {
                Ok(_) => break next,
                Err(other) => word = other,
            }
        };
        // From here on the lock may be gone: only its address is used.
        if next.waiting() > 0 && next.parked() {
            if !planted(Bug::NoFenceAfterRelease) {
                fence(Ordering::SeqCst);
            }
            for ticket in (0..tune::wake_ups(self.policy)).map_while(|n| next.behind(n)) {
                if self.place.slot(self.address(), ticket).kick() {
                    self.count(Event::Kick);
                }
            }
        }
    }

    /// Spins for the lock without a ticket, which is worth it only while that may pass the line.
    fn arrive(self) -> bool {
        let mut stay = Stay::new(tune::arrival_ns(self.policy), tune::ARRIVAL_PAUSES);
        loop {
            let word = self.load();
            if let Some(next) = word.take(self.policy.bypasses) {
                if self.exchange(word, next, take_order()).is_ok() {
                    return true;
                }
            } else if word.closed(self.policy.bypasses) || !stay.on() {
                return false;
            }
        }
    }

    /// Draws a ticket; `None` if the lock was free meanwhile and is now taken. `slept` becomes true if it had to sleep.
    fn draw(self, deadline: Option<Deadline>, slept: &mut bool) -> Result<Option<u32>, TimedOut> {
        loop {
            let word = self.load();
            if let Some(next) = word.take(self.policy.bypasses) {
                if self.exchange(word, next, take_order()).is_ok() {
                    return Ok(None);
                }
                continue;
            }
            let room = match deadline {
                None => self.place.room(),
                // In line it might find no room to give its ticket up, and would have to wait without its deadline.
                Some(_) if self.place.given_up.is_crowded() => 0,
                Some(_) => TIMED_WAITERS.min(self.place.room()),
            };
            if let Some((next, ticket)) = word.enqueue().filter(|_| word.waiting() < room) {
                if self.exchange(word, next, Ordering::Relaxed).is_ok() {
                    return Ok(Some(ticket));
                }
                continue;
            }
            if deadline.is_some_and(Deadline::over) {
                return Err(TimedOut);
            }
            *slept |= self.stay_outside(deadline);
        }
    }

    /// There is no room in the line: sleeps where one of those in line would, until that one's turn has come or it has
    /// left the line. Threads choose different ones, so that they come one by one as there is room. Whether it slept.
    fn stay_outside(self, deadline: Option<Deadline>) -> bool {
        let word = self.load();
        // The head may be about to take the lock.
        let steps = if word.waiting() > 1 { 1 + sys::anything() % (word.waiting() - 1) } else { 0 };
        let Some(ticket) = word.behind(steps) else {
            let Some(deadline) = deadline.filter(|_| word.held()) else { return false };
            self.nap(word, deadline);
            return true;
        };
        let slot = self.place.slot(self.address(), ticket);
        self.place.outside.fetch_add(1, Ordering::Relaxed);
        let published = slot.publish();
        if !planted(Bug::OutsideNoFence) {
            fence(Ordering::SeqCst);
        }
        let sleeps = self.flag_outside(word, ticket);
        if sleeps {
            self.count(Event::Park);
            slot.sleep(published, deadline);
        } else {
            sys::pause();
        }
        self.place.outside.fetch_sub(1, Ordering::Relaxed);
        sleeps
    }

    /// A timed wait sleeps without anybody who would wake it: an empty line has no room for it, and no flag.
    fn nap(self, word: Word, deadline: Deadline) {
        let slot = self.place.slot(self.address(), word.tail());
        self.count(Event::Park);
        slot.sleep(slot.publish(), Some(Deadline::monotonic(sys::now() + deadline.rest().min(NAP_NS))));
    }

    /// Sets the slow-path flag for one who waits for this ticket's turn. False if that may have come: the release that gives
    /// it is no longer to come. Not with `fetch_or` as in `wait`: with nobody in line the flag would stay.
    fn flag_outside(self, mut word: Word, ticket: u32) -> bool {
        while word.in_line(ticket) && !word.turn(ticket) {
            match self.exchange(word, Word(word.0 | PARKED), Ordering::Relaxed) {
                Err(other) if !planted(Bug::OutsideNoReread) => word = other,
                _ => return true,
            }
        }
        false
    }

    /// A ticket has left the line without having had its turn: tells those outside who wait for that. `word` was the last one
    /// with it.
    fn left(self, word: Word, ticket: u32) {
        if word.parked() && !planted(Bug::LeftUnseen) {
            fence(Ordering::SeqCst);
            if self.place.outside.load(Ordering::Relaxed) > 0 {
                self.place.slot(self.address(), ticket).kick();
            }
        }
    }

    /// Waits until the ticket's turn comes, and takes the lock. Whether it had to sleep.
    fn wait(self, ticket: u32, deadline: Option<Deadline>) -> Result<bool, TimedOut> {
        let slot = self.place.slot(self.address(), ticket);
        let mut may_leave = deadline.is_some();
        let (mut woken, mut slept) = (false, false);
        loop {
            if self.spin(ticket) {
                return Ok(slept);
            }
            if woken && planted(Bug::TrustTheKick) {
                let word = self.load();
                if self.exchange(word, word.grant(), Ordering::Acquire).is_ok() {
                    return Ok(slept);
                }
            }
            if woken {
                self.count(Event::Wasted);
            }
            if may_leave && deadline.is_some_and(Deadline::over) {
                match self.give_up(ticket) {
                    Leaving::Left => return Err(TimedOut),
                    Leaving::GotIt => return Ok(slept),
                    Leaving::NoRoom => may_leave = false,
                }
            }
            let published = slot.publish();
            if !planted(Bug::NoFenceBeforeReread) {
                fence(Ordering::SeqCst);
            }
            let mut word = self.load();
            if !word.parked() && !planted(Bug::NoParkedFlag) {
                let before = Word((self.word.fetch_or(PARKED, Ordering::Relaxed) ^ self.free) | PARKED);
                word = if planted(Bug::RereadBeforeFlag) { word } else { before };
            }
            if word.turn(ticket) && !planted(Bug::NoReread) {
                woken = false;
                continue;
            }
            self.count(Event::Park);
            let fell_asleep = slot.sleep(published, deadline.filter(|_| may_leave));
            slept = true;
            woken = fell_asleep && slot.kicked(published);
            if woken {
                let distance = self.load().distance(ticket);
                if distance > 0 {
                    self.count(Event::Early);
                }
                tune::woken(slot);
            }
        }
    }

    /// Spins for the ticket's turn as long as its distance makes that worth it; whether it has the lock.
    fn spin(self, ticket: u32) -> bool {
        let mut word = self.load();
        let mut distance = word.distance(ticket);
        let mut stay = Stay::at_distance(self.policy, distance, word.held());
        loop {
            while word.turn(ticket) {
                let order = if planted(Bug::GrantRelaxed) { Ordering::Relaxed } else { Ordering::Acquire };
                match self.exchange(word, word.grant(), order) {
                    Ok(_) => return true,
                    Err(other) => word = other,
                }
            }
            if !stay.on() {
                return false;
            }
            word = self.load();
            if word.distance(ticket) != distance {
                distance = word.distance(ticket);
                stay.nearer(self.policy, distance, word.held());
            }
        }
    }

    /// The owner of a ticket wants to leave the line.
    fn give_up(self, ticket: u32) -> Leaving {
        let mut word = self.load();
        loop {
            let (next, end) = if word.turn(ticket) {
                (word.grant(), Leaving::GotIt)
            } else if let Some(next) = word.retreat(ticket) {
                (next, Leaving::Left)
            } else if planted(Bug::EnterAfterFlag) {
                self.word.fetch_or(GIVEN_UP, Ordering::AcqRel);
                self.place.given_up.enter(self.address(), ticket);
                return Leaving::Left;
            } else if !self.place.given_up.enter(self.address(), ticket) {
                return Leaving::NoRoom;
            } else {
                let Some(flagged) = self.flag(ticket) else { return Leaving::Left };
                word = flagged;
                let mine = word.turn(ticket) && !planted(Bug::GiveUpWithoutReread);
                // A release that came before the flag has left the turn to this ticket. Unless
                // somebody passed it meanwhile, whose release then removed it.
                let taken_back = || self.place.given_up.remove(self.address(), ticket);
                if !mine || !(taken_back() || planted(Bug::TurnThoughPassed)) {
                    return Leaving::Left;
                }
                word = self.load();
                continue;
            };
            match self.exchange(word, next, Ordering::Acquire) {
                Ok(_) => {
                    if matches!(end, Leaving::Left) {
                        self.left(word, ticket);
                    }
                    return end;
                }
                Err(other) => word = other,
            }
        }
    }

    /// Sets the flag that a ticket in line has no owner. `None` if this ticket has been passed already: a
    /// flag would stay in a word that is free.
    fn flag(self, ticket: u32) -> Option<Word> {
        let mut word = self.load();
        while word.in_line(ticket) || planted(Bug::FlagUnseen) {
            let next = Word(word.0 | GIVEN_UP);
            // Release: whoever sees the flag finds the ticket.
            let order = if planted(Bug::FlagRelaxed) { Ordering::Relaxed } else { Ordering::AcqRel };
            match self.exchange(word, next, order) {
                Ok(_) => return Some(next),
                Err(other) => word = other,
            }
        }
        None
    }

    /// Releases, with nobody at the head who has given up. That is done before the release, since
    /// with nobody left in line the lock may be gone right after it.
    fn release_past_given_up(self, mut word: Word) -> Word {
        loop {
            // The flag falls before the head is looked at: a head that gives up after the look sets
            // it, which the release below then notices.
            let quiet = Word(word.0 & !GIVEN_UP);
            if word != quiet && !planted(Bug::ReapWithFlagSet) {
                let order = if planted(Bug::LookRelaxed) { Ordering::Relaxed } else { Ordering::AcqRel };
                match self.exchange(word, quiet, order) {
                    Ok(_) => word = quiet,
                    Err(other) => {
                        word = other;
                        continue;
                    }
                }
            }
            let gone = word.waiting() > 0 && self.place.given_up.remove(self.address(), word.head());
            let next = if gone { word.advance() } else { word.release() };
            let next = if next.waiting() > 0 { Word(next.0 | GIVEN_UP) } else { next };
            match self.exchange(word, next, Ordering::AcqRel) {
                Ok(_) if gone => {
                    self.left(word, word.head());
                    word = next;
                }
                Ok(_) => return next,
                Err(_) if gone => word = self.pass_head(),
                Err(other) => word = other,
            }
        }
    }

    /// The head has been removed from the missing, so it must leave the line.
    fn pass_head(self) -> Word {
        let mut word = self.load();
        loop {
            match self.exchange(word, word.advance(), Ordering::AcqRel) {
                Ok(_) => {
                    self.left(word, word.head());
                    return word.advance();
                }
                Err(other) => word = other,
            }
        }
    }

    fn load(self) -> Word<TICKET_BITS> {
        Word(self.word.load(Ordering::Relaxed) ^ self.free)
    }

    fn exchange(self, from: Word, to: Word, order: Ordering) -> Result<Word, Word> {
        let (from, to) = (from.0 ^ self.free, to.0 ^ self.free);
        let value = |memory: u32| Word(memory ^ self.free);
        self.word.compare_exchange(from, to, order, Ordering::Relaxed).map(value).map_err(value)
    }

    fn count(self, event: Event) {
        if self.counted {
            stats::count(event);
        }
    }

    /// Names the lock where its memory may not be touched any more.
    fn address(self) -> usize {
        // Loom's atomics move in memory between runs of a model.
        if cfg!(modelled) { 0x1000 } else { std::ptr::from_ref(self.word) as usize }
    }
}

/// How an attempt to leave the line ended.
enum Leaving {
    Left,
    GotIt,
    NoRoom,
}

/// One attempt at a lock that nobody waits for.
#[cfg(not(modelled))]
#[inline(always)]
pub(crate) fn take_free(word: &AtomicU32, free: u32) -> bool {
    word.compare_exchange(free, free | HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// One attempt to release a lock that nobody waits for.
#[cfg(not(modelled))]
#[inline(always)]
pub(crate) fn release_free(word: &AtomicU32, free: u32) -> bool {
    word.compare_exchange(free | HELD, free, Ordering::Release, Ordering::Relaxed).is_ok()
}

fn take_order() -> Ordering {
    if planted(Bug::TakeRelaxed) { Ordering::Relaxed } else { Ordering::Acquire }
}

fn release_order() -> Ordering {
    if planted(Bug::ReleaseRelaxed) { Ordering::Relaxed } else { Ordering::Release }
}
