//! A race between counts: all are tried for a moment, the slow ones are out, the others are tried for longer.
//!
//! The worth of a count is the work done per second, scaled down where more was used than the VM's own part: what is
//! taken from others is no gain. (Under Xen's credit scheduler a VM weighs as many times more as it has vCPUs; judged
//! by work alone, all VMs of a host would end with all their vCPUs.)

use std::time::Duration;

/// A guest takes so long for each vCPU that goes offline or online (milliseconds in published measurements of Linux).
const PER_VCPU: Duration = Duration::from_millis(5);
/// Rounds; each is twice as long as the one before.
const ROUNDS: u32 = 4;
/// A count is out after half a look if it is worth less than this part of the best.
const HOPELESS: f64 = 0.35;
/// Units of work that the best has to have done in a time for it to say something.
const UNITS: f64 = 8.0;
/// The longest look in the first round, in usual ones, where work is counted in large units.
const STRETCH: u32 = 4;

/// One of the counts.
#[derive(Clone, Debug)]
pub(super) struct Runner {
    pub(super) count: u32,
    seconds: f64,
    units: f64,
    /// pCPU seconds used, and those of the VM's own part.
    used: f64,
    part: f64,
    out: bool,
    /// One of the first two: it gets a second look in any case.
    sure: bool,
}

impl Runner {
    /// Worth per second; `None` before it was looked at.
    pub(super) fn value(&self) -> Option<f64> {
        let own = if self.used > self.part { self.part / self.used } else { 1.0 };
        (self.seconds > 0.0).then(|| self.units * own / self.seconds)
    }

    /// pCPUs used.
    pub(super) fn used(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.used / self.seconds)
    }

    /// How far off its value may be, as a part of it: what schedulers' turns do to short looks (measured on the
    /// simulated host), and the unit that was not finished.
    fn error(&self) -> f64 {
        0.02 + 0.05 * (0.2 / self.seconds.max(1e-3)).sqrt() + 1.0 / self.units.max(1.0)
    }
}

/// What one look showed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) over: Duration,
    /// Units of work.
    pub(super) units: f64,
    /// pCPUs used, and the VM's own part.
    pub(super) used: f64,
    pub(super) part: f64,
}

/// The race.
#[derive(Clone, Debug)]
pub(super) struct Race {
    runners: Vec<Runner>,
    window: Duration,
    round: u32,
    turn: usize,
    /// Looked at in this turn.
    looked: Duration,
    /// The look that the change falls into does not count.
    settling: bool,
    /// vCPUs that the change was of.
    step: u32,
    /// Seconds that trying cost, if the best is the best.
    pub(super) lost: f64,
    allowed: f64,
}

impl Race {
    /// Between these counts, in this order. `window`: of a look in the first round; `allowed`: seconds that it may
    /// cost.
    pub(super) fn new(counts: &[u32], window: Duration, allowed: f64) -> Race {
        let runner = |&count: &u32| Runner {
            count,
            seconds: 0.0,
            units: 0.0,
            used: 0.0,
            part: 0.0,
            out: false,
            sure: false,
        };
        let mut runners: Vec<Runner> = counts.iter().map(runner).collect();
        runners.iter_mut().take(2).for_each(|runner| runner.sure = true);
        Race {
            runners,
            window,
            round: 0,
            turn: 0,
            looked: Duration::ZERO,
            settling: true,
            step: 0,
            lost: 0.0,
            allowed,
        }
    }

    /// The count whose turn it is.
    pub(super) fn count(&self) -> u32 {
        self.runners[self.turn].count
    }

    /// When to look next.
    pub(super) fn next(&self) -> Duration {
        if self.settling {
            self.window / 4 + PER_VCPU * self.step
        } else {
            (self.window * (1 << self.round)) / 2
        }
    }

    /// The best so far.
    pub(super) fn best(&self) -> Option<&Runner> {
        let seen = self.runners.iter().filter(|r| r.seconds > 0.0);
        seen.max_by(|a, b| a.value().partial_cmp(&b.value()).unwrap_or(std::cmp::Ordering::Equal))
    }

    pub(super) fn of(&self, count: u32) -> Option<&Runner> {
        self.runners.iter().find(|runner| runner.count == count)
    }

    /// Takes a look into account; `true` when the race is over. `online`: vCPUs there really were.
    pub(super) fn look(&mut self, online: u32, look: &Look) -> bool {
        if self.settling {
            self.settling = false;
            // A guest that does not follow: another count, or none.
            if online != self.count() {
                self.runners[self.turn].out = true;
                return self.go_on();
            }
            return false;
        }
        let seconds = look.over.as_secs_f64();
        let best = self.best().and_then(Runner::value).unwrap_or(0.0);
        let runner = &mut self.runners[self.turn];
        runner.seconds += seconds;
        runner.units += look.units;
        runner.used += look.used * seconds;
        runner.part += look.part * seconds;
        self.looked += look.over;
        let value = runner.value().unwrap_or(0.0);
        let telling = best.max(value) * self.looked.as_secs_f64() >= UNITS;
        if best > 0.0 {
            self.lost += seconds * (1.0 - (value / best).min(1.0));
        }
        let hopeless = self.round == 0 && !runner.sure && telling && value < HOPELESS * best;
        let length = self.window * (1 << self.round);
        let enough = self.looked >= length && (telling || self.looked >= length * STRETCH);
        if hopeless {
            self.runners[self.turn].out = true;
        }
        if hopeless || enough {
            return self.go_on();
        }
        false
    }

    /// The next turn; `true` if there is none.
    fn go_on(&mut self) -> bool {
        let from = self.count();
        let over = self.take_turn();
        self.step = from.abs_diff(self.count());
        over
    }

    fn take_turn(&mut self) -> bool {
        self.looked = Duration::ZERO;
        self.settling = true;
        if self.lost > self.allowed || self.is_silent() {
            return true;
        }
        let next = (self.turn + 1..self.runners.len()).find(|&i| !self.runners[i].out);
        if let Some(next) = next {
            self.turn = next;
            return false;
        }
        self.prune();
        self.round += 1;
        let left: Vec<usize> = (0..self.runners.len()).filter(|&i| !self.runners[i].out).collect();
        if left.len() < 2 || self.round == ROUNDS {
            return true;
        }
        // Back the way it came: fewer vCPUs change.
        self.runners.reverse();
        self.turn = (0..self.runners.len()).find(|&i| !self.runners[i].out).unwrap_or(0);
        false
    }

    /// Two counts, and nothing was counted: there is no signal.
    fn is_silent(&self) -> bool {
        self.runners.iter().filter(|r| r.seconds > 0.0).count() == 2
            && self.runners.iter().all(|r| r.units == 0.0)
    }

    fn prune(&mut self) {
        let Some(best) = self.best().cloned() else { return };
        let least = best.value().unwrap_or(0.0) * (1.0 - best.error());
        let first = self.round == 0;
        let others = self.runners.iter_mut().filter(|runner| runner.count != best.count);
        for runner in others.filter(|runner| !(first && runner.sure)) {
            if runner.value().is_none_or(|value| value * (1.0 + runner.error()) < least) {
                runner.out = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a race on rates by count; the winner, and what it cost.
    fn race(rates: &dyn Fn(u32) -> f64, counts: &[u32], allowed: f64) -> (u32, f64) {
        let mut race = Race::new(counts, Duration::from_millis(100), allowed);
        for _ in 0..10_000 {
            let (count, over) = (race.count(), race.next());
            let units = rates(count) * over.as_secs_f64();
            if race.look(count, &Look { over, units, used: 1.0, part: 1.0 }) {
                break;
            }
        }
        (race.best().unwrap().count, race.lost)
    }

    #[test]
    fn it_finds_the_best_of_a_rugged_landscape_and_costs_little() {
        let rates = |n: u32| match n {
            16 => 1000.0,
            12 => 1100.0,
            _ => 90.0 + f64::from(n),
        };
        let all: Vec<u32> = (1..=16).rev().collect();
        let (best, lost) = race(&rates, &all, 10.0);
        assert_eq!(best, 12);
        assert!(lost < 1.5, "{lost}");
    }

    #[test]
    fn it_stops_when_it_has_cost_what_it_may() {
        let rates = |n: u32| if n == 16 { 1000.0 } else { 500.0 };
        let all: Vec<u32> = (1..=16).rev().collect();
        let (best, lost) = race(&rates, &all, 0.2);
        assert_eq!(best, 16);
        assert!(lost < 0.3, "{lost}");
    }

    #[test]
    fn what_is_taken_from_others_is_no_gain() {
        let mut race = Race::new(&[16, 4], Duration::from_millis(100), 10.0);
        let mut over = false;
        while !over {
            let count = race.count();
            // Four times the vCPUs take three times the pCPUs, and do twice the work.
            let (used, rate) = if count == 16 { (3.0, 2000.0) } else { (1.0, 1000.0) };
            let next = race.next();
            let units = rate * next.as_secs_f64();
            over = race.look(count, &Look { over: next, units, used, part: 1.0 });
        }
        assert_eq!(race.best().unwrap().count, 4);
    }
}
