//! Whether each vCPU can have a seat of its own: a pCPU, or a whole core.
//!
//! A largest matching of vCPUs with seats (Kuhn's augmenting paths). Where one is left over, Hall's
//! theorem gives the proof: the vCPUs that an alternating path reaches from it share fewer seats
//! among them than they are. These are what is reported.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::CpuSet;

/// vCPUs that are more than the seats that they may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Crowd {
    /// By their numbers in the list given, in order.
    pub(super) guests: Vec<usize>,
    /// Likewise; fewer.
    pub(super) seats: Vec<usize>,
}

/// The crowds among guests with these sets of pCPUs, each of which has `seats`.
pub(super) fn crowds_of(sets: &[&CpuSet], seats: impl Fn(&CpuSet) -> Vec<usize>) -> Vec<Crowd> {
    let mut lists: BTreeMap<&CpuSet, Rc<[usize]>> = BTreeMap::new();
    let list = |set| Rc::clone(lists.entry(set).or_insert_with_key(|set| seats(set).into()));
    let may: Vec<Rc<[usize]>> = sets.iter().copied().map(list).collect();
    let many = may.iter().flat_map(|list| list.iter()).max().map_or(0, |seat| seat + 1);
    crowds(&may, many)
}

/// The crowds among guests of which each may use some of `seats` seats: none of them shares a guest or a
/// seat with another. Empty if each guest can have a seat of its own.
fn crowds<L: AsRef<[usize]>>(may: &[L], seats: usize) -> Vec<Crowd> {
    let mut taken: Vec<Option<usize>> = vec![None; seats];
    // Seats from which no path leads to a free one: none ever will, as paths only move guests among seats.
    let mut dead = vec![false; seats];
    let left: Vec<usize> = (0..may.len()).filter(|guest| !seat(*guest, may, &mut taken, &mut dead)).collect();
    let mut parts = Parts { of_seat: vec![None; seats], joined: Vec::new() };
    for &guest in &left {
        parts.reach(guest, may, &taken);
    }
    let mut found: Vec<Crowd> = vec![Crowd { guests: Vec::new(), seats: Vec::new() }; parts.joined.len()];
    for (seat, holder) in taken.iter().enumerate() {
        if let Some(part) = parts.of_seat[seat].map(|part| parts.root(part)) {
            found[part].seats.push(seat);
            found[part].guests.extend(holder);
        }
    }
    for guest in left {
        // Who may use no seat at all is a crowd alone.
        let part = may[guest].as_ref().first().and_then(|seat| parts.of_seat[*seat]);
        match part.map(|part| parts.root(part)) {
            Some(part) => found[part].guests.push(guest),
            None => found.push(Crowd { guests: vec![guest], seats: Vec::new() }),
        }
    }
    found.retain(|crowd| !crowd.guests.is_empty());
    found.iter_mut().for_each(|crowd| crowd.guests.sort_unstable());
    found.sort_by(|a, b| a.guests.cmp(&b.guests));
    found
}

/// Finds a seat for a guest, others moving if need be; without recursion, as there may be thousands.
fn seat<L: AsRef<[usize]>>(guest: usize, may: &[L], taken: &mut [Option<usize>], dead: &mut [bool]) -> bool {
    let mut tried = Vec::new();
    // Guests that look for another seat, how far each has looked, and the seat that it tries.
    let mut path: Vec<(usize, usize)> = vec![(guest, 0)];
    while let Some((who, next)) = path.last_mut() {
        let list = may[*who].as_ref();
        if *next == 0
            && let Some(at) = list.iter().position(|seat| taken[*seat].is_none())
        {
            *next = at + 1;
            for (who, next) in path.into_iter().rev() {
                taken[may[who].as_ref()[next - 1]] = Some(who);
            }
            tried.into_iter().for_each(|seat: usize| dead[seat] = false);
            return true;
        }
        let Some(&wish) = list.get(*next) else {
            path.pop();
            continue;
        };
        *next += 1;
        if std::mem::replace(&mut dead[wish], true) {
            continue;
        }
        tried.push(wish);
        path.extend(taken[wish].map(|other| (other, 0)));
    }
    false
}

/// Which seats can be reached from guests that are left over, in parts that grow together where they meet.
struct Parts {
    of_seat: Vec<Option<usize>>,
    /// The part that a part was joined to; itself if none.
    joined: Vec<usize>,
}

impl Parts {
    fn root(&self, mut part: usize) -> usize {
        while self.joined[part] != part {
            part = self.joined[part];
        }
        part
    }

    fn reach<L: AsRef<[usize]>>(&mut self, guest: usize, may: &[L], taken: &[Option<usize>]) {
        let own = self.joined.len();
        self.joined.push(own);
        let mut next = vec![guest];
        while let Some(guest) = next.pop() {
            for &wish in may[guest].as_ref() {
                match self.of_seat[wish] {
                    Some(part) => {
                        let (part, own) = (self.root(part), self.root(own));
                        let (low, high) = (part.min(own), part.max(own));
                        self.joined[high] = low;
                    }
                    None => {
                        self.of_seat[wish] = Some(own);
                        // Without a guest on it, a path would have given the guest left over a seat.
                        next.extend(taken[wish]);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    #[test]
    fn two_on_one_seat_are_a_crowd_and_nobody_else() {
        let may = vec![vec![0], vec![1, 2], vec![0], vec![1, 2]];
        assert_eq!(crowds(&may, 3), [Crowd { guests: vec![0, 2], seats: vec![0] }]);
    }

    #[test]
    fn a_guest_moves_on_where_that_makes_room() {
        assert!(crowds(&[vec![0, 1], vec![0], vec![1, 2]], 3).is_empty());
    }

    #[test]
    fn crowds_apart_are_told_apart_and_one_crowd_once() {
        let may = vec![vec![0], vec![0], vec![0], vec![1, 2], vec![1, 2], vec![1, 2], vec![3]];
        let expected = [
            Crowd { guests: vec![0, 1, 2], seats: vec![0] },
            Crowd { guests: vec![3, 4, 5], seats: vec![1, 2] },
        ];
        assert_eq!(crowds(&may, 4), expected);
    }

    /// Every subset of guests of small cases, counted out: a crowd is reported exactly if some subset has
    /// fewer seats than members, and every crowd reported is such a subset.
    #[test]
    fn agrees_with_counting_out_all_subsets() {
        let mut random = Random(1);
        for _ in 0..2000 {
            let (guests, seats) = (1 + random.below(6), 1 + random.below(5));
            let may: Vec<Vec<usize>> = (0..guests)
                .map(|_| {
                    let mask = 1 + random.below((1 << seats) - 1);
                    (0..5).filter(|s| mask >> s & 1 == 1).collect()
                })
                .collect();
            let seats_of = |members: &[usize]| {
                let mut all: Vec<usize> = members.iter().flat_map(|g| may[*g].clone()).collect();
                all.sort_unstable();
                all.dedup();
                all
            };
            let crowded = (1u32..1 << guests).any(|mask| {
                let members: Vec<usize> = (0..may.len()).filter(|g| mask >> g & 1 == 1).collect();
                seats_of(&members).len() < members.len()
            });
            let found = crowds(&may, 5);
            assert_eq!(crowded, !found.is_empty(), "{may:?}");
            for crowd in found {
                assert!(crowd.guests.len() > crowd.seats.len(), "{may:?}: {crowd:?}");
                assert_eq!(seats_of(&crowd.guests), crowd.seats, "{may:?}");
            }
        }
    }
}
