//! What every VM has available, without solving the host anew for each.
//!
//! One division with all measured demands comes first. Raising the demands of a VM changes nothing
//! if none of its vCPUs ended at its demand: such a VM already has what is available to it. Raising
//! another VM's changes nothing before the first of its vCPUs reached its demand: the sets that were
//! full by then stay, the later ones are the first suspects, the timetable is the last one found,
//! and the search ends when the VM's own vCPUs have stopped.

use super::compile::{Compiled, Wants, compile};
use super::fill::Round;
use super::host::{Host, HostError};
use super::tree::{TIE, Trajectory};
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
    let mut open: Vec<(usize, Raise)> = Vec::new();
    for vm in 0..compiled.vms.len().saturating_sub(1) {
        let raise = Raise::of(&compiled, vm, &ends);
        result.push(Cpus(raise.leaves.iter().map(|&leaf| ends[leaf]).sum()));
        if raise.matters {
            open.push((raise.unchanged(&compiled, &rounds), raise));
        }
    }
    open.sort_by_key(|(unchanged, raise)| (*unchanged, raise.vm));
    let mut before = Trajectory::new(&compiled.filling.tree);
    let mut done = 0;
    for (unchanged, raise) in open {
        let stopped = rounds[done..unchanged].iter().flat_map(|round| round.stopped.iter().copied());
        if unchanged > done {
            before.stop(&compiled.filling.tree, stopped.collect::<Vec<_>>());
        }
        done = unchanged;
        result[raise.vm] = Cpus(raise.solve(&mut compiled, before.clone(), rounds.split_at(unchanged)));
    }
    Ok(result)
}

/// A VM that shall want everything.
struct Raise {
    vm: usize,
    group: usize,
    /// All of the VM's.
    leaves: Vec<usize>,
    /// Those that want more now, with their new limits.
    raised: Vec<(usize, f64)>,
    /// Its group weighs otherwise (Xen: more vCPUs are active).
    awake: Option<f64>,
    /// Whether it can change something.
    matters: bool,
}

impl Raise {
    fn of(compiled: &Compiled, vm: usize, ends: &[f64]) -> Raise {
        let tree = &compiled.filling.tree;
        let group = compiled.vms[vm].0;
        let leaves: Vec<usize> = tree.members(group).collect();
        let raised = leaves.iter().map(|&leaf| (leaf, compiled.raised[leaf]));
        let raised: Vec<(usize, f64)> =
            raised.filter(|&(leaf, limit)| limit > tree.leaves[leaf].limit).collect();
        let awake = compiled.awake[vm];
        #[expect(clippy::float_cmp, reason = "made of the same numbers unless other vCPUs count")]
        let awake = (awake != tree.groups[group].weight).then_some(awake);
        let at_demand = raised.iter().any(|&(leaf, _)| ends[leaf] >= tree.leaves[leaf].limit - TIE);
        Raise { vm, group, leaves, matters: at_demand || awake.is_some(), raised, awake }
    }

    /// How many of the first rounds were over before one of its vCPUs reached its demand.
    fn unchanged(&self, compiled: &Compiled, rounds: &[Round]) -> usize {
        if self.awake.is_some() {
            return 0;
        }
        let filling = &compiled.filling;
        rounds.partition_point(|round| {
            self.raised.iter().all(|&(leaf, _)| {
                let amount = filling.trajectory.amount(&filling.tree, leaf, round.time);
                amount < filling.tree.leaves[leaf].limit - TIE
            })
        })
    }

    fn solve(
        &self,
        compiled: &mut Compiled,
        mut trajectory: Trajectory,
        (unchanged, suspects): (&[Round], &[Round]),
    ) -> f64 {
        let filling = &mut compiled.filling;
        // The trajectory of the whole solution is needed by nobody any more.
        let asleep = filling.tree.groups[self.group].weight;
        if let Some(awake) = self.awake {
            filling.tree.groups[self.group].weight = awake;
            trajectory.reweigh(&filling.tree, self.group);
        }
        let open = self.raised.iter().filter(|&&(leaf, _)| !trajectory.has_stopped(leaf));
        let open: Vec<(usize, f64)> = open.copied().collect();
        trajectory.limit(&filling.tree, open);
        filling.restart(trajectory, unchanged, suspects);
        filling.run(Some(&self.leaves));
        let amounts = filling.now();
        let sum = self.leaves.iter().map(|&leaf| amounts[leaf]).sum();
        if self.awake.is_some() {
            filling.tree.groups[self.group].weight = asleep;
        }
        sum
    }
}
