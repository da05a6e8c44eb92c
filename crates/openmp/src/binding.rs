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
//! The answer is kept until `dlclose` unloads the object, since another one may then come to lie
//! at the same address.
//!
//! A constructor or destructor of a library runs under the linker's lock and may wait for a thread
//! that begins a region. So `dlsym` and `dlopen`, which take that lock, are not called here: the list
//! of objects has a lock of its own, which is held only while the list changes. `later.rs` tells
//! what that leaves open.

use core::ffi::{CStr, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::*};

use crate::later;
use crate::next::next;
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

/// How many of the loaded objects, the first ones, the program began with; they are never unloaded.
static INITIAL: AtomicUsize = AtomicUsize::new(usize::MAX);

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = note_initial;

extern "C" fn note_initial() {
    INITIAL.store(objects::count(), Relaxed);
}

/// Looks for the real entry points, as told at the top of this file, for an address in the calling
/// object: a return address (`code`) or a first argument.
fn resolve(address: usize, code: bool) -> Found {
    let found = objects::with_loaded(|loaded| look(loaded, address, code, None)).and_then(Result::ok);
    let found = found.or_else(|| {
        let later = FAMILIES.map(|(key, _)| key);
        let later = later::global(later);
        objects::with_loaded(|loaded| look(loaded, address, code, Some(later))).and_then(Result::ok)
    });
    found.unwrap_or(Found::nothing(0, 0))
}

/// It has to be known what was loaded later into the program's search order.
struct Unsure;

fn look(
    loaded: &[Object],
    address: usize,
    code: bool,
    later: Option<[usize; FAMILIES.len()]>,
) -> Result<Found, Unsure> {
    let me = loaded.iter().find(|o| o.contains(address));
    // Code made at run time lies in no object: it gets a binding per page.
    let (start, length) = me.map_or((address & !0xfff, 0x1000), |o| (o.start, o.end - o.start));
    let mut found = Found::nothing(start, length);
    if me.is_none() && !code {
        found.elsewhere = true;
        return Ok(found);
    }
    let initial = &loaded[..INITIAL.load(Relaxed).min(loaded.len())];
    let ours = initial.iter().position(|o| o.contains((&raw const INITIAL).addr()));
    let behind = &initial[ours.map_or(initial.len(), |at| at + 1)..];
    for (family, (key, prefix)) in FAMILIES.into_iter().enumerate() {
        let next = behind.iter().find_map(|o| o.symbol(key)).or_else(|| Some(later?[family]));
        let Some((object, in_order)) = choose(loaded, me, next, key, prefix)? else {
            continue;
        };
        found.runtimes[family] = runtime::of(object).map_or(ptr::null_mut(), |r| ptr::from_ref(r).cast_mut());
        for number in if family == 0 { 0..GOMP_NAMES } else { GOMP_NAMES..NAMES.len() } {
            // A tool that stands in front of the runtime gets its turn.
            let first = behind.iter().find_map(|o| o.symbol(NAMES[number])).filter(|_| in_order);
            let target = first.or_else(|| object.symbol(NAMES[number]));
            found.targets[number] = target.map_or(ptr::null_mut(), ptr::with_exposed_provenance_mut);
        }
    }
    Ok(found)
}

/// The runtime for one family of entry points, and whether it is the one that the program's search
/// order gives. `next` is where that order finds `key`, 0 if nowhere, and `None` if it is not known.
fn choose<'o>(
    loaded: &'o [Object],
    me: Option<&Object>,
    next: Option<usize>,
    key: &CStr,
    prefix: &[u8],
) -> Result<Option<(&'o Object, bool)>, Unsure> {
    let runtimes: Vec<&Object> = loaded.iter().filter(|o| runtime::is_runtime(o, key)).collect();
    let holds = |at: usize| runtimes.iter().find(|o| o.contains(at)).copied();
    let by_name = |start: &[u8]| {
        let other = |name: &CStr| name.to_bytes().starts_with(start) && !NAMES.contains(&name);
        me.and_then(|me| me.bound(other, holds))
    };
    let in_order = next.and_then(|next| {
        holds(next).or_else(|| {
            let tool = loaded.iter().position(|o| o.contains(next))?;
            loaded[tool..].iter().find(|o| runtime::is_runtime(o, key))
        })
    });
    let loaded_with = || {
        let scope = scope(loaded, me?)?;
        scope.into_iter().map(|i| &loaded[i]).find(|o| runtime::is_runtime(o, key))
    };
    let several = runtimes.len() > 1;
    let bound = by_name(prefix).or_else(|| by_name(b"omp_"));
    if several && bound.is_none() && next.is_none() {
        return Err(Unsure);
    }
    let chosen =
        bound.or(in_order).or_else(|| several.then(loaded_with).flatten()).or(runtimes.first().copied());
    Ok(chosen.map(|chosen| (chosen, in_order.is_some_and(|o| o.start == chosen.start))))
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

/// The process ends: libraries have been finalised that `dlopen` would initialise again.
static ENDING: AtomicBool = AtomicBool::new(false);

#[used]
#[unsafe(link_section = ".fini_array")]
static UNLOADING: extern "C" fn() = note_ending;

extern "C" fn note_ending() {
    ENDING.store(true, Relaxed);
}

/// `dlclose(3)`. The runtimes that regions were sent to stay. Another object may come to lie where
/// one was unloaded, so its binding is dropped.
#[unsafe(no_mangle)]
extern "C" fn dlclose(handle: *mut c_void) -> c_int {
    let Some(real) = next!(c"dlclose" as extern "C" fn(*mut c_void) -> c_int) else {
        return -1;
    };
    if ALL.load(Acquire).is_null() {
        return real(handle);
    }
    if !ENDING.load(Relaxed) {
        runtime::known().for_each(Runtime::keep_loaded);
    }
    let before = objects::unloaded();
    let result = real(handle);
    if objects::unloaded() != before {
        objects::with_loaded(forget_unloaded);
    }
    result
}

/// Drops the bindings of what is no longer loaded. (Bindings of code made at run time, too: they are
/// easily made again.)
fn forget_unloaded(loaded: &[Object]) {
    for binding in all() {
        let length = binding.length.load(Acquire);
        if !loaded.iter().any(|o| (o.start, o.end - o.start) == (binding.start, length)) {
            binding.length.store(0, Release);
        }
    }
    for runtime in runtime::known() {
        runtime.look_after(loaded);
    }
}
