//! The OpenMP runtimes loaded, and the functions of theirs that we call.

use core::ffi::{CStr, c_int, c_void};
use core::mem::transmute;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering::*};
use std::ffi::CString;

use crate::objects::Object;
use crate::page;

type GetInt = unsafe extern "C" fn() -> c_int;
type IntToInt = unsafe extern "C" fn(c_int) -> c_int;
type SetInt = unsafe extern "C" fn(c_int);
type Parallel = unsafe extern "C" fn(extern "C" fn(*mut c_void), *mut c_void, u32, u32);
type GlobalThread = unsafe extern "C" fn(*const c_void) -> i32;
type PushThreads = unsafe extern "C" fn(*const c_void, i32, i32);

/// One loaded runtime. It stays loaded: threads of its pool, or ours, sleep in its code.
pub(crate) struct Runtime {
    /// See [`page::runtime`].
    pub(crate) kind: u32,
    start: usize,
    end: usize,
    /// Its file name; empty where the program itself is the runtime.
    name: CString,
    /// The linker has been told to keep it.
    kept: AtomicBool,
    /// It was unloaded before that.
    gone: AtomicBool,
    max_threads: Option<GetInt>,
    num_procs: Option<GetInt>,
    dynamic: Option<GetInt>,
    level: Option<GetInt>,
    active_level: Option<GetInt>,
    team_size: Option<IntToInt>,
    ancestor: Option<IntToInt>,
    thread_number: Option<GetInt>,
    thread_limit: Option<GetInt>,
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

/// Runtimes seen; more than these are left alone.
static RUNTIMES: [AtomicPtr<Runtime>; 16] = [const { AtomicPtr::new(ptr::null_mut()) }; 16];

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

    /// Most threads of one contention group (`OMP_THREAD_LIMIT`).
    pub(crate) fn thread_limit(&self) -> u32 {
        call(self.thread_limit, u32::MAX)
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
        self.levels(self.team_size).fold(1, |all, size| all.saturating_mul(size.max(1)))
    }

    /// Whether the calling thread is in a region, one of a single thread included.
    pub(crate) fn is_inside(&self) -> bool {
        call(self.level, 1) != 0
    }

    /// The calling thread's number in its region.
    pub(crate) fn thread_number(&self) -> u32 {
        call(self.thread_number, 0)
    }

    /// The calling thread's number in each enclosing region, outermost first.
    pub(crate) fn ancestors(&self) -> impl Iterator<Item = u32> + '_ {
        self.levels(self.ancestor)
    }

    fn levels(&self, of: Option<IntToInt>) -> impl Iterator<Item = u32> + '_ {
        let levels = if of.is_some() { call(self.level, 0) } else { 0 };
        (1..=levels).filter_map(move |level| {
            // SAFETY: these functions accept any level and give -1 for a bad one.
            of.map(|f| unsafe { f(level.cast_signed()) }.max(0).cast_unsigned())
        })
    }

    /// Asks libomp for `threads` in the calling thread's next region.
    pub(crate) fn push_threads(&self, location: *const c_void, threads: u32) {
        if let (Some(thread), Some(push)) = (self.global_thread, self.push_threads) {
            // SAFETY: the calls that a compiler would emit for a num_threads clause, with the
            // location that the program itself passed.
            unsafe { push(location, thread(location), threads.cast_signed()) };
        }
    }

    /// Tells the linker to keep it for the life of the process. This takes the linker's lock, which
    /// a thread holds that waits in a constructor, and initialises what has been finalised: called only
    /// where the program itself calls the linker.
    pub(crate) fn keep_loaded(&self) {
        if !self.kept.load(Acquire) {
            let mode = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
            // SAFETY: a NUL-terminated name. It opens nothing that is not there; it is not to be
            // unloaded, so the handle need not be given back.
            unsafe { libc::dlopen(self.name.as_ptr(), mode) };
            self.kept.store(true, Release);
        }
    }

    /// Notes whether it is still there.
    pub(crate) fn look_after(&self, loaded: &[Object]) {
        if !loaded.iter().any(|o| (o.start, o.end) == (self.start, self.end)) {
            self.gone.store(true, Release);
        }
    }

    fn new(object: &Object) -> Runtime {
        /// A symbol of the runtime as a function pointer of the wanted type.
        macro_rules! function {
            ($name:literal) => {{
                let at: Option<usize> = object.symbol($name);
                // SAFETY: the OpenMP API or the runtime's documented ABI fixes the type.
                at.map(|at| unsafe { transmute(ptr::with_exposed_provenance::<c_void>(at)) })
            }};
        }
        let set_blocktime: Option<SetInt> = function!(c"kmp_set_blocktime");
        Runtime {
            kind: if set_blocktime.is_some() { page::runtime::KMP } else { page::runtime::GOMP },
            start: object.start,
            end: object.end,
            name: object.file().map(CStr::to_owned).unwrap_or_default(),
            kept: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            max_threads: function!(c"omp_get_max_threads"),
            num_procs: function!(c"omp_get_num_procs"),
            dynamic: function!(c"omp_get_dynamic"),
            level: function!(c"omp_get_level"),
            active_level: function!(c"omp_get_active_level"),
            team_size: function!(c"omp_get_team_size"),
            ancestor: function!(c"omp_get_ancestor_thread_num"),
            thread_number: function!(c"omp_get_thread_num"),
            thread_limit: function!(c"omp_get_thread_limit"),
            set_dynamic: function!(c"omp_set_dynamic"),
            set_blocktime,
            blocktime: function!(c"kmp_get_blocktime"),
            parallel: function!(c"GOMP_parallel"),
            global_thread: function!(c"__kmpc_global_thread_num"),
            push_threads: function!(c"__kmpc_push_num_threads"),
        }
    }
}

/// Whether an object is an OpenMP runtime with the entry point `key`. (Tools that stand in front
/// of a runtime have the entry points only, stubs have the API only.)
pub(crate) fn is_runtime(object: &Object, key: &CStr) -> bool {
    object.symbol(c"omp_get_max_threads").is_some() && object.symbol(key).is_some()
}

/// The runtime that an object is.
pub(crate) fn of(object: &Object) -> Option<&'static Runtime> {
    for at in &RUNTIMES {
        let mut known = at.load(Acquire);
        if known.is_null() {
            let new = Box::into_raw(Box::new(Runtime::new(object)));
            known = match at.compare_exchange(ptr::null_mut(), new, AcqRel, Acquire) {
                Ok(_) => new,
                Err(other) => {
                    // SAFETY: the box made above, which nobody else has seen.
                    drop(unsafe { Box::from_raw(new) });
                    other
                }
            };
        }
        // SAFETY: runtimes are never freed.
        let known = unsafe { &*known };
        if known.start == object.start && !known.gone.load(Acquire) {
            return Some(known);
        }
    }
    None
}

/// Whether an address lies in a runtime that a region has been sent to.
pub(crate) fn contains(address: usize) -> bool {
    known().any(|r| (r.start..r.end).contains(&address))
}

/// The runtimes that regions have been sent to.
pub(crate) fn known() -> impl Iterator<Item = &'static Runtime> {
    // SAFETY: runtimes are never freed.
    let all = RUNTIMES.iter().map_while(|at| unsafe { at.load(Acquire).as_ref::<'static>() });
    all.filter(|runtime| !runtime.gone.load(Acquire))
}
