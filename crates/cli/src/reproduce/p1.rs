//! P1, Figure 6: sequential work on one vCPU wastes what the others are given. Figure 5 and 7: `figure5.rs`, `figure7.rs`.

mod figure5;
mod figure7;
mod types;

use anyhow::{Context, Result};
use corefit_sim::{Limit, Program, Spec};

use super::testbed::{marks_per_s, run, spec};
use super::{Item, Paper, Rule};

const FIGURE_6: &str = include_str!("../../../../scenarios/p1-figure6.toml");

/// A unit of the figure, in which everything is counted.
const UNIT_NS: u64 = 1_000_000;
/// Units of the allocation period.
const PERIOD: u64 = 12;

pub(super) fn items() -> Result<Vec<Item>> {
    let imbalanced = spec(FIGURE_6, &[])?;
    let mut balanced = imbalanced.clone();
    let rotating = FIGURE_6.replacen("single {", "single rotate {", 1);
    balanced.vms = spec(&rotating, &[])?.vms;
    let mut proportional = imbalanced.clone();
    units(&mut proportional, &[12, 4, 4, 4]);
    // Six units of the same work in an iteration, on one vCPU with the same share.
    let mut alone = imbalanced.clone();
    let vm = alone.vms.first_mut().context("the scenario has a VM")?;
    vm.vcpus.truncate(1);
    let app = vm.apps.first_mut().context("the VM has a program")?;
    (app.threads, app.team) = (1, 1);
    app.program = Program::compile("forever { compute 6ms mark }")?;
    let speeds: Vec<f64> =
        run(&[alone, imbalanced, balanced, proportional], "P1")?.iter().map(marks_per_s).collect();
    let item = |what: &str, theirs: f64, index: usize| {
        let ours = Some(speeds[index] / speeds[0]);
        Item::new((Paper::P1, "Figure 6"), what, Some(theirs), ours, &Rule::Within(1.0))
    };
    let mut items = vec![
        item("speedup, 4 vCPUs at half a pCPU, sequential work on one", 2.0, 1),
        item("speedup, sequential work on all in turn", 4.0, 2),
        item("speedup, timeslices of 12, 4, 4 and 4 units", 4.0, 3),
    ];
    items.extend(figure5::items()?);
    items.extend(figure7::items()?);
    items.extend(types::items()?);
    Ok(items)
}

/// What each vCPU gets of a period.
fn units(spec: &mut Spec, units: &[u64]) {
    for (vcpu, &units) in spec.vms.iter_mut().flat_map(|vm| &mut vm.vcpus).zip(units) {
        let limit = Limit { quota_ns: units * UNIT_NS, period_ns: PERIOD * UNIT_NS, burst_ns: 0 };
        vcpu.limit = (units < PERIOD).then_some(limit);
    }
}
