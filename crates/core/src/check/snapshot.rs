//! A host as some machine shows it, for who has no configuration to read.

use super::{Fewer, Helper, HelperKind, Manager, Memory, Place, Set, Subject, Vcpu, Vm};
use crate::machine::{HostEstimate, LeverKind, Role, Snapshot, VmEstimate, VmState};
use crate::topology::{Part, Topology};
use crate::{CpuId, CpuSet};

impl Subject {
    /// The VMs of a snapshot. Those of control groups see the host's own topology; one whose set of pCPUs
    /// meets no other's counts as the owner of its set. Weights are left out: slices above decide as well.
    #[must_use]
    pub fn of_snapshot(snapshot: &Snapshot, host: &HostEstimate, topology: Topology, file: &str) -> Subject {
        let vms = || snapshot.vms.iter().filter(|vm| vm.role == Role::Vm);
        let uncounted = snapshot.uncounted.clone();
        let mut subject = Subject { topology: Some(topology), uncounted, ..Subject::default() };
        let all = snapshot.pcpu_sets().0;
        for vm in vms() {
            let set = pcpus(vm);
            let apart = set.as_ref().is_some_and(|set| {
                *set != all
                    && vms().all(|other| {
                        other.id == vm.id || pcpus(other).is_none_or(|o| o == all || !o.meets(set))
                    })
            });
            subject.vms.push(one(vm, host, apart, file));
        }
        subject
    }
}

/// pCPUs that a VM's vCPUs may use together.
fn pcpus(vm: &VmState) -> Option<CpuSet> {
    let mut all = CpuSet::default();
    for vcpu in &vm.vcpus {
        all = all.union(vcpu.affinity.as_ref()?);
    }
    Some(all)
}

fn one(vm: &VmState, host: &HostEstimate, apart: bool, file: &str) -> Vm {
    // Groups are counted as a whole; names may be anything in a recording without names.
    let manager = if vm.is_group() { Manager::Cgroup } else { Manager::Libvirt };
    let place = Place { file: file.into(), line: None, element: vm.name.clone() };
    let at = |what: &str| place.at(None, &format!("{} {what}", vm.name));
    let measured = host.vms.iter().find(|known| known.seen.id == vm.id);
    let vcpu = |(number, state): (usize, &crate::machine::VcpuState)| {
        let activity = measured.and_then(|vm| vm.vcpus.get(number));
        let used = activity.and_then(|a| a.used);
        let waiting = activity.and_then(|a| a.waiting);
        Vcpu {
            online: state.online,
            affinity: state.affinity.clone().map(|value| Set { value, place: at("cpuset") }),
            prefers: None,
            // Used and waited for bounds what it would use from above.
            demand: used.zip(waiting).map(|(used, waiting)| used + waiting),
        }
    };
    let helper = |helper: &crate::machine::Helper| {
        let number = helper.name.strip_prefix("iothread ").and_then(|number| number.parse().ok());
        let kind = number.map_or(HelperKind::Emulator, HelperKind::Iothread);
        let value = helper.affinity.clone()?;
        Some(Helper { kind, affinity: Set { value, place: at(&helper.name) } })
    };
    let quota = |quota: Option<&crate::Quota>, what: &str| {
        quota
            .filter(|quota| quota.quota_us.is_some())
            .map(|quota| Set { value: quota.clone(), place: at(what) })
    };
    let mut one = Vm {
        name: vm.name.clone(),
        manager,
        vcpus: vm.vcpus.iter().enumerate().map(vcpu).collect(),
        helpers: vm.helpers.iter().filter_map(helper).collect(),
        cap: quota(vm.quota.as_ref(), "quota"),
        vcpu_quota: quota(vm.vcpus.first().and_then(|vcpu| vcpu.quota.as_ref()), "vCPU quota"),
        memory: vm.memory_nodes.clone().map(|nodes| Set {
            value: Memory::Nodes { nodes, mode: "strict".into() },
            place: at("memory nodes"),
        }),
        sees_host: manager == Manager::Cgroup,
        exclusive: manager == Manager::Cgroup && apart,
        place,
        ..Vm::default()
    };
    if let Some(measured) = measured {
        one.measure(measured);
    }
    one
}

impl Vm {
    /// Adds what no configuration says of a VM.
    pub fn measure(&mut self, seen: &VmEstimate) {
        self.slices = seen.seen.slices;
        self.timeslices = seen.timeslices.clone();
        self.class = seen.class.clone();
        self.starved = seen.starved();
        // (That its owner wants it to be left alone is no reason.)
        let stays = seen.seen.lacks(LeverKind::Online).is_some();
        // An agent that did not answer in time may do so when it is asked.
        let has_agent = seen.seen.guest.is_some() || seen.seen.lacks(LeverKind::Told).is_none();
        self.cold = seen.seen.cold.len();
        self.fewer = match has_agent {
            _ if stays => Fewer::AtStart,
            true => Fewer::ByGuest,
            false => Fewer::Unplugged,
        };
    }
}

impl Topology {
    /// What a snapshot shows of its host's shape: of caches the last level, where it shows any.
    #[must_use]
    pub fn of_snapshot(snapshot: &Snapshot) -> Topology {
        let (pcpus, offline) = snapshot.pcpu_sets();
        let caches = snapshot.caches.clone();
        let mut found = Topology { pcpus, offline, caches, ..Topology::default() };
        for pcpu in &snapshot.pcpus {
            found.cores.extend(pcpu.siblings.clone().filter(|core| !found.cores.contains(core)));
            join(&mut found.sockets, pcpu.package, pcpu.id);
            join(&mut found.nodes, pcpu.node, pcpu.id);
        }
        // What contradicts itself is left out.
        let bare =
            Topology { pcpus: found.pcpus.clone(), offline: found.offline.clone(), ..Topology::default() };
        found.settle().unwrap_or(bare)
    }
}

fn join(parts: &mut Vec<Part>, id: Option<u32>, cpu: CpuId) {
    let Some(id) = id else { return };
    let one = CpuSet::from_iter([cpu]);
    match parts.iter_mut().find(|part| part.id == Some(id)) {
        Some(part) => part.pcpus = part.pcpus.union(&one),
        None => parts.push(Part { id: Some(id), pcpus: one, memory_kib: None }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Quota;
    use crate::check::check;
    use crate::machine::{Fixed, GuestView, Pcpu, VcpuState, VmId, estimate};

    fn group(name: &str, list: &str) -> VmState {
        let cpus: CpuSet = list.parse().unwrap();
        let vcpu = VcpuState { online: true, affinity: Some(cpus.clone()), ..VcpuState::default() };
        VmState {
            id: VmId(name.into()),
            name: name.into(),
            vcpus: vec![vcpu; cpus.len()],
            whole: Some(crate::machine::Counters::default()),
            ..VmState::default()
        }
    }

    #[test]
    fn a_guest_whose_agent_did_not_answer_yet_may_when_it_is_asked() {
        let mut seen = Snapshot { vms: vec![group("a", "0-1")], ..Snapshot::default() };
        let mut fewer = |fixed: &[LeverKind], guest: Option<GuestView>| {
            let reason = || "it has no guest agent".into();
            seen.vms[0].fixed = fixed.iter().map(|&lever| Fixed { lever, reason: reason() }).collect();
            seen.vms[0].guest = guest;
            let mut vm = Vm::default();
            vm.measure(&estimate(&seen, &seen).unwrap().vms[0]);
            vm.fewer
        };
        assert_eq!(fewer(&[], Some(GuestView::default())), Fewer::ByGuest);
        assert_eq!(fewer(&[], None), Fewer::ByGuest);
        assert_eq!(fewer(&[LeverKind::Told], None), Fewer::Unplugged);
        assert_eq!(fewer(&[LeverKind::Told, LeverKind::Online], None), Fewer::AtStart);
        seen.vms[0].hands_off = true;
        seen.vms[0].fixed.clear();
        let mut vm = Vm::default();
        vm.measure(&estimate(&seen, &seen).unwrap().vms[0]);
        assert_eq!(vm.fewer, Fewer::ByGuest);
    }

    #[test]
    fn groups_that_share_no_pcpus_but_cores_are_half_cores_each() {
        let pcpu = |id: u32| Pcpu {
            id: CpuId(id),
            online: true,
            node: Some(0),
            package: Some(0),
            siblings: format!("{},{}", id % 4, id % 4 + 4).parse().ok(),
            idle_ns: None,
            steal_ns: None,
        };
        let mut first = Snapshot { pcpus: (0..8).map(pcpu).collect(), ..Snapshot::default() };
        first.vms = vec![group("/a", "0-1"), group("/b", "4-5"), group("/c", "0-7")];
        first.vms[0].quota =
            Some(Quota { quota_us: Some(100_000), period_us: 100_000, burst_us: 0, source: String::new() });
        let topology = Topology::of_snapshot(&first);
        assert_eq!(topology.summary(), "1 socket, 1 NUMA node, 4 cores of 2 threads, 8 pCPUs");
        let host = estimate(&first, &first).unwrap();
        let subject = Subject::of_snapshot(&first, &host, topology, "groups");
        let found: Vec<String> =
            check(&subject).iter().map(|f| format!("{} {} {}", f.rule, f.vm, f.cure)).collect();
        assert_eq!(
            found,
            [
                "quota-below-pinned /a write max to cpu.max (v1: -1 to cpu.cfs_quota_us) of /a",
                "threads-as-cores /b write 2-3 to cpuset.cpus of /b"
            ]
        );
    }
}
