//! The decision for one parallel region: as the program asks, or how many threads fewer.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::page::{Slot, word};
use crate::quiet;
use crate::runtime::Runtime;
use crate::session;

/// The number of threads for a region that asks for `clause` threads (0: no clause),
/// or `None` to leave it to the runtime.
#[inline]
pub(crate) fn size(rt: &'static Runtime, clause: u32) -> Option<u32> {
    let word = session::current_word();
    if word == 0 {
        return None;
    }
    decide(rt, clause, word)
}

#[cold]
fn decide(rt: &'static Runtime, clause: u32, mut word: u32) -> Option<u32> {
    let requested = if clause == 0 {
        rt.max_threads()
    } else {
        clause
    };
    if word == word::REGISTER {
        word = session::register(rt, requested);
    }
    let slot = session::slot()?;
    quiet::at_region(rt, word);
    let outer = rt.enclosing_threads();
    let dynamic = rt.dynamic();
    let resizable = word & word::ANY != 0 || (word & word::DYNAMIC != 0 && dynamic);
    let team = if !resizable {
        requested
    } else if word & word::RANDOM != 0 {
        1 + random() % requested.max(1)
    } else {
        limit(requested, outer, word & word::TEAM)
    };
    if outer == 1 && requested > 1 {
        note(slot, requested, team, dynamic);
    }
    (team != requested).then_some(team)
}

/// A nested region shares the team's size with the regions around it.
fn limit(requested: u32, outer: u32, team: u32) -> u32 {
    if team == 0 {
        requested
    } else {
        requested.min((team / outer).max(1))
    }
}

fn note(slot: &Slot, requested: u32, team: u32, dynamic: bool) {
    slot.requested.store(requested, Relaxed);
    slot.team.store(team, Relaxed);
    slot.dynamic.store(dynamic.into(), Relaxed);
    slot.regions.fetch_add(1, Relaxed);
    if team != requested {
        slot.resized.fetch_add(1, Relaxed);
    }
}

/// Random sizes for `corefit certify`: one stream per thread, seeded from the page
/// (xorshift64*, Vigna 2016; quality hardly matters here).
fn random() -> u32 {
    thread_local!(static STATE: Cell<u64> = const { Cell::new(0) });
    static STREAMS: AtomicU64 = AtomicU64::new(1);
    let mut x = STATE.get();
    if x == 0 {
        let seed = session::page().map_or(1, |p| p.seed.load(Relaxed));
        let stream = STREAMS.fetch_add(1, Relaxed);
        // Odd multiples of the golden ratio spread neighbouring seeds and streams.
        x = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ stream.rotate_left(40)) | 1;
    }
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    STATE.set(x);
    u32::try_from(x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40).unwrap_or(0)
}
