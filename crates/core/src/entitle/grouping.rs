//! The heuristic of pCPU-Est (Takayama and Kourai, P2 4.3), as a reference to compare with.
//!
//! A graph connects vCPUs with their pCPUs. From the pCPU with the fewest vCPUs on, groups grow by one
//! pCPU at a time while that raises their proportion, pCPUs over vCPUs; edges that leave a finished
//! group are removed. Afterwards groups are merged over removed edges where the pCPU's group has
//! no smaller proportion than the vCPU's. What the paper leaves open is decided here: an equal
//! proportion counts as raised, ties go to the lowest number, and no vCPU gets more than 1.
//!
//! It knows affinities and weights of VMs; no quotas, caps, demands or slices. The exact model
//! agrees with it on both of the paper's examples (Figures 10 and 11), not in general: growing by one
//! pCPU at a time misses sets that pay only when they are whole.

use std::collections::BTreeSet;

use super::host::{Host, HostError};
use crate::units::count;
use crate::{CpuId, CpuSet, Cpus};

/// Groups of pCPUs and vCPUs, and what VMs get by them.
#[derive(Clone, Debug, PartialEq)]
pub struct Grouping {
    /// The groups, none of them empty.
    pub groups: Vec<EqualGroup>,
    /// What each VM gets, before rounding.
    pub vms: Vec<Cpus>,
}

/// pCPUs that vCPUs divide equally, if their VMs have equal weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EqualGroup {
    /// Its pCPUs.
    pub pcpus: CpuSet,
    /// Its vCPUs: VM and number.
    pub vcpus: BTreeSet<(usize, usize)>,
}

impl EqualGroup {
    /// pCPUs over vCPUs.
    #[must_use]
    pub fn proportion(&self) -> f64 {
        count(self.pcpus.len()) / count(self.vcpus.len())
    }
}

impl Grouping {
    /// The pCPUs that the paper calls available to a VM: its amount, rounded up (a billionth of a
    /// pCPU forgiven).
    #[must_use]
    pub fn available(&self, vm: usize) -> f64 {
        (self.vms[vm].0 - 1e-9).ceil()
    }
}

type Vcpus = BTreeSet<(usize, usize)>;

/// Groups the vCPUs and pCPUs of a host as the paper does.
///
/// # Errors
/// If the host has numbers out of range or names twice.
pub fn group(host: &Host) -> Result<Grouping, HostError> {
    host.check()?;
    let vms = host.all_vms();
    let mut graph: Vec<(CpuId, Vcpus)> = host.usable().iter().map(|cpu| (cpu, Vcpus::new())).collect();
    for (i, vm) in vms.iter().enumerate() {
        for (j, vcpu) in vm.vcpus.iter().enumerate().filter(|(_, vcpu)| vcpu.online) {
            let allowed = |cpu| vcpu.affinity.as_ref().is_none_or(|set| set.contains(cpu));
            graph.iter_mut().filter(|(cpu, _)| allowed(*cpu)).for_each(|(_, users)| _ = users.insert((i, j)));
        }
    }
    let edges = graph.clone();
    let mut groups = Vec::new();
    while let Some(group) = next_group(&mut graph) {
        groups.push(group);
    }
    merge(&mut groups, &edges);
    let mut amounts = vec![0.0; vms.len()];
    for group in &groups {
        let all: f64 = group.vcpus.iter().map(|&(vm, _)| vms[vm].weight.0).sum();
        for &(vm, _) in &group.vcpus {
            amounts[vm] += (count(group.pcpus.len()) * vms[vm].weight.0 / all).min(1.0);
        }
    }
    Ok(Grouping { groups, vms: amounts.into_iter().map(Cpus).collect() })
}

/// Takes the next group out of the graph, and the edges that leave it.
fn next_group(graph: &mut Vec<(CpuId, Vcpus)>) -> Option<EqualGroup> {
    graph.retain(|(_, users)| !users.is_empty());
    let fewest = |graph: &[(CpuId, Vcpus)], among: &dyn Fn(&Vcpus) -> bool| {
        let candidates = graph.iter().enumerate().filter(|(_, (_, users))| among(users));
        candidates.min_by_key(|(_, (_, users))| users.len()).map(|(i, _)| i)
    };
    let (first, mut vcpus) = graph.remove(fewest(graph, &|_| true)?);
    let mut pcpus = vec![first];
    while let Some(next) = fewest(graph, &|users| !users.is_disjoint(&vcpus)) {
        let larger: Vcpus = vcpus.union(&graph[next].1).copied().collect();
        // (p + 1) / larger >= p / v, in whole numbers.
        if (pcpus.len() + 1) * vcpus.len() < pcpus.len() * larger.len() {
            break;
        }
        pcpus.push(graph.remove(next).0);
        vcpus = larger;
    }
    for (_, users) in graph {
        users.retain(|vcpu| !vcpus.contains(vcpu));
    }
    Some(EqualGroup { pcpus: pcpus.into_iter().collect(), vcpus })
}

/// Merges groups over removed edges, from a vCPU's group to a pCPU's with at least its proportion.
fn merge(groups: &mut Vec<EqualGroup>, edges: &[(CpuId, Vcpus)]) {
    let pair = |groups: &[EqualGroup]| {
        for (cpu, users) in edges {
            let Some(to) = groups.iter().position(|g| g.pcpus.contains(*cpu)) else { continue };
            for (from, group) in groups.iter().enumerate() {
                // to's proportion >= from's, in whole numbers
                let (here, there) = (group, &groups[to]);
                let pays = there.pcpus.len() * here.vcpus.len() >= here.pcpus.len() * there.vcpus.len();
                if from != to && pays && !users.is_disjoint(&group.vcpus) {
                    return Some((from, to));
                }
            }
        }
        None
    };
    while let Some((from, to)) = pair(groups) {
        let taken = std::mem::replace(
            &mut groups[from],
            EqualGroup { pcpus: CpuSet::default(), vcpus: Vcpus::new() },
        );
        let into = &mut groups[to];
        into.pcpus = into.pcpus.iter().chain(taken.pcpus.iter()).collect();
        into.vcpus.extend(taken.vcpus);
        groups.remove(from);
    }
}
