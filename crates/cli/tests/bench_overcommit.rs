//! `corefit bench overcommit` with shell scripts in place of the programs: what is cut off,
//! what counts as wrong, and that nothing is left behind.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// What every right program prints.
const RIGHT: &str = "echo 'x size=T threads_max=1'; echo 'verified: yes'; echo 'checksum: 01'";
/// Longer than any test waits: what sleeps so long has to be ended.
const FOREVER: &str = "sleep 1000";

/// A repository with scripts for programs.
fn repository(programs: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("workloads")).unwrap();
    fs::write(root.path().join("workloads/Makefile"), "").unwrap();
    let builds = root.path().join("build/workloads/gcc");
    fs::create_dir_all(&builds).unwrap();
    for (name, body) in programs {
        let file = builds.join(name);
        fs::write(&file, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }
    root
}

fn bench(root: &Path, more: &[&str]) -> Command {
    // Whoever runs this may have signals ignored (`nohup`, the background of a script), and so would it then.
    let mut command = Command::new("env");
    command
        .args(["--default-signal=INT,HUP", env!("CARGO_BIN_EXE_corefit")])
        .args(["bench", "overcommit", "--runtimes", "gcc", "--size", "T"])
        .args(["--no-apps", "--json", "--root"])
        .arg(root)
        .args(more)
        .stdin(Stdio::null());
    command
}

fn document(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|why| panic!("{why}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Directories that benches of this process id made: control groups and scratch.
fn left_by(pid: u32) -> Vec<PathBuf> {
    let name = format!("corefit-bench-{pid}");
    let mut found = vec![];
    let mut look = vec![PathBuf::from("/sys/fs/cgroup"), std::env::temp_dir()];
    while let Some(dir) = look.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_name().to_str() == Some(&name) {
                found.push(entry.path());
            } else if entry.path().starts_with("/sys/fs/cgroup")
                && entry.file_type().is_ok_and(|t| t.is_dir())
            {
                look.push(entry.path());
            }
        }
    }
    found
}

/// Live processes with this text in a file of theirs in /proc.
fn processes(file: &str, text: &str) -> Vec<Pid> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.filter(|p| {
        let content = fs::read(p.path().join(file)).unwrap_or_default();
        String::from_utf8_lossy(&content).contains(text)
    })
    .filter_map(|p| Pid::from_raw(p.file_name().to_str()?.parse().ok()?))
    .collect()
}

/// How many have it in their command line.
fn running(text: &str) -> usize {
    processes("cmdline", text).len()
}

fn until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A bench that is ended with this, and what it started with it: by its mark, where the bench was killed.
struct Endless(Child, String);

impl Drop for Endless {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
            let _ = self.0.wait();
        }
        for pid in processes("environ", &format!("ENDLESS={}\0", self.1)) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Starts a bench whose program never ends, and waits until it runs.
fn endless(mark: &str, condition: &str) -> (tempfile::TempDir, Endless) {
    // The first run, to warm up, is right; all others go on forever, in a child of a child.
    let root = repository(&[(
        "unsafe_tp",
        &format!(
            "if [ -e warm ]; then ENDLESS={mark} sh -c 'sleep 1000; : {mark}' & wait; else : > warm; {RIGHT}; fi"
        ),
    )]);
    let child = bench(root.path(), &["--programs", "unsafe_tp"])
        .args(["--conditions", condition])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let child = Endless(child, mark.to_owned());
    until("the endless program begins", || running(mark) > 0);
    (root, child)
}

#[test]
fn a_run_is_cut_off_once_with_everything_below_it_and_its_limit_is_a_lower_bound() {
    let mark = format!("cut-off-{}", std::process::id());
    let root = repository(&[(
        "unsafe_tp",
        &format!("[ \"$OMP_WAIT_POLICY\" ] || {{ sh -c '{FOREVER}; : {mark}' & wait; }}; {RIGHT}"),
    )]);
    let output = bench(root.path(), &["--programs", "unsafe_tp", "--repeat", "2"])
        .args(["--conditions", "nothing_short", "--limit", "1"])
        .env("OMP_WAIT_POLICY", "active: does not reach the program")
        .output();
    // On one CPU warming up is not passive and is cut off: that is an error of its own.
    let output = output.unwrap();
    if std::thread::available_parallelism().unwrap().get() == 1 {
        let _ = writeln!(std::io::stderr(), "skipped: one CPU");
        return;
    }
    let document = document(&output);
    let row = &document["conditions"][0]["programs"][0];
    assert_eq!(row["cut_off"], true);
    assert_eq!(row["default_s"], 1.0);
    assert_eq!(row["runs"]["default"]["cut_off"], true);
    assert_eq!(row["runs"]["default"]["count"], 1, "not repeated");
    assert_eq!(row["runs"]["passive"]["cut_off"], false);
    assert_eq!(row["runs"]["passive"]["count"], 2);
    assert_eq!(row["verified"], true);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(running(&mark), 0);
}

#[test]
fn a_wrong_result_is_counted_named_and_makes_the_exit_status_1() {
    let root = repository(&[
        (
            "unsafe_tp",
            &format!(
                "[ \"$OMP_WAIT_POLICY\" ] && {{ {RIGHT}; exit; }}; echo 'verified: yes'; echo 'checksum: 02'"
            ),
        ),
        ("unsafe_map", &format!("[ \"$OMP_WAIT_POLICY\" ] && {{ {RIGHT}; exit; }}; echo broken >&2; exit 3")),
    ]);
    let output = bench(root.path(), &["--programs", "unsafe_tp,unsafe_map"])
        .args(["--conditions", "nothing_short", "--repeat", "1"])
        .output()
        .unwrap();
    if std::thread::available_parallelism().unwrap().get() == 1 {
        let _ = writeln!(std::io::stderr(), "skipped: one CPU");
        return;
    }
    let document = document(&output);
    assert_eq!(output.status.code(), Some(1));
    let wrong = document["wrong_results"].as_array().unwrap();
    let said = |program: &str, config: &str| -> String {
        let one = wrong.iter().find(|w| w["program"] == program && w["config"] == config);
        one.map_or(String::new(), |w| w["what"].as_str().unwrap().to_owned())
    };
    assert_eq!(said("unsafe_tp", "default"), "checksum 02 instead of 01");
    assert!(said("unsafe_map", "default").contains("exit status: 3"));
    assert!(said("unsafe_map", "default").contains("broken"));
    assert_eq!(said("unsafe_tp", "passive"), "");
    let row = &document["conditions"][0]["programs"][0];
    assert_eq!(row["verified"], false);
    assert!(row["default_s"].is_null(), "the time of a wrong result does not count");
    assert_eq!(wrong.len(), 4, "default and corefit of both: {wrong:?}");
}

#[test]
fn a_terminated_bench_leaves_no_process_and_no_directory() {
    for (condition, signal) in [("neighbour", "TERM"), ("quota", "INT"), ("step", "HUP")] {
        let mark = format!("terminated-{}-{condition}", std::process::id());
        let (_root, mut child) = endless(&mark, condition);
        let pid = child.0.id();
        let kill = Command::new("kill").args(["-s", signal, &pid.to_string()]).status();
        assert!(kill.unwrap().success());
        let status = child.0.wait().unwrap();
        let number = match signal {
            "TERM" => 15,
            "INT" => 2,
            _ => 1,
        };
        assert_eq!(status.code(), Some(128 + number), "{condition}");
        assert_eq!(running(&mark), 0, "{condition}");
        assert!(left_by(pid).is_empty(), "{condition}");
        let busy = format!("bench\0busy\0--parent\0{pid}\0");
        assert_eq!(running(&busy), 0, "{condition}");
    }
}

#[test]
fn what_a_killed_bench_left_is_removed_by_the_next() {
    let mark = format!("killed-{}", std::process::id());
    let (_root, mut child) = endless(&mark, "neighbour");
    let pid = child.0.id();
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    let busy = format!("bench\0busy\0--parent\0{pid}\0");
    until("busy loops die with their bench", || running(&busy) == 0);
    let left = left_by(pid);
    assert!(!left.is_empty(), "a kill -9 leaves something");
    let root = repository(&[("unsafe_tp", RIGHT)]);
    let next = bench(root.path(), &["--programs", "unsafe_tp"])
        .args(["--conditions", "nothing_short", "--repeat", "1"])
        .output()
        .unwrap();
    assert!(next.status.success(), "{next:?}");
    assert!(left_by(pid).is_empty());
    if left.iter().any(|dir| dir.starts_with("/sys/fs/cgroup")) {
        assert_eq!(running(&mark), 0, "processes in its groups are ended, too");
    } else {
        let _ =
            writeln!(std::io::stderr(), "skipped: what runs in groups of a killed bench: it could make none");
    }
}

#[test]
fn what_is_missing_is_said_in_one_line() {
    let root = repository(&[]);
    let output = bench(root.path(), &["--programs", "cg"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2));
    assert!(said.contains("build/workloads/gcc/cg is missing: run `make -C"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    let output = bench(root.path(), &["--programs", "cg", "--svg", "x.gif"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(said, "corefit: x.gif: its name has to end with .svg or .png\n");
}
