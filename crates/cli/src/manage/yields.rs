//! Kernels that manage CPUs themselves: what they do, corefit leaves alone, and says so.

use std::time::{Duration, Instant};

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
    /// For how long after it was seen last.
    lasts: Duration,
}

/// A governor takes CPUs and gives them back from second to second, and what is changed while it has none to take is put back a moment later.
/// As long as what a VM lacks is not asked for again.
const LASTS: Duration = Duration::from_secs(300);

/// What is left to the kernel, and when it was seen last.
#[derive(Debug, Default)]
pub(crate) struct Left(Vec<(Yield, Instant)>);

impl Left {
    /// A look has found these: what is left to the kernel from now on, and what is no more.
    pub(crate) fn see(&mut self, found: Vec<Yield>, now: Instant) -> [Vec<Yield>; 2] {
        let mut begun = Vec::new();
        for found in found {
            match self.0.iter_mut().find(|(known, _)| *known == found) {
                Some((_, seen)) => *seen = now,
                None => {
                    begun.push(found.clone());
                    self.0.push((found, now));
                }
            }
        }
        let over = |seen: Instant| now.duration_since(seen);
        let ended = self.0.extract_if(.., |(what, seen)| *seen < now && over(*seen) >= what.lasts);
        [begun, ended.map(|(what, _)| what).collect()]
    }

    pub(crate) fn now(&self) -> impl Iterator<Item = &Yield> + Clone {
        self.0.iter().map(|(what, _)| what)
    }
}

/// VMs have no levers for what the kernel does itself.
pub(crate) fn leave_alone<'a>(snapshot: &mut Snapshot, yields: impl IntoIterator<Item = &'a Yield> + Clone) {
    for vm in snapshot.vms.iter_mut().filter(|vm| vm.role == Role::Vm) {
        for found in yields.clone() {
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
    // kernel Documentation/scheduler/sched-ext.rst: "enabled" while a BPF scheduler runs, whose name is in ops. With SCX_OPS_SWITCH_PARTIAL,
    // where switch_all is 0 (kernel/sched/ext.c), only threads that ask for it are its: QEMU's do not.
    let all = || read("/sys/kernel/sched_ext/switch_all").as_deref() != Some("0");
    if read("/sys/kernel/sched_ext/state").as_deref() == Some("enabled") && all() {
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
            lasts: Duration::ZERO,
        });
    }
    // Linux patches of 2026, "cpu_preferred_mask": the CPUs that a host below leaves to this machine.
    let (preferred, online) = ("/sys/devices/system/cpu/preferred", "/sys/devices/system/cpu/online");
    // One may go on- or offline between the two.
    if let (Some(before), Some(preferred_now), Some(after)) = (read(online), read(preferred), read(online))
        && before == after
        && preferred_now != after
    {
        found.push(Yield {
            // Which these are may change from second to second.
            reason: format!("this kernel keeps to some of its CPUs itself ({preferred})"),
            levers: vec![LeverKind::Affinity, LeverKind::Nodes],
            lasts: LASTS,
        });
    }
    // s390: kernel Documentation/arch/s390, sysctl s390.hiperdispatch.
    if read("/proc/sys/s390/hiperdispatch").as_deref() == Some("1") {
        found.push(Yield {
            reason: "hiperdispatch (/proc/sys/s390/hiperdispatch) chooses CPUs by capacity".into(),
            levers: vec![LeverKind::Affinity, LeverKind::Nodes],
            lasts: Duration::ZERO,
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use corefit_core::machine::VmState;

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
        let all = "sys/kernel/sched_ext/switch_all";
        assert_eq!(with(&[(state, "enabled\n"), (all, "0\n")]), [], "VMs' threads are not its");
        let ops = ("sys/kernel/sched_ext/root/ops", "rusty\n");
        let found = with(&[(state, "enabled\n"), (all, "1\n"), ops]);
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

    fn yields(reason: &str, levers: &[LeverKind]) -> Yield {
        Yield { reason: reason.into(), levers: levers.to_vec(), lasts: LASTS }
    }

    #[test]
    fn vms_have_no_levers_for_what_is_left_to_the_kernel_and_keep_the_others() {
        let denied = Fixed { lever: LeverKind::Weight, reason: "its owner's".into() };
        let vm = VmState { fixed: vec![denied], ..VmState::default() };
        let other = VmState { role: Role::Other, ..VmState::default() };
        let mut snapshot = Snapshot { vms: vec![vm, other], ..Snapshot::default() };
        let both = [
            yields("sched_ext", &[LeverKind::Weight, LeverKind::Affinity]),
            yields("preferred", &[LeverKind::Affinity]),
        ];
        leave_alone(&mut snapshot, &both);
        let levers = [LeverKind::Weight, LeverKind::Affinity, LeverKind::Online];
        let why = levers.map(|lever| snapshot.vms[0].fixed(lever));
        assert_eq!(why, [Some("its owner's"), Some("sched_ext"), None]);
        assert_eq!((snapshot.vms[0].fixed.len(), snapshot.vms[1].fixed.len()), (2, 0), "each once");
    }

    #[test]
    fn what_comes_and_goes_is_left_alone_until_it_has_not_been_seen_for_minutes() {
        let (mut left, begun) = (Left::default(), Instant::now());
        let governor = yields("preferred", &[LeverKind::Affinity]);
        let mut see = |s: u64, is: bool| {
            let found = if is { vec![governor.clone()] } else { vec![] };
            let changes = left.see(found, begun + Duration::from_secs(s)).map(|changes| changes.len());
            (changes, left.now().count())
        };
        assert_eq!([see(0, false), see(1, true), see(2, true)], [([0, 0], 0), ([1, 0], 1), ([0, 0], 1)]);
        for s in (3..1000).step_by(200) {
            assert_eq!([see(s, false), see(s + 1, true)], [([0, 0], 1); 2], "{s}");
        }
        assert_eq!([see(1103, false), see(1104, false)], [([0, 0], 1), ([0, 1], 0)]);
        assert_eq!(see(1105, true), ([1, 0], 1));
        // What does not come and go is over when it is not seen any more.
        let now = Instant::now();
        let ends = Yield { lasts: Duration::ZERO, ..yields("sched_ext", &[LeverKind::Weight]) };
        let mut left = Left::default();
        assert_eq!(left.see(vec![ends.clone()], now), [vec![ends.clone()], vec![]]);
        assert_eq!(left.see(vec![], now + Duration::from_secs(1)), [vec![], vec![ends]]);
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
