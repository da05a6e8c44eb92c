//! The corridor, in one place: a snapshot in, a plan out, and what became of it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::arbitrate::{Arbitrate, Grant, Request, arbiter};
use super::asked::{Asked, action, cpuset};
use super::counted::Counted;
use super::cpusets::{Crowd, Width};
use super::demand::{Cut, Predict, monitor, predictor, tells_all};
use super::lighten::Lightening;
use super::part::{may_use, online, share, weight};
use super::place::{Place, classes, placer};
use super::shape::{Shaping, Slicing};
use super::size::{Choice, Races, Size, Subject, sizer};
use super::weigh::{Granted, Weighing};
use super::{AFTER_FAILURE, Action, Outcome, Plan, Policy, Sizer, counted, hypothesis};
use crate::entitle::HostError;
use crate::machine::{
    HostEstimate, Lever, LeverKind, MachineError, Snapshot, Value, VmEstimate, VmId, VmState, estimate,
    estimate_briefly,
};
use crate::share::count;
use crate::topology::Topology;
use crate::{CpuId, CpuSet, Cpus, Time, Weight};

/// Notes that are remembered as said: containers come and go, under ever new names.
const REMEMBERED: usize = 10_000;
/// A guest's count is brought by its agent, and `corefit run` there looks every 0.05 to 1 s: a look shorter than twice this would be
/// one count long.
const LATE: Duration = Duration::from_millis(500);
/// What came of a change is awaited for so long.
const HOLD: Duration = Duration::from_secs(5);

/// Decides for a host, from one snapshot to the next. Knows the time from [`Snapshot::at`] only.
#[derive(Debug)]
pub struct Controller {
    policy: Policy,
    before: Option<Snapshot>,
    /// The snapshot by which VMs were last sized, while what came of that is awaited.
    sized: Option<Snapshot>,
    known: BTreeMap<VmId, Known>,
    arbiter: Option<Box<dyn Arbitrate + Send>>,
    races: Races,
    weighing: Weighing,
    lightening: Lightening,
    placer: Option<Box<dyn Place + Send>>,
    shaping: Shaping,
    slicing: Slicing,
    /// Cpusets of control groups before they were sized.
    confined: BTreeMap<VmId, CpuSet>,
    said: BTreeSet<String>,
}

/// What came out of a snapshot.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// What happened since the snapshot before; nothing at the first.
    pub estimate: Option<HostEstimate>,
    /// What to change.
    pub plan: Plan,
    /// What people should know, each said once by each policy.
    pub notes: Vec<String>,
    /// What was granted to whom, where somebody arbitrates.
    pub given: Vec<Given>,
    /// When to look again: after the interval, or sooner, while something is tried.
    pub next: Duration,
}

/// What the arbiter gave a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// Whom.
    pub vm: VmId,
    /// pCPUs that it asked for, as far as it may have them.
    pub wants: u32,
    /// pCPUs that it got.
    pub pcpus: u32,
    /// It has got less than it wanted for half a minute and more.
    pub starves: bool,
}

/// What is remembered of a VM.
#[derive(Debug)]
struct Known {
    sizer: (Sizer, Box<dyn Size + Send>),
    demand: Box<dyn Predict + Send>,
    wants: Option<f64>,
    cut: Cut,
    /// What it asked the arbiter for at the last step that saw it, and pCPUs that it may use.
    request: Option<(Request, CpuSet)>,
    /// The work that was counted by the last step.
    work: Option<Counted>,
    /// It was tried with other counts at the last look.
    trying: bool,
    changed: Option<Time>,
    /// Since when fewer were wanted.
    fewer: Option<Time>,
    /// Some of its pCPUs were taken for one that is more important, and it still has more than it was granted.
    preempted: bool,
    /// How often it has starved, and whether it does.
    starved: (u32, bool),
    not_before: Time,
    /// A lever turned out not to be there.
    refused: bool,
    /// It is a control group that is sized.
    by_cpuset: bool,
    /// What it could use then before it was sized.
    wide: CpuSet,
}

impl Controller {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(policy: Policy) -> Controller {
        Controller {
            arbiter: arbiter(policy.arbitrate),
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
            said: BTreeSet::new(),
        }
    }

    /// Another policy from now on; what was learned is kept, but for what another stage learned. Who refused is asked again.
    pub fn reconfigure(&mut self, policy: Policy) {
        if policy.arbitrate != self.policy.arbitrate {
            self.arbiter = arbiter(policy.arbitrate);
        }
        if (policy.demand, policy.smooth) != (self.policy.demand, self.policy.smooth) {
            self.known.values_mut().for_each(|known| known.demand = predictor(policy.demand, &policy));
        }
        self.placer = placer(&policy);
        self.known.values_mut().for_each(|known| known.refused = false);
        self.weighing.try_again();
        self.lightening.try_again();
        self.shaping.try_again();
        self.policy = policy;
        self.said.clear();
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
        self.known.retain(|id, _| now.may_lack_vms() || here.contains(id));
        let asked = self.ask(&before, &seen, &mut step);
        let (requests, usable) = self.requests(&asked, &seen);
        let grants = self.arbitrate(&asked, &requests, self.pool(&asked, &usable, &seen), &seen, &mut step);
        step.notes.extend(self.approximates(&asked, &seen));
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
        let granted = self.granted(&asked, grants.as_deref());
        step.plan.actions.extend(self.weighing.step(&seen, &granted, &usable, &self.policy));
        step.plan.actions.extend(self.lightening.step(&seen, &self.policy, &mut step.notes));
        let policy = &self.policy;
        if let Some(placer) = &mut self.placer {
            // A cpuset that is sized is chosen with that.
            let sized =
                |vm: &VmId| asked.iter().any(|a| a.width.is_some() && seen.vms[a.number].seen.id == *vm);
            let resized = resized(&seen, &step.plan.actions);
            let placed = placer.place(now, resized.as_ref().unwrap_or(&seen), policy);
            step.plan.actions.extend(placed.into_iter().filter(|action| !sized(&action.vm)));
            step.notes.extend(classes(policy, &seen));
        }
        step.plan.actions.extend(self.shaping.step(now, policy));
        step.plan.actions.extend(self.slicing.step(now, policy, &mut step.notes));
        // Some stages do not ask.
        let vms: BTreeMap<&VmId, &VmState> = now.vms.iter().map(|vm| (&vm.id, vm)).collect();
        let free =
            |action: &Action| vms.get(&action.vm).is_some_and(|vm| vm.fixed(action.lever.kind()).is_none());
        step.plan.actions.retain(free);
        if self.said.len() > REMEMBERED {
            self.said.clear();
        }
        step.notes.retain(|note| self.said.insert(note.clone()));
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
            self.lightening.told(outcome, at);
            if let Some(placer) = &mut self.placer {
                placer.told(outcome);
            }
            let Some(known) = self.known.get_mut(&outcome.action.vm) else { continue };
            let sizes = match outcome.action.lever {
                Lever::Online => true,
                Lever::Affinity(0) => known.by_cpuset,
                _ => false,
            };
            if !sizes {
                continue;
            }
            match &outcome.result {
                Ok(_) => known.changed = Some(at),
                Err(MachineError::Gone(_)) => known.not_before = at + AFTER_FAILURE,
                Err(_) => known.refused = true,
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

    /// Demand: who may be sized, and what they want.
    fn ask(&mut self, before: &Snapshot, seen: &HostEstimate, step: &mut Step) -> Vec<Asked> {
        let earlier: BTreeMap<&VmId, &VmState> = before.vms.iter().map(|vm| (&vm.id, vm)).collect();
        let weighs = self.policy.weighs();
        let pcpus = online(seen);
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
                step.notes.push(format!("{}: left alone, as its rule says", vm.seen.name));
                continue;
            }
            if let Some((min, max)) = rule.min.zip(rule.max).filter(|(min, max)| min > max) {
                let name = &vm.seen.name;
                step.notes.push(format!("{name}: its rules say min {min} and max {max}: max counts"));
            }
            let policy = &self.policy;
            let name = policy.sizer_of(&vm.seen);
            let by_cpuset = vm.seen.is_group() && name != Sizer::None;
            let known = self.known.entry(vm.seen.id.clone()).or_insert_with(|| Known {
                sizer: (name, sizer(name, policy)),
                demand: predictor(policy.demand, policy),
                wants: None,
                cut: Cut::default(),
                request: None,
                work: None,
                trying: false,
                changed: None,
                fewer: None,
                preempted: false,
                starved: (0, false),
                not_before: Time(0),
                refused: false,
                by_cpuset,
                wide: CpuSet::default(),
            });
            if known.sizer.0 != name {
                known.sizer = (name, sizer(name, policy));
            }
            known.by_cpuset = by_cpuset;
            let before = self.confined.get(&vm.seen.id);
            // Nothing said (v2): what the group above leaves it.
            let before = before.map(|set| if set.is_empty() { &known.wide } else { set });
            let width = if by_cpuset { Width::of(before, vm, &pcpus) } else { None };
            if let (None, Some(width)) = (before, &width) {
                known.wide = width.now.clone();
            }
            let refused =
                known.refused.then_some("its machine refused to change them, or somebody else changed them");
            let lever = if width.is_some() { LeverKind::Affinity } else { LeverKind::Online };
            let stays = vm.seen.fixed(lever).or(refused);
            if let Some(reason) = stays {
                step.notes.push(format!("{}: keeps its vCPUs: {reason}", vm.seen.name));
                if !weighs || vm.seen.fixed(LeverKind::Weight).is_some() {
                    continue;
                }
            }
            let online = width.as_ref().map_or_else(|| vm.seen.online(), |width| width.now.clone());
            let all = width.as_ref().map_or(vm.seen.vcpus.len(), |width| width.all.len());
            let all = u32::try_from(all).unwrap_or(u32::MAX);
            let most = rule.max.unwrap_or(all).min(all).max(1);
            let least = rule.min.unwrap_or(1).min(most);
            let monitored = monitor(earlier.get(&vm.seen.id).copied(), vm, seen.over);
            let count = u32::try_from(online.len()).unwrap_or(all);
            // Who was not measured this time wants what it wanted before.
            // What is tried with other numbers says nothing of it.
            if let Some(monitored) = monitored.filter(|_| !known.trying || known.wants.is_none()) {
                let wants = known.demand.wants(&monitored, count, seen.at);
                known.wants = Some(known.cut.of(&monitored, wants, count));
            }
            let wants = known.wants;
            let sizable = stays.is_none();
            let one = Asked { number, rule, sizable, online, width, least, most, seen: monitored, wants };
            let request = || (one.request(&vm.seen.id, weighs), one.may_use(policy, vm, &pcpus));
            known.request = self.arbiter.is_some().then(request);
            asked.push(one);
        }
        asked
    }

    /// Arbitration of so many pCPUs: what each may have; nothing if nobody arbitrates.
    fn arbitrate(
        &mut self,
        asked: &[Asked],
        requests: &[Request],
        pcpus: u32,
        seen: &HostEstimate,
        step: &mut Step,
    ) -> Option<Vec<Grant>> {
        let arbiter = self.arbiter.as_mut()?;
        let weighs = self.policy.weighs();
        let grants = arbiter.grant(requests, pcpus, seen.at);
        let named = asked.iter().filter(|asked| asked.rule.min.is_some() || asked.rule.guaranteed.is_some());
        let guaranteed: f64 = named.map(|asked| asked.guaranteed(weighs)).sum();
        if guaranteed > f64::from(pcpus) {
            let guaranteed = Cpus(guaranteed);
            step.notes.push(format!(
                "{guaranteed} pCPUs are guaranteed, more than the {pcpus} that there are: not all VMs can get theirs"
            ));
        }
        for ((grant, request), asked) in grants.iter().zip(requests).zip(asked) {
            let Some(known) = self.known.get_mut(&request.id) else { continue };
            let wants = request.wants.min(request.most);
            known.cut.granted(wants, grant.pcpus);
            known.preempted |= grant.preempted;
            known.preempted &= (grant.pcpus as usize) < asked.online.len();
            let (vm, pcpus, starves) = (request.id.clone(), grant.pcpus, grant.starves);
            step.given.push(Given { vm, wants, pcpus, starves });
            let before = std::mem::replace(&mut known.starved.1, grant.starves);
            if grant.starves && !before {
                known.starved.0 += 1;
                let name = &seen.vms[asked.number].seen.name;
                let gets = f64::from(grant.pcpus).max(asked.guaranteed(weighs));
                let again = match known.starved.0 {
                    1 => String::new(),
                    times => format!(" (time {times})"),
                };
                step.notes.push(format!(
                    "{name}: has wanted {wants} pCPUs for half a minute and more, and gets {gets}{again}"
                ));
            }
        }
        Some(grants)
    }

    /// What is asked for, in the order of those who ask; then what those asked for who were missed this time: they keep it. And
    /// the pCPUs that some of them may use: there are no others for them.
    fn requests(&self, asked: &[Asked], seen: &HostEstimate) -> (Vec<Request>, CpuSet) {
        let ids: BTreeSet<&VmId> = asked.iter().map(|asked| &seen.vms[asked.number].seen.id).collect();
        let asks = asked.iter().filter_map(|asked| self.known.get(&seen.vms[asked.number].seen.id));
        let missed = self.known.iter().filter(|(id, _)| !ids.contains(id)).map(|(_, known)| known);
        let all = asks.chain(missed).filter_map(|known| known.request.as_ref());
        let usable = all.clone().fold(CpuSet::default(), |all, (_, own)| all.union(own));
        (all.map(|(request, _)| request.clone()).collect(), usable)
    }

    /// pCPUs to divide: of those that some of the VMs that ask may use, what running VMs that do not ask leave of them. Weights leave
    /// these theirs by themselves.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most a number of pCPUs")]
    fn pool(&self, asked: &[Asked], usable: &CpuSet, seen: &HostEstimate) -> u32 {
        if self.arbiter.is_none() || self.policy.weighs() {
            return u32::try_from(usable.len()).unwrap_or(u32::MAX);
        }
        let asks: BTreeSet<usize> = asked.iter().map(|asked| asked.number).collect();
        let others = seen
            .vms
            .iter()
            .enumerate()
            .filter(|(number, vm)| !asks.contains(number) && vm.seen.is_running_vm());
        let pcpus = online(seen);
        let others =
            others.filter(|(_, vm)| !may_use(&self.policy, &pcpus, vm).intersection(usable).is_empty());
        // Who is missed by this look keeps what he has.
        let others =
            others.filter(|(_, vm)| self.known.get(&vm.seen.id).is_none_or(|known| known.request.is_none()));
        let taken: f64 = others.filter_map(|(_, vm)| Some(vm.demand?.0.min(vm.entitled?.0))).sum();
        (count(usable.len()) - taken).max(0.0).round() as u32
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

    /// What was granted, for weights; nothing if they are not to follow it.
    fn granted(&self, asked: &[Asked], grants: Option<&[Grant]>) -> Vec<Granted> {
        let grants = grants.filter(|_| self.policy.weighs()).unwrap_or_default();
        let granted = |(asked, grant): (&Asked, &Grant)| Granted {
            number: asked.number,
            pcpus: grant.pcpus,
            short: asked.wanted(true).min(asked.most) > grant.pcpus,
            guaranteed: asked.guaranteed(true),
            vcpus: if asked.sizable {
                grant.pcpus.max(asked.least)
            } else {
                u32::try_from(asked.online.len()).unwrap_or(u32::MAX)
            },
        };
        asked.iter().zip(grants).map(granted).collect()
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
        let mut crowd = (!groups.is_empty()).then(|| Crowd::of(seen, &Topology::of_snapshot(before)));
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
                least: asked.least,
                most: asked.most,
                share: share(&usable, &may[&asked.number], vm, weights, granted, asked.width.as_ref()),
                available: available.as_ref().map(|all| all[asked.number].0),
                used: vm.activity.used.map(|used| used.0),
                rate: rates[index],
                wants: asked.wants,
                granted,
                period: shortest(&vm.seen),
                may_search: false,
            }
        };
        let scratch = RefCell::default();
        // What they would be entitled to, by number of vCPUs; once each.
        let entitled =
            |asked: &Asked, crowd: Option<&Crowd>, known: &RefCell<BTreeMap<_, _>>, online: u32| {
                let cpuset = || Some(crowd?.pick(asked.number, asked.width.as_ref()?, online as usize));
                let with =
                    || hypothesis::with(seen, asked.number, online, cpuset(), &mut scratch.borrow_mut());
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
            if known.due(&choice, &subject, free, &self.policy) {
                actions.extend(match (&asked.width, &mut crowd) {
                    (Some(width), Some(crowd)) => {
                        let to = crowd.pick(asked.number, width, choice.count as usize);
                        crowd.moved(asked.number, vm, &to);
                        cpuset(width, vm, to, choice)
                    }
                    _ => action(asked, vm, choice),
                });
            }
        }
        actions
    }
}

impl Known {
    /// Whether a choice is to be acted upon now: grow at once, shrink after a dwell, and not too often.
    fn due(&mut self, choice: &Choice, subject: &Subject<'_>, free: bool, policy: &Policy) -> bool {
        if choice.count >= subject.online {
            self.fewer = None;
        }
        if choice.count == subject.online {
            return false;
        }
        if free {
            return true;
        }
        if choice.count < subject.online {
            let since = *self.fewer.get_or_insert(subject.at);
            if subject.at.since(since) < policy.dwell() {
                return false;
            }
        }
        self.changed.is_none_or(|then| subject.at.since(then) >= Duration::from_millis(policy.lever_ms))
    }
}

/// The host without the vCPUs that these actions take offline, which need no place any more; `None` if there are none.
fn resized(seen: &HostEstimate, actions: &[Action]) -> Option<HostEstimate> {
    let mut after = None;
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

/// The longest period of a quota, and half of what it takes until two counts have come from whoever counts by his own clock.
fn shortest(vm: &VmState) -> Duration {
    let period = vm.quota.as_ref().map_or(Duration::ZERO, |q| Duration::from_micros(q.period_us));
    if vm.progress_at.is_some() { period.max(LATE) } else { period }
}
