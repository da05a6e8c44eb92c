//! Hosts made of numbers, for the tests of the corridor.

use std::time::Duration;

use corefit_core::decide::{Arbiter, Controller, Outcome, Policy, Rule, Sizer, Step, Weigher};
use corefit_core::machine::{Counters, Lever, Pcpu, Snapshot, Value, VcpuState, VmId, VmState};
use corefit_core::{CpuId, Quota, Time, Unread, Weight, What};

/// Something by the number of vCPUs.
pub(crate) type ByCount = fn(u32) -> f64;

/// A host of VMs whose work is a function of the number of vCPUs.
pub(crate) struct Toy {
    pub(crate) at: u64,
    pub(crate) pcpus: u32,
    pub(crate) vms: Vec<ToyVm>,
    /// The VM that looks miss, as libvirt's do for a while after a restart.
    pub(crate) missed: Option<usize>,
}

pub(crate) struct ToyVm {
    pub(crate) state: VmState,
    /// Units per second by the number of vCPUs; `None`: nobody counts.
    pub(crate) rate: Option<ByCount>,
    /// pCPUs used by the number of vCPUs.
    pub(crate) used: ByCount,
    /// Its count is brought every so often only, with the time of the guest's clock; the last one that was.
    pub(crate) brought: Option<(Duration, f64, u64)>,
}

impl Toy {
    pub(crate) fn new(pcpus: u32, vms: Vec<ToyVm>) -> Toy {
        Toy { at: 0, pcpus, vms, missed: None }
    }

    pub(crate) fn observe(&self) -> Snapshot {
        let pcpu = |id| Pcpu { id: CpuId(id), online: true, ..Pcpu::default() };
        let mut vms: Vec<VmState> = self.vms.iter().map(ToyVm::seen).collect();
        let missed = self.missed.map(|missed| vms.remove(missed));
        let unread = |vm: VmState| Unread {
            what: What::Siblings,
            path: format!("VM {:?}", vm.name),
            why: "not asked for yet".into(),
        };
        Snapshot {
            at: Time(self.at),
            pcpus: (0..self.pcpus).map(pcpu).collect(),
            vms,
            unread: missed.map(unread).into_iter().collect(),
            ..Snapshot::default()
        }
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.at += u64::try_from(time.as_nanos()).unwrap();
        for vm in &mut self.vms {
            let online = u32::try_from(vm.state.online().len()).unwrap();
            let each = (vm.used)(online) * time.as_secs_f64() * 1e9 / f64::from(online);
            for vcpu in vm.state.vcpus.iter_mut().filter(|vcpu| vcpu.online) {
                let ran = Duration::from_secs_f64(each / 1e9).as_nanos();
                *vcpu.counters.run_ns.as_mut().unwrap() += u64::try_from(ran).unwrap();
            }
            if let Some(rate) = vm.rate {
                *vm.state.progress.get_or_insert(0.0) += rate(online) * time.as_secs_f64();
            }
            if let Some((every, units, at)) = &mut vm.brought
                && Duration::from_nanos(self.at - *at) >= *every
            {
                (*units, *at) = (vm.state.progress.unwrap(), self.at);
            }
        }
    }

    /// Does what a plan says, and tells.
    pub(crate) fn obey(&mut self, controller: &mut Controller, step: &Step) {
        let mut outcomes = vec![];
        for action in &step.plan.actions {
            let vm = self.vms.iter_mut().find(|vm| vm.state.id == action.vm).unwrap();
            match &action.to {
                Value::Vcpus(set) => {
                    assert!(set.contains(CpuId(0)), "vCPU 0 stays: {action:?}");
                    for (vcpu, number) in vm.state.vcpus.iter_mut().zip(0..) {
                        vcpu.online = set.contains(CpuId(number));
                    }
                }
                Value::Weight(weight) => vm.state.weight = Some(*weight),
                Value::Pcpus(set) => {
                    let Lever::Affinity(vcpu) = action.lever else { panic!("{action:?}") };
                    vm.state.vcpus[vcpu as usize].affinity = Some(set.clone());
                }
                _ => panic!("{action:?}"),
            }
            outcomes.push(Outcome { action: action.clone(), result: Ok(action.to.clone()) });
        }
        controller.told(&outcomes);
    }

    /// Lets a controller rule for so long; actions taken.
    pub(crate) fn rule(&mut self, controller: &mut Controller, seconds: u64) -> usize {
        let end = self.at + seconds * 1_000_000_000;
        let mut actions = 0;
        while self.at < end {
            let step = controller.step(&self.observe()).unwrap();
            actions += step.plan.actions.len();
            self.obey(controller, &step);
            self.pass(step.next);
        }
        actions
    }

    pub(crate) fn online(&self, vm: usize) -> usize {
        self.vms[vm].state.online().len()
    }

    pub(crate) fn weights(&self) -> Vec<f64> {
        self.vms.iter().map(|vm| vm.state.weight.unwrap().0).collect()
    }
}

impl ToyVm {
    pub(crate) fn seen(&self) -> VmState {
        let mut state = self.state.clone();
        if let Some((_, units, at)) = self.brought {
            (state.progress, state.progress_at) = (Some(units), Some(Time(at)));
        }
        state
    }
}

pub(crate) fn vm(name: &str, vcpus: usize, rate: Option<ByCount>, used: ByCount) -> ToyVm {
    let counters = Counters { run_ns: Some(0), wait_ns: Some(0), runs: None };
    let vcpu = VcpuState { online: true, counters, ..VcpuState::default() };
    let state = VmState {
        id: VmId(name.into()),
        name: name.into(),
        weight: Some(Weight(1024.0)),
        vcpus: vec![vcpu; vcpus],
        progress: rate.map(|_| 0.0),
        ..VmState::default()
    };
    ToyVm { state, rate, used, brought: None }
}

/// It may use four pCPUs.
pub(crate) fn of_four(mut vm: ToyVm) -> ToyVm {
    vm.state.quota =
        Some(Quota { quota_us: Some(400_000), period_us: 100_000, burst_us: 0, source: String::new() });
    vm
}

pub(crate) fn four(_: u32) -> f64 {
    4.0
}

pub(crate) fn with(size: Sizer) -> Controller {
    Controller::new(Policy { size, ..Policy::default() })
}

/// Two VMs on two pCPUs, `high` before `low`, each with a quarter of a pCPU at least. `low` is busy.
pub(crate) fn contest() -> (Toy, Policy) {
    let mut toy = Toy::new(2, vec![vm("low", 2, None, f64::from), vm("high", 2, None, |_| 0.05)]);
    toy.vms[0].state.weight = Some(Weight(1000.0));
    toy.vms[1].state.weight = Some(Weight(2000.0));
    let rule = |name: &str, priority| Rule {
        name: name.into(),
        priority: Some(priority),
        guaranteed: Some(0.25),
        ..Rule::default()
    };
    let vm = vec![rule("low", 0), rule("high", 1)];
    let (size, arbitrate, weigh) = (Sizer::None, Arbiter::Priority, Weigher::Grants);
    (toy, Policy { size, arbitrate, weigh, vm, ..Policy::default() })
}
