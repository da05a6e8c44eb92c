//! The lock's settings, and its presets.

/// How a lock treats its waiters. Locks of different policies never share a word.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// B: how often the waiter at the head may be passed by running threads; 0 is strict FIFO. At
    /// most [`MOST_BYPASSES`](crate::word::MOST_BYPASSES).
    pub bypasses: u32,
    /// How long waiters spin.
    pub spin: Spin,
    /// N: how many of the next waiters a release wakes.
    pub wake: Wake,
}

/// How long waiters spin before they sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spin {
    /// As long as a wake-up takes, measured; by distance, and only as many waiters as there are CPUs
    /// besides the holder's.
    Measured,
    /// The paper's counts: 2^34 >> (d - 1) steps at distance d below 18 (d = 1 is the head), else
    /// 2^15; the distance is taken once (section 4, Figure 5).
    Paper,
}

/// How many waiters a release wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// From one, when a woken thread does not get a CPU soon, up to this many, when it does.
    Measured(u32),
    /// Always so many.
    Always(u32),
}

impl Policy {
    /// A settled middle: short waits for everybody, and about the throughput of unfair locks. Fewer bypasses are slower,
    /// more make waits longer and nothing faster (docs/locks.md has the figures).
    pub const DEFAULT: Policy = Policy { bypasses: 192, spin: Spin::Measured, wake: Wake::Measured(4) };

    /// Strict first come, first served.
    pub const FIFO: Policy = Policy { bypasses: 0, spin: Spin::Measured, wake: Wake::Measured(4) };

    /// Kashyap, Min and Kim, "Scalability in the Clouds! A Myth or Reality?" (APSys 2015): FIFO with
    /// their constants, `OPPORTUNISTIC_WAKEUP_NCPU` = 4.
    pub const PAPER: Policy = Policy { bypasses: 0, spin: Spin::Paper, wake: Wake::Always(4) };
}
