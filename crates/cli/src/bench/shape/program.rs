//! Programs whose threads are in control groups of their own, as those of a guest are on vCPUs. Work is CPU time, so
//! that a stopped thread does none; waiting blocks.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use corefit_linux::threads::this_threads_cpu;

/// What a program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// P1, Figure 7: a sequential unit on the first thread, then eight parallel ones, of 1 ms each.
    ForkJoin,
    /// The same with the sequential unit on each thread in turn.
    Balanced,
    /// Each thread works for 20 ms, then all sleep for 60 ms.
    Fluctuating,
}

const UNIT: Duration = Duration::from_millis(1);
const PARALLEL: u32 = 8;
const BURST: Duration = Duration::from_millis(20);
const SLEEP: Duration = Duration::from_millis(60);

/// A program that runs until this is dropped.
pub(super) struct Running {
    ends: Arc<AtomicBool>,
    turns: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Running {
    /// One thread in each group.
    pub(super) fn start(kind: Kind, groups: &[PathBuf]) -> Result<Running> {
        let count = u32::try_from(groups.len())?;
        let (begin, meet) = (Arc::new(Barrier::new(groups.len() + 1)), Arc::new(Barrier::new(groups.len())));
        let (ends, last) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (turns, failed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let mut threads = Vec::with_capacity(groups.len());
        for (me, group) in (0_u32..).zip(groups) {
            let (begin, meet, ends, last) = (begin.clone(), meet.clone(), ends.clone(), last.clone());
            let (turns, failed, file) = (turns.clone(), failed.clone(), group.join("tasks"));
            let turn = move || {
                let entered = std::fs::write(file, rustix::thread::gettid().as_raw_nonzero().to_string());
                failed.fetch_or(entered.is_err(), Ordering::SeqCst);
                begin.wait();
                begin.wait();
                for turn in 0_u32.. {
                    if failed.load(Ordering::SeqCst) || last.load(Ordering::SeqCst) {
                        return;
                    }
                    let sequential = match kind {
                        Kind::ForkJoin => me == 0,
                        Kind::Balanced => me == turn % count,
                        Kind::Fluctuating => false,
                    };
                    if sequential {
                        work(UNIT);
                    }
                    meet.wait();
                    work(if kind == Kind::Fluctuating { BURST } else { UNIT * PARALLEL / count });
                    if me == 0 {
                        turns.fetch_add(1, Ordering::SeqCst);
                        last.store(ends.load(Ordering::SeqCst), Ordering::SeqCst);
                    }
                    meet.wait();
                    if kind == Kind::Fluctuating {
                        std::thread::sleep(SLEEP);
                    }
                }
            };
            threads.push(std::thread::Builder::new().name(format!("vcpu{me}")).spawn(turn)?);
        }
        begin.wait();
        let refused = failed.load(Ordering::SeqCst);
        begin.wait();
        let running = Running { ends, turns, threads };
        if refused {
            let dir = groups.first().context("no groups")?.display();
            bail!(
                "{dir}/tasks: threads cannot be put into groups of their own here; run as root, with cgroups v1"
            );
        }
        Ok(running)
    }

    /// Turns so far.
    pub(super) fn turns(&self) -> u64 {
        self.turns.load(Ordering::SeqCst)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Works for so much CPU time of this thread.
fn work(time: Duration) {
    let until = this_threads_cpu() + time;
    while this_threads_cpu() < until {
        for _ in 0..200 {
            std::hint::spin_loop();
        }
    }
}
