//! The `corefit` command: keeps parallel programs fast when they get fewer CPUs than they
//! think they have.

#[macro_use]
mod tell;
mod text_file;

mod alike;
mod bar;
mod bench;
mod certify;
mod chart;
mod check;
mod cpus;
mod durations;
mod explain;
mod follows;
mod inputs;
mod interrupt;
mod lines;
mod machine;
mod manage;
mod named;
mod output;
mod parallel;
mod picture;
mod plan;
mod preload;
mod printable;
mod profile;
mod record;
mod recording;
mod reproduce;
mod ruled;
mod run;
mod sim;
mod stats;
mod stdin;
mod table;
mod topology;
mod verdicts;
mod versioned;

use std::io::{ErrorKind, Write as _};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use corefit_linux::launch::{FindError, LaunchError};
use interrupt::Interrupted;
use manage::Passing;

#[derive(Parser)]
#[command(version, about, max_term_width = 100)]
struct Corefit {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Run(run::Args),
    Certify(certify::Args),
    Cpus(cpus::CpusArgs),
    Profile(profile::Args),
    Explain(explain::ExplainArgs),
    Check(check::CheckArgs),
    Topology(topology::TopologyArgs),
    Plan(plan::PlanArgs),
    Manage(manage::ManageArgs),
    Status(manage::StatusArgs),
    Restore(manage::RestoreArgs),
    Record(record::RecordArgs),
    Sim(sim::Args),
    Reproduce(reproduce::Args),
    Bench(bench::Args),
}

fn main() -> ExitCode {
    let result = match Corefit::try_parse().unwrap_or_else(|said| told(&said)).verb {
        Verb::Run(args) => run::run(&args),
        Verb::Certify(args) => certify::run(&args),
        Verb::Cpus(args) => cpus::run(&args),
        Verb::Profile(args) => profile::run(&args),
        Verb::Explain(args) => explain::run(&args),
        Verb::Check(args) => check::run(&args),
        Verb::Topology(args) => topology::run(&args),
        Verb::Plan(args) => plan::run(&args),
        Verb::Manage(args) => manage::run(&args),
        Verb::Status(args) => manage::status(&args),
        Verb::Restore(args) => manage::restore(&args),
        Verb::Record(args) => record::run(&args),
        Verb::Sim(args) => sim::run(&args),
        Verb::Reproduce(args) => reproduce::run(&args),
        Verb::Bench(args) => bench::run(&args),
    };
    let code = result.unwrap_or_else(|error| {
        let lines: Vec<String> = format!("{error:#}").lines().map(printable::text).collect();
        tell!("corefit: {}", lines.join("\n"));
        status(&error)
    });
    corefit_linux::libvirt::end();
    code
}

/// Ends with what clap has to say: an error, or the help or the version, which are answers and may not be lost.
fn told(said: &clap::Error) -> ! {
    let printed = said.print().and_then(|()| std::io::stdout().flush());
    match printed {
        Err(error) if !said.use_stderr() && error.kind() != ErrorKind::BrokenPipe => {
            tell!("corefit: writing to stdout: {error}");
            std::process::exit(2)
        }
        _ => std::process::exit(said.exit_code()),
    }
}

/// As a shell ends: 126 or 127 if there is no such program, 128 and its number after a signal; 1 if it may pass by itself; else 2.
fn status(error: &anyhow::Error) -> ExitCode {
    let unfound = error.downcast_ref::<FindError>().map(FindError::exit_code);
    let unstarted = error.downcast_ref::<LaunchError>().map(LaunchError::exit_code);
    let interrupted = error.downcast_ref::<Interrupted>().map(Interrupted::exit_code);
    let passing = error.downcast_ref::<Passing>().map(|_| 1);
    ExitCode::from(unfound.or(unstarted).or(interrupted).or(passing).unwrap_or(2))
}
