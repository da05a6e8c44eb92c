//! Timeslices shaped by the controllers of a real daemon, on simulated hosts: what is lost is saved, and nobody gets
//! more in the long run than before.

use std::time::Duration;

use crate::support::{app, applied, host, limit, pinned, vcpu, vm};
use corefit_core::decide::{Action, Controller, Outcome, Policy, Rule, Shaper, Sizer, Why};
use corefit_core::machine::{Act, Lever, Limit, Machine, MachineError, Snapshot, Value};
use corefit_core::{Unread, What};
use corefit_sim::{CfsSpec, Policy as Hypervisor, Sim, SimMachine};

/// Controllers that look once a second for so long; what they did, and marks per second in the last third.
fn managed(machine: &mut SimMachine, policy: Policy, secs: u64) -> (Vec<Action>, f64) {
    let mut controller = Controller::new(Policy { size: Sizer::None, ..policy });
    let mut done = Vec::new();
    let mut marks = 0;
    for second in 0..secs {
        if second == secs - secs / 3 {
            marks = machine.sim().truth().vms[0].apps[0].marks;
        }
        let seen = machine.observe().unwrap();
        done.extend(look(&mut controller, machine, &seen));
    }
    machine.sim().check().unwrap();
    let more = machine.sim().truth().vms[0].apps[0].marks - marks;
    (done, more as f64 / (secs / 3) as f64)
}

/// A look, and a second in which its actions are in force.
fn look(controller: &mut Controller, machine: &mut SimMachine, seen: &Snapshot) -> Vec<Action> {
    let step = controller.step(seen).unwrap();
    controller.told(&applied(machine, &step.plan.actions));
    machine.pass(Duration::from_secs(1)).unwrap();
    step.plan.actions
}

fn shape(shape: Shaper) -> Policy {
    Policy { shape, ..Policy::default() }
}

fn tolerates(policy: Policy, latency_ms: u64) -> Policy {
    let rule = Rule { name: "*".into(), latency_ms: Some(latency_ms), ..Rule::default() };
    Policy { vm: vec![rule], ..policy }
}

/// One vCPU that works for 40 ms and sleeps for 60, with half a pCPU in periods of 20 ms: 40 % would do, but a quota in
/// each period lets it work at half its speed.
fn fluctuating() -> SimMachine {
    let mut one = vm("a", vec![vcpu("0")], vec![app("forever { compute 40ms mark sleep 60ms }", 1)]);
    one.vcpus[0].limit = limit(10, 20);
    SimMachine::new(Sim::new(&host(1, Hypervisor::Cfs(CfsSpec::default()), vec![one])).unwrap(), "t", false)
}

/// P1 Figure 6: 2 sequential and 4 parallel units, 4 vCPUs of which each gets 6 of 12 ms.
fn fork_join() -> SimMachine {
    let program = "forever { single { compute 2ms } barrier compute 4ms split barrier single { mark } }";
    let mut app = pinned(program, 4);
    app.spin_ns = 0;
    let mut one = vm("a", (0..4).map(|v| vcpu(&v.to_string())).collect(), vec![app]);
    one.vcpus.iter_mut().for_each(|vcpu| vcpu.limit = limit(6, 12));
    SimMachine::new(Sim::new(&host(4, Hypervisor::Cfs(CfsSpec::default()), vec![one])).unwrap(), "t", false)
}

fn limits(machine: &mut SimMachine) -> Vec<Limit> {
    let seen = machine.observe().unwrap().vms.remove(0);
    let of = |number: u32| match machine.current(&seen.id, Lever::VcpuQuota(number)).unwrap() {
        Value::Limit(limit) => limit,
        other => panic!("{other}"),
    };
    (0..u32::try_from(seen.vcpus.len()).unwrap()).map(of).collect()
}

/// libvirtd is slow after a restart: a look lacks the VM.
#[test]
fn what_was_shaped_is_undone_though_a_look_missed_the_vm() {
    let mut machine = fluctuating();
    let before = limits(&mut machine);
    let mut controller = Controller::new(Policy { size: Sizer::None, ..shape(Shaper::Burst) });
    for _ in 0..20 {
        let seen = machine.observe().unwrap();
        look(&mut controller, &mut machine, &seen);
    }
    assert_ne!(limits(&mut machine), before);
    let mut missed = machine.observe().unwrap();
    missed.vms.clear();
    let path = "VM \"a\"".into();
    missed.unread.push(Unread { what: What::Siblings, path, why: "not asked for yet".into() });
    look(&mut controller, &mut machine, &missed);
    controller.reconfigure(Policy { size: Sizer::None, ..shape(Shaper::None) });
    for _ in 0..3 {
        let seen = machine.observe().unwrap();
        look(&mut controller, &mut machine, &seen);
    }
    assert_eq!(limits(&mut machine), before);
}

#[test]
fn what_fluctuates_within_two_periods_is_saved_by_a_burst() {
    let (_, plain) = managed(&mut fluctuating(), shape(Shaper::None), 30);
    let mut machine = fluctuating();
    let (done, saved) = managed(&mut machine, shape(Shaper::Burst), 30);
    assert!((plain - 1.0 / 0.12).abs() < 0.2 && (saved - 10.0).abs() < 0.2, "{plain} {saved}");
    assert!(done.iter().all(|action| matches!(action.why, Why::Saved { .. })), "{done:?}");
    let limits = limits(&mut machine);
    assert_eq!((limits[0].quota_us, limits[0].period_us), (Some(10_000), 20_000));
    assert!(limits[0].burst_us >= 10_000 - 1000, "{limits:?}");
}

#[test]
fn longer_periods_are_for_those_that_tolerate_them_and_no_longer_than_that() {
    // As `fluctuating`, at random and ten times as fast: 100 turns a second if it never had to stop.
    let machine = || {
        let program = "forever { compute 4ms exp mark sleep 6ms exp }";
        let mut one = vm("a", vec![vcpu("0")], vec![app(program, 1)]);
        one.vcpus[0].limit = limit(2, 4);
        let spec = host(1, Hypervisor::Cfs(CfsSpec::default()), vec![one]);
        SimMachine::new(Sim::new(&spec).unwrap(), "t", false)
    };
    let policy = |latency_ms| tolerates(Policy { dwell_ms: 10_000, ..shape(Shaper::LongPeriod) }, latency_ms);
    let (done, plain) = managed(&mut machine(), shape(Shaper::LongPeriod), 40);
    assert!(done.is_empty(), "nobody said that it may stand still: {done:?}");
    let mut rates = vec![plain];
    for (latency_ms, longest_us) in [(4, 8_000), (8, 16_000), (1000, 1_000_000)] {
        let mut machine = machine();
        let (done, rate) = managed(&mut machine, policy(latency_ms), 300);
        rates.push(rate);
        let limit = limits(&mut machine)[0];
        assert!(limit.period_us <= longest_us, "{limit:?}: {done:?}");
        assert!(limit.period_us >= longest_us.min(32_000), "{limit:?}: {done:?}");
        assert_eq!(limit.quota_us.unwrap() * 2, limit.period_us, "the same part of a pCPU");
    }
    assert!(rates.is_sorted() && rates[3] > 1.15 * rates[0], "{rates:?}");
}

#[test]
fn figure_6_gets_proportional_timeslices_and_runs_twice_as_fast() {
    let (_, even) = managed(&mut fork_join(), shape(Shaper::None), 30);
    for shaper in [Shaper::Proportional, Shaper::Corefit] {
        let mut machine = fork_join();
        let (done, proportional) = managed(&mut machine, shape(shaper), 60);
        assert!(proportional > 1.9 * even, "{proportional}, {even} before: {done:?}");
        let quotas: Vec<u64> = limits(&mut machine).iter().map(|limit| limit.quota_us.unwrap()).collect();
        assert!(quotas.iter().sum::<u64>() <= 24_000 && quotas[0] > 10_000, "{quotas:?}");
    }
}

#[test]
fn what_brings_nothing_is_undone_and_not_tried_again_at_once() {
    // 160 ms of work after a second of sleep: with quotas of 2 of 100 ms, a burst of 2 ms is nothing.
    let mut one = vm("a", vec![vcpu("0")], vec![app("forever { compute 160ms mark sleep 20s }", 1)]);
    one.vcpus[0].limit = limit(2, 100);
    one.progress = true;
    let spec = host(1, Hypervisor::Cfs(CfsSpec::default()), vec![one]);
    let mut machine = SimMachine::new(Sim::new(&spec).unwrap(), "t", false);
    let (done, _) = managed(&mut machine, shape(Shaper::Burst), 100);
    let tried = done.iter().filter(|action| matches!(action.why, Why::Saved { .. })).count();
    let undone = done.iter().filter(|action| action.why == Why::NoGain).count();
    assert!((1..=3).contains(&tried) && undone + 1 >= tried, "{done:?}");
}

#[test]
fn a_rule_that_asks_for_nothing_any_more_gives_everything_back() {
    let mut machine = fork_join();
    let mut controller = Controller::new(Policy { size: Sizer::None, ..shape(Shaper::Proportional) });
    for second in 0..20 {
        if second == 12 {
            assert_ne!(limits(&mut machine)[0].quota_us, Some(6000));
            controller.reconfigure(Policy { size: Sizer::None, ..shape(Shaper::None) });
        }
        let step = controller.step(&machine.observe().unwrap()).unwrap();
        for action in &step.plan.actions {
            machine.set(&action.vm, action.lever, &action.to).unwrap();
            let sum: u64 = limits(&mut machine).iter().map(|limit| limit.quota_us.unwrap()).sum();
            assert!(sum <= 24_000, "never more than before, not even between two writes");
        }
        let told = |action: &Action| Outcome { action: action.clone(), result: Ok(action.to.clone()) };
        controller.told(&step.plan.actions.iter().map(told).collect::<Vec<_>>());
        machine.pass(Duration::from_secs(1)).unwrap();
    }
    assert!(limits(&mut machine).iter().all(|limit| limit.quota_us == Some(6000)));
}

#[test]
fn a_vm_of_which_a_part_cannot_be_set_is_as_before_and_left_alone() {
    let mut machine = fork_join();
    let mut controller = Controller::new(Policy { size: Sizer::None, ..shape(Shaper::Proportional) });
    let mut last = 0;
    for second in 0..120 {
        let step = controller.step(&machine.observe().unwrap()).unwrap();
        let apply = |action: &Action| {
            let refused = action.lever == Lever::VcpuQuota(2);
            if !refused {
                machine.set(&action.vm, action.lever, &action.to).unwrap();
            }
            let result = if refused { Err(MachineError::Denied("no".into())) } else { Ok(action.to.clone()) };
            Outcome { action: action.clone(), result }
        };
        let outcomes: Vec<Outcome> = step.plan.actions.iter().map(apply).collect();
        last = if outcomes.is_empty() { last } else { second };
        controller.told(&outcomes);
        machine.pass(Duration::from_secs(1)).unwrap();
    }
    assert!(last > 0 && last < 10, "it was tried once, not again and again: {last}");
    assert!(limits(&mut machine).iter().all(|limit| limit.quota_us == Some(6000)));
}

#[test]
fn what_somebody_else_set_is_where_shaping_begins_anew() {
    let mut machine = fork_join();
    let (_, fast) = managed(&mut machine, shape(Shaper::Proportional), 20);
    let id = machine.observe().unwrap().vms[0].id.clone();
    let theirs = Limit { quota_us: Some(3000), period_us: 12_000, burst_us: 0 };
    for vcpu in 0..4 {
        machine.set(&id, Lever::VcpuQuota(vcpu), &Value::Limit(theirs)).unwrap();
    }
    let (_, slow) = managed(&mut machine, shape(Shaper::Proportional), 20);
    let quotas: u64 = limits(&mut machine).iter().map(|limit| limit.quota_us.unwrap()).sum();
    assert!(quotas <= 12_000 && slow < 0.6 * fast, "{quotas} {slow} {fast}");
}

/// One VM beside three that are always busy, a vCPU each, on one pCPU with EEVDF.
fn beside_busy(program: &str, tick_ns: u64) -> SimMachine {
    let mut vms = vec![vm("a", vec![vcpu("0")], vec![app(program, 1)])];
    for name in ["b", "c", "d"] {
        vms.push(vm(name, vec![vcpu("0")], vec![app("forever { compute 1s }", 1)]));
    }
    let fair = CfsSpec { deadlines: true, tick_ns, ..CfsSpec::default() };
    SimMachine::new(Sim::new(&host(1, Hypervisor::Cfs(fair), vms)).unwrap(), "t", false)
}

fn slice_of_a(machine: &mut SimMachine) -> Option<u64> {
    let id = machine.observe().unwrap().vms.remove(0).id;
    match machine.current(&id, Lever::Slice(0)).unwrap() {
        Value::Slice(slice) => slice,
        other => panic!("{other}"),
    }
}

#[test]
fn who_sleeps_often_and_uses_less_than_its_part_runs_sooner_with_a_shorter_slice() {
    let program = "forever { compute 200us mark sleep 2ms }";
    let (_, plain) = managed(&mut beside_busy(program, 0), shape(Shaper::None), 30);
    let mut machine = beside_busy(program, 0);
    let (done, sooner) = managed(&mut machine, shape(Shaper::Slice), 30);
    assert!(sooner > 1.3 * plain && sooner < 1.0 / 0.0022, "{plain} {sooner}");
    assert_eq!(slice_of_a(&mut machine), Some(100_037), "half of 200 us");
    assert!(
        matches!(&done[..], [Action { why: Why::Sooner { run_us, .. }, .. }] if (180.0..=210.0).contains(run_us)),
        "{done:?}"
    );
}

#[test]
fn who_never_blocks_or_uses_its_part_anyway_keeps_the_schedulers_slice_and_no_share_changes() {
    let mut machine = beside_busy("forever { compute 1ms mark }", 0);
    let (done, plain) = managed(&mut machine, shape(Shaper::Slice), 30);
    assert!(done.is_empty(), "{done:?}");
    let id = machine.observe().unwrap().vms.remove(0).id;
    machine.set(&id, Lever::Slice(0), &Value::Slice(Some(100_037))).unwrap();
    let (_, short) = managed(&mut machine, shape(Shaper::None), 30);
    assert!((plain - 250.0).abs() < 5.0 && (short - plain).abs() < 0.03 * plain, "{plain} {short}");
}

#[test]
fn slices_are_for_eevdf_alone() {
    let mut fair = beside_busy("forever { compute 1ms }", 0);
    let id = fair.observe().unwrap().vms.remove(0).id;
    for wrong in [99_037, 100_000_037] {
        let refused = fair.set(&id, Lever::Slice(0), &Value::Slice(Some(wrong)));
        assert!(matches!(refused, Err(MachineError::Malformed(_))), "{refused:?}");
    }
    assert!(matches!(fair.set(&id, Lever::Slice(1), &Value::Slice(None)), Err(MachineError::Malformed(_))));
    let mut older = fluctuating();
    let seen = older.observe().unwrap().vms.remove(0);
    assert!(seen.fixed(corefit_core::machine::LeverKind::Slice).is_some() && seen.slices.is_none());
    assert!(matches!(older.current(&seen.id, Lever::Slice(0)), Err(MachineError::Unsupported(_))));
}
