//! Pinning that cannot work any more, as it was written for a host of another shape; or that keeps vCPUs away from
//! their memory.

use super::{Placement, Problem};
use crate::CpuSet;

/// Who wants to run: pCPUs.
const WANTS: f64 = 0.025;

/// A pin to pCPUs that a vCPU cannot use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// The VM, by its number in the problem.
    pub vm: usize,
    /// The vCPU's number.
    pub vcpu: u32,
    /// Of its affinity, what the host does not have.
    pub absent: CpuSet,
    /// What is offline.
    pub offline: CpuSet,
    /// Whether something is left that it can run on.
    pub runs: bool,
}

/// All of them. [`place`](super::place) replaces them with everything else.
#[must_use]
pub fn invalid(problem: &Problem) -> Vec<Invalid> {
    let topology = &problem.topology;
    let online = topology.online();
    let mut found = Vec::new();
    for (vm, known) in problem.vms.iter().enumerate() {
        for vcpu in &known.vcpus {
            let Some(now) = &vcpu.now else { continue };
            if !now.is_within(&online) {
                found.push(Invalid {
                    vm,
                    vcpu: vcpu.id,
                    absent: now.difference(&topology.pcpus),
                    offline: now.intersection(&topology.offline),
                    runs: now.meets(&online),
                });
            }
        }
    }
    found
}

/// vCPUs that want to run, and none of whose pCPUs is on a node of their memory, that of their guest node or of their VM: the
/// conflict of P4.2. Of VMs whose memory moves to its vCPUs, that is left out with `moved`.
#[must_use]
pub fn far_from_memory(problem: &Problem, placement: &Placement, moved: bool) -> usize {
    let topology = &problem.topology;
    let vms = problem.vms.iter().zip(&placement.vms).filter(|(vm, _)| !vm.stays);
    let far = vms.map(|(vm, placed)| {
        let near = |nodes: &Option<CpuSet>| nodes.as_ref().map(|nodes| topology.pcpus_of_nodes(nodes));
        let of_vm = near(&vm.memory).filter(|_| !(moved && vm.memory_moves));
        let seats = placed.vcpus.iter().zip(&vm.vcpus).filter(|(_, vcpu)| vcpu.demand >= WANTS);
        let far = seats.filter(|(seat, vcpu)| {
            let own = near(&vcpu.memory);
            let near = own.as_ref().or(of_vm.as_ref()).filter(|near| !near.is_empty());
            near.zip(seat.affinity.as_ref()).is_some_and(|(near, set)| !set.meets(near))
        });
        far.count()
    });
    far.sum()
}
