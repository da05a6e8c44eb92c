//! Weights that follow what was granted, where numbers of vCPUs alone cannot.
//!
//! ```text
//! grants, guarantees ──▶ somebody is short, and more vCPUs stay than there are pCPUs that they share?
//!                           yes: weights by parts, their sum kept      no: as they were
//! ```
//!
//! A VM keeps a vCPU, and one without agent keeps all, whatever it was granted: then the host's weights divide the
//! pCPUs, and they know no priorities. Here each gets what it is guaranteed, and of the rest a part in proportion to
//! what it was granted beyond. Among siblings the sum of weights stays, so whoever takes no part in it is not concerned, as far as the host
//! takes such weights.
//!
//! A VM weighs less, or all weigh again what they did, only once that was so for the dwell; more, as soon as others leave it. Where that
//! brings nothing (`gain.rs`) all weigh what they did.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::gain::{Gains, Member};
use super::island::{Island, islands};
use super::starving::left_alone;
use super::{Action, Fate, Outcome, Policy, Why};
use crate::entitle::WeightRule;
use crate::machine::{HostEstimate, Lever, LeverKind, Role, Value, VmEstimate, VmId, VmState};
use crate::units::count;
use crate::{CpuSet, Time, Weight};

/// Of what is guaranteed to who gives way to more important ones he keeps this part. Ours.
const LITTLE: f64 = 0.1;
/// The least and the greatest weight that every host takes: control groups v1 have 2 to 262,144, v2 1 to 10,000.
const EVERYWHERE: (f64, f64) = (2.0, 10_000.0);
/// Those of a host on which a VM weighs less, or more, than that.
const WIDER: (f64, f64) = (1.0, 262_144.0);

/// A VM that pCPUs were granted to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Granted<'a> {
    /// Its number in [`HostEstimate::vms`].
    pub number: usize,
    /// pCPUs that it may use.
    pub own: &'a CpuSet,
    /// pCPUs that it was granted.
    pub pcpus: u32,
    /// It asked for more.
    pub short: bool,
    /// pCPUs that it gets in any case, as a part of one too.
    pub guaranteed: f64,
    /// pCPUs of these that it wants: it does not ask for them, as it keeps them anyway.
    pub keeps: f64,
    /// pCPUs that it could use, within its cap.
    pub most: f64,
    /// pCPUs that it wants, as far as is known.
    pub wants: f64,
    /// Larger is more important.
    pub priority: i32,
    /// vCPUs that it has online once it is sized.
    pub vcpus: u32,
}

/// The stage: what it remembers of each VM.
#[derive(Debug, Default)]
pub(super) struct Weighing {
    vms: BTreeMap<VmId, Known>,
    gains: Gains,
    /// Who weighs what it did at this step, as more weight brings nothing, and what is said of that.
    vain: BTreeMap<VmId, Why>,
    notes: Vec<String>,
    /// What those weighed whose weight is ours, as the journal has it.
    before: BTreeMap<VmId, Weight>,
    changed: Option<Time>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    /// The weight before it was ours, and what we made it.
    base: f64,
    wrote: Option<f64>,
    /// What was to be written, while nobody says whether it will be yet.
    late: Option<f64>,
    not_before: Time,
    refused: bool,
    /// What it is to weigh times as how many it counts, by what was decided; `None`: what it does.
    held: Option<f64>,
    /// Since when it was to be less, and the most that it was to be since then.
    less: Option<(Time, f64)>,
    /// Since when nobody is short of the pCPUs that it shares, or numbers of vCPUs see to it.
    enough: Option<Time>,
}

/// One of those whose weights are compared. Weights are times as how many it counts.
struct Sibling<'a> {
    id: &'a VmId,
    base: f64,
    now: f64,
    held: f64,
    /// pCPUs, and those of them that it is guaranteed.
    part: f64,
    sure: f64,
    granted: Granted<'a>,
    /// As how many it counts.
    times: f64,
}

/// What a VM that pCPUs were granted to is to get of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'a> {
    granted: Granted<'a>,
    /// pCPUs, and those of them that it is guaranteed.
    pub(super) all: f64,
    sure: f64,
}

/// What a VM is to weigh, and the pCPUs for which that stands.
#[derive(Clone, Copy, Debug)]
struct Target {
    weight: f64,
    part: f64,
}

impl Weighing {
    /// Which weights to change, by what was granted, in the order of numbers. Without grants: all as they
    /// were, those too that came changed from another host. `usual`: what happened in the usual time, if that has passed and tells what
    /// weights bring.
    pub(super) fn step(
        &mut self,
        (seen, usual): (&HostEstimate, Option<&HostEstimate>),
        granted: &[Granted<'_>],
        policy: &Policy,
    ) -> Vec<Action> {
        (self.vain, self.notes) = Default::default();
        let ours = !self.before.is_empty() || self.vms.values().any(|known| known.wrote.is_some());
        if granted.is_empty() && !ours {
            self.vms = BTreeMap::new();
            return Vec::new();
        }
        self.settle(seen, policy);
        let id = |granted: &Granted<'_>| &seen.vms[granted.number].seen.id;
        let mut targets = BTreeMap::new();
        let mut calm: BTreeSet<&VmId> = granted.iter().map(id).collect();
        for island in islands(seen, granted, policy).into_iter().filter(Island::is_contended) {
            for granted in &island.granted {
                calm.remove(id(granted));
            }
            targets.extend(self.targets(
                (seen, usual),
                &parts(seen, &island),
                count(island.pcpus.len()),
                policy,
            ));
        }
        let all_calm = calm.len() == granted.len();
        // Those that nothing was granted are as they were at once, unless all is calm.
        let mut wait = BTreeSet::new();
        for (id, known) in &mut self.vms {
            // Of who was not among them for a moment it is not known that he was to weigh less all the time.
            known.less.take_if(|_| !targets.contains_key(id));
            if !all_calm && !calm.contains(id) {
                known.enough = None;
                // What it weighed counts for nothing once it is back.
                known.held.take_if(|_| !targets.contains_key(id));
                continue;
            }
            let since = *known.enough.get_or_insert(seen.at);
            if granted.is_empty() || seen.at.since(since) >= policy.dwell() {
                known.held = None;
            } else {
                wait.insert(id.clone());
            }
        }
        if self.changed.is_some_and(|at| seen.at.since(at) < Duration::from_millis(policy.lever_ms)) {
            return Vec::new();
        }
        let due = |vm: &VmState| {
            let (known, now) = (self.vms.get(&vm.id)?, vm.weight?.0);
            let target = targets.get(&vm.id).map_or(known.base, |target| target.weight);
            let back = same(target, known.base) && !same(now, target);
            let far = (target - now).abs() > policy.deadband * now;
            let free = known.usable(vm, seen.at) && (known.wrote.is_some() || targets.contains_key(&vm.id));
            (free && !wait.contains(&vm.id) && (back || far)).then_some((now, target))
        };
        let action = |vm: &VmState, (now, to): (f64, f64)| {
            let [now, to] = [now, to].map(|weight| Value::Weight(Weight(weight)));
            let why = match (targets.get(&vm.id), self.vain.get(&vm.id)) {
                (Some(target), _) => Why::Weighed { part: crate::Cpus(target.part) },
                (None, Some(why)) => why.clone(),
                (None, None) => Why::Unweighed,
            };
            Action::of(vm, Lever::Weight, Some(now), to, why)
        };
        seen.vms.iter().filter_map(|vm| Some(action(&vm.seen, due(&vm.seen)?))).collect()
    }

    /// What people should know of the last step.
    pub(super) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// What VMs weighed before it was changed: of one that was not seen for a while, came from another host, or was
    /// left by an earlier run, its weight does not tell.
    pub(super) fn before(&mut self, weights: BTreeMap<VmId, Weight>) {
        self.before = weights;
    }

    /// What became of an action of the last step.
    pub(super) fn told(&mut self, outcome: &Outcome, at: Time) {
        let Some(known) = self.vms.get_mut(&outcome.action.vm) else { return };
        if outcome.action.lever != Lever::Weight {
            return;
        }
        if outcome.result.is_err() {
            known.held = None;
        }
        let fate = outcome.fate(at);
        if !matches!(fate, Fate::Later) {
            self.changed = Some(at);
        }
        match fate {
            Fate::Is(Value::Weight(Weight(weight))) => (known.wrote, known.late) = (Some(*weight), None),
            Fate::Later => {}
            Fate::Away(until) => {
                known.not_before = until;
                known.late = match &outcome.action.to {
                    Value::Weight(Weight(weight)) => Some(*weight),
                    _ => None,
                };
            }
            Fate::Is(_) | Fate::Refused => known.refused = true,
        }
    }

    /// Who refused is asked again.
    pub(super) fn try_again(&mut self) {
        self.vms.values_mut().for_each(|known| known.refused = false);
    }

    /// Whose the weights are: what is not as we made it is somebody else's, and what we begin with.
    fn settle(&mut self, seen: &HostEstimate, policy: &Policy) {
        let may_have = seen.may_have();
        self.vms.retain(|id, _| may_have(id));
        self.gains.retain(may_have);
        for vm in seen.vms.iter().filter(|vm| vm.seen.role == Role::Vm) {
            let Some(Weight(now)) = vm.seen.weight else { continue };
            let before = self.before.get(&vm.seen.id);
            let known = self.vms.entry(vm.seen.id.clone()).or_insert(Known {
                base: before.map_or(now, |before| before.0),
                wrote: before.map(|_| now),
                late: None,
                not_before: Time(0),
                refused: false,
                held: None,
                less: None,
                enough: None,
            });
            // That of one that is left alone was put back: what we made it is anybody's from then on.
            if same(known.base, now) && left_alone(&vm.seen, policy) {
                (known.wrote, known.late, known.held) = (None, None, None);
            }
            if known.late.take_if(|late| same(*late, now)).is_some() {
                known.wrote = Some(now);
            }
            // One that is as it was may only be late to show what was written.
            if !same(known.base, now) && known.wrote.is_none_or(|wrote| !same(wrote, now)) {
                *known = Known { base: now, wrote: None, held: None, less: None, ..*known };
            }
        }
    }

    /// What VMs are to weigh, of those whose weight can be changed and who have siblings to share with.
    fn targets(
        &mut self,
        (seen, usual): (&HostEstimate, Option<&HostEstimate>),
        parts: &BTreeMap<VmId, Part<'_>>,
        pcpus: f64,
        policy: &Policy,
    ) -> BTreeMap<VmId, Target> {
        let mut siblings: BTreeMap<Option<&str>, Vec<Sibling<'_>>> = BTreeMap::new();
        for (id, Part { granted, all, sure }) in parts {
            let vm = &seen.vms[granted.number].seen;
            let Some(Weight(now)) = vm.weight else { continue };
            let Some(known) = self.vms.get(id).filter(|known| known.usable(vm, seen.at)) else { continue };
            // Under Xen's credit scheduler a VM weighs its weight times its vCPUs.
            let times = match seen.host.rule {
                WeightRule::Linux => 1.0,
                WeightRule::XenCredit => f64::from(granted.vcpus.max(1)),
                WeightRule::EqualPerVcpu => continue,
            };
            siblings.entry(vm.parent.as_deref()).or_default().push(Sibling {
                id,
                base: known.base * times,
                now: now * times,
                held: known.held.unwrap_or(now * times),
                part: *all,
                sure: *sure,
                granted: *granted,
                times,
            });
        }
        siblings.retain(|_, vms| vms.len() > 1);
        let here: BTreeSet<&VmId> = siblings.values().flatten().map(|vm| vm.id).collect();
        let bounds = self.bounds();
        let mut targets = BTreeMap::new();
        for (parent, mut vms) in siblings {
            let weight: f64 = vms.iter().map(|vm| vm.base).sum();
            let whole: f64 = vms.iter().map(|vm| vm.part).sum();
            let group = members(seen, &vms, policy);
            self.gains.look(&group, seen.at, usual, policy);
            if let Some((number, brought, rest)) = self.gains.in_vain(&group, seen.at, policy) {
                let why = Why::Weightless { name: seen.vms[number].seen.name.clone(), brought };
                self.notes.push(format!("{why}; all weigh what they did for {} min", rest.as_secs() / 60));
                self.vain.extend(vms.iter().map(|vm| (vm.id.clone(), why.clone())));
                continue;
            }
            self.hold(&mut vms, weight / whole, seen.at, policy);
            let held: Vec<f64> = vms.iter().map(|vm| vm.held / vm.times).collect();
            let alone = |vm: &VmEstimate| vm.seen.parent.as_deref() != parent || here.contains(&vm.seen.id);
            let weights = taken(&held, bounds, seen.vms.iter().all(alone));
            let all: f64 = vms.iter().zip(&weights).map(|(vm, weight)| weight * vm.times).sum();
            for (vm, weight) in vms.iter().zip(weights) {
                let Some(known) = self.vms.get_mut(vm.id) else { continue };
                known.held = Some(vm.held);
                // By what is written; what is guaranteed may be more than there is.
                let part = weight * vm.times * whole.min(pcpus) / all;
                targets.insert(vm.id.clone(), Target { weight, part });
            }
        }
        targets
    }

    /// The least and the greatest weight that the host takes, as far as it shows.
    fn bounds(&self) -> (f64, f64) {
        let (least, most) = EVERYWHERE;
        let bases = || self.vms.values().map(|known| known.base);
        (
            if bases().any(|base| base < least) { WIDER.0 } else { least },
            if bases().any(|base| base > most) { WIDER.1 } else { most },
        )
    }

    /// From what siblings weigh to what they should, `each` for a pCPU: less after the dwell, or at once for one that is more important or has
    /// less than it is guaranteed; more as far as others leave it.
    fn hold(&mut self, vms: &mut [Sibling<'_>], each: f64, at: Time, policy: &Policy) {
        let wanted = |vm: &Sibling<'_>| each * vm.part;
        let lacks = |vm: &&Sibling<'_>| wanted(vm) > vm.held * (1.0 + policy.deadband);
        let first = vms.iter().filter(lacks).map(|vm| vm.granted.priority).max();
        let held: f64 = vms.iter().map(|vm| vm.held).sum();
        let whole: f64 = vms.iter().map(|vm| vm.part).sum();
        let claimed = vms.iter().filter(lacks).any(|vm| vm.held / held * whole < vm.sure);
        for vm in vms.iter_mut() {
            let Some(known) = self.vms.get_mut(vm.id) else { continue };
            let wanted = wanted(vm);
            if claimed || first.is_some_and(|first| first > vm.granted.priority) {
                (vm.held, known.less) = (vm.held.min(wanted), None);
            } else if wanted < vm.held * (1.0 - policy.deadband) {
                let (since, most) = known.less.map_or((at, wanted), |(at, most)| (at, most.max(wanted)));
                let due = at.since(since) >= policy.dwell();
                known.less = (!due).then_some((since, most));
                vm.held = if due { most } else { vm.held };
            } else {
                known.less = None;
            }
        }
        let more = |vm: &Sibling<'_>| (wanted(vm) - vm.held).max(0.0);
        let left: f64 = vms.iter().map(|vm| vm.base - vm.held).sum();
        let all: f64 = vms.iter().map(more).sum();
        let fits = if all > left.max(0.0) { left.max(0.0) / all } else { 1.0 };
        for vm in vms {
            vm.held += fits * more(vm);
        }
    }
}

/// For whether their weights bring something.
fn members<'a>(seen: &HostEstimate, vms: &[Sibling<'a>], policy: &Policy) -> Vec<Member<'a>> {
    let sum = |of: fn(&Sibling<'_>) -> f64| vms.iter().map(of).sum::<f64>();
    let (base, now, whole) = (sum(|vm| vm.base), sum(|vm| vm.now), sum(|vm| vm.part));
    // Of the pCPUs of one that may not use all, beside all who may use some of these.
    let own = |vm: &Sibling<'_>| {
        let meets = |other: &&Sibling<'_>| other.granted.own.meets(vm.granted.own);
        let beside: f64 = vms.iter().filter(meets).map(|other| other.base).sum();
        vm.base / beside * count(vm.granted.own.len())
    };
    let member = |vm: &Sibling<'a>| {
        let rule = policy.of(&seen.vms[vm.granted.number].seen.name);
        let lacks = (vm.base / base * whole).min(own(vm)) < vm.sure * (1.0 - policy.deadband);
        Member {
            id: vm.id,
            granted: vm.granted,
            weight: vm.now,
            base: vm.base / base,
            now: vm.now / now,
            to: vm.part / whole,
            promised: lacks && rule.guaranteed.or(rule.min.map(f64::from)).is_some(),
        }
    };
    vms.iter().map(member).collect()
}

impl Known {
    fn usable(&self, vm: &VmState, at: Time) -> bool {
        !self.refused && at >= self.not_before && vm.fixed(LeverKind::Weight).is_none()
    }
}

/// What each VM's part is, in pCPUs: the least of what it is of each set of pCPUs that it may use no others than, so that weights in
/// proportion to all of them give it.
pub(super) fn parts<'a>(seen: &HostEstimate, island: &Island<'a>) -> BTreeMap<VmId, Part<'a>> {
    let mut all: BTreeMap<VmId, Part<'a>> = BTreeMap::new();
    for part in island.sets().flat_map(|(pcpus, some)| parts_of(&some, count(pcpus))) {
        let least = all.entry(seen.vms[part.granted.number].seen.id.clone()).or_insert(part);
        if part.all < least.all {
            *least = part;
        }
    }
    all
}

/// The same of so many pCPUs.
fn parts_of<'a>(granted: &[Granted<'a>], pcpus: f64) -> Vec<Part<'a>> {
    let beyond =
        |granted: &Granted<'_>| (f64::from(granted.pcpus).min(granted.most) - granted.guaranteed).max(0.0);
    let (sure, guaranteed) = guarantees(granted, pcpus);
    let wanted: f64 = granted.iter().map(beyond).sum();
    let left = (pcpus - guaranteed).max(0.0);
    let factor = if wanted > left { left / wanted } else { 1.0 };
    let part = |(granted, sure): (&Granted<'a>, f64)| Part {
        granted: *granted,
        all: sure + factor * beyond(granted),
        sure,
    };
    granted.iter().zip(sure).map(part).collect()
}

/// What is guaranteed to each, as far as it fits: the more important first, equally important ones in proportion. Nobody gets nothing.
/// And what of that is missing to others: where not all fits, what is not wanted is not. Who wants less than that, of those whom others
/// come before, has at least what it would get if all of them wanted theirs, and no more than that: it may want it at once.
fn guarantees(granted: &[Granted<'_>], pcpus: f64) -> (Vec<f64>, f64) {
    let all: f64 = granted.iter().map(|granted| granted.guaranteed).sum();
    let claims = |granted: &Granted<'_>| {
        if all > pcpus { granted.guaranteed.min(granted.wants) } else { granted.guaranteed }
    };
    // Of each priority, in this order: what is wanted of what is guaranteed, and that; then the part of each that they get.
    let mut of: BTreeMap<std::cmp::Reverse<i32>, (f64, f64)> = BTreeMap::new();
    for granted in granted {
        let (wanted, guaranteed) = of.entry(std::cmp::Reverse(granted.priority)).or_default();
        *wanted += claims(granted);
        *guaranteed += granted.guaranteed;
    }
    let mut left = pcpus;
    for (place, (wanted, guaranteed)) in of.values_mut().enumerate() {
        let fits = |sum: f64| if sum > left { left / sum } else { 1.0 };
        let of_wanted = fits(*wanted);
        let of_all = if place == 0 { of_wanted } else { fits(*guaranteed) };
        // (Not less than nothing, by rounding: it is divided by.)
        left = (left - *wanted * of_wanted).max(0.0);
        (*wanted, *guaranteed) = (of_wanted.max(LITTLE), of_all.max(LITTLE));
    }
    let part = |granted: &Granted<'_>| of[&std::cmp::Reverse(granted.priority)];
    let sure = |granted: &Granted<'_>| {
        let (of_wanted, of_all) = part(granted);
        (of_wanted * claims(granted)).max(of_all * granted.guaranteed)
    };
    let missing = granted.iter().map(|granted| claims(granted) * part(granted).0).sum();
    (granted.iter().map(sure).collect(), missing)
}

/// Whole weights that a host takes, in the proportion of these as far as that can be: less than these where one would be too great, more where
/// one would be too small and siblings are `alone`, for others would lose by that.
fn taken(weights: &[f64], (least, most): (f64, f64), alone: bool) -> Vec<f64> {
    let smallest = weights.iter().copied().fold(f64::INFINITY, f64::min);
    let greatest = weights.iter().copied().fold(0.0, f64::max);
    let more = if alone { (least / smallest).max(1.0) } else { 1.0 };
    let times = more.min(most / greatest);
    weights.iter().map(|weight| (times * weight).round().clamp(least, most)).collect()
}

/// Whether two weights are the same: they are whole numbers.
fn same(a: f64, b: f64) -> bool {
    (a - b).abs() < 0.5
}
