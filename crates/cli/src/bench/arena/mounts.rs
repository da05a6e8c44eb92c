//! Where control groups can be made: the mounted hierarchies with a cpu or cpuset controller,
//! and in each the process's own group and its ancestors.

use std::path::{Path, PathBuf};

/// Which interface a hierarchy has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bench) enum Version {
    V1,
    V2,
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == Version::V1 { "v1" } else { "v2" })
    }
}

/// A mounted hierarchy.
#[derive(Debug, PartialEq)]
pub(super) struct Hierarchy {
    pub(super) version: Version,
    pub(super) point: PathBuf,
    /// The process's own group, its parent, and so on up to the mount point.
    pub(super) parents: Vec<PathBuf>,
}

/// The hierarchies of cgroup v2 and of the v1 controllers cpu and cpuset, from the texts of
/// `/proc/self/mountinfo` and `/proc/self/cgroup` (proc(5), cgroups(7)).
pub(super) fn hierarchies(mountinfo: &str, memberships: &str) -> Vec<Hierarchy> {
    let mut found: Vec<Hierarchy> = vec![];
    for line in mountinfo.lines() {
        let Some(mount) = Mount::parse(line) else {
            continue;
        };
        let (version, controllers) = match mount.kind {
            "cgroup2" => (Version::V2, vec![""]),
            "cgroup" => (Version::V1, mount.options.split(',').collect()),
            _ => continue,
        };
        let wanted = |c: &&str| version == Version::V2 || ["cpu", "cpuset"].contains(c);
        let Some(controller) = controllers.into_iter().find(wanted) else {
            continue;
        };
        let hierarchy = Hierarchy {
            version,
            parents: parents(&mount, own_path(memberships, controller)),
            point: mount.point,
        };
        if found.iter().all(|h| h.point != hierarchy.point) {
            found.push(hierarchy);
        }
    }
    found
}

struct Mount<'t> {
    root: &'t str,
    point: PathBuf,
    kind: &'t str,
    options: &'t str,
}

impl Mount<'_> {
    /// One line: `ID PARENT DEV ROOT POINT OPTIONS [FIELDS] - TYPE SOURCE SUPEROPTIONS`.
    fn parse(line: &str) -> Option<Mount<'_>> {
        let (left, right) = line.split_once(" - ")?;
        let left: Vec<&str> = left.split(' ').collect();
        let right: Vec<&str> = right.split(' ').collect();
        Some(Mount {
            root: left.get(3)?,
            // Spaces are written as \040.
            point: PathBuf::from(left.get(4)?.replace("\\040", " ")),
            kind: right.first()?,
            options: right.get(2)?,
        })
    }
}

/// The path after `ID:controllers:` in a line of `/proc/self/cgroup`; `""` is cgroup v2.
fn own_path<'t>(memberships: &'t str, controller: &str) -> &'t str {
    let path = |line: &'t str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let named = fields.next()?.split(',').any(|c| c == controller);
        fields.next().filter(|_| named)
    };
    memberships.lines().find_map(path).unwrap_or("/")
}

/// The group at `own` and its ancestors; only the mount point if the mount does not show it.
fn parents(mount: &Mount<'_>, own: &str) -> Vec<PathBuf> {
    let below = Path::new(own)
        .strip_prefix(mount.root)
        .ok()
        .filter(|p| p.components().all(|c| c.as_os_str() != ".."))
        .unwrap_or(Path::new(""));
    let mut parents: Vec<PathBuf> =
        below.ancestors().filter(|p| p.components().next().is_some()).map(|p| mount.point.join(p)).collect();
    parents.push(mount.point.clone());
    parents
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "\
24 30 0:22 / /sys/fs/cgroup ro - tmpfs tmpfs rw
25 24 0:23 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct
26 24 0:24 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset
27 24 0:25 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
28 24 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
";

    #[test]
    fn finds_the_cpu_hierarchies_of_a_hybrid_machine() {
        let own = "4:memory:/m\n3:cpuset:/\n2:cpu,cpuacct:/user/x\n0::/u\n";
        let found = hierarchies(V1, own);
        let dirs =
            |h: &Hierarchy| -> Vec<String> { h.parents.iter().map(|p| p.display().to_string()).collect() };
        let base = "/sys/fs/cgroup";
        assert_eq!(found.len(), 3);
        assert_eq!(dirs(&found[0]), ["/user/x", "/user", ""].map(|p| format!("{base}/cpu,cpuacct{p}")));
        assert_eq!(dirs(&found[1]), [format!("{base}/cpuset")]);
        assert_eq!(found[2].version, Version::V2);
        assert_eq!(found[2].parents[0], Path::new("/sys/fs/cgroup/unified/u"));
    }

    #[test]
    fn a_container_that_sees_its_own_part_starts_at_the_mount_point() {
        let mount = "1 2 0:3 /docker/ab /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n";
        let found = hierarchies(mount, "1:cpu:/docker/ab\n");
        assert_eq!(found[0].parents, [Path::new("/sys/fs/cgroup/cpu")]);
        let found = hierarchies(mount, "1:cpu:/elsewhere\n");
        assert_eq!(found[0].parents, [Path::new("/sys/fs/cgroup/cpu")]);
    }

    #[test]
    fn a_group_above_the_namespace_is_not_followed() {
        let mount = "1 2 0:3 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let found = hierarchies(mount, "0::/../other\n");
        assert_eq!(found[0].parents, [Path::new("/sys/fs/cgroup")]);
    }
}
