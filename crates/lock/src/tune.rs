//! How long to spin and how many to wake, from what wake-ups have taken lately.
//!
//! Everything is in nanoseconds and measured while the program runs. One estimate serves all locks of
//! the process, since how soon a woken thread gets a CPU depends on the machine and not on the lock.

use crate::policy::{Policy, Spin, Wake};
use crate::sys;

#[cfg(not(modelled))]
pub(crate) use imp::*;
#[cfg(modelled)]
pub(crate) use modelled::*;

/// The time that a spinning loop has.
pub(crate) struct Stay {
    /// Loop steps left until the clock is read.
    steps: u32,
    /// When to stop, `None` before the first look at the clock.
    end: Option<u64>,
    ns: u64,
    /// Steps in all, for the paper's counts; 0 if time counts.
    count: u64,
    /// Pauses in a step, growing to `most`: who looks at the word takes its cache line away from those
    /// who are at work with it.
    pauses: u32,
    most: u32,
}

/// Steps between two looks at the clock.
const STEPS: u32 = 4;
/// Most pauses (25 ns each here) in a step of a waiter in line, and of one without a ticket.
const NEAR_PAUSES: u32 = 2;
pub(crate) const ARRIVAL_PAUSES: u32 = 8;

impl Stay {
    /// So many ns from now on.
    pub(crate) fn new(ns: u64, most: u32) -> Stay {
        Stay { steps: STEPS, end: None, ns, count: 0, pauses: 1, most }
    }

    /// As long as the policy gives a waiter at this distance, with the lock held or on its way.
    pub(crate) fn at_distance(policy: &Policy, distance: u32, held: bool) -> Stay {
        match policy.spin {
            Spin::Measured => Stay::new(spin_ns(distance + u32::from(held)), NEAR_PAUSES),
            Spin::Paper if cfg!(modelled) => Stay::new(0, 1),
            Spin::Paper => {
                let count = if distance + 1 < 18 { (1_u64 << 34) >> distance } else { 1 << 15 };
                Stay { count, ..Stay::new(0, 1) }
            }
        }
    }

    /// The line has moved.
    pub(crate) fn nearer(&mut self, policy: &Policy, distance: u32, held: bool) {
        if policy.spin == Spin::Measured {
            *self = Stay::at_distance(policy, distance, held);
        }
    }

    /// One step; false when the time is over.
    pub(crate) fn on(&mut self) -> bool {
        if self.count > 0 {
            self.count -= 1;
            sys::pause();
            return self.count > 0;
        }
        if self.ns == 0 {
            return false;
        }
        if self.steps == 0 {
            self.steps = STEPS;
            let now = sys::now();
            let ns = self.ns;
            if now >= *self.end.get_or_insert_with(|| now + ns) {
                return false;
            }
        }
        self.steps -= 1;
        (0..self.pauses).for_each(|_| sys::pause());
        self.pauses = (self.pauses * 2).min(self.most);
        true
    }
}

#[cfg(not(modelled))]
mod imp {
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    use super::{Policy, Wake, sys};
    use crate::place::Slot;

    /// From a kick until the woken thread runs, smoothed, ns.
    static WAKE_NS: AtomicU64 = AtomicU64::new(FIRST_NS);
    /// The fastest of those.
    static FASTEST_NS: AtomicU64 = AtomicU64::new(FIRST_NS);
    /// How many waiters a release wakes.
    static EARLY: AtomicU32 = AtomicU32::new(1);
    /// CPUs that this process may use, as far as it was seen lately; 0: not yet asked.
    static CPUS: AtomicU32 = AtomicU32::new(0);
    /// Wake-ups since that was asked.
    static WAKES: AtomicU32 = AtomicU32::new(0);

    /// Wake-ups after which it is asked again.
    const ASK_AGAIN: u32 = 1024;

    /// What is assumed before the first wake-up, and the least that going to sleep and being woken costs
    /// (3 to 5 us here), ns.
    const FIRST_NS: u64 = 5_000;
    /// A wake-up that takes longer than this, ns, has waited for a CPU, and spinning would keep others
    /// from one, too. An idle CPU takes about 30 us here.
    const MOST_NS: u64 = 60_000;

    /// What a waiter learns when it runs again.
    pub(crate) fn woken(slot: &Slot) {
        let took = sys::now().saturating_sub(slot.kicked_at());
        let old = WAKE_NS.load(Ordering::Relaxed);
        WAKE_NS.store(old - old / 8 + took.min(10_000_000) / 8, Ordering::Relaxed);
        let fastest = FASTEST_NS.load(Ordering::Relaxed);
        // The fastest is forgotten slowly, so that it follows the machine.
        FASTEST_NS.store((fastest + fastest / 64 + 1).min(took.max(500)), Ordering::Relaxed);
        let early = EARLY.load(Ordering::Relaxed);
        let next = if took <= 4 * fastest { (early + 1).min(4) } else { 1 };
        EARLY.store(next, Ordering::Relaxed);
        let wakes = WAKES.load(Ordering::Relaxed) + 1;
        WAKES.store(wakes % ASK_AGAIN, Ordering::Relaxed);
        if wakes >= ASK_AGAIN {
            CPUS.store(SEEN.ask(), Ordering::Relaxed);
        }
    }

    /// How many of the next waiters to wake.
    pub(crate) fn wake_ups(policy: &Policy) -> u32 {
        match policy.wake {
            Wake::Always(n) => n,
            Wake::Measured(most) => EARLY.load(Ordering::Relaxed).min(most),
        }
    }

    /// How long to spin without a ticket.
    pub(crate) fn arrival_ns(policy: &Policy) -> u64 {
        if policy.bypasses == 0 || cpus() < 2 { 0 } else { 2_000 }
    }

    /// How long to spin with so many threads ahead, the holder included: as long as it takes to be woken,
    /// halved for everyone further back, and not at all behind as many threads as there are CPUs.
    pub(crate) fn spin_ns(ahead: u32) -> u64 {
        if ahead >= cpus() {
            return 0;
        }
        let wake = WAKE_NS.load(Ordering::Relaxed);
        let wake = if wake > MOST_NS { FIRST_NS } else { wake.max(FIRST_NS) };
        wake >> ahead.saturating_sub(1)
    }

    fn cpus() -> u32 {
        match CPUS.load(Ordering::Relaxed) {
            0 => {
                let n = SEEN.ask();
                CPUS.store(n, Ordering::Relaxed);
                n
            }
            n => n,
        }
    }

    /// CPUs that threads may use which have asked lately.
    struct Seen {
        asked: AtomicU32,
        /// Since the last time that a set was begun, and before that; for 8,192 CPUs.
        sets: [[AtomicU64; 128]; 2],
    }

    static SEEN: Seen = Seen::new();

    /// So often it is asked until a set is begun: more often than most processes have threads, each of which is to be seen.
    const BEGIN: u32 = 64;

    impl Seen {
        const fn new() -> Seen {
            Seen { asked: AtomicU32::new(0), sets: [const { [const { AtomicU64::new(0) }; 128] }; 2] }
        }

        /// How many CPUs the main thread, this one and those that asked lately may use together: programs bind their threads
        /// one by one. What none may use any more is forgotten.
        fn ask(&self) -> u32 {
            type Set = [u64; 128];
            let of = |thread: libc::pid_t| {
                let mut set: Set = [0; 128];
                // SAFETY: the kernel writes no more than this size.
                let known = sys::keep_errno(|| unsafe {
                    libc::sched_getaffinity(thread, size_of::<Set>(), set.as_mut_ptr().cast()) == 0
                });
                if known { set } else { [0; 128] }
            };
            let asked = self.asked.fetch_add(1, Ordering::Relaxed);
            let [mut now, mut before] = self.sets.each_ref();
            if asked / BEGIN % 2 == 1 {
                (now, before) = (before, now);
            }
            if asked.is_multiple_of(BEGIN) {
                now.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            }
            // SAFETY: always succeeds.
            let (main, this) = (of(unsafe { libc::getpid() }), of(0));
            let mut count = 0;
            for (at, now) in now.iter().enumerate() {
                let seen = main[at] | this[at];
                let all = now.fetch_or(seen, Ordering::Relaxed) | seen | before[at].load(Ordering::Relaxed);
                count += all.count_ones();
            }
            count.max(1)
        }
    }

    #[cfg(all(test, not(miri)))]
    mod tests {
        use std::io::Write as _;

        use super::*;

        #[test]
        fn a_bound_thread_does_not_stand_for_the_process() {
            let all = Seen::new().ask();
            if all < 2 {
                // Past the test harness, which would keep it.
                let _ = writeln!(std::io::stderr(), "skipped: a bound thread, as there is one CPU only");
                return;
            }
            let bound = std::thread::spawn(|| {
                // SAFETY: an all-zero set is a valid one; sets of the stated size.
                unsafe {
                    let mut set: libc::cpu_set_t = std::mem::zeroed();
                    let size = size_of::<libc::cpu_set_t>();
                    assert_eq!(libc::sched_getaffinity(0, size, &raw mut set), 0);
                    let first = (0..1024).find(|cpu| libc::CPU_ISSET(*cpu, &set)).unwrap();
                    libc::CPU_ZERO(&mut set);
                    libc::CPU_SET(first, &mut set);
                    assert_eq!(libc::sched_setaffinity(0, size, &raw const set), 0);
                }
                Seen::new().ask()
            });
            assert_eq!(bound.join().unwrap(), all);
        }

        #[test]
        fn cpus_that_nobody_may_use_any_more_are_forgotten() {
            let (seen, now) = (Seen::new(), Seen::new().ask());
            seen.ask();
            seen.sets[0][127].store(u64::MAX, Ordering::Relaxed);
            let counts: Vec<u32> = (1..=2 * BEGIN).map(|_| seen.ask()).collect();
            assert_eq!((counts[0], counts[counts.len() - 1]), (now + 64, now));
        }
    }
}

/// In a model nobody spins, and two are woken.
#[cfg(modelled)]
mod modelled {
    use super::{Policy, Wake};
    use crate::place::Slot;

    pub(crate) fn woken(_: &Slot) {}

    pub(crate) fn wake_ups(policy: &Policy) -> u32 {
        match policy.wake {
            Wake::Always(n) | Wake::Measured(n) => n,
        }
    }

    pub(crate) fn arrival_ns(_: &Policy) -> u64 {
        0
    }

    pub(crate) fn spin_ns(_: u32) -> u64 {
        0
    }
}
