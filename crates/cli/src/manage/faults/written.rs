//! What was written to a simulated machine, by corefit and by hand: what can be told of it without asking corefit.

use std::collections::{BTreeMap, BTreeSet};

use corefit_core::machine::{Lever, LeverKind, Limit, MachineError, Value, VmId};

use super::Random;

/// A setting of a VM, by its number.
pub(super) type Place = (u32, Lever);

#[derive(Default)]
pub(super) struct Written {
    /// What corefit asked for, done or not, since that was taken last.
    pub(super) sets: Vec<(Place, Value)>,
    /// What somebody else made of settings since that was taken last.
    pub(super) by_hand: Vec<ByHand>,
    /// VMs of which a call failed, or did nothing, since that was taken last.
    pub(super) failed: BTreeSet<u32>,
    /// Settings that have what corefit wrote last, which it has read back.
    settled: BTreeMap<Place, Value>,
    /// All that corefit ever asked for.
    ever: BTreeMap<Place, Vec<Value>>,
    /// What it wrote just now, and has not read back yet; `None`: that failed.
    just: Option<(Place, Option<Value>)>,
}

/// Somebody else changed a setting.
pub(super) struct ByHand {
    /// What its VM was called then.
    pub(super) vm: VmId,
    pub(super) place: Place,
    pub(super) value: Value,
    /// What corefit had made it, if that was sure.
    pub(super) settled: Option<Value>,
    /// It was changed in the middle of a batch.
    pub(super) within: bool,
}

impl Written {
    /// Corefit is about to write it; what comes of that is not known yet, if it is killed now.
    pub(super) fn asked(&mut self, place: Place, value: &Value) {
        self.sets.push((place, value.clone()));
        let ever = self.ever.entry(place).or_default();
        if !ever.contains(value) {
            ever.push(value.clone());
        }
        self.settled.remove(&place);
        self.just = None;
    }

    pub(super) fn answered(&mut self, place: Place, value: &Value, result: &Result<(), MachineError>) {
        self.just = Some((place, result.is_ok().then(|| value.clone())));
        if result.is_err() {
            self.failed.insert(place.0);
        }
    }

    /// Whether the next read of a setting is the one that follows a write of it.
    pub(super) fn reads_back(&self, place: Place) -> bool {
        self.just.as_ref().is_some_and(|(just, _)| *just == place)
    }

    pub(super) fn read(&mut self, place: Place, result: &Result<Value, MachineError>) {
        let wrote = self.just.take().filter(|(just, _)| *just == place).and_then(|(_, wrote)| wrote);
        match (wrote, result) {
            (Some(wrote), Ok(read)) if wrote == *read => drop(self.settled.insert(place, wrote)),
            (None, Ok(_)) => {}
            // It said that it was done, and was not.
            _ => drop(self.failed.insert(place.0)),
        }
    }

    /// What a VM carries may say something else than is so.
    pub(super) fn unkept(&mut self, vm: u32) {
        self.failed.insert(vm);
        self.unknown(vm);
    }

    /// Somebody else writes a setting.
    pub(super) fn hand(&mut self, vm: VmId, place: Place, value: &Value, within: bool) {
        let settled = self.settled.remove(&place);
        self.by_hand.push(ByHand { vm, place, value: value.clone(), settled, within });
    }

    /// Of no setting is it sure any more what corefit knows of it.
    pub(super) fn unsettle(&mut self) {
        self.settled.clear();
        self.just = None;
    }

    /// What corefit knows of a VM's settings may be something else than is so: it has another id now, or carries something else.
    pub(super) fn unknown(&mut self, vm: u32) {
        self.settled.retain(|(of, _), _| *of != vm);
    }

    /// A value that corefit once wrote, and that is surely neither what a setting has now nor taken for a part on the way to that;
    /// `was`: what it was before.
    pub(super) fn once(&self, random: &mut Random, place: Place, was: &Value) -> Option<Value> {
        let now = self.settled.get(&place)?;
        // Slices are marked; what a guest is told is any user's; and who gives one vCPU what others have may have given it to all.
        if matches!(place.1.kind(), LeverKind::Told | LeverKind::Slice | LeverKind::VcpuQuota) {
            return None;
        }
        let plain = |value: &Value| match value {
            Value::Limit(limit) => Value::Limit(Limit { burst_us: 0, ..*limit }),
            value => value.clone(),
        };
        let sure = |value: &Value| value != was && value != now && !is_between(value, was, now);
        let values: Vec<Value> = self.ever.get(&place)?.iter().map(plain).filter(sure).collect();
        (!values.is_empty()).then(|| values[random.below(values.len())].clone())
    }

    /// One of the settings of which it is sure what corefit made them.
    pub(super) fn changed(&self, random: &mut Random) -> Option<Place> {
        let at = random.below(self.settled.len());
        self.settled.keys().nth(at).copied()
    }

    /// Whether corefit never wrote this, nor was killed before it could.
    pub(super) fn never(&self, place: Place, value: &Value) -> bool {
        self.settled.contains_key(&place) && self.ever.get(&place).is_none_or(|ever| !ever.contains(value))
    }
}

/// Whether a value may come out where one is changed into another in parts, and somebody is killed meanwhile; and vCPUs that are neither
/// in the one nor in the other are taken for plugged in.
fn is_between(value: &Value, was: &Value, now: &Value) -> bool {
    match (value, was, now) {
        (Value::Vcpus(value), Value::Vcpus(was), Value::Vcpus(now)) => was.intersection(now).is_within(value),
        (Value::Limit(value), Value::Limit(was), Value::Limit(now)) => {
            [was, now].iter().any(|end| end.quota_us == value.quota_us)
        }
        _ => false,
    }
}
