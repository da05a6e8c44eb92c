//! What it answers, and does or not, by what happened to it.

use corefit_core::machine::{Lever, MachineError, Value};
use corefit_core::{CpuId, CpuSet};

use super::{Faulty, VCPUS, by_call};
use crate::manage::journal::testing::syncs;
use crate::manage::keeper::is_guests;

impl Faulty {
    /// What it says that a setting is.
    pub(super) fn answer(&mut self, number: u32, lever: Lever) -> Result<Value, MachineError> {
        if matches!(lever, Lever::Online | Lever::Told) {
            self.asked.push(number);
        }
        self.reach(number, lever)?;
        let silent = self.mute && self.queued.iter().any(|(vm, ..)| *vm == number);
        if silent && self.waits(number, lever) {
            return Err(MachineError::Gone("it did not answer just now".into()));
        }
        if let Lever::VcpuQuota(vcpu) | Lever::Affinity(vcpu) | Lever::Slice(vcpu) = lever
            && self.plugging.contains(&number)
            && matches!(self.read(number, Lever::Online)?, Value::Vcpus(online) if !online.contains(CpuId(vcpu)))
        {
            return Err(match lever {
                Lever::Slice(_) => MachineError::Gone("it has no such thread".into()),
                _ => MachineError::Unsupported("it has no such control group".into()),
            });
        }
        if lever == Lever::Online && self.forbidding.contains(&number) {
            return match self.by_guests.contains(&number) {
                true => Err(MachineError::Gone("its agent does not say now which are online".into())),
                false => Ok(Value::Vcpus(CpuSet::first(VCPUS))),
            };
        }
        let value = self.read(number, lever)?;
        if lever == Lever::Online {
            self.read.insert(number, value.clone());
        }
        Ok(value)
    }

    /// What it does and says of a write.
    pub(super) fn make_it(&mut self, number: u32, lever: Lever, value: &Value) -> Result<(), MachineError> {
        self.may_write(number, lever)?;
        self.synced.get_or_insert_with(syncs);
        if self.slow_of.is_none_or(|vm| vm == number) {
            std::thread::sleep(self.slow);
        }
        self.touched.insert(number);
        if self.waits(number, lever) {
            self.queued.push((number, lever, value.clone()));
            return Err(MachineError::Gone("no answer within 4 s".into()));
        }
        if lever == Lever::Online && self.tardy.remove(&number) {
            self.hung.insert(number);
            return Err(MachineError::Gone("no answer within 4 s".into()));
        }
        let now = self.read(number, lever)?;
        if lever == Lever::Online && self.read.get(&number) != Some(&now) {
            return Err(MachineError::Untried("others are online than just before".into()));
        }
        if lever == Lever::Online && self.forbidding.contains(&number) {
            return Err(MachineError::Unsupported(
                "its agent may not, and all were there at its start".into(),
            ));
        }
        if lever == Lever::Told && self.untold.contains(&number) {
            return Err(MachineError::Gone("the write was not answered".into()));
        }
        // (Of a guest whose vCPUs are plugged libvirtd says what there is.)
        let by_guest = lever == Lever::Online && !self.late.contains_key(&number);
        if self.lying.contains(&number) && by_guest {
            return Ok(());
        }
        let left = self.unplugged.get(&number);
        if matches!((value, left), (Value::Vcpus(want), Some(left)) if !want.is_within(left)) {
            return Err(MachineError::Gone("of its vCPUs somebody else plugged out some".into()));
        }
        if self.halfway.contains(&number) && by_guest {
            let Value::Vcpus(have) = self.read(number, lever)? else { unreachable!() };
            let Value::Vcpus(want) = value else { unreachable!() };
            let (have, want) = (u32::try_from(have.len()).unwrap(), u32::try_from(want.len()).unwrap());
            let step = if want < have { have - 1 } else { (have + 1).min(want) };
            self.write(number, lever, &Value::Vcpus(CpuSet::first(step)))?;
            return Err(MachineError::Gone("it stopped halfway".into()));
        }
        if by_guest && !self.plugging.contains(&number) {
            self.by_guests.insert(number);
        }
        let changes = u32::from(self.read(number, lever)? != *value);
        *self.writes.entry(lever.kind()).or_insert(0) += changes;
        match value {
            Value::Limit(to) => self.write_in_steps(number, lever, *to)?,
            Value::Vcpus(want) if self.late.contains_key(&number) => self.plug(number, want)?,
            value => self.write(number, lever, value)?,
        }
        let lost = self.losing.contains(&number) && (by_call(lever) || is_guests(lever));
        if lost { Err(MachineError::Gone("no answer within 4 s".into())) } else { Ok(()) }
    }

    /// The same of what a VM is to carry.
    pub(super) fn carry(&mut self, number: u32, text: Option<&str>) -> Result<(), MachineError> {
        self.may_write(number, Lever::Weight)?;
        self.touched.insert(number);
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
