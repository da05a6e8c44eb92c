//! Settings to change, in the words of who manages the VM. Commands can be pasted into a shell.

use super::propose::Pins;
use super::{HelperKind, Manager, Memory, Vm};
use crate::CpuSet;

/// What puts a VM's vCPUs (by number) on these sets, and its node affinity on these nodes; nothing for what is so
/// already.
#[must_use]
pub fn commands(vm: &Vm, sets: &[(u32, CpuSet)], nodes: &CpuSet) -> Vec<String> {
    let changed: Vec<(u32, &CpuSet)> = sets
        .iter()
        .filter(|(vcpu, set)| present(vm, *vcpu) != Some(set))
        .map(|(vcpu, set)| (*vcpu, set))
        .collect();
    let mut found = Vec::new();
    match vm.manager {
        _ if changed.is_empty() => {}
        Manager::Libvirt => found.push(vcpupin(vm, &changed)),
        Manager::Xen if vm.running => found.push(vcpu_pin(vm, &changed)),
        Manager::Xen => {
            let all: Vec<&CpuSet> = sets.iter().map(|(_, set)| set).collect();
            found.push(xl_cpus(&all));
        }
        Manager::Cgroup | Manager::Kubernetes => {
            found.push(cpus(vm, &sets.iter().fold(CpuSet::default(), |all, (_, set)| all.union(set))));
        }
    }
    let memory = match vm.memory.as_ref().map(|memory| &memory.value) {
        Some(Memory::Nodes { nodes, .. }) => Some(nodes),
        _ => None,
    };
    let prefers = vm.online().any(|(_, vcpu)| vcpu.prefers.is_some());
    let away = memory.is_some_and(|memory| !nodes.is_within(memory));
    if !nodes.is_empty()
        && (away || prefers && vm.manager == Manager::Xen && !vm.running && !found.is_empty())
    {
        found.push(self::memory(vm, nodes));
    }
    found
}

/// Pins each vCPU to a pCPU.
pub(super) fn pin(vm: &Vm, pins: &Pins) -> String {
    let sets: Vec<(u32, CpuSet)> =
        pins.iter().map(|(vcpu, cpu)| (*vcpu, CpuSet::from_iter([*cpu]))).collect();
    let changed: Vec<(u32, &CpuSet)> = sets
        .iter()
        .filter(|(vcpu, set)| present(vm, *vcpu) != Some(set))
        .map(|(vcpu, set)| (*vcpu, set))
        .collect();
    match vm.manager {
        Manager::Libvirt => vcpupin(vm, &changed),
        Manager::Xen if vm.running => vcpu_pin(vm, &changed),
        Manager::Xen => xl_cpus(&sets.iter().map(|(_, set)| set).collect::<Vec<_>>()),
        Manager::Cgroup | Manager::Kubernetes => {
            let set: CpuSet = pins.values().copied().collect();
            cpus(vm, &set)
        }
    }
}

/// The set that a vCPU has now.
fn present(vm: &Vm, vcpu: u32) -> Option<&CpuSet> {
    let vcpu = usize::try_from(vcpu).ok().and_then(|vcpu| vm.vcpus.get(vcpu))?;
    vcpu.affinity.as_ref().map(|set| &set.value)
}

/// One command for each set that several have, else a loop over pairs.
pub(super) fn vcpupin(vm: &Vm, changed: &[(u32, &CpuSet)]) -> String {
    let (virsh, name, how) = (virsh(vm), domain(vm), affects(vm));
    match changed {
        [(vcpu, set)] => format!("{virsh} vcpupin {name} {vcpu} {set} {how}"),
        [(_, first), rest @ ..] if rest.iter().all(|(_, set)| set == first) => {
            let vcpus: Vec<String> = changed.iter().map(|(vcpu, _)| vcpu.to_string()).collect();
            format!("for v in {}; do {virsh} vcpupin {name} $v {first} {how}; done", vcpus.join(" "))
        }
        _ => {
            let list: Vec<String> = changed.iter().map(|(vcpu, set)| format!("{vcpu}:{set}")).collect();
            let list = list.join(" ");
            format!("for p in {list}; do {virsh} vcpupin {name} ${{p%:*}} ${{p#*:}} {how}; done")
        }
    }
}

/// The same for a running VM of Xen.
fn vcpu_pin(vm: &Vm, changed: &[(u32, &CpuSet)]) -> String {
    let name = quoted(&vm.name);
    match changed {
        [(vcpu, set)] => format!("xl vcpu-pin {name} {vcpu} {set}"),
        [(_, first), rest @ ..]
            if changed.len() == vm.width() && rest.iter().all(|(_, set)| set == first) =>
        {
            format!("xl vcpu-pin {name} all {first}")
        }
        _ => {
            let list: Vec<String> = changed.iter().map(|(vcpu, set)| format!("{vcpu}:{set}")).collect();
            format!("for p in {}; do xl vcpu-pin {name} ${{p%:*}} ${{p#*:}}; done", list.join(" "))
        }
    }
}

/// The line of a configuration of xl.
fn xl_cpus(sets: &[&CpuSet]) -> String {
    match sets {
        [first, rest @ ..] if first.len() > 1 && rest.iter().all(|set| set == first) => {
            format!("cpus = \"{first}\"")
        }
        _ => {
            let all: Vec<String> = sets.iter().map(|set| format!("\"{set}\"")).collect();
            format!("cpus = [{}]", all.join(", "))
        }
    }
}

/// Gives a VM the pCPUs proposed for it: each vCPU one, if it was so before; else all of them to all, so that no
/// pCPU idles while a vCPU waits for another one.
pub(super) fn place(vm: &Vm, pins: &Pins) -> String {
    if vm.is_pinned() {
        return pin(vm, pins);
    }
    cpus(vm, &pins.values().copied().collect())
}

/// Gives all vCPUs one set.
pub(super) fn cpus(vm: &Vm, set: &CpuSet) -> String {
    if set.is_empty() {
        return "there are no pCPUs for it: move a VM to another host".into();
    }
    match vm.manager {
        Manager::Libvirt => {
            let last = vm.vcpus.len().saturating_sub(1);
            let (virsh, name, how) = (virsh(vm), domain(vm), affects(vm));
            format!("for v in $(seq 0 {last}); do {virsh} vcpupin {name} $v {set} {how}; done")
        }
        Manager::Xen if vm.running => format!("xl vcpu-pin {} all {set}", quoted(&vm.name)),
        Manager::Xen => format!("cpus = \"{set}\""),
        Manager::Cgroup => group(
            vm,
            &format!("--cpuset-cpus {set}"),
            &format!("AllowedCPUs={set}"),
            &format!("{set} to cpuset.cpus"),
        ),
        Manager::Kubernetes => kubelet(),
    }
}

/// Gives the VM fewer vCPUs.
pub(super) fn vcpus(vm: &Vm, number: usize) -> String {
    match vm.manager {
        Manager::Libvirt => format!("{} setvcpus {} {number} {}", virsh(vm), domain(vm), affects(vm)),
        Manager::Xen if vm.running => format!("xl vcpu-set {} {number}", quoted(&vm.name)),
        Manager::Xen => format!("vcpus = {number}"),
        Manager::Cgroup | Manager::Kubernetes => "start fewer threads there (corefit run)".into(),
    }
}

/// Fewer vCPUs, and where they have sets of their own, one of the VM's pCPUs for each that is left.
pub(super) fn fewer(vm: &Vm, number: usize, own: &CpuSet) -> String {
    let number = number.min(own.len()).max(1);
    let mut sets = vm.online().map(|(_, vcpu)| vcpu.affinity.as_ref().map(|set| &set.value));
    let first = sets.next().flatten();
    if first.is_some() && sets.all(|set| set == first) && number == own.len() {
        return vcpus(vm, number);
    }
    let pins: Pins = (0..).zip(own.iter().take(number)).collect();
    let joint = if vm.manager == Manager::Xen && !vm.running { " and " } else { "; " };
    format!("{}{joint}{}", vcpus(vm, number), pin(vm, &pins))
}

/// `virsh`, with where it has to look.
pub(super) fn virsh(vm: &Vm) -> String {
    vm.connect.as_ref().map_or("virsh".into(), |uri| format!("virsh -c {}", quoted(uri)))
}

/// A name as virsh takes it.
pub(super) fn domain(vm: &Vm) -> String {
    if vm.name.starts_with('-') { format!("--domain={}", quoted(&vm.name)) } else { quoted(&vm.name) }
}

/// What a change is for: what was looked at. (A VM that runs need not have a definition that lasts.)
pub(super) fn affects(vm: &Vm) -> &'static str {
    if vm.running { "--live" } else { "--config" }
}

/// Puts a VM's memory on nodes.
pub(super) fn memory(vm: &Vm, nodes: &CpuSet) -> String {
    match vm.manager {
        Manager::Libvirt => {
            // Memory of a VM that runs cannot be moved where it is bound.
            format!("{} numatune {} --nodeset {nodes} --config", virsh(vm), domain(vm))
        }
        Manager::Xen if vm.running => {
            "memory stays where the domain was built: build it anew with cpus_soft of these nodes".into()
        }
        Manager::Xen => format!("cpus_soft = \"{}\"", xl_nodes(nodes)),
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

/// Nodes as xl takes them: `nodes:0,nodes:2-3`.
pub(super) fn xl_nodes(nodes: &CpuSet) -> String {
    let parts: Vec<String> = nodes.to_string().split(',').map(|part| format!("nodes:{part}")).collect();
    parts.join(",")
}

/// Pins a helper thread.
pub(super) fn helper(vm: &Vm, kind: HelperKind, set: &CpuSet) -> String {
    let (virsh, name, how) = (virsh(vm), domain(vm), affects(vm));
    match kind {
        HelperKind::Emulator => format!("{virsh} emulatorpin {name} {set} {how}"),
        HelperKind::Iothread(number) => format!("{virsh} iothreadpin {name} {number} {set} {how}"),
    }
}

/// A change of a control group: by docker, by systemd, or by hand.
pub(super) fn group(vm: &Vm, docker: &str, systemd: &str, file: &str) -> String {
    let last = vm.name.rsplit('/').next().unwrap_or(&vm.name);
    if vm.name.starts_with("/docker/") {
        return format!("docker update {docker} {}", quoted(last));
    }
    if [".service", ".slice", ".scope"].iter().any(|kind| last.ends_with(kind)) {
        return format!("systemctl set-property {} {systemd}", quoted(last));
    }
    format!("write {file} of {}", vm.name)
}

/// What Kubernetes needs to divide its pCPUs anew.
pub(super) fn kubelet() -> String {
    "kubectl drain the node; stop kubelet; rm /var/lib/kubelet/cpu_manager_state; start kubelet".into()
}

/// A name that a shell takes as one word.
pub(super) fn quoted(name: &str) -> String {
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
    fn commands_are_for_what_differs_and_correct_the_node_affinity_with_it() {
        let set = |list: &str| list.parse::<CpuSet>().unwrap();
        let at = |value: CpuSet| super::super::Set { value, ..super::super::Set::default() };
        let vcpu = |list: &str| super::super::Vcpu {
            online: true,
            affinity: Some(at(set(list))),
            ..Default::default()
        };
        let mut vm = Vm { name: "-a".into(), vcpus: vec![vcpu("0"), vcpu("0")], ..Vm::default() };
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
    fn names_are_one_word_to_a_shell() {
        assert_eq!(quoted("web-1.prod"), "web-1.prod");
        assert_eq!(quoted("a b; rm -rf ~"), "'a b; rm -rf ~'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(quoted(""), "''");
    }
}
