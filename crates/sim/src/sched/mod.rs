//! Schedulers of the hypervisor, behind one trait.
//!
//! A scheduler owns the queues of waiting vCPUs and whatever it knows about them. It never touches
//! time that passes: the host tells it what ran ([`Scheduler::ran`]), asks what to run, and when to
//! ask again.

mod cfs;
mod credit;

use crate::cpus::Cpus;
use crate::queue::Ns;
use crate::spec::Policy;

pub(crate) use cfs::Cfs;
pub(crate) use credit::Credit;

/// What a scheduler wants of the host after a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The pCPU is to look again.
    Look(u32),
    /// The vCPU that runs on the first pCPU is to go on on the second.
    Move(u32, u32),
    /// The vCPU may not run for now.
    Park(u32),
    /// It may again.
    Unpark(u32),
}

/// Who runs where, and for how long.
pub(crate) trait Scheduler {
    /// vCPUs that wait for a pCPU.
    fn waiting(&self, p: u32) -> &[u32];

    /// A vCPU begins to want to run: puts it into the queue of a pCPU, and says of which.
    fn enter(&mut self, cpus: &mut Cpus, v: u32) -> u32;

    /// A waiting vCPU does not want to, or may not, any more.
    fn leave(&mut self, cpus: &mut Cpus, v: u32);

    /// A vCPU that ran goes back into the queue of `p`, which need not be where it ran.
    fn back(&mut self, cpus: &mut Cpus, p: u32, v: u32, yielded: bool);

    /// A vCPU that ran halts.
    fn halts(&mut self, cpus: &mut Cpus, v: u32);

    /// What a pCPU runs next; taken out of its queue, or out of another's.
    fn next(&mut self, cpus: &mut Cpus, p: u32) -> Option<u32>;

    /// Whether waiting `v` is to run on `p` before what runs there, of which everything was told.
    fn preempts(&self, cpus: &Cpus, p: u32, v: u32, now: Ns) -> bool;

    /// When to ask again about what runs on `p`; it came at `dispatched`.
    fn slice_end(&self, cpus: &Cpus, p: u32, now: Ns) -> Ns;

    /// A vCPU ran for so long.
    fn ran(&mut self, cpus: &Cpus, v: u32, ns: Ns);

    /// Periods of its timers, by number.
    fn timers(&self) -> Vec<Ns>;

    /// Timer `number` goes off.
    fn timer(&mut self, cpus: &mut Cpus, number: u8, orders: &mut Vec<Order>);
}

/// The schedulers there are: an enum, so that calls need no table and can be inlined.
#[derive(Clone, Debug)]
pub(crate) enum AnyScheduler {
    Cfs(Cfs),
    Credit(Credit),
}

macro_rules! each {
    ($self:ident, $s:ident => $call:expr) => {
        match $self {
            AnyScheduler::Cfs($s) => $call,
            AnyScheduler::Credit($s) => $call,
        }
    };
}

impl AnyScheduler {
    pub(crate) fn new(policy: &Policy, cpus: &Cpus) -> AnyScheduler {
        match policy {
            Policy::Cfs(spec) => AnyScheduler::Cfs(Cfs::new(*spec, cpus)),
            Policy::Credit(spec) => AnyScheduler::Credit(Credit::new(*spec, cpus)),
        }
    }
}

impl Scheduler for AnyScheduler {
    fn waiting(&self, p: u32) -> &[u32] {
        each!(self, s => s.waiting(p))
    }
    fn enter(&mut self, cpus: &mut Cpus, v: u32) -> u32 {
        each!(self, s => s.enter(cpus, v))
    }
    fn leave(&mut self, cpus: &mut Cpus, v: u32) {
        each!(self, s => s.leave(cpus, v));
    }
    fn back(&mut self, cpus: &mut Cpus, p: u32, v: u32, yielded: bool) {
        each!(self, s => s.back(cpus, p, v, yielded));
    }
    fn halts(&mut self, cpus: &mut Cpus, v: u32) {
        each!(self, s => s.halts(cpus, v));
    }
    fn next(&mut self, cpus: &mut Cpus, p: u32) -> Option<u32> {
        each!(self, s => s.next(cpus, p))
    }
    fn preempts(&self, cpus: &Cpus, p: u32, v: u32, now: Ns) -> bool {
        each!(self, s => s.preempts(cpus, p, v, now))
    }
    fn slice_end(&self, cpus: &Cpus, p: u32, now: Ns) -> Ns {
        each!(self, s => s.slice_end(cpus, p, now))
    }
    fn ran(&mut self, cpus: &Cpus, v: u32, ns: Ns) {
        each!(self, s => s.ran(cpus, v, ns));
    }
    fn timers(&self) -> Vec<Ns> {
        each!(self, s => s.timers())
    }
    fn timer(&mut self, cpus: &mut Cpus, number: u8, orders: &mut Vec<Order>) {
        each!(self, s => s.timer(cpus, number, orders));
    }
}
