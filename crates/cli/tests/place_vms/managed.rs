//! `corefit manage --apply` with `place = "corefit"`: what it corrects is put back at the end.

use std::io::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::manage_support::{Daemon, PATIENCE, corefit, until};
use crate::vm_support::{Vms, or_skipped, stripped};
use crate::{CONFIG, alone, json, of, pcpus, stacked, waiting_for_each_other};

#[test]
fn stacked_vcpus_of_a_libvirt_vm_are_moved_apart_and_put_back_whatever_ends_the_daemon() {
    if pcpus() < 2 {
        let _ = writeln!(std::io::stderr(), "skipped: one pCPU is not enough to place two vCPUs");
        return;
    }
    let _alone = alone();
    let options = ["--name", "corrected", "--vcpus", "2", "--pin", "0=0", "--pin", "1=0"];
    let Some(vms) = or_skipped("correcting a libvirt VM", Vms::up(1, &options)) else { return };
    let name = &vms.names[0];
    vms.testvm(&["busy", name, "2"]);
    assert_eq!(vms.pins(name), ["0", "0"]);
    assert_eq!(stacked(&vms, name), 1);
    let before = waiting_for_each_other(&vms, name);
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let state = state.to_str().unwrap();

    // Without --apply it says so and changes nothing.
    let mut daemon = Daemon::start(&vms, dir.path(), CONFIG, &[], None);
    until("it says what it would do", || daemon.log().contains("would set"));
    assert!(daemon.end().success());
    assert_eq!(vms.pins(name), ["0", "0"]);

    // With it, each has a pCPU, and they do not wait for each other any more.
    let apart = || {
        let pins = vms.pins(name);
        pins.len() == 2 && pins[0] != pins[1]
    };
    let mut daemon = Daemon::start(&vms, dir.path(), CONFIG, &["--apply"], None);
    until("each vCPU has a pCPU", apart);
    assert_eq!(stacked(&vms, name), 0);
    let status = json(&["status", "--json", "--state", state]);
    let changed = of(&status["vms"], name)["changed"].to_string();
    assert!(changed.contains("affinity of vCPU") && changed.contains("before 0"), "{status}");
    crate::apart(&vms, name, before, || daemon.log());
    assert!(apart(), "it stays so: {:?}, {}", vms.pins(name), daemon.log());
    assert!(daemon.end().success(), "{}", daemon.log());
    assert_eq!(vms.pins(name), ["0", "0"], "{}", daemon.log());
    assert_eq!(stacked(&vms, name), 1);

    // A kill -9 leaves it; restore puts it back.
    let mut daemon = Daemon::start(&vms, dir.path(), CONFIG, &["--apply"], Some("written"));
    assert_eq!(daemon.wait().signal(), Some(9), "{}", daemon.log());
    assert!(apart());
    assert!(corefit(&["restore", "--state", state]).status.success());
    assert_eq!(vms.pins(name), ["0", "0"]);

    // What an administrator pins meanwhile stands, at the end as well.
    let mut daemon = Daemon::start(&vms, dir.path(), CONFIG, &["--apply"], None);
    until("each vCPU has a pCPU", apart);
    let moved = vms.pins(name).iter().position(|pin| pin != "0").unwrap();
    vms.virsh(&["vcpupin", name, &moved.to_string(), "0-1", "--live"]);
    // The status says so at once; the log, when the vCPU would be moved again.
    let says = || {
        let answer = corefit(&["status", "--json", "--state", state]);
        let status = serde_json::from_slice::<Value>(&answer.stdout); // none from one that is busy
        status.is_ok_and(|status| {
            of(&status["vms"], name)["changed"].to_string().contains("\"changed_to\":\"0-1\"")
        })
    };
    until("it notices", || says() || daemon.log().contains("changed by somebody else"));
    assert!(daemon.end().success(), "{}", daemon.log());
    let pins = vms.pins(name);
    assert_eq!((pins[moved].as_str(), pins[1 - moved].as_str()), ("0-1", "0"), "{}", daemon.log());
}

/// In the guest: two busy loops on the threads of one core of node 0, whose memory is on node 1; and two on the cores of
/// node 1.
const GROUPS: &str = "cd /sys/fs/cgroup && echo '+cpu +cpuset' >cgroup.subtree_control && mkdir a b || exit
    echo 0-1 >a/cpuset.cpus && echo 4,6 >b/cpuset.cpus && echo 1 >a/cpuset.mems && echo 1 >b/cpuset.mems || exit
    for group in a b; do
        for i in 1 2; do
            setsid sh -c \"echo \\$\\$ >$group/cgroup.procs && exec busyloop\" </dev/null >/dev/null 2>&1 &
        done
    done";

#[test]
fn the_memory_of_a_group_follows_its_vcpus_on_a_host_of_two_nodes_and_is_put_back() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let program = stripped(Path::new(env!("CARGO_BIN_EXE_corefit")), dir.path());
    let options = ["--name", "nodes", "--vcpus", "8", "--smt", "2", "--memory", "768", "--program"];
    let options = [&options[..], &[program.to_str().unwrap()]].concat();
    let Some(vms) = or_skipped("moving memory in a guest", Vms::up(1, &options)) else { return };
    let guest = |command: &str| vms.guest(&vms.names[0], command).trim().to_owned();
    guest(GROUPS);
    let settings = |group: &str| {
        let cat = format!("cd /sys/fs/cgroup/{group} && cat cpuset.cpus cpuset.mems");
        guest(&cat).split_whitespace().map(ToOwned::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(
        (settings("a"), settings("b")),
        (vec!["0-1".into(), "1".into()], vec!["4,6".into(), "1".into()])
    );
    // Pages of a process of the group on node 0, and on node 1.
    let pages = || {
        // (None of one that is not there yet.)
        let stack = guest(
            "grep stack /proc/$(head -n 1 /sys/fs/cgroup/a/cgroup.procs)/numa_maps 2>/dev/null || true",
        );
        ["N0=", "N1="].map(|node| stack.contains(node))
    };
    until("its loops run with their memory on node 1", || pages() == [false, true]);

    // Else the two may change places.
    let config = format!("{CONFIG}[[policy.vm]]\nname = \"/b\"\nexclude = true\n");
    vms.manage_groups(&vms.names[0], &config);
    let log = || guest("cat /run/log");
    let cores = ["0,2", "0,3", "1-2", "1,3"];
    let moved = |now: &[String]| cores.contains(&now[0].as_str()) && now[1] == "0";
    let begun = Instant::now();
    while !moved(&settings("a")) {
        let late = begun.elapsed() > PATIENCE;
        assert!(!late, "a: {:?}, b: {:?}, {}", settings("a"), settings("b"), log());
        std::thread::sleep(Duration::from_millis(500));
    }
    until("its pages are there", || pages() == [true, false]);
    assert_eq!(settings("b"), ["4,6", "1"], "{}", log());

    vms.end_manage(&vms.names[0]);
    assert_eq!(settings("a"), ["0-1", "1"], "{}", log());
    until("its pages are where they were", || pages() == [false, true]);
}
