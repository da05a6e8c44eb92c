//! Which leaf runs on which pCPUs for how long: a maximum flow, kept from one step to the next.
//!
//! ```text
//!  source ──demand──▶ leaf ──its pCPUs──▶ pCPU ──room──▶ sink
//! ```
//!
//! The network is dense (a leaf may have half of a thousand pCPUs) but a flow is not: a leaf uses a
//! few of its pCPUs. So masks are bit sets, a breadth-first layer is the union of masks, and only
//! used edges are stored. Paths are found in phases of shortest length (Dinic 1970). What cannot be
//! placed shows crowded sets: all pCPUs that its leaves can reach are full.
//!
//! Leaves and pCPUs of a set that is full for good are *retired*: they keep their flow and take no
//! part any more.

use super::bits;

/// Amounts below this are nothing, in CPUs.
const NOTHING: f64 = 1e-12;

/// A leaf that lacks less than this has what it demands. Ten times below the tolerance that
/// certificates are checked to; above the rounding of sums over thousands of CPUs.
pub(crate) const SHORT: f64 = 1e-10;

/// A set of leaves that demand more than all pCPUs that they may use.
#[derive(Clone, Debug)]
pub(crate) struct Crowd {
    /// In ascending order.
    pub(crate) leaves: Vec<usize>,
    /// Exactly the pCPUs that they may use, as bits.
    pub(crate) pcpus: Vec<u64>,
}

/// The network and its flow. pCPUs are those after merging: of capacity 1 or more.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    width: usize,
    masks: Vec<u64>,
    /// The words of each leaf's mask that are not zero lie in this range.
    spans: Vec<(usize, usize)>,
    capacity: Vec<f64>,
    room: Vec<f64>,
    /// What each leaf uses of which pCPU.
    used: Vec<Vec<(usize, f64)>>,
    /// Who uses each pCPU.
    users: Vec<Vec<usize>>,
    demand: Vec<f64>,
    supplied: Vec<f64>,
    /// pCPUs that are not retired.
    open: Vec<u64>,
    /// Leaves that are not retired, ascending.
    active: Vec<usize>,
    is_active: Vec<bool>,
    layer_of: Vec<usize>,
    cursors: Vec<usize>,
}

const UNSEEN: usize = usize::MAX;

impl Network {
    /// `masks` holds `width` words for each leaf.
    pub(crate) fn new(width: usize, masks: Vec<u64>, capacity: Vec<f64>) -> Network {
        let leaves = masks.len().checked_div(width).unwrap_or(0);
        let mut open = vec![0; width];
        (0..capacity.len()).for_each(|p| bits::set(&mut open, p));
        let span = |mask: &[u64]| {
            let first = mask.iter().position(|&word| word != 0).unwrap_or(0);
            (first, mask.iter().rposition(|&word| word != 0).map_or(first, |last| last + 1))
        };
        Network {
            width,
            spans: masks.chunks(width).map(span).collect(),
            masks,
            room: capacity.clone(),
            users: vec![Vec::new(); capacity.len()],
            cursors: vec![0; capacity.len()],
            capacity,
            used: vec![Vec::new(); leaves],
            demand: vec![0.0; leaves],
            supplied: vec![0.0; leaves],
            open,
            active: (0..leaves).collect(),
            is_active: vec![true; leaves],
            layer_of: vec![UNSEEN; leaves],
        }
    }

    /// The pCPUs that a leaf may use, as bits.
    pub(crate) fn mask(&self, leaf: usize) -> &[u64] {
        &self.masks[leaf * self.width..(leaf + 1) * self.width]
    }

    /// What a leaf uses of which pCPU.
    pub(crate) fn used(&self, leaf: usize) -> &[(usize, f64)] {
        &self.used[leaf]
    }

    pub(crate) fn active(&self) -> &[usize] {
        &self.active
    }

    pub(crate) fn is_active(&self, leaf: usize) -> bool {
        self.is_active[leaf]
    }

    pub(crate) fn open(&self) -> &[u64] {
        &self.open
    }

    /// The capacity of some pCPUs.
    pub(crate) fn capacity(&self, pcpus: &[u64]) -> f64 {
        bits::iter(pcpus).map(|p| self.capacity[p]).sum()
    }

    /// Begins with all leaves and pCPUs again, keeping what flows.
    pub(crate) fn reopen(&mut self) {
        (0..self.capacity.len()).for_each(|p| bits::set(&mut self.open, p));
        self.active = (0..self.used.len()).collect();
        self.is_active.fill(true);
    }

    /// Takes leaves and pCPUs out of the further division.
    pub(crate) fn retire<'a>(&mut self, crowds: impl Iterator<Item = &'a Crowd>) {
        for crowd in crowds {
            for &leaf in &crowd.leaves {
                self.is_active[leaf] = false;
            }
            bits::remove(&mut self.open, &crowd.pcpus);
        }
        let mut active = std::mem::take(&mut self.active);
        active.retain(|&leaf| self.is_active[leaf]);
        // What others still use there is below rounding, or from before a restart.
        for &leaf in &active {
            for i in (0..self.used[leaf].len()).rev() {
                let (p, amount) = self.used[leaf][i];
                if !bits::contains(&self.open, p) {
                    self.change(leaf, p, -amount);
                    self.supplied[leaf] -= amount;
                    self.room[p] += amount;
                }
            }
        }
        self.active = active;
    }

    /// Places these demands of the active leaves as far as possible. The crowds are the connected
    /// parts of what lacks room, none if all was placed.
    pub(crate) fn place(&mut self, demand: &[f64]) -> Vec<Crowd> {
        for i in 0..self.active.len() {
            let leaf = self.active[i];
            self.demand[leaf] = demand[leaf];
            self.clip(leaf);
        }
        loop {
            let short = self.short();
            if short.is_empty() {
                return Vec::new();
            }
            let Some(mut layers) = self.layers(&short) else {
                return self.crowds(&short);
            };
            for leaf in short {
                while self.demand[leaf] - self.supplied[leaf] > NOTHING && self.augment(leaf, &mut layers) {}
            }
        }
    }

    /// All leaves and pCPUs that are reachable from a leaf: pCPUs by masks, leaves by what they use.
    /// If the leaf cannot grow, all these pCPUs are full: the smallest crowded set with the leaf.
    pub(crate) fn closure(&self, leaf: usize) -> Crowd {
        let mut seen = vec![0; self.width];
        let (mut leaves, mut next) = (vec![leaf], 0);
        let mut known = vec![false; self.used.len()];
        known[leaf] = true;
        while let Some(&leaf) = leaves.get(next) {
            next += 1;
            let new: Vec<u64> = self.mask(leaf).iter().zip(&seen).map(|(m, s)| m & !s).collect();
            bits::add(&mut seen, &new);
            for p in bits::iter(&new) {
                for &user in &self.users[p] {
                    if self.flow(user, p) > SHORT && !std::mem::replace(&mut known[user], true) {
                        leaves.push(user);
                    }
                }
            }
        }
        leaves.sort_unstable();
        Crowd { leaves, pcpus: seen }
    }

    fn short(&self) -> Vec<usize> {
        let short = |&leaf: &usize| self.demand[leaf] - self.supplied[leaf] > SHORT;
        self.active.iter().copied().filter(short).collect()
    }

    /// Takes away what a leaf uses beyond its demand.
    fn clip(&mut self, leaf: usize) {
        let mut excess = self.supplied[leaf] - self.demand[leaf];
        while excess > 0.0 {
            let Some(&(p, amount)) = self.used[leaf].last() else {
                self.supplied[leaf] = 0.0;
                return;
            };
            let less = excess.min(amount);
            self.change(leaf, p, -less);
            self.room[p] += less;
            self.supplied[leaf] -= less;
            excess -= less;
        }
    }

    fn flow(&self, leaf: usize, p: usize) -> f64 {
        self.used[leaf].iter().find(|(at, _)| *at == p).map_or(0.0, |(_, amount)| *amount)
    }

    /// Changes what a leaf uses of a pCPU.
    fn change(&mut self, leaf: usize, p: usize, by: f64) {
        let edges = &mut self.used[leaf];
        let Some(i) = edges.iter().position(|(at, _)| *at == p) else {
            edges.push((p, by));
            self.users[p].push(leaf);
            return;
        };
        edges[i].1 += by;
        if edges[i].1 <= NOTHING {
            self.room[p] += edges[i].1;
            self.supplied[leaf] -= edges[i].1;
            edges.swap_remove(i);
            if let Some(i) = self.users[p].iter().position(|&user| user == leaf) {
                self.users[p].swap_remove(i);
            }
        }
    }

    /// The pCPUs at each distance from leaves that are short, up to the first with room; `None` if
    /// none has.
    fn layers(&mut self, short: &[usize]) -> Option<Vec<Vec<u64>>> {
        self.layer_of.fill(UNSEEN);
        self.cursors.fill(0);
        let mut unseen = self.open.clone();
        let mut layers: Vec<Vec<u64>> = Vec::new();
        let mut front = short.to_vec();
        for &leaf in short {
            self.layer_of[leaf] = 0;
        }
        loop {
            let mut layer = vec![0; self.width];
            for &leaf in &front {
                let (first, end) = self.spans[leaf];
                bits::add_common(&mut layer[first..end], &self.mask(leaf)[first..end], &unseen[first..end]);
            }
            bits::remove(&mut unseen, &layer);
            front.clear();
            let mut roomy = vec![0; self.width];
            for p in bits::iter(&layer) {
                if self.room[p] > NOTHING {
                    bits::set(&mut roomy, p);
                }
            }
            if !bits::is_empty(&roomy) {
                layers.push(roomy);
                return Some(layers);
            }
            for p in bits::iter(&layer) {
                for &leaf in &self.users[p] {
                    if self.is_active[leaf] && self.layer_of[leaf] == UNSEEN {
                        self.layer_of[leaf] = layers.len() + 1;
                        front.push(leaf);
                    }
                }
            }
            if front.is_empty() {
                return None;
            }
            layers.push(layer);
        }
    }

    /// Finds one path from a leaf through the layers to a pCPU with room and moves what it carries.
    fn augment(&mut self, start: usize, layers: &mut [Vec<u64>]) -> bool {
        // path[i] = (leaf in layer i, the pCPU in layer i that it would use more)
        let mut path: Vec<(usize, usize)> = Vec::new();
        let mut leaf = start;
        loop {
            let depth = path.len();
            let (first, end) = self.spans[leaf];
            let mask = &self.masks[leaf * self.width + first..leaf * self.width + end];
            let Some(p) = bits::first_common(mask, &layers[depth][first..end]) else {
                // Nowhere from here: the pCPU before tries its next user.
                let Some((before, p)) = path.pop() else {
                    return false;
                };
                self.cursors[p] += 1;
                leaf = before;
                continue;
            };
            let p = first * 64 + p;
            if depth + 1 == layers.len() {
                if self.room[p] <= NOTHING {
                    bits::clear(&mut layers[depth], p);
                    continue;
                }
                path.push((leaf, p));
                self.push(&path);
                return true;
            }
            let user = loop {
                match self.users[p].get(self.cursors[p]) {
                    Some(&user) if self.layer_of[user] == depth + 1 && self.is_active[user] => {
                        break Some(user);
                    }
                    Some(_) => self.cursors[p] += 1,
                    None => break None,
                }
            };
            match user {
                Some(user) => {
                    path.push((leaf, p));
                    leaf = user;
                }
                None => bits::clear(&mut layers[depth], p),
            }
        }
    }

    /// Moves as much as a path carries: its first leaf gets it, each other one moves on by one pCPU.
    fn push(&mut self, path: &[(usize, usize)]) {
        let (Some(&(start, _)), Some(&(_, end))) = (path.first(), path.last()) else {
            return;
        };
        let mut amount = (self.demand[start] - self.supplied[start]).min(self.room[end]);
        for step in path.windows(2) {
            amount = amount.min(self.flow(step[1].0, step[0].1));
        }
        self.supplied[start] += amount;
        self.room[end] -= amount;
        for (i, &(leaf, p)) in path.iter().enumerate() {
            self.change(leaf, p, amount);
            if let Some(&(next, _)) = path.get(i + 1) {
                self.change(next, p, -amount);
            }
        }
    }

    /// What is reachable from leaves that are short, in connected parts.
    fn crowds(&self, short: &[usize]) -> Vec<Crowd> {
        // After a search without success, layer_of marks all that was reached.
        let reached: Vec<usize> =
            self.active.iter().copied().filter(|&leaf| self.layer_of[leaf] != UNSEEN).collect();
        debug_assert!(short.iter().all(|&leaf| self.layer_of[leaf] == 0));
        bits::components(&reached, |leaf| bits::common(self.mask(leaf), &self.open), self.capacity.len())
            .into_iter()
            .map(|(leaves, pcpus)| Crowd { leaves, pcpus })
            .collect()
    }
}
