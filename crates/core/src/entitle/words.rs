//! Why a VM gets what it gets, grouped and in words.

use std::sync::Arc;

use super::crowds::Crowds;
use super::division::{Cause, Division, FullSet, Share};
use crate::{CpuId, CpuSet, Cpus};

/// At most so many VMs are named in a sentence.
const NAMED: usize = 3;

/// vCPUs of a VM that the same thing holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Binding {
    /// Their numbers.
    pub vcpus: CpuSet,
    /// What they get together.
    pub cpus: Cpus,
    /// What holds them.
    pub cause: Cause,
    /// The full pCPUs and all who use them, if that is the cause.
    pub full: Option<Arc<FullSet>>,
}

impl Division {
    /// What holds the vCPUs of a VM, in the order of the first vCPU that each thing holds. Leaves
    /// [`fixed`](Share::fixed) ones out: nobody asks what they could get.
    #[must_use]
    pub fn bindings(&self, vm: usize) -> Vec<Binding> {
        self.bindings_of(vm, &mut Crowds::default())
    }

    fn bindings_of(&self, vm: usize, crowds: &mut Crowds) -> Vec<Binding> {
        let mut found: Vec<(Vec<u32>, Binding)> = Vec::new();
        for (vcpu, Share { cpus, cause, fixed }) in self.vcpus(vm).iter().enumerate() {
            if *fixed {
                continue;
            }
            let Ok(number) = u32::try_from(vcpu) else { continue };
            let full = (*cause == Cause::Crowded).then(|| self.crowd_of(vm, vcpu, crowds));
            let same_full = |other: &Option<Arc<FullSet>>| match (other, &full) {
                (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a == b,
                (a, b) => a.is_none() && b.is_none(),
            };
            let same = |b: &Binding| b.cause == *cause && same_full(&b.full);
            match found.iter_mut().find(|(_, binding)| same(binding)) {
                Some((numbers, binding)) => {
                    numbers.push(number);
                    binding.cpus = binding.cpus + *cpus;
                }
                None => {
                    let binding =
                        Binding { vcpus: CpuSet::default(), cpus: *cpus, cause: cause.clone(), full };
                    found.push((vec![number], binding));
                }
            }
        }
        let finish = |(numbers, binding): (Vec<u32>, Binding)| Binding {
            vcpus: numbers.into_iter().map(CpuId).collect(),
            ..binding
        };
        found.into_iter().map(finish).collect()
    }

    /// The bindings of a VM in words, such as `0.33 of vCPU 0: pCPU 0 is full, shared with b`.
    #[must_use]
    pub fn words(&self, vm: usize) -> String {
        self.sentences(vm).join("; ")
    }

    /// The same, one text for each binding.
    #[must_use]
    pub fn sentences(&self, vm: usize) -> Vec<String> {
        self.sentences_of(vm, &mut Crowds::default())
    }

    /// The same, of many VMs one after the other.
    #[must_use]
    pub fn sentences_of(&self, vm: usize, crowds: &mut Crowds) -> Vec<String> {
        let sentence = |binding: Binding| {
            let subject = format!("{} of {}", binding.cpus, binding.vcpus.named("vCPU"));
            format!("{subject}: {}", self.reason(vm, &binding))
        };
        let sentences: Vec<String> = self.bindings_of(vm, crowds).into_iter().map(sentence).collect();
        if sentences.is_empty() { vec!["it has no vCPUs".into()] } else { sentences }
    }

    fn reason(&self, vm: usize, binding: &Binding) -> String {
        let each = if binding.vcpus.len() > 1 { " each" } else { "" };
        match (&binding.cause, &binding.full) {
            (Cause::Offline, _) => "offline".into(),
            (Cause::Whole, _) => format!("a whole pCPU{each}"),
            (Cause::Quota, _) => format!("all of the quota{each}"),
            (Cause::Demand, _) => "no more is wanted".into(),
            (Cause::Cap(name), _) if *name == format!("vm {}", self.name(vm)) => {
                "the VM's cap is used up".into()
            }
            (Cause::Cap(name), _) => format!("the cap of {name} is used up"),
            (Cause::Crowded, Some(full)) if !full.pcpus.is_empty() => {
                let verb = if full.pcpus.len() == 1 { "is" } else { "are" };
                format!("{} {verb} full{}", full.pcpus.named("pCPU"), self.company(vm, full))
            }
            (Cause::Crowded, _) => "none of its pCPUs is online and not reserved".into(),
        }
    }

    /// Of the VMs of a full set those that a sentence about one of them may name: who wants most first.
    pub(super) fn who_want_most(&self, vms: &[(usize, CpuSet)]) -> Vec<usize> {
        let mut all: Vec<usize> = vms.iter().map(|(vm, _)| *vm).collect();
        let most_first = |a: &usize, b: &usize| self.wanted(*b).total_cmp(&self.wanted(*a)).then(a.cmp(b));
        // The one that it is about, and one more in the place of "and 1 more".
        let enough = NAMED + 2;
        if enough < all.len() {
            all.select_nth_unstable_by(enough, most_first);
            all.truncate(enough);
        }
        all.sort_by(most_first);
        all
    }

    /// `, shared with b, c and 7 more`, who wants most first.
    fn company(&self, vm: usize, full: &FullSet) -> String {
        let own = full.vms.binary_search_by_key(&vm, |(other, _)| *other).is_ok();
        let others = full.vms.len() - usize::from(own);
        let named = if others <= NAMED + 1 { others } else { NAMED };
        let first = full.first.iter().filter(|other| **other != vm).take(named);
        let names: Vec<String> = first.map(|&other| quoted(self.name(other))).collect();
        let last = match (others - named, names.as_slice()) {
            (_, []) => return ", with the VM's own vCPUs only".into(),
            (0, [alone]) => return format!(", shared with {alone}"),
            (0, [.., last]) => last.clone(),
            (more, _) => format!("{more} more"),
        };
        let first = if others == named { &names[..named - 1] } else { &names[..] };
        format!(", shared with {} and {last}", first.join(", "))
    }
}

/// A name as it stands in a list: in quotes if it has what separates the members of one.
#[must_use]
pub fn quoted(name: &str) -> String {
    if name.contains([',', ';', '"']) { format!("{name:?}") } else { name.into() }
}
