//! The one loop body: a snapshot in, a plan out, and what became of it.

use super::{Outcome, Plan, Policy};
use crate::entitle::HostError;
use crate::machine::{HostEstimate, Snapshot, estimate};

/// Decides for a host, from one snapshot to the next. Knows the time from [`Snapshot::at`] only.
#[derive(Clone, Debug)]
pub struct Controller {
    policy: Policy,
    before: Option<Snapshot>,
}

/// What came out of a snapshot.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// What happened since the snapshot before; nothing at the first.
    pub estimate: Option<HostEstimate>,
    /// What to change.
    pub plan: Plan,
    /// What people should know, each said once.
    pub notes: Vec<String>,
}

impl Controller {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(policy: Policy) -> Controller {
        Controller { policy, before: None }
    }

    /// Another policy from now on; what was learned is kept.
    pub fn reconfigure(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// What to change, by what happened since the last call. The first call has no plan.
    ///
    /// # Errors
    /// If the snapshot has numbers that no host has.
    pub fn step(&mut self, now: &Snapshot) -> Result<Step, HostError> {
        let before = self.before.replace(now.clone());
        let Some(before) = before else { return Ok(Step::default()) };
        let estimate = estimate(&before, now)?;
        Ok(Step { estimate: Some(estimate), ..Step::default() })
    }

    /// What became of the actions of the last plan.
    pub fn told(&mut self, outcomes: &[Outcome]) {
        let _ = outcomes;
    }
}
