//! What a search leaves: where a VM stays, and when it is searched again.

use std::time::Duration;

use super::counts::{bal, bal_why};
use super::found::Found;
use super::memory::Mark;
use super::seen::{self, mark};
use super::{AGAIN, Corefit, REST, Subject};

/// The longest rest.
pub(super) const LONGEST: Duration = Duration::from_secs(3600);
/// What a search found holds for so long, and for twice the rest after it, or it told nothing: beside who is busy by turns each finds another number.
const HOLDS: Duration = Duration::from_secs(60);

impl Corefit {
    /// Nothing is known to be better than VCPU-Bal's number.
    pub(super) fn settle_at_bal(&mut self, subject: &Subject<'_>) {
        self.settle_with(subject, mark(subject, 0.0, subject.used.unwrap_or(0.0)));
    }

    /// At VCPU-Bal's number, of a load that does this.
    pub(super) fn settle_with(&mut self, subject: &Subject<'_>, mark: Mark) {
        let part = subject.available.unwrap_or(0.0);
        let available = subject.clamp(subject.vcpus(part));
        let found = Found::new(bal(subject, available), bal_why(subject, part), available, mark);
        self.settle(subject, Found { bal: true, ..found }, None);
    }

    /// There is one number that it may have.
    pub(super) fn settle_where_it_is(&mut self, subject: &Subject<'_>, mark: Option<Mark>) {
        let known = mark.or(self.found.as_ref().map(|found| found.mark));
        let mark = known.unwrap_or_else(|| seen::mark(subject, 0.0, subject.used.unwrap_or(0.0)));
        // That is no search that found nothing.
        let (searches, checks) = (self.searches, self.checks);
        self.settle_with(subject, mark);
        (self.searches, self.checks, self.not_before) = (searches, checks, subject.at + self.dwell);
    }

    /// A search is over; `again`: it left something out, which is looked at after this time.
    pub(super) fn settle(&mut self, subject: &Subject<'_>, found: Found, again: Option<Duration>) {
        let changed = self.found.as_ref().is_none_or(|old| old.count != found.count);
        // What it found before did not hold for long: that is no change, but a search that tells nothing.
        let held = subject.at.since(self.settled);
        let hasty = self.found.is_some() && !self.checking && held < HOLDS.max(2 * self.rested.min(AGAIN));
        if changed || !self.checking {
            self.settled = subject.at;
        }
        self.stale = false;
        if changed && !hasty {
            (self.searches, self.checks) = (0, 0);
        } else if self.checking {
            self.checks += 1;
        } else {
            self.searches += 1;
        }
        // Looking without a change says nothing of whether changes are worth a search.
        let wait = if changed && !hasty || self.checking {
            self.dwell
        } else {
            // What held for a while may do so again.
            rest(REST, self.searches - 1).min(if changed && held >= HOLDS { AGAIN } else { LONGEST })
        };
        if !self.checking {
            self.rested = wait;
        }
        self.not_before = self.not_before.max(subject.at + wait);
        self.again = subject.at + again.unwrap_or(rest(AGAIN, self.checks));
        self.found = Some(Found { most: subject.clamp(u32::MAX), ..found });
    }
}

/// This time, and twice as long each time.
pub(super) fn rest(first: Duration, times: u32) -> Duration {
    first.saturating_mul(1 << times.min(16)).min(LONGEST)
}
