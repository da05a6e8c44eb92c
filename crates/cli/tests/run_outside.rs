//! `corefit run` of programs and children that its library cannot enter.

#[allow(dead_code, reason = "every test file uses a part of this")]
mod run_support;

use std::fs;
use std::process::Command;

use run_support::{Place, REGIONS, on_one_cpu, stderr, stdout, told};

#[test]
fn programs_that_no_library_can_enter_run_and_are_told_why() {
    let place = Place::new();
    let program = place.compile("static", &["-static"], "#include <stdio.h>\nint main(void){puts(\"ran\");}");
    let output = place.corefit(&["run", "--"]).arg(&program).output().unwrap();
    assert_eq!(stdout(&output), "ran\n");
    assert!(stderr(&output).contains("statically linked"), "{}", stderr(&output));
}

#[test]
fn who_cannot_be_resized_has_as_many_threads_as_is_said_whoever_starts_it() {
    let place = Place::new();
    let program = place.compile("regions", &["-fopenmp", "-static"], REGIONS);
    let program = program.to_str().unwrap();
    let options = ["run", "--resize", "always", "--threads", "2", "--report", "report.json", "--"];
    for how in [&[program, "300"][..], &["sh", "-c", &format!("{program} 300; true")]] {
        let output = on_one_cpu(&place.corefit(&[&options[..], how].concat())).output().unwrap();
        let launched = place.report()["threads_launched"].clone();
        assert!(stdout(&output).ends_with(&format!("teams {launched}\n")), "{}{launched}", stdout(&output));
    }
}

#[test]
fn a_process_whose_environment_was_emptied_is_named() {
    let place = Place::new();
    let program = place.compile("regions", &["-fopenmp"], REGIONS);
    let mut command =
        place.corefit(&["run", "--report", "report.json", "--", "env", "-i", "OMP_NUM_THREADS=2"]);
    let output = command.arg(&program).arg("3000").output().unwrap();
    let said = told(&output);
    assert!(said.contains("(regions, 2 threads) ran without corefit's library"), "{said}");
    let notes = place.report()["notes"].to_string();
    assert!(notes.contains("ran without corefit's library"), "{notes}");
}

/// Built by another compiler, or `None` where that is not installed.
fn foreign_child(place: &Place, compiler: &[&str]) -> Option<std::path::PathBuf> {
    let (source, program) = (place.path().join("child.c"), place.path().join("child"));
    fs::write(&source, "#include <unistd.h>\nint main(void){return write(1, \"ran\\n\", 4) != 4;}").unwrap();
    let output = Command::new(compiler[0]).args(&compiler[1..]).arg("-o").args([&program, &source]).output();
    let why = match output {
        Ok(output) if output.status.success() => match Command::new(&program).output() {
            Ok(_) => return Some(program),
            Err(why) => why.to_string(),
        },
        Ok(output) => stderr(&output),
        Err(why) => why.to_string(),
    };
    let line = format!("skipped: a child built by {compiler:?}: {why}\n");
    let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
    None
}

#[test]
fn children_on_musl_run_and_hear_nothing_of_a_library_that_they_cannot_load() {
    let place = Place::new();
    let Some(child) = foreign_child(&place, &["musl-gcc"]) else {
        return;
    };
    let preloaded = "grep -c /libcorefit_omp.so /proc/self/maps";
    let command = format!("{} && {preloaded} >maps", child.display());
    let output = place.corefit(&["run", "--quiet", "--", "sh", "-c", &command]).output().unwrap();
    assert_eq!((stdout(&output), stderr(&output)), ("ran\n".into(), String::new()));
    assert_eq!(output.status.code(), Some(0), "a child on glibc, beside it, has the library");
}

#[test]
fn children_of_32_bit_run_although_their_loader_complains() {
    let place = Place::new();
    let Some(child) = foreign_child(&place, &["gcc", "-m32"]) else {
        return;
    };
    let output = place.corefit(&["run", "--quiet", "--", "sh", "-c"]).arg(&child).output().unwrap();
    assert_eq!((stdout(&output), output.status.code()), ("ran\n".into(), Some(0)));
    let said = stderr(&output);
    assert!(said.lines().count() == 1 && said.contains("ignored"), "{said}");
}
