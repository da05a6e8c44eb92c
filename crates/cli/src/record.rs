//! `corefit record`: what a machine shows, into a file that any verb can play.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use corefit_core::machine::MachineError;

use crate::durations::duration;
use crate::explain::Away;
use crate::interrupt::Interrupt;
use crate::machine::MachineArg;
use crate::recording::{Names, Recorder};

/// Record what a host shows, to look at it later or elsewhere
///
/// Writes everything that `corefit explain` reads. Play it with `--machine replay:FILE`. Ctrl-C ends a
/// recording early, at the next look.
#[derive(clap::Args)]
pub(crate) struct RecordArgs {
    /// A new file
    file: PathBuf,
    /// For how long [default: until Ctrl-C]
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    time: Option<Duration>,
    /// Time between two looks
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    interval: Duration,
    /// Replace the names of VMs, groups, ids and paths: vm1, group1
    #[arg(long)]
    anonymise: bool,
    #[command(flatten)]
    machine: MachineArg,
}

/// Runs the verb.
pub(crate) fn run(args: &RecordArgs) -> Result<ExitCode> {
    if args.file.as_os_str() == "-" {
        bail!("-: a recording goes into a file, not to stdout; give a name (./- if that is the name)");
    }
    let interrupt = Interrupt::install().context("catching Ctrl-C")?;
    let mut machine = args.machine.open()?;
    let mut names = args.anonymise.then(Names::default);
    let mut look = |machine: &mut dyn corefit_core::machine::Machine| {
        let mut snapshot = machine.observe()?;
        if let Some(names) = &mut names {
            names.replace(&mut snapshot);
        }
        Ok::<_, MachineError>(Some(snapshot))
    };
    // Before there is a file: a machine that cannot be looked at leaves none.
    let first = look(&mut *machine)?.context("looking at the machine")?;
    let name = if args.anonymise { "a host without names".into() } else { machine.name() };
    let mut recorder = Recorder::create(&args.file, &name)?;
    recorder.add(&first)?;
    let mut last = first.at;
    let mut broken = None;
    let mut away = Away::default();
    let mut missed = Duration::ZERO;
    // How long to the next look: no longer than is left.
    let wait = |last: corefit_core::Time, missed: Duration| match args.time {
        None => Some(args.interval),
        Some(time) => {
            let left = time.saturating_sub(last.since(first.at) + missed);
            (!left.is_zero()).then(|| left.min(args.interval))
        }
    };
    while let Some(interval) = wait(last, missed) {
        let next = match machine.pass(interval) {
            Ok(true) => look(&mut *machine).or_else(|error| away.tolerate(error).map(|()| None)),
            Ok(false) => break,
            Err(error) => Err(error),
        };
        match next {
            Ok(Some(next)) => {
                recorder.add(&next)?;
                last = next.at;
                away = Away::default();
                missed = Duration::ZERO;
            }
            Ok(None) => missed += interval,
            Err(error) => {
                broken = Some(anyhow::Error::from(error));
                break;
            }
        }
        if interrupt.check().is_err() {
            break;
        }
    }
    let snapshots = recorder.finish()?;
    let file = args.file.display();
    // In hundredths, without zeros at the end.
    let seconds = (last.since(first.at).as_secs_f64() * 100.0).round() / 100.0;
    answer!("{file}: {snapshots} snapshots over {seconds} s; see `corefit explain --machine replay:{file}`")?;
    match broken {
        Some(error) => Err(error.context("the recording ends early")),
        None => Ok(ExitCode::SUCCESS),
    }
}
