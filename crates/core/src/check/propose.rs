//! Where a VM's vCPUs could run instead: on usable pCPUs, each with one for itself, one to a core while there are
//! cores, on the nodes of its memory, beside nobody else. All cures of one VM's affinity are this one.

use std::collections::BTreeMap;

use super::change::{Change, Cure, Filled, after, to_fewer};
use super::matching::{Crowd, crowds_of};
use super::{Context, Manager, Memory, Vcpu, Vm, busy, cure};
use crate::{CpuId, CpuSet};

/// pCPUs of vCPUs, by number.
pub(super) type Sets = Vec<(u32, Filled)>;

/// What a VM has to leave to others: what they have, and what has just been proposed for them, so that all cures of
/// one report can be followed.
pub(super) struct Taken {
    /// pCPUs that they name.
    pub(super) named: CpuSet,
    /// Those of them that are dedicated.
    owned: CpuSet,
}

/// Helpers with more pCPUs find another one.
const FEW: usize = 4;

/// Where the cures of others come first.
pub(super) const LATER: &str = "follow the other cures first, then check again";
/// Where no change of the VM helps.
const NO_ROOM: &str = "there are no pCPUs for it: move a VM to another host";

impl Context<'_> {
    /// What others have, and, if that is to count, what has been proposed for them.
    pub(super) fn taken(&self, number: usize, proposed: bool) -> Taken {
        let mut taken = Taken { named: self.others(number), owned: self.others_own(number) };
        let given = self.given.borrow();
        for (_, (all, alone)) in given.iter().filter(|(other, _)| proposed && **other != number) {
            if *alone {
                taken.owned = taken.owned.union(all);
            }
            taken.named = taken.named.union(all);
        }
        taken
    }

    /// The one set that several vCPUs of a VM can be given: those of `among` that are online, that the kernel
    /// balances, and that are neither kept for the host nor dedicated to others. `None` if there are fewer of these
    /// than vCPUs.
    pub(super) fn room(&self, taken: &Taken, among: &CpuSet, vcpus: usize) -> Option<Filled> {
        let room = self.usable.as_ref()?.intersection(among).difference(&taken.owned);
        Filled::new(room).filter(|room| room.len() >= vcpus)
    }

    /// Other sets for a VM's vCPUs, with which no rule on affinities finds anything that can be helped. `None` if
    /// there are none, or if that is how it is.
    fn repin(&self, number: usize) -> Option<Vec<Change>> {
        let vm = &self.subject.vms[number];
        let sets = self.proposed[number].get_or_init(|| {
            let sets = self.sets(number, vm.width(), &self.taken(number, true));
            sets.filter(|sets| cure::differ(vm, sets))
        });
        Some(self.moved(vm, sets.clone()?))
    }

    /// Remembers where a VM is sent.
    fn give(&self, number: usize, changes: &[Change]) {
        let vm = after(&self.subject.vms[number], changes);
        let pcpus = vm.pcpus().unwrap_or_default();
        self.given.borrow_mut().insert(number, (pcpus, vm.dedicated().is_some()));
    }

    /// Gives vCPUs sets; of a pool, the same to helpers that run where vCPUs run, and to what the vCPUs prefer.
    pub(super) fn moved(&self, vm: &Vm, sets: Sets) -> Vec<Change> {
        let mut changes = Vec::new();
        for helper in vm.helpers.iter().filter(|_| !alone(self, vm)) {
            let same =
                |vcpu: &Vcpu| vcpu.affinity.as_ref().is_some_and(|set| set.value == helper.affinity.value);
            let with = vm.online().find(|(_, vcpu)| same(vcpu)).map(|(vcpu, _)| vcpu);
            let set = sets.iter().find(|(vcpu, set)| Some(*vcpu) == with && **set != helper.affinity.value);
            changes.extend(set.map(|(_, set)| Change::Helper(helper.kind, set.clone())));
        }
        if !alone(self, vm) && vm.online().any(|(_, vcpu)| vcpu.prefers.is_some()) {
            changes.extend(Filled::all(sets.iter().map(|(_, set)| set)).map(Change::Preference));
        }
        changes.insert(0, Change::Affinity(sets));
        changes
    }

    /// [`Context::repin`] as a cure, or what else there is to say.
    pub(super) fn repinned(&self, number: usize, otherwise: &str) -> Cure {
        if self.subject.vms[number].manager == Manager::Kubernetes {
            return Cure::advice(cure::KUBELET);
        }
        self.repinned_if(number, |_| true).unwrap_or_else(|| Cure::advice(otherwise))
    }

    /// The same, if the VM is as it is to be then; `None` if not even without what has been proposed for others.
    pub(super) fn repinned_if(&self, number: usize, good: impl Fn(&Vm) -> bool) -> Option<Cure> {
        let vm = &self.subject.vms[number];
        let good = |changes: &Vec<Change>| good(&after(vm, changes));
        if let Some(changes) = self.repin(number).filter(good) {
            self.give(number, &changes);
            return Some(Cure::Do(changes));
        }
        let sets = self.sets(number, vm.width(), &self.taken(number, false));
        let later = sets.filter(|sets| cure::differ(vm, sets)).map(|sets| self.moved(vm, sets));
        later.filter(good).map(|_| Cure::advice(LATER))
    }

    /// Other sets, or else as many vCPUs as can have a pCPU of their own, if it is a guest.
    pub(super) fn repinned_or_fewer(&self, number: usize) -> Cure {
        let vm = &self.subject.vms[number];
        if !vm.is_guest() {
            return self.repinned(number, NO_ROOM);
        }
        self.repinned_if(number, |_| true).unwrap_or_else(|| {
            self.fewer(number, vm.width().saturating_sub(1)).unwrap_or_else(|| Cure::advice(NO_ROOM))
        })
    }

    /// As many vCPUs as can have a pCPU of their own, at most so many.
    pub(super) fn fewer(&self, number: usize, most: usize) -> Option<Cure> {
        let vm = &self.subject.vms[number];
        let taken = self.taken(number, true);
        let own = vm.pcpus().unwrap_or_default();
        let (vcpus, sets) = if self.topology.is_none() {
            // Its own pCPUs are all that is known.
            let vcpus = own.len().min(most);
            (vcpus, vm.online().map(|(vcpu, _)| vcpu).zip(own.iter().map(Filled::one)).take(vcpus).collect())
        } else {
            let room = self.room(&taken, &own, 1).map_or(0, |room| room.len());
            let most = room.max(self.free(number, &taken).len()).min(most);
            (1..=most).rev().find_map(|vcpus| Some((vcpus, self.sets(number, vcpus, &taken)?)))?
        };
        let mut changes = if vcpus > 0 { to_fewer(vm, vcpus) } else { Vec::new() };
        if cure::differ(vm, &sets) {
            changes.extend(self.moved(vm, sets));
            self.give(number, &changes);
        }
        (!changes.is_empty()).then_some(Cure::Do(changes))
    }

    /// Crowds of vCPUs that have to share units though they have a pCPU each, without those whose guest knows of
    /// it; and how many units those vCPUs that are busy can have.
    pub(super) fn unit_crowds(&self, vm: &Vm, sets: &[(u32, &CpuSet)]) -> (Vec<Crowd>, usize) {
        let all: Vec<&CpuSet> = sets.iter().map(|(_, set)| *set).collect();
        let units = |set: &CpuSet| {
            let mut units: Vec<usize> =
                set.iter().filter_map(|cpu| self.unit_of.get(&cpu)).copied().collect();
            units.sort_unstable();
            units.dedup();
            units
        };
        let mut crowds = crowds_of(&all, units);
        let seated = all.len() - crowds.iter().map(|c| c.guests.len() - c.seats.len()).sum::<usize>();
        crowds.retain(|crowd| {
            let pcpus = crowd.guests.iter().fold(CpuSet::default(), |union, g| union.union(all[*g]));
            pcpus.len() >= crowd.guests.len() && !self.told(vm, crowd, sets)
        });
        (crowds, seated)
    }

    /// pCPUs that emulator and I/O threads have, as somebody pinned them to few, beside all dedicated ones.
    pub(super) fn helpers_own(&self) -> CpuSet {
        let helpers =
            self.subject.vms.iter().flat_map(|vm| vm.helpers.iter().map(move |helper| (vm, helper)));
        let own = helpers.filter(|(vm, helper)| {
            let set = &helper.affinity.value;
            let inherited =
                vm.online().any(|(_, vcpu)| vcpu.affinity.as_ref().is_some_and(|a| a.value == *set));
            !inherited && set.len() <= FEW && !set.iter().any(|cpu| self.owners.contains_key(&cpu))
        });
        own.fold(CpuSet::default(), |all, (_, helper)| all.union(&helper.affinity.value))
    }

    /// Units that no other VM names a pCPU of, as far as this one can use them: near its memory, if some are there.
    pub(super) fn clear_units(&self, number: usize, taken: &Taken) -> Vec<CpuSet> {
        let free = self.free(number, taken);
        let free = match self.near(number) {
            Some(near) => free.intersection(&near),
            None => free,
        };
        let clear = self.units.iter().filter(|unit| !unit.meets(&taken.named));
        clear.map(|unit| unit.intersection(&free)).filter(|unit| !unit.is_empty()).collect()
    }

    /// pCPUs that a VM can have for itself: its own isolated ones among them.
    pub(super) fn free(&self, number: usize, taken: &Taken) -> CpuSet {
        let reserved = self.subject.reserved.as_ref().map(|set| set.value.clone()).unwrap_or_default();
        let own = self.sets[number].clone().unwrap_or_default();
        let isolated = self.topology.filter(|_| alone(self, &self.subject.vms[number]));
        let isolated = isolated.map(|t| t.isolated.difference(&t.offline)).unwrap_or_default();
        let isolated = isolated.intersection(&own).difference(&reserved);
        self.usable.clone().unwrap_or_default().union(&isolated).difference(&taken.named)
    }

    /// The pCPUs near a VM's memory, if that is said and some vCPU can run there. (Where none can, the memory is what
    /// has to move.)
    pub(super) fn near(&self, number: usize) -> Option<CpuSet> {
        let Some(Memory::Nodes { nodes, .. }) = self.subject.vms[number].memory.as_ref().map(|m| &m.value)
        else {
            return None;
        };
        let near = self.topology?.pcpus_of_nodes(nodes).intersection(self.usable.as_ref()?);
        let meets = self.sets[number].as_ref().is_none_or(|set| set.meets(&near));
        (meets && !near.is_empty()).then_some(near)
    }

    /// The same of each vCPU, of the memory of its node where the guest has several.
    fn near_each(&self, number: usize) -> Vec<Option<CpuSet>> {
        let vm = &self.subject.vms[number];
        let near = self.near(number);
        let mut all = vec![near; vm.vcpus.len()];
        for cell in &vm.cells {
            let Some((topology, memory)) = self.topology.zip(cell.memory.as_ref()) else { continue };
            let near = topology.pcpus_of_nodes(&memory.value).intersection(&topology.online());
            for vcpu in cell.vcpus.iter().filter_map(|vcpu| usize::try_from(vcpu.0).ok()) {
                if let Some(known) = all.get_mut(vcpu).filter(|_| !near.is_empty()) {
                    *known = Some(near.clone());
                }
            }
        }
        all
    }

    /// Sets for a VM's vCPUs of which the first `vcpus` count, the best that there are: its own without what it
    /// cannot use, else pCPUs that nobody else names, else more of them.
    fn sets(&self, number: usize, vcpus: usize, taken: &Taken) -> Option<Sets> {
        let vm = &self.subject.vms[number];
        let near = self.near_each(number);
        let pins = super::pins::Seats { context: self, number, taken, near: &near };
        if alone(self, vm) {
            let pins = pins.take(vcpus)?;
            return Some(pins.into_iter().map(|(vcpu, cpu)| (vcpu, Filled::one(cpu))).collect());
        }
        let clear = self.clear_units(number, taken);
        let units = |sets: &Sets| self.units_of(vm, vcpus, sets);
        let pool = || {
            let pins = pins.take(vcpus)?;
            let of = |near: &Option<CpuSet>, all: &[Option<CpuSet>]| -> CpuSet {
                let same = pins.iter().filter(|(vcpu, _)| all.get(index(**vcpu)) == Some(near));
                same.map(|(_, cpu)| *cpu).collect()
            };
            let sets = (0..).zip(&near).filter_map(|(vcpu, own)| Some((vcpu, Filled::new(of(own, &near))?)));
            Some(sets.collect::<Sets>())
        };
        if !vm.is_guest() {
            return if vm.exclusive { pool() } else { self.trimmed(number, vcpus, taken, Some(&near)) };
        }
        let good = |sets: &Sets| units(sets).is_some_and(|units| units >= clear.len());
        let wide = || {
            let own = vm.pcpus().unwrap_or_default();
            let all = clear.iter().fold(own, |all, unit| all.union(unit));
            let near = self.near(number).and_then(|near| self.room(taken, &all.intersection(&near), vcpus));
            let set = near.or_else(|| self.room(taken, &all, vcpus))?;
            Some((0..).zip(&vm.vcpus).map(|(vcpu, _)| (vcpu, set.clone())).collect())
        };
        let kept = || self.trimmed(number, vcpus, taken, None);
        self.trimmed(number, vcpus, taken, Some(&near))
            .filter(good)
            .or_else(pool)
            .or_else(|| kept().filter(good))
            .or_else(wide)
            .or_else(|| kept().filter(|sets| units(sets).is_some()))
    }

    /// A VM's own sets without what cannot be used; near their memory, if that is to count.
    fn trimmed(
        &self,
        number: usize,
        vcpus: usize,
        taken: &Taken,
        near: Option<&[Option<CpuSet>]>,
    ) -> Option<Sets> {
        let vm = &self.subject.vms[number];
        let all = self.usable.as_ref()?;
        let counted = vm.online().nth(vcpus.checked_sub(1)?).map_or(0, |(vcpu, _)| index(vcpu) + 1);
        let mut sets = Sets::new();
        for (at, (vcpu, state)) in (0..).zip(&vm.vcpus).enumerate() {
            let near = near.and_then(|near| near[at].as_ref());
            let base = match &state.affinity {
                Some(set) => &set.value,
                None if near.is_none() && self.subject.reserved.is_none() => continue,
                None => all,
            };
            let set = match near {
                None => self.room(taken, base, 1),
                Some(near) => {
                    self.room(taken, &base.intersection(near), 1).or_else(|| self.room(taken, near, 1))
                }
            };
            match set {
                Some(set) => sets.push((vcpu, set)),
                None if state.online && at < counted => return None,
                None => {}
            }
        }
        Some(sets)
    }

    /// How many units the first `vcpus` of a VM's vCPUs can have, those that are idle left out: all that there are
    /// if no two of them have to share one unknown to the guest. `None` if there is not even a pCPU for each.
    fn units_of(&self, vm: &Vm, vcpus: usize, sets: &Sets) -> Option<usize> {
        let sets: BTreeMap<u32, &Filled> = sets.iter().map(|(vcpu, set)| (*vcpu, set)).collect();
        let all = self.usable.as_ref()?;
        let busy = vm.online().take(vcpus).filter(|(_, state)| busy(state));
        let ours: Vec<(u32, &CpuSet)> =
            busy.map(|(vcpu, _)| (vcpu, sets.get(&vcpu).map_or(all, |set| set))).collect();
        if !seat_crowds(&ours).is_empty() {
            return None;
        }
        let (crowds, units) = self.unit_crowds(vm, &ours);
        Some(if crowds.is_empty() { usize::MAX } else { units })
    }
}

/// Crowds of vCPUs that are more than their pCPUs.
pub(super) fn seat_crowds(sets: &[(u32, &CpuSet)]) -> Vec<Crowd> {
    let all: Vec<&CpuSet> = sets.iter().map(|(_, set)| *set).collect();
    crowds_of(&all, |set| set.iter().map(|CpuId(cpu)| index(cpu)).collect())
}

/// Whether a VM's vCPUs are to have a pCPU each: as it is, or because the kernel does not balance among these.
fn alone(context: &Context<'_>, vm: &Vm) -> bool {
    let isolated = context.topology.map(|topology| &topology.isolated);
    let own = vm.pcpus().zip(isolated).is_some_and(|(own, isolated)| own.is_within(isolated));
    vm.is_guest() && (vm.is_pinned() || own)
}

/// A number as an index.
pub(super) fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
