//! From two snapshots to what every VM gets, wants and could get.
//!
//! ```text
//! counters of two snapshots ──▶ used, waiting ──▶ demand ──────────────────┐
//! settings of the later one ──▶ tree of weights, quotas, affinities ───────┴▶ entitle ──▶ VmEstimate
//! ```
//!
//! **Demand** is what something would use if it never had to wait. Of one thread, such as a vCPU, that
//! ran for r and waited for w of the time, it is r / (1 - w): it would do the same in less time, as what
//! it sleeps does not depend on what it waited. (Example: r = 0.25, w = 0.75 is a busy loop with a demand
//! of 1; r = 0.001, w = 0.1 is a daemon with one of 0.0011, where r + w would call it 0.101.) Of threads
//! that were counted together, r + w and r / (1 - w) of the sums are both upper bounds of the sum of
//! their demands (r_i / (1 - w) >= r_i / (1 - w_i)), and the smaller counts. What could not be measured
//! counts as wanting everything. So `available` is a lower bound wherever threads sleep as
//! long as they did.

use std::collections::BTreeMap;
use std::time::Duration;

use super::cache::{CacheRate, Classed, classify, rate};
use super::snapshot::{Counters, Group, Role, Snapshot, State, VmId, VmState, may_have};
use super::timeslices::Timeslices;
use super::unsure::unsure;
use crate::entitle::{
    Cause, Crowds, Division, Host, HostError, Share, Slice, Vcpu, Vm, available_to_all, entitled,
};
use crate::{CpuId, CpuSet, Cpus, Quota, Time, Unread, Weight, What};

/// What helpers have is not said below this, in CPUs.
const LITTLE: f64 = 0.005;
/// A vCPU that is offline does not run; one that is said to be and wants more than this of a pCPU is none of those. Ours.
const AWAKE: f64 = 0.05;

/// A host between two snapshots.
#[derive(Clone, Debug)]
pub struct HostEstimate {
    /// When the later snapshot was begun.
    pub at: Time,
    /// How long the counters ran.
    pub over: Duration,
    /// Its pCPUs.
    pub pcpus: Vec<PcpuEstimate>,
    /// VMs and what competes with them, in the order of the division.
    pub vms: Vec<VmEstimate>,
    /// What was divided, for who wants to check the division's certificate.
    pub host: Host,
    /// Who is entitled to what, and why; `None` where not all who compete can be seen.
    pub division: Option<Division>,
    /// What could not be read.
    pub unread: Vec<Unread>,
    /// What readers of the result should know.
    pub notes: Vec<String>,
    /// Why nobody counts here what VMs do to caches; `None` where that can be counted.
    pub uncounted: Option<String>,
}

/// A pCPU between two snapshots.
#[derive(Clone, Debug, PartialEq)]
pub struct PcpuEstimate {
    /// Its number.
    pub id: CpuId,
    /// Whether it runs anything.
    pub online: bool,
    /// How much of it was neither idle nor taken away by a hypervisor below; `None` if unread.
    pub busy: Option<Cpus>,
    /// How much of it a hypervisor below took away; `None` if unread.
    pub steal: Option<Cpus>,
    /// Who was last seen on it: VM (by its number in [`HostEstimate::vms`]) and vCPU.
    pub users: Vec<(usize, usize)>,
}

/// What something did between two snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Activity {
    /// pCPUs that it used; `None` if that was not measured.
    pub used: Option<Cpus>,
    /// Mean number of its threads that were runnable but not running; `None` if that was not measured.
    pub waiting: Option<Cpus>,
}

/// A VM, or something that competes with VMs, between two snapshots.
#[derive(Clone, Debug)]
pub struct VmEstimate {
    /// It, at the later snapshot.
    pub seen: VmState,
    /// pCPUs that it gets when everybody is busy; `None` where that cannot be known: somebody competes unseen,
    /// or a weight or quota that it depends on could not be read.
    pub entitled: Option<Cpus>,
    /// pCPUs that it could get now, at least; `None` as above. What it used can be more: docs/model.md.
    pub available: Option<Cpus>,
    /// What it did, all its threads together.
    pub activity: Activity,
    /// pCPUs that it would use if it never had to wait; `None` if it was not measured.
    pub demand: Option<Cpus>,
    /// What each vCPU did; no amounts where the machine counts only the whole.
    pub vcpus: Vec<Activity>,
    /// What became of the timeslices of its limits.
    pub timeslices: Timeslices,
    /// What each helper did.
    pub helpers: Vec<Activity>,
    /// What it did to the last-level caches; `None` where that is not known.
    pub cache: Option<CacheRate>,
    /// What its work is like, by that.
    pub class: Classed,
    /// What holds its entitlement, in words: `reasons`, one after the other.
    pub binding: String,
    /// What holds each part of its entitlement; the amounts in them add up to it.
    pub reasons: Vec<String>,
}

impl HostEstimate {
    /// As [`Snapshot::may_have`], of the later one.
    pub fn may_have(&self) -> impl Fn(&VmId) -> bool {
        may_have(self.vms.iter().map(|vm| &vm.seen.id), &self.unread)
    }
}

/// What happened between two snapshots of a machine, the earlier one first.
///
/// # Errors
/// If the later one has numbers that no host has, such as a weight of zero.
pub fn estimate(before: &Snapshot, after: &Snapshot) -> Result<HostEstimate, HostError> {
    between(before, after, true)
}

/// The same without what each VM has available, nor words: what large hosts take most time for.
///
/// # Errors
/// As [`estimate`].
pub(crate) fn estimate_briefly(before: &Snapshot, after: &Snapshot) -> Result<HostEstimate, HostError> {
    between(before, after, false)
}

fn between(before: &Snapshot, after: &Snapshot, whole: bool) -> Result<HostEstimate, HostError> {
    let over = after.at.since(before.at);
    let earlier: BTreeMap<_, _> = before.vms.iter().map(|vm| (&vm.id, vm)).collect();
    let changes: Vec<Change> =
        after.vms.iter().map(|vm| Change::since(before.at, earlier.get(&vm.id).copied(), vm, over)).collect();
    let (host, order) = host(after, &changes);
    let blind = after.unread.iter().any(|u| matches!(u.what, What::Siblings | What::Ancestors));
    let division = entitled(&host)?;
    let unsure = unsure(after, &order, &division, &host.usable());
    let available = if whole { available_to_all(&host)? } else { Vec::new() };
    let mut crowds = Crowds::default();
    let vms = order.iter().enumerate().map(|(number, &index)| {
        let seen = after.vms[index].clone();
        let change = &changes[index];
        let sure = !blind && unsure[number].is_none();
        let known = |cpus: Cpus| (sure && seen.role == Role::Vm).then_some(cpus);
        let reasons = match (seen.role, seen.state, blind, &unsure[number]) {
            (Role::Other, ..) => vec!["not a VM: counts with what it wants now".into()],
            (_, State::Paused, ..) => vec!["paused".into()],
            (.., true, _) => vec!["unknown: not all who compete can be seen".into()],
            (.., Some(why)) => vec![format!("unknown: {why}")],
            _ if !whole => vec![],
            _ => division
                .sentences_of(number, &mut crowds)
                .into_iter()
                .chain(of_helpers(&seen, division.vcpus(number)))
                .collect(),
        };
        let cache = rate(earlier.get(&seen.id).copied(), &seen, after, change.whole.used, over);
        VmEstimate {
            class: classify(cache, &seen, after),
            cache,
            entitled: known(division.cpus(number)),
            available: available.get(number).and_then(|cpus| known(*cpus)),
            activity: change.whole,
            demand: change.demand_of_all(&seen),
            vcpus: change.vcpus.clone(),
            helpers: change.helpers.clone(),
            timeslices: earlier
                .get(&seen.id)
                .map(|old| Timeslices::between(old, before.at, &seen, after.at))
                .unwrap_or_default(),
            binding: reasons.join("; "),
            reasons,
            seen,
        }
    });
    let mut vms: Vec<VmEstimate> = vms.collect();
    let cpus = |number: usize| (division.cpus(number), available.get(number).copied().unwrap_or_default());
    join_parts(&mut vms, cpus);
    let mut host = HostEstimate {
        at: after.at,
        over,
        pcpus: pcpus(before, after, over, &vms),
        vms,
        host,
        division: (!blind).then_some(division),
        unread: after.unread.clone(),
        notes: after.notes.clone(),
        uncounted: after.uncounted.clone(),
    };
    host.notes.extend(host.starving());
    let disowned = order.iter().filter_map(|&index| changes[index].disowned(&after.vms[index]));
    host.notes.extend(disowned);
    Ok(host)
}

/// Gives each VM what its real-time threads do and get ([`VmState::part_of`]); `cpus`: what one is entitled to
/// and has available.
fn join_parts(vms: &mut [VmEstimate], cpus: impl Fn(usize) -> (Cpus, Cpus)) {
    let parts = vms.iter().enumerate().filter_map(|(number, part)| {
        let owner = part.seen.part_of.as_ref()?;
        let owner = vms.iter().position(|vm| vm.seen.role == Role::Vm && vm.seen.name == *owner)?;
        Some((owner, number))
    });
    let mut of: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    parts.for_each(|(owner, number)| of.entry(owner).or_default().push(number));
    for (owner, parts) in of {
        let sum = |of: &dyn Fn(usize) -> Option<Cpus>| {
            parts.iter().fold(Cpus(0.0), |sum, &part| sum + of(part).unwrap_or_default())
        };
        let used = sum(&|part| vms[part].activity.used);
        let waiting = sum(&|part| vms[part].activity.waiting);
        let demand = sum(&|part| vms[part].demand);
        let (entitled, available) = (sum(&|part| Some(cpus(part).0)), sum(&|part| Some(cpus(part).1)));
        let vm = &mut vms[owner];
        let add = |to: &mut Option<Cpus>, more: Cpus| *to = to.map(|cpus| cpus + more);
        add(&mut vm.activity.used, used);
        add(&mut vm.activity.waiting, waiting);
        add(&mut vm.demand, demand);
        if vm.entitled.is_some() && entitled.0 >= LITTLE {
            vm.reasons.push(format!("{entitled} of its real-time threads: before all that have weights"));
            vm.binding = vm.reasons.join("; ");
        }
        add(&mut vm.entitled, entitled);
        add(&mut vm.available, available);
    }
}

/// What helpers have of their VM's entitlement, if that is enough to be seen in two digits.
fn of_helpers(seen: &VmState, shares: &[Share]) -> Option<String> {
    let helpers = &shares[seen.vcpus.len()..];
    let cpus: f64 = helpers.iter().map(|share| share.cpus.0).sum();
    let content = helpers.iter().all(|share| matches!(share.cause, Cause::Demand | Cause::Whole));
    let want = if content { "all that they want" } else { "less than they want" };
    (cpus >= LITTLE).then(|| format!("{} of its helpers: {want}", Cpus(cpus)))
}

/// What the counters of a VM say.
struct Change {
    whole: Activity,
    vcpus: Vec<Activity>,
    /// Which vCPUs count: those that are online, and those that ran though a guest says that they were not.
    awake: Vec<bool>,
    helpers: Vec<Activity>,
}

impl Change {
    /// Of a VM that may have begun after the earlier snapshot: its counters were zero then.
    fn since(start: Time, before: Option<&VmState>, after: &VmState, over: Duration) -> Change {
        if before.is_some() || after.began.is_none_or(|began| began < start) {
            return Change::of(before, after, over);
        }
        let zero = Counters { run_ns: Some(0), wait_ns: Some(0), runs: None };
        let mut born = after.clone();
        born.whole = born.whole.map(|_| zero);
        born.vcpus.iter_mut().for_each(|vcpu| vcpu.counters = zero);
        born.helpers.iter_mut().for_each(|helper| helper.counters = zero);
        Change::of(Some(&born), after, over)
    }

    fn of(before: Option<&VmState>, after: &VmState, over: Duration) -> Change {
        let rate = |before: Option<&Counters>, after: &Counters| {
            let of = |from: Option<u64>, to: Option<u64>| {
                let nanos = to?.checked_sub(from?)?;
                (!over.is_zero())
                    .then(|| Cpus(Duration::from_nanos(nanos).as_secs_f64() / over.as_secs_f64()))
            };
            before.map_or(Activity::default(), |b| Activity {
                used: of(b.run_ns, after.run_ns),
                waiting: of(b.wait_ns, after.wait_ns),
            })
        };
        let vcpus: Vec<Activity> = after
            .vcpus
            .iter()
            .enumerate()
            .map(|(i, vcpu)| rate(before.and_then(|vm| vm.vcpus.get(i)).map(|v| &v.counters), &vcpu.counters))
            .collect();
        let helpers: Vec<Activity> = after
            .helpers
            .iter()
            .map(|helper| {
                let same = |vm: &&VmState| vm.helpers.iter().position(|h| h.name == helper.name);
                let same = before.and_then(|vm| Some(&vm.helpers[same(&vm)?].counters));
                rate(same, &helper.counters)
            })
            .collect();
        let was_online = |i: usize| before.and_then(|vm| vm.vcpus.get(i)).is_none_or(|vcpu| vcpu.online);
        let runs =
            |did: &Activity| did.used.unwrap_or_default().0 + did.waiting.unwrap_or_default().0 >= AWAKE;
        let awake: Vec<bool> = after
            .vcpus
            .iter()
            .zip(&vcpus)
            .enumerate()
            .map(|(i, (vcpu, did))| vcpu.online || !was_online(i) && runs(did))
            .collect();
        let whole = after.whole.map(|whole| rate(before.and_then(|vm| vm.whole.as_ref()), &whole));
        let sum = |part: fn(&Activity) -> Option<Cpus>| match &whole {
            Some(whole) => part(whole),
            // A vCPU that is offline may have no counters; those of an online one are all needed.
            None => awake
                .iter()
                .zip(&vcpus)
                .filter(|(awake, _)| **awake)
                .map(|(_, v)| part(v))
                .chain(helpers.iter().map(|h| Some(part(h).unwrap_or_default())))
                .try_fold(Cpus(0.0), |sum, cpus| Some(sum + cpus?)),
        };
        let whole = Activity { used: sum(|v| v.used), waiting: sum(|v| v.waiting) };
        Change { whole, vcpus, awake, helpers }
    }

    /// That vCPUs ran of which a guest says that they are offline.
    fn disowned(&self, seen: &VmState) -> Option<String> {
        let disowned =
            self.awake.iter().zip(&seen.vcpus).zip(0..).filter(|((awake, vcpu), _)| **awake && !vcpu.online);
        let which = CpuSet::from_iter(disowned.map(|(_, number)| CpuId(number)));
        (!which.is_empty()).then(|| {
            format!(
                "{}: its guest says that vCPUs {which} are offline, but they run: they count as online",
                seen.name
            )
        })
    }

    /// What each vCPU of the VM demands. Where only the whole was counted, it is divided evenly:
    /// vCPUs of a control group are all alike. At most 1: the kernel adds what a thread waited when it
    /// runs again, so in a short window it can be more than the window.
    fn demand(&self, vcpu: usize, seen: &VmState) -> Option<Cpus> {
        let wanted = if seen.whole.is_none() {
            demand(&self.vcpus[vcpu])
        } else {
            let online = seen.vcpus.iter().filter(|vcpu| vcpu.online).count();
            demand(&self.whole).map(|whole| Cpus(whole.0 / crate::units::count(online.max(1))))
        };
        wanted.map(|wanted| wanted.min(Cpus(1.0)))
    }

    /// What a VM demands, with its helpers.
    fn demand_of_all(&self, seen: &VmState) -> Option<Cpus> {
        let awake = (0..seen.vcpus.len()).filter(|&vcpu| self.awake[vcpu]);
        let vcpus = awake.map(|vcpu| self.demand(vcpu, seen));
        let helpers = self.helpers.iter().map(|helper| Some(demand(helper).unwrap_or_default()));
        vcpus.chain(helpers).try_fold(Cpus(0.0), |sum, cpus| Some(sum + cpus?))
    }
}

/// What a thread, or threads that were counted together, would use if they never had to wait, at most.
/// Waiting counts as none where the machine does not say.
fn demand(activity: &Activity) -> Option<Cpus> {
    let (Cpus(used), Cpus(waiting)) = (activity.used?, activity.waiting.unwrap_or_default());
    let both = used + waiting;
    Some(Cpus(if waiting < 1.0 { both.min(used / (1.0 - waiting)) } else { both }))
}

/// The host to divide, and which of the snapshot's VMs each of its VMs is.
fn host(snapshot: &Snapshot, changes: &[Change]) -> (Host, Vec<usize>) {
    let (pcpus, offline) = snapshot.pcpu_sets();
    let mut order = Vec::new();
    let (slices, vms) = members(snapshot, changes, None, &mut order);
    let host = Host { rule: snapshot.rule, pcpus, offline, slices, vms, ..Host::default() };
    (host, order)
}

fn members(
    snapshot: &Snapshot,
    changes: &[Change],
    parent: Option<&str>,
    order: &mut Vec<usize>,
) -> (Vec<Slice>, Vec<Vm>) {
    let inside = |name: &Option<String>| name.as_deref() == parent;
    let slices = snapshot.groups.iter().filter(|group| inside(&group.parent)).map(|group| {
        let Group { name, weight, quota, .. } = group;
        let (slices, vms) = members(snapshot, changes, Some(name), order);
        Slice { name: name.clone(), weight: or_usual(*weight), cap: cap(quota.as_ref()), slices, vms }
    });
    let slices = slices.collect();
    let vms = snapshot.vms.iter().enumerate().filter(|(_, vm)| inside(&vm.parent)).map(|(index, vm)| {
        order.push(index);
        to_divide(vm, &changes[index])
    });
    (slices, vms.collect())
}

fn to_divide(seen: &VmState, change: &Change) -> Vm {
    let vcpus = seen.vcpus.iter().enumerate().map(|(number, vcpu)| Vcpu {
        weight: or_usual(vcpu.weight),
        quota: cap(vcpu.quota.as_ref()),
        affinity: vcpu.affinity.clone(),
        demand: change.demand(number, seen),
        fixed: seen.role == Role::Other,
        online: change.awake[number] && seen.state == State::Running,
    });
    let helpers = seen.helpers.iter().zip(&change.helpers).map(|(helper, activity)| Vcpu {
        weight: or_usual(helper.weight),
        quota: cap(helper.quota.as_ref()),
        affinity: helper.affinity.clone(),
        // Nobody knows what a helper that was not measured does; nearly always nothing.
        demand: Some(demand(activity).unwrap_or_default()),
        fixed: true,
        online: true,
    });
    Vm {
        name: seen.name.clone(),
        weight: or_usual(seen.weight),
        cap: cap(seen.quota.as_ref()),
        vcpus: vcpus.chain(helpers).collect(),
    }
}

/// What is not said is the one that everything has that nobody changed. Unread ones count as that, too: what
/// depends on them is left out of the result ([`unsure`]).
fn or_usual(weight: Option<Weight>) -> Weight {
    weight.unwrap_or(Vcpu::default().weight)
}

fn cap(quota: Option<&Quota>) -> Option<Cpus> {
    quota.and_then(Quota::cpus)
}

fn pcpus(before: &Snapshot, after: &Snapshot, over: Duration, vms: &[VmEstimate]) -> Vec<PcpuEstimate> {
    let earlier: BTreeMap<CpuId, &super::Pcpu> = before.pcpus.iter().map(|p| (p.id, p)).collect();
    let mut users: BTreeMap<CpuId, Vec<(usize, usize)>> = BTreeMap::new();
    for (index, vm) in vms.iter().enumerate() {
        for (number, vcpu) in vm.seen.vcpus.iter().enumerate().filter(|(_, vcpu)| vcpu.online) {
            if let Some(on) = vcpu.on {
                users.entry(on).or_default().push((index, number));
            }
        }
    }
    let one = |pcpu: &super::Pcpu| {
        let earlier = earlier.get(&pcpu.id);
        let rate = |from: Option<u64>, to: Option<u64>| {
            let nanos = to?.checked_sub(from?)?;
            (!over.is_zero()).then(|| Duration::from_nanos(nanos).as_secs_f64() / over.as_secs_f64())
        };
        let idle = rate(earlier.and_then(|p| p.idle_ns), pcpu.idle_ns);
        let steal = rate(earlier.and_then(|p| p.steal_ns), pcpu.steal_ns);
        PcpuEstimate {
            id: pcpu.id,
            online: pcpu.online,
            busy: idle.map(|idle| Cpus((1.0 - idle - steal.unwrap_or(0.0)).clamp(0.0, 1.0))),
            steal: steal.map(|steal| Cpus(steal.min(1.0))),
            users: users.remove(&pcpu.id).unwrap_or_default(),
        }
    };
    after.pcpus.iter().map(one).collect()
}
