//! How long `corefit run` took to publish another team size after the CPUs had changed.
//!
//! The report of a run counts from when corefit began to follow the program, the bench from
//! when it started corefit. The difference is not known; it is at most what the bench's
//! wall-clock time exceeds the report's by, and that much is added: delays are upper bounds.

use serde::Deserialize;

/// What the bench reads of a report of `corefit run` (see `run/report.rs`).
#[derive(Clone, Debug, Deserialize)]
pub(super) struct RunReport {
    pub(super) wall_s: f64,
    pub(super) threads_launched: u32,
    pub(super) changes: Vec<Change>,
    #[serde(default)]
    pub(super) processes: Vec<Process>,
}

/// A change of the number of threads.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Change {
    pub(super) at_s: f64,
    pub(super) threads: u32,
}

/// An OpenMP process.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Process {
    pub(super) resized: u64,
}

/// When a new size was published after a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Delay {
    /// So many ms later.
    Ms(f64),
    /// The size was right already.
    Already,
    /// Not before the next step, or the end.
    Never,
}

/// The delay of shrinking and of growing, after steps at `shrink_s` and `grow_s` on the
/// bench's clock, in a run that took `wall_s` there. Growing is `None` if it ended before.
pub(super) fn delays(
    report: &RunReport,
    wall_s: f64,
    (shrink_s, grow_s): (f64, Option<f64>),
    cpus: u32,
) -> (Delay, Option<Delay>) {
    let offset = (wall_s - report.wall_s).max(0.0);
    let find = |from: f64, to: f64, wanted: &dyn Fn(u32) -> bool| {
        let changes = || report.changes.iter().map(|c| (c.at_s + offset, c.threads));
        let before = changes().take_while(|(at, _)| *at <= from).last();
        if wanted(before.map_or(report.threads_launched, |(_, threads)| threads)) {
            return Delay::Already;
        }
        changes()
            .find(|(at, threads)| *at > from && *at <= to && wanted(*threads))
            .map_or(Delay::Never, |(at, _)| Delay::Ms((at - from) * 1000.0))
    };
    let end = f64::INFINITY;
    (
        find(shrink_s, grow_s.unwrap_or(end), &|threads| threads <= 1),
        grow_s.map(|at| find(at, end, &|threads| threads >= cpus)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(launched: u32, changes: &[(f64, u32)]) -> RunReport {
        let change = |(at_s, threads): &(f64, u32)| Change { at_s: *at_s, threads: *threads };
        RunReport {
            wall_s: 3.0,
            threads_launched: launched,
            changes: changes.iter().map(change).collect(),
            processes: vec![],
        }
    }

    fn ms(delay: Delay) -> f64 {
        match delay {
            Delay::Ms(ms) => (ms * 1000.0).round() / 1000.0,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn delays_count_from_the_step_on_the_clock_of_the_bench() {
        let report = report(2, &[(1.05, 1), (2.2, 2)]);
        let (shrink, grow) = delays(&report, 3.0, (1.0, Some(2.0)), 2);
        assert_eq!((ms(shrink), ms(grow.unwrap())), (50.0, 200.0));
        let (shrink, grow) = delays(&report, 3.01, (1.0, Some(2.0)), 2);
        assert_eq!((ms(shrink), ms(grow.unwrap())), (60.0, 210.0));
    }

    #[test]
    fn growing_counts_when_all_cpus_are_used() {
        let report = report(4, &[(1.05, 1), (2.1, 2), (2.3, 4)]);
        let (_, grow) = delays(&report, 3.0, (1.0, Some(2.0)), 4);
        assert_eq!(ms(grow.unwrap()), 300.0);
    }

    #[test]
    fn what_was_right_already_or_never_came_has_no_time() {
        let early = report(2, &[(0.5, 1)]);
        let (shrink, grow) = delays(&early, 3.0, (1.0, Some(2.0)), 2);
        assert_eq!((shrink, grow), (Delay::Already, Some(Delay::Never)));
        let late = report(2, &[(2.5, 1)]);
        let (shrink, grow) = delays(&late, 3.0, (1.0, Some(2.0)), 2);
        assert_eq!((shrink, grow), (Delay::Never, Some(Delay::Already)));
        assert_eq!(delays(&late, 3.0, (1.0, None), 2).1, None);
    }
}
