//! Programs under the supervisor of `examples/supervise.rs`, and the same without it.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use super::{PATIENCE, eventually, kill, shell, signal_log, supervise};

/// `SCRIPT` with `{}` standing for the supervisor, and the same with nothing for it.
pub(crate) fn both(script: &str) -> (Output, Output) {
    let supervised = script.replace("{}", &format!("'{}' -- ", supervise().display()));
    let native = script.replace("{}", "");
    (shell(&supervised).output().unwrap(), shell(&native).output().unwrap())
}

/// Asserts that a script gives the same with and without the supervisor, and returns it.
pub(crate) fn same(script: &str) -> Output {
    let (supervised, native) = both(script);
    assert_eq!(text(&supervised.stdout), text(&native.stdout), "stdout of {script}");
    assert_eq!(text(&supervised.stderr), text(&native.stderr), "stderr of {script}");
    assert_eq!(supervised.status, native.status, "status of {script}");
    native
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn output(args: &[&str]) -> Output {
    Command::new(supervise()).args(args).stdin(Stdio::null()).output().unwrap()
}

/// A supervised program whose stdout is read line by line, in a process group of its own.
pub(crate) struct Running {
    pub(crate) child: Child,
    /// Apart from the child, as waiting for a child closes its stdin.
    pub(crate) stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    events: PathBuf,
    _dir: tempfile::TempDir,
}

impl Running {
    pub(crate) fn start(args: &[&OsStr]) -> Running {
        Running::start_with(args, |_| {})
    }

    pub(crate) fn sh(script: &str) -> Running {
        Running::start(&["sh".as_ref(), "-c".as_ref(), script.as_ref()])
    }

    pub(crate) fn signal_log() -> Running {
        let mut running = Running::start(&[signal_log().as_os_str()]);
        assert_eq!(running.line(), "ready");
        running
    }

    pub(crate) fn start_with(args: &[&OsStr], change: impl FnOnce(&mut Command)) -> Running {
        let dir = tempfile::tempdir().unwrap();
        let events = dir.path().join("events");
        let mut command = Command::new(supervise());
        command.arg("--events").arg(&events).args(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0);
        change(&mut command);
        let mut child = command.spawn().unwrap();
        let lines = read_lines(child.stdout.take().unwrap());
        let stdin = child.stdin.take();
        Running { child, stdin, lines, events, _dir: dir }
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// The next line of the program, without its end; empty at the end of the output.
    pub(crate) fn line(&mut self) -> String {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => line.trim_end().to_string(),
            Err(RecvTimeoutError::Disconnected) => String::new(),
            Err(RecvTimeoutError::Timeout) => panic!("no line; events: {}", self.events()),
        }
    }

    /// All further output.
    pub(crate) fn rest(&mut self) -> String {
        let mut rest = String::new();
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => rest += &line,
                Err(RecvTimeoutError::Disconnected) => return rest,
                Err(RecvTimeoutError::Timeout) => panic!("no end; events: {}", self.events()),
            }
        }
    }

    pub(crate) fn events(&self) -> String {
        fs::read_to_string(&self.events).unwrap_or_default()
    }

    pub(crate) fn event(&self, wanted: &str) {
        eventually(wanted, || self.events().contains(wanted).then_some(()));
    }

    /// The number of the program's last process.
    pub(crate) fn program(&self) -> i32 {
        eventually("the program has started", || {
            self.events().lines().filter_map(|l| l.strip_prefix("started ")?.parse().ok()).next_back()
        })
    }

    pub(crate) fn enter(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        eventually("the supervisor ends", || self.child.try_wait().unwrap())
    }

    /// Sends a `signal_log` a signal through the supervisor: when the log prints it, the
    /// supervisor has handled all that came before.
    pub(crate) fn catch_up(&mut self) {
        let marker = libc::SIGRTMIN() + 6;
        kill(self.pid(), marker);
        assert_eq!(self.line(), marker.to_string(), "nothing else was sent");
    }

    /// Ends a `signal_log` through the supervisor, and returns what it had still printed:
    /// whatever was sent before has been handled before.
    pub(crate) fn end_of_log(&mut self) -> String {
        kill(self.pid(), libc::SIGRTMIN() + 5);
        let rest = self.rest();
        assert_eq!(self.wait().code(), Some(0));
        rest
    }
}

/// Reads lines in a thread, so that a test can give up waiting for one.
fn read_lines(from: ChildStdout) -> Receiver<String> {
    let (send, lines) = channel();
    std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = String::new();
        while from.read_line(&mut line).is_ok_and(|length| length > 0) {
            if send.send(std::mem::take(&mut line)).is_err() {
                break;
            }
        }
    });
    lines
}

impl Drop for Running {
    fn drop(&mut self) {
        // SAFETY: kill has no memory effects; the group was made for this test.
        unsafe { libc::kill(-self.pid(), libc::SIGKILL) };
        let _ = self.child.wait();
    }
}
