//! The QEMUs of this machine: what their threads did, and what control groups and affinities hold
//! them.
//!
//! libvirt puts each vCPU, each iothread and all other threads into groups of their own, below one
//! for the VM: `NAME/{vcpu0,iothread1,emulator}`, on v2 `NAME/libvirt/{…}`. Threads are told by the
//! names that QEMU gives them: `CPU 3/KVM` (or `/TCG`), `IO iothread1`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};

use corefit_core::machine::{Counters, Helper, VcpuState, VmId, VmState};
use corefit_core::{CpuId, CpuSet, Time, Unread, What};
use rustix::process::Pid;
use rustix::thread::sched_getaffinity;

use super::session::{Key, Seen};
use crate::host::HostReader;

/// Settings and lists of threads are read anew after so long, ns, even where nothing was said to have
/// changed: the groups of single vCPUs can be written by anybody. That costs a millisecond for a VM of 10 vCPUs.
const REFRESH_NS: u64 = 60_000_000_000;
/// Of so many VMs, settings of one are read anew in a look because they are old.
const OLD_SHARE: usize = 32;
/// For so many threads a look finds out where they ran last: it costs ten times as much as what they did.
const LOOKED_UP: usize = 64;

/// All QEMUs of this machine that are VMs.
#[derive(Default)]
pub(super) struct Local {
    qemus: BTreeMap<Key, Qemu>,
    looked_up: usize,
}

/// The process of one VM.
#[derive(Default)]
struct Qemu {
    pid: u32,
    version: u64,
    read_at: Time,
    /// Links of its directory of threads: changes with their number.
    links: u64,
    group: Option<String>,
    /// The group that holds those of its vCPUs.
    base: Option<String>,
    vcpus: BTreeMap<u32, Thread>,
    iothreads: BTreeMap<u32, Thread>,
    others: Vec<Thread>,
    /// What the others did since the first look, ended ones included.
    emulator: Counters,
    settings: BTreeMap<String, Held>,
    unread: Vec<Unread>,
}

/// What holds a thread.
#[derive(Clone, Debug, Default)]
struct Held {
    weight: Option<corefit_core::Weight>,
    quota: Option<corefit_core::Quota>,
    affinity: Option<CpuSet>,
}

struct Thread {
    tid: u32,
    path: String,
    /// Kept open where the process's limit allows it.
    file: Option<File>,
    done: Option<(u64, u64)>,
    ran: bool,
    on: Option<CpuId>,
}

impl Local {
    /// Reads what is old or changed of the processes of these VMs; hands back the path of each VM's
    /// control group, in their order.
    pub(super) fn refresh(&mut self, host: &HostReader, seen: &[Seen], now: Time) -> Vec<Option<String>> {
        self.qemus.retain(|key, _| seen.iter().any(|seen| seen.key == *key));
        let mut old = seen.len().div_ceil(OLD_SHARE);
        let mut group = |seen: &Seen| {
            let pid = seen.pid?;
            let qemu = self.qemus.entry(seen.key.clone()).or_default();
            let links = links(pid);
            let aged = now.0.saturating_sub(qemu.read_at.0) > REFRESH_NS && old > 0;
            if qemu.pid != pid || qemu.version != seen.version || qemu.links != links || aged {
                old -= usize::from(aged);
                qemu.pid = pid;
                qemu.version = seen.version;
                qemu.links = links;
                qemu.read_at = now;
                qemu.threads();
                qemu.settle(host);
            }
            qemu.group.clone()
        };
        seen.iter().map(&mut group).collect()
    }

    /// Puts what a VM's threads did, and what holds them, into its state. What is missing goes to
    /// `unread`. `false` if its process has ended.
    pub(super) fn fill(
        &mut self,
        key: &Key,
        vm: &mut VmState,
        pcpus: &CpuSet,
        unread: &mut Vec<Unread>,
    ) -> bool {
        let path = format!("VM {:?}", vm.name);
        let lacks = |why: &str| Unread { what: What::Threads, path: path.clone(), why: why.into() };
        let Some(qemu) = self.qemus.get_mut(key) else {
            unread.push(lacks("no process with its UUID on this machine (or it may not be seen)"));
            return true;
        };
        let mut left = LOOKED_UP.saturating_sub(self.looked_up);
        let mut alive = false;
        let mut missing = 0;
        for (number, vcpu) in (0..).zip(&mut vm.vcpus) {
            match qemu.vcpus.get_mut(&number) {
                Some(thread) => {
                    let (counters, _) = thread.read();
                    alive |= counters.run_ns.is_some();
                    vcpu.counters = counters;
                    missing += usize::from(vcpu.online && counters.run_ns.is_none());
                    vcpu.on = thread.place(vcpu.affinity.as_ref(), &mut left);
                }
                None => missing += usize::from(vcpu.online),
            }
            hold(qemu.settings.get(&format!("vcpu{number}")), pcpus, vcpu);
        }
        for helper in &mut vm.helpers {
            let number = helper.name.strip_prefix("iothread ").and_then(|n| n.parse::<u32>().ok());
            let group = match number {
                Some(number) => {
                    if let Some(thread) = qemu.iothreads.get_mut(&number) {
                        helper.counters = thread.read().0;
                    }
                    format!("iothread{number}")
                }
                None => {
                    helper.counters = qemu.emulate();
                    "emulator".into()
                }
            };
            hold_helper(qemu.settings.get(&group), pcpus, helper);
        }
        self.looked_up = LOOKED_UP - left;
        unread.extend(qemu.unread.iter().cloned());
        if missing > 0 && (alive || links(qemu.pid) > 0) {
            unread.push(lacks(
                "some of its vCPUs have no thread named \"CPU N/KVM\" or \"CPU N/TCG\" to be measured",
            ));
        }
        alive || links(qemu.pid) > 0
    }

    /// The control group of a vCPU of a VM.
    pub(super) fn vcpu_group(&self, vm: &VmId, vcpu: u32) -> Option<String> {
        let (uuid, id) = vm.0.rsplit_once('#')?;
        let qemu = self.qemus.get(&(uuid.to_owned(), id.parse().ok()?))?;
        Some(format!("{}/vcpu{vcpu}", qemu.base.as_deref()?))
    }

    /// What holds a VM's threads was changed: it is read anew at the next look. Hands back its control group.
    pub(super) fn changed(&mut self, vm: &VmId) -> Option<String> {
        let (uuid, id) = vm.0.rsplit_once('#')?;
        let qemu = self.qemus.get_mut(&(uuid.to_owned(), id.parse().ok()?))?;
        qemu.version = 0; // none that there is
        qemu.group.clone()
    }

    /// Begins a new look.
    pub(super) fn next(&mut self) {
        self.looked_up = 0;
    }
}

impl Qemu {
    /// Lists its threads; those that are known go on.
    fn threads(&mut self) {
        let mut known: BTreeMap<u32, Thread> = std::mem::take(&mut self.vcpus)
            .into_values()
            .chain(std::mem::take(&mut self.iothreads).into_values())
            .chain(std::mem::take(&mut self.others))
            .map(|thread| (thread.tid, thread))
            .collect();
        let dir = format!("/proc/{}/task", self.pid);
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let Some(tid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let Ok(name) = fs::read_to_string(format!("{dir}/{tid}/comm")) else { continue };
            let thread = known.remove(&tid).unwrap_or_else(|| Thread::new(self.pid, tid));
            match role(name.trim_end()) {
                Part::Vcpu(number) => drop(self.vcpus.insert(number, thread)),
                Part::Iothread(number) => drop(self.iothreads.insert(number, thread)),
                Part::Emulator => self.others.push(thread),
            }
        }
    }

    /// Reads what holds its threads.
    fn settle(&mut self, host: &HostReader) {
        self.settings.clear();
        self.unread.clear();
        let own = host.group_of(self.pid).filter(|path| path.ends_with("/emulator"));
        let base = own.as_deref().and_then(|path| path.strip_suffix("/emulator"));
        self.base = base.map(Into::into);
        self.group = base.map(|base| base.strip_suffix("/libvirt").unwrap_or(base).to_owned());
        let vcpus = self.vcpus.iter().map(|(number, t)| (format!("vcpu{number}"), t.tid));
        let iothreads = self.iothreads.iter().map(|(number, t)| (format!("iothread{number}"), t.tid));
        for (name, tid) in vcpus.chain(iothreads).chain([("emulator".to_owned(), self.pid)]) {
            let mut held = Held { affinity: affinity(tid), ..Held::default() };
            if let Some(base) = base {
                let (settings, errors) = host.settings(&format!("{base}/{name}"));
                (held.weight, held.quota) = (settings.weight, settings.quota);
                let unread = |(what, error): (What, crate::ReadError)| Unread {
                    what,
                    path: error.path().into(),
                    why: error.why(),
                };
                self.unread.extend(errors.into_iter().map(unread));
            }
            self.settings.insert(name, held);
        }
    }

    /// What the threads did that are neither vCPUs nor iothreads.
    fn emulate(&mut self) -> Counters {
        let (mut run, mut wait) = (self.emulator.run_ns.unwrap_or(0), self.emulator.wait_ns.unwrap_or(0));
        for thread in &mut self.others {
            let (_, (more_run, more_wait)) = thread.read();
            run += more_run;
            wait += more_wait;
        }
        self.emulator = Counters { run_ns: Some(run), wait_ns: Some(wait) };
        self.emulator
    }
}

impl Thread {
    fn new(pid: u32, tid: u32) -> Thread {
        let path = format!("/proc/{pid}/task/{tid}/schedstat");
        Thread { tid, file: File::open(&path).ok(), path, done: None, ran: false, on: None }
    }

    /// What it did so far, and since it was read before, ns.
    fn read(&mut self) -> (Counters, (u64, u64)) {
        let mut buffer = [0; 64];
        let length = match &self.file {
            Some(file) => file.read_at(&mut buffer, 0),
            None => File::open(&self.path).and_then(|file| file.read_at(&mut buffer, 0)),
        };
        let text = length.ok().and_then(|length| std::str::from_utf8(&buffer[..length]).ok());
        let mut words = text.unwrap_or("").split(' ').map(|word| word.parse::<u64>().ok());
        let (Some(Some(run)), Some(Some(wait))) = (words.next(), words.next()) else {
            return (Counters::default(), (0, 0));
        };
        let (before_run, before_wait) = self.done.unwrap_or((run, wait));
        let more = (run.saturating_sub(before_run), wait.saturating_sub(before_wait));
        self.ran = self.done.is_none() || more.0 > 0;
        self.done = Some((run, wait));
        (Counters { run_ns: Some(run), wait_ns: Some(wait) }, more)
    }

    /// Where it ran last. Looks, as long as `left` allows it, only if it ran since and may run at more
    /// than one place.
    fn place(&mut self, affinity: Option<&CpuSet>, left: &mut usize) -> Option<CpuId> {
        match affinity.filter(|set| set.len() == 1) {
            Some(only) => self.on = only.iter().next(),
            None if self.ran && *left > 0 => {
                *left -= 1;
                let stat = fs::read_to_string(self.path.replace("schedstat", "stat")).ok();
                self.on = stat.and_then(|text| last_cpu(&text));
            }
            None => {}
        }
        self.on
    }
}

fn hold(held: Option<&Held>, pcpus: &CpuSet, vcpu: &mut VcpuState) {
    let Some(held) = held else { return };
    vcpu.weight = held.weight;
    vcpu.quota = held.quota.clone().or(vcpu.quota.take());
    vcpu.affinity = held.affinity.as_ref().map(|set| set.intersection(pcpus)).or(vcpu.affinity.take());
}

fn hold_helper(held: Option<&Held>, pcpus: &CpuSet, helper: &mut Helper) {
    let Some(held) = held else { return };
    helper.weight = held.weight;
    helper.quota = held.quota.clone().or(helper.quota.take());
    helper.affinity = held.affinity.as_ref().map(|set| set.intersection(pcpus)).or(helper.affinity.take());
}

/// How many directories are in a process's directory of threads, and two; 0 if it has ended.
fn links(pid: u32) -> u64 {
    fs::metadata(format!("/proc/{pid}/task")).map_or(0, |meta| meta.nlink())
}

fn affinity(tid: u32) -> Option<CpuSet> {
    let pid = Pid::from_raw(i32::try_from(tid).ok()?)?;
    let set = sched_getaffinity(Some(pid)).ok()?;
    let most = rustix::thread::CpuSet::MAX_CPU;
    let cpus = (0..most).filter(|cpu| set.is_set(*cpu)).filter_map(|cpu| u32::try_from(cpu).ok());
    Some(cpus.map(CpuId).collect())
}

/// Field 39 of `/proc/PID/stat`, proc(5); the second, in parentheses, may hold anything.
fn last_cpu(stat: &str) -> Option<CpuId> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(39 - 3)?.parse().ok().map(CpuId)
}

/// What a thread of QEMU is.
#[derive(Debug, PartialEq)]
enum Part {
    Vcpu(u32),
    Iothread(u32),
    Emulator,
}

fn role(name: &str) -> Part {
    let vcpu = || name.strip_prefix("CPU ")?.split_once('/')?.0.parse().ok();
    let iothread = || name.strip_prefix("IO iothread")?.parse().ok();
    match (vcpu(), iothread()) {
        (Some(number), _) => Part::Vcpu(number),
        (_, Some(number)) => Part::Iothread(number),
        _ => Part::Emulator,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_told_by_the_names_that_qemu_gives_them() {
        for (name, part) in [
            ("CPU 12/KVM", Part::Vcpu(12)),
            ("CPU 0/TCG", Part::Vcpu(0)),
            ("IO iothread3", Part::Iothread(3)),
            ("IO mon_iothread", Part::Emulator),
            ("ALL CPUs/TCG", Part::Emulator),
            ("qemu-system-x86", Part::Emulator),
        ] {
            assert_eq!(role(name), part, "{name}");
        }
    }

    #[test]
    fn a_thread_tells_what_it_did_since_it_was_read_before_and_where() {
        let me = std::process::id();
        let mut thread = Thread::new(me, me);
        let (first, more) = thread.read();
        assert!(first.run_ns.is_some() && first.wait_ns.is_some());
        assert_eq!(more, (0, 0), "what it did before it was seen first does not count");
        assert!(thread.read().0.run_ns >= first.run_ns);
        thread.ran = true;
        let mut left = 1;
        assert!(thread.place(None, &mut left).is_some());
        assert_eq!(left, 0);
        assert_eq!(thread.place("5".parse().ok().as_ref(), &mut left), Some(CpuId(5)));
    }

    #[test]
    fn a_thread_that_ended_has_no_counters() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mut thread = Thread::new(child.id(), child.id());
        assert!(thread.read().0.run_ns.is_some());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(thread.read(), (Counters::default(), (0, 0)));
        assert_eq!(links(child.id()), 0);
    }
}
