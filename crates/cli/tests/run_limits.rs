//! `corefit run` where little is allowed: the program runs where it would run alone.

#[allow(dead_code, reason = "every test file uses a part of this")]
mod run_support;

use std::io::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

use run_support::{Place, corefit, stderr, stdout};

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
