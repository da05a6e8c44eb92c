//! Which numbers of vCPUs come into question.

use super::super::Subject;
use crate::Cpus;
use crate::decide::Why;

/// VCPU-Bal's count.
pub(super) fn bal(subject: &Subject<'_>, available: u32) -> u32 {
    subject.vcpu_bal().map_or_else(|| subject.clamp(available), |bal| bal.count)
}

/// Why it has that; of who has an unknown part, what is available counts as his.
pub(super) fn bal_why(subject: &Subject<'_>, part: f64) -> Why {
    subject.vcpu_bal().map_or(Why::Share { share: Cpus(part) }, |bal| bal.why)
}

/// Who is entitled to less than this part with other vCPUs loses by them.
pub(super) const LOSES: f64 = 0.95;
/// But work is measured: only where hardly anything would be left it is not even tried.
pub(super) const LOSES_MUCH: f64 = 0.5;

/// Whether so many vCPUs are entitled to less than this part of what `than` of them are.
pub(super) fn loses(count: u32, than: u32, part: f64, entitled: &dyn Fn(u32) -> Option<f64>) -> bool {
    count > than && entitled(count).zip(entitled(than)).is_some_and(|(more, less)| more < part * less)
}

/// Counts that may be best: what there is, VCPU-Bal's and all vCPUs; all but one, three quarters and half of all (programs
/// start as many threads as they see vCPUs, or a part of them); what is available, and, if that turns out to be too many
/// ([`race`]), one less and three quarters of it; one, where VCPU-Bal's are two. `None`: not for this VM. `few`: only the first three. A cap that is all that limits a VM
/// stops its vCPUs, but none for another: VCPU-Bal's number or all were best then, or within 2 % of it, in 60 of 60 cases (docs/sizing.md).
pub(super) fn candidates(
    subject: &Subject<'_>,
    available: u32,
    few: bool,
    entitled: &dyn Fn(u32) -> Option<f64>,
) -> Vec<Option<u32>> {
    let (least, most) = (subject.clamp(subject.least), subject.clamp(subject.most));
    let own = subject.clamp(available);
    let hurts = loses(most, own, LOSES_MUCH, entitled);
    let bal = bal(subject, available);
    let may = |n: u32| !hurts || n <= own || n == bal || !loses(n, own, LOSES_MUCH, entitled);
    let sure = [subject.clamp(subject.online), bal, most].map(|n| may(n).then_some(n));
    let others = [most - 1, most * 3 / 4, most / 2, own, own - 1, own * 3 / 4];
    let others = others.map(|n| ((least..=most).contains(&n) && n >= own / 2 && may(n)).then_some(n));
    let one = (bal == 2 && least == 1).then_some(1);
    sure.into_iter().chain(others.into_iter().chain([one]).filter(|_| !few)).collect()
}
