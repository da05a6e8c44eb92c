//! Impossible machines are refused.

use std::collections::BTreeSet;

use corefit_core::CpuSet;

use super::build::index;
use crate::spec::{Hardware, Limit, Spec, VmSpec};

/// The most of each that a host may have.
const MAX_PCPUS: u32 = 4_096;
const MAX_VCPUS: usize = 65_000;
const MAX_THREADS: u32 = 1_000_000;
const MIN_PERIOD_NS: u64 = 100_000;
const MAX_WEIGHT: u32 = 262_144;

/// Why a host cannot exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {what}")]
pub struct SpecError {
    /// Which part of the description: `vm.web.affinity`.
    pub path: String,
    /// What is wrong with it, and what would be right.
    pub what: String,
}

/// Slices that the kernel takes (`__setparam_fair`, kernel/sched/syscalls.c), ns.
const SLICES_NS: std::ops::RangeInclusive<u64> = 100_000..=100_000_000;

fn refuse<T>(path: impl Into<String>, what: impl Into<String>) -> Result<T, SpecError> {
    Err(SpecError { path: path.into(), what: what.into() })
}

/// Before anything is as large as it is.
pub(crate) fn check_hardware(hardware: &Hardware) -> Result<(), SpecError> {
    let Hardware { sockets, nodes, cores, threads, .. } = *hardware;
    for (key, n) in [("sockets", sockets), ("nodes", nodes), ("cores", cores), ("threads", threads)] {
        between(&format!("hardware.{key}"), n, 1, MAX_PCPUS)?;
    }
    let product = [sockets, nodes, cores, threads].iter().map(|&n| u64::from(n)).product::<u64>();
    if product > u64::from(MAX_PCPUS) {
        return refuse(
            "hardware",
            format!("{product} pCPUs; give at most {MAX_PCPUS} (sockets x nodes x cores x threads)"),
        );
    }
    Ok(())
}

pub(super) fn check(spec: &Spec) -> Result<(), SpecError> {
    check_hardware(&spec.hardware)?;
    if spec.until_ns == 0 {
        return refuse("until", "0 is no time to simulate; give more");
    }
    if spec.warmup_ns >= spec.until_ns {
        return refuse("warmup", "nothing would be counted after it; give less than `until`");
    }
    if spec.period_ns != 0 && spec.period_ns < MIN_PERIOD_NS {
        return refuse(
            "period",
            "that is too short to account in; give 100us or more, or 0s for the scheduler's own",
        );
    }
    if let Some(governor) =
        spec.governor.filter(|governor| !(governor.slowest > 0.0 && governor.slowest <= 1.0))
    {
        return refuse(
            "governor.slowest",
            format!("{} is no part of the full speed; give more than 0, at most 1", governor.slowest),
        );
    }
    for class in &spec.classes {
        let parts = [
            ("beside_sibling", class.beside_sibling),
            ("fpu", class.fpu),
            ("without_cache", class.without_cache),
            ("remote", class.remote),
        ];
        for (key, part) in parts {
            if !(part > 0.0 && part <= 1.0) {
                return refuse(
                    format!("class.{}.{key}", class.name),
                    format!("{part} is no speed; give a number above 0, at most 1"),
                );
            }
        }
    }
    if spec.vms.is_empty() {
        return refuse("vm", "there is no VM; add at least one [[vm]]");
    }
    if spec.vms.iter().map(|vm| vm.vcpus.len()).sum::<usize>() > MAX_VCPUS {
        return refuse("vm", format!("more than {MAX_VCPUS} vCPUs in all"));
    }
    if spec.vms.iter().flat_map(|vm| &vm.apps).map(|app| u64::from(app.threads)).sum::<u64>()
        > u64::from(MAX_THREADS)
    {
        return refuse("vm", format!("more than {MAX_THREADS} threads in all"));
    }
    let mut names = BTreeSet::new();
    let pcpus = CpuSet::first(spec.hardware.pcpus());
    for vm in &spec.vms {
        if !names.insert(&vm.name) {
            return refuse(format!("vm.{}.name", vm.name), "another VM is called so, too");
        }
        check_vm(vm, &pcpus, spec)?;
    }
    Ok(())
}

impl Spec {
    /// About how many events the programs of a run are, and whose are most of them, as `vm.a`: as many as their threads alone
    /// make if they never wait, up to the end of the simulation. Schedulers' own are not counted.
    #[must_use]
    pub(crate) fn events(&self) -> Option<(f64, String)> {
        let costs = &self.costs;
        let halt =
            [costs.halt_ns, costs.ipi_ns, costs.switch_ns].map(|ns| ns as f64).iter().sum::<f64>().max(1.0);
        let mut busy = 0.0;
        let mut apps = vec![];
        // Who begins again does so as long as others have not come to their end.
        let ends = self.vms.iter().flat_map(|vm| &vm.apps).filter(|app| !app.program.endless).count();
        for (vm, app) in self.vms.iter().flat_map(|vm| vm.apps.iter().map(move |app| (vm, app))) {
            let at_once = f64::from(app.team.min(index(vm.vcpus.len())));
            let ns = self.until_ns.saturating_sub(app.start_ns) as f64;
            busy += at_once;
            apps.push((vm, at_once * app.program.events_in(ns, app.team, halt, app.again && ends > 1)));
        }
        let crowded = (busy / f64::from(self.hardware.pcpus())).max(1.0);
        let all: f64 = apps.iter().map(|(_, events)| events / crowded).sum();
        let (vm, _) = apps.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
        Some((all, format!("vm.{}", vm.name)))
    }
}

fn between(path: &str, value: u32, low: u32, high: u32) -> Result<(), SpecError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    refuse(path, format!("{value} is out of range; give {low} to {high}"))
}

fn check_vm(vm: &VmSpec, pcpus: &CpuSet, spec: &Spec) -> Result<(), SpecError> {
    let path = |key: &str| format!("vm.{}.{key}", vm.name);
    between(&path("weight"), vm.weight, 1, MAX_WEIGHT)?;
    if !vm.vcpus.iter().any(|vcpu| vcpu.online) {
        return refuse(path("vcpus"), "it has no vCPU that is online; give 1 or more");
    }
    let nodes = CpuSet::first(spec.hardware.sockets * spec.hardware.nodes);
    if !vm.memory_nodes.difference(&nodes).is_empty() {
        return refuse(path("memory_nodes"), format!("the host has nodes {nodes} only"));
    }
    if !vm.made_on.difference(pcpus).is_empty() {
        return refuse(path("made_on"), format!("the host has pCPUs {pcpus} only"));
    }
    check_limit(&path("cap"), vm.cap, spec.policy.is_xen())?;
    for (number, vcpu) in vm.vcpus.iter().enumerate() {
        between(&path("vcpu_weights"), vcpu.weight, 1, MAX_WEIGHT)?;
        check_limit(&path("quota"), vcpu.limit, spec.policy.is_xen())?;
        if vcpu.slice_ns.is_some_and(|slice| !SLICES_NS.contains(&slice)) {
            return refuse(path("fair_slice"), "give 100us to 100ms, or leave it out");
        }
        if vcpu.slice_ns.is_some() && !spec.policy.has_slices() {
            return refuse(path("fair_slice"), "only eevdf has slices of single threads; leave it out");
        }
        let outside = vcpu.affinity.difference(pcpus);
        if !outside.is_empty() {
            return refuse(path("affinity"), format!("pCPUs {outside} do not exist; the host has {pcpus}"));
        }
        let outside = vcpu.soft.difference(pcpus);
        if !outside.is_empty() {
            return refuse(path("soft"), format!("pCPUs {outside} do not exist; the host has {pcpus}"));
        }
        if vcpu.affinity.is_empty() {
            return refuse(
                path("affinity"),
                format!("vCPU {number} may run nowhere; give some of the pCPUs {pcpus}"),
            );
        }
    }
    for (number, change) in vm.changes.iter().enumerate() {
        if let Some(online) = change.online {
            between(&path(&format!("change.{number}.online")), online, 1, index(vm.vcpus.len()))?;
        }
        if let Some(team) = change.team {
            let threads = vm.apps.iter().filter(|app| app.program.forks).map(|app| app.threads).max();
            let Some(threads) = threads else {
                let path = path(&format!("change.{number}.team"));
                return refuse(path, "no program of this VM has `parallel`, whose team it would be");
            };
            between(&path(&format!("change.{number}.team")), team, 1, threads)?;
        }
    }
    if vm.guest.slice_ns == 0 {
        return refuse(path("slice"), "0 is no time slice; give 1us or more");
    }
    for app in &vm.apps {
        let path = |key: &str| format!("vm.{}.{}.{key}", vm.name, app.name);
        between(&path("threads"), app.threads, 1, MAX_THREADS)?;
        between(&path("team"), app.team, 1, app.threads)?;
        if app.class >= spec.classes.len() {
            return refuse(path("class"), "no such class");
        }
    }
    Ok(())
}

fn check_limit(path: &str, limit: Option<Limit>, xen: bool) -> Result<(), SpecError> {
    let Some(Limit { quota_ns, period_ns, burst_ns }) = limit else { return Ok(()) };
    if !(100_000..=10_000_000_000).contains(&period_ns) {
        return refuse(format!("{path}_period"), "give 100us to 10s");
    }
    if quota_ns == 0 {
        return refuse(path, "that is less than 1 ns of a period; give more");
    }
    if burst_ns > quota_ns {
        return refuse(format!("{path}_burst"), "no more than the quota of a period can be saved");
    }
    if burst_ns > 0 && xen {
        return refuse(format!("{path}_burst"), "Xen saves nothing for later periods; leave it out");
    }
    Ok(())
}
