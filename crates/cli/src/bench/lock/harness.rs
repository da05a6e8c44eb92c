//! One run of one lock: threads that take it, or one of several like it, what they got, and how long they waited.

use std::hint::black_box;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use corefit_lock::peers::{ticks, ticks_per_us};
use lock_api::{Mutex, RawMutex};

use super::waits::Waits;

/// What threads do with the lock and between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) name: &'static str,
    /// Steps of work with the lock; about 1 ns each.
    pub(super) inside: u32,
    /// Steps of work without it: so many at most, chosen at random.
    pub(super) outside: u32,
    /// Locks, one of which is chosen each time: the k-th with a probability in proportion to 1/k (Zipf), as the
    /// buckets of a hash table with popular keys.
    pub(super) locks: usize,
}

/// About 20 ns, 1 us and 10 us with the lock; and about 100 ns with one of 64.
pub(super) const SECTIONS: [Section; 4] = [
    Section { name: "short", inside: 16, outside: 64, locks: 1 },
    Section { name: "medium", inside: 800, outside: 1600, locks: 1 },
    Section { name: "long", inside: 8000, outside: 16000, locks: 1 },
    Section { name: "zipf", inside: 80, outside: 160, locks: 64 },
];

/// What one run gave.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// Acquisitions per second, while nobody looked at the clock.
    pub(super) ops_s: f64,
    /// Jain's index of the threads' acquisitions: 1 if all got the same, 1/n if one got all.
    pub(super) jain: f64,
    /// Most over least acquisitions of a thread; infinite if one got none.
    pub(super) spread: f64,
    /// Waits, us: of the second half, in which every one is timed.
    pub(super) p50_us: f64,
    pub(super) p999_us: f64,
    pub(super) p9999_us: f64,
    pub(super) max_us: f64,
    /// CPU time over wall-clock time.
    pub(super) cpus: f64,
    /// Context switches per second.
    pub(super) switches_s: f64,
}

/// What the lock protects; a lost update shows that it does not.
#[derive(Default)]
struct Protected {
    count: u64,
    work: u64,
}

/// A lock with what it protects, on cache lines of its own.
#[repr(align(128))]
struct Bucket<R: RawMutex>(Mutex<R, Protected>);

struct Buckets<R: RawMutex> {
    locks: Vec<Bucket<R>>,
    /// For each lock but the last, the random number of 32 bits below which it or one before it is chosen.
    below: Vec<u64>,
}

impl<R: RawMutex> Buckets<R> {
    fn new(count: usize) -> Buckets<R> {
        let weights = (1..=count.max(1)).map(|k| 1.0 / number(k as u64));
        let whole: f64 = weights.clone().sum();
        let mut sum = 0.0;
        let below = weights.take(count.saturating_sub(1)).map(|weight| {
            sum += weight;
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 2^32")]
            let below = (sum / whole * 4_294_967_296.0) as u64;
            below
        });
        let below = below.collect();
        let bucket = || Bucket(Mutex::new(Protected::default()));
        Buckets { locks: (0..count.max(1)).map(|_| bucket()).collect(), below }
    }

    fn choose(&self, random: u64) -> &Mutex<R, Protected> {
        // The upper bits choose how long to stay outside.
        &self.locks[self.below.partition_point(|below| *below <= random & 0xffff_ffff)].0
    }
}

/// One thread's part.
struct Part {
    untimed: u64,
    timed: u64,
    waits: Waits,
}

const UNTIMED: u8 = 1;
const TIMED: u8 = 2;
const STOP: u8 = 3;

/// Runs the lock for twice `half`: once without clocks for the throughput, once timing every wait.
pub(super) fn run<R: RawMutex + Send + Sync + 'static>(
    threads: usize,
    section: Section,
    half: Duration,
) -> Result<Outcome> {
    let buckets: Arc<Buckets<R>> = Arc::new(Buckets::new(section.locks));
    let phase = Arc::new(AtomicU8::new(0));
    let ready = Arc::new(Barrier::new(threads + 1));
    let handles: Vec<_> = (0..threads)
        .map(|n| {
            let (buckets, phase, ready) = (Arc::clone(&buckets), Arc::clone(&phase), Arc::clone(&ready));
            std::thread::spawn(move || {
                ready.wait();
                part(&buckets, section, &phase, n as u64)
            })
        })
        .collect();
    let before = usage();
    phase.store(UNTIMED, Ordering::Relaxed);
    ready.wait();
    let start = Instant::now();
    std::thread::sleep(half);
    phase.store(TIMED, Ordering::Relaxed);
    let untimed_s = start.elapsed().as_secs_f64();
    std::thread::sleep(half);
    phase.store(STOP, Ordering::Relaxed);
    let after = usage();
    let wall_s = start.elapsed().as_secs_f64();
    let parts: Vec<Part> = handles.into_iter().filter_map(|h| h.join().ok()).collect();
    let total: u64 = parts.iter().map(|p| p.untimed + p.timed).sum();
    let counted: u64 = buckets.locks.iter().map(|bucket| bucket.0.lock().count).sum();
    if counted != total || parts.len() != threads {
        bail!("the lock does not exclude: {total} acquisitions left {counted} counted");
    }
    let mut waits = Waits::default();
    parts.iter().for_each(|p| waits.add(&p.waits));
    let scale = ticks_per_us();
    let each: Vec<f64> = parts.iter().map(|p| number(p.untimed + p.timed)).collect();
    let least = each.iter().copied().fold(f64::INFINITY, f64::min);
    Ok(Outcome {
        ops_s: number(parts.iter().map(|p| p.untimed).sum()) / untimed_s,
        jain: jain(&each),
        spread: each.iter().copied().fold(0.0, f64::max) / least,
        p50_us: waits.quantile(0.5) / scale,
        p999_us: waits.quantile(0.999) / scale,
        p9999_us: waits.quantile(0.9999) / scale,
        max_us: waits.longest() / scale,
        cpus: (after.0 - before.0) / wall_s,
        switches_s: (after.1 - before.1) / wall_s,
    })
}

fn part<R: RawMutex>(buckets: &Buckets<R>, section: Section, phase: &AtomicU8, seed: u64) -> Part {
    let mut part = Part { untimed: 0, timed: 0, waits: Waits::default() };
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    loop {
        let lock = buckets.choose(random);
        match phase.load(Ordering::Relaxed) {
            UNTIMED => {
                inside(&mut lock.lock(), section);
                part.untimed += 1;
            }
            TIMED => {
                let before = ticks();
                let mut guard = lock.lock();
                let after = ticks();
                inside(&mut guard, section);
                drop(guard);
                part.waits.note(after.saturating_sub(before));
                part.timed += 1;
            }
            _ => return part,
        }
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        black_box(work(u32::try_from(random >> 40).unwrap_or(0) % section.outside.max(1), random));
    }
}

fn inside(protected: &mut Protected, section: Section) {
    protected.count += 1;
    protected.work = work(section.inside, protected.work);
}

/// Work that takes so many steps.
#[inline]
fn work(steps: u32, mut x: u64) -> u64 {
    for _ in 0..steps {
        x = black_box(x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1));
    }
    x
}

/// (sum of x)^2 / (n * sum of x^2).
pub(super) fn jain(each: &[f64]) -> f64 {
    let sum: f64 = each.iter().sum();
    let squares: f64 = each.iter().map(|x| x * x).sum();
    if squares == 0.0 { 0.0 } else { sum * sum / (number(each.len() as u64) * squares) }
}

/// CPU seconds and context switches of this process so far.
fn usage() -> (f64, f64) {
    let usage = corefit_lock::peers::usage();
    (usage.cpu_s, usage.switches)
}

/// Counts here stay far below 2^52.
#[allow(clippy::cast_precision_loss, reason = "see above")]
pub(super) fn number(n: u64) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index_is_one_for_equals_and_one_nth_for_a_single_winner() {
        assert!((jain(&[3.0, 3.0, 3.0]) - 1.0).abs() < 1e-12);
        assert!((jain(&[0.0, 0.0, 9.0, 0.0]) - 0.25).abs() < 1e-12);
        assert_eq!(jain(&[]), 0.0);
    }

    #[test]
    fn a_run_counts_every_acquisition() {
        let half = Duration::from_millis(20);
        for section in [SECTIONS[0], SECTIONS[3]] {
            let outcome = run::<parking_lot::RawMutex>(3, section, half).unwrap();
            assert!(outcome.ops_s > 0.0 && outcome.max_us >= outcome.p50_us, "{outcome:?}");
        }
    }

    #[test]
    fn a_lock_is_chosen_in_proportion_to_one_over_its_rank() {
        let buckets: Buckets<parking_lot::RawMutex> = Buckets::new(4); // 12/25, 6/25, 4/25, 3/25
        let of = |random: u64| {
            let chosen = std::ptr::from_ref(buckets.choose(random));
            buckets.locks.iter().position(|bucket| std::ptr::eq(&raw const bucket.0, chosen)).unwrap()
        };
        let share = |twenty_fifths: u64| twenty_fifths * (1 << 32) / 25;
        for (rank, (from, to)) in [(0, 12), (12, 18), (18, 22), (22, 25)].into_iter().enumerate() {
            assert_eq!((of(share(from) + 1), of(share(to) - 1)), (rank, rank));
        }
        let one: Buckets<parking_lot::RawMutex> = Buckets::new(1);
        assert_eq!((one.locks.len(), one.below.len()), (1, 0));
    }
}
