//! Changes in the words of who manages the VM. Commands can be pasted into a shell.

use std::collections::BTreeMap;

use super::change::{Change, Cure, Filled, Limit, not_several};
use super::{Fewer, GuestTopology, HelperKind, Manager, Memory, Vm};
use crate::CpuSet;

/// What puts a VM's vCPUs (by number) on these sets, and its node affinity on these nodes; nothing for what is so
/// already.
#[must_use]
pub fn placing(vm: &Vm, sets: &[(u32, CpuSet)], nodes: &CpuSet) -> Vec<Change> {
    let filled = sets.iter().filter_map(|(vcpu, set)| Some((*vcpu, Filled::new(set.clone())?)));
    let sets: Vec<(u32, Filled)> = filled.collect();
    let moves = sets.iter().any(|(vcpu, set)| present(vm, *vcpu) != Some(set));
    let mut found = Vec::new();
    if moves {
        found.push(Change::Affinity(sets));
    }
    let memory = match vm.memory.as_ref().map(|memory| &memory.value) {
        Some(Memory::Nodes { nodes, .. }) => Some(nodes),
        _ => None,
    };
    let prefers = vm.online().any(|(_, vcpu)| vcpu.prefers.is_some());
    let away = memory.is_some_and(|memory| !nodes.is_within(memory));
    let needed = away || prefers && vm.manager == Manager::Xen && !vm.running && moves;
    found.extend(Filled::new(nodes.clone()).filter(|_| needed).map(Change::Memory));
    found
}

/// Changes as commands, one for each.
#[must_use]
pub fn commands(vm: &Vm, changes: &[Change]) -> Vec<String> {
    changes.iter().map(|change| one(vm, change)).collect()
}

/// What is to be done about a VM, in words.
pub(super) fn written(vm: &Vm, cure: &Cure) -> String {
    let changes = match cure {
        Cure::Advice(text) => return text.clone(),
        Cure::Do(changes) => changes,
    };
    if let ([Change::Preference(pcpus)], false) = (&changes[..], vm.running) {
        let now = format!("xl vcpu-pin {} all - {pcpus}", quoted(&vm.name));
        return format!("{}, or now: {now}", one(vm, &changes[0]));
    }
    let mut text = String::new();
    for (number, change) in changes.iter().enumerate() {
        text += match number.checked_sub(1).map(|before| &changes[before]) {
            None => "",
            Some(Change::Guest(_)) => ", and siblings in the guest's order: ",
            Some(_) if vm.manager == Manager::Xen && !vm.running => " and ",
            Some(_) => "; ",
        };
        text += &one(vm, change);
    }
    text
}

/// Whether sets are others than those that the vCPUs have now, as far as they are online.
pub(super) fn differ(vm: &Vm, sets: &[(u32, Filled)]) -> bool {
    let online: BTreeMap<u32, _> = vm.online().collect();
    sets.iter().any(|(vcpu, set)| online.contains_key(vcpu) && present(vm, *vcpu) != Some(set))
}

/// The set that a vCPU has now.
fn present(vm: &Vm, vcpu: u32) -> Option<&CpuSet> {
    let vcpu = usize::try_from(vcpu).ok().and_then(|vcpu| vm.vcpus.get(vcpu))?;
    vcpu.affinity.as_ref().map(|set| &set.value)
}

/// One change.
fn one(vm: &Vm, change: &Change) -> String {
    match change {
        Change::Affinity(sets) => affinity(vm, sets),
        Change::Preference(pcpus) => {
            if vm.running {
                format!("xl vcpu-pin {} all - {pcpus}", quoted(&vm.name))
            } else {
                format!("cpus_soft = \"{pcpus}\"")
            }
        }
        Change::Helper(kind, set) => {
            let (virsh, name, how) = (virsh(vm), domain(vm), affects(vm));
            match kind {
                HelperKind::Emulator => format!("{virsh} emulatorpin {name} {set} {how}"),
                HelperKind::Iothread(number) => format!("{virsh} iothreadpin {name} {number} {set} {how}"),
            }
        }
        Change::Memory(nodes) => memory(vm, nodes),
        Change::CellMemory(cell, node) if vm.manager == Manager::Xen => {
            format!("\"pnode={node}\" in the list of node {cell} in vnuma")
        }
        Change::CellMemory(cell, nodes) => {
            let mode =
                vm.cells.iter().find(|known| known.id == *cell).and_then(|known| known.mode.as_deref());
            let mode = mode.filter(|mode| !not_several(mode, nodes)).unwrap_or("strict");
            format!("<numatune><memnode cellid='{cell}' mode='{mode}' nodeset='{nodes}'/></numatune>")
        }
        Change::Vcpus(number) => match vm.manager {
            Manager::Libvirt => {
                let how = match vm.fewer {
                    Fewer::ByGuest if vm.running => "--guest",
                    Fewer::AtStart => "--config",
                    Fewer::Unplugged if vm.running && *number < vm.cold => "--config",
                    Fewer::ByGuest | Fewer::Unplugged => affects(vm),
                };
                format!("{} setvcpus {} {number} {how}", virsh(vm), domain(vm))
            }
            Manager::Xen if vm.running => format!("xl vcpu-set {} {number}", quoted(&vm.name)),
            Manager::Xen => format!("vcpus = {number}"),
            Manager::Cgroup | Manager::Kubernetes => "start fewer threads there (corefit run)".into(),
        },
        Change::Unlimited(limit) => unlimited(vm, *limit),
        Change::Limited(limit, quota, period) => limited(vm, *limit, *quota, *period),
        Change::Guest(GuestTopology { sockets, cores, threads }) => {
            format!("<cpu><topology sockets='{sockets}' cores='{cores}' threads='{threads}'/></cpu>")
        }
    }
}

fn affinity(vm: &Vm, sets: &[(u32, Filled)]) -> String {
    let differs = |(vcpu, set): &&(u32, Filled)| present(vm, *vcpu) != Some(set);
    let changed: Vec<&(u32, Filled)> = sets.iter().filter(differs).collect();
    let (list, vcpus) = (pairs(&changed), numbers(&changed));
    match (vm.manager, joint(&changed)) {
        (Manager::Libvirt, joint) => {
            let (virsh, name, how) = (virsh(vm), domain(vm), affects(vm));
            match (&changed[..], joint) {
                ([(vcpu, set)], _) => format!("{virsh} vcpupin {name} {vcpu} {set} {how}"),
                (_, Some(set)) => format!("for v in {vcpus}; do {virsh} vcpupin {name} $v {set} {how}; done"),
                _ => format!("for p in {list}; do {virsh} vcpupin {name} ${{p%:*}} ${{p#*:}} {how}; done"),
            }
        }
        (Manager::Xen, joint) if vm.running => {
            let name = quoted(&vm.name);
            match (&changed[..], joint) {
                ([(vcpu, set)], _) => format!("xl vcpu-pin {name} {vcpu} {set}"),
                (_, Some(set)) if changed.len() >= vm.width() => format!("xl vcpu-pin {name} all {set}"),
                _ => format!("for p in {list}; do xl vcpu-pin {name} ${{p%:*}} ${{p#*:}}; done"),
            }
        }
        (Manager::Xen, _) => match joint(&sets.iter().collect::<Vec<_>>()) {
            Some(set) if set.len() > 1 => format!("cpus = \"{set}\""),
            _ => {
                let all: Vec<String> = sets.iter().map(|(_, set)| format!("\"{set}\"")).collect();
                format!("cpus = [{}]", all.join(", "))
            }
        },
        (Manager::Cgroup, _) => {
            Filled::all(sets.iter().map(|(_, set)| set)).map_or_else(String::new, |set| {
                let (docker, systemd) = (format!("--cpuset-cpus {set}"), format!("AllowedCPUs={set}"));
                group(vm, &docker, &systemd, &format!("{set} to cpuset.cpus"))
            })
        }
        (Manager::Kubernetes, _) => KUBELET.into(),
    }
}

/// The set that all have.
fn joint<'a>(sets: &[&'a (u32, Filled)]) -> Option<&'a Filled> {
    let first = &sets.first()?.1;
    sets.iter().all(|(_, set)| set == first).then_some(first)
}

/// `0:3 1:5`.
fn pairs(sets: &[&(u32, Filled)]) -> String {
    sets.iter().map(|(vcpu, set)| format!("{vcpu}:{set}")).collect::<Vec<_>>().join(" ")
}

/// `0 1 4`, or `$(seq 0 7)`.
fn numbers(sets: &[&(u32, Filled)]) -> String {
    match sets {
        [(first, _), .., (last, _)]
            if sets.len() > 2 && usize::try_from(last - first).is_ok_and(|n| n + 1 == sets.len()) =>
        {
            format!("$(seq {first} {last})")
        }
        _ => sets.iter().map(|(vcpu, _)| vcpu.to_string()).collect::<Vec<_>>().join(" "),
    }
}

fn memory(vm: &Vm, nodes: &Filled) -> String {
    match vm.manager {
        // Memory of a VM that runs cannot be moved where it is bound.
        Manager::Libvirt => {
            let several = matches!(vm.memory.as_ref().map(|memory| &memory.value),
                Some(Memory::Nodes { mode, .. }) if not_several(mode, nodes));
            let mode = if several { "--mode strict " } else { "" };
            format!("{} numatune {} {mode}--nodeset {nodes} --config", virsh(vm), domain(vm))
        }
        Manager::Xen if vm.running => {
            "memory stays where the domain was built: build it anew with cpus_soft of these nodes".into()
        }
        Manager::Xen => {
            let nodes: Vec<String> =
                nodes.to_string().split(',').map(|part| format!("nodes:{part}")).collect();
            format!("cpus_soft = \"{}\"", nodes.join(","))
        }
        Manager::Cgroup => group(
            vm,
            &format!("--cpuset-mems {nodes}"),
            &format!("AllowedMemoryNodes={nodes}"),
            &format!("{nodes} to cpuset.mems"),
        ),
        Manager::Kubernetes => {
            "set topologyManagerPolicy: single-numa-node in the kubelet's configuration".into()
        }
    }
}

impl Limit {
    /// As virsh calls its quota and its period.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Limit::Cap => ("global_quota", "global_period"),
            Limit::VcpuQuota => ("vcpu_quota", "vcpu_period"),
        }
    }
}

fn unlimited(vm: &Vm, limit: Limit) -> String {
    match vm.manager {
        Manager::Libvirt => {
            format!("{} schedinfo {} {} {}=-1", virsh(vm), domain(vm), affects(vm), limit.names().0)
        }
        Manager::Xen if vm.running => format!("xl sched-credit -d {} -c 0", quoted(&vm.name)),
        Manager::Xen => "cap = 0".into(),
        Manager::Cgroup => {
            group(vm, "--cpu-quota -1", "CPUQuota=", "max to cpu.max (v1: -1 to cpu.cfs_quota_us)")
        }
        Manager::Kubernetes => "set cpuCFSQuota: false for this pod's class, or raise its limit".into(),
    }
}

fn limited(vm: &Vm, limit: Limit, quota: u64, period: u64) -> String {
    let (its_quota, its_period) = limit.names();
    match vm.manager {
        Manager::Libvirt => {
            let (virsh, domain, how) = (virsh(vm), domain(vm), affects(vm));
            format!("{virsh} schedinfo {domain} {how} {its_period}={period} {its_quota}={quota}")
        }
        _ => group(
            vm,
            &format!("--cpu-period {period} --cpu-quota {quota}"),
            &format!("CPUQuotaPeriodSec={}ms", period / 1000),
            &format!("'{quota} {period}' to cpu.max (v1: cpu.cfs_quota_us and cpu.cfs_period_us)"),
        ),
    }
}

/// `virsh`, with where it has to look.
fn virsh(vm: &Vm) -> String {
    vm.connect.as_ref().map_or("virsh".into(), |uri| format!("virsh -c {}", quoted(uri)))
}

/// A name as virsh takes it.
fn domain(vm: &Vm) -> String {
    if vm.name.starts_with('-') { format!("--domain={}", quoted(&vm.name)) } else { quoted(&vm.name) }
}

/// What a change is for: what was looked at. (A VM that runs need not have a definition that lasts.)
fn affects(vm: &Vm) -> &'static str {
    if vm.running { "--live" } else { "--config" }
}

/// A change of a control group: by docker, by systemd, or by hand.
fn group(vm: &Vm, docker: &str, systemd: &str, file: &str) -> String {
    let last = vm.name.rsplit('/').next().unwrap_or(&vm.name);
    let mut above = vm.name.rsplit('/').skip(1).filter(|group| !group.is_empty());
    if vm.name.strip_prefix("/docker/").is_some_and(|id| !id.contains('/')) {
        return format!("docker update {docker} {}", quoted(last));
    }
    // What is in a service is another systemd's, of a user or a container: a unit of that name of this one is not it.
    let ours = above.all(|group| group.ends_with(".slice"));
    if ours && [".service", ".slice", ".scope"].iter().any(|kind| last.ends_with(kind)) {
        return format!("systemctl set-property {} {systemd}", quoted(last));
    }
    format!("write {file} of {}", vm.name)
}

/// What Kubernetes needs to divide its pCPUs anew.
pub(super) const KUBELET: &str =
    "kubectl drain the node; stop kubelet; rm /var/lib/kubelet/cpu_manager_state; start kubelet";

/// A name that a shell takes as one word.
fn quoted(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./@%+:,".contains(c);
    if !name.is_empty() && name.chars().all(plain) {
        return name.into();
    }
    format!("'{}'", name.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_asked_for_of_the_systemd_that_has_it_and_a_container_by_its_id_only() {
        let cure = |name: &str| group(&Vm { name: name.into(), ..Vm::default() }, "-d", "-s", "f");
        assert_eq!(cure("/system.slice/a.service"), "systemctl set-property a.service -s");
        assert_eq!(cure("/docker/01ef"), "docker update -d 01ef");
        for name in ["/user.slice/user@1.service/app.slice", "/lxc.payload.c1/a.service", "/docker/01ef/init"]
        {
            assert_eq!(cure(name), format!("write f of {name}"));
        }
    }

    #[test]
    fn commands_are_for_what_differs_and_correct_the_node_affinity_with_it() {
        let set = |list: &str| list.parse::<CpuSet>().unwrap();
        let at = |value: CpuSet| super::super::Set { value, ..super::super::Set::default() };
        let vcpu = |list: &str| super::super::Vcpu {
            online: true,
            affinity: Some(at(set(list))),
            ..Default::default()
        };
        let mut vm = Vm { name: "-a".into(), vcpus: vec![vcpu("0"), vcpu("0")], ..Vm::default() };
        let commands =
            |vm: &Vm, sets: &[(u32, CpuSet)], nodes: &CpuSet| commands(vm, &placing(vm, sets, nodes));
        let sets = [(0, set("0")), (1, set("2"))];
        assert_eq!(commands(&vm, &sets, &set("0")), ["virsh vcpupin --domain=-a 1 2 --config"]);
        vm.connect = Some("qemu+ssh://h/system?a=b c".into());
        vm.running = true;
        let memory = Memory::Nodes { nodes: set("1"), mode: "strict".into() };
        vm.memory = Some(super::super::Set { value: memory, place: super::super::Place::default() });
        let virsh = "virsh -c 'qemu+ssh://h/system?a=b c'";
        assert_eq!(
            commands(&vm, &sets, &set("0")),
            [
                format!("{virsh} vcpupin --domain=-a 1 2 --live"),
                format!("{virsh} numatune --domain=-a --nodeset 0 --config")
            ]
        );
        let pool = [(0, set("0-3")), (1, set("0-3"))];
        vm = Vm { memory: None, connect: None, name: "a".into(), ..vm };
        assert_eq!(commands(&vm, &pool, &set("0")), ["for v in 0 1; do virsh vcpupin a $v 0-3 --live; done"]);
        vm.manager = Manager::Xen;
        assert_eq!(commands(&vm, &pool, &set("0")), ["xl vcpu-pin a all 0-3"]);
        assert_eq!(commands(&vm, &sets, &set("0")), ["xl vcpu-pin a 1 2"]);
        vm.running = false;
        assert_eq!(commands(&vm, &sets, &set("0")), ["cpus = [\"0\", \"2\"]"]);
        assert!(commands(&vm, &[(0, set("0")), (1, set("0"))], &set("0")).is_empty());
    }

    #[test]
    fn a_running_vm_gets_fewer_vcpus_in_the_way_that_it_can() {
        let mut vm = Vm { name: "a".into(), running: true, ..Vm::default() };
        for (fewer, how) in
            [(Fewer::Unplugged, "--live"), (Fewer::ByGuest, "--guest"), (Fewer::AtStart, "--config")]
        {
            vm.fewer = fewer;
            assert_eq!(one(&vm, &Change::Vcpus(2)), format!("virsh setvcpus a 2 {how}"));
        }
        (vm.fewer, vm.cold) = (Fewer::Unplugged, 2);
        assert_eq!(one(&vm, &Change::Vcpus(2)), "virsh setvcpus a 2 --live");
        assert_eq!(one(&vm, &Change::Vcpus(1)), "virsh setvcpus a 1 --config");
        vm.running = false;
        assert_eq!(one(&vm, &Change::Vcpus(2)), "virsh setvcpus a 2 --config");
    }

    #[test]
    fn names_are_one_word_to_a_shell() {
        assert_eq!(quoted("web-1.prod"), "web-1.prod");
        assert_eq!(quoted("a b; rm -rf ~"), "'a b; rm -rf ~'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(quoted(""), "''");
    }
}
