//! The fork-join program of P1, Figure 7, for a guest: units are fixed work, for a guest's clocks go on while its vCPUs stand
//! still.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use corefit_core::{CpuId, CpuSet};
use corefit_linux::sample::{affinity, set_affinity};

use super::program::used;

/// One sequential unit on the first thread, then eight parallel ones; a thread for each CPU.
#[derive(clap::Args)]
pub(in crate::bench) struct ForkJoinArgs {
    /// Before turns are counted, s
    #[arg(long, default_value_t = 0.0)]
    settle: f64,
    /// While they are counted, s
    #[arg(long, default_value_t = 1.0)]
    count: f64,
    /// Steps of work in a unit; without it nothing is run, and the steps of a millisecond are told
    #[arg(long)]
    unit: Option<u64>,
    /// Each thread stays on a CPU of its own
    #[arg(long)]
    pinned: bool,
    /// After so many ms of its CPU time the thread with the sequential unit changes CPUs with the next one
    #[arg(long, requires = "pinned")]
    moved: Option<u64>,
    /// The sequential unit is each thread's in turn
    #[arg(long)]
    balanced: bool,
}

const PARALLEL: u64 = 8;
/// Steps of a piece of work.
const PIECE: u64 = 2000;

/// Prints turns per second, or the steps of a millisecond.
pub(in crate::bench) fn fork_join(args: &ForkJoinArgs) -> Result<ExitCode> {
    let cpus: Vec<CpuId> =
        affinity(std::process::id()).context("which CPUs there are is not known")?.iter().collect();
    let count = u64::try_from(cpus.len())?;
    let Some(unit) = args.unit else {
        show!("steps_per_ms: {}", pieces());
        return Ok(ExitCode::SUCCESS);
    };
    let seats = Seats::new(cpus.clone());
    let (meet, turns) = (Barrier::new(cpus.len()), AtomicU64::new(0));
    let (ends, last) = (AtomicBool::new(false), AtomicBool::new(false));
    let rate = std::thread::scope(|scope| {
        for (me, cpu) in (0_u64..).zip(cpus) {
            let (meet, turns, ends, last, seats) = (&meet, &turns, &ends, &last, &seats);
            scope.spawn(move || {
                if args.pinned {
                    seats.take(me, cpu);
                }
                let mut moved = used();
                for turn in 0_u64.. {
                    if me == if args.balanced { turn % count } else { 0 } {
                        work(unit);
                    }
                    if let Some(ms) = args.moved.filter(|_| me == 0)
                        && used() - moved >= Duration::from_millis(ms)
                    {
                        seats.move_first();
                        moved = used();
                    }
                    meet.wait();
                    // What the first thread wrote before an earlier meeting, so that all read the same.
                    if last.load(Ordering::SeqCst) {
                        return;
                    }
                    work(unit * PARALLEL / count);
                    if me == 0 {
                        turns.fetch_add(1, Ordering::SeqCst);
                    }
                    meet.wait();
                    if me == 0 {
                        last.store(ends.load(Ordering::SeqCst), Ordering::SeqCst);
                    }
                }
            });
        }
        std::thread::sleep(Duration::from_secs_f64(args.settle));
        let (before, begun) = (turns.load(Ordering::SeqCst), Instant::now());
        std::thread::sleep(Duration::from_secs_f64(args.count));
        let (after, took) = (turns.load(Ordering::SeqCst), begun.elapsed());
        ends.store(true, Ordering::SeqCst);
        #[expect(clippy::cast_precision_loss, reason = "turns of a few seconds")]
        let rate = (after - before) as f64 / took.as_secs_f64();
        rate
    });
    show!("turns_per_s: {rate}");
    Ok(ExitCode::SUCCESS)
}

/// Where threads are: by number its id and the place of its CPU.
struct Seats {
    cpus: Vec<CpuId>,
    threads: Mutex<Vec<(u64, u32, CpuId)>>,
}

impl Seats {
    fn new(cpus: Vec<CpuId>) -> Seats {
        Seats { cpus, threads: Mutex::default() }
    }

    fn threads(&self) -> MutexGuard<'_, Vec<(u64, u32, CpuId)>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The calling thread stays on this CPU.
    fn take(&self, me: u64, cpu: CpuId) {
        let tid = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        set_affinity(tid, &CpuSet::from_iter([cpu]));
        self.threads().push((me, tid, cpu));
    }

    /// The first thread goes to the next CPU, and who is there, asleep, wakes up where it came from.
    fn move_first(&self) {
        let mut threads = self.threads();
        let Some(from) = threads.iter().find(|(me, ..)| *me == 0).map(|(_, _, cpu)| *cpu) else { return };
        let after = self.cpus.iter().copied().skip_while(|cpu| *cpu != from).nth(1);
        let Some(to) = after.or(self.cpus.first().copied()) else { return };
        for (_, tid, cpu) in threads.iter_mut().filter(|(_, _, cpu)| *cpu == from || *cpu == to) {
            *cpu = if *cpu == from { to } else { from };
            set_affinity(*tid, &CpuSet::from_iter([*cpu]));
        }
    }
}

fn work(pieces: u64) {
    for _ in 0..pieces {
        for n in 0..PIECE {
            black_box(n);
        }
    }
}

/// Pieces in a millisecond: by the fastest of some, as a vCPU may stand still meanwhile.
fn pieces() -> u64 {
    let one = || {
        let begun = Instant::now();
        work(1);
        begun.elapsed()
    };
    let fastest = (0..200).map(|_| one()).min().unwrap_or_default().as_nanos().max(1);
    u64::try_from(1_000_000 / fastest).unwrap_or(1).max(1)
}
