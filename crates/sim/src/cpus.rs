//! What schedulers and the host both see: pCPUs, vCPUs, and who is where.
//!
//! ```text
//!               enter                    dispatch
//!   Halted ───────────────▶ Waiting ─────────────────▶ Running
//!     ▲                      │  ▲ ▲                     │ │ │
//!     │                quota │  │ └───── preempted ─────┘ │ │
//!     │                      ▼  │ refill                  │ │
//!     │                   Throttled ◀───── quota used up ─┘ │
//!     └───────────────── nothing to do, or slow path of a lock ┘
//! ```

use crate::hardware::Topology;
use crate::queue::{NEVER, Ns};

/// Nobody.
pub(crate) const NONE: u32 = u32::MAX;

/// Reasons for which a vCPU is parked: its VM is over its cap (credit scheduler); it is ahead of its VM's slowest vCPU;
/// it may no longer be where it is.
pub(crate) const OVER_CAP: u8 = 1;
pub(crate) const AHEAD: u8 = 2;
pub(crate) const MOVED: u8 = 4;

/// The state of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VState {
    Halted,
    Waiting,
    Running,
    /// Wants to run, but its quota is used up, or its VM is over its cap.
    Throttled,
}

/// A physical CPU. What each event touches comes first, and is one line of cache.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Pcpu {
    /// vCPU on it.
    pub(crate) run: u32,
    /// vCPUs that wait for it.
    pub(crate) waiting: u32,
    /// All that happened until then is accounted.
    pub(crate) since: Ns,
    /// Work per ns, in parts of 1024.
    pub(crate) rate: u32,
    /// Part of its time in which what it works at waits for lines that its cache has not, in parts of 1024.
    pub(crate) missing: u32,
    /// Slice or quota end.
    pub(crate) limit: Ns,
    /// When it is to look for something better to run.
    pub(crate) resched: Ns,
    /// When `run` came.
    pub(crate) dispatched: Ns,
    pub(crate) idle_since: Ns,
    /// The vCPU before `run`.
    pub(crate) last: u32,
    /// As what it counts as busy: class + 1, or 0.
    pub(crate) counted: u32,
    pub(crate) idle_ns: Ns,
}

/// Time of one vCPU in the running period, by use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Use {
    pub(crate) utilised: Ns,
    pub(crate) spinning: Ns,
    pub(crate) switching: Ns,
}

/// A virtual CPU, the hypervisor's part and the guest's. What each event touches comes first, and is one line of cache.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Vcpu {
    /// Overhead to pay before it goes on.
    pub(crate) debt: Ns,
    pub(crate) used: Use,
    /// Until the guest lets the next thread run.
    pub(crate) guest_left: Ns,
    /// Spinning until PLE notices.
    pub(crate) ple_left: Ns,
    /// The guest's thread on it.
    pub(crate) cur: u32,
    /// Where it runs, waits, or ran last.
    pub(crate) pcpu: u32,
    pub(crate) vm: u32,
    pub(crate) state: VState,
    /// The end of the guest's slice matters: threads wait, or the guest rotates.
    pub(crate) sliced: bool,
    pub(crate) online: bool,
    /// May not run, for these reasons: [`OVER_CAP`], [`AHEAD`].
    pub(crate) parked: u8,

    /// Threads that wait for it in the guest.
    pub(crate) ready: crate::host::Ready,
    /// Where it last ran; [`NONE`] before it did.
    pub(crate) ran_on: u32,
    /// Number of its mask of pCPUs, and of those to try first.
    pub(crate) mask: u32,
    pub(crate) soft: u32,
    pub(crate) weight: u64,
    /// The scheduler knows of what it ran until then.
    pub(crate) charged: Ns,
    pub(crate) wait_since: Ns,
    pub(crate) run_ns: Ns,
    pub(crate) wait_ns: Ns,
    /// Left of its own quota in this period, with what was saved; [`NEVER`] without one.
    pub(crate) quota_left: Ns,
    /// Since when a quota keeps it from running, its own or else its VM's; [`NEVER`] if none does.
    pub(crate) stopped_since: Ns,
    pub(crate) stopped_by_own: bool,
    /// How often its own quota did that.
    pub(crate) throttled: corefit_core::Throttled,
    /// Left of what it took from its VM's quota; [`NEVER`] without one.
    pub(crate) pool_left: Ns,
    /// The guest lets a thread that is alone here go on elsewhere after its slice.
    pub(crate) rotates: bool,
    /// Though it spins, the next yield may be for it.
    pub(crate) eligible: bool,
}

/// What a scheduler has to know of a VM.
#[derive(Clone, Debug)]
pub(crate) struct VmCpus {
    pub(crate) first: u32,
    pub(crate) count: u32,
    pub(crate) weight: u64,
    /// Weights of its vCPUs that want to run.
    pub(crate) runnable: u64,
    /// Weight over `runnable`, times 2^20.
    pub(crate) unit: u64,
    /// That counts, not the weight of each vCPU by itself.
    pub(crate) grouped: bool,
    /// The most it may use, in parts of 1024 pCPUs; `None`: everything.
    pub(crate) cap: Option<u64>,
    /// Numbers of the masks that its vCPUs had while it was made, if others than now.
    pub(crate) made: Option<(u32, u32)>,
}

/// All of them.
#[derive(Clone, Debug)]
pub(crate) struct Cpus {
    pub(crate) pcpus: Vec<Pcpu>,
    pub(crate) vcpus: Vec<Vcpu>,
    pub(crate) vms: Vec<VmCpus>,
    /// By vCPU: how often it was put on a pCPU.
    pub(crate) runs: Vec<u64>,
    /// By vCPU: its slice under EEVDF; 0: the scheduler's own.
    pub(crate) slices: Vec<Ns>,
    pub(crate) topology: Topology,
    /// Words of every mask.
    pub(crate) words: usize,
    pub(crate) masks: Vec<Vec<u64>>,
    /// pCPUs without a vCPU, and those of them whose whole core is idle.
    pub(crate) idle: Vec<u64>,
    pub(crate) idle_cores: Vec<u64>,
    /// pCPUs that somebody waits for.
    pub(crate) crowded: Vec<u64>,
    /// No two vCPUs of a VM on a pCPU where it can be helped.
    pub(crate) spread_siblings: bool,
}

impl Pcpu {
    pub(crate) fn new() -> Pcpu {
        Pcpu {
            run: NONE,
            last: NONE,
            waiting: 0,
            since: 0,
            rate: 1024,
            missing: 0,
            limit: NEVER,
            resched: NEVER,
            dispatched: 0,
            counted: 0,
            idle_since: 0,
            idle_ns: 0,
        }
    }
}

/// Sets or clears a bit.
pub(crate) fn put(words: &mut [u64], bit: u32, on: bool) {
    let (word, bit) = ((bit / 64) as usize, 1 << (bit % 64));
    if on {
        words[word] |= bit;
    } else {
        words[word] &= !bit;
    }
}

/// Whether a bit is set.
pub(crate) fn has(words: &[u64], bit: u32) -> bool {
    words[(bit / 64) as usize] & (1 << (bit % 64)) != 0
}

/// The set bits, lowest first.
pub(crate) fn bits(words: &[u64]) -> impl Iterator<Item = u32> + '_ {
    (0_u32..).zip(words).flat_map(|(index, &word)| {
        let mut word = word;
        std::iter::from_fn(move || {
            let bit = (word != 0).then(|| word.trailing_zeros())?;
            word &= word - 1;
            Some(index * 64 + bit)
        })
    })
}

impl Cpus {
    /// Whether a vCPU may run there.
    #[inline]
    pub(crate) fn may(&self, v: u32, p: u32) -> bool {
        has(&self.masks[self.vcpus[v as usize].mask as usize], p)
    }

    /// The first common bit of two sets from `from` on, then from the start.
    fn common(&self, set: &[u64], mask: &[u64], from: u32) -> Option<u32> {
        let both = |word: usize| set[word] & mask[word];
        let start = (from / 64) as usize;
        let high = both(start) & (u64::MAX << (from % 64));
        let bit = |word: usize, bits: u64| {
            (bits != 0).then(|| u32::try_from(word).unwrap_or(0) * 64 + bits.trailing_zeros())
        };
        let later = (start + 1..self.words).chain(0..=start);
        bit(start, high).or_else(|| later.map(|word| bit(word, both(word))).find_map(|b| b))
    }

    /// An idle pCPU for a vCPU: among its preferred ones if there is one, then among all of its; with
    /// a whole core to itself if possible; where it was, if possible.
    pub(crate) fn idle_for(&self, v: u32) -> Option<u32> {
        let vcpu = &self.vcpus[v as usize];
        let (mask, soft) = (&self.masks[vcpu.mask as usize], vcpu.soft);
        let near = vcpu.pcpu;
        let of = |mask: &[u64]| {
            self.common(&self.idle_cores, mask, near).or_else(|| self.common(&self.idle, mask, near))
        };
        let preferred = if soft == vcpu.mask { None } else { of(&self.masks[soft as usize]) };
        preferred.or_else(|| of(mask))
    }

    /// Where a vCPU that runs beside a busy sibling would have a core to itself: the first place from its own on.
    pub(crate) fn better_core(&self, v: u32) -> Option<u32> {
        let vcpu = &self.vcpus[v as usize];
        let core = self.topology.places[vcpu.pcpu as usize].core as usize;
        if self.topology.busy[core] < 2 {
            return None;
        }
        self.common(&self.idle_cores, &self.masks[vcpu.soft as usize], vcpu.pcpu)
    }

    /// Where a vCPU waits if nothing is idle: where it was, or what it may use and has the fewest
    /// waiting. With `spread_siblings`, where no vCPU of its VM is, if there is such a place.
    pub(crate) fn crowded_for(&self, v: u32, waiting: &[Vec<u32>]) -> u32 {
        let vcpu = &self.vcpus[v as usize];
        let mask = &self.masks[vcpu.mask as usize];
        if has(mask, vcpu.pcpu) && !self.spread_siblings {
            return vcpu.pcpu;
        }
        let stacked = |p: u32| self.spread_siblings && self.stacks(v, p, waiting);
        let best =
            bits(mask).min_by_key(|&p| (stacked(p), self.pcpus[p as usize].waiting, p != vcpu.pcpu, p));
        best.unwrap_or(vcpu.pcpu)
    }

    /// Whether another vCPU of its VM runs or waits on a pCPU.
    pub(crate) fn stacks(&self, v: u32, p: u32, waiting: &[Vec<u32>]) -> bool {
        let vm = self.vcpus[v as usize].vm;
        let sibling = |other: u32| other != NONE && self.vcpus[other as usize].vm == vm && other != v;
        sibling(self.pcpus[p as usize].run) || waiting[p as usize].iter().any(|&w| sibling(w))
    }

    /// An idle pCPU for a vCPU among some, with the preferences of [`Cpus::idle_for`].
    pub(crate) fn idle_among(&self, v: u32, among: &[u64]) -> Option<u32> {
        let vcpu = &self.vcpus[v as usize];
        let own = vcpu.pcpu;
        let of = |idle: &[u64], mask: u32| {
            let there = |word: usize| idle[word] & self.masks[mask as usize][word] & among[word];
            if there((own / 64) as usize) & (1 << (own % 64)) != 0 {
                return Some(own);
            }
            let word = (0..self.words).find(|&word| there(word) != 0)?;
            Some(u32::try_from(word).unwrap_or(0) * 64 + there(word).trailing_zeros())
        };
        [vcpu.soft, vcpu.mask]
            .iter()
            .find_map(|&mask| of(&self.idle_cores, mask).or_else(|| of(&self.idle, mask)))
    }

    /// A pCPU begins or ends to be idle.
    pub(crate) fn set_idle(&mut self, p: u32, idle: bool) {
        put(&mut self.idle, p, idle);
        let core = self.topology.places[p as usize].core as usize;
        let whole = self.topology.siblings[core].iter().all(|&q| has(&self.idle, q));
        for index in 0..self.topology.siblings[core].len() {
            put(&mut self.idle_cores, self.topology.siblings[core][index], whole);
        }
    }

    /// Somebody begins or ends to wait for a pCPU.
    pub(crate) fn count_waiting(&mut self, p: u32, more: bool) {
        let waiting = &mut self.pcpus[p as usize].waiting;
        *waiting = if more { *waiting + 1 } else { *waiting - 1 };
        let crowded = *waiting > 0;
        put(&mut self.crowded, p, crowded);
    }
}
