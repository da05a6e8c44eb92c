//! Pinning that cannot work any more: written for a host of another shape.

use super::Problem;
use crate::CpuSet;

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
