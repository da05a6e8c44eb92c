//! One face for all locks: the functions of a pthread mutex on the bytes of one, called through pointers, as a C
//! program calls the C library's or, preloaded, ours. glibc's are its own functions, without anything around them.

use std::cell::UnsafeCell;
use std::ffi::{CString, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libc::pthread_mutex_t;
use lock_api::RawMutex;

use crate::{Policy, Preset};

type Function = unsafe extern "C" fn(*mut pthread_mutex_t) -> c_int;

/// A kind of lock: what a free one holds, and its two functions.
#[derive(Clone, Copy, Debug)]
pub struct Face {
    free: fn() -> pthread_mutex_t,
    lock: Function,
    unlock: Function,
}

impl Face {
    /// glibc's mutex, `PTHREAD_MUTEX_INITIALIZER`.
    pub const GLIBC: Face = Face {
        free: || libc::PTHREAD_MUTEX_INITIALIZER,
        lock: libc::pthread_mutex_lock,
        unlock: libc::pthread_mutex_unlock,
    };

    /// glibc's mutex that spins up to 100 times first, `PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP`.
    pub const ADAPTIVE: Face = Face { free: || libc::PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP, ..Face::GLIBC };

    /// A lock of Rust's.
    #[must_use]
    pub const fn of<R: RawMutex>() -> Face {
        const {
            assert!(size_of::<R>() <= size_of::<pthread_mutex_t>());
            assert!(align_of::<R>() <= align_of::<pthread_mutex_t>());
        }
        Face { free: free::<R>, lock: lock::<R>, unlock: unlock::<R> }
    }

    /// The functions of `libcorefit_lock.so`, which stays loaded but replaces nobody's.
    ///
    /// # Errors
    /// A sentence, if the library cannot be loaded or lacks a function.
    pub fn of_library(path: &Path) -> Result<Face, String> {
        let name = path.display();
        let path = CString::new(path.as_os_str().as_bytes()).map_err(|e| format!("{name}: {e}"))?;
        // SAFETY: a NUL-terminated path; what the library does when it is loaded is ours.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err(format!("{name}: cannot be loaded"));
        }
        let function = |what: &std::ffi::CStr| {
            // SAFETY: a loaded library, and a NUL-terminated name.
            let at: *mut c_void = unsafe { libc::dlsym(library, what.as_ptr()) };
            // SAFETY: a function of this name has this type, in whichever library it is.
            let function = unsafe { std::mem::transmute::<*mut c_void, Option<Function>>(at) };
            function.ok_or_else(|| format!("{name}: lacks {}", what.to_string_lossy()))
        };
        let (lock, unlock) = (function(c"pthread_mutex_lock")?, function(c"pthread_mutex_unlock")?);
        Ok(Face { lock, unlock, ..Face::GLIBC })
    }
}

fn free<R: RawMutex>() -> pthread_mutex_t {
    let mut memory = libc::PTHREAD_MUTEX_INITIALIZER;
    // SAFETY: `Face::of` has checked size and alignment; the bytes are nobody else's.
    unsafe { (&raw mut memory).cast::<R>().write(R::INIT) };
    memory
}

unsafe extern "C" fn lock<R: RawMutex>(at: *mut pthread_mutex_t) -> c_int {
    // SAFETY: `free` has put a lock there, which is only used in shared ways.
    unsafe { &*at.cast::<R>() }.lock();
    0
}

unsafe extern "C" fn unlock<R: RawMutex>(at: *mut pthread_mutex_t) -> c_int {
    // SAFETY: as above, and the caller has the lock.
    unsafe { (*at.cast::<R>()).unlock() };
    0
}

/// A value with a lock that is called through its face. The two share lines of cache, the pointers do not.
#[derive(Debug)]
pub struct Guarded<T> {
    face: Face,
    both: Line<T>,
}

#[derive(Debug)]
#[repr(C, align(128))]
struct Line<T> {
    mutex: UnsafeCell<pthread_mutex_t>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only used with the lock, and all faces are those of locks that exclude.
unsafe impl<T: Send> Sync for Guarded<T> {}
// SAFETY: nothing in it belongs to a thread while nobody uses it.
unsafe impl<T: Send> Send for Guarded<T> {}

impl<T> Guarded<T> {
    /// Nobody has the lock.
    pub fn new(face: Face, value: T) -> Guarded<T> {
        let both = Line { mutex: UnsafeCell::new((face.free)()), value: UnsafeCell::new(value) };
        Guarded { face, both }
    }

    /// Works on the value with the lock.
    #[inline(always)]
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        let mutex = self.both.mutex.get();
        // SAFETY: a lock of this kind that stays where it is while it is borrowed; it is released once.
        unsafe {
            (self.face.lock)(mutex);
            let result = work(&mut *self.both.value.get());
            (self.face.unlock)(mutex);
            result
        }
    }
}

/// As the default, with another bound: the head may be passed `B` times.
#[derive(Debug)]
pub struct Window<const B: u32>;

impl<const B: u32> Preset for Window<B> {
    const POLICY: Policy = Policy { bypasses: B, ..Policy::DEFAULT };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RawMutex;

    /// What is no number cannot be added to at once by two.
    fn count(face: Face) -> Vec<usize> {
        let guarded = Guarded::new(face, vec![]);
        std::thread::scope(|scope| {
            for n in 0..3 {
                let guarded = &guarded;
                scope.spawn(move || (0..200).for_each(|_| guarded.with(|all| all.push(n))));
            }
        });
        let mut all = guarded.with(std::mem::take);
        all.sort_unstable();
        all
    }

    #[test]
    fn every_face_excludes_and_lets_everybody_on() {
        let _alone = crate::stats::ALONE.lock();
        let expected: Vec<usize> = (0..600).map(|n| n / 200).collect();
        let ours = Face::of::<RawMutex<crate::Default>>();
        let window = Face::of::<RawMutex<Window<1>>>();
        for face in [Face::GLIBC, Face::ADAPTIVE, ours, window, Face::of::<super::super::McsPark>()] {
            assert_eq!(count(face), expected);
        }
    }

    #[test]
    fn a_library_without_the_functions_is_refused() {
        let error = Face::of_library(Path::new("/no/such/library.so")).unwrap_err();
        assert_eq!(error, "/no/such/library.so: cannot be loaded");
    }
}
