//! vCPU affinity against node affinity, and vCPUs far from their memory.

use std::collections::BTreeMap;

use super::change::{Change, Cure, Filled};
use super::{Cell, Context, Manager, Memory, Place, Report, Rule, Severity, Vcpu, Vm, count, set_of};
use crate::topology::Topology;
use crate::{CpuId, CpuSet};

pub(super) fn check(context: &Context<'_>, number: usize, report: &mut Report<'_, '_>) {
    let Some(topology) = context.topology else { return };
    preferred(context, topology, report);
    if topology.nodes.is_empty() {
        // Which there are is not known.
        return;
    }
    if report.vm.cells.iter().any(|cell| cell.memory.is_some()) {
        cells(context, number, topology, report);
    } else {
        numatune(context, number, topology, report);
    }
}

/// Sets of vCPUs with the same affinity, which is everything that is usable where none is said.
fn groups(context: &Context<'_>, report: &Report<'_, '_>) -> Vec<(CpuSet, CpuSet, Place)> {
    let mut groups: Vec<(CpuSet, CpuSet, Place)> = Vec::new();
    for (vcpu, state) in report.vm.online() {
        let Some(reach) = context.reach(state).filter(|reach| !reach.is_empty()) else { continue };
        match groups.iter_mut().find(|(_, known, _)| *known == reach) {
            Some((vcpus, ..)) => *vcpus = vcpus.union(&set_of([vcpu])),
            None => {
                let place = state.affinity.as_ref().map_or(&report.vm.place, |set| &set.place);
                groups.push((set_of([vcpu]), reach, place.clone()));
            }
        }
    }
    groups
}

/// Xen's soft affinity that covers a part of the hard one only.
fn preferred(context: &Context<'_>, topology: &Topology, report: &mut Report<'_, '_>) {
    let vm = report.vm;
    // vCPUs with the same affinities, and where that is first said.
    let mut alike: BTreeMap<(CpuSet, CpuSet), (Vec<u32>, &Place)> = BTreeMap::new();
    for (vcpu, state) in vm.online() {
        let Some(soft) = &state.prefers else { continue };
        let Some(hard) = context.reach(state) else { continue };
        let first = soft.value.intersection(&hard);
        let own = vm.cells.iter().filter(|cell| cell.vcpus.contains(CpuId(vcpu)));
        let own = own.filter_map(|cell| Some(topology.pcpus_of_nodes(&cell.memory.as_ref()?.value)));
        // That it prefers to run beside its memory is what xl sees to for a guest's nodes.
        if !first.is_empty() && first != hard && !own.into_iter().any(|near| first.is_within(&near)) {
            alike.entry((hard, first)).or_insert_with(|| (Vec::new(), &soft.place)).0.push(vcpu);
        }
    }
    for ((hard, first), (vcpus, place)) in alike {
        let vcpus = set_of(vcpus);
        let text = format!(
            "Xen fills {} before the rest of {}, {}: {}",
            first.named("pCPU"),
            hard,
            if vcpus.len() == 1 { "preferred by node affinity" } else { "as node affinity says" },
            cost(context, topology, &first, &hard, vcpus.len())
        );
        let all = vm.online().filter_map(|(_, state)| context.reach(state));
        let all = Filled::new(all.fold(CpuSet::default(), |all, reach| all.union(&reach)));
        let Some(cure) = all.map(Change::Preference) else { continue };
        report.add(Rule::NodeConflict, Severity::Warning, place, text, cure);
    }
}

/// What it costs that `first` is filled before the rest of `all`: at the worst number of busy vCPUs.
fn cost(context: &Context<'_>, topology: &Topology, first: &CpuSet, all: &CpuSet, vcpus: usize) -> String {
    let units = |set: &CpuSet| context.units.iter().filter(|unit| unit.meets(set)).count();
    let (few, many) = (units(first), units(all));
    let competing = |busy: usize, units: usize| busy.saturating_sub(units).min(units);
    let worst = (1..=vcpus.min(first.len()))
        .map(|busy| (competing(busy, few) - competing(busy, many).min(competing(busy, few)), busy))
        .max_by_key(|(more, busy)| (*more, std::cmp::Reverse(*busy)));
    match worst {
        Some((more, busy)) if more > 0 => format!(
            "with {busy} busy vCPUs {} of {few} compete while {} idle (Kourai and Nakata measured up to 72 % longer run times)",
            count(competing(busy, few), topology.unit_name()),
            many.saturating_sub(few)
        ),
        _ => format!("all share its caches while {} may idle", all.difference(first).named("pCPU")),
    }
}

/// Whether memory may be far from a pCPU.
fn several(topology: &Topology) -> bool {
    topology.nodes.iter().filter(|node| !node.pcpus.is_empty()).count() > 1
}

/// A VM's memory nodes against its vCPUs' nodes.
fn numatune(context: &Context<'_>, number: usize, topology: &Topology, report: &mut Report<'_, '_>) {
    let vm = report.vm;
    let Some(memory) = &vm.memory else { return };
    let nodes = match &memory.value {
        Memory::Automatic => {
            let Some(pcpus) = vm.pcpus() else { return };
            let own = topology.nodes_of(&pcpus);
            if own.is_empty() || own == topology.node_ids() || !several(topology) {
                return;
            }
            let text = format!(
                "numad chooses the memory's nodes when the VM starts, without regard to the vCPUs, which are \
                 pinned to {}",
                own.named("node")
            );
            report.add(Rule::NodeConflict, Severity::Warning, &memory.place, text, on(&own));
            return;
        }
        Memory::Nodes { nodes, .. } => nodes,
    };
    let absent = nodes.difference(&topology.node_ids());
    if !absent.is_empty() {
        let own = vm.pcpus().map(|pcpus| topology.nodes_of(&pcpus)).filter(|own| !own.is_empty());
        let cure = on(&own.unwrap_or_else(|| topology.node_ids()));
        report.add(Rule::FarMemory, Severity::Error, &memory.place, no_node(&absent, topology), cure);
        return;
    }
    if !several(topology) {
        return;
    }
    let near = topology.pcpus_of_nodes(nodes).intersection(&topology.online());
    let groups = groups(context, report);
    let all = groups.iter().fold(CpuSet::default(), |all, (_, reach, _)| all.union(reach));
    let own = topology.nodes_of(&all);
    if own.is_empty() {
        return; // no vCPU has a pCPU: that is what is reported
    }
    let far: Vec<&(CpuSet, CpuSet, Place)> =
        groups.iter().filter(|(_, reach, _)| !reach.meets(&near)).collect();
    if let Some((_, _, place)) = far.first() {
        let vcpus = far.iter().fold(CpuSet::default(), |all, (vcpus, ..)| all.union(vcpus));
        let theirs = far.iter().fold(CpuSet::default(), |all, (_, reach, _)| all.union(reach));
        let text = format!(
            "{} {} on {}, the memory is on {}: every access that misses the caches crosses nodes",
            vcpus.named("vCPU"),
            if vcpus.len() == 1 { "runs" } else { "run" },
            topology.nodes_of(&theirs).named("node"),
            nodes.named("node")
        );
        report.add(Rule::FarMemory, Severity::Warning, place, text, on(&own));
        return;
    }
    let leaving: Vec<&(CpuSet, CpuSet, Place)> =
        groups.iter().filter(|(_, reach, _)| !reach.is_within(&near)).collect();
    if let Some((_, reach, place)) = leaving.first() {
        let vcpus = leaving.iter().fold(CpuSet::default(), |all, (vcpus, ..)| all.union(vcpus));
        let first = reach.intersection(&near);
        let text = format!(
            "{} may run on {}, the memory is on {} only: elsewhere every access that misses the caches crosses \
             nodes, and the kernel's NUMA balancing draws them to it, where {}",
            vcpus.named("vCPU"),
            topology.nodes_of(reach).named("node"),
            nodes.named("node"),
            cost(context, topology, &first, reach, vcpus.len())
        );
        let stays = |after: &Vm| after.pcpus().is_some_and(|pcpus| pcpus.is_within(&near));
        let cure = context.repinned_if(number, stays).unwrap_or_else(|| on(&own));
        report.add(Rule::NodeConflict, Severity::Warning, place, text, cure);
        return;
    }
    let empty = nodes.difference(&own);
    if !empty.is_empty() {
        let text = format!(
            "memory also comes from {}, where none of its vCPUs runs: that part is far from all of them",
            empty.named("node")
        );
        report.add(Rule::FarMemory, Severity::Warning, &memory.place, text, on(&own));
    }
}

/// Puts the memory on the nodes of the vCPUs.
fn on(nodes: &CpuSet) -> Cure {
    let nodes = Filled::new(nodes.clone()).map(Change::Memory);
    nodes.map_or_else(
        || Cure::advice("pin its vCPUs to pCPUs of one node, and put its memory there"),
        Cure::from,
    )
}

/// NUMA nodes that the guest is shown, and where they really are.
fn cells(context: &Context<'_>, number: usize, topology: &Topology, report: &mut Report<'_, '_>) {
    let vm = report.vm;
    for cell in &vm.cells {
        let Some(memory) = &cell.memory else { continue };
        let vcpus = || vm.online().filter(|(vcpu, _)| cell.vcpus.contains(CpuId(*vcpu)));
        let absent = memory.value.difference(&topology.node_ids());
        if !absent.is_empty() {
            let used = vcpus().filter_map(|(_, state)| context.reach(state));
            let used = used.fold(CpuSet::default(), |all, reach| all.union(&reach));
            let own = [topology.nodes_of(&used), topology.node_ids()].into_iter();
            // Xen's node of a guest is on one of the host.
            let one = |nodes: CpuSet| match vm.manager {
                Manager::Xen => nodes.iter().take(1).collect(),
                _ => nodes,
            };
            let own = own.map(one).find_map(Filled::new);
            let cure =
                own.map_or_else(|| on(&CpuSet::default()), |own| Change::CellMemory(cell.id, own).into());
            report.add(Rule::FarMemory, Severity::Error, &memory.place, no_node(&absent, topology), cure);
            continue;
        }
        let far = far(vm, cell, topology);
        if far.is_empty() || !several(topology) {
            continue;
        }
        let place = far.iter().find_map(|(_, state)| state.affinity.as_ref()).map(|set| &set.place);
        let text = format!(
            "{} of guest node {} may run away from {}, where the memory of that node is: the guest places memory by a \
             nearness that is not there",
            set_of(far.iter().map(|(vcpu, _)| *vcpu)).named("vCPU"),
            cell.id,
            memory.value.named("host node")
        );
        let nodes =
            |vm: &Vm| vm.cells.iter().filter(|cell| !self::far(vm, cell, topology).is_empty()).count();
        let nearer = |after: &Vm| self::far(after, cell, topology).is_empty() && nodes(after) < nodes(vm);
        let cure = context.repinned_if(number, nearer).unwrap_or_else(|| {
            Cure::Advice(format!("free pCPUs of {} for these vCPUs", memory.value.named("host node")))
        });
        report.add(Rule::FarMemory, Severity::Warning, place.unwrap_or(&memory.place), text, cure);
    }
}

/// vCPUs of a node of the guest that may run away from where its memory is. Xen fills first what they prefer, which is
/// where the memory is, if nothing is said (`set_vnuma_affinity` in tools/libxl/libxl_dom.c).
pub(super) fn far<'a>(vm: &'a Vm, cell: &Cell, topology: &Topology) -> Vec<(u32, &'a Vcpu)> {
    let Some(memory) = &cell.memory else { return Vec::new() };
    let near = topology.pcpus_of_nodes(&memory.value).intersection(&topology.online());
    let unsaid = vm.manager == Manager::Xen && vm.vcpus.iter().all(|vcpu| vcpu.prefers.is_none());
    let is_far = |state: &Vcpu| {
        let reach = state.affinity.as_ref().map(|set| set.value.intersection(&topology.online()));
        let reach = reach.unwrap_or_else(|| topology.online());
        let prefers = state.prefers.as_ref().map(|set| &set.value).or(unsaid.then_some(&near));
        let first = prefers.map(|prefers| reach.intersection(prefers)).filter(|first| !first.is_empty());
        !first.unwrap_or(reach).is_within(&near)
    };
    let vcpus = vm.online().filter(|(vcpu, _)| cell.vcpus.contains(CpuId(*vcpu)));
    vcpus.filter(|(_, state)| is_far(state)).collect()
}

/// That nodes are absent.
fn no_node(absent: &CpuSet, topology: &Topology) -> String {
    format!(
        "{} {} not exist here (the host has {}): the VM does not start",
        absent.named("node"),
        if absent.len() == 1 { "does" } else { "do" },
        topology.node_ids()
    )
}
