//! When weights follow what was granted, and when they wait, on hosts made of numbers.

use std::cell::Cell;
use std::time::Duration;

use corefit_core::decide::{
    Action, Arbiter, Controller, Forecast, Outcome, Plan, Policy, Rule, Sizer, Step, Weigher, Why,
};
use corefit_core::machine::{Fixed, Lever, LeverKind, MachineError, State, Value, VmId};
use corefit_core::{CpuSet, Quota, Weight};

use crate::support::{ByCount, Toy, ToyVm, contest, four, vm};

thread_local!(static BUSY: Cell<bool> = const { Cell::new(true) });

/// Seconds.
const DWELL: usize = 10;

/// As busy as it can be, or not at all.
fn now_and_then(n: u32) -> f64 {
    if BUSY.get() { f64::from(n) } else { 0.0 }
}

/// Its vCPUs stay, so weights divide.
fn keeps(name: &str, used: ByCount) -> ToyVm {
    let mut one = vm(name, 8, None, used);
    one.state.fixed = vec![Fixed { lever: LeverKind::Online, reason: "no agent answers".into() }];
    one
}

/// Three VMs on six pCPUs, of which `b` works now and then.
fn three(arbitrate: Arbiter, rules: Vec<Rule>) -> (Toy, Controller) {
    let policy = Policy {
        size: Sizer::None,
        demand: Forecast::Pid,
        arbitrate,
        weigh: Weigher::Grants,
        dwell_ms: 10_000,
        vm: rules,
        ..Policy::default()
    };
    let vms = vec![keeps("a", f64::from), keeps("b", now_and_then), keeps("c", f64::from)];
    (Toy::new(6, vms), Controller::new(policy))
}

/// Weights after each of so many seconds.
fn weights(
    toy: &mut Toy,
    controller: &mut Controller,
    busy: impl Fn(u64) -> bool,
    seconds: u64,
) -> Vec<Vec<f64>> {
    let mut all = Vec::new();
    for second in 0..seconds {
        BUSY.set(busy(second));
        let step = controller.step(&toy.observe()).unwrap();
        toy.obey(controller, &step);
        toy.pass(Duration::from_secs(1));
        all.push(toy.weights());
    }
    all
}

fn changes(all: &[Vec<f64>]) -> usize {
    all.windows(2).filter(|pair| pair[0] != pair[1]).count()
}

#[test]
fn who_wants_less_now_and_then_keeps_its_weight_and_who_does_for_the_dwell_loses_it() {
    let (mut toy, mut controller) = three(Arbiter::MaxMin, vec![]);
    let all = weights(&mut toy, &mut controller, |second| second % 16 < 8, 160);
    assert!(changes(&all) <= 2, "{all:?}");
    assert!(weights(&mut toy, &mut controller, |_| true, 30).last().unwrap().iter().all(|w| *w == 1024.0));
    let all = weights(&mut toy, &mut controller, |_| false, 40);
    let fell = all.iter().position(|weights| weights[1] < 1000.0).unwrap();
    assert!((DWELL..DWELL + 15).contains(&fell), "{fell}: {all:?}");
    assert_eq!(all.last().unwrap(), &[1280.0, 512.0, 1280.0], "2.5, 1 and 2.5 pCPUs");
}

#[test]
fn who_was_paused_waits_for_the_whole_dwell_again() {
    let (mut toy, mut controller) = three(Arbiter::MaxMin, vec![]);
    weights(&mut toy, &mut controller, |_| true, 20);
    let mut idle = |state, seconds| {
        toy.vms[1].state.state = state;
        weights(&mut toy, &mut controller, |_| false, seconds).pop().unwrap()[1]
    };
    for state in [State::Running, State::Paused, State::Running] {
        assert_eq!(idle(state, 8), 1024.0);
    }
    assert_eq!(idle(State::Running, 8), 512.0);
}

#[test]
fn all_weigh_what_they_did_once_nobody_is_short_for_the_dwell() {
    let (mut toy, mut controller) = three(Arbiter::MaxMin, vec![]);
    weights(&mut toy, &mut controller, |_| false, 60);
    for vm in [0, 2] {
        toy.vms[vm].used = |_| 0.1;
    }
    let all = weights(&mut toy, &mut controller, |_| false, 60);
    let back = all.iter().position(|weights| *weights == [1024.0; 3]).unwrap();
    assert!(all[..back].iter().all(|weights| *weights == [1280.0, 512.0, 1280.0]), "{all:?}");
    assert!(back >= DWELL, "{back}");
}

#[test]
fn a_more_important_one_has_its_weight_at_once_and_loses_it_after_the_dwell() {
    let rule = Rule { name: "b".into(), priority: Some(1), ..Rule::default() };
    let (mut toy, mut controller) = three(Arbiter::Priority, vec![rule]);
    weights(&mut toy, &mut controller, |_| false, 60);
    let low = toy.weights()[1];
    let all = weights(&mut toy, &mut controller, |_| true, 20);
    let high = all.iter().position(|weights| weights[1] > 2.0 * low).unwrap();
    assert!(high < 8, "its demand is forecast, but nobody waits for the dwell: {all:?}");
    let all = weights(&mut toy, &mut controller, |_| false, 60);
    let fell = all.windows(2).position(|pair| pair[1][1] < pair[0][1]).unwrap();
    assert!(fell + 1 >= DWELL, "{fell}: {all:?}");
    assert_eq!(all.last().unwrap()[1], low);
}

/// `c` may use any of 8 pCPUs, and has room.
#[test]
fn guarantees_that_are_more_than_the_pcpus_that_vms_may_use_are_named() {
    let mut toy = Toy::new(8, vec![vm("a", 4, None, four), vm("b", 4, None, four), vm("c", 4, None, four)]);
    for vm in &mut toy.vms[..2] {
        vm.state.vcpus.iter_mut().for_each(|vcpu| vcpu.affinity = Some(CpuSet::first(4)));
    }
    let mut named = |min| {
        let rule = |name: &str| Rule { name: name.into(), min: Some(min), ..Rule::default() };
        let policy = Policy { size: Sizer::None, arbitrate: Arbiter::MaxMin, ..Policy::default() };
        let mut controller = Controller::new(Policy { vm: vec![rule("a"), rule("b")], ..policy });
        controller.step(&toy.observe()).unwrap();
        toy.pass(Duration::from_secs(1));
        let notes = controller.step(&toy.observe()).unwrap().notes;
        notes.into_iter().filter(|note| note.contains("guaranteed")).collect::<Vec<_>>()
    };
    assert_eq!(named(2), [""; 0]);
    let said =
        "more of pCPUs 0-3 are guaranteed than there are: not all VMs that may use them can get theirs";
    assert_eq!(named(4), [said]);
}

/// What a VM is guaranteed and does not want is missing to nobody, were it more than there is.
#[test]
fn a_guarantee_that_is_not_wanted_takes_nothing_from_another() {
    let rule = |name: &str, priority, guaranteed| Rule {
        name: name.into(),
        priority: Some(priority),
        guaranteed: Some(guaranteed),
        min: Some(8),
        ..Rule::default()
    };
    let (mut toy, mut controller) =
        three(Arbiter::Priority, vec![rule("b", 2, 6.0), rule("a", 1, 4.0), rule("c", 0, 0.25)]);
    let all = weights(&mut toy, &mut controller, |_| false, 60);
    let [a, _, c] = all.last().unwrap()[..] else { panic!("{all:?}") };
    assert!(a / (a + c) > 0.66, "4 of 6: {a} and {c}");
}

/// Who is important and wants it has it, and who is not, and wants nothing now, does not weigh as much: it may want it the next moment.
#[test]
fn of_guarantees_that_do_not_fit_an_idle_one_of_the_least_important_weighs_little() {
    let rule = |name: &str, priority| Rule { name: name.into(), priority: Some(priority), ..Rule::default() };
    let policy = Policy {
        size: Sizer::None,
        arbitrate: Arbiter::Priority,
        weigh: Weigher::Grants,
        vm: vec![rule("high", 1), rule("idle", -1)],
        ..Policy::default()
    };
    let busy = |name: &str| vm(name, 1, None, |_| 1.0);
    let mut toy = Toy::new(2, vec![busy("high"), busy("a"), busy("b"), vm("idle", 1, None, |_| 0.0)]);
    toy.vms[0].state.weight = Some(Weight(2048.0));
    let mut controller = Controller::new(policy);
    toy.rule(&mut controller, 30);
    let [high, a, b, idle] = toy.weights()[..] else { panic!() };
    assert!(a == b && (0.45..0.55).contains(&(a / high)), "half of a pCPU each: {:?}", toy.weights());
    assert!(idle < 0.15 * high && high > 2048.0, "{:?}", toy.weights());
}

/// Containers that are not started yet, or have ended, and hold a control group all the same.
#[test]
fn a_group_without_a_process_is_granted_and_guaranteed_nothing() {
    let policy = |guaranteed| Policy {
        size: Sizer::None,
        arbitrate: Arbiter::Priority,
        weigh: Weigher::Grants,
        vm: vec![Rule { name: "a".into(), priority: Some(1), guaranteed, ..Rule::default() }],
        ..Policy::default()
    };
    let busy = |name: &str| vm(name, 2, None, |_| 1.0);
    let vms = || vec![busy("a"), busy("b"), vm("c", 2, None, |_| 0.0), vm("d", 2, None, |_| 0.0)];
    let notes = |empty, guaranteed| {
        let mut toy = Toy::new(2, vms());
        toy.vms[2..].iter_mut().for_each(|vm| vm.state.empty = empty);
        let mut controller = Controller::new(policy(guaranteed));
        toy.rule(&mut controller, 30);
        let step = controller.step(&toy.observe()).unwrap();
        let said: Vec<String> = step.notes.into_iter().filter(|note| note.contains("guaranteed")).collect();
        (said, step.given.len(), toy.weights()[2..] == [1024.0; 2])
    };
    assert_eq!(notes(true, None), (vec![], 2, true), "two for two");
    let (said, given, _) = notes(false, None);
    assert_eq!((said.len(), given), (1, 4));
    let remedy = "(a pCPU each where no rule says another number: guaranteed = 0.1 in a rule with name = \"*\" leaves room; a VM with a min is guaranteed that only where its own rule, a later one, says so, too)";
    assert!(
        said[0].starts_with("4.00 pCPUs are guaranteed, more than the 2") && said[0].ends_with(remedy),
        "{said:?}"
    );
}

/// A cap of a part of a pCPU is no guarantee of more than that, nor is a part beyond it any use.
#[test]
fn what_a_cap_leaves_of_a_guarantee_is_all_that_counts() {
    let (mut toy, mut controller) = three(Arbiter::Priority, vec![]);
    let cap = Quota { quota_us: Some(5_000), period_us: 100_000, burst_us: 0, source: String::new() };
    toy.vms[0].state.quota = Some(cap);
    (toy.vms[0].used, toy.pcpus) = (|_| 0.05, 3);
    let all = weights(&mut toy, &mut controller, |_| true, 60);
    let [a, b, c] = all.last().unwrap()[..] else { panic!("{all:?}") };
    assert!(a < 0.1 * b && a < 0.1 * c, "0.05 of 3: {all:?}");
    let mut notes = controller.step(&toy.observe()).unwrap().notes.into_iter();
    assert!(notes.all(|note| !note.contains("are guaranteed, more than")), "2.05 of 3");
}

#[test]
fn the_parts_that_are_told_are_not_more_than_there_is() {
    let vm = |name: &str| Rule { name: name.into(), min: Some(4), ..Rule::default() };
    let (mut toy, mut controller) = three(Arbiter::Priority, ["a", "b", "c"].map(vm).into());
    toy.vms[2].state.weight = Some(Weight(4096.0));
    let mut parts = std::collections::BTreeMap::new();
    for _ in 0..40 {
        BUSY.set(true);
        let step = controller.step(&toy.observe()).unwrap();
        for action in &step.plan.actions {
            if let Why::Weighed { part } = action.why {
                parts.insert(action.vm.clone(), part.0);
            }
        }
        toy.obey(&mut controller, &step);
        toy.pass(Duration::from_secs(1));
    }
    let all: f64 = parts.values().sum();
    assert!(!parts.is_empty() && all < 6.01, "of 6 pCPUs: {parts:?}");
}

/// After a kill -9, a migration, or a look without it, a VM's weight does not tell what it was.
#[test]
fn weights_that_were_changed_before_go_back_to_what_the_journal_has() {
    let (mut toy, policy) = contest();
    (toy.vms[0].state.weight, toy.vms[1].state.weight) = (Some(Weight(375.0)), Some(Weight(2625.0)));
    let mut controller = Controller::new(policy);
    let before = [("low", 1000.0), ("high", 2000.0)];
    controller.weighed_before(before.map(|(name, weight)| (VmId(name.into()), Weight(weight))).into());
    toy.rule(&mut controller, 20);
    assert_eq!(toy.weights(), [1000.0, 2000.0], "nobody is short");
}

#[test]
fn the_weight_of_one_that_a_look_missed_goes_back_to_what_it_was() {
    let (mut toy, policy) = contest();
    toy.vms[1].used = f64::from;
    let mut controller = Controller::new(policy.clone());
    toy.rule(&mut controller, 20);
    assert_eq!(toy.weights(), [375.0, 2625.0]);
    toy.missed = Some(0);
    toy.rule(&mut controller, 1);
    toy.missed = None;
    controller.reconfigure(Policy { weigh: Weigher::None, ..policy });
    toy.rule(&mut controller, 5);
    assert_eq!(toy.weights(), [1000.0, 2000.0]);
}

/// libvirt lets a write wait behind a job of the domain's, longer than anybody waits for it.
#[test]
fn a_weight_that_is_written_late_is_no_administrators() {
    let (mut toy, policy) = contest();
    toy.vms[1].used = f64::from;
    let mut controller = Controller::new(policy);
    let mut late = Vec::new();
    for _ in 0..20 {
        let step = controller.step(&toy.observe()).unwrap();
        let (weights, rest): (Vec<Action>, Vec<Action>) =
            step.plan.actions.into_iter().partition(|action| action.lever == Lever::Weight);
        let told = |action: &Action| Outcome {
            action: action.clone(),
            result: Err(MachineError::Gone("no answer".into())),
        };
        controller.told(&weights.iter().map(told).collect::<Vec<_>>());
        late.extend(weights);
        toy.obey(&mut controller, &Step { plan: Plan { actions: rest }, ..Step::default() });
        toy.pass(Duration::from_secs(1));
    }
    assert_eq!(toy.weights(), [1000.0, 2000.0]);
    for action in late {
        let vm = toy.vms.iter_mut().find(|vm| vm.state.id == action.vm).unwrap();
        let Value::Weight(weight) = action.to else { panic!("{:?}", action.to) };
        vm.state.weight = Some(weight);
    }
    assert_ne!(toy.weights(), [1000.0, 2000.0]);
    toy.vms[1].used = |_| 0.05;
    toy.rule(&mut controller, 30);
    assert_eq!(toy.weights(), [1000.0, 2000.0], "nobody is short");
}

/// An administrator makes it what it was under us, after it was put back.
#[test]
fn a_weight_that_was_put_back_of_who_is_left_alone_is_not_ours_any_more() {
    for by_owner in [false, true] {
        let (mut toy, mut policy) = contest();
        toy.vms[1].used = f64::from;
        let mut controller = Controller::new(policy.clone());
        toy.rule(&mut controller, 20);
        let ours = toy.weights()[0];
        assert_ne!(ours, 1000.0);
        let mut leave = |toy: &mut Toy, controller: &mut Controller, alone: bool| {
            toy.vms[0].state.hands_off = by_owner && alone;
            policy.vm[0].exclude = Some(!by_owner && alone);
            controller.reconfigure(policy.clone());
        };
        leave(&mut toy, &mut controller, true);
        toy.vms[0].state.weight = Some(Weight(1000.0));
        toy.rule(&mut controller, 5);
        toy.vms[0].state.weight = Some(Weight(ours));
        toy.rule(&mut controller, 5);
        leave(&mut toy, &mut controller, false);
        toy.vms[1].used = |_| 0.05;
        toy.rule(&mut controller, 30);
        assert_eq!(toy.weights()[0], ours, "by its owner: {by_owner}");
    }
}

/// `low` and `high` are to have a quarter of a pCPU, or as much as is guaranteed, and the rest of two.
#[test]
fn weights_that_the_host_does_not_take_are_not_written_and_no_part_is_told_that_they_do_not_give() {
    let ends = |before: [f64; 2], least: f64, beside: bool| {
        let (mut toy, mut policy) = contest();
        toy.vms[1].used = f64::from;
        policy.vm[0].guaranteed = Some(least);
        (toy.vms[0].state.weight, toy.vms[1].state.weight) =
            (Some(Weight(before[0])), Some(Weight(before[1])));
        if beside {
            toy.vms.push(vm("apart", 2, None, f64::from));
            toy.vms[2].state.weight = Some(Weight(before[0]));
            policy.vm.push(Rule { name: "apart".into(), exclude: Some(true), ..Rule::default() });
        }
        let mut controller = Controller::new(policy);
        let mut told = [0.0; 2];
        for _ in 0..20 {
            let step = controller.step(&toy.observe()).unwrap();
            for action in &step.plan.actions {
                if let Why::Weighed { part } = action.why {
                    told[usize::from(action.name == "high")] = part.0;
                }
            }
            toy.obey(&mut controller, &step);
            toy.pass(Duration::from_secs(1));
        }
        (toy.weights()[..2].to_vec(), told.map(|part| (100.0 * part).round() / 100.0))
    };
    assert_eq!(ends([3.0, 3.0], 0.25, false), (vec![2.0, 14.0], [0.25, 1.75]), "2 is the least");
    assert_eq!(ends([1.0, 1.0], 0.25, false), (vec![1.0, 7.0], [0.0, 1.75]), "v2, where 1 is; it stays");
    assert_eq!(ends([10_000.0, 10_000.0], 0.25, false), (vec![1429.0, 10_000.0], [0.25, 0.0]), "it stays");
    assert_eq!(ends([100_000.0, 1024.0], 0.25, false), (vec![12_628.0, 88_396.0], [0.25, 1.75]), "v1");
    let (weights, told) = ends([1000.0, 1000.0], 0.0001, false);
    assert_eq!((weights, told), (vec![2.0, 10_000.0], [0.0, 2.0]), "as far as can be");
    // Another one with the same parent would lose.
    assert_eq!(ends([3.0, 3.0], 0.25, true).0, [2.0, 5.0]);
}

/// It may use these pCPUs only, and keeps its vCPUs.
pub(super) fn on(pcpus: &str, name: &str, vcpus: usize, used: ByCount) -> ToyVm {
    let mut one = vm(name, vcpus, None, used);
    one.state.vcpus.iter_mut().for_each(|vcpu| vcpu.affinity = pcpus.parse().ok());
    one.state.fixed = vec![Fixed { lever: LeverKind::Online, reason: "no agent answers".into() }];
    one
}

pub(super) fn important(name: &str) -> Rule {
    Rule { name: name.into(), priority: Some(1), ..Rule::default() }
}

/// 13 vCPUs on 16 pCPUs, of which 12 are on eight.
#[test]
fn weights_follow_grants_where_some_pcpus_are_crowded_though_others_are_free() {
    let crowd = ["hi", "c", "d"].map(|name| on("0-7", name, 4, f64::from));
    let mut toy = Toy::new(16, crowd.into_iter().chain([on("8-15", "web", 1, f64::from)]).collect());
    let policy = Policy { size: Sizer::None, arbitrate: Arbiter::Priority, ..Policy::default() };
    let policy = Policy { weigh: Weigher::Grants, vm: vec![important("hi")], ..policy };
    toy.rule(&mut Controller::new(policy), 20);
    assert_eq!(
        toy.weights(),
        [1536.0, 1152.0, 384.0, 1024.0],
        "4, 3 and 1 of 8 pCPUs, and one that is not concerned"
    );
}

/// 40 s in which each vCPU that is not on a pCPU waits for one; the notes of the last.
pub(super) fn waiting(toy: &mut Toy, controller: &mut Controller) -> Vec<String> {
    let mut notes = Vec::new();
    for _ in 0..40 {
        let step = controller.step(&toy.observe()).unwrap();
        toy.obey(controller, &step);
        toy.pass(Duration::from_secs(1));
        for vm in &mut toy.vms {
            let vcpus = vm.state.vcpus.len();
            let waits = 1.0 - (vm.used)(u32::try_from(vcpus).unwrap()) / vcpus as f64;
            for vcpu in &mut vm.state.vcpus {
                *vcpu.counters.wait_ns.as_mut().unwrap() +=
                    u64::try_from(Duration::from_secs_f64(waits).as_nanos()).unwrap();
            }
        }
        notes = step.notes;
    }
    notes
}

/// Who is told that weights would help.
fn hinted(notes: &[String]) -> Vec<&str> {
    let hints = notes.iter().filter(|note| note.contains("weigh = \"grants\""));
    hints.filter_map(|note| Some(note.split_once(": has wanted")?.0)).collect()
}

/// Each has one vCPU, which it keeps: three on two pCPUs, whoever else may use these, too, and has room elsewhere or not.
#[test]
fn weights_divide_some_pcpus_of_which_more_is_kept_than_there_is_though_others_are_free() {
    let ends = |web: ToyVm| {
        let one = |name| vm(name, 1, None, |_| 2.0 / 3.0);
        let mut toy = Toy::new(8, vec![one("hi"), one("a"), one("b"), web]);
        toy.vms[..3].iter_mut().for_each(|vm| vm.state.vcpus[0].affinity = Some(CpuSet::first(2)));
        let policy = Policy { size: Sizer::None, arbitrate: Arbiter::Priority, ..Policy::default() };
        let with = |weigh| Controller::new(Policy { weigh, vm: vec![important("hi")], ..policy.clone() });
        let notes = waiting(&mut toy, &mut with(Weigher::None));
        assert_eq!(hinted(&notes), ["hi"], "{notes:#?}");
        waiting(&mut toy, &mut with(Weigher::Grants));
        toy.weights()
    };
    let divided = [1536.0, 768.0, 768.0, 1024.0];
    assert_eq!(ends(on("2-7", "web", 1, |_| 0.5)), divided, "1, 0.5 and 0.5 of 2 pCPUs");
    assert_eq!(ends(on("0-7", "web", 1, |_| 0.5)), divided, "it has room");
    assert_eq!(ends(on("0-7", "web", 8, |_| 6.0)), [585.0, 293.0, 293.0, 2926.0], "all are crowded: 5 of 8");
}

/// Of more sets of pCPUs than are told apart (64) those that share none are looked at by themselves all the same.
#[test]
fn weights_divide_some_pcpus_however_many_others_there_are() {
    let sets: Vec<String> = (0..80).map(|pair| format!("{}-{}", 2 * pair, 2 * pair + 1)).collect();
    let others = (1..80_usize).map(|pair| on(&sets[pair], &format!("vm{pair}"), 1, f64::from));
    let crowd = ["hi", "a", "b"].map(|name| vm(name, 1, None, |_| 2.0 / 3.0));
    let mut toy = Toy::new(160, crowd.into_iter().chain(others).collect());
    toy.vms[..3].iter_mut().for_each(|vm| vm.state.vcpus[0].affinity = Some(CpuSet::first(2)));
    let policy = Policy { size: Sizer::None, arbitrate: Arbiter::Priority, ..Policy::default() };
    let policy = Policy { weigh: Weigher::Grants, vm: vec![important("hi")], ..policy };
    waiting(&mut toy, &mut Controller::new(policy));
    let weights = toy.weights();
    assert_eq!(weights[..3], [1536.0, 768.0, 768.0], "1, 0.5 and 0.5 of 2 pCPUs");
    assert!(weights[3..].iter().all(|weight| (weight - 1024.0).abs() < 1e-9));
}

/// VMs without agent keep their vCPUs, and are asked for what they want only where weights follow.
#[test]
fn who_is_short_beside_vms_without_agent_is_told_that_weights_help_where_they_do() {
    let told = |arbitrate, rules: &[Rule], heavy: f64, used: [ByCount; 2]| {
        let beside = ["c", "d"].map(|name| on("0-7", name, 4, used[1]));
        let mut toy = Toy::new(8, [vm("v", 4, None, used[0])].into_iter().chain(beside).collect());
        toy.vms[1..].iter_mut().for_each(|vm| vm.state.weight = Some(Weight(heavy)));
        let policy = Policy { size: Sizer::None, arbitrate, ..Policy::default() };
        let notes = waiting(&mut toy, &mut Controller::new(Policy { vm: rules.to_vec(), ..policy.clone() }));
        let found = !hinted(&notes).is_empty();
        waiting(
            &mut toy,
            &mut Controller::new(Policy { weigh: Weigher::Grants, vm: rules.to_vec(), ..policy }),
        );
        let weights = toy.weights();
        (found, weights[0] / (weights[0] + weights[1] + weights[2]) > 1.2 * 1024.0 / (1024.0 + 2.0 * heavy))
    };
    let alike: [ByCount; 2] = [|_| 8.0 / 3.0; 2];
    let light: [ByCount; 2] = [|_| 1.2, |_| 3.4];
    assert_eq!(told(Arbiter::Priority, &[important("v")], 1024.0, alike), (true, true));
    assert_eq!(told(Arbiter::MaxMin, &[], 1024.0, alike), (false, false), "each has its third");
    assert_eq!(told(Arbiter::Priority, &[important("v")], 4096.0, light), (true, true));
    let excluded = ["c", "d"].map(|name| Rule { name: name.into(), exclude: Some(true), ..Rule::default() });
    let rules = [vec![important("v")], excluded.into()].concat();
    assert_eq!(told(Arbiter::Priority, &rules, 4096.0, light), (false, false), "nobody to take from");
}

/// Who has all that it asked for, elsewhere, keeps its weight; and gets it back after the dwell though others are short.
#[test]
fn who_is_short_of_other_pcpus_changes_no_weight_here() {
    let crowd = |pcpus: &str, names: [&str; 2], used| names.map(|name| on(pcpus, name, 4, used)).into_iter();
    let vms = crowd("0-3", ["a", "b"], f64::from).chain(crowd("4-7", ["c", "d"], now_and_then)).collect();
    let mut toy = Toy::new(8, vms);
    toy.vms[3].state.weight = Some(Weight(3072.0));
    let policy = Policy {
        size: Sizer::None,
        arbitrate: Arbiter::Priority,
        weigh: Weigher::Grants,
        dwell_ms: 10_000,
        vm: vec![important("a"), important("c")],
        ..Policy::default()
    };
    let mut controller = Controller::new(policy);
    let all = weights(&mut toy, &mut controller, |_| false, 20);
    assert_eq!(all.last().unwrap(), &[1536.0, 512.0, 1024.0, 3072.0], "3 and 1 of 4");
    let all = weights(&mut toy, &mut controller, |_| true, 20);
    assert_eq!(all.last().unwrap(), &[1536.0, 512.0, 3072.0, 1024.0]);
    let all = weights(&mut toy, &mut controller, |_| false, 40);
    let back = all.iter().position(|weights| weights[2] == 1024.0).unwrap();
    assert!(back >= DWELL, "{back}");
    assert_eq!(all.last().unwrap(), &[1536.0, 512.0, 1024.0, 3072.0]);
}
