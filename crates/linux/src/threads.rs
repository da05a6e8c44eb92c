//! Looks at each thread of a program, a few hundred a second: what `corefit profile` records.
//!
//! Sources: `/proc/PID/task/TID/schedstat` each time (time on a CPU and time runnable without one), and from time to time
//! `/proc/PID/task/TID/status` (`voluntary_ctxt_switches`, `nonvoluntary_ctxt_switches`, `State`). All of it is to be had
//! without root. A look costs about 2 us a thread, one with the status some 10 us; a run that ends between two looks
//! takes its last moment with it.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use corefit_core::profile::{Look, Status, ThreadLook};
use rustix::time::{ClockId, clock_gettime};

use crate::launch::Usage;
use crate::proc::Sched;
use crate::sample::{now, tasks, tree};

/// New processes are searched every so many looks.
const SEARCH_EVERY: u32 = 16;
/// Threads whose files are kept open, at the most; beyond, files are opened for each look.
const KEPT_OPEN: usize = 1024;

struct Files {
    pid: u32,
    schedstat: Option<File>,
    status: Option<File>,
}

/// Looks at the threads of a process and of its descendants.
pub struct ThreadSampler {
    root: u32,
    pids: Vec<u32>,
    files: OpenFiles,
    looks: u32,
}

impl ThreadSampler {
    /// A sampler for `root` and its descendants. It keeps half as many files open as the process may have, two for each thread.
    #[must_use]
    pub fn new(root: u32) -> ThreadSampler {
        ThreadSampler { root, pids: vec![root], files: OpenFiles::of(KEPT_OPEN), looks: 0 }
    }

    /// Looks; `status` decides whether switches and states are read, too. What has ended meanwhile is left out.
    pub fn look(&mut self, status: bool) -> Look {
        if self.looks.is_multiple_of(SEARCH_EVERY) {
            self.pids = tree(self.root, &self.pids);
        }
        self.looks = self.looks.wrapping_add(1);
        let mut look = Look { at: now(), threads: vec![] };
        let mut alive = Vec::with_capacity(self.pids.len());
        for pid in self.pids.clone() {
            let before = look.threads.len();
            for tid in tasks(pid) {
                look.threads.extend(self.files.read(pid, tid, status));
            }
            if pid == self.root || look.threads.len() > before {
                alive.push(pid);
            }
        }
        self.pids = alive;
        let files = &mut self.files.threads;
        if files.len() > look.threads.len() {
            files.retain(|tid, _| look.threads.iter().any(|thread| thread.tid == *tid));
        }
        look
    }
}

/// The files of threads, which stay open for as many as may be.
pub(crate) struct OpenFiles {
    threads: BTreeMap<u32, Files>,
    /// Threads whose files are kept open.
    most: usize,
}

impl OpenFiles {
    /// For so many threads at the most; fewer where the process may not have four files open for each.
    pub(crate) fn of(most: usize) -> OpenFiles {
        OpenFiles { threads: BTreeMap::new(), most: crate::most_open(4, most) }
    }

    /// Closes those of a thread that has ended.
    pub(crate) fn close(&mut self, tid: u32) {
        self.threads.remove(&tid);
    }

    /// What a thread did so far; `None` if it has ended. `status` decides whether switches and states are read, too.
    pub(crate) fn read(&mut self, pid: u32, tid: u32, status: bool) -> Option<ThreadLook> {
        let path = |name: &str| format!("/proc/{pid}/task/{tid}/{name}");
        let keep = self.threads.len() < self.most || self.threads.contains_key(&tid);
        let files = self.threads.entry(tid).or_insert(Files { pid, schedstat: None, status: None });
        if files.pid != pid {
            *files = Files { pid, schedstat: None, status: None };
        }
        if files.schedstat.is_none() {
            files.schedstat = File::open(path("schedstat")).ok();
        }
        let read = files.schedstat.as_ref().and_then(schedstat);
        if status && files.status.is_none() {
            files.status = File::open(path("status")).ok();
        }
        let status = if status { files.status.as_ref().and_then(read_status) } else { None };
        if !keep || read.is_none() {
            self.threads.remove(&tid);
        }
        let Sched { run_ns, wait_ns, .. } = read?;
        Some(ThreadLook { tid, run_ns, wait_ns, status })
    }
}

fn schedstat(file: &File) -> Option<Sched> {
    let mut text = [0u8; 80];
    let length = file.read_at(&mut text, 0).ok()?;
    Sched::parse(std::str::from_utf8(&text[..length]).ok()?)
}

fn read_status(file: &File) -> Option<Status> {
    let mut text = [0u8; 4096];
    let length = file.read_at(&mut text, 0).ok()?;
    status(&String::from_utf8_lossy(&text[..length]))
}

/// The lines of a `status` that count. Its first, the name, may be anything but has no end of line (it is escaped).
fn status(text: &str) -> Option<Status> {
    let value =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    Some(Status {
        voluntary: value("voluntary_ctxt_switches")?.parse().ok()?,
        involuntary: value("nonvoluntary_ctxt_switches")?.parse().ok()?,
        runnable: value("State")?.starts_with('R'),
    })
}

/// What this process used so far (getrusage(2)).
#[must_use]
pub fn own() -> Usage {
    used_by(libc::RUSAGE_SELF)
}

/// What children of this process used that it has waited for, so far.
#[must_use]
pub fn ended_children() -> Usage {
    used_by(libc::RUSAGE_CHILDREN)
}

fn used_by(who: libc::c_int) -> Usage {
    // SAFETY: rusage is plain data for which zero is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer leads to a writable value of the right type.
    unsafe { libc::getrusage(who, &raw mut usage) };
    Usage::from(&usage)
}

/// CPU time of a process so far, up to this moment; `None` if there is none or it is not ours to ask.
#[must_use]
pub fn cpu_of(pid: u32) -> Option<Duration> {
    let mut clock = 0;
    // SAFETY: the pointer leads to a writable value of the right type.
    if unsafe { libc::clock_getcpuclockid(pid.cast_signed(), &raw mut clock) } != 0 {
        return None;
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: as above.
    let read = unsafe { libc::clock_gettime(clock, &raw mut time) };
    let nanos = u32::try_from(time.tv_nsec).ok()?;
    (read == 0).then(|| Duration::new(time.tv_sec.unsigned_abs(), nanos))
}

/// CPU time of this process, which is what looking costs.
#[must_use]
pub fn own_cpu() -> Duration {
    clock(ClockId::ProcessCPUTime)
}

/// CPU time of the calling thread.
#[must_use]
pub fn this_threads_cpu() -> Duration {
    clock(ClockId::ThreadCPUTime)
}

pub(crate) fn clock(id: ClockId) -> Duration {
    Duration::try_from(clock_gettime(id)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn sees_what_threads_of_this_process_ran_and_how_often_they_blocked() {
        let (tell, told) = std::sync::mpsc::channel::<()>();
        let (answer, answered) = std::sync::mpsc::channel::<u32>();
        let thread = std::thread::spawn(move || {
            let tid = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
            answer.send(tid).unwrap();
            while told.recv().is_ok() {
                answer.send(0).unwrap();
            }
        });
        let tid = answered.recv().unwrap();
        let mut sampler = ThreadSampler::new(std::process::id());
        let find = |look: &Look| *look.threads.iter().find(|thread| thread.tid == tid).unwrap();
        let before = find(&sampler.look(true));
        for _ in 0..50 {
            tell.send(()).unwrap();
            answered.recv().unwrap();
        }
        let after = find(&sampler.look(true));
        let blocked = after.status.unwrap().voluntary - before.status.unwrap().voluntary;
        // It may find a message there already, or block more than once for one (on a lock, on a wake-up too early).
        assert!((1..=200).contains(&blocked), "{blocked}");
        assert!(after.run_ns > before.run_ns);
        assert_eq!(find(&sampler.look(false)).status, None);
        drop(tell);
        thread.join().unwrap();
        assert!(sampler.look(false).threads.iter().all(|thread| thread.tid != tid), "it has ended");
    }

    #[test]
    fn processes_below_are_seen_and_forgotten() {
        let mut child =
            Command::new("sh").args(["-c", "cat & read x; wait"]).stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let mut sampler = ThreadSampler::new(pid);
        let deadline = now() + Duration::from_secs(20);
        while sampler.look(false).threads.len() < 2 {
            assert!(now() < deadline, "cat is not seen");
        }
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(sampler.look(true).threads.is_empty());
    }

    #[test]
    fn as_many_files_are_kept_as_may_be_and_no_thread_is_missed() {
        let mut children: Vec<_> =
            (0..4).map(|_| Command::new("cat").stdin(Stdio::piped()).spawn().unwrap()).collect();
        let mut sampler = ThreadSampler::new(std::process::id());
        sampler.files.most = 3;
        for status in [true, false, true] {
            let look = sampler.look(status);
            for child in &children {
                let seen = look.threads.iter().find(|thread| thread.tid == child.id()).unwrap();
                assert_eq!(seen.status.is_some(), status);
            }
            assert!(sampler.files.threads.len() <= 3);
        }
        for child in &mut children {
            drop(child.stdin.take());
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_status_is_read_line_by_line() {
        let text = "Name:\tvoluntary_ctxt_switches: 7\nState:\tR (running)\nTgid:\t1\n\
            voluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t545\n";
        let expected = Status { voluntary: 150, involuntary: 545, runnable: true };
        assert_eq!(status(text), Some(expected));
        assert!(!status(&text.replace("R (running)", "S (sleeping)")).unwrap().runnable);
        assert_eq!(status("State:\tR\n"), None);
    }
}
