//! Control groups are sized by their cpusets: as many pCPUs as a VM would have vCPUs online, and which ones.
//!
//! A group's "vCPUs" are its pCPUs. It keeps those of its own that others want least, and gets back those that are wanted least
//! of what it had, each on a core or module of its own while there are such. What it had is what the journal says, for a daemon
//! sees only what it has.

use std::collections::BTreeMap;

use crate::machine::{HostEstimate, State, VmEstimate};
use crate::topology::Topology;
use crate::{CpuId, CpuSet};

/// What a group wants of each of its pCPUs at least: the least difference that counts between two of them.
const LITTLE: f64 = 0.05;

/// What a group may have, and what it has.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Width {
    /// What it had before it was sized.
    pub(super) all: CpuSet,
    /// What it has.
    pub(super) now: CpuSet,
}

impl Width {
    /// That of a group whose cpuset was `before` it was sized (empty: unknown), if there is a pCPU in it.
    pub(super) fn of(before: Option<&CpuSet>, vm: &VmEstimate, online: &CpuSet) -> Option<Width> {
        let own = vm.seen.vcpus.first()?.affinity.as_ref();
        let now = vm.seen.cpuset.as_ref().or(own).unwrap_or(online).intersection(online);
        let all = match before {
            None => now.clone(),
            Some(all) if all.is_empty() => online.clone(),
            Some(all) => all.intersection(online).union(&now),
        };
        (!now.is_empty()).then_some(Width { all, now })
    }
}

/// How much is wanted of each pCPU, and by whom.
pub(super) struct Crowd {
    units: Vec<CpuSet>,
    /// The unit of each pCPU.
    unit: BTreeMap<CpuId, usize>,
    wanted: BTreeMap<CpuId, f64>,
    /// Of each VM: its part of that.
    parts: Vec<BTreeMap<CpuId, f64>>,
    /// They are for the host, while there are others.
    reserved: CpuSet,
}

impl Crowd {
    /// What all want now, spread evenly over what they may use.
    pub(super) fn of(seen: &HostEstimate, topology: &Topology, reserved: &CpuSet) -> Crowd {
        let online = topology.online();
        let units = topology.units();
        let unit = units.iter().enumerate().flat_map(|(unit, cpus)| cpus.iter().map(move |cpu| (cpu, unit)));
        let mut crowd = Crowd {
            unit: unit.collect(),
            units,
            wanted: BTreeMap::new(),
            parts: vec![BTreeMap::new(); seen.vms.len()],
            reserved: reserved.clone(),
        };
        for (number, vm) in seen.vms.iter().enumerate().filter(|(_, vm)| vm.seen.state == State::Running) {
            // All "vCPUs" of a control group may use all of its pCPUs.
            let sets = if vm.seen.is_group() { 1 } else { vm.seen.vcpus.len() };
            let each = wants(vm) / crate::units::count(sets.max(1));
            for vcpu in vm.seen.vcpus.iter().take(sets) {
                let set =
                    vcpu.affinity.as_ref().map_or_else(|| online.clone(), |set| set.intersection(&online));
                crowd.add(number, vm, each, &set);
            }
        }
        crowd
    }

    /// An idle group counts a little: it may be busy later, and then be beside others.
    fn add(&mut self, number: usize, vm: &VmEstimate, wants: f64, set: &CpuSet) {
        let least = if vm.seen.is_group() { LITTLE } else { 0.0 };
        let part = (wants / crate::units::count(set.len().max(1))).max(least);
        for cpu in set.iter() {
            *self.wanted.entry(cpu).or_default() += part;
            *self.parts[number].entry(cpu).or_default() += part;
        }
    }

    /// The pCPUs for a group of so many.
    pub(super) fn pick(&self, number: usize, width: &Width, count: usize) -> CpuSet {
        if count > width.now.len() {
            let left = width.all.difference(&width.now);
            self.best(number, width.now.clone(), left, &width.now, count)
        } else {
            self.best(number, CpuSet::default(), width.now.clone(), &width.now, count)
        }
    }

    /// Those that would be best for a group of as many as it has, wherever it is.
    pub(super) fn anew(&self, number: usize, width: &Width) -> CpuSet {
        self.best(number, CpuSet::default(), width.all.clone(), &width.now, width.now.len())
    }

    /// pCPUs of a set that others want and the group cannot have beside them.
    pub(super) fn lacks(&self, number: usize, vm: &VmEstimate, set: &CpuSet) -> f64 {
        let count = crate::units::count(set.len());
        let others: f64 = set.iter().map(|cpu| self.others(number, cpu)).sum();
        (wants(vm).min(count) + others - count).clamp(0.0, count)
    }

    /// So many, with those that are `chosen`, of what is `left`; among equals those that it has.
    fn best(
        &self,
        number: usize,
        mut chosen: CpuSet,
        mut left: CpuSet,
        now: &CpuSet,
        count: usize,
    ) -> CpuSet {
        while chosen.len() < count {
            let price = |cpu: &CpuId| {
                let (wanted, beside) = self.price(number, *cpu, &chosen);
                (self.reserved.contains(*cpu), wanted, beside, !now.contains(*cpu), *cpu)
            };
            let Some(best) = left.iter().min_by_key(price) else { break };
            let best = CpuSet::from_iter([best]);
            (chosen, left) = (chosen.union(&best), left.difference(&best));
        }
        chosen
    }

    /// What others want of it, then what its siblings would do; in twentieths, as smaller differences are chance.
    fn price(&self, number: usize, cpu: CpuId, chosen: &CpuSet) -> (i64, i64) {
        let wanted = |cpu| self.others(number, cpu);
        let unit = self.unit.get(&cpu).map(|unit| &self.units[*unit]);
        let siblings = unit.into_iter().flat_map(CpuSet::iter).filter(|other| *other != cpu);
        let beside = siblings.map(|other| if chosen.contains(other) { 1.0 } else { wanted(other).min(1.0) });
        (twentieths(wanted(cpu)), twentieths(beside.sum()))
    }

    /// What others than this VM want of a pCPU.
    fn others(&self, number: usize, cpu: CpuId) -> f64 {
        let of = |wanted: &BTreeMap<CpuId, f64>| wanted.get(&cpu).copied().unwrap_or(0.0);
        of(&self.wanted) - of(&self.parts[number])
    }

    /// From now on a group counts as being there.
    pub(super) fn moved(&mut self, number: usize, vm: &VmEstimate, to: &CpuSet) {
        for (cpu, part) in std::mem::take(&mut self.parts[number]) {
            *self.wanted.entry(cpu).or_default() -= part;
        }
        self.add(number, vm, wants(vm), to);
    }
}

/// pCPUs; not measured counts as busy.
fn wants(vm: &VmEstimate) -> f64 {
    vm.demand.map_or(crate::units::count(vm.seen.vcpus.len()), |demand| demand.0)
}

#[expect(clippy::cast_possible_truncation, reason = "at most the threads of a host")]
fn twentieths(pcpus: f64) -> i64 {
    (pcpus * 20.0).round() as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Time;
    use crate::decide::{Controller, Outcome, Policy, Rule, Sizer};
    use crate::machine::{Counters, Lever, Pcpu, Snapshot, Value, VcpuState, VmId, VmState};

    const PCPUS: u32 = 16;

    /// Groups with more threads than pCPUs, on a host of eight cores.
    struct Groups {
        at: u64,
        sets: BTreeMap<&'static str, CpuSet>,
        /// What the journal knows.
        before: BTreeMap<VmId, CpuSet>,
        /// What their threads keep to by themselves.
        masks: CpuSet,
        /// How many pCPUs groups had that are sized, by the last step.
        widths: BTreeMap<VmId, usize>,
        idle: &'static [&'static str],
    }

    impl Groups {
        fn new(names: &[&'static str]) -> Groups {
            let sets = names.iter().map(|name| (*name, CpuSet::first(PCPUS))).collect();
            Groups {
                at: 0,
                sets,
                before: BTreeMap::new(),
                masks: CpuSet::first(PCPUS),
                widths: BTreeMap::new(),
                idle: &[],
            }
        }

        fn look(&self) -> Snapshot {
            let pcpu = |id: u32| Pcpu {
                id: CpuId(id),
                online: true,
                node: None,
                package: None,
                siblings: Some([id & !1, id | 1].map(CpuId).into_iter().collect()),
                idle_ns: None,
                steal_ns: None,
            };
            let used = |set: &CpuSet| Some(set.intersection(&self.masks)).filter(|used| !used.is_empty());
            let used = |set: &CpuSet| used(set).unwrap_or_else(|| set.clone());
            let counters =
                |run_ns, wait_ns| Counters { run_ns: Some(run_ns), wait_ns: Some(wait_ns), runs: None };
            let (none, busy) = (counters(0, 0), counters(self.at * 4, self.at * 12));
            let vm = |(name, set): (&&str, &CpuSet)| VmState {
                id: VmId((*name).into()),
                name: (*name).into(),
                vcpus: used(set)
                    .iter()
                    .map(|_| VcpuState { online: true, affinity: Some(used(set)), ..VcpuState::default() })
                    .collect(),
                cpuset: Some(set.clone()).filter(|set| used(set) != *set),
                // Sixteen threads each, of which it runs what all leave each other.
                whole: Some(if self.idle.contains(name) { none } else { busy }),
                ..VmState::default()
            };
            Snapshot {
                at: Time(self.at),
                pcpus: (0..PCPUS).map(pcpu).collect(),
                vms: self.sets.iter().map(vm).collect(),
                ..Snapshot::default()
            }
        }

        /// Some seconds; what was done.
        fn run(&mut self, controller: &mut Controller, seconds: u64) -> usize {
            let mut done = 0;
            for _ in 0..seconds {
                controller.confined_before(self.before.clone());
                let step = controller.step(&self.look()).unwrap();
                let mut obey = |action: &crate::decide::Action| {
                    let Value::Pcpus(set) = &action.to else { panic!("{action:?}") };
                    assert_eq!(action.lever, Lever::Affinity(0));
                    let now = self.sets.get_mut(action.name.as_str()).unwrap();
                    self.before.entry(action.vm.clone()).or_insert_with(|| now.clone());
                    *now = set.clone();
                    Outcome { action: action.clone(), result: Ok(action.to.clone()) }
                };
                let outcomes: Vec<Outcome> = step.plan.actions.iter().map(&mut obey).collect();
                controller.told(&outcomes);
                self.widths = step.widths;
                done += outcomes.len();
                self.at += 1_000_000_000;
            }
            done
        }

        fn all(&self) -> Vec<String> {
            self.sets.values().map(CpuSet::to_string).collect()
        }
    }

    fn sized(names: &[&str]) -> Controller {
        let rule = |name: &&str| Rule { name: (*name).into(), size: Some(Sizer::VcpuBal), ..Rule::default() };
        let vm = names.iter().map(rule).collect();
        Controller::new(Policy { size: Sizer::VcpuBal, dwell_ms: 2000, vm, ..Policy::default() })
    }

    #[test]
    fn groups_get_their_part_of_the_pcpus_apart_and_get_back_what_becomes_free() {
        let mut groups = Groups::new(&["a", "b", "c", "d"]);
        let mut controller = sized(&["a", "b", "c", "d"]);
        groups.run(&mut controller, 8);
        let sets: Vec<&CpuSet> = groups.sets.values().collect();
        assert!(sets.iter().all(|set| set.len() == 4), "{:?}", groups.all());
        let union = sets.iter().fold(CpuSet::default(), |all, set| all.union(set));
        assert_eq!(union, CpuSet::first(PCPUS), "{:?}", groups.all());
        for gone in ["c", "d"] {
            groups.sets.remove(gone);
        }
        groups.run(&mut controller, 8);
        assert!(groups.sets.values().all(|set| set.len() == 8), "{:?}", groups.all());
        assert!(!groups.sets["a"].meets(&groups.sets["b"]), "{:?}", groups.all());
    }

    #[test]
    fn groups_that_are_idle_are_not_all_put_on_the_same_pcpus_nor_on_reserved_ones() {
        let mut groups = Groups::new(&["a", "b", "c"]);
        groups.idle = &["a", "b", "c"];
        let mut policy = sized(&["a", "b", "c"]).policy().clone();
        policy.reserved = "0-1".parse().unwrap();
        policy.vm.iter_mut().for_each(|rule| rule.max = Some(4));
        groups.run(&mut Controller::new(policy), 8);
        let sets: Vec<&CpuSet> = groups.sets.values().collect();
        assert!(
            sets.iter().all(|set| set.len() == 4 && !set.contains(CpuId(0)) && !set.contains(CpuId(1))),
            "{:?}",
            groups.all()
        );
        assert!(
            !sets[0].meets(sets[1]) && !sets[1].meets(sets[2]) && !sets[0].meets(sets[2]),
            "{:?}",
            groups.all()
        );
    }

    #[test]
    fn a_group_goes_elsewhere_when_others_come_to_want_its_pcpus_once() {
        let mut groups = Groups::new(&["a", "b"]);
        groups.idle = &["b"];
        *groups.sets.get_mut("b").unwrap() = "0-7".parse().unwrap();
        let rule = Rule { name: "a".into(), size: Some(Sizer::VcpuBal), max: Some(4), ..Rule::default() };
        let mut controller = Controller::new(Policy { dwell_ms: 2000, vm: vec![rule], ..Policy::default() });
        groups.run(&mut controller, 8);
        *groups.sets.get_mut("a").unwrap() = "0,2,4,6".parse().unwrap();
        assert_eq!(groups.run(&mut controller, 20), 0, "nobody wants them");
        groups.idle = &[];
        assert_eq!(groups.run(&mut controller, 2), 0, "for less than a dwell");
        assert_eq!(groups.run(&mut controller, 60), 1);
        assert_eq!(groups.all(), ["8,10,12,14", "0-7"]);
    }

    #[test]
    fn a_group_that_was_sized_goes_elsewhere_only_after_lever_ms() {
        let mut groups = Groups::new(&["a", "b"]);
        groups.idle = &["b"];
        *groups.sets.get_mut("b").unwrap() = "0-7".parse().unwrap();
        let rule = Rule { name: "a".into(), size: Some(Sizer::VcpuBal), max: Some(4), ..Rule::default() };
        let policy = Policy { dwell_ms: 2000, lever_ms: 60_000, vm: vec![rule], ..Policy::default() };
        let mut controller = Controller::new(policy);
        assert_eq!(groups.run(&mut controller, 8), 1);
        *groups.sets.get_mut("a").unwrap() = "0,2,4,6".parse().unwrap();
        groups.idle = &[];
        assert_eq!(groups.run(&mut controller, 40), 0, "it was sized just before");
        assert_eq!(groups.run(&mut controller, 20), 1);
    }

    #[test]
    fn a_group_that_was_left_alone_for_a_while_waits_for_the_whole_dwell_again() {
        let mut groups = Groups::new(&["a", "b"]);
        groups.idle = &["b"];
        *groups.sets.get_mut("b").unwrap() = "0-7".parse().unwrap();
        let policy = |exclude| {
            let name = "a".into();
            let a = Rule { name, size: Some(Sizer::VcpuBal), max: Some(4), exclude, ..Rule::default() };
            Policy { dwell_ms: 2000, vm: vec![a], ..Policy::default() }
        };
        let mut controller = Controller::new(policy(None));
        groups.run(&mut controller, 8);
        *groups.sets.get_mut("a").unwrap() = "0,2,4,6".parse().unwrap();
        groups.idle = &[];
        assert_eq!(groups.run(&mut controller, 2), 0);
        controller.reconfigure(policy(Some(true)));
        assert_eq!(groups.run(&mut controller, 10), 0);
        controller.reconfigure(policy(None));
        assert_eq!(groups.run(&mut controller, 2), 0, "what others wanted meanwhile nobody looked at");
        assert_eq!(groups.run(&mut controller, 4), 1);
    }

    #[test]
    fn a_group_leaves_pcpus_that_are_reserved_meanwhile() {
        let mut groups = Groups::new(&["a", "b"]);
        let rule = Rule { name: "a".into(), size: Some(Sizer::VcpuBal), max: Some(4), ..Rule::default() };
        let policy = Policy { dwell_ms: 2000, vm: vec![rule], ..Policy::default() };
        let mut controller = Controller::new(policy.clone());
        groups.run(&mut controller, 8);
        let before = groups.sets["a"].clone();
        let reserved: CpuSet = before.iter().take(2).collect();
        controller.reconfigure(Policy { reserved: reserved.clone(), ..policy });
        assert_eq!(groups.run(&mut controller, 20), 1);
        let after = &groups.sets["a"];
        assert!(!after.meets(&reserved) && after.len() == before.len(), "{before} -> {after}");
    }

    #[test]
    fn a_group_that_is_followed_goes_more_and_more_rarely() {
        let mut groups = Groups::new(&["a", "b", "c"]);
        *groups.sets.get_mut("b").unwrap() = "0-7".parse().unwrap();
        *groups.sets.get_mut("c").unwrap() = "8-15".parse().unwrap();
        let rule = Rule { name: "a".into(), size: Some(Sizer::VcpuBal), max: Some(4), ..Rule::default() };
        let mut controller = Controller::new(Policy { dwell_ms: 2000, vm: vec![rule], ..Policy::default() });
        groups.run(&mut controller, 8);
        let mut went = 0;
        for turn in 0..40 {
            groups.idle = if turn % 2 == 0 { &["b"] } else { &["c"] };
            went += groups.run(&mut controller, 15);
        }
        assert!((3..=7).contains(&went), "{went} times in 600 s");
    }

    #[test]
    fn where_there_is_room_a_group_gets_cores_of_its_own() {
        let rule = Rule { name: "a".into(), size: Some(Sizer::VcpuBal), max: Some(4), ..Rule::default() };
        let policy = Policy { dwell_ms: 0, vm: vec![rule], ..Policy::default() };
        let mut groups = Groups::new(&["a"]);
        groups.run(&mut Controller::new(policy), 4);
        assert_eq!(groups.all(), ["0,2,4,6"]);
    }

    #[test]
    fn only_groups_that_a_rule_names_are_sized_and_never_beyond_what_they_had() {
        let mut groups = Groups::new(&["a", "b", "c"]);
        *groups.sets.get_mut("c").unwrap() = "3,5".parse().unwrap();
        let mut controller = sized(&["a", "c"]);
        controller.reconfigure(Policy {
            vm: [
                controller.policy().vm.clone(),
                vec![Rule { name: "*".into(), size: Some(Sizer::VcpuBal), ..Rule::default() }],
            ]
            .concat(),
            ..controller.policy().clone()
        });
        groups.run(&mut controller, 8);
        assert_eq!((groups.sets["a"].len(), groups.sets["b"].len()), (6, 16));
        assert_eq!(groups.sets["c"].to_string(), "3,5", "its part would be six");
    }

    #[test]
    fn a_group_whose_threads_keep_to_fewer_pcpus_is_not_set_again_and_again() {
        let mut groups = Groups::new(&["a", "b"]);
        let mut controller = sized(&["a", "b"]);
        groups.run(&mut controller, 8);
        groups.masks = "0-1".parse().unwrap();
        groups.run(&mut controller, 8);
        assert_eq!(groups.run(&mut controller, 20), 0, "{:?}", groups.all());
    }

    #[test]
    fn what_an_earlier_daemon_took_comes_back() {
        let mut groups = Groups::new(&["a", "b"]);
        *groups.sets.get_mut("a").unwrap() = "0-3".parse().unwrap();
        groups.before.insert(VmId("a".into()), CpuSet::first(PCPUS));
        groups.run(&mut sized(&["a"]), 8);
        assert_eq!(groups.sets["a"].len(), 8);
        assert_eq!(groups.widths, BTreeMap::from([(VmId("a".into()), PCPUS as usize)]), "what it had");
    }

    /// Two policies ask what growing would bring: more, by the division of a host with the larger set.
    #[test]
    fn what_a_larger_cpuset_would_bring_is_asked_of_the_model() {
        let mut groups = Groups::new(&["a", "b"]);
        *groups.sets.get_mut("a").unwrap() = "0-3".parse().unwrap();
        let (first, mut later) = (groups.look(), groups);
        later.at = 1_000_000_000;
        let seen = crate::machine::estimate(&first, &later.look()).unwrap();
        let with = |list: &str| {
            let set: CpuSet = list.parse().unwrap();
            let many = u32::try_from(set.len()).unwrap();
            crate::decide::hypothesis::with(&seen, 0, many, None, Some(set), &mut None).unwrap()
        };
        assert!(
            (with("0-3") - 4.0).abs() < 1e-6 && (with("0-7") - 8.0).abs() < 1e-6,
            "{} {}",
            with("0-3"),
            with("0-7")
        );
    }
}
