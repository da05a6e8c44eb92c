//! Threads of corefit's own inside the program.

#[allow(dead_code, reason = "every test file uses a part of this")]
mod run_support;

use std::io::Write as _;
use std::process::Command;

use run_support::{Place, on_one_cpu, stderr, stdout};

/// Prints how many threads of ours there are within its first region, and some regions later. Where its argument expects one, it waits
/// for it; none is one that a second does not bring.
const COUNTS_OURS: &str = r#"
#include <dirent.h>
#include <omp.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }
static int ours(void) {
    int found = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; (task = readdir(tasks));) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
        FILE *file = fopen(path, "r");
        if (file) {
            fgets(name, sizeof name, file);
            fclose(file);
        }
        found += !strcmp(name, "corefit\n");
    }
    closedir(tasks);
    return found;
}
/* A thread has its name some time after it was made. */
static int ours_soon(int expected) {
    double end = now() + (expected ? 20 : 1);
    while (!ours() && now() < end) ;
    return ours();
}
int main(int count, char **expected) {
    int first = 0, later = 0;
    #pragma omp parallel num_threads(2)
    #pragma omp single
    first = ours_soon(count > 1 && *expected[1] == '1');
    for (int i = 0; i < 3; i++) {
        #pragma omp parallel num_threads(2)
        #pragma omp single
        later = i < 2 ? 0 : ours_soon(1);
    }
    printf("%d %d\n", first, later);
    return 0;
}
"#;

#[test]
fn who_cannot_be_helped_within_the_first_region_gets_no_thread_there() {
    let place = Place::new();
    let gcc = place.compile("gcc", &["-fopenmp"], COUNTS_OURS);
    let clang = place.path().join("clang");
    let source = place.path().join("gcc.c");
    let built = Command::new("clang").args(["-O1", "-fopenmp", "-o"]).args([&clang, &source]).status();
    let mut cases = vec![(&gcc, None, "1 1\n"), (&gcc, Some("passive"), "0 1\n")];
    if built.is_ok_and(|status| status.success()) {
        cases.push((&clang, None, "0 1\n"));
    } else {
        let _ = writeln!(std::io::stderr(), "skipped: a program of libomp: clang -fopenmp does not work");
    }
    // Vouched for two threads, which have one CPU: something is short from the beginning.
    for (program, policy, wanted) in cases {
        let options = ["run", "--quiet", "--resize", "always", "--", program.to_str().unwrap(), wanted];
        let command = place.corefit(&options);
        let mut pinned = on_one_cpu(&command);
        pinned.env("OMP_NUM_THREADS", "2").env_remove("OMP_WAIT_POLICY").env_remove("GOMP_SPINCOUNT");
        policy.map(|policy| pinned.env("OMP_WAIT_POLICY", policy));
        let output = pinned.output().unwrap();
        assert_eq!(stdout(&output), wanted, "{program:?} {policy:?}: {}", stderr(&output));
    }
}
