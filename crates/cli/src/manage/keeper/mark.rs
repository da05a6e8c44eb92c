//! What the journal has of settings that are put back before they are: that a part of it may be done.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use corefit_core::machine::{Act, Lever, MachineError, Value, VmId};

use super::undo::{Restored, Then, Undo, heard};
use super::{Keeper, in_parts, is_guests, is_ours};
use crate::manage::journal::Entry;
use crate::manage::systemd;

/// Guests that have their turn within so long, as far as is known, are marked in the journal together, so many at most: a write for each takes
/// longer than they do.
const MOMENT: Duration = Duration::from_millis(500);
const TOGETHER: usize = 32;

impl Keeper {
    /// Has it known of limits that are put back that a part of that may be done, so that the rest is ours, too: in one write for all. What
    /// somebody else made of one is his, also after a kill.
    pub(super) fn mark_limits(
        &mut self,
        machine: &mut dyn Act,
        which: &dyn Fn(&Entry) -> bool,
    ) -> std::io::Result<()> {
        let limits = |entry: &&Entry| in_parts(entry.lever) && !is_guests(entry.lever) && which(entry);
        let (mut marked, mut late) = (BTreeSet::new(), 0);
        for entry in self.journal.entries().to_vec().iter().filter(limits) {
            systemd::goes_on();
            let begun = Instant::now();
            match machine.current(&entry.vm, entry.lever) {
                Ok(now) if self.has_ours(machine, entry, &now) => drop(marked.insert(entry.key())),
                // Who does not answer may not do so for any: each of the rest is marked when it has its turn.
                Err(MachineError::Gone(_)) if late > 0 && begun.elapsed() > MOMENT => break,
                Err(MachineError::Gone(_)) => late += u32::from(begun.elapsed() > MOMENT),
                _ => {}
            }
        }
        let ours = |entry: &&mut Entry| marked.contains(&entry.key());
        self.journal.entries_mut().iter_mut().filter(ours).for_each(|entry| entry.pending = true);
        let saved = self.journal.save();
        let mut vms: BTreeSet<VmId> = marked.into_iter().map(|(vm, _)| vm).collect();
        vms.retain(|vm| self.kept.contains_key(vm));
        // If one cannot be written now, its VM's settings are put back all the same.
        vms.iter().for_each(|vm| drop(self.note(machine, vm)));
        saved
    }

    /// The same of one setting, and of guests that are next: a guest takes its time, and till it has its turn, or nearly, what somebody makes
    /// of it is his. What becomes of it, if the journal cannot be written and that is waited for.
    pub(super) fn begins(
        &mut self,
        machine: &mut dyn Act,
        undo: &mut Undo<'_>,
        (entry, place): (&Entry, &str),
        later: &VecDeque<Entry>,
        restored: &mut Restored,
    ) -> Option<Then> {
        if !in_parts(entry.lever) {
            return None;
        }
        let known = self.journal.find(&entry.vm, entry.lever);
        let is_news = known.is_some_and(|known| !std::mem::replace(&mut known.pending, true));
        if is_news && is_guests(entry.lever) {
            self.mark_next(undo, later);
        }
        if undo.unwritten.is_none() {
            undo.unwritten = self.journal.save().err();
        }
        if let Some(error) = undo.unwritten.as_ref().filter(|_| undo.waits) {
            restored.pend(format!("{place}: the journal cannot be written: {error}"), true);
            return Some(Then::Left);
        }
        if (is_guests(entry.lever) || is_news) && self.kept.contains_key(&entry.vm) {
            let _ = self.note(machine, &entry.vm);
        }
        None
    }

    /// Marks guests that have their turn within a moment if each takes as long as the last one: of those that answer, and whose vCPUs are as we
    /// made them by the look.
    fn mark_next(&mut self, undo: &Undo<'_>, later: &VecDeque<Entry>) {
        let Some(took) = undo.took else { return };
        let fit = MOMENT.as_micros() / took.as_micros().max(1);
        let fit = usize::try_from(fit).map_or(TOGETHER, |fit| fit.min(TOGETHER));
        for entry in later.iter().filter(|entry| entry.lever == Lever::Online).take(fit) {
            let seen = undo.snapshot.vms.iter().find(|vm| vm.id == entry.vm);
            let answers = heard(undo.snapshot, &entry.vm) && !self.late.contains(&entry.vm);
            let ours = seen.is_some_and(|vm| is_ours(entry, &Value::Vcpus(vm.online())));
            if let Some(known) = self.journal.find(&entry.vm, entry.lever).filter(|_| answers && ours) {
                known.pending = true;
            }
        }
    }

    /// One had its turn, and it took so long: where that is more than a moment, guests that were marked with it are not on their way any more,
    /// and till they have theirs, or nearly, what somebody makes of them is his again, also after a kill.
    pub(super) fn took(&mut self, took: Duration, undo: &Undo<'_>, later: &VecDeque<Entry>) {
        if took <= MOMENT || undo.unwritten.is_some() {
            return;
        }
        for entry in later.iter().filter(|entry| entry.lever == Lever::Online) {
            if let Some(known) = self.journal.find(&entry.vm, entry.lever) {
                known.pending = entry.pending;
            }
        }
        // Who has the next turn writes it otherwise.
        let _ = self.journal.save();
    }
}
