//! The stage that says where vCPUs run: from a placement to actions.

use std::collections::BTreeSet;

use super::{Action, Why};
use crate::CpuSet;
use crate::machine::{HostEstimate, Lever, Value, VmEstimate};
use crate::place::{
    Placed, Placement, Policy, Problem, cost, far_from_memory, invalid, place, present, spread_of_classed,
    throughput,
};

/// A placement is worth being written if the predicted throughput grows by this part of it. Moving costs caches; ours.
pub(super) const WORTH: f64 = 0.02;
/// Or if so many pairs of busy vCPUs of VMs whose class is known get nearer to each other, or farther from each other
/// (caches and nodes, which that prediction leaves out); ours.
pub(super) const WORTH_PAIRS: f64 = 0.5;

/// What to change so that VMs run where a policy wants them: affinities, and the nodes where those of the memory would
/// conflict with them (P4.2). Nothing if that is not worth it: see [`worthwhile`].
#[must_use]
pub(super) fn actions(host: &HostEstimate, problem: &Problem, policy: Policy) -> Vec<Action> {
    let found = place(problem, policy);
    if policy == Policy::None || !worthwhile(problem, &found) {
        return Vec::new();
    }
    let online = problem.topology.online();
    let mut actions = Vec::new();
    for (vm, placed) in problem.vms.iter().zip(&found.vms).filter(|(vm, _)| !vm.stays) {
        let Some(seen) = host.vms.iter().find(|seen| seen.seen.name == vm.name) else { continue };
        // A control group has one set.
        let seats = placed.vcpus.iter().take(if vm.one_set { 1 } else { usize::MAX });
        for seat in seats {
            let index = usize::try_from(seat.id).unwrap_or(usize::MAX);
            // Without a set it may use all: what a way back needs, where the look shows none.
            let all = || online.clone();
            let from = seen.seen.vcpus.get(index).and_then(|vcpu| vcpu.affinity.clone()).unwrap_or_else(all);
            let to = seat.affinity.clone().unwrap_or_else(all);
            if from == to || to.is_empty() {
                continue;
            }
            let lever = Lever::Affinity(if vm.one_set { 0 } else { seat.id });
            let (from, to) = (Some(Value::Pcpus(from)), Value::Pcpus(to));
            actions.push(Action::of(&seen.seen, lever, from, to, Why::Placed(seat.why.clone())));
        }
        actions.extend(nodes(problem, seen, placed).filter(|_| vm.memory_moves));
    }
    actions
}

/// Whether a placement is better by enough: fewer vCPUs may use reserved pCPUs, whatever that costs. Where as many may it is better if
/// fewer are stacked, or if no more are and pins that cannot work go, fewer vCPUs are far from their memory, the predicted throughput
/// grows by more than [`WORTH`], or who is to be together or apart is, by [`WORTH_PAIRS`].
#[must_use]
pub(super) fn worthwhile(problem: &Problem, found: &Placement) -> bool {
    let now = place(problem, Policy::None);
    let on_reserved = (on_reserved(problem, found), on_reserved(problem, &now));
    if on_reserved.0 != on_reserved.1 {
        return on_reserved.0 < on_reserved.1;
    }
    let stacked = (cost(problem, found).stacked(), present(problem).stacked());
    if stacked.0 != stacked.1 {
        return stacked.0 < stacked.1;
    }
    let (before, after) = (throughput(problem, &now), throughput(problem, found));
    invalid(problem).iter().any(|found| !problem.vms[found.vm].stays)
        || far_from_memory(problem, found, true) < far_from_memory(problem, &now, false)
        || after > (1.0 + WORTH) * before
        || after >= before
            && spread_of_classed(problem, &now) - spread_of_classed(problem, found) >= WORTH_PAIRS
}

/// The same with all staying but those who are due, whatever rests or is tried: who may use reserved pCPUs, and whose pins cannot work.
/// `None` if nobody is.
#[must_use]
pub(super) fn only_due(mut problem: Problem) -> Option<Problem> {
    let reserved = problem.reserved.intersection(&problem.topology.online());
    let invalid: BTreeSet<usize> = invalid(&problem).iter().map(|found| found.vm).collect();
    let mut any = false;
    for (number, vm) in problem.vms.iter_mut().enumerate() {
        let due = || invalid.contains(&number) || vm.vcpus.iter().any(|vcpu| may_use(&reserved, &vcpu.now));
        vm.stays |= !due();
        any |= !vm.stays;
    }
    any.then_some(problem)
}

/// vCPUs that may use pCPUs which are kept for the host, of VMs that can be placed.
fn on_reserved(problem: &Problem, placement: &Placement) -> usize {
    let reserved = problem.reserved.intersection(&problem.topology.online());
    let vms = problem.vms.iter().zip(&placement.vms).filter(|(vm, _)| !vm.stays);
    vms.flat_map(|(_, placed)| &placed.vcpus).filter(|seat| may_use(&reserved, &seat.affinity)).count()
}

/// Whether one with this set may use some of these. Without a set it may use all.
fn may_use(some: &CpuSet, set: &Option<CpuSet>) -> bool {
    !some.is_empty() && set.as_ref().is_none_or(|set| set.meets(some))
}

/// The node affinity, if there is one, it names nodes with pCPUs, and not those of the vCPUs.
fn nodes(problem: &Problem, seen: &VmEstimate, placed: &Placed) -> Option<Action> {
    let now: &CpuSet = seen.seen.memory_nodes.as_ref()?;
    if problem.topology.pcpus_of_nodes(now).is_empty()
        || placed.nodes.is_empty()
        || placed.nodes.is_within(now)
    {
        return None;
    }
    let to = Value::Nodes(Some(placed.nodes.clone()));
    Some(Action::of(&seen.seen, Lever::Nodes, Some(Value::Nodes(Some(now.clone()))), to, Why::Nodes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Counters, Fixed, LeverKind, Pcpu, Snapshot, VcpuState, VmId, VmState, estimate};
    use crate::topology::Topology;
    use crate::{CpuId, Time};

    fn vm(name: &str, pins: &[&str], nodes: Option<&str>) -> VmState {
        let vcpu =
            |pin: &&str| VcpuState { online: true, affinity: pin.parse().ok(), ..VcpuState::default() };
        VmState {
            id: VmId(format!("{name}#1")),
            name: name.into(),
            vcpus: pins.iter().map(vcpu).collect(),
            memory_nodes: nodes.map(|nodes| nodes.parse().unwrap()),
            ..VmState::default()
        }
    }

    fn planned(vms: Vec<VmState>) -> Vec<String> {
        planned_on("2 sockets x 2 cores x 2 threads", vms, "")
    }

    fn planned_on(shape: &str, vms: Vec<VmState>, policy: &str) -> Vec<String> {
        planned_by(Policy::Corefit, shape, vms, policy)
    }

    fn planned_by(by: Policy, shape: &str, vms: Vec<VmState>, policy: &str) -> Vec<String> {
        let topology: Topology = shape.parse().unwrap();
        let pcpu = |id| Pcpu { id, online: true, ..Pcpu::default() };
        let first = Snapshot { pcpus: (0..8).map(CpuId).map(pcpu).collect(), vms, ..Snapshot::default() };
        let later = Snapshot { at: Time(1_000_000_000), ..first.clone() };
        let host = estimate(&first, &later).unwrap();
        let problem = Problem::of_estimate(&host, &topology).with(&toml::from_str(policy).unwrap());
        let found = actions(&host, &problem, by);
        let text = |a: &Action| {
            let from = a.from.as_ref().map_or("?".into(), Value::to_string);
            format!("{} {}: {from} -> {}, {}", a.name, a.lever, a.to, a.why)
        };
        found.iter().map(text).collect()
    }

    #[test]
    fn stacked_vcpus_get_a_core_each_with_the_reason() {
        assert_eq!(
            planned(vec![vm("a", &["0", "0"], None)]),
            ["a affinity of vCPU 1: 0 -> 2, a core of its own"]
        );
    }

    #[test]
    fn the_node_affinity_is_corrected_together_with_the_affinities() {
        // Both have their memory on the first node, which has two cores.
        let vms = vec![vm("b", &["0", "2"], Some("0")), vm("a", &["0", "0"], Some("0"))];
        let found = planned(vms);
        assert_eq!(found[0], "a affinity of vCPU 0: 0 -> 4, a core of its own");
        assert_eq!(found[1], "a affinity of vCPU 1: 0 -> 6, a core of its own");
        assert_eq!(found[2], "a NUMA nodes: 0 -> 1, its vCPUs are on these nodes");
    }

    #[test]
    fn vcpus_far_from_their_memory_go_there_or_their_memory_comes_to_them_or_they_stay() {
        // Alone on the host: they go.
        assert_eq!(
            planned(vec![vm("a", &["0", "2"], Some("1"))]),
            [
                "a affinity of vCPU 0: 0 -> 4, a core of its own",
                "a affinity of vCPU 1: 2 -> 6, a core of its own"
            ]
        );
        // Others are there: their memory comes.
        let others = || vm("b", &["4", "6"], Some("1"));
        assert_eq!(
            planned(vec![others(), vm("a", &["0", "2"], Some("1"))]),
            ["a NUMA nodes: 1 -> 0, its vCPUs are on these nodes"]
        );
        // It cannot: nothing is better.
        let fixed = Fixed { lever: LeverKind::Nodes, reason: "is fixed".into() };
        let stays = VmState { fixed: vec![fixed], ..vm("a", &["0", "2"], Some("1")) };
        assert!(planned(vec![others(), stays]).is_empty());
    }

    #[test]
    fn what_an_administrator_says_of_vms_and_pcpus_decides() {
        let rule = |what: &str| format!("[[vm]]\nname = \"a\"\n{what}");
        let near =
            |policy: &str| planned_on("1 socket x 2 l3 x 4 cores", vec![vm("a", &["0", "2"], None)], policy);
        let far =
            |policy: &str| planned_on("1 socket x 2 l3 x 4 cores", vec![vm("a", &["0", "6"], None)], policy);
        let (hungry, talks) = (rule("class = \"cache-hungry\""), rule("class = \"communicating\""));
        assert_eq!(near(&hungry), ["a affinity of vCPU 1: 2 -> 4, a core of its own"]);
        assert_eq!(far(&talks), ["a affinity of vCPU 1: 6 -> 1, a core of its own"]);
        for kept in [near(&talks), far(&hungry), near(""), far("")] {
            assert!(kept.is_empty(), "{kept:?}");
        }
        let stacked = |policy: &str| {
            planned(vec![vm("a", &["0", "0"], None)]).len()
                - planned_on("2 sockets x 2 cores x 2 threads", vec![vm("a", &["0", "0"], None)], policy)
                    .len()
        };
        assert_eq!(stacked(&rule("exclude = true")), 1);
        let reserved = planned_on("4 cores", vec![vm("a", &["0", "0"], None)], "reserved = \"0,2\"");
        assert_eq!(
            reserved,
            [
                "a affinity of vCPU 0: 0 -> 1, leaves reserved pCPUs: a core of its own",
                "a affinity of vCPU 1: 0 -> 3, leaves reserved pCPUs: a core of its own"
            ]
        );
        // Three busy vCPUs on two cores: the more important one has its own.
        let three = ["a", "b", "c"].map(|name| vm(name, &["0-3"], None));
        let found = planned_on("2 cores x 2 threads", three.into(), &rule("priority = 1"));
        assert!(found.iter().any(|text| text.starts_with("a ") && text.ends_with("of its own")), "{found:?}");
    }

    #[test]
    fn vms_leave_reserved_pcpus_though_that_brings_nothing_else() {
        let reserved = "reserved = \"0\"";
        for by in [Policy::Corefit, Policy::Ulas, Policy::OptimalAffinity] {
            // Both may use both pCPUs; on one they are stacked.
            let both = || ["a", "b"].map(|name| vm(name, &["0-1"], None)).to_vec();
            let found = planned_by(by, "2 cores", both(), reserved);
            assert_eq!(found.len(), 2, "{by:?}: {found:?}");
            assert!(
                found.iter().all(|text| text.contains(": 0-1 -> 1, leaves reserved pCPUs: ")),
                "{by:?}: {found:?}"
            );
            // Once they are there, nothing is to be done, nor without anybody who can be placed.
            let there = ["a", "b"].map(|name| vm(name, &["1"], None)).to_vec();
            assert_eq!(planned_by(by, "2 cores", there, reserved), [""; 0], "{by:?}");
            let excluded = format!("{reserved}\n[[vm]]\nname = \"*\"\nexclude = true");
            assert_eq!(planned_by(by, "2 cores", both(), &excluded), [""; 0], "{by:?}");
        }
    }

    #[test]
    fn a_group_that_was_on_a_reserved_pcpu_is_told_that_it_leaves_it() {
        let group = |name: &str, set: &str, pcpus: usize| VmState {
            whole: Some(Counters::default()),
            ..vm(name, &vec![set; pcpus], None)
        };
        let groups =
            |set| vec![group("/narrow", set, 1), group("/wide", "0-7", 8), group("/wide too", "0-7", 8)];
        let found = planned_on("8 cores", groups("1"), "reserved = \"1-7\"");
        let why = "leaves reserved pCPUs: a core of its own";
        assert_eq!(found, [format!("/narrow affinity of vCPU 0: 1 -> 0, {why}")], "the others idle");
        assert_eq!(planned_on("8 cores", groups("0"), "reserved = \"1-7\""), [""; 0]);
        // Two of them: of a single pCPU there is no pool, and nobody was pinned one by one.
        let two = vec![group("/a", "1", 1), group("/b", "1", 1)];
        let found = planned_on("8 cores", two, "reserved = \"1-7\"");
        let why = "leaves reserved pCPUs: 2 vCPUs share this pCPU: no other of its node is free";
        assert!(found.len() == 2 && found.iter().all(|text| text.ends_with(why)), "{found:?}");
    }

    #[test]
    fn what_is_good_is_left_alone() {
        assert!(planned(vec![vm("a", &["0", "2"], Some("0")), vm("b", &["4", "6"], None)]).is_empty());
        // Two free vCPUs on eight pCPUs: pinning them is worth more than 2 %, as they may meet on a core or pCPU.
        assert_eq!(planned(vec![vm("a", &["0-7", "0-7"], None)]).len(), 2);
    }

    #[test]
    fn where_no_set_is_seen_the_way_back_is_all_pcpus() {
        let mut free = vm("a", &["0", "0"], None);
        free.vcpus.iter_mut().for_each(|vcpu| vcpu.affinity = None);
        let found = planned(vec![free]);
        assert!(found.len() == 2 && found.iter().all(|text| text.contains(": 0-7 -> ")), "{found:?}");
    }

    #[test]
    fn pins_of_another_host_are_replaced() {
        let found = planned(vec![vm("a", &["40", "2"], None)]);
        assert_eq!(found, ["a affinity of vCPU 0: 40 -> 0, a core of its own"]);
    }
}
