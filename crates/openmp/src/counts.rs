//! Answers to "how many CPUs are there", for runtimes that have no variable for it.
//!
//! Only ever fewer than the truth, fixed for the life of a process (a count that changes
//! between two questions breaks programs), and never to a process that manages its own
//! affinity: once it sets a mask of its own making, it gets the truth.

use core::ffi::{CStr, c_int, c_long, c_void};
use core::mem::transmute;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering::Relaxed};

use crate::session::next_symbol;

/// CPUs to answer; 0 is the truth.
static COUNT: AtomicU32 = AtomicU32::new(0);
/// The process has set an affinity of its own.
static OWN_AFFINITY: AtomicBool = AtomicBool::new(false);

/// Fixes the answer for this process.
pub(crate) fn start(count: u32) {
    COUNT.store(count, Relaxed);
}

/// The next definition of a libc function, looked up once.
macro_rules! next {
    ($name:literal as $type:ty) => {{
        static AT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
        let name: &CStr = $name;
        let mut at = AT.load(Relaxed);
        if at.is_null() {
            at = next_symbol(name);
            AT.store(at, Relaxed);
        }
        // SAFETY: libc's function of this name has this type; null is `None`.
        unsafe { transmute::<*mut c_void, Option<$type>>(at) }
    }};
}

fn lowered(truth: c_long) -> c_long {
    match COUNT.load(Relaxed) {
        0 => truth,
        count => truth.min(count.into()),
    }
}

/// `sysconf(3)`: the number of online and configured CPUs is answered, the rest passed on.
#[unsafe(no_mangle)]
extern "C" fn sysconf(name: c_int) -> c_long {
    let Some(real) = next!(c"sysconf" as extern "C" fn(c_int) -> c_long) else {
        return -1;
    };
    let truth = real(name);
    if name == libc::_SC_NPROCESSORS_ONLN {
        lowered(truth)
    } else {
        truth
    }
}

/// `get_nprocs(3)`.
#[unsafe(no_mangle)]
extern "C" fn get_nprocs() -> c_int {
    let truth = next!(c"get_nprocs" as extern "C" fn() -> c_int).map_or(1, |real| real());
    c_int::try_from(lowered(truth.into())).unwrap_or(truth)
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

/// A mask as the caller holds it.
///
/// # Safety
/// `mask` must be valid for `size` bytes, as the affinity functions require.
unsafe fn bytes<'a>(mask: *mut u8, size: usize) -> &'a mut [u8] {
    // SAFETY: the caller's contract.
    unsafe { core::slice::from_raw_parts_mut(mask, size) }
}

fn get(real: Get, who: usize, size: usize, mask: *mut u8) -> c_int {
    let result = real(who, size, mask);
    let count = COUNT.load(Relaxed);
    if result == 0 && count > 0 && !mask.is_null() && !OWN_AFFINITY.load(Relaxed) {
        // SAFETY: the real function has just filled `size` bytes.
        narrow(unsafe { bytes(mask, size) }, count);
    }
    result
}

/// A mask that equals our answer is put back as the truth (programs save and restore it);
/// any other shows that the program places its threads itself.
fn set(real_set: Set, real_get: Get, who: usize, size: usize, mask: *const u8) -> c_int {
    let count = COUNT.load(Relaxed);
    if count == 0 || mask.is_null() || size > 8192 || OWN_AFFINITY.load(Relaxed) {
        return real_set(who, size, mask);
    }
    let mut truth = vec![0u8; size];
    if real_get(who, size, truth.as_mut_ptr()) == 0 {
        let mut answer = truth.clone();
        narrow(&mut answer, count);
        // SAFETY: the caller passes a mask of `size` bytes; it is only read.
        if unsafe { core::slice::from_raw_parts(mask, size) } == answer {
            return real_set(who, size, truth.as_ptr());
        }
    }
    OWN_AFFINITY.store(true, Relaxed);
    real_set(who, size, mask)
}

/// `sched_getaffinity(2)`.
#[unsafe(no_mangle)]
extern "C" fn sched_getaffinity(pid: usize, size: usize, mask: *mut u8) -> c_int {
    next!(c"sched_getaffinity" as Get).map_or(-1, |real| get(real, pid, size, mask))
}

/// `sched_setaffinity(2)`.
#[unsafe(no_mangle)]
extern "C" fn sched_setaffinity(pid: usize, size: usize, mask: *const u8) -> c_int {
    match (
        next!(c"sched_setaffinity" as Set),
        next!(c"sched_getaffinity" as Get),
    ) {
        (Some(s), Some(g)) => set(s, g, pid, size, mask),
        _ => -1,
    }
}

/// `pthread_getaffinity_np(3)`.
#[unsafe(no_mangle)]
extern "C" fn pthread_getaffinity_np(thread: usize, size: usize, mask: *mut u8) -> c_int {
    next!(c"pthread_getaffinity_np" as Get)
        .map_or(libc::ENOSYS, |real| get(real, thread, size, mask))
}

/// `pthread_setaffinity_np(3)`.
#[unsafe(no_mangle)]
extern "C" fn pthread_setaffinity_np(thread: usize, size: usize, mask: *const u8) -> c_int {
    match (
        next!(c"pthread_setaffinity_np" as Set),
        next!(c"pthread_getaffinity_np" as Get),
    ) {
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
    if crate::session::slot().is_some()
        && (1..=3).contains(&count)
        && !loads.is_null()
        && crate::runtime::is_runtime(caller)
    {
        let room = usize::try_from(count).unwrap_or(0);
        // SAFETY: the caller passes room for `count` values.
        unsafe { core::slice::from_raw_parts_mut(loads, room) }.fill(0.0);
        return count;
    }
    next!(c"getloadavg" as extern "C" fn(*mut f64, c_int) -> c_int)
        .map_or(-1, |real| real(loads, count))
}
