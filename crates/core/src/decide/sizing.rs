//! The stage that sizes: how many vCPUs each VM has online, and how wide the cpusets of control groups are.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::arbitrate::Grant;
use super::asked::{Asked, action, cpuset};
use super::cpusets::Crowd;
use super::known::Known;
use super::part::{may_use, online, weight};
use super::size::Subject;
use super::{Action, Controller, Policy, Step, counted, hypothesis};
use crate::contest::cap;
use crate::entitle::{Host, WeightRule};
use crate::machine::{Activity, HostEstimate, Snapshot, Value, VmEstimate, VmId, VmState};
use crate::topology::Topology;
use crate::units::count;
use crate::{CpuSet, Cpus};

/// A guest's count is brought by its agent, and `corefit run` there looks every 0.05 to 1 s: a look shorter than twice this would be
/// one count long.
const LATE: Duration = Duration::from_millis(500);
/// A slice of Xen's credit (`CSCHED_DEFAULT_TSLICE_MS`, xen/common/sched/credit.c).
const SLICE: Duration = Duration::from_millis(30);
/// Where fewer pCPUs are available for each vCPU looks get no longer.
const LONGEST_TURN: Duration = Duration::from_millis(500);
/// What came of a change is awaited for so long.
const HOLD: Duration = Duration::from_secs(5);

impl Controller {
    /// Whether a VM that is tried with another count has not said yet what came of it. Not for long: nobody may keep the others
    /// waiting.
    pub(super) fn awaits(&mut self, asked: &[Asked], seen: &HostEstimate) -> bool {
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
    pub(super) fn size<'a>(
        &mut self,
        asked: &'a [Asked],
        grants: &Option<Vec<Grant>>,
        before: &Snapshot,
        seen: &'a HostEstimate,
        step: &mut Step,
    ) -> Vec<Action> {
        let ground = Ground::of(&self.policy, asked, seen);
        let crowd = asked.iter().any(|asked| asked.width.is_some());
        let mut crowd = crowd.then(|| Crowd::of(seen, &Topology::of_snapshot(before), &self.policy.reserved));
        let rates = self.rates(asked, before, seen);
        let mut searching = self.known.values().filter(|known| known.trying).count();
        let mut subjects = Vec::new();
        for (index, asked) in asked.iter().enumerate().filter(|(_, asked)| asked.sizable) {
            let Some(known) = self.known.get_mut(&seen.vms[asked.number].seen.id) else { continue };
            if seen.at < known.not_before {
                continue;
            }
            let granted = grants.as_ref().map(|grants| grants[index].pcpus);
            let may_search = known.trying || searching < self.policy.searches;
            let subject = ground.subject(asked, rates[index], granted, may_search);
            let tries =
                known.sizer.1.look(&subject, &ground.entitled(asked, crowd.as_ref()), &mut self.races);
            searching += usize::from(tries && !known.trying);
            subjects.push((asked, subject));
        }
        // Whoever was not looked at may want something else since.
        let looked: BTreeSet<&VmId> = subjects.iter().map(|(_, subject)| &subject.vm.seen.id).collect();
        let others = self.known.iter_mut().filter(|(id, _)| !looked.contains(id));
        others.for_each(|(_, known)| {
            known.fewer = None;
            known.apart.pause();
        });
        for (number, vm) in &ground.running {
            let rate = asked.binary_search_by_key(number, |asked| asked.number).ok().and_then(|at| rates[at]);
            let Activity { used, waiting } = vm.activity;
            if let Some(used) = used {
                self.races.see(&vm.seen.id, rate, used.0, waiting.map_or(0.0, |waiting| waiting.0));
            }
        }
        self.races.step(seen.over);
        let mut actions = Vec::new();
        for (asked, subject) in subjects {
            actions.extend(self.resize(asked, &subject, &ground, &mut crowd, &mut step.next));
        }
        actions
    }

    /// Work per second of each that asks, where it is counted.
    fn rates(&mut self, asked: &[Asked], before: &Snapshot, seen: &HostEstimate) -> Vec<Option<f64>> {
        let earlier: BTreeMap<&VmId, &VmState> = before.vms.iter().map(|vm| (&vm.id, vm)).collect();
        let mut rate_of = |asked: &Asked| {
            let vm = &seen.vms[asked.number].seen;
            let known = self.known.get_mut(&vm.id)?;
            let before = earlier.get(&vm.id).copied();
            counted::rate(before, vm, seen.over, known.trying, &mut known.work)
        };
        asked.iter().map(&mut rate_of).collect()
    }

    /// The change of one VM's size, if there is to be one. `next`: when to look again.
    fn resize(
        &mut self,
        asked: &Asked,
        subject: &Subject<'_>,
        ground: &Ground<'_>,
        crowd: &mut Option<Crowd>,
        next: &mut Duration,
    ) -> Option<Action> {
        let vm = subject.vm;
        let known = self.known.get_mut(&vm.seen.id)?;
        let choice = known.sizer.1.choose(subject, &ground.entitled(asked, crowd.as_ref()), &self.races);
        let was_trying = std::mem::replace(&mut known.trying, choice.next.is_some());
        *next = choice.next.map_or(*next, |sooner| sooner.min(*next));
        let free = was_trying || known.trying || known.preempted;
        let due = known.due(&choice, subject, free, &self.policy);
        let Some((width, crowd)) = asked.width.as_ref().zip(crowd.as_mut()) else {
            return action(asked, vm, due?);
        };
        if due.is_some() || free || choice.count != subject.online {
            known.apart.pause();
        }
        let change = if let Some(due) = due {
            let to = crowd.pick(asked.number, width, due.count as usize);
            cpuset(width, vm, to, due.why)
        } else if !free && choice.count == subject.online {
            let lately = known.lately(subject.at, &self.policy);
            known.apart.look(crowd, (asked.number, vm), width, (&self.policy, lately), subject.at)
        } else {
            None
        };
        if let Some(Value::Pcpus(to)) = change.as_ref().map(|change| &change.to) {
            crowd.moved(asked.number, vm, to);
        }
        change
    }
}

/// What all sizes of a host are chosen by.
struct Ground<'a> {
    seen: &'a HostEstimate,
    /// VMs that run, by their number in the estimate.
    running: Vec<(usize, &'a VmEstimate)>,
    /// pCPUs that each may use, and that any may: what no VM may use is nobody's part.
    may: BTreeMap<usize, CpuSet>,
    usable: CpuSet,
    /// Of all that run.
    weights: f64,
    /// pCPUs for each, if all of its vCPUs were online.
    available: Option<Vec<Cpus>>,
    scratch: RefCell<Option<Host>>,
}

impl<'a> Ground<'a> {
    fn of(policy: &Policy, asked: &[Asked], seen: &'a HostEstimate) -> Ground<'a> {
        let groups = asked.iter().filter_map(|asked| Some((asked.number, asked.width.as_ref()?.all.clone())));
        let groups: BTreeMap<usize, CpuSet> = groups.collect();
        let online = online(seen);
        let running: Vec<(usize, &VmEstimate)> =
            seen.vms.iter().enumerate().filter(|(_, vm)| vm.seen.is_running_vm()).collect();
        let may: BTreeMap<usize, CpuSet> =
            running.iter().map(|(number, vm)| (*number, may_use(policy, &online, vm))).collect();
        let wide = groups.values().map(|all| all.intersection(&online));
        let usable = may.values().cloned().chain(wide).fold(CpuSet::default(), |all, own| all.union(&own));
        Ground {
            weights: running.iter().map(|(_, vm)| weight(vm)).sum(),
            available: hypothesis::available(seen, &groups),
            scratch: RefCell::default(),
            seen,
            running,
            may,
            usable,
        }
    }

    fn subject(
        &self,
        asked: &'a Asked,
        rate: Option<f64>,
        granted: Option<u32>,
        may_search: bool,
    ) -> Subject<'a> {
        let vm = &self.seen.vms[asked.number];
        Subject {
            vm,
            at: self.seen.at,
            over: self.seen.over,
            online: u32::try_from(asked.online.len()).unwrap_or(u32::MAX),
            had: u32::try_from(asked.had.len()).unwrap_or(u32::MAX),
            least: asked.fewest(),
            most: asked.largest(),
            each: asked.each,
            by_vcpus: self.seen.host.rule != WeightRule::Linux,
            share: self.share(asked, granted),
            available: self.available.as_ref().map(|all| all[asked.number].0),
            used: vm.activity.used.map(|used| used.0),
            rate,
            wants: asked.wants,
            granted,
            period: longest_period(&vm.seen).max(self.turn(asked)),
            may_search,
        }
    }

    /// A quarter of the time in which each of all its vCPUs has had its slice, where slices are long.
    fn turn(&self, asked: &Asked) -> Duration {
        if self.seen.host.rule != WeightRule::XenCredit {
            return Duration::ZERO;
        }
        let available = self.available.as_ref().map_or(f64::INFINITY, |all| all[asked.number].0);
        SLICE.mul_f64(f64::from(asked.largest()) / available.max(0.5) / 4.0).min(LONGEST_TURN)
    }

    /// The formula of VCPU-Bal: all pCPUs that VMs may use times its part of all weights, or what it was granted of them, within its
    /// cap and its vCPUs' affinities and quotas.
    fn share(&self, asked: &Asked, granted: Option<u32>) -> Option<f64> {
        let Asked { number, width, each, .. } = asked;
        let vm = &self.seen.vms[*number];
        let assigned = width.as_ref().map(|width| width.all.clone()).unwrap_or_default();
        let assigned = count(assigned.union(&self.may[number]).intersection(&self.usable).len());
        let part = granted.map_or(count(self.usable.len()) * weight(vm) / self.weights, f64::from);
        let all = if width.is_some() { f64::INFINITY } else { each * count(vm.seen.vcpus.len().max(1)) };
        (part > 0.0).then(|| part.min(assigned).min(all).min(cap(vm.seen.quota.as_ref())))
    }

    /// What one would be entitled to, by its number of vCPUs; once each.
    fn entitled<'b>(
        &'b self,
        asked: &'b Asked,
        crowd: Option<&'b Crowd>,
    ) -> impl Fn(u32) -> Option<f64> + 'b {
        let known = RefCell::new(BTreeMap::new());
        move |online: u32| {
            let cpuset = || Some(crowd?.pick(asked.number, asked.width.as_ref()?, online as usize));
            let order = asked.order.as_deref();
            let with = || {
                let scratch = &mut self.scratch.borrow_mut();
                hypothesis::with(self.seen, asked.number, online, order, cpuset(), scratch)
            };
            *known.borrow_mut().entry(online).or_insert_with(with)
        }
    }
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
