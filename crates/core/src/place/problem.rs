//! Problems from what was read: configurations, and machines that are watched.

use super::{Problem, Vcpu, Vm};
use crate::check::{Memory, Set, Subject};
use crate::decide::Policy;
use crate::machine::{Classed, HostEstimate, LeverKind, Role, State, VmEstimate};
use crate::topology::Topology;
use crate::{CpuId, CpuSet, Cpus, Quota, check, entitle};

/// Where nothing says what a VM weighs.
const USUAL: f64 = 1024.0;

impl Problem {
    /// The VMs of configurations. Who was not watched counts as busy. A control group whose set is everything is
    /// left alone: a smaller one would be a limit that nobody asked for; so is what Kubernetes manages.
    #[must_use]
    pub fn of_subject(subject: &Subject) -> Problem {
        let topology = subject.topology.clone().unwrap_or_default();
        let online = topology.online();
        let vms = subject.vms.iter().map(|vm| {
            let narrow = vm.pcpus().is_some_and(|set| !online.is_within(&set));
            let vcpus = vm.online().map(|(id, vcpu)| Vcpu {
                id,
                demand: vcpu.demand.map_or(1.0, |demand| demand.0),
                now: vcpu.affinity.as_ref().map(|set| set.value.clone()),
                on: vcpu.affinity.as_ref().and_then(|set| only(&set.value)),
                memory: vm
                    .cells
                    .iter()
                    .find(|cell| cell.vcpus.contains(CpuId(id)))
                    .and_then(|cell| cell.memory.as_ref().map(|nodes| nodes.value.clone())),
            });
            let mut vcpus: Vec<Vcpu> = vcpus.collect();
            let limit = |quota: Option<&Set<Quota>>| quota.and_then(|quota| quota.value.cpus());
            within(&mut vcpus, |_| limit(vm.vcpu_quota.as_ref()), limit(vm.cap.as_ref()));
            Vm {
                name: vm.name.clone(),
                class: vm.class.clone(),
                weight: vm.weight.as_ref().map_or(USUAL, |weight| weight.value.0),
                memory: vm.memory.as_ref().and_then(|memory| match &memory.value {
                    Memory::Nodes { nodes, .. } => Some(nodes.clone()),
                    Memory::Automatic => None,
                }),
                // Where it runs already, Xen leaves memory where the domain was built.
                memory_moves: !(vm.manager == check::Manager::Xen && vm.running),
                stays: vm.manager == check::Manager::Kubernetes || !vm.is_guest() && !narrow,
                one_set: !vm.is_guest(),
                vcpus,
                ..Vm::default()
            }
        });
        let reserved = subject.reserved.as_ref().map(|set| set.value.clone()).unwrap_or_default();
        Problem { vms: vms.collect(), topology, reserved }
    }

    /// The VMs of a machine that is watched, and what else uses its pCPUs, which stays.
    #[must_use]
    pub fn of_estimate(host: &HostEstimate, topology: &Topology) -> Problem {
        let online = topology.online();
        let both = host.vms.iter().zip(host.host.all_vms());
        let running = both.filter(|(vm, _)| vm.seen.state == State::Running);
        let vms = running.map(|(vm, divided)| of_vm(vm, divided, &online));
        Problem { topology: topology.clone(), reserved: CpuSet::default(), vms: vms.collect() }
    }

    /// The same with what an administrator says of its VMs (class, priority, to be left alone), and of pCPUs that are
    /// the host's.
    #[must_use]
    pub fn with(mut self, policy: &Policy) -> Problem {
        for vm in &mut self.vms {
            let rule = policy.of(&vm.name);
            if let Some(class) = rule.class {
                vm.class = Classed::given(class);
            }
            vm.priority = rule.priority.unwrap_or(vm.priority);
            vm.stays |= rule.exclude == Some(true);
        }
        self.reserved = self.reserved.union(&policy.reserved);
        self
    }
}

fn of_vm(vm: &VmEstimate, divided: &entitle::Vm, online: &CpuSet) -> Vm {
    let seen = &vm.seen;
    let group = seen.is_group();
    let wide = seen.vcpus.iter().all(|v| v.affinity.as_ref().is_none_or(|set| online.is_within(set)));
    // Helpers come after the vCPUs in what was divided.
    let vcpus = (0..).zip(&seen.vcpus).zip(&divided.vcpus).filter(|((_, vcpu), _)| vcpu.online);
    let vcpus = vcpus.map(|((id, vcpu), divided)| Vcpu {
        id,
        // Not measured counts as busy.
        demand: divided.demand.map_or(1.0, |demand| demand.0),
        now: vcpu.affinity.clone().filter(|set| !online.is_within(set)),
        on: vcpu.on.or_else(|| vcpu.affinity.as_ref().and_then(only)),
        // A snapshot does not show guest nodes.
        memory: None,
    });
    let mut vcpus: Vec<Vcpu> = vcpus.collect();
    let quota = |vcpu: u32| divided.vcpus.get(usize::try_from(vcpu).ok()?)?.quota;
    within(&mut vcpus, quota, divided.cap);
    Vm {
        name: seen.name.clone(),
        class: vm.class.clone(),
        weight: seen.weight.map_or(USUAL, |weight| weight.0),
        memory: seen.memory_nodes.clone(),
        memory_moves: seen.fixed(LeverKind::Nodes).is_none(),
        stays: seen.role == Role::Other || group && wide || seen.fixed(LeverKind::Affinity).is_some(),
        one_set: group,
        vcpus,
        ..Vm::default()
    }
}

/// What limits leave of demands: nobody is busier than they allow.
fn within(vcpus: &mut [Vcpu], quota: impl Fn(u32) -> Option<Cpus>, cap: Option<Cpus>) {
    for vcpu in vcpus.iter_mut() {
        vcpu.demand = quota(vcpu.id).map_or(vcpu.demand, |quota| vcpu.demand.min(quota.0));
    }
    let all: f64 = vcpus.iter().map(|vcpu| vcpu.demand).sum();
    if let Some(Cpus(cap)) = cap.filter(|cap| cap.0 < all) {
        vcpus.iter_mut().for_each(|vcpu| vcpu.demand *= cap / all);
    }
}

fn only(set: &CpuSet) -> Option<CpuId> {
    if set.len() == 1 { set.iter().next() } else { None }
}
