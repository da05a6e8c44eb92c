//! What a placement would do: a prediction, to compare placements with.
//!
//! ```text
//! busy(p) = 1 - Π (1 - E[min(K_S, |S|)] / |S|)                 over the sets S with p that vCPUs may use, as if independent
//! T       = Σ_p busy(p) · speed(p) / (1 + (1/b - 1) · Σ busy(q) / (n - 1))     over the n - 1 siblings q of p
//! ```
//!
//! K_S is how many of the vCPUs whose set is S want to run at once, each with the probability of its demand: who shares a
//! set leaves none of its pCPUs idle while one of them waits (work conservation), and uses all of them alike. Of a set of
//! one pCPU that is 1 - Π (1 - d_v). b is the speed that is left beside a busy sibling, speed(p) the capacity of a hybrid
//! host's pCPU.
//! Caches and memory are left out: their sizes are not published (P4 names causes only).

use std::collections::BTreeMap;

use super::{Placement, Problem};
use crate::units::count;
use crate::{CpuId, CpuSet};

/// Speed beside a busy sibling: P4, III-D: 0-16 took 38 % longer than 8-8, where nobody had one.
pub const BESIDE_SIBLING: f64 = 1.0 / 1.38;

/// Whole pCPUs' worth of work that is done at once by vCPUs with these affinities.
#[must_use]
pub fn throughput(problem: &Problem, placement: &Placement) -> f64 {
    let topology = &problem.topology;
    let online = topology.online();
    let mut sharers: BTreeMap<Option<&CpuSet>, Vec<f64>> = BTreeMap::new();
    for (vm, placed) in problem.vms.iter().zip(&placement.vms) {
        for (vcpu, seat) in vm.vcpus.iter().zip(&placed.vcpus) {
            sharers.entry(seat.affinity.as_ref()).or_default().push(vcpu.demand.clamp(0.0, 1.0));
        }
    }
    let mut idle: BTreeMap<CpuId, f64> = online.iter().map(|cpu| (cpu, 1.0)).collect();
    for (set, demands) in sharers {
        let usable = set.map_or_else(|| online.clone(), |set| set.intersection(&online));
        let part = running(&demands, usable.len()) / count(usable.len().max(1));
        for cpu in usable.iter() {
            if let Some(idle) = idle.get_mut(&cpu) {
                *idle *= 1.0 - part;
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
        let others = count(unit.len().max(2) - 1);
        for cpu in unit.iter() {
            let slower = (1.0 / BESIDE_SIBLING - 1.0) * (sum - busy(cpu)) / others;
            all += busy(cpu) * speed(cpu) / (1.0 + slower);
        }
    }
    all
}

/// How many of these run at once on so many pCPUs, on average: E[min(K, pcpus)].
fn running(demands: &[f64], pcpus: usize) -> f64 {
    if demands.len() <= pcpus {
        return demands.iter().sum();
    }
    // What is the chance that k want to run; the last: as many as there are pCPUs, or more.
    let mut chance = vec![0.0; pcpus + 1];
    chance[0] = 1.0;
    for demand in demands {
        let mut from_below = 0.0;
        for (many, now) in chance.iter_mut().enumerate() {
            let up = if many == pcpus { 0.0 } else { *now * demand };
            *now += from_below - up;
            from_below = up;
        }
    }
    chance.iter().enumerate().map(|(many, chance)| count(many) * chance).sum()
}

#[cfg(test)]
mod tests {
    use super::running;

    #[test]
    fn who_shares_pcpus_leaves_none_idle_while_somebody_waits() {
        for (demands, pcpus, expected) in [
            (&[1.0, 1.0, 1.0][..], 2, 2.0),
            (&[0.5, 0.5], 1, 0.75),
            (&[0.5, 0.5], 2, 1.0),
            // All three: 1/8, two of them: 3/8, one: 3/8.
            (&[0.5, 0.5, 0.5], 2, 11.0 / 8.0),
            (&[], 2, 0.0),
        ] {
            assert!((running(demands, pcpus) - expected).abs() < 1e-12, "{demands:?} on {pcpus}");
        }
    }
}
