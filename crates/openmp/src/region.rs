//! The decision for one parallel region: as the program asks, or how many threads instead.

use core::sync::atomic::Ordering::Relaxed;

use crate::page::{Slot, runtime, word};
use crate::runtime::{self as runtimes, Runtime};
use crate::{random, session, watch};

/// The number of threads for a region that asks for `clause` threads (0: no clause),
/// or `None` to leave it to the runtime. `word` is not zero.
#[cold]
pub(crate) fn size(rt: &'static Runtime, clause: u32, mut word: u32) -> Option<u32> {
    let requested = if clause == 0 { rt.max_threads() } else { clause };
    if word == word::REGISTER {
        word = session::register(rt, requested);
    }
    let slot = session::slot()?;
    session::note_runtime(slot, rt);
    watch::start(slot, requested.max(rt.max_threads()));
    let outer = enclosing_threads(rt);
    let dynamic = rt.dynamic();
    let resizable = word & word::ANY != 0 || (word & word::DYNAMIC != 0 && dynamic);
    let team = if !resizable {
        requested
    } else if word & word::RANDOM != 0 {
        random_size(rt, slot, requested, outer)
    } else {
        limit(requested, outer, word & word::TEAM)
    };
    if outer == 1 && requested > 1 {
        note(slot, requested, team, dynamic);
    }
    (team != requested).then_some(team)
}

/// A size from 1 to the one requested. The first region always gets another one: a program may
/// have no second.
fn random_size(rt: &'static Runtime, slot: &Slot, requested: u32, outer: u32) -> u32 {
    let first = outer == 1 && slot.regions.load(Relaxed) == 0;
    let choices = if first { requested.saturating_sub(1) } else { requested };
    1 + random::number(rt) % choices.max(1)
}

/// A nested region shares the team's size with the regions around it.
fn limit(requested: u32, outer: u32, team: u32) -> u32 {
    if team == 0 { requested } else { requested.min((team / outer).max(1)) }
}

/// Threads of the regions around this one, also of those begun by a libgomp of another part of
/// the program. (libomp is not asked: it would take the thread for one of its own.)
fn enclosing_threads(rt: &'static Runtime) -> u32 {
    let others = runtimes::known().filter(|r| r.kind == runtime::GOMP && !core::ptr::eq(*r, rt));
    others.fold(rt.enclosing_threads(), |all, r| all.saturating_mul(r.enclosing_threads()))
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
