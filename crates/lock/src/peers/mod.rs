//! The locks that ours is measured against, and one face for all of them (`face.rs`), so that one harness
//! serves them alike. They are here to be compared with, not to be used.

mod face;
mod mcs;
mod ticket;

pub use face::{Face, Guarded, Window};
pub use mcs::McsPark;
pub use ticket::{PvTicket, Ticket, TicketFutex};

/// A cheap time stamp, in ticks of a constant rate; see [`ticks_per_us`].
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 CPU has the instruction, and Linux leaves it to user space.
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    return crate::sys::now();
}

/// Ticks per microsecond, measured for some milliseconds.
pub fn ticks_per_us() -> f64 {
    let (t0, n0) = (ticks(), crate::sys::now());
    let mut n1 = n0;
    while n1 - n0 < 5_000_000 {
        n1 = crate::sys::now();
    }
    (ticks() - t0) as f64 * 1e3 / (n1 - n0) as f64
}
