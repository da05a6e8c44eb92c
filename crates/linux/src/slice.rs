//! Slices of single threads under the fair scheduler: `sched_runtime` of `sched_setattr` (Linux from 6.12 on;
//! kernel/sched/syscalls.c, `__setparam_fair`, `get_params`).
//!
//! The kernel does not tell a thread for which nothing is said from one that was given just the base slice; so that counts as
//! nothing said. A slice of corefit's is marked ([`SLICE_MARK_NS`]), and children inherit it. What is neither marked nor the
//! base slice is somebody else's, and never touched, thread by thread. Threads that have no slice (real-time, deadlines,
//! `SCHED_IDLE`, sched_ext) are left out.

use std::io;

use corefit_core::machine::{FairSlices, MachineError, SLICE_MARK_NS, is_our_slice};

/// Why there are none.
const NONE: &str =
    "slices of single threads cannot be set here: Linux has them from 6.12 on, under its fair scheduler";
/// Why this process cannot know.
const FAIR_ONLY: &str =
    "slices are seen and set by a process of the fair scheduler only: start corefit without chrt";
/// Threads that are started while slices are set are looked for so often.
const PASSES: usize = 8;
/// The first version of the structure in `sched_setattr(2)`.
const SIZE: u32 = 48;

/// Why nothing is known of slices where a look shows none.
pub(crate) fn none() -> &'static str {
    if attr(0).is_ok_and(|own| !is_fair(&own)) { FAIR_ONLY } else { NONE }
}

/// `struct sched_attr`, include/uapi/linux/sched/types.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Attr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// How this kernel slices now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slicer {
    base_ns: u64,
}

impl Slicer {
    /// Asks the kernel by this thread, which is left as it was; unsupported where threads have no slices, or this one has none.
    pub(crate) fn now() -> Result<Slicer, MachineError> {
        let unknown = |_| MachineError::Unsupported(NONE.into());
        let own = attr(0).map_err(unknown)?;
        if !has_slice(&own) {
            return Err(MachineError::Unsupported(none().into()));
        }
        // Without one of its own it has the base slice, unlike the one that it gets first.
        let found = write(0, &own, 100_000 + SLICE_MARK_NS).and_then(|()| {
            let set = attr(0)?.runtime == 100_000 + SLICE_MARK_NS;
            write(0, &own, 0)?;
            Ok((set, attr(0)?.runtime))
        });
        let (set, base_ns) = found.map_err(unknown)?;
        if own.runtime != base_ns {
            write(0, &own, own.runtime).map_err(unknown)?;
        }
        if set { Ok(Slicer { base_ns }) } else { Err(MachineError::Unsupported(NONE.into())) }
    }

    /// What slices some threads have; those that ended are left out. Without any, that of all others.
    pub(crate) fn view(self, threads: impl IntoIterator<Item = u32>) -> FairSlices {
        let base_ns = self.base_ns;
        let mut seen: Option<(u64, u64)> = None;
        let mut without = 0;
        for attr in threads.into_iter().filter_map(|tid| attr(tid).ok()) {
            if has_slice(&attr) {
                let (least, most) = seen.unwrap_or((attr.runtime, attr.runtime));
                seen = Some((least.min(attr.runtime), most.max(attr.runtime)));
            } else {
                without += 1;
            }
        }
        let (least_ns, most_ns) = seen.unwrap_or((base_ns, base_ns));
        FairSlices { base_ns, least_ns, most_ns, without }
    }

    /// What is set for some threads: a slice of ours if any has one; nothing if any has the base slice, or there is none; else
    /// what somebody else set.
    pub(crate) fn current(self, threads: &[u32]) -> Option<u64> {
        let set = |tid: &u32| attr(*tid).ok().filter(has_slice).map(|attr| attr.runtime);
        let found =
            threads.iter().filter_map(set).min_by_key(|ns| (!is_our_slice(*ns), *ns != self.base_ns, *ns));
        found.filter(|ns| *ns != self.base_ns)
    }

    /// Sets the slice of threads, and of those that they start meanwhile; `None`: the base slice. Those of somebody else stay.
    pub(crate) fn set(
        self,
        threads: impl Fn() -> Result<Vec<u32>, MachineError>,
        to: Option<u64>,
    ) -> Result<(), MachineError> {
        if to.is_some_and(|ns| !is_our_slice(ns) || !(100_000..=100_000_000).contains(&ns)) {
            let text = format!(
                "a slice of corefit's is from 100 us to 100 ms and {SLICE_MARK_NS} ns, not {to:?} ns"
            );
            return Err(MachineError::Malformed(text));
        }
        let wanted = to.unwrap_or(self.base_ns);
        for _ in 0..PASSES {
            let mut changed = false;
            for tid in threads()? {
                let Ok(now) = attr(tid) else { continue };
                let free = is_our_slice(now.runtime) || now.runtime == self.base_ns;
                if !has_slice(&now) || !free || now.runtime == wanted {
                    continue;
                }
                match write(tid, &now, to.unwrap_or(0)) {
                    Ok(()) => changed = true,
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                    Err(error) => {
                        return Err(MachineError::Denied(format!("the slice of thread {tid}: {error}")));
                    }
                }
                crate::between("slice-part");
            }
            if !changed {
                break;
            }
        }
        Ok(())
    }
}

/// Whether a thread has one: not so if it has ended.
pub(crate) fn has(tid: u32) -> bool {
    attr(tid).is_ok_and(|attr| has_slice(&attr))
}

fn is_fair(attr: &Attr) -> bool {
    [libc::SCHED_OTHER, libc::SCHED_BATCH].iter().any(|p| u32::try_from(*p) == Ok(attr.policy))
}

fn has_slice(attr: &Attr) -> bool {
    is_fair(attr) && attr.runtime > 0
}

/// How a thread is scheduled; 0: this one.
fn attr(tid: u32) -> io::Result<Attr> {
    let mut attr = Attr::default();
    // SAFETY: `attr` is as large as is said, and the kernel writes no more.
    let done = unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut attr, SIZE, 0_u32) };
    if done == 0 { Ok(attr) } else { Err(io::Error::last_os_error()) }
}

/// Sets a thread's slice; its policy, niceness and what its children get stay as they are in `now`, and clamps of its
/// utilisation, which are only written with a flag.
fn write(tid: u32, now: &Attr, slice_ns: u64) -> io::Result<()> {
    let flags = now.flags & u64::from(libc::SCHED_FLAG_RESET_ON_FORK.unsigned_abs());
    let attr = Attr { size: SIZE, flags, runtime: slice_ns, deadline: 0, period: 0, ..*now };
    // SAFETY: `attr` is as large as it says, and is only read.
    let done = unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const attr, 0_u32) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Child, Command};

    use super::*;

    const OURS: u64 = 300_000 + SLICE_MARK_NS;

    /// Nothing on kernels without slices of single threads.
    fn here() -> Option<Slicer> {
        let slicer = Slicer::now();
        if let Err(why) = &slicer {
            let _ = writeln!(std::io::stderr(), "skipped: {why}");
        }
        slicer.ok()
    }

    struct Sleeper(Child);

    impl Sleeper {
        fn start(command: &[&str]) -> Sleeper {
            Sleeper(Command::new(command[0]).args(&command[1..]).spawn().unwrap())
        }

        fn set(&self, slicer: Slicer, to: Option<u64>) -> Result<(), MachineError> {
            slicer.set(|| Ok(vec![self.0.id()]), to)
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_slice_is_set_read_back_and_undone_and_nothing_else_changes() {
        let Some(slicer) = here() else { return };
        let nice = (attr(std::process::id()).unwrap().nice + 5).min(19);
        let sleeper = Sleeper::start(&["nice", "-n", "5", "sleep", "60"]);
        let tid = sleeper.0.id();
        while attr(tid).unwrap().nice != nice {
            std::thread::yield_now();
        }
        assert_eq!(slicer.current(&[tid]), None);
        sleeper.set(slicer, Some(OURS)).unwrap();
        assert_eq!(slicer.current(&[tid]), Some(OURS));
        let (seen, now) = (slicer.view([tid]), attr(tid).unwrap());
        assert_eq!((seen.least_ns, seen.most_ns, seen.without), (OURS, OURS, 0));
        assert_eq!((now.nice, now.policy, now.flags), (nice, 0, 0));
        sleeper.set(slicer, None).unwrap();
        assert_eq!((slicer.current(&[tid]), attr(tid).unwrap().nice), (None, nice));
        assert_eq!(Slicer::now().unwrap().base_ns, slicer.base_ns);
    }

    #[test]
    fn what_somebody_else_set_is_never_touched() {
        let Some(slicer) = here() else { return };
        let sleeper = Sleeper::start(&["sleep", "60"]);
        let tid = sleeper.0.id();
        write(tid, &attr(tid).unwrap(), 700_000).unwrap();
        for to in [Some(OURS), None] {
            sleeper.set(slicer, to).unwrap();
            assert_eq!(slicer.current(&[tid]), Some(700_000));
        }
        assert!(matches!(sleeper.set(slicer, Some(700_000)), Err(MachineError::Malformed(_))));
        assert!(matches!(sleeper.set(slicer, Some(50_037)), Err(MachineError::Malformed(_))));
    }

    /// Only root may make one real-time.
    #[test]
    fn threads_that_have_none_are_counted_and_left_alone() {
        let Some(slicer) = here() else { return };
        let idle = Sleeper::start(&["chrt", "-i", "0", "sleep", "60"]);
        let batch = Sleeper::start(&["chrt", "-b", "0", "sleep", "60"]);
        let tids = [idle.0.id(), batch.0.id()];
        let policies = || tids.map(|tid| attr(tid).unwrap().policy);
        while policies() != [5, 3] {
            std::thread::yield_now();
        }
        slicer.set(|| Ok(tids.to_vec()), Some(OURS)).unwrap();
        assert_eq!((policies(), slicer.current(&tids)), ([5, 3], Some(OURS)));
        let seen = slicer.view(tids);
        assert_eq!((seen.least_ns, seen.without), (OURS, 1));
        assert_eq!((has(tids[0]), has(tids[1])), (false, true));
    }
}
