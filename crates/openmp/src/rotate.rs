//! Moves the sequential work of a fork-join program over the CPUs: `corefit run --rotate`.
//!
//! ```text
//!   CPU 0 ▓▓▓▓▓▓▓▓░░░░        ░░░░▓▓▓▓▓▓▓▓░░░░        ▓ sequential, ░ parallel
//!   CPU 1         ░░░░▓▓▓▓▓▓▓▓░░░░        ░░░░
//!                 ▲ the turn is over: a region begins, the workers sleep, and the thread that begins it
//!                   changes CPUs with the worker that was on the next one
//! ```
//!
//! Only the thread that began the first region is moved, and only where it begins an outermost one: then its workers sleep
//! (or spin), so that no work is interrupted. It may use all of its CPUs again at once, and stays where it came to; the
//! worker wakes up where it came from and takes back its own CPUs before it runs any code of the program. So nothing that
//! the program starts inherits one CPU, and nothing is left to be undone if corefit is killed. Workers tell where they are
//! when they begin their part of a region: the function that they are to run is replaced by one that does this and goes on there.

use core::arch::naked_asm;
use core::cell::Cell;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

use crate::counts;
use crate::page::Slot;
use crate::runtime::Runtime;
use crate::session::{self, keeping_errno};

/// Threads of a team that are known, and CPUs.
const SEATS: usize = 256;
const CPUS: usize = 1024;
/// Looks in a turn: regions shorter than a part of one are only seen now and then. Ours.
const LOOKS: u64 = 4;
/// How far CPUs may be apart, in turns, before it is forgotten: what was long ago is made up for no more. Ours.
const OWED: u64 = 2;

/// A set of CPUs, as the kernel has it.
type Mask = [u64; CPUS / 64];

/// Where a thread of the team was when it began its part of a region.
struct Seat {
    tid: AtomicU32,
    cpu: AtomicU32,
    /// In which of the regions that were looked at.
    look: AtomicU32,
}

static TEAM: [Seat; SEATS] =
    [const { Seat { tid: AtomicU32::new(0), cpu: AtomicU32::new(0), look: AtomicU32::new(0) } }; SEATS];
/// The thread that is moved, by the address of its `ME`; 0: none yet. What follows is its own.
static OWNER: AtomicUsize = AtomicUsize::new(0);
/// The runtime of its regions.
static RUNTIME: AtomicPtr<Runtime> = AtomicPtr::new(ptr::null_mut());
/// What the threads of the region that is looked at run. Another is only put here when all threads have begun
/// it: the owner is in no region of this runtime then.
static BODY: AtomicUsize = AtomicUsize::new(0);
static LOOK: AtomicU32 = AtomicU32::new(0);
/// When the next region is looked at, ns of the coarse clock.
static NEXT: AtomicU64 = AtomicU64::new(0);
/// CPU time at the last look and when it was moved last, ns.
static SEEN: AtomicU64 = AtomicU64::new(0);
static MOVED: AtomicU64 = AtomicU64::new(0);
/// CPU time of the owner on each CPU, less what all of them had, ns.
static HAD: [AtomicU64; CPUS] = [const { AtomicU64::new(0) }; CPUS];
/// The worker that is kept on one CPU until it begins its part of the region; 0: none.
static KEPT: AtomicU32 = AtomicU32::new(0);
static KEPT_ON: AtomicU32 = AtomicU32::new(0);
/// What that worker, as the owner, may use, and what has to be set so that it may.
static ALL: [AtomicU64; CPUS / 64] = [const { AtomicU64::new(0) }; CPUS / 64];
static FREE: [AtomicU64; CPUS / 64] = [const { AtomicU64::new(0) }; CPUS / 64];

thread_local! {
    static ME: Cell<u32> = const { Cell::new(0) };
}

/// The calling thread's id.
fn tid() -> u32 {
    if ME.get() == 0 {
        // SAFETY: a system call without arguments.
        ME.set(unsafe { libc::gettid() }.cast_unsigned());
    }
    ME.get()
}

/// Called where a region of `team` threads, two at least, begins, outside of any other; `body` is what they run.
#[cold]
pub(crate) fn at_region(rt: &'static Runtime, slot: &'static Slot, team: u32, body: &mut usize) {
    let me = ME.with(|me| ptr::from_ref(me).addr());
    match OWNER.compare_exchange(0, me, Relaxed, Relaxed) {
        Ok(_) => RUNTIME.store(ptr::from_ref(rt).cast_mut(), Release),
        Err(owner) if owner == me => {}
        Err(_) => return,
    }
    if !ptr::eq(RUNTIME.load(Relaxed), rt) || rt.is_inside() {
        return;
    }
    let turn = session::page().map_or(0, |page| u64::from(page.turn_us.load(Relaxed)) * 1000);
    let now = clock(libc::CLOCK_MONOTONIC_COARSE);
    if turn == 0 || now < NEXT.load(Relaxed) {
        return;
    }
    NEXT.store(now + turn / LOOKS, Relaxed);
    keeping_errno(|| look(slot, team, turn));
    LOOK.fetch_add(1, Relaxed);
    BODY.store(*body, Relaxed);
    *body = begin as extern "C" fn() as usize;
}

/// Counts what the owner ran, and moves it if its turn is over.
fn look(slot: &Slot, team: u32, turn: u64) {
    let_go();
    let Some(here) = counts::cpu() else { return };
    let ran = clock(libc::CLOCK_THREAD_CPUTIME_ID);
    let Some(had) = HAD.get(here as usize) else { return };
    had.fetch_add(ran.saturating_sub(SEEN.swap(ran, Relaxed)).min(OWED * turn), Relaxed);
    if ran.saturating_sub(MOVED.load(Relaxed)) < turn {
        return;
    }
    let Some(all) = affinity(0) else { return };
    let Some(to) = next(&all, here, OWED * turn) else { return };
    if load(&ALL) != all {
        store(&FREE, &wanted(&all));
        store(&ALL, &all);
    }
    let now = LOOK.load(Relaxed);
    // Who takes no part does not wake up.
    let mut workers = TEAM.iter().take(team as usize).skip(1);
    let there = workers.find(|s| s.look.load(Relaxed) == now && s.cpu.load(Relaxed) == to);
    let worker = there.map(|seat| seat.tid.load(Relaxed)).filter(|_| now != 0);
    MOVED.store(ran, Relaxed);
    if let Some(worker) = worker {
        if affinity(worker) != Some(all) {
            slot.bound.fetch_add(1, Relaxed);
            return;
        }
        KEPT_ON.store(here, Relaxed);
        KEPT.store(worker, Release);
        set_affinity(worker, &only(here));
        // The thread that watches may have let it go just before.
        if KEPT.load(Acquire) != worker {
            free(worker);
        }
    }
    if set_affinity(0, &only(to)) {
        free(0);
        slot.moves.fetch_add(1, Relaxed);
    }
}

/// The CPU on which the owner had least, of those that it may use, but not the one `here`; of several the next.
fn next(all: &Mask, here: u32, most: u64) -> Option<u32> {
    let allowed = |cpu: &usize| all[cpu / 64] >> (cpu % 64) & 1 == 1;
    let least = (0..CPUS).filter(allowed).map(|cpu| HAD[cpu].load(Relaxed)).min()?;
    for had in &HAD {
        had.store(had.load(Relaxed).saturating_sub(least).min(most), Relaxed);
    }
    let here = here as usize;
    let order = (here + 1..CPUS).chain(0..here).filter(allowed);
    u32::try_from(order.min_by_key(|cpu| HAD[*cpu].load(Relaxed))?).ok()
}

/// What the threads of a region that is looked at run in the place of its function: they say where they are, and go on there.
#[unsafe(naked)]
extern "C" fn begin() {
    naked_asm!(
        "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9",
        "sub rsp, 8",
        "call {arrive}",
        "add rsp, 8",
        "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
        "jmp rax",
        arrive = sym arrive,
    )
}

extern "C" fn arrive() -> usize {
    let body = BODY.load(Relaxed);
    // SAFETY: runtimes are never freed.
    let number = unsafe { RUNTIME.load(Acquire).as_ref() }.map_or(0, Runtime::thread_number);
    if let Some(seat) = TEAM.get(number as usize)
        && let Some(cpu) = counts::cpu()
    {
        seat.tid.store(tid(), Relaxed);
        seat.cpu.store(cpu, Relaxed);
        seat.look.store(LOOK.load(Relaxed), Relaxed);
    }
    if KEPT.load(Relaxed) == tid() {
        keeping_errno(let_go);
    }
    body
}

/// Gives the worker that was kept on one CPU its own ones back, unless somebody gave it others meanwhile.
pub(crate) fn let_go() {
    let worker = KEPT.load(Acquire);
    let widen = || {
        // One that has ended (its team got smaller) may be another process's thread now.
        let ours = worker != 0 && counts::is_ours(worker as usize);
        let kept = ours && affinity(worker) == Some(only(KEPT_ON.load(Relaxed)));
        if kept {
            free(worker);
        }
        kept
    };
    let was_kept = widen();
    let _ = KEPT.compare_exchange(worker, 0, AcqRel, Relaxed);
    // The owner may have kept it just after the first look at it.
    if !was_kept {
        widen();
    }
}

/// Lets a thread use what the owner may use; all there are, if that has gone meanwhile.
fn free(thread: u32) {
    let _ = set_affinity(thread, &load(&FREE)) || set_affinity(thread, &[u64::MAX; CPUS / 64]);
}

/// In the child of a fork there is this thread only, and it was not kept on one CPU: it runs code of the program.
pub(crate) fn forked() {
    ME.set(0);
    for at in [&KEPT, &LOOK] {
        at.store(0, Relaxed);
    }
    // Its CPU time begins anew.
    for at in [&SEEN, &MOVED] {
        at.store(0, Relaxed);
    }
    OWNER.store(0, Relaxed);
}

fn clock(id: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid time to be overwritten.
    unsafe { libc::clock_gettime(id, &raw mut now) };
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// CPUs of a thread; 0: the calling one. Not by the C library's functions, in front of which we stand.
fn affinity(thread: u32) -> Option<Mask> {
    let mut mask = [0; CPUS / 64];
    // SAFETY: a buffer of the stated length.
    let got =
        unsafe { libc::syscall(libc::SYS_sched_getaffinity, thread, size_of::<Mask>(), mask.as_mut_ptr()) };
    (got > 0).then_some(mask)
}

fn set_affinity(thread: u32, mask: &Mask) -> bool {
    // SAFETY: a buffer of the stated length, which is only read.
    unsafe { libc::syscall(libc::SYS_sched_setaffinity, thread, size_of::<Mask>(), mask.as_ptr()) == 0 }
}

fn only(cpu: u32) -> Mask {
    let mut mask = [0; CPUS / 64];
    mask[cpu as usize / 64] = 1 << (cpu % 64);
    mask
}

/// What to set so that a thread that may use `all` now still may: if that is all there are, those that come later, too.
fn wanted(all: &Mask) -> Mask {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let mut there = [0; CPUS / 64];
    for range in online.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) else { return *all };
        for cpu in first..=last.min(CPUS - 1) {
            there[cpu / 64] |= 1 << (cpu % 64);
        }
    }
    if there == *all { [u64::MAX; CPUS / 64] } else { *all }
}

fn load(from: &[AtomicU64; CPUS / 64]) -> Mask {
    from.each_ref().map(|word| word.load(Relaxed))
}

fn store(to: &[AtomicU64; CPUS / 64], mask: &Mask) {
    for (word, bits) in to.iter().zip(mask) {
        word.store(*bits, Relaxed);
    }
}
