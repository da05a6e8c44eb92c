//! Whose an object is: ours, or the C library's.
//!
//! What is known of glibc's objects (sysdeps/nptl/bits/struct_mutex.h, thread-shared-types.h): the kind of
//! a mutex at offset 16, the flags of a condition variable at offset 36. They have stood there since glibc
//! 2.2.5 and 2.25 and cannot move: static initialisers are compiled into programs.

use core::sync::atomic::{AtomicU32, Ordering};

use corefit_lock::face::Face;

/// A `pthread_mutex_t`.
#[repr(C, align(8))]
pub(crate) struct Mutex {
    /// glibc's low-level lock; in a mutex of ours, our word.
    word: AtomicU32,
    unused: [u32; 3],
    kind: AtomicU32,
    rest: [u32; 5],
}

/// A `pthread_cond_t`.
#[repr(C, align(8))]
pub(crate) struct Cond {
    /// In a condition variable of ours, how many wait (`queue.rs`).
    pub(crate) waiting: AtomicU32,
    unused: [u32; 8],
    flags: AtomicU32,
    rest: [u32; 2],
}

const _: () = assert!(size_of::<Mutex>() == size_of::<libc::pthread_mutex_t>());
const _: () = assert!(size_of::<Cond>() == size_of::<libc::pthread_cond_t>());

/// A normal mutex whose kind was set by a call: no lock elision.
const EXPLICITLY_NORMAL: u32 = 512;
const ADAPTIVE: u32 = 3;
/// A mutex that has been destroyed.
const DESTROYED: u32 = u32::MAX;

const COND_SHARED: u32 = 1;
const COND_MONOTONIC: u32 = 2;

impl Mutex {
    /// The lock, if it is ours: normal or adaptive, and nothing more.
    #[inline(always)]
    pub(crate) fn ours(&self) -> Option<Face<'_>> {
        let kind = self.kind.load(Ordering::Relaxed);
        (kind & !EXPLICITLY_NORMAL == 0 || kind == ADAPTIVE).then_some(Face(&self.word))
    }

    /// Makes further calls fail with EINVAL, as glibc does.
    pub(crate) fn spoil(&self) {
        self.kind.store(DESTROYED, Ordering::Relaxed);
    }
}

impl Cond {
    /// Whether processes may share it: then it is the C library's.
    pub(crate) fn is_shared(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & COND_SHARED != 0
    }

    /// The clock of `pthread_cond_timedwait`.
    pub(crate) fn clock(&self) -> libc::clockid_t {
        let monotonic = self.flags.load(Ordering::Relaxed) & COND_MONOTONIC != 0;
        if monotonic { libc::CLOCK_MONOTONIC } else { libc::CLOCK_REALTIME }
    }
}
