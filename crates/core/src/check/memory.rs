//! vCPU affinity against node affinity, and vCPUs far from their memory.

use std::collections::BTreeMap;

use super::{Context, Manager, Memory, Place, Report, Rule, Severity, count, cure, named, set_of};
use crate::topology::Topology;
use crate::{CpuId, CpuSet};

pub(super) fn check(context: &Context<'_>, _number: usize, report: &mut Report<'_, '_>) {
    let Some(topology) = context.topology else { return };
    preferred(context, topology, report);
    let with_cpus = topology.nodes.iter().filter(|node| !node.pcpus.is_empty()).count();
    if with_cpus < 2 {
        return;
    }
    if report.vm.cells.iter().any(|cell| cell.memory.is_some()) {
        cells(topology, report);
    } else {
        numatune(context, topology, report);
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
        if !first.is_empty() && first != hard {
            alike.entry((hard, first)).or_insert_with(|| (Vec::new(), &soft.place)).0.push(vcpu);
        }
    }
    for ((hard, first), (vcpus, place)) in alike {
        let vcpus = set_of(vcpus);
        let text = format!(
            "Xen fills {} before the rest of {}, {}: {}",
            named("pCPU", &first),
            hard,
            if vcpus.len() == 1 { "preferred by node affinity" } else { "as node affinity says" },
            cost(context, topology, &first, &hard, vcpus.len())
        );
        let nodes = topology.nodes_of(&hard);
        let soft = if topology.pcpus_of_nodes(&nodes).intersection(&topology.online()) == hard {
            cure::xl_nodes(&nodes)
        } else {
            hard.to_string()
        };
        let now = format!("xl vcpu-pin {} all - {hard}", cure::quoted(&vm.name));
        let cure = if vm.running { now } else { format!("cpus_soft = \"{soft}\", or now: {now}") };
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
        _ => format!("all share its caches while {} may idle", named("pCPU", &all.difference(first))),
    }
}

/// A VM's memory nodes against its vCPUs' nodes.
fn numatune(context: &Context<'_>, topology: &Topology, report: &mut Report<'_, '_>) {
    let vm = report.vm;
    let Some(memory) = &vm.memory else { return };
    let nodes = match &memory.value {
        Memory::Automatic => {
            let Some(pcpus) = vm.pcpus() else { return };
            let own = topology.nodes_of(&pcpus);
            if own == topology.node_ids() {
                return;
            }
            let text = format!(
                "numad chooses the memory's nodes when the VM starts, without regard to the vCPUs, which are \
                 pinned to {}",
                named("node", &own)
            );
            let cure = cure::memory(vm, &own);
            report.add(Rule::NodeConflict, Severity::Warning, &memory.place, text, cure);
            return;
        }
        Memory::Nodes { nodes, .. } => nodes,
    };
    let absent = nodes.difference(&topology.node_ids());
    if !absent.is_empty() {
        let text = format!(
            "{} {} not exist here (the host has {}): the VM does not start",
            named("node", &absent),
            if absent.len() == 1 { "does" } else { "do" },
            topology.node_ids()
        );
        let own = vm.pcpus().map_or(topology.node_ids(), |pcpus| topology.nodes_of(&pcpus));
        report.add(Rule::FarMemory, Severity::Error, &memory.place, text, cure::memory(vm, &own));
        return;
    }
    let near = topology.pcpus_of_nodes(nodes).intersection(&topology.online());
    let groups = groups(context, report);
    let all = groups.iter().fold(CpuSet::default(), |all, (_, reach, _)| all.union(reach));
    let own = topology.nodes_of(&all);
    let far: Vec<&(CpuSet, CpuSet, Place)> =
        groups.iter().filter(|(_, reach, _)| !reach.meets(&near)).collect();
    if let Some((_, _, place)) = far.first() {
        let vcpus = far.iter().fold(CpuSet::default(), |all, (vcpus, ..)| all.union(vcpus));
        let theirs = far.iter().fold(CpuSet::default(), |all, (_, reach, _)| all.union(reach));
        let text = format!(
            "{} {} on {}, the memory is on {}: every access that misses the caches crosses nodes",
            named("vCPU", &vcpus),
            if vcpus.len() == 1 { "runs" } else { "run" },
            named("node", &topology.nodes_of(&theirs)),
            named("node", nodes)
        );
        report.add(Rule::FarMemory, Severity::Warning, place, text, cure::memory(vm, &own));
        return;
    }
    let leaving: Vec<&(CpuSet, CpuSet, Place)> =
        groups.iter().filter(|(_, reach, _)| !reach.is_within(&near)).collect();
    if let Some((_, reach, place)) = leaving.first() {
        let vcpus = leaving.iter().fold(CpuSet::default(), |all, (vcpus, ..)| all.union(vcpus));
        let beyond = topology.nodes_of(&reach.difference(&near));
        let first = reach.intersection(&near);
        let text = format!(
            "{} may run on {}, the memory is on {} only: elsewhere every access that misses the caches crosses \
             nodes, and the kernel's NUMA balancing draws them to it, where {}",
            named("vCPU", &vcpus),
            named("node", &topology.nodes_of(reach)),
            named("node", nodes),
            cost(context, topology, &first, reach, vcpus.len())
        );
        let wide = vcpus.len() > near.len() || beyond.is_empty();
        let cure = if wide || pinned(report) { cure::memory(vm, &own) } else { cure::cpus(vm, &near) };
        report.add(Rule::NodeConflict, Severity::Warning, place, text, cure);
        return;
    }
    let empty = nodes.difference(&own);
    if !empty.is_empty() {
        let text = format!(
            "memory also comes from {}, where none of its vCPUs runs: that part is far from all of them",
            named("node", &empty)
        );
        report.add(Rule::FarMemory, Severity::Warning, &memory.place, text, cure::memory(vm, &own));
    }
}

fn pinned(report: &Report<'_, '_>) -> bool {
    report.vm.pcpus().is_some()
}

/// NUMA nodes that the guest is shown, and where they really are.
fn cells(topology: &Topology, report: &mut Report<'_, '_>) {
    let vm = report.vm;
    for cell in &vm.cells {
        let Some(memory) = &cell.memory else { continue };
        let near = topology.pcpus_of_nodes(&memory.value).intersection(&topology.online());
        let mut far = CpuSet::default();
        let mut place = None;
        for (vcpu, state) in vm.online().filter(|(vcpu, _)| cell.vcpus.contains(CpuId(*vcpu))) {
            let reach = state.affinity.as_ref().map(|set| set.value.intersection(&topology.online()));
            if reach.is_none_or(|reach| !reach.is_within(&near)) {
                far = far.union(&set_of([vcpu]));
                place = place.or(state.affinity.as_ref().map(|set| &set.place));
            }
        }
        if far.is_empty() {
            continue;
        }
        let text = format!(
            "{} of guest node {} may run away from {}, where the memory of that node is: the guest places memory by a \
             nearness that is not there",
            named("vCPU", &far),
            cell.id,
            named("host node", &memory.value)
        );
        let cure = if vm.manager == Manager::Libvirt {
            let pins: Vec<(u32, &CpuSet)> = far.iter().map(|vcpu| (vcpu.0, &near)).collect();
            cure::vcpupin(vm, &pins)
        } else {
            cure::cpus(vm, &near)
        };
        report.add(Rule::FarMemory, Severity::Warning, place.unwrap_or(&memory.place), text, cure);
    }
}
