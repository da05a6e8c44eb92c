//! The programs of `workloads/`, and what they print.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::ValueEnum;
use serde::Serialize;

use crate::named;

/// What a program may have done to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// OpenMP; corefit has to certify it before it is resized.
    OpenMp,
    /// Plain threads, their number is an argument.
    Threads,
    /// OpenMP, and wrong when it is resized: it is measured uncertified.
    Unsafe,
}

/// One of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
}

const fn program(name: &'static str, kind: Kind) -> Program {
    Program { name, kind }
}

/// Every program, in the order of the tables.
pub(super) const PROGRAMS: [Program; 12] = [
    program("ep", Kind::OpenMp),
    program("cg", Kind::OpenMp),
    program("mg", Kind::OpenMp),
    program("ft", Kind::OpenMp),
    program("is", Kind::OpenMp),
    program("bt", Kind::OpenMp),
    program("sp", Kind::OpenMp),
    program("lu", Kind::OpenMp),
    program("ua", Kind::OpenMp),
    program("pipeline", Kind::Threads),
    program("unsafe_tp", Kind::Unsafe),
    program("unsafe_map", Kind::Unsafe),
];

/// What `--quick` measures.
pub(super) const QUICK: [&str; 5] = ["ep", "cg", "lu", "ua", "unsafe_map"];
/// What it measures in `step`, where runs have to be longer.
pub(super) const QUICK_STEP: [&str; 1] = ["cg"];

/// The compiler of a program, which decides its OpenMP runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Runtime {
    /// gcc, with libgomp
    #[value(alias = "libgomp")]
    Gcc,
    /// clang, with libomp
    #[value(alias = "libomp")]
    Clang,
}

impl Runtime {
    /// Those that occur, each once.
    pub(super) fn in_order(all: impl Iterator<Item = Runtime>) -> Vec<Runtime> {
        let mut found: Vec<Runtime> = all.collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    pub(super) fn name(self) -> String {
        named::name(self)
    }
}

/// A built program.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) program: Program,
    pub(super) runtime: Runtime,
    pub(super) path: PathBuf,
}

/// The directory of all builds, below the root of the repository.
pub(super) fn builds(root: &Path) -> PathBuf {
    root.join("build/workloads")
}

/// The library that makes runtimes believe in more CPUs.
pub(super) fn see_cpus(root: &Path) -> PathBuf {
    builds(root).join("libseecpus.so")
}

/// The named programs as built by the named compilers.
///
/// # Errors
/// An unknown name, or a program that has not been built.
pub(super) fn find(root: &Path, names: &[String], runtimes: &[Runtime]) -> Result<Vec<Case>> {
    let known = |name: &str| PROGRAMS.iter().find(|p| p.name == name);
    if let Some(name) = names.iter().find(|name| known(name).is_none()) {
        let all: Vec<&str> = PROGRAMS.iter().map(|p| p.name).collect();
        bail!("--programs: there is no {name:?}; there are: {}", all.join(" "));
    }
    let mut cases = vec![];
    for program in PROGRAMS.iter().filter(|p| names.iter().any(|n| n == p.name)) {
        for &runtime in runtimes {
            let path = builds(root).join(runtime.name()).join(program.name);
            if !path.is_file() {
                bail!(
                    "{} is missing: run `make -C {}` (or leave it out: --programs, --runtimes)",
                    path.display(),
                    root.join("workloads").display()
                );
            }
            cases.push(Case { program: *program, runtime, path });
        }
    }
    Ok(cases)
}

/// What a program or an app said about its result.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) verified: bool,
    pub(super) checksum: Option<String>,
    /// Threads that its runtime meant to start.
    pub(super) threads_max: Option<u32>,
}

impl Answer {
    /// From the lines of its output.
    pub(super) fn read(stdout: &str) -> Answer {
        let line = |name: &str| stdout.lines().find_map(|l| l.strip_prefix(name));
        let threads = stdout.lines().next().and_then(|first| {
            let mut words = first.split(' ');
            words.find_map(|w| w.strip_prefix("threads_max="))
        });
        Answer {
            verified: line("verified: ") == Some("yes"),
            checksum: line("checksum: ").map(str::to_owned),
            threads_max: threads.and_then(|n| n.parse().ok()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_read_from_the_lines_of_a_program() {
        let text = "cg size=S threads_max=16\nverified: yes\nchecksum: 00ff\ntime_s: 0.1\n";
        let answer = Answer::read(text);
        assert!(answer.verified);
        assert_eq!(answer.checksum.as_deref(), Some("00ff"));
        assert_eq!(answer.threads_max, Some(16));
    }

    #[test]
    fn a_program_that_says_no_or_nothing_is_not_verified() {
        assert!(!Answer::read("verified: NO\nchecksum: 1\n").verified);
        assert!(!Answer::read("unverified: yes\n").verified);
        assert_eq!(Answer::read("").checksum, None);
    }

    #[test]
    fn missing_builds_and_unknown_names_say_what_to_do() {
        let root = tempfile::tempdir().unwrap();
        let missing = find(root.path(), &["cg".into()], Runtime::value_variants()).unwrap_err();
        assert!(missing.to_string().contains("make -C"), "{missing}");
        let unknown = find(root.path(), &["gg".into()], Runtime::value_variants()).unwrap_err();
        assert!(unknown.to_string().contains("unsafe_map"), "{unknown}");
    }

    #[test]
    fn quick_programs_exist() {
        assert!(QUICK.iter().all(|q| PROGRAMS.iter().any(|p| p.name == *q)));
    }
}
