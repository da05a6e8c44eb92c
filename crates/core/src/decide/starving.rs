//! Who starves where nobody arbitrates: no grant says then what a VM should get, but its rule does, and what is available to it.

use std::collections::BTreeMap;

use super::controller::Step;
use super::part::{each, may_use, online, useful};
use super::short::{Short, below};
use super::{Controller, Policy};
use crate::CpuSet;
use crate::machine::{HostEstimate, VmEstimate, VmId};
use crate::units::count;

/// VMs that nobody grants anything.
pub(super) type Faring = BTreeMap<VmId, Fares>;

/// How one of them fares.
#[derive(Debug, Default)]
pub(super) struct Fares {
    short: Short,
    /// How often it has starved, and what is said of it while it does.
    starved: (u32, Option<String>),
}

/// Why a VM should get so many pCPUs.
enum Due {
    Guaranteed(f64),
    Available(f64),
}

impl Controller {
    /// Says who has got less than it should for half a minute, and who does now, by what happened in the usual time.
    pub(super) fn fares(&mut self, usual: Option<&HostEstimate>, step: &mut Step) {
        if self.arbiter.is_some() {
            self.faring.clear();
            return;
        }
        if let Some(seen) = usual {
            let pcpus = online(seen);
            let mut before = std::mem::take(&mut self.faring);
            for vm in seen.vms.iter().filter(|vm| is_judged(vm, &self.policy)) {
                let (id, name) = (&vm.seen.id, &vm.seen.name);
                let Fares { mut short, starved: (mut times, mut said) } =
                    before.remove(id).unwrap_or_default();
                if let Some(due) = due(vm, &self.policy, &pcpus) {
                    let (Due::Guaranteed(pcpus) | Due::Available(pcpus)) = due;
                    let starves = short.look(true, (0, pcpus), vm, (seen.at, seen.over));
                    if !starves {
                        step.short.push(format!("{name}: now {}", due.said(&short)));
                    } else if said.is_none() {
                        times += 1;
                        let again = if times > 1 { format!(" (time {times})") } else { String::new() };
                        let long = "starves: for half a minute and more";
                        said = Some(format!("{name}: {long} {}{again}", due.said(&short)));
                    }
                } else {
                    (short, said) = Default::default();
                }
                self.faring.insert(id.clone(), Fares { short, starved: (times, said) });
            }
        }
        for (id, Fares { starved: (_, said), .. }) in &self.faring {
            step.starves.insert(id.clone(), said.is_some());
            step.notes.extend(said.clone());
        }
    }
}

/// Whether what a VM gets is corefit's business. (Threads of a control group are counted together, and wait for each other, too.)
fn is_judged(vm: &VmEstimate, policy: &Policy) -> bool {
    let alone =
        vm.seen.hands_off || vm.seen.unclear.is_some() || policy.of(&vm.seen.name).exclude == Some(true);
    vm.seen.is_running_vm() && !vm.seen.is_group() && !alone
}

/// What it should get, where it gets less and waits.
fn due(vm: &VmEstimate, policy: &Policy, pcpus: &CpuSet) -> Option<Due> {
    let min = policy.of(&vm.seen.name).min.map(|min| {
        let own = may_use(policy, pcpus, vm);
        useful(vm, &own, each(vm) * f64::from(min).min(count(vm.seen.vcpus.len())))
    });
    let guaranteed = min.filter(|min| below(vm, *min)).map(Due::Guaranteed);
    guaranteed.or_else(|| vm.starved().map(|starved| Due::Available(starved.available.0)))
}

impl Due {
    fn said(&self, short: &Short) -> String {
        let (_, due, used) = short.fared();
        let used = used.unwrap_or_default();
        match self {
            Due::Guaranteed(_) => format!(
                "it uses {used} pCPUs of the {due} that it is guaranteed (min), and waits: its weight gives it no more \
                 (arbitrate and weigh = \"grants\" would see to it)"
            ),
            Due::Available(_) => {
                format!("it uses {used} pCPUs of the {due} that are available to it, and waits")
            }
        }
    }
}
