//! From tables to a description.

use std::cell::RefCell;
use std::collections::BTreeMap;

use corefit_core::CpuSet;
use toml::de::DeTable;

use super::decide;
use super::policy::{policy, relaxed};
use super::table::Table;
use super::{Events, Scenario, ScenarioError, Set};
use crate::host::{Sim, SpecError, check_hardware};
use crate::program::{CLASSES, NAMES, Program, library, library_class};
use crate::spec::{
    AppSpec, Change, Class, Costs, Governor, GuestSpec, Hardware, Limit, LockKind, Ple, Runtime, Spec,
    VcpuSpec, VmSpec,
};

const MS: u64 = 1_000_000;

pub(super) fn scenario<'a>(
    text: &'a str,
    root: &'a DeTable<'a>,
    sets: &'a [Set],
) -> Result<Scenario, ScenarioError> {
    let lines = RefCell::new(BTreeMap::new());
    let root = Table::new(text, "", root, None, sets, &lines);
    let hardware = hardware(&root)?;
    let decides = decide::policy(&root, &hardware)?;
    let policy = policy(&root)?;
    let relaxed = relaxed(&root, &policy)?;
    let mut classes = vec![Class::plain("plain")];
    for table in root.tables("class")? {
        let class = class(&table)?;
        if classes.iter().any(|other| other.name == class.name) {
            return table
                .error("name", "another class is called so, too (plain is work that nothing slows down)");
        }
        classes.push(class);
    }
    let mut vms = Vec::new();
    for table in root.tables("vm")? {
        vm(&table, &hardware, &mut classes, &mut vms)?;
    }
    let spec = Spec {
        seed: u64::from(root.whole("seed", 1, 0, u32::MAX)?),
        hardware,
        policy,
        spread_siblings: root.boolean("spread_siblings", false)?,
        relaxed,
        costs: costs(&root)?,
        ple: ple(&root)?,
        governor: governor(&root)?,
        period_ns: root.time("period", 0)?,
        until_ns: root.time("until", 60_000 * MS)?,
        warmup_ns: root.time("warmup", 0)?,
        jitter_ns: root.time("jitter", 30 * MS)?,
        classes,
        vms,
    };
    let scenario = Scenario {
        about: root.text("about")?.unwrap_or_default(),
        runs: root.whole("runs", 5, 1, 100_000)?,
        agent: root.boolean("agent", true)?,
        cache_counters: root.boolean("cache_counters", false)?,
        events: None,
        policy: decides,
        spec,
    };
    root.finish()?;
    let limited = |vm: &&VmSpec| vm.vcpus.iter().any(|vcpu| vcpu.limit.is_some());
    if let Some(vm) = scenario.spec.vms.iter().find(limited).filter(|_| scenario.spec.policy.is_xen()) {
        let what = "Xen's schedulers know no quota of a vCPU; give the VM a cap".to_owned();
        return Err(placed(SpecError { path: format!("vm.{}.quota", vm.name), what }, &lines.borrow()));
    }
    let made = scenario.spec.vms.iter().find(|vm| !vm.made_on.is_empty());
    if let Some(vm) = made.filter(|_| root.value("scheduler").is_none()) {
        let what = "counts with scheduler = \"credit\" only; give that, too, or leave it out".to_owned();
        return Err(placed(SpecError { path: format!("vm.{}.made_on", vm.name), what }, &lines.borrow()));
    }
    Sim::new(&scenario.spec).map_err(|e| placed(e, &lines.borrow()))?;
    let events = scenario.spec.events().map(|(number, vm)| {
        let error = SpecError { path: format!("{vm}.program"), what: String::new() };
        Events { number, place: placed(error, &lines.borrow()).place }
    });
    Ok(Scenario { events, ..scenario })
}

/// A mistake that shows only in the whole, with the place of the value that causes it.
fn placed(error: SpecError, lines: &BTreeMap<String, String>) -> ScenarioError {
    let SpecError { path, what } = error;
    // One of several VMs (lu-0) stands in the file once (lu).
    let several = path.split('.').nth(1).and_then(|name| Some((name, name.rsplit_once('-')?.0)));
    let once = several.map(|(name, base)| path.replacen(name, base, 1));
    let place = lines.get(&path).or_else(|| lines.get(&once?)).cloned().unwrap_or(format!("{path}: "));
    ScenarioError { place, what }
}

fn hardware(root: &Table<'_>) -> Result<Hardware, ScenarioError> {
    let usual = Hardware { cores: 4, ..Hardware::flat(4) };
    let Some(table) = root.table("hardware")? else { return Ok(usual) };
    let hardware = Hardware {
        sockets: table.whole("sockets", 1, 1, 4096)?,
        nodes: table.whole("nodes", 1, 1, 4096)?,
        cores: table.whole("cores", usual.cores, 1, 4096)?,
        threads: table.whole("threads", 1, 1, 64)?,
        adjacent: table.choice("numbering", true, &[("adjacent", true), ("apart", false)])?,
        cache_kib: table.whole("cache_kib", usual.cache_kib, 1, u32::MAX)?,
    };
    table.finish()?;
    check_hardware(&hardware).map_err(|e| root.misfit("hardware", e.what))?;
    Ok(hardware)
}

fn costs(root: &Table<'_>) -> Result<Costs, ScenarioError> {
    let usual = Costs::default();
    let Some(table) = root.table("costs")? else { return Ok(usual) };
    let costs = Costs {
        switch_ns: table.time("switch", usual.switch_ns)?,
        migrate_near_ns: table.time("migrate_near", usual.migrate_near_ns)?,
        migrate_far_ns: table.time("migrate_far", usual.migrate_far_ns)?,
        ipi_ns: table.time("ipi", usual.ipi_ns)?,
        halt_ns: table.time("halt", usual.halt_ns)?,
        kick_ns: table.time("kick", usual.kick_ns)?,
        ple_exit_ns: table.time("ple_exit", usual.ple_exit_ns)?,
        thread_switch_ns: table.time("thread_switch", usual.thread_switch_ns)?,
        thread_wake_ns: table.time("thread_wake", usual.thread_wake_ns)?,
        line_ns: table.time("line", usual.line_ns)?,
        hotplug_ns: table.time("hotplug", usual.hotplug_ns)?,
        spin_turn_ns: table.time_from("spin_turn", usual.spin_turn_ns, 1)?,
    };
    table.finish()?;
    Ok(costs)
}

fn ple(root: &Table<'_>) -> Result<Ple, ScenarioError> {
    let usual = Ple::default();
    let Some(table) = root.table("ple")? else { return Ok(usual) };
    let ple = Ple {
        on: table.boolean("on", usual.on)?,
        window_ns: table.time_from("window", usual.window_ns, 100)?,
        user: table.boolean("user", usual.user)?,
        directed: table.boolean("directed", usual.directed)?,
    };
    table.finish()?;
    Ok(ple)
}

fn governor(root: &Table<'_>) -> Result<Option<Governor>, ScenarioError> {
    let usual = Governor::default();
    let Some(table) = root.table("governor")? else { return Ok(None) };
    let governor = Governor {
        slowest: table.real("slowest", usual.slowest)?,
        sample_ns: table.time_from("sample", usual.sample_ns, 100_000)?,
    };
    table.finish()?;
    Ok(Some(governor))
}

fn class(table: &Table<'_>) -> Result<Class, ScenarioError> {
    let Some(name) = table.text("name")? else { return table.error("name", "give the class a name") };
    let class = Class {
        beside_sibling: table.real("beside_sibling", 1.0)?,
        fpu: table.real("fpu", 1.0)?,
        footprint_kib: table.whole("footprint_kib", 0, 0, u32::MAX)?,
        without_cache: table.real("without_cache", 1.0)?,
        remote: table.real("remote", 1.0)?,
        name,
    };
    table.finish()?;
    Ok(class)
}

const LOCKS: [(&str, LockKind); 9] = [
    ("test-and-set", LockKind::TestAndSet),
    ("ticket", LockKind::Ticket),
    ("pv-ticket", LockKind::PvTicket),
    ("oticket", LockKind::OTicket { near: 18, wake: 4 }),
    ("iticket", LockKind::ITicket),
    ("longer-spin", LockKind::LongerSpin),
    ("queue", LockKind::Queue),
    ("corefit", LockKind::Corefit { bypasses: 192, cpus: 0 }),
    ("corefit-fifo", LockKind::Corefit { bypasses: 0, cpus: 0 }),
];

fn vm(
    table: &Table<'_>,
    hardware: &Hardware,
    classes: &mut Vec<Class>,
    vms: &mut Vec<VmSpec>,
) -> Result<(), ScenarioError> {
    let Some(name) = table.text("name")? else { return table.error("name", "give the VM a name") };
    if name.trim().is_empty() || name.contains('.') || name.bytes().all(|b| b.is_ascii_digit()) {
        let what = "is no name that --set can tell; give one without a dot that is not a number";
        return table.error("name", format!("{name:?} {what}"));
    }
    if name.contains(char::is_control) {
        return table.error("name", format!("{name:?} has control characters; leave them out"));
    }
    let count = table.whole("count", 1, 1, 4096)?;
    let (near, wake) = (table.whole("oticket_near", 18, 0, 64)?, table.whole("oticket_wake", 4, 1, 4096)?);
    let cpus = table.whole("corefit_cpus", 0, 0, 4096)?;
    if table.value("lock").is_none() {
        let counts = |lock| format!("counts with lock = {lock:?} only; give that, too, or leave it out");
        table.none_of(&["oticket_near", "oticket_wake"], &counts("oticket"))?;
        table.none_of(&["corefit_cpus"], &counts("corefit"))?;
    }
    let lock = match table.choice("lock", GuestSpec::default().lock, &LOCKS)? {
        LockKind::OTicket { .. } => LockKind::OTicket { near, wake },
        LockKind::Corefit { bypasses, .. } => LockKind::Corefit { bypasses, cpus },
        other => other,
    };
    let guest = GuestSpec {
        lock,
        slice_ns: table.time_from("slice", GuestSpec::default().slice_ns, 1000)?,
        wakeup_ns: table.time("wakeup", GuestSpec::default().wakeup_ns)?,
        rotate: table.boolean("rotate", false)?,
        packages: table.whole("packages", 1, 1, 4096)?,
    };
    let vcpus = vcpus(table, hardware)?;
    let apps = app(table, &vcpus, classes)?.into_iter().collect::<Vec<_>>();
    let vm = VmSpec {
        weight: table.whole("weight", 1024, 1, 262_144)?,
        cap: limit(table, ["cap", "cap_period", "cap_burst"])?,
        memory_nodes: table.cpus("memory_nodes")?.unwrap_or_default(),
        made_on: table.cpus("made_on")?.unwrap_or_default(),
        name: name.clone(),
        changes: changes(table)?,
        progress: table.boolean("progress", false)?,
        vcpus,
        guest,
        apps,
    };
    table.finish()?;
    if count == 1 {
        vms.push(vm);
    } else {
        vms.extend((0..count).map(|i| VmSpec { name: format!("{name}-{i}"), ..vm.clone() }));
    }
    Ok(())
}

/// `[[vm.change]]`: at a time, so many vCPUs online, or members of teams.
fn changes(table: &Table<'_>) -> Result<Vec<Change>, ScenarioError> {
    let mut changes = Vec::new();
    for change in table.tables("change")? {
        let number = |key| Ok(change.whole(key, 0, 1, 1_000_000)?).map(|n| (n > 0).then_some(n));
        if change.value("at").is_none() {
            return change.error("at", "when it changes is missing; give a time such as \"5s\"");
        }
        let one = Change { at_ns: change.time("at", 0)?, online: number("online")?, team: number("team")? };
        if one.online.is_none() && one.team.is_none() {
            return change.error("at", "nothing changes then; give online or team, 1 or more");
        }
        change.finish()?;
        changes.push(one);
    }
    Ok(changes)
}

/// A limit in pCPUs, with the keys of its period and of what of it may be saved.
fn limit(table: &Table<'_>, [key, period, burst]: [&'static str; 3]) -> Result<Option<Limit>, ScenarioError> {
    let none = table.none(key);
    let cpus = if none { 0.0 } else { table.real(key, 0.0)? };
    let period_ns = table.time(period, 100 * MS)?;
    let burst_ns = table.time(burst, 0)?;
    if table.value(key).is_none() {
        let counts = format!("counts with {key} only; give that, too, or leave it out");
        table.none_of(&[period, burst], &counts)?;
    }
    if none {
        return Ok(None);
    }
    if !(cpus > 0.0 && cpus <= 4096.0) {
        // Xen takes 0 for none, a control group refuses it, and a user may mean nothing at all.
        let none = format!("leave it out or give \"none\" for no {key}");
        return table
            .error(key, format!("{cpus} is out of range; give pCPUs above 0, at most 4096, or {none}"));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded")]
    let quota_ns = (cpus * period_ns as f64).round() as u64;
    Ok(Some(Limit { quota_ns, period_ns, burst_ns }))
}

fn vcpus(table: &Table<'_>, hardware: &Hardware) -> Result<Vec<VcpuSpec>, ScenarioError> {
    let count = table.whole("vcpus", 1, 1, 1024)?;
    let online = table.whole("online", count, 1, count)?;
    let all = CpuSet::first(hardware.pcpus());
    let affinity = table.cpus("affinity")?;
    let soft = soft(table, hardware)?;
    let pins: Option<Vec<_>> = table.cpus("pin")?.map(|set| set.iter().collect());
    let quota = limit(table, ["quota", "quota_period", "quota_burst"])?;
    if pins.as_ref().is_some_and(|pins| pins.len() < count as usize) {
        return table.error("pin", format!("there are fewer than {count} pCPUs in it, one for each vCPU"));
    }
    if pins.is_some() && affinity.is_some() {
        return table.error("pin", "give affinity (all vCPUs on all of these) or pin (one each), not both");
    }
    if let Some(there) = pins.as_ref().and_then(|pins| pins.iter().find(|p| !all.contains(**p))) {
        return table.error("pin", format!("pCPU {} does not exist; the host has {all}", there.0));
    }
    let affinity = affinity.unwrap_or(all);
    let slice = table.value("fair_slice").map(|_| table.time("fair_slice", 0)).transpose()?;
    let one = |number: u32| VcpuSpec {
        weight: 1024,
        limit: quota,
        affinity: pins
            .as_ref()
            .map_or_else(|| affinity.clone(), |pins| [pins[number as usize]].into_iter().collect()),
        soft: soft.clone(),
        online: number < online,
        slice_ns: slice,
    };
    Ok((0..count).map(one).collect())
}

/// pCPUs to try first: `soft`, or those of `nodes` (node affinity).
fn soft(table: &Table<'_>, hardware: &Hardware) -> Result<CpuSet, ScenarioError> {
    let (soft, nodes) = (table.cpus("soft")?, table.cpus("nodes")?);
    let Some(nodes) = nodes else { return Ok(soft.unwrap_or_default()) };
    if soft.is_some() {
        return table.error("nodes", "give soft (pCPUs) or nodes (all of these nodes), not both");
    }
    let all = CpuSet::first(hardware.sockets * hardware.nodes);
    if nodes.is_empty() || !nodes.difference(&all).is_empty() {
        return table.error("nodes", format!("give some of the nodes {all}"));
    }
    Ok(crate::hardware::pcpus_of(hardware, &nodes))
}

/// How long waiters spin.
fn wait(table: &Table<'_>, key: &'static str) -> Result<Option<u64>, ScenarioError> {
    Ok(match table.text(key)?.as_deref() {
        None => None,
        Some("spin") => Some(u64::MAX),
        Some("block") => Some(0),
        Some(_) => Some(table.time(key, 0).or_else(|_| {
            table.error(key, "give spin, block, or how long to spin before blocking, such as \"2ms\"")
        })?),
    })
}

/// Keys that say how a program runs.
const OF_PROGRAMS: [&str; 10] =
    ["threads", "team", "class", "pinned", "wait", "wait_crowded", "runtime", "pauses", "start", "again"];

fn app(
    table: &Table<'_>,
    vcpus: &[VcpuSpec],
    classes: &mut Vec<Class>,
) -> Result<Option<AppSpec>, ScenarioError> {
    let program = table.text("program")?;
    let threads = table.whole("threads", u32::try_from(vcpus.len()).unwrap_or(1), 1, 1_000_000)?;
    let team = table.whole("team", threads, 1, threads)?;
    let class = table.text("class")?;
    let mut app = AppSpec {
        name: String::new(),
        program: Program::compile("compute 1ns")
            .map_err(|e| ScenarioError { place: String::new(), what: e.to_string() })?,
        threads,
        team,
        class: 0,
        pinned: table.boolean("pinned", false)?,
        spin_ns: wait(table, "wait")?.unwrap_or(2 * MS),
        crowded_spin_ns: wait(table, "wait_crowded")?,
        runtime: match table.text("runtime")?.as_deref() {
            None | Some("libomp") => Runtime::Libomp,
            Some("libgomp") => Runtime::Libgomp,
            Some(_) => return table.error("runtime", "give libomp or libgomp"),
        },
        pauses: table.boolean("pauses", true)?,
        start_ns: table.time("start", 0)?,
        again: table.boolean("again", false)?,
    };
    if let Some(name) = class {
        let known = classes.iter().position(|class| class.name == name);
        let Some(index) = known.or_else(|| {
            classes.push(library_class(&name)?);
            Some(classes.len() - 1)
        }) else {
            let known: Vec<&str> = classes.iter().map(|class| class.name.as_str()).chain(CLASSES).collect();
            return table.error("class", format!("{name:?} is not known; give {}", known.join(", ")));
        };
        app.class = index;
    }
    let Some(text) = program else {
        let counts = "counts with a program only; give one, too, or leave it out";
        table.none_of(&OF_PROGRAMS, counts)?;
        return Ok(None);
    };
    app.name = if NAMES.contains(&text.as_str()) { text.clone() } else { "program".into() };
    let source = library(&text).unwrap_or(&text);
    match Program::compile(source) {
        Ok(program) => app.program = program,
        Err(error) if text.split_whitespace().count() == 1 => {
            return table.error("program", format!("{error}; the library has {}", NAMES.join(", ")));
        }
        Err(error) => return table.error("program", error.to_string()),
    }
    Ok(Some(app))
}
