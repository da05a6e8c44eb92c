//! Looking at the program until it ends.

use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use corefit_core::Time;
use corefit_core::profile::{Probe, Recorder, Series, Status};
use corefit_linux::launch::{Event, Supervised};
use corefit_linux::reporter::Reporter;
use corefit_linux::sample;
use corefit_linux::threads::{ThreadSampler, own_cpu};

use super::windows::Windows;

/// What was seen.
pub(super) struct Watched {
    pub(super) status: ExitStatus,
    pub(super) series: Series,
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
/// The longest that looks may be stretched to for their cost.
const STRETCHED: Duration = Duration::from_millis(50);
/// Looks at which the status is read as well: the first ones, and every so many.
const FIRST: u64 = 24;
const EVERY: u64 = 12;
/// Probes of the reporter, one with each of those: about 0.1 ms each. More do not make their mean better.
const PROBES: usize = 2_000;
/// Looks between two checks of what they cost.
const CHECK: u64 = 32;
/// Part of the program's CPU time, or of the time if that is more, that looking may cost (2 % are promised), and
/// below which it may be done more often again. Here a look at three threads took 60 to 160 us of CPU time, waking up
/// with cold caches included.
const COST: [f64; 2] = [0.008, 0.016];
/// Once the memory is used up, only switches are counted.
const RARELY: Duration = Duration::from_millis(500);

/// Follows the program to its end; `began`: before it was started.
pub(super) fn until_end(
    child: &mut Supervised,
    began: Time,
    period: Duration,
    reporter: &mut Reporter,
    mut windows: Option<Windows>,
) -> Result<Watched> {
    let mut recorder = Recorder::new(began);
    let mut sampler = ThreadSampler::new(child.pid());
    let wanted = (period / PER_PERIOD).clamp(SHORTEST, LONGEST);
    let mut interval = wanted;
    let cost_before = own_cpu();
    let mut looks = 0;
    let mut probes = vec![];
    let mut last = (Instant::now(), cost_before, 0);
    let mut next = last.0 + interval;
    let status = loop {
        match child.wait_until(next).context("lost the program")? {
            Event::Exited(status) => break status,
            Event::Stopped(_) => {}
            Event::Continued => {
                recorder.skip(sample::now());
                if let Some(windows) = &mut windows {
                    windows.skip();
                }
            }
            Event::Undelivered { signal, why } => {
                tell!("corefit: signal {signal} could not be passed on: {why}");
            }
            Event::Tick => {
                let look = sampler.look(looks < FIRST || looks.is_multiple_of(EVERY));
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
                if looks.is_multiple_of(CHECK) {
                    let now = (Instant::now(), own_cpu(), run);
                    let ran = Duration::from_nanos(run.saturating_sub(last.2));
                    let cost = (now.1 - last.1).div_duration_f64((now.0 - last.0).max(ran));
                    // Windows cost the rest of what is promised.
                    let part = if windows.as_ref().is_some_and(Windows::active) { 0.6 } else { 1.0 };
                    if cost > part * COST[1] {
                        interval = interval.mul_f64(1.5).min(STRETCHED);
                    } else if cost < part * COST[0] {
                        interval = interval.div_f64(1.5).max(wanted);
                    }
                    last = now;
                }
                let pause = if recorder.full() { RARELY } else { interval };
                next = (next + pause).max(Instant::now() + pause / 2);
            }
        }
    };
    let cost = own_cpu() - cost_before;
    Ok(Watched { status, series: recorder.finish(), probes, looks, interval, own_cpu: cost, windows })
}
