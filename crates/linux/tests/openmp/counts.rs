//! The preload library: what programs hear that ask for the number of CPUs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::support::{build, command, library, output, skipped};
use corefit_linux::page::{Orders, TeamPage};

/// A page that answers so many CPUs.
fn answer(cpus: Option<u32>) -> TeamPage {
    TeamPage::create(Orders::default(), false, cpus, 1).unwrap()
}

fn counts() -> PathBuf {
    build("gcc", "counts.c", &["-pthread"])
}

/// What `counts ARGS` says, on a machine with as many CPUs as this one and no other preload.
fn says(page: Option<&TeamPage>, args: &[&str]) -> String {
    output(command(counts(), page).args(args))
}

/// CPUs of this machine that tests may use; with only one there is nothing to lower.
fn cpus() -> Option<u32> {
    static CPUS: OnceLock<u32> = OnceLock::new();
    let cpus = *CPUS.get_or_init(|| says(None, &["mask", "0"]).trim().parse().unwrap());
    if cpus < 2 {
        skipped("lowered numbers of CPUs", "this machine has one CPU for us");
    }
    (cpus > 1).then_some(cpus)
}

#[test]
fn every_way_of_asking_gives_the_one_answer() {
    let Some(cpus) = cpus() else {
        return;
    };
    let page = answer(Some(1));
    let one = "1 1 1 1\n";
    assert_eq!(says(Some(&page), &["all"]), one);
    assert_eq!(says(Some(&page), &["fork"]), one);
    assert_eq!(says(Some(&page), &["exec"]), one);
    assert_eq!(says(Some(&page), &["thread"]), format!("{one}1\n"));
    // No page, no answer ordered, or one above the truth: the truth.
    for page in [None, Some(answer(None)), Some(answer(Some(9999)))] {
        let said = says(page.as_ref(), &["all"]);
        assert!(said.ends_with(&format!(" {cpus} {cpus}\n")), "{said}");
    }
}

#[test]
fn a_count_between_one_and_all_keeps_the_first_cpus() {
    // A machine of 16 CPUs, made by a library behind ours.
    let sees = build("gcc", "../../../../workloads/seecpus.c", &["-shared", "-fPIC", "-pthread"]);
    let preload = format!("{}:{}", library().display(), sees.display());
    for (count, heard) in [(Some(3), 3), (Some(9), 9), (Some(16), 16), (Some(17), 16), (None, 16)] {
        let page = answer(count);
        let mut command = command(counts(), Some(&page));
        command.env("LD_PRELOAD", &preload).env("COREFIT_SEE_CPUS", "16");
        assert_eq!(output(&mut command), format!("{heard} {heard} {heard} {heard}\n"), "{count:?}");
    }
    let page = answer(Some(3));
    let mut command = command(counts(), Some(&page));
    command.env("LD_PRELOAD", &preload).env("COREFIT_SEE_CPUS", "16").arg("which");
    assert_eq!(output(&mut command), "0 1 2 ");
}

#[test]
fn other_processes_are_answered_truly() {
    let Some(cpus) = cpus() else {
        return;
    };
    let page = answer(Some(1));
    let mut other = Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap();
    let said = says(Some(&page), &["mask", &other.id().to_string()]);
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(said, format!("{cpus}\n"));
}

#[test]
fn the_number_of_the_present_cpu_is_in_the_mask_as_answered() {
    for page in [None, Some(answer(Some(1))), Some(answer(None))] {
        assert_eq!(says(page.as_ref(), &["numbers"]), "1\n");
    }
}

#[test]
fn masks_of_all_lengths_succeed_and_fail_as_without_us_and_errno_stays() {
    for page in [None, Some(answer(Some(1))), Some(answer(None))] {
        assert_eq!(says(page.as_ref(), &["sizes"]), "1\n");
        assert_eq!(says(page.as_ref(), &["errno"]), "1\n");
    }
}

#[test]
fn a_mask_that_is_saved_and_set_again_takes_no_cpu_away() {
    let Some(cpus) = cpus() else {
        return;
    };
    let page = answer(Some(1));
    // 8: shorter than what was asked for; 4096: longer than any kernel's.
    for bytes in ["8", "128", "1024", "4096"] {
        let said = says(Some(&page), &["restore", bytes]);
        assert_eq!(said, format!("0 {cpus} {cpus}\n"), "{bytes} bytes");
    }
    assert_eq!(says(Some(&page), &["attribute"]), format!("{cpus} {cpus}\n"));
    assert_eq!(says(Some(&page), &["child"]), format!("{cpus}\n"));
}

#[test]
fn a_mask_that_nobody_was_answered_is_set_as_it_is_though_it_is_what_we_would_answer() {
    if cpus().is_none() {
        return;
    }
    // The first CPU of ours, as a user binds a program to it.
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let list = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).unwrap();
    let first: String = list.trim().chars().take_while(char::is_ascii_digit).collect();
    let page = answer(Some(1));
    assert_eq!(says(Some(&page), &["unasked"]), "1\n");
    let mut bound = command("taskset", Some(&page));
    let said = output(bound.args(["-c", &first]).arg(counts()).args(["restore", "1024"]));
    assert_eq!(said, "0 1 1\n");
}

#[test]
fn a_program_that_places_its_threads_hears_the_truth_from_then_on() {
    let Some(cpus) = cpus() else {
        return;
    };
    let page = answer(Some(1));
    let others = cpus - u32::from(first_cpu_is_allowed());
    assert_eq!(says(Some(&page), &["place"]), format!("1 {others}\n"));
    let mut bound = command(counts(), Some(&page));
    let said = output(bound.env("OMP_PROC_BIND", "close").arg("all"));
    assert_eq!(said, format!("1 1 {cpus} {cpus}\n"));
}

fn first_cpu_is_allowed() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let list = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).unwrap();
    list.trim().starts_with('0')
}

/// The program with several libraries preloaded.
fn with_preloads(program: &Path, page: &TeamPage, libraries: &[&Path]) -> Command {
    let preload = libraries.iter().map(|l| l.to_str().unwrap()).collect::<Vec<_>>().join(":");
    let mut command = command(program, Some(page));
    command.env("LD_PRELOAD", preload).arg("all");
    command
}

#[test]
fn a_malloc_that_asks_before_we_are_initialised_is_answered_and_not_called_back() {
    let Some(cpus) = cpus() else {
        return;
    };
    let page = answer(Some(1));
    let malloc = build("gcc", "early_malloc.c", &["-shared", "-fPIC"]);
    for libraries in [[library(), &malloc], [malloc.as_path(), library()]] {
        let said = output(&mut with_preloads(&counts(), &page, &libraries));
        assert_eq!(said, "1 1 1 1\nmalloc heard 1 1 1\n", "{libraries:?}");
    }
    let options = ["-pthread", "-Wl,--no-as-needed", malloc.to_str().unwrap()];
    let linked = build("gcc", "counts.c", &options);
    let said = output(command(linked, Some(&page)).arg("all"));
    assert_eq!(said, "1 1 1 1\nmalloc heard 1 1 1\n", "linked, not preloaded");
    // A page that cannot be opened: that fails inside the question.
    let mut lost = with_preloads(&counts(), &page, &[library(), &malloc]);
    let said = output(lost.env("COREFIT_PAGE", "/no/such/page:1"));
    assert!(said.ends_with(&format!(" {cpus} {cpus}\n")) && !said.contains("-1"), "{said}");
}

#[test]
fn a_question_before_libc_is_initialised_hears_the_truth_and_spoils_nothing() {
    let Some(cpus) = cpus() else {
        return;
    };
    let page = answer(Some(1));
    let options = ["-shared", "-fPIC", "-DFIRST", "-Wl,-z,initfirst"];
    let first = build("gcc", "early_malloc.c", &options);
    let said = output(&mut with_preloads(&counts(), &page, &[library(), &first]));
    let (program, malloc) = said.split_once('\n').unwrap();
    assert_eq!(program, "1 1 1 1");
    assert!(malloc.ends_with(&format!(" {cpus}\n")), "{malloc}");
}

#[test]
fn the_mallocs_that_people_preload_work_beside_us() {
    let page = answer(Some(1));
    for name in ["jemalloc.so.2", "tcmalloc_minimal.so.4", "mimalloc.so.2.0"] {
        let file = PathBuf::from(format!("/usr/lib/x86_64-linux-gnu/lib{name}"));
        if !file.exists() {
            skipped(&format!("lib{name} beside ours"), "it is not installed");
            continue;
        }
        for libraries in [[library(), &file], [file.as_path(), library()]] {
            let said = output(&mut with_preloads(&counts(), &page, &libraries));
            assert_eq!(said, "1 1 1 1\n", "{libraries:?}");
        }
    }
}
