//! What the papers say, in kind: nothing here was fitted to their numbers.

use std::time::Duration;

use crate::support::{self, MS, app, host, sim, vcpu, vm};
use corefit_core::machine::{Act as _, Lever, Machine as _, Value, VmId};
use corefit_core::{CpuId, CpuSet};
use corefit_sim::{
    AppSpec, Class, Costs, CreditSpec, Hardware, Limit, LockKind, Ple, Policy, Sim, SimMachine, Spec, Truth,
    VmSpec,
};

fn real(mut spec: Spec) -> Spec {
    spec.costs = Costs::default();
    spec.ple = Ple::default();
    spec.jitter_ns = 30 * MS;
    spec.until_ns = 600_000 * MS;
    spec
}

fn finish(spec: &Spec) -> Truth {
    let mut sim = sim(spec);
    sim.run();
    assert_eq!(sim.unfinished(), Vec::<String>::new());
    sim.truth()
}

/// P2 3.1, CPU sharing: how many times longer than expected the slowest of so many VMs takes.
fn degradation(program: &str, vms: usize) -> f64 {
    let took = |count: usize| {
        let one = |i| vm(&format!("vm{i}"), (0..16).map(|_| vcpu("0-15")).collect(), vec![app(program, 16)]);
        let spec = real(host(16, Policy::Credit(CreditSpec::default()), (0..count).map(one).collect()));
        finish(&spec).vms.iter().map(|vm| vm.apps[0].took_ns.unwrap()).max().unwrap() as f64
    };
    took(vms) / took(1) / vms as f64
}

#[test]
fn a_pipeline_that_spins_on_flags_collapses_on_shared_pcpus_and_independent_work_does_not() {
    let (lu, ep) = (degradation("lu", 4), degradation("ep", 4));
    assert!(lu > 10.0, "lu {lu}");
    assert!(ep < 1.2, "ep {ep}");
}

#[test]
fn a_team_that_spins_collapses_under_a_cap_and_one_that_blocks_does_not() {
    // P2 3.1, CPU limit: vCPUs run out of credit one by one, and whoever spins for a parked one burns its own.
    let capped = |spin_ns: u64, cap: u64| {
        let mut one = vm("a", (0..16).map(|_| vcpu("0-15")).collect(), vec![app("ua", 16)]);
        one.apps[0].spin_ns = spin_ns;
        one.cap = Some(Limit { quota_ns: cap * 100 * MS, period_ns: 100 * MS, burst_ns: 0 });
        finish(&real(host(16, Policy::Credit(CreditSpec::default()), vec![one]))).vms[0].apps[0]
            .took_ns
            .unwrap() as f64
    };
    let (free, spins, blocks) = (capped(u64::MAX, 16), capped(u64::MAX, 1), capped(0, 1));
    assert!(spins > 50.0 * 16.0 * free, "{spins} {free}");
    assert!(blocks < 2.0 * 16.0 * free, "{blocks} {free}");
}

/// Operations in 0.2 s with a lock of this kind, and halts in its slow path (P3 5.1, 5.2).
fn throughput(lock: LockKind, vcpus: u32) -> (f64, u64) {
    let program = "forever { compute 150us exp kernel l { compute 3us exp } mark }";
    let pinned = (0..vcpus).map(|i| vcpu(&i.to_string())).collect();
    let mut one = vm("a", pinned, vec![support::pinned(program, vcpus)]);
    one.guest.lock = lock;
    let mut sim = sim(&real(host(80, Policy::Cfs(corefit_sim::CfsSpec::default()), vec![one])));
    sim.run_for(200 * MS);
    let vm = &sim.truth().vms[0];
    (vm.apps[0].marks as f64, vm.counts.lock_halts)
}

#[test]
fn waiters_that_halt_make_a_saturated_lock_collapse_and_oticket_keeps_them_awake() {
    let oticket = LockKind::OTicket { near: 18, wake: 4 };
    let (few, halts) = throughput(LockKind::PvTicket, 20);
    assert!(
        (throughput(oticket, 20).0 / few - 1.0).abs() < 0.01 && halts == 0,
        "not saturated: no difference"
    );
    let ((pv, halts), (_, queue_halts)) =
        (throughput(LockKind::PvTicket, 80), throughput(LockKind::Queue, 80));
    let ((better, _), (long, none)) = (throughput(oticket, 80), throughput(LockKind::LongerSpin, 80));
    assert!(pv < 0.7 * better, "{pv} {better}");
    assert!(
        halts > 5_000 && queue_halts > 5_000 && none == 0,
        "queue locks have it, too: {halts} {queue_halts}"
    );
    assert!(
        (better / long - 1.0).abs() < 0.1,
        "alone on its pCPUs, longer spinning is as good: {better} {long}"
    );
}

/// Sections in the second half of 0.4 s, of 16 vCPUs on 2 pCPUs that do nothing else; halts for each of them.
fn overcommitted(lock: LockKind) -> (f64, f64) {
    let program = "forever { compute 40ns exp kernel l { compute 20ns } mark }";
    let mut one = vm("a", vec![vcpu("0-1"); 16], vec![support::pinned(program, 16)]);
    one.guest.lock = lock;
    let mut spec = real(host(2, Policy::Cfs(corefit_sim::CfsSpec::default()), vec![one]));
    spec.ple.on = false;
    let mut sim = sim(&spec);
    let mut half = || {
        sim.run_for(200 * MS);
        let vm = &sim.truth().vms[0];
        (vm.apps[0].marks as f64, vm.counts.lock_halts as f64)
    };
    let (before, after) = (half(), half());
    (after.0 - before.0, (after.1 - before.1) / (after.0 - before.0))
}

#[test]
fn a_lock_that_may_be_passed_hides_its_wake_ups_and_strict_order_pays_each() {
    let ours = |bypasses| overcommitted(LockKind::Corefit { bypasses, cpus: 2 });
    let ((fifo, halts), (once, _), (passed, few)) = (ours(0), ours(1), ours(192));
    assert!(halts > 0.3 && few < 0.1, "{halts} {few}");
    assert!(once > fifo && once < 3.0 * fifo, "one may pass: {once} {fifo}");
    assert!(passed > 10.0 * fifo, "{passed} {fifo}");
    let (paper, _) = overcommitted(LockKind::OTicket { near: 18, wake: 4 });
    assert!(fifo > 10.0 * paper, "who spins keeps others from their pCPUs: {fifo} {paper}");
}

/// P4's machine with a VM whose work of class 1 minds its siblings; xl made it on nodes 0 and 2, and its Linux sees two packages.
fn opterons(mut one: VmSpec) -> Spec {
    one.made_on = "0-7,16-23".parse().unwrap();
    one.guest.packages = 2;
    let mut spec = real(host(32, Policy::Credit(CreditSpec::default()), vec![one]));
    spec.hardware = Hardware { sockets: 2, nodes: 2, cores: 4, threads: 2, adjacent: true, cache_kib: 6144 };
    spec.classes.push(Class { beside_sibling: 0.6, ..Class::plain("decoder") });
    spec.jitter_ns = 0;
    spec
}

/// P4 III: 8 threads in a VM of 16 vCPUs on these pCPUs of two Opterons, whose node affinity is nodes 0
/// and 2. Competing modules, and seconds.
fn opteron(affinity: &str, soft: &str, threads: u32) -> (f64, f64) {
    let mut vcpus: Vec<_> = (0..16).map(|_| vcpu(affinity)).collect();
    vcpus.iter_mut().for_each(|v| v.soft = soft.parse().unwrap());
    let mut one = app("parallel { compute 8s split }", threads);
    one.class = 1;
    let truth = finish(&opterons(vm("a", vcpus, vec![one])));
    (truth.competing_cores, truth.vms[0].apps[0].took_ns.unwrap() as f64 / 1e9)
}

#[test]
fn a_node_affinity_beside_the_vcpu_affinity_fills_one_node_first() {
    let (conflict, slow) = opteron("16-31", "0-7,16-23", 8);
    let (none, fast) = opteron("0-7,16-23", "0-7,16-23", 8);
    assert!((conflict - 4.0).abs() < 0.1 && none < 0.1, "{conflict} {none}");
    assert!(slow / fast > 1.3, "{slow} {fast}");
    let (fixed, _) = opteron("16-31", "16-31", 8);
    assert!(fixed < 0.1, "the right node affinity: {fixed}");
    // At 16 threads both have all eight modules competing; one core per module has none.
    let evens: CpuSet = (0..16).map(|i| corefit_core::CpuId(2 * i)).collect();
    let (optimal, best) = opteron(&evens.to_string(), &evens.to_string(), 16);
    let (all, worst) = opteron("16-31", "16-31", 16);
    assert!(optimal < 0.01 && (all - 8.0).abs() < 0.1 && best < worst, "{optimal} {all}");
}

/// P4 IV-B: without affinities, 16 busy vCPUs on 16 modules. Xen 4.4 moves one to the other socket only if that is twice
/// as idle, so what an uneven beginning leaves competing stays: from one socket, five go and three modules compete.
#[test]
fn without_affinities_an_uneven_division_between_sockets_stays() {
    let vcpus = (0..16).map(|_| vcpu("0-15")).collect();
    let spec = opterons(vm("a", vcpus, vec![AppSpec { class: 1, ..app("hog", 16) }]));
    let mut machine = SimMachine::new(Sim::new(&spec).unwrap(), "P4", true);
    machine.pass(Duration::from_secs(1)).unwrap();
    for number in 0..16 {
        let everywhere = Value::Pcpus(CpuSet::first(32));
        machine.set(&VmId("sim-0".into()), Lever::Affinity(number), &everywhere).unwrap();
    }
    machine.pass(Duration::from_secs(10)).unwrap();
    let seen = machine.observe().unwrap();
    let on: CpuSet = seen.vms[0].vcpus.iter().filter_map(|vcpu| vcpu.on).collect();
    let first = on.intersection(&CpuSet::first(16)).len();
    let modules = (0..16).filter(|&m| (0..2).all(|half| on.contains(CpuId(2 * m + half)))).count();
    assert_eq!((on.len(), first, modules), (16, 11, 3), "{on}");
}

/// P4 V, Figures 15 and 16, 8 threads: how much longer a program takes in 0-16, where the node affinity puts them on
/// four modules of a node, than in 8-8, where they have eight modules of two.
fn conflicts(class: &str) -> f64 {
    let took = |affinity: &str| {
        let mut vcpus: Vec<_> = (0..16).map(|_| vcpu(affinity)).collect();
        vcpus.iter_mut().for_each(|v| v.soft = "0-7,16-23".parse().unwrap());
        let mut one = app("parallel { compute 8s split }", 8);
        one.class = 1;
        let mut spec = opterons(vm("a", vcpus, vec![one]));
        spec.classes[1] = corefit_sim::library_class(class).unwrap();
        finish(&spec).vms[0].apps[0].took_ns.unwrap() as f64
    };
    took("16-31") / took("0-7,16-23")
}

#[test]
fn all_classes_lose_on_competing_modules_but_ep_and_those_with_more_causes_lose_more() {
    let loss = |class| conflicts(class);
    assert!((loss("ep") - 1.0).abs() < 0.01, "{}", loss("ep"));
    assert!((loss("fib") - 1.38).abs() < 0.03, "the one that the size is from: {}", loss("fib"));
    for class in ["nq", "bt", "cg", "dc", "ft", "is", "lu", "mg", "sp", "ua"] {
        assert!(loss(class) > 1.1, "{class} {}", loss(class));
    }
    assert!(loss("nq") < loss("fib") && loss("cg") > loss("ua") && loss("lu") > loss("nq"));
}

#[test]
fn odd_distributions_leave_a_module_less_to_compete() {
    // Of threads that end one by one, those that are left would find idle modules.
    let vcpus = (0..16).map(|_| vcpu("0-6,16-24")).collect();
    let mut sim = sim(&opterons(vm("a", vcpus, vec![AppSpec { class: 1, ..app("hog", 16) }])));
    sim.run_for(10_000 * MS);
    let seven_nine = sim.truth().competing_cores;
    assert!((seven_nine - 7.0).abs() < 0.1, "{seven_nine}");
}

#[test]
fn vcpus_on_hyperthreads_gain_little_beyond_the_cores() {
    // P3 Figure 1: the first threads of 16 cores, then the second ones.
    let took = |vcpus: u32| {
        let mut one = support::pinned("parallel { compute 8s split }", vcpus);
        one.class = 1;
        let pinned = (0..vcpus).map(|i| vcpu(&i.to_string())).collect();
        let mut spec =
            real(host(32, Policy::Cfs(corefit_sim::CfsSpec::default()), vec![vm("a", pinned, vec![one])]));
        spec.hardware =
            Hardware { sockets: 1, nodes: 1, cores: 16, threads: 2, adjacent: false, cache_kib: 6144 };
        spec.classes.push(Class { beside_sibling: 0.55, ..Class::plain("ht") });
        finish(&spec).vms[0].apps[0].took_ns.unwrap() as f64
    };
    let (half, full, double) = (took(8), took(16), took(32));
    assert!((half / full - 2.0).abs() < 0.05, "whole cores scale: {}", half / full);
    assert!((full / double - 1.1).abs() < 0.05, "hyperthreads give what the class says: {}", full / double);
}

#[test]
fn the_four_types_of_p1_have_the_features_that_define_them() {
    // P1 II-C: parallelism is high from 75 % of the cores on, synchronisation if one blocks before it used up its
    // timeslice of a period: a quarter of 24 ms, beside three neighbours.
    for (name, parallel, blocks) in
        [("type1", true, false), ("type2", false, true), ("type3", true, true), ("type4", false, false)]
    {
        let mut one = support::pinned(name, 16);
        one.spin_ns = 0;
        let vcpus = (0..16).map(|i| vcpu(&i.to_string())).collect();
        let spec =
            real(host(16, Policy::Cfs(corefit_sim::CfsSpec::default()), vec![vm("a", vcpus, vec![one])]));
        let vm = &finish(&spec).vms[0];
        let busy = (vm.time.utilised + vm.time.switching) as f64 / vm.apps[0].took_ns.unwrap() as f64;
        let between = vm.time.utilised / vm.counts.halts / 1000;
        assert_eq!((busy >= 12.0, between < 6000), (parallel, blocks), "{name}: {busy} cores, {between} us");
    }
}
