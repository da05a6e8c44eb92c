//! A control group that keeps its number of pCPUs goes to others of what it had before it was sized, where those that it has are wanted by
//! others by now, for a dwell. Each such change costs it its caches, so it rests longer and longer while one follows the other.

use std::time::Duration;

use super::asked::cpuset;
use super::cpusets::{Crowd, Width};
use super::{Action, Policy, REST, Why, longer};
use crate::machine::VmEstimate;
use crate::{CpuSet, Cpus, Time};

/// What it would have more, pCPUs, at least. Ours.
const WORTH: f64 = 0.5;

/// What is remembered of a group for that.
#[derive(Debug, Default)]
pub(super) struct Apart {
    /// Since when others would be better.
    since: Option<Time>,
    /// When it went last, and how long it rests then.
    went: Option<(Time, Duration)>,
}

impl Apart {
    /// It was not looked at: what was wanted for a while by now is not known.
    pub(super) fn pause(&mut self) {
        self.since = None;
    }

    /// Where it is to be, if that is to be changed now; `lately`: its cpuset was changed too short ago for that.
    pub(super) fn look(
        &mut self,
        crowd: &Crowd,
        (number, vm): (usize, &VmEstimate),
        width: &Width,
        (policy, lately): (&Policy, bool),
        at: Time,
    ) -> Option<Action> {
        let reserved = |set: &CpuSet| set.intersection(&policy.reserved).len();
        let lacks = crowd.lacks(number, vm, &width.now);
        if lacks < WORTH && reserved(&width.now) == 0 {
            self.since = None;
            return None;
        }
        let to = crowd.anew(number, width);
        let would = crowd.lacks(number, vm, &to);
        let leaves = reserved(&to) < reserved(&width.now);
        if lacks - would < WORTH && !leaves {
            self.since = None;
            return None;
        }
        let since = *self.since.get_or_insert(at);
        let rests = self.went.is_some_and(|(then, rest)| at.since(then) < rest);
        if at.since(since) < policy.dwell() || rests || lately {
            return None;
        }
        // Long ago is nothing to wait for.
        let rest = self
            .went
            .filter(|(then, rest)| at.since(*then) < 4 * *rest)
            .map_or(REST, |(_, rest)| longer(rest));
        (self.since, self.went) = (None, Some((at, rest)));
        let why =
            if leaves { Why::Reserved } else { Why::Crowded { lacks: Cpus(lacks), would: Cpus(would) } };
        cpuset(width, vm, to, why)
    }
}
