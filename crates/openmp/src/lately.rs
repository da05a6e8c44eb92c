//! What libgomp heard of the calling thread's mask a few regions ago.
//!
//! With dynamic adjustment on, libgomp asks for that mask at each region (`gomp_dynamic_max_threads` in libgomp
//! config/linux/proc.c). The system call is most of what a region costs then: 0.4 of 0.9 us here, 2 of 4 us in a guest whose
//! instructions are emulated. A region that corefit sizes has its size; so libgomp hears what it heard before, for
//! [`REGIONS`] regions, as long as that has room for the size. So it is late to know of a mask that another process, or a bare system
//! call, made smaller, and corefit, which looks at masks itself, orders smaller teams then; of one that became larger, or that this
//! process set by the C library, it knows at once.

use core::cell::{Cell, RefCell};
use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A mask is good for so many regions after the one that asked for it.
const REGIONS: u32 = 15;
/// Bytes of the longest mask that is kept: 1024 CPUs, as many as glibc's `cpu_set_t` has.
const ROOM: usize = 128;

/// Masks that this process has set.
static CHANGES: AtomicU32 = AtomicU32::new(0);

/// A mask as it was answered.
struct Heard {
    mask: [u8; ROOM],
    size: usize,
    cpus: u32,
    changes: u32,
    left: u32,
}

thread_local! {
    /// libgomp's next question in this thread is about a region that corefit gave so many threads; 0: about something else.
    static BEGINS: Cell<u32> = const { Cell::new(0) };
    static HEARD: RefCell<Heard> =
        const { RefCell::new(Heard { mask: [0; ROOM], size: 0, cpus: 0, changes: 0, left: 0 }) };
}

/// This thread begins a region that corefit sizes, with dynamic adjustment on; 0: any other.
pub(crate) fn region_begins(team: u32) {
    BEGINS.set(team);
}

/// This process has changed a mask.
pub(crate) fn changed() {
    CHANGES.fetch_add(1, Relaxed);
}

/// Has the calling thread's mask of `size` bytes filled in at `mask` by `ask`, or as lately where a region begins that corefit sizes.
/// To be called where libgomp asks only.
pub(crate) fn or_ask(size: usize, mask: *mut u8, ask: impl FnOnce() -> c_int) -> c_int {
    let team = BEGINS.replace(0);
    if team == 0 || size > ROOM || mask.is_null() {
        return ask();
    }
    HEARD.with(|heard| {
        let Ok(mut heard) = heard.try_borrow_mut() else { return ask() };
        let changes = CHANGES.load(Relaxed);
        if heard.left > 0 && heard.cpus >= team && (heard.size, heard.changes) == (size, changes) {
            heard.left -= 1;
            // SAFETY: the caller passes room for `size` bytes, and there are no more of them than we keep.
            unsafe { heard.mask.as_ptr().copy_to_nonoverlapping(mask, size) };
            return 0;
        }
        let result = ask();
        if result == 0 {
            // SAFETY: as above; `ask` has just filled them.
            unsafe { mask.copy_to_nonoverlapping(heard.mask.as_mut_ptr(), size) };
            heard.cpus = heard.mask[..size].iter().map(|byte| byte.count_ones()).sum();
            (heard.size, heard.changes, heard.left) = (size, changes, REGIONS);
        }
        result
    })
}
