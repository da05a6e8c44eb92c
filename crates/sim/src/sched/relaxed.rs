//! Relaxed co-scheduling, over any scheduler: a vCPU that is too far ahead of its VM's slowest one stops until that
//! caught up.
//!
//! As VMware describes it for ESX 3 and later (The CPU Scheduler in VMware vSphere 5.1, 2013, "Relaxed
//! Co-Scheduling"): progress is running, and being idle; being ahead is the skew to the slowest sibling that wants to
//! run; only the one that is ahead is stopped. Here progress is time less time waited for a pCPU, so that who is
//! stopped makes none, and skews are looked at each [`RelaxedSpec::tick_ns`]. Known gap: a quota's wait counts as any.

use crate::cpus::{AHEAD, Cpus, VState};
use crate::queue::Ns;
use crate::spec::RelaxedSpec;

use super::Order;

#[derive(Clone, Debug)]
pub(crate) struct Relaxed {
    pub(crate) spec: RelaxedSpec,
    /// By vCPU: its progress, and how long it had waited at the last look.
    progress: Vec<u64>,
    waited: Vec<Ns>,
    looked: Ns,
}

impl Relaxed {
    pub(crate) fn new(spec: RelaxedSpec, cpus: &Cpus) -> Relaxed {
        let vcpus = cpus.vcpus.len();
        Relaxed { spec, progress: vec![0; vcpus], waited: vec![0; vcpus], looked: 0 }
    }

    pub(crate) fn look(&mut self, cpus: &Cpus, now: Ns, orders: &mut Vec<Order>) {
        let passed = now - std::mem::replace(&mut self.looked, now);
        for vm in cpus.vms.iter().filter(|vm| vm.count > 1) {
            let all = vm.first..vm.first + vm.count;
            for v in all.clone() {
                let vcpu = &cpus.vcpus[v as usize];
                let waits = matches!(vcpu.state, VState::Waiting | VState::Throttled);
                let waited = vcpu.wait_ns + if waits { now - vcpu.wait_since } else { 0 };
                let more = waited - std::mem::replace(&mut self.waited[v as usize], waited);
                self.progress[v as usize] += passed.saturating_sub(more);
            }
            let halted = |v: &u32| cpus.vcpus[*v as usize].state == VState::Halted;
            let least = all.clone().filter(|v| !halted(v)).map(|v| self.progress[v as usize]).min();
            let Some(least) = least else { continue };
            for v in all {
                let progress = &mut self.progress[v as usize];
                if halted(&v) {
                    *progress = least;
                }
                let stopped = cpus.vcpus[v as usize].parked & AHEAD != 0;
                match (*progress > least + self.spec.skew_ns, stopped) {
                    (true, false) => orders.push(Order::Park(v, AHEAD)),
                    (false, true) => orders.push(Order::Unpark(v, AHEAD)),
                    _ => {}
                }
            }
        }
    }
}
