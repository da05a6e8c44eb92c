//! How a group's level grows with what the group is offered.
//!
//! The level grows by what is offered over the weight of the children that are not satisfied: a line that bends
//! where a child is satisfied. Other limits of one child move one bend, so the line of all is shared, and what
//! has moved stands beside it: what every VM has available is asked for with each VM's limits in turn, and would
//! take the square of their number if each of them had all bends made anew.

use std::rc::Rc;

/// The level of a group, as a function of what it was offered.
#[derive(Clone, Debug, Default)]
pub(super) struct Curve {
    line: Rc<Line>,
    /// The child that is satisfied at another level than in the line, and never earlier.
    moved: Option<Moved>,
}

#[derive(Debug, Default)]
struct Line {
    /// The children that are satisfied some time, in that order.
    ends: Vec<End>,
    /// The weight of the others.
    forever: f64,
    /// Where the level grows faster than before: a child was satisfied.
    bends: Vec<Bend>,
}

/// A child that is satisfied at a level.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) level: f64,
    pub(super) weight: f64,
    /// A group's number; of a leaf [`LEAF`].
    pub(super) group: usize,
}

/// What ends is a leaf.
pub(super) const LEAF: usize = usize::MAX;

#[derive(Clone, Copy, Debug)]
struct Bend {
    offered: f64,
    level: f64,
    /// Of the children not yet satisfied.
    weight: f64,
}

#[derive(Clone, Copy, Debug)]
struct Moved {
    from: End,
    to: End,
}

impl End {
    /// Levels are not negative: their bits are in their order, and quicker to compare. (A sum of nothing is -0.0.)
    fn order(&self) -> u64 {
        (self.level + 0.0).to_bits()
    }
}

impl Curve {
    /// Of children that are satisfied some time, and the weight of those that never are.
    pub(super) fn new(mut ends: Vec<End>, forever: f64) -> Curve {
        ends.sort_unstable_by_key(End::order);
        let mut bends = vec![Bend { offered: 0.0, level: 0.0, weight: forever }; ends.len() + 1];
        // Sums from the end: no weight is left over by cancellation.
        for i in (0..ends.len()).rev() {
            bends[i].weight = bends[i + 1].weight + ends[i].weight;
        }
        for (i, &End { level, .. }) in ends.iter().enumerate() {
            let Bend { offered, level: from, weight } = bends[i];
            bends[i + 1].level = level;
            bends[i + 1].offered = offered + (level - from) * weight;
        }
        Curve { line: Rc::new(Line { ends, forever, bends }), moved: None }
    }

    /// When one of its groups is satisfied, if it is some time, and nothing has moved.
    pub(super) fn end_of(&self, group: usize) -> Option<End> {
        let end = self.line.ends.iter().find(|end| end.group == group);
        end.copied().filter(|_| self.moved.is_none())
    }

    /// The same with another end for one that it has; `None` if that comes earlier: what weighs then would be known to rounding only, and
    /// nothing has to be nothing.
    pub(super) fn with(&self, from: End, to: End) -> Option<Curve> {
        let later = to.level >= from.level;
        later.then(|| Curve { line: Rc::clone(&self.line), moved: Some(Moved { from, to }) })
    }

    /// The offered amount from which on all below have what they can take; infinite: never.
    pub(super) fn enough(&self) -> f64 {
        match self.line.bends.last() {
            Some(last) if self.line.forever == 0.0 => {
                self.offered_at(self.moved.map_or(last.level, |moved| moved.to.level.max(last.level)))
            }
            _ => f64::INFINITY,
        }
    }

    /// The level when so much was offered, and its growth when the offered amount grows at `speed`.
    pub(super) fn level(&self, offered: f64, speed: f64) -> (f64, f64) {
        let next = self.line.bends.partition_point(|bend| self.bend(bend).offered <= offered);
        let Some(mut bend) = next.checked_sub(1).and_then(|i| self.line.bends.get(i)).copied() else {
            return (0.0, 0.0);
        };
        let weight = bend.weight;
        bend = self.bend(&bend);
        if let Some(Moved { to, .. }) = self.moved.filter(|moved| moved.to.level > bend.level) {
            let satisfied = bend.offered + (to.level - bend.level) * bend.weight;
            if satisfied <= offered {
                bend = Bend { offered: satisfied, level: to.level, weight };
            }
        }
        if bend.weight > 0.0 {
            (bend.level + (offered - bend.offered) / bend.weight, speed / bend.weight)
        } else {
            (f64::INFINITY, 0.0)
        }
    }

    /// What brings the group to a level.
    pub(super) fn offered_at(&self, level: f64) -> f64 {
        let next = self.line.bends.partition_point(|bend| bend.level <= level);
        let bend = next.checked_sub(1).and_then(|i| self.line.bends.get(i));
        bend.map_or(0.0, |bend| bend.offered + (level - bend.level) * bend.weight + self.more(level))
    }

    /// A bend of the line, as it is with what has moved.
    fn bend(&self, bend: &Bend) -> Bend {
        let Some(Moved { from, to }) = self.moved else { return *bend };
        let more = match bend.level {
            level if level < from.level => to.weight - from.weight,
            level if level < to.level => to.weight,
            _ => 0.0,
        };
        Bend { offered: bend.offered + self.more(bend.level), level: bend.level, weight: bend.weight + more }
    }

    /// How much more than in the line the child that has moved has taken at a level.
    fn more(&self, level: f64) -> f64 {
        self.moved.map_or(0.0, |Moved { from, to }| {
            to.weight * level.min(to.level) - from.weight * level.min(from.level)
        })
    }
}
