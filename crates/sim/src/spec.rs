//! What a simulated host is made of: plain data, with defaults and their sources.
//!
//! Times are ns. A [`Spec`] that [`crate::Sim::new`] accepts can be run; scenario files become one in
//! `scenario/`.

use corefit_core::CpuSet;

pub use crate::policy::*;
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
    /// pCPUs are slower while they have little to do; `None`: never.
    pub governor: Option<Governor>,
    /// Length of the periods that time is accounted in; 0: the scheduler's own.
    pub period_ns: u64,
    /// The end, if programs do not end before.
    pub until_ns: u64,
    /// What happens before is not in [`Truth`](crate::Truth), but for when programs end and how many events there were:
    /// a steady state has no beginning.
    pub warmup_ns: u64,
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

/// Who makes pCPUs slower that have little to do: Xen's `ondemand`, its default (`cpufreq_ondemand.c`). See `host/pace.rs`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Governor {
    /// The least speed, as a part of the full one.
    pub slowest: f64,
    /// How often it looks (20 ms: `MIN_STAT_SAMPLING_RATE`).
    pub sample_ns: u64,
}

impl Default for Governor {
    fn default() -> Governor {
        Governor { slowest: 1.0, sample_ns: 20_000_000 }
    }
}

/// A limit, in each period anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// pCPU time.
    pub quota_ns: u64,
    /// Of so long a period.
    pub period_ns: u64,
    /// What of it may be saved for later periods, at most the quota (Linux only; kernel/sched/fair.c,
    /// `__refill_cfs_bandwidth_runtime`).
    pub burst_ns: u64,
}

impl Limit {
    /// In pCPUs.
    #[must_use]
    pub fn cpus(&self) -> f64 {
        self.quota_ns as f64 / self.period_ns as f64
    }

    /// What is there when a period begins with so much left.
    pub(crate) fn refilled(&self, left_ns: u64) -> u64 {
        left_ns.saturating_add(self.quota_ns).min(self.quota_ns.saturating_add(self.burst_ns))
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
    /// pCPUs that were preferred while it was made and started, before its affinities were set: xl's automatic node affinity
    /// (Xen's credit scheduler only). Empty: it was made with its affinities.
    pub made_on: CpuSet,
    /// Its kernel.
    pub guest: GuestSpec,
    /// What runs in it.
    pub apps: Vec<AppSpec>,
    /// What is changed while it runs.
    pub changes: Vec<Change>,
    /// Controllers are told of its progress: marks, and barriers and joins of its teams.
    pub progress: bool,
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
    /// Its thread's own slice under EEVDF, 100 us to 100 ms; `None`: the scheduler's.
    pub slice_ns: Option<u64>,
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
    /// Packages that it takes its vCPUs for, all of the same size but the last: new threads go to each in turn (Linux:
    /// `find_idlest_group`).
    pub packages: u32,
}

impl Default for GuestSpec {
    fn default() -> GuestSpec {
        GuestSpec {
            lock: LockKind::Ticket,
            slice_ns: 3_000_000,
            wakeup_ns: 1_000_000,
            rotate: false,
            packages: 1,
        }
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
    /// Ours (`crates/lock`, `kernel/`): waiters halt soon, a release kicks the first one, and while that one is not
    /// yet there others may take the lock.
    Corefit {
        /// How often the first in line may be passed; 0: strictly first come, first served.
        bypasses: u32,
        /// CPUs that it thinks there are: behind as many, holder included, nobody spins. 0: the VM's vCPUs.
        cpus: u32,
    },
}

/// How a team's members wait for each other at its beginning and its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Runtime {
    /// LLVM's: the master waits for all at the end, each of the others only for the next team.
    #[default]
    Libomp,
    /// GCC's: all wait for all at the end, and again before the next team begins.
    Libgomp,
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
    /// The same if it has more threads than the VM has vCPUs online at the start, which runtimes look up once (libgomp:
    /// `gomp_throttled_spin_count_var`); `None`: the same.
    pub crowded_spin_ns: Option<u64>,
    /// How teams begin and end.
    pub runtime: Runtime,
    /// Whether that spinning pauses, so that it can be seen.
    pub pauses: bool,
    /// When it starts.
    pub start_ns: u64,
    /// Begins anew when it ends, until all others have ended once.
    pub again: bool,
}
