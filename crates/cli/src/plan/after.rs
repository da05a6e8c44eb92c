//! A host as it would be once a plan is followed, for what `corefit check` finds then.

use corefit_core::CpuId;
use corefit_core::check::{Change, Filled, Set, Subject, Vm};
use corefit_core::decide::Action;
use corefit_core::machine::{Lever, Limit, Value};

/// The subject once these actions are carried out. Weights, slices and what guests are told stay: no rule is about them alone.
pub(super) fn after(subject: &Subject, actions: &[Action]) -> Subject {
    let mut then = subject.clone();
    for action in actions {
        for vm in then.vms.iter_mut().filter(|vm| vm.name == action.name) {
            change(vm, action);
        }
    }
    then
}

fn change(vm: &mut Vm, action: &Action) {
    match (action.lever, &action.to) {
        (Lever::Affinity(number), Value::Pcpus(to)) => {
            let group = !vm.is_guest();
            let vcpus = (0..).zip(&vm.vcpus).map(|(vcpu, _)| vcpu).filter(|vcpu| group || *vcpu == number);
            let sets = vcpus.filter_map(|vcpu| Some((vcpu, Filled::new(to.clone())?)));
            Change::Affinity(sets.collect()).apply(vm);
        }
        (Lever::Nodes, Value::Nodes(Some(to))) => {
            Filled::new(to.clone()).map(Change::Memory).iter().for_each(|change| change.apply(vm));
        }
        (Lever::Online, Value::Vcpus(to)) => {
            (0..).zip(&mut vm.vcpus).for_each(|(index, vcpu)| vcpu.online = to.contains(CpuId(index)));
        }
        // An unlimited one, or one where there was none, is no setting that can be pointed at.
        (Lever::Quota, Value::Limit(to)) => limited(vm.cap.as_mut(), to),
        (Lever::VcpuQuota(0), Value::Limit(to)) => limited(vm.vcpu_quota.as_mut(), to),
        _ => {}
    }
}

fn limited(quota: Option<&mut Set<corefit_core::Quota>>, to: &Limit) {
    if let Some(Set { value, .. }) = quota {
        (value.quota_us, value.period_us, value.burst_us) = (to.quota_us, to.period_us, to.burst_us);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corefit_core::check::{Memory, Place, Vcpu};
    use corefit_core::decide::Why;
    use corefit_core::machine::VmId;

    #[test]
    fn actions_become_settings_of_their_vm_and_of_no_other() {
        let nodes = Memory::Nodes { nodes: "0".parse().unwrap(), mode: "strict".into() };
        let vm = |name: &str| Vm {
            name: name.into(),
            vcpus: vec![Vcpu { online: true, ..Vcpu::default() }; 2],
            memory: Some(Set { value: nodes.clone(), place: Place::default() }),
            ..Vm::default()
        };
        let subject = Subject { vms: vec![vm("a"), vm("b")], ..Subject::default() };
        let action = |lever, to| Action {
            vm: VmId("7".into()),
            name: "a".into(),
            lever,
            from: None,
            to,
            why: Why::Nodes,
        };
        let then = after(
            &subject,
            &[
                action(Lever::Affinity(1), Value::Pcpus("4".parse().unwrap())),
                action(Lever::Nodes, Value::Nodes("1".parse().ok())),
                action(Lever::Online, Value::Vcpus("1".parse().unwrap())),
            ],
        );
        let a = &then.vms[0];
        let affinity = |vcpu: &Vcpu| vcpu.affinity.as_ref().map(|set| set.value.to_string());
        assert_eq!(a.vcpus.iter().map(affinity).collect::<Vec<_>>(), [None, Some("4".into())]);
        assert_eq!(a.vcpus.iter().map(|vcpu| vcpu.online).collect::<Vec<_>>(), [false, true]);
        let Some(Set { value: Memory::Nodes { nodes, .. }, .. }) = &a.memory else { panic!("{a:?}") };
        assert_eq!(nodes.to_string(), "1");
        let b = &then.vms[1];
        assert!(b.vcpus.iter().all(|vcpu| vcpu.online && vcpu.affinity.is_none()), "{b:?}");
    }
}
