//! How long fewer vCPUs have to be wanted before a VM has them, and how many it has then, on hosts made of numbers.

use std::cell::Cell;

use corefit_core::decide::{Arbiter, Controller, Forecast, Policy, Rule, Sizer};
use corefit_core::machine::GuestView;

use crate::support::{Toy, four, of_four, vm};

thread_local!(static NEIGHBOUR: Cell<f64> = const { Cell::new(0.05) });

/// A VM of 8 vCPUs that uses 5.5 of 8 pCPUs, and as its run queue is not seen wants one more, beside one that is left alone.
fn beside_one() -> (Toy, Controller) {
    let toy =
        Toy::new(8, vec![vm("a", 8, None, |n| f64::from(n).min(5.5)), vm("b", 8, None, |_| NEIGHBOUR.get())]);
    let b = Rule { name: "b".into(), exclude: Some(true), ..Rule::default() };
    let policy = Policy { size: Sizer::Vscale, dwell_ms: 5_000, vm: vec![b], ..Policy::default() };
    (toy, Controller::new(policy))
}

#[test]
fn what_is_wanted_for_one_look_does_not_count_as_wanted_for_the_dwell() {
    let (mut toy, mut controller) = beside_one();
    toy.rule(&mut controller, 2);
    let mut least = 8;
    for second in 0..20 {
        NEIGHBOUR.set(if second % 7 == 3 { 8.0 } else { 0.05 });
        toy.rule(&mut controller, 1);
        least = least.min(toy.online(0));
    }
    assert_eq!((least, toy.online(0)), (7, 7));
}

#[test]
fn fewer_and_fewer_come_one_dwell_after_the_other() {
    let (mut toy, mut controller) = beside_one();
    toy.rule(&mut controller, 4);
    NEIGHBOUR.set(8.0);
    toy.rule(&mut controller, 4);
    assert_eq!(toy.online(0), 7);
    toy.rule(&mut controller, 7);
    assert_eq!(toy.online(0), 4);
}

/// VCPU-Bal's number is four, and so is what is granted; by another policy fewer are wanted from then on.
#[test]
fn what_another_policy_wanted_does_not_count_as_wanted_for_the_dwell() {
    let first = Policy { size: Sizer::VcpuBal, dwell_ms: 60_000, ..Policy::default() };
    let policies = [
        Policy { size: Sizer::Vscale, ..first.clone() },
        Policy { arbitrate: Arbiter::Fcfs, ..first.clone() },
        Policy { demand: Forecast::Ftds, ..first.clone() },
        Policy { probe_ms: 200, ..first.clone() },
        first.clone(),
    ];
    for then in policies {
        let mut toy = Toy::new(8, vec![of_four(vm("a", 8, None, four))]);
        let mut controller = Controller::new(first.clone());
        toy.rule(&mut controller, 55);
        controller.reconfigure(then.clone());
        toy.rule(&mut controller, 40);
        assert_eq!(toy.online(0), if then == first { 4 } else { 8 }, "{then:?}");
        toy.rule(&mut controller, 40);
        assert!(toy.online(0) <= 5, "{then:?}");
    }
}

/// One that is left alone uses more and more: what the other was granted is taken from it in steps.
#[test]
fn what_is_taken_in_steps_is_given_back_a_dwell_after_each() {
    let (mut toy, controller) = beside_one();
    toy.vms[0].used = f64::from;
    let mut controller = Controller::new(Policy {
        size: Sizer::None,
        arbitrate: Arbiter::Fcfs,
        ..controller.policy().clone()
    });
    toy.rule(&mut controller, 10);
    let (mut granted, mut online) = (vec![(0, 8)], vec![(0, 8)]);
    for second in 0..20 {
        NEIGHBOUR.set(f64::from(1 + second / 2).min(4.0));
        let step = controller.step(&toy.observe()).unwrap();
        toy.obey(&mut controller, &step);
        toy.pass(step.next);
        for (all, now) in [(&mut granted, step.given[0].pcpus as usize), (&mut online, toy.online(0))] {
            all.push((second, now));
            all.dedup_by_key(|(_, count)| *count);
        }
    }
    assert_eq!(granted[1..], [(1, 7), (3, 6), (5, 5), (7, 4)]);
    assert_eq!(online[1..], [(6, 7), (8, 6), (10, 5), (12, 4)]);
}

/// More threads than vCPUs that a VM may have want no more pCPUs than these: the forecast comes down as soon.
#[test]
fn a_long_run_queue_is_forgotten_as_soon_as_one_that_is_as_long_as_all_vcpus() {
    for demand in [Forecast::Pid, Forecast::Ftds] {
        let until_it_has_one = |threads| {
            let mut toy = Toy::new(8, vec![vm("a", 8, None, f64::from)]);
            let policy = Policy { size: Sizer::None, arbitrate: Arbiter::Fcfs, demand, ..Policy::default() };
            let mut controller = Controller::new(policy);
            let mut second = |toy: &mut Toy, threads| {
                toy.vms[0].state.guest =
                    Some(GuestView { vcpus: Vec::new(), runnable: Some(threads), work: None });
                toy.rule(&mut controller, 1);
                toy.online(0)
            };
            for _ in 0..20 {
                assert_eq!(second(&mut toy, threads), 8);
            }
            toy.vms[0].used = |_| 0.0;
            (1..60).find(|_| second(&mut toy, 0) == 1)
        };
        let soon = until_it_has_one(8);
        assert!(soon.is_some_and(|seconds| seconds <= 10), "{demand:?}: {soon:?}");
        assert_eq!([200, 1000].map(until_it_has_one), [soon; 2], "{demand:?}");
    }
}
