//! What really happened on a simulated host: for reports and tests, never for controllers, which see
//! only what a real host shows ([`crate::SimMachine`]).

use serde::Serialize;

use crate::host::{Account, Counts, Sim};

/// What happened until now.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Truth {
    /// How long the host ran, ns.
    pub ran_ns: u64,
    /// Events that were simulated.
    pub events: u64,
    /// pCPU time that nobody used, ns, over all pCPUs.
    pub idle_ns: u64,
    /// Mean number of cores of which two pCPUs or more were busy (P4's competing modules).
    pub competing_cores: f64,
    /// VMs, as described.
    pub vms: Vec<VmTruth>,
}

/// What happened in a VM.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VmTruth {
    /// Its name.
    pub name: String,
    /// Its vCPUs, offline ones included.
    pub vcpus: u32,
    /// Where its time went, all vCPUs together.
    pub time: Account,
    /// Runnable, but not running, ns, over all vCPUs.
    pub waited_ns: u64,
    /// For how long its vCPUs were online, ns, all together.
    pub online_ns: u64,
    /// How often the number of those was changed.
    pub online_changes: u64,
    /// How often what happened.
    pub counts: Counts,
    /// Its applications.
    pub apps: Vec<AppTruth>,
}

/// What became of an application.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AppTruth {
    /// Its name.
    pub name: String,
    /// Whether it has an end.
    pub endless: bool,
    /// From its start to its first end, ns; `None` if it did not end.
    pub took_ns: Option<u64>,
    /// How often it ended.
    pub rounds: u64,
    /// `mark`s that its threads passed.
    pub marks: u64,
}

impl VmTruth {
    /// P1.1: N - N * (switching + unused) / allocated, for N vCPUs; `None` if nothing was allocated.
    #[must_use]
    pub fn speedup(&self) -> Option<f64> {
        self.efficiency().map(|efficiency| f64::from(self.vcpus) * efficiency)
    }

    /// P1.1, utilisation efficiency: 1 - (switching + unused) / allocated; `None` if nothing was allocated. Spinning is
    /// no loss here, as P1 takes it to be descheduled.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "ns of a run")]
    pub fn efficiency(&self) -> Option<f64> {
        let Account { allocated, switching, unused, .. } = self.time;
        (allocated > 0).then_some(1.0 - (switching + unused) as f64 / allocated as f64)
    }
}

impl Sim {
    /// What happened until now.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "ns of a run")]
    pub fn truth(&self) -> Truth {
        let vms = self.guests.iter().zip(&self.cpus.vms).zip(0_u32..).map(|((guest, vm), number)| {
            let vcpus = vm.first..vm.first + vm.count;
            let apps = self.apps.iter().filter(|app| app.vm == number).map(|app| AppTruth {
                name: app.name.clone(),
                endless: app.program.endless,
                took_ns: app.ended.map(|at| at - app.started),
                rounds: app.rounds,
                marks: app.marks,
            });
            VmTruth {
                name: guest.name.clone(),
                vcpus: vm.count,
                time: vcpus.clone().map(|v| self.account(v)).fold(Account::default(), |a, b| a.plus(&b)),
                waited_ns: vcpus.map(|v| self.waited_ns(v)).sum(),
                online_ns: self.online_ns(number as usize),
                online_changes: guest.online_changes,
                counts: guest.counts,
                apps: apps.collect(),
            }
        });
        let busy = self.cpus.topology.busy.iter().zip(&self.competing_since).filter(|(busy, _)| **busy >= 2);
        let competing: u64 = self.competing_ns + busy.map(|(_, since)| self.now - since).sum::<u64>();
        Truth {
            ran_ns: self.now,
            events: self.events,
            idle_ns: (0..self.pcpus()).map(|p| self.idle_ns(p)).sum(),
            competing_cores: if self.now == 0 { 0.0 } else { competing as f64 / self.now as f64 },
            vms: vms.collect(),
        }
    }

    /// Applications that have an end and did not reach it: `vm/app`.
    #[must_use]
    pub fn unfinished(&self) -> Vec<String> {
        let open = self.apps.iter().filter(|app| !app.program.is_endless() && app.ended.is_none());
        open.map(|app| format!("{}/{}", self.guests[app.vm as usize].name, app.name)).collect()
    }

    /// How long a pCPU was idle.
    pub(crate) fn idle_ns(&self, p: u32) -> u64 {
        let pcpu = &self.cpus.pcpus[p as usize];
        pcpu.idle_ns + self.now.saturating_sub(pcpu.idle_since)
    }

    /// How long a vCPU was on pCPUs.
    pub(crate) fn run_ns(&self, v: u32) -> u64 {
        let vcpu = &self.cpus.vcpus[v as usize];
        let running = vcpu.state == crate::cpus::VState::Running;
        vcpu.run_ns + if running { self.now - self.cpus.pcpus[vcpu.pcpu as usize].dispatched } else { 0 }
    }

    /// How long a VM's threads waited for lines that a cache had not, all together.
    pub(crate) fn missed_ns(&self, vm: usize) -> u64 {
        let since_settled = self.cpus.pcpus.iter().map(|pcpu| {
            let Some(vcpu) = self.cpus.vcpus.get(pcpu.run as usize).filter(|vcpu| vcpu.vm as usize == vm)
            else {
                return 0;
            };
            let works = self.threads[vcpu.cur as usize].act == crate::host::Act::Work;
            let ns = (self.now - pcpu.since).saturating_sub(vcpu.debt);
            if works { ns * u64::from(pcpu.missing) } else { 0 }
        });
        (self.guests[vm].missed + since_settled.sum::<u64>()) / 1024
    }

    /// How long a vCPU wanted to run and did not; under its quota, too, as the host's statistics count.
    pub(crate) fn waited_ns(&self, v: u32) -> u64 {
        use crate::cpus::VState::{Throttled, Waiting};
        let vcpu = &self.cpus.vcpus[v as usize];
        let waits = matches!(vcpu.state, Waiting | Throttled);
        vcpu.wait_ns + if waits { self.now - vcpu.wait_since } else { 0 }
    }
}
