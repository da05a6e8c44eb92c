//! What changes came to: those that failed, each as what it is and once; guests that do not answer; what came late; and VMs that
//! ended with settings changed.

use std::collections::{BTreeMap, BTreeSet};

use corefit_core::decide::{Action, Outcome, Step, Why};
use corefit_core::machine::{Lever, MachineError, Snapshot, Value, VmId};

use super::Daemon;
use super::report::{failure, fields};
use super::said::Said;
use crate::manage::Keeper;
use crate::manage::journal::Entry;
use crate::manage::keeper::is_guests;
use crate::manage::log::{Level, log};
use crate::manage::present;

/// Settings of VMs that a look does not show: the name of each, and how many.
pub(super) type Unseen = BTreeMap<VmId, (String, usize)>;

pub(super) fn unseen(keeper: &Keeper, snapshot: &Snapshot) -> Unseen {
    let here: BTreeSet<&VmId> = snapshot.vms.iter().map(|vm| &vm.id).collect();
    let mut unseen = Unseen::new();
    for entry in keeper.entries().iter().filter(|entry| !here.contains(&entry.vm)) {
        unseen.entry(entry.vm.clone()).or_insert_with(|| (entry.name.clone(), 0)).1 += 1;
    }
    unseen
}

/// Says of which of these nothing is left.
pub(super) fn say_ended(unseen: Unseen, keeper: &Keeper) {
    for (vm, (name, settings)) in unseen {
        if keeper.entries_of(&vm).next().is_none() {
            log(Level::Info, "ended", &[("vm", name), ("settings", settings.to_string())]);
        }
    }
}

/// Settings of which it is not known yet what came of the last write.
pub(super) fn under_way(keeper: &Keeper) -> Vec<Entry> {
    keeper.entries().iter().filter(|entry| entry.pending).cloned().collect()
}

/// Settings of which the log said that they did not come, though they may.
pub(super) type Late = BTreeSet<(VmId, Lever)>;

/// Says which of these have come by now, of those that the log said did not come: the VM of each, with its name.
pub(super) fn say_late(
    under_way: &[Entry],
    keeper: &Keeper,
    snapshot: &Snapshot,
    late: &mut Late,
    told: &mut Said,
) -> Vec<(VmId, String)> {
    let mut came = Vec::new();
    late.retain(|(vm, lever)| under_way.iter().any(|entry| entry.vm == *vm && entry.lever == *lever));
    for was in under_way {
        let mut now = keeper.entries_of(&was.vm).filter(|now| now.lever == was.lever && !now.pending);
        let Some(to) = now.next().and_then(|now| now.wrote.last()) else { continue };
        if !late.remove(&(was.vm.clone(), was.lever)) {
            continue;
        }
        told.forget_of(&of(&was.vm, was.lever));
        let group = snapshot.vms.iter().any(|vm| vm.id == was.vm && vm.is_group());
        let fields = [
            ("vm", was.name.clone()),
            ("lever", was.lever.name(group)),
            ("to", present::text(to)),
            ("late", "true".into()),
        ];
        log(Level::Info, "set", &fields);
        came.push((was.vm.clone(), was.name.clone()));
    }
    came
}

/// How everything begins that is said of changes of a setting that failed.
pub(super) fn of(vm: &VmId, lever: Lever) -> String {
    format!("{} {lever}: ", vm.0)
}

/// That a guest does not answer, which is said once, whatever was asked of it.
fn silence(vm: &VmId) -> String {
    format!("{} does not answer", vm.0)
}

impl Daemon<'_> {
    /// Says that a change failed, or that nobody answered a question.
    pub(super) fn failed(&mut self, snapshot: &Snapshot, action: &Action, error: &MachineError) {
        let [vm, lever, ..] = fields(snapshot, action);
        if self.leaves(action) {
            // Mostly a look has shown it, and that was said.
            let shown = self.told.knows(&changed(&action.vm, &lever.1));
            if self.told.is_new(&failure(action, "left alone"), "") && !shown {
                log(Level::Info, "left alone", &[vm, lever, ("why", error.to_string())]);
            }
            return;
        }
        let mut new = self.told.is_new(&failure(action, &error.to_string()), "");
        let (gone, asked) = (matches!(error, MachineError::Gone(_)), action.why == Why::AskedAgain);
        if !asked {
            self.late.insert((action.vm.clone(), action.lever));
        }
        if is_guests(action.lever) && gone {
            // As long as its vCPUs cannot be asked for, what it is told says nothing new.
            if action.lever == Lever::Online || !self.silent.contains_key(&action.vm) {
                self.silent.insert(action.vm.clone(), action.lever);
            }
            // (Whoever answers, and refuses the same each time, says nothing new, and is not known to be silent.)
            new = new && self.told.is_new(&silence(&action.vm), "");
            if asked {
                // It is silent: when it is once more, that is news.
                self.told.forget_of(&of(&action.vm, action.lever));
            }
        }
        if !new {
            return;
        }
        let why = ("error", error.to_string());
        if asked {
            log(Level::Warning, "asked again", &[vm, lever, why]);
        } else {
            log(Level::Warning, "not set", &[&fields(snapshot, action)[..], &[why]].concat());
        }
    }

    /// A guest has answered: its silence is said again when there is one. What was asked of it before may not have been done.
    pub(super) fn answered(&mut self, snapshot: &Snapshot, outcome: &Outcome) {
        let Outcome { action, result } = outcome;
        let Ok(now) = result else { return };
        if !is_guests(action.lever) {
            return;
        }
        let silent = self.silent.get(&action.vm);
        if silent.is_some_and(|silent| *silent == action.lever || action.lever == Lever::Online) {
            self.silent.remove(&action.vm);
            self.told.forget_of(&silence(&action.vm));
        }
        if action.why == Why::AskedAgain {
            if self.out(&action.vm).is_some_and(|wanted| wanted != now) {
                self.counted(action).2 += 1;
            }
            let ([vm, lever, ..], is) = (fields(snapshot, action), present::text(now));
            if self.told.is_new(&failure(action, "asked again"), &is) {
                log(Level::Info, "asked again", &[vm, lever, ("is", is)]);
            }
        }
    }

    /// What is said of who does not answer was in the log when that began; and what was asked of it may be done yet.
    pub(super) fn silences(&mut self, step: &mut Step, snapshot: &Snapshot) {
        for vm in snapshot.vms.iter().filter(|vm| self.silent.contains_key(&vm.id)) {
            let Some(why) = step.kept.get_mut(&vm.id) else { continue };
            let mut note = format!("{}: keeps its vCPUs: {why}", vm.name);
            if self.out(&vm.id).is_some() {
                let was =
                    std::mem::replace(&mut note, format!("{}: its vCPUs may still change: {why}", vm.name));
                *why = format!("its vCPUs may still change: {why}");
                step.notes.iter_mut().filter(|note| **note == was).for_each(|said| said.clone_from(&note));
            }
            if self.told.knows(&silence(&vm.id)) {
                let _ = self.told.is_new(&note, "");
            }
        }
    }

    /// Whether an outcome is a change that was made, or one that failed; `None`: nothing was tried, it is not over yet, or nobody answers.
    pub(super) fn came_of(&self, outcome: &Outcome) -> Option<bool> {
        let Outcome { action, result } = outcome;
        let tried = || self.keeper.as_ref().is_some_and(|keeper| keeper.tried(action));
        match result {
            _ if action.why == Why::AskedAgain || self.leaves(action) => None,
            Ok(_) => Some(!outcome.is_in_vain()),
            // Nothing could be written down, which somebody has to see to; or somebody else was faster, which the next step finds.
            Err(MachineError::Untried(_)) => (!tried()).then_some(false),
            // It may be done yet.
            Err(MachineError::Gone(_)) => None,
            Err(_) => tried().then_some(false),
        }
    }

    /// Actions and failures so far of the VM of an action, which is found by its name while a look does not show it.
    pub(super) fn counted(&mut self, action: &Action) -> &mut (String, u64, u64) {
        let counted = self.counts.entry(action.vm.clone()).or_default();
        counted.0.clone_from(&action.name);
        counted
    }

    /// Whether it is somebody else's by now.
    fn leaves(&self, action: &Action) -> bool {
        self.keeper.as_ref().is_some_and(|keeper| keeper.leaves(action))
    }

    /// What a guest was asked to have online, if it is not known yet what came of that.
    fn out(&self, vm: &VmId) -> Option<&Value> {
        let mut of = self.keeper.as_ref()?.entries_of(vm);
        of.find(|entry| entry.lever == Lever::Online && entry.pending)?.wrote.last()
    }
}

/// What somebody made of a setting.
pub(super) fn changed(vm: &VmId, lever: &str) -> String {
    format!("{} {lever} changed", vm.0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use corefit_core::machine::VmState;
    use corefit_core::{CpuSet, Cpus, Time, Unread, Weight, What};

    use super::super::tests::{Refuses, a_vm, arguments, looking};
    use super::*;
    use crate::manage::journal::testing::entry;
    use crate::manage::log::testing::said;
    use crate::manage::{Boot, Journal};

    #[test]
    fn who_changes_vcpus_and_refuses_to_be_told_has_a_line() {
        let args = arguments();
        let mut daemon = looking(&args);
        let vm = VmState { name: "a".into(), ..VmState::default() };
        let why = Why::Available { available: Cpus(1.0) };
        let told = Action::of(&vm, Lever::Told, None, Value::Told(Some(Cpus(1.0))), why);
        let sized = Action { lever: Lever::Online, to: Value::Vcpus("0".parse().unwrap()), ..told.clone() };
        let (snapshot, refused) = (Snapshot::default(), MachineError::Gone("it cannot write".into()));
        let lines = said(|| {
            for _ in 0..3 {
                daemon.failed(&snapshot, &told, &refused);
                let result = Ok(sized.to.clone());
                daemon.answered(&snapshot, &Outcome { action: sized.clone(), result });
            }
        });
        assert_eq!(lines.len(), 1, "{lines:?}");
    }

    #[test]
    fn what_came_late_is_told_once_and_whose_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path(), "host", &Boot::named("boot")).unwrap();
        let settled = entry("a");
        journal.add(settled.clone());
        let keeper = Keeper::new(journal, Duration::ZERO);
        let was = [Entry { pending: true, ..settled }];
        let mut late = Late::from([(was[0].vm.clone(), was[0].lever)]);
        let mut came = || say_late(&was, &keeper, &Snapshot::default(), &mut late, &mut Said::default());
        assert_eq!(came(), [(VmId("a".into()), "a".to_owned())]);
        assert!(came().is_empty());
    }

    #[test]
    fn what_a_guest_did_not_do_of_what_it_was_asked_is_counted_though_the_next_look_misses_it() {
        let args = arguments();
        let mut daemon = looking(&args);
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path(), "host", &Boot::named("boot")).unwrap();
        let vcpus = |count| Value::Vcpus(CpuSet::first(count));
        let vm = VmState { id: VmId("7".into()), name: "a".into(), ..VmState::default() };
        let (original, wrote) = (vcpus(4), vec![vcpus(2)]);
        let of_it = Entry { vm: vm.id.clone(), ..entry("a") };
        journal.add(Entry { lever: Lever::Online, original, wrote, pending: true, ..of_it });
        daemon.keeper = Some(Keeper::new(journal, Duration::ZERO));
        let action = Action::of(&vm, Lever::Online, None, vcpus(2), Why::AskedAgain);
        daemon.answered(&Snapshot::default(), &Outcome { action, result: Ok(vcpus(4)) });
        let path = "VM \"a\"".into();
        let unread = vec![Unread { what: What::Siblings, path, why: "not asked for yet".into() }];
        daemon.post(&Snapshot { unread, ..Snapshot::default() }, &Step::default(), &[]);
        assert_eq!(daemon.counts.get(&vm.id), Some(&("a".into(), 0, 1)));
    }

    #[test]
    fn who_does_not_answer_or_finds_something_else_is_no_failure_but_who_refuses_and_a_full_disk_are() {
        let args = arguments();
        let (gone, faster): (fn(_) -> _, fn(_) -> _) = (MachineError::Gone, MachineError::Untried);
        let refused: fn(_) -> _ = MachineError::Denied;
        for (error, full, came) in [
            (gone, false, None),
            (faster, false, None),
            (refused, false, Some(false)),
            (gone, true, Some(false)),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let journal = Journal::open(dir.path(), "host", &Boot::named("boot")).unwrap();
            let mut keeper = Keeper::new(journal, Duration::from_secs(60));
            if full {
                std::fs::create_dir(dir.path().join("journal.new")).unwrap();
            }
            let vm = a_vm();
            let why = Why::Available { available: Cpus(1.0) };
            let action = |lever, to| Action::of(&vm, lever, None, to, why.clone());
            let plan = [
                action(Lever::Told, Value::Told(Some(Cpus(1.0)))),
                action(Lever::Weight, Value::Weight(Weight(200.0))),
            ];
            let outcomes = keeper.apply(&mut Refuses(error("no".into())), &plan, Time(0));
            let mut daemon = looking(&args);
            daemon.keeper = Some(keeper);
            let came_of = outcomes.iter().map(|outcome| daemon.came_of(outcome));
            assert_eq!(came_of.collect::<Vec<_>>(), [came; 2], "{outcomes:?}");
        }
    }
}
