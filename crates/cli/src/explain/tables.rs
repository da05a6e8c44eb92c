//! The host and its VMs, as tables for people.

use std::fmt::Write as _;

use corefit_core::Cpus;
use corefit_core::machine::{PcpuEstimate, Role, State};

use super::text::{amount, short, wrap};
use super::{View, online};
use crate::table::Table;
use crate::{named, printable};

/// pCPUs that are listed one by one; of more, the rest is summed up.
const PCPUS: usize = 32;
/// Competitors that are listed.
const OTHERS: usize = 6;
/// One that used and waited for less is not worth a line, in pCPUs.
const LITTLE: f64 = 0.005;
/// Stolen time below this is not shown.
const STOLEN: f64 = 0.005;

/// The tables, in lines of `width` columns where possible.
pub(super) fn text(view: &View, width: usize) -> String {
    let over = view.host.over.as_secs_f64();
    let mut out = String::new();
    let machine = printable::text(&view.machine);
    wrap(&mut out, "", &format!("{}{machine}, watched for {over:.2} s", view.when), width);
    out.push('\n');
    pcpus(view, width, &mut out);
    out.push('\n');
    vms(view, width, &mut out);
    others(view, width, &mut out);
    if view.first {
        out.push('\n');
        meanings(view, width, &mut out);
    }
    remarks(view, width, &mut out);
    out
}

fn pcpus(view: &View, width: usize, out: &mut String) {
    let all = &view.host.pcpus;
    let stolen = all.iter().any(|pcpu| pcpu.steal.is_some_and(|steal| steal.0 >= STOLEN));
    let headings = ["pCPU", "busy", "stolen", "seen on it (VMs, then other groups)"];
    let cells = |row: [String; 4]| row.into_iter().enumerate().filter(|(i, _)| *i != 2 || stolen);
    let mut rows: Vec<Vec<String>> = Vec::new();
    rows.push(cells(headings.map(Into::into)).map(|(_, cell)| cell).collect());
    for pcpu in all.iter().take(PCPUS) {
        let busy = if pcpu.online { amount(pcpu.busy) } else { "offline".into() };
        let row = [pcpu.id.0.to_string(), busy, amount(pcpu.steal), who(view, pcpu)];
        rows.push(cells(row).map(|(_, cell)| cell).collect());
    }
    // The last column is text of any length: it is wrapped, not aligned.
    let last = rows[0].len() - 1;
    let widths: Vec<usize> =
        (0..last).map(|c| rows.iter().map(|row| row[c].chars().count()).max().unwrap_or(0)).collect();
    for row in &rows {
        let mut begin = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(begin, "{cell:>width$}  ");
        }
        wrap(out, &begin, &row[last], width);
    }
    if let Some(more) = all.get(PCPUS..).filter(|more| !more.is_empty()) {
        let known: Vec<f64> = more.iter().filter_map(|pcpu| pcpu.busy).map(|busy| busy.0).collect();
        let sum = known.iter().sum::<f64>();
        let busy = if known.is_empty() { String::new() } else { format!(", of which {sum:.2} busy") };
        wrap(out, "", &format!("and {} more{busy} (--json lists all)", more.len()), width);
    }
}

/// Who was seen on a pCPU, VMs first, each once.
fn who(view: &View, pcpu: &PcpuEstimate) -> String {
    let mut vms: Vec<usize> = pcpu.users.iter().map(|(vm, _)| *vm).collect();
    vms.sort_by_key(|&vm| (view.host.vms[vm].seen.role == Role::Other, vm));
    vms.dedup();
    let names = vms.iter().map(|&vm| short(&view.host.vms[vm].seen.name));
    let names = names.collect::<Vec<_>>().join(", ");
    if names.is_empty() { "-".into() } else { names }
}

fn vms(view: &View, width: usize, out: &mut String) {
    let headings = ["VM", "vCPUs", "entitled", "available", "used", "waiting"];
    let (mut rows, mut because) = (Vec::new(), Vec::new());
    for (_, vm) in view.vms() {
        rows.push(vec![
            short(&vm.seen.name),
            online(vm).to_string(),
            amount(vm.entitled),
            amount(vm.available),
            amount(vm.activity.used),
            amount(vm.activity.waiting),
        ]);
        let paused = if vm.seen.state == State::Paused && vm.binding != "paused" { "paused; " } else { "" };
        because.push(format!("{paused}{}", vm.binding));
    }
    let names = view.long_names();
    let mut blocks = fitting(1, &headings, &rows, width).into_iter();
    out.push_str(&blocks.next().unwrap_or_default());
    for (block, because) in blocks.zip(because) {
        out.push_str(&block);
        wrap(out, "  because ", &names.shorten(&because), width);
    }
    if view.vms().next().is_none() {
        let _ = writeln!(out, "there are no VMs");
    }
}

fn others(view: &View, width: usize, out: &mut String) {
    let others = view.others();
    let (shown, rest) =
        others.split_at(others.iter().take(OTHERS).filter(|o| super::wants(o) >= LITTLE).count());
    if shown.is_empty() {
        return;
    }
    out.push('\n');
    let mut rows = Vec::new();
    for other in shown {
        let weight = match other.seen.weight {
            _ if other.seen.is_realtime() => "before all".into(),
            weight => weight.map_or("?".into(), |weight| format!("{:.0}", weight.0)),
        };
        let (used, waiting) = (amount(other.activity.used), amount(other.activity.waiting));
        rows.push(vec![short(&other.seen.name), weight, used, waiting]);
    }
    out.push_str(&fitting(1, &["also competing", "weight", "used", "waiting"], &rows, width).concat());
    if !rest.is_empty() {
        let sum: f64 = rest.iter().filter_map(|other| other.activity.used).map(|Cpus(used)| used).sum();
        wrap(out, "", &format!("and {} more, which used {sum:.2} together", rest.len()), width);
    }
}

/// The heading of a table and its rows; on who has no room for it, each cell with its heading, in lines that fit.
/// The first `names` columns are text.
pub(super) fn fitting(names: usize, headings: &[&str], rows: &[Vec<String>], width: usize) -> Vec<String> {
    let mut table = Table::new(names, headings);
    rows.iter().for_each(|row| table.row(row.clone()));
    let lines: Vec<String> = table.render().lines().map(|line| format!("{line}\n")).collect();
    if lines.iter().all(|line| line.chars().count() <= width + 1) {
        return lines;
    }
    let block = |row: &Vec<String>| {
        let cells = headings.iter().zip(row).skip(1).filter(|(_, cell)| !cell.is_empty());
        let cells = cells.map(|(heading, cell)| format!("{heading} {cell}"));
        let mut block = format!("{}\n", row[0]);
        wrap(&mut block, "    ", &cells.collect::<Vec<_>>().join(", "), width);
        block
    };
    [format!("{}\n", headings[0])].into_iter().chain(rows.iter().map(block)).collect()
}

/// What the words mean.
fn meanings(view: &View, width: usize, out: &mut String) {
    let groups = view.vms().any(|(_, vm)| vm.seen.is_group());
    for (word, meaning) in [
        ("entitled   ", "pCPUs that the VM gets when every VM wants everything"),
        (
            "available  ",
            "what it could get now, at least: the others count with what they would use if they never waited \
             (what it used can be more: it had more than its part, which nobody owes it)",
        ),
        (
            "waiting    ",
            "threads (of a VM: vCPUs and helpers) that were ready to run and had no pCPU, on average",
        ),
    ] {
        wrap(out, word, meaning, width);
    }
    if groups {
        wrap(out, "vCPUs      ", "of a group: the pCPUs that its threads may use", width);
    }
}

/// What could not be read, and notes.
pub(super) fn remarks(view: &View, width: usize, out: &mut String) {
    if !view.host.unread.is_empty() {
        out.push_str("\nnot visible\n");
        for unread in &view.host.unread {
            let text = format!("{}: {}", unread.path, unread.why);
            wrap(out, &format!("  {:<9} ", named::name(unread.what)), &text, width);
        }
    }
    for note in view.host.notes.iter().map(String::as_str).chain(view.partial) {
        out.push('\n');
        wrap(out, "note: ", note, width);
    }
}
