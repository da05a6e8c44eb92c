//! Linux' fair scheduler, with control groups for VMs and vCPUs.
//!
//! Every pCPU has a queue ordered by virtual run time: time run over weight. The one that is furthest
//! behind runs, for its part of the latency. A VM's weight is divided among its vCPUs that want to run
//! (`calc_group_shares`), so the two levels of groups become one weight per vCPU:
//! `weight(VM) * weight(vCPU) / weights of the VM's runnable vCPUs`. On one pCPU that is what nested
//! queues give in the long run.
//!
//! With [`CfsSpec::deadlines`] (EEVDF, Linux from 6.6 on): of those that are *eligible*, whose virtual time is not
//! ahead of the mean V of the queue, the one with the earliest deadline runs, undisturbed until it has had its slice.
//! A deadline is the virtual time at which the slice is had. Who sleeps keeps its lag, V less its virtual time, up to
//! two slices.
//!
//! ```text
//! weights 1, 1; slice 3:   a has virtual time 0, deadline 3;  b 0, 3:  V = 0, a runs 3 (tie)
//!                          a 3, 6;  b 0, 3:  V = 1.5, only b is eligible;  b runs 3, and so on
//! ```
//!
//! Between pCPUs: who wakes up goes to an idle one, a pCPU that would be idle takes from the fullest, and every
//! [`CfsSpec::balance_ns`] idle ones are filled. Loads of busy ones are evened out less often, so that with 3 loops
//! on 2 pCPUs one moves at each look, and each gets 2/3. One that has no more load than another, and a vCPU that may
//! go to an idle one, takes a vCPU of the other even if that makes it the fuller one: then it gives one to the idle one.
//! Linux 6.1 gets there by the noise in its loads (`docs/simulator.md`).
//!
//! Known gaps: loads are those of the moment, not decaying means (PELT); one balancing domain instead of
//! one per level; under deadlines, one that sleeps with negative lag leaves at once (no `DELAY_DEQUEUE`).

use crate::cpus::{Cpus, NONE, bits};
use crate::queue::{NEVER, Ns};
use crate::random::mix;
use crate::spec::CfsSpec;

use super::{Order, Scheduler, put_in, signed, take_out};

/// Virtual time of a VM of weight 1024 with one vCPU passes as real time.
const UNIT: u64 = 1 << 20;
/// Loads of busy pCPUs are evened out each so many ns per pCPU.
const BUSY_NS: u64 = 16_000_000;

#[derive(Clone, Debug)]
pub(crate) struct Cfs {
    spec: CfsSpec,
    queues: Vec<Vec<u32>>,
    /// The least virtual time on a pCPU, which never falls; with deadlines the mean.
    floor: Vec<i64>,
    /// Virtual time of a vCPU, in that of its pCPU. While it is off, it stands still in that of the pCPU where it was, so that
    /// it falls behind those that run; with deadlines it is its lag then.
    virt: Vec<i64>,
    was_on: Vec<u32>,
    /// With deadlines: of each vCPU, and until which virtual time what runs is left alone.
    deadline: Vec<i64>,
    until: Vec<i64>,
    /// By pCPU: who is to be next there (`cfs_rq->next`).
    buddy: Vec<u32>,
    /// Looks at the balance so far, those per look at busy ones, and the next of these.
    looks: u64,
    busy_every: u64,
    busy_next: u64,
}

impl Cfs {
    pub(crate) fn new(spec: CfsSpec, cpus: &Cpus) -> Cfs {
        let (pcpus, vcpus) = (cpus.pcpus.len(), cpus.vcpus.len());
        let node = cpus.topology.places.iter().filter(|place| place.node == 0).count() as u64;
        let busy_every = (BUSY_NS * node).div_ceil(spec.balance_ns).max(1);
        Cfs {
            spec,
            queues: vec![vec![]; pcpus],
            floor: vec![0; pcpus],
            virt: vec![0; vcpus],
            was_on: cpus.vcpus.iter().map(|vcpu| vcpu.pcpu).collect(),
            deadline: vec![0; vcpus],
            until: vec![0; vcpus],
            buddy: vec![NONE; pcpus],
            looks: 0,
            busy_every,
            busy_next: busy_every,
        }
    }

    fn weight(cpus: &Cpus, v: u32) -> u64 {
        let vcpu = &cpus.vcpus[v as usize];
        let vm = &cpus.vms[vcpu.vm as usize];
        let unit = if vm.grouped { vm.unit } else { vm.weight << 10 };
        ((unit * vcpu.weight) >> 10).max(1)
    }

    fn virtual_time(cpus: &Cpus, v: u32, ns: Ns) -> i64 {
        signed(ns.saturating_mul(UNIT) / Cfs::weight(cpus, v))
    }

    /// What a vCPU is to have until its deadline: its own, or the scheduler's.
    fn slice(&self, cpus: &Cpus, v: u32) -> Ns {
        let own = cpus.slices[v as usize];
        if own > 0 { own } else { self.spec.base_slice_ns }
    }

    fn there<'a>(&'a self, cpus: &Cpus, p: u32) -> impl Iterator<Item = u32> + 'a {
        let run = cpus.pcpus[p as usize].run;
        self.queues[p as usize].iter().copied().chain((run != NONE).then_some(run))
    }

    /// The mean virtual time, by weight, of some vCPUs; `None` of nobody.
    fn mean(&self, cpus: &Cpus, all: impl Iterator<Item = u32>) -> Option<i64> {
        let (mut sum, mut weights) = (0_i128, 0_i128);
        for v in all {
            let weight = i128::from(Cfs::weight(cpus, v));
            sum += weight * i128::from(self.virt[v as usize]);
            weights += weight;
        }
        (weights > 0).then(|| i64::try_from(sum.div_euclid(weights)).unwrap_or(i64::MAX))
    }

    /// Raises the floor to the least virtual time of those who are there; with deadlines, to their mean.
    fn raise(&mut self, cpus: &Cpus, p: u32) {
        if self.spec.deadlines {
            if let Some(mean) = self.mean(cpus, self.there(cpus, p)) {
                self.floor[p as usize] = mean;
            }
            return;
        }
        if let Some(least) = self.there(cpus, p).map(|v| self.virt[v as usize]).min() {
            let floor = &mut self.floor[p as usize];
            *floor = (*floor).max(least);
        }
    }

    /// Which of those that wait on a pCPU comes first.
    fn first(&self, cpus: &Cpus, p: u32) -> Option<usize> {
        let queue = &self.queues[p as usize];
        if self.spec.deadlines && queue.len() > 1 {
            let mean = self.mean(cpus, queue.iter().copied())?;
            let eligible = |i: &usize| self.virt[queue[*i] as usize] <= mean;
            return (0..queue.len()).filter(eligible).min_by_key(|&i| self.deadline[queue[i] as usize]);
        }
        let first = (0..queue.len()).min_by_key(|&i| self.virt[queue[i] as usize])?;
        let buddy = self.buddy[p as usize];
        if buddy != NONE
            && let Some(other) = queue.iter().position(|&v| v == buddy)
            && self.virt[buddy as usize] - self.virt[queue[first] as usize]
                <= Cfs::virtual_time(cpus, buddy, self.spec.wakeup_ns)
        {
            return Some(other);
        }
        Some(first)
    }

    /// Until which virtual time a vCPU that is put on a pCPU is left alone: its deadline, or the shortest slice there
    /// (`set_protect_slice`).
    fn undisturbed(&self, cpus: &Cpus, p: u32, v: u32) -> i64 {
        let (own, end) = (self.slice(cpus, v), self.deadline[v as usize]);
        let least = self.queues[p as usize].iter().map(|&w| self.slice(cpus, w)).min().unwrap_or(own);
        if least < own { end.min(self.virt[v as usize] + Cfs::virtual_time(cpus, v, least)) } else { end }
    }

    fn load(&self, cpus: &Cpus, p: u32) -> u64 {
        self.there(cpus, p).map(|v| Cfs::weight(cpus, v)).sum()
    }

    /// A vCPU's times, relative to one pCPU, become relative to another.
    fn shift(&mut self, cpus: &Cpus, v: u32, from: u32, to: u32) {
        if self.spec.deadlines && from != to {
            self.raise(cpus, from);
            self.raise(cpus, to);
        }
        let more = self.floor[to as usize] - self.floor[from as usize];
        self.virt[v as usize] += more;
        self.deadline[v as usize] += more;
    }

    /// Takes a waiting vCPU out of its pCPU's queue and counts it for another.
    fn carry(&mut self, cpus: &mut Cpus, v: u32, to: u32) {
        let from = cpus.vcpus[v as usize].pcpu;
        self.shift(cpus, v, from, to);
        take_out(&mut self.queues, cpus, v);
        cpus.vcpus[v as usize].pcpu = to;
    }

    /// A vCPU's times while it is off: as they are (`dequeue_entity`, `DEQUEUE_SLEEP`); with deadlines, its lag, of at most
    /// two slices.
    fn lay_aside(&mut self, cpus: &Cpus, v: u32, p: u32) {
        self.was_on[v as usize] = p;
        if self.spec.deadlines {
            let all = self.there(cpus, p).filter(|&w| w != v).chain([v]);
            let mean = self.mean(cpus, all).unwrap_or_default();
            let most = Cfs::virtual_time(cpus, v, 2 * self.slice(cpus, v).max(self.spec.tick_ns / 2));
            self.virt[v as usize] = (self.virt[v as usize] - mean).clamp(-most, most);
        }
        self.raise(cpus, p);
    }

    /// Whether somebody on a pCPU could go to an idle one.
    fn may_leave(&self, cpus: &Cpus, p: u32, loads: &[u64]) -> bool {
        let idle =
            |v: u32| bits(&cpus.masks[cpus.vcpus[v as usize].mask as usize]).any(|q| loads[q as usize] == 0);
        loads.contains(&0) && self.there(cpus, p).any(idle)
    }

    fn balance(&mut self, cpus: &mut Cpus, busy: bool, orders: &mut Vec<Order>) {
        let mut loads: Vec<u64> = (0..).zip(&cpus.pcpus).map(|(p, _)| self.load(cpus, p)).collect();
        let mut full: Vec<u32> = bits(&cpus.crowded).collect();
        full.sort_by_key(|&p| (std::cmp::Reverse(loads[p as usize]), p));
        let mut moved = vec![false; loads.len()];
        for from in full {
            let mut queue = self.queues[from as usize].clone();
            queue.sort_by_key(|&v| self.virt[v as usize]);
            for v in queue {
                let weight = Cfs::weight(cpus, v);
                let free = |&p: &u32| {
                    p != from
                        && !moved[p as usize]
                        && (busy || loads[p as usize] == 0)
                        && !(cpus.spread_siblings && cpus.stacks(v, p, &self.queues))
                };
                let mask = &cpus.masks[cpus.vcpus[v as usize].mask as usize];
                let Some(to) = bits(mask).filter(free).min_by_key(|&p| (loads[p as usize], p)) else {
                    continue;
                };
                // About: weights are rounded, and a kernel's loads are noisy.
                let (ours, theirs) = (loads[from as usize] * 65 / 64, loads[to as usize]);
                let evener = theirs + weight <= ours || theirs <= ours && self.may_leave(cpus, to, &loads);
                if !evener || moved[from as usize] {
                    continue;
                }
                self.carry(cpus, v, to);
                put_in(&mut self.queues, cpus, to, v);
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

/// As much of a time as `own` of `all`, which is most often small enough for the faster way.
fn part(ns: Ns, own: u64, all: u64) -> Ns {
    let wide = || u128::from(ns) * u128::from(own) / u128::from(all);
    ns.checked_mul(own).map_or_else(|| u64::try_from(wide()).unwrap_or(NEVER), |product| product / all)
}

impl Scheduler for Cfs {
    fn waiting(&self, p: u32) -> &[u32] {
        &self.queues[p as usize]
    }

    fn enter(&mut self, cpus: &mut Cpus, v: u32) -> u32 {
        let p = cpus.idle_for(v).unwrap_or_else(|| cpus.crowded_for(v, &self.queues));
        self.raise(cpus, p);
        if self.spec.deadlines {
            // What it adds to the mean must not eat its lag (`place_entity`).
            let (own, all) = (i128::from(Cfs::weight(cpus, v)), i128::from(self.load(cpus, p)));
            let lag = i128::from(self.virt[v as usize]);
            let lag = if all > 0 { lag * (all + own) / all } else { lag };
            self.virt[v as usize] = self.floor[p as usize] + i64::try_from(lag).unwrap_or(0);
            let slice = Cfs::virtual_time(cpus, v, self.slice(cpus, v));
            self.deadline[v as usize] = self.virt[v as usize] + slice;
        } else {
            // Half of the latency at most is made up for (`place_entity`, `GENTLE_FAIR_SLEEPERS`).
            let from = self.was_on[v as usize];
            self.shift(cpus, v, from, p);
            let credit = signed(self.spec.latency_ns / 2);
            self.virt[v as usize] = self.virt[v as usize].max(self.floor[p as usize] - credit);
        }
        put_in(&mut self.queues, cpus, p, v);
        p
    }

    fn leave(&mut self, cpus: &mut Cpus, v: u32) {
        let p = take_out(&mut self.queues, cpus, v);
        self.lay_aside(cpus, v, p);
    }

    fn back(&mut self, cpus: &mut Cpus, p: u32, v: u32, yielded: bool) {
        let from = cpus.vcpus[v as usize].pcpu;
        self.shift(cpus, v, from, p);
        if yielded && self.spec.deadlines {
            self.deadline[v as usize] += Cfs::virtual_time(cpus, v, self.slice(cpus, v));
        } else if yielded {
            // As a yield does: behind all that wait.
            let last = self.queues[p as usize].iter().map(|&w| self.virt[w as usize]).max();
            let virt = &mut self.virt[v as usize];
            *virt = last.map_or(*virt, |last| (*virt).max(last + 1));
        }
        put_in(&mut self.queues, cpus, p, v);
    }

    fn halts(&mut self, cpus: &mut Cpus, v: u32) {
        let p = cpus.vcpus[v as usize].pcpu;
        self.lay_aside(cpus, v, p);
    }

    fn next(&mut self, cpus: &mut Cpus, p: u32) -> Option<u32> {
        if let Some(index) = self.first(cpus, p) {
            let v = self.queues[p as usize].swap_remove(index);
            self.buddy[p as usize] = NONE;
            cpus.count_waiting(p, false);
            self.until[v as usize] = self.undisturbed(cpus, p, v);
            return Some(v);
        }
        // It would be idle: takes from the fullest.
        let most = |v: &u32| std::cmp::Reverse(cpus.pcpus[cpus.vcpus[*v as usize].pcpu as usize].waiting);
        let there = bits(&cpus.crowded).flat_map(|q| self.queues[q as usize].iter().copied());
        let v = there.filter(|&v| cpus.may(v, p)).min_by_key(|v| (most(v), self.virt[*v as usize], *v))?;
        self.carry(cpus, v, p);
        self.until[v as usize] = self.undisturbed(cpus, p, v);
        Some(v)
    }

    fn preempts(&self, cpus: &Cpus, p: u32, v: u32, _now: Ns) -> bool {
        let run = cpus.pcpus[p as usize].run;
        if self.spec.deadlines {
            // What runs is left alone until it had its slice (`RUN_TO_PARITY`), but by shorter slices (`PREEMPT_SHORT`).
            let mean = self.mean(cpus, self.there(cpus, p)).unwrap_or_default();
            let had = self.virt[run as usize] >= self.until[run as usize];
            return (had || self.slice(cpus, v) < self.slice(cpus, run))
                && self.virt[v as usize] <= mean
                && self.deadline[v as usize] < self.deadline[run as usize];
        }
        let ahead = self.virt[run as usize] - self.virt[v as usize];
        ahead > Cfs::virtual_time(cpus, v, self.spec.wakeup_ns)
    }

    fn slice_end(&self, cpus: &Cpus, p: u32, now: Ns) -> Ns {
        let pcpu = &cpus.pcpus[p as usize];
        if pcpu.waiting == 0 {
            return NEVER;
        }
        let CfsSpec { latency_ns, granularity_ns, tick_ns, deadlines, .. } = self.spec;
        let end = if deadlines {
            let run = pcpu.run;
            let left = u64::try_from(self.until[run as usize] - self.virt[run as usize]).unwrap_or(0);
            (now + left.saturating_mul(Cfs::weight(cpus, run)).div_ceil(UNIT)).max(now + 1)
        } else {
            let there = u64::from(pcpu.waiting) + 1;
            let period = latency_ns.max(there * granularity_ns);
            let (own, all) = (Cfs::weight(cpus, pcpu.run), self.load(cpus, p));
            let slice = if own * 2 == all { period / 2 } else { part(period, own, all.max(1)) };
            let slice = slice.max(granularity_ns.min(latency_ns / 4));
            let end = pcpu.dispatched + slice;
            // Or earlier, if another one is behind by more than that (`check_preempt_tick`).
            let least = self.queues[p as usize].iter().map(|&v| self.virt[v as usize]).min();
            let run = self.virt[pcpu.run as usize];
            let left = least.map_or(0, |least| u64::try_from(least + signed(slice) - run).unwrap_or(0));
            let behind = now + left.saturating_mul(own).div_ceil(UNIT);
            end.min(behind.max(pcpu.dispatched + granularity_ns)).max(now + 1)
        };
        if tick_ns == 0 { end } else { end.next_multiple_of(tick_ns) }
    }

    fn ran(&mut self, cpus: &Cpus, v: u32, ns: Ns) {
        self.virt[v as usize] += Cfs::virtual_time(cpus, v, ns);
        if self.spec.deadlines && self.virt[v as usize] >= self.deadline[v as usize] {
            let slice = Cfs::virtual_time(cpus, v, self.slice(cpus, v));
            self.deadline[v as usize] = self.virt[v as usize] + slice;
        } else if !self.spec.deadlines {
            // While it is still there: what it ran counts after it is gone, too (`update_curr`).
            self.raise(cpus, cpus.vcpus[v as usize].pcpu);
        }
    }

    fn timers(&self) -> Vec<Ns> {
        vec![self.spec.balance_ns]
    }

    fn timer(&mut self, cpus: &mut Cpus, _number: u8, _now: Ns, orders: &mut Vec<Order>) {
        self.looks += 1;
        let busy = self.looks >= self.busy_next;
        if busy {
            // Not in step with slices, as no kernel's looks are.
            self.busy_next = self.looks + self.busy_every - self.busy_every / 4
                + mix(self.looks) % (self.busy_every / 2 + 1);
        }
        let crowded = cpus.crowded.iter().any(|&word| word != 0);
        if crowded || cpus.topology.minds_siblings {
            self.balance(cpus, busy, orders);
        }
    }

    fn favour(&mut self, cpus: &Cpus, v: u32) -> bool {
        if !self.spec.deadlines {
            self.buddy[cpus.vcpus[v as usize].pcpu as usize] = v;
        }
        !self.spec.deadlines
    }
}
