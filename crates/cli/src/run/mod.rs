//! `corefit run`: a program at the number of CPUs that it really gets.
//!
//! ```text
//!   look at the limits ─▶ choose sizes ─▶ launch ─▶ every interval: sample, decide, publish
//!                              ▲                        │
//!                              └── restart, if allowed ◀┤
//!                                                       ▼ the program ends
//!                                            report, and end as it ended
//! ```

mod follow;
mod glance;
mod grants;
mod history;
mod launch;
mod locks;
mod notes;
mod outer;
mod outside;
mod pace;
mod placer;
mod report;
mod restart;
mod rotate;
mod size;
mod status;
mod work;

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use corefit_linux::launch::{Event, LaunchError, Program, Supervised, end_like, files_may_be_refused};

use follow::Follower;
use grants::{Grants, Resize};
use launch::Plan;
use locks::Locks;
use notes::Notes;
use pace::{LOOK_AT_LIMITS, Loss, Pace};
use report::Report;
use restart::Restarts;
use rotate::Rotation;
use size::{Threads, Watcher};
use status::Status;

use crate::durations::within;
use crate::output::Output;
use crate::verdicts::Store;
use crate::versioned::json;
use crate::{lines, tell};

/// Run a program at the number of CPUs it really gets, following them while it runs
///
/// Ends as the program ended (a shell shows 128 and the number of a signal), or with exit status 126 if it cannot be executed, 127
/// if it is not there, and 2 if it ended with 0 and the report asked for could not be written.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// auto: the CPUs available, followed; a number: so many at launch (at most, where teams may be
    /// resized), and never more where they may; max: as many as without corefit at launch, then followed
    #[arg(long, default_value = "auto", value_name = "auto|N|max", value_parser = size::threads_parser(), allow_negative_numbers = true)]
    threads: Threads,
    /// Which programs may be resized while they run
    #[arg(long, value_enum, default_value = "safe")]
    resize: Resize,
    /// Time between two looks at the program, 5ms to 10s; more where looking would take over a hundredth of a CPU, or the program can lose little
    #[arg(long, default_value = "50ms", value_parser = interval)]
    interval: Duration,
    /// Keep the threads off the siblings of one core while other cores are free; not with --rotate
    #[arg(long)]
    place: bool,
    /// In a VM: move sequential work over all CPUs, each once within this time, 5ms to 10s (24ms without a value), so
    /// that no vCPU uses its timeslice up while others leave theirs; never threads that are bound. OpenMP's waiting
    /// sleeps then, unless you say how to wait
    #[arg(long, value_name = "PERIOD", num_args = 0..=1, require_equals = true, default_missing_value = "24ms",
        value_parser = interval, conflicts_with = "place")]
    rotate: Option<Duration>,
    /// Put corefit's fair lock in the place of the C library's mutexes and spinlocks; with --report it
    /// counts what they do
    #[arg(long)]
    lock: bool,
    /// The program may be started again early in its run, if it may not be resized and was launched
    /// with the wrong number of threads; not where stdin is a pipe, which cannot be read again
    #[arg(long)]
    restartable: bool,
    /// Write a JSON report to this file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Neither status line nor report on stderr
    #[arg(long)]
    quiet: bool,
    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// `50ms`, `1s`, `0.2s`.
fn interval(text: &str) -> Result<Duration, String> {
    within(text, Duration::from_millis(5)..=Duration::from_secs(10))
        .ok_or_else(|| "a time from 5ms to 10s is needed, like 50ms or 0.1s".into())
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    files_may_be_refused();
    let program = Program::find(&args.command[0])?;
    let mut notes = Notes::new(args.quiet);
    let report_file = args.report.as_ref().and_then(|path| {
        let file = Output::open(path);
        file.map_err(|why| notes.warn(format!("{why:#}: the program runs without a report"))).ok()
    });
    let grants = Grants::new(args.resize, Store::open());
    grants.set_counts(work::is_wanted());
    let rotation = args.rotate.and_then(|period| Rotation::make(period, &mut notes));
    grants.set_rotates(rotation.is_some());
    let mut plan = Plan::make(args, &program, &grants, &mut notes);
    if let (Some(page), Some(rotation)) = (&plan.page, &rotation) {
        page.set_turn(rotation.turn());
    }
    // What the program has read by the time that we look is no longer there.
    let mut restarts = Restarts::new(args.restartable);
    let start = Instant::now();
    let mut child = match Supervised::spawn(&plan.launch) {
        Ok(child) => child,
        Err(LaunchError::Interrupted(signal)) => end_like(ExitStatus::from_raw(signal)),
        Err(why) => return Err(why.into()),
    };
    if let Some(why) = plan.not_entered.take() {
        notes.tell(why);
    }
    // From here on only the program's end ends us; other threads may start now.
    if args.restartable && restarts.without_stdin() {
        notes.keep("stdin is a pipe, so what was read of it could not be read again: no restart".into());
    }
    let page = plan.page.clone();
    let (status, mut report) = std::thread::scope(|scope| {
        if let Some(page) = &page {
            // Without this thread (`ulimit -u`), programs go by the orders that the page begins with.
            let _ = thread().spawn_scoped(scope, || grants.serve(page));
        }
        let result = supervise(args, &mut child, &mut plan, &grants, &mut restarts, rotation.as_ref());
        if let Some(page) = &page {
            grants.stop(page);
        }
        result
    })?;
    report.wall_s = report::round(start.elapsed().as_secs_f64());
    report.used(child.usage().map_or(0.0, |u| (u.user + u.system).as_secs_f64()));
    report.rotated = rotation.as_ref().map(|rotation| rotation.done(&report.processes));
    report.lock = plan.locks.as_ref().map(Locks::report);
    report.exit_code = status.code();
    report.exit_signal = status.signal();
    for note in std::mem::take(&mut report.notes_at_end) {
        notes.keep(note);
    }
    (report.notes, report.notes_at_end) = notes.done();
    if !args.quiet {
        // Nobody may be left to read it, which is no reason to fail.
        let mut stderr = std::io::stderr();
        let text = report.text(lines::width_of(&stderr, lines::LEAST));
        let _ = std::io::Write::write_all(&mut stderr, text.as_bytes());
    }
    let lost = match report_file {
        None => args.report.is_some(),
        Some(file) => !tell::written(json(&report, false).and_then(|text| file.write(text.as_bytes()))),
    };
    drop((plan, page)); // whoever outlives the program gets no orders any more
    child.finish(tell::ended(status, lost))
}

/// A thread that need not start.
fn thread() -> std::thread::Builder {
    std::thread::Builder::new()
}

/// Follows the program until it ends, through restarts.
fn supervise(
    args: &Args,
    child: &mut Supervised,
    plan: &mut Plan,
    grants: &Grants,
    restarts: &mut Restarts,
    rotation: Option<&Rotation>,
) -> Result<(ExitStatus, Report)> {
    loop {
        let (pid, ends, page) = (child.pid(), AtomicBool::new(false), plan.page.clone());
        let ended = std::thread::scope(|scope| {
            let rotating = rotation.and_then(|rotation| {
                thread().spawn_scoped(scope, || rotation.follow(pid, page.as_deref(), &ends)).ok()
            });
            let _end = rotating.map(|rotating| rotate::End(&ends, rotating.thread().clone()));
            watch(args, child, plan, grants, restarts)
        })?;
        match ended {
            (Some(status), report) => return Ok((status, report)),
            (None, report) => {
                if let Some(status) = restarts.restart(child, plan, grants)? {
                    return Ok((status, report));
                }
            }
        }
    }
}

/// Follows one launch of the program; how it ended, unless it is to be started again.
fn watch(
    args: &Args,
    child: &mut Supervised,
    plan: &mut Plan,
    grants: &Grants,
    restarts: &mut Restarts,
) -> Result<(Option<ExitStatus>, Report)> {
    let mut status_line = Status::new(args.quiet);
    // Where the program's affinity is ours to set, or its OpenMP runtime's, what is allowed shows in corefit's.
    let moved = plan.cores.is_some()
        || args.rotate.is_some()
        || rotate::bound(|name| std::env::var_os(name)).is_some();
    let allowed_of = if moved { std::process::id() } else { child.pid() };
    let mut watcher = Watcher::new(child.pid(), allowed_of, plan.room.limits, &plan.quotas);
    let mut limits = plan.room.limits;
    let mut looked = Instant::now();
    let mut pending = plan.pending.take();
    let mut follower = Follower::new(child.pid(), allowed_of, plan, grants);
    let mut pace = Pace::new(args.interval);
    let first = pending.as_ref().map(|p| p.due.saturating_duration_since(looked).min(args.interval));
    // Threads that never wait for each other find their places best if nobody else runs beside them.
    let mut next = looked + first.unwrap_or_else(|| pace.first(plan.independent));
    let mut changed = false;
    let ended = loop {
        // A single thread cannot be too many, and the others are looked at often enough.
        let until = if plan.independent { pace.glance(next) } else { next };
        match child.wait_until(until).context("lost the program")? {
            Event::Exited(status) => break Some(status),
            Event::Stopped(_) => status_line.clear(),
            Event::Continued => follower.skip(),
            Event::Undelivered { signal, why } => {
                tell!("corefit: signal {signal} could not be passed on: {why}");
            }
            Event::Tick => {
                changed |= watcher.changed();
                if !changed && Instant::now() < next {
                    continue;
                }
                if let Some(pending) = pending.as_mut().filter(|p| !p.begun()) {
                    let left = pending.begin();
                    // Not an interval later than need be.
                    next = Instant::now() + if left < 2 * args.interval { left } else { args.interval };
                    continue;
                }
                if let Some(known) = pending.take_if(|p| p.due <= Instant::now()) {
                    if let Some(room) = known.room() {
                        limits = room.limits;
                        follower.settle(plan.sizes_in(&room).0);
                    }
                } else if changed || looked.elapsed() + args.interval / 2 >= LOOK_AT_LIMITS {
                    (looked, changed) = (Instant::now(), false);
                    limits = watcher.limits(follower.allowed());
                }
                let decision = follower.tick(limits);
                status_line.refresh(&follower);
                if child.asked_to_end().is_none() && restarts.wanted(&follower, &decision) {
                    break None;
                }
                let known = follower.knows_all();
                let loss = if plan.independent && known {
                    Loss::Nothing
                } else if decision.team == 1 && known || follower.nobody_listens() {
                    Loss::Little
                } else {
                    Loss::Much
                };
                next = pace.next(next, loss);
            }
        }
    };
    status_line.clear();
    let mut report = follower.report(plan);
    if ended.is_some() {
        report.notes_at_end.extend(follower.left_behind());
    }
    report.command = args.command.iter().map(|a| a.to_string_lossy().into_owned()).collect();
    report.restarts = restarts.done();
    Ok((ended, report))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_a_unit_and_sane_bounds() {
        assert_eq!(interval("50ms"), Ok(Duration::from_millis(50)));
        assert_eq!(interval("0.2s"), Ok(Duration::from_millis(200)));
        for bad in ["50", "0ms", "1ms", "11s", "ms", "-1s", "NaNs", "infs", ""] {
            assert!(interval(bad).is_err(), "{bad}");
        }
    }
}
