//! P1, Figure 7: fork and join with one sequential unit for eight parallel ones, beside three busy VMs.
//!
//! Speedup is over one vCPU with the same share, a quarter of a pCPU. As published: 16 vCPUs, one on each pCPU, the
//! program's own round robin for the balanced version. Ours, for the paper prints none: the neighbours run a busy thread on
//! each of their vCPUs, waiting blocks, and "in proportion to the workload" means weights of vCPUs of 3 to 1 (1.5 ms of
//! work in each turn for the one with the sequential unit, 0.5 ms for the others). Each VM is a control group, whose weight its
//! runnable vCPUs divide: the VMM "first allocates CPU time to VMs", then to vCPUs (II-A). The 16
//! vCPUs of the parallel part weigh a sixteenth of it each when they wake up, and do not preempt busy neighbours (`wakeup_gran`): that
//! wait is what a turn takes, so neither remedy gains. Without groups (`[cfs] groups = false`) vCPUs that sleep most of the time preempt whenever they wake up. The
//! same is run a second time with quotas of a quarter in 24 ms in the place of the neighbours: nothing of that was published.

use anyhow::{Context, Result};
use corefit_sim::{Limit, Program, Spec};

use super::super::testbed::{run, spec};
use super::super::{Item, Paper, Rule};

pub(super) const FIGURE_7: &str = include_str!("../../../../../scenarios/p1-figure7.toml");
/// The period of the quotas, ns: P1's allocation period.
const PERIOD_NS: u64 = 24_000_000;
const NEAR: Rule = Rule::Within(25.0);

pub(super) fn items() -> Result<Vec<Item>> {
    let specs = [
        alone()?,
        spec(FIGURE_7, &[])?,
        rotating()?,
        weights(spec(FIGURE_7, &[])?),
        quotas(spec(FIGURE_7, &[])?, 1, 1),
        quotas(rotating()?, 1, 1),
        quotas(spec(FIGURE_7, &[])?, 3, 1),
    ];
    let truths = run(&specs, "P1, Figure 7")?;
    let marks = |index: usize| {
        let truth = &truths[index];
        truth.vms[0].apps[0].marks as f64 * 1e9 / truth.ran_ns as f64
    };
    let speedup = |index: usize| Some(marks(index) / marks(0));
    let item = |what: &str, theirs: Option<f64>, ours: Option<f64>, rule: &Rule| {
        Item::new((Paper::P1, "Figure 7"), what, theirs, ours, rule)
    };
    let over = |index: usize, other: usize| Some(marks(index) / marks(other));
    Ok(vec![
        item("speedup beside three busy VMs, sequential work on one vCPU", Some(4.8), speedup(1), &NEAR),
        item("speedup, sequential work on all in turn", Some(5.9), speedup(2), &NEAR),
        item("speedup, weights of vCPUs in proportion to their work", Some(6.1), speedup(3), &NEAR),
        item("balanced over imbalanced", Some(5.9 / 4.8), over(2, 1), &Rule::AtLeast(1.05)),
        item("proportional over imbalanced", Some(6.1 / 4.8), over(3, 1), &Rule::AtLeast(1.05)),
        item("with quotas of a quarter: speedup, imbalanced", None, speedup(4), &Rule::AtMost(9.0))
            .unpublished(),
        item("with quotas: balanced over imbalanced", None, over(5, 4), &Rule::AtLeast(1.05)).unpublished(),
        item("with quotas: proportional over imbalanced", None, over(6, 4), &Rule::AtLeast(1.05))
            .unpublished(),
    ])
}

/// The same work of a turn on one vCPU, beside three others.
fn alone() -> Result<Spec> {
    let mut alone = spec(FIGURE_7, &[])?;
    alone.hardware.cores = 1;
    for vm in &mut alone.vms {
        vm.vcpus.truncate(1);
        for app in &mut vm.apps {
            (app.threads, app.team) = (1, 1);
        }
    }
    let vm = alone.vms.first_mut().context("the scenario has a VM")?;
    vm.apps.first_mut().context("the VM has a program")?.program =
        Program::compile("forever { compute 9ms mark }")?;
    Ok(alone)
}

fn rotating() -> Result<Spec> {
    spec(&FIGURE_7.replacen("single {", "single rotate {", 1), &[])
}

/// Weights of 3 to 1 with the sum that 16 equal ones have.
fn weights(mut spec: Spec) -> Spec {
    for (number, vcpu) in spec.vms.iter_mut().take(1).flat_map(|vm| &mut vm.vcpus).enumerate() {
        vcpu.weight = if number == 0 { 16 * 1024 * 3 / 18 } else { 16 * 1024 / 18 };
    }
    spec
}

/// Quotas in the place of neighbours: a quarter of 16 pCPUs, divided among the first vCPU and the others.
fn quotas(mut spec: Spec, first: u64, other: u64) -> Spec {
    spec.vms.truncate(1);
    for vm in &mut spec.vms {
        let count = u64::try_from(vm.vcpus.len()).unwrap_or(1);
        let total = count * PERIOD_NS / 4;
        let parts = first + other * (count - 1);
        for (number, vcpu) in vm.vcpus.iter_mut().enumerate() {
            let quota_ns = total * if number == 0 { first } else { other } / parts;
            vcpu.limit = Some(Limit { quota_ns, period_ns: PERIOD_NS, burst_ns: 0 });
        }
    }
    spec
}
