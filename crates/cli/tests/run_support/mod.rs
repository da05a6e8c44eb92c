//! What the tests of `corefit run` and `corefit certify` share.

#[path = "../../../linux/tests/build_support/mod.rs"]
mod build_support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Once;

/// The command under test, with the preload libraries beside it.
pub(crate) fn corefit() -> PathBuf {
    static LIBRARIES: Once = Once::new();
    LIBRARIES.call_once(|| _ = build_support::libraries());
    env!("CARGO_BIN_EXE_corefit").into()
}

/// A scratch directory with a verdict store of its own.
pub(crate) struct Place(tempfile::TempDir);

impl Place {
    pub(crate) fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// `corefit ARGS`, run here.
    pub(crate) fn corefit(&self, args: &[&str]) -> Command {
        let mut command = Command::new(corefit());
        command
            .args(args)
            .current_dir(self.path())
            .env("XDG_STATE_HOME", self.path().join("state"))
            .env_remove("OMP_NUM_THREADS")
            .env_remove("OMP_DYNAMIC");
        command
    }

    /// Compiles a C program; its path.
    pub(crate) fn compile(&self, name: &str, flags: &[&str], source: &str) -> PathBuf {
        let file = self.path().join(format!("{name}.c"));
        std::fs::write(&file, source).unwrap();
        let program = self.path().join(name);
        let output = Command::new("gcc")
            .arg("-O1")
            .args(flags)
            .arg("-o")
            .args([&program, &file])
            .output()
            .expect("gcc is needed: scripts/install-deps");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        program
    }

    /// The report that the last run wrote to `report.json` here.
    pub(crate) fn report(&self) -> serde_json::Value {
        let text = std::fs::read_to_string(self.path().join("report.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }
}

/// A command kept to CPU 0 with what it starts: an overcommitted machine of one CPU.
pub(crate) fn on_one_cpu(command: &Command) -> Command {
    let mut taskset = Command::new("taskset");
    taskset.args(["-c", "0"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => taskset.env(name, value),
            None => taskset.env_remove(name),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        taskset.current_dir(dir);
    }
    taskset
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// An OpenMP program whose regions are begun for `ms` milliseconds; prints the distinct team
/// sizes met, smallest first, and whether every sum was right.
pub(crate) const REGIONS: &str = r#"
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }
int main(int argc, char **argv) {
    double end = now() + atof(argv[1]) / 1000;
    int seen[1024] = {0}, right = 1;
    do {
        long sum = 0;
        int team = 0;
        #pragma omp parallel reduction(+ : sum)
        {
            #pragma omp single
            team = omp_get_num_threads();
            #pragma omp for
            for (long i = 0; i < 200000; i++) sum += i & 7;
        }
        right &= sum == 700000;
        seen[team] = 1;
    } while (now() < end);
    printf("right %d\nteams", right);
    for (int i = 0; i < 1024; i++) if (seen[i]) printf(" %d", i);
    printf("\n");
    return !right;
}
"#;

/// What it said, in one line.
pub(crate) fn told(output: &std::process::Output) -> String {
    stderr(output).split_whitespace().collect::<Vec<_>>().join(" ")
}
