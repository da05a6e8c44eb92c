//! Where a VM's vCPUs could be pinned instead: one to a core while there are cores, on the nodes of its
//! memory, and beside nobody else.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use super::{Context, Memory, Vm};
use crate::{CpuId, CpuSet};

/// A pCPU for each of its vCPUs.
pub(super) type Pins = BTreeMap<u32, CpuId>;

impl Context<'_> {
    /// A pCPU of its own for each vCPU of a VM; those that are pinned well already stay. `None` if pCPUs
    /// that nobody else has do not suffice, or if that is how it is.
    pub(super) fn propose(&self, number: usize) -> Option<&Pins> {
        self.proposed[number]
            .get_or_init(|| self.pins(number).filter(|pins| self.differs(number, pins)))
            .as_ref()
    }

    /// Whether following a proposal would change anything.
    fn differs(&self, number: usize, pins: &Pins) -> bool {
        let vm = &self.subject.vms[number];
        let set = |vcpu: u32| {
            let vcpu = usize::try_from(vcpu).ok().and_then(|vcpu| vm.vcpus.get(vcpu));
            vcpu.and_then(|vcpu| vcpu.affinity.as_ref()).map(|set| &set.value)
        };
        if vm.is_pinned() {
            return pins.iter().any(|(vcpu, cpu)| set(*vcpu) != Some(&CpuSet::from_iter([*cpu])));
        }
        let all: CpuSet = pins.values().copied().collect();
        pins.keys().any(|vcpu| set(*vcpu) != Some(&all))
    }

    fn pins(&self, number: usize) -> Option<Pins> {
        let vm = &self.subject.vms[number];
        let isolated = self.topology.map(|t| t.isolated.clone()).unwrap_or_default();
        let own = vm.pcpus().unwrap_or_default();
        let reserved = self.subject.reserved.as_ref().map(|set| set.value.clone()).unwrap_or_default();
        let avoid = self.others(number).union(&isolated.difference(&own)).union(&reserved);
        let free = self.usable.as_ref()?.difference(&avoid);
        let regions = self.regions(vm, &free, &avoid);
        let mut pins = Pins::new();
        let mut taken: BTreeSet<CpuId> = BTreeSet::new();
        // Units that nobody avoids and nobody was given yet.
        let mut clear: Vec<bool> = self.units.iter().map(|unit| !unit.meets(&avoid)).collect();
        for (vcpu, state) in vm.online() {
            let pin = state.affinity.as_ref().filter(|set| set.value.len() == 1);
            let Some(cpu) = pin.and_then(|set| set.value.iter().next()) else { continue };
            let Some(unit) = self.unit_of.get(&cpu) else { continue };
            let near = regions.first().is_none_or(|region| region.contains(cpu));
            if free.contains(cpu) && near && std::mem::take(&mut clear[*unit]) {
                pins.insert(vcpu, cpu);
                taken.insert(cpu);
            }
        }
        // Whole units first, in the best region and then the next; siblings only when none is left.
        let mut order: Vec<CpuId> = Vec::new();
        for whole in [true, false] {
            for region in &regions {
                for (number, unit) in self.units.iter().enumerate() {
                    if whole && !clear[number] || !unit.meets(region) {
                        continue;
                    }
                    let here = unit.intersection(region);
                    let mut next = here.iter().filter(|cpu| !taken.contains(cpu));
                    let next: Vec<CpuId> =
                        if whole { next.next().into_iter().collect() } else { next.collect() };
                    if whole && !next.is_empty() {
                        clear[number] = false;
                    }
                    taken.extend(&next);
                    order.extend(next);
                }
            }
        }
        let mut order = order.into_iter();
        for (vcpu, _) in vm.online() {
            if let Entry::Vacant(free) = pins.entry(vcpu) {
                free.insert(order.next()?);
            }
        }
        Some(pins)
    }

    /// Free pCPUs in two parts: those to take first, and all others. First come the nodes of the VM's memory, those
    /// that it uses now, or any one node, whichever first has a whole unit for each vCPU.
    fn regions(&self, vm: &Vm, free: &CpuSet, avoid: &CpuSet) -> Vec<CpuSet> {
        let Some(topology) = self.topology else { return vec![free.clone()] };
        let memory = vm.memory.as_ref().and_then(|memory| match &memory.value {
            Memory::Nodes { nodes, .. } => Some(topology.pcpus_of_nodes(nodes)),
            Memory::Automatic => None,
        });
        let now = vm.pcpus().map(|pcpus| topology.pcpus_of_nodes(&topology.nodes_of(&pcpus)));
        let nodes = topology.nodes.iter().map(|node| node.pcpus.clone());
        let candidates: Vec<CpuSet> = memory.into_iter().chain(now).chain(nodes).collect();
        let whole = |region: &CpuSet| {
            let near = region.intersection(free);
            self.units.iter().filter(|unit| !unit.meets(avoid) && unit.meets(&near)).count()
        };
        let fits = candidates.iter().find(|region| whole(region) >= vm.width());
        let near = fits.or(candidates.first()).cloned().unwrap_or_default().intersection(free);
        let far = free.difference(&near);
        [near, far].into_iter().filter(|region| !region.is_empty()).collect()
    }
}
