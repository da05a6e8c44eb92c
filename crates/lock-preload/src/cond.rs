//! pthread_cond_*: condition variables that release and take mutexes of either kind.
//!
//! A waiter sleeps on a semaphore of its own, in the C library's `sem_wait`: that is where it can be
//! cancelled, and where signals are handled. Who is cancelled after a signal has chosen it passes the
//! signal on, so that none is lost.

use core::ffi::{c_int, c_void};
use core::ptr;

use corefit_lock::stats::{self, Event};

use crate::kind::{Cond, Mutex};
use crate::mutex::{known, pthread_mutex_lock, pthread_mutex_unlock};
use crate::queue::{self, Waiter};
use crate::real::real;

/// When a wait ends: the clock, and a time on it.
type Until = Option<(libc::clockid_t, *const libc::timespec)>;

unsafe extern "C-unwind" {
    fn sem_wait(semaphore: *mut libc::sem_t) -> c_int;
    fn sem_clockwait(
        semaphore: *mut libc::sem_t,
        clock: libc::clockid_t,
        until: *const libc::timespec,
    ) -> c_int;
    fn usleep(us: u32) -> c_int;
}

unsafe extern "C" {
    fn _pthread_cleanup_push(
        buffer: *mut CleanupBuffer,
        routine: unsafe extern "C" fn(*mut c_void),
        argument: *mut c_void,
    );
    fn _pthread_cleanup_pop(buffer: *mut CleanupBuffer, execute: c_int);
}

/// glibc's `struct _pthread_cleanup_buffer`: a handler that runs when its thread is cancelled.
#[repr(C)]
struct CleanupBuffer([*mut c_void; 4]);

/// # Safety
/// `cond` points to a condition variable's memory, `attributes` to attributes or is null.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn pthread_cond_init(
    cond: *mut Cond,
    attributes: *const libc::pthread_condattr_t,
) -> c_int {
    // The newest one also for programs that ask for the oldest: what that writes is no condition variable
    // of today.
    real!(pthread_cond_init(cond => *mut Cond, attributes => *const libc::pthread_condattr_t) @ c"GLIBC_2.3.2")
}

/// # Safety
/// `cond` points to an initialised condition variable.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn pthread_cond_destroy(cond: *mut Cond) -> c_int {
    // SAFETY: the caller's promise.
    let this = unsafe { &*cond };
    if this.is_shared() {
        return real!(pthread_cond_destroy(cond => *mut Cond) @ c"GLIBC_2.3.2");
    }
    queue::destroy(this);
    0
}

/// # Safety
/// As for `pthread_cond_destroy`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn pthread_cond_signal(cond: *mut Cond) -> c_int {
    // SAFETY: the caller's promise.
    let this = unsafe { &*cond };
    if this.is_shared() {
        return real!(pthread_cond_signal(cond => *mut Cond) @ c"GLIBC_2.3.2");
    }
    queue::signal(this);
    0
}

/// # Safety
/// As for `pthread_cond_destroy`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn pthread_cond_broadcast(cond: *mut Cond) -> c_int {
    // SAFETY: the caller's promise.
    let this = unsafe { &*cond };
    if this.is_shared() {
        return real!(pthread_cond_broadcast(cond => *mut Cond) @ c"GLIBC_2.3.2");
    }
    queue::broadcast(this);
    0
}

/// # Safety
/// As for `pthread_cond_destroy`; `mutex` points to a mutex that this thread has.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn pthread_cond_wait(cond: *mut Cond, mutex: *mut Mutex) -> c_int {
    // SAFETY: the caller's promise.
    if unsafe { theirs(cond, mutex) } {
        return real!(pthread_cond_wait(cond => *mut Cond, mutex => *mut Mutex) @ c"GLIBC_2.3.2");
    }
    // SAFETY: the caller's promise.
    unsafe { wait(cond, mutex, None) }
}

/// # Safety
/// As for `pthread_cond_wait`; `until` points to a time.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn pthread_cond_timedwait(
    cond: *mut Cond,
    mutex: *mut Mutex,
    until: *const libc::timespec,
) -> c_int {
    // SAFETY: the caller's promise.
    if unsafe { theirs(cond, mutex) } {
        return real!(pthread_cond_timedwait(
            cond => *mut Cond, mutex => *mut Mutex, until => *const libc::timespec) @ c"GLIBC_2.3.2");
    }
    // SAFETY: the caller's promise.
    unsafe { timed_wait(cond, mutex, (*cond).clock(), until) }
}

/// # Safety
/// As for `pthread_cond_timedwait`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn pthread_cond_clockwait(
    cond: *mut Cond,
    mutex: *mut Mutex,
    clock: libc::clockid_t,
    until: *const libc::timespec,
) -> c_int {
    // SAFETY: the caller's promise.
    if unsafe { theirs(cond, mutex) } {
        return real!(pthread_cond_clockwait(cond => *mut Cond, mutex => *mut Mutex,
            clock => libc::clockid_t, until => *const libc::timespec));
    }
    // SAFETY: the caller's promise.
    unsafe { timed_wait(cond, mutex, clock, until) }
}

/// Whether the C library can wait: on a condition variable that is its own, with a mutex that is its own.
///
/// # Safety
/// As for `pthread_cond_wait`.
unsafe fn theirs(cond: *const Cond, mutex: *const Mutex) -> bool {
    // SAFETY: the caller's promise.
    unsafe { (*cond).is_shared() && (*mutex).ours().is_none() }
}

/// # Safety
/// As for `pthread_cond_timedwait`.
unsafe fn timed_wait(
    cond: *mut Cond,
    mutex: *mut Mutex,
    clock: libc::clockid_t,
    until: *const libc::timespec,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if !(0..1_000_000_000).contains(&(*until).tv_nsec) || known(clock).is_none() {
            return libc::EINVAL;
        }
        wait(cond, mutex, Some((clock, until)))
    }
}

/// Nothing in here has a destructor: a thread that is cancelled in its sleep leaves through it.
///
/// # Safety
/// As for `pthread_cond_wait`.
unsafe fn wait(cond: *mut Cond, mutex: *mut Mutex, until: Until) -> c_int {
    stats::count(Event::CondWait);
    // SAFETY: the caller's promises. The waiter stays on this stack until it has left its line or has its
    // token; the handler is taken off before this function returns, and unwinding runs it before the
    // stack goes.
    unsafe {
        if (*cond).is_shared() {
            return poll(mutex, until);
        }
        let mut stay = Stay { waiter: Waiter::new(cond), mutex };
        let stay = &raw mut stay;
        let waiter = &raw mut (*stay).waiter;
        queue::enter(waiter);
        let error = pthread_mutex_unlock(mutex);
        if error != 0 {
            queue::give_up(waiter);
            return error;
        }
        let errno = *libc::__errno_location();
        let mut buffer = CleanupBuffer([ptr::null_mut(); 4]);
        _pthread_cleanup_push(&raw mut buffer, cancelled, stay.cast());
        let woken = sleep(waiter, until);
        _pthread_cleanup_pop(&raw mut buffer, 0);
        let late = queue::sleep_over(waiter, woken);
        *libc::__errno_location() = errno;
        let error = pthread_mutex_lock(mutex);
        if error == 0 && late { libc::ETIMEDOUT } else { error }
    }
}

/// What the handler of a cancelled waiter needs.
struct Stay {
    waiter: Waiter,
    mutex: *mut Mutex,
}

/// Runs when a waiter is cancelled in its sleep: the thread's own handlers, which run next, have the mutex.
unsafe extern "C" fn cancelled(stay: *mut c_void) {
    // SAFETY: `wait` has passed a pointer into its frame, which is still there.
    unsafe {
        let stay = stay.cast::<Stay>();
        queue::give_up(&raw mut (*stay).waiter);
        pthread_mutex_lock((*stay).mutex);
    }
}

/// Sleeps until the token comes; false if the time is over. A cancellation point.
///
/// # Safety
/// The waiter is in its line; the time is valid.
unsafe fn sleep(waiter: *mut Waiter, until: Until) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        let token = (*waiter).token.semaphore();
        loop {
            let result = match until {
                None => sem_wait(token),
                Some((clock, time)) => sem_clockwait(token, clock, time),
            };
            // Else a handler of a signal has run: the wait goes on.
            if result == 0 || *libc::__errno_location() == libc::ETIMEDOUT {
                return result == 0;
            }
        }
    }
}

/// A condition variable that processes share with a mutex that they do not: the C library's function
/// cannot release that mutex, and ours cannot be told by other processes. Such a wait ends for no reason
/// every millisecond, as any wait may.
///
/// # Safety
/// As for `wait`.
unsafe fn poll(mutex: *mut Mutex, until: Until) -> c_int {
    // SAFETY: the caller's promise; the handler is taken off before this function returns.
    unsafe {
        pthread_mutex_unlock(mutex);
        let errno = *libc::__errno_location();
        let mut buffer = CleanupBuffer([ptr::null_mut(); 4]);
        _pthread_cleanup_push(&raw mut buffer, relock, mutex.cast());
        usleep(1000);
        _pthread_cleanup_pop(&raw mut buffer, 0);
        *libc::__errno_location() = errno;
        pthread_mutex_lock(mutex);
        let late = until.is_some_and(|(clock, time)| {
            let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            libc::clock_gettime(clock, &raw mut now);
            (now.tv_sec, now.tv_nsec) >= ((*time).tv_sec, (*time).tv_nsec)
        });
        if late { libc::ETIMEDOUT } else { 0 }
    }
}

unsafe extern "C" fn relock(mutex: *mut c_void) {
    // SAFETY: the mutex of `poll`, whose frame is still there.
    unsafe { pthread_mutex_lock(mutex.cast()) };
}
