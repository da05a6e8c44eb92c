//! From homes to affinity sets: one pCPU each, or pools where that would leave pCPUs idle while somebody waits.

use std::collections::BTreeSet;

use super::cost::STEP;
use super::ground::{Ground, Seats, is_short};
use super::{Cost, Placed, Placement, Problem, Reason, Seat, throughput};
use crate::{CpuId, CpuSet};

/// pCPUs, and pairs; of two that differ by less the one that is fairer is taken, the pool, unless more would compete.
const EVEN: f64 = 1e-9;

/// The placement of these homes.
pub(super) fn placement(problem: &Problem, ground: &Ground, homes: &[Option<usize>]) -> Placement {
    let mut seats = ground.seats();
    let mut cost = Cost::default();
    for (guest, home) in homes.iter().enumerate() {
        if let Some(spot) = *home {
            cost += seats.cost(guest, spot);
            seats.put(guest, spot);
        }
    }
    let with = |pools: &[Option<&Pool>]| {
        let vms = problem.vms.iter().zip(&ground.vms).map(|(vm, facts)| {
            let vcpus = vm.vcpus.iter().zip(facts.guests.clone()).map(|(vcpu, guest)| {
                let Some(spot) = homes[guest] else {
                    let why = if facts.stays { Reason::Left } else { Reason::Nowhere };
                    return Seat { id: vcpu.id, home: None, affinity: vcpu.now.clone(), why };
                };
                let home = ground.spots[spot].id;
                let (affinity, why) = match pools[ground.spots[spot].node] {
                    Some(Pool { spots, guests }) if spots.contains(home) => {
                        (spots.clone(), Reason::Pool { vcpus: *guests, pcpus: spots.len() })
                    }
                    _ => (CpuSet::from_iter([home]), pinned(problem, ground, &seats, guest, spot)),
                };
                Seat { id: vcpu.id, home: Some(home), affinity: Some(affinity), why }
            });
            placed(problem, vm, vcpus.collect())
        });
        Placement { vms: vms.collect(), cost }
    };
    let pools = pools(ground, &seats, homes);
    let mut chosen = vec![None; pools.len()];
    let mut best = with(&chosen);
    let mut known = throughput(problem, &best);
    for (node, pool) in pools.iter().enumerate().filter(|(_, pool)| pool.is_some()) {
        chosen[node] = pool.as_ref();
        let pooled = with(&chosen);
        let does = throughput(problem, &pooled);
        let gain = does - known;
        // Parts that weights leave are no utilisations: there all pCPUs are busy.
        let competes = |placement: &Placement| super::cost(problem, placement).competing();
        let no_more = || is_short(problem) || competes(&pooled) <= competes(&best) + EVEN;
        if gain > EVEN || gain >= -EVEN && no_more() {
            (best, known) = (pooled, does);
        } else {
            chosen[node] = None;
        }
    }
    best
}

/// A VM's seats with the nodes that follow from them; of a control group one set for all.
pub(super) fn placed(problem: &Problem, vm: &super::Vm, mut vcpus: Vec<Seat>) -> Placed {
    let sets: Option<Vec<&CpuSet>> = vcpus.iter().map(|seat| seat.affinity.as_ref()).collect();
    let union = sets.map(|sets| sets.into_iter().fold(CpuSet::default(), |all, set| all.union(set)));
    if vm.one_set && !vm.stays {
        vcpus.iter_mut().for_each(|seat| seat.affinity.clone_from(&union));
    }
    let nodes = match &union {
        Some(pcpus) => problem.topology.nodes_of(pcpus),
        None => problem.topology.node_ids(),
    };
    Placed { vcpus, nodes }
}

struct Pool {
    spots: CpuSet,
    guests: usize,
}

/// Of each node where somebody would queue for a pCPU: its pCPUs that VMs may share, without those of VMs that stay. Who stays and
/// idles there makes no queue.
fn pools(ground: &Ground, seats: &Seats<'_>, homes: &[Option<usize>]) -> Vec<Option<Pool>> {
    let mut at: Vec<usize> = vec![0; ground.spots.len()];
    homes.iter().flatten().for_each(|spot| at[*spot] += 1);
    let mut busy = vec![false; ground.spots.len()];
    for (guest, home) in ground.guests.iter().zip(&seats.home).filter(|(guest, _)| ground.vms[guest.vm].stays)
    {
        if let Some(spot) = home {
            busy[*spot] |= guest.load > STEP;
        }
    }
    let nodes = 0..ground.nodes;
    nodes
        .map(|node| {
            let here =
                || (0..at.len()).filter(|spot| ground.spots[*spot].node == node && ground.common[*spot]);
            if !here().any(|spot| at[spot] > 1 || at[spot] > 0 && busy[spot]) {
                return None;
            }
            let spots =
                here().filter(|spot| at[*spot] > 0 || seats.load[*spot] == 0 && seats.on[*spot].is_empty());
            let spots: Vec<usize> = spots.collect();
            let guests = spots.iter().map(|spot| at[*spot]).sum();
            Some(Pool { spots: spots.iter().map(|spot| ground.spots[*spot].id).collect(), guests })
        })
        .collect()
}

/// Why it is good to have this pCPU.
fn pinned(problem: &Problem, ground: &Ground, seats: &Seats<'_>, guest: usize, spot: usize) -> Reason {
    let unit = problem.topology.unit_name();
    let spots = &ground.units[ground.spots[spot].unit].spots;
    let own = ground.guests[guest].vm;
    let name = |vm: usize| if vm == own { "another of its vCPUs" } else { problem.vms[vm].name.as_str() };
    let idles = |vm: usize| {
        ground.vms[vm].stays
            && ground.guests[ground.vms[vm].guests.clone()].iter().all(|guest| guest.load <= STEP)
    };
    let here = seats.on[spot].iter().filter(|(vm, many)| if *vm == own { *many > 1 } else { !idles(*vm) });
    let here = here.map(|(vm, _)| name(*vm));
    let here: BTreeSet<&str> = here.collect();
    if !here.is_empty() {
        return Reason::Sharing { with: listed(here) };
    }
    let mut with: BTreeSet<&str> = BTreeSet::new();
    for other in spots.iter().filter(|other| **other != spot && seats.load[**other] > 0) {
        with.extend(seats.on[*other].iter().map(|(vm, _)| name(*vm)));
        if seats.on[*other].is_empty() {
            with.insert("VMs that may run anywhere there");
        }
    }
    if with.is_empty() {
        return Reason::Alone { unit };
    }
    Reason::Beside { unit, with: listed(with) }
}

fn listed(names: BTreeSet<&str>) -> String {
    names.into_iter().collect::<Vec<_>>().join(", ")
}

/// The pCPUs of some spots.
pub(super) fn ids(ground: &Ground, spots: &[usize]) -> CpuSet {
    spots.iter().map(|spot| ground.spots[*spot].id).collect::<Vec<CpuId>>().into_iter().collect()
}
