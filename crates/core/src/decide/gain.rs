//! Whether weights brought something to those who were to get more by them.
//!
//! ```text
//!    ┌──────────────────────── ten minutes later ───────────────────────┐
//!    ▼       a minute with more weight          one of them gained      │
//! Watching ─────────────────────────────▶ judged ────────────────────▶ it stays
//!    ▲                                      │ none did                    ▲
//!    └── rests, twice as long each time ◀───┴── a minute of that: less ───┘
//! ```
//!
//! Gained is: work grew or, where nobody counts work, the part that a VM got of what it wants; by half the deadband, and by more than chance. Only
//! looks count in which somebody was short and no weight changed, and only with as many vCPUs, a VM that wants as much, and siblings that do.
//! Of who weighed more as soon as it came to want more nothing was seen before: what was available to it counts instead. Who cannot
//! be judged is left as it is. Formulas: docs/arbitration.md, "Weights".

use std::collections::BTreeMap;
use std::time::Duration;

use super::weigh::Granted;
use super::{Policy, longer};
use crate::Time;
use crate::machine::{HostEstimate, VmEstimate, VmId};

/// How long more weight is watched, and as how many looks, at least. Ours.
const WATCH: Duration = Duration::from_secs(60);
const LOOKS: f64 = 10.0;
/// So many looks before it are a measure; of more than this the older ones count by halves. Ours.
const FEW: f64 = 3.0;
const MANY: f64 = 120.0;
/// A gain of so many standard errors is no chance.
const NOISE: f64 = 2.0;
/// What is wanted is another thing where it is more or less by this part. Ours.
const OTHER: f64 = 0.25;
/// Who gets this part of what it wants lacks nothing, and who wants less than so many pCPUs is idle. Ours.
const ALL: f64 = 0.95;
const IDLE: f64 = 0.1;
/// How long weights that brought nothing rest at first, and those stay that brought something; looks from before a pause as long say nothing
/// any more. Ours.
const FIRST_REST: Duration = Duration::from_secs(600);

/// What weights brought to each VM.
#[derive(Debug, Default)]
pub(super) struct Gains {
    vms: BTreeMap<VmId, Gain>,
}

/// One of those whose weights are compared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member<'a> {
    pub(super) id: &'a VmId,
    pub(super) granted: Granted<'a>,
    pub(super) weight: f64,
    /// Its parts of what all of them weigh, from 0 to 1: before weights were ours, now, and as it should be.
    pub(super) base: f64,
    pub(super) now: f64,
    pub(super) to: f64,
    /// A rule says what it is guaranteed, and it would not have that by what it weighed before.
    pub(super) promised: bool,
}

/// What was measured with the weights of before, and with more weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Brought {
    /// Units of work a second; else the part that it got of what it wants, from 0 to 1.
    pub work: bool,
    /// With the weights of before.
    pub before: f64,
    /// With more weight.
    pub since: f64,
}

/// What is known of a VM.
#[derive(Clone, Copy, Debug, Default)]
struct Gain {
    by: By,
    /// Since when it has other siblings than that says.
    others: Option<Time>,
    vcpus: usize,
    weight: f64,
    /// When that was seen to change last.
    moved: Time,
    /// The last look, and pCPUs that it used and waited for then.
    last: Time,
    wants: f64,
    /// With the weights of before, and with more.
    without: Looks,
    with: Looks,
    /// pCPUs that were available to it with the weights of before, and what its siblings wanted then.
    had: Option<(f64, f64)>,
    /// Units of work, and when.
    counted: Option<(f64, Time)>,
    found: Found,
    rest: Duration,
    /// Since when siblings are to weigh what they did.
    vain: Option<Time>,
    /// The most pCPUs that it was granted when it was found that more weight brings nothing.
    granted: u32,
}

/// What counts for what a VM is to get: if that changes, all begins anew.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct By {
    own: Own,
    /// How many there are, and its part of all weights before these were ours: one of them may be away for a moment.
    siblings: usize,
    base: f64,
}

/// What of that has nothing to do with its siblings.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Own {
    priority: i32,
    guaranteed: f64,
    most: f64,
}

#[derive(Clone, Copy, Debug, Default)]
enum Found {
    #[default]
    Open,
    /// It is judged anew then.
    Gained { until: Time },
    /// More is not tried before that; and whether it was compared with what came of that then.
    Nothing { brought: Brought, until: Time, compared: bool },
}

#[derive(Clone, Copy, Debug, Default)]
struct Looks {
    over: Duration,
    /// The part that it got of what it wants, and units of work a second.
    served: Mean,
    work: Mean,
    /// pCPUs that it wants, and its siblings.
    own: Mean,
    others: Mean,
}

#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    n: f64,
    sum: f64,
    squares: f64,
}

impl Gains {
    /// Forgets those that are gone.
    pub(super) fn retain(&mut self, may_have: impl Fn(&VmId) -> bool) {
        self.vms.retain(|id, _| may_have(id));
    }

    /// A look at siblings of whom somebody is short. `usual`: what happened in the usual time, if that has passed and tells.
    pub(super) fn look(
        &mut self,
        group: &[Member<'_>],
        at: Time,
        usual: Option<&HostEstimate>,
        policy: &Policy,
    ) {
        let mut moved = Time(0);
        for vm in group {
            let gain = self.vms.entry(vm.id.clone()).or_insert(Gain { weight: vm.weight, ..Gain::default() });
            if (gain.weight - vm.weight).abs() >= 0.5 {
                (gain.weight, gain.moved) = (vm.weight, at);
            }
            moved = moved.max(gain.moved);
        }
        let Some(seen) = usual else { return };
        let whole = seen.at.since(moved) >= seen.over;
        let as_before = group.iter().all(|vm| (vm.now - vm.base).abs() < 1e-9);
        let all: f64 = group.iter().filter_map(|vm| wants(vm.of(seen))).sum();
        for vm in group {
            let Some(gain) = self.vms.get_mut(vm.id) else { continue };
            let same = gain.begin(By::of(vm, group), vm.granted.pcpus, (seen.at, seen.over), policy);
            let more = vm.rises(vm.now, policy);
            let more = (same && whole && (as_before || more)).then_some(more);
            let others = all - wants(vm.of(seen)).unwrap_or(0.0);
            gain.look(vm.of(seen), others, more, (seen.at, seen.over));
            gain.was_wrong(seen.at, policy);
        }
        if !group.iter().any(|vm| vm.promised) {
            self.judge(group, seen.at, policy);
        }
    }

    /// Whether those that weigh more gained. If none did, they rest.
    fn judge(&mut self, group: &[Member<'_>], at: Time, policy: &Policy) {
        let rising = || group.iter().filter(|vm| vm.rises(vm.now, policy));
        let judged = rising().filter_map(|vm| {
            let gain = self.vms.get(vm.id)?;
            let open = matches!(gain.found, Found::Open) && gain.lacks();
            open.then(|| (vm.id, vm.granted.pcpus, gain.verdict(policy)))
        });
        let judged: Vec<_> = judged.collect();
        for (id, _, verdict) in &judged {
            if let (Some((true, _)), Some(gain)) = (verdict, self.vms.get_mut(*id)) {
                gain.gained(at);
            }
        }
        let gained =
            |vm: &Member<'_>| matches!(self.vms.get(vm.id), Some(Gain { found: Found::Gained { .. }, .. }));
        if rising().any(gained) {
            return;
        }
        let nothing: Option<Vec<_>> =
            judged.into_iter().map(|(id, granted, verdict)| Some((id, granted, verdict?.1))).collect();
        for (id, granted, brought) in nothing.into_iter().flatten() {
            let Some(gain) = self.vms.get_mut(id) else { continue };
            gain.rest = longer(gain.rest.max(FIRST_REST / 2));
            (gain.without, gain.granted) = (Looks::default(), gain.granted.max(granted));
            gain.found = Found::Nothing { brought, until: at + gain.rest, compared: false };
        }
    }

    /// Who proved that more weight brings nothing, where siblings are to weigh what they did because of that: all who are to have a greater
    /// part did, for the dwell.
    pub(super) fn in_vain(
        &mut self,
        group: &[Member<'_>],
        at: Time,
        policy: &Policy,
    ) -> Option<(usize, Brought, Duration)> {
        let found = self.nothing(group, at, policy);
        let mut since = at;
        for vm in group {
            let Some(gain) = self.vms.get_mut(vm.id) else { continue };
            gain.vain = found.is_some().then_some(gain.vain.unwrap_or(at));
            since = since.min(gain.vain.unwrap_or(at));
        }
        found.filter(|_| at.since(since) >= policy.dwell())
    }

    /// The same, if only now.
    fn nothing(&self, group: &[Member<'_>], at: Time, policy: &Policy) -> Option<(usize, Brought, Duration)> {
        if group.iter().any(|vm| vm.promised) {
            return None;
        }
        let mut found = None;
        for vm in group.iter().filter(|vm| vm.rises(vm.to, policy)) {
            let gain = self.vms.get(vm.id).filter(|gain| gain.by.own == By::of(vm, group).own)?;
            // Who gained, or is not judged yet, keeps what it has.
            let brought = gain.rests(vm.granted.pcpus, at)?;
            found = found.or(Some((vm.granted.number, brought, gain.rest)));
        }
        found
    }
}

impl Member<'_> {
    /// Whether this is a greater part than it had by the weights of before.
    fn rises(&self, to: f64, policy: &Policy) -> bool {
        to > self.base * (1.0 + policy.deadband)
    }

    fn of<'s>(&self, seen: &'s HostEstimate) -> &'s VmEstimate {
        &seen.vms[self.granted.number]
    }
}

impl By {
    fn of(vm: &Member<'_>, group: &[Member<'_>]) -> By {
        let Granted { priority, guaranteed, most, .. } = vm.granted;
        By { own: Own { priority, guaranteed, most }, siblings: group.len(), base: vm.base }
    }

    fn has_siblings_of(&self, other: &By, policy: &Policy) -> bool {
        self.siblings == other.siblings && (self.base - other.base).abs() <= policy.deadband * self.base
    }
}

impl Gain {
    /// A look; whether its siblings are those of before. Where some are others than for a moment, or it is to get another part itself, all
    /// begins anew.
    fn begin(&mut self, by: By, granted: u32, (at, over): (Time, Duration), policy: &Policy) -> bool {
        let same = self.by.has_siblings_of(&by, policy);
        self.others = (!same).then_some(self.others.unwrap_or(at));
        let is_over = self.by.siblings == 0 || self.others.is_some_and(|since| at.since(since) >= WATCH);
        if self.by.own != by.own || is_over {
            let Gain { vcpus, weight, moved, rest, .. } = *self;
            *self = Gain { by, vcpus, weight, moved, rest, ..Gain::default() };
        }
        let pause = at.since(self.last);
        if pause > FIRST_REST {
            (self.with, self.without, self.had) = (Looks::default(), Looks::default(), None);
        }
        if pause > over * 2 {
            self.counted = None;
        }
        self.last = at;
        let is_open = match self.found {
            Found::Open => false,
            Found::Gained { until } => at >= until,
            Found::Nothing { .. } => self.rests(granted, at).is_none(),
        };
        if is_open {
            (self.found, self.with) = (Found::Open, Looks::default());
        }
        self.others.is_none()
    }

    /// More weight brought something: that stays, till it is judged anew.
    fn gained(&mut self, at: Time) {
        self.found = Found::Gained { until: at + FIRST_REST };
    }

    /// A look, with the weights of before, or with more weight; `None`: neither.
    fn look(&mut self, vm: &VmEstimate, others: f64, more: Option<bool>, (at, over): (Time, Duration)) {
        let work = self.work(vm, at);
        self.wants = wants(vm).unwrap_or(0.0);
        let vcpus = vm.seen.online().len();
        let same = std::mem::replace(&mut self.vcpus, vcpus) == vcpus;
        if !same {
            (self.with, self.without) = (Looks::default(), Looks::default());
        }
        if more == Some(false) {
            self.had = vm.available.map(|available| (available.0, others));
        }
        let looks = match more.filter(|_| same && self.wants >= IDLE) {
            Some(true) => &mut self.with,
            Some(false) => &mut self.without,
            None => return,
        };
        looks.over += over;
        looks.served.add(vm.activity.used.unwrap_or_default().0 / self.wants);
        looks.own.add(self.wants);
        looks.others.add(others);
        work.into_iter().for_each(|work| looks.work.add(work));
    }

    /// Units of work a second since it was counted last.
    fn work(&mut self, vm: &VmEstimate, at: Time) -> Option<f64> {
        let now = (vm.seen.progress?, vm.seen.progress_at.unwrap_or(at));
        let (units, then) = self.counted.replace(now)?;
        (now.1 > then && now.0 >= units).then(|| (now.0 - units) / now.1.since(then).as_secs_f64())
    }

    /// Whether it wants more than it got with the weights of before, as far as is known.
    fn lacks(&self) -> bool {
        let had = self.had.map(|(had, _)| had / self.wants);
        let served = if self.without.served.n >= FEW { Some(self.without.served.mean()) } else { had };
        self.wants >= IDLE && served.is_none_or(|served| served < ALL)
    }

    /// What more weight brought, if that is found to be nothing, and it is not tried again yet.
    fn rests(&self, granted: u32, at: Time) -> Option<Brought> {
        match self.found {
            Found::Nothing { brought, until, .. } if at < until && granted <= self.granted => Some(brought),
            _ => None,
        }
    }

    /// Whether it gained, and what it was, once that was watched for long enough.
    fn verdict(&self, policy: &Policy) -> Option<(bool, Brought)> {
        if self.with.is_long(policy) { self.compare(policy) } else { None }
    }

    /// The same without more weight: if it does less so, that brought something after all. Once it or its siblings want something else that was
    /// found of another load.
    fn was_wrong(&mut self, at: Time, policy: &Policy) {
        let Found::Nothing { compared, .. } = self.found else { return };
        let other = |now: &Mean, then: &Mean| (now.mean() - then.mean()).abs() > OTHER * then.mean();
        let (with, without) = (&self.with, &self.without);
        if without.served.n >= LOOKS
            && (other(&without.own, &with.own) || other(&without.others, &with.others))
        {
            (self.found, self.with) = (Found::Open, Looks::default());
            return;
        }
        if compared || !without.is_long(policy) {
            return;
        }
        let Some((gained, _)) = self.compare(policy) else { return };
        if gained {
            self.rest = Duration::ZERO;
            self.gained(at);
        } else if let Found::Nothing { compared, .. } = &mut self.found {
            *compared = true;
        }
    }

    fn compare(&self, policy: &Policy) -> Option<(bool, Brought)> {
        let (with, without) = (&self.with, &self.without);
        let seen = without.served.n >= FEW;
        let (own, others) =
            if seen { (without.own.mean(), without.others.mean()) } else { (with.own.mean(), self.had?.1) };
        let counts = without.work.n >= FEW && with.work.n >= FEW && without.work.sum + with.work.sum > 0.0;
        let (before, since) = match counts {
            true => (without.work, with.work),
            false if seen => (without.served, with.served),
            false => (Mean::of((self.had?.0 / own).min(1.0)), with.served),
        };
        let (chance, least) = (NOISE * before.error(&since), policy.deadband / 2.0 * before.mean());
        let more = since.mean() - before.mean();
        let gained = more > chance.max(least);
        if !gained && (more > least || chance > 2.0 * least) {
            return None;
        }
        let part = |now: f64, then: f64| now / then.max(f64::MIN_POSITIVE);
        let (own, others) = (part(with.own.mean(), own), part(with.others.mean(), others));
        // Others that want less, or more, explain it as well.
        let other = if gained { others < 1.0 - OTHER } else { others > 1.0 + OTHER };
        let brought = Brought { work: counts, before: before.mean(), since: since.mean() };
        (!other && (own - 1.0).abs() <= OTHER).then_some((gained, brought))
    }
}

impl Looks {
    fn is_long(&self, policy: &Policy) -> bool {
        self.over >= WATCH.max(policy.window()) && self.served.n >= LOOKS
    }
}

impl Mean {
    fn of(value: f64) -> Mean {
        Mean { n: 1.0, sum: value, squares: value * value }
    }

    fn add(&mut self, value: f64) {
        if self.n >= MANY {
            *self = Mean { n: self.n / 2.0, sum: self.sum / 2.0, squares: self.squares / 2.0 };
        }
        let Mean { n, sum, squares } = *self;
        *self = Mean { n: n + 1.0, sum: sum + value, squares: squares + value * value };
    }

    fn mean(&self) -> f64 {
        if self.n > 0.0 { self.sum / self.n } else { 0.0 }
    }

    /// The standard error of the difference of two means.
    fn error(&self, other: &Mean) -> f64 {
        let square = |of: &Mean| {
            let deviations = (of.squares - of.sum * of.mean()).max(0.0);
            if of.n > 1.0 { deviations / (of.n - 1.0) / of.n } else { 0.0 }
        };
        (square(self) + square(other)).sqrt()
    }
}

impl std::fmt::Display for Brought {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Brought { work, before, since } = self;
        if *work {
            write!(f, "it did {before:.1} units of work a second before, and {since:.1} with more weight")
        } else {
            let [before, since] = [before, since].map(|part| 100.0 * part);
            write!(f, "it got {before:.0} % of what it wants before, and {since:.0} % with more weight")
        }
    }
}

/// pCPUs that a VM used and waited for; `None` where that was not measured.
fn wants(vm: &VmEstimate) -> Option<f64> {
    Some(vm.activity.used?.0 + vm.activity.waiting?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks of a second at a VM that wants two pCPUs and got these parts of it, beside others that want so many.
    fn looks(served: impl IntoIterator<Item = f64>, others: f64) -> Looks {
        let mut looks = Looks::default();
        for part in served {
            looks.over += Duration::from_secs(1);
            looks.served.add(part);
            looks.own.add(2.0);
            looks.others.add(others);
        }
        looks
    }

    /// So many looks that are now less and now more than this by `noise`.
    fn around(mean: f64, noise: f64, n: usize) -> impl Iterator<Item = f64> {
        (0..n).map(move |look| if look % 2 == 0 { mean + noise } else { mean - noise })
    }

    fn compared(without: Looks, with: Looks) -> Option<bool> {
        let gain = Gain { without, with, ..Gain::default() };
        gain.verdict(&Policy::default()).map(|(gained, _)| gained)
    }

    #[test]
    fn a_gain_is_more_than_chance_and_more_than_half_the_deadband() {
        let of = |gain: f64, noise, before| {
            compared(looks(around(0.5, noise, before), 2.0), looks(around(0.5 + gain, noise, 60), 2.0))
        };
        assert_eq!(of(0.04, 0.01, 4), Some(true));
        assert_eq!(of(0.04, 0.1, 4), None, "four looks before it may differ as much by chance");
        assert_eq!(of(0.2, 0.35, 10), None, "it may be a great one");
        assert_eq!(of(0.0, 0.35, 60), None, "nor is it known that it is none");
        assert_eq!(of(0.04, 0.1, 60), Some(true));
        assert_eq!(of(0.01, 0.0, 60), Some(false), "2 %");
        assert_eq!(of(0.01, 0.0, 2), None, "nothing was seen before it");
    }

    /// For ten minutes.
    const NOTHING: Found = Found::Nothing {
        brought: Brought { work: false, before: 0.5, since: 0.5 },
        until: Time(600_000_000_000),
        compared: false,
    };

    /// Two of three are to weigh more; what is known of the second, from this second on.
    fn in_vain(gains: &mut Gains, found: Found, s: u64) -> bool {
        let own = crate::CpuSet::first(4);
        let ids = ["a", "b", "c"].map(|id| VmId(id.into()));
        let granted = Granted {
            number: 0,
            own: &own,
            pcpus: 2,
            short: true,
            guaranteed: 0.25,
            keeps: 0.0,
            most: 2.0,
            wants: 2.0,
            priority: 0,
            vcpus: 2,
        };
        let base = 1.0 / 3.0;
        let member = |id, to| Member { id, granted, weight: 1000.0, base, now: to, to, promised: false };
        let group = [member(&ids[0], 0.45), member(&ids[1], 0.45), member(&ids[2], 0.1)];
        for (vm, found) in group.iter().zip([NOTHING, found, Found::Open]) {
            let by = By::of(vm, &group);
            let vain = gains.vms.get(vm.id).and_then(|gain| gain.vain);
            gains.vms.insert(vm.id.clone(), Gain { by, found, vain, granted: 2, ..Gain::default() });
        }
        gains.in_vain(&group, Time(s * 1_000_000_000), &Policy::default()).is_some()
    }

    #[test]
    fn weights_stay_while_one_gained_or_is_not_judged_yet_and_go_back_after_the_dwell() {
        let gains = &mut Gains::default();
        let stays = [Found::Open, Found::Gained { until: Time(600_000_000_000) }];
        assert!((0..20).all(|s| !in_vain(gains, stays[usize::from(s % 2 == 0)], s)));
        let vain: Vec<bool> = (20..25).map(|s| in_vain(gains, NOTHING, s)).collect();
        assert_eq!(vain, [false, false, false, true, true]);
        assert!(!in_vain(gains, Found::Open, 25) && !in_vain(gains, NOTHING, 26), "anew");
    }

    #[test]
    fn less_than_a_minute_tells_nothing_nor_do_looks_with_others_that_want_something_else() {
        let of = |with, seconds, others| {
            compared(looks(around(0.5, 0.0, 10), 2.0), looks(around(with, 0.0, seconds), others))
        };
        assert_eq!((of(0.5, 59, 2.0), of(0.5, 60, 2.0)), (None, Some(false)));
        assert_eq!((of(0.5, 60, 2.6), of(0.5, 60, 1.0)), (None, Some(false)), "more of them explain it");
        assert_eq!((of(0.8, 60, 1.0), of(0.8, 60, 2.6)), (None, Some(true)), "fewer of them do");
        let mut more = looks(around(0.5, 0.0, 60), 2.0);
        more.own = Mean::of(3.0);
        assert_eq!(compared(looks(around(0.5, 0.0, 10), 2.0), more), None, "it wants more itself");
    }

    #[test]
    fn who_weighed_more_at_once_is_compared_with_what_was_available_to_it() {
        let of = |served, had| {
            let with = looks(around(served, 0.0, 60), 2.0);
            let gain = Gain { had: Some((had, 2.0)), with, ..Gain::default() };
            gain.verdict(&Policy::default()).map(|(gained, _)| gained)
        };
        assert_eq!((of(0.8, 1.0), of(0.5, 1.0)), (Some(true), Some(false)));
    }

    #[test]
    fn work_counts_before_what_is_used_where_some_is_done() {
        let of = |before: f64, since: f64| {
            let [mut without, mut with] =
                [(0.5, 10), (0.8, 60)].map(|(part, n)| looks(around(part, 0.0, n), 2.0));
            (0..10).for_each(|_| without.work.add(before));
            (0..60).for_each(|_| with.work.add(since));
            compared(without, with)
        };
        assert_eq!((of(10.0, 10.0), of(10.0, 12.0), of(0.0, 0.0)), (Some(false), Some(true), Some(true)));
    }
}
