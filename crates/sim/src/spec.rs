//! What a simulated host is made of: plain data, with defaults and their sources.
//!
//! Times are ns. A [`Spec`] that [`crate::Sim::new`] accepts can be run; scenario files become one in
//! `scenario/`.

use corefit_core::CpuSet;

use crate::program::Program;

/// A host, what runs on it, and for how long.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Of all random numbers.
    pub seed: u64,
    /// pCPUs.
    pub hardware: Hardware,
    /// Who divides them.
    pub policy: Policy,
    /// No pCPU gets two vCPUs of a VM while another would do (balance scheduling; Sukwong and Kim,
    /// EuroSys 2011).
    pub spread_siblings: bool,
    /// vCPUs that run ahead of their VM's slowest one are stopped (relaxed co-scheduling).
    pub relaxed: Option<RelaxedSpec>,
    /// What switching takes.
    pub costs: Costs,
    /// Detection of spinning.
    pub ple: Ple,
    /// Length of the periods that time is accounted in; 0: the scheduler's own.
    pub period_ns: u64,
    /// The end, if programs do not end before.
    pub until_ns: u64,
    /// Each application starts up to so much later, and so does each thread of one that never ends: real
    /// hosts' slices do not begin in step.
    pub jitter_ns: u64,
    /// Kinds of work, as the hardware sees them.
    pub classes: Vec<Class>,
    /// Who shares the host.
    pub vms: Vec<VmSpec>,
}

/// pCPUs and what they share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hardware {
    /// Sockets.
    pub sockets: u32,
    /// NUMA nodes of a socket; each has one last-level cache.
    pub nodes: u32,
    /// Cores (or modules) of a node.
    pub cores: u32,
    /// SMT threads of a core, or cores of a module.
    pub threads: u32,
    /// Siblings are numbered one after the other (AMD modules, Xen); otherwise all first threads come
    /// before all second ones (Linux on Intel).
    pub adjacent: bool,
    /// Size of a last-level cache, KiB, which classes of work fill.
    pub cache_kib: u32,
}

impl Hardware {
    /// One socket of equal cores that share nothing.
    #[must_use]
    pub fn flat(pcpus: u32) -> Hardware {
        Hardware { sockets: 1, nodes: 1, cores: pcpus, threads: 1, adjacent: true, cache_kib: 16 * 1024 }
    }

    /// How many pCPUs.
    #[must_use]
    pub fn pcpus(&self) -> u32 {
        self.sockets.saturating_mul(self.nodes).saturating_mul(self.cores).saturating_mul(self.threads)
    }
}

/// A kind of work. Speeds are parts of what a pCPU does that shares nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// Its name.
    pub name: String,
    /// Its speed while all siblings of the core are busy, whatever with (decoder; P4 III-F, Figure 16).
    pub beside_sibling: f64,
    /// Its speed while all siblings use the FPU, as it does; 1: it does not (Figure 16).
    pub fpu: f64,
    /// What a thread of it fills of the last-level cache, KiB.
    pub footprint_kib: u32,
    /// Its speed when nothing of it is left in the cache.
    pub without_cache: f64,
    /// Its speed on nodes that its memory is not on.
    pub remote: f64,
}

impl Class {
    /// Work that nothing slows down.
    #[must_use]
    pub fn plain(name: &str) -> Class {
        Class {
            name: name.into(),
            beside_sibling: 1.0,
            fpu: 1.0,
            footprint_kib: 0,
            without_cache: 1.0,
            remote: 1.0,
        }
    }
}

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

/// What switching takes, ns: orders of magnitude of published costs of exits, wake-ups and context
/// switches; not measured here, and all can be set in a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Another vCPU on a pCPU.
    pub switch_ns: u64,
    /// The first run on another pCPU with the same last-level cache, and with another.
    pub migrate_near_ns: u64,
    /// See above.
    pub migrate_far_ns: u64,
    /// From the order to run something else until the other pCPU does.
    pub ipi_ns: u64,
    /// Leaving the guest to halt, and entering it again.
    pub halt_ns: u64,
    /// A hypercall or exit that wakes up another vCPU.
    pub kick_ns: u64,
    /// An exit because of spinning.
    pub ple_exit_ns: u64,
    /// Another thread on a vCPU.
    pub thread_switch_ns: u64,
    /// A thread wakes up another.
    pub thread_wake_ns: u64,
    /// A guest takes a vCPU offline or online: work of its first vCPU (milliseconds in published measurements of
    /// Linux' CPU hotplug; moved threads pay `migrate_near_ns` besides).
    pub hotplug_ns: u64,
    /// A cache line from the one who wrote it to the one who waits for it.
    pub line_ns: u64,
    /// What a turn of a spinning loop takes.
    pub spin_turn_ns: u64,
}

impl Default for Costs {
    fn default() -> Costs {
        Costs {
            switch_ns: 2_000,
            migrate_near_ns: 2_000,
            migrate_far_ns: 20_000,
            ipi_ns: 1_000,
            halt_ns: 3_000,
            kick_ns: 1_500,
            ple_exit_ns: 1_500,
            thread_switch_ns: 1_500,
            thread_wake_ns: 1_000,
            hotplug_ns: 5_000_000,
            line_ns: 100,
            spin_turn_ns: 6,
        }
    }
}

impl Costs {
    /// Everything is free.
    #[must_use]
    pub fn none() -> Costs {
        Costs {
            switch_ns: 0,
            migrate_near_ns: 0,
            migrate_far_ns: 0,
            ipi_ns: 0,
            halt_ns: 0,
            kick_ns: 0,
            ple_exit_ns: 0,
            thread_switch_ns: 0,
            thread_wake_ns: 0,
            hotplug_ns: 0,
            line_ns: 0,
            spin_turn_ns: 1,
        }
    }
}

/// Detection of spinning by the hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ple {
    /// Whether it is on.
    pub on: bool,
    /// Spinning so long is noticed (4,096 cycles).
    pub window_ns: u64,
    /// Pauses of programs count, too (AMD's pause filter), not only the kernel's (Intel's PLE).
    pub user: bool,
    /// The yield is for a vCPU of the same VM that waits and does not spin (`kvm_vcpu_on_spin` in
    /// virt/kvm/kvm_main.c; under the fair scheduler only).
    pub directed: bool,
}

impl Default for Ple {
    fn default() -> Ple {
        Ple { on: true, window_ns: 1_800, user: false, directed: true }
    }
}

/// A limit, in each period anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// pCPU time.
    pub quota_ns: u64,
    /// Of so long a period.
    pub period_ns: u64,
}

impl Limit {
    /// In pCPUs.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "exact to 2^53 ns")]
    pub fn cpus(&self) -> f64 {
        self.quota_ns as f64 / self.period_ns as f64
    }
}

/// A VM.
#[derive(Clone, Debug)]
pub struct VmSpec {
    /// Unique.
    pub name: String,
    /// Among VMs.
    pub weight: u32,
    /// On the sum of its vCPUs. Under the credit scheduler it is Xen's cap, whatever the period.
    pub cap: Option<Limit>,
    /// Its vCPUs.
    pub vcpus: Vec<VcpuSpec>,
    /// Nodes that its memory is on; empty: all.
    pub memory_nodes: CpuSet,
    /// Its kernel.
    pub guest: GuestSpec,
    /// What runs in it.
    pub apps: Vec<AppSpec>,
    /// What is changed while it runs.
    pub changes: Vec<Change>,
}

/// A change of a VM at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// When, ns since the host began.
    pub at_ns: u64,
    /// So many vCPUs are online then, the first ones.
    pub online: Option<u32>,
    /// So many members have the teams of its programs from their next fork on.
    pub team: Option<u32>,
}

/// A vCPU.
#[derive(Clone, Debug)]
pub struct VcpuSpec {
    /// Among the vCPUs of its VM (Linux only).
    pub weight: u32,
    /// On itself (Linux only).
    pub limit: Option<Limit>,
    /// pCPUs it may use.
    pub affinity: CpuSet,
    /// pCPUs that are tried first: Xen's soft or node affinity. Empty: all.
    pub soft: CpuSet,
    /// Whether the guest uses it.
    pub online: bool,
}

/// A kernel inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestSpec {
    /// Its spin locks.
    pub lock: LockKind,
    /// Time slice of threads that share a vCPU.
    pub slice_ns: u64,
    /// A thread that wakes up preempts one that has run so long.
    pub wakeup_ns: u64,
    /// A thread that has a vCPU to itself goes on on an idle one after its time slice, so that sequential sections
    /// use the time of all vCPUs (P1 IV). Threads that are pinned or hold a kernel's lock stay.
    pub rotate: bool,
}

impl Default for GuestSpec {
    fn default() -> GuestSpec {
        GuestSpec { lock: LockKind::Ticket, slice_ns: 3_000_000, wakeup_ns: 1_000_000, rotate: false }
    }
}

/// Spin locks of kernels. See `host/locks.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Whoever comes first takes it.
    TestAndSet,
    /// First come, first served; waiters spin.
    Ticket,
    /// Waiters halt after 2^15 turns, and are kicked (P3 2).
    PvTicket,
    /// P3 3: the threshold by distance, and kicks ahead of time.
    OTicket {
        /// Waiters closer than this spin longer; 18 in P3.
        near: u32,
        /// Waiters kicked by an unlock; 4 in P3.
        wake: u32,
    },
    /// The threshold of a lock doubles each time that a waiter halts (P3 5.2).
    ITicket,
    /// 2^34 turns (P3 5.2).
    LongerSpin,
    /// As [`LockKind::PvTicket`], but waiters do not disturb each other's cache lines (qspinlock).
    Queue,
}

/// A program and its threads.
#[derive(Clone, Debug)]
pub struct AppSpec {
    /// Unique in its VM.
    pub name: String,
    /// What it does.
    pub program: Program,
    /// How many threads; the largest team.
    pub threads: u32,
    /// Members of a team at the start; at most `threads`.
    pub team: u32,
    /// Which of [`Spec::classes`].
    pub class: usize,
    /// Thread i stays on vCPU i.
    pub pinned: bool,
    /// How long waiters at barriers spin before they block; 0: not at all, `u64::MAX`: for ever.
    pub spin_ns: u64,
    /// Whether that spinning pauses, so that it can be seen.
    pub pauses: bool,
    /// When it starts.
    pub start_ns: u64,
    /// Begins anew when it ends, until all others have ended once.
    pub again: bool,
}
