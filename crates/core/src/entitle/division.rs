//! The result: what each vCPU gets, why not more, and the proof of it.

use std::sync::Arc;

use serde::Serialize;

use super::bits;
use super::certificate::{Certificate, Full, Usage};
use super::compile::{Compiled, Wants, compile, demand};
use super::crowds::Crowds;
use super::host::{Host, HostError, Vcpu};
use crate::{CpuSet, Cpus};

/// Amounts that differ by less are equal, in CPUs; certificates are checked to this.
pub const TOLERANCE: f64 = 1e-9;

/// Why a vCPU gets no more than it does. Of several reasons the first in this order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// It is offline.
    Offline,
    /// It has a whole pCPU; no vCPU can use more.
    Whole,
    /// Its own quota.
    Quota,
    /// It wants no more.
    Demand,
    /// The cap of its VM or of a slice, named as in `slice a`.
    Cap(String),
    /// Its pCPUs are full: they and those that their other users could move to. See
    /// [`Division::crowd`].
    Crowded,
}

/// What one vCPU gets, and why not more.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// Its amount.
    pub cpus: Cpus,
    /// What holds it there.
    pub cause: Cause,
    /// Its demand was fixed: [`Vcpu::fixed`].
    pub fixed: bool,
}

/// The smallest set of vCPUs with a given one that together have all of their pCPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FullSet {
    /// All pCPUs that one of the set may use; no time is left on them.
    pub pcpus: CpuSet,
    /// The VMs of the set, by number, and which of their vCPUs belong to it.
    pub vms: Vec<(usize, CpuSet)>,
    /// Those of them who want most, as many as a sentence may need.
    pub(super) first: Vec<usize>,
}

/// A division of a host's pCPUs among its VMs. VMs have the numbers of [`Host::all_vms`], vCPUs
/// those in their VM.
#[derive(Clone, Debug)]
pub struct Division {
    names: Vec<String>,
    shares: Vec<Share>,
    /// Groups whose caps are used up.
    tight: Vec<bool>,
    /// What the vCPUs of each VM demand together.
    wanted: Vec<f64>,
    pub(super) compiled: Compiled,
}

impl Division {
    /// Divides a host exactly.
    ///
    /// # Errors
    /// If the host has numbers out of range or names twice.
    pub fn of(host: &Host, wants: Wants) -> Result<Division, HostError> {
        let mut compiled = compile(host, wants)?;
        compiled.filling.run(None);
        let ends = compiled.filling.ends();
        compiled.filling.network.finish(&ends);
        let tight = tight_caps(&compiled, &ends);
        let vms = host.all_vms();
        let mut shares = Vec::with_capacity(compiled.leaf_of.len());
        for (number, vm) in vms.iter().enumerate() {
            let raised = wants == Wants::Everything || wants == Wants::Everywhere(number);
            for vcpu in &vm.vcpus {
                shares.push(share(&compiled, &ends, &tight, shares.len(), (vcpu, raised)));
            }
        }
        let names = vms.iter().map(|vm| vm.name.clone()).collect();
        let wants = |vm: &&super::Vm| vm.vcpus.iter().filter(|vcpu| vcpu.online).map(demand).sum();
        let wanted = vms.iter().map(wants).collect();
        Ok(Division { names, shares, tight, wanted, compiled })
    }

    /// How many VMs there are.
    #[must_use]
    pub fn vms(&self) -> usize {
        self.names.len()
    }

    /// The name of a VM.
    #[must_use]
    pub fn name(&self, vm: usize) -> &str {
        &self.names[vm]
    }

    /// What a VM gets.
    #[must_use]
    pub fn cpus(&self, vm: usize) -> Cpus {
        // A sum of nothing is -0.0.
        Cpus(self.vcpus(vm).iter().map(|share| share.cpus.0).sum::<f64>() + 0.0)
    }

    /// What each vCPU of a VM gets.
    #[must_use]
    pub fn vcpus(&self, vm: usize) -> &[Share] {
        &self.shares[self.first(vm)..self.first(vm + 1)]
    }

    /// What a VM demands: of equals, who wants most is named first.
    pub(super) fn wanted(&self, vm: usize) -> f64 {
        self.wanted[vm]
    }

    /// What stands for a vCPU: the same for equal ones of a VM.
    pub(super) fn leaf(&self, vm: usize, vcpu: usize) -> Option<usize> {
        self.compiled.leaf_of[self.first(vm) + vcpu]
    }

    /// The full pCPUs that hold a crowded vCPU, and all who use them: the smallest such set, which
    /// is the same whatever timetable was found.
    #[must_use]
    pub fn crowd(&self, vm: usize, vcpu: usize) -> FullSet {
        Arc::unwrap_or_clone(self.crowd_of(vm, vcpu, &mut Crowds::default()))
    }

    /// The same, remembered among others: of all vCPUs of one set it is the same object.
    pub fn crowd_of(&self, vm: usize, vcpu: usize, crowds: &mut Crowds) -> Arc<FullSet> {
        let Some(leaf) = self.leaf(vm, vcpu) else {
            return Arc::new(FullSet { pcpus: CpuSet::default(), vms: Vec::new(), first: Vec::new() });
        };
        if let Some(known) = crowds.of(leaf) {
            return known;
        }
        let closure = match self.compiled.filling.network.closure(leaf, |other| crowds.reaches(other, leaf)) {
            Ok(closure) => closure,
            Err(other) => return crowds.same(leaf, other),
        };
        let mut member = vec![false; self.compiled.counts.len()];
        closure.leaves.iter().for_each(|&leaf| member[leaf] = true);
        let mut vms = Vec::new();
        for vm in 0..self.vms() {
            let vcpus = self.compiled.leaf_of[self.first(vm)..self.first(vm + 1)].iter();
            let inside = vcpus.enumerate().filter(|(_, leaf)| leaf.is_some_and(|leaf| member[leaf]));
            let inside: CpuSet =
                inside.filter_map(|(i, _)| u32::try_from(i).ok()).map(crate::CpuId).collect();
            if !inside.is_empty() {
                vms.push((vm, inside));
            }
        }
        let first = self.who_want_most(&vms);
        let full = FullSet { pcpus: self.pcpus(&closure.pcpus), vms, first };
        crowds.add(leaf, closure.leaves, full)
    }

    /// Everything that somebody who does not trust the solver needs to check the result.
    #[must_use]
    pub fn certificate(&self) -> Certificate {
        let Compiled { filling, leaf_of, names, .. } = &self.compiled;
        let mut vcpus_of = vec![Vec::new(); self.compiled.counts.len()];
        for (vcpu, leaf) in leaf_of.iter().enumerate() {
            leaf.iter().for_each(|&leaf| vcpus_of[leaf].push(vcpu));
        }
        let of = |leaves: &mut dyn Iterator<Item = usize>| -> Vec<usize> {
            leaves.flat_map(|leaf| vcpus_of[leaf].iter().copied()).collect()
        };
        let usage = (0..vcpus_of.len()).flat_map(|leaf| {
            let used = filling.network.used(leaf).iter();
            let vcpus = &vcpus_of[leaf];
            used.map(|&(p, cpus)| Usage {
                vcpus: vcpus.clone(),
                pcpus: self.compiled.pcpus[p].clone(),
                cpus: Cpus(cpus),
            })
        });
        let full = filling.rounds.iter().map(|round| Full {
            time: round.time,
            vcpus: of(&mut round.crowd.leaves.iter().copied()),
            pcpus: self.pcpus(&round.crowd.pcpus),
            stopped: of(&mut round.stopped.iter().map(|(leaf, _)| *leaf)),
        });
        let capped = filling.trajectory.saturations().zip(&self.tight).zip(names);
        let capped = capped.filter(|((_, tight), _)| **tight);
        Certificate {
            shares: self.shares.clone(),
            usage: usage.collect(),
            full: full.collect(),
            capped: capped.map(|((at, _), name)| (name.clone(), at)).collect(),
        }
    }

    fn first(&self, vm: usize) -> usize {
        self.compiled.vms[vm].1
    }

    fn pcpus(&self, merged: &[u64]) -> CpuSet {
        bits::iter(merged).flat_map(|p| self.compiled.pcpus[p].iter()).collect()
    }
}

/// The groups whose caps are used up.
fn tight_caps(compiled: &Compiled, ends: &[f64]) -> Vec<bool> {
    let tree = &compiled.filling.tree;
    let mut sums = vec![0.0; tree.groups.len()];
    for (leaf, amount) in tree.leaves.iter().zip(ends) {
        sums[leaf.group] += amount;
    }
    for i in (1..sums.len()).rev() {
        sums[tree.groups[i].parent] += sums[i];
    }
    let groups = tree.groups.iter().zip(sums);
    groups.map(|(group, sum)| sum >= group.cap - TOLERANCE).collect()
}

fn share(
    compiled: &Compiled,
    ends: &[f64],
    tight: &[bool],
    vcpu: usize,
    (given, raised): (&Vcpu, bool),
) -> Share {
    let Some(leaf) = compiled.leaf_of[vcpu] else {
        return Share { cpus: Cpus(0.0), cause: Cause::Offline, fixed: given.fixed };
    };
    let filling = &compiled.filling;
    let cpus = ends[leaf] / crate::units::count(compiled.counts[leaf]);
    let quota = given.quota.map_or(1.0, |quota| quota.0);
    let demand = if raised && !given.fixed { 1.0 } else { demand(given) };
    let capped = || filling.tree.upwards(filling.tree.leaves[leaf].group).find(|&group| tight[group]);
    let cause = if cpus >= quota.min(demand).min(1.0) - TOLERANCE {
        if quota.min(demand) >= 1.0 {
            Cause::Whole
        } else if quota <= demand {
            Cause::Quota
        } else {
            Cause::Demand
        }
    } else if let Some(group) = capped() {
        Cause::Cap(compiled.names[group].clone())
    } else {
        Cause::Crowded
    };
    Share { cpus: Cpus(cpus), cause, fixed: given.fixed }
}
