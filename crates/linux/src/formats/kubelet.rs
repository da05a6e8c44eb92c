//! The state of Kubernetes' CPU manager (`/var/lib/kubelet/cpu_manager_state`): pCPUs dedicated to containers; and of
//! its memory manager (`memory_manager_state`): the nodes of their memory.
//!
//! Source: `pkg/kubelet/cm/cpumanager/state/checkpoint.go`: `policyName`, `defaultCpuSet`, `entries` by pod and
//! container, `checksum`. Up to Kubernetes 1.17 entries were by container alone (`CPUManagerCheckpointV1`).
//! `pkg/kubelet/cm/memorymanager/state/`: `policyName`, `machineState`, `entries` by pod and container, each a list of
//! blocks (`numaAffinity`, `type`, `size`), `checksum`.

use std::collections::BTreeMap;

use corefit_core::check::{Manager, Memory, Place, Set, Vcpu, Vm};
use corefit_core::{CpuId, CpuSet};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{FormatError, Vms, short};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct State {
    policy_name: Policy,
    default_cpu_set: String,
    #[serde(default)]
    entries: BTreeMap<String, Entry>,
    #[serde(default, rename = "checksum")]
    _checksum: IgnoredAny,
}

/// Of a pod, by its containers; or of a container.
#[derive(Deserialize)]
#[serde(untagged, expecting = "entries have lists of pCPUs, by pod and container or by container alone")]
enum Entry {
    Pod(BTreeMap<String, String>),
    Container(String),
}

#[derive(Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Policy {
    None,
    Static,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MemoryState {
    #[serde(rename = "policyName")]
    _policy: IgnoredAny,
    #[serde(rename = "machineState")]
    _machine: IgnoredAny,
    #[serde(default)]
    entries: BTreeMap<String, BTreeMap<String, Vec<Block>>>,
    #[serde(default, rename = "checksum")]
    _checksum: IgnoredAny,
}

/// Memory of one kind (`memory`, `hugepages-1Gi`).
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Block {
    numa_affinity: Vec<u32>,
}

/// Whether a JSON text is the state of the memory manager.
pub(super) fn is_of_memory(text: &str) -> bool {
    line_of(text, 0, "machineState").0.is_some()
}

/// Reads the state of the memory manager: containers with the nodes of their memory, and without vCPUs.
pub(super) fn read_memory(text: &str, file: &str) -> Result<Vms, FormatError> {
    let state: MemoryState = serde_json::from_str(text).map_err(|error| FormatError {
        line: u32::try_from(error.line()).ok().filter(|line| *line > 0),
        what: format!("is no state of Kubernetes' memory manager (memory_manager_state): {error}"),
    })?;
    let mut vms = Vec::new();
    for (pod, containers) in &state.entries {
        let from = line_of(text, 0, pod).1;
        for (container, blocks) in containers {
            let name = format!("{pod}/{container}");
            let line = line_of(text, from, container).0;
            let place = Place { file: file.into(), line, element: name.clone() };
            let nodes: CpuSet =
                blocks.iter().flat_map(|block| &block.numa_affinity).map(|node| CpuId(*node)).collect();
            let memory = (!nodes.is_empty())
                .then(|| Set { value: Memory::Nodes { nodes, mode: "strict".into() }, place: place.clone() });
            vms.push(Vm { name, manager: Manager::Kubernetes, place, memory, ..Vm::default() });
        }
    }
    Ok(Vms { vms, shared: None })
}

/// Reads the state of the CPU manager.
pub(super) fn read(text: &str, file: &str) -> Result<Vms, FormatError> {
    let state: State = serde_json::from_str(text).map_err(|error| {
        let what = format!("is no state of Kubernetes' CPU manager (cpu_manager_state): {error}");
        FormatError { line: u32::try_from(error.line()).ok().filter(|line| *line > 0), what }
    })?;
    let cpus = |list: &str, element: &str, line: Option<u32>| -> Result<Set<CpuSet>, FormatError> {
        let value = list.parse().map_err(|_| FormatError {
            line,
            what: format!("{element}: {:?} is no list of pCPUs, as in 0-3,8", short(list)),
        })?;
        Ok(Set { value, place: Place { file: file.into(), line, element: element.into() } })
    };
    let shared = cpus(&state.default_cpu_set, "defaultCpuSet", line_of(text, 0, "defaultCpuSet").0)?;
    let mut vms = Vec::new();
    for (key, entry) in &state.entries {
        let (at, from) = line_of(text, 0, key);
        let containers: Vec<(String, Option<u32>, &str)> = match entry {
            Entry::Pod(containers) => {
                let one = |(container, list): (&String, _)| {
                    (format!("{key}/{container}"), line_of(text, from, container).0, list)
                };
                containers.iter().map(|(container, list)| one((container, list.as_str()))).collect()
            }
            Entry::Container(list) => vec![(key.clone(), at, list)],
        };
        for (name, line, list) in containers {
            let set = cpus(list, &name, line)?;
            if set.value.is_empty() {
                return Err(FormatError {
                    line,
                    what: format!("{name}: has no pCPU; kubelet writes those it has"),
                });
            }
            let vcpu = Vcpu { online: true, affinity: Some(set.clone()), ..Vcpu::default() };
            vms.push(Vm {
                name,
                manager: Manager::Kubernetes,
                place: set.place.clone(),
                vcpus: vec![vcpu; set.value.len()],
                sees_host: true,
                exclusive: true,
                ..Vm::default()
            });
        }
    }
    let shared = (state.policy_name == Policy::Static).then_some(shared);
    Ok(Vms { vms, shared })
}

/// The line of a JSON key at or after an offset, and the offset behind it.
fn line_of(text: &str, from: usize, key: &str) -> (Option<u32>, usize) {
    let quoted = serde_json::Value::from(key).to_string();
    match text.get(from..).and_then(|rest| rest.find(&quoted)) {
        None => (None, from),
        Some(at) => {
            let line = 1 + text[..from + at].matches('\n').count();
            (u32::try_from(line).ok(), from + at + quoted.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_have_their_pcpus_and_lines() {
        let text = "{\"policyName\":\"static\",\"defaultCpuSet\":\"0,4-7\",\n\"entries\":{\"p1\":{\n\"web\":\"1-2\",\"log\":\"3\"}},\"checksum\":1}";
        let found = read(text, "state").unwrap();
        assert_eq!(found.shared.unwrap().value.to_string(), "0,4-7");
        let names: Vec<_> =
            found.vms.iter().map(|vm| (vm.name.as_str(), vm.width(), vm.place.line)).collect();
        assert_eq!(names, [("p1/log", 1, Some(3)), ("p1/web", 2, Some(3))]);
    }

    #[test]
    fn states_of_old_kubelets_have_containers_without_pods() {
        let text = "{\"policyName\":\"static\",\"defaultCpuSet\":\"0,4\",\n\"entries\":{\n\"c1\":\"1-2\"},\"checksum\":1}";
        let found = read(text, "state").unwrap();
        assert_eq!((found.vms[0].name.as_str(), found.vms[0].place.line), ("c1", Some(3)));
        assert_eq!(found.vms[0].pcpus().unwrap().to_string(), "1-2");
        let odd = read("{\"policyName\":\"static\",\"defaultCpuSet\":\"0\",\"entries\":{\"c\":7}}", "s");
        assert!(
            odd.unwrap_err().to_string().contains("lists of pCPUs, by pod and container or by container")
        );
    }

    #[test]
    fn the_policy_none_dedicates_nothing() {
        let found = read("{\"policyName\":\"none\",\"defaultCpuSet\":\"\",\"checksum\":1}", "state").unwrap();
        assert!(found.vms.is_empty() && found.shared.is_none());
    }

    #[test]
    fn damage_is_named() {
        let fails = |text: &str| read(text, "s").unwrap_err().to_string();
        let state = |rest: &str| fails(&format!("{{\"policyName\":\"static\",\n{rest}}}"));
        let no = "is no state of Kubernetes' CPU manager (cpu_manager_state)";
        assert!(state("\"entries\":3").starts_with(&format!("line 2: {no}")));
        let list = |list: &str| {
            state(&format!("\"defaultCpuSet\":\"0\",\"entries\":{{\"p\":{{\"c\":\"{list}\"}}}}"))
        };
        assert_eq!(list("x"), "line 2: p/c: \"x\" is no list of pCPUs, as in 0-3,8");
        assert_eq!(list(""), "line 2: p/c: has no pCPU; kubelet writes those it has");
        // What is misspelt would not count.
        let misspelt = state("\"defaultCPUSet\":\"0\"");
        assert!(
            misspelt.starts_with(&format!("line 2: {no}: unknown field `defaultCPUSet`, expected one of")),
            "{misspelt}"
        );
        assert!(state("\"checksum\":1").contains("missing field `defaultCpuSet`"));
        assert!(
            fails("{\"policyName\":\"Static\",\"defaultCpuSet\":\"\"}").contains("unknown variant `Static`")
        );
    }

    #[test]
    fn the_memory_manager_tells_the_nodes_of_containers() {
        let blocks = "[{\"numaAffinity\":[1],\"type\":\"memory\",\"size\":1},{\"numaAffinity\":[0,1],\"type\":\"hugepages-1Gi\",\"size\":1}]";
        let text = format!(
            "{{\"policyName\":\"Static\",\"machineState\":{{\"0\":{{\"cells\":[0]}}}},\n\"entries\":{{\"p1\":{{\n\"web\":{blocks},\"log\":[]}}}},\"checksum\":1}}"
        );
        assert!(is_of_memory(&text) && !is_of_memory("{\"policyName\":\"none\"}"));
        let found = read_memory(&text, "state").unwrap();
        let of = |vm: &Vm| match &vm.memory {
            Some(Set { value: Memory::Nodes { nodes, .. }, place }) => format!("{} {nodes} {place}", vm.name),
            _ => vm.name.clone(),
        };
        assert_eq!(found.vms.iter().map(of).collect::<Vec<_>>(), ["p1/log", "p1/web 0-1 state:3, p1/web"]);
        let odd = read_memory(&text.replace("[0,1]", "\"x\""), "s").unwrap_err().to_string();
        assert!(odd.starts_with("line 3: is no state of Kubernetes' memory manager"), "{odd}");
    }
}
