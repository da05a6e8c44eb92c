//! Shorter slices of the fair scheduler for VMs that run for less than a slice at a time.
//!
//! EEVDF (Stoica, Abdel-Wahab: Earliest Eligible Virtual Deadline First, 1995; kernel/sched/fair.c) divides time by weight
//! alone. A slice s says how soon a thread is to have its next s / w of virtual time, its deadline; of those that are not
//! ahead of their part the earliest deadline runs. So who wakes up with a shorter slice comes first, and who uses its part up
//! anyway gains nothing. It pays for those that use less than their part because they wait after each wake-up.
//!
//! ```text
//!             r <= base slice, waiting >= deadband,             window over
//! Watching ──── and not always runnable ──▶ slice r / 2 ──────────────▶ gained: stays
//!    ▲                                                                      │ no
//!    └───────────── rests, twice as long each time ◀── the scheduler's own ◀┘
//! ```
//!
//! r: mean time on a pCPU, from how often it was put on one. Gained is: work grew by half the deadband or, where nobody counts
//! work, CPU time did, or it stayed and the mean wait before a run halved.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::{Action, Fate, Outcome, Policy, Rule, Shaper, Why, longer};
use super::{grew, running};
use crate::machine::{
    Counters, FairSlices, Lever, LeverKind, SLICE_MARK_NS, Snapshot, Value, VmId, VmState, is_our_slice,
};
use crate::{CpuSet, Time};

/// The shortest slice that the kernel takes, us (`__setparam_fair`, kernel/sched/syscalls.c).
const LEAST_US: u64 = 100;
/// Fewer runs in a window tell little. Ours.
const LEAST_RUNS: f64 = 100.0;
/// Who wants to run for this part of the time does not block. Ours.
const ALWAYS: f64 = 0.95;

/// The stage that sets slices: what it remembers of each VM.
#[derive(Debug, Default)]
pub(crate) struct Slicing {
    vms: BTreeMap<VmId, Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// What is set by us, ns, and for which vCPUs.
    ours: Option<u64>,
    online: CpuSet,
    /// The `latency_ms` for which it was asked for, where that made the difference.
    by: Option<u64>,
    /// What the last step asked for; `Some(None)`: the scheduler's own.
    asked: Option<Option<u64>>,
    /// Begin of the window.
    mark: Option<(Time, VmState)>,
    /// What was before: of what is asked for, and of what is tried.
    before: Option<Runs>,
    trying: Option<Runs>,
    /// No shorter one is tried before that, and how long it was.
    rest: Duration,
    rests: Time,
    not_before: Time,
    failed: bool,
    refused: bool,
}

/// How a VM ran between two looks.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Runs {
    /// Means over the times that it was put on a pCPU, us.
    run_us: f64,
    wait_us: f64,
    /// Of the time that it wanted to run, the part that it waited.
    waiting: f64,
    /// Whether all of its vCPUs wanted to run nearly all the time; of a control group that is not known.
    always: bool,
    /// CPUs.
    used: f64,
    progress: Option<f64>,
}

impl Slicing {
    /// Which slices to change, by what was seen until now; what people should know goes to `notes`.
    pub(crate) fn step(&mut self, now: &Snapshot, policy: &Policy, notes: &mut Vec<String>) -> Vec<Action> {
        let mut actions = Vec::new();
        for vm in running(&mut self.vms, now, |known| known.mark = None) {
            if vm.hands_off {
                // Whoever keeps the journal puts them back.
                self.vms.remove(&vm.id);
                continue;
            }
            let rule = policy.of(&vm.name);
            let shaper = rule.shape.unwrap_or(policy.shape);
            let wanted = shaper == Shaper::Slice && rule.exclude != Some(true);
            if !wanted && !self.vms.contains_key(&vm.id) {
                continue;
            }
            if let Some(why) = vm.fixed(LeverKind::Slice).filter(|_| wanted) {
                notes.push(format!("{}: keeps its slice: {why}", vm.name));
            }
            let Some(slices) = vm.slices.filter(|_| vm.fixed(LeverKind::Slice).is_none()) else { continue };
            if wanted && slices.without > 0 {
                let what = "of its threads have no slice (real-time, with deadlines, SCHED_IDLE): they are left alone";
                notes.push(format!("{}: {} {what}", vm.name, slices.without));
            }
            let known = self.vms.entry(vm.id.clone()).or_default();
            if !known.settle(&slices) {
                notes.push(format!(
                    "{}: somebody else set slices of its threads; they are left alone",
                    vm.name
                ));
                if wanted {
                    continue;
                }
            }
            let rule = wanted.then_some(&rule);
            if let Some((to, why)) = known.step(now.at, vm, slices.base_ns, rule, policy) {
                actions.extend(known.ask(vm, to, &why));
            }
        }
        actions
    }

    /// Who refused is asked again.
    pub(crate) fn try_again(&mut self) {
        self.vms.values_mut().for_each(|known| known.refused = false);
    }

    /// What became of an action of the last step.
    pub(crate) fn told(&mut self, outcome: &Outcome, at: Time) {
        let Action { vm, lever: Lever::Slice(_), to: Value::Slice(to), .. } = &outcome.action else { return };
        let Some(known) = self.vms.get_mut(vm).filter(|known| known.asked == Some(*to)) else { return };
        match outcome.fate(at) {
            Fate::Is(Value::Slice(read)) if read == to => {
                known.ours = to.or(known.ours);
                known.trying = known.before;
            }
            Fate::Is(_) | Fate::Later => known.failed = true,
            Fate::Away(until) => (known.failed, known.not_before) = (true, until),
            // What somebody else set since is not put back.
            Fate::Refused if to.is_none() => {}
            Fate::Refused => (known.failed, known.refused) = (true, true),
        }
    }
}

impl Known {
    /// Whether all slices are the scheduler's own or ours. Where some are somebody else's, the others stay ours, to be put back.
    fn settle(&mut self, seen: &FairSlices) -> bool {
        // What an earlier run left is marked.
        let known = |ns: u64| {
            ns == seen.base_ns || self.asked == Some(Some(ns)) || self.ours == Some(ns) || is_our_slice(ns)
        };
        if known(seen.least_ns) && known(seen.most_ns) {
            if (seen.least_ns, seen.most_ns) == (seen.base_ns, seen.base_ns) {
                // Whoever keeps the journal put them back, as for another scheduler.
                self.ours = None;
            }
            return true;
        }
        // What was tried can be judged no more: it is undone once the others are gone.
        self.failed |= self.trying.is_some();
        (self.mark, self.trying, self.before) = (None, None, None);
        false
    }

    /// Another slice, and why; `None` of the inner: the scheduler's own, which is `base_ns` long. `rule`: what is said of the VM,
    /// where slices are to be set.
    fn step(
        &mut self,
        at: Time,
        vm: &VmState,
        base_ns: u64,
        rule: Option<&Rule>,
        policy: &Policy,
    ) -> Option<(Option<u64>, Why)> {
        if at < self.not_before {
            return None;
        }
        if self.asked == Some(None) && !self.failed {
            self.ours = None; // and nothing failed
        }
        let changed = self.ours.is_some() && self.online != vm.online();
        // What was late for this is late for less.
        let more = |by: u64| rule.is_some_and(|rule| rule.latency_ms.is_none_or(|now| now > by));
        let other = self.by.is_some_and(more);
        let failed = std::mem::take(&mut self.failed) || other;
        let Some(rule) = rule.filter(|_| !changed && !failed) else {
            (self.mark, self.trying, self.before, self.by) = (None, None, None, None);
            let why = if rule.is_some() { Why::Anew } else { Why::Unshaped };
            return self.ours.is_some().then_some((None, why));
        };
        if at < self.rests {
            return None;
        }
        let Some((then, before)) = self.mark.clone().filter(|_| !self.refused) else {
            self.mark = Some((at, vm.clone()));
            return None;
        };
        if at.since(then) < policy.window() {
            return None;
        }
        self.mark = Some((at, vm.clone()));
        let seen = Runs::between(&before, then, vm, at)?;
        if let Some(before) = self.trying.take() {
            if seen.gained(&before, policy.deadband) {
                return None;
            }
            self.rest = longer(self.rest);
            self.rests = at + self.rest;
            (self.mark, self.before, self.by) = (None, None, None);
            return Some((None, Why::NoGain));
        }
        let (to, late) = shorter(&seen, base_ns, rule.latency_ms, policy.deadband)?;
        // Less than half or more than twice is another one.
        if self.ours.is_some_and(|ours| (ours / 2..=ours * 2).contains(&to)) {
            return None;
        }
        (self.before, self.by) = (Some(seen), rule.latency_ms.filter(|_| late));
        Some((Some(to), Why::Sooner { run_us: seen.run_us, wait_us: seen.wait_us }))
    }

    fn ask(&mut self, vm: &VmState, to: Option<u64>, why: &Why) -> Vec<Action> {
        let from = self.ours;
        // A vCPU that went offline may have one, too.
        let all = if to.is_none() { vm.online().union(&self.online) } else { vm.online() };
        (self.asked, self.online) = (Some(to), vm.online());
        let action = |number: u32| {
            Action::of(vm, Lever::Slice(number), Some(Value::Slice(from)), Value::Slice(to), why.clone())
        };
        // All threads of a control group have one lever.
        if vm.is_group() { vec![action(0)] } else { all.iter().map(|cpu| action(cpu.0)).collect() }
    }
}

/// Half of a mean run as a slice, ns, marked as ours; nothing for those that run for longer than the scheduler's own
/// (unless they wait for longer than they tolerate), hardly wait, or never block. And whether that they tolerate no longer made the difference.
fn shorter(seen: &Runs, base_ns: u64, latency_ms: Option<u64>, worth: f64) -> Option<(u64, bool)> {
    #[expect(clippy::cast_precision_loss, reason = "a slice, and at most a second")]
    let (base_us, tolerates_us) = (base_ns as f64 / 1000.0, latency_ms.map(|ms| ms as f64 * 1000.0));
    let long = seen.run_us > base_us;
    let late = tolerates_us.is_some_and(|most| seen.wait_us > most);
    if seen.always || seen.waiting < worth || (long && !late) {
        return None;
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most a slice")]
    let us = ((seen.run_us / 2.0).min(base_us / 2.0) as u64).max(LEAST_US);
    let to = us * 1000 + SLICE_MARK_NS;
    (to < base_ns).then_some((to, long))
}

impl Runs {
    /// What lies between two looks; `None` where that is not counted, or it hardly ran.
    #[expect(clippy::cast_precision_loss, reason = "counts and times of a window")]
    fn between(before: &VmState, then: Time, after: &VmState, now: Time) -> Option<Runs> {
        let over = now.since(then).as_secs_f64();
        let (from, to) = (counted(before)?, counted(after)?);
        let grown = |a: Option<u64>, b: Option<u64>| b?.checked_sub(a?).map(|n| n as f64);
        let run = grown(from.run_ns, to.run_ns)? / 1e9;
        let wait = grown(from.wait_ns, to.wait_ns)? / 1e9;
        let runs = grown(from.runs, to.runs)?;
        let rate = |(a, b): (f64, f64)| (b >= a).then(|| (b - a) / over);
        (runs >= LEAST_RUNS && over > 0.0 && before.online() == after.online()).then(|| Runs {
            run_us: run / runs * 1e6,
            wait_us: wait / runs * 1e6,
            waiting: wait / (run + wait).max(f64::MIN_POSITIVE),
            always: after.whole.is_none() && run + wait >= ALWAYS * over * after.online().len() as f64,
            used: run / over,
            progress: before.progress.zip(after.progress).and_then(rate),
        })
    }

    fn gained(&self, before: &Runs, deadband: f64) -> bool {
        if let Some((now, then)) = self.progress.zip(before.progress) {
            return grew(now, then, deadband);
        }
        let sooner =
            self.wait_us <= before.wait_us / 2.0 && self.used >= before.used * (1.0 - deadband / 2.0);
        grew(self.used, before.used, deadband) || sooner
    }
}

/// Of everything in a group, or of the vCPUs that are online.
fn counted(vm: &VmState) -> Option<Counters> {
    if vm.whole.is_some() {
        return vm.whole;
    }
    let zero = Counters { run_ns: Some(0), wait_ns: Some(0), runs: Some(0) };
    let add = |a: Option<u64>, b: Option<u64>| Some(a? + b?);
    vm.vcpus.iter().filter(|vcpu| vcpu.online).map(|vcpu| vcpu.counters).try_fold(zero, |sum, one| {
        Some(Counters {
            run_ns: Some(add(sum.run_ns, one.run_ns)?),
            wait_ns: Some(add(sum.wait_ns, one.wait_ns)?),
            runs: Some(add(sum.runs, one.runs)?),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{MachineError, VcpuState};
    use crate::{Unread, What};

    const BASE: u64 = 2_800_000;

    fn policy() -> Policy {
        Policy { shape: Shaper::Slice, dwell_ms: 1000, lever_ms: 1000, ..Policy::default() }
    }

    /// A host that is looked at once a second.
    struct Toy {
        slicing: Slicing,
        now: Snapshot,
        notes: Vec<String>,
        /// Nothing that is asked for is tried.
        fails: bool,
    }

    impl Toy {
        fn new(vcpus: usize) -> Toy {
            let counters = Counters { run_ns: Some(0), wait_ns: Some(0), runs: Some(0) };
            let slices = Some(FairSlices { base_ns: BASE, least_ns: BASE, most_ns: BASE, without: 0 });
            let vcpu = VcpuState { online: true, counters, ..VcpuState::default() };
            let vm = VmState {
                id: VmId("a".into()),
                name: "a".into(),
                vcpus: vec![vcpu; vcpus],
                slices,
                ..VmState::default()
            };
            let now = Snapshot { vms: vec![vm], ..Snapshot::default() };
            Toy { slicing: Slicing::default(), now, notes: Vec::new(), fails: false }
        }

        fn vm(&mut self) -> &mut VmState {
            &mut self.now.vms[0]
        }

        /// Each vCPU ran and waited so many us, so often, in a second; what is said is done, and handed back.
        fn second(&mut self, (run, wait, runs): (u64, u64, u64), policy: &Policy) -> Vec<Option<u64>> {
            self.now.at = self.now.at + Duration::from_secs(1);
            for counters in self.vm().vcpus.iter_mut().filter(|v| v.online).map(|v| &mut v.counters) {
                counters.run_ns = counters.run_ns.map(|ns| ns + run * runs * 1000);
                counters.wait_ns = counters.wait_ns.map(|ns| ns + wait * runs * 1000);
                counters.runs = counters.runs.map(|n| n + runs);
            }
            let actions = self.slicing.step(&self.now, policy, &mut self.notes);
            let mut to = vec![];
            for action in actions {
                let Value::Slice(slice) = action.to else { panic!("{action:?}") };
                to.push(slice);
                if self.fails {
                    let result = Err(MachineError::Untried("the step took too long".into()));
                    self.slicing.told(&Outcome { result, action }, self.now.at);
                    continue;
                }
                let is = slice.unwrap_or(BASE);
                self.vm().slices = Some(FairSlices { base_ns: BASE, least_ns: is, most_ns: is, without: 0 });
                self.slicing.told(&Outcome { result: Ok(action.to.clone()), action }, self.now.at);
            }
            to
        }
    }

    const BLOCKS: (u64, u64, u64) = (400, 600, 500);
    const SOONER: (u64, u64, u64) = (400, 200, 500);

    #[test]
    fn who_blocks_often_and_waits_gets_half_of_what_it_runs_at_a_time_and_keeps_it_if_it_waits_less() {
        let (mut toy, policy) = (Toy::new(2), policy());
        assert_eq!((toy.second(BLOCKS, &policy), toy.second(BLOCKS, &policy).len()), (vec![], 2));
        let mut toy = Toy::new(1);
        toy.second(BLOCKS, &policy);
        assert_eq!(toy.second(BLOCKS, &policy), [Some(200_037)]);
        for _ in 0..100 {
            assert_eq!(toy.second(SOONER, &policy), []);
        }
        // Not for a little, but for another way of running.
        assert_eq!(toy.second((700, 200, 500), &policy), []);
        assert_eq!(toy.second((1200, 200, 500), &policy), [Some(600_037)]);
    }

    #[test]
    fn what_brings_nothing_is_undone_and_tried_more_and_more_rarely() {
        let (mut toy, policy) = (Toy::new(1), policy());
        let mut set = vec![];
        for second in 0..200 {
            match &toy.second(BLOCKS, &policy)[..] {
                [] => {}
                [Some(_)] => set.push(second),
                [None] => assert_eq!(set.last(), Some(&(second - 1)), "after one window"),
                more => panic!("{more:?}"),
            }
        }
        assert_eq!(set, [1, 33, 95], "30 s, then 60");
    }

    #[test]
    fn what_brought_nothing_is_put_back_with_the_next_step_if_it_could_not_be_before() {
        let (mut toy, policy) = (Toy::new(1), policy());
        toy.second(BLOCKS, &policy);
        assert_eq!(toy.second(BLOCKS, &policy), [Some(200_037)]);
        toy.fails = true;
        assert_eq!((toy.second(BLOCKS, &policy), toy.second(BLOCKS, &policy)), (vec![None], vec![None]));
        toy.fails = false;
        assert_eq!(toy.second(BLOCKS, &policy), [None]);
        for _ in 0..27 {
            assert_eq!(toy.second(BLOCKS, &policy), [], "it rests");
        }
    }

    #[test]
    fn nothing_changes_for_those_that_run_long_hardly_wait_or_never_block() {
        let policy = policy();
        for (runs, vcpus) in
            [((3000, 3000, 150), 1), ((400, 10, 500), 1), ((500, 500, 970), 2), ((400, 600, 50), 1)]
        {
            let mut toy = Toy::new(vcpus);
            for _ in 0..10 {
                assert_eq!(toy.second(runs, &policy), [], "{runs:?}");
            }
        }
        // Who waits for longer than it tolerates, though it runs long.
        let rule = Rule { name: "a".into(), latency_ms: Some(2), ..Rule::default() };
        let (mut toy, policy) = (Toy::new(1), Policy { vm: vec![rule], ..policy });
        toy.second((3000, 3000, 150), &policy);
        assert_eq!(toy.second((3000, 3000, 150), &policy), [Some(1_400_037)]);
    }

    #[test]
    fn what_was_set_for_a_latency_goes_back_when_more_is_tolerated_and_nothing_else_does() {
        const LONG: (u64, u64, u64) = (3000, 3000, 150);
        let tolerates = |latency_ms| {
            let rule = Rule { name: "a".into(), latency_ms, ..Rule::default() };
            Policy { vm: vec![rule], ..policy() }
        };
        for other in [None, Some(1000)] {
            let (mut toy, two) = (Toy::new(1), tolerates(Some(2)));
            toy.second(LONG, &two);
            assert_eq!(toy.second(LONG, &two), [Some(1_400_037)]);
            assert_eq!(toy.second((3000, 1000, 200), &two), [], "it gained");
            assert_eq!(toy.second((3000, 1000, 200), &tolerates(Some(1))), [], "less is tolerated");
            assert_eq!(toy.second((3000, 1000, 200), &two), [], "it is what it was");
            assert_eq!(toy.second((3000, 1000, 200), &tolerates(other)), [None], "{other:?}");
            for _ in 0..10 {
                assert_eq!(toy.second(LONG, &tolerates(other)), [], "{other:?}");
            }
            assert_eq!(toy.second(LONG, &two), [Some(1_400_037)], "it is looked at all the same");

            let mut toy = Toy::new(1);
            toy.second(BLOCKS, &two);
            assert_eq!(toy.second(BLOCKS, &two), [Some(200_037)]);
            for _ in 0..3 {
                assert_eq!(toy.second(SOONER, &tolerates(other)), [], "{other:?}");
            }
        }
    }

    #[test]
    fn what_somebody_else_set_stands_and_what_is_not_wanted_any_more_goes_back() {
        let (mut toy, policy) = (Toy::new(1), policy());
        toy.vm().slices = Some(FairSlices { base_ns: BASE, least_ns: 500_000, most_ns: BASE, without: 1 });
        for _ in 0..5 {
            assert_eq!(toy.second(BLOCKS, &policy), []);
        }
        assert!(toy.notes.iter().any(|note| note.contains("somebody else")), "{:?}", toy.notes);
        assert!(toy.notes.iter().any(|note| note.starts_with("a: 1 of its threads have no slice")));

        let mut toy = Toy::new(1);
        toy.second(BLOCKS, &policy);
        assert_eq!(toy.second(BLOCKS, &policy), [Some(200_037)]);
        toy.vm().slices = Some(FairSlices { base_ns: BASE, least_ns: 700_000, most_ns: 700_000, without: 0 });
        for _ in 0..5 {
            assert_eq!(toy.second(BLOCKS, &policy), []);
        }

        let mut toy = Toy::new(1);
        toy.second(BLOCKS, &policy);
        toy.second(BLOCKS, &policy);
        let none = Policy { shape: Shaper::None, ..policy.clone() };
        assert_eq!(toy.second(SOONER, &none), [None]);
        assert_eq!(toy.second(SOONER, &none), []);
    }

    #[test]
    fn what_somebody_else_set_of_one_vcpu_leaves_that_of_the_others_to_be_put_back() {
        let (mut toy, policy) = (Toy::new(2), policy());
        toy.second(BLOCKS, &policy);
        assert_eq!(toy.second(BLOCKS, &policy).len(), 2);
        let theirs = FairSlices { base_ns: BASE, least_ns: 200_037, most_ns: 700_000, without: 0 };
        toy.vm().slices = Some(theirs);
        assert_eq!(toy.second(SOONER, &policy), []);
        let none = Policy { shape: Shaper::None, ..policy };
        toy.now.at = toy.now.at + Duration::from_secs(1);
        let actions = toy.slicing.step(&toy.now, &none, &mut toy.notes);
        let results = [Ok(Value::Slice(None)), Err(MachineError::Denied("it is somebody else's".into()))];
        assert_eq!(actions.len(), 2);
        for (action, result) in actions.into_iter().zip(results) {
            toy.slicing.told(&Outcome { action, result }, toy.now.at);
        }
        assert_eq!(toy.second(SOONER, &none), [], "once");
    }

    #[test]
    fn what_was_tried_when_somebody_else_set_a_slice_is_undone_once_that_is_gone() {
        let (mut toy, policy) = (Toy::new(2), policy());
        toy.second(BLOCKS, &policy);
        assert_eq!(toy.second(BLOCKS, &policy).len(), 2);
        let ours = toy.vm().slices;
        toy.vm().slices = Some(FairSlices { base_ns: BASE, least_ns: 200_037, most_ns: 700_000, without: 0 });
        assert_eq!(toy.second(SOONER, &policy), []);
        toy.vm().slices = ours;
        assert_eq!(toy.second(SOONER, &policy), [None, None]);
        assert_eq!(toy.second(BLOCKS, &policy), []);
    }

    /// libvirtd is slow after a restart: a look lacks the VM.
    #[test]
    fn one_that_a_look_missed_keeps_its_slice_and_gets_the_schedulers_own_back() {
        let (mut toy, policy) = (Toy::new(1), policy());
        toy.second(BLOCKS, &policy);
        assert_eq!(toy.second(BLOCKS, &policy), [Some(200_037)]);
        let vms = std::mem::take(&mut toy.now.vms);
        toy.now.unread =
            vec![Unread { what: What::Siblings, path: "VM \"a\"".into(), why: "not asked yet".into() }];
        assert_eq!(toy.slicing.step(&toy.now, &policy, &mut toy.notes), []);
        (toy.now.vms, toy.now.unread) = (vms, vec![]);
        assert_eq!((toy.second(SOONER, &policy), &toy.notes[..]), (vec![], &[][..]));
        assert_eq!(toy.second(SOONER, &Policy { shape: Shaper::None, ..policy }), [None]);
    }

    #[test]
    fn a_vcpu_that_comes_or_goes_begins_anew_with_the_schedulers_own() {
        let (mut toy, policy) = (Toy::new(2), policy());
        toy.second(BLOCKS, &policy);
        assert_eq!(toy.second(BLOCKS, &policy).len(), 2);
        toy.vm().vcpus[1].online = false;
        assert_eq!(toy.second(SOONER, &policy), [None, None], "the one that went, too");
        assert_eq!(toy.second(BLOCKS, &policy), []);
        assert_eq!(toy.second(BLOCKS, &policy), [Some(200_037)]);
    }

    /// As while a scheduler of sched_ext runs, for which the keeper puts all back.
    #[test]
    fn slices_that_were_put_back_are_set_anew() {
        let (mut toy, policy) = (Toy::new(2), policy());
        let asks = |toy: &mut Toy| (0..20).any(|_| !toy.second(BLOCKS, &policy).is_empty());
        assert!(asks(&mut toy));
        toy.vm().slices = Some(FairSlices { base_ns: BASE, least_ns: BASE, most_ns: BASE, without: 0 });
        assert!(asks(&mut toy));
    }

    #[test]
    fn who_cannot_is_left_alone_and_named_and_what_was_done_in_part_is_undone() {
        let (mut toy, policy) = (Toy::new(2), policy());
        toy.second(BLOCKS, &policy);
        toy.now.at = toy.now.at + Duration::from_secs(1);
        for vcpu in &mut toy.vm().vcpus {
            vcpu.counters =
                Counters { run_ns: Some(400_000_000), wait_ns: Some(600_000_000), runs: Some(1000) };
        }
        let actions = toy.slicing.step(&toy.now, &policy, &mut toy.notes);
        let results = [Ok(actions[0].to.clone()), Err(MachineError::Unsupported("real-time".into()))];
        for (action, result) in actions.into_iter().zip(results) {
            toy.slicing.told(&Outcome { action, result }, toy.now.at);
        }
        toy.vm().slices = Some(FairSlices { base_ns: BASE, least_ns: 200_037, most_ns: BASE, without: 1 });
        assert_eq!(toy.second(BLOCKS, &policy), [None, None]);
        for _ in 0..100 {
            assert_eq!(toy.second(BLOCKS, &policy), []);
        }
        toy.slicing.try_again();
        toy.second(BLOCKS, &policy);
        assert_eq!(toy.second(BLOCKS, &policy).len(), 2, "another configuration was read");
        let reason = "this kernel has none".to_owned();
        toy.vm().fixed = vec![crate::machine::Fixed { lever: LeverKind::Slice, reason }];
        assert_eq!(toy.second(BLOCKS, &policy), []);
        assert_eq!(toy.notes.last().unwrap(), "a: keeps its slice: this kernel has none");
    }
}
