//! Whose an object is: ours, or the C library's.
//!
//! What is known of glibc's objects (sysdeps/nptl/bits/struct_mutex.h, thread-shared-types.h): the kind of
//! a mutex is at offset 16 since glibc 2.2.5, and cannot move: static initialisers are compiled into programs.
//! Those of condition variables are all zero, and their flags have moved: from offset 36 (glibc 2.25) to 28
//! (2.41). So they are looked for in one that the C library has made.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use corefit_lock::face::Face;

use crate::real::{real, say};

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
    rest: [AtomicU32; REST],
}
const REST: usize = 11;

const _: () = assert!(size_of::<Mutex>() == size_of::<libc::pthread_mutex_t>());
const _: () = assert!(size_of::<Cond>() == size_of::<libc::pthread_cond_t>());

/// A normal mutex whose kind was set by a call: no lock elision.
const EXPLICITLY_NORMAL: u32 = 512;
const ADAPTIVE: u32 = 3;
/// A mutex that has been destroyed.
const DESTROYED: u32 = u32::MAX;

const COND_SHARED: u32 = 1;
const COND_MONOTONIC: u32 = 2;

/// Which word of [`Cond::rest`] has the flags; [`UNKNOWN`]: not yet looked for, [`NOWHERE`]: not found.
static FLAGS: AtomicUsize = AtomicUsize::new(UNKNOWN);
const UNKNOWN: usize = usize::MAX;
const NOWHERE: usize = REST;

/// What is added to the kinds of mutexes: a bit that makes none of them ours if condition variables cannot be.
static NOT_OURS: AtomicU32 = AtomicU32::new(0);

/// Finds where the C library has the flags of condition variables. If it cannot be known they stay the C library's, and
/// with them mutexes, for they are used together: to be called before the program has locked any.
#[cold]
pub(crate) fn find_flags() -> usize {
    let at = flags_of(|cond| {
        let mut attributes = core::mem::MaybeUninit::uninit();
        let attributes: *mut libc::pthread_condattr_t = attributes.as_mut_ptr();
        // SAFETY: initialised before they are used.
        unsafe {
            libc::pthread_condattr_init(attributes);
            libc::pthread_condattr_setpshared(attributes, libc::PTHREAD_PROCESS_SHARED);
            libc::pthread_condattr_setclock(attributes, libc::CLOCK_MONOTONIC);
        }
        real!(pthread_cond_init(cond => *mut Cond, attributes => *const libc::pthread_condattr_t) @ c"GLIBC_2.3.2");
    });
    let at = at.unwrap_or(NOWHERE);
    if FLAGS.swap(at, Ordering::Relaxed) != at && at == NOWHERE {
        NOT_OURS.store(1 << 31, Ordering::Relaxed);
        say(
            "this C library's condition variables are not known: mutexes and condition variables stay its own\n",
        );
    }
    at
}

/// The word of [`Cond::rest`] with both flags, and no other bits, after `init` has set both.
fn flags_of(init: impl FnOnce(*mut Cond)) -> Option<usize> {
    let mut cond = Cond { waiting: AtomicU32::new(0), rest: [const { AtomicU32::new(0) }; REST] };
    init(&raw mut cond);
    cond.rest.iter().position(|word| word.load(Ordering::Relaxed) == COND_SHARED | COND_MONOTONIC)
}

impl Mutex {
    /// The lock, if it is ours: normal or adaptive, and nothing more.
    #[inline(always)]
    pub(crate) fn ours(&self) -> Option<Face<'_>> {
        let kind = self.kind.load(Ordering::Relaxed) | NOT_OURS.load(Ordering::Relaxed);
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
        self.flags().is_none_or(|flags| flags & COND_SHARED != 0)
    }

    /// The clock of `pthread_cond_timedwait`.
    pub(crate) fn clock(&self) -> libc::clockid_t {
        let monotonic = self.flags().is_some_and(|flags| flags & COND_MONOTONIC != 0);
        if monotonic { libc::CLOCK_MONOTONIC } else { libc::CLOCK_REALTIME }
    }

    /// `None` if it is not known where they are.
    fn flags(&self) -> Option<u32> {
        let at = match FLAGS.load(Ordering::Relaxed) {
            UNKNOWN => find_flags(),
            at => at,
        };
        Some(self.rest.get(at)?.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A C library's `pthread_cond_init` that writes this at an offset.
    fn writes(offset: usize, value: u32) -> Option<usize> {
        // SAFETY: within a condition variable.
        flags_of(|cond| unsafe { cond.cast::<u32>().byte_add(offset).write(value) }).map(|at| 4 * (at + 1))
    }

    #[test]
    fn flags_are_found_where_they_are() {
        assert_eq!(writes(36, 3), Some(36), "glibc 2.25");
        assert_eq!(writes(28, 3), Some(28), "glibc 2.41");
        assert_eq!(writes(36, 1 << 3), None);
        assert!(find_flags() < REST, "this machine's glibc");
    }
}
