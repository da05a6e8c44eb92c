//! P1, Figure 5: speedup of programs of type 4 when the allocation period is 24 to 192 ms.
//!
//! The programs are PARSEC's and SPLASH2X's, of which the paper prints no lengths of phases. Ours has the features that
//! define type 4: threads with unequal parts (uniformly from nothing to twice the mean) that meet after 10 ms on average,
//! fitted to the mean at 24 ms. s.lu_cb, which becomes linear, is taken to meet as often as type 4 may, after 6 ms; s.fft and
//! p.raytrace, which gain nothing, after a second. Periods are as the paper describes them (II-A): a timeslice for each
//! vCPU, of which nothing is rolled over. What it did was set the fair scheduler's latency, beside three busy VMs: the last
//! line.

use anyhow::{Context, Result};
use corefit_sim::{Program, Spec};

use super::super::testbed::{run, spec};
use super::super::{Item, Paper, Rule};
use super::figure7::FIGURE_7;

const FIGURE_5: &str = include_str!("../../../../../scenarios/p1-figure5.toml");
const PERIODS_MS: [u64; 2] = [24, 192];
/// Mean work of a thread between two meetings, ms.
const TURNS_MS: [u64; 3] = [10, 6, 1000];
const LENGTHS: &str = "lengths of phases (P1 prints none)";
/// A quarter of a pCPU: the speed of one vCPU.
const SHARE: f64 = 0.25;

pub(super) fn items() -> Result<Vec<Item>> {
    let mut specs = vec![];
    for turn in TURNS_MS {
        for period in PERIODS_MS {
            let sets = [("vm.type4.quota_period", format!("{period}ms")), ("until", "120s".into())];
            specs.push(with_program(spec(FIGURE_5, &sets)?, turn)?);
        }
    }
    for period in PERIODS_MS {
        specs.push(with_program(spec(FIGURE_7, &[("cfs.latency", format!("{period}ms"))])?, TURNS_MS[0])?);
    }
    let truths = run(&specs, "P1, Figure 5")?;
    let speedup = |program: usize, period: usize| {
        let truth = &truths[2 * program + period];
        Some(truth.vms[0].time.utilised as f64 / truth.ran_ns as f64 / SHARE)
    };
    let gain = |program: usize| Some(speedup(program, 1)? / speedup(program, 0)?);
    let item = |what: &str, theirs: f64, ours: Option<f64>, percent: f64| {
        let rule = Rule::Within(percent);
        Item::new((Paper::P1, "Figure 5"), what, Some(theirs), ours, &rule).fitted(LENGTHS)
    };
    Ok(vec![
        item("speedup of type 4, periods of 24 ms", 9.6, speedup(0, 0), 25.0),
        item("speedup of type 4, 192 ms", 11.0, speedup(0, 1), 25.0),
        item("type 4, 192 over 24 ms", 11.0 / 9.6, gain(0), 10.0),
        item("s.lu_cb, 192 ms: linear", 16.0, speedup(1, 1), 5.0),
        item("s.fft and p.raytrace, 192 over 24 ms", 1.0, gain(2), 3.0),
        item("type 4, latency of 192 over 24 ms beside busy VMs", 11.0 / 9.6, gain(3), 10.0),
    ])
}

fn with_program(mut spec: Spec, turn_ms: u64) -> Result<Spec> {
    let app = spec.vms.first_mut().and_then(|vm| vm.apps.first_mut()).context("the VM has a program")?;
    let all = turn_ms * u64::from(app.threads);
    app.program = Program::compile(&format!("forever {{ compute {all}ms split uniform 100% barrier }}"))?;
    Ok(spec)
}
