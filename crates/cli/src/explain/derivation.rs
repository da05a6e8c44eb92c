//! One VM in full: what it gets, and how that came.

use std::fmt::Write as _;

use corefit_core::entitle::{Binding, Division, Wants};
use corefit_core::machine::{Role, VmEstimate};
use corefit_core::{CpuSet, Cpus, Weight};

use super::text::{amount, limit, short, wrap};
use super::{View, online, tables, wants};
use crate::printable;

/// What was used and is available is the same up to so many pCPUs.
const MORE: f64 = 0.01;
/// Siblings that are named at each level.
const SIBLINGS: usize = 6;

/// Everything about a VM (by its number in the division).
pub(super) fn text(view: &View, number: usize, width: usize) -> String {
    let vm = &view.host.vms[number];
    let over = view.host.over.as_secs_f64();
    let mut out = String::new();
    let machine = printable::text(&view.machine);
    let head = format!("{}{} on {machine}, watched for {over:.2} s", view.when, vm.seen.name);
    wrap(&mut out, "", &head, width);
    out.push('\n');
    for (word, cpus, meaning) in [
        ("entitled", vm.entitled, "pCPUs, when every VM wants everything"),
        ("available", vm.available, "now, at least"),
        ("used", vm.activity.used, "by its vCPUs and helpers"),
        ("waiting", vm.activity.waiting, "ready to run, without a pCPU"),
    ] {
        wrap(&mut out, &format!("{word:<9} {:>7}  ", amount(cpus)), meaning, width);
    }
    because(view, number, width, &mut out);
    weight(view, vm, width, &mut out);
    limits(view, vm, width, &mut out);
    vcpus(view, number, width, &mut out);
    memory(view, vm, width, &mut out);
    class(vm, width, &mut out);
    guest(vm, width, &mut out);
    demand(vm, width, &mut out);
    tables::remarks(view, width, &mut out);
    out
}

fn because(view: &View, number: usize, width: usize, out: &mut String) {
    let vm = &view.host.vms[number];
    out.push_str("\nWhy it is entitled to that\n");
    let known = view.host.division.as_ref().filter(|_| vm.entitled.is_some() && online(vm) > 0);
    let Some(division) = known else {
        wrap(out, "  ", &vm.binding, width);
        return;
    };
    let names = view.long_names();
    for reason in &vm.reasons {
        wrap(out, "  ", &names.shorten(reason), width);
    }
    for binding in division.bindings(number) {
        shared(view, division, number, &binding, width, out);
    }
    let proof = division.certificate().check(&view.host.host, Wants::Everything);
    let proof = match proof {
        Ok(()) => "Checked: there is a timetable that gives everybody these amounts and overfills no pCPU, \
            quota or cap; and nobody stopped below its limit without a full pCPU or a used-up cap. So nobody \
            can get more unless another gets less or a limit is raised."
            .into(),
        Err(violation) => format!("NOT PROVED, please report: {violation}"),
    };
    wrap(out, "  ", &proof, width);
}

/// Who shares the full pCPUs, and what each gets.
fn shared(view: &View, division: &Division, vm: usize, binding: &Binding, width: usize, out: &mut String) {
    let Some(full) = binding.full.as_ref().filter(|full| !full.pcpus.is_empty()) else { return };
    let mut sharers: Vec<(f64, String)> = full
        .vms
        .iter()
        .map(|(other, vcpus)| {
            let gets: f64 = vcpus.iter().map(|vcpu| division.vcpus(*other)[vcpu.0 as usize].cpus.0).sum();
            let VmEstimate { seen, .. } = &view.host.vms[*other];
            // A VM counts with everything here, anybody else with what it wants.
            let other_wants = (seen.role == Role::Other).then(|| wants(&view.host.vms[*other]));
            let what = match other_wants {
                Some(wanted) if wanted <= gets + 0.005 => ", all that it wants".into(),
                Some(wanted) if wanted.is_finite() => format!(" of {wanted:.2} that it wants"),
                _ => String::new(),
            };
            let itself = if *other == vm { " (this VM)" } else { "" };
            (gets, format!("{}{itself} {gets:.2}{what}", short(&seen.name)))
        })
        .collect();
    sharers.sort_by(|a, b| b.0.total_cmp(&a.0));
    let rest: f64 = sharers.iter().skip(SIBLINGS).map(|(gets, _)| gets).sum();
    let more = sharers.len().saturating_sub(SIBLINGS);
    let mut list: Vec<String> = sharers.into_iter().take(SIBLINGS).map(|(_, text)| text).collect();
    if more > 0 {
        list.push(format!("{more} more {rest:.2}"));
    }
    let text = format!("{} divided: {}", full.pcpus.named("pCPU"), list.join("; "));
    wrap(out, "  ", &text, width);
}

/// A sibling on one level of the tree: name, weight, what it wants if that is known.
struct Sibling<'a> {
    name: &'a str,
    weight: Option<Weight>,
    wants: Option<f64>,
    /// A real-time thread.
    first: bool,
}

fn weight(view: &View, vm: &VmEstimate, width: usize, out: &mut String) {
    out.push_str("\nWeight, level by level\n");
    for (parent, name) in way(view, vm) {
        let (first, siblings): (Vec<_>, Vec<_>) = siblings(view, parent).into_iter().partition(|s| s.first);
        let total = siblings.iter().filter_map(|s| s.weight).map(|w| w.0).fold(0.0, |sum, w| sum + w);
        let own = siblings.iter().find(|s| s.name == name).and_then(|s| s.weight);
        let place = parent.map_or("at the top".into(), |parent| format!("in {}", short(parent)));
        let part = |weight: Option<Weight>| match weight {
            Some(Weight(weight)) if total > 0.0 => format!("{weight:.0} ({:.0} %)", 100.0 * weight / total),
            _ => "? (unread)".into(),
        };
        let mut line = format!("{} weighs {} of {total:.0}", short(name), part(own));
        let mut beside: Vec<&Sibling> = siblings.iter().filter(|s| s.name != name).collect();
        beside.sort_by(|a, b| {
            let key = |s: &Sibling| s.wants.unwrap_or(f64::INFINITY).min(1.0) * s.weight.map_or(0.0, |w| w.0);
            key(b).total_cmp(&key(a)).then_with(|| a.name.cmp(b.name))
        });
        if beside.is_empty() {
            line.push_str(", nobody is beside it");
        } else {
            let named = beside.iter().take(SIBLINGS).map(|sibling| {
                let wants = sibling.wants.map_or(String::new(), |wants| format!(", wants {wants:.2}"));
                format!("{} {}{wants}", short(sibling.name), part(sibling.weight))
            });
            let named = named.collect::<Vec<_>>().join("; ");
            let more = beside.len().saturating_sub(SIBLINGS);
            let more = if more > 0 { format!("; {more} more") } else { String::new() };
            let _ = write!(line, ", beside {named}{more}");
        }
        let first: Vec<String> = first.iter().take(SIBLINGS).map(|s| short(s.name)).collect();
        if !first.is_empty() {
            let _ = write!(line, "; before all that have weights: {}", first.join(", "));
        }
        wrap(out, &format!("  {place}: "), &line, width);
    }
    let rule = "What wants less than its part leaves the rest to its siblings, by their weights.";
    wrap(out, "  ", rule, width);
}

/// From the top: each group on the way with the group that it is in, the VM last.
fn way<'a>(view: &'a View, vm: &'a VmEstimate) -> Vec<(Option<&'a str>, &'a str)> {
    let mut way = vec![(vm.seen.parent.as_deref(), vm.seen.name.as_str())];
    while let Some((Some(parent), _)) = way.last().copied() {
        let group = view.snapshot.groups.iter().find(|group| group.name == parent);
        way.push((group.and_then(|group| group.parent.as_deref()), parent));
    }
    way.reverse();
    way
}

fn siblings<'a>(view: &'a View, parent: Option<&str>) -> Vec<Sibling<'a>> {
    let groups = view.snapshot.groups.iter().filter(|group| group.parent.as_deref() == parent);
    let groups =
        groups.map(|group| Sibling { name: &group.name, weight: group.weight, wants: None, first: false });
    let vms = view.host.vms.iter().filter(|vm| vm.seen.parent.as_deref() == parent);
    let vms = vms.map(|vm| Sibling {
        name: &vm.seen.name,
        weight: vm.seen.weight,
        wants: Some(wants(vm)).filter(|wants| wants.is_finite()),
        first: vm.seen.is_realtime(),
    });
    groups.chain(vms).collect()
}

fn limits(view: &View, vm: &VmEstimate, width: usize, out: &mut String) {
    out.push_str("\nQuotas\n");
    let mut any = false;
    for (_, name) in way(view, vm) {
        let group = view.snapshot.groups.iter().find(|group| group.name == name);
        let quota = group.map_or(vm.seen.quota.as_ref(), |group| group.quota.as_ref());
        if let Some(limit) = limit(quota) {
            any = true;
            wrap(out, &format!("  {}: ", short(name)), &format!("{limit} for all in it"), width);
        }
    }
    for (number, vcpu) in vm.seen.vcpus.iter().enumerate() {
        if let Some(limit) = limit(vcpu.quota.as_ref()) {
            any = true;
            wrap(out, &format!("  vCPU {number}: "), &limit, width);
        }
    }
    if !any {
        out.push_str("  none, here or above\n");
    }
}

fn vcpus(view: &View, number: usize, width: usize, out: &mut String) {
    let vm = &view.host.vms[number];
    out.push_str("\nvCPUs\n");
    if vm.seen.is_group() {
        let text = "A control group has no vCPUs: one stands for each pCPU that it may use. What it used is \
            counted for all together.";
        wrap(out, "  ", text, width);
    }
    let headings = ["  vCPU", "may use", "entitled", "used", "waiting", "seen on"];
    // Neighbours that are alike share a row.
    let mut rows: Vec<(CpuSet, Vec<String>)> = Vec::new();
    for (index, vcpu) in vm.seen.vcpus.iter().enumerate() {
        let Ok(id) = u32::try_from(index).map(corefit_core::CpuId) else { continue };
        let division = view.host.division.as_ref().filter(|_| vm.entitled.is_some());
        let share = division.map(|division| division.vcpus(number)[index].cpus);
        let activity = vm.vcpus.get(index).copied().unwrap_or_default();
        let one = |cpus: Option<Cpus>| if vm.seen.is_group() { String::new() } else { amount(cpus) };
        let cells = vec![
            vcpu.affinity.as_ref().map_or("?".into(), |set| set.named("pCPU")),
            if vcpu.online { amount(share) } else { "offline".into() },
            one(activity.used),
            one(activity.waiting),
            vcpu.on.map_or("-".into(), |pcpu| pcpu.0.to_string()),
        ];
        match rows.last_mut() {
            Some((ids, same)) if *same == cells => *ids = ids.iter().chain([id]).collect(),
            _ => rows.push(([id].into_iter().collect(), cells)),
        }
    }
    let named = |(ids, cells): (CpuSet, Vec<String>)| [format!("  {ids}")].into_iter().chain(cells).collect();
    let mut rows: Vec<Vec<String>> = rows.into_iter().map(named).collect();
    for (index, helper) in vm.seen.helpers.iter().enumerate() {
        let division = view.host.division.as_ref().filter(|_| vm.entitled.is_some());
        let share = division.map(|division| division.vcpus(number)[vm.seen.vcpus.len() + index].cpus);
        let activity = vm.helpers.get(index).copied().unwrap_or_default();
        rows.push(vec![
            format!("  {}", helper.name),
            helper.affinity.as_ref().map_or("?".into(), |set| set.named("pCPU")),
            amount(share),
            amount(activity.used),
            amount(activity.waiting),
            "-".into(),
        ]);
    }
    out.push_str(&tables::fitting(2, &headings, &rows, width).concat());
}

fn memory(view: &View, vm: &VmEstimate, width: usize, out: &mut String) {
    let Some(nodes) = view.memory_nodes(&vm.seen) else { return };
    let by = match (vm.seen.is_group(), vm.seen.memory_nodes.is_some()) {
        (false, _) => "numatune",
        (true, true) => "cpuset.mems",
        (true, false) => "cpuset.mems of a group above it",
    };
    out.push_str("\nMemory\n");
    wrap(out, "  ", &format!("from {} only ({by})", nodes.named("NUMA node")), width);
}

/// What its work is like, for who places it; that of a rule in `corefit.toml` counts more.
fn class(vm: &VmEstimate, width: usize, out: &mut String) {
    out.push_str("\nClass of its work\n");
    wrap(out, "  ", &vm.class.to_string(), width);
}

/// What the guest's agent said last. Its counters begin at its boot.
fn guest(vm: &VmEstimate, width: usize, out: &mut String) {
    let Some(guest) = &vm.seen.guest else { return };
    out.push_str("\nWhat its guest says\n");
    if let Some(runnable) = guest.runnable {
        let text = format!("{runnable} of its threads running or ready to run");
        wrap(out, "  ", &text, width);
    }
    let headings = ["  vCPU", "since boot: busy", "idle", "stolen"];
    let mut rows = Vec::new();
    let seconds = |ns: Option<u64>| {
        ns.map_or("?".into(), |ns| format!("{:.1} s", std::time::Duration::from_nanos(ns).as_secs_f64()))
    };
    for vcpu in &guest.vcpus {
        let busy = if vcpu.online { seconds(vcpu.busy_ns) } else { "offline".into() };
        let (idle, steal) = (seconds(vcpu.idle_ns), seconds(vcpu.steal_ns));
        rows.push(vec![format!("  {}", vcpu.id), busy, idle, steal]);
    }
    out.push_str(&tables::fitting(1, &headings, &rows, width).concat());
}

fn demand(vm: &VmEstimate, width: usize, out: &mut String) {
    out.push_str("\nWhat it wants, and what is available\n");
    let text = match (vm.demand, vm.activity.used, vm.activity.waiting) {
        (Some(demand), Some(used), Some(waiting)) => {
            // A group's threads may be more than its pCPUs.
            let (who, most) = if vm.seen.is_group() {
                ("its threads", ", but at most one pCPU for each vCPU")
            } else {
                ("it", "")
            };
            format!(
                "It used {used}, and {who} waited for {waiting}. Without waiting it would have used {demand}: its demand. (A \
                thread that ran r and waited w of the time wants r / (1 - w); several together that or r + w, the \
                smaller{most}.)"
            )
        }
        (_, Some(used), None) => {
            format!("It used {used}; what it waited for is not known, so its demand is at least that.")
        }
        _ => "What it used is not known; others count it as wanting everything.".into(),
    };
    wrap(out, "  ", &text, width);
    let text = "What is available is computed likewise: this VM wants everything, all others their demands. As \
        these are too high if anything (they would sleep as long as they did), it is a lower bound.";
    wrap(out, "  ", text, width);
    if let (Some(available), Some(used)) = (vm.available, vm.activity.used)
        && used.0 > available.0 + MORE
    {
        let text = "It used more than that: it got more than its part while it was watched, or something was \
            changed meanwhile. Its part is what it can count on.";
        wrap(out, "  ", text, width);
    }
}
