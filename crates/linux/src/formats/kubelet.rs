//! The state of Kubernetes' CPU manager (`/var/lib/kubelet/cpu_manager_state`): pCPUs dedicated to containers.
//!
//! Source: `pkg/kubelet/cm/cpumanager/state/checkpoint.go`: `policyName`, `defaultCpuSet`, `entries` by pod and
//! container, `checksum`.

use std::collections::BTreeMap;

use corefit_core::CpuSet;
use corefit_core::check::{Manager, Place, Set, Vcpu, Vm};
use serde::Deserialize;

use super::{FormatError, Vms, short};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct State {
    policy_name: String,
    #[serde(default)]
    default_cpu_set: String,
    #[serde(default)]
    entries: BTreeMap<String, BTreeMap<String, String>>,
}

/// Reads the state.
pub(super) fn read(text: &str, file: &str) -> Result<Vms, FormatError> {
    let state: State = serde_json::from_str(text).map_err(|error| {
        let what = format!("is no state of Kubernetes' CPU manager: {error}");
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
    for (pod, containers) in &state.entries {
        let (_, from) = line_of(text, 0, pod);
        for (container, list) in containers {
            let (line, _) = line_of(text, from, container);
            let name = format!("{pod}/{container}");
            let set = cpus(list, &name, line)?;
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
    let shared = (state.policy_name == "static").then_some(shared);
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
    fn the_policy_none_dedicates_nothing() {
        let found = read("{\"policyName\":\"none\",\"defaultCpuSet\":\"\",\"checksum\":1}", "state").unwrap();
        assert!(found.vms.is_empty() && found.shared.is_none());
    }

    #[test]
    fn damage_is_named() {
        let error = read("{\"policyName\":\"static\",\n\"entries\":3}", "state").unwrap_err().to_string();
        assert!(error.starts_with("line 2: is no state of Kubernetes' CPU manager"), "{error}");
        let text = "{\"policyName\":\"static\",\"entries\":{\"p\":{\"c\":\"x\"}}}";
        assert_eq!(
            read(text, "s").unwrap_err().to_string(),
            "line 1: p/c: \"x\" is no list of pCPUs, as in 0-3,8"
        );
    }
}
