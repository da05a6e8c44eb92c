//! glibc's own mutex, of the normal and of the adaptive kind, called as a program calls it.

use std::cell::UnsafeCell;

/// `PTHREAD_MUTEX_INITIALIZER`.
#[derive(Debug)]
#[repr(C)]
pub struct Glibc(UnsafeCell<libc::pthread_mutex_t>);

/// `PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP`: spins up to 100 times first.
#[derive(Debug)]
#[repr(C)]
pub struct Adaptive(UnsafeCell<libc::pthread_mutex_t>);

/// Implements the raw mutex over a pthread mutex.
macro_rules! over_pthread {
    ($name:ident, $initial:expr) => {
        // SAFETY: a pthread mutex is made to be shared between threads.
        unsafe impl Sync for $name {}
        // SAFETY: it is not moved while it is used, since `lock_api` hands out references only.
        unsafe impl Send for $name {}

        // SAFETY: a pthread mutex of these kinds excludes.
        unsafe impl lock_api::RawMutex for $name {
            #[allow(clippy::declare_interior_mutable_const, reason = "lock_api asks for it")]
            const INIT: Self = $name(UnsafeCell::new($initial));
            type GuardMarker = lock_api::GuardNoSend;

            fn lock(&self) {
                // SAFETY: an initialised mutex.
                unsafe { libc::pthread_mutex_lock(self.0.get()) };
            }

            fn try_lock(&self) -> bool {
                // SAFETY: an initialised mutex.
                unsafe { libc::pthread_mutex_trylock(self.0.get()) == 0 }
            }

            unsafe fn unlock(&self) {
                // SAFETY: an initialised mutex, locked by this thread.
                unsafe { libc::pthread_mutex_unlock(self.0.get()) };
            }
        }
    };
}

over_pthread!(Glibc, libc::PTHREAD_MUTEX_INITIALIZER);
over_pthread!(Adaptive, libc::PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP);
