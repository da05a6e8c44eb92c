//! From a host to what the solver works on: weights by the host's rule, limits by what is asked,
//! equal vCPUs of a VM and equal pCPUs merged.
//!
//! Merging loses nothing. Equal vCPUs of a VM get equal amounts, and a leaf for k of them has k
//! times the weight and the limit. Where they may use the same pCPUs, a total of k vCPUs of at most 1
//! each can be spread evenly; so can use of pCPUs that the same vCPUs may use (McNaughton 1959 makes
//! a timetable of it).

use std::collections::BTreeSet;

use super::bits;
use super::fill::Filling;
use super::flow::Network;
use super::host::{Host, HostError, Slice, Vcpu, Vm, WeightRule};
use super::tree::{Group, Leaf, ROOT, Tree};
use crate::{CpuId, CpuSet};

/// Which demands are taken for 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// All: what VMs are entitled to.
    Everything,
    /// Those of one VM (by its number in [`Host::all_vms`]), the measured one for all others: what
    /// it has available.
    Everywhere(usize),
    /// None: what each VM would use now.
    Measured,
}

/// A host in the solver's terms.
#[derive(Clone, Debug)]
pub(crate) struct Compiled {
    pub(crate) filling: Filling,
    /// Of each vCPU, all VMs' in their order; `None` if offline.
    pub(crate) leaf_of: Vec<Option<usize>>,
    /// How many vCPUs each leaf stands for.
    pub(crate) counts: Vec<usize>,
    /// The limits of the leaves with demands of 1.
    pub(crate) raised: Vec<f64>,
    /// The group of each VM, and the number of its first vCPU; one more for the end.
    pub(crate) vms: Vec<(usize, usize)>,
    /// `slice a`, `vm b`; of the root `the host`.
    pub(crate) names: Vec<String>,
    /// The pCPUs behind each pCPU of the network.
    pub(crate) pcpus: Vec<CpuSet>,
    /// The weight of each VM's group if all its vCPUs are active.
    pub(crate) awake: Vec<f64>,
}

/// Translates a host that was checked.
pub(crate) fn compile(host: &Host, wants: Wants) -> Result<Compiled, HostError> {
    host.check()?;
    let mut walk = Walk { host, wants, usable: host.usable(), ..Walk::new(host) };
    walk.members(ROOT, &host.slices, &host.vms);
    Ok(walk.finish())
}

/// One leaf before merging of pCPUs.
struct Seed {
    leaf: Leaf,
    raised: f64,
    mask: CpuSet,
    vcpus: Vec<usize>,
}

struct Walk<'a> {
    host: &'a Host,
    wants: Wants,
    usable: CpuSet,
    groups: Vec<Group>,
    names: Vec<String>,
    seeds: Vec<Seed>,
    vms: Vec<(usize, usize)>,
    awake: Vec<f64>,
    vcpus: usize,
}

impl<'a> Walk<'a> {
    fn new(host: &'a Host) -> Walk<'a> {
        Walk {
            host,
            wants: Wants::Measured,
            usable: CpuSet::default(),
            groups: vec![Group { parent: ROOT, weight: 1.0, cap: f64::INFINITY }],
            names: vec!["the host".into()],
            seeds: Vec::new(),
            vms: Vec::new(),
            awake: Vec::new(),
            vcpus: 0,
        }
    }

    fn members(&mut self, parent: usize, slices: &[Slice], vms: &[Vm]) {
        for slice in slices {
            let weight = match self.host.rule {
                WeightRule::Linux | WeightRule::XenCredit => slice.weight.0,
                WeightRule::EqualPerVcpu => at_least_one(online_below(slice)),
            };
            let cap = slice.cap.map_or(f64::INFINITY, |cap| cap.0);
            self.groups.push(Group { parent, weight, cap });
            self.names.push(format!("slice {}", slice.name));
            self.members(self.groups.len() - 1, &slice.slices, &slice.vms);
        }
        vms.iter().for_each(|vm| self.vm(parent, vm));
    }

    fn vm(&mut self, parent: usize, vm: &Vm) {
        let raised = match self.wants {
            Wants::Everything => true,
            Wants::Everywhere(number) => number == self.vms.len(),
            Wants::Measured => false,
        };
        let online = vm.vcpus.iter().filter(|vcpu| vcpu.online);
        let active = |raised: bool| {
            online.clone().filter(|vcpu| (raised && !vcpu.fixed) || demand(vcpu) > 0.0).count()
        };
        let of = |vcpus: usize| match self.host.rule {
            WeightRule::Linux => vm.weight.0,
            WeightRule::XenCredit => vm.weight.0 * at_least_one(vcpus),
            WeightRule::EqualPerVcpu => at_least_one(online.clone().count()),
        };
        let (weight, awake) = (of(active(raised)), of(active(true)));
        let group = self.groups.len();
        let cap = vm.cap.map_or(f64::INFINITY, |cap| cap.0);
        self.groups.push(Group { parent, weight, cap });
        self.names.push(format!("vm {}", vm.name));
        self.vms.push((group, self.vcpus));
        self.awake.push(awake);
        let first = self.seeds.len();
        for vcpu in &vm.vcpus {
            if vcpu.online {
                let mask = vcpu.affinity.as_ref().map(|set| set.intersection(&self.usable));
                let weight = if self.host.rule == WeightRule::Linux { vcpu.weight.0 } else { 1.0 };
                let high = vcpu.quota.map_or(1.0, |quota| quota.0.min(1.0));
                let now = high.min(demand(vcpu));
                let high = if vcpu.fixed { now } else { high };
                let limit = if raised { high } else { now };
                self.seeds.push(Seed {
                    leaf: Leaf { group, weight, limit },
                    raised: high,
                    mask: mask.unwrap_or_else(|| self.usable.clone()),
                    vcpus: vec![self.vcpus],
                });
            }
            self.vcpus += 1;
        }
        merge(&mut self.seeds, first);
    }

    fn finish(mut self) -> Compiled {
        // By group; a VM's vCPUs are together already, and slices have none of their own.
        self.seeds.sort_by_key(|seed| seed.leaf.group);
        let mut leaf_of = vec![None; self.vcpus];
        for (leaf, seed) in self.seeds.iter().enumerate() {
            seed.vcpus.iter().for_each(|&vcpu| leaf_of[vcpu] = Some(leaf));
        }
        self.vms.push((ROOT, self.vcpus));
        self.drop_loose_caps();
        let masks: Vec<&CpuSet> = self.seeds.iter().map(|seed| &seed.mask).collect();
        let (pcpus, network) = network(&self.usable, &masks);
        let leaves = self.seeds.iter().map(|seed| seed.leaf.clone()).collect();
        Compiled {
            filling: Filling::new(Tree::new(self.groups, leaves), network),
            leaf_of,
            counts: self.seeds.iter().map(|seed| seed.vcpus.len()).collect(),
            raised: self.seeds.iter().map(|seed| seed.raised).collect(),
            vms: self.vms,
            names: self.names,
            pcpus,
            awake: self.awake,
        }
    }

    /// A cap above all that is below it binds nobody.
    fn drop_loose_caps(&mut self) {
        let mut most = vec![0.0; self.groups.len()];
        for seed in &self.seeds {
            most[seed.leaf.group] += seed.raised;
        }
        for i in (1..self.groups.len()).rev() {
            if self.groups[i].cap >= most[i] {
                self.groups[i].cap = f64::INFINITY;
            }
            most[self.groups[i].parent] += most[i].min(self.groups[i].cap);
        }
    }
}

/// What a vCPU demands; what was not measured counts as 1.
pub(crate) fn demand(vcpu: &Vcpu) -> f64 {
    vcpu.demand.map_or(1.0, |demand| demand.0)
}

fn online_below(slice: &Slice) -> usize {
    let own = slice.vms.iter().flat_map(|vm| &vm.vcpus).filter(|vcpu| vcpu.online).count();
    own + slice.slices.iter().map(online_below).sum::<usize>()
}

fn at_least_one(n: usize) -> f64 {
    crate::units::count(n.max(1))
}

/// Makes one seed of equal ones, from `first` on.
fn merge(seeds: &mut Vec<Seed>, first: usize) {
    let order = |a: &Seed, b: &Seed| {
        let key = |s: &Seed| [s.leaf.weight, s.leaf.limit, s.raised].map(f64::to_bits);
        key(a).cmp(&key(b)).then_with(|| a.mask.cmp(&b.mask))
    };
    if seeds[first..].windows(2).any(|pair| order(&pair[0], &pair[1]).is_ne()) {
        seeds[first..].sort_by(order);
    }
    // Of a run of equal ones the first takes the others in.
    let mut kept = first;
    for i in first + 1..seeds.len() {
        if order(&seeds[kept], &seeds[i]).is_eq() {
            let vcpus = std::mem::take(&mut seeds[i].vcpus);
            seeds[kept].vcpus.extend(vcpus);
        } else {
            kept += 1;
            seeds.swap(kept, i);
        }
    }
    seeds.truncate(seeds.len().min(kept + 1));
    for seed in &mut seeds[first..] {
        let count = crate::units::count(seed.vcpus.len());
        seed.leaf.weight *= count;
        seed.leaf.limit *= count;
        seed.raised *= count;
    }
}

/// The pCPUs, merged if the same masks contain them, and the network on them.
pub(crate) fn network(usable: &CpuSet, masks: &[&CpuSet]) -> (Vec<CpuSet>, Network) {
    let pcpus = classes(usable, masks);
    let width = pcpus.len().div_ceil(64).max(1);
    let mut bits = vec![0; width * masks.len()];
    let alone = pcpus
        .iter()
        .enumerate()
        .all(|(i, set)| set.len() == 1 && set.iter().next().is_some_and(|CpuId(cpu)| cpu as usize == i));
    if alone {
        for (to, mask) in bits.chunks_mut(width).zip(masks) {
            to[..mask.words().len()].copy_from_slice(mask.words());
        }
    } else {
        let mut number = vec![usize::MAX; usable.words().len() * 64];
        for (i, set) in pcpus.iter().enumerate() {
            if let Some(CpuId(first)) = set.iter().next() {
                number[first as usize] = i;
            }
        }
        for (row, mask) in masks.iter().enumerate() {
            let at = row * width;
            // Neighbours mostly may use the same.
            if row > 0 && masks[row - 1] == *mask {
                bits.copy_within(at - width..at, at);
            } else {
                let marked = bits::iter(mask.words()).map(|cpu| number[cpu]);
                marked.filter(|&i| i != usize::MAX).for_each(|i| bits::set(&mut bits[at..at + width], i));
            }
        }
    }
    let capacity = pcpus.iter().map(|set| crate::units::count(set.len())).collect();
    (pcpus, Network::new(width, bits, capacity))
}

/// Divides the usable pCPUs into classes that no mask tells apart, in the order of their first ones.
fn classes(usable: &CpuSet, masks: &[&CpuSet]) -> Vec<CpuSet> {
    let total = usable.len();
    let mut of = vec![usize::MAX; usable.words().len() * 64];
    usable.iter().for_each(|CpuId(cpu)| of[cpu as usize] = 0);
    let mut sizes = vec![total];
    let mut hits: Vec<usize> = vec![0];
    let mut seen = BTreeSet::new();
    for mask in masks {
        if sizes.len() >= total {
            break;
        }
        if !seen.insert(mask.words()) {
            continue;
        }
        let members = || bits::iter(mask.words()).filter(|&cpu| cpu < of.len() && of[cpu] != usize::MAX);
        let members: Vec<usize> = members().collect();
        for &cpu in &members {
            hits[of[cpu]] += 1;
        }
        let before = sizes.len();
        let mut moved = vec![usize::MAX; before];
        for &cpu in &members {
            let class = of[cpu];
            if hits[class] < sizes[class] && moved[class] == usize::MAX {
                moved[class] = sizes.len();
                sizes.push(hits[class]);
            }
            if moved[class] != usize::MAX {
                of[cpu] = moved[class];
            }
        }
        for (class, &to) in moved.iter().enumerate() {
            if to != usize::MAX {
                sizes[class] -= sizes[to];
            }
        }
        hits.clear();
        hits.resize(sizes.len(), 0);
    }
    let mut number = vec![usize::MAX; sizes.len()];
    let mut sets: Vec<Vec<CpuId>> = Vec::new();
    for cpu in usable.iter() {
        let class = of[cpu.0 as usize];
        if number[class] == usize::MAX {
            number[class] = sets.len();
            sets.push(Vec::new());
        }
        sets[number[class]].push(cpu);
    }
    sets.into_iter().map(|set| set.into_iter().collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    #[test]
    fn pcpus_are_told_apart_only_by_masks() {
        let divide = |usable: &str, masks: &[&str]| {
            let masks: Vec<CpuSet> = masks.iter().map(|m| set(m)).collect();
            let classes = classes(&set(usable), &masks.iter().collect::<Vec<_>>());
            classes.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(divide("0-7", &["0-7", "0-7"]), ["0-7"]);
        assert_eq!(divide("0-7", &["2-5", "4-7"]), ["0-1", "2-3", "4-5", "6-7"]);
        assert_eq!(divide("1,3,70", &["3"]), ["1,70", "3"]);
        assert_eq!(divide("", &[""]), [""; 0]);
    }

    #[test]
    fn equal_vcpus_of_a_vm_are_one_leaf_with_all_their_weight() {
        let pinned = Vcpu { affinity: Some(set("0-1")), ..Vcpu::default() };
        let vcpus = vec![pinned.clone(), Vcpu::default(), pinned];
        let vm = Vm { name: "a".into(), weight: crate::Weight(1.0), cap: None, vcpus };
        let host = Host { pcpus: set("0-3"), vms: vec![vm], ..Host::default() };
        let compiled = compile(&host, Wants::Everything).unwrap();
        let leaves = &compiled.filling.tree.leaves;
        assert_eq!(leaves.len(), 2);
        assert_eq!(compiled.leaf_of[0], compiled.leaf_of[2]);
        let leaf = compiled.leaf_of[0].unwrap();
        assert_eq!((leaves[leaf].weight, leaves[leaf].limit, compiled.counts[leaf]), (2048.0, 2.0, 2));
    }
}
