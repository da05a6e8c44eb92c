//! Threads of guests, and lists of them.

use crate::cpus::NONE;
use crate::random::Stream;

/// What a thread does while it is on a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// `left` is work.
    Work,
    /// `left` is ns until it stops spinning.
    Spin,
}

/// Where a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TState {
    /// On its vCPU (which need not run).
    Current,
    /// In the queue of its vCPU.
    Ready,
    /// Waits for something, or sleeps.
    Blocked,
    /// Has ended, or not begun.
    Out,
}

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Nothing,
    /// A spin lock of the kernel.
    Kernel(u32),
    /// A spin lock of the program.
    User(u32),
    Mutex(u32),
    /// The other members of its team.
    Team,
    /// A channel's next post.
    Channel(u32),
}

/// A thread. What each event touches comes first, and is one line of cache.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Thread {
    /// Of [`Act`].
    pub(crate) left: u64,
    pub(crate) act: Act,
    pub(crate) state: TState,
    /// What it waits for came.
    pub(crate) granted: bool,
    /// Its spinning can be seen by PLE.
    pub(crate) seen: bool,
    /// The guest leaves it on its vCPU, until that goes offline.
    pub(crate) pinned: bool,
    /// Spin locks of the kernel, and of the program, that it holds: at most as many as blocks stand in each other.
    pub(crate) holds: u8,
    pub(crate) holds_user: u8,
    pub(crate) wait: Wait,
    pub(crate) app: u32,
    /// Where it runs, waits or ran last.
    pub(crate) vcpu: u32,
    pub(crate) pc: u32,
    /// Loops that it is in; `loops` has their rounds to go.
    pub(crate) depth: u32,
    /// The next one in the queue of its vCPU, and in the line that it waits in: who spins is in both.
    pub(crate) next: [u32; 2],
    pub(crate) compute: Stream,

    pub(crate) loops: [u32; 8],
    pub(crate) member: u32,
    /// `single rotate` sections passed.
    pub(crate) singles: u32,
    /// Turns that it spins for the lock it waits for.
    pub(crate) patience: u64,
    pub(crate) sleep: Stream,
}

impl Thread {
    /// It may not be moved off its vCPU by the guest: it holds or waits for a lock of the kernel.
    #[inline]
    pub(crate) fn fixed(&self) -> bool {
        self.holds > 0 || matches!(self.wait, Wait::Kernel(_))
    }

    /// Begins to spin, for so many ns.
    #[inline]
    pub(crate) fn spin(&mut self, wait: Wait, ns: u64, seen: bool) {
        self.act = Act::Spin;
        self.wait = wait;
        self.granted = false;
        self.left = ns;
        self.seen = seen;
    }

    /// Has nothing left to do but to go on.
    #[inline]
    pub(crate) fn goes_on(&mut self) {
        self.act = Act::Work;
        self.left = 0;
    }

    /// Starts anew.
    pub(crate) fn rewind(&mut self, pc: u32) {
        self.pc = pc;
        self.depth = 0;
        self.wait = Wait::Nothing;
        self.granted = false;
        self.goes_on();
    }
}

/// Threads that wait for a vCPU.
pub(crate) type Ready = List<0>;
/// Threads that wait for something else.
pub(crate) type Line = List<1>;

/// A list of threads, first in first out, linked through a part of [`Thread::next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct List<const LINK: usize> {
    pub(crate) head: u32,
    tail: u32,
    pub(crate) len: u32,
}

impl<const LINK: usize> List<LINK> {
    pub(crate) const EMPTY: List<LINK> = List { head: NONE, tail: NONE, len: 0 };

    #[inline]
    pub(crate) fn push(&mut self, threads: &mut [Thread], t: u32) {
        threads[t as usize].next[LINK] = NONE;
        if self.tail == NONE {
            self.head = t;
        } else {
            threads[self.tail as usize].next[LINK] = t;
        }
        self.tail = t;
        self.len += 1;
    }

    #[inline]
    pub(crate) fn pop(&mut self, threads: &mut [Thread]) -> Option<u32> {
        let t = self.head;
        if t == NONE {
            return None;
        }
        self.head = threads[t as usize].next[LINK];
        if self.head == NONE {
            self.tail = NONE;
        }
        self.len -= 1;
        Some(t)
    }

    /// Takes one out, wherever it is; whether it was there.
    pub(crate) fn remove(&mut self, threads: &mut [Thread], t: u32) -> bool {
        let (mut before, mut at) = (NONE, self.head);
        while at != NONE && at != t {
            (before, at) = (at, threads[at as usize].next[LINK]);
        }
        if at == NONE {
            return false;
        }
        let next = threads[t as usize].next[LINK];
        if before == NONE {
            self.head = next;
        } else {
            threads[before as usize].next[LINK] = next;
        }
        if self.tail == t {
            self.tail = before;
        }
        self.len -= 1;
        true
    }

    /// The members, first in first.
    pub(crate) fn iter(self, threads: &[Thread]) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors((self.head != NONE).then_some(self.head), |&t| {
            let next = threads[t as usize].next[LINK];
            (next != NONE).then_some(next)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::Thread;
    use crate::cpus::{Pcpu, Vcpu};

    #[test]
    fn what_each_event_touches_is_one_line_of_cache_per_thread_vcpu_and_pcpu() {
        assert_eq!((size_of::<Thread>(), offset_of!(Thread, loops)), (128, 64));
        assert_eq!((size_of::<Vcpu>(), offset_of!(Vcpu, ready)), (192, 64));
        assert_eq!((size_of::<Pcpu>(), offset_of!(Pcpu, idle_ns)), (128, 64));
    }
}
