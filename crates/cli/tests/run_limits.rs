//! `corefit run` where little is allowed: the program runs where it would run alone.

#[allow(dead_code, reason = "every test file uses a part of this")]
mod run_support;

use std::io::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

use run_support::{Place, corefit, stderr, stdout};

/// Prints the largest team that it meets in half a second; writes what the host of a VM tells there, goes on for a second, and prints the
/// largest of another half a second.
const IS_TOLD: &str = r#"
#include <omp.h>
#include <stdio.h>
#include <time.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }
static int largest(double seconds) {
    int most = 0;
    for (double end = now() + seconds; now() < end;) {
        long sum = 0;
        #pragma omp parallel reduction(+ : sum)
        {
            #pragma omp single
            if (omp_get_num_threads() > most) most = omp_get_num_threads();
            #pragma omp for
            for (long i = 0; i < 200000; i++) sum += i & 7;
        }
        if (sum != 700000) return -1;
    }
    return most;
}
int main(void) {
    int before = largest(0.5);
    FILE *file = fopen("/run/corefit-available", "w");
    if (!file || fputs("corefit-available 1\ncpus 0.250\nvalid_s 20\n", file) < 0 || fclose(file)) return 3;
    largest(1);
    printf("%d %d\n", before, largest(0.5));
}
"#;

/// What a shell does with `$COREFIT` after `before`.
fn limited(place: &Place, before: &str, arguments: &str) -> Output {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("{before}; exec $COREFIT run {arguments}"));
    shell.env("COREFIT", corefit()).env("XDG_STATE_HOME", place.path()).current_dir(place.path());
    shell.output().unwrap()
}

#[test]
fn where_no_file_may_grow_the_program_runs_and_the_limit_is_its_own() {
    let place = Place::new();
    let output = limited(&place, "ulimit -f 0", "--lock -- echo ran");
    let told = stderr(&output);
    assert_eq!((stdout(&output).as_str(), output.status.code()), ("ran\n", Some(0)), "{told}");
    assert!(told.contains("cannot make the shared page (File too large"), "{told}");
    assert!(told.contains("--lock: cannot make the shared counters (File too large"), "{told}");
    let output = limited(&place, "ulimit -f 0", "--quiet --report r.json -- echo ran");
    assert_eq!((stdout(&output).as_str(), output.status.code()), ("ran\n", Some(2)), "the report is lost");
    assert!(stderr(&output).contains("r.json: cannot be written: "), "{}", stderr(&output));
    let output = limited(&place, "ulimit -f 0", "--quiet -- sh -c 'exec head -c 1 /dev/zero > f'");
    assert_eq!(output.status.signal(), Some(25), "SIGXFSZ: {output:?}");
}

/// A program of teams in a VM whose host told this before it began, and 0.25 CPUs while it ran: the teams that it prints, and what was said to
/// be available over time; `None` where that cannot be played.
fn is_told(at_first: &str) -> Option<([u32; 2], Vec<f64>)> {
    let skipped = |why: &str| {
        let _ = writeln!(std::io::stderr(), "skipped: what a host tells: {why}");
        None
    };
    let place = Place::new();
    let program = place.compile("is_told", &["-fopenmp"], IS_TOLD);
    let script = format!(
        "mount -t tmpfs none /run && printf '{at_first}' >/run/corefit-available || exit 99; \
         exec \"$0\" run --quiet --report report.json --resize always -- '{}'",
        program.display()
    );
    let mut shell = Command::new("unshare");
    shell.args(["-m", "sh", "-c", &script]).arg(corefit()).env("XDG_STATE_HOME", place.path());
    shell.env_remove("OMP_NUM_THREADS").env_remove("OMP_DYNAMIC").current_dir(place.path());
    let output = match shell.output() {
        Ok(output) if [Some(1), Some(99)].contains(&output.status.code()) => {
            return skipped(&stderr(&output));
        }
        Ok(output) => output,
        Err(why) => return skipped(&format!("unshare: {why}")),
    };
    assert!(output.status.success(), "{}", stderr(&output));
    let teams: Vec<u32> = stdout(&output).split_whitespace().map(|team| team.parse().unwrap()).collect();
    let report = place.report();
    let samples = report["samples"].as_array().unwrap().iter();
    Some((teams.try_into().unwrap(), samples.map(|sample| sample["available"].as_f64().unwrap()).collect()))
}

#[test]
fn what_a_host_tells_limits_teams_from_the_launch_on_and_while_they_run() {
    let text = |cpus: &str| format!("corefit-available 1\\ncpus {cpus}\\nvalid_s 20\\n");
    let Some((teams, available)) = is_told(&text("0.250")) else { return };
    assert_eq!(teams, [1, 1]);
    assert!(!available.is_empty() && available.iter().all(|cpus| *cpus <= 0.25), "{available:?}");
    let Some((teams, available)) = is_told(&text("none")) else { return };
    assert_eq!((teams[1], *available.last().unwrap()), (1, 0.25), "{available:?}");
    assert!(available[0] > 0.25, "{available:?}");
}

/// As behind an MPI launcher that binds what it starts.
#[test]
fn what_another_corefit_run_set_is_not_what_the_user_set() {
    let place = Place::new();
    let inner_of = |outer: &[&str], before: &str, arguments: &str| {
        let show = "echo ${GOMAXPROCS-none} ${NUMEXPR_NUM_THREADS-none}";
        let run = format!("{before} \"$0\" run --quiet {arguments} -- sh -c '{show}'");
        let mut command = place.corefit(&[&["run", "--quiet"], outer, &["--", "sh", "-c", &run]].concat());
        command.arg(corefit()).env_remove("GOMAXPROCS").env_remove("NUMEXPR_NUM_THREADS");
        stdout(&command.output().unwrap())
    };
    let inner = |before: &str, arguments: &str| inner_of(&[], before, arguments);
    assert_eq!(inner("exec taskset -c 0", ""), "1 1\n");
    assert_eq!(inner("export GOMAXPROCS=7; exec", "--threads 3"), "7 3\n", "changed in between");
    assert_eq!(inner("exec", "--threads max"), "none none\n", "as without corefit");
    assert_eq!(inner_of(&["--threads", "5"], "exec", ""), "5 5\n", "which the user said");
    assert_eq!(inner_of(&["--threads", "5"], "exec", "--threads max"), "5 5\n");
}

#[test]
fn a_limit_of_processes_that_leaves_one_leaves_it_to_the_program() {
    if !rustix::process::geteuid().is_root() {
        let _ = writeln!(
            std::io::stderr(),
            "skipped: limits of processes: they need a user of their own, and thus root"
        );
        return;
    }
    // Whoever has this number runs nothing else. Two: corefit, and the program.
    let uid = 1_800_000_000 + std::process::id();
    let place = Place::new();
    for processes in 2..=4 {
        let mut command = Command::new("prlimit");
        command.arg(format!("--nproc={processes}")).args(["setpriv", "--clear-groups"]);
        command.arg(format!("--reuid={uid}")).arg(format!("--regid={uid}")).arg(corefit());
        command.args(["run", "--quiet", "--", "echo", "ran"]).env("XDG_STATE_HOME", place.path());
        let output = command.current_dir("/").output().unwrap();
        let told = (stdout(&output), output.status.code());
        assert_eq!(told, ("ran\n".into(), Some(0)), "{processes}: {}", stderr(&output));
    }
}
