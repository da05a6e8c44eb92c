//! What a changed setting is now, by a look: somebody may have changed it since corefit did.

use corefit_core::machine::{Lever, Limit, Value, VmState};
use corefit_core::{CpuSet, Quota};

/// What a setting of a VM is, if a look tells. Of guests only what they say counts; of a limit only one that is there, for without one
/// it may be elsewhere.
pub(super) fn of(vm: &VmState, lever: Lever) -> Option<Value> {
    match lever {
        Lever::Online if vm.guest.is_some() => Some(Value::Vcpus(vm.online())),
        Lever::Weight => vm.weight.map(Value::Weight),
        Lever::Quota => vm.quota.as_ref().and_then(limit),
        Lever::Affinity(0) if vm.is_group() => {
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

fn limit(quota: &Quota) -> Option<Value> {
    let Quota { quota_us, period_us, burst_us, .. } = *quota;
    quota_us.map(|_| Value::Limit(Limit { quota_us, period_us, burst_us }))
}

#[cfg(test)]
mod tests {
    use corefit_core::machine::{VcpuState, VmId};

    use super::super::{Keeper, journal::Entry};
    use super::*;

    #[test]
    fn what_neither_corefit_wrote_nor_was_before_is_somebody_elses() {
        let set = |list: &str| list.parse::<CpuSet>().unwrap();
        let pcpus = |list: &str| Value::Pcpus(set(list));
        let (lever, wrote) = (Lever::Affinity(0), vec![pcpus("0-1")]);
        let (vm, name) = (VmId("a".into()), "a".into());
        let mut entry = Entry { vm, name, lever, original: pcpus("0-3"), wrote, pending: false };
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
