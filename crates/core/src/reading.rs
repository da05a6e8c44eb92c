//! One process's CPU situation as the machine shows it at one instant: raw counters and settings.
//!
//! Nothing here is derived. [`estimate`](crate::estimate) turns two readings into a
//! [`Report`](crate::Report). A setting that could not be read is `None` *and* is named in
//! [`Reading::unread`]; it is never replaced by a likely value.

use serde::{Deserialize, Serialize};

use crate::{CpuId, CpuSet, Cpus, Time, Weight};

/// Everything that decides how many CPUs one process gets, read at one instant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// When the reading was begun.
    pub at: Time,
    /// The process (in the reader's PID namespace).
    pub pid: u32,
    /// Its short name.
    pub name: String,
    /// When it was started, in clock ticks since boot: tells a reused PID from the same process.
    pub started_ticks: u64,
    /// CPUs that are online.
    pub online: Sourced<CpuSet>,
    /// CPUs that are plugged in, online or not; `None` where the machine does not say.
    pub present: Option<Sourced<CpuSet>>,
    /// The affinity mask of the process. The kernel keeps it inside the cpuset.
    pub affinity: Sourced<CpuSet>,
    /// Idle and stolen time of each online CPU; empty if unread.
    pub cpu_times: Vec<CpuTimes>,
    /// The process, and those of its descendants that share its CPU group.
    pub own: Vec<ProcessTimes>,
    /// What each of the own threads weighs in its group.
    pub own_weight: Weight,
    /// The groups that the scheduler divides CPU time over, from the topmost visible one
    /// down to the one whose members include the process itself. Empty if none could be found.
    pub groups: Vec<Group>,
    /// The cpuset of every ancestor that has one, topmost first.
    pub cpusets: Vec<Sourced<CpuSet>>,
    /// What the host says that this machine gets, if it is a VM of one that runs `corefit manage`.
    #[serde(default)]
    pub told: Option<Sourced<Cpus>>,
    /// What could not be read.
    pub unread: Vec<Unread>,
}

/// A value and the file it was read from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sourced<T> {
    /// The value.
    pub value: T,
    /// The path of the file.
    pub source: String,
}

/// Idle and stolen time of one CPU since boot (`/proc/stat`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTimes {
    /// Which CPU.
    pub cpu: CpuId,
    /// Idle, waiting for input or output included, ns.
    pub idle_ns: u64,
    /// Wanted to run, but the hypervisor ran somebody else, ns.
    pub steal_ns: u64,
}

/// Running and waiting time of one thread since it began (`/proc/PID/task/TID/schedstat`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskTimes {
    /// The thread (or the process, where only the sum over its threads could be read).
    pub tid: u32,
    /// Time on a CPU, ns.
    pub run_ns: u64,
    /// Time runnable but not on a CPU, ns; `None` where the kernel does not count it.
    pub wait_ns: Option<u64>,
}

/// CPU time of one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessTimes {
    /// The process.
    pub pid: u32,
    /// Its parent.
    pub parent: u32,
    /// Its threads.
    pub tasks: Vec<TaskTimes>,
    /// CPU time of its children that have ended, and of theirs, ns (in steps of 10 ms).
    pub ended_children_ns: u64,
    /// The CPUs it may use, where known.
    pub cpuset: Option<CpuSet>,
}

/// One group on the way from the top of the scheduler's tree to the process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Its directory, or the name of a session's automatic group.
    pub path: String,
    /// Its weight among its siblings; `None` for the root of the tree.
    pub weight: Option<Sourced<Weight>>,
    /// Its own quota; `None` where it has no such setting.
    pub quota: Option<Quota>,
    /// How often its quota stopped it; `None` where it is not counted.
    pub throttled: Option<Throttled>,
    /// CPU time of everything in it, ns; `None` where it is not counted, and for the root
    /// of the tree, where it would be everybody's.
    pub usage_ns: Option<u64>,
    /// Who else divides this group's CPU time: everything directly in it that does not
    /// lie on the way to the process.
    pub others: Vec<Other>,
}

/// The bandwidth limit of a group: at most `quota_us` of CPU time in each `period_us`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// `None`: unlimited.
    pub quota_us: Option<u64>,
    /// Length of a period, at least 1; [`Quota::NO_PERIOD_US`] where there is none.
    pub period_us: u64,
    /// Unused quota that may be saved up.
    pub burst_us: u64,
    /// The file that holds the quota.
    pub source: String,
}

impl Quota {
    /// What stands for a period where nobody has set one, as on a host that is written down: a thousand times the longest that a
    /// kernel takes, so that the amount keeps nine digits.
    pub const NO_PERIOD_US: u64 = 1_000_000_000;

    /// The length of a period, us; `None` where nobody has set one.
    #[must_use]
    pub fn period_us(&self) -> Option<u64> {
        (self.period_us != Quota::NO_PERIOD_US).then_some(self.period_us)
    }

    /// The quota in CPUs; `None` if unlimited.
    #[must_use]
    pub fn cpus(&self) -> Option<Cpus> {
        self.quota_us.map(|quota_us| Cpus(quota_us as f64 / self.period_us as f64))
    }
}

/// Enforcement of a quota since the group was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Throttled {
    /// Periods that passed with the group runnable.
    pub periods: u64,
    /// Periods in which it ran out of quota.
    pub throttled_periods: u64,
    /// Time it was stopped, summed over CPUs, ns.
    pub throttled_ns: u64,
}

/// Somebody who divides a group's CPU time with the process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Other {
    /// The directory of a group, the name of a session's automatic group, `pid N (name)` of a process.
    pub path: String,
    /// Who is in it, where the path does not tell; may be empty.
    pub who: String,
    /// Weight of the group, or of *each thread* of a process; `None` if unread.
    pub weight: Option<Weight>,
    /// Its own quota, if it has such a setting.
    pub quota: Option<Quota>,
    /// The CPUs it may use, where known.
    pub cpuset: Option<CpuSet>,
    /// What it has used.
    pub usage: Usage,
}

/// CPU time that somebody has used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Usage {
    /// A group's own counter, ns.
    GroupNs(u64),
    /// A group without a counter of its own: its processes.
    GroupMembers(Vec<ProcessTimes>),
    /// A process: each of its threads is a contender of its own.
    Process(ProcessTimes),
}

/// Something that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Unread {
    /// What is missing from the picture.
    pub what: What,
    /// Where it would be.
    pub path: String,
    /// Why it could not be read.
    pub why: String,
}

/// What a reading lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// CPUs online or present.
    Online,
    /// A cpuset on the way.
    Cpuset,
    /// A quota on the way.
    Quota,
    /// A weight on the way.
    Weight,
    /// Groups above the topmost visible one, with their quotas and siblings.
    Ancestors,
    /// Some of those who compete.
    Siblings,
    /// Idle and stolen time.
    Idle,
    /// Running or waiting time of the own threads, or of a VM's.
    Threads,
    /// What a VM's guest says of itself.
    Guest,
    /// What a VM's host tells it.
    Told,
}
