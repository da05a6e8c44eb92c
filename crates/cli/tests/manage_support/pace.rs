//! How fast this machine is at a time. Its CPUs can be threads of cores that strangers share: what fills a core's units then takes
//! up to twice its time, for seconds or minutes, and no counter of this machine says so.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

const BETWEEN: Duration = Duration::from_millis(50);
/// Some 0.4 ms, after a fifth of it to be warm again.
const ROUNDS: u64 = 100_000;

/// Does the same piece of work on each of some pCPUs again and again, which takes about 1 % of them, until it is dropped.
pub(crate) struct Pace {
    ends: Arc<AtomicBool>,
    /// Of each pCPU: CPU time of the pieces, s, and how many.
    seen: Arc<Mutex<Vec<(f64, f64)>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Pace {
    /// Of the first pCPUs.
    pub(crate) fn of(pcpus: usize) -> Pace {
        let (ends, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(vec![(0.0, 0.0); pcpus])));
        let on = |pcpu: usize| {
            let (ends, seen) = (Arc::clone(&ends), Arc::clone(&seen));
            std::thread::spawn(move || {
                let mut set = CpuSet::new();
                set.set(pcpu);
                sched_setaffinity(None, &set).expect("to look at each pCPU");
                while !ends.load(Ordering::Relaxed) {
                    work(ROUNDS / 5);
                    let begun = cpu_time();
                    work(ROUNDS);
                    let took = cpu_time() - begun;
                    let at = &mut seen.lock().unwrap()[pcpu];
                    *at = (at.0 + took, at.1 + 1.0);
                    std::thread::sleep(BETWEEN);
                }
            })
        };
        let threads = (0..pcpus).map(on).collect();
        Pace { ends, seen, threads }
    }

    /// CPU time of a piece of work since the last call, ms: that of the pCPU where it took longest, for teams wait for it.
    pub(crate) fn take(&self) -> f64 {
        let mut seen = self.seen.lock().unwrap();
        let means = seen.iter_mut().map(std::mem::take).map(|(time, pieces)| 1e3 * time / pieces);
        means.fold(0.0, f64::max)
    }
}

impl Drop for Pace {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().expect("a look at a pCPU"));
    }
}

fn cpu_time() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0)).as_secs_f64()
}

/// Chains of instructions that do not wait for each other, so that it takes longer where another thread uses the core.
fn work(rounds: u64) {
    let mut table = [1_u64; 1024];
    let mut chains: [[u64; 3]; 6] = black_box([[1, 2, 3]; 6]);
    for _ in 0..rounds {
        for (number, [a, b, c]) in (0..).zip(&mut chains) {
            *a = a.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(*b ^ (*b >> 7));
            *b = b
                .wrapping_add(table[usize::try_from((*b ^ number) & 1023).unwrap_or(0)])
                .wrapping_add(*b << 3);
            *c ^= b.wrapping_add(*c >> 5);
        }
    }
    table[0] = chains.iter().flatten().fold(0, |all, &one| all ^ one);
    black_box(table);
}
