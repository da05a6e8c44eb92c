//! Without a signal of progress: how utilisation changes with the number of vCPUs (P2.5, Figure 9).
//!
//! VCPU-Bal's count is taken unless utilisation rises and then stays (second shape). Each count is looked at twice; what the
//! two looks differ by is no change. If that is much, it is looked at again: under a cap a vCPU may pay at first for what was used before
//! (under Xen's credit scheduler with 100 %, after 16 vCPUs, one had 0.7 of a pCPU in a look and 0.08 in the next). That it falls at first (third shape) is no reason: waiters that block fall by it whether
//! they then do more (by 6 % at most on simulated hosts) or less (LU with a cap of 100 %: by 39 %).

use std::time::Duration;

/// Steps of utilisation smaller than this part are none.
const SMALL: f64 = 0.03;
/// From this part of what is available on, all is used.
const FULL: f64 = 0.95;

/// Two looks that differ by more than this part of their mean say nothing; so many looks at a count at most.
const UNSETTLED: f64 = 0.3;
const LOOKS: usize = 8;

/// The way upward from VCPU-Bal's count.
#[derive(Clone, Debug)]
pub(super) struct Climb {
    from: u32,
    most: u32,
    window: Duration,
    settling: bool,
    looks: Vec<f64>,
    /// Utilisation by count, and what it may be off by.
    seen: Vec<(f64, f64)>,
}

/// What the shape is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Constant, falling, unsteady, or nothing that is known: VCPU-Bal's count.
    First,
    /// It rises, then stays.
    Second,
}

impl Climb {
    pub(super) fn new(from: u32, most: u32, window: Duration) -> Climb {
        Climb { from, most, window, settling: true, looks: Vec::new(), seen: Vec::new() }
    }

    pub(super) fn count(&self) -> u32 {
        (self.from + u32::try_from(self.seen.len()).unwrap_or(0)).min(self.most)
    }

    /// pCPUs that a count used.
    pub(super) fn used(&self, count: u32) -> Option<f64> {
        self.seen.get(count.checked_sub(self.from)? as usize).map(|seen| seen.0)
    }

    pub(super) fn next(&self) -> Duration {
        if self.settling { self.window / 4 } else { self.window }
    }

    /// Takes a look into account; where to stay, once that is known.
    pub(super) fn look(&mut self, online: u32, used: f64, available: f64) -> Option<(u32, Form)> {
        if self.settling {
            self.settling = false;
            return (online != self.count()).then_some((self.from, Form::First));
        }
        self.looks.push(used);
        let [.., before, now] = self.looks[..] else { return None };
        let (mean, off) = (f64::midpoint(before, now), (before - now).abs() / 2.0);
        if 2.0 * off > UNSETTLED * mean && self.looks.len() < LOOKS {
            return None;
        }
        self.looks.clear();
        self.settling = true;
        self.seen.push((mean, off));
        let last = self.from + u32::try_from(self.seen.len()).unwrap_or(0) > self.most;
        let answer = self.judge(available, last)?;
        Some((self.from + u32::try_from(answer.0).unwrap_or(0), answer.1))
    }

    fn judge(&self, available: f64, last: bool) -> Option<(usize, Form)> {
        let n = self.seen.len();
        let step = |i: usize| {
            let ((before, a), (now, b)) = (self.seen[i - 1], self.seen[i]);
            let change = now - before;
            if change.abs() <= a + b || change.abs() < SMALL * before {
                0.0
            } else {
                change / before.max(1e-9)
            }
        };
        if n < 2 {
            return last.then_some((0, Form::First));
        }
        // What uses nearly all that it could has nothing to rise to.
        let rises = step(1) > 0.0 && self.seen[0].0 < FULL * available;
        let now = step(n - 1);
        if !rises || now < 0.0 {
            return Some((0, Form::First));
        }
        if now > 0.0 && !last && self.seen[n - 1].0 < 0.99 * available {
            return None;
        }
        Some((if now > 0.0 { n - 1 } else { n - 2 }, Form::Second))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn climb(uses: &[f64]) -> (u32, Form) {
        let mut climb = Climb::new(4, 4 + u32::try_from(uses.len()).unwrap() - 1, Duration::from_millis(100));
        loop {
            let count = climb.count();
            if let Some(answer) = climb.look(count, uses[count as usize - 4], 4.0) {
                return answer;
            }
        }
    }

    #[test]
    fn vcpu_bals_count_is_taken_unless_the_shape_is_the_second() {
        assert_eq!(climb(&[4.0, 4.0, 4.0]), (4, Form::First));
        assert_eq!(climb(&[2.0, 2.5, 3.0, 3.01, 3.0]), (6, Form::Second));
        assert_eq!(climb(&[3.9, 3.0, 2.0, 2.0, 2.1]), (4, Form::First), "falls");
        assert_eq!(climb(&[3.0, 3.5, 2.0, 3.5]), (4, Form::First), "unsteady");
        assert_eq!(climb(&[3.9, 4.1, 4.3]), (4, Form::First), "noise above what is available");
        assert_eq!(climb(&[3.0]), (4, Form::First));
    }

    #[test]
    fn a_count_whose_looks_differ_much_is_looked_at_again() {
        let mut climb = Climb::new(1, 3, Duration::from_millis(100));
        let looks = |count: u32, used: &[f64], climb: &mut Climb| {
            used.iter().find_map(|used| climb.look(count, *used, 1.0))
        };
        // It pays for what was used before: no rise from there to what it may use.
        assert_eq!(looks(1, &[0.0, 0.7, 0.08, 0.875, 1.0], &mut climb), None);
        assert_eq!((climb.count(), climb.used(1)), (2, Some(0.9375)));
        assert_eq!(looks(2, &[0.0, 1.0, 1.0], &mut climb), Some((1, Form::First)));
        // One that never settles does not keep it.
        let mut climb = Climb::new(1, 3, Duration::from_millis(100));
        assert_eq!(looks(1, &[0.0, 0.2, 0.8, 0.2, 0.8, 0.2, 0.8, 0.2, 0.8], &mut climb), None);
        assert_eq!(climb.count(), 2);
    }
}
