//! On which pCPUs a VM's vCPUs run: the seam for placement.

use std::fmt::Debug;

use super::Action;
use super::policy::Placer;
use crate::machine::{HostEstimate, Snapshot};

/// A way to place vCPUs.
pub trait Place: Debug {
    /// What to pin where, by what was seen of the host. `excluded`: left alone, by its owner's wish.
    fn place(&mut self, now: &Snapshot, seen: &HostEstimate, excluded: &dyn Fn(&str) -> bool) -> Vec<Action>;
}

/// One by its name; `None`: the host's scheduler places.
#[must_use]
pub fn placer(name: Placer) -> Option<Box<dyn Place + Send>> {
    match name {
        Placer::None => None,
    }
}
