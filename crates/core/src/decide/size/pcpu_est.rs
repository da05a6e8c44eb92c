//! `pCPU-Est`'s dynamic vCPU optimisation (P2 4.1), as published.
//!
//! From the number of available pCPUs upward, one vCPU at a time, by nothing but the VM's utilisation:
//!
//! ```text
//! (a) constant                       ──▶ the pCPUs available
//! (b) rises, then constant           ──▶ where it becomes constant
//! (c) falls much at first, then not  ──▶ where it does not fall any more
//! (d) rises and falls much, again and again ──▶ the pCPUs available
//! ```
//!
//! The paper prints no thresholds, no length of a measurement, and not when it begins anew: [`RISE`], [`LARGE`],
//! [`WINDOW`] are ours; it begins anew when the available pCPUs change.

use std::time::Duration;

use super::published::keep;
use super::{Choice, Races, Size, Subject, whole};
use crate::Cpus;
use crate::decide::Why;

/// A change of utilisation counts as one from this part on.
const RISE: f64 = 0.02;
/// It is a large one from this part on.
const LARGE: f64 = 0.10;
/// A count is measured for so many probes' time.
const WINDOW: u32 = 5;

/// The search, for one VM.
#[derive(Debug)]
pub struct PcpuEst {
    window: Duration,
    /// pCPUs available when it began; it begins anew when they are others.
    from: Option<u32>,
    /// Utilisation by count, from the available pCPUs upward.
    seen: Vec<f64>,
    /// The first look after a change is of both counts.
    fresh: bool,
    found: Option<u32>,
}

impl PcpuEst {
    /// Measures a count for `WINDOW` times `probe`.
    #[must_use]
    pub fn new(probe: Duration) -> PcpuEst {
        PcpuEst { window: probe * WINDOW, from: None, seen: Vec::new(), fresh: true, found: None }
    }
}

impl Size for PcpuEst {
    fn choose(&mut self, subject: &Subject<'_>, _: &dyn Fn(u32) -> Option<f64>, _: &Races) -> Choice {
        let (Some(share), Some(used)) = (subject.share, subject.used) else { return keep(subject) };
        let from = subject.clamp(whole(share));
        if self.from != Some(from) {
            *self = PcpuEst { from: Some(from), seen: Vec::new(), fresh: true, found: None, ..*self };
        }
        if let Some(found) = self.found {
            return Choice {
                count: subject.clamp(found),
                why: Why::Utilisation { available: Cpus(share) },
                next: None,
            };
        }
        let count = from + u32::try_from(self.seen.len()).unwrap_or(0);
        let trying = |count| Choice { count, why: Why::Trying { count }, next: Some(self.window) };
        if subject.online != count || self.fresh {
            self.fresh = subject.online != count;
            return trying(count);
        }
        self.seen.push(used);
        let next = from + u32::try_from(self.seen.len()).unwrap_or(0);
        match judge(&self.seen, next > subject.clamp(subject.most)) {
            None => {
                self.fresh = true;
                trying(next)
            }
            Some(index) => {
                let found = from + u32::try_from(index).unwrap_or(0);
                self.found = Some(found);
                Choice { count: found, why: Why::Utilisation { available: Cpus(share) }, next: None }
            }
        }
    }
}

/// Where to stay, as an index of what was seen; `None`: one more is to be tried.
fn judge(seen: &[f64], last: bool) -> Option<usize> {
    let n = seen.len();
    let change = |i: usize| (seen[i] - seen[i - 1]) / seen[i - 1].max(1e-9);
    if n < 2 {
        return last.then_some(0);
    }
    let turns = (2..n).filter(|&i| change(i).abs() > LARGE && change(i - 1).abs() > LARGE);
    if turns.filter(|&i| (change(i) > 0.0) != (change(i - 1) > 0.0)).count() >= 2 {
        return Some(0);
    }
    let now = change(n - 1);
    let falls = change(1) < -LARGE;
    let goes_on = if falls { now < -RISE } else { now > RISE };
    match (goes_on, falls) {
        (true, _) if last => Some(n - 1),
        (true, _) => None,
        // It fell, and does not any more: that number is adopted.
        (false, true) => Some(n - 1),
        (false, false) => Some(n - 2),
    }
}

#[cfg(test)]
mod tests {
    use super::judge;

    fn search(all: &[f64]) -> usize {
        (1..=all.len()).find_map(|n| judge(&all[..n], n == all.len())).unwrap()
    }

    #[test]
    fn the_four_correlations_of_figure_9() {
        assert_eq!(search(&[4.0, 4.0, 4.0, 4.0]), 0, "constant");
        assert_eq!(search(&[2.0, 2.5, 3.0, 3.0, 3.0]), 2, "rises, then constant");
        assert_eq!(search(&[4.0, 3.0, 2.0, 2.0, 2.1]), 3, "falls, then constant");
        assert_eq!(search(&[4.0, 3.0, 2.0, 2.5, 3.0]), 3, "falls, then rises");
        assert_eq!(search(&[2.0, 2.5]), 1, "rises to the end");
    }

    #[test]
    fn what_it_cannot_do_is_as_published() {
        // LU: the optimum is below; nothing below the first is ever looked at.
        assert_eq!(search(&[3.9, 3.9, 1.0]), 0);
    }
}
