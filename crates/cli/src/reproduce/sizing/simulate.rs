//! One host: with a fixed number of vCPUs, or under a controller.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::Result;
use corefit_core::decide::{Policy, Sizer};
use corefit_core::machine::Machine;
use corefit_sim::{Sim, SimMachine, Spec};

use super::Decides;
use crate::ruled::{Done, Ruled};

/// What the program of a run takes at the best number of vCPUs, s; theirs took less.
pub(super) const SECONDS: f64 = 60.0;
/// Who searches may search again: for so long nothing is taken to go on as it does, s.
const FOLLOWED: f64 = 600.0;
/// Before a fixed number of vCPUs is measured, s.
const WARM_UP: f64 = 0.3;
/// The end of a run from which is told how it goes on, s.
const LATELY: f64 = 5.0;

/// Work per second of all VMs together for [`SECONDS`], with so many vCPUs, VM by VM, from soon on. As a controller's, the VMs
/// begin with all vCPUs: where a guest's threads are depends on that.
pub(super) fn fixed(spec: &Spec, online: &[u32]) -> Result<f64> {
    let mut sim = Sim::new(spec)?;
    sim.run_for(ns(WARM_UP));
    for (vm, &vcpus) in online.iter().enumerate() {
        sim.set_online(vm, vcpus)?;
    }
    sim.run_for(ns(WARM_UP));
    let before = work(&sim);
    sim.run_for(ns(SECONDS));
    Ok((work(&sim) - before) / SECONDS)
}

/// What a controller made of a host.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// Seconds that the work took.
    pub(super) took: f64,
    /// vCPUs of each VM at the end, or before any VM tried other numbers that it had not decided on yet.
    pub(super) online: Vec<u32>,
    /// When something was changed last.
    pub(super) settled: f64,
}

/// Runs a host under policies until so much work is done. A run is followed for [`FOLLOWED`] at least, or [`SECONDS`] where numbers
/// are a formula's; from then on, once nothing was changed for twice [`LATELY`], or after twice as long, it is taken to go on as in its
/// last [`LATELY`] seconds.
pub(super) fn ruled(spec: &Spec, by: Decides, target: f64) -> Result<Outcome> {
    let machine = SimMachine::new(Sim::new(spec)?, "P2", false);
    let Decides { size, demand, arbitrate } = by;
    let mut host = Ruled::new(machine, Policy { size, demand, arbitrate, ..Policy::default() });
    let (mut settled, mut online) = (0.0, vec![]);
    let (mut at, mut done) = (0.0, 0.0);
    let mut recent = VecDeque::new();
    let searches = matches!(size, Sizer::Corefit | Sizer::PcpuEst);
    let followed = if searches { FOLLOWED } else { SECONDS };
    loop {
        let Done { changed, next, .. } = host.step()?;
        if changed {
            settled = at;
        }
        let now = host.machine.observe()?;
        if !now.vms.iter().any(|vm| host.tries(&vm.id)) {
            let vcpus = now.vms.iter().map(|vm| u32::try_from(vm.online().len()));
            online = vcpus.collect::<Result<_, _>>()?;
        }
        host.machine.pass(next)?;
        let (earlier, before) = (at, done);
        at = seconds(host.sim());
        done = work(host.sim());
        if done >= target {
            at = earlier + (at - earlier) * (target - before) / (done - before);
            break;
        }
        recent.push_back((at, done));
        while recent.len() > 2 && at - recent[1].0 >= LATELY {
            recent.pop_front();
        }
        let calm = at - settled >= 2.0 * LATELY || at >= 2.0 * followed;
        if at >= followed && calm {
            let (then, had) = recent[0];
            at += (target - done) * (at - then) / (done - had).max(1e-9);
            break;
        }
    }
    Ok(Outcome { took: at, online, settled })
}

/// Useful work of all VMs, in seconds of a pCPU.
fn work(sim: &Sim) -> f64 {
    sim.truth().vms.iter().map(|vm| vm.time.utilised as f64 / 1e9).sum()
}

pub(in crate::reproduce) fn seconds(sim: &Sim) -> f64 {
    sim.now_ns() as f64 / 1e9
}

fn ns(seconds: f64) -> u64 {
    u64::try_from(Duration::from_secs_f64(seconds).as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::{Case, Reduction, compare, programs};
    use super::*;

    /// A program that is the same with any number keeps what pCPU-Est begins with, that of the pCPUs, which it first tries.
    #[test]
    fn who_is_done_while_numbers_are_tried_ended_with_those_before() {
        let case = Case { long: programs::ten("ep").unwrap(), shortage: Reduction(4), random: false };
        let spec = compare::host(&case, false).unwrap();
        let ends = |work| ruled(&spec, Sizer::PcpuEst.into(), work).unwrap().online;
        assert_eq!((ends(2.0), ends(40.0)), (vec![16], vec![4]));
    }
}
