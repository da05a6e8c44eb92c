//! Xen's second credit scheduler, as of Xen 4.17 (xen/common/sched/credit2.c).
//!
//! pCPUs of a socket (or of what [`QueueOf`] says) share a queue; whoever has most credit runs. Running burns
//! credit, the faster the lighter the VM; when the first one has none left, everybody of the queue gets 10 ms
//! more, and what lay idle is not saved beyond half a ms. A vCPU that wakes up goes to an idle pCPU of its queue
//! (in its soft affinity first), or preempts the one with least credit if that has less. It changes to another pCPU
//! only for 0.5 ms more credit, and to another queue only when loads (means over a second) are evened out.
//!
//! Known gaps: loads are counted per pCPU of a queue (Xen compares whole queues), and queues are evened out by moving
//! one, never by exchanging two. A cap is a VM's quota of 10 ms periods (`CSCHED2_BDGT_REPL_PERIOD`), taken in slices
//! of 0.5 ms, of which who stops running gives back the rest; it is the host that keeps to it. PLE looks at whether one waits
//! at the very pCPU, not in its queue.

use crate::cpus::{Cpus, NONE, VState, bits, has};
use crate::queue::{NEVER, Ns};
use crate::spec::{Credit2Spec, QueueOf};

use super::pick::count;
use super::{Order, Scheduler, put_in, signed, take_out};

/// One vCPU in a mean load.
const ONE: i64 = 1 << 20;
/// What means of loads are taken over (`CSCHED2_LOAD_WINDOW_SHIFT`: about a second).
const WINDOW_NS: i64 = 1_000_000_000;

#[derive(Clone, Debug)]
pub(crate) struct Credit2 {
    spec: Credit2Spec,
    /// By pCPU: who waits there.
    queues: Vec<Vec<u32>>,
    /// By pCPU: the number of its queue.
    group: Vec<u32>,
    /// By queue: its pCPUs, the heaviest VM of its vCPUs, its mean load.
    members: Vec<Vec<u64>>,
    heaviest: Vec<u64>,
    load: Vec<i64>,
    /// By vCPU: its queue.
    of: Vec<u32>,
    credit: Vec<i64>,
    /// The vCPU that has just yielded.
    yielder: u32,
    looked: Ns,
}

fn number(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(NONE)
}

fn weight(cpus: &Cpus, v: u32) -> u64 {
    cpus.vms[cpus.vcpus[v as usize].vm as usize].weight
}

impl Credit2 {
    pub(crate) fn new(spec: Credit2Spec, cpus: &Cpus) -> Credit2 {
        let group = cpus.topology.places.iter().map(|place| match spec.queue {
            QueueOf::Core => place.core,
            QueueOf::Node => place.node,
            QueueOf::Socket => place.socket,
            QueueOf::All => 0,
        });
        let group: Vec<u32> = group.collect();
        let groups = group.iter().max().map_or(0, |&g| g as usize + 1);
        let mut members = vec![vec![0; cpus.words]; groups];
        for (p, &g) in (0..).zip(&group) {
            crate::cpus::put(&mut members[g as usize], p, true);
        }
        let mut credit2 = Credit2 {
            spec,
            queues: vec![vec![]; group.len()],
            group,
            heaviest: vec![1; groups],
            load: vec![0; groups],
            of: vec![0; cpus.vcpus.len()],
            credit: vec![signed(spec.credit_ns); cpus.vcpus.len()],
            members,
            yielder: NONE,
            looked: 0,
        };
        // Spread by number: into the queue with the fewest vCPUs per pCPU that the vCPU prefers.
        let mut filled = vec![0_u64; groups];
        for (v, vcpu) in cpus.vcpus.iter().enumerate() {
            let wanted = &cpus.masks[vcpu.soft as usize];
            let share =
                |g: &usize| (filled[*g] * 1024) / u64::from(count(&credit2.members[*g], wanted).max(1));
            let there = (0..groups).filter(|g| count(&credit2.members[*g], wanted) > 0);
            let g = there.min_by_key(|g| (share(g), *g)).unwrap_or(0);
            filled[g] += 1;
            credit2.assign(cpus, number(v), number(g));
        }
        credit2
    }

    fn assign(&mut self, cpus: &Cpus, v: u32, g: u32) {
        let from = std::mem::replace(&mut self.of[v as usize], g);
        for g in [from, g] {
            let weight = |(w, _): (usize, &u32)| cpus.vms[cpus.vcpus[w].vm as usize].weight;
            let there = self.of.iter().enumerate().filter(|(_, of)| **of == g).map(weight);
            self.heaviest[g as usize] = there.max().unwrap_or(1);
        }
    }

    /// What time is worth in credit to a vCPU.
    fn burnt(&self, cpus: &Cpus, v: u32, ns: Ns) -> i64 {
        signed(ns.saturating_mul(self.heaviest(cpus, v)) / weight(cpus, v).max(1))
    }

    /// The weight of the heaviest VM of its queue: by now it may be its own that was changed.
    fn heaviest(&self, cpus: &Cpus, v: u32) -> u64 {
        self.heaviest[self.of[v as usize] as usize].max(weight(cpus, v))
    }

    /// Who waits in the queue of `p` and may run there.
    fn waiting_for<'a>(&'a self, cpus: &'a Cpus, p: u32) -> impl Iterator<Item = u32> + 'a {
        let there = bits(&self.members[self.group[p as usize] as usize]);
        let stacks = move |v: u32| {
            cpus.spread_siblings && cpus.vcpus[v as usize].pcpu != p && cpus.stacks(v, p, &self.queues)
        };
        there
            .flat_map(|q| self.queues[q as usize].iter().copied())
            .filter(move |&v| cpus.may(v, p) && !stacks(v))
    }

    /// Credit as it counts on `p`: less for one that would have to move.
    fn worth(&self, cpus: &Cpus, v: u32, p: u32) -> i64 {
        let moves = cpus.vcpus[v as usize].pcpu != p;
        self.credit[v as usize] - if moves { signed(self.spec.resist_ns) } else { 0 }
    }

    fn best(&self, cpus: &Cpus, p: u32) -> Option<u32> {
        let own = |v: u32| cpus.vcpus[v as usize].pcpu == p;
        let key = |v: &u32| (*v != self.yielder, self.worth(cpus, *v, p), own(*v));
        // The first of the best ones: max_by_key would give the last.
        let mut best: Option<u32> = None;
        for v in self.waiting_for(cpus, p) {
            if best.is_none_or(|b| key(&v) > key(&b)) {
                best = Some(v);
            }
        }
        best
    }

    /// Nobody has credit: everybody gets some, as often as it takes.
    fn reset(&mut self, g: u32, credit: i64) {
        let init = signed(self.spec.credit_ns).max(1);
        let times = 1 + (-credit).max(0) / init;
        let most = init + signed(self.spec.shortest_ns);
        for (credit, of) in self.credit.iter_mut().zip(&self.of) {
            if *of == g {
                *credit = (*credit + times * init).min(most);
            }
        }
    }

    /// Where a vCPU that wakes up goes: an idle pCPU of its queue, or where it has most more credit than who runs.
    fn place(&self, cpus: &Cpus, v: u32) -> u32 {
        let there = &self.members[self.of[v as usize] as usize];
        if let Some(p) = cpus.idle_among(v, there) {
            return p;
        }
        let own = cpus.vcpus[v as usize].pcpu;
        let stacks = |p: u32| cpus.spread_siblings && cpus.stacks(v, p, &self.queues);
        let ahead = |p: u32| {
            let run = cpus.pcpus[p as usize].run;
            let other = if run == NONE { 0 } else { self.credit[run as usize] };
            self.worth(cpus, v, p) - other
        };
        let may = |p: &u32| cpus.may(v, *p);
        let best = bits(there).filter(may);
        let best = best.max_by_key(|&p| (!stacks(p), ahead(p), p == own, std::cmp::Reverse(p)));
        match best {
            Some(p) if ahead(p) > 0 || !has(there, own) || !cpus.may(v, own) || stacks(own) => p,
            _ => own,
        }
    }

    fn mean_loads(&mut self, cpus: &Cpus, now: Ns) {
        let passed = signed(now - self.looked).min(WINDOW_NS);
        self.looked = now;
        for (g, load) in (0..).zip(&mut self.load) {
            let busy = |p: &u32| u64::from(cpus.pcpus[*p as usize].run != NONE);
            let there: u64 =
                bits(&self.members[g]).map(|p| u64::from(cpus.pcpus[p as usize].waiting) + busy(&p)).sum();
            *load += (signed(there) * ONE - *load) * passed / WINDOW_NS;
        }
    }

    /// pCPUs of a queue.
    fn size(&self, g: usize) -> i64 {
        i64::from(count(&self.members[g], &self.members[g]))
    }

    /// Moves a vCPU from the fullest queue to the emptiest, if that evens them out.
    fn even_out(&mut self, cpus: &mut Cpus, orders: &mut Vec<Order>) {
        let each = |g: usize| self.load[g] / self.size(g);
        let (Some(from), Some(to)) = (
            (0..self.load.len()).max_by_key(|&g| (each(g), std::cmp::Reverse(g))),
            (0..self.load.len()).min_by_key(|&g| (each(g), g)),
        ) else {
            return;
        };
        let after = (self.load[from] - ONE) / self.size(from) - (self.load[to] + ONE) / self.size(to);
        if from == to || after.abs() >= each(from) - each(to) {
            return;
        }
        let fits = |v: &u32| count(&cpus.masks[cpus.vcpus[*v as usize].mask as usize], &self.members[to]) > 0;
        let preferred =
            |v: &u32| count(&cpus.masks[cpus.vcpus[*v as usize].soft as usize], &self.members[to]) > 0;
        let waiting: Vec<u32> = bits(&self.members[from])
            .flat_map(|p| self.queues[p as usize].iter().copied())
            .filter(fits)
            .collect();
        let moved = waiting.iter().copied().find(preferred).or(waiting.first().copied());
        if let Some(v) = moved {
            take_out(&mut self.queues, cpus, v);
            self.assign(cpus, v, number(to));
            let p = self.place(cpus, v);
            put_in(&mut self.queues, cpus, p, v);
            orders.push(Order::Look(p));
        } else {
            let running =
                bits(&self.members[from]).map(|p| cpus.pcpus[p as usize].run).filter(|&v| v != NONE);
            let found = running.filter(fits).find_map(|v| Some((v, cpus.idle_among(v, &self.members[to])?)));
            let Some((v, p)) = found else { return };
            let was = cpus.vcpus[v as usize].pcpu;
            self.assign(cpus, v, number(to));
            orders.push(Order::Move(was, p));
        }
        self.load[from] -= ONE;
        self.load[to] += ONE;
    }

    /// pCPUs that run one with less credit than one that waits for another pCPU of their queue.
    fn look_again(&self, cpus: &Cpus, orders: &mut Vec<Order>) {
        for (p, pcpu) in (0..).zip(&cpus.pcpus) {
            let Some(v) = self.best(cpus, p) else { continue };
            if pcpu.run == NONE || self.worth(cpus, v, p) > self.credit[pcpu.run as usize] {
                orders.push(Order::Again(p));
            }
        }
    }
}

impl Scheduler for Credit2 {
    fn waiting(&self, p: u32) -> &[u32] {
        &self.queues[p as usize]
    }

    fn enter(&mut self, cpus: &mut Cpus, v: u32) -> u32 {
        let p = self.place(cpus, v);
        put_in(&mut self.queues, cpus, p, v);
        p
    }

    /// Into the queue with the least load per pCPU beside its own, of those that it prefers if there is one
    /// (`csched2_res_pick`).
    fn placed(&mut self, cpus: &Cpus, v: u32) -> u32 {
        let vcpu = &cpus.vcpus[v as usize];
        let one = if matches!(vcpu.state, VState::Waiting | VState::Running) { ONE } else { 0 };
        self.load[self.of[v as usize] as usize] -= one;
        let least = |mask: u32| {
            let there = |g: &usize| count(&self.members[*g], &cpus.masks[mask as usize]) > 0;
            (0..self.load.len()).filter(there).min_by_key(|&g| (self.load[g] / self.size(g), g))
        };
        let g = least(vcpu.soft).or_else(|| least(vcpu.mask)).unwrap_or(0);
        self.load[g] += one;
        self.assign(cpus, v, number(g));
        self.place(cpus, v)
    }

    fn leave(&mut self, cpus: &mut Cpus, v: u32) {
        take_out(&mut self.queues, cpus, v);
    }

    fn back(&mut self, cpus: &mut Cpus, p: u32, v: u32, yielded: bool) {
        if yielded {
            self.yielder = v;
        }
        put_in(&mut self.queues, cpus, p, v);
    }

    fn halts(&mut self, _cpus: &mut Cpus, _v: u32) {}

    fn next(&mut self, cpus: &mut Cpus, p: u32) -> Option<u32> {
        let v = self.best(cpus, p);
        self.yielder = NONE;
        let v = v?;
        if self.credit[v as usize] <= 0 {
            self.reset(self.of[v as usize], self.credit[v as usize]);
        }
        take_out(&mut self.queues, cpus, v);
        cpus.vcpus[v as usize].pcpu = p;
        Some(v)
    }

    fn preempts(&self, cpus: &Cpus, p: u32, v: u32, now: Ns) -> bool {
        let pcpu = &cpus.pcpus[p as usize];
        self.credit[v as usize] > self.credit[pcpu.run as usize]
            && now >= pcpu.dispatched + self.spec.ratelimit_ns
    }

    fn slice_end(&self, cpus: &Cpus, p: u32, now: Ns) -> Ns {
        let pcpu = &cpus.pcpus[p as usize];
        let most = self.queues[p as usize].iter().map(|&v| self.credit[v as usize]).max();
        let Some(most) = most else { return NEVER };
        let ahead = u64::try_from(self.credit[pcpu.run as usize] - most).unwrap_or(0);
        let (weight, heaviest) = (weight(cpus, pcpu.run), self.heaviest(cpus, pcpu.run));
        let until = now + (ahead.saturating_mul(weight) / heaviest.max(1)).min(self.spec.longest_ns);
        until.max(pcpu.dispatched + self.spec.shortest_ns.max(self.spec.ratelimit_ns)).max(now + 1)
    }

    fn ran(&mut self, cpus: &Cpus, v: u32, ns: Ns) {
        self.heaviest[self.of[v as usize] as usize] = self.heaviest(cpus, v);
        self.credit[v as usize] -= self.burnt(cpus, v, ns);
    }

    fn timers(&self) -> Vec<Ns> {
        vec![self.spec.longest_ns, self.spec.balance_ns]
    }

    fn timer(&mut self, cpus: &mut Cpus, number: u8, now: Ns, orders: &mut Vec<Order>) {
        if number == 0 {
            self.look_again(cpus, orders);
        } else if self.load.len() > 1 {
            self.mean_loads(cpus, now);
            self.even_out(cpus, orders);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Scenario, Sim};

    use super::super::Kind;

    #[test]
    fn what_ran_before_its_affinity_changed_is_paid_for_in_the_queue_where_it_ran() {
        let text = "scheduler = \"credit2\"\njitter = \"0s\"\nhardware = { sockets = 2, cores = 1 }\n\
                    [[vm]]\nname = \"light\"\nweight = 256\nprogram = \"hog\"\n\
                    [[vm]]\nname = \"heavy\"\nweight = 1024\nprogram = \"hog\"\n";
        let mut sim = Sim::new(&Scenario::parse(text, &[]).unwrap().spec).unwrap();
        sim.run_for(1_000_000);
        sim.set_affinity(0, 0, &"1".parse().unwrap()).unwrap();
        let Kind::Credit2(credit2) = &sim.sched.kind else { panic!("another scheduler") };
        assert_eq!(credit2.of, [1, 1]);
        // Beside the heavy one it would be four times as much.
        let paid = 10_000_000 - credit2.credit[0];
        assert!((900_000..=1_000_000).contains(&paid), "{paid}");
    }
}
