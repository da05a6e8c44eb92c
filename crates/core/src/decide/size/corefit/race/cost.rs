//! What a race costs: work that is missing beside what the best would have done, and what changes take.

use std::time::Duration;

use super::{FIRST, Look, Member, Race, Stage, VmId};

/// Who uses less than this part of its own with VCPU-Bal's counts, just after the change to them, pays for what it used before.
const PAYS: f64 = 0.5;

impl Race {
    /// Whether what was used before the change is paid for now, so that this look says nothing of VCPU-Bal's counts: with a cap 16 vCPUs
    /// use up in 0.1 s what three have in a second, and who is stopped may hold what the others wait for.
    pub(super) fn pays(&mut self, looks: &[(VmId, Look)], over: Duration) -> bool {
        let sum = |of: fn(&Look) -> f64| looks.iter().map(|(_, look)| of(look)).sum::<f64>();
        let starves = sum(|look| look.used) < PAYS * sum(|look| look.part);
        let pays = self.stage != Stage::First && self.is_bal(self.turn) && starves && self.paid < FIRST;
        (self.settling, self.paid) = (pays, if pays { self.paid + over } else { Duration::ZERO });
        if pays {
            self.lost += over.as_secs_f64();
        }
        pays
    }

    /// What is missing of what VMs usually do while they are changed: a real guest of LU's loses about a second each time.
    pub(super) fn count_change(&mut self, looks: &[(VmId, Look)], over: Duration) {
        let usual: f64 = self.members.iter().map(Member::usual).sum();
        if usual > 0.0 {
            self.changes += over.as_secs_f64() - self.sum(looks) / usual;
        }
    }

    /// Seconds that the race cost so far.
    pub(in super::super) fn cost(&self) -> f64 {
        self.lost + self.changes.max(0.0)
    }

    /// Whether it has cost what it may once this is lost, too. A first race does not end because guests are slow to change: it has to try
    /// some numbers.
    pub(super) fn is_spent_with(&self, more: f64) -> bool {
        more + (if self.patient { self.cost() } else { self.lost }) > self.allowed
    }

    pub(in super::super) fn is_spent(&self) -> bool {
        self.is_spent_with(0.0)
    }
}
