//! Settings that are changed while a host runs, by the words that a manager of real hosts uses.

use std::time::Duration;

use crate::support::{app, host, limit, vcpu, vm};
use corefit_core::machine::{Act, Lever, LeverKind, Limit, Machine, MachineError, Value, VmId};
use corefit_core::{CpuSet, Cpus, Weight};
use corefit_sim::{CfsSpec, Credit2Spec, CreditSpec, Hardware, Policy, Sim, SimMachine, Spec};

const SECOND: Duration = Duration::from_secs(1);

fn schedulers() -> [Policy; 3] {
    [
        Policy::Cfs(CfsSpec::default()),
        Policy::Credit(CreditSpec::default()),
        Policy::Credit2(Credit2Spec::default()),
    ]
}

/// Two VMs of two busy loops each on two pCPUs.
fn machine(policy: Policy) -> SimMachine {
    let vms = ["a", "b"].map(|name| vm(name, vec![vcpu("0-1"), vcpu("0-1")], vec![app("hog", 2)]));
    SimMachine::new(Sim::new(&host(2, policy, vms.to_vec())).unwrap(), "test", true)
}

fn id(number: u32) -> VmId {
    VmId(format!("sim-{number}"))
}

/// pCPUs that each VM uses from now on.
fn uses(machine: &mut SimMachine) -> [f64; 2] {
    let used = |machine: &mut SimMachine| {
        let now = machine.observe().unwrap();
        [0, 1].map(|vm: usize| {
            now.vms[vm].vcpus.iter().map(|v| v.counters.run_ns.unwrap() as f64 / 1e9).sum::<f64>()
        })
    };
    machine.pass(SECOND).unwrap();
    let before = used(machine);
    machine.pass(20 * SECOND).unwrap();
    let after = used(machine);
    machine.sim().check().unwrap();
    [0, 1].map(|vm| (after[vm] - before[vm]) / 20.0)
}

fn near(used: [f64; 2], wanted: [f64; 2], what: &str) {
    let off = used.iter().zip(wanted).map(|(u, w)| (u - w).abs()).fold(0.0, f64::max);
    assert!(off < 0.12, "{what}: {used:?}, not {wanted:?}");
}

#[test]
fn a_weight_counts_from_now_on() {
    for policy in schedulers() {
        let mut machine = machine(policy);
        near(uses(&mut machine), [1.0, 1.0], "before");
        machine.set(&id(1), Lever::Weight, &Value::Weight(Weight(3072.0))).unwrap();
        assert_eq!(machine.current(&id(1), Lever::Weight).unwrap(), Value::Weight(Weight(3072.0)));
        near(uses(&mut machine), [0.5, 1.5], "three times the weight");
    }
}

#[test]
fn a_quota_comes_changes_and_goes() {
    let quota = |quota_us| Value::Limit(Limit { quota_us, period_us: 100_000, burst_us: 0 });
    for policy in schedulers() {
        let mut machine = machine(policy);
        let before = machine.current(&id(0), Lever::Quota).unwrap();
        assert_eq!(before, quota(None));
        for (us, used) in [(Some(50_000), [0.5, 1.5]), (Some(20_000), [0.2, 1.8]), (None, [1.0, 1.0])] {
            machine.set(&id(0), Lever::Quota, &quota(us)).unwrap();
            assert_eq!(machine.current(&id(0), Lever::Quota).unwrap(), quota(us));
            near(uses(&mut machine), used, &format!("{us:?}"));
        }
    }
    let mut capped = vm("a", vec![vcpu("0-1"), vcpu("0-1")], vec![app("hog", 2)]);
    capped.cap = limit(30, 100);
    let other = vm("b", vec![vcpu("0-1"), vcpu("0-1")], vec![app("hog", 2)]);
    let spec = host(2, Policy::Cfs(CfsSpec::default()), vec![capped, other]);
    let mut machine = SimMachine::new(Sim::new(&spec).unwrap(), "test", true);
    machine.set(&id(0), Lever::Quota, &quota(None)).unwrap();
    near(uses(&mut machine), [1.0, 1.0], "one that it began with");
}

#[test]
fn a_quota_of_one_vcpu_comes_changes_and_goes() {
    let quota = |quota_us, burst_us| Value::Limit(Limit { quota_us, period_us: 100_000, burst_us });
    let mut machine = machine(Policy::Cfs(CfsSpec::default()));
    let each = |machine: &SimMachine| {
        let seen = machine.sim().account_of(0, 0).unwrap();
        seen.utilised as f64 / 1e9
    };
    for (us, burst, used) in [(Some(30_000), 10_000, 0.3), (Some(10_000), 0, 0.1), (None, 0, 0.5)] {
        machine.set(&id(0), Lever::VcpuQuota(0), &quota(us, burst)).unwrap();
        assert_eq!(machine.current(&id(0), Lever::VcpuQuota(0)).unwrap(), quota(us, burst));
        machine.pass(SECOND).unwrap();
        let before = each(&machine);
        machine.pass(20 * SECOND).unwrap();
        let found = (each(&machine) - before) / 20.0;
        assert!((found - used).abs() < 0.06, "{us:?}: {found}, not {used}");
    }
    let shown = machine.observe().unwrap().vms[0].vcpus[0].clone();
    assert_eq!((shown.quota, shown.throttled), (None, None));
    let too_much = machine.set(&id(0), Lever::VcpuQuota(0), &quota(Some(5_000), 6_000));
    assert!(matches!(too_much, Err(MachineError::Malformed(_))), "{too_much:?}");
    let nobody = machine.set(&id(0), Lever::VcpuQuota(2), &quota(None, 0));
    assert!(matches!(nobody, Err(MachineError::Malformed(_))), "{nobody:?}");
    let mut xen = self::machine(Policy::Credit(CreditSpec::default()));
    let nothing = xen.current(&id(0), Lever::VcpuQuota(0));
    assert!(matches!(nothing, Err(MachineError::Unsupported(_))), "{nothing:?}");
    let saved = xen.set(&id(0), Lever::Quota, &quota(Some(50_000), 10_000));
    assert!(matches!(saved, Err(MachineError::Malformed(_))), "{saved:?}");
}

#[test]
fn a_vcpu_leaves_pcpus_that_it_may_not_use_any_more() {
    for policy in schedulers() {
        let mut machine = machine(policy);
        machine.pass(SECOND).unwrap();
        for (vm, vcpu, pcpus) in [(0, 0, "0"), (0, 1, "0"), (1, 0, "1"), (1, 1, "1")] {
            let pcpus: CpuSet = pcpus.parse().unwrap();
            machine.set(&id(vm), Lever::Affinity(vcpu), &Value::Pcpus(pcpus.clone())).unwrap();
            assert_eq!(machine.current(&id(vm), Lever::Affinity(vcpu)).unwrap(), Value::Pcpus(pcpus));
        }
        for _ in 0..50 {
            machine.pass(Duration::from_millis(37)).unwrap();
            for (number, vm) in machine.observe().unwrap().vms.iter().enumerate() {
                assert!(vm.vcpus.iter().all(|vcpu| vcpu.on.unwrap().0 as usize == number), "{vm:?}");
            }
        }
        near(uses(&mut machine), [1.0, 1.0], "a pCPU each");
    }
}

#[test]
fn weights_count_among_those_who_were_sent_to_the_same_socket() {
    let hardware = Hardware { sockets: 2, ..Hardware::flat(1) };
    // Credit hands out what all pCPUs have, of which these two cannot use half, so that neither is ever out of it.
    let [cfs, _, credit2] = schedulers();
    for policy in [cfs, credit2] {
        let mut vms = ["a", "b"].map(|name| vm(name, vec![vcpu("0-1")], vec![app("hog", 1)]));
        vms[0].weight = 2048;
        let spec = Spec { hardware, ..host(2, policy, vms.to_vec()) };
        let mut machine = SimMachine::new(Sim::new(&spec).unwrap(), "test", true);
        near(uses(&mut machine), [1.0, 1.0], "a socket each");
        for number in [0, 1] {
            machine.set(&id(number), Lever::Affinity(0), &Value::Pcpus("1".parse().unwrap())).unwrap();
        }
        near(uses(&mut machine), [2.0 / 3.0, 1.0 / 3.0], &format!("both in the second: {policy:?}"));
    }
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let mut machine = machine(Policy::Credit(CreditSpec::default()));
    let before = machine.observe().unwrap();
    let set: CpuSet = "1".parse().unwrap();
    let refusals = [
        (id(7), Lever::Weight, Value::Weight(Weight(1.0))),
        (id(0), Lever::Weight, Value::Weight(Weight(0.0))),
        (id(0), Lever::Weight, Value::Pcpus(set.clone())),
        (id(0), Lever::Online, Value::Vcpus(set)),
        (id(0), Lever::Online, Value::Vcpus(CpuSet::default())),
        (id(0), Lever::Online, Value::Vcpus(CpuSet::first(3))),
        (id(0), Lever::Affinity(0), Value::Pcpus("9".parse().unwrap())),
        (id(0), Lever::Affinity(2), Value::Pcpus(CpuSet::first(1))),
        (id(0), Lever::Quota, Value::Limit(Limit { quota_us: Some(1), period_us: 1, burst_us: 0 })),
    ];
    for (vm, lever, value) in refusals {
        let error = machine.set(&vm, lever, &value).unwrap_err();
        assert!(matches!(error, MachineError::Malformed(_) | MachineError::Gone(_)), "{lever}: {error:?}");
    }
    let told = machine.set(&id(0), Lever::Told, &Value::Told(Some(Cpus(1.0)))).unwrap_err();
    assert!(matches!(told, MachineError::Unsupported(_)), "hogs have no teams: {told:?}");
    assert_eq!(before, machine.observe().unwrap());
    assert!(
        before.vms[0].fixed(LeverKind::Told).is_some() && before.vms[0].fixed(LeverKind::Online).is_none()
    );
}

#[test]
fn a_vm_tells_progress_only_where_it_is_said_to() {
    let mut vms = [("a", ["0", "1"]), ("b", ["2", "3"])].map(|(name, on)| {
        let program = "forever { parallel { compute 2ms split barrier } mark }";
        vm(name, on.map(vcpu).to_vec(), vec![app(program, 2)])
    });
    vms[0].progress = true;
    let spec = host(4, Policy::Cfs(CfsSpec::default()), vms.to_vec());
    let mut machine = SimMachine::new(Sim::new(&spec).unwrap(), "test", true);
    machine.pass(SECOND).unwrap();
    let now = machine.observe().unwrap();
    // A round of 1 ms is a barrier, a join and a mark.
    let told = now.vms[0].progress.unwrap();
    assert!((2990.0..3001.0).contains(&told), "{told}");
    assert_eq!(now.vms[1].progress, None);
}

#[test]
fn what_a_guest_is_told_its_teams_follow() {
    let one =
        vm("a", vec![vcpu("0-1"), vcpu("0-1")], vec![app("forever { parallel { compute 1ms split } }", 2)]);
    let spec = host(2, Policy::Cfs(CfsSpec::default()), vec![one]);
    let mut machine = SimMachine::new(Sim::new(&spec).unwrap(), "test", true);
    assert_eq!(machine.current(&id(0), Lever::Told).unwrap(), Value::Told(None));
    machine.set(&id(0), Lever::Told, &Value::Told(Some(Cpus(1.2)))).unwrap();
    assert_eq!(machine.current(&id(0), Lever::Told).unwrap(), Value::Told(Some(Cpus(1.2))));
    machine.pass(SECOND).unwrap();
    let before = machine.sim().account_of(0, 1).unwrap().utilised;
    machine.pass(SECOND).unwrap();
    assert_eq!(machine.sim().account_of(0, 1).unwrap().utilised, before, "a team of one");
    machine.set(&id(0), Lever::Told, &Value::Told(None)).unwrap();
    machine.pass(SECOND).unwrap();
    assert!(machine.sim().account_of(0, 1).unwrap().utilised > before, "as if it had never been told");
}

#[test]
fn a_guest_has_no_more_in_its_teams_than_its_own_number_whatever_it_is_told() {
    let mut one =
        vm("a", vec![vcpu("0-1"), vcpu("0-1")], vec![app("forever { parallel { compute 1ms split } }", 2)]);
    one.apps[0].team = 1;
    let spec = host(2, Policy::Cfs(CfsSpec::default()), vec![one]);
    let mut machine = SimMachine::new(Sim::new(&spec).unwrap(), "test", true);
    for told in [Some(Cpus(2.0)), Some(Cpus(1.0)), None] {
        machine.set(&id(0), Lever::Told, &Value::Told(told)).unwrap();
        machine.pass(SECOND).unwrap();
        assert_eq!(machine.sim().account_of(0, 1).unwrap().utilised, 0, "{told:?}");
    }
}
