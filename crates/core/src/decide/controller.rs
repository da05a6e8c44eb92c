//! The corridor, in one place: a snapshot in, a plan out, and what became of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::arbitrate::{Arbitrate, arbiter};
use super::asked::Asked;
use super::demand::{Cut, predictor};
use super::granting::{Given, Others, granted};
use super::known::Known;
use super::lighten::Lightening;
use super::place::{Placing, classes, placer};
use super::shape::{Shaping, Slicing};
use super::size::{Races, sizer};
use super::starving::Faring;
use super::weigh::Weighing;
use super::{AFTER_FAILURE, Action, Arbiter, Forecast, Outcome, Plan, Policy, Sizer, pinned, vain};
use crate::entitle::HostError;
use crate::machine::{
    Fixed, HostEstimate, LeverKind, MachineError, Snapshot, Value, VmId, VmState, estimate, estimate_briefly,
};
use crate::{CpuId, CpuSet, Time, Weight};

/// What others see of VMs is what happens in this time, in the interval if that is shorter, or between two looks if these are further apart: while a number of vCPUs is
/// tried looks are short, and who sleeps a little is idle in one and busy in the next.
const USUAL: Duration = Duration::from_secs(1);

/// What is not there may be later: a guest's agent that forbids it now, or a vCPU that comes back.
const REFUSED: Duration = Duration::from_secs(300);

/// Decides for a host, from one snapshot to the next. Knows the time from [`Snapshot::at`] only.
#[derive(Debug)]
pub struct Controller {
    pub(super) policy: Policy,
    before: Option<Snapshot>,
    /// An earlier one, from which the usual time has not passed yet.
    usual: Option<Snapshot>,
    /// The snapshot by which VMs were last sized, while what came of that is awaited.
    pub(super) sized: Option<Snapshot>,
    pub(super) known: BTreeMap<VmId, Known>,
    pub(super) arbiter: Option<Box<dyn Arbitrate + Send>>,
    pub(super) races: Races,
    weighing: Weighing,
    lightening: Lightening,
    /// What it said last.
    light: Vec<String>,
    placer: Option<Placing>,
    shaping: Shaping,
    slicing: Slicing,
    /// As of the last usual time.
    pub(super) others: Option<Others>,
    /// Those that nobody grants anything.
    pub(super) faring: Faring,
    /// Cpusets of control groups before they were sized.
    pub(super) confined: BTreeMap<VmId, CpuSet>,
    /// vCPUs that VMs had online before they were sized, and what that was made last.
    pub(super) sizes: BTreeMap<VmId, (CpuSet, CpuSet)>,
}

/// What came out of a snapshot.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// What happened since the snapshot before; nothing at the first.
    pub estimate: Option<HostEstimate>,
    /// The same over the usual time: [`Step::usual`].
    pub usual: Usual,
    /// What to change.
    pub plan: Plan,
    /// What people should know of how things are now: the same at each step while it is so, each once.
    pub notes: Vec<String>,
    /// What was granted to whom, where somebody arbitrates.
    pub given: Vec<Given>,
    /// Whether a VM starves: it has got less than it should for half a minute and more. Of those where that is known.
    pub starves: BTreeMap<VmId, bool>,
    /// Of those that nobody grants anything: who gets less than it should now, and may starve later.
    pub short: Vec<String>,
    /// Whose vCPUs stay as they are, and why.
    pub kept: BTreeMap<VmId, String>,
    /// How many pCPUs control groups that are sized had before that.
    pub widths: BTreeMap<VmId, usize>,
    /// When to look again: after the interval, or sooner, while something is tried.
    pub next: Duration,
}

/// What happened in the usual time between two looks.
#[derive(Clone, Debug, Default)]
pub enum Usual {
    /// It has not passed since there was one last.
    #[default]
    NotYet,
    /// What happened since the snapshot before.
    Same,
    /// Of several looks.
    Longer(Box<HostEstimate>),
}

impl Step {
    /// What happened in the usual time, a second (or the interval, if that is shorter) or more, if that has passed since there was one last: while
    /// something is tried steps come sooner.
    #[must_use]
    pub fn usual(&self) -> Option<&HostEstimate> {
        match &self.usual {
            Usual::NotYet => None,
            Usual::Same => self.estimate.as_ref(),
            Usual::Longer(seen) => Some(seen),
        }
    }
}

impl Controller {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(policy: Policy) -> Controller {
        Controller {
            arbiter: arbiter(&policy),
            races: Races::default(),
            weighing: Weighing::default(),
            lightening: Lightening::default(),
            light: Vec::new(),
            placer: placer(&policy),
            shaping: Shaping::default(),
            slicing: Slicing::default(),
            policy,
            before: None,
            usual: None,
            sized: None,
            known: BTreeMap::new(),
            others: None,
            faring: Faring::default(),
            confined: BTreeMap::new(),
            sizes: BTreeMap::new(),
        }
    }

    /// Another policy from now on; what was learned is kept, but for what another stage, or one with other times, learned, and what was
    /// found by trying where nobody may try any more. Who refused is asked again.
    pub fn reconfigure(&mut self, policy: Policy) {
        // How long a turn of max-min takes depends on the dwell.
        let turns = policy.arbitrate == Arbiter::MaxMin && policy.dwell_ms != self.policy.dwell_ms;
        if policy.arbitrate != self.policy.arbitrate || turns {
            self.arbiter = arbiter(&policy);
            for known in self.known.values_mut() {
                (known.granted, known.preempted, known.short) = (None, false, Default::default());
                known.fewer = None;
            }
        }
        // How long decreases wait depends on the dwell.
        let delays = policy.demand == Forecast::Ftds && policy.dwell_ms != self.policy.dwell_ms;
        if (policy.demand, policy.smooth) != (self.policy.demand, self.policy.smooth) || delays {
            for known in self.known.values_mut() {
                (known.demand, known.fewer) = (predictor(policy.demand, &policy), None);
            }
        }
        if policy.smooth != self.policy.smooth {
            self.known.values_mut().for_each(|known| known.cut = Cut::new(&policy));
        }
        let times = (policy.probe_ms, policy.dwell_ms) != (self.policy.probe_ms, self.policy.dwell_ms);
        let no_more = policy.searches == 0 && self.policy.searches > 0;
        if times || no_more {
            // They are told once; who is trying something tries anew. Who may not try has the number of who never did.
            for known in self.known.values_mut().filter(|known| times || known.sizer.0 == Sizer::Corefit) {
                (known.sizer.1, known.fewer) = (sizer(known.sizer.0, &policy), None);
                known.trying = false;
            }
            self.races = Races::default();
        }
        match &mut self.placer {
            Some(placer) if policy.place == self.policy.place => placer.try_again(),
            other => *other = placer(&policy),
        }
        for known in self.known.values_mut() {
            (known.refused, known.starved, known.not_before) = (None, (0, None), Time(0));
            (known.others, known.vain) = ((Duration::ZERO, Time(0)), Duration::ZERO);
        }
        self.weighing.try_again();
        self.lightening.try_again();
        self.shaping.try_again();
        self.slicing.try_again();
        self.light.clear();
        (self.policy, self.others) = (policy, None);
    }

    /// What owners ask for their VMs counts from now on, besides the policy that was given. Nothing else begins anew.
    pub fn heed(&mut self, given: &Policy, vms: &[VmState]) {
        self.policy = given.with_wishes(vms);
    }

    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whether numbers of a VM's vCPUs are tried now.
    #[must_use]
    pub fn tries(&self, vm: &VmId) -> bool {
        self.known.get(vm).is_some_and(|known| known.trying)
    }

    /// What to change, by what happened since the last call. The first call has no plan.
    ///
    /// # Errors
    /// If the snapshot has numbers that no host has.
    pub fn step(&mut self, now: &Snapshot) -> Result<Step, HostError> {
        let before = self.before.replace(now.clone());
        let Some(before) = before.filter(|before| before.at < now.at) else {
            // Nothing comes of it yet, but a window begins.
            self.shaping.step(now, &self.policy);
            self.slicing.step(now, &self.policy, &mut Vec::new());
            return Ok(Step { next: self.policy.probe(), ..Step::default() });
        };
        let seen = estimate(&before, now)?;
        let mut step = Step { next: self.policy.interval(), ..Step::default() };
        let here: BTreeSet<&VmId> = now.vms.iter().map(|vm| &vm.id).collect();
        // Who may only have been missed is still there.
        self.known.retain(|id, known| now.may_lack(&known.name) || here.contains(id));
        if let Some(arbiter) = &mut self.arbiter {
            arbiter.forget(&|id| self.known.contains_key(id));
        }
        let longer = self.usual.take();
        let from = longer.as_ref().unwrap_or(&before);
        // Two looks are never quite as far apart as they should be.
        let due =
            self.known.is_empty() || now.at.since(from.at) >= self.policy.interval().min(USUAL).mul_f64(0.9);
        let over = longer.as_ref().filter(|_| due).map(|from| estimate(from, now)).transpose()?;
        let usual = due.then(|| (from, over.as_ref().unwrap_or(&seen)));
        let asked = self.ask(&before, &seen, usual, &mut step);
        let (requests, usable) = self.requests(&asked, &seen);
        let usual = usual.map(|(_, usual)| usual);
        let grants = self.arbitrate(&asked, &requests, &usable, (&seen, usual), &mut step);
        self.fares(usual, &mut step);
        step.notes.extend(self.approximates(&asked, &seen));
        step.notes.extend(vain::notes(&self.policy, now));
        step.notes.extend(pinned::notes(now, &self.policy));
        if self.awaits(&asked, &seen) {
            step.next = step.next.min(self.policy.probe());
            self.sized.get_or_insert_with(|| before.clone());
        } else if let Some(sized) = self.sized.take() {
            // All that happened meanwhile.
            let all = estimate_briefly(&sized, now)?;
            step.plan.actions = self.size(&asked, &grants, &sized, &all, &mut step);
        } else {
            step.plan.actions = self.size(&asked, &grants, &before, &seen, &mut step);
        }
        step.plan.actions.extend(self.ask_again(&seen, &step.kept));
        let grants = grants.filter(|_| self.policy.weighs()).unwrap_or_default();
        let granted = granted(&self.policy, &asked, (&requests.0, &requests.1), &grants);
        // What is done while numbers of vCPUs are tried says nothing of weights.
        let tells = usual.filter(|_| !self.known.values().any(|known| known.trying));
        step.plan.actions.extend(self.weighing.step((&seen, tells), &granted, &self.policy));
        step.notes.extend(self.weighing.notes().iter().cloned());
        if let Some(usual) = usual {
            self.light.clear();
            step.plan.actions.extend(self.lightening.step(usual, &self.policy, &mut self.light));
        }
        step.notes.extend(self.light.iter().cloned());
        let policy = &self.policy;
        if let Some(placer) = &mut self.placer {
            let tried = self.known.iter().filter(|(_, known)| known.trying).map(|(id, _)| id);
            let tried: BTreeSet<&VmId> = tried.collect();
            let after = after(&seen, &asked, &step.plan.actions);
            let after = after.as_ref().unwrap_or(&seen);
            // What numbers of vCPUs bring is not to be measured under other pins each time.
            step.plan.actions.extend(if tried.is_empty() {
                placer.place(now, after, policy)
            } else {
                placer.wait(now, after, policy, &tried)
            });
            step.notes.extend(placer.notes(now.at));
            step.notes.extend(classes(policy, &seen));
        }
        step.plan.actions.extend(self.shaping.step(now, policy));
        step.plan.actions.extend(self.slicing.step(now, policy, &mut step.notes));
        // Some stages do not ask.
        let vms: BTreeMap<&VmId, &VmState> = now.vms.iter().map(|vm| (&vm.id, vm)).collect();
        let free =
            |action: &Action| vms.get(&action.vm).is_some_and(|vm| vm.fixed(action.lever.kind()).is_none());
        step.plan.actions.retain(free);
        let mut said = BTreeSet::new();
        step.notes.retain(|note| said.insert(note.clone()));
        step.usual = match over {
            Some(over) => Usual::Longer(Box::new(over)),
            None if due => Usual::Same,
            None => Usual::NotYet,
        };
        step.estimate = Some(seen);
        self.usual = (!due).then(|| longer.unwrap_or(before));
        Ok(step)
    }

    /// What became of the actions of the last plan.
    pub fn told(&mut self, outcomes: &[Outcome]) {
        let at = self.before.as_ref().map_or(Time(0), |before| before.at);
        for outcome in outcomes {
            self.shaping.told(outcome, at);
            self.slicing.told(outcome, at);
            self.weighing.told(outcome, at);
            if let Some(placer) = &mut self.placer {
                placer.told(outcome);
            }
            // Of what was not tried the others have nothing to remember.
            if matches!(outcome.result, Err(MachineError::Untried(_))) {
                continue;
            }
            self.lightening.told(outcome, at);
            let others = self.brings_others(&outcome.action);
            let Some(known) = self.known.get_mut(&outcome.action.vm) else { continue };
            if !known.sized_by(outcome.action.lever) {
                continue;
            }
            match &outcome.result {
                Ok(_) if outcome.is_in_vain() => {
                    (known.wish, known.away) = (None, None);
                    // Whoever searches asks for a number so often only, and may get others.
                    if !known.trying {
                        known.vain = (2 * known.vain).clamp(AFTER_FAILURE, REFUSED);
                        known.not_before = at + known.vain;
                    }
                    if others {
                        known.rest_of_others(at);
                    }
                }
                Ok(now) => {
                    (known.changed, known.away, known.vain) = (Some(at), None, Duration::ZERO);
                    if others && *now == outcome.action.to {
                        known.others = (Duration::ZERO, Time(0));
                    }
                    if let Some(fewer) = known.wish {
                        known.calm.changes(fewer, &self.policy, at);
                    }
                }
                Err(MachineError::Gone(why)) => {
                    (known.not_before, known.wish, known.trying) = (at + AFTER_FAILURE, None, false);
                    // A control group that is gone does not come back.
                    known.away = (!known.by_cpuset).then(|| why.clone());
                    // It may be these alone: the rest can come meanwhile.
                    if others {
                        known.rest_of_others(at);
                    }
                }
                Err(error) => {
                    // An agent that makes no sense may do so later.
                    let lacks = matches!(error, MachineError::Unsupported(_) | MachineError::Malformed(_));
                    let until = if lacks { at + REFUSED } else { Time(u64::MAX) };
                    (known.refused, known.away) = (Some((until, error.to_string())), None);
                }
            }
        }
    }

    /// Whether vCPUs are to come online that were offline before corefit.
    fn brings_others(&self, action: &Action) -> bool {
        let (Some(Value::Vcpus(from)), Value::Vcpus(to)) = (&action.from, &action.to) else { return false };
        let had = self.sizes.get(&action.vm).map_or(from, |(had, _)| had);
        !to.difference(&from.union(had)).is_empty()
    }

    /// What VMs weighed before this daemon, or an earlier one, changed it: all of them, each time before a step.
    pub fn weighed_before(&mut self, weights: BTreeMap<VmId, Weight>) {
        self.weighing.before(weights);
    }

    /// What cpusets control groups had before this daemon, or an earlier one, changed them (empty: that of the group above): all of
    /// them, each time before a step.
    pub fn confined_before(&mut self, cpusets: BTreeMap<VmId, CpuSet>) {
        self.confined = cpusets;
    }

    /// What vCPUs VMs had online before this daemon, or an earlier one, changed that, and what they were made to have last: all of
    /// them, each time before a step.
    pub fn sized_before(&mut self, vcpus: BTreeMap<VmId, (CpuSet, CpuSet)>) {
        self.sizes = vcpus;
    }
}

/// The host without the vCPUs that these actions take offline, which need no place any more, and with control groups that are sized left
/// where they are, for a cpuset that is sized is chosen with that; `None` if there are none of either.
fn after(seen: &HostEstimate, asked: &[Asked], actions: &[Action]) -> Option<HostEstimate> {
    let mut after = None;
    for asked in asked.iter().filter(|asked| asked.width.is_some()) {
        let after: &mut HostEstimate = after.get_or_insert_with(|| seen.clone());
        let reason = "its cpuset is sized".into();
        after.vms[asked.number].seen.fixed.push(Fixed { lever: LeverKind::Affinity, reason });
    }
    for action in actions {
        let Value::Vcpus(stay) = &action.to else { continue };
        let after: &mut HostEstimate = after.get_or_insert_with(|| seen.clone());
        let vm = after.vms.iter_mut().find(|vm| vm.seen.id == action.vm);
        for (number, vcpu) in (0..).zip(vm.into_iter().flat_map(|vm| &mut vm.seen.vcpus)) {
            vcpu.online &= stay.contains(CpuId(number));
        }
    }
    after
}
