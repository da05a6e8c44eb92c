//! Co-scheduling, balance scheduling, soft affinity: what each promises, and what it costs.

mod support;

use corefit_sim::{CfsSpec, Credit2Spec, CreditSpec, LockKind, Ple, Policy, RelaxedSpec, Sim, Spec, StrictSpec, Truth, VmSpec};
use support::{MS, app, host, pinned, shares, vcpu, vm};

fn schedulers() -> [Policy; 4] {
    let eevdf = CfsSpec { deadlines: true, ..CfsSpec::default() };
    [
        Policy::Cfs(CfsSpec::default()),
        Policy::Cfs(eevdf),
        Policy::Credit(CreditSpec::default()),
        Policy::Credit2(Credit2Spec::default()),
    ]
}

fn loops(name: &str, vcpus: u32, on: &str) -> VmSpec {
    vm(name, (0..vcpus).map(|_| vcpu(on)).collect(), vec![pinned("hog", vcpus)])
}

fn after(spec: &Spec, ms: u64) -> Truth {
    let mut sim = Sim::new(spec).unwrap();
    sim.run_for(ms * MS);
    sim.truth()
}

/// On a pCPU each, one VM's vCPUs run while the other's wait: how long exactly one of two siblings ran, of `ms`.
fn apart(spec: &Spec, ms: u64) -> u64 {
    let mut sim = Sim::new(spec).unwrap();
    let ran = |sim: &Sim, v| {
        let account = sim.account_of(0, v).unwrap();
        account.utilised + account.spinning + account.switching
    };
    let mut apart = 0;
    let mut before = (0, 0);
    for _ in 0..ms * 10 {
        sim.run_for(MS / 10);
        let now = (ran(&sim, 0), ran(&sim, 1));
        apart += (now.0 - before.0).abs_diff(now.1 - before.1);
        before = now;
    }
    apart
}

#[test]
fn strict_coscheduling_runs_all_vcpus_of_a_vm_or_none() {
    let vms = || vec![loops("a", 2, "0-1"), loops("b", 2, "0-1"), loops("c", 1, "0")];
    let strict = host(2, Policy::Strict(StrictSpec::default()), vms());
    assert_eq!(apart(&strict, 2000), 0);
    assert!(apart(&host(2, Policy::Credit(CreditSpec::default()), vms()), 2000) > 100 * MS);
}

#[test]
fn strict_coscheduling_pays_with_pcpus_that_nobody_may_use() {
    // Three vCPUs hold three of four pCPUs; the other VM's two do not fit beside them, and two stay idle in its slot.
    let vms = vec![loops("three", 3, "0-3"), loops("two", 2, "0-3")];
    let truth = after(&host(4, Policy::Strict(StrictSpec::default()), vms.clone()), 60_000);
    let idle = truth.idle_ns as f64 / truth.ran_ns as f64;
    // Slots in the proportion 2 : 3 (equal weights), of 3 and of 2 pCPUs: 4 - (2 * 3 + 3 * 2) / 5 = 1.6 idle.
    assert!((idle - 1.6).abs() < 0.02, "{idle}");
    let shares = shares(&host(4, Policy::Strict(StrictSpec::default()), vms), 60);
    assert!(shares.iter().all(|share| (share - 1.2).abs() < 0.02), "{shares:?}");
}

#[test]
fn strict_coscheduling_of_more_vcpus_than_pcpus_is_refused() {
    let error = Sim::new(&host(2, Policy::Strict(StrictSpec::default()), vec![loops("a", 3, "0-1")])).unwrap_err();
    assert!(error.to_string().starts_with("vm.a.vcpus: strict co-scheduling needs a pCPU for each vCPU"), "{error}");
}

#[test]
fn a_vm_of_which_one_vcpu_woke_up_holds_the_pcpus_of_all() {
    // One busy vCPU of two: the other pCPU is idle in its slots, though the loop there wants it.
    let mut lazy = loops("lazy", 2, "0-1");
    lazy.apps = vec![pinned("hog", 1)];
    let shares = shares(&host(2, Policy::Strict(StrictSpec::default()), vec![lazy, loops("b", 2, "0-1")]), 60);
    assert!((shares[0] - 0.5).abs() < 0.02 && (shares[1] - 1.0).abs() < 0.02, "{shares:?}");
}

#[test]
fn relaxed_coscheduling_bounds_how_far_siblings_are_apart() {
    // a0 shares its pCPU with three loops, a1 has its own: it would be ahead by 3/4 of the time.
    let mut vms: Vec<VmSpec> = ["b", "c", "d"].map(|name| loops(name, 1, "0")).to_vec();
    vms.insert(0, vm("a", vec![vcpu("0"), vcpu("1")], vec![pinned("hog", 2)]));
    vms[0].weight = 2048; // as much per vCPU as the others
    for policy in schedulers() {
        let used = |spec: &Spec| {
            let mut sim = Sim::new(spec).unwrap();
            sim.run_for(20_000 * MS);
            [0, 1].map(|v| sim.account_of(0, v).unwrap().utilised as f64 / 20_000e6)
        };
        let mut spec = host(2, policy, vms.clone());
        let free = used(&spec);
        spec.relaxed = Some(RelaxedSpec::default());
        let bound = used(&spec);
        assert!(free[1] > 0.999 && free[0] < 0.6, "{policy:?} {free:?}");
        // 3 ms of skew and two ticks of 1 ms.
        assert!((bound[1] - bound[0]) * 20_000.0 <= 5.01, "{policy:?} {bound:?}");
        assert!(bound[0] >= 0.2, "{policy:?} {bound:?}");
    }
}

#[test]
fn relaxed_coscheduling_leaves_alone_who_is_idle() {
    // A VM of which one vCPU never wants anything loses nothing.
    let mut lazy = loops("lazy", 2, "0-1");
    lazy.apps = vec![pinned("hog", 1)];
    let mut spec = host(2, Policy::Cfs(CfsSpec::default()), vec![lazy]);
    spec.relaxed = Some(RelaxedSpec::default());
    assert!((shares(&spec, 10)[0] - 1.0).abs() < 1e-6);
}

#[test]
fn balance_scheduling_never_stacks_while_there_are_enough_pcpus() {
    for policy in schedulers() {
        let vms = ["a", "b", "c"].map(|name| {
            let program = "forever { compute 3ms exp sleep 2ms exp }";
            vm(name, (0..4).map(|_| vcpu("0-3")).collect(), vec![app(program, 4)])
        });
        let stacked = |spread: bool| {
            let mut spec = host(4, policy, vms.to_vec());
            spec.spread_siblings = spread;
            spec.jitter_ns = 10 * MS;
            after(&spec, 5000).vms.iter().map(|vm| vm.counts.stacked_ns).sum::<u64>()
        };
        assert_eq!(stacked(true), 0, "{policy:?}");
        assert!(stacked(false) > 100 * MS, "{policy:?}");
    }
}

#[test]
fn soft_affinity_is_kept_to_while_it_has_room_and_left_when_it_has_not() {
    for policy in schedulers() {
        let with = |vcpus: u32| {
            let mut all: Vec<_> = (0..vcpus).map(|_| vcpu("0-3")).collect();
            all.iter_mut().for_each(|v| v.soft = "2-3".parse().unwrap());
            let one = vm("a", all, vec![app("forever { compute 1ms exp sleep 1ms exp }", vcpus)]);
            // Two loops show where it runs: they lose what it takes.
            let mut spec = host(4, policy, vec![one, loops("low", 1, "0"), loops("high", 1, "3")]);
            spec.jitter_ns = MS;
            let truth = after(&spec, 5000);
            let used = |vm: usize| truth.vms[vm].time.utilised as f64 / truth.ran_ns as f64;
            (used(0), used(1), used(2))
        };
        let (one, low, _) = with(1);
        assert!((one - 0.5).abs() < 0.05 && low > 0.999, "alone it has pCPU 2: {policy:?} {one} {low}");
        let (all, _, _) = with(4);
        assert!(all > 1.6, "four want 2 pCPUs together: {policy:?} {all}");
    }
}

/// Locks of a kernel held by vCPUs that were preempted: what is done in a second.
fn held_up(directed: bool) -> (u64, u64) {
    let program = "forever { compute 100us exp kernel l { compute 100us exp } mark }";
    let mut one = vm("a", (0..4).map(|i| vcpu(&(i % 2).to_string())).collect(), vec![pinned(program, 4)]);
    one.guest.lock = LockKind::Ticket;
    let mut spec = host(2, Policy::Cfs(CfsSpec::default()), vec![one]);
    spec.ple = Ple { directed, ..Ple::default() };
    let vm = &after(&spec, 1000).vms[0];
    (vm.apps[0].marks, vm.counts.ple_exits)
}

#[test]
fn a_directed_yield_finds_the_holder_of_the_lock() {
    let ((without, _), (with, exits)) = (held_up(false), held_up(true));
    assert!(exits > 100 && with * 10 >= without * 11, "{without} {with}, {exits} exits");
}
