//! How much the program has done, told to the host that sizes this VM: the parallel regions of its teams.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use corefit_linux::page::Process;
use corefit_linux::progress::Counter;
use corefit_linux::told::is_told;

/// How often it is looked whether a host wants to know.
const AGAIN: Duration = Duration::from_secs(1);
/// Without a region for so long, nobody knows how much is done: there may be other work, or one long region.
const SILENT: Duration = Duration::from_secs(10);

/// Whether a host wants to know: it tells this guest something, and made the file.
pub(super) fn is_wanted() -> bool {
    is_told() && Counter::open().is_some()
}

/// Tells it, while a host wants to know.
#[derive(Debug, Default)]
pub(super) struct Teller {
    counter: Option<Counter>,
    looked: Option<Instant>,
    /// Regions of each program, by slot, process id and serial, as of the last call.
    known: BTreeMap<(usize, u32, u32), u64>,
    /// When there was a region last.
    last: Option<Instant>,
}

impl Teller {
    /// Whether a host listens. `change` is called when that begins or ends; what these programs did before is not told.
    pub(super) fn listens(&mut self, processes: &[Process], change: &mut dyn FnMut(bool)) -> bool {
        if self.looked.is_none_or(|at| at.elapsed() >= AGAIN) {
            self.looked = Some(Instant::now());
            let before = self.counter.is_some();
            self.counter = if is_told() { self.counter.take().or_else(Counter::open) } else { None };
            if before != self.counter.is_some() {
                grown(&mut self.known, processes, |_| false);
                change(self.counter.is_some());
            }
        }
        self.counter.is_some()
    }

    /// What these programs did since the last call, of those that count; before slots of ended ones are freed.
    pub(super) fn tell(&mut self, processes: &[Process], counts: impl Fn(&Process) -> bool) {
        let Some(counter) = &mut self.counter else { return };
        let grown = grown(&mut self.known, processes, counts);
        if grown > 0 {
            self.last = Some(Instant::now());
        }
        // That nothing was done for a moment is news, too.
        if self.last.is_some_and(|last| last.elapsed() < SILENT) {
            counter.add(grown);
        }
    }
}

/// Regions since the last call of those that count; `known` has those of then, and has those of now afterwards.
fn grown(
    known: &mut BTreeMap<(usize, u32, u32), u64>,
    processes: &[Process],
    counts: impl Fn(&Process) -> bool,
) -> u64 {
    let now = processes.iter().map(|p| ((p.slot, p.pid, p.serial), p.regions)).collect();
    let before = std::mem::replace(known, now);
    // Who claims a slot begins at none.
    let then = |p: &Process| before.get(&(p.slot, p.pid, p.serial)).copied().unwrap_or(0);
    processes.iter().filter(|p| counts(p)).map(|p| p.regions.saturating_sub(then(p))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_region_is_told_once_whoever_has_the_slot() {
        let program = |slot, serial, regions| Process {
            slot,
            pid: 4711,
            serial,
            requested: 4,
            team: 4,
            dynamic: false,
            gomp: true,
            kmp: false,
            regions,
            resized: 0,
            moves: 0,
            bound: 0,
        };
        let mut known = BTreeMap::new();
        let mut grown = |processes: &[Process]| super::grown(&mut known, processes, |p| !p.dynamic);
        assert_eq!(grown(&[program(0, 1, 5)]), 5);
        assert_eq!(grown(&[program(0, 1, 7), program(1, 1, 2)]), 4);
        assert_eq!(grown(&[program(0, 2, 3), program(1, 1, 2)]), 3, "by exec");
        assert_eq!(grown(&[]), 0);
        assert_eq!(grown(&[program(0, 3, 1)]), 1);
        let dynamic = |regions| Process { dynamic: true, ..program(0, 3, regions) };
        assert_eq!(grown(&[dynamic(6)]), 0, "its teams follow");
        assert_eq!(grown(&[program(0, 3, 8)]), 2, "no more");
    }
}
