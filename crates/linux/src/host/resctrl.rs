//! What control groups and VMs do to last-level caches, as the kernel's `resctrl` counts it.
//!
//! ```text
//! /sys/fs/resctrl/                     everything: tells of nobody
//!   mon_groups/m1/                     a monitoring group
//!   c1/  c1/mon_groups/m2/             a control group, which counts what is in its monitoring groups, too
//!   …/tasks                            its threads
//!   …/cpus_list                        pCPUs of which it counts whoever is in no other group: must be empty
//!   …/mon_data/mon_L3_00/{llc_occupancy,mbm_total_bytes}    bytes now, bytes so far; of each cache
//! ```
//!
//! Nothing is made or changed here: groups are those of libvirt (`<monitor level='3'>`), of a container runtime, or of the
//! administrator (`docs/operating.md`). A VM's counters are those of the groups that hold its threads and nobody else's.
//! Source: Documentation/arch/x86/resctrl.rst of Linux; `tasks` has the numbers of the reader's PID namespace.

use std::collections::BTreeSet;

use corefit_core::machine::CacheUse;

use crate::root::{ReadError, Root};

const TOP: &str = "/sys/fs/resctrl";

/// What counts caches on a machine: asked at each look, as it can be mounted at any time.
#[derive(Default)]
pub(crate) struct Resctrl {
    /// Whether the CPUs say that they count: read once.
    able: Option<bool>,
}

/// The monitoring groups of a machine, with their threads, at one instant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Monitors {
    groups: Vec<Group>,
    /// Why there is none.
    pub(crate) none: Option<String>,
}

#[derive(Clone, Debug)]
struct Group {
    dir: String,
    /// The control group that counts it, too.
    within: Option<String>,
    tasks: BTreeSet<u32>,
}

impl Resctrl {
    /// Lists the groups that count, and who is in them.
    pub(crate) fn read(&mut self, root: &Root) -> Monitors {
        match self.groups(root) {
            Ok(groups) => Monitors { groups, none: None },
            Err(why) => Monitors { groups: Vec::new(), none: Some(why) },
        }
    }

    fn groups(&mut self, root: &Root) -> Result<Vec<Group>, String> {
        if !root.has(&format!("{TOP}/info")) {
            let able = *self.able.get_or_insert_with(|| {
                let text = root.read("/proc/cpuinfo").unwrap_or_default();
                let flags = text.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
                flags.split_whitespace().any(|flag| flag == "cqm_mbm_total")
            });
            return Err(if able {
                format!(
                    "{TOP} is not mounted on this host, whose CPUs count (mount -t resctrl resctrl {TOP})"
                )
            } else {
                format!("this host has no counters of caches (no {TOP}, no cqm_mbm_total in /proc/cpuinfo)")
            });
        }
        if !root.has(&format!("{TOP}/info/L3_MON")) {
            return Err(format!("this host has no counters of caches ({TOP}/info has no L3_MON)"));
        }
        let mut groups = Vec::new();
        let said = |error: ReadError| format!("what VMs do to caches cannot be read here: {error}");
        let monitors = |parent: &str| -> Result<Vec<String>, String> {
            let dir = format!("{parent}/mon_groups");
            let names = crate::root::optional(root.dirs(&dir)).map_err(said)?.unwrap_or_default();
            Ok(names.into_iter().map(|name| format!("{dir}/{name}")).collect())
        };
        let mut add = |dir: String, within: Option<&String>| {
            // A group that went meanwhile, or that counts whole pCPUs, counts nobody's threads.
            let own = |file: &str| root.read(&format!("{dir}/{file}")).ok();
            if own("cpus_list").is_some_and(|list| !list.trim().is_empty()) {
                return;
            }
            let tasks = own("tasks").unwrap_or_default();
            let tasks = tasks.lines().filter_map(|line| line.trim().parse().ok()).collect();
            groups.push(Group { dir, within: within.cloned(), tasks });
        };
        for dir in monitors(TOP)? {
            add(dir, None);
        }
        let control = root.dirs(TOP).map_err(said)?;
        let control =
            control.into_iter().filter(|name| !["info", "mon_groups", "mon_data"].contains(&name.as_str()));
        for dir in control.map(|name| format!("{TOP}/{name}")) {
            let inside = monitors(&dir)?;
            add(dir.clone(), None);
            for monitor in inside {
                add(monitor, Some(&dir));
            }
        }
        if groups.is_empty() {
            return Err(format!(
                "{TOP} of this host has no monitoring group (libvirt makes one for <monitor level='3' …/>; see docs/operating.md)"
            ));
        }
        Ok(groups)
    }
}

impl Monitors {
    /// What these threads did, if groups hold all of them and nobody but them and `others` of the same VM.
    pub(crate) fn of(
        &self,
        root: &Root,
        threads: impl FnOnce() -> BTreeSet<u32>,
        others: impl FnOnce() -> BTreeSet<u32>,
    ) -> Option<CacheUse> {
        if self.groups.is_empty() {
            return None;
        }
        let (threads, others) = (threads(), others());
        let alone = |group: &&Group| {
            !group.tasks.is_empty()
                && group.tasks.iter().all(|task| threads.contains(task) || others.contains(task))
        };
        let own: Vec<&Group> = self.groups.iter().filter(alone).collect();
        let covered = |thread: &u32| own.iter().any(|group| group.tasks.contains(thread));
        if threads.is_empty() || !threads.iter().all(covered) {
            return None;
        }
        let counted_above = |group: &Group| {
            group.within.as_ref().is_some_and(|dir| own.iter().any(|other| other.dir == *dir))
        };
        let groups: Vec<&Group> = own.iter().copied().filter(|group| !counted_above(group)).collect();
        let sum = |file: &str| groups.iter().map(|group| total(root, &group.dir, file)).sum::<Option<u64>>();
        let found = CacheUse { occupancy_bytes: sum("llc_occupancy"), traffic_bytes: sum("mbm_total_bytes") };
        (found != CacheUse::default()).then_some(found)
    }
}

/// The sum over all caches; `None` where a file is not there or says no number (`Unavailable`, `Unassigned`, `Error`).
fn total(root: &Root, dir: &str, file: &str) -> Option<u64> {
    let caches = root.dirs(&format!("{dir}/mon_data")).ok()?;
    let mut caches = caches.iter().filter(|name| name.starts_with("mon_L3_")).peekable();
    caches.peek()?;
    let one = |cache: &String| {
        root.read(&format!("{dir}/mon_data/{cache}/{file}")).ok()?.trim().parse::<u64>().ok()
    };
    caches.map(one).try_fold(0, |sum: u64, bytes| sum.checked_add(bytes?))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::root::testing;

    fn put(dir: &Path, file: &str, text: &str) {
        testing::put(dir, file, &format!("{text}\n"));
    }

    /// A group with counters of two caches.
    fn group(dir: &Path, name: &str, tasks: &str, counters: [[&str; 2]; 2]) {
        let at = |file: &str| format!("sys/fs/resctrl/{name}/{file}");
        put(dir, &at("tasks"), tasks);
        put(dir, &at("cpus_list"), "");
        for (cache, [occupancy, traffic]) in ["mon_L3_00", "mon_L3_01"].iter().zip(counters) {
            put(dir, &at(&format!("mon_data/{cache}/llc_occupancy")), occupancy);
            put(dir, &at(&format!("mon_data/{cache}/mbm_total_bytes")), traffic);
        }
    }

    fn set(tasks: &[u32]) -> BTreeSet<u32> {
        tasks.iter().copied().collect()
    }

    fn using(occupancy_bytes: Option<u64>, traffic_bytes: Option<u64>) -> Option<CacheUse> {
        Some(CacheUse { occupancy_bytes, traffic_bytes })
    }

    #[test]
    fn a_vm_has_the_counters_of_the_groups_that_hold_its_threads_and_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "sys/fs/resctrl/info/L3_MON/num_rmids", "144");
        // libvirt: a control group for a VM's vCPUs 0 and 1, with a monitor for each.
        group(dir.path(), "qemu-1-a-vcpus_0-1", "11\n12", [["100", "1000"], ["20", "200"]]);
        group(dir.path(), "qemu-1-a-vcpus_0-1/mon_groups/vcpus_0", "11", [["60", "600"], ["20", "200"]]);
        group(dir.path(), "qemu-1-a-vcpus_0-1/mon_groups/vcpus_1", "12", [["40", "400"], ["0", "0"]]);
        // Two of the default control group: one of another VM alone, one for two VMs.
        group(dir.path(), "mon_groups/b", "21", [["7", "70"], ["Unavailable", "7"]]);
        group(dir.path(), "mon_groups/c", "31\n41", [["9", "90"], ["9", "90"]]);
        // One that counts whoever is on pCPU 3.
        group(dir.path(), "mon_groups/d", "51", [["5", "5"], ["5", "5"]]);
        put(dir.path(), "sys/fs/resctrl/mon_groups/d/cpus_list", "3");
        let root = Root::at(dir.path());
        let monitors = Resctrl::default().read(&root);
        assert_eq!(monitors.none, None);
        let of = |threads: &[u32], others: &[u32]| monitors.of(&root, || set(threads), || set(others));
        assert_eq!(
            of(&[11, 12], &[13]),
            using(Some(120), Some(1200)),
            "the control group counts its monitors"
        );
        assert_eq!(of(&[11], &[]), using(Some(80), Some(800)), "the other thread is not its own");
        assert_eq!(of(&[21], &[]), using(None, Some(77)), "what is not available is not zero");
        assert_eq!(of(&[31], &[]), None, "somebody else's threads are counted with it");
        assert_eq!(of(&[31, 41], &[]), using(Some(18), Some(180)));
        assert_eq!(of(&[21, 22], &[]), None, "one of its threads is not counted");
        assert_eq!(of(&[51], &[]), None, "who runs on that pCPU is counted with it");
        assert_eq!(of(&[], &[21]), None);
    }

    #[test]
    fn a_host_that_counts_nothing_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let why = || Resctrl::default().read(&Root::at(dir.path())).none.unwrap();
        assert!(why().starts_with("this host has no counters of caches (no /sys/fs/resctrl, "), "{}", why());
        put(
            dir.path(),
            "proc/cpuinfo",
            "processor\t: 0\nflags\t\t: fpu cqm_llc cqm_occup_llc cqm_mbm_total rdt_a",
        );
        assert!(why().contains("mount -t resctrl"), "{}", why());
        put(dir.path(), "sys/fs/resctrl/info/L3/num_closids", "16");
        assert!(why().contains("no L3_MON"), "{}", why());
        put(dir.path(), "sys/fs/resctrl/info/L3_MON/num_rmids", "144");
        fs::create_dir_all(dir.path().join("sys/fs/resctrl/mon_groups")).unwrap();
        assert!(why().contains("has no monitoring group"), "{}", why());
    }
}
