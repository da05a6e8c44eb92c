//! Schedulers of the hypervisor, behind one trait.
//!
//! A scheduler owns the queues of waiting vCPUs and whatever it knows about them. It never touches
//! time that passes: the host tells it what ran ([`Scheduler::ran`]), asks what to run, and when to
//! ask again.

mod cfs;
mod credit;
mod credit2;
mod pick;
mod relaxed;
mod strict;

use crate::cpus::Cpus;
use crate::queue::Ns;
use crate::spec::{Policy, RelaxedSpec};

use cfs::Cfs;
use credit::Credit;
use credit2::Credit2;
use relaxed::Relaxed;
use strict::Strict;

/// What a scheduler wants of the host after a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The pCPU is to look at the first one that waits for it.
    Look(u32),
    /// The pCPU is to choose anew.
    Again(u32),
    /// The vCPU that runs on the first pCPU is to go on on the second.
    Move(u32, u32),
    /// The vCPU may not run for now, for a reason: a bit of [`crate::cpus::Vcpu::parked`].
    Park(u32, u8),
    /// It may again, as far as this reason goes.
    Unpark(u32, u8),
}

/// Who runs where, and for how long.
pub(crate) trait Scheduler {
    /// vCPUs that wait for a pCPU.
    fn waiting(&self, p: u32) -> &[u32];

    /// A vCPU begins to want to run, or may again ([`crate::cpus::VState::Throttled`] until now): puts it into the queue of
    /// a pCPU, and says which one is to look at it: that one, or an idle one that will take it from there.
    fn enter(&mut self, cpus: &mut Cpus, v: u32) -> u32;

    /// Where a vCPU goes that may not be where it is any more.
    fn placed(&mut self, cpus: &Cpus, v: u32) -> u32 {
        crate::cpus::bits(&cpus.masks[cpus.vcpus[v as usize].mask as usize]).next().unwrap_or(0)
    }

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

    /// When timer `number` first goes off.
    fn first(&self, number: u8, period: Ns) -> Ns {
        let _ = number;
        period
    }

    /// The pCPUs of which everything has to be told before timer `number`: the first one, and the distance to the next.
    fn reach(&self, number: u8) -> (u32, usize) {
        let _ = number;
        (0, 1)
    }

    /// Timer `number` goes off.
    fn timer(&mut self, cpus: &mut Cpus, number: u8, now: Ns, orders: &mut Vec<Order>);

    /// Waiting `v` is to be next where it waits, if that is not too unfair; whether the scheduler can do so.
    fn favour(&mut self, _cpus: &Cpus, _v: u32) -> bool {
        false
    }
}

/// Virtual times and credits may be negative.
fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

/// A vCPU begins to wait for a pCPU, as the last one.
fn put_in(queues: &mut [Vec<u32>], cpus: &mut Cpus, p: u32, v: u32) {
    queues[p as usize].push(v);
    cpus.vcpus[v as usize].pcpu = p;
    cpus.count_waiting(p, true);
}

/// A vCPU does not wait for its pCPU any more; which one that is.
fn take_out(queues: &mut [Vec<u32>], cpus: &mut Cpus, v: u32) -> u32 {
    let p = cpus.vcpus[v as usize].pcpu;
    queues[p as usize].retain(|&w| w != v);
    cpus.count_waiting(p, false);
    p
}

/// One of the schedulers, and relaxed co-scheduling beside it, whose timer is the last.
#[derive(Clone, Debug)]
pub(crate) struct AnyScheduler {
    kind: Kind,
    relaxed: Option<Relaxed>,
    relaxed_timer: u8,
}

/// The schedulers there are: an enum, so that calls need no table and can be inlined.
#[derive(Clone, Debug)]
enum Kind {
    Cfs(Cfs),
    Credit(Credit),
    Credit2(Credit2),
    Strict(Strict),
}

macro_rules! each {
    ($kind:expr, $s:ident => $call:expr) => {
        match $kind {
            Kind::Cfs($s) => $call,
            Kind::Credit($s) => $call,
            Kind::Credit2($s) => $call,
            Kind::Strict($s) => $call,
        }
    };
}

impl AnyScheduler {
    /// `before`: seed of what was before the simulation; `None`: nothing.
    ///
    /// # Errors
    /// The number of a VM whose vCPUs cannot all run at the same time, though they should.
    pub(crate) fn new(
        policy: &Policy,
        relaxed: Option<RelaxedSpec>,
        cpus: &mut Cpus,
        before: Option<u64>,
    ) -> Result<AnyScheduler, u32> {
        let kind = match policy {
            Policy::Cfs(spec) => Kind::Cfs(Cfs::new(*spec, cpus)),
            Policy::Credit(spec) => Kind::Credit(Credit::new(*spec, cpus, before)),
            Policy::Credit2(spec) => Kind::Credit2(Credit2::new(*spec, cpus)),
            Policy::Strict(spec) => Kind::Strict(Strict::new(*spec, cpus)?),
        };
        let timers = each!(&kind, s => s.timers()).len();
        let relaxed_timer = u8::try_from(timers).unwrap_or(u8::MAX);
        Ok(AnyScheduler { kind, relaxed: relaxed.map(|spec| Relaxed::new(spec, cpus)), relaxed_timer })
    }
}

impl Scheduler for AnyScheduler {
    fn waiting(&self, p: u32) -> &[u32] {
        each!(&self.kind, s => s.waiting(p))
    }
    fn enter(&mut self, cpus: &mut Cpus, v: u32) -> u32 {
        each!(&mut self.kind, s => s.enter(cpus, v))
    }
    fn placed(&mut self, cpus: &Cpus, v: u32) -> u32 {
        each!(&mut self.kind, s => s.placed(cpus, v))
    }
    fn leave(&mut self, cpus: &mut Cpus, v: u32) {
        each!(&mut self.kind, s => s.leave(cpus, v));
    }
    fn back(&mut self, cpus: &mut Cpus, p: u32, v: u32, yielded: bool) {
        each!(&mut self.kind, s => s.back(cpus, p, v, yielded));
    }
    fn halts(&mut self, cpus: &mut Cpus, v: u32) {
        each!(&mut self.kind, s => s.halts(cpus, v));
    }
    fn next(&mut self, cpus: &mut Cpus, p: u32) -> Option<u32> {
        each!(&mut self.kind, s => s.next(cpus, p))
    }
    fn preempts(&self, cpus: &Cpus, p: u32, v: u32, now: Ns) -> bool {
        each!(&self.kind, s => s.preempts(cpus, p, v, now))
    }
    fn slice_end(&self, cpus: &Cpus, p: u32, now: Ns) -> Ns {
        each!(&self.kind, s => s.slice_end(cpus, p, now))
    }
    fn ran(&mut self, cpus: &Cpus, v: u32, ns: Ns) {
        each!(&mut self.kind, s => s.ran(cpus, v, ns));
    }
    fn timers(&self) -> Vec<Ns> {
        let own = each!(&self.kind, s => s.timers()).into_iter();
        own.chain(self.relaxed.as_ref().map(|relaxed| relaxed.spec.tick_ns)).collect()
    }
    fn timer(&mut self, cpus: &mut Cpus, number: u8, now: Ns, orders: &mut Vec<Order>) {
        match &mut self.relaxed {
            Some(relaxed) if number == self.relaxed_timer => relaxed.look(cpus, now, orders),
            _ => each!(&mut self.kind, s => s.timer(cpus, number, now, orders)),
        }
    }
    fn reach(&self, number: u8) -> (u32, usize) {
        each!(&self.kind, s => s.reach(number))
    }
    fn first(&self, number: u8, period: Ns) -> Ns {
        each!(&self.kind, s => s.first(number, period))
    }
    fn favour(&mut self, cpus: &Cpus, v: u32) -> bool {
        each!(&mut self.kind, s => s.favour(cpus, v))
    }
}
