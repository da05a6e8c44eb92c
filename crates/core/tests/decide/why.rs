//! What is said of why a VM has so many vCPUs, or less than it wants, on hosts made of numbers.

use std::time::Duration;

use corefit_core::Weight;
use corefit_core::decide::{Arbiter, Controller, Policy, Rule, Sizer, Weigher, Why};
use corefit_core::machine::{Fixed, Lever, LeverKind};

use crate::support::{ByCount, Toy, ToyVm, vm};

/// Why `a`, of 8 vCPUs, gets others, beside `b`, which is more important and busy, too.
fn why(policy: Policy, a: Rule) -> Vec<Why> {
    let mut toy = Toy::new(8, vec![vm("a", 8, None, f64::from), vm("b", 8, None, f64::from)]);
    let b = Rule { name: "b".into(), priority: Some(1), ..Rule::default() };
    let mut controller = Controller::new(Policy { vm: vec![Rule { name: "a".into(), ..a }, b], ..policy });
    let mut all = Vec::new();
    for _ in 0..20 {
        let step = controller.step(&toy.observe()).unwrap();
        let of_a =
            step.plan.actions.iter().filter(|action| action.name == "a" && action.lever == Lever::Online);
        all.extend(of_a.map(|action| action.why.clone()));
        toy.obey(&mut controller, &step);
        toy.pass(step.next);
    }
    all
}

#[test]
fn where_its_rule_decides_it_is_not_said_to_be_what_was_granted() {
    let policy = Policy {
        size: Sizer::None,
        arbitrate: Arbiter::Priority,
        weigh: Weigher::Grants,
        ..Policy::default()
    };
    let rule = Rule { min: Some(3), guaranteed: Some(0.25), ..Rule::default() };
    assert_eq!(why(policy.clone(), rule), [Why::Bounded { wanted: 1, least: 3, most: 8 }]);
    assert_eq!(why(policy, Rule::default()), [Why::Granted { granted: 1 }]);
}

#[test]
fn of_whom_nothing_was_granted_it_is_said_that_one_stays_and_why() {
    let said = |granted: u32| Why::Granted { granted }.to_string();
    assert_eq!(said(2), "2 pCPUs were granted to it");
    assert_eq!(said(1), "1 pCPU was granted to it");
    let none = said(0);
    assert!(
        none.starts_with("no pCPU was granted to it, and it keeps the fewest that it may have: one"),
        "{none}"
    );
    assert!(none.contains("vCPU") && none.contains("cpuset"), "{none}");
}

#[test]
fn where_its_rule_decides_pcpu_est_does_not_say_that_it_did() {
    let rule = Rule { min: Some(6), max: Some(6), ..Rule::default() };
    let policy = Policy { size: Sizer::PcpuEst, ..Policy::default() };
    assert_eq!(why(policy, rule), [Why::Bounded { wanted: 4, least: 6, most: 6 }]);
}

/// `a` wants two pCPUs, then four, and has one of eight.
#[test]
fn what_is_said_of_who_starves_is_of_all_that_time() {
    let policy = Policy { size: Sizer::VcpuBal, arbitrate: Arbiter::Priority, ..Policy::default() };
    let b = Rule { name: "b".into(), priority: Some(1), ..Rule::default() };
    let mut controller = Controller::new(Policy { vm: vec![b], ..policy });
    let mut toy = Toy::new(8, vec![vm("a", 8, None, |_| 1.0), vm("b", 8, None, f64::from)]);
    toy.vms[0].state.vcpus[4..].iter_mut().for_each(|vcpu| vcpu.online = false);
    let mut notes = Vec::new();
    for second in 0..40 {
        if second >= 21 {
            toy.vms[0].used = |_| 2.5;
        }
        let step = controller.step(&toy.observe()).unwrap();
        toy.pass(step.next);
        notes.extend(step.notes.into_iter().filter(|note| note.starts_with("a: has wanted")));
        assert!(second < 35 || step.given[0].wants == 4, "{second}: {:?}", step.given);
    }
    notes.dedup();
    assert_eq!(
        notes,
        [
            "a: has wanted 2.66 pCPUs for half a minute and more, was granted 1.00 and used 1.50 meanwhile, on average"
        ]
    );
}

/// What is said of who starves, and who does at the end, where nobody arbitrates: `a` and `b` on two pCPUs, of which `a` gets so
/// much and waits for the rest of its two vCPUs.
fn starving(a: Rule, used: ByCount, seconds: u32) -> (Vec<String>, Vec<bool>) {
    let mut toy = Toy::new(2, vec![vm("a", 2, None, used), vm("b", 2, None, |_| 1.0)]);
    let rule = Rule { name: "a".into(), ..a };
    let mut controller = Controller::new(Policy { vm: vec![rule], size: Sizer::None, ..Policy::default() });
    let (mut notes, mut starves) = (Vec::new(), Vec::new());
    for _ in 0..seconds {
        let step = controller.step(&toy.observe()).unwrap();
        toy.pass(Duration::from_secs(1));
        toy.vms.iter_mut().for_each(|vm| waits(vm, 2));
        notes.extend(step.notes.into_iter().filter(|note| note.contains("starves")));
        starves = step.starves.into_values().collect();
    }
    notes.dedup();
    (notes, starves)
}

/// A second of waiting, where it does not run, of all its vCPUs.
fn waits(vm: &mut ToyVm, vcpus: u32) {
    let each = 1.0 - (vm.used)(vcpus) / f64::from(vcpus);
    for vcpu in &mut vm.state.vcpus {
        *vcpu.counters.wait_ns.as_mut().unwrap() +=
            u64::try_from(Duration::from_secs_f64(each).as_nanos()).unwrap();
    }
}

#[test]
fn who_gets_less_than_its_rule_guarantees_is_said_to_starve_though_nobody_arbitrates() {
    let two = || Rule { min: Some(2), ..Rule::default() };
    let (notes, starves) = starving(two(), |_| 1.0, 40);
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].starts_with(
        "a: starves: for half a minute and more it uses 1.00 pCPUs of the 2.00 that it is guaranteed (min)"
    ));
    assert_eq!(starves, [true, false]);
    let not_yet = starving(two(), |_| 1.0, 20);
    assert_eq!(not_yet, (vec![], vec![false; 2]), "not for half a minute");
    let nothing_said = starving(Rule::default(), |_| 1.0, 40);
    assert_eq!(nothing_said, (vec![], vec![false; 2]), "by its weight it gets one of two pCPUs");
    let excluded = starving(Rule { exclude: Some(true), ..two() }, |_| 1.0, 40);
    assert_eq!(excluded, (vec![], vec![false]));
}

/// `a` and `b` on four pCPUs: `a` starves by its first `min`, then the policy or what its owner asks for says another.
#[test]
fn who_starves_by_the_last_min_starves_no_more_by_another_until_it_has_for_half_a_minute() {
    let rule = |min| Rule { name: "a".into(), min, ..Rule::default() };
    let policy = |min| Policy { vm: vec![rule(min)], size: Sizer::None, ..Policy::default() };
    for (by_owner, min, says) in
        [(false, Some(2), Some("of the 2.00")), (true, Some(2), Some("of the 2.00")), (false, None, None)]
    {
        let mut toy = Toy::new(4, vec![vm("a", 4, None, |_| 1.2), vm("b", 4, None, |_| 2.8)]);
        let mut controller = Controller::new(policy(Some(3)));
        let mut then = |controller: &mut Controller, seconds| {
            let mut last = (Vec::new(), false);
            for _ in 0..seconds {
                let step = controller.step(&toy.observe()).unwrap();
                toy.pass(Duration::from_secs(1));
                toy.vms.iter_mut().for_each(|vm| waits(vm, 4));
                let starves = step.starves.get(&toy.vms[0].state.id).copied().unwrap_or_default();
                last = (step.notes.into_iter().filter(|note| note.contains("starves")).collect(), starves);
            }
            last
        };
        let (notes, starves) = then(&mut controller, 40);
        assert!(starves && notes[0].contains("of the 3.00 that it is guaranteed"), "{notes:?}");
        if by_owner {
            // As rules say nothing of it, its owner's wish counts.
            let mut owned = vm("a", 4, None, |_| 1.0).state;
            owned.wishes = Some(Box::new(rule(min)));
            controller.heed(&policy(None), &[owned]);
        } else {
            controller.reconfigure(policy(min));
        }
        assert_eq!(then(&mut controller, 5), (vec![], false), "{min:?} {by_owner}");
        let (notes, starves) = then(&mut controller, 40);
        assert_eq!(starves, says.is_some(), "{notes:?}");
        assert!(notes.iter().all(|note| note.contains(says.unwrap())), "{notes:?}");
    }
}

#[test]
fn who_starves_does_so_by_a_higher_min_at_once() {
    let policy = |min| {
        let rule = Rule { name: "a".into(), min: Some(min), ..Rule::default() };
        Policy { vm: vec![rule], size: Sizer::None, ..Policy::default() }
    };
    let mut toy = Toy::new(4, vec![vm("a", 4, None, |_| 1.2), vm("b", 4, None, |_| 2.8)]);
    let mut controller = Controller::new(policy(2));
    for second in 0..50 {
        let step = controller.step(&toy.observe()).unwrap();
        toy.pass(Duration::from_secs(1));
        toy.vms.iter_mut().for_each(|vm| waits(vm, 4));
        if second == 40 {
            controller.reconfigure(policy(3));
        }
        let said = |min| step.notes.iter().any(|note| note.contains("starves") && note.contains(min));
        let says = if second < 41 { said("of the 2.00") } else { said("of the 3.00") };
        assert_eq!(says, second > 30, "{second}: {:?}", step.notes);
        let known = step.notes.iter().all(|note| !note.contains("(time 2)"));
        assert!(known, "{second}: {:?}", step.notes);
    }
}

/// It uses 1.2 pCPUs and waits for 0.5: too little for 2, and for 3 it waits for less than half of what it misses.
#[test]
fn who_starves_no_more_by_a_higher_min_and_then_again_does_so_the_second_time() {
    let policy = |min| {
        let rule = Rule { name: "a".into(), min: Some(min), ..Rule::default() };
        Policy { vm: vec![rule], size: Sizer::None, ..Policy::default() }
    };
    let mut toy = Toy::new(4, vec![vm("a", 4, None, |_| 1.2), vm("b", 4, None, |_| 2.8)]);
    let mut controller = Controller::new(policy(2));
    for second in 0..100 {
        let step = controller.step(&toy.observe()).unwrap();
        toy.pass(Duration::from_secs(1));
        if second < 50 {
            let vcpus = &mut toy.vms[0].state.vcpus;
            vcpus.iter_mut().for_each(|vcpu| *vcpu.counters.wait_ns.as_mut().unwrap() += 125_000_000);
        } else {
            waits(&mut toy.vms[0], 4);
        }
        waits(&mut toy.vms[1], 4);
        if second == 40 {
            controller.reconfigure(policy(3));
        }
        let said: Vec<&String> = step.notes.iter().filter(|note| note.contains("starves")).collect();
        let says = match second {
            31..=40 => Some("of the 2.00 that it is guaranteed (min)"),
            81.. => Some("of the 3.00 that it is guaranteed (min)"),
            _ => None,
        };
        assert_eq!(said.len(), usize::from(says.is_some()), "{second}: {said:?}");
        assert!(said.iter().all(|note| note.contains(says.unwrap())), "{second}: {said:?}");
        assert!(said.iter().all(|note| note.ends_with("(time 2)") == (second > 80)), "{second}: {said:?}");
    }
}

#[test]
fn who_gets_next_to_nothing_is_said_to_starve_whatever_its_rule_says() {
    let (notes, starves) = starving(Rule::default(), |_| 0.1, 40);
    assert_eq!(starves, [true, false], "{notes:?}");
    assert!(notes[0].contains("it uses 0.10 pCPUs of the 1.00 that are available to it"), "{notes:?}");
}

/// Beside two that are sized `old` cannot be, and gets next to nothing by its weight.
#[test]
fn who_cannot_be_sized_has_its_guarantee_left_and_is_said_to_starve_though_somebody_arbitrates() {
    let hint = " (weigh = \"grants\" would see to it)";
    for (arbitrate, hint) in [(Arbiter::Fcfs, hint), (Arbiter::Priority, hint), (Arbiter::MaxMin, "")] {
        let mut old = vm("old", 4, None, |_| 0.4);
        old.state.fixed = vec![Fixed { lever: LeverKind::Online, reason: "no agent answers".into() }];
        if hint.is_empty() {
            old.state.fixed.push(Fixed { lever: LeverKind::Weight, reason: "it cannot be changed".into() });
        }
        old.state.weight = Some(Weight(50.0));
        let mut toy = Toy::new(8, vec![old, vm("a", 8, None, f64::from), vm("b", 8, None, f64::from)]);
        let mut policy = Policy { size: Sizer::None, arbitrate, ..Policy::default() };
        let rule = |name: &str, min| Rule { name: name.into(), min: Some(min), ..Rule::default() };
        policy.vm = vec![rule("old", 4)];
        let mut controller = Controller::new(policy.clone());
        let mut said = Vec::new();
        for _ in 0..40 {
            let step = controller.step(&toy.observe()).unwrap();
            toy.obey(&mut controller, &step);
            toy.pass(Duration::from_secs(1));
            waits(&mut toy.vms[0], 4);
            said = step.notes.into_iter().filter(|note| note.starts_with("old: starves")).collect();
            said.extend(step.starves.get(&toy.vms[0].state.id).map(ToString::to_string));
        }
        assert!(toy.online(1) + toy.online(2) <= 4, "{arbitrate:?}: {} and {}", toy.online(1), toy.online(2));
        let note = "old: starves: for half a minute and more it uses 0.40 pCPUs of the 4.00 that it is guaranteed (min), and waits: its \
                    weight gives it no more";
        assert_eq!(said, [format!("{note}{hint}"), "true".into()], "{arbitrate:?}");
        policy.vm.push(rule("a", 5));
        controller.reconfigure(policy);
        let notes = controller.step(&toy.observe()).unwrap().notes;
        let note = "9.00 pCPUs are guaranteed, more than the 8 that there are: not all VMs can get theirs";
        assert!(notes.iter().any(|said| said == note), "{arbitrate:?}: {notes:?}");
    }
}
