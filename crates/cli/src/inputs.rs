//! A host and its VMs, from files, from a live machine, or from both.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use corefit_core::CpuSet;
use corefit_core::check::{Place, Set, Subject, Vm};
use corefit_core::decide::Policy;
use corefit_core::machine::{HostEstimate, Snapshot, estimate};
use corefit_core::topology::Topology;
use corefit_linux::bytes::path;
use corefit_linux::formats::{self, Format, MAX_BYTES};
use corefit_linux::{Root, libvirt, topology};

use crate::machine::{MachineArg, without_libvirt};

/// How long a machine without configuration is watched, to know who is busy.
const WATCH: Duration = Duration::from_millis(500);
/// A longer name than any host takes.
const LONGEST: usize = 1_000;
/// More VMs than any host has.
const MAX_VMS: usize = 10_000;
/// How long libvirtd may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// What was found.
#[derive(Default)]
pub(crate) struct Inputs {
    /// The host and its VMs.
    pub(crate) subject: Subject,
    /// Where the host's shape is from.
    pub(crate) host: String,
    /// What readers should know.
    pub(crate) notes: Vec<String>,
    /// Whether anything was given that tells of VMs, none included.
    pub(crate) of_vms: bool,
    /// Xen's VMs that are known to run, though what is said is for their configurations.
    pub(crate) listed: Vec<String>,
}

impl Inputs {
    /// That lines for the configurations of these VMs do not reach those that run; `None` if they run not.
    pub(crate) fn at_next_start<'a>(&self, vms: impl IntoIterator<Item = &'a str>) -> Option<String> {
        let listed = |name: &&str| self.listed.iter().any(|known| known == name);
        let names: BTreeSet<&str> = vms.into_iter().filter(listed).collect();
        let names: Vec<&str> = names.into_iter().collect();
        let run = if names.len() == 1 { "runs" } else { "run" };
        (!names.is_empty()).then(|| {
            format!(
                "{} {run}: lines of a configuration count at the next start; xl's list without the configuration gives commands for \
                 what runs.",
                names.join(", ")
            )
        })
    }
}

struct Document {
    name: String,
    text: String,
    format: Format,
}

/// Reads files and, if one is named or there are none, a machine.
///
/// # Errors
/// One line that names the file, the line and the remedy.
pub(crate) fn gather(files: &[String], machine: Option<&str>) -> Result<Inputs> {
    let (trees, files): (Vec<&String>, Vec<&String>) = files.iter().partition(|file| is_tree(file));
    let documents: Vec<Document> = files.into_iter().map(|file| open(file)).collect::<Result<_>>()?;
    let mut inputs = match machine {
        Some(machine) => live(machine)?,
        None if documents.is_empty() && trees.is_empty() => live("host")?,
        None => {
            let of_vms = documents.iter().any(|document| !document.format.is_host());
            Inputs { of_vms, ..Inputs::default() }
        }
    };
    host(&documents, &trees, &mut inputs)?;
    // Those of a live machine are definitions in force.
    let live = std::mem::take(&mut inputs.subject.vms);
    let mut vms: Vec<(Vm, Format)> = live.into_iter().map(|vm| (vm, Format::Domain)).collect();
    for document in documents.iter().filter(|document| !document.format.is_host()) {
        let found = document
            .format
            .vms(&document.text, &document.name, inputs.subject.topology.as_ref())
            .map_err(|error| anyhow!("{}: {error}", document.name))?;
        if let Some(shared) = found.shared {
            inputs.subject.shared = Some(shared);
        }
        for vm in found.vms {
            if let Some(more) = vm.name.chars().count().checked_sub(LONGEST).filter(|more| *more > 0) {
                let begin = vm.name.chars().take(30).collect::<String>();
                bail!(
                    "{}: a VM's name has {more} characters more than the {LONGEST} that are enough for any host: {begin}...",
                    document.name
                );
            }
            add(&mut vms, vm, document.format, &mut inputs.listed)?;
            if vms.len() > MAX_VMS {
                bail!("{}: more than {MAX_VMS} VMs; check one host at a time", document.name);
            }
        }
    }
    let of_memory = documents.iter().find(|document| document.format == Format::KubeletMemory);
    if let Some(memory) = of_memory.filter(|_| !documents.iter().any(|other| other.format == Format::Kubelet))
    {
        bail!(
            "{}: tells the memory of containers; give cpu_manager_state, which is beside it, as well",
            memory.name
        );
    }
    // Containers with memory of their own on pCPUs that all share.
    vms.retain(|(vm, format)| *format != Format::KubeletMemory || !vm.vcpus.is_empty());
    inputs.subject.vms = vms.into_iter().map(|(vm, _)| vm).collect();
    Ok(inputs)
}

/// This machine, with the VMs of libvirt if there are some, even if it has neither VMs nor control groups.
///
/// # Errors
/// If it cannot be read.
pub(crate) fn this_machine() -> Result<Inputs> {
    match documents("") {
        Ok(Some(inputs)) => return Ok(measured("libvirt", inputs)),
        Ok(None) => {}
        Err(why) => without_libvirt(&why, "this host is taken to have no VMs"),
    }
    let topology = topology::read(&Root::live()).context("the shape of this machine")?;
    let subject = Subject { topology: Some(topology), ..Subject::default() };
    Ok(Inputs { subject, host: "this machine".into(), ..Inputs::default() })
}

/// Whether a directory holds a copy of a machine's `/sys`.
fn is_tree(name: &str) -> bool {
    path(name).join("sys/devices/system/cpu").is_dir()
}

/// A file, or what it would hold.
fn open(name: &str) -> Result<Document> {
    let document = |text: String| -> Result<Document> {
        let format = formats::detect(&text).map_err(|error| anyhow!("{name}: {error}"))?;
        Ok(Document { name: name.into(), text, format })
    };
    if name == "-" {
        return document(read(name, std::io::stdin())?);
    }
    let file = match File::open(path(name)) {
        Ok(file) => file,
        // "2 sockets x 8 cores" is a machine; a file of that name would have come first.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && is_line(name) => {
            return document(name.into());
        }
        Err(error) => return Err(error).with_context(|| format!("{name}: cannot be read")),
    };
    let meta = file.metadata().with_context(|| format!("{name}: cannot be read"))?;
    if meta.is_dir() {
        bail!("{name}: is a directory; give files, as in {name}/*, or a copy of a host's /sys in {name}/sys");
    }
    document(read(name, file)?)
}

/// Whether an argument is a machine in words, right or wrong, and not the name of a file that is missing, as "my vm.xml".
fn is_line(name: &str) -> bool {
    let ends = name.rsplit_once('.').map_or("", |(_, end)| end);
    let is_file = name.contains('/') || ends.starts_with(|c: char| c.is_ascii_alphabetic());
    name.contains(' ') && !is_file && formats::detect(name) == Ok(Format::Synthetic)
}

/// All of it, as a text.
fn read(name: &str, from: impl Read) -> Result<String> {
    let mut bytes = Vec::new();
    from.take(MAX_BYTES + 1).read_to_end(&mut bytes).with_context(|| format!("{name}: cannot be read"))?;
    if bytes.len() as u64 > MAX_BYTES {
        bail!("{name}: larger than {} MiB; no description of a host or VM is", MAX_BYTES >> 20);
    }
    formats::decode(bytes).map_err(|error| anyhow!("{name}: {error}"))
}

/// The host of the files; without any, of the machine, else this one.
fn host(documents: &[Document], trees: &[&String], inputs: &mut Inputs) -> Result<()> {
    let texts = documents.iter().filter(|document| document.format.is_host());
    let names: Vec<&String> = trees.iter().copied().chain(texts.clone().map(|text| &text.name)).collect();
    if let [first, second, ..] = names[..] {
        bail!("{first} and {second} both describe a host; give one of them");
    }
    let found = match (texts.clone().next(), trees) {
        (Some(text), _) => {
            text.format.topology(&text.text).map_err(|error| anyhow!("{}: {error}", text.name))?
        }
        (None, [tree, ..]) => topology::read(&Root::at(&path(tree))).with_context(|| (*tree).clone())?,
        (None, []) if inputs.subject.topology.is_some() => return Ok(()),
        (None, []) => {
            let text = "no file describes the host (virsh capabilities, lstopo x.xml, xl info -n): this machine is taken for it";
            inputs.notes.push(text.into());
            topology::read(&Root::live()).context("the shape of this machine")?
        }
    };
    inputs.subject.topology = Some(found);
    inputs.host = names.first().map_or_else(|| "this machine".into(), |name| (*name).clone());
    Ok(())
}

/// Adds a VM; what `xl vcpu-list` says of one is joined with its configuration, and holds; what kubelet's two states say
/// of a container is one.
fn add(known: &mut Vec<(Vm, Format)>, vm: Vm, format: Format, listed: &mut Vec<String>) -> Result<()> {
    let same = |(other, _): &&mut (Vm, Format)| other.name == vm.name && other.manager == vm.manager;
    match known.iter_mut().find(same) {
        None => known.push((vm, format)),
        Some((config, Format::XlConfig)) if format == Format::XlList => {
            listed.push(vm.name);
            config.vcpus = vm.vcpus;
        }
        Some((list, from @ Format::XlList)) if format == Format::XlConfig => {
            listed.push(vm.name.clone());
            let vcpus = std::mem::take(&mut list.vcpus);
            (*list, *from) = (Vm { vcpus, ..vm }, format);
        }
        Some((cpus, from @ Format::Kubelet)) if format == Format::KubeletMemory => {
            (cpus.memory, *from) = (vm.memory, format);
        }
        Some((memory, from @ Format::KubeletMemory))
            if format == Format::Kubelet && memory.vcpus.is_empty() =>
        {
            let memory_of = memory.memory.take();
            (*memory, *from) = (Vm { memory: memory_of, ..vm }, Format::KubeletMemory);
        }
        Some((other, _)) => {
            bail!("VM {} is in {} and in {}; give one of them", vm.name, other.place, vm.place)
        }
    }
    Ok(())
}

/// A machine of `--machine`.
fn live(machine: &str) -> Result<Inputs> {
    match defined(machine)? {
        Some(inputs) => Ok(measured(machine, inputs)),
        None if kind(machine) == "libvirt" => bail!("{machine}: no running VM"),
        None => snapshot(machine),
    }
}

/// A machine's VMs with what they were seen to do.
fn measured(machine: &str, mut inputs: Inputs) -> Inputs {
    match looked(machine) {
        Ok((_, _, host)) => measure(&mut inputs.subject, &host),
        Err(error) => inputs.notes.push(format!("what VMs do is not known: {error:#}")),
    }
    inputs
}

/// The running VMs of a machine whose definitions can be read; `None` if it shows itself otherwise.
fn defined(machine: &str) -> Result<Option<Inputs>> {
    match kind(machine) {
        "libvirt" => documents(machine.split_once(':').map_or("", |(_, uri)| uri)),
        // Most machines are no hosts of VMs.
        "host" => Ok(documents("").unwrap_or(None)),
        _ => Ok(None),
    }
}

/// What a machine's name begins with.
fn kind(machine: &str) -> &str {
    machine.split(':').next().unwrap_or(machine)
}

/// The running VMs of a libvirtd, with their live definitions; `None` if it has none.
fn documents(uri: &str) -> Result<Option<Inputs>> {
    let found = libvirt::documents(uri, PATIENCE)?;
    if found.domains.is_empty() {
        return Ok(None);
    }
    let connect = if uri.is_empty() { String::new() } else { format!(" -c {uri}") };
    let (topology, host) = if found.local {
        (topology::read(&Root::live())?, "this machine".to_owned())
    } else {
        let name = format!("virsh{connect} capabilities");
        let read = Format::Capabilities.topology(&found.capabilities);
        (read.map_err(|error| anyhow!("{name}: {error}"))?, name)
    };
    let mut subject = Subject::default();
    for (name, xml) in &found.domains {
        let file = format!("virsh{connect} dumpxml {name}");
        let vms =
            Format::Domain.vms(xml, &file, Some(&topology)).map_err(|error| anyhow!("{file}: {error}"))?;
        let connect = (!uri.is_empty()).then(|| uri.to_owned());
        subject.vms.extend(vms.vms.into_iter().map(|vm| Vm {
            connect: connect.clone(),
            running: true,
            ..vm
        }));
    }
    subject.topology = Some(topology);
    Ok(Some(Inputs { subject, host, notes: found.unread, of_vms: true, ..Inputs::default() }))
}

/// Adds what VMs were seen to do to what is defined for them.
fn measure(subject: &mut Subject, host: &HostEstimate) {
    for vm in &mut subject.vms {
        if let Some(seen) = host.vms.iter().find(|seen| seen.seen.name == vm.name) {
            vm.measure(seen);
        }
    }
}

/// Any other machine, as it shows itself.
fn snapshot(name: &str) -> Result<Inputs> {
    let (file, after, host) = looked(name)?;
    // It was recorded elsewhere: what can be looked into is the file.
    let file = name.strip_prefix("replay:").map_or(file, str::to_owned);
    let subject = shown(name, &file, &after, &host)?;
    Ok(Inputs { subject, host: file, notes: after.notes, of_vms: true, ..Inputs::default() })
}

/// Watches a machine for a moment: its name, what it showed then, and what happened.
fn looked(name: &str) -> Result<(String, Snapshot, HostEstimate)> {
    let mut machine = MachineArg::named(name).open()?;
    let before = machine.observe()?;
    machine.pass(WATCH)?;
    let after = machine.observe()?;
    let at = if after.at > before.at { after.at } else { before.at + WATCH };
    let after = Snapshot { at, ..after };
    let host = estimate(&before, &after).with_context(|| machine.name())?;
    Ok((machine.name(), after, host))
}

/// What a machine shows in a snapshot.
fn shown(name: &str, file: &str, seen: &Snapshot, host: &HostEstimate) -> Result<Subject> {
    let here = matches!(kind(name), "host" | "self" | "cgroups");
    let topology = if here { topology::read(&Root::live())? } else { Topology::of_snapshot(seen) };
    Ok(Subject::of_snapshot(seen, host, topology, file))
}

/// What `corefit check --machine` of this name looks at, where others have watched already.
///
/// # Errors
/// If its shape or its VMs' definitions cannot be read.
pub(crate) fn watched(name: &str, file: &str, seen: &Snapshot, host: &HostEstimate) -> Result<Subject> {
    let Some(Inputs { mut subject, .. }) = defined(name)? else { return shown(name, file, seen, host) };
    measure(&mut subject, host);
    Ok(subject)
}

/// `--reserved LIST`.
///
/// # Errors
/// If the host has no such pCPUs, or nothing else.
pub(crate) fn reserved(list: &CpuSet, inputs: &Inputs) -> Result<Set<CpuSet>> {
    if let Some(topology) = &inputs.subject.topology {
        let policy = Policy { reserved: list.clone(), ..Policy::default() };
        let fits = policy.fits(&topology.pcpus, &topology.offline);
        fits.map_err(|error| anyhow!("--reserved: {}", error.what))?;
    }
    let place = Place { file: "--reserved".into(), ..Place::default() };
    Ok(Set { value: list.clone(), place })
}
