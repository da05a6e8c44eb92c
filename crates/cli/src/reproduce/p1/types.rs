//! P1, III and IV-A: the four types on a machine of their own and on a VM beside three busy ones; Figures 2, 3 and 4.
//!
//! P1 prints the mean speedups of its types, but of its 27 programs only the types. Ours are families that are spread evenly over the
//! range by which P1 defines a type, nothing else: parallelism from 1 or 12 cores to 12 or 16, in four steps (means 6.5
//! and 14); work between two meetings of a thread over the two decades below or above the 6 ms of a timeslice, in three
//! steps; what is missing in parallelism either a sequential part with equal parallel ones, or unequal parts as far as these
//! can be the cause. That makes 24 programs of each type. Nothing is fitted to a number of P1; the ways in which programs
//! differ are named as settings of ours.
//!
//! The testbed is Figure 7's: 16 pCPUs, each vCPU on one of them, 3 VMs with a busy thread on each vCPU. A machine of its own is the
//! same without those VMs, and without what halting and kicking a vCPU cost.
//! Speedup is CPU time used for work, over what one vCPU of the same share (or one core) has: with one thread nobody waits.
//! Efficiency is that of P1's terms (II-B), potential that of IV-A, from what the threads ran in each 24 ms on the machine.

use anyhow::{Context, Result};
use corefit_core::profile::{Series, potential, steps};
use corefit_sim::{Program, Sim, Spec};

use super::super::testbed::spec;
use super::super::{Item, Paper, Rule};
use super::figure7::FIGURE_7;
use crate::parallel;

const PROGRAMS: &str = "how programs of a type differ (P1 prints only their types)";
/// Cores, threads and vCPUs.
const CORES: f64 = 16.0;
/// Of a pCPU that a vCPU gets.
const SHARE: f64 = 0.25;
/// The allocation period, ns.
const PERIOD_NS: u64 = 24_000_000;
/// A quarter of it, us: who blocks more often synchronises often.
const TIMESLICE_US: f64 = 6_000.0;
/// Cores, where low parallelism begins, becomes high, and ends; and into how many parts each is divided.
const PARALLELISM: [f64; 3] = [1.0, 12.0, CORES];
const STEPS: u32 = 4;
/// Work between meetings goes up to so many times a timeslice, or down likewise; in so many steps.
const DECADES: f64 = 2.0;
const TURNS: u32 = 3;
/// Mean of the largest of 16 that are even between -1 and 1.
const LARGEST: f64 = 15.0 / 17.0;
/// As published: type, on the machine, on the VM.
const THEIRS: [(u8, f64, f64); 4] = [(1, 13.9, 13.9), (2, 6.5, 3.0), (3, 8.7, 5.0), (4, 6.3, 9.7)];
const NEAR: Rule = Rule::Within(25.0);

/// A program of a type.
#[derive(Clone, Copy, Debug)]
struct Like {
    kind: u8,
    parallelism: f64,
    /// Work of all threads from one meeting to the next, over their number, us.
    turn_us: f64,
    unequal: bool,
}

/// What became of one.
#[derive(Clone, Copy, Debug)]
struct Point {
    /// Speedup and efficiency on a machine of its own, where speedup is the number of active cores.
    own: [f64; 2],
    vm: [f64; 2],
    potential: f64,
}

pub(super) fn items() -> Result<Vec<Item>> {
    let all: Vec<Like> = THEIRS.iter().flat_map(|&(kind, ..)| family(kind)).collect();
    let points: Vec<Point> = parallel::map(&all, parallel::cpus(), "P1, types", |like| like.measure())
        .into_iter()
        .collect::<Result<_>>()?;
    let of = |kind: u8| -> Vec<Point> {
        all.iter().zip(&points).filter(|(like, _)| like.kind == kind).map(|(_, point)| *point).collect()
    };
    let item = |figure: &'static str, what: String, theirs: Option<f64>, ours: Option<f64>, rule: &Rule| {
        Item::new((Paper::P1, figure), what, theirs, ours, rule).fitted(PROGRAMS)
    };
    let mut items = vec![];
    for (kind, own, vm) in THEIRS {
        let points = of(kind);
        let [ours, on_vm] = [mean(&points, |p| p.own[0]), mean(&points, |p| p.vm[0])];
        let what = format!("type {kind}, mean speedup on a machine of its own");
        items.push(item("Figure 2", what, Some(own), Some(ours), &NEAR));
        let (their_cores, cores) = (vm * SHARE, on_vm * SHARE);
        let what =
            format!("type {kind}, on a VM (dedicated cores: theirs {their_cores:.1}, ours {cores:.1})");
        items.push(item("Figure 2", what, Some(vm), Some(on_vm), &NEAR));
        let what = format!("type {kind}, VM over machine");
        items.push(item("Figure 2", what, Some(vm / own), Some(on_vm / ours), &NEAR));
    }
    let points = of(4);
    // As p.canneal, of which P1 says that it has the largest potential.
    let more = |p: &&Point| p.potential - p.vm[1];
    let largest = points.iter().max_by(|a, b| more(a).total_cmp(&more(b))).context("there is a type 4")?;
    for (what, theirs, ours) in [
        ("type 4, efficiency on a VM", 0.621, mean(&points, |p| p.vm[1])),
        ("type 4, potential efficiency", 0.875, mean(&points, |p| p.potential)),
        ("type 4, largest potential (p.canneal): efficiency", 0.43, largest.vm[1]),
        ("type 4, largest potential (p.canneal): potential", 1.0, largest.potential),
    ] {
        items.push(item("Figure 4", what.into(), Some(theirs), Some(ours), &NEAR));
    }
    let column = |of: fn(&Point) -> f64| -> Vec<f64> { points.iter().map(of).collect() };
    let ratio = column(|p| p.vm[0] / p.own[0]);
    let efficiency = column(|p| p.vm[1] / p.own[1]);
    let least = efficiency.iter().copied().reduce(f64::min);
    let with = |other: &[f64]| Some(rank_correlation(&ratio, other));
    for (what, ours, rule) in [
        (
            "type 4, VM over machine falls with parallelism: rank correlation",
            with(&column(|p| p.own[0])),
            Rule::AtMost(-0.5),
        ),
        ("type 4, VM over machine as that of efficiencies", with(&efficiency), Rule::AtLeast(0.8)),
        ("type 4, least ratio of efficiencies", least, Rule::AtLeast(1.0)),
    ] {
        items.push(item("Figure 3", what.into(), None, ours, &rule));
    }
    Ok(items)
}

/// Programs like those of a type.
fn family(kind: u8) -> Vec<Like> {
    let [one, high, all] = PARALLELISM;
    let (from, to) = if matches!(kind, 1 | 3) { (high, all) } else { (one, high) };
    let often = matches!(kind, 2 | 3);
    let middle = |step: u32, steps: u32| (f64::from(step) + 0.5) / f64::from(steps);
    let mut programs = vec![];
    for step in 0..STEPS {
        let parallelism = from + (to - from) * middle(step, STEPS);
        for turn in 0..TURNS {
            let decades = DECADES * middle(turn, TURNS) * if often { -1.0 } else { 1.0 };
            let turn_us = TIMESLICE_US * 10_f64.powf(decades);
            programs.extend([false, true].map(|unequal| Like { kind, parallelism, turn_us, unequal }));
        }
    }
    programs
}

impl Like {
    /// A turn is a sequential part s and parallel parts of mean w and largest m w, s + 16 w = 16 t; it takes s + m w, and
    /// parallelism is 16 t over that.
    fn text(&self) -> String {
        let Like { parallelism, turn_us, unequal, .. } = *self;
        let spread = if unequal { ((CORES / parallelism - 1.0) / LARGEST).min(1.0) } else { 0.0 };
        let largest = 1.0 + spread * LARGEST;
        let alone = turn_us * (CORES / parallelism - largest) / (1.0 - largest / CORES);
        let (alone, percent) = (alone.max(0.0).round(), spread * 100.0);
        let together = (CORES * turn_us - alone).round();
        let sequential = if alone > 0.0 { format!("compute {alone}us ") } else { String::new() };
        let uniform = if unequal { format!(" uniform {percent:.1}%") } else { String::new() };
        format!("forever {{ {sequential}parallel {{ compute {together}us split{uniform} }} }}")
    }

    /// On the VM.
    fn beside(&self) -> Result<Spec> {
        let often = self.turn_us < TIMESLICE_US;
        let until = if often { "10s" } else { "60s" };
        let mut spec = spec(FIGURE_7, &[("until", until.into())])?;
        let app = spec.vms.first_mut().and_then(|vm| vm.apps.first_mut()).context("the VM has a program")?;
        app.program = Program::compile(&self.text())?;
        Ok(spec)
    }

    /// On a machine of its own.
    fn alone(&self) -> Result<Spec> {
        let mut spec = self.beside()?;
        spec.vms.truncate(1);
        (spec.costs.halt_ns, spec.costs.kick_ns) = (0, 0);
        Ok(spec)
    }

    fn measure(&self) -> Result<Point> {
        let (mut own, mut vm) = (Sim::new(&self.alone()?)?, Sim::new(&self.beside()?)?);
        let windows = periods(&mut own, self.beside()?.until_ns)?;
        vm.run_for(self.beside()?.until_ns);
        Ok(Point { own: result(&own, 1.0)?, vm: result(&vm, SHARE)?, potential: potential_of(&windows) })
    }
}

/// What each vCPU worked in each allocation period, ns.
fn periods(sim: &mut Sim, until_ns: u64) -> Result<Vec<Vec<f64>>> {
    let vcpus = sim.truth().vms.first().context("there is a VM")?.vcpus;
    let mut before = vec![0; vcpus as usize];
    let mut windows = vec![];
    for _ in 0..until_ns / PERIOD_NS {
        sim.run_for(PERIOD_NS);
        let now = |vcpu| sim.account_of(0, vcpu).map(|account| account.utilised);
        let now = (0..vcpus).map(now).collect::<Option<Vec<u64>>>().context("there is no such vCPU")?;
        windows.push(now.iter().zip(&before).map(|(now, before)| (now - before) as f64).collect());
        before = now;
    }
    Ok(windows)
}

fn potential_of(windows: &[Vec<f64>]) -> f64 {
    let runs: Vec<(f64, &[f64])> = windows.iter().map(|runs| (PERIOD_NS as f64, runs.as_slice())).collect();
    let lanes: Vec<usize> = (0..windows.first().map_or(0, Vec::len)).collect();
    potential(&steps(&Series::of_runs(&runs), &lanes, 1.0), SHARE, PERIOD_NS as f64)
}

/// Speedup and efficiency of the first VM.
fn result(sim: &Sim, share: f64) -> Result<[f64; 2]> {
    let truth = sim.truth();
    let vm = truth.vms.first().context("there is a VM")?;
    let speedup = vm.time.utilised as f64 / truth.ran_ns as f64 / share;
    Ok([speedup, vm.efficiency().context("it was allocated something")?])
}

fn mean(points: &[Point], of: impl Fn(&Point) -> f64) -> f64 {
    points.iter().map(of).sum::<f64>() / points.len().max(1) as f64
}

/// Spearman's.
fn rank_correlation(xs: &[f64], ys: &[f64]) -> f64 {
    let ranks = |values: &[f64]| -> Vec<f64> {
        let less = |x: &f64| values.iter().filter(|y| *y < x).count() as f64;
        let same = |x: &f64| values.iter().filter(|y| *y == x).count() as f64;
        values.iter().map(|x| less(x) + (same(x) - 1.0) / 2.0).collect()
    };
    let (xs, ys) = (ranks(xs), ranks(ys));
    let middle = (xs.len() as f64 - 1.0) / 2.0;
    let product =
        |xs: &[f64], ys: &[f64]| -> f64 { xs.iter().zip(ys).map(|(x, y)| (x - middle) * (y - middle)).sum() };
    product(&xs, &ys) / (product(&xs, &xs) * product(&ys, &ys)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_have_the_features_of_their_type_and_the_parallelism_that_is_said() {
        let mut elsewhere = vec![];
        for like in THEIRS.iter().flat_map(|&(kind, ..)| family(kind)) {
            let mut sim = Sim::new(&like.alone().unwrap()).unwrap();
            sim.run_for(like.alone().unwrap().until_ns);
            let truth = sim.truth();
            let vm = &truth.vms[0];
            // Active cores are busy for the program, its kernel included.
            let busy = (vm.time.utilised + vm.time.switching) as f64 / truth.ran_ns as f64;
            let between_us = vm.time.utilised as f64 / vm.counts.halts as f64 / 1e3;
            assert_eq!(between_us < 6000.0, matches!(like.kind, 2 | 3), "{like:?}: {between_us} us");
            assert!((busy / like.parallelism - 1.0).abs() < 0.1, "{like:?}: {busy} cores");
            if (busy >= 12.0) != matches!(like.kind, 1 | 3) {
                elsewhere.push((like, busy));
            }
        }
        // With 129 us between meetings, waking up costs one of type 3 that should have 12.5 cores almost one.
        let near = |(like, busy): &(Like, f64)| like.kind == 3 && *busy > 11.5;
        assert!(elsewhere.len() <= 1 && elsewhere.iter().all(near), "{elsewhere:?}");
    }

    #[test]
    fn ranks_correlate() {
        assert!((rank_correlation(&[1.0, 2.0, 9.0], &[3.0, 4.0, 5.0]) - 1.0).abs() < 1e-9);
        assert!((rank_correlation(&[1.0, 2.0, 9.0], &[5.0, 4.0, 3.0]) + 1.0).abs() < 1e-9);
        let tied = rank_correlation(&[1.0, 1.0, 2.0, 2.0], &[1.0, 2.0, 1.0, 2.0]);
        assert!(tied.abs() < 1e-9, "{tied}");
    }
}
