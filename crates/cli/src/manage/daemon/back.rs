//! Putting back: what an earlier run left, what is not to be changed any more, and everything at the end.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use corefit_core::machine::{Act, Lever, LeverKind, Snapshot, VmId, VmState};

use super::Daemon;
use super::went::{say_ended, unseen};
use crate::manage::keeper::{Asking, Restored};
use crate::manage::log::{Level, log};
use crate::manage::{Keeper, restore, systemd};

/// Who does not answer may come back while everything is put back: so often it is tried where no time passes by itself.
const LAST_TRIES: u32 = 3;

impl Daemon<'_> {
    /// Puts back what an earlier run could not, before anything else.
    pub(in crate::manage) fn recover(&mut self) {
        if let Some(keeper) = &mut self.keeper {
            recover(&mut *self.machine, keeper);
        }
    }

    /// What is not to be changed any more (by another configuration, or by the owner of a VM) is put back.
    /// Whether something was.
    pub(super) fn release(&mut self, snapshot: &Snapshot) -> bool {
        let Some(keeper) = &mut self.keeper else { return false };
        let (policy, tell) = (self.controller.policy(), self.config.tell);
        let free = |vm: &VmState, lever: Lever| {
            // Who cannot be changed any more would stay as it is now.
            if let Some(why) = vm.fixed(lever.kind()) {
                return Some(why.to_owned());
            }
            // A cpuset that was sized and is no more is as it was, whoever places.
            let sized = lever.kind() == LeverKind::Affinity && self.sized.contains(&vm.id);
            let sized_no_more = sized && policy.sized_by(vm) != LeverKind::Affinity;
            let tells = lever != Lever::Told || tell;
            if policy.of(&vm.name).exclude == Some(true) {
                Some("it is excluded".into())
            } else if sized_no_more || !tells || !policy.manages(vm, lever.kind()) {
                Some("the configuration does not change it any more".into())
            } else {
                None
            }
        };
        let unseen = unseen(keeper, snapshot);
        let restored = keeper.release(&mut *self.machine, snapshot, free);
        if restored.ended > 0 {
            say_ended(unseen, keeper);
        }
        self.machine.awaits(&keeper.awaits());
        let sized = snapshot.vms.iter().filter(|vm| policy.sized_by(vm) == LeverKind::Affinity);
        let mut sized: BTreeSet<VmId> = sized.map(|vm| vm.id.clone()).collect();
        if !restored.pending.is_empty() {
            sized.append(&mut self.sized);
        }
        self.sized = sized;
        let is_some = !restored.put.is_empty();
        for back in restored.put {
            log(Level::Info, "put back", &[("what", back.what), ("why", back.why)]);
        }
        say_not(restored.stand, restored.pending, |text| self.told.is_new(text, ""));
        is_some
    }

    /// Puts back everything; `false` if something could not be. On a real machine who does not answer is asked again as long as there is
    /// `patience`, and nobody says within a time that it is `enough`; what those take who answer needs none. As long as all answer, all
    /// are asked, which the service manager is told; and after that those that answered the machine just before, until one of them
    /// does not.
    pub(in crate::manage) fn put_back(
        &mut self,
        patience: Duration,
        enough: impl Fn(Duration) -> bool,
    ) -> bool {
        let Some(keeper) = &mut self.keeper else { return true };
        if keeper.holds_nothing() {
            // Whoever ends it is to see that nothing is left.
            log(Level::Info, "restored", &[("result", restore::sum(&Restored::default()))]);
            return true;
        }
        keeper.owes_all();
        self.unwritten = None;
        self.ending();
        let (begun, ended, worked) = (Instant::now(), Cell::new(false), Cell::new(Duration::ZERO));
        // What could be put back is nobody's waiting.
        let waited = |just: Duration| begun.elapsed().saturating_sub(worked.get() + just);
        let ends = |time| {
            ended.set(ended.get() || enough(time));
            ended.get()
        };
        // So many answers were missing when it was over.
        let over = Cell::new(None);
        let asks = |asking: &Asking| {
            let missing = asking.missing;
            if missing == 0 || (waited(asking.worked) < patience && !ends(Duration::ZERO)) {
                return true;
            }
            over.set(over.get().or(Some(missing)));
            asking.heard && over.get() == Some(missing)
        };
        let (mut pending, mut trouble) = (Vec::new(), None);
        // Of all tries, and what was said of it.
        let (mut all, mut sum) = (Restored::default(), String::new());
        for attempt in 1.. {
            systemd::goes_on();
            let Some(keeper) = &mut self.keeper else { break };
            let waits = match self.machine.observe() {
                Ok(snapshot) => {
                    let restored = keeper.restore_while(&mut *self.machine, &snapshot, &asks);
                    let stand = restored.stand.clone();
                    all.and(restored);
                    worked.set(all.worked);
                    let now = restore::sum(&all);
                    if now != sum {
                        log(Level::Info, "restored", &[("result", now.clone())]);
                        sum = now;
                    }
                    for text in stand {
                        log(Level::Warning, "not put back", &[("what", text)]);
                    }
                    (pending, trouble) = (all.pending.clone(), None);
                    all.waits_for.is_some()
                }
                Err(error) => {
                    let text = error.to_string();
                    if trouble.as_ref() != Some(&text) {
                        log(Level::Error, "cannot look", &[("why", text.clone())]);
                    }
                    trouble = Some(text);
                    true
                }
            };
            self.board.lock().trouble.clone_from(&trouble);
            self.ending();
            if !waits {
                break;
            }
            let last = match self.live {
                true => {
                    waited(Duration::ZERO) + restore::BETWEEN_TRIES > patience || ends(restore::BETWEEN_TRIES)
                }
                false => attempt >= LAST_TRIES,
            };
            if last {
                break;
            }
            self.machine.ask_again();
        }
        pending.extend(trouble.iter().flat_map(|why| self.keeper.iter().flat_map(|keeper| keeper.owed(why))));
        let clean = pending.is_empty() && trouble.is_none();
        for text in pending {
            let remedy = "the next start, or corefit restore";
            log(Level::Error, "pending", &[("what", text), ("remedy", remedy.into())]);
        }
        clean
    }
}

/// Puts back what an earlier run could not, as far as that can be done now.
pub(in crate::manage) fn recover(machine: &mut dyn Act, keeper: &mut Keeper) {
    let snapshot = match machine.observe() {
        Ok(snapshot) => snapshot,
        Err(error) => return log(Level::Error, "cannot look", &[("why", error.to_string())]),
    };
    let killed = !keeper.entries().is_empty();
    let restored = keeper.restore(machine, &snapshot);
    if killed {
        // Killed, or it could not put back all.
        log(Level::Warning, "an earlier run left settings", &[("result", restore::sum(&restored))]);
    }
    for text in restored.came {
        log(Level::Warning, "came with changes", &[("what", text)]);
    }
    say_not(restored.stand, restored.pending, |_| true);
}

/// What stays as somebody else made it, and what could not be put back yet.
fn say_not(stand: Vec<String>, pending: Vec<String>, mut is_new: impl FnMut(&str) -> bool) {
    for (event, texts) in [("not put back", stand), ("not put back yet", pending)] {
        for text in texts {
            if is_new(&text) {
                log(Level::Warning, event, &[("what", text)]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use corefit_core::machine::{MachineError, Value};
    use corefit_core::{Cpus, Weight};

    use super::super::tests::{Refuses, a_vm, arguments, looking};
    use super::*;
    use crate::manage::journal::{Entry, testing::entry};
    use crate::manage::status::VmStatus;
    use crate::manage::{Boot, Journal};

    #[test]
    fn while_everything_is_put_back_the_status_says_so_and_shows_what_is_left_to_do_and_nothing_of_before() {
        let args = arguments();
        let mut daemon = looking(&args);
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path(), "host", &Boot::named("boot")).unwrap();
        let wrote = vec![Value::Weight(Weight(100.0))];
        journal.add(Entry { vm: a_vm().id, wrote, ..entry("a") });
        let mut keeper = Keeper::new(journal, Duration::ZERO);
        keeper.forget_earlier();
        daemon.keeper = Some(keeper);
        daemon.machine = Box::new(Refuses(MachineError::Gone("no answer".into())));
        let board = daemon.board.clone();
        board.lock().vms =
            vec![VmStatus { name: "a".into(), id: "7".into(), used: Some(Cpus(1.0)), ..VmStatus::default() }];
        let check = || {
            let shown = board.lock().clone();
            assert!(shown.notes.iter().any(|note| note.starts_with("it ends: ")), "{shown:?}");
            let [vm] = &shown.vms[..] else { panic!("{shown:?}") };
            assert!(vm.used.is_none() && vm.settings.len() == 1 && vm.settings[0].pending, "{shown:?}");
        };
        let tries = Cell::new(0);
        daemon.live = true;
        let clean = daemon.put_back(Duration::from_secs(3600), |_| {
            check();
            tries.set(tries.get() + 1);
            tries.get() == 3
        });
        assert!(!clean && tries.get() == 3);
        check();
    }
}
