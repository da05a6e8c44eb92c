//! Arbitration in the corridor: who asks for what, of which pCPUs, and what came of it.

use std::collections::BTreeSet;

use super::arbitrate::{Grant, Request};
use super::asked::Asked;
use super::controller::Step;
use super::known::Known;
use super::part::{may_use, online};
use super::remedy::{Remedy, all_own};
use super::room::Room;
use super::short::below;
use super::size::whole;
use super::starving::guaranteed;
use super::weigh::Granted;
use super::{Arbiter, Controller, Policy, hypothesis};
use crate::machine::{HostEstimate, VmEstimate, VmId, VmState};
use crate::units::count;
use crate::{CpuSet, Cpus};

/// What helps who gets less than it was granted.
const REMEDY: &str = ": vCPUs that stay are more than there are pCPUs for them, which only weights divide as granted (weigh = \"grants\")";

/// What leaves room where more is guaranteed than there is, as nothing else is said.
const LESS: &str = " (a pCPU each where no rule says another number: guaranteed = 0.1 in a rule with name = \"*\" leaves room; \
     a VM with a min is guaranteed that only where its own rule, a later one, says so, too)";

/// What measuring adds, in pCPUs.
pub(super) const ROUNDING: f64 = 0.1;

/// Who asked, and pCPUs that were not to be granted.
pub(super) type Others = (Vec<VmId>, Vec<(CpuSet, f64)>);

/// What the arbiter gave a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// Whom.
    pub vm: VmId,
    /// Whole pCPUs that it wants, as far as it may have them.
    pub wants: u32,
    /// pCPUs that it got.
    pub pcpus: u32,
}

impl Controller {
    /// Arbitration: what each may have; nothing if nobody arbitrates. `usual`: what happened in the usual time, if that has passed.
    pub(super) fn arbitrate(
        &mut self,
        asked: &[Asked],
        (requests, own): &(Vec<Request>, Vec<CpuSet>),
        usable: &CpuSet,
        (seen, usual): (&HostEstimate, Option<&HostEstimate>),
        step: &mut Step,
    ) -> Option<Vec<Grant>> {
        self.arbiter.as_ref()?;
        let asks = |asked: &Asked| seen.vms[asked.number].seen.id.clone();
        let asks: Vec<VmId> = asked.iter().map(asks).collect();
        let known = self.others.take().filter(|(asked, _)| usual.is_none() && *asked == asks);
        let others = known.map(|(_, others)| others);
        let others = others.unwrap_or_else(|| self.others(asked, own, usable, usual.unwrap_or(seen)));
        let mut room = Room::new(own, usable, &others);
        self.others = Some((asks, others));
        let arbiter = self.arbiter.as_mut()?;
        let weighs = self.policy.weighs();
        let mut grants = arbiter.grant(requests, &mut room, seen.at);
        // What nobody can take from it.
        for (grant, asked) in grants.iter_mut().zip(asked) {
            grant.pcpus = grant.pcpus.max(asked.floor(weighs));
        }
        spare(asked, requests, &mut room, &mut grants);
        if self.policy.arbitrate == Arbiter::Priority {
            self.gives_way(requests, &mut grants);
        }
        step.notes.extend(self.promised_too_much(asked, own, usable, seen));
        let mut new = Vec::new();
        for ((grant, request), asked) in grants.iter().zip(requests).zip(asked) {
            let Some(known) = self.known.get_mut(&request.id) else { continue };
            known.granted = Some(grant.pcpus);
            known.preempted |= grant.preempted;
            known.preempted &= (asked.stay(grant.pcpus) as usize) < asked.online.len();
            let vm = &usual.unwrap_or(seen).vms[asked.number];
            let granted = f64::from(grant.pcpus).max(asked.guaranteed(weighs));
            let wants = asked.wants.unwrap_or(0.0).min(f64::from(request.most));
            let uses_less = below(vm, wants.min(granted).min(asked.useful));
            let less = grant.pcpus < request.wanted() || uses_less;
            let (id, pcpus, wants) = (request.id.clone(), grant.pcpus, request.wanted().max(whole(wants)));
            let starves = match usual {
                Some(usual) => known.short.look(less, (wants, granted), vm, (usual.at, usual.over)),
                None => known.short.starves(seen.at),
            };
            step.starves.insert(id.clone(), starves);
            step.given.push(Given { vm: id, wants, pcpus });
            if !starves {
                known.starved.1 = None;
            } else if known.starved.1.is_none() {
                known.starved.0 += 1;
                known.starved.1 = Some(known.starving(&vm.seen.name));
                new.push((asked.number, request));
            }
        }
        if !weighs && !new.is_empty() {
            let seen = usual.unwrap_or(seen);
            let all = granted(&self.policy, asked, (requests, own), &grants);
            let own_of_all = all_own(seen, &self.policy);
            let remedy = Remedy::new(seen, &all, &own_of_all, &self.policy);
            for (_, request) in new.iter().filter(|(number, _)| remedy.helps(*number)) {
                let note = self.known.get_mut(&request.id).and_then(|known| known.starved.1.as_mut());
                note.into_iter().for_each(|note| note.push_str(REMEDY));
            }
        }
        let known = requests.iter().filter_map(|request| self.known.get(&request.id));
        step.notes.extend(known.filter_map(|known| known.starved.1.clone()));
        Some(grants)
    }

    /// What is said if more is guaranteed than there is. (Who does not ask, as it cannot be sized, has its guarantee, too.)
    fn promised_too_much(
        &self,
        asked: &[Asked],
        own: &[CpuSet],
        usable: &CpuSet,
        seen: &HostEstimate,
    ) -> Option<String> {
        let weighs = self.policy.weighs();
        let online = online(seen);
        let silent = |(number, vm): (usize, &VmEstimate)| {
            let asks = asked.binary_search_by_key(&number, |asked| asked.number).is_ok();
            let sure = guaranteed(vm, &self.policy, &online).filter(|_| !asks && vm.seen.is_running_vm())?;
            Some((may_use(&self.policy, &online, vm), sure))
        };
        let silent: Vec<(CpuSet, f64)> = seen.vms.iter().enumerate().filter_map(silent).collect();
        let usable = silent.iter().fold(usable.clone(), |all, (own, _)| all.union(own));
        let pcpus = usable.len();
        // Where weights see to it the vCPU that each keeps is a pCPU that it is guaranteed.
        let named = |asked: &Asked| weighs || asked.rule.min.is_some() || asked.rule.guaranteed.is_some();
        let named = asked.iter().zip(own).filter(|(asked, _)| named(asked));
        let named = named.map(|(asked, own)| (own, asked.guaranteed(weighs)));
        let sure: Vec<(&CpuSet, f64)> = named.chain(silent.iter().map(|(own, sure)| (own, *sure))).collect();
        let guaranteed: f64 = sure.iter().map(|(_, sure)| sure).sum();
        let usual = asked.iter().any(|asked| asked.rule.guaranteed.is_none() && asked.rule.min.is_none());
        let less = if weighs && usual { LESS } else { "" };
        if guaranteed > count(pcpus) {
            let guaranteed = Cpus(guaranteed);
            return Some(format!(
                "{guaranteed} pCPUs are guaranteed, more than the {pcpus} that there are: not all VMs can get theirs{less}"
            ));
        }
        let set = Room::lacks(sure, &usable)?;
        Some(format!(
            "more of pCPUs {set} are guaranteed than there are: not all VMs that may use them can get theirs{less}"
        ))
    }

    /// Who has less than before, while a more important one has more, gives that back at once, whatever it had it for.
    fn gives_way(&mut self, requests: &[Request], grants: &mut [Grant]) {
        let before = |request: &Request| self.known.get(&request.id).and_then(|known| known.granted);
        let more = requests.iter().zip(&*grants);
        let more = more.filter(|(request, grant)| before(request).is_some_and(|had| grant.pcpus > had));
        let most = more.map(|(request, _)| request.priority).max();
        for (request, grant) in requests.iter().zip(grants) {
            let had = before(request);
            grant.preempted |= had.is_some_and(|had| grant.pcpus < had) && Some(request.priority) < most;
        }
    }

    /// What is asked for, in the order of those who ask; then what those asked for who were missed this time, or did not answer: they keep
    /// it. With each the pCPUs that it may use, and those that any of them may: there are no others for them.
    pub(super) fn requests(
        &self,
        asked: &[Asked],
        seen: &HostEstimate,
    ) -> ((Vec<Request>, Vec<CpuSet>), CpuSet) {
        let ids: BTreeSet<&VmId> = asked.iter().map(|asked| &seen.vms[asked.number].seen.id).collect();
        let asks = asked.iter().filter_map(|asked| self.known.get(&seen.vms[asked.number].seen.id));
        let missed = self.known.iter().filter(|(id, _)| !ids.contains(id)).map(|(_, known)| known);
        let all = asks.chain(missed).filter_map(|known| known.request.clone());
        let all: (Vec<Request>, Vec<CpuSet>) = all.unzip();
        let usable = all.1.iter().fold(CpuSet::default(), |all, own| all.union(own));
        (all, usable)
    }

    /// pCPUs that are not to be granted, as running VMs use them that ask for none, and those that do not ask at all, up to what they are
    /// entitled to or guaranteed; where weights divide as granted too, only whole ones of the latter.
    fn others(
        &self,
        asked: &[Asked],
        own: &[CpuSet],
        usable: &CpuSet,
        seen: &HostEstimate,
    ) -> Vec<(CpuSet, f64)> {
        let weighs = self.policy.weighs();
        let little =
            asked.iter().zip(own).filter_map(|(asked, own)| Some((own.clone(), asked.little(false)?)));
        let asks: BTreeSet<usize> = asked.iter().map(|asked| asked.number).collect();
        let requests = |vm: &VmState| self.known.get(&vm.id).is_some_and(|known| known.request.is_some());
        let silent = |(_, vm): &(usize, &VmEstimate)| !requests(&vm.seen) && vm.seen.is_running_vm();
        let silent: Vec<(usize, &VmEstimate)> = seen.vms.iter().enumerate().filter(silent).collect();
        let entitled = if silent.is_empty() { None } else { hypothesis::entitled(seen, &asks) };
        let pcpus = online(seen);
        let silent = silent.into_iter().filter_map(|(number, vm)| {
            let own = may_use(&self.policy, &pcpus, vm).intersection(usable);
            // Where that is not known, what it gets now.
            let most = entitled.as_ref().map_or(vm.activity.used, |entitled| Some(entitled.cpus(number)));
            let sure = guaranteed(vm, &self.policy, &pcpus).unwrap_or(0.0);
            let uses = vm.demand?.0.min(most?.0.max(sure));
            // Weights divide single pCPUs, too.
            let uses = if weighs { (uses + ROUNDING).floor() } else { uses };
            (!own.is_empty()).then_some((own, uses))
        });
        little.filter(|_| !weighs).chain(silent).collect()
    }
}

/// What was granted, for weights.
pub(super) fn granted<'a>(
    policy: &Policy,
    asked: &[Asked],
    (requests, own): (&[Request], &'a [CpuSet]),
    grants: &[Grant],
) -> Vec<Granted<'a>> {
    let granted = |(((asked, request), own), grant): (((&Asked, &Request), &'a CpuSet), &Grant)| Granted {
        number: asked.number,
        own,
        pcpus: grant.pcpus,
        short: request.wanted() > grant.pcpus,
        guaranteed: asked.guaranteed(true),
        keeps: asked.wants.unwrap_or(0.0).min(asked.guaranteed(true)),
        most: asked.useful,
        wants: asked.wants.unwrap_or(f64::INFINITY),
        priority: if policy.arbitrate == Arbiter::Priority { request.priority } else { 0 },
        vcpus: asked.stay(grant.pcpus),
    };
    asked.iter().zip(requests).zip(own).zip(grants).map(granted).collect()
}

impl Known {
    /// What is said of it, by all that it was short.
    fn starving(&self, name: &str) -> String {
        let (wants, granted, used) = self.short.fared();
        let used = used.map_or(String::new(), |used| format!(" and used {used}"));
        let again = match self.starved.0 {
            1 => String::new(),
            times => format!(" (time {times})"),
        };
        format!(
            "{name}: has wanted {wants} pCPUs for half a minute and more, was granted {granted}{used} meanwhile, on average{again}"
        )
    }
}

/// One more than they ask for to those who run, of what is left, and only as long as it is: a guest with no vCPU that idles cannot show
/// that it wants more. Who cannot be seen into asks for that one himself. Then to those who run what they have, for what nobody asks for is
/// of use to nobody else: serial parts of a program hide what its parallel ones use.
fn spare(asked: &[Asked], requests: &[Request], room: &mut Room, grants: &mut [Grant]) {
    for (number, grant) in grants.iter_mut().enumerate().take(requests.len().min(asked.len())) {
        let (asked, request) = (&asked[number], &requests[number]);
        if asked.runs && asked.seen_into && grant.pcpus >= request.wanted() && grant.pcpus < request.most {
            grant.pcpus += room.take(number, 1);
        }
    }
    for (number, (asked, grant)) in asked.iter().zip(grants).enumerate() {
        // In pCPUs.
        let has = whole(f64::from(asked.has) * asked.each).min(requests[number].most);
        if asked.runs && grant.pcpus < has && grant.pcpus >= requests[number].wanted() {
            grant.pcpus += room.take(number, has - grant.pcpus);
        }
    }
}
