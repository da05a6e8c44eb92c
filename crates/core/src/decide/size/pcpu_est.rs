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
//! [`MORE`], [`WINDOW`] are ours; it begins anew when the available pCPUs change, which is computed when the VM's part by weight does: a
//! neighbour's cap or affinity alone is not noticed, nor is another load. Of a VM that idles when it is measured it finds a number by
//! chance, which stays.

use std::time::Duration;

use super::published::keep;
use super::{Choice, Measure, Races, Size, Subject};
use crate::Cpus;
use crate::decide::Why;

/// A change of utilisation counts as one from this part on.
const RISE: f64 = 0.02;
/// It is a large one from this part on.
const LARGE: f64 = 0.10;
/// After a turn so many counts more are looked at.
const MORE: usize = 2;
/// A guest that does not follow is waited for as long as so many measurements take.
const WAITS: u32 = 8;
/// A count is measured for so many probes' time.
const WINDOW: u32 = 5;

/// Why a number is taken, by the pCPUs available.
type Reason = fn(Cpus) -> Why;

/// The search, for one VM.
#[derive(Debug)]
pub(crate) struct PcpuEst {
    window: Duration,
    /// Where it began, the pCPUs available when everybody is busy, and the part by weight of when that was computed; it begins anew
    /// when it is elsewhere.
    from: Option<(u32, f64, f64)>,
    /// Utilisation by count, from the available pCPUs upward.
    seen: Vec<f64>,
    /// The measurement that goes on: others may be looked at sooner.
    part: Measure,
    /// The first look after a change is of both counts.
    fresh: bool,
    /// For how long the guest has not followed, and whether it was given up for that before it ever did.
    waited: Duration,
    given_up: bool,
    /// What was found, and why.
    found: Option<(u32, Reason)>,
}

impl PcpuEst {
    /// Measures a count for `WINDOW` times `probe`.
    #[must_use]
    pub(crate) fn new(probe: Duration) -> PcpuEst {
        PcpuEst {
            window: probe * WINDOW,
            from: None,
            seen: Vec::new(),
            part: Measure::default(),
            fresh: true,
            waited: Duration::ZERO,
            given_up: false,
            found: None,
        }
    }
}

impl Size for PcpuEst {
    fn choose(&mut self, subject: &Subject<'_>, entitled: &dyn Fn(u32) -> Option<f64>, _: &Races) -> Choice {
        let (Some(share), Some(used)) = (subject.share, subject.used) else { return keep(subject) };
        // A division of the whole host, so only when it may be another.
        let available = match self.from {
            Some((_, available, of)) if of == share => available,
            _ if subject.granted.is_some() => share,
            _ => entitled(subject.most).unwrap_or(share),
        };
        let from = subject.clamp(subject.vcpus(available));
        let follows = self.given_up && subject.online == from;
        if self.from.is_none_or(|(before, ..)| before != from) || follows {
            *self = PcpuEst::new(self.window / WINDOW);
        }
        self.from = Some((from, available, share));
        // Where it began is what it may have of that.
        let stays = |(found, why): (u32, Reason)| {
            let wanted = if found == from { subject.vcpus(available) } else { found };
            subject.bounded(wanted, why(Cpus(available)))
        };
        if let Some(found) = self.found {
            return stays(found);
        }
        if subject.clamp(subject.most) == from {
            // There is no other to try.
            let why = match subject.granted {
                Some(granted) => Why::Granted { granted },
                None => Why::Available { available: Cpus(available) },
            };
            return subject.bounded(subject.vcpus(available), why);
        }
        let count = subject.clamp(from + u32::try_from(self.seen.len()).unwrap_or(0));
        let window = self.window;
        let trying = |count| Choice { count, why: Why::Trying { count }, next: Some(window) };
        if subject.online != count && self.waited >= WAITS * window {
            // It would be asked for ever; once it has so many after all it begins anew.
            self.given_up = subject.online != from;
            return stays(*self.found.insert((from, |available| Why::Available { available })));
        }
        self.waited = if subject.online == count { Duration::ZERO } else { self.waited + subject.over };
        if subject.online != count || self.fresh {
            (self.fresh, self.part) = (subject.online != count, Measure::default());
            return trying(count);
        }
        let Some(used) = self.part.add(used, subject.over, window) else { return trying(count) };
        self.seen.push(used);
        let next = from + u32::try_from(self.seen.len()).unwrap_or(0);
        match judge(&self.seen, next > subject.clamp(subject.most)) {
            None => {
                self.fresh = true;
                trying(next)
            }
            Some(index) => {
                let found = from + u32::try_from(index).unwrap_or(0);
                stays(*self.found.insert((found, why(&self.seen, index))))
            }
        }
    }
}

/// Where to stay, as an index of what was seen; `None`: one more is to be tried. Where utilisation turns, so many counts more are
/// looked at, to see whether it does so again and again.
fn judge(seen: &[f64], last: bool) -> Option<usize> {
    let n = seen.len();
    let (ends, found) = (1..=n).find_map(|m| Some((m, settles(&seen[..m], last && m == n)?)))?;
    match turns(&seen[..ends]) {
        0 => Some(found),
        _ if turns(seen) >= 2 => Some(0),
        _ if last || n >= ends + MORE => Some(found),
        _ => None,
    }
}

/// Why to stay there.
fn why(seen: &[f64], index: usize) -> Reason {
    let same = index + 1 < seen.len() && change(seen, index + 1).abs() <= RISE;
    match index {
        0 if seen.len() < 2 || turns(seen) >= 2 => |available| Why::Available { available },
        _ if same => |available| Why::Utilisation { available },
        _ => |available| Why::Changes { available },
    }
}

fn change(seen: &[f64], i: usize) -> f64 {
    (seen[i] - seen[i - 1]) / seen[i - 1].max(1e-9)
}

/// How often a large change follows one in the other direction.
fn turns(seen: &[f64]) -> usize {
    let large = |i: usize| Some(change(seen, i)).filter(|change| change.abs() > LARGE);
    (2..seen.len())
        .filter(|&i| large(i).zip(large(i - 1)).is_some_and(|(a, b)| (a > 0.0) != (b > 0.0)))
        .count()
}

/// The first three correlations.
fn settles(seen: &[f64], last: bool) -> Option<usize> {
    let n = seen.len();
    let change = |i: usize| change(seen, i);
    if n < 2 {
        return last.then_some(0);
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
    use super::{judge, why};
    use crate::Cpus;
    use crate::decide::Why;

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
        for again in [[2.0, 3.0, 2.0, 3.0, 2.0], [4.0, 3.0, 4.0, 3.0, 4.0]] {
            assert_eq!(search(&again), 0, "again and again");
        }
        assert_eq!(search(&[2.0, 3.0, 2.0, 2.0, 2.0, 4.0]), 1, "it turns once");
    }

    #[test]
    fn what_is_said_of_each_end_is_so() {
        let said = |all: &[f64]| why(all, search(all))(Cpus(2.0));
        let available = Cpus(2.0);
        assert_eq!(said(&[4.0, 4.0]), Why::Utilisation { available });
        assert_eq!(said(&[2.0, 2.5, 3.0, 3.0]), Why::Utilisation { available });
        assert_eq!(said(&[2.0, 3.0, 2.0, 3.0, 2.0]), Why::Available { available }, "again and again");
        assert_eq!(said(&[2.0, 2.5]), Why::Changes { available }, "rises to the end");
        assert_eq!(said(&[4.0, 3.0, 2.0, 2.0]), Why::Changes { available }, "falls, then not");
    }

    #[test]
    fn what_it_cannot_do_is_as_published() {
        // LU: the optimum is below; nothing below the first is ever looked at.
        assert_eq!(search(&[3.9, 3.9, 1.0]), 0);
    }
}
