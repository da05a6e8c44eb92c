//! The exported entry points of libgomp and libomp.
//!
//! Each is a trampoline: it saves the argument registers, asks [`enter`] or one of its like for
//! the real entry point and the number of threads, puts the arguments back and jumps. Assembly,
//! since `__kmpc_fork_call` is variadic and the loop entries pass arguments on the stack;
//! a jump leaves both as they are. All `GOMP_parallel*` take the number of threads third.
//!
//! While nothing is short, a few instructions find the calling object's binding in the cache, load
//! the word, and jump on; nothing is saved. `examples/region_cost.rs` of corefit-linux measures it.

use core::arch::naked_asm;
use core::cell::Cell;
use core::ffi::c_void;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::binding::{self, Binding, CACHE, NAMES};
use crate::runtime::Runtime;
use crate::{page, quiet, region, session};

/// The caller's registers, as the trampolines save them and put them back.
#[repr(C)]
struct Saved {
    rax: usize,
    r9: usize,
    r8: usize,
    rcx: usize,
    /// Third argument: what the threads of a libomp region run.
    rdx: usize,
    rsi: usize,
    /// First argument: what the threads of a libgomp region run.
    rdi: usize,
}

/// Where to jump, and with how many threads (0: as the runtime decides).
#[repr(C)]
pub(crate) struct Jump {
    target: *mut c_void,
    threads: u64,
}

/// A `num_threads` clause that libomp has yet to use.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Clause {
    /// There is none.
    No,
    /// So many threads.
    Threads(u32),
    /// One that must be obeyed (`strict`), or sizes for several levels: not resized.
    Fixed,
}

thread_local! {
    static CLAUSE: Cell<Clause> = const { Cell::new(Clause::No) };
    /// Whether this thread counts in [`MORE`].
    static PENDING: Cell<bool> = const { Cell::new(false) };
}

/// Threads whose next libomp region has more to do than to look at the word: a clause to use up, or a
/// block time to put back. (A thread that ends meanwhile stays counted: that costs time, nothing else.)
static MORE: AtomicU32 = AtomicU32::new(0);

/// Counts this thread in [`MORE`], or no longer.
fn update_more() {
    let pending = CLAUSE.get() != Clause::No || quiet::is_applied();
    if pending != PENDING.replace(pending) {
        if pending {
            MORE.fetch_add(1, Relaxed)
        } else {
            MORE.fetch_sub(1, Relaxed)
        };
    }
}

/// In the child of a fork there is this thread only.
pub(crate) fn forked() {
    MORE.store(u32::from(PENDING.get()), Relaxed);
}

/// First the fast way, unless `$first` jumps over it: it is taken if the cached binding serves the
/// first argument (as `Binding::serves`), the word and [`MORE`] are zero, and there is a target. It
/// uses r10 and r11 only, which no argument is in.
///
/// Registers saved are those that can carry arguments, and rax: it tells a variadic function how
/// many vector registers do, so they are saved only if it does. The enter function gets the
/// number in [`NAMES`], the third argument, the return address, the first argument, the fourth, and the saved registers.
macro_rules! trampoline {
    ($export:ident, $number:literal, $enter:path, $first:literal, $put_threads:literal, $save:literal, $restore:literal) => {
        /// Entry point of the OpenMP runtime's ABI; see the module.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        extern "C" fn $export() {
            naked_asm!(
                $first,
                "mov r10, rdi",
                "shr r10, 12",
                "movzx r10d, r10b",
                "lea r11, [rip + {cache}]",
                "mov r10, [r11 + 8*r10]",
                "test r10, r10",
                "jz 5f",
                "mov r11, rdi",
                "sub r11, [r10 + {start}]",
                "cmp r11, [r10 + {length}]",
                "jae 5f",
                "mov r11, [rip + {word}]",
                "mov r11d, [r11]",
                "or r11d, [rip + {more}]",
                "jnz 5f",
                "mov r11, [r10 + {target}]",
                "test r11, r11",
                "jz 5f",
                "jmp r11",
                "5:",
                "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                "mov r9, rsp",
                "mov r8, rcx",
                "mov rcx, rdi",
                "mov esi, edx",
                "mov edi, {number}",
                "mov rdx, [rsp+56]",
                $save,
                "call {enter}",
                $restore,
                "mov r11, rax",
                "mov r10, rdx",
                "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                $put_threads,
                "jmp r11",
                cache = sym CACHE,
                start = const offset_of!(Binding, start),
                length = const offset_of!(Binding, length),
                target = const offset_of!(Binding, targets) + 8 * $number,
                word = sym session::WORD,
                more = sym MORE,
                number = const $number,
                enter = sym $enter,
            )
        }
    };
    (gomp $export:ident, $number:literal) => {
        trampoline!($export, $number, enter, "", "mov edx, r10d", "", "");
    };
    (kmpc $export:ident, $number:literal, $enter:path) => {
        trampoline!($export, $number, $enter, "", "", "", "");
    };
    (always $export:ident, $number:literal, $enter:path) => {
        trampoline!($export, $number, $enter, "jmp 5f", "", "", "");
    };
    (variadic $export:ident, $number:literal, $enter:path) => {
        trampoline!(
            $export, $number, $enter, "", "",
            "sub rsp, 128
             test al, al
             jz 2f
             movups [rsp], xmm0
             movups [rsp+16], xmm1
             movups [rsp+32], xmm2
             movups [rsp+48], xmm3
             movups [rsp+64], xmm4
             movups [rsp+80], xmm5
             movups [rsp+96], xmm6
             movups [rsp+112], xmm7
             2:",
            "cmp byte ptr [rsp+128], 0
             jz 3f
             movups xmm0, [rsp]
             movups xmm1, [rsp+16]
             movups xmm2, [rsp+32]
             movups xmm3, [rsp+48]
             movups xmm4, [rsp+64]
             movups xmm5, [rsp+80]
             movups xmm6, [rsp+96]
             movups xmm7, [rsp+112]
             3:
             add rsp, 128"
        );
    };
}

trampoline!(gomp GOMP_parallel, 0);
trampoline!(gomp GOMP_parallel_reductions, 1);
trampoline!(gomp GOMP_parallel_sections, 2);
trampoline!(gomp GOMP_parallel_loop_static, 3);
trampoline!(gomp GOMP_parallel_loop_dynamic, 4);
trampoline!(gomp GOMP_parallel_loop_guided, 5);
trampoline!(gomp GOMP_parallel_loop_runtime, 6);
trampoline!(gomp GOMP_parallel_loop_nonmonotonic_dynamic, 7);
trampoline!(gomp GOMP_parallel_loop_nonmonotonic_guided, 8);
trampoline!(gomp GOMP_parallel_loop_nonmonotonic_runtime, 9);
trampoline!(gomp GOMP_parallel_loop_maybe_nonmonotonic_runtime, 10);
trampoline!(gomp GOMP_parallel_start, 11);
trampoline!(gomp GOMP_parallel_sections_start, 12);
trampoline!(gomp GOMP_parallel_loop_static_start, 13);
trampoline!(gomp GOMP_parallel_loop_dynamic_start, 14);
trampoline!(gomp GOMP_parallel_loop_guided_start, 15);
trampoline!(gomp GOMP_parallel_loop_runtime_start, 16);
trampoline!(variadic __kmpc_fork_call, 17, enter_fork);
trampoline!(variadic __kmpc_fork_call_if, 18, enter_fork_if);
trampoline!(kmpc __kmpc_serialized_parallel, 19, enter_serialized);
trampoline!(always __kmpc_push_num_threads, 20, enter_push);
trampoline!(always __kmpc_push_num_threads_strict, 21, enter_push_fixed);
trampoline!(always __kmpc_push_num_threads_list, 22, enter_push_fixed);
trampoline!(always __kmpc_push_num_threads_list_strict, 23, enter_push_fixed);

#[inline]
fn real(number: usize, key: *const c_void, caller: usize) -> (*mut c_void, &'static Runtime) {
    binding::find(key.addr(), caller, number).unwrap_or_else(|| missing(number))
}

/// The program calls into a runtime that is not there. Without us the dynamic linker would have
/// ended it here, with the same status.
#[cold]
fn missing(number: usize) -> ! {
    let name = NAMES[number].to_bytes();
    for text in [b"symbol lookup error: undefined symbol: ", name, b"\n"] {
        // SAFETY: a valid text of the stated length.
        unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
    }
    // SAFETY: ends the process.
    unsafe { libc::_exit(127) }
}

/// A libgomp region that asks for `threads` (0: as the runtime decides).
extern "C" fn enter(
    number: usize,
    threads: u32,
    caller: usize,
    body: *const c_void,
    _: i32,
    saved: &mut Saved,
) -> Jump {
    let (target, runtime) = real(number, body, caller);
    let word = session::current_word();
    let threads = if word == 0 {
        region::pass(runtime);
        threads
    } else {
        region::size(runtime, threads, word, body.addr(), &mut saved.rdi).unwrap_or(threads)
    };
    // libomp serves these calls, too, where it stands in for libgomp.
    if runtime.kind == page::runtime::KMP && word | MORE.load(Relaxed) != 0 {
        quiet::at_region(runtime, session::current_word());
        update_more();
    }
    Jump { target, threads: threads.into() }
}

/// A libomp region. The clause, if any, came before through `__kmpc_push_num_threads`.
extern "C" fn enter_fork(
    number: usize,
    _: u32,
    caller: usize,
    location: *const c_void,
    _: i32,
    saved: &mut Saved,
) -> Jump {
    let (target, runtime) = real(number, location, caller);
    let word = session::current_word();
    if word | MORE.load(Relaxed) != 0 {
        fork(runtime, location, word, &mut saved.rdx);
    }
    Jump { target, threads: 0 }
}

#[cold]
fn fork(runtime: &'static Runtime, location: *const c_void, word: u32, body: &mut usize) {
    let clause = match CLAUSE.replace(Clause::No) {
        Clause::No => Some(0),
        Clause::Threads(n) => Some(n),
        Clause::Fixed => None,
    };
    if let Some(clause) = clause
        && word != 0
        && let Some(threads) = region::size(runtime, clause, word, location.addr(), body)
    {
        runtime.push_threads(location, threads);
    }
    quiet::at_region(runtime, session::current_word());
    update_more();
}

/// A libomp region that runs serially if its fourth argument is 0.
extern "C" fn enter_fork_if(
    number: usize,
    threads: u32,
    caller: usize,
    location: *const c_void,
    condition: i32,
    saved: &mut Saved,
) -> Jump {
    if condition == 0 {
        enter_serialized(number, threads, caller, location)
    } else {
        enter_fork(number, threads, caller, location, condition, saved)
    }
}

/// A region that an `if` clause serialised: it uses the clause up.
extern "C" fn enter_serialized(number: usize, _: u32, caller: usize, location: *const c_void) -> Jump {
    if MORE.load(Relaxed) != 0 {
        CLAUSE.set(Clause::No);
        update_more();
    }
    Jump { target: real(number, location, caller).0, threads: 0 }
}

/// A `num_threads` clause (third argument) for the next region of this thread.
extern "C" fn enter_push(number: usize, threads: u32, caller: usize, location: *const c_void) -> Jump {
    push(number, Clause::Threads(threads), caller, location)
}

/// A `num_threads` clause that is not a mere wish.
extern "C" fn enter_push_fixed(number: usize, _: u32, caller: usize, location: *const c_void) -> Jump {
    push(number, Clause::Fixed, caller, location)
}

fn push(number: usize, clause: Clause, caller: usize, location: *const c_void) -> Jump {
    CLAUSE.set(clause);
    update_more();
    Jump { target: real(number, location, caller).0, threads: 0 }
}
