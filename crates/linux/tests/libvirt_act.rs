//! Levers of real VMs (`scripts/testvm`): what is set is so, in the guest and on the host; and nobody waits
//! for those who do not answer.

mod vm_support;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use corefit_core::machine::{Act, Lever, LeverKind, Limit, MachineError, Snapshot, Value, VmId, VmState};
use corefit_core::{CpuSet, Cpus, Weight};
use rustix::process::Pid;
use vm_support::{Vms, or_skipped};

/// Longest that changes may take of a VM that does not answer, on a busy machine: what must not be is that they wait for it.
const PATIENCE: Duration = Duration::from_secs(30);
/// A guest that was late is left alone for a while, longer each time.
const LATE: Duration = Duration::from_secs(120);

/// In a guest: its agent hangs until the host sends it an NMI, which does not take an agent.
const HANG: &str = "nmis() { grep NMI: /proc/interrupts; }; before=$(nmis); answered; killall -STOP qemu-ga; \
                    while [ \"$(nmis)\" = \"$before\" ]; do sleep 0.2; done; killall -CONT qemu-ga";

fn vm<'a>(snapshot: &'a Snapshot, name: &str) -> &'a VmState {
    snapshot.vms.iter().find(|vm| vm.name == name).unwrap_or_else(|| panic!("no VM {name}"))
}

fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

/// What a call gives. A guest on a crowded machine may answer late, and libvirtd as well: then it is asked again.
fn answer<T>(
    machine: &mut dyn Act,
    what: impl std::fmt::Display,
    call: impl Fn(&mut dyn Act) -> Result<T, MachineError>,
) -> T {
    let begun = Instant::now();
    loop {
        match call(machine) {
            // (What was given up may be done later, between a look and a change.)
            Err(MachineError::Gone(_) | MachineError::Untried(_)) if begun.elapsed() < LATE => {
                std::thread::sleep(Duration::from_millis(200));
                machine.ask_again();
            }
            answer => return answer.unwrap_or_else(|error| panic!("{what}: {error}")),
        }
    }
}

/// What a lever is at.
fn current(machine: &mut dyn Act, vm: &VmId, lever: Lever) -> Value {
    answer(machine, lever, |machine| machine.current(vm, lever))
}

/// Sets a lever; what is read back.
fn done(machine: &mut dyn Act, vm: &VmId, lever: Lever, value: Value) -> Value {
    answer(machine, lever, |machine| machine.set(vm, lever, &value));
    current(machine, vm, lever)
}

/// The thread of a VM's vCPU, on this host.
fn vcpu_thread(name: &str, vcpu: u32) -> Pid {
    let processes = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let named = format!("guest={name},");
    let is = |path: &PathBuf| {
        std::fs::read(path.join("cmdline"))
            .is_ok_and(|line| line.windows(named.len()).any(|part| part == named.as_bytes()))
    };
    let process = processes.filter(is).find(|path| path.join("task").exists()).expect("its QEMU");
    let mut threads = std::fs::read_dir(process.join("task")).unwrap().flatten();
    let comm = format!("CPU {vcpu}/TCG");
    let thread = threads
        .find(|entry| std::fs::read_to_string(entry.path().join("comm")).is_ok_and(|c| c.trim() == comm))
        .expect("its thread");
    Pid::from_raw(thread.file_name().to_str().unwrap().parse().unwrap()).unwrap()
}

fn only_on_pcpu_0(thread: Pid) {
    let mut mask = rustix::thread::CpuSet::new();
    mask.set(0);
    rustix::thread::sched_setaffinity(Some(thread), &mask).unwrap();
}

#[test]
fn every_lever_of_a_vm_does_what_it_says_and_goes_back() {
    let options = ["--name", "act", "--vcpus", "4", "--memory", "256"];
    let Some(vms) = or_skipped("every_lever_of_a_vm", Vms::up(2, &options)) else { return };
    let (name, mut machine) = (&vms.names[0], vms.machine());
    let machine = machine.as_mut();
    let before = vms.look(machine);
    let id = vm(&before, name).id.clone();
    let other = vm(&before, &vms.names[1]).clone();

    assert_eq!(current(machine, &id, Lever::Online), Value::Vcpus(set("0-3")));
    assert_eq!(done(machine, &id, Lever::Online, Value::Vcpus(set("0,2"))), Value::Vcpus(set("0,2")));
    assert_eq!(vms.guest(name, "cat /sys/devices/system/cpu/online").trim(), "0,2");
    assert_eq!(vm(&vms.look(machine), name).online(), set("0,2"), "the next look shows it");
    assert_eq!(done(machine, &id, Lever::Online, Value::Vcpus(set("0-3"))), Value::Vcpus(set("0-3")));

    assert_eq!(current(machine, &id, Lever::Told), Value::Told(None));
    for told in [Some(Cpus(1.25)), Some(Cpus(12.5)), None] {
        assert_eq!(done(machine, &id, Lever::Told, Value::Told(told)), Value::Told(told));
    }

    let original = current(machine, &id, Lever::Weight);
    let weight = Value::Weight(Weight(3000.0));
    assert_eq!(done(machine, &id, Lever::Weight, weight.clone()), weight);
    assert_eq!(vm(&vms.look(machine), name).weight, Some(Weight(3000.0)));
    assert_eq!(done(machine, &id, Lever::Weight, original.clone()), original);

    for lever in [Lever::Quota, Lever::VcpuQuota(1)] {
        let original = current(machine, &id, lever);
        assert!(matches!(original, Value::Limit(Limit { quota_us: None, .. })), "{original:?}");
        let limit = Value::Limit(Limit { quota_us: Some(60_000), period_us: 120_000, burst_us: 0 });
        assert_eq!(done(machine, &id, lever, limit.clone()), limit, "{lever}");
        assert_eq!(done(machine, &id, lever, original.clone()), original, "{lever}");
    }

    let original = current(machine, &id, Lever::Affinity(2));
    assert_eq!(done(machine, &id, Lever::Affinity(2), Value::Pcpus(set("1"))), Value::Pcpus(set("1")));
    assert_eq!(vm(&vms.look(machine), name).vcpus[2].affinity, Some(set("1")));
    assert_eq!(done(machine, &id, Lever::Affinity(2), original.clone()), original);
    // As if pCPU 1 were offline: it leaves the mask of the thread, the pin stays.
    only_on_pcpu_0(vcpu_thread(name, 2));
    assert_eq!(current(machine, &id, Lever::Affinity(2)), original);
    assert_eq!(done(machine, &id, Lever::Affinity(2), original.clone()), original);

    let after = vms.look(machine);
    let settings = |vm: &VmState| {
        (vm.weight, vm.quota.clone(), vm.vcpus.iter().map(|v| v.affinity.clone()).collect::<Vec<_>>())
    };
    assert_eq!(settings(vm(&after, &vms.names[1])), settings(&other), "another VM was touched");
}

#[test]
fn an_agent_that_hangs_or_is_gone_keeps_nobody_waiting_and_is_asked_again_later() {
    let options = ["--name", "acthang", "--vcpus", "2"];
    let Some(vms) = or_skipped("an_agent_that_hangs", Vms::up(1, &options)) else { return };
    let (name, mut machine) = (&vms.names[0], vms.machine());
    let id = vm(&vms.look(machine.as_mut()), name).id.clone();
    vms.testvm(&["exec", "--detach", name, "--", "sh", "-c", HANG]);
    let begun = Instant::now();
    while machine.current(&id, Lever::Told).is_ok() {
        assert!(begun.elapsed() < LATE, "it never stopped");
    }
    // It may have the file open for good. (The first that was late may have been libvirtd, and a while ends.)
    loop {
        let asked_again = machine.current(&id, Lever::Told);
        let Err(MachineError::Gone(why)) = &asked_again else { panic!("{asked_again:?}") };
        if why.contains("asked for none for a while") {
            break;
        }
        assert!(begun.elapsed() < LATE, "{asked_again:?}");
    }
    let begun = Instant::now();
    let refused = machine.set(&id, Lever::Online, &Value::Vcpus(set("0")));
    assert!(matches!(refused, Err(MachineError::Gone(_))), "{refused:?}");
    assert!(begun.elapsed() < PATIENCE, "it took {:?}", begun.elapsed());
    // What the host has of it goes on, and at once: putting back must not wait for guests.
    let machine = machine.as_mut();
    let begun = Instant::now();
    for (lever, value) in [
        (Lever::Weight, Value::Weight(Weight(3000.0))),
        (Lever::Affinity(1), Value::Pcpus(set("0"))),
        (Lever::Quota, Value::Limit(Limit { quota_us: Some(60_000), period_us: 120_000, burst_us: 0 })),
    ] {
        let original = current(machine, &id, lever);
        assert_eq!(done(machine, &id, lever, value.clone()), value);
        assert_eq!(done(machine, &id, lever, original.clone()), original);
    }
    for note in [Some("{}"), None] {
        answer(machine, "a note", |machine| machine.keep(&id, note));
    }
    assert!(begun.elapsed() < PATIENCE, "it took {:?}", begun.elapsed());
    vms.virsh(&["inject-nmi", name]);
    let begun = Instant::now();
    while machine.current(&id, Lever::Online).is_err() {
        assert!(begun.elapsed() < 3 * LATE, "it is never asked again");
        std::thread::sleep(Duration::from_millis(200));
    }
    let gone = "answered; sleep 1; killall -9 qemu-ga";
    vms.testvm(&["exec", "--detach", name, "--", "sh", "-c", gone]);
    let begun = Instant::now();
    while machine.current(&id, Lever::Online).is_ok() {
        assert!(begun.elapsed() < LATE, "nobody noticed that it is gone");
    }
}

#[test]
fn a_vm_without_agent_says_why_it_cannot_shrink_and_a_vm_that_ended_is_gone() {
    let options = ["--name", "actbare", "--bare", "--vcpus", "2"];
    let Some(vms) = or_skipped("a_vm_without_agent", Vms::up(1, &options)) else { return };
    let (name, mut machine) = (&vms.names[0], vms.machine());
    let snapshot = vms.look(machine.as_mut());
    let seen = vm(&snapshot, name);
    assert!(
        seen.fixed(LeverKind::Online).is_some_and(|why| why.contains("no guest agent")),
        "{:?}",
        seen.fixed
    );
    assert!(seen.fixed(LeverKind::Weight).is_none());
    let id = seen.id.clone();
    assert!(matches!(machine.current(&id, Lever::Online), Err(MachineError::Unsupported(_))));
    vms.virsh(&["destroy", name]);
    assert!(matches!(machine.current(&id, Lever::Weight), Err(MachineError::Gone(_))));
    assert!(matches!(
        machine.set(&id, Lever::Weight, &Value::Weight(Weight(10.0))),
        Err(MachineError::Gone(_))
    ));
}

/// Guests let go in their own time, or not at all. With emulated instructions QEMU 7.2 never says that they did
/// (no `DEVICE_DELETED`, though the vCPU is gone for the guest and for `query-cpus-fast`), and libvirt waits 5 s for
/// it: here that is a guest that does not let go.
#[test]
fn a_vm_without_agent_is_sized_by_plugging_what_somebody_plugged_in_since_its_start() {
    let options = ["--name", "actplug", "--no-agent", "--vcpus", "4", "--plugged", "2"];
    let Some(vms) = or_skipped("sized_by_plugging", Vms::up(1, &options)) else { return };
    let mut machine = vms.machine();
    let machine = machine.as_mut();
    let snapshot = vms.look(machine);
    let seen = vm(&snapshot, &vms.names[0]);
    assert_eq!(seen.vcpus.len(), 2, "those that nobody plugged in are not there");
    assert!([LeverKind::Online, LeverKind::Told].iter().all(|lever| seen.fixed(*lever).is_some()));
    let id = seen.id.clone();

    vms.virsh(&["setvcpus", &vms.names[0], "4", "--live"]);
    assert_eq!(current(machine, &id, Lever::Online), Value::Vcpus(set("0-3")));

    let result = machine.set(&id, Lever::Online, &Value::Vcpus(set("0-1")));
    let read = machine.current(&id, Lever::Online);
    let Ok(Value::Vcpus(left)) = &read else { panic!("it counts as silent: {read:?}") };
    assert!(set("0-1").is_within(left) && left.is_within(&set("0-3")), "{left}");
    match result {
        Ok(()) => assert_ne!(*left, set("0-3")),
        Err(MachineError::Gone(why)) => {
            assert!(why.contains("did not let go of vCPU 3"), "{why}");
            let snapshot = vms.look(machine);
            assert_eq!(vm(&snapshot, &vms.names[0]).fixed(LeverKind::Online), None, "it may do so later");
        }
        Err(error) => panic!("{error:?}"),
    }
    // Those that were there at the start stay.
    _ = machine.set(&id, Lever::Online, &Value::Vcpus(set("0")));
    let Ok(Value::Vcpus(least)) = machine.current(&id, Lever::Online) else { panic!() };
    assert!(set("0-1").is_within(&least), "{least}");

    // It carries which were plugged out, for whoever comes after a kill -9, until nothing of it is changed.
    let carried = || {
        let metadata = ["metadata", &vms.names[0], "--live", "--uri", "urn:corefit:unplugged"];
        vms.say(&metadata).contains("2-3")
    };
    assert!(carried());
    machine.keep(&id, None).unwrap();
    assert!(!carried());
}
