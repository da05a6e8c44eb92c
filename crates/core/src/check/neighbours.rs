//! VMs against each other and against their own helpers: pCPUs dedicated twice, weights without effect.

use std::collections::BTreeSet;

use super::change::{Change, Cure, Filled, after};
use super::propose::{LATER, Taken};
use super::{Context, Finding, HelperKind, Manager, Report, Rule, Severity, busy, cure};
use crate::entitle::{self, Host, WeightRule};
use crate::topology::Topology;
use crate::{CpuSet, Cpus, Weight};

/// What a VM may lose of the part that its weight gives before that is reported.
const TOLERATED: f64 = 0.1;
/// Where no weight is set: of control groups v1, and of v2.
const USUAL: (Weight, Weight) = (Weight(1024.0), Weight(100.0));
/// Where no weight is set in Xen.
const USUAL_XEN: Weight = Weight(256.0);

/// Where a helper has no place.
const NO_HELPER_ROOM: &str = "no pCPU is left for it: pin vCPUs so that one has none, then pin it there";
/// Where neither of two VMs can move.
const NO_FREE: &str = "pin one of them elsewhere: here are no free pCPUs for this one";

pub(super) fn check(context: &Context<'_>, number: usize, report: &mut Report<'_, '_>) {
    overlap(context, number, report);
    helpers(context, number, report);
}

/// pCPUs dedicated to two VMs; said at the later one.
fn overlap(context: &Context<'_>, number: usize, report: &mut Report<'_, '_>) {
    let vm = report.vm;
    let Some(mine) = &context.dedicated[number] else { return pool(context, number, report) };
    let cure = || context.repinned(number, NO_FREE);
    for number in context.owners_of(mine).range(..number) {
        let (other, theirs) = (&context.subject.vms[*number], &context.dedicated[*number]);
        let both = theirs.as_ref().map(|theirs| theirs.intersection(mine)).unwrap_or_default();
        if both.is_empty() {
            continue;
        }
        let at = other.affinity_place();
        let text = format!(
            "{} {} dedicated to {} as well ({at}): whenever both are busy, one of them stands still there",
            both.named("pCPU"),
            if both.len() == 1 { "is" } else { "are" },
            other.name,
        );
        report.add(Rule::DedicatedOverlap, Severity::Error, vm.affinity_place(), text, cure());
    }
    let Some(shared) = &context.subject.shared else { return };
    let both = shared.value.intersection(mine);
    if vm.exclusive && !both.is_empty() {
        let text = format!(
            "{} {} dedicated to it and in the set for everybody else ({}): any other container may run there",
            both.named("pCPU"),
            if both.len() == 1 { "is" } else { "are" },
            shared.place
        );
        report.add(Rule::DedicatedOverlap, Severity::Error, vm.affinity_place(), text, cure());
    }
}

/// The set for everybody who has no pCPUs of his own, where it names some that the host has not.
pub(super) fn shared(context: &Context<'_>) -> Option<Finding> {
    let (shared, topology) = context.subject.shared.as_ref().zip(context.topology)?;
    let absent = shared.value.difference(&topology.pcpus);
    let text = format!(
        "{} {} not exist here (the host has {}): the state is another host's, and kubelet does not start with it",
        absent.named("pCPU"),
        if absent.len() == 1 { "does" } else { "do" },
        topology.pcpus
    );
    let finding = Finding {
        rule: Rule::AbsentPcpu,
        severity: Severity::Error,
        vm: shared.place.element.clone(),
        place: shared.place.clone(),
        text,
        cure: cure::KUBELET.into(),
        changes: Vec::new(),
    };
    (!absent.is_empty()).then_some(finding)
}

/// A set of pCPUs for a VM some of which are dedicated to others. (A VM without a set is meant to run anywhere.)
fn pool(context: &Context<'_>, number: usize, report: &mut Report<'_, '_>) {
    let vm = report.vm;
    let Some(mine) = context.names(number).filter(|_| vm.is_guest()) else { return };
    let owners: Vec<usize> = context.owners_of(mine).into_iter().filter(|other| *other != number).collect();
    let Some(first) = owners.first().map(|first| &context.subject.vms[*first]) else { return };
    let both = mine.intersection(&context.others_own(number));
    let more = if owners.len() > 1 { format!(" and {} more", owners.len() - 1) } else { String::new() };
    let text = format!(
        "its vCPUs may run on {}, dedicated to {}{more} ({}): whoever was to have a pCPU alone waits there",
        both.named("pCPU"),
        first.name,
        first.affinity_place()
    );
    let cure = context.repinned(number, NO_FREE);
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
    // On pCPUs of the host is where helpers belong; VMs there are reported as such.
    let reserved = context.subject.reserved.as_ref().map(|set| set.value.clone()).unwrap_or_default();
    let owned = mine.union(&context.others_own(number)).difference(&reserved);
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
        if set.is_empty() || inherited || !set.is_within(&owned) {
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
        let text =
            format!("{who} can only run on {}, {whose}: a vCPU stops each time they work", set.named("pCPU"));
        let cure = context.beside(number, helper.kind, &CpuSet::default());
        report.add(Rule::HelpersOnVcpus, Severity::Warning, &helper.affinity.place, text, cure);
    }
}

impl Context<'_> {
    /// Whether no other VM may run on these, but for those to which they are dedicated, too.
    pub(super) fn is_alone(&self, number: usize, own: &CpuSet) -> bool {
        let others = (0..).zip(&self.subject.vms).filter(|(other, _)| *other != number);
        let mut sharing = others.filter(|(other, _)| self.dedicated[*other].is_none());
        sharing.all(|(_, vm)| vm.pcpus().is_some_and(|set| !set.meets(own)))
    }

    /// Gives a helper what it can use of its set; if that is nothing, pCPUs of the host, else some beside its vCPUs
    /// that no VM names, else some that are dedicated to nobody.
    pub(super) fn beside(&self, number: usize, kind: HelperKind, set: &CpuSet) -> Cure {
        let (Some(topology), Some(usable)) = (self.topology, &self.usable) else {
            return Cure::advice(NO_HELPER_ROOM);
        };
        let none = CpuSet::default();
        let mine = self.dedicated[number].as_ref().unwrap_or(&none);
        let owned = mine.union(&self.others_own(number));
        let reserved = self.subject.reserved.as_ref().map(|set| set.value.intersection(&topology.online()));
        let reserved = reserved.unwrap_or_default();
        let kept = set.intersection(&usable.union(&reserved));
        let taken = self.taken(number, true).named;
        let free = usable.difference(mine).difference(&taken);
        let near = topology.pcpus_of_nodes(&topology.nodes_of(mine)).intersection(&free);
        let kept = if kept.is_within(&owned.difference(&reserved)) { none } else { kept };
        let found = [kept, reserved, near, free, usable.difference(&owned)].into_iter().find_map(Filled::new);
        found.map_or_else(|| Cure::advice(NO_HELPER_ROOM), |set| Change::Helper(kind, set).into())
    }
}

/// Weights that promise more than affinities allow.
pub(super) fn weights(context: &Context<'_>, findings: &mut Vec<Finding>) {
    let subject = context.subject;
    let Some(topology) = context.topology.filter(|_| subject.vms.iter().any(|vm| vm.weight.is_some())) else {
        return;
    };
    let (Some(bound), Some(free)) = (divide(context, topology, true), divide(context, topology, false))
    else {
        return;
    };
    let others = findings.len();
    for (number, vm) in subject.vms.iter().enumerate() {
        let Some(weight) = &vm.weight else { continue };
        let (gets, promised) = (bound.cpus(number), free.cpus(number));
        // That none of its pCPUs is there is reported for the affinity.
        let stuck = vm.online().all(|(_, vcpu)| context.reach(vcpu).is_some_and(|set| set.is_empty()));
        if stuck || gets.0 >= (1.0 - TOLERATED) * promised.0 {
            continue;
        }
        let text = format!(
            "when everybody is busy, weight {} is good for {promised} pCPUs, but the VM gets {gets}: {}",
            weight.value.0,
            bound.words(number)
        );
        // What brings little, or trouble to others, is no cure.
        let honoured = |changes: &Vec<Change>| {
            let mut subject = subject.clone();
            subject.vms[number] = after(vm, changes);
            let context = Context::new(&subject);
            let bound = divide(&context, topology, true);
            bound.is_some_and(|bound| bound.cpus(number).0 >= gets.0 + TOLERATED * promised.0)
                && context.findings().len() <= others
        };
        let cure = match widened(context, number, &context.taken(number, false)).filter(honoured) {
            // What was just proposed for others would be in the way.
            Some(changes)
                if widened(context, number, &context.taken(number, true)).as_ref() != Some(&changes) =>
            {
                Cure::advice(LATER)
            }
            Some(changes) => Cure::Do(changes),
            None => Cure::advice("move a VM that shares its pCPUs elsewhere: it may use all that it can"),
        };
        let mut report = Report { vm, findings };
        report.add(Rule::WeightNotHonoured, Severity::Note, &weight.place, text, cure);
    }
}

/// All pCPUs that a VM may share with others. What was chosen for another reason is kept: pins one to one, siblings or
/// nodes that the guest knows of.
fn widened(context: &Context<'_>, number: usize, taken: &Taken) -> Option<Vec<Change>> {
    let vm = &context.subject.vms[number];
    let all = context.near(number).or_else(|| context.usable.clone()).unwrap_or_default();
    let siblings = vm.guest.as_ref().is_some_and(|guest| guest.value.threads > 1);
    let nodes = vm.cells.iter().any(|cell| cell.memory.is_some());
    let room = context.room(taken, &all, vm.width());
    let more = |room: &Filled| vm.pcpus().is_some_and(|own| own.len() < room.len());
    let room = room.filter(|room| more(room) && !vm.is_pinned() && !siblings && !nodes);
    let sets =
        room.map(|room| (0..).zip(&vm.vcpus).map(|(vcpu, _)| (vcpu, room.clone())).collect::<Vec<_>>());
    sets.filter(|sets| cure::differ(vm, sets)).map(|sets| context.moved(vm, sets))
}

/// What each VM gets when everybody is busy, with their affinities or as if there were none: on all pCPUs that VMs can use
/// together, and its own isolated ones, without those that are dedicated to others.
fn divide(context: &Context<'_>, topology: &Topology, affinities: bool) -> Option<entitle::Division> {
    let vms = &context.subject.vms;
    let online = topology.online();
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
        let isolated = context.sets[number].as_ref().map(|own| own.intersection(&topology.isolated));
        let free = context.usable.as_ref().map(|usable| {
            usable.union(&isolated.unwrap_or_default()).difference(&context.others_own(number))
        });
        let vcpu = |state: &super::Vcpu| entitle::Vcpu {
            quota: vm.vcpu_quota.as_ref().and_then(|quota| quota.value.cpus()).filter(positive),
            affinity: if affinities { context.reach(state) } else { free.clone() }
                .filter(|set| *set != online),
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
