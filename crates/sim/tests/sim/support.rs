//! Small hosts for tests.

use corefit_core::CpuSet;
use corefit_core::decide::{Action, Outcome, apply};
use corefit_sim::{
    AppSpec, Class, Costs, GuestSpec, Hardware, Limit, Ple, Policy, Program, Runtime, Sim, SimMachine, Spec,
    VcpuSpec, VmSpec, library,
};

pub(crate) const MS: u64 = 1_000_000;

/// A program's text, or its name in the library.
pub(crate) fn app(program: &str, threads: u32) -> AppSpec {
    let text = library(program).unwrap_or(program);
    AppSpec {
        name: "app".into(),
        program: Program::compile(text).unwrap(),
        threads,
        team: threads,
        class: 0,
        pinned: false,
        spin_ns: 2 * MS,
        crowded_spin_ns: None,
        runtime: Runtime::Libomp,
        pauses: true,
        start_ns: 0,
        again: false,
    }
}

pub(crate) fn pinned(program: &str, threads: u32) -> AppSpec {
    AppSpec { pinned: true, ..app(program, threads) }
}

pub(crate) fn vcpu(affinity: &str) -> VcpuSpec {
    VcpuSpec {
        weight: 1024,
        limit: None,
        affinity: affinity.parse().unwrap(),
        soft: CpuSet::default(),
        online: true,
        slice_ns: None,
    }
}

pub(crate) fn vm(name: &str, vcpus: Vec<VcpuSpec>, apps: Vec<AppSpec>) -> VmSpec {
    VmSpec {
        name: name.into(),
        weight: 1024,
        cap: None,
        vcpus,
        memory_nodes: CpuSet::default(),
        made_on: CpuSet::default(),
        guest: GuestSpec::default(),
        apps,
        changes: vec![],
        progress: false,
    }
}

/// A host of equal pCPUs on which nothing costs anything.
pub(crate) fn host(pcpus: u32, policy: Policy, vms: Vec<VmSpec>) -> Spec {
    Spec {
        seed: 1,
        hardware: Hardware::flat(pcpus),
        policy,
        spread_siblings: false,
        relaxed: None,
        costs: Costs::none(),
        ple: Ple { on: false, ..Ple::default() },
        governor: None,
        period_ns: 0,
        until_ns: 3_600_000 * MS,
        warmup_ns: 0,
        jitter_ns: 0,
        classes: vec![Class::plain("plain")],
        vms,
    }
}

pub(crate) fn limit(quota_ms: u64, period_ms: u64) -> Option<Limit> {
    Some(Limit { quota_ns: quota_ms * MS, period_ns: period_ms * MS, burst_ns: 0 })
}

pub(crate) fn sim(spec: &Spec) -> Sim {
    Sim::new(spec).unwrap()
}

/// Runs to the end; seconds that the VM's first application took.
pub(crate) fn seconds(spec: &Spec, vm: usize) -> f64 {
    let mut sim = sim(spec);
    sim.run();
    assert_eq!(sim.unfinished(), Vec::<String>::new());
    sim.truth().vms[vm].apps[0].took_ns.unwrap() as f64 / 1e9
}

/// pCPUs that each VM used in so many seconds.
pub(crate) fn shares(spec: &Spec, secs: u64) -> Vec<f64> {
    let mut sim = sim(spec);
    sim.run_for(secs * 1000 * MS);
    let truth = sim.truth();
    let used = |t: &corefit_sim::Account| t.utilised + t.spinning + t.switching;
    truth.vms.iter().map(|vm| used(&vm.time) as f64 / (secs * 1000 * MS) as f64).collect()
}

/// Does what controllers say, all of which can be done.
pub(crate) fn applied(machine: &mut SimMachine, actions: &[Action]) -> Vec<Outcome> {
    let outcomes = apply(machine, actions);
    assert!(outcomes.iter().all(|outcome| outcome.result.is_ok()), "{outcomes:?}");
    outcomes
}
