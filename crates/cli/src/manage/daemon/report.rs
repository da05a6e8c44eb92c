//! What the daemon says: in its log, and to those who ask for the status or the metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use corefit_core::Unread;
use corefit_core::decide::{Action, Given, Outcome, Step};
use corefit_core::machine::{Lever, MachineError, Role, Snapshot, VmEstimate, VmId, VmState};

use super::went::{changed, of};
use super::{Daemon, notes};
use crate::manage::Keeper;
use crate::manage::keeper::LEFT_UNTIL;
use crate::manage::log::{self, Level, log};
use crate::manage::present;
use crate::manage::restore;
use crate::manage::status::{Status, VmStatus};

impl Daemon<'_> {
    /// Why the machine cannot be looked at; where it never could be, for it is none, with the place that names it.
    pub(super) fn unseen(&self, error: MachineError) -> String {
        let is_none = matches!(error, MachineError::Unsupported(_) | MachineError::Malformed(_));
        if self.looked || !is_none || self.args.machine.is_some() {
            return error.to_string();
        }
        let file = self.args.config.as_deref();
        format!("{:#}", self.config.of_key(file, "machine", error.into()))
    }

    /// The machine cannot be looked at now.
    pub(super) fn trouble(&mut self, text: String) {
        let mut status = self.board.lock();
        if status.trouble.as_ref() != Some(&text) {
            log(Level::Error, "cannot look", &[("why", text.clone())]);
            status.trouble = Some(text);
        }
        (status.steps, status.stepped) = (self.steps, Some(Instant::now()));
        self.without_look(&mut status, None);
    }

    /// Everything is put back, which may take long: what is still changed, by the journal.
    pub(super) fn ending(&self) {
        let ends = "it ends: everything is put back, and nothing else is looked at";
        self.without_look(&mut self.board.lock(), Some(ends.into()));
    }

    /// Shows what is known of VMs without a look, and says this of it.
    fn without_look(&self, status: &mut Status, note: Option<String>) {
        status.notes = notes::shown(self.own_notes().chain(note), &[]);
        let before = std::mem::take(&mut status.vms);
        status.vms = self.with_unseen(Vec::new(), before.into_iter());
    }

    /// VMs of which nothing is known yet but what an earlier run left changed of them.
    pub(super) fn before_a_look(&self) -> Vec<VmStatus> {
        self.with_unseen(Vec::new(), std::iter::empty())
    }

    /// VMs that a look shows, then those that it does not: `missed`, which may be there all the same, and all of which something is
    /// changed.
    fn with_unseen(&self, mut vms: Vec<VmStatus>, missed: impl Iterator<Item = VmStatus>) -> Vec<VmStatus> {
        let mut known: BTreeSet<String> = vms.iter().map(|vm| vm.id.clone()).collect();
        let changed = self.keeper.iter().flat_map(Keeper::entries).map(VmStatus::changed);
        for mut vm in missed.chain(changed).filter(|vm| known.insert(vm.id.clone())) {
            vm.unsee(self.keeper.as_ref());
            vms.push(vm);
        }
        vms
    }

    /// What is so besides what a look shows.
    fn own_notes(&self) -> impl Iterator<Item = String> {
        let left = self.left.now().map(|what| format!("left to the kernel: {}", what.reason));
        self.unwritten.iter().cloned().chain(left).chain(self.notes.iter().cloned())
    }

    /// Notes, each once.
    pub(super) fn say(&mut self, notes: &[String]) {
        let _many = log::many();
        for note in notes {
            if self.told.is_new(note, "") {
                log(Level::Info, "note", &[("what", note.clone())]);
            }
        }
    }

    /// VMs that cannot be read, which nothing else shows: each that was not at the last look either, for one that begins takes a moment.
    pub(super) fn unread(&mut self, snapshot: &Snapshot, notes: &mut Vec<String>) {
        let unread: Vec<&Unread> = restore::unread_vms(snapshot).collect();
        let lasting = unread.iter().filter(|unread| self.unread.contains(&unread.path));
        notes.extend(lasting.map(|Unread { path, why, .. }| {
            format!("{path} cannot be read, so nothing of it is changed or put back: {why}")
        }));
        self.unread = unread.into_iter().map(|unread| unread.path.clone()).collect();
    }

    /// Without --apply: what would be changed, once each time that it is something else.
    pub(super) fn would(&mut self, snapshot: &Snapshot, actions: &[Action]) {
        let _many = log::many();
        for action in actions {
            let key = format!("{} {}", action.vm.0, action.lever);
            let to = action.to.to_string();
            if self.planned.is_new(&key, &to) {
                log(Level::Info, "would set", &fields(snapshot, action));
            }
        }
    }

    pub(super) fn tell(&mut self, snapshot: &Snapshot, outcome: &Outcome) {
        let Outcome { action, result } = outcome;
        let fields = fields(snapshot, action);
        match result {
            Ok(value) if *value == action.to => log(Level::Info, "set", &fields),
            Ok(value) => {
                self.late.insert((action.vm.clone(), action.lever));
                let came = [("became", present::text(value))];
                if self.told.is_new(&failure(action, "set in part"), &came[0].1) {
                    log(Level::Warning, "set in part", &[&fields[..], &came].concat());
                }
            }
            Err(error) => self.failed(snapshot, action, error),
        }
    }

    /// For those who ask for the status or the metrics.
    pub(super) fn post(&mut self, snapshot: &Snapshot, step: &Step, outcomes: &[Outcome]) {
        let here: BTreeSet<&VmId> = snapshot.vms.iter().map(|vm| &vm.id).collect();
        // Who may only have been missed is counted on.
        self.counts.retain(|id, (name, ..)| here.contains(id) || snapshot.may_lack(name));
        self.silent.retain(|id, _| here.contains(id) || self.counts.contains_key(id));
        for outcome in outcomes {
            let (action, came) = (&outcome.action, self.came_of(outcome));
            let (_, actions, failures) = self.counted(action);
            if let Some(made) = came {
                *if made { actions } else { failures } += 1;
            }
        }
        let (_, offline) = snapshot.pcpu_sets();
        let usual = step.usual();
        let estimates: BTreeMap<&VmId, &VmEstimate> =
            usual.iter().flat_map(|host| &host.vms).map(|vm| (&vm.seen.id, vm)).collect();
        let given: BTreeMap<&VmId, &Given> = step.given.iter().map(|given| (&given.vm, given)).collect();
        let vm = |vm: &VmState| {
            let (actions, failures) =
                self.counts.get(&vm.id).map_or((0, 0), |(_, actions, failures)| (*actions, *failures));
            let seen = (estimates.get(&vm.id).copied(), given.get(&vm.id).copied());
            let seen = VmStatus::of(vm, step, seen, self.keeper.as_ref(), self.controller.policy(), &offline);
            VmStatus { actions, failures, ..seen }
        };
        let mut vms: Vec<VmStatus> = snapshot.vms.iter().filter(|vm| vm.role == Role::Vm).map(vm).collect();
        self.changed(&vms);
        let mut status = self.board.lock();
        (status.steps, status.stepped) = (self.steps, Some(Instant::now()));
        status.notes = notes::shown(self.own_notes().chain(step.notes.iter().cloned()), &vms);
        let before = std::mem::take(&mut status.vms);
        if usual.is_none() {
            measured_before(&mut vms, &before);
        }
        status.vms = self.with_unseen(vms, before.into_iter().filter(|vm| snapshot.may_lack(&vm.name)));
    }

    /// What somebody else made of settings that are changed, each value once.
    fn changed(&mut self, vms: &[VmStatus]) {
        for (vm, setting) in vms.iter().flat_map(|vm| vm.settings.iter().map(move |setting| (vm, setting))) {
            let Some(now) = setting.changed_to.as_ref().filter(|_| !setting.left_alone) else { continue };
            if self.told.is_new(&changed(&VmId(vm.id.clone()), &setting.lever), now) {
                let vcpus = setting.lever == Lever::Online.name(false);
                let until = if vcpus { format!(" {LEFT_UNTIL}") } else { String::new() };
                let fields = [
                    ("vm", vm.name.clone()),
                    ("lever", setting.lever.clone()),
                    ("from", setting.made.clone()),
                    ("to", now.clone()),
                    ("so", format!("it stands, and is left alone{until}")),
                ];
                log(Level::Info, "changed by somebody else", &fields);
            }
        }
    }
}

/// VMs of which nothing was measured over the usual time now, with what was shown of that before.
fn measured_before(vms: &mut [VmStatus], before: &[VmStatus]) {
    let before: BTreeMap<&str, &VmStatus> = before.iter().map(|vm| (vm.id.as_str(), vm)).collect();
    for vm in vms {
        if let Some(before) = before.get(vm.id.as_str()) {
            (vm.entitled, vm.available) = (before.entitled, before.available);
            (vm.used, vm.waiting) = (before.used, before.waiting);
        }
    }
}

/// What is said once of a change that failed, until that setting could be changed.
pub(super) fn failure(action: &Action, error: &str) -> String {
    of(&action.vm, action.lever) + error
}

pub(super) fn fields(snapshot: &Snapshot, action: &Action) -> [(&'static str, String); 5] {
    // While a guest is silent it is not known which vCPUs it uses.
    let vm = snapshot.vms.iter().find(|vm| vm.id == action.vm);
    let silent = action.lever == Lever::Online && vm.is_some_and(|vm| present::online(vm).is_none());
    let from = action.from.as_ref().filter(|_| !silent).map_or("unknown".into(), present::text);
    [
        ("vm", action.name.clone()),
        ("lever", action.setting(snapshot)),
        ("from", from),
        ("to", present::text(&action.to)),
        ("why", action.why.to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use corefit_core::decide::Why;
    use corefit_core::machine::Value;
    use corefit_core::{Cpus, Weight, What};

    use super::super::tests::{arguments, looking, running};
    use super::*;
    use crate::manage::{Boot, Journal};

    #[test]
    fn while_looks_are_short_what_is_shown_as_measured_is_of_a_second_all_the_same() {
        let args = arguments();
        let mut daemon = running(&args, "forever { compute 70ms sleep 80ms }");
        let mut shown = || {
            daemon.step();
            daemon.machine.pass(Duration::from_millis(100)).unwrap();
            let [vm] = &daemon.shown().vms[..] else { panic!() };
            vm.used
        };
        // Before a second is over one look is all that is known, of which each may be anything from 0.3 to 0.7.
        let all: Vec<Option<Cpus>> = (0..42).map(|_| shown()).skip(11).collect();
        assert!(all.iter().all(|used| used.is_some_and(|used| (0.4..0.55).contains(&used.0))), "{all:?}");
    }

    #[test]
    fn while_the_journal_cannot_be_written_the_first_note_says_that_nothing_is_changed_and_why() {
        let (args, dir) = (arguments(), tempfile::tempdir().unwrap());
        let mut daemon = looking(&args);
        let journal = Journal::open(dir.path(), "host", &Boot::named("boot")).unwrap();
        daemon.keeper = Some(Keeper::new(journal, Duration::from_secs(1)));
        for _ in 0..2 {
            daemon.timed().unwrap();
        }
        let said = |daemon: &Daemon<'_>| {
            let notes = daemon.shown().notes;
            notes
                .iter()
                .position(|note| note.starts_with("nothing is changed: "))
                .map(|at| (at, notes[at].clone()))
        };
        assert_eq!(said(&daemon), None);
        // As on a disk that is full: what is to become the journal cannot be opened.
        let beside = dir.path().join("journal.new");
        std::fs::create_dir(&beside).unwrap();
        let now = daemon.machine.observe().unwrap();
        let (to, why) = (Value::Weight(Weight(300.0)), Why::Unweighed);
        let action = Action::of(&now.vms[0], Lever::Weight, None, to, why);
        let keeper = daemon.keeper.as_mut().unwrap();
        assert!(keeper.apply(&mut *daemon.machine, &[action], now.at)[0].result.is_err());
        // As long as that goes on, whatever there is to change.
        for _ in 0..2 {
            daemon.timed().unwrap();
            let (at, note) = said(&daemon).unwrap();
            assert!(at == 0 && note.contains("journal cannot be written: "), "{note}");
        }
        std::fs::remove_dir(&beside).unwrap();
        daemon.timed().unwrap();
        assert_eq!(said(&daemon), None);
    }

    #[test]
    fn what_was_done_to_a_vm_that_ended_is_forgotten_though_another_one_cannot_be_read() {
        let args = arguments();
        let mut daemon = looking(&args);
        let vms = ["ended", "missed"].map(|name| VmState {
            id: VmId(name.into()),
            name: name.into(),
            ..VmState::default()
        });
        let done = vms.clone().map(|VmState { id: vm, name, .. }| {
            let to = Value::Weight(Weight(1.0));
            let action =
                Action { vm, name, lever: Lever::Weight, from: None, to: to.clone(), why: Why::Unweighed };
            Outcome { action, result: Ok(to) }
        });
        daemon.post(&Snapshot { vms: vms.to_vec(), ..Snapshot::default() }, &Step::default(), &done);
        assert_eq!(daemon.counts.len(), 2);
        let unread =
            Unread { what: What::Siblings, path: "VM \"missed\"".into(), why: "not asked for yet".into() };
        let later = Snapshot { unread: vec![unread], ..Snapshot::default() };
        daemon.post(&later, &Step::default(), &[]);
        assert_eq!(daemon.counts.keys().collect::<Vec<_>>(), [&vms[1].id]);
    }
}
