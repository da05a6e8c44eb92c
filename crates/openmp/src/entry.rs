//! The exported entry points of libgomp and libomp.
//!
//! Each is a trampoline: it saves the argument registers, asks [`enter`] for the real
//! entry point and the number of threads, puts the arguments back and jumps. Assembly,
//! since `__kmpc_fork_call` is variadic and the loop entries pass arguments on the stack;
//! a jump leaves both as they are. All `GOMP_parallel*` take the number of threads third.

use core::arch::naked_asm;
use core::cell::Cell;
use core::ffi::{CStr, c_void};

use crate::{region, runtime};

/// Where to jump, and with how many threads (0: as the runtime decides).
#[repr(C)]
pub(crate) struct Jump {
    target: *mut c_void,
    threads: u64,
}

thread_local! {
    /// Threads asked for by a `num_threads` clause that libomp has yet to use; 0 is none.
    static CLAUSE: Cell<u32> = const { Cell::new(0) };
}

/// Registers saved: 7 x 8 bytes of arguments and 8 x 16 bytes of vector arguments.
macro_rules! trampoline {
    ($export:ident, $number:literal, $keep_third:literal, $enter:path) => {
        /// Entry point of the OpenMP runtime's ABI; see the module.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        extern "C" fn $export() {
            naked_asm!(
                "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                "sub rsp, 128",
                "movups [rsp], xmm0", "movups [rsp+16], xmm1",
                "movups [rsp+32], xmm2", "movups [rsp+48], xmm3",
                "movups [rsp+64], xmm4", "movups [rsp+80], xmm5",
                "movups [rsp+96], xmm6", "movups [rsp+112], xmm7",
                "mov rcx, rdi",
                "mov esi, edx",
                "mov edi, {number}",
                "mov rdx, [rsp+184]",
                "call {enter}",
                "mov r11, rax",
                "mov r10, rdx",
                "movups xmm0, [rsp]", "movups xmm1, [rsp+16]",
                "movups xmm2, [rsp+32]", "movups xmm3, [rsp+48]",
                "movups xmm4, [rsp+64]", "movups xmm5, [rsp+80]",
                "movups xmm6, [rsp+96]", "movups xmm7, [rsp+112]",
                "add rsp, 128",
                "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                concat!(".if ", $keep_third, " == 0"),
                "mov edx, r10d",
                ".endif",
                "jmp r11",
                number = const $number,
                enter = sym $enter,
            )
        }
    };
}

/// Names by number, for the look-up of the real ones.
static NAMES: [&CStr; 21] = [
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
    c"__kmpc_push_num_threads",
    c"__kmpc_serialized_parallel",
];

trampoline!(GOMP_parallel, 0, "0", enter);
trampoline!(GOMP_parallel_reductions, 1, "0", enter);
trampoline!(GOMP_parallel_sections, 2, "0", enter);
trampoline!(GOMP_parallel_loop_static, 3, "0", enter);
trampoline!(GOMP_parallel_loop_dynamic, 4, "0", enter);
trampoline!(GOMP_parallel_loop_guided, 5, "0", enter);
trampoline!(GOMP_parallel_loop_runtime, 6, "0", enter);
trampoline!(GOMP_parallel_loop_nonmonotonic_dynamic, 7, "0", enter);
trampoline!(GOMP_parallel_loop_nonmonotonic_guided, 8, "0", enter);
trampoline!(GOMP_parallel_loop_nonmonotonic_runtime, 9, "0", enter);
trampoline!(
    GOMP_parallel_loop_maybe_nonmonotonic_runtime,
    10,
    "0",
    enter
);
trampoline!(GOMP_parallel_start, 11, "0", enter);
trampoline!(GOMP_parallel_sections_start, 12, "0", enter);
trampoline!(GOMP_parallel_loop_static_start, 13, "0", enter);
trampoline!(GOMP_parallel_loop_dynamic_start, 14, "0", enter);
trampoline!(GOMP_parallel_loop_guided_start, 15, "0", enter);
trampoline!(GOMP_parallel_loop_runtime_start, 16, "0", enter);
trampoline!(__kmpc_fork_call, 17, "1", enter_fork);
trampoline!(__kmpc_fork_call_if, 18, "1", enter_fork);
trampoline!(__kmpc_push_num_threads, 19, "1", enter_push);
trampoline!(__kmpc_serialized_parallel, 20, "1", enter_serialized);

/// The program calls into a runtime that cannot be found: nothing sensible is left to do.
fn missing(name: &CStr) -> ! {
    eprintln!(
        "corefit: {} was called, but no OpenMP runtime is loaded",
        name.to_string_lossy()
    );
    std::process::abort()
}

fn real(number: usize, caller: usize) -> &'static runtime::Site {
    let name = NAMES[number];
    runtime::site(caller, number, name).unwrap_or_else(|| missing(name))
}

/// A libgomp region that asks for `threads` (0: as the runtime decides).
extern "C" fn enter(number: usize, threads: u32, caller: usize) -> Jump {
    let site = real(number, caller);
    let threads = region::size(site.runtime, threads).unwrap_or(threads);
    Jump {
        target: site.target,
        threads: threads.into(),
    }
}

/// A libomp region. The clause, if any, came before through `__kmpc_push_num_threads`.
extern "C" fn enter_fork(number: usize, _: u32, caller: usize, location: *const c_void) -> Jump {
    let site = real(number, caller);
    let clause = CLAUSE.replace(0);
    if let Some(threads) = region::size(site.runtime, clause) {
        site.runtime.push_threads(location, threads);
    }
    Jump {
        target: site.target,
        threads: 0,
    }
}

/// A `num_threads` clause (third argument) for the next region of this thread.
extern "C" fn enter_push(number: usize, threads: u32, caller: usize) -> Jump {
    CLAUSE.set(threads);
    Jump {
        target: real(number, caller).target,
        threads: 0,
    }
}

/// A region that an `if` clause serialised: it uses the clause up.
extern "C" fn enter_serialized(number: usize, _: u32, caller: usize) -> Jump {
    CLAUSE.set(0);
    Jump {
        target: real(number, caller).target,
        threads: 0,
    }
}
