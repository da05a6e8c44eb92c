//! Random team sizes for `corefit certify`, the same in each run with the same seed.
//!
//! Threads come and go with the sizes, so a stream per thread would not repeat. Instead each
//! number is a hash of where in the program the region stands: how many outermost regions began
//! before, which thread of each enclosing region begins this one, and its how-manieth there it is.
//! (A program that begins outermost regions in several threads at a time repeats only as far as
//! they begin in the same order.)

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::runtime::Runtime;
use crate::session;

/// Outermost regions so far.
static OUTERMOST: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Where this thread last began a region, and how many it has begun there.
    static PLACE: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// The number for a region that begins now: 24 random bits.
pub(crate) fn number(rt: &Runtime) -> u32 {
    let path = rt.ancestors().fold(0, |path, thread| mix(path ^ u64::from(thread + 1)));
    let outermost = if path == 0 { OUTERMOST.fetch_add(1, Relaxed) + 1 } else { OUTERMOST.load(Relaxed) };
    let place = mix(path ^ outermost);
    let (last, begun) = PLACE.get();
    let begun = if last == place { begun + 1 } else { 0 };
    PLACE.set((place, begun));
    let seed = session::page().map_or(1, |p| p.seed.load(Relaxed));
    let hash = mix(mix(seed ^ mix(place)).wrapping_add(begun));
    u32::try_from(hash >> 40).unwrap_or(0)
}

/// The finaliser of splitmix64 (Steele, Lea, Flood 2014), which spreads neighbouring values.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
