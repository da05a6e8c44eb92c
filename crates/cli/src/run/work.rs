//! How much the program has done, told to the host that sizes this VM: the parallel regions of its teams.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use corefit_linux::page::Process;
use corefit_linux::progress::{Counter, PATH};

/// How often it is looked whether a host wants to know.
const AGAIN: Duration = Duration::from_secs(1);

/// Whether a host wants to know.
pub(super) fn is_wanted() -> bool {
    Path::new(PATH).exists()
}

/// Tells it, if a host wants to know.
#[derive(Debug, Default)]
pub(super) struct Teller {
    counter: Option<Counter>,
    looked: Option<Instant>,
    /// Regions of each program, by slot, process id and serial, as they were told.
    told: BTreeMap<(usize, u32, u32), u64>,
}

impl Teller {
    /// Whether a host listens; `begins` is called when it begins to.
    pub(super) fn listens(&mut self, begins: &mut dyn FnMut()) -> bool {
        if self.counter.is_none() && self.looked.is_none_or(|at| at.elapsed() >= AGAIN) {
            self.looked = Some(Instant::now());
            self.counter = Counter::open();
            if self.counter.is_some() {
                begins();
            }
        }
        self.counter.is_some()
    }

    /// What these programs did since the last call; before slots of ended ones are freed.
    pub(super) fn tell(&mut self, processes: &[Process]) {
        let Some(counter) = &mut self.counter else { return };
        let grown = grown(&mut self.told, processes);
        // Also if nothing was done, which is news, too. A program without regions cannot be counted.
        if !self.told.is_empty() {
            counter.add(grown);
        }
    }
}

/// Regions since the last call; `told` has those of then, and has those of now afterwards.
fn grown(told: &mut BTreeMap<(usize, u32, u32), u64>, processes: &[Process]) -> u64 {
    let now = processes.iter().map(|p| ((p.slot, p.pid, p.serial), p.regions)).collect();
    let before = std::mem::replace(told, now);
    // Who claims a slot begins at none.
    let then = |p: &Process| before.get(&(p.slot, p.pid, p.serial)).copied();
    processes.iter().map(|p| p.regions.saturating_sub(then(p).unwrap_or(0))).sum()
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
        };
        let mut told = BTreeMap::new();
        assert_eq!(grown(&mut told, &[program(0, 1, 5)]), 5);
        assert_eq!(grown(&mut told, &[program(0, 1, 7), program(1, 1, 2)]), 4);
        assert_eq!(grown(&mut told, &[program(0, 2, 3), program(1, 1, 2)]), 3, "by exec");
        assert_eq!(grown(&mut told, &[]), 0);
        assert_eq!(grown(&mut told, &[program(0, 3, 1)]), 1);
    }
}
