//! A problem in numbers, and who sits where: what each vCPU would cost at each pCPU, in a few additions.

use std::collections::BTreeMap;

use super::cost::{COMPETING, Cost, HARM, MOVES, SHARING, SLOW, SPREAD, STACKED, STEP, WHOLE};
use super::{Class, Problem};
use crate::entitle::{self, Division, Wants};
use crate::topology::Topology;
use crate::{CpuId, CpuSet, Cpus, Weight};

/// A problem in numbers.
pub(super) struct Ground {
    /// Online pCPUs.
    pub(super) spots: Vec<Spot>,
    /// Spots of each unit.
    pub(super) units: Vec<Unit>,
    /// All vCPUs, VM by VM.
    pub(super) guests: Vec<Guest>,
    pub(super) vms: Vec<VmFacts>,
    pub(super) nodes: usize,
    caches: usize,
    sockets: usize,
    /// Spots that VMs may share: neither isolated nor reserved.
    pub(super) common: Vec<bool>,
}

/// A pCPU.
pub(super) struct Spot {
    pub(super) id: CpuId,
    pub(super) unit: usize,
    pub(super) cache: usize,
    pub(super) node: usize,
    socket: usize,
    /// What it lacks to the fastest.
    slow: i64,
}

/// What competes for execution units.
pub(super) struct Unit {
    pub(super) spots: Vec<usize>,
    /// Units of one kind are alike for who has no reason to prefer one of them.
    pub(super) kind: usize,
}

/// A vCPU.
pub(super) struct Guest {
    pub(super) vm: usize,
    pub(super) load: i64,
    /// Where it may be, and where it is.
    pub(super) now: Option<CpuSet>,
    pub(super) on: Option<usize>,
    /// Nodes far from the memory of its guest node; `None`: its VM's say it.
    far: Option<Vec<bool>>,
}

/// A VM.
pub(super) struct VmFacts {
    pub(super) stays: bool,
    class: Class,
    rank: i64,
    /// Spots that it may be given.
    pub(super) allowed: Vec<bool>,
    /// Nodes far from its memory.
    pub(super) far: Vec<bool>,
    /// Its guests.
    pub(super) guests: std::ops::Range<usize>,
}

impl Ground {
    pub(super) fn new(problem: &Problem) -> Ground {
        let Problem { topology, reserved, vms } = problem;
        let spots = spots(topology);
        let index = |cpu: CpuId| spots.binary_search_by_key(&cpu, |spot| spot.id).ok();
        let mut units: Vec<Unit> = Vec::new();
        let mut kinds = BTreeMap::new();
        for (number, unit) in topology.units().iter().enumerate() {
            let members: Vec<usize> = unit.iter().filter_map(index).collect();
            debug_assert!(members.iter().all(|spot| spots[*spot].unit == number));
            let special = |cpu: CpuId| (topology.isolated.contains(cpu), reserved.contains(cpu));
            let kind: Vec<_> =
                members.iter().map(|s| (spots[*s].cache, spots[*s].slow, special(spots[*s].id))).collect();
            let next = kinds.len();
            units.push(Unit { spots: members, kind: *kinds.entry(kind).or_insert(next) });
        }
        let loads = loads(problem);
        let mut ranks: Vec<(i32, f64)> = vms.iter().map(|vm| (vm.priority, vm.weight)).collect();
        ranks.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        ranks.dedup();
        let mut guests = Vec::new();
        let mut facts = Vec::new();
        let nodes = 1 + spots.iter().map(|spot| spot.node).max().unwrap_or(0);
        let far_from = |memory: &CpuSet| {
            let near = topology.pcpus_of_nodes(memory);
            if !spots.iter().any(|spot| near.contains(spot.id)) {
                return None;
            }
            let mut far = vec![false; nodes];
            spots.iter().for_each(|spot| far[spot.node] |= !near.contains(spot.id));
            Some(far)
        };
        for (vm, known) in vms.iter().enumerate() {
            let begin = guests.len();
            let mut own = CpuSet::default();
            for (number, vcpu) in known.vcpus.iter().enumerate() {
                if let Some(now) = &vcpu.now {
                    own = own.union(now);
                }
                let on = vcpu.on.and_then(index);
                let far = vcpu.memory.as_ref().and_then(far_from);
                guests.push(Guest { vm, load: loads[vm][number], now: vcpu.now.clone(), on, far });
            }
            let may = |spot: &Spot| {
                !reserved.contains(spot.id) && (!topology.isolated.contains(spot.id) || own.contains(spot.id))
            };
            let rank = ranks.iter().position(|rank| *rank == (known.priority, known.weight)).unwrap_or(0);
            facts.push(VmFacts {
                stays: known.stays,
                class: known.class.class,
                rank: i64::try_from(rank).unwrap_or(0),
                allowed: spots.iter().map(may).collect(),
                far: known.memory.as_ref().and_then(far_from).unwrap_or_else(|| vec![false; nodes]),
                guests: begin..guests.len(),
            });
        }
        let shared = |spot: &Spot| !reserved.contains(spot.id) && !topology.isolated.contains(spot.id);
        Ground {
            common: spots.iter().map(shared).collect(),
            caches: 1 + spots.iter().map(|spot| spot.cache).max().unwrap_or(0),
            sockets: 1 + spots.iter().map(|spot| spot.socket).max().unwrap_or(0),
            nodes,
            spots,
            units,
            guests,
            vms: facts,
        }
    }

    /// With those VMs that stay, where they are.
    pub(super) fn seats(&self) -> Seats<'_> {
        let mut seats = Seats::empty(self);
        // VMs have few different sets.
        let mut sets: BTreeMap<Option<&CpuSet>, Vec<usize>> = BTreeMap::new();
        for guest in (0..self.guests.len()).filter(|guest| self.vms[self.guests[*guest].vm].stays) {
            let set = sets.entry(self.guests[guest].now.as_ref()).or_insert_with(|| self.now(guest));
            match set[..] {
                [only] => seats.put(guest, only),
                _ => seats.spread_over(guest, set),
            }
        }
        seats
    }

    /// Spots that a guest may use now; all if nothing says otherwise or none of them is there.
    pub(super) fn now(&self, guest: usize) -> Vec<usize> {
        let set = self.guests[guest].now.as_ref();
        let inside = |spot: &usize| set.is_none_or(|set| set.contains(self.spots[*spot].id));
        let spots: Vec<usize> = (0..self.spots.len()).filter(inside).collect();
        if spots.is_empty() { (0..self.spots.len()).collect() } else { spots }
    }

    /// What the present affinities cost.
    pub(super) fn present(&self) -> Cost {
        self.cost_of(&(0..self.guests.len()).map(|guest| self.now(guest)).collect::<Vec<_>>())
    }

    /// What these sets cost, a guest being on all spots of its set alike. Moves are not counted. Those who share a set of several
    /// spots are stacked as little as that can be, and as many of them as there are spots do not wait for each other.
    pub(super) fn cost_of(&self, sets: &[Vec<usize>]) -> Cost {
        let mut seats = Seats::empty(self);
        let mut cost = Cost::default();
        let mut sharers: BTreeMap<(usize, &[usize]), i64> = BTreeMap::new();
        // How many share a set, and what those who fit take of each of its spots.
        let mut mates: BTreeMap<&[usize], (i64, i64)> = BTreeMap::new();
        for (guest, set) in sets.iter().enumerate() {
            cost += seats.float(guest, set);
            if let Some(spots) = i64::try_from(set.len()).ok().filter(|spots| *spots > 1) {
                let part = self.guests[guest].load / spots;
                let (count, parts) = mates.entry(set).or_default();
                *count += 1;
                if *count <= spots {
                    cost.0[SHARING] -= spots * *parts * part;
                    *parts += part;
                }
                let many = sharers.entry((self.guests[guest].vm, set)).or_default();
                // As evenly as they can be.
                cost.0[STACKED] += *many / i64::try_from(set.len()).unwrap_or(i64::MAX);
                *many += 1;
            }
        }
        cost
    }

    /// Whether a guest may be given a spot.
    pub(super) fn may(&self, guest: usize, spot: usize) -> bool {
        self.vms[self.guests[guest].vm].allowed[spot]
    }
}

/// Where everybody is.
#[derive(Clone)]
pub(super) struct Seats<'a> {
    pub(super) ground: &'a Ground,
    pub(super) home: Vec<Option<usize>>,
    /// Of each spot: demand, what of it is the ranks', and VMs with how many of their vCPUs.
    pub(super) load: Vec<i64>,
    ranked: Vec<i64>,
    pub(super) on: Vec<Vec<(usize, i64)>>,
    /// Of each unit: utilisation, ranks, and how many are there.
    used: Vec<i64>,
    unit_ranked: Vec<i64>,
    pub(super) crowd: Vec<usize>,
    /// Cache-hungry demand on each cache.
    hungry: Vec<i64>,
    /// Of each VM: demand on each cache, node and socket, and on all.
    by_cache: Vec<i64>,
    pub(super) by_node: Vec<i64>,
    by_socket: Vec<i64>,
    of_vm: Vec<i64>,
}

impl<'a> Seats<'a> {
    fn empty(ground: &'a Ground) -> Seats<'a> {
        let (spots, units, vms) = (ground.spots.len(), ground.units.len(), ground.vms.len());
        Seats {
            ground,
            home: vec![None; ground.guests.len()],
            load: vec![0; spots],
            ranked: vec![0; spots],
            on: vec![Vec::new(); spots],
            used: vec![0; units],
            unit_ranked: vec![0; units],
            crowd: vec![0; units],
            hungry: vec![0; ground.caches],
            by_cache: vec![0; vms * ground.caches],
            by_node: vec![0; vms * ground.nodes],
            by_socket: vec![0; vms * ground.sockets],
            of_vm: vec![0; vms],
        }
    }

    /// What a guest would add to the cost at a spot. It must not be seated.
    pub(super) fn cost(&self, guest: usize, spot: usize) -> Cost {
        self.cost_within(guest, spot, None).unwrap_or_default()
    }

    /// The same; `None` if it would be above the limit.
    pub(super) fn cost_within(&self, guest: usize, spot: usize, limit: Option<&Cost>) -> Option<Cost> {
        let ground = self.ground;
        let Guest { vm, load, ref now, on, ref far } = ground.guests[guest];
        // The common case first: nobody is stacked at the best spot, and somebody is in the way here.
        let sharing = self.load[spot] * load;
        let least = [0, sharing, 0, 0, 0, 0, 0];
        if limit.is_some_and(|limit| least > limit.0) {
            return None;
        }
        let place = &ground.spots[spot];
        let facts = &ground.vms[vm];
        let mut cost = [0; 7];
        cost[STACKED] = self.on[spot].iter().find(|(other, _)| *other == vm).map_or(0, |(_, count)| *count);
        cost[SHARING] = sharing;
        let used = self.load[spot].min(WHOLE);
        let more = (self.load[spot] + load).min(WHOLE) - used;
        let beside = self.used[place.unit] - used;
        cost[COMPETING] = more * beside;
        cost[SLOW] = load * place.slow / WHOLE;
        if limit.is_some_and(|limit| cost > limit.0) {
            return None;
        }
        let ranked = facts.rank * load;
        cost[HARM] =
            ranked * (beside + place.slow) + more * (self.unit_ranked[place.unit] - self.ranked[spot]);
        cost[SPREAD] = self.spread(vm, far.as_deref(), load, place);
        cost[MOVES] = match (on, now) {
            (Some(on), _) if on == spot => 0,
            (_, Some(now)) if !now.contains(place.id) => 2,
            (None, _) => 0,
            _ => 1,
        };
        Some(Cost(cost)).filter(|cost| limit.is_none_or(|limit| cost <= limit))
    }

    fn spread(&self, vm: usize, far: Option<&[bool]>, load: i64, place: &Spot) -> i64 {
        let ground = self.ground;
        let facts = &ground.vms[vm];
        let all = self.of_vm[vm];
        let mut apart = if far.unwrap_or(&facts.far)[place.node] { WHOLE } else { 0 };
        if facts.class != Class::CacheHungry {
            apart += all - self.by_node[vm * ground.nodes + place.node];
            apart += all - self.by_socket[vm * ground.sockets + place.socket];
        }
        match facts.class {
            Class::Communicating => apart += all - self.by_cache[vm * ground.caches + place.cache],
            Class::CacheHungry => apart += self.hungry[place.cache],
            Class::Unknown => {}
        }
        apart * load
    }

    /// Seats a guest.
    pub(super) fn put(&mut self, guest: usize, spot: usize) {
        self.home[guest] = Some(spot);
        self.change(guest, spot, self.ground.guests[guest].load, 1);
    }

    /// Takes a guest out; from where.
    pub(super) fn take(&mut self, guest: usize) -> Option<usize> {
        let spot = self.home[guest].take()?;
        self.change(guest, spot, -self.ground.guests[guest].load, -1);
        Some(spot)
    }

    /// Spreads a guest over some spots, and says what that costs besides moves.
    fn float(&mut self, guest: usize, spots: &[usize]) -> Cost {
        let Some(many) = i64::try_from(spots.len()).ok().filter(|many| *many > 0) else {
            return Cost::default();
        };
        let ground = self.ground;
        let Guest { vm, load, ref far, .. } = ground.guests[guest];
        if many == 1 {
            let mut cost = self.cost(guest, spots[0]);
            cost.0[MOVES] = 0;
            self.put(guest, spots[0]);
            return cost;
        }
        // As if a part of it were at each of them; by its own utilisation, too, as competing pairs are measured.
        let part = load / many;
        let mut sum = Cost::default();
        for &spot in spots {
            let place = &ground.spots[spot];
            let facts = &ground.vms[vm];
            let used = self.load[spot].min(WHOLE);
            let more = (self.load[spot] + part).min(WHOLE) - used;
            let beside = self.used[place.unit] - used;
            let harm = facts.rank * part * (beside + place.slow)
                + more * (self.unit_ranked[place.unit] - self.ranked[spot]);
            let mut cost = [0; 7];
            cost[SHARING] = self.load[spot] * part;
            cost[COMPETING] = more * beside;
            cost[SLOW] = part * place.slow / WHOLE;
            cost[HARM] = harm;
            cost[SPREAD] = self.spread(vm, far.as_deref(), part, place);
            sum += Cost(cost);
            self.change(guest, spot, part, 0);
            // Somebody may run here: the unit is not like one that nobody uses.
            self.crowd[place.unit] += 1;
        }
        sum
    }

    /// The same without the cost.
    fn spread_over(&mut self, guest: usize, spots: &[usize]) {
        let Some(many) = i64::try_from(spots.len()).ok().filter(|many| *many > 0) else { return };
        let part = self.ground.guests[guest].load / many;
        for &spot in spots {
            self.change(guest, spot, part, 0);
            self.crowd[self.ground.spots[spot].unit] += 1;
        }
    }

    fn change(&mut self, guest: usize, spot: usize, load: i64, count: i64) {
        let ground = self.ground;
        let vm = ground.guests[guest].vm;
        let facts = &ground.vms[vm];
        let &Spot { unit, cache, node, socket, .. } = &ground.spots[spot];
        let before = self.load[spot].min(WHOLE);
        self.load[spot] += load;
        self.used[unit] += self.load[spot].min(WHOLE) - before;
        self.ranked[spot] += facts.rank * load;
        self.unit_ranked[unit] += facts.rank * load;
        if count != 0 {
            match self.on[spot].iter().position(|(other, _)| *other == vm) {
                Some(at) if self.on[spot][at].1 + count == 0 => _ = self.on[spot].swap_remove(at),
                Some(at) => self.on[spot][at].1 += count,
                None => self.on[spot].push((vm, count)),
            }
            self.crowd[unit] = if count > 0 { self.crowd[unit] + 1 } else { self.crowd[unit] - 1 };
        }
        if facts.class == Class::CacheHungry {
            self.hungry[cache] += load;
        }
        self.by_cache[vm * ground.caches + cache] += load;
        self.by_node[vm * ground.nodes + node] += load;
        self.by_socket[vm * ground.sockets + socket] += load;
        self.of_vm[vm] += load;
    }
}

/// The online pCPUs, by number.
fn spots(topology: &Topology) -> Vec<Spot> {
    let units = topology.units();
    // The largest level of caches is the one behind which memory is.
    let level = topology.caches.first().map(|cache| cache.level);
    let caches: Vec<&CpuSet> =
        topology.caches.iter().filter(|cache| Some(cache.level) == level).map(|cache| &cache.pcpus).collect();
    let nodes: Vec<&CpuSet> = topology.nodes.iter().map(|part| &part.pcpus).collect();
    let sockets: Vec<&CpuSet> = topology.sockets.iter().map(|part| &part.pcpus).collect();
    // What is in no set of a level is in one more.
    let find = |sets: &[&CpuSet], cpu| sets.iter().position(|set| set.contains(cpu)).unwrap_or(sets.len());
    let most = topology.capacity.values().copied().max().unwrap_or(0);
    let mut unit_of = BTreeMap::new();
    for (number, unit) in units.iter().enumerate() {
        unit_of.extend(unit.iter().map(|cpu| (cpu, number)));
    }
    let one = |id: CpuId| {
        let capacity = topology.capacity.get(&id.0).copied().unwrap_or(most);
        let node = find(&nodes, id);
        Spot {
            id,
            unit: unit_of.get(&id).copied().unwrap_or(0),
            // Without a shared cache, a node counts as having one.
            cache: if caches.is_empty() { node } else { find(&caches, id) },
            node,
            socket: find(&sockets, id),
            slow: if most == 0 { 0 } else { WHOLE * i64::from(most - capacity) / i64::from(most) },
        }
    };
    topology.online().iter().map(one).collect()
}

/// Whether all demands together exceed the pCPUs, so that weights say what each counts with.
pub(super) fn is_short(problem: &Problem) -> bool {
    let all: f64 = problem.vms.iter().flat_map(|vm| &vm.vcpus).map(|vcpu| vcpu.demand.clamp(0.0, 1.0)).sum();
    all > problem.topology.online().difference(&problem.reserved).len() as f64
}

/// What each vCPU counts with: its demand; where all pCPUs together are too few, what the weights leave it.
fn loads(problem: &Problem) -> Vec<Vec<i64>> {
    let demand = |vcpu: &super::Vcpu| vcpu.demand.clamp(0.0, 1.0);
    let pcpus = problem.topology.online().difference(&problem.reserved);
    let vcpus = |vm: &super::Vm| {
        let one = |vcpu| entitle::Vcpu { demand: Some(Cpus(demand(vcpu))), ..entitle::Vcpu::default() };
        vm.vcpus.iter().map(one).collect()
    };
    let vms = problem.vms.iter().enumerate().map(|(number, vm)| entitle::Vm {
        name: number.to_string(),
        weight: Weight(if vm.weight > 0.0 { vm.weight } else { 1.0 }),
        cap: None,
        vcpus: vcpus(vm),
    });
    let host = entitle::Host { pcpus, vms: vms.collect(), ..entitle::Host::default() };
    let division = if is_short(problem) { Division::of(&host, Wants::Measured).ok() } else { None };
    let of = |vm: usize, vcpu: usize| match &division {
        Some(division) => division.vcpus(vm)[vcpu].cpus.0,
        None => demand(&problem.vms[vm].vcpus[vcpu]),
    };
    let counted = |vm: usize, vcpu: usize| counted(of(vm, vcpu));
    (0..problem.vms.len())
        .map(|vm| (0..problem.vms[vm].vcpus.len()).map(|vcpu| counted(vm, vcpu)).collect())
        .collect()
}

/// A demand in steps, at least one: who idles now may wake before the next placement, and beside nobody costs nothing.
pub(super) fn counted(demand: f64) -> i64 {
    #[expect(clippy::cast_possible_truncation, reason = "0 to 20")]
    let steps = (demand.clamp(0.0, 1.0) * 20.0).round() as i64;
    steps.max(1) * STEP
}
