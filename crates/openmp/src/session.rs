//! This process's link to corefit: the mapped page, and the slot that it claims.

use core::ffi::CStr;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering::*};
use std::sync::OnceLock;

use crate::counts;
use crate::page::{ANSWER_WAIT_MS, MAGIC, PAGE_VARIABLE, Page, Slot, VERSION, word};
use crate::runtime::Runtime;

/// The page, or null in a process that corefit did not start.
static PAGE: AtomicPtr<Page> = AtomicPtr::new(ptr::null_mut());
/// The slot of this process, or null.
static SLOT: AtomicPtr<Slot> = AtomicPtr::new(ptr::null_mut());
/// What stands in for the slot's word while there is no slot.
static LOCAL: AtomicU32 = AtomicU32::new(0);
/// Where the word is read: in the slot, or `LOCAL`.
pub(crate) static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new(LOCAL_WORD);
const LOCAL_WORD: *mut AtomicU32 = ptr::from_ref(&LOCAL).cast_mut();
/// One thread registers; the others go on with the word at hand.
static REGISTERING: AtomicBool = AtomicBool::new(false);
/// [`start`] has run.
static STARTED: AtomicBool = AtomicBool::new(false);
/// Where the page was found.
static ORIGIN: OnceLock<Origin> = OnceLock::new();

/// Where a page comes from.
struct Origin {
    /// Its path below corefit's `/proc/PID/fd`, NUL-terminated.
    path: [u8; PATH_ROOM],
    /// Device and inode of the file.
    file: (u64, u64),
    /// Device of the `/proc`.
    proc: u64,
}

/// Longest path of a page, with its NUL.
const PATH_ROOM: usize = 128;

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

unsafe extern "C" {
    static environ: *const *const core::ffi::c_char;
}

/// Runs when the library is loaded, or at the first question about CPUs: libraries that the
/// program needs, libgomp among them, are initialised before us.
pub(crate) extern "C" fn start() {
    if STARTED.load(Relaxed) {
        return;
    }
    // SAFETY: the C library's own variable. It is null until that has been initialised, which
    // libraries marked "initfirst" do not wait for: nothing can be known yet.
    let too_early = unsafe { (&raw const environ).read_volatile().is_null() };
    if too_early || STARTED.swap(true, AcqRel) {
        return;
    }
    keeping_errno(|| {
        counts::look_up();
        attach();
    });
}

/// Does what the program did not ask for, so that for the program nothing failed.
pub(crate) fn keeping_errno<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: the calling thread's own variable.
    let errno = unsafe { *libc::__errno_location() };
    let result = work();
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    result
}

/// Maps the page, if there is one.
fn attach() {
    if let Some(page) = map() {
        PAGE.store(page, Release);
        LOCAL.store(word::REGISTER, Relaxed);
        counts::start(page_ref(page).nprocs.load(Relaxed));
        // SAFETY: registers a plain function; no other arguments.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    }
}

/// In the child of a fork the slot is the parent's: begin anew.
extern "C" fn forked() {
    WORD.store(LOCAL_WORD, Relaxed);
    SLOT.store(ptr::null_mut(), Relaxed);
    REGISTERING.store(false, Relaxed);
    LOCAL.store(word::REGISTER, Relaxed);
    crate::watch::forked();
    crate::rotate::forked();
    crate::entry::forked();
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
    // SAFETY: points into the page, which is never unmapped.
    unsafe { SLOT.load(Acquire).as_ref() }
}

/// The word: the one relaxed load that each region costs while nothing is short
/// (the pointer to it is constant after registration).
#[inline]
pub(crate) fn current_word() -> u32 {
    // SAFETY: points to `LOCAL` or to the word of a slot in the page, which is never unmapped.
    unsafe { (*WORD.load(Relaxed)).load(Relaxed) }
}

/// Maps the page that the environment names; `None` leaves the library inert.
fn map() -> Option<*mut Page> {
    let (path, nonce) = name()?;
    let size = size_of::<Page>();
    // SAFETY: `path` is NUL-terminated; the descriptor is ours and closed below.
    let fd = unsafe { libc::open(path.as_ptr().cast(), libc::O_RDWR | libc::O_CLOEXEC) };
    if fd < 0 {
        return None;
    }
    // SAFETY: an all-zero stat is a valid value to be overwritten.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: a valid descriptor and a valid buffer.
    let known = unsafe { libc::fstat(fd, &raw mut stat) } == 0;
    let at = if known && usize::try_from(stat.st_size) == Ok(size) {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh shared mapping of a file that is exactly as long as the page.
        unsafe { libc::mmap(ptr::null_mut(), size, access, libc::MAP_SHARED, fd, 0) }
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
        let proc = file(c"/proc").map_or(0, |(device, _)| device);
        let _ = ORIGIN.set(Origin { path, file: (stat.st_dev, stat.st_ino), proc });
        Some(page)
    } else {
        // SAFETY: unmaps exactly what was mapped above; nobody has a reference to it.
        unsafe { libc::munmap(at, size) };
        None
    }
}

/// The path (NUL-terminated) and the nonce of the page that the environment names.
fn name() -> Option<([u8; PATH_ROOM], u64)> {
    let mut variable = [0u8; 32];
    variable[..PAGE_VARIABLE.len()].copy_from_slice(PAGE_VARIABLE.as_bytes());
    // SAFETY: `variable` is NUL-terminated.
    let value = unsafe { libc::getenv(variable.as_ptr().cast()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: getenv returned a NUL-terminated text, read before anybody can change it.
    let value = unsafe { CStr::from_ptr(value) }.to_str().ok()?;
    let (path, nonce) = value.rsplit_once(':')?;
    let nonce = u64::from_str_radix(nonce, 16).ok()?;
    let mut room = [0u8; PATH_ROOM];
    if path.len() >= PATH_ROOM {
        return None;
    }
    room[..path.len()].copy_from_slice(path.as_bytes());
    Some((room, nonce))
}

/// Device and inode of a file.
fn file(path: &CStr) -> Option<(u64, u64)> {
    // SAFETY: an all-zero stat is a valid value to be overwritten.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: a NUL-terminated path and a valid buffer.
    (unsafe { libc::stat(path.as_ptr(), &raw mut stat) } == 0).then_some((stat.st_dev, stat.st_ino))
}

/// Our process id as corefit sees it, which in a container started by the program is not what
/// getpid says. The page was found below corefit's own `/proc`, so the link there tells; not if
/// another `/proc` has been mounted since.
fn pid() -> Option<u32> {
    if file(c"/proc")?.0 != ORIGIN.get()?.proc {
        return None;
    }
    let mut link = [0u8; 16];
    // SAFETY: a NUL-terminated path and a buffer of the stated length.
    let length = unsafe { libc::readlink(c"/proc/self".as_ptr(), link.as_mut_ptr().cast(), link.len()) };
    core::str::from_utf8(link.get(..usize::try_from(length).ok()?)?).ok()?.parse().ok()
}

/// Whether corefit has died without saying so (it publishes zero when it ends): then its last
/// word must not stand for ever. What cannot be looked at is taken to live.
pub(crate) fn owner_is_gone() -> bool {
    let Some(origin) = ORIGIN.get() else {
        return false;
    };
    let Ok(path) = CStr::from_bytes_until_nul(&origin.path) else {
        return false;
    };
    match file(path) {
        Some(file) => file != origin.file,
        None => std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOENT),
    }
}

/// Goes on as if corefit had never been there.
pub(crate) fn leave() {
    LOCAL.store(0, Relaxed);
    WORD.store(LOCAL_WORD, Relaxed);
}

/// Claims a slot at the first region of this process and waits for corefit's answer.
/// Returns the word to go by.
#[cold]
pub(crate) fn register(rt: &'static Runtime, requested: u32) -> u32 {
    if REGISTERING.swap(true, AcqRel) {
        return 0; // another thread is at it: this region runs as the program asks
    }
    let page = page().filter(|_| !owner_is_gone());
    let Some(slot) = page.and_then(|page| claim(page, rt, requested)) else {
        LOCAL.store(0, Relaxed);
        return 0;
    };
    SLOT.store(ptr::from_ref(slot).cast_mut(), Release);
    WORD.store(ptr::from_ref(&slot.word).cast_mut(), Relaxed);
    slot.word.load(Relaxed)
}

fn claim(page: &'static Page, rt: &Runtime, requested: u32) -> Option<&'static Slot> {
    let me = pid()?;
    let again = page.slots.iter().find(|s| s.pid.load(Acquire) == me);
    let slot = again.or_else(|| {
        let free = |s: &&Slot| s.pid.compare_exchange(0, me, AcqRel, Relaxed).is_ok();
        page.slots.iter().find(free)
    });
    let Some(slot) = slot else {
        page.refused.fetch_add(1, Relaxed);
        return None;
    };
    let policy = page.policy.load(Relaxed);
    slot.serial.fetch_add(1, AcqRel);
    slot.answered.store(0, Relaxed);
    slot.requested.store(requested, Relaxed);
    slot.team.store(requested, Relaxed);
    slot.dynamic.store(u32::from(rt.dynamic()), Relaxed);
    slot.runtimes.store(rt.kind, Relaxed);
    slot.procs.store(rt.procs(), Relaxed);
    slot.regions.store(0, Relaxed);
    slot.resized.store(0, Relaxed);
    slot.moves.store(0, Relaxed);
    slot.bound.store(0, Relaxed);
    slot.word.store(policy & !word::ASK, Release);
    page.registrations.fetch_add(1, Release);
    futex_wake(&page.registrations);
    if policy & word::ASK != 0 {
        futex_wait(&slot.answered, 0, ANSWER_WAIT_MS);
    }
    Some(slot)
}

/// Notes that this process uses another runtime, too.
pub(crate) fn note_runtime(slot: &Slot, rt: &Runtime) {
    if slot.runtimes.load(Relaxed) & rt.kind == 0 {
        slot.runtimes.fetch_or(rt.kind, Relaxed);
    }
}

/// Sleeps while `*at == value`, at most `limit_ms`.
pub(crate) fn futex_wait(at: &AtomicU32, value: u32, limit_ms: u64) {
    let limit = libc::timespec {
        tv_sec: (limit_ms / 1000).cast_signed(),
        tv_nsec: (limit_ms % 1000 * 1_000_000).cast_signed(),
    };
    // SAFETY: a valid futex word and a valid time; shared, as the page is.
    unsafe { libc::syscall(libc::SYS_futex, at.as_ptr(), libc::FUTEX_WAIT, value, &raw const limit) };
}

/// Wakes all that sleep on `at`.
pub(crate) fn futex_wake(at: &AtomicU32) {
    // SAFETY: a valid futex word.
    unsafe { libc::syscall(libc::SYS_futex, at.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
