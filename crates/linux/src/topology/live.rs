//! The shape of this machine, or of a captured tree, from `/sys/devices/system`.
//!
//! Sources: Documentation/admin-guide/cputopology.rst, Documentation/ABI/testing/sysfs-devices-system-cpu.

use std::collections::BTreeMap;

use corefit_core::topology::{Cache, Part, Topology};
use corefit_core::{CpuId, CpuSet};

use super::{CPUS, listed, mask, siblings};
use crate::root::{ReadError, Root, optional, value};
use crate::self_view::cpu_list;

const NODES: &str = "/sys/devices/system/node";
/// Of the fastest CPU.
const FULL: u32 = 1024;

/// Reads the shape of a machine. What the kernel does not tell (VMs, old kernels, offline CPUs) is left out.
///
/// # Errors
/// If it is not known which CPUs there are.
pub fn read(root: &Root) -> Result<Topology, ReadError> {
    let (online, present) = cpus(root)?;
    let isolated = value(root, &format!("{CPUS}/isolated"), "list of CPUs", |text| text.parse().ok());
    let mut found = Topology {
        pcpus: online.union(&present),
        isolated: optional(isolated)?.unwrap_or_default(),
        about: model(root),
        ..Topology::default()
    };
    found.offline = found.pcpus.difference(&online);
    let mut sockets: BTreeMap<u32, Vec<CpuId>> = BTreeMap::new();
    let mut unnumbered = Vec::new();
    let family_15h = is_family_15h(root);
    for cpu in online.iter() {
        let dir = format!("{CPUS}/cpu{}", cpu.0);
        if let Some(core) = siblings(root, &format!("cpu{}", cpu.0)).filter(|core| core.contains(cpu)) {
            add(root, &dir, core, family_15h, &mut found);
        }
        // -1 where the firmware does not say; s390 still says who is on a chip.
        let package = format!("{dir}/topology/physical_package_id");
        if let Ok(id) = value(root, &package, "number", |text| text.parse::<u32>().ok()) {
            sockets.entry(id).or_default().push(cpu);
        } else if let Some(set) = listed(root, &format!("{dir}/topology/core_siblings"))
            && !unnumbered.contains(&set)
        {
            unnumbered.push(set);
        }
        caches(root, &dir, &mut found);
    }
    let socket = |(id, cpus): (u32, Vec<CpuId>)| Part {
        id: Some(id),
        pcpus: cpus.into_iter().collect(),
        memory_kib: None,
    };
    found.sockets = sockets.into_iter().map(socket).collect();
    // Where each is a core, nothing is said of chips.
    if unnumbered.iter().any(|chip| !found.cores.iter().any(|core| chip.is_within(core))) {
        let chip = |pcpus| Part { id: None, pcpus, memory_kib: None };
        found.sockets.extend(unnumbered.into_iter().map(chip));
    }
    found.nodes = nodes(root);
    found.capacity = capacities(root, &online);
    found.settle().map_err(|error| ReadError::Io { path: CPUS.into(), why: error.to_string() })
}

/// CPUs online and present; of kernels without the lists, by the directory and the file `online` of each.
fn cpus(root: &Root) -> Result<(CpuSet, CpuSet), ReadError> {
    let present = optional(cpu_list(root, "present"))?.map_or_else(CpuSet::default, |set| set.value);
    let error = match cpu_list(root, "online") {
        Ok(online) => return Ok((online.value, present)),
        Err(error) if error.is_absent() => error,
        Err(error) => return Err(error),
    };
    let names = root.dirs(CPUS).unwrap_or_default();
    let ids: Vec<CpuId> =
        names.iter().filter_map(|name| name.strip_prefix("cpu")?.parse().ok().map(CpuId)).collect();
    let off =
        |cpu: &CpuId| root.read(&format!("{CPUS}/cpu{}/online", cpu.0)).is_ok_and(|text| text.trim() == "0");
    let online: CpuSet = ids.iter().copied().filter(|cpu| !off(cpu)).collect();
    if online.is_empty() { Err(error) } else { Ok((online, present.union(&ids.into_iter().collect()))) }
}

/// The caches of the highest level that these CPUs have.
pub(crate) fn last_level(root: &Root, online: &CpuSet) -> Vec<Cache> {
    let mut found = Topology::default();
    for cpu in online.iter() {
        caches(root, &format!("{CPUS}/cpu{}", cpu.0), &mut found);
    }
    let last = found.caches.iter().map(|cache| cache.level).max();
    found.caches.retain(|cache| Some(cache.level) == last);
    found.caches
}

/// A core; or a module, where each sibling has a data cache of its own and they share an instruction cache (AMD family
/// 15h: the kernel calls the two cores of a module thread siblings). Old kernels do not say of that family that it is
/// shared, so its name will do. QEMU says of a guest's threads that each has both caches of its own: they are threads.
fn add(root: &Root, dir: &str, siblings: CpuSet, family_15h: bool, found: &mut Topology) {
    let first: Vec<_> = cache_dirs(root, dir)
        .into_iter()
        .filter_map(|cache| cache_of(root, &cache))
        .filter(|(level, ..)| *level == 1)
        .collect();
    let of = |code: bool| {
        first.iter().find(|(_, kind, _)| (kind == "Instruction") == code).map(|(.., shared)| shared.clone())
    };
    let own = of(false).filter(|_| family_15h || of(true).is_some_and(|shared| shared == siblings));
    let push = |sets: &mut Vec<CpuSet>, set: CpuSet| {
        if !sets.contains(&set) {
            sets.push(set);
        }
    };
    match own.filter(|own| own.is_within(&siblings) && *own != siblings) {
        Some(own) => {
            push(&mut found.cores, own);
            push(&mut found.modules, siblings);
        }
        None => push(&mut found.cores, siblings),
    }
}

fn cache_dirs(root: &Root, dir: &str) -> Vec<String> {
    let names = root.dirs(&format!("{dir}/cache")).unwrap_or_default();
    names
        .into_iter()
        .filter(|name| name.starts_with("index"))
        .map(|name| format!("{dir}/cache/{name}"))
        .collect()
}

/// Level, kind and CPUs of a cache.
fn cache_of(root: &Root, dir: &str) -> Option<(u32, String, CpuSet)> {
    let level = value(root, &format!("{dir}/level"), "number", |text| text.parse().ok()).ok()?;
    let kind = root.read(&format!("{dir}/type")).ok()?.trim().to_owned();
    let shared = format!("{dir}/shared_cpu_list");
    let list = value(root, &shared, "list of CPUs", |text| text.parse().ok());
    Some((level, kind, list.ok().or_else(|| mask(root, &format!("{dir}/shared_cpu_map")))?))
}

fn caches(root: &Root, dir: &str, found: &mut Topology) {
    for cache in cache_dirs(root, dir) {
        let Some((level, kind, pcpus)) = cache_of(root, &cache) else { continue };
        if level < 2
            || kind == "Instruction"
            || found.caches.iter().any(|c| c.level == level && c.pcpus == pcpus)
        {
            continue;
        }
        let size = value(root, &format!("{cache}/size"), "size", |text| {
            let (number, unit) =
                text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
            let number: u64 = number.parse().ok()?;
            Some(if unit == "M" { number.saturating_mul(1024) } else { number })
        });
        found.caches.push(Cache { level, size_kib: size.ok(), pcpus });
    }
}

fn nodes(root: &Root) -> Vec<Part> {
    let names = root.dirs(NODES).unwrap_or_default();
    let node = |name: &String| {
        let id = name.strip_prefix("node")?.parse().ok()?;
        let dir = format!("{NODES}/{name}");
        let list = value(root, &format!("{dir}/cpulist"), "list of CPUs", |text| text.parse().ok());
        let pcpus = list.ok().or_else(|| mask(root, &format!("{dir}/cpumap")))?;
        let memory = root.read(&format!("{dir}/meminfo")).ok().and_then(|text| {
            let line = text.lines().find(|line| line.contains("MemTotal"))?;
            line.split_whitespace().rev().nth(1)?.parse().ok()
        });
        Some(Part { id: Some(id), pcpus, memory_kib: memory })
    };
    names.iter().filter_map(node).collect()
}

/// Capacities as the kernel's scheduler has them; on Intel's hybrid machines, where older kernels do not say,
/// from the highest performance of each kind of core. (That alone tells no kinds: favoured cores have more, too.)
fn capacities(root: &Root, online: &CpuSet) -> BTreeMap<u32, u32> {
    let of = |cpu: CpuId, file: &str| -> Option<u32> {
        value(root, &format!("{CPUS}/cpu{}/{file}", cpu.0), "number", |text| text.parse().ok()).ok()
    };
    let all = |file: &str| -> Option<BTreeMap<u32, u32>> {
        online.iter().map(|cpu| Some((cpu.0, of(cpu, file)?))).collect()
    };
    if let Some(capacity) = all("cpu_capacity") {
        return capacity;
    }
    let kind = |name: &str| -> CpuSet {
        let path = format!("/sys/devices/{name}/cpus");
        let set = value(root, &path, "list of CPUs", |text| text.parse::<CpuSet>().ok());
        set.unwrap_or_default().intersection(online)
    };
    let mut kinds = vec![kind("cpu_core"), kind("cpu_atom"), kind("cpu_lowpower")];
    kinds.retain(|set| !set.is_empty());
    if kinds.len() < 2 {
        kinds = by_l2(root, online);
    }
    let best = |set: &CpuSet| {
        let file = ["acpi_cppc/highest_perf", "cpufreq/cpuinfo_max_freq"];
        file.map(|file| set.iter().filter_map(|cpu| of(cpu, file)).max())
    };
    let kinds: Vec<_> = kinds.into_iter().map(|set| (best(&set), set)).collect();
    let source = (0..2).find(|file| kinds.iter().all(|(best, _)| best[*file].is_some()));
    let Some(source) = source.filter(|_| kinds.len() > 1) else { return BTreeMap::new() };
    let figure = |best: &[Option<u32>; 2]| best[source].unwrap_or(0);
    let most = kinds.iter().map(|(best, _)| figure(best)).max().unwrap_or(0).max(1);
    let scaled = |best: &[Option<u32>; 2]| {
        u32::try_from(u64::from(figure(best)) * u64::from(FULL) / u64::from(most)).unwrap_or(FULL).max(1)
    };
    kinds.iter().flat_map(|(best, set)| set.iter().map(move |cpu| (cpu.0, scaled(best)))).collect()
}

/// CPUs by the size of their L2, where kernels tell no kinds (before 5.13); nothing if that is not known of all.
fn by_l2(root: &Root, online: &CpuSet) -> Vec<CpuSet> {
    let mut kinds: BTreeMap<u64, Vec<CpuId>> = BTreeMap::new();
    for cpu in online.iter() {
        let mut found = Topology::default();
        caches(root, &format!("{CPUS}/cpu{}", cpu.0), &mut found);
        let size = found.caches.iter().find(|cache| cache.level == 2).and_then(|cache| cache.size_kib);
        let Some(size) = size else { return Vec::new() };
        kinds.entry(size).or_default().push(cpu);
    }
    kinds.into_values().map(|cpus| cpus.into_iter().collect()).collect()
}

/// Bulldozer and its successors.
fn is_family_15h(root: &Root) -> bool {
    let text = root.read("/proc/cpuinfo").unwrap_or_default();
    let says = |key: &str, what: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(name, _)| name.trim() == key).is_some_and(|(_, value)| value.trim() == what)
    };
    says("vendor_id", "AuthenticAMD") && says("cpu family", "21")
}

/// The processor's name.
fn model(root: &Root) -> String {
    let text = root.read("/proc/cpuinfo").unwrap_or_default();
    let line =
        text.lines().find_map(|line| line.split_once(':').filter(|(key, _)| key.trim() == "model name"));
    line.map(|(_, name)| name.split_whitespace().collect::<Vec<_>>().join(" ")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::testing;

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (file, text) in files {
            testing::put(root.path(), &format!("sys/devices/{file}"), &format!("{text}\n"));
        }
        root
    }

    #[test]
    fn siblings_with_data_caches_of_their_own_are_a_module() {
        let mut files = vec![("system/cpu/online".to_owned(), "0-3"), ("system/cpu/isolated".into(), "3")];
        for cpu in 0..4 {
            let dir = format!("system/cpu/cpu{cpu}");
            let pair = if cpu < 2 { "0-1" } else { "2-3" };
            let own = ["0", "1", "2", "3"][cpu];
            files.push((format!("{dir}/topology/thread_siblings_list"), pair));
            files.push((format!("{dir}/topology/physical_package_id"), "0"));
            for (index, level, kind, list) in [
                ("index0", "1", "Data", own),
                ("index1", "1", "Instruction", pair),
                ("index2", "2", "Unified", pair),
                ("index3", "3", "Unified", "0-3"),
            ] {
                files.push((format!("{dir}/cache/{index}/level"), level));
                files.push((format!("{dir}/cache/{index}/type"), kind));
                files.push((format!("{dir}/cache/{index}/shared_cpu_list"), list));
                files.push((format!("{dir}/cache/{index}/size"), "2048K"));
            }
        }
        let files: Vec<(&str, &str)> = files.iter().map(|(file, text)| (file.as_str(), *text)).collect();
        let found = read(&Root::at(machine(&files).path())).unwrap();
        assert_eq!(
            found.summary(),
            "1 socket, 1 L3 cache, 2 modules of 2 cores, 4 cores, 4 pCPUs (isolated: 3)"
        );
        assert_eq!(found.caches[0].size_kib, Some(2048));
    }

    #[test]
    fn a_vm_without_topology_has_pcpus_and_nothing_else() {
        let found = read(&Root::at(machine(&[("system/cpu/online", "0-7")]).path())).unwrap();
        assert_eq!(found.summary(), "8 pCPUs");
        assert_eq!(found.units().len(), 8);
    }

    #[test]
    fn intel_hybrids_have_capacities_by_kind() {
        let files = [
            ("system/cpu/online", "0-3"),
            ("cpu_core/cpus", "0-1"),
            ("cpu_atom/cpus", "2-3"),
            ("system/cpu/cpu0/acpi_cppc/highest_perf", "64"),
            ("system/cpu/cpu1/acpi_cppc/highest_perf", "60"),
            ("system/cpu/cpu2/acpi_cppc/highest_perf", "40"),
        ];
        let found = read(&Root::at(machine(&files).path())).unwrap();
        assert_eq!(
            found.speeds().iter().map(|(c, set)| format!("{c}: {set}")).collect::<Vec<_>>(),
            ["1024: 0-1", "640: 2-3"]
        );
    }
}
