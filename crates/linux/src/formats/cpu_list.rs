//! Lists of pCPUs as libvirt and xl write them: with exclusions, nodes and `all`.

use corefit_core::CpuSet;
use corefit_core::topology::Topology;

use super::short;

/// libvirt's form: `0-7,^3,12`. Parts apply in order.
///
/// # Errors
/// The part that is no number or range.
pub(super) fn plain(text: &str) -> Result<CpuSet, String> {
    parts(text, |part| part.parse().map_err(|_| short(part)))
}

/// xl's form (xl.cfg(5), `cpus`): `all`, `0-3,5,^1`, `nodes:0-1,^node:1`; a part after a comma is of
/// pCPUs again, and parts apply in order to nothing (`update_cpumap_range` in tools/xl/xl_parse.c). `None` if it
/// means all pCPUs and the host is not known.
///
/// # Errors
/// What is wrong.
pub(super) fn xl(text: &str, host: Option<&Topology>) -> Result<Option<CpuSet>, String> {
    let text = text.trim();
    let all = host.map(|host| host.pcpus.clone());
    if text == "all" || text == "any cpu" || text == "any" {
        return Ok(all);
    }
    let starts_from_all = text.starts_with("all");
    let need = "needs the host: give the output of xl info -n as well";
    if starts_from_all && all.is_none() {
        return Err(format!("{:?} {need}", short(text)));
    }
    let one = |part: &str| {
        let nodes = part.strip_prefix("nodes:").or_else(|| part.strip_prefix("node:"));
        match (part, nodes, host) {
            ("all", _, Some(host)) => Ok(host.pcpus.clone()),
            (_, Some(nodes), Some(host)) => {
                let nodes: CpuSet = match nodes {
                    "all" => host.node_ids(),
                    nodes => nodes.parse().map_err(|_| format!("{:?} is no list of nodes", short(part)))?,
                };
                let absent = nodes.difference(&host.node_ids());
                if absent.is_empty() {
                    Ok(host.pcpus_of_nodes(&nodes))
                } else {
                    Err(format!("node {absent} does not exist here (the host has {})", host.node_ids()))
                }
            }
            (_, Some(_), None) => Err(format!("{:?} {need}", short(part))),
            _ => part
                .parse()
                .map_err(|_| format!("{:?} is no list of pCPUs, as in 0-3,^1 or nodes:0", short(part))),
        }
    };
    let set = parts(text, one)?;
    if set.is_empty() { Err(format!("{:?} leaves no pCPU", short(text))) } else { Ok(Some(set)) }
}

fn parts(text: &str, one: impl Fn(&str) -> Result<CpuSet, String>) -> Result<CpuSet, String> {
    let mut set = CpuSet::default();
    for part in text.split(',').map(str::trim) {
        match part.strip_prefix('^') {
            Some("") => return Err(format!("{:?}: nothing behind ^", short(text))),
            Some(rest) => set = set.difference(&one(rest)?),
            None if part.is_empty() => {
                return Err(format!("{:?} is no list of pCPUs, as in 0-3,^1", short(text)));
            }
            None => set = set.union(&one(part)?),
        }
    }
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exclusions_apply_in_order() {
        assert_eq!(plain("0-7,^3, 12").unwrap().to_string(), "0-2,4-7,12");
        assert_eq!(plain("^3,0-4").unwrap().to_string(), "0-4");
        for bad in ["", "a", "0-", "^", "1,,2", "4-1"] {
            assert!(plain(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn nodes_and_all_of_xl() {
        let host: Topology = "2 sockets x 2 nodes x 2 cores".parse().unwrap();
        let set = |text: &str| xl(text, Some(&host)).unwrap().unwrap().to_string();
        assert_eq!(set("all"), "0-7");
        assert_eq!(set("nodes:0-1,6"), "0-3,6");
        assert_eq!(set("nodes:0-3,^node:1"), "0-1,4-7");
        assert_eq!(set("node:2,^4"), "5");
        assert!(xl("^0", Some(&host)).unwrap_err().contains("leaves no pCPU"));
        assert_eq!(set("all,^nodes:0"), "2-7");
        assert_eq!(xl("all", None), Ok(None));
        assert_eq!(xl("2-3", None).unwrap().unwrap().to_string(), "2-3");
        for empty in ["", " ", "0,", "^"] {
            let error = xl(empty, Some(&host)).unwrap_err();
            assert!(
                error.contains("no list of pCPUs") || error.contains("nothing behind"),
                "{empty:?}: {error}"
            );
        }
        assert!(xl("nodes:0", None).unwrap_err().contains("needs the host"));
        assert!(xl("nodes:7", Some(&host)).unwrap_err().contains("node 7 does not exist"));
    }
}
