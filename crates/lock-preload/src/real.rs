//! The C library's own functions, for what is not ours.

use core::ffi::{CStr, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

/// One function behind ours in the program's search order; looked up once.
pub(crate) struct Real {
    name: &'static CStr,
    version: Option<&'static CStr>,
    at: AtomicPtr<c_void>,
}

impl Real {
    pub(crate) const fn new(name: &'static CStr, version: Option<&'static CStr>) -> Real {
        Real { name, version, at: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Its address. Ends the process if there is none: no C library that this one links with lacks it.
    #[inline]
    pub(crate) fn address(&self) -> *mut c_void {
        let at = self.at.load(Ordering::Relaxed);
        if at.is_null() { self.look_up() } else { at }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        // SAFETY: NUL-terminated texts and a pseudo-handle that dlsym defines.
        let at = unsafe {
            match self.version {
                Some(version) => libc::dlvsym(libc::RTLD_NEXT, self.name.as_ptr(), version.as_ptr()),
                None => libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()),
            }
        };
        if at.is_null() {
            say("the C library lacks a function that it stands in front of\n");
            // SAFETY: always allowed.
            unsafe { libc::abort() };
        }
        self.at.store(at, Ordering::Relaxed);
        at
    }
}

/// Tells the user a line.
pub(crate) fn say(line: &str) {
    for text in ["libcorefit_lock.so: ", line] {
        // SAFETY: a text of the stated length.
        unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
    }
}

/// `real!(name(argument: type, ...) -> type)`: calls the C library's function; with `@ c"VERSION"`, this
/// version of it.
macro_rules! real {
    ($name:ident ($($value:expr => $type:ty),*) $(@ $version:literal)?) => {{
        static REAL: $crate::real::Real = $crate::real::Real::new(
            // SAFETY: the text ends with its only NUL.
            unsafe { core::ffi::CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes()) },
            $crate::real::version!($($version)?),
        );
        // SAFETY: the C library's function of this name has this type, and unwinds when its thread is
        // cancelled in it; its arguments are the caller's.
        unsafe {
            core::mem::transmute::<*mut core::ffi::c_void, unsafe extern "C-unwind" fn($($type),*) -> core::ffi::c_int>(
                REAL.address(),
            )($($value),*)
        }
    }};
}
macro_rules! version {
    () => {
        None
    };
    ($version:literal) => {
        Some($version)
    };
}
pub(crate) use {real, version};
