//! Which VMs' figures depend on a weight or a quota that could not be read.
//!
//! VMs are *tied* if they may use a pCPU in common, or lie in the same slice; so are those that are tied to the
//! same one. What some do does not reach those that are not tied to them: at the top, weights of others only change
//! how fast the time of the filling passes. (Example: a and b on pCPUs 0-1, c on pCPU 2: c's weight is nothing to a.)
//! Among tied ones, weights and quotas of others count only where somebody is held by full pCPUs or a cap. If all have
//! all that they may have, they have it with any weights, and smaller quotas of others leave it to them.

use std::collections::BTreeMap;

use super::snapshot::Snapshot;
use crate::entitle::{Cause, Division};
use crate::{CpuId, CpuSet, What};

/// For each VM of the division (`order`: which of the snapshot's it is): what is not known that its figures depend on.
pub(super) fn unsure(
    snapshot: &Snapshot,
    order: &[usize],
    division: &Division,
    usable: &CpuSet,
) -> Vec<Option<String>> {
    let mut found = vec![None; order.len()];
    let is_setting = |what: &What| matches!(what, What::Weight | What::Quota);
    let lacking: Vec<What> = snapshot.unread.iter().map(|u| u.what).filter(is_setting).collect();
    let marked = snapshot.vms.iter().map(|vm| &vm.unread).chain(snapshot.groups.iter().map(|g| &g.unread));
    let marked = marked.flatten().any(is_setting);
    if lacking.is_empty() && !marked {
        return found;
    }
    // Whose it is may not be said: then it may be anybody's.
    let anybody = if marked { Vec::new() } else { lacking };
    let mut ties = Ties::of(snapshot, order, usable);
    let groups: BTreeMap<&str, usize> =
        snapshot.groups.iter().enumerate().map(|(i, group)| (group.name.as_str(), i)).collect();
    // What is unread of each tied set, by the one that stands for it.
    let mut culprits: BTreeMap<usize, String> = BTreeMap::new();
    for (number, &index) in order.iter().enumerate() {
        let vm = &snapshot.vms[index];
        if let Some(why) = why(&vm.name, &vm.unread).or_else(|| why("a VM or slice", &anybody)) {
            culprits.entry(ties.root(number)).or_insert(why);
        }
    }
    for (index, group) in snapshot.groups.iter().enumerate() {
        if let Some(why) = why(&group.name, &group.unread) {
            culprits.entry(ties.root(order.len() + index)).or_insert(why);
        }
    }
    let mut contended = vec![false; order.len() + snapshot.groups.len()];
    for number in 0..order.len() {
        let held = |cause: &Cause| matches!(cause, Cause::Crowded | Cause::Cap(_));
        contended[ties.root(number)] |= division.vcpus(number).iter().any(|share| held(&share.cause));
    }
    for (number, &index) in order.iter().enumerate() {
        let vm = &snapshot.vms[index];
        let root = ties.root(number);
        found[number] = culprits.get(&root).filter(|_| contended[root]).cloned();
        // Without its own quotas, or those above it, not even the most that it may have is known.
        let quota = |unread: &[What]| unread.contains(&What::Quota);
        let mut above = vm.parent.as_deref();
        let mut unlimited =
            quota(&vm.unread).then_some(vm.name.as_str()).or(quota(&anybody).then_some("a VM or slice"));
        while let Some(&group) = above.and_then(|name| groups.get(name)) {
            let group = &snapshot.groups[group];
            unlimited = unlimited.or(quota(&group.unread).then_some(group.name.as_str()));
            above = group.parent.as_deref();
        }
        found[number] = found[number].take().or(unlimited.and_then(|name| why(name, &[What::Quota])));
    }
    found
}

fn why(name: &str, unread: &[What]) -> Option<String> {
    let what = |what: What| unread.contains(&what);
    let missing = match (what(What::Weight), what(What::Quota)) {
        (true, true) => "weights and quotas",
        (true, false) => "a weight",
        (false, true) => "a quota",
        (false, false) => return None,
    };
    Some(format!("{missing} of {name} could not be read"))
}

/// Sets of VMs (by number) and groups (after them) that are tied, each with one that stands for it.
struct Ties(Vec<usize>);

impl Ties {
    fn of(snapshot: &Snapshot, order: &[usize], usable: &CpuSet) -> Ties {
        let mut ties = Ties((0..order.len() + snapshot.groups.len()).collect());
        let group = |name: &Option<String>| {
            let place = snapshot.groups.iter().position(|group| Some(&group.name) == name.as_ref())?;
            Some(order.len() + place)
        };
        let mut users: BTreeMap<CpuId, usize> = BTreeMap::new();
        for (number, &index) in order.iter().enumerate() {
            let vm = &snapshot.vms[index];
            if let Some(parent) = group(&vm.parent) {
                ties.tie(number, parent);
            }
            let vcpus = vm.vcpus.iter().filter(|vcpu| vcpu.online).map(|vcpu| &vcpu.affinity);
            for affinity in vcpus.chain(vm.helpers.iter().map(|helper| &helper.affinity)) {
                for pcpu in affinity.as_ref().unwrap_or(usable).iter() {
                    let first = *users.entry(pcpu).or_insert(number);
                    ties.tie(number, first);
                }
            }
        }
        for (index, slice) in snapshot.groups.iter().enumerate() {
            if let Some(parent) = group(&slice.parent) {
                ties.tie(order.len() + index, parent);
            }
        }
        ties
    }

    fn root(&mut self, mut one: usize) -> usize {
        while self.0[one] != one {
            self.0[one] = self.0[self.0[one]];
            one = self.0[one];
        }
        one
    }

    fn tie(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        self.0[a] = b;
    }
}
