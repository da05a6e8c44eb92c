//! Without a signal of progress: how utilisation changes with the number of vCPUs (P2.5, Figure 9).
//!
//! VCPU-Bal's count is taken unless utilisation rises and then stays (second shape), which counts as so too where it falls again, but
//! to clearly more than it was. Each count is looked at twice; what the two looks differ by is no change. Where that is much, two looks of twice the time follow: loads come in bursts, and under a cap a
//! vCPU may pay at first for what was used before (Xen's credit scheduler, 100 %: with one vCPU, just after there were 16, 0.7 pCPUs in
//! a look and 0.08 in the next).
//!
//! Where it rose VCPU-Bal's count is looked at again: a load that uses more as time goes on is no shape. (Programs that follow what their
//! VM is told do so while that grows.)
//!
//! That utilisation falls at first (third shape) is no reason: waiters that block fall by it whether they then do more (by 6 % at most on
//! simulated hosts) or less.

use std::time::Duration;

use super::super::Measure;
use super::IDLE;

/// Steps of utilisation smaller than this part are none.
const SMALL: f64 = 0.03;
/// Utilisation has to rise to so many times what it was, and there has to be as much: otherwise more vCPUs are not worth their cost. (In a
/// real VM whose program follows with its threads, LU and CG took 1.24 and 1.12 times as long with 3 vCPUs on 2 pCPUs as with 2.)
const WORTH: f64 = 1.1;

/// More than so many times what is available is taken from others.
const BEYOND: f64 = 1.02;

/// Two looks that differ by more than this part of their mean say nothing.
const UNSETTLED: f64 = 0.3;
/// Looks are made twice as long so often; if they differ then, nothing is known of the count.
const LONGER: u32 = 2;
/// Looks for which a guest that takes vCPUs offline or online is waited for.
const WAITS: u32 = 8;

/// The way upward from VCPU-Bal's count.
#[derive(Clone, Debug)]
pub(super) struct Climb {
    from: u32,
    most: u32,
    window: Duration,
    settling: bool,
    /// Looks at which the guest had not followed yet.
    waited: u32,
    /// The look that goes on.
    part: Measure,
    /// The first of the two looks at this count.
    before: Option<f64>,
    /// How often looks at this count were made twice as long.
    longer: u32,
    /// Utilisation by count over what the VM's part grows by, and what it may be off by.
    seen: Vec<(f64, f64)>,
    /// By how much its part is larger than with VCPU-Bal's count, by count: under Xen's credit scheduler a VM weighs more with more vCPUs, and
    /// uses more, whatever its programs do.
    parts: Vec<f64>,
    /// It rose, up to this place: VCPU-Bal's count is looked at again, for it may have risen there, too.
    risen: Option<usize>,
    /// The least that was available to it in any look: who is starved by what is tried wants less than before.
    available: f64,
}

/// What was seen of a VM since the last time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) online: u32,
    pub(super) over: Duration,
    /// pCPUs used, and available; `None`: not known.
    pub(super) used: Option<f64>,
    pub(super) available: Option<f64>,
    /// The most that it may use.
    pub(super) cap: f64,
}

/// What the shape is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Constant, falling, unsteady, or nothing that is known: VCPU-Bal's count.
    First,
    /// It rises, then stays, or falls, but to clearly more than it was.
    Second,
}

impl Climb {
    /// `parts`: by how much the VM's part is larger than with `from`, from that on; 1 where it does not say.
    pub(super) fn new(from: u32, most: u32, window: Duration, parts: Vec<f64>) -> Climb {
        Climb {
            from,
            most,
            window,
            parts,
            settling: true,
            waited: 0,
            part: Measure::default(),
            before: None,
            longer: 0,
            seen: Vec::new(),
            risen: None,
            available: f64::INFINITY,
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
        let place = count.checked_sub(self.from)? as usize;
        self.seen.get(place).map(|seen| seen.0 * self.part(place))
    }

    fn part(&self, place: usize) -> f64 {
        self.parts.get(place).copied().unwrap_or(1.0)
    }

    pub(super) fn next(&self) -> Duration {
        let left = self.length().saturating_sub(Duration::from_secs_f64(self.part.seconds));
        if self.settling { self.window / 4 } else { left.max(self.window / 4) }
    }

    fn length(&self) -> Duration {
        self.window * (1 << self.longer)
    }

    /// Takes what was seen into account; where to stay, once that is known. Who does not follow for long, or is not seen, stays at
    /// VCPU-Bal's count.
    pub(super) fn look(&mut self, seen: &Seen) -> Option<(u32, Form)> {
        let nothing = Some((self.from, Form::First));
        if self.settling {
            self.waited += 1;
            self.settling = seen.online != self.count();
            return if self.settling && self.waited >= WAITS { nothing } else { None };
        }
        let (Some(used), Some(available)) = (seen.used, seen.available) else { return nothing };
        if seen.online != self.count() {
            return nothing;
        }
        self.available = self.available.min(available);
        let length = self.length();
        let now = self.part.add(used, seen.over, length)?.min(seen.cap);
        let Some(before) = self.before.take() else {
            self.before = Some(now);
            return None;
        };
        let (mean, off) = (f64::midpoint(before, now), (before - now).abs() / 2.0);
        if 2.0 * off > UNSETTLED * mean.max(IDLE) {
            self.longer += 1;
            if self.longer <= LONGER {
                return None;
            }
            if self.seen.is_empty() {
                self.seen.push((mean, off));
            }
            return nothing;
        }
        (self.settling, self.waited, self.longer) = (true, 0, 0);
        if let Some(end) = self.risen {
            self.seen[0] = (mean, off);
            let (place, form) = if self.is_worth(end) { (end, Form::Second) } else { (0, Form::First) };
            return Some((self.at(place), form));
        }
        let part = self.part(self.seen.len());
        self.seen.push((mean / part, off / part));
        let (end, form) = self.judge(self.at(self.seen.len()) > self.most)?;
        self.risen = (form == Form::Second).then_some(end);
        self.risen.is_none().then_some((self.from, form))
    }

    /// There more is used than at VCPU-Bal's count, by what matters.
    fn is_worth(&self, place: usize) -> bool {
        self.seen[place].0 >= WORTH * self.seen[0].0
    }

    fn judge(&self, last: bool) -> Option<(usize, Form)> {
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
            // Where there is no more to be had nothing is changed. Once: what is available may dip later.
            return (last || WORTH * self.seen[0].0 >= self.available).then_some((0, Form::First));
        }
        let rises = step(1) > 0.0;
        let now = step(n - 1);
        // What falls below what it rose to stays no longer, but it did more there.
        if !rises || now < 0.0 && !self.is_worth(n - 1) {
            return Some((0, Form::First));
        }
        let uses = self.seen[n - 1].0 * self.part(n - 1);
        if now > 0.0 && !last && uses < 0.99 * self.available {
            return None;
        }
        // What is used beyond that others miss.
        let end = if now > 0.0 && uses <= BEYOND * self.available { n - 1 } else { n - 2 };
        Some(if self.is_worth(end) { (end, Form::Second) } else { (0, Form::First) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a guest that follows.
    fn seen(climb: &Climb, used: f64, available: f64) -> Seen {
        let (used, available) = (Some(used), Some(available));
        Seen { online: climb.count(), over: climb.next(), used, available, cap: f64::INFINITY }
    }

    fn climb(uses: &[f64]) -> (u32, Form) {
        entitled(uses, &[])
    }

    fn entitled(uses: &[f64], parts: &[f64]) -> (u32, Form) {
        let most = 4 + u32::try_from(uses.len()).unwrap() - 1;
        let mut climb = Climb::new(4, most, Duration::from_millis(100), parts.to_vec());
        loop {
            let count = climb.count();
            if let Some(answer) = climb.look(&seen(&climb, uses[count as usize - 4], 4.0)) {
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
        assert_eq!(climb(&[1.0, 2.0, 3.0, 2.8, 2.7]), (6, Form::Second), "falls a little, from much");
        assert_eq!(climb(&[3.9, 4.1, 4.3]), (4, Form::First), "noise above what is available");
        assert_eq!(climb(&[3.0]), (4, Form::First));
        assert_eq!(climb(&[3.0, 3.2, 3.21]), (4, Form::First), "hardly");
        assert_eq!(climb(&[3.0, 3.2, 3.4, 3.41]), (6, Form::Second));
        assert_eq!(climb(&[3.7, 4.1, 4.1]), (4, Form::First), "there is not as much");
    }

    /// Under Xen's credit scheduler a VM weighs as much more as it has more vCPUs.
    #[test]
    fn what_rises_as_the_part_of_a_vm_does_has_no_shape() {
        let rises = [2.0, 2.4, 2.8, 2.8];
        let part = [1.0, 1.2, 1.4, 1.6];
        assert_eq!(climb(&rises), (6, Form::Second));
        assert_eq!(entitled(&rises, &part), (4, Form::First));
        assert_eq!(entitled(&[2.0, 3.0, 3.9, 3.9], &part), (6, Form::Second), "more than by that");
        // Its threads would be moved for nothing.
        let mut uses_all = Climb::new(4, 8, Duration::from_millis(100), Vec::new());
        let mut answers = std::iter::repeat_with(|| uses_all.look(&seen(&uses_all.clone(), 4.0, 4.0)));
        assert_eq!(answers.by_ref().take(3).last(), Some(Some((4, Form::First))));
    }

    /// Looks at counts from 1 of 3, the one after the change first; where that ends, or the count that is next and what 1 used.
    fn looks(of: &[&[f64]]) -> Result<(u32, Form), (u32, Option<f64>)> {
        let mut climb = Climb::new(1, 3, Duration::from_millis(100), Vec::new());
        let all = (1..).zip(of).flat_map(|(count, used)| used.iter().map(move |used| (count, *used)));
        let mut all = all.map(|(count, used)| climb.look(&Seen { online: count, ..seen(&climb, used, 1.1) }));
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
            let mut climb = Climb::new(2, 8, Duration::from_millis(100), Vec::new());
            let mut looks = 0;
            loop {
                looks += 1;
                let used = match climb.count() {
                    2 if looks < 4 => 1.2,
                    2 => later,
                    _ => 1.9,
                };
                if let Some(answer) = climb.look(&seen(&climb, used, 2.0)) {
                    return (answer, climb.used(2));
                }
            }
        };
        assert_eq!(end(1.9), ((2, Form::First), Some(1.9)));
        assert_eq!(end(1.8), ((2, Form::First), Some(1.8)));
        assert_eq!(end(1.2), ((3, Form::Second), Some(1.2)));
    }

    /// The neighbour that is starved by what is tried wants less then, so that more seems available.
    #[test]
    fn what_others_miss_is_not_what_is_available() {
        let mut climb = Climb::new(6, 12, Duration::from_millis(100), Vec::new());
        let answer = std::iter::repeat_with(|| {
            let count = f64::from(climb.count());
            climb.look(&seen(&climb.clone(), count - 0.01, if count > 11.0 { 12.0 } else { 11.13 }))
        });
        assert_eq!(answer.take(100).find_map(|answer| answer), Some((11, Form::Second)));
    }

    #[test]
    fn looks_get_longer_and_a_guest_that_does_not_follow_ends_it() {
        let mut climb = Climb::new(1, 3, Duration::from_millis(100), Vec::new());
        let mut lengths = vec![];
        for used in [0.0, 0.2, 0.8, 0.2, 0.8] {
            lengths.push(climb.next().as_millis());
            assert_eq!(climb.look(&seen(&climb, used, 1.0)), None);
        }
        lengths.push(climb.next().as_millis());
        assert_eq!(lengths, [25, 100, 100, 200, 200, 400]);
        let nothing = Some((1, Form::First));
        let gone = Seen { online: 2, ..seen(&climb, 0.5, 1.0) };
        assert_eq!(climb.clone().look(&gone), nothing);
        let unseen = Seen { used: None, ..seen(&climb, 0.5, 1.0) };
        assert_eq!(climb.clone().look(&unseen), nothing);
        // A look that others cut short goes on, and no more than the cap counts.
        let half = Seen { over: Duration::from_millis(200), cap: 0.6, ..seen(&climb, 0.0, 1.0) };
        for used in [1.4, 0.0, 1.4] {
            assert_eq!(climb.look(&Seen { used: Some(used), ..half }), None);
        }
        assert_eq!((climb.look(&half), climb.used(1), climb.count()), (None, Some(0.6), 2));
        // A vCPU that comes late is waited for, not for ever, and not seen meanwhile.
        let late = Seen { online: 1, used: None, ..half };
        for _ in 1..WAITS {
            assert_eq!(climb.look(&late), None);
        }
        assert_eq!(climb.clone().look(&late), nothing);
        assert_eq!(climb.look(&Seen { online: 2, ..late }), None);
        assert_eq!(climb.look(&Seen { online: 2, ..half }), None, "it came");
    }
}
