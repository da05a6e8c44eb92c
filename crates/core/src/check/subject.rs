//! What is checked: a host's shape, and its VMs as their configuration has them.

use serde::{Deserialize, Serialize};

use crate::machine::{Classed, FairSlices, Starved, Timeslices};
use crate::topology::Topology;
use crate::{CpuSet, Cpus, Quota, Weight};

/// Where a setting is written.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// A file's name, or what printed the text (`virsh dumpxml web`).
    pub file: String,
    /// From 1; `None` for what has no lines.
    pub line: Option<u32>,
    /// The element or key, such as `<vcpupin>` or `cpus`; may be empty.
    pub element: String,
}

/// A setting, and where it is written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Set<T> {
    /// What it says.
    pub value: T,
    /// Where.
    pub place: Place,
}

/// Who manages a VM, and so in which words its settings are changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Manager {
    /// libvirt: `virsh`, domain XML.
    #[default]
    Libvirt,
    /// Xen's `xl`.
    Xen,
    /// A control group that plays a VM.
    Cgroup,
    /// A container with pCPUs of its own by Kubernetes' CPU manager.
    Kubernetes,
}

/// How a running VM gets fewer vCPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fewer {
    /// They are plugged out.
    #[default]
    Unplugged,
    /// Its guest's agent takes them offline.
    ByGuest,
    /// Not before it is started anew.
    AtStart,
}

/// A host and its VMs.
#[derive(Clone, Debug, Default)]
pub struct Subject {
    /// The host's shape; rules that need it say nothing without.
    pub topology: Option<Topology>,
    /// pCPUs kept for the host itself.
    pub reserved: Option<Set<CpuSet>>,
    /// pCPUs that a manager of dedicated ones gives to everybody else (Kubernetes' default set).
    pub shared: Option<Set<CpuSet>>,
    /// The VMs, in the order given.
    pub vms: Vec<Vm>,
    /// Why nobody counted what VMs do to caches, where somebody looked.
    pub uncounted: Option<String>,
}

/// A VM, as configured.
#[derive(Clone, Debug, Default)]
pub struct Vm {
    /// Its name.
    pub name: String,
    /// Whose words cure it.
    pub manager: Manager,
    /// libvirt's URI, if it is not the usual one.
    pub connect: Option<String>,
    /// Seen running, so that a change has to reach the running VM; of Xen: without its configuration.
    pub running: bool,
    /// How it gets fewer vCPUs while it runs (libvirt).
    pub fewer: Fewer,
    /// vCPUs that nobody can plug out.
    pub cold: usize,
    /// Where its definition begins.
    pub place: Place,
    /// By number; with those that could be plugged in.
    pub vcpus: Vec<Vcpu>,
    /// The emulator and I/O threads whose affinity is said.
    pub helpers: Vec<Helper>,
    /// Limit of all its vCPUs together.
    pub cap: Option<Set<Quota>>,
    /// Limit of each vCPU.
    pub vcpu_quota: Option<Set<Quota>>,
    /// What became of the timeslices of these limits, where that was seen.
    pub timeslices: Timeslices,
    /// Slices of its threads, where that was seen.
    pub slices: Option<FairSlices>,
    /// What it had, where it was seen to starve.
    pub starved: Option<Starved>,
    /// What its work is like, where that was seen.
    pub class: Classed,
    /// If it is set.
    pub weight: Option<Set<Weight>>,
    /// Where its memory comes from, if that is said.
    pub memory: Option<Set<Memory>>,
    /// NUMA nodes that the guest is shown.
    pub cells: Vec<Cell>,
    /// What the guest is told of sockets, cores and threads, if that is said.
    pub guest: Option<Set<GuestTopology>>,
    /// Whether the guest sees the host's own topology (containers).
    pub sees_host: bool,
    /// Whether it was promised its pCPUs for itself, whatever their number.
    pub exclusive: bool,
}

/// A vCPU.
#[derive(Clone, Debug, Default)]
pub struct Vcpu {
    /// Whether the VM begins with it.
    pub online: bool,
    /// pCPUs that it may use; `None`: any.
    pub affinity: Option<Set<CpuSet>>,
    /// pCPUs that it prefers (Xen's soft or node affinity); `None`: no matter.
    pub prefers: Option<Set<CpuSet>>,
    /// What it would use if it never waited; `None` if that was not measured, which counts as busy.
    pub demand: Option<Cpus>,
}

/// A thread of a VM that is no vCPU.
#[derive(Clone, Debug, Default)]
pub struct Helper {
    /// Which.
    pub kind: HelperKind,
    /// pCPUs that it may use.
    pub affinity: Set<CpuSet>,
}

/// Which thread of a VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HelperKind {
    /// Of the emulator.
    #[default]
    Emulator,
    /// An I/O thread, by number.
    Iothread(u32),
}

/// Where a VM's memory comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Memory {
    /// These nodes, if need be or rather (`strict`, `interleave`, `preferred`, `restrictive`).
    Nodes {
        /// The nodes.
        nodes: CpuSet,
        /// libvirt's word.
        mode: String,
    },
    /// Nodes that a daemon chooses when the VM starts.
    Automatic,
}

/// A NUMA node that a guest is shown.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    /// Its number in the guest.
    pub id: u32,
    /// Its vCPUs.
    pub vcpus: CpuSet,
    /// Host nodes of its memory, if said.
    pub memory: Option<Set<CpuSet>>,
    /// How that comes from them, in libvirt's word, if said.
    pub mode: Option<String>,
}

/// What a guest is told. vCPUs are numbered from the inside out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestTopology {
    /// Sockets.
    pub sockets: u32,
    /// Cores of each socket, over all its dies and clusters.
    pub cores: u32,
    /// Threads of each core.
    pub threads: u32,
}

impl GuestTopology {
    /// vCPUs of such a guest.
    #[must_use]
    pub fn vcpus(&self) -> u64 {
        [self.cores, self.threads]
            .iter()
            .fold(u64::from(self.sockets), |product, n| product.saturating_mul(u64::from(*n)))
    }
}

impl Place {
    /// The same file, another line and element.
    #[must_use]
    pub fn at(&self, line: Option<u32>, element: &str) -> Place {
        Place { file: self.file.clone(), line, element: element.into() }
    }
}

impl std::fmt::Display for Place {
    /// `web.xml:12, <vcpupin>`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if self.element.is_empty() { Ok(()) } else { write!(f, ", {}", self.element) }
    }
}

impl Vm {
    /// The vCPUs that it begins with, and their numbers.
    pub fn online(&self) -> impl Iterator<Item = (u32, &Vcpu)> {
        (0..).zip(&self.vcpus).filter(|(_, vcpu)| vcpu.online)
    }

    /// How many vCPUs it begins with.
    #[must_use]
    pub fn width(&self) -> usize {
        self.online().count()
    }

    /// All pCPUs that its vCPUs may use; `None` if one may use any.
    #[must_use]
    pub fn pcpus(&self) -> Option<CpuSet> {
        let mut all = CpuSet::default();
        for (_, vcpu) in self.online() {
            all = all.union(&vcpu.affinity.as_ref()?.value);
        }
        (!all.is_empty()).then_some(all)
    }

    /// The pCPUs, if they are meant for it alone: promised, or (of a VM) each vCPU has one of its own.
    #[must_use]
    pub fn dedicated(&self) -> Option<CpuSet> {
        self.pcpus().filter(|_| self.exclusive || self.is_guest() && self.is_pinned())
    }

    /// Whether each of its vCPUs may use one pCPU only.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.online().all(|(_, vcpu)| vcpu.affinity.as_ref().is_some_and(|set| set.value.len() == 1))
    }

    /// Whether its vCPUs are a guest's: what plays a VM without being one has a "vCPU" for each pCPU.
    #[must_use]
    pub fn is_guest(&self) -> bool {
        matches!(self.manager, Manager::Libvirt | Manager::Xen)
    }

    /// Where its affinity is written: of the first vCPU that has one.
    #[must_use]
    pub fn affinity_place(&self) -> &Place {
        let first = self.online().find_map(|(_, vcpu)| vcpu.affinity.as_ref());
        first.map_or(&self.place, |set| &set.place)
    }
}
