//! vCPUs that are pinned to pCPUs which their host does not have, as after a migration or a restore, or of which none is online: whoever pinned
//! them is to hear of it, though nobody is placed here.

use super::Policy;
use super::starving::left_alone;
use crate::machine::{Snapshot, VmState};
use crate::place::{Invalid, Problem, Vcpu, Vm, invalid};
use crate::topology::Topology;
use crate::{CpuId, CpuSet};

/// What is said of each VM of which that is so, as `corefit check` finds it (`absent-pcpu`, `offline-pcpu`); but while some of the pCPUs of a pin
/// are left, one that is offline may be so for a moment. All vCPUs count, for those that are not online now may come. Nothing of those that
/// are left alone.
pub(super) fn notes(seen: &Snapshot, policy: &Policy) -> Vec<String> {
    let concerns = |vm: &&VmState| {
        let odd = vm.vcpus.iter().any(|vcpu| vcpu.pin.is_some());
        odd && vm.is_running_vm() && !left_alone(vm, policy)
    };
    let vms: Vec<&VmState> = seen.vms.iter().filter(concerns).collect();
    let (pcpus, offline) = seen.pcpu_sets();
    if vms.is_empty() || pcpus.is_empty() {
        return Vec::new();
    }
    let topology = Topology { pcpus, offline, ..Topology::default() };
    let online = topology.online();
    // Who may use all that there is is not kept from anything.
    let narrow = |pin: &CpuSet| !online.is_within(pin);
    let pins = |vm: &VmState| {
        let pins = (0..).zip(&vm.vcpus).map(|(id, vcpu)| (id, vcpu.pin.clone().filter(narrow)));
        pins.map(|(id, now)| Vcpu { id, now, ..Vcpu::default() }).collect()
    };
    let problem = Problem {
        vms: vms.iter().map(|vm| Vm { name: vm.name.clone(), vcpus: pins(vm), ..Vm::default() }).collect(),
        topology,
        ..Problem::default()
    };
    let (mut wrong, mut notes) = (invalid(&problem), Vec::new());
    wrong.retain(|wrong| !wrong.absent.is_empty() || !wrong.runs);
    for of_vm in wrong.chunk_by(|a, b| a.vm == b.vm) {
        notes.extend(said(&problem, of_vm));
    }
    notes
}

/// The same of one VM.
fn said(problem: &Problem, wrong: &[Invalid]) -> Option<String> {
    let vcpus = |those: &dyn Fn(&Invalid) -> bool| -> CpuSet {
        wrong.iter().filter(|wrong| those(wrong)).map(|wrong| CpuId(wrong.vcpu)).collect()
    };
    let name = &problem.vms[wrong.first()?.vm].name;
    let (all, stuck) = (vcpus(&|_| true), vcpus(&|wrong| !wrong.runs));
    let absent = wrong.iter().fold(CpuSet::default(), |all, wrong| all.union(&wrong.absent));
    let what = match absent.is_empty() {
        true => wrong.iter().fold(CpuSet::default(), |all, wrong| all.union(&wrong.offline)),
        false => absent.clone(),
    };
    let here = &problem.topology.pcpus;
    let why = match (absent.is_empty(), what.len()) {
        (true, 1) => "which is offline".to_owned(),
        (true, _) => "which are offline".to_owned(),
        (false, _) => format!("which this host does not have (it has {here})"),
    };
    let only = match stuck.len() {
        0 => String::new(),
        _ if stuck == all => ", and to none that is online".to_owned(),
        _ => format!(", and {} to none that is online", stuck.named("vCPU")),
    };
    Some(format!(
        "{name}: {} {} pinned to {}, {why}{only}: corefit check says what to pin {} to, virsh vcpupin does that",
        all.named("vCPU"),
        if all.len() == 1 { "is" } else { "are" },
        what.named("pCPU"),
        if all.len() == 1 { "it" } else { "them" },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::Rule;
    use crate::machine::{Pcpu, State, VcpuState};

    /// What is said of a VM with these pins, on a host of pCPUs 0 to 7 of which these are offline.
    fn of(pins: &[&str], offline: &str, changed: impl Fn(&mut VmState)) -> Vec<String> {
        let offline: CpuSet = offline.parse().unwrap();
        let pcpu = |id| Pcpu { id: CpuId(id), online: !offline.contains(CpuId(id)), ..Pcpu::default() };
        let vcpu = |pin: &&str| VcpuState { online: true, pin: pin.parse().ok(), ..VcpuState::default() };
        let mut vm =
            VmState { name: "a".into(), vcpus: pins.iter().map(vcpu).collect(), ..VmState::default() };
        changed(&mut vm);
        let seen = Snapshot { pcpus: (0..8).map(pcpu).collect(), vms: vec![vm], ..Snapshot::default() };
        let alone = Rule { name: "alone".into(), exclude: Some(true), ..Rule::default() };
        notes(&seen, &Policy { vm: vec![alone], ..Policy::default() })
    }

    #[test]
    fn pins_to_what_is_not_there_are_named_and_those_that_do_no_harm_are_not() {
        let of = |pins: &[&str], offline: &str| of(pins, offline, |_| {});
        let remedy = "corefit check says what to pin them to, virsh vcpupin does that";
        let has = "which this host does not have (it has 0-7)";
        assert_eq!(
            of(&["8", "9", "1"], "9"),
            [format!("a: vCPUs 0-1 are pinned to pCPUs 8-9, {has}, and to none that is online: {remedy}")]
        );
        assert_eq!(
            of(&["4-11", "4-11"], "5"),
            [format!("a: vCPUs 0-1 are pinned to pCPUs 8-11, {has}: {remedy}")]
        );
        assert_eq!(
            of(&["4-8", "5,9", "2"], "5"),
            [format!(
                "a: vCPUs 0-1 are pinned to pCPUs 8-9, {has}, and vCPU 1 to none that is online: {remedy}"
            )]
        );
        let one = remedy.replace("them", "it");
        assert_eq!(
            of(&["2", "5"], "5"),
            [format!("a: vCPU 1 is pinned to pCPU 5, which is offline, and to none that is online: {one}")]
        );
        for (pins, offline) in [("4-5", "5"), ("0-15", ""), ("0-15", "3"), ("0-7", "7"), ("no pin", "7")] {
            assert_eq!(of(&[pins, pins], offline), [""; 0], "{pins}, {offline}");
        }
    }

    #[test]
    fn who_is_left_alone_does_not_run_or_is_no_vm_is_not_named() {
        let changes: [fn(&mut VmState); 5] = [
            |vm| vm.vcpus[0].online = false,
            |vm| vm.state = State::Paused,
            |vm| vm.hands_off = true,
            |vm| vm.name = "alone".into(),
            |vm| vm.role = crate::machine::Role::Other,
        ];
        let named = changes.map(|change| of(&["8"], "", change).len());
        assert_eq!(named, [1, 0, 0, 0, 0], "a vCPU that is taken offline meanwhile is no news");
    }
}
