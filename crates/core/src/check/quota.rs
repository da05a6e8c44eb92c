//! Caps below what vCPUs could use, and periods that are very short or long.

use super::change::{Change, Cure, Limit, to_fewer};
use super::{Context, Manager, Report, Rule, Set, Severity, Vm, count};
use crate::units::count as float;
use crate::{Cpus, Quota};

/// Shorter periods stop and start a vCPU before its caches are warm. Ours.
const SHORT_US: u64 = 10_000;
/// Longer ones keep a VM stopped for longer than peers are patient. Ours.
const LONG_US: u64 = 250_000;
/// The kernel's, and libvirt's.
const USUAL_US: u64 = 100_000;
/// The kernel takes no smaller quota (`min_cfs_quota_period`, kernel/sched/core.c), libvirt neither.
const LEAST_QUOTA_US: u64 = 1000;
/// Where the same part of a shorter period is less than that.
const NO_SHORTER: &str =
    "raise its quota first: with a shorter period it would be below 1 ms, which the kernel refuses";
/// Less of what is allotted is not worth a word. Ours.
const LOST: f64 = 0.05;
/// Quotas are rarely exact; what lies so close is meant to be equal.
const SLACK: f64 = 0.005;

pub(super) fn check(context: &Context<'_>, number: usize, report: &mut Report<'_, '_>) {
    let vm = report.vm;
    let vcpus = vm.width();
    // What is dedicated to it and used by others rests for nobody.
    let own = vm.dedicated().filter(|own| vm.exclusive || context.is_alone(number, own));
    let wanted = own.as_ref().map_or(vcpus, |pcpus| pcpus.len().min(vcpus));
    // A quota that wastes pCPUs of its own is to go; any other is what a vCPU needs of a cap.
    let each =
        limited(vm.vcpu_quota.as_ref()).filter(|_| own.is_none()).map_or(1.0, |(_, each)| each.0.min(1.0));
    if let Some((cap, pcpus)) = limited(vm.cap.as_ref()) {
        below(context, number, (cap, pcpus), (wanted, own.is_some()), each, report);
        period(vm, cap, pcpus.0 < float(vcpus) * each - SLACK, Limit::Cap, report);
    }
    if let Some((quota, each)) = limited(vm.vcpu_quota.as_ref()) {
        if let Some(own) = own.map(|pcpus| pcpus.len()).filter(|_| each.0 < 1.0 - SLACK) {
            let (all, of) = (each.0 * float(vcpus), count(own, "pCPU"));
            // Those that share a pCPU use it together.
            let text = if all < float(own) - SLACK {
                format!(
                    "each vCPU may use {each} of a pCPU, all of them {all:.2} of {of} that no other VM has: the rest idles \
                     while they are stopped"
                )
            } else {
                format!(
                    "each vCPU may use {each} of a pCPU, and is stopped then, though no other VM has their {of}"
                )
            };
            let cure = Change::Unlimited(Limit::VcpuQuota);
            report.add(Rule::QuotaBelowPinned, Severity::Warning, &quota.place, text, cure);
        }
        period(vm, quota, each.0 < 1.0 - SLACK, Limit::VcpuQuota, report);
    }
    lost(vm, report);
}

/// What is left over of a quota while it is missing elsewhere.
fn lost(vm: &Vm, report: &mut Report<'_, '_>) {
    let Some(set) = vm.vcpu_quota.as_ref().or(vm.cap.as_ref()) else { return };
    let (within, across) = (vm.timeslices.lost_within(), vm.timeslices.lost_across());
    if within.max(across) < LOST {
        return;
    }
    let (lost, where_from, where_to, shape, by_hand) = if within >= across {
        let by_hand = "write the quota to cpu.max.burst (v1: cpu.cfs_burst_us) of its control group";
        (within, "in some periods", "in others", "burst", by_hand)
    } else {
        (across, "on some vCPUs", "on others", "proportional", "give it fewer vCPUs")
    };
    let text =
        format!("{:.0} % of its CPU time is left over {where_from} and missing {where_to}", 100.0 * lost);
    let cure = match vm.timeslices.limits.iter().all(|slices| slices.fixed) {
        true => by_hand.to_owned(),
        false => format!("corefit manage --apply with shape = \"{shape}\" in [policy], or {by_hand}"),
    };
    report.add(Rule::LostTimeslices, Severity::Warning, &set.place, text, Cure::Advice(cure));
}

fn limited(set: Option<&Set<Quota>>) -> Option<(&Set<Quota>, Cpus)> {
    set.and_then(|set| Some((set, set.value.cpus()?)))
}

fn below(
    context: &Context<'_>,
    number: usize,
    (cap, Cpus(pcpus)): (&Set<Quota>, Cpus),
    (wanted, own): (usize, bool),
    each: f64,
    report: &mut Report<'_, '_>,
) {
    let vm = report.vm;
    if pcpus >= float(wanted) * each - SLACK {
        return;
    }
    let vcpus = count(vm.width(), "vCPU");
    if own {
        let text = format!(
            "{} are set aside for it, but its vCPUs may use {pcpus:.2} of them together: {:.2} go to nobody",
            count(wanted, "pCPU"),
            float(wanted) - pcpus
        );
        report.add(
            Rule::QuotaBelowPinned,
            Severity::Warning,
            &cap.place,
            text,
            Change::Unlimited(Limit::Cap),
        );
    } else if vm.is_guest() && vm.width() > 1 && vm.dedicated().is_none() {
        // Of a single vCPU nobody waits for it while it is stopped.
        let text = format!(
            "{vcpus} may use {pcpus:.2} pCPUs together: when all are busy they run for {:.0} % of each period and then all \
             stop, lock holders too",
            100.0 * pcpus / float(vm.width())
        );
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "below the number of vCPUs"
        )]
        let enough = ((pcpus + SLACK) / each).floor().max(1.0) as usize;
        let pinned = context.topology.is_some() && vm.online().any(|(_, vcpu)| vcpu.affinity.is_some());
        let cure = match pinned.then(|| context.fewer(number, enough)).flatten() {
            Some(cure) => cure,
            None if pinned => {
                Cure::advice("raise its cap: there are no pCPUs that fewer vCPUs could have alone")
            }
            None => Cure::Do(to_fewer(vm, enough)),
        };
        report.add(Rule::CapBelowVcpus, Severity::Warning, &cap.place, text, cure);
    }
}

fn period(vm: &Vm, set: &Set<Quota>, binds: bool, limit: Limit, report: &mut Report<'_, '_>) {
    let (Some(period_us), Some(quota_us)) = (set.value.period_us(), set.value.quota_us) else { return };
    if !binds || vm.manager == Manager::Xen {
        return; // Xen accounts every 30 ms, whatever the cap
    }
    let ms = |us: u64| us as f64 / 1000.0;
    let text = if period_us < SHORT_US {
        format!(
            "with a period of {} ms it is stopped and started up to {} times a second",
            ms(period_us),
            1_000_000 / period_us.max(1)
        )
    } else if period_us > LONG_US {
        // In the worst case, all of its threads use the quota up at once.
        let at_once = u64::try_from(vm.width().max(1)).unwrap_or(1);
        let threads = if limit == Limit::Cap { at_once } else { 1 };
        let stopped = period_us.saturating_sub(quota_us / threads);
        format!(
            "with a period of {} ms it can stand still for {:.0} ms at a time",
            ms(period_us),
            ms(stopped)
        )
    } else {
        return;
    };
    // The same part of a period that is neither extreme nor has a quota that the kernel refuses.
    let part = |period: u64| quota_us.saturating_mul(period) / period_us.max(1);
    let usual = [USUAL_US, LONG_US].into_iter().find(|period| part(*period) >= LEAST_QUOTA_US);
    let cure = usual
        .map_or_else(|| Cure::advice(NO_SHORTER), |usual| Change::Limited(limit, part(usual), usual).into());
    report.add(Rule::PeriodExtreme, Severity::Note, &set.place, text, cure);
}
