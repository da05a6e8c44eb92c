//! Which vCPUs a guest is asked for, and when again: it cannot, refuses, is away, does not answer, or says so and does nothing.

use std::time::Duration;

use corefit_core::decide::{Action, Arbiter, Controller, Outcome, Policy, Rule, Sizer, Weigher, Why};
use corefit_core::machine::{Fixed, Lever, LeverKind, MachineError, Value, VmId};

use crate::support::{Toy, four, vm, with};

#[test]
fn who_cannot_shrink_is_said_and_left_alone() {
    let mut one = vm("a", 16, Some(four), four);
    one.state.fixed = vec![Fixed { lever: LeverKind::Online, reason: "no agent answers".into() }];
    let mut toy = Toy::new(4, vec![one, vm("b", 4, None, four)]);
    let policy = Policy {
        size: Sizer::VcpuBal,
        vm: vec![Rule { name: "b".into(), exclude: Some(true), ..Rule::default() }],
        ..Policy::default()
    };
    let mut controller = Controller::new(policy);
    for looks in 0..20 {
        let step = controller.step(&toy.observe()).unwrap();
        assert!(step.plan.actions.is_empty());
        let said = ["a: keeps its vCPUs: no agent answers", "b: left alone: its rule says exclude"];
        assert_eq!(step.notes, if looks == 0 { &[][..] } else { &said[..] }, "as long as it is so");
        toy.pass(step.next);
    }
    toy.vms.truncate(1);
    assert_eq!(controller.step(&toy.observe()).unwrap().notes.len(), 2, "no VM has the name of its rule");
}

#[test]
fn a_machine_that_lacks_a_lever_is_asked_again_after_minutes_one_that_is_away_sooner_and_who_refuses_never() {
    let mut toy = Toy::new(4, vec![vm("a", 8, None, four)]);
    let mut controller = with(Sizer::VcpuBal);
    let mut tries = |controller: &mut Controller, seconds: u64, error: MachineError| {
        let mut tried = 0;
        for _ in 0..seconds {
            let step = controller.step(&toy.observe()).unwrap();
            tried += step.plan.actions.len();
            let fail = |action: &corefit_core::decide::Action| Outcome {
                action: action.clone(),
                result: Err(error.clone()),
            };
            let outcomes: Vec<Outcome> = step.plan.actions.iter().map(fail).collect();
            controller.told(&outcomes);
            toy.pass(Duration::from_secs(1));
        }
        tried
    };
    let away = tries(&mut controller, 60, MachineError::Gone("agent does not answer".into()));
    assert!((2..=7).contains(&away), "{away}");
    let lacks = || MachineError::Unsupported("cannot".into());
    assert_eq!(tries(&mut controller, 60, lacks()), 1);
    assert_eq!(tries(&mut controller, 600, lacks()), 2);
    let senseless = MachineError::Malformed("no vCPU is online".into());
    assert_eq!(tries(&mut controller, 600, senseless), 2, "it may make sense again");
    assert_eq!(tries(&mut controller, 1200, MachineError::Denied("not for you".into())), 1);
    let step = controller.step(&toy.observe()).unwrap();
    assert_eq!(step.kept[&VmId("a".into())], "not for you", "what was said to it");
}

#[test]
fn a_guest_that_says_it_is_done_and_changes_nothing_is_asked_ever_more_rarely_until_it_does_it() {
    let mut toy = Toy::new(4, vec![vm("a", 8, None, four)]);
    let mut controller = with(Sizer::VcpuBal);
    // Seconds at which it was asked in vain.
    let asked = |toy: &mut Toy, controller: &mut Controller, seconds: u64| {
        let (mut asked, end) = (vec![], toy.at + seconds * 1_000_000_000);
        while toy.at < end {
            let step = controller.step(&toy.observe()).unwrap();
            asked.extend(step.plan.actions.iter().map(|_| toy.at / 1_000_000_000));
            let nothing = |action: Action| Outcome { result: Ok(action.from.clone().unwrap()), action };
            controller.told(&step.plan.actions.into_iter().map(nothing).collect::<Vec<_>>());
            toy.pass(step.next);
        }
        asked
    };
    let times = asked(&mut toy, &mut controller, 1800);
    let rests: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(rests.is_sorted() && rests[0] >= 10 && rests[4] > 100, "{times:?}");
    assert!(rests.iter().all(|rest| *rest < 310), "as who lacks it: {times:?}");
    toy.rule(&mut controller, 320);
    assert_eq!(toy.online(0), 4);
    toy.vms[0].state.vcpus.iter_mut().for_each(|vcpu| vcpu.online = true);
    let times = asked(&mut toy, &mut controller, 60);
    assert!(times.len() >= 3, "it did what was asked meanwhile: {times:?}");
}

#[test]
fn who_does_not_answer_keeps_its_vcpus_and_weights_see_to_it_until_it_does() {
    let mut toy = Toy::new(3, vec![vm("high", 4, None, f64::from), vm("low", 4, None, f64::from)]);
    let mut controller = Controller::new(Policy {
        size: Sizer::None,
        arbitrate: Arbiter::Priority,
        weigh: Weigher::Grants,
        vm: vec![Rule { name: "high".into(), priority: Some(5), ..Rule::default() }],
        ..Policy::default()
    });
    let (mut tries, mut kept) = (0, None);
    for _ in 0..60 {
        let mut step = controller.step(&toy.observe()).unwrap();
        let away = |action: &Action| action.name == "low" && action.lever == Lever::Online;
        let asked: Vec<Action> = step.plan.actions.extract_if(.., |action| away(action)).collect();
        toy.obey(&mut controller, &step);
        tries += asked.len();
        let gone = || Err(MachineError::Gone("its guest agent is not connected".into()));
        controller
            .told(&asked.into_iter().map(|action| Outcome { action, result: gone() }).collect::<Vec<_>>());
        toy.pass(Duration::from_secs(1));
        kept = step.kept.get(&VmId("low".into())).cloned();
    }
    assert_eq!(kept.as_deref(), Some("its guest agent is not connected"));
    assert!((3..=7).contains(&tries), "{tries}");
    assert_eq!((toy.online(0), toy.online(1)), (2, 4));
    assert_eq!(toy.weights(), [1365.0, 683.0], "two pCPUs and one");
    toy.rule(&mut controller, 20);
    assert_eq!((toy.online(0), toy.online(1), toy.weights()), (2, 1, vec![1024.0, 1024.0]));
    assert!(controller.step(&toy.observe()).unwrap().kept.is_empty());
}

/// A VM of eight vCPUs of which its guest has every second one offline, and was made to have two.
fn every_second(policy: Policy) -> (Toy, Controller) {
    let mut toy = Toy::new(8, vec![vm("a", 8, None, f64::from)]);
    toy.vms[0].state.vcpus.iter_mut().skip(1).step_by(2).for_each(|vcpu| vcpu.online = false);
    let vm = vec![Rule { name: "a".into(), max: Some(2), ..Rule::default() }];
    let mut controller = Controller::new(Policy { vm, ..policy.clone() });
    toy.rule(&mut controller, 10);
    assert_eq!(toy.vms[0].state.online().to_string(), "0,2");
    controller.reconfigure(policy);
    (toy, controller)
}

/// As the journal has it.
fn had_every_second(toy: &Toy, controller: &mut Controller) {
    let sizes = ("0,2,4,6".parse().unwrap(), toy.vms[0].state.online());
    controller.sized_before([(VmId("a".into()), sizes)].into());
}

#[test]
fn vcpus_that_were_taken_come_again_before_those_that_were_offline_and_these_go_first() {
    let (mut toy, mut controller) = every_second(Policy { size: Sizer::None, ..Policy::default() });
    let bounds = [(Some(3), Some(3), 3), (Some(6), None, 6), (Some(5), Some(5), 5), (None, Some(3), 3)];
    for halves in [false, true] {
        for (min, max, count) in bounds {
            let vm = vec![Rule { name: "a".into(), min, max, ..Rule::default() }];
            controller.reconfigure(Policy { size: Sizer::None, vm, ..Policy::default() });
            for (number, vcpu) in toy.vms[0].state.vcpus.iter_mut().enumerate().filter(|_| halves) {
                vcpu.affinity = if number < 4 { "0-3" } else { "4-7" }.parse().ok();
            }
            had_every_second(&toy, &mut controller);
            toy.rule(&mut controller, 70);
            let (online, had) = (toy.vms[0].state.online(), "0,2,4,6".parse().unwrap());
            let own = online.intersection(&had).len();
            assert_eq!((online.len(), own), (count, count.min(4)), "{online} {halves}");
        }
    }
}

#[test]
fn who_cannot_have_vcpus_that_were_offline_gets_its_own_and_is_asked_for_these_ever_more_rarely() {
    let (mut toy, mut controller) = every_second(Policy { size: Sizer::VcpuBal, ..Policy::default() });
    let mut refused = vec![];
    let mut pass = |toy: &mut Toy, seconds: u64, has_them: bool| {
        for _ in 0..seconds {
            had_every_second(toy, &mut controller);
            let mut step = controller.step(&toy.observe()).unwrap();
            // nosmt
            let more = |action: &Action| action.to != Value::Vcpus("0,2,4,6".parse().unwrap());
            let others: Vec<Action> =
                step.plan.actions.extract_if(.., |action| !has_them && more(action)).collect();
            toy.obey(&mut controller, &step);
            let error = MachineError::Gone("write(\"cpu1/online\"): Operation not permitted".into());
            let asked = others.iter().filter(|action| action.why != Why::AskedAgain);
            refused.extend(asked.map(|_| toy.at / 1_000_000_000));
            let answer = |action: Action| {
                let result =
                    if action.why == Why::AskedAgain { Ok(action.to.clone()) } else { Err(error.clone()) };
                Outcome { action, result }
            };
            controller.told(&others.into_iter().map(answer).collect::<Vec<_>>());
            toy.pass(Duration::from_secs(1));
        }
        toy.vms[0].state.online().to_string()
    };
    assert_eq!(pass(&mut toy, 30, false), "0,2,4,6");
    assert_eq!(pass(&mut toy, 570, false), "0,2,4,6");
    assert_eq!(pass(&mut toy, 600, true), "0-7", "it may be able to by now");
    assert!((4..=6).contains(&refused.len()), "{refused:?}");
}
