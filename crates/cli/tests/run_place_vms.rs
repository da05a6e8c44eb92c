//! `corefit run --place` on a real kernel that shows siblings: in a guest of two cores with two threads each
//! (`scripts/testvm`). Emulated siblings do not slow each other down: what is checked is where the threads may run.

#[path = "../../linux/tests/vm_support/mod.rs"]
mod vm_support;

use std::path::{Path, PathBuf};
use std::process::Command;

use corefit_core::CpuSet;
use vm_support::{Vms, or_skipped, stripped};

/// Two threads that compute until they were seen on two CPUs, or for 20 s; then where each may run, and both CPUs.
const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>
static volatile int on[2] = {-1, -1}, over;
static void *work(void *number) {
    while (!over) on[(long)number] = sched_getcpu();
    return NULL;
}
static void show(const char *what, pthread_t thread) {
    cpu_set_t set;
    pthread_getaffinity_np(thread, sizeof set, &set);
    printf("%s", what);
    for (int cpu = 0, more = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &set)) printf("%s%d", more++ ? "," : " ", cpu);
    printf("\n");
}
int main(void) {
    pthread_t other;
    struct timespec begun, now;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    if (pthread_create(&other, NULL, work, (void *)1)) return 1;
    do {
        on[0] = sched_getcpu();
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - begun.tv_sec < 20 && (on[1] < 0 || on[0] == on[1]));
    int first = on[0], second = on[1];
    show("affinity", pthread_self());
    show("affinity", other);
    printf("on %d,%d\n", first, second);
    over = 1;
    return pthread_join(other, NULL);
}
"#;

/// The program, made by a C compiler; `Err` says why there is none.
fn threads(dir: &Path) -> Result<PathBuf, String> {
    let (source, program) = (dir.join("threads.c"), dir.join("threads"));
    std::fs::write(&source, SOURCE).unwrap();
    let made = Command::new("gcc").args(["-O2", "-pthread", "-o"]).args([&program, &source]).output();
    match made {
        Ok(made) if made.status.success() => Ok(program),
        Ok(made) => panic!("{}", String::from_utf8_lossy(&made.stderr)),
        Err(error) => Err(format!("skipped: gcc: {error}")),
    }
}

#[test]
fn two_threads_get_two_cores_and_not_two_siblings() {
    let dir = tempfile::tempdir().unwrap();
    let Some(threads) = or_skipped("run --place in a guest", threads(dir.path())) else { return };
    let corefit = stripped(Path::new(env!("CARGO_BIN_EXE_corefit")), dir.path());
    let programs = [&corefit, &threads].map(|program| program.to_str().unwrap());
    let shape = ["--name", "place", "--vcpus", "4", "--smt", "1", "--memory", "768"];
    let options = [&shape[..], &["--program", programs[0], "--program", programs[1]]].concat();
    let Some(vms) = or_skipped("run --place in a guest", Vms::up(1, &options)) else { return };
    let name = &vms.names[0];
    let list = "cat /sys/devices/system/cpu/cpu[0-3]/topology/thread_siblings_list";
    let cores: Vec<CpuSet> = vms.guest(name, list).lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(cores.len(), 4);
    assert!(cores.iter().all(|core| core.len() == 2), "the guest's kernel shows siblings: {cores:?}");
    let sets = |command: &str| -> Vec<CpuSet> {
        let text = vms.guest(name, command);
        let set = |line: &str| line.split_once(' ').and_then(|(_, set)| set.parse().ok());
        text.lines().map(|line| set(line).unwrap_or_else(|| panic!("{command}: {text}"))).collect()
    };
    let run = |place: &str| {
        sets(&format!("/workloads/corefit run --quiet --threads 2 {place} -- /workloads/threads"))
    };
    let free = run("");
    assert_eq!(free[0].to_string(), "0-3", "nobody places them");
    let placed = run("--place");
    let [first, second, on] = &placed[..] else { panic!("{placed:?}") };
    assert_eq!(first, second, "both threads are placed");
    assert_eq!(first.len(), 2, "a CPU for each: {first}");
    for core in &cores {
        assert_eq!(core.intersection(first).len(), 1, "one CPU of each core: {first} of {cores:?}");
    }
    assert_eq!(on, first, "and there they run");
}
