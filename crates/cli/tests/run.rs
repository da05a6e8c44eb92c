//! `corefit run` as a user meets it.

#[allow(dead_code, reason = "every test file uses a part of this")]
mod run_support;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use run_support::{Place, REGIONS, on_one_cpu, stderr, stdout, told};

/// A program whose result depends on its team size: thread i owns item i.
const BY_THREAD: &str = r#"
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }
int main(int argc, char **argv) {
    double end = now() + atof(argv[1]) / 1000;
    int items = omp_get_max_threads(), lost = 0;
    do {
        int done = 0;
        #pragma omp parallel
        {
            for (volatile int i = 0; i < 20000; i++) ;
            #pragma omp atomic
            done++;
        }
        lost += items - done;
    } while (now() < end);
    printf("lost %d\n", lost);
    return 0;
}
"#;

/// A program whose first regions ask for what there is, later ones for four threads: by a clause, or
/// by a call where there is no clause. It ends when one of them gets a single thread.
const GROWING: &str = r#"
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }
int main(int argc, char **argv) {
    int first = 0, last = 0;
    double end = now() + 0.3;
    while (now() < end) {
        #pragma omp parallel
        #pragma omp single
        first = omp_get_num_threads();
    }
    omp_set_num_threads(4);
    for (end = now() + 20; last != 1 && now() < end;) {
        #pragma omp parallel CLAUSE
        {
            for (volatile int i = 0; i < 20000; i++) ;
            #pragma omp single
            last = omp_get_num_threads();
        }
    }
    printf("%d at first, %d at last\n", first, last);
    return 0;
}
"#;

/// Starts so many processes, each with one region, one after the other, and waits for none of them.
const UNREAPED: &str = r#"
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **argv) {
    int one = 0, more = 0;
    for (int n = atoi(argv[1]); n > 0; n--) {
        int tube[2], size = 0;
        if (pipe(tube) != 0) return 2;
        if (fork() == 0) {
            #pragma omp parallel
            #pragma omp single
            size = omp_get_num_threads();
            return write(tube[1], &size, sizeof size) != sizeof size;
        }
        close(tube[1]);
        if (read(tube[0], &size, sizeof size) != sizeof size) return 3;
        char end;
        if (read(tube[0], &end, 1) != 0) return 4; /* it has ended */
        close(tube[0]);
        if (size == 1) one++; else more++;
    }
    printf("%d of 1, %d of more\n", one, more);
    return 0;
}
"#;

/// Starts so many processes, each with one region, and ends them once all have had theirs.
const CROWD: &str = r#"
#include <omp.h>
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **argv) {
    int begun[2], end[2];
    char byte = 0;
    if (pipe(begun) != 0 || pipe(end) != 0) return 2;
    for (int n = atoi(argv[1]); n > 0; n--) {
        if (fork() != 0) continue;
        close(end[1]);
        #pragma omp parallel
        for (volatile int i = 0; i < 100; i++) ;
        return write(begun[1], &byte, 1) != 1 || read(end[0], &byte, 1) != 0;
    }
    for (int n = atoi(argv[1]); n > 0; n--)
        if (read(begun[0], &byte, 1) != 1) return 3;
    return 0;
}
"#;

/// Runs regions of so many threads for a second, then executes the command that follows, if any.
const BECOMES: &str = r#"
#include <omp.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }
int main(int argc, char **argv) {
    omp_set_num_threads(atoi(argv[1]));
    for (double end = now() + 1; now() < end;) {
        #pragma omp parallel
        for (volatile int i = 0; i < 20000; i++) ;
    }
    return argc > 2 ? execv(argv[2], argv + 2) : 0;
}
"#;

#[test]
fn a_program_passes_through_unchanged() {
    let place = Place::new();
    let mut command = place.corefit(&["run", "--quiet", "--", "sh", "-c", "cat; echo err >&2; exit 3"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"text").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert_eq!((stdout(&output), stderr(&output)), ("text".into(), "err\n".into()));
}

#[test]
fn a_death_by_signal_is_passed_on() {
    use std::os::unix::process::ExitStatusExt;
    let output = Place::new().corefit(&["run", "--", "sh", "-c", "kill -TERM $$"]).output().unwrap();
    assert_eq!(output.status.signal(), Some(15));
    assert!(stderr(&output).contains("ended by signal 15"), "{}", stderr(&output));
}

#[test]
fn what_cannot_be_run_is_said_in_one_line_with_the_exit_code_of_a_shell() {
    let place = Place::new();
    fs::write(place.path().join("data"), "x").unwrap();
    fs::set_permissions(place.path().join("data"), PermissionsExt::from_mode(0o644)).unwrap();
    fs::write(place.path().join("broken"), "\x7fELF and no more").unwrap();
    fs::set_permissions(place.path().join("broken"), PermissionsExt::from_mode(0o755)).unwrap();
    for (program, code) in
        [("no-such-program", 127), ("./missing", 127), ("./data", 126), ("./", 126), ("./broken", 126)]
    {
        let output = place.corefit(&["run", "--", program]).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{program}");
        assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
    }
}

#[test]
fn bad_options_are_refused_before_the_program_starts() {
    let place = Place::new();
    for options in [
        &["--threads", "0"][..],
        &["--threads", "-1"],
        &["--threads", "many"],
        &["--interval", "1us"],
        &["--resize", "maybe"],
        &["--quite", "--quite"],
    ] {
        let mut args = vec!["run"];
        args.extend(options);
        args.extend(["--", "sh", "-c", "echo started"]);
        let output = place.corefit(&args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{options:?}");
        assert_eq!(stdout(&output), "");
        assert!(stderr(&output).contains(options[1]), "{}", stderr(&output));
    }
}

#[test]
fn a_report_that_cannot_be_written_does_not_keep_the_program_from_running() {
    let output = Place::new()
        .corefit(&["run", "--quiet", "--report", "/no/such/dir/r.json", "--", "echo", "ran"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "the program's is 0, and the report is missing");
    assert_eq!(stdout(&output), "ran\n");
    assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
    assert!(stderr(&output).contains("/no/such/dir/r.json"));
}

#[test]
fn a_report_waits_for_who_reads_its_pipe_and_the_program_does_not() {
    let place = Place::new();
    assert!(Command::new("mkfifo").arg(place.path().join("pipe")).status().unwrap().success());
    let run = ["run", "--quiet", "--report", "pipe", "--", "sh", "-c", "echo ran; read line"];
    let mut command = place.corefit(&run);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut ran = [0; 4];
    child.stdout.as_mut().unwrap().read_exact(&mut ran).unwrap();
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut reader = fs::File::options();
    let mut reader = reader.read(true).custom_flags(nonblock).open(place.path().join("pipe")).unwrap();
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(child.wait().unwrap().success());
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert!(serde_json::from_str::<serde_json::Value>(&text).unwrap()["wall_s"].is_number(), "{text}");
    drop(reader);
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(stderr(&output).contains("pipe: cannot be written: "), "{}", stderr(&output));
}

#[test]
fn a_process_that_outlives_the_program_is_named() {
    let place = Place::new();
    place.compile("regions", &["-fopenmp"], REGIONS);
    // A thread of our library shows that the process is known.
    let script = "./regions 20000 >/dev/null 2>&1 & \
                  while kill -0 $! && ! grep -qs corefit /proc/$!/task/*/comm; do :; done; echo $!";
    let mut command = place.corefit(&["run", "--resize", "always", "--", "sh", "-c", script]);
    let output = command.env("OMP_NUM_THREADS", "4").output().unwrap();
    let pid = stdout(&output).trim().to_owned();
    Command::new("kill").arg(&pid).status().unwrap();
    let said = told(&output);
    assert!(said.contains(&format!("process {pid} goes on, and is no longer followed")), "{said}");
}

#[test]
fn a_process_of_one_thread_is_not_counted_as_one_that_was_not_resized() {
    let place = Place::new();
    let program = place.compile("regions", &["-fopenmp"], REGIONS);
    let mut command = place.corefit(&["run", "--resize", "always", "--threads", "1", "--"]);
    let said = told(&command.arg(&program).arg("300").output().unwrap());
    assert!(said.contains("asks for 1 thread) --resize always: nothing to resize"), "{said}");
}

#[test]
fn a_number_of_threads_that_is_none_is_named() {
    let place = Place::new();
    let program = place.compile("regions", &["-fopenmp"], REGIONS);
    let options = ["run", "--resize", "never", "--threads", "2", "--report", "report.json", "--"];
    let mut command = place.corefit(&options);
    let output = command.arg(&program).arg("100").env("OMP_NUM_THREADS", "abc").output().unwrap();
    let launched = place.report()["threads_launched"].clone();
    assert!(stdout(&output).ends_with(&format!("teams {launched}\n")), "{}{launched}", stdout(&output));
    assert!(told(&output).contains("OMP_NUM_THREADS=abc is no number of threads"), "{}", stderr(&output));
}

#[test]
fn options_behind_the_program_are_its_own() {
    let place = Place::new();
    for args in
        [&["run", "--quiet", "echo", "-n", "--quiet"][..], &["run", "--quiet", "--", "echo", "-n", "--quiet"]]
    {
        let output = place.corefit(args).output().unwrap();
        assert_eq!((stdout(&output), stderr(&output)), ("--quiet".into(), String::new()));
    }
}

#[test]
fn what_the_user_set_himself_stays() {
    let place = Place::new();
    let output = place
        .corefit(&["run", "--threads", "1", "--report", "report.json", "--", "sh", "-c"])
        .arg("echo $OMP_NUM_THREADS $GOMAXPROCS $RAYON_NUM_THREADS")
        .env("OMP_NUM_THREADS", "7")
        .env("RAYON_NUM_THREADS", "") // as good as not set
        .output()
        .unwrap();
    assert_eq!(stdout(&output), "7 1 1\n");
    let said = stderr(&output);
    assert!(said.contains("left as you set them: OMP_NUM_THREADS=7"), "{said}");
    assert!(said.contains("corefit: set GOMAXPROCS, RAYON_NUM_THREADS,"), "{said}");
    assert_eq!(place.report()["kept"][0], "OMP_NUM_THREADS=7");
}

#[test]
fn programs_that_ask_for_the_number_of_cpus_hear_what_they_get() {
    let place = Place::new();
    for ask in ["getconf _NPROCESSORS_ONLN", "python3 -c 'import os; print(len(os.sched_getaffinity(0)))'"] {
        let command = place.corefit(&["run", "--quiet", "--threads", "1", "--", "sh", "-c", ask]);
        let output = { command }.output().unwrap();
        assert_eq!(stdout(&output).trim(), "1", "{ask}");
    }
}

#[test]
fn a_vouched_program_is_resized_to_the_cpus_that_it_gets() {
    let place = Place::new();
    let program = place.compile("regions", &["-fopenmp"], REGIONS);
    let program = program.to_str().unwrap();
    let options = ["run", "--resize", "always", "--report", "report.json", "--", program, "700"];
    // It believes in four threads, and has one CPU.
    let command = { on_one_cpu(&place.corefit(&options)) }.env("OMP_NUM_THREADS", "4").output().unwrap();
    assert!(command.status.success(), "{}", stderr(&command));
    let out = stdout(&command);
    assert!(out.contains("right 1\nteams 1\n"), "{out}");
    let report = place.report();
    let process = &report["processes"][0];
    assert_eq!(process["grant"], "vouched");
    assert!(process["resized"].as_u64().unwrap() > 0);
    assert_eq!(report["threads_launched"], 1, "the first region had one, whatever the user set");
    assert_eq!(report["exit_code"], 0);
    for key in ["wall_s", "mean_available", "efficiency", "waiting_s", "changes", "samples", "own_cpu_s"] {
        assert!(!report[key].is_null(), "{key}");
    }
}

#[test]
fn a_region_that_asks_for_more_than_those_before_is_noticed() {
    let place = Place::new();
    for more in ["num_threads(4)", ""] {
        let flags = ["-fopenmp", &format!("-DCLAUSE={more}")];
        let program = place.compile("more", &flags, GROWING);
        let command = place.corefit(&["run", "--resize", "always", "--", program.to_str().unwrap()]);
        let output = { on_one_cpu(&command) }.env("OMP_NUM_THREADS", "1").output().unwrap();
        assert_eq!(stdout(&output), "1 at first, 1 at last\n", "{more}: {}", stderr(&output));
    }
}

#[test]
fn processes_that_nobody_waits_for_leave_their_place_to_others() {
    let place = Place::new();
    let program = place.compile("unreaped", &["-fopenmp"], UNREAPED);
    let options = ["run", "--quiet", "--resize", "always", "--", program.to_str().unwrap(), "150"];
    let output = { on_one_cpu(&place.corefit(&options)) }.env("OMP_NUM_THREADS", "3").output().unwrap();
    assert_eq!(stdout(&output), "150 of 1, 0 of more\n", "{}", stderr(&output));
}

#[test]
fn processes_that_find_no_place_are_counted() {
    let place = Place::new();
    let program = place.compile("crowd", &["-fopenmp"], CROWD);
    for (processes, said) in [("63", false), ("65", true)] {
        let options = ["run", "--", program.to_str().unwrap(), processes];
        let output = place.corefit(&options).env("OMP_NUM_THREADS", "2").output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let note = "2 OpenMP processes more were not followed, as 63 are at most at a time";
        assert_eq!(told(&output).contains(note), said, "{processes}: {}", stderr(&output));
    }
}

#[test]
fn openmp_programs_that_one_process_executes_one_after_the_other_are_told_apart() {
    let place = Place::new();
    let program = place.compile("becomes", &["-fopenmp"], BECOMES);
    let program = program.to_str().unwrap();
    let options = ["run", "--report", "report.json", "--", program, "5", program, "3"];
    let output = place.corefit(&options).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let report = place.report();
    let met = report["processes"].as_array().unwrap();
    let [first, second] = &met[..] else { panic!("{met:?}") };
    assert_eq!(first["pid"], second["pid"]);
    assert_eq!((first["requested"].as_u64(), second["requested"].as_u64()), (Some(5), Some(3)));
}

#[test]
fn dynamic_adjustment_is_permission_enough() {
    let place = Place::new();
    let program = place.compile("regions", &["-fopenmp"], REGIONS);
    let command = place.corefit(&["run", "--", program.to_str().unwrap(), "500"]);
    let output =
        { on_one_cpu(&command) }.env("OMP_NUM_THREADS", "4").env("OMP_DYNAMIC", "true").output().unwrap();
    assert!(stdout(&output).ends_with("teams 1\n"), "{}", stdout(&output));
    assert!(told(&output).contains("dynamic adjustment is on"), "{}", stderr(&output));
}

#[test]
fn an_uncertified_program_keeps_its_team_and_its_result() {
    let place = Place::new();
    let program = place.compile("by_thread", &["-fopenmp"], BY_THREAD);
    let command = place.corefit(&["run", "--", program.to_str().unwrap(), "700"]);
    let output = { on_one_cpu(&command) }.env("OMP_NUM_THREADS", "4").output().unwrap();
    assert_eq!(stdout(&output), "lost 0\n");
    let said = told(&output);
    assert!(said.contains("not resized") && said.contains("its spinning was stopped"), "{said}");
}

#[test]
fn a_certificate_holds_for_exactly_what_was_certified() {
    let place = Place::new();
    let program = place.compile("regions", &["-fopenmp"], REGIONS);
    let program = program.to_str().unwrap();
    let certify = place.corefit(&["certify", "--ignore", "^teams", "--", program, "200"]).output().unwrap();
    assert!(certify.status.success(), "{}{}", stdout(&certify), stderr(&certify));
    assert!(stdout(&certify).contains("certified"), "{}", stdout(&certify));
    let teams = |ms: &str| {
        let command = place.corefit(&["run", "--quiet", "--", program, ms]);
        stdout(&{ on_one_cpu(&command) }.env("OMP_NUM_THREADS", "4").output().unwrap())
    };
    assert!(teams("200").ends_with("teams 1\n"), "{}", teams("200"));
    assert!(teams("201").ends_with("teams 4\n"), "other arguments are not certified");
    place.compile("regions", &["-fopenmp", "-DCHANGED", "-g"], REGIONS);
    assert!(teams("200").ends_with("teams 4\n"), "another binary is not certified");
}

#[test]
fn certification_finds_a_program_that_depends_on_its_team_size() {
    let place = Place::new();
    let program = place.compile("by_thread", &["-fopenmp"], BY_THREAD);
    let program = program.to_str().unwrap();
    let output = place.corefit(&["certify", "--", program, "100"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stdout(&output).contains("NOT certified"), "{}", stdout(&output));
    let command = place.corefit(&["run", "--quiet", "--", program, "100"]);
    let output = { on_one_cpu(&command) }.env("OMP_NUM_THREADS", "4").output().unwrap();
    assert_eq!(stdout(&output), "lost 0\n");
    let command = place.corefit(&["run", "--report", "report.json", "--", program, "100"]);
    let output = { on_one_cpu(&command) }.env("OMP_DYNAMIC", "true").output().unwrap();
    assert!(output.status.success());
    assert_eq!(place.report()["processes"][0]["grant"], "refused", "dynamic adjustment or not");
}

#[test]
fn certification_refuses_to_judge_what_it_cannot_compare() {
    let place = Place::new();
    let program = place.compile(
        "noisy",
        &["-fopenmp"],
        "#include <stdio.h>\n#include <unistd.h>\nint main(void){int n=0;\n#pragma omp parallel reduction(+:n)\nn++;\nprintf(\"%d %d\\n\", n, getpid());}",
    );
    let output = place.corefit(&["certify", "--"]).arg(&program).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--ignore"), "{}", stderr(&output));
    let output = place.corefit(&["certify", "--", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("no OpenMP parallel region"), "{}", stderr(&output));
}

#[test]
fn a_program_outlives_a_killed_corefit() {
    let place = Place::new();
    let program = place.compile("regions", &["-fopenmp"], REGIONS);
    let mut command = place.corefit(&["run", "--quiet", "--resize", "always", "--"]);
    let mut corefit = command.arg(&program).arg("1500").stdout(Stdio::piped()).spawn().unwrap();
    let mut output = corefit.stdout.take().unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    let children = format!("/proc/{0}/task/{0}/children", corefit.id());
    // It runs as soon as it has threads of its own to show.
    while !running(&fs::read_to_string(&children).unwrap_or_default()) {
        assert!(Instant::now() < deadline, "the program never started");
        std::thread::yield_now();
    }
    corefit.kill().unwrap();
    corefit.wait().unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut output, &mut text).unwrap();
    assert!(text.starts_with("right 1\n"), "{text}");
}

/// Whether one of these processes is the test program.
fn running(pids: &str) -> bool {
    pids.split_whitespace()
        .any(|pid| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with("regions")))
}

#[test]
fn a_restartable_program_is_started_again_at_the_right_size() {
    let place = Place::new();
    // Asks for four threads whatever happens, so it cannot be right on one CPU; counts its starts.
    let program = place.compile("by_thread", &["-fopenmp"], BY_THREAD);
    let script = place.path().join("count.sh");
    fs::write(&script, format!("#!/bin/sh\necho start >> starts\nexec {} 6000\n", program.display()))
        .unwrap();
    fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let options = ["run", "--threads", "4", "--restartable", "--report", "report.json", "--", "./count.sh"];
    let run = || on_one_cpu(&place.corefit(&options));
    let output = run().stdin(Stdio::null()).output().unwrap();
    assert_eq!(stdout(&output), "lost 0\n", "{}", stderr(&output));
    assert_eq!(place.report()["restarts"], 1);
    assert_eq!(fs::read_to_string(place.path().join("starts")).unwrap(), "start\nstart\n");
    assert_eq!(place.report()["threads_launched"], 1);
    let output = run().stdin(Stdio::piped()).output().unwrap();
    assert_eq!(place.report()["restarts"], 0, "what was read from a pipe is gone");
    assert!(stderr(&output).contains("stdin is a pipe"), "{}", stderr(&output));
}

/// Eight threads that add under one mutex.
const LOCKS: &str = r#"
#include <pthread.h>
#include <stdio.h>
static pthread_mutex_t plain = PTHREAD_MUTEX_INITIALIZER;
static long count;
static void *adds(void *unused) {
    for (int i = 0; i < 2000; i++) { pthread_mutex_lock(&plain); count++; pthread_mutex_unlock(&plain); }
    return unused;
}
int main(void) {
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) if (pthread_create(&threads[i], 0, adds, 0)) return 2;
    for (int i = 0; i < 8; i++) pthread_join(threads[i], 0);
    printf("%ld\n", count);
    return 0;
}
"#;

#[test]
fn lock_puts_our_lock_into_the_program_and_counts_for_the_report_only() {
    let place = Place::new();
    let program = place.compile("locks", &["-pthread"], LOCKS);
    let program = program.to_str().unwrap();
    let output =
        place.corefit(&["run", "--lock", "--report", "report.json", "--", program]).output().unwrap();
    assert_eq!(stdout(&output), "16000\n");
    assert!(told(&output).contains("--lock: corefit's lock in 1 program: "), "{}", stderr(&output));
    let lock = &place.report()["lock"];
    assert_eq!(lock["programs"], 1, "{lock}");
    assert!(lock["counts"]["acquisitions"].as_u64().unwrap() >= 16000, "{lock}");

    let output = place.corefit(&["run", "--lock", "--", program]).output().unwrap();
    assert!(stderr(&output).contains("--lock: corefit's lock in 1 program\n"), "{}", stderr(&output));
    let output = place.corefit(&["run", "--report", "report.json", "--", program]).output().unwrap();
    assert_eq!((stdout(&output).as_str(), stderr(&output).contains("--lock")), ("16000\n", false));
    assert!(place.report()["lock"].is_null());
}

#[test]
fn lock_says_so_where_it_cannot_enter_the_program() {
    let place = Place::new();
    let program = place.compile("locks", &["-pthread", "-static"], LOCKS);
    let output =
        place.corefit(&["run", "--quiet", "--lock", "--", program.to_str().unwrap()]).output().unwrap();
    assert_eq!((stdout(&output).as_str(), output.status.code()), ("16000\n", Some(0)));
    assert!(stderr(&output).contains("corefit: --lock: "), "{}", stderr(&output));
    // Not once more in other words.
    let output = place.corefit(&["run", "--lock", "--", program.to_str().unwrap()]).output().unwrap();
    assert_eq!(stderr(&output).matches("statically linked").count(), 1, "{}", stderr(&output));
}
