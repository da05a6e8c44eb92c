//! Stops libomp's spinning while there are more threads than CPUs, without changing what the
//! program computes; and lets it spin again afterwards. (For libgomp see `park.rs`.)
//!
//! libomp spins for its block time (200 ms, `KMP_BLOCKTIME`) before it sleeps.
//! `kmp_set_blocktime` in the thread that begins a region rules that region.

use core::cell::Cell;

use crate::page::word;
use crate::runtime::Runtime;

thread_local! {
    /// This thread's block time before we set it to 0, in ms; negative: we did not.
    static BLOCK_TIME_MS: Cell<i32> = const { Cell::new(-1) };
}

/// Whether this thread's block time is ours: [`at_region`] has to be called at its next region, too,
/// whatever the word is then.
pub(crate) fn is_applied() -> bool {
    BLOCK_TIME_MS.get() >= 0
}

/// Called where a region begins: applies the word to libomp.
pub(crate) fn at_region(rt: &Runtime, word: u32) {
    let (Some(set), Some(get)) = (rt.set_blocktime, rt.blocktime) else {
        return;
    };
    let before = BLOCK_TIME_MS.get();
    let quiet = word & word::QUIET != 0;
    if quiet && before < 0 {
        // SAFETY: documented extensions of libomp, callable anywhere.
        BLOCK_TIME_MS.set(unsafe { get() }.max(0));
        // SAFETY: as above.
        unsafe { set(0) };
    } else if !quiet && before >= 0 {
        BLOCK_TIME_MS.set(-1);
        // SAFETY: as above. What the program set meanwhile stands.
        if unsafe { get() } == 0 {
            // SAFETY: as above.
            unsafe { set(before) };
        }
    }
}
