//! What a reading costs here; a measurement, run by
//! `cargo test --release -p corefit-linux --test captures -- --ignored --nocapture`.

use std::time::Duration;

use corefit_core::estimate;
use corefit_linux::{Root, read};

/// CPU time of this thread, so that a busy machine does not matter.
fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.try_into().unwrap(), now.tv_nsec.try_into().unwrap())
}

#[test]
#[ignore = "a measurement"]
fn cost_of_a_reading() {
    const ROUNDS: u32 = 200;
    let (root, pid) = (Root::live(), std::process::id());
    let first = read(&root, pid).unwrap();
    let began = cpu_time();
    for _ in 0..ROUNDS {
        read(&root, pid).unwrap();
    }
    let reading = (cpu_time() - began) / ROUNDS;
    let later = read(&root, pid).unwrap();
    let began = cpu_time();
    for _ in 0..ROUNDS {
        std::hint::black_box(estimate(&first, &later));
    }
    let judging = (cpu_time() - began) / ROUNDS;
    let others: usize = later.groups.iter().map(|g| g.others.len()).sum();
    println!("reading {reading:?}, estimate {judging:?}; {} groups, {others} others", later.groups.len());
    assert!(later.at > first.at);
}
