//! One thread of a QEMU: what it is, what it did, and where it ran last.
//!
//! The kernel adds what a thread waited when it runs again. One that starves for seconds would look idle until then, so a thread
//! that stopped running is asked whether it is ready to, and what it is ready counts as waiting. (So does `host/tally.rs` for
//! groups. A sum over threads that come and go has to take off what was counted early; here one thread's own counter overtakes it.)

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use corefit_core::machine::Counters;
use corefit_core::{CpuId, CpuSet};

use crate::proc::{Fields, Sched, is_ready};

/// Files of threads that are open now.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// A file that stays open, which counts as one as long as it does.
struct Open(File);

impl Open {
    /// Keeps it open unless `most` are: the rest of what the process may open is for others, such as control groups, libvirt and
    /// who asks for the status.
    fn keep(file: File, most: usize) -> Option<Open> {
        if OPEN.fetch_add(1, Ordering::Relaxed) < most {
            return Some(Open(file));
        }
        OPEN.fetch_sub(1, Ordering::Relaxed);
        None
    }

    /// A quarter of what this process may have open.
    fn most() -> usize {
        crate::most_open(4, usize::MAX)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A thread, of which it is known what it did when it was read last.
pub(super) struct Thread {
    pub(super) tid: u32,
    path: String,
    /// Kept open where the process's limit allows it.
    file: Option<Open>,
    /// What it did, as it was read last; `None` if it could not be.
    done: Option<Sched>,
    /// Whether it ran between the last two readings; one that was read once may have.
    pub(super) ran: bool,
    /// Whether it had run at the look before, and whether it stopped and was ready at the latest one; when that was.
    ran_before: bool,
    stuck: bool,
    looked: Option<Instant>,
    /// What it waited, with what the kernel has not added yet, ns.
    waited: u64,
    /// What it had run when all threads of its QEMU were read last, ns.
    pub(super) ran_then: u64,
    on: Option<CpuId>,
    /// The look at which its place was looked up.
    placed: Option<u64>,
}

/// For how many threads a look still finds out where they ran last.
#[derive(Default)]
pub(super) struct Places {
    /// Which look it is.
    pub(super) look: u64,
    pub(super) left: usize,
    /// A place counts for so many looks.
    pub(super) lasts: u64,
}

impl Thread {
    pub(super) fn new(pid: u32, tid: u32) -> Thread {
        Thread::at(format!("/proc/{pid}/task/{tid}/schedstat"), tid)
    }

    /// The thread of this `schedstat`.
    pub(super) fn at(path: String, tid: u32) -> Thread {
        let file = File::open(&path).ok().and_then(|file| Open::keep(file, Open::most()));
        let (done, looked, on, placed) = Default::default();
        let (ran, ran_before, stuck) = (true, true, false);
        let (waited, ran_then) = (0, 0);
        Thread { tid, path, file, done, ran, ran_before, stuck, looked, waited, ran_then, on, placed }
    }

    /// What it did so far, as it was read last.
    pub(super) fn counters(&self) -> Counters {
        Counters {
            run_ns: self.done.map(|done| done.run_ns),
            wait_ns: self.done.map(|done| done.wait_ns.max(self.waited)),
            runs: self.done.and_then(|done| done.runs),
        }
    }

    /// Reads what it did; hands back what that is more than before, ns.
    pub(super) fn read(&mut self) -> (u64, u64) {
        let mut buffer = [0; 64];
        let length = match &self.file {
            Some(Open(file)) => file.read_at(&mut buffer, 0),
            None => File::open(&self.path).and_then(|file| file.read_at(&mut buffer, 0)),
        };
        let text = length.ok().and_then(|length| std::str::from_utf8(&buffer[..length]).ok());
        let before = std::mem::replace(&mut self.done, text.and_then(Sched::parse));
        let Some(now) = self.done else { return (0, 0) };
        let then = before.unwrap_or(now);
        let more = (now.run_ns.saturating_sub(then.run_ns), now.wait_ns.saturating_sub(then.wait_ns));
        self.ran = before.is_none() || more.0 > 0;
        more
    }

    /// Counts as waiting the time since the look before, if it ran then, or was stuck, and is ready to run but did not.
    pub(super) fn look(&mut self) {
        let now = Instant::now();
        let before = self.looked.replace(now);
        let stopped = !self.ran && (self.ran_before || self.stuck);
        self.ran_before = self.ran;
        self.stuck = stopped && self.stat().is_some_and(|text| is_ready(&text));
        self.waited = self.waited.max(self.done.map_or(0, |done| done.wait_ns));
        if let Some(before) = before.filter(|_| self.stuck) {
            let ns = now.saturating_duration_since(before).as_nanos();
            self.waited = self.waited.saturating_add(u64::try_from(ns).unwrap_or(0));
        }
    }

    /// The text of its `stat`, in one read.
    fn stat(&self) -> Option<String> {
        let mut buffer = [0; 1024];
        let file = File::open(self.path.replace("schedstat", "stat"));
        let length = file.and_then(|file| file.read_at(&mut buffer, 0)).ok()?;
        Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }

    /// What it ran since all threads of its QEMU were read, ns.
    pub(super) fn since_then(&self) -> u64 {
        self.done.map_or(0, |done| done.run_ns.saturating_sub(self.ran_then))
    }

    /// From now on, [`since_then`](Thread::since_then) counts.
    pub(super) fn mark(&mut self) {
        self.ran_then = self.done.map_or(0, |done| done.run_ns);
    }

    /// Where it ran last. Looks only if it ran since it was looked up, that is some time ago, and it may run at
    /// more than one place.
    pub(super) fn place(&mut self, affinity: Option<&CpuSet>, places: &mut Places) -> Option<CpuId> {
        let old = self.placed.is_none_or(|placed| places.look.saturating_sub(placed) >= places.lasts);
        match affinity.filter(|set| set.len() == 1) {
            Some(only) => self.on = only.iter().next(),
            None if self.ran && old && places.left > 0 => {
                places.left -= 1;
                self.placed = Some(places.look);
                self.on = self.stat().and_then(|text| Fields::of(&text)?.field(39)).map(CpuId);
            }
            None => {}
        }
        self.on
    }
}

/// What a thread of QEMU is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Vcpu(u32),
    Iothread(u32),
    Emulator,
}

impl Part {
    /// The name of the control group that libvirt puts it into.
    pub(super) fn group(self) -> String {
        match self {
            Part::Vcpu(number) => format!("vcpu{number}"),
            Part::Iothread(number) => format!("iothread{number}"),
            Part::Emulator => "emulator".into(),
        }
    }
}

/// Told by the name that QEMU gave it.
pub(super) fn role(name: &str) -> Part {
    let vcpu = || name.strip_prefix("CPU ")?.split_once('/')?.0.parse().ok();
    let iothread = || name.strip_prefix("IO iothread")?.parse().ok();
    match (vcpu(), iothread()) {
        (Some(number), _) => Part::Vcpu(number),
        (_, Some(number)) => Part::Iothread(number),
        _ => Part::Emulator,
    }
}

/// Whether a process has this thread, and it is this one.
pub(super) fn is_named(pid: u32, tid: u32, part: Part) -> bool {
    fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm")).is_ok_and(|name| role(name.trim_end()) == part)
}

/// The threads of a process: numbers and names.
pub(super) fn list(pid: u32) -> impl Iterator<Item = (u32, String)> {
    let dir = format!("/proc/{pid}/task");
    let entries = fs::read_dir(&dir).into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        let tid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let name = fs::read_to_string(format!("{dir}/{tid}/comm")).ok()?;
        Some((tid, name.trim_end().to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_told_by_the_names_that_qemu_gives_them() {
        for (name, part) in [
            ("CPU 12/KVM", Part::Vcpu(12)),
            ("CPU 0/TCG", Part::Vcpu(0)),
            ("IO iothread3", Part::Iothread(3)),
            ("IO mon_iothread", Part::Emulator),
            ("ALL CPUs/TCG", Part::Emulator),
            ("qemu-system-x86", Part::Emulator),
        ] {
            assert_eq!(role(name), part, "{name}");
        }
    }

    #[test]
    fn files_stay_open_only_up_to_a_number_and_are_read_all_the_same() {
        let me = std::process::id();
        let file = || File::open("/proc/self/schedstat").unwrap();
        assert!(Open::keep(file(), 0).is_none());
        assert!(Open::keep(file(), Open::most()).is_some());
        let mut thread = Thread::new(me, me);
        thread.file = None;
        thread.read();
        assert!(thread.counters().run_ns.is_some());
    }

    #[test]
    fn a_thread_tells_what_it_did_since_it_was_read_before_and_where() {
        let me = std::process::id();
        let mut thread = Thread::new(me, me);
        assert_eq!(thread.read(), (0, 0), "what it did before it was seen first does not count");
        let first = thread.counters();
        assert!(first.run_ns.is_some() && first.wait_ns.is_some());
        thread.read();
        assert!(thread.counters().run_ns >= first.run_ns);
        thread.mark();
        assert_eq!(thread.since_then(), 0);
        thread.ran = true;
        let mut places = Places { look: 1, left: 1, lasts: 3 };
        assert!(thread.place(None, &mut places).is_some());
        assert_eq!(places.left, 0);
        assert_eq!(thread.place("5".parse().ok().as_ref(), &mut places), Some(CpuId(5)));
    }

    #[test]
    fn a_thread_that_is_ready_and_does_not_run_waits_before_the_kernel_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        put("schedstat", "1000 20 1\n");
        put("stat", "7 (CPU 0/KVM) R 1 1\n");
        let mut thread = Thread::at(dir.path().join("schedstat").display().to_string(), 7);
        let mut look = |run: u64, waited: u64, state: char| {
            put("schedstat", &format!("{run} {waited} 1\n"));
            put("stat", &format!("7 (CPU ) S/KVM) {state} 1 1\n"));
            std::thread::sleep(std::time::Duration::from_millis(2));
            thread.read();
            thread.look();
            thread.counters().wait_ns.unwrap()
        };
        assert_eq!([look(1000, 20, 'R'), look(2000, 30, 'R')], [20, 30]);
        let stuck = look(2000, 30, 'R');
        assert!(stuck >= 2_000_030, "{stuck}");
        assert!(look(2000, 30, 'R') >= stuck + 2_000_000);
        // It runs again, and the kernel adds what it waited: that is counted already, but for what is more.
        let all = look(3000, 60_000_000_000, 'R');
        assert_eq!(all, 60_000_000_000);
        // Who sleeps does not wait, and who slept is not asked again until it ran.
        assert_eq!([look(3000, all, 'S'), look(3000, all, 'R')], [all, all]);
    }

    #[test]
    fn a_place_is_not_looked_up_again_while_it_lasts() {
        let me = std::process::id();
        let mut thread = Thread::new(me, me);
        let mut looked = |look| {
            let mut places = Places { look, left: 1, lasts: 3 };
            thread.ran = true;
            thread.place(None, &mut places);
            places.left == 0
        };
        assert_eq!([1, 2, 3, 4, 5].map(&mut looked), [true, false, false, true, false]);
    }

    #[test]
    fn a_thread_that_ended_has_no_counters() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mut thread = Thread::new(child.id(), child.id());
        thread.read();
        assert!(thread.counters().run_ns.is_some());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((thread.read(), thread.counters()), ((0, 0), Counters::default()));
    }
}
