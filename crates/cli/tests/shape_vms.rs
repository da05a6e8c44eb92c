//! `corefit manage` with `shape = "burst"` on a real VM (`scripts/testvm`): what a vCPU leaves of its quota is saved in the
//! VM's own control groups, and after any end they are as they were. The slice of a vCPU's thread is set and put back, too.

#[path = "../../linux/tests/vm_support/mod.rs"]
mod vm_support;

#[allow(dead_code, reason = "every test file uses a part of this")]
mod manage_support;

use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;

use corefit_core::machine::{Act, Lever, LeverKind, Limit, MachineError, Value, VmId};
use manage_support::{Daemon, corefit, current, until};
use vm_support::{Vms, or_skipped};

const CONFIG: &str = "metrics = \"off\"\ntell = false\n\
    [policy]\ninterval_ms = 500\ndwell_ms = 500\nlever_ms = 200\nsize = \"none\"\nshape = \"burst\"\n";

/// A thread for each CPU works for 40 ms, then sleeps for 160.
const BURSTS: &str = r#"
#include <time.h>
#include <unistd.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }
int main(void) {
    for (long n = sysconf(_SC_NPROCESSORS_ONLN); n > 1 && fork() != 0; n--) ;
    for (;;) {
        for (double end = now() + 0.04; now() < end;) ;
        usleep(160000);
    }
}
"#;

fn compile(dir: &Path) -> String {
    let (source, program) = (dir.join("bursts.c"), dir.join("bursts"));
    std::fs::write(&source, BURSTS).unwrap();
    let status = Command::new("gcc").args(["-O1", "-static", "-o"]).args([&program, &source]).status();
    assert!(status.unwrap().success(), "gcc is needed: scripts/install-deps");
    program.to_str().unwrap().into()
}

/// The limits of both vCPUs, as the kernel has them now.
fn limits(machine: &mut dyn Act, vm: &VmId) -> [Limit; 2] {
    [0, 1].map(|vcpu| match current(machine, vm, Lever::VcpuQuota(vcpu)) {
        Value::Limit(limit) => limit,
        other => panic!("vCPU {vcpu}: {other:?}"),
    })
}

/// The slice of one vCPU's thread is set, read back, seen, and put back.
fn slices(machine: &mut dyn Act, vm: &VmId, vms: &Vms) {
    let seen = |machine: &mut dyn Act| {
        let seen = vms.look(machine).vms;
        seen.into_iter().find(|vm| vm.name == vms.names[0]).unwrap()
    };
    let Some(before) = seen(machine).slices else {
        let _ = writeln!(
            std::io::stderr(),
            "skipped: {}",
            seen(machine).fixed(LeverKind::Slice).expect("why it has none")
        );
        return;
    };
    let [ours, none] = [Value::Slice(Some(400_037)), Value::Slice(None)];
    assert_eq!(machine.current(vm, Lever::Slice(1)), Ok(none.clone()));
    machine.set(vm, Lever::Slice(1), &ours).unwrap();
    let both = [0, 1].map(|vcpu| machine.current(vm, Lever::Slice(vcpu)).unwrap());
    assert_eq!(both, [none.clone(), ours], "this vCPU's alone");
    let now = seen(machine).slices.unwrap();
    assert_eq!((now.least_ns, now.most_ns), (400_037, before.base_ns));
    machine.set(vm, Lever::Slice(1), &none).unwrap();
    assert_eq!(seen(machine).slices, Some(before));
    assert!(matches!(machine.current(vm, Lever::Slice(7)), Err(MachineError::Gone(_))));
}

#[test]
fn what_vcpus_leave_of_their_quotas_is_saved_and_put_back_after_any_end() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path());
    let options = ["--name", "shape", "--vcpus", "2", "--quota", "20", "--program", &program];
    let Some(vms) = or_skipped("shape on real VMs", Vms::up(1, &options)) else { return };
    let mut machine = vms.machine();
    let seen = vms.look(machine.as_mut());
    let vm = &seen.vms.iter().find(|vm| vm.name == vms.names[0]).unwrap().id;
    let plain = limits(machine.as_mut(), vm);
    assert!(plain.iter().all(|limit| limit.burst_us == 0 && limit.quota_us.is_some()), "{plain:?}");
    let saves = |machine: &mut dyn Act| {
        let now = limits(machine, vm);
        let rates = |limits: [Limit; 2]| limits.map(|limit| (limit.quota_us, limit.period_us));
        assert_eq!(rates(now), rates(plain), "only what is saved changes");
        now.iter().any(|limit| limit.burst_us > 0)
    };
    // One that cannot be set, or a kernel without it, is a case of its own.
    let burst = Limit { burst_us: 1000, ..plain[0] };
    if let Err(why) = machine.set(vm, Lever::VcpuQuota(0), &Value::Limit(burst)) {
        assert!(why.to_string().contains("Linux before 5.14"), "{why}");
        let _ = writeln!(std::io::stderr(), "skipped: {why}");
        return;
    }
    assert!(saves(machine.as_mut()), "it is read back");
    machine.set(vm, Lever::VcpuQuota(0), &Value::Limit(plain[0])).unwrap();
    slices(machine.as_mut(), vm, &vms);
    vms.testvm(&["exec", "--detach", &vms.names[0], "--", "/workloads/bursts"]);

    // By an init system.
    let mut daemon = Daemon::start(&vms, dir.path(), CONFIG, &["--apply"], None);
    until("something is saved", || saves(machine.as_mut()));
    assert!(daemon.end().success(), "{}", daemon.log());
    assert_eq!(limits(machine.as_mut(), vm), plain, "{}", daemon.log());

    // By kill -9, at any time and at those times of which most is feared.
    let state = dir.path().join("state");
    for place in [None, Some("journaled"), Some("limit-part"), Some("written"), Some("written:2")] {
        let mut daemon = Daemon::start(&vms, dir.path(), CONFIG, &["--apply"], place);
        match place {
            Some(_) => assert_eq!(daemon.wait().signal(), Some(9), "{place:?}: {}", daemon.log()),
            None => until("something is saved", || saves(machine.as_mut())),
        }
        let log = daemon.log();
        drop(daemon);
        // The second write may be the first one's undoing: a burst that brings nothing is put back.
        if place != Some("journaled") && place != Some("written:2") {
            assert!(saves(machine.as_mut()), "the killed one could not put it back ({place:?}): {log}");
        }
        let restored = corefit(&["restore", "--state", state.to_str().unwrap()]);
        assert!(restored.status.success(), "{place:?}: {}", String::from_utf8_lossy(&restored.stderr));
        assert_eq!(limits(machine.as_mut(), vm), plain, "{place:?}: {log}");
    }
    // Of a quota that libvirt has for all of the VM, which libvirt's calls change.
    vms.virsh(&["schedinfo", &vms.names[0], "--live", "vcpu_quota=-1", "global_quota=40000"]);
    let whole = |machine: &mut dyn Act| match current(machine, vm, Lever::Quota) {
        Value::Limit(limit) => limit,
        other => panic!("{other:?}"),
    };
    let before = whole(machine.as_mut());
    assert_eq!((before.quota_us, before.period_us), (Some(40_000), 100_000));
    let longer = CONFIG.replace("burst", "long-period");
    let longer = format!("{longer}[[policy.vm]]\nname = \"{}\"\nlatency_ms = 1000\n", vms.names[0]);
    let mut daemon = Daemon::start(&vms, dir.path(), &longer, &["--apply"], Some("limit-part"));
    assert_eq!(daemon.wait().signal(), Some(9), "{}", daemon.log());
    let now = whole(machine.as_mut());
    assert_eq!((now.quota_us, now.period_us), (Some(80_000), 200_000), "{}", daemon.log());
    let restored = corefit(&["restore", "--state", state.to_str().unwrap()]);
    assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
    assert_eq!(whole(machine.as_mut()), before, "{}", daemon.log());
}
