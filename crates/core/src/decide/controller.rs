//! The corridor, in one place: a snapshot in, a plan out, and what became of it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::arbitrate::{Arbitrate, Grant, arbiter};
use super::asked::{Asked, action, cpuset};
use super::cpusets::{Crowd, Width};
use super::demand::{Cut, monitor, predictor, tells_all};
use super::granting::Given;
use super::known::Known;
use super::lighten::Lightening;
use super::part::{each, may_use, online, share, useful, weight};
use super::place::{Place, classes, placer};
use super::policy::matches;
use super::shape::{Shaping, Slicing};
use super::short::Short;
use super::size::{Races, Subject, sizer};
use super::weigh::Weighing;
use super::{
    AFTER_FAILURE, Action, Arbiter, Forecast, Outcome, Plan, Policy, Sizer, Why, counted, hypothesis, stays,
    vain,
};
use crate::entitle::{HostError, WeightRule};
use crate::machine::{
    Activity, Fixed, HostEstimate, Lever, LeverKind, MachineError, Snapshot, Value, VmEstimate, VmId,
    VmState, estimate, estimate_briefly,
};
use crate::topology::Topology;
use crate::{CpuId, CpuSet, Time, Weight};

/// A guest's count is brought by its agent, and `corefit run` there looks every 0.05 to 1 s: a look shorter than twice this would be
/// one count long.
const LATE: Duration = Duration::from_millis(500);
/// What is not there may be later: a guest's agent that forbids it now, or a vCPU that comes back.
const REFUSED: Duration = Duration::from_secs(300);
/// What came of a change is awaited for so long.
const HOLD: Duration = Duration::from_secs(5);

/// Decides for a host, from one snapshot to the next. Knows the time from [`Snapshot::at`] only.
#[derive(Debug)]
pub struct Controller {
    pub(super) policy: Policy,
    before: Option<Snapshot>,
    /// The snapshot by which VMs were last sized, while what came of that is awaited.
    sized: Option<Snapshot>,
    pub(super) known: BTreeMap<VmId, Known>,
    pub(super) arbiter: Option<Box<dyn Arbitrate + Send>>,
    races: Races,
    weighing: Weighing,
    lightening: Lightening,
    placer: Option<Box<dyn Place + Send>>,
    shaping: Shaping,
    slicing: Slicing,
    /// Cpusets of control groups before they were sized.
    confined: BTreeMap<VmId, CpuSet>,
    /// vCPUs that VMs had online before they were sized, and what that was made last.
    sizes: BTreeMap<VmId, (CpuSet, CpuSet)>,
    /// Rules of the policy that are what owners ask for: the first ones.
    owners: usize,
}

/// What came out of a snapshot.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// What happened since the snapshot before; nothing at the first.
    pub estimate: Option<HostEstimate>,
    /// What to change.
    pub plan: Plan,
    /// What people should know of how things are now: the same at each step while it is so, each once.
    pub notes: Vec<String>,
    /// What was granted to whom, where somebody arbitrates.
    pub given: Vec<Given>,
    /// Whose vCPUs stay as they are, and why.
    pub kept: BTreeMap<VmId, String>,
    /// How many pCPUs control groups that are sized had before that.
    pub widths: BTreeMap<VmId, usize>,
    /// When to look again: after the interval, or sooner, while something is tried.
    pub next: Duration,
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
            placer: placer(&policy),
            shaping: Shaping::default(),
            slicing: Slicing::default(),
            policy,
            before: None,
            sized: None,
            known: BTreeMap::new(),
            confined: BTreeMap::new(),
            sizes: BTreeMap::new(),
            owners: 0,
        }
    }

    /// Another policy from now on; what was learned is kept, but for what another stage, or one with other times, learned. Who refused is
    /// asked again.
    pub fn reconfigure(&mut self, policy: Policy) {
        // How long a turn of max-min takes depends on the dwell.
        let turns = policy.arbitrate == Arbiter::MaxMin && policy.dwell_ms != self.policy.dwell_ms;
        if policy.arbitrate != self.policy.arbitrate || turns {
            self.arbiter = arbiter(&policy);
            for known in self.known.values_mut() {
                (known.granted, known.preempted, known.short) = (None, false, Default::default());
            }
        }
        // How long decreases wait depends on the dwell.
        let delays = policy.demand == Forecast::Ftds && policy.dwell_ms != self.policy.dwell_ms;
        if (policy.demand, policy.smooth) != (self.policy.demand, self.policy.smooth) || delays {
            self.known.values_mut().for_each(|known| {
                (known.demand, known.cut) = (predictor(policy.demand, &policy), Cut::new(&policy));
            });
        }
        if (policy.probe_ms, policy.dwell_ms) != (self.policy.probe_ms, self.policy.dwell_ms) {
            // They are told once; who is trying something tries anew.
            for known in self.known.values_mut() {
                known.sizer.1 = sizer(known.sizer.0, &policy);
                known.trying = false;
            }
            self.races = Races::default();
        }
        match &mut self.placer {
            Some(placer) if policy.place == self.policy.place => placer.reconfigure(&policy),
            other => *other = placer(&policy),
        }
        for known in self.known.values_mut() {
            (known.refused, known.starved, known.not_before) = (None, (0, None), Time(0));
        }
        self.weighing.try_again();
        self.lightening.try_again();
        self.shaping.try_again();
        self.slicing.try_again();
        (self.policy, self.owners) = (policy, 0);
    }

    /// What owners ask for their VMs counts from now on, besides the policy that was given. Nothing else begins anew.
    pub fn heed(&mut self, given: &Policy, vms: &[VmState]) {
        self.policy = given.with_wishes(vms).unwrap_or_else(|| given.clone());
        self.owners = self.policy.vm.len() - given.vm.len();
    }

    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
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
        let asked = self.ask(&before, &seen, &mut step);
        let (requests, usable) = self.requests(&asked, &seen);
        let grants = self.arbitrate(&asked, &requests, &usable, &seen, &mut step);
        step.notes.extend(self.approximates(&asked, &seen));
        step.notes.extend(vain::notes(&self.policy, self.owners, &now.vms));
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
        let granted = self.granted(&asked, &requests.0, grants.as_deref(), usable.len());
        step.plan.actions.extend(self.weighing.step(&seen, &granted, &usable, &self.policy));
        step.plan.actions.extend(self.lightening.step(&seen, &self.policy, &mut step.notes));
        let policy = &self.policy;
        if let Some(placer) = &mut self.placer {
            // What numbers of vCPUs bring is not to be measured under other pins each time.
            if self.known.values().any(|known| known.trying) {
                placer.wait();
            } else {
                let after = after(&seen, &asked, &step.plan.actions);
                step.plan.actions.extend(placer.place(now, after.as_ref().unwrap_or(&seen), policy));
            }
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
        step.estimate = Some(seen);
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
            let Some(known) = self.known.get_mut(&outcome.action.vm) else { continue };
            if !known.sized_by(outcome.action.lever) {
                continue;
            }
            match &outcome.result {
                Ok(_) => {
                    (known.changed, known.away) = (Some(at), None);
                    if let Some(fewer) = known.wish {
                        known.calm.changes(fewer, &self.policy, at);
                    }
                }
                Err(MachineError::Gone(why)) => {
                    (known.not_before, known.wish) = (at + AFTER_FAILURE, None);
                    // A control group that is gone does not come back.
                    known.away = (!known.by_cpuset).then(|| why.clone());
                }
                Err(error) => {
                    let lacks = matches!(error, MachineError::Unsupported(_));
                    let until = if lacks { at + REFUSED } else { Time(u64::MAX) };
                    (known.refused, known.away) = (Some((until, error.to_string())), None);
                }
            }
        }
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

    /// Who did not answer when its vCPUs were to be changed is to have again what it has, as far as is known: whether it answers now.
    fn ask_again(&self, seen: &HostEstimate, kept: &BTreeMap<VmId, String>) -> Vec<Action> {
        let again = |vm: &VmEstimate| {
            let VmState { id, name, .. } = &vm.seen;
            let known = self.known.get(id)?;
            let due = known.away.is_some() && seen.at >= known.not_before && kept.contains_key(id);
            let has = || self.sizes.get(id).map_or_else(|| vm.seen.online(), |(_, made)| made.clone());
            due.then(|| Action {
                vm: id.clone(),
                name: name.clone(),
                lever: Lever::Online,
                from: None,
                to: Value::Vcpus(has()),
                why: Why::AskedAgain,
            })
        };
        seen.vms.iter().filter_map(again).collect()
    }

    /// Demand: who may be sized, and what they want.
    fn ask(&mut self, before: &Snapshot, seen: &HostEstimate, step: &mut Step) -> Vec<Asked> {
        let earlier: BTreeMap<&VmId, &VmState> = before.vms.iter().map(|vm| (&vm.id, vm)).collect();
        let weighs = self.policy.weighs();
        let pcpus = online(seen);
        let mut lying = None;
        let mut asked = Vec::new();
        for (number, vm) in seen.vms.iter().enumerate() {
            if let Some(known) = self.known.get_mut(&vm.seen.id) {
                known.request = None;
            }
            if !vm.seen.is_running_vm() || vm.seen.vcpus.is_empty() {
                continue;
            }
            let rule = self.policy.of(&vm.seen.name);
            if rule.exclude == Some(true) {
                let given = self.policy.vm.iter().skip(self.owners);
                let given = given
                    .filter(|rule| rule.exclude == Some(true))
                    .any(|rule| matches(&rule.name, &vm.seen.name));
                let who = if given { "rule" } else { "owner" };
                step.notes.push(format!("{}: left alone, as its {who} says", vm.seen.name));
                continue;
            }
            if let Some((min, max)) = rule.min.zip(rule.max).filter(|(min, max)| min > max) {
                let name = &vm.seen.name;
                step.notes.push(format!("{name}: its rules say min {min} and max {max}: max counts"));
            }
            let policy = &self.policy;
            let name = policy.sizer_of(&vm.seen);
            let by_cpuset = vm.seen.is_group() && name != Sizer::None;
            let known =
                self.known.entry(vm.seen.id.clone()).or_insert_with(|| Known::new(name, by_cpuset, policy));
            if known.sizer.0 != name {
                known.sizer = (name, sizer(name, policy));
            }
            known.by_cpuset = by_cpuset;
            known.name.clone_from(&vm.seen.name);
            let before = self.confined.get(&vm.seen.id);
            // Nothing said (v2): what the group above leaves it.
            let before = before.map(|set| if set.is_empty() { &known.wide } else { set });
            let width = if by_cpuset { Width::of(before, vm, &pcpus) } else { None };
            if let (None, Some(width)) = (before, &width) {
                known.wide = width.now.clone();
            }
            let widths = width.iter().map(|width| (vm.seen.id.clone(), width.all.len()));
            step.widths.extend(widths);
            known.refused.take_if(|(until, _)| seen.at >= *until);
            let refused = known.refused.as_ref().map(|(_, why)| why.as_str());
            let lever = if width.is_some() { LeverKind::Affinity } else { LeverKind::Online };
            let bounds = policy.bounds(name, &rule);
            let differing = if bounds { stays::differing(policy, vm) } else { None };
            let pinned = differing.as_ref().and_then(|sets| stays::pinned(sets, vm));
            // One that has fewer, from before it was pinned, gets them back first.
            let whole = vm.seen.vcpus.iter().all(|vcpu| vcpu.online);
            let away = known.away.as_deref().filter(|_| bounds);
            let stays = vm.seen.fixed(lever).or(refused).or(pinned.filter(|_| whole)).or(away);
            let sizable = stays.is_none();
            if let Some(reason) = stays {
                step.notes.push(format!("{}: keeps its vCPUs: {reason}", vm.seen.name));
                step.kept.insert(vm.seen.id.clone(), reason.to_owned());
                if !weighs || vm.seen.fixed(LeverKind::Weight).is_some() {
                    continue;
                }
            }
            let online = width.as_ref().map_or_else(|| vm.seen.online(), |width| width.now.clone());
            let all = width.as_ref().map_or(vm.seen.vcpus.len(), |width| width.all.len());
            let all = u32::try_from(all).unwrap_or(u32::MAX);
            // Where nobody says how many, whoever keeps the journal puts them back.
            let before = self.sizes.get(&vm.seen.id).filter(|_| bounds);
            let had = before.map_or(online.len(), |(before, _)| before.len());
            let had = u32::try_from(had).unwrap_or(all);
            let most = rule.max.unwrap_or(all).min(all).max(1);
            let least = if pinned.is_some() { most } else { rule.min.unwrap_or(1).min(most) };
            let monitored = monitor(earlier.get(&vm.seen.id).copied(), vm, seen.over);
            let count = u32::try_from(online.len()).unwrap_or(all);
            // Who was not measured this time wants what it wanted before.
            // What is tried with other numbers says nothing of it.
            if let Some(monitored) = monitored.filter(|_| !known.trying || known.wants.is_none()) {
                let wants = known.demand.wants(&monitored, count, seen.at);
                let cut = &mut known.cut;
                let arbitrated = self.arbiter.is_some();
                let wants =
                    if arbitrated { cut.of(&monitored, wants, (count, most), seen.at) } else { wants };
                known.wants = Some(wants);
            }
            if !known.trying {
                known.has = count;
            }
            let wants = known.wants;
            let order = differing
                .filter(|_| sizable)
                .map(|sets| stays::order(sets, vm, lying.get_or_insert_with(|| stays::lying(seen)), &online));
            let mut one = Asked {
                number,
                rule,
                sizable,
                online,
                had,
                width,
                order,
                least,
                most,
                useful: 0.0,
                each: each(vm),
                seen: monitored,
                wants,
                has: known.has,
                runs: known.cut.runs,
                seen_into: monitored.is_some_and(|seen| seen.parallel.is_some()),
            };
            let own = one.may_use(policy, vm, &pcpus);
            one.useful = useful(vm, &own, one.each * f64::from(most));
            let request = || (one.request(&vm.seen.id, weighs), own);
            known.request = self.arbiter.is_some().then(request);
            asked.push(one);
        }
        // Who is left alone, or cannot run, is not short of what nobody keeps from it.
        for (number, vm) in seen.vms.iter().enumerate() {
            if asked.binary_search_by_key(&number, |asked| asked.number).is_err()
                && let Some(known) = self.known.get_mut(&vm.seen.id)
            {
                (known.short, known.starved.1) = (Short::default(), None);
            }
        }
        asked
    }

    /// Where what VMs want counts: that it is not known exactly of some.
    fn approximates(&self, asked: &[Asked], seen: &HostEstimate) -> Option<String> {
        let counts = |asked: &Asked| {
            let known = self.known.get(&seen.vms[asked.number].seen.id);
            self.arbiter.is_some() || known.is_some_and(|known| known.sizer.0 == Sizer::Vscale)
        };
        let tells = |asked: &Asked| seen.vms[asked.number].seen.guest.as_ref().is_some_and(tells_all);
        let blind = asked.iter().any(|asked| asked.seen.is_some() && counts(asked) && !tells(asked));
        blind.then(|| {
            "what VMs want is approximated where no guest agent tells: nice time counts as busy, waiting for input and output as \
             idle, run queues are not seen"
                .into()
        })
    }

    /// Whether a VM that is tried with another count has not said yet what came of it. Not for long: nobody may keep the others
    /// waiting.
    fn awaits(&mut self, asked: &[Asked], seen: &HostEstimate) -> bool {
        let sizable = asked.iter().filter(|asked| asked.sizable).map(|asked| &seen.vms[asked.number].seen);
        let sizable: BTreeMap<&VmId, &VmState> = sizable.map(|vm| (&vm.id, vm)).collect();
        // Nobody chooses for the others any more.
        self.known.iter_mut().for_each(|(id, known)| known.trying &= sizable.contains_key(id));
        let waited = self.sized.as_ref().map_or(Duration::ZERO, |sized| seen.at.since(sized.at));
        let silent = |(id, known): (&VmId, &Known)| {
            let told = sizable.get(id).and_then(|vm| vm.progress_at);
            known.trying
                && seen.at >= known.not_before
                && known.work.is_some_and(|work| work.rate.is_some() && told == Some(work.at))
        };
        waited < HOLD && self.known.iter().any(silent)
    }

    /// Sizes: how many vCPUs each has online.
    fn size<'a>(
        &mut self,
        asked: &'a [Asked],
        grants: &Option<Vec<Grant>>,
        before: &Snapshot,
        seen: &'a HostEstimate,
        step: &mut Step,
    ) -> Vec<Action> {
        let groups = asked.iter().filter_map(|asked| Some((asked.number, asked.width.as_ref()?.all.clone())));
        let groups: BTreeMap<usize, CpuSet> = groups.collect();
        let available = hypothesis::available(seen, &groups);
        let mut crowd = (!groups.is_empty())
            .then(|| Crowd::of(seen, &Topology::of_snapshot(before), &self.policy.reserved));
        let online = online(seen);
        // What no VM may use is nobody's part.
        let mut usable = CpuSet::default();
        let running: Vec<(usize, &VmEstimate)> =
            seen.vms.iter().enumerate().filter(|(_, vm)| vm.seen.is_running_vm()).collect();
        let may: BTreeMap<usize, CpuSet> =
            running.iter().map(|(number, vm)| (*number, may_use(&self.policy, &online, vm))).collect();
        for own in may.values() {
            usable = usable.union(own);
        }
        for width in asked.iter().filter_map(|asked| asked.width.as_ref()) {
            usable = usable.union(&width.all.intersection(&online));
        }
        let earlier: BTreeMap<&VmId, &VmState> = before.vms.iter().map(|vm| (&vm.id, vm)).collect();
        let weights: f64 = running.iter().map(|(_, vm)| weight(vm)).sum();
        let mut searching = self.known.values().filter(|known| known.trying).count();
        let mut rate_of = |asked: &Asked| {
            let vm = &seen.vms[asked.number];
            let known = self.known.get_mut(&vm.seen.id)?;
            let before = earlier.get(&vm.seen.id).copied();
            counted::rate(before, &vm.seen, seen.over, known.trying, &mut known.work)
        };
        let rates: Vec<Option<f64>> = asked.iter().map(&mut rate_of).collect();
        let subject = |index: usize, asked: &'a Asked| {
            let vm = &seen.vms[asked.number];
            let granted = grants.as_ref().map(|grants| grants[index].pcpus);
            Subject {
                vm,
                rule: &asked.rule,
                at: seen.at,
                over: seen.over,
                online: u32::try_from(asked.online.len()).unwrap_or(u32::MAX),
                had: asked.had,
                least: asked.least,
                most: asked.most,
                each: asked.each,
                by_vcpus: seen.host.rule != WeightRule::Linux,
                share: share(
                    &usable,
                    &may[&asked.number],
                    vm,
                    weights,
                    granted,
                    asked.width.as_ref(),
                    asked.each,
                ),
                available: available.as_ref().map(|all| all[asked.number].0),
                used: vm.activity.used.map(|used| used.0),
                rate: rates[index],
                wants: asked.wants,
                granted,
                period: longest_period(&vm.seen),
                may_search: false,
            }
        };
        let scratch = RefCell::default();
        // What they would be entitled to, by number of vCPUs; once each.
        let entitled =
            |asked: &Asked, crowd: Option<&Crowd>, known: &RefCell<BTreeMap<_, _>>, online: u32| {
                let cpuset = || Some(crowd?.pick(asked.number, asked.width.as_ref()?, online as usize));
                let order = asked.order.as_deref();
                let with = || {
                    hypothesis::with(seen, asked.number, online, order, cpuset(), &mut scratch.borrow_mut())
                };
                *known.borrow_mut().entry(online).or_insert_with(with)
            };
        let mut subjects = Vec::new();
        for (index, asked) in asked.iter().enumerate().filter(|(_, asked)| asked.sizable) {
            let Some(known) = self.known.get_mut(&seen.vms[asked.number].seen.id) else { continue };
            if seen.at < known.not_before {
                continue;
            }
            let may_search = known.trying || searching < self.policy.searches;
            let subject = Subject { may_search, ..subject(index, asked) };
            let before = RefCell::default();
            let entitled = |online| entitled(asked, crowd.as_ref(), &before, online);
            let tries = known.sizer.1.look(&subject, &entitled, &mut self.races);
            searching += usize::from(tries && !known.trying);
            subjects.push((asked, subject));
        }
        // Whoever was not looked at may want something else since.
        let looked: BTreeSet<&VmId> = subjects.iter().map(|(_, subject)| &subject.vm.seen.id).collect();
        let others = self.known.iter_mut().filter(|(id, _)| !looked.contains(id));
        others.for_each(|(_, known)| known.fewer = None);
        for (number, vm) in &running {
            let rate = asked.binary_search_by_key(number, |asked| asked.number).ok().and_then(|at| rates[at]);
            let Activity { used, waiting } = vm.activity;
            if let Some(used) = used {
                self.races.see(&vm.seen.id, rate, used.0, waiting.map_or(0.0, |waiting| waiting.0));
            }
        }
        self.races.step(seen.over);
        let mut actions = Vec::new();
        for (asked, subject) in subjects {
            let vm = subject.vm;
            let Some(known) = self.known.get_mut(&vm.seen.id) else { continue };
            let before = RefCell::default();
            let choice = {
                let entitled = |online| entitled(asked, crowd.as_ref(), &before, online);
                known.sizer.1.choose(&subject, &entitled, &self.races)
            };
            let was_trying = std::mem::replace(&mut known.trying, choice.next.is_some());
            step.next = choice.next.map_or(step.next, |next| next.min(step.next));
            let free = was_trying || known.trying || known.preempted;
            let due = known.due(&choice, &subject, free, &self.policy);
            match (&asked.width, &mut crowd) {
                (Some(width), Some(crowd)) => {
                    let change = if due {
                        let to = crowd.pick(asked.number, width, choice.count as usize);
                        cpuset(width, vm, to, choice.why)
                    } else if !free && choice.count == subject.online {
                        known.apart.look(crowd, (asked.number, vm), width, &self.policy, seen.at)
                    } else {
                        None
                    };
                    if let Some(Value::Pcpus(to)) = change.as_ref().map(|change| &change.to) {
                        crowd.moved(asked.number, vm, to);
                    }
                    actions.extend(change);
                }
                _ if due => actions.extend(action(asked, vm, choice)),
                _ => {}
            }
        }
        actions
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

/// The longest period of a quota of it or of a vCPU, and half of what it takes until two counts have come from whoever counts by his own
/// clock.
fn longest_period(vm: &VmState) -> Duration {
    let of_vcpus =
        vm.vcpus.iter().filter_map(|vcpu| vcpu.quota.as_ref()).filter(|quota| quota.quota_us.is_some());
    let longest = vm.quota.iter().chain(of_vcpus).map(|quota| quota.period_us).max();
    let period = Duration::from_micros(longest.unwrap_or(0));
    if vm.progress_at.is_some() { period.max(LATE) } else { period }
}
