//! What a placement would do: a prediction, to compare placements with.
//!
//! ```text
//! busy(p) = 1 - Π (1 - d_v)                                    over the vCPUs on pCPU p, as if independent
//! T       = Σ_p busy(p) · speed(p) / (1 + (1/b - 1) · Σ busy(q) / (n - 1))     over the n - 1 siblings q of p
//! ```
//!
//! d_v is the demand, b the speed that is left beside a busy sibling, speed(p) the capacity of a hybrid host's pCPU.
//! Caches and memory are left out: their sizes are not published (P4 names causes only).

use std::collections::BTreeMap;

use super::{Placement, Problem};
use crate::{CpuId, CpuSet};

/// Speed beside a busy sibling: P4, III-D: 0-16 took 38 % longer than 8-8, where nobody had one.
pub const BESIDE_SIBLING: f64 = 1.0 / 1.38;

/// Whole pCPUs' worth of work that is done at once. Who may use several pCPUs and has no home counts as being on
/// each of them for an equal part of its demand.
#[must_use]
pub fn throughput(problem: &Problem, placement: &Placement) -> f64 {
    let topology = &problem.topology;
    let online = topology.online();
    let mut idle: BTreeMap<CpuId, f64> = online.iter().map(|cpu| (cpu, 1.0)).collect();
    for (vm, placed) in problem.vms.iter().zip(&placement.vms) {
        for (vcpu, seat) in vm.vcpus.iter().zip(&placed.vcpus) {
            let set = match (seat.home, &seat.affinity) {
                (Some(home), _) => CpuSet::from_iter([home]),
                (None, Some(set)) => set.intersection(&online),
                (None, None) => online.clone(),
            };
            let part = vcpu.demand.clamp(0.0, 1.0) / float(set.len().max(1));
            for cpu in set.iter() {
                if let Some(idle) = idle.get_mut(&cpu) {
                    *idle *= 1.0 - part;
                }
            }
        }
    }
    let most = topology.capacity.values().copied().max().unwrap_or(1);
    let speed =
        |cpu: CpuId| f64::from(topology.capacity.get(&cpu.0).copied().unwrap_or(most)) / f64::from(most);
    let busy = |cpu: CpuId| 1.0 - idle.get(&cpu).copied().unwrap_or(1.0);
    let mut all = 0.0;
    for unit in topology.units() {
        let sum: f64 = unit.iter().map(busy).sum();
        let others = float(unit.len().max(2) - 1);
        for cpu in unit.iter() {
            let slower = (1.0 / BESIDE_SIBLING - 1.0) * (sum - busy(cpu)) / others;
            all += busy(cpu) * speed(cpu) / (1.0 + slower);
        }
    }
    all
}

#[expect(clippy::cast_precision_loss, reason = "at most 65536")]
fn float(n: usize) -> f64 {
    n as f64
}
