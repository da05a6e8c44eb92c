//! This process's link to corefit: the mapped page, and the slot that it claims.

use core::ffi::{CStr, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};

use crate::page::{self, ANSWER_WAIT_MS, MAGIC, PAGE_VARIABLE, Page, Slot, VERSION, word};
use crate::runtime::Runtime;

/// The page, or null in a process that corefit did not start.
static PAGE: AtomicPtr<Page> = AtomicPtr::new(ptr::null_mut());
/// The slot of this process, or null.
static SLOT: AtomicPtr<Slot> = AtomicPtr::new(ptr::null_mut());
/// What stands in for the slot's word before there is a slot.
static LOCAL: AtomicU32 = AtomicU32::new(0);
/// Where the word is read: `LOCAL` (as null) or the slot's.
static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());
/// One thread registers; the others go on with the word at hand.
static REGISTERING: AtomicU32 = AtomicU32::new(0);

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// Runs when the library is loaded, before the program's own constructors.
extern "C" fn start() {
    if let Some(page) = map() {
        PAGE.store(page, Release);
        LOCAL.store(word::REGISTER, Relaxed);
        crate::counts::start(page_ref(page).nprocs.load(Relaxed));
        // SAFETY: registers a plain function; no other arguments.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    }
}

/// In the child of a fork the slot is the parent's: begin anew.
extern "C" fn forked() {
    WORD.store(ptr::null_mut(), Relaxed);
    SLOT.store(ptr::null_mut(), Relaxed);
    REGISTERING.store(0, Relaxed);
    LOCAL.store(word::REGISTER, Relaxed);
    crate::quiet::forked();
}

fn page_ref(page: *mut Page) -> &'static Page {
    // SAFETY: a pointer from `map`, which is never unmapped; all fields that change are atomics.
    unsafe { &*page }
}

/// The page, once mapped.
pub(crate) fn page() -> Option<&'static Page> {
    let page = PAGE.load(Acquire);
    (!page.is_null()).then(|| page_ref(page))
}

/// The slot of this process, once claimed.
pub(crate) fn slot() -> Option<&'static Slot> {
    let slot = SLOT.load(Acquire);
    // SAFETY: points into the page, which is never unmapped.
    (!slot.is_null()).then(|| unsafe { &*slot })
}

/// The word: the one relaxed load that each region costs while nothing is short
/// (the pointer to it is constant after registration).
#[inline]
pub(crate) fn current_word() -> u32 {
    let at = WORD.load(Relaxed);
    if at.is_null() {
        LOCAL.load(Relaxed)
    } else {
        // SAFETY: points to the word of a slot in the page, which is never unmapped.
        unsafe { (*at).load(Relaxed) }
    }
}

/// Maps the page that the environment names; `None` leaves the library inert.
fn map() -> Option<*mut Page> {
    let mut name = [0u8; 32];
    name[..PAGE_VARIABLE.len()].copy_from_slice(PAGE_VARIABLE.as_bytes());
    // SAFETY: `name` is a NUL-terminated buffer.
    let value = unsafe { libc::getenv(name.as_ptr().cast()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: getenv returned a NUL-terminated string, read before anybody can change it.
    let value = unsafe { CStr::from_ptr(value) }.to_str().ok()?;
    let (path, nonce) = value.rsplit_once(':')?;
    let nonce = u64::from_str_radix(nonce, 16).ok()?;
    let mut buffer = [0u8; 128];
    if path.len() >= buffer.len() {
        return None;
    }
    buffer[..path.len()].copy_from_slice(path.as_bytes());
    let size = size_of::<Page>();
    // SAFETY: `buffer` is NUL-terminated; the descriptor is ours and closed below.
    let fd = unsafe { libc::open(buffer.as_ptr().cast(), libc::O_RDWR | libc::O_CLOEXEC) };
    if fd < 0 {
        return None;
    }
    // SAFETY: an all-zero stat is a valid value to be overwritten.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: a valid descriptor and a valid buffer.
    let sized =
        unsafe { libc::fstat(fd, &raw mut stat) } == 0 && usize::try_from(stat.st_size) == Ok(size);
    let at = if sized {
        // SAFETY: a fresh shared mapping of a file that is exactly as long as the page.
        unsafe {
            libc::mmap(
                ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd,
                0,
            )
        }
    } else {
        libc::MAP_FAILED
    };
    // SAFETY: `fd` was opened above and is used no further.
    unsafe { libc::close(fd) };
    if at == libc::MAP_FAILED {
        return None;
    }
    let page = at.cast::<Page>();
    let header = page_ref(page);
    if header.magic == MAGIC && header.version == VERSION && header.nonce == nonce {
        Some(page)
    } else {
        // SAFETY: unmaps exactly what was mapped above; nobody has a reference to it.
        unsafe { libc::munmap(at, size) };
        None
    }
}

/// Claims a slot at the first region of this process and waits for corefit's answer.
/// Returns the word to go by.
#[cold]
pub(crate) fn register(rt: &'static Runtime, requested: u32) -> u32 {
    if REGISTERING.swap(1, AcqRel) != 0 {
        return 0; // another thread is at it: this region runs as the program asks
    }
    let Some(slot) = page().and_then(|page| claim(page, rt, requested)) else {
        LOCAL.store(0, Relaxed);
        return 0;
    };
    SLOT.store(ptr::from_ref(slot).cast_mut(), Release);
    WORD.store(ptr::from_ref(&slot.word).cast_mut(), Relaxed);
    if rt.kind == page::runtime::GOMP {
        crate::quiet::start_service(rt, slot);
    }
    slot.word.load(Relaxed)
}

fn claim(page: &'static Page, rt: &Runtime, requested: u32) -> Option<&'static Slot> {
    // SAFETY: getpid cannot fail.
    let me = unsafe { libc::getpid() }.cast_unsigned();
    let again = page.slots.iter().find(|s| s.pid.load(Acquire) == me);
    let slot = again.or_else(|| {
        page.slots
            .iter()
            .find(|s| s.pid.compare_exchange(0, me, AcqRel, Relaxed).is_ok())
    })?;
    let policy = page.policy.load(Relaxed);
    slot.answered.store(0, Relaxed);
    slot.requested.store(requested, Relaxed);
    slot.team.store(requested, Relaxed);
    slot.dynamic.store(u32::from(rt.dynamic()), Relaxed);
    slot.runtimes.store(rt.kind, Relaxed);
    slot.procs.store(rt.procs(), Relaxed);
    slot.regions.store(0, Relaxed);
    slot.resized.store(0, Relaxed);
    slot.word.store(policy & !word::ASK, Release);
    page.registrations.fetch_add(1, Release);
    futex_wake(&page.registrations);
    if policy & word::ASK != 0 {
        futex_wait(&slot.answered, 0, Some(ANSWER_WAIT_MS));
    }
    Some(slot)
}

/// Sleeps while `*at == value`, at most `limit_ms` (for ever when `None`).
pub(crate) fn futex_wait(at: &AtomicU32, value: u32, limit_ms: Option<u64>) {
    let limit = limit_ms.map(|ms| libc::timespec {
        tv_sec: (ms / 1000).cast_signed(),
        tv_nsec: (ms % 1000 * 1_000_000).cast_signed(),
    });
    let limit: *const libc::timespec = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: a valid futex word and a valid (or no) time; shared, as the page is.
    unsafe { libc::syscall(libc::SYS_futex, at.as_ptr(), libc::FUTEX_WAIT, value, limit) };
}

fn futex_wake(at: &AtomicU32) {
    // SAFETY: a valid futex word.
    unsafe { libc::syscall(libc::SYS_futex, at.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// Looks a symbol up behind this library in the program's search order.
pub(crate) fn next_symbol(name: &CStr) -> *mut c_void {
    // SAFETY: a NUL-terminated name and a pseudo-handle that dlsym defines.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}
