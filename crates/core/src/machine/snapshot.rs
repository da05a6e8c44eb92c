//! What a machine shows at one instant: settings and raw counters, nothing derived.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{CacheUse, Fixed, LeverKind};
use crate::decide::Rule;
use crate::entitle::WeightRule;
use crate::topology::Cache;
use crate::{CpuId, CpuSet, Quota, Throttled, Time, Unread, Weight, What};

/// A host at one instant.
///
/// Groups and VMs form the tree that the host's scheduler divides time over; each names its parent.
/// What competes with VMs without being one (the host's own services, other users) is in it too, as
/// [`Role::Other`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// When the reading began.
    pub at: Time,
    /// How the scheduler weighs.
    pub rule: WeightRule,
    /// All pCPUs, by number.
    pub pcpus: Vec<Pcpu>,
    /// Last-level caches, as far as the host shows them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<Cache>,
    /// Slices: groups that hold VMs or other groups. A parent stands before its children.
    pub groups: Vec<Group>,
    /// VMs, and whatever else uses pCPUs.
    pub vms: Vec<VmState>,
    /// What could not be read.
    pub unread: Vec<Unread>,
    /// What readers of the result should know, such as that the host's own processes are not seen.
    pub notes: Vec<String>,
    /// Why nobody counts here what VMs do to caches ([`VmState::cache`]); `None` where that can be counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uncounted: Option<String>,
}

/// A pCPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pcpu {
    /// Its number.
    pub id: CpuId,
    /// Whether it runs anything.
    pub online: bool,
    /// Its NUMA node.
    pub node: Option<u32>,
    /// Its socket.
    pub package: Option<u32>,
    /// The pCPUs of its core, itself included: SMT threads, or the two halves of a module.
    pub siblings: Option<CpuSet>,
    /// Idle since boot, ns, waiting for input or output included.
    pub idle_ns: Option<u64>,
    /// Taken away by a hypervisor below this host since boot, ns.
    pub steal_ns: Option<u64>,
}

/// A slice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Unique among groups and VMs; a control group's path.
    pub name: String,
    /// The group it is in; `None` at the top.
    pub parent: Option<String>,
    /// Among its siblings; `None`: the usual one, or unread.
    pub weight: Option<Weight>,
    /// Its bandwidth limit; `None` if there is no such setting, or unread.
    pub quota: Option<Quota>,
    /// Which of these could not be read: [`What::Weight`], [`What::Quota`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<What>,
}

/// Tells a VM from every other, a later one of the same name included: libvirt's UUID and number,
/// a control group's path and inode.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VmId(pub String);

/// What something that uses pCPUs is to us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// A VM, or a container or control group that plays one.
    #[default]
    Vm,
    /// It competes, but nobody asks what it is entitled to. It counts with what it was measured to
    /// want, never with more.
    Other,
}

/// Whether a VM can use its vCPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It can.
    #[default]
    Running,
    /// Stopped for the time being: by its operator, or while it migrates.
    Paused,
}

/// A VM, or something that competes with VMs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VmState {
    /// Which one.
    pub id: VmId,
    /// Unique among groups and VMs of the snapshot.
    pub name: String,
    /// What it is to us.
    pub role: Role,
    /// Whether it can run.
    pub state: State,
    /// Of a real-time thread of a VM: which VM. The thread is a [`Role::Other`] at the top, where it runs before
    /// all that have weights (sched(7)); what it does counts to the VM, whose own counters leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part_of: Option<String>,
    /// The group it is in; `None` at the top.
    pub parent: Option<String>,
    /// Among its siblings; `None`: the usual one, or unread.
    pub weight: Option<Weight>,
    /// Its bandwidth limit for everything in it (libvirt: `global_quota` over `global_period`);
    /// `None` if there is no such setting, or unread.
    pub quota: Option<Quota>,
    /// How often that limit stopped it; `None` where it has none, or nobody counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttled: Option<Throttled>,
    /// Which of its settings, or those of its vCPUs and helpers, could not be read: [`What::Weight`],
    /// [`What::Quota`]. Where they would be stands in [`Snapshot::unread`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<What>,
    /// Its vCPUs by number. A control group has one per CPU of its effective cpuset.
    pub vcpus: Vec<VcpuState>,
    /// Threads that are not vCPUs: emulator, iothreads.
    pub helpers: Vec<Helper>,
    /// Of everything in it together, where vCPUs have no counters of their own (a control group).
    pub whole: Option<Counters>,
    /// When all its counters were zero, if that is known: what began after an earlier snapshot did all
    /// that it did since then. `None` says nothing.
    pub began: Option<Time>,
    /// NUMA nodes that its memory may come from; `None` if nothing is said.
    pub memory_nodes: Option<CpuSet>,
    /// Of a control group of which nothing is said: those that the groups above leave its memory; `None` if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_above: Option<CpuSet>,
    /// What the guest itself says.
    pub guest: Option<GuestView>,
    /// Its owner asked that nothing of it be changed (libvirt: metadata of the domain, see `docs/operating.md`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hands_off: bool,
    /// What its owner asks for it there; counts where no rule of the administrator's says something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wishes: Option<Box<Rule>>,
    /// What its owner says there that makes no sense, and the remedy; nothing of it is changed then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unclear: Option<String>,
    /// What was kept with it by [`Act::keep`](super::Act::keep), here or on a host that it came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<String>,
    /// Work done since some instant in the past, in units of whoever counts it (rounds of a thread team, marks of a
    /// program); only its growth means something. `None` where nobody counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<f64>,
    /// When it was so much, by a clock of whoever counts. `None`: at the time of the snapshot. A guest's count comes late, and
    /// may be the same in several snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_at: Option<Time>,
    /// What it does to the last-level caches; `None` where nobody counts that for it alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheUse>,
    /// Slices of its threads (of a VM: of its vCPUs) under the fair scheduler; `None` where there is no such thing, or
    /// it could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slices: Option<FairSlices>,
    /// Of a control group whose threads keep to fewer pCPUs than its cpuset allows (they set their own affinity): those that it allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpuset: Option<CpuSet>,
    /// It is a control group without a process: nobody in it could use anything.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub empty: bool,
    /// vCPUs that stay online however many it is to have: those of its start, where they only come and go by plugging.
    #[serde(default, skip_serializing_if = "CpuSet::is_empty")]
    pub cold: CpuSet,
    /// Levers that it does not have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fixed: Vec<Fixed>,
}

impl VmState {
    /// The weight of a real-time thread, the heaviest that the model takes. It has none: it runs before all that
    /// have weights, which comes out the same to four digits and more, for it counts with what it wants.
    pub const REALTIME: Weight = Weight(1e9);

    /// Whether it is a real-time thread at the top.
    #[must_use]
    pub fn is_realtime(&self) -> bool {
        self.role == Role::Other && self.weight == Some(VmState::REALTIME)
    }

    /// Whether it is a VM that runs.
    #[must_use]
    pub fn is_running_vm(&self) -> bool {
        self.role == Role::Vm && self.state == State::Running
    }

    /// Whether it is a control group: it has one cpuset, and one number for all of its slices.
    #[must_use]
    pub fn is_group(&self) -> bool {
        self.whole.is_some()
    }

    /// Why a lever of it cannot be moved, or is not to be; `None` if nothing is known against it.
    #[must_use]
    pub fn fixed(&self, lever: LeverKind) -> Option<&str> {
        if let Some(why) = &self.unclear {
            return Some(why);
        }
        if self.hands_off {
            return Some("its owner set hands-off in its metadata");
        }
        self.lacks(lever)
    }

    /// The same whatever its owner wants: why it does not have a lever.
    #[must_use]
    pub fn lacks(&self, lever: LeverKind) -> Option<&str> {
        self.fixed.iter().find(|fixed| fixed.lever == lever).map(|fixed| fixed.reason.as_str())
    }

    /// Its vCPUs that are online.
    #[must_use]
    pub fn online(&self) -> CpuSet {
        let online = (0..).zip(&self.vcpus).filter(|(_, vcpu)| vcpu.online);
        online.map(|(number, _)| CpuId(number)).collect()
    }
}

/// Time run and waited, ns since some instant in the past that does not change while the VM lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// On a pCPU. `None` if unread.
    pub run_ns: Option<u64>,
    /// Runnable, but not on a pCPU. `None` if unread.
    pub wait_ns: Option<u64>,
    /// How often it was put on a pCPU. `None` if unread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs: Option<u64>,
}

/// What slices some threads have under the fair scheduler (EEVDF, Linux from 6.12 on), ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FairSlices {
    /// What a thread has for which nothing is said (`base_slice_ns`).
    pub base_ns: u64,
    /// The shortest among them.
    pub least_ns: u64,
    /// The longest.
    pub most_ns: u64,
    /// Threads that have none: real-time, with deadlines, `SCHED_IDLE`.
    pub without: u32,
}

/// A vCPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VcpuState {
    /// Whether the VM has it: plugged in on the host, and not known to be offline in the guest.
    pub online: bool,
    /// Among the vCPUs (and helpers) of its VM; `None`: the usual one, or unread ([`VmState::unread`]).
    pub weight: Option<Weight>,
    /// Its own bandwidth limit (libvirt: `vcpu_quota` over `vcpu_period`).
    pub quota: Option<Quota>,
    /// How often that limit stopped it; `None` where it has none, or nobody counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttled: Option<Throttled>,
    /// The pCPUs it may use; `None` if unread.
    pub affinity: Option<CpuSet>,
    /// What it is said to be pinned to, where the host does not have all of that, or some of it is offline; `None` where `affinity` is all of it,
    /// and where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pin: Option<CpuSet>,
    /// What it did.
    pub counters: Counters,
    /// Where it was last seen to run.
    pub on: Option<CpuId>,
}

/// Threads of a VM that are not vCPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Helper {
    /// `emulator`, `iothread 1`.
    pub name: String,
    /// As of a vCPU.
    pub weight: Option<Weight>,
    /// As of a vCPU.
    pub quota: Option<Quota>,
    /// As of a vCPU.
    pub affinity: Option<CpuSet>,
    /// What they did together.
    pub counters: Counters,
}

/// What a guest agent told.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GuestView {
    /// Its vCPUs by number.
    pub vcpus: Vec<GuestVcpu>,
    /// Threads that are running or runnable in the guest, without the one that tells this (`procs_running` of its `/proc/stat`, less one).
    pub runnable: Option<u32>,
    /// Units of work that its programs have counted, and when it was so many, by its own clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<(u64, Time)>,
}

/// A vCPU as its guest sees it. Times in ns since the guest's boot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestVcpu {
    /// Its number in the guest.
    pub id: u32,
    /// Whether the guest uses it.
    pub online: bool,
    /// Neither idle nor stolen.
    pub busy_ns: Option<u64>,
    /// Idle, waiting for input or output included.
    pub idle_ns: Option<u64>,
    /// Stolen, as far as the hypervisor tells its guests.
    pub steal_ns: Option<u64>,
    /// Of `busy_ns`: threads of low priority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nice_ns: Option<u64>,
    /// Of `idle_ns`: waiting for input or output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iowait_ns: Option<u64>,
}

/// Whether what could not be read are VMs: each is named as the path.
fn lack_vms(unread: &[Unread]) -> bool {
    unread.iter().any(|unread| unread.what == What::Siblings && unread.path.starts_with("VM "))
}

/// Whether a VM is one of those that were read, or may only be missing.
pub(super) fn may_have<'s>(
    read: impl Iterator<Item = &'s VmId>,
    unread: &[Unread],
) -> impl Fn(&VmId) -> bool {
    let read: BTreeSet<&VmId> = read.collect();
    let lacks = lack_vms(unread);
    move |id| lacks || read.contains(id)
}

impl Snapshot {
    /// The pCPUs that are there, and those of them that are offline.
    #[must_use]
    pub fn pcpu_sets(&self) -> (CpuSet, CpuSet) {
        let offline = self.pcpus.iter().filter(|pcpu| !pcpu.online);
        (self.pcpus.iter().map(|pcpu| pcpu.id).collect(), offline.map(|pcpu| pcpu.id).collect())
    }

    /// Whether VMs may be there that are not in it: some could not be read. Who is missing then has not ended for sure.
    #[must_use]
    pub fn may_lack_vms(&self) -> bool {
        lack_vms(&self.unread)
    }

    /// Whether a VM of this name may be there, though it could not be read.
    #[must_use]
    pub fn may_lack(&self, name: &str) -> bool {
        let path = format!("VM {name:?}");
        self.unread.iter().any(|unread| unread.what == What::Siblings && unread.path == path)
    }

    /// Whether a VM is in it, or may only be missing: to be asked of many.
    pub fn may_have(&self) -> impl Fn(&VmId) -> bool {
        may_have(self.vms.iter().map(|vm| &vm.id), &self.unread)
    }
}
