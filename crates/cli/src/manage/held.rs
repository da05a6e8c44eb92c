//! Settings of a machine that are changed for a while by somebody who is no daemon, with the daemon's care: by its journal, alone,
//! and put back in the end.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use corefit_core::decide::{Action, Outcome};
use corefit_core::machine::{Act, Snapshot};

use super::alone::Alone;
use super::restore::{self, BETWEEN_TRIES, unread};
use super::{Boot, Journal, Keeper};
use crate::machine::MachineArg;

/// Longest that changing or putting back may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A machine whose settings are put back when this goes out of scope.
pub(crate) struct Held {
    machine: Box<dyn Act>,
    keeper: Keeper,
    _alone: Option<Alone>,
}

impl Held {
    /// A machine by its name, with the directory of the journal. What one that was killed left changed, here or on the host that a
    /// VM came from, is put back first.
    pub(crate) fn open(name: &str, state: &Path) -> Result<Held> {
        let machine = MachineArg::named(name);
        if machine.clock().is_none() {
            bail!("--machine {name}: only a real machine can be changed while a program runs");
        }
        let arg = machine.settled();
        let mut machine = arg.open_to_act()?;
        // Where there is nobody to ask, no journal is made.
        machine.observe()?;
        let journal = Journal::open(state, arg.name(), &Boot::now(true)?)?;
        let alone = Alone::with(&machine.realm(), state)?;
        Held::begun(machine, Keeper::new(journal, PATIENCE), Some(alone), restore::PATIENCE)
    }

    /// VMs that cannot be read yet are waited for so long.
    fn begun(
        machine: Box<dyn Act>,
        keeper: Keeper,
        alone: Option<Alone>,
        patience: Duration,
    ) -> Result<Held> {
        let mut held = Held { machine, keeper, _alone: alone };
        let begun = Instant::now();
        while let Some(text) = unread(&held.look()?) {
            if begun.elapsed() >= patience {
                tell!("corefit: {}", crate::printable::text(&text));
                break;
            }
            std::thread::sleep(BETWEEN_TRIES);
        }
        held.restore()?;
        Ok(held)
    }

    /// What the machine shows.
    pub(crate) fn observe(&mut self) -> Result<Snapshot> {
        Ok(self.machine.observe()?)
    }

    /// Changes settings: all of them, or none.
    pub(crate) fn change(&mut self, actions: &[Action]) -> Result<()> {
        let snapshot = self.machine.observe()?;
        // What it carries is not known.
        let missed = actions.iter().find(|action| snapshot.may_lack(&action.name));
        if let (Some(action), Some(text)) = (missed, unread(&snapshot)) {
            bail!("{}: {}: nothing is changed: {text}", action.name, action.lever);
        }
        // It may be of a VM that could not be read when this began.
        for what in self.keeper.adopt(&mut *self.machine, &snapshot) {
            tell!("corefit: {}", crate::printable::text(&what));
        }
        let outcomes = self.keeper.apply(&mut *self.machine, actions, snapshot.at);
        let failed =
            outcomes.into_iter().find_map(|Outcome { action, result }| Some((action, result.err()?)));
        let Some((action, why)) = failed else { return Ok(()) };
        if let Err(pending) = self.put_back() {
            tell!("corefit: {pending:#}");
        }
        bail!("{}: {}: {why}", action.name, action.lever)
    }

    /// Everything as it was.
    pub(crate) fn put_back(&mut self) -> Result<()> {
        // Of a VM that is as it was, too, the note may still be there.
        if self.keeper.holds_nothing() { Ok(()) } else { self.restore() }
    }

    fn look(&mut self) -> Result<Snapshot> {
        let seen = self.machine.observe();
        match self.keeper.entries().is_empty() {
            true => Ok(seen?),
            false => seen.context("putting settings back (corefit restore does it later)"),
        }
    }

    fn restore(&mut self) -> Result<()> {
        let snapshot = self.look()?;
        let restored = self.keeper.restore(&mut *self.machine, &snapshot);
        for what in restored.came.iter().chain(&restored.stand) {
            tell!("corefit: {}", crate::printable::text(what));
        }
        match restored.pending.first() {
            None => Ok(()),
            Some(what) => bail!("not put back yet: {what} (corefit restore does it later)"),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Err(why) = self.put_back() {
            tell!("corefit: {why:#}");
        }
    }
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    impl Held {
        /// On a machine of tests, without waiting for VMs that cannot be read.
        pub(in crate::manage) fn on(machine: Box<dyn Act>, journal: Journal) -> Result<Held> {
            Held::begun(machine, Keeper::new(journal, PATIENCE), None, Duration::ZERO)
        }
    }
}
