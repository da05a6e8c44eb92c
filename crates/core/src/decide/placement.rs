//! The stage that says where vCPUs run: from a placement to actions.

use super::{Action, Why};
use crate::machine::{HostEstimate, Lever, Value, VmEstimate};
use crate::place::{Placed, Placement, Policy, Problem, invalid, place, present, throughput};
use crate::{CpuSet, place as placing};

/// A placement is worth being written if the predicted throughput grows by this part of it. Moving costs caches; ours.
pub const WORTH: f64 = 0.02;

/// What to change so that VMs run where a policy wants them: affinities, and the nodes where those of the memory would
/// conflict with them (P4.2). Nothing if that is not worth it: see [`worthwhile`].
#[must_use]
pub fn actions(host: &HostEstimate, problem: &Problem, policy: Policy) -> Vec<Action> {
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
            let from = seen.seen.vcpus.get(index).and_then(|vcpu| vcpu.affinity.clone());
            let to = seat.affinity.clone().unwrap_or_else(|| online.clone());
            if from.as_ref() == Some(&to) || to.is_empty() {
                continue;
            }
            let lever = Lever::Affinity(if vm.one_set { 0 } else { seat.id });
            let (from, to) = (from.map(Value::Pcpus), Value::Pcpus(to));
            actions.push(action(seen, lever, from, to, Why::Placed(seat.why.clone())));
        }
        actions.extend(nodes(seen, placed));
    }
    actions
}

/// Whether a placement is better by enough: fewer are stacked, pins that cannot work go, or the predicted
/// throughput grows by more than [`WORTH`]; and never if more are stacked.
#[must_use]
pub fn worthwhile(problem: &Problem, found: &Placement) -> bool {
    let now = place(problem, Policy::None);
    let stacked = (found.cost.stacked(), present(problem).stacked());
    if stacked.0 != stacked.1 {
        return stacked.0 < stacked.1;
    }
    !invalid(problem).is_empty()
        || throughput(problem, found) > (1.0 + WORTH) * placing::throughput(problem, &now)
}

/// The node affinity, if there is one and it does not name the nodes of the vCPUs.
fn nodes(seen: &VmEstimate, placed: &Placed) -> Option<Action> {
    let now: &CpuSet = seen.seen.memory_nodes.as_ref()?;
    if placed.nodes.is_empty() || placed.nodes.is_within(now) {
        return None;
    }
    let to = Value::Nodes(Some(placed.nodes.clone()));
    Some(action(seen, Lever::Nodes, Some(Value::Nodes(Some(now.clone()))), to, Why::Nodes))
}

fn action(seen: &VmEstimate, lever: Lever, from: Option<Value>, to: Value, why: Why) -> Action {
    Action { vm: seen.seen.id.clone(), name: seen.seen.name.clone(), lever, from, to, why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Pcpu, Snapshot, VcpuState, VmId, VmState, estimate};
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
        let topology: Topology = "2 sockets x 2 cores x 2 threads".parse().unwrap();
        let pcpu = |id| Pcpu {
            id,
            online: true,
            node: None,
            package: None,
            siblings: None,
            idle_ns: None,
            steal_ns: None,
        };
        let first = Snapshot { pcpus: (0..8).map(CpuId).map(pcpu).collect(), vms, ..Snapshot::default() };
        let later = Snapshot { at: Time(1_000_000_000), ..first.clone() };
        let host = estimate(&first, &later).unwrap();
        let problem = Problem::of_estimate(&host, &topology, &[]);
        let found = actions(&host, &problem, Policy::Corefit);
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
    fn what_is_good_is_left_alone() {
        assert!(planned(vec![vm("a", &["0", "2"], Some("0")), vm("b", &["4", "6"], None)]).is_empty());
        // Two free vCPUs on eight pCPUs: pinning them is worth more than 2 %, as they may meet on a core or pCPU.
        assert_eq!(planned(vec![vm("a", &["0-7", "0-7"], None)]).len(), 2);
    }

    #[test]
    fn pins_of_another_host_are_replaced() {
        let found = planned(vec![vm("a", &["40", "2"], None)]);
        assert_eq!(found, ["a affinity of vCPU 0: 40 -> 0, a core of its own"]);
    }
}
