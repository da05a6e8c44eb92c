//! `libcorefit_lock.so`: preloaded into a program, it stands in front of the C library's mutexes,
//! spinlocks and condition variables and puts corefit's opportunistic ticket lock in their place.
//!
//! ```text
//!   pthread_mutex_lock(m) ── kind of m (offset 16) normal or adaptive? ── yes ─▶ our word, at offset 0 of m
//!                                  │ recursive, error-check, robust, PI, process-shared
//!                                  ▼
//!                           the C library's own function
//! ```
//!
//! The objects keep their size, their static initialisers (a word of ours that is 0 is free) and what the
//! C library's `init` writes; only the bytes that waiting uses mean something else. What is made to be
//! shared by processes stays the C library's.
//!
//! * `mutex.rs`, `spin.rs`, `cond.rs`: the functions, with the results of glibc's.
//! * `queue.rs`: who waits for which condition variable. `sys.rs`: the switch to loom; `bug.rs`: the bugs that its
//!   tests plant.
//! * `kind.rs`: whose an object is. `real.rs`: the C library's functions.
//!
//! All definitions are unversioned, so that they answer for every version that a program may ask for:
//! `pthread_mutex_trylock@GLIBC_2.2.5` and `@GLIBC_2.34`, `pthread_cond_wait@GLIBC_2.2.5` and `@GLIBC_2.3.2`.
//!
//! C11's `mtx_t` and `cnd_t` stay the C library's, which calls its own functions for them: a program that casts one of them
//! to a `pthread_mutex_t` and uses both kinds of functions on it has no lock.
//!
//! A library loaded with `RTLD_DEEPBIND` or `dlmopen` calls the C library past these, and so does who asks `dlsym`
//! for a function of libc's or libpthread's own handle. That is harmless as long as it shares no mutex of ours, nor a
//! condition variable, with the rest of the program; if it does, they exclude each other no longer, or hang. Nor
//! may processes share a spinlock that was made as private to one, and `__data.__owner` of a mutex stays 0.
//!
//! Nothing here allocates or uses thread-local storage: allocators lock, too.

// The exported functions would replace those of the test program.
#![cfg_attr(test, allow(dead_code, reason = "a test program exports nothing of it"))]

#[cfg(not(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64")))]
compile_error!("libcorefit_lock.so knows the objects of glibc on x86-64 only");

mod bug;
#[cfg(not(modelled))]
mod cond;
#[cfg(not(modelled))]
mod kind;
#[cfg(all(test, modelled))]
mod model_tests;
#[cfg(not(modelled))]
mod mutex;
#[cfg(any(test, not(modelled)))]
mod queue;
#[cfg(not(modelled))]
mod real;
#[cfg(not(modelled))]
mod spin;
#[cfg(any(test, not(modelled)))]
mod sys;

#[cfg(not(modelled))]
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// Runs when the library is loaded; other libraries may have locked before.
#[cfg(not(modelled))]
extern "C" fn start() {
    kind::find_flags();
    corefit_lock::prepare_for_fork();
    sys::prepare_for_fork();
    corefit_lock::shared::attach();
}
