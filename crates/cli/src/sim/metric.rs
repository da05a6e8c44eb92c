//! What is reported of a run: one list, for tables, files, comparisons and pictures.

use corefit_sim::{Truth, VmTruth};

/// A number of one VM in one run.
pub(super) struct Metric {
    /// In files and options.
    pub(super) name: &'static str,
    /// For people.
    pub(super) meaning: &'static str,
    of: fn(&VmTruth, f64) -> Option<f64>,
}

impl Metric {
    /// `None`: it did not come to that, such as the end of a program that did not end.
    #[expect(clippy::cast_precision_loss, reason = "ns of a run")]
    pub(super) fn of(&self, vm: &VmTruth, truth: &Truth) -> Option<f64> {
        (self.of)(vm, truth.ran_ns.max(1) as f64)
    }
}

/// The end of the VM's first program.
pub(super) const TOOK: usize = 0;
/// Its progress, if it has no end.
pub(super) const MARKS: usize = 1;

/// All of them; pCPUs and rates are means over the whole run.
#[expect(clippy::cast_precision_loss, reason = "counts and ns of runs")]
pub(super) const METRICS: [Metric; 15] = [
    Metric {
        name: "took_s",
        meaning: "seconds from start to end",
        of: |vm, _| vm.apps.first().and_then(|app| app.took_ns).map(|ns| ns as f64 / 1e9),
    },
    Metric {
        name: "marks_per_s",
        meaning: "marks per second",
        of: |vm, ran| Some(vm.apps.iter().map(|app| app.marks).sum::<u64>() as f64 * 1e9 / ran),
    },
    Metric {
        name: "utilised",
        meaning: "pCPUs that worked",
        of: |vm, ran| Some(vm.time.utilised as f64 / ran),
    },
    Metric {
        name: "spinning",
        meaning: "pCPUs that spun",
        of: |vm, ran| Some(vm.time.spinning as f64 / ran),
    },
    Metric {
        name: "switching",
        meaning: "pCPUs that switched",
        of: |vm, ran| Some(vm.time.switching as f64 / ran),
    },
    Metric { name: "waiting", meaning: "vCPUs that waited", of: |vm, ran| Some(vm.waited_ns as f64 / ran) },
    Metric {
        name: "unused",
        meaning: "pCPUs entitled to and not used in their period",
        of: |vm, ran| Some(vm.time.unused as f64 / ran),
    },
    Metric { name: "efficiency", meaning: "worked, of the time on pCPUs", of: |vm, _| vm.efficiency() },
    Metric {
        name: "holder_preemptions_per_s",
        meaning: "preemptions of vCPUs that held a spin lock, per second",
        of: |vm, ran| Some(vm.counts.holder_preemptions as f64 * 1e9 / ran),
    },
    Metric {
        name: "waiter_preemptions_per_s",
        meaning: "preemptions of vCPUs that waited for a spin lock, per second",
        of: |vm, ran| Some(vm.counts.waiter_preemptions as f64 * 1e9 / ran),
    },
    Metric {
        name: "halts_per_s",
        meaning: "halts per second",
        of: |vm, ran| Some(vm.counts.halts as f64 * 1e9 / ran),
    },
    Metric {
        name: "kicks_per_s",
        meaning: "wake-ups of halted vCPUs per second",
        of: |vm, ran| Some(vm.counts.kicks as f64 * 1e9 / ran),
    },
    Metric {
        name: "ple_exits_per_s",
        meaning: "exits because of spinning, per second",
        of: |vm, ran| Some(vm.counts.ple_exits as f64 * 1e9 / ran),
    },
    Metric {
        name: "migrations_per_s",
        meaning: "vCPUs put on another pCPU than before, per second",
        of: |vm, ran| Some(vm.counts.migrations as f64 * 1e9 / ran),
    },
    Metric {
        name: "stacked",
        meaning: "vCPUs that waited for one of their own VM",
        of: |vm, ran| Some(vm.counts.stacked_ns as f64 / ran),
    },
];

/// The metric of that name.
pub(super) fn index(name: &str) -> Option<usize> {
    METRICS.iter().position(|metric| metric.name == name)
}

/// All names, for messages.
pub(super) fn names() -> String {
    METRICS.map(|metric| metric.name).join(", ")
}
