//! What every VM has available, without solving the host anew for each.
//!
//! One division with all measured demands comes first. Raising the demands of a VM changes nothing
//! if none of its vCPUs ended at its demand: such a VM already has what is available to it. Raising
//! another VM's changes nothing before the first of its vCPUs reached its demand: the sets that were
//! full by then stay. From there on it is solved like any host, so the result is exact, only from a good start:
//! the later sets and the one that held the VM before are the first suspects, the timetable is the last
//! one found, and the search ends when the VM's own vCPUs are held by full sets or limits.

use std::ops::Range;

use super::compile::{Compiled, Wants, compile};
use super::fill::{Filling, Round};
use super::host::{Host, HostError};
use super::tree::{Levels, TIE, Trajectory};
use crate::Cpus;

/// What each VM has available, in the order of [`Host::all_vms`]: the same amounts as
/// [`available`](super::available) one by one, to rounding.
///
/// # Errors
/// If the host has numbers out of range or names twice.
pub fn available_to_all(host: &Host) -> Result<Vec<Cpus>, HostError> {
    let mut compiled = compile(host, Wants::Measured)?;
    compiled.filling.run(None);
    let ends = compiled.filling.ends();
    let rounds = std::mem::take(&mut compiled.filling.rounds);
    let mut result = Vec::new();
    let mut open: Vec<Raise> = Vec::new();
    let mut levels = Levels::default();
    for vm in 0..compiled.vms.len().saturating_sub(1) {
        let raise = Raise::of(&compiled, vm, &ends, &rounds, &mut levels);
        // A sum of nothing is -0.0.
        result.push(Cpus(raise.leaves.clone().map(|leaf| ends[leaf]).sum::<f64>() + 0.0));
        if raise.matters {
            open.push(raise);
        }
    }
    // Those that take more come later: what others have only shrinks, and what flows changes little.
    open.sort_by(|a, b| a.unchanged.cmp(&b.unchanged).then(a.appetite.total_cmp(&b.appetite)));
    let mut before = Trajectory::new(&compiled.filling.tree);
    let mut done = 0;
    let mut fresh = false;
    for raise in open {
        let (unchanged, suspects) = rounds.split_at(raise.unchanged);
        if raise.unchanged > done {
            let stopped = unchanged[done..].iter().flat_map(|round| round.stopped.iter().copied());
            before.stop(&compiled.filling.tree, stopped.collect::<Vec<_>>());
            (done, fresh) = (raise.unchanged, false);
        }
        if !fresh {
            compiled.filling.rewind(before.clone(), unchanged);
        }
        compiled.filling.expect(unchanged.last().map_or(0.0, |round| round.time), suspects);
        result[raise.vm] = Cpus(raise.solve(&mut compiled.filling));
        fresh = compiled.filling.rounds.is_empty();
    }
    Ok(result)
}

/// A VM that shall want everything.
struct Raise {
    vm: usize,
    group: usize,
    /// All of the VM's.
    leaves: Range<usize>,
    /// Those that want more now, with their new limits.
    raised: Vec<(usize, f64)>,
    /// Its group weighs otherwise (Xen: more vCPUs are active).
    awake: Option<f64>,
    /// Whether it can change something.
    matters: bool,
    /// How many of the first rounds were over before one of its vCPUs reached its demand.
    unchanged: usize,
    /// About what it will take.
    appetite: f64,
}

impl Raise {
    fn of(compiled: &Compiled, vm: usize, ends: &[f64], rounds: &[Round], levels: &mut Levels) -> Raise {
        let Filling { tree, trajectory, .. } = &compiled.filling;
        let group = compiled.vms[vm].0;
        let leaves = tree.members(group);
        let raised = leaves.clone().map(|leaf| (leaf, compiled.raised[leaf]));
        let raised: Vec<(usize, f64)> =
            raised.filter(|&(leaf, limit)| limit > tree.leaves[leaf].limit).collect();
        let awake = compiled.awake[vm];
        let awake = (awake != tree.groups[group].weight).then_some(awake);
        let at_demand = raised.iter().any(|&(leaf, _)| ends[leaf] >= tree.leaves[leaf].limit - TIE);
        let mut below = |time: f64| {
            trajectory.walk_to(tree, group, time, levels);
            let hungry = |leaf| trajectory.amount_at(tree, leaf, levels) < tree.leaves[leaf].limit - TIE;
            raised.iter().all(|&(leaf, _)| hungry(leaf))
        };
        let unchanged = if awake.is_some() { 0 } else { rounds.partition_point(|round| below(round.time)) };
        let time = rounds.get(unchanged).map_or(trajectory.rest(), |round| round.time);
        let most: f64 = leaves.clone().map(|leaf| compiled.raised[leaf]).sum();
        let appetite = trajectory.offered(tree, group, time, levels).min(most).min(tree.groups[group].cap);
        Raise { vm, group, leaves, matters: at_demand || awake.is_some(), raised, awake, unchanged, appetite }
    }

    /// What it has available. Leaves the filling as it was if that has no rounds afterwards, other than that
    /// what flows has changed.
    fn solve(&self, filling: &mut Filling) -> f64 {
        let open = self.raised.iter().filter(|&&(leaf, _)| !filling.trajectory.has_stopped(leaf));
        let open: Vec<(usize, f64)> = open.copied().collect();
        let asleep = filling.tree.groups[self.group].weight;
        filling.tree.groups[self.group].weight = self.awake.unwrap_or(asleep);
        let before = filling.trajectory.limit(&filling.tree, self.group, &open);
        filling.run(Some(self.group));
        let sum = filling.sum_of(self.group);
        filling.tree.groups[self.group].weight = asleep;
        if filling.rounds.is_empty() {
            filling.trajectory.undo(before);
        }
        sum
    }
}
