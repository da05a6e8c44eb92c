//! pthread_mutex_*, as POSIX describes them and with glibc's results where POSIX leaves a choice.
//! `pthread_mutex_init` stays the C library's: what it writes is what we need.

use core::ffi::c_int;

use corefit_lock::stats::{self, Event};
use corefit_lock::{Clock, Deadline};

use crate::kind::Mutex;
use crate::real::real;

/// # Safety
/// `mutex` points to an initialised mutex, or one of all-zero bytes.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn pthread_mutex_lock(mutex: *mut Mutex) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { &*mutex }.ours() {
        Some(lock) => {
            lock.lock();
            stats::count(Event::Acquired);
            0
        }
        None => real!(pthread_mutex_lock(mutex => *mut Mutex)),
    }
}

/// # Safety
/// As for `pthread_mutex_lock`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn pthread_mutex_trylock(mutex: *mut Mutex) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { &*mutex }.ours() {
        Some(lock) if lock.try_lock() => {
            stats::count(Event::Acquired);
            0
        }
        Some(_) => libc::EBUSY,
        None => real!(pthread_mutex_trylock(mutex => *mut Mutex)),
    }
}

/// # Safety
/// As for `pthread_mutex_lock`; `until` points to a time.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn pthread_mutex_timedlock(
    mutex: *mut Mutex,
    until: *const libc::timespec,
) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { &*mutex }.ours() {
        // SAFETY: the caller's promise.
        Some(_) => unsafe { pthread_mutex_clocklock(mutex, libc::CLOCK_REALTIME, until) },
        None => real!(pthread_mutex_timedlock(mutex => *mut Mutex, until => *const libc::timespec)),
    }
}

/// # Safety
/// As for `pthread_mutex_timedlock`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn pthread_mutex_clocklock(
    mutex: *mut Mutex,
    clock: libc::clockid_t,
    until: *const libc::timespec,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(lock) = (unsafe { &*mutex }).ours() else {
        return real!(pthread_mutex_clocklock(
            mutex => *mut Mutex, clock => libc::clockid_t, until => *const libc::timespec));
    };
    let Some(clock) = known(clock) else { return libc::EINVAL };
    // SAFETY: the caller's promise; the time is looked at only if there is a wait, as glibc does it.
    match lock.try_lock_until(|| deadline(clock, unsafe { &*until })) {
        Ok(true) => {
            stats::count(Event::Acquired);
            0
        }
        Ok(false) => libc::ETIMEDOUT,
        Err(error) => error,
    }
}

/// # Safety
/// As for `pthread_mutex_lock`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn pthread_mutex_unlock(mutex: *mut Mutex) -> c_int {
    // SAFETY: the caller's promise. Once it is released the mutex may be gone: nothing here looks at it.
    match unsafe { &*mutex }.ours() {
        Some(lock) => {
            lock.unlock();
            0
        }
        None => real!(pthread_mutex_unlock(mutex => *mut Mutex)),
    }
}

/// # Safety
/// As for `pthread_mutex_lock`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn pthread_mutex_destroy(mutex: *mut Mutex) -> c_int {
    // SAFETY: the caller's promise.
    let this = unsafe { &*mutex };
    match this.ours() {
        Some(lock) if lock.is_busy() => libc::EBUSY,
        Some(_) => {
            this.spoil();
            0
        }
        None => real!(pthread_mutex_destroy(mutex => *mut Mutex)),
    }
}

/// The names that programs built long ago call.
macro_rules! alias {
    ($alias:ident = $name:ident) => {
        /// # Safety
        /// As for the function without underscores.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub(crate) unsafe extern "C-unwind" fn $alias(mutex: *mut Mutex) -> c_int {
            // SAFETY: the caller's promise.
            unsafe { $name(mutex) }
        }
    };
}
alias!(__pthread_mutex_lock = pthread_mutex_lock);
alias!(__pthread_mutex_trylock = pthread_mutex_trylock);
alias!(__pthread_mutex_unlock = pthread_mutex_unlock);
alias!(__pthread_mutex_destroy = pthread_mutex_destroy);

/// The clocks that a wait may have.
pub(crate) fn known(clock: libc::clockid_t) -> Option<Clock> {
    match clock {
        libc::CLOCK_REALTIME => Some(Clock::Realtime),
        libc::CLOCK_MONOTONIC => Some(Clock::Monotonic),
        _ => None,
    }
}

/// EINVAL for nanoseconds out of range. A time before 1970 has passed.
fn deadline(clock: Clock, time: &libc::timespec) -> Result<Deadline, c_int> {
    let nanoseconds = u64::try_from(time.tv_nsec).ok().filter(|n| *n < 1_000_000_000).ok_or(libc::EINVAL)?;
    let seconds = u64::try_from(time.tv_sec);
    let ns = seconds.map_or(0, |s| s.saturating_mul(1_000_000_000).saturating_add(nanoseconds));
    Ok(Deadline { clock, ns })
}
