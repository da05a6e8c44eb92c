//! A pCPU for each vCPU of a VM: siblings for what the guest takes for siblings and are such, else whole units while there are
//! some; near the memory, and beside nobody else if that can be.

use std::collections::{BTreeMap, BTreeSet};

use super::propose::{Taken, index};
use super::{Context, Vm};
use crate::{CpuId, CpuSet};

/// A pCPU for each of a VM's vCPUs, by number.
type Pins = BTreeMap<u32, CpuId>;

/// What a unit is to a vCPU (or to those of one guest core).
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Nobody else names a pCPU of it, and no other vCPU has been given one.
    Whole,
    /// Nobody else names a pCPU of it.
    Own,
    /// Others have siblings there.
    Shared,
}

/// What is tried in which order: of the first region or the second, which kind.
type Order = [(usize, Kind); 6];
const BY_UNITS: Order = [
    (0, Kind::Whole),
    (1, Kind::Whole),
    (0, Kind::Own),
    (1, Kind::Own),
    (0, Kind::Shared),
    (1, Kind::Shared),
];
/// Where it is said where the memory is, siblings there come before cores elsewhere.
const BY_MEMORY: Order = [
    (0, Kind::Whole),
    (0, Kind::Own),
    (1, Kind::Whole),
    (1, Kind::Own),
    (0, Kind::Shared),
    (1, Kind::Shared),
];

/// Places for one VM.
pub(super) struct Seats<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) number: usize,
    pub(super) taken: &'a Taken,
    /// Of each vCPU: the pCPUs near its memory, if that is known.
    pub(super) near: &'a [Option<CpuSet>],
}

impl Seats<'_> {
    /// Pins for the first `vcpus` vCPUs; those that are pinned well already stay. `None` if pCPUs that nobody else
    /// names do not suffice.
    pub(super) fn take(&self, vcpus: usize) -> Option<Pins> {
        let vm = &self.context.subject.vms[self.number];
        let online: Vec<u32> = vm.online().take(vcpus).map(|(vcpu, _)| vcpu).collect();
        let lone: Vec<Vec<u32>> = online.iter().map(|vcpu| vec![*vcpu]).collect();
        let free = self.context.free(self.number, self.taken);
        if free.len() < online.len() {
            return None;
        }
        let cores = cores(vm, &online);
        let untrue = cores.is_some() && self.context.tells_untrue(vm);
        // Where helpers have pCPUs of their own, those are the last choice.
        let beside = free.difference(&self.context.helpers_own());
        let choices = [Some(beside).filter(|beside| beside.len() >= online.len()), Some(free)];
        choices.into_iter().flatten().find_map(|free| {
            let board = || Board::new(self.context, &free, &self.taken.named);
            // What the guest is told of siblings is not so: rather a unit for each vCPU, if there are so many, than
            // to make it so. (That it is told so then has a cure of its own.)
            let lone = || board().seat(self, &lone);
            let apart = untrue.then(lone).flatten().filter(|pins| self.apart(pins));
            apart.or_else(|| board().seat(self, cores.as_ref()?)).or_else(lone)
        })
    }

    /// Whether no two are on one unit, and nobody else is on any of them.
    fn apart(&self, pins: &Pins) -> bool {
        let units: BTreeSet<usize> = pins.values().map(|cpu| self.context.unit_of[cpu]).collect();
        let clear = |unit: &usize| !self.context.units[*unit].meets(&self.taken.named);
        units.len() == pins.len() && units.iter().all(clear)
    }

    /// First and second choice of pCPUs for a vCPU: the nodes of its memory; else the nodes that the VM uses now, or
    /// any one node, whichever first has a unit for each vCPU; then all others.
    fn regions(&self, board: &Board<'_>, near: Option<&CpuSet>, vcpus: usize) -> [CpuSet; 2] {
        let first = near.cloned().or_else(|| {
            let topology = self.context.topology?;
            let now = self.context.sets[self.number].as_ref().map(|own| topology.nodes_of(own));
            let now = now.map(|now| topology.pcpus_of_nodes(&now)).filter(|now| !now.is_empty());
            let nodes = topology.nodes.iter().map(|node| node.pcpus.clone());
            let candidates: Vec<CpuSet> = now.into_iter().chain(nodes).collect();
            let whole = |region: &&CpuSet| {
                let units = board.left.iter().zip(&board.clear);
                units.filter(|(unit, clear)| **clear && unit.meets(region)).count() >= vcpus
            };
            candidates.iter().find(whole).or(candidates.first()).cloned()
        });
        let first = first.unwrap_or_default();
        [first.clone(), board.free.difference(&first)]
    }
}

/// vCPUs of guest cores, where the guest is told of cores with several threads.
fn cores(vm: &Vm, vcpus: &[u32]) -> Option<Vec<Vec<u32>>> {
    let told = vm.guest.as_ref().map(|guest| guest.value)?;
    if told.threads < 2 || told.vcpus() != vm.vcpus.len() as u64 {
        return None;
    }
    let mut cores: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for vcpu in vcpus {
        cores.entry(vcpu / told.threads).or_default().push(*vcpu);
    }
    Some(cores.into_values().collect())
}

/// The units while they are given away.
struct Board<'a> {
    unit_of: &'a BTreeMap<CpuId, usize>,
    free: &'a CpuSet,
    /// Of each unit: the pCPUs that are left, whether nobody else names one, and whether a vCPU has one.
    left: Vec<CpuSet>,
    clear: Vec<bool>,
    used: Vec<bool>,
    /// Units to try: first those that have nothing that cannot be used.
    order: Vec<usize>,
    pins: Pins,
}

impl<'a> Board<'a> {
    fn new(context: &'a Context<'a>, free: &'a CpuSet, avoid: &CpuSet) -> Board<'a> {
        let units = &context.units;
        let mut order: Vec<usize> = (0..units.len()).collect();
        order.sort_by_key(|unit| !units[*unit].is_within(free));
        Board {
            unit_of: &context.unit_of,
            free,
            left: units.iter().map(|unit| unit.intersection(free)).collect(),
            clear: units.iter().map(|unit| !unit.meets(avoid)).collect(),
            used: vec![false; units.len()],
            order,
            pins: Pins::new(),
        }
    }

    /// A pCPU for each vCPU, those of one core on one unit.
    fn seat(mut self, seats: &Seats<'_>, cores: &[Vec<u32>]) -> Option<Pins> {
        let vcpus = cores.iter().map(Vec::len).sum();
        // vCPUs with memory at the same place have the same choices.
        let near = |core: &[u32]| core.first().and_then(|vcpu| seats.near.get(index(*vcpu))?.as_ref());
        let mut regions: BTreeMap<Option<&CpuSet>, [CpuSet; 2]> = BTreeMap::new();
        for core in cores {
            regions.entry(near(core)).or_insert_with_key(|near| seats.regions(&self, *near, vcpus));
        }
        let said = regions.keys().any(Option::is_some);
        let mut left: Vec<&[u32]> = cores.iter().map(Vec::as_slice).collect();
        for (region, kind) in if said { BY_MEMORY } else { BY_UNITS } {
            let vm = &seats.context.subject.vms[seats.number];
            left.retain(|core| !self.keep(vm, core, &regions[&near(core)][region], kind));
            let mut from: BTreeMap<Option<&CpuSet>, usize> = BTreeMap::new();
            left.retain(|core| {
                let from = from.entry(near(core)).or_default();
                !self.give(core, &regions[&near(core)][region], kind, from)
            });
        }
        left.is_empty().then_some(self.pins)
    }

    /// Leaves vCPUs where they are, if that is one of the places sought.
    fn keep(&mut self, vm: &Vm, core: &[u32], region: &CpuSet, kind: Kind) -> bool {
        let pin = |vcpu: &u32| {
            let set = vm.vcpus.get(index(*vcpu))?.affinity.as_ref().filter(|set| set.value.len() == 1)?;
            set.value.iter().next()
        };
        let Some(pins) = core.iter().map(pin).collect::<Option<Vec<CpuId>>>() else { return false };
        let all: CpuSet = pins.iter().copied().collect();
        let unit = self.unit_of.get(&pins[0]).copied().filter(|_| all.len() == pins.len());
        let unit =
            unit.filter(|unit| self.is(*unit, kind) && all.is_within(&self.left[*unit].intersection(region)));
        unit.inspect(|unit| self.take(*unit, core, pins)).is_some()
    }

    /// Gives vCPUs pCPUs of the first unit that has enough of them.
    fn give(&mut self, core: &[u32], region: &CpuSet, kind: Kind, from: &mut usize) -> bool {
        while let Some(unit) = self.order.get(*from).copied() {
            let here = self.left[unit].intersection(region);
            if self.is(unit, kind) && here.len() >= core.len() {
                self.take(unit, core, here.iter().take(core.len()).collect());
                return true;
            }
            *from += 1;
        }
        false
    }

    fn is(&self, unit: usize, kind: Kind) -> bool {
        match kind {
            Kind::Whole => self.clear[unit] && !self.used[unit],
            Kind::Own => self.clear[unit],
            Kind::Shared => true,
        }
    }

    fn take(&mut self, unit: usize, core: &[u32], pins: Vec<CpuId>) {
        self.left[unit] = self.left[unit].difference(&pins.iter().copied().collect());
        self.used[unit] = true;
        self.pins.extend(core.iter().copied().zip(pins));
    }
}
