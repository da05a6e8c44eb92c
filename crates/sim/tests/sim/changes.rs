//! vCPUs that go online and offline, and teams that change, while programs run.

use crate::support::{MS, app, host, pinned, vcpu, vm};
use corefit_core::CpuSet;
use corefit_core::machine::{Act, Lever, Machine, MachineError, Value, VmId};
use corefit_sim::{CfsSpec, Change, Costs, Policy, Sim, SimMachine, VmSpec};

fn cfs() -> Policy {
    Policy::Cfs(CfsSpec::default())
}

fn guest(vcpus: u32, program: &str, threads: u32) -> VmSpec {
    vm("a", (0..vcpus).map(|i| vcpu(&i.to_string())).collect(), vec![app(program, threads)])
}

fn at(ms: u64, online: u32) -> Change {
    Change { at_ns: ms * MS, online: Some(online), team: None }
}

fn used(sim: &Sim, vcpus: u32) -> Vec<u64> {
    (0..vcpus).map(|v| sim.account_of(0, v).unwrap().utilised / MS).collect()
}

#[test]
fn threads_of_a_vcpu_that_goes_offline_go_on_on_the_others_and_come_back() {
    let mut one = guest(4, "forever { compute 1ms mark }", 4);
    one.changes = vec![at(1000, 2), at(2000, 4)];
    let mut sim = Sim::new(&host(4, cfs(), vec![one])).unwrap();
    sim.run_for(1000 * MS);
    assert_eq!(used(&sim, 4), [1000; 4]);
    sim.run_for(1000 * MS);
    assert_eq!(used(&sim, 4), [2000, 2000, 1000, 1000]);
    sim.run_for(1000 * MS);
    assert_eq!(used(&sim, 4), [3000, 3000, 2000, 2000]);
    let truth = sim.truth();
    assert_eq!(truth.vms[0].counts.thread_moves, 4, "two went, two came back");
    assert!(truth.vms[0].apps[0].marks.abs_diff(10_000) < 8, "{}", truth.vms[0].apps[0].marks);
    sim.check().unwrap();
}

#[test]
fn pinned_threads_are_moved_too_and_what_holds_a_kernels_lock_goes_last() {
    let program = "repeat 200 { kernel l { compute 1ms } compute 100us }";
    let vcpus = (0..4).map(|i| vcpu(&i.to_string())).collect();
    let mut one = vm("a", vcpus, vec![pinned(program, 4)]);
    one.changes = vec![at(100, 1)];
    let mut sim = Sim::new(&host(4, cfs(), vec![one])).unwrap();
    sim.run();
    // All under one lock: 800 times 1 ms, before and after; and then what is not.
    let took = sim.truth().vms[0].apps[0].took_ns.unwrap() / MS;
    assert!((800..900).contains(&took), "{took}");
    assert!(used(&sim, 4)[1..].iter().all(|&ms| ms <= 110), "{:?}", used(&sim, 4));
    sim.check().unwrap();
}

#[test]
fn threads_that_lost_the_vcpu_that_they_were_pinned_to_use_those_that_come_back() {
    let vcpus = (0..4).map(|i| vcpu(&i.to_string())).collect();
    let mut one = vm("a", vcpus, vec![pinned("repeat 200 { compute 5ms barrier }", 4)]);
    one.changes = vec![at(300, 1), at(900, 4)];
    let mut sim = Sim::new(&host(4, cfs(), vec![one])).unwrap();
    sim.run();
    // 60 rounds at 5 ms, 30 at 20, and 110 at 5; one is spread again only when threads have blocked.
    let took = sim.truth().vms[0].apps[0].took_ns.unwrap() / MS;
    assert!((1_450..1_600).contains(&took), "{took}");
    sim.check().unwrap();
}

#[test]
fn hotplugging_costs_the_first_vcpu_its_time() {
    let mut one = guest(2, "forever { compute 1ms mark }", 1);
    one.changes = (1..=10).map(|i| at(i * 100, 1 + u32::try_from(i).unwrap() % 2)).collect();
    let mut spec = host(2, cfs(), vec![one]);
    spec.costs = Costs { hotplug_ns: 5 * MS, ..Costs::none() };
    let mut sim = Sim::new(&spec).unwrap();
    sim.run_for(2000 * MS);
    assert_eq!(sim.truth().vms[0].time.switching, 9 * 5 * MS, "the first of ten changes nothing");
}

#[test]
fn what_a_vm_is_entitled_to_follows_its_vcpus() {
    // Two pCPUs; b has one vCPU. With a at two vCPUs, half a pCPU of b's is a's.
    let a = vm("a", (0..2).map(|_| vcpu("0-1")).collect(), vec![app("hog", 2)]);
    let b = vm("b", vec![vcpu("0-1")], vec![app("hog", 1)]);
    let mut sim = Sim::new(&host(2, cfs(), vec![a, b])).unwrap();
    sim.run_for(999 * MS);
    assert_eq!(sim.truth().vms[0].time.allocated / MS, 999);
    sim.set_online(0, 1).unwrap();
    sim.run_for(1001 * MS);
    let truth = sim.truth();
    assert_eq!([0, 1].map(|vm: usize| truth.vms[vm].time.allocated.div_ceil(MS)), [2000, 2000]);
    assert!(sim.account_of(0, 1).unwrap().allocated.div_ceil(MS) == 500, "{:?}", sim.account_of(0, 1));
    sim.check().unwrap();
}

#[test]
fn a_team_changes_at_its_next_fork() {
    let program = "forever { parallel { compute 4ms split } mark }";
    let mut sim = Sim::new(&host(4, cfs(), vec![guest(4, program, 4)])).unwrap();
    sim.run_for(1000 * MS);
    let marks = |sim: &Sim| sim.truth().vms[0].apps[0].marks;
    assert_eq!(marks(&sim), 1000);
    sim.set_team(0, 1).unwrap();
    sim.run_for(1000 * MS);
    assert!((1249..=1251).contains(&marks(&sim)), "{}", marks(&sim));
    sim.set_team(0, 2).unwrap();
    sim.run_for(1000 * MS);
    assert!((1748..=1752).contains(&marks(&sim)), "{}", marks(&sim));
}

#[test]
fn a_machine_changes_the_vcpus_that_it_shows() {
    let sim = Sim::new(&host(4, cfs(), vec![guest(4, "forever { parallel { compute 1ms } }", 4)])).unwrap();
    let mut machine = SimMachine::new(sim, "test", true);
    let id = VmId("sim-0".into());
    let online = |count| Value::Vcpus(CpuSet::first(count));
    machine.set(&id, Lever::Online, &online(2)).unwrap();
    let shown = machine.observe().unwrap();
    assert_eq!(shown.vms[0].vcpus.iter().map(|v| v.online).collect::<Vec<_>>(), [true, true, false, false]);
    let gone = machine.set(&VmId("sim-7".into()), Lever::Online, &online(1));
    assert!(matches!(gone, Err(MachineError::Gone(_))));
    let error = machine.set(&id, Lever::Online, &online(5)).unwrap_err();
    assert_eq!(error.to_string(), "vm.a.online: 5 is out of range; give 1 to 4");
}

#[test]
fn a_team_on_fewer_vcpus_is_slower_by_as_much_if_it_blocks() {
    let program = "forever { parallel { compute 8ms split } mark }";
    let mut one = guest(8, program, 8);
    one.apps[0].spin_ns = 0;
    one.changes = vec![Change { at_ns: 1000 * MS, online: Some(4), team: Some(4) }];
    let mut sim = Sim::new(&host(8, cfs(), vec![one])).unwrap();
    sim.run_for(1000 * MS);
    let before = sim.truth().vms[0].apps[0].marks;
    sim.run_for(1000 * MS);
    let after = sim.truth().vms[0].apps[0].marks - before;
    assert!(before >= 999 && (499..=502).contains(&after), "{before} {after}");
}
