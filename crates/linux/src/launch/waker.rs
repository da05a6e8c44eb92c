//! A helper for the time in which corefit is stopped together with its program.
//!
//! When the program stops, corefit stops as well, so that the shell sees a stopped job.
//! A SIGCONT for the group or for corefit continues both. A SIGCONT or SIGKILL for the
//! program alone would leave corefit stopped, and whoever waits for it waiting for ever;
//! so while corefit is stopped, this helper looks at the program from time to time and
//! continues corefit as soon as the program is no longer stopped.

use std::ffi::CString;

use super::witness::{become_helper, kill_and_reap};

/// First and longest time between two looks: a stop may last days.
const FIRST_LOOK_MS: libc::c_long = 20;
const LAST_LOOK_MS: libc::c_long = 500;

/// The helper process; dropping it ends it.
#[derive(Debug)]
pub(super) struct Waker {
    pid: libc::pid_t,
}

impl Waker {
    /// Starts a helper that continues this process when process `of` is not stopped any
    /// more. None when no process can be started.
    pub(super) fn start(of: libc::pid_t) -> Option<Waker> {
        let stat = CString::new(format!("/proc/{of}/stat")).ok()?;
        // SAFETY: getpid has no preconditions.
        let parent = unsafe { libc::getpid() };
        // SAFETY: the child calls only async-signal-safe functions and never returns.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            watch(&stat, parent);
        }
        (pid > 0).then_some(Waker { pid })
    }

    pub(super) fn pid(&self) -> libc::pid_t {
        self.pid
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        kill_and_reap(self.pid);
    }
}

/// The life of the helper; async-signal-safe.
fn watch(stat: &CString, parent: libc::pid_t) -> ! {
    become_helper(parent);
    // SAFETY: plain system calls; `stat` is NUL-terminated, the buffers are large enough.
    unsafe {
        // Out of the group: its stop signals are not for this process.
        libc::setsid();
        let mut look_ms = FIRST_LOOK_MS;
        while is_stopped(stat) {
            let pause = libc::timespec { tv_sec: 0, tv_nsec: look_ms * 1_000_000 };
            libc::nanosleep(&raw const pause, std::ptr::null_mut());
            look_ms = (look_ms * 2).min(LAST_LOOK_MS);
        }
        libc::kill(parent, libc::SIGCONT);
        libc::_exit(0)
    }
}

/// Whether the stat file at this path shows a stopped (T) or traced (t) process.
fn is_stopped(stat: &CString) -> bool {
    let mut text = [0u8; 512];
    // SAFETY: `stat` is NUL-terminated; read gets the buffer and its size.
    let read = unsafe {
        let fd = libc::open(stat.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if fd == -1 {
            return false;
        }
        let read = libc::read(fd, text.as_mut_ptr().cast(), text.len());
        libc::close(fd);
        read
    };
    let Ok(read) = usize::try_from(read) else {
        return false;
    };
    let text = &text[..read];
    let end = text.iter().rposition(|&b| b == b')');
    end.and_then(|end| text.get(end + 2)).is_some_and(|state| state.eq_ignore_ascii_case(&b't'))
}
