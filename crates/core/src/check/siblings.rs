//! vCPUs that share a core's (or module's) units: forced to, sold as cores, or unknown to their guest.

use std::collections::{BTreeMap, BTreeSet};

use super::change::{Change, Cure, Filled, after};
use super::matching::Crowd;
use super::memory::far;
use super::propose::Sets;
use super::{
    Cell, Context, GuestTopology, Manager, Place, Report, Rule, Set, Severity, Vm, busy, count, cure, set_of,
};
use crate::topology::Topology;
use crate::{CpuId, CpuSet};

/// What makes a guest's siblings true.
const EVEN: &str = "pin it to the same number of siblings of each of its cores, as many pCPUs as it has vCPUs; \
                    then tell the guest (threads='N')";
/// Where the vCPUs of a guest's core would be on two of its nodes.
const BY_NODES: &str = "give each node of the guest vCPUs that follow each other, and pin these to siblings of its host \
                        node; then tell the guest (threads='N')";

pub(super) fn check(context: &Context<'_>, number: usize, report: &mut Report<'_, '_>) {
    let Some(topology) = context.topology else { return };
    forced(context, number, topology, report);
    sold_as_cores(context, number, topology, report);
    invented(context, number, topology, report);
}

/// vCPUs of one VM of which more than one must run on a unit.
fn forced(context: &Context<'_>, number: usize, topology: &Topology, report: &mut Report<'_, '_>) {
    let vm = report.vm;
    if !vm.is_guest() || vm.sees_host {
        return;
    }
    let sets: Vec<(u32, CpuSet)> = vm
        .online()
        .filter(|(_, state)| busy(state))
        .filter_map(|(vcpu, state)| {
            Some((vcpu, state.affinity.as_ref()?.value.intersection(&topology.online())))
        })
        .filter(|(_, reach)| !reach.is_empty())
        .collect();
    let sets: Vec<(u32, &CpuSet)> = sets.iter().map(|(vcpu, reach)| (*vcpu, reach)).collect();
    let (crowds, seated) = context.unit_crowds(vm, &sets);
    let Some(first) = crowds.first() else { return };
    let first =
        vm.vcpus.get(super::propose::index(sets[first.guests[0]].0)).and_then(|v| v.affinity.as_ref());
    let place = first.map_or(&vm.place, |set| &set.place);
    let members = || crowds.iter().flat_map(|crowd| &crowd.guests);
    let vcpus = set_of(members().map(|g| sets[*g].0));
    let pcpus = members().fold(CpuSet::default(), |all, g| all.union(sets[*g].1));
    let seats: usize = crowds.iter().map(|crowd| crowd.seats.len()).sum();
    // A core with two of them has at least two that compete.
    let compete: usize = crowds.iter().map(|c| 2 * (c.guests.len() - c.seats.len()).min(c.seats.len())).sum();
    let unit = topology.unit_name();
    let sharing =
        format!("{} are kept on {} ({})", vcpus.named("vCPU"), count(seats, unit), pcpus.named("pCPU"));
    let clear = context.clear_units(number, &context.taken(number, false));
    let units = clear.iter().filter(|unit| !unit.meets(&pcpus)).count();
    if clear.len() <= seated || units == 0 {
        hidden(context, vm, &sharing, place, unit, report);
        return;
    }
    // Sets that leave all as crowded are no cure.
    let helps = |after: &Vm| {
        let busy = after.online().filter(|(_, state)| busy(state));
        let sets: Vec<(u32, &CpuSet)> =
            busy.filter_map(|(vcpu, state)| Some((vcpu, &state.affinity.as_ref()?.value))).collect();
        let (crowds, seated) = context.unit_crowds(after, &sets);
        crowds.is_empty() || seated >= clear.len()
    };
    let cure = context.repinned_if(number, helps).unwrap_or_else(|| {
        Cure::Advice(format!("spread it over more {unit}s: too few pCPUs are free for all of its vCPUs"))
    });
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
    vm: &Vm,
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
fn tell(context: &Context<'_>, vm: &Vm) -> Cure {
    let own = vm.pcpus().unwrap_or_default();
    // Its pCPUs in the order of its vCPUs, so that the nodes of the guest stay where they are, but those of one unit next
    // to each other.
    let mut units: BTreeMap<usize, Vec<(u32, CpuId)>> = BTreeMap::new();
    for (vcpu, state) in vm.online() {
        let cpu = state.affinity.as_ref().and_then(|set| set.value.iter().next());
        if let Some((unit, cpu)) = cpu.and_then(|cpu| Some((context.unit_of.get(&cpu)?, cpu))) {
            units.entry(*unit).or_default().push((vcpu, cpu));
        }
    }
    let threads = units.values().map(Vec::len).min().unwrap_or(1);
    let even = units.values().all(|unit| unit.len() == threads);
    if !even || threads < 2 || units.len() * threads != vm.vcpus.len() || own.len() != vm.vcpus.len() {
        return Cure::advice(EVEN);
    }
    let mut units: Vec<Vec<(u32, CpuId)>> = units.into_values().collect();
    units.sort();
    let pins: Sets = (0..).zip(units.into_iter().flatten().map(|(_, cpu)| Filled::one(cpu))).collect();
    let number = |n: usize| u32::try_from(n).unwrap_or(1);
    let (cores, width) = (number(vm.vcpus.len() / threads), number(threads));
    let mut changes = vec![Change::Guest(GuestTopology { sockets: 1, cores, threads: width })];
    // Siblings have to follow each other in the guest's order, too.
    let unit = |vcpu: u32| {
        let vcpu = usize::try_from(vcpu).ok().and_then(|vcpu| vm.vcpus.get(vcpu));
        let cpu = vcpu.and_then(|vcpu| vcpu.affinity.as_ref()?.value.iter().next());
        cpu.and_then(|cpu| context.unit_of.get(&cpu))
    };
    if !pins.iter().all(|(vcpu, _)| unit(*vcpu) == unit(vcpu / width * width)) {
        changes.push(Change::Affinity(pins));
    }
    let told = after(vm, &changes);
    let strays = |cell: &Cell| {
        context
            .topology
            .is_some_and(|host| far(vm, cell, host).is_empty() && !far(&told, cell, host).is_empty())
    };
    if vm.cells.iter().any(strays) { Cure::advice(BY_NODES) } else { Cure::Do(changes) }
}

impl Context<'_> {
    /// Whether some vCPUs that the guest takes for siblings are not.
    pub(super) fn tells_untrue(&self, vm: &Vm) -> bool {
        self.topology.is_some_and(|topology| !wrong_cores(self, topology, vm).is_empty())
    }

    /// Whether the guest is told that the vCPUs that share units are siblings: those of each guest core are
    /// pinned within one unit.
    pub(super) fn told(&self, vm: &Vm, crowd: &Crowd, sets: &[(u32, &CpuSet)]) -> bool {
        let Some(guest) = &vm.guest else { return false };
        let threads = guest.value.threads;
        if threads < 2 {
            return false;
        }
        let mut cores: BTreeMap<u32, CpuSet> = BTreeMap::new();
        for (vcpu, set) in sets {
            let core = cores.entry(vcpu / threads).or_default();
            *core = core.union(set);
        }
        let within = |core: &CpuSet| {
            let unit = core.iter().next().and_then(|cpu| self.unit_of.get(&cpu));
            unit.is_some_and(|unit| core.is_within(&self.units[*unit]))
        };
        crowd.guests.iter().all(|g| cores.get(&(sets[*g].0 / threads)).is_some_and(within))
    }
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
    let everybody =
        context.subject.shared.as_ref().filter(|_| vm.exclusive).map(|set| set.value.difference(mine));
    let everybody: Vec<&&CpuSet> =
        own.iter().filter(|unit| everybody.as_ref().is_some_and(|set| unit.meets(set))).collect();
    halves = everybody.iter().fold(halves, |all, unit| all.union(&unit.intersection(mine)));
    if halves.is_empty() {
        return;
    }
    let unit = topology.unit_name();
    let mut neighbour = match with[..] {
        [] => String::new(),
        [one] => format!("dedicated to {one}"),
        [one, two] => format!("dedicated to {one} and {two}"),
        [one, ..] => format!("dedicated to {one} and {} others", with.len() - 1),
    };
    if !everybody.is_empty() {
        let or = if with.is_empty() { "" } else { " or " };
        neighbour += &format!("{or}for everybody else");
    }
    let text = format!(
        "{} of it {} a {unit} with a pCPU {neighbour}: each vCPU is half a {unit}, slower whenever the neighbour is \
         busy",
        halves.named("pCPU"),
        if halves.len() == 1 { "shares" } else { "share" },
    );
    let whole = |after: &Vm| {
        let (own, others) = (after.pcpus().unwrap_or_default(), context.others(number));
        context.units.iter().filter(|unit| unit.meets(&own)).all(|unit| !unit.meets(&others))
    };
    let cure = if vm.manager == Manager::Kubernetes {
        let whole = "set full-pcpus-only: \"true\" in cpuManagerPolicyOptions";
        Cure::Advice(format!("{whole}; {}", cure::KUBELET))
    } else {
        context.repinned_if(number, whole).unwrap_or_else(|| {
            Cure::Advice(format!(
                "give both siblings of a {unit} to the same VM: no {unit} is free for this one"
            ))
        })
    };
    report.add(Rule::ThreadsAsCores, Severity::Warning, vm.affinity_place(), text, cure);
}

/// Guest cores of several threads whose vCPUs do not run on one core.
fn invented(context: &Context<'_>, number: usize, topology: &Topology, report: &mut Report<'_, '_>) {
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
        let cure = without_siblings(vm);
        report.add(Rule::GuestTopology, Severity::Error, place, text, cure);
        return;
    }
    if guest.threads < 2 {
        return;
    }
    let wrong = wrong_cores(context, topology, vm);
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
            vcpus.named("vCPU"),
            pcpus.named("pCPU"),
            if wrong.len() > 1 {
                format!(
                    "; {} more of its cores {}",
                    wrong.len() - 1,
                    if wrong.len() == 2 { "is like that" } else { "are like that" }
                )
            } else {
                String::new()
            }
        )
    };
    // Where some are siblings, that would hide those: pairs for all, or none.
    let told = after(vm, &[without_siblings(vm)]);
    let crowded = hides(context, number, &told);
    let pairs = |after: &Vm| wrong_cores(context, topology, after).is_empty();
    let cure = if crowded {
        context.repinned_if(number, pairs).unwrap_or_else(|| Cure::advice(EVEN))
    } else {
        without_siblings(vm).into()
    };
    report.add(Rule::GuestTopology, Severity::Warning, place, text, cure);
}

/// Whether a VM's vCPUs have to share units that its guest does not know of, and no other unit is free.
fn hides(context: &Context<'_>, number: usize, vm: &Vm) -> bool {
    let sets: Vec<(u32, &CpuSet)> =
        vm.online().filter_map(|(vcpu, state)| Some((vcpu, &state.affinity.as_ref()?.value))).collect();
    let (crowds, seated) = context.unit_crowds(vm, &sets);
    let clear = context.clear_units(number, &context.taken(number, false));
    vm.is_pinned() && !crowds.is_empty() && clear.len() <= seated
}

/// vCPUs that the guest takes for threads of one core though they are not on one, and where they are instead: on any
/// pCPU, if that is nothing.
fn wrong_cores(context: &Context<'_>, topology: &Topology, vm: &Vm) -> Vec<(CpuSet, CpuSet)> {
    let Some(guest) = vm.guest.as_ref().map(|guest| guest.value) else { return Vec::new() };
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
    (0..guest.sockets.saturating_mul(guest.cores))
        .filter_map(of_core)
        .filter(|(_, pcpus)| pcpus.is_empty() || !context.units.iter().any(|unit| pcpus.is_within(unit)))
        .collect()
}

/// A topology in which each vCPU is a core.
fn without_siblings(vm: &Vm) -> Change {
    let cores = u32::try_from(vm.vcpus.len()).unwrap_or(u32::MAX);
    Change::Guest(GuestTopology { sockets: 1, cores, threads: 1 })
}
