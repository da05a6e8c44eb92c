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
use crate::objects;
use crate::page::{Slot, runtime};
use crate::runtime::{Runtime, known};
use crate::session::{futex_wait, futex_wake};
use crate::watch::spawn;

/// The remedy stays so long after it was last wanted: parking costs some 20 us per thread.
const LINGER: Duration = Duration::from_millis(500);
/// Threads that the program must still be able to make beside the parked ones.
const SPARE: u32 = 32;
/// Most memory that the parked threads may need for the program's thread-local variables, which
/// the C library clears for each thread.
const TLS_LIMIT: u64 = 64 << 20;

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
    /// Parks what is needed while `quiet`, and lets it go some time afterwards.
    pub(crate) fn follow(&mut self, slot: &Slot, quiet: bool) {
        let now = Instant::now();
        if quiet {
            self.wanted_until = Some(now + LINGER);
            let want = needed(slot);
            if want > self.extra && !self.impossible {
                self.clear();
                self.impossible = !self.park(want);
            }
        } else if self.wanted_until.is_none_or(|until| now >= until) {
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
    !shows_threads
        && objects::tls_bytes().saturating_mul(threads.into()) <= TLS_LIMIT
        && rehearse(threads + SPARE)
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Makes so many threads at a time, with stacks as libgomp's, and ends them.
fn rehearse(threads: u32) -> bool {
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

extern "C" fn wait(gate: *mut c_void) -> *mut c_void {
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
