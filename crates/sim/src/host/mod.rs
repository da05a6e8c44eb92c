//! The running host: one loop that takes what happens next, and lets it happen.
//!
//! Everything is in flat arrays and refers to each other by index. `hyper.rs` puts vCPUs on pCPUs,
//! `guest.rs` threads on vCPUs, `exec.rs` goes through programs, `locks.rs` and `teams.rs` let threads
//! wait for each other, `account.rs` knows where the time went.
//!
//! Two rules keep it simple. *Settle before you change*: [`Sim::settle`] accounts what happened on a
//! pCPU until now. *Arm after you changed*: [`Sim::arm`] computes when next something happens there.

mod account;
#[cfg(test)]
mod audit;
mod build;
mod change;
mod check;
mod exec;
mod guest;
mod hyper;
mod levers;
mod locks;
mod pace;
mod quota;
mod teams;
mod thread;

use crate::cpus::{Cpus, NONE};
use crate::queue::{NEVER, Next, Ns, Queue};
use crate::sched::{AnyScheduler, Order, Scheduler};
use crate::spec::{Costs, LockKind, Ple};

pub use account::Account;
pub use build::division;
pub use check::SpecError;
pub(crate) use check::check_hardware;
pub(crate) use teams::App;
pub(crate) use thread::{Act, Line, Ready, TState, Thread, Wait};

/// What happens at a time and not to one pCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// An accounting period ends.
    Period,
    /// An application starts.
    Start(u32),
    /// A thread starts, later than the others, or than the round before.
    StartThread(u32),
    /// A thread has slept.
    Wake(u32),
    /// A vCPU's quota is there again.
    Refill(u32),
    /// A VM's quota is there again.
    RefillVm(u32),
    /// What was given back of a VM's quota goes to others of it.
    Slack(u32),
    /// A timer of the scheduler, by number.
    Timer(u8),
    /// A VM's change, by number.
    Change(u32, u32),
    /// The speed of pCPUs is decided.
    Sample,
    /// A vCPU that went offline still has threads that could not be moved.
    Drain(u32),
    /// From now on it counts.
    Warm,
}

/// The guest's part of a VM, and what happened in it.
#[derive(Clone, Debug)]
pub(crate) struct Guest {
    pub(crate) name: String,
    pub(crate) lock: LockKind,
    pub(crate) slice_ns: Ns,
    pub(crate) wakeup_ns: Ns,
    /// When busy vCPUs were last evened out.
    pub(crate) evened: Ns,
    /// The vCPU that a yield was for last.
    pub(crate) favoured: u32,
    /// vCPUs without a thread (by their number in the VM), and those with threads waiting.
    pub(crate) idle: Vec<u64>,
    pub(crate) crowded: Vec<u64>,
    pub(crate) memory_nodes: Option<Vec<u64>>,
    /// Left of the VM's quota in this period; [`NEVER`] without one.
    pub(crate) pool: Ns,
    /// When it begins anew.
    pub(crate) refill_at: Ns,
    /// Somebody waits for what was given back.
    pub(crate) slack: bool,
    /// How often that quota stopped a vCPU.
    pub(crate) throttled: corefit_core::Throttled,
    /// Time in which its threads waited for lines that a cache had not, in 1/1024 ns.
    pub(crate) missed: u64,
    /// For how long vCPUs were online until their number was changed last, all together, when that was, and how often.
    pub(crate) online_ns: Ns,
    pub(crate) online_since: Ns,
    pub(crate) online_changes: u64,
    pub(crate) counts: Counts,
}

/// What happened in a VM, how often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// vCPUs put on a pCPU that ran another one before.
    pub switches: u64,
    /// Of these, on another pCPU than before.
    pub migrations: u64,
    /// vCPUs that halted; in the slow path of locks, too.
    pub halts: u64,
    /// Halts in the slow path of a lock.
    pub lock_halts: u64,
    /// Halted vCPUs that were woken up.
    pub kicks: u64,
    /// vCPUs descheduled because of spinning.
    pub ple_exits: u64,
    /// vCPUs preempted while they held a spin lock.
    pub holder_preemptions: u64,
    /// vCPUs preempted while they waited for a spin lock.
    pub waiter_preemptions: u64,
    /// Time in which a vCPU waited for the pCPU that one of its own VM was on, ns.
    pub stacked_ns: u64,
    /// Threads put on a vCPU.
    pub thread_switches: u64,
    /// Threads moved to another vCPU.
    pub thread_moves: u64,
    /// Times a lock was taken, and times it had to be waited for.
    pub acquired: u64,
    /// See above.
    pub contended: u64,
}

impl Counts {
    /// What came after others.
    pub(crate) fn since(&self, before: &Counts) -> Counts {
        Counts {
            switches: self.switches - before.switches,
            migrations: self.migrations - before.migrations,
            halts: self.halts - before.halts,
            lock_halts: self.lock_halts - before.lock_halts,
            kicks: self.kicks - before.kicks,
            ple_exits: self.ple_exits - before.ple_exits,
            holder_preemptions: self.holder_preemptions - before.holder_preemptions,
            waiter_preemptions: self.waiter_preemptions - before.waiter_preemptions,
            stacked_ns: self.stacked_ns - before.stacked_ns,
            thread_switches: self.thread_switches - before.thread_switches,
            thread_moves: self.thread_moves - before.thread_moves,
            acquired: self.acquired - before.acquired,
            contended: self.contended - before.contended,
        }
    }
}

/// A simulated host.
#[derive(Debug)]
pub struct Sim {
    pub(crate) now: Ns,
    pub(crate) queue: Queue<Event>,
    pub(crate) cpus: Cpus,
    pub(crate) sched: AnyScheduler,
    pub(crate) guests: Vec<Guest>,
    pub(crate) threads: Vec<Thread>,
    pub(crate) apps: Vec<App>,
    pub(crate) locks: Vec<locks::Lock>,
    pub(crate) accounts: Vec<account::Book>,
    /// Since when what the vCPUs are entitled to is what it is, or the period's begin.
    pub(crate) shares_since: Ns,
    pub(crate) costs: Costs,
    pub(crate) ple: Ple,
    /// How long each pCPU had been idle when its speed was decided last.
    idle_before: Vec<Ns>,
    pub(crate) period_ns: Ns,
    pub(crate) until: Ns,
    pub(crate) bandwidth_slice: Ns,
    /// What is given back of a VM's quota can be had at once.
    pub(crate) at_once: bool,
    timers: Vec<Ns>,
    /// Quotas of vCPUs and VMs, by number.
    limits: Vec<Option<crate::spec::Limit>>,
    vm_limits: Vec<Option<crate::spec::Limit>>,
    /// Applications that have to end.
    pub(crate) open: usize,
    pub(crate) events: u64,
    /// What happened before it counts, once it does.
    pub(crate) cold: Option<Box<crate::Truth>>,
    orders: Vec<Order>,
    /// By core: since when its busy pCPUs are as many as they are, and how long at least two were.
    pub(crate) competing_since: Vec<Ns>,
    pub(crate) competing_ns: Ns,
    /// Some VM's memory is on some nodes only.
    pub(crate) remote: bool,
    pub(crate) spec: crate::Spec,
}

/// Looks on while a host runs; `()` does not, and costs nothing.
pub(crate) trait Watch {
    /// Something is about to happen on a pCPU (not by a timer).
    fn before(&mut self, sim: &Sim, p: u32);
    /// It has happened, whatever it was.
    fn after(&mut self, sim: &Sim);
}

impl Watch for () {
    #[inline]
    fn before(&mut self, _: &Sim, _: u32) {}
    #[inline]
    fn after(&mut self, _: &Sim) {}
}

impl Sim {
    /// Runs until all programs that have an end have ended, or the time is over.
    pub fn run(&mut self) {
        self.run_watched(&mut ());
    }

    pub(crate) fn run_watched(&mut self, watch: &mut impl Watch) {
        self.run_until(self.until, watch);
    }

    /// Runs as [`Sim::run`] does, for at most so long; whether it is not over then.
    pub fn run_at_most(&mut self, ns: u64) -> bool {
        self.run_until(self.until.min(self.now.saturating_add(ns)), &mut ());
        self.open > 0 && self.now < self.until
    }

    fn run_until(&mut self, until: Ns, watch: &mut impl Watch) {
        while self.open > 0 {
            match self.queue.next(until) {
                Some((at, next)) => self.handle(at, next, watch),
                None => {
                    self.now = until;
                    break;
                }
            }
        }
        self.settle_all();
    }

    /// Runs for so long, whatever ends meanwhile.
    pub fn run_for(&mut self, ns: u64) {
        self.run_for_watched(ns, &mut ());
    }

    pub(crate) fn run_for_watched(&mut self, ns: u64, watch: &mut impl Watch) {
        let until = self.now.saturating_add(ns);
        while let Some((at, next)) = self.queue.next(until) {
            self.handle(at, next, watch);
        }
        self.now = until;
        self.settle_all();
    }

    /// The time, ns since the host began.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.now
    }

    /// Events so far: each changed the state of the host.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events
    }

    #[inline]
    fn handle(&mut self, at: Ns, next: Next<Event>, watch: &mut impl Watch) {
        debug_assert!(at >= self.now, "time ran backwards");
        self.now = at;
        self.events += 1;
        match next {
            Next::Slot(p) => {
                watch.before(self, p);
                self.pcpu_event(p);
            }
            Next::Timer(event) => self.timer_event(event),
        }
        watch.after(self);
    }

    fn settle_all(&mut self) {
        for p in 0..self.pcpus() {
            self.settle(p);
            self.arm(p);
        }
    }

    pub(crate) fn pcpus(&self) -> u32 {
        u32::try_from(self.cpus.pcpus.len()).unwrap_or(0)
    }

    /// What was to happen on a pCPU happens.
    #[inline]
    fn pcpu_event(&mut self, p: u32) {
        self.settle(p);
        let pcpu = &self.cpus.pcpus[p as usize];
        let (run, due) = (pcpu.run, self.now >= pcpu.resched || self.now >= pcpu.limit);
        if run != NONE && (!due || self.just_done(run)) {
            self.guest_event(p, run);
        } else if self.now >= pcpu.resched {
            self.look(p, false);
        } else if self.now >= pcpu.limit {
            self.limit(p);
        }
        self.arm(p);
    }

    /// An operation ends this very moment: that comes before a quota or a slice that ends with it.
    fn just_done(&self, v: u32) -> bool {
        let vcpu = &self.cpus.vcpus[v as usize];
        vcpu.debt == 0 && self.threads[vcpu.cur as usize].left == 0
    }

    /// Something of the guest on a pCPU is due: an operation ends, spinning is over, or a slice.
    #[inline]
    fn guest_event(&mut self, p: u32, v: u32) {
        let vcpu = &self.cpus.vcpus[v as usize];
        let (t, debt, ple_left) = (vcpu.cur, vcpu.debt, vcpu.ple_left);
        let waiting = self.cpus.pcpus[p as usize].waiting;
        if debt == 0 && t != NONE {
            let thread = &self.threads[t as usize];
            match thread.act {
                Act::Work if thread.left == 0 => return self.step(t),
                Act::Spin if thread.left == 0 => {
                    return if thread.granted { self.step(t) } else { self.spin_over(t) };
                }
                // Where nobody waits a yield is for nobody, and [`Sim::arm`] waits for none.
                Act::Spin if thread.seen && ple_left == 0 && waiting > 0 && !thread.granted => {
                    return self.ple_exit(p, v);
                }
                _ => {}
            }
        }
        let vcpu = &self.cpus.vcpus[v as usize];
        if vcpu.guest_left == 0 && vcpu.sliced && !self.threads[t as usize].fixed() {
            if vcpu.ready.len > 0 {
                self.next_slice(v);
            } else {
                self.rotate(v);
            }
        }
    }

    fn timer_event(&mut self, event: Event) {
        match event {
            Event::Period => {
                self.end_period();
                self.queue.add(self.now + self.period_ns, Event::Period);
                self.events -= 1; // accounts only
            }
            Event::Start(app) => self.start(app),
            Event::StartThread(t) => self.wake_thread(t, NONE),
            Event::Wake(t) => self.slept(t),
            Event::Refill(v) => self.refill(v),
            Event::RefillVm(vm) => self.refill_vm(vm),
            Event::Slack(vm) => self.slack(vm),
            Event::Timer(number) => {
                self.queue.add(self.now + self.timers[usize::from(number)], event);
                self.scheduler_timer(number);
            }
            Event::Change(vm, number) => self.change(vm, number),
            Event::Drain(v) => self.drain(v),
            Event::Sample => self.sample(),
            Event::Warm => {
                // What is left of a period is known at its end only.
                self.end_period();
                self.cold = Some(Box::new(self.all()));
                self.events -= 1; // accounts only
            }
        }
    }

    fn scheduler_timer(&mut self, number: u8) {
        let (first, step) = self.sched.reach(number);
        for p in (first..self.pcpus()).step_by(step) {
            self.charge(p);
        }
        let mut orders = std::mem::take(&mut self.orders);
        self.sched.timer(&mut self.cpus, number, self.now, &mut orders);
        for order in orders.drain(..) {
            self.obey(order);
        }
        self.orders = orders;
    }

    /// Accounts what happened on a pCPU until now.
    #[inline]
    pub(crate) fn settle(&mut self, p: u32) {
        let pcpu = &mut self.cpus.pcpus[p as usize];
        let mut ns = self.now - pcpu.since;
        if ns == 0 {
            return;
        }
        pcpu.since = self.now;
        if pcpu.run == NONE {
            return;
        }
        let vcpu = &mut self.cpus.vcpus[pcpu.run as usize];
        if vcpu.debt > 0 {
            let paid = ns.min(vcpu.debt);
            vcpu.debt -= paid;
            vcpu.used.switching += paid;
            ns -= paid;
            if ns == 0 {
                return;
            }
        }
        let thread = &mut self.threads[vcpu.cur as usize];
        vcpu.guest_left = vcpu.guest_left.saturating_sub(ns);
        match thread.act {
            Act::Work => {
                vcpu.used.utilised += ns;
                self.guests[vcpu.vm as usize].missed += ns * u64::from(pcpu.missing);
                thread.left = thread.left.saturating_sub(ns * u64::from(pcpu.rate));
            }
            Act::Spin => {
                vcpu.used.spinning += ns;
                vcpu.ple_left = vcpu.ple_left.saturating_sub(ns);
                if thread.left != NEVER {
                    thread.left = thread.left.saturating_sub(ns);
                }
            }
        }
    }

    /// Computes when something happens on a pCPU next. It has to be settled.
    #[inline]
    pub(crate) fn arm(&mut self, p: u32) {
        let pcpu = &self.cpus.pcpus[p as usize];
        debug_assert_eq!(pcpu.since, self.now, "not settled");
        let mut at = pcpu.limit.min(pcpu.resched);
        if pcpu.run != NONE {
            let vcpu = &self.cpus.vcpus[pcpu.run as usize];
            let thread = &self.threads[vcpu.cur as usize];
            let mut left = match thread.act {
                Act::Work if pcpu.rate == 1024 => thread.left.div_ceil(1024),
                Act::Work => thread.left.div_ceil(u64::from(pcpu.rate)),
                Act::Spin if thread.seen && pcpu.waiting > 0 && !thread.granted => {
                    thread.left.min(vcpu.ple_left)
                }
                Act::Spin => thread.left,
            };
            if vcpu.sliced && !thread.fixed() {
                left = left.min(vcpu.guest_left);
            }
            at = at.min(self.now.saturating_add(vcpu.debt.saturating_add(left)));
        }
        self.queue.set(p, at);
    }
}
