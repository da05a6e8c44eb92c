//! A machine: something with pCPUs that VMs share, seen from outside.
//!
//! ```text
//! Machine ──observe──▶ Snapshot ┐
//!    │ pass(time)               ├─estimate──▶ HostEstimate: what each VM gets, and why
//! Machine ──observe──▶ Snapshot ┘
//! ```
//!
//! Real hosts (libvirt, control groups), replays of recordings and simulated hosts implement
//! [`Machine`]; [`contract`] holds what all of them must keep to, as checks that their tests run.
//! A [`Snapshot`] holds raw counters as the machine shows them; [`estimate`] derives everything
//! else from two of them. Nothing but an implementation of `Machine` knows which one it is.

mod act;
mod cache;
pub mod contract;
mod estimate;
mod snapshot;
mod starved;
pub(crate) mod timeslices;
mod unsure;

use std::time::Duration;

pub use act::{Act, Fixed, LETS_GO, Lever, LeverKind, Limit, SLICE_MARK_NS, Value, is_our_slice};
pub use cache::{CacheRate, CacheUse, Classed, HOLDS, Origin, TRAFFIC};
pub(crate) use estimate::estimate_briefly;
pub use estimate::{Activity, HostEstimate, PcpuEstimate, VmEstimate, estimate};
pub use snapshot::{
    Counters, FairSlices, Group, GuestVcpu, GuestView, Helper, Pcpu, Role, Snapshot, State, VcpuState, VmId,
    VmState,
};
pub use starved::Starved;
pub use timeslices::{Slices, Timeslices};

/// A host that can be observed.
pub trait Machine {
    /// Which one, for people: `libvirt qemu:///system`, `replay of night.cfr`.
    fn name(&self) -> String;

    /// What it shows now. Takes no longer than the implementation's own timeout; parts that hang,
    /// vanish meanwhile or may not be read are left out and named in [`Snapshot::unread`].
    ///
    /// # Errors
    /// If nothing useful can be said: see [`MachineError`].
    fn observe(&mut self) -> Result<Snapshot, MachineError>;

    /// Lets time pass: a real host sleeps, a simulated one works, a replay goes to the first snapshot
    /// that is at least so much later. `false` if it ended there (the recording is over); then
    /// [`observe`](Machine::observe) gives the last snapshot again.
    ///
    /// # Errors
    /// As [`observe`](Machine::observe).
    fn pass(&mut self, time: Duration) -> Result<bool, MachineError>;
}

/// Why a machine cannot be observed. Each text names the place and, where there is one, the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MachineError {
    /// It cannot do this at all; asking again is useless.
    #[error("{0}")]
    Unsupported(String),
    /// It is not there (any more), or does not answer in time; asking again may help.
    #[error("{0}")]
    Gone(String),
    /// Nothing was written: there was no time, what it has could not be noted first, or it is not what it was when it was read. That says
    /// nothing about who has it.
    #[error("{0}")]
    Untried(String),
    /// The user may not.
    #[error("{0}")]
    Denied(String),
    /// It said something that makes no sense.
    #[error("{0}")]
    Malformed(String),
}
