//! Who becomes smaller and then larger again, time after time, stays large for longer: loads with pauses of some seconds would be
//! resized at each of them.

use std::time::Duration;

use super::Policy;
use crate::Time;

/// So many times longer each time, and so many dwells until it was no mistake. Ours (300 s of a load with pauses of 4 s beside a steady
/// one: 75 to 104 changes of that, six with a dwell of 8 s, and it does more).
const TIMES: u32 = 3;
/// The longest.
const LONGEST: Duration = Duration::from_secs(60);
/// After so long without a mistake it is as at first.
const FORGOTTEN: Duration = Duration::from_secs(120);

/// How often a VM was made smaller by mistake of late.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Calm {
    mistakes: u32,
    last: Time,
    shrank: Option<Time>,
}

impl Calm {
    /// How long fewer vCPUs have to be wanted now.
    pub(super) fn dwell(&mut self, policy: &Policy, at: Time) -> Duration {
        if at.since(self.last) >= FORGOTTEN {
            self.mistakes = 0;
        }
        let dwell = policy.dwell();
        dwell.saturating_mul(TIMES.saturating_pow(self.mistakes)).min(LONGEST.max(dwell))
    }

    /// It gets fewer, or more.
    pub(super) fn changes(&mut self, fewer: bool, policy: &Policy, at: Time) {
        if fewer {
            self.shrank = Some(at);
        } else if let Some(then) = self.shrank.take()
            && at.since(then) < TIMES * self.dwell(policy, at)
        {
            self.mistakes = (self.mistakes + 1).min(8);
            self.last = at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds that fewer have to be wanted, after each turn of `long` seconds with fewer.
    fn turns(long: u64, turns: u64, every: u64) -> Vec<u64> {
        let (mut calm, policy) = (Calm::default(), Policy { dwell_ms: 3000, ..Policy::default() });
        let at = |s: u64| Time(s * 1_000_000_000);
        let turn = |number: u64| {
            let begin = 1000 + number * every;
            calm.changes(true, &policy, at(begin));
            calm.changes(false, &policy, at(begin + long));
            calm.dwell(&policy, at(begin + long)).as_secs()
        };
        (0..turns).map(turn).collect()
    }

    #[test]
    fn who_grows_again_soon_waits_longer_and_longer_and_who_does_not_is_as_before() {
        assert_eq!(turns(4, 5, 10), [9, 27, 60, 60, 60]);
        assert_eq!(turns(10, 3, 20), [3, 3, 3], "it was smaller for a while");
        assert_eq!(turns(4, 3, 200), [9, 9, 9], "long ago");
    }
}
