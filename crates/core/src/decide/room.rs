//! Room for whole pCPUs that are granted: of those that each VM may use, with everybody moved to where others cannot be.
//!
//! Example: two VMs, one on pCPUs 0-1, one on any of four. Each may have three only if the second has two; if the second
//! had 0-1 first, it is moved to 2-3 when the first asks.

use std::collections::BTreeMap;

use crate::CpuSet;
use crate::units::count;

/// With more different sets than so many only their union counts; ours.
const MOST: usize = 64;

/// What is left, and who has what.
#[derive(Debug)]
pub(super) struct Room {
    /// Which of the kinds each request is of.
    kind_of: Vec<usize>,
    kinds: Vec<Kind>,
    classes: Vec<Class>,
}

/// Those that may use the same pCPUs.
#[derive(Debug)]
struct Kind {
    may: CpuSet,
    /// The classes that it may use, and pCPUs of each that it has.
    has: Vec<(usize, u32)>,
}

/// pCPUs that the same kinds may use.
#[derive(Debug)]
struct Class {
    free: u32,
    /// Which, and where this class is in theirs.
    kinds: Vec<(usize, usize)>,
}

impl Room {
    /// For requests of which each may use such a set of these pCPUs, in their order; `others`: pCPUs that others use, and
    /// where, as parts of one too.
    #[must_use]
    pub(super) fn new<'a>(
        requests: impl IntoIterator<Item = &'a CpuSet>,
        pcpus: &CpuSet,
        others: &[(CpuSet, f64)],
    ) -> Room {
        let mut sets: BTreeMap<CpuSet, usize> = BTreeMap::new();
        let mut kind = |set: &CpuSet| {
            let own = set.intersection(pcpus);
            let next = sets.len();
            *sets.entry(own).or_insert(next)
        };
        let mut kind_of: Vec<usize> = requests.into_iter().map(&mut kind).collect();
        let mut taken: BTreeMap<usize, f64> = BTreeMap::new();
        for (set, part) in others {
            *taken.entry(kind(set)).or_default() += part;
        }
        let mut may = vec![CpuSet::default(); sets.len()];
        sets.into_iter().for_each(|(set, kind)| may[kind] = set);
        if may.len() > MOST {
            kind_of.fill(0);
            taken = BTreeMap::from([(0, taken.into_values().sum())]);
            may = vec![may.iter().fold(CpuSet::default(), |all, set| all.union(set))];
        }
        let mut room = Room { kind_of, kinds: Vec::new(), classes: classes(&may) };
        room.kinds = may.into_iter().map(|may| Kind { may, has: Vec::new() }).collect();
        for (number, class) in room.classes.iter_mut().enumerate() {
            for (kind, place) in &mut class.kinds {
                *place = room.kinds[*kind].has.len();
                room.kinds[*kind].has.push((number, 0));
            }
        }
        for (kind, part) in taken {
            let size = room.kinds[kind].may.len();
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "at most a number of pCPUs"
            )]
            let part = part.clamp(0.0, count(size)).round() as u32;
            room.take_kind(kind, part);
        }
        room
    }

    /// pCPUs of which all that is to be had of them cannot be, with everybody moved to where others cannot be, and of which those that may use
    /// others need none: whole pCPUs of all, of one set also parts.
    pub(super) fn lacks<'a>(
        parts: impl IntoIterator<Item = (&'a CpuSet, f64)>,
        pcpus: &CpuSet,
    ) -> Option<CpuSet> {
        let mut sets: BTreeMap<&CpuSet, f64> = BTreeMap::new();
        for (set, part) in parts {
            *sets.entry(set).or_default() += part;
        }
        let mut room = Room::new(sets.keys().copied(), pcpus, &[]);
        let mut lacks = CpuSet::default();
        for (i, part) in sets.into_values().enumerate() {
            let kind = room.kind_of[i];
            let size = room.kinds[kind].may.len();
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "at most a number of pCPUs"
            )]
            let whole = (part + 1e-9).clamp(0.0, count(size)).floor() as u32;
            let lacks_some = room.take_kind(kind, whole) < whole || part > count(size) + 1e-9;
            let full = if lacks_some { room.move_others(kind).err().unwrap_or_default() } else { Vec::new() };
            let full = room.kinds.iter().zip(full).filter(|(_, full)| *full);
            lacks = full.fold(lacks, |all, (kind, _)| all.union(&kind.may));
        }
        (!lacks.is_empty()).then_some(lacks)
    }

    /// Gives a request up to so many pCPUs more, and returns how many there were.
    pub(super) fn take(&mut self, request: usize, pcpus: u32) -> u32 {
        self.take_kind(self.kind_of[request], pcpus)
    }

    /// A request gives one back, if somebody else can have one more by that: whether it did.
    pub(super) fn passes_on(&mut self, from: usize, to: usize) -> bool {
        let from = self.kind_of[from];
        let places = self.kinds[from].has.len();
        for place in 0..places {
            let (class, has) = self.kinds[from].has[place];
            if has == 0 {
                continue;
            }
            self.kinds[from].has[place].1 -= 1;
            self.classes[class].free += 1;
            if self.take(to, 1) == 1 {
                return true;
            }
            self.kinds[from].has[place].1 += 1;
            self.classes[class].free -= 1;
        }
        false
    }

    fn take_kind(&mut self, kind: usize, pcpus: u32) -> u32 {
        let mut taken = 0;
        while taken < pcpus {
            // Most often there is some of its own.
            let own = self.kinds[kind].has.iter_mut().find(|(class, _)| self.classes[*class].free > 0);
            if let Some((class, has)) = own {
                let some = self.classes[*class].free.min(pcpus - taken);
                self.classes[*class].free -= some;
                *has += some;
                taken += some;
            } else if self.move_others(kind).is_ok() {
                taken += 1;
            } else {
                break;
            }
        }
        taken
    }

    /// Finds a pCPU for one of a kind where others have all: they move on to classes with free ones, over as many others as it
    /// takes (an augmenting path; Ford and Fulkerson 1956).
    ///
    /// # Errors
    /// Which kinds have all that it could have so: all of theirs is taken, and nobody else has any of it.
    fn move_others(&mut self, kind: usize) -> Result<(), Vec<bool>> {
        // Of each kind who wants a pCPU of it: that kind, and where the class is in its own.
        let mut asked_by: Vec<Option<(usize, usize, usize)>> = vec![None; self.kinds.len()];
        let mut seen = vec![false; self.kinds.len()];
        seen[kind] = true;
        let mut queue = std::collections::VecDeque::from([kind]);
        while let Some(asker) = queue.pop_front() {
            for place in 0..self.kinds[asker].has.len() {
                let class = self.kinds[asker].has[place].0;
                if self.classes[class].free > 0 {
                    self.classes[class].free -= 1;
                    self.kinds[asker].has[place].1 += 1;
                    let mut now = asker;
                    while let Some((before, gets, gives)) = asked_by[now] {
                        self.kinds[now].has[gives].1 -= 1;
                        self.kinds[before].has[gets].1 += 1;
                        now = before;
                    }
                    return Ok(());
                }
                for &(other, gives) in &self.classes[class].kinds {
                    if !seen[other] && self.kinds[other].has[gives].1 > 0 {
                        seen[other] = true;
                        asked_by[other] = Some((asker, place, gives));
                        queue.push_back(other);
                    }
                }
            }
        }
        Err(seen)
    }
}

/// pCPUs by the sets that they are in; where they are in those is not known yet.
fn classes(may: &[CpuSet]) -> Vec<Class> {
    let mut kinds_of: BTreeMap<crate::CpuId, Vec<usize>> = BTreeMap::new();
    for (kind, set) in may.iter().enumerate() {
        set.iter().for_each(|pcpu| kinds_of.entry(pcpu).or_default().push(kind));
    }
    let mut many: BTreeMap<Vec<usize>, u32> = BTreeMap::new();
    for kinds in kinds_of.into_values() {
        *many.entry(kinds).or_default() += 1;
    }
    let class = |(kinds, free): (Vec<usize>, u32)| Class {
        free,
        kinds: kinds.into_iter().map(|kind| (kind, 0)).collect(),
    };
    many.into_iter().map(class).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sets(lists: &[&str]) -> Vec<CpuSet> {
        lists.iter().map(|list| list.parse().unwrap()).collect()
    }

    #[test]
    fn who_can_go_elsewhere_makes_room() {
        let own = sets(&["0-3", "0-1", "2-5"]);
        let mut room = Room::new(&own, &CpuSet::first(6), &[]);
        assert_eq!(room.take(0, 4), 4);
        assert_eq!(room.take(1, 2), 0, "the first has all of its own");
        let mut room = Room::new(&own, &CpuSet::first(6), &[]);
        assert_eq!((room.take(0, 2), room.take(1, 2), room.take(2, 4)), (2, 2, 2));
        let mut room = Room::new(&own, &CpuSet::first(6), &[]);
        // Over the second set of pCPUs of the first to the third.
        assert_eq!((room.take(2, 2), room.take(0, 2), room.take(1, 2)), (2, 2, 2));
        assert_eq!((room.take(0, 1), room.take(2, 1)), (0, 0), "all six are taken");
    }

    #[test]
    fn what_others_use_is_taken_where_they_use_it() {
        let own = sets(&["0-1", "2-3"]);
        let others = [("2-3".parse().unwrap(), 0.4), ("2-3".parse().unwrap(), 0.4)];
        let mut room = Room::new(&own, &CpuSet::first(4), &others);
        assert_eq!((room.take(0, 2), room.take(1, 2)), (2, 1));
    }

    #[test]
    fn what_is_too_much_of_some_pcpus_is_found_though_others_have_room() {
        let lacks = |parts: &[(&str, f64)]| {
            let own = sets(&parts.iter().map(|(set, _)| *set).collect::<Vec<_>>());
            let parts = own.iter().zip(parts).map(|(own, (_, part))| (own, *part));
            Room::lacks(parts, &CpuSet::first(8)).map(|set| set.to_string())
        };
        assert_eq!(lacks(&[("0-3", 2.0), ("0-3", 2.0), ("0-7", 4.0)]), None);
        assert_eq!(lacks(&[("0-3", 4.0), ("0-3", 4.0), ("0-7", 0.0)]).as_deref(), Some("0-3"));
        assert_eq!(lacks(&[("0-1", 0.5); 4]), None);
        assert_eq!(lacks(&[("0-1", 0.5); 5]).as_deref(), Some("0-1"));
        assert_eq!(lacks(&[("0-1", 2.0), ("1-2", 2.0), ("0-7", 1.0)]).as_deref(), Some("0-2"));
        assert_eq!(
            lacks(&[("0-1", 3.0), ("0-7", 6.0)]).as_deref(),
            Some("0-1"),
            "who may use others has room"
        );
        assert_eq!(lacks(&[("0-1", 3.0), ("0-7", 7.0)]).as_deref(), Some("0-7"));
        assert_eq!(lacks(&[("0-1", 3.0), ("2-5", 2.0), ("6-7", 3.0)]).as_deref(), Some("0-1,6-7"));
    }

    #[test]
    fn only_who_has_what_another_can_use_passes_it_on() {
        let own = sets(&["0-1", "2-3", "0-3"]);
        let mut room = Room::new(&own, &CpuSet::first(4), &[]);
        assert_eq!((room.take(0, 2), room.take(1, 2)), (2, 2));
        assert!(!room.passes_on(1, 0));
        assert!(room.passes_on(1, 2) && room.passes_on(0, 2));
    }

    /// Taking one at a time never fails while there is a way: as many as a maximum flow (here: of all subsets, Hall).
    #[test]
    fn as_much_is_given_as_can_be() {
        let mut seed = 3_u64;
        let mut random = move |n: u32| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            u32::try_from(seed >> 33).unwrap() % n
        };
        for _ in 0..300 {
            let all: Vec<CpuSet> =
                (0..4).map(|_| (0..6).filter(|_| random(2) == 0).map(crate::CpuId).collect()).collect();
            let wants: Vec<u32> = (0..4).map(|_| random(4)).collect();
            let mut room = Room::new(&all, &CpuSet::first(6), &[]);
            let given: u32 = (0..4).map(|i| room.take(i, wants[i])).sum();
            let bound = (0..16_u32).map(|some| {
                let inside = |i: &usize| some & (1 << i) != 0;
                let union = (0..4).filter(inside).fold(CpuSet::default(), |sum, i| sum.union(&all[i]));
                let outside: u32 = (0..4).filter(|i| !inside(i)).map(|i| wants[i]).sum();
                outside + u32::try_from(union.len()).unwrap()
            });
            assert_eq!(Some(given), bound.min(), "{all:?} {wants:?}");
        }
    }
}
