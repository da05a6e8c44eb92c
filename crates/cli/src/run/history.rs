//! What happened during a run: one point per interval, and means over them.

use std::time::Duration;

use corefit_core::{Cpus, Time, Why};

/// One interval.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    /// Its end.
    pub(crate) at: Time,
    /// Its length.
    pub(crate) length: Duration,
    /// Threads ordered from now on.
    pub(crate) team: u32,
    /// CPUs that were to be had (a lower bound).
    pub(crate) available: Cpus,
    /// CPUs used.
    pub(crate) run: Cpus,
    /// Threads waiting for a CPU.
    pub(crate) wait: Cpus,
    /// Why the team is what it is.
    pub(crate) why: Why,
}

/// Most points kept; then every other one is dropped, but for changes.
const KEPT: usize = 4096;

/// The intervals of a run.
pub(crate) struct History {
    began: Time,
    first_team: u32,
    points: Vec<Point>,
    time_s: f64,
    available_s: f64,
    used_s: f64,
    waited_s: f64,
}

impl History {
    pub(crate) fn new(began: Time, first_team: u32) -> History {
        History {
            began,
            first_team,
            points: vec![],
            time_s: 0.0,
            available_s: 0.0,
            used_s: 0.0,
            waited_s: 0.0,
        }
    }

    pub(crate) fn add(&mut self, point: Point) {
        let seconds = point.length.as_secs_f64();
        self.time_s += seconds;
        self.available_s += point.available.0 * seconds;
        self.used_s += point.run.0 * seconds;
        self.waited_s += point.wait.0 * seconds;
        self.points.push(point);
        if self.points.len() >= KEPT {
            let mut odd = false;
            self.points.retain(|p| {
                odd = !odd;
                odd || p.why != Why::Steady
            });
            if self.points.len() >= KEPT {
                self.points.drain(..KEPT / 2);
            }
        }
    }

    pub(crate) fn began(&self) -> Time {
        self.began
    }

    pub(crate) fn first_team(&self) -> u32 {
        self.first_team
    }

    pub(crate) fn points(&self) -> &[Point] {
        &self.points
    }

    /// Mean over time of what was available; `None` before the first interval.
    pub(crate) fn mean_available(&self) -> Option<Cpus> {
        (self.time_s > 0.0).then(|| Cpus(self.available_s / self.time_s))
    }

    /// Mean over time of what was used.
    pub(crate) fn mean_used(&self) -> Option<Cpus> {
        (self.time_s > 0.0).then(|| Cpus(self.used_s / self.time_s))
    }

    /// Part of the available CPU time that was used, 0 to 1.
    pub(crate) fn efficiency(&self) -> Option<f64> {
        (self.available_s > 0.0).then(|| (self.used_s / self.available_s).min(1.0))
    }

    /// Thread-seconds spent waiting for a CPU.
    pub(crate) fn waited_s(&self) -> f64 {
        self.waited_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(ms: u64, available: f64, run: f64) -> Point {
        Point {
            at: Time(ms * 1_000_000),
            length: Duration::from_millis(50),
            team: 1,
            available: Cpus(available),
            run: Cpus(run),
            wait: Cpus(0.5),
            why: Why::Steady,
        }
    }

    #[test]
    fn means_are_weighted_by_time() {
        let mut history = History::new(Time(0), 2);
        assert!(history.mean_available().is_none());
        history.add(point(50, 2.0, 1.0));
        history.add(Point { length: Duration::from_millis(150), ..point(200, 1.0, 1.0) });
        assert!((history.mean_available().unwrap().0 - 1.25).abs() < 1e-9);
        assert!((history.efficiency().unwrap() - 0.8).abs() < 1e-9);
        assert!((history.waited_s() - 0.1).abs() < 1e-9);
    }

    #[test]
    fn a_long_run_keeps_a_bounded_number_of_points_and_exact_means() {
        let mut history = History::new(Time(0), 2);
        for i in 0..100_000 {
            history.add(point(i * 50, 2.0, 1.0));
        }
        assert!(history.points().len() < KEPT);
        assert!((history.mean_used().unwrap().0 - 1.0).abs() < 1e-6);
    }
}
