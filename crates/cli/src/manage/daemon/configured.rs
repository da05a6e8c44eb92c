//! The configuration while the daemon is at work: it is read again, and is to be one for the machine.

use corefit_core::CpuSet;
use corefit_core::machine::Snapshot;

use super::{Daemon, stand_in};
use crate::manage::config::Config;
use crate::manage::log::{Level, log};
use crate::manage::{self, Telling};

impl Daemon<'_> {
    /// At the first look after the configuration was read: pCPUs that it reserves may be none of this host, which could not be looked at
    /// then. None are reserved then.
    pub(super) fn fit(&mut self, snapshot: &Snapshot) {
        let (pcpus, offline) = snapshot.pcpu_sets();
        if self.fitted || pcpus.is_empty() {
            return;
        }
        self.fitted = true;
        if self.config.policy.reserved.is_empty() {
            return;
        }
        let Err(error) = self.config.fits(self.args.config.as_deref(), (&pcpus, &offline)) else { return };
        let why = format!("{error:#}");
        log(Level::Error, "configuration refused in part, nothing is reserved", &[("why", why.clone())]);
        let refused = "the configuration was refused in part when the machine answered, nothing is reserved";
        self.board.lock().config_refused = Some(format!("{refused}: {why}"));
        self.config.policy.reserved = CpuSet::default();
        self.controller.reconfigure(self.config.policy.clone());
    }

    /// Reads the configuration again; a bad one is refused, and the old one stays.
    pub(in crate::manage) fn reload(&mut self) {
        let read = self.args.read_again();
        let file = self.args.config.as_deref();
        let fits = |config: Config| manage::fits(&config, file, &mut *self.machine).map(|()| config);
        match read.and_then(fits) {
            Ok(mut config) => {
                let note = if self.keeper.is_none() { stand_in(&mut config.policy) } else { None };
                let usual = self.live && self.keeper.is_some();
                let fixed = |c: &Config| (c.machine.clone(), c.apply, c.state.clone(), c.metrics(usual));
                if fixed(&config) != fixed(&self.config) {
                    let what = "machine, apply, state and metrics count from the next start";
                    log(Level::Warning, "configuration", &[("note", what.into())]);
                }
                self.controller.reconfigure(config.policy.clone());
                self.machine.ask_again();
                if let Some(keeper) = &mut self.keeper {
                    keeper.try_again();
                    keeper.may_take(manage::budget(&config.policy));
                }
                self.config.follow(config);
                // What is so by the new one is said anew.
                (self.told, self.planned) = Default::default();
                self.say(note.as_slice());
                self.notes = note.into_iter().collect();
                if !self.config.tell {
                    self.telling = Telling::default();
                }
                self.board.lock().config_refused = None;
                self.fitted = false;
                log(Level::Info, "configuration read again", &[]);
            }
            Err(error) => {
                let why = format!("{error:#}");
                let refused = "the configuration was refused when it was read again, the old one stays";
                self.board.lock().config_refused = Some(format!("{refused}: {why}"));
                log(Level::Error, "configuration refused, the old one stays", &[("why", why)]);
            }
        }
    }
}
