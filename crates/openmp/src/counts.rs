//! Answers to "how many CPUs are there", for runtimes that have no variable for it.
//!
//! Only ever fewer than the truth, and fixed for the life of a process, since a count that changes
//! between two questions breaks programs. Masks are answered truly
//! - about other processes,
//! - to a program that places its threads itself: from the first mask of its own making on, or
//!   from the beginning where the environment orders placing,
//!
//! and a mask that was answered and is set again sets the truth. The number of *configured* CPUs
//! is never lowered, and `sched_getcpu` never names a CPU beyond the answer, because programs
//! size tables by the one and index them by the other.
//!
//! Not reached: system calls that a program makes itself (Go, LLVM libomp), `/proc` and `/sys`.

use core::ffi::{CStr, c_int, c_long};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use crate::next::next;
use crate::session;

/// CPUs to answer; 0 is the truth.
static COUNT: AtomicU32 = AtomicU32::new(0);
/// CPUs in the mask when the process began, as answered.
static AT_START: AtomicU32 = AtomicU32::new(0);
/// The process places its threads itself.
static OWN_AFFINITY: AtomicBool = AtomicBool::new(false);

/// Variables by which a user has an OpenMP runtime place threads.
const PLACING: [&CStr; 4] = [c"OMP_PLACES", c"OMP_PROC_BIND", c"GOMP_CPU_AFFINITY", c"KMP_AFFINITY"];

/// Masks are not longer than this, in bytes; 8 CPUs each.
const LARGEST_MASK: usize = 8192;

/// Fixes the answer for this process; 0 is the truth.
pub(crate) fn start(count: u32) {
    let placing = PLACING.iter().any(|name| {
        // SAFETY: a NUL-terminated name; the text is read before anybody can change it.
        let value = unsafe { libc::getenv(name.as_ptr()).as_ref().map(|v| CStr::from_ptr(v)) };
        value.is_some_and(|v| !v.to_bytes().eq_ignore_ascii_case(b"false"))
    });
    OWN_AFFINITY.store(placing, Relaxed);
    COUNT.store(count, Relaxed);
    let mut mask = [0u8; 1024];
    if let Some(real) = next!(c"sched_getaffinity" as Get)
        && get(real, 0, mask.len(), mask.as_mut_ptr()) == 0
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
    let Some(real) = next!(c"sysconf" as extern "C" fn(c_int) -> c_long) else {
        return -1;
    };
    let truth = real(name);
    if name == libc::_SC_NPROCESSORS_ONLN { lowered(truth) } else { truth }
}

/// `get_nprocs(3)`.
#[unsafe(no_mangle)]
extern "C" fn get_nprocs() -> c_int {
    let truth = next!(c"get_nprocs" as extern "C" fn() -> c_int).map_or(1, |real| real());
    c_int::try_from(lowered(truth.into())).unwrap_or(truth)
}

/// `sched_getcpu(3)`.
#[unsafe(no_mangle)]
extern "C" fn sched_getcpu() -> c_int {
    let truth = next!(c"sched_getcpu" as extern "C" fn() -> c_int).map_or(-1, |real| real());
    match c_int::try_from(count()) {
        Ok(count) if count > 0 && truth >= count && !OWN_AFFINITY.load(Relaxed) => truth % count,
        _ => truth,
    }
}

type Get = extern "C" fn(usize, usize, *mut u8) -> c_int;
type Set = extern "C" fn(usize, usize, *const u8) -> c_int;

/// Keeps the first `count` CPUs of a mask and clears the rest.
fn narrow(mask: &mut [u8], count: u32) {
    let mut left = count;
    for byte in mask {
        for bit in 0..8 {
            if *byte >> bit & 1 == 1 {
                if left == 0 {
                    *byte &= !(1 << bit);
                } else {
                    left -= 1;
                }
            }
        }
    }
}

/// Whether the answer for a mask is lowered now, and to how many CPUs.
fn limit() -> Option<u32> {
    Some(count()).filter(|count| *count > 0 && !OWN_AFFINITY.load(Relaxed))
}

fn get(real: Get, who: usize, size: usize, mask: *mut u8) -> c_int {
    let result = real(who, size, mask);
    if result == 0
        && let Some(count) = limit()
    {
        // SAFETY: the real function has just filled `size` bytes.
        narrow(unsafe { core::slice::from_raw_parts_mut(mask, size) }, count);
    }
    result
}

/// A mask that equals our answer is put back as the truth (programs save and restore it);
/// any other shows that the program places its threads itself.
fn set(real_set: Set, real_get: Get, who: usize, size: usize, mask: *const u8) -> c_int {
    let Some(count) = limit().filter(|_| size <= LARGEST_MASK) else {
        return real_set(who, size, mask);
    };
    let mut truth = vec![0u8; size];
    if !mask.is_null() && real_get(who, size, truth.as_mut_ptr()) == 0 {
        let mut answer = truth.clone();
        narrow(&mut answer, count);
        // SAFETY: the caller passes a mask of `size` bytes; it is only read.
        if unsafe { core::slice::from_raw_parts(mask, size) } == answer {
            return real_set(who, size, truth.as_ptr());
        }
    }
    let result = real_set(who, size, mask);
    if result == 0 {
        OWN_AFFINITY.store(true, Relaxed);
    }
    result
}

/// Whether a process or thread id is of this process.
fn is_ours(id: usize) -> bool {
    // SAFETY: system calls without memory; signal 0 only looks whether the thread is there.
    // `errno` is put back: nothing has failed for the program.
    unsafe {
        let me = libc::getpid();
        if id == 0 || c_int::try_from(id) == Ok(me) {
            return true;
        }
        let errno = *libc::__errno_location();
        let there = libc::syscall(libc::SYS_tgkill, me, id, 0) == 0;
        *libc::__errno_location() = errno;
        there
    }
}

/// `sched_getaffinity(2)`.
#[unsafe(no_mangle)]
extern "C" fn sched_getaffinity(id: c_int, size: usize, mask: *mut u8) -> c_int {
    let id = usize::try_from(id).unwrap_or(usize::MAX);
    match next!(c"sched_getaffinity" as Get) {
        Some(real) if is_ours(id) => get(real, id, size, mask),
        Some(real) => real(id, size, mask),
        None => -1,
    }
}

/// `sched_setaffinity(2)`.
#[unsafe(no_mangle)]
extern "C" fn sched_setaffinity(id: c_int, size: usize, mask: *const u8) -> c_int {
    let id = usize::try_from(id).unwrap_or(usize::MAX);
    match (next!(c"sched_setaffinity" as Set), next!(c"sched_getaffinity" as Get)) {
        (Some(s), Some(g)) if is_ours(id) => set(s, g, id, size, mask),
        (Some(s), _) => s(id, size, mask),
        _ => -1,
    }
}

/// `pthread_getaffinity_np(3)`.
#[unsafe(no_mangle)]
extern "C" fn pthread_getaffinity_np(thread: usize, size: usize, mask: *mut u8) -> c_int {
    next!(c"pthread_getaffinity_np" as Get).map_or(libc::ENOSYS, |real| get(real, thread, size, mask))
}

/// `pthread_setaffinity_np(3)`.
#[unsafe(no_mangle)]
extern "C" fn pthread_setaffinity_np(thread: usize, size: usize, mask: *const u8) -> c_int {
    match (next!(c"pthread_setaffinity_np" as Set), next!(c"pthread_getaffinity_np" as Get)) {
        (Some(s), Some(g)) => set(s, g, thread, size, mask),
        _ => libc::ENOSYS,
    }
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
    next!(c"getloadavg" as extern "C" fn(*mut f64, c_int) -> c_int).map_or(-1, |real| real(loads, count))
}
