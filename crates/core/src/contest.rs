//! Who competes with a process at each level of the scheduler's tree, and what the weights leave to it.
//!
//! Simplifications: a busy group wants all that its quota and cpuset allow, which is the worst
//! case; its threads are taken to spread over its cpuset, and over the machine where that is not
//! known, which is not: threads pinned onto our own CPUs leave less than is said here.

use crate::entitle::{Host, Slice, Vcpu, Vm, entitled_of};
use crate::limits::{BUSY, round};
use crate::reading::{Group, Other, Quota, Reading, Usage};
use crate::report::{Contender, Limit, LimitKind};
use crate::units::count;
use crate::window::{Activity, Window};
use crate::{CpuSet, Cpus, Weight};

/// Use of a quota by others below this is noise: two counters are compared, in CPUs.
const OTHERS_NOISE: f64 = 0.05;

/// Somebody busy.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rival {
    path: String,
    who: String,
    weight: Weight,
    used: f64,
    limit: f64,
    cpus: CpuSet,
}

impl Rival {
    pub(crate) fn meets(&self, mine: &CpuSet) -> bool {
        !self.cpus.intersection(mine).is_empty()
    }

    pub(crate) fn contender(&self) -> Contender {
        Contender {
            path: self.path.clone(),
            who: self.who.clone(),
            weight: self.weight,
            used: round(self.used),
        }
    }
}

/// Who divides one group with the process.
pub(crate) struct Level {
    /// The busy ones.
    pub(crate) rivals: Vec<Rival>,
    /// What everybody visible there used, busy or not, in CPUs.
    pub(crate) used: f64,
}

/// Who divides each of `later.groups` with the process.
pub(crate) fn levels(window: &Window, earlier: &Reading, later: &Reading) -> Vec<Level> {
    let online = &later.online.value;
    let at = |group: &Group| {
        let mut used = 0.0;
        let before = earlier.groups.iter().find(|g| g.path == group.path);
        let rival = |other: &Other| {
            let same = |then: &&Other| match (&then.usage, &other.usage) {
                // Its path has its name, which changes when it executes another program.
                (Usage::Process(then), Usage::Process(now)) => then.pid == now.pid,
                _ => then.path == other.path,
            };
            let then = before.and_then(|g| g.others.iter().find(same));
            let doing = doing(window, then.map(|o| &o.usage), &other.usage, online);
            used += doing.used;
            if doing.used < BUSY || doing.contenders < 1.0 {
                return None;
            }
            let cpus = other.cpuset.clone().or(doing.cpus);
            let cpus = cpus.map_or(online.clone(), |set| set.intersection(online));
            let weight = other.weight?.0 * doing.contenders;
            let limit = match other.usage {
                Usage::Process(_) => doing.contenders,
                Usage::GroupNs(_) | Usage::GroupMembers(_) => {
                    cap(other.quota.as_ref()).min(count(cpus.len()))
                }
            };
            (weight > 0.0).then(|| Rival {
                path: other.path.clone(),
                who: other.who.clone(),
                weight: Weight(weight),
                used: doing.used,
                limit,
                cpus,
            })
        };
        let rivals = group.others.iter().filter_map(rival).collect();
        Level { rivals, used }
    };
    later.groups.iter().map(at).collect()
}

/// What the quotas of the groups leave beside what the others in them use, in CPUs; `None`
/// if others use nothing of a quota. `own` is what the process uses.
pub(crate) fn quota_headroom(
    window: &Window,
    earlier: &Reading,
    later: &Reading,
    levels: &[Level],
    own: f64,
) -> Option<f64> {
    let headroom = |(i, group): (usize, &Group)| {
        let quota = group.quota.as_ref()?.cpus()?.0;
        let visible: f64 = levels[i..].iter().map(|level| level.used).sum();
        let before = earlier.groups.iter().find(|g| g.path == group.path).and_then(|g| g.usage_ns);
        let counted = before.zip(group.usage_ns).map(|(a, b)| window.rate(a, b, f64::INFINITY) - own);
        let others = visible.max(counted.unwrap_or(0.0));
        (others >= OTHERS_NOISE).then(|| (quota - others).max(0.0))
    };
    later.groups.iter().enumerate().filter_map(headroom).reduce(f64::min)
}

/// What somebody did between two readings.
struct Doing {
    /// CPU time, in CPUs.
    used: f64,
    /// How many competed: the busy threads and ended children of a process; a group is one.
    contenders: f64,
    /// Where the busy ones of a group may run, if known of each.
    cpus: Option<CpuSet>,
}

fn doing(window: &Window, then: Option<&Usage>, now: &Usage, online: &CpuSet) -> Doing {
    let machine = count(online.len());
    let before = match then {
        Some(Usage::Process(process)) => std::slice::from_ref(process),
        Some(Usage::GroupMembers(members)) => members.as_slice(),
        Some(Usage::GroupNs(_)) | None => &[],
    };
    match now {
        Usage::GroupNs(now) => {
            let then = if let Some(Usage::GroupNs(ns)) = then { *ns } else { 0 };
            Doing { used: window.rate(then, *now, machine), contenders: 1.0, cpus: None }
        }
        Usage::GroupMembers(members) => {
            let all = window.processes(before, members, machine);
            let busy = members.iter().zip(&all).filter(|(_, activity)| activity.run() >= BUSY);
            let cpus: Option<Vec<&CpuSet>> = busy.map(|(m, _)| m.cpuset.as_ref()).collect();
            let cpus = cpus.filter(|sets| !sets.is_empty());
            let cpus = cpus.map(|sets| sets.into_iter().flat_map(CpuSet::iter).collect());
            Doing { used: Activity::sum(&all).run, contenders: 1.0, cpus }
        }
        Usage::Process(process) => {
            let all = window.processes(before, std::slice::from_ref(process), machine);
            let threads = all.iter().flat_map(|a| &a.threads).filter(|u| u.run >= BUSY).count();
            let ended = all.iter().map(|a| a.ended).sum::<f64>();
            let ended = if ended >= BUSY { ended.ceil() } else { 0.0 };
            Doing { used: Activity::sum(&all).run, contenders: count(threads) + ended, cpus: None }
        }
    }
}

/// A limit for each level with contenders, topmost first: what they leave to the process
/// together with those of the levels above. The last is what all of them leave.
pub(crate) fn weight_limits(later: &Reading, levels: &[Level], mine: &CpuSet) -> Vec<Limit> {
    let contested = (0..later.groups.len()).filter(|&i| levels[i].rivals.iter().any(|r| r.meets(mine)));
    contested.filter_map(|level| weight_limit(later, levels, mine, level)).collect()
}

fn weight_limit(later: &Reading, levels: &[Level], mine: &CpuSet, level: usize) -> Option<Limit> {
    let threads = mine.len();
    let (own_weight, source) = match later.groups.get(level + 1) {
        Some(child) => {
            let weight = child.weight.as_ref()?;
            (weight.value.0, weight.source.clone())
        }
        None => (later.own_weight.0 * count(threads), format!("/proc/{}/stat", later.pid)),
    };
    let groups = || later.groups.iter().zip(levels).take(level + 1);
    let own = leaf("own".into(), Weight(own_weight), count(threads), mine);
    // Names have to differ: a group's is its number, that of who competes in it has a dash.
    let (mut vms, mut slices) = (vec![own], vec![]);
    for (i, (group, Level { rivals, .. })) in groups().enumerate().rev() {
        let rivals = rivals.iter().enumerate();
        vms.extend(rivals.map(|(j, rival)| leaf(format!("{i}-{j}"), rival.weight, rival.limit, &rival.cpus)));
        slices = vec![Slice {
            name: i.to_string(),
            weight: group.weight.as_ref().map_or(Weight(1.0), |weight| weight.value),
            cap: finite(cap(group.quota.as_ref())),
            slices,
            vms: std::mem::take(&mut vms),
        }];
    }
    let rivals = || groups().flat_map(|(_, level)| &level.rivals);
    let pcpus = rivals().fold(mine.clone(), |all, rival| all.union(&rival.cpus));
    // The VMs of the innermost group are the first ones.
    let Cpus(share) = entitled_of(&Host { pcpus, slices, ..Host::default() }, 0).ok()?;
    let theirs: f64 = levels[level].rivals.iter().filter(|r| r.meets(mine)).map(|r| r.weight.0).sum();
    let group = &later.groups[level].path;
    let own = if level + 1 == later.groups.len() && threads > 1 {
        format!("{threads} threads of {}", later.own_weight.0)
    } else {
        format!("{own_weight}")
    };
    Some(Limit {
        kind: LimitKind::Weight,
        cpus: Some(round(share)),
        source,
        binding: false,
        detail: format!("{own}, busy others in {group} {theirs}"),
    })
}

/// Like threads of a weight together that may use so much, in CPUs, on these.
fn leaf(name: String, weight: Weight, limit: f64, cpus: &CpuSet) -> Vm {
    // More threads than CPUs, even without a limit: they crowd.
    let threads = limit.min(count(cpus.len() + 1)).ceil();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates; a number of CPUs"
    )]
    let threads = threads as usize;
    let thread = Vcpu { affinity: Some(cpus.clone()), ..Vcpu::default() };
    Vm { name, weight, cap: finite(limit), vcpus: vec![thread; threads] }
}

fn finite(cap: f64) -> Option<Cpus> {
    cap.is_finite().then_some(Cpus(cap))
}

/// A quota in CPUs; infinite if there is none.
pub(crate) fn cap(quota: Option<&Quota>) -> f64 {
    quota.and_then(Quota::cpus).map_or(f64::INFINITY, |Cpus(cpus)| cpus)
}
