//! In which timeslices a VM's vCPUs run: what is lost of their quotas, and which limits lose less.
//!
//! ```text
//!  limit, and what became of it            tools, each a function            judged by what it brought
//!  ───────────────────────────            ─────────────────────             ─────────────────────────
//!  unused in some periods, missing ──▶ burst: save it                 ─┐
//!  in others, of one limit         ──▶ period: longer, if the VM      ─┼─▶ Trial ──▶ kept, or undone and not
//!                                      tolerates standing still        │             tried again for a while
//!  unused on some vCPUs, missing   ──▶ proportional: give it to those ─┘
//!  on others
//! ```
//!
//! Timeslices are per vCPU and period (P1.7); what a vCPU leaves of its own in a period is lost to it, and so is what its
//! sibling leaves. None of the tools changes what a VM may use in the long run: quota over period stays, and the sum over
//! vCPUs never grows. `docs/shape.md` has the formulas.
//!
//! Slices of the fair scheduler are another thing (`slice.rs`): they change no share, only how soon who wakes up runs.

mod burst;
mod period;
mod proportional;
mod slice;
mod trial;

pub(super) use burst::saved;
pub(super) use period::longer;
pub(super) use proportional::divided;
pub(super) use slice::Slicing;
pub(super) use trial::Shaping;
pub use trial::shaped_after;

use std::collections::BTreeMap;

use super::policy::Shaper;
use super::{Rule, Why};
use crate::machine::{Lever, Limit, Slices, Snapshot, Timeslices, VmId, VmState};

/// Another limit for one lever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    /// Which.
    pub lever: Lever,
    /// What it is.
    pub from: Limit,
    /// What it should be.
    pub to: Limit,
}

/// A way to shape timeslices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tool {
    Burst,
    Proportional,
    Period,
}

/// What a policy may use, the cheapest first.
fn tools(name: Shaper) -> &'static [Tool] {
    match name {
        Shaper::None | Shaper::Slice => &[],
        Shaper::Burst => &[Tool::Burst],
        Shaper::LongPeriod => &[Tool::Period],
        Shaper::Proportional => &[Tool::Proportional],
        Shaper::Corefit => &[Tool::Burst, Tool::Proportional, Tool::Period],
    }
}

/// The VMs that run, once those are forgotten that are gone for good. What one did while it stood still says nothing: its window
/// begins `anew`.
fn running<'a, K>(
    known: &mut BTreeMap<VmId, K>,
    now: &'a Snapshot,
    anew: impl Fn(&mut K),
) -> Vec<&'a VmState> {
    let may_have = now.may_have();
    known.retain(|id, _| may_have(id));
    let (running, stand): (Vec<_>, Vec<_>) = now.vms.iter().partition(|vm| vm.is_running_vm());
    for vm in stand {
        known.get_mut(&vm.id).into_iter().for_each(&anew);
    }
    running
}

/// Whether something is more than it was, by half the deadband.
fn grew(now: f64, then: f64, deadband: f64) -> bool {
    now > 0.0 && now >= then * (1.0 + deadband / 2.0)
}

impl Tool {
    /// What it would change, those that lower something first; nothing if less than `worth`, a part of what is allotted,
    /// is lost that it could save. `total`: CPUs that the quotas of vCPUs may allow together.
    fn wishes(self, seen: &Timeslices, total: f64, rule: &Rule, worth: f64) -> Vec<Wish> {
        match self {
            Tool::Burst => saved(seen, worth),
            Tool::Proportional => divided(seen, total, worth),
            Tool::Period => rule.latency_ms.map_or(Vec::new(), |latency| longer(seen, latency, worth)),
        }
    }

    fn why(self, seen: &Timeslices, rule: &Rule) -> Why {
        let lost = match self {
            Tool::Proportional => seen.lost_across(),
            Tool::Burst | Tool::Period => seen.lost_within(),
        };
        match self {
            Tool::Burst => Why::Saved { lost },
            Tool::Proportional => Why::Proportional { lost },
            Tool::Period => Why::Longer { lost, latency_ms: rule.latency_ms.unwrap_or(0) },
        }
    }
}
