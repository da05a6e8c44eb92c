//! pthread_spin_*. A spinlock is four bytes and tells nothing of its kind, so one of ours has a value that
//! none of the C library's can have (`corefit_lock::face::SPIN`). Those that were not made by our
//! `pthread_spin_init`, and those that processes share, stay the C library's.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};

use corefit_lock::face::{Face, SPIN};
use corefit_lock::stats::{self, Event};

use crate::real::real;

/// The lock, if it is ours.
///
/// # Safety
/// `spin` points to an initialised spinlock.
#[inline(always)]
unsafe fn ours<'a>(spin: *mut u32) -> Option<Face<'a, SPIN>> {
    // SAFETY: the caller's promise.
    let lock = Face::<SPIN>(unsafe { AtomicU32::from_ptr(spin) });
    lock.is_ours().then_some(lock)
}

/// # Safety
/// `spin` points to four bytes.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn pthread_spin_init(spin: *mut u32, shared: c_int) -> c_int {
    let error = real!(pthread_spin_init(spin => *mut u32, shared => c_int));
    if error == 0 && shared == libc::PTHREAD_PROCESS_PRIVATE {
        // SAFETY: the caller's promise.
        unsafe { AtomicU32::from_ptr(spin) }.store(SPIN, Ordering::Relaxed);
    }
    error
}

/// # Safety
/// `spin` points to an initialised spinlock.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn pthread_spin_lock(spin: *mut u32) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { ours(spin) } {
        Some(lock) => {
            lock.lock();
            stats::count(Event::Acquired);
            0
        }
        None => real!(pthread_spin_lock(spin => *mut u32)),
    }
}

/// # Safety
/// As for `pthread_spin_lock`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn pthread_spin_trylock(spin: *mut u32) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { ours(spin) } {
        Some(lock) if lock.try_lock() => {
            stats::count(Event::Acquired);
            0
        }
        Some(_) => libc::EBUSY,
        None => real!(pthread_spin_trylock(spin => *mut u32)),
    }
}

/// # Safety
/// As for `pthread_spin_lock`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn pthread_spin_unlock(spin: *mut u32) -> c_int {
    // SAFETY: the caller's promise. Once it is released the lock may be gone: nothing here looks at it.
    match unsafe { ours(spin) } {
        Some(lock) => {
            lock.unlock();
            0
        }
        None => real!(pthread_spin_unlock(spin => *mut u32)),
    }
}
