//! Which CPUs share what, from `/sys/devices/system/cpu`.

mod live;

use std::collections::BTreeSet;

use corefit_core::{CpuId, CpuSet, place::Core};

use crate::root::{Root, value};

pub(crate) use live::last_level;
pub use live::read;

const CPUS: &str = "/sys/devices/system/cpu";

/// The cores of a machine, lowest CPU first. SMT threads of
/// one core and the two cores of a module (AMD family 15h) are both listed as thread siblings
/// by the kernel. CPUs without topology (offline ones, some VMs) are missing.
#[must_use]
pub fn cores(root: &Root) -> Vec<Core> {
    let cpus = root.dirs(CPUS).unwrap_or_default();
    let cores: BTreeSet<Core> = cpus.iter().filter_map(|cpu| siblings(root, cpu)).collect();
    let mut cores: Vec<Core> = cores.into_iter().collect();
    cores.sort_by_key(|core| core.iter().next());
    cores
}

/// The core of the CPU that sysfs calls `cpu3` or so.
pub(crate) fn siblings(root: &Root, cpu: &str) -> Option<Core> {
    let of = |name| listed(root, &format!("{CPUS}/{cpu}/topology/{name}"));
    of("core_cpus").or_else(|| of("thread_siblings")).filter(|core| !core.is_empty())
}

/// CPUs of a file and its twin: `core_cpus_list`, else the bitmap `core_cpus` of older kernels. The lists of some
/// end in a NUL behind their line (seen on an arm64 server, in hwloc's capture of it).
fn listed(root: &Root, path: &str) -> Option<CpuSet> {
    let list = value(root, &format!("{path}_list"), "list of CPUs", |text| text.parse().ok());
    list.ok().or_else(|| mask(root, path))
}

/// A file with a bitmap: `0000000f,00000001`, 32-bit words, the highest first.
fn mask(root: &Root, path: &str) -> Option<CpuSet> {
    value(root, path, "bitmap of CPUs", |text| {
        let mut set = Vec::new();
        for (number, word) in (0..2048).zip(text.split(',').rev()) {
            let word = u32::from_str_radix(word, 16).ok()?;
            set.extend((0..32).filter(|bit| word >> bit & 1 == 1).map(|bit| CpuId(number * 32 + bit)));
        }
        Some(set.into_iter().collect())
    })
    .ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use corefit_core::Cpus;
    use corefit_core::place::spread;

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
        let lists: Vec<String> = cores(&Root::at(root.path())).iter().map(CpuSet::to_string).collect();
        assert_eq!(lists, ["0,2", "1,3"]);
    }

    /// Two sockets of four cores with two SMT threads each, numbered as Linux does on x86: first
    /// one thread of each core, socket by socket, then their siblings. CPUs 2 and 12 to 15 are
    /// offline: the kernel takes away their `topology` and leaves them out of their siblings' lists.
    #[test]
    fn cores_with_an_offline_sibling_are_cores_of_one_cpu() {
        let root = tempfile::tempdir().unwrap();
        let online: CpuSet = "0-1,3-11".parse().unwrap();
        for cpu in 0..16u32 {
            let dir = root.path().join(format!("sys/devices/system/cpu/cpu{cpu}"));
            fs::create_dir_all(&dir).unwrap();
            let there = CpuSet::from_iter([CpuId(cpu)]).intersection(&online);
            fs::write(dir.join("online"), format!("{}\n", there.len())).unwrap();
            if there.is_empty() {
                continue;
            }
            let siblings = CpuSet::from_iter([CpuId(cpu % 8), CpuId(cpu % 8 + 8)]).intersection(&online);
            let first = cpu % 8 / 4 * 4;
            let socket = [first, first + 8].map(|from| (from..from + 4).map(CpuId));
            let socket = socket.into_iter().flatten().collect::<CpuSet>().intersection(&online);
            let topology = dir.join("topology");
            fs::create_dir(&topology).unwrap();
            for (file, list) in [
                ("core_cpus_list", &siblings),
                ("thread_siblings_list", &siblings),
                ("core_siblings_list", &socket), // CPUs of the socket, in spite of its name
                ("package_cpus_list", &socket),
            ] {
                fs::write(topology.join(file), format!("{list}\n")).unwrap();
            }
        }
        let cores = cores(&Root::at(root.path()));
        let lists: Vec<String> = cores.iter().map(CpuSet::to_string).collect();
        assert_eq!(lists, ["0,8", "1,9", "3,11", "4", "5", "6", "7", "10"]);
        let place = |allowed: &CpuSet, threads| spread(&cores, allowed, threads, |_| Cpus(0.0)).to_string();
        assert_eq!(place(&online, 8), "0-1,3-7,10", "a CPU of each core, the lone sibling among them");
        assert_eq!(place(&online, 9), "0-1,3-11", "more threads than cores");
        // The first socket alone, as `taskset` or a cpuset gives it.
        let socket: CpuSet = "0-1,3,8-11".parse().unwrap();
        assert_eq!(place(&socket, 4), "0-1,3,10");
        assert_eq!(place(&socket, 5), socket.to_string());
    }

    #[test]
    fn a_machine_without_topology_has_no_known_cores() {
        let root = tempfile::tempdir().unwrap();
        assert!(cores(&Root::at(root.path())).is_empty());
    }
}
