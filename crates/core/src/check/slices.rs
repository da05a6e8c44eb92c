//! Slices of the fair scheduler that differ within a VM, or are very long.

use super::change::Cure;
use super::{Report, Rule, Severity};
use crate::machine::FairSlices;

/// The longest that needs no word, ns; the kernel's own are up to 3 ms. Ours.
const LONG_NS: u64 = 10_000_000;
/// Slices that differ by less are about the same. Ours.
const FACTOR: u64 = 2;

pub(super) fn check(report: &mut Report<'_, '_>) {
    let Some(FairSlices { base_ns, least_ns, most_ns, .. }) = report.vm.slices else { return };
    let ms = |ns: u64| std::time::Duration::from_micros(ns / 1000);
    let text = if most_ns > FACTOR * least_ns {
        format!("its threads have slices from {:?} to {:?}", ms(least_ns), ms(most_ns))
    } else if most_ns > LONG_NS {
        format!(
            "its threads have slices of {:?}: who shares their pCPUs and wakes up waits that long",
            ms(most_ns)
        )
    } else {
        return;
    };
    let cure = if most_ns > base_ns || least_ns < base_ns {
        "take back what was set with sched_setattr (sched_runtime 0 is the scheduler's own), or set the same for all"
    } else {
        "write the kernel's own, at most 3000000, to /sys/kernel/debug/sched/base_slice_ns"
    };
    let place = report.vm.place.clone();
    report.add(Rule::SliceExtreme, Severity::Note, &place, text, Cure::Advice(cure.into()));
}

#[cfg(test)]
mod tests {
    use super::super::{Subject, Vm, check};
    use super::*;

    fn found(base_ns: u64, least_ns: u64, most_ns: u64) -> Option<(String, String)> {
        let slices = Some(FairSlices { base_ns, least_ns, most_ns, without: 0 });
        let subject = Subject { vms: vec![Vm { slices, ..Vm::default() }], ..Subject::default() };
        let mut findings = check(&subject);
        findings.retain(|finding| finding.rule == Rule::SliceExtreme);
        findings.pop().map(|finding| (finding.text, finding.cure))
    }

    #[test]
    fn slices_that_differ_or_are_long_are_found_with_where_that_is_set() {
        assert_eq!(found(2_800_000, 2_800_000, 2_800_000), None);
        assert_eq!(found(2_800_000, 100_037, 100_037), None, "short ones are somebody's choice");
        assert_eq!(found(2_800_000, 2_800_000, 5_600_000), None);
        let (text, cure) = found(2_800_000, 100_037, 2_800_000).unwrap();
        assert_eq!(text, "its threads have slices from 100µs to 2.8ms");
        assert!(cure.contains("sched_setattr"));
        let (text, cure) = found(24_000_000, 24_000_000, 24_000_000).unwrap();
        assert!(text.starts_with("its threads have slices of 24ms") && cure.contains("base_slice_ns"));
        assert!(found(2_800_000, 50_000_000, 50_000_000).unwrap().1.contains("sched_setattr"));
    }
}
