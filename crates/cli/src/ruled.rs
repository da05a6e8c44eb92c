//! A simulated host under a controller: look, decide, apply, tell, until time may pass. Whoever simulates one decides for how
//! long it passes, and what is measured meanwhile.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;
use corefit_core::decide::{Controller, Policy, apply};
use corefit_core::machine::{Machine, VmId};
use corefit_sim::{Sim, SimMachine};

/// Guests are not told what they get, so teams of their programs keep their sizes.
pub(crate) struct Ruled {
    pub(crate) machine: SimMachine,
    controller: Controller,
    said: BTreeSet<String>,
}

/// What a step did.
pub(crate) struct Done {
    /// Something was to be changed.
    pub(crate) changed: bool,
    /// What people should know, each thing once.
    pub(crate) notes: Vec<String>,
    /// When to look again.
    pub(crate) next: Duration,
}

impl Ruled {
    pub(crate) fn new(machine: SimMachine, policy: Policy) -> Ruled {
        Ruled { machine, controller: Controller::new(policy), said: BTreeSet::new() }
    }

    /// What really happened.
    pub(crate) fn sim(&self) -> &Sim {
        self.machine.sim()
    }

    /// Whether numbers of a VM's vCPUs are tried now.
    pub(crate) fn tries(&self, vm: &VmId) -> bool {
        self.controller.tries(vm)
    }

    /// Everything but that time passes.
    ///
    /// # Errors
    /// If the host cannot be, which is a mistake of the simulation.
    pub(crate) fn step(&mut self) -> Result<Done> {
        let mut step = self.controller.step(&self.machine.observe()?)?;
        step.notes.retain(|note| self.said.insert(note.clone()));
        let outcomes = apply(&mut self.machine, &step.plan.actions);
        self.controller.told(&outcomes);
        Ok(Done { changed: !outcomes.is_empty(), notes: step.notes, next: step.next })
    }
}
