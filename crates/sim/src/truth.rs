//! What really happened on a simulated host: for reports and tests, never for controllers, which see
//! only what a real host shows ([`crate::SimMachine`]).

use serde::Serialize;

use crate::host::{Account, Counts, Sim};

/// What happened until now, since the warm-up ([`Spec::warmup_ns`](crate::Spec)).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Truth {
    /// How long the host ran, ns; 0 until the warm-up is over.
    pub ran_ns: u64,
    /// Events that were simulated, in the warm-up, too.
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
    /// For how long they were counted: since its start, or the warm-up if that ended later, ns.
    pub counted_ns: u64,
}

impl Truth {
    /// What came after another one.
    fn since(&self, before: &Truth) -> Truth {
        let ran_ns = self.ran_ns - before.ran_ns;
        let competing = |truth: &Truth| truth.competing_cores * truth.ran_ns as f64;
        let vms = self.vms.iter().zip(&before.vms).map(|(vm, before)| VmTruth {
            time: vm.time.since(&before.time),
            waited_ns: vm.waited_ns - before.waited_ns,
            online_ns: vm.online_ns - before.online_ns,
            online_changes: vm.online_changes - before.online_changes,
            counts: vm.counts.since(&before.counts),
            apps: vm.apps.iter().zip(&before.apps).map(|(app, before)| app.since(before)).collect(),
            ..vm.clone()
        });
        Truth {
            ran_ns,
            events: self.events,
            idle_ns: self.idle_ns - before.idle_ns,
            competing_cores: (competing(self) - competing(before)) / ran_ns.max(1) as f64,
            vms: vms.collect(),
        }
    }
}

impl AppTruth {
    fn since(&self, before: &AppTruth) -> AppTruth {
        AppTruth {
            rounds: self.rounds - before.rounds,
            marks: self.marks - before.marks,
            counted_ns: self.counted_ns - before.counted_ns,
            ..self.clone()
        }
    }
}

impl VmTruth {
    /// `mark`s that its programs passed in a second since they began; `None` if one has not, or there is none.
    #[must_use]
    pub fn marks_per_s(&self) -> Option<f64> {
        let rate =
            |app: &AppTruth| (app.counted_ns > 0).then(|| app.marks as f64 * 1e9 / app.counted_ns as f64);
        (!self.apps.is_empty()).then(|| self.apps.iter().map(rate).sum::<Option<f64>>()).flatten()
    }

    /// P1.1: N - N * (switching + unused) / allocated, for N vCPUs; `None` if nothing was allocated.
    #[must_use]
    pub fn speedup(&self) -> Option<f64> {
        self.efficiency().map(|efficiency| f64::from(self.vcpus) * efficiency)
    }

    /// P1.1, utilisation efficiency: 1 - (switching + unused) / allocated; `None` if nothing was allocated. Spinning is
    /// no loss here, as P1 takes it to be descheduled.
    #[must_use]
    pub fn efficiency(&self) -> Option<f64> {
        let Account { allocated, switching, unused, .. } = self.time;
        (allocated > 0).then_some(1.0 - (switching + unused) as f64 / allocated as f64)
    }
}

impl Sim {
    /// What happened until now, since the warm-up.
    #[must_use]
    pub fn truth(&self) -> Truth {
        let now = self.all();
        match &self.cold {
            Some(cold) => now.since(cold),
            None if self.spec.warmup_ns > 0 => now.since(&now),
            None => now,
        }
    }

    /// The warm-up included.
    pub(crate) fn all(&self) -> Truth {
        let vms = self.guests.iter().zip(&self.cpus.vms).zip(0_u32..).map(|((guest, vm), number)| {
            let vcpus = vm.first..vm.first + vm.count;
            let apps = self.apps.iter().filter(|app| app.vm == number).map(|app| AppTruth {
                name: app.name.clone(),
                endless: app.program.endless,
                took_ns: app.ended.map(|at| at - app.started),
                rounds: app.rounds,
                marks: app.marks,
                counted_ns: self.now.saturating_sub(app.started),
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

#[cfg(test)]
mod tests {
    use crate::{Scenario, Sim, Truth};

    /// What happens in 50 ms, of which the first `warmup` do not count.
    fn after(warmup: &str) -> Truth {
        let text = "until = \"50ms\"\njitter = \"1ms\"\nhardware = { cores = 2, threads = 2 }\n[[vm]]\nname = \"a\"\ncount = 2\nvcpus = 4\ncap = 1.5\n\
                    program = \"forever { compute 50us exp kernel l { compute 9us } barrier mark }\"\n";
        let sets = [("warmup".to_owned(), warmup.to_owned())];
        let mut sim = Sim::new(&Scenario::parse(text, &sets).unwrap().spec).unwrap();
        sim.run_for(50_000_000);
        sim.check().unwrap();
        sim.truth()
    }

    #[test]
    fn a_warm_up_changes_nothing_of_what_happens_after_it_and_its_rest_adds_up() {
        let (all, rest) = (after("0s"), after("31337us"));
        assert_eq!((all.ran_ns, rest.ran_ns), (50_000_000, 18_663_000));
        assert_eq!(rest.events, all.events);
        for (all, rest) in all.vms.iter().zip(&rest.vms) {
            assert!(rest.time.adds_up(), "{rest:?}");
            let (some, most) = (rest.apps[0].marks, all.apps[0].marks);
            assert!(some > 0 && some < most && rest.time.utilised < all.time.utilised, "{rest:?}");
            assert!(rest.apps[0].counted_ns <= 18_663_000 && rest.counts.switches < all.counts.switches);
        }
    }
}
