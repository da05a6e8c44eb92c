//! In which timeslices a VM's vCPUs run: the seam for periods, bursts and proportional timeslices.

use std::fmt::Debug;

use super::Action;
use super::policy::Shaper;
use crate::machine::{HostEstimate, Snapshot};

/// A way to shape a VM's time.
pub trait Shape: Debug {
    /// Which limits to set, by what was seen of the host. `excluded`: left alone, by its owner's wish.
    fn shape(&mut self, now: &Snapshot, seen: &HostEstimate, excluded: &dyn Fn(&str) -> bool) -> Vec<Action>;
}

/// One by its name; `None`: as the host's scheduler does it.
#[must_use]
pub fn shaper(name: Shaper) -> Option<Box<dyn Shape + Send>> {
    match name {
        Shaper::None => None,
    }
}
