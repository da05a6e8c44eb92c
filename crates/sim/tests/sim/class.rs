//! What counters of caches show of a VM's work decides where it runs, on a simulated host that has them.

use std::time::Duration;

use corefit_core::decide::{Controller, Placer, Policy, Rule, Sizer};
use corefit_core::machine::{Machine, Origin, contract, estimate};
use corefit_core::place::Class;
use corefit_sim::{Scenario, Sim, SimMachine};

use crate::support::applied;

const HOST: &str = include_str!("../../../../scenarios/cache-hungry.toml");
const SECOND: Duration = Duration::from_secs(1);

fn machine(counters: bool) -> SimMachine {
    let scenario = Scenario::parse(HOST, &[]).unwrap();
    assert!(scenario.cache_counters);
    SimMachine::new(Sim::new(&scenario.spec).unwrap(), "t", false).counting_caches(counters)
}

fn placing(class: Option<Class>) -> Policy {
    let rule = Rule { name: "hungry".into(), class, ..Rule::default() };
    Policy { size: Sizer::None, place: Placer::Corefit, dwell_ms: 2000, vm: vec![rule], ..Policy::default() }
}

/// Controllers that look once a second for so long: how often they moved something, and each VM's marks a second in the
/// last third.
fn managed(machine: &mut SimMachine, policy: Policy, secs: u64) -> (usize, Vec<f64>, Vec<String>) {
    let mut controller = Controller::new(policy);
    let (mut moved, mut notes, mut marks) = (0, Vec::new(), Vec::new());
    let count = |machine: &SimMachine| -> Vec<u64> {
        machine.sim().truth().vms.iter().map(|vm| vm.apps[0].marks).collect()
    };
    for second in 0..secs {
        if second == secs - secs / 3 {
            marks = count(machine);
        }
        let step = controller.step(&machine.observe().unwrap()).unwrap();
        moved += usize::from(!step.plan.actions.is_empty());
        notes.extend(step.notes);
        controller.told(&applied(machine, &step.plan.actions));
        machine.pass(SECOND).unwrap();
    }
    machine.sim().check().unwrap();
    let rate = |(now, then): (u64, &u64)| (now - then) as f64 / (secs / 3) as f64;
    (moved, count(machine).into_iter().zip(&marks).map(rate).collect(), notes)
}

#[test]
fn counters_show_who_fills_caches_and_who_does_not() {
    let mut machine = machine(true);
    contract::observing(&mut machine, SECOND).unwrap();
    let before = machine.observe().unwrap();
    machine.pass(SECOND).unwrap();
    let host = estimate(&before, &machine.observe().unwrap()).unwrap();
    // Half of what four of them fill is not there: 0.2 of the time is spent on misses, 64 bytes each 80 ns.
    let rate = host.vms[0].cache.unwrap();
    assert!((rate.traffic.unwrap() / 160e6 - 1.0).abs() < 0.01, "{rate:?}");
    assert!((rate.held.unwrap() - 1.0).abs() < 0.01, "{rate:?}");
    assert_eq!((host.vms[0].class.class, host.vms[0].class.origin), (Class::CacheHungry, Origin::Measured));
    assert_eq!(host.vms[1].cache.unwrap().traffic, Some(0.0));
    assert_eq!(host.vms[1].class.class, Class::Unknown);
}

#[test]
fn who_is_measured_as_hungry_is_spread_once_and_does_more() {
    let mut unseeing = machine(false);
    let (moved, blind, notes) = managed(&mut unseeing, placing(None), 30);
    assert_eq!(
        (moved, on_second(&mut unseeing)),
        (0, 0),
        "nothing is known of it, and in its pCPUs nobody waits"
    );
    assert!(notes.iter().any(|note| note.contains("no counters of caches")), "{notes:?}");
    let mut counting = machine(true);
    let (moved, seeing, notes) = managed(&mut counting, placing(None), 30);
    assert_eq!(moved, 1, "once apart, its traffic is gone, and it stays apart all the same");
    assert!(
        notes.contains(&"hungry: placed as cache-hungry, as its counters of caches show".into()),
        "{notes:?}"
    );
    // 0.8 of its speed before, all of it after; the other VM loses nothing.
    assert!(seeing[0] / blind[0] > 1.24 && seeing[1] / blind[1] > 0.99, "{seeing:?} {blind:?}");
    assert_eq!(on_second(&mut counting), 2, "two on each cache");
}

#[test]
fn what_is_given_beats_what_is_measured() {
    let mut machine = machine(true);
    let (moved, _, notes) = managed(&mut machine, placing(Some(Class::Communicating)), 10);
    assert_eq!((moved, on_second(&mut machine)), (0, 0), "it is together already");
    assert!(notes.contains(&"hungry: placed as communicating, as its rule says".into()), "{notes:?}");
}

/// How many vCPUs of the first VM may run on pCPUs of the second cache.
fn on_second(machine: &mut SimMachine) -> usize {
    let seen = machine.observe().unwrap();
    let second: corefit_core::CpuSet = "4-7".parse().unwrap();
    let sets = seen.vms[0].vcpus.iter().map(|vcpu| vcpu.affinity.clone().unwrap());
    sets.filter(|set| set.meets(&second)).inspect(|set| assert_eq!(set.len(), 1, "{set}")).count()
}
