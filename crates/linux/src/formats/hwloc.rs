//! hwloc's XML, versions 1 to 3 (`lstopo out.xml`; hwloc.org, "Importing and exporting topologies").
//!
//! What hwloc calls offline and what it was not allowed to use when it looked (a control group) are both
//! in `complete_cpuset` and not in `cpuset`: both count as offline. Cores that share an instruction cache are
//! taken for a module, as on AMD family 15h, where decoder and FPU are shared, too.

use std::collections::{BTreeMap, BTreeSet};

use corefit_core::topology::{Cache, Part, Topology};
use corefit_core::{CpuId, CpuSet};
use roxmltree::Node;

use super::xml::{self, attribute};
use super::{FormatError, short};

/// Linux supports 8192 CPUs.
const MAX_WORDS: usize = 256;

/// Reads a topology.
pub(super) fn read(text: &str) -> Result<Topology, FormatError> {
    let document = xml::open(text)?;
    let root = document.root_element();
    let mut found = Topology::default();
    let mut l1i = Vec::new();
    let mut complete = CpuSet::default();
    for object in root.descendants().filter(|node| node.has_tag_name("object")) {
        let set = cpus(object, "complete_cpuset")?.or(cpus(object, "cpuset")?).unwrap_or_default();
        let id: Option<u32> = attribute(object, "os_index")?;
        let kind = object.attribute("type").unwrap_or("");
        let cache = |level: u32| -> Result<Cache, FormatError> {
            let bytes: Option<u64> = attribute(object, "cache_size")?;
            let size_kib = bytes.filter(|bytes| *bytes > 0).map(|bytes| bytes >> 10);
            Ok(Cache { level, size_kib, pcpus: set.clone() })
        };
        match kind {
            "Machine" => complete = set,
            "PU" => {
                let id = id.ok_or_else(|| xml::at(object, "a PU without os_index"))?;
                let one = CpuSet::from_iter([CpuId(id)]);
                if one.is_empty() {
                    return Err(xml::at(object, "a PU with an os_index above 65535"));
                }
                found.pcpus = found.pcpus.union(&one);
            }
            "Core" => found.cores.push(set),
            "Package" | "Socket" => found.sockets.push(Part { id, pcpus: set, memory_kib: None }),
            "NUMANode" => {
                let bytes: Option<u64> = attribute(object, "local_memory")?;
                found.nodes.push(Part { id, pcpus: set, memory_kib: bytes.map(|bytes| bytes >> 10) });
            }
            "L1iCache" => l1i.push(set),
            "L2Cache" | "L3Cache" | "L4Cache" | "L5Cache" => {
                let level = kind.as_bytes()[1] - b'0';
                found.caches.push(cache(level.into())?);
            }
            // hwloc 1: one type, with the level in `depth` and the kind in `cache_type`.
            "Cache" => match (attribute::<u32>(object, "depth")?, object.attribute("cache_type")) {
                (Some(1), Some("2")) => l1i.push(set),
                (Some(level @ 2..=5), kind) if kind != Some("2") => found.caches.push(cache(level)?),
                _ => {}
            },
            _ => {}
        }
    }
    let online = found.pcpus.clone();
    found.pcpus = online.union(&complete);
    found.offline = found.pcpus.difference(&online);
    let of = |(core, set): (usize, &CpuSet)| set.iter().map(move |cpu| (cpu, core)).collect::<Vec<_>>();
    let core_of: BTreeMap<CpuId, usize> = found.cores.iter().enumerate().flat_map(of).collect();
    let cores = |set: &CpuSet| set.iter().filter_map(|cpu| core_of.get(&cpu)).collect::<BTreeSet<_>>().len();
    found.modules = l1i.into_iter().filter(|set| cores(set) > 1).collect();
    found.capacity = capacities(root, &found.pcpus)?;
    found.about = about(root);
    found.settle().map_err(|error| FormatError { line: None, what: error.to_string() })
}

/// A bitmap: 32-bit words in hexadecimal, the highest first; `None` if it is missing or infinite.
fn cpus(node: Node<'_, '_>, name: &str) -> Result<Option<CpuSet>, FormatError> {
    let Some(text) = node.attribute(name) else { return Ok(None) };
    let bad = || xml::at(node, &format!("{name}: {:?} is no bitmap, as in 0x000000ff", short(text)));
    let mut words = Vec::new();
    for word in text.split(',') {
        let word = word.trim();
        let digits = word.strip_prefix("0x").unwrap_or(word);
        if digits == "f...f" {
            return Ok(None);
        }
        if digits.is_empty() && !word.is_empty() {
            return Err(bad());
        }
        words.push(if digits.is_empty() { 0 } else { u32::from_str_radix(digits, 16).map_err(|_| bad())? });
        if words.len() > MAX_WORDS {
            return Err(bad());
        }
    }
    let bits = |(number, word): (u32, u32)| {
        (0..32).filter(move |bit| word >> bit & 1 == 1).map(move |bit| CpuId(number * 32 + bit))
    };
    Ok(Some((0..).zip(words.into_iter().rev()).flat_map(bits).collect()))
}

/// Capacities of 1024 by kind of core, from Linux's own figures, else from maximum frequencies.
fn capacities(root: Node<'_, '_>, all: &CpuSet) -> Result<BTreeMap<u32, u32>, FormatError> {
    let mut kinds = Vec::new();
    for kind in root.descendants().filter(|node| node.has_tag_name("cpukind")) {
        let infos = || kind.children().filter(|node| node.has_tag_name("info"));
        let value = |name: &str| {
            let info = infos().find(|info| info.attribute("name") == Some(name))?;
            info.attribute("value")?.parse::<u32>().ok()
        };
        let set = cpus(kind, "cpuset")?.unwrap_or_default().intersection(all);
        kinds.push((set, value("LinuxCapacity"), value("FrequencyMaxMHz")));
    }
    let pick = |index: usize| -> Option<Vec<(&CpuSet, u32)>> {
        let of = |(set, capacity, mhz): &'_ (CpuSet, Option<u32>, Option<u32>)| {
            [*capacity, *mhz][index].map(|_| set.len())
        };
        kinds.iter().map(of).collect::<Option<Vec<_>>>()?;
        Some(kinds.iter().map(|(set, capacity, mhz)| (set, [*capacity, *mhz][index].unwrap_or(0))).collect())
    };
    let Some(figures) = pick(0).or_else(|| pick(1)).filter(|figures| figures.len() > 1) else {
        return Ok(BTreeMap::new());
    };
    let most = figures.iter().map(|(_, figure)| *figure).max().unwrap_or(0).max(1);
    let scaled =
        |figure: u32| u32::try_from(u64::from(figure) * 1024 / u64::from(most)).unwrap_or(1024).max(1);
    let each = figures.iter().flat_map(|(set, figure)| set.iter().map(|cpu| (cpu.0, scaled(*figure))));
    Ok(each.collect())
}

/// The processor's name.
fn about(root: Node<'_, '_>) -> String {
    let infos = root.descendants().filter(|node| node.has_tag_name("info"));
    let value = |name: &str| {
        let info = infos.clone().find(|info| info.attribute("name") == Some(name))?;
        info.attribute("value").map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    value("CPUModel").map(|text| short(&text)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(bitmap: &str) -> Result<Option<CpuSet>, FormatError> {
        let text = format!("<object cpuset='{bitmap}'/>");
        cpus(xml::open(&text).unwrap().root_element(), "cpuset")
    }

    #[test]
    fn bitmaps_of_several_words_and_without_end() {
        for (bitmap, list) in [
            ("0x0000000f", "0-3"),
            ("0x00000001,0x80000000", "31-32"),
            ("0x00000001,,0x0", "64"),
            ("0x0", ""),
        ] {
            assert_eq!(set(bitmap).unwrap().unwrap().to_string(), list, "{bitmap}");
        }
        assert_eq!(set("0xf...f"), Ok(None));
        assert_eq!(set("0xf...f,0x0000000f"), Ok(None));
        for bad in ["0x", "xyz", "0x123456789", &",".repeat(300)] {
            assert!(set(bad).unwrap_err().to_string().starts_with("line 1: cpuset"), "{bad}");
        }
    }

    #[test]
    fn version_1_has_caches_and_sockets_of_other_names() {
        let old = "<topology><object type='Machine' cpuset='0xf' complete_cpuset='0x1f'>
            <object type='NUMANode' os_index='0' cpuset='0xf' local_memory='1048576'>
            <object type='Socket' os_index='0' cpuset='0xf'>
            <object type='Cache' depth='3' cache_size='2097152' cache_type='0' cpuset='0xf'>
            <object type='Cache' depth='1' cache_type='2' cpuset='0x3'/>
            <object type='Core' os_index='0' cpuset='0x1'><object type='PU' os_index='0' cpuset='0x1'/></object>
            <object type='Core' os_index='1' cpuset='0x2'><object type='PU' os_index='1' cpuset='0x2'/></object>
            <object type='Core' os_index='2' cpuset='0xc'><object type='PU' os_index='2' cpuset='0x4'/>
            <object type='PU' os_index='3' cpuset='0x8'/></object></object></object></object></object></topology>";
        let found = read(old).unwrap();
        assert_eq!(
            found.summary(),
            "1 socket, 1 NUMA node, 1 L3 cache, 1 module of 2 cores, 1 core of 2 threads and 2 of 1, \
             5 pCPUs (offline: 4)"
        );
        assert_eq!((found.nodes[0].memory_kib, found.caches[0].size_kib), (Some(1024), Some(2048)));
    }

    #[test]
    fn damage_is_named_with_its_line() {
        let error = read("<topology>\n<object type='PU'/></topology>").unwrap_err().to_string();
        assert_eq!(error, "line 2: a PU without os_index");
        assert_eq!(read("<topology/>").unwrap_err().to_string(), "describes no pCPU");
    }
}
