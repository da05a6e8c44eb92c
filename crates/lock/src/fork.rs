//! What a forked child has to know: which locks had a line when the process forked.
//!
//! Only the forking thread lives on in the child. Tickets of all the others would keep a lock's line
//! waiting for ever, so the child empties those lines; a lock that was held stays held, as with any
//! other mutex, and one in memory that the child shares with its parent is left alone. Every thread enters,
//! while it waits, its lock's address in a table that the child reads.
//!
//! The table is of fixed size and needs neither thread-local storage nor the allocator: both may take
//! locks, the linker's among them, and the thread may be waiting for just those.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::maps::{self, Mapping};
use crate::place::Place;
use crate::sys::AtomicU32;
use crate::word::HELD;

/// Threads that can be entered at once; a power of two. A child of a process with more of them waiting
/// may find a lock with a line that never moves.
const PLACES: usize = 4096;
/// Places looked at for one thread.
const NEAR: usize = 64;

/// One waiting thread.
struct Entry {
    /// The lock's address, odd for a lock whose free value is not 0; 0 if unused.
    lock: AtomicUsize,
    thread: AtomicU64,
}

static TABLE: [Entry; PLACES] =
    [const { Entry { lock: AtomicUsize::new(0), thread: AtomicU64::new(0) } }; PLACES];
static PREPARED: AtomicBool = AtomicBool::new(false);

/// This thread waits for a lock, as long as the value lives.
pub(crate) struct Waiting(Option<&'static Entry>);

impl Waiting {
    /// To be called before a ticket is drawn. `free` is what the memory of a free lock holds.
    pub(crate) fn begin(lock: usize, free: u32) -> Waiting {
        prepare();
        let thread = this_thread();
        let first = thread.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52;
        let entry = (0..NEAR).map(|n| &TABLE[(first as usize + n) % PLACES]).find(|e| {
            let value = lock | usize::from(free != 0);
            e.lock.load(Ordering::Relaxed) == 0
                && e.lock.compare_exchange(0, value, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        });
        if let Some(entry) = entry {
            entry.thread.store(thread, Ordering::Relaxed);
        }
        Waiting(entry)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(entry) = self.0 {
            entry.lock.store(0, Ordering::Relaxed);
        }
    }
}

fn this_thread() -> u64 {
    // SAFETY: always succeeds; the value serves as a name only.
    (unsafe { libc::pthread_self() }) as u64
}

/// Sees to it that children are told. Takes locks of the C library: the pthread face, which stands below
/// the allocator, calls it when it is loaded, so that no wait has to.
pub(crate) fn prepare() {
    if !PREPARED.load(Ordering::Relaxed) && !PREPARED.swap(true, Ordering::Relaxed) {
        // SAFETY: the handler is a function of this library, which stays loaded as long as locks are used.
        unsafe { libc::pthread_atfork(None, None, Some(child)) };
    }
}

/// In the child, which has one thread: the others' tickets are void.
extern "C" fn child() {
    let me = this_thread();
    let mut near = None;
    for entry in &TABLE {
        // A handler that forks while its thread waits keeps the ticket.
        if entry.lock.load(Ordering::Relaxed) != 0 && entry.thread.load(Ordering::Relaxed) != me {
            empty_line(entry.lock.swap(0, Ordering::Relaxed), &mut near);
        }
    }
    Place::shared().given_up.drain(|lock| empty_line(lock, &mut near));
}

/// `near` is the mapping of the lock before, where this one often is, too.
fn empty_line(lock: usize, near: &mut Option<Mapping>) {
    let free = if lock & 1 != 0 { crate::face::SPIN } else { 0 };
    let address = lock & !1;
    if lock == 0 {
        return;
    }
    if near.as_ref().is_none_or(|mapping| !mapping.range.contains(&address)) {
        *near = maps::at(address);
    }
    // A line in memory that the parent sees, too, is the parent's; memory may be left out of a child (MADV_DONTFORK).
    if near.as_ref().is_some_and(|mapping| mapping.private) {
        // SAFETY: somebody waited for this lock when the process forked, and the child has a copy of its memory.
        let word = unsafe { AtomicU32::from_ptr(ptr::with_exposed_provenance_mut(address)) };
        word.fetch_and(HELD | free, Ordering::Relaxed);
    }
}
