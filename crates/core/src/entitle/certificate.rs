//! A proof that a division is the one that progressive filling gives, and who checks it.
//!
//! The certificate says who runs where for how long, which sets of vCPUs filled their pCPUs and
//! when, and when caps were reached. These determine the amounts of every vCPU over time: a stopped
//! one keeps its amount, a group under a used-up cap what it was offered until then. The checker
//! computes those by itself, from the host, and checks that
//!
//! 1. the amounts can be had: the usage adds up to them and overfills no pCPU, no limit and no cap;
//! 2. a cap was reached when it is said to have been, and not before;
//! 3. who stopped did so in a set that had all its pCPUs just then, and not at another amount;
//! 4. in the end everybody has the amount that is claimed, for the cause that is claimed.
//!
//! As nobody shrinks, 1 holds at all times before as well. So the amounts over time are those of
//! the filling: nobody was stopped without cause (3), and nobody grew on (1). The checker shares no
//! code with the solver.

use std::collections::BTreeMap;

use super::division::{Cause, Share, TOLERANCE};
use super::host::{Host, Slice, Vcpu, Vm, WeightRule};
use super::{Wants, replay::Replay};
use crate::{CpuSet, Cpus};

/// What proves a division. vCPUs are numbered over all VMs in the order of [`Host::all_vms`].
#[derive(Clone, Debug)]
pub struct Certificate {
    /// Amount and cause of each vCPU.
    pub shares: Vec<Share>,
    /// Who runs where.
    pub usage: Vec<Usage>,
    /// The sets that filled their pCPUs, in the order of time.
    pub full: Vec<Full>,
    /// Slices and VMs whose caps were reached, and what they had been offered by then.
    pub capped: Vec<(String, f64)>,
}

/// Some vCPUs use some pCPUs, each as much as the others, and on each the same.
#[derive(Clone, Debug)]
pub struct Usage {
    /// Who.
    pub vcpus: Vec<usize>,
    /// Where.
    pub pcpus: CpuSet,
    /// How much, all together.
    pub cpus: Cpus,
}

/// vCPUs that have all of their pCPUs from some time on.
#[derive(Clone, Debug)]
pub struct Full {
    /// Since when: the amount that the host has offered.
    pub time: f64,
    /// All of the set.
    pub vcpus: Vec<usize>,
    /// The pCPUs that they may use, without those of earlier sets.
    pub pcpus: CpuSet,
    /// Those of them that stopped below their limits.
    pub stopped: Vec<usize>,
}

/// What is wrong with a certificate.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Violation {
    /// It is not about this host.
    #[error("the certificate is for {found} vCPUs, the host has {expected}")]
    OtherHost {
        /// In the certificate.
        found: usize,
        /// On the host.
        expected: usize,
    },
    /// Two amounts should be equal.
    #[error("{what} {number}: {found} found, {expected} expected")]
    Differs {
        /// What was compared.
        what: &'static str,
        /// Number of the vCPU, pCPU, or set.
        number: usize,
        /// In the certificate.
        found: f64,
        /// By the checker.
        expected: f64,
    },
    /// Something is more than it may be.
    #[error("{what} {number}: {found} is more than {most}")]
    TooMuch {
        /// What was compared.
        what: &'static str,
        /// Number of the vCPU, pCPU, or set.
        number: usize,
        /// In the certificate.
        found: f64,
        /// The limit.
        most: f64,
    },
    /// A usage or set names pCPUs that it should not.
    #[error("{what} {number}: wrong pCPUs or vCPUs")]
    Strange {
        /// What has them.
        what: &'static str,
        /// Its number.
        number: usize,
    },
    /// A group is said to have reached its cap when it had not, or had before.
    #[error("{name}: its cap is not reached at {offered}")]
    NotCapped {
        /// The slice or VM.
        name: String,
        /// What it is said to have been offered by then.
        offered: f64,
    },
}

/// A vCPU as the checker sees it.
pub(super) struct Known<'a> {
    pub(super) vcpu: &'a Vcpu,
    pub(super) limit: f64,
}

impl Certificate {
    /// Checks everything, to [`TOLERANCE`] (times the number of pCPUs in sums over sets).
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self, host: &Host, wants: Wants) -> Result<(), Violation> {
        let known = known(host, wants);
        if self.shares.len() != known.len() {
            return Err(Violation::OtherHost { found: self.shares.len(), expected: known.len() });
        }
        self.check_usage(host, &known)?;
        let replay = Replay::new(host, wants, &known, self);
        replay.check_caps()?;
        self.check_full(host, &known, &replay)?;
        let (ends, _) = replay.at(f64::INFINITY);
        for (number, (share, end)) in self.shares.iter().zip(&ends).enumerate() {
            equal("vCPU's amount in the end", number, share.cpus.0, *end, 1.0)?;
        }
        self.check_causes(host, &known)
    }

    fn check_usage(&self, host: &Host, known: &[Known<'_>]) -> Result<(), Violation> {
        let usable = host.usable();
        let mut had = vec![0.0; known.len()];
        let mut load: BTreeMap<u32, f64> = BTreeMap::new();
        for (number, usage) in self.usage.iter().enumerate() {
            let strange = Violation::Strange { what: "usage", number };
            let inside = |set: &CpuSet| usage.pcpus.difference(set).is_empty();
            let allowed =
                |&vcpu: &usize| known.get(vcpu).is_some_and(|k| k.vcpu.affinity.as_ref().is_none_or(inside));
            let sound = usage.cpus.0 >= 0.0 && !usage.pcpus.is_empty() && !usage.vcpus.is_empty();
            if !sound || !inside(&usable) || !usage.vcpus.iter().all(allowed) {
                return Err(strange);
            }
            let each = usage.cpus.0 / crate::units::count(usage.vcpus.len());
            usage.vcpus.iter().for_each(|&vcpu| had[vcpu] += each);
            let each = usage.cpus.0 / crate::units::count(usage.pcpus.len());
            usage.pcpus.iter().for_each(|cpu| *load.entry(cpu.0).or_default() += each);
        }
        for (number, (share, had)) in self.shares.iter().zip(had).enumerate() {
            equal("vCPU's use", number, had, share.cpus.0, 1.0)?;
            at_most("vCPU", number, share.cpus.0, known[number].limit, 1.0)?;
        }
        load.into_iter().try_for_each(|(cpu, load)| at_most("pCPU", cpu as usize, load, 1.0, 1.0))
    }

    fn check_full(&self, host: &Host, known: &[Known<'_>], replay: &Replay<'_>) -> Result<(), Violation> {
        let mut left = host.usable();
        for (number, full) in self.full.iter().enumerate() {
            let strange = Violation::Strange { what: "full set", number };
            if !full.pcpus.difference(&left).is_empty() || full.vcpus.iter().any(|&v| v >= known.len()) {
                return Err(strange);
            }
            let (amounts, offered) = replay.at(full.time);
            let mut sum = 0.0;
            let scale = crate::units::count(full.pcpus.len()).max(1.0);
            for &vcpu in &full.vcpus {
                let beyond = match &known[vcpu].vcpu.affinity {
                    Some(set) => set.intersection(&left).difference(&full.pcpus),
                    None => left.difference(&full.pcpus),
                };
                if !beyond.is_empty() {
                    return Err(strange);
                }
                let amount = self.shares[vcpu].cpus.0;
                equal("vCPU's amount when its pCPUs were full", vcpu, amounts[vcpu], amount, 1.0)?;
                sum += amount;
            }
            equal("sum of full set", number, sum, crate::units::count(full.pcpus.len()), scale)?;
            for &vcpu in &full.stopped {
                if !full.vcpus.contains(&vcpu) {
                    return Err(strange);
                }
                equal("vCPU's offer when it stopped", vcpu, offered[vcpu], self.shares[vcpu].cpus.0, 1.0)?;
            }
            left = left.difference(&full.pcpus);
        }
        Ok(())
    }

    fn check_causes(&self, host: &Host, known: &[Known<'_>]) -> Result<(), Violation> {
        let mut crowded = vec![false; known.len()];
        self.full.iter().flat_map(|full| &full.stopped).for_each(|&vcpu| crowded[vcpu] = true);
        let mut caps = Caps { shares: &self.shares, next: 0, held: vec![None; known.len()], wrong: None };
        for slice in &host.slices {
            caps.slice(slice);
        }
        host.vms.iter().for_each(|vm| _ = caps.vm(vm));
        if let Some(wrong) = caps.wrong {
            return Err(wrong);
        }
        for (number, (share, known)) in self.shares.iter().zip(known).enumerate() {
            let at_limit = share.cpus.0 >= known.limit - TOLERANCE;
            let held = match &share.cause {
                Cause::Offline => !known.vcpu.online,
                Cause::Whole | Cause::Quota | Cause::Demand => at_limit && known.vcpu.online,
                Cause::Cap(name) => !at_limit && caps.held[number].as_ref() == Some(name),
                Cause::Crowded => !at_limit && caps.held[number].is_none() && crowded[number],
            };
            if !held {
                return Err(Violation::Strange { what: "cause of vCPU", number });
            }
        }
        Ok(())
    }
}

/// Sums below slices and VMs against their caps.
struct Caps<'a> {
    shares: &'a [Share],
    next: usize,
    /// Of each vCPU the innermost slice or VM whose cap is used up.
    held: Vec<Option<String>>,
    wrong: Option<Violation>,
}

impl Caps<'_> {
    fn slice(&mut self, slice: &Slice) -> f64 {
        let first = self.next;
        let mut sum: f64 = slice.slices.iter().map(|slice| self.slice(slice)).sum();
        sum += slice.vms.iter().map(|vm| self.vm(vm)).sum::<f64>();
        self.member(first, sum, slice.cap, || format!("slice {}", slice.name));
        sum
    }

    fn vm(&mut self, vm: &Vm) -> f64 {
        let first = self.next;
        self.next += vm.vcpus.len();
        let sum = self.shares[first..self.next].iter().map(|share| share.cpus.0).sum();
        self.member(first, sum, vm.cap, || format!("vm {}", vm.name));
        sum
    }

    fn member(&mut self, first: usize, sum: f64, cap: Option<Cpus>, name: impl Fn() -> String) {
        let Some(Cpus(cap)) = cap else { return };
        if let Err(wrong) = at_most("group with vCPU", first, sum, cap, cap.max(1.0)) {
            self.wrong.get_or_insert(wrong);
        }
        if sum >= cap - TOLERANCE {
            for held in &mut self.held[first..self.next] {
                held.get_or_insert_with(&name);
            }
        }
    }
}

fn known(host: &Host, wants: Wants) -> Vec<Known<'_>> {
    let vms = host.all_vms().into_iter().enumerate();
    let limit = |number: usize, vcpu: &Vcpu| {
        let wanted = wants == Wants::Everything || wants == Wants::Everywhere(number);
        let demand = if wanted && !vcpu.fixed { 1.0 } else { vcpu.demand.map_or(1.0, |d| d.0) };
        if vcpu.online { demand.min(vcpu.quota.map_or(1.0, |q| q.0)).min(1.0) } else { 0.0 }
    };
    vms.flat_map(|(i, vm)| vm.vcpus.iter().map(move |vcpu| Known { vcpu, limit: limit(i, vcpu) })).collect()
}

/// What VMs and slices weigh, written down a second time for the checker.
pub(super) fn vm_weight(host: &Host, vm: &Vm, limits: &[Known<'_>], all: bool) -> f64 {
    let online = limits.iter().filter(|known| known.vcpu.online);
    let active =
        online.clone().filter(|k| (all && !k.vcpu.fixed) || k.vcpu.demand.is_none_or(|d| d.0 > 0.0)).count();
    match host.rule {
        WeightRule::Linux => vm.weight.0,
        WeightRule::XenCredit => vm.weight.0 * crate::units::count(active.max(1)),
        WeightRule::EqualPerVcpu => crate::units::count(online.count().max(1)),
    }
}

pub(super) fn equal(
    what: &'static str,
    number: usize,
    found: f64,
    expected: f64,
    scale: f64,
) -> Result<(), Violation> {
    let close = (found - expected).abs() <= TOLERANCE * scale;
    if close { Ok(()) } else { Err(Violation::Differs { what, number, found, expected }) }
}

fn at_most(what: &'static str, number: usize, found: f64, most: f64, scale: f64) -> Result<(), Violation> {
    let fits = found <= most + TOLERANCE * scale;
    if fits { Ok(()) } else { Err(Violation::TooMuch { what, number, found, most }) }
}
