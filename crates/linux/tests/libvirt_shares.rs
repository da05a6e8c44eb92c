//! What VMs are predicted to get against what they get: real VMs (`scripts/testvm`) with busy loops,
//! on pCPUs 0 and 1.
//!
//! Each prediction is made from the window before the one that it is compared with. The short form
//! looks for some seconds; the long one, `make vm-shares`, at five windows of a minute each, quarter of
//! an hour on a machine where nobody else does anything.

mod vm_support;

use std::time::Duration;

use corefit_core::machine::{HostEstimate, Role, Snapshot, estimate};
use vm_support::{Vms, or_skipped};

/// The most that a VM's mean over the windows may differ from the prediction, in pCPUs.
const NEAR: f64 = 0.05;
/// The same in the short form, whose windows are a few of the kernel's balancing intervals.
const ROUGH: f64 = 0.15;

/// What one VM of a case is set to; it has two vCPUs.
struct Set {
    weight: u32,
    /// Of everything in it, in percent of a pCPU.
    quota: Option<u32>,
    /// The pCPUs of its vCPUs.
    pins: [&'static str; 2],
    /// Busy loops in the guest.
    busy: u32,
}

const PLAIN: Set = Set { weight: 1024, quota: None, pins: ["0-1", "0-1"], busy: 2 };

/// A steady case, and what design.md or common sense says that its VMs get.
struct Case(&'static str, [Set; 3], [f64; 3]);

fn cases() -> [Case; 4] {
    let idle = || Set { busy: 0, ..PLAIN };
    [
        Case("weights 1:2:1", [PLAIN, Set { weight: 2048, ..PLAIN }, PLAIN], [0.5, 1.0, 0.5]),
        Case("a quota of half a pCPU", [Set { quota: Some(50), ..PLAIN }, PLAIN, idle()], [0.5, 1.5, 0.0]),
        Case(
            "a0 shares pCPU 0 with b, a1 is alone",
            [Set { pins: ["0", "1"], ..PLAIN }, Set { pins: ["0", "0"], ..PLAIN }, idle()],
            [4.0 / 3.0, 2.0 / 3.0, 0.0],
        ),
        Case("one is idle", [PLAIN, idle(), PLAIN], [1.0, 0.0, 1.0]),
    ]
}

#[test]
fn vms_get_what_is_predicted() {
    let Some(vms) = or_skipped("vms_get_what_is_predicted", Vms::up(3, &["--vcpus", "2"])) else { return };
    for case in cases() {
        case.compare(&vms, 5, Duration::from_secs(4), ROUGH);
    }
}

#[test]
#[ignore = "takes half an hour on a quiet machine: make vm-shares"]
fn vms_get_what_is_predicted_for_five_minutes_each() {
    let Some(vms) =
        or_skipped("vms_get_what_is_predicted_for_five_minutes_each", Vms::up(3, &["--vcpus", "2"]))
    else {
        return;
    };
    let seconds = std::env::var("COREFIT_WINDOW_S").ok().and_then(|s| s.parse().ok()).unwrap_or(60);
    for case in cases() {
        case.compare(&vms, 5, Duration::from_secs(seconds), NEAR);
    }
}

impl Case {
    fn compare(&self, vms: &Vms, windows: usize, window: Duration, near: f64) {
        let Case(what, sets, expected) = self;
        for (set, name) in sets.iter().zip(&vms.names) {
            set.apply(vms, name);
        }
        let mut machine = vms.machine();
        let mut look = || machine.observe().unwrap();
        let mut watch = |before: Snapshot, window: Duration| {
            std::thread::sleep(window);
            let after = look();
            (estimate(&before, &after).unwrap(), after)
        };
        // To settle; then the first window to predict from.
        let (_, start) = watch(Snapshot::default(), Duration::from_secs(2));
        let (mut predicted, mut before) = watch(start, window.min(Duration::from_secs(10)));
        let mut seen: [Vec<(f64, f64)>; 3] = Default::default();
        for _ in 0..windows {
            let (now, after) = watch(before, window);
            for (name, seen) in vms.names.iter().zip(&mut seen) {
                seen.push((of(&predicted, name).0, of(&now, name).1));
            }
            (predicted, before) = (now, after);
        }
        // Whoever else runs takes from what design.md expects.
        let others = predicted.vms.iter().filter(|vm| vm.seen.role == Role::Other);
        let others: f64 = others.filter_map(|vm| vm.activity.used).map(|cpus| cpus.0).sum();
        println!("{what}: {windows} windows of {window:?}, pCPUs; others use {others:.3}");
        for (name, seen) in vms.names.iter().zip(&seen) {
            let (predicted, measured) = (mean(seen, |s| s.0), mean(seen, |s| s.1));
            let used: Vec<String> = seen.iter().map(|s| format!("{:.3}", s.1)).collect();
            println!("  {name}: predicted {predicted:.3}, used {measured:.3} ({})", used.join(" "));
        }
        for vm in predicted.vms.iter().filter(|vm| vm.demand.is_none_or(|cpus| cpus.0 > 0.005)) {
            let of = |cpus: Option<corefit_core::Cpus>| cpus.map_or("?".into(), |cpus| format!("{cpus:.3}"));
            let (used, waiting) = (of(vm.activity.used), of(vm.activity.waiting));
            let demand = of(vm.demand);
            println!(
                "    {}: used {used}, waited for {waiting}, wants {demand}; {}",
                vm.seen.name, vm.binding
            );
        }
        for (((name, seen), set), expected) in vms.names.iter().zip(&seen).zip(sets).zip(expected) {
            let (predicted, measured) = (mean(seen, |s| s.0), mean(seen, |s| s.1));
            if set.busy == 0 {
                assert!(measured < 0.1, "{what}: {name} is idle");
                continue;
            }
            let off = (measured - predicted).abs();
            assert!(off <= near, "{what}: {name} {off:.3} pCPUs off the prediction, {near} allowed");
            let right = expected - others - 0.1..=expected + 0.1;
            assert!(right.contains(&predicted), "{what}: {name} has {predicted:.3}, expected {expected:.3}");
        }
    }
}

/// What a VM has available, and what it used.
fn of(estimate: &HostEstimate, name: &str) -> (f64, f64) {
    let vm = estimate.vms.iter().find(|vm| vm.seen.role == Role::Vm && vm.seen.name == name);
    let vm = vm.unwrap_or_else(|| panic!("{name} is not seen"));
    let known = |cpus: Option<corefit_core::Cpus>| cpus.expect("all is measured").0;
    (known(vm.available), known(vm.activity.used))
}

#[expect(clippy::cast_precision_loss, reason = "a handful")]
fn mean(seen: &[(f64, f64)], pick: fn(&(f64, f64)) -> f64) -> f64 {
    seen.iter().map(pick).sum::<f64>() / seen.len() as f64
}

impl Set {
    fn apply(&self, vms: &Vms, name: &str) {
        let quota = self.quota.map_or("-1".into(), |percent| (i64::from(percent) * 1000).to_string());
        let settings = [format!("cpu_shares={}", self.weight), format!("global_quota={quota}")];
        vms.virsh(&["schedinfo", name, "--live", &settings[0], "global_period=100000", &settings[1]]);
        for (vcpu, pin) in self.pins.iter().enumerate() {
            vms.virsh(&["vcpupin", name, &vcpu.to_string(), pin, "--live"]);
        }
        vms.testvm(&["busy", name, &self.busy.to_string()]);
    }
}
