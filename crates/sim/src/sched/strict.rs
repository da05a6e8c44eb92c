//! Strict co-scheduling: all vCPUs of a VM at the same time, or none.
//!
//! ```text
//!            pCPU 0  pCPU 1  pCPU 2  pCPU 3
//! slot 1      a0      a1      a2      b0        each vCPU has one pCPU for good; a slot takes VMs, those that
//! slot 2      c0      c1      -       b0        had least time for their weight first, and more while they fit
//! ```
//!
//! This is Ousterhout's matrix (Scheduling techniques for concurrent systems, ICDCS 1982) with alternates, as VMware
//! ESX 2 did it: a VM in a slot holds the pCPUs of all its vCPUs that are online, of those that halt, too, and pays
//! for them. So what is known of it comes out: pCPUs stay idle although others want to run (fragmentation), and
//! whoever wakes up waits for its VM's next slot (priority inversion).
//!
//! A VM none of whose vCPUs wants to run has no slot. One that wakes up begins at once if its pCPUs are free, else at
//! the next look at which they are. Known gap: vCPUs never change their pCPU.

use crate::cpus::{Cpus, NONE, VState, Vcpu, bits};
use crate::queue::{NEVER, Ns};
use crate::spec::StrictSpec;

use super::{Order, Scheduler, put_in, take_out};

/// Time of a VM of weight 1 passes so much faster.
const UNIT: u64 = 1 << 20;

#[derive(Clone, Debug)]
pub(crate) struct Strict {
    spec: StrictSpec,
    queues: Vec<Vec<u32>>,
    /// By pCPU: for whom it is kept in this slot.
    seats: Vec<u32>,
    /// By vCPU: its pCPU.
    home: Vec<u32>,
    /// By VM: whether it is in the slot, and the time that it had, over its weight.
    on: Vec<bool>,
    had: Vec<u64>,
    charged: Ns,
}

impl Strict {
    /// # Errors
    /// The number of a VM that has more vCPUs than pCPUs for them.
    pub(crate) fn new(spec: StrictSpec, cpus: &Cpus) -> Result<Strict, u32> {
        let pcpus = cpus.pcpus.len();
        Ok(Strict {
            spec,
            queues: vec![vec![]; pcpus],
            seats: vec![NONE; pcpus],
            home: homes(cpus)?,
            on: vec![false; cpus.vms.len()],
            had: vec![0; cpus.vms.len()],
            charged: 0,
        })
    }

    /// vCPUs that need a pCPU in a slot. One that went offline does until it halts: a thread that is left on it may hold
    /// a lock that the others wait for.
    fn members(cpus: &Cpus, vm: usize) -> impl Iterator<Item = u32> + '_ {
        let vm = &cpus.vms[vm];
        let counts = |vcpu: &Vcpu| vcpu.online || vcpu.state != VState::Halted;
        (vm.first..vm.first + vm.count).filter(move |&v| counts(&cpus.vcpus[v as usize]))
    }

    fn wants(cpus: &Cpus, vm: usize) -> bool {
        let vm = &cpus.vms[vm];
        let wants = |v: u32| matches!(cpus.vcpus[v as usize].state, VState::Waiting | VState::Running);
        (vm.first..vm.first + vm.count).any(wants)
    }

    /// Takes a VM into the slot if all its pCPUs are free.
    fn seat(&mut self, cpus: &Cpus, vm: usize) -> bool {
        let fits = Strict::members(cpus, vm).all(|v| self.seats[self.home[v as usize] as usize] == NONE);
        if fits {
            Strict::members(cpus, vm).for_each(|v| self.seats[self.home[v as usize] as usize] = v);
            self.on[vm] = true;
        }
        fits
    }

    fn charge(&mut self, cpus: &Cpus, now: Ns) {
        let passed = now - self.charged;
        self.charged = now;
        for vm in 0..self.on.len() {
            if self.on[vm] {
                let members = Strict::members(cpus, vm).count() as u64;
                self.had[vm] += passed * members * UNIT / cpus.vms[vm].weight.max(1);
            }
        }
    }

    /// Fills the slot; at its end, anew.
    fn fill(&mut self, cpus: &Cpus, anew: bool) {
        let wanting: Vec<usize> = (0..self.on.len()).filter(|&vm| Strict::wants(cpus, vm)).collect();
        for vm in 0..self.on.len() {
            if self.on[vm] && (anew || !wanting.contains(&vm)) {
                self.on[vm] = false;
                self.seats
                    .iter_mut()
                    .filter(|v| **v != NONE && cpus.vcpus[**v as usize].vm as usize == vm)
                    .for_each(|v| *v = NONE);
            }
        }
        let mut order = wanting;
        order.sort_by_key(|&vm| (self.had[vm], vm));
        // Who did not want anything does not save it up.
        let least = order.first().map_or(0, |&vm| self.had[vm]);
        self.had.iter_mut().for_each(|had| *had = (*had).max(least));
        for vm in order {
            if !self.on[vm] {
                self.seat(cpus, vm);
            }
        }
    }
}

/// A pCPU for each vCPU, those of a VM apart, with few vCPUs each: augmenting paths over the least used first.
fn homes(cpus: &Cpus) -> Result<Vec<u32>, u32> {
    let mut used = vec![0_u32; cpus.pcpus.len()];
    let mut home = vec![NONE; cpus.vcpus.len()];
    for (number, vm) in (0_u32..).zip(&cpus.vms) {
        let mut taken = vec![NONE; cpus.pcpus.len()];
        for v in vm.first..vm.first + vm.count {
            let mut seen = vec![false; cpus.pcpus.len()];
            if !find(cpus, v, &used, &mut taken, &mut seen) {
                return Err(number);
            }
        }
        for (p, &v) in (0_u32..).zip(&taken) {
            if v != NONE {
                home[v as usize] = p;
                used[p as usize] += 1;
            }
        }
    }
    Ok(home)
}

fn find(cpus: &Cpus, v: u32, used: &[u32], taken: &mut [u32], seen: &mut [bool]) -> bool {
    let mut all: Vec<u32> = bits(&cpus.masks[cpus.vcpus[v as usize].mask as usize]).collect();
    all.sort_by_key(|&p| (taken[p as usize] != NONE, used[p as usize], p));
    for p in all {
        if std::mem::replace(&mut seen[p as usize], true) {
            continue;
        }
        let other = taken[p as usize];
        if other == NONE || find(cpus, other, used, taken, seen) {
            taken[p as usize] = v;
            return true;
        }
    }
    false
}

impl Scheduler for Strict {
    fn waiting(&self, p: u32) -> &[u32] {
        &self.queues[p as usize]
    }

    fn enter(&mut self, cpus: &mut Cpus, v: u32) -> u32 {
        let p = self.home[v as usize];
        put_in(&mut self.queues, cpus, p, v);
        let vm = cpus.vcpus[v as usize].vm as usize;
        if !self.on[vm]
            && Strict::members(cpus, vm).all(|w| w == v || cpus.vcpus[w as usize].state == VState::Halted)
        {
            self.seat(cpus, vm);
        }
        p
    }

    fn leave(&mut self, cpus: &mut Cpus, v: u32) {
        take_out(&mut self.queues, cpus, v);
    }

    fn back(&mut self, cpus: &mut Cpus, _p: u32, v: u32, _yielded: bool) {
        put_in(&mut self.queues, cpus, self.home[v as usize], v);
    }

    fn halts(&mut self, _cpus: &mut Cpus, _v: u32) {}

    fn next(&mut self, cpus: &mut Cpus, p: u32) -> Option<u32> {
        let v = self.seats[p as usize];
        let at = self.queues[p as usize].iter().position(|&w| w == v)?;
        self.queues[p as usize].remove(at);
        cpus.count_waiting(p, false);
        Some(v)
    }

    fn preempts(&self, cpus: &Cpus, p: u32, v: u32, _now: Ns) -> bool {
        self.seats[p as usize] == v && cpus.pcpus[p as usize].run != v
    }

    fn slice_end(&self, _cpus: &Cpus, _p: u32, _now: Ns) -> Ns {
        NEVER
    }

    fn ran(&mut self, _cpus: &Cpus, _v: u32, _ns: Ns) {}

    fn timers(&self) -> Vec<Ns> {
        vec![self.spec.slice_ns, self.spec.tick_ns]
    }

    fn timer(&mut self, cpus: &mut Cpus, number: u8, now: Ns, orders: &mut Vec<Order>) {
        self.charge(cpus, now);
        self.fill(cpus, number == 0);
        for (p, pcpu) in (0_u32..).zip(&cpus.pcpus) {
            let seat = self.seats[p as usize];
            let other = pcpu.run != NONE && pcpu.run != seat;
            if other || pcpu.run == NONE && self.queues[p as usize].contains(&seat) {
                orders.push(Order::Again(p));
            }
        }
    }
}
