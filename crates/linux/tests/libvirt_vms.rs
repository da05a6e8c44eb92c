//! The libvirt machine on real VMs (`scripts/testvm`): what is seen of them, and that nothing that
//! happens to VMs, agents and libvirtd makes a look fail or wait.

mod vm_support;

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use corefit_core::What;
use corefit_core::machine::{Machine, MachineError, Role, Snapshot, State, VmState, contract};
use vm_support::{TIMEOUT, Vms, is_of_now, or_skipped, testvm};

/// What a look may take beyond its timeout on a busy machine: what must not be is that it waits for ever.
const SLACK: Duration = Duration::from_secs(30);
/// Looks of machines that are to give up or fall back soon take no longer than this.
const SOON: Duration = Duration::from_secs(1);

/// A guest that was late is left alone for a while, longer each time.
const PATIENCE: Duration = Duration::from_secs(120);

/// Two VMs for all tests, of which the first has an agent, and which end with this process; tests use
/// them one after the other. `None` where there are none, and it says so.
fn vms(test: &str) -> Option<(MutexGuard<'static, ()>, &'static Vms)> {
    static ALONE: Mutex<()> = Mutex::new(());
    static VMS: OnceLock<Result<Vms, String>> = OnceLock::new();
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let start = || Vms::up(2, &["--name", "lv", "--vcpus", "2", "--weight", "2048", "--pin", "1=1"]);
    Some((alone, or_skipped(test, VMS.get_or_init(start).as_ref())?))
}

/// The process of a VM.
fn qemu(name: &str) -> i32 {
    let list = testvm(&["list"]);
    let text = String::from_utf8_lossy(&list.stdout).into_owned();
    let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap();
    let pid = line.split(' ').find_map(|word| word.strip_prefix("qemu=")).unwrap();
    pid.parse().unwrap()
}

/// This worktree's libvirtd.
fn libvirtd(vms: &Vms) -> i32 {
    let (_, socket) = vms.uri.split_once("socket=").unwrap();
    let state = PathBuf::from(socket).parent().unwrap().parent().unwrap().to_owned();
    std::fs::read_to_string(state.join("libvirtd.pid")).unwrap().trim().parse().unwrap()
}

/// Stops a process, and lets it go on in any case.
struct Stopped(i32);

impl Stopped {
    fn new(pid: i32) -> Stopped {
        // SAFETY: a process that this test started.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGSTOP) }, 0);
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { libc::kill(self.0, libc::SIGCONT) };
    }
}

/// A look, which has to be over in time whatever it finds.
fn look(machine: &mut dyn Machine) -> Result<Snapshot, MachineError> {
    let begun = Instant::now();
    let result = machine.observe();
    assert!(begun.elapsed() < TIMEOUT + SLACK, "it took {:?}", begun.elapsed());
    result
}

/// Looks until it is as it should be.
fn until(machine: &mut dyn Machine, what: &str, is: impl Fn(&Snapshot) -> bool) -> Snapshot {
    let begun = Instant::now();
    let mut last = None;
    while begun.elapsed() < PATIENCE {
        let result = look(machine);
        match result {
            Ok(snapshot) if is(&snapshot) => return snapshot,
            other => last = Some(other),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("not within {PATIENCE:?}: {what}; last: {last:?}")
}

fn vm<'a>(snapshot: &'a Snapshot, name: &str) -> Option<&'a VmState> {
    snapshot.vms.iter().find(|vm| vm.role == Role::Vm && vm.name == name)
}

fn guest_unread(snapshot: &Snapshot, name: &str) -> bool {
    snapshot.unread.iter().any(|unread| unread.what == What::Guest && unread.path.contains(name))
}

fn has_guest(snapshot: &Snapshot, name: &str) -> bool {
    vm(snapshot, name).is_some_and(|vm| vm.guest.is_some())
}

#[test]
fn a_vm_is_seen_with_its_settings_its_threads_and_its_guest() {
    let Some((_alone, vms)) = vms("a_vm_is_seen") else { return };
    let mut machine = vms.machine();
    vms.look(machine.as_mut());
    contract::observing(machine.as_mut(), Duration::from_millis(200)).unwrap();
    let name = &vms.names[0];
    let snapshot = until(machine.as_mut(), "the guest tells", |s| has_guest(s, name));
    let vm = vm(&snapshot, name).unwrap();
    assert_eq!(vm.weight.map(|w| w.0), Some(2048.0));
    assert_eq!(vm.vcpus.len(), 2);
    assert_eq!(vm.vcpus[1].affinity.as_ref().map(ToString::to_string).as_deref(), Some("1"));
    for vcpu in &vm.vcpus {
        assert!(vcpu.online && vcpu.counters.run_ns > Some(0) && vcpu.counters.wait_ns.is_some(), "{vcpu:?}");
        assert!(vcpu.on.is_some() && vcpu.weight.is_some(), "{vcpu:?}");
    }
    assert!(vm.parent.as_ref().is_some_and(|p| snapshot.groups.iter().any(|g| g.name == *p)), "{vm:?}");
    assert_eq!(vm.helpers[0].name, "emulator");
    let guest = vm.guest.as_ref().unwrap();
    assert!(guest.runnable.is_some() && guest.vcpus.len() == 2, "{guest:?}");
    assert!(guest.vcpus.iter().all(|v| v.online && v.busy_ns > Some(0)), "{guest:?}");
    assert!(snapshot.vms.iter().any(|vm| vm.role == Role::Other), "this test competes, too");
}

#[test]
fn what_is_tuned_or_paused_is_seen_at_the_next_looks() {
    let Some((_alone, vms)) = vms("what_is_tuned_or_paused") else { return };
    let mut machine = vms.machine();
    let name = &vms.names[1];
    vms.look(machine.as_mut());
    vms.virsh(&["suspend", name]);
    let paused = |s: &Snapshot| vm(s, name).is_some_and(|vm| vm.state == State::Paused);
    assert!(paused(&vms.look(machine.as_mut())));
    vms.virsh(&["resume", name]);
    assert!(!paused(&vms.look(machine.as_mut())));
    vms.virsh(&["vcpupin", name, "0", "0"]);
    vms.virsh(&["schedinfo", name, "--live", "vcpu_quota=20000", "vcpu_period=40000"]);
    let begun = Instant::now();
    until(machine.as_mut(), "pin and quota", |s| {
        vm(s, name).is_some_and(|vm| {
            let vcpu = &vm.vcpus[0];
            let half = vcpu.quota.as_ref().and_then(|q| q.cpus()).is_some_and(|cpus| cpus.0 == 0.5);
            half && vcpu.affinity.as_ref().is_some_and(|set| set.to_string() == "0")
        })
    });
    // It is old after a minute.
    assert!(begun.elapsed() < Duration::from_secs(45), "libvirt's event, not the refresh, tells");
    vms.virsh(&["schedinfo", name, "--live", "vcpu_quota=-1"]);
}

#[test]
fn a_qemu_that_hangs_delays_no_look_and_its_guest_is_left_out() {
    let Some((_alone, vms)) = vms("a_qemu_that_hangs") else { return };
    let mut machine = vms.machine();
    let name = &vms.names[0];
    until(machine.as_mut(), "the guest tells", |s| has_guest(s, name));
    {
        let _stopped = Stopped::new(qemu(name));
        // A look that waited for it would have fallen back on the one before.
        let told = |s: &Snapshot| guest_unread(s, name) && is_of_now(s);
        let snapshot = until(machine.as_mut(), "its guest is named", told);
        assert!(!has_guest(&snapshot, name));
        assert!(vm(&snapshot, name).is_some() && vm(&snapshot, &vms.names[1]).is_some());
    }
    until(machine.as_mut(), "the guest tells again", |s| has_guest(s, name));
}

#[test]
fn a_libvirtd_that_hangs_is_gone_within_the_timeout_and_comes_back() {
    let Some((_alone, vms)) = vms("a_libvirtd_that_hangs") else { return };
    let mut machine = vms.machine_within(SOON);
    // On a busy machine the first look may end before libvirtd has told all definitions.
    let before = until(machine.as_mut(), "it is seen", |s| vm(s, &vms.names[0]).is_some());
    {
        let _stopped = Stopped::new(libvirtd(vms));
        let took = [(); 3].map(|()| {
            let begun = Instant::now();
            let Err(MachineError::Gone(text)) = look(machine.as_mut()) else { panic!("it is stopped") };
            assert!(text.contains("does not answer within 1s"), "{text}");
            begun.elapsed()
        });
        let least = took.into_iter().min().unwrap();
        assert!(least < SOON + Duration::from_secs(3), "{took:?}");
    }
    let after = until(machine.as_mut(), "libvirtd is back", |s| vm(s, &vms.names[0]).is_some());
    assert_eq!(vm(&before, &vms.names[0]).map(|vm| &vm.id), vm(&after, &vms.names[0]).map(|vm| &vm.id));
}

#[test]
fn a_libvirtd_that_is_restarted_is_found_again_with_the_same_vms() {
    let Some((_alone, vms)) = vms("a_libvirtd_that_is_restarted") else { return };
    let mut machine = vms.machine();
    let before = vms.look(machine.as_mut());
    vms.testvm(&["daemon", "restart"]);
    let both = |s: &Snapshot| vms.names.iter().all(|name| vm(s, name).is_some());
    let after = until(machine.as_mut(), "all VMs are back", both);
    for name in &vms.names {
        let (before, after) = (vm(&before, name).unwrap(), vm(&after, name).unwrap());
        assert_eq!(before.id, after.id);
        assert!(after.vcpus[0].counters.run_ns >= before.vcpus[0].counters.run_ns);
    }
}

#[test]
fn a_vm_that_ends_while_it_is_observed_is_missing_and_nothing_else() {
    let Some((_alone, vms)) = vms("a_vm_that_ends") else { return };
    // A libvirtd that just then gets no CPU is one that hangs: then another VM ends.
    let mut tries = (0..3).map(|_| ends_while_observed(vms));
    let mut last = tries.next().unwrap();
    while let Err(MachineError::Gone(_)) = last
        && let Some(next) = tries.next()
    {
        last = next;
    }
    last.unwrap();
}

/// What a look failed with while a VM ended.
fn ends_while_observed(vms: &Vms) -> Result<(), MachineError> {
    let victims = Vms::up(1, &["--name", "lv-victim", "--vcpus", "4", "--no-agent"]).unwrap();
    let victim = &victims.names[0];
    // So that looks fall back on the one before while libvirtd lets them wait.
    let mut machine = vms.machine_within(SOON);
    until(machine.as_mut(), "all are seen", |s| {
        [victim, &vms.names[0]].iter().all(|name| vm(s, name).is_some())
    });
    std::thread::scope(|scope| -> Result<(), MachineError> {
        let destroy = scope.spawn(|| vms.virsh(&["destroy", victim]));
        while !destroy.is_finished() {
            let snapshot = look(machine.as_mut())?;
            contract::snapshot(&snapshot).unwrap();
            assert!(vm(&snapshot, &vms.names[0]).is_some());
        }
        destroy.join().unwrap();
        Ok(())
    })?;
    until(machine.as_mut(), "it is missing", |s| is_of_now(s) && vm(s, victim).is_none());
    Ok(())
}

#[test]
fn an_agent_that_is_killed_is_named_and_the_vm_stays() {
    let Some((_alone, vms)) = vms("an_agent_that_is_killed") else { return };
    let victims = Vms::up(1, &["--name", "lv-agent", "--vcpus", "1"]).unwrap();
    let victim = &victims.names[0];
    let mut machine = vms.machine();
    until(machine.as_mut(), "the guest tells", |s| has_guest(s, victim));
    vms.testvm(&["exec", "--detach", victim, "--", "sh", "-c", "answered; sleep 1; killall -9 qemu-ga"]);
    let snapshot = until(machine.as_mut(), "its guest is named", |s| guest_unread(s, victim));
    assert!(vm(&snapshot, victim).is_some_and(|vm| vm.guest.is_none() && vm.vcpus[0].online));
    vms.testvm(&["down", victim]);
}
