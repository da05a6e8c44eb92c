//! What searching may cost.

use super::LONGEST;
use super::race::Race;
use crate::Time;

/// In the long run, as a part of the VM's time.
const PART: f64 = 0.02;
/// And besides, s.
const START: f64 = 2.0;

/// What searches cost so far, in seconds of the VM's work.
#[derive(Debug, Default)]
pub(super) struct Budget {
    began: Option<Time>,
    lost: f64,
    least: f64,
}

impl Budget {
    /// The VM's time begins, if it has not yet.
    pub(super) fn begin(&mut self, at: Time) -> Time {
        *self.began.get_or_insert(at)
    }

    /// What a search that begins now may cost; 0 or less: none may.
    pub(super) fn allowed(&mut self, at: Time) -> f64 {
        START + PART * at.since(self.begin(at)).as_secs_f64() - self.lost
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
