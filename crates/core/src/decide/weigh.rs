//! Weights that follow what was granted, where numbers of vCPUs alone cannot.
//!
//! ```text
//! grants, guarantees ──▶ somebody is short, and more vCPUs stay than there are pCPUs?
//!                           yes: weights by parts, their sum kept      no: as they were
//! ```
//!
//! A VM keeps a vCPU, and one without agent keeps all, whatever it was granted: then the host's weights divide the
//! pCPUs, and they know no priorities. Here each gets what it is guaranteed, and of the rest a part in proportion to
//! what it was granted beyond. Among siblings the sum of weights stays, so whoever takes no part in it is not concerned.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::part::{may_use, online};
use super::{AFTER_FAILURE, Action, Outcome, Policy, Why};
use crate::entitle::WeightRule;
use crate::machine::{HostEstimate, Lever, LeverKind, MachineError, Role, Value, VmId, VmState};
use crate::share::count;
use crate::{CpuSet, Time, Weight};

/// Of what is guaranteed to who gives way to more important ones he keeps this part. Ours.
const LITTLE: f64 = 0.1;
/// The least weight, of Linux and of what libvirt takes.
const LEAST: f64 = 2.0;
/// The greatest that every kernel takes (control groups v2), for VMs that did not weigh more before.
const MOST: f64 = 10_000.0;

/// A VM that pCPUs were granted to.
#[derive(Clone, Copy, Debug)]
pub struct Granted {
    /// Its number in [`HostEstimate::vms`].
    pub number: usize,
    /// pCPUs that it was granted.
    pub pcpus: u32,
    /// It asked for more.
    pub short: bool,
    /// pCPUs that it gets in any case, as a part of one too.
    pub guaranteed: f64,
    /// Larger is more important.
    pub priority: i32,
    /// vCPUs that it has online once it is sized.
    pub vcpus: u32,
}

/// The stage: what it remembers of each VM.
#[derive(Debug, Default)]
pub struct Weighing {
    vms: BTreeMap<VmId, Known>,
    /// What those weighed whose weight is ours, as the journal has it.
    before: BTreeMap<VmId, Weight>,
    changed: Option<Time>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    /// The weight before it was ours, and what we made it.
    base: f64,
    wrote: Option<f64>,
    not_before: Time,
    refused: bool,
}

/// One of those whose weights are compared.
struct Sibling<'a> {
    id: &'a VmId,
    base: f64,
    /// pCPUs.
    part: f64,
    /// As how many it counts.
    times: f64,
}

impl Weighing {
    /// Which weights to change, by what was granted of these pCPUs, in the order of numbers. Without grants: all as they
    /// were, those too that came changed from another host.
    pub fn step(
        &mut self,
        seen: &HostEstimate,
        granted: &[Granted],
        usable: &CpuSet,
        policy: &Policy,
    ) -> Vec<Action> {
        let ours = !self.before.is_empty() || self.vms.values().any(|known| known.wrote.is_some());
        if granted.is_empty() && !ours {
            self.vms.clear();
            return Vec::new();
        }
        self.settle(seen);
        if self.changed.is_some_and(|at| seen.at.since(at) < Duration::from_millis(policy.lever_ms)) {
            return Vec::new();
        }
        let contended = contended(seen, granted, usable, policy);
        let parts = if contended { parts(seen, granted, usable.len()) } else { BTreeMap::new() };
        let targets = self.targets(seen, &parts);
        let due = |vm: &VmState| {
            let (known, now) = (self.vms.get(&vm.id)?, vm.weight?.0);
            let target = targets.get(&vm.id).copied().unwrap_or(known.base);
            let back = same(target, known.base) && !same(now, target);
            let far = (target - now).abs() > policy.deadband * now;
            let free = known.usable(vm, seen.at) && (known.wrote.is_some() || targets.contains_key(&vm.id));
            (free && (back || far)).then_some((now, target))
        };
        let action = |vm: &VmState, (now, to): (f64, f64)| Action {
            vm: vm.id.clone(),
            name: vm.name.clone(),
            lever: Lever::Weight,
            from: Some(Value::Weight(Weight(now))),
            to: Value::Weight(Weight(to)),
            why: match parts.get(&vm.id) {
                Some((_, part)) if targets.contains_key(&vm.id) => Why::Weighed { part: crate::Cpus(*part) },
                _ => Why::Unweighed,
            },
        };
        seen.vms.iter().filter_map(|vm| Some(action(&vm.seen, due(&vm.seen)?))).collect()
    }

    /// What VMs weighed before it was changed: of one that was not seen for a while, came from another host, or was
    /// left by an earlier run, its weight does not tell.
    pub fn before(&mut self, weights: BTreeMap<VmId, Weight>) {
        self.before = weights;
    }

    /// What became of an action of the last step.
    pub fn told(&mut self, outcome: &Outcome, at: Time) {
        let Some(known) = self.vms.get_mut(&outcome.action.vm) else { return };
        if outcome.action.lever != Lever::Weight {
            return;
        }
        self.changed = Some(at);
        match &outcome.result {
            Ok(Value::Weight(Weight(weight))) => known.wrote = Some(*weight),
            Err(MachineError::Gone(_)) => known.not_before = at + AFTER_FAILURE,
            Ok(_) | Err(_) => known.refused = true,
        }
    }

    /// Who refused is asked again.
    pub fn try_again(&mut self) {
        self.vms.values_mut().for_each(|known| known.refused = false);
    }

    /// Whose the weights are: what is not as we made it is somebody else's, and what we begin with.
    fn settle(&mut self, seen: &HostEstimate) {
        let here: BTreeSet<&VmId> = seen.vms.iter().map(|vm| &vm.seen.id).collect();
        self.vms.retain(|id, _| seen.may_lack_vms() || here.contains(id));
        for vm in seen.vms.iter().filter(|vm| vm.seen.role == Role::Vm) {
            let Some(Weight(now)) = vm.seen.weight else { continue };
            let before = self.before.get(&vm.seen.id);
            let known = self.vms.entry(vm.seen.id.clone()).or_insert(Known {
                base: before.map_or(now, |before| before.0),
                wrote: before.map(|_| now),
                not_before: Time(0),
                refused: false,
            });
            // One that is as it was may only be late to show what was written.
            if known.wrote.is_none_or(|wrote| !same(wrote, now) && !same(known.base, now)) {
                (known.base, known.wrote) = (now, None);
            }
        }
    }

    /// What VMs are to weigh, of those whose weight can be changed and who have siblings to share with.
    fn targets(&self, seen: &HostEstimate, parts: &BTreeMap<VmId, (Granted, f64)>) -> BTreeMap<VmId, f64> {
        let mut siblings: BTreeMap<Option<&str>, Vec<Sibling<'_>>> = BTreeMap::new();
        for (id, (granted, part)) in parts {
            let vm = &seen.vms[granted.number].seen;
            let Some(known) = self.vms.get(id).filter(|known| known.usable(vm, seen.at)) else { continue };
            // Under Xen's credit scheduler a VM weighs its weight times its vCPUs.
            let times = match seen.host.rule {
                WeightRule::Linux => 1.0,
                WeightRule::XenCredit => f64::from(granted.vcpus.max(1)),
                WeightRule::EqualPerVcpu => continue,
            };
            siblings.entry(vm.parent.as_deref()).or_default().push(Sibling {
                id,
                base: known.base,
                part: *part,
                times,
            });
        }
        let mut targets = BTreeMap::new();
        for vms in siblings.into_values().filter(|vms| vms.len() > 1) {
            let weight: f64 = vms.iter().map(|vm| vm.base * vm.times).sum();
            let whole: f64 = vms.iter().map(|vm| vm.part).sum();
            for vm in vms {
                let target = (weight * vm.part / whole / vm.times).round();
                targets.insert(vm.id.clone(), target.clamp(LEAST, MOST.max(vm.base)));
            }
        }
        targets
    }
}

impl Known {
    fn usable(&self, vm: &VmState, at: Time) -> bool {
        !self.refused && at >= self.not_before && vm.fixed(LeverKind::Weight).is_none()
    }
}

/// Whether somebody has less than it asked for, and numbers of vCPUs do not see to the rest.
fn contended(seen: &HostEstimate, granted: &[Granted], usable: &CpuSet, policy: &Policy) -> bool {
    if !granted.iter().any(|granted| granted.short) {
        return false;
    }
    let online = online(seen);
    let stays = |number: usize| {
        let found = granted.binary_search_by_key(&number, |granted| granted.number);
        let vm = &seen.vms[number];
        match found {
            Ok(at) => granted[at].vcpus as usize,
            Err(_) if may_use(policy, &online, vm).meets(usable) => vm.seen.online().len(),
            Err(_) => 0,
        }
    };
    let running = (0..seen.vms.len()).filter(|n| seen.vms[*n].seen.is_running_vm());
    running.map(stays).sum::<usize>() > usable.len()
}

/// What each VM's part is, in pCPUs.
fn parts(seen: &HostEstimate, granted: &[Granted], pcpus: usize) -> BTreeMap<VmId, (Granted, f64)> {
    let beyond = |granted: &Granted| (f64::from(granted.pcpus) - granted.guaranteed).max(0.0);
    let sure = guarantees(granted, count(pcpus));
    let guaranteed: f64 = sure.iter().sum();
    let wanted: f64 = granted.iter().map(beyond).sum();
    let left = (count(pcpus) - guaranteed).max(0.0);
    let factor = if wanted > left { left / wanted } else { 1.0 };
    let id = |granted: &Granted| seen.vms[granted.number].seen.id.clone();
    let part = |granted: &Granted, sure: f64| sure + factor * beyond(granted);
    granted.iter().zip(sure).map(|(granted, sure)| (id(granted), (*granted, part(granted, sure)))).collect()
}

/// What is guaranteed to each, as far as it fits: the more important first, equally important ones in proportion. Nobody gets nothing.
fn guarantees(granted: &[Granted], pcpus: f64) -> Vec<f64> {
    let mut wanted: BTreeMap<std::cmp::Reverse<i32>, f64> = BTreeMap::new();
    for granted in granted {
        *wanted.entry(std::cmp::Reverse(granted.priority)).or_default() += granted.guaranteed;
    }
    let mut left = pcpus;
    for wanted in wanted.values_mut() {
        let fits = if *wanted > left { left / *wanted } else { 1.0 };
        left -= *wanted * fits;
        *wanted = fits.max(LITTLE);
    }
    granted.iter().map(|g| g.guaranteed * wanted[&std::cmp::Reverse(g.priority)]).collect()
}

/// Whether two weights are the same: they are whole numbers.
fn same(a: f64, b: f64) -> bool {
    (a - b).abs() < 0.5
}
