//! Who may be resized: the answer to each process that begins its first parallel region.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use clap::ValueEnum;
use corefit_linux::identity::Identifier;
use corefit_linux::page::{Orders, Process, TeamPage};
use serde::Serialize;

use crate::preload::OURS;
use crate::verdicts::{Store, Verdict};

/// Which programs may be resized while they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Resize {
    /// Those that enable OpenMP dynamic adjustment, or that `corefit certify` found safe
    Safe,
    /// All: you vouch that results do not depend on team sizes
    Always,
    /// None: launch size only, and no spinning while there are too few CPUs
    Never,
}

/// What one process may have done to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Grant {
    /// Every region, up to the largest team tried.
    Certified {
        /// That team.
        most: u32,
    },
    /// Every region: the user vouches for it.
    Vouched,
    /// Regions with OpenMP dynamic adjustment enabled.
    IfDynamic,
    /// None: `--resize never`.
    Nothing,
    /// None: certification found that results depend on team sizes.
    Refused,
}

impl Grant {
    /// Whether orders about team sizes have an effect; `dynamic`: on a region with OpenMP dynamic adjustment.
    pub(crate) fn may_be_resized(self, dynamic: bool) -> bool {
        match self {
            Grant::Certified { .. } | Grant::Vouched => true,
            Grant::IfDynamic => dynamic,
            Grant::Nothing | Grant::Refused => false,
        }
    }

    /// Orders for a process that should run at most `team` threads (`None`: no limit).
    pub(crate) fn orders(self, team: Option<u32>, quiet: bool) -> Orders {
        let team = match self {
            Grant::Certified { most } => Some(team.map_or(most, |t| t.min(most))),
            _ => team,
        };
        Orders {
            team: team.map(|t| u16::try_from(t).unwrap_or(u16::MAX)),
            any: matches!(self, Grant::Certified { .. } | Grant::Vouched),
            dynamic: self == Grant::IfDynamic,
            quiet,
            ..Orders::default()
        }
    }
}

/// The grants given so far, by slot, process id and serial: another program that the process
/// becomes by exec does not inherit one.
pub(crate) struct Grants {
    resize: Resize,
    store: Store,
    /// Files hashed before the launch need not be hashed again when the program registers.
    identifier: Mutex<Identifier>,
    given: Mutex<BTreeMap<(usize, u32, u32), Grant>>,
    /// Threads ordered for a process that registers now.
    team: AtomicU32,
    /// Whether regions are counted whatever else is ordered.
    counts: AtomicBool,
    /// Whether sequential work is moved over the CPUs.
    rotates: AtomicBool,
    stop: AtomicBool,
}

impl Grants {
    pub(crate) fn new(resize: Resize, store: Store) -> Grants {
        Grants {
            resize,
            identifier: Mutex::new(store.identifier()),
            store,
            given: Mutex::default(),
            team: AtomicU32::new(1),
            counts: AtomicBool::new(false),
            rotates: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        }
    }

    /// The verdict that a launch of `command` as `program` may turn out to have.
    pub(crate) fn expects(&self, program: &Path, command: &[OsString]) -> Option<Verdict> {
        if self.store.is_empty() {
            return None;
        }
        let mut identifier = self.identifier.lock().unwrap_or_else(PoisonError::into_inner);
        self.store.expects(&identifier.launch(program, command).ok()?)
    }

    /// What a process is granted before it has been looked at, and whether it has to wait.
    pub(crate) fn at_first(&self) -> (Grant, bool) {
        match self.resize {
            Resize::Always => (Grant::Vouched, false),
            Resize::Safe => (Grant::IfDynamic, !self.store.is_empty()),
            Resize::Never => (Grant::Nothing, false),
        }
    }

    /// The grant of a process.
    pub(crate) fn of(&self, process: &Process) -> Grant {
        let given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let known = given.get(&(process.slot, process.pid, process.serial)).copied();
        known.unwrap_or_else(|| self.at_first().0)
    }

    /// Threads ordered for processes that register from now on.
    pub(crate) fn set_team(&self, team: u32) {
        self.team.store(team, Ordering::Relaxed);
    }

    /// Whether regions are to be counted whatever else is ordered.
    pub(crate) fn set_counts(&self, counts: bool) {
        self.counts.store(counts, Ordering::Relaxed);
    }

    /// Whether sequential work is to be moved over the CPUs.
    pub(crate) fn set_rotates(&self, rotates: bool) {
        self.rotates.store(rotates, Ordering::Relaxed);
    }

    /// Whether it is.
    pub(crate) fn rotates(&self) -> bool {
        self.rotates.load(Ordering::Relaxed)
    }

    /// As [`Grant::orders`]; regions of who keeps his threads are counted if somebody wants to know.
    pub(crate) fn orders(&self, grant: Grant, team: Option<u32>, quiet: bool) -> Orders {
        let count = self.counts.load(Ordering::Relaxed) && !grant.may_be_resized(false);
        Orders { count, rotate: self.rotates(), ..grant.orders(team, quiet) }
    }

    /// Answers registrations until [`Grants::stop`]; runs in a thread of its own, since a
    /// program waits for the answer.
    pub(crate) fn serve(&self, page: &TeamPage) {
        let mut seen = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let now = page.wait_registration(seen, Duration::from_secs(1));
            if now == seen || self.stop.load(Ordering::Relaxed) {
                continue;
            }
            seen = now;
            for process in page.processes() {
                let key = (process.slot, process.pid, process.serial);
                let given = || self.given.lock().unwrap_or_else(PoisonError::into_inner);
                if given().contains_key(&key) {
                    continue;
                }
                let grant = self.decide(process.pid);
                given().insert(key, grant);
                if !page.is_current(&process) {
                    continue; // another program registered meanwhile: it is looked at next
                }
                let team = self.team.load(Ordering::Relaxed);
                page.publish(process.slot, self.orders(grant, Some(team), false));
                page.answer(process.slot);
            }
            page.make_room();
        }
    }

    /// Ends [`Grants::serve`] of this page.
    pub(crate) fn stop(&self, page: &TeamPage) {
        self.stop.store(true, Ordering::Relaxed);
        page.interrupt();
    }

    fn decide(&self, pid: u32) -> Grant {
        let (grant, look) = self.at_first();
        if !look {
            return grant;
        }
        let mut identifier = self.identifier.lock().unwrap_or_else(PoisonError::into_inner);
        let identity = identifier.process(pid, OURS);
        match identity.ok().and_then(|i| self.store.find(&i.hash)) {
            Some(verdict) if verdict.resizable => Grant::Certified { most: verdict.most },
            // Found to compute something else, whatever it says of dynamic adjustment.
            Some(_) => Grant::Refused,
            None => grant,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_a_certified_one_becomes_by_exec_does_not_inherit_its_grant() {
        let before = Process {
            slot: 3,
            pid: 4711,
            serial: 1,
            requested: 4,
            team: 4,
            dynamic: false,
            gomp: true,
            kmp: false,
            regions: 1,
            resized: 0,
            moves: 0,
            bound: 0,
        };
        let grants = Grants::new(Resize::Safe, Store::open());
        let certified = Grant::Certified { most: 4 };
        grants.given.lock().unwrap().insert((3, 4711, 1), certified);
        assert_eq!(grants.of(&before), certified);
        assert_eq!(grants.of(&Process { serial: 2, ..before }), Grant::IfDynamic);
    }

    #[test]
    fn regions_are_counted_of_who_may_keep_his_threads_if_somebody_wants_to_know() {
        let grants = Grants::new(Resize::Safe, Store::open());
        let counts = |grant| grants.orders(grant, Some(2), false).count;
        assert!(!counts(Grant::Nothing), "nobody wants to know");
        grants.set_counts(true);
        assert!(counts(Grant::Nothing) && counts(Grant::Refused) && counts(Grant::IfDynamic));
        assert!(!counts(Grant::Certified { most: 4 }) && !counts(Grant::Vouched));
    }
}
