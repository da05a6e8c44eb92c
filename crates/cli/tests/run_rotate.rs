//! `corefit run --rotate`: threads that work alone are moved over the CPUs, and nothing else is.

#[allow(dead_code, reason = "every test file uses a part of this")]
mod run_support;

use std::io::{Read, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use run_support::{Place, stderr, stdout, told};

/// Whether there is anywhere to move; says on the real stderr that this was not tested if not.
fn has_two_cpus() -> bool {
    let has = std::thread::available_parallelism().unwrap().get() > 1;
    if !has {
        let _ = writeln!(std::io::stderr(), "skipped: moving threads: there is only one CPU");
    }
    has
}

/// One thread works for 3 s of its CPU time, another sleeps. Prints that time on each CPU in ms, and whether the affinity
/// is in the end what it was. With an argument it first sets its own affinity: all CPUs but one.
const ALONE: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static void *sleeps(void *x) { for (;;) pause(); return x; }
static double used(void) { struct timespec t; clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }
static cpu_set_t mask(void) { cpu_set_t m; CPU_ZERO(&m); syscall(SYS_sched_getaffinity, 0, sizeof m, &m); return m; }
int main(int argc, char **argv) {
    static double on[CPU_SETSIZE];
    (void)argv;
    pthread_t other;
    pthread_create(&other, 0, sleeps, 0);
    cpu_set_t first = mask();
    if (argc > 1) {
        int cpu = 0;
        while (!CPU_ISSET(cpu, &first)) cpu++;
        CPU_CLR(cpu, &first);
        if (sched_setaffinity(0, sizeof first, &first)) return 2;
    }
    int changed = 0;
    for (double last = used(), now; last < 3; last = now) {
        now = used();
        on[sched_getcpu()] += now - last;
    }
    cpu_set_t end = mask();
    changed |= !CPU_EQUAL(&first, &end);
    puts(changed ? "changed" : "same");
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &first)) printf("%.0f\n", 1000 * on[cpu]);
    return 0;
}
"#;

/// Sequential work of 6 ms, then a region, as often as told; how often a thread might not use all CPUs that there were.
const FORKS: &str = r#"
#define _GNU_SOURCE
#include <omp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static cpu_set_t mask(void) { cpu_set_t m; CPU_ZERO(&m); syscall(SYS_sched_getaffinity, 0, sizeof m, &m); return m; }
static double used(void) { struct timespec t; clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }
int main(int argc, char **argv) {
    int strays = 0;
    cpu_set_t first = mask();
    for (int i = 0; argc > 1 && i < atoi(argv[1]); i++) {
        for (double end = used() + 0.006; used() < end;);
#pragma omp parallel num_threads(CPU_COUNT(&first)) reduction(+ : strays)
        {
            cpu_set_t now = mask();
            strays += !CPU_EQUAL(&first, &now);
        }
    }
    printf("strays %d\n", strays);
    return 0;
}
"#;

#[test]
fn the_thread_that_works_alone_goes_over_all_cpus_and_keeps_its_affinity() {
    let place = Place::new();
    let program = place.compile("alone", &["-pthread"], ALONE);
    let output = place.corefit(&["run", "--rotate", "--report", "report.json", "--"]).arg(&program).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    let (affinity, on) = text.split_once('\n').unwrap();
    assert_eq!(affinity, "same", "what it may use is what it was");
    let on: Vec<f64> = on.lines().map(|line| line.parse().unwrap()).collect();
    if !has_two_cpus() {
        return;
    }
    // Not evenly: beside other tests the kernel moves it, too.
    let mean = on.iter().sum::<f64>() / f64::from(u32::try_from(on.len()).unwrap());
    assert!(on.iter().all(|ms| *ms >= 0.2 * mean), "{on:?}");
    let rotated = &place.report()["rotated"];
    assert!(rotated["moves"].as_u64().unwrap() >= 10, "{rotated}");
    assert_eq!(rotated["left_alone"], 0);
    assert!(told(&output).contains("was moved"), "{}", stderr(&output));
}

#[test]
fn where_regions_begin_the_program_moves_its_own_thread_and_waiting_sleeps() {
    let place = Place::new();
    let program = place.compile("forks", &["-fopenmp"], FORKS);
    let run = |options: &[&str]| {
        let mut command = place.corefit(&[&["run", "--report", "report.json"], options, &["--"]].concat());
        for name in ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"] {
            command.env_remove(name);
        }
        command.arg(&program).arg("200").output().unwrap()
    };
    let output = run(&["--rotate=10ms"]);
    assert_eq!(stdout(&output), "strays 0\n", "{}", stderr(&output));
    let report = place.report();
    if !has_two_cpus() {
        return;
    }
    let moves = report["processes"][0]["moves"].as_u64().unwrap();
    assert!(moves >= 20 && report["rotated"]["moves"].as_u64().unwrap() >= moves, "{report}");
    assert_eq!(report["rotated"]["left_alone"], 0, "{report}");
    let sleeps = |report: &serde_json::Value| {
        report["set"].as_array().unwrap().iter().any(|set| set == "OMP_WAIT_POLICY=passive")
    };
    assert!(sleeps(&report), "{report}");
    let output = run(&[]);
    let report = place.report();
    assert_eq!(report["processes"][0]["moves"], 0, "{}", stderr(&output));
    assert!(!sleeps(&report), "{report}");
}

#[test]
fn a_program_whose_corefit_is_killed_while_it_moves_threads_keeps_their_affinity() {
    let place = Place::new();
    let program = place.compile("forks", &["-fopenmp"], FORKS);
    let mut command = place.corefit(&["run", "--quiet", "--rotate=5ms", "--"]);
    let mut corefit = command.arg(&program).arg("150").stdout(Stdio::piped()).spawn().unwrap();
    let mut output = corefit.stdout.take().unwrap();
    // It has worked for a while.
    let children = format!("/proc/{0}/task/{0}/children", corefit.id());
    let runs =
        |pid: &str| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with("forks"));
    let begins = || std::fs::read_to_string(&children).unwrap_or_default().split_whitespace().any(runs);
    let deadline = Instant::now() + Duration::from_secs(20);
    while !begins() {
        assert!(Instant::now() < deadline, "the program never started");
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(500));
    corefit.kill().unwrap();
    corefit.wait().unwrap();
    let mut text = String::new();
    output.read_to_string(&mut text).unwrap();
    assert_eq!(text, "strays 0\n");
}

#[test]
fn threads_that_are_bound_are_not_moved() {
    let place = Place::new();
    let program = place.compile("alone", &["-pthread"], ALONE);
    let mut own = place.corefit(&["run", "--rotate=40ms", "--report", "report.json", "--"]);
    let output = own.arg(&program).arg("own").output().unwrap();
    if !has_two_cpus() {
        return;
    }
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).starts_with("same\n"), "its own affinity: {}", stdout(&output));
    assert_eq!(place.report()["rotated"]["left_alone"], 1, "{}", stderr(&output));
    assert!(told(&output).contains("set its own affinity"), "{}", stderr(&output));

    let output = place.corefit(&["run", "--rotate", "--report", "report.json", "--", "true"]);
    let output = { output }.env("OMP_PROC_BIND", "close").output().unwrap();
    assert!(place.report()["rotated"].is_null());
    assert!(told(&output).contains("OMP_PROC_BIND=close binds"), "{}", stderr(&output));
}
