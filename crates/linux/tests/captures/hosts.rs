//! Control groups as VMs, on captured machines (`captures/README.md`).

use std::path::Path;
use std::time::Duration;

use corefit_core::machine::{HostEstimate, Machine, Role, Snapshot, contract, estimate};
use corefit_linux::Root;
use corefit_linux::host::{Cgroups, Choice};

fn machine(name: &str, choice: &str) -> Cgroups {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures").join(name);
    let (t0, t1) = (dir.join("t0"), dir.join("t1"));
    Cgroups::captured(vec![Root::at(&t0), Root::overlay(&t1, &t0)], choice.parse().unwrap()).unwrap()
}

fn both(name: &str, choice: &str) -> (Snapshot, HostEstimate) {
    let mut machine = machine(name, choice);
    let before = machine.observe().unwrap();
    assert!(machine.pass(Duration::ZERO).unwrap());
    let after = machine.observe().unwrap();
    let result = estimate(&before, &after).unwrap();
    (after, result)
}

fn vm<'a>(host: &'a HostEstimate, name: &str) -> &'a corefit_core::machine::VmEstimate {
    let names: Vec<_> = host.vms.iter().map(|vm| vm.seen.name.as_str()).collect();
    host.vms.iter().find(|vm| vm.seen.name == name).unwrap_or_else(|| panic!("{name} among {names:?}"))
}

/// Capture, groups chosen, and what VMs are entitled to.
type Expected = (&'static str, &'static str, &'static [(&'static str, f64)]);

const POD: &str = "/kubepods.slice/kubepods-burstable.slice/\
    kubepods-burstable-pod0a1b2c3d_1111_2222_3333_444455556666.slice";

const EXPECTED: &[Expected] = &[
    // v1. Weights are equal, but the neighbour wants no more than the 0.98 that it used.
    ("busy-sibling", "/mine", &[("/mine", 1.02)]),
    // All three are VMs, 1024, 1024 and 4096: the weight of one that rests counts in an entitlement.
    ("busy-sibling", "", &[("/mine", 1.0 / 3.0), ("/neighbour", 1.0 / 3.0), ("/quiet", 4.0 / 3.0)]),
    // v2. One CPU for each slice, below 200 : 100.
    ("v2-vm", "/a.slice/*", &[("/a.slice/mine", 2.0 / 3.0), ("/a.slice/theirs", 1.0 / 3.0)]),
    // v1 with other hierarchies: system.slice may use three of the CPUs, user.slice two.
    ("hybrid", "/user.slice", &[("/user.slice", 2.0)]),
];

#[test]
fn each_captured_host_gives_its_vms_their_entitlements() {
    for (name, choice, expected) in EXPECTED {
        let (_, host) = both(name, choice);
        for (group, entitled) in *expected {
            let found = vm(&host, group).entitled.unwrap().0;
            assert!((found - entitled).abs() < 1e-9, "{name} {group}: {found}, not {entitled}");
        }
        let vms = host.vms.iter().filter(|vm| vm.seen.role == Role::Vm).count();
        assert_eq!(vms, expected.len(), "{name} {choice}");
        assert_eq!(host.unread, [], "{name}");
    }
}

#[test]
fn containers_of_a_pod_share_its_quota_and_their_neighbours_are_counted_whole() {
    let (after, host) = both("kubernetes", "");
    // 1.5, of which 0.005 went to what is in the pod and not in a container; 39 : 1.
    let container = vm(&host, &format!("{POD}/cri-containerd-aa11bb22cc33.scope"));
    assert!((container.entitled.unwrap().0 - 1.495 * 39.0 / 40.0).abs() < 1e-9, "{:?}", container.entitled);
    assert_eq!(container.binding, format!("1.46 of vCPUs 0-7: the cap of slice {POD} is used up"));
    let groups: Vec<&str> = after.groups.iter().map(|group| group.name.as_str()).collect();
    assert_eq!(groups, ["/kubepods.slice", "/kubepods.slice/kubepods-burstable.slice", POD]);
    assert_eq!(after.groups[2].parent.as_deref(), Some(groups[1]));
    let other = vm(&host, "/kubepods.slice/kubepods-pod77.slice");
    assert_eq!((other.seen.role, other.entitled, other.seen.weight.unwrap().0), (Role::Other, None, 157.0));
    assert!((other.activity.used.unwrap().0 - 3.9).abs() < 1e-9, "{:?}", other.activity);
}

#[test]
fn sessions_and_threads_in_the_root_compete_and_those_at_rest_are_left_out() {
    let (_, host) = both("this-machine", "/corefit-capture");
    let busy = vm(&host, "session 10 (p1052)");
    assert!((busy.activity.used.unwrap().0 - 0.509).abs() < 1e-3, "{:?}", busy.activity);
    assert_eq!((busy.seen.weight.unwrap().0, busy.seen.vcpus.len()), (1024.0, 2));
    assert!(host.vms.iter().filter(|vm| vm.seen.name.starts_with("session")).count() < 10);
    assert!(vm(&host, "kernel and ended tasks in /").activity.used.unwrap().0 < 0.1);
}

#[test]
fn where_no_group_can_be_a_vm_the_error_says_what_there_is() {
    let error = |name, choice| machine(name, choice).observe().unwrap_err().to_string();
    assert_eq!(
        error("busy-sibling", "/docker/*,/x"),
        "no control group matches /docker/*,/x; groups at the top: /mine, /neighbour, /quiet (in a path, * stands \
         for any text of a name, ? for one character, and nothing else is special)"
    );
    assert!(error("docker-v2", "").contains("no control groups but the top one"));
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures/no-cgroups/t0");
    let none = Cgroups::open(Root::at(&dir), Choice::Usual).map(drop).unwrap_err().to_string();
    assert!(none.contains("/proc/self/mountinfo: a mount of control groups"), "{none}");
}

#[test]
fn a_group_that_holds_another_chosen_one_is_a_slice_and_the_note_says_so() {
    let (after, host) = both("v2-vm", "/a.slice,/a.slice/mine");
    assert_eq!(after.notes, ["\"/a.slice\": no VM, for it holds another one that was named"]);
    assert_eq!(vm(&host, "/a.slice/theirs").seen.role, Role::Other);
}

#[test]
fn every_capture_with_groups_keeps_to_the_contract() {
    let captures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures");
    let mut with_groups = 0;
    for entry in std::fs::read_dir(captures).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if !entry.path().join("t0").is_dir() || name == "no-cgroups" {
            continue;
        }
        match contract::observing(&mut machine(&name, ""), Duration::from_millis(1)) {
            Ok(()) => with_groups += 1,
            Err(why) => assert!(why.contains("no control groups but the top one"), "{name}: {why}"),
        }
    }
    assert!(with_groups >= 7, "{with_groups}");
}
