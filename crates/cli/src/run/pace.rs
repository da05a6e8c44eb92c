//! When to look at the program again.

use std::time::{Duration, Instant};

use corefit_linux::threads::this_threads_cpu;

/// Limits change seldom, and reading them takes a millisecond.
pub(super) const LOOK_AT_LIMITS: Duration = Duration::from_secs(1);
/// A program that can lose little is looked at so many times less often.
const CALM_FACTOR: u32 = 4;
/// Intervals from this on are long enough for it.
const CALM: Duration = Duration::from_millis(200);
/// Looking may take one part in so many of a CPU: some 0.2 ms each on this machine (30 ms apart, then), 3 ms in a
/// guest whose instructions are emulated. There cg at size T, two threads, took 5 to 10 % longer with a look every 50 ms.
const COST: u32 = 100;
/// As if there had been so many looks already, at no cost: the first are the dearest.
const FIRST: u32 = 32;

/// How much the program can lose between two looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// A team that has too many threads, or too few.
    Much,
    /// A single thread cannot be too many, and who has no team takes no orders. Each look of ours wakes a thread
    /// beside them, which makes the kernel move threads between CPUs (measured here beside two busy loops on 2 CPUs,
    /// cg W, medians of 12 runs: 2.04 s at 50 ms, 1.60 s at 200 ms). A first region is answered at once
    /// (`Grants::serve`), and followed from the next look on.
    Little,
    /// Threads that never wait for each other lose nothing by sharing CPUs: they follow limits only ([`super::glance`]; ep W, clang, beside
    /// two busy loops, means of 24 runs each: 1.910 ± 0.013 s at 200 ms, 1.887 ± 0.012 s at 10 s, and 1.873 ± 0.017 s
    /// without corefit).
    Nothing,
}

/// The pace of the looks.
pub(super) struct Pace {
    wanted: Duration,
    began: Duration,
    looks: u32,
}

impl Pace {
    /// Looks of this thread, `wanted` apart.
    pub(super) fn new(wanted: Duration) -> Pace {
        Pace { wanted, began: this_threads_cpu(), looks: 0 }
    }

    /// How long until the first look.
    pub(crate) fn first(&self, independent: bool) -> Duration {
        apart(self.wanted, if independent { Loss::Nothing } else { Loss::Much }, Duration::ZERO)
    }

    /// When to glance at the limits, if not at `next`: so that a smaller one is known within two of the intervals wanted.
    pub(crate) fn glance(&self, next: Instant) -> Instant {
        next.min(Instant::now() + self.wanted * 3 / 2)
    }

    /// After a look that was due at `due`, or came before: when the next one is.
    pub(super) fn next(&mut self, due: Instant, loss: Loss) -> Instant {
        self.looks = self.looks.saturating_add(1);
        let cost = this_threads_cpu().saturating_sub(self.began) / self.looks.max(FIRST);
        let now = Instant::now();
        (due.min(now) + apart(self.wanted, loss, cost)).max(now)
    }
}

fn apart(wanted: Duration, loss: Loss, cost: Duration) -> Duration {
    let longer = match loss {
        _ if wanted >= CALM => wanted,
        Loss::Much => wanted,
        Loss::Little => wanted * CALM_FACTOR,
        Loss::Nothing => LOOK_AT_LIMITS,
    };
    longer.max((cost * COST).min(LOOK_AT_LIMITS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_rarer_where_there_is_less_to_lose_or_they_cost_more() {
        let ms = Duration::from_millis;
        let cheap = Duration::from_micros(200);
        assert_eq!(apart(ms(50), Loss::Much, cheap), ms(50));
        assert_eq!(apart(ms(50), Loss::Little, cheap), ms(200));
        assert_eq!(apart(ms(50), Loss::Nothing, cheap), ms(1_000));
        for loss in [Loss::Much, Loss::Little, Loss::Nothing] {
            assert_eq!(apart(ms(300), loss, cheap), ms(300), "long enough");
            assert_eq!(apart(ms(2_000), loss, ms(50)), ms(2_000), "long enough");
        }
        assert_eq!(apart(ms(5), Loss::Much, cheap), ms(20), "a hundredth of a CPU");
        assert_eq!(apart(ms(50), Loss::Much, ms(3)), ms(300));
        assert_eq!(apart(ms(50), Loss::Much, ms(30)), ms(1_000), "at most");
    }
}
