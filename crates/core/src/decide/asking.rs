//! The stage of demand: who may be sized, and what each wants.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::asked::Asked;
use super::cpusets::Width;
use super::demand::{monitor, tells_all};
use super::known::Known;
use super::part::{each, online, useful};
use super::short::Short;
use super::size::sizer;
use super::{Action, Controller, Policy, Rule, Sizer, Step, Why, stays};
use crate::machine::{HostEstimate, Lever, LeverKind, Snapshot, Value, VmEstimate, VmId, VmState};
use crate::{CpuId, CpuSet, Time};

/// Who did not answer keeps what it asked for so long. Ours: longer than it is left alone for that, and a guest may not answer for ever.
const KEEPS: Duration = Duration::from_secs(60);

impl Controller {
    /// Demand: who may be sized, and what they want, by what happened in the usual time, if that has passed. `before`: the snapshot before.
    pub(super) fn ask(
        &mut self,
        before: &Snapshot,
        seen: &HostEstimate,
        usual: Option<(&Snapshot, &HostEstimate)>,
        step: &mut Step,
    ) -> Vec<Asked> {
        let (from, over) = usual.unwrap_or((before, seen));
        let earlier: BTreeMap<&VmId, &VmState> = from.vms.iter().map(|vm| (&vm.id, vm)).collect();
        let weighs = self.policy.weighs();
        let pcpus = online(seen);
        let mut lying = None;
        let mut asked = Vec::new();
        for (number, vm) in seen.vms.iter().enumerate() {
            let request = self.known.get_mut(&vm.seen.id).and_then(|known| known.request.take());
            if !vm.seen.is_running_vm() || vm.seen.vcpus.is_empty() {
                continue;
            }
            let Some(rule) = self.takes_part(&vm.seen.name, &mut step.notes).filter(|_| !vm.seen.empty)
            else {
                continue;
            };
            let policy = &self.policy;
            let name = policy.sizer_of(&vm.seen);
            let known = known(&mut self.known, vm, name, policy);
            let width = known.width(self.confined.get(&vm.seen.id), vm, &pcpus);
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
            let stays = vm.seen.fixed(lever).or(refused).or(pinned.filter(|_| whole));
            let keeps = stays.is_none() && seen.at.since(known.asked) < KEEPS;
            let stays = stays.or(away);
            let sizable = stays.is_none();
            if let Some(reason) = stays {
                let what = if vm.seen.is_group() { "cpuset" } else { "vCPUs" };
                step.notes.push(format!("{}: keeps its {what}: {reason}", vm.seen.name));
                step.kept.insert(vm.seen.id.clone(), reason.to_owned());
                if !weighs || vm.seen.fixed(LeverKind::Weight).is_some() {
                    known.request = request.filter(|_| keeps);
                    continue;
                }
            }
            let online = width.as_ref().map_or_else(|| vm.seen.online(), |width| width.now.clone());
            let all = width.as_ref().map_or(vm.seen.vcpus.len(), |width| width.all.len());
            // Where nobody says how many, whoever keeps the journal puts them back.
            let had = self.sizes.get(&vm.seen.id).filter(|_| bounds).map_or(&online, |(had, _)| had).clone();
            let all = known.could_have(all, &online, &had, seen.at);
            let cold = vm.seen.cold.clone();
            let most = rule.max.unwrap_or(all).min(all).max(1);
            let least = if pinned.is_some() { most } else { rule.min.unwrap_or(1).min(most) };
            let count = u32::try_from(online.len()).unwrap_or(all);
            let arbitrated = self.arbiter.is_some();
            known.stays_at(count);
            // Of whom nothing is known yet it is, by the first look.
            if usual.is_some() || known.monitored.is_none() {
                known.monitored = monitor(earlier.get(&vm.seen.id).copied(), &over.vms[number], over.over);
                known.wants_now((count, most), arbitrated, seen.at);
            }
            let (monitored, wants) = (known.monitored, known.wants);
            let order = differing.filter(|_| sizable).map(|sets| {
                let lying = lying.get_or_insert_with(|| stays::lying(seen));
                let mut order = stays::order(sets, vm, lying, (&online, &had));
                order.sort_by_key(|vcpu| !cold.contains(CpuId(*vcpu)));
                order
            });
            let mut one = Asked {
                number,
                rule,
                sizable,
                online,
                had,
                width,
                order,
                cold,
                least,
                most,
                useful: 0.0,
                each: each(vm),
                wants,
                has: known.has,
                runs: known.cut.runs,
                seen_into: monitored.is_some_and(|seen| seen.parallel.is_some()),
            };
            let own = one.may_use(policy, vm, &pcpus);
            one.useful = useful(vm, &own, one.each * f64::from(most));
            let request = || (one.request(&vm.seen.id, weighs), own);
            (known.request, known.asked) = (arbitrated.then(request), seen.at);
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

    /// The rule of one that takes part; that one does not, or what is odd about its rule, goes to `notes`.
    fn takes_part(&self, name: &str, notes: &mut Vec<String>) -> Option<Rule> {
        let rule = self.policy.of(name);
        if rule.exclude == Some(true) {
            notes.push(format!("{name}: left alone: {}", self.policy.who_excludes(name)));
            return None;
        }
        if let Some((min, max)) = rule.min.zip(rule.max).filter(|(min, max)| min > max) {
            notes.push(format!("{name}: its rules say min {min} and max {max}: max counts"));
        }
        Some(rule)
    }

    /// Where what VMs want counts: that what it goes by is an approximation of some, and of what kind.
    pub(super) fn approximates(&self, asked: &[Asked], seen: &HostEstimate) -> impl Iterator<Item = String> {
        let lacks = |asked: &Asked| {
            let vm = &seen.vms[asked.number].seen;
            let known = self.known.get(&vm.id)?;
            let counts = self.arbiter.is_some() || known.sizer.0 == Sizer::Vscale;
            let tells = vm.guest.as_ref().is_some_and(tells_all);
            known.exact.lacks(tells, seen.at).filter(|_| counts)
        };
        asked.iter().filter_map(lacks).collect::<BTreeSet<_>>().into_iter().map(|lacks| lacks.said().into())
    }

    /// Who did not answer when its vCPUs were to be changed is to have again what it has, as far as is known: whether it answers now.
    pub(super) fn ask_again(&self, seen: &HostEstimate, kept: &BTreeMap<VmId, String>) -> Vec<Action> {
        let again = |vm: &VmEstimate| {
            let id = &vm.seen.id;
            let known = self.known.get(id)?;
            let due = known.away.is_some() && seen.at >= known.not_before && kept.contains_key(id);
            let has = || self.sizes.get(id).map_or_else(|| vm.seen.online(), |(_, made)| made.clone());
            due.then(|| Action::of(&vm.seen, Lever::Online, None, Value::Vcpus(has()), Why::AskedAgain))
        };
        seen.vms.iter().filter_map(again).collect()
    }
}

/// What is remembered of a VM that takes part, which is sized in this way now.
fn known<'a>(
    all: &'a mut BTreeMap<VmId, Known>,
    vm: &VmEstimate,
    size: Sizer,
    policy: &Policy,
) -> &'a mut Known {
    let by_cpuset = vm.seen.is_group() && size != Sizer::None;
    let known = all.entry(vm.seen.id.clone()).or_insert_with(|| Known::new(size, by_cpuset, policy));
    if known.sizer.0 != size {
        (known.sizer, known.fewer) = ((size, sizer(size, policy)), None);
    }
    known.by_cpuset = by_cpuset;
    known.name.clone_from(&vm.seen.name);
    known
}

impl Known {
    /// What a control group that is sized may have, and has. `confined`: the cpuset that it had before, if it is ours now.
    fn width(&mut self, confined: Option<&CpuSet>, vm: &VmEstimate, online: &CpuSet) -> Option<Width> {
        if !self.by_cpuset {
            return None;
        }
        // Nothing said (v2): what the group above leaves it.
        let had = confined.map(|set| if set.is_empty() { &self.wide } else { set });
        let width = Width::of(had, vm, online)?;
        if confined.is_none() {
            self.wide = width.now.clone();
        }
        Some(width)
    }

    /// vCPUs of `all` that it could have: those that did not come when asked for rest.
    fn could_have(&mut self, all: usize, online: &CpuSet, had: &CpuSet, at: Time) -> u32 {
        // Some came after all.
        if !online.is_within(had) {
            self.others = Default::default();
        }
        let rest = at < self.others.1;
        let all = if rest { all.min(online.union(had).len()) } else { all };
        u32::try_from(all).unwrap_or(u32::MAX)
    }
}
