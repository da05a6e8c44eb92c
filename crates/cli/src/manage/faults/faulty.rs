//! A simulated machine that things happen to.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use corefit_core::machine::{Act, Lever, Machine, MachineError, Snapshot, Value, VmId};
use corefit_core::{CpuSet, Unread, What};
use corefit_sim::SimMachine;

/// A machine that things happen to.
pub(super) struct Faulty {
    pub(super) sim: SimMachine,
    /// VMs that moved have another id.
    pub(super) moved: BTreeMap<u32, u32>,
    pub(super) kept: BTreeMap<u32, String>,
    pub(super) gone: BTreeSet<u32>,
    /// Guests whose agent does not answer.
    pub(super) hung: BTreeSet<u32>,
    /// Guests whose agent says yes and does nothing.
    pub(super) lying: BTreeSet<u32>,
    /// Guests that take one vCPU offline and then fail.
    pub(super) halfway: BTreeSet<u32>,
    /// VMs that libvirtd could not be asked about in time for a look.
    pub(super) missed: BTreeSet<u32>,
    /// VMs whose notes cannot be taken back.
    pub(super) clinging: BTreeSet<u32>,
    /// VMs that take no notes.
    pub(super) unkeeping: BTreeSet<u32>,
    /// VMs of which the user may not change anything.
    pub(super) denied: BTreeSet<u32>,
    /// libvirtd does not answer.
    pub(super) deaf: bool,
    pub(super) touched: BTreeSet<u32>,
}

impl Faulty {
    pub(super) fn new(sim: SimMachine) -> Faulty {
        let (moved, kept, gone) = Default::default();
        let (hung, lying, halfway, missed, clinging, unkeeping, denied, touched) = Default::default();
        Faulty {
            sim,
            moved,
            kept,
            gone,
            hung,
            lying,
            halfway,
            missed,
            clinging,
            unkeeping,
            denied,
            deaf: false,
            touched,
        }
    }

    pub(super) fn id(&self, vm: u32) -> VmId {
        VmId(format!("sim-{vm}/{}", self.moved.get(&vm).copied().unwrap_or(0)))
    }

    fn number(&self, id: &VmId) -> Result<u32, MachineError> {
        let gone = || MachineError::Gone("no such VM".into());
        let number = id.0.strip_prefix("sim-").and_then(|rest| rest.split_once('/')?.0.parse().ok());
        number.filter(|vm| self.id(*vm) == *id && !self.gone.contains(vm)).ok_or_else(gone)
    }

    fn reach(&self, vm: u32, lever: Lever) -> Result<VmId, MachineError> {
        let guests = matches!(lever, Lever::Online | Lever::Told);
        if self.deaf || (guests && self.hung.contains(&vm)) {
            return Err(MachineError::Gone("no answer".into()));
        }
        if self.denied.contains(&vm) {
            return Err(MachineError::Denied("not for you".into()));
        }
        Ok(VmId(format!("sim-{vm}")))
    }

    /// What it really is.
    pub(super) fn truth(&mut self, vm: u32, lever: Lever) -> Value {
        self.sim.current(&VmId(format!("sim-{vm}")), lever).unwrap()
    }

    pub(super) fn heal(&mut self) {
        (self.deaf, self.hung, self.lying, self.halfway, self.missed) = Default::default();
        (self.clinging, self.unkeeping, self.denied) = Default::default();
    }
}

impl Machine for Faulty {
    fn name(&self) -> String {
        "faulty".into()
    }

    fn observe(&mut self) -> Result<Snapshot, MachineError> {
        if self.deaf {
            return Err(MachineError::Gone("no answer".into()));
        }
        let mut snapshot = self.sim.observe()?;
        for (number, vm) in (0..).zip(&mut snapshot.vms) {
            (vm.id, vm.name) = (self.id(number), format!("vm{number}"));
            vm.kept = self.kept.get(&number).cloned();
        }
        snapshot.vms.retain(|vm| self.number(&vm.id).is_ok());
        for vm in self.missed.iter().filter(|vm| !self.gone.contains(vm)) {
            let id = self.id(*vm);
            snapshot.vms.retain(|vm| vm.id != id);
            let (path, why) = (format!("VM \"vm{vm}\""), "not asked for yet".into());
            snapshot.unread.push(Unread { what: What::Siblings, path, why });
        }
        Ok(snapshot)
    }

    fn pass(&mut self, time: Duration) -> Result<bool, MachineError> {
        self.sim.pass(time)
    }
}

impl Act for Faulty {
    fn current(&mut self, vm: &VmId, lever: Lever) -> Result<Value, MachineError> {
        let number = self.number(vm).map_err(|error| match lever {
            // As where a control group is looked for on this machine.
            Lever::VcpuQuota(_) => MachineError::Unsupported("it has no such control group".into()),
            _ => error,
        })?;
        let id = self.reach(number, lever)?;
        self.sim.current(&id, lever)
    }

    fn set(&mut self, vm: &VmId, lever: Lever, value: &Value) -> Result<(), MachineError> {
        let number = self.number(vm)?;
        let id = self.reach(number, lever)?;
        self.touched.insert(number);
        if self.lying.contains(&number) && lever == Lever::Online {
            return Ok(());
        }
        if self.halfway.contains(&number) && lever == Lever::Online {
            let Value::Vcpus(have) = self.sim.current(&id, lever)? else { unreachable!() };
            let Value::Vcpus(want) = value else { unreachable!() };
            let (have, want) = (u32::try_from(have.len()).unwrap(), u32::try_from(want.len()).unwrap());
            let step = if want < have { have - 1 } else { (have + 1).min(want) };
            self.sim.set(&id, lever, &Value::Vcpus(CpuSet::first(step)))?;
            return Err(MachineError::Gone("it stopped halfway".into()));
        }
        self.sim.set(&id, lever, value)
    }

    fn keep(&mut self, vm: &VmId, text: Option<&str>) -> Result<(), MachineError> {
        let number = self.number(vm)?;
        self.reach(number, Lever::Weight)?;
        match text {
            _ if text.is_some() && self.unkeeping.contains(&number) => {
                return Err(MachineError::Gone("no answer".into()));
            }
            Some(text) => self.kept.insert(number, text.into()),
            None if self.clinging.contains(&number) => return Err(MachineError::Gone("no answer".into())),
            None => self.kept.remove(&number),
        };
        Ok(())
    }
}
