//! `corefit bench`: the project's own measurements. A number that is promised has a bench here that makes it, but for those of
//! whole VMs (`make manage-vms`) and of simulated ones (`corefit reproduce`).

pub(crate) mod arena;
mod explain;
mod helper;
pub(crate) mod job;
mod lock;
mod manage;
mod measured;
mod model;
pub(crate) mod others;
mod overcommit;
mod place;
mod predict;
mod scale;
mod shape;
mod sim;
mod vms;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use serde::Serialize;

/// Measure on this machine what corefit promises
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    name: Name,
}

#[derive(Subcommand)]
enum Name {
    Overcommit(Box<overcommit::Args>),
    Explain(explain::Args),
    Sim(sim::Args),
    Model(model::Args),
    Scale(scale::Args),
    Lock(lock::Args),
    Predict(predict::Args),
    Manage(manage::Args),
    Place(place::Args),
    Shape(shape::Args),
    #[command(hide = true)]
    Enter(helper::EnterArgs),
    #[command(hide = true)]
    Busy(helper::BusyArgs),
    #[command(hide = true)]
    Sleepers(helper::SleepersArgs),
    #[command(hide = true)]
    Steps(manage::StepsArgs),
}

/// Prints what was measured, as JSON or as text.
pub(crate) fn print<D: Serialize>(json: bool, document: &D, text: impl FnOnce(&D) -> String) -> Result<()> {
    let text = if json { serde_json::to_string_pretty(document)? } else { text(document) };
    answer!("{}", text.trim_end())
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.name {
        Name::Overcommit(args) => overcommit::run(args),
        Name::Explain(args) => explain::run(args),
        Name::Sim(args) => sim::run(args),
        Name::Model(args) => model::run(args),
        Name::Scale(args) => scale::run(args),
        Name::Lock(args) => lock::run(args),
        Name::Predict(args) => predict::run(args),
        Name::Manage(args) => manage::run(args),
        Name::Place(args) => place::run(args),
        Name::Shape(args) => shape::run(args),
        Name::Enter(args) => helper::enter(args),
        Name::Busy(args) => helper::busy(args),
        Name::Sleepers(args) => helper::sleepers(args),
        Name::Steps(args) => manage::steps(args),
    }
}
