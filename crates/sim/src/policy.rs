//! Who divides the pCPUs of a simulated host: plain data, with defaults and their sources.

/// Who divides the pCPUs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Policy {
    /// Linux' fair scheduler.
    Cfs(CfsSpec),
    /// Xen's credit scheduler.
    Credit(CreditSpec),
    /// Xen's second credit scheduler.
    Credit2(Credit2Spec),
    /// All vCPUs of a VM at the same time, or none.
    Strict(StrictSpec),
}

impl Policy {
    /// Whether it is Xen's: weights and caps are a VM's, per active vCPU; quotas and weights of vCPUs do not exist.
    #[must_use]
    pub fn is_xen(&self) -> bool {
        matches!(self, Policy::Credit(_) | Policy::Credit2(_))
    }

    /// Whether each thread may have a slice of its own (EEVDF).
    pub(crate) fn has_slices(&self) -> bool {
        matches!(self, Policy::Cfs(cfs) if cfs.deadlines)
    }
}

/// The fair scheduler's parameters; kernel/sched/fair.c, for 8 CPUs and more (x4 of the base values).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CfsSpec {
    /// In which every vCPU of a pCPU is to run once. P1's allocation period.
    pub latency_ns: u64,
    /// The shortest slice.
    pub granularity_ns: u64,
    /// How far one that wakes up has to be behind to preempt.
    pub wakeup_ns: u64,
    /// Slices end at ticks; 0: when they end.
    pub tick_ns: u64,
    /// Between looks at the balance of pCPUs; loads of busy ones are evened out each 16 ms per pCPU of a node
    /// (`sd_init` in kernel/sched/topology.c: interval `sd_weight` ms, `busy_factor` 16), at this time's multiples.
    pub balance_ns: u64,
    /// What a vCPU takes from its VM's quota at once (`sched_cfs_bandwidth_slice_us`).
    pub bandwidth_slice_ns: u64,
    /// The earliest deadline runs first among those that are owed time (EEVDF, Linux from 6.6 on), instead of the
    /// least virtual time.
    pub deadlines: bool,
    /// The slice of which a deadline is the end (`base_slice_ns`); only with `deadlines`.
    pub base_slice_ns: u64,
    /// A VM's weight is divided among its vCPUs that want to run, as with a control group for each VM. Without, each
    /// vCPU weighs by itself, whatever its siblings do: QEMU that nobody put into groups.
    pub groups: bool,
}

impl Default for CfsSpec {
    fn default() -> CfsSpec {
        CfsSpec {
            latency_ns: 24_000_000,
            granularity_ns: 3_000_000,
            wakeup_ns: 4_000_000,
            tick_ns: 4_000_000,
            balance_ns: 4_000_000,
            bandwidth_slice_ns: 5_000_000,
            deadlines: false,
            base_slice_ns: 3_000_000,
            groups: true,
        }
    }
}

/// The credit scheduler's parameters; xen/common/sched_credit.c of Xen 4.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditSpec {
    /// The time slice; credits are handed out as often.
    pub slice_ns: u64,
    /// Between ticks, at which boosts end and vCPUs become active.
    pub tick_ns: u64,
    /// One that wakes up does not preempt before (`sched_ratelimit_us`).
    pub ratelimit_ns: u64,
    /// Whether vCPUs that wake up go before all others.
    pub boost: bool,
}

impl Default for CreditSpec {
    fn default() -> CreditSpec {
        CreditSpec { slice_ns: 30_000_000, tick_ns: 10_000_000, ratelimit_ns: 1_000_000, boost: true }
    }
}

/// The second credit scheduler's parameters; xen/common/sched/credit2.c of Xen 4.17.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit2Spec {
    /// What everybody gets when the first in a queue has none left (`CSCHED2_CREDIT_INIT`).
    pub credit_ns: u64,
    /// The shortest time until the next look (`CSCHED2_MIN_TIMER`).
    pub shortest_ns: u64,
    /// The longest (`CSCHED2_MAX_TIMER`).
    pub longest_ns: u64,
    /// One that wakes up does not preempt before (`sched_ratelimit_us`).
    pub ratelimit_ns: u64,
    /// How much more credit makes one go to another pCPU of its queue (`CSCHED2_MIGRATE_RESIST`).
    pub resist_ns: u64,
    /// Who shares a queue (`credit2_runqueue`).
    pub queue: QueueOf,
    /// Between looks at the balance of queues.
    pub balance_ns: u64,
}

/// pCPUs that share a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueOf {
    /// Those of a core.
    Core,
    /// Those of a NUMA node.
    Node,
    /// Those of a socket.
    Socket,
    /// All.
    All,
}

impl Default for Credit2Spec {
    fn default() -> Credit2Spec {
        Credit2Spec {
            credit_ns: 10_000_000,
            shortest_ns: 500_000,
            longest_ns: 2_000_000,
            ratelimit_ns: 1_000_000,
            resist_ns: 500_000,
            queue: QueueOf::Socket,
            balance_ns: 10_000_000,
        }
    }
}

/// Strict co-scheduling, as of Ousterhout's matrix (ICDCS 1982) and VMware ESX 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrictSpec {
    /// The time slot that VMs get together.
    pub slice_ns: u64,
    /// Between looks whether a VM that wants to run now fits.
    pub tick_ns: u64,
}

impl Default for StrictSpec {
    fn default() -> StrictSpec {
        StrictSpec { slice_ns: 30_000_000, tick_ns: 1_000_000 }
    }
}

/// Relaxed co-scheduling, as of VMware ESX 3 and later (The CPU Scheduler in VMware vSphere 5.1, 2013).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelaxedSpec {
    /// So far a vCPU may be ahead of the slowest one of its VM.
    pub skew_ns: u64,
    /// Between looks.
    pub tick_ns: u64,
}

impl Default for RelaxedSpec {
    fn default() -> RelaxedSpec {
        RelaxedSpec { skew_ns: 3_000_000, tick_ns: 1_000_000 }
    }
}
