//! Large hosts to measure on, from a seed: weights of five sizes, every tenth VM with a cap, every
//! tenth vCPU with a quota, demands as on a host that is overcommitted but mostly idle.

use corefit_core::entitle::{Host, Slice, Vcpu, Vm};
use corefit_core::{CpuId, CpuSet, Cpus, Random, Weight};

use crate::stats::count;

/// vCPUs of a VM.
const VCPUS: usize = 10;

/// Which pCPUs vCPUs may use, and how VMs are nested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// A range of 8 to 135 pCPUs for each VM.
    RangePerVm,
    /// So many random pCPUs for each vCPU.
    Random(usize),
    /// A range of 8 to 135 pCPUs for each vCPU.
    RangePerVcpu,
    /// Each pCPU with probability 1/2, for each VM.
    HalfPerVm,
    /// Slices in slices, 24 levels, every third with a cap, VMs on all levels; ranges per VM.
    Nested,
    /// Each vCPU on one pCPU: as many full sets as pCPUs, the most that there can be.
    Pinned,
}

impl Shape {
    /// All, with what design promises: the most milliseconds for 10,000 vCPUs.
    pub(super) const ALL: [(Shape, Option<f64>); 7] = [
        (Shape::RangePerVm, Some(50.0)),
        (Shape::Random(16), Some(50.0)),
        (Shape::Random(64), Some(50.0)),
        (Shape::RangePerVcpu, Some(100.0)),
        (Shape::HalfPerVm, Some(100.0)),
        (Shape::Nested, Some(500.0)),
        (Shape::Pinned, None),
    ];

    pub(super) fn name(self) -> String {
        match self {
            Shape::RangePerVm => "a range per VM".into(),
            Shape::Random(n) => format!("{n} random pCPUs per vCPU"),
            Shape::RangePerVcpu => "a range per vCPU".into(),
            Shape::HalfPerVm => "a random half per VM".into(),
            Shape::Nested => "24 nested levels".into(),
            Shape::Pinned => "one pCPU per vCPU".into(),
        }
    }
}

/// Levels of [`Shape::Nested`].
const LEVELS: usize = 24;

/// A host with about ten vCPUs for each pCPU.
pub(super) fn host(shape: Shape, vcpus: usize, seed: u64) -> Host {
    let random = &mut Random(seed);
    let vms = vcpus.div_ceil(VCPUS);
    let pcpus = (vcpus * 1024).div_ceil(10_000);
    let mut all: Vec<Vm> = (0..vms).map(|i| vm(shape, i, pcpus, random)).collect();
    let mut host = Host { pcpus: range(0, pcpus), ..Host::default() };
    if shape == Shape::Nested {
        let per_level = vms.div_ceil(LEVELS);
        let mut inner: Vec<Slice> = Vec::new();
        for level in (0..LEVELS).rev() {
            let members = all.split_off(all.len().saturating_sub(per_level));
            let below = (LEVELS - level) * per_level * VCPUS;
            inner = vec![Slice {
                name: format!("level{level}"),
                weight: weight(random),
                // About what an equal division would give to all below it: some caps bind.
                cap: (level % 3 == 1).then(|| {
                    let equal = count(below) * count(pcpus) / count(vcpus);
                    Cpus(equal * (0.7 + 0.1 * count(random.below(8))))
                }),
                slices: inner,
                vms: members,
            }];
        }
        host.slices = inner;
    }
    host.vms = all;
    host
}

fn vm(shape: Shape, number: usize, pcpus: usize, random: &mut Random) -> Vm {
    let own = match shape {
        Shape::RangePerVm | Shape::Nested => Some(some_range(pcpus, random)),
        Shape::HalfPerVm => Some((0..pcpus).filter(|_| random.below(2) == 0).map(cpu).collect()),
        Shape::Random(_) | Shape::RangePerVcpu | Shape::Pinned => None,
    };
    // Six of ten are idle, three work a little, one is busy: demands exceed the host by a third.
    let demand = [0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.1, 0.1, 0.1, 1.0][random.below(10)];
    let vcpus = (0..VCPUS).map(|_| {
        let affinity = own.clone().unwrap_or_else(|| match shape {
            Shape::Random(n) => (0..n).map(|_| cpu(random.below(pcpus))).collect(),
            Shape::Pinned => CpuSet::from_iter([cpu(random.below(pcpus))]),
            _ => some_range(pcpus, random),
        });
        let quota = (random.below(10) == 0).then_some(Cpus(0.25));
        Vcpu { affinity: Some(affinity), quota, demand: Some(Cpus(demand)), ..Vcpu::default() }
    });
    let vcpus = vcpus.collect();
    let cap = (random.below(10) == 0).then(|| Cpus(0.5 * count(1 + random.below(4))));
    Vm { name: format!("vm{number}"), weight: weight(random), cap, vcpus }
}

fn weight(random: &mut Random) -> Weight {
    Weight([256.0, 512.0, 1024.0, 2048.0, 4096.0][random.below(5)])
}

fn some_range(pcpus: usize, random: &mut Random) -> CpuSet {
    let length = (8 + random.below(128)).min(pcpus);
    range(random.below(pcpus - length + 1), length)
}

fn range(first: usize, length: usize) -> CpuSet {
    (first..first + length).map(cpu).collect()
}

fn cpu(number: usize) -> CpuId {
    CpuId(u32::try_from(number).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_the_promised_size_and_are_decided_by_their_seed() {
        for (shape, _) in Shape::ALL {
            let large = host(shape, 10_000, 1);
            let vms = large.all_vms();
            assert_eq!((large.pcpus.len(), vms.len()), (1024, 1000), "{shape:?}");
            assert!(vms.iter().all(|vm| vm.vcpus.len() == 10));
            assert_eq!(large.check(), Ok(()));
            assert_eq!(host(shape, 100, 7), host(shape, 100, 7));
            assert_ne!(host(shape, 100, 7), host(shape, 100, 8));
        }
    }
}
