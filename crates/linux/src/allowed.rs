//! The CPUs that a program may use, whatever it binds its threads to.
//!
//! Who binds a program from outside (`taskset -a`, a cpuset, whoever executes it) gives one mask to all its threads. A
//! program that binds its threads itself gives them different ones: those of today's few threads say nothing of what
//! others would find.

use corefit_core::CpuSet;

use crate::affinity::Mask;

/// Follows one process from look to look.
#[derive(Default)]
pub(crate) struct Allowed {
    /// What it could use when it was bound from outside, and has used since.
    known: Option<Mask>,
    /// The main thread's mask at the last two looks: who binds all threads does so one by one.
    main: [Option<Mask>; 2],
    /// Whether that is more than what the main thread may use.
    pub(crate) apart: bool,
}

impl Allowed {
    /// What it may use: by the masks of its main thread and of its `others`, and by our `own`, without the CPUs that are gone.
    pub(crate) fn look(&mut self, main: Mask, others: impl Iterator<Item = Mask>, own: &Mask) -> CpuSet {
        let (mut used, mut same, mut alone) = (main.clone(), true, true);
        for mask in others {
            (same, alone) = (same && mask == main, false);
            used = used.or(&mask);
        }
        let [before, last] = std::mem::take(&mut self.main);
        let changed = |then: &Option<Mask>| then.as_ref() != Some(&main);
        let known = match self.known.take() {
            // A main thread that was bound before may be all that is left, but for one that inherited its mask.
            Some(known) if !same || !changed(&last) && (alone || !changed(&before)) => known.or(&used),
            _ => used.clone(),
        };
        let allowed = known.and(own).or(&used);
        self.apart = allowed != main;
        (self.known, self.main) = (Some(known), [last, Some(main)]);
        allowed.cpus()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corefit_core::CpuId;

    fn mask(cpus: &[u32]) -> Mask {
        Mask::from(&set(cpus))
    }

    fn set(cpus: &[u32]) -> CpuSet {
        cpus.iter().copied().map(CpuId).collect()
    }

    /// One look after the other at masks of all threads, the main thread's first: what is allowed then.
    fn looks(of: &[&[&[u32]]]) -> Vec<CpuSet> {
        let (mut allowed, own) = (Allowed::default(), mask(&[0, 1, 2, 3]));
        let mut look = |masks: &[&[u32]]| {
            let others = masks[1..].iter().map(|cpus| mask(cpus));
            allowed.look(mask(masks[0]), others, &own)
        };
        of.iter().map(|masks| look(masks)).collect()
    }

    const ALL: &[u32] = &[0, 1, 2, 3];

    #[test]
    fn who_binds_its_threads_may_use_what_it_could_before() {
        let alone = [&[0][..]];
        let seen = looks(&[&[ALL], &[&[0], &[1]], &[&[0], &[1]], &alone, &alone, &[&[0], &[0]]]);
        assert_eq!(seen, vec![set(ALL); 6]);
        let seen = looks(&[&[&[0, 1]], &[&[0], &[1]], &alone]);
        assert_eq!(seen, vec![set(&[0, 1]); 3], "not more than it was given");
    }

    #[test]
    fn who_is_bound_from_outside_is_followed_both_ways() {
        let both: &[&[u32]] = &[&[1, 2], &[1, 2]];
        let seen = looks(&[&[ALL, ALL], &[ALL, ALL], &[ALL, ALL], both, both, both, &[ALL, ALL], &[&[0]]]);
        assert_eq!(seen[2..], [ALL, &[1, 2], &[1, 2], &[1, 2], ALL, &[0]].map(set));
        let halfway: &[&[u32]] = &[&[1, 2], ALL];
        assert_eq!(looks(&[&[ALL, ALL], &[ALL, ALL], halfway, both])[2..], [ALL, &[1, 2]].map(set));
        let bound: &[&[u32]] = &[&[0], &[1]];
        assert_eq!(looks(&[&[ALL], bound, bound, both])[3], set(&[1, 2]), "after it had bound itself");
    }

    #[test]
    fn cpus_that_are_gone_are_not_allowed_and_count_again_when_they_are_back() {
        let mut allowed = Allowed::default();
        let bound = || (mask(&[0]), [mask(&[1])].into_iter());
        allowed.look(mask(ALL), [].into_iter(), &mask(ALL));
        for own in [&[0, 1][..], ALL] {
            let (main, others) = bound();
            assert_eq!(allowed.look(main, others, &mask(own)), set(own));
        }
        assert!(allowed.apart);
    }
}
