//! Full sets that were found already.
//!
//! On a crowded host most VMs share one, and to find it is a walk over the host. What a leaf reaches is what another one reaches
//! if each of them reaches the other; so a walk ends when it comes to a leaf whose set is known and has its beginning in it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::division::FullSet;

/// The full sets of one division, remembered.
#[derive(Debug, Default)]
pub struct Crowds {
    /// The leaves of each, in order, and what is told of it.
    found: Vec<(Vec<usize>, Arc<FullSet>)>,
    /// Which of them belongs to a leaf.
    of: BTreeMap<usize, usize>,
}

impl Crowds {
    pub(super) fn of(&self, leaf: usize) -> Option<Arc<FullSet>> {
        self.of.get(&leaf).map(|&number| Arc::clone(&self.found[number].1))
    }

    /// Whether the set of a leaf is known, and another leaf is in it.
    pub(super) fn reaches(&self, leaf: usize, other: usize) -> bool {
        self.of.get(&leaf).is_some_and(|&number| self.found[number].0.binary_search(&other).is_ok())
    }

    /// The set of a leaf, which is that of another one whose set is known.
    pub(super) fn same(&mut self, leaf: usize, other: usize) -> Arc<FullSet> {
        let number = self.of[&other];
        self.of.insert(leaf, number);
        Arc::clone(&self.found[number].1)
    }

    /// The set of a leaf, with these leaves in order.
    pub(super) fn add(&mut self, leaf: usize, leaves: Vec<usize>, full: FullSet) -> Arc<FullSet> {
        self.of.insert(leaf, self.found.len());
        let full = Arc::new(full);
        self.found.push((leaves, Arc::clone(&full)));
        full
    }
}
