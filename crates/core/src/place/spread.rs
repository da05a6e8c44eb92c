//! Spreading the threads of one program over cores before their siblings.
//!
//! Two threads on the siblings of one core (SMT threads, or the two cores of a module) share
//! its units, while another core idles: *competing* siblings (Kourai and Nakata 2015, P4,
//! III). A physical machine's own scheduler left 4 of 8 modules competing at 16 threads there.

use crate::{CpuId, CpuSet, Cpus};

/// One core and what it shares with nobody: its sibling CPUs.
pub type Core = CpuSet;

/// The CPUs that a team of `threads` should keep to: one of each core while there are cores
/// enough, else all that are allowed (then siblings have to be shared anyway).
///
/// Of each core the CPU least used by others is taken (`used` gives CPUs' use from 0 to 1),
/// the lower number on a tie.
pub fn spread(cores: &[Core], allowed: &CpuSet, threads: u32, used: impl Fn(CpuId) -> Cpus) -> CpuSet {
    let one_each: CpuSet = cores
        .iter()
        .filter_map(|core| {
            core.intersection(allowed).iter().min_by(|a, b| used(*a).0.total_cmp(&used(*b).0).then(a.cmp(b)))
        })
        .collect();
    if usize::try_from(threads).is_ok_and(|n| n <= one_each.len()) { one_each } else { allowed.clone() }
}

/// Cores of which at least two CPUs are in `busy`: the competing ones.
#[must_use]
pub fn competing(cores: &[Core], busy: &CpuSet) -> usize {
    cores.iter().filter(|core| core.intersection(busy).len() > 1).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores(lists: &[&str]) -> Vec<Core> {
        lists.iter().map(|l| l.parse().unwrap()).collect()
    }

    fn idle(_: CpuId) -> Cpus {
        Cpus(0.0)
    }

    #[test]
    fn a_team_that_fits_gets_one_cpu_of_each_core() {
        let cores = cores(&["0,4", "1,5", "2,6", "3,7"]);
        let all = CpuSet::first(8);
        for threads in 1..=4 {
            let set = spread(&cores, &all, threads, idle);
            assert_eq!(set.to_string(), "0-3");
            assert_eq!(competing(&cores, &set), 0);
        }
        assert_eq!(spread(&cores, &all, 5, idle), all);
    }

    #[test]
    fn the_sibling_that_others_leave_alone_is_taken() {
        let cores = cores(&["0-1", "2-3"]);
        let set = spread(&cores, &CpuSet::first(4), 2, |c| Cpus(if c == CpuId(0) { 0.9 } else { 0.1 }));
        assert_eq!(set.to_string(), "1-2");
    }

    #[test]
    fn cpus_that_are_not_allowed_are_never_taken() {
        let cores = cores(&["0-1", "2-3", "4-5"]);
        let allowed: CpuSet = "1-3".parse().unwrap();
        assert_eq!(spread(&cores, &allowed, 2, idle).to_string(), "1-2");
        assert_eq!(spread(&cores, &allowed, 3, idle), allowed);
    }
}
