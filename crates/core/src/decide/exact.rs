//! Whether what a VM is taken to want is what P5's monitor would see, or an approximation, which is said (docs/arbitration.md, "What a VM
//! asks for").

use std::time::Duration;

use super::demand::Monitored;
use crate::Time;

/// What was seen longer ago counts no more. Of a look a second, six answers of an agent (5 s; one of one whose guest rests); it may miss one and be asked again after twice
/// as long. What the mean that forgets most slowly (gamma 0.2) has of looks before that is 0.1 %. Ours.
const LATELY: Duration = Duration::from_secs(30);

/// How that by which a VM's demand went was seen: when it was exactly so last, and when it was not.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Exact {
    exact: Option<Time>,
    approximate: Option<Time>,
}

/// What is to be said of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Approximation {
    /// All of it is of the host's own counters, but for a run queue that was told once.
    Outside,
    /// What a guest says is heard now and then, and in between it is of the host's counters.
    Between,
}

impl Exact {
    /// Demand goes by this from now on, too.
    pub(super) fn went_by(&mut self, seen: &Monitored, at: Time) {
        *if seen.exact { &mut self.exact } else { &mut self.approximate } = Some(at);
    }

    /// What it is, lately: the same from one look to the next, though a guest says nothing new in most of them. `tells`: it tells
    /// all that there is to know now.
    pub(super) fn lacks(&self, tells: bool, at: Time) -> Option<Approximation> {
        let lately = |seen: Option<Time>| seen.is_some_and(|seen| at.since(seen) < LATELY);
        match (lately(self.exact), lately(self.approximate)) {
            // What it went by is old, where nothing was seen since that counts.
            (_, false) if self.exact >= self.approximate => None,
            (false, _) if !tells => Some(Approximation::Outside),
            _ => Some(Approximation::Between),
        }
    }
}

impl Approximation {
    /// For people.
    pub(super) fn said(self) -> &'static str {
        match self {
            Approximation::Outside => {
                "what VMs want is approximated where no guest agent tells, or none has told yet: nice time counts as busy, waiting for input and \
                 output as idle, run queues are not seen"
            }
            Approximation::Between => {
                "what VMs want is approximated between two answers of their guests' agents: nice time counts as busy then, waiting for input and \
                 output as idle, run queues are as they were told last"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_same_from_one_look_to_the_next_and_what_is_long_ago_counts_no_more() {
        use Approximation::{Between, Outside};
        let at = |s: u64| Time(s * 1_000_000_000);
        let look = |exact| Monitored { utilisation: 1.0, parallel: None, exact };
        // When it was seen exactly, in seconds, from look to look; whether it tells all.
        let kinds = |told: fn(u64) -> bool, tells: fn(u64) -> bool| {
            let (mut seen, mut kinds) = (Exact::default(), Vec::new());
            for s in 0..200 {
                seen.went_by(&look(told(s)), at(s));
                kinds.push(seen.lacks(tells(s), at(s)));
            }
            kinds.dedup();
            kinds
        };
        assert_eq!(kinds(|_| true, |_| true), [None]);
        assert_eq!(kinds(|_| false, |_| false), [Some(Outside)]);
        assert_eq!(kinds(|s| s % 5 == 4, |s| s >= 1), [Some(Outside), Some(Between)], "one look of five");
        assert_eq!(
            kinds(|s| s % 5 == 0 && !(90..105).contains(&s), |s| !(90..104).contains(&s)),
            [None, Some(Between)],
            "it missed an answer"
        );
        assert_eq!(
            kinds(|s| s % 5 == 0 && s < 90, |s| s < 90),
            [None, Some(Between), Some(Outside)],
            "it went away"
        );
        assert_eq!(kinds(|s| s >= 50, |_| true), [Some(Between), None]);
        let mut seen = Exact::default();
        seen.went_by(&look(true), at(0));
        assert_eq!(seen.lacks(true, at(100)), None, "nothing was seen since that says anything of it");
        seen.went_by(&look(false), at(1));
        assert_eq!(seen.lacks(true, at(100)), Some(Between));
    }
}
