//! Where the directory of a process's control group is.
//!
//! `/proc/PID/cgroup` names the group relative to the *cgroup namespace* of the reader, and
//! `/proc/self/mountinfo` says which part of the hierarchy is mounted where. In a container
//! the mount may begin at the container's own group (`/docker/abc`, cgroup v1 without a
//! namespace), or the namespace hides everything above (`/`), or the mount begins *above*
//! the namespace's root (`/..`), where the names on the way are not told: then the group is
//! found by looking for the process in it. Sources: cgroup_namespaces(7), proc(5).

use std::path::PathBuf;

use crate::root::{ReadError, Root};

/// How far down, and through how many groups, a process is searched for.
const SEARCH_DEPTH: usize = 8;
const SEARCH_GROUPS: usize = 10_000;

/// A mount of a control group hierarchy, or another mount that matters here.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mount {
    /// Which part of the file system is mounted.
    root: Vec<String>,
    /// Where.
    pub(crate) point: String,
    pub(crate) kind: String,
    /// Options of the file system; of a cgroup v1 mount they name the controllers.
    pub(crate) options: Vec<String>,
}

impl Mount {
    /// Whether groups mounted at `point` count their CPU time (v1: cpuacct mounted with cpu).
    pub(crate) fn counts_at(&self, point: &str) -> bool {
        self.kind == "cgroup" && self.point == point && self.options.iter().any(|o| o == "cpuacct")
    }
}

/// Where the groups of one controller are mounted.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mounted {
    pub(crate) version: Version,
    pub(crate) point: String,
    /// How deep in the hierarchy the mount begins: 0 shows all of it.
    pub(crate) depth: usize,
}

/// The hierarchy that has a controller (v1), or else the one of v2; the mount that shows most of it.
pub(crate) fn hierarchy(mounts: &[Mount], controller: &str) -> Option<Mounted> {
    let best = |version, fits: &dyn Fn(&&Mount) -> bool| {
        let depth = |mount: &Mount| mount.root.iter().filter(|name| *name != "..").count();
        let mount = mounts.iter().filter(fits).min_by_key(|mount| depth(mount))?;
        Some(Mounted { version, point: mount.point.clone(), depth: depth(mount) })
    };
    let v1 = |mount: &&Mount| mount.kind == "cgroup" && mount.options.iter().any(|o| o == controller);
    best(Version::V1, &v1).or_else(|| best(Version::V2, &|mount| mount.kind == "cgroup2"))
}

/// A group in a mounted hierarchy.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Place {
    /// Where the hierarchy is mounted.
    pub(crate) point: String,
    /// The names from there down to the group.
    pub(crate) names: Vec<String>,
    /// Which part of the hierarchy is mounted.
    root: Vec<String>,
}

impl Place {
    /// The directory of the ancestor at `level`; 0 is the mount point.
    pub(crate) fn dir(&self, level: usize) -> String {
        self.names[..level].iter().fold(self.point.clone(), |dir, name| format!("{dir}/{name}"))
    }

    /// The directory in this hierarchy of the group that in `other`'s hierarchy is in `dir`.
    pub(crate) fn counterpart(&self, other: &Place, dir: &str) -> Option<String> {
        let below = split(dir.strip_prefix(&other.point)?);
        let path: Vec<String> = other.root.iter().chain(&below).cloned().collect();
        Some(
            relative(&self.root, &path)?.iter().fold(self.point.clone(), |dir, name| format!("{dir}/{name}")),
        )
    }
}

/// Which interface a hierarchy has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// A hierarchy for each controller or some of them.
    V1,
    /// One for all.
    V2,
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == Version::V1 { "v1" } else { "v2" })
    }
}

/// A mounted hierarchy, and where in it a process is.
#[derive(Clone, Debug, PartialEq)]
pub struct Hierarchy {
    /// Its interface.
    pub version: Version,
    /// Directories: the process's own group, its parent, and so on up to the mount point, which alone is there if the mount
    /// does not show the group.
    pub groups: Vec<PathBuf>,
}

/// The mounted hierarchies of cgroup v2 and of the v1 controllers cpu and cpuset, each with the groups of a process.
///
/// # Errors
/// `/proc/self/mountinfo` or `/proc/PID/cgroup` cannot be read.
pub fn hierarchies(root: &Root, pid: u32) -> Result<Vec<Hierarchy>, ReadError> {
    let memberships = memberships(root, pid)?;
    let mut found: Vec<Hierarchy> = vec![];
    for mount in mounts(root)? {
        let controller = mount.options.iter().find(|name| ["cpu", "cpuset"].contains(&name.as_str()));
        let (version, controllers) = match (mount.kind.as_str(), controller) {
            ("cgroup2", _) => (Version::V2, None),
            ("cgroup", Some(controller)) => (Version::V1, Some(controller)),
            _ => continue,
        };
        let own = memberships.iter().find(|own| match controllers {
            Some(controller) => own.controllers.contains(controller),
            None => own.controllers.is_empty(),
        });
        let names = own.and_then(|own| relative(&mount.root, &split(&own.path))).unwrap_or_default();
        let place = Place { point: mount.point, names, root: mount.root };
        let groups: Vec<PathBuf> =
            (0..=place.names.len()).rev().map(|level| place.dir(level).into()).collect();
        if found.iter().all(|other| other.groups.last() != groups.last()) {
            found.push(Hierarchy { version, groups });
        }
    }
    Ok(found)
}

/// Where the group of a process for one controller is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Found {
    At(Version, Place),
    /// It exists, but cannot be seen from here.
    Hidden {
        path: String,
        why: String,
    },
    /// The kernel has no such controller.
    Nowhere,
}

/// One line of `/proc/PID/cgroup`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Membership {
    controllers: Vec<String>,
    path: String,
}

/// Reads the mounts that the reading process sees.
pub(crate) fn mounts(root: &Root) -> Result<Vec<Mount>, ReadError> {
    let path = "/proc/self/mountinfo";
    let text = root.read(path)?;
    let parse = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let mut right = right.split(' ');
        Some(Mount {
            root: split(&unescape(left.next()?)),
            point: unescape(left.next()?),
            kind: right.next()?.into(),
            options: right.nth(1)?.split(',').map(Into::into).collect(),
        })
    };
    let lines = text.lines().enumerate();
    lines
        .map(|(i, line)| {
            parse(line).ok_or_else(|| ReadError::malformed(path, i + 1, line, "line about a mount"))
        })
        .collect()
}

/// Reads the groups of a process.
pub(crate) fn memberships(root: &Root, pid: u32) -> Result<Vec<Membership>, ReadError> {
    let path = format!("/proc/{pid}/cgroup");
    let text = root.read(&path)?;
    let parse = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let controllers = parts.next()?.split(',').filter(|c| !c.is_empty());
        let controllers = controllers.map(Into::into).collect();
        let path = parts.next().filter(|path| path.starts_with('/'))?;
        Some(Membership { controllers, path: path.into() })
    };
    let lines = text.lines().enumerate();
    lines
        .map(|(i, line)| {
            parse(line).ok_or_else(|| {
                ReadError::malformed(&path, i + 1, line, "line ID:CONTROLLERS:/PATH about a group")
            })
        })
        .collect()
}

/// Finds the directory of the process's group for `controller`.
pub(crate) fn find(
    root: &Root,
    mounts: &[Mount],
    memberships: &[Membership],
    controller: &str,
    pid: u32,
) -> Found {
    let has = |names: &[String]| names.iter().any(|name| name == controller);
    let v1 = memberships.iter().find(|m| has(&m.controllers));
    let v2 = memberships.iter().find(|m| m.controllers.is_empty());
    let (version, membership) = match (v1, v2) {
        (Some(membership), _) => (Version::V1, membership),
        (None, Some(membership)) => (Version::V2, membership),
        (None, None) => return Found::Nowhere,
    };
    let mut candidates: Vec<&Mount> = mounts
        .iter()
        .filter(|mount| match version {
            Version::V1 => mount.kind == "cgroup" && has(&mount.options),
            Version::V2 => mount.kind == "cgroup2",
        })
        .collect();
    // The mount that shows most ancestors first.
    candidates.sort_by_key(|mount| mount.root.iter().filter(|name| *name != "..").count());
    let hidden = |why: String| Found::Hidden { path: membership.path.clone(), why };
    if candidates.is_empty() {
        return hidden(format!("no file system with the {controller} controller is mounted"));
    }
    let path = split(&membership.path);
    for mount in &candidates {
        let place = |names| Place { point: mount.point.clone(), names, root: mount.root.clone() };
        if let Some(names) = relative(&mount.root, &path) {
            let place = place(names);
            if root.has(&place.dir(place.names.len())) {
                return Found::At(version, place);
            }
        }
        if let Some(names) = search(root, &mount.point, pid) {
            return Found::At(version, place(names));
        }
    }
    let points: Vec<&str> = candidates.iter().map(|mount| mount.point.as_str()).collect();
    hidden(format!("the group lies outside of what is mounted at {}", points.join(", ")))
}

/// The way from `from` down to `to`, if the names tell it.
fn relative(from: &[String], to: &[String]) -> Option<Vec<String>> {
    let way = to.strip_prefix(from)?;
    (!way.iter().any(|name| name == "..")).then(|| way.to_vec())
}

/// The way from `point` down to the group that lists the process.
fn search(root: &Root, point: &str, pid: u32) -> Option<Vec<String>> {
    let mut open = vec![Vec::<String>::new()];
    let mut seen = 0;
    while let Some(names) = open.pop() {
        seen += 1;
        if seen > SEARCH_GROUPS {
            return None;
        }
        let dir = names.iter().fold(point.to_owned(), |dir, name| format!("{dir}/{name}"));
        let members = root.read(&format!("{dir}/cgroup.procs")).unwrap_or_default();
        if members.lines().any(|line| line.parse() == Ok(pid)) {
            return Some(names);
        }
        if names.len() < SEARCH_DEPTH {
            for name in root.dirs(&dir).unwrap_or_default() {
                open.push(names.iter().cloned().chain([name]).collect());
            }
        }
    }
    None
}

fn split(path: &str) -> Vec<String> {
    path.split('/').filter(|name| !name.is_empty()).map(Into::into).collect()
}

/// Undoes the octal escapes of mountinfo (`\040` is a blank).
fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        out.push_str(before);
        match after.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if byte.is_ascii() => {
                out.push(char::from(byte));
                rest = &after[3..];
            }
            _ => {
                out.push('\\');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::testing::tree;

    fn way(from: &str, to: &str) -> Option<String> {
        relative(&split(from), &split(to)).map(|names| names.join("/"))
    }

    #[test]
    fn strips_the_part_of_the_hierarchy_that_is_mounted() {
        assert_eq!(way("/", "/a/b").as_deref(), Some("a/b"));
        assert_eq!(way("/docker/abc", "/docker/abc").as_deref(), Some(""));
        assert_eq!(way("/docker/abc", "/docker/abc/sub").as_deref(), Some("sub"));
        assert_eq!(way("/..", "/../b").as_deref(), Some("b"));
    }

    #[test]
    fn names_that_are_not_told_are_not_made_up() {
        assert_eq!(way("/..", "/"), None); // which child of the parent am I?
        assert_eq!(way("/", "/../b"), None); // outside of the namespace
        assert_eq!(way("/docker/abc", "/docker/abd"), None);
        assert_eq!(way("/../..", "/../b"), None);
    }

    /// The hierarchies of process 7, and the directories of its groups.
    fn dirs(mountinfo: &str, own: &str) -> Vec<(Version, Vec<String>)> {
        let (_dir, root) = tree(&[("proc/self/mountinfo", mountinfo), ("proc/7/cgroup", own)]);
        let dirs = |groups: &[PathBuf]| groups.iter().map(|group| group.display().to_string()).collect();
        let found = hierarchies(&root, 7).unwrap();
        found.iter().map(|found| (found.version, dirs(&found.groups))).collect()
    }

    #[test]
    fn finds_the_cpu_hierarchies_of_a_hybrid_machine() {
        let mountinfo = "24 30 0:22 / /sys/fs/cgroup ro - tmpfs tmpfs rw\n\
            25 24 0:23 / /cg/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
            26 24 0:24 / /cg/cpuset rw - cgroup cgroup rw,cpuset\n\
            27 24 0:25 / /cg/memory rw - cgroup cgroup rw,memory\n\
            28 24 0:26 / /cg/unified rw - cgroup2 cgroup2 rw\n";
        let found = dirs(mountinfo, "4:memory:/m\n3:cpuset:/\n2:cpu,cpuacct:/user/x\n0::/u\n");
        let cpu = ["/user/x", "/user", ""].map(|group| format!("/cg/cpu,cpuacct{group}"));
        let unified = ["/cg/unified/u".into(), "/cg/unified".into()];
        assert_eq!(found[0], (Version::V1, cpu.into()));
        assert_eq!(found[1..], [(Version::V1, vec!["/cg/cpuset".into()]), (Version::V2, unified.into())]);
    }

    #[test]
    fn of_a_group_that_the_mount_does_not_show_the_mount_point_is_there() {
        let docker = "1 2 0:3 /docker/ab /cg/cpu ro - cgroup cgroup rw,cpu\n";
        let unified = "1 2 0:3 / /cg/cpu rw - cgroup2 cgroup2 rw\n";
        for (mountinfo, own) in
            [(docker, "1:cpu:/docker/ab\n"), (docker, "1:cpu:/elsewhere\n"), (unified, "0::/../other\n")]
        {
            assert_eq!(dirs(mountinfo, own)[0].1, ["/cg/cpu"], "{own}");
        }
    }

    #[test]
    fn reads_escaped_mount_points() {
        assert_eq!(unescape(r"/a\040b\134c"), r"/a b\c");
        assert_eq!(unescape(r"\9\"), r"\9\");
    }
}
