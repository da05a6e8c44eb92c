//! What shorter slices of the fair scheduler bring a control group beside busy ones, decided by the daemon's controllers:
//! a thread for each CPU, in one group, and as many that are always busy in each of three others.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use corefit_core::decide::Shaper;
use corefit_core::machine::{Act, Lever, LeverKind, Machine, Value};
use corefit_linux::Root;
use corefit_linux::host::Cgroups;
use corefit_linux::threads::this_threads_cpu;

use super::super::arena::Arena;
use super::{COUNT, SETTLE, controller, shape};
use crate::interrupt::Interrupt;

const WORK: Duration = Duration::from_micros(200);
const SLEEP: Duration = Duration::from_millis(1);
const NEIGHBOURS: usize = 3;

/// What the program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Each thread sleeps for 1 ms, then works for 0.2 ms.
    Sleeps,
    /// Each thread works for 0.2 ms, then all meet.
    Meets,
}

/// What came of a case.
pub(super) struct Outcome {
    /// Of all threads.
    pub(super) turns_per_s: f64,
    /// Mean time from when a sleep was over until the thread ran, us; `None` without sleeps.
    pub(super) late_us: Option<f64>,
    /// What is set in the end.
    pub(super) slice: Value,
}

/// The program's group, and its neighbours'.
pub(super) struct Groups {
    program: PathBuf,
    busy: Vec<PathBuf>,
}

impl Groups {
    pub(super) fn make(arena: &Arena) -> Result<Groups> {
        let busy = (0..NEIGHBOURS).map(|n| arena.nest(&format!("busy{n}"))).collect::<Result<_>>()?;
        Ok(Groups { program: arena.nest("slices")?, busy })
    }
}

/// Turns per second once the controllers have had their time; `None` where threads have no slices.
pub(super) fn case(
    groups: &Groups,
    kind: Kind,
    shaper: Shaper,
    interrupt: &Interrupt,
) -> Result<Option<Outcome>> {
    let group = &groups.program;
    let mut machine = Cgroups::open(Root::live(), group.display().to_string().parse()?)?;
    let seen = machine.observe()?;
    let vm = seen.vms.iter().find(|vm| vm.name.ends_with("/slices")).context("the group is not seen")?;
    if vm.fixed(LeverKind::Slice).is_some() {
        return Ok(None);
    }
    let id = vm.id.clone();
    let threads = std::thread::available_parallelism()?.get();
    let spins = |_: usize, ends: &AtomicBool| while !ends.load(Ordering::Relaxed) {};
    let busy = groups.busy.iter().map(|group| Running::start(group, threads, spins));
    let busy = busy.collect::<Result<Vec<_>>>()?;
    let (turns, late_ns) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (counts, late, meet, per_us) =
        (turns.clone(), late_ns.clone(), Arc::new(Barrier::new(threads)), spins_per_us());
    let ended = Arc::new(AtomicBool::new(false));
    let program = move |me: usize, ends: &AtomicBool| loop {
        // All of them end after the same turn.
        if kind == Kind::Meets {
            if me == 0 {
                ended.store(ends.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            meet.wait();
            if ended.load(Ordering::Relaxed) {
                return;
            }
        } else {
            if ends.load(Ordering::Relaxed) {
                return;
            }
            let begun = Instant::now();
            std::thread::sleep(SLEEP);
            let ns = begun.elapsed().saturating_sub(SLEEP).as_nanos();
            late.fetch_add(u64::try_from(ns).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
        spin(per_us * u64::try_from(WORK.as_micros()).unwrap_or(0));
        counts.fetch_add(1, Ordering::Relaxed);
        if kind == Kind::Meets {
            meet.wait();
        }
    };
    let running = Running::start(group, threads, program)?;
    let begun = Instant::now();
    shape(&mut machine, controller(shaper), interrupt, &mut || Ok(begun.elapsed() >= SETTLE))?;
    let read = || (turns.load(Ordering::Relaxed), late_ns.load(Ordering::Relaxed), Instant::now());
    let before = read();
    std::thread::sleep(COUNT);
    let after = read();
    let slice = machine.current(&id, Lever::Slice(0)).map_err(|error| anyhow!("{error}"))?;
    drop((running, busy));
    let (done, late) = ((after.0 - before.0) as f64, (after.1 - before.1) as f64 / 1e3);
    let late_us = (kind == Kind::Sleeps && done > 0.0).then(|| late / done);
    Ok(Some(Outcome { turns_per_s: done / after.2.duration_since(before.2).as_secs_f64(), late_us, slice }))
}

/// Threads in a group, until this is dropped.
struct Running {
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Running {
    fn start(
        group: &Path,
        count: usize,
        work: impl Fn(usize, &AtomicBool) + Send + Sync + 'static,
    ) -> Result<Running> {
        let (ends, work) = (Arc::new(AtomicBool::new(false)), Arc::new(work));
        let (begin, failed) = (Arc::new(Barrier::new(count + 1)), Arc::new(AtomicBool::new(false)));
        let mut threads = Vec::with_capacity(count);
        for me in 0..count {
            let (ends, work, begin, failed) = (ends.clone(), work.clone(), begin.clone(), failed.clone());
            let file = group.join("tasks");
            let body = move || {
                let own = rustix::thread::gettid().as_raw_nonzero().to_string();
                failed.fetch_or(std::fs::write(file, own).is_err(), Ordering::SeqCst);
                begin.wait();
                begin.wait();
                if !failed.load(Ordering::SeqCst) {
                    work(me, &ends);
                }
            };
            threads.push(std::thread::Builder::new().name("slices".into()).spawn(body)?);
        }
        begin.wait();
        let refused = failed.load(Ordering::SeqCst);
        begin.wait();
        let running = Running { ends, threads };
        if refused {
            let dir = group.display();
            bail!("{dir}/tasks: threads cannot be put into groups here; run as root, with cgroups v1");
        }
        Ok(running)
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

fn spin(turns: u64) {
    for turn in 0..turns {
        black_box(turn);
    }
}

/// Turns of [`spin`] in 1 us of CPU time. Work does not ask the clock, as that has the scheduler look, too.
fn spins_per_us() -> u64 {
    const TURNS: u64 = 50_000_000;
    let before = this_threads_cpu();
    spin(TURNS);
    TURNS / u64::try_from((this_threads_cpu() - before).as_micros()).unwrap_or(1).max(1)
}
