//! `corefit explain`, and `corefit manage --apply`, inside a real guest whose control groups are v2 (`scripts/testvm`).

#[path = "../../linux/tests/vm_support/mod.rs"]
mod vm_support;

use std::path::Path;

use vm_support::{Vms, or_skipped, stripped};

/// The most that a group's use may differ from what it is entitled to, and that from what is expected, in CPUs, in the best of the looks.
const NEAR: f64 = 0.1;
/// Other tests run beside this one.
const LOOKS: usize = 6;

/// In the guest: groups of weights 2 and 1, and one with a quota of 0.3 CPUs, each with two busy loops.
const GROUPS: &str = "cd /sys/fs/cgroup && echo '+cpu' >cgroup.subtree_control && mkdir a b c || exit
    echo 200 >a/cpu.weight; echo 100 >b/cpu.weight; echo '30000 100000' >c/cpu.max
    for group in a a b b c c; do
        setsid sh -c \"echo \\$\\$ >$group/cgroup.procs && exec busyloop\" </dev/null >/dev/null 2>&1 &
    done
    cat a/cgroup.controllers";

#[test]
fn groups_of_a_guest_with_cgroup_v2_get_what_they_are_entitled_to() {
    let dir = tempfile::tempdir().unwrap();
    let program = stripped(Path::new(env!("CARGO_BIN_EXE_corefit")), dir.path());
    let options = ["--name", "v2", "--vcpus", "2", "--memory", "512", "--program", program.to_str().unwrap()];
    let Some(vms) = or_skipped("explain in a guest", Vms::up(1, &options)) else { return };
    let name = &vms.names[0];
    assert!(vms.guest(name, GROUPS).contains("cpu"), "the groups have no cpu controller");
    let mut off = Vec::new();
    for _ in 0..LOOKS {
        let json =
            vms.guest(name, "/workloads/corefit explain --machine cgroups:/a,/b,/c --interval 2s --json");
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["unread"].as_array().map(Vec::len), Some(0), "{json}");
        let mut worst: f64 = 0.0;
        for (number, (vm, entitled)) in [("/a", 1.133), ("/b", 0.567), ("/c", 0.3)].into_iter().enumerate() {
            let seen = &json["vms"][number];
            assert_eq!(seen["name"], vm);
            let number = |field: &str| seen[field].as_f64().unwrap();
            // What the guest's system does besides takes a little.
            worst = worst.max((number("entitled") - entitled).abs());
            worst = worst.max((number("used") - number("entitled")).abs());
            println!("{vm} entitled {:.3} used {:.3}", number("entitled"), number("used"));
        }
        assert_eq!(json["vms"][2]["cap"], 0.3);
        off.push(worst);
        if worst < NEAR {
            return;
        }
    }
    panic!("not within {NEAR} CPUs in any look: {off:.3?}");
}

/// In the guest: a busy group without a cpuset of its own is sized, until that is done.
const SIZED: &str = "cd /sys/fs/cgroup && echo '+cpu +cpuset' >cgroup.subtree_control && mkdir a || exit
    setsid sh -c 'echo $$ >a/cgroup.procs && exec busyloop' </dev/null >/dev/null 2>&1 &
    printf '%s\n' 'state = \"/run/corefit-state\"' 'metrics = \"off\"' '[policy]' 'interval_ms = 300' 'dwell_ms = 0' \
        'lever_ms = 0' '[[policy.vm]]' 'name = \"/a\"' 'size = \"vcpu-bal\"' 'max = 1' >/run/corefit.toml
    cat a/cpuset.cpus a/cpuset.cpus.effective
    /workloads/corefit manage --apply --machine cgroups:/a --config /run/corefit.toml >/run/log 2>&1 &
    for n in $(seq 60); do [ -z \"$(cat a/cpuset.cpus)\" ] || break; sleep 1; done
    cat a/cpuset.cpus.effective; kill $!; wait $!; echo status $?; cat a/cpuset.cpus.effective /run/log";

/// The kernel takes no cpuset away from a group with processes.
#[test]
fn a_group_of_v2_that_had_no_cpuset_of_its_own_may_use_all_again_after_it_was_sized() {
    let dir = tempfile::tempdir().unwrap();
    let program = stripped(Path::new(env!("CARGO_BIN_EXE_corefit")), dir.path());
    let options =
        ["--name", "v2set", "--vcpus", "2", "--memory", "512", "--program", program.to_str().unwrap()];
    let Some(vms) = or_skipped("manage in a guest", Vms::up(1, &options)) else { return };
    let said = vms.guest(&vms.names[0], SIZED);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[..2], ["", "0-1"], "{said}");
    assert!(lines[2].parse::<u32>().is_ok(), "it is not sized to one: {said}");
    assert_eq!(lines[3..5], ["status 0", "0-1"], "{said}");
    assert!(said.contains("put back: 1;") && said.contains("pending: 0"), "{said}");
}
