//! Machines by their names, as `--machine` takes them.

mod scenario;

use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};
use corefit_core::machine::{Machine, MachineError, Role, VmState};
use corefit_linux::host::{Cgroups, Choice};
use corefit_linux::{Root, libvirt};

use crate::recording::Replay;
use scenario::Scenario;

/// Which machine a verb looks at.
#[derive(clap::Args)]
pub(crate) struct MachineArg {
    /// host: this host's VMs if libvirt has some, else its control groups; self: the control group of
    /// this process; libvirt, or libvirt:URI; cgroups: control groups as VMs, those of containers, else
    /// all at the top, or cgroups:/docker/*,/system.slice/web.service; replay:FILE, made by `corefit
    /// record`; scenario:FILE.toml, a host written down; sim:FILE.toml, a simulated host
    #[arg(long, value_name = "NAME", default_value = "host")]
    machine: String,
}

impl MachineArg {
    /// As if this name had been given.
    pub(crate) fn named(name: &str) -> MachineArg {
        MachineArg { machine: name.into() }
    }

    /// Opens it.
    ///
    /// # Errors
    /// If there is no such machine; the text says which there are, or what is wrong with the file.
    pub(crate) fn open(&self) -> Result<Box<dyn Machine>> {
        let (kind, rest) = self.machine.split_once(':').unwrap_or((&self.machine, ""));
        let groups =
            |choice| -> Result<Box<dyn Machine>> { Ok(Box::new(Cgroups::open(Root::live(), choice)?)) };
        match (kind, rest) {
            ("self", "") => groups(Choice::Own),
            ("host", "") => host(),
            ("libvirt", uri) => Ok(libvirt::open(uri, libvirt::Options::default())),
            ("cgroups", patterns) => groups(patterns.parse()?),
            ("replay", file) if !file.is_empty() => Ok(Box::new(Replay::open(Path::new(file))?)),
            ("sim", file) if !file.is_empty() => simulated(Path::new(file)),
            ("scenario", file) if !file.is_empty() => Ok(Box::new(Scenario::open(Path::new(file))?)),
            _ => bail!(
                "no machine {:?}; there are host, self, libvirt, libvirt:URI, cgroups, cgroups:PATHS, replay:FILE, scenario:FILE and sim:FILE",
                self.machine
            ),
        }
    }
}

/// This host: its virtual machines if libvirt has some, else its control groups.
fn host() -> Result<Box<dyn Machine>> {
    let mut machine = libvirt::open("", libvirt::Options::default());
    let is_vm = |vm: &VmState| vm.role == Role::Vm;
    match machine.observe() {
        Ok(snapshot) if snapshot.vms.iter().any(is_vm) => return Ok(machine),
        // No libvirt, no libvirtd, or an idle one: most machines are no hosts of VMs.
        Ok(_) | Err(MachineError::Unsupported(_) | MachineError::Gone(_)) => {}
        Err(why) => tell!("corefit: {why}; control groups are shown instead"),
    }
    Ok(Box::new(Cgroups::open(Root::live(), Choice::Usual)?))
}

/// A simulated host: the first point of a scenario of `corefit sim`.
fn simulated(file: &Path) -> Result<Box<dyn Machine>> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).with_context(|| format!("{name}: cannot be read"))?;
    let place = |error: corefit_sim::ScenarioError| anyhow!("{name}, {error}");
    let first = corefit_sim::Scenario::points(&text, &[]).map_err(place)?;
    let scenario =
        corefit_sim::Scenario::parse(&text, first.first().map_or(&[], Vec::as_slice)).map_err(place)?;
    let sim = corefit_sim::Sim::new(&scenario.spec).map_err(|error| anyhow!("{name}: {error}"))?;
    Ok(Box::new(corefit_sim::SimMachine::new(sim, &name, scenario.agent)))
}
