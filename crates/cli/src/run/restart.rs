//! `--restartable`: a program that may not be resized is started again, early in its run, if
//! it was launched with the wrong number of threads (Takayama and Kourai 2020, P2, IV-C).

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result};
use corefit_core::{Decision, Time};
use corefit_linux::launch::{LaunchError, Supervised};
use rustix::fs::{FileType, SeekFrom};

use super::follow::Follower;
use super::grants::Grants;
use super::launch::Plan;

/// Only so early is little lost.
const EARLY: Duration = Duration::from_secs(20);
/// The right size must have differed for so long, and been the same.
const LASTING: Duration = Duration::from_secs(1);
/// A program that is in need of a third restart lives on a machine that changes too often.
const MOST: u32 = 2;
/// Time for the program to end by itself.
const GRACE: Duration = Duration::from_secs(2);

/// Restarts done, and the one that is coming.
pub(crate) struct Restarts {
    allowed: bool,
    done: u32,
    wrong_since: Option<(Time, u32)>,
    size: u32,
    /// Where stdin stood at launch, if it is a file.
    input_at: Option<u64>,
}

/// The offset of stdin, if it is a file.
fn input_at() -> Option<u64> {
    rustix::fs::seek(std::io::stdin(), SeekFrom::Current(0)).ok()
}

/// Whether stdin can be read only once: a pipe or a socket.
fn is_pipe() -> bool {
    let kind = rustix::fs::fstat(std::io::stdin()).map(|stat| FileType::from_raw_mode(stat.st_mode));
    matches!(kind, Ok(FileType::Fifo | FileType::Socket))
}

impl Restarts {
    pub(crate) fn new(allowed: bool) -> Restarts {
        Restarts { allowed, done: 0, wrong_since: None, size: 0, input_at: input_at() }
    }

    /// Gives up restarts if stdin could not be read a second time; whether that was so.
    pub(crate) fn without_stdin(&mut self) -> bool {
        let lost = self.allowed && is_pipe();
        self.allowed &= !lost;
        lost
    }

    pub(crate) fn done(&self) -> u32 {
        self.done
    }

    /// Whether the program should be started again now.
    pub(crate) fn wanted(&mut self, follower: &Follower<'_>, decision: &Decision) -> bool {
        let Some(now) = follower.last().map(|p| p.at) else {
            return false;
        };
        let early = now.since(follower.history.began()) < EARLY;
        let right = decision.team;
        if !self.allowed || !early || self.done >= MOST || follower.is_resizable() || follower.team() == right
        {
            self.wrong_since = None;
            return false;
        }
        let (since, size) = *self.wrong_since.get_or_insert((now, right));
        if size != right {
            self.wrong_since = Some((now, right));
            return false;
        }
        self.size = right;
        now.since(since) >= LASTING
    }

    /// Starts it again; its status if it had ended meanwhile or somebody wants it to end.
    pub(crate) fn restart(
        &mut self,
        child: &mut Supervised,
        plan: &mut Plan,
        grants: &Grants,
    ) -> Result<Option<ExitStatus>> {
        let killed = child.kill_for_restart(GRACE).context("cannot end the program for a restart")?;
        if killed.by_itself {
            return Ok(Some(killed.status));
        }
        if let Some(signal) = killed.asked_to_end {
            return Ok(Some(ExitStatus::from_raw(signal)));
        }
        if let Some(at) = self.input_at {
            rustix::fs::seek(std::io::stdin(), SeekFrom::Start(at)).context("cannot rewind stdin")?;
        }
        plan.again(self.size, grants);
        self.done += 1;
        self.wrong_since = None;
        match child.respawn(&plan.launch) {
            Ok(()) => Ok(None),
            Err(LaunchError::Interrupted(signal)) => Ok(Some(ExitStatus::from_raw(signal))),
            Err(why) => Err(why).context("cannot start the program again"),
        }
    }
}
