//! One run of a command: its wall-clock time as whoever started it sees it, its output, and
//! an end with force when it takes too long.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use corefit_linux::launch;
use corefit_linux::threads::ended_children;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::interrupt::Interrupt;

/// What a run was like.
#[derive(Debug)]
pub(crate) struct Finished {
    /// From before the start until the end was seen; the limit, if it was cut off.
    pub(crate) wall: Duration,
    /// `None` if it was cut off.
    pub(crate) status: Option<ExitStatus>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) used: Used,
}

/// CPU time of a run with all that it waited for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Used {
    pub(crate) user: Duration,
    pub(crate) system: Duration,
}

impl Finished {
    /// Whether it was ended at the limit.
    pub(crate) fn cut_off(&self) -> bool {
        self.status.is_none()
    }
}

/// What happens while a command runs.
pub(crate) trait Script {
    /// When to act next, after the start.
    fn next(&self) -> Option<Duration>;
    /// Acts; `now` is the time since the start, `pid` the first process.
    fn act(&mut self, start: Instant, pid: u32) -> Result<()>;
}

/// Nothing happens.
pub(crate) struct Quiet;

impl Script for Quiet {
    fn next(&self) -> Option<Duration> {
        None
    }
    fn act(&mut self, _: Instant, _: u32) -> Result<()> {
        Ok(())
    }
}

/// Takes from a command what the user set that would change how many threads something starts, or how.
pub(crate) fn without_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(is_setting) {
            command.env_remove(name);
        }
    }
}

fn is_setting(name: &str) -> bool {
    const PREFIXES: [&str; 4] = ["OMP_", "GOMP_", "KMP_", "COREFIT_"];
    const NAMES: [&str; 3] = ["LD_PRELOAD", "LD_AUDIT", "JAVA_TOOL_OPTIONS"];
    let known = PREFIXES.iter().any(|p| name.starts_with(p)) || NAMES.contains(&name);
    known || name.ends_with("_NUM_THREADS") || launch::is_knob(name)
}

/// Runs a command, with the stdin that it has, to its end, or for at most `limit`; `end` kills everything that it started.
///
/// # Errors
/// When it cannot be started or waited for, when the script fails, or on an interrupt; also
/// then everything has been killed.
pub(crate) fn run(
    mut command: Command,
    limit: Duration,
    scratch: &Path,
    script: &mut dyn Script,
    interrupt: &Interrupt,
    end: &dyn Fn(u32),
) -> Result<Finished> {
    let paths = ["stdout", "stderr"].map(|name| scratch.join(name));
    // New files: a process that survived the last run must not write into these.
    for path in &paths {
        let _ = fs::remove_file(path);
    }
    let open = |path: &Path| File::create(path).with_context(|| path.display().to_string());
    command.stdout(open(&paths[0])?).stderr(open(&paths[1])?);
    interrupt.check()?;
    let start = Instant::now();
    let mut child = command.spawn().context("cannot start a run")?;
    let pid = child.id();
    let waited = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
        .context("pidfd_open")
        .and_then(|fd| wait(&fd, start, limit, pid, script, interrupt));
    let wall = start.elapsed();
    if !matches!(waited, Ok(true)) {
        end(pid);
    }
    let before = ended_children();
    let status = child.wait()?;
    let after = ended_children();
    let ended = waited?;
    let read = |path| fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Ok(Finished {
        wall: if ended { wall } else { limit },
        status: ended.then_some(status),
        stdout: read(&paths[0])?,
        stderr: read(&paths[1])?,
        used: Used {
            user: after.user.saturating_sub(before.user),
            system: after.system.saturating_sub(before.system),
        },
    })
}

/// Waits until the process behind `fd` ends (true), or the limit comes (false).
fn wait(
    fd: &impl std::os::fd::AsFd,
    start: Instant,
    limit: Duration,
    pid: u32,
    script: &mut dyn Script,
    interrupt: &Interrupt,
) -> Result<bool> {
    loop {
        let next = script.next().unwrap_or(limit).min(limit);
        let rest = next.saturating_sub(start.elapsed());
        let timeout = Timespec::try_from(rest).context("limit")?;
        let mut fds = [
            PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(interrupt.as_fd(), PollFlags::IN),
        ];
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(why) => return Err(why).context("poll"),
        }
        if fds[0].revents().contains(PollFlags::IN) {
            return Ok(true);
        }
        interrupt.check()?;
        let now = start.elapsed();
        if now >= limit {
            return Ok(false);
        }
        if script.next().is_some_and(|at| now >= at) {
            script.act(start, pid)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_thread_settings_do_not_reach_the_runs() {
        for name in
            ["OMP_NUM_THREADS", "KMP_BLOCKTIME", "LD_PRELOAD", "MKL_NUM_THREADS", "MC_CORES", "BLIS_IC_NT"]
        {
            assert!(is_setting(name), "{name}");
        }
        for name in ["PATH", "HOME", "OMPI_X", "NUM_THREADS_X"] {
            assert!(!is_setting(name), "{name}");
        }
    }
}
