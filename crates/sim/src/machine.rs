//! The simulated host as controllers see it: settings and counters of a real host, nothing else.

use std::time::Duration;

use corefit_core::entitle::WeightRule;
use corefit_core::machine::{
    CacheUse, Counters, FairSlices, GuestVcpu, GuestView, Machine, MachineError, Pcpu, Role, Snapshot, State,
    VcpuState, VmId, VmState,
};
use corefit_core::topology::Cache;
use corefit_core::{CpuId, Quota, Time, Weight};

use crate::cpus::{NONE, VState};
use crate::host::{Sim, TState};
use crate::spec::Limit;

/// What a line that is not in the cache takes, as `corefit_core::machine::TRAFFIC` has it.
const MISS_NS: u64 = 80;
const LINE_BYTES: u64 = 64;
/// Why nothing is counted.
const UNCOUNTED: &str =
    "this simulated host has no counters of caches (cache_counters of its scenario is off)";

/// A simulated host that passes for a real one.
#[derive(Debug)]
pub struct SimMachine {
    sim: Sim,
    name: String,
    agent: bool,
    cache_counters: bool,
    /// What each VM was told that it gets.
    told: Vec<Option<corefit_core::Cpus>>,
}

impl SimMachine {
    /// `name`: for people, such as the scenario's file. `agent`: VMs have guest agents that answer.
    #[must_use]
    pub fn new(sim: Sim, name: &str, agent: bool) -> SimMachine {
        let told = vec![None; sim.spec.vms.len()];
        SimMachine { sim, name: name.into(), agent, cache_counters: false, told }
    }

    /// The same with hardware that counts what VMs do to caches.
    #[must_use]
    pub fn counting_caches(mut self, counting: bool) -> SimMachine {
        self.cache_counters = counting;
        self
    }

    /// What really happened: for tests and reports.
    #[must_use]
    pub fn sim(&self) -> &Sim {
        &self.sim
    }

    /// Lets time pass, but not beyond the end of all programs that have one, nor beyond the end of the host's time
    /// ([`Sim::run`]); whether neither has come.
    pub fn pass_at_most(&mut self, time: Duration) -> bool {
        self.sim.run_at_most(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }

    pub(crate) fn sim_mut(&mut self) -> &mut Sim {
        &mut self.sim
    }

    pub(crate) fn told(&self, vm: usize) -> Option<corefit_core::Cpus> {
        self.told[vm]
    }

    pub(crate) fn tell(&mut self, vm: usize, cpus: Option<corefit_core::Cpus>) {
        self.told[vm] = cpus;
    }

    pub(crate) fn number(&self, vm: &VmId) -> Result<usize, MachineError> {
        let number = vm.0.strip_prefix("sim-").and_then(|n| n.parse().ok());
        let number = number.filter(|&n: &usize| n < self.sim.spec.vms.len());
        number.ok_or_else(|| MachineError::Gone(format!("{}: there is no VM {}", self.name, vm.0)))
    }

    fn pcpu(&self, p: u32) -> Pcpu {
        let topology = &self.sim.cpus.topology;
        let place = topology.places[p as usize];
        Pcpu {
            id: CpuId(p),
            online: true,
            node: Some(place.node),
            package: Some(place.socket),
            siblings: Some(topology.siblings[place.core as usize].iter().map(|&q| CpuId(q)).collect()),
            idle_ns: Some(self.sim.idle_ns(p)),
            steal_ns: Some(0),
        }
    }

    fn vm(&self, number: usize) -> VmState {
        let spec = &self.sim.spec.vms[number];
        let linux = !self.sim.spec.policy.is_xen();
        let first = self.sim.cpus.vms[number].first;
        let vcpus = (first..).zip(&spec.vcpus).map(|(v, vcpu)| {
            let ran_on = self.sim.cpus.vcpus[v as usize].ran_on;
            VcpuState {
                online: self.sim.cpus.vcpus[v as usize].online,
                weight: linux.then(|| Weight(f64::from(vcpu.weight))),
                quota: vcpu.limit.filter(|_| linux).map(|limit| quota(&limit)),
                throttled: vcpu.limit.and_then(|_| self.sim.throttled(v)).filter(|_| linux),
                affinity: Some(vcpu.affinity.clone()),
                counters: Counters {
                    run_ns: Some(self.sim.run_ns(v)),
                    wait_ns: Some(self.sim.waited_ns(v)),
                    runs: Some(self.sim.cpus.runs[v as usize]),
                },
                on: (ran_on != NONE).then_some(CpuId(ran_on)),
                pin: None,
            }
        });
        VmState {
            id: VmId(format!("sim-{number}")),
            name: spec.name.clone(),
            role: Role::Vm,
            state: State::Running,
            weight: Some(Weight(f64::from(spec.weight))),
            quota: spec.cap.as_ref().map(quota),
            throttled: spec.cap.and_then(|_| self.sim.throttled_vm(number)),
            vcpus: vcpus.collect(),
            memory_nodes: (!spec.memory_nodes.is_empty()).then(|| spec.memory_nodes.clone()),
            guest: self.agent.then(|| self.guest(number)),
            progress: spec.progress.then(|| self.progress(number)),
            cache: self.cache_counters.then(|| self.cache(number)),
            slices: self.slices(number),
            fixed: self.fixed_of(number),
            ..VmState::default()
        }
    }

    fn slices(&self, number: usize) -> Option<FairSlices> {
        let crate::Policy::Cfs(cfs) = self.sim.spec.policy else { return None };
        let base_ns = cfs.base_slice_ns;
        let each = || self.sim.spec.vms[number].vcpus.iter().map(|vcpu| vcpu.slice_ns.unwrap_or(base_ns));
        let (least_ns, most_ns) = (each().min()?, each().max()?);
        cfs.deadlines.then_some(FairSlices { base_ns, least_ns, most_ns, without: 0 })
    }

    /// What a program's runtime counts: marks, and what its teams did together.
    fn progress(&self, number: usize) -> f64 {
        let apps = self.sim.apps.iter().filter(|app| app.vm as usize == number);
        apps.map(|app| (app.marks + app.steps) as f64).sum()
    }

    /// What counters of the hardware would show: those of its vCPUs that run hold what of their footprints fits; each
    /// time that work waits for a line that is not in the cache, one moves.
    fn cache(&self, number: usize) -> CacheUse {
        let vm = &self.sim.cpus.vms[number];
        let running = (0..self.sim.pcpus()).filter_map(|p| {
            let pcpu = &self.sim.cpus.pcpus[p as usize];
            let here = pcpu.run != NONE && (vm.first..vm.first + vm.count).contains(&pcpu.run);
            (here && pcpu.counted > 0).then(|| self.sim.cpus.topology.held(p, pcpu.counted as usize - 1))
        });
        CacheUse {
            occupancy_bytes: Some(running.sum()),
            traffic_bytes: Some(self.sim.missed_ns(number) / MISS_NS * LINE_BYTES),
        }
    }

    /// A node's cache.
    fn caches(&self) -> Vec<Cache> {
        let topology = &self.sim.cpus.topology;
        let nodes = topology.places.iter().map(|place| place.node).max().map_or(0, |node| node + 1);
        let size_kib = Some(u64::from(self.sim.spec.hardware.cache_kib));
        let of = |node| (0..self.sim.pcpus()).filter(move |p| topology.places[*p as usize].node == node);
        (0..nodes).map(|node| Cache { level: 3, size_kib, pcpus: of(node).map(CpuId).collect() }).collect()
    }

    /// A guest's clock counts what is stolen as what it waited for; idle is the rest.
    fn guest(&self, number: usize) -> GuestView {
        let vm = &self.sim.cpus.vms[number];
        let vcpus = (vm.first..vm.first + vm.count).map(|v| {
            let (busy, steal) = (self.sim.run_ns(v), self.sim.waited_ns(v));
            GuestVcpu {
                id: v - vm.first,
                online: self.sim.cpus.vcpus[v as usize].online,
                busy_ns: Some(busy),
                idle_ns: Some(self.sim.now.saturating_sub(busy + steal)),
                steal_ns: Some(steal),
                nice_ns: Some(0),
                iowait_ns: Some(0),
            }
        });
        let apps = self.sim.apps.iter().filter(|app| app.vm as usize == number);
        let threads = apps.flat_map(|app| app.first..app.first + app.threads);
        let runnable = threads.filter(|&t| {
            let thread = &self.sim.threads[t as usize];
            let halted = self.sim.cpus.vcpus[thread.vcpu as usize].state == VState::Halted;
            matches!(thread.state, TState::Current | TState::Ready) && !halted
        });
        GuestView { vcpus: vcpus.collect(), runnable: u32::try_from(runnable.count()).ok(), work: None }
    }
}

fn quota(limit: &Limit) -> Quota {
    Quota {
        quota_us: Some(limit.quota_ns.div_ceil(1000)),
        period_us: (limit.period_ns / 1000).max(1),
        burst_us: limit.burst_ns.div_ceil(1000),
        source: "scenario".into(),
    }
}

impl Machine for SimMachine {
    fn name(&self) -> String {
        format!("simulation of {}", self.name)
    }

    fn observe(&mut self) -> Result<Snapshot, MachineError> {
        Ok(Snapshot {
            at: Time(self.sim.now),
            rule: if self.sim.spec.policy.is_xen() { WeightRule::XenCredit } else { WeightRule::Linux },
            pcpus: (0..self.sim.pcpus()).map(|p| self.pcpu(p)).collect(),
            caches: self.caches(),
            vms: (0..self.sim.spec.vms.len()).map(|vm| self.vm(vm)).collect(),
            uncounted: (!self.cache_counters).then(|| UNCOUNTED.into()),
            ..Snapshot::default()
        })
    }

    fn pass(&mut self, time: Duration) -> Result<bool, MachineError> {
        self.sim.run_for(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        Ok(true)
    }
}
