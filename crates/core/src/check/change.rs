//! Changes of a VM's settings, as data: [`super::cure`] writes them as commands, tests apply them.

use super::{GuestTopology, HelperKind, Manager, Memory, Place, Set, Vm};
use crate::units::count;
use crate::{CpuId, CpuSet, Quota};

/// A set that holds something: all that a command may name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Filled(CpuSet);

impl Filled {
    /// The set; `None` if it is empty.
    #[must_use]
    pub fn new(set: CpuSet) -> Option<Filled> {
        (!set.is_empty()).then_some(Filled(set))
    }

    /// One pCPU.
    pub(super) fn one(cpu: CpuId) -> Filled {
        Filled(CpuSet::from_iter([cpu]))
    }

    /// All of several.
    pub(super) fn all<'a>(sets: impl IntoIterator<Item = &'a Filled>) -> Option<Filled> {
        Filled::new(sets.into_iter().fold(CpuSet::default(), |all, set| all.union(&set.0)))
    }
}

impl std::ops::Deref for Filled {
    type Target = CpuSet;
    fn deref(&self) -> &CpuSet {
        &self.0
    }
}

impl std::fmt::Display for Filled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Far less than what is written, and more than parts of a period are off by.
const ROUNDING_US: f64 = 1e-6;

/// Which limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// [`Vm::cap`].
    Cap,
    /// [`Vm::vcpu_quota`].
    VcpuQuota,
}

/// A setting of a VM, and what it becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// pCPUs that these vCPUs (by number) may use; a control group has one set for all.
    Affinity(Vec<(u32, Filled)>),
    /// pCPUs that all vCPUs prefer.
    Preference(Filled),
    /// pCPUs that a helper may use.
    Helper(HelperKind, Filled),
    /// Nodes of its memory.
    Memory(Filled),
    /// Nodes of the memory of a node of the guest.
    CellMemory(u32, Filled),
    /// How many vCPUs are online; at least one.
    Vcpus(usize),
    /// No limit any more.
    Unlimited(Limit),
    /// Another quota and period, both in microseconds.
    Limited(Limit, u64, u64),
    /// What the guest is told.
    Guest(GuestTopology),
}

/// What is to be done about a finding.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cure {
    /// These, in order.
    Do(Vec<Change>),
    /// What no setting of this VM does.
    Advice(String),
}

impl Cure {
    pub(super) fn advice(text: &str) -> Cure {
        Cure::Advice(text.into())
    }
}

impl From<Change> for Cure {
    fn from(change: Change) -> Cure {
        Cure::Do(vec![change])
    }
}

/// A VM after some changes.
pub(super) fn after(vm: &Vm, changes: &[Change]) -> Vm {
    let mut vm = vm.clone();
    changes.iter().for_each(|change| change.apply(&mut vm));
    vm
}

/// Fewer vCPUs, which may use together what all might before: a quota of each is raised, as far as that goes.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "microseconds of a period"
)]
pub(super) fn to_fewer(vm: &Vm, vcpus: usize) -> Vec<Change> {
    let raised = || {
        let now = &vm.vcpu_quota.as_ref()?.value;
        let (each, period_us) = (now.cpus()?.0.min(1.0), now.period_us()?);
        let cap = vm.cap.as_ref().and_then(|cap| cap.value.cpus()).map_or(f64::INFINITY, |cap| cap.0);
        let all = (each * count(vm.width())).min(cap);
        let quota_us = ((all / count(vcpus)).min(1.0) * period_us as f64 + ROUNDING_US) as u64;
        (quota_us > now.quota_us?).then_some(Change::Limited(Limit::VcpuQuota, quota_us, period_us))
    };
    std::iter::once(Change::Vcpus(vcpus)).chain(raised()).collect()
}

impl Change {
    /// Whether another change is of the same setting.
    pub(super) fn sets_what(&self, other: &Change) -> bool {
        match (self, other) {
            (Change::Helper(a, _), Change::Helper(b, _)) => a == b,
            (Change::CellMemory(a, _), Change::CellMemory(b, _)) => a == b,
            (
                Change::Unlimited(a) | Change::Limited(a, ..),
                Change::Unlimited(b) | Change::Limited(b, ..),
            ) => a == b,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }

    /// Changes the setting. Where nothing was set, it is as if it were written where the VM is.
    pub fn apply(&self, vm: &mut Vm) {
        let at = vm.affinity_place().clone();
        let set = |set: &Filled, place: &Place| Set { value: set.0.clone(), place: place.clone() };
        match self {
            Change::Affinity(sets) => {
                let own = matches!(vm.manager, Manager::Cgroup | Manager::Kubernetes);
                let joint = Filled::all(sets.iter().map(|(_, set)| set)).filter(|_| own);
                for (number, pins) in sets {
                    let Some(vcpu) = usize::try_from(*number).ok().and_then(|n| vm.vcpus.get_mut(n)) else {
                        continue;
                    };
                    let place = vcpu.affinity.take().map_or_else(|| at.clone(), |known| known.place);
                    vcpu.affinity = Some(set(joint.as_ref().unwrap_or(pins), &place));
                }
            }
            Change::Preference(pcpus) => {
                for vcpu in &mut vm.vcpus {
                    let place = vcpu.prefers.take().map_or_else(|| at.clone(), |known| known.place);
                    vcpu.prefers = Some(set(pcpus, &place));
                }
            }
            Change::Helper(kind, pcpus) => {
                for helper in vm.helpers.iter_mut().filter(|helper| helper.kind == *kind) {
                    helper.affinity.value = pcpus.0.clone();
                }
            }
            Change::Memory(nodes) => {
                let place = vm.memory.as_ref().map_or(&vm.place, |memory| &memory.place).clone();
                // As virsh and the kernel do: other nodes, the same mode, where it can be.
                let mode = match vm.memory.take().map(|memory| memory.value) {
                    Some(Memory::Nodes { mode, .. }) if !not_several(&mode, nodes) => mode,
                    _ => "strict".into(),
                };
                let value = Memory::Nodes { nodes: nodes.0.clone(), mode };
                vm.memory = Some(Set { value, place });
            }
            Change::CellMemory(id, nodes) => {
                for memory in vm.cells.iter_mut().filter(|cell| cell.id == *id).flat_map(|c| &mut c.memory) {
                    memory.value = nodes.0.clone();
                }
            }
            Change::Vcpus(number) => {
                vm.vcpus.iter_mut().enumerate().for_each(|(n, vcpu)| vcpu.online = n < *number);
            }
            Change::Unlimited(limit) => *limit.of(vm) = None,
            Change::Limited(limit, quota_us, period_us) => {
                if let Some(known) = limit.of(vm) {
                    known.value =
                        Quota { quota_us: Some(*quota_us), period_us: *period_us, ..known.value.clone() };
                }
            }
            Change::Guest(told) => {
                let place = vm.guest.as_ref().map_or(&vm.place, |guest| &guest.place).clone();
                vm.guest = Some(Set { value: *told, place });
            }
        }
    }
}

/// Whether libvirt refuses so many nodes in a mode when the VM starts (before 9.3 where `preferred` are several).
pub(super) fn not_several(mode: &str, nodes: &CpuSet) -> bool {
    mode == "preferred" && nodes.len() > 1
}

impl Limit {
    fn of(self, vm: &mut Vm) -> &mut Option<Set<Quota>> {
        match self {
            Limit::Cap => &mut vm.cap,
            Limit::VcpuQuota => &mut vm.vcpu_quota,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_on_other_nodes_keeps_its_mode() {
        let nodes = |list: &str| list.parse::<CpuSet>().unwrap();
        let set = |list: &str, mode: &str| Memory::Nodes { nodes: nodes(list), mode: mode.into() };
        let mut vm = Vm::default();
        let to = |list: &str| Change::Memory(Filled::new(nodes(list)).unwrap());
        to("1").apply(&mut vm);
        assert_eq!(vm.memory.as_ref().unwrap().value, set("1", "strict"));
        vm.memory.as_mut().unwrap().value = set("1", "restrictive");
        to("0").apply(&mut vm);
        assert_eq!(vm.memory.as_ref().unwrap().value, set("0", "restrictive"));
        // Before 9.3, libvirt takes one node in this mode.
        for (list, mode) in [("1", "preferred"), ("0-1", "strict")] {
            vm.memory.as_mut().unwrap().value = set("0", "preferred");
            to(list).apply(&mut vm);
            assert_eq!(vm.memory.as_ref().unwrap().value, set(list, mode));
        }
    }
}
