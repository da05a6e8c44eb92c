//! Which vCPU should run where.
//!
//! ```text
//! check::Subject, machine::HostEstimate ──▶ Problem ──place──▶ Placement: homes, affinity sets, reasons
//!
//!   Problem ──▶ Ground (numbers only) ──▶ Seats + cost of each vCPU at each pCPU ──search──▶ homes
//!   homes ──sets──▶ a pCPU each, or pools where that would lose pCPUs
//! ```
//!
//! Every vCPU is given a *home*, a pCPU, such that the [`Cost`] is as small as can be found: parts in their order,
//! none of which is ever traded for a later one. What is written to the host follows from the homes: each may use its
//! home only; but where some pCPU of a NUMA node is home to several, all vCPUs there share its pCPUs (a *pool*) if that
//! has no lower [`throughput`], for a pCPU that idles while the vCPU pinned to its neighbour waits is lost.
//! `docs/place.md` has the mathematics.

mod cost;
mod ground;
mod policies;
mod present;
mod problem;
mod search;
mod sets;
mod spread;
#[cfg(test)]
mod tests;
mod throughput;

use serde::{Deserialize, Serialize};

use crate::check::count;
use crate::machine::Classed;
use crate::topology::Topology;
use crate::{CpuId, CpuSet};

pub use cost::Cost;
pub use present::{Invalid, far_from_memory, invalid};
pub use spread::{Core, competing, spread};
pub use throughput::{BESIDE_SIBLING, throughput};

use ground::Ground;

/// A host, and whom to place on it.
#[derive(Clone, Debug, Default)]
pub struct Problem {
    /// The host's shape.
    pub topology: Topology,
    /// pCPUs that are kept for the host itself.
    pub reserved: CpuSet,
    /// Everybody who uses its pCPUs.
    pub vms: Vec<Vm>,
}

/// A VM, or something else that uses pCPUs.
#[derive(Clone, Debug, Default)]
pub struct Vm {
    /// Its name.
    pub name: String,
    /// Beside other VMs; any unit, above 0.
    pub weight: f64,
    /// Before the weight: of two VMs, the one with the higher number gets the better places.
    pub priority: i32,
    /// What its work is like, and who says so: given beats measured beats unknown.
    pub class: Classed,
    /// Nodes that its memory comes from, if that is said.
    pub memory: Option<CpuSet>,
    /// Whether its memory can be moved to other nodes while it runs.
    pub memory_moves: bool,
    /// Where its vCPUs are now stands: it is only counted.
    pub stays: bool,
    /// It has one affinity set for all (a control group).
    pub one_set: bool,
    /// Those that are online.
    pub vcpus: Vec<Vcpu>,
}

/// A vCPU.
#[derive(Clone, Debug, Default)]
pub struct Vcpu {
    /// Its number.
    pub id: u32,
    /// What it would use if it never waited, pCPUs from 0 to 1.
    pub demand: f64,
    /// pCPUs that it may use now; `None`: all.
    pub now: Option<CpuSet>,
    /// Where it was last seen.
    pub on: Option<CpuId>,
    /// Nodes of the memory of its guest node, if they are said: before its VM's. They do not move.
    pub memory: Option<CpuSet>,
}

/// What a VM's work is like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Nobody knows: it is kept on as few nodes as that costs nothing more important.
    #[default]
    Unknown,
    /// Each vCPU fills a cache: they are spread over caches.
    CacheHungry,
    /// Its vCPUs work on the same data: they are kept on one cache, one node, one socket.
    Communicating,
}

impl std::fmt::Display for Class {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Class::Unknown => "unknown",
            Class::CacheHungry => "cache-hungry",
            Class::Communicating => "communicating",
        })
    }
}

/// How to place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Everything stays as it is.
    None,
    /// Underlying layout aware scheduling (P5.3): the lowest free pCPU that shares no L2 with the VM's others.
    Ulas,
    /// The same set for everybody, one pCPU of each core or module (P4.3).
    OptimalAffinity,
    /// The least [`Cost`].
    #[default]
    Corefit,
}

/// Where everybody should run.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// Of each VM of the problem, in its order.
    pub vms: Vec<Placed>,
    /// What the homes cost; [`cost`] says what the affinities do.
    pub cost: Cost,
}

/// Where a VM should run.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// Of each of its vCPUs, in its order.
    pub vcpus: Vec<Seat>,
    /// The nodes of all these pCPUs: what its node affinity has to be, so that it conflicts with nothing (P4.2).
    pub nodes: CpuSet,
}

/// Where a vCPU should run.
#[derive(Clone, Debug, PartialEq)]
pub struct Seat {
    /// Its number.
    pub id: u32,
    /// The pCPU that it is counted at; `None` if it may move in a larger set that nobody chose.
    pub home: Option<CpuId>,
    /// pCPUs that it should be allowed to use; `None`: all.
    pub affinity: Option<CpuSet>,
    /// Because of what.
    pub why: Reason,
}

/// Why a vCPU should run where it should; its text is for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The policy leaves it, or its VM stays.
    #[error("left as it is")]
    Left,
    /// There is no pCPU that it may use.
    #[error("no pCPU is online, neither isolated nor kept for the host")]
    Nowhere,
    /// The unit is its own.
    #[error("a {unit} of its own")]
    Alone {
        /// `core` or `module`.
        unit: &'static str,
    },
    /// Somebody else is on the unit.
    #[error("shares a {unit} with {with}: the vCPUs of all VMs are more than the {unit}s for them")]
    Beside {
        /// `core` or `module`.
        unit: &'static str,
        /// Who.
        with: String,
    },
    /// It shares a pCPU with others, who seldom want to run when it does.
    #[error("shares the pCPU with {with}: sharing all pCPUs of the node would lose more")]
    Sharing {
        /// Who.
        with: String,
    },
    /// It shares pCPUs with others.
    #[error(
        "{} share {}",
        count(*vcpus, "vCPU"),
        match *pcpus {
            1 => "this pCPU: no other of its node is free".into(),
            more => format!("these {more} pCPUs: pinned one by one, some would idle while others have a queue"),
        }
    )]
    Pool {
        /// How many may use them.
        vcpus: usize,
        /// How many there are.
        pcpus: usize,
    },
    /// It may use pCPUs now that are kept for the host.
    #[error("leaves reserved pCPUs: {there}")]
    Reserved {
        /// Why it should run there, and on no others.
        there: Box<Reason>,
    },
    /// As the policy of the paper has it.
    #[error("{0}")]
    Policy(&'static str),
}

/// How often, at most, another placement is looked for from where one puts everybody.
const ROUNDS: usize = 8;

/// Where everybody should run by a policy. The same problem gives the same placement.
#[must_use]
pub fn place(problem: &Problem, policy: Policy) -> Placement {
    let ground = Ground::new(problem);
    let mut found = match policy {
        Policy::None => policies::none(problem, &ground),
        Policy::Ulas => policies::ulas(problem, &ground),
        Policy::OptimalAffinity => policies::optimal_affinity(problem, &ground),
        Policy::Corefit => settled(problem, &ground),
    };
    say_reserved(problem, &mut found);
    found
}

/// That of vCPUs whose present set has pCPUs that are kept for the host, and the new one has not.
fn say_reserved(problem: &Problem, found: &mut Placement) {
    let reserved = problem.reserved.intersection(&problem.topology.online());
    if reserved.is_empty() {
        return;
    }
    for (vm, placed) in problem.vms.iter().zip(&mut found.vms).filter(|(vm, _)| !vm.stays) {
        for (vcpu, seat) in vm.vcpus.iter().zip(&mut placed.vcpus) {
            let on = |set: &CpuSet| set.meets(&reserved);
            if vcpu.now.as_ref().is_none_or(on) && seat.affinity.as_ref().is_some_and(|set| !on(set)) {
                let there = Box::new(std::mem::replace(&mut seat.why, Reason::Left));
                seat.why = Reason::Reserved { there };
            }
        }
    }
}

/// The placement that is found again once it is in force: from where the first one puts everybody, the search may find
/// something better still, or another pool that is as good. On larger hosts, where a search takes some ms, the first one
/// stands.
fn settled(problem: &Problem, ground: &Ground) -> Placement {
    let mut found = sets::placement(problem, ground, &search::homes(ground));
    for _ in 0..if search::is_small(ground) { ROUNDS } else { 0 } {
        let after = in_force(problem, &found);
        let next = sets::placement(problem, ground, &search::homes(&Ground::new(&after)));
        if same(&next, &found) {
            break;
        }
        found = next;
    }
    found
}

/// Whether all may use the same pCPUs.
fn same(one: &Placement, other: &Placement) -> bool {
    let sets = |placement: &Placement| -> Vec<Option<CpuSet>> {
        placement.vms.iter().flat_map(|vm| &vm.vcpus).map(|seat| seat.affinity.clone()).collect()
    };
    sets(one) == sets(other)
}

/// What the present affinities cost. Somebody who may use several pCPUs counts as being on all of them alike.
#[must_use]
pub fn present(problem: &Problem) -> Cost {
    Ground::new(problem).present()
}

/// What the affinities of a placement cost, counted as [`present`] counts those of now; and its moves.
#[must_use]
pub fn cost(problem: &Problem, placement: &Placement) -> Cost {
    let mut cost = present(&applied(problem, placement));
    cost.0[cost::MOVES] = placement.cost.moves();
    cost
}

/// What caches and nodes cost the VMs whose class is given or measured, in pairs as [`Cost::spread`] counts them.
#[must_use]
pub fn spread_of_classed(problem: &Problem, placement: &Placement) -> f64 {
    let mut after = applied(problem, placement);
    after.vms.retain(|vm| vm.class.class != Class::Unknown);
    present(&after).spread()
}

/// The problem once a placement is in force.
fn applied(problem: &Problem, placement: &Placement) -> Problem {
    let mut after = problem.clone();
    for (vm, placed) in after.vms.iter_mut().zip(&placement.vms) {
        for (vcpu, seat) in vm.vcpus.iter_mut().zip(&placed.vcpus) {
            vcpu.now.clone_from(&seat.affinity);
        }
    }
    after
}

/// The same with memory moved to its vCPUs where it can be, as somebody who has carried it out sees it.
fn in_force(problem: &Problem, placement: &Placement) -> Problem {
    let mut after = applied(problem, placement);
    for (vm, placed) in after.vms.iter_mut().zip(&placement.vms).filter(|(vm, _)| !vm.stays) {
        for vcpu in &mut vm.vcpus {
            vcpu.on = vcpu.now.as_ref().filter(|set| set.len() == 1).and_then(|set| set.iter().next());
        }
        let memory = vm.memory.as_mut().filter(|memory| vm.memory_moves && !placed.nodes.is_within(memory));
        memory.into_iter().for_each(|memory| memory.clone_from(&placed.nodes));
    }
    after
}

impl Policy {
    /// All, with the names that they have in commands.
    pub const NAMES: [(&'static str, Policy); 4] = [
        ("none", Policy::None),
        ("ulas", Policy::Ulas),
        ("optimal-affinity", Policy::OptimalAffinity),
        ("corefit", Policy::Corefit),
    ];
}
