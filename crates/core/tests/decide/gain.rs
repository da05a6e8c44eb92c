//! Whether weights bring something, and what follows from that, on hosts made of numbers.

use std::cell::Cell;
use std::time::Duration;

use corefit_core::Weight;
use corefit_core::decide::{Arbiter, Controller, Policy, Rule, Sizer, Weigher};

use crate::support::{Toy, contest, vm};
use crate::weigh::{important, on, waiting};

thread_local!(static HIGH: Cell<f64> = const { Cell::new(1.0) });

/// What `high` and `low` of [`contest`] weigh, and which notes there are of that, after each of so many seconds in which both want two pCPUs and
/// `high` gets so many of the two, by its part of all weights.
fn shared(
    toy: &mut Toy,
    controller: &mut Controller,
    seconds: u64,
    gets: impl Fn(f64) -> f64,
) -> Vec<(Vec<f64>, Option<String>)> {
    (toy.vms[0].used, toy.vms[1].used) = (|_| 2.0 - HIGH.get(), |_| HIGH.get());
    let mut all = Vec::new();
    for _ in 0..seconds {
        let step = controller.step(&toy.observe()).unwrap();
        toy.obey(controller, &step);
        let weights = toy.weights();
        HIGH.set(gets(weights[1] / (weights[0] + weights[1])));
        toy.pass(Duration::from_secs(1));
        for (vm, used) in toy.vms.iter_mut().zip([2.0 - HIGH.get(), HIGH.get()]) {
            for vcpu in &mut vm.state.vcpus {
                let waits = Duration::from_secs_f64(1.0 - used / 2.0);
                *vcpu.counters.wait_ns.as_mut().unwrap() += u64::try_from(waits.as_nanos()).unwrap();
            }
        }
        all.push((weights, step.notes.into_iter().find(|note| note.contains("more weight"))));
    }
    all
}

const BASE: [f64; 2] = [1000.0, 2000.0];

#[test]
fn weights_that_bring_nothing_are_undone_with_a_note_and_tried_again_more_and_more_rarely() {
    let (mut toy, policy) = contest();
    let mut controller = Controller::new(policy);
    let all = shared(&mut toy, &mut controller, 2000, |_| 1.0);
    let changes: Vec<usize> = (1..all.len()).filter(|second| all[*second].0 != all[second - 1].0).collect();
    let gaps: Vec<usize> = changes.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.iter().step_by(2).all(|tried| (60..70).contains(tried)), "{changes:?}");
    let rests: Vec<usize> = gaps.iter().skip(1).step_by(2).copied().collect();
    assert_eq!(rests, [600 - 3, 1200 - 3], "from when it was found, the dwell before: {changes:?}");
    let note = all[changes[1]].1.as_deref();
    let said = "more weight brings high nothing: it got 67 % of what it wants before, and 50 % with more weight; \
                all weigh what they did for 10 min";
    assert_eq!(note, Some(said));
    assert_eq!((&all[changes[0]].1, &all[changes[2]].1), (&None, &None));
    assert_eq!(all[changes[1]].0, BASE);
}

#[test]
fn weights_that_bring_something_stay() {
    let (mut toy, policy) = contest();
    let all = shared(&mut toy, &mut Controller::new(policy), 1000, |part| 2.0 * part);
    assert!(all[10..].iter().all(|(weights, note)| *weights == [375.0, 2625.0] && note.is_none()));
}

#[test]
fn weights_that_brought_something_are_undone_once_they_do_no_more() {
    let (mut toy, policy) = contest();
    let mut controller = Controller::new(policy);
    let all = shared(&mut toy, &mut controller, 300, |part| 2.0 * part);
    assert_eq!(all.last().unwrap().0, [375.0, 2625.0]);
    let all = shared(&mut toy, &mut controller, 600, |_| 1.0);
    let back = all.iter().position(|(weights, _)| *weights == BASE).unwrap();
    assert!((400..500).contains(&back), "ten minutes after the first one, and another one: {back}");
    assert!(all[back].1.is_some());
    // Where they do, they stay however often that is found.
    let (mut toy, policy) = contest();
    let all = shared(&mut toy, &mut Controller::new(policy), 3000, |part| 2.0 * part);
    assert!(all[10..].iter().all(|(weights, note)| *weights == [375.0, 2625.0] && note.is_none()));
}

/// A look may miss one of them, or one may be paused.
#[test]
fn what_weights_brought_is_known_though_a_sibling_is_away_for_a_moment() {
    let (mut toy, mut policy) = contest();
    toy.vms.push(vm("c", 1, None, |_| 0.0));
    policy.vm.push(Rule { name: "c".into(), guaranteed: Some(0.1), ..Rule::default() });
    let mut controller = Controller::new(policy);
    let before = toy.weights();
    assert_eq!(shared(&mut toy, &mut controller, 100, |_| 1.0).last().unwrap().0, before);
    let mut away = |seconds: u64| {
        toy.missed = Some(2);
        // What it gets meanwhile says nothing.
        let gone = shared(&mut toy, &mut controller, seconds, |_| 0.6);
        toy.missed = None;
        let back = shared(&mut toy, &mut controller, 20, |_| 1.0);
        gone.into_iter().chain(back).all(|(weights, _)| weights == before)
    };
    assert_eq!([away(55), away(5), away(90)], [true, true, false], "for longer they are others");
}

/// Somebody changed the weight of one, for good.
#[test]
fn weights_are_tried_again_where_siblings_weigh_something_else() {
    let (mut toy, policy) = contest();
    let mut controller = Controller::new(policy);
    assert_eq!(shared(&mut toy, &mut controller, 100, |_| 1.0).last().unwrap().0, BASE);
    toy.vms[0].state.weight = Some(Weight(2000.0));
    let all = shared(&mut toy, &mut controller, 100, |_| 1.0);
    let again = all.iter().position(|(weights, _)| *weights != [2000.0, 2000.0]).unwrap();
    assert!((59..70).contains(&again), "{again}");
}

/// As on a kernel that did not keep to weights for a minute.
#[test]
fn weights_that_seemed_to_bring_nothing_are_set_again_if_less_comes_of_those_of_before() {
    let (mut toy, policy) = contest();
    let mut controller = Controller::new(policy);
    let all = shared(&mut toy, &mut controller, 80, |_| 1.0);
    assert_eq!(all.last().unwrap().0, BASE);
    let all = shared(&mut toy, &mut controller, 400, |part| if part > 0.8 { 1.0 } else { 0.6 });
    let again = all.iter().position(|(weights, _)| *weights != BASE).unwrap();
    assert!((40..70).contains(&again), "{again}");
    assert!(all[again..].iter().all(|(weights, note)| *weights == [375.0, 2625.0] && note.is_none()));
}

#[test]
fn weights_that_a_guarantee_needs_stay_whatever_they_bring_and_others_are_tried_anew_as_soon_as_more_is_at_stake()
 {
    let (mut toy, mut policy) = contest();
    policy.vm[1].min = Some(2);
    policy.vm[1].guaranteed = Some(1.7);
    let all = shared(&mut toy, &mut Controller::new(policy.clone()), 200, |_| 1.0);
    assert_ne!(all.last().unwrap().0, BASE);
    policy.vm[1].guaranteed = Some(0.25);
    let (mut toy, _) = contest();
    let mut controller = Controller::new(policy.clone());
    assert_eq!(shared(&mut toy, &mut controller, 200, |_| 1.0).last().unwrap().0, BASE);
    policy.vm[1].guaranteed = Some(0.5);
    controller.reconfigure(policy);
    assert_ne!(shared(&mut toy, &mut controller, 10, |_| 1.0).last().unwrap().0, BASE);
}

/// By its part of all weights it would have 1.33 of four pCPUs; of the two that it may use 0.67.
#[test]
fn weights_that_the_guarantee_of_a_pinned_vm_needs_stay_whatever_they_bring() {
    let ends = |guaranteed| {
        let beside = ["a", "b"].map(|name| on("0-3", name, 4, |_| 5.0 / 3.0));
        let mut toy = Toy::new(4, [on("0-1", "v", 4, |_| 2.0 / 3.0)].into_iter().chain(beside).collect());
        let rule = Rule { min: Some(2), guaranteed: Some(guaranteed), ..important("v") };
        let policy = Policy { size: Sizer::None, arbitrate: Arbiter::Priority, ..Policy::default() };
        let mut controller = Controller::new(Policy { weigh: Weigher::Grants, vm: vec![rule], ..policy });
        (0..3).for_each(|_| drop(waiting(&mut toy, &mut controller)));
        toy.weights()
    };
    assert_eq!(ends(0.5), [1024.0; 3], "more brings nothing, and it needs none for that");
    assert_eq!(ends(1.2), [1536.0, 768.0, 768.0]);
}
