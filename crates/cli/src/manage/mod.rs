//! `corefit manage`: the daemon that applies what the controllers decide, and always undoes it.
//!
//! ```text
//! machine ──observe──▶ Controller ──Plan──▶ Keeper ──▶ machine
//!    ▲                     ▲                  │ Outcomes, journal
//!    └──── interval ◀── Daemon ◀─ signals     └──▶ status socket, metrics, log
//! ```

mod alone;
mod boot;
mod config;
mod daemon;
mod failpoint;
#[cfg(test)]
mod faults;
mod held;
pub(crate) mod journal;
pub(crate) mod keeper;
mod keys;
mod log;
mod metrics;
mod own;
mod present;
mod restore;
mod settle;
mod status;
mod systemd;
mod telling;
pub(crate) mod yields;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use corefit_core::decide::Policy;
use corefit_core::machine::Act;
use rustix::process::Signal;
use signal_hook::consts::{SIGALRM, SIGIO, SIGPROF, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU, SIGXFSZ};

use crate::durations::duration;
use crate::machine::MachineArg;
use alone::Alone;
pub(crate) use boot::Boot;
pub(crate) use config::{Config, STATE};
pub(crate) use daemon::try_none;
use daemon::{Daemon, Signals};
pub(crate) use held::Held;
pub(crate) use journal::Journal;
pub(crate) use keeper::Keeper;
pub(crate) use restore::{RestoreArgs, run as restore};
pub(crate) use status::{Status, StatusArgs, VmStatus, left, run as status, works_on};
pub(crate) use telling::Telling;

/// An error that may pass by itself, as another that is at work does: exit status 1, after which systemd starts it again.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Passing(String);

/// Keep each VM at what it can use: the daemon
///
/// Looks at a host again and again, decides, and with --apply, or `apply = true` in the configuration, changes, as far as
/// that wants it: vCPUs online, weights, limits, timeslices, pins, and what guests are told. Without, or with --no-apply, it
/// only says what it would change. Everything is put back at its end, after an error, and by the next start after a kill -9; what somebody
/// else changed meanwhile stands. SIGHUP reads the configuration again. On a simulated host without --config the `[policy]` of
/// its scenario counts; it runs at full speed, and without --for until a signal. Where no host is changed, it also ends once
/// nobody is left to read its log, which is on stderr (`2>&1 | head`).
#[derive(clap::Args, Default)]
pub(crate) struct ManageArgs {
    /// A file in TOML: see docs/operating.md
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Change settings, instead of only saying what would be changed; as `apply = true` in the configuration
    #[arg(long)]
    apply: bool,
    /// Only say what would be changed, whatever the configuration says of `apply`: its dry run. It has no metrics then
    #[arg(long, conflicts_with = "apply")]
    no_apply: bool,
    /// The directory of the journal and the status socket [default: that of the configuration, else /var/lib/corefit]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Ends by itself after so long (of simulated time on a simulated machine)
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    time: Option<Duration>,
    /// Which machine: as for `explain`, but one that can be changed; host: libvirt if it answers, VMs or not, else control groups
    /// [default: that of the configuration, else host]
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,
}

/// Runs the daemon.
pub(crate) fn run(args: &ManageArgs) -> Result<ExitCode> {
    let config = args.read()?;
    let _flushed = log::Flushed;
    // Signals are caught before anything is changed.
    let signals = Signals::catch().and_then(|signals| others_do_nothing().map(|()| signals));
    let signals = signals.context("catching signals")?;
    let name = config.machine.clone().unwrap_or_else(|| "host".into());
    let machine = MachineArg::named(&name);
    let live = machine.clock().is_some();
    let machine = if name == "host" { settle::settled(&config)? } else { machine };
    let name = machine.name().to_owned();
    // An option has no place in a file.
    let opened = machine.open_to_act();
    let mut machine = match &args.machine {
        Some(_) => opened?,
        None => opened.map_err(|error| config.not_opened(args.config.as_deref(), error))?,
    };
    fits(&config, args.config.as_deref(), &mut *machine)?;
    let journal = config.apply.then(|| Journal::open(&config.state, &name, &Boot::now(live)?)).transpose();
    let journal = match &args.state {
        Some(_) => journal?,
        None => journal.map_err(|error| config.of_key(args.config.as_deref(), "state", error))?,
    };
    let keeper = journal.map(|journal| Keeper::new(journal, budget(&config.policy)));
    let _alone = (config.apply && live).then(|| Alone::with(&machine.realm(), &config.state)).transpose()?;
    let mut daemon = Daemon::new(args, config, machine, keeper, live).serving();
    daemon.run(&signals)
}

impl ManageArgs {
    /// The configuration, with what the command line says instead.
    fn read(&self) -> Result<Config> {
        self.over(Config::read(self.config.as_deref())?)
    }

    /// The same while the daemon is at work.
    fn read_again(&self) -> Result<Config> {
        self.over(Config::read_again(self.config.as_deref())?)
    }

    fn over(&self, mut config: Config) -> Result<Config> {
        if let Some(machine) = &config.machine {
            let machine = MachineArg::named(machine);
            // Where an option counts more it may be one that `corefit plan` looks at with this file.
            let can = if self.machine.is_some() { machine.can_be() } else { machine.can_act() };
            can.map_err(|error| config.not_opened(self.config.as_deref(), error))?;
        }
        config.apply = (config.apply || self.apply) && !self.no_apply;
        config.machine = self.machine.clone().or(config.machine);
        config.state = config::absolute(self.state.clone().unwrap_or(config.state))?;
        let machine = MachineArg::named(config.machine.as_deref().unwrap_or("host"));
        config.or_scenario(self.config.as_deref(), &machine)
    }
}

/// Signals that mean nothing here would end the process with everything changed. A handler, as what is ignored would be ignored by
/// programs that are started, too.
fn others_do_nothing() -> std::io::Result<()> {
    let rare = [Signal::POWER, Signal::STKFLT].map(Signal::as_raw);
    for signal in
        [SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGXFSZ, SIGXCPU].into_iter().chain(rare)
    {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    Ok(())
}

/// Whether a configuration is one for a machine, if the machine can be looked at now; else the first look tells.
fn fits(config: &Config, file: Option<&Path>, machine: &mut dyn Act) -> Result<()> {
    if config.policy.reserved.is_empty() {
        return Ok(());
    }
    let Ok(snapshot) = machine.observe() else { return Ok(()) };
    let (pcpus, offline) = snapshot.pcpu_sets();
    config.fits(file, (&pcpus, &offline))
}

/// How long changes of one step may take.
fn budget(policy: &Policy) -> Duration {
    policy.interval().max(Duration::from_secs(2))
}

/// Steps of a daemon that nobody asks, once a second of the machine's time, as `corefit bench manage` measures them: how long each took, and
/// what is shown in the end. What is changed stays so.
pub(crate) fn steps(
    machine: Box<dyn Act>,
    policy: Policy,
    state: &Path,
    steps: usize,
) -> Result<(Vec<Duration>, Status)> {
    let args = ManageArgs { apply: true, ..ManageArgs::default() };
    let keeper = Keeper::new(Journal::open(state, "bench", &Boot::named("bench"))?, Duration::from_secs(60));
    let mut config = Config::default();
    config.policy = policy;
    let mut daemon = Daemon::new(&args, config, machine, Some(keeper), true);
    let took = (0..steps).map(|_| daemon.timed()).collect::<Result<_>>()?;
    log::flush();
    Ok((took, daemon.shown()))
}
