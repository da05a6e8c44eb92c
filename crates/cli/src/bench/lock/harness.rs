//! One run of one lock: threads that take it, or one of several like it, what they got, and how long they waited.

use std::hint::black_box;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use corefit_linux::threads::own;
use corefit_lock::peers::{Face, Guarded, ticks, ticks_per_us};

use super::order::Order;
use super::waits::Waits;
use crate::stats::number;

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
    /// Waits, us: of the second half, in which every one is timed; `None` if nobody got the lock then.
    pub(super) p50_us: Option<f64>,
    pub(super) p999_us: Option<f64>,
    pub(super) p9999_us: Option<f64>,
    pub(super) max_us: Option<f64>,
    /// CPU time over wall-clock time.
    pub(super) cpus: f64,
    /// Context switches per second.
    pub(super) switches_s: f64,
    /// Arrivals with somebody seen in line, and how many of them were served before that one.
    pub(super) order_checks: u64,
    pub(super) overtakings: u64,
}

/// What the lock protects; a lost update shows that it does not.
#[derive(Default)]
struct Protected {
    count: u64,
    work: u64,
}

struct Buckets {
    locks: Vec<Guarded<Protected>>,
    /// For each lock but the last, the random number of 32 bits below which it or one before it is chosen.
    below: Vec<u64>,
}

impl Buckets {
    fn new(face: Face, count: usize) -> Buckets {
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
        Buckets {
            locks: (0..count.max(1)).map(|_| Guarded::new(face, Protected::default())).collect(),
            below,
        }
    }

    /// The number of a lock; the upper bits choose how long to stay outside.
    fn choose(&self, random: u64) -> usize {
        self.below.partition_point(|below| *below <= random & 0xffff_ffff)
    }
}

/// One thread's part.
#[derive(Default)]
struct Part {
    uncounted: u64,
    untimed: u64,
    timed: u64,
    watched: u64,
    waits: Waits,
    order_checks: u64,
    overtakings: u64,
}

const WARM_UP: u8 = 0;
const UNTIMED: u8 = 1;
const TIMED: u8 = 2;
const WATCHED: u8 = 3;
const STOP: u8 = 4;

/// Until something is counted, so that every thread has had its first time slice, 64 on 2 CPUs too: before that fewer
/// of them compete.
const WARM_UP_TIME: Duration = Duration::from_millis(500);

/// The part of a run in which the order is watched, of the half before it.
pub(super) const WATCH: u32 = 8;
/// One arrival of so many is checked: looking at another thread takes some us.
const CHECK_ONE_OF: u64 = 64;

/// Runs the lock for twice `half`, without clocks for the throughput, then timing every wait; and for a little longer,
/// to see who overtakes whom.
pub(super) fn run(face: Face, threads: usize, section: Section, half: Duration) -> Result<Outcome> {
    let buckets = Arc::new(Buckets::new(face, section.locks));
    let order = Arc::new(Order::new(threads));
    let phase = Arc::new(AtomicU8::new(WARM_UP));
    let ready = Arc::new(Barrier::new(threads + 1));
    let handles: Vec<_> = (0..threads)
        .map(|n| {
            let (buckets, order) = (Arc::clone(&buckets), Arc::clone(&order));
            let (phase, ready) = (Arc::clone(&phase), Arc::clone(&ready));
            std::thread::spawn(move || {
                order.enter(n);
                ready.wait();
                part(&buckets, &order, section, &phase, n)
            })
        })
        .collect();
    ready.wait();
    std::thread::sleep(WARM_UP_TIME);
    let before = usage();
    phase.store(UNTIMED, Ordering::Relaxed);
    let start = Instant::now();
    std::thread::sleep(half);
    phase.store(TIMED, Ordering::Relaxed);
    let untimed_s = start.elapsed().as_secs_f64();
    std::thread::sleep(half);
    phase.store(WATCHED, Ordering::Relaxed);
    let after = usage();
    let wall_s = start.elapsed().as_secs_f64();
    std::thread::sleep(half / WATCH);
    phase.store(STOP, Ordering::Relaxed);
    let parts: Vec<Part> = handles.into_iter().filter_map(|h| h.join().ok()).collect();
    let total: u64 = parts.iter().map(|p| p.uncounted + p.untimed + p.timed + p.watched).sum();
    let counted: u64 = buckets.locks.iter().map(|lock| lock.with(|protected| protected.count)).sum();
    if counted != total || parts.len() != threads {
        bail!("the lock does not exclude: {total} acquisitions left {counted} counted");
    }
    let mut waits = Waits::default();
    parts.iter().for_each(|p| waits.add(&p.waits));
    let us = |wait: Option<f64>| wait.map(|ticks| ticks / ticks_per_us());
    let each: Vec<f64> = parts.iter().map(|p| number(p.untimed + p.timed)).collect();
    let least = each.iter().copied().fold(f64::INFINITY, f64::min);
    Ok(Outcome {
        ops_s: number(parts.iter().map(|p| p.untimed).sum()) / untimed_s,
        jain: jain(&each),
        spread: each.iter().copied().fold(0.0, f64::max) / least,
        p50_us: us(waits.quantile(0.5)),
        p999_us: us(waits.quantile(0.999)),
        p9999_us: us(waits.quantile(0.9999)),
        max_us: us(waits.longest()),
        cpus: (after.0 - before.0) / wall_s,
        switches_s: (after.1 - before.1) / wall_s,
        order_checks: parts.iter().map(|p| p.order_checks).sum(),
        overtakings: parts.iter().map(|p| p.overtakings).sum(),
    })
}

fn part(buckets: &Buckets, order: &Order, section: Section, phase: &AtomicU8, me: usize) -> Part {
    let mut part = Part::default();
    let mut random = (me as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    loop {
        let number = buckets.choose(random);
        let lock = &buckets.locks[number];
        match phase.load(Ordering::Relaxed) {
            WARM_UP => {
                lock.with(|protected| inside(protected, section));
                part.uncounted += 1;
            }
            UNTIMED => {
                lock.with(|protected| inside(protected, section));
                part.untimed += 1;
            }
            TIMED => {
                let before = ticks();
                let after = lock.with(|protected| {
                    let after = ticks();
                    inside(protected, section);
                    after
                });
                part.waits.note(after.saturating_sub(before));
                part.timed += 1;
            }
            WATCHED => {
                let check = (random >> 33).is_multiple_of(CHECK_ONE_OF);
                let from = usize::try_from(random >> 40).unwrap_or(0);
                let seen = if check { order.in_line(number, from) } else { None };
                order.arrives(me, number, part.watched);
                let overtook = lock.with(|protected| {
                    inside(protected, section);
                    order.served(me, seen)
                });
                part.order_checks += u64::from(seen.is_some());
                part.overtakings += u64::from(overtook);
                part.watched += 1;
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
    let own = own();
    let switches = number(own.voluntary_switches + own.involuntary_switches);
    ((own.user + own.system).as_secs_f64(), switches)
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
            let outcome = run(Face::of::<parking_lot::RawMutex>(), 3, section, half).unwrap();
            assert!(
                outcome.ops_s > 0.0 && outcome.max_us >= outcome.p50_us.or(Some(f64::NAN)),
                "{outcome:?}"
            );
        }
    }

    #[test]
    fn a_lock_that_serves_in_order_is_seen_to_do_so() {
        let fifo = Face::of::<corefit_lock::RawMutex<corefit_lock::Fifo>>();
        let mut checks = 0;
        while checks == 0 {
            let outcome = run(fifo, 12, SECTIONS[0], Duration::from_millis(200)).unwrap();
            assert_eq!(outcome.overtakings, 0, "{outcome:?}");
            checks = outcome.order_checks;
        }
    }

    #[test]
    fn a_lock_is_chosen_in_proportion_to_one_over_its_rank() {
        let face = Face::of::<parking_lot::RawMutex>();
        let buckets = Buckets::new(face, 4); // 12/25, 6/25, 4/25, 3/25
        let share = |twenty_fifths: u64| twenty_fifths * (1 << 32) / 25;
        for (rank, (from, to)) in [(0, 12), (12, 18), (18, 22), (22, 25)].into_iter().enumerate() {
            let chosen = (buckets.choose(share(from) + 1), buckets.choose(share(to) - 1));
            assert_eq!(chosen, (rank, rank));
        }
        let one = Buckets::new(face, 1);
        assert_eq!((one.locks.len(), one.below.len()), (1, 0));
    }
}
