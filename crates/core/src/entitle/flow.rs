//! Which leaf runs on which pCPUs for how long: a maximum flow, kept from one step to the next.
//!
//! ```text
//!  source ──demand──▶ leaf ──its pCPUs──▶ pCPU ──room──▶ sink
//! ```
//!
//! The network is dense (a leaf may have half of a thousand pCPUs) but a flow is not: a leaf uses a
//! few of its pCPUs. So masks are bit sets, and only used edges are stored. A search finds the
//! distances of all pCPUs from the leaves that are short; then every pCPU with room is filled over
//! shortest paths, found backwards, where nothing but edges used up meanwhile can mislead (after Dinic
//! 1970). What cannot be placed shows crowded sets: all pCPUs that its leaves can reach are full.
//!
//! If all masks are [ranges](super::ranges), these tell what is crowded, and nothing flows before the end.
//!
//! Leaves and pCPUs of a set that is full for good are *retired*: they keep their flow and take no
//! part any more.

use super::bits;
use super::ranges::Ranges;

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
    /// If all masks are ranges; then nothing flows before the end.
    ranges: Option<Ranges>,
    /// There is one pCPU after merging, and all leaves may use it.
    pool: bool,
    demand: Vec<f64>,
    supplied: Vec<f64>,
    /// pCPUs that are not retired.
    open: Vec<u64>,
    /// Leaves that are not retired, ascending.
    active: Vec<usize>,
    is_active: Vec<bool>,
    /// Who may use each pCPU, as bits: `leaf_words` for each.
    fans: Vec<u64>,
    leaf_words: usize,
    /// The last search: the leaves at each distance, as bits.
    fronts: Vec<u64>,
    /// In a front, or retired.
    is_queued: Vec<bool>,
    /// pCPUs in the order of their distances.
    reached: Vec<usize>,
    /// Of each pCPU, and the first leaf that may still lead there.
    distance: Vec<usize>,
    cursors: Vec<usize>,
    unseen: Vec<u64>,
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
        let leaf_words = leaves.div_ceil(64).max(1);
        let (cursors, distance) = (vec![0; capacity.len()], vec![UNSEEN; capacity.len()]);
        Network {
            cursors,
            width,
            spans: masks.chunks(width).map(span).collect(),
            pool: capacity.len() == 1 && masks.iter().all(|mask| bits::contains(&[*mask], 0)),
            ranges: Ranges::of(masks.chunks(width), capacity.len()),
            masks,
            room: capacity.clone(),
            users: vec![Vec::new(); capacity.len()],
            capacity,
            used: vec![Vec::new(); leaves],
            demand: vec![0.0; leaves],
            supplied: vec![0.0; leaves],
            open,
            active: (0..leaves).collect(),
            is_active: vec![true; leaves],
            fans: Vec::new(),
            leaf_words,
            fronts: Vec::new(),
            is_queued: vec![false; leaves],
            reached: Vec::new(),
            distance,
            unseen: vec![0; width],
        }
    }

    /// The pCPUs that a leaf may use, as bits.
    pub(crate) fn mask(&self, leaf: usize) -> &[u64] {
        &self.masks[leaf * self.width..(leaf + 1) * self.width]
    }

    /// Those of all pCPUs. Not made before something is placed: where ranges tell what is crowded, that is seldom.
    fn fans(&self) -> Vec<u64> {
        let mut fans = vec![0; self.capacity.len() * self.leaf_words];
        for (leaf, mask) in self.masks.chunks(self.width).enumerate() {
            bits::iter(mask).for_each(|p| bits::set(&mut fans[p * self.leaf_words..], leaf));
        }
        fans
    }

    /// Who may use a pCPU, as bits.
    fn fan(&self, p: usize) -> &[u64] {
        &self.fans[p * self.leaf_words..(p + 1) * self.leaf_words]
    }

    /// What a leaf uses of which pCPU.
    pub(crate) fn used(&self, leaf: usize) -> &[(usize, f64)] {
        &self.used[leaf]
    }

    pub(crate) fn active(&self) -> &[usize] {
        &self.active
    }

    /// Whether no leaf is retired.
    pub(crate) fn all_active(&self) -> bool {
        self.active.len() == self.is_active.len()
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

    /// Whether all leaves may use the same pCPUs: then the only set is all of them.
    pub(crate) fn is_pool(&self) -> bool {
        self.pool
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

    /// Sets of active leaves that demand more than their pCPUs have; none if all can be placed.
    pub(crate) fn crowded(&mut self, demand: &[f64]) -> Vec<Crowd> {
        let Some(ranges) = &mut self.ranges else {
            return self.place(demand);
        };
        let wanted = |leaf: usize| if self.is_active[leaf] { demand[leaf] } else { 0.0 };
        let there = |p: usize| if bits::contains(&self.open, p) { self.capacity[p] } else { 0.0 };
        if ranges.fits(wanted, there, SHORT) {
            return Vec::new();
        }
        let found = ranges.overfull(wanted, there, SHORT);
        found.into_iter().map(|(first, last)| self.crowd_in(first, last)).collect()
    }

    /// The active leaves in a range.
    fn crowd_in(&self, first: usize, last: usize) -> Crowd {
        let inside = self.ranges.iter().flat_map(|ranges| ranges.inside(first, last));
        let mut leaves: Vec<usize> = inside.filter(|&leaf| self.is_active[leaf]).collect();
        leaves.sort_unstable();
        let mut pcpus = vec![0; self.width];
        leaves.iter().for_each(|&leaf| self.add_open(leaf, &mut pcpus));
        Crowd { leaves, pcpus }
    }

    /// Adds the pCPUs that a leaf may use now.
    pub(crate) fn add_open(&self, leaf: usize, pcpus: &mut [u64]) {
        let (first, end) = self.spans[leaf];
        bits::add_common(&mut pcpus[first..end], &self.mask(leaf)[first..end], &self.open[first..end]);
    }

    /// Makes sure that the final amounts flow.
    pub(crate) fn finish(&mut self, amounts: &[f64]) {
        if self.ranges.is_some() {
            self.reopen();
            self.place(amounts);
        }
    }

    /// Places these demands of the active leaves as far as possible. The crowds are the connected
    /// parts of what lacks room, none if all was placed.
    fn place(&mut self, demand: &[f64]) -> Vec<Crowd> {
        if self.fans.is_empty() {
            self.fans = self.fans();
        }
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
            self.search(&short);
            let mut stuck = true;
            for i in 0..self.reached.len() {
                let p = self.reached[i];
                if self.room[p] > NOTHING {
                    stuck = false;
                    self.fill(p);
                }
            }
            if stuck {
                return self.crowds(&short);
            }
        }
    }

    /// All leaves and pCPUs that are reachable from a leaf: pCPUs by masks, leaves by what they use.
    /// If the leaf cannot grow, all these pCPUs are full: the smallest crowded set with the leaf.
    ///
    /// # Errors
    /// The first leaf on the way that reaches this one, too, as the caller knows: what the two reach is the same.
    pub(crate) fn closure(&self, leaf: usize, reaches: impl Fn(usize) -> bool) -> Result<Crowd, usize> {
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
                    if known[user] || self.flow(user, p) <= SHORT {
                        continue;
                    }
                    if reaches(user) {
                        return Err(user);
                    }
                    known[user] = true;
                    leaves.push(user);
                }
            }
        }
        leaves.sort_unstable();
        Ok(Crowd { leaves, pcpus: seen })
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

    /// Finds the distance of each pCPU from the leaves that are short. Ends when it knows all pCPUs
    /// that can be reached.
    fn search(&mut self, short: &[usize]) {
        self.unseen.copy_from_slice(&self.open);
        let mut unseen = bits::len(&self.unseen);
        self.distance.fill(UNSEEN);
        self.is_queued.iter_mut().zip(&self.is_active).for_each(|(queued, active)| *queued = !active);
        self.reached.clear();
        self.fronts.clear();
        let mut front = short.to_vec();
        front.iter().for_each(|&leaf| self.is_queued[leaf] = true);
        while !front.is_empty() && unseen > 0 {
            let (level, before) = (self.fronts.len() / self.leaf_words, self.reached.len());
            self.fronts.resize(self.fronts.len() + self.leaf_words, 0);
            let members = &mut self.fronts[level * self.leaf_words..];
            front.iter().for_each(|&leaf| bits::set(members, leaf));
            if front.len() * self.width < unseen * self.leaf_words / 8 {
                front.sort_unstable();
                self.spread(&front, level);
            } else {
                self.gather(level);
            }
            unseen -= self.reached.len() - before;
            if unseen == 0 {
                return;
            }
            front.clear();
            for &p in &self.reached[before..] {
                for &leaf in &self.users[p] {
                    if !std::mem::replace(&mut self.is_queued[leaf], true) {
                        front.push(leaf);
                    }
                }
            }
        }
    }

    /// Reaches the pCPUs of these leaves, which are in ascending order: quicker for few leaves.
    fn spread(&mut self, front: &[usize], level: usize) {
        for &leaf in front {
            let (first, end) = self.spans[leaf];
            for word in first..end {
                let mut new = self.masks[leaf * self.width + word] & self.unseen[word];
                self.unseen[word] &= !new;
                while new != 0 {
                    let p = word * 64 + new.trailing_zeros() as usize;
                    new &= new - 1;
                    (self.distance[p], self.cursors[p]) = (level, leaf);
                    self.reached.push(p);
                }
            }
        }
    }

    /// Reaches the unseen pCPUs that a leaf of a front may use: quicker for many leaves.
    fn gather(&mut self, level: usize) {
        let front = &self.fronts[level * self.leaf_words..];
        for word in 0..self.width {
            let mut unseen = self.unseen[word];
            while unseen != 0 {
                let p = word * 64 + unseen.trailing_zeros() as usize;
                unseen &= unseen - 1;
                if let Some(leaf) = bits::next_common(self.fan(p), front, 0) {
                    bits::clear(&mut self.unseen, p);
                    (self.distance[p], self.cursors[p]) = (level, leaf);
                    self.reached.push(p);
                }
            }
        }
    }

    /// Fills the room of a pCPU over shortest paths from leaves that are short, as far as they carry.
    fn fill(&mut self, room: usize) {
        // (leaf, the pCPU that it shall use more, the one that it shall use less)
        let mut path: Vec<(usize, usize, usize)> = Vec::new();
        let mut p = room;
        while self.room[room] > NOTHING {
            let level = self.distance[p];
            let front = &self.fronts[level * self.leaf_words..(level + 1) * self.leaf_words];
            let Some(leaf) = bits::next_common(self.fan(p), front, self.cursors[p]) else {
                // Nobody who could come here is left: who wanted to leave for here looks elsewhere.
                let Some((_, before, _)) = path.pop() else {
                    return;
                };
                self.distance[p] = UNSEEN;
                p = before;
                continue;
            };
            self.cursors[p] = leaf;
            let nearer = |&&(at, _): &&(usize, f64)| level > 0 && self.distance[at] == level - 1;
            if level == 0 && self.demand[leaf] - self.supplied[leaf] > NOTHING {
                self.push(leaf, p, &path);
                path.clear();
                p = room;
            } else if let Some(&(from, _)) = self.used[leaf].iter().find(nearer) {
                path.push((leaf, p, from));
                p = from;
            } else {
                // It cannot help any pCPU any more.
                bits::clear(&mut self.fronts[level * self.leaf_words..], leaf);
            }
        }
    }

    /// Moves as much as a path carries: `start` gets it on pCPU `first`, each leaf of the path makes
    /// the room for it, from the last to the first.
    fn push(&mut self, start: usize, first: usize, path: &[(usize, usize, usize)]) {
        let end = path.first().map_or(first, |step| step.1);
        let mut amount = (self.demand[start] - self.supplied[start]).min(self.room[end]);
        for &(leaf, _, from) in path {
            amount = amount.min(self.flow(leaf, from));
        }
        self.supplied[start] += amount;
        self.room[end] -= amount;
        self.change(start, first, amount);
        for &(leaf, to, from) in path {
            self.change(leaf, to, amount);
            self.change(leaf, from, -amount);
        }
    }

    /// After a search that reached no room: what was reached, in connected parts.
    fn crowds(&self, short: &[usize]) -> Vec<Crowd> {
        let mut member = vec![false; self.used.len()];
        short.iter().for_each(|&leaf| member[leaf] = true);
        for &p in &self.reached {
            self.users[p].iter().for_each(|&leaf| member[leaf] = true);
        }
        let reached: Vec<usize> = self.active.iter().copied().filter(|&leaf| member[leaf]).collect();
        bits::components(&reached, |leaf| bits::common(self.mask(leaf), &self.open), self.capacity.len())
            .into_iter()
            .map(|(leaves, pcpus)| Crowd { leaves, pcpus })
            .collect()
    }
}
