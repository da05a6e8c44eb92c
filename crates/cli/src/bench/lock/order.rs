//! Whether a lock serves in order, seen from outside, whatever lock it is.
//!
//! A thread that the kernel says sleeps, and that is inside the call that takes the lock, stands in line. One that comes
//! after this was seen and gets the lock first has overtaken it. That can be missed, but not mistaken: who was
//! preempted before it stood in line does not sleep. Locks whose waiters never sleep cannot be checked so.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Locks that an arrival can name.
const LOCKS: u64 = 1 << 16;

/// Who waits for which lock.
pub(super) struct Order {
    seats: Vec<Seat>,
}

/// A thread's.
#[derive(Default)]
#[repr(align(128))]
struct Seat {
    /// 0: it does not wait. Else how often it arrived, times `LOCKS`, and the number of the lock.
    arrival: AtomicU64,
    /// Its `/proc/self/task/TID/stat`.
    stat: OnceLock<File>,
}

/// A thread that stood in line, and the arrival with which it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    thread: usize,
    arrival: u64,
}

impl Order {
    pub(super) fn new(threads: usize) -> Order {
        Order { seats: (0..threads).map(|_| Seat::default()).collect() }
    }

    /// Called once by each thread.
    pub(super) fn enter(&self, me: usize) {
        if let Ok(file) = File::open("/proc/thread-self/stat") {
            let _ = self.seats[me].stat.set(file);
        }
    }

    /// Somebody who stands in line for this lock, looked for from a random place on.
    pub(super) fn in_line(&self, lock: usize, random: usize) -> Option<Seen> {
        let count = self.seats.len();
        let waits = |thread: &usize| self.arrival(*thread, lock).is_some();
        let thread = (0..count).map(|n| (random % count + n) % count).find(waits)?;
        let arrival = self.arrival(thread, lock)?;
        let asleep = self.seats[thread].stat.get().is_some_and(sleeps);
        // The same arrival still: what was seen was seen in between.
        (asleep && self.arrival(thread, lock) == Some(arrival)).then_some(Seen { thread, arrival })
    }

    /// A thread is about to call for the lock, for the n-th time.
    pub(super) fn arrives(&self, me: usize, lock: usize, n: u64) {
        self.seats[me].arrival.store((n + 1) * LOCKS + lock as u64, Ordering::SeqCst);
    }

    /// It has the lock. Whether it has overtaken the one that was seen before it arrived.
    pub(super) fn served(&self, me: usize, seen: Option<Seen>) -> bool {
        // Stored with the lock, so whoever has it later knows.
        self.seats[me].arrival.store(0, Ordering::SeqCst);
        seen.is_some_and(|seen| self.seats[seen.thread].arrival.load(Ordering::SeqCst) == seen.arrival)
    }

    fn arrival(&self, thread: usize, lock: usize) -> Option<u64> {
        let arrival = self.seats[thread].arrival.load(Ordering::SeqCst);
        (arrival != 0 && arrival % LOCKS == lock as u64).then_some(arrival)
    }
}

/// Whether a thread sleeps, by its `stat`: the letter after its name.
fn sleeps(stat: &File) -> bool {
    let mut text = [0; 128];
    let Ok(length) = stat.read_at(&mut text, 0) else { return false };
    let name_end = text[..length].iter().rposition(|b| *b == b')');
    name_end.is_some_and(|end| text[end..length].starts_with(b") S"))
}

#[cfg(test)]
mod tests {
    use std::sync::{Condvar, Mutex};

    use super::*;

    /// A lock that is nothing but a door which the test opens: whom it lets in, and when, is the test's choice.
    #[derive(Default)]
    struct Door(Mutex<bool>, Condvar);

    impl Door {
        fn open(&self) {
            *self.0.lock().unwrap() = true;
            self.1.notify_all();
        }

        fn pass(&self) {
            let opened = self.1.wait_while(self.0.lock().unwrap(), |open| !*open).unwrap();
            assert!(*opened);
        }
    }

    /// Thread 1 waits for lock 7 until the door opens; what thread 0 then finds, in line and overtaken.
    fn overtaken(wait: impl FnOnce(&Order, &Door, Option<Seen>)) {
        let (order, door) = (Order::new(2), Door::default());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                order.enter(1);
                order.arrives(1, 7, 0);
                door.pass();
                assert!(!order.served(1, None));
            });
            let seen = loop {
                match order.in_line(7, 0) {
                    Some(seen) => break seen,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(seen.thread, 1);
            assert_eq!(order.in_line(6, 0), None, "nobody waits for another lock");
            order.arrives(0, 7, 0);
            wait(&order, &door, Some(seen));
        });
    }

    #[test]
    fn who_gets_the_lock_before_a_sleeper_that_was_there_has_overtaken_it() {
        overtaken(|order, door, seen| {
            assert!(order.served(0, seen));
            door.open();
        });
    }

    #[test]
    fn who_gets_the_lock_after_it_has_not() {
        overtaken(|order, door, seen| {
            door.open();
            while order.arrival(1, 7).is_some() {
                std::thread::yield_now();
            }
            assert!(!order.served(0, seen));
        });
    }

    #[test]
    fn nobody_stands_in_line_who_is_awake_or_has_not_arrived() {
        let order = Order::new(1);
        order.enter(0);
        assert_eq!(order.in_line(0, 5), None, "not arrived");
        order.arrives(0, 0, 3);
        assert_eq!(order.in_line(0, 5), None, "awake: it looks at itself");
    }
}
