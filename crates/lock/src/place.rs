//! Where waiters sleep: an array of slots for all locks of the process, addressed by lock and ticket,
//! so that a lock needs no memory of its own for its waiters (the waiting array of Dice and Kogan,
//! "TWA - Ticket Locks Augmented with a Waiting Array", Euro-Par 2019, here with a futex per slot).
//!
//! A slot's word is odd while somebody may sleep on it; a kick makes it even and wakes them all. Two
//! waiters on one slot cost each other a needless wake-up, never a lost one. Nobody owns a slot, and
//! a kick touches only the slot, never the lock: it may be gone by then.

use crate::bug::{Bug, planted};
use crate::deadline::Deadline;
use crate::given_up::GivenUp;
#[cfg(not(modelled))]
use crate::sys::AtomicU64;
use crate::sys::{AtomicU32, Futex, Ordering};
use crate::word::TICKET_BITS;

#[cfg(not(modelled))]
const SLOTS: usize = 1024;
/// Waiters share it.
#[cfg(modelled)]
const SLOTS: usize = 1;

const MOST_WAITING: u32 = (1 << TICKET_BITS) - 1;

/// The slots, and the tickets without owner.
pub(crate) struct Place {
    slots: [Slot; SLOTS],
    pub(crate) given_up: GivenUp,
    /// Those who find no room in a line.
    pub(crate) outside: AtomicU32,
    /// How many may stand in a line.
    #[cfg(modelled)]
    pub(crate) room: u32,
}

/// A place to sleep, alone on its cache line.
#[repr(align(64))]
pub(crate) struct Slot {
    futex: Futex,
    /// When it was last kicked, in ns of `sys::now`: waiters learn from it how long a wake-up takes.
    #[cfg(not(modelled))]
    kicked_at: AtomicU64,
}

#[cfg(not(modelled))]
static PLACE: Place =
    Place { slots: [const { Slot::new() }; SLOTS], given_up: GivenUp::new(), outside: AtomicU32::new(0) };

impl Place {
    /// That of the process.
    #[cfg(not(modelled))]
    pub(crate) fn shared() -> &'static Place {
        &PLACE
    }

    #[cfg(modelled)]
    pub(crate) fn new() -> Place {
        Place {
            slots: std::array::from_fn(|_| Slot::new()),
            given_up: GivenUp::new(),
            outside: AtomicU32::new(0),
            room: MOST_WAITING,
        }
    }

    /// How many may stand in a line.
    #[inline(always)]
    pub(crate) fn room(&self) -> u32 {
        #[cfg(modelled)]
        return self.room;
        #[cfg(not(modelled))]
        return MOST_WAITING;
    }

    /// The slot of a ticket of the lock at this address. Neighbouring tickets get different ones.
    pub(crate) fn slot(&self, lock: usize, ticket: u32) -> &Slot {
        let spread = if cfg!(modelled) { 0 } else { (lock >> 2).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40 };
        &self.slots[spread.wrapping_add(ticket as usize) % SLOTS]
    }
}

impl Slot {
    #[cfg(not(modelled))]
    const fn new() -> Slot {
        Slot { futex: Futex::new(), kicked_at: AtomicU64::new(0) }
    }

    #[cfg(modelled)]
    fn new() -> Slot {
        Slot { futex: Futex::new() }
    }

    /// Announces a sleeper; what it returns is to be given to `sleep`. Relaxed, as is the kick: the fence
    /// after it and the one before the kick order what either side reads next.
    pub(crate) fn publish(&self) -> u32 {
        self.word().fetch_or(1, Ordering::Relaxed) | 1
    }

    /// Sleeps until a kick that came after `publish`, or the deadline; false if it could not sleep at all.
    pub(crate) fn sleep(&self, published: u32, deadline: Option<Deadline>) -> bool {
        let expected = if planted(Bug::SleepOnTheNewestValue) {
            // Not a load: loom 0.7 orders a write against the last access before it only, here the
            // kick's own load, and would never try the kick before this.
            self.word().fetch_or(0, Ordering::Relaxed)
        } else {
            published
        };
        self.futex.wait(expected, deadline)
    }

    /// Wakes whoever sleeps here. Whether somebody had announced himself.
    pub(crate) fn kick(&self) -> bool {
        let mut value = self.futex.load(Ordering::Relaxed);
        while value & 1 != 0 {
            let next = value.wrapping_add(1);
            match self.word().compare_exchange_weak(value, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    // A waiter that runs before this is stored has not slept, and does not read it.
                    #[cfg(not(modelled))]
                    self.kicked_at.store(crate::sys::now(), Ordering::Relaxed);
                    self.futex.wake(if planted(Bug::WakeOneOfTheSlot) { 1 } else { i32::MAX });
                    return true;
                }
                Err(other) => value = other,
            }
        }
        false
    }

    /// Whether a kick came after `publish` returned this.
    pub(crate) fn kicked(&self, published: u32) -> bool {
        self.futex.load(Ordering::Relaxed) != published
    }

    /// When the last kick came.
    #[cfg(not(modelled))]
    pub(crate) fn kicked_at(&self) -> u64 {
        self.kicked_at.load(Ordering::Relaxed)
    }

    fn word(&self) -> &crate::sys::AtomicU32 {
        #[cfg(modelled)]
        return &self.futex.word;
        #[cfg(not(modelled))]
        return &self.futex.0;
    }
}
