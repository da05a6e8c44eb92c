//! The loop of `corefit run`: sample the program, decide, publish.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use corefit_core::{CpuSet, Cpus, Decision, Interval, TeamController};
use corefit_linux::page::{Orders, PLACES, Process, TeamPage};
use corefit_linux::sample::{TreeSample, TreeSampler, has_ended};

use super::grants::Grants;
use super::history::{History, Point};
use super::launch::Plan;
use super::outside::{NAMED, Outside};
use super::placer::Placer;
use super::report::{OpenMp, Report};
use super::work::Teller;

/// A process that used less than this in an interval gets no part of the team.
const ACTIVE: f64 = 0.05;
/// Threads that wait for a CPU, and threads beyond the known teams, from which on there is more in the
/// program than is known.
const UNKNOWN: f64 = 0.5;

/// Who ends with the program has ended after so long.
const MOMENT: Duration = Duration::from_millis(50);

/// Limits that are read less often than samples are taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    /// The tightest quota.
    pub(crate) quota: Option<Cpus>,
    /// What is left when everybody is busy, where it can be known.
    pub(crate) entitled: Option<Cpus>,
    /// What the host says that this VM gets.
    pub(crate) told: Option<Cpus>,
}

/// Process id, slot and serial: by exec one process becomes several programs, of which each counts anew.
type Key = (u32, usize, u32);

fn key(p: &Process) -> Key {
    (p.pid, p.slot, p.serial)
}

/// Follows one run of a program.
pub(crate) struct Follower<'a> {
    page: Option<&'a TeamPage>,
    grants: &'a Grants,
    sampler: TreeSampler,
    control: TeamController,
    before: TreeSample,
    placed: Option<Placer<'a>>,
    /// OpenMP programs met.
    seen: BTreeMap<Key, OpenMp>,
    /// Threads in the teams that ran last.
    in_force: u32,
    /// Whether the last orders had regions counted.
    ordered: bool,
    /// Threads wait that are in no known team. Where nothing is ordered a region tells nothing, so it may
    /// be one that asks for more than those before (a `num_threads` clause, `omp_set_num_threads`).
    more_than_known: bool,
    /// Tells the host of this VM how much is done.
    teller: Teller,
    outside: Outside,
    pub(crate) history: History,
}

impl<'a> Follower<'a> {
    /// Follows the tree below `pid`, launched as planned; what is allowed shows in the affinity of `allowed_of`.
    pub(crate) fn new(pid: u32, allowed_of: u32, plan: &'a Plan, grants: &'a Grants) -> Follower<'a> {
        let launched = plan.launch.cpus.as_ref();
        let placed = plan.cores.as_ref().map(|(cores, allowed)| Placer::new(cores, allowed, launched));
        let mut sampler = TreeSampler::new(pid, allowed_of);
        let before = sampler.sample();
        let mut follower = Follower {
            page: plan.page.as_deref(),
            grants,
            placed,
            sampler,
            control: TeamController::new(plan.team, plan.ever(), plan.independent),
            history: History::new(before.at, plan.team),
            before,
            seen: BTreeMap::new(),
            in_force: plan.team,
            ordered: true,
            more_than_known: false,
            teller: Teller::default(),
            outside: Outside::default(),
        };
        // A program that is started again did before what it did.
        follower.tell(&follower.registered());
        follower
    }

    /// One interval: gives what was decided.
    pub(crate) fn tick(&mut self, limits: Limits) -> Decision {
        let processes = self.registered();
        self.sampler.know(processes.iter().map(|p| p.pid));
        let sample = self.sampler.sample();
        self.tell(&processes);
        let processes = self.live(processes, &sample);
        if self.page.is_some() {
            self.outside.look(&sample.processes);
        }
        let active = self.active(&processes, &sample);
        let seen = self.interval(&sample, &active, limits);
        let decision = self.control.step(&seen);
        self.publish(&processes, &active, decision.team);
        if let Some(placed) = &mut self.placed {
            placed.follow(decision.team, self.sampler.tids());
        }
        self.history.add(Point {
            at: sample.at,
            length: seen.length,
            team: decision.team,
            available: decision.available,
            run: seen.run,
            wait: Cpus(seen.wait.0 + seen.steal.0),
            why: decision.why,
        });
        self.before = sample;
        decision
    }

    /// Begins again with a team that is known to fit.
    pub(crate) fn settle(&mut self, team: u32) {
        self.control.settle(team);
    }

    /// After a stop: what happened meanwhile says nothing.
    pub(crate) fn skip(&mut self) {
        self.before = self.sampler.sample();
    }

    /// Tells how much is done, if a host wants to know. Not of programs whose teams follow what it tells: they fit any number of
    /// vCPUs, and a search for another one costs only.
    fn tell(&mut self, processes: &[Process]) {
        let grants = self.grants;
        if self.teller.listens(processes, &mut |listens| grants.set_counts(listens)) {
            self.teller.tell(processes, |p| !grants.of(p).may_be_resized(p.dynamic));
        }
    }

    /// Processes that have a slot.
    fn registered(&self) -> Vec<Process> {
        self.page.map(TeamPage::processes).unwrap_or_default()
    }

    /// Those that live; slots of ended ones are freed.
    fn live(&self, mut processes: Vec<Process>, sample: &TreeSample) -> Vec<Process> {
        let Some(page) = self.page else {
            return vec![];
        };
        processes.retain(|p| {
            let ran = sample.processes.get(&p.pid) > self.before.processes.get(&p.pid);
            let alive = ran || !has_ended(p.pid);
            if !alive {
                page.release(p);
            }
            alive
        });
        processes
    }

    /// Processes that ran in the interval, or all if none did.
    fn active(&mut self, processes: &[Process], sample: &TreeSample) -> Vec<Process> {
        for p in processes {
            let known = self.seen.remove(&key(p));
            self.seen.insert(key(p), OpenMp::update(known, p, self.grants.of(p)));
        }
        let length = sample.at.since(self.before.at).as_secs_f64().max(1e-6);
        let used = |p: &&Process| {
            let now = sample.processes.get(&p.pid).copied().unwrap_or_default();
            let then = self.before.processes.get(&p.pid).copied().unwrap_or_default();
            now.saturating_sub(then).as_secs_f64() / length > ACTIVE
        };
        let active: Vec<Process> = processes.iter().filter(used).copied().collect();
        if active.is_empty() { processes.to_vec() } else { active }
    }

    fn interval(&mut self, sample: &TreeSample, active: &[Process], limits: Limits) -> Interval {
        let length = sample.at.since(self.before.at);
        let seconds = length.as_secs_f64().max(1e-6);
        let rate = |now: Duration, then: Duration| Cpus(now.saturating_sub(then).as_secs_f64() / seconds);
        let sum = |now: &BTreeMap<_, Duration>, then: &BTreeMap<_, Duration>| {
            let each = sample.allowed.iter().filter_map(|c| Some((now.get(&c)?, then.get(&c)?)));
            Cpus(each.map(|(n, t)| rate(*n, *t).0).sum())
        };
        let run = rate(sample.run, self.before.run);
        let wait = rate(sample.wait, self.before.wait);
        let team = if active.is_empty() { runnable(run, wait) } else { active.iter().map(|p| p.team).sum() };
        self.in_force = team.max(1);
        let runnable = run.0 + wait.0;
        self.more_than_known = wait.0 > UNKNOWN && runnable > f64::from(self.in_force) + UNKNOWN;
        let allowed = u32::try_from(sample.allowed.len()).unwrap_or(u32::MAX);
        Interval {
            at: sample.at,
            length,
            run,
            wait,
            steal: sum(&sample.steal, &self.before.steal),
            idle: sum(&sample.idle, &self.before.idle),
            allowed,
            quota: limits.quota,
            told: limits.told,
            entitled: limits.entitled,
            team: self.in_force,
            regions: self.count_regions(active),
        }
    }

    /// Regions begun since the last call, if all of them were counted.
    fn count_regions(&mut self, active: &[Process]) -> Option<u64> {
        let complete = self.ordered && !active.is_empty();
        let begun = active.iter().map(|p| {
            let known = self.seen.get_mut(&key(p))?;
            let before = std::mem::replace(&mut known.counted, p.regions);
            Some(p.regions.saturating_sub(before))
        });
        let begun = begun.flatten().sum();
        complete.then_some(begun)
    }

    /// Divides the team among the active processes and tells them. The others are told an even
    /// part, for when they wake up.
    fn publish(&mut self, processes: &[Process], active: &[Process], team: u32) {
        let Some(page) = self.page else {
            return;
        };
        // Whoever registers now starts within this; the next interval knows what it asked for.
        self.grants.set_team(team);
        let wants = |p: &Process| self.seen.get(&key(p)).map_or(p.requested, |seen| seen.requested);
        let parts = divide(team, &active.iter().map(wants).collect::<Vec<_>>());
        let even = (team / u32::try_from(active.len()).unwrap_or(1).max(1)).max(1);
        let mut short = false;
        for p in processes {
            let at = active.iter().position(|a| a.slot == p.slot);
            let mine = at.map_or(even, |at| parts[at]);
            let limited = mine < self.seen.get(&key(p)).map_or(p.requested, |seen| seen.requested);
            short |= limited;
            let mut quiet = p.team > mine;
            if let Some(seen) = self.seen.get_mut(&key(p)) {
                // Who may be resized has a fitting team with its next region, and then is to spin in it:
                // only one that did not come to that in an interval is stopped from spinning.
                quiet &= !seen.may_be_resized() || seen.told.is_some_and(|told| told <= mine);
                seen.told = limited.then_some(mine);
                seen.quieted |= limited && quiet;
            }
            let orders = if limited {
                self.grants.orders(self.grants.of(p), Some(mine), quiet)
            } else {
                let orders = match self.grants.orders(self.grants.of(p), None, false) {
                    Orders { team: Some(most), count, rotate, .. } if u32::from(most) >= p.requested => {
                        Orders { count, rotate, ..Orders::default() }
                    }
                    orders => orders,
                };
                Orders { count: orders.count || self.more_than_known, ..orders }
            };
            // The process may have become another program meanwhile, with another grant.
            if page.is_current(p) {
                page.publish(p.slot, orders);
            }
        }
        self.ordered = short || self.more_than_known;
    }

    /// Whether all threads that wait are in known teams.
    pub(crate) fn knows_all(&self) -> bool {
        !self.more_than_known
    }

    /// Whether there is nobody whom orders reach: no OpenMP process, and no threads to place.
    pub(crate) fn nobody_listens(&self) -> bool {
        self.placed.is_none() && self.page.is_none_or(|page| page.processes().is_empty())
    }

    /// The CPUs that the program may use, where its main thread's affinity does not tell.
    pub(crate) fn allowed(&self) -> Option<&CpuSet> {
        Some(&self.before.allowed).filter(|_| self.sampler.allowed_apart())
    }

    /// Where the run stands, for the status line.
    pub(crate) fn last(&self) -> Option<&Point> {
        self.history.points().last()
    }

    /// Threads in the teams that ran last.
    pub(crate) fn team(&self) -> u32 {
        self.in_force
    }

    /// Whether orders about team sizes have an effect.
    pub(crate) fn is_resizable(&self) -> bool {
        // Of several programs of one process, one after the other, the last.
        let seen = self.seen.iter().map(|((pid, slot, _), program)| ((pid, slot), program));
        seen.collect::<BTreeMap<_, _>>().values().any(|program| program.may_be_resized())
    }

    /// What is known at the end of a run.
    pub(crate) fn report(&mut self, plan: &Plan) -> Report {
        let processes = self.registered();
        self.tell(&processes);
        for p in processes {
            let known = self.seen.remove(&key(&p));
            self.seen.insert(key(&p), OpenMp::update(known, &p, self.grants.of(&p)));
        }
        Report {
            notes_at_end: self
                .outside
                .remarks()
                .into_iter()
                .chain(self.refused())
                .chain(self.blind())
                .collect(),
            ..Report::new(&self.history, self.seen.values().cloned().collect(), plan)
        }
    }

    /// OpenMP processes that nobody follows for want of room.
    fn refused(&self) -> Option<String> {
        let count = self.page.map_or(0, TeamPage::refused);
        let them = if count == 1 { "process more was" } else { "processes more were" };
        (count > 0).then(|| {
            format!(
                "{count} OpenMP {them} not followed, as {PLACES} are at most at a time: teams there were as asked for"
            )
        })
    }

    /// Where the kernel does not tell what threads get.
    fn blind(&self) -> Option<String> {
        self.sampler.is_blind().then(|| {
            "what threads get cannot be seen here (no /proc/PID/task/TID/schedstat could be read): teams followed limits and idle \
             CPUs only"
                .into()
        })
    }

    /// Processes that outlive the program: nobody gives them orders any more.
    pub(crate) fn left_behind(&self) -> Vec<String> {
        let mut left = self.registered();
        left.retain(|p| !has_ended(p.pid));
        // Who ends with the program may do so a moment later.
        if !left.is_empty() {
            thread::sleep(MOMENT);
            left.retain(|p| !has_ended(p.pid));
        }
        let told = |p: Process| {
            format!(
                "process {} goes on, and is no longer followed: its teams are as it asks for again",
                p.pid
            )
        };
        let more = left.len().saturating_sub(NAMED);
        let more = (more > 0).then(|| format!("and {more} processes more go on"));
        left.into_iter().take(NAMED).map(told).chain(more).collect()
    }
}

/// Divides a team among processes that ask for so many threads each: nobody gets more than it asks for, nor less than
/// another one if it asks for that, but for one thread where they cannot be equal. Everybody gets one.
fn divide(team: u32, wants: &[u32]) -> Vec<u32> {
    let mut order: Vec<usize> = (0..wants.len()).collect();
    order.sort_by_key(|at| (wants[*at], Reverse(*at)));
    let mut parts = vec![1; wants.len()];
    let mut left = team;
    for (served, at) in order.into_iter().enumerate() {
        let others = u32::try_from(wants.len() - served).unwrap_or(u32::MAX);
        parts[at] = wants[at].min(left / others).max(1);
        left = left.saturating_sub(parts[at]);
    }
    parts
}

/// Threads that wanted to run, for a program without OpenMP.
fn runnable(run: Cpus, wait: Cpus) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and not negative")]
    let n = (run.0 + wait.0).round().max(1.0) as u32;
    n
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_for_little_leaves_the_rest_of_the_team_to_others() {
        for (team, wants, parts) in [
            (8, vec![1, 7], vec![1, 7]),
            (8, vec![8, 1], vec![7, 1]),
            (8, vec![8, 8, 2], vec![3, 3, 2]),
            (8, vec![8, 8, 8], vec![3, 3, 2]),
            (8, vec![2, 3], vec![2, 3]),
            (2, vec![4, 4, 4], vec![1, 1, 1]),
            (4, vec![4, 0], vec![3, 1]),
            (4, vec![], vec![]),
        ] {
            assert_eq!(divide(team, &wants), parts, "{team} among {wants:?}");
        }
    }
}
