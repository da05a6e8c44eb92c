//! The preload library: with more threads than CPUs the runtime stops spinning, at run time, and
//! spins again afterwards.
//!
//! What spinning costs is told by the CPU time that barriers take when 8 threads run on at most
//! 2 CPUs. Sides are compared within one run, by large factors.

use std::path::PathBuf;
use std::process::Command;

use crate::support::{Omp, Talk, build, command, count, eventually, library, only, order, page};
use corefit_linux::page::{Orders, TeamPage};

fn quiet() -> Orders {
    Orders { quiet: true, ..count() }
}

/// The driver on the first two CPUs, made to believe in 16 of them.
fn believer(omp: Omp, page: &TeamPage) -> Command {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../workloads/seecpus.c");
    let shim = build("gcc", source, &["-shared", "-fPIC"]);
    let mut command = command("taskset", Some(page));
    // The preload is for the program alone: taskset and env do not want to be deceived.
    command.env_remove("LD_PRELOAD").args(["-c", "0,1", "env"]);
    command.arg(format!("LD_PRELOAD={}:{}", library().display(), shim.display()));
    command.arg(omp.build("driver.c", &[]));
    command.env("COREFIT_SEE_CPUS", "16").env("OMP_NUM_THREADS", "8");
    command
}

/// Barriers in one measurement.
const BARRIERS: u32 = 12;
/// Spinning costs this many times more; measured here 50 to 500.
const FACTOR: i64 = 8;

/// CPU time of the cheaper of two measurements, in us.
fn cost(program: &mut Talk, line: &str) -> i64 {
    (0..2).map(|_| program.number(line)).min().unwrap()
}

fn hushes(omp: Omp, first: &str, line: &str) {
    let page = page(count());
    let mut program = Talk::start(&mut believer(omp, &page));
    if !first.is_empty() {
        program.say(first);
        program.say("1");
        program.hear();
    } else {
        program.number(line);
    }
    let threads = tasks(&program);
    for round in 0..2 {
        let loud = cost(&mut program, line);
        order(&page, quiet());
        eventually("libgomp's pool is parked", || {
            (omp == Omp::Llvm || tasks(&program) > threads).then_some(())
        });
        let hushed = cost(&mut program, line);
        assert!(
            loud > FACTOR * hushed,
            "{omp:?}, {line}, round {round}: spinning {loud} us, quiet {hushed} us"
        );
        order(&page, count());
        eventually("the parked threads are gone", || (tasks(&program) == threads).then_some(()));
        let again = cost(&mut program, line);
        println!("{omp:?}, {line}: spinning {loud} us, quiet {hushed} us, lifted {again} us");
        assert!(
            again > FACTOR * hushed,
            "{omp:?}, {line}, round {round}: quiet {hushed} us, lifted {again} us"
        );
    }
    if !first.is_empty() {
        program.ask("0");
    }
    program.end();
}

fn tasks(program: &Talk) -> usize {
    std::fs::read_dir(format!("/proc/{}/task", program.pid())).unwrap().count()
}

#[test]
fn libgomp_stops_spinning_while_ordered_at_the_regions_barriers() {
    if Omp::Gnu.is_here() {
        hushes(Omp::Gnu, "", &format!("barriers 8 {BARRIERS}"));
    }
}

#[test]
fn libgomp_stops_spinning_while_ordered_between_regions() {
    if Omp::Gnu.is_here() {
        hushes(Omp::Gnu, "", &format!("regions 8 {BARRIERS}"));
    }
}

#[test]
fn libgomp_stops_spinning_within_one_long_region() {
    if Omp::Gnu.is_here() {
        hushes(Omp::Gnu, "within 8", &BARRIERS.to_string());
    }
}

/// One that was ordered not to spin does not, from its next region on, and does again once that is lifted.
fn waits_and_spins_again(program: &mut Talk, page: &TeamPage, own: &str, lifted: Orders) {
    program.ask("region 0");
    assert_eq!(program.ask("blocktime"), "0");
    program.ask("sizes 3");
    assert_eq!(program.ask("blocktime"), "0");
    order(page, lifted);
    program.ask("region 0");
    assert_eq!(program.ask("blocktime"), own, "lifted by {lifted:?}");
}

#[test]
fn libomp_gets_block_time_0_while_ordered_and_its_own_again() {
    if !Omp::Llvm.is_here() {
        return;
    }
    // What the user set, what libomp makes of it (where threads are not more than CPUs).
    for (user, own) in [(None, "200"), (Some("77"), "77"), (Some("0"), "0")] {
        let page = page(count());
        let mut command = believer(Omp::Llvm, &page);
        command.envs(user.map(|time| ("KMP_BLOCKTIME", time)));
        let mut program = Talk::start(&mut command);
        program.ask("region 0");
        assert_eq!(program.ask("blocktime"), own, "at first");
        for lifted in [count(), Orders::default()] {
            order(&page, quiet());
            assert_eq!(program.ask("blocktime"), own, "not before the next region");
            waits_and_spins_again(&mut program, &page, own, lifted);
        }
        // What the program sets meanwhile stands.
        order(&page, quiet());
        program.ask("region 0");
        program.ask("setblock 33");
        order(&page, Orders::default());
        program.ask("region 0");
        assert_eq!(program.ask("blocktime"), "33");
        program.end();
    }
}

#[test]
fn libomp_that_serves_a_gcc_program_gets_block_time_0_while_ordered_and_its_own_again() {
    if Omp::all().len() < 2 {
        return;
    }
    // Linked for libgomp; libomp, loaded before, answers to its names.
    let preload = format!("{}:{}", library().display(), libomp().display());
    let page = page(count());
    let mut command = command(Omp::Gnu.build("driver.c", &[]), Some(&page));
    let mut program = Talk::start(command.env("LD_PRELOAD", preload).env("KMP_BLOCKTIME", "77"));
    program.ask("region 0");
    let served = only(&page);
    assert!(served.kmp && !served.gomp, "{served:?}");
    assert_eq!(program.ask("blocktime"), "77", "at first");
    for lifted in [count(), Orders::default()] {
        order(&page, quiet());
        waits_and_spins_again(&mut program, &page, "77", lifted);
    }
    program.end();
}

/// The libomp that clang's programs load.
fn libomp() -> PathBuf {
    let loads = Command::new("ldd").arg(Omp::Llvm.build("driver.c", &[])).output().unwrap();
    let loads = String::from_utf8(loads.stdout).unwrap();
    let line = loads.lines().find(|line| line.contains("libomp")).unwrap();
    line.split_whitespace().nth(2).unwrap().into()
}

#[test]
fn libomp_told_to_spin_for_ever_stays_so() {
    if Omp::Llvm.is_here() {
        let page = page(quiet());
        let mut command = command(Omp::Llvm.build("driver.c", &[]), Some(&page));
        let mut program = Talk::start(command.env("OMP_WAIT_POLICY", "active"));
        for orders in [quiet(), Orders::default(), quiet()] {
            order_if_there(&page, orders);
            program.ask("region 0");
            assert_eq!(program.ask("blocktime"), "2147483647", "libomp ignores the call then");
        }
        program.end();
    }
}

fn order_if_there(page: &TeamPage, orders: Orders) {
    for process in page.processes() {
        page.publish(process.slot, orders);
    }
}
