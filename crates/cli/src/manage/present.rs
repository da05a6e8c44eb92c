//! What a changed setting is now, by a look: somebody may have changed it since corefit did.

use corefit_core::machine::{Lever, LeverKind, Limit, Value, VmState};
use corefit_core::{CpuId, CpuSet, Quota};

/// What a setting of a VM is, if a look tells. Of guests only what they say counts; of a limit only one that is there, for without one
/// it may be elsewhere.
pub(super) fn of(vm: &VmState, lever: Lever) -> Option<Value> {
    match lever {
        Lever::Online if vm.guest.is_some() => Some(Value::Vcpus(vm.online())),
        Lever::Weight => vm.weight.map(Value::Weight),
        Lever::Quota => vm.quota.as_ref().and_then(limit),
        Lever::Affinity(0) if vm.is_group() => {
            if let Some(set) = &vm.cpuset {
                return Some(Value::Pcpus(set.clone()));
            }
            let sets: Option<Vec<CpuSet>> = vm.vcpus.iter().map(|vcpu| vcpu.affinity.clone()).collect();
            let all = sets?.iter().fold(CpuSet::default(), |all, set| all.union(set));
            (!all.is_empty()).then_some(Value::Pcpus(all))
        }
        Lever::Affinity(number) => {
            let vcpu = vm.vcpus.get(usize::try_from(number).ok()?)?;
            vcpu.affinity.clone().map(Value::Pcpus)
        }
        _ => None,
    }
}

/// How many vCPUs are online (of a group: how many pCPUs it may use), if that is known: of a VM with a guest agent only the guest
/// tells, for libvirt counts those that the guest took offline, too.
pub(super) fn online(vm: &VmState) -> Option<usize> {
    let no_agent = vm.lacks(LeverKind::Told).is_some();
    (vm.guest.is_some() || vm.is_group() || no_agent).then(|| vm.online().len())
}

/// vCPUs that are not there for a guest, and others after them are: somebody plugged them out. (Those after all others may never have
/// been there.)
pub(super) fn left_out(vm: &VmState) -> CpuSet {
    // A guest may say any number.
    let known = |id: &u32| usize::try_from(*id).is_ok_and(|id| id < vm.vcpus.len());
    let ids = vm.guest.iter().flat_map(|guest| &guest.vcpus).map(|vcpu| vcpu.id);
    let there: CpuSet = ids.filter(known).map(CpuId).collect();
    let last = there.iter().last().map_or(0, |last| last.0);
    CpuSet::first(last).difference(&there)
}

/// A value for people, who would take the number of a vCPU for how many there are, and an empty cpuset for a missing one.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::Vcpus(set) if set.is_empty() => "no vCPU".into(),
        Value::Vcpus(set) if set.len() == 1 => format!("vCPU {set}"),
        Value::Vcpus(set) => format!("vCPUs {set}"),
        // (cgroups v2; v1 has none that is empty where anything runs.)
        Value::Pcpus(set) if set.is_empty() => "that of the group above".into(),
        value => value.to_string(),
    }
}

fn limit(quota: &Quota) -> Option<Value> {
    let Quota { quota_us, period_us, burst_us, .. } = *quota;
    quota_us.map(|_| Value::Limit(Limit { quota_us, period_us, burst_us }))
}

#[cfg(test)]
mod tests {
    use corefit_core::machine::{Fixed, GuestVcpu, GuestView, VcpuState};

    use super::super::{Keeper, journal::Entry, journal::testing::entry};
    use super::*;

    #[test]
    fn how_many_vcpus_are_online_is_unknown_while_a_guest_that_could_say_it_does_not() {
        let vcpus = vec![VcpuState { online: true, ..VcpuState::default() }; 4];
        let silent = VmState { vcpus, ..VmState::default() };
        assert_eq!(online(&silent), None);
        let answers = VmState { guest: Some(GuestView::default()), ..silent.clone() };
        let fixed = vec![Fixed { lever: LeverKind::Told, reason: "it has no guest agent".into() }];
        for known in [answers, VmState { fixed, ..silent }] {
            assert_eq!(online(&known), Some(4));
        }
    }

    #[test]
    fn the_number_of_a_vcpu_is_not_taken_for_how_many_there_are() {
        let of = |list: &str| text(&Value::Vcpus(list.parse().unwrap()));
        assert_eq!((of("0"), of("0-3")), ("vCPU 0".into(), "vCPUs 0-3".into()));
        assert_eq!(text(&Value::Pcpus("0".parse().unwrap())), "0");
    }

    #[test]
    fn a_cpuset_that_says_nothing_is_said_to_be_that_of_the_group_above() {
        assert_eq!(text(&Value::Pcpus(CpuSet::default())), "that of the group above");
    }

    #[test]
    fn threads_that_keep_to_fewer_pcpus_do_not_change_the_cpuset_of_their_group() {
        let set = |list: &str| list.parse::<CpuSet>().unwrap();
        let vcpu = VcpuState { online: true, affinity: Some(set("0-1")), ..VcpuState::default() };
        let whole = Some(corefit_core::machine::Counters::default());
        let vm = VmState { vcpus: vec![vcpu; 2], cpuset: Some(set("0-3")), whole, ..VmState::default() };
        assert_eq!(of(&vm, Lever::Affinity(0)), Some(Value::Pcpus(set("0-3"))));
    }

    #[test]
    fn vcpus_that_were_plugged_in_since_change_nothing_of_the_others() {
        let vcpus = |list: &str| Value::Vcpus(list.parse().unwrap());
        let (original, wrote) = (vcpus("0-3"), vec![vcpus("0-1")]);
        let entry = Entry { lever: Lever::Online, original, wrote, ..entry("a") };
        let now = |online: [bool; 6]| {
            let vcpus = online.map(|online| VcpuState { online, ..VcpuState::default() }).into();
            let vm = VmState { vcpus, guest: Some(GuestView::default()), ..VmState::default() };
            Keeper::changed_since(&entry, &vm, &CpuSet::default())
        };
        assert_eq!(now([true, true, false, false, true, true]), None);
        assert_eq!(now([true, false, false, false, true, true]), Some(vcpus("0,4-5")));
    }

    #[test]
    fn a_vcpu_that_was_plugged_out_in_between_changes_nothing_of_the_others() {
        let vcpus = |list: &str| Value::Vcpus(list.parse().unwrap());
        let (original, wrote) = (vcpus("0-3"), vec![vcpus("0-1")]);
        let entry = Entry { lever: Lever::Online, original, wrote, ..entry("a") };
        let now = |there: &[u32], online: &[u32]| {
            let is = |id| VcpuState { online: online.contains(&id), ..VcpuState::default() };
            let says = |id: &u32| GuestVcpu { id: *id, online: online.contains(id), ..GuestVcpu::default() };
            let guest = GuestView { vcpus: there.iter().map(says).collect(), ..GuestView::default() };
            let vm = VmState { vcpus: (0..4).map(is).collect(), guest: Some(guest), ..VmState::default() };
            Keeper::changed_since(&entry, &vm, &CpuSet::default())
        };
        assert_eq!(now(&[0, 2, 3], &[0]), None);
        assert_eq!(now(&[0, 1, 2, 3], &[0]), Some(vcpus("0")), "its guest took it offline");
        assert_eq!(now(&[0, 2, 3], &[0, 2]), Some(vcpus("0,2")), "that is more than plugging out");
    }

    #[test]
    fn what_neither_corefit_wrote_nor_was_before_is_somebody_elses() {
        let set = |list: &str| list.parse::<CpuSet>().unwrap();
        let pcpus = |list: &str| Value::Pcpus(set(list));
        let (original, wrote) = (pcpus("0-3"), vec![pcpus("0-1")]);
        let mut entry = Entry { lever: Lever::Affinity(0), original, wrote, ..entry("a") };
        let now = |entry: &Entry, list: &str, offline: CpuSet| {
            let vcpu = VcpuState { online: true, affinity: Some(set(list)), ..VcpuState::default() };
            Keeper::changed_since(entry, &VmState { vcpus: vec![vcpu], ..VmState::default() }, &offline)
        };
        assert_eq!(now(&entry, "2", CpuSet::default()), Some(pcpus("2")));
        for ours in ["0-1", "0-3"] {
            assert_eq!(now(&entry, ours, CpuSet::default()), None);
        }
        assert_eq!(now(&entry, "0", set("1")), None, "the other is offline");
        entry.original = Value::Pcpus(CpuSet::default());
        assert_eq!(now(&entry, "2", CpuSet::default()), None, "what the group above has, perhaps");
        // Nobody knows of a guest that says nothing.
        entry.lever = Lever::Online;
        assert_eq!(now(&entry, "2", CpuSet::default()), None);
    }
}
