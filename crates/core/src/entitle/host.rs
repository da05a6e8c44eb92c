//! What there is to divide and who divides it: pCPUs, slices, VMs and vCPUs.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{CpuSet, Cpus, Weight};

/// Weights outside this range are refused; Linux has 1 to 262144, Xen 1 to 65535.
pub(crate) const WEIGHTS: std::ops::RangeInclusive<f64> = 1e-3..=1e9;
/// Slices may lie in each other so deep; systemd uses up to about ten levels.
const MAX_DEPTH: usize = 128;

/// A host: its pCPUs and the tree of weights on it.
///
/// The TOML form is that of `scenarios/p2-figure10.toml`: `[[vm]]` and `[[slice]]` tables, in a
/// slice `[[slice.vm]]` and `[[slice.slice]]`. CPU sets are texts like `"0-3,8"`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// What it is, for people.
    #[serde(default)]
    pub about: String,
    /// How its scheduler weighs.
    #[serde(default)]
    pub rule: WeightRule,
    /// The pCPUs.
    pub pcpus: CpuSet,
    /// Those of them that are offline.
    #[serde(default)]
    pub offline: CpuSet,
    /// Those of them that VMs may not use, whatever their affinity says.
    #[serde(default)]
    pub reserved: CpuSet,
    /// Slices that divide with each other and with `vms`.
    #[serde(default, rename = "slice")]
    pub slices: Vec<Slice>,
    /// VMs in no slice.
    #[serde(default, rename = "vm")]
    pub vms: Vec<Vm>,
}

/// How a scheduler turns weights into shares. Data of the host, not of corefit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WeightRule {
    /// Control groups: the tree as given, weights compared among siblings
    /// (kernel/sched/fair.c, `calc_group_shares`).
    #[default]
    Linux,
    /// Xen's credit scheduler: a VM weighs its weight times its active vCPUs, which divide equally;
    /// active is who is online and demands something (`csched_acct` in xen/common/sched/credit.c).
    /// Weights of vCPUs do not exist.
    XenCredit,
    /// Every online vCPU weighs the same wherever it is (P2 4.3, Figure 10): a VM or slice weighs
    /// as many as are in it. The weights given are not used.
    EqualPerVcpu,
}

/// A group of VMs and slices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slice {
    /// Unique among slices and VMs.
    pub name: String,
    /// Among its siblings; 1024 if not given.
    #[serde(default = "default_weight")]
    pub weight: Weight,
    /// The most that all below may use together.
    #[serde(default)]
    pub cap: Option<Cpus>,
    /// Slices in it.
    #[serde(default, rename = "slice")]
    pub slices: Vec<Slice>,
    /// VMs in it.
    #[serde(default, rename = "vm")]
    pub vms: Vec<Vm>,
}

/// A VM, or a container or control group that plays one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vm {
    /// Unique among slices and VMs.
    pub name: String,
    /// Among its siblings; 1024 if not given.
    #[serde(default = "default_weight")]
    pub weight: Weight,
    /// The most that its vCPUs may use together (libvirt: `global_quota` over `global_period`).
    #[serde(default)]
    pub cap: Option<Cpus>,
    /// Its vCPUs, by number.
    pub vcpus: Vec<Vcpu>,
}

/// A vCPU: what may use up to one pCPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Vcpu {
    /// Among the vCPUs of its VM; 1024 if not given.
    pub weight: Weight,
    /// The most it may use (libvirt: `vcpu_quota` over `vcpu_period`).
    pub quota: Option<Cpus>,
    /// The pCPUs it may use; all if not given.
    pub affinity: Option<CpuSet>,
    /// What it would use if it never had to wait, measured. Not measured counts as 1, which keeps what others
    /// have available a lower bound.
    pub demand: Option<Cpus>,
    /// Its demand is as measured even where everybody is asked to want everything: a thread that
    /// works for a VM without being a vCPU, or what uses the host and is no VM.
    pub fixed: bool,
    /// Whether the guest may use it.
    pub online: bool,
}

impl Default for Vcpu {
    fn default() -> Vcpu {
        Vcpu {
            weight: default_weight(),
            quota: None,
            affinity: None,
            demand: None,
            fixed: false,
            online: true,
        }
    }
}

fn default_weight() -> Weight {
    Weight(1024.0)
}

/// Why a host cannot be divided. Texts name the place and the remedy; who read it from a file adds
/// the file's name.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum HostError {
    /// A number out of range.
    #[error("{place}: {what} is {value}; give {range}")]
    OutOfRange {
        /// Such as `vm a, vCPU 2`.
        place: String,
        /// Such as `weight`.
        what: &'static str,
        /// The number found.
        value: f64,
        /// What it should be.
        range: &'static str,
    },
    /// Two slices or VMs have one name.
    #[error("{place}: there is another slice or VM of that name; give each its own")]
    SameName {
        /// Such as `vm a`.
        place: String,
    },
    /// Slices in slices in slices.
    #[error("{place}: nested more than {MAX_DEPTH} levels deep; leave out slices with one member")]
    TooDeep {
        /// The first slice that is too deep.
        place: String,
    },
}

impl Host {
    /// The pCPUs that VMs can use.
    #[must_use]
    pub fn usable(&self) -> CpuSet {
        self.pcpus.difference(&self.offline).difference(&self.reserved)
    }

    /// All VMs: of each slice first those in its slices, then its own. Other functions number VMs
    /// in this order.
    #[must_use]
    pub fn all_vms(&self) -> Vec<&Vm> {
        fn walk<'a>(slices: &'a [Slice], vms: &'a [Vm], found: &mut Vec<&'a Vm>) {
            for slice in slices {
                walk(&slice.slices, &slice.vms, found);
            }
            found.extend(vms);
        }
        let mut found = Vec::new();
        walk(&self.slices, &self.vms, &mut found);
        found
    }

    /// Whether all numbers are in their ranges and all names unique.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), HostError> {
        check(&self.slices, &self.vms, MAX_DEPTH, &mut BTreeSet::new())
    }
}

fn check<'a>(
    slices: &'a [Slice],
    vms: &'a [Vm],
    depth: usize,
    names: &mut BTreeSet<&'a str>,
) -> Result<(), HostError> {
    for slice in slices {
        let place = || format!("slice {}", slice.name);
        member(&place, slice.weight, slice.cap)?;
        if !names.insert(&slice.name) {
            return Err(HostError::SameName { place: place() });
        }
        let below = depth.checked_sub(1).ok_or_else(|| HostError::TooDeep { place: place() })?;
        check(&slice.slices, &slice.vms, below, names)?;
    }
    for vm in vms {
        let place = || format!("vm {}", vm.name);
        member(&place, vm.weight, vm.cap)?;
        if !names.insert(&vm.name) {
            return Err(HostError::SameName { place: place() });
        }
        for (number, vcpu) in vm.vcpus.iter().enumerate() {
            let place = || format!("vm {}, vCPU {number}", vm.name);
            member(&place, vcpu.weight, vcpu.quota)?;
            let demand = vcpu.demand.map_or(0.0, |d| d.0);
            if !(0.0..f64::INFINITY).contains(&demand) {
                let range = "a number of pCPUs from 0, or leave it out";
                return Err(HostError::OutOfRange { place: place(), what: "demand", value: demand, range });
            }
        }
    }
    Ok(())
}

fn member(place: &impl Fn() -> String, Weight(weight): Weight, cap: Option<Cpus>) -> Result<(), HostError> {
    if !WEIGHTS.contains(&weight) {
        let range = "a weight from 0.001 to 1e9";
        return Err(HostError::OutOfRange { place: place(), what: "weight", value: weight, range });
    }
    match cap {
        Some(Cpus(cap)) if !(cap > 0.0 && cap.is_finite()) => {
            let range = "quota over period in CPUs, above 0, or leave it out";
            Err(HostError::OutOfRange { place: place(), what: "limit", value: cap, range })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(vms: Vec<Vm>) -> Host {
        Host { pcpus: CpuSet::first(4), vms, ..Host::default() }
    }

    fn vm(name: &str, vcpu: Vcpu) -> Vm {
        Vm { name: name.into(), weight: default_weight(), cap: None, vcpus: vec![Vcpu::default(), vcpu] }
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place_and_remedy() {
        let quota = Vcpu { quota: Some(Cpus(0.0)), ..Vcpu::default() };
        let demand = Vcpu { demand: Some(Cpus(f64::NAN)), ..Vcpu::default() };
        let endless = Vcpu { demand: Some(Cpus(f64::INFINITY)), ..Vcpu::default() };
        let weight = Vcpu { weight: Weight(-1.0), ..Vcpu::default() };
        for (vcpu, what) in [
            (quota, "limit is 0; give"),
            (demand, "demand is NaN"),
            (endless, "demand is inf; give"),
            (weight, "weight is -1"),
        ] {
            let error = host(vec![vm("a", vcpu)]).check().unwrap_err().to_string();
            assert!(error.starts_with(&format!("vm a, vCPU 1: {what}")), "{error}");
        }
        let twice = host(vec![vm("a", Vcpu::default()), vm("a", Vcpu::default())]);
        assert!(matches!(twice.check(), Err(HostError::SameName { .. })));
    }

    #[test]
    fn slices_nested_without_end_are_refused() {
        let slice =
            |slices| Slice { name: "s".into(), weight: default_weight(), cap: None, slices, vms: vec![] };
        let mut nested = slice(vec![]);
        for i in 0..MAX_DEPTH {
            nested.name = i.to_string();
            nested = slice(vec![nested]);
        }
        let deep = Host { slices: vec![nested], ..host(vec![]) };
        assert!(matches!(deep.check(), Err(HostError::TooDeep { .. })));
    }
}
