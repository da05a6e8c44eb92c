//! `corefit topology --place POLICY`: where VMs should run, why, and the commands that put them there.

use corefit_core::check::{Change, Manager, Subject, Vm, commands, placing};
use corefit_core::machine::Origin;
use corefit_core::place::{self, Cost, Invalid, Placed, Placement, Policy, Problem, Seat};
use corefit_core::place::{cost, invalid, place, present, throughput};
use corefit_core::{CpuId, CpuSet, decide};
use serde::Serialize;
use serde_json::{Value, json};

use crate::follows::{Follows, follows};
use crate::lines::wrap;
use crate::printable;

/// Why a class is unknown where no host was watched.
const UNSEEN: &str = "configurations do not tell (`class` of a rule in --config does)";

/// A placement of a subject's VMs.
pub(super) struct Proposal {
    policy: Policy,
    /// Why nobody counted what VMs do to caches.
    uncounted: Option<String>,
    problem: Problem,
    placement: Placement,
    /// Of each VM, and as commands.
    changes: Vec<Vec<Change>>,
    commands: Vec<Vec<String>>,
    /// Of each VM, the configuration that its commands are lines of, if they are not for a shell.
    lines_of: Vec<Option<String>>,
    follows: Vec<Follows>,
}

impl Proposal {
    pub(super) fn of(subject: &Subject, policy: Policy, given: &decide::Policy) -> Proposal {
        let problem = Problem::of_subject(subject).with(given);
        let placement = place(&problem, policy);
        let one = |((vm, placed), known): ((&Vm, &Placed), &place::Vm)| {
            if policy == Policy::None || known.stays {
                return Vec::new();
            }
            let pins: Vec<(u32, CpuSet)> =
                placed.vcpus.iter().filter_map(|seat| Some((seat.id, seat.affinity.clone()?))).collect();
            placing(vm, &pins, &placed.nodes)
        };
        let changes: Vec<_> = subject.vms.iter().zip(&placement.vms).zip(&problem.vms).map(one).collect();
        let commands = subject.vms.iter().zip(&changes).map(|(vm, changes)| commands(vm, changes)).collect();
        let configured = |vm: &Vm| (vm.manager == Manager::Xen && !vm.running).then(|| vm.place.file.clone());
        let lines_of = subject.vms.iter().map(configured).collect();
        let uncounted = subject.uncounted.clone();
        let mut found = Proposal {
            policy,
            uncounted,
            problem,
            placement,
            changes,
            commands,
            lines_of,
            follows: Vec::new(),
        };
        if found.commands.iter().any(|commands| !commands.is_empty()) {
            found.follows = follows(subject, &found.applied(subject));
        }
        found
    }

    /// VMs whose commands are lines of a configuration.
    pub(super) fn configured(&self) -> impl Iterator<Item = &str> {
        let vms = self.problem.vms.iter().zip(&self.lines_of).zip(&self.commands);
        vms.filter(|((_, lines), commands)| lines.is_some() && !commands.is_empty())
            .map(|((vm, _), _)| vm.name.as_str())
    }

    /// The subject as it would be.
    pub(super) fn applied(&self, subject: &Subject) -> Subject {
        let mut after = subject.clone();
        for ((vm, placed), changes) in after.vms.iter_mut().zip(&self.placement.vms).zip(&self.changes) {
            changes.iter().for_each(|change| change.apply(vm));
            // xl makes of the nodes what the vCPUs prefer.
            if vm.manager == Manager::Xen && !vm.running && !changes.is_empty() {
                let near = self.problem.topology.pcpus_of_nodes(&placed.nodes);
                let prefers = vm.vcpus.iter_mut().filter_map(|vcpu| vcpu.prefers.as_mut());
                prefers.for_each(|set| set.value.clone_from(&near));
            }
        }
        after
    }

    pub(super) fn text(&self, width: usize) -> String {
        let mut out = String::from("\n");
        if self.problem.vms.is_empty() {
            return out + "There are no VMs to place.\n";
        }
        let (now, then) = (present(&self.problem), cost(&self.problem, &self.placement));
        let before = throughput(&self.problem, &place(&self.problem, Policy::None));
        let after = throughput(&self.problem, &self.placement);
        let line = |cost: &Cost, speed: f64| {
            format!(
                "{} stacked, {:.2} pairs on one pCPU, {:.2} competing pairs, predicted throughput {speed:.2} pCPUs",
                cost.stacked(),
                cost.sharing(),
                cost.competing()
            )
        };
        wrap(&mut out, "now: ", 5, &line(&now, before), width);
        wrap(&mut out, &format!("{}: ", self.name()), 5, &line(&then, after), width);
        for wrong in self.wrong() {
            wrap(&mut out, "", 4, &wrong, width);
        }
        let told_once = |vm: &place::Vm| self.uncounted.is_some() || vm.class.why.is_empty();
        let unknown = |vm: &place::Vm| !vm.stays && vm.class.origin == Origin::Unknown;
        if self.problem.vms.iter().any(|vm| unknown(vm) && told_once(vm)) {
            let why = self.uncounted.as_deref().unwrap_or(UNSEEN);
            wrap(&mut out, "", 4, &format!("classes of VMs are unknown where none is named: {why}"), width);
        }
        let vms = self.problem.vms.iter().zip(&self.placement.vms).zip(&self.commands).zip(&self.lines_of);
        for (((vm, placed), commands), lines_of) in vms {
            out.push('\n');
            let class = match vm.class.origin {
                Origin::Unknown if told_once(vm) || vm.stays => String::new(),
                Origin::Unknown => format!(", class {}", vm.class),
                _ => format!(", {}", vm.class),
            };
            wrap(&mut out, "", 2, &format!("VM {}{class}", printable::text(&vm.name)), width);
            for (vcpus, seat) in groups(&placed.vcpus) {
                let set = seat.affinity.as_ref().map_or("any pCPU".into(), |set| set.named("pCPU"));
                let text = format!("{} on {set}: {}", vcpus.named("vCPU"), seat.why);
                wrap(&mut out, "  ", 6, &printable::text(&text), width);
            }
            let before = lines_of.as_ref().map_or("$".into(), |file| format!("in {file}:"));
            for command in commands {
                out.push_str(&format!("  {} {}\n", printable::text(&before), printable::text(command)));
            }
            for [found, cure] in self.follows_of(vm).map(Follows::lines) {
                wrap(&mut out, "  ", 4, &found, width);
                // Not broken: to be pasted.
                out.push_str(&format!("    {cure}\n"));
            }
        }
        out
    }

    pub(super) fn document(&self) -> Value {
        let seat = |seat: &Seat| json!({ "vcpu": seat.id, "home": seat.home, "affinity": seat.affinity, "why": seat.why.to_string() });
        let vms = self.problem.vms.iter().zip(&self.placement.vms).zip(&self.commands);
        let vms = vms.map(|((vm, placed), commands)| {
            json!({ "name": vm.name, "class": vm.class.class, "class_origin": vm.class.origin,
                "class_why": vm.class.why, "vcpus": placed.vcpus.iter().map(seat).collect::<Vec<_>>(),
                "nodes": placed.nodes, "commands": commands,
                "follows": self.follows_of(vm).collect::<Vec<_>>() })
        });
        #[derive(Serialize)]
        struct Side {
            cost: Cost,
            throughput: f64,
        }
        let side =
            |cost, placement: &Placement| Side { cost, throughput: throughput(&self.problem, placement) };
        json!({
            "policy": self.policy,
            "now": side(present(&self.problem), &place(&self.problem, Policy::None)),
            "then": side(cost(&self.problem, &self.placement), &self.placement),
            "invalid": self.wrong(),
            "vms": vms.collect::<Vec<_>>(),
        })
    }

    fn follows_of<'a>(&'a self, vm: &'a place::Vm) -> impl Iterator<Item = &'a Follows> {
        self.follows.iter().filter(|follows| follows.vm == vm.name)
    }

    fn name(&self) -> &'static str {
        Policy::NAMES.into_iter().find(|(_, policy)| *policy == self.policy).map_or("", |(name, _)| name)
    }

    /// What is wrong with affinities, of each VM once.
    fn wrong(&self) -> Vec<String> {
        let mut groups: Vec<(CpuSet, Invalid)> = Vec::new();
        for wrong in invalid(&self.problem) {
            let one = CpuSet::from_iter([CpuId(wrong.vcpu)]);
            let same = |known: &Invalid| Invalid { vcpu: wrong.vcpu, ..known.clone() } == wrong;
            match groups.iter_mut().find(|(_, known)| same(known)) {
                Some((vcpus, _)) => *vcpus = vcpus.union(&one),
                None => groups.push((one, wrong)),
            }
        }
        groups.iter().map(|(vcpus, wrong)| self.wrong_of(vcpus, wrong)).collect()
    }

    fn wrong_of(&self, vcpus: &CpuSet, wrong: &Invalid) -> String {
        let vm = printable::text(&self.problem.vms[wrong.vm].name);
        let mut what = Vec::new();
        if !wrong.absent.is_empty() {
            what.push(format!("{} not here", wrong.absent.named("pCPU")));
        }
        if !wrong.offline.is_empty() {
            what.push(format!("{} offline", wrong.offline.named("pCPU")));
        }
        let rest = match vcpus.len() {
            _ if wrong.runs => "",
            1 => "; it has nothing to run on",
            _ => "; they have nothing to run on",
        };
        format!("VM {vm}, {}: pinned to {}{rest}", vcpus.named("vCPU"), what.join(", "))
    }
}

/// vCPUs with the same set and reason.
fn groups(seats: &[Seat]) -> Vec<(CpuSet, &Seat)> {
    let mut groups: Vec<(CpuSet, &Seat)> = Vec::new();
    for seat in seats {
        let one = CpuSet::from_iter([CpuId(seat.id)]);
        match groups.iter_mut().find(|(_, known)| known.affinity == seat.affinity && known.why == seat.why) {
            Some((vcpus, _)) => *vcpus = vcpus.union(&one),
            None => groups.push((one, seat)),
        }
    }
    groups
}

/// A policy by its name.
pub(super) fn policy(name: &str) -> Result<Policy, String> {
    let known = || Policy::NAMES.map(|(name, _)| name).join(", ");
    let found = Policy::NAMES.into_iter().find(|(known, _)| *known == name);
    found.map(|(_, policy)| policy).ok_or_else(|| format!("no such policy; there are {}", known()))
}
