//! When a size is looked for again, and when not, on hosts made of numbers.

use corefit_core::decide::{Arbiter, Controller, Policy, Rule, Sizer, Why};

use crate::support::{ByCount, Toy, four, of_four, vm, with};

/// Threads that spin fall into step, and do three times as much with all vCPUs, until something happens. That is no other phase: to look for
/// a better number would bring them out of step.
#[test]
fn with_a_cap_who_does_clearly_more_than_with_vcpu_bals_number_does_not_search() {
    thread_local!(static DOES: std::cell::Cell<f64> = const { std::cell::Cell::new(300.0) });
    fn rate(n: u32) -> f64 {
        if n == 16 { DOES.get() } else { 100.0 }
    }
    let mut toy = Toy::new(16, vec![of_four(vm("a", 16, Some(rate), four))]);
    let mut controller = with(Sizer::Corefit);
    toy.rule(&mut controller, 60);
    assert_eq!(toy.online(0), 16);
    for does in [900.0, 150.0, 500.0] {
        DOES.set(does);
        assert_eq!(toy.rule(&mut controller, 60), 0, "{does}");
    }
    // Its cap is another one: what was enough says nothing of that.
    toy.vms[0].state.quota.as_mut().unwrap().quota_us = Some(300_000);
    assert!(toy.rule(&mut controller, 60) > 0);
    assert_eq!(toy.online(0), 16);
    toy.vms[0].state.quota.as_mut().unwrap().quota_us = Some(400_000);
    toy.rule(&mut controller, 120);
    assert_eq!(toy.online(0), 16);
    DOES.set(40.0);
    toy.rule(&mut controller, 60);
    assert_eq!(toy.online(0), 4, "but who does not any more does");
}

/// Threads that ran in step before a race changed anything are in step again some time after it: that is no other phase.
#[test]
fn who_does_again_what_it_did_before_the_race_is_not_searched_for_that() {
    thread_local!(static LOST: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });
    fn rate(n: u32) -> f64 {
        LOST.set(LOST.get() || n < 16);
        match (n, LOST.get()) {
            (16, false) => 1000.0,
            (16, true) => 600.0,
            _ => 10.0 * f64::from(n),
        }
    }
    let mut toy = Toy::new(4, vec![vm("a", 16, Some(rate), four)]);
    let mut controller = with(Sizer::Corefit);
    toy.rule(&mut controller, 20);
    assert!(toy.online(0) == 16 && LOST.get());
    LOST.set(false);
    assert_eq!(toy.rule(&mut controller, 60), 0);
    assert!(!LOST.get());
}

/// Threads that fell out of step may be in step again when all vCPUs are tried again, which is soon.
#[test]
fn with_a_cap_all_vcpus_that_did_more_before_are_tried_again_soon() {
    thread_local!(static ALL: std::cell::Cell<f64> = const { std::cell::Cell::new(1000.0) });
    fn rate(n: u32) -> f64 {
        if n == 16 { ALL.get() } else { 200.0 }
    }
    let mut toy = Toy::new(16, vec![of_four(vm("a", 16, Some(rate), four))]);
    let mut controller = with(Sizer::Corefit);
    toy.rule(&mut controller, 60);
    assert_eq!(toy.online(0), 16);
    ALL.set(20.0);
    toy.rule(&mut controller, 30);
    assert_eq!(toy.online(0), 4);
    ALL.set(1000.0);
    toy.rule(&mut controller, 60);
    assert_eq!(toy.online(0), 16);
}

/// What a load does may vary from second to second; that it does less for long is another phase all the same.
#[test]
fn what_varies_by_itself_is_no_other_phase() {
    thread_local!(static LOOKS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) });
    thread_local!(static BEST: std::cell::Cell<(u32, f64)> = const { std::cell::Cell::new((4, 1000.0)) });
    fn rate(n: u32) -> f64 {
        LOOKS.set(LOOKS.get() + 1);
        let (best, rate) = BEST.get();
        let varies = if LOOKS.get().is_multiple_of(2) { 1.4 } else { 0.6 };
        rate * varies / (1.0 + 0.5 * f64::from(n.abs_diff(best)))
    }
    let mut toy = Toy::new(8, vec![of_four(vm("a", 8, Some(rate), four))]);
    let mut controller = with(Sizer::Corefit);
    toy.rule(&mut controller, 20);
    assert_eq!(toy.online(0), 4);
    assert_eq!(toy.rule(&mut controller, 90), 0, "nothing is looked for");
    assert!(toy.rule(&mut controller, 60) > 0, "but what was left out is after two minutes, as of any load");
    assert_eq!(toy.online(0), 4);
    assert_eq!(toy.rule(&mut controller, 400), 0, "nothing is looked for");
    BEST.set((8, 400.0));
    toy.rule(&mut controller, 60);
    assert_eq!(toy.online(0), 8, "another phase");
}

/// A program that ends and another that begins do the same after the start, in which nothing is counted.
#[test]
fn a_start_in_which_nothing_is_counted_is_no_other_phase_but_what_comes_after_it_may_be() {
    thread_local!(static DOES: std::cell::Cell<(f64, u32)> = const { std::cell::Cell::new((100.0, 2)) });
    fn rate(n: u32) -> f64 {
        let (rate, best) = DOES.get();
        rate / (1.0 + 0.5 * f64::from(n.abs_diff(best)))
    }
    let used: ByCount = |n| if DOES.get().0 > 0.0 { f64::from(n.min(2)) } else { 1.0 };
    let mut toy = Toy::new(2, vec![vm("a", 8, Some(rate), used)]);
    let mut controller = with(Sizer::Corefit);
    let mut then = |does, seconds| {
        DOES.set(does);
        (toy.rule(&mut controller, seconds), toy.online(0))
    };
    assert_eq!(then((100.0, 2), 30).1, 2);
    for starts in [5, 9] {
        assert_eq!(then((0.0, 2), starts), (0, 2));
        assert_eq!(then((100.0, 2), 20), (0, 2), "{starts}");
    }
    assert_eq!(then((0.0, 2), 5), (0, 2));
    assert_eq!(then((1000.0, 4), 60).1, 4, "another program");
    assert_eq!(then((0.0, 4), 20).1, 2, "of what counts nothing for long nothing is known to be better");
    assert_eq!(then((1000.0, 4), 60).1, 4);
}

/// What does well for a moment after each change, and by turns, is no better than VCPU-Bal's number.
#[test]
fn what_turns_out_to_do_less_than_vcpu_bals_number_gives_way_to_it() {
    thread_local!(static EIGHT: std::cell::Cell<u32> = const { std::cell::Cell::new(0) });
    fn rate(n: u32) -> f64 {
        EIGHT.set(if n == 8 { EIGHT.get() + 1 } else { 0 });
        let varies = if EIGHT.get().is_multiple_of(2) { 1.9 } else { 0.1 };
        match (n, EIGHT.get()) {
            (8, ..7) => 120.0 * varies,
            (8, _) => 40.0 * varies,
            (2, _) => 100.0,
            _ => 50.0,
        }
    }
    let mut toy = Toy::new(2, vec![vm("a", 8, Some(rate), |_| 2.0)]);
    let mut controller = with(Sizer::Corefit);
    toy.rule(&mut controller, 6);
    assert_eq!(toy.online(0), 8, "it seems to be best");
    toy.rule(&mut controller, 60);
    assert_eq!(toy.online(0), 2);
    assert_eq!(toy.rule(&mut controller, 50), 0, "that is not looked for again at once");
    toy.rule(&mut controller, 600);
    assert_eq!(toy.online(0), 2, "who looks for longer is not taken in");
}

/// What is less than all did when all had VCPU-Bal's numbers is left by each at once, and not searched one by one.
#[test]
fn what_all_lost_since_they_raced_together_gives_way_to_vcpu_bals_numbers() {
    thread_local!(static LATER: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });
    fn rate(n: u32) -> f64 {
        match n {
            8 if LATER.get() => 500.0,
            8 => 1000.0,
            2 => 800.0,
            _ => 100.0,
        }
    }
    let end = |vms: &[&str]| {
        LATER.set(false);
        let vms: Vec<_> = vms.iter().map(|name| vm(name, 8, Some(rate), |_| 2.0)).collect();
        let mut toy = Toy::new(2 * u32::try_from(vms.len()).unwrap(), vms);
        let mut controller = with(Sizer::Corefit);
        toy.rule(&mut controller, 30);
        let before = toy.online(0);
        LATER.set(true);
        (before, toy.rule(&mut controller, 8), toy.online(0))
    };
    assert_eq!(end(&["a", "b"]), (8, 2, 2), "a change of each");
    let (before, changes, _) = end(&["a"]);
    assert!(before == 8 && changes > 2, "who raced alone searches: {changes}");
}

#[test]
fn it_starts_again_when_other_pcpus_are_available_and_knows_a_phase_again() {
    thread_local!(static BEST: std::cell::Cell<u32> = const { std::cell::Cell::new(4) });
    fn rate(n: u32) -> f64 {
        3000.0 / (1.0 + 0.5 * f64::from(n.abs_diff(BEST.get())))
    }
    let mut toy = Toy::new(8, vec![vm("a", 8, Some(rate), |n| f64::from(n.min(8)))]);
    let mut controller = with(Sizer::Corefit);
    toy.rule(&mut controller, 20);
    assert_eq!(toy.online(0), 4);
    BEST.set(8);
    toy.rule(&mut controller, 60);
    assert_eq!(toy.online(0), 8, "another phase");
    BEST.set(4);
    let again = toy.rule(&mut controller, 60);
    assert_eq!(toy.online(0), 4);
    assert!(again < 12, "remembered: {again} changes are no full search");
}

/// Its limit is raised; where work is counted in so large units that nothing can be tried, VCPU-Bal's number is all that is known.
#[test]
fn it_starts_again_when_its_limit_is_another() {
    fn fine(n: u32) -> f64 {
        100.0 * f64::from(n)
    }
    fn coarse(n: u32) -> f64 {
        0.1 * f64::from(n)
    }
    for rate in [fine, coarse] {
        let mut toy = Toy::new(16, vec![of_four(vm("a", 16, Some(rate), f64::from))]);
        let mut controller = Controller::new(Policy {
            size: Sizer::Corefit,
            vm: vec![Rule { name: "a".into(), max: Some(4), ..Rule::default() }],
            ..Policy::default()
        });
        toy.rule(&mut controller, 60);
        assert_eq!(toy.online(0), 4);
        controller.reconfigure(Policy { size: Sizer::Corefit, ..Policy::default() });
        toy.vms[0].state.quota.as_mut().unwrap().quota_us = Some(1_200_000);
        toy.rule(&mut controller, 60);
        assert!(toy.online(0) >= 12, "{}", toy.online(0));
    }
}

/// It may have more than when its number was found, of as many pCPUs.
#[test]
fn it_starts_again_when_it_may_have_more() {
    fn rate(n: u32) -> f64 {
        if n > 4 { 1000.0 } else { 100.0 }
    }
    let mut toy = Toy::new(16, vec![of_four(vm("a", 16, Some(rate), |_| 4.0))]);
    let policy = |max| Policy {
        size: Sizer::Corefit,
        vm: vec![Rule { name: "a".into(), max, ..Rule::default() }],
        ..Policy::default()
    };
    let mut controller = Controller::new(policy(Some(4)));
    toy.rule(&mut controller, 60);
    assert_eq!(toy.online(0), 4);
    controller.reconfigure(policy(None));
    toy.rule(&mut controller, 60);
    assert!(toy.online(0) > 4, "{}", toy.online(0));
}

#[test]
fn who_may_have_one_number_only_is_looked_for_as_soon_as_it_may_have_others() {
    fn rate(n: u32) -> f64 {
        100.0 * f64::from(n)
    }
    let mut toy = Toy::new(16, vec![of_four(vm("a", 16, Some(rate), |n| f64::from(n.min(4))))]);
    let one = Rule { name: "a".into(), max: Some(1), ..Rule::default() };
    let policy = Policy { size: Sizer::Corefit, vm: vec![one], ..Policy::default() };
    let mut controller = Controller::new(policy);
    toy.rule(&mut controller, 10);
    assert_eq!((toy.online(0), toy.rule(&mut controller, 7200)), (1, 0));
    controller.reconfigure(Policy { size: Sizer::Corefit, ..Policy::default() });
    toy.rule(&mut controller, 30);
    assert_eq!(toy.online(0), 16);
}

/// What a count that is not in use could do does not show: it is looked for again, rarely.
#[test]
fn a_better_count_is_found_though_nothing_shows_and_looking_costs_little() {
    thread_local!(static EIGHT: std::cell::Cell<f64> = const { std::cell::Cell::new(500.0) });
    fn rate(n: u32) -> f64 {
        match n {
            4 => 1000.0,
            8 => EIGHT.get(),
            _ => 300.0,
        }
    }
    let mut toy = Toy::new(8, vec![vm("a", 8, Some(rate), f64::from)]);
    let mut controller = with(Sizer::Corefit);
    toy.rule(&mut controller, 60);
    assert_eq!(toy.online(0), 4);
    let before = toy.vms[0].state.progress.unwrap();
    let actions = toy.rule(&mut controller, 4 * 3600);
    let done = (toy.vms[0].state.progress.unwrap() - before) / (4.0 * 3600.0 * 1000.0);
    assert_eq!(toy.online(0), 4);
    assert!((2..100).contains(&actions) && done > 0.998, "{actions} changes, {done} of the best");
    EIGHT.set(2000.0);
    toy.rule(&mut controller, 3700);
    assert_eq!(toy.online(0), 8);
    EIGHT.set(500.0);
    toy.rule(&mut controller, 60);
    assert_eq!(toy.online(0), 4, "what shows is found at once");
    EIGHT.set(2000.0);
    toy.rule(&mut controller, 700);
    assert_eq!(toy.online(0), 8, "ten minutes after a change");
}

/// What it is granted goes up and down, so that each race has to be left.
#[test]
fn who_cannot_end_a_race_rests_longer_and_longer() {
    thread_local!(static ODD: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });
    fn rate(n: u32) -> f64 {
        100.0 * f64::from(n)
    }
    let important = Rule { name: "a".into(), priority: Some(1), size: Some(Sizer::None), ..Rule::default() };
    let vms = vec![
        vm("a", 8, None, |n| f64::from(n).min(if ODD.get() { 5.9 } else { 3.9 })),
        vm("b", 8, Some(rate), f64::from),
    ];
    let mut toy = Toy::new(8, vms);
    let mut controller = Controller::new(Policy {
        arbitrate: Arbiter::Priority,
        size: Sizer::Corefit,
        dwell_ms: 0,
        vm: vec![important],
        ..Policy::default()
    });
    let mut tried = [0; 10];
    for minute in &mut tried {
        let end = toy.at + 60_000_000_000;
        while toy.at < end {
            ODD.set(toy.at / 1_500_000_000 % 2 == 1);
            let step = controller.step(&toy.observe()).unwrap();
            *minute +=
                step.plan.actions.iter().filter(|action| matches!(action.why, Why::Trying { .. })).count();
            toy.obey(&mut controller, &step);
            toy.pass(step.next);
        }
    }
    assert!(tried[5..].iter().sum::<usize>() <= 2, "each minute: {tried:?}");
}

/// Beside a VM that is busy by turns other pCPUs are available each time, and what a race finds goes by what that one did meanwhile.
#[test]
fn beside_who_is_busy_by_turns_races_become_rare() {
    thread_local!(static TURN: std::cell::Cell<u32> = const { std::cell::Cell::new(0) });
    fn is_busy() -> bool {
        TURN.get() % 2 == 1
    }
    fn used(n: u32) -> f64 {
        f64::from(n.min(if is_busy() { 4 } else { 8 }))
    }
    fn rate(n: u32) -> f64 {
        100.0 * used(n) / (1.0 + 0.1 * f64::from(n))
    }
    let vms = vec![vm("a", 8, Some(rate), used), vm("b", 8, None, |_| if is_busy() { 4.0 } else { 0.0 })];
    let mut toy = Toy::new(8, vms);
    let mut controller = with(Sizer::Corefit);
    let mut tried = [0; 6];
    for part in &mut tried {
        let end = toy.at + 600_000_000_000;
        while toy.at < end {
            TURN.set(u32::try_from(toy.at / 8_000_000_000).unwrap());
            let step = controller.step(&toy.observe()).unwrap();
            let tries = |why: &Why| matches!(why, Why::Trying { .. });
            *part += step.plan.actions.iter().filter(|action| tries(&action.why)).count();
            toy.obey(&mut controller, &step);
            toy.pass(step.next);
        }
    }
    assert!(tried[3..].iter().sum::<usize>() < tried[0], "each ten minutes: {tried:?}");
}

/// The neighbour uses half of the host, or nothing; what was found beside it holds while it works.
mod a_neighbour_that_pauses {
    use super::*;

    thread_local!(static BUSY: std::cell::Cell<bool> = const { std::cell::Cell::new(true) });
    thread_local!(static WORKS: std::cell::Cell<bool> = const { std::cell::Cell::new(true) });

    /// As many vCPUs as it has pCPUs are best.
    fn rate(n: u32) -> f64 {
        let pcpus = if BUSY.get() { 4 } else { 8 };
        if WORKS.get() {
            100.0 * f64::from(n.min(pcpus)) / (1.0 + f64::from(n.saturating_sub(pcpus)))
        } else {
            0.0
        }
    }

    fn used(n: u32) -> f64 {
        if WORKS.get() { f64::from(n.min(if BUSY.get() { 4 } else { 8 })) } else { 0.0 }
    }

    fn host() -> (Toy, Controller) {
        BUSY.set(true);
        WORKS.set(true);
        let neighbour = vm("b", 8, None, |_| if BUSY.get() { 4.0 } else { 0.0 });
        let toy = Toy::new(8, vec![vm("a", 8, Some(rate), used), neighbour]);
        (toy, with(Sizer::Corefit))
    }

    #[test]
    fn once_is_not_taken_for_one_that_takes_what_is_left() {
        let (mut toy, mut controller) = host();
        toy.rule(&mut controller, 20);
        assert_eq!(toy.online(0), 4);
        for (busy, seconds) in [(false, 6), (true, 10), (false, 6), (true, 10), (false, 200)] {
            BUSY.set(busy);
            toy.rule(&mut controller, seconds);
        }
        assert_eq!(toy.online(0), 8, "it is gone for good");
    }

    thread_local!(static LEFT: std::cell::Cell<u32> = const { std::cell::Cell::new(0) });

    #[test]
    fn once_and_takes_what_is_left_only_later_is_still_one_that_does() {
        // Six are best, however many pCPUs there are; who is beside it takes more when they were left to it for three seconds.
        let six = |n: u32| 100.0 * f64::from(n.min(6)) / (1.0 + 0.1 * f64::from(n.saturating_sub(6)));
        let neighbour = vm("b", 16, None, |_| match (BUSY.get(), LEFT.get()) {
            (false, _) => 0.0,
            (true, 0..3) => 6.0,
            (true, _) => 12.0,
        });
        BUSY.set(true);
        LEFT.set(0);
        let mut toy = Toy::new(16, vec![vm("a", 12, Some(six), f64::from), neighbour]);
        // It takes ten seconds until it is back.
        let policy = Policy { lever_ms: 10_000, ..with(Sizer::Corefit).policy().clone() };
        let mut controller = Controller::new(policy);
        let rule = |toy: &mut Toy, controller: &mut Controller, seconds: u32| {
            let online = (0..seconds).map(|_| {
                toy.rule(controller, 1);
                LEFT.set(if toy.online(0) <= 6 { LEFT.get() + 1 } else { 0 });
                toy.online(0)
            });
            online.collect::<Vec<_>>()
        };
        rule(&mut toy, &mut controller, 120);
        assert_eq!(toy.online(0), 6);
        BUSY.set(false);
        rule(&mut toy, &mut controller, 6);
        BUSY.set(true);
        let online = rule(&mut toy, &mut controller, 200);
        let away = online.windows(2).filter(|pair| pair[0] == 6 && pair[1] != 6).count();
        assert!(away == 1 && toy.online(0) == 6, "{online:?}");
    }

    /// All vCPUs are far better than VCPU-Bal's number: whether eight pCPUs are available or nine is no matter.
    #[test]
    fn by_one_pcpu_takes_nothing_from_what_is_clearly_better() {
        let mut toy = Toy::new(
            16,
            vec![
                vm("a", 16, Some(|n| if n == 16 { 1000.0 } else { 10.0 * f64::from(n) }), |_| 7.5),
                vm("b", 16, None, |_| if BUSY.get() { 8.0 } else { 7.2 }),
            ],
        );
        let mut controller = with(Sizer::Corefit);
        BUSY.set(true);
        toy.rule(&mut controller, 60);
        assert_eq!(toy.online(0), 16);
        let mut fewest = 16;
        for second in 0..50 {
            BUSY.set(second / 5 % 2 == 1);
            toy.rule(&mut controller, 1);
            fewest = fewest.min(toy.online(0));
        }
        assert_eq!(fewest, 16);
    }

    #[test]
    fn a_moment_of_idleness_brings_back_nothing_that_was_found_for_other_pcpus() {
        let (mut toy, mut controller) = host();
        BUSY.set(false);
        toy.rule(&mut controller, 130);
        assert_eq!(toy.online(0), 8);
        // Two searches within a minute: the next one has to wait.
        BUSY.set(true);
        toy.rule(&mut controller, 30);
        BUSY.set(false);
        toy.rule(&mut controller, 30);
        BUSY.set(true);
        toy.rule(&mut controller, 15);
        assert_eq!(toy.online(0), 4);
        for _ in 0..3 {
            WORKS.set(false);
            toy.rule(&mut controller, 3);
            WORKS.set(true);
            let most = (0..10).map(|_| {
                toy.rule(&mut controller, 1);
                toy.online(0)
            });
            assert_eq!(most.max(), Some(4), "at {}", toy.at);
        }
    }
}
