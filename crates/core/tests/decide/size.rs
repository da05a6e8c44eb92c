//! How many vCPUs VMs get, by the whole corridor, on hosts made of numbers.

use std::collections::BTreeMap;
use std::time::Duration;

use corefit_core::decide::{Action, Arbiter, Controller, Forecast, Outcome, Policy, Rule, Sizer, Why};
use corefit_core::machine::State;
use corefit_core::{CpuId, CpuSet, Cpus, Quota, Weight};

use crate::support::{ByCount, Toy, four, of_four, vm, with};

#[test]
fn with_a_signal_the_best_count_is_found_below_and_above_what_is_available() {
    fn below(n: u32) -> f64 {
        1000.0 / (1.0 + 0.3 * f64::from(n.abs_diff(3)))
    }
    fn above(n: u32) -> f64 {
        if n == 16 { 1000.0 } else { 100.0 + f64::from(n) }
    }
    // Below: all are much worse than VCPU-Bal's, which is taken at once; a better one is looked for two minutes later.
    for (rate, soon, wanted) in [(below as ByCount, 4, 3), (above, 16, 16)] {
        let one = of_four(vm("a", 16, Some(rate), four));
        let mut toy = Toy::new(16, vec![one]);
        let mut controller = with(Sizer::Corefit);
        toy.rule(&mut controller, 30);
        assert_eq!(toy.online(0), soon);
        toy.rule(&mut controller, 130);
        assert_eq!(toy.online(0), wanted);
    }
    // As long as not all is clear, also at once.
    fn little(n: u32) -> f64 {
        1000.0 / (1.0 + 0.06 * f64::from(n.abs_diff(3)))
    }
    let mut toy = Toy::new(4, vec![vm("a", 16, Some(little), four)]);
    toy.rule(&mut with(Sizer::Corefit), 30);
    assert_eq!(toy.online(0), 3);
}

#[test]
fn what_was_found_gives_way_to_vcpu_bals_number_also_where_nothing_may_be_searched() {
    thread_local!(static LATER: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });
    fn rate(n: u32) -> f64 {
        match n {
            16 if LATER.get() => 300.0,
            16 => 1000.0,
            4 => 800.0,
            _ => 100.0,
        }
    }
    let mut toy = Toy::new(4, vec![vm("a", 16, Some(rate), four)]);
    let policy = Policy { size: Sizer::Corefit, ..Policy::default() };
    let mut controller = Controller::new(policy.clone());
    toy.rule(&mut controller, 30);
    assert_eq!(toy.online(0), 16);
    // As if others searched all the time: what was found is kept.
    controller.heed(&Policy { searches: 0, ..policy }, &[]);
    LATER.set(true);
    assert_eq!((toy.rule(&mut controller, 2), toy.online(0)), (0, 16));
    toy.rule(&mut controller, 60);
    assert_eq!(toy.online(0), 4);
}

/// As of one that started with that configuration.
#[test]
fn where_nothing_may_be_searched_any_more_all_have_vcpu_bals_number() {
    let rate: ByCount = |n| 1000.0 / (1.0 + 0.06 * f64::from(n.abs_diff(3)));
    let policy = Policy { size: Sizer::Corefit, ..Policy::default() };
    for found in [true, false] {
        let mut toy = Toy::new(4, vec![vm("a", 16, Some(rate), four)]);
        let mut controller = Controller::new(policy.clone());
        if found {
            toy.rule(&mut controller, 30);
            assert_eq!(toy.online(0), 3);
            // Fewer searches at a time are no reason.
            controller.reconfigure(Policy { searches: 1, ..policy.clone() });
            assert_eq!((toy.rule(&mut controller, 20), toy.online(0)), (0, 3));
        } else {
            let tried = |toy: &Toy| ![4, 16].contains(&toy.online(0));
            while toy.at < 10_000_000_000 && !tried(&toy) {
                let step = controller.step(&toy.observe()).unwrap();
                toy.obey(&mut controller, &step);
                toy.pass(step.next);
            }
            assert!(tried(&toy) && controller.tries(&toy.vms[0].state.id), "it races");
        }
        controller.reconfigure(Policy { searches: 0, ..policy.clone() });
        let changes = toy.rule(&mut controller, 10);
        assert_eq!((changes, toy.online(0)), (1, 4), "{found}");
        assert_eq!(toy.rule(&mut controller, 60), 0, "{found}");
    }
}

#[test]
fn the_time_in_which_a_vm_was_paused_is_not_what_its_race_cost() {
    fn little(n: u32) -> f64 {
        1000.0 / (1.0 + 0.06 * f64::from(n.abs_diff(3)))
    }
    let mut toy = Toy::new(4, vec![vm("a", 16, Some(little), four)]);
    let mut controller = with(Sizer::Corefit);
    assert!(toy.rule(&mut controller, 1) > 1, "it races");
    toy.vms[0].state.state = State::Paused;
    toy.rule(&mut controller, 3600);
    toy.vms[0].state.state = State::Running;
    toy.rule(&mut controller, 60);
    assert_eq!(toy.online(0), 3, "it races again");
}

/// A pCPU second brings less with sixteen vCPUs than with eight, which do less all the same.
#[test]
fn the_reason_of_a_size_says_which_part_of_what_is_used_goes_into_waiting() {
    let rate: ByCount = |n| match n {
        16 => 16.0 * 62.0,
        9.. => 500.0,
        n => f64::from(n) * 100.0,
    };
    let mut toy = Toy::new(16, vec![vm("a", 16, Some(rate), f64::from)]);
    let mut controller = with(Sizer::Corefit);
    let mut reasons = vec![];
    while toy.at < 30_000_000_000 {
        let step = controller.step(&toy.observe()).unwrap();
        reasons.extend(step.plan.actions.iter().map(|action| action.why.to_string()));
        toy.obey(&mut controller, &step);
        toy.pass(step.next);
    }
    assert_eq!(toy.online(0), 16);
    assert_eq!(
        reasons.last().unwrap(),
        "it does most work with so many, 1.00 times that with its part of the pCPUs; 38 % of what it uses at 16 goes into waiting"
    );
}

/// Of VMs that are tried together all count.
#[test]
fn who_does_less_than_with_its_part_is_not_said_to_do_most() {
    let said =
        |ratio| Why::Fastest { available: Cpus(1.0), over_share: Some(ratio), spins: None }.to_string();
    assert_eq!(
        said(0.81),
        "the VMs that were tried together do most work so; it does 0.81 times that with its part of the pCPUs"
    );
    assert!(said(1.3).starts_with("it does most work with so many, 1.30 times"));
}

/// Any landscape: in the end never worse than VCPU-Bal's count, near the best, and the search cost little.
#[test]
fn whatever_the_landscape_it_ends_no_worse_than_vcpu_bal_and_rests() {
    thread_local!(static SEED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) });
    fn rate(n: u32) -> f64 {
        let mut z = (SEED.get() + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
            ^ u64::from(n).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 30)).wrapping_mul(0x94D0_49BB_1331_11EB);
        100.0 + ((z ^ (z >> 31)) % 10_000) as f64
    }
    for seed in 0..64 {
        SEED.set(seed);
        let available = 1 + u32::try_from(seed % 16).unwrap();
        let mut one =
            vm("a", 16, Some(rate), |n| f64::from(n.min(1 + u32::try_from(SEED.get() % 16).unwrap())));
        let quota_us = Some(u64::from(available) * 100_000);
        one.state.quota = Some(Quota { quota_us, period_us: 100_000, burst_us: 0, source: String::new() });
        let mut toy = Toy::new(16, vec![one]);
        let mut controller = with(Sizer::Corefit);
        // At first, and after the search among the numbers that were left out where things were clear.
        for (search, rest) in [(60, 40), (120, 120)] {
            toy.rule(&mut controller, search);
            let end = u32::try_from(toy.online(0)).unwrap();
            assert!(rate(end) >= 0.98 * rate(available), "seed {seed}: {end}, not {available}");
            assert_eq!(toy.rule(&mut controller, rest), 0, "seed {seed}: it rests while nothing changes");
        }
    }
}

#[test]
fn vscale_passes_on_what_others_leave_and_vcpu_bal_does_not() {
    fn little(_: u32) -> f64 {
        0.4
    }
    let sizes = |size: Sizer, second: ByCount| {
        let mut toy =
            Toy::new(8, vec![vm("a", 8, None, |n| f64::from(n).min(7.6)), vm("b", 8, None, second)]);
        toy.rule(&mut Controller::new(Policy { size, dwell_ms: 500, ..Policy::default() }), 30);
        [toy.online(0), toy.online(1)]
    };
    assert_eq!(sizes(Sizer::VcpuBal, little), [4, 4]);
    assert_eq!(sizes(Sizer::Vscale, little), [8, 1], "of b's four it uses half a one");
    assert_eq!(sizes(Sizer::Vscale, f64::from), [4, 4], "nothing is left over");
}

#[test]
fn without_a_signal_vcpu_bals_count_is_taken_unless_utilisation_rises() {
    let shapes: [(ByCount, usize); 3] = [
        (|n| f64::from(n.min(4)), 4),
        (|n| 0.5 * f64::from(n.min(7)), 7),
        (|n| if n <= 4 { 4.0 } else { (4.0 - 0.8 * f64::from(n - 4)).max(2.0) }, 4),
    ];
    for (used, wanted) in shapes {
        let one = of_four(vm("a", 16, None, used));
        let mut toy = Toy::new(16, vec![one]);
        toy.rule(&mut with(Sizer::Corefit), 30);
        assert_eq!(toy.online(0), wanted);
    }
}

/// A quota of each vCPU (libvirt's `<quota>`) goes with it: half as many could use half of what the VM may have.
#[test]
fn where_each_vcpu_has_a_quota_of_its_own_so_many_stay_that_they_can_use_what_there_is() {
    let half = Quota { quota_us: Some(50_000), period_us: 100_000, burst_us: 0, source: String::new() };
    let one = |name: &str| {
        let mut vm = vm(name, 4, None, |n| 0.5 * f64::from(n));
        vm.state.vcpus.iter_mut().for_each(|vcpu| vcpu.quota = Some(half.clone()));
        vm
    };
    for size in [Sizer::None, Sizer::VcpuBal, Sizer::Vscale, Sizer::PcpuEst, Sizer::Corefit] {
        for arbitrate in [Arbiter::None, Arbiter::Fcfs, Arbiter::MaxMin] {
            let mut toy = Toy::new(4, vec![one("a"), one("b")]);
            toy.rule(&mut Controller::new(Policy { size, arbitrate, ..Policy::default() }), 60);
            assert_eq!([0, 1].map(|vm| toy.online(vm)), [4, 4], "{size:?} {arbitrate:?}");
            // Of one pCPU each as many as can use that.
            let mut toy = Toy::new(2, vec![one("a"), one("b")]);
            toy.rule(&mut Controller::new(Policy { size, arbitrate, ..Policy::default() }), 60);
            // Toys use what they want: for who goes by utilisation alone that is more than there is.
            let all = arbitrate == Arbiter::None && matches!(size, Sizer::None | Sizer::PcpuEst);
            assert_eq!(toy.online(0), if all { 4 } else { 2 }, "{size:?} {arbitrate:?}, short");
        }
    }
}

/// What others leave is used by more vCPUs than VCPU-Bal's number; that it is there is no matter of weight.
#[test]
fn without_a_signal_what_small_neighbours_leave_is_climbed_to() {
    let web = |name: &str| vm(name, 2, None, |_| 0.4);
    let mut toy = Toy::new(8, vec![vm("a", 8, None, |n| 0.7 * f64::from(n)), web("b"), web("c")]);
    toy.rule(&mut with(Sizer::Corefit), 60);
    assert!(toy.online(0) >= 7, "{} of 8, VCPU-Bal's 3", toy.online(0));
}

/// The one vCPU that is left of a VM that does nothing is no reason for more, though AISD wants it.
#[test]
fn an_idle_vm_stays_small_under_vscale_with_each_forecast() {
    for demand in [Forecast::Ewma, Forecast::Pid, Forecast::Ftds, Forecast::Aisd] {
        let mut toy = Toy::new(4, vec![vm("a", 4, None, |_| 0.1), vm("b", 4, None, |_| 0.4)]);
        let mut controller =
            Controller::new(Policy { size: Sizer::Vscale, demand, dwell_ms: 500, ..Policy::default() });
        toy.rule(&mut controller, 60);
        assert_eq!((toy.online(0), toy.online(1)), (1, 1), "{demand:?}");
        assert_eq!(toy.rule(&mut controller, 60), 0, "{demand:?}");
    }
}

/// Each further vCPU of `a` takes from what it is entitled to: its weight is spread, and only its first one is on a pCPU where
/// that is worth something (docs/model.md, the worked example of what the VMs of a host get). A pCPU of two, 0.5 with one vCPU; with four
/// 0.2, and hardly anything beside forty others.
fn spread_thin(rate: Option<ByCount>, used: ByCount) -> usize {
    let on = |cpu: u32| Some(CpuSet::from_iter([CpuId(cpu)]));
    let mut a = vm("a", 4, rate, used);
    a.state.vcpus.iter_mut().zip(0..).for_each(|(vcpu, number)| vcpu.affinity = on(u32::from(number > 0)));
    let others = (0..41).map(|number| {
        let mut one = vm(&format!("b{number}"), 1, None, |_| 1.0);
        one.state.vcpus[0].affinity = on(u32::from(number > 0));
        one
    });
    let mut toy = Toy::new(2, std::iter::once(a).chain(others).collect());
    let rule = Rule { name: "a".into(), size: Some(Sizer::Corefit), ..Rule::default() };
    let policy = Policy { size: Sizer::None, vm: vec![rule], ..Policy::default() };
    toy.rule(&mut Controller::new(policy), 60);
    toy.online(0)
}

/// It would do more with four vCPUs, but only by what weights do not give it.
#[test]
fn vcpus_that_lower_what_a_vm_is_entitled_to_are_not_added() {
    let rate: ByCount = |n| match n {
        4 => 300.0,
        1 => 150.0,
        _ => 100.0,
    };
    assert_eq!(spread_thin(Some(rate), |_| 0.2), 1, "with a signal");
    assert_eq!(spread_thin(None, |n| 0.1 + 0.025 * f64::from(n)), 1, "by utilisation");
}

/// Under a cap a VM uses more than it, and less later: it does as much work of its own part.
#[test]
fn what_a_cap_lets_pass_for_a_while_is_no_other_phase() {
    thread_local!(static PASSES: std::cell::Cell<f64> = const { std::cell::Cell::new(1.0) });
    fn rate(n: u32) -> f64 {
        PASSES.get().max(1.0) * if n == 16 { 1000.0 } else { 800.0 }
    }
    for (rate, count) in [(Some(rate as ByCount), 16), (None, 4)] {
        // What it uses when it is sized, and later.
        for passes in [[1.3, 0.97, 1.3], [0.97, 1.3, 0.97]] {
            PASSES.set(passes[0]);
            let mut toy = Toy::new(16, vec![of_four(vm("a", 16, rate, |_| 4.0 * PASSES.get()))]);
            let mut controller = with(Sizer::Corefit);
            toy.rule(&mut controller, 20);
            for now in passes {
                PASSES.set(now);
                assert_eq!(toy.online(0), count);
                assert_eq!(toy.rule(&mut controller, 30), 0, "{passes:?}, {now}: nothing is looked for");
            }
        }
    }
}

/// Where its own cap is all that limits it, VCPU-Bal's count or all are the best there are, or close to it: others wait for a search that
/// nobody waits for.
#[test]
fn with_a_cap_what_is_between_is_tried_later() {
    fn rate(n: u32) -> f64 {
        [800.0, 850.0, 1000.0][[4, 16, 8].iter().position(|&best| best == n).unwrap_or(0)]
    }
    let mut toy = Toy::new(16, vec![of_four(vm("a", 16, Some(rate), four))]);
    let mut controller = with(Sizer::Corefit);
    toy.rule(&mut controller, 60);
    assert_eq!(toy.online(0), 16);
    toy.rule(&mut controller, 240);
    assert_eq!(toy.online(0), 8);
}

/// Other VMs are not seen for a moment: what is tried then is worth what it is.
#[test]
fn looks_that_miss_somebody_say_as_much_in_a_race_as_others() {
    fn rate(n: u32) -> f64 {
        if n == 2 { 1000.0 } else { 100.0 }
    }
    for at in 0..30 {
        let mut toy = Toy::new(4, vec![vm("a", 8, Some(rate), |_| 2.0), vm("b", 8, None, |_| 4.0)]);
        toy.vms[1].state.progress = None;
        let mut controller = Controller::new(Policy {
            size: Sizer::Corefit,
            vm: vec![Rule { name: "b".into(), exclude: Some(true), ..Rule::default() }],
            ..Policy::default()
        });
        for look in 0..60 {
            toy.missed = (look >= at && look < at + 3).then_some(1);
            let step = controller.step(&toy.observe()).unwrap();
            toy.obey(&mut controller, &step);
            toy.pass(step.next);
        }
        toy.missed = None;
        toy.rule(&mut controller, 30);
        assert_eq!(toy.online(0), 2, "missed from look {at} on");
    }
}

/// Others come while it races: VCPU-Bal's number of before was found, and it is that of now that it has then.
#[test]
fn vcpu_bals_number_is_followed_when_it_changes_in_a_race() {
    fn rate(n: u32) -> f64 {
        if n == 8 || n == 4 { 1000.0 } else { 100.0 }
    }
    for seconds in 2..7 {
        let vms = ["a", "b"].map(|name| vm(name, 16, Some(rate), |_| 4.0));
        let mut toy = Toy::new(16, vms.into());
        let mut controller = with(Sizer::Corefit);
        toy.rule(&mut controller, seconds);
        // They want nothing, so that as much is available.
        toy.vms.extend(["c", "d"].map(|name| vm(name, 16, None, |_| 0.0)));
        toy.rule(&mut controller, 25);
        assert_eq!(toy.online(0), 4, "they come after {seconds} s");
    }
}

/// Where few units are counted, to look whether another number is better takes minutes; that can wait, and is done later.
#[test]
fn who_has_no_number_yet_does_not_wait_for_a_race_about_a_better_one() {
    thread_local!(static BUSY: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });
    fn slow(n: u32) -> f64 {
        if n == 2 { 10.0 } else { 9.8 }
    }
    fn fast(n: u32) -> f64 {
        f64::from(u8::from(BUSY.get())) * if n == 4 { 1000.0 } else { 100.0 }
    }
    let used: ByCount = |_| if BUSY.get() { 2.0 } else { 0.0 };
    let mut toy = Toy::new(4, vec![vm("a", 8, Some(slow), |_| 2.0), vm("b", 8, Some(fast), used)]);
    let mut controller = with(Sizer::Corefit);
    toy.rule(&mut controller, 60);
    let at = toy.online(0);
    let mut seconds = 0;
    while toy.online(0) == at {
        toy.rule(&mut controller, 1);
        seconds += 1;
        assert!(seconds < 700, "it never looks for a better one");
    }
    toy.rule(&mut controller, 10);
    BUSY.set(true);
    toy.rule(&mut controller, 30);
    assert_eq!(toy.online(1), 4);
    let actions = toy.rule(&mut controller, 700);
    assert!(actions > 0, "it is not looked for later");
}

/// A VM that pays for what it used with all vCPUs (Xen's credit under a cap) does nothing at any number then: a search tells nothing.
#[test]
fn where_nothing_is_done_at_any_number_it_is_vcpu_bals() {
    use std::cell::Cell;
    thread_local!(static LOOKS: Cell<u32> = const { Cell::new(0) });
    fn pays(_: u32) -> f64 {
        LOOKS.set(LOOKS.get() + 1);
        if LOOKS.get() < 3 { 100.0 } else { 0.0 }
    }
    fn used(n: u32) -> f64 {
        if n > 4 { 3.5 } else { 0.6 }
    }
    let mut toy = Toy::new(16, vec![of_four(vm("a", 16, Some(pays), used))]);
    let mut controller = with(Sizer::Corefit);
    toy.rule(&mut controller, 120);
    assert_eq!(toy.online(0), 4);
}

#[test]
fn other_times_count_for_vms_that_are_known_too() {
    let mut toy = Toy::new(16, vec![of_four(vm("a", 16, None, four))]);
    let policy = |probe_ms| Policy { size: Sizer::PcpuEst, probe_ms, ..Policy::default() };
    let mut controller = Controller::new(policy(20));
    let mut next = |controller: &mut Controller| {
        let step = controller.step(&toy.observe()).unwrap();
        toy.obey(controller, &step);
        toy.pass(step.next);
        step.next
    };
    let ms = Duration::from_millis;
    assert_eq!([0, 1, 2].map(|_| next(&mut controller))[1..], [ms(100), ms(100)], "five probes");
    controller.reconfigure(policy(100));
    assert_eq!(next(&mut controller), ms(500));

    // How long a forecast falls behind is a dwell, too.
    thread_local!(static USED: std::cell::Cell<f64> = const { std::cell::Cell::new(4.0) });
    let mut toy = Toy::new(4, vec![vm("a", 4, None, |_| USED.get())]);
    let policy =
        |dwell_ms| Policy { size: Sizer::Vscale, demand: Forecast::Ftds, dwell_ms, ..Policy::default() };
    let mut controller = Controller::new(policy(600_000));
    toy.rule(&mut controller, 10);
    USED.set(0.1);
    toy.rule(&mut controller, 10);
    controller.reconfigure(policy(1000));
    toy.rule(&mut controller, 20);
    assert_eq!(toy.online(0), 1);
}

/// The guest said that it did so, and did not.
fn in_vain(controller: &mut Controller, actions: &[Action]) {
    let outcome =
        |action: &Action| Outcome { action: action.clone(), result: Ok(action.from.clone().unwrap()) };
    controller.told(&actions.iter().map(outcome).collect::<Vec<_>>());
}

/// Nobody else takes part in the race, or one whose guest follows.
#[test]
fn who_does_not_follow_in_a_race_leaves_it_and_is_asked_again() {
    // Not so much that things were clear, and no others tried.
    fn three(n: u32) -> f64 {
        1000.0 / (1.0 + 0.06 * f64::from(n.abs_diff(3)))
    }
    for others in [0, 1] {
        let all = (0..=others).map(|number| vm(["a", "b"][number], 16, Some(three), four));
        let mut toy = Toy::new([4, 8][others], all.collect());
        let mut controller = with(Sizer::Corefit);
        let deaf = toy.vms[0].state.id.clone();
        let mut asked = 0;
        while toy.at < 20_000_000_000 {
            let mut step = controller.step(&toy.observe()).unwrap();
            let (not, heard): (Vec<Action>, _) =
                step.plan.actions.into_iter().partition(|action| action.vm == deaf);
            asked += not.len();
            step.plan.actions = heard;
            toy.obey(&mut controller, &step);
            in_vain(&mut controller, &not);
            toy.pass(step.next);
        }
        assert!((2..10).contains(&asked), "{asked}");
        assert!(others == 0 || toy.online(1) == 3, "{}", toy.online(1));
        toy.rule(&mut controller, 60);
        assert!(toy.online(0) <= 4, "beside {others}: {}", toy.online(0));
    }
}

#[test]
fn pcpu_est_waits_for_a_guest_that_does_not_follow_but_not_for_ever() {
    let mut toy = Toy::new(4, vec![vm("a", 8, None, four)]);
    let policy = Policy { size: Sizer::PcpuEst, ..Policy::default() };
    let mut controller = Controller::new(policy);
    let mut tried = [0; 2];
    for half in &mut tried {
        let end = toy.at + 30_000_000_000;
        while toy.at < end {
            let step = controller.step(&toy.observe()).unwrap();
            let tries = |why: &Why| matches!(why, Why::Trying { .. });
            *half += step.plan.actions.iter().filter(|action| tries(&action.why)).count();
            in_vain(&mut controller, &step.plan.actions);
            toy.pass(step.next);
        }
    }
    assert!(tried[0] > 1 && tried[1] == 0, "in each half: {tried:?}");
    // The guest follows after all, by when it is asked again.
    toy.rule(&mut controller, 60);
    assert_eq!(toy.online(0), 4);
    let found = controller.step(&toy.observe()).unwrap().next;
    assert_eq!(found, Policy::default().interval(), "it was searched to its end");

    // Who follows to that number and no further is left there.
    let mut toy = Toy::new(4, vec![vm("a", 8, None, four)]);
    let all = toy.vms[0].state.online();
    let mut controller = Controller::new(Policy { size: Sizer::PcpuEst, ..Policy::default() });
    let mut tried = [0; 2];
    for half in &mut tried {
        let end = toy.at + 30_000_000_000;
        while toy.at < end {
            // It had all eight before corefit.
            let sizes = (all.clone(), toy.vms[0].state.online());
            controller.sized_before(BTreeMap::from([(toy.vms[0].state.id.clone(), sizes)]));
            let mut step = controller.step(&toy.observe()).unwrap();
            *half += step.plan.actions.len();
            let (heard, not): (Vec<Action>, _) =
                step.plan.actions.into_iter().partition(|action| action.to.to_string().contains("0-3"));
            step.plan.actions = heard;
            toy.obey(&mut controller, &step);
            in_vain(&mut controller, &not);
            toy.pass(step.next);
        }
    }
    assert!(toy.online(0) == 4 && tried[0] > 1 && tried[1] == 0, "in each half: {tried:?}");
}

/// Of a VM without agent only those go that were plugged in since its start.
#[test]
fn vcpus_that_cannot_go_are_no_part_of_what_is_decided_and_no_guarantee() {
    let online = |policy: Policy, cold: &str, halves: bool| {
        let mut toy = Toy::new(8, vec![vm("a", 4, None, |_| 1.0), vm("b", 4, None, f64::from)]);
        toy.vms[0].state.cold = cold.parse().unwrap();
        for (number, vcpu) in toy.vms[0].state.vcpus.iter_mut().enumerate().filter(|_| halves) {
            vcpu.affinity = if number < 2 { "0-3" } else { "4-7" }.parse().ok();
        }
        toy.vms[0].state.weight = Some(Weight(1.0));
        let mut controller = Controller::new(policy);
        toy.rule(&mut controller, 30);
        (toy.vms[0].state.online().to_string(), toy.rule(&mut controller, 60))
    };
    let max = |max| vec![Rule { name: "a".into(), max: Some(max), ..Rule::default() }];
    let bal = Policy { size: Sizer::VcpuBal, ..Policy::default() };
    let none = Policy { size: Sizer::None, vm: max(1), ..Policy::default() };
    for policy in [bal, none] {
        for halves in [false, true] {
            assert_eq!(online(policy.clone(), "", halves), ("0".into(), 0));
            assert_eq!(online(policy.clone(), "0-1", halves), ("0-1".into(), 0));
            assert_eq!(online(policy.clone(), "0,3", halves), ("0,3".into(), 0));
        }
    }
    // What it is granted goes by its rule.
    let policy = Policy { arbitrate: Arbiter::Priority, size: Sizer::None, ..Policy::default() };
    let mut toy = Toy::new(4, vec![vm("a", 4, None, f64::from), vm("b", 4, None, f64::from)]);
    toy.vms[0].state.cold = CpuSet::first(3);
    let first = Rule { name: "b".into(), priority: Some(1), ..Rule::default() };
    let mut controller = Controller::new(Policy { vm: vec![first], ..policy.clone() });
    toy.rule(&mut controller, 30);
    let given = controller.step(&toy.observe()).unwrap().given;
    let given = given.iter().map(|given| (given.vm.0.as_str(), given.pcpus)).collect::<Vec<_>>();
    assert_eq!((given, toy.online(0)), (vec![("a", 1), ("b", 3)], 3));
    // So it does where it may have fewer than those that stay.
    let max = Rule { name: "a".into(), max: Some(1), ..Rule::default() };
    let policy = Policy { vm: vec![max], ..policy };
    let mut toy = Toy::new(4, vec![vm("a", 4, None, f64::from)]);
    toy.vms[0].state.cold = CpuSet::first(3);
    let mut controller = Controller::new(policy);
    toy.rule(&mut controller, 30);
    assert_eq!(controller.step(&toy.observe()).unwrap().given[0].pcpus, 1);
}

#[test]
fn who_has_all_that_it_may_have_tries_no_other() {
    let mut toy = Toy::new(8, vec![vm("a", 4, None, four)]);
    let policy = Policy { size: Sizer::PcpuEst, ..Policy::default() };
    let mut controller = Controller::new(policy.clone());
    for _ in 0..20 {
        let step = controller.step(&toy.observe()).unwrap();
        assert!(step.plan.actions.is_empty());
        toy.pass(step.next);
    }
    assert_eq!(controller.step(&toy.observe()).unwrap().next, policy.interval());

    // One vCPU, and somebody counts.
    let mut toy = Toy::new(8, vec![vm("a", 1, Some(|_| 100.0), |_| 1.0)]);
    let mut controller = with(Sizer::Corefit);
    for look in 0..20 {
        let step = controller.step(&toy.observe()).unwrap();
        assert!(look == 0 || step.next == policy.interval(), "look {look}: {:?}", step.next);
        toy.pass(step.next);
    }
}
