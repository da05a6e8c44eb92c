//! Whether demands fit if every leaf may use a range of pCPUs: two sweeps instead of a flow.
//!
//! The first says only whether they fit: each pCPU in turn serves those who may use it, first who has to be
//! done first (Jackson 1955). No timetable leaves less undone. The second says which ranges hold too much.
//!
//! With ranges, demands fit if and only if no range [a, b] of pCPUs holds too much: what the leaves
//! demand whose ranges lie in it is at most its capacity (Glover 1967 on convex bipartite graphs).
//! All b are tried in ascending order. When the leaves that end at b have been added where they
//! begin, and each pCPU up to b has its capacity subtracted, the excess of [a, b] is the sum from a
//! on: the best a is the largest suffix sum, which a binary tree keeps.
//!
//! Example: leaves of 0.8 on {0}, 0.7 on {0, 1} and 0.6 on {1}. At b = 0 the excess is -0.2, at b = 1
//! that of [0, 1] is 2.1 - 2 = 0.1 and that of [1, 1] is -0.4: too much.

use super::bits;

/// Leaves whose pCPUs are ranges.
#[derive(Clone, Debug)]
pub(crate) struct Ranges {
    /// Of each pCPU where the leaves begin that end there, ascending, and which these are.
    ending: Vec<Vec<(usize, usize)>>,
    /// Of each pCPU the leaves that begin there, with where they end.
    beginning: Vec<Vec<(usize, usize)>>,
    /// The root is 1, the children of i are 2 i and 2 i + 1.
    tree: Vec<Sum>,
    /// In the first sweep: what is still to be served by the end of each pCPU, and where that is something.
    undone: Vec<f64>,
    waiting: Vec<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    all: f64,
    /// The largest sum of a suffix.
    best: f64,
}

impl Ranges {
    /// `None` if some leaf's pCPUs are none, or not a range.
    pub(crate) fn of<'a>(masks: impl Iterator<Item = &'a [u64]>, pcpus: usize) -> Option<Ranges> {
        let (mut ending, mut beginning) = (vec![Vec::new(); pcpus], vec![Vec::new(); pcpus]);
        for (leaf, mask) in masks.enumerate() {
            let first = bits::iter(mask).next()?;
            let last = first + bits::len(mask) - 1;
            if !bits::iter(mask).eq(first..=last) {
                return None;
            }
            ending[last].push((first, leaf));
            beginning[first].push((leaf, last));
        }
        ending.iter_mut().for_each(|leaves| leaves.sort_unstable());
        let tree = vec![Sum::default(); 2 * pcpus.next_power_of_two()];
        let (undone, waiting) = (vec![0.0; pcpus], vec![0; pcpus.div_ceil(64)]);
        Some(Ranges { ending, beginning, tree, undone, waiting })
    }

    /// Whether all demands fit but for `slack` in all. If so, no range is overfull by more.
    pub(crate) fn fits(
        &mut self,
        demand: impl Fn(usize) -> f64,
        capacity: impl Fn(usize) -> f64,
        slack: f64,
    ) -> bool {
        self.undone.fill(0.0);
        self.waiting.fill(0);
        let mut lost = 0.0;
        for (p, beginning) in self.beginning.iter().enumerate() {
            for &(leaf, last) in beginning {
                self.undone[last] += demand(leaf);
                bits::set(&mut self.waiting, last);
            }
            let mut room = capacity(p);
            while room > 0.0
                && let Some(first) = bits::next_common(&self.waiting, &self.waiting, p)
            {
                let served = room.min(self.undone[first]);
                self.undone[first] -= served;
                room -= served;
                if self.undone[first] <= 0.0 {
                    bits::clear(&mut self.waiting, first);
                }
            }
            lost += self.undone[p];
            bits::clear(&mut self.waiting, p);
            if lost > slack {
                return false;
            }
        }
        true
    }

    /// Disjoint ranges that hold more than their capacity by more than `slack`.
    pub(crate) fn overfull(
        &mut self,
        demand: impl Fn(usize) -> f64,
        capacity: impl Fn(usize) -> f64,
        slack: f64,
    ) -> Vec<(usize, usize)> {
        self.tree.fill(Sum::default());
        let mut changed = Vec::new();
        let mut found: Vec<(f64, usize, usize)> = Vec::new();
        for last in 0..self.ending.len() {
            changed.clear();
            for &(first, leaf) in &self.ending[last] {
                add(&mut self.tree, &mut changed, first, demand(leaf));
            }
            add(&mut self.tree, &mut changed, last, -capacity(last));
            self.refresh(&mut changed);
            if self.tree[1].best > slack {
                found.push((self.tree[1].best, self.best_first(), last));
            }
        }
        found.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut result: Vec<(usize, usize)> = Vec::new();
        for (_, first, last) in found {
            if result.iter().all(|&(a, b)| last < a || b < first) {
                result.push((first, last));
            }
        }
        result
    }

    /// The leaves whose ranges lie in a range.
    pub(crate) fn inside(&self, first: usize, last: usize) -> impl Iterator<Item = usize> + '_ {
        let beginning = self.beginning[first..=last].iter().flatten();
        beginning.filter(move |(_, end)| *end <= last).map(|(leaf, _)| *leaf)
    }

    /// Recomputes what is above nodes of one level, in ascending order; uses up the list.
    fn refresh(&mut self, changed: &mut Vec<usize>) {
        while changed.first().is_some_and(|&node| node > 1) {
            changed.iter_mut().for_each(|node| *node /= 2);
            changed.dedup();
            for &node in &*changed {
                let (left, right) = (self.tree[2 * node], self.tree[2 * node + 1]);
                self.tree[node] =
                    Sum { all: left.all + right.all, best: right.best.max(right.all + left.best) };
            }
        }
    }

    /// Where the largest suffix begins.
    fn best_first(&self) -> usize {
        let leaves = self.tree.len() / 2;
        let mut node = 1;
        while node < leaves {
            let (left, right) = (self.tree[2 * node], self.tree[2 * node + 1]);
            node = 2 * node + usize::from(right.best >= right.all + left.best);
        }
        node - leaves
    }
}

/// Adds to the amount of a pCPU; nodes have to come in ascending order.
fn add(tree: &mut [Sum], changed: &mut Vec<usize>, at: usize, amount: f64) {
    let node = tree.len() / 2 + at;
    let all = tree[node].all + amount;
    tree[node] = Sum { all, best: all.max(0.0) };
    if changed.last() != Some(&node) {
        changed.push(node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_overfull_if_what_lies_in_it_demands_more_than_it_has() {
        let masks: [[u64; 1]; 3] = [[0b01], [0b11], [0b10]];
        let mut ranges = Ranges::of(masks.iter().map(|mask| mask.as_slice()), 2).unwrap();
        let mut overfull = |demand: [f64; 3]| ranges.overfull(|leaf| demand[leaf], |_| 1.0, 1e-10);
        assert_eq!(overfull([0.8, 0.7, 0.6]), [(0, 1)]);
        assert_eq!(overfull([0.8, 0.6, 0.6]), []);
        assert_eq!(overfull([1.5, 0.0, 0.0]), [(0, 0)]);
        assert_eq!(overfull([1.5, 0.0, 1.2]), [(0, 1)]);
    }

    #[test]
    fn all_fits_if_and_only_if_no_range_is_overfull() {
        let mut random = crate::Random(1);
        let mut below = |n: u64| random.below(n);
        let mut seen = [0; 2];
        for _ in 0..20_000 {
            let masks: Vec<[u64; 1]> = (0..1 + below(12))
                .map(|_| {
                    let first = below(8);
                    [((2 << below(8 - first)) - 1) << first]
                })
                .collect();
            // Eighths: sums are exact, and equality happens.
            let mut eighths = |n| f64::from(u32::try_from(below(n)).unwrap()) / 8.0;
            let demand: Vec<f64> = masks.iter().map(|_| eighths(9)).collect();
            let capacity: Vec<f64> = (0..8).map(|_| eighths(17)).collect();
            let mut ranges = Ranges::of(masks.iter().map(|mask| mask.as_slice()), 8).unwrap();
            let fits = ranges.fits(|leaf| demand[leaf], |p| capacity[p], 1e-10);
            let overfull = ranges.overfull(|leaf| demand[leaf], |p| capacity[p], 1e-10);
            assert_eq!(fits, overfull.is_empty(), "{masks:?} {demand:?} {capacity:?} {overfull:?}");
            seen[usize::from(fits)] += 1;
        }
        assert!(seen.iter().all(|&n| n > 1_000), "{seen:?}");
    }

    #[test]
    fn gaps_and_empty_sets_are_no_ranges() {
        let of = |mask: u64| Ranges::of([[mask]].iter().map(|mask| mask.as_slice()), 3);
        assert!(of(0b101).is_none() && of(0).is_none() && of(0b110).is_some());
    }
}
