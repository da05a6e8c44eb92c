//! The runs in real VMs (scripts/testvm): profiled and timed where each of the machine's CPUs is a vCPU, and measured where
//! there are more vCPUs, each with a quota, so that what a vCPU leaves of it is lost.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use corefit_core::machine::{Act, Lever, Limit, Value, VmId};
use corefit_linux::libvirt::{Options, open};

use super::Condition;
use super::measure::{Case, Runs};
use super::saved::{Seen, Took};
use crate::bar::Progress;
use crate::bench::vms::{Vms, last_line, stripped};
use crate::interrupt::Interrupt;

/// Numbers of vCPUs of the VMs that are predicted.
pub(super) const VCPUS: [u32; 2] = [4, 8];
/// Exit status of a run that `timeout` ended by SIGKILL.
const KILLED: i32 = 137;

/// A VM for each number of vCPUs.
pub(super) struct Guests<'a> {
    vms: BTreeMap<u32, (Vms, VmId)>,
    uri: String,
    /// Of the VM that is not suspended, once one is.
    awake: Option<u32>,
    machine: Box<dyn Act>,
    interrupt: &'a Interrupt,
    progress: Progress,
    size: String,
    limit: Duration,
    cpus: u32,
}

impl<'a> Guests<'a> {
    /// Starts them; or why there can be none.
    pub(super) fn start(
        root: &Path,
        cpus: usize,
        interrupt: &'a Interrupt,
        progress: Progress,
        (size, limit): (String, Duration),
    ) -> Result<Result<Guests<'a>, String>> {
        let dir = root.join("build/predict");
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let [corefit, library] = ["corefit", "libcorefit_omp.so"].map(|name| stripped(name, &dir));
        let text = |path: PathBuf| path.display().to_string();
        let (corefit, library) = (text(corefit?), text(library?));
        let cpus = u32::try_from(cpus)?;
        let mut vms = vec![];
        for vcpus in VCPUS.into_iter().filter(|vcpus| *vcpus > cpus).chain([cpus]) {
            let (many, name) = (vcpus.to_string(), format!("corefit-predict-{vcpus}"));
            let options = ["--vcpus", &many, "--name", &name, "--memory", "768", "--tsc"];
            let programs = ["--program", &corefit, "--program", &library];
            match Vms::start(root, 1, &[&options[..], &programs].concat())? {
                Ok(started) => vms.push((vcpus, started)),
                Err(why) => return Ok(Err(why)),
            }
        }
        let uri = vms.first().context("no VM")?.1.uri()?;
        let mut machine = open(&uri, Options { guests: None, ..Options::default() });
        let seen = machine.observe()?;
        let id = |vms: Vms| -> Result<(Vms, VmId)> {
            let vm = seen.vms.iter().find(|vm| vms.names.first() == Some(&vm.name));
            let id = vm.map(|vm| vm.id.clone()).context("libvirt does not show a test VM")?;
            Ok((vms, id))
        };
        let vms = vms.into_iter().map(|(vcpus, vm)| Ok((vcpus, id(vm)?))).collect::<Result<_>>()?;
        Ok(Ok(Guests { vms, uri, awake: None, machine, interrupt, progress, size, limit, cpus }))
    }

    /// Runs a command of /workloads in the VM with so many vCPUs; what it printed, and how it went: `None` if it was cut off.
    fn run(
        &mut self,
        vcpus: u32,
        command: &str,
        threads: usize,
        what: &str,
    ) -> Result<Option<(String, Took)>> {
        self.interrupt.check()?;
        self.wake_only(vcpus)?;
        self.progress.begin(what);
        let (vms, _) = self.vms.get(&vcpus).context("no such VM")?;
        let script = format!(
            "export OMP_NUM_THREADS={threads} OMP_WAIT_POLICY=passive; exec time -p timeout -s KILL {} {command}",
            self.limit.as_secs()
        );
        let mut guest = vms.exec(vms.names.first().context("no VM")?);
        guest.args(["sh", "-c", &script]).stdin(Stdio::null());
        let output = guest.output().context("cannot start scripts/testvm exec")?;
        let (told, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if output.status.code() == Some(KILLED) {
            self.progress.end(what, "cut off");
            return Ok(None);
        }
        if !output.status.success() || !told.lines().any(|line| line == "verified: yes") {
            bail!("{what}: its result is wrong, or it failed: {}", last_line(&output));
        }
        let seconds = |name: &str| -> Option<f64> {
            errors.lines().rev().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
        };
        let took = seconds("real ").zip(seconds("user ")).zip(seconds("sys "));
        let ((wall, user), system) = took.with_context(|| format!("{what}: no times in {errors:?}"))?;
        self.progress.end(what, &format!("{wall:.2} s"));
        Ok(Some((told.into_owned(), Took { wall, user, system })))
    }

    /// Suspends the other VMs: the emulation of a vCPU that idles takes 2 % of a CPU.
    fn wake_only(&mut self, vcpus: u32) -> Result<()> {
        if self.awake == Some(vcpus) {
            return Ok(());
        }
        for (&of, (vms, _)) in &self.vms {
            let what = match self.awake {
                _ if of == vcpus => "resume",
                None => "suspend",
                Some(awake) if awake == of => "suspend",
                Some(_) => continue,
            };
            if of == vcpus && self.awake.is_none() {
                continue;
            }
            let name = vms.names.first().context("no VM")?;
            let output = Command::new("virsh").args(["-c", &self.uri, what, name]).output();
            let output = output.context("cannot start virsh")?;
            if !output.status.success() {
                bail!("virsh {what} {name}: {}", last_line(&output));
            }
        }
        self.awake = Some(vcpus);
        Ok(())
    }

    fn command(&self, case: &Case, threads: usize) -> String {
        let threads = if case.threads_are_argument { threads.to_string() } else { String::new() };
        format!("/workloads/{} {} {threads}", case.name, self.size)
    }
}

impl Runs for Guests<'_> {
    fn profile(&mut self, case: &Case, threads: usize, one_cpu: bool) -> Result<Option<Seen>> {
        if one_cpu {
            return Ok(None);
        }
        let command = format!(
            "/workloads/corefit profile --quiet --one-cpu --period 24ms --threads {threads} --json=/tmp/profile.json \
             --record /tmp/record.json -- {}",
            self.command(case, threads)
        );
        let what = format!("{} profiled with {threads} threads", case.name);
        if self.run(self.cpus, &command, threads, &what)?.is_none() {
            return Ok(None);
        }
        let (vms, _) = &self.vms[&self.cpus];
        let name = vms.names.first().context("no VM")?;
        let read = |file: &str| -> Result<Vec<u8>> {
            let output = vms.exec(name).args(["cat", file]).output();
            Ok(output.context("cannot start scripts/testvm exec")?.stdout)
        };
        Seen::of(&read("/tmp/profile.json")?, &read("/tmp/record.json")?).with_context(|| what).map(Some)
    }

    fn time(&mut self, case: &Case, threads: usize, what: &str) -> Result<Option<Took>> {
        let taskset = if threads == 1 { "taskset 1 " } else { "" };
        let command = format!("{taskset}{}", self.command(case, threads));
        let run = self.run(self.cpus, &command, threads, &format!("{} {what}", case.name))?;
        Ok(run.map(|(_, took)| took))
    }

    fn condition(&mut self, case: &Case, condition: Condition) -> Result<Option<Took>> {
        let Condition::Vm { vcpus, cpus, period_ms } = condition else {
            bail!("{} is no condition of a VM", condition.name());
        };
        let (_, id) = self.vms.get(&vcpus).context("no such VM")?;
        let period_us = u64::from(period_ms) * 1000;
        let limit =
            Limit { quota_us: Some(period_us * u64::from(cpus) / u64::from(vcpus)), period_us, burst_us: 0 };
        for vcpu in 0..vcpus {
            let set = self.machine.set(id, Lever::VcpuQuota(vcpu), &Value::Limit(limit));
            set.map_err(|error| anyhow!("{error}"))?;
        }
        let threads = usize::try_from(vcpus)?;
        let command = self.command(case, threads);
        let what = format!("{} {}", case.name, condition.name());
        Ok(self.run(vcpus, &command, threads, &what)?.map(|(_, took)| took))
    }
}
