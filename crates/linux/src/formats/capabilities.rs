//! libvirt's capabilities (`virsh capabilities`): `<host><topology>` and `<host><cache>`.
//!
//! A pCPU that has a number and nothing else is offline (virCapabilitiesHostNUMAFormat in
//! src/conf/capabilities.c writes the rest only where it is known).

use std::collections::{BTreeMap, BTreeSet};

use corefit_core::topology::{Cache, Part, Topology};
use corefit_core::{CpuId, CpuSet};
use roxmltree::Node;

use super::FormatError;
use super::xml::{self, attribute, child, children};

/// Reads a topology.
pub(super) fn read(text: &str) -> Result<Topology, FormatError> {
    let document = xml::open(text)?;
    let host = child(document.root_element(), "host")
        .ok_or_else(|| xml::at(document.root_element(), "<capabilities>: no <host>"))?;
    let mut found = Topology::default();
    let mut sockets: BTreeMap<u32, Vec<CpuId>> = BTreeMap::new();
    let mut cores = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let cells = child(host, "topology").and_then(|topology| child(topology, "cells"));
    for cell in children(cells, "cell") {
        let mut pcpus = CpuSet::default();
        for cpu in children(child(cell, "cpus"), "cpu") {
            let id: u32 = attribute(cpu, "id")?.ok_or_else(|| xml::at(cpu, "<cpu>: no id"))?;
            let one = CpuSet::from_iter([CpuId(id)]);
            if one.is_empty() || !seen.insert(id) {
                return Err(xml::at(cpu, "<cpu>: id above 65535, or there twice"));
            }
            pcpus = pcpus.union(&one);
            match xml::cpus(cpu, "siblings")? {
                None => found.offline = found.offline.union(&one),
                Some(core) => {
                    cores.insert(core);
                }
            }
            // Negative where the firmware does not say.
            let socket = attribute::<i64>(cpu, "socket_id")?.and_then(|id| u32::try_from(id).ok());
            if let Some(socket) = socket {
                sockets.entry(socket).or_default().push(CpuId(id));
            }
        }
        found.pcpus = found.pcpus.union(&pcpus);
        let memory_kib = memory(cell)?;
        found.nodes.push(Part { id: attribute(cell, "id")?, pcpus, memory_kib });
    }
    let socket = |(id, pcpus): (u32, Vec<CpuId>)| Part {
        id: Some(id),
        pcpus: pcpus.into_iter().collect(),
        memory_kib: None,
    };
    found.sockets = sockets.into_iter().map(socket).collect();
    found.cores = cores.into_iter().collect();
    for bank in children(child(host, "cache"), "bank") {
        let size: Option<u64> = attribute(bank, "size")?;
        let unit = bank.attribute("unit").unwrap_or("B");
        let size_kib = size.map(|size| match unit {
            "KiB" => size,
            "MiB" => size.saturating_mul(1024),
            _ => size >> 10,
        });
        let level = attribute(bank, "level")?.unwrap_or(3);
        let pcpus = xml::cpus(bank, "cpus")?.unwrap_or_default();
        found.caches.push(Cache { level, size_kib, pcpus });
    }
    let model = child(host, "cpu").and_then(|cpu| child(cpu, "model")).and_then(|model| model.text());
    found.about = model.map(super::short).unwrap_or_default();
    if found.pcpus.is_empty() {
        let what = "<capabilities>: no <topology> with pCPUs; is it of a host?";
        return Err(xml::at(document.root_element(), what));
    }
    found.settle().map_err(|error| FormatError { line: None, what: error.to_string() })
}

fn memory(cell: Node<'_, '_>) -> Result<Option<u64>, FormatError> {
    let Some(memory) = child(cell, "memory") else { return Ok(None) };
    xml::number(memory).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pcpu_with_nothing_but_its_number_is_offline() {
        let text = "<capabilities><host><cpu><model>Skylake</model></cpu><topology><cells num='1'>
            <cell id='0'><memory unit='KiB'>2048</memory><cpus num='3'>
            <cpu id='0' socket_id='0' die_id='0' core_id='0' siblings='0-1'/>
            <cpu id='1' socket_id='0' die_id='0' core_id='0' siblings='0-1'/><cpu id='2'/>
            </cpus></cell></cells></topology>
            <cache><bank id='0' level='3' type='both' size='8' unit='MiB' cpus='0-1'/></cache>
            </host></capabilities>";
        let found = read(text).unwrap();
        assert_eq!(
            found.summary(),
            "1 socket, 1 NUMA node, 1 core of 2 threads, 3 pCPUs (offline: 2)",
            "a cache of one core says nothing"
        );
        assert_eq!((found.nodes[0].memory_kib, found.caches[0].size_kib), (Some(2048), Some(8192)));
        assert_eq!(found.about, "Skylake");
    }

    #[test]
    fn a_socket_that_the_firmware_does_not_tell_is_none() {
        let text = "<capabilities><host><topology><cells><cell id='0'><cpus>
            <cpu id='0' socket_id='-1' core_id='0' siblings='0'/><cpu id='1' socket_id='-1' core_id='1' siblings='1'/>
            </cpus></cell></cells></topology></host></capabilities>";
        assert_eq!(read(text).unwrap().summary(), "1 NUMA node, 2 cores, 2 pCPUs");
    }

    #[test]
    fn damage_is_named_with_its_line() {
        for (text, error) in [
            ("<capabilities/>", "line 1: <capabilities>: no <host>"),
            ("<capabilities><host/></capabilities>", "line 1: <capabilities>: no <topology>"),
            (
                "<capabilities><host><topology><cells><cell>\n<cpus>\n<cpu id='x'/></cpus></cell></cells></topology></host></capabilities>",
                "line 3: <cpu>: \"x\" is no number",
            ),
        ] {
            assert!(read(text).unwrap_err().to_string().starts_with(error), "{text}");
        }
    }
}
