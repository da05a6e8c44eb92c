//! Whether a placement cost work: what those that it moved counted before and after.
//!
//! ```text
//!          placed            window over
//! Resting ────────▶ Trying ──────────────▶ no less than before: it stays
//!    ▲                 │ less by more than the deadband
//!    └── put back ◀────┘   (the rest is twice as long each time, until none cost work for a while)
//! ```
//!
//! Placements are chosen by the throughput that a model predicts. They are judged by progress alone: who counts nothing says
//! nothing, for what it uses and waits for changes with what its neighbours want. A window is as long as the dwell, and as
//! the time between two changes of a lever; the one before is as long as another placement was worth it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{AFTER_FAILURE, Action, Outcome, Policy, Why, longer};
use crate::machine::{HostEstimate, Lever, MachineError, Snapshot, Value, VmId, VmState};
use crate::units::count;
use crate::{CpuSet, Time};

/// A VM that wants fewer pCPUs has nothing to do.
const IDLE: f64 = 0.1;
/// One unit at each end of a window says nothing.
const ENDS: f64 = 2.0;

/// The last placement, and what those did whom it moved.
#[derive(Debug, Default)]
pub(super) struct Moved {
    /// The begin of the window before the next one.
    before: Option<Counts>,
    trial: Option<Trial>,
    /// What is to be put back, and when to try that again.
    undo: (Vec<(Action, Value)>, Time),
    rest: Duration,
    until: Time,
}

/// A placement that is tried.
#[derive(Debug)]
struct Trial {
    /// Units per second before it.
    rates: BTreeMap<VmId, f64>,
    /// What was done, and what was read back.
    done: Vec<(Action, Value)>,
    /// The look after it.
    since: Option<Counts>,
    /// Who stood still meanwhile.
    stood: BTreeSet<VmId>,
}

/// What was counted until a look: units, when by a clock of whoever counts, and the vCPUs online.
#[derive(Clone, Debug)]
struct Counts {
    at: Time,
    of: BTreeMap<VmId, (f64, Option<Time>, CpuSet)>,
}

impl Moved {
    /// Nothing is worth another placement now: the window before one begins here.
    pub(super) fn mark(&mut self, now: &Snapshot) {
        self.before = Some(Counts::of(now));
    }

    /// Another placement is worth it.
    pub(super) fn mark_once(&mut self, now: &Snapshot) {
        self.before.get_or_insert_with(|| Counts::of(now));
    }

    /// Settings of the one that is tried.
    #[cfg(test)]
    pub(super) fn tried(&self) -> usize {
        self.trial.as_ref().map_or(0, |trial| trial.done.len())
    }

    /// Whether one is tried.
    pub(super) fn tries(&self) -> bool {
        self.trial.is_some()
    }

    /// Whether nothing is to be placed for a while.
    pub(super) fn rests(&self, at: Time) -> bool {
        at < self.until || !self.undo.0.is_empty()
    }

    /// How long that lasts, as one cost work.
    pub(super) fn rest(&self, at: Time) -> Option<Duration> {
        (at < self.until).then_some(self.rest)
    }

    /// A placement is asked for.
    pub(super) fn begin(&mut self, now: &Snapshot) {
        let rate = |vm: &VmState| {
            let (units, seconds) = self.before.as_ref()?.grown(vm, now.at)?;
            (units > 0.0).then(|| (vm.id.clone(), units / seconds))
        };
        let rates = now.vms.iter().filter_map(rate).collect();
        self.trial = Some(Trial { rates, done: Vec::new(), since: None, stood: BTreeSet::new() });
    }

    /// What became of an action.
    pub(super) fn told(&mut self, outcome: &Outcome) {
        let placed = matches!(outcome.action.why, Why::Placed(_) | Why::Nodes);
        if let (true, Some(trial), Ok(read)) = (placed, &mut self.trial, &outcome.result) {
            trial.done.push((outcome.action.clone(), read.clone()));
        }
        // Who does not answer, or was not asked, is asked again.
        let later = matches!(outcome.result, Err(MachineError::Gone(_) | MachineError::Untried(_)));
        if outcome.action.why == Why::NoGain && !later {
            let Action { vm, lever, .. } = &outcome.action;
            self.undo.0.retain(|(done, _)| (&done.vm, done.lever) != (vm, *lever));
        }
    }

    /// What is still to be put back, now and then.
    fn put_back(&mut self, now: &Snapshot) -> Vec<Action> {
        let (left, at) = &mut self.undo;
        // Who is only missed by this look is put back with a later one.
        left.retain(|(action, read)| now.may_lack(&action.name) || back(action, read, now).is_some());
        if now.at < *at {
            return Vec::new();
        }
        *at = now.at + AFTER_FAILURE;
        left.iter().rev().filter_map(|(action, read)| back(action, read, now)).collect()
    }

    /// Work that is done now says nothing: the windows begin anew. What is to be put back is, all the same.
    pub(super) fn wait(&mut self, now: &Snapshot) -> Vec<Action> {
        self.mark(now);
        if let Some(trial) = &mut self.trial {
            trial.since = None;
        }
        self.put_back(now)
    }

    /// What to put back: if work fell by more than the deadband, everything that nobody else has changed since.
    pub(super) fn judge(&mut self, now: &Snapshot, seen: &HostEstimate, policy: &Policy) -> Vec<Action> {
        if !self.undo.0.is_empty() {
            return self.put_back(now);
        }
        let Some(mut trial) = self.trial.take_if(|trial| !trial.done.is_empty()) else {
            self.trial = None;
            return Vec::new();
        };
        trial.stood.extend(now.vms.iter().filter(|vm| !vm.is_running_vm()).map(|vm| vm.id.clone()));
        let since = trial.since.get_or_insert_with(|| Counts::of(now));
        if now.at.since(since.at) < policy.window() {
            self.trial = Some(trial);
            return Vec::new();
        }
        let moved: BTreeSet<&VmId> = trial.done.iter().map(|(action, _)| &action.vm).collect();
        let busy = seen.vms.iter().filter(|vm| {
            let wants = |of: Option<crate::Cpus>| of.map_or(0.0, |cpus| cpus.0);
            wants(vm.activity.used) + wants(vm.activity.waiting) >= IDLE
        });
        let busy: BTreeSet<&VmId> = busy.map(|vm| &vm.seen.id).collect();
        // Work over what it would have been.
        let part = |vm: &VmState| {
            let before = trial.rates.get(&vm.id).filter(|_| {
                moved.contains(&vm.id) && busy.contains(&vm.id) && !trial.stood.contains(&vm.id)
            })?;
            let (units, seconds) = since.grown(vm, now.at)?;
            Some((units + ENDS) / (before * seconds))
        };
        let parts: Vec<f64> = now.vms.iter().filter_map(part).collect();
        // Nobody goes back to what is reserved.
        let left = |(action, read): &(Action, Value)| {
            matches!((&action.from, read), (Some(Value::Pcpus(from)), Value::Pcpus(to))
                if from.meets(&policy.reserved) && !to.meets(&policy.reserved))
        };
        let gained = parts.iter().sum::<f64>() >= (1.0 - policy.deadband) * count(parts.len());
        if gained || trial.done.iter().any(left) {
            self.before = trial.since;
            return Vec::new();
        }
        // Long after the last one that cost work it is another host, so to speak.
        let anew = now.at >= self.until + 3 * self.rest.max(policy.window());
        self.rest = longer(if anew { Duration::ZERO } else { self.rest });
        self.until = now.at + self.rest;
        self.undo = (trial.done, now.at);
        self.put_back(now)
    }
}

impl Counts {
    fn of(now: &Snapshot) -> Counts {
        let count = |vm: &VmState| Some((vm.id.clone(), (vm.progress?, vm.progress_at, vm.online())));
        Counts { at: now.at, of: now.vms.iter().filter_map(count).collect() }
    }

    /// Units that a VM counted since, and in how many seconds; `None` if that is not known, or it has other vCPUs now.
    fn grown(&self, vm: &VmState, now: Time) -> Option<(f64, f64)> {
        let (units, at, online) = self.of.get(&vm.id)?;
        let over = match (at, vm.progress_at) {
            (Some(at), Some(now)) => now.since(*at),
            (None, None) => now.since(self.at),
            _ => return None,
        };
        // A control group's are its pCPUs.
        let same = vm.is_group() || *online == vm.online();
        let grown = vm.progress? - units;
        (same && grown >= 0.0 && !over.is_zero()).then_some((grown, over.as_secs_f64()))
    }
}

/// The way back, if it is known, and nobody else has changed it since. What is set may be seen late.
fn back(action: &Action, read: &Value, now: &Snapshot) -> Option<Action> {
    let vm = now.vms.iter().find(|vm| vm.id == action.vm)?;
    let current = match action.lever {
        Lever::Affinity(vcpu) => Value::Pcpus(vm.vcpus.get(usize::try_from(vcpu).ok()?)?.affinity.clone()?),
        _ => Value::Nodes(vm.memory_nodes.clone()),
    };
    let to = action.from.clone().filter(|from| current == *read || current == *from)?;
    Some(Action { from: Some(current), to, why: Why::NoGain, ..action.clone() })
}

#[cfg(test)]
mod tests {
    use super::super::Placer;
    use super::super::place::placer;
    use super::super::place::tests::stacked;
    use super::*;
    use crate::machine::{State, estimate};
    use crate::{Unread, What};

    const SECOND: u64 = 1_000_000_000;

    /// A VM of two busy vCPUs on one pCPU of two, which counts its work; looked at once a second.
    struct Toy {
        placer: super::super::place::Placing,
        policy: Policy,
        now: Snapshot,
        /// What is asked for is not done.
        fails: Option<fn() -> MachineError>,
        /// Numbers of vCPUs are tried, of others or of this VM, too.
        races: bool,
        tries: bool,
    }

    impl Toy {
        fn new() -> Toy {
            let policy = Policy { place: Placer::Corefit, dwell_ms: 3000, ..Policy::default() };
            let mut now = stacked(0);
            now.vms[0].progress = Some(0.0);
            Toy { placer: placer(&policy).unwrap(), policy, now, fails: None, races: false, tries: false }
        }

        fn vm(&mut self) -> &mut VmState {
            &mut self.now.vms[0]
        }

        fn sets(&self) -> [String; 2] {
            [0, 1].map(|vcpu: usize| self.now.vms[0].vcpus[vcpu].affinity.as_ref().unwrap().to_string())
        }

        fn pin(&mut self, sets: [&str; 2]) {
            for (vcpu, set) in self.vm().vcpus.iter_mut().zip(sets) {
                vcpu.affinity = set.parse().ok();
            }
        }

        /// A second in which it counts so many units on one pCPU, and so many on two, and is so busy; whether something is
        /// moved.
        fn second(&mut self, [one, two]: [f64; 2], busy: f64) -> bool {
            let before = self.now.clone();
            self.now.at = Time(before.at.0 + SECOND);
            let sets = self.sets();
            let units = if sets[0] == sets[1] { one } else { two };
            let vm = self.vm();
            vm.progress = vm.progress.map(|all| all + units);
            for counters in vm.vcpus.iter_mut().map(|vcpu| &mut vcpu.counters) {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "half a second")]
                let more = |ns: Option<u64>| ns.map(|ns| ns + (busy * 0.5 * SECOND as f64) as u64);
                (counters.run_ns, counters.wait_ns) = (more(counters.run_ns), more(counters.wait_ns));
            }
            let seen = estimate(&before, &self.now).unwrap();
            let actions = match self.races {
                true => {
                    let tried = self.now.vms.iter().map(|vm| &vm.id).filter(|_| self.tries).collect();
                    self.placer.wait(&self.now, &seen, &self.policy, &tried)
                }
                false => self.placer.place(&self.now, &seen, &self.policy),
            };
            for action in &actions {
                let (Lever::Affinity(vcpu), Value::Pcpus(set)) = (action.lever, &action.to) else {
                    panic!("{action:?}")
                };
                if let Some(why) = self.fails {
                    self.placer.told(&Outcome { action: action.clone(), result: Err(why()) });
                    continue;
                }
                self.vm().vcpus[vcpu as usize].affinity = Some(set.clone());
                self.placer.told(&Outcome { action: action.clone(), result: Ok(action.to.clone()) });
            }
            !actions.is_empty()
        }

        /// Seconds, of so many, in which something was moved.
        fn seconds(&mut self, all: usize, units: [f64; 2], busy: f64) -> Vec<usize> {
            (0..all).filter(|_| self.second(units, busy)).collect()
        }
    }

    #[test]
    fn a_placement_with_which_less_work_is_done_is_put_back_and_tried_more_and_more_rarely() {
        let mut toy = Toy::new();
        assert_eq!(toy.seconds(200, [100.0, 80.0], 1.0), [3, 7, 40, 44, 107, 111], "30 s, then 60");
        assert_eq!(toy.sets(), ["0", "0"]);
    }

    #[test]
    fn the_rest_is_short_again_after_a_time_in_which_no_placement_cost_work() {
        let mut toy = Toy::new();
        assert_eq!(toy.seconds(10, [100.0, 80.0], 1.0), [3, 7]);
        assert_eq!(toy.seconds(150, [100.0, 100.0], 1.0), [30], "it stays");
        toy.pin(["0", "0"]);
        assert_eq!(toy.seconds(60, [100.0, 80.0], 1.0), [3, 7, 40, 44], "30 s, as at first");
    }

    #[test]
    fn in_a_rest_vms_leave_reserved_pcpus_and_pins_that_cannot_work_go_and_nothing_else_is_placed() {
        let mut toy = Toy::new();
        assert_eq!(toy.seconds(10, [100.0, 50.0], 1.0), [3, 7]);
        let notes = toy.placer.notes(toy.now.at);
        assert!(notes.len() == 1 && notes[0].contains("for 30 s: "), "{notes:?}");
        toy.policy.reserved = CpuSet::first(1);
        assert_eq!(toy.seconds(8, [100.0, 50.0], 1.0), [3], "though it is stacked there");
        assert_eq!(toy.sets(), ["1", "1"]);
        toy.policy.reserved = CpuSet::default();
        assert_eq!(toy.seconds(5, [100.0, 50.0], 1.0), [], "it rests");
        toy.pin(["1", "40"]);
        assert_eq!(toy.seconds(8, [100.0, 50.0], 1.0), [3]);
        assert_eq!(toy.sets(), ["1", "0"], "the rest is of what was tried");
        toy.pin(["0", "0"]);
        assert_eq!(toy.seconds(12, [100.0, 100.0], 1.0), [9], "it is over after 38 s");
        assert!(toy.placer.notes(toy.now.at).is_empty());
    }

    #[test]
    fn while_others_try_numbers_a_vm_leaves_reserved_pcpus_and_one_that_tries_them_does_so_afterwards() {
        let mut toy = Toy::new();
        toy.policy.reserved = CpuSet::first(1);
        (toy.races, toy.tries) = (true, true);
        assert_eq!(toy.seconds(8, [100.0, 100.0], 1.0), []);
        toy.tries = false;
        assert_eq!(toy.seconds(8, [100.0, 100.0], 1.0), [3]);
        assert_eq!(toy.sets(), ["1", "1"]);
    }

    #[test]
    fn that_nothing_is_placed_for_long_as_numbers_are_tried_is_said() {
        let mut toy = Toy::new();
        let says = |toy: &Toy| !toy.placer.notes(toy.now.at).is_empty();
        for second in 0..400 {
            // There are pauses, too short for a placement.
            toy.races = second % 4 > 0;
            assert!(!toy.second([100.0, 100.0], 1.0));
            assert_eq!(says(&toy), toy.races && second > 300, "{second}");
        }
        toy.races = false;
        assert_eq!(toy.seconds(5, [100.0, 100.0], 1.0), [3]);
        toy.races = true;
        toy.seconds(5, [100.0, 100.0], 1.0);
        assert!(!says(&toy));
    }

    #[test]
    fn one_with_which_as_much_is_done_stays_and_so_does_one_of_a_vm_that_counts_nothing_or_is_idle() {
        for units in [[100.0, 96.0], [100.0, 200.0], [0.0, 0.0], [0.6, 0.3]] {
            let mut toy = Toy::new();
            assert_eq!(toy.seconds(60, units, 1.0), [3], "{units:?}");
            assert_ne!(toy.sets(), ["0", "0"]);
        }
        let mut silent = Toy::new();
        silent.vm().progress = None;
        assert_eq!(silent.seconds(60, [100.0, 80.0], 1.0), [3]);
        let mut ended = Toy::new();
        assert_eq!(ended.seconds(4, [100.0, 100.0], 1.0), [3]);
        assert_eq!(ended.seconds(60, [0.0, 0.0], 0.0), [], "it has nothing to do any more");
    }

    #[test]
    fn what_could_not_be_put_back_is_asked_for_again_and_nothing_is_placed_meanwhile() {
        for why in [|| MachineError::Untried("a full disk".into()), || MachineError::Gone("no answer".into())]
        {
            let mut toy = Toy::new();
            assert_eq!(toy.seconds(4, [100.0, 50.0], 1.0), [3]);
            toy.fails = Some(why);
            let asked = toy.seconds(100, [100.0, 50.0], 1.0);
            assert!(asked.first() == Some(&3) && (3..20).contains(&asked.len()), "{asked:?}");
            assert_ne!(toy.sets(), ["0", "0"]);
            toy.fails = None;
            assert!((0..31).any(|_| toy.second([100.0, 50.0], 1.0)));
            assert_eq!(toy.sets(), ["0", "0"]);
        }
    }

    #[test]
    fn work_that_is_done_while_numbers_are_tried_says_nothing_of_a_placement_and_what_is_put_back_is() {
        let mut toy = Toy::new();
        assert_eq!(toy.seconds(5, [100.0, 100.0], 1.0), [3]);
        toy.races = true;
        assert_eq!(toy.seconds(20, [10.0, 10.0], 1.0), []);
        toy.races = false;
        assert_eq!(toy.seconds(20, [100.0, 100.0], 1.0), [], "it stays");

        let mut toy = Toy::new();
        toy.races = true;
        assert_eq!(toy.seconds(20, [10.0, 10.0], 1.0), []);
        toy.races = false;
        assert_eq!(toy.seconds(9, [100.0, 50.0], 1.0), [3, 7], "nor of what was before it");

        let mut toy = Toy::new();
        assert_eq!(toy.seconds(4, [100.0, 50.0], 1.0), [3]);
        toy.fails = Some(|| MachineError::Gone("no answer".into()));
        assert_eq!(toy.seconds(5, [100.0, 50.0], 1.0), [3]);
        (toy.fails, toy.races) = (None, true);
        toy.seconds(12, [10.0, 10.0], 1.0);
        assert_eq!(toy.sets(), ["0", "0"]);
    }

    #[test]
    fn who_is_missed_by_a_look_is_put_back_later() {
        let mut toy = Toy::new();
        assert_eq!(toy.seconds(4, [100.0, 50.0], 1.0), [3]);
        toy.fails = Some(|| MachineError::Untried("a full disk".into()));
        assert_eq!(toy.seconds(4, [100.0, 50.0], 1.0), [3], "asked to go back");
        let (before, mut missed) = (toy.now.clone(), toy.now.clone());
        (missed.vms, missed.at) = (Vec::new(), Time(before.at.0 + SECOND));
        let path = "VM \"a\"".into();
        missed.unread.push(Unread { what: What::Siblings, path, why: "did not answer".into() });
        let seen = estimate(&before, &missed).unwrap();
        assert_eq!(toy.placer.place(&missed, &seen, &toy.policy), []);
        toy.fails = None;
        assert!((0..12).any(|_| toy.second([100.0, 50.0], 1.0)));
        assert_eq!(toy.sets(), ["0", "0"]);
    }

    #[test]
    fn another_configuration_does_not_end_a_trial_nor_a_rest() {
        let mut toy = Toy::new();
        assert_eq!(toy.seconds(5, [100.0, 50.0], 1.0), [3]);
        toy.placer.try_again();
        assert_eq!(toy.seconds(5, [100.0, 50.0], 1.0), [2], "it is undone");
        toy.placer.try_again();
        assert_eq!(toy.seconds(20, [100.0, 50.0], 1.0), []);
    }

    #[test]
    fn who_stood_still_meanwhile_is_not_judged() {
        let mut toy = Toy::new();
        assert_eq!(toy.seconds(5, [100.0, 50.0], 1.0), [3]);
        toy.vm().state = State::Paused;
        toy.seconds(1, [0.0, 0.0], 0.0);
        toy.vm().state = State::Running;
        assert_eq!(toy.seconds(20, [100.0, 50.0], 1.0), []);
    }

    #[test]
    fn what_somebody_else_pinned_since_stands() {
        let mut toy = Toy::new();
        assert_eq!(toy.seconds(4, [100.0, 50.0], 1.0), [3]);
        let moved = usize::from(toy.sets()[1] != "0");
        toy.vm().vcpus[moved].affinity = "0-1".parse().ok();
        assert_eq!(toy.seconds(4, [100.0, 50.0], 1.0), []);
        assert_eq!(toy.sets()[moved], "0-1");
    }

    #[test]
    fn settings_that_are_seen_late_are_put_back_all_the_same() {
        let mut toy = Toy::new();
        assert_eq!(toy.seconds(4, [100.0, 50.0], 1.0), [3]);
        let moved = usize::from(toy.sets()[1] != "0");
        toy.vm().vcpus[moved].affinity = "0".parse().ok();
        assert_eq!(toy.seconds(4, [50.0, 50.0], 1.0), [3]);
    }

    #[test]
    fn what_could_not_be_placed_is_not_judged() {
        let mut toy = Toy::new();
        for _ in 0..4 {
            let before = toy.now.clone();
            toy.now.at = Time(before.at.0 + SECOND);
            let seen = estimate(&before, &toy.now).unwrap();
            for action in toy.placer.place(&toy.now, &seen, &toy.policy) {
                toy.placer.told(&Outcome { action, result: Err(MachineError::Gone("away".into())) });
            }
        }
        assert_eq!(toy.seconds(4, [100.0, 80.0], 1.0), [3], "it is tried again after the dwell");
    }
}
