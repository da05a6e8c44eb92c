//! The tickets whose owners have gone: a timed wait that ran out in the middle of the line.
//!
//! The last in line just gives its ticket back (`Word::retreat`). Any other enters its ticket here
//! and sets GIVEN_UP in the word; the release that finds such a ticket at the head passes over it.

use crate::sys::{AtomicU64, AtomicUsize, Ordering};
use crate::word::TICKET_BITS;

/// Tickets that there is room for; a power of two.
#[cfg(not(modelled))]
const ROOM: usize = 4096;
#[cfg(modelled)]
const ROOM: usize = 1;

/// Places looked at for one ticket.
const NEAR: usize = if ROOM < 64 { ROOM } else { 64 };

/// A set of (lock, ticket), lock-free and of fixed size: nothing is allocated inside a lock.
pub(crate) struct GivenUp {
    /// 0, or address / 4 * 2^11 + ticket.
    tickets: [AtomicU64; ROOM],
    /// How many there are, to skip the search.
    count: AtomicUsize,
}

impl GivenUp {
    #[cfg(not(modelled))]
    pub(crate) const fn new() -> GivenUp {
        GivenUp { tickets: [const { AtomicU64::new(0) }; ROOM], count: AtomicUsize::new(0) }
    }

    #[cfg(modelled)]
    pub(crate) fn new() -> GivenUp {
        GivenUp { tickets: std::array::from_fn(|_| AtomicU64::new(0)), count: AtomicUsize::new(0) }
    }

    /// Enters a ticket. False if there is no room.
    pub(crate) fn enter(&self, lock: usize, ticket: u32) -> bool {
        let Some(key) = key(lock, ticket) else { return false };
        self.count.fetch_add(1, Ordering::Relaxed);
        let free =
            |place: &AtomicU64| place.compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let entered = self.near(key).any(free);
        if !entered {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
        entered
    }

    /// Removes a ticket. Whether it was there.
    pub(crate) fn remove(&self, lock: usize, ticket: u32) -> bool {
        if self.is_empty() {
            return false;
        }
        let Some(key) = key(lock, ticket) else { return false };
        let found = |place: &AtomicU64| {
            place.load(Ordering::Relaxed) == key
                && place.compare_exchange(key, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        let removed = self.near(key).any(found);
        if removed {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
        removed
    }

    /// Whether it may soon have no room: no further timed wait should draw a ticket.
    pub(crate) fn is_crowded(&self) -> bool {
        self.count.load(Ordering::Relaxed) > ROOM.div_ceil(2)
    }

    /// Whether certainly none is there. A waiter raises the count before it enters its ticket, and
    /// enters it before it sets the flag that makes anybody look.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Removes all, and calls `each` with their locks' addresses.
    #[cfg(not(modelled))]
    pub(crate) fn drain(&self, mut each: impl FnMut(usize)) {
        if self.is_empty() {
            return;
        }
        for place in &self.tickets {
            let key = place.swap(0, Ordering::Relaxed);
            if let Some(lock) = usize::try_from((key >> TICKET_BITS) << 2).ok().filter(|a| *a != 0) {
                each(lock);
            }
        }
        self.count.store(0, Ordering::Relaxed);
    }

    fn near(&self, key: u64) -> impl Iterator<Item = &AtomicU64> {
        let first = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as usize;
        (first..first + NEAR).map(|n| &self.tickets[n % ROOM])
    }
}

/// `None` for an address that no user memory of the usual 47 bits has.
fn key(lock: usize, ticket: u32) -> Option<u64> {
    let word = lock as u64 >> 2;
    (word >> (64 - TICKET_BITS) == 0).then_some((word << TICKET_BITS) | u64::from(ticket))
}

#[cfg(all(test, not(modelled)))]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_found_once_and_only_for_its_lock() {
        static SET: GivenUp = GivenUp::new();
        assert!(SET.enter(0x7fff_1234_5678, 5));
        assert!(!SET.remove(0x7fff_1234_5678, 4));
        assert!(!SET.remove(0x7fff_1234_567c, 5));
        assert!(SET.remove(0x7fff_1234_5678, 5));
        assert!(!SET.remove(0x7fff_1234_5678, 5));
        assert!(SET.is_empty());
    }

    #[test]
    fn a_full_neighbourhood_refuses_and_what_is_removed_makes_room() {
        static SET: GivenUp = GivenUp::new();
        // The same ticket of the same lock again and again fills one neighbourhood.
        assert_eq!((0..100).filter(|_| SET.enter(0x1000, 1)).count(), NEAR);
        assert!(SET.remove(0x1000, 1));
        assert!(SET.enter(0x1000, 1));
    }

    #[test]
    fn draining_names_the_locks() {
        static SET: GivenUp = GivenUp::new();
        assert!(SET.enter(0x1000, 1) && SET.enter(0x7fff_ffff_fffc, 1023));
        let mut locks = vec![];
        SET.drain(|lock| locks.push(lock));
        locks.sort_unstable();
        assert_eq!(locks, [0x1000, 0x7fff_ffff_fffc]);
        assert!(SET.is_empty());
    }
}
