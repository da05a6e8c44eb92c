//! Answers to "how many CPUs are there", for runtimes that have no variable for it.
//!
//! Only ever fewer than the truth, and fixed for the life of a process, since a count that changes
//! between two questions breaks programs. Masks are answered truly
//! - about other processes,
//! - to a program that places its threads itself: from the first mask of its own making on, or
//!   from the beginning where the environment orders placing,
//!
//! and a mask that was answered and is set again, to another process, too, sets the truth. The number of *configured* CPUs
//! is never lowered, and `sched_getcpu` names a CPU of the mask that was answered, because programs
//! size tables by the one and index them by the other.
//!
//! Not reached: system calls that a program makes itself (Go, LLVM libomp), the CPU number that
//! restartable sequences (rseq) keep in memory, `/proc` and `/sys`.
//!
//! These functions are called in signal handlers, and by malloc replacements before `main` and
//! before our own constructor. So they allocate nothing and keep `errno`, and what they pass
//! on to is looked up when the library is loaded.

use core::ffi::{CStr, c_int, c_long};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use crate::next::next;
use crate::{lately, session};

/// CPUs to answer; 0 is the truth.
static COUNT: AtomicU32 = AtomicU32::new(0);
/// CPUs in the mask when the process began, as answered.
static AT_START: AtomicU32 = AtomicU32::new(0);
/// Whether the process was answered a mask: only then can it put one back.
static ANSWERED: AtomicBool = AtomicBool::new(false);
/// The process places its threads itself.
static OWN_AFFINITY: AtomicBool = AtomicBool::new(false);

/// Variables by which a user has an OpenMP runtime place threads.
const PLACING: [&CStr; 4] = [c"OMP_PLACES", c"OMP_PROC_BIND", c"GOMP_CPU_AFFINITY", c"KMP_AFFINITY"];

/// Bytes of the longest mask, 8 CPUs each: Linux on x86-64 knows at most 8192 CPUs
/// (`NR_CPUS` in arch/x86/Kconfig). What a longer one has behind is ignored, as the kernel does.
const LARGEST_MASK: usize = 1024;

/// The functions that we stand in front of.
mod real {
    use super::{Attribute, Get, GetCpu, LoadAverage, Set, c_int, c_long, next};

    /// `real!(name: TYPE, …)`: each as a function that gives the next definition, and
    /// `look_up`, which looks all of them up at once.
    macro_rules! real {
        ($($name:ident = $text:literal: $type:ty,)*) => {
            $(#[inline] pub(super) fn $name() -> Option<$type> { next!($text as $type) })*
            pub(super) fn look_up() { $(let _ = $name();)* }
        };
    }
    real! {
        sysconf = c"sysconf": extern "C" fn(c_int) -> c_long,
        get_nprocs = c"get_nprocs": extern "C" fn() -> c_int,
        sched_getcpu = c"sched_getcpu": extern "C" fn() -> c_int,
        getcpu = c"getcpu": GetCpu,
        get_affinity = c"sched_getaffinity": Get,
        set_affinity = c"sched_setaffinity": Set,
        get_thread = c"pthread_getaffinity_np": Get,
        set_thread = c"pthread_setaffinity_np": Set,
        load_average = c"getloadavg": LoadAverage,
        set_attribute = c"pthread_attr_setaffinity_np": Attribute,
    }
}

type Get = extern "C" fn(usize, usize, *mut u8) -> c_int;
type Set = extern "C" fn(usize, usize, *const u8) -> c_int;
type Attribute = extern "C" fn(*mut libc::pthread_attr_t, usize, *const u8) -> c_int;
type LoadAverage = extern "C" fn(*mut f64, c_int) -> c_int;
type GetCpu = extern "C" fn(*mut u32, *mut u32) -> c_int;

/// Looks up what we pass on to; at the first question or when the library is loaded.
pub(crate) fn look_up() {
    real::look_up();
}

/// Fixes the answer for this process; 0 is the truth.
pub(crate) fn start(count: u32) {
    let placing = PLACING.iter().any(|name| {
        // SAFETY: a NUL-terminated name; the text is read before anybody can change it.
        let value = unsafe { libc::getenv(name.as_ptr()).as_ref().map(|v| CStr::from_ptr(v)) };
        value.is_some_and(|v| !v.to_bytes().eq_ignore_ascii_case(b"false"))
    });
    OWN_AFFINITY.store(placing, Relaxed);
    COUNT.store(count, Relaxed);
    let mut mask = [0u8; LARGEST_MASK];
    if let Some(real) = real::get_affinity()
        && answer(real, 0, mask.len(), mask.as_mut_ptr()) == 0
    {
        AT_START.store(mask.iter().map(|byte| byte.count_ones()).sum(), Relaxed);
    }
}

/// CPUs that this process saw when it began.
pub(crate) fn at_start() -> u32 {
    AT_START.load(Relaxed)
}

fn count() -> u32 {
    session::start();
    COUNT.load(Relaxed)
}

fn lowered(truth: c_long) -> c_long {
    match count() {
        0 => truth,
        count => truth.min(count.into()),
    }
}

/// `sysconf(3)`: the number of CPUs online is answered, the rest passed on.
#[unsafe(no_mangle)]
extern "C" fn sysconf(name: c_int) -> c_long {
    let truth = real::sysconf().map_or(-1, |real| real(name));
    if name == libc::_SC_NPROCESSORS_ONLN { lowered(truth) } else { truth }
}

/// `get_nprocs(3)`.
#[unsafe(no_mangle)]
extern "C" fn get_nprocs() -> c_int {
    let truth = real::get_nprocs().map_or(1, |real| real());
    c_int::try_from(lowered(truth.into())).unwrap_or(truth)
}

/// `sched_getcpu(3)`.
#[unsafe(no_mangle)]
extern "C" fn sched_getcpu() -> c_int {
    let truth = real::sched_getcpu().map_or(-1, |real| real());
    u32::try_from(truth).map_or(truth, |cpu| within(cpu).cast_signed())
}

/// `getcpu(2)`, glibc's wrapper.
#[unsafe(no_mangle)]
extern "C" fn getcpu(cpu: *mut u32, node: *mut u32) -> c_int {
    let result = real::getcpu().map_or(-1, |real| real(cpu, node));
    if result == 0 && !cpu.is_null() {
        // SAFETY: the real function has just written there.
        unsafe { *cpu = within(*cpu) };
    }
    result
}

/// The CPU that the calling thread runs on.
pub(crate) fn cpu() -> Option<u32> {
    real::sched_getcpu().and_then(|real| u32::try_from(real()).ok())
}

/// A CPU's number: itself if its CPU is in the mask that was answered, else that of one there.
fn within(cpu: u32) -> u32 {
    let Some(count) = limit() else {
        return cpu;
    };
    let mut mask = [0u8; LARGEST_MASK];
    let Some(real) = real::get_affinity() else {
        return cpu;
    };
    if session::keeping_errno(|| real(0, mask.len(), mask.as_mut_ptr())) != 0 {
        return cpu;
    }
    narrow(&mut mask, count);
    let has = |cpu: &u32| mask.get(*cpu as usize / 8).is_some_and(|byte| byte >> (cpu % 8) & 1 == 1);
    if has(&cpu) {
        return cpu;
    }
    let answered = mask.iter().map(|byte| byte.count_ones()).sum::<u32>().max(1);
    let all = 0..8 * u32::try_from(LARGEST_MASK).unwrap_or(0);
    all.filter(has).nth((cpu % answered) as usize).unwrap_or(cpu)
}

/// Keeps the first `count` CPUs of a mask and clears the rest: programs index by a CPU's number what they made for `count` of them.
fn narrow(mask: &mut [u8], count: u32) {
    let mut left = count;
    for byte in mask {
        while byte.count_ones() > left {
            *byte &= !(1 << byte.ilog2());
        }
        left -= byte.count_ones();
    }
}

/// Whether the answer for a mask is lowered now, and to how many CPUs.
fn limit() -> Option<u32> {
    Some(count()).filter(|count| *count > 0 && !OWN_AFFINITY.load(Relaxed))
}

fn get(real: Get, who: usize, size: usize, mask: *mut u8) -> c_int {
    let result = answer(real, who, size, mask);
    if result == 0 {
        ANSWERED.store(true, Relaxed);
    }
    result
}

fn answer(real: Get, who: usize, size: usize, mask: *mut u8) -> c_int {
    let result = real(who, size, mask);
    if result == 0
        && let Some(count) = limit()
    {
        // SAFETY: the real function has just filled `size` bytes.
        narrow(unsafe { core::slice::from_raw_parts_mut(mask, size) }, count);
    }
    result
}

/// Sets a mask by `by`, as [`set_mask`].
fn set(
    truth: Option<Get>,
    who: usize,
    size: usize,
    mask: *const u8,
    by: impl Fn(usize, *const u8) -> c_int,
) -> c_int {
    let result = set_mask(truth, who, size, mask, by);
    lately::changed();
    result
}

/// Sets a mask by `set`. One that equals our answer about `who` is put back as the truth
/// (programs save and restore it, in another length, too), if there was one: `taskset`, which sets a mask
/// and executes a program, asks for none. Any other shows that the program places its threads itself.
fn set_mask(
    truth: Option<Get>,
    who: usize,
    size: usize,
    mask: *const u8,
    set: impl Fn(usize, *const u8) -> c_int,
) -> c_int {
    let Some(count) = limit() else {
        return set(size, mask);
    };
    if let Some(all) = truth.and_then(|get| meant(get, who, size, mask, count)) {
        return set(all.len(), all.as_ptr());
    }
    let result = set(size, mask);
    if result == 0 {
        OWN_AFFINITY.store(true, Relaxed);
    }
    result
}

/// The true mask of `who`, if this one equals our answer about it, and there was an answer.
fn meant(truth: Get, who: usize, size: usize, mask: *const u8, count: u32) -> Option<[u8; LARGEST_MASK]> {
    let mut all = [0u8; LARGEST_MASK];
    if !ANSWERED.load(Relaxed) || mask.is_null() || truth(who, all.len(), all.as_mut_ptr()) != 0 {
        return None;
    }
    let mut answer = all;
    narrow(&mut answer, count);
    // SAFETY: the caller passes a mask of `size` bytes; it is only read.
    let given = unsafe { core::slice::from_raw_parts(mask, size.min(answer.len())) };
    let (same, rest) = answer.split_at(given.len());
    (given == same && rest.iter().all(|byte| *byte == 0)).then_some(all)
}

/// Whether a process or thread id is of this process.
pub(crate) fn is_ours(id: usize) -> bool {
    // SAFETY: a system call without memory.
    let me = unsafe { libc::getpid() };
    // SAFETY: as above; signal 0 only looks whether the thread is there.
    let there = || unsafe { libc::syscall(libc::SYS_tgkill, me, id, 0) == 0 };
    id == 0 || c_int::try_from(id) == Ok(me) || session::keeping_errno(there)
}

/// `sched_getaffinity(2)`.
#[unsafe(no_mangle)]
extern "C" fn sched_getaffinity(id: c_int, size: usize, mask: *mut u8) -> c_int {
    let id = usize::try_from(id).unwrap_or(usize::MAX);
    match real::get_affinity() {
        Some(real) if is_ours(id) => get(real, id, size, mask),
        Some(real) => real(id, size, mask),
        None => -1,
    }
}

/// `sched_setaffinity(2)`.
#[unsafe(no_mangle)]
extern "C" fn sched_setaffinity(id: c_int, size: usize, mask: *const u8) -> c_int {
    let id = usize::try_from(id).unwrap_or(usize::MAX);
    match real::set_affinity() {
        Some(real) if is_ours(id) => {
            set(real::get_affinity(), id, size, mask, |size, mask| real(id, size, mask))
        }
        // Who starts others gives them its own mask, as it was answered.
        Some(real) => {
            match limit().zip(real::get_affinity()).and_then(|(n, get)| meant(get, 0, size, mask, n)) {
                Some(all) => real(id, all.len(), all.as_ptr()),
                None => real(id, size, mask),
            }
        }
        None => -1,
    }
}

/// `pthread_getaffinity_np(3)`. libgomp is told by its return address.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn pthread_getaffinity_np() {
    core::arch::naked_asm!("mov rcx, [rsp]", "jmp {f}", f = sym thread_affinity)
}

extern "C" fn thread_affinity(thread: usize, size: usize, mask: *mut u8, caller: usize) -> c_int {
    let Some(real) = real::get_thread() else { return libc::ENOSYS };
    let ask = || get(real, thread, size, mask);
    // SAFETY: names the calling thread.
    let own = || usize::try_from(unsafe { libc::pthread_self() }) == Ok(thread);
    if session::slot().is_some() && own() && crate::runtime::contains(caller) {
        lately::or_ask(size, mask, ask)
    } else {
        ask()
    }
}

/// `pthread_setaffinity_np(3)`.
#[unsafe(no_mangle)]
extern "C" fn pthread_setaffinity_np(thread: usize, size: usize, mask: *const u8) -> c_int {
    real::set_thread().map_or(libc::ENOSYS, |real| {
        set(real::get_thread(), thread, size, mask, |size, mask| real(thread, size, mask))
    })
}

/// `pthread_attr_setaffinity_np(3)`: the mask that a new thread gets, instead of its maker's.
#[unsafe(no_mangle)]
extern "C" fn pthread_attr_setaffinity_np(
    attribute: *mut libc::pthread_attr_t,
    size: usize,
    mask: *const u8,
) -> c_int {
    let Some(real) = real::set_attribute() else {
        return libc::ENOSYS;
    };
    if mask.is_null() || size == 0 {
        return real(attribute, size, ptr::null()); // forgets the attribute's mask
    }
    set(real::get_affinity(), 0, size, mask, |size, mask| real(attribute, size, mask))
}

/// `getloadavg(3)`. With dynamic adjustment on, libgomp takes the 15-minute load average off
/// every team, reading a file each time. While corefit follows the CPUs, the OpenMP runtimes
/// (and only they) are told that there is no load. The caller is told by its return address.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn getloadavg() {
    core::arch::naked_asm!("mov rdx, [rsp]", "jmp {f}", f = sym load_average)
}

extern "C" fn load_average(loads: *mut f64, count: c_int, caller: usize) -> c_int {
    if session::slot().is_some()
        && (1..=3).contains(&count)
        && !loads.is_null()
        && crate::runtime::contains(caller)
    {
        let room = usize::try_from(count).unwrap_or(0);
        // SAFETY: the caller passes room for `count` values.
        unsafe { core::slice::from_raw_parts_mut(loads, room) }.fill(0.0);
        return count;
    }
    real::load_average().map_or(-1, |real| real(loads, count))
}
