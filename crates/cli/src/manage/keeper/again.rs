//! What guests were told is told again, or told otherwise: it counts for a while only.

use std::time::{Duration, Instant};

use corefit_core::Time;
use corefit_core::decide::Action;
use corefit_core::machine::{Act, Lever, MachineError, Value, VmId};

use super::Keeper;
use crate::manage::journal::Entry;

/// What guests are told is written again after so long, for it counts 60 s there; after half of that to who did not hear it.
pub(super) const TELL_AGAIN: Duration = Duration::from_secs(30);
/// A guest that takes its time to be told is left alone for so many times as long, if that is longer.
const SLOW_RESTS: u32 = 10;

impl Keeper {
    /// What guests are told counts for a while only: says it again in time to those of whom it `stands`, first to who was told longest
    /// ago, so that each has its turn where there is no time for all.
    /// The next time comes after `next`, which is not to be too late.
    pub(crate) fn tell_again(
        &mut self,
        machine: &mut dyn Act,
        (now, next): (Time, Duration),
        stands: impl Fn(&VmId) -> bool,
    ) {
        let begun = Instant::now();
        let due = |entry: &&Entry| {
            // What somebody else told, who changed it before, is not said again.
            let known = self.told_at.get(&entry.vm);
            let due = known.is_some_and(|(at, rest)| now < *at || now.since(*at) + next > *rest);
            let managed = stands(&entry.vm) && !self.released.contains_key(&entry.key());
            entry.lever == Lever::Told && managed && due
        };
        let mut due: Vec<Entry> = self.journal.entries().iter().filter(due).cloned().collect();
        // Of a time that is to come the clock was set back.
        due.sort_by_key(|entry| self.told_at.get(&entry.vm).map(|(at, _)| *at).filter(|at| *at <= now));
        for (turn, entry) in due.into_iter().enumerate() {
            // One at least.
            if self.ends() || turn > 0 && begun.elapsed() >= self.budget {
                break;
            }
            // Whoever does not hear it falls back on what it sees itself, and may answer other questions.
            if let Some(value) = entry.wrote.last() {
                let _ = self.say(machine, &entry.vm, value, now).map(|()| self.heard(&entry.vm, value));
            }
        }
    }

    /// Whether a guest is only to be told something else: that this run tells it something stands in the journal, on disk, and in its VM's note,
    /// if it can have one, and whatever is in its file is taken back by that. So nothing is asked or written before it.
    pub(super) fn is_told(&self, action: &Action) -> bool {
        let is_it = |entry: &Entry| entry.lever == Lever::Told && !self.owes(entry);
        action.lever == Lever::Told
            && self.told_at.contains_key(&action.vm)
            && self.journal.entries_of(&action.vm).any(is_it)
            && !self.mute.contains(&action.vm)
            && self.journal.is_on_disk(&action.vm, action.lever)
    }

    /// Tells a guest something else: see [`Keeper::is_told`].
    pub(super) fn tell(
        &mut self,
        machine: &mut dyn Act,
        action: &Action,
        now: Time,
    ) -> Result<Value, MachineError> {
        let said = self.say(machine, &action.vm, &action.to, now);
        match &said {
            Ok(()) => self.heard(&action.vm, &action.to),
            // It may come yet.
            Err(MachineError::Gone(_)) => {
                self.late.insert(action.vm.clone());
                if let Some(entry) = self.journal.find(&action.vm, Lever::Told) {
                    entry.ours(action.to.clone());
                    entry.pending = true;
                }
            }
            Err(_) => {}
        }
        said.map(|()| action.to.clone())
    }

    /// This is what a guest is told now, whatever it did not hear before.
    fn heard(&mut self, vm: &VmId, value: &Value) {
        if let Some(entry) = self.journal.find(vm, Lever::Told) {
            (entry.wrote, entry.pending) = (vec![value.clone()], false);
        }
    }

    fn say(
        &mut self,
        machine: &mut dyn Act,
        vm: &VmId,
        value: &Value,
        now: Time,
    ) -> Result<(), MachineError> {
        let asked = Instant::now();
        let said = machine.set(vm, Lever::Told, value);
        if said.is_ok() {
            self.late.remove(vm);
        }
        self.told_at.insert(vm.clone(), (now, rest(asked.elapsed(), said.is_ok())));
        said
    }
}

/// Whether two lists of settings say the same but for what guests are told.
pub(super) fn same_but_told(a: &[Entry], b: &[Entry]) -> bool {
    let same = |(a, b): (&Entry, &Entry)| {
        let told = a.lever == Lever::Told && a.key() == b.key();
        a == b || told && (&a.original, a.pending) == (&b.original, b.pending)
    };
    a.len() == b.len() && a.iter().zip(b).all(same)
}

/// After how long a guest is told again that took so long: of those that take their time each uses up a tenth of it at most.
fn rest(took: Duration, heard: bool) -> Duration {
    let usual = if heard { TELL_AGAIN } else { TELL_AGAIN / 2 };
    usual.max(SLOW_RESTS * took)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use corefit_core::Cpus;
    use corefit_core::decide::Why;
    use corefit_core::machine::{Machine, Snapshot, VmState};

    use super::*;
    use crate::manage::boot::Boot;
    use crate::manage::journal::Journal;
    use crate::manage::journal::testing::entry;

    const SECOND: Duration = Duration::from_secs(1);

    /// Guests that hear what they are told, each after so long.
    struct Guests {
        heard: BTreeSet<VmId>,
        slow: Duration,
        /// Who does not answer.
        silent: Option<VmId>,
        /// How often something was read, or a note was made.
        asked: u32,
    }

    impl Machine for Guests {
        fn name(&self) -> String {
            "guests".into()
        }

        fn observe(&mut self) -> Result<Snapshot, MachineError> {
            Ok(Snapshot::default())
        }

        fn pass(&mut self, _: Duration) -> Result<bool, MachineError> {
            Ok(true)
        }
    }

    impl Act for Guests {
        fn current(&mut self, _: &VmId, _: Lever) -> Result<Value, MachineError> {
            self.asked += 1;
            Ok(Value::Told(None))
        }

        fn keep(&mut self, _: &VmId, _: Option<&str>) -> Result<(), MachineError> {
            self.asked += 1;
            Ok(())
        }

        fn set(&mut self, vm: &VmId, _: Lever, _: &Value) -> Result<(), MachineError> {
            std::thread::sleep(self.slow);
            if self.silent.as_ref() == Some(vm) {
                return Err(MachineError::Gone("no answer".into()));
            }
            self.heard.insert(vm.clone());
            Ok(())
        }
    }

    /// Who of three hears it again at these seconds, in a budget, each of whom takes so long.
    fn heard(keeper: &mut Keeper, s: u64, budget: Duration, slow: Duration) -> Vec<String> {
        keeper.may_take(budget);
        let mut guests = Guests { heard: BTreeSet::new(), slow, silent: None, asked: 0 };
        keeper.tell_again(&mut guests, (Time(s * 1_000_000_000), SECOND), |_| true);
        guests.heard.into_iter().map(|vm| vm.0).collect()
    }

    fn told() -> (tempfile::TempDir, Keeper) {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path(), "guests", &Boot::named("boot")).unwrap();
        for vm in ["a", "b", "c"] {
            let (original, wrote) = (Value::Told(None), vec![Value::Told(Some(Cpus(1.0)))]);
            journal.add(Entry { lever: Lever::Told, original, wrote, ..entry(vm) });
        }
        let mut keeper = Keeper::new(journal, Duration::from_secs(60));
        keeper.told_at = ["a", "b", "c"].map(|vm| (VmId(vm.into()), (Time(0), TELL_AGAIN))).into();
        (dir, keeper)
    }

    #[test]
    fn who_hears_it_is_late_no_more_and_who_does_not_may_only_open_files_late() {
        let (_dir, mut keeper) = told();
        let [a, b] = ["a", "b"].map(|vm| VmId(vm.into()));
        keeper.late.insert(b.clone());
        // Who did not hear it is told again sooner, twice before it counts no more.
        for (s, silent, late) in [(100, &b, vec![&b]), (114, &a, vec![&b]), (115, &a, vec![])] {
            let (heard, slow) = (BTreeSet::new(), Duration::ZERO);
            let mut guests = Guests { heard, slow, silent: Some(silent.clone()), asked: 0 };
            keeper.tell_again(&mut guests, (Time(s * 1_000_000_000), SECOND), |_| true);
            assert_eq!(keeper.late.iter().collect::<Vec<_>>(), late);
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    /// Tells it 3 CPUs, or more; what came of it, and how often something was read, or a note was made.
    fn tell(keeper: &mut Keeper, guests: &mut Guests, vm: &VmId, cpus: f64) -> (bool, u32) {
        let seen = VmState { id: vm.clone(), ..VmState::default() };
        let why = Why::Available { available: Cpus(cpus) };
        let action = Action::of(&seen, Lever::Told, None, Value::Told(Some(Cpus(cpus))), why);
        guests.asked = 0;
        let result = keeper.apply(guests, &[action], Time(0)).remove(0).result;
        (result.is_ok(), guests.asked)
    }

    #[test]
    fn who_is_told_something_else_is_only_told_it_unless_its_vm_has_no_note() {
        let (dir, mut keeper) = told();
        keeper.journal.write().unwrap();
        keeper.forget_earlier();
        let [a, b, c] = ["a", "b", "c"].map(|vm| VmId(vm.into()));
        let mut guests =
            Guests { heard: BTreeSet::new(), slow: Duration::ZERO, silent: Some(b.clone()), asked: 0 };
        assert_eq!(tell(&mut keeper, &mut guests, &a, 3.0), (true, 0));
        assert_eq!(tell(&mut keeper, &mut guests, &b, 3.0), (false, 0));
        assert_eq!(keeper.late, BTreeSet::from([b.clone()]));
        let (_, entries) = Journal::found(dir.path(), &Boot::named("boot")).unwrap().unwrap();
        let on_disk: Vec<_> = entries.iter().map(|entry| (entry.wrote.last(), entry.pending)).collect();
        let [one, three] = [1.0, 3.0].map(|cpus| Value::Told(Some(Cpus(cpus))));
        assert_eq!(on_disk, [(Some(&three), false), (Some(&three), true), (Some(&one), false)]);
        guests.silent = None;
        assert_eq!(tell(&mut keeper, &mut guests, &b, 4.0), (true, 0));
        assert!(keeper.journal.entries().iter().all(|entry| !entry.pending) && keeper.late.is_empty());
        keeper.mute.insert(c.clone());
        let (came, asked) = tell(&mut keeper, &mut guests, &c, 3.0);
        assert!(came && asked > 0 && keeper.mute.is_empty(), "its VM carries a note now");
        assert_eq!(tell(&mut keeper, &mut guests, &c, 4.0), (true, 0));
    }

    #[test]
    fn who_is_told_something_is_told_something_else_where_the_journal_cannot_be_written_and_no_other_is() {
        let (dir, mut keeper) = told();
        keeper.journal.write().unwrap();
        keeper.forget_earlier();
        std::fs::remove_dir_all(dir.path()).unwrap();
        let mut guests = Guests { heard: BTreeSet::new(), slow: Duration::ZERO, silent: None, asked: 0 };
        for (cpus, hears) in [(3.0, true), (2.0, false), (4.0, true)] {
            guests.silent = (!hears).then(|| VmId("a".into()));
            assert_eq!(tell(&mut keeper, &mut guests, &VmId("a".into()), cpus), (hears, 0));
        }
        assert!(!tell(&mut keeper, &mut guests, &VmId("other".into()), 3.0).0);
        assert_eq!(guests.heard, BTreeSet::from([VmId("a".into())]));
    }

    #[test]
    fn where_there_is_no_time_for_all_each_guest_has_its_turn() {
        let (_dir, mut keeper) = told();
        assert_eq!(heard(&mut keeper, 100, LONG, Duration::ZERO), ["a", "b", "c"]);
        assert_eq!(heard(&mut keeper, 129, LONG, Duration::ZERO), [""; 0], "it still counts");
        for (s, one) in [(130, "a"), (140, "b"), (150, "c"), (160, "a")] {
            assert_eq!(heard(&mut keeper, s, Duration::ZERO, Duration::ZERO), [one]);
        }
        assert_eq!(heard(&mut keeper, 50, LONG, Duration::ZERO), ["a", "b", "c"], "the clock was set back");
    }

    #[test]
    fn with_rare_looks_nobody_is_told_later_than_after_half_of_the_time_that_it_counts() {
        for (interval, times) in [(1, 6), (6, 6), (9, 7), (10, 6)] {
            let (_dir, mut keeper) = told();
            let mut told = 0;
            for look in 0..180 / interval {
                let mut guests =
                    Guests { heard: BTreeSet::new(), slow: Duration::ZERO, silent: None, asked: 0 };
                // Each comes a little sooner after the last one.
                let now = Time((100 + look * interval) * 1_000_000_000 - look * 1_000_000);
                keeper.tell_again(&mut guests, (now, Duration::from_secs(interval)), |_| true);
                told += usize::from(!guests.heard.is_empty());
            }
            assert_eq!(told, times, "{interval}");
        }
    }

    #[test]
    fn a_guest_that_takes_its_time_is_told_no_sooner_and_takes_up_a_tenth_of_it() {
        let rests = [(10, true), (1100, true), (1100, false), (2000, false), (4000, true)];
        let rests = rests.map(|(ms, heard)| rest(Duration::from_millis(ms), heard).as_secs());
        assert_eq!(rests, [30, 30, 15, 20, 40]);
    }

    #[test]
    fn what_somebody_else_told_it_before_is_not_said_again() {
        let (_dir, mut keeper) = told();
        keeper.told_at.remove(&VmId("b".into()));
        assert_eq!(heard(&mut keeper, 100, LONG, Duration::ZERO), ["a", "c"]);
    }
}
