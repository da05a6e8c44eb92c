//! The last line of the terminal, kept for us while the program runs.
//!
//! What the program writes scrolls in the lines above (DECSTBM), so that our text is where we left it when
//! we change it or take it away, however much was written meanwhile. The cursor stays with the program.
//! Should corefit be killed, a helper gives the line back.

use std::fmt;
use std::io::{self, Write};

use rustix::termios::{LocalModes, tcgetattr, tcgetpgrp, tcgetwinsize};

use super::signals::SignalSet;
use super::witness::kill_and_reap;

/// Fewer lines are needed by the program.
const LEAST_ROWS: u16 = 5;

/// Down and up: the cursor is not in the last line any more, and in the same line of text.
const OFF_THE_LAST_LINE: &str = "\x1bD\x1b[A";

/// Gives the whole terminal back: all lines scroll, the last is empty, the cursor is where it was. For the
/// helper, which knows no size: terminals stop at their last line.
const GIVE_BACK: &[u8] = b"\x1b7\x1b[r\x1b[999;1H\x1b[2K\x1b8";

/// The last line of the terminal at stderr.
#[derive(Debug, Default)]
pub struct LastLine {
    kept: Option<Kept>,
}

#[derive(Debug)]
struct Kept {
    size: (u16, u16),
    text: String,
    helper: Helper,
}

impl LastLine {
    /// Shows as much of the text as fits. Nothing is shown where that would disturb: in the background,
    /// beside a program that draws its screen itself (it reads keys, not lines), on a terminal that is
    /// small or "dumb".
    pub fn show(&mut self, text: &str) {
        let Some(size) = size() else {
            return self.clear();
        };
        let mut out = String::new();
        match &mut self.kept {
            Some(kept) if kept.size == size => {}
            Some(kept) => {
                // Our line may be anywhere now, but below the cursor.
                out += "\x1b7\x1b[r\x1b8\x1b[J";
                out += OFF_THE_LAST_LINE;
                kept.size = size;
            }
            None => {
                let Some(helper) = Helper::start() else {
                    return;
                };
                out += OFF_THE_LAST_LINE;
                self.kept = Some(Kept { size, text: String::new(), helper });
            }
        }
        if let Some(kept) = &mut self.kept {
            text.clone_into(&mut kept.text);
        }
        let (rows, columns) = size;
        let text: String = text.chars().take(usize::from(columns - 1)).collect();
        write_all(format_args!("{out}\x1b7\x1b[1;{}r\x1b[{rows};1H\x1b[m\x1b[2K{text}\x1b8", rows - 1));
    }

    /// Gives the line back if somebody else uses the terminal by now, and moves it where its size has
    /// changed.
    pub fn look(&mut self) {
        let Some(kept) = &self.kept else {
            return;
        };
        match size() {
            None => self.clear(),
            Some(size) if size != kept.size => {
                let text = kept.text.clone();
                self.show(&text);
            }
            Some(_) => {}
        }
    }

    /// Takes the text away and gives the line back.
    pub fn clear(&mut self) {
        if let Some(kept) = self.kept.take() {
            let (rows, _) = kept.size;
            write_all(format_args!("\x1b7\x1b[r\x1b[{rows};1H\x1b[2K\x1b8"));
            drop(kept.helper); // not before: it is there for the case that we do not come to this
        }
    }
}

impl Drop for LastLine {
    fn drop(&mut self) {
        self.clear();
    }
}

/// In one call, so that what others write does not come between.
fn write_all(text: fmt::Arguments<'_>) {
    let _ = io::stderr().write_all(text.to_string().as_bytes());
}

/// Rows and columns of the terminal, where the line may be kept.
fn size() -> Option<(u16, u16)> {
    let terminal = io::stderr();
    if std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb") {
        return None;
    }
    let foreground = tcgetpgrp(&terminal).ok()? == rustix::process::getpgrp();
    let by_lines = tcgetattr(&terminal).ok()?.local_modes.contains(LocalModes::ICANON);
    let size = tcgetwinsize(&terminal).ok()?;
    (foreground && by_lines && size.ws_row >= LEAST_ROWS && size.ws_col > 1)
        .then_some((size.ws_row, size.ws_col))
}

/// A process that gives the line back when this one dies.
#[derive(Debug)]
struct Helper(libc::pid_t);

impl Helper {
    /// None when no process can be started.
    fn start() -> Option<Helper> {
        // SAFETY: getpid has no preconditions.
        let parent = unsafe { libc::getpid() };
        let before = SignalSet::blocked();
        SignalSet::all().set_mask().ok()?;
        // SAFETY: the child calls only async-signal-safe functions and never returns.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            stand_by(parent);
        }
        let _ = before.set_mask();
        (pid > 0).then_some(Helper(pid))
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        kill_and_reap(self.0);
    }
}

/// The life of the helper, with all signals blocked; async-signal-safe.
fn stand_by(parent: libc::pid_t) -> ! {
    // SAFETY: plain system calls on the own process; the set is written by sigemptyset before it is read.
    unsafe {
        // Out of the group, for whose end it is there.
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, c"last-line".as_ptr());
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
        libc::close(libc::STDIN_FILENO);
        libc::close(libc::STDOUT_FILENO);
        libc::syscall(libc::SYS_close_range, libc::STDERR_FILENO + 1, libc::c_uint::MAX, 0);
        if libc::getppid() == parent {
            let mut only: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut only);
            libc::sigaddset(&raw mut only, libc::SIGTERM);
            while libc::sigwaitinfo(&raw const only, std::ptr::null_mut()) == -1 {}
        }
        libc::write(libc::STDERR_FILENO, GIVE_BACK.as_ptr().cast(), GIVE_BACK.len());
        libc::_exit(0)
    }
}
