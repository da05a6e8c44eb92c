//! The tree of control groups as the scheduler of a host sees it: which of them are VMs, the slices on
//! the way to them, and everything else that competes at each level.
//!
//! ```text
//!   /                     others: /system.slice (all of it), sessions and threads directly in /
//!   ├── system.slice
//!   └── machine           a slice, for it holds VMs
//!       ├── vm1  ◀ VM
//!       └── x             another other
//! ```
//!
//! A [`HostReader`] keeps what it knows between two looks: files stay open, settings are read anew
//! every few seconds, threads only where a group's counter says that something ran. Time waited for is
//! summed over threads, which come and go; the sums never run backwards.

mod act;
mod choose;
mod kept;
mod machine;
mod pcpus;
mod realtime;
mod resctrl;
mod tally;
mod tasks;
mod tree;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use corefit_core::machine::{Counters, Group, Role, VmId, VmState};
use corefit_core::{CpuSet, Throttled, Time, What};

use crate::cgroup::files;
pub use crate::cgroup::mounts::{Hierarchy, Version, hierarchies};
use crate::notes::Notes;
use crate::proc;
use crate::root::{ReadError, Root, optional, value};
use crate::slice::Slicer;
pub use choose::{Choice, NoPattern};
use kept::Kept;
pub use machine::Cgroups;
use pcpus::Pcpus;
use realtime::Realtime;
pub(crate) use resctrl::Monitors;
use resctrl::Resctrl;
use tally::{Look, Tally};
use tasks::{Direct, Scene};
use tree::{Settings, Tree};
use view::per_cpu;
pub use view::{HostView, VmCounters, VmGroup};

/// What changes rarely (weights, quotas, cpusets, the groups inside a group) is read anew after this.
const REFRESH: Duration = Duration::from_secs(5);
/// Of so many groups, at most one is read anew in a look because it is old: looks cost about the same.
const OLD_SHARE: usize = 8;
/// For so many threads of VMs a look finds out where they ran last, divided among the VMs, one for each at
/// least; for as many of each competitor.
const PLACES: usize = 64;
/// Of so many threads of a VM's group a look reads the slice.
const SLICES: usize = 64;
/// The groups inside a VM or a competitor are followed so far.
const MOST_GROUPS: usize = 10_000;

/// Looks at a host's tree time after time.
pub struct HostReader {
    kept: Kept,
    tree: Tree,
    pcpus: Pcpus,
    resctrl: Resctrl,
    /// Whether all processes can be seen: this is the first PID namespace.
    sees_all: bool,
    groups: BTreeMap<String, Known>,
    direct: BTreeMap<String, Direct>,
    last: Option<Time>,
}

/// What is known of a group.
struct Known {
    inode: u64,
    /// The look before it was made, if that saw its parent's groups.
    began: Option<Time>,
    read_at: Time,
    settings: Settings,
    unread: Vec<(What, ReadError)>,
    usage_file: Option<(Version, String)>,
    /// What it held when this look began with the group.
    usage_text: Option<String>,
    /// The group and all below it; nothing where nobody asks.
    inside: Vec<String>,
    /// No process is in any of these, as far as is known.
    empty: bool,
    usage_ns: Option<u64>,
    /// Whether its threads were read before.
    counted: bool,
    /// The kernel moved them since: its cpuset is another one.
    moved: bool,
    /// How much it grew since the last look.
    growth_ns: u64,
    tally: Tally,
    realtime: Realtime,
    /// What its other threads ran: its counter without what the real-time ones did.
    run_ns: u64,
}

/// What one look gathers.
struct Gathering<'a> {
    vms: &'a BTreeSet<&'a str>,
    ways: &'a BTreeSet<&'a str>,
    counters: VmCounters,
    /// Threads of each group whose place is looked up.
    places: usize,
    /// Groups that are read anew because they are old.
    old: BTreeSet<String>,
    now: Time,
    all: CpuSet,
    sessions: bool,
    /// Groups looked at, and those of them with VMs below.
    seen: BTreeSet<String>,
    walked: BTreeSet<String>,
    /// Of a machine whose threads have slices, if somebody asks.
    slicer: Option<Slicer>,
    view: HostView,
    notes: Notes,
}

impl HostReader {
    /// Finds the hierarchy of control groups that divides CPU time.
    ///
    /// # Errors
    /// [`ReadError::Unsupported`] where there is none.
    pub fn open(root: Root) -> Result<HostReader, ReadError> {
        let tree = Tree::open(&root)?;
        // In the first PID namespace, and there only, process 2 is the parent of the kernel's threads.
        let sees_all =
            !root.is_live() || proc::process(&root, 2, false).is_ok_and(|process| process.is_none());
        Ok(HostReader {
            kept: Kept::new(root),
            tree,
            pcpus: Pcpus::default(),
            resctrl: Resctrl::default(),
            sees_all,
            groups: BTreeMap::new(),
            direct: BTreeMap::new(),
            last: None,
        })
    }

    /// The machine that is read.
    #[must_use]
    pub fn root(&self) -> &Root {
        &self.kept.root
    }

    /// Goes on with another tree of the same machine: for captures, which are one instant each.
    pub fn turn_to(&mut self, root: Root) {
        self.kept.turn_to(root);
    }

    /// The group that a process is in, as [`HostReader::look`] wants it; the empty text is the top.
    #[must_use]
    pub fn group_of(&self, pid: u32) -> Option<String> {
        self.tree.group_of(self.root(), pid)
    }

    /// Weight and quota of a group, read now, each that is missing with its error.
    pub(crate) fn shares(&self, path: &str) -> (Settings, Vec<(What, ReadError)>) {
        self.tree.shares(self.root(), path)
    }

    /// The file that counts the CPU time of a group.
    pub(crate) fn usage_file(&self, path: &str) -> Option<(Version, String)> {
        self.tree.usage_file(self.root(), path)
    }

    /// Reads anew what is set for a group, after it was changed.
    pub(crate) fn reread(&mut self, path: &str) {
        if let Some(known) = self.groups.get_mut(path) {
            (known.settings, known.unread) = self.tree.settings(&self.kept.root, path);
            known.tally.masks = CpuSet::default();
        }
    }

    /// All threads in a group and below it, now.
    pub(crate) fn threads(&self, path: &str) -> Result<Vec<u32>, ReadError> {
        let mut all = Vec::new();
        let (groups, unlisted) = inside(&self.tree, self.root(), path, MOST_GROUPS);
        if let Some(error) = unlisted {
            return Err(error);
        }
        for group in groups {
            let listed = optional(self.tree.threads(self.root(), &group))?.unwrap_or_default();
            all.extend(listed.into_iter().map(|(_, tid)| tid).filter(|tid| *tid > 0));
        }
        Ok(all)
    }

    /// How often its bandwidth limit stopped a group; `None` where that is not counted, or the group is gone.
    pub(crate) fn throttled(&self, path: &str) -> Option<Throttled> {
        self.tree.throttled(self.root(), path).ok().flatten()
    }

    /// The path of a group that may be given by its directory.
    #[must_use]
    pub fn path<'a>(&self, given: &'a str) -> &'a str {
        self.tree.path(given)
    }

    /// The names of the groups directly in a group (the empty text is the top); none if it is gone.
    ///
    /// # Errors
    /// If it may not be listed.
    pub fn children(&self, path: &str) -> Result<Vec<String>, ReadError> {
        self.tree.children(self.root(), path)
    }

    /// What the tree shows now, with these groups as VMs. Paths that do not exist are left out; a path
    /// that holds another one is a slice and no VM.
    ///
    /// # Errors
    /// If the time or the pCPUs cannot be read.
    pub fn look(&mut self, vms: &[String], counters: VmCounters) -> Result<HostView, ReadError> {
        let now = self.root().now()?;
        let mut notes = Notes::default();
        let pcpus = self.pcpus.read(&self.kept.root, self.tree.mounts(), &mut notes)?;
        let ways: BTreeSet<&str> = vms.iter().flat_map(|path| above(path)).collect();
        let chosen: BTreeSet<&str> =
            vms.iter().map(String::as_str).filter(|path| !ways.contains(path)).collect();
        let all: CpuSet = pcpus.iter().map(|pcpu| pcpu.id).collect();
        if let Some((path, why)) = self.tree.hidden() {
            notes.add(What::Ancestors, path, why.into());
        }
        if !self.sees_all {
            let why = "processes outside of this PID namespace are not listed";
            notes.add(What::Siblings, "/proc".into(), why.into());
        }
        let switch = "/proc/sys/kernel/sched_autogroup_enabled";
        let switch = optional(value(self.root(), switch, "0 or 1", |text| text.parse::<u8>().ok()));
        let sessions = notes.ask(What::Siblings, switch) == Some(1);
        let monitors = self.resctrl.read(&self.kept.root);
        let (caches, uncounted) = (self.pcpus.caches.clone(), monitors.none.clone());
        let view = HostView { at: now, pcpus, caches, uncounted, monitors, ..HostView::default() };
        let (seen, walked) = (BTreeSet::new(), BTreeSet::new());
        let asks = counters == VmCounters::Read && self.root().is_live();
        // (Of the top nothing is set.)
        let old = self
            .groups
            .iter()
            .filter(|(path, known)| !path.is_empty() && now.since(known.read_at) >= REFRESH);
        let old = old.map(|(path, known)| (known.read_at, path.clone()));
        let old = crate::oldest(old, self.groups.len().div_ceil(OLD_SHARE));
        let mut gathering = Gathering {
            vms: &chosen,
            ways: &ways,
            counters,
            places: (PLACES / chosen.len().max(1)).max(1),
            old,
            now,
            all,
            sessions,
            seen,
            walked,
            slicer: asks.then(Slicer::now).and_then(Result::ok),
            view,
            notes,
        };
        self.level("", None, &mut gathering);
        let Gathering { mut view, notes, seen, walked, .. } = gathering;
        self.groups.retain(|path, _| path.is_empty() || seen.contains(path));
        self.direct.retain(|path, _| walked.contains(path));
        view.unread = notes.into_list();
        self.kept.next_round();
        self.last = Some(now);
        Ok(view)
    }

    /// A group with VMs below it: its groups, then its threads. Hands back how much it used since the
    /// last look, ns; where that is not counted, how much was seen.
    fn level(&mut self, path: &str, parent: Option<&str>, g: &mut Gathering) -> u64 {
        let names = g.notes.ask(What::Siblings, self.children(path).map(Some)).unwrap_or_default();
        let mut loose = vec![path.to_owned()];
        let mut inside_ns = 0;
        g.walked.insert(path.into());
        for name in names {
            let child = format!("{path}/{name}");
            g.seen.insert(child.clone());
            let Some(known) = self.settle(&child, g) else { continue };
            if g.ways.contains(child.as_str()) {
                let Settings { weight, quota, .. } = known.settings.clone();
                let unread = known.settings_unread();
                let known_by = parent.map(Into::into);
                g.view.groups.push(Group { name: child.clone(), parent: known_by, weight, quota, unread });
                inside_ns += self.level(&child, Some(&child), g);
            } else if g.vms.contains(child.as_str()) {
                let vm = self.vm(&child, parent, g);
                inside_ns += vm;
            } else if known.settings.weight.is_none() && known.unread.is_empty() {
                loose.extend(known.inside.clone()); // no group to the scheduler
            } else {
                inside_ns += self.other(&child, parent, g);
            }
        }
        let usage_ns = self.usage(path, g);
        let mut threads = Vec::new();
        for path in &loose {
            let listed = self.tree.threads(&self.kept.root, path);
            threads.extend(g.notes.ask(What::Siblings, listed.map(Some)).unwrap_or_default());
        }
        let direct = self.direct.entry(path.into()).or_default();
        let scene = Scene {
            now: g.now,
            last: self.last,
            path,
            parent,
            sessions: g.sessions && path.is_empty(),
            weight: self.tree.thread_weight(),
            pcpus: &g.all,
            realtime: direct.realtime(g.now, || self.tree.realtime(&self.kept.root, path)),
        };
        let found = direct.update(&mut self.kept, &threads, &scene);
        if found.blind {
            let why = "its threads have no schedstat here: what they use and wait for is not known";
            g.notes.add(What::Siblings, self.tree.dir(path), why.into());
        }
        let rest = usage_ns.map_or(0, |usage| usage.saturating_sub(inside_ns + found.run_ns));
        direct.rest(rest, &scene);
        // As many threads as ran all the time, at least one.
        let took =
            self.last.map_or(0, |last| u64::try_from(g.now.since(last).as_nanos()).unwrap_or(u64::MAX));
        let weight = crate::float(rest.div_ceil(took.max(1)).max(1));
        let others = direct.others(&scene, weight);
        g.view.others.extend(others);
        usage_ns.unwrap_or(inside_ns + found.run_ns)
    }

    fn vm(&mut self, path: &str, parent: Option<&str>, g: &mut Gathering) -> u64 {
        if g.counters == VmCounters::Read {
            self.count(path, Some(path), g);
        } else {
            self.usage(path, g);
        }
        let Some(known) = self.groups.get(path) else { return 0 };
        let limited = known.settings.quota.as_ref().is_some_and(|quota| quota.quota_us.is_some());
        let throttled =
            if limited { g.notes.ask(What::Quota, self.tree.throttled(&self.kept.root, path)) } else { None };
        let mut unread = known.settings_unread();
        if known.settings.weight.is_none() && !unread.contains(&What::Weight) {
            let why = "the cpu controller is not enabled here: its threads compete one by one";
            g.notes.add(What::Weight, self.tree.dir(path), why.into());
            unread.push(What::Weight);
        }
        let cpus = known.cpus(&g.all);
        g.view.vms.push(VmGroup {
            path: path.into(),
            id: VmId(format!("{path}@{}", known.inode)),
            parent: parent.map(Into::into),
            weight: known.settings.weight,
            quota: known.settings.quota.clone(),
            throttled,
            unread,
            cpuset: known.settings.cpuset.clone().filter(|set| *set != cpus),
            cpus,
            no_cpuset: known.settings.no_cpuset,
            memory_nodes: known.settings.mems.as_ref().map(|(nodes, _)| nodes.clone()),
            memory_above: known.settings.mems_above.clone(),
            memory_moves: known.settings.mems.as_ref().is_some_and(|(_, moves)| *moves),
            counters: if g.counters == VmCounters::Read { known.counters() } else { Counters::default() },
            cache: g.view.monitors.of(&self.kept.root, || known.tally.threads(), BTreeSet::new),
            slices: g.slicer.map(|slicer| slicer.view(known.tally.threads().into_iter().take(SLICES))),
            on: known.tally.on.clone(),
            began: known.began,
            empty: g.counters == VmCounters::Read && known.empty,
        });
        known.growth_ns
    }

    fn other(&mut self, path: &str, parent: Option<&str>, g: &mut Gathering) -> u64 {
        self.count(path, None, g);
        let Some(known) = self.groups.get(path) else { return 0 };
        g.view.others.push(VmState {
            id: VmId(format!("{path}@{}", known.inode)),
            name: path.into(),
            role: Role::Other,
            parent: parent.map(Into::into),
            weight: known.settings.weight,
            quota: known.settings.quota.clone(),
            unread: known.settings_unread(),
            vcpus: per_cpu(&known.cpus(&g.all), &known.tally.on),
            whole: Some(known.counters()),
            began: known.began,
            ..VmState::default()
        });
        known.growth_ns
    }

    /// The settings of a group, read anew when it is another one or time has come. `None` if it is gone, or nobody knows.
    fn settle(&mut self, path: &str, g: &mut Gathering) -> Option<&Known> {
        let mut known = self.groups.remove(path);
        // A group whose counter, left open, can still be read is the one that it was.
        let file = known.as_ref().and_then(|known| known.usage_file.as_ref());
        let text = file.and_then(|(_, file)| self.kept.again(file));
        let root = &self.kept.root;
        let inode = match &known {
            Some(known) if text.is_some() => known.inode,
            _ => match root.inode(&self.tree.dir(path)) {
                Ok(inode) => inode,
                Err(error) => {
                    if !error.is_absent() {
                        g.notes.error(What::Siblings, &error);
                    }
                    return None;
                }
            },
        };
        known = known.filter(|known| known.inode == inode);
        // Nobody asks for what is in VMs that somebody else counts; what holds VMs is walked anyway.
        let walk = !g.ways.contains(path) && (g.counters == VmCounters::Read || !g.vms.contains(path));
        let due = g.old.contains(path) || known.as_ref().is_none_or(|known| known.inside.is_empty() == walk);
        let watched = path.rsplit_once('/').is_some_and(|(parent, _)| self.direct.contains_key(parent));
        let mut known = known.unwrap_or_else(|| Known::new(inode, self.last.filter(|_| watched)));
        if due {
            let before = known.settings.cpuset.take();
            // What confines VMs that somebody else counts he knows by their threads.
            let counted = g.counters == VmCounters::Skip && g.vms.contains(path);
            (known.settings, known.unread) =
                if counted { self.tree.shares(root, path) } else { self.tree.settings(root, path) };
            known.moved = known.settings.cpuset != before;
            known.read_at = g.now;
            if text.is_none() {
                known.usage_file = self.tree.usage_file(root, path);
            }
            known.inside = if walk { inside(&self.tree, root, path, MOST_GROUPS).0 } else { Vec::new() };
        }
        // What holds VMs is counted after them, so that nothing of theirs is missing in it.
        known.usage_text = text.filter(|_| !g.ways.contains(path));
        for (what, error) in &known.unread {
            g.notes.error(*what, error);
        }
        Some(self.groups.entry(path.into()).or_insert(known))
    }

    /// How much CPU time a group used since the last look, where that is counted, ns.
    fn usage(&mut self, path: &str, g: &mut Gathering) -> Option<u64> {
        if path.is_empty() && !self.groups.contains_key(path) {
            let usage_file = self.tree.usage_file(&self.kept.root, path);
            self.groups.insert(String::new(), Known { usage_file, ..Known::new(0, None) });
        }
        let known = self.groups.get_mut(path)?;
        let (version, file) = known.usage_file.as_ref()?;
        let text = known.usage_text.take().map_or_else(|| self.kept.read(file), Ok);
        let usage = text.and_then(|text| files::parse_usage(*version, file, &text));
        let usage =
            g.notes.ask(What::Siblings, usage.or_else(|e| if e.is_absent() { Ok(None) } else { Err(e) }))?;
        // A group that was not there at the last look did all of it since.
        let before = known.usage_ns.or(known.began.map(|_| 0)).unwrap_or(usage);
        known.growth_ns = usage.saturating_sub(before);
        known.usage_ns = Some(usage.max(before));
        Some(known.growth_ns)
    }

    /// Reads what a group used, and if it did, what its threads waited for. Its real-time threads compete by
    /// themselves; `owner`: the VM whose they are.
    fn count(&mut self, path: &str, owner: Option<&str>, g: &mut Gathering) {
        let places = g.places;
        let first = self.groups.get(path).is_some_and(|known| !known.counted);
        let used = self.usage(path, g);
        let Some(known) = self.groups.get_mut(path) else { return };
        known.tally.on = CpuSet::default();
        let moved = std::mem::take(&mut known.moved);
        let over = self.last.map_or(Duration::ZERO, |last| g.now.since(last));
        let over_ns = u64::try_from(over.as_nanos()).unwrap_or(u64::MAX);
        if used == Some(0) && !first && !moved {
            known.tally.rested(&self.kept, over_ns);
            // A process may be there by now that sleeps, or the last one has ended.
            if known.read_at == g.now {
                let listed = |group: &String| self.tree.threads(&self.kept.root, group);
                let none = |group| listed(group).is_ok_and(|threads| threads.is_empty());
                known.empty = self.sees_all && !known.inside.is_empty() && known.inside.iter().all(none);
            }
            g.view.others.extend(known.realtime.states(&scene(path, g.now, self.last, &g.all), owner));
            return;
        }
        let mut threads = Vec::new();
        let mut complete = self.sees_all && !known.inside.is_empty();
        for group in &known.inside {
            let listed = optional(self.tree.threads(&self.kept.root, group));
            let listed = g.notes.ask(What::Threads, listed);
            complete &= listed.is_some();
            threads.extend(listed.unwrap_or_default());
        }
        // What is used by threads in a group below that is younger than the list of these is used all the same.
        known.empty = complete && threads.is_empty() && used.is_none_or(|used| used == 0);
        let before = known.tally.sums().run_ns.unwrap_or(0);
        let masks = known.read_at == g.now || known.tally.masks.is_empty();
        let last = self.last.filter(|_| !first || known.began.is_some());
        let did = known.tally.update(&mut self.kept, &threads, &Look { over_ns, last, places, masks });
        let scene = scene(path, g.now, self.last, &g.all);
        known.realtime.update(&self.kept, &self.tree, &did, &scene);
        if used.is_none() {
            let first: u64 = did.iter().map(|(_, (run, _))| run).sum();
            known.growth_ns = known.tally.sums().run_ns.unwrap_or(0).saturating_sub(before) + first;
        }
        // The threads are read a little later than the group's counter.
        let others = known.usage_ns.map(|usage| usage.saturating_sub(known.realtime.run_ns));
        known.run_ns = others.unwrap_or(0).max(known.run_ns);
        g.view.others.extend(known.realtime.states(&scene, owner));
        known.counted = true;
        let unseen = !self.sees_all && threads.is_empty() && used.is_none_or(|ns| ns > 0);
        if unseen {
            known.tally.unseen();
        }
        if known.tally.is_blind() {
            let why = if unseen {
                "its threads are not listed in this PID namespace: what they wait for is not known"
            } else {
                "its threads have no schedstat here: what they wait for is not known"
            };
            g.notes.add(What::Threads, self.tree.dir(path), why.into());
        }
    }
}

/// The circumstances of a group's real-time threads.
fn scene<'a>(path: &'a str, now: Time, last: Option<Time>, pcpus: &'a CpuSet) -> Scene<'a> {
    Scene { now, last, path, parent: None, sessions: false, weight: 1.0, pcpus, realtime: None }
}

impl Known {
    fn new(inode: u64, began: Option<Time>) -> Known {
        Known {
            inode,
            began,
            read_at: Time(0),
            settings: Settings::default(),
            unread: Vec::new(),
            usage_file: None,
            usage_text: None,
            inside: Vec::new(),
            empty: false,
            usage_ns: None,
            counted: false,
            moved: false,
            growth_ns: 0,
            tally: Tally::default(),
            realtime: Realtime::default(),
            run_ns: 0,
        }
    }

    /// Weight and quota, as far as they could not be read.
    fn settings_unread(&self) -> Vec<What> {
        let unread = self.unread.iter().map(|(what, _)| *what);
        unread.filter(|what| matches!(what, What::Weight | What::Quota)).collect()
    }

    fn counters(&self) -> Counters {
        let sums = self.tally.sums();
        match self.usage_file {
            Some(_) => Counters { run_ns: self.usage_ns.map(|_| self.run_ns), ..sums },
            None => sums,
        }
    }

    /// The pCPUs that it may use: those of its threads, else of its cpuset, else all.
    fn cpus(&self, all: &CpuSet) -> CpuSet {
        let confined = |within: &CpuSet, set: Option<&CpuSet>| {
            let both = set.map(|set| set.intersection(within));
            both.filter(|both| !both.is_empty()).unwrap_or_else(|| within.clone())
        };
        confined(&confined(all, self.settings.cpuset.as_ref()), Some(&self.tally.masks))
    }
}

/// All groups above a path, the top (empty) included.
fn above(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(end, _)| &path[..end])
}

/// A group and all below it, as far as they could be listed, so many at most, and what kept some from that.
fn inside(tree: &Tree, root: &Root, path: &str, most: usize) -> (Vec<String>, Option<ReadError>) {
    let mut unlisted = None;
    let mut found = vec![path.to_owned()];
    let mut next = 0;
    while next < found.len() && found.len() < most {
        let group = found[next].clone();
        let names = tree.children(root, &group).unwrap_or_else(|error| {
            unlisted = Some(error);
            Vec::new()
        });
        let more = names.iter().map(|name| format!("{group}/{name}"));
        let room = most - found.len();
        if names.len() > room {
            let why = format!("no more than {most} groups in it are followed");
            unlisted = Some(ReadError::Io { path: path.into(), why });
        }
        found.extend(more.take(room));
        next += 1;
    }
    (found, unlisted)
}

#[cfg(test)]
mod tests;
