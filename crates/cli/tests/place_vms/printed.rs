//! What `corefit check`, `topology --place` and `profile --isolate` print and do; of groups in a guest: `corefit manage --apply`.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use corefit_core::CpuSet;
use serde_json::Value;

use crate::manage_support::{PATIENCE, comes};
use crate::vm_support::{Vms, or_skipped, stripped};
use crate::{CONFIG, LOOKS, alone, apart, json, of, pcpus, stacked, waiting_for_each_other};

#[test]
fn a_libvirt_vm_stacked_on_one_pcpu_is_found_and_what_is_printed_corrects_it() {
    if pcpus() < 2 {
        let _ = writeln!(std::io::stderr(), "skipped: one pCPU is not enough to place two vCPUs");
        return;
    }
    let _alone = alone();
    let options = ["--name", "placed", "--vcpus", "2", "--pin", "0=0", "--pin", "1=0"];
    let Some(vms) = or_skipped("placing a libvirt VM", Vms::up(1, &options)) else { return };
    let (name, machine) = (&vms.names[0], format!("libvirt:{}", vms.uri));
    vms.testvm(&["busy", name, "2"]);
    assert_eq!(stacked(&vms, name), 1);
    let before = waiting_for_each_other(&vms, name);
    let planned = || {
        let plan = json(&["plan", "--json", "--place", "corefit", "--size", "none", "--machine", &machine]);
        let own = plan["actions"].as_array().unwrap().iter().filter(|action| action["name"] == **name);
        let own = own.filter(|action| action["lever"] != "what the guest is told");
        own.map(|action| (action["lever"].to_string(), action["to"].to_string())).collect::<Vec<_>>()
    };
    let moves = planned();
    assert!(!moves.is_empty() && moves.iter().all(|(lever, _)| lever.contains("affinity")), "{moves:?}");
    let proposed = json(&["topology", "--json", "--place", "corefit", "--machine", &machine]);
    let placement = &proposed["placement"];
    assert_eq!(placement["then"]["cost"]["stacked"], 0, "{placement}");
    let commands = of(&placement["vms"], name)["commands"].as_array().unwrap();
    assert!(!commands.is_empty(), "{placement}");
    for command in commands {
        let command = command.as_str().unwrap();
        assert!(Command::new("sh").args(["-c", command]).status().unwrap().success(), "{command}");
    }
    assert_eq!(stacked(&vms, name), 0);
    assert_eq!(planned(), [], "what was planned is done");
    let again = json(&["topology", "--json", "--place", "corefit", "--machine", &machine]);
    assert!(of(&again["placement"]["vms"], name)["commands"].as_array().unwrap().is_empty(), "{again}");
    apart(&vms, name, before, String::new);
}

/// `corefit profile --isolate --vm` keeps vCPUs on pCPUs while its command runs, every other time, and puts them back.
#[test]
fn the_vcpus_of_a_vm_are_pinned_while_its_work_is_measured_and_put_back() {
    let _alone = alone();
    let Some(vms) = or_skipped("pinning a libvirt VM", Vms::up(1, &["--name", "isolated", "--vcpus", "2"]))
    else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let seen = dir.path().join("seen");
    let name = &vms.names[0];
    // What the command does is to look.
    let script = format!(
        "virsh -c {} vcpupin {name} --live | awk 'NR > 2 && NF {{ printf \"%s \", $2 }} END {{ print \"\" }}' >>{}",
        vms.uri,
        seen.display()
    );
    let (machine, state) = (format!("libvirt:{}", vms.uri), dir.path().join("state"));
    let output = Command::new(env!("CARGO_BIN_EXE_corefit"))
        .args(["profile", "--isolate", "--rounds", "2", "--vm", name, "--machine", &machine, "--state"])
        .arg(&state)
        .args(["--", "sh", "-c", &script])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let pins = std::fs::read_to_string(&seen).unwrap();
    let pins: Vec<&str> = pins.lines().map(str::trim).collect();
    let free = pins[0];
    assert_eq!((pins.len(), pins[3]), (4, free), "{pins:?}");
    for pinned in [pins[1], pins[2]] {
        let each: Vec<&str> = pinned.split(' ').collect();
        let apart = each[0] != each[1] || pcpus() < 2;
        assert!(each.iter().all(|set| set.parse::<u32>().is_ok()) && apart, "{pins:?}");
    }
    let status = Command::new("sh").args(["-c", &script]).status().unwrap();
    assert!(status.success());
    assert_eq!(std::fs::read_to_string(&seen).unwrap().lines().last().map(str::trim), Some(free));
}

/// In the guest: two groups of two busy loops each, all on the two threads of one core.
const GROUPS: &str = "cd /sys/fs/cgroup && echo '+cpu +cpuset' >cgroup.subtree_control && mkdir a b || exit
    for group in a b; do
        echo 0-1 >$group/cpuset.cpus || exit
        for i in 1 2; do
            setsid sh -c \"echo \\$\\$ >$group/cgroup.procs && exec busyloop\" </dev/null >/dev/null 2>&1 &
        done
    done
    cat a/cpuset.cpus.effective";

/// Siblings that are emulated do not slow each other down: what is checked is where the groups are, and that they do
/// not wait for each other any more.
#[test]
fn busy_groups_of_a_guest_with_two_nodes_and_smt_are_spread_over_cores() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let program = stripped(Path::new(env!("CARGO_BIN_EXE_corefit")), dir.path());
    let options = [
        "--name",
        "spread",
        "--vcpus",
        "8",
        "--smt",
        "2",
        "--memory",
        "768",
        "--program",
        program.to_str().unwrap(),
    ];
    let Some(vms) = or_skipped("placing groups in a guest", Vms::up(1, &options)) else { return };
    let name = &vms.names[0];
    let guest = |command: &str| -> Value {
        let text = vms.guest(name, &format!("/workloads/corefit {command}"));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{command}: {error}: {text}"))
    };
    let shape = guest("topology --json");
    let summary = shape["summary"].as_str().unwrap();
    assert!(summary.starts_with("2 sockets, 2 NUMA nodes"), "{shape}");
    // Emulated threads have caches of their own: no modules.
    assert!(summary.contains("4 cores of 2 threads"), "{shape}");
    assert_eq!(vms.guest(name, GROUPS).trim(), "0-1");
    let waiting = || {
        let seen = guest("explain --machine cgroups:/a,/b --interval 2s --json");
        ["/a", "/b"].map(|group| of(&seen["vms"], group)["waiting"].as_f64().unwrap())
    };
    let mut before = [0.0; 2];
    let wait = || {
        before = waiting();
        before.iter().all(|waiting| *waiting > 0.5)
    };
    assert!(comes(PATIENCE, wait), "four busy loops on two pCPUs: {before:?}");
    let place = "topology --json --place corefit --machine cgroups:/a,/b";
    let found = guest(place);
    let (now, then) = (&found["placement"]["now"]["cost"], &found["placement"]["then"]["cost"]);
    assert!(
        now["sharing_pairs"].as_f64().unwrap() > 0.5 && now["competing_pairs"].as_f64().unwrap() > 0.5,
        "{now}"
    );
    assert_eq!((&then["sharing_pairs"], &then["competing_pairs"]), (&0.0.into(), &0.0.into()), "{then}");
    // corefit's own cure: its daemon sets the cpusets, and notes in its journal what they were.
    vms.manage_groups(name, CONFIG);
    let sets = || -> Vec<CpuSet> {
        let text =
            vms.guest(name, "cd /sys/fs/cgroup && cat a/cpuset.cpus.effective b/cpuset.cpus.effective");
        text.lines().map(|line| line.trim().parse().unwrap()).collect()
    };
    let log = || vms.guest(name, "cat /run/log");
    let cores: Vec<CpuSet> = ["0-1", "2-3", "4-5", "6-7"].map(|core| core.parse().unwrap()).into();
    let spread = |sets: &[CpuSet]| {
        let all = sets.iter().fold(CpuSet::default(), |all, set| all.union(set));
        sets.iter().all(|set| set.len() == 2) && cores.iter().all(|core| all.intersection(core).len() == 1)
    };
    let begun = Instant::now();
    while !spread(&sets()) {
        assert!(begun.elapsed() < PATIENCE, "not on a core each: {:?}, {}", sets(), log());
        std::thread::sleep(Duration::from_millis(500));
    }
    let again = guest(place);
    let cost = &again["placement"]["now"]["cost"];
    // A group may use both of its pCPUs, each of them for half a pair: none of them on one core.
    assert_eq!(cost["competing_pairs"], 0.0, "{cost}");
    let looks = (0..4 * LOOKS).map(|_| waiting());
    let after: Vec<[f64; 2]> = looks.take_while(|both| both.iter().any(|waiting| *waiting >= 0.3)).collect();
    assert!(after.len() < 4 * LOOKS, "{before:?} before, {after:?}");
    assert!(spread(&sets()), "it stays so: {:?}, {}", sets(), log());
    vms.end_manage(name);
    let before: CpuSet = "0-1".parse().unwrap();
    assert_eq!(sets(), [before.clone(), before], "as it was: {}", log());
}
