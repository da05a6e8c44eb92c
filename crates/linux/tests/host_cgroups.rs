//! Control groups as VMs, on real groups made here and removed again, v1 or v2. Where they may not be
//! made, each test prints `skipped: reason`.

mod cgroup_support;

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use cgroup_support::{Ended, Group, alone, heavy, loops, members, or_skip, shell, until};
use corefit_core::machine::{HostEstimate, Machine, Role, Snapshot, VmEstimate, contract, estimate};
use corefit_linux::Root;
use corefit_linux::host::{Cgroups, Choice};

/// By how much a demand measured over a second may be off, in CPUs: a reader that has to wait for a CPU
/// reads some counters a tenth of a second after the others.
const SKEW: f64 = 0.4;
/// Where one waits for longer, the next look may be better.
const LOOKS: usize = 5;

fn machine(above: &Group, which: &str) -> Cgroups {
    // By its directory, as a shell completes it.
    let choice = format!("{}/{which}", above.dir.display()).parse().unwrap();
    Cgroups::open(Root::live(), choice).unwrap()
}

fn watch(machine: &mut Cgroups, time: Duration) -> (Snapshot, HostEstimate) {
    let before = machine.observe().unwrap();
    machine.pass(time).unwrap();
    let after = machine.observe().unwrap();
    let result = estimate(&before, &after).unwrap();
    (after, result)
}

/// Whether that is what two busy loops want, in CPUs.
fn is_two(wants: f64) -> bool {
    (wants - 2.0).abs() < SKEW
}

fn wants(vm: &VmEstimate) -> f64 {
    vm.activity.used.unwrap().0 + vm.activity.waiting.unwrap().0
}

/// Two busy loops are seen to want two CPUs, in one of some looks.
#[track_caller]
fn two_wanted(machine: &mut Cgroups, of: impl Fn(&HostEstimate) -> f64) {
    let looks = (0..LOOKS).map(|_| of(&watch(machine, Duration::from_secs(1)).1));
    let other: Vec<f64> = looks.take_while(|wants| !is_two(*wants)).collect();
    assert!(other.len() < LOOKS, "two loops want 2, not {other:?}");
}

fn vms(host: &HostEstimate) -> Vec<&VmEstimate> {
    host.vms.iter().filter(|vm| vm.seen.role == Role::Vm).collect()
}

/// A real-time thread that never rests, on pCPU 1, and what it may use of that: the group's part where the kernel
/// divides it among groups (v1 with `CONFIG_RT_GROUP_SCHED`), else the machine's.
fn realtime(above: &Group, group: &Group) -> Result<(Ended, f64), String> {
    let divided = group.dir.join("cpu.rt_runtime_us").exists();
    let number = |file: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/kernel/{file}")).map_err(|e| e.to_string())?;
        text.trim().parse::<f64>().map_err(|e| e.to_string())
    };
    let most = number("sched_rt_runtime_us")? / number("sched_rt_period_us")?;
    if divided {
        for (group, runtime) in [(above, "50000"), (group, "40000")] {
            group.set("cpu.rt_period_us", "100000");
            // The time of a group that was removed just now (by an earlier run) is free a little later.
            let file = group.dir.join("cpu.rt_runtime_us");
            until("there is time for real-time threads", || std::fs::write(&file, runtime).is_ok());
        }
    } else if most < 0.0 {
        return Err("real-time threads may use all of a pCPU here: nothing would be left to look with".into());
    }
    let script = format!(
        "echo $$ >'{}/cgroup.procs' && exec taskset -c 1 chrt -f 1 sh -c 'while :; do :; done'",
        group.dir.display()
    );
    let mut busy = Ended(shell(&script).spawn().unwrap());
    // The policy is field 41 of its status, 38 behind the name and the state.
    let status = format!("/proc/{}/stat", busy.0.id());
    let is_first = || {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        text.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(38)) == Some("1")
    };
    for _ in 0..6000 {
        if busy.0.try_wait().unwrap().is_some() {
            return Err("taskset and chrt (util-linux) may not make real-time threads here".into());
        }
        if is_first() {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(is_first(), "no real-time thread after 30 s");
    Ok((busy, if divided { 0.4 } else { most }))
}

#[test]
fn real_time_threads_run_before_what_has_weights_and_no_quota_holds_them() {
    let _alone = alone();
    let above = or_skip!(heavy());
    let (a, b) = (above.child("a"), above.child("b"));
    let (_first, most) = or_skip!(realtime(&above, &a));
    // On its pCPU before it is in its group, for where it may run is read seldom.
    let script = format!("echo $$ >'{}/cgroup.procs' && while :; do :; done", b.dir.display());
    let mut command = Command::new("taskset");
    let command = command.args(["-c", "1", "sh", "-c", &script]).stdin(Stdio::null());
    let _busy = Ended(command.spawn().unwrap());
    until("the loop is in its group", || !members(&b.dir).is_empty());
    b.weight(200);
    a.quota(10_000); // of what has weights
    let mut machine = machine(&above, "*");
    let (after, host) = watch(&mut machine, Duration::from_secs(2));
    let [a, b] = vms(&host)[..] else { panic!("{:?}", after.vms) };
    let name = |vm: &VmEstimate| vm.seen.name.clone();
    println!("{}: {:?} {:?}, {}", name(a), a.entitled, a.activity, a.binding);
    println!("{}: {:?} {:?}, {}", name(b), b.entitled, b.activity, b.binding);
    let part = host.vms.iter().find(|vm| vm.seen.part_of == Some(name(a)));
    let part = part.unwrap_or_else(|| panic!("{:?}", after.vms));
    assert!(part.seen.is_realtime() && part.seen.parent.is_none(), "{:?}", part.seen);
    let used = a.activity.used.unwrap().0;
    assert!((used - most).abs() < 0.1, "used {used}, may use {most}");
    // a: what its real-time thread uses, and a little by its weight; b what is left.
    let (first, rest) = (a.entitled.unwrap().0, b.entitled.unwrap().0);
    assert!(first > most - 0.05 && first < most + 0.05, "entitled {first}");
    assert!((rest - (1.0 - most)).abs() < 0.05, "entitled {rest}");
    assert!(a.binding.contains(" of its real-time threads: before all that have weights"), "{}", a.binding);
    // Who ended is no part any more.
    drop(_first);
    let (after, host) = watch(&mut machine, Duration::from_millis(300));
    assert!(vms(&host)[0].activity.used.unwrap().0 < 0.2, "{:?}", after.vms);
}

#[test]
fn a_group_that_gets_no_turn_for_long_waits_and_is_not_idle() {
    let _alone = alone();
    let above = or_skip!(heavy());
    let group = above.child("a");
    let _busy = loops(&group);
    // A millisecond in each second: in most looks it did not run.
    if group.quota_file().ends_with("cpu.max") {
        group.set("cpu.max", "1000 1000000");
    } else {
        group.set("cpu.cfs_period_us", "1000000");
        group.set("cpu.cfs_quota_us", "1000");
    }
    let mut machine = machine(&above, "*");
    machine.observe().unwrap();
    let seen: Vec<(f64, f64)> = (0..8)
        .map(|_| {
            let (_, host) = watch(&mut machine, Duration::from_millis(300));
            let activity = &vms(&host)[0].activity;
            (activity.used.unwrap().0, activity.waiting.unwrap().0)
        })
        .collect();
    let none: Vec<f64> = seen.iter().filter(|(used, _)| *used == 0.0).map(|(_, waiting)| *waiting).collect();
    assert!(!none.is_empty() && none.iter().all(|waiting| (waiting - 2.0).abs() < 0.1), "{seen:?}");
}

#[test]
fn three_busy_groups_of_weights_1_2_1_get_what_is_predicted() {
    let _alone = alone();
    let above = or_skip!(heavy());
    let groups = [("a", 1), ("b", 2), ("c", 1)].map(|(name, weight)| {
        let group = above.child(name);
        group.weight(weight);
        group
    });
    let _busy = groups.each_ref().map(loops);
    let mut machine = machine(&above, "*");
    let (after, host) = watch(&mut machine, Duration::from_secs(2));
    let online = after.pcpus.iter().filter(|pcpu| pcpu.online).count();
    assert_eq!(vms(&host).len(), 3, "{:?}", after.vms);
    // As parts of what they got together: a hypervisor below may take a tenth of the machine.
    let off = |host: &HostEstimate| {
        let of = |vm: &VmEstimate| (vm.activity.used.unwrap().0, vm.entitled.unwrap().0, wants(vm));
        let all: Vec<(f64, f64, f64)> = vms(host).into_iter().map(of).collect();
        let (used, entitled) = all.iter().fold((0.0, 0.0), |sum, vm| (sum.0 + vm.0, sum.1 + vm.1));
        println!("used, entitled and wanted: {all:.3?}");
        all.iter().map(|vm| (vm.0 / used - vm.1 / entitled).abs()).fold(0.0, f64::max)
    };
    for (vm, part) in vms(&host).into_iter().zip([0.25, 0.5, 0.25]) {
        let name = &vm.seen.name;
        let (entitled, used) = (vm.entitled.unwrap().0, vm.activity.used.unwrap().0);
        println!("{name} entitled {entitled:.3} used {used:.3} waiting {:?}", vm.activity.waiting);
        if online == 2 {
            assert!((entitled - 2.0 * part).abs() < 0.05, "{name}: entitled {entitled}");
        }
    }
    // The kernel's balancing may be wrong for seconds, longer where a hypervisor below takes time away.
    let right = |host: &HostEstimate| off(host) <= 0.05 && vms(host).into_iter().all(|vm| is_two(wants(vm)));
    let mut tries = 0;
    while online == 2 && !right(&watch(&mut machine, Duration::from_secs(1)).1) {
        tries += 1;
        assert!(tries < 30, "never as predicted");
    }
    let slice = after.groups.iter().find(|group| above.dir.ends_with(group.name.trim_start_matches('/')));
    assert!(
        slice.is_some_and(|group| group.weight.is_some() && group.parent.is_none()),
        "{:?}",
        after.groups
    );
    let rest = host.vms.iter().find(|vm| vm.seen.name == "kernel and ended tasks in /");
    let rest = rest.and_then(|rest| rest.activity.used).unwrap_or_default().0;
    assert!(rest < 0.5, "what the groups used is theirs, whether or not their groups count it: {rest}");
    contract::observing(&mut machine, Duration::from_millis(50)).unwrap();
}

#[test]
fn a_quota_above_binds_and_is_named() {
    let _alone = alone();
    let above = or_skip!(heavy());
    above.quota(50_000);
    let (a, b) = (above.child("a"), above.child("b"));
    let _busy = [loops(&a), loops(&b)];
    let (_, host) = watch(&mut machine(&above, "?"), Duration::from_secs(1));
    assert_eq!(vms(&host).len(), 2);
    for vm in vms(&host) {
        assert!((vm.entitled.unwrap().0 - 0.25).abs() < 1e-3, "{vm:?}");
        assert!(vm.binding.contains("the cap of slice /corefit-test"), "{}", vm.binding);
    }
    // Who of the two got how much in one second is up to the kernel: 0.36 and 0.14 were seen on a busy machine.
    let used: f64 = vms(&host).iter().map(|vm| vm.activity.used.unwrap().0).sum();
    assert!((used - 0.5).abs() < 0.1, "{used} of 0.5");
}

#[test]
fn what_competes_beside_the_vms_is_seen_with_what_it_wants() {
    let _alone = alone();
    let above = or_skip!(heavy());
    let (mine, sibling) = (above.child("mine"), above.child("sibling"));
    let below = sibling.child("below");
    let _busy = [loops(&mine), loops(&below)];
    let mut machine = machine(&above, "mine");
    // The loops are one level down.
    two_wanted(&mut machine, |host| {
        let sibling = host.vms.iter().find(|vm| vm.seen.name.ends_with("/sibling"));
        let sibling = sibling.expect("the sibling is seen");
        assert_eq!((sibling.seen.role, sibling.entitled), (Role::Other, None));
        wants(sibling)
    });
    if !above.v2 {
        let _direct = loops(&above); // in v2, threads may not be beside groups
        two_wanted(&mut machine, |host| {
            let direct = |vm: &&VmEstimate| vm.seen.name.starts_with("thread") && vm.seen.parent.is_some();
            host.vms.iter().filter(direct).map(wants).sum()
        });
    }
}

#[test]
fn a_group_made_anew_under_its_name_is_another_vm_and_one_that_vanishes_is_no_error() {
    let _alone = alone();
    let above = or_skip!(heavy());
    let _stays = above.child("stays");
    let first = above.child("a");
    let mut machine = machine(&above, "*");
    let before = machine.observe().unwrap();
    drop(first);
    let between = machine.observe().unwrap();
    let again = above.child("a");
    let _busy = loops(&again);
    machine.pass(Duration::from_millis(300)).unwrap();
    let after = machine.observe().unwrap();
    let id =
        |snapshot: &Snapshot| snapshot.vms.iter().find(|vm| vm.name.ends_with("/a")).map(|vm| vm.id.clone());
    assert!(id(&before).is_some() && id(&between).is_none() && id(&after).is_some());
    assert_ne!(id(&before), id(&after));
    let host = estimate(&between, &after).unwrap();
    let vm = host.vms.iter().find(|vm| vm.seen.name.ends_with("/a")).unwrap();
    assert!(vm.activity.used.is_some_and(|used| used.0 > 0.0), "it did all it did since: {:?}", vm.activity);
}

#[test]
fn no_matching_group_is_an_error_that_names_the_pattern() {
    let choice: Choice = "/corefit-no-such-*".parse().unwrap();
    let Ok(mut machine) = Cgroups::open(Root::live(), choice) else {
        let _ = writeln!(std::io::stderr(), "skipped: no control groups are mounted");
        return;
    };
    let error = machine.observe().unwrap_err().to_string();
    assert!(error.starts_with("no control group matches /corefit-no-such-*; groups at the top: "), "{error}");
}
