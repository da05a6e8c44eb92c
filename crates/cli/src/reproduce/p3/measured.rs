//! What was measured on our machine with one lock and more threads than CPUs, and the same with simulated locks: is the order
//! the same? Before the simulation says anything about P3's host.
//!
//! Measured in a program: `corefit bench lock --threads 64 --sections short` on 2 CPUs, glibc's and the default in 10 runs of 10 s,
//! the others in 3 of 2 s. In a guest kernel: the table of docs/guest-kernel.md, with interrupts on (its `oticket` is ours, its
//! `paper` P3's), 8 writers of locktorture on 8 vCPUs of 2 pCPUs, whose sections are taken to last 1 us, with 1 us between.

use anyhow::Result;
use corefit_sim::Spec;

use super::super::testbed::{marks_per_s, run, spec};
use super::super::{Item, Paper, Rule};

const LOCKS: &str = include_str!("../../../../../scenarios/measured-locks.toml");
const KERNEL: &str = "forever { compute 1us exp kernel l { compute 1us } mark }";
/// glibc's mutex: who is woken tries again, and others may come first.
const MUTEX: &str = "forever { compute 40ns exp mutex l { compute 20ns } mark }";
const PROGRAM: &str = "lengths of locktorture's sections (a guess)";

/// Simulated locks, in a program and then in a kernel.
const PROGRAMS: [&str; 6] = ["mutex", "corefit", "corefit-fifo", "pv-ticket", "oticket", "ticket"];
const KERNELS: [&str; 6] = ["corefit", "test-and-set", "corefit-fifo", "pv-ticket", "oticket", "ticket"];

/// The names of the two that are compared, with which places in the lists they have, and how many times as much the first
/// did here.
type Pair = (&'static str, usize, usize, f64);

const IN_A_PROGRAM: [Pair; 4] = [
    ("glibc's mutex over fifo", 0, 2, 92.0),
    ("default over fifo", 1, 2, 83.0),
    ("fifo over ticket", 2, 5, 3110.0),
    ("default over ticket", 1, 5, 260_000.0),
];
const IN_A_KERNEL: [Pair; 5] = [
    ("oticket of ours over test-and-set", 0, 1, 2.46),
    ("test-and-set over fifo", 1, 2, 18.0),
    ("fifo over pv-ticket", 2, 3, 9.71),
    ("fifo over P3's oticket", 2, 4, 8.9),
    ("fifo over ticket", 2, 5, 1.44),
];

pub(super) fn items() -> Result<Vec<Item>> {
    let mut specs = vec![];
    for lock in PROGRAMS {
        specs.push(match lock {
            "mutex" => host("ticket", &[("vm.threads.program", MUTEX)])?,
            _ => host(lock, &[])?,
        });
    }
    for lock in KERNELS {
        let sets =
            [("vm.threads.program", KERNEL), ("vm.threads.vcpus", "8"), ("vm.threads.corefit_cpus", "0")];
        specs.push(host(lock, &sets)?);
    }
    let speeds: Vec<f64> = run(&specs, "P3, measured locks")?.iter().map(marks_per_s).collect();
    let (program, kernel) = speeds.split_at(PROGRAMS.len());
    let item = |figure, of: &[f64], (what, a, b, measured): Pair| {
        let what = format!("{what} (measured here: {measured})");
        Item::new((Paper::P3, figure), what, None, Some(of[a] / of[b]), &Rule::AtLeast(1.0)).unpublished()
    };
    let mut items: Vec<Item> =
        IN_A_PROGRAM.into_iter().map(|pair| item("64 threads, 2 CPUs", program, pair)).collect();
    let in_a_kernel =
        IN_A_KERNEL.into_iter().map(|pair| item("8 vCPUs, 2 pCPUs", kernel, pair).fitted(PROGRAM));
    items.extend(in_a_kernel);
    // These two do as little as each other here.
    let what = "P3's oticket over pv-ticket (measured here: 1.09)";
    let even = Item::new(
        (Paper::P3, "8 vCPUs, 2 pCPUs"),
        what,
        None,
        Some(kernel[4] / kernel[3]),
        &Rule::Between(0.5, 2.0),
    );
    items.push(even.fitted(PROGRAM).unpublished());
    Ok(items)
}

fn host(lock: &str, sets: &[(&str, &str)]) -> Result<Spec> {
    let mut all: Vec<(&str, String)> = vec![("vm.threads.lock", lock.to_owned())];
    all.extend(sets.iter().map(|(key, value)| (*key, (*value).to_owned())));
    spec(LOCKS, &all)
}
