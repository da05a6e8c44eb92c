//! What `corefit cpus` reports, derived from two readings by [`estimate`](crate::estimate).

use serde::{Deserialize, Serialize};

use crate::reading::Unread;
use crate::{Cpus, Weight};

/// How many CPUs a process gets, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The process.
    pub pid: u32,
    /// Its short name.
    pub name: String,
    /// Time between the two readings.
    pub window_ms: f64,
    /// What it gets when everybody who is busy wants everything he may have: the worst case,
    /// for a process with a runnable thread for each of its CPUs.
    /// `None` where somebody may compete unseen.
    pub entitled: Option<Cpus>,
    /// What it could get now: a lower bound, because those who wait would not all use
    /// what they wait for. Never above any limit but `weight` and `measured`, of which
    /// the larger counts.
    pub available: Cpus,
    /// What it and its descendants used.
    pub used: Cpus,
    /// How many of their threads were runnable but not running, on average; `None` if not counted.
    pub waiting: Option<Cpus>,
    /// Idle CPUs among those that it may use; `None` if unread.
    pub idle: Option<Cpus>,
    /// Every limit, one by one.
    pub limits: Vec<Limit>,
    /// The busy ones who count against it, heaviest user first.
    pub contenders: Vec<Contender>,
    /// What could not be read, and so is not accounted for.
    pub unread: Vec<Unread>,
}

/// One limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// What kind of limit.
    pub kind: LimitKind,
    /// What it leaves to the process; `None` when it does not limit it now.
    pub cpus: Option<Cpus>,
    /// The file that says so.
    pub source: String,
    /// Whether `available` is what it is because of this limit.
    pub binding: bool,
    /// The setting or the measurement, for people.
    pub detail: String,
}

/// The kinds of limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    /// CPUs that exist and are switched on.
    Online,
    /// The affinity mask of the process.
    Affinity,
    /// The cpuset of a group.
    Cpuset,
    /// The quota of a group.
    Quota,
    /// What the hypervisor gave to others.
    Steal,
    /// What the host says that it gives to this machine.
    Told,
    /// The weights of those members of a group that are busy.
    Weight,
    /// What the process has, together with what is idle.
    Measured,
}

/// Somebody busy who divides CPU time with the process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contender {
    /// The directory of a group, the name of a session's automatic group, or `pid N (name)`.
    pub path: String,
    /// Who is in it, where the path does not tell; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub who: String,
    /// Its weight; that of all busy threads of a process together.
    pub weight: Weight,
    /// What it used.
    pub used: Cpus,
}
