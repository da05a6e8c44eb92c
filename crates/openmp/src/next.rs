//! The definitions behind ours: what a function that we stand in front of really is.

use core::ffi::{CStr, c_void};

/// Looks a symbol up behind this library in the program's search order.
pub(crate) fn next_symbol(name: &CStr) -> *mut c_void {
    // SAFETY: a NUL-terminated name and a pseudo-handle that dlsym defines.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// `next!(c"name" as TYPE)`: the next definition of a libc function, looked up once.
macro_rules! next {
    ($name:literal as $type:ty) => {{
        use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};
        static AT: AtomicPtr<core::ffi::c_void> = AtomicPtr::new(core::ptr::null_mut());
        let mut at = AT.load(Relaxed);
        if at.is_null() {
            at = $crate::next::next_symbol($name);
            AT.store(at, Relaxed);
        }
        // SAFETY: libc's function of this name has this type; null is `None`.
        unsafe { core::mem::transmute::<*mut core::ffi::c_void, Option<$type>>(at) }
    }};
}
pub(crate) use next;
