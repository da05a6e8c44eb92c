//! On which pCPUs a VM's vCPUs run: the stage that places.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::moved::Moved;
use super::policy::{Placer, Policy};
use super::{Action, Outcome, Why, longer, placement};
use crate::Time;
use crate::machine::{
    Classed, HOLDS, HostEstimate, Lever, LeverKind, MachineError, Origin, Role, Snapshot, Value, VmEstimate,
    VmId,
};
use crate::place::{self, Problem};
use crate::topology::Topology;

/// Who waits for so long has no pause in which it places. Ours.
const LONG: Duration = Duration::from_secs(300);

/// That of a policy; `None`: the host's scheduler places.
#[must_use]
pub(super) fn placer(policy: &Policy) -> Option<Placing> {
    let by = match policy.place {
        Placer::None => return None,
        Placer::Ulas => place::Policy::Ulas,
        Placer::OptimalAffinity => place::Policy::OptimalAffinity,
        Placer::Corefit => place::Policy::Corefit,
    };
    Some(Placing {
        by,
        since: None,
        acted: None,
        unmoved: BTreeSet::new(),
        theirs: BTreeSet::new(),
        hungry: BTreeMap::new(),
        moved: Moved::default(),
        left: BTreeMap::new(),
        returns: Duration::ZERO,
        due_since: None,
        due: BTreeSet::new(),
        waits: None,
    })
}

/// Places anew once another placement has been worth it for the dwell, and at most once in that time, nor sooner than a
/// lever may change again. What cost work is put back (`moved.rs`).
#[derive(Debug)]
pub(super) struct Placing {
    by: place::Policy,
    /// When another placement began to be worth it.
    since: Option<Time>,
    acted: Option<Time>,
    /// Whose memory could not be moved.
    unmoved: BTreeSet<VmId>,
    /// Whose pins are somebody else's.
    theirs: BTreeSet<VmId>,
    /// Who was measured as cache-hungry, and how: where its data fits, it shows no more traffic.
    hungry: BTreeMap<VmId, Classed>,
    /// What the last placement brought.
    moved: Moved,
    /// Where those were whom the last placement moved.
    left: BTreeMap<(VmId, Lever), Value>,
    /// How long nobody is moved back there: each time twice as long, or what wants to be where others are does so by turns for ever.
    returns: Duration,
    /// Since when some have been due, and settings by which they were placed last: what comes of these is not judged.
    due_since: Option<Time>,
    due: BTreeSet<(VmId, Lever)>,
    /// Since when it has been waiting for numbers of vCPUs that are tried, without a pause in which it could have placed, and until when.
    waits: Option<(Time, Time)>,
}

impl Placing {
    /// What to pin where, by what was seen of the host and what an administrator says of its VMs.
    pub(super) fn place(&mut self, now: &Snapshot, seen: &HostEstimate, policy: &Policy) -> Vec<Action> {
        self.remember(seen);
        let back = self.moved.judge(now, seen, policy);
        if !back.is_empty() || self.moved.rests(now.at) {
            self.moved.mark(now);
            return self.due(back, now, seen, policy, &BTreeSet::new());
        }
        let problem = self.problem(now, seen, policy, &BTreeSet::new());
        let actions = placement::actions(seen, &problem, self.by);
        if actions.is_empty() {
            (self.since, self.due_since) = (None, None);
            self.moved.mark(now);
            return actions;
        }
        self.moved.mark_once(now);
        let since = *self.since.get_or_insert(now.at);
        if !self.lasts(since, now.at, policy) || self.moved.tries() {
            return Vec::new();
        }
        let place = |action: &Action| (action.vm.clone(), action.lever);
        let back = actions.iter().all(|action| self.left.get(&place(action)) == Some(&action.to));
        if back && self.acted.is_some_and(|at| now.at.since(at) < self.returns) {
            return Vec::new();
        }
        self.returns = if back { longer(self.returns) } else { Duration::ZERO };
        self.left = actions.iter().filter_map(|action| Some((place(action), action.from.clone()?))).collect();
        self.moved.begin(now);
        (self.since, self.due_since, self.acted) = (None, None, Some(now.at));
        self.due.clear();
        actions
    }

    /// While these VMs try numbers of vCPUs nothing is known of what would be worth it then, nor of what was. What is put back is, and
    /// who is due is placed, but for these.
    pub(super) fn wait(
        &mut self,
        now: &Snapshot,
        seen: &HostEstimate,
        policy: &Policy,
        tried: &BTreeSet<&VmId>,
    ) -> Vec<Action> {
        let since = self.waits.filter(|(_, last)| now.at.since(*last) <= policy.window());
        self.waits = Some((since.map_or(now.at, |(since, _)| since), now.at));
        let back = self.moved.wait(now);
        self.due(back, now, seen, policy, tried)
    }

    /// While nothing else is placed: what is put back, else those who are due, around all others.
    fn due(
        &mut self,
        back: Vec<Action>,
        now: &Snapshot,
        seen: &HostEstimate,
        policy: &Policy,
        tried: &BTreeSet<&VmId>,
    ) -> Vec<Action> {
        // Everybody else waits for a dwell of its own then.
        self.since = None;
        let due = placement::only_due(self.problem(now, seen, policy, tried)).filter(|_| back.is_empty());
        let actions = due.map_or(Vec::new(), |due| placement::actions(seen, &due, self.by));
        if actions.is_empty() {
            self.due_since = None;
            return back;
        }
        let since = *self.due_since.get_or_insert(now.at);
        if !self.lasts(since, now.at, policy) {
            return Vec::new();
        }
        (self.due_since, self.acted) = (None, Some(now.at));
        self.due = actions.iter().map(|action| (action.vm.clone(), action.lever)).collect();
        actions
    }

    /// Why only those are placed who are due, where that goes on for long.
    pub(super) fn notes(&self, at: Time) -> Vec<String> {
        let who = "VMs are placed only where they may use reserved pCPUs or have pins that cannot work";
        let rests = self.moved.rest(at).map(|rest| {
            format!("{who}, for {} s: the placement before cost work, and was put back", rest.as_secs())
        });
        let waits = self.waits.filter(|(since, last)| *last == at && at.since(*since) >= LONG);
        let waits = waits.map(|_| {
            format!("{who}: numbers of vCPUs have been tried for minutes without a pause of dwell_ms")
        });
        rests.into_iter().chain(waits).collect()
    }

    /// Whether it has been worth it to place anew for the dwell, and that was not done just now.
    fn lasts(&self, since: Time, now: Time, policy: &Policy) -> bool {
        let lever = Duration::from_millis(policy.lever_ms);
        let lately = self.acted.is_some_and(|at| now.since(at) < lever);
        now.since(since) >= policy.dwell() && !lately
    }

    /// Whom to place, by what is said and remembered of them. Who tries numbers of vCPUs stays.
    fn problem(
        &mut self,
        now: &Snapshot,
        seen: &HostEstimate,
        policy: &Policy,
        tried: &BTreeSet<&VmId>,
    ) -> Problem {
        let mut problem = Problem::of_estimate(seen, &Topology::of_snapshot(now));
        let ids: BTreeMap<&str, &VmId> =
            seen.vms.iter().map(|vm| (vm.seen.name.as_str(), &vm.seen.id)).collect();
        for vm in &mut problem.vms {
            let known = ids.get(vm.name.as_str()).and_then(|id| self.hungry.get(id));
            vm.class = known.unwrap_or(&vm.class).clone();
        }
        problem = problem.with(policy);
        let may_have = now.may_have();
        self.unmoved.retain(|id| may_have(id));
        self.theirs.retain(|id| may_have(id));
        for vm in &mut problem.vms {
            let Some(&id) = ids.get(vm.name.as_str()) else { continue };
            vm.memory_moves &= !self.unmoved.contains(id);
            vm.stays |= self.theirs.contains(id) || tried.contains(id);
        }
        problem
    }

    /// What became of an action: memory that could not be moved counts as memory that stays, and so does a VM that somebody else
    /// pinned.
    pub(super) fn told(&mut self, outcome: &Outcome) {
        let Action { vm, lever, why, .. } = &outcome.action;
        if *why == Why::NoGain || !self.due.contains(&(vm.clone(), *lever)) {
            self.moved.told(outcome);
        }
        let vm = || outcome.action.vm.clone();
        match (outcome.action.lever, &outcome.result) {
            // Who only does not answer now is asked again.
            (Lever::Nodes, Err(MachineError::Gone(_) | MachineError::Untried(_))) => {}
            (Lever::Nodes, Err(_)) => drop(self.unmoved.insert(vm())),
            (Lever::Affinity(_), Err(MachineError::Denied(_))) => drop(self.theirs.insert(vm())),
            _ => {}
        }
    }

    /// Who refused is asked again.
    pub(super) fn try_again(&mut self) {
        self.unmoved.clear();
        self.theirs.clear();
    }

    /// Who was measured as cache-hungry stays so while it fills what it got: once apart, its data may fit, and traffic that
    /// is gone is no reason to be put together again.
    fn remember(&mut self, seen: &HostEstimate) {
        let may_have = seen.may_have();
        self.hungry.retain(|id, _| may_have(id));
        for vm in &seen.vms {
            if vm.class.origin == Origin::Measured {
                self.hungry.insert(vm.seen.id.clone(), vm.class.clone());
            } else if vm.cache.and_then(|rate| rate.held).is_some_and(|held| held < HOLDS) {
                self.hungry.remove(&vm.seen.id);
            }
        }
    }
}

/// What VMs are placed as, or why nobody knows that.
pub(super) fn classes(policy: &Policy, seen: &HostEstimate) -> Vec<String> {
    let placed = seen.vms.iter().filter(|vm| {
        let stays =
            policy.of(&vm.seen.name).exclude == Some(true) || vm.seen.fixed(LeverKind::Affinity).is_some();
        vm.seen.role == Role::Vm && !stays
    });
    let note = |vm: &VmEstimate| {
        let name = &vm.seen.name;
        match (policy.of(name).class, vm.class.origin, &seen.uncounted) {
            (Some(class), ..) => Some(format!("{name}: placed as {class}, as its rule says")),
            (None, Origin::Measured, _) => {
                Some(format!("{name}: placed as {}, as its counters of caches show", vm.class.class))
            }
            (None, _, Some(why)) if policy.place == Placer::Corefit => {
                Some(format!("classes of VMs are unknown where no rule gives one: {why}"))
            }
            _ => None,
        }
    };
    placed.filter_map(note).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::decide::Rule;
    use crate::machine::{Counters, Pcpu, VcpuState, VmState, estimate};
    use crate::{CpuId, CpuSet, Unread, What};

    /// Two busy vCPUs on one pCPU of two cores, after so many seconds.
    pub(in super::super) fn stacked(second: u64) -> Snapshot {
        let on = |cpu: u32| std::iter::once(CpuId(cpu)).collect::<CpuSet>();
        let half =
            Counters { run_ns: Some(second * 500_000_000), wait_ns: Some(second * 500_000_000), runs: None };
        let vcpu =
            || VcpuState { online: true, affinity: Some(on(0)), counters: half, ..VcpuState::default() };
        let vm = VmState {
            id: VmId("a".into()),
            name: "a".into(),
            vcpus: vec![vcpu(), vcpu()],
            ..VmState::default()
        };
        let pcpu = |id| Pcpu {
            id: CpuId(id),
            online: true,
            node: Some(0),
            package: Some(0),
            siblings: Some(on(id)),
            idle_ns: None,
            steal_ns: None,
        };
        let at = Time(second * 1_000_000_000);
        Snapshot { at, pcpus: vec![pcpu(0), pcpu(1)], vms: vec![vm], ..Snapshot::default() }
    }

    fn acts(placing: &mut Placing, second: u64, policy: &Policy) -> usize {
        let seen = estimate(&stacked(second - 1), &stacked(second)).unwrap();
        placing.place(&stacked(second), &seen, policy).len()
    }

    #[test]
    fn it_acts_after_the_dwell_and_then_waits_again() {
        let policy = Policy { place: Placer::Corefit, dwell_ms: 3000, ..Policy::default() };
        let mut placing = placer(&policy).unwrap();
        let each: Vec<usize> = (1..=8).map(|second| acts(&mut placing, second, &policy)).collect();
        assert_eq!(each, [0, 0, 0, 1, 0, 0, 0, 1], "one vCPU goes to the other pCPU, if that lasts");
    }

    #[test]
    fn without_a_dwell_it_waits_as_long_as_a_lever_does() {
        let policy = Policy { place: Placer::Corefit, dwell_ms: 0, lever_ms: 3000, ..Policy::default() };
        let mut placing = placer(&policy).unwrap();
        let each: Vec<usize> = (1..=8).map(|second| acts(&mut placing, second, &policy)).collect();
        assert_eq!(each, [1, 0, 0, 1, 0, 0, 1, 0]);
    }

    #[test]
    fn memory_that_could_not_be_moved_is_not_moved_again() {
        let on_two_nodes = |second| {
            let mut seen = stacked(second);
            (seen.pcpus[1].node, seen.pcpus[1].package) = (Some(1), Some(1));
            seen.vms[0].memory_nodes = "0".parse().ok();
            seen
        };
        let policy = Policy { place: Placer::Corefit, dwell_ms: 0, lever_ms: 0, ..Policy::default() };
        let mut placing = placer(&policy).unwrap();
        let moved = |placing: &mut Placing, second| {
            let (before, now) = (on_two_nodes(second - 1), on_two_nodes(second));
            let actions = placing.place(&now, &estimate(&before, &now).unwrap(), &policy);
            actions.into_iter().find(|action| action.lever == Lever::Nodes)
        };
        let action = moved(&mut placing, 1).expect("its second vCPU goes to the other node");
        let late = MachineError::Gone("libvirtd does not answer".into());
        placing.told(&Outcome { action, result: Err(late) });
        let action = moved(&mut placing, 2).expect("it may be moved later");
        let refused = MachineError::Unsupported("its pages are locked".into());
        placing.told(&Outcome { action, result: Err(refused) });
        assert_eq!(moved(&mut placing, 3), None);
        // A look that misses the VM changes nothing in that.
        let mut missed = Snapshot { vms: vec![], ..on_two_nodes(4) };
        let path = "VM \"a\"".into();
        missed.unread.push(Unread { what: What::Siblings, path, why: "not asked for yet".into() });
        placing.place(&missed, &estimate(&on_two_nodes(3), &missed).unwrap(), &policy);
        assert_eq!(moved(&mut placing, 5), None);
    }

    #[test]
    fn a_pin_that_is_somebody_elses_is_a_fact_for_the_others() {
        // Two VMs of one vCPU on one pCPU.
        let look = |second| {
            let mut seen = stacked(second);
            seen.vms[0].vcpus.truncate(1);
            let other = VmState { id: VmId("b".into()), name: "b".into(), ..seen.vms[0].clone() };
            seen.vms.push(other);
            seen
        };
        let policy = Policy { place: Placer::Corefit, dwell_ms: 0, lever_ms: 0, ..Policy::default() };
        let moved = |placing: &mut Placing, second| {
            let (before, now) = (look(second - 1), look(second));
            placing.place(&now, &estimate(&before, &now).unwrap(), &policy)
        };
        let mut placing = placer(&policy).unwrap();
        let first = moved(&mut placing, 1);
        let action = first.first().cloned().expect("one of them goes to the other pCPU");
        let theirs = action.vm.clone();
        placing.told(&Outcome { action, result: Err(MachineError::Denied("it stands".into())) });
        let then = moved(&mut placing, 2);
        assert!(!then.is_empty() && then.iter().all(|action| action.vm != theirs), "{then:?}");
    }

    #[test]
    fn who_is_due_while_a_placement_is_tried_is_no_part_of_it() {
        let policy = Policy { place: Placer::Corefit, dwell_ms: 0, lever_ms: 0, ..Policy::default() };
        let reserving = Policy { reserved: "0".parse().unwrap(), ..policy.clone() };
        let seen = |second| estimate(&stacked(second - 1), &stacked(second)).unwrap();
        let mut placing = placer(&policy).unwrap();
        let done = |placing: &mut Placing, actions: Vec<Action>| {
            for action in actions {
                let read = action.to.clone();
                placing.told(&Outcome { action, result: Ok(read) });
            }
            placing.moved.tried()
        };
        let actions = placing.place(&stacked(1), &seen(1), &policy);
        assert_eq!(done(&mut placing, actions), 1);
        // It may go nowhere near pCPU 0 by now, and somebody tries numbers.
        let due = placing.wait(&stacked(2), &seen(2), &reserving, &BTreeSet::new());
        assert_eq!(due.len(), 2);
        assert_eq!(done(&mut placing, due), 1);
    }

    #[test]
    fn after_who_was_due_for_a_while_everybody_else_waits_for_a_dwell_of_its_own() {
        let policy = Policy {
            place: Placer::Corefit,
            dwell_ms: 3000,
            reserved: "0".parse().unwrap(),
            ..Policy::default()
        };
        let seen = |second| estimate(&stacked(second - 1), &stacked(second)).unwrap();
        let mut placing = placer(&policy).unwrap();
        for second in 1..=3 {
            assert!(placing.wait(&stacked(second), &seen(second), &policy, &BTreeSet::new()).is_empty());
        }
        let each: Vec<usize> = (4..=7).map(|second| acts(&mut placing, second, &policy)).collect();
        assert_eq!(each, [0, 0, 0, 2]);
    }

    #[test]
    fn who_is_excluded_stays() {
        let policy = Policy { place: Placer::OptimalAffinity, dwell_ms: 0, ..Policy::default() };
        let rule = Rule { name: "a".into(), exclude: Some(true), ..Rule::default() };
        let excluding = Policy { vm: vec![rule], ..policy.clone() };
        let mut placing = placer(&policy).unwrap();
        assert_eq!(acts(&mut placing, 1, &excluding), 0);
        assert!(acts(&mut placing, 2, &policy) > 0);
    }
}
