//! The one switch between the real machine and its models, loom's and shuttle's: atomics, fences, the futex,
//! and the clock. `cfg(modelled)` stands for both; `cfg(loom)` or `cfg(shuttle)` says which.
//!
//! The modelled futex is the kernel's contract and no more: a sleeper is queued only if the value is
//! still the expected one, both under the queue's lock, and a wake-up takes the queue's lock as well.
//! What the kernel orders beyond that is not relied on.

#[cfg(loom)]
pub(crate) use loom as model;
#[cfg(modelled)]
pub(crate) use model::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(shuttle)]
pub(crate) use shuttle as model;

#[cfg(not(modelled))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

#[cfg(not(modelled))]
pub(crate) use imp::keep_errno;
pub(crate) use imp::{Futex, anything, pause, time};

use crate::deadline::Clock;

/// Nanoseconds of CLOCK_MONOTONIC.
pub(crate) fn now() -> u64 {
    time(Clock::Monotonic)
}

#[cfg(not(modelled))]
mod imp {
    use super::{AtomicU32, Ordering};
    use crate::deadline::{Clock, Deadline};

    /// A word to sleep on.
    #[repr(transparent)]
    pub(crate) struct Futex(pub(crate) AtomicU32);

    impl Futex {
        pub(crate) const fn new() -> Futex {
            Futex(AtomicU32::new(0))
        }

        /// Sleeps while the word is `expected`, at most until the deadline. May return
        /// early for no reason. Whether a wake-up ended it.
        pub(crate) fn wait(&self, expected: u32, deadline: Option<Deadline>) -> bool {
            // An absolute time needs the bitset form, which else is a plain wait.
            let limit = deadline.map(|d| libc::timespec {
                tv_sec: libc::time_t::try_from(d.ns / 1_000_000_000).unwrap_or(libc::time_t::MAX),
                tv_nsec: i64::try_from(d.ns % 1_000_000_000).unwrap_or(0),
            });
            let clock = match deadline {
                Some(Deadline { clock: Clock::Realtime, .. }) => libc::FUTEX_CLOCK_REALTIME,
                _ => 0,
            };
            let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            // SAFETY: the word lives as long as `self`; the kernel only reads it and the time.
            keep_errno(|| unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    self.0.as_ptr(),
                    libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG | clock,
                    expected,
                    limit,
                    std::ptr::null::<u32>(),
                    u32::MAX, // any wake-up
                ) == 0
            })
        }

        /// Wakes up to `most` sleepers.
        pub(crate) fn wake(&self, most: i32) {
            // SAFETY: the kernel takes the address as a key only.
            keep_errno(|| unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    self.0.as_ptr(),
                    libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                    most,
                )
            });
        }

        pub(crate) fn load(&self, order: Ordering) -> u32 {
            self.0.load(order)
        }
    }

    /// A lock leaves `errno` as it was: programs read it across an unlock.
    pub(crate) fn keep_errno<R>(call: impl FnOnce() -> R) -> R {
        // SAFETY: this thread's errno, a pointer that is valid as long as the thread. No reference to it is kept,
        // for the call writes to it.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above.
        let before = unsafe { errno.read() };
        let result = call();
        // SAFETY: as above.
        unsafe { errno.write(before) };
        result
    }

    /// Nanoseconds of a clock.
    pub(crate) fn time(clock: Clock) -> u64 {
        let clock = match clock {
            Clock::Monotonic => libc::CLOCK_MONOTONIC,
            Clock::Realtime => libc::CLOCK_REALTIME,
        };
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is valid for writing; these clocks always exist.
        unsafe { libc::clock_gettime(clock, &raw mut time) };
        let part = |n: i64| u64::try_from(n).unwrap_or(0);
        part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
    }

    /// One step of a spinning loop.
    pub(crate) fn pause() {
        std::hint::spin_loop();
    }

    /// A number that is another one in other threads: made of where their stacks lie.
    pub(crate) fn anything() -> u32 {
        let here = 0_u8;
        (((&raw const here).addr() as u64 >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as u32
    }
}

#[cfg(modelled)]
mod imp {
    use super::model::{
        sync::{Condvar, Mutex},
        thread,
    };
    use super::{AtomicU32, Ordering};
    use crate::deadline::{Clock, Deadline};

    pub(crate) struct Futex {
        pub(crate) word: AtomicU32,
        queue: Mutex<u32>,
        wakes: Condvar,
    }

    impl Futex {
        pub(crate) fn new() -> Futex {
            Futex { word: AtomicU32::new(0), queue: Mutex::new(0), wakes: Condvar::new() }
        }

        /// With a deadline it returns at once: a time that has run out is the case of interest.
        pub(crate) fn wait(&self, expected: u32, deadline: Option<Deadline>) -> bool {
            let queue = self.queue.lock().unwrap();
            if deadline.is_none() && self.word.load(Ordering::Relaxed) == expected {
                drop(self.wakes.wait(queue).unwrap());
                return true;
            }
            false
        }

        pub(crate) fn wake(&self, most: i32) {
            let queue = self.queue.lock().unwrap();
            if most == 1 {
                self.wakes.notify_one();
            } else {
                self.wakes.notify_all();
            }
            drop(queue);
        }

        pub(crate) fn load(&self, order: Ordering) -> u32 {
            self.word.load(order)
        }
    }

    pub(crate) fn time(_: Clock) -> u64 {
        0
    }

    pub(crate) fn pause() {
        thread::yield_now();
    }

    pub(crate) fn anything() -> u32 {
        0
    }
}
