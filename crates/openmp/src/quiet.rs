//! Stops a runtime's spinning while there are more threads than CPUs, without changing
//! what the program computes; and lets it spin again afterwards.
//!
//! **libomp** spins for its block time (200 ms) before it sleeps; `kmp_set_blocktime` in the
//! thread that begins a region rules that region.
//!
//! **libgomp** reads its spin count once at start, but falls from 300000 iterations to 100
//! while it manages more threads than it believes there are CPUs (libgomp config/linux/wait.h).
//! So a thread of ours keeps a pool of its own in which just enough idle threads are parked
//! for that, asleep, and lets them go when there are CPUs again. It watches the word, so it
//! also helps a program that stays in one region for ever.

use core::cell::Cell;
use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering::*};

use crate::page::{Slot, runtime, word};
use crate::runtime::Runtime;
use crate::session::futex_wait;

/// Whether the service thread runs in this process.
static SERVICE: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Block time of libomp before we set it to 0, in ms; negative: we did not.
    static BLOCK_TIME_MS: Cell<i32> = const { Cell::new(-1) };
}

/// The parent's service thread does not exist in the child of a fork.
pub(crate) fn forked() {
    SERVICE.store(0, Relaxed);
}

/// Called where a region begins: applies the word to a libomp runtime.
pub(crate) fn at_region(rt: &Runtime, word: u32) {
    if rt.kind != runtime::KMP {
        return;
    }
    let before = BLOCK_TIME_MS.get();
    let quiet = word & word::QUIET != 0;
    let (Some(set), Some(get)) = (rt.set_blocktime, rt.blocktime) else {
        return;
    };
    if quiet && before < 0 {
        // SAFETY: documented extensions of libomp, callable anywhere.
        BLOCK_TIME_MS.set(unsafe { get() }.max(0));
        // SAFETY: as above.
        unsafe { set(0) };
    } else if !quiet && before >= 0 {
        // SAFETY: as above.
        unsafe { set(before) };
        BLOCK_TIME_MS.set(-1);
    }
}

struct Service {
    runtime: &'static Runtime,
    slot: &'static Slot,
}

/// Starts the thread that parks libgomp threads, once per process.
pub(crate) fn start_service(runtime: &'static Runtime, slot: &'static Slot) {
    if runtime.parallel.is_none() || SERVICE.swap(1, AcqRel) != 0 {
        return;
    }
    let service = Box::into_raw(Box::new(Service { runtime, slot }));
    // SAFETY: zeroed attribute and set storage are overwritten by their init functions;
    // the thread gets sole ownership of `service`. All signals stay with the program's threads.
    unsafe {
        let mut all: libc::sigset_t = core::mem::zeroed();
        let mut old: libc::sigset_t = core::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut old);
        let mut thread: libc::pthread_t = core::mem::zeroed();
        let started =
            libc::pthread_create(&raw mut thread, ptr::null(), serve, service.cast()) == 0;
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, ptr::null_mut());
        if started {
            libc::pthread_detach(thread);
        } else {
            drop(Box::from_raw(service));
        }
    }
}

extern "C" fn serve(service: *mut c_void) -> *mut c_void {
    // SAFETY: the pointer made by `start_service`, owned by this thread alone.
    let Service { runtime, slot } = *unsafe { Box::from_raw(service.cast::<Service>()) };
    // SAFETY: names the calling thread; the text is NUL-terminated and short enough.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"corefit".as_ptr()) };
    if let Some(set) = runtime.set_dynamic {
        // SAFETY: `omp_set_dynamic` changes only this thread's setting.
        unsafe { set(0) };
    }
    let mut parked = 1;
    loop {
        let word = slot.word.load(Acquire);
        let want = if word & word::QUIET != 0 {
            pool(slot)
        } else {
            1
        };
        if want != parked
            && let Some(parallel) = runtime.parallel
        {
            // SAFETY: an empty region; libgomp keeps its threads parked afterwards.
            unsafe { parallel(idle, ptr::null_mut(), want, 0) };
            parked = want;
        }
        futex_wait(&slot.word, word, None);
    }
}

/// Size of our pool at which libgomp manages one thread more than it believes in CPUs:
/// the program's team and ours share the count of the first thread.
fn pool(slot: &Slot) -> u32 {
    let team = slot.team.load(Relaxed);
    (slot.procs.load(Relaxed) + 2).saturating_sub(team).max(2)
}

extern "C" fn idle(_: *mut c_void) {}
