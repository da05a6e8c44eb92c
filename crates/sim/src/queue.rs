//! What happens next.
//!
//! ```text
//! Slots:  one pending time per pCPU, a tournament tree      Timers: all else, a binary heap
//!                  1                                         (sleep ends, refills, …), with
//!               2     3      a parent is the lesser child;   generation numbers for what was
//!              4 5   6 7     setting a slot again replaces   cancelled
//!              leaves        it: nothing is ever stale
//! ```
//!
//! At most one thing can happen next to a pCPU (what runs there ends, or is looked at by a scheduler),
//! so most events need no queue that grows, no cancelling and no removal. Keys are packed: time, then
//! the order in which they were set, so that what happens at the same time happens in that order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Nanoseconds since the host began.
pub(crate) type Ns = u64;

/// A time that does not come.
pub(crate) const NEVER: Ns = u64::MAX;

/// A key that does not come.
const LAST: u128 = u128::MAX;

fn key(at: Ns, order: u64, slot: u32) -> u128 {
    (u128::from(at) << 64) | (u128::from(order) << 16) | u128::from(slot & 0xffff)
}

fn time(key: u128) -> Ns {
    (key >> 64) as u64
}

/// One pending time per slot.
#[derive(Debug)]
pub(crate) struct Slots {
    tree: Vec<u128>,
    leaves: usize,
}

impl Slots {
    /// `slots` of them, at most 65,536.
    pub(crate) fn new(slots: usize) -> Slots {
        let leaves = slots.max(2).next_power_of_two();
        Slots { tree: vec![LAST; 2 * leaves], leaves }
    }

    /// The slot happens at this time, and not when it was to happen before.
    #[inline]
    pub(crate) fn set(&mut self, slot: u32, at: Ns, order: u64) {
        let mut node = self.leaves + slot as usize;
        if time(self.tree[node]) == at {
            return; // it keeps its place in the order
        }
        let mut least = if at == NEVER { LAST } else { key(at, order, slot) };
        self.tree[node] = least;
        // No branch depends on the keys, which nothing could predict.
        while node > 1 {
            let other = self.tree[node ^ 1];
            least = std::hint::select_unpredictable(least < other, least, other);
            node /= 2;
            self.tree[node] = least;
        }
    }

    #[inline]
    fn first(&self) -> u128 {
        self.tree[1]
    }
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next<E> {
    /// The slot.
    Slot(u32),
    /// The timer's event, taken out.
    Timer(E),
}

/// Slots and timers, in one order.
#[derive(Debug)]
pub(crate) struct Queue<E> {
    slots: Slots,
    timers: BinaryHeap<Reverse<(u128, E)>>,
    /// The key of the first timer.
    timer: u128,
    order: u64,
}

impl<E: Ord + Copy> Queue<E> {
    pub(crate) fn new(slots: usize) -> Queue<E> {
        Queue { slots: Slots::new(slots), timers: BinaryHeap::new(), timer: LAST, order: 0 }
    }

    /// When the slot happens; [`NEVER`] empties it.
    #[inline]
    pub(crate) fn set(&mut self, slot: u32, at: Ns) {
        self.order += 1;
        self.slots.set(slot, at, self.order);
    }

    /// Adds a timer.
    pub(crate) fn add(&mut self, at: Ns, event: E) {
        self.order += 1;
        let key = key(at, self.order, 0);
        self.timer = self.timer.min(key);
        self.timers.push(Reverse((key, event)));
    }

    /// What happens next and when, if that is not after `until`. A timer is gone by that; a slot has to be
    /// set again by the caller, or it happens for ever.
    #[inline]
    pub(crate) fn next(&mut self, until: Ns) -> Option<(Ns, Next<E>)> {
        let slot = self.slots.first();
        let timer = self.timer;
        let at = time(slot.min(timer));
        if at > until || at == NEVER {
            return None;
        }
        if slot < timer {
            #[expect(clippy::cast_possible_truncation, reason = "the low 16 bits")]
            let slot = (slot as u32) & 0xffff;
            Some((at, Next::Slot(slot)))
        } else {
            let Reverse((_, event)) = self.timers.pop()?;
            self.timer = self.timers.peek().map_or(LAST, |Reverse((key, _))| *key);
            Some((at, Next::Timer(event)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Purpose, Stream};

    fn take<E: Ord + Copy>(queue: &mut Queue<E>, until: Ns) -> Option<(Ns, Next<E>)> {
        let next = queue.next(until);
        if let Some((_, Next::Slot(slot))) = next {
            queue.set(slot, NEVER);
        }
        next
    }

    #[test]
    fn equal_times_come_in_the_order_in_which_they_were_set() {
        let mut queue = Queue::new(4);
        queue.set(3, 5);
        queue.add(5, 'a');
        queue.set(0, 5);
        queue.set(1, 4);
        let order: Vec<_> = std::iter::from_fn(|| take(&mut queue, 9)).collect();
        assert_eq!(
            order,
            [(4, Next::Slot(1)), (5, Next::Slot(3)), (5, Next::Timer('a')), (5, Next::Slot(0))]
        );
    }

    #[test]
    fn a_slot_set_again_happens_once_and_later_things_wait() {
        let mut queue = Queue::<u8>::new(3);
        queue.set(2, 7);
        queue.set(2, 9);
        queue.set(1, 8);
        queue.set(1, NEVER);
        assert_eq!(take(&mut queue, 8), None);
        assert_eq!(take(&mut queue, 9), Some((9, Next::Slot(2))));
        assert_eq!(take(&mut queue, NEVER), None);
    }

    #[test]
    fn it_gives_what_a_sorted_list_gives() {
        let mut random = Stream::new(3, 0, Purpose::Start);
        let mut queue = Queue::new(37);
        let mut list: Vec<(Ns, u64, Next<u64>)> = Vec::new();
        let (mut now, mut order) = (0, 0);
        for _ in 0..20_000 {
            order += 1;
            let at = now + random.below(20);
            if random.below(4) == 0 {
                queue.add(at, order);
                list.push((at, order, Next::Timer(order)));
            } else {
                let slot = u32::try_from(random.below(37)).unwrap();
                queue.set(slot, at);
                if !list.iter().any(|(t, _, next)| *next == Next::Slot(slot) && *t == at) {
                    list.retain(|(_, _, next)| *next != Next::Slot(slot));
                    list.push((at, order, Next::Slot(slot)));
                }
            }
            if random.below(2) == 0 {
                list.sort_by_key(|(at, order, _)| (*at, *order));
                let (at, _, next) = list.remove(0);
                assert_eq!(take(&mut queue, NEVER), Some((at, next)));
                now = at;
            }
        }
    }
}
