//! Which vCPUs a look shows, and which of them as online: those that the guest says it uses, unless that was read since.

use corefit_core::machine::VmState;
use corefit_core::{CpuId, CpuSet};

use super::definition::Definition;
use super::online::can_have;

/// vCPUs that the guest does not use are not online. Its numbers are the machine's where none was
/// left out on the way, and where it has none that the machine does not have.
pub(super) fn offline(vm: &mut VmState) {
    let Some(guest) = &mut vm.guest else { return };
    let is_there = |id: u32| vm.vcpus.get(id as usize).is_some_and(|vcpu| vcpu.online);
    if !guest.vcpus.iter().any(|vcpu| vcpu.online && is_there(vcpu.id)) {
        return; // A guest that answers has one.
    }
    let first = vm.vcpus.iter().take_while(|vcpu| vcpu.online).count();
    let between = vm.vcpus.iter().skip(first).any(|vcpu| vcpu.online);
    if between && guest.vcpus.iter().any(|vcpu| !is_there(vcpu.id)) {
        return;
    }
    for (id, vcpu) in (0..).zip(&mut vm.vcpus).filter(|(_, vcpu)| vcpu.online) {
        match guest.vcpus.iter().find(|known| known.id == id) {
            Some(known) => vcpu.online = known.online,
            None => {
                vcpu.online = false;
                guest.vcpus.push(corefit_core::machine::GuestVcpu { id, ..Default::default() });
            }
        }
    }
    guest.vcpus.sort_by_key(|vcpu| vcpu.id);
}

/// What was read after the guest was asked counts instead of what it said.
pub(super) fn known_online(vm: &mut VmState, online: &CpuSet) {
    for (number, vcpu) in (0..).zip(&mut vm.vcpus) {
        vcpu.online = online.contains(CpuId(number));
    }
    for vcpu in vm.guest.iter_mut().flat_map(|guest| &mut guest.vcpus) {
        vcpu.online = online.contains(CpuId(vcpu.id));
    }
}

/// vCPUs that nobody has plugged in are not there, unless they were plugged out by us.
pub(super) fn leave_out(vm: &mut VmState, definition: &Definition) {
    let last = can_have(definition).iter().last();
    vm.vcpus.truncate(last.map_or(usize::MAX, |last| last.0 as usize + 1));
}

/// vCPUs that nobody can plug out: they were there at its start.
pub(super) fn cold(definition: &Definition) -> CpuSet {
    let cold = (0..).zip(&definition.vcpus).filter(|(_, vcpu)| vcpu.plugged && !vcpu.hotpluggable);
    cold.map(|(number, _)| CpuId(number)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::libvirt::asked::defined;
    use corefit_core::machine::{GuestVcpu, GuestView, VcpuState};

    #[test]
    fn vcpus_that_the_guest_does_not_use_are_offline() {
        let online = |online| VcpuState { online, ..VcpuState::default() };
        let says = |id| GuestVcpu { id, online: true, ..GuestVcpu::default() };
        let guest = GuestView { vcpus: vec![says(0), says(2)], ..GuestView::default() };
        let vcpus = vec![online(true), online(true), online(true), online(false)];
        let mut vm = VmState { vcpus, guest: Some(guest), ..VmState::default() };
        offline(&mut vm);
        let seen: Vec<bool> = vm.vcpus.iter().map(|vcpu| vcpu.online).collect();
        assert_eq!(seen, [true, false, true, false]);
        let told: Vec<_> = vm.guest.unwrap().vcpus.iter().map(|v| (v.id, v.online)).collect();
        assert_eq!(told, [(0, true), (1, false), (2, true)]);
        // One that says it uses others only makes no sense.
        vm.vcpus = vec![online(true), online(true)];
        vm.guest = Some(GuestView { vcpus: vec![says(2), says(3)], ..GuestView::default() });
        offline(&mut vm);
        assert_eq!(vm.online(), "0-1".parse().unwrap());
    }

    #[test]
    fn what_was_read_later_counts_more_than_what_the_guest_said() {
        let online = |online| VcpuState { online, ..VcpuState::default() };
        let says = |id| GuestVcpu { id, online: true, ..GuestVcpu::default() };
        let guest = Some(GuestView { vcpus: vec![says(0), says(1)], ..GuestView::default() });
        let mut vm = VmState { vcpus: vec![online(true), online(true)], guest, ..VmState::default() };
        known_online(&mut vm, &"0".parse().unwrap());
        assert_eq!(vm.online(), "0".parse().unwrap());
        assert!(!vm.guest.unwrap().vcpus[1].online);
    }

    #[test]
    fn vcpus_that_nobody_plugged_in_are_not_there_and_those_that_we_plugged_out_are() {
        let seen = |metadata: &str| {
            let xml = format!(
                "<domain type='kvm'><name>a</name><vcpu current='4'>8</vcpu><metadata>{metadata}</metadata></domain>"
            );
            let definition = Definition::parse(&xml).unwrap();
            let mut vm = defined(&definition, (&CpuSet::first(8), &CpuSet::default()));
            leave_out(&mut vm, &definition);
            (vm.vcpus.len(), vm.online().to_string())
        };
        assert_eq!(seen(""), (4, "0-3".into()));
        assert_eq!(seen("<c:unplugged xmlns:c='urn:corefit:unplugged'>4-5</c:unplugged>"), (6, "0-3".into()));
    }

    #[test]
    fn where_numbers_may_differ_the_guest_decides_nothing() {
        let online = |online| VcpuState { online, ..VcpuState::default() };
        let says = |id| GuestVcpu { id, online: true, ..GuestVcpu::default() };
        let guest = GuestView { vcpus: vec![says(0), says(1)], ..GuestView::default() };
        let vcpus = vec![online(true), online(false), online(true)];
        let mut vm = VmState { vcpus: vcpus.clone(), guest: Some(guest), ..VmState::default() };
        offline(&mut vm);
        assert_eq!(vm.vcpus, vcpus);
        // It uses one that is there, by both numbers: the last one was taken offline.
        vm.guest = Some(GuestView { vcpus: vec![says(0)], ..GuestView::default() });
        offline(&mut vm);
        assert_eq!(vm.online(), "0".parse().unwrap());
    }
}
