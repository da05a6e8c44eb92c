//! VMs against each other and against their own helpers: pCPUs dedicated twice, weights without effect.

use std::collections::BTreeSet;

use super::{Context, Finding, Manager, Memory, Report, Rule, Severity, Vm, busy, cure, named};
use crate::entitle::{self, Host, WeightRule};
use crate::{CpuSet, Cpus, Weight};

/// What a VM may lose of the part that its weight gives before that is reported.
const TOLERATED: f64 = 0.1;
/// Where no weight is set: of control groups v1, and of v2.
const USUAL: (Weight, Weight) = (Weight(1024.0), Weight(100.0));
/// Where no weight is set in Xen.
const USUAL_XEN: Weight = Weight(256.0);

pub(super) fn check(context: &Context<'_>, number: usize, report: &mut Report<'_, '_>) {
    overlap(context, number, report);
    helpers(context, number, report);
}

/// pCPUs dedicated to two VMs; said at the later one.
fn overlap(context: &Context<'_>, number: usize, report: &mut Report<'_, '_>) {
    let vm = report.vm;
    let Some(mine) = &context.dedicated[number] else { return pool(context, number, report) };
    let cure = |vm: &Vm| match (vm.manager, context.propose(number)) {
        (Manager::Kubernetes, _) => cure::kubelet(),
        (_, Some(pins)) => cure::pin(vm, pins),
        (_, None) => "pin one of them elsewhere: here are no free pCPUs for this one".into(),
    };
    for number in context.owners_of(mine).range(..number) {
        let (other, theirs) = (&context.subject.vms[*number], &context.dedicated[*number]);
        let both = theirs.as_ref().map(|theirs| theirs.intersection(mine)).unwrap_or_default();
        if both.is_empty() {
            continue;
        }
        let at = other.affinity_place();
        let text = format!(
            "{} {} dedicated to {} as well ({at}): whenever both are busy, one of them stands still there",
            named("pCPU", &both),
            if both.len() == 1 { "is" } else { "are" },
            other.name,
        );
        report.add(Rule::DedicatedOverlap, Severity::Error, vm.affinity_place(), text, cure(vm));
    }
    let Some(shared) = &context.subject.shared else { return };
    let both = shared.value.intersection(mine);
    if vm.exclusive && !both.is_empty() {
        let text = format!(
            "{} {} dedicated to it and in the set for everybody else ({}): any other container may run there",
            named("pCPU", &both),
            if both.len() == 1 { "is" } else { "are" },
            shared.place
        );
        report.add(Rule::DedicatedOverlap, Severity::Error, vm.affinity_place(), text, cure(vm));
    }
}

/// A set of pCPUs for a VM some of which are dedicated to others. (A VM without a set is meant to run anywhere.)
fn pool(context: &Context<'_>, number: usize, report: &mut Report<'_, '_>) {
    let vm = report.vm;
    let Some(mine) = context.sets[number].as_ref().filter(|set| vm.is_guest() && context.is_narrow(set))
    else {
        return;
    };
    let owners: Vec<usize> = context.owners_of(mine).into_iter().filter(|other| *other != number).collect();
    let Some(first) = owners.first().map(|first| &context.subject.vms[*first]) else { return };
    let both = mine.intersection(&context.others_own(number));
    let more = if owners.len() > 1 { format!(" and {} more", owners.len() - 1) } else { String::new() };
    let text = format!(
        "its vCPUs may run on {}, dedicated to {}{more} ({}): whoever was to have a pCPU alone waits there",
        named("pCPU", &both),
        first.name,
        first.affinity_place()
    );
    let rest = mine.difference(&both);
    let cure = if rest.len() >= vm.width() {
        cure::cpus(vm, &rest)
    } else {
        context.propose(number).map_or_else(
            || "pin one of them elsewhere: here are no free pCPUs for this one".into(),
            |pins| cure::place(vm, pins),
        )
    };
    report.add(Rule::DedicatedOverlap, Severity::Warning, vm.affinity_place(), text, cure);
}

/// Helpers that can run nowhere but on dedicated pCPUs: of their own VM's vCPUs, or of others.
fn helpers(context: &Context<'_>, number: usize, report: &mut Report<'_, '_>) {
    let vm = report.vm;
    let none = CpuSet::default();
    let mine = context.dedicated[number].as_ref().unwrap_or(&none);
    if vm.helpers.is_empty() {
        return;
    }
    let theirs = context.others_own(number);
    for helper in &vm.helpers {
        let set = match &context.topology {
            Some(topology) => helper.affinity.value.intersection(&topology.online()),
            None => helper.affinity.value.clone(),
        };
        // A set that it has from the vCPUs is reported for these.
        let inherited = mine.is_empty()
            && vm
                .online()
                .any(|(_, vcpu)| vcpu.affinity.as_ref().is_some_and(|a| a.value == helper.affinity.value));
        if set.is_empty() || inherited || !set.is_within(&mine.union(&theirs)) {
            continue;
        }
        let who = match helper.kind {
            super::HelperKind::Emulator => "the emulator's threads".into(),
            super::HelperKind::Iothread(number) => format!("I/O thread {number}"),
        };
        let owner = context.owners_of(&set).into_iter().find(|other| *other != number);
        let whose = match owner.map(|owner| &context.subject.vms[owner].name) {
            Some(owner) if !set.is_within(mine) => format!("dedicated to {owner}"),
            _ => "which the vCPUs have one to one".into(),
        };
        let text = format!(
            "{who} can only run on {}, {whose}: a vCPU stops each time they work",
            named("pCPU", &set)
        );
        let reserved = context.subject.reserved.as_ref().map(|set| set.value.clone());
        let others = context.others(number);
        let isolated = context.topology.map(|t| t.isolated.clone()).unwrap_or_default();
        let free = context
            .usable
            .as_ref()
            .map(|usable| usable.difference(mine).difference(&others).difference(&isolated));
        // Beside the vCPUs if possible: on their nodes.
        let near = context.topology.map(|t| t.pcpus_of_nodes(&t.nodes_of(mine)));
        let near = free.as_ref().zip(near).map(|(free, near)| free.intersection(&near));
        let target = [reserved, near, free].into_iter().flatten().find(|set| !set.is_empty());
        let cure = target.map_or_else(
            || "keep a pCPU without vCPUs for it".into(),
            |set| cure::helper(vm, helper.kind, &set),
        );
        report.add(Rule::HelpersOnVcpus, Severity::Warning, &helper.affinity.place, text, cure);
    }
}

/// Weights that promise more than affinities allow.
pub(super) fn weights(context: &Context<'_>, findings: &mut Vec<Finding>) {
    let subject = context.subject;
    if context.topology.is_none() || subject.vms.iter().all(|vm| vm.weight.is_none()) {
        return;
    }
    let (Some(bound), Some(free)) = (divide(context, true), divide(context, false)) else { return };
    for (number, vm) in subject.vms.iter().enumerate() {
        let Some(weight) = &vm.weight else { continue };
        let (gets, promised) = (bound.cpus(number), free.cpus(number));
        if gets.0 >= (1.0 - TOLERATED) * promised.0 {
            continue;
        }
        let text = format!(
            "when everybody is busy, weight {} is good for {promised} pCPUs, but the VM gets {gets}: {}",
            weight.value.0,
            bound.words(number)
        );
        let wide = context.usable.clone().unwrap_or_default().difference(&context.others_own(number));
        let wide = context.topology.map_or(wide.clone(), |topology| {
            let wide = wide.difference(&topology.isolated);
            match vm.memory.as_ref().map(|memory| &memory.value) {
                Some(Memory::Nodes { nodes, .. }) => wide.intersection(&topology.pcpus_of_nodes(nodes)),
                _ => wide,
            }
        });
        let cure = if vm.pcpus().as_ref() == Some(&wide) {
            "move a VM that shares its pCPUs elsewhere: it may use all there are near its memory".into()
        } else {
            cure::cpus(vm, &wide)
        };
        findings.push(Finding {
            rule: Rule::WeightNotHonoured,
            severity: Severity::Note,
            vm: vm.name.clone(),
            place: weight.place.clone(),
            text,
            cure,
        });
    }
}

/// What each VM gets when everybody is busy, with their affinities or as if there were none.
fn divide(context: &Context<'_>, affinities: bool) -> Option<entitle::Division> {
    let topology = context.topology?;
    let vms = &context.subject.vms;
    // Weights of control groups v2 are about 100; those of v1, which libvirt's test VMs have, about 1024.
    let small = vms.iter().filter_map(|vm| vm.weight.as_ref()).all(|weight| weight.value.0 <= 1000.0);
    let xen = vms.iter().any(|vm| vm.manager == Manager::Xen);
    let usual = if xen {
        USUAL_XEN
    } else if small {
        USUAL.1
    } else {
        USUAL.0
    };
    let mut seen = BTreeSet::new();
    let vms = vms.iter().enumerate().map(|(number, vm)| {
        let vcpu = |state: &super::Vcpu| entitle::Vcpu {
            quota: vm.vcpu_quota.as_ref().and_then(|quota| quota.value.cpus()).filter(positive),
            affinity: state.affinity.as_ref().filter(|_| affinities).map(|set| set.value.clone()),
            demand: state.demand,
            fixed: !busy(state),
            online: state.online,
            ..entitle::Vcpu::default()
        };
        entitle::Vm {
            name: if seen.insert(&vm.name) { vm.name.clone() } else { format!("{} #{number}", vm.name) },
            weight: vm.weight.as_ref().map_or(usual, |weight| weight.value),
            cap: vm.cap.as_ref().and_then(|cap| cap.value.cpus()).filter(positive),
            vcpus: vm.vcpus.iter().map(vcpu).collect(),
        }
    });
    let host = Host {
        rule: if xen { WeightRule::XenCredit } else { WeightRule::Linux },
        pcpus: topology.pcpus.clone(),
        offline: topology.offline.clone(),
        vms: vms.collect(),
        ..Host::default()
    };
    entitle::entitled(&host).ok()
}

fn positive(cpus: &Cpus) -> bool {
    cpus.0 > 0.0
}
