//! What searching may cost.

use std::time::Duration;

use super::race::Race;
use super::settle::LONGEST;

/// In the long run, as a part of the time in which the VM has something to do.
const PART: f64 = 0.02;
/// And besides, s.
const START: f64 = 1.5;

/// What searches cost so far, in seconds of the VM's work.
#[derive(Debug, Default)]
pub(super) struct Budget {
    worked: f64,
    lost: f64,
    least: f64,
}

impl Budget {
    /// The VM had something to do for so long.
    pub(super) fn works(&mut self, over: Duration) {
        self.worked += over.as_secs_f64();
    }

    /// What a search that begins now may cost; 0 or less: none may.
    pub(super) fn allowed(&self) -> f64 {
        START + PART * self.worked - self.lost
    }

    /// What is to be allowed before it is looked again though nothing changed: as much as the last race cost, twice that if it ended
    /// for that. A race of two turns tells nothing.
    pub(super) fn least(&self) -> f64 {
        self.least
    }

    pub(super) fn lose(&mut self, seconds: f64) {
        self.lost += seconds;
    }

    /// For a race that is over.
    pub(super) fn pay(&mut self, race: &Race) {
        self.lose(race.cost());
        if !race.few {
            let times = if race.is_spent() { 2.0 } else { 1.0 };
            self.least = (times * race.cost()).min(PART * LONGEST.as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_with_work_and_not_with_idling() {
        let mut budget = Budget::default();
        budget.works(Duration::from_secs(100));
        assert!((budget.allowed() - 3.5).abs() < 1e-9);
        budget.lose(5.0);
        assert!(budget.allowed() < 0.0);
    }
}
