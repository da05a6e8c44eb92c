//! A fixed piece of work that tells how much CPU time it takes: beside a program, and alone, it shows what they share.
//!
//! Two parts, each some tens of microseconds: arithmetic on independent values (the execution units of a core), and reads
//! all over 128 KiB (its caches). Each is run once untimed before, so that what somebody else left in the caches of this
//! CPU does not count. About 0.1 ms in all, here. What lies in caches of several cores or in memory is left out: what is not
//! in a cache of the core's own takes longer after some time without probes, whoever runs beside (reads over 4 MiB took 2.8 times
//! as long beside a program that hardly uses memory).

use std::hint::black_box;

use corefit_core::profile::Probe;
use rustix::time::{ClockId, clock_gettime};

const WORDS: usize = (128 << 10) / 8;
/// Words in a cache line.
const LINE: usize = 8;

/// Runs the pieces.
pub struct Reporter {
    words: Vec<u64>,
    seed: u64,
}

impl Default for Reporter {
    fn default() -> Reporter {
        Reporter::new()
    }
}

impl Reporter {
    /// Takes 128 KiB of memory.
    #[must_use]
    pub fn new() -> Reporter {
        Reporter { words: (0..WORDS as u64).collect(), seed: 1 }
    }

    /// CPU time of each part now, ns.
    pub fn probe(&mut self) -> Probe {
        let Reporter { words, seed } = self;
        *seed = seed.wrapping_add(1);
        arithmetic(*seed);
        let first = timed(|| arithmetic(*seed));
        black_box(words.iter().step_by(LINE).fold(0, |sum: u64, word| sum ^ word));
        read(words, *seed, 500);
        [first, timed(|| read(words, *seed, 6_000))]
    }
}

fn timed(work: impl FnOnce()) -> f64 {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
    };
    let begun = now();
    work();
    now() - begun
}

/// Chains of operations that do not wait for each other, of integers and of floating-point numbers.
fn arithmetic(seed: u64) {
    let mut whole: [u64; 4] = black_box([seed, 2, 3, 4]);
    let mut real: [f64; 4] = black_box([1.0, 1.1, 1.2, 1.3]);
    for turn in 0..12_000 {
        for value in &mut whole {
            *value = (*value ^ (*value >> 7)).wrapping_add(turn);
        }
        for value in &mut real {
            *value = *value * 0.999 + 0.1;
        }
    }
    black_box((whole, real));
}

/// Reads at addresses that do not depend on what was read.
fn read(words: &[u64], seed: u64, turns: u32) {
    let (mut at, mut sum) = (seed, 0_u64);
    for _ in 0..turns {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        for shift in [16, 28, 40] {
            #[expect(clippy::cast_possible_truncation, reason = "reduced to the length")]
            let index = (at >> shift) as usize & (words.len() - 1);
            sum = sum.wrapping_add(words[index]);
        }
    }
    black_box(sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_takes_cpu_time_and_does_its_work() {
        let mut reporter = Reporter::new();
        let (begun, probe) = (clock_gettime(ClockId::ThreadCPUTime), reporter.probe());
        let ended = clock_gettime(ClockId::ThreadCPUTime);
        let whole = (ended.tv_sec - begun.tv_sec) as f64 * 1e9 + (ended.tv_nsec - begun.tv_nsec) as f64;
        assert!(probe.iter().all(|part| *part > 0.0), "{probe:?}");
        assert!(probe.iter().sum::<f64>() < whole, "{probe:?} of {whole}");
        // 12,000 turns, and 6,000 of three reads: if they were left out, nothing would be left.
        assert!(probe[0] > 1_200.0 && probe[1] > 600.0, "{probe:?}");
    }
}
