//! How many CPUs one process gets, and which limit decides it: a [`Report`] from two readings.
//!
//! The mathematics, with a worked example, is in `docs/model.md`, "What one process gets".

use crate::contest::{levels, quota_headroom, weight_limits};
use crate::reading::{Reading, Unread, What};
use crate::report::{Contender, Limit, LimitKind, Report};
use crate::units::count;
use crate::window::{Activity, Use, Window, throttled};
use crate::{CpuSet, Cpus};

/// Whoever used at least this much between the two readings is *busy* and competes, in CPUs.
/// Who uses less takes at most that; counted as wanting everything, a daemon at 2 % of a CPU
/// would halve what a program beside it is called entitled to.
pub const BUSY: f64 = 0.05;

/// What unseen others may use on a machine that is still called idle, in CPUs; to this comes
/// the granularity of `/proc/stat` ([`TICK_NS`]) times the root of the number of CPUs.
pub(crate) const IDLE_SLACK: f64 = 0.05;

/// Granularity of the times in `/proc/stat`: `USER_HZ` is 100 on all of today's machines.
pub(crate) const TICK_NS: f64 = 1e7;

/// Stolen time below this and one tick ([`TICK_NS`]) is noise, in CPUs.
pub(crate) const STEAL_NOISE: f64 = 0.05;

/// Waiting below this is noise, in CPUs.
pub(crate) const WAIT_NOISE: f64 = 0.05;

/// Amounts closer than this are equal, in CPUs.
const TIE: f64 = 1e-6;

/// Judges two readings of the same process, `later` taken after `earlier`.
///
/// Settings are those of `later`. With no time between the two nothing is known about use:
/// `entitled` is `None`, and `available` is what the settings allow.
#[must_use]
pub fn estimate(earlier: &Reading, later: &Reading) -> Report {
    let window = Window::between(earlier.at, later.at);
    let mine = effective_set(later);
    let machine = count(later.online.value.len());
    let own = Activity::sum(&window.processes(&earlier.own, &later.own, machine));
    let (idle, steal) = window.idle_and_steal(earlier, later, &mine).unzip();
    let levels = levels(&window, earlier, later);
    let theirs: f64 = levels.iter().map(|level| level.used).sum();
    let steal = steal.map(|steal| Stolen { cpus: steal, counts: steal >= STEAL_NOISE + TICK_NS / window.ns });
    let stolen = steal.is_some_and(|steal| steal.counts);
    let unread = everything_unread(earlier, later, stolen);
    let hidden = |u: &Unread| match u.what {
        What::Quota | What::Weight => true,
        What::Ancestors | What::Siblings => !window.nobody_unseen(earlier, later, own.run + theirs),
        What::Online | What::Cpuset | What::Idle | What::Threads | What::Guest | What::Told => false,
    };
    let known = !window.is_empty() && !stolen && !unread.iter().any(hidden);

    let mut hard = set_limits(later);
    hard.extend(quota_limits(earlier, later));
    hard.extend(steal_limit(&window, steal, &mine));
    hard.extend(told_limit(later));
    let hard_least = hard.iter().filter_map(|l| l.cpus).fold(Cpus(f64::INFINITY), Cpus::min);
    let mut weights = weight_limits(later, &levels, &mine);
    let weighed = weights.last().and_then(|l| l.cpus);
    let headroom = quota_headroom(&window, earlier, later, &levels, own.run);
    let mut measured = measured_limit(later, own, idle, headroom, &mine);
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

    let meeting = levels.iter().flat_map(|level| &level.rivals).filter(|r| r.meets(&mine));
    let mut contenders: Vec<Contender> = meeting.map(|r| r.contender()).collect();
    contenders.sort_by(|a, b| b.used.0.total_cmp(&a.used.0).then_with(|| a.path.cmp(&b.path)));
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
    reading.cpusets.iter().fold(allowed, |set, cpuset| set.intersection(&cpuset.value))
}

fn everything_unread(earlier: &Reading, later: &Reading, stolen: bool) -> Vec<Unread> {
    let mut unread = later.unread.clone();
    if stolen {
        unread.push(Unread {
            what: What::Siblings,
            path: "/proc/stat".into(),
            why: "time is stolen: other machines on this host compete, and their weights cannot be seen"
                .into(),
        });
    }
    let paths = |reading: &Reading| reading.groups.iter().map(|g| g.path.clone()).collect::<Vec<_>>();
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
    if let Some(present) = reading.present.as_ref().filter(|p| p.value.len() > online.value.len()) {
        limits[0].detail = format!("{} of {} present", online.value, present.value);
    }
    limits.push(limit(LimitKind::Affinity, &affinity.value, &affinity.source));
    limits.extend(reading.cpusets.iter().map(|s| limit(LimitKind::Cpuset, &s.value, &s.source)));
    limits
}

fn quota_limits(earlier: &Reading, later: &Reading) -> Vec<Limit> {
    let limit = |group: &crate::reading::Group| {
        let quota = group.quota.as_ref()?;
        let before = earlier.groups.iter().find(|g| g.path == group.path).and_then(|g| g.throttled);
        let mut detail = match quota.quota_us {
            Some(quota_us) => format!("{quota_us} us in {} us", quota.period_us),
            None => "unlimited".into(),
        };
        if quota.burst_us > 0 {
            detail += &format!(", burst {} us", quota.burst_us);
        }
        let throttled = group.throttled.map(|now| throttled(before, now)).unwrap_or_default();
        if throttled.throttled_periods > 0 {
            detail +=
                &format!(", ran out in {} of {} periods", throttled.throttled_periods, throttled.periods);
        }
        let (kind, source) = (LimitKind::Quota, quota.source.clone());
        Some(Limit { kind, cpus: quota.cpus().map(|c| round(c.0)), source, binding: false, detail })
    };
    later.groups.iter().filter_map(limit).collect()
}

/// What the hypervisor took.
#[derive(Clone, Copy)]
struct Stolen {
    cpus: f64,
    /// More than noise.
    counts: bool,
}

fn steal_limit(window: &Window, steal: Option<Stolen>, mine: &CpuSet) -> Option<Limit> {
    let steal = steal.filter(|_| !window.is_empty())?;
    Some(Limit {
        kind: LimitKind::Steal,
        cpus: steal.counts.then(|| round((count(mine.len()) - steal.cpus).max(0.0))),
        source: "/proc/stat".into(),
        binding: false,
        detail: format!("{:.2} stolen", steal.cpus),
    })
}

/// What is told is for all programs of the machine together, so it limits each of them.
fn told_limit(reading: &Reading) -> Option<Limit> {
    let told = reading.told.as_ref()?;
    Some(Limit {
        kind: LimitKind::Told,
        cpus: Some(told.value),
        source: told.source.clone(),
        binding: false,
        detail: "said by the host".into(),
    })
}

fn measured_limit(
    reading: &Reading,
    own: Use,
    idle: Option<f64>,
    headroom: Option<f64>,
    mine: &CpuSet,
) -> Limit {
    let waiting = own.wait.map_or("waiting not counted".into(), |wait| format!("waiting {wait:.2}"));
    let (cpus, idle) = match idle {
        Some(idle) => (Some((own.run + idle).min(count(mine.len()))), format!("idle {idle:.2}")),
        // Without idle time, only a process that waits shows that there is no more to have.
        None => {
            let short = own.wait.is_some_and(|wait| wait >= WAIT_NOISE);
            (short.then_some(own.run), "idle unknown".into())
        }
    };
    let mut detail = format!("used {:.2}, {idle}, {waiting}", own.run);
    let below = headroom.filter(|headroom| cpus.is_some_and(|cpus| *headroom < cpus));
    if let Some(headroom) = below {
        detail += &format!(", others leave {headroom:.2} of the quota");
    }
    Limit {
        kind: LimitKind::Measured,
        cpus: below.or(cpus).map(round),
        source: format!("/proc/{}/task/*/schedstat", reading.pid),
        binding: false,
        detail,
    }
}

/// Marks the limits that make `least` what it is. Of sets, only the first of equal ones:
/// those after it inherit it. The affinity mask lies inside the cpuset, so it counts only
/// where it is narrower.
fn mark_hard(limits: &mut [Limit], least: Cpus) {
    let at_least = |limit: &Limit| same(limit.cpus, Some(least));
    let set = [LimitKind::Online, LimitKind::Cpuset, LimitKind::Affinity]
        .iter()
        .find_map(|kind| limits.iter().position(|limit| limit.kind == *kind && at_least(limit)));
    for (i, limit) in limits.iter_mut().enumerate() {
        let is_set = matches!(limit.kind, LimitKind::Online | LimitKind::Cpuset | LimitKind::Affinity);
        limit.binding = at_least(limit) && (!is_set || set == Some(i));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reading::{CpuTimes, Group, Other, ProcessTimes, Quota, Sourced, TaskTimes, Usage};
    use crate::{CpuId, Time, Weight};

    const SECOND_NS: u64 = 1_000_000_000;

    fn sourced<T>(value: T) -> Sourced<T> {
        Sourced { value, source: "file".into() }
    }

    fn quota(quota_us: u64) -> Option<Quota> {
        let (quota_us, source) = (Some(quota_us), "quota".into());
        Some(Quota { quota_us, period_us: 100_000, burst_us: 0, source })
    }

    fn group(path: &str, weight: f64, quota: Option<Quota>, others: Vec<Other>) -> Group {
        let (path, weight) = (path.into(), Some(sourced(Weight(weight))));
        Group { path, weight, quota, throttled: None, usage_ns: None, others }
    }

    /// A group that used `ms` of the second that `second` (0 or 1) ends.
    fn other(path: &str, weight: f64, second: u64, ms: u64) -> Other {
        let usage = Usage::GroupNs(second * ms * 1_000_000);
        let (path, who, weight) = (path.into(), String::new(), Some(Weight(weight)));
        Other { path, who, weight, quota: None, cpuset: None, usage }
    }

    /// Two CPUs with `idle_ms` each; a process that used `own_ms` and waited as long.
    fn reading(second: u64, own_ms: u64, idle_ms: u64, groups: Vec<Group>) -> Reading {
        let all = CpuSet::first(2);
        let idle_ns = second * idle_ms * 1_000_000 + 1;
        let cpu_times = all.iter().map(|cpu| CpuTimes { cpu, idle_ns, steal_ns: 0 }).collect();
        let run_ns = second * own_ms * 1_000_000;
        Reading {
            at: Time((second + 1) * SECOND_NS),
            pid: 7,
            name: "x".into(),
            started_ticks: 1,
            online: sourced(all.clone()),
            present: None,
            affinity: sourced(all),
            cpu_times,
            own: vec![ProcessTimes {
                pid: 7,
                parent: 1,
                tasks: vec![TaskTimes { tid: 7, run_ns, wait_ns: Some(run_ns) }],
                ended_children_ns: 0,
                cpuset: None,
            }],
            own_weight: Weight(1024.0),
            groups,
            cpusets: vec![],
            told: None,
            unread: vec![],
        }
    }

    #[test]
    fn what_the_host_tells_limits_as_a_quota_does() {
        let mut later = reading(1, 500, 1000, vec![]);
        later.told = Some(sourced(Cpus(0.75)));
        let report = estimate(&reading(0, 500, 1000, vec![]), &later);
        assert_eq!((report.available, binding(&report)), (Cpus(0.75), vec![LimitKind::Told]));
    }

    fn binding(report: &Report) -> Vec<LimitKind> {
        report.limits.iter().filter(|l| l.binding).map(|l| l.kind).collect()
    }

    /// The example in docs/model.md.
    fn example(y_ms: u64, b_ms: u64, idle_ms: u64) -> Report {
        let at = |second| {
            let b = other("/b", 1024.0, second, b_ms);
            let y = other("/a/y", 1024.0, second, y_ms);
            reading(
                second,
                500,
                idle_ms,
                vec![
                    group("/", 1.0, None, vec![b]),
                    group("/a", 1024.0, quota(150_000), vec![y]),
                    group("/a/x", 512.0, None, vec![]),
                ],
            )
        };
        estimate(&at(0), &at(1))
    }

    #[test]
    fn the_worked_example_of_the_model_holds() {
        let report = example(300, 600, 300);
        assert_eq!(report.entitled, Some(Cpus(0.333_333)));
        assert_eq!(report.available, Cpus(1.1));
        assert_eq!(binding(&report), [LimitKind::Measured]);
        let used: Vec<_> = report.contenders.iter().map(|c| (c.path.as_str(), c.used.0)).collect();
        assert_eq!(used, [("/b", 0.6), ("/a/y", 0.3)]);
    }

    #[test]
    fn a_process_that_executes_another_program_has_done_what_it_did_before() {
        let at = |second, name: &str, run_ms: u64| {
            let run_ns = run_ms * 1_000_000;
            let tasks = vec![TaskTimes { tid: 9, run_ns, wait_ns: Some(0) }];
            let times = ProcessTimes { pid: 9, parent: 1, tasks, ended_children_ns: 0, cpuset: None };
            let path = format!("pid 9 ({name})");
            let process = Other { usage: Usage::Process(times), ..other(&path, 1024.0, second, 0) };
            reading(second, 500, 1000, vec![group("/", 1.0, None, vec![process])])
        };
        let report = estimate(&at(0, "sh", 5_000), &at(1, "make", 5_250));
        assert_eq!(report.contenders.iter().map(|c| c.used.0).collect::<Vec<_>>(), [0.25]);
    }

    #[test]
    fn what_others_take_of_a_quota_that_is_shared_is_not_available() {
        // 0.9 of the quota's 1.5 are taken, so 0.6 are left, although 0.6 beside the own 0.5 are idle.
        let report = example(900, 0, 300);
        assert_eq!(report.available, Cpus(0.6));
        assert_eq!(binding(&report), [LimitKind::Measured]);
    }

    #[test]
    fn those_who_rest_do_not_compete() {
        let report = example(9, 9, 745);
        assert_eq!((report.entitled, report.available), (Some(Cpus(1.5)), Cpus(1.5)));
        assert_eq!((binding(&report), report.contenders.len()), (vec![LimitKind::Quota], 0));
    }

    #[test]
    fn without_idle_time_only_a_process_that_waits_is_held_to_what_it_has() {
        let at = |second, wait_ns| {
            let mut reading = reading(second, 500, 0, vec![]);
            reading.own[0].tasks[0].wait_ns = Some(wait_ns);
            reading.cpu_times = vec![];
            let (what, path, why) = (What::Ancestors, "/".into(), "hidden".into());
            reading.unread = vec![Unread { what, path, why }];
            reading
        };
        let available = |wait_ns| estimate(&at(0, 0), &at(1, wait_ns)).available;
        assert_eq!(available(0), Cpus(2.0));
        assert_eq!(available(SECOND_NS / 2), Cpus(0.5));
    }

    #[test]
    fn a_process_that_moves_between_groups_has_no_entitlement() {
        let earlier = reading(0, 0, 1000, vec![group("/a", 1024.0, None, vec![])]);
        let later = reading(1, 0, 1000, vec![group("/b", 1024.0, None, vec![])]);
        let report = estimate(&earlier, &later);
        assert_eq!(report.entitled, None);
        assert!(report.unread.iter().any(|u| u.why.contains("moved")));
        assert_eq!(estimate(&later, &reading(2, 0, 1000, later.groups.clone())).entitled, Some(Cpus(2.0)));
    }

    #[test]
    fn one_tick_of_stolen_time_in_a_short_window_is_noise() {
        let at = |ms: u64, stolen_ms: u64| {
            let mut reading = reading(0, 0, 0, vec![]);
            reading.at = Time(SECOND_NS + ms * 1_000_000);
            reading.cpu_times.iter_mut().for_each(|t| t.idle_ns += ms * 1_000_000);
            reading.cpu_times[0].steal_ns = stolen_ms * 1_000_000;
            reading
        };
        let entitled = |stolen_ms| estimate(&at(0, 0), &at(200, stolen_ms)).entitled;
        assert_eq!(entitled(10), Some(Cpus(2.0)));
        assert_eq!(entitled(30), None);
    }

    #[test]
    fn counters_that_go_back_count_as_no_use() {
        let later = |ms| reading(1, ms, 0, vec![]);
        let mut earlier = reading(0, 0, 0, vec![]);
        earlier.own[0].tasks[0].run_ns = 5 * SECOND_NS;
        assert_eq!(estimate(&earlier, &later(100)).used, Cpus(0.0));
        earlier.at = Time(9 * SECOND_NS);
        assert_eq!(estimate(&earlier, &later(100)).entitled, None, "no time has passed");
    }

    #[test]
    fn an_affinity_mask_is_binding_only_where_it_is_narrower_than_the_cpuset() {
        let mut later = reading(1, 0, 1000, vec![]);
        let one: CpuSet = [CpuId(1)].into_iter().collect();
        later.affinity.value = one.clone();
        let earlier = reading(0, 0, 1000, vec![]);
        assert_eq!(binding(&estimate(&earlier, &later)), [LimitKind::Affinity]);
        later.cpusets = vec![sourced(CpuSet::first(2)), sourced(one.clone()), sourced(one)];
        let report = estimate(&earlier, &later);
        assert_eq!(binding(&report), [LimitKind::Cpuset]);
        assert!(report.limits[3].binding, "the topmost of the equal ones");
    }
}
