//! Samples of a process tree, cheap enough for 20 a second: CPU time used and waited for by
//! all its threads, and the idle and stolen time of the CPUs that it may use.
//!
//! Sources: `/proc/PID/task/TID/schedstat` (nanoseconds on a CPU, nanoseconds runnable but
//! waiting: kernel Documentation/scheduler/sched-stats.rst), `/proc/stat` (ticks of 10 ms),
//! `/proc/PID/task/TID/children`, `sched_getaffinity`.
//! Measured here: about 3 us a thread and 15 us for `/proc/stat` (`corefit bench` shows it).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use corefit_core::{CpuId, CpuSet, Time};
use rustix::time::ClockId;

use crate::affinity::Mask;
use crate::allowed::Allowed;
use crate::cgroup::mounts::mounts;
use crate::proc::{Fields, Ticks, ns};
use crate::root::Root;
use crate::self_view::shows_the_machine;
use crate::threads::{OpenFiles, clock};

/// Threads whose files are kept open, at the most; beyond, files are opened for each sample.
const KEPT_OPEN: usize = 512;
/// A tree is searched for new processes every so many samples.
const SEARCH_EVERY: u32 = 4;
/// More room than any `/proc/stat` takes.
const LONGEST_STAT: usize = 1 << 24;

/// One sample: counters since the sampler began (threads that ended stay counted).
#[derive(Clone, Debug, Default)]
pub struct TreeSample {
    /// When it was taken.
    pub at: Time,
    /// CPU time of all threads of the tree.
    pub run: Duration,
    /// Time that they were runnable but not running.
    pub wait: Duration,
    /// Threads alive.
    pub threads: usize,
    /// CPU time per live process.
    pub processes: BTreeMap<u32, Duration>,
    /// CPUs that the root process may use (affinity and cpuset together), whatever it binds its threads to.
    pub allowed: CpuSet,
    /// Idle time per CPU.
    pub idle: BTreeMap<CpuId, Duration>,
    /// Stolen time per CPU (the hypervisor ran something else).
    pub steal: BTreeMap<CpuId, Duration>,
}

struct Thread {
    pid: u32,
    run_ns: u64,
    wait_ns: u64,
    seen: u32,
}

/// Reads samples of the tree below one process.
pub struct TreeSampler {
    root: u32,
    allowed_of: u32,
    pids: Vec<u32>,
    threads: BTreeMap<u32, Thread>,
    files: OpenFiles,
    allowed: Allowed,
    /// No `schedstat` could be read so far.
    blind: bool,
    ended_run_ns: u64,
    ended_wait_ns: u64,
    /// Of those who were taken in late, what they had run and waited by then: it is of no interval.
    past_run_ns: u64,
    past_wait_ns: u64,
    round: u32,
    stat: Option<File>,
    /// Room for `/proc/stat`: it has a line for each CPU online, also for those that are not allowed.
    text: Vec<u8>,
}

impl TreeSampler {
    /// A sampler for `root` and its descendants. The CPUs allowed are those of the process
    /// `allowed_of`: `root` itself, unless somebody sets its affinity.
    #[must_use]
    pub fn new(root: u32, allowed_of: u32) -> TreeSampler {
        TreeSampler {
            root,
            allowed_of,
            pids: vec![root],
            threads: BTreeMap::new(),
            files: OpenFiles::of(KEPT_OPEN),
            allowed: Allowed::default(),
            blind: true,
            ended_run_ns: 0,
            ended_wait_ns: 0,
            past_run_ns: 0,
            past_wait_ns: 0,
            round: 0,
            stat: machine_stat(&Root::live()),
            text: vec![0; 4096 + 256 * std::thread::available_parallelism().map_or(64, usize::from)],
        }
    }

    /// Processes of the tree at the last search.
    #[must_use]
    pub fn pids(&self) -> &[u32] {
        &self.pids
    }

    /// Takes these processes in, too: those of the tree whose parent ended before a search found them.
    pub fn know(&mut self, pids: impl Iterator<Item = u32>) {
        for pid in pids {
            if self.pids.contains(&pid) {
                continue;
            }
            self.pids.push(pid);
            for look in tasks(pid).into_iter().filter_map(|tid| self.files.read(pid, tid, false)) {
                self.past_run_ns += look.run_ns;
                self.past_wait_ns += look.wait_ns;
            }
        }
    }

    /// Whether nothing could be read so far of what threads get (no `/proc/PID/task/TID/schedstat`).
    #[must_use]
    pub fn is_blind(&self) -> bool {
        self.blind
    }

    /// Whether the CPUs allowed at the last sample are not just those of the root's main thread.
    #[must_use]
    pub fn allowed_apart(&self) -> bool {
        self.allowed_of != self.root || self.allowed.apart
    }

    /// Threads of the tree at the last sample.
    pub fn tids(&self) -> impl Iterator<Item = u32> + '_ {
        self.threads.keys().copied()
    }

    /// Takes a sample. What has ended meanwhile is skipped; never an error.
    pub fn sample(&mut self) -> TreeSample {
        if self.round.is_multiple_of(SEARCH_EVERY) {
            self.pids = tree(self.root, &self.pids);
        }
        self.round = self.round.wrapping_add(1);
        for pid in self.pids.clone() {
            self.read_process(pid);
        }
        let mut sample = TreeSample { at: now(), ..TreeSample::default() };
        self.retire();
        let (mut run_ns, mut wait_ns) = (self.ended_run_ns, self.ended_wait_ns);
        for thread in self.threads.values() {
            run_ns += thread.run_ns;
            wait_ns += thread.wait_ns;
            *sample.processes.entry(thread.pid).or_default() += Duration::from_nanos(thread.run_ns);
        }
        sample.run = Duration::from_nanos(run_ns.saturating_sub(self.past_run_ns));
        sample.wait = Duration::from_nanos(wait_ns.saturating_sub(self.past_wait_ns));
        sample.threads = self.threads.len();
        sample.allowed = self.allowed().unwrap_or_default();
        self.read_stat(&mut sample);
        sample
    }

    fn allowed(&mut self) -> Option<CpuSet> {
        if self.allowed_of != self.root {
            return affinity(self.allowed_of);
        }
        let others = self.threads.iter().filter(|(tid, of)| of.pid == self.root && **tid != self.root);
        let others = others.filter_map(|(tid, _)| mask(*tid));
        Some(self.allowed.look(mask(self.root)?, others, &mask(std::process::id())?))
    }

    fn read_process(&mut self, pid: u32) {
        for tid in tasks(pid) {
            let Some(look) = self.files.read(pid, tid, false) else { continue };
            self.blind = false;
            let thread = Thread { pid, run_ns: look.run_ns, wait_ns: look.wait_ns, seen: self.round };
            let before = self.threads.insert(tid, thread);
            // Another thread has its number now.
            if let Some(ended) = before.filter(|old| old.pid != pid || old.run_ns > look.run_ns) {
                self.ended_run_ns += ended.run_ns;
                self.ended_wait_ns += ended.wait_ns;
            }
        }
    }

    /// Moves threads that this round did not see to the ended ones.
    fn retire(&mut self) {
        let round = self.round;
        let (run, wait) = (&mut self.ended_run_ns, &mut self.ended_wait_ns);
        self.threads.retain(|tid, thread| {
            let alive = thread.seen == round;
            if !alive {
                self.files.close(*tid);
                *run += thread.run_ns;
                *wait += thread.wait_ns;
            }
            alive
        });
        let root = self.root;
        let alive: Vec<u32> = self.threads.values().map(|t| t.pid).collect();
        self.pids.retain(|pid| *pid == root || alive.contains(pid));
    }

    fn read_stat(&mut self, sample: &mut TreeSample) {
        let Some(file) = &self.stat else { return };
        let length = loop {
            match file.read_at(&mut self.text, 0).unwrap_or(0) {
                full if full == self.text.len() && full < LONGEST_STAT => self.text.resize(2 * full, 0),
                length => break length,
            }
        };
        // What has no end is cut off.
        let whole = self.text[..length].iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
        for line in String::from_utf8_lossy(&self.text[..whole]).lines().skip(1) {
            if !line.starts_with("cpu") {
                break;
            }
            let (Some(cpu), Some(ticks)) = (Ticks::cpu(line), Ticks::of(line)) else { continue };
            sample.idle.insert(cpu, Duration::from_nanos(ns(ticks.all_idle())));
            sample.steal.extend(ticks.steal.map(|steal| (cpu, Duration::from_nanos(ns(steal)))));
        }
    }
}

/// The machine's idle and stolen time; none where another file is mounted over it (lxcfs shows a container's own).
fn machine_stat(root: &Root) -> Option<File> {
    let path = "/proc/stat";
    let own = mounts(root).map_or(true, |mounts| shows_the_machine(path, &mounts));
    own.then(|| root.open(path).ok())?
}

/// Time since boot, the clock of every sample.
#[must_use]
pub fn now() -> Time {
    Time(0) + clock(ClockId::Boottime)
}

/// CPUs that a process may run on, as the scheduler enforces it now.
#[must_use]
pub fn affinity(pid: u32) -> Option<CpuSet> {
    Some(mask(pid)?.cpus())
}

fn mask(pid: u32) -> Option<Mask> {
    let pid = libc::pid_t::try_from(pid).ok().filter(|pid| *pid != 0)?;
    Mask::of(pid).ok()
}

/// Whether a thread runs before all that have weights, by the kernel; not if it has ended.
pub(crate) fn is_realtime(tid: u32) -> bool {
    // SAFETY: takes a number only, any number.
    let policy = libc::pid_t::try_from(tid).map_or(-1, |tid| unsafe { libc::sched_getscheduler(tid) });
    crate::proc::is_realtime(i64::from(policy & !libc::SCHED_RESET_ON_FORK))
}

/// Lets a thread run on these CPUs only. A thread that has ended, or is not ours to place,
/// stays as it is.
pub fn set_affinity(tid: u32, cpus: &CpuSet) {
    if let Some(tid) = libc::pid_t::try_from(tid).ok().filter(|tid| *tid != 0) {
        let _ = Mask::from(cpus).set(tid);
    }
}

/// Whether a process has ended: it is gone, or a zombie whose parent has not asked for its status yet.
/// (A process whose main thread alone has ended looks like a zombie, too, but has other threads.) What
/// cannot be read is taken to live.
#[must_use]
pub fn has_ended(pid: u32) -> bool {
    let text = match fs::read(format!("/proc/{pid}/stat")) {
        Ok(text) => text,
        Err(why) => return why.kind() == std::io::ErrorKind::NotFound,
    };
    let state = Fields::of(&text).and_then(Fields::state);
    state.is_some_and(|state| matches!(state, 'Z' | 'X')) && tasks(pid).len() <= 1
}

/// The processes of the tree below `root`. Children whose parent has ended belong to init and are no longer
/// ours, but for those already `known`.
pub(crate) fn tree(root: u32, known: &[u32]) -> Vec<u32> {
    let mut found = vec![root];
    found.extend(known.iter().filter(|p| **p != root));
    let mut next = 0;
    while let Some(&pid) = found.get(next) {
        next += 1;
        for tid in tasks(pid) {
            let path = format!("/proc/{pid}/task/{tid}/children");
            let children = fs::read_to_string(path).unwrap_or_default();
            for child in children.split_whitespace().filter_map(|c| c.parse().ok()) {
                if !found.contains(&child) {
                    found.push(child);
                }
            }
        }
    }
    found
}

/// The threads of a process; none if it has ended.
#[must_use]
pub fn tasks(pid: u32) -> Vec<u32> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    entries.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::testing::tree;
    use std::process::{Command, Stdio};

    #[test]
    fn a_zombie_has_ended_a_sleeping_process_has_not() {
        let mut child = Command::new("sh").args(["-c", "read x"]).stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        assert!(!has_ended(pid) && !has_ended(std::process::id()));
        drop(child.stdin.take());
        let deadline = now() + Duration::from_secs(20);
        while !has_ended(pid) {
            assert!(now() < deadline, "the zombie is not recognised");
        }
        assert!(std::path::Path::new("/proc").join(pid.to_string()).exists(), "nobody has waited for it");
        child.wait().unwrap();
        assert!(has_ended(pid));
    }

    #[test]
    fn sees_the_cpu_time_of_this_process_and_of_its_children() {
        let mut sampler = TreeSampler::new(std::process::id(), std::process::id());
        let before = sampler.sample();
        // A child that burns a known amount of CPU time before it is read, then waits for us.
        let mut child = Command::new("sh")
            .args(["-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; read x"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id();
        let deadline = now() + Duration::from_secs(20);
        let seen = loop {
            let sample = sampler.sample();
            let used = sample.processes.get(&pid).copied().unwrap_or_default();
            if used > Duration::from_millis(2) || now() > deadline {
                break sample;
            }
        };
        assert!(seen.processes[&pid] > Duration::from_millis(2));
        assert!(seen.run > before.run);
        drop(child.stdin.take());
        child.wait().unwrap();
        let after = sampler.sample();
        assert!(after.run >= seen.run, "ended threads stay counted");
        assert!(!after.processes.contains_key(&pid));
        assert!(!after.allowed.is_empty());
        assert!(after.idle.len() >= after.allowed.len());
    }

    #[test]
    fn a_process_that_is_not_below_the_root_is_sampled_once_it_is_known_and_as_long_as_it_lives() {
        let mut children = [(); 2].map(|()| {
            let mut sh = Command::new("sh");
            let text = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; read x";
            sh.args(["-c", text]).stdin(Stdio::piped()).spawn().unwrap()
        });
        let [root, other] = children.each_ref().map(std::process::Child::id);
        // Both are done with their work, and wait.
        let past = [root, other].map(|pid| {
            let mut sampler = TreeSampler::new(pid, pid);
            let (mut run, mut same) = (Duration::ZERO, 0);
            while same < 20 || run.is_zero() {
                std::thread::sleep(Duration::from_millis(5));
                let now = sampler.sample().run;
                (same, run) = (if now == run { same + 1 } else { 0 }, now);
            }
            run
        });
        let mut sampler = TreeSampler::new(root, root);
        assert!(sampler.is_blind() && !sampler.sample().processes.contains_key(&other));
        assert!(!sampler.is_blind());
        for _ in 0..2 {
            sampler.know([other].into_iter());
            let sample = sampler.sample();
            assert!(sample.processes.contains_key(&other));
            assert_eq!(sample.run, past[0], "what it did before is of no interval");
        }
        for child in &mut children {
            drop(child.stdin.take());
            child.wait().unwrap();
        }
        assert!(sampler.sample().processes.is_empty());
        assert!(!sampler.pids().contains(&other));
        assert!(TreeSampler::new(other, other).sample().processes.is_empty());
    }

    #[test]
    fn what_a_thread_did_counts_once_its_number_is_anothers() {
        let me = std::process::id();
        for (pid, run_ns) in [(me, 1 << 60), (me + 1, 1)] {
            let mut sampler = TreeSampler::new(me, me);
            let ended = Thread { pid, run_ns, wait_ns: 1 << 50, seen: 0 };
            sampler.threads.insert(me, ended);
            let sample = sampler.sample();
            assert!(sample.run >= Duration::from_nanos(run_ns) + sample.processes[&me]);
            assert!(sample.wait >= Duration::from_nanos(1 << 50));
        }
    }

    /// What a sampler with room for so little reads of a `/proc/stat`.
    fn read(stat: &str, room: usize) -> TreeSample {
        let (dir, root) = tree(&[("proc/stat", stat)]);
        let mut sampler = TreeSampler::new(std::process::id(), std::process::id());
        (sampler.stat, sampler.text) = (machine_stat(&root), vec![0; room]);
        drop(dir);
        let mut sample = TreeSample::default();
        sampler.read_stat(&mut sample);
        sample
    }

    #[test]
    fn a_stat_with_lines_of_many_cpus_that_are_not_allowed_is_read_to_its_end() {
        let cpus = (0..128).map(|cpu| format!("cpu{cpu} 99 1 1 40 2 1 1 5 0 0\n"));
        let stat: String =
            ["cpu  9 9\n".into()].into_iter().chain(cpus).chain(["intr 1 2\n".into()]).collect();
        for room in [16, 1000, stat.len(), 1 << 20] {
            let sample = read(&stat, room);
            let last = CpuId(127);
            assert_eq!((sample.idle.len(), sample.steal.len()), (128, 128), "{room}");
            let times = (sample.idle[&last], sample.steal[&last]);
            assert_eq!(times, (Duration::from_millis(420), Duration::from_millis(50)), "{room}");
        }
    }

    #[test]
    fn a_line_of_stat_that_is_cut_off_says_nothing() {
        let sample = read("cpu  9 9\ncpu0 99 1 1 40 2 1 1 5 0 0\ncpu1 99 1 1 4", 4096);
        assert_eq!(sample.idle.keys().collect::<Vec<_>>(), [&CpuId(0)]);
    }

    #[test]
    fn a_stat_that_another_file_is_mounted_over_is_not_believed() {
        let stat = ("proc/stat", "cpu  9 9\ncpu0 99 1 1 40 2 1 1 5 0 0\n");
        let proc = "20 1 0:4 / /proc rw - proc proc rw\n";
        let over = "21 20 0:40 /proc/stat /proc/stat rw - fuse.lxcfs lxcfs rw\n";
        for (mounts, own) in [(proc.into(), true), (format!("{proc}{over}"), false)] {
            let (_dir, root) = tree(&[stat, ("proc/self/mountinfo", &mounts)]);
            assert_eq!(machine_stat(&root).is_some(), own, "{mounts}");
        }
    }

    /// Only root may make one real-time.
    #[test]
    fn a_real_time_thread_is_known_as_one() {
        let me = std::process::id();
        assert!(!is_realtime(me));
        let mut child = std::process::Command::new("chrt").args(["-f", "1", "sleep", "60"]).spawn().unwrap();
        let allowed =
            std::process::Command::new("chrt").args(["-f", "1", "true"]).status().unwrap().success();
        while allowed && !is_realtime(child.id()) && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        assert_eq!(is_realtime(child.id()), allowed);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
