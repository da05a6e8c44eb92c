//! Ticket locks without opportunism: pure spinning, the paravirtual one of Linux 4.0 in user space, and
//! one that sleeps at once.

use std::sync::atomic::{AtomicU32, Ordering, fence};

use crate::place::Place;
use crate::sys;

/// Draws a ticket and spins until it is served.
#[derive(Debug)]
pub struct Ticket(Line);

/// As Linux 4.0's paravirtual ticket lock: spins 2^15 steps, then sleeps; a release wakes the next one.
#[derive(Debug)]
pub struct PvTicket(Line);

/// Sleeps at once; a release wakes the next one.
#[derive(Debug)]
pub struct TicketFutex(Line);

#[derive(Debug)]
#[repr(C)]
struct Line {
    next: AtomicU32,
    serving: AtomicU32,
}

impl Line {
    #[allow(clippy::declare_interior_mutable_const, reason = "the locks' initial value")]
    const NEW: Line = Line { next: AtomicU32::new(0), serving: AtomicU32::new(0) };

    fn lock(&self, spins: Option<u32>) {
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        let mut left = spins.unwrap_or(u32::MAX);
        while self.serving.load(Ordering::Acquire) != ticket {
            if left > 0 {
                left -= u32::from(spins.is_some());
                sys::pause();
                continue;
            }
            let slot = Place::shared().slot(self.address(), ticket);
            let published = slot.publish();
            fence(Ordering::SeqCst);
            if self.serving.load(Ordering::Acquire) == ticket {
                break;
            }
            slot.sleep(published, None);
            left = spins.unwrap_or(0);
        }
    }

    fn try_lock(&self) -> bool {
        let serving = self.serving.load(Ordering::Relaxed);
        let next = serving.wrapping_add(1);
        self.next.compare_exchange(serving, next, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn unlock(&self, kicks: bool) {
        let next = self.serving.load(Ordering::Relaxed).wrapping_add(1);
        self.serving.store(next, Ordering::Release);
        if kicks {
            fence(Ordering::SeqCst);
            Place::shared().slot(self.address(), next).kick();
        }
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }
}

/// Implements the raw mutex over a line: how long to spin, and whether a release has to wake.
macro_rules! over_line {
    ($name:ident, $spins:expr, $kicks:expr) => {
        // SAFETY: only the owner of the ticket that is served goes on, and only it serves the next.
        unsafe impl lock_api::RawMutex for $name {
            #[allow(clippy::declare_interior_mutable_const, reason = "lock_api asks for it")]
            const INIT: Self = $name(Line::NEW);
            type GuardMarker = lock_api::GuardNoSend;

            fn lock(&self) {
                self.0.lock($spins);
            }

            fn try_lock(&self) -> bool {
                self.0.try_lock()
            }

            unsafe fn unlock(&self) {
                self.0.unlock($kicks);
            }
        }
    };
}

over_line!(Ticket, None, false);
over_line!(PvTicket, Some(1 << 15), true);
over_line!(TicketFutex, Some(0), true);
