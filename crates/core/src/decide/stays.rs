//! Which vCPUs stay when a VM has fewer online.
//!
//! Number 0 always does. Where all may use the same pCPUs the others stay by number. Where they may not, as those of a VM that lies on two
//! nodes by halves, the highest numbers would all be of one half, whose pCPUs would then be nobody's: here those stay whose pCPUs
//! have least to do.

use std::collections::{BTreeMap, BTreeSet};

use super::Policy;
use super::asked::rank;
use super::part::placed;
use crate::machine::{HostEstimate, VmEstimate};
use crate::units::count;
use crate::{CpuId, CpuSet};

/// Why a VM keeps all its vCPUs: each is pinned to a pCPU of its own. Number 0 stays, so VMs pinned alike would be left with the same ones.
pub(super) fn pinned(sets: &BTreeSet<&CpuSet>, vm: &VmEstimate) -> Option<&'static str> {
    let alone = sets.len() == vm.seen.vcpus.len() && sets.iter().all(|set| set.len() == 1);
    alone.then_some(
        "its vCPUs are pinned to a pCPU each, which nobody would use if they went offline (give all the same affinity, or set place)",
    )
}

/// The numbers of a VM's vCPUs, those that stay longest first: by [`rank`] of those that are `online` and that it `had` before. `sets`:
/// of [`differing`], `lying`: of [`lying`].
pub(super) fn order(
    sets: BTreeSet<&CpuSet>,
    vm: &VmEstimate,
    lying: &BTreeMap<&CpuSet, usize>,
    (online, had): (&CpuSet, &CpuSet),
) -> Vec<u32> {
    let mut load = crowd(lying, vm);
    // Of each affinity its vCPUs.
    let mut open: Vec<(&CpuSet, BTreeSet<u32>)> = sets
        .into_iter()
        .map(|set| {
            let own = (0..).zip(&vm.seen.vcpus).filter(|(_, vcpu)| vcpu.affinity.as_ref() == Some(set));
            (set, own.map(|(v, _)| v).collect())
        })
        .collect();
    let mut order = Vec::new();
    while let Some((set, vcpu)) = next(&mut open, &load, order.is_empty()) {
        order.push(vcpu);
        add(&mut load, set, 1);
    }
    order.sort_by_key(|vcpu| rank(CpuId(*vcpu), online, had));
    order
}

/// Of the affinity with least to do for each pCPU; at first number 0.
fn next<'a>(
    open: &mut [(&'a CpuSet, BTreeSet<u32>)],
    load: &BTreeMap<CpuId, f64>,
    first: bool,
) -> Option<(&'a CpuSet, u32)> {
    let mean =
        |set: &CpuSet| set.iter().filter_map(|cpu| load.get(&cpu)).sum::<f64>() / count(set.len().max(1));
    let of = |(set, own): &(&CpuSet, BTreeSet<u32>)| {
        let next = own.first().copied()?;
        Some((if first { 0.0 } else { mean(set) }, next))
    };
    let all = (0..open.len()).filter_map(|i| Some((of(&open[i])?, i)));
    let (_, i) = all.min_by(|((a, v), _), ((b, w), _)| a.total_cmp(b).then(v.cmp(w)))?;
    let (set, own) = &mut open[i];
    Some((set, own.pop_first()?))
}

/// The affinities of its vCPUs, if they differ, all are known, and nobody places them.
pub(super) fn differing<'a>(policy: &Policy, vm: &'a VmEstimate) -> Option<BTreeSet<&'a CpuSet>> {
    if vm.seen.is_group() || placed(policy, vm) {
        return None;
    }
    let sets: Option<BTreeSet<&CpuSet>> = vm.seen.vcpus.iter().map(|vcpu| vcpu.affinity.as_ref()).collect();
    sets.filter(|sets| sets.len() > 1)
}

/// How many vCPUs that are online have each affinity, of all VMs that run.
pub(super) fn lying(seen: &HostEstimate) -> BTreeMap<&CpuSet, usize> {
    let mut lying = BTreeMap::new();
    let running = seen.vms.iter().filter(|vm| vm.seen.is_running_vm());
    for set in
        running.flat_map(|vm| &vm.seen.vcpus).filter(|vcpu| vcpu.online).filter_map(|v| v.affinity.as_ref())
    {
        *lying.entry(set).or_default() += 1;
    }
    lying
}

/// What the vCPUs of others that are online make of each pCPU.
fn crowd(lying: &BTreeMap<&CpuSet, usize>, vm: &VmEstimate) -> BTreeMap<CpuId, f64> {
    let mut load = BTreeMap::new();
    for (set, all) in lying {
        let own = vm.seen.vcpus.iter().filter(|vcpu| vcpu.online && vcpu.affinity.as_ref() == Some(*set));
        add(&mut load, set, all.saturating_sub(own.count()));
    }
    load
}

fn add(load: &mut BTreeMap<CpuId, f64>, set: &CpuSet, vcpus: usize) {
    for cpu in set.iter() {
        *load.entry(cpu).or_default() += count(vcpus) / count(set.len());
    }
}
