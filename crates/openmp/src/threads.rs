//! Making threads of our own without harm to the program.

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering::*};

use crate::objects;
use crate::session::{futex_wait, futex_wake};

/// Starts a thread that gets none of the program's signals. `attribute` may be null.
///
/// # Safety
/// `run` may do with `argument` what it likes; `attribute` is valid if it is not null.
pub(crate) unsafe fn spawn(
    attribute: *const libc::pthread_attr_t,
    run: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> Option<libc::pthread_t> {
    // SAFETY: the zeroed set and handle are overwritten before use.
    unsafe {
        let mut all: libc::sigset_t = core::mem::zeroed();
        let mut old: libc::sigset_t = core::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut old);
        let mut thread: libc::pthread_t = core::mem::zeroed();
        let failed = libc::pthread_create(&raw mut thread, attribute, run, argument);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, ptr::null_mut());
        (failed == 0).then_some(thread)
    }
}

/// Most memory that threads of ours may need for the program's thread-local variables, which the
/// C library clears for each thread.
const TLS_LIMIT: u64 = 64 << 20;

/// How many threads need no more than that.
pub(crate) fn threads_with_small_tls() -> u32 {
    u32::try_from(TLS_LIMIT / objects::tls_bytes().max(1)).unwrap_or(u32::MAX)
}

/// Makes so many threads at a time, with stacks as libgomp's, and ends them.
pub(crate) fn rehearse(threads: u32) -> bool {
    let stack = ["OMP_STACKSIZE", "GOMP_STACKSIZE"].into_iter().find_map(|n| stack_bytes(&variable(n)?));
    let gate = AtomicU32::new(0);
    let mut made = Vec::with_capacity(threads as usize);
    // SAFETY: the zeroed attribute is overwritten; the threads use `gate` and are joined below.
    unsafe {
        let mut attribute: libc::pthread_attr_t = core::mem::zeroed();
        libc::pthread_attr_init(&raw mut attribute);
        if let Some(bytes) = stack {
            libc::pthread_attr_setstacksize(&raw mut attribute, bytes);
        }
        for _ in 0..threads {
            let Some(thread) = spawn(&raw const attribute, wait, (&raw const gate).cast_mut().cast()) else {
                break;
            };
            made.push(thread);
        }
        libc::pthread_attr_destroy(&raw mut attribute);
        gate.store(1, Release);
        futex_wake(&gate);
        for thread in &made {
            libc::pthread_join(*thread, ptr::null_mut());
        }
    }
    made.len() == threads as usize
}

/// Sleeps until the word that `gate` points to is not zero.
pub(crate) extern "C" fn wait(gate: *mut c_void) -> *mut c_void {
    // SAFETY: the gate outlives the thread, which is joined.
    let gate = unsafe { &*gate.cast::<AtomicU32>() };
    while gate.load(Acquire) == 0 {
        futex_wait(gate, 0, 60_000);
    }
    ptr::null_mut()
}

/// A stack size as OpenMP writes it: a number and B, K, M or G; K without a unit.
fn stack_bytes(text: &str) -> Option<usize> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match text[digits.len()..].trim() {
        "" | "k" | "K" => 10,
        "b" | "B" => 0,
        "m" | "M" => 20,
        "g" | "G" => 30,
        _ => return None,
    };
    digits.parse::<usize>().ok()?.checked_mul(1 << shift)
}

/// A variable of the environment.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
