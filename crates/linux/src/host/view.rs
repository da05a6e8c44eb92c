//! What a look at a host's tree finds.

use corefit_core::machine::{CacheUse, Counters, FairSlices, Group, Pcpu, VcpuState, VmId, VmState};
use corefit_core::topology::Cache;
use corefit_core::{CpuSet, Quota, Throttled, Time, Unread, Weight, What};

use super::resctrl::Monitors;

/// Whether to read what the VMs' groups used and waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmCounters {
    /// Yes.
    Read,
    /// No: somebody else knows better (libvirt counts each vCPU).
    Skip,
}

/// A host's tree at one instant.
#[derive(Clone, Debug, Default)]
pub struct HostView {
    /// When the reading began.
    pub at: Time,
    /// All pCPUs.
    pub pcpus: Vec<Pcpu>,
    /// Last-level caches.
    pub caches: Vec<Cache>,
    /// Why nobody counts what VMs do to caches; `None` where somebody does.
    pub uncounted: Option<String>,
    /// Who counts it.
    pub(crate) monitors: Monitors,
    /// Slices on the way to VMs, parents first, each named by its path. The top itself is none of them.
    pub groups: Vec<Group>,
    /// Everything else that competes, as [`Role::Other`](corefit_core::machine::Role::Other).
    pub others: Vec<VmState>,
    /// The VMs' groups that exist, in the order of their paths.
    pub vms: Vec<VmGroup>,
    /// What could not be read.
    pub unread: Vec<Unread>,
}

/// The group of a VM.
#[derive(Clone, Debug)]
pub struct VmGroup {
    /// Its path below the top.
    pub path: String,
    /// Path and inode: tells it from a later group of the same path.
    pub id: VmId,
    /// The slice that it is in; `None` at the top.
    pub parent: Option<String>,
    /// Among its siblings (v1: 1024 is usual, v2: 100); `None` if unread.
    pub weight: Option<Weight>,
    /// Its bandwidth limit; `None` if it has no such setting.
    pub quota: Option<Quota>,
    /// How often that limit stopped it; `None` without one.
    pub throttled: Option<Throttled>,
    /// Which of these could not be read.
    pub unread: Vec<What>,
    /// The pCPUs that it may use.
    pub cpus: CpuSet,
    /// Those that its cpuset allows, where its threads keep to fewer.
    pub cpuset: Option<CpuSet>,
    /// Why its cpuset cannot be set: there is none, or it is empty (v1).
    pub no_cpuset: Option<&'static str>,
    /// The NUMA nodes that are set for its memory; `None` if nothing is set.
    pub memory_nodes: Option<CpuSet>,
    /// Where nothing is set: those that the groups above leave it; `None` if that is not known.
    pub memory_above: Option<CpuSet>,
    /// Whether memory moves when these are changed.
    pub memory_moves: bool,
    /// What everything in it used and waited for; `None` each if unread or not asked for.
    pub counters: Counters,
    /// Slices of its threads; `None` where they have none, or nobody asks.
    pub slices: Option<FairSlices>,
    /// What it did to the last-level caches; `None` where nobody counts that, or nobody asks.
    pub cache: Option<CacheUse>,
    /// Where its threads were seen to run last.
    pub on: CpuSet,
    /// An instant before it was made, after the look before, if it is new.
    pub began: Option<Time>,
    /// No process is in it, or below it.
    pub empty: bool,
}

impl VmGroup {
    /// The group as a VM: one vCPU per pCPU that it may use.
    #[must_use]
    pub fn into_vm(self) -> VmState {
        let fixed = super::act::fixed(&self);
        VmState {
            vcpus: per_cpu(&self.cpus, &self.on),
            id: self.id,
            name: self.path,
            parent: self.parent,
            weight: self.weight,
            quota: self.quota,
            throttled: self.throttled,
            unread: self.unread,
            whole: Some(self.counters),
            cache: self.cache,
            began: self.began,
            empty: self.empty,
            fixed,
            slices: self.slices,
            memory_nodes: self.memory_nodes,
            memory_above: self.memory_above,
            cpuset: self.cpuset,
            ..VmState::default()
        }
    }
}

/// One vCPU per pCPU, each of which may use all of them.
pub(super) fn per_cpu(cpus: &CpuSet, on: &CpuSet) -> Vec<VcpuState> {
    let vcpu = |cpu| VcpuState {
        online: true,
        affinity: Some(cpus.clone()),
        on: on.contains(cpu).then_some(cpu),
        ..VcpuState::default()
    };
    cpus.iter().map(vcpu).collect()
}
