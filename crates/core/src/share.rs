//! Progressive filling: how a tree of weights divides CPUs when everybody wants everything.
//!
//! From zero, the root divides a unit rate among its unsatisfied children by weight, they
//! likewise. A leaf is *satisfied* at its limit or under a group whose cap is reached: its
//! weight then passes to its siblings. A leaf whose CPUs are all taken *stops* but stays
//! unsatisfied: its rate is lost and its weight kept, as the scheduler does with a group
//! whose only runnable threads share a crowded CPU. It ends when nothing grows.
//!
//! CPUs are all taken when, for some set S of CPUs, those that may run only inside S have
//! |S| together. S ranges over the unions of the leaves' masks (see [`MAX_MASKS`]).
//!
//! Example: a VM A with a0 on CPU 0 and a1 on CPU 1 beside an equal VM B with b on CPU 0.
//! Rates: a0 1/4, a1 1/4, b 1/2. At 4/3, CPU 0 is full: a0 has 1/3 and b 2/3. a1 goes on to 1.

use std::collections::BTreeSet;

use crate::{CpuId, CpuSet, Weight};

/// With more different masks than this, only single masks and the union of all are checked
/// (unions of two to all but one are left out, so that the result is an upper bound).
pub(crate) const MAX_MASKS: usize = 8;

/// Amounts closer than this are equal, in CPUs.
const EPSILON: f64 = 1e-9;

/// A node of the tree of weights.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// A set of like threads.
    Leaf {
        /// Weight among its siblings; must be above zero.
        weight: Weight,
        /// The most it can use, in CPUs.
        limit: f64,
        /// The CPUs it may run on.
        cpus: CpuSet,
    },
    /// A group.
    Group {
        /// Weight among its siblings; must be above zero.
        weight: Weight,
        /// The most that all below it may use together, in CPUs; infinite if unlimited.
        cap: f64,
        /// Who divides it.
        children: Vec<Node>,
    },
}

/// What each leaf gets, in CPUs, in the order in which a walk from the root meets the leaves.
#[must_use]
pub fn fill(root: &Node) -> Vec<f64> {
    let mut leaves = Vec::new();
    collect(root, &mut leaves);
    let sets = constraints(&leaves);
    let mut state = vec![Leaf::default(); leaves.len()];
    // Each round satisfies or stops at least one leaf.
    for _ in 0..=leaves.len() {
        for leaf in &mut state {
            leaf.rate = 0.0;
        }
        settle(root, &mut state);
        share_out(root, 1.0, &mut state);
        let mut step = f64::INFINITY;
        for (leaf, (limit, _)) in state.iter().zip(&leaves) {
            if leaf.rate > 0.0 {
                step = step.min((limit - leaf.amount) / leaf.rate);
            }
        }
        for set in &sets {
            let (amount, rate) = set.sum(&state);
            if rate > 0.0 {
                step = step.min((set.capacity - amount) / rate);
            }
        }
        step = step.min(cap_step(root, &state).0);
        if !step.is_finite() {
            break;
        }
        for leaf in &mut state {
            leaf.amount += leaf.rate * step.max(0.0);
        }
        for (leaf, (limit, _)) in state.iter_mut().zip(&leaves) {
            leaf.satisfied |= leaf.amount >= limit - EPSILON;
        }
        for set in &sets {
            if set.sum(&state).0 >= set.capacity - EPSILON {
                for &i in &set.leaves {
                    state[i].stopped = true;
                }
            }
        }
    }
    state.iter().map(|leaf| leaf.amount).collect()
}

#[derive(Clone, Copy, Debug, Default)]
struct Leaf {
    amount: f64,
    rate: f64,
    satisfied: bool,
    stopped: bool,
}

/// Leaves that may run nowhere but inside one set of CPUs.
struct Constraint {
    leaves: Vec<usize>,
    capacity: f64,
}

impl Constraint {
    /// What its leaves have and how fast they grow.
    fn sum(&self, state: &[Leaf]) -> (f64, f64) {
        self.leaves
            .iter()
            .fold((0.0, 0.0), |(amount, rate), &i| (amount + state[i].amount, rate + state[i].rate))
    }
}

fn collect(node: &Node, leaves: &mut Vec<(f64, CpuSet)>) {
    match node {
        Node::Leaf { limit, cpus, .. } => leaves.push((*limit, cpus.clone())),
        Node::Group { children, .. } => children.iter().for_each(|c| collect(c, leaves)),
    }
}

fn constraints(leaves: &[(f64, CpuSet)]) -> Vec<Constraint> {
    let masks: BTreeSet<&CpuSet> = leaves.iter().map(|(_, cpus)| cpus).collect();
    let mut sets: BTreeSet<BTreeSet<CpuId>> = BTreeSet::new();
    for mask in &masks {
        let mask: BTreeSet<CpuId> = mask.iter().collect();
        let mut unions = vec![mask.clone()];
        if masks.len() <= MAX_MASKS {
            unions.extend(sets.iter().map(|set| set.union(&mask).copied().collect()));
        }
        sets.extend(unions);
    }
    sets.insert(masks.iter().flat_map(|mask| mask.iter()).collect());
    sets.iter()
        .map(|set| Constraint {
            leaves: (0..leaves.len()).filter(|&i| leaves[i].1.iter().all(|cpu| set.contains(&cpu))).collect(),
            capacity: count(set.len()),
        })
        .collect()
}

/// A number of things as an amount; exact below 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts of CPUs and threads are small")]
pub(crate) fn count(n: usize) -> f64 {
    n as f64
}

/// Satisfies all leaves below a group whose cap is reached.
fn settle(root: &Node, state: &mut [Leaf]) {
    fn walk(node: &Node, next: usize, state: &mut [Leaf]) -> usize {
        match node {
            Node::Leaf { .. } => next + 1,
            Node::Group { cap, children, .. } => {
                let end = children.iter().fold(next, |at, c| walk(c, at, state));
                let below = &mut state[next..end];
                if below.iter().map(|leaf| leaf.amount).sum::<f64>() >= cap - EPSILON {
                    below.iter_mut().for_each(|leaf| leaf.satisfied = true);
                }
                end
            }
        }
    }
    walk(root, 0, state);
}

/// Hands `rate` down the tree by weight; what stopped leaves would get is lost.
fn share_out(root: &Node, rate: f64, state: &mut [Leaf]) {
    fn leaves_of(node: &Node) -> usize {
        match node {
            Node::Leaf { .. } => 1,
            Node::Group { children, .. } => children.iter().map(leaves_of).sum(),
        }
    }
    match root {
        Node::Leaf { .. } => {
            if !state[0].satisfied && !state[0].stopped {
                state[0].rate = rate;
            }
        }
        Node::Group { children, .. } => {
            let mut parts = Vec::with_capacity(children.len());
            let mut rest = state;
            for child in children {
                let (part, after) = rest.split_at_mut(leaves_of(child));
                rest = after;
                let (Node::Leaf { weight, .. } | Node::Group { weight, .. }) = child;
                if part.iter().any(|leaf| !leaf.satisfied) {
                    parts.push((child, weight.0, part));
                }
            }
            let all: f64 = parts.iter().map(|(_, weight, _)| weight).sum();
            for (child, weight, part) in parts {
                share_out(child, rate * weight / all, part);
            }
        }
    }
}

/// How long until some group reaches its cap; and the amount, rate and leaves below `node`.
fn cap_step(node: &Node, state: &[Leaf]) -> (f64, f64, f64, usize) {
    match node {
        Node::Leaf { .. } => (f64::INFINITY, state[0].amount, state[0].rate, 1),
        Node::Group { cap, children, .. } => {
            let (mut step, mut amount, mut rate, mut at) = (f64::INFINITY, 0.0, 0.0, 0);
            for child in children {
                let (s, a, r, n) = cap_step(child, &state[at..]);
                (step, amount, rate, at) = (step.min(s), amount + a, rate + r, at + n);
            }
            if rate > 0.0 {
                step = step.min((cap - amount) / rate);
            }
            (step, amount, rate, at)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(weight: f64, limit: f64, cpus: &str) -> Node {
        let cpus = cpus.parse().unwrap();
        Node::Leaf { weight: Weight(weight), limit, cpus }
    }

    fn vm(children: Vec<Node>) -> Node {
        Node::Group { weight: Weight(1024.0), cap: f64::INFINITY, children }
    }

    fn capped(cap: f64, children: Vec<Node>) -> Node {
        Node::Group { weight: Weight(1024.0), cap, children }
    }

    #[track_caller]
    fn gets(root: &Node, expected: &[f64]) {
        let got = fill(root);
        let close = got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(close && got.len() == expected.len(), "{got:?}, expected {expected:?}");
    }

    /// The four cases measured on Linux that `design.md` lists under "The models".
    #[test]
    fn divides_as_linux_was_measured_to() {
        let b = |cpus| vm(vec![leaf(1.0, 1.0, cpus)]);
        gets(
            &vm(vec![vm(vec![leaf(1.0, 1.0, "0"), leaf(1.0, 1.0, "1")]), b("0")]),
            &[1.0 / 3.0, 1.0, 2.0 / 3.0],
        );
        gets(&vm(vec![vm(vec![leaf(1.0, 1.0, "0"), leaf(1.0, 0.1, "1")]), b("0")]), &[0.45, 0.1, 0.55]);
        let three_and_one =
            vec![vm(vec![leaf(1.0, 1.0, "0"), leaf(1.0, 1.0, "1")]), b("0"), b("0"), b("0"), b("1")];
        let got = fill(&vm(three_and_one));
        assert!((got[0] - 1.0 / 7.0).abs() < 1e-6 && (got[1] - 1.0 / 3.0).abs() < 1e-6, "{got:?}");
        let slice = |children| vm(children);
        gets(
            &vm(vec![
                slice(vec![capped(0.25, vec![leaf(1.0, 2.0, "0-1")]), vm(vec![leaf(1.0, 2.0, "0-1")])]),
                slice(vec![vm(vec![leaf(1.0, 2.0, "0-1")])]),
            ]),
            &[0.25, 0.75, 1.0],
        );
    }

    #[test]
    fn a_cap_bounds_the_sum_below_it_and_the_rest_goes_to_the_siblings() {
        let two = || vec![leaf(1.0, 4.0, "0-3"), leaf(3.0, 4.0, "0-3")];
        gets(&vm(vec![capped(1.0, two()), leaf(1024.0, 4.0, "0-3")]), &[0.25, 0.75, 3.0]);
    }

    #[test]
    fn free_neighbours_move_away_from_a_pinned_thread() {
        let mut everybody = vec![leaf(1024.0, 1.0, "0")];
        everybody.extend((0..10).map(|_| leaf(1024.0, 1.0, "0-15")));
        gets(&vm(everybody), &[1.0; 11]);
    }

    #[test]
    fn a_neighbour_elsewhere_pushes_free_ones_onto_our_cpus() {
        let root = vm(vec![leaf(1.0, 2.0, "0-1"), leaf(1.0, 2.0, "2-3"), leaf(1.0, 4.0, "0-3")]);
        gets(&root, &[4.0 / 3.0; 3]);
    }

    #[test]
    fn nobody_gets_more_than_the_machine_has_even_with_many_masks() {
        let one_each: Vec<Node> = (0..20).map(|i| leaf(1.0, 1.0, &format!("{i}"))).collect();
        gets(&vm(one_each), &[1.0; 20]);
        let all: f64 = fill(&vm((0..20).map(|_| leaf(1.0, 1.0, "0-2")).collect())).iter().sum();
        assert!((all - 3.0).abs() < 1e-6);
    }

    #[test]
    fn an_empty_tree_and_an_empty_mask_give_nothing() {
        gets(&vm(vec![]), &[]);
        gets(&vm(vec![leaf(1.0, 1.0, "")]), &[0.0]);
    }
}
