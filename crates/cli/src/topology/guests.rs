//! Who may run on which pCPU, for pictures.

use std::collections::BTreeMap;

use corefit_core::check::Subject;
use corefit_core::{CpuId, CpuSet};

/// VMs on pCPUs.
#[derive(Debug, Default)]
pub(super) struct Guests {
    /// The VMs in their order.
    pub(super) rows: Vec<Row>,
    /// Of each pCPU: VMs by number, each with those of its vCPUs that are pinned to this pCPU alone; none for
    /// a VM that has the pCPU among others.
    pub(super) on: BTreeMap<CpuId, Vec<(usize, Vec<u32>)>>,
}

/// A VM.
#[derive(Debug)]
pub(super) struct Row {
    /// `a` to `z`, `aa` and so on.
    pub(super) tag: String,
    pub(super) name: String,
    pub(super) vcpus: usize,
    /// In words.
    pub(super) place: String,
    /// Whether it stands on some pCPUs: not if it may run anywhere.
    pub(super) drawn: bool,
}

impl Guests {
    pub(super) fn of(subject: &Subject) -> Guests {
        let mut guests = Guests::default();
        for (number, vm) in subject.vms.iter().enumerate() {
            let mut sets: Vec<(CpuSet, CpuSet)> = Vec::new();
            let mut loose = CpuSet::default();
            for (vcpu, state) in vm.online() {
                let one = CpuSet::from_iter([CpuId(vcpu)]);
                match &state.affinity {
                    None => loose = loose.union(&one),
                    Some(set) => match sets.iter_mut().find(|(_, known)| *known == set.value) {
                        Some((vcpus, _)) => *vcpus = vcpus.union(&one),
                        None => sets.push((one, set.value.clone())),
                    },
                }
            }
            for (vcpus, set) in &sets {
                let alone: Vec<u32> =
                    if set.len() == 1 { vcpus.iter().map(|v| v.0).collect() } else { Vec::new() };
                for cpu in set.iter() {
                    let here = guests.on.entry(cpu).or_default();
                    match here.iter_mut().find(|(known, _)| *known == number) {
                        Some((_, vcpus)) => vcpus.extend(&alone),
                        None => here.push((number, alone.clone())),
                    }
                }
            }
            let mut place = place(&sets, &loose);
            let pcpus = sets.iter().flat_map(|(_, set)| set.iter()).collect::<CpuSet>();
            let absent = subject.topology.as_ref().map(|topology| pcpus.difference(&topology.pcpus));
            if let Some(absent) = absent.filter(|absent| !absent.is_empty()) {
                place += &format!(" ({} not here)", absent.named("pCPU"));
            }
            guests.rows.push(Row {
                tag: tag(number),
                name: vm.name.clone(),
                vcpus: vm.width(),
                place,
                drawn: !sets.is_empty(),
            });
        }
        guests
    }
}

fn tag(mut number: usize) -> String {
    let mut text = String::new();
    loop {
        text.insert(0, char::from(b'a' + u8::try_from(number % 26).unwrap_or(0)));
        match (number / 26).checked_sub(1) {
            None => return text,
            Some(rest) => number = rest,
        }
    }
}

/// `vCPUs 0-3 on 8-11 one to one`, `vCPUs 0-3 anywhere in 0-7`.
fn place(sets: &[(CpuSet, CpuSet)], loose: &CpuSet) -> String {
    let union =
        |sets: &mut dyn Iterator<Item = &CpuSet>| sets.fold(CpuSet::default(), |all, set| all.union(set));
    let mut parts = Vec::new();
    let single = || sets.iter().filter(|(_, set)| set.len() == 1);
    let vcpus = union(&mut single().map(|(vcpus, _)| vcpus));
    let pcpus = union(&mut single().map(|(_, set)| set));
    if !vcpus.is_empty() {
        let how = if vcpus.len() == pcpus.len() && vcpus.len() > 1 { ", one each" } else { "" };
        parts.push(format!("{} on {pcpus}{how}", vcpus.named("vCPU")));
    }
    parts.extend(
        sets.iter()
            .filter(|(_, set)| set.len() > 1)
            .map(|(vcpus, set)| format!("{} anywhere in {set}", vcpus.named("vCPU"))),
    );
    if !loose.is_empty() {
        parts.push(format!("{} anywhere", loose.named("vCPU")));
    }
    parts.join("; ")
}
