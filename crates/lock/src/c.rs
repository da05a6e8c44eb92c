//! The C face: see `include/corefit_lock.h`.

use std::ffi::c_int;

use crate::deadline::Deadline;
use crate::face::Face;
use crate::sys::AtomicU32;

/// # Safety
/// As for `corefit_lock_lock`.
unsafe fn face<'a>(lock: *mut u32) -> Face<'a> {
    // SAFETY: the caller's promise. Behind a release the lock may be gone, and `Face::unlock` minds that.
    Face(unsafe { AtomicU32::from_ptr(lock) })
}

/// Takes the lock, waiting for it as long as it takes.
///
/// # Safety
/// `lock` points to a lock, initialised with `COREFIT_LOCK_INIT`, that stays where it is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corefit_lock_lock(lock: *mut u32) {
    // SAFETY: the caller's promise.
    unsafe { face(lock) }.lock();
}

/// Takes the lock if it can be had at once: 0, else EBUSY.
///
/// # Safety
/// As for `corefit_lock_lock`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corefit_lock_trylock(lock: *mut u32) -> c_int {
    // SAFETY: the caller's promise.
    if unsafe { face(lock) }.try_lock() { 0 } else { libc::EBUSY }
}

/// Waits until a time on CLOCK_MONOTONIC, ns: 0 with the lock, else ETIMEDOUT.
///
/// # Safety
/// As for `corefit_lock_lock`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corefit_lock_lock_until(lock: *mut u32, deadline_ns: u64) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { face(lock) }.try_lock_until(|| Ok::<_, c_int>(Deadline::monotonic(deadline_ns))) {
        Ok(true) => 0,
        _ => libc::ETIMEDOUT,
    }
}

/// Releases the lock.
///
/// # Safety
/// As for `corefit_lock_lock`; and the lock is held.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corefit_lock_unlock(lock: *mut u32) {
    // SAFETY: the caller's promise.
    unsafe { face(lock) }.unlock();
}
