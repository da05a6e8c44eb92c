//! Where vCPUs run, and how many there are: the two in one corridor, on hosts made of numbers.

use std::time::Duration;

use corefit_core::decide::{Action, Controller, Placer, Policy, Rule, Sizer, Why};
use corefit_core::machine::{Lever, Value};
use corefit_core::{CpuId, CpuSet};

use crate::support::{Toy, four, vm};

/// Sizes and places of one plan fit each other: who goes offline needs no pCPU.
#[test]
fn who_goes_offline_with_a_plan_gets_no_place_in_it() {
    let mut toy = Toy::new(16, ["a", "b", "c", "d"].map(|name| vm(name, 8, None, four)).into());
    for vm in &mut toy.vms {
        for (vcpu, number) in vm.state.vcpus.iter_mut().zip(0..) {
            vcpu.affinity = Some(CpuSet::from_iter([CpuId(number)]));
        }
    }
    let policy = Policy {
        size: Sizer::VcpuBal,
        place: Placer::Corefit,
        dwell_ms: 0,
        lever_ms: 0,
        ..Policy::default()
    };
    let mut controller = Controller::new(policy);
    controller.step(&toy.observe()).unwrap();
    toy.pass(Duration::from_secs(1));
    let actions = controller.step(&toy.observe()).unwrap().plan.actions;
    let online: Vec<String> =
        actions.iter().filter(|a| a.lever == Lever::Online).map(|a| a.to.to_string()).collect();
    assert_eq!(online, ["0-3"; 4]);
    // Each of the sixteen that stay has a pCPU of its own: those that are not moved are where they were.
    let mut at: Vec<Vec<CpuSet>> = vec![(0..8).map(|n| CpuSet::from_iter([CpuId(n)])).collect(); 4];
    for action in &actions {
        if let (Lever::Affinity(vcpu), Value::Pcpus(set)) = (action.lever, &action.to) {
            assert!(vcpu < 4, "{action:?}");
            let vm = toy.vms.iter().position(|vm| vm.state.id == action.vm).unwrap();
            at[vm][vcpu as usize] = set.clone();
        }
    }
    let stay = || at.iter().flat_map(|vm| &vm[..4]);
    assert!(stay().all(|set| set.len() == 1), "{actions:?}");
    assert_eq!(stay().fold(CpuSet::default(), |all, set| all.union(set)), CpuSet::first(16), "{actions:?}");
}

/// A number that is tried under other pins each time would be measured for those.
#[test]
fn nobody_is_moved_while_numbers_of_vcpus_are_tried() {
    fn best_with_three(n: u32) -> f64 {
        1000.0 / (1.0 + 0.06 * f64::from(n.abs_diff(3)))
    }
    fn two(_: u32) -> f64 {
        2.0
    }
    let mut toy = Toy::new(8, vec![vm("a", 16, Some(best_with_three), four), vm("b", 2, None, two)]);
    for vcpu in &mut toy.vms[1].state.vcpus {
        vcpu.affinity = Some(CpuSet::first(1));
    }
    let policy = Policy { size: Sizer::Corefit, place: Placer::Corefit, dwell_ms: 1000, ..Policy::default() };
    let mut controller = Controller::new(policy);
    let (mut tried, mut moved) = (0, 0);
    for _ in 0..400 {
        let step = controller.step(&toy.observe()).unwrap();
        let places = step.plan.actions.iter().any(|action| matches!(action.why, Why::Placed(_)));
        // It is looked again sooner as long as something is tried.
        let tries = step.next < Duration::from_secs(1);
        assert!(!(places && tries), "{:?}", step.plan);
        (tried, moved) = (tried + u32::from(tries), moved + u32::from(places));
        toy.obey(&mut controller, &step);
        toy.pass(step.next);
    }
    assert!(tried > 50 && moved > 0, "{tried} {moved}");
    assert!(toy.vms[1].state.vcpus.iter().any(|vcpu| vcpu.affinity != Some(CpuSet::first(1))));
}

/// A search may last, or another one begin: that keeps nobody on pCPUs that are the host's.
#[test]
fn who_may_use_reserved_pcpus_leaves_them_while_others_try_numbers_of_vcpus() {
    fn best_with_three(n: u32) -> f64 {
        1000.0 / (1.0 + 0.06 * f64::from(n.abs_diff(3)))
    }
    let mut toy = Toy::new(8, vec![vm("a", 16, Some(best_with_three), four), vm("b", 2, None, |_| 2.0)]);
    for vcpu in toy.vms.iter_mut().flat_map(|vm| &mut vm.state.vcpus) {
        vcpu.affinity = Some(CpuSet::first(7));
    }
    let b = Rule { name: "b".into(), size: Some(Sizer::None), ..Rule::default() };
    let place = Policy {
        size: Sizer::Corefit,
        place: Placer::Corefit,
        dwell_ms: 200,
        lever_ms: 200,
        ..Policy::default()
    };
    let mut controller = Controller::new(Policy { reserved: CpuSet::first(1), vm: vec![b], ..place });
    let a = toy.vms[0].state.id.clone();
    let mut placed = Vec::new();
    for _ in 0..10 {
        let step = controller.step(&toy.observe()).unwrap();
        let places = |action: &&Action| matches!(action.why, Why::Placed(_));
        let names = step.plan.actions.iter().filter(places).map(|action| action.name.clone());
        placed.extend(names.map(|name| (name, controller.tries(&a))));
        toy.obey(&mut controller, &step);
        toy.pass(step.next);
    }
    assert_eq!(placed, [("b".into(), true), ("b".into(), true)], "and `a` once it tries none");
    assert!(toy.vms[1].state.vcpus.iter().all(|vcpu| !vcpu.affinity.as_ref().unwrap().contains(CpuId(0))));
}
