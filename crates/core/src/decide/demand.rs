//! What a VM is going to want: XenMVM's monitor, and ways to look ahead (docs/model.md, "Papers": P5).
//!
//! ```text
//! two snapshots ──monitor──▶ utilisation U, parallel level P ──▶ asked(N, U, P) ──Predict──▶ pCPUs wanted
//! ```
//!
//! The paper does not print how U and P become a number of vCPUs. Here: while the vCPUs are busy (U from `BUSY` on) as
//! many as there are threads to run (P x N); else those that are used; where run queues cannot be seen one more than are used. Nor does it
//! print which of them takes U smoothed (formula 5): here [`Ewma`] alone unless the policy says `smooth` (docs/arbitration.md, "Wanted").

use std::collections::VecDeque;
use std::fmt::Debug;
use std::time::Duration;

use super::policy::{Forecast, Policy};
use crate::Time;
use crate::machine::{GuestVcpu, GuestView, VmEstimate, VmState};

/// P5's gamma (formula 5).
pub(super) const GAMMA: f64 = 0.2;
/// From this utilisation on vCPUs may want more than they can show; ours.
const BUSY: f64 = 0.9;
/// Who uses fewer pCPUs pauses: clearly less than makes one vCPU busy, or who is near that asks and pauses by turns. Ours.
const PAUSES: f64 = 0.7;
/// Below this utilisation AISD takes one away; ours, as the paper prints none.
const LOW: f64 = 0.6;
/// Programs have followed what their guest is told after so long: that is smoothed; ours.
const FOLLOWS: Duration = Duration::from_secs(10);
/// The longest rest of who asked for more than it then used; ours.
const RESTS: Duration = Duration::from_secs(300);
/// Gains of the PID forecast, of the error, its sum and its change; ours.
const GAINS: (f64, f64, f64) = (0.5, 0.1, 0.2);

/// What the monitor saw between two snapshots.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Monitored {
    /// Mean over the vCPUs that are online, 0 to 1: user, system, iowait, irq and softirq over these and idle (formulas
    /// 1 to 3).
    pub utilisation: f64,
    /// Threads that run or could, per vCPU (formula 4).
    pub parallel: Option<f64>,
    /// As the paper has it. Otherwise an approximation from outside: nice time counts as busy, waiting for input and
    /// output as idle, and run queues are not seen.
    pub exact: bool,
}

impl Monitored {
    /// The same of one that has `online` vCPUs and may have `most`: threads beyond these want no vCPU more, and forecasts would hold to
    /// what nobody could have been granted.
    #[must_use]
    pub(super) fn within(self, online: u32, most: u32) -> Monitored {
        let all = f64::from(most) / f64::from(online.max(1));
        Monitored { parallel: self.parallel.map(|parallel| parallel.min(all)), ..self }
    }
}

/// Guests are asked each 5 s, but more rarely where they rest.
const LONG: Duration = Duration::from_secs(8);

/// Who waits for this part of the time of all its vCPUs wants to run, however little it did.
const STARVED: f64 = 0.9;

/// The monitor; `None` if nothing was measured.
#[must_use]
pub(super) fn monitor(before: Option<&VmState>, vm: &VmEstimate, over: Duration) -> Option<Monitored> {
    let outside = outside(vm, over);
    let Some(seen) = guest(before, &vm.seen) else { return outside };
    // What a guest that rested does now it did for little of the time since it was asked.
    let now = outside.filter(|_| covered(before, &vm.seen) > LONG).map_or(0.0, |now| now.utilisation);
    Some(Monitored { utilisation: seen.utilisation.max(now), ..seen })
}

/// The time between two answers of a guest, by its own clock.
fn covered(before: Option<&VmState>, after: &VmState) -> Duration {
    let clock = |view: &GuestView| {
        let vcpu = view.vcpus.iter().find(|vcpu| vcpu.online)?;
        [vcpu.busy_ns, vcpu.idle_ns, vcpu.steal_ns].into_iter().flatten().reduce(u64::saturating_add)
    };
    let of = |vm: &VmState| vm.guest.as_ref().and_then(clock);
    let passed = before.and_then(of).zip(of(after)).map_or(0, |(then, now)| now.saturating_sub(then));
    Duration::from_nanos(passed)
}

/// With what the guest's own clocks say.
fn guest(before: Option<&VmState>, after: &VmState) -> Option<Monitored> {
    let (old, new) = (before?.guest.as_ref()?, after.guest.as_ref()?);
    let mut sum = 0.0;
    let mut count = 0.0;
    let mut exact = new.runnable.is_some();
    let mut passed = false;
    for now in new.vcpus.iter().filter(|vcpu| vcpu.online) {
        let then = old.vcpus.iter().find(|vcpu| vcpu.id == now.id)?;
        let grown = |of: fn(&GuestVcpu) -> Option<u64>| of(now)?.checked_sub(of(then)?);
        let (busy, idle) = (grown(|v| v.busy_ns)?, grown(|v| v.idle_ns)?);
        let (nice, wait) = (grown(|v| v.nice_ns), grown(|v| v.iowait_ns));
        exact &= nice.is_some() && wait.is_some();
        let (nice, wait) = (nice.unwrap_or(0), wait.unwrap_or(0));
        let used = busy.saturating_sub(nice).saturating_add(wait);
        let all = used.saturating_add(idle.saturating_sub(wait));
        // One from which all was stolen, or given to low priority: of the first it is known that it wanted to run.
        let stolen = all == 0 && nice == 0 && grown(|v| v.steal_ns).is_some_and(|stolen| stolen > 0);
        passed |= all > 0 || stolen;
        let part = Duration::from_nanos(used).as_secs_f64() / Duration::from_nanos(all.max(1)).as_secs_f64();
        sum += if stolen { 1.0 } else { part };
        count += 1.0;
    }
    // Agents are asked less often than hosts: no time passed means that this is what they said before.
    (count > 0.0 && passed).then(|| Monitored {
        utilisation: (sum / count).min(1.0),
        parallel: new.runnable.map(|n| f64::from(n) / count),
        exact,
    })
}

/// Whether a guest tells all that the monitor needs.
#[must_use]
pub(super) fn tells_all(view: &GuestView) -> bool {
    let mut online = view.vcpus.iter().filter(|vcpu| vcpu.online);
    view.runnable.is_some() && online.all(|vcpu| vcpu.nice_ns.is_some() && vcpu.iowait_ns.is_some())
}

/// With what the host counts: steal is left out as the paper does, by leaving out what was waited for. The run queue is
/// what the guest said last.
fn outside(vm: &VmEstimate, over: Duration) -> Option<Monitored> {
    let count = crate::units::count(vm.seen.vcpus.iter().filter(|vcpu| vcpu.online).count());
    if over.is_zero() || count == 0.0 {
        return None;
    }
    let used = vm.activity.used?.0;
    let waited = vm.activity.waiting.map_or(0.0, |waiting| waiting.0);
    // Who hardly runs as others do is not idle.
    let starved = waited >= STARVED * count;
    // vCPUs that do not wait make nobody else's waiting less.
    let each = vm.demand.map_or(0.0, |demand| demand.0 / count);
    let utilisation = if starved { 1.0 } else { used / (count - waited).max(used).max(1e-9) }.max(each);
    let runnable = vm.seen.guest.as_ref().and_then(|guest| guest.runnable);
    let parallel = runnable.map(|n| f64::from(n) / count);
    Some(Monitored { utilisation: utilisation.min(1.0), parallel, exact: false })
}

/// vCPUs asked for by one look, of a VM with `online` of them. Who cannot be seen into asks for one more than it uses whether it has
/// that or not: otherwise it would ask for it again and again.
fn asked(seen: &Monitored, utilisation: f64, online: f64) -> f64 {
    if utilisation < BUSY {
        let used = utilisation * online;
        let spare = if seen.parallel.is_none() && used >= BUSY { 1.0 } else { 0.0 };
        return (used + spare).min(online);
    }
    seen.parallel.map_or(online + 1.0, |parallel| (parallel * online).max(utilisation * online))
}

/// A VM that may want more than it shows. Its programs follow what it has (`corefit run` does what guests are told), so one that had
/// fewer for a while, because others had them or as it was idle, and is busy with these, shows no more than that. It asks for
/// what it wanted before, until its programs had the time to follow; who does not use it then rests before it asks again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cut {
    /// The most it wanted, at first what it had.
    wanted: f64,
    asks: bool,
    /// Where forecasts go by the mean, so does this.
    mean: Option<Mean>,
    /// It uses a vCPU and more.
    pub runs: bool,
    /// Since when it has been asking without being busy with what it has.
    idles: Option<Time>,
    rest: Duration,
    not_before: Time,
}

impl Cut {
    /// Nothing is known yet.
    #[must_use]
    pub(super) fn new(policy: &Policy) -> Cut {
        Cut { mean: policy.smooth.then(Mean::default), ..Cut::default() }
    }

    /// What it wants, by what it shows, of a VM that has `online` vCPUs of `most`.
    pub(super) fn of(&mut self, seen: &Monitored, wants: f64, (online, most): (u32, u32), at: Time) -> f64 {
        let utilisation = self.mean.as_mut().map_or(seen.utilisation, |mean| mean.of(seen.utilisation));
        let (has, busy) = (f64::from(online), utilisation >= BUSY);
        self.runs = utilisation * has >= BUSY;
        self.wanted = if self.wanted == 0.0 { has } else { self.wanted.min(f64::from(most)) };
        if busy {
            self.wanted = self.wanted.max(wants.min(f64::from(most)));
            self.idles = None;
            if has >= self.wanted {
                (self.asks, self.rest) = (false, Duration::ZERO);
            } else {
                self.asks |= at >= self.not_before;
            }
        } else if self.asks {
            let since = *self.idles.get_or_insert(at);
            // One that pauses says nothing of what it needs when it runs.
            let pauses = seen.utilisation * has < PAUSES;
            if pauses || at.since(since) >= FOLLOWS {
                (self.asks, self.idles) = (false, None);
            }
            if !pauses && !self.asks {
                self.rest = super::longer(self.rest).min(RESTS);
                self.not_before = at + self.rest;
            }
        }
        if self.asks { wants.max(self.wanted) } else { wants }
    }
}

/// A way to look ahead, for one VM.
pub(super) trait Predict: Debug {
    /// pCPUs that it wants from now on.
    fn wants(&mut self, seen: &Monitored, online: u32, at: Time) -> f64;
}

/// One by its name.
#[must_use]
pub(super) fn predictor(name: Forecast, policy: &Policy) -> Box<dyn Predict + Send> {
    let of_utilisation: Box<dyn Predict + Send> = match name {
        Forecast::Ewma => return Box::new(Ewma::default()),
        Forecast::Pid => Box::new(Pid::default()),
        Forecast::Ftds => Box::new(Ftds::new(policy.dwell())),
        Forecast::Aisd => Box::new(Aisd::default()),
    };
    if policy.smooth {
        Box::new(Smoothed { mean: Mean::default(), of_mean: of_utilisation })
    } else {
        of_utilisation
    }
}

/// The mean that forgets, of the utilisation (formula 5).
#[derive(Clone, Copy, Debug, Default)]
struct Mean(Option<f64>);

impl Mean {
    fn of(&mut self, utilisation: f64) -> f64 {
        *self.0.insert(self.0.map_or(utilisation, |mean| (1.0 - GAMMA) * mean + GAMMA * utilisation))
    }
}

/// What the mean asks for.
#[derive(Debug, Default)]
pub(super) struct Ewma {
    mean: Mean,
}

impl Predict for Ewma {
    fn wants(&mut self, seen: &Monitored, online: u32, _: Time) -> f64 {
        asked(seen, self.mean.of(seen.utilisation), f64::from(online))
    }
}

/// Another forecast, of the mean.
#[derive(Debug)]
struct Smoothed {
    mean: Mean,
    of_mean: Box<dyn Predict + Send>,
}

impl Predict for Smoothed {
    fn wants(&mut self, seen: &Monitored, online: u32, at: Time) -> f64 {
        let utilisation = self.mean.of(seen.utilisation);
        self.of_mean.wants(&Monitored { utilisation, ..*seen }, online, at)
    }
}

/// A controller that follows what is asked for by the error, its sum and its change.
#[derive(Debug, Default)]
pub(super) struct Pid {
    forecast: Option<f64>,
    sum: f64,
    last: f64,
}

impl Predict for Pid {
    fn wants(&mut self, seen: &Monitored, online: u32, _: Time) -> f64 {
        let asked = asked(seen, seen.utilisation, f64::from(online));
        let Some(forecast) = self.forecast else {
            self.forecast = Some(asked);
            return asked;
        };
        let error = asked - forecast;
        // The sum is held where it would only drive away.
        self.sum = (self.sum + error).clamp(-2.0, 2.0);
        let (p, i, d) = GAINS;
        let step = p * error + i * self.sum + d * (error - self.last);
        self.last = error;
        let next = (forecast + step).max(0.0);
        self.forecast = Some(next);
        next
    }
}

/// Forecasting and time-delayed subtraction: increases at once, decreases when nothing more was wanted for a while.
#[derive(Debug)]
pub(super) struct Ftds {
    pid: Pid,
    delay: Duration,
    /// What was wanted lately, falling.
    lately: VecDeque<(Time, f64)>,
}

impl Ftds {
    /// Decreases wait for so long.
    #[must_use]
    pub(super) fn new(delay: Duration) -> Ftds {
        Ftds { pid: Pid::default(), delay, lately: VecDeque::new() }
    }
}

impl Predict for Ftds {
    fn wants(&mut self, seen: &Monitored, online: u32, at: Time) -> f64 {
        let now = asked(seen, seen.utilisation, f64::from(online)).max(self.pid.wants(seen, online, at));
        while self.lately.back().is_some_and(|(_, wanted)| *wanted <= now) {
            self.lately.pop_back();
        }
        self.lately.push_back((at, now));
        while self.lately.len() > 1
            && self.lately.front().is_some_and(|(then, _)| at.since(*then) > self.delay)
        {
            self.lately.pop_front();
        }
        self.lately.front().map_or(now, |(_, wanted)| *wanted)
    }
}

/// Additive increase, subtractive decrease: one at a time. Ours: at most one more than there are, however many threads wait, and one less only
/// where the rest would not be busy with what is used now, which would ask for it again; what was not given is not asked for by who is not busy.
#[derive(Debug, Default)]
pub(super) struct Aisd {
    wanted: Option<f64>,
}

impl Predict for Aisd {
    fn wants(&mut self, seen: &Monitored, online: u32, _: Time) -> f64 {
        let online = f64::from(online);
        let (most, used) = (online + 1.0, seen.utilisation * online);
        let wanted = self.wanted.unwrap_or(online).min(most);
        let next = match seen.utilisation {
            high if high >= BUSY && asked(seen, high, online) > wanted => (wanted + 1.0).min(most),
            low if low < LOW && used < BUSY * (wanted - 1.0) => wanted - 1.0,
            // What was not granted is not asked for by who would not use it.
            calm if calm < BUSY => wanted.min(online),
            _ => wanted,
        };
        self.wanted = Some(next);
        // One that is enough for it is not kept from others.
        if next <= 1.0 { used.min(1.0) } else { next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Counters, Pcpu, Snapshot, VcpuState, estimate};

    fn seen(utilisation: f64) -> Monitored {
        Monitored { utilisation, parallel: None, exact: false }
    }

    fn at(s: u64) -> Time {
        Time(s * 1_000_000_000)
    }

    #[test]
    fn the_monitor_leaves_out_nice_and_steal_and_counts_waiting_for_input() {
        let vcpu = |busy, nice, idle, wait, steal| GuestVcpu {
            id: 0,
            online: true,
            busy_ns: Some(busy),
            idle_ns: Some(idle),
            steal_ns: Some(steal),
            nice_ns: Some(nice),
            iowait_ns: Some(wait),
        };
        let vm = |vcpu, runnable| VmState {
            guest: Some(GuestView { vcpus: vec![vcpu], runnable, work: None }),
            ..VmState::default()
        };
        // busy 60 of which nice 20, idle 40 of which waiting 10: (60 - 20 + 10) / (60 - 20 + 40)
        let (before, after) = (vm(vcpu(0, 0, 0, 0, 0), None), vm(vcpu(60, 20, 40, 10, 100), Some(3)));
        let seen = guest(Some(&before), &after).unwrap();
        assert!((seen.utilisation - 50.0 / 80.0).abs() < 1e-12, "{seen:?}");
        assert_eq!((seen.parallel, seen.exact), (Some(3.0), true));
        let mut blind = after.clone();
        blind.guest.as_mut().unwrap().vcpus[0].nice_ns = None;
        assert!(!guest(Some(&before), &blind).unwrap().exact);
        assert!(guest(None, &after).is_none());
        assert!(guest(Some(&after), &after).is_none(), "it was not asked again");
    }

    #[test]
    fn who_hardly_runs_beside_others_is_not_idle() {
        let vcpu = |steal| GuestVcpu {
            online: true,
            busy_ns: Some(7),
            idle_ns: Some(7),
            steal_ns: Some(steal),
            ..GuestVcpu::default()
        };
        let vm = |steal| VmState {
            guest: Some(GuestView { vcpus: vec![vcpu(steal)], runnable: Some(4), work: None }),
            ..VmState::default()
        };
        assert_eq!(guest(Some(&vm(0)), &vm(100)).map(|seen| seen.utilisation), Some(1.0));
        assert!(guest(Some(&vm(0)), &vm(0)).is_none(), "no time passed");
        // Of a pCPU and four vCPUs, in ms of a second.
        let of = |run: u64, wait: u64| {
            let look = |ms: u64| {
                let ns = |each: u64| Some(each * ms * 1000);
                let counters = Counters { run_ns: ns(run), wait_ns: ns(wait), runs: None };
                let vcpu = VcpuState { online: true, counters, ..VcpuState::default() };
                let vm = VmState { vcpus: vec![vcpu; 4], ..VmState::default() };
                let pcpu = Pcpu { online: true, ..Pcpu::default() };
                Snapshot { at: Time(ms * 1_000_000), pcpus: vec![pcpu], vms: vec![vm], ..Snapshot::default() }
            };
            let seen = estimate(&look(0), &look(1000)).unwrap();
            outside(&seen.vms[0], Duration::from_secs(1)).unwrap().utilisation
        };
        assert_eq!([of(0, 950), of(0, 1000), of(50, 0)], [1.0, 1.0, 0.05]);
    }

    /// A guest is asked every 5 s or, while it rests, 30.
    #[test]
    fn what_a_guest_does_after_a_rest_is_not_spread_over_the_rest() {
        let after = |s: u64| {
            let look = |ms: u64, (busy, idle): (u64, u64)| {
                let ns = |ms: u64| Some(ms * 1_000_000);
                let view =
                    GuestVcpu { online: true, busy_ns: ns(busy), idle_ns: ns(idle), ..GuestVcpu::default() };
                let counters = Counters { run_ns: ns(busy), wait_ns: Some(0), runs: None };
                let vcpu = VcpuState { online: true, counters, ..VcpuState::default() };
                let guest = Some(GuestView { vcpus: vec![view], runnable: Some(1), work: None });
                let vm = VmState { vcpus: vec![vcpu], guest, ..VmState::default() };
                let pcpu = Pcpu { online: true, ..Pcpu::default() };
                Snapshot { at: Time(ms * 1_000_000), pcpus: vec![pcpu], vms: vec![vm], ..Snapshot::default() }
            };
            let before = look(0, (0, 0));
            let seen = estimate(&before, &look(1000, (800, s * 1000 - 800))).unwrap();
            monitor(before.vms.first(), &seen.vms[0], Duration::from_secs(1)).unwrap().utilisation
        };
        assert!(
            (after(5) - 0.16).abs() < 1e-9 && (after(30) - 0.8).abs() < 1e-9,
            "{} {}",
            after(5),
            after(30)
        );
    }

    #[test]
    fn gamma_is_a_fifth() {
        let mut ewma = Ewma::default();
        ewma.wants(&seen(0.0), 1, at(0));
        assert!((ewma.wants(&seen(0.5), 1, at(1)) - 0.1).abs() < 1e-12);
        assert!((ewma.wants(&seen(0.5), 1, at(2)) - 0.18).abs() < 1e-12);
    }

    #[test]
    fn what_is_smoothed_first_is_wanted_some_looks_later() {
        let busy_at = |smooth| {
            let mut ftds = predictor(Forecast::Ftds, &Policy { smooth, ..Policy::default() });
            ftds.wants(&seen(0.0), 2, at(0));
            (1..40).find(|s| ftds.wants(&seen(1.0), 2, at(*s)) >= 3.0)
        };
        assert_eq!((busy_at(false), busy_at(true)), (Some(1), Some(11)), "1 - 0.8^11 > 0.9");
    }

    #[test]
    fn ftds_grants_at_once_and_takes_away_later() {
        let mut ftds = Ftds::new(Duration::from_secs(3));
        assert!(ftds.wants(&seen(0.2), 4, at(0)) < 1.0);
        assert!(ftds.wants(&seen(1.0), 4, at(1)) >= 5.0, "at once");
        assert!(ftds.wants(&seen(0.1), 5, at(2)) >= 5.0);
        assert!(ftds.wants(&seen(0.1), 5, at(4)) >= 5.0, "not yet");
        for s in 5..12 {
            ftds.wants(&seen(0.1), 5, at(s));
        }
        assert!(ftds.wants(&seen(0.1), 5, at(12)) < 1.0);
    }

    #[test]
    fn aisd_goes_one_by_one() {
        let mut aisd = Aisd::default();
        let looks = [(1.0, 2), (1.0, 3), (0.7, 4), (1.0, 4), (0.7, 4), (0.1, 5), (0.1, 6)];
        let wanted: Vec<f64> = looks.iter().map(|&(u, n)| aisd.wants(&seen(u), n, at(0))).collect();
        assert_eq!(
            wanted,
            [3.0, 4.0, 4.0, 5.0, 4.0, 3.0, 2.0],
            "what it was not given it does not want if it is not busy"
        );
    }

    #[test]
    fn aisd_rests_at_a_steady_load_and_wants_one_more_than_there_are_at_most() {
        let mut aisd = Aisd::default();
        let mut online = 8;
        let mut steady = |aisd: &mut Aisd| {
            online = (0..20).fold(online, |n, _| {
                if aisd.wants(&seen(1.1 / f64::from(n)), n, at(0)) < f64::from(n) { n - 1 } else { n }
            });
            online
        };
        assert_eq!((steady(&mut aisd), steady(&mut aisd)), (2, 2), "one would be full, and ask for two");
        let many = Monitored { utilisation: 1.0, parallel: Some(16.0), exact: true };
        let wanted = (0..30).map(|_| aisd.wants(&many, 4, at(0))).fold(0.0, f64::max);
        assert_eq!(wanted, 5.0, "of 64 threads on four vCPUs");
        assert_eq!((0..6).map(|_| aisd.wants(&seen(0.0), 4, at(0))).fold(9.0, f64::min), 0.0);
        assert_eq!(
            aisd.wants(&seen(0.1), 4, at(0)),
            0.4,
            "one that is enough for it is not kept from others"
        );
    }

    #[test]
    fn pid_follows_a_step_without_running_away() {
        let mut pid = Pid::default();
        pid.wants(&seen(0.0), 8, at(0));
        let most = (0..40).map(|_| pid.wants(&seen(0.5), 8, at(1))).fold(0.0, f64::max);
        assert!(most < 6.0, "{most}");
        assert!((pid.wants(&seen(0.5), 8, at(2)) - 5.0).abs() < 0.2);
    }

    /// 8 vCPUs of which it has `online`, and threads for all that it has.
    fn cut(cut: &mut Cut, used: f64, online: u32, s: u64) -> f64 {
        let n = f64::from(online);
        let seen = Monitored { utilisation: used / n, parallel: Some(1.0), exact: true };
        cut.of(&seen, used, (online, 8), at(s))
    }

    #[test]
    fn who_idled_and_is_busy_with_what_it_has_wants_what_it_had_at_once() {
        let mut known = Cut::default();
        assert!(cut(&mut known, 0.0, 8, 0) < 1.0);
        assert!(cut(&mut known, 0.0, 1, 1) < 1.0);
        assert!(cut(&mut known, 1.0, 1, 2) >= 8.0, "at once");
        for s in 3..9 {
            assert!(cut(&mut known, 4.0, 8, s) >= 8.0, "its programs have yet to follow");
        }
        assert!(cut(&mut known, 8.0, 8, 9) >= 8.0);
        assert!(cut(&mut known, 0.1, 8, 10) < 1.0, "it pauses");
        assert!(cut(&mut known, 1.0, 1, 20) >= 8.0, "and asks anew");
    }

    #[test]
    fn who_does_not_use_what_it_asked_for_rests_longer_and_longer() {
        // The second one is just busy with one.
        for (with_one, with_all) in [(1.0, 1.0), (0.9, 0.88)] {
            let mut known = Cut::default();
            cut(&mut known, 0.0, 8, 0);
            let mut online = 1;
            let mut asked = Vec::new();
            for s in 1..600 {
                let wants = cut(&mut known, if online == 1 { with_one } else { with_all }, online, s);
                if wants >= 8.0 && online == 1 {
                    asked.push(s);
                }
                online = if wants >= 8.0 { 8 } else { 1 };
            }
            let rests: Vec<u64> = asked.windows(2).map(|pair| pair[1] - pair[0]).collect();
            assert!(rests.windows(2).all(|pair| pair[1] > pair[0]) && asked.len() <= 5, "{asked:?}");
        }
    }

    #[test]
    fn where_forecasts_go_by_the_mean_it_is_asked_for_when_that_is_busy() {
        let asks_at = |smooth| {
            let mut known = Cut::new(&Policy { smooth, ..Policy::default() });
            cut(&mut known, 0.0, 8, 0);
            (1..40).find(|s| cut(&mut known, 1.0, 1, *s) >= 8.0)
        };
        assert_eq!((asks_at(false), asks_at(true)), (Some(1), Some(11)));
    }
}
