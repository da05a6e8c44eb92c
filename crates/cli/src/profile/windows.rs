//! Windows: for some milliseconds now and then, all threads of the program on one CPU, and what its parallel regions take
//! there (`corefit_core::profile::Turns`).
//!
//! The OpenMP preload library notes when regions begin, in the page that it shares with us. A program without OpenMP, one that
//! binds its threads, and one that begins regions from several threads are left alone. Who kills corefit
//! with SIGKILL in a window leaves the program on that CPU.

use std::time::Duration;

use corefit_core::profile::{Look, OneCpu, Turns};
use corefit_core::{CpuSet, Time};
use corefit_linux::handoff::handoff;
use corefit_linux::moving;
use corefit_linux::page::TeamPage;
use corefit_linux::sample::affinity;
use corefit_linux::threads::cpu_of;

/// A window's length is this many turns, within bounds.
const TURNS: f64 = 3.0;
const SHORTEST: Duration = Duration::from_millis(6);
const LONGEST: Duration = Duration::from_millis(60);
/// After so many windows enough is known.
const ENOUGH: usize = 500;
/// The part of the time that windows may cost the program.
const COST: f64 = 0.008;

/// Opens windows and follows turns.
pub(super) struct Windows {
    page: TeamPage,
    read: u64,
    turns: Turns,
    began: Time,
    /// The CPUs of the program.
    all: CpuSet,
    home: moving::Home,
    open: Option<Open>,
    count: usize,
    shut: Duration,
    off: bool,
}

/// An open window.
struct Open {
    since: Time,
    /// The program's CPU time then.
    cpu: Duration,
    held: moving::OneCpu,
}

impl Windows {
    /// `all`: the CPUs that the program may use.
    pub(super) fn new(page: TeamPage, began: Time, all: CpuSet) -> Windows {
        let off = all.len() < 2;
        Windows {
            page,
            read: 0,
            turns: Turns::default(),
            began,
            home: moving::Home::of(all.clone()),
            all,
            open: None,
            count: 0,
            shut: Duration::ZERO,
            off,
        }
    }

    /// Whether there are regions to follow.
    pub(super) fn active(&self) -> bool {
        !self.off && self.read > 0
    }

    /// What windows cost the program: with n CPUs, at most 1 - 1/n of their time.
    pub(super) fn cost(&self) -> Duration {
        self.shut.mul_f64(1.0 - 1.0 / self.all.len().max(1) as f64)
    }

    /// Opens or closes a window if it is time; after each look.
    pub(super) fn after(&mut self, look: &Look) {
        if self.off && self.open.is_none() {
            return;
        }
        self.follow();
        if let Some(open) = &self.open {
            if self.off || look.at.since(open.since) >= self.length() {
                self.close();
            }
        } else if self.turns.typical_ns() > 0.0 && self.is_due(look.at) {
            self.open(look);
        }
    }

    /// The program was stopped for so long.
    pub(super) fn skip(&mut self, stopped: Duration) {
        self.follow();
        self.open = None;
        self.began = self.began + stopped;
        self.turns.skip();
    }

    fn follow(&mut self) {
        match self.page.begun(&mut self.read) {
            Some(begun) => self.turns.take(&begun),
            None => self.off = true,
        }
    }

    fn is_due(&self, now: Time) -> bool {
        let length = self.length();
        // The first one is due when it would cost twice that, so that short runs have one, too.
        let cost = self.cost() + length.mul_f64(1.0 - 1.0 / self.all.len() as f64) / 2;
        length < LONGEST && self.count < ENOUGH && cost <= now.since(self.began).mul_f64(COST)
    }

    fn length(&self) -> Duration {
        Duration::from_secs_f64(TURNS * self.turns.typical_ns() / 1e9).clamp(SHORTEST, LONGEST)
    }

    fn open(&mut self, look: &Look) {
        if look.threads.iter().any(|thread| affinity(thread.tid).as_ref() != Some(&self.all)) {
            // It has ended just now, or it is bound: then it is not ours to move.
            self.off |= look.threads.iter().any(|t| affinity(t.tid).is_some_and(|cpus| cpus != self.all));
            return;
        }
        let Some(one) = self.all.iter().nth(self.count % self.all.len()) else { return };
        self.count += 1;
        let threads = look.threads.iter().map(|thread| thread.tid).collect();
        let held = moving::OneCpu::begin(threads, one, &self.home);
        let now = corefit_linux::sample::now();
        self.turns.open(now);
        self.open = Some(Open { since: now, cpu: self.cpu(), held });
    }

    fn close(&mut self) {
        let Some(Open { since, cpu, held }) = self.open.take() else { return };
        drop(held);
        let now = corefit_linux::sample::now();
        self.turns.close(now, self.cpu().saturating_sub(cpu).as_nanos() as f64);
        self.shut += now.since(since);
    }

    /// CPU time of the program whose regions these are.
    fn cpu(&self) -> Duration {
        self.page.processes().first().and_then(|process| cpu_of(process.pid)).unwrap_or_default()
    }

    /// What they tell of a run of this length and this CPU time, in which threads blocked so often, at its end.
    pub(super) fn one_cpu(mut self, took: Duration, cpu: Duration, blocked: u64) -> Option<OneCpu> {
        self.follow();
        if self.off {
            return None;
        }
        let one: CpuSet = self.all.iter().take(1).collect();
        let each = if self.count > 0 { handoff(&one)?.as_nanos() as f64 } else { 0.0 };
        self.turns.one_cpu(took.as_nanos() as f64, cpu.as_nanos() as f64, each * blocked as f64)
    }
}
