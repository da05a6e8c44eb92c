//! What `dlopen` with `RTLD_GLOBAL` has added to the program's search order.
//!
//! Only `dlsym` tells, and it takes the linker's lock. The thread that holds it may wait for ours,
//! so another one asks. If no answer comes, a constructor or destructor is running, and the caller
//! goes by what the calling object was loaded with. This matters only where several runtimes are
//! loaded, the program began with none of them, and the calling object uses no other function of its own
//! yet.

use core::ffi::{CStr, c_void};
use core::ptr;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::next::next_symbol;
use crate::session::{futex_wait, futex_wake};
use crate::threads::spawn;

/// Longest wait for the linker's lock: much longer than a library takes to load.
const PATIENCE: Duration = Duration::from_secs(1);

struct Question {
    names: [&'static CStr; 2],
    found: [AtomicUsize; 2],
    done: AtomicU32,
}

/// Where the search order finds these names behind this library; 0 if nowhere or not known.
pub(crate) fn global(names: [&'static CStr; 2]) -> [usize; 2] {
    let question = Arc::new(Question { names, found: Default::default(), done: AtomicU32::new(0) });
    let theirs = Arc::into_raw(Arc::clone(&question));
    // SAFETY: `answer` takes one count of the question.
    let Some(thread) = (unsafe { spawn(ptr::null(), answer, theirs.cast_mut().cast()) }) else {
        // SAFETY: the count that nobody has taken.
        drop(unsafe { Arc::from_raw(theirs) });
        return [0; 2];
    };
    // SAFETY: the thread just made; nobody joins it.
    unsafe { libc::pthread_detach(thread) };
    let end = Instant::now() + PATIENCE;
    while question.done.load(Acquire) == 0 && Instant::now() < end {
        futex_wait(&question.done, 0, 100);
    }
    if question.done.load(Acquire) == 0 {
        [0; 2]
    } else {
        question.found.each_ref().map(|at| at.load(Relaxed))
    }
}

extern "C" fn answer(question: *mut c_void) -> *mut c_void {
    // SAFETY: the count that `global` passed.
    let question = unsafe { Arc::from_raw(question.cast_const().cast::<Question>()) };
    for (at, name) in question.found.iter().zip(question.names) {
        at.store(next_symbol(name).addr(), Relaxed);
    }
    question.done.store(1, Release);
    futex_wake(&question.done);
    ptr::null_mut()
}
