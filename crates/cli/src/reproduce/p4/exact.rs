//! Competing modules that follow from counting alone: nothing is simulated.

use std::collections::BTreeSet;

use anyhow::Result;
use corefit_core::place::{Policy, Problem, Vcpu, Vm, competing, place, present};
use corefit_core::topology::Topology;
use corefit_core::{CpuId, CpuSet};

use super::super::{Item, Paper, Rule};
use crate::stats::count;

const OPTERON: &str = "2 sockets x 2 nodes x 4 modules x 2 cores";

/// One of the paper's distributions: m of the lowest pCPUs of the first processor, n of the second.
fn distribution(first: u32, second: u32) -> CpuSet {
    (0..first).chain(16..16 + second).map(CpuId).collect()
}

/// The pCPUs of so many busy vCPUs as Xen uses them (III-G): in the preferred part one core of each module, then the
/// others; then likewise in the rest.
fn filled(topology: &Topology, all: &CpuSet, preferred: &CpuSet, busy: usize) -> CpuSet {
    let mut used = BTreeSet::new();
    for part in [all.intersection(preferred), all.difference(preferred)] {
        let modules: Vec<CpuSet> = topology.units().iter().map(|unit| unit.intersection(&part)).collect();
        let firsts = modules.iter().filter_map(|module| module.iter().next());
        let others = modules.iter().flat_map(|module| module.iter().skip(1));
        for cpu in firsts.chain(others) {
            if used.len() < busy {
                used.insert(cpu);
            }
        }
    }
    used.into_iter().collect()
}

fn host(affinity: Option<&CpuSet>) -> Result<Problem> {
    let vcpu = |id| Vcpu { id, demand: 1.0, now: affinity.cloned(), ..Vcpu::default() };
    let vm = Vm { name: "npb".into(), weight: 1.0, vcpus: (0..16).map(vcpu).collect(), ..Vm::default() };
    Ok(Problem { topology: OPTERON.parse()?, vms: vec![vm], ..Problem::default() })
}

pub(super) fn items() -> Result<Vec<Item>> {
    let topology: Topology = OPTERON.parse()?;
    let modules = topology.units();
    let node_02 = topology.pcpus_of_nodes(&"0,2".parse()?);
    let node_23 = topology.pcpus_of_nodes(&"2-3".parse()?);
    let counted = |figure, what: String, theirs: Option<f64>, ours: f64, exactly: f64| {
        Item::new((Paper::P4, figure), format!("counted{what}"), theirs, Some(ours), &Rule::Exactly(exactly))
    };
    let mut items = Vec::new();
    for first in 0..=8 {
        let set = distribution(first, 16 - first);
        // Even: eight modules, of which all compete; odd: "nine, not eight", of which seven compete. Printed is the number of 7-9
        // alone (III-F).
        let follows = if first % 2 == 0 { 8.0 } else { 7.0 };
        let what = format!(": {first}-{}, 16 threads", 16 - first);
        let theirs = (first == 7).then_some(follows);
        items.push(counted("Figure 6, 7", what, theirs, count(competing(&modules, &set)), follows));
    }
    let cases = [
        ("0-16, node affinity as xl sets it", distribution(0, 16), &node_02, [0.0, 4.0, 4.0, 8.0]),
        ("8-8", distribution(8, 8), &node_02, [0.0, 0.0, 4.0, 8.0]),
        ("0-16, the right node affinity", distribution(0, 16), &node_23, [0.0, 0.0, 4.0, 8.0]),
        // pCPU 24 is on node 3, and so the last one.
        ("7-9", distribution(7, 9), &node_02, [0.0, 0.0, 4.0, 7.0]),
    ];
    for (name, set, preferred, expected) in cases {
        for (busy, expected) in [4, 8, 12, 16].into_iter().zip(expected) {
            let used = filled(&topology, &set, preferred, busy);
            let what = format!(" in the order of III-G: {name}, {busy} threads");
            items.push(counted("Figure 6, 8, 9", what, None, count(competing(&modules, &used)), expected));
        }
    }
    let any = present(&host(None)?).competing();
    let what = ": 16 threads, each pCPU as likely: 16 modules x 0.5 x 0.5; theirs: a PM's own default";
    items.push(counted("IV-C", what.into(), Some(4.0), any, 4.0));
    let one_processor = host(Some(&distribution(0, 16)))?;
    let placed = |policy| place(&one_processor, policy).cost.competing();
    let what = |by: &str| format!(": 16 threads, placed by {by}");
    let optimal = placed(Policy::OptimalAffinity);
    items.push(counted("Figure 14", what("optimal affinity"), Some(0.0), optimal, 0.0));
    items.push(counted("Figure 14", what("corefit"), None, placed(Policy::Corefit), 0.0).unpublished());
    let what = "counted: 16 threads, time without affinities, either processor as likely for each vCPU, over optimal affinity's";
    let (at, ours) = ((Paper::P4, "Figure 14"), by_chance());
    items.push(Item::new(at, what, Some(1.046), Some(ours), &Rule::Within(2.0)).fitted(super::DECODER));
    Ok(items)
}

/// Time of 16 vCPUs that ran anywhere before, over that of one on each module. Xen 4.4 wakes a vCPU where it was if that is
/// idle (`__runq_tickle`), later gives it a module of its own on its processor, and moves it to the other one only if that is
/// twice as idle: each division from 5 and 11 to 11 and 5 stays. With 8 + m on a processor, m of its 8 modules compete,
/// and work that is divided as it is asked for takes 1 / (1 - loss m / 16) as long.
fn by_chance() -> f64 {
    let loss = 2.0 * (1.0 - 1.0 / 1.38);
    let ways = |n: u32| (1..=n).fold(1.0, |ways, i| ways * f64::from(17 - i) / f64::from(i));
    let time = |n: u32| 1.0 / (1.0 - loss * f64::from(n.abs_diff(8).min(3)) / 16.0);
    (0..=16).map(|n| ways(n) * time(n)).sum::<f64>() / f64::from(1 << 16)
}

#[cfg(test)]
mod tests {
    use super::super::super::Said;
    use super::*;

    #[test]
    fn eight_threads_fill_the_node_that_is_preferred_and_eight_modules_where_none_is() {
        let topology: Topology = OPTERON.parse().unwrap();
        let second = distribution(0, 16);
        let used = |preferred: &str, busy| filled(&topology, &second, &preferred.parse().unwrap(), busy);
        assert_eq!(used("0-7,16-23", 8).to_string(), "16-23");
        assert_eq!(used("16-31", 8).to_string(), "16,18,20,22,24,26,28,30");
        assert_eq!(used("0-7,16-23", 10).to_string(), "16-24,26");
    }

    #[test]
    fn every_count_is_as_published_or_follows_from_the_text() {
        let items = items().unwrap();
        assert_eq!(items.len(), 9 + 16 + 3 + 1);
        let wrong: Vec<&Item> = items.iter().filter(|item| item.ok != Some(true)).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    }

    #[test]
    fn only_numbers_that_the_paper_prints_are_theirs_and_nobody_published_corefits() {
        let items = items().unwrap();
        let printed = items.iter().filter(|item| item.theirs.is_some());
        let printed: Vec<(&str, Option<f64>)> = printed.map(|item| (item.figure, item.theirs)).collect();
        let theirs = [("Figure 6, 7", 7.0), ("IV-C", 4.0), ("Figure 14", 0.0), ("Figure 14", 1.046)];
        assert_eq!(printed, theirs.map(|(figure, theirs)| (figure, Some(theirs))));
        for item in &items {
            assert_eq!(item.said == Said::Ours, item.what.ends_with("placed by corefit"), "{item:?}");
        }
    }
}
