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
    /// `None`: it did not come to that, such as the end of a program that did not end, or of the warm-up.
    pub(super) fn of(&self, vm: &VmTruth, truth: &Truth) -> Option<f64> {
        // Over no time at all there is no mean.
        (self.of)(vm, truth.ran_ns as f64).filter(|number| number.is_finite())
    }
}

const fn metric(name: &'static str, meaning: &'static str, of: fn(&VmTruth, f64) -> Option<f64>) -> Metric {
    Metric { name, meaning, of }
}

/// The end of the VM's first program.
pub(super) const TOOK: usize = 0;
/// Its progress, if it has no end.
pub(super) const MARKS: usize = 1;

/// All of them; pCPUs and rates are means over the run after its warm-up, of marks since the program's start.
pub(super) const METRICS: [Metric; 20] = [
    metric("took_s", "seconds from start to end", |vm, _| {
        vm.apps.first().and_then(|app| app.took_ns).map(|ns| ns as f64 / 1e9)
    }),
    metric("marks_per_s", "marks per second", |vm, _| vm.marks_per_s()),
    metric("utilised", "pCPUs that worked", |vm, ran| Some(vm.time.utilised as f64 / ran)),
    metric("spinning", "pCPUs that spun", |vm, ran| Some(vm.time.spinning as f64 / ran)),
    metric("switching", "pCPUs that switched", |vm, ran| Some(vm.time.switching as f64 / ran)),
    metric("allocated", "pCPUs entitled to", |vm, ran| Some(vm.time.allocated as f64 / ran)),
    metric("surplus", "pCPUs used beyond that", |vm, ran| Some(vm.time.surplus as f64 / ran)),
    metric("waiting", "vCPUs that waited", |vm, ran| Some(vm.waited_ns as f64 / ran)),
    metric("unused", "pCPUs that vCPUs were entitled to and left in a period", |vm, ran| {
        Some(vm.time.unused as f64 / ran)
    }),
    metric("efficiency", "worked, of the time on pCPUs", |vm, _| vm.efficiency()),
    metric("speedup", "vCPUs times efficiency (P1)", |vm, _| vm.speedup()),
    metric(
        "holder_preemptions_per_s",
        "preemptions of vCPUs that held a spin lock, per second",
        |vm, ran| Some(vm.counts.holder_preemptions as f64 * 1e9 / ran),
    ),
    metric(
        "waiter_preemptions_per_s",
        "preemptions of vCPUs that waited for a spin lock, per second",
        |vm, ran| Some(vm.counts.waiter_preemptions as f64 * 1e9 / ran),
    ),
    metric("halts_per_s", "halts per second", |vm, ran| Some(vm.counts.halts as f64 * 1e9 / ran)),
    metric("kicks_per_s", "wake-ups of halted vCPUs per second", |vm, ran| {
        Some(vm.counts.kicks as f64 * 1e9 / ran)
    }),
    metric("ple_exits_per_s", "exits because of spinning, per second", |vm, ran| {
        Some(vm.counts.ple_exits as f64 * 1e9 / ran)
    }),
    metric("migrations_per_s", "vCPUs put on another pCPU than before, per second", |vm, ran| {
        Some(vm.counts.migrations as f64 * 1e9 / ran)
    }),
    metric("stacked", "vCPUs that waited for one of their own VM", |vm, ran| {
        Some(vm.counts.stacked_ns as f64 / ran)
    }),
    metric(ONLINE, "vCPUs online", |vm, ran| Some(vm.online_ns as f64 / ran)),
    metric(CHANGES, "changes of the number of vCPUs online, in a run", |vm, ran| {
        (ran > 0.0).then_some(vm.online_changes as f64)
    }),
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
    /// `None` where nothing was counted.
    pub(super) of: fn(&Run) -> Option<f64>,
}

/// All of them.
pub(super) const HOST: [HostMetric; 3] = [
    HostMetric { name: "host_simulated_s", meaning: "seconds simulated", of: |run| Some(run.ran_s) },
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
