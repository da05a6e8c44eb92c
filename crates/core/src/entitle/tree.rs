//! The tree of weights as the solver sees it, and the amounts that it hands out if pCPUs are never
//! crowded.
//!
//! Every node is a function of the amount that it was *offered* (its rate, integrated): it passes
//! all of it on until it is satisfied, which is after a fixed offered amount, its *saturation*. A
//! group that was offered s has brought its unsatisfied children to a common *level* λ (offered
//! amount by weight), where Σ min(φ λ, saturation) = s over its children. So the amounts at any
//! time follow from one walk down the tree, without simulating what happened before.
//!
//! Example: children of weight 1 and 3 with limits 1 and 0.6. At s = 0.8 the level is 0.2: 0.2 and
//! 0.6, and the second is satisfied. At s = 1.2 the first has 0.6.
//!
//! A leaf that *stopped* in a crowded set keeps its amount and never gets satisfied: its saturation
//! is infinite, and what it is offered beyond its amount is lost. Then a group delivers less than it
//! is offered, and only where a cap bounds what is delivered does that function have to be known:
//! [`delivery`](super::delivery).

use std::ops::Range;

use super::curve::{Curve, End, LEAF};
use super::delivery::{Delivery, Giver};

/// The root of every tree.
pub(crate) const ROOT: usize = 0;

/// Groups (parents before their children) and leaves (sorted by group).
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    pub(crate) groups: Vec<Group>,
    pub(crate) leaves: Vec<Leaf>,
    /// The groups in each group.
    pub(crate) subgroups: Vec<Vec<usize>>,
    /// The leaves in each group.
    members: Vec<Range<usize>>,
    /// Groups with a finite cap on themselves or above: what they deliver matters.
    bounded: Vec<bool>,
}

#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// Itself for the root.
    pub(crate) parent: usize,
    pub(crate) weight: f64,
    /// The most that all below may use together; may be infinite.
    pub(crate) cap: f64,
}

#[derive(Clone, Debug)]
pub(crate) struct Leaf {
    pub(crate) group: usize,
    pub(crate) weight: f64,
    pub(crate) limit: f64,
}

impl Tree {
    /// `groups[0]` is the root; each other group comes after its parent, and the leaves are in the
    /// order of their groups.
    pub(crate) fn new(groups: Vec<Group>, leaves: Vec<Leaf>) -> Tree {
        debug_assert!(groups.iter().enumerate().skip(1).all(|(i, g)| g.parent < i));
        debug_assert!(leaves.is_sorted_by_key(|leaf| leaf.group));
        let mut subgroups = vec![Vec::new(); groups.len()];
        let mut bounded = vec![false; groups.len()];
        for (i, group) in groups.iter().enumerate() {
            if i != ROOT {
                subgroups[group.parent].push(i);
            }
            bounded[i] = group.cap.is_finite() || bounded[group.parent];
        }
        let mut members = Vec::with_capacity(groups.len());
        let mut next = 0;
        for group in 0..groups.len() {
            let first = next;
            while leaves.get(next).is_some_and(|leaf| leaf.group == group) {
                next += 1;
            }
            members.push(first..next);
        }
        Tree { groups, leaves, subgroups, members, bounded }
    }

    pub(crate) fn members(&self, group: usize) -> Range<usize> {
        self.members[group].clone()
    }

    /// A group and those that it lies in, innermost first.
    pub(crate) fn upwards(&self, group: usize) -> impl Iterator<Item = usize> + '_ {
        let above = move |&g: &usize| (g != ROOT).then(|| self.groups[g].parent);
        std::iter::successors(Some(group), above)
    }
}

/// The amounts over time, given which leaves stopped.
#[derive(Clone, Debug)]
pub(crate) struct Trajectory {
    /// What each leaf ends with if its group offers enough: its limit, or where it stopped.
    top: Vec<f64>,
    stopped: Vec<bool>,
    states: Vec<State>,
}

#[derive(Clone, Debug, Default)]
struct State {
    /// Offered amount from which on the group is satisfied; infinite: never.
    saturation: f64,
    /// Offered amount from which on nothing below grows.
    rest: f64,
    /// The level from which on nothing below grows.
    last: f64,
    /// Its level by what it was offered.
    curve: Curve,
    /// What it delivers, if that is not what it was offered, and matters.
    delivery: Option<Delivery>,
}

/// What [`Trajectory::limit`] changed.
#[derive(Debug)]
pub(crate) struct Before {
    tops: Vec<(usize, f64)>,
    states: Vec<(usize, State)>,
}

/// A sum over leaves, prepared. What a group gets of which all leaves are in it, and none has stopped, is
/// what it is offered, as far as it can take it: it counts as one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sum {
    /// All leaves of the host, none stopped.
    everything: bool,
    /// Groups in no other such group.
    whole: Vec<usize>,
    /// The groups above these and above the other leaves, in ascending order.
    broken: Vec<usize>,
    leaves: Vec<usize>,
}

/// Level of each group and how fast it grows; kept between calls to save allocations.
#[derive(Clone, Debug, Default)]
pub(crate) struct Levels(Vec<(f64, f64)>);

impl Trajectory {
    pub(crate) fn new(tree: &Tree) -> Trajectory {
        let mut trajectory = Trajectory {
            top: tree.leaves.iter().map(|leaf| leaf.limit).collect(),
            stopped: vec![false; tree.leaves.len()],
            states: vec![State::default(); tree.groups.len()],
        };
        (0..tree.groups.len()).rev().for_each(|group| drop(trajectory.refresh(tree, group)));
        trajectory
    }

    /// Stops leaves at the given amounts.
    pub(crate) fn stop(&mut self, tree: &Tree, leaves: impl IntoIterator<Item = (usize, f64)>) {
        let changed = leaves.into_iter().map(|(leaf, amount)| {
            self.stopped[leaf] = true;
            self.top[leaf] = amount;
            leaf
        });
        let changed: Vec<usize> = changed.collect();
        self.refresh_above(tree, &changed);
    }

    /// Gives other limits to leaves of a group that have not stopped; also after its weight was changed. Returns what is
    /// needed to undo it.
    pub(crate) fn limit(&mut self, tree: &Tree, group: usize, leaves: &[(usize, f64)]) -> Before {
        let swap = |&(leaf, limit): &(usize, f64)| (leaf, std::mem::replace(&mut self.top[leaf], limit));
        let tops = leaves.iter().map(swap).collect();
        let mut states: Vec<(usize, State)> = Vec::new();
        for above in tree.upwards(group) {
            let before = match states.last() {
                Some((child, before)) => self.refresh_for(tree, above, *child, before),
                None => self.refresh(tree, above),
            };
            states.push((above, before));
        }
        Before { tops, states }
    }

    /// Undoes the last [`Trajectory::limit`], if nothing came after it.
    pub(crate) fn undo(&mut self, before: Before) {
        before.tops.into_iter().for_each(|(leaf, top)| self.top[leaf] = top);
        before.states.into_iter().for_each(|(group, state)| self.states[group] = state);
    }

    pub(crate) fn has_stopped(&self, leaf: usize) -> bool {
        self.stopped[leaf]
    }

    /// What a leaf has at most from now on.
    pub(crate) fn top(&self, leaf: usize) -> f64 {
        self.top[leaf]
    }

    /// The time from which on nothing grows.
    pub(crate) fn rest(&self) -> f64 {
        self.states[ROOT].rest
    }

    /// For each group the offered amount from which on it is satisfied.
    pub(crate) fn saturations(&self) -> impl Iterator<Item = f64> + '_ {
        self.states.iter().map(|state| state.saturation)
    }

    /// The amounts of all leaves at a time.
    pub(crate) fn amounts(&self, tree: &Tree, time: f64, levels: &mut Levels, amounts: &mut Vec<f64>) {
        self.walk(tree, 0..tree.groups.len(), time, levels);
        amounts.clear();
        amounts.extend((0..tree.leaves.len()).map(|leaf| self.amount_at(tree, leaf, levels)));
    }

    /// Prepares sums over some leaves, given in ascending order.
    pub(crate) fn sum_over(&self, tree: &Tree, leaves: &[usize]) -> Sum {
        if leaves.len() == tree.leaves.len() && !self.stopped.contains(&true) {
            return Sum { everything: true, ..Sum::default() };
        }
        // How much of each group is missing: leaves, then groups of which some is; stopped ones count.
        let mut whole = vec![true; tree.groups.len()];
        let mut concerned = vec![false; tree.groups.len()];
        let mut next = 0;
        for (group, members) in tree.members.iter().enumerate() {
            let first = next;
            while leaves.get(next).is_some_and(|&leaf| leaf < members.end) {
                next += 1;
            }
            concerned[group] = next > first;
            whole[group] =
                next - first == members.len() && !leaves[first..next].iter().any(|&leaf| self.stopped[leaf]);
        }
        for group in (1..tree.groups.len()).rev() {
            let parent = tree.groups[group].parent;
            concerned[parent] |= concerned[group];
            whole[parent] &= whole[group];
        }
        let is_broken = |group: usize| concerned[group] && !whole[group];
        let mut sum = Sum { everything: whole[ROOT], ..Sum::default() };
        if !sum.everything {
            let inside =
                |&group: &usize| concerned[group] && whole[group] && !whole[tree.groups[group].parent];
            sum.broken = (0..tree.groups.len()).filter(|&group| is_broken(group)).collect();
            sum.whole = (1..tree.groups.len()).filter(inside).collect();
            sum.leaves = leaves.iter().copied().filter(|&leaf| is_broken(tree.leaves[leaf].group)).collect();
        }
        sum
    }

    /// A sum at a time and its growth.
    pub(crate) fn sum(&self, tree: &Tree, of: &Sum, time: f64, levels: &mut Levels) -> (f64, f64) {
        if of.everything {
            let most = self.states[ROOT].saturation;
            return if time < most { (time, 1.0) } else { (most, 0.0) };
        }
        self.walk(tree, of.broken.iter().copied(), time, levels);
        let mut all = (0.0, 0.0);
        let mut add = |group: usize, weight: f64, most: f64| {
            let (level, speed) = levels.0[group];
            let offered = weight * level;
            all = if offered < most {
                (all.0 + offered, all.1 + weight * speed)
            } else {
                (all.0 + most, all.1)
            };
        };
        for &group in &of.whole {
            let Group { parent, weight, .. } = tree.groups[group];
            add(parent, weight, self.states[group].saturation);
        }
        for &leaf in &of.leaves {
            let Leaf { group, weight, .. } = tree.leaves[leaf];
            add(group, weight, self.top[leaf]);
        }
        all
    }

    /// Finds the levels of a group and those above at a time; whether one of them is satisfied.
    pub(crate) fn walk_to(&self, tree: &Tree, group: usize, time: f64, levels: &mut Levels) -> bool {
        let mut path: Vec<usize> = tree.upwards(group).collect();
        path.reverse();
        self.walk(tree, path.iter().copied(), time, levels);
        path.into_iter().any(|group| self.is_satisfied(tree, group, time, levels))
    }

    /// What a leaf has at the time for which levels were found.
    pub(crate) fn amount_at(&self, tree: &Tree, leaf: usize, levels: &Levels) -> f64 {
        let Leaf { group, weight, .. } = tree.leaves[leaf];
        (weight * levels.0[group].0).min(self.top[leaf])
    }

    /// What a group's parent offers it at a time, if it can take it.
    pub(crate) fn offered(&self, tree: &Tree, group: usize, time: f64, levels: &mut Levels) -> f64 {
        let Group { parent, weight, .. } = tree.groups[group];
        self.walk_to(tree, parent, time, levels);
        weight * levels.0[parent].0
    }

    fn is_satisfied(&self, tree: &Tree, group: usize, time: f64, levels: &Levels) -> bool {
        let Group { parent, weight, .. } = tree.groups[group];
        let offered = if group == ROOT { time } else { weight * levels.0[parent].0 };
        offered >= self.states[group].saturation * (1.0 - TIE) - TIE
    }

    /// Whether each group has reached a state at a time in which its cap, or one above, is used up.
    pub(crate) fn satisfied(&self, tree: &Tree, time: f64, levels: &mut Levels) -> Vec<bool> {
        self.walk(tree, 0..tree.groups.len(), time, levels);
        let mut satisfied = vec![false; tree.groups.len()];
        for (i, group) in tree.groups.iter().enumerate() {
            let above = i != ROOT && satisfied[group.parent];
            satisfied[i] = above || self.is_satisfied(tree, i, time, levels);
        }
        satisfied
    }

    fn walk(&self, tree: &Tree, groups: impl Iterator<Item = usize>, time: f64, levels: &mut Levels) {
        levels.0.resize(tree.groups.len(), (0.0, 0.0));
        for g in groups {
            let group = &tree.groups[g];
            let (offered, speed) = if g == ROOT {
                (time, 1.0)
            } else {
                let (level, speed) = levels.0[group.parent];
                (group.weight * level, group.weight * speed)
            };
            let state = &self.states[g];
            levels.0[g] = if offered < state.saturation {
                state.curve.level(offered, speed)
            } else {
                (state.curve.level(state.saturation, 0.0).0, 0.0)
            };
        }
    }

    fn refresh_above(&mut self, tree: &Tree, leaves: &[usize]) {
        let mut dirty: Vec<usize> = leaves.iter().map(|&leaf| tree.leaves[leaf].group).collect();
        dirty.sort_unstable();
        dirty.dedup();
        let mut seen = vec![false; tree.groups.len()];
        for group in dirty {
            for above in tree.upwards(group) {
                if std::mem::replace(&mut seen[above], true) {
                    break;
                }
            }
        }
        (0..tree.groups.len()).rev().filter(|&g| seen[g]).for_each(|g| drop(self.refresh(tree, g)));
    }

    /// Recomputes one group from its children; returns what it was.
    fn refresh(&mut self, tree: &Tree, group: usize) -> State {
        let leaves = tree.members(group).map(|i| {
            let saturation = if self.stopped[i] { f64::INFINITY } else { self.top[i] };
            (LEAF, tree.leaves[i].weight, saturation, self.top[i])
        });
        let groups = tree.subgroups[group].iter().map(|&g| {
            let state = &self.states[g];
            (g, tree.groups[g].weight, state.saturation, state.rest)
        });
        let mut ends: Vec<End> = Vec::with_capacity(leaves.len() + groups.len());
        let (mut forever, mut last) = (0.0, 0.0_f64);
        for (group, weight, saturation, rest) in leaves.chain(groups) {
            last = last.max(rest / weight);
            if saturation.is_finite() {
                ends.push(End { level: saturation / weight, weight, group });
            } else {
                forever += weight;
            }
        }
        let mut state = State { last, curve: Curve::new(ends, forever), ..State::default() };
        let cap = tree.groups[group].cap;
        let all = state.curve.enough();
        let wasteful = tree.members(group).any(|i| self.stopped[i])
            || tree.subgroups[group].iter().any(|&g| self.states[g].delivery.is_some());
        state.saturation = all.min(cap);
        if tree.bounded[group] && wasteful {
            let leaves = tree.members(group).map(|i| Giver {
                weight: tree.leaves[i].weight,
                saturation: if self.stopped[i] { f64::INFINITY } else { self.top[i] },
                amount: self.top[i],
                delivery: None,
            });
            let groups = tree.subgroups[group].iter().map(|&g| Giver {
                weight: tree.groups[g].weight,
                saturation: self.states[g].saturation,
                amount: self.states[g].saturation,
                delivery: self.states[g].delivery.as_ref(),
            });
            let (delivery, saturation) = Delivery::of(leaves.chain(groups), cap);
            state.saturation = saturation.min(all);
            state.delivery = Some(delivery);
        }
        state.rest = state.curve.offered_at(last).min(state.saturation);
        std::mem::replace(&mut self.states[group], state)
    }

    /// The same where only one of its groups has changed: the others are not asked anew. `before`: that group until now.
    fn refresh_for(&mut self, tree: &Tree, group: usize, child: usize, before: &State) -> State {
        let (now, weight) = (&self.states[child], tree.groups[child].weight);
        let plain = [before, now, &self.states[group]].iter().all(|state| state.delivery.is_none());
        let State { ref curve, last, .. } = self.states[group];
        let from = curve.end_of(child).filter(|_| plain && now.saturation.is_finite());
        let to = End { level: now.saturation / weight, weight, group: child };
        let Some((from, curve)) = from.and_then(|from| Some((from, curve.with(from, to)?))) else {
            return self.refresh(tree, group);
        };
        let rests = now.rest / weight;
        if before.rest / from.weight >= last && rests < last {
            return self.refresh(tree, group); // Who rests last now?
        }
        let mut state = State { last: last.max(rests), curve, ..State::default() };
        state.saturation = state.curve.enough().min(tree.groups[group].cap);
        state.rest = state.curve.offered_at(state.last).min(state.saturation);
        std::mem::replace(&mut self.states[group], state)
    }
}

/// Two times or amounts that differ by less than this part (or amount) are simultaneous: what
/// reaches its limit and is crowded at once counts as satisfied.
pub(crate) const TIE: f64 = 1e-11;
