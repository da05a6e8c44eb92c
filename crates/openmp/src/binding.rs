//! Where the calls of each object of the program go.
//!
//! One process can hold several OpenMP runtimes (a Python with NumPy, scikit-learn and PyTorch
//! often has three, under names like `libgomp-a34b3233.so.1`, opened with `RTLD_LOCAL`). Our entry
//! points stand in front of all of them, so the runtime has to be found per calling object, as
//! the dynamic linker would have bound it without us. A region in one runtime and
//! `omp_get_thread_num` from another would give a wrong result, so the order is:
//!
//! 1. the runtime that the object's other OpenMP imports are already bound to;
//! 2. the next definition in the program's search order, behind this library;
//! 3. what the object was loaded with: the first in the dependencies, breadth first, of the
//!    first loaded object that needs it;
//! 4. any runtime at all.
//!
//! Which object calls is told by the first argument: the region's function (libgomp) or its
//! place in the source (libomp), of which the compiler makes a private copy in each object. Not by the
//! return address: a function that ends in a region jumps there, and so "returns" to its caller's
//! object. Only if the argument lies in no object does the return address decide.
//!
//! The answer is kept until `dlclose` unloads something, since another object may then come to
//! lie at the same address.

use core::ffi::{CStr, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};

use crate::next::{next, next_symbol};
use crate::objects::{self, Object};
use crate::runtime::{self, Runtime};

/// The entry points in front of which we stand; the first 17 are libgomp's.
pub(crate) static NAMES: [&CStr; 24] = [
    c"GOMP_parallel",
    c"GOMP_parallel_reductions",
    c"GOMP_parallel_sections",
    c"GOMP_parallel_loop_static",
    c"GOMP_parallel_loop_dynamic",
    c"GOMP_parallel_loop_guided",
    c"GOMP_parallel_loop_runtime",
    c"GOMP_parallel_loop_nonmonotonic_dynamic",
    c"GOMP_parallel_loop_nonmonotonic_guided",
    c"GOMP_parallel_loop_nonmonotonic_runtime",
    c"GOMP_parallel_loop_maybe_nonmonotonic_runtime",
    c"GOMP_parallel_start",
    c"GOMP_parallel_sections_start",
    c"GOMP_parallel_loop_static_start",
    c"GOMP_parallel_loop_dynamic_start",
    c"GOMP_parallel_loop_guided_start",
    c"GOMP_parallel_loop_runtime_start",
    c"__kmpc_fork_call",
    c"__kmpc_fork_call_if",
    c"__kmpc_serialized_parallel",
    c"__kmpc_push_num_threads",
    c"__kmpc_push_num_threads_strict",
    c"__kmpc_push_num_threads_list",
    c"__kmpc_push_num_threads_list_strict",
];
const GOMP_NAMES: usize = 17;

/// The two families of entry points: the one that every runtime of the family has, and how the
/// names of its other functions begin.
const FAMILIES: [(&CStr, &[u8]); 2] = [(c"GOMP_parallel", b"GOMP_"), (c"__kmpc_fork_call", b"__kmpc_")];

/// The real entry points for the calls of one object.
pub(crate) struct Binding {
    /// Where the object begins, and its length; 0 while the binding must not be used.
    pub(crate) start: usize,
    pub(crate) length: AtomicUsize,
    pub(crate) targets: [AtomicPtr<c_void>; NAMES.len()],
    runtimes: [AtomicPtr<Runtime>; FAMILIES.len()],
    /// First arguments in this page lie in no object: it has no targets.
    elsewhere: bool,
    /// The next in the list of all.
    next: AtomicPtr<Binding>,
}

/// All bindings; never freed, used again for an object at the same place.
static ALL: AtomicPtr<Binding> = AtomicPtr::new(ptr::null_mut());
/// Bindings by the page of the first argument. Only a short cut: `start` and `length` decide.
pub(crate) static CACHE: [AtomicPtr<Binding>; 256] = [const { AtomicPtr::new(ptr::null_mut()) }; 256];

/// The real entry point `number` (in [`NAMES`]) for a call with the first argument `key` that
/// returns to `caller`, and its runtime.
#[inline]
pub(crate) fn find(key: usize, caller: usize, number: usize) -> Option<(*mut c_void, &'static Runtime)> {
    let at = &CACHE[(key >> 12) % CACHE.len()];
    // SAFETY: bindings are never freed.
    let known = unsafe { at.load(Acquire).as_ref() }.filter(|b| b.serves(key));
    let by_key = known.or_else(|| look_up(key, at)).and_then(|b| b.target(number));
    by_key.or_else(|| of_code(caller).target(number))
}

impl Binding {
    #[inline]
    fn serves(&self, address: usize) -> bool {
        address.wrapping_sub(self.start) < self.length.load(Acquire)
    }

    #[inline]
    fn target(&self, number: usize) -> Option<(*mut c_void, &'static Runtime)> {
        let target = self.targets[number].load(Relaxed);
        // SAFETY: runtimes are never freed.
        let runtime = unsafe { self.runtimes[usize::from(number >= GOMP_NAMES)].load(Relaxed).as_ref() };
        Some((target, runtime?)).filter(|_| !target.is_null())
    }
}

fn all() -> impl Iterator<Item = &'static Binding> {
    // SAFETY: bindings are never freed, and `next` is set before one is published.
    let follow = |at: &AtomicPtr<Binding>| unsafe { at.load(Acquire).as_ref::<'static>() };
    core::iter::successors(follow(&ALL), move |b| follow(&b.next))
}

/// The binding for a first argument; none for null.
#[cold]
fn look_up(key: usize, at: &AtomicPtr<Binding>) -> Option<&'static Binding> {
    if key == 0 {
        return None;
    }
    let known = all().find(|b| b.serves(key));
    let binding = known.unwrap_or_else(|| keep(resolve(key, false)));
    at.store(ptr::from_ref(binding).cast_mut(), Release);
    Some(binding)
}

/// The binding for a return address.
#[cold]
fn of_code(caller: usize) -> &'static Binding {
    let known = all().find(|b| !b.elsewhere && b.serves(caller));
    known.unwrap_or_else(|| keep(resolve(caller, true)))
}

/// What was found for one object.
struct Found {
    start: usize,
    length: usize,
    targets: [*mut c_void; NAMES.len()],
    runtimes: [*mut Runtime; FAMILIES.len()],
    elsewhere: bool,
}

impl Found {
    fn nothing(start: usize, length: usize) -> Found {
        let targets = [ptr::null_mut(); NAMES.len()];
        Found { start, length, targets, runtimes: [ptr::null_mut(); FAMILIES.len()], elsewhere: false }
    }
}

/// Publishes what was found, in the binding that an earlier object at that place had if possible.
fn keep(found: Found) -> &'static Binding {
    let free = |b: &&Binding| b.length.load(Acquire) == 0 && b.elsewhere == found.elsewhere;
    let old = all().find(|b| b.start == found.start && free(b));
    let binding = old.unwrap_or_else(|| {
        Box::leak(Box::new(Binding {
            start: found.start,
            length: AtomicUsize::new(0),
            targets: [const { AtomicPtr::new(ptr::null_mut()) }; NAMES.len()],
            runtimes: [const { AtomicPtr::new(ptr::null_mut()) }; FAMILIES.len()],
            elsewhere: found.elsewhere,
            next: AtomicPtr::new(ptr::null_mut()),
        }))
    });
    for (at, target) in binding.targets.iter().zip(found.targets) {
        at.store(target, Relaxed);
    }
    for (at, runtime) in binding.runtimes.iter().zip(found.runtimes) {
        at.store(runtime, Relaxed);
    }
    binding.length.store(found.length, Release);
    if old.is_none() {
        let new = ptr::from_ref(binding).cast_mut();
        let mut head = ALL.load(Acquire);
        loop {
            binding.next.store(head, Relaxed);
            match ALL.compare_exchange(head, new, AcqRel, Acquire) {
                Ok(_) => break,
                Err(other) => head = other,
            }
        }
    }
    binding
}

/// Looks for the real entry points, as told at the top of this file, for an address in the calling
/// object: a return address (`code`) or a first argument.
fn resolve(address: usize, code: bool) -> Found {
    let mut global = [ptr::null_mut(); NAMES.len()];
    for (at, name) in global.iter_mut().zip(NAMES) {
        *at = next_symbol(name);
    }
    // SAFETY: forgets what the look-ups above may have failed to find.
    unsafe { libc::dlerror() };
    let found = objects::with_loaded(|loaded| {
        let me = loaded.iter().find(|o| o.contains(address));
        // Code made at run time lies in no object: it gets a binding per page.
        let (start, length) = me.map_or((address & !0xfff, 0x1000), |o| (o.start, o.end - o.start));
        let mut found = Found::nothing(start, length);
        if me.is_none() && !code {
            found.elsewhere = true;
            return found;
        }
        for (family, (key, prefix)) in FAMILIES.into_iter().enumerate() {
            let numbers = if family == 0 { 0..GOMP_NAMES } else { GOMP_NAMES..NAMES.len() };
            let next = global[numbers.start].expose_provenance();
            let Some((object, in_order)) = choose(loaded, me, next, key, prefix) else {
                continue;
            };
            found.runtimes[family] =
                runtime::of(object).map_or(ptr::null_mut(), |r| ptr::from_ref(r).cast_mut());
            for number in numbers {
                // A tool that stands in front of the runtime gets its turn.
                let first = Some(global[number]).filter(|at| in_order && !at.is_null());
                let own = || object.symbol(NAMES[number]).map(ptr::with_exposed_provenance_mut);
                found.targets[number] = first.or_else(own).unwrap_or(ptr::null_mut());
            }
        }
        found
    });
    for runtime in runtime::known() {
        runtime.keep_loaded();
    }
    found.unwrap_or(Found { targets: global, ..Found::nothing(0, 0) })
}

/// The runtime for one family of entry points, and whether it is the one that the program's
/// search order gives (`next` is where that order finds `key`, or 0).
fn choose<'o>(
    loaded: &'o [Object],
    me: Option<&Object>,
    next: usize,
    key: &CStr,
    prefix: &[u8],
) -> Option<(&'o Object, bool)> {
    let runtimes: Vec<&Object> = loaded.iter().filter(|o| runtime::is_runtime(o, key)).collect();
    let holds = |at: usize| runtimes.iter().find(|o| o.contains(at)).copied();
    let by_name = |start: &[u8]| {
        let other = |name: &CStr| name.to_bytes().starts_with(start) && !NAMES.contains(&name);
        me.and_then(|me| me.bound(other, holds))
    };
    let in_order = holds(next).or_else(|| {
        let tool = loaded.iter().position(|o| o.contains(next))?;
        loaded[tool..].iter().find(|o| runtime::is_runtime(o, key))
    });
    let loaded_with = || {
        let scope = scope(loaded, me?)?;
        scope.into_iter().map(|i| &loaded[i]).find(|o| runtime::is_runtime(o, key))
    };
    let several = runtimes.len() > 1;
    let chosen = by_name(prefix)
        .or_else(|| by_name(b"omp_"))
        .or(in_order)
        .or_else(|| several.then(loaded_with).flatten())
        .or(runtimes.first().copied())?;
    Some((chosen, in_order.is_some_and(|o| o.start == chosen.start)))
}

/// The dependencies, breadth first, of the first object that has `me` among them: the one whose
/// loading loaded `me`, and the scope in which its imports are looked up.
fn scope(loaded: &[Object], me: &Object) -> Option<Vec<usize>> {
    let needed: Vec<Vec<usize>> = loaded
        .iter()
        .map(|o| o.needed().filter_map(|name| loaded.iter().position(|l| l.is_called(name))).collect())
        .collect();
    let below = |root: usize| {
        let mut order = vec![root];
        let mut done = 0;
        while let Some(&next) = order.get(done) {
            for &n in &needed[next] {
                if !order.contains(&n) {
                    order.push(n);
                }
            }
            done += 1;
        }
        order
    };
    (0..loaded.len()).map(below).find(|order| order.iter().any(|&i| loaded[i].start == me.start))
}

/// `dlclose(3)`. Another object may come to lie where one was unloaded. So no binding is used
/// while this may happen; if nothing was unloaded, they are put back.
#[unsafe(no_mangle)]
extern "C" fn dlclose(handle: *mut c_void) -> c_int {
    let Some(real) = next!(c"dlclose" as extern "C" fn(*mut c_void) -> c_int) else {
        return -1;
    };
    if ALL.load(Acquire).is_null() {
        return real(handle);
    }
    let before = objects::unloaded();
    let idle: Vec<_> = all().map(|b| (b, b.length.swap(0, AcqRel))).filter(|(_, l)| *l > 0).collect();
    let result = real(handle);
    if objects::unloaded() == before {
        for (binding, length) in idle {
            let _ = binding.length.compare_exchange(0, length, AcqRel, Relaxed);
        }
    }
    result
}
