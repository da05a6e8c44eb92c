//! The terminal of a program that has a process group of its own, like an interactive shell.
//!
//! Such a program makes its group the terminal's foreground. When it stops, so does corefit,
//! and the shell above takes the terminal; on `fg` that shell gives it to the group of the
//! job that it knows, corefit's. So corefit hands it on to where it was.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;

use rustix::process::{Pid, getpgid, getpgrp};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// The terminal as it was when the program stopped: in the hands of the program's group.
#[derive(Debug)]
pub(super) struct Held {
    terminal: File,
    group: Pid,
}

impl Held {
    /// None unless the process has a group of its own that holds the terminal.
    pub(super) fn by(pid: libc::pid_t) -> Option<Held> {
        let group = getpgid(Pid::from_raw(pid)).ok()?;
        if group == getpgrp() {
            return None;
        }
        let mut open = OpenOptions::new();
        let terminal = open.read(true).write(true).custom_flags(libc::O_NOCTTY).open("/dev/tty").ok()?;
        (tcgetpgrp(&terminal).ok()? == group).then_some(Held { terminal, group })
    }

    /// Hands the terminal on if our group has been given it. Needs SIGTTOU blocked.
    pub(super) fn restore(&self) {
        if tcgetpgrp(&self.terminal).is_ok_and(|holder| holder == getpgrp()) {
            // It fails only if the group is gone, and then nobody waits for the terminal.
            let _ = tcsetpgrp(&self.terminal, self.group);
        }
    }
}
