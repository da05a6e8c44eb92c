//! The corridor as a whole, on hosts made of numbers: what comes out of snapshots.

use std::time::Duration;

use corefit_core::decide::{Arbiter, Controller, Placer, Policy, Rule, Sizer, Weigher, Why};
use corefit_core::machine::{Fixed, GuestVcpu, GuestView, Lever, LeverKind, State, Value, VmId};
use corefit_core::{CpuSet, Weight};

use crate::support::{Toy, ToyVm, contest, four, of_four, vm, with};

#[test]
fn a_first_look_has_no_plan_and_a_host_without_change_none_later() {
    let mut toy = Toy::new(16, vec![vm("a", 16, None, four)]);
    let mut controller = with(Sizer::None);
    let first = controller.step(&toy.observe()).unwrap();
    assert!(first.plan.actions.is_empty() && first.estimate.is_none());
    toy.pass(first.next);
    assert_eq!(toy.rule(&mut controller, 30), 0);
}

#[test]
fn vcpu_bal_shrinks_after_a_dwell_and_never_below_a_minimum() {
    let mut toy = Toy::new(16, vec![vm("a", 16, None, four), vm("b", 16, None, four)]);
    toy.vms[1].state.weight = Some(Weight(3072.0));
    let least = Rule { name: "a".into(), min: Some(6), ..Rule::default() };
    let policy = Policy { size: Sizer::VcpuBal, vm: vec![least], ..Policy::default() };
    let mut controller = Controller::new(policy);
    toy.rule(&mut controller, 2);
    assert_eq!((toy.online(0), toy.online(1)), (16, 16), "not at once");
    toy.rule(&mut controller, 10);
    assert_eq!((toy.online(0), toy.online(1)), (6, 12), "4 by weight, but 6 at least");
}

#[test]
fn who_was_paused_waits_for_the_whole_dwell_again() {
    let mut toy = Toy::new(4, vec![vm("a", 8, None, four)]);
    let mut controller = with(Sizer::VcpuBal);
    toy.rule(&mut controller, 2);
    toy.vms[0].state.state = State::Paused;
    toy.rule(&mut controller, 60);
    toy.vms[0].state.state = State::Running;
    toy.rule(&mut controller, 2);
    assert_eq!(toy.online(0), 8, "not at once");
    toy.rule(&mut controller, 4);
    assert_eq!(toy.online(0), 4);
}

#[test]
fn a_rules_limits_hold_where_nobody_sizes_or_arbitrates() {
    let rule = |name: &str, min, max| Rule { name: name.into(), min, max, ..Rule::default() };
    let vms = vec![rule("a", None, Some(2)), rule("b", Some(3), None)];
    let policy = Policy { size: Sizer::None, vm: vms, ..Policy::default() };
    let mut toy = Toy::new(4, vec![vm("a", 4, None, four), vm("b", 4, None, four), vm("c", 4, None, four)]);
    toy.vms[1].state.vcpus[1..].iter_mut().for_each(|vcpu| vcpu.online = false);
    let manages = |vm: usize| policy.manages(&toy.vms[vm].state, LeverKind::Online);
    assert_eq!([0, 1, 2].map(manages), [true, true, false], "else it would be put back at each look");
    let mut controller = Controller::new(policy.clone());
    let mut why = vec![];
    for _ in 0..20 {
        let step = controller.step(&toy.observe()).unwrap();
        why.extend(step.plan.actions.iter().map(|action| (action.name.clone(), action.why.clone())));
        toy.obey(&mut controller, &step);
        toy.pass(step.next);
    }
    let allowed = |least, most| Why::Allowed { least, most };
    assert_eq!(why, [("b".into(), allowed(3, 4)), ("a".into(), allowed(1, 2))]);
    assert_eq!([0, 1, 2].map(|vm| toy.online(vm)), [2, 3, 4]);
    // As under any size policy.
    let mut toy = Toy::new(4, vec![lying_on("a", &[("0", 1), ("1", 1), ("2", 1), ("3", 1)])]);
    assert_eq!(toy.rule(&mut Controller::new(policy), 20), 0, "it is pinned vCPU by vCPU");
}

#[test]
fn what_vms_want_is_said_to_be_approximated_where_no_guest_tells() {
    let says = |arbitrate| {
        let mut toy = Toy::new(4, vec![vm("a", 4, None, four)]);
        let mut controller = Controller::new(Policy { arbitrate, size: Sizer::None, ..Policy::default() });
        toy.rule(&mut controller, 2);
        let notes = controller.step(&toy.observe()).unwrap().notes;
        notes.iter().any(|note| note.contains("is approximated where no guest agent tells"))
    };
    assert_eq!([says(Arbiter::MaxMin), says(Arbiter::None)], [true, false], "it counts for arbitration");
}

#[test]
fn what_vms_want_is_said_to_be_approximated_where_their_guests_do_not_tell_at_each_look() {
    // A look each second, at which a guest said something new last in that one.
    let kinds = |said: fn(u64) -> Option<u64>, looks: u64| {
        let mut toy = Toy::new(4, vec![vm("a", 4, None, four)]);
        let policy = Policy { arbitrate: Arbiter::MaxMin, size: Sizer::None, ..Policy::default() };
        let mut controller = Controller::new(policy);
        let mut kinds = Vec::new();
        for s in 0..looks {
            toy.vms[0].state.guest = said(s).map(|s| {
                let (busy_ns, zero) = (Some(s * 1_000_000_000), Some(0));
                let of = |id| GuestVcpu {
                    id,
                    online: true,
                    busy_ns,
                    idle_ns: zero,
                    steal_ns: zero,
                    nice_ns: zero,
                    iowait_ns: zero,
                };
                GuestView { vcpus: (0..4).map(of).collect(), runnable: Some(5), work: None }
            });
            let notes = controller.step(&toy.observe()).unwrap().notes;
            let of = |text: &str| notes.iter().filter(|note| note.contains(text)).count();
            let what = "what VMs want is approximated ";
            let [where_none, between] = ["where no guest agent tells", "between two answers"]
                .map(|kind| of(&format!("{what}{kind}")));
            assert!(where_none + between == of("approximated") && of("approximated") <= 1, "{notes:?}");
            // The first look decides nothing.
            kinds.extend((s > 0).then_some([where_none, between]));
            toy.pass(Duration::from_secs(1));
        }
        kinds.dedup();
        kinds
    };
    let (none, outside, between) = ([0, 0], [1, 0], [0, 1]);
    assert_eq!(kinds(Some, 60), [none], "as on a simulated host");
    assert_eq!(
        kinds(|s| (s > 1).then_some(s / 5), 100),
        [outside, between],
        "an agent is asked in one look of five"
    );
    assert_eq!(kinds(|s| Some(s.min(50)), 100), [none, between], "the last that it said is kept");
    assert_eq!(kinds(|s| (s < 50).then_some(s), 100), [none, between, outside], "it went away");
    assert_eq!(kinds(Some, 2), [none], "`corefit plan`'s pair");
    assert_eq!(kinds(|_| Some(7), 2), [between], "that pair, between two answers");
    assert_eq!(kinds(|s| (s > 0).then_some(s), 2), [between], "or with the first one");
}

/// A VM whose vCPUs may use these pCPUs, one set after the other.
fn lying_on(name: &str, sets: &[(&str, usize)]) -> ToyVm {
    let mut one = vm(name, sets.iter().map(|(_, count)| count).sum(), None, four);
    let sets = sets.iter().flat_map(|&(set, count)| std::iter::repeat_n(set, count));
    for (vcpu, set) in one.state.vcpus.iter_mut().zip(sets) {
        vcpu.affinity = Some(set.parse().unwrap());
    }
    one
}

#[test]
fn who_lies_on_two_nodes_by_halves_stays_on_both() {
    let halves = [("0-3", 8), ("4-7", 8)];
    let mut toy = Toy::new(8, vec![lying_on("a", &halves), lying_on("b", &halves)]);
    let mut controller = with(Sizer::VcpuBal);
    toy.rule(&mut controller, 10);
    let online = |toy: &Toy, vm: usize| toy.vms[vm].state.online().to_string();
    assert_eq!([online(&toy, 0), online(&toy, 1)], ["0-1,8-9", "0-1,8-9"]);
    toy.vms[1].state.weight = Some(Weight(512.0));
    toy.rule(&mut controller, 10);
    assert_eq!([online(&toy, 0), online(&toy, 1)], ["0-2,8-10", "0-1,8"], "8 x 2/3 and 8 x 1/3, rounded up");
    // Beside who has one node for himself the other one is better.
    let mut toy = Toy::new(8, vec![lying_on("a", &halves), lying_on("b", &[("0-3", 8)])]);
    toy.rule(&mut with(Sizer::VcpuBal), 10);
    assert_eq!(online(&toy, 0), "0,8-10");
}

#[test]
fn who_is_pinned_vcpu_by_vcpu_keeps_all_unless_somebody_places_it() {
    let pins = [("0", 1), ("1", 1), ("2", 1), ("3", 1)];
    let vms = || vec![lying_on("a", &pins), lying_on("b", &pins)];
    let mut toy = Toy::new(4, vms());
    let mut controller = with(Sizer::VcpuBal);
    let mut notes = vec![];
    for _ in 0..10 {
        let step = controller.step(&toy.observe()).unwrap();
        toy.obey(&mut controller, &step);
        toy.pass(step.next);
        notes = step.notes;
    }
    assert_eq!((toy.online(0), toy.online(1), notes.len()), (4, 4, 2), "{notes:?}");
    assert!(notes[0].starts_with("a: keeps its vCPUs: its vCPUs are pinned to a pCPU each"), "{notes:?}");
    let policy = Policy { size: Sizer::VcpuBal, place: Placer::Corefit, ..Policy::default() };
    let mut controller = Controller::new(policy);
    let mut toy = Toy::new(4, vms());
    let sizes = |plan: &corefit_core::decide::Plan| plan.actions.iter().any(|a| a.lever == Lever::Online);
    let sized = (0..10).any(|_| {
        let step = controller.step(&toy.observe()).unwrap();
        toy.pass(Duration::from_secs(1));
        sizes(&step.plan)
    });
    assert!(sized, "its pins are ours");
}

#[test]
fn who_is_left_alone_by_its_owners_wish_is_in_no_plan() {
    let mut one = vm("a", 16, Some(four), four);
    one.state.hands_off = true;
    let policy = Policy { size: Sizer::VcpuBal, place: Placer::Corefit, ..Policy::default() };
    let mut toy = Toy::new(4, vec![one, vm("b", 16, None, four)]);
    let mut controller = Controller::new(policy);
    let (mut planned, mut notes) = (vec![], vec![]);
    for _ in 0..10 {
        let step = controller.step(&toy.observe()).unwrap();
        planned.extend(step.plan.actions.into_iter().map(|action| action.name));
        notes = step.notes;
        toy.pass(Duration::from_secs(1));
    }
    assert!(planned.iter().any(|name| name == "b") && planned.iter().all(|name| name != "a"), "{planned:?}");
    assert_eq!(notes, ["a: keeps its vCPUs: its owner set hands-off in its metadata"]);
}

#[test]
fn who_was_made_smaller_gets_back_what_it_had_within_its_rule_once_nobody_wants_less() {
    let policy = |min, max| Policy {
        size: Sizer::None,
        vm: vec![Rule { name: "a".into(), min, max, ..Rule::default() }],
        ..Policy::default()
    };
    let mut toy = Toy::new(8, vec![vm("a", 6, None, f64::from)]);
    toy.vms[0].state.vcpus[4..].iter_mut().for_each(|vcpu| vcpu.online = false);
    let mut controller = Controller::new(policy(None, Some(2)));
    toy.rule(&mut controller, 10);
    assert_eq!(toy.online(0), 2);
    for (min, max, count) in
        [(None, Some(3), 3), (None, Some(8), 4), (Some(1), Some(2), 2), (Some(1), None, 4)]
    {
        controller.reconfigure(policy(min, max));
        // As the journal has it.
        let made = CpuSet::first(u32::try_from(toy.online(0)).unwrap());
        controller.sized_before([(VmId("a".into()), (CpuSet::first(4), made))].into());
        toy.rule(&mut controller, 10);
        assert_eq!(toy.online(0), count, "{min:?} {max:?}");
    }
}

#[test]
fn arbitration_comes_before_size_and_preempts() {
    let mut vms = vec![vm("low", 4, None, f64::from), vm("high", 4, None, f64::from)];
    for one in &mut vms {
        one.state.vcpus.iter_mut().skip(1).for_each(|vcpu| vcpu.online = false);
    }
    vms[1].used = |_| 0.05;
    let mut toy = Toy::new(5, vms);
    let policy = Policy {
        size: Sizer::None,
        arbitrate: Arbiter::Priority,
        vm: vec![Rule { name: "high".into(), priority: Some(1), ..Rule::default() }],
        ..Policy::default()
    };
    let mut controller = Controller::new(policy);
    toy.rule(&mut controller, 20);
    assert_eq!((toy.online(0), toy.online(1)), (4, 1));
    toy.vms[1].used = f64::from;
    toy.rule(&mut controller, 20);
    assert_eq!((toy.online(0), toy.online(1)), (1, 4));
}

/// Two busy VMs of four vCPUs on eight pCPUs, `high` before `low`, which may use only four of them.
fn confined(policy: Policy, confine: bool) -> (Toy, Controller) {
    let mut vms = vec![vm("low", 4, None, f64::from), vm("high", 4, None, f64::from)];
    for vcpu in vms.iter_mut().flat_map(|vm| &mut vm.state.vcpus).filter(|_| confine) {
        vcpu.affinity = Some(CpuSet::first(4));
    }
    // Somebody else's vCPUs, and what they may use, are no matter.
    let mut apart = vm("apart", 4, None, f64::from);
    apart.state.vcpus.iter_mut().for_each(|vcpu| vcpu.affinity = "4-7".parse().ok());
    vms.push(apart);
    let rule = |name: &str, priority, exclude| Rule {
        name: name.into(),
        priority: Some(priority),
        exclude: Some(exclude),
        ..Rule::default()
    };
    let vm = vec![rule("high", 1, false), rule("apart", 0, true)];
    let policy = Policy { size: Sizer::None, arbitrate: Arbiter::Priority, vm, ..policy };
    (Toy::new(8, vms), Controller::new(policy))
}

#[test]
fn only_pcpus_that_those_who_ask_may_use_are_granted() {
    let (mut toy, mut controller) = confined(Policy::default(), true);
    toy.rule(&mut controller, 20);
    assert_eq!((toy.online(0), toy.online(1)), (1, 3));
    // Placed: any pCPU but the host's.
    let policy = Policy { place: Placer::Corefit, reserved: "4-7".parse().unwrap(), ..Policy::default() };
    let (mut toy, mut controller) = confined(policy, false);
    for _ in 0..10 {
        let mut step = controller.step(&toy.observe()).unwrap();
        step.plan.actions.retain(|action| action.lever == Lever::Online);
        toy.obey(&mut controller, &step);
        toy.pass(Duration::from_secs(1));
    }
    assert_eq!((toy.online(0), toy.online(1)), (1, 3));
}

#[test]
fn weights_divide_only_the_pcpus_that_those_who_ask_may_use() {
    let (mut toy, policy) = contest();
    toy.pcpus = 4;
    for vcpu in toy.vms.iter_mut().flat_map(|vm| &mut vm.state.vcpus) {
        vcpu.affinity = Some(CpuSet::first(2));
    }
    toy.vms[1].used = f64::from;
    toy.rule(&mut Controller::new(policy), 20);
    assert_eq!(toy.weights(), [375.0, 2625.0], "a quarter of a pCPU of two");
    // Numbers of vCPUs see to it, whoever has how many elsewhere.
    let (mut toy, mut controller) = confined(Policy { weigh: Weigher::Grants, ..Policy::default() }, true);
    toy.rule(&mut controller, 20);
    assert_eq!((toy.online(0), toy.online(1), toy.weights()), (1, 3, vec![1024.0; 3]));
}

#[test]
fn who_has_no_agent_weighs_its_part_of_the_pcpus_that_those_who_ask_may_use() {
    let (mut toy, mut controller) = confined(Policy { weigh: Weigher::Grants, ..Policy::default() }, true);
    let agentless = Fixed { lever: LeverKind::Online, reason: "no agent answers".into() };
    toy.vms[0].state.fixed = vec![agentless];
    let mut notes = vec![];
    for _ in 0..10 {
        let step = controller.step(&toy.observe()).unwrap();
        notes.extend(step.notes.clone());
        toy.obey(&mut controller, &step);
        toy.pass(Duration::from_secs(1));
    }
    assert_eq!((toy.online(0), toy.online(1)), (4, 3));
    assert_eq!(toy.weights(), [512.0, 1536.0, 1024.0], "a pCPU and three of four");
    assert!(!notes.iter().any(|note| note.contains("guaranteed")), "{notes:?}");
    // What is guaranteed is measured by them, too.
    let mut policy = controller.policy().clone();
    policy.vm.push(Rule { name: "*".into(), min: Some(3), ..Rule::default() });
    controller.reconfigure(policy);
    let notes = controller.step(&toy.observe()).unwrap().notes;
    let said = "6.00 pCPUs are guaranteed, more than the 4 that there are: not all VMs can get theirs";
    assert!(notes.iter().any(|note| note == said), "{notes:?}");
}

/// A look may miss a VM that is there: it runs on what it was granted.
#[test]
fn what_was_granted_to_one_that_a_look_missed_is_nobody_elses() {
    let mut toy = Toy::new(4, vec![vm("a", 4, None, f64::from), vm("b", 4, None, |_| 0.05)]);
    let policy = Policy { size: Sizer::None, arbitrate: Arbiter::Fcfs, ..Policy::default() };
    let mut controller = Controller::new(policy);
    toy.rule(&mut controller, 20);
    assert_eq!((toy.online(0), toy.online(1)), (4, 1), "what one leaves is no guarantee's");
    toy.vms[1].used = f64::from;
    toy.rule(&mut controller, 5);
    assert_eq!((toy.online(0), toy.online(1)), (3, 1), "it wants what it is guaranteed");
    toy.missed = Some(0);
    toy.rule(&mut controller, 10);
    assert_eq!((toy.online(0), toy.online(1)), (3, 1));
    toy.missed = None;
    toy.rule(&mut controller, 10);
    assert_eq!((toy.online(0), toy.online(1)), (3, 1), "it asked first");
    // One that has ended gives back what it had.
    toy.vms.remove(0);
    toy.rule(&mut controller, 5);
    assert_eq!(toy.online(0), 4);
}

#[test]
fn where_vcpus_alone_cannot_weights_give_what_was_granted_until_nobody_is_short() {
    let (mut toy, policy) = contest();
    let mut controller = Controller::new(policy.clone());
    toy.rule(&mut controller, 20);
    assert_eq!(
        (toy.online(0), toy.online(1)),
        (2, 1),
        "who wants no more than it is guaranteed asks for nothing"
    );
    assert_eq!(toy.weights(), [1000.0, 2000.0], "nobody is short");
    toy.vms[1].used = f64::from;
    toy.rule(&mut controller, 20);
    assert_eq!((toy.online(0), toy.online(1)), (1, 2));
    assert_eq!(toy.weights(), [375.0, 2625.0], "a quarter of a pCPU of two; the sum stays");
    toy.vms[1].used = |_| 0.05;
    toy.rule(&mut controller, 20);
    assert_eq!((toy.online(0), toy.online(1)), (2, 1));
    assert_eq!(toy.weights(), [1000.0, 2000.0], "as before");
    assert_eq!(toy.rule(&mut controller, 20), 0);

    // Not asked for: whole pCPUs are guaranteed, and weights stay.
    let mut controller = Controller::new(Policy { weigh: Weigher::None, ..policy });
    toy.vms[1].used = f64::from;
    toy.rule(&mut controller, 20);
    assert_eq!((toy.online(0), toy.online(1), toy.weights()), (1, 1, vec![1000.0, 2000.0]));
}

#[test]
fn one_that_cannot_shrink_is_preempted_by_weight_and_its_owners_weight_stands() {
    let (mut toy, policy) = contest();
    let fixed = |lever, reason: &str| Fixed { lever, reason: reason.into() };
    toy.vms[0].state.fixed = vec![fixed(LeverKind::Online, "no agent answers")];
    toy.vms[1].used = f64::from;
    // Of these only the weight of the one that is left alone is no matter.
    toy.vms.push(vm("apart", 2, None, f64::from));
    toy.vms[2].state.fixed =
        vec![fixed(LeverKind::Online, "hands off"), fixed(LeverKind::Weight, "hands off")];
    let mut controller = Controller::new(policy.clone());
    toy.rule(&mut controller, 20);
    assert_eq!((toy.online(0), toy.weights()), (2, vec![375.0, 2625.0, 1024.0]));
    // Somebody changes one: that is what it is from then on.
    toy.vms[0].state.weight = Some(Weight(500.0));
    toy.rule(&mut controller, 20);
    assert_eq!(toy.weights(), [313.0, 2188.0, 1024.0], "of 2500");
    controller.reconfigure(Policy { weigh: Weigher::None, ..policy });
    toy.rule(&mut controller, 5);
    assert_eq!(toy.weights(), [500.0, 2000.0, 1024.0]);
}

/// libvirt's agents are asked every five seconds; what they said is seen until they say something else.
#[test]
fn a_guest_that_is_not_asked_at_each_look_wants_what_it_did() {
    use corefit_core::machine::{GuestVcpu, GuestView};
    let (mut toy, policy) = contest();
    toy.vms[1].used = f64::from;
    let mut controller = Controller::new(Policy { dwell_ms: 0, ..policy });
    let mut actions = 0;
    for look in 0..60 {
        if look % 5 == 0 {
            let at = toy.at;
            let vcpu = |id| GuestVcpu {
                id,
                online: true,
                busy_ns: Some(at),
                idle_ns: Some(0),
                ..GuestVcpu::default()
            };
            for vm in &mut toy.vms {
                vm.state.guest =
                    Some(GuestView { vcpus: vec![vcpu(0), vcpu(1)], runnable: Some(2), work: None });
            }
        }
        let step = controller.step(&toy.observe()).unwrap();
        actions += step.plan.actions.len();
        toy.obey(&mut controller, &step);
        toy.pass(Duration::from_secs(1));
    }
    assert_eq!((toy.online(0), toy.online(1)), (1, 2));
    assert_eq!(actions, 3, "one vCPU and two weights, once");
}

#[test]
fn who_gets_no_more_than_its_guarantee_for_long_is_said_to_starve() {
    let (mut toy, policy) = contest();
    toy.vms[1].used = f64::from;
    let mut controller = Controller::new(policy);
    let mut notes = vec![];
    for _ in 0..40 {
        let step = controller.step(&toy.observe()).unwrap();
        toy.obey(&mut controller, &step);
        toy.pass(Duration::from_secs(1));
        notes.extend(step.notes);
    }
    let said = "low: has wanted 2.00 pCPUs for half a minute and more, was granted 0.25 and used 1.13 meanwhile, on average";
    assert!(notes.iter().any(|note| note == said), "{notes:#?}");
}

#[test]
fn weights_change_not_too_often_and_not_for_little() {
    let (mut toy, policy) = contest();
    toy.vms[1].used = f64::from;
    let mut controller = Controller::new(Policy { lever_ms: 10_000, ..policy.clone() });
    toy.rule(&mut controller, 3);
    assert_eq!(toy.weights(), [375.0, 2625.0]);
    toy.vms[1].used = |_| 0.05;
    toy.rule(&mut controller, 6);
    assert_eq!(toy.weights(), [375.0, 2625.0], "not within ten seconds");
    toy.rule(&mut controller, 6);
    assert_eq!(toy.weights(), [1000.0, 2000.0]);

    let (mut toy, policy) = contest();
    toy.vms[1].used = f64::from;
    (toy.vms[0].state.weight, toy.vms[1].state.weight) = (Some(Weight(390.0)), Some(Weight(2610.0)));
    let mut controller = Controller::new(Policy { deadband: 0.05, ..policy });
    toy.rule(&mut controller, 10);
    assert_eq!(toy.weights(), [390.0, 2610.0], "4 % are not worth it");
}

#[test]
fn vcpus_change_not_too_often() {
    let mut toy = Toy::new(8, vec![of_four(vm("a", 8, None, f64::from))]);
    let policy = Policy { size: Sizer::VcpuBal, lever_ms: 10_000, dwell_ms: 0, ..Policy::default() };
    let mut controller = Controller::new(policy);
    toy.rule(&mut controller, 3);
    assert_eq!(toy.online(0), 4);
    for (quota_us, before, after) in [(600_000, 4, 6), (300_000, 6, 3)] {
        toy.vms[0].state.quota.as_mut().unwrap().quota_us = Some(quota_us);
        toy.rule(&mut controller, 5);
        assert_eq!(toy.online(0), before, "not within ten seconds");
        toy.rule(&mut controller, 5);
        assert_eq!(toy.online(0), after);
    }
}

#[test]
fn an_action_names_its_lever_its_old_and_new_value_and_why() {
    let mut toy = Toy::new(4, vec![vm("a", 8, None, four)]);
    let mut controller = Controller::new(Policy { size: Sizer::VcpuBal, dwell_ms: 0, ..Policy::default() });
    controller.step(&toy.observe()).unwrap();
    toy.pass(Duration::from_secs(1));
    let step = controller.step(&toy.observe()).unwrap();
    let [action] = &step.plan.actions[..] else { panic!("{step:?}") };
    assert_eq!(action.lever, Lever::Online);
    assert_eq!(action.from, Some(Value::Vcpus(CpuSet::first(8))));
    assert_eq!(action.to, Value::Vcpus(CpuSet::first(4)));
    assert_eq!(action.why, Why::Share { share: corefit_core::Cpus(4.0) });
    assert_eq!(action.why.to_string(), "its weight, cap and affinity give it 4.00 pCPUs");
}

/// While numbers are tried looks are short; what VMs want and who starves is seen over a second all the same.
#[test]
fn what_happened_is_seen_over_a_second_however_soon_it_is_looked_again() {
    fn rate(n: u32) -> f64 {
        1000.0 / (1.0 + 0.3 * f64::from(n.abs_diff(3)))
    }
    let mut toy = Toy::new(4, vec![vm("a", 16, Some(rate), |n| f64::from(n.min(4)))]);
    let mut controller = with(Sizer::Corefit);
    let (mut short, mut longer, mut since) = (0, 0, 0);
    for look in 0..200 {
        let at = toy.at;
        let step = controller.step(&toy.observe()).unwrap();
        short += usize::from(step.next < Duration::from_millis(500));
        if let Some(usual) = step.usual() {
            assert_eq!(usual.over, Duration::from_nanos(at - since), "look {look}: nothing is left out");
            assert!(look == 1 || usual.over >= Duration::from_millis(900), "look {look}: {:?}", usual.over);
            longer += usize::from(step.estimate.as_ref().unwrap().over < usual.over);
            since = at;
        }
        toy.obey(&mut controller, &step);
        toy.pass(step.next);
    }
    assert!(short > 10 && longer > 3, "{short} {longer}");
}
