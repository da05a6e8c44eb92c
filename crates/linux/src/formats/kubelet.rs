//! The state of Kubernetes' CPU manager (`/var/lib/kubelet/cpu_manager_state`): pCPUs dedicated to containers.
//!
//! Source: `pkg/kubelet/cm/cpumanager/state/checkpoint.go`: `policyName`, `defaultCpuSet`, `entries` by pod and
//! container, `checksum`. Up to Kubernetes 1.17 entries were by container alone (`CPUManagerCheckpointV1`).

use std::collections::BTreeMap;

use corefit_core::CpuSet;
use corefit_core::check::{Manager, Place, Set, Vcpu, Vm};
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

/// Reads the state.
pub(super) fn read(text: &str, file: &str) -> Result<Vms, FormatError> {
    let state: State = serde_json::from_str(text).map_err(|error| {
        let what = match line_of(text, 0, "machineState").0 {
            Some(_) => {
                "is the state of Kubernetes' memory manager; give cpu_manager_state, which is beside it"
                    .into()
            }
            None => format!("is no state of Kubernetes' CPU manager (cpu_manager_state): {error}"),
        };
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
        let memory = state("\"machineState\":{},\"entries\":{},\"checksum\":1");
        assert!(memory.ends_with(
            "is the state of Kubernetes' memory manager; give cpu_manager_state, which is beside it"
        ));
    }
}
