//! P5, Figures 6 to 8: jobs of three VMs one after the other, overlapping first come first served, and with priorities.
//!
//! The paper prints three mean turnover times of one set of nine jobs and not the set, so a thousand random sets are run and
//! the published ratios are placed among theirs. As in the paper: three VMs of 4 vCPUs that begin with one, jobs that take
//! 16 to 56 s alone, 6 pCPUs (8 less the two of Dom0), a random interval before each job of a VM. Ours, for the paper prints
//! none: 4 threads a job, intervals of 0 to 20 s (a job waits for the one before it), VM 0 is the important one. Without overlap
//! means that the other two VMs have no jobs.

use std::time::Duration;

use anyhow::{Result, anyhow};
use corefit_core::decide::{Arbiter, Forecast, Policy, Rule as VmRule, Sizer};
use corefit_core::machine::Machine;
use corefit_sim::{Program, Sim, SimMachine, Spec};

use super::sizing::seconds;
use super::testbed::spec;
use super::{Effort, Item, Paper, Rule};
use crate::bench::stats::Random;
use crate::parallel;
use crate::ruled::Ruled;

const HOST: &str = r#"
scheduler = "credit"
hardware = { cores = 6 }
until = "3600s"

[[vm]]
name = "vm"
count = 3
vcpus = 4
online = 1
threads = 4
wait = "block"
program = "compute 1ns"
"#;

const VMS: usize = 3;
const JOBS: usize = 3;
/// Job sets.
const SETS: u64 = 1000;
/// Between two looks of the controller; XenMVM's own is not printed.
const INTERVAL_MS: u64 = 1000;

/// Length (alone, s) of each job, and the interval before it (s), by VM.
type Jobs = [[(f64, f64); JOBS]; VMS];

pub(super) fn items(effort: Effort) -> Result<Vec<Item>> {
    if effort == Effort::None {
        return Ok(vec![]);
    }
    let sets: Vec<u64> = (0..SETS).collect();
    let ratios: Result<Vec<(f64, f64)>> =
        parallel::map(&sets, parallel::cpus(), "P5, job sets", |seed| of_set(*seed)).into_iter().collect();
    let (overlap, priority): (Vec<f64>, Vec<f64>) = ratios?.into_iter().unzip();
    let mut items = vec![];
    for (figure, what, theirs, values) in [
        (
            "Figure 7",
            "turnover, overlapping first come first served over one after the other",
            48.02 / 29.24,
            overlap,
        ),
        ("Figure 8", "turnover, priorities over first come first served", 38.20 / 48.02, priority),
    ] {
        items.extend(place(figure, what, theirs, values));
    }
    Ok(items)
}

/// The published ratio among those of the sets.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "1,000 sets"
)]
fn place(figure: &'static str, what: &str, theirs: f64, mut values: Vec<f64>) -> [Item; 2] {
    values.sort_by(f64::total_cmp);
    let part = |p: f64| values[((values.len() - 1) as f64 * p).round() as usize];
    let below = values.iter().filter(|v| **v < theirs).count() as f64 / values.len() as f64 * 100.0;
    let at = (Paper::P5, figure);
    let n = values.len();
    let sets =
        format!("{what}: median of {n} sets (5 % below {:.2}, 95 % below {:.2})", part(0.05), part(0.95));
    [
        Item::new(at, sets, Some(theirs), Some(part(0.5)), &Rule::Within(25.0)),
        Item::new(at, format!("{what}: sets below theirs, %"), None, Some(below), &Rule::Between(2.5, 97.5)),
    ]
}

/// Mean turnover of a set: overlapping over apart, and priorities over first come first served.
fn of_set(seed: u64) -> Result<(f64, f64)> {
    let mut random = Random::new(seed);
    let mut jobs: Jobs = [[(0.0, 0.0); JOBS]; VMS];
    for job in jobs.as_flattened_mut() {
        *job = (16.0 + 40.0 * random.unit(), 20.0 * random.unit());
    }
    let mut apart = 0.0;
    for vm in 0..VMS {
        apart += turnover(&jobs, &[vm], Arbiter::Fcfs, seed)?;
    }
    let all: Vec<usize> = (0..VMS).collect();
    let fcfs = turnover(&jobs, &all, Arbiter::Fcfs, seed)?;
    let priority = turnover(&jobs, &all, Arbiter::Priority, seed)?;
    Ok((fcfs / apart, priority / fcfs))
}

/// Time from the beginnings to the ends of all jobs of some VMs, the others having none, s in all.
#[expect(clippy::cast_precision_loss, reason = "ns of a run")]
fn turnover(jobs: &Jobs, busy: &[usize], arbitrate: Arbiter, seed: u64) -> Result<f64> {
    let machine = SimMachine::new(Sim::new(&host(jobs, busy, seed)?)?, "P5", true);
    let important = VmRule { name: "vm-0".into(), priority: Some(1), ..VmRule::default() };
    let policy = Policy {
        arbitrate,
        demand: Forecast::Ftds,
        smooth: true,
        size: Sizer::None,
        interval_ms: INTERVAL_MS,
        vm: vec![important],
        ..Policy::default()
    };
    let mut host = Ruled::new(machine, policy);
    while !host.sim().unfinished().is_empty() && seconds(host.sim()) < 3600.0 {
        let next = host.step()?.next;
        host.machine.pass(next.max(Duration::from_millis(INTERVAL_MS)))?;
    }
    let truth = host.sim().truth();
    let took = |vm: &usize| Some(truth.vms[*vm].apps[0].took_ns? as f64 / 1e9);
    let all: Option<f64> = busy.iter().map(took).sum();
    let intervals: f64 = busy.iter().flat_map(|vm| jobs[*vm]).map(|(_, interval)| interval).sum();
    all.map(|all| all - intervals).ok_or_else(|| anyhow!("job set {seed} did not end within an hour"))
}

fn host(jobs: &Jobs, busy: &[usize], seed: u64) -> Result<Spec> {
    let mut spec = spec(HOST, &[])?;
    spec.seed = seed;
    for &vm in busy {
        let mut text = String::new();
        for (length, interval) in jobs[vm] {
            // Rounds of 200 ms on four vCPUs.
            let (ms, rounds) = (1000.0 * interval, (length / 0.2).round());
            text += &format!(
                "sleep {ms:.0}ms repeat {rounds} {{ parallel {{ compute 800ms split normal 3% }} }} "
            );
        }
        spec.vms[vm].apps[0].program = Program::compile(&text).map_err(|e| anyhow!("{e}"))?;
    }
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_alone_takes_its_length_and_what_it_waits_for_its_vcpus() {
        let jobs: Jobs = [[(16.0, 20.0); JOBS]; VMS];
        let mean = turnover(&jobs, &[1], Arbiter::Fcfs, 1).unwrap() / JOBS as f64;
        // It begins with one vCPU, and eleven looks later it is known to be busy.
        assert!((20.0..27.0).contains(&mean), "{mean}");
    }
}
