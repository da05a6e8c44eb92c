//! What VMs are granted, and how their sizes follow, on hosts made of numbers.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Duration;

use corefit_core::decide::{Action, Arbiter, Controller, Forecast, Outcome, Policy, Rule, Sizer, Weigher};
use corefit_core::machine::{GuestVcpu, GuestView, Lever, MachineError, VmState};
use corefit_core::{Quota, Unread, What};

use crate::support::{ByCount, Toy, four, vm, with};

thread_local!(static BUSY: Cell<bool> = const { Cell::new(true) });

/// As busy as it can be, or not at all.
fn now_and_then(n: u32) -> f64 {
    if BUSY.get() { f64::from(n) } else { 0.0 }
}

fn important(name: &str) -> Rule {
    Rule { name: name.into(), priority: Some(1), ..Rule::default() }
}

/// Two VMs of 8 vCPUs on 8 pCPUs, of which `a` is more important.
fn two(a: ByCount, b: ByCount, policy: Policy) -> (Toy, Controller) {
    let toy = Toy::new(8, vec![vm("a", 8, None, a), vm("b", 8, None, b)]);
    (toy, Controller::new(Policy { arbitrate: Arbiter::Priority, vm: vec![important("a")], ..policy }))
}

/// Guests tell what runs in them: teams that have as many threads as there are vCPUs, of those that are busy.
fn tells(toy: &mut Toy) {
    let at = toy.at;
    for vm in &mut toy.vms {
        let count = u32::try_from(vm.state.online().len()).unwrap();
        let busy = (vm.used)(count) > 0.0;
        let vcpu = |id| GuestVcpu {
            id,
            online: true,
            busy_ns: Some(if busy { at } else { 0 }),
            idle_ns: Some(if busy { 0 } else { at }),
            ..GuestVcpu::default()
        };
        let vcpus = (0..8).map(vcpu).filter(|vcpu| vcpu.id < count).collect();
        let runnable = Some(if busy { count } else { 0 });
        vm.state.guest = Some(GuestView { vcpus, runnable, work: None });
    }
}

fn rule_telling(toy: &mut Toy, controller: &mut Controller, seconds: u32) -> Vec<String> {
    let mut notes = Vec::new();
    for _ in 0..seconds {
        tells(toy);
        let step = controller.step(&toy.observe()).unwrap();
        toy.obey(controller, &step);
        toy.pass(Duration::from_secs(1));
        notes.extend(step.notes);
    }
    notes
}

#[test]
fn who_was_cut_gets_more_when_there_is_more_though_its_threads_followed() {
    for arbitrate in [Arbiter::Priority, Arbiter::Fcfs, Arbiter::MaxMin] {
        BUSY.set(true);
        let (mut toy, controller) =
            two(now_and_then, f64::from, Policy { size: Sizer::None, ..Policy::default() });
        let policy = Policy { arbitrate, dwell_ms: 0, lever_ms: 0, ..controller.policy().clone() };
        let mut controller = Controller::new(policy);
        rule_telling(&mut toy, &mut controller, 30);
        let cut = toy.online(1);
        assert!(cut < 8 && toy.online(0) + cut <= 8, "{arbitrate:?}: {cut}");
        BUSY.set(false);
        rule_telling(&mut toy, &mut controller, 120);
        assert!(toy.online(1) >= 7, "{arbitrate:?}: {} of 8, with all to itself", toy.online(1));
    }
}

/// A VM that runs keeps what nobody asks for; that is given back at once, too.
#[test]
fn what_was_kept_as_nobody_asked_for_it_is_given_back_at_once_to_a_more_important_one() {
    BUSY.set(false);
    let mut toy = Toy::new(8, vec![vm("a", 3, None, now_and_then), vm("b", 8, None, |n| 0.6 * f64::from(n))]);
    let policy = Policy { size: Sizer::None, dwell_ms: 20_000, ..Policy::default() };
    let mut controller =
        Controller::new(Policy { arbitrate: Arbiter::Priority, vm: vec![important("a")], ..policy });
    rule_telling(&mut toy, &mut controller, 60);
    let before = toy.online(1);
    assert!(before >= 7, "{before}");
    BUSY.set(true);
    rule_telling(&mut toy, &mut controller, 6);
    assert!(toy.online(0) == 3 && toy.online(1) <= 5, "{} and {}", toy.online(0), toy.online(1));
}

/// A VM that was left alone has been short of nothing.
#[test]
fn who_is_managed_again_has_not_starved_meanwhile() {
    BUSY.set(true);
    let (mut toy, controller) = two(f64::from, f64::from, Policy { size: Sizer::None, ..Policy::default() });
    let policy = controller.policy().clone();
    let mut controller = Controller::new(policy.clone());
    let starves = |notes: Vec<String>| notes.iter().any(|note| note.starts_with("b: has wanted"));
    assert!(starves(rule_telling(&mut toy, &mut controller, 60)));
    let alone = Rule { name: "b".into(), exclude: Some(true), ..Rule::default() };
    controller.reconfigure(Policy { vm: vec![important("a"), alone], ..policy.clone() });
    rule_telling(&mut toy, &mut controller, 60);
    controller.reconfigure(policy);
    assert!(!starves(rule_telling(&mut toy, &mut controller, 20)));
    assert!(starves(rule_telling(&mut toy, &mut controller, 40)));
}

#[test]
fn who_starves_again_is_said_to_again() {
    BUSY.set(true);
    let (mut toy, controller) =
        two(now_and_then, f64::from, Policy { size: Sizer::None, ..Policy::default() });
    let seven = Rule { name: "b".into(), max: Some(7), ..Rule::default() };
    let vm = vec![important("a"), seven];
    let mut controller = Controller::new(Policy { dwell_ms: 0, vm, ..controller.policy().clone() });
    let mut said = BTreeSet::new();
    let mut starves = |toy: &mut Toy, seconds| {
        let notes = rule_telling(toy, &mut controller, seconds);
        notes
            .into_iter()
            .filter(|note| note.starts_with("b: has wanted") && said.insert(note.clone()))
            .count()
    };
    assert_eq!(starves(&mut toy, 90), 1);
    for _ in 0..2 {
        BUSY.set(false);
        assert_eq!(starves(&mut toy, 120), 0);
        BUSY.set(true);
        assert_eq!(starves(&mut toy, 90), 1);
    }
    let says = |notes: Vec<String>| notes.iter().any(|note| note.starts_with("b: has wanted"));
    assert!(says(rule_telling(&mut toy, &mut controller, 1)), "while it does");
    BUSY.set(false);
    rule_telling(&mut toy, &mut controller, 120);
    assert!(!says(rule_telling(&mut toy, &mut controller, 1)));
}

#[test]
fn sizes_are_those_that_were_granted_not_those_by_weight() {
    BUSY.set(true);
    for size in [Sizer::VcpuBal, Sizer::Corefit, Sizer::PcpuEst] {
        let (mut toy, mut controller) = two(f64::from, f64::from, Policy { size, ..Policy::default() });
        toy.rule(&mut controller, 60);
        assert_eq!((toy.online(0), toy.online(1)), (7, 1), "{size:?}: by weight 4 and 4");
    }
}

/// What is tried is bounded by what is granted, at each moment.
#[test]
fn who_searches_gives_back_what_is_taken_from_it() {
    fn rate(n: u32) -> f64 {
        100.0 * f64::from(n)
    }
    for rate in [Some(rate as ByCount), None] {
        BUSY.set(false);
        let mut toy = Toy::new(8, vec![vm("a", 8, None, now_and_then), vm("b", 8, rate, f64::from)]);
        let important = Rule { size: Some(Sizer::None), ..important("a") };
        let policy = Policy {
            arbitrate: Arbiter::Priority,
            size: Sizer::Corefit,
            vm: vec![important],
            ..Policy::default()
        };
        let mut controller = Controller::new(policy);
        for seconds in [1, 2] {
            toy.rule(&mut controller, seconds);
        }
        BUSY.set(true);
        toy.rule(&mut controller, 20);
        for _ in 0..40 {
            toy.rule(&mut controller, 1);
            assert_eq!(toy.online(1), 1, "it is guaranteed one");
        }
        assert!(toy.online(0) >= 7, "{}", toy.online(0));
    }
}

#[test]
fn what_is_left_alone_keeps_its_part() {
    let each = |exclude| {
        let three = ["a", "b", "x"].map(|name| vm(name, 8, None, f64::from)).into();
        let x = Rule { name: "x".into(), exclude: Some(exclude), ..Rule::default() };
        let policy =
            Policy { arbitrate: Arbiter::MaxMin, size: Sizer::None, vm: vec![x], ..Policy::default() };
        let mut toy = Toy::new(8, three);
        toy.rule(&mut Controller::new(policy), 60);
        [0, 1, 2].map(|vm| toy.online(vm))
    };
    assert_eq!(each(false), [3, 3, 2]);
    let [a, b, x] = each(true);
    assert!(x == 8 && a + b < 8, "{a} and {b}, as if there were no x");
}

#[test]
fn who_is_not_preempted_keeps_its_vcpus_for_a_dwell() {
    let ends = |arbitrate, dwell_ms| {
        let (mut toy, controller) =
            two(f64::from, f64::from, Policy { size: Sizer::None, ..Policy::default() });
        let policy = Policy { arbitrate, dwell_ms, ..controller.policy().clone() };
        toy.rule(&mut Controller::new(policy), 30);
        [toy.online(0), toy.online(1)]
    };
    assert_eq!(ends(Arbiter::MaxMin, 600_000), [8, 8]);
    assert_eq!(ends(Arbiter::MaxMin, 5_000), [4, 4]);
}

#[test]
fn a_preemption_ends_with_the_arbiter() {
    BUSY.set(false);
    let policy = Policy { size: Sizer::VcpuBal, dwell_ms: 600_000, ..Policy::default() };
    let (mut toy, mut controller) = two(now_and_then, f64::from, policy.clone());
    toy.rule(&mut controller, 30);
    BUSY.set(true);
    let preempted = (0..20).any(|_| {
        toy.pass(Duration::from_secs(1));
        let step = controller.step(&toy.observe()).unwrap();
        step.plan.actions.iter().any(|action| action.name == "b")
    });
    assert!(preempted, "without the dwell");
    controller.reconfigure(policy);
    toy.pass(Duration::from_secs(1));
    toy.rule(&mut controller, 60);
    assert_eq!(toy.online(1), 8, "of which it would have 4 after the dwell");
}

/// A steady load that cannot be seen into: no vCPU comes and goes for ever.
#[test]
fn a_steady_load_has_a_steady_size() {
    fn three(n: u32) -> f64 {
        f64::from(n.min(3))
    }
    let mut toy = Toy::new(12, vec![vm("a", 8, None, three), vm("b", 12, None, f64::from)]);
    let policy = Policy { arbitrate: Arbiter::Fcfs, size: Sizer::None, ..Policy::default() };
    let mut controller = Controller::new(policy);
    toy.rule(&mut controller, 60);
    assert!((3..=4).contains(&toy.online(0)), "{}", toy.online(0));
    assert_eq!(toy.rule(&mut controller, 600), 0);
}

#[test]
fn who_may_not_search_has_vcpu_bals_number() {
    fn rate(n: u32) -> f64 {
        100.0 / f64::from(n)
    }
    let mut toy = Toy::new(8, vec![vm("a", 8, Some(rate), four), vm("b", 8, Some(rate), four)]);
    let policy = Policy { searches: 0, ..with(Sizer::Corefit).policy().clone() };
    toy.rule(&mut Controller::new(policy), 60);
    assert_eq!((toy.online(0), toy.online(1)), (4, 4));
}

/// Some hardly run: what they are guaranteed is there for them when they want it, and for others until then.
#[test]
fn who_hardly_runs_takes_nothing_from_who_does() {
    for arbitrate in [Arbiter::Fcfs, Arbiter::Priority, Arbiter::MaxMin] {
        let idle = |name| vm(name, 4, None, |_| 0.01);
        let mut toy =
            Toy::new(8, vec![vm("busy", 8, None, f64::from), idle("a"), idle("b"), idle("c"), idle("d")]);
        let mut policy = Policy { size: Sizer::None, arbitrate, ..Policy::default() };
        policy.vm.push(Rule { name: "a".into(), min: Some(2), ..Rule::default() });
        let mut controller = Controller::new(policy);
        toy.rule(&mut controller, 20);
        assert_eq!((toy.online(0), toy.online(1), toy.online(2)), (8, 2, 1), "{arbitrate:?}");
        toy.vms[1].used = f64::from;
        toy.rule(&mut controller, 2);
        let (busy, a) = (toy.online(0), toy.online(1));
        assert!(
            a >= 2 && busy <= 6 && busy + a <= 8,
            "{arbitrate:?}: {busy} and {a}, at once, without the dwell"
        );
    }
}

/// Nobody is granted what he cannot use: beyond his cap, or of pCPUs that are not his.
#[test]
fn what_one_cannot_use_is_granted_to_others() {
    for arbitrate in [Arbiter::Fcfs, Arbiter::Priority, Arbiter::MaxMin] {
        let granted = |spoil: fn(&mut VmState)| {
            let mut toy = Toy::new(8, vec![vm("tight", 8, None, f64::from), vm("free", 8, None, f64::from)]);
            spoil(&mut toy.vms[0].state);
            let policy = Policy { size: Sizer::None, arbitrate, ..Policy::default() };
            let mut controller = Controller::new(policy);
            toy.rule(&mut controller, 20);
            (toy.online(0), toy.online(1))
        };
        let pinned = |vm: &mut VmState| {
            vm.vcpus.iter_mut().for_each(|vcpu| vcpu.affinity = Some("0-1".parse().unwrap()));
        };
        assert_eq!(granted(pinned), (2, 6), "{arbitrate:?}");
        let capped = |vm: &mut VmState| {
            let (quota_us, source) = (Some(150_000), String::new());
            vm.quota = Some(Quota { quota_us, period_us: 100_000, burst_us: 0, source });
        };
        assert_eq!(granted(capped), (2, 6), "{arbitrate:?}");
    }
}

/// One that is left alone uses now a little more than half a pCPU, now a little less: the last to come loses one, after the dwell.
#[test]
fn what_others_use_takes_pcpus_after_the_dwell() {
    let odd = |_| if BUSY.get() { 0.6 } else { 0.4 };
    let busy = |name| vm(name, 8, None, f64::from);
    let mut toy = Toy::new(8, vec![busy("a"), busy("b"), vm("odd", 1, None, odd)]);
    let left_alone = Rule { name: "odd".into(), exclude: Some(true), ..Rule::default() };
    let policy =
        Policy { size: Sizer::None, arbitrate: Arbiter::Fcfs, vm: vec![left_alone], ..Policy::default() };
    let mut controller = Controller::new(policy);
    toy.rule(&mut controller, 20);
    let mut actions = 0;
    for second in 0..20 {
        BUSY.set(second % 2 == 0);
        actions += toy.rule(&mut controller, 1);
    }
    assert!(actions <= 6, "{actions} changes in 20 s, not one a second");
    let online = |toy: &Toy| toy.online(0) + toy.online(1);
    BUSY.set(false);
    toy.rule(&mut controller, 10);
    assert_eq!(online(&toy), 8);
    BUSY.set(true);
    toy.rule(&mut controller, 2);
    assert_eq!(online(&toy), 8, "not yet");
    toy.rule(&mut controller, 8);
    assert_eq!(online(&toy), 7);
}

/// A guest that has nothing to run, or threads for so many vCPUs as it has, as far as these are of use to it.
fn follows(toy: &mut Toy, controller: &mut Controller, seconds: u32) -> (usize, Vec<String>) {
    let (mut actions, mut notes) = (0, Vec::new());
    for _ in 0..seconds {
        for vm in &mut toy.vms {
            let used = (vm.used)(u32::try_from(vm.state.online().len()).unwrap());
            let runnable = Some(Duration::from_secs_f64(used).as_secs().try_into().unwrap());
            vm.state.guest = Some(GuestView { vcpus: Vec::new(), runnable, work: None });
        }
        let step = controller.step(&toy.observe()).unwrap();
        actions += step.plan.actions.len();
        toy.obey(controller, &step);
        toy.pass(Duration::from_secs(1));
        notes.extend(step.notes);
    }
    (actions, notes)
}

const FORECASTS: [Forecast; 4] = [Forecast::Ewma, Forecast::Pid, Forecast::Ftds, Forecast::Aisd];

#[test]
fn who_idled_has_all_that_nobody_else_wants_at_once_when_it_is_busy_though_its_threads_follow_what_it_has() {
    for (arbitrate, demand) in
        [Arbiter::Fcfs, Arbiter::Priority, Arbiter::MaxMin].map(|a| FORECASTS.map(|d| (a, d))).concat()
    {
        let mut toy = Toy::new(8, vec![vm("only", 8, None, |_| 0.0)]);
        let policy = Policy { size: Sizer::None, arbitrate, demand, ..Policy::default() };
        let mut controller = Controller::new(policy.clone());
        follows(&mut toy, &mut controller, 60);
        assert_eq!(toy.online(0), 1, "{arbitrate:?} {demand:?}");
        // Forecasts go by other times from now on, not what it wanted before.
        controller.reconfigure(Policy { dwell_ms: 2 * policy.dwell_ms, ..policy });
        toy.vms[0].used = f64::from;
        follows(&mut toy, &mut controller, 3);
        assert_eq!(toy.online(0), 8, "{arbitrate:?} {demand:?}");
    }
}

/// Serial parts of its programs hide what its parallel ones use.
#[test]
fn who_runs_keeps_the_vcpus_that_it_has_until_somebody_else_wants_their_pcpus() {
    fn half(n: u32) -> f64 {
        0.6 * f64::from(n)
    }
    for sees in [true, false] {
        // AISD takes what an idle one had at first one by one, and others wait for it.
        for demand in FORECASTS.into_iter().filter(|demand| *demand != Forecast::Aisd) {
            let mut toy = Toy::new(8, vec![vm("a", 8, None, half), vm("b", 8, None, |_| 0.0)]);
            let policy =
                Policy { size: Sizer::None, arbitrate: Arbiter::MaxMin, demand, ..Policy::default() };
            let mut controller = Controller::new(policy);
            let mut pass = |toy: &mut Toy| {
                if sees {
                    follows(toy, &mut controller, 60);
                } else {
                    toy.rule(&mut controller, 60);
                }
                (toy.online(0), toy.online(1))
            };
            assert_eq!(pass(&mut toy), (8, 1), "{demand:?}, seen into: {sees}");
            toy.vms[1].used = f64::from;
            let (a, b) = pass(&mut toy);
            assert!(a <= 5 && a + b <= 8, "{a} and {b}: {demand:?}, seen into: {sees}");
        }
    }
}

/// What is left is there to show that more is wanted: one vCPU that idles.
#[test]
fn one_thread_has_a_second_vcpu_while_nobody_wants_the_pcpu_and_then_one() {
    let mut toy = Toy::new(8, vec![vm("a", 8, None, |_| 1.0), vm("b", 8, None, |_| 0.0)]);
    toy.vms[0].state.vcpus[1..].iter_mut().for_each(|vcpu| vcpu.online = false);
    let policy = Policy { size: Sizer::None, arbitrate: Arbiter::MaxMin, ..Policy::default() };
    let mut controller = Controller::new(policy);
    follows(&mut toy, &mut controller, 60);
    assert_eq!((toy.online(0), follows(&mut toy, &mut controller, 600).0), (2, 0));
    toy.vms[0].used = f64::from;
    follows(&mut toy, &mut controller, 10);
    assert_eq!(toy.online(0), 8);
}

/// What others are entitled to under Xen's credit scheduler depends on how many vCPUs are online; what is left for who asks does not.
#[test]
fn what_was_taken_from_a_vm_is_no_reason_to_take_more() {
    use corefit_core::entitle::WeightRule;
    let policy = |weigh| {
        let a = Rule { name: "a".into(), exclude: Some(true), ..Rule::default() };
        Policy {
            size: Sizer::None,
            arbitrate: Arbiter::Priority,
            weigh,
            vm: vec![a, important("b")],
            ..Policy::default()
        }
    };
    for rule in [WeightRule::XenCredit, WeightRule::Linux] {
        for weigh in [Weigher::None, Weigher::Grants] {
            let mut toy = Toy::new(8, vec![vm("a", 8, None, f64::from), vm("b", 8, None, f64::from)]);
            let mut controller = Controller::new(policy(weigh));
            let mut changes = 0;
            for _ in 0..120 {
                let mut seen = toy.observe();
                seen.rule = rule;
                let step = controller.step(&seen).unwrap();
                changes += step.plan.actions.iter().filter(|a| a.lever == Lever::Online).count();
                toy.obey(&mut controller, &step);
                toy.pass(Duration::from_secs(1));
            }
            assert_eq!((toy.online(1), changes), (4, 1), "{rule:?} {weigh:?}");
        }
    }
}

/// As while a VM is new and was not asked for its settings yet.
#[test]
fn what_an_excluded_vm_uses_is_nobody_elses_though_a_look_does_not_see_all() {
    let mut toy = Toy::new(8, vec![vm("a", 8, None, four), vm("b", 8, None, f64::from)]);
    let a = Rule { name: "a".into(), exclude: Some(true), ..Rule::default() };
    let policy = Policy { size: Sizer::None, arbitrate: Arbiter::MaxMin, vm: vec![a], ..Policy::default() };
    let mut controller = Controller::new(policy);
    toy.rule(&mut controller, 20);
    assert_eq!(toy.online(1), 4);
    let mut seen = toy.observe();
    let (what, path, why) = (What::Siblings, "VM \"c\"".into(), "not asked for yet".into());
    seen.unread.push(Unread { what, path, why });
    let step = controller.step(&seen).unwrap();
    assert_eq!(step.given.iter().map(|given| given.pcpus).collect::<Vec<_>>(), [4]);
    assert!(step.plan.actions.is_empty(), "{:?}", step.plan.actions);
}

/// It is left alone for 10 s, and keeps its 8 vCPUs.
#[test]
fn what_was_granted_to_one_that_does_not_answer_is_nobody_elses_for_a_minute() {
    let mut toy = Toy::new(8, vec![vm("a", 8, None, f64::from), vm("b", 8, None, f64::from)]);
    let policy = Policy { size: Sizer::None, arbitrate: Arbiter::Fcfs, ..Policy::default() };
    let mut controller = Controller::new(policy);
    let mut granted = Vec::new();
    for second in 0..100 {
        let mut step = controller.step(&toy.observe()).unwrap();
        granted.push(step.given.iter().find(|given| given.vm.0 == "b").map(|given| given.pcpus));
        let asked: Vec<Action> = step.plan.actions.extract_if(.., |action| action.name == "a").collect();
        toy.obey(&mut controller, &step);
        let gone = |action| Outcome { action, result: Err(MachineError::Gone("no answer".into())) };
        controller.told(&asked.into_iter().map(gone).collect::<Vec<_>>());
        toy.pass(Duration::from_secs(1));
        assert_eq!((second < 10 || step.kept.len() == 1, toy.online(0)), (true, 8));
    }
    assert!(granted[1..60].iter().all(|granted| *granted == Some(1)), "{granted:?}");
    assert_eq!(granted[99], Some(4), "but for what it uses, within what it is entitled to");
    toy.rule(&mut controller, 20);
    assert_eq!((toy.online(0), toy.online(1)), (4, 4));
}

/// vCPUs that run wait for their pCPUs as long as those are not theirs, which is counted when they get on: by turns the last wait comes
/// with the next look.
fn waits(toy: &mut Toy) {
    let swing = if (toy.at / 1_000_000_000).is_multiple_of(2) { 0.03 } else { -0.03 };
    for vm in &mut toy.vms {
        let online = u32::try_from(vm.state.online().len()).unwrap();
        let waits = 1.0 - (vm.used)(online) / f64::from(online) + swing;
        for vcpu in vm.state.vcpus.iter_mut().filter(|vcpu| vcpu.online) {
            *vcpu.counters.wait_ns.as_mut().unwrap() +=
                u64::try_from(Duration::from_secs_f64(waits).as_nanos()).unwrap();
        }
    }
}

/// Six VMs on two pCPUs, of which one is important, and each gets a third of one.
fn six(vcpus: usize, weigh: Weigher, min: Option<u32>) -> (Toy, Vec<String>, Vec<(String, bool)>) {
    let third = |name: &str| vm(name, vcpus, None, |_| 1.0 / 3.0);
    let mut toy = Toy::new(2, ["high", "a", "b", "c", "d", "e"].map(third).into());
    let vm = vec![Rule { min, ..important("high") }];
    let policy = Policy { size: Sizer::None, arbitrate: Arbiter::Priority, weigh, vm, ..Policy::default() };
    let mut controller = Controller::new(policy);
    let (mut notes, mut given) = (Vec::new(), Vec::new());
    for _ in 0..60 {
        let step = controller.step(&toy.observe()).unwrap();
        toy.obey(&mut controller, &step);
        toy.pass(Duration::from_secs(1));
        waits(&mut toy);
        notes.extend(step.notes);
        given = step.starves.into_iter().map(|(vm, starves)| (vm.0, starves)).collect();
    }
    (toy, notes, given)
}

#[test]
fn who_uses_less_than_it_was_granted_is_said_to_starve_with_what_it_uses_and_what_helps() {
    for (vcpus, min, wants) in [(2, Some(2), "2.00"), (2, None, "2.00"), (1, None, "1.00")] {
        let (_, notes, given) = six(vcpus, Weigher::None, min);
        let granted = min.unwrap_or(1);
        let said = format!(
            "high: has wanted {wants} pCPUs for half a minute and more, was granted {granted}.00 and used 0.33 meanwhile, on average: vCPUs that stay"
        );
        let found = notes.iter().find(|note| note.starts_with("high: has wanted"));
        assert!(
            found.is_some_and(|note| note.starts_with(&said) && note.contains("weigh = \"grants\"")),
            "{notes:#?}"
        );
        assert!(given.contains(&("high".into(), true)), "{given:?}");
    }
}

#[test]
fn weights_give_the_important_one_more_also_where_each_has_one_vcpu() {
    let (toy, notes, _) = six(1, Weigher::Grants, None);
    let weights = toy.weights();
    assert!(weights[1..].iter().all(|weight| weights[0] > 3.0 * weight), "{weights:?}");
    assert!(notes.iter().all(|note| !note.contains("weigh =")), "{notes:#?}");
}

#[test]
fn who_is_at_its_own_cap_does_not_starve() {
    let mut capped = vm("capped", 4, None, |_| 1.5);
    capped.state.quota =
        Some(Quota { quota_us: Some(150_000), period_us: 100_000, burst_us: 0, source: String::new() });
    let mut toy = Toy::new(8, vec![capped]);
    let policy = Policy { size: Sizer::None, arbitrate: Arbiter::Fcfs, ..Policy::default() };
    let mut controller = Controller::new(policy);
    for _ in 0..60 {
        let step = controller.step(&toy.observe()).unwrap();
        assert!(step.starves.values().all(|starves| !starves), "{:?}", step.notes);
        toy.obey(&mut controller, &step);
        toy.pass(Duration::from_secs(1));
        waits(&mut toy);
    }
}

/// One thread of a VM without agent on three vCPUs, half of the time on its pCPU.
#[test]
fn who_waits_is_not_taken_for_one_that_idles_on_its_other_vcpus() {
    let mut toy = Toy::new(8, vec![vm("a", 3, None, |_| 0.47)]);
    let policy = Policy { size: Sizer::None, arbitrate: Arbiter::Priority, ..Policy::default() };
    let mut controller = Controller::new(policy);
    let mut wants = Vec::new();
    for _ in 0..20 {
        let step = controller.step(&toy.observe()).unwrap();
        wants = step.given.iter().map(|given| given.wants).collect();
        toy.pass(Duration::from_secs(1));
        let vcpu = &mut toy.vms[0].state.vcpus;
        // All that ran and waited was the first one.
        let ran: u64 = vcpu[1..].iter_mut().map(|v| v.counters.run_ns.replace(0).unwrap()).sum();
        *vcpu[0].counters.run_ns.as_mut().unwrap() += ran;
        *vcpu[0].counters.wait_ns.as_mut().unwrap() += 530_000_000;
    }
    assert_eq!(wants, [2], "one, and one more as its run queue is not seen");
}

/// A batch job of more priority comes and goes: what is left is another number each time, also before a search may begin.
#[test]
fn vcpu_bals_number_follows_what_is_granted() {
    BUSY.set(false);
    let policy = Policy { size: Sizer::Corefit, ..Policy::default() };
    let (mut toy, mut controller) = two(now_and_then, f64::from, policy);
    tells(&mut toy);
    toy.rule(&mut controller, 60);
    for turn in 0..20 {
        BUSY.set(true);
        toy.rule(&mut controller, 15);
        let cut = toy.online(1);
        BUSY.set(false);
        toy.rule(&mut controller, 15);
        assert!(cut < 5 && toy.online(1) >= 7, "turn {turn}: {cut} and {}", toy.online(1));
    }
}
