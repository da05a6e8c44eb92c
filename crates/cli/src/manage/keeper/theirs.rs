//! What somebody else changed after us: that stands, and is left alone.

use std::collections::BTreeSet;

use corefit_core::CpuSet;
use corefit_core::decide::Action;
use corefit_core::machine::{Act, Fixed, Lever, LeverKind, MachineError, Snapshot, Value, VmId, VmState};

use super::{
    Keeper, grown, is_guests, is_ours, key, may_be_back, rest_of_ours, same, shrunk, somebody_put_back,
};
use crate::manage::journal::Entry;
use crate::manage::{present, systemd};

/// When vCPUs are sized again that somebody else set.
pub(in crate::manage) const LEFT_UNTIL: &str =
    "until the configuration is read again (SIGHUP) or corefit starts again";

impl Keeper {
    /// What somebody else made of a setting that we changed, by a look of now: neither what we wrote nor what it was. pCPUs that are
    /// `offline` may be missing.
    pub(crate) fn changed_since(entry: &Entry, vm: &VmState, offline: &CpuSet) -> Option<Value> {
        let now = present::of(vm, entry.lever)?;
        let seen = |value: &Value| match value {
            // That of the group above (v2): it may be anything.
            Value::Pcpus(set) if set.is_empty() => None,
            Value::Pcpus(set) => Some(Value::Pcpus(set.difference(offline))),
            value => Some(value.clone()),
        };
        let found = seen(&now)?;
        let is = |value: &Value| seen(value).is_none_or(|value| same(&value, &found));
        let grown = grown(entry, &now);
        let entry = grown.as_ref().unwrap_or(entry);
        let shrunk = match &entry.original {
            Value::Vcpus(set) => shrunk(entry, &Value::Vcpus(set.difference(&present::left_out(vm)))),
            _ => None,
        };
        let entry = shrunk.as_ref().unwrap_or(entry);
        let ours = is_ours(entry, &now) || entry.wrote.iter().chain([&entry.original]).any(is);
        (!ours).then_some(now)
    }

    /// The same by the look before the last batch.
    pub(crate) fn changed_before(&self, entry: &Entry, vm: &VmState, offline: &CpuSet) -> Option<Value> {
        let ours = self.just_written.contains(&entry.key());
        if ours { None } else { Keeper::changed_since(entry, vm, offline) }
    }

    /// Settings of a VM that somebody else changed and that are left alone, and what he made them: by a look, if that tells, else when it
    /// was found. (Not what was made what it was before us.)
    pub(crate) fn left_alone(
        &self,
        id: &VmId,
        vm: Option<&VmState>,
    ) -> impl Iterator<Item = (&Entry, Value)> {
        let of = self.theirs.iter().filter(move |((of, _), _)| of == id).map(|(_, left)| left);
        let now = move |(entry, found): &(Entry, Value)| {
            vm.and_then(|vm| present::of(vm, entry.lever)).unwrap_or_else(|| found.clone())
        };
        of.map(move |left| (&left.0, now(left))).filter(|(entry, now)| !same(now, &entry.original))
    }

    /// Weights that somebody else changed are no levers: the sum of siblings' weights would not stay.
    pub(crate) fn leave_theirs(&self, snapshot: &mut Snapshot) {
        let theirs = |vm: &VmState| self.theirs.contains_key(&(vm.id.clone(), Lever::Weight));
        for vm in snapshot.vms.iter_mut().filter(|vm| theirs(vm)) {
            let reason = self.stands(&vm.id, Lever::Weight);
            vm.fixed.push(Fixed { lever: LeverKind::Weight, reason });
        }
    }

    /// What somebody put back may be changed again, and so may vCPUs that he set: what he made them is what they were, then. It may not
    /// have been found yet: a setting is read before it is written, which may be much later, though a look shows it at once.
    pub(crate) fn try_again(&mut self) {
        self.put_back.clear();
        self.theirs.retain(|(_, lever), _| *lever != Lever::Online);
        let free = |entry: &&Entry| !self.owes(entry) && (entry.lever == Lever::Online || may_be_back(entry));
        self.anew = self.entries().iter().filter(free).map(Entry::key).collect();
    }

    /// A look failed: what is changed till the next one may be of after the configuration was read again.
    pub(crate) fn saw_nothing(&mut self) {
        self.anew.clear();
    }

    /// Finds what somebody had changed when the configuration was read again, at the first look after that: whatever else is found later is made
    /// since. All are asked while there is time, guests last: a look may show what one said some seconds ago.
    pub(crate) fn find_anew(&mut self, machine: &mut dyn Act, snapshot: &Snapshot) {
        let (anew, mut found) = (std::mem::take(&mut self.anew), BTreeSet::new());
        let mut ask = Vec::new();
        for key in anew {
            let vm = snapshot.vms.iter().find(|vm| vm.id == key.0);
            let entry = self.entries_of(&key.0).find(|entry| entry.lever == key.1).cloned();
            let Some((vm, entry)) = vm.zip(entry) else { continue };
            let is_guests = key.1 == Lever::Online;
            // Whether it is worth while to ask; a look does not tell of all settings.
            let shown =
                is_guests && present::online(vm).is_some() && !is_ours(&entry, &Value::Vcpus(vm.online()));
            let may_be = match is_guests {
                true => shown || vm.guest.is_some() && !self.late.contains(&key.0),
                false => present::of(vm, key.1).is_none_or(|now| same(&now, &entry.original)),
            };
            ask.extend(may_be.then_some(((is_guests, !shown), key, entry)));
        }
        ask.sort_by_key(|(turn, ..)| *turn);
        let in_time = self.in_time();
        for ((is_guests, _), key, entry) in ask.into_iter().take_while(|_| in_time()) {
            systemd::goes_on();
            let current = machine.current(&key.0, key.1);
            self.hear(&key.0, key.1, &current);
            let Ok(now) = current else { continue };
            let is_free = match is_guests {
                true => self.is_his(machine, &entry, &now),
                false => somebody_put_back(&entry, &now),
            };
            found.extend(is_free.then_some(key));
        }
        if found.is_empty() {
            return;
        }
        self.journal.retain(|entry| !found.contains(&entry.key()));
        // If that fails, it is written with the next batch; whoever comes after a kill before finds that it is not ours.
        let _ = self.journal.write();
        self.note_again(machine);
        self.take_notes_back(machine);
    }

    /// Whether a setting is somebody else's by now, or he put it back.
    pub(crate) fn leaves(&self, action: &Action) -> bool {
        self.theirs.contains_key(&key(action)) || self.put_back.contains(&key(action))
    }

    /// What somebody else changed is left alone from now on, also by whoever finds the VM's note: why, if that is so of what a
    /// setting is.
    pub(super) fn leave(
        &mut self,
        machine: &mut dyn Act,
        vm: &VmId,
        lever: Lever,
        current: &Value,
    ) -> Option<MachineError> {
        let found = self.journal.find(vm, lever)?;
        if let Some(grown) = grown(found, current) {
            *found = grown;
        }
        let entry = found.clone();
        if !self.is_his(machine, &entry, current) {
            return None;
        }
        let now = without_ours(machine, &entry, current);
        let text = present::text(&now);
        self.theirs.insert(entry.key(), (entry, now));
        self.journal.retain(|entry| entry.vm != *vm || entry.lever != lever);
        // With the next change of it, if not now.
        let _ = self.note(machine, vm);
        Some(MachineError::Denied(format!("{}: it was {text} then", self.stands(vm, lever))))
    }

    /// Whether somebody else gave a setting the value that it has.
    fn is_his(&self, machine: &mut dyn Act, entry: &Entry, current: &Value) -> bool {
        let grown = grown(entry, current);
        let entry = grown.as_ref().unwrap_or(entry);
        let ours = self.has_ours(machine, entry, current);
        !ours && !same(&entry.original, current) && !machine.lost(&entry.vm, entry.lever)
    }

    /// Whether a setting still has a value that we gave it, but for what somebody else took from it.
    pub(super) fn has_ours(&self, machine: &mut dyn Act, entry: &Entry, current: &Value) -> bool {
        if is_ours(entry, current) {
            return !self.with_all(machine, entry, current);
        }
        if entry.lever != Lever::Online || same(&entry.original, current) {
            return false;
        }
        let left = machine.fitting(&entry.vm, entry.lever, &entry.original);
        let shrunk = left.and_then(|left| shrunk(entry, &left));
        shrunk.is_some_and(|shrunk| is_ours(&shrunk, current))
    }

    /// Whether somebody gave all vCPUs this quota, as libvirt does, which happens to be what we gave one of them: another one, to which we
    /// gave something else, has it, too.
    pub(super) fn with_all(&self, machine: &mut dyn Act, entry: &Entry, current: &Value) -> bool {
        let mut others = self.journal.entries_of(&entry.vm).filter(|other| {
            let quotas = [entry.lever, other.lever].map(|lever| lever.kind() == LeverKind::VcpuQuota);
            quotas == [true, true] && !is_ours(other, current) && !same(&other.original, current)
        });
        let other = others.next().map(|other| other.lever);
        other.is_some_and(|lever| machine.current(&entry.vm, lever).is_ok_and(|other| same(&other, current)))
    }

    /// Somebody may have changed a setting while others were read and written. (Guests are slow to say: writing looks itself.)
    pub(super) fn still_free(&mut self, machine: &mut dyn Act, action: &Action) -> Result<(), MachineError> {
        let Action { vm, lever, .. } = action;
        if is_guests(*lever) {
            return Ok(());
        }
        let current = machine.current(vm, *lever)?;
        self.leave(machine, vm, *lever, &current).map_or(Ok(()), Err)
    }

    pub(super) fn stands(&self, vm: &VmId, lever: Lever) -> String {
        let until = if lever == Lever::Online { format!(" {LEFT_UNTIL}") } else { String::new() };
        let lever = self.called(vm, lever);
        format!("somebody else changed the {lever} after corefit; that stands, and it is left alone{until}")
    }

    pub(super) fn is_back(&self, vm: &VmId, lever: Lever) -> String {
        let lever = self.called(vm, lever);
        format!(
            "somebody put the {lever} back; it is left alone until the VM or corefit starts again, or the configuration is read again"
        )
    }
}

/// What a setting is that somebody else changed, once that part of it which is still as we made it is as it was.
pub(super) fn without_ours(machine: &mut dyn Act, entry: &Entry, current: &Value) -> Value {
    let Some(rest) = rest_of_ours(entry, current) else { return current.clone() };
    // If it cannot be, it is said what there is.
    let _ = machine.set(&entry.vm, entry.lever, &rest);
    machine.current(&entry.vm, entry.lever).unwrap_or(rest)
}
