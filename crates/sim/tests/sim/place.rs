//! Placements that want to be where others are, on simulated hosts.

use std::time::Duration;

use crate::support::{app, applied, host, vcpu, vm};
use corefit_core::decide::{Controller, Placer, Policy, Rule, Sizer};
use corefit_core::machine::{Lever, Machine};
use corefit_sim::{CfsSpec, Policy as Hypervisor, Sim, SimMachine};

/// The vCPU of a team beside somebody who stays is ready all the time while the others wait at the barrier, wherever it is: it wants to
/// change places with one of them again and again.
#[test]
fn two_vcpus_do_not_change_places_for_ever() {
    let all = |sets: &[&str]| sets.iter().map(|set| vcpu(set)).collect();
    let team = vm("a", all(&["0", "1", "2", "3"]), vec![app("forever { compute 10ms barrier mark }", 4)]);
    let beside = vm("b", all(&["2", "3"]), vec![app("hog", 2)]);
    let spec = host(4, Hypervisor::Cfs(CfsSpec::default()), vec![team, beside]);
    let mut machine = SimMachine::new(Sim::new(&spec).unwrap(), "test", true);
    let rule = Rule { name: "b".into(), exclude: Some(true), ..Rule::default() };
    let policy = Policy {
        size: Sizer::None,
        place: Placer::Corefit,
        dwell_ms: 3000,
        vm: vec![rule],
        ..Policy::default()
    };
    let mut controller = Controller::new(policy);
    let mut changes = Vec::new();
    for second in 0..600 {
        let step = controller.step(&machine.observe().unwrap()).unwrap();
        for action in &step.plan.actions {
            assert!(matches!(action.lever, Lever::Affinity(_)), "{action:?}");
        }
        changes.extend((!step.plan.actions.is_empty()).then_some(second));
        controller.told(&applied(&mut machine, &step.plan.actions));
        machine.pass(Duration::from_secs(1)).unwrap();
    }
    assert!((1..10).contains(&changes.len()), "{changes:?}");
}
