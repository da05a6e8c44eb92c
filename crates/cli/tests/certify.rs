//! `corefit certify` does not certify what it has not seen.

#[allow(dead_code, reason = "every test file uses a part of this")]
mod run_support;

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use run_support::{Place, REGIONS, stderr, stdout};

/// One region; prints its team's size, unless it was called `quiet`.
const SIZE: &str = r#"
#include <omp.h>
#include <stdio.h>
#include <string.h>
#include <stdlib.h>
int main(int argc, char **argv) {
    int n = 0;
    #pragma omp parallel reduction(+ : n)
    n++;
    if (!strstr(argv[0], "quiet")) printf("size %d\n", n);
    else printf("fine\n");
    if (getenv("ABORT") && n != omp_get_max_threads()) abort();
}
"#;

/// Adds up, or counts its threads if its input begins with U: a file, or standard input.
const READS: &str = r#"
#include <stdio.h>
int main(int argc, char **argv) {
    FILE *in = argc > 1 ? fopen(argv[1] + 2, "r") : stdin;
    int counts = fgetc(in) == 'U', n = 0;
    #pragma omp parallel for reduction(+ : n)
    for (int i = 0; i < 100; i++) n += i;
    for (int k = 0; k < 20; k++) {
        int team = 0;
        #pragma omp parallel reduction(+ : team)
        team++;
        if (counts) n += team;
    }
    printf("%d\n", n);
}
"#;

#[test]
fn another_input_is_another_program() {
    for argument in [Some("-iinput"), None] {
        let place = Place::new();
        let program = place.compile("reads", &["-fopenmp"], READS);
        let corefit = |verb: &[&str], text: &str| {
            fs::write(place.path().join("input"), text).unwrap();
            let mut command = place.corefit(verb);
            command.arg(&program).args(argument).stdin(fs::File::open(place.path().join("input")).unwrap());
            let output = command.output().unwrap();
            assert!(output.status.success(), "{verb:?} {}{}", stdout(&output), stderr(&output));
        };
        let grant = || place.report()["processes"][0]["grant"].to_string();
        corefit(&["certify", "--"], "Safe");
        corefit(&["run", "--report", "report.json", "--"], "Safe");
        assert!(grant().contains("certified"), "{argument:?}: {}", grant());
        corefit(&["run", "--report", "report.json", "--"], "Unsafe");
        assert!(!grant().contains("certified"), "{argument:?}: {}", grant());
    }
}

#[test]
fn a_program_under_another_name_is_another_program() {
    let place = Place::new();
    let loud = place.compile("loud", &["-fopenmp"], SIZE);
    let quiet = place.path().join("quiet");
    std::os::unix::fs::symlink(&loud, &quiet).unwrap();
    let certify =
        |program: &std::path::Path| place.corefit(&["certify", "--"]).arg(program).output().unwrap();
    assert_eq!(certify(&loud).status.code(), Some(1));
    assert_eq!(certify(&quiet).status.code(), Some(0), "{}", stderr(&certify(&quiet)));
    let output = place.corefit(&["run", "--report", "report.json", "--"]).arg(&loud).output().unwrap();
    assert!(output.status.success());
    assert!(place.report()["processes"][0]["grant"].get("certified").is_none(), "{}", place.report());
}

#[test]
fn the_environment_cannot_keep_sizes_from_being_tried() {
    for (name, value) in [("OMP_THREAD_LIMIT", "1"), ("OMP_DYNAMIC", "true")] {
        let place = Place::new();
        let program = place.compile("size", &["-fopenmp"], SIZE);
        let output = place.corefit(&["certify", "--"]).arg(program).env(name, value).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{name}: {}{}", stdout(&output), stderr(&output));
    }
}

/// Prints a time that is 1 in each odd run from the third on, and with an argument its team's size.
const COARSE: &str = r#"
#include <stdio.h>
int main(int argc, char **argv) {
    int run = 0, n = 0;
    FILE *file = fopen("runs", "a+");
    fputc('x', file);
    fflush(file);
    run = ftell(file);
    #pragma omp parallel reduction(+ : n)
    n++;
    printf("elapsed 0.0%d s\n", run > 2 && run % 2);
    if (argc > 1) printf("size %d\n", n);
}
"#;

#[test]
fn a_time_that_is_the_same_now_and_then_is_no_dependence_on_sizes() {
    let place = Place::new();
    let program = place.compile("coarse", &["-fopenmp"], COARSE);
    let certify = |arguments: &[&str]| {
        let _ = fs::remove_file(place.path().join("runs"));
        let output = place.corefit(&["certify", "--"]).arg(&program).args(arguments).output().unwrap();
        (output.status.code(), stdout(&output), stderr(&output))
    };
    let (code, _, said) = certify(&[]);
    assert!(code == Some(2) && said.contains("elapsed") && said.contains("--ignore"), "{said}");
    assert!(!place.path().join("state/corefit/certified").read_dir().unwrap().any(|_| true), "remembered");
    let (code, said, _) = certify(&["sizes"]);
    assert!(code == Some(1) && said.contains("size 1") && !said.contains("elapsed"), "{said}");
    assert!(said.contains("--ignore"), "{said}");
}

#[test]
fn nothing_compared_is_nothing_learned() {
    let place = Place::new();
    let program = place.compile("size", &["-fopenmp"], SIZE);
    let output = place.corefit(&["certify", "--ignore", ".*", "--"]).arg(program).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--check"), "{}", stderr(&output));
}

#[test]
fn a_check_that_does_nothing_is_refused() {
    let place = Place::new();
    for check in ["", " \n", " # cmp - expected\n"] {
        let output = place.corefit(&["certify", "--check", check, "--", "true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let told = stderr(&output);
        assert!(told.contains("is empty; give a command that exits 0 if the output is right"), "{told}");
    }
}

#[test]
fn a_program_that_dies_is_wrong_whatever_a_check_says() {
    let place = Place::new();
    let program = place.compile("size", &["-fopenmp"], SIZE);
    let mut command = place.corefit(&["certify", "--check", "true", "--"]);
    let output = command.arg(program).env("ABORT", "1").output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}{}", stdout(&output), stderr(&output));
    assert!(stdout(&output).contains("it died"), "{}", stdout(&output));
}

#[test]
fn a_program_that_waits_for_threads_that_never_come_is_ended_and_not_certified() {
    let place = Place::new();
    let source = r#"
#include <omp.h>
#include <stdio.h>
#include <unistd.h>
int main(void) {
    volatile int arrived = 0;
    #pragma omp parallel
    {
        #pragma omp atomic
        arrived++;
        while (arrived < omp_get_max_threads()) usleep(1000);
    }
    printf("all here\n");
}
"#;
    let program = place.compile("waits", &["-fopenmp"], source);
    let output = place.corefit(&["certify", "--"]).arg(program).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}{}", stdout(&output), stderr(&output));
    assert!(stdout(&output).contains("had not ended"), "{}", stdout(&output));
}

#[test]
fn a_certificate_reaches_no_further_than_what_the_program_asked_for() {
    let place = Place::new();
    let program = place.compile("regions", &["-fopenmp"], REGIONS);
    let mut command = place.corefit(&["certify", "--ignore", "^teams", "--"]);
    let output = command.arg(program).arg("100").env("OMP_NUM_THREADS", "2").output().unwrap();
    assert!(stdout(&output).contains("from 1 to 2"), "{}{}", stdout(&output), stderr(&output));
}

#[test]
fn a_file_named_in_an_option_is_part_of_what_was_certified() {
    let place = Place::new();
    let program = place.compile("quiet", &["-fopenmp"], SIZE);
    let input = place.path().join("input");
    fs::write(&input, "a").unwrap();
    let option = format!("--in={}", input.display());
    let output = place.corefit(&["certify", "--"]).arg(&program).arg(&option).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let certified = || {
        let mut command = place.corefit(&["run", "--report", "report.json", "--quiet", "--"]);
        command.arg(&program).arg(&option).stdout(Stdio::null()).status().unwrap();
        place.report()["processes"][0]["grant"].get("certified").is_some()
    };
    assert!(certified());
    fs::write(&input, "b").unwrap();
    assert!(!certified());
}

#[test]
fn threads_that_wait_for_each_other_are_told_from_those_that_do_not() {
    let place = Place::new();
    let source = r#"
#include <stdio.h>
#include <time.h>
static double cpu(void) { struct timespec t; clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }
int main(void) {
    #pragma omp parallel
    for (int step = 0; step < STEPS; step++) {
        double end = cpu() + 0.2 / STEPS;
        while (cpu() < end) ;
        #pragma omp barrier
    }
    printf("done\n");
}
"#;
    // Whoever spins is not seen to wait, so the user's own policy does not count.
    for (steps, policy, independent) in
        [("-DSTEPS=1", "", true), ("-DSTEPS=200", "", false), ("-DSTEPS=200", "active", false)]
    {
        let program = place.compile("steps", &["-fopenmp", steps], source);
        let mut command = place.corefit(&["certify", "--threads", "2", "--"]);
        let output = command.arg(program).env("OMP_WAIT_POLICY", policy).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(stdout(&output).contains("hardly ever wait"), independent, "{}", stdout(&output));
    }
}

#[test]
fn a_run_ends_with_the_program_whatever_it_leaves_behind_holds_of_its_output() {
    let place = Place::new();
    let source = r#"
#include <poll.h>
#include <stdio.h>
#include <unistd.h>
int main(void) {
    if (fork() == 0) {
        setsid();
        // Until nobody reads any more.
        struct pollfd out = { 1, 0, 0 };
        poll(&out, 1, 60000);
        return 0;
    }
    int n = 0;
    #pragma omp parallel for reduction(+ : n)
    for (int i = 0; i < 100; i++) n += i;
    printf("%d\n", n);
}
"#;
    let program = place.compile("leaves", &["-fopenmp"], source);
    let start = Instant::now();
    let output = place.corefit(&["certify", "--runs", "2", "--"]).arg(program).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    assert_eq!(stderr(&output).matches("still holds its output").count(), 1, "{}", stderr(&output));
}

#[test]
fn what_is_held_of_the_output_of_one_run_only_is_no_difference() {
    let place = Place::new();
    // In its third run the result is left to somebody who waits until nobody reads any more.
    let source = r#"
#include <poll.h>
#include <stdio.h>
#include <unistd.h>
int main(void) {
    FILE *file = fopen("runs", "a+");
    fputc('x', file);
    fflush(file);
    int left = ftell(file) == 3, n = 0;
    if (left && fork() == 0) {
        setsid();
        struct pollfd out = { 1, 0, 0 };
        poll(&out, 1, 60000);
        return 0;
    }
    #pragma omp parallel for reduction(+ : n)
    for (int i = 0; i < 100; i++) n += i;
    if (!left) printf("%d\n", n);
}
"#;
    let program = place.compile("leaves", &["-fopenmp"], source);
    for check in [&[][..], &["--check", "grep -q 4950"]] {
        let _ = fs::remove_file(place.path().join("runs"));
        let mut command = place.corefit(&[&["certify"], check, &["--"]].concat());
        let output = command.arg(&program).output().unwrap();
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{check:?}: {}{told}", stdout(&output));
        assert!(told.contains("in one run and not in another"), "{check:?}: {told}");
    }
}

#[test]
fn a_check_may_ask_the_user_as_it_is_in_the_same_process_group() {
    let place = Place::new();
    let program = place.compile("quiet", &["-fopenmp"], SIZE);
    let group = rustix::process::getpgrp().as_raw_nonzero();
    let check = format!("read -r pid name state parent group rest </proc/self/stat; [ $group = {group} ]");
    let output = place.corefit(&["certify", "--check", &check, "--"]).arg(program).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
}

#[test]
fn a_hang_up_that_is_to_be_ignored_is_ignored_by_it_and_by_the_program() {
    let place = Place::new();
    let program = place.compile("quiet", &["-fopenmp"], SIZE);
    let certify = place.corefit(&["certify", "--", "sh", "-c", "kill -HUP $PPID $$; exec ./quiet"]);
    let mut command = Command::new("sh");
    command
        .args(["-c", "trap '' HUP; exec \"$0\" \"$@\""])
        .arg(certify.get_program())
        .args(certify.get_args());
    command.current_dir(program.parent().unwrap()).env("XDG_STATE_HOME", place.path().join("state"));
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
}

#[test]
fn who_interrupts_it_ends_the_program_with_all_that_it_started() {
    let script = "sleep 600 & echo $! >pid.new; mv pid.new pid; wait";
    is_killed(&Place::new(), &["certify", "--", "sh", "-c", script]);
}

#[test]
fn who_interrupts_it_ends_a_check() {
    let place = Place::new();
    let program = place.compile("quiet", &["-fopenmp"], SIZE);
    let check = "sleep 600 & echo $! >pid.new; mv pid.new pid; wait";
    is_killed(&place, &["certify", "--check", check, "--", program.to_str().unwrap()]);
}

/// A `sleep` that this starts, once an interrupt has ended it.
fn is_killed(place: &Place, args: &[&str]) {
    let mut child = place.corefit(args).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let pid = loop {
        match fs::read_to_string(place.path().join("pid")) {
            Ok(pid) => break pid.trim().to_owned(),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
        assert!(child.try_wait().unwrap().is_none() && Instant::now() < deadline, "it does not run");
    };
    // (Who runs this in the background of a script has it ignore SIGINT.)
    let kill = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None => std::thread::sleep(Duration::from_millis(10)),
        }
        assert!(Instant::now() < deadline, "it does not end");
    };
    assert_eq!(status.code(), Some(143));
    // Killed with its group; that it is gone takes init a moment.
    let state = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    while !state().is_empty() && !state().contains(") Z ") {
        assert!(!state().contains("(sleep) S"), "{}", state());
    }
}

#[test]
fn a_program_with_gccs_address_sanitizer_runs_without_the_library() {
    let place = Place::new();
    let program = place.compile("asan", &["-fopenmp", "-fsanitize=address"], SIZE);
    let output = place.corefit(&["run", "--"]).arg(program).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).starts_with("size"));
    assert!(stderr(&output).contains("AddressSanitizer"), "{}", stderr(&output));
}

#[test]
fn a_full_disk_behind_stderr_keeps_no_program_from_running() {
    let place = Place::new();
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = place.corefit(&["run", "--report", "/nonexistent/x", "--", "echo", "ran"]);
    let output = command.stderr(full).output().unwrap();
    assert_eq!((output.status.code(), stdout(&output)), (Some(2), "ran\n".into()), "the report is missing");
}
