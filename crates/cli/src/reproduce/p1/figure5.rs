//! P1, Figure 5: speedup of programs of type 4 when the allocation period is 24 to 192 ms.
//!
//! The paper's period is the fair scheduler's latency, beside three busy VMs; the programs are PARSEC's and SPLASH2X's, of
//! which it prints no lengths of phases. Ours: the library's `type4` for the mean of all; the same work in turns of other
//! lengths for those at both ends. At 192 ms s.lu_cb becomes linear, so what it leaves over has to come back within
//! that time; s.fft and p.raytrace gain nothing, so theirs takes much longer. These lengths are fitted.

use anyhow::{Context, Result};
use corefit_sim::{Program, Spec};

use super::super::testbed::{run, spec};
use super::super::{Item, Paper, Rule};

const FIGURE_5: &str = include_str!("../../../../../scenarios/p1-figure5.toml");
const PERIODS_MS: [u64; 2] = [24, 192];
/// All work of a turn, ms: of it a part is sequential, as in the library's `type4`.
const TURNS_MS: [(&str, u64); 3] = [("type 4", 100), ("short turns", 25), ("long turns", 10_000)];
const LENGTHS: &str = "lengths of phases (P1 prints none)";

pub(super) fn items() -> Result<Vec<Item>> {
    let mut specs = vec![];
    for (_, turn_ms) in TURNS_MS {
        specs.push(alone(turn_ms)?);
        for period_ms in PERIODS_MS {
            specs.push(on_vcpus(turn_ms, period_ms)?);
        }
    }
    let truths = run(&specs, "P1, Figure 5")?;
    #[expect(clippy::cast_precision_loss, reason = "counts and ns of a run")]
    let utilised = |index: usize| truths[index].vms[0].time.utilised as f64 / truths[index].ran_ns as f64;
    let speedup = |program: usize, period: usize| {
        Some(utilised(3 * program + 1 + period) / utilised(3 * program))
    };
    let gain = |program: usize| Some(speedup(program, 1)? / speedup(program, 0)?);
    let item = |what: &str, theirs: Option<f64>, ours: Option<f64>, rule: &Rule| {
        Item::new((Paper::P1, "Figure 5"), what, theirs, ours, rule).fitted(LENGTHS)
    };
    Ok(vec![
        item("speedup of type 4, latency of 24 ms", Some(9.6), speedup(0, 0), &Rule::Within(25.0)),
        item("speedup of type 4, 192 ms", Some(11.0), speedup(0, 1), &Rule::Within(25.0)),
        item("type 4, 192 over 24 ms", Some(11.0 / 9.6), gain(0), &Rule::Within(10.0)),
        item("turns of 25 ms of work (s.lu_cb): linear at 192 ms", Some(16.0), speedup(1, 1), &Rule::Within(5.0)),
        item("the same at 24 ms: not linear", None, speedup(1, 0), &Rule::AtMost(15.2)),
        item("turns of 10 s (s.fft, p.raytrace), 192 over 24 ms", Some(1.0), gain(2), &Rule::Within(3.0)),
    ])
}

/// A part of all work is sequential, the rest parallel: 1 to 4, as in the library's `type4`.
fn text(turn_ms: u64, split: bool) -> String {
    let (sequential, parallel) = (turn_ms * 1000 / 5, turn_ms * 4000 / 5);
    if split {
        format!(
            "forever {{ single {{ compute {sequential}us }} barrier compute {parallel}us split normal 5% barrier }}"
        )
    } else {
        format!("forever {{ compute {}us }}", sequential + parallel)
    }
}

fn on_vcpus(turn_ms: u64, period_ms: u64) -> Result<Spec> {
    let mut spec = spec(FIGURE_5, &[("cfs.latency", format!("{period_ms}ms"))])?;
    let app = spec.vms.first_mut().and_then(|vm| vm.apps.first_mut()).context("the VM has a program")?;
    app.program = Program::compile(&text(turn_ms, true))?;
    Ok(spec)
}

/// The same work on one vCPU with the same share.
fn alone(turn_ms: u64) -> Result<Spec> {
    let mut alone = on_vcpus(turn_ms, PERIODS_MS[0])?;
    alone.hardware.cores = 1;
    for vm in &mut alone.vms {
        vm.vcpus.truncate(1);
        for app in &mut vm.apps {
            (app.threads, app.team) = (1, 1);
        }
    }
    let app = alone.vms.first_mut().and_then(|vm| vm.apps.first_mut()).context("the VM has a program")?;
    app.program = Program::compile(&text(turn_ms, false))?;
    Ok(alone)
}
