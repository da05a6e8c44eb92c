//! What every [`Machine`] keeps to, as checks that each implementation's tests run on it.
//!
//! ```
//! # use corefit_core::machine::{contract, Machine, MachineError, Snapshot};
//! # struct Still(u64);
//! # impl Machine for Still {
//! #     fn name(&self) -> String { "one that stands still".into() }
//! #     fn observe(&mut self) -> Result<Snapshot, MachineError> {
//! #         Ok(Snapshot { at: corefit_core::Time(self.0), ..Snapshot::default() })
//! #     }
//! #     fn pass(&mut self, time: std::time::Duration) -> Result<bool, MachineError> {
//! #         self.0 += u64::try_from(time.as_nanos()).unwrap();
//! #         Ok(true)
//! #     }
//! # }
//! let mut machine = Still(0);
//! contract::observing(&mut machine, std::time::Duration::from_millis(100)).unwrap();
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::snapshot::{Counters, Snapshot, VmState};
use super::{Machine, estimate};
use crate::entitle::WEIGHTS;
use crate::{Quota, Weight};

/// Observes a machine three times, and says what is wrong: in a snapshot, between two of them, or
/// with what [`estimate`] makes of them.
///
/// # Errors
/// A text for the failing test to show.
pub fn observing(machine: &mut dyn Machine, interval: Duration) -> Result<(), String> {
    let look = |machine: &mut dyn Machine| machine.observe().map_err(|e| format!("observing: {e}"));
    if machine.name().is_empty() {
        return Err("it has no name".into());
    }
    let mut before = look(machine)?;
    snapshot(&before)?;
    for _ in 0..2 {
        let more = machine.pass(interval).map_err(|e| format!("letting time pass: {e}"))?;
        let after = look(machine)?;
        snapshot(&after)?;
        if more && after.at.since(before.at) < interval {
            return Err(format!("{interval:?} passed, but from {:?} to {:?}", before.at, after.at));
        }
        if !more && after.at < before.at {
            return Err("it ended, and went back in time".into());
        }
        forward(&before, &after)?;
        estimate(&before, &after).map_err(|e| format!("estimating: {e}"))?;
        before = after;
    }
    Ok(())
}

/// Whether a snapshot is consistent in itself.
///
/// # Errors
/// What is wrong, for people.
pub fn snapshot(snapshot: &Snapshot) -> Result<(), String> {
    let mut names = BTreeSet::new();
    let mut parents = BTreeSet::new();
    for group in &snapshot.groups {
        known(&parents, group.parent.as_deref(), &group.name)?;
        unique(&mut names, &group.name)?;
        numbers(&group.name, group.weight, group.quota.as_ref())?;
        parents.insert(group.name.as_str());
    }
    let mut ids = BTreeSet::new();
    let (pcpus, _) = snapshot.pcpu_sets();
    if pcpus.len() != snapshot.pcpus.len() {
        return Err("a pCPU is listed twice".into());
    }
    for vm in &snapshot.vms {
        known(&parents, vm.parent.as_deref(), &vm.name)?;
        unique(&mut names, &vm.name)?;
        if !ids.insert(&vm.id) {
            return Err(format!("{}: another VM has its id {:?}", vm.name, vm.id.0));
        }
        numbers(&vm.name, vm.weight, vm.quota.as_ref())?;
        for (number, vcpu) in vm.vcpus.iter().enumerate() {
            numbers(&format!("{}, vCPU {number}", vm.name), vcpu.weight, vcpu.quota.as_ref())?;
        }
        for helper in &vm.helpers {
            numbers(&format!("{}, {}", vm.name, helper.name), helper.weight, helper.quota.as_ref())?;
        }
        for vcpu in &vm.vcpus {
            let outside = vcpu.affinity.as_ref().map(|set| set.difference(&pcpus));
            if let Some(outside) = outside.filter(|set| !set.is_empty()) {
                return Err(format!("{}: may use pCPUs that do not exist: {outside}", vm.name));
            }
        }
    }
    Ok(())
}

fn known(parents: &BTreeSet<&str>, parent: Option<&str>, of: &str) -> Result<(), String> {
    match parent {
        Some(parent) if !parents.contains(parent) => Err(format!("{of}: no group {parent:?} before it")),
        _ => Ok(()),
    }
}

/// Weights and quotas that a scheduler can have.
fn numbers(of: &str, weight: Option<Weight>, quota: Option<&Quota>) -> Result<(), String> {
    if let Some(Weight(weight)) = weight.filter(|weight| !WEIGHTS.contains(&weight.0)) {
        return Err(format!("{of}: weight {weight}, which no scheduler has"));
    }
    match quota {
        Some(Quota { period_us: 0, .. }) => Err(format!("{of}: a quota with a period of 0")),
        Some(Quota { quota_us: Some(0), .. }) => Err(format!("{of}: a quota of 0")),
        _ => Ok(()),
    }
}

fn unique<'a>(names: &mut BTreeSet<&'a str>, name: &'a str) -> Result<(), String> {
    if names.insert(name) { Ok(()) } else { Err(format!("two groups or VMs are called {name:?}")) }
}

/// Counters of what lives in both snapshots only grow.
fn forward(before: &Snapshot, after: &Snapshot) -> Result<(), String> {
    let earlier: BTreeMap<_, &VmState> = before.vms.iter().map(|vm| (&vm.id, vm)).collect();
    for vm in &after.vms {
        let Some(old) = earlier.get(&vm.id) else { continue };
        let mut pairs: Vec<(Counters, Counters)> = Vec::new();
        pairs.extend(old.vcpus.iter().zip(&vm.vcpus).map(|(a, b)| (a.counters, b.counters)));
        pairs.extend(old.whole.zip(vm.whole));
        for (old, new) in pairs {
            let back = |a: Option<u64>, b: Option<u64>| a.zip(b).is_some_and(|(a, b)| b < a);
            if back(old.run_ns, new.run_ns) || back(old.wait_ns, new.wait_ns) {
                return Err(format!("{}: counters ran backwards: {old:?}, then {new:?}", vm.name));
            }
        }
    }
    Ok(())
}
