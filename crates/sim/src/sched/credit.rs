//! Xen's credit scheduler, as of Xen 4.4 (xen/common/sched_credit.c).
//!
//! Credits are ns of pCPU time. Every slice (30 ms) all pCPUs' time is handed out to VMs by weight times
//! active vCPUs, and in a VM equally to its active vCPUs; running burns it. Those with credit (*under*)
//! run before those without (*over*), in turns of a slice; a vCPU with credit that wakes up is boosted
//! before both, until the next tick finds it running. A pCPU that would run one that is over takes one
//! that is under from another's queue first. A VM over its cap is parked until it has credit again, and then goes on
//! without a boost.
//!
//! vCPUs become active when a tick finds them running. With more credit than a slice's worth they become inactive, and
//! keep half of it. Who waits takes a running one's place only when it wakes up, else when the slice ends. The credit
//! that is looked at when more is handed out is that of the pCPU's last tick; ticks are spread evenly over pCPUs
//! (as they were started one after the other; at most [`PHASES`] different times). Who yields goes behind one that has no
//! credit, and comes before it again when the pCPU's first tick after a handing out sorts its queue.
//!
//! A vCPU wakes up where it was. If that pCPU is busy, an idle one that it may use, the preferred ones first, in turns, is
//! told to look, and takes it (`__runq_tickle`); if there is none, and the vCPU comes first, what runs goes. While some pCPU is
//! idle that is of no use to it, what goes counts as moved: it is looked at at once, and comes back as one that wakes up.
//! A tick moves what runs to where [`Picker`] wants it; it comes there as one that wakes up.
//!
//! Known gaps: idle pCPUs are told in one turn for all who wake others (Xen: one of each pCPU's); what goes
//! for another waits where it was, though it might use an idle pCPU that the other may not.

mod hand_out;

use crate::cpus::{Cpus, NONE, VState, bits, has, put};
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
    /// First come, first served within a rank, as of when each came or the queue was sorted.
    queues: Vec<Vec<u32>>,
    /// By pCPU: more credit was handed out since its queue was sorted.
    unsorted: Vec<bool>,
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
            unsorted: vec![false; cpus.pcpus.len()],
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
        let stays = |v: u32| cpus.spread_siblings && cpus.stacks(v, p, &self.queues);
        let other = |v: u32| {
            let vcpu = &cpus.vcpus[v as usize];
            vcpu.soft == vcpu.mask || !has(&cpus.masks[vcpu.soft as usize], p)
        };
        let from = bits(&cpus.crowded).filter(|&q| q != p).filter_map(|q| {
            // A pCPU that runs nothing is about to take its first one itself.
            let own = usize::from(cpus.pcpus[q as usize].run == NONE);
            let queue = self.queues[q as usize].iter().copied().skip(own).take_while(better);
            let (other, v) = queue
                .filter(|&v| cpus.may(v, p) && !stays(v))
                .map(|v| (other(v), v))
                .min_by_key(|(other, _)| *other)?;
            Some(((other, turn(q)), v))
        });
        from.min().map(|(_, v)| v)
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
            self.sort(p);
            if v == NONE {
                continue;
            }
            self.burn(v);
            let known = std::mem::replace(&mut self.active[v as usize], true);
            if self.rank[v as usize] == Rank::Boost {
                self.rank[v as usize] = Rank::Under;
            }
            if !known || cpus.idle.iter().all(|&word| word == 0) {
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

    /// Those with credit go before those without, if there was more credit since the last time (`csched_runq_sort`). Until
    /// then all wait where they were, whatever their ranks are by now.
    fn sort(&mut self, p: u32) {
        if std::mem::take(&mut self.unsorted[p as usize]) {
            let rank = &self.rank;
            self.queues[p as usize].sort_by_key(|&v| rank[v as usize] == Rank::Over);
        }
    }
}

impl Scheduler for Credit {
    fn waiting(&self, p: u32) -> &[u32] {
        &self.queues[p as usize]
    }

    fn enter(&mut self, cpus: &mut Cpus, v: u32) -> u32 {
        if cpus.vcpus[v as usize].state == VState::Halted {
            self.raise(v);
        }
        let p = if cpus.spread_siblings {
            cpus.idle_for(v).unwrap_or_else(|| cpus.crowded_for(v, &self.queues))
        } else {
            cpus.vcpus[v as usize].pcpu
        };
        self.insert(cpus, p, v, false);
        self.tell(cpus, p, v)
    }

    fn placed(&mut self, cpus: &Cpus, v: u32) -> u32 {
        if matches!(cpus.vcpus[v as usize].state, VState::Waiting | VState::Running) {
            self.raise(v);
        }
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

    fn reach(&self, number: u8) -> (u32, usize) {
        match number.checked_sub(1) {
            Some(phase) if phase < self.phases => (u32::from(phase), usize::from(self.phases)),
            _ => (0, 1),
        }
    }

    fn first(&self, number: u8, period: Ns) -> Ns {
        period + number.checked_sub(1).map_or(0, |phase| period * u64::from(phase) / u64::from(self.phases))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::*;
    use crate::{Scenario, Sim};

    const MS: Ns = 1_000_000;
    const HOG: &str = "program = \"hog\"\n";

    /// Two cores of two pCPUs in one socket, or another number, and VMs of one vCPU each.
    fn host(cores: u32, vms: &[(&str, &str)]) -> Sim {
        let free =
            "costs = { switch = \"0s\", halt = \"0s\", kick = \"0s\", ipi = \"0s\", thread_wake = \"0s\" }\n";
        let head = format!(
            "scheduler = \"credit\"\njitter = \"0s\"\nhardware = {{ cores = {cores}, threads = 2 }}\n{free}"
        );
        let one = |(i, (affinity, more)): (usize, &(&str, &str))| {
            format!("[[vm]]\nname = \"vm{i}\"\nvcpus = 1\naffinity = \"{affinity}\"\n{more}")
        };
        let text = head + &vms.iter().enumerate().map(one).collect::<String>();
        Sim::new(&Scenario::parse(&text, &[]).unwrap().spec).unwrap()
    }

    fn at(sim: &Sim, v: usize) -> (VState, u32) {
        (sim.cpus.vcpus[v].state, sim.cpus.vcpus[v].pcpu)
    }

    fn rank(sim: &Sim, v: usize) -> Rank {
        let Kind::Credit(credit) = &sim.sched.kind else { panic!("another scheduler") };
        credit.rank[v]
    }

    #[test]
    fn a_vcpu_wakes_where_it_was_beside_a_busy_sibling_until_a_tick_finds_it_twice() {
        let mut sim = host(2, &[("1", HOG), ("0-3", HOG)]);
        sim.cpus.vcpus[1].pcpu = 0;
        sim.run_for(5 * MS);
        assert_eq!(at(&sim, 1), (VState::Running, 0), "though the other core is idle");
        sim.run_for(9 * MS);
        assert_eq!(at(&sim, 1), (VState::Running, 0), "the first tick makes it active");
        sim.run_for(10 * MS);
        assert_eq!((at(&sim, 0).1, at(&sim, 1)), (1, (VState::Running, 2)));
    }

    #[test]
    fn one_that_finds_its_pcpu_busy_is_taken_by_an_idle_one_that_it_prefers_in_turn() {
        let vms = [("0-7", HOG), ("0-7", HOG), ("0-7", HOG), ("0-7", "soft = \"6\"\nprogram = \"hog\"\n")];
        let mut sim = host(4, &vms);
        sim.cpus.vcpus.iter_mut().for_each(|vcpu| vcpu.pcpu = 0);
        sim.run_for(MS);
        assert_eq!([0, 1, 2, 3].map(|v| at(&sim, v)), [0, 1, 2, 6].map(|p| (VState::Running, p)));
    }

    #[test]
    fn who_makes_room_while_an_idle_pcpu_is_of_no_use_does_so_at_once_and_comes_back_boosted() {
        let waker = "program = \"forever { sleep 20.3ms compute 100us }\"\n";
        let waited = |vms: &[(&str, &str)]| {
            let mut sim = host(1, vms);
            for state in [VState::Running, VState::Halted] {
                while sim.cpus.vcpus[1].state != state {
                    sim.run_for(MS / 20);
                }
            }
            sim.run_for(20 * MS);
            assert_eq!(
                (rank(&sim, 0), at(&sim, 0), at(&sim, 1).0),
                (Rank::Under, (VState::Running, 0), VState::Halted)
            );
            // As if it had begun to run just before the other wakes up.
            sim.cpus.pcpus[0].dispatched = sim.now + MS / 5;
            let before = sim.cpus.vcpus[1].wait_ns;
            sim.run_for(2 * MS);
            (sim.cpus.vcpus[1].wait_ns - before, rank(&sim, 0))
        };
        assert_eq!(waited(&[("0", HOG), ("0", waker)]), (0, Rank::Boost), "pCPU 1 is idle");
        let (waits, rank) = waited(&[("0", HOG), ("0", waker), ("1", HOG)]);
        assert!(
            (waits > 700_000 && waits < MS) && rank == Rank::Under,
            "until it has had its ms: {waits} {rank:?}"
        );
    }

    #[test]
    fn a_pcpu_takes_from_its_own_node_first_and_from_the_next_ones_in_a_circle() {
        let text = "scheduler = \"credit\"\njitter = \"0s\"\nhardware = { nodes = 3, cores = 1 }\n\
                    [[vm]]\nname = \"a\"\nvcpus = 6\nprogram = \"hog\"\n";
        let mut sim = Sim::new(&Scenario::parse(text, &[]).unwrap().spec).unwrap();
        sim.cpus.pcpus.iter_mut().for_each(|pcpu| pcpu.run = 0);
        let Kind::Credit(credit) = &mut sim.sched.kind else { panic!("another scheduler") };
        credit.insert(&mut sim.cpus, 0, 1, false);
        credit.insert(&mut sim.cpus, 2, 2, false);
        assert_eq!(credit.steal(&sim.cpus, 1, None), Some(2), "node 2 comes after node 1");
        sim.cpus.pcpus[2].run = NONE;
        assert_eq!(credit.steal(&sim.cpus, 1, None), Some(1), "pCPU 2 is about to take it");
        assert_eq!(credit.steal(&sim.cpus, 1, Some(Rank::Under)), None, "of the same rank");
    }

    #[test]
    fn one_that_comes_from_another_pcpu_is_boosted() {
        let mut sim = host(2, &[("0-3", HOG)]);
        let Kind::Credit(credit) = &mut sim.sched.kind else { panic!("another scheduler") };
        sim.cpus.vcpus[0].pcpu = 0;
        credit.back(&mut sim.cpus, 0, 0, false);
        assert_eq!(credit.rank[0], Rank::Under);
        credit.leave(&mut sim.cpus, 0);
        credit.back(&mut sim.cpus, 2, 0, false);
        assert_eq!(credit.rank[0], Rank::Boost);
    }

    #[test]
    fn one_that_was_parked_for_its_cap_goes_on_without_a_boost() {
        let mut sim = host(1, &[("0", "cap = 0.3\nprogram = \"hog\"\n")]);
        let mut parked = 0;
        for _ in 0..1_000 {
            sim.run_for(MS);
            parked += u32::from(at(&sim, 0).0 == VState::Throttled);
            assert!(sim.now < 30 * MS || rank(&sim, 0) != Rank::Boost, "at {}", sim.now);
        }
        assert!(parked > 500, "{parked}");
    }

    #[test]
    fn credit_is_handed_out_by_weight_however_large_weights_are() {
        let weights = [262_144, 131_072, 131_072];
        let vms = weights.map(|weight| ("0", format!("weight = {weight}\n{HOG}")));
        let mut sim = host(1, &vms.each_ref().map(|(on, more)| (*on, more.as_str())));
        let Kind::Credit(credit) = &mut sim.sched.kind else { panic!("another scheduler") };
        credit.spec.slice_ns = 500_000;
        credit.active.fill(true);
        credit.hand_out(&mut sim.cpus, &mut vec![]);
        assert_eq!(credit.credit, [500_000, 250_000, 250_000], "a slice of two pCPUs");
    }

    #[test]
    fn who_yielded_behind_one_without_credit_comes_before_it_at_the_first_tick_after_more_was_handed_out() {
        let mut sim = host(2, &[("0", HOG), ("0", HOG), ("0", HOG)]);
        sim.run_for(MS);
        let Kind::Credit(credit) = &mut sim.sched.kind else { panic!("another scheduler") };
        let cpus = &mut sim.cpus;
        let run = cpus.pcpus[0].run;
        let (over, under) = ((run + 1) % 3, (run + 2) % 3);
        credit.leave(cpus, over);
        credit.leave(cpus, under);
        credit.rank[over as usize] = Rank::Over;
        credit.insert(cpus, 0, over, false);
        credit.insert(cpus, 0, under, true);
        let mut orders = vec![];
        credit.tick(cpus, 0, &mut orders);
        assert_eq!(credit.waiting(0), [over, under], "it yielded");
        credit.hand_out(cpus, &mut orders);
        assert_eq!(credit.waiting(0), [over, under], "not before a tick");
        credit.rank[over as usize] = Rank::Over;
        credit.tick(cpus, 0, &mut orders);
        assert_eq!(credit.waiting(0), [under, over]);
    }
}
