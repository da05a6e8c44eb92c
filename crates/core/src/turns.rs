//! Where sequential work goes next: over all CPUs in turn, on the time scale of the allocation period (P1, IV-B).
//!
//! ```text
//!   CPU time of each thread ──▶ the one that works while all others sleep ──▶ has it had its turn on this CPU?
//!   since the last look                                                           │ yes
//!                                                                                 ▼
//!                                            the CPU on which such work had least, the next one of several
//! ```
//!
//! A virtual CPU gets so much of each period, and loses what it leaves. Fork and join with a sequential part uses up the
//! timeslice of the CPU on which that part runs, while the others keep theirs. Here it is parts that take turns themselves: shorter
//! ones are moved where parallel regions begin (`openmp/src/rotate.rs`). A turn counts in CPU time of the thread,
//! not in time that passes: a CPU that stands still is not given up for it, nor are those that follow.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{CpuId, CpuSet};

/// Of what the busiest thread ran, what the second may have run at most: a thread that helps now and then. Ours.
const SECOND: f64 = 0.2;
/// Turns over which threads are compared. Ours.
const WINDOW: f64 = 4.0;
/// How far CPUs may be apart, in turns, before it is forgotten: what was long ago is made up for no more. Ours.
const OWED: u32 = 2;

/// Who works alone, and where that work has been.
#[derive(Debug)]
pub struct Turns {
    turn: Duration,
    threads: BTreeMap<u32, Ran>,
    /// CPU time of sequential work on each CPU, less what all of them had.
    had: BTreeMap<CpuId, Duration>,
    /// The same since the last move.
    since: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct Ran {
    counter: Duration,
    last: Duration,
    /// Seconds, of which what was a window ago counts 1/e.
    recent: f64,
}

/// A thread that works while others wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alone {
    /// Its thread id.
    pub tid: u32,
    /// CPU time since the last look.
    pub ran: Duration,
}

impl Turns {
    /// Turns of this length, in CPU time.
    #[must_use]
    pub fn new(turn: Duration) -> Turns {
        Turns { turn, threads: BTreeMap::new(), had: BTreeMap::new(), since: Duration::ZERO }
    }

    /// What each thread has run until now (id, CPU time since its start) and how long ago the last look was; who works
    /// alone, or nearly so.
    pub fn look(&mut self, threads: &[(u32, Duration)], passed: Duration) -> Option<Alone> {
        let window = self.turn.as_secs_f64() * WINDOW;
        let keep = (-passed.as_secs_f64() / window).exp();
        let before = std::mem::take(&mut self.threads);
        self.threads = threads
            .iter()
            .map(|&(tid, counter)| {
                let known = before.get(&tid).copied().unwrap_or(Ran { counter, ..Ran::default() });
                let last = counter.saturating_sub(known.counter);
                (tid, Ran { counter, last, recent: known.recent * keep + last.as_secs_f64() })
            })
            .collect();
        let (tid, most) = self.threads.iter().max_by(|(_, a), (_, b)| a.recent.total_cmp(&b.recent))?;
        let others = self.threads.iter().filter(|(other, _)| *other != tid).map(|(_, ran)| ran.recent);
        let second = others.fold(0.0, f64::max);
        let alone = most.recent > 0.0 && second <= SECOND * most.recent;
        alone.then_some(Alone { tid: *tid, ran: most.last })
    }

    /// That `alone` ran on `cpu`; where it should go on, of the CPUs `allowed`, if it has had its turn.
    pub fn next(&mut self, alone: Alone, cpu: CpuId, allowed: &CpuSet) -> Option<CpuId> {
        self.had.retain(|known, _| allowed.contains(*known));
        for cpu in allowed.iter() {
            self.had.entry(cpu).or_default();
        }
        *self.had.entry(cpu).or_default() += alone.ran;
        self.since += alone.ran;
        let least = self.had.values().min().copied().unwrap_or_default();
        for had in self.had.values_mut() {
            *had = (*had - least).min(self.turn * OWED);
        }
        if self.since < self.turn {
            return None;
        }
        let after = self.had.iter().filter(|(other, _)| **other > cpu);
        let before = self.had.iter().filter(|(other, _)| **other < cpu);
        // The first of those with least, in the order of the round.
        let (to, least) = after.chain(before).min_by_key(|(_, had)| **had)?;
        let here = self.had.get(&cpu);
        here.is_none_or(|here| here >= least).then_some(*to)
    }

    /// The thread was moved: its turn begins.
    pub fn moved(&mut self) {
        self.since = Duration::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURN: Duration = Duration::from_millis(6);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Looks each 6 ms at threads that ran so much in each; where the first was each time, and who worked alone last.
    fn follow(per_look: &[u64], cpus: u32, looks: u32, kernel: impl Fn(u32, CpuId) -> CpuId) -> Vec<u64> {
        let (mut turns, mut at) = (Turns::new(TURN), CpuId(0));
        let mut had = vec![0; cpus as usize];
        for look in 0..looks {
            let threads: Vec<(u32, Duration)> =
                (7..).zip(per_look).map(|(tid, each)| (tid, ms(u64::from(look) * each))).collect();
            let alone = turns.look(&threads, TURN);
            at = kernel(look, at);
            had[at.0 as usize] += per_look[0];
            if let Some(alone) = alone {
                assert_eq!(alone.tid, 7);
                if let Some(next) = turns.next(alone, at, &CpuSet::first(cpus)) {
                    at = next;
                    turns.moved();
                }
            }
        }
        had
    }

    fn alike(had: &[u64], within: u64) {
        let (least, most) = (had.iter().min().unwrap(), had.iter().max().unwrap());
        assert!(*most - *least <= within, "{had:?}");
    }

    #[test]
    fn one_active_thread_is_on_all_cpus_for_as_long() {
        for cpus in [2, 3, 4, 16] {
            alike(&follow(&[6], cpus, 960, |_, at| at), 12);
            alike(&follow(&[6, 0, 0], cpus, 960, |_, at| at), 12);
        }
    }

    #[test]
    fn so_is_the_thread_that_others_seldom_help() {
        alike(&follow(&[6, 1, 0, 1], 4, 2000, |_, at| at), 12);
    }

    #[test]
    fn where_several_work_nobody_is_moved() {
        assert_eq!(follow(&[6, 6], 2, 100, |_, at| at), [600, 0]);
        // Figure 7 on four vCPUs: three units for the first, two for the others.
        assert_eq!(follow(&[3, 2, 2, 2], 4, 100, |_, at| at), [300, 0, 0, 0]);
    }

    #[test]
    fn what_the_kernel_moves_is_made_up_for_but_not_for_ever() {
        // It puts the thread back on the first CPU at every fifth look.
        let back = |look: u32, at: CpuId| if look.is_multiple_of(5) { CpuId(0) } else { at };
        alike(&follow(&[6], 2, 1000, back), 12);
        // Kept there for long, by somebody's neighbour on the other.
        let kept = |look: u32, at: CpuId| if look < 500 { CpuId(0) } else { at };
        let had = follow(&[6], 2, 1000, kept);
        assert!((3000 + 1400..=3000 + 1600).contains(&had[0]), "{had:?}");
    }

    #[test]
    fn a_turn_is_cpu_time_so_a_cpu_that_stands_still_is_not_left() {
        let mut turns = Turns::new(TURN);
        let cpus = CpuSet::first(4);
        turns.look(&[(7, ms(0))], ms(6));
        let alone = turns.look(&[(7, ms(2))], ms(6)).unwrap();
        assert_eq!(turns.next(alone, CpuId(0), &cpus), None);
        // Stopped for 18 ms.
        let alone = turns.look(&[(7, ms(2))], ms(18)).unwrap();
        assert_eq!(turns.next(alone, CpuId(0), &cpus), None);
        let alone = turns.look(&[(7, ms(6))], ms(6)).unwrap();
        assert_eq!(turns.next(alone, CpuId(0), &cpus), Some(CpuId(1)));
    }

    #[test]
    fn threads_and_cpus_come_and_go() {
        let mut turns = Turns::new(TURN);
        assert_eq!(turns.look(&[], ms(6)), None);
        turns.look(&[(7, ms(900))], ms(6));
        assert_eq!(turns.look(&[(7, ms(900)), (8, ms(5))], ms(6)), None, "what it ran before is not known");
        let alone = turns.look(&[(8, ms(12))], ms(6)).unwrap();
        assert_eq!(alone, Alone { tid: 8, ran: ms(7) });
        assert_eq!(turns.next(alone, CpuId(3), &CpuSet::first(2)), Some(CpuId(0)), "its CPU is gone");
        turns.moved();
        let alone = turns.look(&[(8, ms(20))], ms(6)).unwrap();
        assert_eq!(turns.next(alone, CpuId(0), &CpuSet::first(1)), None, "there is one CPU");
    }
}
