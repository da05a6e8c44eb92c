//! What a placement costs: parts in order, none of which is ever traded for a later one.

use std::ops::{Add, AddAssign, Sub, SubAssign};

use serde::ser::{Serialize, SerializeStruct, Serializer};

/// A pCPU, or a vCPU that is always busy, in the numbers that costs are counted in.
pub(super) const WHOLE: i64 = 100_000;
/// Demands are rounded to this: smaller differences are not worth a move.
pub(super) const STEP: i64 = WHOLE / 20;

const PARTS: usize = 7;
/// The parts, the most important first.
pub(super) const STACKED: usize = 0;
pub(super) const SHARING: usize = 1;
pub(super) const COMPETING: usize = 2;
pub(super) const SLOW: usize = 3;
pub(super) const HARM: usize = 4;
pub(super) const SPREAD: usize = 5;
pub(super) const MOVES: usize = 6;

/// What a placement costs. Compared part by part: the first part that differs decides.
///
/// Where each vCPU v has a home, with l(p) the demand on pCPU p and u(p) = min(1, l(p)):
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost(pub(super) [i64; PARTS]);

impl Cost {
    /// Stacked pairs: vCPUs of one VM on one pCPU.
    #[must_use]
    pub fn stacked(&self) -> i64 {
        self.0[STACKED]
    }

    /// Pairs of vCPUs on one pCPU, each by the product of their demands: who of them both want to run, waits.
    #[must_use]
    pub fn sharing(&self) -> f64 {
        self.pairs(SHARING)
    }

    /// Competing pairs: of pCPUs of one unit, by the product of their utilisations u (P4, III-F).
    #[must_use]
    pub fn competing(&self) -> f64 {
        self.pairs(COMPETING)
    }

    /// pCPUs that are lost because work is on slower ones (hybrid hosts).
    #[must_use]
    pub fn slow(&self) -> f64 {
        float(self.0[SLOW]) / float(WHOLE)
    }

    /// Competition and slowness again, each by the rank of its victim: 0 for the VM of the lowest priority and
    /// weight, 1 for the next one, and so on.
    #[must_use]
    pub fn harm(&self) -> f64 {
        self.pairs(HARM)
    }

    /// What caches and nodes cost, in pairs: of vCPUs of a VM on different nodes and sockets (of one that is
    /// communicating, caches, too), of cache-hungry vCPUs on one cache; and vCPUs far from their memory.
    #[must_use]
    pub fn spread(&self) -> f64 {
        self.pairs(SPREAD)
    }

    /// vCPUs that leave where they are: 2 if that is outside of their present affinity, 1 if it is inside.
    #[must_use]
    pub fn moves(&self) -> i64 {
        self.0[MOVES]
    }

    fn pairs(&self, part: usize) -> f64 {
        float(self.0[part]) / float(WHOLE) / float(WHOLE)
    }
}

fn float(n: i64) -> f64 {
    n as f64
}

impl Add for Cost {
    type Output = Cost;
    fn add(mut self, other: Cost) -> Cost {
        self += other;
        self
    }
}

impl Sub for Cost {
    type Output = Cost;
    fn sub(mut self, other: Cost) -> Cost {
        self -= other;
        self
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a += b);
    }
}

impl SubAssign for Cost {
    fn sub_assign(&mut self, other: Cost) {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a -= b);
    }
}

impl Serialize for Cost {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_struct("Cost", PARTS)?;
        map.serialize_field("stacked", &self.stacked())?;
        map.serialize_field("sharing_pairs", &self.sharing())?;
        map.serialize_field("competing_pairs", &self.competing())?;
        map.serialize_field("slow_pcpus", &self.slow())?;
        map.serialize_field("harm", &self.harm())?;
        map.serialize_field("spread_pairs", &self.spread())?;
        map.serialize_field("moves", &self.moves())?;
        map.end()
    }
}
