//! What a forked child has to know: which locks had a line when the process forked.
//!
//! Only the forking thread lives on in the child. Tickets of all the others would keep a lock's line
//! waiting for ever, so the child empties those lines; a lock that was held stays held, as with any
//! other mutex. Every thread keeps, while it waits, its lock's address in a record that the child can
//! find.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use crate::place::Place;
use crate::word::HELD;

/// One thread's record. Records are never freed; a thread that ends leaves its to the next one.
struct Record {
    lock: AtomicUsize,
    taken: AtomicBool,
    next: *const Record,
}

static RECORDS: AtomicPtr<Record> = AtomicPtr::new(ptr::null_mut());
static HANDLER: AtomicBool = AtomicBool::new(false);

thread_local! {
    static MINE: Mine = const { Mine(Cell::new(ptr::null())) };
}

struct Mine(Cell<*const Record>);

impl Drop for Mine {
    fn drop(&mut self) {
        // SAFETY: records are never freed.
        if let Some(record) = unsafe { self.0.get().as_ref() } {
            record.taken.store(false, Ordering::Release);
        }
        self.0.set(ptr::null());
    }
}

/// This thread waits for a lock, as long as the value lives.
pub(crate) struct Waiting {
    record: &'static Record,
    /// What it waited for already: a signal handler may lock, too.
    before: usize,
}

impl Waiting {
    /// To be called before a ticket is drawn. `None` late in a thread's end, when its record is gone.
    pub(crate) fn begin(lock: usize) -> Option<Waiting> {
        let record = MINE.try_with(|mine| {
            if mine.0.get().is_null() {
                mine.0.set(record());
            }
            mine.0.get()
        });
        // SAFETY: a record is never freed.
        let record = unsafe { record.ok()?.as_ref()? };
        let before = record.lock.swap(lock, Ordering::Release);
        Some(Waiting { record, before })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.record.lock.store(self.before, Ordering::Release);
    }
}

/// A record that no living thread has.
fn record() -> *const Record {
    if !HANDLER.swap(true, Ordering::Relaxed) {
        // SAFETY: the handler is a function of this library, which stays loaded as long as locks are used.
        unsafe { libc::pthread_atfork(None, None, Some(child)) };
    }
    let mut record: *const Record = RECORDS.load(Ordering::Acquire);
    // SAFETY: records are never freed, and `next` never changes once a record is in the list.
    while let Some(r) = unsafe { record.as_ref() } {
        if !r.taken.swap(true, Ordering::Acquire) {
            return record;
        }
        record = r.next;
    }
    let new = Record { lock: AtomicUsize::new(0), taken: AtomicBool::new(true), next: ptr::null() };
    // Not from the allocator, which may be waiting for the very lock.
    let size = std::mem::size_of::<Record>();
    // SAFETY: a new private mapping of the record's size; a page is aligned well enough.
    let new = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = libc::mmap(ptr::null_mut(), size, protection, kind, -1, 0);
        if page == libc::MAP_FAILED {
            return ptr::null();
        }
        page.cast::<Record>().write(new);
        page.cast::<Record>()
    };
    let mut first = RECORDS.load(Ordering::Relaxed);
    loop {
        // SAFETY: nobody else knows the record yet.
        unsafe { (*new).next = first };
        match RECORDS.compare_exchange_weak(first, new, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return new,
            Err(other) => first = other,
        }
    }
}

/// In the child, which has one thread: the others' tickets are void.
extern "C" fn child() {
    let mine = MINE.try_with(|mine| mine.0.get()).unwrap_or(ptr::null());
    let mut record: *const Record = RECORDS.load(Ordering::Acquire);
    // SAFETY: as in `record`.
    while let Some(r) = unsafe { record.as_ref() } {
        if record != mine {
            empty_line(r.lock.swap(0, Ordering::Relaxed));
            r.taken.store(false, Ordering::Relaxed);
        }
        record = r.next;
    }
    Place::shared().given_up.drain(empty_line);
}

fn empty_line(lock: usize) {
    if lock != 0 {
        // SAFETY: somebody waited for this lock when the process forked, so its memory was there, and
        // the child has a copy of it.
        let word = unsafe { AtomicU32::from_ptr(lock as *mut u32) };
        word.fetch_and(HELD, Ordering::Relaxed);
    }
}
