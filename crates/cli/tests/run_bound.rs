//! `corefit run` of programs that are bound to CPUs, that nothing of theirs says so, or that leave the tree of processes.

#[allow(dead_code, reason = "every test file uses a part of this")]
mod run_support;

use std::io::Write as _;
use std::process::Command;
use std::thread::available_parallelism;

use run_support::{Place, REGIONS, on_one_cpu, stderr, stdout, told};

fn skipped(what: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {what}: {why}");
}

/// Regions whose threads bind themselves to a CPU each, for `ms` milliseconds.
const BINDS: &str = r#"
#define _GNU_SOURCE
#include <omp.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }
int main(int argc, char **argv) {
    double end = now() + atof(argv[1]) / 1000;
    do {
        #pragma omp parallel
        {
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(omp_get_thread_num(), &one);
            sched_setaffinity(0, sizeof one, &one);
            for (volatile int i = 0; i < 200000; i++) ;
        }
    } while (now() < end);
    return 0;
}
"#;

/// Why the team changed, of each change in the report.
fn reasons(place: &Place) -> Vec<String> {
    let report = place.report();
    let changes = report["changes"].as_array().unwrap();
    changes.iter().map(|change| change["reason"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_program_whose_threads_are_bound_is_not_taken_to_have_one_cpu() {
    if available_parallelism().is_ok_and(|cpus| cpus.get() < 2) {
        return skipped("threads bound to CPUs", "there is one CPU for us");
    }
    let place = Place::new();
    let regions = place.compile("regions", &["-fopenmp"], REGIONS);
    let binds = place.compile("binds", &["-fopenmp"], BINDS);
    let clang = place.path().join("clang");
    let source = place.path().join("regions.c");
    let built = Command::new("clang").args(["-O1", "-fopenmp", "-o"]).args([&clang, &source]).status();
    let mut cases = vec![(&regions, Some("true")), (&binds, None)];
    if built.is_ok_and(|status| status.success()) {
        cases.push((&clang, Some("spread")));
    } else {
        skipped("a program of libomp", "clang -fopenmp does not work");
    }
    for (program, bind) in cases {
        let options = ["run", "--threads", "max", "--resize", "always", "--report", "report.json", "--"];
        let mut command = place.corefit(&options);
        command.arg(program).arg("700");
        bind.map(|bind| command.env("OMP_PROC_BIND", bind));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let reasons = reasons(&place);
        assert!(!reasons.iter().any(|reason| reason == "limited"), "{program:?} {bind:?}: {reasons:?}");
    }
}

#[test]
fn teams_do_not_grow_beyond_the_number_of_threads_that_is_said() {
    let place = Place::new();
    let program = place.compile("regions", &["-fopenmp"], REGIONS);
    let mut command = place.corefit(&["run", "--resize", "always", "--threads", "1", "--"]);
    let output = command.arg(&program).arg("1500").env("OMP_NUM_THREADS", "2").output().unwrap();
    assert_eq!(stdout(&output), "right 1\nteams 1\n", "{}", stderr(&output));
}

#[test]
fn a_process_whose_parent_has_ended_is_followed() {
    let place = Place::new();
    place.compile("regions", &["-fopenmp"], REGIONS);
    // Its threads wait for one CPU. The shell's child ends at once, and theirs is nobody's.
    let script = "setsid -f ./regions 1500 >out; until grep -qs teams out; do sleep 0.05; done";
    let options = ["run", "--resize", "never", "--report", "report.json", "--", "sh", "-c", script];
    let command = place.corefit(&options);
    let output = on_one_cpu(&command).env("OMP_NUM_THREADS", "4").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let report = place.report();
    assert_eq!(report["processes"][0]["requested"], 4, "{report}");
    assert!(report["waiting_s"].as_f64().unwrap() > 0.3, "{report}");
}

#[test]
fn a_process_of_another_user_that_is_not_followed_is_named() {
    if !rustix::process::geteuid().is_root() {
        return skipped("a program that changes its user", "only root may");
    }
    let place = Place::new();
    let program = place.compile("regions", &["-fopenmp"], REGIONS);
    // Where the other user may execute it.
    let mode = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::fs::set_permissions(place.path(), mode(0o755)).unwrap();
    let uid = format!("{}", 1_800_000_000 + std::process::id());
    let mut command =
        place.corefit(&["run", "--", "setpriv", "--clear-groups", "--reuid", &uid, "--regid", &uid]);
    let output = command.arg(&program).arg("1500").env("OMP_NUM_THREADS", "3").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let said = told(&output);
    assert!(
        said.contains("(regions, 3 threads) ran where corefit's library does not reach corefit"),
        "{said}"
    );
}
