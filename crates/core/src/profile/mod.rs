//! How a program scales on machines and VMs that it has not run on, from what its threads did in one run (P1).
//!
//! ```text
//! looks ─▶ Recorder ─▶ Series ─▶ steps ─┬─▶ features   parallelism, synchronisation, type, imbalance
//!  (counters of       (slots of  (what  ├─▶ replay     how long the same work takes on another machine or VM
//!   each thread)       a few ms)  each  └─▶ predict    speedups with their terms and ranges, what limits them
//!                                 slot takes with a core for each thread)     ▲
//!  probes of a reporter, alone and beside the program ─▶ contention ──────────┘  how much threads slow each other
//! ```
//!
//! **Work is what threads ran**, spinning left out where it is known, and less what they slow each other (`contention`). A slot in which threads waited for CPUs would
//! have been shorter with a core for each thread: `steps` works that out, so that a program can be profiled on
//! fewer cores than it has threads. A VM is then replayed: each vCPU may run `share x period` in each allocation
//! period, what it leaves is lost (P1 II-A), and a thread that had stopped waits for those it waited for. Beside busy neighbours
//! threads that block take turns (`manner`).
//!
//! *Worked example* (P1, Figure 6): iterations of 2 units by one thread and 1 unit by each of four; 4 vCPUs with half
//! of periods of 12 units. The first vCPU has run its 6 units after two iterations; 12 units of work are done in
//! the period, against 6 on one vCPU: speedup 2. If the sequential units rotate, each vCPU has 6 units of work
//! in four iterations: 24 units, speedup 4. Tests in `replay` do exactly this.
//!
//! Mathematics: docs/profile.md.

mod contention;
mod features;
mod limits;
mod manner;
mod on_vm;
mod paper;
mod predict;
mod regions;
mod replay;
mod series;
mod steps;
mod usl;

pub use contention::{Contention, Probe};
pub use features::{Features, PARALLEL, Stretch, Type, potential};
pub use on_vm::{OnVm, Range};
pub use paper::PROGRAMS;
pub use predict::{Machine, Profile, Question, Record, Spin, analyse};
pub use regions::{OneCpu, Turns};
pub use replay::{Division, Outcome, Vm, replay};
pub use series::{Look, Recorder, Series, Status, ThreadLook};
pub use steps::{Phase, Step, mixing, steps};
pub use usl::Usl;
