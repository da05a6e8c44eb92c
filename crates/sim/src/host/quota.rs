//! Quotas of vCPUs and VMs, and vCPUs that may not run for other reasons.

use super::Sim;
use crate::cpus::VState;
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
        self.cpus.vcpus[v as usize].quota_left = limit.quota_ns;
        self.after_refill(v);
    }

    /// A VM's quota begins anew; nothing is left of the old one.
    pub(crate) fn refill_vm(&mut self, vm: u32) {
        let Some(limit) = self.vm_limits[vm as usize] else { return };
        self.queue.add(self.now + limit.period_ns, super::Event::RefillVm(vm));
        self.guests[vm as usize].pool = limit.quota_ns;
        let first = self.cpus.vms[vm as usize].first;
        let all = first..first + self.cpus.vms[vm as usize].count;
        for v in all.clone() {
            self.charge_of(v);
            self.cpus.vcpus[v as usize].pool_left = 0;
        }
        // Those that were throttled first: the others have something left to run on until their next look.
        for v in all {
            self.after_refill(v);
        }
    }

    pub(super) fn charge_of(&mut self, v: u32) {
        let vcpu = &self.cpus.vcpus[v as usize];
        if vcpu.state == VState::Running {
            self.charge(vcpu.pcpu);
        }
    }

    pub(super) fn after_refill(&mut self, v: u32) {
        let vcpu = &self.cpus.vcpus[v as usize];
        match vcpu.state {
            VState::Throttled => self.enter(v),
            VState::Running => {
                let p = vcpu.pcpu;
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
