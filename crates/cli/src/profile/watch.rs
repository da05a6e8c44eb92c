//! Looking at the program until it ends.

use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use corefit_core::profile::{Probe, Recorder, Series, Status};
use corefit_core::{CpuSet, Time};
use corefit_linux::launch::{Event, Supervised};
use corefit_linux::reporter::Reporter;
use corefit_linux::sample;
use corefit_linux::threads::{ThreadSampler, own_cpu};

use super::windows::Windows;
use crate::bench::others;

/// What was seen.
pub(super) struct Watched {
    pub(super) status: ExitStatus,
    pub(super) series: Series,
    /// Whether only the beginning is in it, for want of memory.
    pub(super) full: bool,
    pub(super) stops: Stops,
    /// Of the reporter, each with the number of threads that were runnable.
    pub(super) probes: Vec<(Probe, usize)>,
    pub(super) looks: u64,
    /// Time between looks, in the end.
    pub(super) interval: Duration,
    /// What looking cost.
    pub(super) own_cpu: Duration,
    pub(super) windows: Option<Windows>,
}

/// Looks in an allocation period.
const PER_PERIOD: u32 = 6;
/// Between two looks: a running thread's time moves with the kernel's ticks of 4 ms, so more often shows nothing more.
const SHORTEST: Duration = Duration::from_millis(4);
const LONGEST: Duration = Duration::from_millis(8);
/// The longest that looks may be stretched to for their cost: with some thousands of threads.
const STRETCHED: Duration = Duration::from_secs(1);
/// Looks at which the status is read as well: the first ones, as long as none had to be stretched, and every so many.
const FIRST: u64 = 24;
const EVERY: u64 = 12;
/// Probes of the reporter, one with each of those: about 0.1 ms each. More do not make their mean better.
const PROBES: usize = 2_000;
/// What looks cost is checked after so many, or after this time, or once fewer cost more than so many may.
const CHECK: u32 = 32;
const CHECK_AFTER: Duration = Duration::from_secs(2);
/// Part of the program's CPU time, or of the time if that is more, that looking may cost (2 % are promised), and
/// below which it may be done more often again. Here a look at three threads took 60 to 160 us of CPU time, waking up
/// with cold caches included.
const COST: [f64; 2] = [0.008, 0.016];
/// Once the memory is used up, looks are for windows only.
const RARELY: Duration = Duration::from_millis(500);

/// Time between looks, by what they cost.
struct Pace {
    wanted: Duration,
    interval: Duration,
    /// Looks since the last check, and what the cheapest of them cost: a look may be interrupted.
    looks: u32,
    least: Duration,
    /// Our CPU time at the last look.
    cpu: Duration,
    /// The time, our CPU time, and that of the program's threads at the last check.
    last: (Instant, Duration, u64),
}

impl Pace {
    fn new(wanted: Duration, now: Instant, cpu: Duration) -> Pace {
        Pace { wanted, interval: wanted, looks: 0, least: Duration::MAX, cpu, last: (now, cpu, 0) }
    }

    /// After a look: the time, our CPU time so far, that of the program's threads in ns, and the part of [`COST`] that looks may
    /// cost.
    fn looked(&mut self, now: Instant, cpu: Duration, ran_ns: u64, part: f64) {
        self.looks += 1;
        self.least = self.least.min(cpu - std::mem::replace(&mut self.cpu, cpu));
        let (passed, spent) = (now - self.last.0, cpu - self.last.1);
        let most = part * COST[1];
        let least = self.least * self.looks;
        let too_much = self.looks > 1 && least > (CHECK * self.interval).mul_f64(most);
        if self.looks < CHECK && passed < CHECK_AFTER && !too_much {
            return;
        }
        let time = passed.max(Duration::from_nanos(ran_ns.saturating_sub(self.last.2)));
        let cost = spent.div_duration_f64(time);
        if cost > most {
            // At once as far as it takes: with hundreds of threads that is many times as long.
            let times = least.div_duration_f64(time) / most;
            self.interval = self.interval.mul_f64(times.max(1.5)).min(STRETCHED);
        } else if cost < part * COST[0] {
            self.interval = self.interval.div_f64(1.5).max(self.wanted);
        }
        (self.looks, self.least, self.last) = (0, Duration::MAX, (now, cpu, ran_ns));
    }

    fn stretched(&self) -> bool {
        self.interval > self.wanted
    }
}

/// Stops of the program, as by Ctrl-Z: no time in which it ran.
#[derive(Debug, Default)]
pub(super) struct Stops {
    /// When the present one began, and what [`others::spent_on_s`] was.
    since: Option<(Time, Option<f64>)>,
    pub(super) time: Duration,
    /// CPU time of others in them, s.
    pub(super) others_s: f64,
}

impl Stops {
    fn begin(&mut self, now: Time, others: Option<f64>) {
        self.since.get_or_insert((now, others));
    }

    /// The stop is over; how long it was.
    fn end(&mut self, now: Time, others: Option<f64>) -> Duration {
        let Some((since, before)) = self.since.take() else { return Duration::ZERO };
        let took = now.since(since);
        self.time += took;
        self.others_s += others.zip(before).map_or(0.0, |(after, before)| after - before);
        took
    }
}

/// Follows the program to its end; `began`: before it was started; `cpus`: those that it may use.
pub(super) fn until_end(
    child: &mut Supervised,
    began: Time,
    cpus: &CpuSet,
    period: Duration,
    reporter: &mut Reporter,
    mut windows: Option<Windows>,
) -> Result<Watched> {
    let mut recorder = Recorder::new(began);
    let mut sampler = ThreadSampler::new(child.pid());
    let cost_before = own_cpu();
    let mut looks = 0;
    let mut probes = vec![];
    let started = Instant::now();
    let mut pace = Pace::new((period / PER_PERIOD).clamp(SHORTEST, LONGEST), started, cost_before);
    let mut next = started + pace.interval;
    let mut stops = Stops::default();
    let status = loop {
        match child.wait_until(next).context("lost the program")? {
            Event::Exited(status) => break status,
            Event::Stopped(_) => stops.begin(sample::now(), others::spent_on_s(cpus)),
            Event::Continued => {
                let stopped = stops.end(sample::now(), others::spent_on_s(cpus));
                recorder.skip(sample::now());
                if let Some(windows) = &mut windows {
                    windows.skip(stopped);
                }
            }
            Event::Undelivered { signal, why } => {
                tell!("corefit: signal {signal} could not be passed on: {why}");
            }
            Event::Tick => {
                let look = sampler.look(looks < FIRST && !pace.stretched() || looks.is_multiple_of(EVERY));
                let run: u64 = look.threads.iter().map(|thread| thread.run_ns).sum();
                recorder.take(&look);
                if let Some(windows) = &mut windows {
                    windows.after(&look);
                }
                if looks.is_multiple_of(EVERY) && probes.len() < PROBES {
                    let runnable = |status: Option<Status>| status.is_some_and(|status| status.runnable);
                    let count = look.threads.iter().filter(|thread| runnable(thread.status)).count();
                    probes.push((reporter.probe(), count));
                }
                looks += 1;
                // Windows cost the rest of what is promised.
                let part = if windows.as_ref().is_some_and(Windows::active) { 0.6 } else { 1.0 };
                pace.looked(Instant::now(), own_cpu(), run, part);
                let pause = if recorder.full() { pace.interval.max(RARELY) } else { pace.interval };
                next = (next + pause).max(Instant::now() + pause / 2);
            }
        }
    };
    // It may be killed while it is stopped.
    stops.end(sample::now(), others::spent_on_s(cpus));
    let (own_cpu, interval, full) = (own_cpu() - cost_before, pace.interval, recorder.full());
    Ok(Watched { status, series: recorder.finish(), full, stops, probes, looks, interval, own_cpu, windows })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What part of a minute looks cost of which each takes `each`, of a program that keeps one CPU busy.
    fn cost(each: Duration) -> f64 {
        let began = Instant::now();
        let mut pace = Pace::new(LONGEST, began, Duration::ZERO);
        let (mut passed, mut cpu) = (Duration::ZERO, Duration::ZERO);
        while passed < Duration::from_secs(60) {
            passed += pace.interval.max(each);
            cpu += each;
            let ran = u64::try_from(passed.as_nanos()).unwrap();
            pace.looked(began + passed, cpu, ran, 1.0);
        }
        cpu.div_duration_f64(passed)
    }

    #[test]
    fn stops_are_no_time_in_which_it_ran_and_what_others_did_then_is_not_beside_it() {
        let mut stops = Stops::default();
        assert_eq!(stops.end(Time(5), Some(1.0)), Duration::ZERO, "none has begun");
        stops.begin(Time(10), Some(1.0));
        assert_eq!(stops.end(Time(40), Some(3.5)), Duration::from_nanos(30));
        stops.begin(Time(50), None);
        stops.end(Time(60), Some(9.0));
        assert_eq!((stops.time, stops.others_s), (Duration::from_nanos(40), 2.5));
    }

    #[test]
    fn looks_cost_what_is_promised_however_long_one_takes() {
        for micros in [20, 100, 300, 1000, 3000, 10_000, 15_000] {
            let cost = cost(Duration::from_micros(micros));
            assert!(cost < 0.02, "{micros} us: {cost}");
        }
    }

    #[test]
    fn what_costs_too_much_is_stretched_at_once_and_what_costs_little_comes_back() {
        let began = Instant::now();
        let ms = Duration::from_millis;
        let mut pace = Pace::new(LONGEST, began, Duration::ZERO);
        // 10 ms of 13: two of these are more than 32 looks may cost.
        pace.looked(began + ms(13), ms(10), 13_000_000, 1.0);
        assert!(!pace.stretched(), "one may have been interrupted");
        pace.looked(began + ms(26), ms(20), 26_000_000, 1.0);
        assert!(pace.interval > ms(350), "{:?}", pace.interval);
        for look in 1..=200 {
            pace.looked(began + ms(26 + 2000 * look), ms(20), 26_000_000, 1.0);
        }
        assert_eq!(pace.interval, LONGEST);
        // Where 64 CPUs are busy that is little.
        let mut many = Pace::new(LONGEST, began, Duration::ZERO);
        many.looked(began + ms(10), ms(5), 640_000_000, 1.0);
        many.looked(began + ms(20), ms(10), 1_280_000_000, 1.0);
        assert!(!many.stretched());
    }

    #[test]
    fn a_look_that_was_interrupted_does_not_make_all_others_rare() {
        let began = Instant::now();
        let mut pace = Pace::new(LONGEST, began, Duration::ZERO);
        for look in 0_u64..200 {
            let cpu = Duration::from_millis(10) + Duration::from_micros(50 * look);
            pace.looked(began + LONGEST * u32::try_from(look + 1).unwrap(), cpu, 8_000_000 * (look + 1), 1.0);
        }
        assert_eq!(pace.interval, LONGEST);
    }
}
