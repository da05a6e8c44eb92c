//! Small random hosts in whole numbers and fractions, from a seed.

use corefit_core::entitle::{Host, Slice, Vcpu, Vm, WeightRule};
use corefit_core::{CpuId, CpuSet, Cpus, Random, Weight};

/// A fraction.
pub(crate) type Part = (i64, i64);

/// A host with exact numbers.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    pub(crate) pcpus: usize,
    /// pCPUs that are offline, as bits.
    pub(crate) offline: u32,
    pub(crate) rule: WeightRule,
    /// In the first member of each is the number of the slice around it, which comes before.
    pub(crate) slices: Vec<(Option<usize>, i64, Option<Part>)>,
    pub(crate) vms: Vec<Machine>,
}

#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) slice: Option<usize>,
    pub(crate) weight: i64,
    pub(crate) cap: Option<Part>,
    pub(crate) vcpus: Vec<Virtual>,
}

#[derive(Clone, Debug)]
pub(crate) struct Virtual {
    pub(crate) weight: i64,
    pub(crate) mask: u32,
    pub(crate) quota: Option<Part>,
    pub(crate) demand: Part,
    pub(crate) fixed: bool,
    pub(crate) online: bool,
}

/// What instances may have.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) slices: bool,
    pub(crate) caps: bool,
    pub(crate) quotas: bool,
    pub(crate) weights_of_vcpus: bool,
    pub(crate) fixed_demands: bool,
}

pub(crate) const EVERYTHING: Kind =
    Kind { slices: true, caps: true, quotas: true, weights_of_vcpus: true, fixed_demands: true };

fn number(r: &mut Random, from: i64, to: i64) -> i64 {
    from + r.below(to - from + 1)
}

fn part(r: &mut Random, most: i64) -> Part {
    let below = r.of(&[2, 3, 4, 5, 10]);
    (number(r, 1, below * most), below)
}

fn chance(r: &mut Random, allowed: bool, n: usize, most: i64) -> Option<Part> {
    (allowed && r.below(n) == 0).then(|| part(r, most))
}

impl Instance {
    pub(crate) fn random(seed: u64, kind: Kind) -> Instance {
        let r = &mut Random(seed);
        let pcpus = 1 + r.below(4);
        let all = (1 << pcpus) - 1;
        let offline = if r.below(8) == 0 { r.below(1 << pcpus) } else { 0 };
        let rule = match r.below(6) {
            0 => WeightRule::XenCredit,
            1 => WeightRule::EqualPerVcpu,
            _ => WeightRule::Linux,
        };
        let slices = (0..if kind.slices { r.below(4) } else { 0 })
            .map(|i| {
                let around = if i > 0 && r.below(2) == 0 { Some(r.below(i)) } else { None };
                (around, number(r, 1, 4), chance(r, kind.caps, 3, 2))
            })
            .collect::<Vec<_>>();
        let vms = (0..1 + r.below(4)).map(|_| {
            let slice = if slices.is_empty() || r.below(3) == 0 { None } else { Some(r.below(slices.len())) };
            let pinned = r.below(3) == 0;
            let vcpus = (0..1 + r.below(3)).map(|_| Virtual {
                weight: if kind.weights_of_vcpus && r.below(4) == 0 { number(r, 1, 3) } else { 1 },
                mask: match r.below(4) {
                    0 if !pinned => all,
                    1 | 2 if pinned => 1 << r.below(pcpus),
                    _ => 1 + u32::try_from(r.below((1 << pcpus) - 1)).unwrap(),
                },
                quota: chance(r, kind.quotas, 4, 1),
                demand: if r.below(2) == 0 { (1, 1) } else { (number(r, 0, 4), 4) },
                fixed: kind.fixed_demands && r.below(8) == 0,
                online: r.below(12) != 0,
            });
            let vcpus = vcpus.collect();
            Machine { slice, weight: number(r, 1, 4), cap: chance(r, kind.caps, 4, 2), vcpus }
        });
        let vms = vms.collect();
        Instance { pcpus, offline, rule, slices, vms }
    }

    pub(crate) fn host(&self) -> Host {
        let (slices, vms) = self.members(None);
        Host {
            rule: self.rule,
            pcpus: set((1 << self.pcpus) - 1),
            offline: set(self.offline),
            slices,
            vms,
            ..Host::default()
        }
    }

    /// The VMs in the order in which the host numbers them.
    pub(crate) fn order(&self) -> Vec<usize> {
        let host = self.host();
        host.all_vms().iter().map(|vm| vm.name[2..].parse().unwrap()).collect()
    }

    fn members(&self, around: Option<usize>) -> (Vec<Slice>, Vec<Vm>) {
        let slices = self.slices.iter().enumerate().filter(|(_, slice)| slice.0 == around);
        let slices = slices.map(|(i, &(_, weight, cap))| {
            let (slices, vms) = self.members(Some(i));
            Slice { name: format!("s{i}"), weight: Weight(weight as f64), cap: cap.map(cpus), slices, vms }
        });
        let vms = self.vms.iter().enumerate().filter(|(_, vm)| vm.slice == around);
        let vms = vms.map(|(i, vm)| Vm {
            name: format!("vm{i}"),
            weight: Weight(vm.weight as f64),
            cap: vm.cap.map(cpus),
            vcpus: vm.vcpus.iter().map(Virtual::vcpu).collect(),
        });
        (slices.collect(), vms.collect())
    }
}

impl Virtual {
    fn vcpu(&self) -> Vcpu {
        Vcpu {
            weight: Weight(self.weight as f64),
            quota: self.quota.map(cpus),
            affinity: Some(set(self.mask)),
            demand: Some(cpus(self.demand)),
            fixed: self.fixed,
            online: self.online,
        }
    }
}

fn cpus((above, below): Part) -> Cpus {
    Cpus(above as f64 / below as f64)
}

fn set(mask: u32) -> CpuSet {
    (0..32).filter(|i| mask & (1 << i) != 0).map(CpuId).collect()
}
