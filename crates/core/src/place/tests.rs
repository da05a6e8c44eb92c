//! Against trying everything out, on small hosts; and what the policies do on known ones.

use super::cost::WHOLE;
use super::ground::{Seats, counted};
use super::*;
use crate::Random;

fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

fn busy(name: &str, demands: &[f64]) -> Vm {
    let one = |(id, demand): (u32, &f64)| Vcpu { id, demand: *demand, ..Vcpu::default() };
    Vm { name: name.into(), weight: 1.0, vcpus: (0..).zip(demands).map(one).collect(), ..Vm::default() }
}

fn on(shape: &str, vms: Vec<Vm>) -> Problem {
    Problem { topology: shape.parse().unwrap(), vms, ..Problem::default() }
}

fn pinned(mut vm: Vm, sets: &[&str]) -> Vm {
    vm.vcpus.iter_mut().zip(sets).for_each(|(vcpu, list)| vcpu.now = Some(set(list)));
    vm
}

/// Affinities of a placement: VM by VM.
fn sets(placement: &Placement) -> Vec<String> {
    let text = |seat: &Seat| seat.affinity.as_ref().map_or("-".into(), CpuSet::to_string);
    placement.vms.iter().map(|vm| vm.vcpus.iter().map(text).collect::<Vec<_>>().join(" ")).collect()
}

/// A host of at most eight pCPUs with at most seven vCPUs.
fn small(random: &mut Random) -> Problem {
    let shape = random.of(&[
        "1 socket x 2 cores x 2 threads",
        "1 socket x 3 cores x 2 threads",
        "2 sockets x 2 cores x 2 threads",
        "2 sockets x 1 core x 2 threads",
        "1 socket x 2 l3 x 2 cores x 2 threads",
        "2 sockets x 3 cores",
        "1 socket x 2 cores x 3 threads",
        "1 socket x 2 cores x 4 threads",
        "2 sockets x 2 modules x 2 cores",
        "1 socket x 2 cores x 2 threads; offline 1",
        "2 sockets x 2 cores x 2 threads; offline 2,5",
        "1 socket x 4 cores x 2 threads; isolated 6-7",
    ]);
    let topology: Topology = shape.parse().unwrap();
    let many = u32::try_from(topology.pcpus.len()).unwrap();
    let reserved = if random.below(100) < 15 { set("0") } else { CpuSet::default() };
    let mut left = 1 + random.below(7);
    let mut vms = Vec::new();
    let even = random.below(100) < 30;
    let with_present = random.below(100) < 40;
    while left > 0 {
        let width = 1 + random.below(left.min(4));
        left -= width;
        let vcpu = |random: &mut Random, id: u32| {
            let (cpu, other) = (CpuId(random.below(many)), CpuId(random.below(many)));
            Vcpu {
                id,
                demand: if even { 1.0 } else { f64::from(random.below(101)) / 100.0 },
                now: (with_present && random.below(100) < 70).then(|| CpuSet::from_iter([cpu, other])),
                on: None,
                // Some are of a guest node with memory of its own, which may be on a node that is not there.
                memory: (with_present && id == 1).then(|| set("1")),
            }
        };
        vms.push(Vm {
            name: format!("vm{}", vms.len()),
            weight: random.of(&[1.0, 1.0, 2.0]),
            class: Classed::given(random.of(&[Class::Unknown, Class::CacheHungry, Class::Communicating])),
            memory: (random.below(100) < 20).then(|| set("0")),
            stays: vms.len() > 1 && random.below(100) < 10,
            vcpus: (0..width).map(|id| vcpu(random, id)).collect(),
            ..Vm::default()
        });
    }
    Problem { topology, reserved, vms }
}

/// Tries all homes; keeps what is better than `best`.
fn exhaust(seats: &mut Seats<'_>, free: &[usize], cost: Cost, best: &mut Cost) {
    if cost >= *best {
        return; // every part only grows
    }
    let Some((&guest, rest)) = free.split_first() else {
        *best = cost;
        return;
    };
    for spot in 0..seats.ground.spots.len() {
        if seats.ground.may(guest, spot) {
            let more = seats.cost(guest, spot);
            seats.put(guest, spot);
            exhaust(seats, rest, cost + more, best);
            seats.take(guest);
        }
    }
}

fn free(ground: &Ground) -> Vec<usize> {
    let free = |guest: &usize| {
        let vm = &ground.vms[ground.guests[*guest].vm];
        !vm.stays && vm.allowed.contains(&true)
    };
    (0..ground.guests.len()).filter(free).collect()
}

/// The issue asks for 99 % with the optimum's competing pairs; nothing here is random but the seed is arbitrary.
#[test]
fn corefit_is_the_optimum_on_nearly_all_small_hosts() {
    let mut random = Random(20_260_728);
    let (mut pairs, mut all, many) = (0, 0, 10_000);
    for _ in 0..many {
        let problem = small(&mut random);
        let found = place(&problem, Policy::Corefit);
        let ground = Ground::new(&problem);
        let mut best = found.cost;
        exhaust(&mut ground.seats(), &free(&ground), Cost::default(), &mut best);
        assert_eq!(best.stacked(), found.cost.stacked(), "{problem:?}");
        pairs += u32::from(best.0[..3] == found.cost.0[..3]);
        all += u32::from(best == found.cost);
    }
    println!("of {many}: optimal in competing pairs {pairs}, in everything {all}");
    assert!(pairs >= many * 99 / 100, "{pairs} of {many}");
    assert!(all >= many * 95 / 100, "{all} of {many}");
}

/// What the search adds up step by step is what the definitions of docs/place.md give.
#[test]
fn costs_are_what_their_definitions_say() {
    let mut random = Random(7);
    for _ in 0..2_000 {
        let problem = small(&mut random);
        if problem.vms.iter().any(|vm| vm.stays) {
            continue;
        }
        let found = place(&problem, Policy::Corefit);
        let topology = &problem.topology;
        let online = topology.online().difference(&problem.reserved).len();
        let demand: f64 = problem.vms.iter().flat_map(|vm| &vm.vcpus).map(|vcpu| vcpu.demand).sum();
        if f64::from(u32::try_from(online).unwrap()) < demand {
            continue; // weights decide what counts
        }
        // (VM, class, home, demand in steps, nodes of its memory)
        let mut all = Vec::new();
        for (number, (vm, placed)) in problem.vms.iter().zip(&found.vms).enumerate() {
            for (vcpu, seat) in vm.vcpus.iter().zip(&placed.vcpus) {
                let Some(home) = seat.home else { continue };
                let is_here = |nodes: &&CpuSet| !topology.pcpus_of_nodes(nodes).is_empty();
                let memory = vcpu.memory.as_ref().filter(is_here).or(vm.memory.as_ref());
                all.push((number, vm.class.class, home, counted(vcpu.demand), memory));
            }
        }
        let load = |cpu: CpuId| all.iter().filter(|v| v.2 == cpu).map(|v| v.3).sum::<i64>();
        let mut stacked = 0;
        let (mut sharing, mut spread) = (0, 0);
        let of = |sets: Vec<&CpuSet>, cpu: CpuId| sets.iter().position(|set| set.contains(cpu));
        let node = |cpu| of(topology.nodes.iter().map(|part| &part.pcpus).collect(), cpu);
        let socket = |cpu| of(topology.sockets.iter().map(|part| &part.pcpus).collect(), cpu);
        let caches: Vec<&CpuSet> = topology.caches.iter().map(|cache| &cache.pcpus).collect();
        let cache = |cpu| if caches.is_empty() { node(cpu) } else { of(caches.clone(), cpu) };
        for (at, a) in all.iter().enumerate() {
            for b in &all[..at] {
                let product = a.3 * b.3;
                sharing += if a.2 == b.2 { product } else { 0 };
                if a.0 == b.0 {
                    stacked += i64::from(a.2 == b.2);
                    let apart = |far: bool| if far { product } else { 0 };
                    if a.1 != Class::CacheHungry {
                        spread += apart(node(a.2) != node(b.2)) + apart(socket(a.2) != socket(b.2));
                    }
                    spread += apart(a.1 == Class::Communicating && cache(a.2) != cache(b.2));
                }
                if a.1 == Class::CacheHungry && b.1 == Class::CacheHungry && cache(a.2) == cache(b.2) {
                    spread += product;
                }
            }
            let far = a.4.is_some_and(|nodes| !topology.pcpus_of_nodes(nodes).contains(a.2));
            spread += if far { WHOLE * a.3 } else { 0 };
        }
        let mut competing = 0;
        for unit in topology.units() {
            let cpus: Vec<CpuId> = unit.iter().collect();
            for (at, a) in cpus.iter().enumerate() {
                for b in &cpus[..at] {
                    competing += load(*a).min(WHOLE) * load(*b).min(WHOLE);
                }
            }
        }
        let parts = [stacked, sharing, competing, 0];
        assert_eq!(found.cost.0[..4], parts, "{problem:?}");
        assert_eq!(found.cost.0[5], spread, "{problem:?}");
    }
}

/// The best throughput of all homes that stack no more, by trying them.
fn most(problem: &Problem, tried: &mut Placement, at: &[(usize, usize)], stacked: i64, best: &mut f64) {
    let Some((&(vm, vcpu), rest)) = at.split_first() else {
        *best = best.max(throughput(problem, tried));
        return;
    };
    let usable =
        problem.topology.online().difference(&problem.reserved).difference(&problem.topology.isolated);
    for cpu in usable.iter() {
        let there = tried.vms[vm].vcpus[..vcpu].iter().any(|seat| seat.home == Some(cpu));
        if stacked >= i64::from(there) {
            tried.vms[vm].vcpus[vcpu].home = Some(cpu);
            tried.vms[vm].vcpus[vcpu].affinity = Some(CpuSet::from_iter([cpu]));
            most(problem, tried, rest, stacked - i64::from(there), best);
        }
    }
}

#[test]
fn throughput_is_within_five_percent_of_the_best_there_is() {
    let mut random = Random(99);
    let (mut worst, mut cases, mut best_ones) = (1.0_f64, 0, 0);
    while cases < 10_000 {
        let mut problem = small(&mut random);
        let vcpus: usize = problem.vms.iter().map(|vm| vm.vcpus.len()).sum();
        let spots = problem.topology.online().len();
        // What is isolated may be used only by who is there now, which is another matter.
        if vcpus > 4 || spots > 6 && vcpus > 3 || !problem.topology.isolated.is_empty() {
            continue;
        }
        problem.vms.iter_mut().for_each(|vm| vm.stays = false);
        cases += 1;
        let found = place(&problem, Policy::Corefit);
        let mut all: Vec<(usize, usize)> = Vec::new();
        for (number, vm) in problem.vms.iter().enumerate() {
            all.extend((0..vm.vcpus.len()).map(|vcpu| (number, vcpu)));
        }
        let mut best = 0.0;
        most(&problem, &mut found.clone(), &all, found.cost.stacked(), &mut best);
        if best > 0.0 {
            let ratio = throughput(&problem, &found) / best;
            assert!(ratio >= 0.95, "{ratio}: {problem:?} {found:?}");
            worst = worst.min(ratio);
            best_ones += u32::from(ratio > 1.0 - 1e-9);
        }
    }
    println!("of {cases}: {best_ones} with the best throughput, the worst {worst}");
}

#[test]
fn busy_vcpus_get_a_core_each_and_vms_a_node_each() {
    let problem = on("2 sockets x 4 cores x 2 threads", vec![busy("a", &[1.0; 4]), busy("b", &[1.0; 4])]);
    let found = place(&problem, Policy::Corefit);
    assert_eq!(sets(&found), ["0 2 4 6", "8 10 12 14"]);
    assert_eq!(found.vms.iter().map(|vm| vm.nodes.to_string()).collect::<Vec<_>>(), ["0", "1"]);
    assert_eq!(found.vms[0].vcpus[0].why, Reason::Alone { unit: "core" });
    assert_eq!(found.cost, Cost::default());
}

#[test]
fn idle_vcpus_share_cores_with_busy_ones_rather_than_busy_ones_with_each_other() {
    let problem = on("1 socket x 2 cores x 2 threads", vec![busy("a", &[1.0, 0.05, 1.0, 0.05])]);
    let found = place(&problem, Policy::Corefit);
    assert_eq!(found.cost.stacked(), 0);
    assert!((found.cost.competing() - 0.1).abs() < 1e-9, "{:?}", found.cost);
}

#[test]
fn cache_hungry_vcpus_spread_over_caches_and_communicating_ones_stay_on_one() {
    let with = |class| {
        let vm = Vm { class: Classed::given(class), ..busy("a", &[1.0, 1.0]) };
        sets(&place(&on("1 socket x 2 l3 x 2 cores x 2 threads", vec![vm]), Policy::Corefit))
    };
    assert_eq!(with(Class::CacheHungry), ["0 4"]);
    assert_eq!(with(Class::Communicating), ["0 2"]);
}

#[test]
fn more_vcpus_than_pcpus_share_a_pool_and_nobody_is_pinned_to_a_queue() {
    let problem = on("1 socket x 2 cores x 2 threads", vec![busy("a", &[1.0; 4]), busy("b", &[0.5; 2])]);
    let found = place(&problem, Policy::Corefit);
    assert_eq!(sets(&found), ["0-3 0-3 0-3 0-3", "0-3 0-3"]);
    assert_eq!(found.vms[1].vcpus[0].why, Reason::Pool { vcpus: 6, pcpus: 4 });
}

#[test]
fn of_a_pool_and_pins_that_do_as_much_the_one_with_fewer_competing_pairs_is_taken() {
    let mut random = Random(11);
    let mut even = 0;
    for _ in 0..3_000 {
        let problem = small(&mut random);
        let pooled = place(&problem, Policy::Corefit);
        let mut pinned = pooled.clone();
        let seats = || pooled.vms.iter().flat_map(|vm| &vm.vcpus);
        for seat in pinned.vms.iter_mut().flat_map(|vm| &mut vm.vcpus) {
            seat.affinity = seat.home.map(|home| CpuSet::from_iter([home])).or(seat.affinity.clone());
        }
        let pools = seats().any(|seat| matches!(seat.why, Reason::Pool { .. }));
        if pools
            && !ground::is_short(&problem)
            && throughput(&problem, &pooled) <= throughput(&problem, &pinned) + 1e-9
        {
            even += 1;
            let competing = [&pooled, &pinned].map(|placement| cost(&problem, placement).competing());
            assert!(competing[0] <= competing[1] + 1e-9, "{competing:?} {problem:?}");
        }
    }
    assert!(even > 0);
}

#[test]
fn vcpus_of_a_guest_node_are_near_its_memory() {
    let mut vm = busy("a", &[1.0, 1.0]);
    vm.class = Classed::given(Class::CacheHungry);
    vm.memory = Some(set("0"));
    vm.vcpus[0].memory = Some(set("1"));
    let problem = on("2 sockets x 2 cores", vec![vm]);
    let found = place(&problem, Policy::Corefit);
    assert_eq!(sets(&found), ["2 0"]);
    let crossed = on("2 sockets x 2 cores", vec![pinned(problem.vms[0].clone(), &["0", "2"])]);
    let now = place(&crossed, Policy::None);
    let far =
        |problem: &Problem, placement| [false, true].map(|moved| far_from_memory(problem, placement, moved));
    assert_eq!((far(&crossed, &now), far(&crossed, &found)), ([2, 2], [0, 0]));
    // Memory of the VM moves, that of its guest nodes does not.
    let mut moves = crossed;
    moves.vms[0].memory_moves = true;
    assert_eq!(far(&moves, &now), [2, 1]);
}

#[test]
fn who_seldom_wants_to_run_shares_a_pcpu_rather_than_mixing_with_a_busy_sibling() {
    let problem =
        on("1 socket x 2 cores x 2 threads", vec![busy("a", &[1.0, 0.1]), busy("b", &[0.1, 0.1, 0.1])]);
    let found = place(&problem, Policy::Corefit);
    let on_one = found.vms.iter().flat_map(|vm| &vm.vcpus);
    assert!(on_one.clone().all(|seat| seat.affinity.as_ref().is_some_and(|set| set.len() == 1)), "{found:?}");
    assert!(on_one.clone().any(|seat| seat.why == Reason::Sharing { with: "b".into() }), "{found:?}");
    assert_eq!(found.cost.stacked(), 0);
}

#[test]
fn who_stays_and_idles_on_a_pcpu_makes_nobody_share() {
    let group = |demand| Vm { stays: true, one_set: true, ..pinned(busy("/batch", &[demand]), &["1"]) };
    let beside = |demand| {
        let vm = pinned(busy("a", &[1.0, 1.0]), &["0", "0"]);
        place(&on("2 cores", vec![vm, group(demand)]), Policy::Corefit)
    };
    assert_eq!(sets(&beside(0.0)), ["0 1", "1"]);
    assert_eq!(beside(0.0).vms[0].vcpus[1].why, Reason::Alone { unit: "core" });
    assert_eq!(sets(&beside(1.0)), ["0-1 0-1", "1"]);
}

#[test]
fn an_idle_vcpu_gets_a_core_that_nobody_needs() {
    let problem = on("1 socket x 4 cores x 2 threads", vec![busy("a", &[1.0, 0.0, 1.0, 0.0])]);
    assert_eq!(sets(&place(&problem, Policy::Corefit)), ["0 4 2 6"]);
}

/// What is promised of the sets is what the sets are found to do once they are in force.
#[test]
fn a_placement_does_what_was_said_of_it() {
    let mut random = Random(11);
    for _ in 0..2_000 {
        let problem = small(&mut random);
        let found = place(&problem, Policy::Corefit);
        let after = applied(&problem, &found);
        let now = place(&after, Policy::None);
        assert_eq!(throughput(&problem, &found), throughput(&after, &now));
        assert_eq!(cost(&problem, &found).0[..6], present(&after).0[..6]);
    }
}

#[test]
fn the_heavier_vm_and_the_one_of_higher_priority_compete_less() {
    // Three busy vCPUs on two cores: somebody has to share.
    let case = |weight: f64, priority: i32| {
        let heavy = Vm { weight, priority, ..busy("heavy", &[1.0]) };
        let found = place(
            &on("1 socket x 2 cores x 2 threads", vec![busy("a", &[1.0]), heavy, busy("b", &[1.0])]),
            Policy::Corefit,
        );
        found.vms[1].vcpus[0].why.clone()
    };
    assert_eq!(case(2.0, 0), Reason::Alone { unit: "core" });
    assert_eq!(case(0.5, 1), Reason::Alone { unit: "core" });
    assert!(matches!(case(0.5, 0), Reason::Beside { unit: "core", .. }));
}

#[test]
fn weights_decide_what_counts_where_pcpus_are_short() {
    // Eight vCPUs of weight 1 and four of weight 3 on two nodes of four pCPUs: the heavy ones get 0.75 each.
    let heavy = Vm { weight: 6.0, ..busy("heavy", &[1.0; 4]) };
    let light = |name| Vm { weight: 1.0, ..busy(name, &[1.0; 4]) };
    let found = place(&on("2 sockets x 4 cores", vec![heavy, light("b"), light("c")]), Policy::Corefit);
    // All of the heavy one is on one node, alone: it gets what its weight is worth.
    assert_eq!(sets(&found)[0], "0 1 2 3", "{found:?}");
    assert_eq!(sets(&found)[1..], ["4-7 4-7 4-7 4-7", "4-7 4-7 4-7 4-7"]);
}

#[test]
fn who_is_well_where_it_is_stays_and_who_is_not_moves() {
    let a = pinned(busy("a", &[1.0, 1.0]), &["6", "2"]);
    let b = pinned(busy("b", &[1.0, 1.0]), &["4", "5"]);
    let found = place(&on("1 socket x 4 cores x 2 threads", vec![a, b]), Policy::Corefit);
    assert_eq!(sets(&found), ["6 2", "4 0"]);
    assert_eq!(found.cost.moves(), 2);
}

#[test]
fn one_vm_is_placed_anew_while_all_others_stay() {
    let stays = |name, sets: &[&str]| Vm { stays: true, ..pinned(busy(name, &[1.0, 1.0]), sets) };
    let problem = on(
        "1 socket x 4 cores x 2 threads",
        vec![stays("a", &["0", "2"]), pinned(busy("b", &[1.0, 1.0]), &["1", "3"])],
    );
    let found = place(&problem, Policy::Corefit);
    assert_eq!(sets(&found), ["0 2", "4 6"]);
    assert_eq!(found.vms[0].vcpus[0].why, Reason::Left);
}

/// P4, IV-A: "if a destination host has only one processor with 16 cores, the vCPU affinity to pCPUs 16-31 is invalid".
#[test]
fn pins_of_a_host_of_another_shape_are_found_and_replaced() {
    let vm = pinned(busy("npb", &[1.0; 4]), &["16", "18", "20", "6"]);
    let problem = on("1 socket x 2 nodes x 4 modules x 2 cores", vec![vm]);
    let wrong = invalid(&problem);
    assert_eq!(
        wrong.iter().map(|w| (w.vcpu, w.absent.to_string(), w.runs)).collect::<Vec<_>>(),
        [(0, "16".into(), false), (1, "18".into(), false), (2, "20".into(), false)]
    );
    let found = place(&problem, Policy::Corefit);
    assert_eq!(sets(&found), ["0 2 4 6"]);
    assert!(invalid(&applied(&problem, &found)).is_empty());
}

/// Pools as well, of which several may be as good.
#[test]
fn what_is_placed_is_placed_so_again_and_nothing_moves() {
    let mut random = Random(3);
    let (mut pools, mut hosts) = (0, Vec::new());
    for _ in 0..500 {
        hosts.push(small(&mut random));
    }
    for problem in hosts {
        let first = place(&problem, Policy::Corefit);
        let pooled = |seat: &Seat| matches!(seat.why, Reason::Pool { .. });
        pools += usize::from(first.vms.iter().flat_map(|vm| &vm.vcpus).any(pooled));
        let second = place(&in_force(&problem, &first), Policy::Corefit);
        assert_eq!(sets(&second), sets(&first), "{problem:?}");
    }
    assert!(pools > 50, "{pools}");
}

/// The Opteron of P4 with its VM of 16 vCPUs.
#[test]
fn optimal_affinity_is_one_core_per_module_and_corefit_competes_as_little() {
    let problem = on(
        "2 sockets x 2 nodes x 4 modules x 2 cores",
        vec![pinned(busy("npb", &[1.0; 16]), &["16-31"; 16])],
    );
    assert!((present(&problem).competing() - 8.0).abs() < 1e-9);
    let optimal = place(&problem, Policy::OptimalAffinity);
    assert_eq!(sets(&optimal)[0].split(' ').next(), Some("0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30"));
    assert_eq!(optimal.vms[0].nodes, set("0-3"));
    assert_eq!(optimal.cost.competing(), 0.0);
    let ours = place(&problem, Policy::Corefit);
    assert_eq!((ours.cost.competing(), ours.cost.stacked()), (0.0, 0));
    assert!((throughput(&problem, &ours) - 16.0).abs() < 1e-9);
    let left = place(&problem, Policy::None);
    assert_eq!(sets(&left)[0].split(' ').next(), Some("16-31"));
    // No affinities: each of 32 pCPUs half busy, so 16 modules with a quarter each (a PM's own: 4.0, IV-C).
    let free = on("2 sockets x 2 nodes x 4 modules x 2 cores", vec![busy("npb", &[1.0; 16])]);
    assert!((present(&free).competing() - 4.0).abs() < 1e-9);
}

/// P5.3, its Table I: two threads on cores 0 and 1 share an L2, 0 and 2 do not.
#[test]
fn ulas_keeps_a_vms_vcpus_from_sharing_an_l2_and_takes_low_numbers() {
    let problem =
        on("2 sockets x 1 l2 x 2 cores", vec![busy("lu.A.2", &[1.0, 1.0]), busy("is.A.2", &[1.0, 1.0])]);
    assert_eq!(sets(&place(&problem, Policy::Ulas)), ["0 2", "1 3"]);
}

#[test]
fn a_control_group_gets_one_set_for_all() {
    let group = Vm { one_set: true, ..pinned(busy("/batch", &[1.0, 1.0]), &["0-1", "0-1"]) };
    let problem = on("1 socket x 4 cores x 2 threads", vec![group]);
    let found = place(&problem, Policy::Corefit);
    assert_eq!(sets(&found), ["0,2 0,2"]);
    // Two in two pCPUs do not wait for each other; four do, at what each gets.
    let cost = cost(&problem, &found);
    assert_eq!((cost.sharing(), cost.competing()), (0.0, 0.0));
    let four = on("2 cores", vec![pinned(busy("a", &[1.0; 4]), &["0-1"; 4])]);
    assert!(present(&four).sharing() > 0.5, "{:?}", present(&four));
}

#[test]
fn fast_cores_first_then_slow_ones_then_siblings() {
    let shape = "2 cores x 2 threads + 2 cores at 600";
    let found = place(&on(shape, vec![busy("a", &[1.0, 1.0, 1.0])]), Policy::Corefit);
    assert_eq!(sets(&found), ["0 2 4"]);
}

#[test]
fn a_host_without_a_pcpu_for_vms_leaves_them_and_says_so() {
    let problem = Problem { reserved: set("0-3"), ..on("4 cores", vec![busy("a", &[1.0])]) };
    for policy in [Policy::Ulas, Policy::OptimalAffinity, Policy::Corefit] {
        assert_eq!(place(&problem, policy).vms[0].vcpus[0].why, Reason::Nowhere);
    }
    assert!(place(&Problem::default(), Policy::Corefit).vms.is_empty());
}

/// Utilisations, not numbers of vCPUs, compete: three vCPUs that may use 0.375 pCPUs together leave cores to those who may
/// use more.
#[test]
fn who_is_limited_counts_with_what_its_limits_leave() {
    use crate::Quota;
    use crate::check::{Set as Said, Subject, Vcpu as Known, Vm as Guest};
    let quota = |quota_us| {
        let source = String::new();
        let value = Quota { quota_us: Some(quota_us), period_us: 100_000, burst_us: 0, source };
        Some(Said { value, place: crate::check::Place::default() })
    };
    let guest = |name: &str, many: usize| Guest {
        name: name.into(),
        vcpus: vec![Known { online: true, ..Known::default() }; many],
        ..Guest::default()
    };
    let limited = Guest { cap: quota(37_500), ..guest("limited", 3) };
    let each = Guest { vcpu_quota: quota(25_000), ..guest("each", 1) };
    let subject = Subject {
        topology: Some("1 socket x 4 cores x 2 threads".parse().unwrap()),
        vms: vec![limited, each, guest("free", 2)],
        ..Subject::default()
    };
    let problem = Problem::of_subject(&subject);
    let demands: Vec<Vec<f64>> =
        problem.vms.iter().map(|vm| vm.vcpus.iter().map(|vcpu| vcpu.demand).collect()).collect();
    assert_eq!(demands, [vec![0.125; 3], vec![0.25], vec![1.0; 2]]);
    let found = place(&problem, Policy::Corefit);
    assert!(found.vms[2].vcpus.iter().all(|seat| matches!(seat.why, Reason::Alone { .. })), "{found:?}");
}
