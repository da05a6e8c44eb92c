//! The preload library: processes that come, go, and do unusual things.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{
    Omp, Talk, build, command, count, eventually, killed, library, only, order, output, page, scratch,
    skipped, team,
};
use corefit_linux::page::{Orders, TeamPage};

fn odd(omp: Omp, page: &TeamPage, arguments: &[&str]) -> Command {
    let mut command = command(omp.build("odd.c", &[]), Some(page));
    command.args(arguments);
    command
}

#[test]
fn the_child_of_a_fork_gets_a_slot_of_its_own() {
    for &omp in Omp::all() {
        let page = page(team(3));
        let mut program = Talk::driver(omp, &page);
        // libgomp itself hangs in the child if the parent has a pool; libomp does not.
        let before = if omp == Omp::Llvm { program.number("region 0") } else { 3 };
        assert_eq!(program.ask("fork"), "3 0", "{omp:?}");
        assert_eq!(program.number("region 0"), before, "{omp:?}");
        let processes = page.processes();
        assert_eq!(processes.len(), 2, "{omp:?}: {processes:?}");
        assert!(processes.iter().any(|p| p.pid == program.pid()), "{omp:?}: {processes:?}");
        program.end();
    }
}

#[test]
fn a_program_that_is_replaced_by_another_keeps_its_slot() {
    if Omp::all().len() == 2 {
        for (first, second) in [(Omp::Gnu, Omp::Llvm), (Omp::Llvm, Omp::Gnu)] {
            let page = page(team(2));
            let mut program = Talk::driver(first, &page);
            assert_eq!(program.number("region 0"), 2);
            let before = only(&page);
            let other = second.build("driver.c", &[]);
            program.say(&format!("exec {}", other.display()));
            assert_eq!(program.number("region 0"), 2);
            let after = only(&page);
            assert_eq!((after.slot, after.pid), (before.slot, before.pid));
            assert_ne!(after.serial, before.serial, "what the first may do does not hold for the second");
            assert!(page.is_current(&after) && !page.is_current(&before));
            assert_eq!((after.gomp, after.kmp), (second == Omp::Gnu, second == Omp::Llvm));
            assert_eq!(after.regions, 1);
            program.end();
        }
    }
}

#[test]
fn spawned_and_vforked_programs_register_for_themselves() {
    for &omp in Omp::all() {
        let page = page(team(2));
        assert_eq!(output(&mut odd(omp, &page, &["spawn", "5"])), "2\n".repeat(5), "{omp:?}");
        assert_eq!(page.processes().len(), 5, "{omp:?}");
        page.processes().iter().for_each(|process| page.release(process));
        assert_eq!(output(&mut odd(omp, &page, &["vfork"])), "2\n0 2\n", "{omp:?}");
        assert_eq!(page.processes().len(), 2, "{omp:?}");
    }
}

#[test]
fn descriptors_may_be_closed_and_the_environment_cleared() {
    for &omp in Omp::all() {
        let page = page(team(2));
        let ended = odd(omp, &page, &["closed"]).status().unwrap();
        assert_eq!(ended.code(), Some(42), "{omp:?}");
        page.set_policy(team(1), false);
        assert_eq!(output(&mut odd(omp, &page, &["cleared"])), "1 1\n", "{omp:?}");
    }
}

#[test]
fn with_all_slots_taken_the_others_run_as_they_ask() {
    for &omp in Omp::all() {
        let page = page(team(1));
        let mut command = odd(omp, &page, &["forks", "70"]);
        command.env("OMP_NUM_THREADS", "2").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = command.spawn().unwrap();
        let lines = BufReader::new(program.stdout.take().unwrap()).lines().take(70);
        let mut sizes: Vec<String> = lines.map(Result::unwrap).collect();
        sizes.sort();
        let limited = sizes.iter().filter(|s| *s == "1").count();
        assert_eq!((limited, sizes.len()), (63, 70), "{omp:?}: {sizes:?}");
        assert_eq!((page.processes().len(), page.refused()), (63, 7));
        drop(program.stdin.take());
        assert!(program.wait().unwrap().success());
        // Slots that corefit has freed serve again.
        page.release(&page.processes()[5]);
        assert_eq!(output(&mut odd(omp, &page, &["size"])), "1\n");
        assert_eq!((page.processes().len(), page.refused()), (63, 7));
    }
}

#[test]
fn a_page_that_is_not_ours_is_left_alone() {
    let program = Omp::Gnu.build("odd.c", &[]);
    let real = page(team(2));
    let (name, value) = real.variable();
    let (path, nonce) = value.rsplit_once(':').unwrap();
    let bytes = std::fs::read(path).unwrap();
    let run = |bytes: &[u8], nonce: &str| {
        let file = scratch().join("a_page");
        std::fs::write(&file, bytes).unwrap();
        let mut command = command(&program, None);
        command.arg("size").env(name, format!("{}:{nonce}", file.display()));
        let said = output(&mut command);
        (said, std::fs::read(&file).unwrap() != bytes)
    };
    let alone = ("4\n".to_string(), false);
    assert_eq!(run(&bytes, nonce), ("2\n".into(), true), "a true copy of the page works");
    assert_eq!(run(&bytes, "1234"), alone, "another nonce");
    assert_eq!(run(&bytes, "no number"), alone, "no nonce");
    assert_eq!(run(&bytes[..4095], nonce), alone, "a short page");
    assert_eq!(run(&[&bytes[..], &[0]].concat(), nonce), alone, "a long page");
    assert_eq!(run(&[], nonce), alone, "an empty file");
    // Offsets as in crates/openmp/src/page.rs: magic, nonce, version.
    for (what, offset) in [("magic", 0), ("nonce", 8), ("version", 16)] {
        let mut other = bytes.clone();
        other[offset] ^= 2;
        assert_eq!(run(&other, nonce), alone, "another {what}");
    }
    for value in ["", ":", "/", "/nowhere:1", "/dev/null:1", "/proc/self/mem:1", &"x".repeat(4000)] {
        let mut command = command(&program, None);
        assert_eq!(output(command.arg("size").env(name, value)), "4\n", "{value}");
    }
}

#[test]
fn without_a_page_nothing_is_touched() {
    for &omp in Omp::all() {
        let mut command = command(omp.build("driver.c", &[]), None);
        let mut program = Talk::start(&mut command);
        assert_eq!(program.number("region 0"), 4);
        assert_eq!(program.number("threads"), 4, "{omp:?}: no thread of ours");
        program.end();
    }
}

/// Not a test of its own: the process that is killed in the next one.
#[test]
fn owner_of_a_page() {
    if std::env::var_os("OWN_A_PAGE").is_some() {
        let page = page(team(2));
        println!("page {}", page.variable().1);
        loop {
            std::thread::park();
        }
    }
}

#[test]
fn when_corefit_is_killed_its_last_order_is_dropped_within_a_second_or_two() {
    for &omp in Omp::all() {
        let mut owner = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "processes::owner_of_a_page", "--nocapture"])
            .env("OWN_A_PAGE", "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(owner.stdout.take().unwrap()).lines();
        let value = lines
            .map(Result::unwrap)
            .find_map(|l| l.split_once("page ").map(|(_, v)| v.to_string()))
            .unwrap();
        let mut command = command(omp.build("driver.c", &[]), None);
        let mut program = Talk::start(command.env("COREFIT_PAGE", value));
        assert_eq!(program.number("region 0"), 2, "{omp:?}");
        owner.kill().unwrap();
        owner.wait().unwrap();
        eventually("regions are as asked again", || (program.number("region 0") == 4).then_some(()));
        if omp == Omp::Llvm {
            // A child that begins now does not wait for an answer that nobody gives.
            assert_eq!(program.ask("fork"), "4 0");
        }
        program.end();
    }
}

#[test]
fn when_corefit_ends_sizes_are_as_asked_again() {
    for &omp in Omp::all() {
        let page = page(team(2));
        let mut program = Talk::driver(omp, &page);
        assert_eq!(program.number("region 0"), 2, "{omp:?}");
        drop(page);
        assert_eq!(program.number("region 0"), 4, "{omp:?}");
        program.end();
    }
}

#[test]
fn a_first_region_goes_on_when_nobody_answers_and_at_once_when_somebody_does() {
    for &omp in Omp::all() {
        let page = TeamPage::create(team(2), true, None, 1).unwrap();
        let mut program = Talk::driver(omp, &page);
        assert_eq!(program.number("region 0"), 2, "{omp:?}: by the policy, unanswered");
        program.end();
        page.release(&only(&page));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let seen = page.wait_registration(1, crate::support::PATIENCE);
                assert_eq!(seen, 2);
                order(&page, team(3));
                page.answer(only(&page).slot);
            });
            let mut program = Talk::driver(omp, &page);
            assert_eq!(program.number("region 0"), 3, "{omp:?}: as answered");
            program.end();
        });
    }
}

#[test]
fn a_program_whose_main_thread_left_ends_with_its_last_thread() {
    for &omp in Omp::all() {
        for orders in [count(), Orders { quiet: true, ..count() }] {
            let page = page(orders);
            let mut command = odd(omp, &page, &["leave"]);
            // Without us: does this runtime let such a program end at all?
            let mut alone = Command::new(omp.build("odd.c", &[]));
            alone.arg("leave").env("OMP_NUM_THREADS", "4").stdout(Stdio::null());
            let mut alone = alone.spawn().unwrap();
            let end = Instant::now() + Duration::from_secs(5);
            while alone.try_wait().unwrap().is_none() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(5));
            }
            if !killed(&mut alone).unwrap().success() {
                skipped(&format!("{omp:?}: main thread leaves"), "the program does not end by itself");
                continue;
            }
            assert_eq!(output(&mut command), "main 4\nrest 4\n", "{omp:?}");
        }
    }
}

#[test]
fn signals_during_regions_change_nothing() {
    for &omp in Omp::all() {
        for orders in [Orders::default(), count(), team(2), Orders { quiet: true, ..team(3) }] {
            let page = page(orders);
            assert_eq!(output(&mut odd(omp, &page, &["signals"])), "wrong 0\n", "{omp:?}, {orders:?}");
        }
    }
}

#[test]
fn regions_in_constructors_and_atexit_handlers_follow_too() {
    for &omp in Omp::all() {
        let page = page(team(3));
        let mut command = odd(omp, &page, &["constructor"]);
        assert_eq!(output(command.env("EARLY", "1")), "constructor 3 main 3\natexit 3\n", "{omp:?}");
        assert_eq!(
            output(&mut odd(omp, &page, &["constructor"])),
            "constructor 0 main 3\natexit 3\n",
            "{omp:?}"
        );
    }
}

#[test]
fn a_limit_on_threads_stops_ours_not_the_programs() {
    let shim = build("gcc", "few_threads.c", &["-shared", "-fPIC"]);
    let preload = format!("{}:{}", library().display(), shim.display());
    for &omp in Omp::all() {
        // Enough for the program alone; with 8 to spare, for the watching thread; and with 32 to
        // spare, for a pool of ours. (Whoever counts while threads end may miss some.)
        for (most, threads) in [(4, 4), (5, 4), (10, 4), (13, 5), (33, 5), (200, 5)] {
            let page = page(Orders { quiet: true, ..count() });
            let mut command = command(omp.build("driver.c", &[]), Some(&page));
            command.env("LD_PRELOAD", &preload).env("MAX_TASKS", most.to_string());
            let mut program = Talk::start(&mut command);
            for _ in 0..3 {
                assert_eq!(program.number("region 0"), 4, "{omp:?}, {most}");
                assert_eq!(program.number("barriers 4 20").signum(), 1, "{omp:?}, {most}");
            }
            let now = || usize::try_from(program_threads(program.pid())).unwrap();
            let pool = omp == Omp::Gnu && most == 200;
            // Threads that found no room for a pool are still ending.
            let what =
                format!("{omp:?}, {most}: {}", if pool { "a pool is parked" } else { "no pool is left" });
            eventually(&what, || (if pool { now() > threads } else { now() == threads }).then_some(()));
            program.end();
        }
    }
}

fn program_threads(pid: u32) -> u64 {
    std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().count() as u64
}

#[test]
fn a_process_in_another_pid_namespace_is_known_by_the_id_that_corefit_sees() {
    let works = Command::new("unshare").args(["--pid", "--fork", "true"]).output();
    if !works.is_ok_and(|o| o.status.success()) {
        return skipped("another pid namespace", "unshare --pid is not permitted or not installed");
    }
    for &omp in Omp::all() {
        let page = page(team(2));
        let mut command = Command::new("unshare");
        let driver = omp.build("driver.c", &[]);
        let (name, value) = page.variable();
        command.args(["--pid", "--fork", "env"]).arg(format!("LD_PRELOAD={}", library().display()));
        command.arg(driver).env(name, value).env("OMP_NUM_THREADS", "4");
        let mut program = Talk::start(&mut command);
        assert_eq!(program.number("region 0"), 2, "{omp:?}");
        let children =
            std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", program.pid())).unwrap();
        assert_eq!(only(&page).pid.to_string(), children.trim(), "{omp:?}");
        program.end();
    }
}

#[test]
fn a_program_killed_by_a_signal_dies_of_that_signal() {
    for &omp in Omp::all() {
        let page = page(Orders { quiet: true, ..team(2) });
        let mut program = odd(omp, &page, &["leave"]);
        let mut child = program.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        lines.next().unwrap().unwrap();
        assert_eq!(killed(&mut child).unwrap().signal(), Some(9), "{omp:?}");
    }
}
