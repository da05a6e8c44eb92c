//! The lock's word: its bits, and every step that it can take, as pure functions.
//!
//! ```text
//!  bit   31 ... 22   21 ... 12   11 ... 3   2          1        0
//!       [  tail    |   head    | bypassed | GIVEN_UP | PARKED | HELD ]      (T = 10)
//!
//!  HELD  queue     what it means                            who goes on
//!  ----  --------  ---------------------------------------  ------------------------------------
//!  0     empty     free; the whole word is 0                whoever comes (`take`)
//!  1     empty     held; the whole word is 1                its holder (`release`)
//!  1     waiting   held, waiters head .. tail-1 in line     its holder (`release`, kicks `head`)
//!  0     waiting   free, reserved for the waiter `head`;    the waiter `head` (`grant`), or, while
//!                  this is the only state of a hand-over    bypassed < B, whoever runs (`take`)
//! ```
//!
//! `tail` is the next ticket to be drawn, `head` the ticket whose turn comes next; both count modulo
//! 2^T. `bypassed` counts the takes that passed the waiter `head`, and starts again with the next
//! one: the count belongs to the waiter at the head, and since a take and its count are one step, the
//! bound B is exact. `PARKED`, the slow-path flag: somebody may be asleep, so a release has to look.
//! `GIVEN_UP`: a ticket in the queue may have lost its owner (a timed wait that ran out), so a release
//! has to look whether the head is such a one. Both fall when the queue empties.
//!
//! The model of `tests/model.rs` takes these same steps, with small `T` so that tickets wrap around.

/// The lock is held.
pub const HELD: u32 = 1;
/// Slow-path flag: some waiter may be asleep.
pub const PARKED: u32 = 2;
/// Some ticket in the queue may have no owner any more.
pub const GIVEN_UP: u32 = 4;

const COUNT_SHIFT: u32 = 3;
const COUNT_MASK: u32 = 0x1ff;
const HEAD_SHIFT: u32 = 12;

/// The largest number of bypasses that the word can count.
pub const MOST_BYPASSES: u32 = COUNT_MASK;

/// Ticket bits of the real lock: 1023 waiters in line.
pub const TICKET_BITS: u32 = 10;

/// A value of the lock's word with `T` bits per ticket, 1 to 10.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Word<const T: u32 = TICKET_BITS>(pub u32);

impl<const T: u32> Word<T> {
    const TICKETS: u32 = (1 << T) - 1;

    /// Whether somebody has the lock.
    pub fn held(self) -> bool {
        self.0 & HELD != 0
    }

    /// Whether a release has to look for sleepers.
    pub fn parked(self) -> bool {
        self.0 & PARKED != 0
    }

    /// Whether a release has to look for tickets without owner.
    pub fn given_up(self) -> bool {
        self.0 & GIVEN_UP != 0
    }

    /// The ticket whose turn is next.
    pub fn head(self) -> u32 {
        (self.0 >> HEAD_SHIFT) & Self::TICKETS
    }

    /// The ticket that is drawn next.
    pub fn tail(self) -> u32 {
        (self.0 >> (HEAD_SHIFT + T)) & Self::TICKETS
    }

    /// Tickets in line.
    pub fn waiting(self) -> u32 {
        self.tail().wrapping_sub(self.head()) & Self::TICKETS
    }

    /// How often the waiter at the head has been passed.
    pub fn bypassed(self) -> u32 {
        (self.0 >> COUNT_SHIFT) & COUNT_MASK
    }

    /// Waiters before the one with this ticket: 0 for the head.
    pub fn distance(self, ticket: u32) -> u32 {
        ticket.wrapping_sub(self.head()) & Self::TICKETS
    }

    /// Whether the ticket is among those in line.
    pub fn in_line(self, ticket: u32) -> bool {
        self.distance(ticket) < self.waiting()
    }

    /// Whether the ticket's owner may take the lock now.
    pub fn turn(self, ticket: u32) -> bool {
        !self.held() && self.head() == ticket
    }

    /// The ticket `steps` behind the head, if it has been drawn.
    pub fn behind(self, steps: u32) -> Option<u32> {
        (steps < self.waiting()).then(|| self.head().wrapping_add(steps) & Self::TICKETS)
    }

    /// Whether nobody without a ticket may take the lock, now or after the next release.
    pub fn closed(self, bypasses: u32) -> bool {
        self.waiting() > 0 && self.bypassed() >= bypasses
    }

    /// The lock is taken without a ticket. `None` while it is held, and where the head has been
    /// passed often enough.
    pub fn take(self, bypasses: u32) -> Option<Self> {
        if self.held() || self.closed(bypasses) {
            return None;
        }
        let passed = if self.waiting() > 0 { 1 << COUNT_SHIFT } else { 0 };
        Some(Word((self.0 | HELD) + passed))
    }

    /// A ticket is drawn. `None` if all are in line already.
    pub fn enqueue(self) -> Option<(Self, u32)> {
        (self.waiting() < Self::TICKETS).then(|| (self.with_tail(self.tail() + 1), self.tail()))
    }

    /// The waiter at the head takes the lock; to be called in its turn.
    pub fn grant(self) -> Self {
        Word(self.advance().0 | HELD)
    }

    /// The head leaves the line: it has the lock, or has given up.
    pub fn advance(self) -> Self {
        let head = (self.head() + 1) & Self::TICKETS;
        let rest = self.0 & !(COUNT_MASK << COUNT_SHIFT) & !(Self::TICKETS << HEAD_SHIFT);
        Word::<T>(rest | (head << HEAD_SHIFT)).tidy()
    }

    /// The last in line gives its ticket back. `None` if the ticket is not the last one.
    pub fn retreat(self, ticket: u32) -> Option<Self> {
        let last = self.waiting() > 0 && self.tail().wrapping_sub(1) & Self::TICKETS == ticket;
        last.then(|| self.with_tail(ticket).tidy())
    }

    /// The holder lets go.
    pub fn release(self) -> Self {
        Word(self.0 & !HELD)
    }

    fn with_tail(self, tail: u32) -> Self {
        let shift = HEAD_SHIFT + T;
        Word((self.0 & !(Self::TICKETS << shift)) | ((tail & Self::TICKETS) << shift))
    }

    /// With nobody in line nothing but HELD is left, so that the fast paths compare with 0 and 1.
    fn tidy(self) -> Self {
        if self.waiting() == 0 { Word(self.0 & HELD) } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Small = Word<2>;

    fn queue(n: u32) -> Small {
        (0..n).fold(Word(HELD), |w, _| w.enqueue().unwrap().0)
    }

    #[test]
    fn an_empty_queue_leaves_only_the_held_bit() {
        let word = Word::<10>(HELD).enqueue().unwrap().0;
        let word = Word::<10>(word.0 | PARKED | GIVEN_UP).release();
        assert!(word.turn(0));
        assert_eq!(word.grant(), Word(HELD));
        assert_eq!(word.retreat(0), Some(Word(0)));
    }

    #[test]
    fn tickets_wrap_around_and_keep_their_distance() {
        let mut word = queue(3);
        assert_eq!(word.enqueue(), None, "a fourth ticket would be the first one again");
        for turn in 0..9 {
            assert!(word.release().turn(turn % 4));
            word = word.release().grant();
            let (next, ticket) = word.enqueue().unwrap();
            assert_eq!((next.waiting(), next.distance(ticket)), (3, 2));
            word = next;
        }
    }

    #[test]
    fn the_head_is_passed_so_often_and_no_more() {
        let mut word = queue(2).release();
        for n in 0..5 {
            assert_eq!(word.bypassed(), n);
            word = word.take(5).unwrap().release();
        }
        assert_eq!(word.take(5), None);
        assert_eq!(word.grant().bypassed(), 0, "the next head has its own count");
        assert_eq!(queue(1).release().take(0), None);
    }

    #[test]
    fn the_count_never_runs_into_the_tickets() {
        let mut word = queue(2).release();
        for _ in 0..MOST_BYPASSES {
            word = word.take(MOST_BYPASSES).unwrap().release();
        }
        assert_eq!(word.take(MOST_BYPASSES), None);
        assert_eq!((word.head(), word.tail(), word.held()), (0, 2, false));
    }

    #[test]
    fn only_the_last_gives_its_ticket_back() {
        let word = queue(3);
        assert_eq!(word.retreat(1), None);
        assert_eq!(word.retreat(2), Some(queue(2)));
        assert_eq!(Word::<2>(HELD).retreat(3), None);
    }
}
