//! A queue lock (Mellor-Crummey and Scott) whose waiters spin for a while on their own node, then sleep.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::sys::{self, Futex};

/// Steps that a waiter spins before it sleeps: about 25 us here, a few wake-ups.
const SPINS: u32 = 1000;

const WAITING: u32 = 0;
const GRANTED: u32 = 1;
const ASLEEP: u32 = 2;

/// The lock: the last in line, and the holder's node.
#[derive(Debug)]
pub struct McsPark {
    tail: AtomicPtr<Node>,
    holder: Cell<*const Node>,
}

#[repr(align(64))]
struct Node {
    next: AtomicPtr<Node>,
    state: Futex,
}

// SAFETY: `holder` is only used by whoever holds the lock.
unsafe impl Sync for McsPark {}
// SAFETY: nothing in it belongs to a thread while nobody holds or waits for it.
unsafe impl Send for McsPark {}

thread_local! {
    /// A thread waits for or holds at most this one such lock at a time: enough for a benchmark.
    static NODE: &'static Node = Box::leak(Box::new(Node {
        next: AtomicPtr::new(ptr::null_mut()),
        state: Futex::new(),
    }));
}

// SAFETY: a node is granted by its predecessor only, once.
unsafe impl lock_api::RawMutex for McsPark {
    #[allow(clippy::declare_interior_mutable_const, reason = "lock_api asks for it")]
    const INIT: Self = McsPark { tail: AtomicPtr::new(ptr::null_mut()), holder: Cell::new(ptr::null()) };
    type GuardMarker = lock_api::GuardNoSend;

    fn lock(&self) {
        let node = NODE.with(|node| *node);
        node.next.store(ptr::null_mut(), Ordering::Relaxed);
        node.state.0.store(WAITING, Ordering::Relaxed);
        let before = self.tail.swap(ptr::from_ref(node).cast_mut(), Ordering::AcqRel);
        // SAFETY: nodes live for ever.
        if let Some(before) = unsafe { before.as_ref() } {
            before.next.store(ptr::from_ref(node).cast_mut(), Ordering::Release);
            node.wait();
        }
        self.holder.set(node);
    }

    fn try_lock(&self) -> bool {
        let node = NODE.with(|node| *node);
        node.next.store(ptr::null_mut(), Ordering::Relaxed);
        let mine = ptr::from_ref(node).cast_mut();
        let free =
            self.tail.compare_exchange(ptr::null_mut(), mine, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if free {
            self.holder.set(node);
        }
        free
    }

    unsafe fn unlock(&self) {
        // SAFETY: the holder's node, which lives for ever.
        let node = unsafe { &*self.holder.get() };
        if node.next.load(Ordering::Acquire).is_null() {
            let mine = ptr::from_ref(node).cast_mut();
            let last = self.tail.compare_exchange(mine, ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed);
            if last.is_ok() {
                return;
            }
        }
        let mut next = node.next.load(Ordering::Acquire);
        while next.is_null() {
            sys::pause();
            next = node.next.load(Ordering::Acquire);
        }
        // SAFETY: a node that is in line lives for ever.
        let next = unsafe { &*next };
        if next.state.0.swap(GRANTED, Ordering::AcqRel) == ASLEEP {
            next.state.wake(1);
        }
    }
}

impl Node {
    fn wait(&self) {
        for _ in 0..SPINS {
            if self.state.0.load(Ordering::Acquire) == GRANTED {
                return;
            }
            sys::pause();
        }
        let asleep = self.state.0.compare_exchange(WAITING, ASLEEP, Ordering::AcqRel, Ordering::Acquire);
        while asleep.is_ok() && self.state.0.load(Ordering::Acquire) != GRANTED {
            self.state.wait(ASLEEP, None);
        }
    }
}

/// Only for reading what the fields are: nodes are shared by address.
impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("state", &AtomicU32::as_ptr(&self.state.0)).finish_non_exhaustive()
    }
}
