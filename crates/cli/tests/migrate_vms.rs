//! A real live migration between two libvirtds (`scripts/testvm`), each a host of its own: nothing is missed, nothing
//! is left changed.

#[path = "../../linux/tests/vm_support/mod.rs"]
mod vm_support;

#[expect(dead_code, reason = "the rest is for tests of one host")]
mod manage_support;

use std::path::Path;
use std::time::Duration;

use corefit_core::machine::{Machine, MachineError};
use corefit_linux::libvirt::{Options, open};
use manage_support::{Daemon, Guest, corefit, until};
use vm_support::{Vms, or_skipped};

/// Every VM may use one pCPU of two, as there are two.
const CONFIG: &str = "metrics = \"off\"\n[policy]\ninterval_ms = 500\ndwell_ms = 0\nsize = \"vcpu-bal\"\n";
const ALL: &str = "0-3";

/// Whether a VM is seen in a look; `None` while nobody answers.
fn sees(machine: &mut dyn Machine, name: &str) -> Option<bool> {
    match machine.observe() {
        Ok(seen) => Some(seen.vms.iter().any(|vm| vm.name == name)),
        Err(MachineError::Gone(_)) => None,
        Err(error) => panic!("a look: {error}"),
    }
}

#[test]
fn a_vm_that_migrates_is_seen_where_it_is_and_gets_back_there_what_was_changed_before() {
    let dir = tempfile::Builder::new().prefix("cf-").tempdir_in("/run").unwrap();
    let state = |name: &str| dir.path().join(name);
    let options = ["--name", "mover", "--vcpus", "4", "--memory", "256", "--busy", "4"];
    let here = Vms::up_on(Some(&state("a")), 2, &options);
    let Some(mut here) = or_skipped("migrating a VM", here) else { return };
    let mut there = Vms::up_on(Some(&state("b")), 1, &["--name", "stays", "--vcpus", "1"]).unwrap();
    let name = here.names[0].clone();
    let look = |vms: &Vms| open(&vms.uri, Options { timeout: Duration::from_secs(1), guests: None });
    let (mut from, mut to) = (look(&here), look(&there));
    until("it is seen here and not there", || {
        sees(from.as_mut(), &name) == Some(true) && sees(to.as_mut(), &name) == Some(false)
    });

    // Sized here, with a note in its metadata.
    std::fs::create_dir(state("daemon")).unwrap();
    let mut daemon = Daemon::start(&here, &state("daemon"), CONFIG, &["--apply"], None);
    until("it has fewer vCPUs", || Guest::new(&here, &name).online() != ALL);

    // It moves while both hosts are looked at.
    let moved = std::thread::scope(|scope| {
        let moving = scope.spawn(|| here.migrate(&name, &mut there));
        while !moving.is_finished() {
            sees(from.as_mut(), &name);
            sees(to.as_mut(), &name);
            std::thread::sleep(Duration::from_millis(50));
        }
        moving.join()
    });
    moved.unwrap();
    until("it is seen there", || sees(to.as_mut(), &name) == Some(true));
    until("it is not seen here", || sees(from.as_mut(), &name) == Some(false));
    until("the other is", || sees(from.as_mut(), &here.names[0]) == Some(true));
    let guest = Guest::new(&there, &name);
    assert_ne!(guest.online(), ALL, "it has moved as it was");

    // The daemon that changed it can put back only what is still here, and says so.
    let status = daemon.end();
    assert!(status.success(), "{}", daemon.log());
    assert_eq!(Guest::new(&here, &here.names[0]).online(), ALL);
    assert_ne!(guest.online(), ALL, "nobody has touched it from there");

    // Its note has travelled with it.
    let restored = corefit(&[
        "restore",
        "--machine",
        &format!("libvirt:{}", there.uri),
        "--state",
        text(&state("other")),
    ]);
    assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
    assert_eq!(guest.online(), ALL);
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
