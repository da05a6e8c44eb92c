//! Cures of one VM that can all be followed: none undoes what another does, or cures what another has cured already.
//!
//! Each cure is found for the VM as it is. Here they are put on it one after the other, those of its affinity first, as
//! memory, helpers and what the guest is told follow from that. Where a finding goes with the cure of another, that is its
//! cure; where a cure would bring back what another takes away, or sets the same otherwise, it has to wait.

use std::collections::BTreeMap;

use super::change::{Change, after};
use super::propose::LATER;
use super::{Context, Finding, Rule, Subject, Vm};

/// VMs whose cures are tried together, some ms each on a large host. Ours; of the others the first cure comes first.
const MOST: usize = 256;

/// Makes the cures of each VM agree.
pub(super) fn agree(context: &Context<'_>, findings: &mut [Finding]) {
    let mut of_vm: BTreeMap<&str, Option<usize>> = BTreeMap::new();
    for (number, vm) in context.subject.vms.iter().enumerate() {
        // Of two of one name nobody knows whose a finding is.
        of_vm.entry(&vm.name).and_modify(|known| *known = None).or_insert(Some(number));
    }
    let mut open: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (at, finding) in findings.iter().enumerate().filter(|(_, finding)| !finding.changes.is_empty()) {
        if let Some(number) = of_vm.get(finding.vm.as_str()).copied().flatten() {
            open.entry(number).or_default().push(at);
        }
    }
    let (mut what_if, mut tried) = (None, 0);
    for (number, mut open) in open {
        let first = &findings[open[0]].changes;
        if open.iter().all(|at| findings[*at].changes == *first) {
            continue;
        }
        let of_affinity = |at: &usize| findings[*at].changes.iter().any(|c| matches!(c, Change::Affinity(_)));
        open.sort_by_key(|at| (!of_affinity(at), *at));
        tried += 1;
        if tried > MOST {
            let first = findings[open[0]].changes.clone();
            let others = open.into_iter().filter(|at| findings[*at].changes != first).collect::<Vec<_>>();
            others.into_iter().for_each(|at| findings[at].wait());
            continue;
        }
        let what_if = what_if.get_or_insert_with(|| WhatIf { context, subject: context.subject.clone() });
        one(what_if, number, &open, findings);
    }
}

/// Those of one VM, in the order in which they are to agree.
fn one(what_if: &mut WhatIf<'_, '_>, number: usize, open: &[usize], findings: &mut [Finding]) {
    let vm = what_if.subject.vms[number].clone();
    let before = what_if.found(number, &vm);
    let (mut now, mut state) = (before.clone(), vm.clone());
    // What is followed, and how many findings of a rule that takes care of.
    let mut followed: Vec<usize> = Vec::new();
    let mut cared: BTreeMap<Rule, usize> = BTreeMap::new();
    for at in open {
        let Finding { rule, severity, ref changes, ref text, .. } = findings[*at];
        let cared = cared.entry(rule).or_default();
        let here = now.iter().any(|known| known.rule == rule && known.text == *text);
        let instead = if !here && many(&now, rule) + *cared < many(&before, rule) {
            if followed.iter().any(|other| findings[*other].changes == *changes) {
                *cared += 1;
                continue;
            }
            let cures = |other: &&usize| {
                let alone = after(&vm, &findings[**other].changes);
                many(&what_if.found(number, &alone), rule) < many(&before, rule)
            };
            followed.iter().find(cures).copied()
        } else {
            let trial = after(&state, changes);
            let then = what_if.found(number, &trial);
            let more = |new: &Finding| {
                new.rule != rule && new.severity >= severity && many(&then, new.rule) > many(&now, new.rule)
            };
            let apart = followed.iter().all(|other| !meet(&findings[*other].changes, changes));
            // Weights are no matter of one VM.
            let cured = many(&then, rule) < many(&now, rule) || rule == Rule::WeightNotHonoured;
            if followed.is_empty() || apart && cured && !then.iter().any(more) {
                (now, state) = (then, trial);
                followed.push(*at);
                *cared += 1;
                continue;
            }
            None
        };
        match instead {
            Some(other) => {
                let (cure, changes) = (findings[other].cure.clone(), findings[other].changes.clone());
                (findings[*at].cure, findings[*at].changes) = (cure, changes);
                *cared += 1;
            }
            None => findings[*at].wait(),
        }
    }
}

impl Finding {
    /// Another cure has to be followed first.
    fn wait(&mut self) {
        (self.cure, self.changes) = (LATER.into(), Vec::new());
    }
}

fn many(findings: &[Finding], rule: Rule) -> usize {
    findings.iter().filter(|finding| finding.rule == rule).count()
}

/// Whether two cures set something to different values.
fn meet(some: &[Change], others: &[Change]) -> bool {
    some.iter().any(|a| others.iter().any(|b| a.sets_what(b) && a != b))
}

/// A host of which a VM is changed.
struct WhatIf<'c, 'a> {
    context: &'c Context<'a>,
    subject: Subject,
}

impl WhatIf<'_, '_> {
    /// What would be found of a VM if it were so.
    fn found(&mut self, number: usize, vm: &Vm) -> Vec<Finding> {
        let known = std::mem::replace(&mut self.subject.vms[number], vm.clone());
        let context = Context::new(&self.subject);
        let mut given = self.context.given.borrow().clone();
        given.remove(&number);
        context.given.replace(given);
        let mut findings = Vec::new();
        context.findings_of(number, &mut findings);
        self.subject.vms[number] = known;
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::super::{GuestTopology, Memory, Place, Set, Vcpu, check};
    use super::*;

    /// Two cures each; nobody's contradict each other, however many they are.
    #[test]
    fn of_very_many_vms_the_first_cure_comes_first() {
        let said = |list: &str| Set { value: list.parse().unwrap(), place: Place::default() };
        let vcpu = |list: &str| Vcpu { online: true, affinity: Some(said(list)), ..Vcpu::default() };
        let vm = |number: usize| {
            let memory = Memory::Nodes { nodes: "1".parse().unwrap(), mode: "strict".into() };
            let guest = GuestTopology { sockets: 1, cores: 1, threads: 2 };
            Vm {
                name: format!("v{number}"),
                vcpus: vec![vcpu("0-7"); 2],
                memory: Some(Set { value: memory, place: Place::default() }),
                guest: Some(Set { value: guest, place: Place::default() }),
                ..Vm::default()
            }
        };
        let topology = "2 sockets x 4 cores x 2 threads".parse().ok();
        let subject = Subject { topology, vms: (0..=MOST).map(vm).collect(), ..Subject::default() };
        let found = check(&subject);
        let cures = |vm: usize| -> Vec<(bool, bool)> {
            let own = found.iter().filter(|f| f.vm == format!("v{vm}"));
            own.map(|f| (!f.changes.is_empty(), f.cure == LATER)).collect()
        };
        assert!((0..MOST).all(|vm| cures(vm) == [(true, false); 2]), "{found:?}");
        assert_eq!(cures(MOST), [(true, false), (false, true)]);
    }
}
