//! The promised numbers, held against what was measured.

use std::fmt;

use serde::Serialize;

use super::Cell;

/// One promise and what came of it.
#[derive(Debug, Serialize, PartialEq)]
pub(super) struct Verdict {
    promise: String,
    measured: f64,
    /// The least, or the most, that keeps the promise.
    target: f64,
    at_least: bool,
    kept: bool,
}

impl Verdict {
    fn new(promise: String, measured: f64, target: f64, at_least: bool) -> Verdict {
        let kept = if at_least { measured >= target } else { measured <= target };
        Verdict { promise, measured, target, at_least, kept }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let result = if self.kept { "PASS" } else { "FAIL" };
        let bound = if self.at_least { "at least" } else { "at most" };
        write!(f, "{result}  {}: {:.3}, {bound} {:.3}", self.promise, self.measured, self.target)
    }
}

/// All promises whose cells were measured.
pub(super) fn judge(cells: &[Cell]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for section in ["short", "medium", "long", "zipf"] {
        let at = |lock: &str, threads: usize| {
            cells.iter().find(|c| c.lock == lock && c.threads == threads && c.section == section)
        };
        if let (Some(fifo), Some(mcs)) = (at("fifo", 64), at("mcs-park", 64)) {
            let name = format!("{section}, 64 threads: fifo over mcs-park, throughput");
            verdicts.push(Verdict::new(name, fifo.ops_s / mcs.ops_s, 2.0, true));
        }
        if let (Some(fifo), Some(ticket)) = (at("fifo", 64), at("ticket", 64)) {
            let name = format!("{section}, 64 threads: fifo over ticket, throughput");
            verdicts.push(Verdict::new(name, fifo.ops_s / ticket.ops_s, 20.0, true));
        }
        if let (Some(ours), Some(glibc)) = (at("default", 64), at("glibc", 64)) {
            let mut promise = |what: &str, measured: f64, target: f64, at_least: bool| {
                let name = format!("{section}, 64 threads: default {what}");
                verdicts.push(Verdict::new(name, measured, target, at_least));
            };
            promise("over glibc, throughput", ours.ops_s / glibc.ops_s, 0.8, true);
            promise("over glibc, wait p99.99", ours.wait_p9999_us / glibc.wait_p9999_us, 1.0, false);
            promise("over glibc, longest wait", ours.wait_max_us / glibc.wait_max_us, 1.0, false);
            promise("Jain's index", ours.jain, 0.95, true);
        }
        for threads in [1, 2] {
            if let (Some(ours), Some(glibc), Some(ticket)) =
                (at("default", threads), at("glibc", threads), at("ticket", threads))
            {
                let best = glibc.ops_s.max(ticket.ops_s);
                let name = format!(
                    "{section}, {threads} thread(s): default over the better of glibc and ticket, throughput"
                );
                verdicts.push(Verdict::new(name, ours.ops_s / best, 0.95, true));
            }
        }
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promise_is_kept_at_its_bound_and_not_beyond() {
        assert!(Verdict::new("x".into(), 0.8, 0.8, true).kept);
        assert!(!Verdict::new("x".into(), 0.79, 0.8, true).kept);
        assert!(Verdict::new("x".into(), 1.0, 1.0, false).kept);
        let broken = Verdict::new("x".into(), 1.5, 1.0, false);
        assert_eq!(broken.to_string(), "FAIL  x: 1.500, at most 1.000");
        assert!(!Verdict::new("x".into(), f64::NAN, 1.0, false).kept);
    }
}
