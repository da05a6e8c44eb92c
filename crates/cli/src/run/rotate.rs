//! `--rotate`: sequential work goes over all CPUs in turn, on the time scale of the host's allocation period (P1, IV-B).
//!
//! Where an OpenMP program begins regions, the preload library moves the thread that begins them (`openmp/src/rotate.rs`).
//! While none begins, a thread of ours looks at the program's threads each turn: one that works while all others sleep
//! (`corefit_core::Turns`) is moved to the CPU where such work had least. Looks would cost a fork-join program more than
//! moving brings, and could not exchange its threads while they sleep.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use corefit_core::{CpuSet, Turns};
use corefit_linux::moving::{Mover, seat};
use corefit_linux::page::TeamPage;
use corefit_linux::threads::ThreadSampler;
use serde::Serialize;

use super::notes::Notes;
use super::report::{OpenMp, round};

/// Shorter turns cost more than they bring: each one that ends moves a thread away from its caches. Ours.
const SHORTEST: Duration = Duration::from_millis(2);
/// Between two looks, so many times as long as one takes passes at least.
const COST: u32 = 10;
/// Threads are looked at if no region has begun for so long: longer than vCPUs stand still whose time is used up. Ours.
const PATIENCE: Duration = Duration::from_secs(1);
/// Who binds an OpenMP program's threads; `OMP_PROC_BIND` may also say that they are not.
const BINDING: [&str; 4] = ["OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"];

/// Moves the sequential work of one run.
pub(crate) struct Rotation {
    turn: Duration,
    mover: Mover,
    looks: AtomicU64,
    moves: AtomicU64,
    /// Threads that chose their CPUs themselves.
    left: Mutex<BTreeSet<u32>>,
}

/// Ends [`Rotation::follow`] when it goes out of scope, after a panic, too: the flag, and the thread that looks at it.
pub(crate) struct End<'a>(pub(crate) &'a AtomicBool, pub(crate) Thread);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
        self.1.unpark();
    }
}

/// What became of it, in the document of `--report`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Rotated {
    /// A turn, s of the thread's CPU time.
    turn_s: f64,
    /// How often the program's threads were looked at.
    looks: u64,
    /// How often a thread was moved, those that began parallel regions included.
    moves: u64,
    /// Threads that were left alone, as the program set their affinity itself, and OpenMP processes with some.
    left_alone: usize,
}

impl Rotation {
    /// For turns on all CPUs within `period`; nothing, and a note, where there is nothing to move or it must not be.
    pub(crate) fn make(period: Duration, notes: &mut Notes) -> Option<Rotation> {
        let mover = Mover::new();
        let cpus = u32::try_from(mover.allowed().len()).unwrap_or(u32::MAX);
        if cpus < 2 {
            notes.keep("--rotate: there is one CPU: nothing to do".into());
            return None;
        }
        if let Some(bound) = bound(|name| std::env::var_os(name)) {
            notes.keep(format!("--rotate: {bound} binds the program's threads: they stay where they are"));
            return None;
        }
        let turn = (period / cpus).max(SHORTEST);
        Some(Rotation { turn, mover, looks: 0.into(), moves: 0.into(), left: Mutex::default() })
    }

    /// How long sequential work stays on a CPU, in CPU time of its thread.
    pub(crate) fn turn(&self) -> Duration {
        self.turn
    }

    /// Follows the program below `pid` until `ends`.
    pub(crate) fn follow(&self, pid: u32, page: Option<&TeamPage>, ends: &AtomicBool) {
        let regions = || page.map_or(0, |page| page.processes().iter().map(|process| process.regions).sum());
        // Whether a program has regions shows only after a while.
        let (mut begun, mut last): (u64, Instant) = (0, Instant::now());
        let mut sampler = ThreadSampler::new(pid);
        let mut turns = Turns::new(self.turn);
        let mut before = Instant::now();
        let mut cost = SHORTEST / COST;
        while !ends.load(Ordering::SeqCst) {
            let now = Instant::now();
            if std::mem::replace(&mut begun, regions()) != begun {
                last = now;
            }
            if now - last < PATIENCE {
                // What threads have run until now says nothing of the time after the regions.
                turns = Turns::new(self.turn);
                std::thread::park_timeout(PATIENCE / 4);
                continue;
            }
            let look = sampler.look(false);
            self.looks.fetch_add(1, Ordering::SeqCst);
            let ran: Vec<(u32, Duration)> =
                look.threads.iter().map(|thread| (thread.tid, Duration::from_nanos(thread.run_ns))).collect();
            self.mover.catch_up(&self.mover.allowed());
            let alone = turns.look(&ran, now.saturating_duration_since(before));
            before = now;
            if let Some(alone) = alone
                && let Some(seat) = seat(alone.tid)
            {
                let allowed = self.mover.allowed();
                let next = turns.next(alone, seat.cpu, &allowed);
                // Who sleeps cannot be moved; it will be found awake sooner or later.
                if let Some(to) = next.filter(|_| seat.running)
                    && self.is_free(alone.tid, &allowed)
                {
                    self.mover.shift(alone.tid, to, &allowed);
                    self.moves.fetch_add(1, Ordering::SeqCst);
                    turns.moved();
                }
            }
            // A look during which our CPU stood still says nothing of what one costs.
            cost = now.elapsed().min(cost * 2);
            std::thread::park_timeout(self.turn.max(cost * COST));
        }
    }

    fn is_free(&self, tid: u32, allowed: &CpuSet) -> bool {
        let free = self.mover.is_free(tid, allowed);
        if !free {
            self.left.lock().unwrap_or_else(PoisonError::into_inner).insert(tid);
        }
        free
    }

    /// What became of it, in the program's OpenMP processes, too.
    pub(crate) fn done(&self, processes: &[OpenMp]) -> Rotated {
        let own = processes.iter().filter(|process| process.bound > 0).count();
        Rotated {
            turn_s: round(self.turn.as_secs_f64()),
            looks: self.looks.load(Ordering::SeqCst),
            moves: self.moves.load(Ordering::SeqCst)
                + processes.iter().map(|p| u64::from(p.moves)).sum::<u64>(),
            left_alone: self.left.lock().unwrap_or_else(PoisonError::into_inner).len() + own,
        }
    }
}

impl Rotated {
    /// For people.
    pub(crate) fn line(&self) -> String {
        let turn = self.turn_s * 1e3;
        let mut text = match self.moves {
            0 => "--rotate: no thread worked alone for long".into(),
            1 => "--rotate: the thread that worked alone was moved once".into(),
            n => format!("--rotate: the thread that worked alone was moved {n} times"),
        };
        text += &format!(" (after {turn:.1} ms of its CPU time)");
        match self.left_alone {
            0 => {}
            1 => text += "; one set its own affinity and was left alone",
            n => text += &format!("; {n} set their own affinity and were left alone"),
        }
        text
    }
}

/// What the user set that binds threads, as `NAME=value`.
pub(super) fn bound(get: impl Fn(&str) -> Option<OsString>) -> Option<String> {
    let value = |name: &str| Some(get(name)?.to_string_lossy().into_owned()).filter(|v| !v.is_empty());
    let says_no = |text: &str| {
        let text = text.to_ascii_lowercase();
        ["false", "none", "disabled"].iter().any(|no| text.split(',').any(|word| word.trim() == *no))
    };
    if value("OMP_PROC_BIND").is_some_and(|text| says_no(&text)) {
        return None; // then none of the others counts (OpenMP 5.2, 21.1.5; libgomp's and libomp's documentation)
    }
    let set = BINDING.iter().filter_map(|name| Some((name, value(name)?)));
    set.filter(|(_, text)| !says_no(text)).map(|(name, text)| format!("{name}={text}")).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_the_user_bound_are_known() {
        let of = |set: &[(&str, &str)]| {
            bound(|name| set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()))
        };
        assert_eq!(of(&[]), None);
        for (name, value) in [
            ("OMP_PROC_BIND", "true"),
            ("OMP_PROC_BIND", "spread,close"),
            ("OMP_PLACES", "cores"),
            ("GOMP_CPU_AFFINITY", "0-3"),
            ("KMP_AFFINITY", "granularity=fine,compact"),
        ] {
            assert_eq!(of(&[(name, value)]), Some(format!("{name}={value}")));
        }
        for (name, value) in
            [("OMP_PROC_BIND", "FALSE"), ("KMP_AFFINITY", "none"), ("KMP_AFFINITY", "verbose,disabled")]
        {
            assert_eq!(of(&[(name, value)]), None, "{name}={value}");
        }
        assert_eq!(of(&[("OMP_PROC_BIND", "false"), ("OMP_PLACES", "cores")]), None);
    }
}
