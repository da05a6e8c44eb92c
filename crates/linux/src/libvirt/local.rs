//! The QEMUs of this machine: what their threads did, and what control groups and affinities hold
//! them.
//!
//! libvirt puts each vCPU, each iothread and all other threads into groups of their own, below one
//! for the VM: `NAME/{vcpu0,iothread1,emulator}`, on v2 `NAME/libvirt/{…}`. Threads are told by the
//! names that QEMU gives them: `CPU 3/KVM` (or `/TCG`), `IO iothread1`.
//!
//! **What rests is not read.** A thread that did not run between two readings is left alone as long as what the
//! VM's group used is what the other threads used, to 0.1 ms in all since everything was read: waiting is counted
//! when a thread runs again, so its counters are still what they were. (Example: of a VM with 16 threads that idles
//! but for its main loop, a look reads the group's counter and one thread.) Where the group has no counter, all are read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

use corefit_core::machine::{CacheUse, Counters, Helper, VcpuState, VmId, VmState};
use corefit_core::{CpuSet, Quota, Time, Unread, What};

use super::process;
use super::session::{self, Key, Seen};
use super::thread::{self, Part, Places, Thread};
use crate::cgroup::files;
use crate::cgroup::mounts::Version;
use crate::host::{HostReader, Monitors};
use crate::root::Root;
use crate::sample;

/// Settings and lists of threads are read anew after so long, ns, even where nothing was said to have
/// changed: the groups of single vCPUs can be written by anybody. That costs a millisecond for a VM of 10 vCPUs.
const REFRESH_NS: u64 = 60_000_000_000;
/// Of so many VMs, settings of one are read anew in a look because they are old.
const OLD_SHARE: usize = 32;
/// For so many threads a look finds out where they ran last: it costs ten times as much as what they did. The first
/// look does for all, later ones for whose was not looked up for longest.
const LOOKED_UP: usize = 32;
/// What threads that rest may have used together since all were read, ns.
const AT_REST_NS: u64 = 100_000;

/// All QEMUs of this machine that are VMs.
#[derive(Default)]
pub(super) struct Local {
    qemus: BTreeMap<Key, Qemu>,
    places: Places,
}

/// The process of one VM.
#[derive(Default)]
struct Qemu {
    pid: u32,
    version: u64,
    read_at: Time,
    /// Its directory of threads, and the links of that, which change with their number.
    dir: Option<File>,
    links: u64,
    group: Option<String>,
    /// The group that holds those of its vCPUs.
    base: Option<String>,
    vcpus: BTreeMap<u32, Thread>,
    iothreads: BTreeMap<u32, Thread>,
    others: Vec<Thread>,
    /// What the others did since the first look, ended ones included.
    emulator: Counters,
    settings: BTreeMap<Part, Held>,
    /// The limit of that group, if it is not the VM's.
    quota: Option<Quota>,
    /// What everything in its group used.
    usage: Option<Usage>,
    /// The same when all threads were read last.
    usage_then: Option<u64>,
    unread: Vec<Unread>,
}

/// The counter of a group.
struct Usage {
    version: Version,
    path: String,
    file: File,
}

/// What holds a thread.
#[derive(Clone, Debug, Default)]
struct Held {
    weight: Option<corefit_core::Weight>,
    quota: Option<Quota>,
    affinity: Option<CpuSet>,
    realtime: bool,
}

impl Local {
    /// Reads what is old or changed of the processes of these VMs; hands back the path of each VM's
    /// control group, in their order.
    pub(super) fn refresh(&mut self, host: &HostReader, seen: &[Seen], now: Time) -> Vec<Option<String>> {
        let present: BTreeSet<&Key> = seen.iter().map(|seen| &seen.key).collect();
        self.qemus.retain(|key, _| present.contains(key));
        let old = seen.iter().filter(|seen| seen.pid.is_some()).filter_map(|seen| {
            let read_at = self.qemus.get(&seen.key)?.read_at;
            (now.0.saturating_sub(read_at.0) > REFRESH_NS).then_some((read_at, &seen.key))
        });
        let old = crate::oldest(old, seen.len().div_ceil(OLD_SHARE));
        let mut group = |seen: &Seen| {
            let pid = seen.pid?;
            let qemu = self.qemus.entry(seen.key.clone()).or_default();
            if qemu.pid != pid || qemu.dir.is_none() {
                qemu.dir = File::open(format!("/proc/{pid}/task")).ok();
            }
            let links = qemu.dir.as_ref().and_then(|dir| dir.metadata().ok()).map_or(0, |meta| meta.nlink());
            if qemu.pid != pid
                || qemu.version != seen.version
                || qemu.links != links
                || old.contains(&seen.key)
            {
                qemu.pid = pid;
                qemu.version = seen.version;
                qemu.links = links;
                qemu.read_at = now;
                qemu.threads();
                qemu.settle(host);
            }
            qemu.group.clone()
        };
        let groups = seen.iter().map(&mut group).collect();
        let first = self.places.look == 0;
        let threads: usize = self.qemus.values().map(|qemu| qemu.vcpus.len()).sum();
        self.places = Places {
            look: self.places.look + 1,
            left: if first { usize::MAX } else { LOOKED_UP },
            lasts: threads.div_ceil(LOOKED_UP) as u64,
        };
        groups
    }

    /// Puts what a VM's threads did, and what holds them, into its state. What is missing goes to
    /// `unread`. `false` if its process has ended.
    pub(super) fn fill(
        &mut self,
        key: &Key,
        vm: &mut VmState,
        pcpus: &CpuSet,
        unread: &mut Vec<Unread>,
        notes: &mut Vec<String>,
    ) -> bool {
        let path = format!("VM {:?}", vm.name);
        let lacks = |why: &str| Unread { what: What::Threads, path: path.clone(), why: why.into() };
        let Some(qemu) = self.qemus.get_mut(key) else {
            unread.push(lacks("no process with its UUID on this machine (or it may not be seen)"));
            return true;
        };
        qemu.count();
        let mut alive = false;
        let mut missing = 0;
        for (number, vcpu) in (0..).zip(&mut vm.vcpus) {
            hold(qemu.settings.get(&Part::Vcpu(number)), pcpus, vcpu);
            match qemu.vcpus.get_mut(&number) {
                Some(thread) => {
                    thread.look();
                    vcpu.counters = thread.counters();
                    alive |= vcpu.counters.run_ns.is_some();
                    missing += usize::from(vcpu.online && vcpu.counters.run_ns.is_none());
                    vcpu.on = thread.place(vcpu.affinity.as_ref(), &mut self.places);
                }
                None => missing += usize::from(vcpu.online),
            }
        }
        for helper in &mut vm.helpers {
            let number = helper.name.strip_prefix("iothread ").and_then(|n| n.parse::<u32>().ok());
            let part = number.map_or(Part::Emulator, Part::Iothread);
            helper.counters = match number {
                Some(number) => qemu.iothreads.get(&number).map(Thread::counters).unwrap_or_default(),
                None => qemu.emulator,
            };
            hold_helper(qemu.settings.get(&part), pcpus, helper);
        }
        let realtime = qemu.settings.values().filter(|held| held.realtime).count();
        if realtime > 0 {
            notes.push(format!(
                "VM {:?}: {realtime} of its threads are real-time (vcpusched): they run before all others, weights and \
                 the figures of who shares their pCPUs do not hold",
                vm.name
            ));
        }
        unread.extend(qemu.unread.iter().cloned());
        let whats = qemu.unread.iter().map(|unread| unread.what);
        vm.unread.extend(whats.filter(|what| matches!(what, What::Weight | What::Quota)));
        let there = || process::exists(qemu.pid);
        if missing > 0 && (alive || there()) {
            unread.push(lacks(
                "some of its vCPUs have no thread named \"CPU N/KVM\" or \"CPU N/TCG\" to be measured",
            ));
        }
        alive || there()
    }

    /// What a VM's vCPUs did to the last-level caches, where somebody counts that for this VM alone.
    pub(super) fn cache(&self, key: &Key, monitors: &Monitors) -> Option<CacheUse> {
        let qemu = self.qemus.get(key)?;
        let others = || qemu.iothreads.values().chain(&qemu.others).map(|thread| thread.tid).collect();
        monitors.of(&Root::live(), || qemu.vcpus.values().map(|thread| thread.tid).collect(), others)
    }

    /// The control group of a vCPU of a VM.
    pub(super) fn vcpu_group(&self, vm: &VmId, vcpu: u32) -> Option<String> {
        let qemu = self.qemus.get(&session::key(vm)?)?;
        Some(format!("{}/vcpu{vcpu}", qemu.base.as_deref()?))
    }

    /// The control group of a VM's threads that are neither vCPUs nor I/O threads.
    pub(super) fn helper_group(&self, vm: &VmId) -> Option<String> {
        let qemu = self.qemus.get(&session::key(vm)?)?;
        Some(format!("{}/{}", qemu.base.as_deref()?, Part::Emulator.group()))
    }

    /// The threads of a VM's vCPUs.
    pub(super) fn vcpu_threads(&self, key: &Key) -> Vec<u32> {
        self.qemus.get(key).map_or(Vec::new(), |qemu| qemu.vcpus.values().map(|thread| thread.tid).collect())
    }

    /// The thread of a vCPU of a VM, if it is still that one: its number may be another's by now.
    pub(super) fn vcpu_thread(&self, vm: &VmId, vcpu: u32) -> Option<u32> {
        let key = session::key(vm)?;
        let qemu = self.qemus.get(&key)?;
        let tid = qemu.vcpus.get(&vcpu)?.tid;
        let same = process::is_of(qemu.pid, &key.0) && thread::is_named(qemu.pid, tid, Part::Vcpu(vcpu));
        same.then_some(tid)
    }

    /// Whether the process of a VM is seen here.
    pub(super) fn sees(&self, vm: &VmId) -> bool {
        session::key(vm).is_some_and(|key| self.qemus.contains_key(&key))
    }

    /// Of one process, of which nothing is known.
    #[cfg(test)]
    pub(super) fn with(key: Key) -> Local {
        Local { qemus: [(key, Qemu::default())].into(), ..Local::default() }
    }

    /// The control group of a VM into which libvirt writes its limit.
    pub(super) fn limited_group(&self, vm: &VmId) -> Option<String> {
        self.qemus.get(&session::key(vm)?)?.base.clone()
    }

    /// What libvirt made in a VM's control group, if that is another one, and its limit, if it is known.
    pub(super) fn inner(&self, key: &Key) -> Option<(&str, Option<&Quota>)> {
        let qemu = self.qemus.get(key)?;
        Some((qemu.inner()?, qemu.quota.as_ref()))
    }

    /// What holds a VM's threads was changed: it is read anew at the next look. Hands back its control group.
    pub(super) fn changed(&mut self, vm: &VmId) -> Option<String> {
        let qemu = self.qemus.get_mut(&session::key(vm)?)?;
        qemu.version = 0; // none that there is
        qemu.group.clone()
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
        for (tid, name) in thread::list(self.pid) {
            let thread = known.remove(&tid).unwrap_or_else(|| Thread::new(self.pid, tid));
            match thread::role(&name) {
                Part::Vcpu(number) => drop(self.vcpus.insert(number, thread)),
                Part::Iothread(number) => drop(self.iothreads.insert(number, thread)),
                Part::Emulator => self.others.push(thread),
            }
        }
        self.usage_then = None;
    }

    /// The group that libvirt made in the VM's, if it did.
    fn inner(&self) -> Option<&str> {
        self.base.as_deref().filter(|base| Some(*base) != self.group.as_deref())
    }

    /// Reads what holds its threads.
    fn settle(&mut self, host: &HostReader) {
        self.settings.clear();
        self.unread.clear();
        let own = host.group_of(self.pid).filter(|path| path.ends_with("/emulator"));
        let base = own.as_deref().and_then(|path| path.strip_suffix("/emulator"));
        self.base = base.map(Into::into);
        self.group = base.map(|base| base.strip_suffix("/libvirt").unwrap_or(base).to_owned());
        let usage = self.group.as_deref().and_then(|group| host.usage_file(group));
        self.usage =
            usage.and_then(|(version, path)| Some(Usage { version, file: File::open(&path).ok()?, path }));
        self.usage_then = None;
        let unread = |(what, error): (What, crate::ReadError)| Unread {
            what,
            path: error.path().into(),
            why: error.why(),
        };
        self.quota = None;
        if let Some(inner) = self.inner() {
            let (settings, errors) = host.shares(inner);
            self.quota = settings.quota;
            let errors = errors.into_iter().filter(|(what, _)| *what == What::Quota);
            self.unread.extend(errors.map(unread));
        }
        let vcpus = self.vcpus.iter().map(|(number, t)| (Part::Vcpu(*number), t.tid));
        let iothreads = self.iothreads.iter().map(|(number, t)| (Part::Iothread(*number), t.tid));
        for (part, tid) in vcpus.chain(iothreads).chain([(Part::Emulator, self.pid)]) {
            let mut held = Held {
                affinity: sample::affinity(tid),
                realtime: sample::is_realtime(tid),
                ..Held::default()
            };
            if let Some(base) = base {
                let (settings, errors) = host.shares(&format!("{base}/{}", part.group()));
                (held.weight, held.quota) = (settings.weight, settings.quota);
                self.unread.extend(errors.into_iter().map(unread));
            }
            self.settings.insert(part, held);
        }
    }

    /// Reads what its threads did, of those that rest only if they may have done something.
    fn count(&mut self) {
        let usage = self.usage.as_ref().and_then(Usage::read);
        let mut did = (0, 0);
        let mut read = |thread: &mut Thread, other: bool| {
            let (run, wait) = thread.read();
            did = if other { (did.0 + run, did.1 + wait) } else { did };
        };
        let mut explained = 0;
        let mut rested = Vec::new();
        for (thread, other) in self.all() {
            rested.push(!thread.ran);
            if thread.ran {
                read(thread, other);
                explained += thread.since_then();
            }
        }
        let rest = usage.zip(self.usage_then).map(|(now, then)| now.saturating_sub(then + explained));
        if rest.is_none_or(|rest| rest > AT_REST_NS) {
            for ((thread, other), rested) in self.all().zip(rested) {
                if rested {
                    read(thread, other);
                }
                thread.mark();
            }
            self.usage_then = usage;
        }
        let sum = |before: Option<u64>, more| Some(before.unwrap_or(0) + more);
        self.emulator = Counters {
            run_ns: sum(self.emulator.run_ns, did.0),
            wait_ns: sum(self.emulator.wait_ns, did.1),
            runs: None,
        };
    }

    /// Its threads, each with whether it is neither a vCPU nor an iothread.
    fn all(&mut self) -> impl Iterator<Item = (&mut Thread, bool)> {
        let known = self.vcpus.values_mut().chain(self.iothreads.values_mut()).map(|thread| (thread, false));
        known.chain(self.others.iter_mut().map(|thread| (thread, true)))
    }
}

impl Usage {
    fn read(&self) -> Option<u64> {
        let mut buffer = [0; 1024];
        let length = self.file.read_at(&mut buffer, 0).ok()?;
        let text = std::str::from_utf8(&buffer[..length]).ok()?;
        files::parse_usage(self.version, &self.path, text).ok()?
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::VmCounters;
    use crate::libvirt::limit;
    use crate::root::testing;

    /// As on a host of v2 with systemd, where libvirt writes `global_quota` into the group that it made.
    #[test]
    fn the_limit_of_a_vm_is_that_of_the_group_in_its_own_where_that_has_one() {
        let stat = "usage_usec 9\nnr_periods 8\nnr_throttled 2\nthrottled_usec 3\n";
        let source = "definition".into();
        let definition = Quota { quota_us: Some(100_000), period_us: 100_000, burst_us: 0, source };
        let seen = |outer: &str, inner: Option<&str>, definition: Option<&Quota>| {
            let dir = tempfile::tempdir().unwrap();
            let put = |path: &str, text: &str| testing::put(dir.path(), path, text);
            put("proc/self/mountinfo", "25 22 0:22 / /cg rw - cgroup2 cgroup2 rw\n");
            put("proc/uptime", "5.00 5.00\n");
            put("proc/stat", "cpu0 1 1 1 1 1 1 1 1\n");
            put("proc/7/cgroup", "0::/x.scope/libvirt/emulator\n");
            for group in ["", "/x.scope", "/x.scope/libvirt", "/x.scope/libvirt/emulator"] {
                put(&format!("cg{group}/cgroup.controllers"), "cpu\n");
                put(&format!("cg{group}/cpu.stat"), "usage_usec 9\n");
                put(&format!("cg{group}/cgroup.threads"), "");
            }
            for group in ["x.scope", "x.scope/libvirt", "x.scope/libvirt/emulator"] {
                put(&format!("cg/{group}/cpu.weight"), "100\n");
            }
            put("cg/x.scope/cpu.max", outer);
            inner.into_iter().for_each(|text| put("cg/x.scope/libvirt/cpu.max", text));
            put("cg/x.scope/libvirt/cpu.max.burst", "5000\n");
            put("cg/x.scope/libvirt/cpu.stat", stat);
            let mut host = HostReader::open(Root::at(dir.path())).unwrap();
            let mut qemu = Qemu { pid: 7, ..Qemu::default() };
            qemu.settle(&host);
            assert_eq!(qemu.group.as_deref(), Some("/x.scope"));
            let key = ("a".to_owned(), 1);
            let local = Local { qemus: [(key.clone(), qemu)].into(), ..Local::default() };
            let view = host.look(&["/x.scope".into()], VmCounters::Skip).unwrap();
            let mut vm = VmState { quota: definition.cloned(), ..VmState::default() };
            limit::fill(&mut vm, &view.vms[0], local.inner(&key), |group| host.throttled(group));
            assert_eq!(local.limited_group(&VmId("a#1".into())).as_deref(), Some("/x.scope/libvirt"));
            let by_another = vm
                .fixed(corefit_core::machine::LeverKind::Quota)
                .is_some_and(|why| why.contains("/x.scope,"));
            assert_eq!(by_another, !outer.starts_with("max"), "{:?}", vm.fixed);
            let quota = vm.quota.map(|quota| (quota.quota_us, quota.burst_us));
            (quota, vm.throttled.map(|throttled| throttled.periods))
        };
        let (none, some) = ("max 100000\n", "100000 100000\n");
        assert_eq!(seen(none, Some(some), None), (Some((Some(100_000), 5000)), Some(8)));
        assert_eq!(seen(none, Some(none), Some(&definition)).0, Some((None, 0)), "it was taken away");
        assert_eq!(seen("70000 100000\n", Some(some), None), (Some((Some(70_000), 0)), None));
        for unread in [None, Some("half")] {
            assert_eq!(seen(none, unread, Some(&definition)).0, Some((Some(100_000), 0)));
            assert_eq!(seen(none, unread, None).0, Some((None, 0)));
        }
    }

    /// "QEMUs" that are all the same process, and looks so rare that not all have their turn before the first are old again.
    #[test]
    fn what_holds_threads_is_read_again_for_each_vm_however_many_there_are() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mounts = "25 22 0:22 / /cg rw - cgroup2 cgroup2 rw\n";
        let (_dir, root) =
            testing::tree(&[("proc/self/mountinfo", mounts), ("cg/cgroup.controllers", "cpu\n")]);
        let host = HostReader::open(root).unwrap();
        let seen = |number: u32| Seen {
            key: (String::new(), number),
            name: number.to_string(),
            runs: true,
            definition: std::sync::Arc::default(),
            version: 1,
            pid: Some(child.id()),
            outdated: false,
        };
        let seen: Vec<Seen> = (0..64).map(seen).collect();
        let mut local = Local::default();
        let at = |look: u64| Time(look * 5_000_000_000);
        (0..100).for_each(|look| drop(local.refresh(&host, &seen, at(look))));
        let old = local.qemus.iter().filter(|(_, qemu)| qemu.read_at < at(60));
        assert_eq!(old.map(|(key, _)| key.1).collect::<Vec<u32>>(), [0; 0]);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// A "QEMU" of which one thread runs and one rests, in a group with a counter that the test writes.
    #[test]
    fn a_thread_that_rests_is_read_when_its_group_used_more_than_the_others_did() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        put("busy", "1000000 0 1\n");
        put("rests", "5000 0 1\n");
        put("usage", "0\n");
        let thread = |name: &str| Thread::at(path(name), 1);
        let usage =
            Usage { version: Version::V1, file: File::open(path("usage")).unwrap(), path: path("usage") };
        let mut qemu = Qemu { usage: Some(usage), ..Qemu::default() };
        qemu.vcpus = BTreeMap::from([(0, thread("busy")), (1, thread("rests"))]);
        let mut look = |busy: u64, rests: u64, usage: u64| {
            put("busy", &format!("{busy} 7 1\n"));
            put("rests", &format!("{rests} 9 1\n"));
            put("usage", &format!("{usage}\n"));
            qemu.count();
            [0, 1].map(|vcpu| qemu.vcpus[&vcpu].counters().run_ns.unwrap())
        };
        assert_eq!(look(1_000_000, 5_000, 1_005_000), [1_000_000, 5_000]);
        assert_eq!(look(2_000_000, 5_000, 2_005_000), [2_000_000, 5_000]);
        // It rests: what the file says now is not looked at, for the group's counter has no room for it.
        assert_eq!(look(3_000_000, 9_999, 3_005_000), [3_000_000, 5_000]);
        // 0.05 ms wait until there is more, for as many looks as it takes; 0.12 ms do not.
        assert_eq!(look(4_000_000, 55_000, 4_055_000), [4_000_000, 5_000]);
        assert_eq!(look(5_000_000, 125_000, 5_125_000), [5_000_000, 125_000]);
        // Now it is one that runs, and is read each time.
        assert_eq!(look(6_000_000, 126_000, 6_126_000), [6_000_000, 126_000]);
        assert_eq!(look(7_000_000, 127_000, 7_127_000), [7_000_000, 127_000]);
        // Without a counter, all are read.
        qemu.usage = None;
        assert!(qemu.vcpus.values().all(|thread| thread.counters().run_ns.is_some()));
        put("busy", "7000000 7 1\n");
        qemu.count();
        put("busy", "8000000 7 1\n");
        qemu.count();
        assert_eq!(qemu.vcpus[&0].counters().run_ns, Some(8_000_000));
    }
}
