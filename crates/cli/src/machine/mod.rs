//! Machines by their names, as `--machine` takes them.

mod scenario;

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, anyhow, bail};
use corefit_core::decide::Policy;
use corefit_core::machine::{Act, Machine, MachineError, Role, VmState};
use corefit_linux::bytes::path;
use corefit_linux::host::{Cgroups, Choice};
use corefit_linux::{Root, libvirt};

use crate::recording::Replay;
use crate::text_file;
use scenario::Scenario;

/// A libvirt that begins is waited for so long.
const PATIENCE: Duration = Duration::from_secs(30);

/// Which machine a verb looks at.
#[derive(clap::Args)]
pub(crate) struct MachineArg {
    /// host: this host's VMs if libvirt has some, else its control groups; self: the control group of
    /// this process; libvirt, or libvirt:URI; cgroups: control groups as VMs, those of containers, else
    /// all at the top, or cgroups:/docker/*,/system.slice/web.service; replay:FILE, made by `corefit
    /// record`; scenario:FILE.toml, a host written down; sim:FILE.toml, a simulated host
    #[arg(long, value_name = "NAME", default_value = "host", value_parser = text_file::name())]
    machine: String,
}

impl MachineArg {
    /// Whether it is a recording.
    pub(crate) fn is_recording(&self) -> bool {
        self.machine.starts_with("replay:")
    }

    /// The time of day, with a colon behind, where what is seen happens now.
    pub(crate) fn clock(&self) -> Option<String> {
        if ["replay:", "sim:", "scenario:"].iter().any(|kind| self.machine.starts_with(kind)) {
            return None;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
        Some(format!("{:02}:{:02}:{:02} UTC: ", now / 3600 % 24, now / 60 % 60, now % 60))
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.machine
    }

    /// `host` as what it is for whoever stays: libvirt where it answers, for its VMs may come later; else control groups. One that begins
    /// takes its time.
    pub(crate) fn settled(self) -> MachineArg {
        self.settled_within(PATIENCE).unwrap_or_else(|why| {
            without_libvirt(&why.into(), "control groups are taken instead");
            MachineArg::named("cgroups")
        })
    }

    /// The same for whoever can try again: control groups only where libvirt is not installed, or does not
    /// answer and no QEMU runs.
    ///
    /// # Errors
    /// Why libvirt does not answer within a time, where QEMUs run, or what is wrong with it.
    pub(crate) fn settled_within(&self, patience: Duration) -> Result<MachineArg, MachineError> {
        if self.machine != "host" {
            return Ok(MachineArg::named(&self.machine));
        }
        match libvirt::open("", libvirt::Options { timeout: patience, guests: None }).observe() {
            Ok(_) => Ok(MachineArg::named("libvirt")),
            Err(MachineError::Gone(_)) if !runs_qemu(&Root::live()) => Ok(MachineArg::named("cgroups")),
            Err(why @ MachineError::Unsupported(_)) => {
                without_libvirt(&why.into(), "control groups are taken instead");
                Ok(MachineArg::named("cgroups"))
            }
            Err(why) => Err(why),
        }
    }

    /// Who decides about a simulated host by its scenario, and what of that is the first of a list; `None`: nobody, or it is no such
    /// host.
    ///
    /// # Errors
    /// If its scenario cannot be read, or is none.
    pub(crate) fn policy(&self) -> Result<Option<(Policy, Vec<String>)>> {
        let Some(file) = self.machine.strip_prefix("sim:").filter(|file| !file.is_empty()) else {
            return Ok(None);
        };
        let (scenario, lists) = first_point(&path(file))?;
        let lists = lists.iter().filter(|(key, _)| key.starts_with("policy."));
        let lists = lists.map(|(key, value)| format!("{key} = {value}")).collect();
        Ok(scenario.policy.map(|policy| (policy, lists)))
    }

    /// As if this name had been given.
    pub(crate) fn named(name: &str) -> MachineArg {
        MachineArg { machine: name.into() }
    }

    /// Opens it to change something. Where groups play VMs it is one without VMs, too: they come and go.
    ///
    /// # Errors
    /// As [`open`](MachineArg::open), and if nothing can be changed on such a machine.
    pub(crate) fn open_to_act(&self) -> Result<Box<dyn Act>> {
        self.can_act()?;
        let (kind, rest) = self.machine.split_once(':').unwrap_or((&self.machine, ""));
        match (kind, rest) {
            ("libvirt", uri) => Ok(libvirt::open(uri, libvirt::Options::default())),
            ("cgroups", patterns) => Ok(Box::new(Cgroups::open(Root::live(), patterns.parse()?)?.or_none())),
            ("sim", file) => simulated(file),
            _ => host(Cgroups::or_none),
        }
    }

    /// Whether something can be changed on a machine of such a name, as far as a name tells.
    ///
    /// # Errors
    /// If not; the text says which names there are.
    pub(crate) fn can_act(&self) -> Result<()> {
        self.names_what()?;
        let (kind, rest) = self.machine.split_once(':').unwrap_or((&self.machine, ""));
        match (kind, rest) {
            ("libvirt", _) => Ok(()),
            ("cgroups", patterns) => Ok(patterns.parse::<Choice>().map(drop)?),
            ("sim", file) if !file.is_empty() => Ok(()),
            _ if self.machine == "host" => Ok(()),
            _ => bail!(
                "--machine {}: nothing can be changed there; give host, libvirt, libvirt:URI, cgroups, cgroups:PATHS or sim:FILE",
                self.machine
            ),
        }
    }

    /// Whether there are machines of such a name, as far as a name tells.
    ///
    /// # Errors
    /// If not; the text says which there are.
    pub(crate) fn can_be(&self) -> Result<()> {
        self.names_what()?;
        let (kind, rest) = self.machine.split_once(':').unwrap_or((&self.machine, ""));
        match (kind, rest) {
            ("libvirt", _) => Ok(()),
            ("cgroups", patterns) => Ok(patterns.parse::<Choice>().map(drop)?),
            ("replay" | "sim" | "scenario", "") => {
                bail!("--machine {kind}: lacks its file; give {kind}:FILE, such as {}", example(kind))
            }
            ("replay" | "sim" | "scenario", _) | ("host" | "self", "") => Ok(()),
            _ => bail!(
                "no machine {:?}; there are host, self, libvirt, libvirt:URI, cgroups, cgroups:PATHS, replay:FILE, scenario:FILE and sim:FILE",
                self.machine
            ),
        }
    }

    /// Whether something stands behind the colon, if there is one.
    fn names_what(&self) -> Result<()> {
        match self.machine.as_str() {
            "libvirt:" => bail!(
                "--machine libvirt: lacks its URI; give one, such as libvirt:qemu:///system, or libvirt alone"
            ),
            "cgroups:" => bail!(
                "--machine cgroups: lacks its paths; give some, such as cgroups:/docker/*, or cgroups alone"
            ),
            _ => Ok(()),
        }
    }

    /// Opens it.
    ///
    /// # Errors
    /// If there is no such machine; the text says which there are, or what is wrong with the file.
    pub(crate) fn open(&self) -> Result<Box<dyn Machine>> {
        self.can_be()?;
        let (kind, rest) = self.machine.split_once(':').unwrap_or((&self.machine, ""));
        match kind {
            "self" => Ok(Box::new(Cgroups::open(Root::live(), Choice::Own)?)),
            "replay" => Ok(Box::new(Replay::open(&path(rest))?)),
            "scenario" => Ok(Box::new(Scenario::of(rest.into(), &text_of(&path(rest))?)?)),
            "cgroups" => Ok(Box::new(Cgroups::open(Root::live(), rest.parse()?)?)),
            "host" => Ok(host(|groups| groups)?),
            _ => Ok(self.open_to_act()?),
        }
    }
}

fn example(kind: &str) -> &'static str {
    match kind {
        "replay" => "replay:night.cfr, made by `corefit record night.cfr --for 60s`",
        "sim" => "sim:scenarios/lu-overcommitted.toml",
        _ => "scenario:scenarios/p2-figure10.toml",
    }
}

/// This host: its virtual machines if libvirt has some, else its control groups, made what whoever opens them needs.
fn host(groups: impl Fn(Cgroups) -> Cgroups) -> Result<Box<dyn Act>> {
    let mut machine = libvirt::open("", libvirt::Options::default());
    let is_vm = |vm: &VmState| vm.role == Role::Vm;
    match machine.observe() {
        Ok(first) if first.vms.iter().any(is_vm) => return Ok(machine),
        // An idle one: most machines are no hosts of VMs.
        Ok(_) => {}
        Err(why) => without_libvirt(&why.into(), "control groups are taken instead"),
    }
    Ok(Box::new(groups(Cgroups::open(Root::live(), Choice::Usual)?)))
}

/// Says what is taken for this host instead of libvirt's VMs, and why, unless nothing tells that it has any: most machines have
/// neither.
pub(crate) fn without_libvirt(why: &anyhow::Error, instead: &str) {
    if let Some(text) = untold(why, instead, &Root::live()) {
        tell!("corefit: {text}");
    }
}

fn untold(why: &anyhow::Error, instead: &str, root: &Root) -> Option<String> {
    let absent = matches!(why.downcast_ref(), Some(MachineError::Unsupported(_) | MachineError::Gone(_)));
    if !absent {
        return Some(format!("{why:#}; {instead}"));
    }
    if is_dom0(root) {
        return Some(format!("this is Xen's domain 0, and the others cannot be seen ({why}); {instead}"));
    }
    let insists = "--machine libvirt or libvirt:URI insists";
    runs_qemu(root)
        .then(|| format!("QEMUs run here, but libvirt does not answer ({why}); {instead}; {insists}"))
}

/// Whether this is the domain of Xen from which the others are controlled: its CPUs are virtual, and none of theirs.
fn is_dom0(root: &Root) -> bool {
    root.read("/proc/xen/capabilities").is_ok_and(|text| text.contains("control_d"))
}

/// Whether some process is a QEMU that emulates a machine, by its name, of which the kernel keeps 15 bytes.
fn runs_qemu(root: &Root) -> bool {
    let is_qemu = |pid: &String| {
        let name = root.read(&format!("/proc/{pid}/comm")).unwrap_or_default();
        name.starts_with("qemu-system-") || name.trim_end() == "qemu-kvm"
    };
    let is_pid = |name: &String| name.bytes().all(|byte| byte.is_ascii_digit());
    root.dirs("/proc").unwrap_or_default().iter().filter(|name| is_pid(name)).any(is_qemu)
}

/// The text of a scenario.
///
/// # Errors
/// If it cannot be read; the error says what to do.
pub(crate) fn text_of(file: &Path) -> Result<String> {
    text_file::of(file, "scenario", "scenarios/ of corefit's source has examples")
}

/// What to do with a text that is no scenario of `corefit sim`, but one of the model.
pub(crate) fn instead(text: &str, name: &str) -> Option<String> {
    let model = toml::from_str::<corefit_core::entitle::Host>(text).is_ok();
    model.then(|| {
        format!("{name}: is a host for the model, not for the simulator: corefit explain --machine scenario:{name}")
    })
}

/// The first point of a scenario of `corefit sim`, with the first value of each list.
fn first_point(file: &Path) -> Result<(corefit_sim::Scenario, Vec<corefit_sim::Set>)> {
    let name = file.display().to_string();
    let text = text_of(file)?;
    let place = |error: corefit_sim::ScenarioError| match instead(&text, &name) {
        Some(instead) => anyhow!("{instead}"),
        None => anyhow!("{name}, {error}"),
    };
    let points = corefit_sim::Scenario::points(&text, &[]).map_err(place)?;
    let first = points.into_iter().next().unwrap_or_default();
    Ok((corefit_sim::Scenario::parse(&text, &first).map_err(place)?, first))
}

/// A simulated host, by the text that names its file.
fn simulated(text: &str) -> Result<Box<dyn Act>> {
    let file = path(text);
    let (name, (scenario, lists)) = (file.display().to_string(), first_point(&file)?);
    // Whoever goes by its policy says this of that.
    let lists = lists.iter().filter(|(key, _)| !key.starts_with("policy."));
    let lists: Vec<String> = lists.map(|(key, value)| format!("{key} = {value}")).collect();
    if !lists.is_empty() {
        tell!(
            "corefit: {name} has lists, which are no single host: the first of each counts ({})",
            lists.join(", ")
        );
    }
    let sim = corefit_sim::Sim::new(&scenario.spec).map_err(|error| anyhow!("{name}: {error}"))?;
    Ok(Box::new(
        corefit_sim::SimMachine::new(sim, text, scenario.agent).counting_caches(scenario.cache_counters),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with this process.
    fn running(name: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (pid, name) in [("1", "systemd"), ("70", name)] {
            let process = dir.path().join("proc").join(pid);
            std::fs::create_dir_all(&process).unwrap();
            std::fs::write(process.join("comm"), format!("{name}\n")).unwrap();
        }
        std::fs::create_dir(dir.path().join("proc/sys")).unwrap();
        dir
    }

    #[test]
    fn the_domain_that_controls_those_of_xen_is_said_to_show_none_of_them_and_no_other_is() {
        let told = |capabilities: &str| {
            let dir = running("xenstored");
            std::fs::create_dir(dir.path().join("proc/xen")).unwrap();
            std::fs::write(dir.path().join("proc/xen/capabilities"), capabilities).unwrap();
            let why = MachineError::Unsupported("cannot observe Xen yet".into()).into();
            untold(&why, "control groups are taken instead", &Root::at(dir.path()))
        };
        let text = told("control_d\n").unwrap();
        assert!(text.contains("domain 0") && text.contains("cannot observe Xen yet"), "{text}");
        assert_eq!(told(""), None, "a guest of Xen's is a machine as others");
    }

    #[test]
    fn that_libvirt_does_not_answer_is_told_where_qemus_run_and_other_errors_everywhere() {
        let told = |name: &str, why: anyhow::Error| {
            untold(&why, "nothing is drawn", &Root::at(running(name).path()))
        };
        let gone = || MachineError::Gone("no socket".into()).into();
        assert_eq!(told("bash", gone()), None);
        let text = told("qemu-kvm", gone()).unwrap();
        assert!(
            text.starts_with("QEMUs run here, but libvirt does not answer (no socket); nothing is drawn")
        );
        assert_eq!(told("bash", anyhow!("odd").context("a")).unwrap(), "a: odd; nothing is drawn");
        assert!(told("bash", MachineError::Denied("no".into()).into()).is_some());
    }

    #[test]
    fn a_qemu_is_known_by_its_name_and_nothing_else_is() {
        let runs = |name: &str| runs_qemu(&Root::at(running(name).path()));
        assert!(runs("qemu-system-x86") && runs("qemu-kvm"));
        assert!(!runs("qemu-ga") && !runs("qemu-img") && !runs("bash"));
    }
}
