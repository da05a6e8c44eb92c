//! The decision for one parallel region: as the program asks, or how many threads instead.

use core::sync::atomic::Ordering::{Relaxed, Release};

use crate::page::{Slot, runtime, word};
use crate::runtime::{self as runtimes, Runtime};
use crate::{lately, park, random, rotate, session, watch};

/// The number of threads for a region that asks for `clause` threads (0: no clause),
/// or `None` to leave it to the runtime. `word` is not zero; `key` tells the regions of the program apart; `body` is the
/// function that each thread of the region will run.
#[cold]
pub(crate) fn size(
    rt: &'static Runtime,
    clause: u32,
    mut word: u32,
    key: usize,
    body: &mut usize,
) -> Option<u32> {
    // A region beyond the thread limit gets what the limit leaves, from the runtime itself.
    let limit_of_runtime = rt.thread_limit().max(1);
    let most = rt.max_threads().min(limit_of_runtime);
    let requested = if clause == 0 { most } else { clause.min(limit_of_runtime) };
    // One region may ask for less than the others do, a serial one (`if(0)`) at the beginning for
    // instance: corefit is told what they will ask for.
    let asks = requested.max(most);
    if word == word::REGISTER {
        word = session::register(rt, asks);
    }
    let slot = session::slot()?;
    session::note_runtime(slot, rt);
    let outer = enclosing_threads(rt);
    // Where nobody spins, a change within a region changes nothing in it; and a thread that is made just before the team
    // is takes its place: on 2 CPUs, beside two busy loops, the team of two was on one of them for 0.15 s then.
    let first = outer == 1 && slot.regions.load(Relaxed) == 0;
    if asks > 1 && word != word::TIME && (!first || park::may_help(rt)) {
        watch::start(slot, asks);
    }
    let dynamic = rt.dynamic();
    let resizable = word & word::ANY != 0 || (word & word::DYNAMIC != 0 && dynamic);
    let team = if !resizable {
        requested
    } else if word & word::RANDOM != 0 {
        random_size(rt, slot, requested, outer)
    } else {
        limit(requested, outer, word & word::TEAM)
    };
    let ordered = resizable && word & (word::TEAM | word::RANDOM) != 0;
    let asks_for_mask = dynamic && team > 1 && rt.kind == runtime::GOMP;
    lately::region_begins(if ordered && asks_for_mask { team } else { 0 });
    if outer == 1 && requested > 1 {
        note(slot, asks, team, team != requested, dynamic);
        if word & word::TIME != 0 {
            note_time(slot, key);
        }
    }
    if word & word::ROTATE != 0 && outer == 1 && team > 1 {
        rotate::at_region(rt, slot, team, body);
    }
    (team != requested).then_some(team)
}

/// A libgomp region while nothing is ordered, the first from its part of the program: if another runtime's regions came before
/// it, nobody may be watching.
#[cold]
pub(crate) fn pass(rt: &'static Runtime) {
    if let Some(slot) = session::slot().filter(|_| park::may_help(rt)) {
        session::note_runtime(slot, rt);
        watch::start(slot, rt.max_threads());
    }
}

/// A size from 1 to the one requested. The first region always gets another one, since a program may
/// have no second: with the first three seeds a single thread, one less than requested, and half.
fn random_size(rt: &'static Runtime, slot: &Slot, requested: u32, outer: u32) -> u32 {
    let number = random::number(rt);
    if outer > 1 || slot.regions.load(Relaxed) > 0 {
        return 1 + number % requested.max(1);
    }
    let others = requested.saturating_sub(1).max(1);
    match session::page().map_or(0, |p| p.seed.load(Relaxed)) {
        1 => 1,
        2 => others,
        3 => (requested / 2).max(1),
        _ => 1 + number % others,
    }
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

fn note(slot: &Slot, asks: u32, team: u32, resized: bool, dynamic: bool) {
    slot.requested.store(asks, Relaxed);
    slot.team.store(team, Relaxed);
    slot.dynamic.store(dynamic.into(), Relaxed);
    slot.regions.fetch_add(1, Relaxed);
    if resized {
        slot.resized.fetch_add(1, Relaxed);
    }
}

thread_local! {
    static ME: u8 = const { 0 };
}

/// Notes that a region begins now. Only the first thread that comes here does.
fn note_time(slot: &Slot, key: usize) {
    let Some(page) = session::page() else { return };
    // Threads of a process differ in the address, forked ones in the process.
    let process = u64::from(slot.pid.load(Relaxed)) << 48;
    let me = ME.with(|me| core::ptr::from_ref(me).addr() as u64) ^ process;
    if let Err(noter) = page.noter.compare_exchange(0, me, Relaxed, Relaxed)
        && noter != me
    {
        page.several.store(1, Relaxed);
        return;
    }
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid time to be overwritten.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut now) };
    let ns = now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned();
    let number = page.noted.load(Relaxed);
    #[expect(clippy::cast_possible_truncation, reason = "reduced to the length")]
    let begun = &page.begun[(number % page.begun.len() as u64) as usize];
    begun.key.store(key as u64, Relaxed);
    begun.at.store(ns, Relaxed);
    page.noted.store(number + 1, Release);
}
