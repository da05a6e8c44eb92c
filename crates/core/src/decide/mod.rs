//! What to change on a host, and why: the corridor from an estimate to a plan.
//!
//! ```text
//! Snapshot ──estimate──▶ arbitrate ──▶ size ──▶ place ──▶ shape ──▶ Plan ──▶ who applies it
//!                                        ▲                                        │
//!                                        └──────────────── Outcome ◀──────────────┘
//! ```

pub mod place;

use crate::machine::{Lever, MachineError, Value, VmId};

/// What to change, in the order in which to change it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Each change, with its reason.
    pub actions: Vec<Action>,
}

/// A change of one setting.
#[derive(Clone, Debug, PartialEq)]
pub struct Action {
    /// Whose.
    pub vm: VmId,
    /// Its name, for people.
    pub name: String,
    /// Which setting.
    pub lever: Lever,
    /// What it was when this was decided; `None` if it was not seen.
    pub from: Option<Value>,
    /// What it should be.
    pub to: Value,
    /// Because of what.
    pub why: Why,
}

/// What became of an action.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// What was tried.
    pub action: Action,
    /// What was read back afterwards, or why nothing could be written.
    pub result: Result<Value, MachineError>,
}

/// The reason for an action, as data; its text is for people.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Why {
    /// The VM has other than the number of vCPUs that it has pCPUs available.
    #[error("{available} pCPUs are available to it")]
    Available {
        /// pCPUs.
        available: crate::Cpus,
    },
    /// Where it is better off.
    #[error("{0}")]
    Placed(crate::place::Reason),
    /// The nodes of the pCPUs that its vCPUs are given.
    #[error("its vCPUs are on these nodes")]
    Nodes,
}
