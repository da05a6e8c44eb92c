//! Cures that are followed cure: on thousands of random small hosts, whoever applies them comes to an end, and nothing
//! becomes worse on the way.

use std::collections::BTreeMap;

use super::*;
use crate::{Quota, Weight};

/// Hosts of each test.
const HOSTS: u64 = 3000;
/// More than one may have to follow another: who makes room for whom.
const ROUNDS: usize = 8;

const SHAPES: [&str; 9] = [
    "1 socket x 4 cores x 2 threads",
    "2 sockets x 4 cores x 2 threads",
    "2 sockets x 2 nodes x 2 modules x 2 cores",
    "2 sockets x 4 cores",
    "1 socket x 8 cores x 2 threads; offline 3; isolated 6-7",
    "2 sockets x 4 cores x 2 threads; offline 5,9",
    "1 socket x 2 cores x 4 threads; isolated 2,5",
    "2 sockets x 2 cores x 2 threads; offline 0; isolated 6-7",
    "3 cores",
];

struct Random(u64);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        u32::try_from((self.0 >> 20) % u64::from(n.max(1))).unwrap()
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.below(100) < percent
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(u32::try_from(all.len()).unwrap()) as usize]
    }

    /// One pCPU, or some next to each other; now and then one that does not exist.
    fn set(&mut self, pcpus: u32) -> CpuSet {
        if self.chance(50) {
            let beyond = u32::from(self.chance(5));
            return set_of([self.below(pcpus + beyond)]);
        }
        let first = self.below(pcpus);
        set_of(first..=(first + self.below(8)).min(pcpus - 1))
    }
}

fn at<T>(value: T, line: u32) -> Set<T> {
    Set { value, place: Place { file: "vm.xml".into(), line: Some(line), element: String::new() } }
}

fn quota(random: &mut Random, line: u32) -> Set<Quota> {
    let period_us = random.of(&[5000, 100_000, 900_000]);
    let quota_us = Some(period_us * random.of(&[3, 5, 10, 15, 30]) / 10);
    at(Quota { quota_us, period_us, burst_us: 0, source: String::new() }, line)
}

fn vm(random: &mut Random, number: u32, topology: &Topology, manager: Manager) -> Vm {
    let pcpus = u32::try_from(topology.pcpus.len()).unwrap();
    let nodes = u32::try_from(topology.nodes.len()).unwrap().max(1);
    let width = random.of(&[1, 2, 2, 3, 4, 4, 6, 8]);
    let online = if random.chance(85) { width } else { (width - 1).max(1) };
    let common = random.chance(30).then(|| random.set(pcpus));
    let start = random.below(pcpus);
    let kind = random.below(100);
    let together = random.set(pcpus);
    let vcpu = |random: &mut Random, vcpu: u32| {
        let own = match kind {
            0..50 => Some(set_of([(start + vcpu) % pcpus])),
            50..70 => Some(random.set(pcpus)),
            70..85 => Some(together.clone()),
            _ => common.clone(),
        };
        let prefers =
            (manager == Manager::Xen && number.is_multiple_of(2)).then(|| at(random.set(pcpus), 40));
        Vcpu { online: vcpu < online, affinity: own.map(|set| at(set, 10 + vcpu)), prefers, demand: None }
    };
    let vcpus: Vec<Vcpu> = (0..width).map(|number| vcpu(random, number)).collect();
    let place = Place { file: format!("{number}.xml"), line: Some(1), element: String::new() };
    let mut vm = Vm { name: format!("v{number}"), manager, place, vcpus, ..Vm::default() };
    vm.weight = random.chance(30).then(|| at(Weight(random.of(&[512.0, 1024.0, 2048.0])), 3));
    let node = |random: &mut Random| {
        let beyond = u32::from(random.chance(5));
        set_of([random.below(nodes + beyond)])
    };
    let halves = |random: &mut Random| {
        [(0, 0..width / 2), (1, width / 2..width)].map(|(id, vcpus)| Cell {
            id,
            vcpus: set_of(vcpus),
            memory: Some(at(node(random), 5 + id)),
            mode: None,
        })
    };
    if manager == Manager::Xen {
        if width > 1 && random.chance(40) {
            vm.cells.extend(halves(random));
        }
        return vm;
    }
    let helper = |kind, affinity| Helper {
        kind,
        affinity: at(affinity, if kind == HelperKind::Emulator { 30 } else { 31 }),
    };
    let emulator = if random.chance(30) { Some(random.set(pcpus)) } else { common };
    vm.helpers.extend(emulator.map(|set| helper(HelperKind::Emulator, set)));
    if random.chance(20) {
        vm.helpers.push(helper(HelperKind::Iothread(1), random.set(pcpus)));
    }
    if random.chance(30) {
        let said = Memory::Nodes { nodes: node(random), mode: "strict".into() };
        vm.memory = Some(at(if random.chance(10) { Memory::Automatic } else { said }, 4));
    } else if width > 1 && random.chance(15) {
        vm.cells.extend(halves(random));
    }
    vm.cap = random.chance(15).then(|| quota(random, 7));
    vm.vcpu_quota = random.chance(15).then(|| quota(random, 8));
    if random.chance(35) {
        let threads = if width.is_multiple_of(2) && random.chance(70) { 2 } else { 1 };
        vm.guest = Some(at(GuestTopology { sockets: 1, cores: width / threads, threads }, 9));
    }
    vm
}

fn host(seed: u64) -> Subject {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    (0..8).for_each(|_| _ = random.below(2));
    let topology: Topology = random.of(&SHAPES).parse().unwrap();
    let manager = if random.chance(10) { Manager::Xen } else { Manager::Libvirt };
    let vms = (0..random.of(&[1, 1, 2, 2, 3, 4])).map(|n| vm(&mut random, n, &topology, manager)).collect();
    let reserved = random.chance(20).then(|| at(set_of(0..random.of(&[1, 2])), 1));
    Subject { reserved, vms, topology: Some(topology), ..Subject::default() }
}

fn apply(subject: &mut Subject, finding: &Finding) {
    for vm in subject.vms.iter_mut().filter(|vm| vm.name == finding.vm) {
        finding.changes.iter().for_each(|change| change.apply(vm));
    }
}

/// What is wrong with the cure of one finding.
fn wrong(subject: &Subject, before: &[Finding], finding: &Finding) -> Option<String> {
    let mut cured = subject.clone();
    apply(&mut cured, finding);
    let after = check(&cured);
    // More pCPUs than before may be all that a weight can have: then there is no further cure.
    let weight = finding.rule == Rule::WeightNotHonoured;
    let like = |f: &&Finding| {
        let open = !weight || !f.changes.is_empty();
        f.rule == finding.rule && f.vm == finding.vm && f.severity >= finding.severity && open
    };
    let same = |all: &[Finding]| all.iter().filter(like).count();
    let severer = |all: &[Finding]| all.iter().filter(|f| f.severity > finding.severity).count();
    let what = if finding.cure.is_empty() || finding.cure.contains("  ") {
        "names nothing"
    } else if same(&after) >= same(before) {
        "does not cure"
    } else if severer(&after) > severer(before) {
        "brings worse"
    } else {
        return None;
    };
    let new = after.iter().filter(|f| !before.iter().any(|old| old.rule == f.rule && old.vm == f.vm));
    let new: String = new.map(|f| format!("\n  new {} {}: {}", f.rule, f.vm, f.text)).collect();
    let kept = after.iter().find(|f| f.rule == finding.rule && f.vm == finding.vm);
    let kept = kept.map(|f| format!("\n  kept: {} / {}", f.text, f.cure)).unwrap_or_default();
    Some(format!(
        "{what}: {} {}: {}\n  cure: {}{new}{kept}\n{}",
        finding.rule,
        finding.vm,
        finding.text,
        finding.cure,
        shown(subject)
    ))
}

fn shown(subject: &Subject) -> String {
    let mut out = format!("  host {}", subject.topology.as_ref().unwrap().summary());
    if let Some(reserved) = &subject.reserved {
        out += &format!(", reserved {}", reserved.value);
    }
    for vm in &subject.vms {
        let set = |v: &Vcpu| {
            let set = v.affinity.as_ref().map_or("*".into(), |set| set.value.to_string());
            if v.online { set } else { format!("({set})") }
        };
        let vcpus: Vec<String> = vm.vcpus.iter().map(set).collect();
        out += &format!("\n  {}: {}", vm.name, vcpus.join(" | "));
        for helper in &vm.helpers {
            out += &format!("; {:?} {}", helper.kind, helper.affinity.value);
        }
        out += &vm.memory.as_ref().map(|m| format!("; {:?}", m.value)).unwrap_or_default();
        out += &vm.guest.as_ref().map(|g| format!("; {:?}", g.value)).unwrap_or_default();
        for cell in &vm.cells {
            out += &format!("; cell {} on {}", cell.vcpus, cell.memory.as_ref().unwrap().value);
        }
        out += &vm.weight.as_ref().map(|w| format!("; weight {}", w.value.0)).unwrap_or_default();
    }
    out
}

/// Each kind of failure with some hosts.
fn none(failures: &[(u64, String)]) {
    let mut kinds: BTreeMap<String, Vec<&(u64, String)>> = BTreeMap::new();
    for failure in failures {
        let kind: Vec<&str> = failure.1.split_whitespace().take(4).filter(|w| !w.starts_with('v')).collect();
        kinds.entry(kind.join(" ")).or_default().push(failure);
    }
    let text = kinds.iter().map(|(kind, all)| {
        let some: String = all.iter().take(2).map(|(seed, text)| format!("seed {seed}: {text}\n")).collect();
        format!("== {} x {kind}\n{some}", all.len())
    });
    assert!(failures.is_empty(), "{}", text.collect::<String>());
}

#[test]
fn each_cure_cures_its_finding_and_brings_nothing_severer() {
    let mut failures = Vec::new();
    for seed in 0..HOSTS {
        let mut random = Random(seed + 1);
        let mut subject = host(seed);
        // And then of what is left.
        for step in 0.. {
            let found = check(&subject);
            let open: Vec<&Finding> = found.iter().filter(|f| !f.changes.is_empty()).collect();
            failures.extend(open.iter().filter_map(|f| Some((seed, wrong(&subject, &found, f)?))));
            if open.is_empty() {
                let waits = found.iter().find(|f| f.cure == propose::LATER);
                failures.extend(
                    waits.map(|f| (seed, format!("waits for nothing: {}\n{}", f.rule, shown(&subject)))),
                );
                break;
            }
            if step == 40 {
                failures
                    .push((seed, format!("no end: {}: {}\n{}", open[0].rule, open[0].cure, shown(&subject))));
                break;
            }
            apply(&mut subject, random.of(&open));
        }
    }
    none(&failures);
}

#[test]
fn all_cures_applied_at_once_come_to_an_end_after_a_few_rounds() {
    let mut failures = Vec::new();
    let mut rounds = BTreeMap::new();
    for seed in 0..HOSTS {
        let mut subject = host(seed);
        let mut told = String::new();
        for round in 0.. {
            let found = check(&subject);
            let open: Vec<&Finding> = found.iter().filter(|f| !f.changes.is_empty()).collect();
            if open.is_empty() {
                *rounds.entry(round).or_insert(0) += 1;
                break;
            }
            if round == ROUNDS {
                failures.push((seed, format!("no end: {}:{told}\n{}", open[0].rule, shown(&subject))));
                break;
            }
            if round + 4 >= ROUNDS {
                let lines = open.iter().map(|f| format!("\n  {round} {} {}: {}", f.rule, f.vm, f.cure));
                told.extend(lines);
            }
            let errors = |all: &[Finding]| all.iter().filter(|f| f.severity == Severity::Error).count();
            let (before, was) = (errors(&found), shown(&subject));
            open.iter().for_each(|finding| apply(&mut subject, finding));
            if errors(&check(&subject)) > before {
                let lines = open.iter().map(|f| format!("\n  {} {}: {}", f.rule, f.vm, f.cure));
                let text: String = lines.collect();
                failures
                    .push((seed, format!("more errors than {before}:\n{was}{text}\n{}", shown(&subject))));
            }
        }
    }
    eprintln!("rounds: {rounds:?}");
    none(&failures);
}

/// All cures of one VM, followed together, take care of all that they are for: none undoes another, none has to be
/// followed by one more for what it brought. (What other VMs' cures make room for is another matter.)
#[test]
fn cures_of_one_vm_agree() {
    let mut failures = Vec::new();
    for seed in 0..HOSTS {
        let subject = host(seed);
        let found = check(&subject);
        for vm in &subject.vms {
            let of = |all: &[Finding]| all.iter().filter(|f| f.vm == vm.name).cloned().collect::<Vec<_>>();
            let (found, mut cured) = (of(&found), subject.clone());
            let open = || found.iter().filter(|f| !f.changes.is_empty());
            open().for_each(|finding| apply(&mut cured, finding));
            let after = of(&check(&cured));
            // What is said of a limit, a helper, a node or the siblings is said for itself.
            let own = |f: &Finding| match f.rule {
                Rule::QuotaBelowPinned | Rule::PeriodExtreme | Rule::HelpersOnVcpus | Rule::FarMemory => {
                    f.place.line
                }
                Rule::GuestTopology => Some(u32::from(f.text.contains("but the guest is told"))),
                _ => None,
            };
            let like = |a: &Finding, b: &Finding| a.rule == b.rule && own(a) == own(b);
            let many = |all: &[Finding], f: &Finding| all.iter().filter(|other| like(other, f)).count();
            let open: Vec<Finding> = open().cloned().collect();
            let kept = |f: &&Finding| many(&after, f) + many(&open, f) > many(&found, f);
            if let Some(f) = open.iter().filter(|f| f.rule != Rule::WeightNotHonoured).find(kept) {
                let lines = open.iter().map(|f| format!("\n  {}: {} / {}", f.rule, f.text, f.cure));
                let kept = after.iter().find(|other| like(other, f)).unwrap();
                let text = format!(
                    "kept: {} {}: {}{}\n{}\nthen\n{}",
                    f.rule,
                    f.vm,
                    kept.text,
                    lines.collect::<String>(),
                    shown(&subject),
                    shown(&cured)
                );
                failures.push((seed, text));
            }
        }
    }
    none(&failures);
}
