//! Who gets pCPUs when there are not enough: XenMVM's resource manager (docs/model.md, "Papers": P5), and max-min
//! (`max_min.rs`).
//!
//! Requests are whole pCPUs of those that a VM may use. What is guaranteed is there at once for who wants it, and others may
//! have it as long as he does not. In the queue a VM that gets less than it asked for backs off: it has what is free at any time, but
//! takes from less important ones again only when somebody gave pCPUs back, when it lost some, when somebody's terms (priority, least,
//! most) are others, or after a time that doubles with each refusal.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

use super::max_min::MaxMin;
use super::policy::{Arbiter, Policy};
use super::room::Room;
use crate::Time;
use crate::machine::VmId;

/// The first time for which one that was refused does not ask again; ours ("short period" in the paper).
const BACK_OFF: Duration = Duration::from_secs(2);
/// The longest.
const LONGEST: Duration = Duration::from_secs(64);
/// What a VM asks for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Request {
    /// Which VM.
    pub id: VmId,
    /// pCPUs that it wants.
    pub wants: u32,
    /// It is guaranteed so many of them, and never gets more than so many.
    pub least: u32,
    /// See above.
    pub most: u32,
    /// Larger is more important.
    pub priority: i32,
}

impl Request {
    /// pCPUs that it wants, as far as it may have them.
    #[must_use]
    pub(super) fn wanted(&self) -> u32 {
        self.wants.min(self.most)
    }

    /// What it gets of these in any case.
    pub(super) fn sure(&self) -> u32 {
        self.least.min(self.wanted())
    }
}

/// What it gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Grant {
    /// pCPUs.
    pub pcpus: u32,
    /// Some were taken away for one that is more important.
    pub preempted: bool,
}

/// A way to divide pCPUs.
pub(super) trait Arbitrate: Debug {
    /// What each request gets, in their order, of the room that there is for them.
    fn grant(&mut self, requests: &[Request], room: &mut Room, at: Time) -> Vec<Grant>;

    /// Forgets who is not there any more. Who is, and asks for nothing for a while, as it is paused, has nothing and keeps its place.
    fn forget(&mut self, is_there: &dyn Fn(&VmId) -> bool);
}

/// That of a policy; `None` if nobody is to arbitrate.
#[must_use]
pub(super) fn arbiter(policy: &Policy) -> Option<Box<dyn Arbitrate + Send>> {
    match policy.arbitrate {
        Arbiter::None => None,
        Arbiter::Fcfs => Some(Box::new(Queue::new(false))),
        Arbiter::Priority => Some(Box::new(Queue::new(true))),
        Arbiter::MaxMin => Some(Box::new(MaxMin::new(policy.dwell()))),
    }
}

/// The request queue: first come, first served, or the more important first, at the cost of the less important.
#[derive(Debug)]
pub(super) struct Queue {
    priority: bool,
    held: BTreeMap<VmId, Held>,
    turn: u64,
}

/// What is known of one that asks.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    pcpus: u32,
    /// Its turn when it first asked for anything; `None` while it asks for nothing.
    came: Option<u64>,
    /// Its place in the queue; it keeps it until it has what it asks for.
    place: Option<u64>,
    quiet: Quiet,
    /// Its priority, least and most; `None` before it asked.
    terms: Option<(i32, u32, u32)>,
}

/// How often one that has less than it asks for was refused, and until when it does not ask again.
#[derive(Clone, Copy, Debug, Default)]
struct Quiet {
    refusals: u32,
    until: Time,
}

impl Quiet {
    fn refused(&mut self, at: Time) {
        if at >= self.until {
            let wait = BACK_OFF.saturating_mul(1 << self.refusals.min(16)).min(LONGEST);
            self.until = at + wait;
            self.refusals += 1;
        }
    }
}

impl Queue {
    /// With preemption by priority, or strictly in the order in which they asked.
    #[must_use]
    pub(super) fn new(priority: bool) -> Queue {
        Queue { priority, held: BTreeMap::new(), turn: 0 }
    }

    /// Whether somebody asks on other terms than before, as after another configuration.
    fn take_terms(&mut self, requests: &[Request]) -> bool {
        let mut others = false;
        for request in requests {
            let terms = (request.priority, request.least, request.most);
            let held = self.held.entry(request.id.clone()).or_default();
            others |= held.terms.replace(terms).is_some_and(|before| before != terms);
        }
        others
    }

    /// Who has more than is guaranteed: the least important first, of equal ones the last to come.
    fn givers(&self, requests: &[Request]) -> Vec<usize> {
        let held = |i: usize| self.held.get(&requests[i].id);
        let gives = |i: &usize| held(*i).is_some_and(|held| held.pcpus > requests[*i].sure());
        let mut givers: Vec<usize> = (0..requests.len()).filter(gives).collect();
        let came = |i: usize| held(i).and_then(|held| held.came);
        givers.sort_by_key(|&i| (requests[i].priority, std::cmp::Reverse(came(i))));
        givers
    }

    /// Takes what is missing from those of them that are less important, never below what is guaranteed. Returns what was taken.
    fn preempt(
        &mut self,
        missing: u32,
        by: usize,
        (requests, givers): (&[Request], &[usize]),
        room: &mut Room,
        hit: &mut [bool],
    ) -> u32 {
        let than = requests[by].priority;
        let mut taken = 0;
        for &i in givers.iter().take_while(|i| requests[**i].priority < than) {
            let Some(held) = self.held.get_mut(&requests[i].id) else { continue };
            while taken < missing && held.pcpus > requests[i].sure() && room.passes_on(i, by) {
                held.pcpus -= 1;
                hit[i] = true;
                taken += 1;
            }
        }
        taken
    }

    /// What everybody has still, the first to come first: what is guaranteed, then what he held. The others lose what there is no
    /// room for any more; `claimed`: for somebody wants what he is guaranteed.
    fn keep(&mut self, requests: &[Request], room: &mut Room, claimed: bool, hit: &mut [bool]) {
        let mut order: Vec<usize> = (0..requests.len()).collect();
        order.sort_by_key(|&i| self.held.get(&requests[i].id).and_then(|held| held.came));
        for &i in &order {
            room.take(i, requests[i].sure());
        }
        for &i in &order {
            let Some(held) = self.held.get_mut(&requests[i].id) else { continue };
            let more = held.pcpus.saturating_sub(requests[i].sure());
            let kept = room.take(i, more);
            if kept < more {
                // Who is less important may have it now.
                held.quiet = Quiet::default();
            }
            held.pcpus -= more - kept;
            hit[i] |= claimed && kept < more;
        }
    }
}

impl Arbitrate for Queue {
    fn grant(&mut self, requests: &[Request], room: &mut Room, at: Time) -> Vec<Grant> {
        let before: u32 = self.held.values().map(|held| held.pcpus).sum();
        let here: BTreeSet<&VmId> = requests.iter().map(|request| &request.id).collect();
        for (_, held) in self.held.iter_mut().filter(|(id, _)| !here.contains(id)) {
            *held = Held { pcpus: 0, place: held.place.or(held.came), quiet: Quiet::default(), ..*held };
        }
        // What nobody wants any more is given back; what is guaranteed comes first.
        let mut claimed = false;
        for request in requests {
            let held = self.held.entry(request.id.clone()).or_default();
            let came = request.wanted() > 0;
            held.came = came.then(|| held.came.unwrap_or(self.turn));
            claimed |= held.pcpus < request.sure();
            held.pcpus = held.pcpus.clamp(request.sure(), request.wanted());
            if request.wanted() > held.pcpus && held.place.is_none() {
                held.place = Some(self.turn);
            }
            self.turn += 1;
        }
        let after: u32 = self.held.values().map(|held| held.pcpus).sum();
        let released = after < before;
        let others = self.take_terms(requests);
        let mut hit = vec![false; requests.len()];
        self.keep(requests, room, claimed, &mut hit);
        let place = |queue: &Queue, i: usize| {
            queue.held.get(&requests[i].id).and_then(|held| held.place).unwrap_or(u64::MAX)
        };
        let mut order: Vec<usize> = (0..requests.len()).collect();
        order.sort_by_key(|&i| {
            (if self.priority { -i64::from(requests[i].priority) } else { 0 }, place(self, i))
        });
        // The more important come first, so that nobody who is served is to give that to one who comes later.
        let givers = self.givers(requests);
        for i in order {
            let request = &requests[i];
            let held = self.held.get(&request.id).copied().unwrap_or_default();
            let missing = request.wanted().saturating_sub(held.pcpus);
            let mut quiet = held.quiet;
            if missing == 0 {
                let done = Held { place: None, quiet: Quiet::default(), ..held };
                self.held.insert(request.id.clone(), done);
                continue;
            }
            if others {
                quiet = Quiet { refusals: 0, until: at };
            }
            let mut given = room.take(i, missing);
            if at < quiet.until && !released && given == 0 {
                continue; // it does not ask again yet
            }
            if self.priority && given < missing {
                given += self.preempt(missing - given, i, (requests, &givers), room, &mut hit);
            }
            let mut place = held.place;
            if given < missing {
                quiet.refused(at);
            } else {
                (quiet, place) = (Quiet::default(), None);
            }
            self.held.insert(request.id.clone(), Held { pcpus: held.pcpus + given, place, quiet, ..held });
        }
        let grant = |(i, request): (usize, &Request)| {
            let held = self.held.get(&request.id).copied().unwrap_or_default();
            Grant { pcpus: held.pcpus, preempted: hit[i] }
        };
        requests.iter().enumerate().map(grant).collect()
    }

    fn forget(&mut self, is_there: &dyn Fn(&VmId) -> bool) {
        self.held.retain(|id, _| is_there(id));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::CpuSet;

    /// Of so many pCPUs that all may use.
    pub(in super::super) fn grant(
        arbiter: &mut dyn Arbitrate,
        requests: &[Request],
        pcpus: u32,
        at: Time,
    ) -> Vec<Grant> {
        let all = CpuSet::first(pcpus);
        let mut room = Room::new(requests.iter().map(|_| &all), &all, &[]);
        arbiter.grant(requests, &mut room, at)
    }

    pub(in super::super) fn ask(id: &str, wants: u32, priority: i32) -> Request {
        Request { id: VmId(id.into()), wants, least: 1, most: 8, priority }
    }

    pub(in super::super) fn at(s: u64) -> Time {
        Time(s * 1_000_000_000)
    }

    pub(in super::super) fn pcpus(grants: &[Grant]) -> Vec<u32> {
        grants.iter().map(|grant| grant.pcpus).collect()
    }

    #[test]
    fn the_first_to_come_is_served_first_and_keeps_it() {
        let mut queue = Queue::new(false);
        assert_eq!(
            pcpus(&grant(&mut queue, &[ask("a", 1, 0), ask("b", 4, 0), ask("c", 1, 9)], 6, at(0))),
            [1, 4, 1]
        );
        assert_eq!(
            pcpus(&grant(&mut queue, &[ask("a", 4, 0), ask("b", 4, 0), ask("c", 4, 9)], 6, at(1))),
            [1, 4, 1]
        );
        // b gives back; a asked before c.
        assert_eq!(
            pcpus(&grant(&mut queue, &[ask("a", 4, 0), ask("b", 1, 0), ask("c", 4, 9)], 6, at(2))),
            [4, 1, 1]
        );
    }

    #[test]
    fn the_more_important_take_from_the_less_important_but_not_what_is_guaranteed() {
        let mut queue = Queue::new(true);
        grant(&mut queue, &[ask("a", 1, 1), ask("b", 4, 0), ask("c", 1, 0)], 6, at(0));
        let grants = grant(&mut queue, &[ask("a", 4, 1), ask("b", 4, 0), ask("c", 4, 0)], 6, at(1));
        assert_eq!(pcpus(&grants), [4, 1, 1]);
        assert!(grants[1].preempted && !grants[0].preempted);
    }

    #[test]
    fn who_loses_what_there_is_no_room_for_takes_it_back_from_less_important_ones_though_it_backs_off() {
        let all = [CpuSet::first(8), CpuSet::first(4), CpuSet::first(4)];
        let asked = [ask("m", 4, 0), ask("l", 2, 0), ask("a", 4, 1)];
        let mut queue = Queue::new(true);
        let mut given = |vms: usize, pcpus: &str, s: u64| {
            let pcpus = pcpus.parse().unwrap();
            let mut room = Room::new(&all[..vms], &pcpus, &[]);
            super::tests::pcpus(&queue.grant(&asked[..vms], &mut room, at(s)))
        };
        for vms in 1..=3 {
            given(vms, "0-7", vms as u64);
        }
        // It is refused, and backs off for longer and longer.
        for s in 4..40 {
            assert_eq!(given(3, "0-7", s), [4, 1, 3]);
        }
        assert_eq!(given(3, "0-3,6-7", 40), [2, 1, 3]);
    }

    #[test]
    fn of_equally_important_ones_the_last_to_come_gives_way_first() {
        let mut queue = Queue::new(true);
        grant(&mut queue, &[ask("a", 1, 1), ask("b", 2, 0)], 6, at(0));
        grant(&mut queue, &[ask("a", 1, 1), ask("b", 2, 0), ask("c", 3, 0)], 6, at(1));
        let later = grant(&mut queue, &[ask("b", 2, 0), ask("c", 3, 0), ask("a", 3, 1)], 6, at(2));
        assert_eq!(pcpus(&later), [2, 1, 3], "c came last");
    }

    /// A VM is there before it wants anything.
    #[test]
    fn who_asked_for_nothing_so_far_comes_when_it_asks() {
        let mut queue = Queue::new(true);
        grant(&mut queue, &[ask("late", 0, 0), ask("early", 3, 0), ask("a", 0, 1)], 8, at(0));
        grant(&mut queue, &[ask("late", 3, 0), ask("early", 3, 0), ask("a", 0, 1)], 8, at(1));
        let then = grant(&mut queue, &[ask("late", 3, 0), ask("early", 3, 0), ask("a", 4, 1)], 8, at(2));
        assert_eq!(pcpus(&then), [1, 3, 4]);
    }

    #[test]
    fn who_pauses_gives_back_what_it_has_and_asks_again_where_it_stood() {
        let ends = |forgotten: bool| {
            let mut queue = Queue::new(false);
            let [a, b, c] = [ask("a", 5, 0), ask("b", 3, 0), ask("c", 8, 0)];
            let all = [a, b, c];
            assert_eq!(pcpus(&grant(&mut queue, &all, 7, at(0))), [5, 1, 1]);
            assert_eq!(pcpus(&grant(&mut queue, &all[1..], 7, at(10))), [3, 4]);
            queue.forget(&|id| !forgotten || id.0 != "a");
            assert_eq!(pcpus(&grant(&mut queue, &all, 7, at(12))), [1, 3, 3]);
            let [a, _, c] = all;
            pcpus(&grant(&mut queue, &[a, ask("b", 1, 0), c], 7, at(20)))
        };
        assert_eq!(ends(false), [3, 1, 3]);
        assert_eq!(ends(true), [1, 1, 5], "it was gone, and came last");
    }

    #[test]
    fn who_is_refused_is_quiet_until_somebody_gives_back() {
        let mut queue = Queue::new(false);
        grant(&mut queue, &[ask("a", 5, 0), ask("b", 1, 0)], 6, at(0));
        let hungry = [ask("a", 5, 0), ask("b", 3, 0)];
        assert_eq!(pcpus(&grant(&mut queue, &hungry, 6, at(1))), [5, 1]);
        assert!(queue.held[&VmId("b".into())].quiet.until > at(1));
        let grants = grant(&mut queue, &[ask("a", 2, 0), ask("b", 3, 0)], 6, at(41));
        assert_eq!(pcpus(&grants), [2, 3], "served at once");
    }

    /// A configuration that is read again.
    #[test]
    fn who_is_quiet_asks_again_at_once_on_other_terms() {
        let refused = || {
            let mut queue = Queue::new(true);
            grant(&mut queue, &[ask("a", 5, 0), ask("b", 1, 0)], 6, at(0));
            for s in 1..40 {
                assert_eq!(pcpus(&grant(&mut queue, &[ask("a", 5, 0), ask("b", 5, 0)], 6, at(s))), [5, 1]);
            }
            queue
        };
        assert_eq!(pcpus(&grant(&mut refused(), &[ask("a", 5, 0), ask("b", 5, 1)], 6, at(40))), [1, 5]);
        assert_eq!(pcpus(&grant(&mut refused(), &[ask("a", 5, -1), ask("b", 5, 0)], 6, at(40))), [1, 5]);
        let mut queue = refused();
        let least = |least| Request { least, ..ask("b", 5, 0) };
        grant(&mut queue, &[ask("a", 5, 0), least(2)], 6, at(40));
        assert_eq!(queue.held[&VmId("b".into())].quiet.until, at(42), "it was refused anew");
    }

    /// Any sequence of requests: never more than there is, never below a guarantee that fits, never more than asked.
    #[test]
    fn whatever_is_asked_the_division_is_sound() {
        let mut seed = 7_u64;
        let mut random = move |n: u32| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            u32::try_from(seed >> 33).unwrap() % n
        };
        let mut lacked = 0;
        for _ in 0..200 {
            let mut all: Vec<Box<dyn Arbitrate>> = vec![
                Box::new(Queue::new(false)),
                Box::new(Queue::new(true)),
                Box::new(MaxMin::new(Duration::from_secs(3))),
            ];
            for step in 0..20 {
                let count = 1 + random(5);
                let requests: Vec<Request> = (0..count)
                    .map(|i| Request {
                        id: VmId(i.to_string()),
                        wants: random(9),
                        least: 1 + random(3),
                        most: 1 + random(8),
                        priority: random(3).cast_signed(),
                    })
                    .collect();
                let pcpus = CpuSet::first(count + random(8));
                let half = CpuSet::first(count);
                let sets = [pcpus.clone(), half.clone(), pcpus.difference(&half).union(&CpuSet::first(1))];
                let own: Vec<CpuSet> = (0..count).map(|_| sets[random(3) as usize].clone()).collect();
                let all_of = |pcpus: &[u32]| -> Vec<(&CpuSet, f64)> {
                    own.iter().zip(pcpus).map(|(own, pcpus)| (own, f64::from(*pcpus))).collect()
                };
                let sure: Vec<u32> = requests.iter().map(Request::sure).collect();
                let fits = Room::lacks(all_of(&sure), &pcpus).is_none();
                lacked += u32::from(!fits);
                for arbiter in &mut all {
                    let grants = arbiter.grant(&requests, &mut Room::new(&own, &pcpus, &[]), at(step));
                    for (grant, request) in grants.iter().zip(&requests) {
                        assert!(
                            (request.sure()..=request.wanted()).contains(&grant.pcpus),
                            "{request:?}: {grant:?}"
                        );
                    }
                    if !fits {
                        continue;
                    }
                    let given = tests::pcpus(&grants);
                    assert_eq!(Room::lacks(all_of(&given), &pcpus), None, "{arbiter:?}");
                    let mut room = Room::new(&own, &pcpus, &[]);
                    given.iter().enumerate().for_each(|(i, given)| assert_eq!(room.take(i, *given), *given));
                    let hungry = |i: &usize| given[*i] < requests[*i].wanted();
                    let served = (0..given.len()).filter(hungry).any(|i| room.take(i, 1) == 1);
                    assert!(!served, "work is left and so are pCPUs: {arbiter:?}");
                }
            }
        }
        assert!((500..3_500).contains(&lacked), "{lacked} of 4,000 times");
    }
}
