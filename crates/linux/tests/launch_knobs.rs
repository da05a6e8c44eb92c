//! The plan of the environment against the runtimes that are installed here.

mod launch_support;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use corefit_linux::launch::{Counts, Environment, Program, Runtime, plan};
use launch_support::skipped;

/// Three is neither one nor the number of CPUs of most machines.
const COUNT: usize = 3;

/// Runs a program as planned for [`COUNT`] threads, in an environment with `extra` alone
/// of the variables that matter.
fn run(program: &Program, args: &[&str], extra: &[(&str, &str)], raise: bool) -> Output {
    let get = |name: &str| extra.iter().find(|(n, _)| *n == name).map(|(_, value)| OsString::from(value));
    let args: Vec<OsString> = args.iter().map(OsString::from).collect();
    let environment = Environment { get: &get, program, args: &args, raise };
    let knobs = plan(Counts { openmp: COUNT, teams: COUNT, pools: COUNT }, &environment);
    let mut command = Command::new(&program.path);
    for name in ["OMP_NUM_THREADS", "GOMAXPROCS", "JAVA_TOOL_OPTIONS", "UV_THREADPOOL_SIZE"] {
        command.env_remove(name);
    }
    command.args(knobs.arguments()).args(&args).envs(extra.iter().copied()).envs(knobs.variables());
    command.stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The JVMs of this machine.
fn javas() -> Vec<PathBuf> {
    let homes = fs::read_dir("/usr/lib/jvm").into_iter().flatten().flatten();
    let mut javas: Vec<PathBuf> =
        homes.filter_map(|home| home.path().join("bin/java").canonicalize().ok()).collect();
    javas.sort();
    javas.dedup();
    if javas.is_empty() {
        skipped("Java", "no JVM in /usr/lib/jvm");
    }
    javas
}

const MAIN: &str = "public class Main { public static void main(String[] a) {
    System.out.println(Runtime.getRuntime().availableProcessors() + \" \" + String.join(\" \", a)); } }";

/// Compiles [`MAIN`] into `dir` with the compiler beside `java`.
fn compile(java: &Path, dir: &Path) -> bool {
    fs::write(dir.join("Main.java"), MAIN).unwrap();
    let mut javac = Command::new(java.with_file_name("javac"));
    let compiled = javac.arg(dir.join("Main.java")).output().is_ok_and(|output| output.status.success());
    if !compiled {
        skipped("Java", &format!("no compiler beside {}", java.display()));
    }
    compiled
}

#[test]
fn java_is_told_in_silence_and_its_variable_would_not_be_silent() {
    for java in javas() {
        let dir = tempfile::tempdir().unwrap();
        if !compile(&java, dir.path()) {
            continue;
        }
        let class = ["-cp", dir.path().to_str().unwrap(), "Main"];
        let program = Program::find(java.as_os_str()).unwrap();
        assert!(program.runtimes.contains(&Runtime::Java));
        let output = run(&program, &[&class[..], &["-x", "y"]].concat(), &[], false);
        assert_eq!(text(&output.stdout), format!("{COUNT} -x y\n"), "{}", java.display());
        assert_eq!(text(&output.stderr), "", "{}", java.display());
        // The user's own later argument wins.
        let own = [&["-XX:ActiveProcessorCount=5"], &class[..]].concat();
        assert_eq!(text(&run(&program, &own, &[], false).stdout), "5 \n");
        // His variable as well.
        let users = [("JAVA_TOOL_OPTIONS", "-XX:ActiveProcessorCount=6")];
        let own = run(&program, &class, &users, false);
        assert_eq!(text(&own.stdout), "6 \n");
        // The reason for all this: if the variable becomes silent, use it.
        assert!(text(&own.stderr).contains("Picked up JAVA_TOOL_OPTIONS"));
    }
}

#[test]
fn java_behind_a_script_takes_the_users_extended_variable() {
    let dir = tempfile::tempdir().unwrap();
    let Some(java) = javas().into_iter().find(|java| compile(java, dir.path())) else { return };
    let script = format!("'{}' -cp '{}' Main", java.display(), dir.path().display());
    let sh = Program::find(OsStr::new("sh")).unwrap();
    let output = run(&sh, &["-c", &script], &[("JAVA_TOOL_OPTIONS", "-Xmx64m")], false);
    assert_eq!(text(&output.stdout), format!("{COUNT} \n"), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("-Xmx64m"));
}

#[test]
fn a_go_program_runs_with_the_count() {
    let Ok(gofmt) = Program::find(OsStr::new("/usr/local/go/bin/gofmt")) else {
        return skipped("Go", "no gofmt at /usr/local/go/bin");
    };
    let trace = |extra: &[(&str, &str)]| {
        let extra = [extra, &[("GODEBUG", "schedtrace=1")]].concat();
        text(&run(&gofmt, &["-d", "/usr/local/go/src/fmt"], &extra, false).stderr)
    };
    assert!(trace(&[]).contains(&format!("gomaxprocs={COUNT} ")), "{}", trace(&[]));
    assert!(trace(&[("GOMAXPROCS", "5")]).contains("gomaxprocs=5 "));
}

#[test]
fn an_openmp_program_runs_with_the_count() {
    let dir = tempfile::tempdir().unwrap();
    let (source, path) = (dir.path().join("main.c"), dir.path().join("main"));
    let c = "#include <omp.h>\n#include <stdio.h>\nint main(void) {
        printf(\"%d\\n\", omp_get_max_threads()); return 0; }\n";
    fs::write(&source, c).unwrap();
    let compiled = Command::new("gcc").arg("-fopenmp").arg("-o").arg(&path).arg(&source).status();
    if !compiled.is_ok_and(|status| status.success()) {
        return skipped("OpenMP", "no gcc with OpenMP");
    }
    let program = Program::find(path.as_os_str()).unwrap();
    assert_eq!(text(&run(&program, &[], &[], false).stdout), format!("{COUNT}\n"));
    assert_eq!(text(&run(&program, &[], &[("OMP_NUM_THREADS", "7")], false).stdout), "7\n");
}

#[test]
fn python_counts_as_many_cpus() {
    let Ok(python) = Program::find(OsStr::new("python3")) else { return skipped("Python", "no python3") };
    let output = run(
        &python,
        &["-c", "import os, sys; print(sys.version_info >= (3, 13), os.cpu_count())"],
        &[],
        false,
    );
    let answer = text(&output.stdout);
    if !answer.starts_with("True ") {
        return skipped("Python", "PYTHON_CPU_COUNT needs Python 3.13");
    }
    assert_eq!(answer, format!("True {COUNT}\n"));
}

#[test]
fn nodes_pool_is_not_shrunk_below_its_own_size() {
    let Ok(node) = Program::find(OsStr::new("node")) else { return skipped("Node.js", "no node") };
    let script = "const fs = require('fs'), tasks = () => fs.readdirSync('/proc/self/task').length;
        const before = tasks(); let done = 0;
        for (let i = 0; i < 32; i++) require('crypto').pbkdf2('a', 'b', 500, 32, 'sha1',
          () => { if (++done == 1) console.log(tasks() - before); });";
    for raise in [false, true] {
        let output = run(&node, &["-e", script], &[], raise);
        assert_eq!(text(&output.stdout), "4\n", "{}", text(&output.stderr));
    }
    let output = run(&node, &["-e", script], &[("UV_THREADPOOL_SIZE", "6")], true);
    assert_eq!(text(&output.stdout), "6\n");
}
