//! What was learned of a VM: for each phase of its load, which count was best, and how one knows it again.

use std::collections::BTreeMap;

/// Two rates are the same if they differ by at most this part.
const ALIKE: f64 = 0.15;
/// Phases remembered of a VM.
const PHASES: usize = 16;

/// What a count did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Mark {
    /// Worth per second, and pCPUs used of its cap: what that lets pass for a while is no other phase.
    pub(super) value: f64,
    pub(super) used: f64,
}

/// A phase of a VM's load.
#[derive(Clone, Debug)]
pub(super) struct Phase {
    /// pCPUs that were available.
    available: u32,
    marks: BTreeMap<u32, Mark>,
    pub(super) best: u32,
}

/// Phases, the last one learned at the end.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory(Vec<Phase>);

impl Memory {
    /// The phase that did the same at this count.
    pub(super) fn recall(&self, available: u32, count: u32, mark: Mark) -> Option<&Phase> {
        let known = self.0.iter().rev().filter(|phase| phase.available == available);
        known.into_iter().find(|phase| phase.marks.get(&count).is_some_and(|known| alike(*known, mark, 0.0)))
    }

    /// Remembers a phase, in the place of one that looks the same.
    pub(super) fn learn(&mut self, available: u32, marks: BTreeMap<u32, Mark>, best: u32) {
        self.0.retain(|old| {
            let common: Vec<_> =
                old.marks.iter().filter_map(|(n, mark)| Some((*mark, *marks.get(n)?))).collect();
            old.available != available || common.is_empty() || !common.iter().all(|(a, b)| alike(*a, *b, 0.0))
        });
        if self.0.len() == PHASES {
            self.0.remove(0);
        }
        self.0.push(Phase { available, marks, best });
    }

    /// Another count is best in the phase that was learned last.
    pub(super) fn correct(&mut self, best: u32) {
        self.0.iter_mut().next_back().into_iter().for_each(|phase| phase.best = best);
    }
}

/// Whether two marks are of the same load. `slack`: what counting may add to or take from a value.
pub(super) fn alike(a: Mark, b: Mark, slack: f64) -> bool {
    let near = |a: f64, b: f64, slack: f64| (a - b).abs() <= ALIKE * a.max(b) + slack;
    near(a.value, b.value, slack) && near(a.used, b.used, 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_is_known_again_by_what_it_does_at_a_count() {
        let mark = |value| Mark { value, used: 4.0 };
        let mut memory = Memory::default();
        memory.learn(4, [(16, mark(100.0)), (4, mark(900.0))].into(), 4);
        memory.learn(4, [(16, mark(500.0)), (4, mark(50.0))].into(), 16);
        assert_eq!(memory.recall(4, 16, mark(105.0)).map(|p| p.best), Some(4));
        assert_eq!(memory.recall(4, 16, mark(480.0)).map(|p| p.best), Some(16));
        assert!(memory.recall(4, 16, mark(250.0)).is_none());
        assert!(memory.recall(8, 16, mark(100.0)).is_none(), "other pCPUs");
        memory.learn(4, [(16, mark(102.0)), (4, mark(890.0))].into(), 5);
        assert_eq!(memory.recall(4, 16, mark(100.0)).map(|p| p.best), Some(5), "learned anew");
        assert_eq!(memory.0.len(), 2);
    }
}
