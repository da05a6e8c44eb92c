//! The policies of others, to compare with.

use super::ground::Ground;
use super::sets::{ids, placed, placement};
use super::{Placement, Problem, Reason, Seat};
use crate::CpuSet;

/// Everything stays.
pub(super) fn none(problem: &Problem, ground: &Ground) -> Placement {
    let vms = problem.vms.iter().map(|vm| {
        let left = |vcpu: &super::Vcpu| Seat {
            id: vcpu.id,
            home: None,
            affinity: vcpu.now.clone(),
            why: Reason::Left,
        };
        placed(problem, vm, vm.vcpus.iter().map(left).collect())
    });
    Placement { vms: vms.collect(), cost: ground.present() }
}

/// P5.3: "two threads on cores that do not share an L2": each vCPU in turn gets the lowest pCPU that is free and
/// shares no L2 with the others of its VM; if there is none, the lowest free one; if there is none, the one with the
/// fewest. What others do to each other, and how busy somebody is, does not matter to it.
pub(super) fn ulas(problem: &Problem, ground: &Ground) -> Placement {
    let topology = &problem.topology;
    let shared: Vec<CpuSet> = {
        let caches = topology.caches.iter().filter(|cache| cache.level == 2).map(|cache| cache.pcpus.clone());
        let caches: Vec<CpuSet> = caches.collect();
        // Where nothing is said of L2, units have one each.
        if caches.is_empty() { topology.units() } else { caches }
    };
    let cache_of = |spot: usize| shared.iter().position(|set| set.contains(ground.spots[spot].id));
    let cache_of: Vec<Option<usize>> = (0..ground.spots.len()).map(cache_of).collect();
    let fixed = ground.seats();
    let mut many: Vec<i64> = fixed.on.iter().map(|on| on.iter().map(|(_, count)| *count).sum()).collect();
    let mut homes = vec![None; ground.guests.len()];
    for facts in ground.vms.iter().filter(|vm| !vm.stays) {
        let mut mine: Vec<usize> = Vec::new();
        for guest in facts.guests.clone() {
            let price = |spot: &usize| {
                let beside =
                    mine.iter().any(|own| cache_of[*own].is_some() && cache_of[*own] == cache_of[*spot]);
                (many[*spot], beside, *spot)
            };
            let Some(spot) = (0..many.len()).filter(|spot| facts.allowed[*spot]).min_by_key(price) else {
                continue;
            };
            many[spot] += 1;
            mine.push(spot);
            homes[guest] = Some(spot);
        }
    }
    let mut found = placement(problem, ground, &homes);
    let why = "no L2 shared with the VM's others while there are such pCPUs (ULAS)";
    said(&mut found, |_| why);
    // It pins one to one, whatever that costs.
    for seat in
        found.vms.iter_mut().zip(&problem.vms).filter(|(_, vm)| !vm.one_set).flat_map(|(vm, _)| &mut vm.vcpus)
    {
        if let Some(home) = seat.home {
            seat.affinity = Some(CpuSet::from_iter([home]));
        }
    }
    found
}

/// P4.3: one core of each module, the same set for everybody.
pub(super) fn optimal_affinity(problem: &Problem, ground: &Ground) -> Placement {
    let one = |unit: &super::ground::Unit| unit.spots.iter().copied().find(|spot| ground.common[*spot]);
    let set: Vec<usize> = ground.units.iter().filter_map(one).collect();
    let affinity = ids(ground, &set);
    let sets: Vec<Vec<usize>> = (0..ground.guests.len())
        .map(|guest| if ground.vms[ground.guests[guest].vm].stays { ground.now(guest) } else { set.clone() })
        .collect();
    let vms = problem.vms.iter().map(|vm| {
        let seat = |vcpu: &super::Vcpu| match (vm.stays, set.is_empty()) {
            (true, _) => Seat { id: vcpu.id, home: None, affinity: vcpu.now.clone(), why: Reason::Left },
            (_, true) => Seat { id: vcpu.id, home: None, affinity: vcpu.now.clone(), why: Reason::Nowhere },
            _ => Seat {
                id: vcpu.id,
                home: None,
                affinity: Some(affinity.clone()),
                why: Reason::Policy("one pCPU of each core or module (optimal vCPU affinity)"),
            },
        };
        placed(problem, vm, vm.vcpus.iter().map(seat).collect())
    });
    Placement { vms: vms.collect(), cost: ground.cost_of(&sets) }
}

/// Gives all that was placed another reason.
fn said(placement: &mut Placement, why: impl Fn(&Seat) -> &'static str) {
    for seat in placement.vms.iter_mut().flat_map(|vm| &mut vm.vcpus).filter(|seat| seat.home.is_some()) {
        seat.why = Reason::Policy(why(seat));
    }
}
