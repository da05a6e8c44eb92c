//! One thread of ours in each process that runs teams: it sees changes of the word that no region
//! is there to see, because the program stays in one for a long time.
//!
//! It sleeps on the word, and looks up four times a second for two things more: whether corefit
//! is still there, and whether the program is. (A program ends when its last thread does; as
//! ours would be that thread, it has to notice.)

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering::*};

use crate::page::{Slot, word};
use crate::park::Parked;
use crate::rotate;
use crate::session::{self, futex_wait};
use crate::threads::{rehearse, spawn, threads_with_small_tls};

/// Time between two looks, in ms.
const LOOK_MS: u64 = 250;

/// Threads that the program must still be able to make, beside its team.
const SPARE: u32 = 8;

/// Whether the thread has been started in this process.
static STARTED: AtomicBool = AtomicBool::new(false);

/// The parent's thread does not exist in the child of a fork.
pub(crate) fn forked() {
    STARTED.store(false, Relaxed);
}

/// Starts the thread, once per process, beside a team of `team`. If it cannot be had, or the team
/// could not be had afterwards (libgomp ends a program that gets too few threads), nothing is watched.
pub(crate) fn start(slot: &'static Slot, team: u32) {
    if team < 2 || STARTED.load(Relaxed) || STARTED.swap(true, AcqRel) {
        return;
    }
    // Who is there need not be made: the first thread, and after a region its team.
    let there = if slot.regions.load(Relaxed) > 0 { slot.team.load(Relaxed).max(1) } else { 1 };
    let ours_and_spare = 1 + SPARE;
    if !rehearse(team.saturating_sub(there).saturating_add(ours_and_spare).min(threads_with_small_tls())) {
        return;
    }
    // SAFETY: `watch` takes a slot.
    let thread = unsafe { spawn(ptr::null(), watch, ptr::from_ref(slot).cast_mut().cast()) };
    if let Some(thread) = thread {
        // SAFETY: the thread just made; nobody joins it.
        unsafe { libc::pthread_detach(thread) };
    }
}

extern "C" fn watch(slot: *mut c_void) -> *mut c_void {
    // SAFETY: the slot that `start` got; it lies in the page, which is never unmapped.
    let slot = unsafe { &*slot.cast::<Slot>() };
    // SAFETY: names the calling thread; the text is NUL-terminated and short enough.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"corefit".as_ptr()) };
    let mut parked = Parked::default();
    let mut gone = false;
    loop {
        let word = slot.word.load(Acquire);
        // Counting and moving are no shortage.
        let short = word & !(word::COUNT | word::ROTATE) != 0;
        parked.follow(slot, word & word::QUIET != 0 && !gone, short && !gone);
        if word & word::ROTATE == 0 || gone {
            rotate::let_go();
        }
        futex_wait(&slot.word, word, LOOK_MS);
        if program_has_ended(1 + parked.threads()) {
            // SAFETY: what the C library does when the last thread ends.
            unsafe { libc::exit(0) };
        }
        if word != 0 && !gone && session::owner_is_gone() {
            session::leave();
            gone = true;
        }
    }
}

/// Whether only `ours` threads are left, after the main one has ended.
fn program_has_ended(ours: usize) -> bool {
    main_thread_has_ended() && tasks().is_some_and(|all| all <= ours + 1)
}

fn main_thread_has_ended() -> bool {
    let Ok(stat) = std::fs::read("/proc/self/stat") else {
        return false;
    };
    let after_name = stat.iter().rposition(|b| *b == b')').unwrap_or(0);
    stat.get(after_name + 2) == Some(&b'Z')
}

/// Threads of this process, an ended main one among them.
fn tasks() -> Option<usize> {
    Some(std::fs::read_dir("/proc/self/task").ok()?.count())
}
