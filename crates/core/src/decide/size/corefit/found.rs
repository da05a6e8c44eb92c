//! What a search found, and whether a VM still does that.

use std::time::Duration;

use super::memory::{Mark, alike};
use super::stat::Stat;
use super::{Choice, LATELY, MUCH, race};
use crate::decide::Why;

/// What varies by itself goes on so for about so long, s: looks in it are as good as one.
const TURN: f64 = 2.0;
/// Who does less than this part of what it did with VCPU-Bal's number is no better off. (UA on 8 pCPUs does 0.97 of it with 16 vCPUs, but would
/// not do that with 8 again.)
const BEATEN: f64 = 0.8;
/// Of who raced with others, which may have gained what it lost.
const BEATEN_TOGETHER: f64 = 0.9;
/// How it varies is known for so long, s.
const VARIES: f64 = 120.0;

#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) count: u32,
    pub(super) why: Why,
    /// It is VCPU-Bal's number, and follows that.
    pub(super) bal: bool,
    pub(super) available: u32,
    /// As many are available when others have adapted to it, and for how long that was not so since it is back.
    pub(super) also: Option<(u32, Duration)>,
    pub(super) mark: Mark,
    /// What it did there in looks of some length: how it varies by itself.
    pub(super) seen: Stat,
    /// What is worth more than this is best, whatever it was worth before: of who is limited by its own cap alone, and did clearly less
    /// with VCPU-Bal's count.
    pub(super) enough: Option<f64>,
    /// What it did with this number before the race changed anything, were it that.
    pub(super) first: f64,
    /// What it did with VCPU-Bal's number, where another was better.
    pub(super) instead: Option<Stat>,
    /// The same of a race of several.
    pub(super) together: Option<Together>,
    /// All vCPUs did less, but may do more some day.
    pub(super) left_all: bool,
    /// They did more before.
    pub(super) did_more: bool,
    /// So many it might have had.
    pub(super) most: u32,
}

/// What a VM did when so many had VCPU-Bal's numbers, and it this one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Together {
    pub(super) did: Stat,
    pub(super) bal: u32,
    pub(super) vms: usize,
}

impl Found {
    pub(super) fn new(count: u32, why: Why, available: u32, mark: Mark) -> Found {
        Found {
            count,
            why,
            bal: false,
            available,
            also: None,
            mark,
            seen: Stat::default(),
            enough: None,
            first: 0.0,
            instead: None,
            together: None,
            left_all: false,
            did_more: false,
            most: u32::MAX,
        }
    }

    /// Whether it was found for so many pCPUs.
    pub(super) fn is_of(&self, available: u32) -> bool {
        self.available == available || self.also.is_some_and(|(also, _)| also == available)
    }

    /// Whether it does more than when it was found, but no more than before that: it fell into step again.
    pub(super) fn is_back(&self, now: Mark) -> bool {
        let before = Mark { value: self.first, ..now };
        now.value > self.mark.value && (now.value < self.first || alike(before, now, 0.0))
    }

    /// Whether VCPU-Bal's number, which is that by now, did less than half of this: one pCPU more or less does not matter.
    pub(super) fn is_clear(&self, bal: u32) -> bool {
        let did =
            self.together.filter(|together| together.bal == bal).and_then(|together| together.did.value());
        !self.bal && did.is_some_and(|did| did < MUCH * self.mark.value)
    }

    /// It is at this number, or on its way back to it, and so many were available for so long: if others do not take what it left within
    /// this time, it was not for that that they had more.
    pub(super) fn waits_for_others(&mut self, there: bool, available: u32, over: Duration, within: Duration) {
        let Some((also, left)) = &mut self.also else { return };
        *left = if there && *also != available { *left + over } else { Duration::ZERO };
        if *left > within {
            self.also = None;
        }
    }

    /// It is VCPU-Bal's number from now on.
    pub(super) fn follow(&mut self, bal: Choice) {
        (self.count, self.why, self.bal) = (bal.count, bal.why, true);
        (self.instead, self.together, self.also, self.enough) = (None, None, None, None);
    }

    /// Whether a load that varies as this one may have done this: the longer it lasts, the less. Where so few units are counted that
    /// looks vary by that, nothing is known of how the load does.
    pub(super) fn may_do(&self, did: &Stat) -> bool {
        let (Some(value), Some(used), Some(rate)) = (did.value(), did.used(), self.seen.rate()) else {
            return false;
        };
        if race::telling(rate) > 1.0 {
            return false;
        }
        let slack = 2.0 * self.error(did.seconds);
        alike(self.mark, Mark { value, used }, slack)
    }

    /// Standard error of what it does in so many seconds.
    fn error(&self, seconds: f64) -> f64 {
        self.seen.deviation() * (TURN / seconds).sqrt()
    }

    /// Whether it has done less by now than with VCPU-Bal's number: a race is short, and what varies may have seemed better by chance, as LU with
    /// eight vCPUs on two pCPUs, which is in step for seconds and then not. Both are known by counting.
    pub(super) fn is_beaten(&self) -> bool {
        self.seen.seconds >= LATELY && self.instead.is_some_and(|instead| self.is_less(&self.seen, &instead))
    }

    /// Whether this is clearly less than that.
    fn is_less(&self, now: &Stat, than: &Stat) -> bool {
        let Some((value, best)) = now.value().zip(than.value()) else { return false };
        let counting = |stat: &Stat, value: f64| value / stat.units.max(1.0).sqrt();
        let error = counting(now, value).max(self.error(now.seconds)).hypot(counting(than, best));
        let several = self.together.is_some_and(|together| together.vms > 1);
        value + error < if several { BEATEN_TOGETHER } else { BEATEN } * best
    }

    /// What it did when it had this number and others had theirs, if that was more than this, which is otherwise than what was found.
    pub(super) fn lost(&self, now: &Stat, bal: u32) -> Option<Stat> {
        let together = self.together.filter(|together| together.vms > 1 && together.bal == bal)?;
        self.is_less(now, &together.did).then_some(together.did)
    }

    /// What is known of a race of more VMs, if this of fewer knows less.
    pub(super) fn of_more(&self, new: Together) -> Together {
        let worth = |together: &Together| together.did.value().unwrap_or(0.0);
        let more = |old: &Together| old.vms > new.vms && old.bal == new.bal && worth(old) > worth(&new);
        self.together.filter(more).unwrap_or(new)
    }

    /// It did this, which is nothing else: that is how it varies.
    pub(super) fn varies(&mut self, did: &Stat) {
        self.seen.add_stat(did);
        if self.seen.seconds > VARIES {
            self.seen.fade();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cpus;

    fn did(units: f64) -> Stat {
        Stat { seconds: 10.0, units, used: 10.0, part: 10.0, ..Stat::default() }
    }

    fn found(together: Together) -> Found {
        let mark = Mark { value: 100.0, used: 1.0 };
        Found { together: Some(together), ..Found::new(8, Why::Share { share: Cpus(2.0) }, 2, mark) }
    }

    #[test]
    fn what_all_did_together_with_vcpu_bals_numbers_is_not_forgotten_for_what_fewer_do() {
        let together = |units, bal, vms| Together { did: did(units), bal, vms };
        let found = found(together(900.0, 2, 4));
        for (new, vms) in [
            (together(500.0, 2, 1), 4),
            (together(950.0, 2, 1), 1),
            (together(500.0, 3, 1), 1),
            (together(500.0, 2, 4), 4),
        ] {
            assert_eq!(found.of_more(new).vms, vms);
        }
        let latest = found.of_more(together(500.0, 2, 4)).did.units;
        assert!((latest - 500.0).abs() < 1e-9, "as many: the latest");
    }

    #[test]
    fn what_is_clearly_less_than_all_did_together_is_lost() {
        let together = |vms| Together { did: did(900.0), bal: 2, vms };
        let lost = |vms, bal, units| found(together(vms)).lost(&did(units), bal).is_some();
        assert!(lost(4, 2, 500.0));
        assert!(!lost(4, 2, 800.0), "not by much");
        assert!(!lost(4, 3, 500.0), "of another number");
        assert!(!lost(1, 2, 500.0), "it raced alone");
        let few = Stat { seconds: 1.0, units: 4.0, used: 1.0, part: 1.0, ..Stat::default() };
        let of_few = Together { did: Stat { units: 60.0, ..did(0.0) }, ..together(4) };
        assert!(found(of_few).lost(&few, 2).is_none(), "of four units nothing is clear");
    }
}
