//! A program in a configuration: what all numbers of vCPUs, the formula, pCPU-Est and ours take, in as many runs as a pilot says that it
//! takes to tell.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::Result;
use corefit_core::decide::Sizer;
use corefit_sim::Spec;

use super::super::p2::SHORTAGE;
use super::super::testbed::spec;
use super::{Case, Decides, FEW, Row, Times, figures, simulate};
use crate::stats::{Mean, count};

/// Most vCPUs.
const MOST: u32 = 16;

/// With a signal and, of the ten, without one, in these runs; `None`: in as many as a pilot, the first [`FEW`], says that it takes. What is
/// told is of other runs than the pilot's: if those went on only where they are far apart, luck would end them.
pub(super) fn rows(case: &Case, runs: Option<Range<u64>>, by: Decides) -> Result<Vec<Row>> {
    let runs = match runs {
        Some(runs) => runs,
        None => FEW..FEW + figures::runs_to_tell(&in_runs(case, 0..FEW, by)?),
    };
    in_runs(case, runs, by)
}

fn in_runs(case: &Case, runs: Range<u64>, by: Decides) -> Result<Vec<Row>> {
    let mut fixed = Fixed { host: host(case, true)?, known: BTreeMap::new() };
    let silent = host(case, false)?;
    let mut costs = vec![];
    for vcpus in 1..=MOST {
        costs.push((vcpus, fixed.mean(vcpus, runs.clone())?));
    }
    let (best, cost) = costs.into_iter().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((1, f64::NAN));
    let work = simulate::SECONDS / cost;
    let bal = case.shortage.available();
    let mean = |online: &[u32]| Mean::of(online.iter().map(|&n| f64::from(n))).map_or(f64::NAN, |m| m.mean);
    let mut rows = vec![];
    for run in runs {
        let counted = seeded(&fixed.host, run);
        let est = simulate::ruled(&counted, Sizer::PcpuEst.into(), work)?;
        let est_number = match est.online[..] {
            [_] => Some(work * fixed.takes(&est.online, run)?),
            _ => None,
        };
        let formula = simulate::ruled(&counted, Sizer::VcpuBal.into(), work)?.took;
        for signal in [true, false].into_iter().filter(|signal| *signal || !case.random) {
            let host = if signal { &fixed.host } else { &silent };
            let ours = simulate::ruled(&seeded(host, run), by, work)?;
            rows.push(Row {
                program: case.long.name.clone(),
                shortage: case.shortage.name(),
                run,
                signal,
                random: case.random,
                vcpus: [f64::from(best), f64::from(bal), mean(&est.online), mean(&ours.online)],
                work,
                took: Times {
                    best: work * fixed.all(best, run)?,
                    bal: work * fixed.all(bal, run)?,
                    formula,
                    est: est.took,
                    est_number,
                    ours: ours.took,
                    ours_number: work * fixed.takes(&ours.online, run)?,
                },
                settled_s: ours.settled,
                by,
            });
        }
    }
    Ok(rows)
}

pub(super) fn host(case: &Case, signal: bool) -> Result<Spec> {
    let Case { long, shortage, .. } = case;
    let (key, value) = shortage.set();
    let sets = [
        ("vm.npb.program", long.text.clone()),
        ("vm.npb.threads", long.threads.to_string()),
        ("vm.npb.wait", long.wait.to_owned()),
        // Our programs, not the paper's host: each section is one meeting.
        ("vm.npb.runtime", "libomp".to_owned()),
        ("vm.npb.progress", signal.to_string()),
        ("until", "3600s".to_owned()),
        // Of constant speed: what is judged is the number of vCPUs.
        ("governor.slowest", "1".to_owned()),
        (key, value),
    ];
    spec(SHORTAGE, &sets)
}

fn seeded(host: &Spec, run: u64) -> Spec {
    Spec { seed: host.seed + run, ..host.clone() }
}

/// What fixed numbers of vCPUs take, each run for [`simulate::SECONDS`].
struct Fixed {
    host: Spec,
    /// By the run and the numbers of all VMs.
    known: BTreeMap<(u64, Vec<u32>), f64>,
}

impl Fixed {
    /// What work of 1 takes with so many vCPUs, VM by VM, s.
    fn takes(&mut self, online: &[u32], run: u64) -> Result<f64> {
        let key = (run, online.to_vec());
        if let Some(&known) = self.known.get(&key) {
            return Ok(known);
        }
        let cost = 1.0 / simulate::fixed(&seeded(&self.host, run), online)?;
        self.known.insert(key, cost);
        Ok(cost)
    }

    /// With as many for each VM.
    fn all(&mut self, vcpus: u32, run: u64) -> Result<f64> {
        self.takes(&vec![vcpus; self.host.vms.len()], run)
    }

    /// The mean of runs.
    fn mean(&mut self, vcpus: u32, runs: Range<u64>) -> Result<f64> {
        let n = usize::try_from(runs.end - runs.start)?;
        let costs: Vec<f64> = runs.map(|run| self.all(vcpus, run)).collect::<Result<_>>()?;
        Ok(costs.iter().sum::<f64>() / count(n))
    }
}
