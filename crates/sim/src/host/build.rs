//! From a description to a host at time 0.

use corefit_core::entitle::{self, WeightRule, entitled};
use corefit_core::{CpuSet, Cpus as Amount, Throttled, Weight};

use super::account::{Book, Part};
use super::check::{SpecError, check};
use super::teams::Channel;
use super::{Act, App, Counts, Event, Guest, Line, Ready, Sim, TState, Thread, Wait, locks};
use crate::cpus::{Cpus, NONE, Pcpu, Use, VState, Vcpu, VmCpus};
use crate::hardware::Topology;
use crate::queue::{NEVER, Queue};
use crate::random::{Purpose, Stream};
use crate::sched::{AnyScheduler, Scheduler};
use crate::spec::{CfsSpec, Limit, Policy, Runtime, Spec, VcpuSpec, VmSpec};

impl Sim {
    /// The host that a description describes, at time 0.
    ///
    /// # Errors
    /// If no such host can exist.
    pub fn new(spec: &Spec) -> Result<Sim, SpecError> {
        check(spec)?;
        let pcpus = spec.hardware.pcpus();
        let words = (pcpus as usize).div_ceil(64);
        let mut cpus = Cpus {
            pcpus: vec![Pcpu::new(); pcpus as usize],
            vcpus: vec![],
            vms: vec![],
            runs: vec![],
            slices: vec![],
            topology: Topology::new(&spec.hardware, &spec.classes),
            words,
            masks: vec![],
            idle: vec![0; words],
            idle_cores: vec![0; words],
            crowded: vec![0; words],
            spread_siblings: spec.spread_siblings,
        };
        (0..pcpus).for_each(|p| cpus.set_idle(p, true));
        let mut parts = Parts::default();
        for vm in &spec.vms {
            parts.add(vm, spec, &mut cpus);
        }
        let Parts { guests, threads, apps, locks, limits, vm_limits } = parts;
        let before = (spec.jitter_ns > 0).then_some(spec.seed);
        let sched = AnyScheduler::new(&spec.policy, spec.relaxed, &mut cpus, before).map_err(|vm| {
            SpecError {
            path: format!("vm.{}.vcpus", spec.vms[vm as usize].name),
            what:
                "strict co-scheduling needs a pCPU for each vCPU; give fewer vCPUs, or more pCPUs in affinity"
                    .into(),
        }
        })?;
        let shares = shares(spec)?;
        let (own_period, bandwidth_slice) = match spec.policy {
            Policy::Cfs(cfs) => (cfs.latency_ns, cfs.bandwidth_slice_ns),
            Policy::Credit(credit) => (credit.slice_ns, NEVER),
            Policy::Credit2(credit2) => (credit2.credit_ns, credit2.shortest_ns),
            Policy::Strict(strict) => (strict.slice_ns, CfsSpec::default().bandwidth_slice_ns),
        };
        let cores = cpus.topology.siblings.len();
        let mut sim = Sim {
            now: 0,
            queue: Queue::new(pcpus as usize),
            sched,
            accounts: shares.into_iter().map(Book::new).collect(),
            shares_since: 0,
            cpus,
            open: apps.iter().filter(|app| !app.program.endless).count(),
            guests,
            threads,
            apps,
            locks,
            costs: spec.costs,
            ple: spec.ple,
            idle_before: vec![0; pcpus as usize],
            period_ns: if spec.period_ns == 0 { own_period } else { spec.period_ns },
            until: spec.until_ns,
            bandwidth_slice,
            at_once: matches!(spec.policy, Policy::Credit2(_)),
            timers: vec![],
            limits,
            vm_limits,
            events: 0,
            cold: None,
            orders: vec![],
            competing_since: vec![0; cores],
            competing_ns: 0,
            remote: spec.vms.iter().any(|vm| !vm.memory_nodes.is_empty()),
            spec: spec.clone(),
        };
        sim.schedule();
        Ok(sim)
    }

    /// The first events.
    fn schedule(&mut self) {
        self.queue.add(self.period_ns, Event::Period);
        if self.spec.warmup_ns > 0 {
            self.queue.add(self.spec.warmup_ns, Event::Warm);
        }
        self.timers = self.sched.timers();
        for (number, period) in (0..).zip(self.timers.clone()) {
            self.queue.add(self.sched.first(number, period), Event::Timer(number));
        }
        if let Some(governor) = self.spec.governor {
            let later = Stream::new(self.spec.seed, 0, Purpose::Sample).below(governor.sample_ns);
            self.queue.add(self.spec.jitter_ns + later + 1, Event::Sample);
        }
        for (v, limit) in (0..).zip(self.limits.clone()) {
            if let Some(limit) = limit {
                self.queue.add(limit.period_ns, Event::Refill(v));
            }
        }
        for (vm, limit) in (0..).zip(self.vm_limits.clone()) {
            if let Some(limit) = limit {
                self.queue.add(limit.period_ns, Event::RefillVm(vm));
            }
        }
        for (number, vm) in (0..).zip(&self.spec.vms) {
            for (i, change) in (0..).zip(&vm.changes) {
                self.queue.add(change.at_ns, Event::Change(number, i));
            }
        }
        for (a, app) in (0..).zip(&mut self.apps) {
            let later =
                Stream::new(self.spec.seed, u64::from(a), Purpose::Start).below(self.spec.jitter_ns + 1);
            app.started += later;
            self.queue.add(app.started, Event::Start(a));
        }
    }
}

#[derive(Default)]
struct Parts {
    guests: Vec<Guest>,
    threads: Vec<Thread>,
    apps: Vec<App>,
    locks: Vec<locks::Lock>,
    limits: Vec<Option<Limit>>,
    vm_limits: Vec<Option<Limit>>,
}

pub(super) fn index(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(NONE)
}

fn mask(set: &CpuSet, words: usize) -> Vec<u64> {
    let mut mask = vec![0; words];
    let inside = set.iter().filter(|cpu| (cpu.0 as usize) < words * 64);
    inside.for_each(|cpu| crate::cpus::put(&mut mask, cpu.0, true));
    mask
}

impl Parts {
    fn add(&mut self, vm: &VmSpec, spec: &Spec, cpus: &mut Cpus) {
        let xen = spec.policy.is_xen();
        let number = index(cpus.vms.len());
        let first = index(cpus.vcpus.len());
        let pool = pool(&spec.policy, vm.cap);
        for vcpu in &vm.vcpus {
            let mut vcpu_state = vcpu_of(vcpu, number, pool.is_some(), cpus);
            (vcpu_state.rotates, vcpu_state.sliced) = (vm.guest.rotate, vm.guest.rotate);
            cpus.vcpus.push(vcpu_state);
            cpus.runs.push(0);
            cpus.slices.push(vcpu.slice_ns.unwrap_or(0));
            self.limits.push(vcpu.limit.filter(|_| !xen));
        }
        let count = index(vm.vcpus.len());
        let cap = parts_of(vm.cap);
        let grouped = !matches!(spec.policy, Policy::Cfs(cfs) if !cfs.groups);
        let weight = u64::from(vm.weight);
        let made = (!vm.made_on.is_empty()).then(|| {
            let (hard, soft) = (CpuSet::first(spec.hardware.pcpus()), &vm.made_on);
            (number_of(cpus, mask(&hard, cpus.words)), number_of(cpus, mask(soft, cpus.words)))
        });
        cpus.vms.push(VmCpus { first, count, weight, runnable: 0, unit: 0, grouped, cap, made });
        self.vm_limits.push(pool);
        let guest_words = vm.vcpus.len().div_ceil(64);
        let mut idle = vec![0; guest_words];
        for (i, vcpu) in (0..).zip(&vm.vcpus) {
            crate::cpus::put(&mut idle, i, vcpu.online);
        }
        let nodes = ((spec.hardware.sockets * spec.hardware.nodes) as usize).div_ceil(64);
        self.guests.push(Guest {
            name: vm.name.clone(),
            lock: vm.guest.lock,
            slice_ns: vm.guest.slice_ns,
            wakeup_ns: vm.guest.wakeup_ns,
            favoured: 0,
            idle,
            crowded: vec![0; guest_words],
            memory_nodes: (!vm.memory_nodes.is_empty()).then(|| mask(&vm.memory_nodes, nodes)),
            pool: pool.map_or(NEVER, |limit| limit.quota_ns),
            refill_at: pool.map_or(NEVER, |limit| limit.period_ns),
            slack: false,
            throttled: Throttled::default(),
            missed: 0,
            online_ns: 0,
            online_since: 0,
            online_changes: 0,
            evened: 0,
            counts: Counts::default(),
        });
        for app in &vm.apps {
            self.add_app(app, vm, number, first, spec);
        }
    }

    fn add_app(&mut self, app: &crate::spec::AppSpec, vm: &VmSpec, number: u32, first: u32, spec: &Spec) {
        let a = index(self.apps.len());
        let locks = index(self.locks.len());
        self.locks.extend((0..app.program.locks).map(|_| locks::Lock::new()));
        let first_thread = index(self.threads.len());
        let mut online: Vec<u32> =
            (0..index(vm.vcpus.len())).filter(|&i| vm.vcpus[i as usize].online).collect();
        // New threads go to the package with the fewest, there to the next vCPU (`find_idlest_group`): to each in turn.
        let package = index(vm.vcpus.len()).div_ceil(vm.guest.packages.max(1));
        online.sort_by_key(|i| (i % package, i / package));
        for member in 0..app.threads {
            let t = index(self.threads.len());
            let stream = |purpose| Stream::new(spec.seed, u64::from(t), purpose);
            self.threads.push(Thread {
                left: 0,
                act: Act::Work,
                state: TState::Out,
                wait: Wait::Nothing,
                granted: false,
                seen: false,
                pinned: app.pinned,
                holds: 0,
                holds_user: 0,
                app: a,
                member,
                vcpu: first + online[member as usize % online.len()],
                pc: 0,
                loops: [0; 8],
                depth: 0,
                singles: 0,
                next: [NONE; 2],
                patience: 0,
                compute: stream(Purpose::Compute),
                sleep: stream(Purpose::Sleep),
            });
        }
        let crowded = app.threads as usize > online.len();
        let channels = usize::from(app.program.channels) * 2 * app.threads as usize;
        self.apps.push(App {
            name: app.name.clone(),
            vm: number,
            class: index(app.class),
            program: app.program.clone(),
            first: first_thread,
            threads: app.threads,
            team: app.team,
            next_team: app.team,
            own_team: app.team,
            told_team: NONE,
            spin_ns: app.crowded_spin_ns.filter(|_| crowded).unwrap_or(app.spin_ns),
            seen: app.pauses && spec.ple.on && spec.ple.user,
            again: app.again,
            locks,
            arrived: 0,
            at_barrier: Line::EMPTY,
            joined: 0,
            master_waits: false,
            meets: app.runtime == Runtime::Libgomp,
            at_join: Line::EMPTY,
            dock: Line::EMPTY,
            away: 0,
            forks_at: None,
            channels: vec![Channel::EMPTY; channels],
            alive: 0,
            started: app.start_ns,
            began: app.start_ns,
            ended: None,
            rounds: 0,
            marks: 0,
            steps: 0,
        });
    }
}

/// What a VM's cap is to schedulers that count the VM's use in a pool.
pub(super) fn pool(policy: &Policy, cap: Option<Limit>) -> Option<Limit> {
    match policy {
        Policy::Credit(_) => None,
        Policy::Credit2(_) => cap.map(budget),
        Policy::Cfs(_) | Policy::Strict(_) => cap,
    }
}

/// What it is to the others: parts of 1024 pCPUs.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
pub(super) fn parts_of(cap: Option<Limit>) -> Option<u64> {
    cap.map(|cap| (cap.cpus() * 1024.0).round() as u64)
}

/// The numbers of a vCPU's masks: of all pCPUs it may use, and of those to try first.
pub(super) fn masks(vcpu: &VcpuSpec, cpus: &mut Cpus) -> (u32, u32) {
    let words = cpus.words;
    let hard = mask(&vcpu.affinity, words);
    let soft: Vec<u64> = mask(&vcpu.soft, words).iter().zip(&hard).map(|(a, b)| a & b).collect();
    let hard = number_of(cpus, hard);
    (hard, if soft.iter().all(|&w| w == 0) { hard } else { number_of(cpus, soft) })
}

fn vcpu_of(vcpu: &VcpuSpec, vm: u32, pool: bool, cpus: &mut Cpus) -> Vcpu {
    let (hard, soft) = masks(vcpu, cpus);
    // One after the other, as hypervisors put them when they are made (Xen: `cpumask_cycle` over a domain's vCPUs).
    let may: Vec<u32> = crate::cpus::bits(&cpus.masks[hard as usize]).collect();
    let begin = may.get(cpus.vcpus.len() % may.len().max(1)).copied().unwrap_or(0);
    Vcpu {
        vm,
        state: VState::Halted,
        pcpu: begin,
        ran_on: NONE,
        mask: hard,
        soft,
        weight: u64::from(vcpu.weight),
        charged: 0,
        wait_since: 0,
        run_ns: 0,
        wait_ns: 0,
        debt: 0,
        quota_left: vcpu.limit.map_or(NEVER, |limit| limit.quota_ns),
        stopped_since: NEVER,
        stopped_by_own: false,
        throttled: Throttled::default(),
        pool_left: if pool { 0 } else { NEVER },
        parked: 0,
        used: Use::default(),
        ple_left: NEVER,
        cur: NONE,
        ready: Ready::EMPTY,
        guest_left: 0,
        sliced: false,
        rotates: false,
        eligible: false,
        online: vcpu.online,
    }
}

/// Equal masks are kept once.
fn number_of(cpus: &mut Cpus, mask: Vec<u64>) -> u32 {
    let known = cpus.masks.iter().position(|m| *m == mask);
    index(known.unwrap_or_else(|| {
        cpus.masks.push(mask);
        cpus.masks.len() - 1
    }))
}

/// The host as `corefit_core` divides it: what its VMs are entitled to.
#[must_use]
pub fn division(spec: &Spec) -> entitle::Host {
    let xen = spec.policy.is_xen();
    let vcpu = |v: &VcpuSpec| entitle::Vcpu {
        weight: Weight(f64::from(v.weight)),
        quota: v.limit.filter(|_| !xen).map(|limit| Amount(limit.cpus())),
        affinity: Some(v.affinity.clone()),
        online: v.online,
        ..entitle::Vcpu::default()
    };
    let vm = |vm: &VmSpec| entitle::Vm {
        name: vm.name.clone(),
        weight: Weight(f64::from(vm.weight)),
        cap: vm.cap.map(|cap| Amount(cap.cpus())),
        vcpus: vm.vcpus.iter().map(vcpu).collect(),
    };
    entitle::Host {
        rule: if xen { WeightRule::XenCredit } else { WeightRule::Linux },
        pcpus: CpuSet::first(spec.hardware.pcpus()),
        vms: spec.vms.iter().map(vm).collect(),
        ..entitle::Host::default()
    }
}

/// A cap as the second credit scheduler keeps to it: in periods of 10 ms (`CSCHED2_BDGT_REPL_PERIOD`).
fn budget(cap: Limit) -> Limit {
    const PERIOD_NS: u64 = 10_000_000;
    let quota = u128::from(cap.quota_ns) * u128::from(PERIOD_NS) / u128::from(cap.period_ns.max(1));
    Limit { quota_ns: u64::try_from(quota).unwrap_or(NEVER).max(1), period_ns: PERIOD_NS, burst_ns: 0 }
}

/// What each vCPU is entitled to.
pub(super) fn shares(spec: &Spec) -> Result<Vec<Part>, SpecError> {
    let division =
        entitled(&division(spec)).map_err(|e| SpecError { path: "vm".into(), what: e.to_string() })?;
    let all =
        (0..division.vms()).flat_map(|vm| division.vcpus(vm).iter().map(|share| Part::new(share.cpus.0)));
    Ok(all.collect())
}
