//! From tables to a scheduler.

use super::ScenarioError;
use super::table::Table;
use crate::spec::{CfsSpec, Credit2Spec, CreditSpec, Policy, QueueOf, RelaxedSpec, StrictSpec};

pub(super) fn policy(root: &Table<'_>) -> Result<Policy, ScenarioError> {
    let (cfs, credit, credit2) = (cfs(root)?, credit_spec(root)?, credit2(root)?);
    let choices = [
        ("cfs", Policy::Cfs(cfs)),
        ("eevdf", Policy::Cfs(CfsSpec { deadlines: true, ..cfs })),
        ("credit", Policy::Credit(credit)),
        ("credit2", Policy::Credit2(credit2)),
        ("strict", Policy::Strict(strict(root)?)),
    ];
    if root.value("scheduler").is_none() {
        for key in ["credit", "credit2", "strict"] {
            let counts = format!("counts with scheduler = {key:?} only; give that, too, or leave it out");
            root.none_of(&[key], &counts)?;
        }
    }
    root.choice("scheduler", choices[0].1, &choices)
}

fn credit2(root: &Table<'_>) -> Result<Credit2Spec, ScenarioError> {
    let usual = Credit2Spec::default();
    let Some(table) = root.table("credit2")? else { return Ok(usual) };
    let queues = [
        ("core", QueueOf::Core),
        ("node", QueueOf::Node),
        ("socket", QueueOf::Socket),
        ("all", QueueOf::All),
    ];
    let spec = Credit2Spec {
        credit_ns: table.time_from("credit", usual.credit_ns, 100_000)?,
        shortest_ns: table.time_from("shortest", usual.shortest_ns, 1000)?,
        longest_ns: table.time_from("longest", usual.longest_ns, 100_000)?,
        ratelimit_ns: table.time("ratelimit", usual.ratelimit_ns)?,
        resist_ns: table.time("resist", usual.resist_ns)?,
        queue: table.choice("queue", usual.queue, &queues)?,
        balance_ns: table.time_from("balance", usual.balance_ns, 100_000)?,
    };
    table.finish()?;
    Ok(spec)
}

fn strict(root: &Table<'_>) -> Result<StrictSpec, ScenarioError> {
    let usual = StrictSpec::default();
    let Some(table) = root.table("strict")? else { return Ok(usual) };
    let spec = StrictSpec {
        slice_ns: table.time_from("slice", usual.slice_ns, 100_000)?,
        tick_ns: table.time_from("tick", usual.tick_ns, 10_000)?,
    };
    table.finish()?;
    Ok(spec)
}

/// `relaxed = {}`, with parameters or without.
pub(super) fn relaxed(root: &Table<'_>, policy: &Policy) -> Result<Option<RelaxedSpec>, ScenarioError> {
    let usual = RelaxedSpec::default();
    let Some(table) = root.table("relaxed")? else { return Ok(None) };
    if matches!(policy, Policy::Strict(_)) {
        return root
            .error("relaxed", "co-scheduling is strict or relaxed; give another scheduler than strict");
    }
    let spec = RelaxedSpec {
        skew_ns: table.time("skew", usual.skew_ns)?,
        tick_ns: table.time_from("tick", usual.tick_ns, 10_000)?,
    };
    table.finish()?;
    Ok(Some(spec))
}

/// No longer than the kernel takes (`max_sched_granularity_ns`, kernel/sysctl.c).
fn short(table: &Table<'_>, key: &'static str, usual: u64, least: u64) -> Result<u64, ScenarioError> {
    match table.time_from(key, usual, least)? {
        ns @ 0..=1_000_000_000 => Ok(ns),
        _ => table.error(key, "the kernel takes no such time; give 1s or less"),
    }
}

fn cfs(root: &Table<'_>) -> Result<CfsSpec, ScenarioError> {
    let usual = CfsSpec::default();
    let Some(table) = root.table("cfs")? else { return Ok(usual) };
    if root.value("scheduler").is_none() {
        let counts = "counts with scheduler = \"eevdf\" only; give that, too, or leave it out";
        table.none_of(&["base_slice"], counts)?;
    }
    let spec = CfsSpec {
        latency_ns: short(&table, "latency", usual.latency_ns, 1000)?,
        granularity_ns: short(&table, "granularity", usual.granularity_ns, 1000)?,
        wakeup_ns: short(&table, "wakeup", usual.wakeup_ns, 0)?,
        tick_ns: short(&table, "tick", usual.tick_ns, 0)?,
        balance_ns: table.time_from("balance", usual.balance_ns, 100_000)?,
        bandwidth_slice_ns: table.time_from("bandwidth_slice", usual.bandwidth_slice_ns, 1000)?,
        deadlines: false,
        base_slice_ns: short(&table, "base_slice", usual.base_slice_ns, 100_000)?,
        groups: table.boolean("groups", usual.groups)?,
    };
    table.finish()?;
    Ok(spec)
}

fn credit_spec(root: &Table<'_>) -> Result<CreditSpec, ScenarioError> {
    let usual = CreditSpec::default();
    let Some(table) = root.table("credit")? else { return Ok(usual) };
    let spec = CreditSpec {
        slice_ns: table.time_from("slice", usual.slice_ns, 100_000)?,
        tick_ns: table.time_from("tick", usual.tick_ns, 100_000)?,
        ratelimit_ns: table.time("ratelimit", usual.ratelimit_ns)?,
        boost: table.boolean("boost", usual.boost)?,
    };
    table.finish()?;
    Ok(spec)
}
