//! The races of a host: VMs that want to race at the same time race together, and one race is on at a time.

use std::time::Duration;

use super::race::{Dues, Entrant, Neighbour, Race};
use super::stat::Look;
use crate::machine::VmId;

/// Who races. First all VMs tell what they did or that they want to race (`report`, `join`), then time
/// goes on for all ([`Races::step`]), then each is told its count.
#[derive(Debug, Default)]
pub(crate) struct Races {
    wanted: Vec<Entrant>,
    looks: Vec<(VmId, Look)>,
    seen: Vec<Neighbour>,
    /// What VMs got when all had VCPU-Bal's counts.
    dues: Dues,
    running: Option<Race>,
    over: Option<Race>,
    /// Somebody waits for the race to end.
    hurry: bool,
}

impl Races {
    /// All have told what they did in this time.
    pub(crate) fn step(&mut self, over: Duration) {
        let (looks, seen) = (std::mem::take(&mut self.looks), std::mem::take(&mut self.seen));
        self.over = None;
        let hurry = std::mem::take(&mut self.hurry);
        if let Some(mut race) = self.running.take() {
            race.see(over.as_secs_f64(), seen, &looks);
            let ended = !(hurry && race.break_off()) && race.look(over, &looks);
            if ended {
                race.pay(&mut self.dues);
            }
            *(if ended { &mut self.over } else { &mut self.running }) = Some(race);
        } else if !self.wanted.is_empty() {
            self.running = Some(Race::new(&std::mem::take(&mut self.wanted), self.dues.clone()));
        }
    }

    /// What a VM did in this time, whether or not it takes part: units of work per second, where somebody counts them, pCPUs used and waited
    /// for.
    pub(crate) fn see(&mut self, id: &VmId, rate: Option<f64>, used: f64, waiting: f64) {
        if self.running.is_some() {
            self.seen.push(Neighbour { id: id.clone(), rate, used, waiting });
        }
    }

    /// Whether no race is on, so that one can begin.
    pub(super) fn is_free(&self) -> bool {
        self.running.is_none()
    }

    /// A VM that has to race, for nobody knows its number, waits for the one that is on: if that is only about better numbers than those
    /// known, it is broken off.
    pub(super) fn hurry(&mut self) {
        self.hurry = true;
    }

    pub(super) fn join(&mut self, entrant: Entrant) {
        self.wanted.push(entrant);
    }

    pub(super) fn report(&mut self, id: &VmId, look: Look) {
        self.looks.push((id.clone(), look));
    }

    /// The race that a VM takes part in, and whether it ended with this step.
    pub(super) fn of(&self, id: &VmId) -> Option<(&Race, bool)> {
        let race = self.running.as_ref().map(|race| (race, false)).or(self.over.as_ref().map(|r| (r, true)));
        race.filter(|(race, _)| race.count(id).is_some())
    }
}
