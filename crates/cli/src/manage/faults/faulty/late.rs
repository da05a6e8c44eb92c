//! Guests whose vCPUs are plugged, and that let go late of some that they were asked for, or never.

use std::collections::BTreeMap;
use std::time::Duration;

use corefit_core::machine::{Lever, MachineError, Value};
use corefit_core::{CpuId, CpuSet};

use super::{Faulty, Random};
use crate::manage::failpoint::reach;

/// So often time passes while a guest may yet let go of a vCPU that it was asked for: what is a minute of real ones.
pub(in crate::manage::faults) const MINUTE: u32 = 6;
/// In the midst of what is done at most so many calls go before a vCPU that is due.
const CALLS: u32 = 20;

/// A guest whose vCPUs are plugged.
pub(in crate::manage::faults) struct Late {
    random: Random,
    /// It does not let go at once of all that it is asked for.
    sluggish: bool,
    /// So often time has passed.
    now: u32,
    /// vCPUs that were to be plugged out and are there, and when that was asked last, as the VM itself carries it.
    asked: CpuSet,
    asked_at: Option<u32>,
    /// Those of these that it lets go of: when, and after how many calls.
    due: BTreeMap<u32, (u32, u32)>,
    /// When it was asked, as far as this process knows.
    known: Option<u32>,
}

impl Late {
    pub(in crate::manage::faults) fn new(random: Random) -> Late {
        let (now, asked, asked_at, due, known) = Default::default();
        Late { random, sluggish: true, now, asked, asked_at, due, known }
    }

    /// Its VM was made anew, so nothing was asked of it yet.
    pub(super) fn begins_anew(&mut self) {
        (self.asked, self.asked_at, self.due, self.known) = Default::default();
    }

    /// How often time passes until the guest lets go of no more of them that it was asked for then.
    fn left(&self, at: Option<u32>) -> Option<u32> {
        MINUTE.checked_sub(self.now - at?).filter(|left| *left > 0)
    }

    /// Whether it does not let go of a vCPU at once; it may do so later.
    fn holds(&mut self, vcpu: CpuId) -> bool {
        if !self.sluggish || self.random.below(3) == 0 {
            return false;
        }
        if self.random.below(4) > 0 {
            let (at, calls) = (self.now + 1 + self.random.below(MINUTE - 1), self.random.below(CALLS));
            self.due.entry(vcpu.0).or_insert((at, calls));
        }
        true
    }

    /// The VM has these vCPUs now, whoever did that.
    pub(super) fn has(&mut self, vcpus: &CpuSet) {
        self.asked = self.asked.intersection(vcpus);
        self.due.retain(|vcpu, _| vcpus.contains(CpuId(*vcpu)));
    }

    /// What it says of plugging that took `out`, but for what it holds; `since` it was asked for what is wanted now.
    fn plugged(&mut self, out: &CpuSet, held: Option<CpuId>, since: Option<u32>) -> Result<(), MachineError> {
        if let Some(vcpu) = held {
            self.known = Some(self.now);
            return Err(MachineError::Gone(format!("its guest did not let go of vCPU {}", vcpu.0)));
        }
        if let Some(since) = since.filter(|since| *since < MINUTE) {
            self.known.get_or_insert(self.now - since);
        }
        if !out.is_empty() && since.is_none() {
            self.known = None;
        }
        match self.left(self.known) {
            Some(_) => Err(MachineError::Gone("its guest may let go of a vCPU yet".into())),
            None => Ok(()),
        }
    }
}

impl Faulty {
    /// Guests let go of what is due by now.
    pub(super) fn let_go(&mut self, passes: bool) {
        for vm in self.late.keys().copied().collect::<Vec<_>>() {
            let Some(late) = self.late.get_mut(&vm) else { continue };
            late.now += u32::from(passes);
            let now = late.now;
            let goes = |(at, calls): &(u32, u32)| *at < now || *at == now && *calls == 0;
            let gone: CpuSet =
                late.due.iter().filter(|(_, due)| goes(due)).map(|(vcpu, _)| CpuId(*vcpu)).collect();
            let due = late.due.values_mut().filter(|(at, _)| *at == now);
            due.for_each(|(_, calls)| *calls = calls.saturating_sub(1));
            if gone.is_empty() {
                continue;
            }
            let Ok(Value::Vcpus(there)) = self.read(vm, Lever::Online) else { unreachable!() };
            self.went_late += 1;
            self.write(vm, Lever::Online, &Value::Vcpus(there.difference(&gone))).unwrap();
        }
    }

    /// Plugs vCPUs in, and out one by one, the last first, until its guest does not let go of one.
    pub(super) fn plug(&mut self, vm: u32, want: &CpuSet) -> Result<(), MachineError> {
        let Value::Vcpus(there) = self.read(vm, Lever::Online)? else { unreachable!() };
        let out = there.difference(want);
        let late = self.late.get_mut(&vm).unwrap();
        let since = late.asked_at.filter(|_| late.asked.meets(want)).map(|at| late.now - at);
        if !out.is_empty() {
            (late.asked, late.asked_at) = (late.asked.union(&out), Some(late.now));
        }
        let mut have = there.union(want);
        if have != there {
            self.write(vm, Lever::Online, &Value::Vcpus(have.clone()))?;
            reach("plug-part");
        }
        let mut held = None;
        for vcpu in out.iter().collect::<Vec<_>>().into_iter().rev() {
            if self.late.get_mut(&vm).is_some_and(|late| late.holds(vcpu)) {
                held = Some(vcpu);
                break;
            }
            have = have.difference(&std::iter::once(vcpu).collect());
            self.write(vm, Lever::Online, &Value::Vcpus(have.clone()))?;
            reach("plug-part");
        }
        self.late.get_mut(&vm).unwrap().plugged(&out, held, since)
    }

    /// A guest whose vCPUs are plugged is late from now on with what it is asked for.
    pub(super) fn lags(&mut self, vm: u32) {
        self.late.get_mut(&vm).into_iter().for_each(|late| late.sluggish = true);
    }

    /// From now on guests let go at once of what they are asked for then; what they were asked for before comes when it comes.
    pub(super) fn hurry(&mut self) {
        self.late.values_mut().for_each(|late| late.sluggish = false);
    }

    /// Another process begins, which knows nothing of what the one before asked for but what VMs carry.
    pub(in crate::manage::faults) fn begins(&mut self) {
        self.by_guests.clear();
        self.knows_no_more(|_| true);
    }

    /// The same of some VMs, as of those that go by another id now.
    pub(super) fn knows_no_more(&mut self, of: impl Fn(u32) -> bool) {
        self.late.iter_mut().filter(|(vm, _)| of(**vm)).for_each(|(_, late)| late.known = None);
    }

    /// How long a guest may yet let go of vCPUs, as far as this process knows.
    pub(super) fn lets_go_late(&self, vm: u32) -> Option<Duration> {
        let late = self.late.get(&vm)?;
        Some(Duration::from_secs(60) * late.left(late.known)? / MINUTE)
    }

    /// Whether nobody knows that a guest lets go of no more of its vCPUs.
    pub(in crate::manage::faults) fn may_let_go(&self, vm: u32) -> bool {
        let may = |late: &Late| {
            let asked = late.asked_at.filter(|_| !late.asked.is_empty());
            late.left(asked).or(late.left(late.known)).is_some()
        };
        self.late.get(&vm).is_some_and(may)
    }

    /// Whether it is going to let go of one.
    pub(in crate::manage::faults) fn is_late(&self, vm: u32) -> bool {
        self.late.get(&vm).is_some_and(|late| !late.due.is_empty()) && !self.gone.contains(&vm)
    }

    /// Its vCPUs once it has let go of all that it ever does.
    pub(in crate::manage::faults) fn will_be(&mut self, vm: u32) -> Value {
        let due = self
            .late
            .get(&vm)
            .into_iter()
            .flat_map(|late| late.due.keys())
            .map(|vcpu| CpuId(*vcpu))
            .collect();
        let Value::Vcpus(there) = self.truth(vm, Lever::Online) else { unreachable!() };
        Value::Vcpus(there.difference(&due))
    }

    /// So much time passes that guests have let go of all that they ever do.
    pub(in crate::manage::faults) fn wait(&mut self) {
        (0..=MINUTE).for_each(|_| self.let_go(true));
    }
}
