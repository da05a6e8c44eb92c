//! Settings of the hypervisor that are changed while a host runs: weights, caps, affinities.
//!
//! A setting holds from the next decision of the scheduler on. Who runs or waits where it may no longer is taken off
//! and looks for another pCPU at once.

use super::{Event, Sim, SpecError, build};
use crate::cpus::{MOVED, VState};
use crate::queue::NEVER;
use crate::sched::Scheduler;
use crate::spec::{Limit, Policy};
use corefit_core::CpuSet;

impl Sim {
    /// A VM's weight among VMs from now on.
    ///
    /// # Errors
    /// If there is no such VM, or no such weight.
    pub fn set_weight(&mut self, vm: usize, weight: u32) -> Result<(), SpecError> {
        self.try_spec(vm, |spec| spec.weight = weight)?;
        let cpus = &mut self.cpus.vms[vm];
        cpus.weight = u64::from(weight);
        cpus.unit = (cpus.weight << 20) / cpus.runnable.max(1);
        Ok(())
    }

    /// The most that all vCPUs of a VM may use together from now on; `None`: everything.
    ///
    /// # Errors
    /// If there is no such VM, or no such limit.
    pub fn set_cap(&mut self, vm: usize, cap: Option<Limit>) -> Result<(), SpecError> {
        self.try_spec(vm, |spec| spec.cap = cap)?;
        self.cpus.vms[vm].cap = build::parts_of(cap);
        let Some(pool) = build::pool(&self.spec.policy, cap) else {
            if self.vm_limits[vm].is_some() {
                // Its periods go on, with all that there is.
                self.vm_limits[vm] =
                    self.vm_limits[vm].map(|limit| Limit { quota_ns: NEVER / 2, burst_ns: 0, ..limit });
                self.fill(vm);
            } else if matches!(self.spec.policy, Policy::Credit(_)) && cap.is_none() {
                self.unpark_all(vm);
            }
            return Ok(());
        };
        if self.vm_limits[vm].replace(pool).is_none() {
            let first = self.cpus.vms[vm].first;
            for v in first..first + self.cpus.vms[vm].count {
                self.charge_of(v);
                self.cpus.vcpus[v as usize].pool_left = 0;
            }
            self.guests[vm].refill_at = self.now + pool.period_ns;
            self.queue.add(self.now + pool.period_ns, Event::RefillVm(build::index(vm)));
        }
        self.fill(vm);
        Ok(())
    }

    /// The most that a vCPU of a VM, by its number there, may use from now on; `None`: everything (Linux only).
    ///
    /// # Errors
    /// If there is no such vCPU, or no such limit.
    pub fn set_quota(&mut self, vm: usize, vcpu: u32, limit: Option<Limit>) -> Result<(), SpecError> {
        self.known(vm, vcpu, "quota")?;
        if self.spec.policy.is_xen() {
            let what = "Xen's schedulers know no quota of a vCPU".into();
            return Err(SpecError { path: "quota".into(), what });
        }
        self.try_spec(vm, |spec| spec.vcpus[vcpu as usize].limit = limit)?;
        let v = self.cpus.vms[vm].first + vcpu;
        self.charge_of(v);
        let known = &mut self.limits[v as usize];
        if let Some(limit) = limit {
            if known.replace(limit).is_none() {
                self.queue.add(self.now + limit.period_ns, Event::Refill(v));
            }
        } else {
            // Its periods go on, with all that there is.
            *known = known.map(|limit| Limit { quota_ns: NEVER / 2, burst_ns: 0, ..limit });
        }
        self.cpus.vcpus[v as usize].quota_left = known.map_or(NEVER, |limit| limit.quota_ns);
        self.after_refill(v);
        Ok(())
    }

    /// The slice of a vCPU of a VM, by its number there, from its next one on; `None`: the scheduler's own.
    ///
    /// # Errors
    /// If there is no such vCPU, no such slice, or the scheduler has none.
    pub fn set_slice(&mut self, vm: usize, vcpu: u32, slice_ns: Option<u64>) -> Result<(), SpecError> {
        self.known(vm, vcpu, "fair_slice")?;
        self.try_spec(vm, |spec| spec.vcpus[vcpu as usize].slice_ns = slice_ns)?;
        let v = self.cpus.vms[vm].first + vcpu;
        self.cpus.slices[v as usize] = slice_ns.unwrap_or(0);
        Ok(())
    }

    fn known(&self, vm: usize, vcpu: u32, path: &str) -> Result<(), SpecError> {
        let count = self.cpus.vms.get(vm).map_or(0, |vm| vm.count);
        if vcpu < count {
            return Ok(());
        }
        let what = format!("there is no vCPU {vcpu}; give 0 to {}", count.saturating_sub(1));
        Err(SpecError { path: path.into(), what })
    }

    /// pCPUs that a vCPU of a VM, by its number there, may use from now on.
    ///
    /// # Errors
    /// If there is no such vCPU, or no such pCPU.
    pub fn set_affinity(&mut self, vm: usize, vcpu: u32, pcpus: &CpuSet) -> Result<(), SpecError> {
        self.known(vm, vcpu, "affinity")?;
        self.try_spec(vm, |spec| spec.vcpus[vcpu as usize].affinity = pcpus.clone())?;
        let v = self.cpus.vms[vm].first + vcpu;
        let (mask, soft) = build::masks(&self.spec.vms[vm].vcpus[vcpu as usize], &mut self.cpus);
        let state = &mut self.cpus.vcpus[v as usize];
        (state.mask, state.soft) = (mask, soft);
        if self.cpus.may(v, self.cpus.vcpus[v as usize].pcpu) {
            return Ok(());
        }
        // What it ran there, by the rules of there.
        self.charge_of(v);
        let to = self.sched.placed(&self.cpus, v);
        let runs = matches!(self.cpus.vcpus[v as usize].state, VState::Running | VState::Waiting);
        if runs {
            self.park(v, MOVED);
        }
        self.cpus.vcpus[v as usize].pcpu = to;
        if runs {
            self.cpus.vcpus[v as usize].parked &= !MOVED;
            self.after_refill(v);
        }
        Ok(())
    }

    /// A change of a VM's description, if the host can exist with it.
    fn try_spec(&mut self, vm: usize, change: impl FnOnce(&mut crate::VmSpec)) -> Result<(), SpecError> {
        let mut spec = self.spec.clone();
        let Some(one) = spec.vms.get_mut(vm) else {
            return Err(SpecError { path: "vm".into(), what: format!("there is no VM {vm}") });
        };
        change(one);
        super::check::check(&spec)?;
        let shares = build::shares(&spec)?;
        self.spec = spec;
        self.set_shares(shares);
        Ok(())
    }

    /// A VM's quota begins anew.
    fn fill(&mut self, vm: usize) {
        self.guests[vm].pool = self.vm_limits[vm].map_or(NEVER, |limit| limit.quota_ns);
        let first = self.cpus.vms[vm].first;
        for v in first..first + self.cpus.vms[vm].count {
            self.after_refill(v);
        }
    }

    fn unpark_all(&mut self, vm: usize) {
        let first = self.cpus.vms[vm].first;
        for v in first..first + self.cpus.vms[vm].count {
            self.cpus.vcpus[v as usize].parked &= !crate::cpus::OVER_CAP;
            self.after_refill(v);
        }
    }
}
