//! Whose value a setting has.

use corefit_core::decide::Action;
use corefit_core::machine::{Lever, LeverKind, Limit, Value};
use corefit_core::{CpuSet, Cpus, Weight};

use crate::manage::journal::Entry;

/// A kernel's or an agent's rounding of a number.
const ROUNDING: f64 = 0.002;

/// Whether the guest has to answer for a setting, which it may never do.
pub(in crate::manage) fn is_guests(lever: Lever) -> bool {
    matches!(lever, Lever::Online | Lever::Told)
}

/// Whether a VM's setting is written by a call of libvirt's, which may be done later than anybody waits for: control groups and threads
/// answer at once.
pub(super) fn by_call(lever: Lever) -> bool {
    matches!(lever.kind(), LeverKind::Weight | LeverKind::Quota | LeverKind::Affinity | LeverKind::Nodes)
}

/// Whether a setting is written in parts, each of which a kill may leave: a guest's vCPUs one by one, a limit's quota, period and
/// burst.
pub(super) fn in_parts(lever: Lever) -> bool {
    matches!(lever.kind(), LeverKind::Online | LeverKind::Quota | LeverKind::VcpuQuota)
}

/// Whether a setting has a value that we gave it. While it is written in parts, what is between the original and what we wrote is
/// ours, too; and so is whatever a guest is told, for every user of it may write there.
pub(super) fn is_ours(entry: &Entry, current: &Value) -> bool {
    if entry.lever == Lever::Told || entry.wrote.iter().any(|wrote| same(wrote, current)) {
        return true;
    }
    let ends = || [&entry.original].into_iter().chain(&entry.wrote);
    match current {
        _ if !entry.pending => false,
        Value::Vcpus(current) => {
            let set = |value: &Value| if let Value::Vcpus(set) = value { Some(set.clone()) } else { None };
            let ends: Vec<CpuSet> = ends().filter_map(set).collect();
            let all = ends.iter().fold(CpuSet::default(), |all, set| all.union(set));
            let Some(last) = ends.last() else { return false };
            let least = ends.iter().fold(last.clone(), |least, set| least.intersection(set));
            current.is_within(&all) && least.is_within(current)
        }
        Value::Limit(current) => {
            let limit = |value: &Value| if let Value::Limit(limit) = value { Some(*limit) } else { None };
            let any = |is: &dyn Fn(Limit) -> bool| ends().filter_map(limit).any(is);
            // Between two limits of a group there may be none (`set_limit` of corefit-linux).
            (current.quota_us.is_none() || any(&|end| end.quota_us == current.quota_us))
                && any(&|end| end.period_us == current.period_us)
                && any(&|end| end.burst_us == current.burst_us)
        }
        _ => false,
    }
}

/// Whether vCPUs are online of which we made it fewer, or put it back to fewer: a guest that is late may yet let go of them.
pub(super) fn may_shrink(entry: &Entry, current: &Value) -> bool {
    let Value::Vcpus(current) = current else { return false };
    let mut asked = entry.wrote.iter().chain([&entry.original]);
    asked.any(|asked| matches!(asked, Value::Vcpus(asked) if !current.is_within(asked)))
}

/// The same setting with vCPUs that it never was about, and that are online now: somebody plugged them in, and they stay, whatever is made
/// of the others. `None` if there are none.
pub(super) fn grown(entry: &Entry, current: &Value) -> Option<Entry> {
    let set = |value: &Value| if let Value::Vcpus(set) = value { set.clone() } else { CpuSet::default() };
    let ends = [&entry.original].into_iter().chain(&entry.wrote);
    let known = ends.fold(CpuSet::default(), |all, value| all.union(&set(value)));
    let more = set(current).difference(&known);
    if more.is_empty() {
        return None;
    }
    let with = |value: &Value| Value::Vcpus(set(value).union(&more));
    // He may plug them out again.
    let wrote = entry.wrote.iter().cloned().chain(entry.wrote.iter().map(with)).collect();
    Some(Entry { original: with(&entry.original), wrote, ..entry.clone() })
}

/// The same setting without vCPUs that somebody plugged out, whatever is made of the others; `left`: what of those that there were can be
/// had. `None` if it is about no vCPUs.
pub(super) fn shrunk(entry: &Entry, left: &Value) -> Option<Entry> {
    let (Value::Vcpus(original), Value::Vcpus(left)) = (&entry.original, left) else { return None };
    let out = original.difference(left);
    let without = |value: &Value| match value {
        Value::Vcpus(set) => Value::Vcpus(set.difference(&out)),
        value => value.clone(),
    };
    let wrote = entry.wrote.iter().map(without).collect();
    Some(Entry { original: without(&entry.original), wrote, ..entry.clone() })
}

/// The same limit in a control group that was made anew, as where a VM arrives: libvirt knows of no burst, so it has none there, whoever gave it
/// one before. `None` if it saves something now.
pub(super) fn without_burst(entry: &Entry, current: &Value) -> Option<Entry> {
    let Value::Limit(Limit { burst_us: 0, .. }) = current else { return None };
    let without = |value: &Value| match value {
        Value::Limit(limit) => Value::Limit(Limit { burst_us: 0, ..*limit }),
        value => value.clone(),
    };
    let wrote: Vec<Value> = entry.wrote.iter().map(without).collect();
    // Where we took it away it may be the same group.
    let ours = entry.wrote.iter().zip(&wrote).any(|(wrote, without)| wrote == without);
    let original = if ours { entry.original.clone() } else { without(&entry.original) };
    Some(Entry { original, wrote, ..entry.clone() })
}

/// What a limit that somebody else changed would be with the burst that it had before us, if its burst is still ours: libvirt shows no
/// burst, so who sets a quota by it neither means that nor can undo it, and the kernel refuses a quota below it.
pub(super) fn rest_of_ours(entry: &Entry, current: &Value) -> Option<Value> {
    let (Value::Limit(was), Value::Limit(now)) = (&entry.original, current) else { return None };
    let ours = |wrote: &Value| matches!(wrote, Value::Limit(wrote) if wrote.burst_us == now.burst_us);
    let burst_us = now.quota_us.map_or(was.burst_us, |quota| was.burst_us.min(quota));
    (now.burst_us != burst_us && entry.wrote.iter().any(ours))
        .then_some(Value::Limit(Limit { burst_us, ..*now }))
}

/// Whether somebody made a setting what it was before us.
pub(super) fn somebody_put_back(entry: &Entry, current: &Value) -> bool {
    may_be_back(entry) && same(&entry.original, current)
}

/// Whether it is somebody else who made a setting what it was before us, if it is that. Of what changes by itself as vCPUs, guests and
/// threads come and go, nobody can tell.
pub(super) fn may_be_back(entry: &Entry) -> bool {
    let stays = matches!(
        entry.lever.kind(),
        LeverKind::Weight
            | LeverKind::HelperWeight
            | LeverKind::Quota
            | LeverKind::Affinity
            | LeverKind::Nodes
    );
    let ours = entry.pending || entry.wrote.iter().any(|wrote| same(wrote, &entry.original));
    stays && !ours
}

/// Whether a first change goes by what somebody changed since: a look may show a group's settings as they were some seconds ago. A weight
/// or a limit is changed in proportion to what it was; of a cpuset that is made smaller nothing may come that is no part of it any more
/// (empty, it is that of the group above).
pub(super) fn is_outdated(action: &Action, current: &Value) -> bool {
    let (Some(from), to) = (&action.from, &action.to) else { return false };
    match (action.lever.kind(), from, to, current) {
        (LeverKind::Weight | LeverKind::Quota | LeverKind::VcpuQuota, ..) => !same(from, current),
        (LeverKind::Affinity, Value::Pcpus(from), Value::Pcpus(to), Value::Pcpus(now)) => {
            !now.is_empty() && to.is_within(from) && !to.is_within(now)
        }
        _ => false,
    }
}

/// Whether two values are the same, but for rounding.
pub(super) fn same(a: &Value, b: &Value) -> bool {
    let near = |a: f64, b: f64| (a - b).abs() <= ROUNDING;
    match (a, b) {
        (Value::Weight(Weight(a)), Value::Weight(Weight(b))) => near(*a, *b),
        (Value::Told(Some(Cpus(a))), Value::Told(Some(Cpus(b)))) => near(*a, *b),
        (a, b) => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manage::journal::testing::entry;
    use corefit_core::decide::Why;
    use corefit_core::machine::VmState;

    #[test]
    fn what_goes_by_a_value_that_somebody_changed_since_is_outdated() {
        let outdated = |lever, from: &Value, to: &Value, now: &Value| {
            let action = Action::of(&VmState::default(), lever, Some(from.clone()), to.clone(), Why::Unknown);
            is_outdated(&action, now)
        };
        let weight = |weight: f64| Value::Weight(Weight(weight));
        let (old, new, to) = (weight(100.0), weight(400.0), weight(200.0));
        assert!(outdated(Lever::Weight, &old, &to, &new) && outdated(Lever::Weight, &old, &new, &new));
        assert!(!outdated(Lever::Weight, &old, &to, &weight(100.001)), "that is rounding");
        let limit =
            |quota_us, period_us| Value::Limit(Limit { quota_us: Some(quota_us), period_us, burst_us: 0 });
        let (old, new, to) = (limit(50_000, 100_000), limit(80_000, 100_000), limit(100_000, 200_000));
        for lever in [Lever::Quota, Lever::VcpuQuota(1)] {
            assert!(outdated(lever, &old, &to, &new) && !outdated(lever, &old, &to, &old));
        }
        let cpuset = |from: &str, to: &str, now: &str| {
            let [from, to, now] = [from, to, now].map(|list| Value::Pcpus(list.parse().unwrap()));
            outdated(Lever::Affinity(0), &from, &to, &now)
        };
        assert!(cpuset("0-3", "2-3", "0-1") && cpuset("0-3", "1-2", "0-1"));
        assert!(!cpuset("0-3", "0", "0-1"), "it is a part of it all the same");
        assert!(!cpuset("0-3", "2-3", ""), "that of the group above");
        assert!(!cpuset("0-1", "2-3", "0-1"), "one that is placed goes elsewhere");
        let (two, one, four) = (first(2), first(1), first(4));
        assert!(!outdated(Lever::Online, &two, &one, &four), "writing looks itself");
    }

    #[test]
    fn a_guest_may_let_go_of_what_it_was_asked_for_first_however_often_it_was_asked_for_more_since() {
        let mut entry = Entry { lever: Lever::Online, original: first(8), pending: true, ..entry("a") };
        entry.wrote.clear();
        (2..8).for_each(|vcpus| entry.ours(first(vcpus)));
        let left = Value::Vcpus("0-1,3-6".parse().unwrap());
        assert!(is_ours(&entry, &left) && may_shrink(&entry, &left));
        assert!(!is_ours(&entry, &Value::Vcpus("0,3-6".parse().unwrap())), "nobody asked for that");
        // Put back to fewer.
        let (original, wrote) = (first(1), vec![first(4)]);
        assert!(may_shrink(&Entry { original, wrote, ..entry }, &first(4)));
    }

    fn first(vcpus: u32) -> Value {
        Value::Vcpus(CpuSet::first(vcpus))
    }

    #[test]
    fn vcpus_that_somebody_plugs_in_stay_and_the_others_are_still_ours() {
        let set = |list: &str| Value::Vcpus(list.parse().unwrap());
        let (original, wrote) = (set("0-3"), vec![set("0-1")]);
        let entry = Entry { lever: Lever::Online, original, wrote, ..entry("a") };
        assert_eq!(["0", "0-1", "0-2", "0-3"].map(|now| grown(&entry, &set(now))), [None, None, None, None]);
        let grown = grown(&entry, &set("0-1,4-5")).unwrap();
        assert_eq!((&grown.original, &grown.wrote), (&set("0-5"), &vec![set("0-1"), set("0-1,4-5")]));
        assert!(is_ours(&grown, &set("0-1,4-5")) && is_ours(&grown, &set("0-1")));
        assert!(!is_ours(&grown, &set("0,4-5")), "that is more than plugging in");
        // Of those that he plugs out the others are still ours.
        let (left, weight) = (set("0,2-3"), Value::Weight(Weight(1.0)));
        let shrunk = shrunk(&entry, &left).unwrap();
        assert_eq!((&shrunk.original, &shrunk.wrote), (&left, &vec![set("0")]));
        assert!(is_ours(&shrunk, &set("0")) && !is_ours(&shrunk, &set("0,3")));
        assert_eq!(super::shrunk(&entry, &weight), None);
        assert_eq!(
            super::grown(&Entry { original: weight.clone(), wrote: Vec::new(), ..entry }, &weight),
            None
        );
    }
}
