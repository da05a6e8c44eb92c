//! vCPUs that share a core's (or module's) units: forced to, sold as cores, or unknown to their guest.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::matching::{Crowd, crowds};
use super::propose::Pins;
use super::{Context, Manager, Place, Report, Rule, Set, Severity, busy, count, cure, named, set_of};
use crate::topology::Topology;
use crate::{CpuId, CpuSet};

pub(super) fn check(context: &Context<'_>, number: usize, report: &mut Report<'_, '_>) {
    let Some(topology) = context.topology else { return };
    forced(context, number, topology, report);
    sold_as_cores(context, number, topology, report);
    invented(context, topology, report);
}

/// vCPUs of one VM of which more than one must run on a unit.
fn forced(context: &Context<'_>, number: usize, topology: &Topology, report: &mut Report<'_, '_>) {
    let vm = report.vm;
    if !vm.is_guest() || vm.sees_host {
        return;
    }
    let mut guests = Vec::new();
    let mut may: Vec<Rc<[usize]>> = Vec::new();
    let mut lists: BTreeMap<CpuSet, Rc<[usize]>> = BTreeMap::new();
    let mut reaches = Vec::new();
    for (vcpu, state) in vm.online().filter(|(_, state)| busy(state)) {
        let Some(set) = &state.affinity else { continue };
        let reach = set.value.intersection(&topology.online());
        if reach.is_empty() {
            continue;
        }
        let units = |reach: &CpuSet| -> BTreeSet<usize> {
            reach.iter().filter_map(|cpu| context.unit_of.get(&cpu)).copied().collect()
        };
        let list = lists.entry(reach.clone()).or_insert_with_key(|reach| units(reach).into_iter().collect());
        may.push(Rc::clone(list));
        guests.push((vcpu, set));
        reaches.push(reach);
    }
    let crowds = crowds(&may, context.units.len()).into_iter().filter(|crowd| {
        let pcpus = crowd.guests.iter().fold(CpuSet::default(), |all, g| all.union(&reaches[*g]));
        // Those without even a pCPU each are reported as such.
        pcpus.len() >= crowd.guests.len() && !told(context, report, crowd, &guests)
    });
    let crowds: Vec<Crowd> = crowds.collect();
    let Some(first) = crowds.first() else { return };
    let place = &guests[first.guests[0]].1.place;
    let members = || crowds.iter().flat_map(|crowd| &crowd.guests);
    let vcpus = set_of(members().map(|g| guests[*g].0));
    let pcpus = members().fold(CpuSet::default(), |all, g| all.union(&reaches[*g]));
    let seats: usize = crowds.iter().map(|crowd| crowd.seats.len()).sum();
    // A core with two of them has at least two that compete.
    let compete: usize = crowds.iter().map(|c| 2 * (c.guests.len() - c.seats.len()).min(c.seats.len())).sum();
    let unit = topology.unit_name();
    let sharing =
        format!("{} are kept on {} ({})", named("vCPU", &vcpus), count(seats, unit), named("pCPU", &pcpus));
    let free = free_units(context, number).difference(&pcpus);
    let units = context.units.iter().filter(|unit| unit.meets(&free)).count();
    if units == 0 {
        hidden(context, vm, &sharing, place, unit, report);
        return;
    }
    let cure = context
        .propose(number)
        .map_or_else(|| cure::cpus(vm, &free.union(&pcpus)), |pins| cure::place(vm, pins));
    let text = format!(
        "{sharing} while {} of the host {} no VM pinned to {}: when all are busy, {} {compete} share a {unit}'s units with another",
        count(units, unit),
        if units == 1 { "has" } else { "have" },
        if units == 1 { "it" } else { "them" },
        if compete == vcpus.len() { "all" } else { "at least" },
    );
    report.add(Rule::SiblingsForced, Severity::Warning, place, text, cure);
}

/// vCPUs on siblings, with no free units to move to, and a guest that does not know.
fn hidden(
    context: &Context<'_>,
    vm: &super::Vm,
    sharing: &str,
    place: &Place,
    unit: &str,
    report: &mut Report<'_, '_>,
) {
    // A pool of many pCPUs cannot be told to a guest; pins one to one can.
    if vm.manager != Manager::Libvirt || !vm.is_pinned() {
        return;
    }
    let place = vm.guest.as_ref().map_or(place, |guest| &guest.place);
    let text = format!(
        "{sharing}, but the guest is told that they are {unit}s of their own: it puts two busy threads on one {unit} \
         while another idles"
    );
    report.add(Rule::GuestTopology, Severity::Warning, place, text, tell(context, vm));
}

/// The topology of a VM whose vCPUs are pinned one to one, and the order of its pins that makes it true.
fn tell(context: &Context<'_>, vm: &super::Vm) -> String {
    let own = vm.pcpus().unwrap_or_default();
    // Its pCPUs, those of one unit next to each other.
    let mut units: BTreeMap<usize, Vec<CpuId>> = BTreeMap::new();
    for cpu in own.iter() {
        if let Some(unit) = context.unit_of.get(&cpu) {
            units.entry(*unit).or_default().push(cpu);
        }
    }
    let threads = units.values().map(Vec::len).min().unwrap_or(1);
    let even = units.values().all(|unit| unit.len() == threads);
    if !even || threads < 2 || own.len() != vm.vcpus.len() {
        return "pin it to the same number of siblings of each of its cores, as many pCPUs as it has vCPUs; \
                then tell the guest (threads='N')"
            .into();
    }
    let pins: Pins = (0..).zip(units.into_values().flatten()).collect();
    let topology = format!(
        "<cpu><topology sockets='1' cores='{}' threads='{threads}'/></cpu>",
        vm.vcpus.len() / threads
    );
    // Siblings have to follow each other in the guest's order, too.
    let unit = |vcpu: u32| {
        let vcpu = usize::try_from(vcpu).ok().and_then(|vcpu| vm.vcpus.get(vcpu));
        let cpu = vcpu.and_then(|vcpu| vcpu.affinity.as_ref()?.value.iter().next());
        cpu.and_then(|cpu| context.unit_of.get(&cpu))
    };
    let width = u32::try_from(threads).unwrap_or(1);
    if pins.keys().all(|vcpu| unit(*vcpu) == unit(vcpu / width * width)) {
        return topology;
    }
    format!("{topology}, and siblings in the guest's order: {}", cure::pin(vm, &pins))
}

/// pCPUs of units of which no VM's affinity names a pCPU, and that nothing is kept from.
fn free_units(context: &Context<'_>, number: usize) -> CpuSet {
    let others = context.others(number);
    let usable = context.usable.clone().unwrap_or_default();
    let isolated = context.topology.map(|t| t.isolated.clone()).unwrap_or_default();
    let clear = context.units.iter().filter(|unit| !unit.meets(&others));
    let clear = clear.fold(CpuSet::default(), |all, unit| all.union(unit));
    clear.intersection(&usable).difference(&isolated)
}

/// Whether the guest is told that the vCPUs that share units are siblings: those of each guest core are
/// pinned within one unit.
fn told(
    context: &Context<'_>,
    report: &Report<'_, '_>,
    crowd: &Crowd,
    guests: &[(u32, &Set<CpuSet>)],
) -> bool {
    let Some(guest) = &report.vm.guest else { return false };
    let threads = guest.value.threads;
    if threads < 2 {
        return false;
    }
    let mut cores: BTreeMap<u32, CpuSet> = BTreeMap::new();
    for (vcpu, set) in guests {
        let core = cores.entry(vcpu / threads).or_default();
        *core = core.union(&set.value);
    }
    let within = |core: &CpuSet| {
        let unit = core.iter().next().and_then(|cpu| context.unit_of.get(&cpu));
        unit.is_some_and(|unit| core.is_within(&context.units[*unit]))
    };
    crowd.guests.iter().all(|g| cores.get(&(guests[*g].0 / threads)).is_some_and(within))
}

/// Siblings of one core that are dedicated to two VMs.
fn sold_as_cores(context: &Context<'_>, number: usize, topology: &Topology, report: &mut Report<'_, '_>) {
    let vm = report.vm;
    let Some(mine) = &context.dedicated[number] else { return };
    let own: BTreeSet<usize> = mine.iter().filter_map(|cpu| context.unit_of.get(&cpu)).copied().collect();
    let own: Vec<&CpuSet> = own.into_iter().map(|unit| &context.units[unit]).collect();
    let beside = own.iter().fold(CpuSet::default(), |all, unit| all.union(unit)).difference(mine);
    let mut halves = CpuSet::default();
    let mut with: Vec<&str> = Vec::new();
    // Each pair of VMs once, at the later one.
    for number in context.owners_of(&beside).range(..number) {
        let (other, theirs) = (&context.subject.vms[*number], &context.dedicated[*number]);
        let Some(theirs) = theirs.as_ref().filter(|set| !set.meets(mine)) else { continue };
        for unit in own.iter().filter(|unit| unit.meets(theirs)) {
            halves = halves.union(&unit.intersection(mine));
            if with.last() != Some(&other.name.as_str()) {
                with.push(&other.name);
            }
        }
    }
    if halves.is_empty() {
        return;
    }
    let unit = topology.unit_name();
    let names = match with[..] {
        [one] => one.to_owned(),
        [one, two] => format!("{one} and {two}"),
        [one, ..] => format!("{one} and {} others", with.len() - 1),
        [] => String::new(),
    };
    let text = format!(
        "{} of it {} a {unit} with a pCPU dedicated to {names}: each vCPU is half a {unit}, slower whenever the \
         neighbour is busy",
        named("pCPU", &halves),
        if halves.len() == 1 { "shares" } else { "share" },
    );
    let cure = match (vm.manager, context.propose(number)) {
        (Manager::Kubernetes, _) => {
            format!("set full-pcpus-only: \"true\" in cpuManagerPolicyOptions; {}", cure::kubelet())
        }
        (_, Some(pins)) => cure::pin(vm, pins),
        (_, None) => format!("give both siblings of a {unit} to the same VM: no {unit} is free for this one"),
    };
    report.add(Rule::ThreadsAsCores, Severity::Warning, vm.affinity_place(), text, cure);
}

/// Guest cores of several threads whose vCPUs do not run on one core.
fn invented(context: &Context<'_>, topology: &Topology, report: &mut Report<'_, '_>) {
    let vm = report.vm;
    let Some(Set { value: guest, place }) = &vm.guest else { return };
    let told = guest.vcpus();
    if vm.vcpus.len() as u64 != told {
        let text = format!(
            "the topology has {told} vCPUs ({} x {} x {}), the VM {}: libvirt refuses it",
            guest.sockets,
            guest.cores,
            guest.threads,
            vm.vcpus.len()
        );
        let cure = format!("<topology sockets='1' cores='{}' threads='1'/>", vm.vcpus.len());
        report.add(Rule::GuestTopology, Severity::Error, place, text, cure);
        return;
    }
    if guest.threads < 2 {
        return;
    }
    let of_core = |core: u32| -> Option<(CpuSet, CpuSet)> {
        let vcpus = set_of((core * guest.threads)..((core + 1) * guest.threads));
        let mut pcpus = CpuSet::default();
        let begin = usize::try_from(core * guest.threads).unwrap_or(usize::MAX);
        let members = (core * guest.threads..).zip(vm.vcpus.iter().skip(begin)).take(vcpus.len());
        for (vcpu, state) in members.filter(|(_, state)| state.online) {
            let Some(set) = &state.affinity else { return Some((set_of([vcpu]), CpuSet::default())) };
            pcpus = pcpus.union(&set.value.intersection(&topology.online()));
        }
        (!pcpus.is_empty()).then_some((vcpus, pcpus))
    };
    let wrong: Vec<(CpuSet, CpuSet)> = (0..guest.sockets.saturating_mul(guest.cores))
        .filter_map(of_core)
        .filter(|(_, pcpus)| pcpus.is_empty() || !context.units.iter().any(|unit| pcpus.is_within(unit)))
        .collect();
    let Some((vcpus, pcpus)) = wrong.first() else { return };
    let text = if pcpus.is_empty() {
        format!(
            "the guest is told of cores with {} threads, but its vCPUs are not pinned to siblings: its scheduler \
             avoids pairs of vCPUs that run on cores of their own",
            guest.threads
        )
    } else {
        format!(
            "the guest takes {} for threads of one core; they run on {}, of different cores{}",
            named("vCPU", vcpus),
            named("pCPU", pcpus),
            if wrong.len() > 1 {
                format!(" (so of {} more of its cores)", wrong.len() - 1)
            } else {
                String::new()
            }
        )
    };
    let cure = format!("<topology sockets='1' cores='{}' threads='1'/>", vm.vcpus.len());
    report.add(Rule::GuestTopology, Severity::Warning, place, text, cure);
}
