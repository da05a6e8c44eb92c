//! Stops libgomp's spinning while there are more threads than CPUs, and lets it spin again.
//!
//! libgomp reads its spin count once at start (300000 iterations), but falls to 100 while it
//! manages more threads than it believes there are CPUs (libgomp config/linux/wait.h). It counts
//! the threads of all pools but the first of each (team.c). So a thread of ours keeps a pool
//! of its own, in which just enough idle threads sleep; when it ends, libgomp ends them.
//!
//! libgomp ends the whole process if it cannot make a thread. So as many plain threads are made
//! and ended first, and some more for the program; if that fails, nothing is parked.

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering::*};
use std::time::{Duration, Instant};

use crate::counts;
use crate::page::{Slot, runtime};
use crate::runtime::{Runtime, known};
use crate::session::futex_wake;
use crate::threads::{rehearse, spawn, threads_with_small_tls, variable, wait};

/// While something is short, the remedy stays so long after it was last wanted: parking costs some 20 us
/// per thread.
const LINGER: Duration = Duration::from_millis(500);
/// Threads that the program must still be able to make beside the parked ones.
const SPARE: u32 = 32;
/// The idle threads that we keep in libgomp's pools.
#[derive(Default)]
pub(crate) struct Parked {
    holders: Vec<Holder>,
    /// What the holders make libgomp count, of all that was asked for.
    extra: u32,
    wanted_until: Option<Instant>,
    /// Parking failed: not tried again.
    impossible: bool,
}

/// A thread that owns one pool.
struct Holder {
    thread: libc::pthread_t,
    task: Box<Task>,
}

struct Task {
    runtime: &'static Runtime,
    threads: u32,
    release: AtomicU32,
}

impl Parked {
    /// Parks what is needed while `quiet`, and lets it go some time afterwards; at once if nothing is
    /// `short` any more, since the program is then to spin as fast as it can.
    pub(crate) fn follow(&mut self, slot: &Slot, quiet: bool, short: bool) {
        let now = Instant::now();
        if quiet {
            self.wanted_until = Some(now + LINGER);
            let want = needed(slot);
            if want > self.extra && !self.impossible {
                self.clear();
                self.impossible = !self.park(want);
            }
        } else if !short || self.wanted_until.is_none_or(|until| now >= until) {
            self.clear();
        }
    }

    /// Threads of ours that this keeps.
    pub(crate) fn threads(&self) -> usize {
        self.holders.iter().map(|h| h.task.threads as usize).sum()
    }

    fn clear(&mut self) {
        for holder in self.holders.drain(..) {
            holder.task.release.store(1, Release);
            futex_wake(&holder.task.release);
            // SAFETY: a thread of ours that has not been joined.
            unsafe { libc::pthread_join(holder.thread, ptr::null_mut()) };
        }
        self.extra = 0;
    }

    /// Makes each libgomp in use count `extra` threads more; false if that is too dangerous.
    fn park(&mut self, extra: u32) -> bool {
        let pools = known().filter(|r| r.kind == runtime::GOMP && r.parallel.is_some());
        for runtime in pools {
            let most = runtime.thread_limit();
            if most < 2 {
                return false;
            }
            let mut left = extra;
            while left > 0 {
                let threads = (left + 1).min(most);
                if !is_safe(threads) {
                    self.clear();
                    return false;
                }
                let task = Box::new(Task { runtime, threads, release: AtomicU32::new(0) });
                let argument = ptr::from_ref(&*task).cast_mut().cast();
                // SAFETY: `hold` takes a task; this one lives until the thread has been joined.
                let Some(thread) = (unsafe { spawn(ptr::null(), hold, argument) }) else {
                    self.clear();
                    return false;
                };
                self.holders.push(Holder { thread, task });
                left -= threads - 1;
            }
        }
        self.extra = extra;
        true
    }
}

/// Threads by which libgomp's count has to grow to exceed the CPUs that it believes in, beside
/// the program's present team.
fn needed(slot: &Slot) -> u32 {
    let procs = slot.procs.load(Relaxed).max(counts::at_start());
    let alone = slot.runtimes.load(Relaxed) == runtime::GOMP;
    let team = if alone { slot.team.load(Relaxed) } else { 1 };
    (procs + 1).saturating_sub(team).max(1)
}

/// Whether parking can bring a runtime anything: libgomp's threads spin while they wait, by its variables (libgomp env.c).
pub(crate) fn may_help(runtime: &Runtime) -> bool {
    let spins = || match variable("GOMP_SPINCOUNT") {
        Some(count) => count.trim() != "0",
        None => !variable("OMP_WAIT_POLICY").is_some_and(|v| v.trim().eq_ignore_ascii_case("passive")),
    };
    runtime.kind == runtime::GOMP && spins()
}

extern "C" fn hold(task: *mut c_void) -> *mut c_void {
    // SAFETY: the task that `park` keeps until it has joined this thread.
    let task = unsafe { &*task.cast::<Task>() };
    // SAFETY: names the calling thread; the text is NUL-terminated and short enough.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"corefit".as_ptr()) };
    if let (Some(set_dynamic), Some(parallel)) = (task.runtime.set_dynamic, task.runtime.parallel) {
        // SAFETY: changes this thread's setting only; then an empty region, whose threads
        // libgomp keeps asleep in the pool until this thread ends.
        unsafe {
            set_dynamic(0);
            parallel(idle, ptr::null_mut(), task.threads, 0);
        }
    }
    wait((&raw const task.release).cast_mut().cast())
}

extern "C" fn idle(_: *mut c_void) {}

/// Whether `threads` more can be made without harm.
fn is_safe(threads: u32) -> bool {
    let shows_threads =
        variable("OMP_DISPLAY_AFFINITY").is_some_and(|v| v.trim().eq_ignore_ascii_case("true"));
    !shows_threads && threads <= threads_with_small_tls() && rehearse(threads + SPARE)
}
