//! Policies that are formulas: nothing is remembered.

use super::{Choice, Races, Size, Subject};
use crate::Cpus;
use crate::decide::Why;

/// As many as it had before it was sized, within its rule, or as arbitration gives it (XenMVM: what is asked for and granted is the size).
#[derive(Debug)]
pub(crate) struct AsGranted;

impl Size for AsGranted {
    fn choose(&mut self, subject: &Subject<'_>, _: &dyn Fn(u32) -> Option<f64>, _: &Races) -> Choice {
        let Some(granted) = subject.granted else {
            return allowed(subject, subject.had, Why::Unsized);
        };
        subject.bounded(subject.vcpus(f64::from(granted)), Why::Granted { granted })
    }
}

/// `VCPU-Bal` (Song et al., `APSys` 2013; P2 section 2): the part of all pCPUs that its weight gives it, within cap and
/// affinity. The papers do not say how it is rounded; here up, so that nothing of the part is lost.
#[derive(Debug)]
pub(crate) struct VcpuBal;

impl Size for VcpuBal {
    fn choose(&mut self, subject: &Subject<'_>, _: &dyn Fn(u32) -> Option<f64>, _: &Races) -> Choice {
        subject.vcpu_bal().unwrap_or_else(|| keep(subject))
    }
}

/// vCPUs of which more than this part is used or waits are busy. Ours.
const BUSY: f64 = 0.95;

/// `vScale` (Cheng et al., `EuroSys` 2016; P2 section 6): as `VCPU-Bal`, but what others leave of theirs is passed on
/// to those who want it, and who wants less has fewer.
#[derive(Debug)]
pub(crate) struct Vscale;

impl Size for Vscale {
    fn choose(&mut self, subject: &Subject<'_>, _: &dyn Fn(u32) -> Option<f64>, _: &Races) -> Choice {
        let Some(available) = subject.available else { return keep(subject) };
        // One that keeps all its vCPUs busy may want more than it can show. (Who uses little may be forecast to want all that it has: AISD's one.)
        let busy = BUSY * f64::from(subject.online) * subject.each;
        let waits = subject.vm.activity.waiting.map_or(0.0, |waiting| waiting.0);
        let shows = |used: f64| used + waits > busy;
        let idle = subject.wants.filter(|wants| *wants <= busy || !subject.used.is_none_or(shows));
        match idle.filter(|wants| *wants < available) {
            Some(wants) => {
                let why = Why::Wants { wants: Cpus(wants), available: Cpus(available) };
                subject.bounded(subject.vcpus(wants), why)
            }
            None => subject.bounded(subject.vcpus(available), Why::Available { available: Cpus(available) }),
        }
    }
}

/// Nothing is known: it keeps what it has, as far as it may.
pub(super) fn keep(subject: &Subject<'_>) -> Choice {
    allowed(subject, subject.online, Why::Unknown)
}

/// So many, which nobody judged to be right, as far as it may.
fn allowed(subject: &Subject<'_>, count: u32, why: Why) -> Choice {
    let choice = subject.bounded(count, why);
    match choice.why {
        Why::Bounded { least, most, .. } => Choice { why: Why::Allowed { least, most }, ..choice },
        _ => choice,
    }
}
