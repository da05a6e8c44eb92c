//! What the daemon says: in its log, and to those who ask for the status or the metrics.

use std::collections::{BTreeMap, BTreeSet};

use corefit_core::decide::{Action, Given, Outcome, Step};
use corefit_core::machine::{Lever, MachineError, Role, Snapshot, VmEstimate, VmId, VmState};

use super::Daemon;
use crate::manage::log::{Level, log};
use crate::manage::present;
use crate::manage::status::VmStatus;

/// Notes that the status shows at most.
const NOTES: usize = 100;

impl Daemon<'_> {
    pub(super) fn trouble(&mut self, error: &MachineError) {
        let text = error.to_string();
        let mut status = self.board.lock();
        if status.trouble.as_ref() != Some(&text) {
            log(Level::Error, "cannot look", &[("why", text.clone())]);
            status.trouble = Some(text);
        }
        // What was measured is not known any more; what is changed still is.
        status.vms.iter_mut().for_each(VmStatus::unsee);
    }

    /// Notes, each once.
    pub(super) fn say(&mut self, notes: &[String]) {
        for note in notes {
            if self.told.is_new(note, "") {
                log(Level::Info, "note", &[("what", note.clone())]);
            }
        }
    }

    /// Without --apply: what would be changed, once each time that it is something else.
    pub(super) fn would(&mut self, snapshot: &Snapshot, actions: &[Action]) {
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
                let came = [("became", present::text(value))];
                log(Level::Warning, "set in part", &[&fields[..], &came].concat());
            }
            Err(error) => {
                if self.told.is_new(&failure(action, &error.to_string()), "") {
                    let why = [("error", error.to_string())];
                    log(Level::Warning, "not set", &[&fields[..], &why].concat());
                }
            }
        }
    }

    /// For those who ask for the status or the metrics.
    pub(super) fn post(&mut self, snapshot: &Snapshot, step: &Step, outcomes: &[Outcome]) {
        let here: BTreeSet<&VmId> = snapshot.vms.iter().map(|vm| &vm.id).collect();
        // Who may only have been missed is counted on.
        self.counts.retain(|id, _| snapshot.may_lack_vms() || here.contains(id));
        for Outcome { action, result } in outcomes {
            let (actions, failures) = self.counts.entry(action.vm.clone()).or_default();
            *if result.is_ok() { actions } else { failures } += 1;
        }
        let (_, offline) = snapshot.pcpu_sets();
        let estimates: BTreeMap<&VmId, &VmEstimate> =
            step.estimate.iter().flat_map(|host| &host.vms).map(|vm| (&vm.seen.id, vm)).collect();
        let given: BTreeMap<&VmId, &Given> = step.given.iter().map(|given| (&given.vm, given)).collect();
        let vm = |vm: &VmState| {
            let (actions, failures) = self.counts.get(&vm.id).copied().unwrap_or_default();
            let seen = (estimates.get(&vm.id).copied(), given.get(&vm.id).copied());
            let seen = VmStatus::of(vm, step, seen, self.keeper.as_ref(), self.controller.policy(), &offline);
            VmStatus { actions, failures, ..seen }
        };
        let vms: Vec<VmStatus> = snapshot.vms.iter().filter(|vm| vm.role == Role::Vm).map(vm).collect();
        self.changed(&vms);
        let mut status = self.board.lock();
        status.steps = self.steps;
        status.vms = vms;
        let left = self.left.iter().map(|what| format!("left to the kernel: {}", what.reason));
        status.notes = left.chain(self.notes.iter().chain(&step.notes).cloned()).take(NOTES).collect();
    }

    /// What somebody else made of settings that are changed, each value once.
    fn changed(&mut self, vms: &[VmStatus]) {
        for (vm, setting) in vms.iter().flat_map(|vm| vm.settings.iter().map(move |setting| (vm, setting))) {
            let Some(now) = &setting.changed_to else { continue };
            if self.told.is_new(&format!("{} {} changed", vm.id, setting.lever), now) {
                let fields = [
                    ("vm", vm.name.clone()),
                    ("lever", setting.lever.clone()),
                    ("from", setting.made.clone()),
                    ("to", now.clone()),
                    ("so", "it stands, and is left alone".into()),
                ];
                log(Level::Info, "changed by somebody else", &fields);
            }
        }
    }
}

/// What is said once of a change that failed, until that setting could be changed.
pub(super) fn failure(action: &Action, error: &str) -> String {
    format!("{} {}: {error}", action.vm.0, action.lever)
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
