//! Placing on real VMs (`scripts/testvm`): bad pinning is found and corrected, by what is printed or by `corefit manage --apply`,
//! which is read back and measured.

#[path = "../../../linux/tests/vm_support/mod.rs"]
mod vm_support;

#[path = "../manage_support/mod.rs"]
#[expect(dead_code, reason = "the rest is for tests of sizes")]
mod manage_support;
mod managed;
mod printed;

use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use manage_support::{PATIENCE, comes, corefit};
use serde_json::Value;
use vm_support::Vms;

const CONFIG: &str = "metrics = \"off\"\ntell = false\n\
    [policy]\ninterval_ms = 500\ndwell_ms = 1000\nsize = \"none\"\nplace = \"corefit\"\n";
/// Looks for a measured figure: other tests use the machine, too.
const LOOKS: usize = 8;
/// Two busy vCPUs that wait for less than this, pCPUs, are not on one.
const APART: f64 = 0.9;

/// One VM at a time: another keeps all CPUs of a small machine busy.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pcpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// What it prints; nothing where libvirtd is busy, which is asked again.
fn json(args: &[&str]) -> Value {
    let mut output = corefit(args);
    comes(PATIENCE, || {
        if output.stdout.is_empty() {
            output = corefit(args);
        }
        !output.stdout.is_empty()
    });
    assert!(matches!(output.status.code(), Some(0 | 1)), "{args:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{args:?}: {error}: {output:?}"))
}

fn of<'a>(list: &'a Value, name: &str) -> &'a Value {
    let found = list.as_array().unwrap().iter().find(|vm| vm["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {list}"))
}

/// How often `corefit check` finds both vCPUs on one pCPU.
fn stacked(vms: &Vms, name: &str) -> usize {
    let found = json(&["check", "--json", "--machine", &format!("libvirt:{}", vms.uri)]);
    let findings = found["findings"].as_array().unwrap().iter();
    findings.filter(|f| f["vm"] == *name && f["rule"] == "stacked").count()
}

/// pCPUs that its vCPUs wait for, in one look. (Its helper threads weigh so little that one of them may wait for nearly one.)
fn waiting(vms: &Vms, name: &str) -> f64 {
    let machine = format!("libvirt:{}", vms.uri);
    let look = |_| -> Option<f64> {
        let seen = json(&["explain", "--json", "--interval", "1s", "--machine", &machine]);
        // None while libvirtd is busy.
        let vm = seen["vms"].as_array()?.iter().find(|vm| vm["name"] == name)?;
        vm["vcpus"].as_array()?.iter().map(|vcpu| vcpu["waiting"].as_f64()).sum()
    };
    (0..LOOKS).find_map(look).expect("its waiting was never seen")
}

/// That of two busy vCPUs on one pCPU: one waits at any time, whatever else the machine does, once both are busy.
fn waiting_for_each_other(vms: &Vms, name: &str) -> f64 {
    let mut looks = Vec::new();
    while looks.last().is_none_or(|waits| *waits <= APART) {
        assert!(looks.len() < LOOKS, "two busy vCPUs on one pCPU waited for {looks:?} pCPUs");
        looks.push(waiting(vms, name));
    }
    looks[looks.len() - 1]
}

/// They do not wait for each other any more: in the best of the looks, for other tests run beside this one.
#[track_caller]
fn apart(vms: &Vms, name: &str, before: f64, log: impl Fn() -> String) {
    let looks = (0..4 * LOOKS).map(|_| waiting(vms, name));
    let after: Vec<f64> = looks.take_while(|waiting| *waiting > APART).collect();
    let busy = || format!("{}\n{}", log(), busiest());
    assert!(after.len() < 4 * LOOKS, "waited {before} before and {after:?} afterwards:\n{}", busy());
}

/// What runs on the machine, and where: somebody else may keep a pCPU busy.
fn busiest() -> String {
    let args = ["-eLo", "tid,psr,pcpu,time,comm,args", "--sort=-pcpu"];
    let output = Command::new("ps").args(args).output().unwrap();
    String::from_utf8_lossy(&output.stdout).lines().take(12).map(|line| format!("{line:.160}\n")).collect()
}
