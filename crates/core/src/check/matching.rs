//! Whether each vCPU can have a seat of its own: a pCPU, or a whole core.
//!
//! A largest matching of vCPUs with seats (Kuhn's augmenting paths). Where one is left over, Hall's
//! theorem gives the proof: the vCPUs that an alternating path reaches from it share fewer seats
//! among them than they are. These are what is reported.

/// vCPUs that are more than the seats that they may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Crowd {
    /// By their numbers in the list given, in order.
    pub(super) guests: Vec<usize>,
    /// Likewise; fewer.
    pub(super) seats: Vec<usize>,
}

/// The crowds among guests of which each may use some of `seats` seats: none of them shares a guest or a
/// seat with another. Empty if each guest can have a seat of its own.
pub(super) fn crowds(may: &[Vec<usize>], seats: usize) -> Vec<Crowd> {
    let mut taken: Vec<Option<usize>> = vec![None; seats];
    let mut left = Vec::new();
    for guest in 0..may.len() {
        let mut tried = vec![false; seats];
        if !seat(guest, may, &mut taken, &mut tried) {
            left.push(guest);
        }
    }
    let mut found: Vec<Crowd> = Vec::new();
    for guest in left {
        if found.iter().any(|crowd| crowd.guests.contains(&guest)) {
            continue;
        }
        let mut crowd = reached(guest, may, &taken);
        let (shared, apart) =
            found.into_iter().partition(|other| other.seats.iter().any(|s| crowd.seats.contains(s)));
        found = apart;
        let shared: Vec<Crowd> = shared;
        shared.into_iter().for_each(|other| crowd.join(other));
        found.push(crowd);
    }
    found.sort_by(|a, b| a.guests.cmp(&b.guests));
    found
}

impl Crowd {
    fn join(&mut self, other: Crowd) {
        self.guests.extend(other.guests);
        self.seats.extend(other.seats);
        for list in [&mut self.guests, &mut self.seats] {
            list.sort_unstable();
            list.dedup();
        }
    }
}

/// Finds a seat for a guest, others moving if need be; without recursion, as there may be thousands.
fn seat(guest: usize, may: &[Vec<usize>], taken: &mut [Option<usize>], tried: &mut [bool]) -> bool {
    if let Some(&free) = may[guest].iter().find(|seat| taken[**seat].is_none()) {
        taken[free] = Some(guest);
        return true;
    }
    // Guests that look for another seat, how far each has looked, and the seat that it tries.
    let mut path: Vec<(usize, usize)> = vec![(guest, 0)];
    while let Some((who, next)) = path.last_mut() {
        let Some(&wish) = may[*who].get(*next) else {
            path.pop();
            continue;
        };
        *next += 1;
        if std::mem::replace(&mut tried[wish], true) {
            continue;
        }
        match taken[wish] {
            Some(other) => path.push((other, 0)),
            None => {
                for (who, next) in path.into_iter().rev() {
                    taken[may[who][next - 1]] = Some(who);
                }
                return true;
            }
        }
    }
    false
}

fn reached(guest: usize, may: &[Vec<usize>], taken: &[Option<usize>]) -> Crowd {
    let mut crowd = Crowd { guests: vec![guest], seats: Vec::new() };
    let mut next = 0;
    while next < crowd.guests.len() {
        for &wish in &may[crowd.guests[next]] {
            if !crowd.seats.contains(&wish) {
                crowd.seats.push(wish);
                // Without a guest on it, the path would have given the first one a seat.
                crowd.guests.extend(taken[wish].filter(|other| !crowd.guests.contains(other)));
            }
        }
        next += 1;
    }
    crowd.guests.sort_unstable();
    crowd.seats.sort_unstable();
    crowd
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut state = 1u64;
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        for _ in 0..2000 {
            let (guests, seats) = (1 + random(6), 1 + random(5));
            let may: Vec<Vec<usize>> = (0..guests)
                .map(|_| {
                    let mask = 1 + random((1 << seats) - 1);
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
