//! The page shared by corefit and the programs that it runs: layout and meaning.
//!
//! This one file is compiled into both sides (`corefit-linux` includes it by path),
//! so the two cannot disagree. The page is anonymous memory of the corefit process;
//! programs map it through `/proc/PID/fd/N`, so nothing is left on the host when
//! corefit dies, however it dies, and a program keeps the mapping that it has.
//!
//! ```text
//!   corefit                                     program (preload library)
//!   ───────                                     ─────────────────────────
//!                                               first region: claims a slot, requested := …
//!   sees `registrations` change  ◀── futex ───  waits at most ANSWER_WAIT for `answered`
//!   word := policy for this program
//!   answered := 1                 ─── futex ──▶ goes on
//!   …every interval…
//!   word := team | flags          ─── relaxed ▶ read once per region
//! ```
//!
//! All fields are plain atomics; every access may be relaxed but for the
//! claim (`pid`) and the answer, which are acquire/release.

#![allow(dead_code, reason = "each side uses its half")]

use core::sync::atomic::{AtomicU32, AtomicU64};

/// First word of a page that is ours.
pub(crate) const MAGIC: u64 = 0x636f_7265_6669_7401;
/// Layout version; a library that meets another version stays inert.
pub(crate) const VERSION: u32 = 5;
/// Programs (processes) that can follow the page at once; more run at their launch size.
pub(crate) const SLOTS: usize = 63;
/// Environment variable that names the page: `PATH:NONCE`, the nonce in hexadecimal.
pub(crate) const PAGE_VARIABLE: &str = "COREFIT_PAGE";
/// How long a program's first region waits for corefit's answer, in milliseconds:
/// long enough to hash a binary with its libraries, short enough not to be noticed.
pub(crate) const ANSWER_WAIT_MS: u64 = 300;

/// Bits of [`Slot::word`]. Zero: nothing is short, regions run as the program asks.
pub(crate) mod word {
    /// Bits 0 to 15: most threads that a region may have; 0 is no limit.
    pub(crate) const TEAM: u32 = 0xffff;
    /// Every region of this process may be resized (certified, or `--resize always`).
    pub(crate) const ANY: u32 = 1 << 16;
    /// Regions may be resized where OpenMP dynamic adjustment is enabled.
    pub(crate) const DYNAMIC: u32 = 1 << 17;
    /// More threads than CPUs: the runtime should block instead of spinning.
    pub(crate) const QUIET: u32 = 1 << 18;
    /// `corefit certify`: give each region a random size from 1 to what it asks for.
    pub(crate) const RANDOM: u32 = 1 << 19;
    /// Count regions although nothing is short (a probe is being judged).
    pub(crate) const COUNT: u32 = 1 << 20;
    /// Wait for the answer when claiming a slot (only in [`super::Header::policy`]).
    pub(crate) const ASK: u32 = 1 << 21;
    /// `corefit profile`: note when each outermost region begins.
    pub(crate) const TIME: u32 = 1 << 22;
    /// Move the sequential work over the CPUs, in turns of [`super::Page::turn_us`].
    pub(crate) const ROTATE: u32 = 1 << 23;
    /// Not yet registered (never in shared memory).
    pub(crate) const REGISTER: u32 = 1 << 31;
}

/// Bits of [`Slot::runtimes`].
pub(crate) mod runtime {
    /// GNU libgomp.
    pub(crate) const GOMP: u32 = 1;
    /// LLVM libomp or Intel libiomp5.
    pub(crate) const KMP: u32 = 2;
}

/// The page.
#[repr(C, align(64))]
pub(crate) struct Page {
    /// [`MAGIC`].
    pub(crate) magic: u64,
    /// Random value that the environment variable repeats.
    pub(crate) nonce: u64,
    /// [`VERSION`].
    pub(crate) version: u32,
    /// Answer to CPU-count queries of processes that start now; 0 answers the truth.
    pub(crate) nprocs: AtomicU32,
    /// Word of a slot that has just been claimed.
    pub(crate) policy: AtomicU32,
    /// Futex: incremented by each process that claims a slot.
    pub(crate) registrations: AtomicU32,
    /// Seed of the random team sizes of `corefit certify`.
    pub(crate) seed: AtomicU64,
    /// Regions noted in [`Page::begun`] so far.
    pub(crate) noted: AtomicU64,
    /// The thread that notes them, as its address; 0: none yet.
    pub(crate) noter: AtomicU64,
    /// 1 once another thread has begun an outermost region, too.
    pub(crate) several: AtomicU32,
    /// A turn of the sequential work on one CPU, us of its thread's CPU time.
    pub(crate) turn_us: AtomicU32,
    /// One per process.
    pub(crate) slots: [Slot; SLOTS],
    /// The last [`BEGUN`] regions noted: number n stands at n modulo that. Untouched memory costs nothing.
    pub(crate) begun: [Begun; BEGUN],
    /// Processes that found all slots taken.
    pub(crate) refused: AtomicU32,
}

/// Regions that are kept for corefit to read.
pub(crate) const BEGUN: usize = 1 << 14;

/// A region that has begun; written by one thread only.
#[repr(C)]
pub(crate) struct Begun {
    /// When, `CLOCK_BOOTTIME` in ns.
    pub(crate) at: AtomicU64,
    /// Tells regions of the program apart.
    pub(crate) key: AtomicU64,
}

/// What one process and corefit tell each other.
#[repr(C, align(64))]
pub(crate) struct Slot {
    /// corefit → process: see [`word`]. A futex, too: corefit wakes it on change.
    pub(crate) word: AtomicU32,
    /// The process that owns this slot, as corefit sees it; 0 is free.
    pub(crate) pid: AtomicU32,
    /// Futex: 1 once corefit has looked at this registration.
    pub(crate) answered: AtomicU32,
    /// Threads that the last outermost region asked for.
    pub(crate) requested: AtomicU32,
    /// Threads that the last outermost region was given.
    pub(crate) team: AtomicU32,
    /// 1 where the last region ran with OpenMP dynamic adjustment enabled.
    pub(crate) dynamic: AtomicU32,
    /// OpenMP runtimes met, see [`runtime`].
    pub(crate) runtimes: AtomicU32,
    /// CPUs that the runtime believes in (`omp_get_num_procs`).
    pub(crate) procs: AtomicU32,
    /// Outermost regions begun while the word was not zero.
    pub(crate) regions: AtomicU64,
    /// Of those, regions that got fewer threads than they asked for.
    pub(crate) resized: AtomicU64,
    /// Raised by each program that claims the slot: exec keeps the process, and so the slot.
    pub(crate) serial: AtomicU32,
    /// How often the sequential work was moved to another CPU.
    pub(crate) moves: AtomicU32,
    /// How often it was not, as a thread had an affinity of its own.
    pub(crate) bound: AtomicU32,
    /// Fills the slot to one cache line.
    pub(crate) reserved: u32,
}

const _: () = assert!(core::mem::size_of::<Slot>() == 64);
const _: () = assert!(core::mem::offset_of!(Page, begun) == 4096);
