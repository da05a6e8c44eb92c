//! Who applies plans, and puts everything back.
//!
//! ```text
//! Plan ─▶ read each ─▶ originals to the journal (fsync) ─▶ to the VMs' notes ─▶ read again, write each ─▶ read back ─▶ Outcomes
//!              │ somebody else changed it: it stands, and is his from now on │
//! ```
//!
//! A setting is ours as long as it has a value that we wrote, or read back after writing. What is not ours any
//! more is never written again, and not put back. A batch costs the journal one write before its changes and one
//! after them.

mod again;
mod before;
mod note;
mod ours;
mod undo;
mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use corefit_core::decide::{Action, Outcome, Why};
use corefit_core::machine::{Act, Fixed, Lever, LeverKind, MachineError, Snapshot, Value, VmId, VmState};
use corefit_core::{CpuSet, Time};

use super::failpoint::reach;
use super::journal::{Entry, Journal};
use super::present;
use again::TELL_AGAIN;
pub(crate) use before::{changed, heed};
use note::travels;
#[cfg(test)]
pub(super) use note::{Note, Setting};
pub(super) use ours::is_guests;
use ours::{by_call, grown, in_parts, is_ours, rest_of_ours, same, shrunk, somebody_put_back};
pub(crate) use undo::{Asking, Restored};

/// Reading may take this part of the time of a batch: of each change, which reads before and after, there are as many calls again.
const READING: u32 = 4;

/// When vCPUs are sized again that somebody else set.
pub(super) const LEFT_UNTIL: &str = "until the configuration is read again (SIGHUP) or corefit starts again";

/// Applies plans to one machine.
pub(crate) struct Keeper {
    journal: Journal,
    /// Settings that somebody else changed after us.
    theirs: BTreeSet<(VmId, Lever)>,
    /// Settings that somebody else made what they were before us.
    put_back: BTreeSet<(VmId, Lever)>,
    /// What each VM carries with it.
    kept: BTreeMap<VmId, String>,
    /// Notes that VMs carry which make no sense here, as those of another version: they are left alone.
    foreign: BTreeMap<VmId, String>,
    /// VMs that did not carry by the last look what they are to: somebody took that away, or changed it.
    strays: BTreeSet<VmId>,
    /// When guests were told last, and after how long they are told again.
    told_at: BTreeMap<VmId, (Time, Duration)>,
    /// VMs that cannot carry what they were, and what is to be said of that.
    mute: BTreeSet<VmId>,
    unsaid: Vec<String>,
    /// What an earlier run left, or a VM brought, and this one has not written: nobody here decides that.
    earlier: BTreeSet<(VmId, Lever)>,
    /// What nobody manages any more, when it was last tried to put it back, and after how long it is again.
    released: BTreeMap<(VmId, Lever), (Time, Duration)>,
    /// Guests that did not answer when they were asked last.
    late: BTreeSet<VmId>,
    /// Guests of whose settings some are to be put back that answered the machine by its last look.
    heard: BTreeSet<VmId>,
    /// Settings for which there was no time left, since which batch: they come first.
    untried: BTreeMap<(VmId, Lever), u64>,
    batches: u64,
    /// What was as the last batch wanted it already.
    as_wanted: BTreeSet<(VmId, Lever)>,
    /// What the last batch wrote: the look before it shows what that was.
    just_written: BTreeSet<(VmId, Lever)>,
    /// Control groups, whose settings have names of their own.
    groups: BTreeSet<VmId>,
    /// All of this host.
    pcpus: CpuSet,
    /// How long one batch may take.
    budget: Duration,
    /// Set as soon as the daemon is to end: then nothing new is begun, but for putting back.
    ends: Arc<AtomicBool>,
}

impl Keeper {
    pub(crate) fn new(journal: Journal, budget: Duration) -> Keeper {
        let earlier = journal.entries().iter().map(|entry| entry.key()).collect();
        let (theirs, put_back, kept, foreign, told_at, mute, unsaid, released, late) = Default::default();
        let (strays, pcpus) = Default::default();
        let heard = BTreeSet::new();
        let (untried, batches, as_wanted, just_written, groups) = Default::default();
        Keeper {
            journal,
            theirs,
            put_back,
            kept,
            foreign,
            strays,
            told_at,
            mute,
            unsaid,
            earlier,
            released,
            heard,
            late,
            untried,
            batches,
            as_wanted,
            just_written,
            groups,
            pcpus,
            budget,
            ends: Arc::default(),
        }
    }

    /// Has it begin nothing new once this is set, but for putting back.
    pub(crate) fn heeds(&mut self, ends: Arc<AtomicBool>) {
        self.ends = ends;
    }

    /// Whether nothing new is to be begun.
    pub(crate) fn ends(&self) -> bool {
        self.ends.load(Ordering::Relaxed)
    }

    /// Whether guests, which may not answer, are still asked in what begins now, as long as it goes on.
    fn in_time(&self) -> impl Fn() -> bool + use<> {
        let (begun, budget, ends) = (Instant::now(), self.budget, self.ends.clone());
        move || begun.elapsed() < budget && !ends.load(Ordering::Relaxed)
    }

    /// From now on a batch may take so long.
    pub(crate) fn may_take(&mut self, budget: Duration) {
        self.budget = budget;
    }

    /// Settings that are changed now.
    pub(crate) fn entries(&self) -> &[Entry] {
        self.journal.entries()
    }

    /// Those of a VM.
    pub(crate) fn entries_of(&self, vm: &VmId) -> impl Iterator<Item = &Entry> {
        self.journal.entries_of(vm)
    }

    /// Whether nothing is changed, no VM carries a note of ours, and the file says so: a disk may have been full, so it is written
    /// again if not.
    pub(crate) fn holds_nothing(&mut self) -> bool {
        let nothing = self.entries().is_empty() && self.kept.is_empty();
        nothing && (!self.journal.is_stale() || self.journal.write().is_ok())
    }

    /// Whether a setting is to be put back, but could not be yet.
    pub(crate) fn owes(&self, entry: &Entry) -> bool {
        let key = entry.key();
        self.earlier.contains(&key) || self.released.contains_key(&key)
    }

    /// Guests that have to answer before a setting can be put back.
    pub(crate) fn awaits(&self) -> BTreeSet<VmId> {
        let awaited = self.entries().iter().filter(|entry| is_guests(entry.lever) && self.owes(entry));
        awaited.map(|entry| entry.vm.clone()).collect()
    }

    /// What is to be put back, while the machine cannot even be looked at, because of this.
    pub(crate) fn owed(&self, why: &str) -> Vec<String> {
        let owed =
            |entry: &Entry| format!("{} of {}: {why}", self.called(&entry.vm, entry.lever), entry.name);
        self.entries().iter().map(owed).collect()
    }

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

    /// Weights that somebody else changed are no levers: the sum of siblings' weights would not stay.
    pub(crate) fn leave_theirs(&self, snapshot: &mut Snapshot) {
        let theirs = |vm: &VmState| self.theirs.contains(&(vm.id.clone(), Lever::Weight));
        for vm in snapshot.vms.iter_mut().filter(|vm| theirs(vm)) {
            let reason = self.stands(&vm.id, Lever::Weight);
            vm.fixed.push(Fixed { lever: LeverKind::Weight, reason });
        }
    }

    /// What somebody put back may be changed again, and so may vCPUs that he set: what he made them is what they were, then.
    pub(crate) fn try_again(&mut self) {
        self.put_back.clear();
        self.theirs.retain(|(_, lever)| *lever != Lever::Online);
    }

    /// As if this one had written all.
    #[cfg(test)]
    pub(crate) fn forget_earlier(&mut self) {
        self.earlier.clear();
    }

    /// Whether a setting is somebody else's by now, or he put it back.
    pub(crate) fn leaves(&self, action: &Action) -> bool {
        self.theirs.contains(&key(action)) || self.put_back.contains(&key(action))
    }

    /// Whether the last batch came so far with an action that it wrote something, or tried to.
    pub(crate) fn tried(&self, action: &Action) -> bool {
        self.just_written.contains(&key(action))
    }

    /// Does what a plan says, as far as it can be done in the time of a batch: a part at least, and the next time first what there was
    /// no time for.
    pub(crate) fn apply(&mut self, machine: &mut dyn Act, actions: &[Action], now: Time) -> Vec<Outcome> {
        let begun = Instant::now();
        let before = self.journal.entries().to_vec();
        self.batches += 1;
        let mut turns: Vec<usize> = (0..actions.len()).collect();
        turns.sort_by_key(|at| self.untried.get(&key(&actions[*at])).copied().unwrap_or(u64::MAX));
        let mut results: Vec<Option<Result<Value, MachineError>>> = vec![None; actions.len()];
        for (turn, at) in turns.iter().enumerate() {
            let late = self.ends() || turn > 0 && begun.elapsed() > self.budget / READING;
            results[*at] = if late { Some(Err(not_tried())) } else { self.intend(machine, &actions[*at]) };
        }
        let as_wanted = (0..actions.len()).filter(|at| matches!(results[*at], Some(Ok(_))));
        self.as_wanted = as_wanted.map(|at| key(&actions[at])).collect();
        let mut written = Ok(());
        if results.iter().any(Option::is_none) {
            written = self.journal.write();
            reach("journaled");
        }
        if let Err(error) = written {
            self.journal.replace(before.clone());
            // What was found to be somebody else's just now is so all the same.
            self.journal
                .retain(|entry| ![&self.theirs, &self.put_back].iter().any(|of| of.contains(&entry.key())));
            // Not for good: a disk is full until somebody makes room.
            let why = MachineError::Untried(format!(
                "nothing is changed: {} cannot be written: {error}; make room there, or its directory again",
                self.journal.path().display()
            ));
            let unwritten = results.iter_mut().filter(|result| result.is_none());
            unwritten.for_each(|result| *result = Some(Err(why.clone())));
        }
        let known: BTreeMap<_, &Entry> = before.iter().map(|entry| (entry.key(), entry)).collect();
        let (mut noted, mut called, mut uncalled) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        turns.retain(|at| results[*at].is_none());
        for (turn, at) in turns.into_iter().enumerate() {
            let action = &actions[at];
            let ready = match self.ends() || turn > 0 && begun.elapsed() > self.budget {
                true => Err(not_tried()),
                false => {
                    let noted = noted.entry(&action.vm).or_insert_with(|| {
                        let noted = self.note(machine, &action.vm);
                        reach("noted");
                        noted
                    });
                    match noted {
                        // What it is told counts for some seconds only. Who is not there is tried again after a while.
                        Err(why) if travels(action.lever) && action.lever != Lever::Told => {
                            let text = format!("not changed while its VM cannot carry what it was: {why}");
                            Err(MachineError::Gone(text))
                        }
                        _ => self.still_free(machine, action),
                    }
                }
            };
            let begins = if ready.is_ok() { &mut called } else { &mut uncalled };
            begins.insert(key(action));
            let was = known.get(&key(action)).copied();
            results[at] = Some(ready.and_then(|()| self.change(machine, action, was, now)));
        }
        self.just_written.clone_from(&called);
        self.revert(&uncalled.difference(&called).cloned().collect(), &before);
        // What is as it was needs no entry.
        let is_back = |entry: &Entry| !entry.pending && entry.wrote.last() == Some(&entry.original);
        self.journal.retain(|entry| !is_back(entry));
        if before != self.journal.entries() || self.journal.is_stale() {
            // If that fails, the file knows what was intended, which is enough.
            let _ = self.journal.write();
            self.note_again(machine);
            self.take_notes_back(machine);
        }
        let outcome = |(action, result): (&Action, Option<_>)| Outcome {
            action: action.clone(),
            result: result.unwrap_or_else(|| Err(not_tried())),
        };
        let outcomes: Vec<Outcome> = actions.iter().zip(results).map(outcome).collect();
        for Outcome { action, result } in &outcomes {
            if *result == Err(not_tried()) {
                self.untried.entry(key(action)).or_insert(self.batches);
            } else {
                self.untried.remove(&key(action));
            }
        }
        outcomes
    }

    /// Whether nothing was written for an action of the last batch, as the setting was so already.
    pub(crate) fn had(&self, action: &Action) -> bool {
        self.as_wanted.contains(&key(action))
    }

    /// Whether there was no time for something of the last batch: it comes first in the next one.
    pub(crate) fn put_off(&self, action: &Action) -> bool {
        self.untried.contains_key(&key(action))
    }

    /// Forgets what was intended with settings, and not even begun: nothing but what they were before is ours.
    fn revert(&mut self, settings: &BTreeSet<(VmId, Lever)>, before: &[Entry]) {
        if settings.is_empty() {
            return;
        }
        let was: BTreeMap<_, &Entry> = before
            .iter()
            .map(|entry| (entry.key(), entry))
            .filter(|(key, _)| settings.contains(key))
            .collect();
        self.journal.retain(|entry| !settings.contains(&entry.key()) || was.contains_key(&entry.key()));
        for entry in self.journal.entries_mut() {
            if let Some(was) = was.get(&entry.key()) {
                entry.clone_from(was);
            }
        }
    }

    /// Notes in the journal what a setting is and is going to be; the result, if nothing is to be written.
    fn intend(&mut self, machine: &mut dyn Act, action: &Action) -> Option<Result<Value, MachineError>> {
        let Action { vm, lever, to, .. } = action;
        if self.theirs.contains(&(vm.clone(), *lever)) {
            return Some(Err(MachineError::Denied(self.stands(vm, *lever))));
        }
        if self.put_back.contains(&(vm.clone(), *lever)) {
            return Some(Err(MachineError::Denied(self.is_back(vm, *lever))));
        }
        let current = machine.current(vm, *lever);
        self.hear(vm, *lever, &current);
        let current = match current {
            Ok(current) => current,
            Err(error) => return Some(Err(error)),
        };
        if action.why == Why::AskedAgain {
            return Some(Ok(current));
        }
        if let Some(stands) = self.leave(machine, vm, *lever, &current) {
            return Some(Err(stands));
        }
        // What any user of a guest wrote there is neither what it was told before, nor told again as ours is.
        let told = *lever == Lever::Told;
        if let Some(entry) = self.journal.find(vm, *lever) {
            if somebody_put_back(entry, &current) {
                self.put_back.insert((vm.clone(), *lever));
                self.journal.retain(|entry| entry.vm != *vm || entry.lever != *lever);
                return Some(Err(MachineError::Denied(self.is_back(vm, *lever))));
            }
            if same(&current, to) && !told {
                return Some(Ok(current));
            }
            if !told {
                entry.ours(current);
            }
            entry.ours(to.clone());
            entry.pending = true;
            return None;
        }
        if same(&current, to) && !told {
            return Some(Ok(current));
        }
        let (vm, name, wrote) = (vm.clone(), action.name.clone(), vec![to.clone()]);
        let original = if told { Value::Told(None) } else { current };
        self.journal.add(Entry { vm, name, lever: *lever, original, wrote, pending: true });
        None
    }

    /// What somebody else changed is left alone from now on, also by whoever finds the VM's note: why, if that is so of what a
    /// setting is.
    fn leave(
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
        let ours = self.has_ours(machine, &entry, current);
        if ours || same(&entry.original, current) || machine.lost(vm, lever) {
            return None;
        }
        let now = present::text(&without_ours(machine, &entry, current));
        self.theirs.insert((vm.clone(), lever));
        self.journal.retain(|entry| entry.vm != *vm || entry.lever != lever);
        // With the next change of it, if not now.
        let _ = self.note(machine, vm);
        Some(MachineError::Denied(format!("{}: it was {now} then", self.stands(vm, lever))))
    }

    /// Whether a setting still has a value that we gave it, but for what somebody else took from it.
    fn has_ours(&self, machine: &mut dyn Act, entry: &Entry, current: &Value) -> bool {
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
    fn with_all(&self, machine: &mut dyn Act, entry: &Entry, current: &Value) -> bool {
        let mut others = self.journal.entries_of(&entry.vm).filter(|other| {
            let quotas = [entry.lever, other.lever].map(|lever| lever.kind() == LeverKind::VcpuQuota);
            quotas == [true, true] && !is_ours(other, current) && !same(&other.original, current)
        });
        let other = others.next().map(|other| other.lever);
        other.is_some_and(|lever| machine.current(&entry.vm, lever).is_ok_and(|other| same(&other, current)))
    }

    /// Somebody may have changed a setting while others were read and written. (Guests are slow to say: writing looks itself.)
    fn still_free(&mut self, machine: &mut dyn Act, action: &Action) -> Result<(), MachineError> {
        let Action { vm, lever, .. } = action;
        if is_guests(*lever) {
            return Ok(());
        }
        let current = machine.current(vm, *lever)?;
        self.leave(machine, vm, *lever, &current).map_or(Ok(()), Err)
    }

    /// Writes a setting whose original is on disk, and reads it back; `was`: what was known of it.
    fn change(
        &mut self,
        machine: &mut dyn Act,
        action: &Action,
        was: Option<&Entry>,
        now: Time,
    ) -> Result<Value, MachineError> {
        let Action { vm, lever, to, .. } = action;
        let done = machine.set(vm, *lever, to);
        if let Err(error @ MachineError::Untried(_)) = done {
            // It is somebody else's by now, which the next batch finds.
            self.revert(&BTreeSet::from([key(action)]), was.map(std::slice::from_ref).unwrap_or_default());
            return Err(error);
        }
        self.earlier.remove(&(vm.clone(), *lever));
        reach("written");
        let read = machine.current(vm, *lever);
        let refused = done.as_ref().is_err_and(|error| !matches!(error, MachineError::Gone(_)));
        let told = *lever == Lever::Told;
        let may_be_late = !self.groups.contains(vm) && (by_call(*lever) || told);
        let under_way = *lever == Lever::Online || may_be_late && done.is_err();
        if let (Ok(read), Some(entry)) = (&read, self.journal.find(vm, *lever)) {
            let never = refused && !same(read, to);
            match was.filter(|was| never && was.pending) {
                // What was written before may still be on its way; a part may have come out of this.
                Some(was) => {
                    entry.clone_from(was);
                    if !same(read, &entry.original) && !is_ours(entry, read) {
                        entry.found(read.clone());
                    }
                }
                None => {
                    if never {
                        entry.wrote.pop();
                    }
                    // Some user of the guest may have made it what was read.
                    let came = if told { to } else { read };
                    entry.ours(came.clone());
                    // A guest may still be on its way, to the last of what we wrote; and so may be what nobody waited for any more.
                    entry.pending = under_way && !refused && !same(read, to);
                    if entry.pending {
                        entry.ours(to.clone());
                    } else {
                        entry.arrived(&[to, came]);
                    }
                }
            }
        }
        if refused && (told || read.is_err() && !in_parts(*lever)) {
            // It never was that.
            self.revert(&BTreeSet::from([key(action)]), was.map(std::slice::from_ref).unwrap_or_default());
        }
        if told {
            self.told_at.insert(vm.clone(), (now, TELL_AGAIN));
        }
        // What came out in part is told as what it is; what did not come at all, as the error.
        match (done, read) {
            (Ok(()), read) => read,
            (Err(_), Ok(read)) if action.from.as_ref().is_some_and(|from| !same(from, &read)) => Ok(read),
            (Err(error), _) => Err(error),
        }
    }

    fn stands(&self, vm: &VmId, lever: Lever) -> String {
        let until = if lever == Lever::Online { format!(" {LEFT_UNTIL}") } else { String::new() };
        let lever = self.called(vm, lever);
        format!("somebody else changed the {lever} after corefit; that stands, and it is left alone{until}")
    }

    fn is_back(&self, vm: &VmId, lever: Lever) -> String {
        let lever = self.called(vm, lever);
        format!(
            "somebody put the {lever} back; it is left alone until the VM or corefit starts again, or the configuration is read again"
        )
    }

    /// What people call a setting of a VM.
    fn called(&self, vm: &VmId, lever: Lever) -> String {
        lever.name(self.groups.contains(vm))
    }

    /// Notes whether a guest answers; `false` if not.
    fn hear(&mut self, vm: &VmId, lever: Lever, answer: &Result<Value, MachineError>) -> bool {
        let missing = matches!(answer, Err(MachineError::Gone(_)));
        if is_guests(lever) && missing {
            self.late.insert(vm.clone());
        } else if is_guests(lever) {
            self.late.remove(vm);
        }
        !(is_guests(lever) && missing)
    }

    /// What people should know of what was just done, once.
    pub(crate) fn unsaid(&mut self) -> Vec<String> {
        std::mem::take(&mut self.unsaid)
    }

    /// What was on its way and has come: guests to what was asked of them, and what libvirt did later than anybody waited for. From now on
    /// another value is somebody else's. Whether there is some. Guests are asked while there is time.
    fn arrive(&mut self, machine: &mut dyn Act, snapshot: &Snapshot, in_time: &dyn Fn() -> bool) -> bool {
        let mut arrived = false;
        for entry in self.journal.entries_mut().iter_mut().filter(|entry| entry.pending) {
            let Some(to) = entry.wrote.last().cloned() else { continue };
            let Some(vm) = snapshot.vms.iter().find(|seen| seen.id == entry.vm) else { continue };
            let seen = match entry.lever {
                Lever::Online if self.late.contains(&entry.vm) || !in_time() => continue,
                Lever::Online => Some(Value::Vcpus(vm.online())),
                lever if by_call(lever) && !vm.is_group() => present::of(vm, lever),
                _ => continue,
            };
            if seen.is_some_and(|seen| !same(&seen, &to)) {
                continue;
            }
            // A look may be of before it was asked, and does not tell everything.
            match machine.current(&entry.vm, entry.lever) {
                Ok(now) if !same(&now, &to) => {}
                Ok(_) if entry.lever == Lever::Online => {
                    (entry.pending, arrived) = (false, true);
                    entry.arrived(&[&to]);
                }
                Ok(_) => {
                    arrived = true;
                    entry.came();
                }
                Err(MachineError::Gone(_)) if is_guests(entry.lever) => {
                    self.late.insert(entry.vm.clone());
                }
                Err(_) => {}
            }
        }
        arrived
    }
}

/// What a setting is that somebody else changed, once that part of it which is still as we made it is as it was.
fn without_ours(machine: &mut dyn Act, entry: &Entry, current: &Value) -> Value {
    let Some(rest) = rest_of_ours(entry, current) else { return current.clone() };
    // If it cannot be, it is said what there is.
    let _ = machine.set(&entry.vm, entry.lever, &rest);
    machine.current(&entry.vm, entry.lever).unwrap_or(rest)
}

/// What an action is about.
fn key(action: &Action) -> (VmId, Lever) {
    (action.vm.clone(), action.lever)
}

fn not_tried() -> MachineError {
    MachineError::Untried("not tried: the step took too long already".into())
}
