//! Which OpenMP runtime a call was meant for.
//!
//! One process can hold several (a Python with NumPy, scikit-learn and PyTorch often has
//! three, under names like `libgomp-a34b3233.so.1`, opened with `RTLD_LOCAL`). Our entry
//! point stands in front of all of them, so the runtime has to be found per caller: as the
//! dynamic linker would have bound it without us. First the global search order behind us,
//! then the caller's own dependencies. The answer is remembered per call site.

use core::ffi::{CStr, c_int, c_void};
use core::mem::transmute;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering::*};

use crate::page;
use crate::session::next_symbol;

type GetInt = unsafe extern "C" fn() -> c_int;
type IntToInt = unsafe extern "C" fn(c_int) -> c_int;
type SetInt = unsafe extern "C" fn(c_int);
type Parallel = unsafe extern "C" fn(extern "C" fn(*mut c_void), *mut c_void, u32, u32);
type GlobalThread = unsafe extern "C" fn(*const c_void) -> i32;
type PushThreads = unsafe extern "C" fn(*const c_void, i32, i32);

/// The functions of one loaded runtime that we call.
pub(crate) struct Runtime {
    /// See [`page::runtime`].
    pub(crate) kind: u32,
    base: usize,
    max_threads: Option<GetInt>,
    num_procs: Option<GetInt>,
    dynamic: Option<GetInt>,
    level: Option<GetInt>,
    active_level: Option<GetInt>,
    team_size: Option<IntToInt>,
    /// `omp_set_dynamic`.
    pub(crate) set_dynamic: Option<SetInt>,
    /// `kmp_set_blocktime`, in milliseconds; libomp only.
    pub(crate) set_blocktime: Option<SetInt>,
    /// `kmp_get_blocktime`.
    pub(crate) blocktime: Option<GetInt>,
    /// `GOMP_parallel`.
    pub(crate) parallel: Option<Parallel>,
    global_thread: Option<GlobalThread>,
    push_threads: Option<PushThreads>,
}

fn call(f: Option<GetInt>, otherwise: u32) -> u32 {
    // SAFETY: an `omp_get_*` function of a loaded runtime: no arguments, callable anywhere.
    f.map_or(otherwise, |f| unsafe { f() }.cast_unsigned())
}

impl Runtime {
    /// Threads that a region without a clause asks for.
    pub(crate) fn max_threads(&self) -> u32 {
        call(self.max_threads, 1)
    }

    /// CPUs that the runtime believes in.
    pub(crate) fn procs(&self) -> u32 {
        call(self.num_procs, 1)
    }

    /// Whether OpenMP dynamic adjustment is enabled for the calling thread.
    pub(crate) fn dynamic(&self) -> bool {
        call(self.dynamic, 0) != 0
    }

    /// Threads of all enclosing active regions together; 1 outside of any.
    pub(crate) fn enclosing_threads(&self) -> u32 {
        if call(self.active_level, 0) == 0 {
            return 1;
        }
        let Some(team_size) = self.team_size else {
            return 1;
        };
        (1..=call(self.level, 0))
            // SAFETY: `omp_get_team_size` accepts any level and gives -1 for a bad one.
            .map(|l| unsafe { team_size(l.cast_signed()) }.max(1).cast_unsigned())
            .fold(1, u32::saturating_mul)
    }

    /// Asks libomp for `threads` in the calling thread's next region.
    pub(crate) fn push_threads(&self, location: *const c_void, threads: u32) {
        if let (Some(thread), Some(push)) = (self.global_thread, self.push_threads) {
            // SAFETY: the calls that a compiler would emit for a num_threads clause, with the
            // location that the program itself passed.
            unsafe { push(location, thread(location), threads.cast_signed()) };
        }
    }
}

/// A call site and what it was resolved to; never freed, never changed.
pub(crate) struct Site {
    caller: usize,
    entry: usize,
    /// The real entry point.
    pub(crate) target: *mut c_void,
    /// The runtime that it belongs to.
    pub(crate) runtime: &'static Runtime,
}

/// Call sites seen, by open addressing. Sites that no longer fit are resolved each time.
static SITES: [AtomicPtr<Site>; 256] = [const { AtomicPtr::new(ptr::null_mut()) }; 256];
/// Runtimes seen.
static RUNTIMES: [AtomicPtr<Runtime>; 16] = [const { AtomicPtr::new(ptr::null_mut()) }; 16];

/// Finds the real `name` for a call that returns to `caller`; `entry` numbers the names.
pub(crate) fn site(caller: usize, entry: usize, name: &CStr) -> Option<&'static Site> {
    let hash = (caller ^ (caller >> 9)).wrapping_add(entry.wrapping_mul(31));
    for probe in 0..8 {
        let at = &SITES[(hash + probe) % SITES.len()];
        let known = at.load(Acquire);
        if known.is_null() {
            let new = Box::into_raw(Box::new(resolve(caller, entry, name)?));
            // A lost race leaves this one out of the table; it serves this call all the same.
            let _ = at.compare_exchange(ptr::null_mut(), new, AcqRel, Acquire);
            // SAFETY: `new` came from a box and is never freed.
            return Some(unsafe { &*new });
        }
        // SAFETY: sites are never freed.
        let known = unsafe { &*known };
        if known.caller == caller && known.entry == entry {
            return Some(known);
        }
    }
    resolve(caller, entry, name).map(|site| &*Box::leak(Box::new(site)))
}

#[cold]
fn resolve(caller: usize, entry: usize, name: &CStr) -> Option<Site> {
    let mut target = next_symbol(name);
    if target.is_null() {
        target = in_dependencies(caller, name);
    }
    if target.is_null()
        || Object::of(target as usize).base == Object::of(site as *const () as usize).base
    {
        return None;
    }
    Some(Site {
        caller,
        entry,
        target,
        runtime: runtime(target as usize)?,
    })
}

/// The loaded object that an address lies in.
struct Object {
    base: usize,
    name: *const libc::c_char,
}

impl Object {
    fn of(address: usize) -> Object {
        // SAFETY: an all-zero Dl_info is a valid value to be overwritten.
        let mut info: libc::Dl_info = unsafe { core::mem::zeroed() };
        // SAFETY: dladdr accepts any address.
        unsafe { libc::dladdr(address as *const c_void, &raw mut info) };
        Object {
            base: info.dli_fbase as usize,
            name: info.dli_fname,
        }
    }

    /// Looks a symbol up in this object and what it depends on.
    fn symbol(&self, name: &CStr) -> *mut c_void {
        if self.name.is_null() {
            return ptr::null_mut();
        }
        // SAFETY: the name that the dynamic linker itself reported. The object is loaded, so
        // this opens nothing; the reference is kept so that what we resolved stays loaded.
        let handle = unsafe { libc::dlopen(self.name, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if handle.is_null() {
            return ptr::null_mut();
        }
        // SAFETY: a live handle and a NUL-terminated name.
        unsafe { libc::dlsym(handle, name.as_ptr()) }
    }
}

fn in_dependencies(caller: usize, name: &CStr) -> *mut c_void {
    Object::of(caller).symbol(name)
}

fn runtime(address: usize) -> Option<&'static Runtime> {
    let object = Object::of(address);
    for at in &RUNTIMES {
        let known = at.load(Acquire);
        // SAFETY: runtimes are never freed.
        if !known.is_null() && unsafe { &*known }.base == object.base {
            // SAFETY: as above.
            return Some(unsafe { &*known });
        }
        if known.is_null() {
            let new = Box::into_raw(Box::new(functions(&object)));
            let _ = at.compare_exchange(ptr::null_mut(), new, AcqRel, Acquire);
            // SAFETY: `new` came from a box and is never freed (a lost race leaks one).
            return Some(unsafe { &*new });
        }
    }
    None
}

/// Whether an address lies in a runtime that a region has been sent to.
pub(crate) fn is_runtime(address: usize) -> bool {
    let base = Object::of(address).base;
    RUNTIMES
        .iter()
        .map(|at| at.load(Acquire))
        .take_while(|known| !known.is_null())
        // SAFETY: runtimes are never freed.
        .any(|known| unsafe { &*known }.base == base)
}

fn functions(object: &Object) -> Runtime {
    /// A symbol of the runtime as a function pointer of the wanted type.
    macro_rules! function {
        ($name:literal) => {{
            let at = object.symbol($name);
            // SAFETY: the OpenMP API or the runtime's documented ABI fixes the type of this name.
            (!at.is_null()).then(|| unsafe { transmute(at) })
        }};
    }
    let set_blocktime: Option<SetInt> = function!(c"kmp_set_blocktime");
    Runtime {
        kind: if set_blocktime.is_some() {
            page::runtime::KMP
        } else {
            page::runtime::GOMP
        },
        base: object.base,
        max_threads: function!(c"omp_get_max_threads"),
        num_procs: function!(c"omp_get_num_procs"),
        dynamic: function!(c"omp_get_dynamic"),
        level: function!(c"omp_get_level"),
        active_level: function!(c"omp_get_active_level"),
        team_size: function!(c"omp_get_team_size"),
        set_dynamic: function!(c"omp_set_dynamic"),
        set_blocktime,
        blocktime: function!(c"kmp_get_blocktime"),
        parallel: function!(c"GOMP_parallel"),
        global_thread: function!(c"__kmpc_global_thread_num"),
        push_threads: function!(c"__kmpc_push_num_threads"),
    }
}
