//! Linux' fair scheduler, with control groups for VMs and vCPUs.
//!
//! Every pCPU has a queue ordered by virtual run time: time run over weight. The one that is furthest
//! behind runs, for its part of the latency. A VM's weight is divided among its vCPUs that want to run
//! (`calc_group_shares`), so the two levels of groups become one weight per vCPU:
//! `weight(VM) * weight(vCPU) / weights of the VM's runnable vCPUs`. On one pCPU that is what nested
//! queues give in the long run.
//!
//! Between pCPUs: who wakes up goes to an idle one, a pCPU that would be idle takes from the fullest,
//! and every [`CfsSpec::balance_ns`] loads are evened out. With 3 loops on 2 pCPUs, one moves at each
//! look, so that each gets 2/3.
//!
//! Known gaps: loads are those of the moment, not decaying means (PELT); one balancing domain instead of
//! one per level; EEVDF's deadlines are not modelled (its shares are the same, its order within a
//! latency differs).

use crate::cpus::{Cpus, NONE, bits};
use crate::queue::{NEVER, Ns};
use crate::spec::CfsSpec;

use super::{Order, Scheduler};

/// Virtual time of a VM of weight 1024 with one vCPU passes as real time.
const UNIT: u64 = 1 << 20;

#[derive(Clone, Debug)]
pub(crate) struct Cfs {
    spec: CfsSpec,
    queues: Vec<Vec<u32>>,
    /// The least virtual time on a pCPU; it never falls.
    floor: Vec<i64>,
    /// Virtual time of a vCPU; relative to its pCPU's floor while it is halted.
    virt: Vec<i64>,
}

fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

impl Cfs {
    pub(crate) fn new(spec: CfsSpec, cpus: &Cpus) -> Cfs {
        let pcpus = cpus.pcpus.len();
        Cfs { spec, queues: vec![vec![]; pcpus], floor: vec![0; pcpus], virt: vec![0; cpus.vcpus.len()] }
    }

    fn weight(cpus: &Cpus, v: u32) -> u64 {
        let vcpu = &cpus.vcpus[v as usize];
        ((cpus.vms[vcpu.vm as usize].unit * vcpu.weight) >> 10).max(1)
    }

    fn virtual_time(cpus: &Cpus, v: u32, ns: Ns) -> i64 {
        signed(ns.saturating_mul(UNIT) / Cfs::weight(cpus, v))
    }

    /// Raises the floor to the least virtual time of those who are there.
    fn raise(&mut self, cpus: &Cpus, p: u32) {
        let run = cpus.pcpus[p as usize].run;
        let there = self.queues[p as usize].iter().copied().chain((run != NONE).then_some(run));
        if let Some(least) = there.map(|v| self.virt[v as usize]).min() {
            let floor = &mut self.floor[p as usize];
            *floor = (*floor).max(least);
        }
    }

    fn first(&self, p: u32) -> Option<usize> {
        let queue = &self.queues[p as usize];
        (0..queue.len()).min_by_key(|&i| self.virt[queue[i] as usize])
    }

    fn load(&self, cpus: &Cpus, p: u32) -> u64 {
        let run = cpus.pcpus[p as usize].run;
        let there = self.queues[p as usize].iter().copied().chain((run != NONE).then_some(run));
        there.map(|v| Cfs::weight(cpus, v)).sum()
    }

    /// Takes a waiting vCPU out of its pCPU's queue and counts it for another.
    fn carry(&mut self, cpus: &mut Cpus, v: u32, to: u32) {
        let from = cpus.vcpus[v as usize].pcpu;
        self.queues[from as usize].retain(|&w| w != v);
        cpus.count_waiting(from, false);
        self.virt[v as usize] += self.floor[to as usize] - self.floor[from as usize];
        cpus.vcpus[v as usize].pcpu = to;
    }

    fn balance(&mut self, cpus: &mut Cpus, orders: &mut Vec<Order>) {
        let mut loads: Vec<u64> = (0..).zip(&cpus.pcpus).map(|(p, _)| self.load(cpus, p)).collect();
        let mut full: Vec<u32> = bits(&cpus.crowded).collect();
        full.sort_by_key(|&p| (std::cmp::Reverse(loads[p as usize]), p));
        let mut moved = vec![false; loads.len()];
        for from in full {
            let mut queue = self.queues[from as usize].clone();
            queue.sort_by_key(|&v| self.virt[v as usize]);
            for v in queue {
                let weight = Cfs::weight(cpus, v);
                let free = |&p: &u32| p != from && !moved[p as usize];
                let mask = &cpus.masks[cpus.vcpus[v as usize].mask as usize];
                let Some(to) = bits(mask).filter(free).min_by_key(|&p| (loads[p as usize], p)) else {
                    continue;
                };
                if loads[to as usize] + weight > loads[from as usize] || moved[from as usize] {
                    continue;
                }
                self.carry(cpus, v, to);
                self.queues[to as usize].push(v);
                cpus.count_waiting(to, true);
                loads[from as usize] -= weight;
                loads[to as usize] += weight;
                moved[from as usize] = true;
                moved[to as usize] = true;
                orders.push(Order::Look(to));
            }
        }
        if cpus.topology.minds_siblings {
            for p in 0..u32::try_from(cpus.pcpus.len()).unwrap_or(0) {
                let v = cpus.pcpus[p as usize].run;
                if v != NONE
                    && !moved[p as usize]
                    && let Some(to) = cpus.better_core(v)
                    && !moved[to as usize]
                {
                    moved[to as usize] = true;
                    // One of a pair is enough: the other then has the core to itself.
                    let core = cpus.topology.places[p as usize].core as usize;
                    cpus.topology.siblings[core].iter().for_each(|&q| moved[q as usize] = true);
                    orders.push(Order::Move(p, to));
                }
            }
        }
    }
}

impl Scheduler for Cfs {
    fn waiting(&self, p: u32) -> &[u32] {
        &self.queues[p as usize]
    }

    fn enter(&mut self, cpus: &mut Cpus, v: u32) -> u32 {
        let p = cpus.idle_for(v).unwrap_or_else(|| cpus.crowded_for(v, &self.queues));
        self.raise(cpus, p);
        let credit = -signed(self.spec.latency_ns / 2);
        self.virt[v as usize] = self.floor[p as usize] + self.virt[v as usize].max(credit);
        self.queues[p as usize].push(v);
        cpus.vcpus[v as usize].pcpu = p;
        cpus.count_waiting(p, true);
        p
    }

    fn leave(&mut self, cpus: &mut Cpus, v: u32) {
        let p = cpus.vcpus[v as usize].pcpu;
        self.queues[p as usize].retain(|&w| w != v);
        cpus.count_waiting(p, false);
        self.virt[v as usize] -= self.floor[p as usize];
    }

    fn back(&mut self, cpus: &mut Cpus, p: u32, v: u32, yielded: bool) {
        let from = cpus.vcpus[v as usize].pcpu;
        self.virt[v as usize] += self.floor[p as usize] - self.floor[from as usize];
        if yielded {
            // As a yield does: behind all that wait.
            let last = self.queues[p as usize].iter().map(|&w| self.virt[w as usize]).max();
            let virt = &mut self.virt[v as usize];
            *virt = last.map_or(*virt, |last| (*virt).max(last + 1));
        }
        self.queues[p as usize].push(v);
        cpus.vcpus[v as usize].pcpu = p;
        cpus.count_waiting(p, true);
    }

    fn halts(&mut self, cpus: &mut Cpus, v: u32) {
        let p = cpus.vcpus[v as usize].pcpu;
        self.raise(cpus, p);
        self.virt[v as usize] -= self.floor[p as usize];
    }

    fn next(&mut self, cpus: &mut Cpus, p: u32) -> Option<u32> {
        if let Some(index) = self.first(p) {
            let v = self.queues[p as usize].swap_remove(index);
            cpus.count_waiting(p, false);
            let floor = &mut self.floor[p as usize];
            *floor = (*floor).max(self.virt[v as usize]);
            return Some(v);
        }
        // It would be idle: takes from the fullest.
        let most = |v: &u32| std::cmp::Reverse(cpus.pcpus[cpus.vcpus[*v as usize].pcpu as usize].waiting);
        let there = bits(&cpus.crowded).flat_map(|q| self.queues[q as usize].iter().copied());
        let v = there.filter(|&v| cpus.may(v, p)).min_by_key(|v| (most(v), self.virt[*v as usize], *v))?;
        self.carry(cpus, v, p);
        Some(v)
    }

    fn preempts(&self, cpus: &Cpus, p: u32, v: u32, _now: Ns) -> bool {
        let run = cpus.pcpus[p as usize].run;
        let ahead = self.virt[run as usize] - self.virt[v as usize];
        ahead > Cfs::virtual_time(cpus, v, self.spec.wakeup_ns)
    }

    fn slice_end(&self, cpus: &Cpus, p: u32, now: Ns) -> Ns {
        let pcpu = &cpus.pcpus[p as usize];
        if pcpu.waiting == 0 {
            return NEVER;
        }
        let CfsSpec { latency_ns, granularity_ns, tick_ns, .. } = self.spec;
        let there = u64::from(pcpu.waiting) + 1;
        let period = latency_ns.max(there * granularity_ns);
        let (own, all) = (Cfs::weight(cpus, pcpu.run), self.load(cpus, p));
        let slice = if own * 2 == all { period / 2 } else { period * own / all.max(1) };
        let slice = slice.max(granularity_ns.min(latency_ns / 4));
        let end = (pcpu.dispatched + slice).max(now + 1);
        if tick_ns == 0 { end } else { end.next_multiple_of(tick_ns) }
    }

    fn ran(&mut self, cpus: &Cpus, v: u32, ns: Ns) {
        self.virt[v as usize] += Cfs::virtual_time(cpus, v, ns);
    }

    fn timers(&self) -> Vec<Ns> {
        vec![self.spec.balance_ns]
    }

    fn timer(&mut self, cpus: &mut Cpus, _number: u8, orders: &mut Vec<Order>) {
        let crowded = cpus.crowded.iter().any(|&word| word != 0);
        if crowded || cpus.topology.minds_siblings {
            self.balance(cpus, orders);
        }
    }
}
