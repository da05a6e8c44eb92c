//! Progressive filling, exactly: from one crowded set to the next, not in small steps.
//!
//! ```text
//!             ┌── demand at that time ──▶ all placed? ──yes──▶ is a set full now? ─no─▶ done
//!   a time ───┤                               │no                    │yes
//!      ▲      │                     what cannot be placed:     its leaves stop, it leaves
//!      └──────┴── earlier: when ◀── crowded sets               with its pCPUs; next set
//!                 the first of them was full
//! ```
//!
//! The inner loop is Newton's method on the time of the next event (Dinkelbach 1967): every crowded
//! set is a minimum cut, its filling time is at least that of the event, and only finitely many sets
//! exist. At the event's time everything can be placed and the set found last is exactly full.
//!
//! Sets found too late for this event are *suspects* for the next ones: as each was overfull at some
//! time, the next event comes no later than it is full, which gives a good time to begin with.

use std::rc::Rc;

use super::flow::{Crowd, Network, SHORT};
use super::tree::{Levels, TIE, Trajectory, Tree};

/// What the solver works on: a tree, and where its leaves may run.
#[derive(Clone, Debug)]
pub(crate) struct Filling {
    pub(crate) tree: Tree,
    pub(crate) network: Network,
    pub(crate) trajectory: Trajectory,
    /// The sets that filled up, in the order of time.
    pub(crate) rounds: Vec<Round>,
    now: f64,
    suspects: Vec<(f64, Rc<Crowd>)>,
    /// The sets that ended the last run.
    last: Vec<(f64, Rc<Crowd>)>,
    levels: Levels,
    amounts: Vec<f64>,
}

/// A set that was full from some time on.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    pub(crate) time: f64,
    pub(crate) crowd: Rc<Crowd>,
    /// Those of the set that stopped below their limits, with their amounts.
    pub(crate) stopped: Vec<(usize, f64)>,
}

impl Filling {
    pub(crate) fn new(tree: Tree, network: Network) -> Filling {
        let trajectory = Trajectory::new(&tree);
        let mut filling = Filling {
            tree,
            network,
            trajectory,
            rounds: Vec::new(),
            now: 0.0,
            suspects: Vec::new(),
            last: Vec::new(),
            levels: Levels::default(),
            amounts: Vec::new(),
        };
        filling.suspect_all();
        filling
    }

    /// Goes back to a trajectory after rounds that stay as they are. What flows is kept: it is near
    /// to what will flow.
    pub(crate) fn rewind(&mut self, trajectory: Trajectory, rounds: &[Round]) {
        self.trajectory = trajectory;
        self.network.reopen();
        self.network.retire(rounds.iter().map(|round| &*round.crowd));
        self.rounds.clear();
    }

    /// Sets the time, and the sets that may be the next ones, with guesses of when. To these it adds
    /// what ended the last run: a similar VM is probably held by the same sets.
    pub(crate) fn expect(&mut self, now: f64, suspects: &[Round]) {
        self.now = now;
        self.suspects.clear();
        self.suspects.extend(suspects.iter().map(|round| (round.time, Rc::clone(&round.crowd))));
        if suspects.is_empty() {
            self.suspect_all();
        }
        self.suspects.append(&mut self.last);
    }

    fn suspect_all(&mut self) {
        let leaves = self.network.active().to_vec();
        let pcpus = self.reach(&leaves);
        let everything = Crowd { leaves, pcpus };
        let capacity = self.network.capacity(&everything.pcpus);
        self.suspects.push((capacity, Rc::new(everything)));
    }

    /// Fills until nothing grows, or until a full set or a limit holds all leaves of the `watched`
    /// group: then that set is not stopped any more.
    pub(crate) fn run(&mut self, watched: Option<usize>) {
        loop {
            let (mut time, mut full) = self.first_suspect();
            // The only set of a pool is a suspect from the beginning.
            while !self.network.is_pool() {
                self.trajectory.amounts(&self.tree, time, &mut self.levels, &mut self.amounts);
                let crowds = self.network.crowded(&self.amounts);
                let Some((earlier, found)) = self.first_of(crowds, time) else {
                    break;
                };
                for crowd in full {
                    self.suspects.push((time, crowd));
                }
                // Rounding can make an event seem later than a time when its set was overfull.
                let stuck = earlier >= time;
                (time, full) = (earlier, found);
                if stuck {
                    break;
                }
            }
            self.now = time;
            if full.is_empty() {
                return;
            }
            if watched.is_some_and(|group| self.has_ended(group, &full)) {
                self.last = full.into_iter().map(|crowd| (time, crowd)).collect();
                return;
            }
            self.stop(full);
        }
    }

    /// The amounts in the end.
    pub(crate) fn ends(&mut self) -> Vec<f64> {
        let mut amounts = Vec::new();
        self.trajectory.amounts(&self.tree, f64::INFINITY, &mut self.levels, &mut amounts);
        amounts
    }

    /// The sum of the leaves of a group at the time reached.
    pub(crate) fn sum_of(&mut self, group: usize) -> f64 {
        let Filling { tree, trajectory, levels, .. } = self;
        trajectory.walk_to(tree, group, self.now, levels);
        // A sum of nothing is -0.0.
        tree.members(group).map(|leaf| trajectory.amount_at(tree, leaf, levels)).sum::<f64>() + 0.0
    }

    fn has_ended(&mut self, group: usize, full: &[Rc<Crowd>]) -> bool {
        let Filling { tree, trajectory, levels, .. } = self;
        let satisfied = trajectory.walk_to(tree, group, self.now, levels);
        satisfied
            || tree.members(group).all(|leaf| {
                trajectory.has_stopped(leaf)
                    || trajectory.amount_at(tree, leaf, levels) >= trajectory.top(leaf) - TIE
                    || full.iter().any(|crowd| crowd.leaves.binary_search(&leaf).is_ok())
            })
    }

    /// When the suspect that seemed earliest is full, and which it is; if there is none, when
    /// everything rests.
    fn first_suspect(&mut self) -> (f64, Vec<Rc<Crowd>>) {
        let rest = self.trajectory.rest();
        loop {
            let times = self.suspects.iter().enumerate().map(|(i, (time, _))| (i, *time));
            let Some((first, _)) = times.min_by(|a, b| a.1.total_cmp(&b.1)) else {
                return (rest, Vec::new());
            };
            let (guess, crowd) = self.suspects.swap_remove(first);
            let crowd = self.remaining(&crowd);
            if crowd.leaves.is_empty() {
                continue;
            }
            if let Some(time) = self.filled_at(&crowd, guess, rest) {
                return (time, vec![crowd]);
            }
        }
    }

    /// The part of a set that did not leave with another one, and the pCPUs that it may use now:
    /// they can be more than then, if it was found after others had left.
    fn remaining(&self, crowd: &Rc<Crowd>) -> Rc<Crowd> {
        if self.network.all_active() && crowd.pcpus == self.network.open() {
            return Rc::clone(crowd);
        }
        let active = |&leaf: &usize| self.network.is_active(leaf);
        let leaves: Vec<usize> = crowd.leaves.iter().copied().filter(active).collect();
        let pcpus = self.reach(&leaves);
        Rc::new(Crowd { leaves, pcpus })
    }

    /// The pCPUs that some leaves may use, but for retired ones.
    fn reach(&self, leaves: &[usize]) -> Vec<u64> {
        let mut pcpus = vec![0; self.network.open().len()];
        for some in leaves.chunks(64) {
            some.iter().for_each(|&leaf| self.network.add_open(leaf, &mut pcpus));
            if pcpus == self.network.open() {
                break;
            }
        }
        pcpus
    }

    /// The earliest time at which one of these sets is full, and all that are so; the others
    /// become suspects.
    fn first_of(&mut self, crowds: Vec<Crowd>, before: f64) -> Option<(f64, Vec<Rc<Crowd>>)> {
        let mut times: Vec<(f64, Rc<Crowd>)> = Vec::with_capacity(crowds.len());
        for crowd in crowds {
            times.push((self.filled_at(&crowd, before, before).unwrap_or(before), Rc::new(crowd)));
        }
        let first = times.iter().map(|(time, _)| *time).min_by(f64::total_cmp)?;
        let (now, later) = times.into_iter().partition::<Vec<_>, _>(|(time, _)| *time <= first);
        self.suspects.extend(later);
        Some((first, now.into_iter().map(|(_, crowd)| crowd).collect()))
    }

    /// When these leaves have all the capacity of their pCPUs; `None` if not before a time. The
    /// closer the guess, the sooner it is found.
    fn filled_at(&mut self, crowd: &Crowd, guess: f64, before: f64) -> Option<f64> {
        let capacity = self.network.capacity(&crowd.pcpus);
        let Filling { tree, trajectory, levels, .. } = self;
        let set = trajectory.sum_over(tree, &crowd.leaves);
        let mut sum = |time: f64| trajectory.sum(tree, &set, time, levels);
        let (mut low, mut high) = (self.now, before.max(self.now));
        let mut time = guess.clamp(low, high);
        let (mut amount, mut growth) = sum(time);
        if amount <= capacity + SHORT / 2.0 {
            (low, time) = (time, high);
            (amount, growth) = sum(high);
            if amount <= capacity + SHORT / 2.0 {
                return None;
            }
        } else {
            high = time;
        }
        let mut begun = low > self.now;
        for attempt in 0..MAX_STEPS {
            let newton = time - (amount - capacity) / growth;
            if newton <= low && !std::mem::replace(&mut begun, true) && sum(low).0 >= capacity - TIE {
                return Some(low); // It was full before.
            }
            let inside = newton > low && newton < high && attempt % 4 != 3;
            time = if inside { newton } else { f64::midpoint(low, high) };
            (amount, growth) = sum(time);
            let error = amount - capacity;
            if error.abs() <= EXACT * capacity.max(1.0) || time <= low || time >= high {
                break;
            }
            *(if error > 0.0 { &mut high } else { &mut low }) = time;
        }
        Some(time)
    }

    /// Stops the leaves of sets that are full now, unless they are satisfied now.
    fn stop(&mut self, full: Vec<Rc<Crowd>>) {
        let satisfied = self.trajectory.satisfied(&self.tree, self.now, &mut self.levels);
        self.trajectory.amounts(&self.tree, self.now, &mut self.levels, &mut self.amounts);
        let mut all = Vec::new();
        for crowd in &full {
            let stopped: Vec<(usize, f64)> = crowd
                .leaves
                .iter()
                .map(|&leaf| (leaf, self.amounts[leaf]))
                .filter(|&(leaf, amount)| {
                    let at_limit = amount >= self.trajectory.top(leaf) - TIE;
                    !at_limit && !satisfied[self.tree.leaves[leaf].group]
                })
                .collect();
            all.extend_from_slice(&stopped);
            self.rounds.push(Round { time: self.now, crowd: Rc::clone(crowd), stopped });
        }
        self.trajectory.stop(&self.tree, all);
        self.network.retire(full.iter().map(|crowd| &**crowd));
    }
}

/// Newton steps and halvings in the search for a time: more than the bits of a time.
const MAX_STEPS: usize = 200;
/// A set is exactly full when the sum of its amounts differs so little, relatively.
const EXACT: f64 = 2e-14;
