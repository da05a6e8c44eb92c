//! Xen's credit scheduler, as of Xen 4.4 (xen/common/sched_credit.c).
//!
//! Credits are ns of pCPU time. Every slice (30 ms) all pCPUs' time is handed out to VMs by weight times
//! active vCPUs, and in a VM equally to its active vCPUs; running burns it. Those with credit (*under*)
//! run before those without (*over*), in turns of a slice; a vCPU with credit that wakes up is boosted
//! before both, until the next tick finds it running. A pCPU that would run one that is over takes one
//! that is under from another's queue first. A VM over its cap is parked until it has credit again.
//!
//! vCPUs become active when a tick finds them running. With more credit than a slice's worth they become inactive, and
//! keep half of it. Who waits takes a running one's place only when it wakes up, else when the slice ends. The credit
//! that is looked at when more is handed out is that of the pCPU's last tick; ticks are spread evenly over pCPUs
//! (as they were started one after the other; at most [`PHASES`] different times).
//!
//! A vCPU wakes up where it was. If that pCPU is busy, an idle one that it may use, the preferred ones first, in turns, is
//! told to look, and takes it (`__runq_tickle`); if there is none, and the vCPU comes first, what runs goes. While some pCPU is
//! idle that is of no use to it, what goes counts as moved: it is looked at at once, and comes back as one that wakes up.
//! A tick moves what runs to where [`Picker`] wants it; it comes there as one that wakes up.
//!
//! Known gaps: idle pCPUs are told in one turn for all who wake others (Xen: one of each pCPU's); what goes
//! for another waits where it was, though it might use an idle pCPU that the other may not.

use crate::cpus::{Cpus, NONE, OVER_CAP, bits, has, put};
use crate::queue::Ns;
use crate::random::{Purpose, Stream};
use crate::spec::CreditSpec;

use super::pick::{Picker, idle_in_turn};
use super::{Order, Scheduler, signed, take_out};

/// pCPUs tick at so many different times.
const PHASES: u8 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Boost,
    Under,
    Over,
}

#[derive(Clone, Debug)]
pub(crate) struct Credit {
    spec: CreditSpec,
    /// Sorted by rank; first come, first served within a rank.
    queues: Vec<Vec<u32>>,
    rank: Vec<Rank>,
    credit: Vec<i64>,
    /// What was used since the last tick or switch.
    used: Vec<i64>,
    phases: u8,
    active: Vec<bool>,
    places: Picker,
    /// The idle pCPU that was told to look last.
    told: u32,
    /// By pCPU: what runs there goes at once, as one that is moved.
    goes: Vec<bool>,
}

impl Credit {
    /// vCPUs that idled `before` have something between half a slice's credit and a whole one: whoever gets beyond
    /// is halved.
    pub(crate) fn new(spec: CreditSpec, cpus: &mut Cpus, before: Option<u64>) -> Credit {
        let mut places = Picker::new(cpus);
        places.create(cpus);
        let vcpus = cpus.vcpus.len();
        let half = spec.slice_ns / 2;
        let left = |v| before.map_or(0, |seed| half + Stream::new(seed, v, Purpose::Before).below(half));
        Credit {
            spec,
            queues: vec![vec![]; cpus.pcpus.len()],
            rank: vec![Rank::Under; vcpus],
            credit: (0..).map(left).map(signed).take(vcpus).collect(),
            used: vec![0; vcpus],
            phases: u8::try_from(cpus.pcpus.len()).map_or(PHASES, |n| n.min(PHASES)),
            active: vec![false; vcpus],
            places,
            told: 0,
            goes: vec![false; cpus.pcpus.len()],
        }
    }

    fn insert(&mut self, cpus: &mut Cpus, p: u32, v: u32, yielded: bool) {
        let queue = &mut self.queues[p as usize];
        let rank = self.rank[v as usize];
        let mut at = queue.iter().position(|&w| self.rank[w as usize] > rank).unwrap_or(queue.len());
        if yielded && at < queue.len() {
            at += 1; // behind one of a lower rank
        }
        queue.insert(at, v);
        cpus.vcpus[v as usize].pcpu = p;
        cpus.count_waiting(p, true);
    }

    /// A vCPU that ranks before `than`, if any, of another pCPU: of this node first, then of the next ones; those that
    /// prefer this pCPU before all others (`csched_load_balance`).
    fn steal(&self, cpus: &Cpus, p: u32, than: Option<Rank>) -> Option<u32> {
        let better = |v: &u32| than.is_none_or(|than| self.rank[*v as usize] < than);
        let nodes = cpus.topology.places.last().map_or(1, |place| place.node + 1);
        let node = |q: u32| cpus.topology.places[q as usize].node;
        let turn = |q: u32| ((node(q) + nodes - node(p)) % nodes, q);
        let first = |prefer: bool| {
            let from = bits(&cpus.crowded).filter(|&q| q != p);
            let allowed = |v: &u32| {
                let vcpu = &cpus.vcpus[*v as usize];
                (!prefer || vcpu.soft != vcpu.mask)
                    && has(&cpus.masks[if prefer { vcpu.soft } else { vcpu.mask } as usize], p)
                    && !(cpus.spread_siblings && cpus.stacks(*v, p, &self.queues))
            };
            // A pCPU that runs nothing is about to take its first one itself.
            let own = |q: u32| usize::from(cpus.pcpus[q as usize].run == NONE);
            let one =
                |q: u32| self.queues[q as usize].iter().copied().skip(own(q)).take_while(better).find(allowed);
            from.filter_map(|q| Some((turn(q), one(q)?))).min().map(|(_, v)| v)
        };
        first(true).or_else(|| first(false))
    }

    /// Who is to look because a vCPU began to wait on `p`.
    fn tell(&mut self, cpus: &Cpus, p: u32, v: u32) -> u32 {
        if has(&cpus.idle, p) || cpus.idle.iter().all(|&word| word == 0) {
            return p;
        }
        if let Some(idle) = idle_in_turn(cpus, &cpus.idle, v, self.told) {
            self.told = idle;
            return idle;
        }
        let run = cpus.pcpus[p as usize].run;
        self.goes[p as usize] |= run != NONE && self.rank[v as usize] < self.rank[run as usize];
        p
    }

    /// A vCPU wakes up, or comes from another pCPU.
    fn raise(&mut self, v: u32) {
        if self.spec.boost && self.rank[v as usize] == Rank::Under {
            self.rank[v as usize] = Rank::Boost;
        }
    }

    /// Credit is paid for what was used.
    fn burn(&mut self, v: u32) {
        self.credit[v as usize] -= std::mem::take(&mut self.used[v as usize]);
    }

    fn tick(&mut self, cpus: &mut Cpus, phase: u8, orders: &mut Vec<Order>) {
        let all = u32::try_from(cpus.pcpus.len()).unwrap_or(0);
        for p in (u32::from(phase)..all).step_by(usize::from(self.phases)) {
            let v = cpus.pcpus[p as usize].run;
            if v == NONE {
                continue;
            }
            self.burn(v);
            let known = std::mem::replace(&mut self.active[v as usize], true);
            if self.rank[v as usize] == Rank::Boost {
                self.rank[v as usize] = Rank::Under;
            }
            if !known {
                continue;
            }
            let mut idle = cpus.idle.clone();
            for order in &*orders {
                if let Order::Move(from, to) = *order {
                    put(&mut idle, from, self.queues[from as usize].is_empty());
                    put(&mut idle, to, false);
                }
            }
            put(&mut idle, p, self.queues[p as usize].is_empty());
            let to = self.places.pick(cpus, &idle, v);
            if to != p {
                orders.push(Order::Move(p, to));
            }
        }
    }

    /// Hands out a slice of every pCPU.
    fn hand_out(&mut self, cpus: &mut Cpus, orders: &mut Vec<Order>) {
        let slice = self.spec.slice_ns;
        let online = u64::try_from(cpus.pcpus.len()).unwrap_or(0);
        let active = |credit: &Credit, vm: usize| {
            let vm = &cpus.vms[vm];
            (vm.first..vm.first + vm.count).filter(|&v| credit.active[v as usize]).count() as u64
        };
        let mut open: Vec<(usize, u64)> =
            (0..cpus.vms.len()).map(|vm| (vm, active(self, vm))).filter(|(_, n)| *n > 0).collect();
        // What a VM cannot use goes to the others: those that reach their most first.
        let most = |cpus: &Cpus, vm: usize, n: u64| {
            let all = n * slice;
            cpus.vms[vm].cap.map_or(all, |cap| all.min(cap * slice / 1024))
        };
        open.sort_by_key(|&(vm, n)| (most(cpus, vm, n) / (cpus.vms[vm].weight * n).max(1), vm));
        let mut total = online * slice;
        let mut weights: u64 = open.iter().map(|&(vm, n)| cpus.vms[vm].weight * n).sum();
        for (vm, n) in open {
            let weight = cpus.vms[vm].weight * n;
            let fair = total / weights.max(1) * weight;
            let part = fair.min(most(cpus, vm, n));
            total -= part;
            weights -= weight;
            let each = signed(part / n);
            let cap = cpus.vms[vm].cap.map(|cap| signed(cap * slice / 1024 / n));
            let (first, count) = (cpus.vms[vm].first, cpus.vms[vm].count);
            for v in first..first + count {
                if self.active[v as usize] {
                    self.give(cpus, v, each, cap, orders);
                }
            }
        }
    }

    fn give(&mut self, cpus: &mut Cpus, v: u32, credit: i64, cap: Option<i64>, orders: &mut Vec<Order>) {
        let slice = signed(self.spec.slice_ns);
        let have = &mut self.credit[v as usize];
        *have += credit;
        let parked = cpus.vcpus[v as usize].parked & OVER_CAP != 0;
        let mut rank = self.rank[v as usize];
        if *have < 0 {
            rank = Rank::Over;
            if cap.is_some_and(|cap| *have < -cap) && !parked {
                orders.push(Order::Park(v, OVER_CAP));
            }
            *have = (*have).max(-slice);
        } else {
            if rank == Rank::Over {
                rank = Rank::Under;
            }
            if parked {
                orders.push(Order::Unpark(v, OVER_CAP));
            }
            if *have > slice {
                *have /= 2;
                self.active[v as usize] = false;
            }
        }
        self.set_rank(cpus, v, rank);
    }

    fn set_rank(&mut self, cpus: &mut Cpus, v: u32, rank: Rank) {
        if self.rank[v as usize] == rank {
            return;
        }
        let p = cpus.vcpus[v as usize].pcpu;
        let queued = self.queues[p as usize].contains(&v);
        if queued {
            take_out(&mut self.queues, cpus, v);
        }
        self.rank[v as usize] = rank;
        if queued {
            self.insert(cpus, p, v, false);
        }
    }
}

impl Scheduler for Credit {
    fn waiting(&self, p: u32) -> &[u32] {
        &self.queues[p as usize]
    }

    fn enter(&mut self, cpus: &mut Cpus, v: u32) -> u32 {
        self.raise(v);
        let p = if cpus.spread_siblings {
            cpus.idle_for(v).unwrap_or_else(|| cpus.crowded_for(v, &self.queues))
        } else {
            cpus.vcpus[v as usize].pcpu
        };
        self.insert(cpus, p, v, false);
        self.tell(cpus, p, v)
    }

    fn placed(&mut self, cpus: &Cpus, v: u32) -> u32 {
        self.places.pick(cpus, &cpus.idle, v)
    }

    fn leave(&mut self, cpus: &mut Cpus, v: u32) {
        take_out(&mut self.queues, cpus, v);
    }

    fn back(&mut self, cpus: &mut Cpus, p: u32, v: u32, yielded: bool) {
        self.burn(v);
        let from = cpus.vcpus[v as usize].pcpu;
        if std::mem::take(&mut self.goes[from as usize]) || from != p {
            self.raise(v);
        }
        self.insert(cpus, p, v, yielded);
    }

    fn halts(&mut self, cpus: &mut Cpus, v: u32) {
        self.burn(v);
        self.goes[cpus.vcpus[v as usize].pcpu as usize] = false;
    }

    fn next(&mut self, cpus: &mut Cpus, p: u32) -> Option<u32> {
        let own = self.queues[p as usize].first().copied();
        let rank = own.map(|v| self.rank[v as usize]);
        let v = match (own, rank) {
            (Some(v), Some(Rank::Boost | Rank::Under)) => v,
            _ => self.steal(cpus, p, rank).or(own)?,
        };
        take_out(&mut self.queues, cpus, v);
        cpus.vcpus[v as usize].pcpu = p;
        Some(v)
    }

    fn preempts(&self, cpus: &Cpus, p: u32, v: u32, now: Ns) -> bool {
        let pcpu = &cpus.pcpus[p as usize];
        self.goes[p as usize]
            || self.rank[v as usize] < self.rank[pcpu.run as usize]
                && now >= pcpu.dispatched + self.spec.ratelimit_ns
    }

    fn slice_end(&self, cpus: &Cpus, p: u32, now: Ns) -> Ns {
        let pcpu = &cpus.pcpus[p as usize];
        let head = self.queues[p as usize].first();
        let waits = head.is_some_and(|&v| self.rank[v as usize] == Rank::Boost)
            && self.rank[pcpu.run as usize] != Rank::Boost;
        let after = if waits { self.spec.ratelimit_ns } else { self.spec.slice_ns };
        (pcpu.dispatched + after).max(now + 1)
    }

    fn ran(&mut self, _cpus: &Cpus, v: u32, ns: Ns) {
        self.used[v as usize] += signed(ns);
    }

    fn timers(&self) -> Vec<Ns> {
        let mut periods = vec![self.spec.slice_ns];
        periods.resize(1 + usize::from(self.phases), self.spec.tick_ns);
        periods
    }

    fn timer(&mut self, cpus: &mut Cpus, number: u8, _now: Ns, orders: &mut Vec<Order>) {
        match number.checked_sub(1) {
            Some(phase) => self.tick(cpus, phase, orders),
            None => self.hand_out(cpus, orders),
        }
    }

    fn first(&self, number: u8, period: Ns) -> Ns {
        period + number.checked_sub(1).map_or(0, |phase| period * u64::from(phase) / u64::from(self.phases))
    }
}
