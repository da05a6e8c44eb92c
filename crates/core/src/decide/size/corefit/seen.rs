//! What a look at a VM says to the policy, and the way upward that it may climb.

use std::time::Duration;

use super::counts::{LOSES, bal, loses};
use super::memory::Mark;
use super::shape::Climb;
use super::stat::Look;
use super::{FULL, Subject};
use crate::contest::cap;

/// What a VM did; `None` where nobody counted.
pub(super) fn look(subject: &Subject<'_>) -> Option<Look> {
    let (used, part) = (subject.used.unwrap_or(0.0), subject.available.unwrap_or(0.0));
    // Who waits wants more than it has.
    let wants = subject.wanted().unwrap_or(0.0);
    Some(Look {
        online: subject.online,
        units: subject.rate? * subject.over.as_secs_f64(),
        used,
        part,
        withheld: if is_capped(subject) && wants >= part { part - used } else { 0.0 },
    })
}

/// Whether its own cap is all that limits it.
pub(super) fn is_capped(subject: &Subject<'_>) -> bool {
    subject.available.is_some_and(|part| cap(subject.vm.seen.quota.as_ref()) <= part * 1.001)
}

/// What a VM does; what its own quota lets pass for a while is left out. (Of what its groups and single vCPUs are limited to nothing is
/// known here.)
pub(super) fn mark(subject: &Subject<'_>, value: f64, used: f64) -> Mark {
    Mark { value, used: used.min(cap(subject.vm.seen.quota.as_ref())) }
}

/// Work per second, scaled down where more than the own part was used.
pub(super) fn worth(rate: f64, used: f64, part: f64) -> f64 {
    if used > part && used > 0.0 { rate * part / used } else { rate }
}

/// The way upward from VCPU-Bal's count, as far as that costs no entitlement.
pub(super) fn climb(
    subject: &Subject<'_>,
    available: u32,
    window: Duration,
    entitled: &dyn Fn(u32) -> Option<f64>,
) -> Climb {
    let bal = bal(subject, available);
    let most = subject.clamp(subject.most);
    let most = if loses(most, bal, LOSES, entitled) {
        (bal..=most).take_while(|&n| !loses(n, bal, LOSES, entitled)).last().unwrap_or(bal)
    } else {
        most
    };
    // Where each vCPU has a pCPU of its own, more than that is no matter of weight.
    let own = entitled(bal).filter(|own| subject.by_vcpus && *own < FULL * subject.each * f64::from(bal));
    let part = |n: u32| own.zip(entitled(n)).map_or(1.0, |(own, part)| (part / own.max(1e-9)).max(1.0));
    let parts = if own.is_some() { (bal..=most).map(part).collect() } else { Vec::new() };
    Climb::new(bal, most, 2 * window, parts)
}
