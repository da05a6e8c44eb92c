//! The C face: see `include/corefit_lock.h`.

use std::ffi::c_int;

use crate::mutex::contended;
use crate::place::Place;
use crate::policy::Policy;
use crate::raw::{Raw, release_free, take_free};
use crate::sys::AtomicU32;

fn raw(word: &AtomicU32) -> Raw<'_> {
    Raw { word, place: Place::shared(), policy: &Policy::DEFAULT }
}

/// Takes the lock, waiting for it as long as it takes.
///
/// # Safety
/// `lock` points to a lock, initialised with `COREFIT_LOCK_INIT`, that stays where it is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corefit_lock_lock(lock: *mut u32) {
    // SAFETY: the caller's promise.
    let word = unsafe { AtomicU32::from_ptr(lock) };
    if !take_free(word) {
        contended(raw(word), None);
    }
}

/// Takes the lock if it can be had at once: 0, else EBUSY.
///
/// # Safety
/// As for `corefit_lock_lock`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corefit_lock_trylock(lock: *mut u32) -> c_int {
    // SAFETY: the caller's promise.
    let word = unsafe { AtomicU32::from_ptr(lock) };
    if take_free(word) || raw(word).try_lock() { 0 } else { libc::EBUSY }
}

/// Waits until a time on CLOCK_MONOTONIC, ns: 0 with the lock, else ETIMEDOUT.
///
/// # Safety
/// As for `corefit_lock_lock`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corefit_lock_lock_until(lock: *mut u32, deadline_ns: u64) -> c_int {
    // SAFETY: the caller's promise.
    let word = unsafe { AtomicU32::from_ptr(lock) };
    if take_free(word) || contended(raw(word), Some(deadline_ns)) { 0 } else { libc::ETIMEDOUT }
}

/// Releases the lock.
///
/// # Safety
/// As for `corefit_lock_lock`; and the lock is held.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corefit_lock_unlock(lock: *mut u32) {
    // SAFETY: the caller's promise. Behind a release, whoever gets the lock next may free it: `unlock`
    // uses its address only.
    let word = unsafe { AtomicU32::from_ptr(lock) };
    if !release_free(word) {
        raw(word).unlock();
    }
}
