//! What to change on a host, and why: the corridor from an estimate to a plan.
//!
//! ```text
//! Snapshot ──estimate──▶ ask ──▶ arbitrate ──▶ size ──▶ weigh ──▶ place ──▶ shape ──▶ Plan ──▶ who applies it
//!                                                ▲                                                  │
//!                                                └───────────────────── Outcome ◀───────────────────┘
//! ```

mod apart;
mod apply;
mod arbitrate;
mod asked;
mod asking;
mod calm;
mod controller;
mod counted;
mod cpusets;
mod demand;
mod exact;
mod gain;
mod granting;
mod hypothesis;
mod island;
mod known;
mod lighten;
mod max_min;
mod moved;
mod part;
mod pinned;
mod place;
mod placement;
mod policy;
mod remedy;
mod room;
mod shape;
mod short;
mod size;
mod sizing;
mod starving;
mod stays;
mod vain;
mod weigh;

use std::time::Duration;

pub use apply::apply;
pub use controller::{Controller, Step, Usual};
pub use gain::Brought;
pub use granting::Given;
pub use part::each as each_vcpu;
pub use policy::{
    Arbiter, Forecast, Helpers, NINE_DIGITS, Placer, Policy, PolicyError, Rule, Shaper, Sizer, Weigher,
};
pub use shape::shaped_after;

use crate::machine::{Lever, MachineError, Snapshot, Value, VmId, VmState};
use crate::{Cpus, Time};

/// One that did not answer, or whose action failed, is left alone for so long.
const AFTER_FAILURE: Duration = Duration::from_secs(10);
/// How long what brought nothing rests, at first and at most. Ours.
const REST: Duration = Duration::from_secs(30);
const LONGEST_REST: Duration = Duration::from_secs(3600);

/// How long what brought nothing rests next, after it rested for so long, or never.
fn longer(rest: Duration) -> Duration {
    (rest * 2).clamp(REST, LONGEST_REST)
}

/// So many pCPUs, for people.
fn pcpus(count: u32) -> String {
    if count == 1 { "1 pCPU".into() } else { format!("{count} pCPUs") }
}

fn granted_to_it(count: u32) -> String {
    match count {
        0 => "no pCPU was granted to it, and it keeps the fewest that it may have: one at least, for no VM is without a vCPU, and no \
              cpuset empty"
            .into(),
        1 => "1 pCPU was granted to it".into(),
        count => format!("{} were granted to it", pcpus(count)),
    }
}

/// What to change, in the order in which to change it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Each change, with its reason.
    pub actions: Vec<Action>,
}

/// A change of one setting.
#[derive(Clone, Debug, PartialEq)]
pub struct Action {
    /// Whose.
    pub vm: VmId,
    /// Its name, for people.
    pub name: String,
    /// Which setting.
    pub lever: Lever,
    /// What it was when this was decided; `None` if it was not seen.
    pub from: Option<Value>,
    /// What it should be.
    pub to: Value,
    /// Because of what.
    pub why: Why,
}

impl Action {
    /// A change of a setting of this VM.
    #[must_use]
    pub fn of(vm: &VmState, lever: Lever, from: Option<Value>, to: Value, why: Why) -> Action {
        Action { vm: vm.id.clone(), name: vm.name.clone(), lever, from, to, why }
    }

    /// What people call its setting, of a control group or of a VM as `now` shows it.
    #[must_use]
    pub fn setting(&self, now: &Snapshot) -> String {
        self.lever.name(now.vms.iter().any(|vm| vm.id == self.vm && vm.is_group()))
    }
}

/// What became of an action.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// What was tried.
    pub action: Action,
    /// What was read back afterwards, or why nothing could be written.
    pub result: Result<Value, MachineError>,
}

impl Outcome {
    /// Whether it is said to be done, and nothing has changed.
    #[must_use]
    pub fn is_in_vain(&self) -> bool {
        let Outcome { action, result } = self;
        result.as_ref().is_ok_and(|now| *now != action.to && action.from.as_ref() == Some(now))
    }

    /// What it means to a stage that remembers what it set, told at this time.
    fn fate(&self, at: Time) -> Fate<'_> {
        match &self.result {
            Ok(read) => Fate::Is(read),
            Err(MachineError::Untried(_)) => Fate::Later,
            Err(MachineError::Gone(_)) => Fate::Away(at + AFTER_FAILURE),
            Err(_) => Fate::Refused,
        }
    }
}

/// See [`Outcome::fate`].
enum Fate<'a> {
    /// This was read back afterwards.
    Is(&'a Value),
    /// It was not tried.
    Later,
    /// Nobody says whether it was written; not to be asked before that.
    Away(Time),
    /// It cannot be set, or is somebody else's.
    Refused,
}

/// The reason for an action, as data; its text is for people.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Why {
    /// It could get so much now (vScale, and who has no better reason).
    #[error("{available} pCPUs are available to it")]
    Available {
        /// pCPUs.
        available: Cpus,
    },
    /// As [`Why::Available`], of what is told by and by: the last look alone says something else.
    #[error("{available} pCPUs are available to it now; what it is told follows smoothly")]
    Smoothed {
        /// pCPUs.
        available: Cpus,
    },
    /// As [`Why::Available`], of what a guest is told whose vCPUs have quotas of their own: so many of these as that is enough for.
    #[error(
        "{available} pCPUs are available to it, and each of its vCPUs may use {each}: told is how many can do so"
    )]
    Limited {
        /// pCPUs.
        available: Cpus,
        /// pCPUs.
        each: Cpus,
    },
    /// It wants less than it could get (vScale).
    #[error("it wants {wants} of the {available} pCPUs that are available to it")]
    Wants {
        /// pCPUs.
        wants: Cpus,
        /// See above.
        available: Cpus,
    },
    /// Its weight gives it so much (VCPU-Bal).
    #[error("its weight, cap and affinity give it {share} pCPUs")]
    Share {
        /// pCPUs.
        share: Cpus,
    },
    /// It may not have as many as it should.
    #[error("{wanted} would be right for it, but its rules and its vCPUs allow {least} to {most}")]
    Bounded {
        /// vCPUs that it should have.
        wanted: u32,
        /// vCPUs that it may have.
        least: u32,
        /// See above.
        most: u32,
    },
    /// Nobody says how many would be right for it, but it may not have as many as it has.
    #[error("its rules allow {least} to {most}")]
    Allowed {
        /// vCPUs that it may have.
        least: u32,
        /// See above.
        most: u32,
    },
    /// It was given so many.
    #[error("{}", granted_to_it(*granted))]
    Granted {
        /// pCPUs.
        granted: u32,
    },
    /// Nobody decides how many vCPUs it has any more.
    #[error("nobody decides its number of vCPUs any more: as before, within its rules")]
    Unsized,
    /// It did not answer when its vCPUs were to be changed.
    #[error("it did not answer before, and is asked whether it does now")]
    AskedAgain,
    /// Its weight is to give it what it was granted.
    #[error(
        "{part} pCPUs are its part by what was granted and guaranteed, and more vCPUs stay than there are pCPUs for them"
    )]
    Weighed {
        /// pCPUs.
        part: Cpus,
    },
    /// Its weight goes back.
    #[error("it does not follow what was granted any more: as before")]
    Unweighed,
    /// Its weight goes back, for weights brought nothing.
    #[error("more weight brings {name} nothing: {brought}")]
    Weightless {
        /// Who was to get more: it, or one that it left something to.
        name: String,
        /// What was measured.
        brought: Brought,
    },
    /// VMs starve, and helper threads that weigh little keep the kernel from it.
    #[error(
        "{name} had {used} of the {available} pCPUs that were available to it: this kernel moves a group ahead each time that its \
         helper threads change what it weighs on a pCPU"
    )]
    Starved {
        /// Who.
        name: String,
        /// pCPUs.
        used: Cpus,
        /// pCPUs.
        available: Cpus,
    },
    /// Helper threads weigh again what they did, for they use much.
    #[error("its helper threads have work to do: as before")]
    Busy,
    /// Helper threads weigh again what they did.
    #[error("its helper threads are not to weigh little any more: as before")]
    Unlightened,
    /// A number is measured.
    #[error("tries {count}, to measure what it does with so many")]
    Trying {
        /// vCPUs.
        count: u32,
    },
    /// Most work was done with it, or by all VMs that were tried together.
    #[error("{}{}", over(*.over_share), waits(*.spins))]
    Fastest {
        /// pCPUs available meanwhile.
        available: Cpus,
        /// Work done, over that with VCPU-Bal's number; `None` if that did none.
        over_share: Option<f64>,
        /// The number, and which part of the pCPUs used with it brings no work, by what they bring with the number with which
        /// they bring most: waiting for each other. `None` where that is next to nothing, or too few units tell.
        spins: Option<(u32, f64)>,
    },
    /// By how utilisation changed with the number of vCPUs, where it does not stay the same with more.
    #[error("by how its utilisation changes with the number of vCPUs; {available} pCPUs are available to it")]
    Changes {
        /// pCPUs.
        available: Cpus,
    },
    /// By how utilisation changed with the number of vCPUs: it does not with more.
    #[error("its utilisation stays the same with more than that; {available} pCPUs are available to it")]
    Utilisation {
        /// pCPUs.
        available: Cpus,
    },
    /// Others came to want the pCPUs of a control group (`decide/apart.rs`).
    #[error("{lacks} of its pCPUs are taken by others, {would} of those that it gets instead")]
    Crowded {
        /// pCPUs that are missing where it is.
        lacks: Cpus,
        /// pCPUs that would be missing there.
        would: Cpus,
    },
    /// pCPUs of a control group were reserved meanwhile (`decide/apart.rs`).
    #[error("it leaves reserved pCPUs")]
    Reserved,
    /// Nothing is known that would be a reason for another number.
    #[error("nothing is known of it yet")]
    Unknown,
    /// Where it is better off.
    #[error("{0}")]
    Placed(crate::place::Reason),
    /// A burst saves it.
    #[error("{} of its CPU time is left over in some periods and missing in others; a burst saves it", part(*.lost))]
    Saved {
        /// Of what is allotted, from 0 to 1.
        lost: f64,
    },
    /// A longer period evens it out.
    #[error(
        "{} of its CPU time is left over in some periods and missing in others; it may stand still for {latency_ms} ms",
        part(*.lost)
    )]
    Longer {
        /// Of what is allotted, from 0 to 1.
        lost: f64,
        /// What its rule allows.
        latency_ms: u64,
    },
    /// Quotas follow the load.
    #[error("{} of its CPU time is left over on some vCPUs and missing on others", part(*.lost))]
    Proportional {
        /// Of what is allotted, from 0 to 1.
        lost: f64,
    },
    /// A shorter slice lets it run sooner when it wakes up.
    #[error(
        "it runs for {} at a time and waits {} before that: with a shorter slice its deadlines come sooner",
        time(*.run_us), time(*.wait_us)
    )]
    Sooner {
        /// Mean time on a pCPU until it blocks or has to leave, us.
        run_us: f64,
        /// Mean time that it waited for that, us.
        wait_us: f64,
    },
    /// A shape is undone.
    #[error("what was tried brought nothing, and is undone")]
    NoGain,
    /// It is not shaped any more.
    #[error("its timeslices are not to be shaped any more")]
    Unshaped,
    /// What was found out does not hold any more.
    #[error("its vCPUs changed, or not all limits could be set: as before, to begin anew")]
    Anew,
    /// The nodes of the pCPUs that its vCPUs are given.
    #[error("its vCPUs are on these nodes")]
    Nodes,
    /// To see what it costs that the host's scheduler moves it (`corefit profile --isolate`).
    #[error("kept there while a program is measured")]
    Isolated,
}

fn part(lost: f64) -> String {
    format!("{:.0} %", 100.0 * lost)
}

fn time(us: f64) -> String {
    if us < 1000.0 { format!("{us:.0} us") } else { format!("{:.1} ms", us / 1000.0) }
}

fn waits(spins: Option<(u32, f64)>) -> String {
    spins.map_or(String::new(), |(count, share)| {
        format!("; {} of what it uses at {count} goes into waiting", part(share))
    })
}

/// One that does less so gave way to others that were tried with it.
fn over(ratio: Option<f64>) -> String {
    match ratio {
        None => "it does most work with so many".into(),
        Some(ratio) if ratio < 0.98 => {
            format!(
                "the VMs that were tried together do most work so; it does {ratio:.2} times that with its part of the pCPUs"
            )
        }
        Some(ratio) => {
            format!("it does most work with so many, {ratio:.2} times that with its part of the pCPUs")
        }
    }
}
