//! How many threads a program should run, from what its threads got of the CPUs.
//!
//! ```text
//!                    ┌──────────────── Follow(n) ◀───────────────┐
//!   CPUs were lost   │                  │   │                   │ kept: n+1, or undone: n
//!   ▼                │      idle CPUs,  │   │ none idle, more   │
//!   n := team(A) ◀───┘      for `hold`  │   │ cannot be ruled   │
//!                                       ▼   │ out: every `wait` │
//!                           n := team(A)    └───▶ Probe(n+1) ───┘
//! ```
//!
//! **What is available.** In an interval, n threads ran `run` CPUs and waited `wait` (with
//! `steal`, the time the hypervisor took from their CPUs). A runnable thread so got the share
//! s = run / (run + wait + steal) of a CPU, and n threads that never block get n s. What was
//! idle beside them could be had, too:  A = max(run + idle, n s), at most the CPUs allowed. (What is
//! told of it counts no more threads than wanted to run: of those that slept, nobody knows.)
//!
//! **From CPUs to threads.** A team that waits for its slowest member runs at n times the
//! share of that member. With A CPUs for n = ⌈A⌉ threads the last one gets A - (n-1), so
//! that team is worth n (A - (n-1)), and ⌊A⌋ threads on whole CPUs are worth ⌊A⌋: the larger
//! one wins. (A = 1.5: 2 x 0.5 = 1 against 1; A = 7.6: 8 x 0.6 = 4.8 against 7.) A quota is
//! different, it stops all threads together: there ⌈quota⌉ threads use what there is.
//!
//! **Asymmetry.** Losing a CPU is answered at once: spinning teams pay a timeslice per
//! hand-over (measured here: 0.5 s for a single LU step). Growing waits for `hold` and doubles
//! it when it was regretted; a blind probe backs off exponentially, is judged by what the
//! threads got and by the rate of regions, and is not made at all where the entitled CPUs
//! are known and leave nothing to find.

use std::time::Duration;

use serde::Serialize;

use crate::{Cpus, Time};

/// First wait before growing onto idle CPUs.
const HOLD: Duration = Duration::from_millis(100);
/// Longest such wait, after growing was regretted again and again.
const HOLD_MAX: Duration = Duration::from_millis(6_400);
/// A shrink within this time of growing is a regret.
const REGRET: Duration = Duration::from_secs(1);
/// First wait before a blind probe, and the longest.
const PROBE_WAIT: Duration = Duration::from_secs(2);
const PROBE_WAIT_MAX: Duration = Duration::from_secs(64);
/// A failed probe may cost at most one part in this many of the time.
const PROBE_COST: u32 = 50;
/// Idle CPUs that justify one more thread: not quite one, the counters have 10 ms steps.
const IDLE_ENOUGH: f64 = 0.7;
/// What is added to what was idle and used, for the same reason.
const IDLE_NEARLY: f64 = 0.3;
/// A smaller team must be worth this much more before a team shrinks.
const SHRINK_GAIN: f64 = 1.1;
/// CPUs lost in one interval that are answered without waiting for a second one.
const LOST_MUCH: f64 = 0.5;
/// A probe judged by progress must raise the rate of regions by this factor.
const PROBE_GAIN: f64 = 1.02;
/// Regions in each of the two compared intervals for a rate to mean something.
const ENOUGH_REGIONS: f64 = 10.0;

/// What was measured between two samples.
#[derive(Clone, Copy, Debug, Default)]
pub struct Interval {
    /// Its end.
    pub at: Time,
    /// Its length.
    pub length: Duration,
    /// CPUs on which the program's threads ran.
    pub run: Cpus,
    /// Threads that were runnable but not running, on average.
    pub wait: Cpus,
    /// CPUs that the hypervisor took from those allowed, while we could have used them.
    pub steal: Cpus,
    /// Idle CPUs among those allowed.
    pub idle: Cpus,
    /// CPUs that the program may run on (affinity and cpuset).
    pub allowed: u32,
    /// The tightest quota, in CPUs; `None` without.
    pub quota: Option<Cpus>,
    /// CPUs that the host says this machine gets; `None` where none says it.
    pub told: Option<Cpus>,
    /// CPUs that the program gets when everybody is busy; `None` if that cannot be known.
    pub entitled: Option<Cpus>,
    /// Threads in the teams that ran (all processes together), at least 1.
    pub team: u32,
    /// Parallel regions begun in the interval; `None` when not counted.
    pub regions: Option<u64>,
}

/// Why the number of threads changed, or did not.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Why {
    /// Nothing called for a change.
    Steady,
    /// The CPUs allowed (affinity, cpuset, quota, what the host tells) fell below the team.
    Limited,
    /// What there was at launch has been measured.
    Measured,
    /// More CPUs are allowed, and the threads are independent.
    Unlimited,
    /// Threads waited for CPUs that others used.
    Contended {
        /// CPUs that the threads got.
        run: Cpus,
        /// Threads that waited.
        wait: Cpus,
    },
    /// CPUs were idle.
    Idle {
        /// How many.
        idle: Cpus,
    },
    /// The program is entitled to more, whatever the others do.
    Entitled,
    /// Trying one thread more, since nothing told whether it would get a CPU.
    Probe,
    /// The probe gained: kept.
    ProbeKept,
    /// The probe gained nothing: undone.
    ProbeUndone,
}

/// What to do until the next interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// Threads to run, all processes of the program together.
    pub team: u32,
    /// CPUs that were to be had in the interval (a lower bound).
    pub available: Cpus,
    /// Why `team` is what it is.
    pub why: Why,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Follow,
    /// Since when one thread more has been ordered, and the rate of regions before.
    Probe {
        since: Time,
        rate: Option<f64>,
    },
}

/// Follows the CPUs of one program. See the module for the rules.
#[derive(Clone, Debug)]
pub struct TeamController {
    team: u32,
    most: u32,
    /// Whether the threads hardly ever wait for each other.
    independent: bool,
    phase: Phase,
    hold: Duration,
    room_since: Option<Time>,
    grew_at: Option<Time>,
    lost_before: bool,
    probe_wait: Duration,
    /// When the wait for the next probe began.
    quiet_since: Option<Time>,
    allowed: u32,
    rate: Option<f64>,
    /// The next decision tells of [`TeamController::settle`].
    settled: bool,
}

impl TeamController {
    /// A controller for a program launched with `team` threads that can use up to `most`. The team
    /// of a program with `independent` threads, which hardly ever wait for each other, follows
    /// the CPUs allowed and the quota only, whatever a host tells.
    #[must_use]
    pub fn new(team: u32, most: u32, independent: bool) -> TeamController {
        TeamController {
            team: team.clamp(1, most.max(1)),
            most: most.max(1),
            independent,
            phase: Phase::Follow,
            hold: HOLD,
            room_since: None,
            grew_at: None,
            lost_before: false,
            probe_wait: PROBE_WAIT,
            quiet_since: None,
            allowed: 0,
            rate: None,
            settled: false,
        }
    }

    /// Threads ordered at the moment.
    #[must_use]
    pub fn team(&self) -> u32 {
        self.team
    }

    /// Goes on with `team` threads, known from elsewhere to fit.
    pub fn settle(&mut self, team: u32) {
        self.settled = team != self.team;
        self.change(team);
    }

    /// Decides after one interval.
    pub fn step(&mut self, seen: &Interval) -> Decision {
        // CPUs that the host does not give are as good as not there for threads that wait for each other. Others share what there is.
        let told = seen.told.filter(|_| !self.independent).map_or(u32::MAX, team_for);
        let seen = &Interval { allowed: seen.allowed.min(told), ..*seen };
        let contended = available(seen, seen.team);
        let limit = limit(seen, self.most);
        let rose = seen.allowed > self.allowed && self.allowed > 0;
        self.allowed = seen.allowed;
        let mut why = self.decide(seen, contended, limit, rose);
        if std::mem::take(&mut self.settled) && why == Why::Steady {
            why = Why::Measured;
        }
        self.remember_rate(seen);
        let had = available(seen, seen.team.min(wanted(seen)));
        let least = [seen.quota, seen.told].into_iter().flatten().fold(had, Cpus::min);
        Decision { team: self.team, available: least, why }
    }

    fn decide(&mut self, seen: &Interval, contended: Cpus, limit: u32, rose: bool) -> Why {
        if limit < self.team {
            self.change(limit);
            return Why::Limited;
        }
        if self.independent {
            let wider = self.team < limit;
            self.change(limit);
            return if wider { Why::Unlimited } else { Why::Steady };
        }
        if let Phase::Probe { since, rate } = self.phase {
            return self.judge(seen, contended, since, rate);
        }
        if let Some(why) = self.shrink(seen, contended, limit) {
            return why;
        }
        if self.team < limit {
            return self.grow(seen, limit, rose);
        }
        self.room_since = None;
        self.quiet_since = None;
        self.calm(seen.at);
        Why::Steady
    }

    fn shrink(&mut self, seen: &Interval, contended: Cpus, limit: u32) -> Option<Why> {
        let target = team_for(contended).min(limit);
        let worth = worth(self.team, contended);
        let lost = seen.wait.0 + seen.steal.0;
        let calls = target < self.team && f64::from(target) > SHRINK_GAIN * worth;
        let act = calls && (lost >= LOST_MUCH || self.lost_before);
        self.lost_before = calls;
        if !act {
            return None;
        }
        if self.grew_at.is_some_and(|grew| seen.at.since(grew) < REGRET) {
            self.hold = (self.hold * 2).min(HOLD_MAX);
        }
        self.change(target);
        Some(Why::Contended { run: seen.run, wait: Cpus(lost) })
    }

    fn grow(&mut self, seen: &Interval, limit: u32, rose: bool) -> Why {
        let start = seen.at - seen.length;
        let due = seen.entitled.map_or(0, team_for);
        let free = team_for(Cpus(seen.run.0 + seen.idle.0 + IDLE_NEARLY));
        let free = if seen.idle.0 >= IDLE_ENOUGH { free } else { 0 };
        let room = free.max(due);
        if room > self.team {
            let since = *self.room_since.get_or_insert(start);
            // CPUs that were only just allowed are taken at once.
            if rose || seen.at.since(since) + seen.length / 10 >= self.hold {
                self.change(room.clamp(self.team + 1, limit));
                self.grew_at = Some(seen.at);
                return if free >= due { Why::Idle { idle: seen.idle } } else { Why::Entitled };
            }
            return Why::Steady;
        }
        self.room_since = None;
        let nothing_to_find = seen.entitled.is_some(); // it has that already, and nothing is idle
        let busy = seen.run.0 > 0.9 * f64::from(self.team);
        if nothing_to_find || !busy {
            self.quiet_since = None;
            return Why::Steady;
        }
        let since = *self.quiet_since.get_or_insert(start);
        if seen.at.since(since) < self.probe_wait && !rose {
            return Why::Steady;
        }
        self.phase = Phase::Probe { since: seen.at, rate: self.rate };
        self.team += 1;
        Why::Probe
    }

    /// Ends a probe once the larger team has run for a whole interval.
    fn judge(&mut self, seen: &Interval, contended: Cpus, since: Time, rate: Option<f64>) -> Why {
        let took = seen.at.since(since);
        if seen.team < self.team && took < Duration::from_secs(5) {
            return Why::Steady; // no region has begun since
        }
        let got = team_for(contended) >= self.team && seen.team >= self.team;
        let faster = match (rate, region_rate(seen)) {
            (Some(before), Some(now)) => now > PROBE_GAIN * before,
            _ => true,
        };
        self.phase = Phase::Follow;
        self.quiet_since = None;
        if got && faster {
            self.probe_wait = PROBE_WAIT;
            return Why::ProbeKept;
        }
        self.team -= 1;
        self.probe_wait = (self.probe_wait * 2).max(took * PROBE_COST).min(PROBE_WAIT_MAX);
        Why::ProbeUndone
    }

    fn change(&mut self, team: u32) {
        self.team = team.clamp(1, self.most);
        self.phase = Phase::Follow;
        self.room_since = None;
        self.quiet_since = None;
        self.grew_at = None;
        self.lost_before = false;
        self.rate = None;
    }

    /// Forgets regrets once a grown team has lasted.
    fn calm(&mut self, now: Time) {
        if self.grew_at.is_some_and(|grew| now.since(grew) > 5 * REGRET) {
            self.hold = HOLD;
            self.grew_at = None;
        }
    }

    fn remember_rate(&mut self, seen: &Interval) {
        if let (Phase::Follow, Some(now)) = (self.phase, region_rate(seen)) {
            self.rate = Some(self.rate.map_or(now, |before| 0.8 * before + 0.2 * now));
        }
    }
}

/// CPUs that threads ran on, waited for or lost.
fn demand(seen: &Interval) -> f64 {
    seen.run.0 + seen.wait.0 + seen.steal.0
}

/// Threads that this takes, a tenth forgiven.
fn wanted(seen: &Interval) -> u32 {
    whole((demand(seen) - 0.1).ceil()).max(1)
}

/// CPUs that `team` threads would have got in an interval without regard to quotas; see the module.
fn available(seen: &Interval, team: u32) -> Cpus {
    let demand = demand(seen);
    let share = if demand > 0.0 { seen.run.0 / demand } else { 1.0 };
    let free = (seen.run + seen.idle).0;
    // Threads that sleep most of the time waited for nothing: their share says little.
    let shared = f64::from(team.min(seen.allowed.max(1) * 64)) * share;
    let shared = if demand < 0.2 { 0.0 } else { shared };
    let entitled = seen.entitled.map_or(0.0, |e| e.0);
    Cpus(free.max(shared).max(entitled.min(1.0)).min(f64::from(seen.allowed)))
}

/// The most threads that limits leave: CPUs allowed, and ⌈quota⌉ (less a tenth).
fn limit(seen: &Interval, most: u32) -> u32 {
    let quota = seen.quota.map_or(f64::INFINITY, |q| (q.0 - 0.1).ceil().max(1.0));
    whole(quota).min(seen.allowed).min(most).max(1)
}

/// Threads for an amount of contended CPUs: ⌈A⌉ or ⌊A⌋, whichever team is worth more; at least 1.
#[must_use]
pub fn team_for(available: Cpus) -> u32 {
    let low = whole((available.0 + 0.05).floor().max(1.0));
    let high = low + 1;
    if worth(high, available) > f64::from(low) { high } else { low }
}

/// What a team of `n` is worth in whole CPUs when `available` are to be had: n times the share
/// of its slowest member, the others having whole CPUs.
fn worth(n: u32, available: Cpus) -> f64 {
    let slowest = available.0 - f64::from(n - 1);
    f64::from(n) * slowest.clamp(0.0, 1.0)
}

fn region_rate(seen: &Interval) -> Option<f64> {
    let regions = seen.regions? as f64;
    (regions >= ENOUGH_REGIONS).then(|| regions / seen.length.as_secs_f64().max(1e-3))
}

/// A non-negative amount as a whole number, saturating.
fn whole(amount: f64) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
    let n = amount.clamp(0.0, f64::from(u32::MAX)) as u32;
    n
}

#[cfg(test)]
mod tests;
