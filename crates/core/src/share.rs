//! How a tree of weights divides CPUs among threads when everybody wants everything: the exact model of
//! [`entitle`](crate::entitle), for trees whose leaves are sets of like threads.
//!
//! Example: a group A with a0 on CPU 0 and a1 on CPU 1 beside an equal group B with b on CPU 0.
//! Rates: a0 1/4, a1 1/4, b 1/2. At 4/3, CPU 0 is full: a0 has 1/3 and b 2/3. a1 goes on to 1.

use std::collections::BTreeSet;

use crate::entitle::{Host, HostError, Slice, Vcpu, Vm, entitled};
use crate::{CpuId, CpuSet, Cpus, Weight};

/// A node of the tree of weights.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// A set of like threads.
    Leaf {
        /// Weight among its siblings; must be above zero.
        weight: Weight,
        /// The most it can use, in CPUs.
        limit: f64,
        /// The CPUs it may run on.
        cpus: CpuSet,
    },
    /// A group.
    Group {
        /// Weight among its siblings; must be above zero.
        weight: Weight,
        /// The most that all below it may use together, in CPUs; infinite if unlimited.
        cap: f64,
        /// Who divides it.
        children: Vec<Node>,
    },
}

/// What each leaf gets, in CPUs, in the order in which a walk from the root meets the leaves.
///
/// # Errors
/// If a weight, limit or cap is no number above zero, or groups are nested beyond what
/// [`Host::check`] allows.
pub fn fill(root: &Node) -> Result<Vec<f64>, HostError> {
    let mut host = Host::default();
    let mut known = Known::default();
    add(root, &mut host.slices, &mut host.vms, &mut known);
    host.pcpus = known.cpus.into_iter().collect();
    let division = entitled(&host)?;
    let mut amounts = vec![0.0; known.leaves];
    for vm in 0..division.vms() {
        if let Some(amount) = division.name(vm).parse().ok().and_then(|leaf: usize| amounts.get_mut(leaf)) {
            *amount = division.cpus(vm).0;
        }
    }
    Ok(amounts)
}

/// What was met on the way through a tree.
#[derive(Default)]
struct Known {
    leaves: usize,
    groups: usize,
    cpus: BTreeSet<CpuId>,
}

/// Groups become slices, leaves VMs with a vCPU for each thread; both are named by their numbers.
fn add(node: &Node, slices: &mut Vec<Slice>, vms: &mut Vec<Vm>, known: &mut Known) {
    let finite = |cap: f64| cap.is_finite().then_some(Cpus(cap));
    match node {
        Node::Leaf { weight, limit, cpus: mask } => {
            known.cpus.extend(mask.iter());
            // More threads than CPUs, even without a limit: they crowd.
            let threads = threads(limit.min(count(mask.len() + 1)));
            let thread = Vcpu { affinity: Some(mask.clone()), ..Vcpu::default() };
            vms.push(Vm {
                name: known.leaves.to_string(),
                weight: *weight,
                cap: finite(*limit),
                vcpus: vec![thread; threads],
            });
            known.leaves += 1;
        }
        Node::Group { weight, cap, children } => {
            let (mut inner, mut members) = (Vec::new(), Vec::new());
            known.groups += 1;
            let name = format!("group {}", known.groups);
            children.iter().for_each(|child| add(child, &mut inner, &mut members, known));
            slices.push(Slice { name, weight: *weight, cap: finite(*cap), slices: inner, vms: members });
        }
    }
}

/// As many threads as can use so much.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates; a number of CPUs")]
fn threads(limit: f64) -> usize {
    limit.ceil() as usize
}

/// A number of things as an amount; exact below 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts of CPUs and threads are small")]
pub(crate) fn count(n: usize) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(weight: f64, limit: f64, cpus: &str) -> Node {
        let cpus = cpus.parse().unwrap();
        Node::Leaf { weight: Weight(weight), limit, cpus }
    }

    fn vm(children: Vec<Node>) -> Node {
        Node::Group { weight: Weight(1024.0), cap: f64::INFINITY, children }
    }

    fn capped(cap: f64, children: Vec<Node>) -> Node {
        Node::Group { weight: Weight(1024.0), cap, children }
    }

    #[track_caller]
    fn gets(root: &Node, expected: &[f64]) {
        let got = fill(root).unwrap();
        let close = got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(close && got.len() == expected.len(), "{got:?}, expected {expected:?}");
    }

    /// The four cases measured on Linux that `design.md` lists under "The models".
    #[test]
    fn divides_as_linux_was_measured_to() {
        let b = |cpus| vm(vec![leaf(1.0, 1.0, cpus)]);
        gets(
            &vm(vec![vm(vec![leaf(1.0, 1.0, "0"), leaf(1.0, 1.0, "1")]), b("0")]),
            &[1.0 / 3.0, 1.0, 2.0 / 3.0],
        );
        gets(&vm(vec![vm(vec![leaf(1.0, 1.0, "0"), leaf(1.0, 0.1, "1")]), b("0")]), &[0.45, 0.1, 0.55]);
        let three_and_one =
            vec![vm(vec![leaf(1.0, 1.0, "0"), leaf(1.0, 1.0, "1")]), b("0"), b("0"), b("0"), b("1")];
        let got = fill(&vm(three_and_one)).unwrap();
        assert!((got[0] - 1.0 / 7.0).abs() < 1e-6 && (got[1] - 1.0 / 3.0).abs() < 1e-6, "{got:?}");
        let slice = |children| vm(children);
        gets(
            &vm(vec![
                slice(vec![capped(0.25, vec![leaf(1.0, 2.0, "0-1")]), vm(vec![leaf(1.0, 2.0, "0-1")])]),
                slice(vec![vm(vec![leaf(1.0, 2.0, "0-1")])]),
            ]),
            &[0.25, 0.75, 1.0],
        );
    }

    #[test]
    fn a_cap_bounds_the_sum_below_it_and_the_rest_goes_to_the_siblings() {
        let two = || vec![leaf(1.0, 4.0, "0-3"), leaf(3.0, 4.0, "0-3")];
        gets(&vm(vec![capped(1.0, two()), leaf(1024.0, 4.0, "0-3")]), &[0.25, 0.75, 3.0]);
    }

    #[test]
    fn free_neighbours_move_away_from_a_pinned_thread() {
        let mut everybody = vec![leaf(1024.0, 1.0, "0")];
        everybody.extend((0..10).map(|_| leaf(1024.0, 1.0, "0-15")));
        gets(&vm(everybody), &[1.0; 11]);
    }

    #[test]
    fn a_neighbour_elsewhere_pushes_free_ones_onto_our_cpus() {
        let root = vm(vec![leaf(1.0, 2.0, "0-1"), leaf(1.0, 2.0, "2-3"), leaf(1.0, 4.0, "0-3")]);
        gets(&root, &[4.0 / 3.0; 3]);
    }

    #[test]
    fn nobody_gets_more_than_the_machine_has_even_with_many_masks() {
        let one_each: Vec<Node> = (0..20).map(|i| leaf(1.0, 1.0, &format!("{i}"))).collect();
        gets(&vm(one_each), &[1.0; 20]);
        let all: f64 = fill(&vm((0..20).map(|_| leaf(1.0, 1.0, "0-2")).collect())).unwrap().iter().sum();
        assert!((all - 3.0).abs() < 1e-6);
    }

    #[test]
    fn an_empty_tree_and_an_empty_mask_give_nothing() {
        gets(&vm(vec![]), &[]);
        gets(&vm(vec![leaf(1.0, 1.0, "")]), &[0.0]);
    }
}
