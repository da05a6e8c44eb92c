//! The document for programs. Amounts are in pCPUs, what is not known is null.

use std::sync::Arc;

use anyhow::Result;
use corefit_core::entitle::{Cause, Crowds, Division, FullSet};
use corefit_core::machine::{Activity, GuestView, Origin, PcpuEstimate, Role, State, VmEstimate};
use corefit_core::place::Class;
use corefit_core::{CpuId, CpuSet, Cpus, Unread, Weight};
use serde::Serialize;

use super::{View, online};
use crate::versioned;

#[derive(Serialize)]
struct Document<'a> {
    machine: &'a str,
    /// When the later look began, ns since the machine's boot.
    at_ns: u64,
    /// Time between the two looks.
    over_ms: f64,
    vms: Vec<Vm<'a>>,
    /// What competes with VMs.
    others: Vec<Other<'a>>,
    slices: Vec<Slice<'a>>,
    pcpus: Vec<Pcpu<'a>>,
    /// The full pCPUs that hold vCPUs of `vms`, and who uses them.
    full: Vec<Full<'a>>,
    unread: &'a [Unread],
    notes: &'a [String],
}

#[derive(Serialize)]
struct Vm<'a> {
    name: &'a str,
    state: State,
    vcpus_online: usize,
    entitled: Option<f64>,
    available: Option<f64>,
    used: Option<f64>,
    waiting: Option<f64>,
    binding: &'a str,
    slice: Option<&'a str>,
    weight: Option<Weight>,
    /// The VM's own quota, in pCPUs; null if it has none.
    cap: Option<f64>,
    vcpus: Vec<Vcpu<'a>>,
    /// Threads that are no vCPUs: emulator, iothreads. With them, amounts add up to those of the VM.
    helpers: Vec<Helper<'a>>,
    /// NUMA nodes that its memory may come from, where others of the host have pCPUs; else null, and if nothing is said.
    memory_nodes: Option<&'a CpuSet>,
    /// What its work is like by the host's counters, and how that is known.
    class: Class,
    class_origin: Origin,
    class_why: &'a str,
    /// What its guest agent said last; null if nothing.
    guest: Option<&'a GuestView>,
}

#[derive(Serialize)]
struct Helper<'a> {
    name: &'a str,
    entitled: Option<f64>,
    cause: Option<Cause>,
    affinity: Option<&'a CpuSet>,
    cap: Option<f64>,
    used: Option<f64>,
    waiting: Option<f64>,
}

#[derive(Serialize)]
struct Vcpu<'a> {
    online: bool,
    entitled: Option<f64>,
    cause: Option<Cause>,
    /// Which of the document's `full` holds it, from 0.
    full: Option<usize>,
    affinity: Option<&'a CpuSet>,
    /// Its own quota, in pCPUs; null if it has none.
    cap: Option<f64>,
    used: Option<f64>,
    waiting: Option<f64>,
    on: Option<CpuId>,
}

#[derive(Serialize)]
struct Full<'a> {
    pcpus: &'a CpuSet,
    /// VMs and competitors.
    vms: Vec<&'a str>,
}

#[derive(Serialize)]
struct Other<'a> {
    name: &'a str,
    slice: Option<&'a str>,
    weight: Option<Weight>,
    cap: Option<f64>,
    used: Option<f64>,
    waiting: Option<f64>,
}

#[derive(Serialize)]
struct Slice<'a> {
    name: &'a str,
    slice: Option<&'a str>,
    weight: Option<Weight>,
    cap: Option<f64>,
}

#[derive(Serialize)]
struct Pcpu<'a> {
    id: CpuId,
    online: bool,
    busy: Option<f64>,
    stolen: Option<f64>,
    /// VMs that were seen on it last.
    vms: Vec<&'a str>,
    /// Competitors that were seen on it last.
    others: Vec<&'a str>,
}

/// The document of all VMs, or of one; in one line or over many.
pub(super) fn json(view: &View, vm: Option<usize>, one_line: bool) -> Result<String> {
    let host = &view.host;
    let vms = view.vms().filter(|(number, _)| vm.is_none_or(|vm| vm == *number));
    let mut full = FullSets::default();
    let vms = vms.map(|(number, vm)| self::vm(view, number, vm, &mut full)).collect();
    let document = Document {
        machine: &view.machine,
        at_ns: host.at.0,
        over_ms: (host.over.as_secs_f64() * 1e9).round() / 1e6,
        vms,
        others: view.others().into_iter().map(other).collect(),
        slices: view
            .snapshot
            .groups
            .iter()
            .map(|group| Slice {
                name: &group.name,
                slice: group.parent.as_deref(),
                weight: group.weight,
                cap: amount(group.quota.as_ref().and_then(corefit_core::Quota::cpus)),
            })
            .collect(),
        pcpus: host
            .pcpus
            .iter()
            .map(|pcpu| Pcpu {
                id: pcpu.id,
                online: pcpu.online,
                busy: amount(pcpu.busy),
                stolen: amount(pcpu.steal),
                vms: names(view, on(view, pcpu, Role::Vm)),
                others: names(view, on(view, pcpu, Role::Other)),
            })
            .collect(),
        full: full
            .found
            .iter()
            .map(|full| Full { pcpus: &full.pcpus, vms: names(view, full.vms.iter().map(|(vm, _)| *vm)) })
            .collect(),
        unread: &host.unread,
        notes: &host.notes,
    };
    versioned::json(&document, one_line)
}

fn vm<'a>(view: &'a View, number: usize, vm: &'a VmEstimate, full: &mut FullSets) -> Vm<'a> {
    let seen = &vm.seen;
    let division = view.host.division.as_ref().filter(|_| vm.entitled.is_some());
    let helper = |(index, helper): (usize, &'a corefit_core::machine::Helper)| {
        let share = division.map(|division| &division.vcpus(number)[seen.vcpus.len() + index]);
        let Activity { used, waiting } = vm.helpers.get(index).copied().unwrap_or_default();
        Helper {
            name: &helper.name,
            entitled: share.and_then(|share| amount(Some(share.cpus))),
            cause: share.map(|share| share.cause.clone()),
            affinity: helper.affinity.as_ref(),
            cap: amount(helper.quota.as_ref().and_then(corefit_core::Quota::cpus)),
            used: amount(used),
            waiting: amount(waiting),
        }
    };
    let mut vcpu = |index: usize| {
        let state = &seen.vcpus[index];
        let share = division.map(|division| &division.vcpus(number)[index]);
        let Activity { used, waiting } = vm.vcpus.get(index).copied().unwrap_or_default();
        Vcpu {
            online: state.online,
            entitled: share.and_then(|share| amount(Some(share.cpus))),
            cause: share.map(|share| share.cause.clone()),
            full: division.and_then(|division| full.of(division, number, index)),
            affinity: state.affinity.as_ref(),
            cap: amount(state.quota.as_ref().and_then(corefit_core::Quota::cpus)),
            used: amount(used),
            waiting: amount(waiting),
            on: state.on,
        }
    };
    Vm {
        name: &seen.name,
        state: seen.state,
        vcpus_online: online(vm),
        entitled: amount(vm.entitled),
        available: amount(vm.available),
        used: amount(vm.activity.used),
        waiting: amount(vm.activity.waiting),
        binding: &vm.binding,
        slice: seen.parent.as_deref(),
        weight: seen.weight,
        cap: amount(seen.quota.as_ref().and_then(corefit_core::Quota::cpus)),
        vcpus: (0..seen.vcpus.len()).map(&mut vcpu).collect(),
        helpers: seen.helpers.iter().enumerate().map(helper).collect(),
        memory_nodes: view.memory_nodes(seen),
        class: vm.class.class,
        class_origin: vm.class.origin,
        class_why: &vm.class.why,
        guest: seen.guest.as_ref(),
    }
}

/// Full pCPUs, each set once.
#[derive(Default)]
struct FullSets {
    crowds: Crowds,
    found: Vec<Arc<FullSet>>,
}

impl FullSets {
    /// The number of the set that holds a vCPU, if one does.
    fn of(&mut self, division: &Division, vm: usize, vcpu: usize) -> Option<usize> {
        if division.vcpus(vm)[vcpu].cause != Cause::Crowded {
            return None;
        }
        let full = division.crowd_of(vm, vcpu, &mut self.crowds);
        let known = self.found.iter().position(|known| Arc::ptr_eq(known, &full));
        Some(known.unwrap_or_else(|| {
            self.found.push(full);
            self.found.len() - 1
        }))
    }
}

/// Who of this role was seen on a pCPU.
fn on(view: &View, pcpu: &PcpuEstimate, role: Role) -> impl Iterator<Item = usize> {
    pcpu.users.iter().map(|(vm, _)| *vm).filter(move |&vm| view.host.vms[vm].seen.role == role)
}

fn names(view: &View, vms: impl Iterator<Item = usize>) -> Vec<&str> {
    let mut vms: Vec<usize> = vms.collect();
    vms.sort_unstable();
    vms.dedup();
    vms.into_iter().map(|vm| view.host.vms[vm].seen.name.as_str()).collect()
}

fn other(other: &VmEstimate) -> Other<'_> {
    Other {
        name: &other.seen.name,
        slice: other.seen.parent.as_deref(),
        weight: other.seen.weight,
        cap: amount(other.seen.quota.as_ref().and_then(corefit_core::Quota::cpus)),
        used: amount(other.activity.used),
        waiting: amount(other.activity.waiting),
    }
}

/// Nine digits after the point: what the model is exact to.
fn amount(cpus: Option<Cpus>) -> Option<f64> {
    cpus.map(|Cpus(cpus)| (cpus * 1e9).round() / 1e9)
}
