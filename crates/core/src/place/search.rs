//! Homes of little cost: the busiest first, each where it costs least; then moves and exchanges while they help.

use super::cost::{COMPETING, Cost, MOVES, SPREAD};
use super::ground::{Ground, Seats};

/// With no more vCPUs and pCPUs, everything is tried with everything, from several beginnings.
const SMALL: usize = 40;
/// Beginnings for small problems.
const STARTS: u64 = 6;
/// Exchanges to be tried in larger ones, from each beginning: some ms.
const EXCHANGES: usize = 15_000;
/// Rounds of moves and exchanges, for small problems and larger ones.
const ROUNDS: (usize, usize) = (8, 3);

/// Whether everything is tried with everything.
pub(super) fn is_small(ground: &Ground) -> bool {
    ground.guests.len() <= SMALL && ground.spots.len() <= SMALL
}

/// A home for each guest; `None` for those that stay and those that have no spot.
pub(super) fn homes(ground: &Ground) -> Vec<Option<usize>> {
    let free: Vec<usize> = (0..ground.guests.len())
        .filter(|guest| !ground.vms[ground.guests[*guest].vm].stays)
        .filter(|guest| ground.vms[ground.guests[*guest].vm].allowed.contains(&true))
        .collect();
    let fixed = ground.seats();
    let mut search =
        Search { ground, fixed: &fixed, small: free.len() <= SMALL && ground.spots.len() <= SMALL, free };
    let mut best = search.busiest_first();
    let mut consider = |found: (Cost, Vec<Option<usize>>)| {
        if found.0 < best.0 {
            best = found;
        }
    };
    if search.free.iter().any(|guest| ground.guests[*guest].now.is_some()) {
        consider(search.least_choice_first());
    }
    if search.small {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..STARTS {
            search.shuffle(&mut state);
            consider(search.in_order(|_, _| 0));
        }
    }
    best.1
}

struct Search<'a> {
    ground: &'a Ground,
    /// With those who stay.
    fixed: &'a Seats<'a>,
    small: bool,
    /// Who is to be placed, in the order in which that is done.
    free: Vec<usize>,
}

impl Search<'_> {
    /// The busiest first; of places that cost the same, one on the node where the VM has room.
    fn busiest_first(&mut self) -> (Cost, Vec<Option<usize>>) {
        let ground = self.ground;
        let busiest = |guest: &usize| std::cmp::Reverse(ground.guests[*guest].load);
        self.free.sort_by_key(|guest| (busiest(guest), *guest));
        let nodes = self.nodes(self.fixed);
        self.in_order(|guest, spot| {
            i64::from(nodes[ground.guests[guest].vm] != Some(ground.spots[spot].node))
        })
    }

    /// From where everybody is: whoever may stay, stays.
    fn least_choice_first(&mut self) -> (Cost, Vec<Option<usize>>) {
        let ground = self.ground;
        // Those who have the least choice first.
        let choice =
            |guest: &usize| ground.guests[*guest].now.as_ref().map_or(usize::MAX, crate::CpuSet::len);
        self.free.sort_by_key(|guest| (choice(guest), *guest));
        self.in_order(|guest, spot| {
            let now = ground.guests[guest].now.as_ref();
            i64::from(now.is_some_and(|now| !now.contains(ground.spots[spot].id))) << 60
        })
    }

    /// Seats everybody in the order of `free` where it costs least, `bias` first if it is large and last if it is
    /// small, and makes it better.
    fn in_order(&self, bias: impl Fn(usize, usize) -> i64) -> (Cost, Vec<Option<usize>>) {
        let mut seats = self.fixed.clone();
        let mut kinds = Kinds::default();
        for &guest in &self.free {
            let spots = self.candidates(&seats, guest, &mut kinds);
            let mut best: Option<(i64, Cost, i64, usize)> = None;
            for spot in spots {
                let bias = bias(guest, spot);
                let limit = match &best {
                    Some((first, ..)) if bias >> 32 > *first => continue,
                    Some((first, cost, ..)) if bias >> 32 == *first => Some(cost),
                    _ => None,
                };
                let Some(cost) = seats.cost_within(guest, spot, limit) else { continue };
                let found = (bias >> 32, cost, bias, spot);
                if best.is_none_or(|best| found < best) {
                    best = Some(found);
                }
            }
            if let Some((.., spot)) = best {
                seats.put(guest, spot);
            }
        }
        self.improve(&mut seats, &mut kinds);
        let mut again = self.fixed.clone();
        let mut cost = Cost::default();
        for &guest in &self.free {
            if let Some(spot) = seats.home[guest] {
                cost += again.cost(guest, spot);
                again.put(guest, spot);
            }
        }
        let mut homes = seats.home;
        for (guest, home) in homes.iter_mut().enumerate() {
            if self.ground.vms[self.ground.guests[guest].vm].stays {
                *home = None;
            }
        }
        (cost, homes)
    }

    /// A node for each VM, so that all of it finds room on one if there is such a one: the widest first, each on the
    /// node with the least room that is enough.
    fn nodes(&self, seats: &Seats<'_>) -> Vec<Option<usize>> {
        let ground = self.ground;
        let mut room = vec![0_usize; ground.nodes];
        for unit in &ground.units {
            let clear = unit.spots.iter().all(|spot| seats.load[*spot] == 0);
            if let Some(first) = unit.spots.iter().find(|spot| ground.common[**spot]).filter(|_| clear) {
                room[ground.spots[*first].node] += 1;
            }
        }
        let mut order: Vec<usize> = (0..ground.vms.len()).filter(|vm| !ground.vms[*vm].stays).collect();
        order.sort_by_key(|vm| (std::cmp::Reverse(ground.vms[*vm].guests.len()), *vm));
        let mut nodes = vec![None; ground.vms.len()];
        for vm in order {
            let facts = &ground.vms[vm];
            let wide = facts.guests.len();
            let here = |node: usize| {
                facts
                    .guests
                    .clone()
                    .any(|guest| ground.guests[guest].on.is_some_and(|on| ground.spots[on].node == node))
            };
            let price = |node: &usize| {
                let fits = room[*node] >= wide;
                let left = if fits { room[*node] } else { usize::MAX - room[*node] };
                (facts.far[*node], !fits, !here(*node), left, *node)
            };
            if let Some(node) = (0..ground.nodes).min_by_key(price) {
                room[node] = room[node].saturating_sub(wide);
                nodes[vm] = Some(node);
            }
        }
        nodes
    }

    /// Spots to try for a guest: of units that nobody uses one of each kind, and all in use; so that the result is
    /// that of trying all.
    fn candidates(&self, seats: &Seats<'_>, guest: usize, kinds: &mut Kinds) -> Vec<usize> {
        let ground = self.ground;
        let known = &ground.guests[guest];
        let familiar = |spot: usize| {
            known.on == Some(spot)
                || known.now.as_ref().is_some_and(|now| now.contains(ground.spots[spot].id))
        };
        kinds.next();
        let mut found = Vec::new();
        for (number, unit) in ground.units.iter().enumerate() {
            let may = unit.spots.iter().copied().filter(|spot| ground.may(guest, *spot));
            if seats.crowd[number] > 0 {
                found.extend(may);
                continue;
            }
            let fresh = kinds.is_new(unit.kind);
            let mut first = fresh;
            for spot in may {
                if std::mem::take(&mut first) || familiar(spot) {
                    found.push(spot);
                }
            }
        }
        found
    }

    /// Moves and exchanges while one of them helps.
    fn improve(&self, seats: &mut Seats<'_>, kinds: &mut Kinds) {
        let mut left = EXCHANGES;
        for _ in 0..if self.small { ROUNDS.0 } else { ROUNDS.1 } {
            let moved = self.free.iter().filter(|guest| self.moved(seats, **guest, kinds)).count();
            let exchanged = self.exchanges(seats, &mut left);
            if moved == 0 && !exchanged {
                return;
            }
        }
    }

    /// Moves a guest to where it costs least, if that is less.
    fn moved(&self, seats: &mut Seats<'_>, guest: usize, kinds: &mut Kinds) -> bool {
        let Some(from) = seats.take(guest) else { return false };
        let now = seats.cost(guest, from);
        let mut best = (now, from);
        if now != Cost::default() {
            for spot in self.candidates(seats, guest, kinds) {
                if let Some(cost) =
                    seats.cost_within(guest, spot, Some(&best.0)).filter(|cost| *cost < best.0)
                {
                    best = (cost, spot);
                }
            }
        }
        seats.put(guest, best.1);
        best.1 != from
    }

    fn exchanges(&self, seats: &mut Seats<'_>, left: &mut usize) -> bool {
        let mut helped = false;
        for (order, &one) in self.free.iter().enumerate() {
            let Some(home) = seats.home[one] else { continue };
            seats.take(one);
            let price = seats.cost(one, home);
            seats.put(one, home);
            if !self.small && price.0[COMPETING] == 0 && price.0[SPREAD] == 0 && price.0[MOVES] == 0 {
                continue;
            }
            let others = if self.small { &self.free[order + 1..] } else { &self.free[..] };
            for &other in others {
                if !self.small && !self.promising(seats, one, other) {
                    continue;
                }
                if *left == 0 {
                    return helped;
                }
                if !self.small {
                    *left -= 1;
                }
                helped |= self.exchange(seats, one, other);
            }
        }
        helped
    }

    /// Whether an exchange could bring a guest nearer to the others of its VM, or back to where it is.
    fn promising(&self, seats: &Seats<'_>, one: usize, other: usize) -> bool {
        let ground = self.ground;
        let (Some(from), Some(to)) = (seats.home[one], seats.home[other]) else { return false };
        let (a, b) = (&ground.guests[one], &ground.guests[other]);
        if a.vm == b.vm && a.load == b.load {
            return false;
        }
        let node = ground.spots[to].node;
        let nearer = ground.spots[from].node != node && seats.by_node[a.vm * ground.nodes + node] > 0;
        nearer || a.on == Some(to)
    }

    fn exchange(&self, seats: &mut Seats<'_>, one: usize, other: usize) -> bool {
        let (Some(a), Some(b)) = (seats.home[one], seats.home[other]) else { return false };
        if a == b || !self.ground.may(one, b) || !self.ground.may(other, a) {
            return false;
        }
        seats.take(one);
        seats.take(other);
        let mut now = seats.cost(one, a);
        seats.put(one, a);
        now += seats.cost(other, b);
        seats.take(one);
        let mut then = seats.cost(one, b);
        seats.put(one, b);
        then += seats.cost(other, a);
        let better = then < now;
        if better {
            seats.put(other, a);
        } else {
            seats.take(one);
            seats.put(one, a);
            seats.put(other, b);
        }
        better
    }

    /// Another order, always the same ones (xorshift).
    fn shuffle(&mut self, state: &mut u64) {
        for last in (1..self.free.len()).rev() {
            *state ^= *state << 13;
            *state ^= *state >> 7;
            *state ^= *state << 17;
            let below = u64::try_from(last + 1).unwrap_or(1);
            let at = usize::try_from(*state % below).unwrap_or(0);
            self.free.swap(last, at);
        }
    }
}

/// Kinds of units that were seen in one look.
#[derive(Default)]
struct Kinds {
    seen: Vec<u32>,
    look: u32,
}

impl Kinds {
    fn next(&mut self) {
        self.look += 1;
    }

    fn is_new(&mut self, kind: usize) -> bool {
        if kind >= self.seen.len() {
            self.seen.resize(kind + 1, 0);
        }
        std::mem::replace(&mut self.seen[kind], self.look) != self.look
    }
}
