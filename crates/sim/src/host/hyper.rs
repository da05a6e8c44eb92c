//! vCPUs on pCPUs: dispatching, preempting, halting, waking up, PLE.

use super::{Act, Sim, Wait};
use crate::cpus::{NONE, VState, VmCpus};
use crate::queue::NEVER;
use crate::sched::{Order, Scheduler};

impl Sim {
    /// Tells the scheduler, and the quotas, what ran on a pCPU since they were last told.
    pub(crate) fn charge(&mut self, p: u32) {
        let v = self.cpus.pcpus[p as usize].run;
        if v == NONE {
            return;
        }
        let vcpu = &mut self.cpus.vcpus[v as usize];
        let ns = self.now - vcpu.charged;
        if ns == 0 {
            return;
        }
        vcpu.charged = self.now;
        if vcpu.quota_left != NEVER {
            vcpu.quota_left = vcpu.quota_left.saturating_sub(ns);
        }
        if vcpu.pool_left != NEVER {
            vcpu.pool_left = vcpu.pool_left.saturating_sub(ns);
        }
        self.sched.ran(&self.cpus, v, ns);
    }

    /// When the quota of the vCPU on a pCPU, just charged, ends, or its slice.
    pub(super) fn set_limit(&mut self, p: u32) {
        let vcpu = &self.cpus.vcpus[self.cpus.pcpus[p as usize].run as usize];
        let quota = self.now.saturating_add(vcpu.quota_left.min(vcpu.pool_left));
        let slice = self.sched.slice_end(&self.cpus, p, self.now);
        self.cpus.pcpus[p as usize].limit = quota.min(slice);
    }

    pub(super) fn count_runnable(&mut self, v: u32, more: bool) {
        let vcpu = &self.cpus.vcpus[v as usize];
        let vm = &mut self.cpus.vms[vcpu.vm as usize];
        vm.runnable = if more { vm.runnable + vcpu.weight } else { vm.runnable - vcpu.weight };
        vm.unit = (vm.weight << 20) / vm.runnable.max(1);
    }

    /// A halted vCPU has something to do again.
    pub(crate) fn wake_vcpu(&mut self, v: u32) {
        let vcpu = &mut self.cpus.vcpus[v as usize];
        debug_assert_eq!(vcpu.state, VState::Halted);
        vcpu.debt += self.costs.halt_ns;
        vcpu.wait_since = self.now;
        self.guests[vcpu.vm as usize].counts.kicks += 1;
        self.enter(v);
    }

    /// A vCPU that does not run wants to.
    pub(super) fn enter(&mut self, v: u32) {
        self.goes_on(v);
        if !self.may_enter(v) {
            self.cpus.vcpus[v as usize].state = VState::Throttled;
            self.stopped(v);
            return;
        }
        self.count_runnable(v, true);
        let p = self.sched.enter(&mut self.cpus, v);
        self.cpus.vcpus[v as usize].state = VState::Waiting;
        self.poke(p, v);
    }

    /// `v` now waits for a pCPU: it runs there soon if it is idle or `v` comes before what runs.
    fn poke(&mut self, p: u32, v: u32) {
        self.settle(p);
        let soon = self.now + self.costs.ipi_ns;
        if self.cpus.pcpus[p as usize].run == NONE {
            let pcpu = &mut self.cpus.pcpus[p as usize];
            pcpu.resched = pcpu.resched.min(soon);
            // Nobody else is sent here meanwhile.
            self.cpus.set_idle(p, false);
        } else {
            self.charge(p);
            if self.sched.preempts(&self.cpus, p, v, self.now) {
                let pcpu = &mut self.cpus.pcpus[p as usize];
                pcpu.resched = pcpu.resched.min(soon);
            }
            self.set_limit(p);
        }
        self.arm(p);
    }

    /// What runs on a pCPU stops; it is charged and settled. The vCPU's next state is the caller's.
    fn off(&mut self, p: u32) -> u32 {
        self.charge(p);
        let pcpu = &mut self.cpus.pcpus[p as usize];
        let v = std::mem::replace(&mut pcpu.run, NONE);
        pcpu.last = v;
        pcpu.limit = NEVER;
        let dispatched = pcpu.dispatched;
        let vcpu = &mut self.cpus.vcpus[v as usize];
        vcpu.run_ns += self.now - dispatched;
        let vm = vcpu.vm;
        for &w in self.sched.waiting(p) {
            let other = &self.cpus.vcpus[w as usize];
            if other.vm == vm {
                self.guests[vm as usize].counts.stacked_ns += self.now - dispatched.max(other.wait_since);
            }
        }
        v
    }

    /// A vCPU loses its pCPU while it wants to run: whether it had or wanted a lock.
    fn count_preemption(&mut self, v: u32) {
        let vcpu = &self.cpus.vcpus[v as usize];
        if vcpu.cur == NONE {
            return;
        }
        let thread = &self.threads[vcpu.cur as usize];
        let counts = &mut self.guests[vcpu.vm as usize].counts;
        if thread.holds + thread.holds_user > 0 {
            counts.holder_preemptions += 1;
        } else if thread.act == Act::Spin && matches!(thread.wait, Wait::Kernel(_) | Wait::User(_)) {
            counts.waiter_preemptions += 1;
        }
    }

    /// The pCPU chooses anew; what ran goes back into its queue.
    pub(crate) fn look(&mut self, p: u32, yielded: bool) {
        self.cpus.pcpus[p as usize].resched = NEVER;
        if self.cpus.pcpus[p as usize].run == NONE {
            self.dispatch(p);
            return;
        }
        let v = self.off(p);
        self.return_to_queue(p, v, yielded);
        self.dispatch(p);
        if self.cpus.pcpus[p as usize].run != v {
            self.leaves_pool(v);
            if !yielded {
                self.count_preemption(v);
            }
        }
    }

    fn return_to_queue(&mut self, p: u32, v: u32, yielded: bool) {
        let vcpu = &mut self.cpus.vcpus[v as usize];
        vcpu.state = VState::Waiting;
        vcpu.wait_since = self.now;
        self.sched.back(&mut self.cpus, p, v, yielded);
    }

    /// A slice or a quota ended.
    pub(crate) fn limit(&mut self, p: u32) {
        self.charge(p);
        let v = self.cpus.pcpus[p as usize].run;
        if self.has_quota(v) {
            if self.now >= self.sched.slice_end(&self.cpus, p, self.now.saturating_sub(1)) {
                self.look(p, false);
            } else {
                self.set_limit(p);
            }
        } else {
            self.throttle(p);
        }
    }

    pub(super) fn throttle(&mut self, p: u32) {
        let v = self.off(p);
        self.count_preemption(v);
        let vcpu = &mut self.cpus.vcpus[v as usize];
        vcpu.state = VState::Throttled;
        vcpu.wait_since = self.now;
        self.stopped(v);
        self.sched.halts(&mut self.cpus, v);
        self.count_runnable(v, false);
        self.dispatch(p);
    }

    /// The vCPU on a pCPU has nothing to do, or gives up waiting for a lock.
    pub(crate) fn halt(&mut self, v: u32) {
        let p = self.cpus.vcpus[v as usize].pcpu;
        debug_assert_eq!(self.cpus.pcpus[p as usize].run, v);
        self.off(p);
        let vcpu = &mut self.cpus.vcpus[v as usize];
        vcpu.state = VState::Halted;
        let vm = vcpu.vm as usize;
        self.guests[vm].counts.halts += 1;
        self.give_back(v);
        self.sched.halts(&mut self.cpus, v);
        self.count_runnable(v, false);
        self.dispatch(p);
    }

    /// A vCPU that waits has nothing to do any more: its thread was ended by another.
    pub(crate) fn halt_waiting(&mut self, v: u32) {
        self.goes_on(v);
        let vcpu = &mut self.cpus.vcpus[v as usize];
        vcpu.wait_ns += self.now - vcpu.wait_since;
        let waited = std::mem::replace(&mut vcpu.state, VState::Halted) == VState::Waiting;
        let p = vcpu.pcpu;
        if waited {
            self.give_back(v);
            self.sched.leave(&mut self.cpus, v);
            self.count_runnable(v, false);
            self.settle(p);
            self.arm(p);
        }
    }

    /// Puts the next vCPU on an empty pCPU.
    fn dispatch(&mut self, p: u32) {
        let Some(v) = self.next_with_quota(p) else {
            let pcpu = &mut self.cpus.pcpus[p as usize];
            pcpu.idle_since = pcpu.idle_since.min(self.now);
            self.cpus.set_idle(p, true);
            self.recount(p);
            return;
        };
        let pcpu = &mut self.cpus.pcpus[p as usize];
        pcpu.run = v;
        pcpu.dispatched = self.now;
        let vcpu = &mut self.cpus.vcpus[v as usize];
        vcpu.state = VState::Running;
        // Who goes on at once never left.
        self.cpus.runs[v as usize] += u64::from(pcpu.last != v || vcpu.wait_since != self.now);
        vcpu.pcpu = p;
        vcpu.charged = self.now;
        vcpu.wait_ns += self.now - vcpu.wait_since;
        vcpu.ple_left = self.ple.window_ns;
        let counts = &mut self.guests[vcpu.vm as usize].counts;
        if pcpu.last != v {
            vcpu.debt += self.costs.switch_ns;
            counts.switches += 1;
        }
        if vcpu.ran_on != p {
            if vcpu.ran_on != NONE {
                counts.migrations += 1;
                let near = self.cpus.topology.distance(vcpu.ran_on, p) == 1;
                vcpu.debt += if near { self.costs.migrate_near_ns } else { self.costs.migrate_far_ns };
            }
            vcpu.ran_on = p;
        }
        if pcpu.idle_since != NEVER {
            pcpu.idle_ns += self.now - pcpu.idle_since;
            pcpu.idle_since = NEVER;
        }
        self.cpus.set_idle(p, false);
        self.set_limit(p);
        self.recount(p);
        self.look_at_lock(v);
    }

    /// The pCPU's business changed: it and its siblings may become faster or slower.
    pub(crate) fn recount(&mut self, p: u32) {
        let v = self.cpus.pcpus[p as usize].run;
        let (counted, remote) = if v == NONE { (0, false) } else { self.class_of(v, p) };
        let before = self.cpus.pcpus[p as usize].counted;
        if before == counted && !remote && !self.remote {
            return;
        }
        let topology = &mut self.cpus.topology;
        let core = topology.places[p as usize].core as usize;
        let busy = topology.busy[core];
        if before > 0 {
            topology.fill(p, before as usize - 1, false);
            topology.busy[core] -= 1;
        }
        if counted > 0 {
            topology.fill(p, counted as usize - 1, true);
            topology.busy[core] += 1;
        }
        self.cpus.pcpus[p as usize].counted = counted;
        if busy >= 2 {
            self.competing_ns += self.now - self.competing_since[core];
        }
        self.competing_since[core] = self.now;
        if self.cpus.topology.minds_cache {
            let node = self.cpus.topology.places[p as usize].node;
            for q in 0..self.pcpus() {
                if self.cpus.topology.places[q as usize].node == node {
                    self.set_rate(q, p);
                }
            }
        } else if self.cpus.topology.minds_siblings {
            for index in 0..self.cpus.topology.siblings[core].len() {
                self.set_rate(self.cpus.topology.siblings[core][index], p);
            }
        } else {
            self.set_rate(p, p);
        }
    }

    /// Computes a pCPU's speed; one other than `changed` is settled and armed.
    pub(super) fn set_rate(&mut self, q: u32, changed: u32) {
        let v = self.cpus.pcpus[q as usize].run;
        if v == NONE {
            return;
        }
        let (counted, remote) = self.class_of(v, q);
        let rate = self.cpus.topology.rate(q, counted as usize - 1, remote);
        let missing = self.cpus.topology.missing(q, counted as usize - 1);
        let pcpu = &self.cpus.pcpus[q as usize];
        if (rate, missing) == (pcpu.rate, pcpu.missing) {
            return;
        }
        self.settle(q);
        let pcpu = &mut self.cpus.pcpus[q as usize];
        (pcpu.rate, pcpu.missing) = (rate, missing);
        if q != changed {
            self.arm(q);
        }
    }

    /// Spinning was noticed: the vCPU lets another run.
    pub(crate) fn ple_exit(&mut self, p: u32, v: u32) {
        let vcpu = &mut self.cpus.vcpus[v as usize];
        vcpu.debt += self.costs.ple_exit_ns;
        vcpu.ple_left = self.ple.window_ns;
        self.guests[vcpu.vm as usize].counts.ple_exits += 1;
        if self.ple.directed
            && let Some(w) = self.worth_yielding_to(v)
            && self.sched.favour(&self.cpus, w)
        {
            let q = self.cpus.vcpus[w as usize].pcpu;
            if q != p {
                self.again(q);
            }
        }
        self.look(p, true);
    }

    /// A vCPU of the same VM that waits for a pCPU: the next one after the last one found. One that spins only each second
    /// time: it may have been given the lock meanwhile (`kvm_vcpu_eligible_for_directed_yield`).
    fn worth_yielding_to(&mut self, v: u32) -> Option<u32> {
        let vm = self.cpus.vcpus[v as usize].vm as usize;
        let VmCpus { first, count, .. } = self.cpus.vms[vm];
        let begin = self.guests[vm].favoured;
        for w in (1..=count).map(|i| first + (begin + i) % count) {
            let vcpu = &mut self.cpus.vcpus[w as usize];
            if vcpu.state != VState::Waiting {
                continue;
            }
            let spins = self.threads[vcpu.cur as usize].act == Act::Spin;
            vcpu.eligible = spins && !vcpu.eligible;
            if !vcpu.eligible {
                self.guests[vm].favoured = w - first;
                return Some(w);
            }
        }
        None
    }

    pub(crate) fn obey(&mut self, order: Order) {
        match order {
            Order::Look(p) => {
                let waiting = self.sched.waiting(p).first().copied();
                if let Some(v) = waiting {
                    self.poke(p, v);
                }
            }
            Order::Again(p) => self.again(p),
            Order::Move(from, to) => self.move_running(from, to),
            Order::Park(v, why) => self.park(v, why),
            Order::Unpark(v, why) => {
                self.cpus.vcpus[v as usize].parked &= !why;
                self.after_refill(v);
            }
        }
    }

    /// The pCPU is to choose anew, as soon as it hears of it.
    fn again(&mut self, p: u32) {
        self.settle(p);
        let pcpu = &mut self.cpus.pcpus[p as usize];
        pcpu.resched = pcpu.resched.min(self.now + self.costs.ipi_ns);
        if pcpu.run == NONE {
            self.cpus.set_idle(p, false);
        }
        self.arm(p);
    }

    fn move_running(&mut self, from: u32, to: u32) {
        if self.cpus.pcpus[from as usize].run == NONE || self.cpus.pcpus[to as usize].run != NONE {
            return;
        }
        self.settle(from);
        let v = self.off(from);
        // First, or it would take back at once what it gives away.
        self.dispatch(from);
        self.arm(from);
        self.return_to_queue(to, v, false);
        self.leaves_pool(v);
        self.poke(to, v);
    }

    /// Class (plus 1) of what a vCPU works at, and whether its memory is elsewhere.
    fn class_of(&self, v: u32, p: u32) -> (u32, bool) {
        let vcpu = &self.cpus.vcpus[v as usize];
        let class = self.apps[self.threads[vcpu.cur as usize].app as usize].class;
        let node = self.cpus.topology.places[p as usize].node;
        let home = self.guests[vcpu.vm as usize].memory_nodes.as_ref();
        (class + 1, home.is_some_and(|home| !crate::cpus::has(home, node)))
    }
}
