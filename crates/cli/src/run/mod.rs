//! `corefit run`: a program at the number of CPUs that it really gets.

mod follow;
mod grants;
mod history;
mod report;

use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use corefit_linux::page::TeamPage;
use corefit_linux::sample;

use crate::verdicts::Store;
use follow::{Follower, Limits};
use grants::{Grants, Resize};
use report::{OpenMp, Report, round};

/// Run a program at the number of CPUs it really gets, following them
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Threads: `auto` (the CPUs available, followed), a number (at most so many), `max` (as without corefit, followed)
    #[arg(long, default_value = "auto")]
    threads: String,
    /// Which programs may be resized while they run
    #[arg(long, value_enum, default_value = "safe")]
    resize: Resize,
    /// Write a JSON report to this file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// No status line and no report on stderr
    #[arg(long)]
    quiet: bool,
    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let allowed = sample::affinity(std::process::id()).context("affinity")?;
    let most = u32::try_from(allowed.len())?;
    let grants = Grants::new(args.resize, Store::open());
    let (grant, ask) = grants.at_first();
    let page = TeamPage::create(grant.orders(None, false), ask, None, 1)?;
    let library = std::env::current_exe()?.with_file_name("libcorefit_omp.so");
    let (name, value) = page.variable();
    let start = Instant::now();
    let mut child = Command::new(&args.command[0])
        .args(&args.command[1..])
        .env(
            "LD_PRELOAD",
            match std::env::var("LD_PRELOAD") {
                Ok(p) => format!("{}:{p}", library.display()),
                Err(_) => library.display().to_string(),
            },
        )
        .env(name, value)
        .env("OMP_NUM_THREADS", most.to_string())
        .spawn()?;
    let status = std::thread::scope(|scope| {
        scope.spawn(|| grants.serve(&page));
        let mut f = Follower::new(child.id(), most, most, Some(&page), &grants);
        let status = loop {
            std::thread::sleep(Duration::from_millis(50));
            let d = f.tick(Limits::default());
            if follow::changed(d.why) {
                eprintln!("{:.2} {:?}", start.elapsed().as_secs_f64(), d);
            }
            if let Some(s) = child.try_wait().unwrap() {
                break s;
            }
        };
        let wall = start.elapsed();
        grants.stop();
        for p in page.processes() {
            eprintln!("{p:?}");
        }
        eprintln!(
            "wall {wall:?} avail {:?} eff {:?}",
            f.history.mean_available(),
            f.history.efficiency()
        );
        status
    });
    let _ = (
        round,
        OpenMp {
            pid: 0,
            runtime: "",
            grant,
            dynamic: false,
            regions: 0,
            resized: 0,
            requested: 0,
        },
    );
    Ok(ExitCode::from(status.code().unwrap_or(1) as u8))
}
