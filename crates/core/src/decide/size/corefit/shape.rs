//! Without a signal of progress: how utilisation changes with the number of vCPUs (P2.5, Figure 9).
//!
//! VCPU-Bal's count is taken unless utilisation rises and then stays (second shape). Each count is looked at twice; what the
//! two looks differ by is no change. Where that is much, two looks of twice the time follow: loads come in bursts, and under a cap a
//! vCPU may pay at first for what was used before (Xen's credit scheduler, 100 %: with one vCPU, just after there were 16, 0.7 pCPUs in
//! a look and 0.08 in the next).
//!
//! Where it rose VCPU-Bal's count is looked at again: a load that uses more as time goes on is no shape. (Programs that follow what their
//! VM is told do so while that grows.)
//!
//! That utilisation falls at first (third shape) is no reason: waiters that block fall by it whether they then do more (by 6 % at most on
//! simulated hosts) or less.

use std::time::Duration;

use super::IDLE;

/// Steps of utilisation smaller than this part are none.
const SMALL: f64 = 0.03;
/// Utilisation has to rise to so many times what it was, and there has to be as much: otherwise more vCPUs are not worth their cost. (In a
/// real VM whose program follows with its threads, LU and CG took 1.24 and 1.12 times as long with 3 vCPUs on 2 pCPUs as with 2.)
const WORTH: f64 = 1.1;

/// Two looks that differ by more than this part of their mean say nothing.
const UNSETTLED: f64 = 0.3;
/// Looks are made twice as long so often; if they differ then, nothing is known of the count.
const LONGER: u32 = 2;

/// The way upward from VCPU-Bal's count.
#[derive(Clone, Debug)]
pub(super) struct Climb {
    from: u32,
    most: u32,
    window: Duration,
    settling: bool,
    looks: Vec<f64>,
    /// How often looks at this count were made twice as long.
    longer: u32,
    /// Utilisation by count, and what it may be off by.
    seen: Vec<(f64, f64)>,
    /// It rose, up to this place: VCPU-Bal's count is looked at again, for it may have risen there, too.
    risen: Option<usize>,
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
        Climb {
            from,
            most,
            window,
            settling: true,
            looks: Vec::new(),
            longer: 0,
            seen: Vec::new(),
            risen: None,
        }
    }

    pub(super) fn count(&self) -> u32 {
        let place = if self.risen.is_some() { 0 } else { self.seen.len() };
        self.at(place).min(self.most)
    }

    fn at(&self, place: usize) -> u32 {
        self.from + u32::try_from(place).unwrap_or(0)
    }

    /// pCPUs that a count used.
    pub(super) fn used(&self, count: u32) -> Option<f64> {
        self.seen.get(count.checked_sub(self.from)? as usize).map(|seen| seen.0)
    }

    pub(super) fn next(&self) -> Duration {
        if self.settling { self.window / 4 } else { self.window * (1 << self.longer) }
    }

    /// Takes a look into account; where to stay, once that is known.
    pub(super) fn look(&mut self, online: u32, used: f64, available: f64) -> Option<(u32, Form)> {
        if online != self.count() {
            return Some((self.from, Form::First));
        }
        if std::mem::take(&mut self.settling) {
            return None;
        }
        self.looks.push(used);
        let [before, now] = self.looks[..] else { return None };
        self.looks.clear();
        let (mean, off) = (f64::midpoint(before, now), (before - now).abs() / 2.0);
        if 2.0 * off > UNSETTLED * mean.max(IDLE) {
            self.longer += 1;
            return (self.longer > LONGER).then_some((self.from, Form::First));
        }
        (self.settling, self.longer) = (true, 0);
        if let Some(end) = self.risen {
            self.seen[0] = (mean, off);
            let (place, form) = if self.is_worth(end) { (end, Form::Second) } else { (0, Form::First) };
            return Some((self.at(place), form));
        }
        self.seen.push((mean, off));
        let (end, form) = self.judge(available, self.at(self.seen.len()) > self.most)?;
        self.risen = (form == Form::Second).then_some(end);
        self.risen.is_none().then_some((self.from, form))
    }

    /// There more is used than at VCPU-Bal's count, by what matters.
    fn is_worth(&self, place: usize) -> bool {
        self.seen[place].0 >= WORTH * self.seen[0].0
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
        let rises = step(1) > 0.0 && WORTH * self.seen[0].0 < available;
        let now = step(n - 1);
        if !rises || now < 0.0 {
            return Some((0, Form::First));
        }
        if now > 0.0 && !last && self.seen[n - 1].0 < 0.99 * available {
            return None;
        }
        let end = if now > 0.0 { n - 1 } else { n - 2 };
        Some(if self.is_worth(end) { (end, Form::Second) } else { (0, Form::First) })
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
        assert_eq!(climb(&[3.0, 3.2, 3.21]), (4, Form::First), "hardly");
        assert_eq!(climb(&[3.0, 3.2, 3.4, 3.41]), (6, Form::Second));
        assert_eq!(climb(&[3.7, 4.1, 4.1]), (4, Form::First), "there is not as much");
    }

    /// Looks at counts from 1 of 3, the one after the change first; where that ends, or the count that is next and what 1 used.
    fn looks(of: &[&[f64]]) -> Result<(u32, Form), (u32, Option<f64>)> {
        let mut climb = Climb::new(1, 3, Duration::from_millis(100));
        let all = (1..).zip(of).flat_map(|(count, used)| used.iter().map(move |used| (count, *used)));
        let mut all = all.map(|(count, used)| climb.look(count, used, 1.0));
        let end = all.find_map(|answer| answer);
        drop(all);
        end.ok_or((climb.count(), climb.used(1)))
    }

    #[test]
    fn a_count_whose_looks_differ_much_is_looked_at_for_longer() {
        // It pays for what was used before: no rise from there to what it may use.
        let pays = [0.0, 0.7, 0.08, 0.875, 1.0];
        assert_eq!(looks(&[&pays]), Err((2, Some(0.9375))));
        assert_eq!(looks(&[&pays, &[1.0, 1.0, 1.0]]), Ok((1, Form::First)));
        // Bursts are no rise, nor is a count known whose looks never agree.
        assert_eq!(looks(&[&[0.0, 0.2, 0.8, 0.8, 0.2, 0.5, 0.5]]), Err((2, Some(0.5))));
        assert_eq!(looks(&[&[0.0, 0.2, 0.8, 0.8, 0.2, 0.2, 0.8]]), Ok((1, Form::First)));
        // Next to nothing does not differ much.
        assert_eq!(looks(&[&[0.0, 0.0, 0.02]]), Err((2, Some(0.01))));
    }

    #[test]
    fn what_uses_more_as_time_goes_on_has_no_shape() {
        let end = |later: f64| {
            let mut climb = Climb::new(2, 8, Duration::from_millis(100));
            let mut looks = 0;
            loop {
                looks += 1;
                let used = match climb.count() {
                    2 if looks < 4 => 1.2,
                    2 => later,
                    _ => 1.9,
                };
                if let Some(answer) = climb.look(climb.count(), used, 2.0) {
                    return (answer, climb.used(2));
                }
            }
        };
        assert_eq!(end(1.9), ((2, Form::First), Some(1.9)));
        assert_eq!(end(1.8), ((2, Form::First), Some(1.8)));
        assert_eq!(end(1.2), ((3, Form::Second), Some(1.2)));
    }

    #[test]
    fn looks_get_longer_and_a_guest_that_does_not_follow_ends_it() {
        let mut climb = Climb::new(1, 3, Duration::from_millis(100));
        let mut lengths = vec![];
        for used in [0.0, 0.2, 0.8, 0.2, 0.8] {
            lengths.push(climb.next().as_millis());
            assert_eq!(climb.look(1, used, 1.0), None);
        }
        lengths.push(climb.next().as_millis());
        assert_eq!(lengths, [25, 100, 100, 200, 200, 400]);
        assert_eq!(climb.look(2, 0.5, 1.0), Some((1, Form::First)));
    }
}
