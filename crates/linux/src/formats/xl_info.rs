//! Output of `xl info -n`: `cpu_topology` and `numa_info` (tools/xl/xl_info.c).

use std::collections::BTreeMap;

use corefit_core::topology::{Part, Topology};
use corefit_core::{CpuId, CpuSet};

use super::{FormatError, short};

/// Which table a line is in.
#[derive(PartialEq)]
enum Table {
    None,
    Cpus,
    Nodes,
}

/// Reads a topology.
pub(super) fn read(text: &str) -> Result<Topology, FormatError> {
    let mut found = Topology::default();
    let mut table = Table::None;
    let mut cores: BTreeMap<(u32, u32), Vec<CpuId>> = BTreeMap::new();
    let mut sockets: BTreeMap<u32, Vec<CpuId>> = BTreeMap::new();
    let mut nodes: BTreeMap<u32, Vec<CpuId>> = BTreeMap::new();
    let mut memory: BTreeMap<u32, u64> = BTreeMap::new();
    let mut highest = None;
    for (number, line) in (1..).zip(text.lines()) {
        let bad = |want: &str| FormatError {
            line: Some(number),
            what: format!("{:?} is no line of {want}", short(line)),
        };
        let (key, rest) = line.split_once(':').map_or((line.trim(), ""), |(k, r)| (k.trim(), r.trim()));
        match key {
            "cpu_topology" => table = Table::Cpus,
            "numa_info" => table = Table::Nodes,
            "max_cpu_id" => highest = rest.parse::<u32>().ok(),
            "cpu" | "node" => {} // headings
            _ => match (key.parse::<u32>(), &table) {
                (Ok(cpu), Table::Cpus) => {
                    let row: Result<Vec<u32>, _> = rest.split_whitespace().map(str::parse).collect();
                    let row = row.map_err(|_| bad("cpu_topology (cpu: core socket node)"))?;
                    let [core, socket, node] = row[..] else {
                        return Err(bad("cpu_topology (cpu: core socket node)"));
                    };
                    if cpu > 65_535 {
                        return Err(bad("cpu_topology: a pCPU above 65535"));
                    }
                    cores.entry((socket, core)).or_default().push(CpuId(cpu));
                    sockets.entry(socket).or_default().push(CpuId(cpu));
                    nodes.entry(node).or_default().push(CpuId(cpu));
                }
                (Ok(node), Table::Nodes) => {
                    let mib = rest.split_whitespace().next().and_then(|size| size.parse::<u64>().ok());
                    let mib = mib.ok_or_else(|| bad("numa_info (node: memsize memfree distances)"))?;
                    memory.insert(node, mib.saturating_mul(1024));
                }
                (Ok(_), Table::None) | (Err(_), _) => {
                    if !key.is_empty() && key.parse::<u32>().is_err() {
                        table = Table::None;
                    }
                }
            },
        }
    }
    if cores.is_empty() {
        let what = "no cpu_topology; give the output of xl info -n (with -n)".into();
        return Err(FormatError { line: None, what });
    }
    let part = |(id, cpus): (u32, Vec<CpuId>), memory_kib| Part {
        id: Some(id),
        pcpus: cpus.into_iter().collect(),
        memory_kib,
    };
    let online: CpuSet = cores.values().flatten().copied().collect();
    // Xen leaves out of the table what is offline (LIBXL_CPUTOPOLOGY_INVALID_ENTRY).
    let all = highest.filter(|highest| *highest <= 65_535).map(|highest| CpuSet::first(highest + 1));
    found.pcpus = online.union(&all.unwrap_or_default());
    found.offline = found.pcpus.difference(&online);
    found.cores = cores.into_values().map(|cpus| cpus.into_iter().collect()).collect();
    found.sockets = sockets.into_iter().map(|socket| part(socket, None)).collect();
    found.nodes = nodes.into_iter().map(|(id, cpus)| part((id, cpus), memory.remove(&id))).collect();
    found.settle().map_err(|error| FormatError { line: None, what: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shape of the text is that of Xen 4.17's xl_info.c.
    const TEXT: &str = "host                   : xen1
nr_cpus                : 4
max_cpu_id             : 4
xen_version            : 4.17.5
cpu_topology           :
cpu:    core    socket     node
  0:       0        0        0
  1:       0        0        0
  2:       0        1        1
  3:       0        1        1
device topology        :
device           node
00:00.0           0
numa_info              :
node:    memsize    memfree    distances
   0:     16384       1024      10,20
   1:     16384       1024      20,10
xen_caps               : xen-3.0-x86_64
";

    #[test]
    fn cores_are_numbered_within_their_socket() {
        let found = read(TEXT).unwrap();
        assert_eq!(found.summary(), "2 sockets, 2 NUMA nodes, 2 cores of 2 threads, 5 pCPUs (offline: 4)");
        assert_eq!(found.nodes[1].memory_kib, Some(16 << 20));
    }

    #[test]
    fn damage_is_named_with_its_line() {
        let error = read("xen_version : 4\n").unwrap_err().to_string();
        assert!(error.contains("xl info -n"), "{error}");
        let error = read("cpu_topology :\ncpu: core socket node\n 0: 0 x 0\n").unwrap_err().to_string();
        assert!(error.starts_with("line 3: \"0: 0 x 0\" is no line of cpu_topology"), "{error}");
    }
}
