//! P5, Figures 6 to 8: jobs of three VMs one after the other, overlapping first come first served, and with priorities.
//!
//! The paper prints three mean turnover times of one set of nine jobs and not the set, so a thousand random sets are run and
//! the published ratios are placed among theirs. As in the paper: three VMs of 4 vCPUs that begin with one, jobs that take
//! 16 to 56 s alone, 6 pCPUs (8 less the two of Dom0), a random interval before each job of a VM. Ours, for the paper prints
//! none: 4 threads a job, intervals of 0 to 20 s (a job waits for the one before it), VM 0 is the important one. Without overlap
//! means that the other two VMs have no jobs. Ours, too: FTDS without AISD, busy VMs that ask for what they wanted before, a pCPU to spare
//! where nobody else wants it, and one that is guaranteed.

use std::ops::Range;
use std::time::Duration;

use anyhow::{Result, anyhow};
use corefit_core::Random;
use corefit_core::decide::{Arbiter, Forecast, Policy, Rule as VmRule, Sizer};
use corefit_core::machine::Machine;
use corefit_sim::{Program, Sim, SimMachine, Spec};

use super::sizing::seconds;
use super::testbed::spec;
use super::{Effort, Item, Paper, Rule};
use crate::named::{name, named};
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
/// Job sets, if nobody says otherwise.
const SETS: Range<u64> = 0..1000;
/// Between two looks of the controller; XenMVM's own is not printed.
const INTERVAL_MS: u64 = 1000;

/// Who decides, in the place of what is published, and which job sets.
#[derive(clap::Args)]
pub(super) struct Policies {
    /// P5's job sets and P2's numbers of vCPUs: what VMs are going to want, by ewma, pid, ftds, aisd [default: ftds]
    #[arg(long, value_name = "POLICY", value_parser = named::<Forecast>, conflicts_with = "sizes")]
    pub(super) demand: Option<Forecast>,
    /// P5's Figure 8, against first come first served, and P2's numbers of vCPUs: who is served first: none, fcfs, priority,
    /// max-min [default: priority; P2: none]
    #[arg(long, value_name = "POLICY", value_parser = named::<Arbiter>, conflicts_with = "sizes")]
    pub(super) arbitrate: Option<Arbiter>,
    /// P5's job sets by number, the last one not included [default: 0..1000]
    #[arg(long, value_name = "I..J", value_parser = crate::sim::range, conflicts_with = "sizes")]
    pub(super) sets: Option<(usize, usize)>,
}

/// The published ones.
const DEMAND: Forecast = Forecast::Ftds;
const ARBITRATE: Arbiter = Arbiter::Priority;

impl Policies {
    /// A policy was chosen.
    pub(super) fn any(&self) -> bool {
        self.demand.is_some() || self.arbitrate.is_some()
    }
}

/// Length (alone, s) of each job, and the interval before it (s), by VM.
type Jobs = [[(f64, f64); JOBS]; VMS];

pub(super) fn items(effort: Effort, policies: &Policies) -> Result<Vec<Item>> {
    if effort == Effort::None {
        return Ok(vec![]);
    }
    of_sets(policies.sets.map_or(SETS, |(from, to)| from as u64..to as u64), policies)
}

fn of_sets(sets: Range<u64>, policies: &Policies) -> Result<Vec<Item>> {
    let (demand, arbitrate) = (policies.demand.unwrap_or(DEMAND), policies.arbitrate.unwrap_or(ARBITRATE));
    let sets: Vec<u64> = sets.collect();
    let of = |seed: &u64| of_set(*seed, demand, arbitrate);
    let ratios: Result<Vec<(f64, f64)>> =
        parallel::map(&sets, parallel::cpus(), "P5, job sets", of).into_iter().collect();
    let (overlap, priority): (Vec<f64>, Vec<f64>) = ratios?.into_iter().unzip();
    let served = if arbitrate == ARBITRATE { "priorities".into() } else { name(arbitrate) };
    let by = if demand == DEMAND { String::new() } else { format!(", demand by {}", name(demand)) };
    let mut items = vec![];
    for (figure, what, theirs, values, published) in [
        (
            "Figure 7",
            "overlapping first come first served over one after the other",
            48.02 / 29.24,
            overlap,
            demand == DEMAND,
        ),
        (
            "Figure 8",
            format!("{served} over first come first served").as_str(),
            38.20 / 48.02,
            priority,
            demand == DEMAND && arbitrate == ARBITRATE,
        ),
    ] {
        let both = place(figure, &format!("turnover, {what}{by}"), theirs, values);
        let judge = |item: Item| {
            if published { item } else { item.not_judged("published, with ftds and priorities") }
        };
        items.extend(both.map(judge));
    }
    Ok(items)
}

/// The published ratio among those of the sets.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1,000 sets")]
fn place(figure: &'static str, what: &str, theirs: f64, mut values: Vec<f64>) -> [Item; 2] {
    values.sort_by(f64::total_cmp);
    let part = |p: f64| values[((values.len() - 1) as f64 * p).round() as usize];
    let below = values.iter().filter(|v| **v < theirs).count() as f64 / values.len() as f64 * 100.0;
    let at = (Paper::P5, figure);
    let n = values.len();
    let sets =
        format!("{what}: median of {n} sets (5 % below {:.2}, 95 % below {:.2})", part(0.05), part(0.95));
    [
        Item::new(at, sets, Some(theirs), Some(part(0.5)), &Rule::Effect(25.0)),
        Item::new(at, format!("{what}: sets below theirs, %"), None, Some(below), &Rule::Between(2.5, 97.5))
            .unpublished(),
    ]
}

/// Mean turnover of a set: overlapping over apart, and as `arbitrate` serves over first come first served.
fn of_set(seed: u64, demand: Forecast, arbitrate: Arbiter) -> Result<(f64, f64)> {
    let mut random = Random(seed);
    let mut jobs: Jobs = [[(0.0, 0.0); JOBS]; VMS];
    for job in jobs.as_flattened_mut() {
        *job = (16.0 + 40.0 * random.unit(), 20.0 * random.unit());
    }
    let mut apart = 0.0;
    for vm in 0..VMS {
        apart += turnover(&jobs, &[vm], (demand, Arbiter::Fcfs), seed)?;
    }
    let all: Vec<usize> = (0..VMS).collect();
    let fcfs = turnover(&jobs, &all, (demand, Arbiter::Fcfs), seed)?;
    let other = turnover(&jobs, &all, (demand, arbitrate), seed)?;
    Ok((fcfs / apart, other / fcfs))
}

/// Time from the beginnings to the ends of all jobs of some VMs, the others having none, s in all.
fn turnover(jobs: &Jobs, busy: &[usize], (demand, arbitrate): (Forecast, Arbiter), seed: u64) -> Result<f64> {
    let machine = SimMachine::new(Sim::new(&host(jobs, busy, seed)?)?, "P5", true);
    let important = VmRule { name: "vm-0".into(), priority: Some(1), ..VmRule::default() };
    let policy = Policy {
        arbitrate,
        demand,
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
    use super::super::Said;
    use super::*;

    #[test]
    fn a_job_alone_takes_its_length_and_what_it_waits_for_its_vcpus() {
        let jobs: Jobs = [[(16.0, 20.0); JOBS]; VMS];
        let mean = turnover(&jobs, &[1], (DEMAND, Arbiter::Fcfs), 1).unwrap() / JOBS as f64;
        // It begins with one vCPU, and eleven looks later it is known to be busy.
        assert!((20.0..27.0).contains(&mean), "{mean}");
    }

    #[test]
    fn every_policy_rules_a_job_set_and_only_the_published_ones_are_judged() {
        let of = |demand, arbitrate| of_sets(0..1, &Policies { demand, arbitrate, sets: None }).unwrap();
        let numbers = |items: &[Item]| (items[0].ours.unwrap(), items[2].ours.unwrap());
        let published = of(None, None);
        assert!(published.iter().all(|item| item.ok.is_some()));
        let said: Vec<Said> = published.iter().map(|item| item.said).collect();
        assert_eq!(
            said,
            [Said::Number, Said::Ours, Said::Number, Said::Ours],
            "how sets lie is nobody's but ours"
        );
        for arbitrate in [Arbiter::None, Arbiter::Fcfs, Arbiter::MaxMin] {
            let items = of(None, Some(arbitrate));
            assert_eq!(numbers(&items).0, numbers(&published).0);
            assert_eq!(numbers(&items).1 == 1.0, arbitrate == Arbiter::Fcfs, "{arbitrate:?}");
            assert!(numbers(&items).1 != numbers(&published).1, "{arbitrate:?}");
            assert!(items[..2].iter().all(|item| item.ok.is_some()), "Figure 7 is first come first served");
            assert!(items[2..].iter().all(|item| item.ok.is_none() && item.what.contains(&name(arbitrate))));
        }
        for demand in [Forecast::Ewma, Forecast::Pid, Forecast::Aisd] {
            let items = of(Some(demand), None);
            assert!(numbers(&items).0 != numbers(&published).0, "{demand:?}");
            let by = format!("demand by {}", name(demand));
            assert!(items.iter().all(|item| item.ok.is_none() && item.what.contains(&by)), "{demand:?}");
        }
    }
}
