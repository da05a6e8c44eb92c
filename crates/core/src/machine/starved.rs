//! VMs that wait for pCPUs that are theirs.
//!
//! A scheduler that keeps to weights gives who waits what it is entitled to, if not in each millisecond, then over a
//! second. Where it does not, the figures of this crate do not hold, and who reads them should know. It was seen on Linux
//! 6.18, where a defect moves the group that runs ahead of others whenever its weight on that pCPU changes: one of three VMs
//! had a pCPU for 20 s while two waited (docs/model.md, "Where the kernel deviates").

use super::{Activity, HostEstimate, VcpuState, VmEstimate};
use crate::{Cpus, Quota};

/// Less than this part of what is available is more than chance. Ours: with the kernel's balancing of few
/// threads, windows of a second gave two thirds at least.
const PART: f64 = 0.5;
/// pCPUs that have to be missing. Ours.
const LEAST: f64 = 0.1;
/// It waits for this part of them at least: a kernel adds what a vCPU waited when that gets on a pCPU, so in a look the sum is off by a
/// timeslice of each other one. Ours.
const MOST: f64 = 0.9;

/// What a VM got that starves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Starved {
    /// pCPUs that it used.
    pub used: Cpus,
    /// pCPUs that are available to it.
    pub available: Cpus,
}

impl VmEstimate {
    /// What it got, if that is less than half of what is available to it, and its vCPUs waited for nearly all of the rest. `None` of a control
    /// group: its threads are counted together, and may wait for each other though they do not want more on average.
    #[must_use]
    pub fn starved(&self) -> Option<Starved> {
        if self.seen.is_group() {
            return None;
        }
        let (available, used) = (self.available?, self.activity.used?);
        // Helpers wait for their own, and a vCPU that its own quota stops waits for that.
        let own =
            |vcpu: &VcpuState| vcpu.quota.as_ref().and_then(Quota::cpus).map_or(1.0, |cpus| cpus.0.min(1.0));
        let waits = |(seen, did): (&VcpuState, &Activity)| {
            Some(did.waiting?.0.min((own(seen) - did.used.map_or(0.0, |used| used.0)).max(0.0)))
        };
        let waiting = Cpus(self.seen.vcpus.iter().zip(&self.vcpus).filter_map(waits).sum());
        let missing = available.0 - used.0;
        let starves = used.0 < PART * available.0 && missing >= LEAST && waiting.0 >= MOST * missing;
        starves.then_some(Starved { used, available })
    }
}

impl HostEstimate {
    /// What should be known of those who starve.
    #[must_use]
    pub fn starving(&self) -> Option<String> {
        let starved = |vm: &VmEstimate| {
            let Starved { used, available } = vm.starved()?;
            Some(format!("{} had {used} of {available}", vm.seen.name))
        };
        let all: Vec<String> = self.vms.iter().filter_map(starved).collect();
        let (first, more) = all.split_first()?;
        let more = if more.is_empty() { String::new() } else { format!(" (and {} more)", more.len()) };
        Some(format!(
            "the host's scheduler did not keep to weights: {first} pCPUs that were available to it, and waited{more}. \
             Linux 6.13 to 6.19 has a defect that does so for seconds; docs/model.md, \"Where the kernel deviates\", \
             says what helps"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Counters, Pcpu, Snapshot, VcpuState, VmId, VmState, estimate};
    use crate::{CpuId, Quota, Time, Weight};

    const SECOND: u64 = 1_000_000_000;

    /// One pCPU, two equal VMs with a vCPU each that want all of it, and what they had of it in a second.
    fn host(had: [f64; 2], waited: [f64; 2]) -> Option<String> {
        weighed([1024.0, 1024.0], had, waited)
    }

    /// VMs of such weights.
    fn weighed(weights: [f64; 2], had: [f64; 2], waited: [f64; 2]) -> Option<String> {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "parts of a second")]
        let ns = |part: f64| Some((part * SECOND as f64) as u64);
        let look = |at: u64, [a, b]: [Counters; 2]| {
            let vm = |name: &str, weight: f64, counters: Counters| VmState {
                id: VmId(name.into()),
                name: name.into(),
                weight: Some(Weight(weight)),
                vcpus: vec![VcpuState { online: true, counters, ..VcpuState::default() }],
                ..VmState::default()
            };
            let pcpus = vec![Pcpu { id: CpuId(0), online: true, ..Pcpu::default() }];
            Snapshot {
                at: Time(at),
                pcpus,
                vms: vec![vm("a", weights[0], a), vm("b", weights[1], b)],
                ..Snapshot::default()
            }
        };
        let counters = |n: usize| Counters { run_ns: ns(had[n]), wait_ns: ns(waited[n]), runs: None };
        let zero = Counters { run_ns: Some(0), wait_ns: Some(0), runs: None };
        let (before, after) = (look(0, [zero; 2]), look(SECOND, [counters(0), counters(1)]));
        estimate(&before, &after).unwrap().starving()
    }

    #[test]
    fn who_waits_for_most_of_its_part_starves() {
        let note = host([0.9, 0.1], [0.1, 0.9]).unwrap();
        assert!(note.contains("b had 0.10 of 0.50 pCPUs that were available to it, and waited."), "{note}");
        assert_eq!(host([0.6, 0.4], [0.4, 0.6]), None, "chance");
        assert_eq!(host([0.9, 0.1], [0.1, 0.0]), None, "it does not want more");
        assert_eq!(host([0.95, 0.02], [0.02, 0.05]), None, "a daemon that waits now and then");
    }

    /// The kernel has not added yet what it waits for at the end of the second.
    #[test]
    fn who_should_have_all_of_its_vcpus_starves_though_its_last_wait_is_not_counted_yet() {
        let note = weighed([2.0, 10_000.0], [0.7, 0.3], [0.3, 0.66]).unwrap();
        assert!(note.contains("b had 0.30 of 1.00"), "{note}");
        assert_eq!(weighed([2.0, 10_000.0], [0.7, 0.3], [0.3, 0.4]), None, "it idles, too");
    }

    /// 64 threads that wake up together once a second for 10 ms, on four pCPUs of which others have the rest.
    #[test]
    fn threads_of_a_group_that_wait_for_each_other_do_not_starve() {
        let look = |s: u64| {
            let counters =
                |run: u64, wait: u64| Counters { run_ns: Some(run * s), wait_ns: Some(wait * s), runs: None };
            let vm = |name: &str, run, wait| VmState {
                name: name.into(),
                id: VmId(name.into()),
                vcpus: vec![VcpuState { online: true, ..VcpuState::default() }; 4],
                whole: Some(counters(run, wait)),
                ..VmState::default()
            };
            let vms = vec![vm("a", 640_000_000, 4_800_000_000), vm("b", 3_360_000_000, 0)];
            let pcpus = (0..4).map(|id| Pcpu { id: CpuId(id), online: true, ..Pcpu::default() }).collect();
            Snapshot { at: Time(s * SECOND), pcpus, vms, ..Snapshot::default() }
        };
        assert_eq!(estimate(&look(0), &look(1)).unwrap().starving(), None);
    }

    /// Four vCPUs with a quota of a quarter of a pCPU each, one of them busy: it waits for its quota, not for the kernel.
    #[test]
    fn who_waits_for_its_own_quota_does_not_starve() {
        let look = |s: u64| {
            let ns = |hundredths: u64| Some(hundredths * s * SECOND / 100);
            let vcpu = |run, wait| VcpuState {
                online: true,
                counters: Counters { run_ns: ns(run), wait_ns: ns(wait), runs: None },
                quota: Some(Quota {
                    quota_us: Some(25_000),
                    period_us: 100_000,
                    burst_us: 0,
                    source: String::new(),
                }),
                ..VcpuState::default()
            };
            let vcpus = vec![vcpu(25, 75), vcpu(1, 0), vcpu(1, 0), vcpu(1, 0)];
            let vm = VmState { name: "a".into(), vcpus, ..VmState::default() };
            let pcpus = (0..4).map(|id| Pcpu { id: CpuId(id), online: true, ..Pcpu::default() }).collect();
            Snapshot { at: Time(s * SECOND), pcpus, vms: vec![vm], ..Snapshot::default() }
        };
        let seen = estimate(&look(0), &look(1)).unwrap();
        assert!(seen.vms[0].available.is_some_and(|cpus| cpus.0 > 0.9), "{:?}", seen.vms[0].available);
        assert_eq!(seen.starving(), None);
    }
}
