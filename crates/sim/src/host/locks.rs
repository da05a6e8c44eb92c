//! Locks.
//!
//! ```text
//!                 free ──acquire──▶ held ──release, nobody waits──▶ free
//!                                   │  ▲
//!            acquire: waits (spins) │  │ release: the first in line owns it at once (fair kinds),
//!                                   ▼  │ or whoever spins on a vCPU that runs (unfair kinds); ours is
//!                                   │  │ free until the first in line runs, and may be taken meanwhile
//!                                  in line ──patience over──▶ its vCPU halts (PV kinds) ──kick──▶ in line
//! ```
//!
//! A fair lock that was given to a waiter whose vCPU is preempted is held by somebody who does not run:
//! that is lock-waiter preemption, and nothing has to be added for it. Patience is in turns of a
//! spinning loop, as in the kernels (2^15; P3's Figure 5). A line of cache goes from hand to hand in
//! `line_ns`; ticket locks pay half of that more for each waiter, as all of them read the same line.

use super::{Act, Sim, TState, Wait};
use crate::cpus::{NONE, VState};
use crate::program::LockUse;
use crate::queue::NEVER;
use crate::spec::LockKind;

use super::thread::Line;

/// Turns that a waiter spins before it halts (`SPIN_THRESHOLD`).
const PATIENCE: u64 = 1 << 15;
/// The most (P3's `SPIN_MAX_THRESHOLD`).
const LONG_PATIENCE: u64 = 1 << 34;
/// The least and the most that the first in line spins for a lock of ours, ns, in between as long as waking an idle
/// pCPU takes; those behind it half as long as who is before them (`FIRST_NS`, `MOST_NS` of `crates/lock`'s `tune.rs`).
const WAKE_NS: (u64, u64) = (5_000, 60_000);

/// A lock.
#[derive(Clone, Debug)]
pub(crate) struct Lock {
    pub(crate) owner: u32,
    pub(super) line: Line,
    /// Of its own, for [`LockKind::ITicket`].
    patience: u64,
    /// How often the first in line was passed, for [`LockKind::Corefit`].
    bypassed: u32,
}

impl Lock {
    pub(super) fn new() -> Lock {
        Lock { owner: NONE, line: Line::EMPTY, patience: PATIENCE, bypassed: 0 }
    }
}

impl Sim {
    fn lock_of(&self, t: u32, lock: u16) -> u32 {
        self.apps[self.threads[t as usize].app as usize].locks + u32::from(lock)
    }

    fn kind(&self, t: u32, kind: LockUse) -> LockKind {
        match kind {
            LockUse::Kernel => {
                let vm = self.cpus.vcpus[self.threads[t as usize].vcpu as usize].vm;
                self.guests[vm as usize].lock
            }
            LockUse::User | LockUse::Mutex => LockKind::TestAndSet,
        }
    }

    /// A thread wants a lock; whether it has it. If not, it waits, and goes on at its `pc`.
    pub(super) fn acquire(&mut self, t: u32, kind: LockUse, number: u16) -> bool {
        let l = self.lock_of(t, number);
        let lock_kind = self.kind(t, kind);
        let lock = &mut self.locks[l as usize];
        let thread = &mut self.threads[t as usize];
        let counts = &mut self.guests[self.cpus.vcpus[thread.vcpu as usize].vm as usize].counts;
        let closed = match lock_kind {
            LockKind::Corefit { bypasses, .. } => lock.line.len > 0 && lock.bypassed >= bypasses,
            _ => false,
        };
        if lock.owner == NONE && !closed {
            lock.owner = t;
            lock.bypassed = lock.bypassed.saturating_add(u32::from(lock.line.len > 0));
            counts.acquired += 1;
            thread.pc += 1;
            match kind {
                LockUse::Kernel => thread.holds += 1,
                LockUse::User => thread.holds_user += 1,
                LockUse::Mutex => {}
            }
            return true;
        }
        counts.contended += 1;
        lock.line.push(&mut self.threads, t);
        let distance = lock.line.len;
        match kind {
            LockUse::Mutex => {
                // Tries again when it was woken up; others may come first.
                self.threads[t as usize].wait = Wait::Mutex(l);
                self.threads[t as usize].granted = false;
                self.block(t);
            }
            LockUse::User => {
                let thread = &mut self.threads[t as usize];
                thread.pc += 1;
                thread.spin(Wait::User(l), NEVER, false);
            }
            LockUse::Kernel => {
                let ns = self.patience(lock_kind, l, t, distance);
                let seen = self.ple.on;
                let thread = &mut self.threads[t as usize];
                thread.pc += 1;
                thread.patience = ns;
                thread.spin(Wait::Kernel(l), ns, seen);
                let v = thread.vcpu;
                self.cpus.vcpus[v as usize].ple_left = self.ple.window_ns;
            }
        }
        false
    }

    /// How long a waiter at this distance from the holder spins before it halts, ns.
    fn patience(&self, kind: LockKind, l: u32, t: u32, distance: u32) -> u64 {
        let turns = match kind {
            LockKind::TestAndSet | LockKind::Ticket => return NEVER,
            LockKind::PvTicket | LockKind::Queue => PATIENCE,
            LockKind::OTicket { near, .. } if distance < near => LONG_PATIENCE >> (distance - 1),
            LockKind::OTicket { .. } => PATIENCE,
            LockKind::ITicket => self.locks[l as usize].patience,
            LockKind::LongerSpin => LONG_PATIENCE,
            LockKind::Corefit { cpus, .. } => {
                let vm = self.cpus.vcpus[self.threads[t as usize].vcpu as usize].vm;
                let vcpus = || self.cpus.vcpus.iter().filter(|v| v.vm == vm && v.online).count();
                let cpus = if cpus > 0 { cpus } else { u32::try_from(vcpus()).unwrap_or(u32::MAX) };
                return if distance >= cpus { 0 } else { self.wake_ns() >> (distance - 1).min(63) };
            }
        };
        turns.saturating_mul(self.costs.spin_turn_ns)
    }

    fn wake_ns(&self) -> u64 {
        let costs = &self.costs;
        (costs.ipi_ns + costs.halt_ns + costs.switch_ns).clamp(WAKE_NS.0, WAKE_NS.1)
    }

    /// A thread gives a lock back.
    pub(super) fn release(&mut self, t: u32, kind: LockUse, number: u16) {
        let l = self.lock_of(t, number);
        let by = self.threads[t as usize].vcpu;
        let thread = &mut self.threads[t as usize];
        match kind {
            LockUse::Kernel => thread.holds -= 1,
            LockUse::User => thread.holds_user -= 1,
            LockUse::Mutex => {}
        }
        self.locks[l as usize].owner = NONE;
        if self.locks[l as usize].line.len == 0 {
            return;
        }
        if kind == LockUse::Mutex {
            if let Some(next) = self.locks[l as usize].line.pop(&mut self.threads) {
                self.grant(next, 0, by);
            }
            return;
        }
        let lock_kind = self.kind(t, kind);
        if lock_kind == LockKind::TestAndSet {
            let runs = |&w: &u32| {
                let thread = &self.threads[w as usize];
                thread.state == TState::Current
                    && self.cpus.vcpus[thread.vcpu as usize].state == VState::Running
            };
            let next = self.locks[l as usize].line.iter(&self.threads).find(runs);
            if let Some(next) = next {
                self.hand_over(l, next, by, self.costs.line_ns);
            }
            return;
        }
        if matches!(lock_kind, LockKind::Corefit { bypasses: 1.., .. }) && !self.first_spins(l) {
            // Free, and the first one's as soon as it runs, unless others pass it.
            let first = self.locks[l as usize].line.head;
            self.threads[first as usize].patience = self.wake_ns();
            self.wake_ahead(l, 2, by);
            return;
        }
        let waiters = u64::from(self.locks[l as usize].line.len);
        let shared = if lock_kind == LockKind::Queue { 0 } else { self.costs.line_ns * (waiters - 1) / 2 };
        let next = self.locks[l as usize].line.head;
        self.hand_over(l, next, by, self.costs.line_ns + shared);
        if let LockKind::OTicket { wake, .. } = lock_kind {
            self.wake_ahead(l, wake, by);
        }
    }

    /// Whether the first in line is there to see that the lock is free: it spins, and is through with waking up.
    fn first_spins(&mut self, l: u32) -> bool {
        let thread = &self.threads[self.locks[l as usize].line.head as usize];
        let (current, v) = (thread.state == TState::Current, thread.vcpu as usize);
        let runs = current && self.cpus.vcpus[v].state == VState::Running;
        if runs {
            self.settle(self.cpus.vcpus[v].pcpu);
        }
        runs && self.cpus.vcpus[v].debt == 0
    }

    /// A waiter becomes the owner.
    fn hand_over(&mut self, l: u32, next: u32, by: u32, delay: u64) {
        let lock = &mut self.locks[l as usize];
        lock.line.remove(&mut self.threads, next);
        lock.owner = next;
        lock.bypassed = 0;
        let vm = self.cpus.vcpus[self.threads[next as usize].vcpu as usize].vm;
        self.guests[vm as usize].counts.acquired += 1;
        self.grant(next, delay, by);
    }

    /// Kicks those that come soon, and halted.
    fn wake_ahead(&mut self, l: u32, wake: u32, by: u32) {
        let line: Vec<u32> =
            self.locks[l as usize].line.iter(&self.threads).take(wake.saturating_sub(1) as usize).collect();
        for w in line {
            let thread = &mut self.threads[w as usize];
            let v = thread.vcpu;
            if self.cpus.vcpus[v as usize].state == VState::Halted && thread.state == TState::Current {
                thread.left = thread.patience;
                self.kick(v, by);
            }
        }
    }

    /// A waiter's patience is over: its vCPU halts until it is kicked.
    pub(super) fn lock_halt(&mut self, t: u32, l: u32) {
        let v = self.threads[t as usize].vcpu;
        let vm = self.cpus.vcpus[v as usize].vm as usize;
        if matches!(self.guests[vm].lock, LockKind::Corefit { .. }) && self.looks_again(t, l) {
            return;
        }
        if self.guests[vm].lock == LockKind::ITicket {
            let patience = &mut self.locks[l as usize].patience;
            *patience = (*patience * 2).min(LONG_PATIENCE);
            self.threads[t as usize].patience = patience.saturating_mul(self.costs.spin_turn_ns);
        }
        let thread = &mut self.threads[t as usize];
        thread.left = thread.patience;
        self.guests[vm].counts.lock_halts += 1;
        self.halt(v);
    }

    /// The last look before a waiter for a lock of ours halts, and its first one when it runs again: it takes the lock
    /// in its turn, or spins for the rest of its patience. False: it halts.
    fn looks_again(&mut self, t: u32, l: u32) -> bool {
        let lock = &self.locks[l as usize];
        if lock.owner == NONE && lock.line.head == t {
            self.hand_over(l, t, NONE, self.costs.line_ns);
            return true;
        }
        let thread = &mut self.threads[t as usize];
        thread.left = std::mem::take(&mut thread.patience);
        thread.left > 0
    }

    /// A vCPU gets to run, or a thread gets onto it: if the thread spins for an unfair lock that became
    /// free meanwhile, it takes it.
    #[inline]
    pub(super) fn look_at_lock(&mut self, v: u32) {
        let t = self.cpus.vcpus[v as usize].cur;
        let thread = &self.threads[t as usize];
        if thread.act != Act::Spin || thread.granted || self.cpus.vcpus[v as usize].state != VState::Running {
            return;
        }
        let (Wait::Kernel(l) | Wait::User(l)) = thread.wait else { return };
        let vm = self.cpus.vcpus[v as usize].vm as usize;
        if matches!((thread.wait, self.guests[vm].lock), (Wait::Kernel(_), LockKind::Corefit { .. })) {
            // It looks when it has paid for waking up; until then others may pass it.
            let thread = &mut self.threads[t as usize];
            thread.patience = thread.patience.max(thread.left);
            thread.left = self.costs.line_ns;
            return;
        }
        let lock = &mut self.locks[l as usize];
        // A fair lock is never free while somebody waits.
        if lock.owner == NONE && lock.line.remove(&mut self.threads, t) {
            lock.owner = t;
            let thread = &mut self.threads[t as usize];
            thread.granted = true;
            thread.left = self.costs.line_ns;
            self.guests[vm].counts.acquired += 1;
        }
    }
}
