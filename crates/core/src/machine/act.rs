//! What can be changed on a machine: a setting of a VM, read, written, and read back.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Machine, MachineError, VmId};
use crate::{CpuSet, Cpus, Weight};

/// One setting of a VM that corefit may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lever {
    /// Which vCPUs are online.
    Online,
    /// The VM's weight among its siblings.
    Weight,
    /// The weight of its helper threads among its vCPUs: of all that are neither vCPUs nor I/O threads.
    HelperWeight,
    /// The bandwidth limit of everything in the VM.
    Quota,
    /// The bandwidth limit of one vCPU (its number).
    VcpuQuota(u32),
    /// The pCPUs that one vCPU (its number) may use. A control group has only number 0: its cpuset.
    Affinity(u32),
    /// The fair scheduler's slice for the thread of one vCPU (its number). A control group has only number 0: that of all
    /// its threads.
    Slice(u32),
    /// The NUMA nodes that the VM's memory may come from, and that its node affinity names.
    Nodes,
    /// What the guest is told that it gets, for `corefit run` there to follow.
    Told,
}

/// A lever, whichever vCPU it is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeverKind {
    /// [`Lever::Online`].
    Online,
    /// [`Lever::Weight`].
    Weight,
    /// [`Lever::HelperWeight`].
    HelperWeight,
    /// [`Lever::Quota`].
    Quota,
    /// [`Lever::VcpuQuota`].
    VcpuQuota,
    /// [`Lever::Affinity`].
    Affinity,
    /// [`Lever::Slice`].
    Slice,
    /// [`Lever::Nodes`].
    Nodes,
    /// [`Lever::Told`].
    Told,
}

/// A lever that a VM does not have, and why: a VM without an agent cannot take vCPUs offline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fixed {
    /// Which.
    pub lever: LeverKind,
    /// For people, said once.
    pub reason: String,
}

impl Lever {
    /// Which lever, whichever vCPU it is of.
    #[must_use]
    pub fn kind(self) -> LeverKind {
        match self {
            Lever::Online => LeverKind::Online,
            Lever::Weight => LeverKind::Weight,
            Lever::HelperWeight => LeverKind::HelperWeight,
            Lever::Quota => LeverKind::Quota,
            Lever::VcpuQuota(_) => LeverKind::VcpuQuota,
            Lever::Affinity(_) => LeverKind::Affinity,
            Lever::Slice(_) => LeverKind::Slice,
            Lever::Nodes => LeverKind::Nodes,
            Lever::Told => LeverKind::Told,
        }
    }

    /// Its name for people, of a control group or of a VM.
    #[must_use]
    pub fn name(self, group: bool) -> String {
        match self {
            Lever::Affinity(_) if group => "cpuset".into(),
            Lever::Slice(_) if group => "slice of its threads".into(),
            _ => self.to_string(),
        }
    }
}

/// Slices that corefit sets end so, ns of a microsecond: tells them from those that others set, also on threads that inherited
/// one, so that nobody has to keep a list of threads.
pub const SLICE_MARK_NS: u64 = 37;

/// Whether a slice of so many ns is marked as one of corefit's ([`SLICE_MARK_NS`]).
#[must_use]
pub fn is_our_slice(ns: u64) -> bool {
    ns % 1000 == SLICE_MARK_NS
}

/// A bandwidth limit as it is written: so much run time in each allocation period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// Run time per period, µs; `None`: as much as there is.
    pub quota_us: Option<u64>,
    /// The allocation period, µs, from 1,000 to 1,000,000.
    pub period_us: u64,
    /// What of it may be saved for later periods, µs (`cpu.max.burst`).
    pub burst_us: u64,
}

/// What a lever is set to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Value {
    /// Of [`Lever::Online`]: numbers of the vCPUs that are online.
    Vcpus(CpuSet),
    /// Of [`Lever::Weight`] and [`Lever::HelperWeight`].
    Weight(Weight),
    /// Of [`Lever::Quota`] and [`Lever::VcpuQuota`].
    Limit(Limit),
    /// Of [`Lever::Affinity`].
    Pcpus(CpuSet),
    /// Of [`Lever::Slice`], ns, from 100,000 to 100,000,000; `None`: the scheduler's own.
    Slice(Option<u64>),
    /// Of [`Lever::Nodes`]; `None`: nothing is said.
    Nodes(Option<CpuSet>),
    /// Of [`Lever::Told`]; `None`: it is told nothing.
    Told(Option<Cpus>),
}

/// A guest that did not let go of a vCPU in time, when it was to be plugged out, may do so for so long (ours).
pub const LETS_GO: Duration = Duration::from_secs(60);

/// A machine on which something can be changed.
///
/// Writing changes what the machine is now, never what it will be after its next start (of libvirt: the live
/// definition). A value may come back otherwise than it was written, because a kernel rounds it or a guest
/// refuses a part: whoever writes reads afterwards.
pub trait Act: Machine {
    /// What a lever of a VM is set to now.
    ///
    /// # Errors
    /// [`MachineError::Unsupported`] if the VM has no such lever, [`MachineError::Gone`] if it is not there or does
    /// not answer in time, [`MachineError::Denied`] if that may not be read.
    fn current(&mut self, vm: &VmId, lever: Lever) -> Result<Value, MachineError>;

    /// Sets a lever of a VM.
    ///
    /// # Errors
    /// As [`current`](Act::current), and [`MachineError::Malformed`] for a value that is not the lever's, or that the
    /// VM cannot have. After an error a part of it may be in force.
    fn set(&mut self, vm: &VmId, lever: Lever, value: &Value) -> Result<(), MachineError>;

    /// Keeps a text with the VM wherever it goes, or with `None` takes it away; it is seen as
    /// [`VmState::kept`](super::VmState::kept). Machines whose VMs stay where they are need not.
    ///
    /// # Errors
    /// As [`set`](Act::set).
    fn keep(&mut self, vm: &VmId, text: Option<&str>) -> Result<(), MachineError> {
        _ = (vm, text);
        Ok(())
    }

    /// What of a value a setting can have, where it cannot have all of it any more: a cpuset within that of the group above (v1); or in its
    /// place: all pCPUs in that of an empty cpuset (v2). `None`: all of it, or nothing.
    fn fitting(&mut self, vm: &VmId, lever: Lever, value: &Value) -> Option<Value> {
        _ = (vm, lever, value);
        None
    }

    /// Whether the kernel took away what a setting was: the last pCPU of a cpuset went offline, which leaves it empty on v1 for good, so that
    /// nobody can be in the group.
    fn lost(&mut self, vm: &VmId, lever: Lever) -> bool {
        _ = (vm, lever);
        false
    }

    /// Whether a VM that no look shows may be there all the same, though nothing of it can be read now: whoever is gone for sure needs
    /// nothing put back. Where looks show all VMs, or name who they miss, none may.
    fn may_be_there(&mut self, vm: &VmId) -> bool {
        _ = vm;
        false
    }

    /// Whether the owner of a VM still wants of it what the last look showed, where that had no time to ask: who does not, though it is known
    /// that something of the VM changed, may overwrite what he has just forbidden. What its settings are [`current`](Act::current) says.
    ///
    /// # Errors
    /// As [`current`](Act::current).
    fn wishes_stand(&mut self, vm: &VmId) -> Result<bool, MachineError> {
        _ = vm;
        Ok(true)
    }

    /// Somebody else changed a setting of a VM since the last look: the next one shows what it is by now. Of machines whose looks show that
    /// anyway there is nothing to do.
    fn look_anew(&mut self, vm: &VmId) {
        _ = vm;
    }

    /// Whether its guest takes vCPUs of a VM offline and online, and said so when they were read last. Whoever changes them keeps that with
    /// what they were, for [`goes_by_guest`](Act::goes_by_guest).
    fn is_by_guest(&self, vm: &VmId) -> bool {
        _ = vm;
        false
    }

    /// A guest took vCPUs of its VM offline or online, asked by this process or by one before it: as long as it does not say which are
    /// online, nothing else tells, and [`current`](Act::current) is [`MachineError::Gone`].
    fn goes_by_guest(&mut self, vm: &VmId) {
        _ = vm;
    }

    /// How long the guest of a VM may yet let go ([`LETS_GO`]) of vCPUs that it was asked for and that are there still; `None` if it may not. What is set
    /// of them is not sure to stay so long.
    fn lets_go(&self, vm: &VmId) -> Option<Duration> {
        _ = vm;
        None
    }

    /// What is changed by it, whichever part of that it was opened for and by whatever name: who changes something there is to be the
    /// only one.
    fn realm(&self) -> String {
        self.name()
    }

    /// Who did not answer in time and is left alone for a while is asked again at once, and so is who lacked something. For machines
    /// that leave nobody alone there is nothing to do.
    fn ask_again(&mut self) {}

    /// From the guests of these VMs, and no others, an answer is awaited: who did not give one is asked what it is as often as the others,
    /// or more often, so that [`observe`](Machine::observe) shows soon that it is there again.
    fn awaits(&mut self, guests: &BTreeSet<VmId>) {
        _ = guests;
    }
}

impl fmt::Display for Lever {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lever::Online => write!(f, "online vCPUs"),
            Lever::Weight => write!(f, "weight"),
            Lever::HelperWeight => write!(f, "weight of helper threads"),
            Lever::Quota => write!(f, "quota"),
            Lever::VcpuQuota(vcpu) => write!(f, "quota of vCPU {vcpu}"),
            Lever::Affinity(vcpu) => write!(f, "affinity of vCPU {vcpu}"),
            Lever::Slice(vcpu) => write!(f, "slice of vCPU {vcpu}"),
            Lever::Nodes => write!(f, "NUMA nodes"),
            Lever::Told => write!(f, "what the guest is told"),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Vcpus(set) | Value::Pcpus(set) | Value::Nodes(Some(set)) => write!(f, "{set}"),
            Value::Weight(Weight(weight)) => write!(f, "{weight}"),
            Value::Limit(Limit { quota_us: None, period_us, .. }) => {
                write!(f, "no limit (period {period_us} us)")
            }
            Value::Limit(Limit { quota_us: Some(quota), period_us, burst_us: 0 }) => {
                write!(f, "{quota} us in {period_us} us")
            }
            Value::Limit(Limit { quota_us: Some(quota), period_us, burst_us }) => {
                write!(f, "{quota} us in {period_us} us, {burst_us} us of it saved")
            }
            Value::Slice(Some(ns)) => write!(f, "{} us", ns / 1000),
            Value::Slice(None) => write!(f, "the scheduler's own"),
            Value::Told(Some(cpus)) => write!(f, "{cpus} CPUs"),
            Value::Nodes(None) | Value::Told(None) => write!(f, "nothing"),
        }
    }
}
