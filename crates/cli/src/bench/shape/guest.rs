//! The fork-join program of P1, Figure 7, for a guest: units are fixed work, for a guest's clocks go on while its vCPUs stand
//! still.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use corefit_core::{CpuId, CpuSet};
use corefit_linux::sample::{affinity, set_affinity};

/// One sequential unit on the first thread, then eight parallel ones; a thread for each CPU.
#[derive(clap::Args)]
pub(in crate::bench) struct ForkJoinArgs {
    /// Before turns are counted, s
    #[arg(long)]
    settle: f64,
    /// While they are counted, s
    #[arg(long)]
    count: f64,
    /// Length of a unit, ms
    #[arg(long, default_value_t = 1)]
    unit: u64,
    /// Each thread stays on a CPU of its own
    #[arg(long)]
    pinned: bool,
    /// The sequential unit is each thread's in turn
    #[arg(long)]
    balanced: bool,
}

const PARALLEL: u64 = 8;
/// Steps of a piece of work.
const PIECE: u64 = 2000;

/// Prints turns per second.
pub(in crate::bench) fn fork_join(args: &ForkJoinArgs) -> Result<ExitCode> {
    let cpus: Vec<CpuId> =
        affinity(std::process::id()).context("which CPUs there are is not known")?.iter().collect();
    let count = u64::try_from(cpus.len())?;
    let unit = args.unit * pieces();
    let (meet, turns) = (Barrier::new(cpus.len()), AtomicU64::new(0));
    let (ends, last) = (AtomicBool::new(false), AtomicBool::new(false));
    let rate = std::thread::scope(|scope| {
        for (me, cpu) in (0_u64..).zip(cpus) {
            let (meet, turns, ends, last) = (&meet, &turns, &ends, &last);
            scope.spawn(move || {
                if args.pinned {
                    let tid = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
                    set_affinity(tid, &CpuSet::from_iter([cpu]));
                }
                for turn in 0_u64.. {
                    if me == if args.balanced { turn % count } else { 0 } {
                        work(unit);
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
