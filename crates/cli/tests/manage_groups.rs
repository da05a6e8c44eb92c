//! `corefit manage --apply` on this machine's control groups, as those of containers: they are sized by their cpusets, which
//! are put back at the end and after a kill -9, and so are slices of their threads.

#[path = "../../linux/tests/cgroup_support/mod.rs"]
mod cgroup_support;
#[path = "../../linux/tests/vm_support/mod.rs"]
mod vm_support;

#[expect(dead_code, reason = "the rest is for VMs")]
mod manage_support;

use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;

use cgroup_support::{Ended, Group, Hierarchy, alone, or_skip, shell};
use corefit_core::machine::{Act, Lever, LeverKind, Machine, Value};
use corefit_linux::Root;
use corefit_linux::host::Cgroups;
use manage_support::{Daemon, corefit, until};

/// A container with two busy processes, its cpuset that of the machine: on v2 it has none of its own.
struct Container {
    busy: Vec<Ended>,
    name: String,
    cpu: Group,
    /// On v1 the cpuset hierarchy has a group of the same path.
    set: Option<Group>,
}

impl Container {
    fn start(cpu: &Hierarchy, cpuset: &Hierarchy) -> Result<Container, String> {
        let group = cpu.group()?;
        let name = group.dir.file_name().unwrap().to_str().unwrap().to_owned();
        let set = if cpu.v2 { None } else { Some(Group::make(cpuset.point.join(&name), false)?) };
        if let Some(set) = &set {
            for file in ["cpuset.mems", "cpuset.cpus"] {
                set.set(file, std::fs::read_to_string(cpuset.point.join(file)).unwrap().trim());
            }
        }
        let mut made = Container { name, cpu: group, set, busy: vec![] };
        for _ in 0..2 {
            made.busy.push(Ended(shell("while :; do :; done").spawn().unwrap()));
            let pid = made.busy.last().unwrap().0.id().to_string();
            [Some(&made.cpu), made.set.as_ref()]
                .into_iter()
                .flatten()
                .for_each(|group| group.set("cgroup.procs", &pid));
        }
        Ok(made)
    }

    /// The CPUs that it may use.
    fn cpus(&self) -> String {
        let file = match &self.set {
            Some(set) => set.dir.join("cpuset.cpus"),
            None => self.cpu.dir.join("cpuset.cpus.effective"),
        };
        std::fs::read_to_string(file).unwrap().trim().to_owned()
    }

    fn set_cpus(&self, cpus: &str) {
        self.set.as_ref().unwrap_or(&self.cpu).set("cpuset.cpus", cpus);
    }
}

#[test]
fn containers_are_sized_by_their_cpusets_apart_and_put_back() {
    let _alone = alone();
    let (cpu, cpuset) = (or_skip!(Hierarchy::of("cpu")), or_skip!(Hierarchy::of("cpuset")));
    let containers = [0, 1].map(|_| Container::start(&cpu, &cpuset));
    let [a, b] = containers;
    let (a, b) = (or_skip!(a), or_skip!(b));
    let before = (a.cpus(), b.cpus());
    let online: corefit_core::CpuSet = before.0.parse().unwrap();
    if online.len() < 2 {
        let _ = writeln!(std::io::stderr(), "skipped: one CPU cannot be divided");
        return;
    }
    let machine = format!("cgroups:/{},/{}", a.name, b.name);
    let config = format!(
        "metrics = \"off\"\ntell = false\n[policy]\ninterval_ms = 300\ndwell_ms = 500\n\
         [[policy.vm]]\nname = \"/{}\"\nsize = \"vcpu-bal\"\n\
         [[policy.vm]]\nname = \"/{}\"\nsize = \"vcpu-bal\"\nmax = 1\n",
        a.name, b.name
    );
    let dir = tempfile::tempdir().unwrap();
    let sized = || {
        let many = |container: &Container| container.cpus().parse::<corefit_core::CpuSet>().unwrap();
        let (a, b) = (many(&a), many(&b));
        b.len() == 1 && a.len() == online.len().div_ceil(2) && !a.meets(&b)
    };
    let mut daemon = Daemon::on(&machine, dir.path(), &config, &["--apply"], None);
    until("each has CPUs of its own", sized);
    assert!(daemon.end().success(), "{}", daemon.log());
    assert_eq!((a.cpus(), b.cpus()), before, "{}", daemon.log());

    let state = dir.path().join("state");
    let restore = || {
        let restored = corefit(&["restore", "--machine", &machine, "--state", state.to_str().unwrap()]);
        assert!(restored.status.success(), "{restored:?}");
        assert_eq!((a.cpus(), b.cpus()), before);
    };
    let daemon = Daemon::on(&machine, dir.path(), &config, &["--apply"], None);
    until("each has CPUs of its own again", sized);
    drop(daemon);
    assert!(sized(), "nobody put them back");
    restore();
    for (place, changed) in [("journaled", 0), ("written", 1), ("written:2", 2)] {
        let mut daemon = Daemon::on(&machine, dir.path(), &config, &["--apply"], Some(place));
        assert_eq!(daemon.wait().signal(), Some(9), "{place}: {}", daemon.log());
        let now = [a.cpus() != before.0, b.cpus() != before.1];
        assert_eq!(now.iter().filter(|now| **now).count(), changed, "{place}: {}", daemon.log());
        restore();
    }
}

/// A rule that goes while the daemon runs takes what came of it along, and what people read of groups speaks of groups.
#[test]
fn what_nobody_manages_any_more_is_put_back_while_the_daemon_goes_on() {
    let _alone = alone();
    let (cpu, cpuset) = (or_skip!(Hierarchy::of("cpu")), or_skip!(Hierarchy::of("cpuset")));
    let [a, b] = [0, 1].map(|_| Container::start(&cpu, &cpuset));
    let (a, b) = (or_skip!(a), or_skip!(b));
    let before = a.cpus();
    if before.parse::<corefit_core::CpuSet>().unwrap().len() < 2 {
        let _ = writeln!(std::io::stderr(), "skipped: one CPU cannot be divided");
        return;
    }
    let machine = format!("cgroups:/{},/{}", a.name, b.name);
    let rule = |of: &Container, what: &str| format!("[[policy.vm]]\nname = \"/{}\"\n{what}\n", of.name);
    let start = "metrics = \"off\"\ntell = false\n[policy]\ninterval_ms = 300\ndwell_ms = 0\nlever_ms = 0\n";
    let (sized, excluded) = ("size = \"vcpu-bal\"\nmax = 1", "size = \"vcpu-bal\"\nmax = 1\nexclude = true");
    let config = |of_a: &str, of_b: &str| [start, &rule(&a, of_a), &rule(&b, of_b)].concat();
    let one = |of: &Container| of.cpus().parse::<corefit_core::CpuSet>().unwrap().len() == 1;
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let state = state.to_str().unwrap();
    let daemon = Daemon::on(&machine, dir.path(), &config(sized, sized), &["--apply"], None);
    until("both are sized", || one(&a) && one(&b));
    until("the status says so", || {
        let status = String::from_utf8_lossy(&corefit(&["status", "--state", state]).stdout).into_owned();
        let said = |of: &Container| status.contains(&format!("/{}: cpuset: ", of.name));
        assert!(!status.contains("left alone") && !status.contains("vCPU 0"), "{status}");
        said(&a) && said(&b)
    });
    assert!(daemon.log().contains("lever=cpuset") && !daemon.log().contains("vCPU 0"), "{}", daemon.log());

    daemon.configure(&config(excluded, sized));
    until("the one that is excluded is as it was", || a.cpus() == before);
    assert!(one(&b), "the other is not concerned: {}", daemon.log());
    // It is put back within the step whose end the status shows.
    until("the status says so, too", || {
        let status = String::from_utf8_lossy(&corefit(&["status", "--state", state]).stdout).into_owned();
        status.contains(&format!("/{}: left alone: its rule says exclude", a.name))
    });
    let places = |text: String| text.replacen("[policy]", "[policy]\nplace = \"corefit\"", 1);
    daemon.configure(&places(config(sized, "size = \"none\"")));
    until("it is sized again, and the other as it was, though the rest is placed", || {
        one(&a) && b.cpus() == before
    });
    let log = daemon.log();
    let back = |of: &Container, why: &str| {
        log.lines().any(|line| line.contains("put back") && line.contains(&of.name) && line.contains(why))
    };
    assert!(back(&a, "it is excluded") && back(&b, "does not change it any more"), "{log}");
    assert!(!log.contains("somebody else"), "{log}");
    drop(daemon);

    // Killed: one that only looks says what is left.
    let mut daemon = Daemon::on(&machine, dir.path(), &config(sized, sized), &["--for", "1s"], None);
    assert!(daemon.wait().success(), "{}", daemon.log());
    let log = daemon.log();
    assert!(log.contains("an earlier run left settings") && log.contains("corefit restore"), "{log}");
    let status = corefit(&["status", "--state", state]);
    let said = String::from_utf8_lossy(&status.stderr).into_owned();
    assert_eq!(status.status.code(), Some(1), "{said}");
    assert!(said.contains("an earlier run left 1 setting") && said.contains("corefit restore"), "{said}");
    assert!(one(&a));
    let file = dir.path().join("plan.toml");
    std::fs::write(&file, format!("state = {state:?}\n{}", config(sized, sized))).unwrap();
    let output =
        corefit(&["plan", "--machine", &machine, "--config", file.to_str().unwrap(), "--interval", "100ms"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("as a corefit manage made"), "{output:?}");
    assert!(corefit(&["restore", "--state", state]).status.success());
    assert_eq!((a.cpus(), b.cpus()), (before.clone(), before));
}

#[test]
fn a_plan_takes_rules_by_names_as_they_are_and_prints_them_as_they_can_be() {
    let _alone = alone();
    let cpu = or_skip!(Hierarchy::of("cpu"));
    let above = or_skip!(cpu.group());
    let _group = above.child("a\u{1}");
    let name = above.dir.file_name().unwrap().to_str().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("corefit.toml");
    let rule = format!("[[policy.vm]]\nname = \"/{name}/a\\u0001\"\nexclude = true\n");
    std::fs::write(&file, rule).unwrap();
    let machine = format!("cgroups:/{name}/*");
    let args = ["plan", "--machine", &machine, "--interval", "100ms", "--config", file.to_str().unwrap()];
    let output = corefit(&args);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("left alone: its rule says exclude"), "{output:?}");
    assert!(!text.contains('\u{1}'), "{text}");
}

/// On v1 a new group has no cpuset, and nobody can be in it: it could be given one, which nothing would be good for.
#[test]
fn a_group_whose_cpuset_is_empty_is_not_sized_and_can_become_so_again() {
    let _alone = alone();
    let (cpu, cpuset) = (or_skip!(Hierarchy::of("cpu")), or_skip!(Hierarchy::of("cpuset")));
    if cpu.v2 {
        let _ = writeln!(std::io::stderr(), "skipped: of v2 an empty cpuset is that of the group above");
        return;
    }
    let container = or_skip!(Container::start(&cpu, &cpuset));
    let new = or_skip!(cpu.group());
    let name = new.dir.file_name().unwrap().to_str().unwrap().to_owned();
    let set = or_skip!(Group::make(cpuset.point.join(&name), false));
    let cpus = || std::fs::read_to_string(set.dir.join("cpuset.cpus")).unwrap().trim().to_owned();
    let before = container.cpus();
    assert_eq!(cpus(), "");
    let machine = format!("cgroups:/{},/{name}", container.name);
    let config = "metrics = \"off\"\ntell = false\n[policy]\ninterval_ms = 300\ndwell_ms = 0\nlever_ms = 0\n\
         [[policy.vm]]\nname = \"/*\"\nsize = \"vcpu-bal\"\nmax = 1\n";
    let dir = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::on(&machine, dir.path(), config, &["--apply"], None);
    let state = dir.path().join("state");
    until("the status says why it is not sized", || {
        let status = corefit(&["status", "--state", state.to_str().unwrap()]);
        let status = String::from_utf8_lossy(&status.stdout).into_owned();
        status.contains(&format!("/{name}: is not sized: its cpuset is empty"))
    });
    let other = || container.cpus().parse::<corefit_core::CpuSet>().unwrap();
    until("the other one is sized", || other().len() == 1);
    until("the status says that for programs, too", || {
        let status = corefit(&["status", "--json", "--state", state.to_str().unwrap()]).stdout;
        let status: serde_json::Value = serde_json::from_slice(&status).unwrap_or_default();
        let vms = status["vms"].as_array().cloned().unwrap_or_default();
        let settings = |name: &str| {
            let vm = vms.iter().find(|vm| vm["name"] == format!("/{name}"));
            vm.map_or_else(Default::default, |vm| vm["settings"].clone())
        };
        let (before, made) = (before.as_str(), container.cpus());
        let changed = serde_json::json!([{
            "lever": "cpuset", "before": before, "made": made, "changed_to": null, "pending": false
        }]);
        settings(&container.name) == changed && settings(&name) == serde_json::json!([])
    });
    assert!(daemon.end().success(), "{}", daemon.log());
    assert!(!daemon.log().contains(&format!("vm=/{name}")) && cpus().is_empty(), "{}", daemon.log());

    // Whether it can have none is for the kernel to say.
    let mut groups =
        Cgroups::open(Root::live(), machine.trim_start_matches("cgroups:").parse().unwrap()).unwrap();
    let seen = groups.observe().unwrap();
    let of = |name: &str| seen.vms.iter().find(|vm| vm.name == format!("/{name}")).unwrap().id.clone();
    let all = Value::Pcpus(container.cpus().parse().unwrap());
    let none = Value::Pcpus(corefit_core::CpuSet::default());
    let lever = Lever::Affinity(0);
    groups.set(&of(&name), lever, &all).unwrap();
    assert_eq!(Value::Pcpus(cpus().parse().unwrap()), all);
    groups.set(&of(&name), lever, &none).unwrap();
    assert_eq!(cpus(), "");
    let refused = groups.set(&of(&container.name), lever, &none).unwrap_err().to_string();
    assert!(refused.contains("a group with processes"), "{refused}");
}

/// A daemon that has sized a group to one pCPU, and its configuration; `None` where there is only one.
fn sized_to_one(group: &Container, dir: &Path) -> Option<(Daemon, String)> {
    let before = group.cpus();
    if before.parse::<corefit_core::CpuSet>().unwrap().len() < 2 {
        let _ = writeln!(std::io::stderr(), "skipped: one CPU cannot be divided");
        return None;
    }
    let config = format!(
        "metrics = \"off\"\ntell = false\n[policy]\ninterval_ms = 300\ndwell_ms = 0\nlever_ms = 0\n\
         [[policy.vm]]\nname = \"/{}\"\nsize = \"vcpu-bal\"\nmax = 1\n",
        group.name
    );
    let daemon = Daemon::on(&format!("cgroups:/{}", group.name), dir, &config, &["--apply"], None);
    until("it is sized", || group.cpus() != before);
    Some((daemon, config))
}

#[test]
fn a_cpuset_that_somebody_puts_back_is_left_so_until_the_configuration_is_read_again() {
    let _alone = alone();
    let (cpu, cpuset) = (or_skip!(Hierarchy::of("cpu")), or_skip!(Hierarchy::of("cpuset")));
    let group = or_skip!(Container::start(&cpu, &cpuset));
    let before = group.cpus();
    group.set_cpus(&before);
    let dir = tempfile::tempdir().unwrap();
    let Some((mut daemon, config)) = sized_to_one(&group, dir.path()) else { return };
    group.set_cpus(&before);
    until("that is seen", || daemon.log().contains("put the cpuset back"));
    assert_eq!(group.cpus(), before, "{}", daemon.log());
    daemon.configure(&config);
    until("it is sized again", || group.cpus() != before);
    assert!(daemon.end().success(), "{}", daemon.log());
    assert_eq!(group.cpus(), before, "{}", daemon.log());
}

/// A daemon whose last container has ended has nothing to put back, and who comes after one that was killed has not either.
#[test]
fn containers_that_have_all_ended_keep_nobody_from_ending_well() {
    let _alone = alone();
    let (cpu, cpuset) = (or_skip!(Hierarchy::of("cpu")), or_skip!(Hierarchy::of("cpuset")));
    let dir = tempfile::tempdir().unwrap();
    for killed in [false, true] {
        let group = or_skip!(Container::start(&cpu, &cpuset));
        let Some((mut daemon, _)) = sized_to_one(&group, dir.path()) else { return };
        if killed {
            drop(daemon);
            drop(group);
            let state = dir.path().join("state");
            let restored = corefit(&["restore", "--tries", "1", "--state", state.to_str().unwrap()]);
            assert!(restored.status.success(), "{restored:?}");
            let sum = String::from_utf8_lossy(&restored.stdout);
            assert!(sum.contains("of VMs that have ended: 1;"), "{sum}");
        } else {
            drop(group);
            until("that is said", || daemon.log().contains("no control group matches"));
            assert!(daemon.end().success(), "{}", daemon.log());
            assert!(!daemon.log().contains("cannot look"), "{}", daemon.log());
        }
    }
}

/// Settings of groups are read every few seconds.
#[test]
fn a_cpuset_that_somebody_made_smaller_just_before_gets_nothing_that_it_does_not_have_any_more() {
    let _alone = alone();
    let (cpu, cpuset) = (or_skip!(Hierarchy::of("cpu")), or_skip!(Hierarchy::of("cpuset")));
    let [a, b] = [0, 1].map(|_| Container::start(&cpu, &cpuset));
    let (a, b) = (or_skip!(a), or_skip!(b));
    let before = b.cpus();
    let all: corefit_core::CpuSet = before.parse().unwrap();
    if all.len() < 2 {
        let _ = writeln!(std::io::stderr(), "skipped: one CPU cannot be divided");
        return;
    }
    let of = |cpu: Option<corefit_core::CpuId>| cpu.unwrap().0.to_string();
    let (first, last) = (of(all.iter().next()), of(all.iter().last()));
    let machine = format!("cgroups:/{},/{}", a.name, b.name);
    let rule =
        |of: &Container| format!("[[policy.vm]]\nname = \"/{}\"\nsize = \"vcpu-bal\"\nmax = 1\n", of.name);
    // It would have the first one: the last is for the host.
    let config = format!(
        "metrics = \"off\"\ntell = false\n[policy]\ninterval_ms = 300\ndwell_ms = 500\nreserved = \"{last}\"\n{}{}",
        rule(&a),
        rule(&b)
    );
    let dir = tempfile::tempdir().unwrap();
    // Between a plan and what it goes by.
    let mut daemon = Daemon::on(&machine, dir.path(), &config, &["--apply"], Some("planned:1:stop"));
    daemon.stops();
    a.set_cpus(&last);
    daemon.go_on();
    until("the other one is sized", || b.cpus() == first);
    assert!(daemon.end().success(), "{}", daemon.log());
    assert_eq!((a.cpus(), b.cpus()), (last, before), "{}", daemon.log());
    assert!(!daemon.log().contains(&format!("vm=/{} lever=cpuset", a.name)), "{}", daemon.log());
}

/// Works for 0.2 ms, sleeps for 1 ms, and so on.
const BLOCKS: &str = "#include <unistd.h>\nint main(void) { for (;;) { for (volatile long i = 0; i < 100000; i++) ; usleep(1000); } }";

/// A group whose processes block often, beside three that are busy on every CPU.
#[test]
fn a_group_that_blocks_often_gets_a_shorter_slice_which_is_put_back_after_any_end() {
    let _alone = alone();
    let cpu = or_skip!(Hierarchy::of("cpu"));
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("blocks.c"), dir.path().join("blocks"));
    std::fs::write(&source, BLOCKS).unwrap();
    let status = Command::new("gcc").args(["-O1", "-o"]).args([&program, &source]).status();
    assert!(status.unwrap().success(), "gcc is needed: scripts/install-deps");
    let mut children = vec![];
    let mut join = |group: &Group, command: &mut Command| {
        children.push(Ended(command.spawn().unwrap()));
        group.set("cgroup.procs", &children.last().unwrap().0.id().to_string());
    };
    let group = or_skip!(cpu.group());
    for _ in 0..2 {
        join(&group, &mut Command::new(&program));
    }
    let cpus = std::thread::available_parallelism().unwrap().get();
    let busy: Vec<Group> = (0..3).map(|_| cpu.group().unwrap()).collect();
    for group in busy.iter().flat_map(|group| vec![group; cpus]) {
        join(group, &mut shell("while :; do :; done"));
    }
    let name = format!("/{}", group.dir.file_name().unwrap().to_str().unwrap());
    let mut groups = Cgroups::open(Root::live(), name.parse().unwrap()).unwrap();
    let seen = groups.observe().unwrap().vms.remove(0);
    if let Some(why) = seen.fixed(LeverKind::Slice) {
        let _ = writeln!(std::io::stderr(), "skipped: {why}");
        return;
    }
    let mut slice = || match groups.current(&seen.id, Lever::Slice(0)) {
        Ok(Value::Slice(slice)) => slice,
        other => panic!("{other:?}"),
    };
    let machine = format!("cgroups:{name}");
    let config = "metrics = \"off\"\ntell = false\n\
                  [policy]\ninterval_ms = 300\ndwell_ms = 500\nlever_ms = 500\nsize = \"none\"\nshape = \"slice\"\n";
    let mut daemon = Daemon::on(&machine, dir.path(), config, &["--apply"], None);
    until("it has a shorter slice", || slice().is_some());
    assert!(daemon.end().success(), "{}", daemon.log());
    assert!(slice().is_none(), "{}", daemon.log());

    let state = dir.path().join("state");
    for place in ["journaled", "slice-part", "written"] {
        let mut daemon = Daemon::on(&machine, dir.path(), config, &["--apply"], Some(place));
        assert_eq!(daemon.wait().signal(), Some(9), "{place}: {}", daemon.log());
        assert_eq!(slice().is_some(), place != "journaled", "{place}: {}", daemon.log());
        let restored = corefit(&["restore", "--machine", &machine, "--state", state.to_str().unwrap()]);
        assert!(restored.status.success(), "{restored:?}");
        assert!(slice().is_none(), "{place}: {}", daemon.log());
    }
}

/// What one changed would be the other's originals.
#[test]
fn two_daemons_are_not_let_to_control_groups_of_one_host_however_they_name_them() {
    let _alone = alone();
    let cpu = or_skip!(Hierarchy::of("cpu"));
    let group = or_skip!(cpu.group());
    let name = group.dir.file_name().unwrap().to_str().unwrap();
    let [a, b] = [0, 1].map(|_| tempfile::tempdir().unwrap());
    let config = "metrics = \"off\"\n[policy]\nsize = \"none\"\n";
    let first = Daemon::on(&format!("cgroups:/{name}"), a.path(), config, &["--apply"], None);
    until("it works", || first.log().contains("begun"));
    let second = format!("cgroups:/{}*", &name[..name.len() - 1]);
    let mut second = Daemon::on(&second, b.path(), config, &["--apply", "--for", "1s"], None);
    assert_eq!(second.wait().code(), Some(1), "{}", second.log());
    assert!(
        second.log().contains("control groups of this host: another corefit (process "),
        "{}",
        second.log()
    );
}

#[test]
fn a_cpuset_that_no_longer_fits_the_group_above_gets_back_what_is_left() {
    let _alone = alone();
    let (cpu, cpuset) = (or_skip!(Hierarchy::of("cpu")), or_skip!(Hierarchy::of("cpuset")));
    if cpu.v2 {
        let _ = writeln!(std::io::stderr(), "skipped: on v2 a cpuset may be wider than the one above");
        return;
    }
    let outer = or_skip!(cpu.group());
    let name = outer.dir.file_name().unwrap().to_str().unwrap().to_owned();
    let inner = outer.child("c");
    let outer_set = or_skip!(Group::make(cpuset.point.join(&name), false));
    let all = std::fs::read_to_string(cpuset.point.join("cpuset.cpus")).unwrap().trim().to_owned();
    let inner_set = outer_set.child("c");
    for set in [&outer_set, &inner_set] {
        set.set("cpuset.mems", std::fs::read_to_string(cpuset.point.join("cpuset.mems")).unwrap().trim());
        set.set("cpuset.cpus", &all);
    }
    let child = shell("while :; do :; done").spawn().unwrap();
    [&inner, &inner_set].iter().for_each(|group| group.set("cgroup.procs", &child.id().to_string()));
    let group =
        Container { busy: vec![Ended(child)], name: format!("{name}/c"), cpu: inner, set: Some(inner_set) };
    let dir = tempfile::tempdir().unwrap();
    let Some((daemon, _)) = sized_to_one(&group, dir.path()) else { return };
    drop(daemon);
    let left = group.cpus();
    outer_set.set("cpuset.cpus", &left);
    let state = dir.path().join("state");
    let restored = corefit(&["restore", "--tries", "1", "--state", state.to_str().unwrap()]);
    assert!(restored.status.success(), "{restored:?}");
    let said = String::from_utf8_lossy(&restored.stderr);
    assert!(said.contains(&format!("is {left}, was {all}: the group above has no more")), "{said}");
    assert_eq!(group.cpus(), left);
}

#[test]
fn a_group_around_one_that_has_a_wider_cpuset_is_not_sized_and_the_one_below_is_named() {
    let _alone = alone();
    let (cpu, cpuset) = (or_skip!(Hierarchy::of("cpu")), or_skip!(Hierarchy::of("cpuset")));
    if cpu.v2 {
        let _ = writeln!(std::io::stderr(), "skipped: on v2 a cpuset may be smaller than those below");
        return;
    }
    let [group, other] = [0, 1].map(|_| Container::start(&cpu, &cpuset));
    let (group, other) = (or_skip!(group), or_skip!(other));
    let below = group.set.as_ref().unwrap().child("below");
    let before = group.cpus();
    below.set("cpuset.cpus", &before);
    if before.parse::<corefit_core::CpuSet>().unwrap().len() < 2 {
        let _ = writeln!(std::io::stderr(), "skipped: one CPU cannot be divided");
        return;
    }
    let config = format!(
        "metrics = \"off\"\ntell = false\n[policy]\ninterval_ms = 300\ndwell_ms = 0\nlever_ms = 0\n\
         [[policy.vm]]\nname = \"/{}\"\nsize = \"vcpu-bal\"\nmax = 1\n",
        group.name
    );
    let dir = tempfile::tempdir().unwrap();
    let machine = format!("cgroups:/{},/{}", group.name, other.name);
    let mut daemon = Daemon::on(&machine, dir.path(), &config, &["--apply"], None);
    let state = dir.path().join("state");
    until("the status says why it is not sized", || {
        let status = corefit(&["status", "--state", state.to_str().unwrap()]);
        let status = String::from_utf8_lossy(&status.stdout).into_owned();
        let line = status.lines().find(|line| line.contains(&format!("/{}: is not sized: ", group.name)));
        line.is_some_and(|line| line.contains("/below, has ") && line.contains("narrow that"))
    });
    assert_eq!(group.cpus(), before);
    assert!(daemon.end().success(), "{}", daemon.log());
    assert_eq!(group.cpus(), before);
    assert!(!daemon.log().contains("the group above"), "{}", daemon.log());
}

#[test]
fn who_starts_with_another_directory_after_a_kill_takes_nothing_of_corefits_for_what_was_before() {
    let _alone = alone();
    let (cpu, cpuset) = (or_skip!(Hierarchy::of("cpu")), or_skip!(Hierarchy::of("cpuset")));
    let group = or_skip!(Container::start(&cpu, &cpuset));
    let before = group.cpus();
    let [a, b] = [0, 1].map(|_| tempfile::tempdir().unwrap());
    let Some((daemon, config)) = sized_to_one(&group, a.path()) else { return };
    drop(daemon); // kill -9
    let sized = group.cpus();
    let machine = format!("cgroups:/{}", group.name);
    let start = || Daemon::on(&machine, b.path(), &config, &["--apply", "--for", "1s"], None);
    let [known, other] = [&a, &b].map(|dir| dir.path().join("state").to_str().unwrap().to_owned());
    let mut second = start();
    assert_eq!(second.wait().code(), Some(2), "{}", second.log());
    let restore = corefit(&["restore", "--machine", &machine, "--state", &other]);
    assert_eq!(restore.status.code(), Some(2), "{restore:?}");
    for said in [second.log(), String::from_utf8_lossy(&restore.stderr).into_owned()] {
        assert!(said.contains(&format!("`corefit restore --state '{known}'`")), "{said}");
        assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    }
    assert_eq!(group.cpus(), sized, "nothing is changed");
    let restore = corefit(&["restore", "--state", &known]);
    assert!(restore.status.success(), "{restore:?}");
    assert_eq!(group.cpus(), before);
    let mut second = start();
    assert!(second.wait().success(), "{}", second.log());
    assert_eq!(group.cpus(), before, "{}", second.log());
}
