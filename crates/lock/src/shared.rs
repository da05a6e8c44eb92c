//! Counters in memory that `corefit run` makes and the programs that it runs map: both sides.
//!
//! The memory is anonymous and belongs to the corefit process; an environment variable names it as
//! `/proc/PID/fd/N:NONCE`. A program that cannot map it locks without counting.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;

use crate::stats::{Counters, Event, Stats, count_in};

/// Names the memory.
const VARIABLE: &CStr = c"COREFIT_LOCK_STATS";
/// First word of memory that is ours, with the version of its layout.
const MAGIC: u64 = 0x636f_7265_6c6f_6301;
/// Longest path of the memory, with its NUL.
const PATH_ROOM: usize = 128;

#[repr(C)]
struct Page {
    magic: u64,
    nonce: u64,
    /// 0: only programs are counted, and nothing else.
    counting: u64,
    counters: Counters,
}

/// The memory, as its maker has it.
#[derive(Debug)]
pub struct SharedCounters {
    page: *mut Page,
    memory: File,
}

// SAFETY: stays mapped while the value lives; what changes is atomic.
unsafe impl Send for SharedCounters {}
// SAFETY: as above.
unsafe impl Sync for SharedCounters {}

impl SharedCounters {
    /// Counters at zero. Without `counting`, programs only say that they are there.
    ///
    /// # Errors
    /// When the kernel gives no anonymous memory file.
    pub fn create(counting: bool) -> io::Result<SharedCounters> {
        // SAFETY: a NUL-terminated name; the descriptor is owned by the File right away.
        let memory = unsafe {
            let fd = libc::memfd_create(c"corefit-lock".as_ptr(), libc::MFD_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            File::from_raw_fd(fd)
        };
        memory.set_len(size_of::<Page>() as u64)?;
        let page = map(memory.as_raw_fd()).ok_or_else(io::Error::last_os_error)?;
        let mut nonce = [0; 8];
        // SAFETY: fills a buffer of the stated length; a short answer only weakens the nonce. The page is
        // fresh, zeroed and ours alone until the environment names it.
        unsafe {
            libc::getrandom(nonce.as_mut_ptr().cast(), nonce.len(), 0);
            (*page).magic = MAGIC;
            (*page).nonce = u64::from_ne_bytes(nonce);
            (*page).counting = u64::from(counting);
        }
        Ok(SharedCounters { page, memory })
    }

    /// The environment variable by which programs find the counters.
    #[must_use]
    pub fn variable(&self) -> (&'static str, String) {
        let path = format!("/proc/{}/fd/{}", std::process::id(), self.memory.as_raw_fd());
        // SAFETY: mapped for the life of `self`; the nonce is not written any more.
        let nonce = unsafe { (*self.page).nonce };
        (VARIABLE.to_str().unwrap_or_default(), format!("{path}:{nonce:x}"))
    }

    /// What all the programs have counted until now.
    #[must_use]
    pub fn sum(&self) -> Stats {
        // SAFETY: mapped for the life of `self`; what changes is atomic.
        unsafe { &(*self.page).counters }.sum()
    }
}

impl Drop for SharedCounters {
    fn drop(&mut self) {
        // SAFETY: unmaps what `create` mapped; no reference outlives `self`.
        unsafe { libc::munmap(self.page.cast(), size_of::<Page>()) };
    }
}

/// The program's side: counts in the memory that the environment names, if it names any.
pub fn attach() {
    if let Some(page) = find() {
        page.counters.add(Event::Process);
        if page.counting != 0 {
            count_in(Some(&page.counters));
        }
    }
}

/// Maps the memory that the environment names. Nothing here allocates: a face below the allocator calls it.
fn find() -> Option<&'static Page> {
    // SAFETY: the name is NUL-terminated; the value is read before anybody can change it.
    let value = unsafe {
        let value = libc::getenv(VARIABLE.as_ptr());
        if value.is_null() {
            return None;
        }
        CStr::from_ptr(value).to_str().ok()?
    };
    let (path, nonce) = value.rsplit_once(':')?;
    let nonce = u64::from_str_radix(nonce, 16).ok()?;
    let mut room = [0_u8; PATH_ROOM];
    room[..PATH_ROOM - 1].get_mut(..path.len())?.copy_from_slice(path.as_bytes());
    // SAFETY: a NUL-terminated path; the descriptor is ours and closed below; an all-zero stat is a valid
    // value to be overwritten.
    let page = unsafe {
        let fd = libc::open(room.as_ptr().cast(), libc::O_RDWR | libc::O_CLOEXEC);
        if fd < 0 {
            return None;
        }
        let mut stat: libc::stat = std::mem::zeroed();
        let known = libc::fstat(fd, &raw mut stat) == 0;
        let page =
            (known && usize::try_from(stat.st_size) == Ok(size_of::<Page>())).then(|| map(fd)).flatten();
        libc::close(fd);
        page?
    };
    // SAFETY: mapped just now, as long as a page, and never unmapped if it is ours.
    let found = unsafe { &*page };
    if (found.magic, found.nonce) == (MAGIC, nonce) {
        return Some(found);
    }
    // SAFETY: unmaps what was mapped above; `found` is not used any more.
    unsafe { libc::munmap(page.cast(), size_of::<Page>()) };
    None
}

fn map(fd: i32) -> Option<*mut Page> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh shared mapping of a file that is as long as the page.
    let at = unsafe { libc::mmap(ptr::null_mut(), size_of::<Page>(), access, libc::MAP_SHARED, fd, 0) };
    (at != libc::MAP_FAILED).then_some(at.cast())
}
