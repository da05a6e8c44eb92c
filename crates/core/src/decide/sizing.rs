//! The stage that sizes: how many vCPUs each VM has online, and how wide the cpusets of control groups are.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::arbitrate::Grant;
use super::asked::{Asked, action, cpuset};
use super::cpusets::Crowd;
use super::known::Known;
use super::part::{may_use, online, share, weight};
use super::size::Subject;
use super::{Action, Controller, Step, counted, hypothesis};
use crate::CpuSet;
use crate::entitle::WeightRule;
use crate::machine::{Activity, HostEstimate, Snapshot, Value, VmEstimate, VmId, VmState};
use crate::topology::Topology;

/// A guest's count is brought by its agent, and `corefit run` there looks every 0.05 to 1 s: a look shorter than twice this would be
/// one count long.
const LATE: Duration = Duration::from_millis(500);
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

/// The longest period of a quota of it or of a vCPU, and half of what it takes until two counts have come from whoever counts by his own
/// clock.
fn longest_period(vm: &VmState) -> Duration {
    let of_vcpus =
        vm.vcpus.iter().filter_map(|vcpu| vcpu.quota.as_ref()).filter(|quota| quota.quota_us.is_some());
    let longest = vm.quota.iter().chain(of_vcpus).map(|quota| quota.period_us).max();
    let period = Duration::from_micros(longest.unwrap_or(0));
    if vm.progress_at.is_some() { period.max(LATE) } else { period }
}
