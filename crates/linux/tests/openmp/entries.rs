//! The preload library: every entry point keeps its arguments, its result and its meaning.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Omp, build, command, count, only, output, page, scratch, skipped, team};
use corefit_linux::page::Orders;

/// Every entry point of libgomp that begins a region.
const GOMP: [&str; 17] = [
    "GOMP_parallel",
    "GOMP_parallel_reductions",
    "GOMP_parallel_sections",
    "GOMP_parallel_loop_static",
    "GOMP_parallel_loop_dynamic",
    "GOMP_parallel_loop_guided",
    "GOMP_parallel_loop_runtime",
    "GOMP_parallel_loop_nonmonotonic_dynamic",
    "GOMP_parallel_loop_nonmonotonic_guided",
    "GOMP_parallel_loop_nonmonotonic_runtime",
    "GOMP_parallel_loop_maybe_nonmonotonic_runtime",
    "GOMP_parallel_start",
    "GOMP_parallel_sections_start",
    "GOMP_parallel_loop_static_start",
    "GOMP_parallel_loop_dynamic_start",
    "GOMP_parallel_loop_guided_start",
    "GOMP_parallel_loop_runtime_start",
];

#[test]
fn the_program_of_this_test_uses_every_entry_point_that_the_runtime_has() {
    if !Omp::Gnu.is_here() {
        return;
    }
    let undefined = symbols(&["-D", "--undefined-only"], &Omp::Gnu.build("entries.c", &[]));
    for name in GOMP {
        assert!(undefined.iter().any(|s| s == name), "the program does not call {name}: {undefined:?}");
    }
    let runtime = Command::new("gcc").arg("-print-file-name=libgomp.so.1").output().unwrap();
    let runtime = PathBuf::from(String::from_utf8(runtime.stdout).unwrap().trim());
    let defined = symbols(&["-D", "--defined-only"], &runtime);
    for name in defined.iter().filter(|n| n.starts_with("GOMP_parallel") && *n != "GOMP_parallel_end") {
        assert!(GOMP.contains(&name.as_str()), "this libgomp has one more entry point: {name}");
    }
}

fn symbols(options: &[&str], file: &Path) -> Vec<String> {
    let listed = Command::new("nm").args(options).arg(file).output().unwrap();
    assert!(listed.status.success(), "nm {}", file.display());
    let text = String::from_utf8(listed.stdout).unwrap();
    let names = text.lines().filter_map(|l| l.split(' ').next_back());
    names.map(|n| n.split('@').next().unwrap().to_string()).collect()
}

/// Runs `entries` and checks every line; `runtime` is a directory with another libgomp.so.1.
fn entries_are_right(runtime: Option<&Path>) {
    let program = Omp::Gnu.build("entries.c", &[]);
    let all = [Orders::default(), count(), team(1), team(2), team(3), team(9)];
    for orders in all {
        for schedule in ["static", "dynamic,2", "guided", "nonmonotonic:dynamic,7"] {
            let page = page(orders);
            let mut command = command(&program, Some(&page));
            command.env("OMP_SCHEDULE", schedule);
            if let Some(runtime) = runtime {
                command.env("LD_LIBRARY_PATH", runtime);
            }
            let text = output(&mut command);
            let mut names: Vec<&str> = vec![];
            for line in text.lines() {
                let words: Vec<&str> = line.split(' ').collect();
                let [name, clause, size, right] = words[..] else { panic!("{line}") };
                let asked = if clause == "0" { 4 } else { 3 };
                let given = orders.team.map_or(asked, |t| t.min(asked));
                // Sections have no thread 0 that tells the size: the count is of who did one.
                assert_eq!((size, right), (given.to_string().as_str(), "right"), "{line}, {orders:?}");
                names.push(name);
            }
            for name in GOMP {
                assert_eq!(names.iter().filter(|n| **n == name).count(), 2, "{name}");
            }
            let seen = only(&page);
            assert_eq!((seen.gomp, seen.kmp), (runtime.is_none(), runtime.is_some()));
            // The registering region is counted in any case.
            assert_eq!(seen.regions, if orders == Orders::default() { 1 } else { 34 });
        }
    }
}

#[test]
fn every_entry_point_of_libgomp_gives_the_ordered_team_and_computes_right() {
    if Omp::Gnu.is_here() {
        entries_are_right(None);
    }
}

#[test]
fn a_gcc_program_on_libomp_gives_the_ordered_team_and_computes_right() {
    if !Omp::Gnu.is_here() {
        return;
    }
    match libomp() {
        Some(libomp) => {
            let dir = scratch().join("libomp_as_libgomp");
            std::fs::create_dir_all(&dir).unwrap();
            symlink(libomp, dir.join("libgomp.so.1")).unwrap();
            entries_are_right(Some(&dir));
        }
        None => skipped("a gcc program on libomp", "ldd does not name the libomp of clang's programs"),
    }
}

fn libomp() -> Option<PathBuf> {
    if !Omp::Llvm.is_here() {
        return None;
    }
    let linked = Command::new("ldd").arg(Omp::Llvm.build("fork_call.c", &[])).output().ok()?;
    let linked = String::from_utf8(linked.stdout).ok()?;
    let line = linked.lines().find(|l| l.trim().starts_with("libomp.so"))?;
    std::fs::canonicalize(line.split(' ').nth(2)?).ok()
}

#[test]
fn libomp_regions_with_0_to_12_captured_variables_keep_them_all() {
    if !Omp::Llvm.is_here() {
        return;
    }
    for optimised in ["-O0", "-O2"] {
        let program = Omp::Llvm.build("fork_call.c", &[optimised]);
        for orders in [Orders::default(), count(), team(1), team(2), team(9)] {
            let page = page(orders);
            let text = output(&mut command(&program, Some(&page)));
            let mut lines = 0;
            for line in text.lines() {
                let words: Vec<&str> = line.split(' ').collect();
                let [variables, clause, size, right] = words[..] else { panic!("{line}") };
                assert_eq!(variables, (lines % 13).to_string());
                // A clause of 1 stands for num_threads(3) if(0). libomp 14 itself lets such a
                // clause leak into the next region, but all of those are serial here.
                let asked = [4, 3, 1][lines / 13];
                assert_eq!(clause, ["0", "3", "1"][lines / 13]);
                let given = orders.team.map_or(asked, |t| t.min(asked));
                assert_eq!((size, right), (given.to_string().as_str(), "right"), "{line}, {orders:?}");
                lines += 1;
            }
            assert_eq!(lines, 39);
        }
    }
}

/// What the fake runtime says without us, and with these orders.
fn fake(orders: Option<Orders>) -> Vec<String> {
    fake_of("fake_calls.c", orders)
}

fn fake_of(source: &str, orders: Option<Orders>) -> Vec<String> {
    let runtime = build("gcc", "fake_runtime.c", &["-shared", "-fPIC"]);
    let rpath = format!("-Wl,-rpath,{}", scratch().display());
    let program = build("gcc", source, &[runtime.to_str().unwrap(), &rpath]);
    let page = page(orders.unwrap_or_default());
    let mut command = command(program, Some(&page));
    if orders.is_none() {
        command.env_remove("LD_PRELOAD");
    }
    output(&mut command).lines().map(String::from).collect()
}

#[test]
fn arguments_in_registers_and_on_the_stack_and_results_arrive_untouched() {
    let truth = fake(None);
    assert_eq!(truth.len(), 13);
    assert_eq!(
        truth[1],
        "fork at 10 body: 1 2 3 4 5 6 7 8 9 10 1.50 2.50 3.50 4.50 5.50 6.50 7.50 8.50 9.50 10.25"
    );
    for orders in [Orders::default(), count(), Orders { quiet: false, ..team(9) }] {
        assert_eq!(fake(Some(orders)), truth, "{orders:?}");
    }
}

#[test]
fn a_place_in_the_source_may_lie_in_no_object() {
    let truth = fake_of("places.c", None);
    assert_eq!(truth[1], "push (null) 5 3; fork heap 1 body: 1 1.50");
    for orders in [Orders::default(), count(), team(9)] {
        assert_eq!(fake_of("places.c", Some(orders)), truth, "{orders:?}");
    }
}

#[test]
fn clauses_that_must_be_obeyed_and_serial_regions_are_left_alone() {
    let truth = fake(None);
    let resized = fake(Some(team(2)));
    let expected: Vec<String> = truth
        .iter()
        .map(|line| {
            let pushed = line.strip_prefix("fork at").map(|rest| format!("push at 5 2; fork at{rest}"));
            match line.as_str() {
                "push at 5 3; fork at 1 body: 1 1.50" => {
                    "push at 5 3; push at 5 2; fork at 1 body: 1 1.50".into()
                }
                "push at 5 1; serial at 5; fork at 0 after:" => {
                    "push at 5 1; serial at 5; push at 5 2; fork at 0 after:".into()
                }
                "fork_if at 1 body 1 arguments" => "push at 5 2; fork_if at 1 body 1 arguments".into(),
                "gomp body data 0 ffffffff" => "gomp body data 2 ffffffff".into(),
                "reductions body data 7 80000000; 4711" => "reductions body data 2 80000000; 4711".into(),
                _ => pushed.unwrap_or_else(|| line.clone()),
            }
        })
        .collect();
    assert_eq!(resized, expected);
    // Strict and list clauses, `if(0)` and one thread by clause stay as they were.
    for kept in [
        "strict at 5 3 1 message; fork",
        "list at",
        "list strict at",
        "push at 5 1; fork_if",
        "loop body data 1 -5",
    ] {
        assert!(resized.iter().any(|line| line.starts_with(kept)), "{kept}: {resized:?}");
    }
}
