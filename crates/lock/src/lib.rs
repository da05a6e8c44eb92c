//! An opportunistic ticket lock of four bytes: fair like a queue, and without the collapse of queues
//! when there are more threads than CPUs.
//!
//! ```
//! use corefit_lock::Mutex;
//!
//! static TOTAL: Mutex<u64> = Mutex::new(0);
//! std::thread::scope(|scope| {
//!     for n in 1..=4 {
//!         scope.spawn(move || *TOTAL.lock() += n);
//!     }
//! });
//! assert_eq!(*TOTAL.lock(), 10);
//! ```
//!
//! The idea is Kashyap, Min and Kim's ("Scalability in the Clouds! A Myth or Reality?", APSys 2015):
//! waiters near the head spin, those further back sleep, and a release wakes the next ones early. To it
//! come budgets that are measured instead of counted, and the *bounded bypass*: while the head is still
//! being woken, a running thread may take the lock, at most B times per waiter.
//!
//! * `word.rs`: the bits, and every step as a pure function. `raw.rs`: the algorithm.
//! * `place.rs`: where waiters sleep. `deadline.rs`, `given_up.rs`: timed waits, and those that ran out.
//!   `fork.rs`, `maps.rs`: the child.
//! * `policy.rs`: presets. `tune.rs`: what is measured.
//! * `mutex.rs`: the Rust face. `c.rs`: the C face, `include/corefit_lock.h`. `face.rs`: what the latter
//!   and the pthread face (crate `corefit-lock-preload`) are made of. `stats.rs`, `shared.rs`: what is counted,
//!   and where.
//! * `sys.rs`: the switch to loom and shuttle; `bug.rs`, `planted.rs`: the bugs that the tests plant.
//! * `peers/`: the locks that ours is measured against.
//!
//! A timed wait that runs out leaves the line: the last in line gives its ticket back, any other enters it
//! among the missing, and the release that finds it at the head passes over it. Leaking a guard and freeing
//! the lock while such a ticket is in its line is the one thing that this does not survive.
//!
//! A program's processes cannot share such a lock: its waiters sleep in memory of their own process.

// Under loom the faces are left out, and only the tests use the rest.
#![cfg_attr(all(modelled, not(test)), allow(dead_code, unused_imports))]

#[cfg(not(target_os = "linux"))]
compile_error!("corefit-lock sleeps on Linux futexes");

mod bug;
#[cfg(not(modelled))]
pub mod c;
mod deadline;
#[cfg(not(modelled))]
pub mod face;
#[cfg(not(modelled))]
mod fork;
mod given_up;
#[cfg(not(modelled))]
mod maps;
#[cfg(all(test, modelled))]
mod model_tests;
#[cfg(not(modelled))]
mod mutex;
#[cfg(all(feature = "peers", not(modelled)))]
pub mod peers;
mod place;
mod policy;
mod raw;
#[cfg(not(modelled))]
pub mod shared;
pub mod stats;
mod sys;
mod tune;
pub mod word;

pub use deadline::{Clock, Deadline};
#[cfg(not(modelled))]
pub use mutex::{Default, Fifo, FifoMutex, Mutex, MutexGuard, Paper, Preset, RawMutex};
pub use policy::{Policy, Spin, Wake};

/// Sees to it that a forked child empties the lines of its locks; else the first thread that waits does.
/// It takes locks of the C library, so a face that stands below the allocator calls it early.
#[cfg(not(modelled))]
pub fn prepare_for_fork() {
    fork::prepare();
}
