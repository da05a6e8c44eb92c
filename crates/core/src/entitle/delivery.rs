//! What a group delivers to its leaves of what it was offered: a piecewise linear function.
//!
//! It is needed where leaves below stopped (what they are offered is lost) and a cap bounds the sum
//! of what is delivered: the group is satisfied when that sum has reached the cap.
//!
//! Example: two leaves of weight 1, one stopped at 0.2, the other with limit 1, under a cap of 0.8.
//! Up to an offer of 0.4 everything is delivered; then half of it. 0.8 are delivered at 1.2.

use super::tree::TIE;

/// Points (offered, delivered) from (0, 0); linear in between. Nothing more is delivered after the
/// last one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Delivery(Vec<(f64, f64)>);

/// A child as its group sees it.
pub(crate) struct Giver<'a> {
    pub(crate) weight: f64,
    /// Offered amount from which on it is satisfied.
    pub(crate) saturation: f64,
    /// Without a delivery function: what it takes, all that it is offered up to this.
    pub(crate) amount: f64,
    pub(crate) delivery: Option<&'a Delivery>,
}

/// At a level: how the growths of what is offered and delivered change, by level, and how many
/// children begin or cease to take something.
struct Change {
    level: f64,
    offered: f64,
    delivered: f64,
    takers: i64,
}

impl Delivery {
    /// Of a group with these children, and the offered amount at which the cap is reached
    /// (infinite if it is not).
    pub(crate) fn of<'a>(children: impl Iterator<Item = Giver<'a>>, cap: f64) -> (Delivery, f64) {
        let mut changes = Vec::new();
        for child in children {
            child.changes(&mut changes);
        }
        changes.sort_by(|a, b| a.level.total_cmp(&b.level));
        let mut points = vec![(0.0, 0.0)];
        let (mut level, mut offered, mut delivered) = (0.0, 0.0, 0.0);
        let (mut offering, mut delivering, mut takers) = (0.0, 0.0, 0);
        for change in changes {
            let step = change.level - level;
            if step > 0.0 {
                let next = delivered + delivering * step;
                if next >= cap {
                    let at = offered + offering * (cap - delivered) / delivering;
                    points.push((at, cap));
                    return (Delivery(points), at);
                }
                (level, offered, delivered) = (change.level, offered + offering * step, next);
                points.push((offered, delivered));
                if delivered >= cap - TIE {
                    return (Delivery(points), offered);
                }
            }
            offering += change.offered;
            delivering += change.delivered;
            takers += change.takers;
            if takers == 0 {
                delivering = 0.0; // not what rounding left
            }
        }
        let reached = if delivered >= cap - TIE { offered } else { f64::INFINITY };
        (Delivery(points), reached)
    }
}

impl Giver<'_> {
    fn changes(&self, changes: &mut Vec<Change>) {
        let weight = self.weight;
        let mut change = |at: f64, offered: f64, delivered: f64, takers: i64| {
            changes.push(Change {
                level: at / weight,
                offered: offered * weight,
                delivered: delivered * weight,
                takers,
            });
        };
        match self.delivery {
            None if self.amount > 0.0 => {
                change(0.0, 1.0, 1.0, 1);
                let satisfied = self.amount >= self.saturation;
                change(self.amount, if satisfied { -1.0 } else { 0.0 }, -1.0, -1);
            }
            None if self.saturation > 0.0 => change(0.0, 1.0, 0.0, 0),
            None => {}
            Some(Delivery(points)) => {
                change(0.0, 1.0, 0.0, 0);
                for pair in points.windows(2) {
                    let ((from, had), (to, has)) = (pair[0], pair[1]);
                    let slope = (has - had) / (to - from);
                    if slope > 0.0 {
                        change(from, 0.0, slope, 1);
                        change(to, 0.0, -slope, -1);
                    }
                }
                if self.saturation.is_finite() {
                    change(self.saturation, -1.0, 0.0, 0);
                }
            }
        }
    }
}
