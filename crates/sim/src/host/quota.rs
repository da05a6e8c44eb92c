//! Quotas of vCPUs and VMs, and vCPUs that may not run for other reasons.
//!
//! Who halts gives back what it took of its VM's quota and did not use, and those whom that quota stopped get it before the
//! next period. Linux lets the one keep 1 ms and wakes the others up 5 ms later, if there is more than a slice then and the
//! next period is not near (`__return_cfs_rq_runtime`, `do_sched_cfs_slack_timer`; kernel/sched/fair.c); Xen's credit2 at once
//! (`unit_return_budget`; credit2.c), and so does who is preempted there. The first credit scheduler gives nothing back: each vCPU has its own part of a cap until credits
//! are handed out again (`csched_acct`).

use corefit_core::Throttled;

use super::Sim;
use crate::cpus::{VState, VmCpus};
use crate::queue::{NEVER, Ns};
use crate::sched::Scheduler;

/// After so long those that wait get what others gave back; it is not done when a period begins sooner than this and
/// [`NEAR_NS`] later, or than [`NEAR_NS`] in the end.
const SLACK_NS: Ns = 5_000_000;
const NEAR_NS: Ns = 2_000_000;
/// What who halts keeps.
const KEPT_NS: Ns = 1_000_000;

impl Sim {
    /// A vCPU halts: what it took and does not need is its VM's again.
    pub(super) fn give_back(&mut self, v: u32) {
        let vcpu = &mut self.cpus.vcpus[v as usize];
        if vcpu.pool_left == NEVER {
            return;
        }
        let (kept, delay) = if self.at_once { (0, self.costs.ipi_ns) } else { (KEPT_NS, SLACK_NS) };
        let kept = vcpu.pool_left.min(kept);
        let (vm, back) = (vcpu.vm, std::mem::replace(&mut vcpu.pool_left, kept) - kept);
        self.guests[vm as usize].pool += back;
        let guest = &self.guests[vm as usize];
        if back > 0 && !guest.slack && self.has_slack(vm, delay) && self.stopped_in(vm).next().is_some() {
            self.guests[vm as usize].slack = true;
            self.queue.add(self.now + delay, super::Event::Slack(vm));
        }
    }

    /// A vCPU that wants to run loses its pCPU: Xen's credit2 gives back what it has (`csched2_context_saved`), Linux does not.
    pub(super) fn leaves_pool(&mut self, v: u32) {
        if self.at_once {
            self.give_back(v);
        }
    }

    /// Who is next on a pCPU. Under credit2 whoever waits has nothing of its VM's quota, and takes some only now; if there is
    /// none, it is stopped, and the next one's turn comes (`unit_grab_budget` in `runq_candidate`).
    pub(super) fn next_with_quota(&mut self, p: u32) -> Option<u32> {
        loop {
            let v = self.sched.next(&mut self.cpus, p)?;
            if !self.at_once || self.has_quota(v) {
                return Some(v);
            }
            let vcpu = &mut self.cpus.vcpus[v as usize];
            vcpu.wait_ns += self.now - vcpu.wait_since;
            vcpu.wait_since = self.now;
            vcpu.state = VState::Throttled;
            self.stopped(v);
            self.count_runnable(v, false);
        }
    }

    /// A VM's quota has something that who waits for it may have.
    fn has_slack(&self, vm: u32, delay: Ns) -> bool {
        let guest = &self.guests[vm as usize];
        let near = delay + if self.at_once { 0 } else { NEAR_NS };
        guest.pool > if self.at_once { 0 } else { self.bandwidth_slice } && guest.refill_at > self.now + near
    }

    /// vCPUs that the VM's quota keeps from running.
    fn stopped_in(&self, vm: u32) -> impl Iterator<Item = u32> + '_ {
        let VmCpus { first, count, .. } = self.cpus.vms[vm as usize];
        (first..first + count).filter(|&v| {
            let vcpu = &self.cpus.vcpus[v as usize];
            vcpu.stopped_since != NEVER && !vcpu.stopped_by_own
        })
    }

    /// What was given back goes to who was stopped first.
    pub(crate) fn slack(&mut self, vm: u32) {
        self.guests[vm as usize].slack = false;
        if self.has_slack(vm, 0) {
            let mut turn: Vec<u32> = self.stopped_in(vm).collect();
            turn.sort_by_key(|&v| self.cpus.vcpus[v as usize].stopped_since);
            turn.into_iter().for_each(|v| self.after_refill(v));
        }
    }

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

    /// Whether it may wait for a pCPU. Under credit2 that takes nothing of its VM's quota: it does so once it has one.
    pub(super) fn may_enter(&mut self, v: u32) -> bool {
        if !self.at_once {
            return self.has_quota(v);
        }
        let vcpu = &self.cpus.vcpus[v as usize];
        let pool = vcpu.pool_left > 0 || self.guests[vcpu.vm as usize].pool > 0;
        vcpu.quota_left > 0 && pool && vcpu.parked == 0
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
        guest.refill_at = self.now + limit.period_ns;
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
            VState::Throttled if self.may_enter(v) => self.enter(v),
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

#[cfg(test)]
mod tests {
    use crate::cpus::VState;
    use crate::{Scenario, Sim};

    #[test]
    fn who_waits_under_credit2_has_given_back_what_it_had_of_the_cap() {
        let text = "scheduler = \"credit2\"\nhardware = { cores = 1 }\n\
                    [[vm]]\nname = \"capped\"\ncap = 0.4\nprogram = \"hog\"\n\
                    [[vm]]\nname = \"other\"\nprogram = \"forever { sleep 3ms exp compute 370us }\"\n";
        let mut sim = Sim::new(&Scenario::parse(text, &[]).unwrap().spec).unwrap();
        let mut waited = 0;
        for _ in 0..20_000 {
            sim.run_for(50_000);
            let vcpu = &sim.cpus.vcpus[0];
            if vcpu.state == VState::Waiting {
                waited += 1;
                assert_eq!(vcpu.pool_left, 0, "at {}", sim.now);
            }
        }
        assert!(waited > 50, "it waits now and then: {waited}");
        let part = sim.truth().vms[0].time.utilised as f64 / sim.now as f64;
        assert!((part - 0.4).abs() < 0.02, "{part}");
    }
}
