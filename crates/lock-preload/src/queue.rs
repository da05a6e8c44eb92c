//! Who waits for which condition variable.
//!
//! The waiters stand in lines of this library, found by the address of their condition variable, and not
//! in the condition variable itself: so a waiter that has been chosen by a signal never touches the
//! condition variable again, which may be destroyed at once, and a forked child just drops all lines.
//! In the condition variable is only how many wait, for signals that nobody waits for.
//!
//! Who is taken out of its line by a signal gets exactly one token, and waits for it whatever else
//! happens to it: the signaller gives it outside of the bucket's lock, and it lies on the waiter's stack.

use core::ptr;

use crate::bug::{Bug, planted};
use crate::sys::{Cond, Ordering, Token, bucket};

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
    pub(crate) token: Token,
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
        let none = ptr::null_mut();
        let token = Token::new();
        Waiter { cond, state: State::Waiting, next: none, previous: none, last: none, other: none, token }
    }
}

/// The lines of one bucket: the first waiters of each, linked by `other`.
pub(crate) struct Lines(*mut Waiter);

impl Lines {
    /// Nobody waits.
    pub(crate) const NONE: Lines = Lines(ptr::null_mut());

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

/// Works on the lines of a condition variable's bucket. Nothing in it calls back into this function.
fn locked<R>(cond: *const Cond, work: impl FnOnce(&mut Lines) -> R) -> R {
    bucket(cond.addr()).with(work)
}

fn add(cond: &Cond, n: u32) {
    cond.waiting.store(cond.waiting.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

/// Chooses the first in line, if anybody waits. Who has released the mutex before the signaller took it is counted.
pub(crate) fn signal(cond: &Cond) {
    if cond.waiting.load(Ordering::Relaxed) > 0 && !choose_one(cond) {
        correct_number(cond);
    }
}

/// Chooses all in line, as `signal` does one.
pub(crate) fn broadcast(cond: &Cond) {
    if cond.waiting.load(Ordering::Relaxed) > 0 {
        choose_all(cond);
    }
}

/// The sleep of a waiter has ended, by its token (`woken`) or not. Whether its time was over before a signal chose it.
///
/// # Safety
/// As for `enter`; if woken it has taken its token.
pub(crate) unsafe fn sleep_over(waiter: *mut Waiter, woken: bool) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        let late = !woken && leave(waiter);
        if !woken && !late && !planted(Bug::TokenNotTaken) {
            (*waiter).token.take();
        }
        if planted(Bug::WaiterTouchesCond) && !late {
            add(&*(*waiter).cond, u32::MAX);
        }
        late
    }
}

/// A waiter that has not had its token goes; a signal that has chosen it is passed on.
///
/// # Safety
/// As for `enter`.
pub(crate) unsafe fn give_up(waiter: *mut Waiter) {
    // SAFETY: the caller's promise.
    unsafe {
        if !leave(waiter) {
            (*waiter).token.take();
            if !planted(Bug::NotPassedOn) {
                choose_one((*waiter).cond);
            }
        }
    }
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
unsafe fn leave(waiter: *mut Waiter) -> bool {
    // SAFETY: the caller's promise; a condition variable for which somebody stands in line is there.
    unsafe {
        locked((*waiter).cond, |lines| {
            if (*waiter).state == State::Waiting || planted(Bug::LeaveWithoutLook) {
                add(&*(*waiter).cond, u32::MAX);
                lines.remove(waiter);
            }
            (*waiter).state != State::Chosen
        })
    }
}

/// Chooses the first in line. Whether there was one. Does not touch the condition variable if not.
fn choose_one(cond: *const Cond) -> bool {
    // SAFETY: in the bucket's lock waiters stay; a condition variable for which somebody stands in line is
    // there.
    let first = locked(cond, |lines| unsafe {
        let first = lines.pop(cond);
        if !first.is_null() {
            (*first).state = State::Chosen;
            if !planted(Bug::WaiterTouchesCond) {
                add(&*cond, u32::MAX);
            }
        }
        first
    });
    if !first.is_null() {
        // SAFETY: chosen just now, so it waits for its token.
        unsafe { (*first).token.give() };
    }
    !first.is_null()
}

/// Chooses all in line.
fn choose_all(cond: &Cond) {
    let mut first = take_line(cond, State::Chosen);
    while !first.is_null() {
        // SAFETY: chosen just now, so it waits for its token, and is not touched after that.
        unsafe {
            let next = (*first).next;
            (*first).token.give();
            first = next;
        }
    }
}

/// The condition variable goes: who still waits for it waits for nothing.
pub(crate) fn destroy(cond: &Cond) {
    if cond.waiting.load(Ordering::Relaxed) > 0 {
        take_line(cond, State::Orphan);
    }
}

/// In a forked child the number in the condition variable may be its parent's.
fn correct_number(cond: &Cond) {
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

#[cfg(all(test, not(modelled)))]
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
