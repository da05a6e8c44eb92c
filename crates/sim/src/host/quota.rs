//! Quotas of vCPUs and VMs, and vCPUs that may not run for other reasons.

use corefit_core::Throttled;

use super::Sim;
use crate::cpus::{VState, VmCpus};
use crate::queue::NEVER;
use crate::sched::Scheduler;

impl Sim {
    /// A vCPU's local part of its VM's quota is filled up; whether it may run at all.
    pub(super) fn has_quota(&mut self, v: u32) -> bool {
        let vcpu = &mut self.cpus.vcpus[v as usize];
        if vcpu.pool_left == 0 {
            let pool = &mut self.guests[vcpu.vm as usize].pool;
            let part = (*pool).min(self.bandwidth_slice);
            *pool -= part;
            vcpu.pool_left = part;
        }
        vcpu.quota_left > 0 && vcpu.pool_left > 0 && vcpu.parked == 0
    }

    /// A vCPU's quota begins anew.
    pub(crate) fn refill(&mut self, v: u32) {
        let Some(limit) = self.limits[v as usize] else { return };
        self.queue.add(self.now + limit.period_ns, super::Event::Refill(v));
        self.charge_of(v);
        let vcpu = &mut self.cpus.vcpus[v as usize];
        vcpu.throttled.periods += 1;
        vcpu.throttled.throttled_periods += u64::from(vcpu.stopped_since != NEVER && vcpu.stopped_by_own);
        vcpu.quota_left = limit.refilled(vcpu.quota_left);
        self.after_refill(v);
    }

    /// A VM's quota begins anew; of the old one, what may be saved is left.
    pub(crate) fn refill_vm(&mut self, vm: u32) {
        let Some(limit) = self.vm_limits[vm as usize] else { return };
        self.queue.add(self.now + limit.period_ns, super::Event::RefillVm(vm));
        let first = self.cpus.vms[vm as usize].first;
        let all = first..first + self.cpus.vms[vm as usize].count;
        let (mut left, mut stopped) = (self.guests[vm as usize].pool, false);
        for v in all.clone() {
            self.charge_of(v);
            let vcpu = &mut self.cpus.vcpus[v as usize];
            left = left.saturating_add(std::mem::take(&mut vcpu.pool_left));
            stopped |= vcpu.stopped_since != NEVER && !vcpu.stopped_by_own;
        }
        let guest = &mut self.guests[vm as usize];
        guest.pool = limit.refilled(left);
        guest.throttled.periods += 1;
        guest.throttled.throttled_periods += u64::from(stopped);
        // Who was stopped first comes first, and before those that run (`throttled_cfs_rq`, a list).
        let mut turn: Vec<u32> = all.collect();
        turn.sort_by_key(|&v| self.cpus.vcpus[v as usize].stopped_since);
        for v in turn {
            self.after_refill(v);
        }
    }

    /// A vCPU that wants to run may not: since when and by which quota, if it is a quota.
    pub(super) fn stopped(&mut self, v: u32) {
        let vcpu = &mut self.cpus.vcpus[v as usize];
        if vcpu.stopped_since == NEVER && (vcpu.quota_left == 0 || vcpu.pool_left == 0) {
            vcpu.stopped_since = self.now;
            vcpu.stopped_by_own = vcpu.quota_left == 0;
        }
    }

    /// No quota keeps it any more, or it does not want to run any more.
    pub(super) fn goes_on(&mut self, v: u32) {
        let vcpu = &mut self.cpus.vcpus[v as usize];
        let since = std::mem::replace(&mut vcpu.stopped_since, NEVER);
        let ns = self.now.saturating_sub(since);
        if vcpu.stopped_by_own {
            vcpu.throttled.throttled_ns += ns;
        } else {
            self.guests[vcpu.vm as usize].throttled.throttled_ns += ns;
        }
    }

    /// How often a vCPU's own quota stopped it until now; `None` if it has none.
    pub(crate) fn throttled(&self, v: u32) -> Option<Throttled> {
        self.limits[v as usize]?;
        let vcpu = &self.cpus.vcpus[v as usize];
        let now = if vcpu.stopped_by_own { self.now.saturating_sub(vcpu.stopped_since) } else { 0 };
        Some(Throttled { throttled_ns: vcpu.throttled.throttled_ns + now, ..vcpu.throttled })
    }

    /// How often a VM's quota stopped a vCPU until now; `None` if it has none.
    pub(crate) fn throttled_vm(&self, vm: usize) -> Option<Throttled> {
        self.vm_limits[vm]?;
        let VmCpus { first, count, .. } = self.cpus.vms[vm];
        let stopped = self.cpus.vcpus[first as usize..(first + count) as usize].iter();
        let stopped = stopped.filter(|vcpu| !vcpu.stopped_by_own);
        let now: u64 = stopped.map(|vcpu| self.now.saturating_sub(vcpu.stopped_since)).sum();
        let counted = self.guests[vm].throttled;
        Some(Throttled { throttled_ns: counted.throttled_ns + now, ..counted })
    }

    pub(super) fn charge_of(&mut self, v: u32) {
        let vcpu = &self.cpus.vcpus[v as usize];
        if vcpu.state == VState::Running {
            self.charge(vcpu.pcpu);
        }
    }

    pub(super) fn after_refill(&mut self, v: u32) {
        let state = self.cpus.vcpus[v as usize].state;
        match state {
            VState::Throttled if self.has_quota(v) => self.enter(v),
            VState::Throttled => {
                // Still stopped: for as long as it has been, if it is for the same reason.
                let vcpu = &self.cpus.vcpus[v as usize];
                let own = vcpu.quota_left == 0;
                if own != vcpu.stopped_by_own || !own && vcpu.pool_left > 0 {
                    self.goes_on(v);
                    self.stopped(v);
                }
            }
            VState::Running => {
                let p = self.cpus.vcpus[v as usize].pcpu;
                self.has_quota(v);
                self.settle(p);
                self.set_limit(p);
                self.arm(p);
            }
            _ => {}
        }
    }

    pub(super) fn park(&mut self, v: u32, why: u8) {
        self.cpus.vcpus[v as usize].parked |= why;
        let vcpu = &self.cpus.vcpus[v as usize];
        let p = vcpu.pcpu;
        match vcpu.state {
            VState::Running => {
                self.settle(p);
                self.throttle(p);
                self.arm(p);
            }
            VState::Waiting => {
                self.sched.leave(&mut self.cpus, v);
                self.count_runnable(v, false);
                let vcpu = &mut self.cpus.vcpus[v as usize];
                vcpu.wait_ns += self.now - vcpu.wait_since;
                vcpu.wait_since = self.now;
                vcpu.state = VState::Throttled;
                self.settle(p);
                self.arm(p);
            }
            _ => {}
        }
    }
}
