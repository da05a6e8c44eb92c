//! P4: modules of which both cores are busy, as vCPU and node affinities have it.

use anyhow::Result;
use corefit_sim::Spec;

use super::testbed::{run, seconds, spec};
use super::{Item, Paper, Rule};

const OPTERON: &str = include_str!("../../../../scenarios/p4-modules.toml");

/// pCPUs of nodes 0 and 2, which xl sets as node affinity.
const XL: &str = "0-7,16-23";
/// One core of each module.
const EVENS: &str = "0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30";

/// A VM of 16 vCPUs and as many threads, unless this says otherwise.
fn host(affinity: &str, node_affinity: &str, threads: u32, more: &[(&str, &str)]) -> Result<Spec> {
    let mut sets = vec![
        ("vm.fib.affinity", affinity.to_owned()),
        ("vm.fib.soft", node_affinity.to_owned()),
        ("vm.fib.threads", threads.to_string()),
    ];
    sets.extend(more.iter().map(|(key, value)| (*key, (*value).to_owned())));
    spec(OPTERON, &sets)
}

pub(super) fn items() -> Result<Vec<Item>> {
    let mut hosts = vec![
        host("16-31", XL, 4, &[])?,
        host("16-31", XL, 8, &[])?,
        host("16-31", XL, 12, &[])?,
        host("16-31", XL, 16, &[])?,
        host(XL, XL, 8, &[])?,
        host("16-31", "16-31", 8, &[])?,
        host("0-6,16-24", XL, 16, &[])?,
        host("0-6,16-24", XL, 8, &[])?,
        host(EVENS, XL, 16, &[])?,
        host("0-31", "0-31", 16, &[])?,
        // No VM: the threads of the program, under Linux.
        host("0-31", "0-31", 16, &[("scheduler", "cfs")])?,
        host("0-31", "0-31", 16, &[("scheduler", "cfs"), ("vm.fib.class", "nq")])?,
    ];
    let many = hosts.len();
    for threads in 13..=16 {
        hosts.push(host(XL, XL, threads, &[])?);
        hosts.push(host("16-31", "16-31", threads, &[])?);
    }
    let truths = run(&hosts, "P4")?;
    let modules: Vec<f64> = truths.iter().map(|truth| truth.competing_cores).collect();
    let fewer = modules[many..].chunks(2).map(|pair| pair[0] - pair[1]).sum::<f64>() / 4.0;
    let slower = seconds(&truths[7]).zip(seconds(&truths[4])).map(|(odd, even)| odd / even);
    let more = |figure, what: &str, ours: f64| {
        Item::new((Paper::P4, figure), what, None, Some(ours), &Rule::AtLeast(0.1))
    };
    let exactly = |figure, what: &str, theirs: f64, ours: f64| {
        Item::new((Paper::P4, figure), what, Some(theirs), Some(ours), &Rule::Exactly(theirs))
    };
    Ok(vec![
        more("Figure 6", "competing modules, 0-16: rise from 4 to 8 threads", modules[1] - modules[0]),
        Item::new(
            (Paper::P4, "Figure 6"),
            "0-16: rise from 8 to 12 threads: none",
            None,
            Some(modules[2] - modules[1]),
            &Rule::AtMost(0.05),
        ),
        more("Figure 6", "0-16: rise from 12 to 16 threads", modules[3] - modules[2]),
        more("Figure 6", "8 threads: those of 0-16 beyond those of 8-8", modules[1] - modules[4]),
        more("Figure 11", "8 threads: of 0-16 beyond the right node affinity's", modules[1] - modules[5]),
        more("Figure 11", "13 to 16 threads: of 8-8 beyond 0-16's with the right one, mean", fewer),
        exactly("Figure 7", "7-9, 16 threads: nine modules used", 7.0, modules[6]),
        Item::new(
            (Paper::P4, "Figure 4"),
            "8 threads: time in 7-9 over time in 8-8",
            None,
            slower,
            &Rule::AtLeast(1.01),
        )
        .fitted("class.decoder.beside_sibling"),
        exactly("Figure 14", "one core per module, 16 threads", 0.0, modules[8]),
        more("Figure 13", "no affinities, 16 threads: not none", modules[9]),
        exactly("IV-C", "a PM's own default, 16 threads", 4.0, modules[10]),
        exactly("V-A", "the same, N-Queen", 5.2, modules[11]),
    ])
}
