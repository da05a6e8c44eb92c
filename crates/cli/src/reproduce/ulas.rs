//! P5, IV-A: two threads run faster on cores that do not share an L2, and that is where ULAS puts them.

use anyhow::{Context, Result};
use corefit_core::place::{Policy, Problem, Vcpu, Vm, place};

use super::testbed::{run, seconds, spec};
use super::{Item, Paper, Rule};

const ULAS: &str = include_str!("../../../../scenarios/p5-ulas.toml");

/// The two programs whose cache misses the paper prints (Table I), and what it prints of all: from 4.5 to 32.52 %.
const PROGRAMS: [&str; 2] = ["lu", "is"];
const LEAST: f64 = 4.5;
const MOST: f64 = 32.52;

pub(super) fn items() -> Result<Vec<Item>> {
    let chosen = chosen()?;
    let mut items = vec![Item::new(
        (Paper::P5, "Table I"),
        format!("pairs of threads that share an L2 where ULAS puts them ({chosen})"),
        None,
        Some(f64::from(u8::from(matches!(chosen.as_str(), "0-1" | "2-3")))),
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
        for (what, theirs, rule) in [
            ("the least of all programs", LEAST, Rule::AtLeast(LEAST)),
            ("the most of all programs", MOST, Rule::AtMost(MOST)),
        ] {
            let what = format!("gain by ULAS, {program}, %; theirs: {what}");
            items.push(
                Item::new((Paper::P5, "Figure 4"), what, Some(theirs), gain, &rule)
                    .fitted("class.data.footprint_kib")
                    .fitted_too("class.data.without_cache"),
            );
        }
    }
    Ok(items)
}

/// The pCPUs that ULAS takes for two threads.
fn chosen() -> Result<String> {
    let vcpu = |id| Vcpu { id, demand: 1.0, ..Vcpu::default() };
    let vms = vec![Vm { name: "npb".into(), weight: 1.0, vcpus: vec![vcpu(0), vcpu(1)], ..Vm::default() }];
    let topology = "2 sockets x 1 l2 x 2 cores".parse()?;
    let found = place(&Problem { topology, vms, ..Problem::default() }, Policy::Ulas);
    let seats = found.vms.iter().flat_map(|vm| &vm.vcpus);
    let homes = seats.map(|seat| seat.home.map(|cpu| cpu.0.to_string())).collect::<Option<Vec<String>>>();
    Ok(homes.context("ULAS found no pCPU")?.join(","))
}
