//! What `/proc` says about one process and about the CPUs.
//!
//! Sources: proc(5); kernel Documentation/scheduler/sched-stats.rst (`schedstat`),
//! Documentation/admin-guide/cgroup-v2.rst, kernel/sched/core.c (`sched_prio_to_weight`).

use std::str::FromStr;
use std::time::Duration;

use corefit_core::{CpuId, CpuSet, CpuTimes, ProcessTimes, TaskTimes};

use crate::root::{ReadError, Root, optional};

/// Nanoseconds in a tick of `/proc` (`USER_HZ` is 100 on all of today's machines).
pub(crate) const TICK_NS: u64 = 10_000_000;
/// `PF_KTHREAD`, include/linux/sched.h.
const KERNEL_THREAD: u64 = 0x0020_0000;
/// `SCHED_IDLE`, include/uapi/linux/sched.h.
const SCHED_IDLE: i64 = 5;
/// What such a thread weighs where a nice-0 thread weighs 1024 (kernel/sched/sched.h).
const IDLE_WEIGHT: f64 = 3.0;

/// One process.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Process {
    pub(crate) name: String,
    pub(crate) started_ticks: u64,
    /// What each thread weighs where a nice-0 thread weighs 1024 (by the main thread's nice value).
    pub(crate) weight: f64,
    pub(crate) times: ProcessTimes,
}

/// Reads `/proc/PID/stat` and the `schedstat` of each of its threads.
///
/// On a kernel without `schedstat`, one entry holds the CPU time of all threads, without waiting.
///
/// `None` for a thread of the kernel, unless `kernel_too`.
pub(crate) fn process(root: &Root, pid: u32, kernel_too: bool) -> Result<Option<Process>, ReadError> {
    let path = format!("/proc/{pid}/stat");
    let text = root.read(&path)?;
    let stat = parse_stat(&text)
        .ok_or_else(|| ReadError::malformed(&path, 1, &text, "process status (see proc(5))"))?;
    if stat.flags & KERNEL_THREAD != 0 && !kernel_too {
        return Ok(None);
    }
    let tids = if stat.threads <= 1 {
        vec![pid]
    } else {
        let names = root.dirs(&format!("/proc/{pid}/task"))?;
        names.iter().filter_map(|name| name.parse().ok()).collect()
    };
    let mut tasks = Vec::with_capacity(tids.len());
    for tid in tids {
        tasks.extend(optional(schedstat(root, pid, tid))?);
    }
    if tasks.is_empty() {
        let run_ns = ns(stat.cpu_ticks);
        tasks.push(TaskTimes { tid: pid, run_ns, wait_ns: None });
    }
    let ended_children_ns = ns(stat.ended_children_ticks);
    Ok(Some(Process {
        started_ticks: stat.started_ticks,
        weight: stat.weight(),
        name: stat.name,
        times: ProcessTimes { pid, parent: stat.parent, tasks, ended_children_ns, cpuset: None },
    }))
}

/// What a nice value weighs where nice 0 weighs 1024: each step is a factor of 1.25, which
/// is within 2 % of the kernel's table `sched_prio_to_weight`.
pub(crate) fn nice_weight(nice: i64) -> f64 {
    let nice = i32::try_from(nice.clamp(-20, 19)).unwrap_or(0);
    (1024.0 / 1.25_f64.powi(nice)).round()
}

fn schedstat(root: &Root, pid: u32, tid: u32) -> Result<TaskTimes, ReadError> {
    let path = format!("/proc/{pid}/task/{tid}/schedstat");
    let Sched { run_ns, wait_ns, .. } = Sched::of(&path, &root.read(&path)?)?;
    Ok(TaskTimes { tid, run_ns, wait_ns: Some(wait_ns) })
}

/// What a `schedstat` of `/proc` says of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sched {
    /// Time on a CPU, ns.
    pub(crate) run_ns: u64,
    /// Time that it was runnable but not running, ns.
    pub(crate) wait_ns: u64,
    /// How often it was put on a CPU.
    pub(crate) runs: Option<u64>,
}

impl Sched {
    /// `None` if one of the times is missing, or is no number.
    pub(crate) fn parse(text: &str) -> Option<Sched> {
        let mut fields = text.split_ascii_whitespace().map(|field| field.parse().ok());
        Some(Sched { run_ns: fields.next()??, wait_ns: fields.next()??, runs: fields.next().flatten() })
    }

    /// Of the text of the file at this path.
    pub(crate) fn of(path: &str, text: &str) -> Result<Sched, ReadError> {
        Sched::parse(text).ok_or_else(|| ReadError::malformed(path, 1, text, "pair of times in ns"))
    }
}

/// The status of one thread.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Task {
    pub(crate) name: String,
    /// Of the kernel, working for others.
    pub(crate) kernel: bool,
    /// Started at, since boot.
    pub(crate) started: Duration,
    /// Where a nice-0 thread weighs 1024.
    pub(crate) weight: f64,
    /// Runs before all that have weights: `SCHED_FIFO`, `SCHED_RR`, `SCHED_DEADLINE`.
    pub(crate) realtime: bool,
    /// Where it ran last.
    pub(crate) on: Option<CpuId>,
}

/// Reads a `stat` of `/proc` (of a process: that of its main thread).
pub(crate) fn task(path: &str, text: &str) -> Result<Task, ReadError> {
    let stat = parse_stat(text)
        .ok_or_else(|| ReadError::malformed(path, 1, text, "process status (see proc(5))"))?;
    Ok(Task {
        kernel: stat.flags & KERNEL_THREAD != 0,
        started: Duration::from_nanos(ns(stat.started_ticks)),
        weight: stat.weight(),
        realtime: is_realtime(stat.policy),
        on: stat.on.map(CpuId),
        name: stat.name,
    })
}

/// What a `stat` of `/proc` says after the name, which is in parentheses and may itself hold anything, parentheses included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'t>(&'t str);

impl<'t> Fields<'t> {
    /// Of the text of a `stat`.
    pub(crate) fn of(text: &'t (impl AsRef<[u8]> + ?Sized)) -> Option<Fields<'t>> {
        let text = text.as_ref();
        let name_ends = text.iter().rposition(|byte| *byte == b')')?;
        std::str::from_utf8(&text[name_ends + 1..]).ok().map(Fields)
    }

    /// A field by its number in proc(5), 3 or more.
    pub(crate) fn field<T: FromStr>(self, number: usize) -> Option<T> {
        self.0.split_ascii_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
    }

    /// R, S, D, T (stopped), t (traced), Z and so on.
    pub(crate) fn state(self) -> Option<char> {
        self.field(3)
    }
}

/// Whether a thread runs, or is ready to, by its `stat`.
pub(crate) fn is_ready(stat: &str) -> bool {
    Fields::of(stat).and_then(Fields::state) == Some('R')
}

/// Whether threads of a scheduling policy run before all that have weights (sched(7)).
pub(crate) fn is_realtime(policy: i64) -> bool {
    [libc::SCHED_FIFO, libc::SCHED_RR, libc::SCHED_DEADLINE].iter().any(|p| i64::from(*p) == policy)
}

struct Stat {
    name: String,
    parent: u32,
    flags: u64,
    cpu_ticks: u64,
    ended_children_ticks: u64,
    nice: i64,
    threads: u64,
    started_ticks: u64,
    on: Option<u32>,
    policy: i64,
}

impl Stat {
    fn weight(&self) -> f64 {
        if self.policy == SCHED_IDLE { IDLE_WEIGHT } else { nice_weight(self.nice) }
    }
}

fn parse_stat(text: &str) -> Option<Stat> {
    let (name, _) = text.split_once('(')?.1.rsplit_once(')')?;
    let fields = Fields::of(text)?;
    let sum = |first| fields.field::<u64>(first)?.checked_add(fields.field(first + 1)?);
    Some(Stat {
        name: name.into(),
        parent: fields.field(4)?,
        flags: fields.field(9)?,
        cpu_ticks: sum(14)?,
        ended_children_ticks: sum(16)?,
        nice: fields.field(19)?,
        threads: fields.field(20)?,
        started_ticks: fields.field(22)?,
        on: fields.field(39),
        policy: fields.field(41)?,
    })
}

/// The affinity mask of a process (of its main thread).
pub(crate) fn affinity(root: &Root, pid: u32) -> Result<(CpuSet, String), ReadError> {
    let path = format!("/proc/{pid}/status");
    let text = root.read(&path)?;
    let mut lines = text.lines().enumerate();
    let found = lines.find_map(|(i, line)| Some((i + 1, line.strip_prefix("Cpus_allowed_list:")?)));
    let Some((line, list)) = found else {
        let last = text.lines().count().max(1);
        return Err(ReadError::malformed(&path, last, "", "end of a status with Cpus_allowed_list"));
    };
    let set = list.parse().map_err(|_| ReadError::malformed(&path, line, list.trim(), "CPU list"))?;
    Ok((set, path))
}

/// What a line of CPU times of `/proc/stat` says, in ticks since boot (proc(5)). Times of guests are not told apart: they are in
/// `user` and `nice`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticks {
    /// Programs with a nice value of 0 or less.
    pub user: u64,
    /// Programs that are nicer.
    pub nice: u64,
    /// The kernel for them.
    pub system: u64,
    /// Nobody.
    pub idle: u64,
    /// Nobody, while somebody waited for a disk.
    pub iowait: u64,
    /// Interrupts.
    pub irq: u64,
    /// What interrupts left to be done later.
    pub softirq: u64,
    /// The hypervisor ran something else; `None` if the line ends before.
    pub steal: Option<u64>,
}

impl Ticks {
    /// Whose line this is; `None` if it is no single CPU's.
    #[must_use]
    pub fn cpu(line: &str) -> Option<CpuId> {
        line.split_ascii_whitespace().next()?.strip_prefix("cpu")?.parse().ok().map(CpuId)
    }

    /// Of a line, which begins with a name; `None` if times are missing, or are no numbers.
    #[must_use]
    pub fn of(line: &str) -> Option<Ticks> {
        let mut fields = line.split_ascii_whitespace().skip(1).map(str::parse);
        let mut next = || fields.next()?.ok();
        Some(Ticks {
            user: next()?,
            nice: next()?,
            system: next()?,
            idle: next()?,
            iowait: next()?,
            irq: next()?,
            softirq: next()?,
            steal: fields.next().transpose().ok()?,
        })
    }

    /// All but idle and stolen time.
    #[must_use]
    pub fn busy(&self) -> u64 {
        [self.nice, self.system, self.irq, self.softirq]
            .iter()
            .fold(self.user, |sum, n| sum.saturating_add(*n))
    }

    /// Nobody ran.
    pub(crate) fn all_idle(&self) -> u64 {
        self.idle.saturating_add(self.iowait)
    }
}

/// Ticks in nanoseconds.
pub(crate) fn ns(ticks: u64) -> u64 {
    ticks.saturating_mul(TICK_NS)
}

/// Idle and stolen time per CPU, from `/proc/stat`.
pub(crate) fn cpu_times(root: &Root) -> Result<Vec<CpuTimes>, ReadError> {
    let path = "/proc/stat";
    let text = root.read(path)?;
    let mut cpus = Vec::new();
    for (i, line) in text.lines().enumerate() {
        if !line.starts_with("cpu") {
            break;
        }
        if line.starts_with("cpu ") {
            continue; // the sum
        }
        let bad = || ReadError::malformed(path, i + 1, line, "line of CPU times");
        let cpu = Ticks::cpu(line).ok_or_else(bad)?;
        let ticks = Ticks::of(line).ok_or_else(bad)?;
        let steal = ticks.steal.ok_or_else(bad)?;
        cpus.push(CpuTimes { cpu, idle_ns: ns(ticks.all_idle()), steal_ns: ns(steal) });
    }
    if cpus.is_empty() {
        return Err(ReadError::malformed(path, 1, text.lines().next().unwrap_or(""), "line of CPU times"));
    }
    Ok(cpus)
}

/// The automatic group of a process's session (sched(7), "The autogroup feature"): its name
/// and what it weighs where a default group weighs 1024. `None` if it has none.
pub(crate) fn autogroup(root: &Root, pid: u32) -> Result<Option<(String, f64)>, ReadError> {
    let path = format!("/proc/{pid}/autogroup");
    let Some(text) = optional(root.read(&path))? else {
        return Ok(None);
    };
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let parsed = text.split_once(" nice ").and_then(|(name, nice)| Some((name, nice.parse().ok()?)));
    let (name, nice) = parsed.ok_or_else(|| ReadError::malformed(&path, 1, text, "automatic group"))?;
    Ok(Some((name.into(), nice_weight(nice))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::testing::tree;

    const STAT: &str = "7 (a (b) c) S 3 7 7 0 -1 4194304 1 0 0 0 30 12 4 1 39 19 1 0 5555 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0\n";

    #[test]
    fn a_name_with_parentheses_and_blanks_does_not_shift_the_fields() {
        let (_dir, root) = tree(&[("proc/7/stat", STAT), ("proc/7/task/7/schedstat", "420000000 17 9\n")]);
        let process = process(&root, 7, false).unwrap().unwrap();
        assert_eq!((process.name.as_str(), process.times.parent), ("a (b) c", 3));
        assert_eq!((process.weight, process.started_ticks), (15.0, 5555));
        assert_eq!(process.times.ended_children_ns, 50_000_000);
        assert_eq!(process.times.tasks, [TaskTimes { tid: 7, run_ns: 420_000_000, wait_ns: Some(17) }]);
    }

    #[test]
    fn fields_are_counted_from_the_last_parenthesis() {
        let fields = Fields::of(b"7 (a) \xff b (c)) T 3 7".as_slice()).unwrap();
        assert_eq!((fields.state(), fields.field(4), fields.field::<u32>(6)), (Some('T'), Some(3), None));
        assert!(Fields::of("").is_none() && Fields::of("7 (x)").unwrap().state().is_none());
    }

    #[test]
    fn without_schedstat_the_ticks_of_the_process_count_and_waiting_is_unknown() {
        let (_dir, root) = tree(&[("proc/7/stat", STAT)]);
        let tasks = process(&root, 7, false).unwrap().unwrap().times.tasks;
        assert_eq!(tasks, [TaskTimes { tid: 7, run_ns: 420_000_000, wait_ns: None }]);
    }

    #[test]
    fn a_thread_of_the_kernel_is_told_by_its_flags() {
        let stat = STAT.replace("4194304", "2129984");
        let (_dir, root) = tree(&[("proc/7/stat", &stat)]);
        assert_eq!(process(&root, 7, false).unwrap(), None);
        assert!(process(&root, 7, true).unwrap().is_some());
    }

    #[test]
    fn damaged_files_are_named_with_the_line() {
        let (_dir, root) = tree(&[
            ("proc/1/stat", "1 (a) S 1\n"),
            ("proc/1/status", "Name:\ta\nCpus_allowed_list:\t0-x\n"),
            ("proc/2/status", "Name:\ta\n"),
            ("proc/7/stat", STAT),
            ("proc/7/task/7/schedstat", "99999999999999999999999 1 1\n"),
            ("proc/stat", "cpu  1 2\ncpu0 1 2 3\n"),
            ("proc/1/autogroup", "what\n"),
        ]);
        let errors = [
            process(&root, 1, false).unwrap_err(),
            affinity(&root, 1).unwrap_err(),
            affinity(&root, 2).unwrap_err(),
            process(&root, 7, false).unwrap_err(),
            cpu_times(&root).unwrap_err(),
            autogroup(&root, 1).unwrap_err(),
        ];
        let starts = [
            "/proc/1/stat, line 1: \"1 (a) S 1\" is no",
            "/proc/1/status, line 2: \"0-x\" is no CPU list",
            "/proc/2/status, line 1: \"\" is no end of a status with Cpus_allowed_list",
            "/proc/7/task/7/schedstat, line 1: \"99999999999999999999999 1 1\" is no",
            "/proc/stat, line 2: \"cpu0 1 2 3\" is no",
            "/proc/1/autogroup, line 1: \"what\" is no",
        ];
        for (error, start) in errors.iter().zip(starts) {
            assert!(error.to_string().starts_with(start), "{error}");
        }
    }

    #[test]
    fn what_a_line_does_not_say_is_not_zero() {
        let sched = |runs| Some(Sched { run_ns: 42, wait_ns: 17, runs });
        let lines = ["42 17 9\n", "42 17\n", "42 17 x\n"].map(Sched::parse);
        assert_eq!(lines, [sched(Some(9)), sched(None), sched(None)]);
        assert_eq!(["", "42\n", "42 x 9\n"].map(Sched::parse), [None; 3]);
        let steal = |line: &str| Ticks::of(line).map(|ticks| ticks.steal);
        assert_eq!(steal("cpu3 1 2 3 40 2 1 1 5 0 0"), Some(Some(5)));
        assert_eq!(steal("cpu3 1 2 3 40 2 1 1"), Some(None));
        assert_eq!([steal("cpu3 1 2 3 40 2 1"), steal("cpu3 1 2 3 40 2 1 1 x")], [None; 2]);
        assert_eq!(
            ["cpu3 1", "cpu  9 9", "cpux 1", "intr 1", ""].map(Ticks::cpu),
            [Some(CpuId(3)), None, None, None, None]
        );
    }

    #[test]
    fn waiting_for_a_disk_counts_as_idle() {
        let (_dir, root) = tree(&[("proc/stat", "cpu  0\ncpu3 1 1 1 40 2 1 1 5 0 0\nintr 1\n")]);
        let times = CpuTimes { cpu: CpuId(3), idle_ns: 420_000_000, steal_ns: 50_000_000 };
        assert_eq!(cpu_times(&root).unwrap(), [times]);
    }
}
