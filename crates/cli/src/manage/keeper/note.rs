//! What travels with a VM, in its metadata: what its settings were, for whoever finds it after it migrated, or was resumed from a file.

use std::collections::BTreeSet;

use corefit_core::machine::{Act, Lever, LeverKind, MachineError, Snapshot, Value, VmId, VmState};
use corefit_core::{CpuId, CpuSet, Cpus};
use serde::{Deserialize, Serialize};

use super::{Keeper, grown, in_parts, is_guests, is_ours, may_shrink, same, undo, without_burst};
use crate::manage::failpoint::reach;
use crate::manage::journal::Entry;
use crate::manage::systemd;

/// What travels with a VM.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::manage) struct Note {
    pub(in crate::manage) corefit: u32,
    pub(in crate::manage) settings: Vec<Setting>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::manage) struct Setting {
    pub(in crate::manage) lever: Lever,
    /// No pCPU: all of a host.
    pub(in crate::manage) original: Value,
    /// As the entry has it; of what is written in parts the last one twice once it was read back, and of vCPUs that a guest took offline or online
    /// the first one thrice. (An older version reads that, too, and takes all for under way.)
    pub(in crate::manage) wrote: Vec<Value>,
}

/// The most settings of a VM, by far: of a whole one and its plugged-out vCPUs, and of each vCPU.
const OF_ALL: usize = 256;
const OF_EACH: usize = 16;
/// What a note says that a guest is told, whatever that is: who takes it over tells it what it gets there.
const TOLD: Cpus = Cpus(1.0);

impl Setting {
    fn of(entry: &Entry, original: Value, by_guest: bool) -> Setting {
        let mut wrote = match entry.lever {
            // It changes all the time, and whatever it is now is taken back.
            Lever::Told => vec![Value::Told(Some(TOLD))],
            _ => entry.wrote.clone(),
        };
        wrote.dedup();
        if in_parts(entry.lever) && !entry.pending {
            wrote.extend(entry.wrote.last().cloned());
        }
        if let Some(first) = wrote.first().cloned().filter(|_| entry.lever == Lever::Online && by_guest) {
            wrote.splice(0..0, [first.clone(), first]);
        }
        Setting { lever: entry.lever, original, wrote }
    }

    /// Whether its guest took vCPUs offline or online.
    fn by_guest(&self) -> bool {
        self.lever == Lever::Online && matches!(&self.wrote[..], [a, b, c, ..] if a == b && b == c)
    }

    /// What was written, and whether a write may be under way.
    fn wrote(mut self) -> (Vec<Value>, bool) {
        if self.by_guest() {
            self.wrote.drain(..2);
        }
        let read_back = in_parts(self.lever) && matches!(&self.wrote[..], [.., a, b] if a == b);
        if read_back {
            self.wrote.pop();
        }
        (self.wrote, !read_back)
    }
}

impl Note {
    /// What a VM carries, if it is a note that is known here. Its owner may have written it, and each setting is asked for: of more settings than
    /// its vCPUs can have (those that were plugged out may have some, too), or with two of a lever, it is none.
    fn parse(text: &str, vm: &VmState) -> Option<Note> {
        let note: Note = serde_json::from_str(text).ok().filter(|note: &Note| note.corefit == 1)?;
        let levers: BTreeSet<Lever> = note.settings.iter().map(|setting| setting.lever).collect();
        let most = OF_ALL + OF_EACH * vm.vcpus.len();
        (levers.len() == note.settings.len() && levers.len() <= most).then_some(note)
    }
}

/// Whether a VM brings it wherever it goes: threads and control groups are made anew, and its definition may be another one.
pub(super) fn travels(lever: Lever) -> bool {
    !matches!(
        lever.kind(),
        LeverKind::Nodes | LeverKind::Slice | LeverKind::VcpuQuota | LeverKind::HelperWeight
    )
}

impl Keeper {
    /// Has a VM carry what its settings were, unless it carries what makes no sense here.
    ///
    /// # Errors
    /// If it cannot now, as while it migrates: it would leave behind what is changed of it meanwhile.
    pub(super) fn note(&mut self, machine: &mut dyn Act, vm: &VmId) -> Result<(), String> {
        let by_guest = self.journal.is_by_guest(vm);
        let setting = |entry: &Entry| {
            let original = match (&entry.came, &entry.original) {
                // Not only as much of it as there is here: it may go back.
                (Some(came), _) => came.clone(),
                // Another host may have more of them.
                (None, Value::Pcpus(set)) if !self.pcpus.is_empty() && self.pcpus.is_within(set) => {
                    Value::Pcpus(CpuSet::default())
                }
                (None, original) => original.clone(),
            };
            Setting::of(entry, original, by_guest)
        };
        let settings: Vec<Setting> = self.journal.entries_of(vm).map(setting).collect();
        let text = serde_json::to_string(&Note { corefit: 1, settings }).unwrap_or_default();
        if self.kept.get(vm) == Some(&text) || self.foreign.contains_key(vm) {
            return Ok(());
        }
        let error = match machine.keep(vm, Some(&text)) {
            Ok(()) => {
                self.mute.remove(vm);
                self.kept.insert(vm.clone(), text);
                return Ok(());
            }
            // Nothing moves it elsewhere.
            Err(MachineError::Unsupported(_)) => return Ok(()),
            Err(error) => error,
        };
        let passes = matches!(error, MachineError::Gone(_));
        if self.mute.insert(vm.clone()) {
            let name = self.journal.entries_of(vm).next().map(|entry| &entry.name);
            let name = name.unwrap_or(&vm.0);
            let so = match passes {
                true => "those that would migrate with it are not changed before it can",
                false => "if it migrates before it can, they stay as they are",
            };
            self.unsaid.push(format!("VM {name:?} cannot carry what its settings were ({error}): {so}"));
        }
        if passes { Err(error.to_string()) } else { Ok(()) }
    }

    /// Has VMs with a note that says something else than is so now carry what is: what is not ours any more would be put back by who
    /// finds it there.
    pub(super) fn note_again(&mut self, machine: &mut dyn Act) {
        let changed: BTreeSet<&VmId> = self.journal.entries().iter().map(|entry| &entry.vm).collect();
        let carry: Vec<VmId> = self.kept.keys().filter(|vm| changed.contains(vm)).cloned().collect();
        for vm in carry {
            // The next change of it tries again.
            let _ = self.note(machine, &vm);
        }
    }

    /// Takes over the settings of VMs that came with a note of another run: migrated, or resumed from a file;
    /// and forgets VMs that have ended. What people should know of it. Guests are asked as long as a batch may take.
    pub(crate) fn adopt(&mut self, machine: &mut dyn Act, snapshot: &Snapshot) -> Vec<String> {
        let in_time = self.in_time();
        self.catch_up(machine, snapshot, &in_time).0
    }

    /// The same while there is time for guests, and how many settings were of VMs that have ended.
    pub(super) fn catch_up(
        &mut self,
        machine: &mut dyn Act,
        snapshot: &Snapshot,
        in_time: &dyn Fn() -> bool,
    ) -> (Vec<String>, usize) {
        let before = self.journal.entries().len();
        self.journal.by_guests().for_each(|vm| machine.goes_by_guest(vm));
        self.groups = snapshot.vms.iter().filter(|vm| vm.is_group()).map(|vm| vm.id.clone()).collect();
        let nodes = snapshot.pcpus.iter().filter_map(|pcpu| pcpu.node.map(CpuId)).collect();
        self.pcpus = snapshot.pcpu_sets().0;
        // What this host has may not have been known when they came.
        for entry in self.journal.entries_mut() {
            if let Some(original) = entry.came.as_ref().and_then(|came| here(came, &self.pcpus, &nodes)) {
                entry.original = original;
            }
        }
        let mut notes = Vec::new();
        for vm in &snapshot.vms {
            let Some(text) = vm.kept.as_ref() else {
                self.foreign.remove(&vm.id);
                continue;
            };
            let Some(note) = Note::parse(text, vm) else {
                if self.foreign.insert(vm.id.clone(), text.clone()).as_ref() != Some(text) {
                    notes.push(format!(
                        "VM {:?} carries a note that makes no sense; it is left alone, and no other is made",
                        vm.name
                    ));
                }
                self.kept.remove(&vm.id);
                continue;
            };
            self.foreign.remove(&vm.id);
            let ours = self.journal.entries_of(&vm.id).next().is_some();
            if self.kept.get(&vm.id).is_some_and(|kept| ours || kept == text) {
                continue;
            }
            // Of settings that the journal has it is an earlier run's, and this one could not look when it began: it is taken back with the
            // last of them.
            let is_news = self.kept.insert(vm.id.clone(), text.clone()).is_none();
            if is_news {
                self.left.entry(vm.id.clone()).or_default();
            }
            if note.settings.iter().any(Setting::by_guest) {
                machine.goes_by_guest(&vm.id);
                self.journal.goes_by_guest(&vm.id);
            }
            for setting in note.settings {
                systemd::goes_on();
                if self.journal.entries_of(&vm.id).all(|entry| entry.lever != setting.lever) {
                    notes.extend(self.take_over(machine, vm, (setting, is_news), &nodes, in_time));
                }
            }
        }
        let ended = self.forget(machine, snapshot);
        self.call_back_strays(machine, snapshot);
        let arrived = self.arrive(machine, snapshot, in_time);
        if arrived {
            self.note_again(machine);
        }
        if (arrived || before != self.journal.entries().len())
            && let Err(error) = self.journal.write()
        {
            notes.push(format!("the journal cannot be written: {error}"));
        }
        self.take_notes_back(machine);
        (notes, ended)
    }

    /// Has VMs carry again what they did not carry at two looks, one after the other: a look may be of before it was written.
    fn call_back_strays(&mut self, machine: &mut dyn Act, snapshot: &Snapshot) {
        let strays = |vm: &&VmState| {
            let kept = self.kept.get(&vm.id);
            kept.is_some() && kept != vm.kept.as_ref() && self.journal.entries_of(&vm.id).next().is_some()
        };
        // Groups carry none.
        let vms = snapshot.vms.iter().filter(|vm| !vm.is_group());
        let strays: BTreeSet<VmId> = vms.filter(strays).map(|vm| vm.id.clone()).collect();
        let (again, new): (BTreeSet<VmId>, BTreeSet<VmId>) =
            strays.into_iter().partition(|vm| self.strays.contains(vm));
        self.strays = new;
        for vm in again {
            // Whatever it carries is not ours. If it cannot be written now, the next looks try again.
            self.kept.insert(vm.clone(), String::new());
            let _ = self.note(machine, &vm);
        }
    }

    /// What is known of VMs that are there no more; of how many settings that was.
    fn forget(&mut self, machine: &mut dyn Act, snapshot: &Snapshot) -> usize {
        let here: BTreeSet<&VmId> = snapshot.vms.iter().map(|vm| &vm.id).collect();
        let ended = |entry: &Entry, machine: &mut dyn Act| {
            !here.contains(&entry.vm)
                && !snapshot.may_lack(&entry.name)
                && machine
                    .current(&entry.vm, entry.lever)
                    .is_err_and(|error| undo::has_ended(machine, entry, &error))
        };
        let before = self.journal.entries().len();
        let mut over = BTreeSet::new();
        self.journal.retain(|entry| {
            let is_over = ended(entry, machine);
            over.extend(is_over.then(|| entry.vm.clone()));
            !is_over
        });
        // The rest is known by ids alone: who of them is only missed is not known.
        let lacks = snapshot.may_lack_vms();
        let stays = |vm: &VmId| here.contains(vm) || lacks && !over.contains(vm);
        self.kept.retain(|vm, _| stays(vm));
        self.foreign.retain(|vm, _| stays(vm));
        self.strays.retain(|vm| stays(vm));
        self.untried.retain(|(vm, _), _| stays(vm));
        self.theirs.retain(|(vm, _), _| stays(vm));
        self.put_back.retain(|(vm, _)| stays(vm));
        self.told_at.retain(|vm, _| stays(vm));
        self.mute.retain(|vm| stays(vm));
        self.late.retain(|vm| stays(vm));
        self.left.retain(|vm, _| stays(vm));
        before - self.journal.entries().len()
    }

    /// Notes of VMs of which nothing is changed any more; whether some could not be taken back that may yet.
    pub(super) fn take_notes_back(&mut self, machine: &mut dyn Act) -> bool {
        let changed: BTreeSet<&VmId> = self.journal.entries().iter().map(|entry| &entry.vm).collect();
        // Groups carry none.
        let mut may_yet = false;
        let mut left = |vm: &VmId| {
            reach("note-left");
            let result = machine.keep(vm, None);
            systemd::goes_on();
            may_yet |= result.as_ref().is_err_and(undo::may_pass);
            matches!(result, Err(error) if !matches!(error, MachineError::Unsupported(_)))
        };
        self.kept.retain(|vm, _| changed.contains(vm) || left(vm));
        may_yet
    }

    /// A setting that a VM carries, and whether that is news.
    fn take_over(
        &mut self,
        machine: &mut dyn Act,
        vm: &VmState,
        (setting, is_news): (Setting, bool),
        nodes: &CpuSet,
        in_time: &dyn Fn() -> bool,
    ) -> Option<String> {
        let (lever, came) = (setting.lever, setting.original.clone());
        let (wrote, pending) = setting.wrote();
        let all = matches!(&came, Value::Pcpus(set) if set.is_empty());
        let original = if all { Value::Pcpus(self.pcpus.clone()) } else { came.clone() };
        let came = matches!(came, Value::Pcpus(_) | Value::Nodes(_)).then_some(came);
        let (id, name) = (vm.id.clone(), vm.name.clone());
        let mut entry = Entry { vm: id, name, lever, original, came, wrote, pending };
        // Whoever does not answer now, or for whom there is no time, is asked when it is put back.
        let current = match is_guests(lever) && !in_time() {
            true => None,
            false => match machine.current(&vm.id, lever) {
                // It came with another definition, or without what belongs to the threads and groups that it had.
                Err(MachineError::Unsupported(_)) if !travels(lever) => return None,
                current => current.ok(),
            },
        };
        let as_found = |now| grown(&entry, now).or_else(|| without_burst(&entry, now));
        if let Some(found) = current.as_ref().and_then(as_found) {
            entry = found;
        }
        // Its guest may yet let go of what it was asked for.
        let may_go = |current: &Value| is_news && entry.pending && may_shrink(&entry, current);
        let no_more =
            |current: &Value| same(current, &entry.original) && !may_go(current) || !is_ours(&entry, current);
        if current.as_ref().is_some_and(no_more) {
            return None; // As it was, or somebody else's.
        }
        let now = current.map_or("not known yet".into(), |current| current.to_string());
        let mut note = format!(
            "VM {:?} came with what was changed of it: {lever} ({now}, before {})",
            vm.name, entry.original
        );
        let original = entry.came.as_ref().and_then(|came| here(came, &self.pcpus, nodes));
        if let Some(original) = original.filter(|original| *original != entry.original) {
            let what = if matches!(original, Value::Pcpus(_)) { "pCPUs" } else { "nodes" };
            entry.original = original;
            note += &format!("; this host has no such {what}, so it is going to be {}", entry.original);
        }
        // Here these would be taken for what they were. (Of weights it is known; sizes and pins are put back where nobody manages them.)
        let kind = entry.lever.kind();
        if matches!(
            kind,
            LeverKind::HelperWeight | LeverKind::Quota | LeverKind::VcpuQuota | LeverKind::Slice
        ) {
            self.earlier.insert(entry.key());
        }
        self.journal.add(entry);
        Some(note)
    }
}

/// What pins and nodes that a VM brought are on a host with these: those that it has, all where it has none of them. `None` if it is not known
/// which it has, and of other settings.
fn here(came: &Value, pcpus: &CpuSet, nodes: &CpuSet) -> Option<Value> {
    let inside = |set: &CpuSet, here: &CpuSet| {
        let inside = set.intersection(here);
        if inside.is_empty() { here.clone() } else { inside }
    };
    match came {
        Value::Pcpus(set) if !pcpus.is_empty() => Some(Value::Pcpus(inside(set, pcpus))),
        Value::Nodes(Some(set)) if !nodes.is_empty() => Some(Value::Nodes(Some(inside(set, nodes)))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manage::journal::testing::entry;

    #[test]
    fn a_note_says_whether_a_write_was_under_way_whatever_was_written() {
        let value = |vcpus| Value::Vcpus(CpuSet::first(vcpus));
        for wrote in [vec![value(1)], vec![value(1), value(2)], vec![value(2), value(2)]] {
            for (pending, by_guest) in [(false, false), (false, true), (true, false), (true, true)] {
                let entry = Entry { lever: Lever::Online, wrote: wrote.clone(), pending, ..entry("a") };
                let mut known = wrote.clone();
                known.dedup();
                let setting = Setting::of(&entry, value(4), by_guest);
                assert_eq!((setting.by_guest(), setting.wrote()), (by_guest, (known, pending)));
            }
        }
    }

    /// For each setting the machine is asked, and its owner can write a note.
    #[test]
    fn a_note_of_more_settings_than_a_vm_can_have_or_with_two_of_a_lever_is_none() {
        let vm = VmState { vcpus: vec![Default::default(); 3], ..VmState::default() };
        let parsed = |levers: Vec<Lever>| {
            let value = || Value::Pcpus(CpuSet::default());
            let setting = |lever| Setting { lever, original: value(), wrote: Vec::new() };
            let settings = levers.into_iter().map(setting).collect();
            let text = serde_json::to_string(&Note { corefit: 1, settings }).unwrap();
            Note::parse(&text, &vm).map(|note| note.settings.len())
        };
        // vCPU 3 was plugged out, and comes back with its pins.
        assert_eq!(parsed((0..4).map(Lever::Affinity).collect()), Some(4));
        assert_eq!(parsed((0..305).map(Lever::Affinity).collect()), None);
        assert_eq!(parsed(vec![Lever::Weight, Lever::Affinity(0), Lever::Weight]), None);
    }

    /// Notes as versions read them that knew nothing of guests, nor of what is under way.
    #[test]
    fn a_note_is_read_by_older_versions() {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct OldNote {
            corefit: u32,
            settings: Vec<OldSetting>,
        }
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(dead_code)]
        struct OldSetting {
            lever: Lever,
            original: Value,
            wrote: Vec<Value>,
        }
        let wrote = vec![Value::Vcpus(CpuSet::first(2))];
        let entry = Entry { lever: Lever::Online, wrote: wrote.clone(), ..entry("a") };
        let settings = vec![Setting::of(&entry, Value::Vcpus(CpuSet::first(4)), true)];
        let text = serde_json::to_string(&Note { corefit: 1, settings }).unwrap();
        let mut old: OldNote = serde_json::from_str(&text).unwrap();
        old.settings[0].wrote.dedup();
        assert_eq!((old.corefit, old.settings.len(), &old.settings[0].wrote), (1, 1, &wrote));
    }
}
