//! What each guest is told that it gets: the pCPUs available to its VM, smoothed, in quarters. Where vCPUs have quotas of their own, one
//! thread gets what one vCPU may use and no more, whatever is available: told is for how many vCPUs that is enough.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use corefit_core::decide::{Action, Policy, Why, each_vcpu};
use corefit_core::machine::{Activity, HostEstimate, Lever, LeverKind, Value, VmId};
use corefit_core::{Cpus, Time};

use super::journal::Entry;

/// Weight of what is new: three looks later two thirds of a change are told.
const NEW: f64 = 0.3;
/// Steps in which a guest is told more or less; a team does not follow anything finer.
const STEP: f64 = 0.25;
/// What was told stands until what is available is so far from it.
const DEADBAND: f64 = 0.2;
/// A guest that rests, whose VM used and waited for fewer pCPUs than this, is told of a change once in so long: what there is for each of
/// many guests that wake up by turns changes with each look. Once it does something it is told at the next look.
const RESTS: f64 = 0.05;
const RESTING: Duration = Duration::from_secs(30);
/// Who did not hear it is told again after so long at first, twice as long each time, and so long at most: each time is written in the journal.
const AGAIN: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);
/// So many that were told nothing yet are told in one look, so that the first look of a large host takes not much longer than another.
const NEWCOMERS: usize = 250;

/// What guests were told.
pub(crate) struct Telling {
    known: BTreeMap<VmId, Known>,
    /// How many that were told nothing yet are told in one look.
    newcomers: usize,
}

impl Default for Telling {
    fn default() -> Telling {
        Telling { known: BTreeMap::new(), newcomers: NEWCOMERS }
    }
}

struct Known {
    smooth: f64,
    /// Clearly less was available at the last look.
    fell: bool,
    told: Option<f64>,
    /// When that was another one last.
    told_at: Option<Time>,
    /// It was its turn to be told first.
    begun: bool,
    /// When it was told of more last.
    more_at: Option<Time>,
    /// What was told is still what the last look says, as far as it can be told.
    stands: bool,
    /// How long it rests as it did not hear it, and until when.
    rest: Duration,
    not_before: Time,
}

impl Known {
    fn new(smooth: f64, told: Option<f64>) -> Known {
        Known {
            smooth,
            fell: false,
            told,
            told_at: None,
            begun: told.is_some(),
            more_at: None,
            stands: false,
            rest: Duration::ZERO,
            not_before: Time(0),
        }
    }

    /// Whether it is told something, that was so lately, and nobody there does anything that what it is told is for.
    fn is_calm(&self, did: Activity, at: Time) -> bool {
        let rests = did.used.zip(did.waiting).is_some_and(|(used, waited)| used.0 + waited.0 < RESTS);
        let lately = self.told_at.is_some_and(|then| at.0 >= then.0 && at.since(then) < RESTING);
        rests && self.told.is_some() && lately
    }
}

impl Telling {
    /// As a daemon has it, by what it has changed. What was told by one that is not at work any more counts no more, or is taken back by
    /// the next. A plan is of all guests, however many.
    pub(crate) fn beside(at_work: bool, changed: &[Entry]) -> Telling {
        let told = |entry: &Entry| match (entry.lever, entry.wrote.last()?) {
            (Lever::Told, Value::Told(Some(Cpus(told)))) if !entry.pending => {
                Some((entry.vm.clone(), Known::new(*told, Some(*told))))
            }
            _ => None,
        };
        let known = changed.iter().filter(|_| at_work).filter_map(told).collect();
        Telling { known, newcomers: usize::MAX }
    }

    /// What to tell now: of more at most once in `lever_ms`. A VM that gets less hears of it at once, for spinning threads cost more than idle CPUs; but not of less than it
    /// used, before another look says the same: kernels count a sleep as waiting now and then, so that others seem to want what they do
    /// not (docs/model.md, "Demand"). Nor of less while numbers of its vCPUs are tried: with more of them it is to do what it can with those.
    pub(crate) fn step(
        &mut self,
        host: &HostEstimate,
        policy: &Policy,
        tries: impl Fn(&VmId) -> bool,
    ) -> Vec<Action> {
        let here: BTreeSet<&VmId> = host.vms.iter().map(|vm| &vm.seen.id).collect();
        let mut newcomers = 0;
        self.known.retain(|vm, _| here.contains(vm));
        let mut actions = Vec::new();
        for vm in &host.vms {
            let seen = &vm.seen;
            let can = seen.is_running_vm() && seen.guest.is_some();
            let may = policy.of(&seen.name).exclude != Some(true) && seen.fixed(LeverKind::Told).is_none();
            if !may {
                // What it was told is taken back; if it may hear of it again, it is told anew.
                self.known.remove(&seen.id);
            }
            let Some(pcpus) = vm.available.filter(|_| can && may) else {
                if let Some(known) = self.known.get_mut(&seen.id) {
                    (known.fell, known.stands) = (false, false);
                }
                continue;
            };
            let each = each_vcpu(vm);
            let available = pcpus.0 / each;
            let known = self.known.entry(seen.id.clone()).or_insert_with(|| Known::new(available, None));
            if !known.stands {
                // It may have booted meanwhile, or what it was told counts no more.
                known.told = known.told.filter(|_| known.told_at.is_none());
            }
            let available = if tries(&seen.id) { available.max(known.smooth) } else { available };
            known.stands = true;
            if known.told.is_some() {
                known.rest = Duration::ZERO;
            }
            let less = available < known.smooth - STEP;
            let again = std::mem::replace(&mut known.fell, less);
            known.smooth = if less {
                let used = vm.activity.used.map_or(0.0, |used| used.0 / each);
                if again { available } else { available.max(used.min(known.smooth)) }
            } else {
                known.smooth + NEW * (available - known.smooth)
            };
            let value = ((known.smooth / STEP).round() * STEP).max(STEP);
            let pause = Duration::from_millis(policy.lever_ms);
            let soon = || known.more_at.is_some_and(|at| host.at.0 >= at.0 && host.at.since(at) < pause);
            let differs = |told: f64| (known.smooth - told).abs() >= DEADBAND && told != value;
            let not_yet = host.at < known.not_before || known.is_calm(vm.activity, host.at);
            if !known.begun {
                known.begun = newcomers < self.newcomers;
                newcomers += 1;
            }
            if known.begun
                && !not_yet
                && known.told.is_none_or(|told| differs(told) && (value < told || !soon()))
            {
                if known.told.is_some_and(|told| told < value) {
                    known.more_at = Some(host.at);
                }
                known.told_at = Some(host.at);
                let from = known.told.replace(value).map(|told| Value::Told(Some(Cpus(told))));
                let to = Value::Told(Some(Cpus(value)));
                let why = if each < 1.0 {
                    Why::Limited { available: pcpus, each: Cpus(each) }
                } else if (value - available).abs() > STEP {
                    Why::Smoothed { available: Cpus(available) }
                } else {
                    Why::Available { available: Cpus(available) }
                };
                actions.push(Action::of(seen, Lever::Told, from, to, why));
            }
        }
        actions
    }

    /// Whether what a guest was told is still so, as far as the last look can say.
    pub(super) fn stands(&self, vm: &VmId) -> bool {
        self.known.get(vm).is_some_and(|known| known.stands)
    }

    /// A guest did not hear it at this time: it is told again, after a rest where that was tried.
    pub(super) fn missed(&mut self, vm: &VmId, tried: bool, at: Time) {
        let Some(known) = self.known.get_mut(vm) else { return };
        known.told = None;
        if tried {
            known.rest = (2 * known.rest).clamp(AGAIN, LONGEST);
            known.not_before = at + known.rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use corefit_core::Quota;
    use corefit_core::entitle::Host;
    use corefit_core::machine::{Classed, GuestView, Timeslices, VcpuState, VmEstimate, VmState};

    fn host(available: f64, used: Option<f64>) -> HostEstimate {
        let guest = Some(GuestView::default());
        let seen = VmState { name: "a".into(), guest, ..VmState::default() };
        let vm = VmEstimate {
            seen,
            entitled: None,
            available: Some(Cpus(available)),
            activity: Activity { used: used.map(Cpus), ..Activity::default() },
            demand: None,
            vcpus: Vec::new(),
            timeslices: Timeslices::default(),
            helpers: Vec::new(),
            cache: None,
            class: Classed::default(),
            binding: String::new(),
            reasons: Vec::new(),
        };
        HostEstimate {
            at: Time(0),
            over: std::time::Duration::from_secs(1),
            pcpus: Vec::new(),
            vms: vec![vm],
            host: Host::default(),
            division: None,
            unread: Vec::new(),
            notes: Vec::new(),
            uncounted: None,
        }
    }

    fn told(telling: &mut Telling, available: f64) -> Option<f64> {
        told_while(telling, available, None)
    }

    fn told_while(telling: &mut Telling, available: f64, used: Option<f64>) -> Option<f64> {
        // A look each second.
        static NOW: AtomicU64 = AtomicU64::new(0);
        let at = Time(NOW.fetch_add(1_000_000_000, Ordering::Relaxed));
        match telling
            .step(&HostEstimate { at, ..host(available, used) }, &Policy::default(), |_| false)
            .first()?
            .to
        {
            Value::Told(Some(Cpus(told))) => Some(told),
            _ => None,
        }
    }

    #[test]
    fn a_loss_is_told_at_once_noise_is_not_and_a_gain_in_time() {
        let mut telling = Telling::default();
        assert_eq!(told(&mut telling, 2.0), Some(2.0));
        for noise in [1.9, 2.1, 1.95, 2.0] {
            assert_eq!(told(&mut telling, noise), None);
        }
        assert_eq!(told(&mut telling, 1.0), Some(1.0));
        let gained: Vec<f64> = (0..20).filter_map(|_| told(&mut telling, 2.0)).collect();
        assert_eq!(gained.last(), Some(&2.0), "{gained:?}");
        assert_eq!(told(&mut telling, 0.01), Some(0.25), "nobody is told nothing");
    }

    #[test]
    fn where_each_vcpu_has_a_quota_told_is_for_how_many_of_them_there_is_enough() {
        let quota = Quota { quota_us: Some(25_000), period_us: 100_000, burst_us: 0, source: String::new() };
        let vcpu = |online| VcpuState { online, quota: Some(quota.clone()), ..VcpuState::default() };
        let mut telling = Telling::default();
        let mut step = |available: f64, used: f64| {
            let mut host = host(available, Some(used));
            host.vms[0].seen.vcpus = vec![vcpu(true), vcpu(true), vcpu(true), vcpu(true), vcpu(false)];
            telling.step(&host, &Policy::default(), |_| false).pop().map(|action| (action.to, action.why))
        };
        let told = |cpus, available| {
            let why = Why::Limited { available: Cpus(available), each: Cpus(0.25) };
            Some((Value::Told(Some(Cpus(cpus))), why))
        };
        assert_eq!(step(1.0, 0.75), told(4.0, 1.0), "one thread gets one vCPU's quarter, and no more");
        assert_eq!(step(0.5, 0.75), told(3.0, 0.5), "what it used is told until another look says the same");
        assert_eq!(step(0.5, 0.5), told(2.0, 0.5), "others take the rest");
    }

    #[test]
    fn what_a_vm_gets_with_a_number_that_is_tried_is_not_told() {
        let mut telling = Telling::default();
        let mut step = |second: u64, available: f64, tries: bool| {
            let host = HostEstimate { at: Time(second * 1_000_000_000), ..host(available, None) };
            telling.step(&host, &Policy::default(), |_| tries).pop().map(|action| action.to)
        };
        let told = |cpus: f64| Some(Value::Told(Some(Cpus(cpus))));
        assert_eq!(step(0, 4.0, false), told(4.0));
        assert!((1..20).all(|second| step(second, 1.0, true).is_none()));
        assert_eq!(step(20, 1.0, false), told(1.0), "it is to stay with so few");
    }

    #[test]
    fn of_more_a_guest_hears_at_most_once_in_the_time_of_a_lever_and_of_less_at_once() {
        let policy = Policy { lever_ms: 10_000, ..Policy::default() };
        let mut telling = Telling::default();
        let mut changes = Vec::new();
        for second in 0..40 {
            let available = [4.0, 1.0, 4.0][(second / 2).min(2) as usize];
            let at = Time(second * 1_000_000_000);
            let host = HostEstimate { at, ..host(available, None) };
            changes.extend(
                telling.step(&host, &policy, |_| false).first().map(|action| (second, action.to.clone())),
            );
        }
        assert_eq!(changes[1], (2, Value::Told(Some(Cpus(1.0)))));
        let more: Vec<u64> = changes[2..].iter().map(|(second, _)| *second).collect();
        assert!(more.windows(2).all(|pair| pair[1] - pair[0] >= 10), "{changes:?}");
        assert_eq!(changes.last().unwrap().1, Value::Told(Some(Cpus(4.0))), "{changes:?}");
    }

    #[test]
    fn what_was_told_stands_only_while_it_can_be_said() {
        let mut telling = Telling::default();
        let vm = VmId::default();
        told(&mut telling, 2.0);
        assert!(telling.stands(&vm));
        let mut unknown = host(2.0, None);
        unknown.vms[0].available = None;
        telling.step(&unknown, &Policy::default(), |_| false);
        assert!(!telling.stands(&vm), "nobody knows what is available");
        told(&mut telling, 2.0);
        assert!(telling.stands(&vm));
        let mut silent = host(2.0, None);
        silent.vms[0].seen.guest = None;
        telling.step(&silent, &Policy::default(), |_| false);
        assert!(!telling.stands(&vm), "its agent does not answer");
    }

    #[test]
    fn who_was_silent_in_between_is_told_again() {
        let mut telling = Telling::default();
        let mut step = |answers: bool| {
            let mut host = host(2.0, Some(0.0));
            host.vms[0].seen.guest = answers.then(GuestView::default);
            !telling.step(&host, &Policy::default(), |_| false).is_empty()
        };
        assert_eq!([true, true, false, true, true].map(&mut step), [true, false, false, true, false]);
    }

    #[test]
    fn less_than_was_used_is_told_once_two_looks_say_so() {
        let mut telling = Telling::default();
        let mut told = |available, used| told_while(&mut telling, available, Some(used));
        assert_eq!(told(2.0, 1.9), Some(2.0));
        // Somebody seemed to want a pCPU for a look, and took none.
        assert_eq!(told(0.95, 1.9), None);
        assert_eq!(told(1.9, 1.9), None);
        assert_eq!(told(0.95, 1.9), None);
        assert_eq!(told(0.95, 1.9), Some(1.0));
        for _ in 0..20 {
            told(2.0, 1.9);
        }
        // Somebody took some.
        assert_eq!(told(1.0, 1.5), Some(1.5));
        assert_eq!(told(1.0, 1.0), Some(1.0));
    }

    #[test]
    fn a_guest_that_rests_is_told_rarely_and_once_it_does_something_at_once() {
        let step = |telling: &mut Telling, second: u64, available: f64, did: (f64, Option<f64>)| {
            let at = Time(second * 1_000_000_000);
            let mut host = HostEstimate { at, ..host(available, Some(did.0)) };
            host.vms[0].activity.waiting = did.1.map(Cpus);
            !telling.step(&host, &Policy::default(), |_| false).is_empty()
        };
        let by_turns = |second: u64| if (second / 5).is_multiple_of(2) { 0.5 } else { 2.0 };
        let times = |did: (f64, Option<f64>)| {
            let mut telling = Telling::default();
            (0..120).filter(|second| step(&mut telling, *second, by_turns(*second), did)).count()
        };
        assert_eq!(times((0.01, Some(0.0))), 4);
        // Who does something, or waits for a pCPU, or of whom that is not known, is told each time.
        for did in [(0.2, Some(0.0)), (0.01, Some(0.2)), (0.01, None)] {
            assert!(times(did) > 20, "{did:?}");
        }
        let mut telling = Telling::default();
        let rests = (0.01, Some(0.0));
        let told = [rests, rests, (0.9, Some(0.0))].map(|did| {
            let second = u64::try_from(telling.known.len()).unwrap();
            step(&mut telling, second, if second == 0 { 1.0 } else { 4.0 }, did)
        });
        assert_eq!(told, [true, false, true]);
    }

    #[test]
    fn who_was_told_by_a_daemon_that_is_at_work_is_to_be_told_only_what_is_another() {
        let entry = |told: f64, pending| Entry {
            vm: VmId::default(),
            name: "a".into(),
            lever: Lever::Told,
            original: Value::Told(None),
            came: None,
            wrote: vec![Value::Told(Some(Cpus(9.0))), Value::Told(Some(Cpus(told)))],
            pending,
        };
        let planned = |at_work, told, pending| {
            let mut telling = Telling::beside(at_work, &[entry(told, pending)]);
            let step = telling.step(&host(2.0, None), &Policy::default(), |_| false);
            step.first().map(|action| (action.from.clone(), action.to.clone()))
        };
        let value = |cpus: f64| Value::Told(Some(Cpus(cpus)));
        assert_eq!(planned(false, 2.0, false), Some((None, value(2.0))));
        assert_eq!(planned(true, 2.0, false), None);
        assert_eq!(planned(true, 4.0, false), Some((Some(value(4.0)), value(2.0))));
        assert_eq!(planned(true, 2.0, true), Some((None, value(2.0))), "whether it heard that is not known");
    }

    #[test]
    fn who_did_not_hear_it_is_told_again() {
        let mut telling = Telling::default();
        told(&mut telling, 2.0);
        assert_eq!(told(&mut telling, 2.0), None);
        telling.missed(&VmId::default(), false, Time(0));
        assert_eq!(told(&mut telling, 2.0), Some(2.0));
    }

    #[test]
    fn who_never_hears_it_is_told_more_and_more_rarely() {
        let mut telling = Telling::default();
        let mut tries = Vec::new();
        for second in 0..100 {
            let at = Time(second * 1_000_000_000);
            if !telling
                .step(&HostEstimate { at, ..host(2.0, None) }, &Policy::default(), |_| false)
                .is_empty()
            {
                tries.push(second);
                telling.missed(&VmId::default(), true, at);
            }
        }
        assert_eq!(tries, [0, 1, 3, 7, 15, 31, 61, 91]);
        let at = |second: u64| HostEstimate { at: Time(second * 1_000_000_000), ..host(2.0, None) };
        assert_eq!(telling.step(&at(121), &Policy::default(), |_| false).len(), 1, "it heard it");
        telling.step(&at(122), &Policy::default(), |_| false);
        telling.missed(&VmId::default(), true, at(122).at);
        assert_eq!(telling.step(&at(123), &Policy::default(), |_| false).len(), 1, "anew");
    }

    #[test]
    fn of_many_that_were_told_nothing_yet_some_are_told_in_each_look_and_a_plan_is_of_all() {
        let vm = |number| VmEstimate {
            seen: VmState { id: VmId(format!("{number:04}")), ..host(2.0, None).vms[0].seen.clone() },
            ..host(2.0, None).vms[0].clone()
        };
        let at = |second: u64| HostEstimate {
            at: Time(second * 1_000_000_000),
            vms: (0..600).map(vm).collect(),
            ..host(2.0, None)
        };
        let mut telling = Telling::default();
        let mut told = |second| telling.step(&at(second), &Policy::default(), |_| false);
        let looks = [told(0), told(1), told(2), told(3)];
        assert_eq!(looks.each_ref().map(Vec::len), [250, 250, 100, 0]);
        let all: BTreeSet<&VmId> = looks.iter().flatten().map(|action| &action.vm).collect();
        assert_eq!(all.len(), 600);
        // Those that never hear it are no newcomers again.
        for action in &looks[0] {
            telling.missed(&action.vm, false, at(3).at);
        }
        let mut more = at(4);
        more.vms.extend((600..900).map(vm));
        assert_eq!(telling.step(&more, &Policy::default(), |_| false).len(), 500);
        let mut plan = Telling::beside(false, &[]);
        assert_eq!(plan.step(&more, &Policy::default(), |_| false).len(), 900);
    }

    #[test]
    fn excluded_vms_are_told_nothing_and_anew_once_they_are_not() {
        let policy = toml::from_str("[[vm]]\nname = \"a\"\nexclude = true\n").unwrap();
        let mut telling = Telling::default();
        assert!(telling.step(&host(2.0, None), &policy, |_| false).is_empty());
        assert_eq!(told(&mut telling, 2.0), Some(2.0));
        assert!(telling.step(&host(2.0, None), &policy, |_| false).is_empty());
        assert_eq!(told(&mut telling, 2.0), Some(2.0));
    }
}
