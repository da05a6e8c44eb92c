//! A machine for the terminal: boxes as indentation, cores in brackets.
//!
//! ```text
//! socket 0
//!   L3 8 MiB, node 0 (16 GiB)
//!     [0=a0 8] [1=a1 9] [2 (10)]
//! ```

use corefit_core::topology::{Branch, Topology, Unit, size};
use corefit_core::{CpuId, CpuSet};

use super::guests::Guests;
use crate::lines::wrap;
use crate::printable;

/// VMs named at one pCPU.
const TAGS: usize = 3;

pub(super) fn draw(topology: &Topology, guests: &Guests, width: usize) -> String {
    let mut out = String::new();
    let about = if topology.about.is_empty() { String::new() } else { format!("{}: ", topology.about) };
    wrap(&mut out, "", 0, &printable::text(&format!("{about}{}", topology.summary())), width);
    out.push('\n');
    branch(topology, &topology.tree(), guests, 0, width, &mut out);
    for node in topology.memory_only() {
        let id = node.id.map(|id| format!(" {id}")).unwrap_or_default();
        let much = node.memory_kib.map(|kib| format!(" ({})", size(kib))).unwrap_or_default();
        out.push_str(&format!("node{id}{much}: memory only\n"));
    }
    let mut words =
        vec![if topology.modules.is_empty() { "[ ] a core" } else { "[ ] a module, | between its cores" }];
    if !topology.offline.is_empty() {
        words.push("( ) offline");
    }
    if !topology.isolated.is_empty() {
        words.push("! isolated");
    }
    if topology.is_hybrid() {
        words.push("~ slower");
    }
    if !guests.rows.is_empty() {
        words.push("=a0 vCPU 0 of VM a, =a any of its vCPUs");
    }
    out.push('\n');
    wrap(&mut out, "", 0, &words.join("; "), width);
    if !guests.rows.is_empty() {
        out.push('\n');
        let tags = guests.rows.iter().map(|row| row.tag.len()).max().unwrap_or(1);
        for row in &guests.rows {
            let first = format!("{:tags$}  {}: ", row.tag, printable::text(&row.name));
            wrap(&mut out, &first, tags + 4, &row.place, width);
        }
    }
    out
}

fn branch(topology: &Topology, tree: &Branch, guests: &Guests, depth: usize, width: usize, out: &mut String) {
    let inside = if tree.labels.is_empty() { depth } else { depth + 1 };
    if !tree.labels.is_empty() {
        wrap(out, &"  ".repeat(depth), 2 * depth + 2, &tree.labels.join(", "), width);
    }
    let cells: Vec<String> = tree.units.iter().map(|unit| cells(topology, unit, guests)).collect();
    // In columns, if that does not make a few long ones push all others apart.
    let longest = cells.iter().map(|text| text.chars().count()).max().unwrap_or(0);
    let mean = cells.iter().map(|text| text.chars().count()).sum::<usize>() / cells.len().max(1);
    let column = if longest <= 2 * mean.max(1) { longest } else { 0 };
    let indent = " ".repeat(2 * inside);
    let mut line = indent.clone();
    for cell in cells {
        if line.len() > indent.len() && line.chars().count() + cell.chars().count().max(column) > width {
            out.push_str(line.trim_end());
            out.push('\n');
            line.clone_from(&indent);
        }
        line.push_str(&format!("{cell:column$} "));
    }
    if line.trim() != "" {
        out.push_str(line.trim_end());
        out.push('\n');
    }
    for inner in &tree.branches {
        branch(topology, inner, guests, inside, width, out);
    }
}

fn cells(topology: &Topology, unit: &Unit, guests: &Guests) -> String {
    let core =
        |core: &CpuSet| core.iter().map(|cpu| cell(topology, cpu, guests)).collect::<Vec<_>>().join(" ");
    format!("[{}]", unit.cores.iter().map(core).collect::<Vec<_>>().join(" | "))
}

fn cell(topology: &Topology, cpu: CpuId, guests: &Guests) -> String {
    let mut text = cpu.0.to_string();
    if topology.offline.contains(cpu) {
        text = format!("({text})");
    }
    if topology.isolated.contains(cpu) {
        text.push('!');
    }
    let most = topology.capacity.values().max();
    if topology.capacity.get(&cpu.0) < most {
        text.push('~');
    }
    let here = guests.on.get(&cpu).map_or(&[][..], Vec::as_slice);
    if !here.is_empty() {
        text.push('=');
    }
    for (vm, vcpus) in here.iter().take(TAGS) {
        let tag = &guests.rows[*vm].tag;
        if vcpus.is_empty() {
            text.push_str(tag);
        }
        vcpus.iter().for_each(|vcpu| text.push_str(&format!("{tag}{vcpu}")));
    }
    if here.len() > TAGS {
        text.push_str(&format!("+{}", here.len() - TAGS));
    }
    text
}
