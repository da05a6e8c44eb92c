//! Running the program: signals go to it, its stops and its end come back.
//!
//! All signals are blocked and read from a signalfd, so nothing here runs in a handler.
//!
//! ```text
//!             child stops                     next wait_until
//!   RUNNING ──────────────▶ Event::Stopped ──────────────────▶ corefit stopped too
//!      ▲                                                          │ SIGCONT, or the
//!      └──────────── Event::Continued ◀───────────────────────────┘ child continued
//!      │ child ends
//!      ▼
//!   Event::Exited
//! ```
//!
//! A signal is passed on to the program, unless
//! - the whole process group got it and the program is in that group (Ctrl-C, `kill %1`);
//! - the program or one of our own helpers sent it;
//! - the kernel sent it about corefit's own limits (SIGXCPU, SIGXFSZ).

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::inherited::{Inherited, set_disposition};
use super::signals::{Received, SignalFd, SignalSet};
use super::spawn::{Launch, LaunchError, spawn};
use super::stop::stop_with;
use super::witness::Witness;

/// Signals by which users and service managers end a program.
pub(super) const ENDING: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// What happened to the program.
#[derive(Debug)]
pub enum Event {
    /// Nothing until the deadline.
    Tick,
    /// It ended. All later waits return this again.
    Exited(ExitStatus),
    /// It was stopped by this signal. The next [`Supervised::wait_until`] stops this
    /// process as well: clean the terminal before.
    Stopped(i32),
    /// It runs again. Stops and continuations alternate; a stopped program may also end.
    Continued,
    /// A signal could not be passed on, for instance to a set-user-ID program.
    Undelivered {
        /// The signal.
        signal: i32,
        /// The kernel's answer.
        why: io::Error,
    },
}

/// What the program used, with its children that it waited for (wait4(2)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time in user mode.
    pub user: Duration,
    /// CPU time in the kernel.
    pub system: Duration,
    /// Context switches because it waited for something.
    pub voluntary_switches: u64,
    /// Context switches because its time was up.
    pub involuntary_switches: u64,
}

/// The program while it runs, as a child of this process.
#[derive(Debug)]
pub struct Supervised {
    pid: libc::pid_t,
    signals: SignalFd,
    witness: Option<Witness>,
    /// The child is stopped by this signal; the flag: our own stop is still to come.
    stopped: Option<(i32, bool)>,
    /// A stop that is reported after the continuation before it.
    stopped_again: Option<i32>,
    /// The last helper that may have continued us.
    waker: libc::pid_t,
    ended: Option<(ExitStatus, Usage)>,
    /// The last of [`ENDING`] that somebody sent.
    asked_to_end: Option<i32>,
}

impl Supervised {
    /// Starts the program. From here on this process blocks nearly all signals; call it
    /// from the main thread and before other threads are started, which then inherit that.
    ///
    /// # Errors
    /// Nothing was started. [`LaunchError::Interrupted`] if a signal that ends the program
    /// came before it was there.
    pub fn spawn(launch: &Launch) -> Result<Supervised, LaunchError> {
        // An ignored SIGCHLD, which may be inherited, would throw exit codes away.
        set_disposition(libc::SIGCHLD, libc::SIG_DFL);
        let signals = SignalFd::open(SignalSet::supervised()).map_err(LaunchError::Process)?;
        let mut supervised = Supervised {
            pid: 0,
            signals,
            // Without one, the origin of a signal decides.
            witness: Witness::new().ok(),
            stopped: None,
            stopped_again: None,
            waker: 0,
            ended: None,
            asked_to_end: None,
        };
        supervised.start(launch)?;
        Ok(supervised)
    }

    /// Starts the program again after [`Supervised::kill_for_restart`].
    ///
    /// # Errors
    /// Nothing was started. [`LaunchError::Interrupted`] if somebody wanted the program
    /// to end in the meantime.
    pub fn respawn(&mut self, launch: &Launch) -> Result<(), LaunchError> {
        self.start(launch)
    }

    fn start(&mut self, launch: &Launch) -> Result<(), LaunchError> {
        // Whoever got a signal before the program was there, the program did not.
        while let Some(received) = self.signals.next().map_err(LaunchError::Process)? {
            if ENDING.contains(&received.signal) {
                self.asked_to_end = Some(received.signal);
            }
        }
        if let Some(signal) = self.asked_to_end {
            return Err(LaunchError::Interrupted(signal));
        }
        if self.ended.is_some() {
            self.witness = Witness::new().ok();
        }
        self.pid = match spawn(launch) {
            // The program needs the last process of a limit more than we do.
            Err(LaunchError::Process(_)) if self.witness.take().is_some() => spawn(launch)?,
            started => started?,
        };
        (self.stopped, self.stopped_again, self.ended) = (None, None, None);
        if !launch.hold_stdio {
            release_stdio();
        }
        Ok(())
    }

    /// The program's process number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.cast_unsigned()
    }

    /// The last signal by which somebody wanted the program to end (SIGINT, SIGTERM,
    /// SIGHUP or SIGQUIT), wherever it was sent. Such a program must not be restarted.
    #[must_use]
    pub fn asked_to_end(&self) -> Option<i32> {
        self.asked_to_end
    }

    /// What the program used; None while it runs.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        self.ended.map(|(_, usage)| usage)
    }

    /// Waits for the next event, at most until `deadline`. Signals are passed on inside,
    /// so call it without long pauses.
    ///
    /// # Errors
    /// Somebody else took the program's status, or the kernel refuses to wait.
    pub fn wait_until(&mut self, deadline: Instant) -> io::Result<Event> {
        loop {
            if let Some((status, _)) = self.ended {
                return Ok(Event::Exited(status));
            }
            if let Some(signal) = self.stopped_again.take() {
                self.stopped = Some((signal, true));
                return Ok(Event::Stopped(signal));
            }
            if let Some((signal, true)) = self.stopped {
                self.stopped = Some((signal, false));
                if let Err(why) = self.stop_ourselves(signal) {
                    return Ok(Event::Undelivered { signal: libc::SIGCONT, why });
                }
            }
            if let Some(event) = self.child_event()? {
                return Ok(event);
            }
            if let Some(received) = self.signals.next()? {
                if let Err(why) = self.handle(&received) {
                    return Ok(Event::Undelivered { signal: received.signal, why });
                }
                continue;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Event::Tick);
            }
            self.sleep(left)?;
        }
    }

    /// For what is done after the program's end: from here on who wants this process to end ends it, as any other. Those that
    /// came before were meant for the program.
    ///
    /// # Errors
    /// Never seen; the kernel's answer.
    pub fn let_go(&self) -> io::Result<()> {
        while self.signals.next()?.is_some() {}
        let ours = Inherited::recorded();
        ENDING.into_iter().filter(|signal| !ours.blocks(*signal)).collect::<SignalSet>().unblock()
    }

    /// For what is written in one piece then: until `finish` nobody ends this process but by force.
    ///
    /// # Errors
    /// Never seen; the kernel's answer.
    pub fn hold(&self) -> io::Result<()> {
        ENDING.into_iter().collect::<SignalSet>().block()
    }

    /// Ends this process as the program ended; see [`super::end_like`].
    pub fn finish(self, status: ExitStatus) -> ! {
        drop(self);
        super::end_like(status)
    }

    /// Sleeps until a signal is pending, at most this long.
    fn sleep(&self, left: Duration) -> io::Result<()> {
        let left = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 3600, tv_nsec: 0 });
        let mut fds = [PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN)];
        match poll(&mut fds, Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(why) => Err(why.into()),
        }
    }

    /// A change of the child that has not been reported yet.
    fn child_event(&mut self) -> io::Result<Option<Event>> {
        reap_orphans(self.pid)?;
        let mut status = 0;
        // SAFETY: rusage is plain data for which zero is valid.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        let options = libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED;
        // SAFETY: both pointers lead to writable values of the right type.
        match unsafe { libc::wait4(self.pid, &raw mut status, options, &raw mut usage) } {
            0 => return Ok(None),
            -1 => return Err(io::Error::last_os_error()),
            _ => {}
        }
        let status = ExitStatus::from_raw(status);
        if let Some(signal) = status.stopped_signal() {
            // Stopped again before we saw it continue.
            let continued = self.stopped.is_some();
            self.stopped = Some((signal, !continued));
            self.stopped_again = continued.then_some(signal);
            return Ok(Some(if continued { Event::Continued } else { Event::Stopped(signal) }));
        }
        if status.continued() {
            self.stopped = None;
            return Ok(Some(Event::Continued));
        }
        self.ended = Some((status, Usage::from(&usage)));
        if let Some(witness) = &self.witness {
            witness.dismiss();
        }
        Ok(Some(Event::Exited(status)))
    }

    /// Passes one signal on, or not.
    fn handle(&mut self, received: &Received) -> io::Result<()> {
        let Received { signal, sender, .. } = *received;
        if signal == libc::SIGCHLD {
            // The program's changes are asked for in any case; this may be the witness.
            if let Some(witness) = &mut self.witness {
                witness.check();
            }
            return Ok(());
        }
        // Asked first, so that the witness is clean for the next signal in any case.
        let group_got_it = match &mut self.witness {
            Some(witness) => witness.saw(received),
            None => received.by_kernel(),
        };
        let by_process = !received.by_kernel();
        // A sender outside our PID namespace is 0, as is an absent helper.
        if by_process && sender != 0 && (sender == self.pid || sender == self.waker) {
            return Ok(());
        }
        if ENDING.contains(&signal) {
            self.asked_to_end = Some(signal);
        }
        let about_us = matches!(signal, libc::SIGXCPU | libc::SIGXFSZ);
        // What a terminal sends to our group is not for a program that left the group,
        // but what a user sends to the job is.
        let reached = group_got_it && (!by_process || self.is_in_our_group());
        if reached || (about_us && !by_process) {
            return Ok(());
        }
        self.send(received)
    }

    fn is_in_our_group(&self) -> bool {
        // SAFETY: neither call has preconditions.
        unsafe { libc::getpgid(self.pid) == libc::getpgrp() }
    }

    /// Sends the child the signal, with the value that sigqueue(3) attached.
    fn send(&self, received: &Received) -> io::Result<()> {
        // SAFETY: neither call has memory effects; the child has not been waited for, so
        // its number is not reused.
        let result = unsafe {
            if received.code == libc::SI_QUEUE {
                let value = libc::sigval {
                    sival_ptr: std::ptr::without_provenance_mut(usize::try_from(received.value).unwrap_or(0)),
                };
                libc::sigqueue(self.pid, received.signal, value)
            } else {
                libc::kill(self.pid, received.signal)
            }
        };
        if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Stops this process as the child was stopped, and passes on what continued it.
    fn stop_ourselves(&mut self, signal: i32) -> io::Result<()> {
        let resumed = stop_with(self.pid, signal);
        self.waker = resumed.waker.unwrap_or(0);
        match resumed.by {
            Some(sender) => {
                self.handle(&Received { signal: libc::SIGCONT, code: libc::SI_USER, sender, value: 0 })
            }
            None => Ok(()),
        }
    }
}

impl From<&libc::rusage> for Usage {
    fn from(usage: &libc::rusage) -> Usage {
        let time = |t: libc::timeval| {
            Duration::from_secs(t.tv_sec.cast_unsigned()) + Duration::from_micros(t.tv_usec.cast_unsigned())
        };
        Usage {
            user: time(usage.ru_utime),
            system: time(usage.ru_stime),
            voluntary_switches: usage.ru_nvcsw.cast_unsigned(),
            involuntary_switches: usage.ru_nivcsw.cast_unsigned(),
        }
    }
}

/// Lets go of our stdin and stdout. If `/dev/null` is missing they are kept.
fn release_stdio() {
    if let Ok(null) = OpenOptions::new().read(true).write(true).open("/dev/null") {
        for fd in [libc::STDIN_FILENO, libc::STDOUT_FILENO] {
            // SAFETY: both are descriptors that std treats as open for ever, and they
            // stay open: they lead to /dev/null from here on.
            unsafe { libc::dup2(null.as_raw_fd(), fd) };
        }
    }
}

/// As process 1 of a container, takes the status of every process that was left to us.
/// It must not have other children of its own then.
fn reap_orphans(child: libc::pid_t) -> io::Result<()> {
    if std::process::id() != 1 {
        return Ok(());
    }
    loop {
        // SAFETY: siginfo_t is plain data for which zero is valid.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: `info` is writable.
        if unsafe { libc::waitid(libc::P_ALL, 0, &raw mut info, options) } == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: waitid fills the fields of a SIGCHLD, or leaves zero.
        let pid = unsafe { info.si_pid() };
        if pid == 0 || pid == child {
            return Ok(());
        }
        // SAFETY: a null status pointer is allowed.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG) };
    }
}
