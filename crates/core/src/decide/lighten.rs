//! Helper threads that weigh little, while the kernel does not keep to weights.
//!
//! Linux 6.13 to 6.19 place the group that runs on a pCPU ahead of the others each time that its weight there changes
//! (kernel/sched/fair.c, `reweight_entity`; docs/model.md, "Where the kernel deviates"). What a VM weighs on a pCPU is its
//! weight by the part of its load that is there, and that changes at every tick as its emulator's threads come and go. The
//! kernel overlooks changes of a load by less than 1/64 (`update_tg_load_avg`); helper threads that weigh a hundredth
//! of a vCPU are below that.
//!
//! The price: where vCPUs want all of a pCPU, helper threads get a hundredth of it there, and wait for it. So this is
//! for VMs that compute, is asked for (`helpers = "light"`), and is done only once a VM of the host starves.
//!
//! ```text
//!           a VM starves              some VM starves at every look of a window
//! Watching ─────────────▶ light ──▶ (then all), or its helpers use much ──▶ as before, and rest, twice as long each time
//! ```
//!
//! A window is as long as the dwell, and as the time between two changes of a lever.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Action, Fate, Helpers, Outcome, Policy, Why, longer};
use crate::machine::{HostEstimate, Lever, LeverKind, Starved, Value, VmEstimate, VmId, VmState};
use crate::{Time, Weight};

/// Of what a vCPU weighs.
const PART: f64 = 0.01;
/// Helper threads that use more than this need it, pCPUs. Ours.
const BUSY: f64 = 0.05;

/// The stage: whom it knows to starve, and what is ours.
#[derive(Debug, Default)]
pub(super) struct Lightening {
    vms: BTreeMap<VmId, Known>,
    /// Who starved first: then this kernel has the defect.
    why: Option<Why>,
    /// Since when somebody starves at each look though helpers are light.
    in_vain: Option<Time>,
    /// How long it rests, and until when.
    rest: Duration,
    not_before: Time,
}

#[derive(Debug, Default)]
struct Known {
    /// What helper threads weighed before, and what we made it.
    ours: Option<(Weight, Weight)>,
    /// How long they rest that used much.
    rest: Duration,
    not_before: Time,
    refused: bool,
}

impl Lightening {
    /// Which weights of helper threads to change; what people should know goes to `notes`.
    pub(super) fn step(
        &mut self,
        seen: &HostEstimate,
        policy: &Policy,
        notes: &mut Vec<String>,
    ) -> Vec<Action> {
        let may_have = seen.may_have();
        self.vms.retain(|id, _| may_have(id));
        notes.extend(self.judge(seen, policy));
        let mut actions = Vec::new();
        for vm in seen.vms.iter().filter(|vm| vm.seen.is_running_vm()) {
            let light = is_wanted(policy, vm);
            let Some((now, of_vcpu)) = weights(&vm.seen) else { continue };
            let ours = self.vms.get(&vm.seen.id).and_then(|known| known.ours);
            if let Some((before, _)) = ours.filter(|(_, wrote)| now != *wrote) {
                // Put back, or somebody else's now.
                let known = Known { refused: now != before, ..Known::default() };
                self.vms.insert(vm.seen.id.clone(), known);
                continue;
            }
            let (to, why) = match (light, ours, &self.why) {
                (false, Some((before, _)), _) => (before, Why::Unlightened),
                (true, Some((before, _)), None) => (before, Why::NoGain),
                (true, Some((before, _)), Some(_)) if busy(vm) => (before, Why::Busy),
                (true, None, Some(why)) => (Weight((of_vcpu.0 * PART).round().max(1.0)), why.clone()),
                _ => continue,
            };
            if let Some(reason) = vm.seen.fixed(LeverKind::HelperWeight) {
                notes.push(format!("{}: its helper threads keep their weight: {reason}", vm.seen.name));
                continue;
            }
            if light && busy(vm) {
                let does = if ours.is_some() { "get back" } else { "keep" };
                notes.push(format!(
                    "{}: its helper threads {does} their weight, for they use more than {BUSY} pCPUs",
                    vm.seen.name
                ));
                if ours.is_none() {
                    continue;
                }
            }
            let known = self.vms.entry(vm.seen.id.clone()).or_default();
            if known.refused || seen.at < known.not_before || (ours.is_none() && now.0 <= to.0) {
                continue;
            }
            let (now, to) = (Value::Weight(now), Value::Weight(to));
            actions.push(Action::of(&vm.seen, Lever::HelperWeight, Some(now), to, why));
        }
        actions
    }

    /// Whether helper threads are to be light, by who starves; a note if that was in vain.
    fn judge(&mut self, seen: &HostEstimate, policy: &Policy) -> Option<String> {
        let starved = seen.vms.iter().find_map(|vm| Some((vm.seen.name.clone(), vm.starved()?)));
        let light = self.vms.values().any(|known| known.ours.is_some() && !known.refused);
        if !light && !seen.vms.iter().any(|vm| is_wanted(policy, vm)) {
            // Who starves now is no reason for what may be wanted later.
            (self.why, self.in_vain) = (None, None);
            return None;
        }
        let Some((name, starved)) = starved.filter(|_| light || self.why.is_none()) else {
            self.in_vain = None;
            return None;
        };
        if self.why.is_none() {
            let Starved { used, available } = starved;
            let rests = light || seen.at < self.not_before;
            self.why = (!rests).then_some(Why::Starved { name, used, available });
            return None;
        }
        let since = *self.in_vain.get_or_insert(seen.at);
        if seen.at.since(since) < policy.window() {
            return None;
        }
        (self.why, self.in_vain) = (None, None);
        self.rest = longer(self.rest);
        self.not_before = seen.at + self.rest;
        Some(format!("{name} starves though helper threads weigh little: they get back their weight"))
    }

    /// Who refused is asked again.
    pub(super) fn try_again(&mut self) {
        self.vms.values_mut().for_each(|known| known.refused = false);
    }

    /// What became of an action of the last step.
    pub(super) fn told(&mut self, outcome: &Outcome, at: Time) {
        let Action { vm, lever: Lever::HelperWeight, from: Some(Value::Weight(from)), why, .. } =
            &outcome.action
        else {
            return;
        };
        let Some(known) = self.vms.get_mut(vm) else { return };
        match outcome.fate(at) {
            Fate::Is(Value::Weight(read)) => {
                known.ours = matches!(why, Why::Starved { .. }).then_some((*from, *read));
                if *why == Why::Busy {
                    known.rest = longer(known.rest);
                    known.not_before = at + known.rest;
                }
            }
            Fate::Later => {}
            Fate::Away(until) => known.not_before = until,
            Fate::Is(_) | Fate::Refused => known.refused = true,
        }
    }
}

/// Whether its helper threads may be made light.
fn is_wanted(policy: &Policy, vm: &VmEstimate) -> bool {
    let rule = policy.of(&vm.seen.name);
    rule.helpers.unwrap_or(policy.helpers) == Helpers::Light && rule.exclude != Some(true)
}

/// What the emulator's threads weigh, and a vCPU.
fn weights(vm: &VmState) -> Option<(Weight, Weight)> {
    let emulator = vm.helpers.iter().find(|helper| helper.name == "emulator")?;
    Some((emulator.weight?, vm.vcpus.iter().find(|vcpu| vcpu.online)?.weight?))
}

/// Whether its helper threads have work to do.
fn busy(vm: &VmEstimate) -> bool {
    vm.helpers.iter().filter_map(|helper| helper.used).map(|used| used.0).sum::<f64>() > BUSY
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Counters, Helper, MachineError, Pcpu, Snapshot, VcpuState, estimate};
    use crate::{CpuId, Unread, What};

    const SECOND: u64 = 1_000_000_000;

    /// Two equal VMs on one pCPU, looked at once a second.
    struct Toy {
        stage: Lightening,
        now: Snapshot,
        policy: Policy,
        notes: Vec<String>,
        refuses: bool,
    }

    impl Toy {
        fn new(policy: &str) -> Toy {
            let counters = Counters { run_ns: Some(0), wait_ns: Some(0), runs: None };
            let weight = Some(Weight(1024.0));
            let vm = |name: &str| VmState {
                id: VmId(name.into()),
                name: name.into(),
                vcpus: vec![VcpuState { online: true, weight, counters, ..VcpuState::default() }],
                helpers: vec![Helper { name: "emulator".into(), weight, counters, ..Helper::default() }],
                ..VmState::default()
            };
            let pcpus = vec![Pcpu { id: CpuId(0), online: true, ..Pcpu::default() }];
            let now =
                Snapshot { at: Time(SECOND), pcpus, vms: vec![vm("a"), vm("b")], ..Snapshot::default() };
            let policy = toml::from_str(policy).unwrap();
            Toy { stage: Lightening::default(), now, policy, notes: Vec::new(), refuses: false }
        }

        /// A second in which the first had so much of the pCPU and both wanted all of it, and the helpers of both used so
        /// much: what is to be set, done at once, or refused.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "parts of a second")]
        fn second(&mut self, first: f64, helpers: f64) -> Vec<(String, f64)> {
            let before = self.now.clone();
            self.now.at = Time(before.at.0 + SECOND);
            for (vm, had) in self.now.vms.iter_mut().zip([first, 1.0 - first]) {
                let more = |counters: &mut Counters, run: f64, wait: f64| {
                    counters.run_ns = counters.run_ns.map(|ns| ns + (run * SECOND as f64) as u64);
                    counters.wait_ns = counters.wait_ns.map(|ns| ns + (wait * SECOND as f64) as u64);
                };
                more(&mut vm.vcpus[0].counters, had, 1.0 - had);
                more(&mut vm.helpers[0].counters, helpers, 0.0);
            }
            let seen = estimate(&before, &self.now).unwrap();
            let actions = self.stage.step(&seen, &self.policy, &mut self.notes);
            let set = |action: Action| {
                let Value::Weight(weight) = action.to else { panic!("{action:?}") };
                let vm = self.now.vms.iter_mut().find(|vm| vm.id == action.vm).unwrap();
                let result = if self.refuses {
                    Err(MachineError::Denied("no".into()))
                } else {
                    vm.helpers[0].weight = Some(weight);
                    Ok(action.to.clone())
                };
                self.stage.told(&Outcome { action, result }, self.now.at);
                (vm.name.clone(), weight.0)
            };
            actions.into_iter().map(set).collect()
        }
    }

    fn both(weight: f64) -> Vec<(String, f64)> {
        ["a", "b"].map(|name| (name.to_owned(), weight)).into()
    }

    #[test]
    fn helpers_weigh_little_once_a_vm_starves_and_what_they_did_when_that_is_not_wanted_any_more() {
        let mut toy = Toy::new("helpers = \"light\"");
        assert_eq!(toy.second(0.6, 0.01), []);
        assert_eq!(toy.second(0.95, 0.01), both(10.0));
        assert_eq!(toy.second(0.5, 0.01), [], "it stays so");
        toy.policy.helpers = Helpers::None;
        assert_eq!(toy.second(0.5, 0.01), both(1024.0));
        assert_eq!(toy.second(0.95, 0.01), []);
    }

    #[test]
    fn who_starved_while_that_was_not_wanted_is_no_reason_once_it_is() {
        let mut toy = Toy::new("");
        assert_eq!(toy.second(0.95, 0.01), []);
        toy.policy.helpers = Helpers::Light;
        assert_eq!(toy.second(0.5, 0.01), []);
        assert_eq!(toy.second(0.95, 0.01), both(10.0));
        // Nor once it is wanted again.
        toy.policy.helpers = Helpers::None;
        assert_eq!(toy.second(0.5, 0.01), both(1024.0));
        assert_eq!(toy.second(0.5, 0.01), []);
        toy.policy.helpers = Helpers::Light;
        assert_eq!(toy.second(0.5, 0.01), []);
    }

    #[test]
    fn what_does_not_help_is_undone_with_a_note_and_tried_more_and_more_rarely() {
        let mut toy = Toy::new("helpers = \"light\"");
        let mut set = vec![];
        for second in 0..200 {
            match &toy.second(0.95, 0.01)[..] {
                [] => {}
                done if *done == both(10.0)[..] => set.push(second),
                done => {
                    assert_eq!(done, both(1024.0));
                    assert_eq!(set.last(), Some(&(second - 4)), "after a window of 3 s");
                }
            }
        }
        assert_eq!(set, [0, 34, 98], "30 s, then 60");
        assert_eq!(toy.notes[0], "b starves though helper threads weigh little: they get back their weight");
    }

    #[test]
    fn what_helps_stays_though_somebody_starves_now_and_then() {
        let mut toy = Toy::new("helpers = \"light\"");
        assert_eq!(toy.second(0.95, 0.01), both(10.0));
        for second in 0..60 {
            assert_eq!(toy.second(if second % 3 == 0 { 0.5 } else { 0.95 }, 0.01), []);
        }
    }

    #[test]
    fn helpers_that_use_much_get_back_what_they_weighed_and_rest() {
        let mut toy = Toy::new("helpers = \"light\"");
        assert_eq!(toy.second(0.95, 0.01), both(10.0));
        assert_eq!(toy.second(0.5, 0.2), both(1024.0));
        assert!(toy.notes[0].contains("get back their weight, for they use more than 0.05 pCPUs"));
        for _ in 0..29 {
            assert_eq!(toy.second(0.5, 0.01), []);
        }
        assert_eq!(toy.second(0.5, 0.01), both(10.0));
        assert_eq!(toy.second(0.5, 0.2), both(1024.0));
        let again = (0..100).find(|_| !toy.second(0.5, 0.01).is_empty());
        assert_eq!(again, Some(59), "twice as long");
    }

    #[test]
    fn nobody_is_touched_who_was_not_named_whose_helpers_work_or_whose_weight_is_somebody_elses() {
        assert_eq!(Toy::new("").second(0.95, 0.01), []);
        let mut one = Toy::new("[[vm]]\nname = \"b\"\nhelpers = \"light\"");
        assert_eq!(one.second(0.95, 0.01), [("b".to_owned(), 10.0)]);
        let mut busy = Toy::new("helpers = \"light\"");
        assert_eq!(busy.second(0.95, 0.2), []);
        assert!(busy.notes[0].contains("use more than 0.05 pCPUs"), "{:?}", busy.notes);
        let mut theirs = Toy::new("helpers = \"light\"");
        theirs.second(0.95, 0.01);
        theirs.now.vms[1].helpers[0].weight = Some(Weight(500.0));
        assert_eq!(theirs.second(0.95, 0.01), []);
        // What was put back meanwhile, as for a VM that was excluded for a while, may be done again.
        theirs.now.vms[0].helpers[0].weight = Some(Weight(1024.0));
        assert_eq!(theirs.second(0.5, 0.01), []);
        assert_eq!(theirs.second(0.5, 0.01), [("a".to_owned(), 10.0)]);
        theirs.policy.helpers = Helpers::None;
        assert_eq!(theirs.second(0.5, 0.01), [("a".to_owned(), 1024.0)]);
    }

    /// libvirtd is slow after a restart: a look lacks the VMs.
    #[test]
    fn helpers_of_those_that_a_look_missed_weigh_what_they_did_in_the_end() {
        let mut toy = Toy::new("helpers = \"light\"");
        assert_eq!(toy.second(0.95, 0.01), both(10.0));
        let before = toy.now.clone();
        toy.now.vms.clear();
        toy.now.at = Time(before.at.0 + SECOND);
        toy.now.unread =
            vec![Unread { what: What::Siblings, path: "VM \"a\"".into(), why: "not asked yet".into() }];
        let seen = estimate(&before, &toy.now).unwrap();
        assert_eq!(toy.stage.step(&seen, &toy.policy, &mut toy.notes), []);
        (toy.now.vms, toy.now.unread) = (before.vms, vec![]);
        toy.policy.helpers = Helpers::None;
        assert_eq!(toy.second(0.5, 0.01), both(1024.0));
    }

    #[test]
    fn a_machine_that_refuses_is_not_asked_again() {
        let mut toy = Toy::new("helpers = \"light\"");
        toy.refuses = true;
        assert_eq!(toy.second(0.95, 0.01), both(10.0));
        assert_eq!(toy.second(0.95, 0.01), []);
    }
}
