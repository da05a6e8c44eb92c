//! Steps of the daemon on a large host on paper, in a process of their own: they say what they do, as any daemon's, in a log.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use corefit_core::decide::Policy;
use corefit_core::machine::{
    Act, Counters, GuestVcpu, GuestView, Lever, Machine, MachineError, Pcpu, Snapshot, Value, VcpuState,
    VmId, VmState,
};
use corefit_core::{CpuId, CpuSet, Random, Time, Weight};
use serde::{Deserialize, Serialize};

use super::{STEP_MS, VCPUS, said};
use crate::manage;
use crate::stats::median;

/// VMs of the large host.
const LARGE: u32 = 1000;

/// Steps of the daemon on a large host on paper.
#[derive(clap::Args)]
pub(in super::super) struct Args {
    /// How many
    steps: usize,
    /// The directory of its journal
    dir: PathBuf,
}

#[derive(Serialize)]
pub(super) struct StepCost {
    pub(super) vms: u32,
    pub(super) vcpus: u32,
    pub(super) steps: usize,
    pub(super) actions: u64,
    pub(super) median_ms: f64,
    pub(super) most_ms: f64,
    pub(super) target_ms: f64,
}

/// What came of the steps.
#[derive(Serialize, Deserialize)]
struct Took {
    ms: Vec<f64>,
    actions: u64,
}

/// Steps of another process.
pub(super) fn cost(steps: usize) -> Result<StepCost> {
    let dir = std::env::temp_dir().join(format!("corefit-bench-manage-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let log = dir.join("log");
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["bench", "steps", &steps.to_string()]).arg(&dir);
    let output = command.stdin(Stdio::null()).stderr(File::create(&log)?).output()?;
    let log = std::fs::read_to_string(log).unwrap_or_default();
    let _ = std::fs::remove_dir_all(&dir);
    if !output.status.success() {
        bail!("corefit bench steps: {}", said(&log, "").last().unwrap_or("ended without a word"));
    }
    let Took { ms, actions } = serde_json::from_slice(&output.stdout).context("what its steps took")?;
    let median_ms = median(ms.iter().copied()).context("no step was made")?;
    let most_ms = ms.iter().copied().fold(0.0, f64::max);
    let (vms, vcpus) = (LARGE, LARGE * VCPUS);
    Ok(StepCost { vms, vcpus, steps, actions, median_ms, most_ms, target_ms: STEP_MS })
}

pub(in super::super) fn run(args: &Args) -> Result<ExitCode> {
    let (took, status) = steps(LARGE, args.steps, &args.dir)?;
    let ms = took.iter().map(|took| took.as_secs_f64() * 1e3).collect();
    let actions = status.vms.iter().map(|vm| vm.actions).sum();
    answer!("{}", serde_json::to_string(&Took { ms, actions })?)?;
    Ok(ExitCode::SUCCESS)
}

/// What steps take on a host whose VMs want now this, now that, and what the daemon shows then.
fn steps(vms: u32, steps: usize, dir: &Path) -> Result<(Vec<Duration>, manage::Status)> {
    let policy = Policy { dwell_ms: 0, ..Policy::default() };
    let (took, status) = manage::steps(Box::new(Paper::new(vms)), policy, dir, steps + 1)?;
    // The first look has nothing to compare with.
    Ok((took[1..].to_vec(), status))
}

/// A host on paper: counters grow by what is drawn, settings are kept.
struct Paper {
    at: Time,
    random: Random,
    snapshot: Snapshot,
    set: BTreeMap<(VmId, Lever), Value>,
}

impl Paper {
    fn new(vms: u32) -> Paper {
        let pcpus = vms;
        let pcpu = |number| Pcpu {
            id: CpuId(number),
            online: true,
            node: None,
            package: None,
            siblings: None,
            idle_ns: Some(0),
            steal_ns: Some(0),
        };
        let counters = Counters { run_ns: Some(0), wait_ns: Some(0), runs: None };
        let affinity = Some(CpuSet::first(pcpus));
        let vcpu = VcpuState {
            online: true,
            weight: Some(Weight(1024.0)),
            affinity,
            counters,
            ..VcpuState::default()
        };
        let seen_inside = |id| GuestVcpu {
            id,
            online: true,
            busy_ns: Some(0),
            idle_ns: Some(0),
            steal_ns: Some(0),
            nice_ns: Some(0),
            iowait_ns: Some(0),
        };
        let guest = GuestView { vcpus: (0..VCPUS).map(seen_inside).collect(), ..GuestView::default() };
        let vm = |number| VmState {
            id: VmId(format!("vm{number}")),
            name: format!("vm{number}"),
            weight: Some(Weight(1024.0)),
            vcpus: vec![vcpu.clone(); VCPUS as usize],
            guest: Some(guest.clone()),
            ..VmState::default()
        };
        let snapshot = Snapshot {
            pcpus: (0..pcpus).map(pcpu).collect(),
            vms: (0..vms).map(vm).collect(),
            ..Snapshot::default()
        };
        Paper { at: Time(0), random: Random(1), snapshot, set: BTreeMap::new() }
    }
}

impl Machine for Paper {
    fn name(&self) -> String {
        "a host on paper".into()
    }

    fn observe(&mut self) -> Result<Snapshot, MachineError> {
        self.snapshot.at = self.at;
        Ok(self.snapshot.clone())
    }

    fn pass(&mut self, time: Duration) -> Result<bool, MachineError> {
        self.at = self.at + time;
        let ns = u64::try_from(time.as_nanos()).unwrap_or(0);
        for vm in &mut self.snapshot.vms {
            // In each, of a hundred: it runs for half of that, and waits as long.
            let busy = self.random.below(100_u64);
            let (half, idle) = (ns * busy / 200, ns * (100 - busy) / 100);
            let grow = |counter: &mut Option<u64>, by: u64| *counter = counter.map(|before| before + by);
            for vcpu in vm.vcpus.iter_mut().filter(|vcpu| vcpu.online) {
                grow(&mut vcpu.counters.run_ns, half);
                grow(&mut vcpu.counters.wait_ns, half);
            }
            for vcpu in vm.guest.iter_mut().flat_map(|guest| &mut guest.vcpus).filter(|vcpu| vcpu.online) {
                grow(&mut vcpu.busy_ns, half);
                grow(&mut vcpu.steal_ns, half);
                grow(&mut vcpu.idle_ns, idle);
            }
        }
        Ok(true)
    }
}

impl Act for Paper {
    fn current(&mut self, vm: &VmId, lever: Lever) -> Result<Value, MachineError> {
        if let Some(value) = self.set.get(&(vm.clone(), lever)) {
            return Ok(value.clone());
        }
        match lever {
            Lever::Online => Ok(Value::Vcpus(CpuSet::first(VCPUS))),
            Lever::Weight => Ok(Value::Weight(Weight(1024.0))),
            Lever::Told => Ok(Value::Told(None)),
            _ => Err(MachineError::Unsupported("paper has no such lever".into())),
        }
    }

    fn set(&mut self, vm: &VmId, lever: Lever, value: &Value) -> Result<(), MachineError> {
        let number: usize = vm.0.trim_start_matches("vm").parse().unwrap_or(usize::MAX);
        if let (Some(state), Value::Vcpus(online)) = (self.snapshot.vms.get_mut(number), value) {
            let inside = state.guest.iter_mut().flat_map(|guest| &mut guest.vcpus);
            for ((vcpu, state), inside) in (0..).zip(&mut state.vcpus).zip(inside) {
                state.online = online.contains(CpuId(vcpu));
                inside.online = state.online;
            }
        }
        self.set.insert((vm.clone(), lever), value.clone());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_those_of_the_whole_daemon_which_tells_guests_and_shows_what_it_did() {
        let dir = tempfile::tempdir().unwrap();
        let (took, status) = steps(20, 10, dir.path()).unwrap();
        assert_eq!((took.len(), status.steps, status.vms.len()), (10, 11, 20));
        for lever in [Lever::Online, Lever::Told] {
            let lever = lever.name(false);
            let changed =
                status.vms.iter().flat_map(|vm| &vm.settings).filter(|setting| setting.lever == lever);
            assert!(changed.count() > 10, "{lever}: {status:?}");
        }
        assert!(status.vms.iter().map(|vm| vm.actions).sum::<u64>() > 20);
    }

    #[test]
    fn the_host_on_paper_keeps_to_the_contract_and_to_what_is_set() {
        let mut paper = Paper::new(3);
        corefit_core::machine::contract::observing(&mut paper, Duration::from_secs(1)).unwrap();
        let (vm, few) = (VmId("vm1".into()), Value::Vcpus(CpuSet::first(2)));
        paper.set(&vm, Lever::Online, &few).unwrap();
        assert_eq!(paper.current(&vm, Lever::Online), Ok(few));
        assert_eq!(paper.observe().unwrap().vms[1].online().len(), 2);
    }
}
