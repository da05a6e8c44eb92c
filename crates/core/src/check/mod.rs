//! What is wrong with the pinning, caps and topologies of a host's VMs.
//!
//! ```text
//! Topology ─┐
//! VMs ──────┴▶ Subject ──check──▶ Findings: rule, place, what happens because of it, what cures it
//! ```
//!
//! Rules see settings, and of a host that was watched what became of them (timeslices, slices, who starves). Whoever may
//! run somewhere is taken to be busy there, unless its demand was measured. What can be no matter (a VM that shares a set of pCPUs on purpose, a guest that knows its
//! siblings) is not reported; [`Rule::explanation`] says for each rule when.

mod affinity;
mod agree;
mod change;
#[cfg(test)]
mod convergence;
mod cure;
mod matching;
mod memory;
mod neighbours;
mod pins;
mod propose;
mod quota;
mod rule;
mod siblings;
mod slices;
mod snapshot;
mod starved;
mod subject;
#[cfg(test)]
mod tests;

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use crate::topology::Topology;
use crate::{CpuId, CpuSet};
use change::Cure;

pub use change::{Change, Filled, Limit};
pub use cure::{commands, placing};
pub use rule::{RULES, Rule, Severity};
pub use subject::{
    Cell, Fewer, GuestTopology, Helper, HelperKind, Manager, Memory, Place, Set, Subject, Vcpu, Vm,
};

/// Below this demand, a vCPU that was measured counts as idle: it disturbs nobody.
pub const IDLE: f64 = 0.1;

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// By which rule.
    pub rule: Rule,
    /// How bad.
    pub severity: Severity,
    /// The VM that it is about.
    pub vm: String,
    /// Where it is written.
    pub place: Place,
    /// What happens because of it, in a sentence.
    pub text: String,
    /// What to do: a command or XML, or advice.
    pub cure: String,
    /// The same as changes of the VM, in order; none if it is advice.
    pub changes: Vec<Change>,
}

/// All findings, by place.
#[must_use]
pub fn check(subject: &Subject) -> Vec<Finding> {
    let context = Context::new(subject);
    let mut findings = context.findings();
    findings.extend(neighbours::shared(&context));
    neighbours::weights(&context, &mut findings);
    findings.sort_by(|a, b| a.place.cmp(&b.place).then(a.rule.cmp(&b.rule)).then(a.vm.cmp(&b.vm)));
    agree::agree(&context, &mut findings);
    findings
}

/// A host, and what follows from it.
struct Context<'a> {
    subject: &'a Subject,
    topology: Option<&'a Topology>,
    /// Cores or modules.
    units: Vec<CpuSet>,
    /// pCPUs that VMs can use together: online, balanced by the kernel and not reserved; `None` if the host is
    /// not known.
    usable: Option<CpuSet>,
    unit_of: BTreeMap<CpuId, usize>,
    /// Of each VM: [`Vm::pcpus`], and those of [`Vm::dedicated`].
    sets: Vec<Option<CpuSet>>,
    dedicated: Vec<Option<CpuSet>>,
    /// Of each pCPU: how many VMs name it, and to which VMs it is dedicated.
    named_by: BTreeMap<CpuId, usize>,
    owners: BTreeMap<CpuId, Vec<usize>>,
    /// Of each VM: where it could be pinned instead, once somebody asked.
    proposed: Vec<OnceCell<Option<propose::Sets>>>,
    /// Where VMs have been sent so far, by number, and whether to have that for themselves.
    given: RefCell<BTreeMap<usize, (CpuSet, bool)>>,
}

/// Where findings about a VM go.
struct Report<'a, 'f> {
    vm: &'a Vm,
    findings: &'f mut Vec<Finding>,
}

impl Report<'_, '_> {
    fn add(&mut self, rule: Rule, severity: Severity, place: &Place, text: String, todo: impl Into<Cure>) {
        let (vm, todo) = (self.vm.name.clone(), todo.into());
        let cure = cure::written(self.vm, &todo);
        let changes = match todo {
            Cure::Do(changes) => changes,
            Cure::Advice(_) => Vec::new(),
        };
        self.findings.push(Finding { rule, severity, vm, place: place.clone(), text, cure, changes });
    }
}

impl<'a> Context<'a> {
    /// All that is found of each VM.
    fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        (0..self.subject.vms.len()).for_each(|number| self.findings_of(number, &mut findings));
        findings
    }

    /// What is found of one VM.
    fn findings_of(&self, number: usize, findings: &mut Vec<Finding>) {
        let mut report = Report { vm: &self.subject.vms[number], findings };
        affinity::check(self, number, &mut report);
        siblings::check(self, number, &mut report);
        memory::check(self, number, &mut report);
        quota::check(self, number, &mut report);
        slices::check(&mut report);
        starved::check(&mut report);
        neighbours::check(self, number, &mut report);
    }

    fn new(subject: &'a Subject) -> Context<'a> {
        let topology = subject.topology.as_ref();
        let reserved = subject.reserved.as_ref().map(|set| set.value.clone()).unwrap_or_default();
        let units = topology.map(Topology::units).unwrap_or_default();
        let unit_of = units.iter().enumerate().flat_map(|(at, unit)| unit.iter().map(move |cpu| (cpu, at)));
        let unit_of = unit_of.collect();
        let context = Context {
            subject,
            topology,
            units,
            unit_of,
            usable: topology
                .map(|topology| topology.online().difference(&topology.isolated).difference(&reserved)),
            sets: subject.vms.iter().map(Vm::pcpus).collect(),
            dedicated: subject.vms.iter().map(Vm::dedicated).collect(),
            named_by: BTreeMap::new(),
            owners: BTreeMap::new(),
            proposed: subject.vms.iter().map(|_| OnceCell::new()).collect(),
            given: RefCell::default(),
        };
        let (mut named_by, mut owners) = (BTreeMap::new(), BTreeMap::new());
        for number in 0..subject.vms.len() {
            for cpu in context.names(number).into_iter().flat_map(CpuSet::iter) {
                *named_by.entry(cpu).or_default() += 1;
            }
            for cpu in context.dedicated[number].iter().flat_map(CpuSet::iter) {
                owners.entry(cpu).or_insert_with(Vec::new).push(number);
            }
        }
        Context { named_by, owners, ..context }
    }

    /// The pCPUs that a VM names: those that it may use, if it leaves out some or has them for itself.
    fn names(&self, number: usize) -> Option<&CpuSet> {
        let narrow = |set: &&CpuSet| self.usable.as_ref().is_none_or(|usable| !usable.is_within(set));
        self.dedicated[number].as_ref().or_else(|| self.sets[number].as_ref().filter(narrow))
    }

    /// What is dedicated to other VMs.
    fn others_own(&self, number: usize) -> CpuSet {
        let others = self.owners.iter().filter(|(_, vms)| vms.iter().any(|vm| *vm != number));
        others.map(|(cpu, _)| *cpu).collect()
    }

    /// The VMs, by number, to which some of these pCPUs are dedicated.
    fn owners_of(&self, set: &CpuSet) -> BTreeSet<usize> {
        set.iter().filter_map(|cpu| self.owners.get(&cpu)).flatten().copied().collect()
    }

    /// The pCPUs that a vCPU can really use; `None` if that is not known.
    fn reach(&self, vcpu: &Vcpu) -> Option<CpuSet> {
        let online = self.topology.map(Topology::online);
        match (&vcpu.affinity, online) {
            (Some(set), Some(online)) => Some(set.value.intersection(&online)),
            (Some(set), None) => Some(set.value.clone()),
            (None, _) => self.usable.clone(),
        }
    }

    /// pCPUs that other VMs name.
    fn others(&self, number: usize) -> CpuSet {
        let shared = self.subject.shared.as_ref().map(|set| set.value.clone()).unwrap_or_default();
        let own = self.names(number);
        let mine = |cpu: CpuId| usize::from(own.is_some_and(|set| set.contains(cpu)));
        let others = self.named_by.iter().filter(|(cpu, many)| **many > mine(**cpu));
        others.map(|(cpu, _)| *cpu).collect::<CpuSet>().union(&shared)
    }
}

/// Whether a vCPU is taken to be busy.
fn busy(vcpu: &Vcpu) -> bool {
    vcpu.demand.is_none_or(|demand| demand.0 >= IDLE)
}

fn set_of(numbers: impl IntoIterator<Item = u32>) -> CpuSet {
    numbers.into_iter().map(CpuId).collect()
}

/// A count with its word: `1 core`, `2 cores`.
#[must_use]
pub fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}
