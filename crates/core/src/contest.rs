//! Who competes with a process at each level of the scheduler's tree, and what the weights leave to it.
//!
//! Simplifications, each towards less for the process, so that the result is a lower bound:
//! a busy group wants all that its quota and cpuset allow; threads of other processes are
//! taken to run anywhere; a sibling's cpuset that is not known is taken to be the machine.

use crate::limits::{BUSY, Contender, Limit, LimitKind, round};
use crate::reading::{Group, Other, Quota, Reading, Usage};
use crate::share::{Node, count, fill};
use crate::window::Window;
use crate::{CpuSet, Cpus, Weight};

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

/// The busy ones at each of `later.groups`, and what everybody visible used, busy or not.
pub(crate) fn rivals(
    window: &Window,
    earlier: &Reading,
    later: &Reading,
) -> (Vec<Vec<Rival>>, f64) {
    let online = &later.online.value;
    let mut all = 0.0;
    let mut at = |group: &Group| {
        let before = earlier.groups.iter().find(|g| g.path == group.path);
        let rival = |other: &Other| {
            let then = before.and_then(|g| g.others.iter().find(|o| o.path == other.path));
            let (used, threads) = usage(window, then.map(|o| &o.usage), &other.usage, online);
            all += used;
            if used < BUSY || threads == 0 {
                return None;
            }
            let cpus = other
                .cpuset
                .as_ref()
                .map_or(online.clone(), |set| set.intersection(online));
            let (weight, limit) = match other.usage {
                Usage::Process(_) => (other.weight?.0 * count(threads), count(threads)),
                Usage::GroupNs(_) | Usage::GroupTasks(_) => (
                    other.weight?.0,
                    cap(other.quota.as_ref()).min(count(cpus.len())),
                ),
            };
            let (path, who) = (other.path.clone(), other.who.clone());
            (weight > 0.0).then_some(Rival {
                path,
                who,
                weight: Weight(weight),
                used,
                limit,
                cpus,
            })
        };
        group.others.iter().filter_map(rival).collect()
    };
    let rivals = later.groups.iter().map(&mut at).collect();
    (rivals, all)
}

/// What `usage` grew by, in CPUs, and how many threads (or groups) were busy doing it.
fn usage(window: &Window, then: Option<&Usage>, now: &Usage, online: &CpuSet) -> (f64, usize) {
    let tasks_then = match then {
        Some(Usage::GroupTasks(tasks) | Usage::Process(tasks)) => tasks.as_slice(),
        Some(Usage::GroupNs(_)) | None => &[],
    };
    match now {
        Usage::GroupNs(now) => {
            let then = if let Some(Usage::GroupNs(ns)) = then {
                *ns
            } else {
                0
            };
            (window.rate(then, *now, count(online.len())), 1)
        }
        Usage::GroupTasks(tasks) => (window.sum(tasks_then, tasks).run, 1),
        Usage::Process(tasks) => {
            let each = window.each(tasks_then, tasks);
            let busy = each.iter().filter(|u| u.run >= BUSY).count();
            (each.iter().map(|u| u.run).sum(), busy)
        }
    }
}

/// A limit for each level with contenders, topmost first: what they leave to the process
/// together with those of the levels above. The last is what all of them leave.
pub(crate) fn weight_limits(later: &Reading, rivals: &[Vec<Rival>], mine: &CpuSet) -> Vec<Limit> {
    let contested = (0..later.groups.len()).filter(|&i| rivals[i].iter().any(|r| r.meets(mine)));
    contested
        .filter_map(|level| weight_limit(later, rivals, mine, level))
        .collect()
}

fn weight_limit(
    later: &Reading,
    rivals: &[Vec<Rival>],
    mine: &CpuSet,
    level: usize,
) -> Option<Limit> {
    let threads = mine.len();
    let own_leaf = |weight: f64| Node::Leaf {
        weight: Weight(weight),
        limit: count(threads),
        cpus: mine.clone(),
    };
    let (own_weight, source) = match later.groups.get(level + 1) {
        Some(child) => {
            let weight = child.weight.as_ref()?;
            (weight.value.0, weight.source.clone())
        }
        None => (
            later.own_weight.0 * count(threads),
            format!("/proc/{}/stat", later.pid),
        ),
    };
    let mut node = own_leaf(own_weight);
    for (i, group) in later.groups.iter().enumerate().take(level + 1).rev() {
        let mut children = vec![node];
        children.extend(rivals[i].iter().map(|r| Node::Leaf {
            weight: r.weight,
            limit: r.limit,
            cpus: r.cpus.clone(),
        }));
        node = Node::Group {
            weight: group.weight.as_ref().map_or(Weight(1.0), |w| w.value),
            cap: cap(group.quota.as_ref()),
            children,
        };
    }
    let share = fill(&node).first().copied()?;
    let theirs: f64 = rivals[level]
        .iter()
        .filter(|r| r.meets(mine))
        .map(|r| r.weight.0)
        .sum();
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

/// A quota in CPUs; infinite if there is none.
pub(crate) fn cap(quota: Option<&Quota>) -> f64 {
    quota
        .and_then(Quota::cpus)
        .map_or(f64::INFINITY, |Cpus(cpus)| cpus)
}
