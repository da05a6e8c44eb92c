//! `corefit cpus` against real control groups, made here and removed again, v1 or v2.
//! Where they may not be made, each test prints `skipped: reason`.
//!
//! The groups weigh so much that whatever else runs on the machine hardly counts.

mod cgroup_support;

use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use cgroup_support::{Ended, Group, Hierarchy, alone, heavy, loops, members, or_skip, until};
use corefit_core::{CpuSet, LimitKind, Report, estimate};
use corefit_linux::sample::set_affinity;
use corefit_linux::{Root, read};

/// Looks for a measured figure, of which one has to be right: what else runs on the machine disturbs some.
const LOOKS: usize = 6;

/// Watches a process for a second: a measurement, no wait for something to happen.
fn second(busy: &Ended) -> Report {
    let root = Root::live();
    let earlier = read(&root, busy.0.id()).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    estimate(&earlier, &read(&root, busy.0.id()).unwrap())
}

/// In a second in which no hypervisor took time, if there is one: that is a limit, too, and who competes beyond it cannot be seen.
fn watch(busy: &Ended) -> Report {
    let stolen = |report: &Report| report.unread.iter().any(|unread| unread.why.contains("stolen"));
    let mut report = second(busy);
    for _ in 1..LOOKS {
        if !stolen(&report) {
            break;
        }
        report = second(busy);
    }
    report
}

fn binding(report: &Report) -> Vec<(LimitKind, &str)> {
    report.limits.iter().filter(|l| l.binding).map(|l| (l.kind, l.source.as_str())).collect()
}

/// Confines groups of the cpu controller to CPU 0. On v1 by groups of the same names in the
/// hierarchy of cpusets, which are handed back; their members have to be put there as well.
fn one_cpu(groups: &[&Group]) -> Result<Vec<Group>, String> {
    let cpusets = Hierarchy::of("cpuset")?;
    if cpusets.v2 {
        groups.iter().for_each(|group| group.set("cpuset.cpus", "0"));
        return Ok(Vec::new());
    }
    let cpu = Hierarchy::of("cpu")?;
    let mut sets = Vec::new();
    for group in groups {
        let set = Group::make(cpusets.point.join(group.dir.strip_prefix(&cpu.point).unwrap()), false)?;
        set.set("cpuset.mems", "0");
        set.set("cpuset.cpus", "0");
        sets.push(set);
    }
    Ok(sets)
}

#[test]
fn the_lowest_quota_of_all_ancestors_binds() {
    let _alone = alone();
    let above = or_skip!(heavy());
    let below = above.child("below");
    above.quota(30_000);
    if above.v2 {
        below.quota(80_000); // v1 forbids more than the parent has
    }
    let busy = loops(&below);
    let report = watch(&busy);
    assert_eq!(binding(&report), [(LimitKind::Quota, above.quota_file().as_str())], "{report:#?}");
    assert_eq!(report.available.0, 0.3);
    assert!(report.used.0 < 0.35, "the kernel agrees: {report:#?}");
    assert!(report.limits.iter().any(|l| l.detail.contains("ran out in")), "{report:#?}");

    above.quota(90_000);
    below.quota(20_000);
    let report = watch(&busy);
    assert_eq!(binding(&report), [(LimitKind::Quota, below.quota_file().as_str())], "{report:#?}");
    assert_eq!(report.available.0, 0.2);
}

#[test]
fn weights_against_a_busy_sibling_divide_as_the_kernel_does() {
    let _alone = alone();
    let above = or_skip!(heavy());
    let (mine, theirs) = (above.child("mine"), above.child("theirs"));
    // All on one CPU, so that the amount is known whatever else runs.
    let sets = or_skip!(one_cpu(&[&above, &mine, &theirs]));
    let (busy, _neighbour) = (loops(&mine), loops(&theirs));
    for (group, set) in [&mine, &theirs].iter().zip(sets.iter().skip(1)) {
        group.also_in(set);
    }
    for (weight, expected) in [(1, 0.5), (3, 0.25)] {
        theirs.weight(weight);
        let look = |_| {
            let report = watch(&busy);
            let entitled = report.entitled.expect("everybody can be seen").0;
            assert!((entitled - expected).abs() < 1e-3, "{report:#?}");
            let other = report.contenders.iter().find(|c| Path::new(&c.path) == theirs.dir);
            let other = other.unwrap_or_else(|| panic!("the sibling is not seen: {report:#?}"));
            // As a part of what both got: a hypervisor below may take some of the CPU.
            report.used.0 / (report.used.0 + other.used.0)
        };
        let parts: Vec<f64> =
            (0..LOOKS).map(look).take_while(|part| (part - expected).abs() >= 0.1).collect();
        assert!(parts.len() < LOOKS, "parts {parts:?}, {expected} expected");
    }
}

#[test]
fn a_sibling_that_rests_does_not_count() {
    let _alone = alone();
    let above = or_skip!(heavy());
    let (mine, theirs) = (above.child("mine"), above.child("theirs"));
    above.quota(80_000);
    let sleeper = Command::new("sleep").arg("60").spawn().map(Ended).unwrap();
    theirs.set("cgroup.procs", &sleeper.0.id().to_string());
    let report = watch(&loops(&mine));
    assert!(!report.contenders.iter().any(|c| Path::new(&c.path) == theirs.dir), "{report:#?}");
    assert_eq!(report.entitled.map(|c| c.0), Some(0.8), "{report:#?}");
}

/// A busy thread in each group whose file `tasks` is named.
const SPREAD: &str = r#"
#include <pthread.h>
#include <stdio.h>
static void *spin(void *tasks) {
    FILE *file = fopen(tasks, "w");
    if (!file || fputs("0", file) < 0 || fclose(file)) return NULL;
    for (volatile int go = 1; go;) {}
    return NULL;
}
int main(int count, char **tasks) {
    pthread_t thread;
    while (--count) pthread_create(&thread, NULL, spin, tasks[count]);
    pthread_join(thread, NULL);
}
"#;

/// As a VM of libvirt is.
#[test]
fn a_process_whose_threads_are_spread_over_groups_counts_once() {
    let _alone = alone();
    let above = or_skip!(heavy());
    if above.v2 {
        cgroup_support::skipped("groups of v2 count by themselves");
        return;
    }
    let (mine, theirs) = (above.child("mine"), above.child("theirs"));
    theirs.quota(50_000);
    let groups = ["a", "b", "c", "d"].map(|name| theirs.child(name));
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("spread.c"), dir.path().join("spread"));
    std::fs::write(&source, SPREAD).unwrap();
    let built = Command::new("gcc").arg("-pthread").arg("-o").arg(&program).arg(&source).status().unwrap();
    assert!(built.success());
    let spread = Command::new(program).args(groups.iter().map(|group| group.dir.join("tasks"))).spawn();
    let _spread = Ended(spread.unwrap());
    until("each thread is in its group", || groups.iter().all(|group| !members(&group.dir).is_empty()));
    // Leaves this thread, which reads and is in no heavy group, a part of each CPU.
    mine.quota(30_000);
    let report = watch(&loops(&mine));
    let used = report.contenders.iter().find(|c| Path::new(&c.path) == theirs.dir).map(|c| c.used.0);
    assert!(used.is_some_and(|used| (0.3..0.8).contains(&used)), "{used:?} of 0.5: {report:#?}");
}

#[test]
fn a_cpuset_binds_and_names_its_group() {
    let _alone = alone();
    let group = or_skip!(heavy());
    let sets = or_skip!(one_cpu(&[&group]));
    let set = sets.first().unwrap_or(&group);
    let busy = loops(&group);
    group.also_in(set);
    let report = watch(&busy);
    let marked = binding(&report);
    let [(LimitKind::Cpuset, source)] = marked[..] else { panic!("{report:#?}") };
    assert_eq!(Path::new(source).parent().unwrap(), set.dir);
    assert_eq!(report.available.0, 1.0);
}

#[test]
fn a_narrow_affinity_mask_binds() {
    let _alone = alone();
    let group = or_skip!(heavy());
    let busy = loops(&group);
    set_affinity(busy.0.id(), &CpuSet::first(1));
    let report = watch(&busy);
    if report.limits[0].cpus.is_none_or(|c| c.0 < 2.0) {
        let _ = writeln!(std::io::stderr(), "skipped: this machine has one CPU");
        return;
    }
    let source = format!("/proc/{}/status", busy.0.id());
    assert_eq!(binding(&report), [(LimitKind::Affinity, source.as_str())], "{report:#?}");
    assert_eq!(report.available.0, 1.0);
}
