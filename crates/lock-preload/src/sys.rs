//! The one switch between the real machine and loom's model of it, for the lines of condition variables: the bucket
//! lock, the tokens, and what a condition variable is.

#[cfg(modelled)]
pub(crate) use modelled::*;
#[cfg(not(modelled))]
pub(crate) use real::*;

#[cfg(not(modelled))]
mod real {
    use core::cell::UnsafeCell;
    use core::ffi::c_int;
    use core::ptr;
    use core::sync::atomic::AtomicU32;
    pub(crate) use core::sync::atomic::Ordering;

    use corefit_lock::face::Face;

    pub(crate) use crate::kind::Cond;
    use crate::queue::Lines;

    unsafe extern "C-unwind" {
        fn sem_wait(semaphore: *mut libc::sem_t) -> c_int;
    }
    unsafe extern "C" {
        fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    }
    const CANCEL_DISABLE: c_int = 1;

    /// A semaphore that is raised once. It may be moved while nobody waits for it.
    pub(crate) struct Token(UnsafeCell<libc::sem_t>);

    impl Token {
        pub(crate) fn new() -> Token {
            // SAFETY: an all-zero semaphore is one to be overwritten by `sem_init`, which cannot fail for 0.
            let mut semaphore = unsafe { core::mem::zeroed() };
            // SAFETY: valid for writing.
            unsafe { libc::sem_init(&raw mut semaphore, 0, 0) };
            Token(UnsafeCell::new(semaphore))
        }

        /// For waits that may be cancelled or end in time.
        pub(crate) fn semaphore(&self) -> *mut libc::sem_t {
            self.0.get()
        }

        pub(crate) fn give(&self) {
            // SAFETY: initialised. glibc's sem_post does not touch a semaphore after it has been raised.
            unsafe { libc::sem_post(self.0.get()) };
        }

        /// Waits for a token that is on its way.
        pub(crate) fn take(&self) {
            let mut state = 0;
            // SAFETY: initialised; the state is valid for writing and put back.
            unsafe {
                pthread_setcancelstate(CANCEL_DISABLE, &raw mut state);
                while sem_wait(self.0.get()) != 0 {}
                pthread_setcancelstate(state, ptr::null_mut());
            }
        }
    }

    #[repr(align(64))]
    pub(crate) struct Bucket {
        lock: AtomicU32,
        lines: UnsafeCell<Lines>,
    }

    // SAFETY: `lines` is only used with the lock.
    unsafe impl Sync for Bucket {}

    /// A power of two.
    const BUCKETS: usize = 1024;

    static TABLE: [Bucket; BUCKETS] =
        [const { Bucket { lock: AtomicU32::new(0), lines: UnsafeCell::new(Lines::NONE) } }; BUCKETS];

    /// That of the condition variable at this address.
    pub(crate) fn bucket(address: usize) -> &'static Bucket {
        let hash = (address as u64 >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
        &TABLE[hash as usize % BUCKETS]
    }

    impl Bucket {
        /// Works on its lines with its lock, which is none of the program's: not counted.
        pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Lines) -> R) -> R {
            let lock: Face<'_, 0, false> = Face(&self.lock);
            lock.lock();
            // SAFETY: with the lock.
            let result = work(unsafe { &mut *self.lines.get() });
            lock.unlock();
            result
        }
    }

    /// Sees to it that children are told.
    pub(crate) fn prepare_for_fork() {
        // SAFETY: the handler is a function of this library, which is never unloaded while it is used.
        unsafe { libc::pthread_atfork(None, None, Some(child)) };
    }

    /// The child has one thread, which does not wait.
    extern "C" fn child() {
        for bucket in &TABLE {
            bucket.lock.store(0, Ordering::Relaxed);
            // SAFETY: the only thread.
            unsafe { *bucket.lines.get() = Lines::NONE };
        }
    }
}

/// One bucket for all, whose lock is loom's; tokens whose memory loom watches.
#[cfg(modelled)]
mod modelled {
    use loom::cell::UnsafeCell;
    use loom::sync::atomic::AtomicU32;
    pub(crate) use loom::sync::atomic::Ordering;
    use loom::sync::{Condvar, Mutex};

    use crate::queue::Lines;

    pub(crate) struct Cond {
        pub(crate) waiting: AtomicU32,
    }

    pub(crate) struct Token {
        raised: Mutex<bool>,
        raise: Condvar,
        memory: UnsafeCell<()>,
    }

    impl Token {
        pub(crate) fn new() -> Token {
            Token { raised: Mutex::new(false), raise: Condvar::new(), memory: UnsafeCell::new(()) }
        }

        pub(crate) fn give(&self) {
            self.memory.with(|_| ());
            *self.raised.lock().unwrap() = true;
            self.raise.notify_one();
        }

        pub(crate) fn take(&self) {
            let mut raised = self.raised.lock().unwrap();
            while !*raised {
                raised = self.raise.wait(raised).unwrap();
            }
            *raised = false;
        }

        /// The waiter's stack goes: nobody may touch the token at the same time or later.
        pub(crate) fn goes(&self) {
            self.memory.with_mut(|_| ());
        }
    }

    pub(crate) struct Bucket(Mutex<Lines>);

    // SAFETY: the lines are only used with the lock.
    unsafe impl Sync for Bucket {}
    // SAFETY: as above.
    unsafe impl Send for Bucket {}

    impl Bucket {
        pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Lines) -> R) -> R {
            work(&mut self.0.lock().unwrap())
        }
    }

    loom::lazy_static! {
        static ref BUCKET: Bucket = Bucket(Mutex::new(Lines::NONE));
    }

    pub(crate) fn bucket(_: usize) -> &'static Bucket {
        &BUCKET
    }
}
