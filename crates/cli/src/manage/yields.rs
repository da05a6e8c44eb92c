//! Kernels that manage CPUs themselves: what they do, corefit leaves alone, and says so.

use corefit_core::machine::{Fixed, LeverKind, Role, Snapshot};
use corefit_linux::Root;
use corefit_linux::libvirt::is_here;

/// Something that does a part of corefit's work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Yield {
    /// What, and where that is seen.
    pub(crate) reason: String,
    /// What is left to it.
    pub(crate) levers: Vec<LeverKind>,
}

/// VMs have no levers for what the kernel does itself.
pub(crate) fn leave_alone(snapshot: &mut Snapshot, yields: &[Yield]) {
    for vm in snapshot.vms.iter_mut().filter(|vm| vm.role == Role::Vm) {
        for found in yields {
            let free: Vec<LeverKind> =
                found.levers.iter().copied().filter(|lever| vm.fixed(*lever).is_none()).collect();
            let fixed = |lever| Fixed { lever, reason: found.reason.clone() };
            vm.fixed.extend(free.into_iter().map(fixed));
        }
    }
}

/// What the kernel does itself now of the host whose VMs a live machine of this name has: another host's cannot be seen from here, and
/// this one's says nothing of it.
pub(crate) fn detect(root: &Root, machine: &str) -> Vec<Yield> {
    if machine.strip_prefix("libvirt").is_some_and(|uri| !is_here(uri.trim_start())) {
        return Vec::new();
    }
    let read = |path: &str| root.read(path).ok().map(|text| text.trim().to_owned());
    let mut found = Vec::new();
    // kernel Documentation/scheduler/sched-ext.rst: "enabled" while a BPF scheduler runs, whose name is in ops.
    if read("/sys/kernel/sched_ext/state").as_deref() == Some("enabled") {
        let name = read("/sys/kernel/sched_ext/root/ops").unwrap_or_default();
        found.push(Yield {
            reason: format!(
                "sched_ext scheduler {name:?} (/sys/kernel/sched_ext), which need not heed weights and limits"
            ),
            levers: vec![
                LeverKind::Weight,
                LeverKind::HelperWeight,
                LeverKind::Quota,
                LeverKind::VcpuQuota,
                LeverKind::Affinity,
                LeverKind::Nodes,
                LeverKind::Slice,
            ],
        });
    }
    // Linux patches of 2026, "cpu_preferred_mask": the CPUs that a host below leaves to this machine.
    let (preferred, online) = ("/sys/devices/system/cpu/preferred", "/sys/devices/system/cpu/online");
    if let (Some(preferred_now), Some(online)) = (read(preferred), read(online))
        && preferred_now != online
    {
        found.push(Yield {
            // Which these are may change from second to second.
            reason: format!("this kernel keeps to some of its CPUs itself ({preferred})"),
            levers: vec![LeverKind::Affinity, LeverKind::Nodes],
        });
    }
    // s390: kernel Documentation/arch/s390, sysctl s390.hiperdispatch.
    if read("/proc/sys/s390/hiperdispatch").as_deref() == Some("1") {
        found.push(Yield {
            reason: "hiperdispatch (/proc/sys/s390/hiperdispatch) chooses CPUs by capacity".into(),
            levers: vec![LeverKind::Affinity, LeverKind::Nodes],
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(files: &[(&str, &str)]) -> Vec<Yield> {
        of(files, "cgroups")
    }

    fn of(files: &[(&str, &str)], machine: &str) -> Vec<Yield> {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        detect(&Root::at(dir.path()), machine)
    }

    #[test]
    fn kernels_that_manage_themselves_are_seen_and_others_are_not() {
        assert_eq!(with(&[]), []);
        let state = "sys/kernel/sched_ext/state";
        assert_eq!(with(&[(state, "disabled\n")]), []);
        let found = with(&[(state, "enabled\n"), ("sys/kernel/sched_ext/root/ops", "rusty\n")]);
        assert!(
            found[0].reason.contains("\"rusty\"")
                && [LeverKind::Weight, LeverKind::Nodes, LeverKind::Slice]
                    .iter()
                    .all(|lever| found[0].levers.contains(lever))
        );
        let (preferred, online) = ("sys/devices/system/cpu/preferred", "sys/devices/system/cpu/online");
        assert_eq!(with(&[(preferred, "0-3\n"), (online, "0-3\n")]), []);
        // Memory goes where vCPUs are pinned.
        for files in
            [&[(preferred, "0-1\n"), (online, "0-3\n")][..], &[("proc/sys/s390/hiperdispatch", "1\n")]]
        {
            assert_eq!(with(files)[0].levers, [LeverKind::Affinity, LeverKind::Nodes]);
        }
        assert_eq!(with(&[("proc/sys/s390/hiperdispatch", "0\n")]), []);
    }
    #[test]
    fn the_kernel_of_another_host_is_not_taken_for_this_one() {
        let enabled = [("sys/kernel/sched_ext/state", "enabled\n")];
        for (machine, seen) in
            [("cgroups", 1), ("libvirt qemu:///system", 1), ("libvirt qemu+ssh://h2/system", 0)]
        {
            assert_eq!(of(&enabled, machine).len(), seen, "{machine}");
        }
    }
}
