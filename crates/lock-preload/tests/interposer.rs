//! Programs with the library and without: their results are the same.

#[path = "../../linux/tests/build_support/mod.rs"]
mod build_support;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use corefit_lock::shared::SharedCounters;
use corefit_lock::stats::Stats;

/// The library, just built.
fn library() -> PathBuf {
    static BUILT: LazyLock<PathBuf> = LazyLock::new(build_support::libraries);
    BUILT.join("libcorefit_lock.so")
}

/// `tests/programs/NAME.c`, compiled.
fn compile(dir: &Path, name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{name}.c"));
    let program = dir.join(name);
    let output = Command::new("cc")
        .args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function"])
        .args([&source, Path::new("-o"), &program])
        .args(["-lpthread", "-ldl"])
        .output()
        .expect("a C compiler is needed: scripts/install-deps");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// Runs a command with the library, at most three minutes; what it gave, and what its locks did.
fn with_library(command: &[&str]) -> (Output, Stats) {
    let counters = SharedCounters::create(true).unwrap();
    let (name, value) = counters.variable();
    let output = run(command, &[("LD_PRELOAD", library().to_str().unwrap()), (name, &value)]);
    (output, counters.sum())
}

fn run(command: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut timeout = Command::new("timeout");
    timeout.arg("180").args(command).envs(variables.iter().copied());
    timeout.output().expect("coreutils' timeout is needed")
}

/// The program prints the same with the library and without; what its locks did.
fn same(name: &str) -> Stats {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), name);
    let program = program.to_str().unwrap();
    let without = run(&[program], &[]);
    let (with, stats) = with_library(&[program]);
    let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(without.status.code(), Some(0), "without the library: {}", text(&without));
    for (line, (a, b)) in text(&without).lines().zip(text(&with).lines()).enumerate() {
        assert_eq!(a, b, "line {} of {name}: without and with the library", line + 1);
    }
    assert_eq!(text(&without), text(&with));
    assert_eq!(with.status, without.status, "{}", String::from_utf8_lossy(&with.stderr));
    // `timeout` is a program, too.
    assert!(stats.processes >= 2 && stats.acquired > 0, "the locks were not ours: {stats:?}");
    stats
}

#[test]
fn mutexes_of_every_kind_give_the_c_librarys_results() {
    let stats = same("mutex");
    assert!(stats.contended > 0 && stats.timed_out > 0, "{stats:?}");
}

#[test]
fn condition_variables_give_the_c_librarys_results() {
    let stats = same("cond");
    assert!(stats.cond_waits > 100, "{stats:?}");
}

#[test]
fn spinlocks_private_and_shared_give_the_c_librarys_results() {
    same("spin");
}

#[test]
fn more_threads_than_cpus_lose_nothing() {
    // Beside other programs its threads may run one by one, and find their mutexes free.
    let stats = same("storm");
    assert!(stats.cond_waits > 0, "{stats:?}");
}

#[test]
fn who_finds_no_room_in_the_line_sleeps() {
    let stats = same("crowd");
    assert!(stats.timed_out > 0, "{stats:?}");
}

#[test]
fn a_forked_child_goes_on() {
    same("fork");
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), "fork");
    let (output, _) = with_library(&[program.to_str().unwrap(), "condition variables, too"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert_eq!(text.matches("child: exit 0").count(), 4, "{text}");
}

#[test]
fn functions_of_every_version_are_ours() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), "versions");
    let (output, _) = with_library(&[program.to_str().unwrap(), "show"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let (ours, rest): (Vec<&str>, Vec<&str>) = text.lines().partition(|l| l.ends_with(" libcorefit_lock.so"));
    assert_eq!((ours.len(), rest), (34, vec!["done"]), "{text}");
}

/// A program that is skipped where it is not installed, and says so.
fn is_here(program: &str) -> bool {
    let here = Command::new(program).arg("--version").output().is_ok();
    if !here {
        let _ = writeln!(std::io::stderr(), "skipped: {program} is not installed (scripts/install-deps)");
    }
    here
}

#[test]
fn zstd_compresses_to_the_same_bytes_with_many_threads() {
    if !is_here("zstd") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("input");
    let lines: String = (0..300_000_u64).map(|n| format!("{} {}\n", n, n * n % 9973)).collect();
    std::fs::write(&input, &lines).unwrap();
    let command = ["zstd", "-q", "-c", "-T8", "-B256K", "-3", input.to_str().unwrap()];
    let without = run(&command, &[]);
    let (with, stats) = with_library(&command);
    assert!(without.status.success() && with.status.success());
    assert!(without.stdout == with.stdout && !with.stdout.is_empty());
    assert!(stats.acquired > 0 && stats.processes == 2, "timeout and zstd: {stats:?}");
}

/// Queues, events, conditions and an SQLite database that threads share; the global lock is a pthread
/// mutex with a condition variable and timed waits.
const PYTHON: &str = r"
import queue, sqlite3, sys, threading
work, done, lock = queue.Queue(3), [], threading.Condition()
base = sqlite3.connect(sys.argv[1], check_same_thread=False)
base.execute('create table items (n integer primary key, square integer)')
def worker():
    while (n := work.get()) is not None:
        with lock:
            base.execute('insert into items values (?, ?)', (n, n * n))
            done.append(n)
            lock.notify()
threads = [threading.Thread(target=worker) for _ in range(8)]
for t in threads: t.start()
for n in range(2000): work.put(n)
with lock:
    assert lock.wait_for(lambda: len(done) == 2000, 100)
for _ in threads: work.put(None)
for t in threads: t.join()
base.commit()
print(base.execute('select count(*), sum(square), max(n) from items').fetchone())
";

#[test]
fn python_threads_with_sqlite_give_the_same_result() {
    if !is_here("python3") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let without = run(&["python3", "-c", PYTHON, &at("without.db")], &[]);
    if !without.status.success() {
        let why = String::from_utf8_lossy(&without.stderr);
        let _ = writeln!(std::io::stderr(), "skipped: this python3 has no threads or no sqlite3: {why}");
        return;
    }
    let (with, stats) = with_library(&["python3", "-c", PYTHON, &at("with.db")]);
    assert!(with.status.success(), "{}", String::from_utf8_lossy(&with.stderr));
    let text = String::from_utf8_lossy(&with.stdout).into_owned();
    assert_eq!((text.as_bytes(), text.trim()), (&without.stdout[..], "(2000, 2664667000, 1999)"));
    assert!(stats.acquired > 1000, "{stats:?}");
}
