//! Threads on vCPUs: the guest's scheduler. It does not know whether a vCPU runs.
//!
//! Each vCPU has a queue in turns of a time slice. Who wakes up goes to the vCPU it was on if that has
//! nothing to do, else to one that has nothing to do, else into the queue of the one it was on, where it
//! runs at once if the thread there ran long enough. A vCPU out of threads takes one from another's
//! queue, else it halts. Busy ones are evened out now and then ([`EVEN_NS`]). A program's threads begin on the vCPUs in order, or, if the guest sees several packages
//! ([`crate::GuestSpec::packages`]), in each package in turn. With [`crate::GuestSpec::rotate`] one that is alone goes on elsewhere after its slice. Known
//! gaps: no polling before a halt; one busy vCPU gives another a thread at a time, where each of Linux' takes; those that differ by one
//! thread are not evened out in turn.

use super::{Act, Sim, TState};
use crate::cpus::{NONE, VState, bits, put};
use crate::queue::Ns;

/// Between two looks at the queues of a VM's vCPUs, for each that is online: `sd_weight` ms, twice that while nothing is to be done, times
/// `busy_factor`, 16 (kernel/sched/fair.c, `get_sd_balance_interval`; kernel/sched/topology.c).
const EVEN_NS: Ns = 32_000_000;

impl Sim {
    /// The number of a vCPU in its VM.
    fn index(&self, v: u32) -> u32 {
        v - self.cpus.vms[self.cpus.vcpus[v as usize].vm as usize].first
    }

    pub(super) fn mark_idle(&mut self, v: u32, idle: bool) {
        let index = self.index(v);
        let vcpu = &self.cpus.vcpus[v as usize];
        put(&mut self.guests[vcpu.vm as usize].idle, index, idle && vcpu.online);
    }

    pub(super) fn mark_crowded(&mut self, v: u32) {
        let index = self.index(v);
        let vcpu = &mut self.cpus.vcpus[v as usize];
        let crowded = vcpu.ready.len > 0;
        vcpu.sliced = crowded || vcpu.rotates;
        put(&mut self.guests[vcpu.vm as usize].crowded, index, crowded);
    }

    /// Where a thread that wakes up goes.
    fn vcpu_for(&self, t: u32) -> u32 {
        let thread = &self.threads[t as usize];
        let before = thread.vcpu;
        // Who is pinned to what went offline runs anywhere from then on (`select_fallback_rq`).
        if thread.pinned && self.cpus.vcpus[before as usize].online {
            return before;
        }
        let vm = self.cpus.vcpus[before as usize].vm as usize;
        let (idle, first) = (&self.guests[vm].idle, self.cpus.vms[vm].first);
        let from = before - first;
        if crate::cpus::has(idle, from) {
            return before;
        }
        let next = bits(idle).find(|&i| i > from).or_else(|| bits(idle).next());
        if let Some(index) = next {
            return first + index;
        }
        if self.cpus.vcpus[before as usize].online {
            return before;
        }
        let all = first..first + self.cpus.vms[vm].count;
        let online = all.filter(|&v| self.cpus.vcpus[v as usize].online);
        online.min_by_key(|&v| self.cpus.vcpus[v as usize].ready.len).unwrap_or(before)
    }

    /// A blocked thread can go on. `by`: the vCPU whose thread woke it up, and pays for it.
    pub(super) fn wake_thread(&mut self, t: u32, by: u32) {
        let v = self.vcpu_for(t);
        let thread = &mut self.threads[t as usize];
        if thread.vcpu != v {
            thread.vcpu = v;
            thread.pinned = false;
            let vcpu = &mut self.cpus.vcpus[v as usize];
            vcpu.debt += self.costs.migrate_near_ns;
            self.guests[vcpu.vm as usize].counts.thread_moves += 1;
        }
        let halted = self.cpus.vcpus[v as usize].state == VState::Halted;
        if by != NONE {
            let kick = if halted { self.costs.kick_ns } else { 0 };
            self.cpus.vcpus[by as usize].debt += self.costs.thread_wake_ns + kick;
        }
        if self.cpus.vcpus[v as usize].cur == NONE {
            self.switch_in(v, t);
            if halted {
                self.wake_vcpu(v);
            }
            return;
        }
        self.threads[t as usize].state = TState::Ready;
        let (running, p) = self.queue_up(v, t);
        let vcpu = &self.cpus.vcpus[v as usize];
        let guest = &self.guests[vcpu.vm as usize];
        let ran = guest.slice_ns - vcpu.guest_left.min(guest.slice_ns);
        if ran >= guest.wakeup_ns && !self.threads[vcpu.cur as usize].fixed() && by != v {
            self.swap(v, t);
        }
        if running && by != v {
            self.arm(p);
        }
    }

    /// Thread `t` waits in the queue of a vCPU; whether that runs, which then has to be armed, and where.
    fn queue_up(&mut self, v: u32, t: u32) -> (bool, u32) {
        let vcpu = &mut self.cpus.vcpus[v as usize];
        vcpu.ready.push(&mut self.threads, t);
        let (running, p) = (vcpu.state == VState::Running, vcpu.pcpu);
        self.mark_crowded(v);
        if running {
            self.settle(p);
        }
        (running, p)
    }

    /// Thread `t`, in the vCPU's queue, runs now; the one that did waits.
    fn swap(&mut self, v: u32, t: u32) {
        let vcpu = &mut self.cpus.vcpus[v as usize];
        let old = vcpu.cur;
        vcpu.ready.remove(&mut self.threads, t);
        self.threads[old as usize].state = TState::Ready;
        vcpu.ready.push(&mut self.threads, old);
        self.switch_in(v, t);
    }

    /// The slice of the thread on a vCPU is over.
    pub(super) fn next_slice(&mut self, v: u32) {
        self.even_out(self.cpus.vcpus[v as usize].vm as usize);
        let next = self.cpus.vcpus[v as usize].ready.head;
        self.swap(v, next);
    }

    /// Now and then a thread leaves the longest queue of a VM for a busy vCPU with two threads less, or fewer.
    fn even_out(&mut self, vm: usize) {
        let since = self.now - self.guests[vm].evened;
        if since < EVEN_NS {
            return;
        }
        let first = self.cpus.vms[vm].first;
        let online = (first..first + self.cpus.vms[vm].count).filter(|&v| self.cpus.vcpus[v as usize].online);
        if since < EVEN_NS * online.clone().count() as u64 {
            return;
        }
        let waiting = |v: &u32| self.cpus.vcpus[*v as usize].ready.len;
        let busy = online.filter(|&v| self.cpus.vcpus[v as usize].cur != NONE);
        let gives = busy.clone().filter_map(|v| Some((v, self.movable(v)?)));
        let (from, to) = (gives.max_by_key(|(v, _)| waiting(v)), busy.min_by_key(waiting));
        let uneven = from.zip(to).filter(|((from, _), to)| waiting(to) + 2 <= waiting(from));
        self.guests[vm].evened = self.now;
        let Some(((from, t), to)) = uneven else { return };
        self.cpus.vcpus[from as usize].ready.remove(&mut self.threads, t);
        self.mark_crowded(from);
        self.threads[t as usize].vcpu = to;
        self.guests[vm].counts.thread_moves += 1;
        let (running, p) = self.queue_up(to, t);
        self.cpus.vcpus[to as usize].debt += self.costs.migrate_near_ns;
        if running {
            self.arm(p);
        }
    }

    /// Who may leave the queue of a vCPU for another.
    fn movable(&self, v: u32) -> Option<u32> {
        let movable = |t: &u32| {
            let thread = &self.threads[*t as usize];
            !thread.pinned && !thread.fixed()
        };
        self.cpus.vcpus[v as usize].ready.iter(&self.threads).find(movable)
    }

    /// A thread that is in no queue is put on a vCPU.
    pub(super) fn switch_in(&mut self, v: u32, t: u32) {
        let vcpu = &mut self.cpus.vcpus[v as usize];
        let idle = vcpu.cur == NONE;
        let app = self.threads[t as usize].app;
        let other = !idle && self.threads[vcpu.cur as usize].app != app;
        vcpu.cur = t;
        vcpu.debt += self.costs.thread_switch_ns;
        let guest = &mut self.guests[vcpu.vm as usize];
        vcpu.guest_left = guest.slice_ns;
        vcpu.ple_left = self.ple.window_ns;
        guest.counts.thread_switches += 1;
        let thread = &mut self.threads[t as usize];
        thread.state = TState::Current;
        thread.vcpu = v;
        if idle {
            self.mark_idle(v, false);
        }
        self.mark_crowded(v);
        if other && self.cpus.vcpus[v as usize].state == VState::Running {
            let p = self.cpus.vcpus[v as usize].pcpu;
            self.recount(p);
        }
        self.look_at_lock(v);
    }

    /// The thread on a vCPU that runs has to wait.
    pub(super) fn block(&mut self, t: u32) {
        self.threads[t as usize].state = TState::Blocked;
        self.leave_vcpu(t);
    }

    /// A thread is not on its vCPU any more.
    pub(super) fn leave_vcpu(&mut self, t: u32) {
        let v = self.threads[t as usize].vcpu;
        self.cpus.vcpus[v as usize].cur = NONE;
        if let Some(next) = self.cpus.vcpus[v as usize].ready.pop(&mut self.threads) {
            self.switch_in(v, next);
        } else if let Some(next) = self.pull(v) {
            self.switch_in(v, next);
        } else {
            self.mark_idle(v, true);
            match self.cpus.vcpus[v as usize].state {
                VState::Running => self.halt(v),
                VState::Waiting | VState::Throttled => self.halt_waiting(v),
                VState::Halted => {}
            }
        }
    }

    /// The slice of a thread that is alone on its vCPU is over: it goes on on an idle one.
    pub(super) fn rotate(&mut self, v: u32) {
        let vcpu = &mut self.cpus.vcpus[v as usize];
        let (t, vm) = (vcpu.cur, vcpu.vm as usize);
        vcpu.guest_left = self.guests[vm].slice_ns;
        let (first, own) = (self.cpus.vms[vm].first, self.index(v));
        let idle = &self.guests[vm].idle;
        let next = bits(idle).find(|&i| i > own).or_else(|| bits(idle).next());
        let thread = &self.threads[t as usize];
        let stays = thread.act == Act::Spin || thread.pinned;
        let Some(to) = next.map(|i| first + i).filter(|_| !stays) else { return };
        self.block(t);
        self.cpus.vcpus[to as usize].debt += self.costs.migrate_near_ns;
        self.guests[vm].counts.thread_moves += 1;
        self.switch_in(to, t);
        if self.cpus.vcpus[to as usize].state == VState::Halted {
            self.wake_vcpu(to);
        }
    }

    /// Takes a thread out of the queue of another vCPU of the VM.
    pub(super) fn pull(&mut self, v: u32) -> Option<u32> {
        let vcpu = &self.cpus.vcpus[v as usize];
        if !vcpu.online {
            return None;
        }
        let vm = vcpu.vm as usize;
        let first = self.cpus.vms[vm].first;
        let (from, t) = bits(&self.guests[vm].crowded).find_map(|index| {
            let from = first + index;
            self.movable(from).map(|t| (from, t))
        })?;
        self.cpus.vcpus[from as usize].ready.remove(&mut self.threads, t);
        self.mark_crowded(from);
        self.guests[vm].counts.thread_moves += 1;
        self.cpus.vcpus[v as usize].debt += self.costs.migrate_near_ns;
        Some(t)
    }

    /// A thread ends, wherever it is.
    pub(super) fn kill(&mut self, t: u32) {
        let state = std::mem::replace(&mut self.threads[t as usize].state, TState::Out);
        let v = self.threads[t as usize].vcpu;
        match state {
            TState::Current => {
                let vcpu = &self.cpus.vcpus[v as usize];
                let (running, p) = (vcpu.state == VState::Running, vcpu.pcpu);
                if running {
                    self.settle(p);
                }
                self.leave_vcpu(t);
                if running {
                    self.arm(p);
                }
            }
            TState::Ready => {
                self.cpus.vcpus[v as usize].ready.remove(&mut self.threads, t);
                self.mark_crowded(v);
            }
            TState::Blocked | TState::Out => {}
        }
    }

    /// What a thread waits for came. `by`: the vCPU of the one who brought it.
    pub(super) fn grant(&mut self, t: u32, delay: u64, by: u32) {
        let thread = &mut self.threads[t as usize];
        thread.granted = true;
        let v = thread.vcpu;
        match thread.state {
            TState::Current => {
                let vcpu = &self.cpus.vcpus[v as usize];
                let (state, p) = (vcpu.state, vcpu.pcpu);
                if state == VState::Running {
                    self.settle(p);
                }
                debug_assert_eq!(self.threads[t as usize].act, Act::Spin);
                self.threads[t as usize].left = delay;
                match state {
                    VState::Running => self.arm(p),
                    VState::Halted => self.kick(v, by),
                    _ => {}
                }
            }
            TState::Ready => thread.left = delay,
            TState::Blocked => {
                thread.goes_on();
                self.wake_thread(t, by);
            }
            TState::Out => {}
        }
    }

    /// Wakes up a vCPU that halted in the slow path of a lock.
    pub(super) fn kick(&mut self, v: u32, by: u32) {
        if by != NONE {
            self.cpus.vcpus[by as usize].debt += self.costs.kick_ns;
        }
        self.wake_vcpu(v);
    }
}

#[cfg(test)]
mod tests {
    use crate::{Scenario, Sim};

    #[test]
    fn new_threads_go_to_the_packages_in_turn() {
        let begin = |packages: &str| {
            let text = format!(
                "hardware = {{ cores = 4 }}\n[[vm]]\nname = \"a\"\nvcpus = 6\npackages = {packages}\n\
                 threads = 7\nprogram = \"hog\"\n"
            );
            let sim = Sim::new(&Scenario::parse(&text, &[]).unwrap().spec).unwrap();
            sim.threads.iter().map(|thread| thread.vcpu).collect::<Vec<_>>()
        };
        assert_eq!(begin("1"), [0, 1, 2, 3, 4, 5, 0]);
        assert_eq!(begin("2"), [0, 3, 1, 4, 2, 5, 0]);
        assert_eq!(begin("4"), [0, 2, 4, 1, 3, 5, 0], "of two vCPUs: there are three");
        assert_eq!(begin("9"), [0, 1, 2, 3, 4, 5, 0]);
    }

    #[test]
    fn busy_vcpus_with_two_threads_less_than_others_get_one_after_a_while() {
        let text =
            "hardware = { cores = 4 }\n[[vm]]\nname = \"a\"\nvcpus = 4\nthreads = 8\nprogram = \"hog\"\n";
        let mut sim = Sim::new(&Scenario::parse(text, &[]).unwrap().spec).unwrap();
        let on = |sim: &Sim| {
            let mut threads = [0; 4];
            sim.threads.iter().for_each(|thread| threads[thread.vcpu as usize] += 1);
            threads.sort_unstable();
            threads
        };
        let second = 1_000_000_000;
        sim.run_for(second);
        assert_eq!(on(&sim), [2; 4]);
        // The fourth one takes a single thread when it comes back.
        sim.set_online(0, 3).unwrap();
        sim.run_for(second / 10);
        sim.set_online(0, 4).unwrap();
        sim.run_for(second / 100);
        assert_eq!(on(&sim), [1, 2, 2, 3]);
        sim.run_for(second / 2);
        assert_eq!(on(&sim), [2; 4]);
        // One more or less is left.
        sim.set_online(0, 3).unwrap();
        sim.run_for(second);
        assert_eq!(on(&sim), [0, 2, 3, 3]);
    }
}
