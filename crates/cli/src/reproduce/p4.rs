//! P4: modules of which both cores are busy, as vCPU and node affinities have it.

use anyhow::Result;
use corefit_sim::Spec;

use super::testbed::{run, spec};
use super::{Item, Paper, Rule};

const OPTERON: &str = include_str!("../../../../scenarios/p4-modules.toml");

/// pCPUs of nodes 0 and 2, which xl sets as node affinity.
const XL: &str = "0-7,16-23";
/// One core of each module.
const EVENS: &str = "0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30";

/// So many threads in a VM of 16 vCPUs with these affinities.
fn host(affinity: &str, node_affinity: &str, threads: u32) -> Result<Spec> {
    spec(
        OPTERON,
        &[
            ("vm.fib.affinity", affinity.to_owned()),
            ("vm.fib.soft", node_affinity.to_owned()),
            ("vm.fib.threads", threads.to_string()),
        ],
    )
}

pub(super) fn items() -> Result<Vec<Item>> {
    let hosts = [
        host("16-31", XL, 8)?,
        host("16-31", XL, 12)?,
        host("16-31", XL, 16)?,
        host(XL, XL, 8)?,
        host("16-31", "16-31", 8)?,
        host("0-6,16-24", XL, 16)?,
        host("0-6,16-24", XL, 8)?,
        host(EVENS, XL, 16)?,
        host("0-31", "0-31", 16)?,
    ];
    let modules: Vec<f64> = run(&hosts, "P4")?.iter().map(|truth| truth.competing_cores).collect();
    let item = |figure, what: &str, theirs, ours: f64, rule: Rule| {
        Item::new((Paper::P4, figure), what, theirs, Some(ours), &rule)
    };
    Ok(vec![
        item(
            "Figure 6",
            "competing modules, 0-16, 8 threads: four full modules",
            None,
            modules[0],
            Rule::Exactly(4.0),
        ),
        item(
            "Figure 6",
            "0-16, 12 threads, beyond those of 8: no more",
            None,
            modules[1] - modules[0],
            Rule::Exactly(0.0),
        ),
        item("Figure 6", "0-16, 16 threads: all eight", None, modules[2], Rule::Exactly(8.0)),
        item("Figure 6", "8-8, 8 threads: one core of each module", None, modules[3], Rule::Exactly(0.0)),
        item(
            "Figure 11",
            "0-16 with the right node affinity, 8 threads",
            None,
            modules[4],
            Rule::Exactly(0.0),
        ),
        item("Figure 7", "7-9, 16 threads: nine modules used", Some(7.0), modules[5], Rule::Exactly(7.0)),
        item(
            "Figure 4",
            "7-9, 8 threads, beyond those of 8-8: worse",
            None,
            modules[6] - modules[3],
            Rule::AtLeast(0.1),
        ),
        item("Figure 14", "one core per module, 16 threads", Some(0.0), modules[7], Rule::Exactly(0.0)),
        item("Figure 13", "no affinities, 16 threads: not none", None, modules[8], Rule::AtLeast(0.1)),
    ])
}
