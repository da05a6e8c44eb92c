//! Telling a signal for the whole process group from one for corefit alone.
//!
//! `kill %1`, `kill -TERM -PGID` and a service manager that signals every process reach
//! the program directly, and it must not get the same signal from corefit again; `kill
//! PID` reaches corefit alone and must be passed on. The information that comes with a
//! signal does not tell the two apart. So corefit keeps a witness: a child in the same
//! process group that blocks all signals and sleeps. A signal for the group is pending
//! in the witness too, and /proc/PID/status shows it.
//!
//! The kernel signals a group's newest member first (`attach_pid` adds at the head of
//! the list that `__kill_pgrp_info` walks), so the witness, younger than corefit, has
//! the signal before corefit can see its own copy.
//!
//! Not exact are two signals of one number to the group within the time that replacing
//! the witness takes (some 0.3 ms): the program may get a third.

use std::io;
use std::time::{Duration, Instant};

use super::signals::{Received, SignalSet};
use crate::proc::Fields;

/// How long a signal that a process sent to corefit, but not yet to the witness, is held
/// back: a service manager that signals process by process is done by then.
const SETTLE: Duration = Duration::from_millis(2);

/// How long a signal that the old witness saw, and that corefit has not read yet, is
/// remembered. It is pending, so it is read as soon as corefit gets a CPU.
const CARRY: Duration = Duration::from_secs(1);

/// What the witness shows in process lists; not "corefit", for which people grep.
const NAME: &std::ffi::CStr = c"group-witness";

/// The sleeping process.
#[derive(Debug)]
pub(super) struct Witness {
    post: Post,
    /// What earlier witnesses saw and corefit has not read yet, until when.
    carried: SignalSet,
    carried_until: Instant,
}

/// One process that stands by.
#[derive(Debug)]
struct Post(libc::pid_t);

impl Witness {
    /// Starts the witness. It ends with this thread at the latest, also after a kill -9.
    ///
    /// # Errors
    /// No more processes allowed.
    pub(super) fn new() -> io::Result<Witness> {
        let now = Instant::now();
        Ok(Witness { post: Post::start()?, carried: SignalSet::default(), carried_until: now })
    }

    /// Whether the witness got the signal as well, and so the whole group did. Asked once
    /// for every signal received, so that the witness is clean for the next.
    pub(super) fn saw(&mut self, received: &Received) -> bool {
        let signal = received.signal;
        if self.carried.contains(signal) {
            self.carried = self.carried.filter(|s| s != signal);
            if Instant::now() < self.carried_until {
                return true;
            }
        }
        if !self.post.pending().contains(signal) {
            if received.by_kernel() {
                return false;
            }
            std::thread::sleep(SETTLE);
            if !self.post.pending().contains(signal) {
                return false;
            }
        }
        self.relieve(signal);
        true
    }

    /// Lets it end while other things are done: where CPUs are busy, that takes milliseconds.
    pub(super) fn dismiss(&self) {
        if is_running(self.post.0) {
            // SAFETY: as in `kill_and_reap`.
            unsafe { libc::kill(self.post.0, libc::SIGKILL) };
        }
    }

    /// Posts a new witness if somebody killed the old one.
    pub(super) fn check(&mut self) {
        if !is_running(self.post.0)
            && let Ok(next) = Post::start()
        {
            self.post = next;
        }
    }

    /// Replaces the witness, as its pending signals cannot be cleared. The old one leaves
    /// after the new one came, and what it saw besides is remembered: no signal goes unseen.
    fn relieve(&mut self, signal: i32) {
        if let Ok(next) = Post::start() {
            let also = self.post.pending().filter(|s| s != signal);
            self.carried = SignalSet(self.carried.0 | also.0);
            self.carried_until = Instant::now() + CARRY;
            self.post = next;
        }
    }
}

impl Post {
    fn start() -> io::Result<Post> {
        let arguments = argument_area();
        // SAFETY: getpid has no preconditions.
        let parent = unsafe { libc::getpid() };
        let before = SignalSet::blocked();
        SignalSet::all().set_mask()?;
        // SAFETY: the child calls only async-signal-safe functions and never returns.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            stand_by(parent, arguments);
        }
        let error = io::Error::last_os_error();
        before.set_mask()?;
        if pid == -1 { Err(error) } else { Ok(Post(pid)) }
    }

    fn pending(&self) -> SignalSet {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0));
        let bits = status.ok().and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("ShdPnd:"))?;
            u64::from_str_radix(line.trim(), 16).ok()
        });
        SignalSet(bits.unwrap_or(0))
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        kill_and_reap(self.0);
    }
}

/// Ends a helper process of our own and takes its status, so that no zombie stays.
pub(super) fn kill_and_reap(pid: libc::pid_t) {
    if is_running(pid) {
        // SAFETY: kill has no memory effects; the process is an unreaped child of ours, so
        // its number is not reused.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        while wait(pid, 0) == -1 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {}
    }
}

/// Whether a helper process still runs. If it has ended, its status is taken.
fn is_running(pid: libc::pid_t) -> bool {
    wait(pid, libc::WNOHANG) == 0
}

fn wait(pid: libc::pid_t, options: i32) -> libc::pid_t {
    // SAFETY: a null status pointer is allowed.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), options) }
}

/// The life of the witness. Only async-signal-safe calls: it was forked from a process
/// that may have more threads.
fn stand_by(parent: libc::pid_t, arguments: Option<(usize, usize)>) -> ! {
    become_helper(parent);
    // SAFETY: the name is a NUL-terminated string; PR_SET_NAME copies it.
    unsafe { libc::prctl(libc::PR_SET_NAME, NAME.as_ptr()) };
    if let Some((start, length)) = arguments {
        // SAFETY: the kernel says that our argument strings lie at this range of our
        // stack, which is private and writable; nothing in this process reads them again.
        let area = unsafe {
            std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut::<u8>(start), length)
        };
        area.fill(0);
        for (to, from) in area.iter_mut().zip(NAME.to_bytes()) {
            *to = *from;
        }
    }
    loop {
        // SAFETY: pause has no preconditions.
        unsafe { libc::pause() };
    }
}

/// What every helper process does first: die with corefit, and hold none of its files,
/// whose other ends may wait for their last holder. Async-signal-safe.
pub(super) fn become_helper(parent: libc::pid_t) {
    // SAFETY: plain system calls without memory effects; the descriptors closed here
    // belong to this process alone and nothing uses them any more.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != parent {
            libc::_exit(0);
        }
        if libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0) == -1 {
            for fd in 0..1024 {
                libc::close(fd);
            }
        }
    }
}

/// Where the kernel finds our argument strings: (start, length), from /proc/self/stat.
fn argument_area() -> Option<(usize, usize)> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    let fields = Fields::of(&text)?;
    let (start, end): (usize, usize) = (fields.field(48)?, fields.field(49)?);
    let length = end.checked_sub(start)?;
    (start != 0 && length != 0).then_some((start, length))
}
