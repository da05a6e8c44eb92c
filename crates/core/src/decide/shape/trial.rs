//! Trying a shape, and judging it by what it brought.
//!
//! ```text
//!            a tool wishes           applied            window over
//! Watching ──────────────▶ (told?) ─────────▶ Trying ─────────────────▶ gained: Watching, with what is set
//!    ▲                                           │
//!    └──── the tool rests, twice as long ◀── undone: no gain, or a part of it failed
//! ```
//!
//! A window is as long as the dwell, as ten periods, and as the time between two changes of a lever. Gained is: work
//! grew by half the deadband or, where nobody counts work, that CPU time did or half of what was lost is saved.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::super::{Action, Fate, Outcome, Policy, Rule, Shaper, Why, longer};
use super::{Timeslices, Tool, Wish, grew, running, tools};
use crate::machine::timeslices::limit_of;
use crate::machine::{Lever, Limit, Snapshot, Value, VmId, VmState};
use crate::{CpuId, CpuSet, Time};

/// Fewer periods tell little. Ours.
const LEAST_PERIODS: u64 = 10;

/// The stage that shapes timeslices: what it remembers of each VM.
#[derive(Debug, Default)]
pub(crate) struct Shaping {
    vms: BTreeMap<VmId, Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// What the limits were before they were ours, and what they were made.
    base: BTreeMap<Lever, Limit>,
    wrote: BTreeMap<Lever, Limit>,
    /// What was to be written, while nobody says whether it will be yet.
    late: BTreeMap<Lever, Limit>,
    /// Its vCPUs that were online then.
    online: CpuSet,
    /// By what it was shaped last.
    by: Option<By>,
    /// Begin of the window.
    mark: Option<(Time, VmState)>,
    trying: Option<Trial>,
    /// What was wished at the last step.
    asked: Option<Trial>,
    rests: BTreeMap<Tool, (Duration, Time)>,
    not_before: Time,
    failed: bool,
    refused: bool,
}

/// A shaper, and how long it may have vCPUs stand still, ms, where it uses that.
type By = (Shaper, Option<u64>);

/// A tool in use.
#[derive(Clone, Debug)]
struct Trial {
    /// `None`: something is put back.
    tool: Option<Tool>,
    before: Score,
    wishes: Vec<Wish>,
}

#[derive(Clone, Copy, Debug)]
struct Score {
    lost: f64,
    used: f64,
    progress: Option<f64>,
}

impl Score {
    fn of(seen: &Timeslices) -> Score {
        let lost = seen.lost_within() + seen.lost_across();
        Score { lost, used: seen.used, progress: seen.progress }
    }

    fn gained(&self, before: &Score, deadband: f64) -> bool {
        match self.progress.zip(before.progress) {
            Some((now, then)) => grew(now, then, deadband),
            None => grew(self.used, before.used, deadband) || self.lost <= before.lost / 2.0,
        }
    }
}

impl Shaping {
    /// Which limits to change, by what was seen until now.
    pub(crate) fn step(&mut self, now: &Snapshot, policy: &Policy) -> Vec<Action> {
        let mut actions = Vec::new();
        for vm in running(&mut self.vms, now, |known| known.mark = None) {
            let rule = policy.of(&vm.name);
            let shaper = shaper(&rule, policy);
            if shaper == Shaper::None && !self.vms.contains_key(&vm.id) {
                continue;
            }
            let known = self.vms.entry(vm.id.clone()).or_default();
            let (wishes, why) = known.step(now.at, vm, shaper, &rule, policy);
            actions.extend(wishes.iter().map(|wish| action(vm, wish, why.clone())));
        }
        actions
    }

    /// Who refused is asked again.
    pub(crate) fn try_again(&mut self) {
        self.vms.values_mut().for_each(|known| known.refused = false);
    }

    /// What became of an action of the last step.
    pub(crate) fn told(&mut self, outcome: &Outcome, at: Time) {
        let Action { vm, lever, .. } = &outcome.action;
        let Some(known) = self.vms.get_mut(vm) else { return };
        let Some(asked) = known.asked.as_ref().filter(|asked| asked.wishes.iter().any(|w| w.lever == *lever))
        else {
            return;
        };
        match outcome.fate(at) {
            Fate::Is(Value::Limit(limit)) => {
                known.mark = None;
                known.wrote.insert(*lever, *limit);
                known.late.remove(lever);
                let whole = |wish: &Wish| wish.lever != *lever || wish.to == *limit;
                if asked.tool.is_none() || asked.wishes.iter().all(whole) {
                    known.trying = Some(asked.clone());
                } else {
                    // Half of it is no shape.
                    (known.failed, known.refused) = (true, true);
                }
            }
            Fate::Is(_) => {}
            Fate::Away(until) => {
                (known.failed, known.not_before) = (true, until);
                if let Value::Limit(limit) = outcome.action.to {
                    known.late.insert(*lever, limit);
                }
            }
            // What was set of the others is no shape without this.
            Fate::Later => known.failed = true,
            Fate::Refused => {
                (known.failed, known.refused) = (true, true);
                // What it is now is not known, nor can it be put back from here.
                known.wrote.remove(lever);
            }
        }
    }
}

impl Known {
    fn step(
        &mut self,
        at: Time,
        vm: &VmState,
        shaper: Shaper,
        rule: &Rule,
        policy: &Policy,
    ) -> (Vec<Wish>, Why) {
        let nothing = (Vec::new(), Why::Unknown);
        self.asked = None;
        let by = (shaper, rule.latency_ms.filter(|_| tools(shaper).contains(&Tool::Period)));
        // What another one set none of its tools would ever change.
        self.failed |= self.by.replace(by).is_some_and(|last| last != by);
        if at < self.not_before {
            return nothing;
        }
        let limits = limits(vm);
        self.settle(&limits, vm);
        let vcpus_changed = self.online != vm.online();
        if shaper == Shaper::None || vcpus_changed || std::mem::take(&mut self.failed) {
            // What was measured is of another VM, so to speak.
            let why = if shaper == Shaper::None { Why::Unshaped } else { Why::Anew };
            return (self.put_back(&limits, vm), why);
        }
        let tools = if self.refused { &[] } else { tools(shaper) };
        let Some((then, before)) = self.mark.clone() else {
            self.mark = Some((at, vm.clone()));
            return nothing;
        };
        if at.since(then) < window(&limits, policy) {
            return nothing;
        }
        self.mark = Some((at, vm.clone()));
        let mut seen = Timeslices::between(&before, then, vm, at);
        seen.limits.retain(|slices| !slices.fixed);
        if seen.limits.is_empty() {
            return nothing;
        }
        if let Some(trial) = self.trying.take()
            && let Some(tool) = trial.tool
            && !Score::of(&seen).gained(&trial.before, policy.deadband)
        {
            let rest = longer(self.rests.get(&tool).map_or(Duration::ZERO, |(rest, _)| *rest));
            self.rests.insert(tool, (rest, at + rest));
            let back: Vec<Wish> = trial
                .wishes
                .iter()
                .rev()
                .filter(|wish| limits.get(&wish.lever).is_some_and(|now| *now != wish.from))
                .map(|wish| Wish { from: limits[&wish.lever], to: wish.from, ..*wish })
                .collect();
            return (self.ask(None, &seen, back), Why::NoGain);
        }
        let rests = |tool: &Tool| self.rests.get(tool).is_some_and(|(_, until)| at < *until);
        for tool in tools.iter().copied().filter(|tool| !rests(tool)) {
            let wishes = tool.wishes(&seen, self.total(), rule, policy.deadband);
            if !wishes.is_empty() {
                let why = tool.why(&seen, rule);
                return (self.ask(Some(tool), &seen, wishes), why);
            }
        }
        nothing
    }

    fn ask(&mut self, tool: Option<Tool>, seen: &Timeslices, wishes: Vec<Wish>) -> Vec<Wish> {
        self.asked = Some(Trial { tool, before: Score::of(seen), wishes: wishes.clone() });
        wishes
    }

    /// Whose the limits are: each that is not as we made it is somebody else's, and what we begin with.
    fn settle(&mut self, limits: &BTreeMap<Lever, Limit>, vm: &VmState) {
        self.late.retain(|lever, late| {
            let came = limits.get(lever) == Some(late);
            self.wrote.extend(came.then_some((*lever, *late)));
            !came
        });
        let known = |lever: &Lever| self.wrote.get(lever).or_else(|| self.base.get(lever));
        let all: BTreeSet<Lever> = self.base.keys().chain(limits.keys()).copied().collect();
        let theirs: Vec<Lever> = all.into_iter().filter(|lever| known(lever) != limits.get(lever)).collect();
        for lever in &theirs {
            self.wrote.remove(lever);
            match limits.get(lever) {
                Some(limit) => self.base.insert(*lever, *limit),
                None => self.base.remove(lever),
            };
        }
        if !theirs.is_empty() {
            // What is tried of the others can be judged no more.
            self.failed |= self.trying.take().is_some_and(|trial| trial.tool.is_some());
            self.mark = None;
            if self.wrote.is_empty() {
                self.online = vm.online();
            }
        }
    }

    /// Everything as it was before it was ours.
    fn put_back(&mut self, limits: &BTreeMap<Lever, Limit>, vm: &VmState) -> Vec<Wish> {
        let back = |(lever, limit): (&Lever, &Limit)| {
            let to = self.base.get(lever).filter(|base| *base != limit && self.wrote.contains_key(lever))?;
            Some(Wish { lever: *lever, from: *limit, to: *to })
        };
        let mut wishes: Vec<Wish> = limits.iter().filter_map(back).collect();
        wishes.sort_by_key(|wish| wish.to.quota_us > wish.from.quota_us);
        (self.trying, self.mark) = (None, None);
        if wishes.is_empty() {
            // They are as they were.
            (self.base, self.wrote, self.online) = (limits.clone(), BTreeMap::new(), vm.online());
        }
        self.ask(None, &Timeslices::default(), wishes)
    }

    /// CPUs that the quotas of vCPUs that are online allow together, before they are ours: at most one each.
    #[expect(clippy::cast_precision_loss, reason = "microseconds of a period")]
    fn total(&self) -> f64 {
        let cpus =
            |limit: &Limit| limit.quota_us.map_or(0.0, |us| (us as f64 / limit.period_us as f64).min(1.0));
        let online = |lever: &Lever| matches!(lever, Lever::VcpuQuota(v) if self.online.contains(CpuId(*v)));
        self.base.iter().filter(|(lever, _)| online(lever)).map(|(_, limit)| cpus(limit)).sum()
    }
}

/// How long a VM is watched before its limits are shaped; `None` if they are not to be, or there are none.
#[must_use]
pub fn shaped_after(vm: &VmState, policy: &Policy) -> Option<Duration> {
    let limits = limits(vm);
    let shapes = !tools(shaper(&policy.of(&vm.name), policy)).is_empty();
    (shapes && !limits.is_empty()).then(|| window(&limits, policy))
}

fn shaper(rule: &Rule, policy: &Policy) -> Shaper {
    if rule.exclude == Some(true) { Shaper::None } else { rule.shape.unwrap_or(policy.shape) }
}

/// The limits that are set, of the VM and of its vCPUs.
fn limits(vm: &VmState) -> BTreeMap<Lever, Limit> {
    let whole = vm.quota.iter().map(|quota| (Lever::Quota, limit_of(quota)));
    let vcpus = (0..).zip(&vm.vcpus);
    let vcpus = vcpus.filter_map(|(n, vcpu)| Some((Lever::VcpuQuota(n), limit_of(vcpu.quota.as_ref()?))));
    whole.chain(vcpus).filter(|(_, limit)| limit.quota_us.is_some()).collect()
}

fn window(limits: &BTreeMap<Lever, Limit>, policy: &Policy) -> Duration {
    let period_us = limits.values().map(|limit| limit.period_us).max().unwrap_or(0);
    let periods = Duration::from_micros(period_us.saturating_mul(LEAST_PERIODS));
    policy.window().max(periods)
}

fn action(vm: &VmState, wish: &Wish, why: Why) -> Action {
    Action::of(vm, wish.lever, Some(Value::Limit(wish.from)), Value::Limit(wish.to), why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Fixed, LeverKind, MachineError, VcpuState};
    use crate::{Quota, Throttled};

    fn vm(quotas: [u64; 4]) -> VmState {
        let vcpu = |quota_us| {
            let quota =
                Quota { quota_us: Some(quota_us), period_us: 100_000, burst_us: 0, source: String::new() };
            VcpuState { online: true, quota: Some(quota), ..VcpuState::default() }
        };
        VmState { vcpus: quotas.map(vcpu).to_vec(), ..VmState::default() }
    }

    #[test]
    fn what_was_set_in_part_is_undone_and_not_tried_again() {
        let limit = |quota_us, period_us| Limit { quota_us: Some(quota_us), period_us, burst_us: 0 };
        let (from, to, became) = (limit(9_000, 100_000), limit(15_267, 169_633), limit(9_000, 169_633));
        let quota = |limit: Limit| Quota {
            quota_us: limit.quota_us,
            period_us: limit.period_us,
            burst_us: 0,
            source: String::new(),
        };
        let vm = |limit| VmState { id: VmId("a".into()), quota: Some(quota(limit)), ..vm([100_000; 4]) };
        let wish = Wish { lever: Lever::Quota, from, to };
        let tool = tools(Shaper::LongPeriod).first().copied();
        let asked =
            Trial { tool, before: Score { lost: 0.5, used: 1.0, progress: None }, wishes: vec![wish] };
        let known = Known {
            base: limits(&vm(from)),
            online: vm(from).online(),
            asked: Some(asked),
            ..Known::default()
        };
        let mut shaping = Shaping { vms: BTreeMap::from([(VmId("a".into()), known)]) };
        let action = super::action(&vm(from), &wish, Why::NoGain);
        shaping.told(&Outcome { action, result: Ok(Value::Limit(became)) }, Time(0));
        let policy = Policy { shape: Shaper::LongPeriod, ..Policy::default() };
        let mut step = |limit, s: u64| {
            let now = Snapshot { at: Time(s * 1_000_000_000), vms: vec![vm(limit)], ..Snapshot::default() };
            shaping.step(&now, &policy).into_iter().map(|action| action.to).collect::<Vec<_>>()
        };
        assert_eq!(step(became, 1), [Value::Limit(from)]);
        assert!((2..200).all(|s| step(from, s).is_empty()));
    }

    #[test]
    fn a_limit_that_cannot_be_changed_from_here_is_not_shaped() {
        let seen = |s: u64, fixed: bool| {
            let mut seen = vm([100_000; 4]);
            seen.quota = Some(Quota {
                quota_us: Some(50_000),
                period_us: 100_000,
                burst_us: 0,
                source: String::new(),
            });
            seen.throttled =
                Some(Throttled { periods: 10 * s, throttled_periods: s, throttled_ns: s * 200_000_000 });
            seen.vcpus.iter_mut().for_each(|vcpu| vcpu.counters.run_ns = Some(s * 75_000_000));
            let reason = String::new();
            seen.fixed.extend(fixed.then_some(Fixed { lever: LeverKind::Quota, reason }));
            seen
        };
        for fixed in [false, true] {
            let mut known = Known::default();
            let mut step = |s: u64| {
                let at = Time(s * 1_000_000_000);
                known.step(at, &seen(s, fixed), Shaper::Burst, &Rule::default(), &Policy::default()).0.len()
            };
            assert_eq!([1, 2, 3, 1000].map(&mut step), [0, 0, 0, usize::from(!fixed)]);
        }
    }

    #[test]
    fn a_quota_above_its_period_is_one_cpu_of_the_total() {
        let seen = vm([4_000_000, 10_000, 10_000, 10_000]);
        let known = Known { base: limits(&seen), online: seen.online(), ..Known::default() };
        assert!((known.total() - 1.3).abs() < 1e-9, "{}", known.total());
    }

    /// libvirt lets it wait behind a job of the domain's.
    #[test]
    fn a_limit_that_is_written_late_is_ours() {
        let limit = |quota_us| Limit { quota_us: Some(quota_us), period_us: 100_000, burst_us: 0 };
        let (before, after) = (vm([50_000; 4]), vm([50_000, 50_000, 50_000, 80_000]));
        let lever = Lever::VcpuQuota(3);
        let wish = Wish { lever, from: limit(50_000), to: limit(80_000) };
        let tool = tools(Shaper::Proportional).first().copied();
        let asked =
            Trial { tool, before: Score { lost: 0.5, used: 1.0, progress: None }, wishes: vec![wish] };
        let known =
            Known { base: limits(&before), online: before.online(), asked: Some(asked), ..Known::default() };
        let mut shaping = Shaping { vms: BTreeMap::from([(before.id.clone(), known)]) };
        let action = super::action(&before, &wish, Why::NoGain);
        shaping.told(&Outcome { action, result: Err(MachineError::Gone("no answer".into())) }, Time(0));
        let policy = Policy { shape: Shaper::Proportional, ..Policy::default() };
        let now = Snapshot { at: Time(20_000_000_000), vms: vec![after], ..Snapshot::default() };
        let back = shaping.step(&now, &policy);
        let to: Vec<_> = back.iter().map(|action| (action.lever, action.to.clone())).collect();
        assert_eq!(to, [(lever, Value::Limit(limit(50_000)))]);
    }

    #[test]
    fn what_another_shaper_set_or_for_another_latency_is_put_back_once() {
        let (before, ours) = (vm([50_000; 4]), vm([100_000, 33_000, 33_000, 33_000]));
        let policy = Policy::default();
        let tolerates = |latency_ms| Rule { latency_ms, ..Rule::default() };
        for (from, to, all_back) in [
            ((Shaper::Proportional, None), (Shaper::Slice, None), true),
            ((Shaper::Proportional, None), (Shaper::Burst, None), true),
            ((Shaper::LongPeriod, Some(500)), (Shaper::LongPeriod, Some(20)), true),
            ((Shaper::LongPeriod, Some(500)), (Shaper::LongPeriod, None), true),
            ((Shaper::Proportional, Some(500)), (Shaper::Proportional, None), false),
        ] {
            let mut known = Known { base: limits(&before), online: before.online(), ..Known::default() };
            let step = |at, seen: &VmState, (shaper, latency), known: &mut Known| {
                known.step(Time(at), seen, shaper, &tolerates(latency), &policy).0.len()
            };
            assert_eq!(step(1, &before, from, &mut known), 0);
            known.wrote = limits(&ours);
            assert_eq!(step(2, &ours, from, &mut known), 0);
            assert_eq!(step(3, &ours, to, &mut known) > 0, all_back, "{from:?} {to:?}");
            let seen = if all_back { &before } else { &ours };
            known.wrote = limits(seen);
            assert_eq!(step(4, seen, to, &mut known), 0, "{from:?} {to:?}");
        }
    }

    #[test]
    fn a_limit_that_is_somebody_elses_leaves_the_others_ours() {
        let (policy, rule) = (Policy::default(), Rule::default());
        let ours = vm([100_000, 33_000, 33_000, 33_000]);
        let mut unplugged = vm([100_000, 33_000, 33_000, 50_000]);
        unplugged.vcpus[3].online = false;
        let administrators = vm([100_000, 33_000, 33_000, 60_000]);
        let tool = tools(Shaper::Proportional).first().copied();
        let trial =
            Trial { tool, before: Score { lost: 0.5, used: 1.0, progress: None }, wishes: Vec::new() };
        for (seen, shaper, trying) in [
            (unplugged, Shaper::Proportional, None),
            (administrators.clone(), Shaper::None, None),
            (administrators, Shaper::Proportional, Some(trial)),
        ] {
            let before = vm([50_000; 4]);
            let mut known = Known {
                base: limits(&before),
                wrote: limits(&ours),
                online: before.online(),
                trying,
                ..Known::default()
            };
            let (wishes, _) = known.step(Time(1), &seen, shaper, &rule, &policy);
            let back: Vec<_> = wishes.iter().map(|wish| (wish.lever, wish.to.quota_us)).collect();
            let to = |vcpu| (Lever::VcpuQuota(vcpu), Some(50_000));
            assert_eq!(back, [to(0), to(1), to(2)], "what lowers first");
        }
    }
}
