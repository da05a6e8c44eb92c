//! The numbers that are aimed at, which are the constants here, held against what was measured.

use std::fmt;

use corefit_core::check::count;
use serde::Serialize;

use super::Cell;
use crate::stats::number;

/// One aim and what came of it.
#[derive(Debug, Serialize, PartialEq)]
pub(super) struct Verdict {
    aim: String,
    measured: f64,
    /// The least, or the most, that meets the aim.
    target: f64,
    at_least: bool,
    met: bool,
}

impl Verdict {
    fn new(aim: String, measured: f64, target: f64, at_least: bool) -> Verdict {
        let met = if at_least { measured >= target } else { measured <= target };
        Verdict { aim, measured, target, at_least, met }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let result = if self.met { "met   " } else { "MISSED" };
        let bound = if self.at_least { "at least" } else { "at most" };
        write!(f, "{result}  {}: {:.3}, {bound} {:.3}", self.aim, self.measured, self.target)
    }
}

/// Threads at which the aims for more threads than CPUs hold.
const MANY: usize = 64;
/// What strict order is to do: times an MCS lock that sleeps, and a ticket lock that spins.
const OVER_MCS: f64 = 2.0;
const OVER_TICKET: f64 = 20.0;
/// Least throughput of the default, of glibc's with many threads, and of the better of glibc's and a ticket lock's with
/// no more threads than CPUs.
const OF_GLIBC: f64 = 0.8;
const OF_THE_BETTER: f64 = 0.95;
const JAIN: f64 = 0.95;

/// All aims whose cells were measured.
pub(super) fn judge(cells: &[Cell], cpus: usize) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let mut loads: Vec<(&str, usize)> = cells.iter().map(|c| (c.section, c.threads)).collect();
    loads.dedup();
    for (section, threads) in loads {
        let at = |lock: &str| {
            cells.iter().find(|c| c.lock == lock && c.threads == threads && c.section == section)
        };
        let load = format!("{section}, {}", count(threads, "thread"));
        let mut aim = |what: &str, measured: f64, target: f64, at_least: bool| {
            verdicts.push(Verdict::new(format!("{load}: {what}"), measured, target, at_least));
        };
        if threads == MANY {
            for (other, factor) in [("mcs-park", OVER_MCS), ("ticket", OVER_TICKET)] {
                if let (Some(fifo), Some(other)) = (at("fifo"), at(other)) {
                    let name = format!("fifo over {}, throughput", other.lock);
                    aim(&name, fifo.ops_s / other.ops_s, factor, true);
                }
            }
            if let Some(fifo) = at("fifo").filter(|fifo| fifo.order_checks > 0) {
                let name = format!("fifo, overtakings in {} looks", fifo.order_checks);
                aim(&name, number(fifo.overtakings), 0.0, false);
            }
            if let (Some(ours), Some(glibc)) = (at("default"), at("glibc")) {
                aim("default over glibc, throughput", ours.ops_s / glibc.ops_s, OF_GLIBC, true);
                for (what, ours, glibc) in [
                    ("wait p99.99", ours.wait_p9999_us, glibc.wait_p9999_us),
                    ("longest wait", ours.wait_max_us, glibc.wait_max_us),
                ] {
                    if let (Some(ours), Some(glibc)) = (ours, glibc) {
                        aim(&format!("default over glibc, {what}"), ours / glibc, 1.0, false);
                    }
                }
                aim("default, Jain's index", ours.jain, JAIN, true);
            }
        }
        if threads <= cpus
            && let (Some(ours), Some(glibc), Some(ticket)) = (at("default"), at("glibc"), at("ticket"))
        {
            let best = glibc.ops_s.max(ticket.ops_s);
            let name = "default over the better of glibc and ticket, throughput";
            aim(name, ours.ops_s / best, OF_THE_BETTER, true);
        }
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aim_is_met_at_its_bound_and_not_beyond() {
        assert!(Verdict::new("x".into(), 0.8, 0.8, true).met);
        assert!(!Verdict::new("x".into(), 0.79, 0.8, true).met);
        assert!(Verdict::new("x".into(), 1.0, 1.0, false).met);
        let missed = Verdict::new("x".into(), 1.5, 1.0, false);
        assert_eq!(missed.to_string(), "MISSED  x: 1.500, at most 1.000");
        assert!(!Verdict::new("x".into(), f64::NAN, 1.0, false).met);
    }

    #[test]
    fn one_overtaking_misses_strict_order_and_no_look_says_nothing() {
        let judged = |checks, overtakings| {
            let cell = Cell { order_checks: checks, overtakings, ..Cell::sample("fifo", 64, 1e6, 10.0) };
            judge(&[cell], 2).iter().map(|v| v.met).collect::<Vec<_>>()
        };
        assert_eq!((judged(900, 0), judged(900, 1), judged(0, 0)), (vec![true], vec![false], vec![]));
    }

    #[test]
    fn what_is_aimed_at_depends_on_threads_and_cpus() {
        let cells =
            |threads| ["default", "glibc", "ticket"].map(|lock| Cell::sample(lock, threads, 1e6, 10.0));
        let count = |threads, cpus| judge(&cells(threads), cpus).len();
        assert_eq!((count(2, 2), count(4, 2), count(4, 4), count(64, 2)), (1, 0, 1, 4));
    }
}
