//! The checker's own computation of amounts over time, from the host and what a certificate claims.

use super::Wants;
use super::certificate::{Certificate, Known, Violation, vm_weight};
use super::division::TOLERANCE;
use super::host::{Host, Slice, Vm, WeightRule};

/// The tree with claimed ends.
pub(super) struct Replay<'a> {
    nodes: Vec<Node>,
    vcpus: usize,
    certificate: &'a Certificate,
}

struct Node {
    weight: f64,
    /// Offered amount from which on its weight goes to its siblings.
    satisfied: f64,
    kind: Kind,
    cap: Option<(String, f64)>,
}

enum Kind {
    /// Its number and its final amount.
    Vcpu(usize, f64),
    /// The children in the order of `satisfied` by weight, each with the weight of itself and all
    /// later ones.
    Group(Vec<(usize, f64)>),
}

struct Builder<'a> {
    host: &'a Host,
    wants: Wants,
    known: &'a [Known<'a>],
    certificate: &'a Certificate,
    stopped: Vec<bool>,
    capped: std::collections::BTreeMap<&'a str, f64>,
    nodes: Vec<Node>,
    next: usize,
    vm: usize,
}

impl<'a> Replay<'a> {
    /// The root is the last node.
    pub(super) fn new(
        host: &'a Host,
        wants: Wants,
        known: &'a [Known<'a>],
        certificate: &'a Certificate,
    ) -> Self {
        let mut stopped = vec![false; known.len()];
        let all = certificate.full.iter().flat_map(|full| &full.stopped);
        all.filter(|&&vcpu| vcpu < known.len()).for_each(|&vcpu| stopped[vcpu] = true);
        let capped = certificate.capped.iter().map(|(name, at)| (name.as_str(), *at)).collect();
        let mut builder =
            Builder { host, wants, known, certificate, stopped, capped, nodes: Vec::new(), next: 0, vm: 0 };
        let children = builder.members(&host.slices, &host.vms);
        builder.group(1.0, None, children);
        Replay { nodes: builder.nodes, vcpus: known.len(), certificate }
    }

    /// What each vCPU has when the host has offered so much, and what it was offered.
    pub(super) fn at(&self, time: f64) -> (Vec<f64>, Vec<f64>) {
        let mut result = (vec![0.0; self.vcpus], vec![0.0; self.vcpus]);
        if let Some(root) = self.nodes.len().checked_sub(1) {
            self.offer(root, time, &mut result);
        }
        result
    }

    /// Whether each cap was reached when the certificate says so, and not before.
    pub(super) fn check_caps(&self) -> Result<(), Violation> {
        for (i, node) in self.nodes.iter().enumerate() {
            let Some((name, cap)) = &node.cap else { continue };
            let Some(&(_, offered)) = self.certificate.capped.iter().find(|(n, _)| n == name) else {
                continue;
            };
            let mut result = (vec![0.0; self.vcpus], vec![0.0; self.vcpus]);
            let grows = self.offer(i, offered, &mut result);
            let delivered: f64 = result.0.iter().sum();
            if !grows || (delivered - cap).abs() > TOLERANCE * cap.max(1.0) {
                return Err(Violation::NotCapped { name: name.clone(), offered });
            }
        }
        Ok(())
    }

    /// Hands an offer down; whether something below grew until the last moment.
    fn offer(&self, node: usize, offered: f64, result: &mut (Vec<f64>, Vec<f64>)) -> bool {
        let node = &self.nodes[node];
        let until = offered <= node.satisfied * (1.0 + TOLERANCE) + TOLERANCE;
        let offered = offered.min(node.satisfied);
        match &node.kind {
            Kind::Vcpu(number, end) => {
                result.0[*number] = offered.min(*end);
                result.1[*number] = offered;
                offered <= end + TOLERANCE
            }
            Kind::Group(children) => {
                let level = self.level(children, offered);
                let mut grows = false;
                for &(child, _) in children {
                    let part = level * self.nodes[child].weight;
                    grows |= self.offer(child, part, result);
                }
                grows && until
            }
        }
    }

    /// The offered amount by weight of those who are not satisfied.
    fn level(&self, children: &[(usize, f64)], offered: f64) -> f64 {
        let (mut rest, mut level) = (offered, 0.0);
        for &(child, weight) in children {
            let node = &self.nodes[child];
            level = rest / weight;
            if level * node.weight < node.satisfied {
                return level;
            }
            rest -= node.satisfied;
            level = node.satisfied / node.weight;
        }
        if rest > TOLERANCE { f64::INFINITY } else { level }
    }
}

impl Builder<'_> {
    fn members(&mut self, slices: &[Slice], vms: &[Vm]) -> Vec<usize> {
        let mut children = Vec::new();
        for slice in slices {
            let first = self.next;
            let below = self.members(&slice.slices, &slice.vms);
            let weight = if self.host.rule == WeightRule::EqualPerVcpu {
                let online = self.known[first..self.next].iter().filter(|known| known.vcpu.online);
                crate::units::count(online.count().max(1))
            } else {
                slice.weight.0
            };
            let cap = slice.cap.map(|cap| (format!("slice {}", slice.name), cap.0));
            children.push(self.group(weight, cap, below));
        }
        for vm in vms {
            let wanted = self.wants == Wants::Everything || self.wants == Wants::Everywhere(self.vm);
            self.vm += 1;
            let known = &self.known[self.next..self.next + vm.vcpus.len()];
            let weight = vm_weight(self.host, vm, known, wanted);
            let below = known.iter().map(|known| self.vcpu(known)).collect::<Vec<_>>();
            let below = below.into_iter().flatten().map(|node| self.push(node)).collect();
            let cap = vm.cap.map(|cap| (format!("vm {}", vm.name), cap.0));
            children.push(self.group(weight, cap, below));
        }
        children
    }

    fn vcpu(&mut self, known: &Known<'_>) -> Option<Node> {
        let number = self.next;
        self.next += 1;
        let stopped = self.stopped[number];
        let end = if stopped { self.certificate.shares[number].cpus.0 } else { known.limit };
        known.vcpu.online.then(|| Node {
            weight: if self.host.rule == WeightRule::Linux { known.vcpu.weight.0 } else { 1.0 },
            satisfied: if stopped { f64::INFINITY } else { end },
            kind: Kind::Vcpu(number, end),
            cap: None,
        })
    }

    fn group(&mut self, weight: f64, cap: Option<(String, f64)>, mut children: Vec<usize>) -> usize {
        let by_weight = |&i: &usize| self.nodes[i].satisfied / self.nodes[i].weight;
        children.sort_by(|a, b| by_weight(a).total_cmp(&by_weight(b)));
        let all: f64 = children.iter().map(|&child| self.nodes[child].satisfied).sum();
        let mut later = 0.0;
        let mut children: Vec<(usize, f64)> = children
            .into_iter()
            .rev()
            .map(|child| {
                later += self.nodes[child].weight;
                (child, later)
            })
            .collect();
        children.reverse();
        let at = cap.as_ref().and_then(|(name, _)| self.capped.get(name.as_str()).copied());
        let satisfied = at.map_or(all, |at| at.min(all));
        self.push(Node { weight, satisfied, kind: Kind::Group(children), cap })
    }

    fn push(&mut self, node: Node) -> usize {
        self.nodes.push(node);
        self.nodes.len() - 1
    }
}
