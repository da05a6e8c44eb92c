//! Who waits for which condition variable.
//!
//! The waiters stand in lines of this library, found by the address of their condition variable, and not
//! in the condition variable itself: so a waiter that has been chosen by a signal never touches the
//! condition variable again, which may be destroyed at once, and a forked child just drops all lines.
//! In the condition variable is only how many wait, for signals that nobody waits for.
//!
//! Who is taken out of its line by a signal gets exactly one token, and waits for it whatever else
//! happens to it: the signaller gives it outside of the bucket's lock, and it lies on the waiter's stack.

use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

use corefit_lock::face::Face;

use crate::kind::Cond;

/// A thread that waits; it lies on that thread's stack. All but the token belongs to the bucket's lock.
pub(crate) struct Waiter {
    pub(crate) cond: *const Cond,
    state: State,
    /// The one behind and the one before in the same line.
    next: *mut Waiter,
    previous: *mut Waiter,
    /// Of the first in a line: its last, and the first of another line of the same bucket.
    last: *mut Waiter,
    other: *mut Waiter,
    pub(crate) token: UnsafeCell<libc::sem_t>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    /// A signal has taken it out of its line: a token comes.
    Chosen,
    /// Its condition variable has been destroyed: nothing comes any more.
    Orphan,
}

impl Waiter {
    pub(crate) fn new(cond: *const Cond) -> Waiter {
        // SAFETY: an all-zero semaphore is one to be overwritten by `sem_init`, which cannot fail for 0.
        let mut token = unsafe { core::mem::zeroed() };
        // SAFETY: valid for writing; a semaphore without waiters may be moved.
        unsafe { libc::sem_init(&raw mut token, 0, 0) };
        let none = ptr::null_mut();
        let token = UnsafeCell::new(token);
        Waiter { cond, state: State::Waiting, next: none, previous: none, last: none, other: none, token }
    }
}

/// The lines of one bucket: the first waiters of each, linked by `other`.
struct Lines(*mut Waiter);

impl Lines {
    /// Where the first one for this condition variable is noted; the noted one is null if nobody waits.
    ///
    /// # Safety
    /// As for all functions here: the bucket is locked, so the waiters in its lines stay.
    unsafe fn find(&mut self, cond: *const Cond) -> *mut *mut Waiter {
        let mut at = &raw mut self.0;
        // SAFETY: the caller's promise.
        unsafe {
            while !(*at).is_null() && (**at).cond != cond {
                at = &raw mut (**at).other;
            }
        }
        at
    }

    /// Puts a new waiter at the end of its line.
    unsafe fn push(&mut self, waiter: *mut Waiter) {
        // SAFETY: the caller's promise.
        unsafe {
            let at = self.find((*waiter).cond);
            let first = *at;
            if first.is_null() {
                (*waiter).last = waiter;
                *at = waiter;
            } else {
                (*waiter).previous = (*first).last;
                (*(*first).last).next = waiter;
                (*first).last = waiter;
            }
        }
    }

    /// Takes the first of a line, or null.
    unsafe fn pop(&mut self, cond: *const Cond) -> *mut Waiter {
        // SAFETY: the caller's promise.
        unsafe {
            let at = self.find(cond);
            let first = *at;
            if !first.is_null() {
                let second = (*first).next;
                if second.is_null() {
                    *at = (*first).other;
                } else {
                    (*second).previous = ptr::null_mut();
                    (*second).last = (*first).last;
                    (*second).other = (*first).other;
                    *at = second;
                }
            }
            first
        }
    }

    /// Takes a whole line, linked by `next`, or null.
    unsafe fn pop_all(&mut self, cond: *const Cond) -> *mut Waiter {
        // SAFETY: the caller's promise.
        unsafe {
            let at = self.find(cond);
            let first = *at;
            if !first.is_null() {
                *at = (*first).other;
            }
            first
        }
    }

    /// Takes a waiter out of the middle of its line.
    unsafe fn remove(&mut self, waiter: *mut Waiter) {
        // SAFETY: the caller's promise.
        unsafe {
            let previous = (*waiter).previous;
            if previous.is_null() {
                self.pop((*waiter).cond);
                return;
            }
            let next = (*waiter).next;
            (*previous).next = next;
            if next.is_null() {
                let first = *self.find((*waiter).cond);
                (*first).last = previous;
            } else {
                (*next).previous = previous;
            }
        }
    }
}

#[repr(align(64))]
struct Bucket {
    lock: AtomicU32,
    lines: UnsafeCell<Lines>,
}

// SAFETY: `lines` is only used with the lock.
unsafe impl Sync for Bucket {}

/// A power of two.
const BUCKETS: usize = 1024;

static TABLE: [Bucket; BUCKETS] =
    [const { Bucket { lock: AtomicU32::new(0), lines: UnsafeCell::new(Lines(ptr::null_mut())) } }; BUCKETS];

/// Works on the lines of a condition variable's bucket.
fn locked<R>(cond: *const Cond, work: impl FnOnce(&mut Lines) -> R) -> R {
    let hash = (cond.addr() as u64 >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
    let bucket = &TABLE[hash as usize % BUCKETS];
    let lock: Face = Face(&bucket.lock);
    lock.lock();
    // SAFETY: with the lock, and nothing below calls back into this function.
    let result = work(unsafe { &mut *bucket.lines.get() });
    lock.unlock();
    result
}

fn add(cond: &Cond, n: u32) {
    cond.waiting.store(cond.waiting.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

/// Puts a waiter at the end of its line.
///
/// # Safety
/// The waiter stays where it is until it has left or has had its token; its condition variable is there.
pub(crate) unsafe fn enter(waiter: *mut Waiter) {
    // SAFETY: the caller's promise.
    unsafe {
        locked((*waiter).cond, |lines| {
            add(&*(*waiter).cond, 1);
            lines.push(waiter);
        });
    }
}

/// Takes a waiter out of its line, unless a signal has chosen it: then false, and its token comes.
///
/// # Safety
/// As for `enter`.
pub(crate) unsafe fn leave(waiter: *mut Waiter) -> bool {
    // SAFETY: the caller's promise; a condition variable for which somebody stands in line is there.
    unsafe {
        locked((*waiter).cond, |lines| {
            if (*waiter).state == State::Waiting {
                add(&*(*waiter).cond, u32::MAX);
                lines.remove(waiter);
            }
            (*waiter).state != State::Chosen
        })
    }
}

/// Chooses the first in line. Whether there was one. Does not touch the condition variable if not.
pub(crate) fn choose_one(cond: *const Cond) -> bool {
    // SAFETY: in the bucket's lock waiters stay; a condition variable for which somebody stands in line is
    // there.
    let first = locked(cond, |lines| unsafe {
        let first = lines.pop(cond);
        if !first.is_null() {
            (*first).state = State::Chosen;
            add(&*cond, u32::MAX);
        }
        first
    });
    if !first.is_null() {
        // SAFETY: chosen just now, so it waits for its token.
        unsafe { give_token(first) };
    }
    !first.is_null()
}

/// Chooses all in line.
pub(crate) fn choose_all(cond: &Cond) {
    let mut first = take_line(cond, State::Chosen);
    while !first.is_null() {
        // SAFETY: chosen just now, so it waits for its token, and is not touched after that.
        unsafe {
            let next = (*first).next;
            give_token(first);
            first = next;
        }
    }
}

/// The condition variable goes: who still waits for it waits for nothing.
pub(crate) fn abandon_all(cond: &Cond) {
    take_line(cond, State::Orphan);
}

/// In a forked child the number in the condition variable may be its parent's.
pub(crate) fn correct_number(cond: &Cond) {
    // SAFETY: in the bucket's lock.
    locked(cond, |lines| unsafe {
        if (*lines.find(cond)).is_null() {
            cond.waiting.store(0, Ordering::Relaxed);
        }
    });
}

fn take_line(cond: &Cond, state: State) -> *mut Waiter {
    // SAFETY: in the bucket's lock waiters stay.
    locked(cond, |lines| unsafe {
        let first = lines.pop_all(cond);
        let mut each = first;
        while let Some(waiter) = each.as_mut() {
            waiter.state = state;
            each = waiter.next;
        }
        cond.waiting.store(0, Ordering::Relaxed);
        first
    })
}

/// # Safety
/// The waiter has been chosen and has had no token yet.
unsafe fn give_token(waiter: *mut Waiter) {
    // SAFETY: the caller's promise. glibc's sem_post does not touch a semaphore after it has been raised.
    unsafe { libc::sem_post((*waiter).token.get()) };
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
        unsafe { (*bucket.lines.get()).0 = ptr::null_mut() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines against plain vectors, over many random steps.
    #[test]
    fn lines_keep_their_order_whoever_leaves() {
        const CONDS: usize = 5;
        let mut state = 1_u64;
        let mut random = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(state >> 33).unwrap() % n
        };
        let conds: Vec<*const Cond> = (1..=CONDS).map(|n| ptr::without_provenance(n * 64)).collect();
        let mut lines = Lines(ptr::null_mut());
        let mut model: Vec<Vec<*mut Waiter>> = vec![vec![]; CONDS];
        for _ in 0..20_000 {
            let c = random(CONDS);
            // SAFETY: one thread; a waiter is freed after it has left its line.
            unsafe {
                match random(8) {
                    0..4 => {
                        let waiter = Box::into_raw(Box::new(Waiter::new(conds[c])));
                        lines.push(waiter);
                        model[c].push(waiter);
                    }
                    4..6 => {
                        let first = lines.pop(conds[c]);
                        let expected = if model[c].is_empty() { ptr::null_mut() } else { model[c].remove(0) };
                        assert_eq!(first, expected);
                        if !first.is_null() {
                            drop(Box::from_raw(first));
                        }
                    }
                    6 if !model[c].is_empty() => {
                        let place = random(model[c].len());
                        let waiter = model[c].remove(place);
                        lines.remove(waiter);
                        drop(Box::from_raw(waiter));
                    }
                    _ if random(20) == 0 => {
                        let mut first = lines.pop_all(conds[c]);
                        for expected in model[c].drain(..) {
                            assert_eq!(first, expected);
                            first = (*first).next;
                            drop(Box::from_raw(expected));
                        }
                        assert!(first.is_null());
                    }
                    _ => {}
                }
            }
        }
    }
}
