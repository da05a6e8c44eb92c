//! What is reported of a run: one list, for tables, files, comparisons and pictures.

use corefit_sim::{Truth, VmTruth};

use super::replicate::Run;

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
pub(super) const METRICS: [Metric; 20] = [
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
    Metric {
        name: "allocated",
        meaning: "pCPUs entitled to",
        of: |vm, ran| Some(vm.time.allocated as f64 / ran),
    },
    Metric {
        name: "surplus",
        meaning: "pCPUs used beyond that",
        of: |vm, ran| Some(vm.time.surplus as f64 / ran),
    },
    Metric { name: "waiting", meaning: "vCPUs that waited", of: |vm, ran| Some(vm.waited_ns as f64 / ran) },
    Metric {
        name: "unused",
        meaning: "pCPUs that vCPUs were entitled to and left in a period",
        of: |vm, ran| Some(vm.time.unused as f64 / ran),
    },
    Metric { name: "efficiency", meaning: "worked, of the time on pCPUs", of: |vm, _| vm.efficiency() },
    Metric { name: "speedup", meaning: "vCPUs times efficiency (P1)", of: |vm, _| vm.speedup() },
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
    Metric { name: ONLINE, meaning: "vCPUs online", of: |vm, ran| Some(vm.online_ns as f64 / ran) },
    Metric {
        name: CHANGES,
        meaning: "changes of the number of vCPUs online, in a run",
        of: |vm, _| Some(vm.online_changes as f64),
    },
];

/// The last two: what a policy decides.
pub(super) const ONLINE: &str = "online";
pub(super) const CHANGES: &str = "online_changes";

/// Those that tables and files have. Where nobody decides, not what a policy does.
pub(super) fn reported(ruled: bool) -> &'static [Metric] {
    let all: &'static [Metric] = &METRICS;
    if ruled { all } else { &all[..all.len() - 2] }
}

/// A number of the host in one run.
pub(super) struct HostMetric {
    pub(super) name: &'static str,
    pub(super) meaning: &'static str,
    pub(super) of: fn(&Run) -> f64,
}

/// All of them.
pub(super) const HOST: [HostMetric; 3] = [
    HostMetric { name: "host_simulated_s", meaning: "seconds simulated", of: |run| run.ran_s },
    HostMetric {
        name: "host_competing_cores",
        meaning: "cores with two pCPUs or more busy",
        of: |run| run.competing_cores,
    },
    HostMetric { name: "host_idle_pcpus", meaning: "pCPUs that were idle", of: |run| run.idle_pcpus },
];

/// The host's number of that name.
pub(super) fn of_host(name: &str) -> Option<&'static HostMetric> {
    HOST.iter().find(|metric| metric.name == name)
}

/// The metric of that name.
pub(super) fn index(name: &str) -> Option<usize> {
    METRICS.iter().position(|metric| metric.name == name)
}

/// All names, for messages.
pub(super) fn names() -> String {
    METRICS.iter().map(|m| m.name).chain(HOST.iter().map(|m| m.name)).collect::<Vec<_>>().join(", ")
}
