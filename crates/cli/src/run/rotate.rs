//! `--rotate`: sequential work goes over all CPUs in turn, on the time scale of the host's allocation period (P1, IV-B).
//!
//! A thread of ours looks at the program's threads each turn. If one of them works alone, or most of the time alone
//! (`corefit_core::Turns`), it is moved to the CPU where such work had least; who runs there goes where it came from, so
//! that the kernel has no reason to undo that.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use corefit_core::{CpuId, CpuSet, Turns};
use corefit_linux::moving::{Mover, seat};
use corefit_linux::threads::ThreadSampler;
use serde::Serialize;

use super::notes::Notes;
use super::report::round;

/// Shorter turns cost more than they bring: each one that ends moves a thread away from its caches. Ours.
const SHORTEST: Duration = Duration::from_millis(2);
/// Between two looks, so many times as long as one takes passes at least.
const COST: u32 = 10;
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
    /// How often the program's threads were looked at, and how often one that worked alone was moved.
    looks: u64,
    moves: u64,
    /// Threads that were left alone, as the program set their affinity itself.
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

    /// Follows the program below `pid` until `ends`.
    pub(crate) fn follow(&self, pid: u32, ends: &AtomicBool) {
        let mut sampler = ThreadSampler::new(pid);
        let mut turns = Turns::new(self.turn);
        let mut before = Instant::now();
        let mut cost = SHORTEST / COST;
        while !ends.load(Ordering::SeqCst) {
            let begun = Instant::now();
            let look = sampler.look(false);
            self.looks.fetch_add(1, Ordering::SeqCst);
            let ran: Vec<(u32, Duration)> =
                look.threads.iter().map(|thread| (thread.tid, Duration::from_nanos(thread.run_ns))).collect();
            self.mover.catch_up(&self.mover.allowed());
            let alone = turns.look(&ran, begun.saturating_duration_since(before));
            before = begun;
            if let Some(alone) = alone
                && let Some(now) = seat(alone.tid)
            {
                let allowed = self.mover.allowed();
                let next = turns.next(alone, now.cpu, &allowed);
                // Who sleeps cannot be moved; it will be found awake sooner or later.
                if let Some(to) = next.filter(|_| now.running)
                    && self.is_free(alone.tid, &allowed)
                {
                    self.exchange(alone.tid, now.cpu, to, &ran, &allowed);
                    turns.moved();
                }
            }
            // A look during which our CPU stood still says nothing of what one costs.
            cost = begun.elapsed().min(cost * 2);
            std::thread::park_timeout(self.turn.max(cost * COST));
        }
    }

    /// Puts a thread on another CPU, and who runs there on the one that it leaves.
    fn exchange(&self, tid: u32, from: CpuId, to: CpuId, threads: &[(u32, Duration)], allowed: &CpuSet) {
        let there =
            |other: &u32| *other != tid && seat(*other).is_some_and(|seat| seat.running && seat.cpu == to);
        let other = threads.iter().map(|(other, _)| *other).find(there);
        if let Some(other) = other.filter(|other| self.is_free(*other, allowed)) {
            self.mover.shift(other, from, allowed);
        }
        self.mover.shift(tid, to, allowed);
        self.moves.fetch_add(1, Ordering::SeqCst);
    }

    fn is_free(&self, tid: u32, allowed: &CpuSet) -> bool {
        let free = self.mover.is_free(tid, allowed);
        if !free {
            self.left.lock().unwrap_or_else(PoisonError::into_inner).insert(tid);
        }
        free
    }

    /// What became of it.
    pub(crate) fn done(&self) -> Rotated {
        Rotated {
            turn_s: round(self.turn.as_secs_f64()),
            looks: self.looks.load(Ordering::SeqCst),
            moves: self.moves.load(Ordering::SeqCst),
            left_alone: self.left.lock().unwrap_or_else(PoisonError::into_inner).len(),
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
fn bound(get: impl Fn(&str) -> Option<OsString>) -> Option<String> {
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
