//! Levers of real control groups: what is set is so, and nothing else is.

mod cgroup_support;

use std::io::Write as _;

use cgroup_support::{Ended, Hierarchy, alone, or_skip, until};
use corefit_core::machine::{Act, Lever, LeverKind, Limit, Machine, MachineError, Role, Value, VmId};
use corefit_core::{CpuSet, Weight};
use corefit_linux::Root;
use corefit_linux::host::Cgroups;

#[test]
fn weight_quota_and_cpuset_of_a_group_are_set_read_back_and_put_back() {
    let _alone = alone();
    let cpu = or_skip!(Hierarchy::of("cpu"));
    let group = or_skip!(cpu.group());
    let neighbour = or_skip!(cpu.group());
    let name = format!("/{}", group.dir.file_name().unwrap().to_str().unwrap());
    let mut machine = Cgroups::open(Root::live(), name.parse().unwrap()).unwrap();
    let id = |machine: &mut Cgroups| {
        let vms = corefit_core::machine::Machine::observe(machine).unwrap().vms;
        vms.into_iter().find(|vm| vm.name == name).unwrap()
    };
    let vm = id(&mut machine).id;
    let of = |file: &str| std::fs::read_to_string(neighbour.dir.join(file)).unwrap_or_default();
    let files = ["cpu.shares", "cpu.weight", "cpu.cfs_quota_us", "cpu.max"];
    let before: Vec<String> = files.iter().map(|file| of(file)).collect();

    let limit = Limit { quota_us: Some(30_000), period_us: 60_000, burst_us: 0 };
    for (lever, value) in [(Lever::Weight, Value::Weight(Weight(300.0))), (Lever::Quota, Value::Limit(limit))]
    {
        let original = machine.current(&vm, lever).unwrap();
        machine.set(&vm, lever, &value).unwrap();
        assert_eq!(machine.current(&vm, lever), Ok(value));
        let seen = id(&mut machine);
        let cap = seen.quota.and_then(|quota| quota.cpus()).map(|cpus| cpus.0);
        assert!(
            lever == Lever::Quota && cap == Some(0.5) || seen.weight == Some(Weight(300.0)),
            "a look sees it"
        );
        machine.set(&vm, lever, &original).unwrap();
        assert_eq!(machine.current(&vm, lever), Ok(original));
    }
    assert_eq!(files.map(of), before[..], "the neighbour was touched");
    for lever in [Lever::Online, Lever::Told] {
        assert!(matches!(machine.current(&vm, lever), Err(MachineError::Unsupported(_))), "{lever}");
    }
    assert_eq!(machine.current(&vm, Lever::Nodes), Ok(Value::Nodes(None)), "nothing names any");
    let wrong = machine.set(&vm, Lever::Weight, &Value::Weight(Weight(0.0)));
    assert!(matches!(wrong, Err(MachineError::Malformed(_))), "{wrong:?}");
    drop(group);
    assert!(matches!(machine.current(&vm, Lever::Weight), Err(MachineError::Gone(_))));
    assert!(matches!(machine.current(&VmId("/x@1".into()), Lever::Weight), Err(MachineError::Gone(_))));
}

#[test]
fn a_burst_is_set_with_its_quota_seen_with_what_was_stopped_and_put_back() {
    let _alone = alone();
    let cpu = or_skip!(Hierarchy::of("cpu"));
    let group = or_skip!(cpu.group());
    if !["cpu.cfs_burst_us", "cpu.max.burst"].iter().any(|file| group.dir.join(file).exists()) {
        let _ =
            writeln!(std::io::stderr(), "skipped: this kernel saves nothing of a quota (Linux before 5.14)");
        return;
    }
    let name = format!("/{}", group.dir.file_name().unwrap().to_str().unwrap());
    let mut machine = Cgroups::open(Root::live(), name.parse().unwrap()).unwrap();
    let seen = |machine: &mut Cgroups| {
        let vms = corefit_core::machine::Machine::observe(machine).unwrap().vms;
        vms.into_iter().find(|vm| vm.name == name).unwrap()
    };
    let unlimited = seen(&mut machine);
    assert_eq!(unlimited.throttled, None, "without a quota there is nothing to count");
    let vm = unlimited.id;
    let original = machine.current(&vm, Lever::Quota).unwrap();
    let to =
        |quota_us, period_us, burst_us| Value::Limit(Limit { quota_us: Some(quota_us), period_us, burst_us });
    // Each step needs another order of writes: no burst may be above the quota at any time.
    for value in [to(50_000, 100_000, 50_000), to(20_000, 40_000, 20_000), to(90_000, 100_000, 60_000)] {
        machine.set(&vm, Lever::Quota, &value).unwrap();
        assert_eq!(machine.current(&vm, Lever::Quota), Ok(value.clone()));
        let now = seen(&mut machine);
        let quota = now.quota.unwrap();
        assert_eq!(
            Value::Limit(Limit {
                quota_us: quota.quota_us,
                period_us: quota.period_us,
                burst_us: quota.burst_us
            }),
            value
        );
        assert!(now.throttled.is_some());
    }
    let wrong = machine.set(&vm, Lever::Quota, &to(20_000, 40_000, 20_001));
    assert!(matches!(wrong, Err(MachineError::Malformed(_))), "{wrong:?}");
    machine.set(&vm, Lever::Quota, &original).unwrap();
    assert_eq!(machine.current(&vm, Lever::Quota), Ok(original));
}

/// The kernel lets no group have a larger part than the one above it, at any time.
#[test]
fn a_limit_is_set_and_refused_as_a_whole_where_groups_above_and_below_limit_as_much() {
    let _alone = alone();
    let cpu = or_skip!(Hierarchy::of("cpu"));
    let above = or_skip!(cpu.group());
    let (group, below) = (above.child("of"), above.child("of/below"));
    for group in [&above, &group, &below] {
        group.quota(9_000);
    }
    let name = format!("/{}/of", above.dir.file_name().unwrap().to_str().unwrap());
    let mut machine = Cgroups::open(Root::live(), name.parse().unwrap()).unwrap();
    let vms = corefit_core::machine::Machine::observe(&mut machine).unwrap().vms;
    let vm = vms.into_iter().find(|vm| vm.name == name).unwrap().id;
    let original = machine.current(&vm, Lever::Quota).unwrap();
    let to = |quota_us, period_us| Value::Limit(Limit { quota_us: Some(quota_us), period_us, burst_us: 0 });
    let longer = to(18_000, 200_000);
    machine.set(&vm, Lever::Quota, &longer).unwrap();
    assert_eq!(machine.current(&vm, Lever::Quota), Ok(longer));
    machine.set(&vm, Lever::Quota, &original).unwrap();
    assert_eq!(machine.current(&vm, Lever::Quota), Ok(original.clone()));
    if !cpu.v2 {
        let burst_us = if group.dir.join("cpu.cfs_burst_us").exists() { 5_000 } else { 0 };
        let saves = Value::Limit(Limit { quota_us: Some(9_000), period_us: 100_000, burst_us });
        machine.set(&vm, Lever::Quota, &saves).unwrap();
        assert!(machine.set(&vm, Lever::Quota, &to(20_000, 150_000)).is_err(), "more than the one above");
        assert_eq!(machine.current(&vm, Lever::Quota), Ok(saves));
    }
}

#[test]
fn a_cpuset_is_set_where_the_group_has_one() {
    let _alone = alone();
    let (cpu, cpuset) = (or_skip!(Hierarchy::of("cpu")), or_skip!(Hierarchy::of("cpuset")));
    let group = or_skip!(cpu.group());
    let name = group.dir.file_name().unwrap().to_str().unwrap().to_owned();
    // On v1 the cpuset hierarchy has a group of the same path.
    let set = (!cpu.v2).then(|| cgroup_support::Group::make(cpuset.point.join(&name), false).unwrap());
    if let Some(set) = &set {
        for file in ["cpuset.mems", "cpuset.cpus"] {
            set.set(file, std::fs::read_to_string(cpuset.point.join(file)).unwrap().trim());
        }
    }
    let mut machine = Cgroups::open(Root::live(), format!("/{name}").parse().unwrap()).unwrap();
    let vms = corefit_core::machine::Machine::observe(&mut machine).unwrap().vms;
    let vm = vms.into_iter().find(|vm| vm.name == format!("/{name}")).unwrap().id;
    let original = machine.current(&vm, Lever::Affinity(0)).unwrap();
    let one: CpuSet = "0".parse().unwrap();
    machine.set(&vm, Lever::Affinity(0), &Value::Pcpus(one.clone())).unwrap();
    assert_eq!(machine.current(&vm, Lever::Affinity(0)), Ok(Value::Pcpus(one)));
    machine.set(&vm, Lever::Affinity(0), &original).unwrap();
    assert_eq!(machine.current(&vm, Lever::Affinity(0)), Ok(original));
    // Of v1, memory moves only if that is asked for.
    let Some(set) = set else { return };
    let moves = |machine: &mut Cgroups| {
        let seen = machine.observe().unwrap().vms;
        seen.into_iter().find(|seen| seen.id == vm).unwrap().fixed(LeverKind::Nodes).is_none()
    };
    assert!(!moves(&mut machine));
    set.set("cpuset.memory_migrate", "1");
    let nodes = std::fs::read_to_string(cpuset.point.join(&name).join("cpuset.mems")).unwrap();
    let nodes = Value::Nodes(nodes.trim().parse().ok());
    assert_eq!(machine.current(&vm, Lever::Nodes), Ok(nodes.clone()));
    machine.set(&vm, Lever::Nodes, &nodes).unwrap();
    let nowhere = machine.set(&vm, Lever::Nodes, &Value::Nodes("1000".parse().ok()));
    assert!(matches!(nowhere, Err(MachineError::Malformed(_))), "{nowhere:?}");
    assert_eq!(machine.current(&vm, Lever::Nodes), Ok(nodes));
}

#[test]
fn a_machine_without_groups_is_none_but_for_whoever_stays() {
    let _alone = alone();
    let _cpu = or_skip!(Hierarchy::of("cpu"));
    let open = || Cgroups::open(Root::live(), "/corefit-nowhere-*".parse().unwrap()).unwrap();
    let gone = open().observe();
    assert!(matches!(&gone, Err(MachineError::Gone(why)) if why.contains("no control group matches")));
    let seen = open().or_none().observe().unwrap();
    assert!(!seen.pcpus.is_empty() && seen.vms.iter().all(|vm| vm.role != Role::Vm));
    assert!(seen.notes[0].contains("no control group matches"), "{:?}", seen.notes);
}

/// A process whose threads come one by one, each asleep.
const THREADS: &str =
    "import threading, time\nfor n in range(3): threading.Thread(target=lambda: time.sleep(99)).start()";

#[test]
fn the_slices_of_a_groups_threads_are_set_inherited_and_put_back_but_for_what_somebody_else_set() {
    let _alone = alone();
    let cpu = or_skip!(Hierarchy::of("cpu"));
    let group = or_skip!(cpu.group());
    let name = format!("/{}", group.dir.file_name().unwrap().to_str().unwrap());
    let mut machine = Cgroups::open(Root::live(), name.parse().unwrap()).unwrap();
    let mut sleepers = vec![];
    let mut join = |command: &str, args: &[&str]| {
        sleepers.push(Ended(std::process::Command::new(command).args(args).spawn().unwrap()));
        let pid = sleepers.last().unwrap().0.id();
        group.set("cgroup.procs", &pid.to_string());
        pid
    };
    let python = join("python3", &["-c", THREADS]);
    let others = join("sleep", &["99"]);
    let idle = join("chrt", &["-i", "0", "sleep", "99"]);
    // Who is still on its way to what it is to be (python3 may be a script that finds one) has other threads and slices then.
    let is = |pid: u32, name: &str| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.starts_with(name))
    };
    let threads = |pid: u32| std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    until("all are what they are to be", || threads(python) >= 4 && is(others, "sleep") && is(idle, "sleep"));
    let seen = |machine: &mut Cgroups| {
        let vms = machine.observe().unwrap().vms;
        vms.into_iter().find(|vm| vm.name == name).unwrap()
    };
    let first = seen(&mut machine);
    let Some(slices) = first.slices else {
        let why = first.fixed(LeverKind::Slice).expect("why there are none");
        let _ = writeln!(std::io::stderr(), "skipped: {why}");
        return;
    };
    assert_eq!((slices.least_ns, slices.most_ns), (slices.base_ns, slices.base_ns));
    let ours = Value::Slice(Some(250_037));
    assert_eq!(machine.current(&first.id, Lever::Slice(0)), Ok(Value::Slice(None)));
    machine.set(&first.id, Lever::Slice(0), &ours).unwrap();
    assert_eq!(machine.current(&first.id, Lever::Slice(0)), Ok(ours.clone()));
    // Its children inherit it, and somebody sets another one for one thread.
    let shown = seen(&mut machine).slices.unwrap();
    assert_eq!((shown.least_ns, shown.most_ns), (250_037, 250_037));
    somebody_sets(others, 3_000_000);
    assert_eq!(seen(&mut machine).slices.unwrap().most_ns, 3_000_000);
    assert_eq!(machine.current(&first.id, Lever::Slice(0)), Ok(ours), "one of ours is there");
    machine.set(&first.id, Lever::Slice(0), &Value::Slice(None)).unwrap();
    let left = seen(&mut machine).slices.unwrap();
    assert_eq!((left.least_ns, left.most_ns, left.without), (slices.base_ns, 3_000_000, 1), "that stands");
    assert_eq!(machine.current(&first.id, Lever::Slice(0)), Ok(Value::Slice(None)), "nothing of ours");
    let none = machine.set(&first.id, Lever::Slice(1), &Value::Slice(None));
    assert!(matches!(none, Err(MachineError::Unsupported(_))), "{none:?}");
}

/// A slice for a thread, with `sched_setattr`, as anybody may: `struct sched_attr`, include/uapi/linux/sched/types.h.
fn somebody_sets(tid: u32, slice_ns: u64) {
    // Size 48, SCHED_OTHER, no flags, nice 0; in words of four bytes.
    let mut attr = [48_u32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    attr[6] = u32::try_from(slice_ns).unwrap();
    // SAFETY: `attr` is as large as it says, and is only read.
    let done = unsafe { libc::syscall(libc::SYS_sched_setattr, tid, attr.as_ptr(), 0_u32) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}
