//! What happens to a program in `step`.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use corefit_core::CpuSet;

use crate::bench::arena::Arena;
use crate::bench::job::Script;

/// The changes of `step`: all CPUs for a while, then one, then all again.
pub(super) struct Steps<'a> {
    arena: &'a Arena,
    one: &'a CpuSet,
    /// When to change, after the start.
    at: [Duration; 2],
    /// When it was changed, seconds after the start.
    pub(super) done_s: Vec<f64>,
    /// When to look for new threads, where affinities are set.
    again: Option<Duration>,
}

impl<'a> Steps<'a> {
    pub(super) fn new(arena: &'a Arena, one: &'a CpuSet, [first, second]: [f64; 2]) -> Steps<'a> {
        Steps {
            arena,
            one,
            at: [first, first + second].map(Duration::from_secs_f64),
            done_s: vec![],
            again: None,
        }
    }

    fn due(&self) -> Option<Duration> {
        self.at.get(self.done_s.len()).copied()
    }
}

impl Script for Steps<'_> {
    fn next(&self) -> Option<Duration> {
        [self.due(), self.again].into_iter().flatten().min()
    }

    fn act(&mut self, start: Instant, pid: u32) -> Result<()> {
        const SOON: Duration = Duration::from_millis(1);
        const LATER: Duration = Duration::from_millis(20);
        let now = start.elapsed();
        if self.due().is_some_and(|at| now >= at) {
            self.done_s.push(now.as_secs_f64());
        }
        let cpus = match self.done_s.len() {
            1 => self.one,
            _ => self.arena.cpus(),
        };
        let changed = self.arena.allow(pid, cpus).context("step")?;
        let grouped = self.arena.cpuset_groups().is_some();
        let pause = if changed { SOON } else { LATER };
        self.again = (!grouped).then(|| start.elapsed() + pause);
        Ok(())
    }
}
