//! `libcorefit_omp.so`: lets `corefit run` size the thread teams of a running program.
//!
//! Preloaded into a program, it stands in front of the OpenMP runtimes' entry points:
//!
//! ```text
//!   program ──GOMP_parallel(fn, data, 0)──▶ [entry.rs: trampoline]
//!                                               │ one relaxed load of the word
//!                                               │ zero? nothing is short: straight on
//!                                               ▼
//!                                           [region.rs: may it be resized? to what?]
//!                                               ▼
//!                       libgomp / libomp ◀── GOMP_parallel(fn, data, 2)
//! ```
//!
//! * `page.rs`: the page shared with corefit; `session.rs`: this process's link to it, and its slot.
//! * `entry.rs`: the exported entry points, in assembly, since some are variadic.
//! * `binding.rs`: which of several loaded OpenMP runtimes a call was meant for;
//!   `objects.rs`, `later.rs` and `runtime.rs`: what is loaded, and the functions of a runtime;
//!   `next.rs`: the functions that ours stand in front of.
//! * `region.rs`, `random.rs`: the decision per region.
//! * `rotate.rs`: moving the sequential work over the CPUs.
//! * `watch.rs`, `threads.rs`: a thread of ours that sees changes while no region begins.
//! * `quiet.rs`, `park.rs`: stopping libomp's and libgomp's spinning at run time.
//! * `counts.rs`, `lately.rs`: answers to "how many CPUs are there".
//!
//! In a program that corefit did not start it does nothing at all.

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("libcorefit_omp has entry points for x86-64 Linux only");

mod binding;
mod counts;
mod entry;
mod lately;
mod later;
mod next;
mod objects;
mod page;
mod park;
mod quiet;
mod random;
mod region;
mod rotate;
mod runtime;
mod session;
mod threads;
mod watch;
