//! `corefit run --lock`: corefit's lock in the place of the C library's.

use std::path::PathBuf;

use corefit_lock::shared::SharedCounters;
use serde::Serialize;

use super::Args;
use super::notes::Notes;
use super::report::round;
use crate::preload;

/// The library is preloaded, and tells here what it does.
pub(crate) struct Locks {
    counters: SharedCounters,
    counting: bool,
}

/// What `--lock` was good for, in the document of `--report`.
#[derive(Debug, Serialize)]
pub(crate) struct LockReport {
    /// Programs that loaded the library.
    programs: u64,
    /// Null unless `--report` asked for it.
    counts: Option<Counts>,
}

/// Of all threads of all programs.
#[derive(Debug, Serialize)]
struct Counts {
    /// Acquisitions of mutexes and spinlocks of ours.
    acquisitions: u64,
    /// Of those, acquisitions that had to wait; those that got the lock by spinning, without a sleep.
    contended: u64,
    spun: u64,
    /// Sleeps of waiters, and wake-ups by who released a lock.
    parks: u64,
    wake_ups: u64,
    /// Wake-ups of waiters that were not the next, and those of them, or of the next, that slept again.
    early_wake_ups: u64,
    wasted_wake_ups: u64,
    /// Timed waits that ran out.
    timed_out: u64,
    /// Waits on condition variables.
    condition_waits: u64,
    /// Time that contended acquisitions took together, and the longest.
    waited_s: f64,
    longest_wait_ms: f64,
}

impl Locks {
    /// Adds the library to those to be preloaded, if the user asked for it and it can be had.
    pub(crate) fn make(
        args: &Args,
        preloadable: Result<(), String>,
        libraries: &mut Vec<PathBuf>,
        notes: &mut Notes,
    ) -> Option<Locks> {
        if !args.lock {
            return None;
        }
        let library = preloadable.map_err(|why| format!("{why}, and it keeps the C library's locks"));
        let library = library.and_then(|()| preload::find(&preload::LOCK));
        let counting = args.report.is_some();
        let made = library.and_then(|library| {
            let counters = SharedCounters::create(counting);
            let counters = counters.map_err(|why| {
                format!("cannot make the shared counters ({why}): the program keeps the C library's locks")
            });
            counters.map(|counters| (library, Locks { counters, counting }))
        });
        match made {
            Ok((library, locks)) => {
                libraries.push(library);
                Some(locks)
            }
            Err(why) => {
                notes.warn(format!("--lock: {why}"));
                None
            }
        }
    }

    /// The variable by which programs find the counters.
    pub(crate) fn variable(&self) -> (&'static str, String) {
        self.counters.variable()
    }

    /// What has been counted until now.
    pub(crate) fn report(&self) -> LockReport {
        let stats = self.counters.sum();
        let s = |ns: u64| ns as f64 / 1e9;
        let counts = self.counting.then(|| Counts {
            acquisitions: stats.acquired,
            contended: stats.contended,
            spun: stats.spun,
            parks: stats.parks,
            wake_ups: stats.kicks,
            early_wake_ups: stats.early,
            wasted_wake_ups: stats.wasted,
            timed_out: stats.timed_out,
            condition_waits: stats.cond_waits,
            waited_s: round(s(stats.waited_ns)),
            longest_wait_ms: round(s(stats.longest_ns) * 1e3),
        });
        LockReport { programs: stats.processes, counts }
    }
}

impl LockReport {
    /// For people.
    pub(crate) fn line(&self) -> String {
        let programs = match self.programs {
            0 => return "--lock: no program loaded the library; statically linked ones, and those on another C library, keep their locks".into(),
            1 => "1 program".to_owned(),
            n => format!("{n} programs"),
        };
        let counts = self.counts.as_ref().map_or(String::new(), |c| {
            format!(
                ": {} acquisitions, {} contended ({} by spinning), {} sleeps, {} of {} wake-ups wasted, {:.3} s waited, at most {:.3} ms",
                c.acquisitions, c.contended, c.spun, c.parks, c.wasted_wake_ups, c.wake_ups, c.waited_s, c.longest_wait_ms
            )
        });
        format!("--lock: corefit's lock in {programs}{counts}")
    }
}
