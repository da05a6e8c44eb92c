//! Follows a program under trial to its end: feeds it, reads what it prints, and ends it where it must be.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, Output};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use corefit_linux::sample::TreeSampler;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};

use crate::interrupt::Interrupt;

/// What it leaves running may hold its output for ever: so long it is read beyond the program's end.
const AFTERWARDS: Duration = Duration::from_secs(1);
/// So much a pipe takes without waiting once it takes anything (`PIPE_BUF`: pipe(7)).
const AT_ONCE: usize = 4096;

/// How a run went.
pub(super) struct Followed {
    pub(super) output: Output,
    /// Until the program itself ended, s.
    pub(super) wall_s: f64,
    /// Whether it was ended since it took too long.
    pub(super) hung: bool,
    /// Whether somebody could still print when it was not read any more.
    pub(super) cut: bool,
}

/// Follows `child` since `start`; gives it `input` and ends it after `limit`, with its process group if it leads one, and
/// with all below it.
///
/// # Errors
/// On an interrupt, or when it cannot be followed; then it has been killed in that way.
pub(super) fn to_its_end(
    mut child: Child,
    input: &[u8],
    start: Instant,
    limit: Option<Duration>,
    interrupt: &Interrupt,
) -> Result<Followed> {
    let followed = follow(&mut child, input, start, limit, interrupt);
    if !matches!(followed, Ok(Told { hung: false, .. })) {
        // It has not been waited for, so the number is still its own.
        let mut below = TreeSampler::new(child.id(), child.id());
        below.sample();
        let below: Vec<Pid> =
            below.pids().iter().filter_map(|pid| Pid::from_raw(i32::try_from(*pid).ok()?)).collect();
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        let _ = child.kill();
        // A check is in our own group.
        for pid in below {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    let status = child.wait()?;
    let Told { printed: [stdout, stderr], wall, hung, cut } = followed?;
    Ok(Followed { output: Output { status, stdout, stderr }, wall_s: wall.as_secs_f64(), hung, cut })
}

struct Told {
    printed: [Vec<u8>; 2],
    wall: Duration,
    hung: bool,
    cut: bool,
}

fn follow(
    child: &mut Child,
    mut input: &[u8],
    start: Instant,
    limit: Option<Duration>,
    interrupt: &Interrupt,
) -> Result<Told> {
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).context("pidfd_open")?;
    let mut stdin = child.stdin.take();
    let (mut stdout, mut stderr) = (child.stdout.take(), child.stderr.take());
    let mut printed = [vec![], vec![]];
    let mut until = limit.map(|limit| start + limit);
    let mut ended = None;
    loop {
        let fds = [
            Some(interrupt.as_fd()),
            ended.is_none().then(|| process.as_fd()),
            stdin.as_ref().map(AsFd::as_fd),
            stdout.as_ref().map(AsFd::as_fd),
            stderr.as_ref().map(AsFd::as_fd),
        ];
        let [_, over, takes, out, err] = ready(fds, until)?;
        interrupt.check()?;
        if takes {
            input = stdin.as_mut().map_or(&[][..], |pipe| feed(pipe, input));
            stdin = stdin.filter(|_| !input.is_empty());
        }
        if out {
            stdout = drain(stdout, &mut printed[0])?;
        }
        if err {
            stderr = drain(stderr, &mut printed[1])?;
        }
        if over {
            ended = Some(start.elapsed());
            until = Some(Instant::now() + AFTERWARDS);
        }
        let late = until.is_some_and(|until| until <= Instant::now());
        let cut = stdout.is_some() || stderr.is_some();
        match ended {
            Some(wall) if late || !cut => return Ok(Told { printed, wall, hung: false, cut }),
            None if late => return Ok(Told { printed, wall: start.elapsed(), hung: true, cut }),
            _ => {}
        }
    }
}

/// Waits until something can be done with one of these, at most until then; the third is written to.
fn ready(fds: [Option<BorrowedFd<'_>>; 5], until: Option<Instant>) -> Result<[bool; 5]> {
    let mut polled: Vec<PollFd<'_>> = vec![];
    for (at, fd) in fds.iter().enumerate() {
        let flags = if at == 2 { PollFlags::OUT } else { PollFlags::IN };
        polled.extend(fd.map(|fd| PollFd::from_borrowed_fd(fd, flags)));
    }
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let left = left.map(Timespec::try_from).transpose().context("limit")?;
    match poll(&mut polled, left.as_ref()) {
        Ok(_) => {}
        Err(rustix::io::Errno::INTR) => return Ok([false; 5]),
        Err(why) => return Err(why).context("poll"),
    }
    let mut polled = polled.iter();
    Ok(fds.map(|fd| fd.is_some() && polled.next().is_some_and(|fd| !fd.revents().is_empty())))
}

/// Writes what the pipe takes at once; the rest. A program that does not read its input is no error.
fn feed<'t>(pipe: &mut impl Write, input: &'t [u8]) -> &'t [u8] {
    match pipe.write(&input[..input.len().min(AT_ONCE)]) {
        Ok(written) => &input[written..],
        Err(why) if why.kind() == io::ErrorKind::Interrupted => input,
        Err(_) => &[],
    }
}

/// Reads what is there; nothing is left of a pipe at its end.
fn drain<P: Read>(mut pipe: Option<P>, text: &mut Vec<u8>) -> io::Result<Option<P>> {
    let mut buffer = [0; 65_536];
    match pipe.as_mut().map_or(Ok(0), |pipe| pipe.read(&mut buffer)) {
        Ok(0) => return Ok(None),
        Ok(read) => text.extend_from_slice(&buffer[..read]),
        Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
        Err(why) => return Err(why),
    }
    Ok(pipe)
}
