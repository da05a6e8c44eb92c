//! Affinities to pCPUs that cannot be used, and too many vCPUs on too few of them.

use std::collections::BTreeMap;

use super::change::{Cure, to_fewer};
use super::matching::Crowd;
use super::propose::seat_crowds;
use super::{Context, HelperKind, Manager, Place, Report, Rule, Set, Severity, busy, count, set_of};
use crate::topology::Topology;
use crate::{CpuId, CpuSet};

/// More different sets of one VM are not reported one by one.
const MANY: usize = 64;

pub(super) fn check(context: &Context<'_>, number: usize, report: &mut Report<'_, '_>) {
    if let Some(topology) = context.topology {
        for (who, set) in groups(report, context, topology) {
            usable(context, number, topology, report, who, &set);
        }
        anywhere(context, number, topology, report);
    }
    crowded(context, number, report);
}

/// Who has an affinity.
enum Who {
    Vcpus(CpuSet),
    Helper(HelperKind),
}

/// Affinities, each once: who has it, and what it is (where it is first said).
fn groups(report: &Report<'_, '_>, context: &Context<'_>, topology: &Topology) -> Vec<(Who, Set<CpuSet>)> {
    let mut sets: BTreeMap<&CpuSet, (Vec<u32>, Set<CpuSet>)> = BTreeMap::new();
    for (vcpu, state) in report.vm.online() {
        let Some(set) = &state.affinity else { continue };
        sets.entry(&set.value).or_insert_with(|| (Vec::new(), set.clone())).0.push(vcpu);
    }
    if sets.len() > MANY {
        // Those with the same trouble together, for each has the same cure.
        let reserved = context.subject.reserved.as_ref().map(|set| set.value.clone()).unwrap_or_default();
        let mut troubles: BTreeMap<_, (Vec<u32>, Set<CpuSet>)> = BTreeMap::new();
        for (set, (vcpus, at)) in sets {
            let isolated = (set.len() > 1 && set.meets(&topology.isolated)).then_some(set);
            let gone = (!set.is_within(&topology.pcpus), set.meets(&topology.offline));
            let trouble = (gone, set.meets(&topology.online()), set.meets(&reserved), isolated);
            let all = troubles
                .entry(trouble)
                .or_insert_with(|| (Vec::new(), Set { value: CpuSet::default(), ..at.clone() }));
            all.0.extend(vcpus);
            all.1.value = all.1.value.union(set);
            if at.place < all.1.place {
                all.1.place = at.place;
            }
        }
        let found = troubles
            .into_iter()
            .filter(|((gone, _, reserved, isolated), _)| gone.0 || gone.1 || *reserved || isolated.is_some());
        return found.map(|(_, (vcpus, set))| (Who::Vcpus(set_of(vcpus)), set)).collect();
    }
    let mut sets: Vec<(CpuSet, Set<CpuSet>)> =
        sets.into_values().map(|(vcpus, set)| (set_of(vcpus), set)).collect();
    sets.sort_by_key(|(vcpus, _)| vcpus.iter().next());
    let vcpus = sets.into_iter().map(|(vcpus, set)| (Who::Vcpus(vcpus), set));
    let helpers = report.vm.helpers.iter().filter(|helper| {
        // Where nothing else is said, helpers have the vCPUs' set, which is reported for these.
        !report.vm.online().any(|(_, vcpu)| vcpu.affinity.as_ref() == Some(&helper.affinity))
    });
    let helpers = helpers.map(|helper| (Who::Helper(helper.kind), helper.affinity.clone()));
    vcpus.chain(helpers).collect()
}

/// Pins to pCPUs that are not there, offline, isolated or reserved.
fn usable(
    context: &Context<'_>,
    number: usize,
    topology: &Topology,
    report: &mut Report<'_, '_>,
    whose: Who,
    set: &Set<CpuSet>,
) {
    let Set { value: pins, place } = set;
    let manager = report.vm.manager;
    let cure = || match &whose {
        Who::Vcpus(_) => context.repinned_or_fewer(number),
        Who::Helper(kind) => context.beside(number, *kind, pins),
    };
    let who = match &whose {
        Who::Vcpus(vcpus) => vcpus.named("vCPU"),
        Who::Helper(HelperKind::Emulator) => "the emulator".into(),
        Who::Helper(HelperKind::Iothread(number)) => format!("I/O thread {number}"),
    };
    let absent = pins.difference(&topology.pcpus);
    if !absent.is_empty() {
        let happens = match manager {
            Manager::Xen => "Xen leaves them out",
            Manager::Libvirt => "the kernel refuses the set and the VM does not start",
            Manager::Cgroup | Manager::Kubernetes => "nothing can run there",
        };
        let text = format!(
            "{who}: {} {} not exist here (the host has {}); {happens}",
            absent.named("pCPU"),
            if absent.len() == 1 { "does" } else { "do" },
            topology.pcpus
        );
        let severity = if manager == Manager::Xen && pins.meets(&topology.pcpus) {
            Severity::Warning
        } else {
            Severity::Error
        };
        report.add(Rule::AbsentPcpu, severity, place, text, cure());
    }
    let offline = pins.intersection(&topology.offline);
    if !offline.is_empty() {
        let left = pins.intersection(&topology.online());
        let what = format!(
            "{who}: {} {} offline",
            offline.named("pCPU"),
            if offline.len() == 1 { "is" } else { "are" }
        );
        let (severity, text) = if left.is_empty() {
            (Severity::Error, format!("{what}, and no other pCPU is allowed: there is nothing to run on"))
        } else {
            (Severity::Warning, format!("{what}: {} instead of {}", count(left.len(), "pCPU"), pins.len()))
        };
        report.add(Rule::OfflinePcpu, severity, place, text, cure());
    }
    let isolated = pins.intersection(&topology.isolated);
    if !isolated.is_empty() && pins.len() > 1 {
        let text = format!(
            "{who}: the kernel does not balance among isolated {}: what wakes on one stays there, and vCPUs \
             pile up while other pCPUs idle",
            isolated.named("pCPU")
        );
        report.add(Rule::IsolatedPcpu, Severity::Warning, place, text, cure());
    }
    if let Some(reserved) = &context.subject.reserved {
        let taken = pins.intersection(&reserved.value);
        // Helpers are the host's work: there is where they belong.
        if !taken.is_empty() && matches!(whose, Who::Vcpus(_)) {
            let text =
                format!("{who} may run on {}, kept for the host: each delays the other", taken.named("pCPU"));
            report.add(Rule::ReservedPcpu, Severity::Warning, place, text, cure());
        }
    }
}

/// vCPUs without an affinity, where pCPUs are kept for the host.
fn anywhere(context: &Context<'_>, number: usize, topology: &Topology, report: &mut Report<'_, '_>) {
    let Some(reserved) = context.subject.reserved.as_ref().filter(|_| report.vm.is_guest()) else { return };
    let taken = reserved.value.intersection(&topology.online());
    let free = report.vm.online().filter(|(_, vcpu)| vcpu.affinity.is_none()).map(|(vcpu, _)| vcpu);
    let vcpus = set_of(free);
    if vcpus.is_empty() || taken.is_empty() {
        return;
    }
    let text = format!(
        "{} may run on any pCPU, and so on {}, kept for the host: each delays the other",
        vcpus.named("vCPU"),
        taken.named("pCPU")
    );
    let cure = context.repinned_or_fewer(number);
    report.add(Rule::ReservedPcpu, Severity::Warning, &report.vm.place, text, cure);
}

/// vCPUs and the fewer pCPUs that they may use; `stacked`: on one pCPU, or several such crowds together.
struct Crowded {
    guests: Vec<usize>,
    seats: Vec<usize>,
    stacked: bool,
}

/// Crowds one by one, or, where they are many, those of a kind together, as their cure is the same.
fn together(crowds: Vec<Crowd>) -> Vec<Crowded> {
    let many = crowds.len() > MANY;
    let mut found: Vec<Crowded> = Vec::new();
    for Crowd { guests, seats } in crowds {
        let stacked = seats.len() == 1;
        match found.iter_mut().find(|other| many && other.stacked == stacked) {
            Some(other) => {
                other.guests.extend(guests);
                other.seats.extend(seats);
            }
            None => found.push(Crowded { guests, seats, stacked }),
        }
    }
    found.iter_mut().for_each(|crowd| crowd.guests.sort_unstable());
    found
}

/// More vCPUs than pCPUs that they may use.
fn crowded(context: &Context<'_>, number: usize, report: &mut Report<'_, '_>) {
    if !report.vm.is_guest() {
        return;
    }
    let busy = report.vm.online().filter(|(_, state)| busy(state));
    let reach = busy.filter_map(|(vcpu, state)| Some((vcpu, state, context.reach(state)?)));
    let (mut guests, mut sets) = (Vec::new(), Vec::new());
    for (vcpu, state, reach) in reach.filter(|(.., reach)| !reach.is_empty()) {
        guests.push((vcpu, state));
        sets.push((vcpu, reach));
    }
    let sets: Vec<(u32, &CpuSet)> = sets.iter().map(|(vcpu, reach)| (*vcpu, reach)).collect();
    for crowd in together(seat_crowds(&sets)) {
        let vcpus = set_of(crowd.guests.iter().map(|g| guests[*g].0));
        let pcpus: CpuSet = crowd.seats.iter().filter_map(|s| u32::try_from(*s).ok()).map(CpuId).collect();
        let first = crowd.guests.iter().find_map(|g| guests[*g].1.affinity.as_ref());
        // Where it becomes a crowd: the pin of its last member, which is the one to change most often.
        let last = crowd.guests.iter().rev().find_map(|g| guests[*g].1.affinity.as_ref());
        let pinned = first.is_some();
        let place: &Place = last.map_or(&report.vm.place, |set| &set.place);
        let fewer = report.vm.width() - (vcpus.len() - pcpus.len());
        // Where others of its vCPUs are pinned, they need pCPUs, too.
        let some_pinned = report.vm.online().any(|(_, state)| state.affinity.is_some());
        let cure = if some_pinned {
            context.repinned_or_fewer(number)
        } else {
            Cure::Do(to_fewer(report.vm, fewer))
        };
        if crowd.stacked {
            let where_ = match pcpus.len() {
                1 => format!("can only run on pCPU {pcpus}"),
                many => format!("can each only run on one of {many} pCPUs, and no one is alone there"),
            };
            let text = format!(
                "{} {where_}: while one runs, the {} though the guest takes all for running",
                vcpus.named("vCPU"),
                if vcpus.len() == 2 { "other waits," } else { "others wait," }
            );
            report.add(Rule::Stacked, Severity::Error, place, text, cure);
        } else {
            let who = if pinned { vcpus.named("vCPU") } else { count(vcpus.len(), "vCPU") };
            let have = if pinned { pcpus.named("pCPU") } else { format!("the host's {} pCPUs", pcpus.len()) };
            let text = format!(
                "{who} have {have} between them: when all are busy, {} of them {} at any time, perhaps with a \
                 lock in hand, while the guest takes all for running",
                vcpus.len() - pcpus.len(),
                if vcpus.len() - pcpus.len() == 1 { "waits" } else { "wait" }
            );
            report.add(Rule::TooFewPcpus, Severity::Warning, place, text, cure);
        }
    }
}
