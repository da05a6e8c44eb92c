//! Who starves of those that nobody grants anything, as nobody arbitrates, or they cannot be sized: no grant says what such a VM should get,
//! but its rule does, and what is available to it.

use std::collections::BTreeMap;

use super::controller::Step;
use super::part::{each, may_use, online, useful, weighs};
use super::short::{Short, below};
use super::{Arbiter, Controller, Policy};
use crate::CpuSet;
use crate::machine::{HostEstimate, VmEstimate, VmId, VmState};
use crate::units::count;

/// VMs that nobody grants anything.
pub(super) type Faring = BTreeMap<VmId, Fares>;

/// How one of them fares.
#[derive(Debug, Default)]
pub(super) struct Fares {
    short: Short,
    /// How often it has starved, and what is said of it while it does.
    starved: (u32, Option<String>),
    /// It starved as it was judged before, and it is not said yet whether it does as it is judged now: that is the same time.
    goes_on: bool,
    /// The `min` by which it is judged, and what is recommended.
    by: (Option<u32>, &'static str),
}

/// Why a VM should get so many pCPUs.
enum Due {
    Guaranteed(f64),
    Available(f64),
}

impl Controller {
    /// Says who has got less than it should for half a minute, and who does now, by what happened in the usual time: of those of whom
    /// `step` does not know it by what they were granted.
    pub(super) fn fares(&mut self, usual: Option<&HostEstimate>, step: &mut Step) {
        self.faring.retain(|id, _| !step.starves.contains_key(id));
        if let Some(seen) = usual {
            let pcpus = online(seen);
            let mut before = std::mem::take(&mut self.faring);
            let judged =
                |vm: &&VmEstimate| is_judged(vm, &self.policy) && !step.starves.contains_key(&vm.seen.id);
            for vm in seen.vms.iter().filter(judged) {
                let (id, name) = (&vm.seen.id, &vm.seen.name);
                let by = (self.policy.of(name).min, remedy(vm, &self.policy));
                let (remedy, last) = (by.1, before.remove(id).unwrap_or_default());
                let Fares { mut short, starved: (mut times, mut said), mut goes_on, .. } = last.judged(by);
                if let Some(due) = due(vm, &self.policy, &pcpus) {
                    let (Due::Guaranteed(pcpus) | Due::Available(pcpus)) = due;
                    let starves = short.look(true, (0, pcpus), vm, (seen.at, seen.over));
                    if !starves {
                        step.short.push(format!("{name}: now {}", due.said(&short, remedy)));
                    } else if said.is_none() {
                        times += u32::from(!std::mem::take(&mut goes_on));
                        let again = if times > 1 { format!(" (time {times})") } else { String::new() };
                        let long = "starves: for half a minute and more";
                        said = Some(format!("{name}: {long} {}{again}", due.said(&short, remedy)));
                    }
                } else {
                    (short, said, goes_on) = Default::default();
                }
                self.faring.insert(id.clone(), Fares { short, starved: (times, said), goes_on, by });
            }
        }
        for (id, Fares { starved: (_, said), .. }) in &self.faring {
            step.starves.insert(id.clone(), said.is_some());
            step.notes.extend(said.clone());
        }
    }
}

impl Fares {
    /// How it fares as it is judged now: less of a `min`, of the configuration or its owner, begins anew; of more (who had too little for less
    /// mostly has so for that) and of another remedy is told at once.
    fn judged(mut self, by: (Option<u32>, &'static str)) -> Fares {
        if by.0 < self.by.0 {
            return Fares::default();
        }
        if by.0 > self.by.0 {
            self.short.anew();
        }
        self.goes_on |= self.by != by && self.starved.1.take().is_some();
        self
    }
}

/// Whether what a VM gets is corefit's business. (Threads of a control group are counted together, and wait for each other, too.)
fn is_judged(vm: &VmEstimate, policy: &Policy) -> bool {
    vm.seen.is_running_vm() && !vm.seen.is_group() && !left_alone(&vm.seen, policy)
}

pub(super) fn left_alone(vm: &VmState, policy: &Policy) -> bool {
    vm.hands_off || vm.unclear.is_some() || policy.of(&vm.name).exclude == Some(true)
}

/// pCPUs that a VM's rule guarantees it, as far as its cap and affinity leave them; `None` where it says nothing, and of one that is left alone, or a group
/// without a process.
pub(super) fn guaranteed(vm: &VmEstimate, policy: &Policy, pcpus: &CpuSet) -> Option<f64> {
    let min = policy.of(&vm.seen.name).min.filter(|_| !left_alone(&vm.seen, policy) && !vm.seen.empty)?;
    let own = may_use(policy, pcpus, vm);
    Some(useful(vm, &own, each(vm) * f64::from(min).min(count(vm.seen.vcpus.len()))))
}

/// What it should get, where it gets less and waits.
fn due(vm: &VmEstimate, policy: &Policy, pcpus: &CpuSet) -> Option<Due> {
    let guaranteed = guaranteed(vm, policy, pcpus).filter(|min| below(vm, *min)).map(Due::Guaranteed);
    guaranteed.or_else(|| vm.starved().map(|starved| Due::Available(starved.available.0)))
}

/// What would see to a guarantee that only a weight could, if its weight can be changed.
fn remedy(vm: &VmEstimate, policy: &Policy) -> &'static str {
    match (policy.arbitrate, policy.weighs()) {
        _ if !weighs(vm) => "",
        (Arbiter::None, _) => " (arbitrate and weigh = \"grants\" would see to it)",
        (_, false) => " (weigh = \"grants\" would see to it)",
        (_, true) => "",
    }
}

impl Due {
    fn said(&self, short: &Short, remedy: &str) -> String {
        let (_, due, used) = short.fared();
        let used = used.unwrap_or_default();
        match self {
            Due::Guaranteed(_) => format!(
                "it uses {used} pCPUs of the {due} that it is guaranteed (min), and waits: its weight gives it no more{remedy}"
            ),
            Due::Available(_) => {
                format!("it uses {used} pCPUs of the {due} that are available to it, and waits")
            }
        }
    }
}
