//! A simulated host: what happens to parallel programs in VMs that share pCPUs.
//!
//! Pure as `corefit-core` is: no clock, no files, no maps without order (`clippy.toml`). A run is a
//! function of its [`Spec`], seed included, to the last byte. `docs/simulator.md` has the
//! sources and the known gaps of each part.
//!
//! # Wiring
//!
//! ```text
//! scenario (TOML) ──▶ Spec ──▶ Sim ──▶ Truth                     for reports and tests
//!                               │ └──▶ SimMachine: Snapshot      for controllers, as of a real host
//!                               │
//!   queue ── next ──▶ host ◀── sched (trait): cfs, credit, …     vCPUs on pCPUs   (host/hyper.rs)
//!                      │  ◀── hardware: who slows down whom
//!                      ├── guest: threads on vCPUs               (host/guest.rs)
//!                      ├── exec: operations of programs          (host/exec.rs, program/)
//!                      ├── locks, teams: threads wait            (host/locks.rs, host/teams.rs)
//!                      ├── change: vCPUs and teams at run time   (host/change.rs)
//!                      ├── account: where the time went          (host/account.rs)
//!                      └─▶ trace: what changed, for Perfetto      (trace/)
//! ```
//!
//! # Events
//!
//! One slot per pCPU holds when something happens there next: the running thread's operation, its spinning
//! or its guest slice ends; PLE notices; the hypervisor's slice or a quota ends; a reschedule arrives. All
//! else is a timer (`host::Event`): starts, ends of sleeps, refills of quotas, the scheduler's own, and the
//! end of accounting periods. Ticks are not events: their effects are computed where they matter.
//!
//! # States
//!
//! ```text
//! pCPU    idle ⇄ busy with a vCPU
//! vCPU    Halted ─▶ Waiting ⇄ Running ─▶ Halted;  Throttled beside Waiting      (cpus.rs)
//! thread  Out ─▶ Ready ⇄ Current ─▶ Blocked ─▶ Ready; a Current one works or spins
//! lock    free ─▶ held ─▶ given to the first in line, or to whoever runs         (host/locks.rs)
//! ```
//!
//! A thread makes progress only while it is Current on a vCPU that is Running, at the pCPU's speed.
//! Overheads are debts of a vCPU, paid before it goes on: that keeps a switch one event.

mod act;
mod cpus;
mod hardware;
mod host;
pub mod keys;
mod machine;
mod policy;
mod program;
mod queue;
mod random;
mod scenario;
mod sched;
mod spec;
mod stuck;
mod trace;
mod truth;

pub use host::{Account, Counts, Sim, SpecError, division};
pub use machine::SimMachine;
pub use program::{CLASSES, NAMES, Program, ProgramError, library, library_class};
pub use scenario::{Events, Scenario, ScenarioError, Set};
pub use spec::*;
pub use stuck::Stuck;
pub use truth::{AppTruth, Truth, VmTruth};
