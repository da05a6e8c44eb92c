//! The scheduler's tree around one process: its groups, and who else is in them.
//!
//! ```text
//!   /                      level 0   others: /b, processes directly in /
//!   ├── a                  level 1   others: /a/y
//!   │   ├── x  ◀ process   level 2   others: its fellow processes
//!   │   └── y
//!   └── b
//! ```
//!
//! In cgroup v2 the tree ends at the deepest group with the cpu controller: everything
//! below competes there thread by thread. Threads in the root are further divided by
//! session where the kernel groups them so (sched(7), "The autogroup feature").

pub(crate) mod files;
pub(crate) mod mounts;
mod people;
pub(crate) mod write;

use corefit_core::{CpuSet, Group, Other, Sourced, Usage, Weight, What};

use crate::notes::Notes;
use crate::proc::{Process, autogroup};
use crate::root::{Root, optional, value};
use mounts::{Found, Mount, Place, Version};
use people::{People, fellows, outsiders, who};

/// What [`look`] finds.
pub(crate) struct View {
    pub(crate) groups: Vec<Group>,
    pub(crate) cpusets: Vec<Sourced<CpuSet>>,
    /// The process, and its descendants in the same CPU group.
    pub(crate) own: Vec<Process>,
    /// What each of their threads weighs.
    pub(crate) own_weight: Weight,
}

/// Who else is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Others {
    /// All who share a group with the process.
    All,
    /// All, and where they may run.
    Confined,
    /// Nobody.
    Nobody,
}

/// Reads the groups of `process` and who shares them.
pub(crate) fn look(
    root: &Root,
    process: &Process,
    others: Others,
    mounts: &[Mount],
    notes: &mut Notes,
) -> View {
    let pid = process.times.pid;
    let memberships = match optional(mounts::memberships(root, pid)) {
        Ok(memberships) => memberships.unwrap_or_default(),
        Err(error) => {
            notes.error(What::Ancestors, &error);
            return alone(process);
        }
    };
    let found = |controller| mounts::find(root, mounts, &memberships, controller, pid);
    let cpusets = cpusets(root, &found("cpuset"), notes);
    let mut people = People::new(root, process, others == Others::Confined, mounts);
    let mut view = match found("cpu") {
        Found::At(version, place) => {
            let acct = version == Version::V2 || mounts.iter().any(|m| m.counts_at(&place.point));
            let cpuset = match found("cpuset") {
                Found::At(version, place) => Some((version, place)),
                Found::Hidden { .. } | Found::Nowhere => None,
            };
            Tree { root, version, place, acct, cpuset, others }.view(process, &mut people, notes)
        }
        Found::Hidden { path, why } => {
            notes.add(What::Ancestors, path, why);
            alone(process)
        }
        Found::Nowhere => no_groups(root, process, others, &mut people, notes),
    };
    people.report(notes);
    view.cpusets = cpusets;
    view
}

/// Where nothing of the tree can be seen.
fn alone(process: &Process) -> View {
    View {
        groups: Vec::new(),
        cpusets: Vec::new(),
        own: vec![process.clone()],
        own_weight: Weight(process.weight),
    }
}

/// A kernel without control groups: everybody is in the root.
fn no_groups(
    root: &Root,
    process: &Process,
    others: Others,
    people: &mut People<'_>,
    notes: &mut Notes,
) -> View {
    let names = match others {
        Others::Nobody => Vec::new(),
        _ => notes.ask(What::Siblings, root.dirs("/proc").map(Some)).unwrap_or_default(),
    };
    let pids = names.iter().filter_map(|name| name.parse().ok()).collect();
    let mut view = alone(process);
    let (own, others) = fellows(process, people.read_visible(pids, "/proc"));
    view.own = own;
    view.groups = divide_root(root, Some(process.times.pid), others, 1.0, bare_group("/proc".into()), notes);
    view
}

fn bare_group(path: String) -> Group {
    Group { path, weight: None, quota: None, throttled: None, usage_ns: None, others: Vec::new() }
}

fn cpusets(root: &Root, found: &Found, notes: &mut Notes) -> Vec<Sourced<CpuSet>> {
    match found {
        Found::At(version, place) => {
            let top = place.dir(0);
            if *version == Version::V1 && !files::is_root(root, *version, &top) {
                let why =
                    "not the root: cpusets above it cannot be seen, but the affinity mask lies inside them";
                notes.add(What::Cpuset, top, why.into());
            }
            let levels = 0..=place.names.len();
            levels
                .filter_map(|level| notes.ask(What::Cpuset, files::cpuset(root, *version, &place.dir(level))))
                .collect()
        }
        Found::Hidden { path, why } => {
            notes.add(What::Cpuset, path.clone(), format!("{why}; the affinity lies inside the cpuset"));
            Vec::new()
        }
        Found::Nowhere => Vec::new(),
    }
}

/// The hierarchy of the cpu controller.
struct Tree<'a> {
    root: &'a Root,
    version: Version,
    place: Place,
    /// Whether the groups count their own CPU time.
    acct: bool,
    cpuset: Option<(Version, Place)>,
    others: Others,
}

impl Tree<'_> {
    fn view(&self, process: &Process, people: &mut People<'_>, notes: &mut Notes) -> View {
        let mut view = alone(process);
        view.own_weight = Weight(process.weight * self.scale());
        let top_is_root = files::is_root(self.root, self.version, &self.place.dir(0));
        if !top_is_root {
            let why = "not the root: quotas and siblings above it cannot be seen from inside this container";
            notes.add(What::Ancestors, self.place.dir(0), why.into());
        }
        let deepest = self.deepest();
        for level in 0..=deepest {
            let is_root = top_is_root && level == 0;
            let last = level == deepest;
            let mut group = self.group(level, is_root, notes);
            let child = self.place.names.get(level).filter(|_| !last);
            let mut members = Vec::new();
            if self.others != Others::Nobody {
                members = self.siblings(&mut group, child, last, people, notes);
                if self.version == Version::V1 || is_root || last {
                    members.extend(self.members(&group.path, people, notes));
                }
            }
            let (own, others) = fellows(process, members);
            if last && !own.is_empty() {
                view.own = own;
            }
            if is_root {
                let inside = last.then_some(process.times.pid);
                view.groups = divide_root(self.root, inside, others, self.scale(), group, notes);
            } else {
                group.others.extend(outsiders(others, self.scale()));
                view.groups.push(group);
            }
        }
        view
    }

    /// The level of the deepest group that the scheduler knows as one.
    fn deepest(&self) -> usize {
        let file = match self.version {
            Version::V1 => return self.place.names.len(),
            Version::V2 => "cpu.weight",
        };
        let mut levels = (0..=self.place.names.len()).rev();
        levels.find(|level| self.root.has(&format!("{}/{file}", self.place.dir(*level)))).unwrap_or(0)
    }

    /// What a nice-0 thread weighs among groups, over 1024.
    fn scale(&self) -> f64 {
        match self.version {
            Version::V1 => 1.0,
            Version::V2 => 100.0 / 1024.0,
        }
    }

    fn group(&self, level: usize, is_root: bool, notes: &mut Notes) -> Group {
        let (root, version, dir) = (self.root, self.version, self.place.dir(level));
        if is_root {
            return bare_group(dir);
        }
        let usage = if self.acct { files::usage_ns(root, version, &dir) } else { Ok(None) };
        Group {
            weight: notes.ask(What::Weight, files::weight(root, version, &dir)),
            quota: notes.ask(What::Quota, files::quota(root, version, &dir)),
            throttled: notes.ask(What::Quota, files::throttled(root, version, &dir)),
            usage_ns: notes.ask(What::Siblings, usage),
            others: Vec::new(),
            path: dir,
        }
    }

    /// Puts the groups beside `child` into `group`; hands back the members of those that
    /// are none to the scheduler.
    fn siblings(
        &self,
        group: &mut Group,
        child: Option<&String>,
        last: bool,
        people: &mut People<'_>,
        notes: &mut Notes,
    ) -> Vec<Process> {
        let mut loose = Vec::new();
        let names = notes.ask(What::Siblings, self.root.dirs(&group.path).map(Some)).unwrap_or_default();
        for name in names.iter().filter(|name| Some(*name) != child) {
            let dir = format!("{}/{name}", group.path);
            match files::weight(self.root, self.version, &dir) {
                Ok(Some(weight)) => {
                    let other = self.other(dir, Some(weight.value), people, notes);
                    group.others.extend(other);
                }
                Ok(None) if last || group.weight.is_none() => {
                    loose.extend(self.all_members(&dir, people, notes));
                }
                Ok(None) => {} // removed meanwhile
                Err(error) => {
                    notes.error(What::Weight, &error);
                    group.others.extend(self.other(dir, None, people, notes));
                }
            }
        }
        loose
    }

    /// A group beside the way; `None` if it was removed meanwhile.
    fn other(
        &self,
        dir: String,
        weight: Option<Weight>,
        people: &mut People<'_>,
        notes: &mut Notes,
    ) -> Option<Other> {
        let (root, version) = (self.root, self.version);
        let usage = if self.acct {
            Usage::GroupNs(notes.ask(What::Siblings, files::usage_ns(root, version, &dir))?)
        } else {
            let mut members = self.all_members(&dir, people, notes);
            // Each group that has a thread of a process lists it (v1): libvirt spreads a VM over one for each vCPU.
            members.sort_by_key(|member| member.times.pid);
            members.dedup_by_key(|member| member.times.pid);
            Usage::GroupMembers(members.into_iter().map(|m| m.times).collect())
        };
        let cpuset = self.cpuset.as_ref().and_then(|(version, place)| {
            let dir = place.counterpart(&self.place, &dir)?;
            notes.ask(What::Siblings, files::cpuset(root, *version, &dir))
        });
        Some(Other {
            who: String::new(),
            weight,
            quota: notes.ask(What::Siblings, files::quota(root, version, &dir)),
            cpuset: cpuset.map(|set| set.value),
            usage,
            path: dir,
        })
    }

    fn members(&self, dir: &str, people: &mut People<'_>, notes: &mut Notes) -> Vec<Process> {
        let path = format!("{dir}/cgroup.procs");
        let pids = optional(self.root.read(&path)).map(|text| {
            let text = text.unwrap_or_default();
            text.lines().filter_map(|line| line.trim().parse().ok()).collect()
        });
        match pids {
            Ok(pids) if self.version == Version::V1 => people.read_visible(pids, &path),
            Ok(pids) => people.read(pids, &path),
            Err(error) => {
                notes.error(What::Siblings, &error);
                Vec::new()
            }
        }
    }

    /// The members of a group and of all groups below it.
    fn all_members(&self, dir: &str, people: &mut People<'_>, notes: &mut Notes) -> Vec<Process> {
        let mut members = self.members(dir, people, notes);
        let names = notes.ask(What::Siblings, optional(self.root.dirs(dir))).unwrap_or_default();
        for name in names {
            members.extend(self.all_members(&format!("{dir}/{name}"), people, notes));
        }
        members
    }
}

/// The root of the tree and, if `inside` (a process directly in it) is in one, its session's
/// group below: processes in the root compete session by session where the kernel groups
/// them so, else one by one. `group` holds the control groups in the root.
fn divide_root(
    root: &Root,
    inside: Option<u32>,
    others: Vec<Process>,
    scale: f64,
    mut group: Group,
    notes: &mut Notes,
) -> Vec<Group> {
    let switch = "/proc/sys/kernel/sched_autogroup_enabled";
    let switch = optional(value(root, switch, "0 or 1", |text| text.parse::<u8>().ok()));
    let grouped = notes.ask(What::Siblings, switch) == Some(1);
    let mut session = |pid: u32| {
        let session = grouped.then(|| autogroup(root, pid))?;
        notes.ask(What::Siblings, session)
    };
    let mut mine = inside.and_then(|pid| {
        let (path, weight) = session(pid)?;
        let source = format!("/proc/{pid}/autogroup");
        let weight = Some(Sourced { value: Weight(weight * scale), source });
        Some(Group { weight, ..bare_group(path) })
    });
    let mut sessions: Vec<(String, f64, Vec<Process>)> = Vec::new();
    let mut direct = Vec::new();
    for other in others {
        match session(other.times.pid) {
            None => direct.push(other),
            Some((path, weight)) => match sessions.iter_mut().find(|s| s.0 == path) {
                Some(known) => known.2.push(other),
                None => sessions.push((path, weight, vec![other])),
            },
        }
    }
    group.others.extend(outsiders(direct, scale));
    for (path, weight, members) in sessions {
        match &mut mine {
            Some(mine) if mine.path == path => mine.others.extend(outsiders(members, scale)),
            _ => group.others.push(Other {
                path,
                who: who(&members),
                weight: Some(Weight(weight * scale)),
                quota: None,
                cpuset: None,
                usage: Usage::GroupMembers(members.into_iter().map(|m| m.times).collect()),
            }),
        }
    }
    std::iter::once(group).chain(mine).collect()
}
