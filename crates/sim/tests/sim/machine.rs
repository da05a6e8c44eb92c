//! Controllers see a simulated host as they see any other.

use std::time::Duration;

use crate::support::{app, host, limit, vcpu, vm};
use corefit_core::machine::{Machine, contract, estimate};
use corefit_sim::{CfsSpec, CreditSpec, Policy, Sim, SimMachine};

const SECOND: Duration = Duration::from_secs(1);

fn machine(policy: Policy) -> SimMachine {
    let mut vms = ["a", "b", "c"].map(|name| vm(name, vec![vcpu("0-1"), vcpu("0-1")], vec![app("hog", 2)]));
    vms[1].weight = 2048;
    vms[2].cap = limit(25, 100);
    SimMachine::new(Sim::new(&host(2, policy, vms.to_vec())).unwrap(), "test", true)
}

#[test]
fn it_keeps_to_the_contract_of_machines() {
    for policy in [Policy::Cfs(CfsSpec::default()), Policy::Credit(CreditSpec::default())] {
        contract::observing(&mut machine(policy), Duration::from_millis(700)).unwrap();
    }
}

#[test]
fn what_was_used_is_estimated_as_what_was_entitled() {
    let mut machine = machine(Policy::Cfs(CfsSpec::default()));
    machine.pass(SECOND).unwrap();
    let before = machine.observe().unwrap();
    machine.pass(30 * SECOND).unwrap();
    let estimate = estimate(&before, &machine.observe().unwrap()).unwrap();
    let used: Vec<f64> = estimate.vms.iter().map(|vm| vm.activity.used.unwrap().0).collect();
    let entitled: Vec<f64> = estimate.vms.iter().map(|vm| vm.entitled.unwrap().0).collect();
    assert!((used.iter().sum::<f64>() - 2.0).abs() < 1e-3, "{used:?}");
    for (used, entitled) in used.iter().zip(&entitled) {
        assert!((used - entitled).abs() < 0.1, "{used} of {entitled}");
    }
    assert!(estimate.vms.iter().all(|vm| vm.activity.waiting.unwrap().0 > 0.3));
    assert!(estimate.pcpus.iter().all(|pcpu| pcpu.busy.unwrap().0 > 0.999));
}

#[test]
fn a_guest_shows_what_was_stolen_and_who_wants_to_run() {
    let mut machine = machine(Policy::Credit(CreditSpec::default()));
    machine.pass(10 * SECOND).unwrap();
    let guest = machine.observe().unwrap().vms[0].guest.clone().unwrap();
    assert_eq!(guest.runnable, Some(2));
    for vcpu in guest.vcpus {
        let sum = vcpu.busy_ns.unwrap() + vcpu.idle_ns.unwrap() + vcpu.steal_ns.unwrap();
        assert_eq!(sum, 10_000_000_000);
        assert!(vcpu.steal_ns.unwrap() > 4_000_000_000);
    }
}
