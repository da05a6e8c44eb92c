//! Which CPUs are siblings of one core, from `/sys/devices/system/cpu`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use corefit_core::{CpuSet, place::Core};

/// The cores of the machine whose root directory is `root`, lowest CPU first. SMT threads of
/// one core and the two cores of a module (AMD family 15h) are both listed as thread siblings
/// by the kernel. CPUs without topology (offline ones, some VMs) are missing.
#[must_use]
pub fn cores(root: &Path) -> Vec<Core> {
    let entries = fs::read_dir(root.join("sys/devices/system/cpu")).into_iter().flatten();
    let cores: BTreeSet<Core> = entries
        .filter_map(|entry| {
            let topology = entry.ok()?.path().join("topology");
            let list = ["core_cpus_list", "thread_siblings_list"]
                .iter()
                .find_map(|name| fs::read_to_string(topology.join(name)).ok())?;
            list.parse::<CpuSet>().ok().filter(|core| !core.is_empty())
        })
        .collect();
    let mut cores: Vec<Core> = cores.into_iter().collect();
    cores.sort_by_key(|core| core.iter().next());
    cores
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(cpus: &[(&str, &str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (cpu, file, list) in cpus {
            let dir = root.path().join("sys/devices/system/cpu").join(cpu).join("topology");
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join(file), format!("{list}\n")).unwrap();
        }
        fs::create_dir_all(root.path().join("sys/devices/system/cpu/cpuidle")).unwrap();
        root
    }

    #[test]
    fn siblings_are_one_core_under_both_names_of_the_file() {
        let root = machine(&[
            ("cpu0", "core_cpus_list", "0,2"),
            ("cpu2", "core_cpus_list", "0,2"),
            ("cpu1", "thread_siblings_list", "1,3"),
            ("cpu3", "thread_siblings_list", "1,3"),
        ]);
        let lists: Vec<String> = cores(root.path()).iter().map(CpuSet::to_string).collect();
        assert_eq!(lists, ["0,2", "1,3"]);
    }

    #[test]
    fn a_machine_without_topology_has_no_known_cores() {
        let root = tempfile::tempdir().unwrap();
        assert!(cores(root.path()).is_empty());
    }
}
