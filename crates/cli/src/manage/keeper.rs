//! Who applies plans, and puts everything back.
//!
//! ```text
//! Plan ─▶ read each ─▶ originals to the journal (fsync) ─▶ to the VMs' notes ─▶ read again, write each ─▶ read back ─▶ Outcomes
//!              │ somebody else changed it: it stands, and is his from now on │
//! ```
//!
//! A setting is ours as long as it has a value that we wrote, or read back after writing. What is not ours any
//! more is never written again, and not put back. A batch costs the journal one write before its changes and one
//! after them. What a guest is told is ours whatever it is, and of another one only the write is done (`again.rs`).

mod again;
mod before;
mod mark;
mod note;
mod ours;
mod theirs;
mod undo;
mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use corefit_core::decide::{Action, Outcome, Why};
use corefit_core::machine::{Act, LETS_GO, Lever, MachineError, Snapshot, Value, VmId};
use corefit_core::{CpuSet, Time};

use super::failpoint::reach;
use super::journal::{Entry, Journal};
use super::present;
use again::{TELL_AGAIN, same_but_told};
pub(crate) use before::{changed, heed};
use note::travels;
#[cfg(test)]
pub(super) use note::{Note, Setting};
pub(super) use ours::is_guests;
use ours::{
    by_call, grown, in_parts, is_ours, is_outdated, may_be_back, may_shrink, rest_of_ours, same, shrunk,
    somebody_put_back, without_burst,
};
pub(super) use theirs::LEFT_UNTIL;
use theirs::without_ours;
pub(crate) use undo::{Asking, Restored};

/// Reading may take this part of the time of a batch: of each change, which reads before and after, there are as many calls again.
const READING: u32 = 4;

/// Applies plans to one machine.
pub(crate) struct Keeper {
    journal: Journal,
    /// Settings that somebody else changed after us: what was known of each, and what he made it when that was found.
    theirs: BTreeMap<(VmId, Lever), (Entry, Value)>,
    /// Settings that somebody else made what they were before us.
    put_back: BTreeSet<(VmId, Lever)>,
    /// Settings that somebody may have changed before the configuration was read again: what they are is what they were, then.
    anew: BTreeSet<(VmId, Lever)>,
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
    /// What an earlier run left, or a VM brought, and this one has not written: nobody here decides that. At the end everything.
    earlier: BTreeSet<(VmId, Lever)>,
    /// VMs of which another run left something, here or elsewhere, and the first look at that: when it asked their guests for vCPUs nobody
    /// here knows.
    left: BTreeMap<VmId, Option<Time>>,
    /// What nobody manages any more, when it was last tried to put it back, and after how long it is again.
    released: BTreeMap<(VmId, Lever), (Time, Duration)>,
    /// Guests that did not answer when they were asked last.
    late: BTreeSet<VmId>,
    /// Guests of whose settings some are to be put back that answered the machine by its last look.
    heard: BTreeSet<VmId>,
    /// Settings for which there was no time left, or that were not as the look showed them, since which batch: they come first.
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
    /// Why the last batch was not written, if it was to be.
    refused: Option<String>,
    /// How long one batch may take.
    budget: Duration,
    /// Set as soon as the daemon is to end: then nothing new is begun, but for putting back.
    ends: Arc<AtomicBool>,
}

impl Keeper {
    pub(crate) fn new(journal: Journal, budget: Duration) -> Keeper {
        let earlier = journal.entries().iter().map(|entry| entry.key()).collect();
        let left = journal.entries().iter().map(|entry| (entry.vm.clone(), None)).collect();
        let (theirs, put_back, kept, foreign, told_at, mute, unsaid, released, late) = Default::default();
        let (strays, pcpus, anew, heard) = Default::default();
        let (untried, batches, as_wanted, just_written, groups) = Default::default();
        Keeper {
            journal,
            theirs,
            put_back,
            anew,
            kept,
            foreign,
            strays,
            told_at,
            mute,
            unsaid,
            earlier,
            left,
            released,
            heard,
            late,
            untried,
            batches,
            as_wanted,
            just_written,
            groups,
            pcpus,
            refused: None,
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
        nothing && self.journal.save().is_ok()
    }

    /// Whether a setting is to be put back, but could not be yet.
    pub(crate) fn owes(&self, entry: &Entry) -> bool {
        let key = entry.key();
        self.earlier.contains(&key) || self.released.contains_key(&key)
    }

    /// From now on all of them are to be put back.
    pub(crate) fn owes_all(&mut self) {
        self.earlier = self.journal.entries().iter().map(|entry| entry.key()).collect();
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

    /// As if this one had written all.
    #[cfg(test)]
    pub(crate) fn forget_earlier(&mut self) {
        self.earlier.clear();
    }

    /// Why nothing is changed now, where the journal could not be written the last time and cannot be yet. (A small one may fit where that
    /// of a batch does not.)
    pub(crate) fn unwritten(&mut self) -> Option<String> {
        let now = self.journal.unwritten().map(str::to_owned);
        self.refused.clone().or_else(|| Some(self.unwritable(&now?)))
    }

    fn unwritable(&self, error: &str) -> String {
        format!(
            "nothing is changed: {} cannot be written: {error}; make room there, or its directory again",
            self.journal.path().display()
        )
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
        let told: Vec<bool> = actions.iter().map(|action| self.is_told(action)).collect();
        for (turn, at) in turns.iter().enumerate().filter(|(_, at)| !told[**at]) {
            let late = self.ends() || turn > 0 && begun.elapsed() > self.budget / READING;
            results[*at] = if late { Some(Err(not_tried())) } else { self.intend(machine, &actions[*at]) };
        }
        let as_wanted = (0..actions.len()).filter(|at| matches!(results[*at], Some(Ok(_))));
        self.as_wanted = as_wanted.map(|at| key(&actions[at])).collect();
        let mut written = Ok(());
        let writes = results.iter().zip(&told).any(|(result, told)| result.is_none() && !told);
        if writes {
            written = self.journal.write();
            reach("journaled");
        }
        self.refused = written.err().map(|error| self.unwritable(&error.to_string()));
        if let Some(why) = self.refused.clone() {
            self.journal.replace(before.clone());
            // What was found to be somebody else's just now is so all the same.
            self.journal.retain(|entry| {
                !self.theirs.contains_key(&entry.key()) && !self.put_back.contains(&entry.key())
            });
            // Not for good: a disk is full until somebody makes room.
            let why = MachineError::Untried(why);
            let unwritten =
                results.iter_mut().zip(&told).filter(|(result, told)| result.is_none() && !**told);
            unwritten.for_each(|(result, _)| *result = Some(Err(why.clone())));
        }
        let known: BTreeMap<_, &Entry> = before.iter().map(|entry| (entry.key(), entry)).collect();
        let (mut noted, mut called, mut uncalled) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        turns.retain(|at| results[*at].is_none());
        for (turn, at) in turns.into_iter().enumerate() {
            let action = &actions[at];
            let ready = match self.ends() || turn > 0 && begun.elapsed() > self.budget {
                true => Err(not_tried()),
                false if told[at] => Ok(()),
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
            results[at] = Some(match ready {
                Ok(()) if told[at] => self.tell(machine, action, now),
                ready => ready.and_then(|()| self.change(machine, action, was, now)),
            });
        }
        self.just_written.clone_from(&called);
        self.revert(&uncalled.difference(&called).cloned().collect(), &before);
        // What is as it was needs no entry.
        let is_back = |entry: &Entry| {
            // Of a VM that came from a host with others this may be a part of it.
            let whole = entry.came.as_ref().is_none_or(|came| *came == entry.original);
            whole && !entry.pending && entry.wrote.last() == Some(&entry.original)
        };
        self.journal.retain(|entry| !is_back(entry));
        if before != self.journal.entries() || self.journal.is_stale() {
            // If that fails, the file knows what was intended, which is enough.
            let _ = self.journal.write();
        }
        if writes || !same_but_told(&before, self.journal.entries()) {
            self.note_again(machine);
            self.take_notes_back(machine);
        }
        let outcome = |(action, result): (&Action, Option<_>)| Outcome {
            action: action.clone(),
            result: result.unwrap_or_else(|| Err(not_tried())),
        };
        let outcomes: Vec<Outcome> = actions.iter().zip(results).map(outcome).collect();
        for Outcome { action, result } in &outcomes {
            if [Err(not_tried()), Err(outdated())].contains(result) {
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

    /// Whether there was no time for something of the last batch, or it went by what was so no more: it comes first in the next one.
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
        if self.theirs.contains_key(&(vm.clone(), *lever)) {
            return Some(Err(MachineError::Denied(self.stands(vm, *lever))));
        }
        if self.put_back.contains(&(vm.clone(), *lever)) {
            return Some(Err(MachineError::Denied(self.is_back(vm, *lever))));
        }
        // What it is told counts for some seconds only.
        if *lever != Lever::Told && action.why != Why::AskedAgain {
            match machine.wishes_stand(vm) {
                Ok(true) => {}
                Ok(false) => return Some(Err(outdated())),
                Err(error) => return Some(Err(error)),
            }
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
        // Before anything is written: nobody knows it after a kill.
        if *lever == Lever::Online && machine.is_by_guest(vm) {
            self.journal.goes_by_guest(vm);
        }
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
        // The next look shows what it is now.
        if is_outdated(action, &current) {
            machine.look_anew(vm);
            return Some(Err(outdated()));
        }
        if same(&current, to) && !told {
            return Some(Ok(current));
        }
        let (vm, name, wrote) = (vm.clone(), action.name.clone(), vec![to.clone()]);
        let original = if told { Value::Told(None) } else { current };
        self.journal.add(Entry { vm, name, lever: *lever, original, came: None, wrote, pending: true });
        None
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
        // From now on the machine knows when it was asked.
        if *lever == Lever::Online && (done.is_ok() || was.is_none() || machine.lets_go(vm).is_some()) {
            self.left.remove(vm);
        }
        reach("written");
        let read = machine.current(vm, *lever);
        let refused = done.as_ref().is_err_and(|error| !matches!(error, MachineError::Gone(_)));
        let told = *lever == Lever::Told;
        let may_be_late = !self.groups.contains(vm) && (by_call(*lever) || told);
        let under_way = *lever == Lever::Online || may_be_late && done.is_err();
        let (mut is_his, mut forget) = (false, false);
        if let (Ok(read), Some(entry)) = (&read, self.journal.find(vm, *lever)) {
            let never = refused && !same(read, to);
            is_his = never && !same(read, &entry.original) && !is_ours(entry, read);
            match was.filter(|was| never && was.pending) {
                // Somebody made it that between our reading and our writing. (Of a limit the burst may be ours even so.)
                _ if is_his => {
                    entry.pending = was.is_some_and(|was| was.pending);
                    forget = rest_of_ours(entry, read).is_none();
                }
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
                    // A guest may still be on its way, to the last of what we wrote, or yet let go of what it was asked for before that; and
                    // so may be what nobody waited for any more.
                    let is_late = matches!(done, Err(MachineError::Gone(_))) || machine.lets_go(vm).is_some();
                    let may_come = !same(read, to) || is_late && may_shrink(entry, read);
                    entry.pending = under_way && !never && may_come;
                    if entry.pending {
                        entry.ours(to.clone());
                    } else {
                        entry.arrived(&[to, came]);
                    }
                }
            }
        }
        if forget || refused && (told || read.is_err() && !in_parts(*lever)) {
            // It never was that.
            self.revert(&BTreeSet::from([key(action)]), was.map(std::slice::from_ref).unwrap_or_default());
        }
        if told && !refused {
            self.told_at.insert(vm.clone(), (now, TELL_AGAIN));
        }
        // What came out in part is told as what it is; what did not come at all, as the error.
        match (done, read) {
            (Ok(()), read) => read,
            (Err(_), Ok(read)) if !is_his && action.from.as_ref().is_some_and(|from| !same(from, &read)) => {
                Ok(read)
            }
            (Err(error), _) => Err(error),
        }
    }

    /// What people call a setting of a VM.
    pub(crate) fn called(&self, vm: &VmId, lever: Lever) -> String {
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
        for vm in &snapshot.vms {
            if let Some(since) = self.left.get_mut(&vm.id) {
                since.get_or_insert(snapshot.at);
            }
        }
        for entry in self.journal.entries_mut().iter_mut().filter(|entry| entry.pending) {
            let Some(to) = entry.wrote.last().cloned() else { continue };
            let Some(vm) = snapshot.vms.iter().find(|seen| seen.id == entry.vm) else { continue };
            let left = self.left.get(&entry.vm).filter(|_| entry.lever == Lever::Online);
            let left = left.map(|since| since.map_or(Duration::ZERO, |since| snapshot.at.since(since)));
            let seen = match entry.lever {
                Lever::Online if self.late.contains(&entry.vm) || !in_time() => continue,
                Lever::Online => Some(Value::Vcpus(vm.online())),
                lever if by_call(lever) && !vm.is_group() => present::of(vm, lever),
                _ => continue,
            };
            // Nothing came of what another run asked for, and nothing will.
            let is_over = left.is_some_and(|left| left >= LETS_GO);
            let never = is_over && seen.as_ref().is_some_and(|seen| same(seen, &entry.original));
            if !never && seen.is_some_and(|seen| !same(&seen, &to)) {
                continue;
            }
            let may_go = left.is_some() && !is_over || machine.lets_go(&entry.vm).is_some();
            let to = if never { entry.original.clone() } else { to };
            // A look may be of before it was asked, and does not tell everything.
            match machine.current(&entry.vm, entry.lever) {
                Ok(now) if !same(&now, &to) => {}
                // It would be somebody else's once the guest lets go.
                Ok(now) if may_go && may_shrink(entry, &now) => {}
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
        if arrived {
            // Of what another run asked for nothing came.
            self.journal.retain(|entry| !entry.wrote.is_empty());
        }
        arrived
    }
}

/// What an action is about.
fn key(action: &Action) -> (VmId, Lever) {
    (action.vm.clone(), action.lever)
}

fn not_tried() -> MachineError {
    MachineError::Untried("not tried: the step took too long already".into())
}

fn outdated() -> MachineError {
    MachineError::Untried("not tried: somebody changed it after the look that this goes by".into())
}
