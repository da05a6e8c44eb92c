//! What a search found, and whether a VM still does that.

use std::time::Duration;

use super::memory::{Mark, alike};
use super::stat::Stat;
use super::{Choice, LATELY, race};
use crate::decide::Why;

/// What varies by itself goes on so for about so long, s: looks in it are as good as one.
const TURN: f64 = 2.0;
/// Who does less than this part of what it did with VCPU-Bal's number is no better off. (UA on 8 pCPUs does 0.97 of it with 16 vCPUs, but would
/// not do that with 8 again.)
const BEATEN: f64 = 0.8;
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
    /// What it did with VCPU-Bal's number, where another was better.
    pub(super) instead: Option<Instead>,
    /// All vCPUs did less, but may do more some day.
    pub(super) left_all: bool,
}

/// What a VM did with VCPU-Bal's number in a race.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instead {
    pub(super) did: Stat,
    /// That number, and that of VMs which all had theirs.
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
            instead: None,
            left_all: false,
        }
    }

    /// Whether it was found for so many pCPUs.
    pub(super) fn is_of(&self, available: u32) -> bool {
        self.available == available || self.also.is_some_and(|(also, _)| also == available)
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
        (self.instead, self.also, self.enough) = (None, None, None);
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
        self.seen.seconds >= LATELY && self.does_less(&self.seen)
    }

    /// Whether this is clearly less than that.
    fn does_less(&self, now: &Stat) -> bool {
        let Some((Instead { did, .. }, value)) = self.instead.zip(now.value()) else { return false };
        let best = did.value().unwrap_or(0.0);
        let error = self.error(now.seconds).hypot(best / did.units.max(1.0).sqrt());
        value + error < BEATEN * best
    }

    /// Whether this, which is otherwise than before, is less than what it did when more VMs than itself had VCPU-Bal's numbers.
    pub(super) fn is_lost(&self, now: &Stat) -> bool {
        self.instead.is_some_and(|instead| instead.vms > 1) && self.does_less(now)
    }

    /// What is known of VCPU-Bal's number of a race of more VMs, if a race of fewer knows less.
    pub(super) fn of_more(&self, new: Option<Instead>) -> Option<Instead> {
        let worth = |instead: Instead| instead.did.value().unwrap_or(0.0);
        let more = |(old, new): (Instead, Instead)| {
            old.vms > new.vms && old.bal == new.bal && worth(old) > worth(new)
        };
        if self.instead.zip(new).is_some_and(more) { self.instead } else { new }
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

    #[test]
    fn what_all_did_together_with_vcpu_bals_numbers_is_not_forgotten_for_what_fewer_do() {
        let instead = |units, bal, vms| {
            let did = Stat { seconds: 10.0, units, used: 10.0, part: 10.0, ..Stat::default() };
            Some(Instead { did, bal, vms })
        };
        let mark = Mark { value: 100.0, used: 1.0 };
        let found = Found::new(8, Why::Share { share: Cpus(2.0) }, 2, mark);
        let found = Found { instead: instead(900.0, 2, 4), ..found };
        for (new, vms) in [
            (instead(500.0, 2, 1), Some(4)),
            (instead(950.0, 2, 1), Some(1)),
            (instead(500.0, 3, 1), Some(1)),
            (instead(500.0, 2, 4), Some(4)),
            (None, None),
        ] {
            assert_eq!(found.of_more(new).map(|instead| instead.vms), vms);
        }
        assert_eq!(found.of_more(instead(500.0, 2, 4)).unwrap().did.units, 500.0, "as many: the latest");
    }
}
