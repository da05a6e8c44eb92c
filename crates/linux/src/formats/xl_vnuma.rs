//! `vnuma` of an xl configuration (xl.cfg(5)): the NUMA nodes that the guest is shown, each a list of `option=value`.
//!
//! What is refused here is what xl refuses (`parse_vnuma_config` in tools/xl/xl_parse.c); that a node of the host does not
//! exist is found later. `size` and `vdistances` decide nothing about pCPUs.

use corefit_core::check::{Cell, Place, Set};
use corefit_core::{CpuId, CpuSet};

use super::xl_config::{Value, fail};
use super::{FormatError, cpu_list, short};

/// The guest's nodes, in their order.
pub(super) fn cells(
    nodes: &Value,
    line: u32,
    place: impl Fn(u32) -> Place,
) -> Result<Vec<Cell>, FormatError> {
    let wrong = |line, what: &str| Err(fail(line, &format!("vnuma: {what}")));
    let Value::List(nodes) = nodes else {
        return wrong(line, "is no list of lists, as in [ [ \"pnode=0\", \"size=1024\", \"vcpus=0-3\" ] ]");
    };
    let mut cells: Vec<Cell> = Vec::new();
    for (id, (node, line)) in (0..).zip(nodes) {
        let Value::List(options) = node else {
            return wrong(*line, "a node is a list, as in [ \"pnode=0\", \"size=1024\", \"vcpus=0-3\" ]");
        };
        let mut cell = Cell { id, ..Cell::default() };
        for (option, line) in options {
            let pair = match option {
                Value::Text(text) => text.split_once('='),
                Value::List(_) => None,
            };
            let Some((option, value)) = pair.map(|(option, value)| (option.trim(), value.trim())) else {
                return wrong(*line, "an option of a node is a text, as in \"pnode=0\"");
            };
            match option {
                "pnode" => {
                    let pnode = value.parse().map(|node| CpuSet::from_iter([CpuId(node)]));
                    let Some(value) = pnode.ok().filter(|pnode| !pnode.is_empty()) else {
                        return wrong(*line, &format!("pnode: {:?} is no number of a node", short(value)));
                    };
                    cell.memory = Some(Set { value, place: place(*line) });
                }
                "vcpus" => match cpu_list::plain(value) {
                    Ok(more) => cell.vcpus = cell.vcpus.union(&more),
                    Err(part) => return wrong(*line, &format!("vcpus: {part:?} is no list, as in 0-3,8")),
                },
                _ => {}
            }
        }
        let twice = cells.iter().fold(CpuSet::default(), |all, other| all.union(&other.vcpus));
        let twice = twice.intersection(&cell.vcpus);
        if !twice.is_empty() {
            return wrong(*line, &format!("vCPU {twice} is in two nodes"));
        }
        cells.push(cell);
    }
    Ok(cells)
}
