//! P5, IV-A: two threads run faster on cores that do not share an L2, and that is where ULAS puts them.

use anyhow::{Context, Result};
use corefit_core::place::{Policy, Problem, Vcpu, Vm, place};
use corefit_core::topology::Topology;
use corefit_core::{CpuId, CpuSet};

use super::testbed::{run, seconds, spec};
use super::{Item, Paper, Rule};
use crate::stats::count;

const ULAS: &str = include_str!("../../../../scenarios/p5-ulas.toml");
/// The machine of that scenario, as placements know it.
const MACHINE: &str = "2 sockets x 1 l2 x 2 cores";

/// The two programs whose cache misses the paper prints (Table I), and the range that it prints for all programs, %.
const PROGRAMS: [&str; 2] = ["lu", "is"];
const LEAST: f64 = 4.5;
const MOST: f64 = 32.52;

pub(super) fn items() -> Result<Vec<Item>> {
    let topology: Topology = MACHINE.parse()?;
    let homes = chosen(&topology)?;
    let chosen = homes.iter().copied().collect::<CpuSet>().to_string();
    let mut items = vec![Item::new(
        (Paper::P5, "Table I"),
        format!("pairs of threads that share an L2 where ULAS puts them ({chosen})"),
        None,
        Some(count(sharing(&topology, &homes))),
        &Rule::Exactly(0.0),
    )];
    let mut hosts = vec![];
    for program in PROGRAMS {
        for affinity in ["0-1", chosen.as_str()] {
            let sets = [("vm.npb.program", program.to_owned()), ("vm.npb.affinity", affinity.to_owned())];
            hosts.push(spec(ULAS, &sets)?);
        }
    }
    let truths = run(&hosts, "P5")?;
    for (program, pair) in PROGRAMS.iter().zip(truths.chunks(2)) {
        let gain =
            seconds(&pair[0]).zip(seconds(&pair[1])).map(|(shared, apart)| 100.0 * (shared / apart - 1.0));
        let what = format!("gain by ULAS, {program}, %; theirs: of all programs");
        items.push(
            Item::new((Paper::P5, "Figure 4"), what, None, gain, &Rule::Between(LEAST, MOST))
                .fitted("class.data.footprint_kib")
                .fitted_too("class.data.without_cache"),
        );
    }
    Ok(items)
}

/// The pCPUs that ULAS takes for two threads.
fn chosen(topology: &Topology) -> Result<Vec<CpuId>> {
    let vcpu = |id| Vcpu { id, demand: 1.0, ..Vcpu::default() };
    let vms = vec![Vm { name: "npb".into(), weight: 1.0, vcpus: vec![vcpu(0), vcpu(1)], ..Vm::default() }];
    let found = place(&Problem { topology: topology.clone(), vms, ..Problem::default() }, Policy::Ulas);
    let seats = found.vms.iter().flat_map(|vm| &vm.vcpus);
    seats.map(|seat| seat.home).collect::<Option<Vec<CpuId>>>().context("ULAS found no pCPU")
}

/// Pairs of these pCPUs that share an L2.
fn sharing(topology: &Topology, homes: &[CpuId]) -> usize {
    let l2 = topology.caches.iter().filter(|cache| cache.level == 2);
    l2.map(|l2| homes.iter().filter(|home| l2.pcpus.contains(**home)).count())
        .map(|threads| threads * threads.saturating_sub(1) / 2)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_on_one_l2_is_counted_and_that_is_not_where_ulas_puts_it() {
        let topology: Topology = MACHINE.parse().unwrap();
        let pairs = |homes: &[u32]| sharing(&topology, &homes.iter().copied().map(CpuId).collect::<Vec<_>>());
        assert_eq!((pairs(&[0, 1]), pairs(&[2, 3])), (1, 1));
        assert_eq!((pairs(&[0, 2]), pairs(&[1, 3]), pairs(&[0, 1, 2, 3])), (0, 0, 2));
        assert_eq!(sharing(&topology, &chosen(&topology).unwrap()), 0);
    }
}
