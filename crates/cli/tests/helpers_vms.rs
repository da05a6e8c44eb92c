//! `corefit manage` with `helpers = "light"` on three real VMs (`scripts/testvm`) whose vCPUs share two pCPUs. On a Linux that
//! does not keep to weights where loads change (6.13 to 6.19; docs/model.md) one of them starves; with helper threads that weigh
//! little none does any more, and after any end they weigh what they did.

#[path = "../../linux/tests/vm_support/mod.rs"]
mod vm_support;

#[allow(dead_code, reason = "every test file uses a part of this")]
mod manage_support;

use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use corefit_core::Weight;
use corefit_core::machine::{Act, HostEstimate, Lever, Value, VmId, estimate};
use manage_support::{Daemon, comes, corefit, current, until};
use vm_support::{Vms, or_skipped, stolen};

const CONFIG: &str = "metrics = \"off\"\ntell = false\n[policy]\nsize = \"none\"\nhelpers = \"light\"\n";
/// How long a VM may take to starve, and to get its part again.
const PATIENCE: Duration = Duration::from_secs(60);

fn weights(machine: &mut dyn Act, vms: &[VmId]) -> Vec<f64> {
    let weight = |vm: &VmId| match current(machine, vm, Lever::HelperWeight) {
        Value::Weight(Weight(weight)) => weight,
        other => panic!("{other:?}"),
    };
    vms.iter().map(weight).collect()
}

/// What happens in some seconds, and what part of this machine others took meanwhile: what is available does not count that.
fn watch(machine: &mut dyn Act, vms: &Vms, seconds: u64) -> (HostEstimate, f64) {
    let before = vms.look(machine);
    std::thread::sleep(Duration::from_secs(seconds));
    let seen = estimate(&before, &vms.look(machine)).unwrap();
    let part = stolen(&seen) / seen.pcpus.len() as f64;
    (seen, part)
}

#[test]
fn vms_that_starve_get_their_parts_once_helper_threads_weigh_little_and_these_are_put_back() {
    let options = ["--name", "helpers", "--heavy-helpers", "--vcpus", "2", "--pin", "0=0", "--pin", "1=1"];
    let Some(vms) = or_skipped("helper threads of real VMs", Vms::up(3, &options)) else { return };
    let mut machine = vms.machine();
    let seen = vms.look(machine.as_mut());
    let id = |name: &String| seen.vms.iter().find(|vm| vm.name == *name).unwrap().id.clone();
    let ids: Vec<VmId> = vms.names.iter().map(id).collect();
    let before = weights(machine.as_mut(), &ids);
    let light = |machine: &mut dyn Act| {
        let now = weights(machine, &ids);
        now.iter().zip(&before).all(|(now, before)| (0.005..0.02).contains(&(now / before)))
    };
    // The lever, one VM's alone.
    machine.set(&ids[1], Lever::HelperWeight, &Value::Weight(Weight(before[1] / 2.0))).unwrap();
    assert_eq!(weights(machine.as_mut(), &ids), [before[0], before[1] / 2.0, before[2]]);
    let seen = vms.look(machine.as_mut());
    let shown = seen.vms.iter().find(|vm| vm.id == ids[1]).unwrap();
    assert_eq!(shown.helpers[0].weight, Some(Weight(before[1] / 2.0)), "the next look shows it");
    machine.set(&ids[1], Lever::HelperWeight, &Value::Weight(Weight(before[1]))).unwrap();

    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let mut daemon = Daemon::start(&vms, dir.path(), CONFIG, &["--apply"], None);
    vms.names.iter().for_each(|name| vms.testvm(&["busy", name, "2"]));
    if !comes(PATIENCE, || light(machine.as_mut())) {
        let _ = writeln!(std::io::stderr(), "skipped: this kernel kept to weights for {PATIENCE:?}");
        assert!(daemon.end().success(), "{}", daemon.log());
        assert_eq!(weights(machine.as_mut(), &ids), before);
        return;
    }
    // It is said once all of a step is done.
    let why = "pCPUs that were available to it: this kernel moves a group ahead";
    until("it says why", || daemon.log().contains(why));
    let part = |(seen, stolen): (HostEstimate, f64)| {
        let of = |id: &VmId| seen.vms.iter().find(|vm| vm.seen.id == *id).unwrap();
        let used = ids.iter().map(|id| of(id).activity.used.unwrap().0 / of(id).available.unwrap().0);
        used.fold(f64::INFINITY, f64::min) / (1.0 - stolen)
    };
    let mut parts = Vec::new();
    let even = comes(PATIENCE, || {
        parts.push(part(watch(machine.as_mut(), &vms, 5)));
        parts.last().is_some_and(|least| *least > 0.85)
    });
    assert!(even, "the least part of what is available that a VM had: {parts:?}");
    assert!(daemon.end().success(), "{}", daemon.log());
    assert_eq!(weights(machine.as_mut(), &ids), before);

    // By kill -9, when it has written the first.
    let mut daemon = Daemon::start(&vms, dir.path(), CONFIG, &["--apply"], Some("written"));
    if comes(PATIENCE, || weights(machine.as_mut(), &ids) != before) {
        assert_eq!(daemon.wait().signal(), Some(9), "{}", daemon.log());
        let restored = corefit(&["restore", "--state", state.to_str().unwrap()]);
        let said = format!("{restored:?}");
        assert!(restored.status.success() && said.contains("of VMs that have ended: 0"), "{said}");
        assert_eq!(weights(machine.as_mut(), &ids), before, "{said}");
    } else {
        let _ =
            writeln!(std::io::stderr(), "skipped: kill -9, for no VM starved a second time for {PATIENCE:?}");
    }
}
