//! The preload library: where regions begin, sequential work is moved over the CPUs, and no thread of the program ever sees
//! another affinity than its own.

use std::time::Duration;

use crate::support::{Omp, Talk, command, count, eventually, only, order, page, skipped, team};
use corefit_linux::page::{Orders, TeamPage};

/// A turn that two of three times 3 ms of work make.
const TURN: Duration = Duration::from_millis(5);

fn rotate() -> Orders {
    Orders { rotate: true, ..Orders::default() }
}

/// A page that says so, with a turn.
fn rotating() -> TeamPage {
    let page = page(rotate());
    page.set_turn(TURN);
    page
}

/// The program, with as many threads as there are CPUs, and sleeping when it waits.
fn program(omp: Omp, page: &TeamPage) -> Talk {
    let mut command = command(omp.build("rotate.c", &[]), Some(page));
    command.env("OMP_NUM_THREADS", cpus().to_string());
    command.env("OMP_WAIT_POLICY", "passive").env("GOMP_SPINCOUNT", "0").env("KMP_BLOCKTIME", "0");
    Talk::start(&mut command)
}

fn cpus() -> usize {
    corefit_linux::sample::affinity(std::process::id()).unwrap().len()
}

/// The runtimes, where there is more than one CPU.
fn omps() -> &'static [Omp] {
    if cpus() < 2 {
        skipped("rotation", "there is only one CPU");
        return &[];
    }
    Omp::all()
}

#[test]
fn the_thread_that_works_alone_is_moved_and_no_thread_sees_a_narrower_affinity() {
    for &omp in omps() {
        let page = rotating();
        let mut program = program(omp, &page);
        assert_eq!(program.number("turns 200 3 0"), 0, "{omp:?}: threads that might not use all CPUs");
        let seen = only(&page);
        // Each second region, but for the last places of turns.
        assert!((40..=150).contains(&seen.moves), "{omp:?}: {seen:?}");
        assert_eq!((seen.bound, seen.resized), (0, 0), "{omp:?}");
        assert_eq!(program.number("strays"), 0, "{omp:?}");
        program.end();
    }
}

#[test]
fn it_is_on_each_cpu_for_as_long() {
    for &omp in omps() {
        let page = rotating();
        let mut program = program(omp, &page);
        program.number("turns 20 3 0");
        let cpu = |pid: u32| corefit_linux::moving::seat(pid).map(|seat| seat.cpu.0);
        let pid = program.pid();
        program.say("turns 400 3 0");
        let mut on = vec![0_u32; 1024];
        let end = std::time::Instant::now() + Duration::from_millis(1200);
        while std::time::Instant::now() < end {
            on[cpu(pid).unwrap() as usize] += 1;
            std::thread::sleep(Duration::from_millis(1));
        }
        program.hear();
        on.retain(|looks| *looks > 0);
        let all: u32 = on.iter().sum();
        // Beside other tests the kernel moves it, too.
        let least = all / (4 * u32::try_from(cpus()).unwrap());
        assert!(on.len() == cpus() && on.iter().all(|looks| *looks >= least), "{omp:?}: {on:?}");
        program.end();
    }
}

#[test]
fn shorter_work_and_single_threads_are_not_moved() {
    for &omp in omps() {
        let page = rotating();
        page.set_turn(Duration::from_secs(60));
        let mut program = program(omp, &page);
        assert_eq!(program.number("turns 30 3 0"), 0);
        assert_eq!(only(&page).moves, 0, "{omp:?}: its turn is not over");
        page.set_turn(TURN);
        program.number("turns 10 3 1");
        assert_eq!(only(&page).moves, 0, "{omp:?}: there is nobody to change places with");
        program.end();
    }
}

#[test]
fn moving_begins_and_ends_as_it_is_ordered() {
    for &omp in omps() {
        let page = page(count());
        page.set_turn(TURN);
        let mut program = program(omp, &page);
        program.number("turns 20 3 0");
        assert_eq!(only(&page).moves, 0, "{omp:?}: nobody ordered it");
        order(&page, rotate());
        program.number("turns 20 3 0");
        let moves = only(&page).moves;
        assert!(moves > 0, "{omp:?}");
        order(&page, Orders::default());
        assert_eq!(program.number("turns 20 3 0"), 0);
        assert_eq!(only(&page).moves, moves, "{omp:?}: it is over");
        program.end();
    }
}

#[test]
fn threads_with_an_affinity_of_their_own_keep_it() {
    for &omp in omps() {
        let page = rotating();
        let mut program = program(omp, &page);
        assert_eq!(program.ask("bind"), "done");
        program.number("turns 40 3 2");
        let seen = only(&page);
        // It may be moved where the bound one is not: beside other tests the kernel brings it there.
        assert!(seen.bound > 0, "{omp:?}: {seen:?}");
        assert_eq!(program.number("strays"), 1, "{omp:?}: the bound one");
        program.end();

        let page = rotating();
        let mut program = self::program(omp, &page);
        assert_eq!(program.ask("narrow"), "done");
        program.number("turns 40 3 0");
        assert_eq!(only(&page).moves, 0, "{omp:?}: the first thread has one CPU");
        program.end();
    }
}

#[test]
fn who_takes_no_part_in_the_next_region_is_not_left_on_one_cpu() {
    for &omp in omps() {
        let page = rotating();
        let mut program = program(omp, &page);
        for _ in 0..10 {
            assert_eq!(program.number("turns 4 3 0"), 0, "{omp:?}");
            assert_eq!(program.number("turns 1 6 2"), 0, "{omp:?}");
            assert_eq!(program.number("turns 1 6 1"), 0, "{omp:?}");
        }
        // At the last the thread of ours looks, which sees that it is over.
        order(&page, Orders::default());
        eventually("no thread is on one CPU", || (program.number("strays") == 0).then_some(()));
        program.end();
    }
}

#[test]
fn other_threads_children_and_nested_regions_do_what_they_would() {
    for &omp in omps() {
        let page = rotating();
        let mut program = program(omp, &page);
        assert_eq!(program.number("begins"), 0, "{omp:?}: a thread that is not the first");
        // libgomp has no regions in the child of a thread that had some.
        assert_eq!(program.number("forks"), 0, "{omp:?}: a child");
        assert!(page.processes().iter().any(|p| p.pid != program.pid() && p.moves > 0), "{omp:?}");
        assert_eq!(program.number("turns 20 3 0"), 0, "{omp:?}");
        let threads = usize::try_from(program.number("nested")).unwrap();
        assert!(threads > 0 && threads.is_multiple_of(20 * cpus()), "{omp:?}: {threads}");
        assert_eq!(program.number("strays"), 0, "{omp:?}");
        program.end();
    }
}

#[test]
fn sizes_and_results_are_what_they_are_without() {
    for &omp in omps() {
        let lines = [
            "region 0",
            "region 3",
            "region 1",
            "sizes 40",
            "if0 3",
            "region 0",
            "nested",
            "triple",
            "pthreads 3",
            "chores",
            "fork",
        ];
        let answers = |page: &TeamPage| {
            let mut program = Talk::driver(omp, page);
            let answers = lines.map(|line| program.ask(line));
            program.end();
            answers
        };
        let with = rotating();
        with.set_turn(Duration::from_micros(1));
        assert_eq!(answers(&with), answers(&page(count())), "{omp:?}");
        // And with other sizes than asked for.
        let (both, sized) = (page(Orders { rotate: true, ..team(2) }), page(team(2)));
        both.set_turn(Duration::from_micros(1));
        assert_eq!(answers(&both), answers(&sized), "{omp:?}");
    }
}
