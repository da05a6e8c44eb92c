//! A host written down in a file: the pure model, asked by hand.

use std::time::Duration;

use corefit_core::entitle::{Division, Host, Slice, Vcpu, Vm, Wants};
use corefit_core::machine::{
    Counters, Group, Helper, Machine, MachineError, Pcpu, Snapshot, VcpuState, VmId, VmState,
};
use corefit_core::{CpuSet, Cpus, Quota, Time};
use corefit_sim::keys::{key_at, line};

const REMEDY: &str =
    "docs/scenarios.md of corefit's source has the keys, scenarios/p2-figure10.toml is an example";

/// A host on which everybody uses what the model gives for the demands in the file, and waits for the
/// rest of its demand. No demand means all that there is.
pub(crate) struct Scenario {
    file: String,
    host: Host,
    /// What each vCPU uses and waits for, VM by VM, in CPUs.
    rates: Vec<Vec<(f64, f64)>>,
    now: Time,
}

impl Scenario {
    /// From the text of a file such as `scenarios/p2-figure10.toml`.
    ///
    /// # Errors
    /// If it is no host; the text names the file, the line and the key.
    pub(crate) fn of(file: String, text: &str) -> Result<Scenario, MachineError> {
        let host: Host = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let points = corefit_sim::Scenario::points(text, &[]).unwrap_or_default();
            let first = points.first().map_or(&[][..], Vec::as_slice);
            if corefit_sim::Scenario::parse(text, first).is_ok() {
                return MachineError::Malformed(format!(
                    "{file}: is for the simulator, no host for the model: corefit sim {file}, or --machine sim:{file}"
                ));
            }
            let message = error.message().replace('\n', " ");
            // What is missing stands nowhere.
            let key = key_at(text, at).filter(|_| !message.starts_with("missing field"));
            let key = key.map_or(String::new(), |key| format!(", {key}"));
            MachineError::Malformed(format!("{file}, line {}{key}: {message}; {REMEDY}", line(text, at)))
        })?;
        let malformed = |what: String| MachineError::Malformed(format!("{file}: {what}"));
        beyond(&host).map_or(Ok(()), |what| Err(malformed(what)))?;
        let division = Division::of(&host, Wants::Measured).map_err(|error| malformed(error.to_string()))?;
        let vms = host.all_vms();
        let rates = vms.iter().enumerate().map(|(number, vm)| {
            let shares = division.vcpus(number).iter().zip(&vm.vcpus);
            let rate = |used: f64, vcpu: &Vcpu| match vcpu.online {
                true => (used, (vcpu.demand.map_or(1.0, |d| d.0) - used).max(0.0)),
                false => (0.0, 0.0),
            };
            shares.map(|(share, vcpu)| rate(share.cpus.0, vcpu)).collect()
        });
        let rates = rates.collect();
        Ok(Scenario { rates, file, host, now: Time(0) })
    }

    fn members(&self, slices: &[Slice], vms: &[Vm], parent: Option<&str>, snapshot: &mut Snapshot) {
        for Slice { name, weight, cap, slices, vms } in slices {
            let (weight, quota) = (Some(*weight), self.quota(*cap));
            let parent = parent.map(Into::into);
            snapshot.groups.push(Group { name: name.clone(), parent, weight, quota, unread: Vec::new() });
            self.members(slices, vms, Some(name), snapshot);
        }
        for vm in vms {
            let rates = &self.rates[snapshot.vms.len()];
            let threads = || vm.vcpus.iter().zip(rates);
            let vcpus = threads().filter(|(vcpu, _)| !vcpu.fixed).map(|(vcpu, rate)| VcpuState {
                online: vcpu.online,
                weight: Some(vcpu.weight),
                quota: self.quota(vcpu.quota),
                throttled: None,
                affinity: Some(self.affinity(vcpu)),
                counters: self.counters(*rate),
                on: None,
                pin: None,
            });
            let helpers = threads().filter(|(vcpu, _)| vcpu.fixed && vcpu.online).enumerate();
            let helpers = helpers.map(|(number, (vcpu, rate))| Helper {
                name: format!("helper {number}"),
                weight: Some(vcpu.weight),
                quota: self.quota(vcpu.quota),
                affinity: Some(self.affinity(vcpu)),
                counters: self.counters(*rate),
            });
            snapshot.vms.push(VmState {
                id: VmId(vm.name.clone()),
                name: vm.name.clone(),
                parent: parent.map(Into::into),
                weight: Some(vm.weight),
                quota: self.quota(vm.cap),
                vcpus: vcpus.collect(),
                helpers: helpers.collect(),
                ..VmState::default()
            });
        }
    }

    fn affinity(&self, vcpu: &Vcpu) -> CpuSet {
        let within = self.host.pcpus.difference(&self.host.reserved);
        vcpu.affinity.as_ref().map_or(within.clone(), |set| set.intersection(&within))
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive; saturates")]
    fn counters(&self, (used, waiting): (f64, f64)) -> Counters {
        let seconds = Duration::from_nanos(self.now.0).as_secs_f64();
        let ns = |rate: f64| Some((rate * seconds * 1e9).round() as u64);
        Counters { run_ns: ns(used), wait_ns: ns(waiting), runs: None }
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive; saturates")]
    fn quota(&self, cap: Option<Cpus>) -> Option<Quota> {
        let Cpus(cap) = cap?;
        let period_us = Quota::NO_PERIOD_US;
        let quota_us = ((cap * period_us as f64).round() as u64).max(1);
        Some(Quota { quota_us: Some(quota_us), period_us, burst_us: 0, source: self.file.clone() })
    }
}

/// What names pCPUs that the host does not have.
fn beyond(host: &Host) -> Option<String> {
    let outside = |what: String, set: &CpuSet| {
        let outside = set.difference(&host.pcpus);
        let text = || format!("{what}: the host has no pCPU {outside}, only {}", host.pcpus);
        (!outside.is_empty()).then(text)
    };
    let ours = [("offline", &host.offline), ("reserved", &host.reserved)];
    let ours = ours.into_iter().find_map(|(what, set)| outside(what.into(), set));
    ours.or_else(|| {
        host.all_vms().into_iter().find_map(|vm| {
            vm.vcpus.iter().enumerate().find_map(|(number, vcpu)| {
                outside(format!("vm {}, vCPU {number}, affinity", vm.name), vcpu.affinity.as_ref()?)
            })
        })
    })
}

impl Machine for Scenario {
    fn name(&self) -> String {
        let Host { about, .. } = &self.host;
        if about.is_empty() { self.file.clone() } else { format!("{} ({about})", self.file) }
    }

    fn observe(&mut self) -> Result<Snapshot, MachineError> {
        let host = &self.host;
        let pcpu = |id| Pcpu { id, online: !host.offline.contains(id), ..Pcpu::default() };
        let mut snapshot = Snapshot {
            at: self.now,
            rule: host.rule,
            pcpus: host.pcpus.iter().map(pcpu).collect(),
            ..Snapshot::default()
        };
        self.members(&host.slices, &host.vms, None, &mut snapshot);
        snapshot
            .notes
            .push("a scenario: everybody uses what the model gives for the demands in the file".into());
        if !host.reserved.is_empty() {
            snapshot.notes.push(format!("pCPUs {} are reserved: no VM may use them", host.reserved));
        }
        Ok(snapshot)
    }

    fn pass(&mut self, time: Duration) -> Result<bool, MachineError> {
        self.now = self.now + time;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use corefit_core::machine::{contract, estimate};

    use super::*;

    fn both(text: &str) -> corefit_core::machine::HostEstimate {
        let mut machine = Scenario::of("x.toml".into(), text).unwrap();
        let before = machine.observe().unwrap();
        machine.pass(Duration::from_secs(1)).unwrap();
        estimate(&before, &machine.observe().unwrap()).unwrap()
    }

    #[test]
    fn a_scenario_gives_what_the_model_says() {
        let text = include_str!("../../../../scenarios/p2-figure10.toml");
        let host = both(text);
        let got: Vec<f64> = host.vms.iter().map(|vm| vm.entitled.unwrap().0).collect();
        assert!((got[0] - 1.6).abs() < 1e-9 && (got[1] - 2.4).abs() < 1e-9, "{got:?}");
        let mut machine = Scenario::of("x.toml".into(), text).unwrap();
        contract::observing(&mut machine, Duration::from_secs(1)).unwrap();
    }

    #[test]
    fn demands_caps_slices_and_reserved_pcpus_count() {
        let host = both(
            "pcpus = \"0-3\"\nreserved = \"0\"\n[[slice]]\nname = \"s\"\ncap = 0.5\n[[slice.vm]]\nname = \"a\"\n\
             vcpus = [{}]\n[[vm]]\nname = \"b\"\nvcpus = [{ demand = 0.25 }, {}, { fixed = true, demand = 0.1 }]\n",
        );
        let [a, b] = &host.vms[..] else { panic!("{host:?}") };
        assert!((a.entitled.unwrap().0 - 0.5).abs() < 1e-9 && a.binding.contains("cap of slice s"), "{a:?}");
        let (used, waiting) = (b.activity.used.unwrap().0, b.activity.waiting.unwrap().0);
        assert!((used - 1.35).abs() < 1e-6 && waiting.abs() < 1e-6, "{used} {waiting}");
        assert_eq!((b.vcpus.len(), b.seen.helpers.len()), (2, 1));
        assert_eq!(a.seen.vcpus[0].affinity.as_ref().unwrap().to_string(), "1-3");
    }

    #[test]
    fn a_vcpu_that_is_offline_neither_runs_nor_waits() {
        let host = both("pcpus = \"0\"\n[[vm]]\nname = \"a\"\nvcpus = [{ online = false }, {}]\n");
        let activity = &host.vms[0].activity;
        assert_eq!((activity.used.unwrap().0, activity.waiting.unwrap().0), (1.0, 0.0));
        assert!(!host.vms[0].seen.vcpus[0].online);
    }

    #[test]
    fn mistakes_name_the_file_the_line_and_the_key() {
        let error = |text: &str| Scenario::of("x.toml".into(), text).map(drop).unwrap_err().to_string();
        let line = error("pcpus = \"0-3\"\n[[vm]]\nname = \"a\"\nvcpu = []\n");
        assert!(line.starts_with("x.toml, line 4, vm[0].vcpu: unknown field `vcpu`"), "{line}");
        assert!(line.ends_with("scenarios/p2-figure10.toml is an example"), "{line}");
        let word = error("pcpus = \"0\"\n[[vm]]\nname = \"a\"\nweight = \"much\"\nvcpus = []\n");
        assert!(word.starts_with("x.toml, line 4, vm[0].weight: invalid type"), "{word}");
        let lacks = error("pcpus = \"0\"\n\n[[vm]]\nvcpus = []\n");
        assert!(lacks.starts_with("x.toml, line 3: missing field `name`; docs/scenarios.md"), "{lacks}");
        let range = error("pcpus = \"0\"\n[[vm]]\nname = \"a\"\nweight = 0.0\nvcpus = []\n");
        assert!(range.starts_with("x.toml: vm a: weight is 0; give a weight"), "{range}");
        let host = "pcpus = \"0-3\"\n[[vm]]\nname = \"a\"\n";
        let endless = error(&format!("{host}vcpus = [{{ demand = inf }}]\n"));
        assert!(endless.starts_with("x.toml: vm a, vCPU 0: demand is inf; give"), "{endless}");
        let beyond = error(&format!("{host}vcpus = [{{}}, {{ affinity = \"2-7\" }}]\n"));
        assert_eq!(beyond, "x.toml: vm a, vCPU 1, affinity: the host has no pCPU 4-7, only 0-3");
        let reserved = error("pcpus = \"0-3\"\nreserved = \"4\"\n");
        assert_eq!(reserved, "x.toml: reserved: the host has no pCPU 4, only 0-3");
        assert!(
            error("pcpus = \"0-x\"\n").starts_with("x.toml, line 1, pcpus: not a CPU list"),
            "{}",
            error("pcpus = \"0-x\"")
        );
    }
}
