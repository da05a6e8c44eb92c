//! What the preload library costs each OpenMP parallel region, in ns.
//!
//! usage: `cargo build --release && cargo run --release -p corefit-linux --example region_cost [ROUNDS]`
//! on an otherwise idle machine (15 rounds take 40 s). Compiles `region_cost.c` with gcc
//! (libgomp) and clang (libomp), and runs the cases of one line in turn, so that drift of the
//! machine meets all alike. Each run gives the best of 40 batches; printed are the median over
//! the rounds, and the medians of the differences to the run without the library in the same
//! round, with their quartiles.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use corefit_linux::page::{Orders, TeamPage};

/// What a program is run with.
struct Case {
    name: &'static str,
    preload: bool,
    orders: Option<Orders>,
    /// The orders are lifted once the program has its first region.
    lifted: bool,
    /// With OpenMP dynamic adjustment.
    dynamic: bool,
}

fn cases(threads: u16) -> [Case; 8] {
    let case = |name, orders| Case { name, preload: true, orders, lifted: false, dynamic: false };
    let count = Orders { count: true, ..Orders::default() };
    let team = Orders { team: Some(threads), any: true, ..Orders::default() };
    let quiet = Orders { quiet: true, ..count };
    [
        Case { preload: false, ..case("no library", None) },
        case("library, no corefit", None),
        case("nothing short", Some(Orders::default())),
        case("regions counted", Some(count)),
        case("team ordered", Some(team)),
        Case { lifted: true, ..case("was short", Some(quiet)) },
        Case { preload: false, dynamic: true, ..case("no library, dynamic", None) },
        Case { dynamic: true, ..case("team ordered, dynamic", Some(team)) },
    ]
}

fn main() {
    let rounds: usize = std::env::args().nth(1).map_or(15, |n| n.parse().expect("ROUNDS is a number"));
    // TARGET/PROFILE/examples/THIS
    let exe = std::env::current_exe().expect("own path");
    let profile = exe.parent().and_then(Path::parent).expect("a target directory");
    let library = profile.join("libcorefit_omp.so");
    assert!(library.is_file(), "{} is missing: cargo build --release", library.display());
    println!("ns per region, median of {rounds} rounds   |   more than without library: median (quartiles)");
    for compiler in ["gcc", "clang"] {
        let Some(program) = compile(compiler, &profile.join("examples")) else {
            println!("{compiler}: skipped, it cannot compile OpenMP programs here");
            continue;
        };
        for threads in [1, 2] {
            let mut seen: [Vec<f64>; 8] = Default::default();
            for _ in 0..rounds {
                for (case, seen) in cases(threads).iter().zip(&mut seen) {
                    seen.push(run(&program, threads, case, &library));
                }
            }
            println!("{compiler}, threads: {threads}");
            let bare = seen[0].clone();
            for (case, mut seen) in cases(threads).iter().zip(seen) {
                let mut more: Vec<f64> =
                    seen.iter().zip(&bare).map(|(with, without)| with - without).collect();
                println!(
                    "  {:22} {:8.1}   {:+7.1} ({:+.1} to {:+.1})",
                    case.name,
                    quantile(&mut seen, 0.5),
                    quantile(&mut more, 0.5),
                    quantile(&mut more, 0.25),
                    quantile(&mut more, 0.75),
                );
            }
        }
    }
}

fn compile(compiler: &str, into: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/region_cost.c");
    let program = into.join(format!("region_cost_{compiler}"));
    let ended = Command::new(compiler).args(["-O2", "-fopenmp", "-o"]).args([&program, &source]).status();
    ended.is_ok_and(|status| status.success()).then_some(program)
}

/// One run; ns per region.
fn run(program: &Path, threads: u16, case: &Case, library: &Path) -> f64 {
    let mut command = Command::new(program);
    command.arg(if threads == 1 { "20000" } else { "2000" });
    command.env("OMP_NUM_THREADS", threads.to_string()).env_remove("OMP_WAIT_POLICY");
    command.env("OMP_DYNAMIC", case.dynamic.to_string());
    // The length of the environment moves the stack, which alone is worth some ns: equal for all.
    command.env(if case.preload { "LD_PRELOAD" } else { "NO_PRELOAD" }, library);
    let orders = case.orders.unwrap_or_default();
    let page = TeamPage::create(orders, false, None, 1).expect("a shared page");
    let (name, value) = page.variable();
    command.env(if case.orders.is_some() { name } else { "COREFIT_NONE" }, value);
    let child = command.stdout(Stdio::piped()).spawn().expect("the program runs");
    while case.lifted && page.processes().is_empty() {
        std::thread::yield_now();
    }
    if case.lifted {
        page.publish(0, Orders::default());
    }
    let output = child.wait_with_output().expect("the program runs");
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().unwrap_or_else(|_| panic!("{}: {text}", output.status))
}

/// The value below which this part of the values lies.
fn quantile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small")]
    let at = ((values.len() - 1) as f64 * part).round() as usize;
    values[at]
}
