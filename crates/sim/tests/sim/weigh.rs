//! Priorities where numbers of vCPUs alone cannot give them, on simulated hosts: weights follow what was granted.

use std::time::Duration;

use crate::support::{app, applied, host, pinned, vcpu, vm};
use corefit_core::decide::{Action, Arbiter, Controller, Policy, Rule, Sizer, Weigher, Why};
use corefit_core::machine::{Act, Lever, Machine, Value, VmId};
use corefit_core::{CpuSet, Weight};
use corefit_sim::{CfsSpec, Credit2Spec, CreditSpec, Policy as Hypervisor, Sim, SimMachine};

/// Seconds for which the important one sleeps, works, and sleeps again.
const TURNS: [u64; 3] = [20, 100, 60];

fn policy(weigh: Weigher) -> Policy {
    let rule = |name: &str, priority| Rule {
        name: name.into(),
        priority: Some(priority),
        guaranteed: Some(0.25),
        ..Rule::default()
    };
    let vm = vec![rule("low", 0), rule("high", 1)];
    Policy { size: Sizer::None, arbitrate: Arbiter::Priority, weigh, vm, ..Policy::default() }
}

/// pCPU seconds that each VM ran.
fn ran(machine: &SimMachine) -> [f64; 2] {
    [0, 1].map(|vm| (0..2).map(|v| machine.sim().account_of(vm, v).unwrap().utilised as f64 / 1e9).sum())
}

/// Two VMs of two busy loops each on two pCPUs: pCPUs that each gets in the last ten seconds of each turn, and all that
/// was changed.
fn managed(hypervisor: Hypervisor, policy: Policy) -> (SimMachine, Vec<[f64; 2]>, Vec<Action>) {
    let high = "sleep 20000ms parallel { compute 180s split } sleep 3600s";
    let vms = [("low", "hog"), ("high", high)]
        .map(|(name, program)| vm(name, vec![vcpu("0-1"), vcpu("0-1")], vec![app(program, 2)]));
    let spec = host(2, hypervisor, vms.to_vec());
    let mut machine = SimMachine::new(Sim::new(&spec).unwrap(), "test", true);
    let mut controller = Controller::new(policy);
    let (mut got, mut done) = (Vec::new(), Vec::new());
    for turn in TURNS {
        let mut before = [0.0; 2];
        for second in 0..turn {
            if second + 10 == turn {
                before = ran(&machine);
            }
            let step = controller.step(&machine.observe().unwrap()).unwrap();
            controller.told(&applied(&mut machine, &step.plan.actions));
            done.extend(step.plan.actions);
            machine.pass(Duration::from_secs(1)).unwrap();
        }
        machine.sim().check().unwrap();
        let after = ran(&machine);
        got.push([0, 1].map(|vm| (after[vm] - before[vm]) / 10.0));
    }
    (machine, got, done)
}

#[test]
fn the_important_one_gets_what_the_other_is_not_guaranteed_and_all_goes_back() {
    let hypervisors = [
        Hypervisor::Cfs(CfsSpec::default()),
        Hypervisor::Credit(CreditSpec::default()),
        Hypervisor::Credit2(Credit2Spec::default()),
    ];
    for hypervisor in hypervisors {
        let (mut machine, got, done) = managed(hypervisor, policy(Weigher::Grants));
        let [alone, contest, after] = [got[0], got[1], got[2]];
        assert!(alone[0] > 1.9, "{hypervisor:?}: {got:?}");
        // Three loops of unequal weights on two pCPUs: the fair scheduler moves whole ones, and 0.45 and 1.55 come out.
        assert!(contest[0] > 0.2 && contest[1] > 1.5, "{hypervisor:?}: {got:?}");
        assert!(after[0] > 1.9, "{hypervisor:?}: {got:?}");
        let of = |lever| done.iter().filter(|action| action.lever == lever).count();
        assert_eq!(of(Lever::Weight), 4, "there and back: {done:#?}");
        for vm in ["sim-0", "sim-1"].map(|id| VmId(id.into())) {
            assert_eq!(machine.current(&vm, Lever::Weight), Ok(Value::Weight(Weight(1024.0))));
        }
        let low = machine.current(&VmId("sim-0".into()), Lever::Online);
        assert_eq!(low, Ok(Value::Vcpus(CpuSet::first(2))));
    }
}

#[test]
fn numbers_of_vcpus_alone_cannot() {
    let (_, got, done) = managed(Hypervisor::Cfs(CfsSpec::default()), policy(Weigher::None));
    assert!(got[1][1] < 1.1, "{got:?}");
    assert!(done.iter().all(|action| action.lever != Lever::Weight));
}

/// 200 s of a VM that weighs half of what its neighbour does, and should not: one vCPU has a pCPU to itself, the other one shares a
/// pCPU with the neighbour. Which of its two busy threads count their work; what was changed of weights, and what was said.
fn counted(program: &str) -> (Vec<Action>, Vec<String>) {
    let mut light = vm("light", vec![vcpu("0"), vcpu("1")], vec![pinned(program, 2)]);
    (light.weight, light.progress) = (512, true);
    let heavy = vm("heavy", vec![vcpu("1")], vec![app("hog", 1)]);
    let spec = host(2, Hypervisor::Cfs(CfsSpec::default()), vec![light, heavy]);
    let mut machine = SimMachine::new(Sim::new(&spec).unwrap(), "test", true);
    let rule = Rule { name: "*".into(), guaranteed: Some(0.25), ..Rule::default() };
    let policy = Policy { arbitrate: Arbiter::MaxMin, vm: vec![rule], ..policy(Weigher::Grants) };
    let mut controller = Controller::new(policy);
    let (mut done, mut notes) = (Vec::new(), Vec::new());
    for _ in 0..200 {
        let step = controller.step(&machine.observe().unwrap()).unwrap();
        controller.told(&applied(&mut machine, &step.plan.actions));
        done.extend(step.plan.actions.into_iter().filter(|action| action.lever == Lever::Weight));
        notes = step.notes;
        machine.pass(Duration::from_secs(1)).unwrap();
    }
    (done, notes)
}

/// The thread that counts has its pCPU to itself; what more weight brings the other one is no work.
#[test]
fn weights_with_which_no_more_work_is_done_are_undone_though_more_is_used() {
    let (done, notes) = counted("forever { compute 100ms single { mark } }");
    assert_eq!(done.len(), 4, "there and back: {done:#?}");
    for (action, weight) in done[2..].iter().zip([512.0, 1024.0]) {
        assert_eq!(action.to, Value::Weight(Weight(weight)));
        assert!(
            matches!(&action.why, Why::Weightless { name, brought } if name == "light" && brought.work),
            "{action:?}"
        );
    }
    let said = "more weight brings light nothing: it did 10.0 units of work a second before, and 10.0 with more weight; \
                all weigh what they did for 10 min";
    assert!(notes.iter().any(|note| note == said), "{notes:#?}");
}

#[test]
fn weights_with_which_more_work_is_done_stay() {
    let (done, notes) = counted("forever { compute 100ms mark }");
    assert_eq!(done.len(), 2, "{done:#?}");
    assert!(notes.iter().all(|note| !note.contains("more weight")), "{notes:#?}");
}
