//! How many CPUs one process gets, and which limit decides it: a [`Report`] from two readings.
//!
//! The mathematics, with a worked example, is in `docs/model.md`, "What one process gets".

use serde::{Deserialize, Serialize};

use crate::contest::{rivals, weight_limits};
use crate::reading::{Reading, Unread, What};
use crate::share::count;
use crate::window::{Use, Window, throttled};
use crate::{CpuSet, Cpus, Weight};

/// Whoever used at least this much between the two readings is *busy* and competes, in CPUs.
pub const BUSY: f64 = 0.01;

/// What unseen others may use on a machine that is still called idle, in CPUs; to this comes
/// the granularity of `/proc/stat` ([`TICK_NS`]) times the root of the number of CPUs.
pub(crate) const IDLE_SLACK: f64 = 0.05;

/// Granularity of the times in `/proc/stat`: `USER_HZ` is 100 on all of today's machines.
pub(crate) const TICK_NS: f64 = 1e7;

/// Stolen time below this is noise, in CPUs.
pub(crate) const STEAL_NOISE: f64 = 0.05;

/// Waiting below this is noise, in CPUs.
pub(crate) const WAIT_NOISE: f64 = 0.05;

/// Amounts closer than this are equal, in CPUs.
const TIE: f64 = 1e-6;

/// How many CPUs a process gets, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The process.
    pub pid: u32,
    /// Its short name.
    pub name: String,
    /// Time between the two readings.
    pub window_ms: f64,
    /// What it gets when everybody who is busy wants everything he may have: the worst case,
    /// for a process with a runnable thread for each of its CPUs.
    /// `None` where somebody may compete unseen.
    pub entitled: Option<Cpus>,
    /// What it could get now: a lower bound, because those who wait would not all use
    /// what they wait for. Never above any limit but `weight` and `measured`, of which
    /// the larger counts.
    pub available: Cpus,
    /// What it and its descendants used.
    pub used: Cpus,
    /// How many of their threads were runnable but not running, on average; `None` if not counted.
    pub waiting: Option<Cpus>,
    /// Idle CPUs among those that it may use; `None` if unread.
    pub idle: Option<Cpus>,
    /// Every limit, one by one.
    pub limits: Vec<Limit>,
    /// The busy ones who count against it, heaviest user first.
    pub contenders: Vec<Contender>,
    /// What could not be read, and so is not accounted for.
    pub unread: Vec<Unread>,
}

/// One limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// What kind of limit.
    pub kind: LimitKind,
    /// What it leaves to the process; `None` when it does not limit it now.
    pub cpus: Option<Cpus>,
    /// The file that says so.
    pub source: String,
    /// Whether `available` is what it is because of this limit.
    pub binding: bool,
    /// The setting or the measurement, for people.
    pub detail: String,
}

/// The kinds of limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    /// CPUs that exist and are switched on.
    Online,
    /// The affinity mask of the process.
    Affinity,
    /// The cpuset of a group.
    Cpuset,
    /// The quota of a group.
    Quota,
    /// What the hypervisor gave to others.
    Steal,
    /// The weights of those members of a group that are busy.
    Weight,
    /// What the process has, together with what is idle.
    Measured,
}

impl LimitKind {
    /// The word for it in texts.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            LimitKind::Online => "online",
            LimitKind::Affinity => "affinity",
            LimitKind::Cpuset => "cpuset",
            LimitKind::Quota => "quota",
            LimitKind::Steal => "steal",
            LimitKind::Weight => "weight",
            LimitKind::Measured => "measured",
        }
    }
}

/// Somebody busy who divides CPU time with the process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contender {
    /// The directory of a group, the name of a session's automatic group, or `pid N (name)`.
    pub path: String,
    /// Who is in it, where the path does not tell; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub who: String,
    /// Its weight; that of all busy threads of a process together.
    pub weight: Weight,
    /// What it used.
    pub used: Cpus,
}

/// Judges two readings of the same process, `later` taken after `earlier`.
///
/// Settings are those of `later`. With no time between the two nothing is known about use:
/// `entitled` is `None`, and `available` is what the settings allow.
#[must_use]
pub fn estimate(earlier: &Reading, later: &Reading) -> Report {
    let window = Window::between(earlier.at, later.at);
    let mine = effective_set(later);
    let own = window.sum(&earlier.own, &later.own);
    let (idle, steal) = window.idle_and_steal(earlier, later, &mine).unzip();
    let (rivals, theirs) = rivals(&window, earlier, later);
    let unread = everything_unread(earlier, later, steal);
    let hidden = |u: &Unread| match u.what {
        What::Quota | What::Weight => true,
        What::Ancestors | What::Siblings => !window.nobody_unseen(earlier, later, own.run + theirs),
        What::Online | What::Cpuset | What::Idle | What::Threads => false,
    };
    let known = !window.is_empty() && !unread.iter().any(hidden);

    let mut hard = set_limits(later);
    hard.extend(quota_limits(earlier, later));
    hard.extend(steal_limit(&window, steal, &mine));
    let hard_least = hard
        .iter()
        .filter_map(|l| l.cpus)
        .fold(Cpus(f64::INFINITY), Cpus::min);
    let mut weights = weight_limits(later, &rivals, &mine);
    let weighed = weights.last().and_then(|l| l.cpus);
    let mut measured = measured_limit(later, own, idle, &mine);
    if window.is_empty() || (known && weights.is_empty()) {
        measured.cpus = None; // nobody competes: what it has says nothing about what it could have
    }

    // Weights and measurement are lower bounds of the same thing, so the larger counts.
    let soft = match (weighed.filter(|_| known), measured.cpus) {
        (Some(weighed), Some(measured)) => Some(weighed.max(measured)),
        (weighed, measured) => weighed.or(measured),
    };
    let available = soft.map_or(hard_least, |soft| hard_least.min(soft));
    if available.0 > hard_least.0 - TIE {
        mark_hard(&mut hard, hard_least);
    } else if same(measured.cpus, soft) {
        measured.binding = true;
    } else if let Some(last) = weights.last_mut() {
        last.binding = true;
    }
    let entitled = weighed.map_or(hard_least, |weighed| hard_least.min(weighed));

    let meeting = rivals.iter().flatten().filter(|r| r.meets(&mine));
    let mut contenders: Vec<Contender> = meeting.map(|r| r.contender()).collect();
    contenders.sort_by(|a, b| {
        b.used
            .0
            .total_cmp(&a.used.0)
            .then_with(|| a.path.cmp(&b.path))
    });
    hard.extend(weights);
    hard.push(measured);
    Report {
        pid: later.pid,
        name: later.name.clone(),
        window_ms: (window.ns / 1e3).round() / 1e3,
        entitled: known.then(|| round(entitled.0)),
        available: round(available.0),
        used: round(own.run),
        waiting: own.wait.map(round),
        idle: idle.map(round),
        limits: hard,
        contenders,
        unread,
    }
}

/// To a millionth of a CPU, so that texts and documents stay short.
pub(crate) fn round(cpus: f64) -> Cpus {
    Cpus((cpus * 1e6).round() / 1e6)
}

fn same(a: Option<Cpus>, b: Option<Cpus>) -> bool {
    a.zip(b).is_some_and(|(a, b)| (a.0 - b.0).abs() < TIE)
}

/// The CPUs that the process may run on.
fn effective_set(reading: &Reading) -> CpuSet {
    let allowed = reading.online.value.intersection(&reading.affinity.value);
    reading
        .cpusets
        .iter()
        .fold(allowed, |set, cpuset| set.intersection(&cpuset.value))
}

fn everything_unread(earlier: &Reading, later: &Reading, steal: Option<f64>) -> Vec<Unread> {
    let mut unread = later.unread.clone();
    if steal.is_some_and(|steal| steal >= STEAL_NOISE) {
        unread.push(Unread {
            what: What::Siblings,
            path: "/proc/stat".into(),
            why: "time is stolen: other machines on this host compete, and their weights cannot be seen".into(),
        });
    }
    let paths = |reading: &Reading| {
        reading
            .groups
            .iter()
            .map(|g| g.path.clone())
            .collect::<Vec<_>>()
    };
    if paths(earlier) != paths(later) {
        unread.push(Unread {
            what: What::Weight,
            path: format!("/proc/{}/cgroup", later.pid),
            why: "the process moved to another group while it was watched".into(),
        });
    }
    unread
}

fn set_limits(reading: &Reading) -> Vec<Limit> {
    let limit = |kind, set: &CpuSet, source: &str| Limit {
        kind,
        cpus: Some(Cpus(count(set.intersection(&reading.online.value).len()))),
        source: source.into(),
        binding: false,
        detail: set.to_string(),
    };
    let (online, affinity) = (&reading.online, &reading.affinity);
    let mut limits = vec![limit(LimitKind::Online, &online.value, &online.source)];
    if let Some(present) = reading
        .present
        .as_ref()
        .filter(|p| p.value.len() > online.value.len())
    {
        limits[0].detail = format!("{} of {} present", online.value, present.value);
    }
    limits.push(limit(
        LimitKind::Affinity,
        &affinity.value,
        &affinity.source,
    ));
    limits.extend(
        reading
            .cpusets
            .iter()
            .map(|s| limit(LimitKind::Cpuset, &s.value, &s.source)),
    );
    limits
}

fn quota_limits(earlier: &Reading, later: &Reading) -> Vec<Limit> {
    let limit = |group: &crate::reading::Group| {
        let quota = group.quota.as_ref()?;
        let before = earlier
            .groups
            .iter()
            .find(|g| g.path == group.path)
            .and_then(|g| g.throttled);
        let mut detail = match quota.quota_us {
            Some(quota_us) => format!("{quota_us} us in {} us", quota.period_us),
            None => "unlimited".into(),
        };
        if quota.burst_us > 0 {
            detail += &format!(", burst {} us", quota.burst_us);
        }
        let throttled = group
            .throttled
            .map(|now| throttled(before, now))
            .unwrap_or_default();
        if throttled.throttled_periods > 0 {
            detail += &format!(
                ", ran out in {} of {} periods",
                throttled.throttled_periods, throttled.periods
            );
        }
        let (kind, source) = (LimitKind::Quota, quota.source.clone());
        Some(Limit {
            kind,
            cpus: quota.cpus().map(|c| round(c.0)),
            source,
            binding: false,
            detail,
        })
    };
    later.groups.iter().filter_map(limit).collect()
}

fn steal_limit(window: &Window, steal: Option<f64>, mine: &CpuSet) -> Option<Limit> {
    let steal = steal.filter(|_| !window.is_empty())?;
    Some(Limit {
        kind: LimitKind::Steal,
        cpus: (steal >= STEAL_NOISE).then(|| round((count(mine.len()) - steal).max(0.0))),
        source: "/proc/stat".into(),
        binding: false,
        detail: format!("{steal:.2} stolen"),
    })
}

fn measured_limit(reading: &Reading, own: Use, idle: Option<f64>, mine: &CpuSet) -> Limit {
    let waiting = own.wait.map_or("waiting not counted".into(), |wait| {
        format!("waiting {wait:.2}")
    });
    let (cpus, idle) = match idle {
        Some(idle) => (
            Some((own.run + idle).min(count(mine.len()))),
            format!("idle {idle:.2}"),
        ),
        // Without idle time, only a process that waits shows that there is no more to have.
        None => {
            let short = own.wait.is_some_and(|wait| wait >= WAIT_NOISE);
            (short.then_some(own.run), "idle unknown".into())
        }
    };
    Limit {
        kind: LimitKind::Measured,
        cpus: cpus.map(round),
        source: format!("/proc/{}/task/*/schedstat", reading.pid),
        binding: false,
        detail: format!("used {:.2}, {idle}, {waiting}", own.run),
    }
}

/// Marks the limits that make `least` what it is. Of sets, only the first of equal ones:
/// those after it inherit it. The affinity mask lies inside the cpuset, so it counts only
/// where it is narrower.
fn mark_hard(limits: &mut [Limit], least: Cpus) {
    let at_least = |limit: &Limit| same(limit.cpus, Some(least));
    let set = [LimitKind::Online, LimitKind::Cpuset, LimitKind::Affinity]
        .iter()
        .find_map(|kind| {
            limits
                .iter()
                .position(|limit| limit.kind == *kind && at_least(limit))
        });
    for (i, limit) in limits.iter_mut().enumerate() {
        let is_set = matches!(
            limit.kind,
            LimitKind::Online | LimitKind::Cpuset | LimitKind::Affinity
        );
        limit.binding = at_least(limit) && (!is_set || set == Some(i));
    }
}
