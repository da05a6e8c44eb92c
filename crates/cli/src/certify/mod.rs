//! `corefit certify`: finds out whether a program computes the same when its thread teams
//! change size, and remembers it for exactly that binary, its libraries and its arguments.
//!
//! Two runs at a fixed size show what the program prints and that it prints the same twice.
//! Then it runs with a random size for every parallel region, several times with other seeds. Where such a run differs, some
//! more at the fixed size show whether that comes of the sizes.
//! A program that passes may still hide a dependence that no seed met: more `--runs` find more.

mod follow;
mod trial;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Error, Result, anyhow, bail};
use corefit_core::check::count;
use corefit_linux::launch::Program;
use regex::bytes::Regex;

use crate::verdicts::Store;
use trial::{Seen, Trial};

/// Find out whether a program may be resized while it runs, and remember it
///
/// Exit status 0: certified, or resized anyway, so that there is nothing to remember; 1: not certified; 2: nothing could be
/// concluded, as where there is nothing to resize; 126 or 127: the program cannot be executed, or is not there.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Runs with random team sizes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Largest team [default: the CPUs allowed, at least 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1024))]
    threads: Option<u32>,
    /// Leave out output lines that match (times, rates); may be repeated
    #[arg(long, value_name = "REGEX")]
    ignore: Vec<Regex>,
    /// Judge each run by this shell command instead of comparing output: exit 0 is right. It gets
    /// the output on stdin, the exit code in $COREFIT_EXIT, and runs where the program ran. A
    /// program that dies of a signal is wrong whatever it says
    #[arg(long, value_name = "COMMAND", value_parser = judge)]
    check: Option<String>,
    /// First seed of the random sizes
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// A command for a shell. One that does nothing calls everything right.
fn judge(text: &str) -> Result<String, String> {
    let nothing = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
    if text.lines().all(nothing) {
        return Err("is empty; give a command that exits 0 if the output is right".into());
    }
    Ok(text.to_owned())
}

/// A run with random sizes may take so many times as long as one at a fixed size, and so much more:
/// there are programs that wait for threads that they do not have.
const SLOWER: f64 = 10.0;
const PATIENCE: Duration = Duration::from_secs(10);
/// What to do about output that differs from run to run.
const HINT: &str = "leave such lines out with --ignore REGEX, or judge with --check COMMAND";

/// Why nothing is known of what a program is made of.
fn unseen(first: &Seen, name: &str) -> Error {
    if first.regions > 0 {
        anyhow!(
            "what {name} is made of cannot be read, or not before it ends (then certify it with more work to do)"
        )
    } else if first.children {
        anyhow!(
            "{name} began no OpenMP parallel region, but a program that it started did: certify that one, as it is started there"
        )
    } else {
        anyhow!(
            "{name} began no OpenMP parallel region that corefit could see: there is nothing to resize (is it statically linked, or not an OpenMP program?)"
        )
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let program = Program::find(&args.command[0])?;
    let store = Store::open();
    store.prepare()?;
    let trial = Trial::prepare(args)?;
    let first = trial.run(None, None)?;
    let name = args.command[0].to_string_lossy();
    let Some(identity) = first.identity.clone() else { return Err(unseen(&first, &name)) };
    if first.cut {
        tell!(
            "corefit: what {name} leaves running still holds its output a second after its end: what it prints later is not looked at"
        );
    }
    if let Some(wrong) = trial.wrong(&first, &first)? {
        bail!("the program fails already at a fixed size: {wrong}");
    }
    if args.check.is_none() && trial.compared(&first.output) == 0 {
        bail!("the program prints nothing that could be compared: judge what it does with --check COMMAND");
    }
    let second = trial.run(None, None)?;
    if let Some(differs) = trial.wrong(&first, &second)? {
        bail!(
            "two runs at a fixed size of {} threads differ, so nothing can be concluded: {differs}\n  {HINT}",
            trial.threads
        );
    }
    let mut verdict = trial.verdict(&program.path, &identity, first.requested)?;
    verdict.independent = first.independent(trial.threads) && second.independent(trial.threads);
    let (mut resized, mut dynamic) = (0, false);
    let mut hint = None;
    let limit = PATIENCE + Duration::from_secs_f64(SLOWER * first.wall_s.max(second.wall_s));
    for n in 0..args.runs {
        let seed = args.seed.wrapping_add(n.into());
        let seen = trial.run(Some(seed), Some(limit))?;
        let Some(found) = &seen.identity else { return Err(unseen(&seen, &name)) };
        if *found != identity {
            bail!("the program or its libraries changed between two runs");
        }
        if let Some(wrong) = trial.wrong(&first, &seen)? {
            // One that died, hung or was judged by a command differs in no line.
            let lines = trial.differing(&first, &seen);
            let differs = if lines.is_empty() {
                wrong
            } else {
                hint = Some(format!("if these are times or rates, {HINT}"));
                let line = trial.differs_by_size(&first, lines, limit)?;
                trial.shown(&first, &seen, line)
            };
            verdict.resizable = false;
            verdict.reason = format!("with random team sizes (seed {seed}) {differs}");
            break;
        }
        resized += seen.resized;
        show!("seed {seed}: same result, {} of {} regions resized", seen.resized, seen.regions);
        dynamic |= seen.dynamic;
    }
    if verdict.resizable && resized == 0 {
        bail!(
            "no region was given another size in {}, so nothing was learned: try more --runs, or other seeds with --seed",
            count(args.runs as usize, "run")
        );
    }
    if verdict.resizable && dynamic {
        // The runtime itself then decides how many threads a region gets: sizes were not ours.
        answer!(
            "the same results; the program enables OpenMP dynamic adjustment, so it is resized anyway: nothing to remember"
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    let file = store.save(&verdict)?;
    store.remember(&trial.identifying());
    if verdict.resizable && verdict.independent {
        answer!("its threads hardly ever wait for each other: its teams follow limits, not neighbours")?;
    }
    answer!("{}: {}", if verdict.resizable { "certified" } else { "NOT certified" }, verdict.reason)?;
    if let Some(hint) = hint {
        answer!("{hint}")?;
    }
    answer!(
        "identity {} ({} with {} libraries)",
        &verdict.identity[..16],
        identity.program.display(),
        identity.libraries.len()
    )?;
    answer!("remembered in {}", file.display())?;
    Ok(ExitCode::from(u8::from(!verdict.resizable)))
}
