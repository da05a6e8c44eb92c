//! The hidden subcommands with which a bench starts processes: `enter` joins control groups and
//! becomes another program, `busy` uses one CPU, `sleepers` hardly any. All die with the bench.

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use corefit_core::CpuSet;
use corefit_linux::sample;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal, setsid};

/// Joins control groups and becomes the command.
#[derive(clap::Args)]
pub(super) struct EnterArgs {
    /// The bench: nothing is done when it has ended meanwhile
    #[arg(long)]
    parent: i32,
    /// Directory of a control group to join; may be repeated
    #[arg(long)]
    group: Vec<PathBuf>,
    /// The CPUs to run on
    #[arg(long)]
    cpus: Option<CpuSet>,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Uses one CPU until the bench ends.
#[derive(clap::Args)]
pub(super) struct BusyArgs {
    /// The bench
    #[arg(long)]
    parent: i32,
    /// Directory of a control group to join; may be repeated
    #[arg(long)]
    group: Vec<PathBuf>,
}

/// Threads that wake up ten times a second, until the bench ends.
#[derive(clap::Args)]
pub(super) struct SleepersArgs {
    #[command(flatten)]
    busy: BusyArgs,
    /// How many
    #[arg(long)]
    threads: usize,
}

pub(super) fn enter(args: &EnterArgs) -> Result<ExitCode> {
    settle(args.parent, &args.group)?;
    if let Some(cpus) = &args.cpus {
        sample::set_affinity(std::process::id(), cpus);
    }
    // Its own session: no terminal, and what is sent to its process group does not reach us.
    setsid().context("setsid")?;
    // The death signal stays with this process when it becomes the program.
    let why = Command::new(&args.command[0]).args(&args.command[1..]).exec();
    Err(why).with_context(|| format!("cannot run {}", args.command[0].to_string_lossy()))
}

pub(super) fn busy(args: &BusyArgs) -> Result<ExitCode> {
    settle(args.parent, &args.group)?;
    println!("busy"); // the bench waits for this line
    let mut n = 0_u64;
    loop {
        n = std::hint::black_box(n.wrapping_add(1));
    }
}

pub(super) fn sleepers(args: &SleepersArgs) -> Result<ExitCode> {
    settle(args.busy.parent, &args.busy.group)?;
    let sleep = || {
        loop {
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    for _ in 1..args.threads {
        std::thread::Builder::new().stack_size(64 << 10).spawn(sleep).context("no thread")?;
    }
    println!("busy"); // as above
    sleep()
}

/// Makes this process die with the bench, and joins its groups.
fn settle(parent: i32, groups: &[PathBuf]) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("death signal")?;
    if getppid().map(Pid::as_raw_nonzero).map(i32::from) != Some(parent) {
        bail!("the bench has ended");
    }
    for group in groups {
        // "0" is the writing process itself, in cgroup v1 and v2.
        fs::write(group.join("cgroup.procs"), "0")
            .with_context(|| format!("cannot join the control group {}", group.display()))?;
    }
    Ok(())
}
