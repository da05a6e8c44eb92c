//! Settings to change, in the words of who manages the VM. Commands can be pasted into a shell.

use super::propose::Pins;
use super::{HelperKind, Manager, Vm};
use crate::CpuSet;

/// Pins each vCPU to a pCPU.
pub(super) fn pin(vm: &Vm, pins: &Pins) -> String {
    let name = quoted(&vm.name);
    let changed = pins.iter().filter(|(vcpu, cpu)| {
        let now = usize::try_from(**vcpu).ok().and_then(|vcpu| vm.vcpus.get(vcpu)?.affinity.as_ref());
        now.is_none_or(|set| set.value != CpuSet::from_iter([**cpu]))
    });
    let changed: Vec<String> = changed.map(|(vcpu, cpu)| format!("{vcpu}:{}", cpu.0)).collect();
    let list = changed.join(" ");
    match vm.manager {
        Manager::Libvirt if changed.len() == 1 => {
            format!("virsh vcpupin {name} {} --config", list.replace(':', " "))
        }
        Manager::Libvirt => {
            format!("for p in {list}; do virsh vcpupin {name} ${{p%:*}} ${{p#*:}} --config; done")
        }
        Manager::Xen => {
            let all: Vec<String> = pins.values().map(|cpu| format!("\"{}\"", cpu.0)).collect();
            format!("cpus = [{}]", all.join(", "))
        }
        Manager::Cgroup | Manager::Kubernetes => {
            let set: CpuSet = pins.values().copied().collect();
            cpus(vm, &set)
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
    let name = quoted(&vm.name);
    if set.is_empty() {
        return "there are no pCPUs for it: move a VM to another host".into();
    }
    match vm.manager {
        Manager::Libvirt => {
            let last = vm.vcpus.len().saturating_sub(1);
            format!("for v in $(seq 0 {last}); do virsh vcpupin {name} $v {set} --config; done")
        }
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
        Manager::Libvirt => format!("virsh setvcpus {} {number} --config", quoted(&vm.name)),
        Manager::Xen => format!("vcpus = {number}"),
        Manager::Cgroup | Manager::Kubernetes => "start fewer threads there (corefit run)".into(),
    }
}

/// Puts a VM's memory on nodes.
pub(super) fn memory(vm: &Vm, nodes: &CpuSet) -> String {
    match vm.manager {
        Manager::Libvirt => format!("virsh numatune {} --nodeset {nodes} --config", quoted(&vm.name)),
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
    let name = quoted(&vm.name);
    match kind {
        HelperKind::Emulator => format!("virsh emulatorpin {name} {set} --config"),
        HelperKind::Iothread(number) => format!("virsh iothreadpin {name} {number} {set} --config"),
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
    if !name.is_empty() && !name.starts_with('-') && name.chars().all(plain) {
        return name.into();
    }
    let inner = name.replace('\'', "'\\''");
    if name.starts_with('-') { format!("-- '{inner}'") } else { format!("'{inner}'") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_word_to_a_shell() {
        assert_eq!(quoted("web-1.prod"), "web-1.prod");
        assert_eq!(quoted("a b; rm -rf ~"), "'a b; rm -rf ~'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(quoted(""), "''");
    }
}
