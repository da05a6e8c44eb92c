//! Max-min by demand: nobody gets more while somebody who has less wants more.
//!
//! Grants are whole pCPUs and are divided anew at each look. Of equal ones that cannot all have one more, each has it in turn: eight pCPUs
//! for six that want four each are two for two of them and one for the others, and after three turns each had 4/3.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::arbitrate::{Arbitrate, Grant, Request};
use super::room::Room;
use crate::Time;
use crate::machine::VmId;

/// Who has one pCPU more than an equal one passes it on after so many dwells, and so long at least. Ours.
const DWELLS: u32 = 20;
const LEAST: Duration = Duration::from_secs(60);

/// The arbiter, and what it remembers.
#[derive(Debug)]
pub(super) struct MaxMin {
    known: BTreeMap<VmId, Level>,
    /// How long one of equal ones has one more than others.
    turn: Duration,
    /// Turns that were passed on.
    turns: u64,
    last: Option<Time>,
}

/// What is known of one that max-min divides among.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    /// What it was given last.
    last: u32,
    /// How long it had one more than equal ones, in this turn.
    ahead: Duration,
    /// Its place among equal ones: behind those that passed theirs on before it did, or came before.
    place: u64,
    /// It asks for something.
    asks: bool,
}

impl MaxMin {
    /// For VMs that get less after such a dwell.
    #[must_use]
    pub(super) fn new(dwell: Duration) -> MaxMin {
        let turn = dwell.saturating_mul(DWELLS).max(LEAST);
        MaxMin { known: BTreeMap::new(), turn, turns: 0, last: None }
    }

    /// Who has had one more than others that have less than they want, for a turn of its own, stands behind them from the next look on.
    fn pass_on(&mut self, requests: &[Request], given: &[u32], at: Time) {
        let over = self.last.replace(at).map_or(Duration::ZERO, |last| at.since(last));
        // In the order of their places.
        let mut order: Vec<usize> = (0..given.len()).collect();
        order.sort_by_key(|&i| self.known.get(&requests[i].id).map(|known| known.place));
        let short: BTreeSet<u32> =
            (0..given.len()).filter(|&i| given[i] < requests[i].wanted()).map(|i| given[i]).collect();
        for i in order {
            let Some(known) = self.known.get_mut(&requests[i].id) else { continue };
            if given[i] > requests[i].sure() && short.contains(&(given[i] - 1)) {
                known.ahead += over;
            }
            if known.ahead >= self.turn {
                self.turns += 1;
                (known.ahead, known.place) = (Duration::ZERO, self.turns);
            }
        }
    }
}

impl Arbitrate for MaxMin {
    fn grant(&mut self, requests: &[Request], room: &mut Room, at: Time) -> Vec<Grant> {
        let before: Vec<Option<u32>> =
            requests.iter().map(|request| self.known.get(&request.id).map(|known| known.last)).collect();
        // Who comes stands behind.
        for request in requests {
            let known = self.known.entry(request.id.clone()).or_default();
            if !std::mem::replace(&mut known.asks, request.wanted() > 0) && known.asks {
                self.turns += 1;
                known.place = self.turns;
            }
        }
        let mut given: Vec<u32> = requests.iter().map(Request::sure).collect();
        for (i, sure) in given.iter().enumerate() {
            room.take(i, *sure);
        }
        let place = |i: usize| self.known[&requests[i].id].place;
        let mut open: BTreeSet<(u32, u64, usize)> = (0..requests.len())
            .filter(|&i| given[i] < requests[i].wanted())
            .map(|i| (given[i], place(i), i))
            .collect();
        // Who finds no room will not find any later.
        while let Some((has, place, poorest)) = open.pop_first() {
            if room.take(poorest, 1) == 1 {
                given[poorest] += 1;
                if given[poorest] < requests[poorest].wanted() {
                    open.insert((has + 1, place, poorest));
                }
            }
        }
        let here: BTreeSet<&VmId> = requests.iter().map(|request| &request.id).collect();
        let absent = self.known.iter_mut().filter(|(id, _)| !here.contains(id));
        absent.for_each(|(_, known)| known.last = 0);
        // Others give at once what is guaranteed to who wants it now.
        let claimed =
            (0..requests.len()).any(|i| before[i].is_some_and(|before| before < requests[i].sure()));
        let grant = |(i, request): (usize, &Request)| {
            self.known.entry(request.id.clone()).or_default().last = given[i];
            let taken = given[i] < request.wanted() && before[i].is_some_and(|before| before > given[i]);
            Grant { pcpus: given[i], preempted: claimed && taken }
        };
        let grants = requests.iter().enumerate().map(grant).collect();
        self.pass_on(requests, &given, at);
        grants
    }

    fn forget(&mut self, is_there: &dyn Fn(&VmId) -> bool) {
        self.known.retain(|id, _| is_there(id));
    }
}

#[cfg(test)]
mod tests {
    use super::super::arbitrate::tests::{ask, at, grant, pcpus};
    use super::*;

    #[test]
    fn max_min_levels() {
        let mut even = MaxMin::new(Duration::from_secs(3));
        assert_eq!(
            pcpus(&grant(&mut even, &[ask("a", 8, 0), ask("b", 2, 0), ask("c", 8, 0)], 9, at(0))),
            [4, 2, 3]
        );
    }

    #[test]
    fn who_comes_stands_behind_those_who_ask_already() {
        let mut even = MaxMin::new(Duration::from_secs(3));
        grant(&mut even, &[ask("late", 0, 0), ask("early", 4, 0)], 5, at(0));
        let given = grant(&mut even, &[ask("late", 4, 0), ask("early", 4, 0)], 5, at(1));
        assert_eq!(pcpus(&given), [2, 3]);
    }

    #[test]
    fn who_pauses_stands_where_it_stood() {
        let mut even = MaxMin::new(Duration::from_secs(3));
        let both = [ask("a", 4, 0), ask("b", 4, 0)];
        assert_eq!(pcpus(&grant(&mut even, &both, 5, at(0))), [3, 2]);
        assert_eq!(pcpus(&grant(&mut even, &both[1..], 5, at(1))), [4]);
        even.forget(&|_| true);
        assert_eq!(pcpus(&grant(&mut even, &both, 5, at(3))), [3, 2]);
        even.forget(&|id| id.0 != "a");
        assert_eq!(pcpus(&grant(&mut even, &both, 5, at(4))), [2, 3], "it was gone");
    }

    /// Each has one more than the others as long as any other, and nobody's grant changes often.
    #[test]
    fn what_is_left_over_goes_from_one_of_equal_ones_to_the_next() {
        for (equal, pcpus_each) in [(6, 4.0 / 3.0), (3, 8.0 / 3.0)] {
            let mut even = MaxMin::new(Duration::from_secs(3));
            let mut requests: Vec<Request> = (0..equal).map(|i| ask(&i.to_string(), 4, 0)).collect();
            // One that wants no more than it has is not one of them.
            requests.push(ask("one", 1, 0));
            let (mut all, mut changes, mut last) = (vec![0; equal + 1], 0, Vec::new());
            for second in 0..1800 {
                let given = pcpus(&grant(&mut even, &requests, 9, at(second)));
                all.iter_mut().zip(&given).for_each(|(all, given)| *all += given);
                changes += given.iter().zip(&last).filter(|(now, last)| now != last).count();
                last = given;
            }
            let even = |all: &u32| (f64::from(*all) / 1800.0 / pcpus_each - 1.0).abs() < 0.03;
            assert!(all[..equal].iter().all(even), "{all:?}");
            assert_eq!(all[equal], 1800);
            assert!(changes <= 4 * 30, "{changes} in 30 turns");
        }
    }

    /// A longer dwell: who is to get less does so only then.
    #[test]
    fn a_turn_is_twenty_dwells() {
        let mut even = MaxMin::new(Duration::from_secs(60));
        let requests = ["a", "b"].map(|name| ask(name, 2, 0));
        let mut given = (0..1300).map(|second| pcpus(&grant(&mut even, &requests, 3, at(second))));
        assert!(given.by_ref().take(1201).all(|given| given == [2, 1]));
        assert!(given.all(|given| given == [1, 2]));
    }
}
